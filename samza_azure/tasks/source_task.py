"""A task that reads a stream from outside and appends its rows to its own log, for the tasks behind it.

The position outside is part of each record, as what a task has read of a source partition always is. So a take-over
reads on exactly behind the rows that are in the log, and a drain ends the stream where its log ends.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import AccessDenied, ConfigError, SamzaAzureError, SignInFailed, StorageUnavailable, Superseded
from samza_azure.logs.names import source_partition, stage_and_number, state_name
from samza_azure.logs.position import Position
from samza_azure.logs.record import INTERMEDIATE, Kind, Slice
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.messages import WARNING_LIMIT, DrainPhase, DrainStep, Progress, StartTask, partitions_of
from samza_azure.outcomes import Missing
from samza_azure.pipeline.outside import outside
from samza_azure.stream_io.arrow import event_times, one_slice
from samza_azure.stream_io.columns import strict_schema
from samza_azure.stream_io.log import LogWriter
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.systems.api import SystemConsumer, SystemLag, SystemRows
from samza_azure.systems.dead_letters import SCHEMA as DEAD_LETTERS
from samza_azure.systems.dead_letters import too_many
from samza_azure.systems.options import added, other_count
from samza_azure.systems.patience import Barred, Patience
from samza_azure.systems.registry import factory_of
from samza_azure.tasks.backlog import furthest
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.forgetting import Forgetting
from samza_azure.tasks.life import TurnTask, owner_number
from samza_azure.tasks.readers import Readers

log = logging.getLogger(__name__)

#: How often the outside is asked while it has nothing new, and where the consumer says itself when it has.
LOOK_S, TOLD_S = 0.1, 0.5
#: After so many seconds without a record it is asked less often.
QUIET_S, LOOK_QUIET_S = 5.0, 0.5
#: How often what is left outside is reported.
LAG_S = 1.0
#: For how long a look at the end of a partition counts. Ours look at least once a minute.
LOOK_COUNTS_S = 150.0


@dataclass
class Partition:
    """How far one partition is read."""

    position: Position
    event_time_us: int | None = None  # no later row is older
    rows_at: float = field(default_factory=boot_time)
    slices: list[Slice] = field(default_factory=list)  # read, but not in the log yet


class SourceTask(TurnTask):
    """One task of a stream from outside under one writer."""

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        """The consumer says how much a batch has, so `tried_bytes` is never known."""
        super().__init__(context, start)
        self._stage = context.pipeline.stage_of(start.task)
        (self._stream,) = self._stage.plan.inputs
        self._declared = context.config.streams[self._stream]
        self._wanted = strict_schema(self._declared.schema, self._stage.event_time)
        self._commit_s = context.config.task.commit_ms / 1000
        self._most_bytes = context.config.task.batch_bytes
        self._consumer: SystemConsumer | None = None
        self._partitions: dict[int, Partition] = {}
        self._bytes = self._rows = self._dead = 0  # read, but not in the log yet
        self._appended_at = 0.0
        self._looked_at = -math.inf  # when the outside last had nothing more, in any of the partitions
        self._lags: Callable[[int], SystemLag | None] | None = None  # of the consumer, if it knows them
        self._is_told = False  # when the consumer has something
        self._told_lag_at = 0.0
        self._warnings: Callable[[], str] = str  # of the consumer, if it has some
        self._patience = Patience()  # with an outside that refuses us
        self._barred = ""  # why it refuses us, after it has let us in
        self._has_read = False  # before, in this run
        self._is_idle = self._has_moved = False  # `_has_moved`: since the last record
        self._pending: dict[str, Any] | None = None  # a record of which it is not known whether it is in the log
        self._forgetting = Forgetting(context, start, ())
        self._readers = Readers(context, start, self._declared.backlog_bytes)
        self._waits, self._waited_at = False, -math.inf  # whether it waits for them, and when it last did
        #: What the consumer needs beside the positions, by partition; and how it is in the log.
        self._states: dict[int, bytes] = {}
        self._logged: dict[int, bytes] = {}

    @property
    def reads_source(self) -> bool:
        return True

    def count(self) -> None:
        """Set the pace to 0 if nothing comes."""
        if boot_time() - self._appended_at > max(10.0, 2 * self._commit_s):
            with self._lock:
                if self._report.progress is not None and self._report.progress.pace:
                    self._report = replace(
                        self._report, progress=replace(self._report.progress, pace=0.0, pace_out=0.0)
                    )

    def _begin(self) -> bool:
        writer, restored = self._take_over(
            {
                "stream": self._stage.plan.output,
                "schema": self._stage.plan.schema,
                "partitions": self._stage.plan.partitions,
                "event_time": self._stage.event_time,
                INTERMEDIATE: True,
            }
        )
        if restored.drained:
            self._end_drained(read=dict(restored.read))
            return False
        self._readers.begin(writer.position)
        start, self._has_read = self.start_message.positions, bool(restored.read)
        for each in partitions_of(stage_and_number(self.name)[1], self._stage.plan.tasks, self._declared.partitions):
            key = source_partition(self._stream, each)
            position = restored.read.get(key, start.get(key, (0, 0)))
            self._partitions[each] = Partition(position, restored.frontier_us)
            self._logged[each] = restored.files.get(_file(each), b"")
            self._states[each] = self._logged[each] if key in restored.read else self._left(key, position)
        self._tell(read=self._read_to())
        return True

    def _left(self, key: str, position: Position) -> bytes:
        """What the run before has left for its end."""
        found = self._context.blobs.read(state_name(key, position), 0)
        return b"" if isinstance(found, Missing) else found.data

    def _open(self) -> SystemConsumer:
        """Begin to read. A drain reads nothing, so it ends as well where the outside cannot be read as declared."""
        read = outside(self._stream, self._declared, self._context.config)
        keys = {number: source_partition(self._stream, number) for number in range(self._declared.partitions)}
        new = frozenset(number for number, key in keys.items() if key not in self.start_message.positions)
        new = new if len(new) < len(keys) else frozenset()
        of_stream = replace(read, owner=owner_number(self.start_message), added=new)
        factory = factory_of(self._declared.system, self._stream)
        self._patience.tries()
        number = factory.get_admin(of_stream).partitions()
        if number is not None and number != self._declared.partitions:
            if number < self._declared.partitions or not self._has_read:
                raise other_count(self._stream, self._declared.partitions, number)
            self._warnings = lambda: added(self._stream, self._declared.partitions, number)
        self._consumer = consumer = factory.get_consumer(of_stream)
        try:
            restore, tell = getattr(consumer, "restore", None), getattr(consumer, "tell", None)
            self._is_told = tell is not None
            if tell is not None:
                tell(self._awake.set)
            for each, partition in self._partitions.items():
                if restore is not None and self._states[each]:
                    restore(each, self._states[each])
                consumer.open(each, partition.position)
        except BaseException:
            self._leaves()
            raise
        self._lags = getattr(consumer, "lag", None)
        self._warnings = getattr(consumer, "warning", self._warnings)
        self._has_moved |= not self._has_read  # a record says that this run reads, also if nothing comes
        return consumer

    def _turn(self) -> None:
        assert self._writer is not None
        self._forgetting.look(self._writer)
        if self._pending is not None:
            self._append(Kind.BATCH)
            if self.is_over:
                return
        drain, away = self._drain, None
        if drain.step is None and boot_time() >= self._patience.not_before:
            try:
                self._waits = self._readers.are_behind()
                self._wait() if self._waits else self._read()
            except StorageUnavailable as error:
                away = error  # what was read before is appended all the same
                self._barred = str(error) if isinstance(error, (Barred, SignInFailed)) else self._barred
                self._patience.tries()
            except AccessDenied as error:
                self._patience.refused(error)
                self._begins_anew()
        is_due = boot_time() >= self._appended_at + self._commit_s or self._bytes >= self._most_bytes
        if self._has_moved and (is_due or drain.step is not None):
            self._append(Kind.BATCH)
        self._tell_lag()
        self._tell_waiting()
        if drain.step is None:
            self._say_idle()
            if away is not None:
                raise away
        elif drain.step is DrainStep.FLUSH:
            self._drained(drain.ends)
        elif self.report.frozen_for != drain.uuid:
            self._tell(ends=self._read_to(), frozen_for=drain.uuid, drain=DrainPhase.SOURCES_STOPPED)
            self._context.changed()

    def _begins_anew(self) -> None:
        """Let the consumer go: the next one is opened where this one was, and nothing that it said counts meanwhile."""
        for _ in self._new_states():
            pass
        self._leaves()
        self._lags, self._warnings, self._looked_at = None, str, -math.inf

    def _wait(self) -> None:
        """Read nothing, since the readers are too far behind. What is outside is not known meanwhile."""
        self._waited_at = boot_time()
        consumer = self._consumer or self._open()
        if (pause := getattr(consumer, "pause", None)) is not None:
            pause()

    def _read(self) -> None:
        """Take what the outside has, until a batch is full or due."""
        consumer = self._consumer or self._open()
        until = boot_time() + self._commit_s
        while self._bytes < self._most_bytes and not self._closing.is_set():
            try:
                found = consumer.read()
            except StorageUnavailable:
                self._looked_at = -math.inf
                raise
            except Superseded as error:
                self._append(Kind.BATCH)  # a later owner of this task has its log, too
                raise ConfigError(
                    f"{error} It is no later owner of this task, but another job or program. If it reads through a "
                    f"consumer group, give each job its own: streams.{self._stream}.options.consumer_group."
                ) from error
            self._patience.let_in(surely=found is not None)
            self._barred = ""
            if found is None:
                self._looked_at = boot_time()
                return
            self._take(found)
            if boot_time() >= until:  # behind the first rows: without a wait between two appends it is so at once
                return

    def _take(self, found: SystemRows) -> None:
        partition = self._partitions[found.partition]
        if found.position <= partition.position:
            raise SamzaAzureError(
                f"The connector of {self._stream!r} has returned rows of partition {found.partition} up to "
                f"{found.position}, which does not lie behind {partition.position}. Its positions must grow."
            )
        partition.position, self._has_moved = found.position, True
        if found.dead is not None and found.dead.num_rows:
            self._put_aside(found.partition, found.dead)
        if not found.table.num_rows:
            return
        declared, time = self._stage.analysis.columns.arrow, self._stage.event_time
        rows = fitted(found.table, self._wanted, time).cast(declared)
        part = one_slice(found.partition, rows, time)
        partition.slices.append(part)
        partition.rows_at = boot_time()
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
        if time is not None:
            self._follow(partition, rows, found.event_time_us)

    def _put_aside(self, number: int, dead: pa.Table) -> None:
        """Take what is no row into the record, behind the partitions' destinations."""
        most, partition, rows = self._declared.dead_letters, self._partitions[number], fitted(dead, DEAD_LETTERS)
        self._dead += rows.num_rows
        if self._dead > most:
            last = rows.slice(rows.num_rows - 1).to_pylist()[0]
            raise too_many(self._stream, self._dead, most, last["place"], last["reason"])
        partition.slices.append(one_slice(self._stage.plan.partitions + number, rows))
        partition.rows_at = boot_time()
        self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes

    def _follow(self, partition: Partition, rows: pa.Table, event_time_us: int | None) -> None:
        """Advance event time to these rows, except those too far in the future."""
        reached = event_time_us
        if reached is None:
            limit_us = wall_ms() * 1000 + round(self._declared.max_future_s * 1_000_000)
            times = event_times(rows, str(self._stage.event_time))
            greatest = pc.max(times.filter(pc.less_equal(times, limit_us))).as_py()
            reached = None if greatest is None else greatest - self._stage.frontier_lag_us
        if reached is not None:
            partition.event_time_us = max(reached, partition.event_time_us or reached)

    def _frontier_us(self) -> int | None:
        """The least event time of the partitions that are not silent; None if one of them is not known."""
        if self._stage.event_time is None:
            return None
        known = [each.event_time_us for number, each in self._partitions.items() if not self._is_silent(number)]
        return None if None in known else min((each for each in known if each is not None), default=None)

    def _is_silent(self, number: int) -> bool:
        """Whether a look found no more rows that long after the last ones, and nothing has been wrong since. In an
        outage of the outside there may be rows that were not read; and nobody is silent because we do not read.
        """
        looked_at = self._looked_at
        if self._lags is not None:
            lag = self._lags(number)
            looked_at = -math.inf if lag is None or lag.rows or not lag.is_current else boot_time() - lag.age_s
        spoke_at = self._partitions[number].rows_at + self._declared.idle_timeout_s
        return looked_at > max(self._waited_at, spoke_at, boot_time() - LOOK_COUNTS_S)

    def _tell_lag(self) -> None:
        """Report what is left outside, now and then."""
        if self._lags is None or boot_time() < self._told_lag_at + LAG_S:
            return
        self._told_lag_at = boot_time()
        found = {source_partition(self._stream, number): self._lags(number) for number in self._partitions}
        known = {partition: lag for partition, lag in found.items() if lag is not None}
        if not known:
            return
        shown = furthest({partition: lag.size for partition, lag in known.items()})
        before = self.report.progress or Progress()
        progress = replace(
            before,
            behind={self._stream: sum(lag.size for lag in known.values())},
            behind_sources=shown,
            lag_rows={each: known[each].rows for each in shown},
            lag_s={each: round(s, 1) for each in shown if (s := known[each].seconds_at_most) is not None},
        )
        if progress != before:
            self._tell(progress=progress)

    def _tell_waiting(self) -> None:
        """Report whether the last turn has read nothing because the readers are too far behind, and what people should
        know of the outside.
        """
        waits, progress = self._drain.step is None and self._waits, self.report.progress or Progress()
        said = " ".join(filter(None, [self._patience.warning, self._barred, self._warnings()]))
        warning = self._context.clean(said)[:WARNING_LIMIT] if said else ""
        if warning and warning != progress.warning:
            log.warning("%s: %s", self.name, warning)
        if (waits, warning) != (progress.waits_for_readers, progress.warning):
            self._tell(progress=replace(progress, waits_for_readers=waits, warning=warning))

    def _append(self, kind: Kind) -> None:
        """Append what was read, and do what follows from it."""
        writer, began = self._writer, boot_time()
        assert writer is not None
        # What became of an append may be unknown: it is repeated unchanged, before anything else is read.
        self._pending = pending = self._pending or self._pending_record(writer, kind)
        self._readers.appended(writer.append(**pending), pending["slices"])
        self._pending = None
        for each in self._partitions.values():
            each.slices = []
        self._logged |= {each: self._states[each] for each in self._partitions if _file(each) in pending["files"]}
        is_drained = pending["kind"] is Kind.DRAINED
        self._context.hints.appended(self.prefix, writer.position, writer.frontier_us, is_drained)
        self._forgetting.appended(writer, {})
        self._note(pending, began, writer.frontier_us)
        if (recorded := getattr(self._consumer, "recorded", None)) is not None:
            for number, partition in self._partitions.items():
                recorded(number, partition.position)
            if is_drained:
                self._leaves()  # it may have to tell somebody, and the process may end soon
        if is_drained:
            self._end_drained()

    def _pending_record(self, writer: LogWriter, kind: Kind) -> dict[str, Any]:
        return {
            "batch": writer.last_batch + 1,
            "kind": kind,
            "frontier_us": self._frontier_us(),
            "slices": sorted(
                (part for number in sorted(self._partitions) for part in self._partitions[number].slices),
                key=lambda part: part.destination,
            ),
            "read": self._read_to(),
            "files": {_file(each): state for each, state in self._new_states() if state != self._logged[each]},
        }

    def _new_states(self) -> Iterator[tuple[int, bytes]]:
        """What the consumer needs behind the rows that it has returned."""
        state = getattr(self._consumer, "state", None)
        for each in self._partitions:
            if state is not None:
                self._states[each] = state(each)
            yield each, self._states[each]

    def _note(self, record: Mapping[str, Any], began: float, frontier_us: int | None) -> None:
        """Report a record that is in the log."""
        now, report = boot_time(), self.report
        before, since_s = report.progress or Progress(), now - self._appended_at if self._appended_at else 0.0
        pace = round(self._rows / since_s, 1) if since_s > 0 else 0.0
        done = replace(
            before,
            batches=before.batches + 1,
            rows=before.rows + self._rows,
            rows_out=before.rows_out + self._rows,
            size=before.size + self._bytes,
            seconds=round(before.seconds + now - began, 3),
            pace=pace,
            pace_out=pace,
            watermark_ms=None if frontier_us is None else frontier_us // 1000,
            appended_ms=wall_ms(),
        )
        self._bytes = self._rows = self._dead = 0
        self._appended_at, self._has_read, self._has_moved, self._is_idle = now, True, False, False
        self._tell(batch=record["batch"], read=record["read"], appended_at=report.appended_at or now, progress=done)

    def _say_idle(self) -> None:
        """Declare the task idle while all its partitions are silent, so that it does not hold back event time; and no
        longer once one of them is not, as in an outage.
        """
        is_idle = all(map(self._is_silent, self._partitions))
        if is_idle != self._is_idle:
            assert self._writer is not None
            self._writer.append_frontier(None, idle=is_idle, stood_at={} if is_idle else None)
            self._is_idle = is_idle

    def _drained(self, ends: Mapping[str, Position]) -> None:
        """End the log with DRAINED: nothing was read since the drain has set these ends."""
        read = self._read_to()
        for key, position in read.items():
            if position != ends.get(key, (0, 0)):
                raise SamzaAzureError(
                    f"The drain ends {key} at {ends.get(key, (0, 0))}, but its rows are in the log up to {position}. "
                    "Nothing is drained. If an older control.json was restored, restore the newest copy and start "
                    "again."
                )
        for each, state in self._new_states():
            key = source_partition(self._stream, each)
            if state:  # before the record, behind which the next run begins
                self._context.blobs.put(state_name(key, read[key]), state)
            if (start := self.start_message.positions.get(key, (0, 0))) != read[key]:
                self._context.blobs.delete(state_name(key, start))
        self._append(Kind.DRAINED)

    def _read_to(self) -> dict[str, Position]:
        return {source_partition(self._stream, number): each.position for number, each in self._partitions.items()}

    def _leaves(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except Exception as error:  # noqa: BLE001  # nothing depends on it
                log.info("%s: its consumer could not be closed: %s", self.name, error)

    def _rest(self) -> None:
        if self._is_told and not self._has_moved and not self._waits:
            super()._rest()
            return
        is_quiet = not self._has_moved and boot_time() > self._appended_at + QUIET_S
        self._closing.wait(LOOK_QUIET_S if is_quiet else LOOK_S)  # what comes meanwhile is read together
        self._awake.clear()

    def _pause_s(self) -> float:
        return TOLD_S


def _file(partition: int) -> str:
    """The file of a record that has what the consumer needs of a partition."""
    return f"outside/{partition}"

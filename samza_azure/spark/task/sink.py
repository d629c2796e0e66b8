"""A task without a query: it publishes the rows of a stream as segments of a table.

It has a log like any other task. There its writer's rank stands, how far it has read (so that old blobs of what it
reads can go), and in the end DRAINED. What its rows are published by is the table's own position (`tables.sink`), so
between a publish and the record that follows it a crash does no harm.
"""

import logging
import threading
import time
import traceback
from dataclasses import replace
from typing import Any

from samza_azure.errors import CorruptState, PermitExpired, StorageUnavailable, Superseded, TooOld
from samza_azure.explain import unasked_s
from samza_azure.logs.record import Kind, Writer
from samza_azure.logs.task_log import INTERMEDIATE
from samza_azure.machine import boot_time
from samza_azure.messages import (
    Drain,
    DrainPhase,
    DrainStep,
    Phase,
    Progress,
    StartTask,
    TaskError,
    TaskReport,
    stage_and_number,
)
from samza_azure.segments import Owner
from samza_azure.spark.pipeline.schema import arrow_schema
from samza_azure.spark.source.account import segments
from samza_azure.spark.task.task import PACE_S, Surroundings
from samza_azure.storage.log import LogReader, LogWriter, take_over
from samza_azure.tables.housekeeping import LOOK_MOST_S, Housekeeping
from samza_azure.tables.housekeeping import LOOK_S as HOUSE_S
from samza_azure.tables.sink import Sink

log = logging.getLogger(__name__)

#: How often it looks whether a log has grown; it asks the storage only if a hint says so, or at `asked_every_s`.
LOOK_S = 0.2
RETRY_S = 0.5


class SinkTask:
    """One task of a table under one writer."""

    tried_bytes = None  # it has no batch that could be too large

    def __init__(self, around: Surroundings, start: StartTask) -> None:
        self.start_message = start
        self.name = start.task
        table = around.pipeline.table_of(start.task)
        assert table is not None
        self._around, self._table = around, table
        (self._input,) = around.pipeline.inputs_of(start.task, start.run_id)
        self._prefix = f"runs/{start.run_id}/{start.task}"
        self._lock = threading.Lock()
        self._report = TaskReport(start.task, start.generation, start.attempt, Phase.STARTING)
        self._drain = Drain(None)
        self._closing = threading.Event()
        self._ended = threading.Event()  # its thread is over, or never began
        self._finishing = False
        self.is_finished = threading.Event()
        self._writer: LogWriter | None = None
        self._sink: Sink | None = None
        self._asked: dict[str, float] = {}
        self._published_at = boot_time()  # the last time, or when the task was given to us
        self._house: threading.Thread | None = None
        self._house_ends = threading.Event()
        self._oldest: float | None = None  # since when there are rows that are not published

    @property
    def report(self) -> TaskReport:
        """The state of the task, as the supervisor is told."""
        with self._lock:
            return self._report

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens under this writer."""
        return self.report.phase not in (Phase.STARTING, Phase.RUNNING)

    def start(self) -> None:
        """Take over and go on in a thread of its own; what goes wrong is in the report."""
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    def follow(self, drain: Drain) -> None:
        """What the drain asks for. Only its end concerns a task that reads no source."""
        with self._lock:
            self._drain = drain
            if drain.step is None:
                self._report = replace(self._report, drain=None)
            elif self._report.drain is None:
                self._report = replace(self._report, drain=DrainPhase.REQUESTED)

    def check(self, drain: Drain) -> None:
        """It looks after itself; only the drain is told from outside."""
        if not self.is_over and drain is not self._drain:
            self.follow(drain)

    def count(self) -> None:
        """What it has done is told with each publish. Without a publish the pace falls to 0."""
        now, lately_s = boot_time(), max(PACE_S, 2 * self._table.flush_s)
        with self._lock:
            done = self._report.progress
            if done is not None and done.pace and now > self._published_at + lately_s:
                self._report = replace(self._report, progress=replace(done, pace=0.0))

    def release(self, patience_s: float) -> None:
        """Let the running publish end, give the locks back, say so."""
        self._finishing = True
        self._closing.set()
        self._ended.wait(patience_s)
        self._close()
        with self._lock:
            if self._report.phase is not Phase.DRAINED:
                self._report = replace(self._report, phase=Phase.RELEASED)
        self._around.changed()
        self.is_finished.set()

    def begins_to_finish(self) -> bool:
        """Whether somebody must call `finish`: true once, for a task that ended by itself."""
        with self._lock:
            begins, self._finishing = not self._finishing, True
        return begins

    def finish(self) -> None:
        """Nothing is published after this."""
        self._closing.set()
        self._ended.wait()
        self._close()
        self.is_finished.set()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _live(self) -> None:
        try:
            if not self._closing.is_set() and self._begin():
                with self._lock:
                    if self._report.phase is Phase.STARTING:  # it may have been released meanwhile
                        self._report = replace(self._report, phase=Phase.RUNNING)
                self._around.changed()
                if stage_and_number(self.name)[1] == 0:
                    self._house = threading.Thread(target=self._keep_house, name=f"{self.name}-house", daemon=True)
                    self._house.start()
                while not self._closing.is_set() and not self.is_over:
                    self._turn()
                    self._closing.wait(LOOK_S)
        except Superseded as error:
            log.info("%s: %s", self.name, error)
            self._end(Phase.SUPERSEDED)
        except (PermitExpired, StorageUnavailable) as error:
            self._end(Phase.RESTART, error)
        except Exception as error:  # noqa: BLE001  # a task's trouble never takes the container down
            self._end(Phase.FAILED, error)
        finally:
            self._end_house()
            if self._sink is not None:
                self._give_back(self._sink)
            self._ended.set()
            self._around.changed()

    def _give_back(self, sink: Sink) -> None:
        """Our locks, so that nobody has to end them. Whoever takes over does that otherwise."""
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001
            log.info("%s: its locks were not given back: %s", self.name, error)

    def _begin(self) -> bool:
        """Take over log and table. False: all was published before."""
        start, around = self.start_message, self._around
        self._writer, restored = take_over(
            around.blobs,
            self._prefix,
            group_id=bytes.fromhex(start.group_id),
            task=self.name,
            writer=Writer(start.generation, start.attempt),
            first=start.first,
            may_append=around.may_append,
            meta={
                "stream": around.pipeline.plan.stage_of(self.name).output,
                "table": self._table.name,
                INTERMEDIATE: True,
            },
        )
        self._tell(batch=restored.last_batch)
        if restored.drained:
            self._end_drained()
            return False
        schema = arrow_schema(self._input.schema)
        readers = [
            LogReader(around.blobs, each.prefix, each.destinations, group_id=bytes.fromhex(start.group_id))
            for each in self._input.producers
        ]
        self._sink = Sink(
            segments(self._table.name),
            self._table,
            schema,
            run=start.run_id,
            task=self.name,
            writer=(start.generation, start.attempt),
            readers=readers,
            widened=lambda rows: rows.cast(schema),
        )
        began = boot_time()
        if not self._sink.claim(first=restored.last_batch < 0):
            self._append(Kind.DRAINED, began)
            self._end_drained()
            return False
        return True

    def _keep_house(self) -> None:
        """Compaction, retention and garbage, beside the publishes. A failure of it is none of the task's."""
        table, incarnation = self._table, f"{self.start_message.generation}.{self.start_message.attempt}"
        owner = Owner(f"{self.start_message.run_id}/{self.name}", incarnation)
        house = Housekeeping(segments(table.name), table, self.name, owner, self._may_keep_house)
        pause = HOUSE_S
        while not self._house_ends.wait(pause):
            try:
                did = house.turn(time.time_ns() // 1000)
                pause = HOUSE_S if did or house.is_written_to else min(2 * pause, LOOK_MOST_S)
            except Exception as error:  # noqa: BLE001
                log.info("%s: housekeeping: %s", self.name, error)
                pause = LOOK_MOST_S if isinstance(error, CorruptState) else HOUSE_S

    def _may_keep_house(self) -> bool:
        leaves = self._house_ends.is_set() or self._closing.is_set() or self._drain.step is not None
        return self._around.may_append() and not leaves

    def _end_house(self) -> None:
        """Wait for the group of segments that is being merged: its locks are given back then."""
        self._house_ends.set()
        if self._house is not None:
            self._house.join(self._around.config.task.shutdown_ms / 1000)

    def _turn(self) -> None:
        """Read what is new, publish what is due, and end with the drain."""
        sink, drain = self._sink, self._drain
        assert sink is not None
        if not self._around.may_append():
            return
        try:
            flushes = drain.step is DrainStep.FLUSH
            self._read(sink, ends=flushes)
            began = boot_time()
            if self._oldest is None and sink.has_rows:
                self._oldest = boot_time()
            if flushes and sink.is_at_end:
                self._tell(drain=DrainPhase.FLUSHING)
                self._end_house()
                began = boot_time()
                if sink.finish(self._expired_us()):
                    self._append(Kind.DRAINED, began)
                    self._end_drained()
            elif self._is_due(sink) and sink.flush(self._expired_us()):
                self._oldest = None
                self._append(Kind.BATCH, began)
            elif sink.pass_over():
                self._append(Kind.BATCH, began)  # after the position: what the record gives up is not read again
            sink.release_older(boot_time())
        except StorageUnavailable as error:
            log.info("%s: %s", self.name, error)
            self._closing.wait(RETRY_S)

    def _expired_us(self) -> int | None:
        """Retention drops the intervals that have ended by then."""
        keep_s = self._table.keep_s
        return None if keep_s is None else time.time_ns() // 1000 - round(keep_s * 1e6)

    def _is_due(self, sink: Sink) -> bool:
        return sink.is_full or (self._oldest is not None and boot_time() - self._oldest >= self._table.flush_s)

    def _read(self, sink: Sink, *, ends: bool) -> None:
        """Ask the logs of which a hint says that they have grown, and now and then the others."""
        producers = self._input.producers
        for prefix in (each.prefix for each in producers):
            heard = self._around.hints.end_of(prefix)
            is_news = heard is not None and heard > sink.read_to(prefix)
            if is_news or ends or boot_time() >= self._asked.get(prefix, 0.0) + unasked_s(len(producers)):
                sink.read(prefix, ends=ends)
                self._asked[prefix] = boot_time()

    def _append(self, kind: Kind, began: float) -> None:
        """The record of what was published, which began then."""
        writer, sink = self._writer, self._sink
        assert writer is not None and sink is not None
        ours = f"runs/{self.start_message.run_id}/"
        needs = {log: blob for log, (blob, _) in sink.place.at.items() if blob > 0 and log.startswith(ours)}
        batch = writer.last_batch + 1
        writer.append(batch, kind=kind, needs=needs)
        now, report = boot_time(), self.report
        since_s, self._published_at = now - self._published_at, now
        done = after_publish(report.progress or Progress(), sink.published_rows, now - began, since_s)
        late = sink.expired_rows
        self._tell(batch=batch, appended_at=report.appended_at or now, progress=done, late=late)

    def _end_drained(self) -> None:
        self._tell(drain=DrainPhase.COMMITTED)
        self._end(Phase.DRAINED)

    def _tell(self, **fields: Any) -> None:
        with self._lock:
            self._report = replace(self._report, **fields)

    def _end(self, phase: Phase, error: BaseException | None = None) -> None:
        """The first ending counts."""
        said = None
        if error is not None:
            clean = self._around.clean
            trace = "".join(traceback.format_exception(error))
            said = TaskError(clean(str(error) or type(error).__name__)[:4096], clean(trace)[-12288:])
        too_old_for = error.needs if isinstance(error, TooOld) else None
        with self._lock:
            if self._report.phase in (Phase.STARTING, Phase.RUNNING):
                self._report = replace(self._report, phase=phase, error=said, too_old_for=too_old_for)


def after_publish(before: Progress, rows: int, seconds: float, since_s: float) -> Progress:
    """What a task has done after one more publish: `rows` in all; this one took `seconds` and ended `since_s` after the
    one before it."""
    return replace(
        before,
        batches=before.batches + 1,
        rows=rows,
        rows_out=rows,
        seconds=round(before.seconds + seconds, 3),
        pace=round((rows - before.rows) / since_s, 1) if since_s > 0 else 0.0,
    )

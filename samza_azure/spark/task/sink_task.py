"""A task without a query: it follows the logs of a stream and writes the rows to a table or a folder.

It has a log like any other task. The log holds its writer's rank, how far it has read (so that old blobs of its inputs
can be deleted), and in the end DRAINED. `table_task` and `delivery_task` write the rows, each row once.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from samza_azure.errors import PermitExpired, StorageUnavailable, Superseded, TooOld
from samza_azure.logs.names import run_folder, task_log
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Position
from samza_azure.logs.record import INTERMEDIATE, Buffer, Kind, Writer
from samza_azure.machine import boot_time, wall_ms
from samza_azure.messages import (
    Drain,
    DrainPhase,
    DrainStep,
    Phase,
    Progress,
    StartTask,
    TaskReport,
)
from samza_azure.seldom import Seldom
from samza_azure.spark.task.backlog import unread
from samza_azure.spark.task.context import ContainerContext
from samza_azure.spark.task.failure import reported
from samza_azure.spark.task.figures import PACE_S
from samza_azure.storage.log import LogReader, LogWriter, Restored, take_over
from samza_azure.streams.offset import ProducerPosition, least_us
from samza_azure.streams.pace import unasked_s

log = logging.getLogger(__name__)

#: How often it checks whether a log has grown. It reads a log only after a hint, or every `unasked_s`.
LOOK_S = 0.2
RETRY_S = 0.5


class At(Protocol):
    """The position of a sink: rows up to these positions have been written."""

    @property
    def at(self) -> Mapping[str, Position]:
        """The positions by log."""


class Taker(Protocol):
    """Reads rows and writes them out: `tables.sink.Sink` or `tables.delivery.Delivery`."""

    published_rows: int
    left_out_rows: int

    @property
    def position(self) -> At: ...
    @property
    def positions(self) -> Mapping[str, ProducerPosition]: ...
    @property
    def read_bytes(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def has_rows(self) -> bool: ...
    @property
    def is_at_end(self) -> bool: ...
    def read_to(self, prefix: str) -> Position: ...
    def read(self, prefix: str, *, ends: bool = False) -> None: ...
    def pass_over(self) -> bool: ...


class SinkTask(ABC):
    """One task of a table or a folder under one writer."""

    tried_bytes = None  # no batch of it can be too large

    def __init__(self, context: ContainerContext, start: StartTask) -> None:
        self.start_message = start
        self.name = start.task
        to = context.pipeline.sink_of(start.task)
        assert to is not None
        self._context, self._flush_s = context, to.flush_s
        (self._input,) = context.pipeline.inputs_of(start.task, start.run_id)
        self._prefix = task_log(start.run_id, start.task)
        self._lock = threading.Lock()
        self._seldom = Seldom()
        self._report = TaskReport(start.task, start.generation, start.attempt, Phase.STARTING)
        self._drain = Drain(None)
        self._closing = threading.Event()
        self._ended = threading.Event()  # set when its thread has ended
        self._finishing = False
        self.is_finished = threading.Event()
        self._writer: LogWriter | None = None
        self._sink: Taker | None = None
        self._asked: dict[str, float] = {}
        self._published_at = boot_time()  # the last publish, or when this writer began
        self._oldest: float | None = None  # since when there are unpublished rows
        #: By log: the position up to which all rows are written, and the bytes read up to there.
        self._done: tuple[Mapping[str, ProducerPosition], int] = {}, 0

    @abstractmethod
    def _claim(self, restored: Restored, readers: Sequence[LogReader]) -> bool:
        """Begin at the predecessor's position. Return False if all rows are written and no more will come."""

    @abstractmethod
    def _flush(self) -> bool:
        """Write what was read. Return False if this must be called again."""

    def _finish(self) -> bool:
        """Like `_flush`, for the last time."""
        return self._flush()

    def _begun(self) -> None:  # noqa: B027  # optional
        """Called when the task has begun to run."""

    def _rests(self) -> None:  # noqa: B027
        """Called after each look at the logs."""

    def _ends(self) -> None:  # noqa: B027
        """Called when all logs are read to their end; `_finish` follows."""

    def _leaves(self) -> None:  # noqa: B027
        """Called when nothing more will be written under this writer."""

    @property
    def _meta(self) -> Mapping[str, Any]:
        """The description of the task in its log."""
        return {"stream": self._context.pipeline.plan.stage_of(self.name).output, INTERMEDIATE: True}

    @property
    def _files(self) -> Mapping[str, Buffer]:
        """The files of a record that the next owner needs."""
        return {}

    @property
    def report(self) -> TaskReport:
        """The state of the task, as it is reported to the supervisor."""
        with self._lock:
            return self._report

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens under this writer."""
        return self.report.phase not in (Phase.STARTING, Phase.RUNNING)

    def start(self) -> None:
        """Take over and run in a thread of its own. An error ends up in the report."""
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    def follow(self, drain: Drain) -> None:
        """Note the step of the drain. For a task that reads no source, only FLUSH matters."""
        with self._lock:
            self._drain = drain
            if drain.step is None:
                self._report = replace(self._report, drain=None)
            elif self._report.drain is None:
                self._report = replace(self._report, drain=DrainPhase.REQUESTED)

    def check(self, drain: Drain) -> None:
        """Follow the drain. Everything else happens in the task's own thread."""
        if not self.is_over and drain is not self._drain:
            self.follow(drain)

    def count(self) -> None:
        """Report how much is left to write. Set the pace to 0 when there are no publishes."""
        now, lately_s = boot_time(), max(PACE_S, 2 * self._flush_s)
        (done, size), each = self._done, self._input
        if not done or self.report.phase not in (Phase.RUNNING, Phase.DRAINED):
            return
        ends = [self._context.hints.end_of(producer.prefix) for producer in each.producers]
        behind = unread(each, [done[producer.prefix].position for producer in each.producers], ends)
        least = least_us(list(done.values()))
        watermark_ms = None if least is None else least // 1000
        with self._lock:
            before = self._report.progress or Progress()
            pace = before.pace if now <= self._published_at + lately_s else 0.0
            progress = replace(before, size=size, pace=pace, watermark_ms=watermark_ms, behind={each.stream: behind})
            self._report = replace(self._report, progress=progress)

    def _note_done(self, sink: Taker) -> None:
        """Note up to where all rows are written. A range that was read counts as soon as none of its rows is held."""
        if not sink.has_rows:
            self._done = sink.positions, sink.read_bytes

    def release(self, patience_s: float) -> None:
        """Let the running publish end, release the locks, and report that."""
        self._finishing = True
        self._closing.set()
        self._ended.wait(patience_s)
        self._close()
        with self._lock:
            if self._report.phase is not Phase.DRAINED:
                self._report = replace(self._report, phase=Phase.RELEASED)
        self._context.changed()
        self.is_finished.set()

    def begins_to_finish(self) -> bool:
        """Whether the caller must call `finish`: true once, for a task that ended by itself."""
        with self._lock:
            begins, self._finishing = not self._finishing, True
        return begins

    def finish(self) -> None:
        """Publish nothing after this."""
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
                self._context.changed()
                self._begun()
                while not self._closing.is_set() and not self.is_over:
                    self._turn()
                    self._closing.wait(LOOK_S)
        except Superseded as error:
            log.info("%s: %s", self.name, error)
            self._end(Phase.SUPERSEDED)
        except (PermitExpired, StorageUnavailable) as error:
            self._end(Phase.RESTART, error)
        except Exception as error:  # noqa: BLE001  # an error of a task never ends the container
            self._end(Phase.FAILED, error)
        finally:
            self._leaves()
            self._sink = None  # the container keeps an ended task for its report, and does not need its rows
            self._ended.set()
            self._context.changed()

    def _begin(self) -> bool:
        """Take over log and position. Return False if all rows were written before."""
        start, context = self.start_message, self._context
        self._writer, restored = take_over(
            context.blobs,
            self._prefix,
            group_id=bytes.fromhex(start.group_id),
            task=self.name,
            writer=Writer(start.generation, start.attempt),
            first=start.first,
            may_append=context.may_append,
            meta=self._meta,
        )
        self._tell(batch=restored.last_batch)
        if restored.drained:
            self._end_drained()
            return False
        began = boot_time()
        readers = [
            LogReader(context.blobs, each.prefix, each.destinations, group_id=bytes.fromhex(start.group_id))
            for each in self._input.producers
        ]
        if not self._claim(restored, readers):
            self._append(Kind.DRAINED, began)
            self._end_drained()
            return False
        assert self._sink is not None
        at = self._sink.position.at
        self._done = {reader.prefix: ProducerPosition(at.get(reader.prefix, (0, 0))) for reader in readers}, 0
        return True

    def _turn(self) -> None:
        """Read what is new, publish what is due, and end with the drain."""
        sink, drain = self._sink, self._drain
        assert sink is not None
        if not self._context.may_append():
            return
        try:
            flushes = drain.step is DrainStep.FLUSH
            self._read(sink, ends=flushes)
            began = boot_time()
            if self._oldest is None and sink.has_rows:
                self._oldest = boot_time()
            if flushes and sink.is_at_end:
                self._tell(drain=DrainPhase.FLUSHING)
                self._ends()
                began = boot_time()
                if self._finish():
                    self._append(Kind.DRAINED, began)
                    self._end_drained()
            elif self._is_due(sink) and self._flush():
                self._oldest = None
                self._append(Kind.BATCH, began)
            elif sink.pass_over():
                self._append(Kind.BATCH, began)  # after the position: what the record releases is not read again
            self._note_done(sink)
            self._rests()
        except StorageUnavailable as error:
            if self._seldom.is_due("storage"):
                log.info("%s: %s", self.name, error)
            self._closing.wait(rest_s(RETRY_S, error))

    def _is_due(self, sink: Taker) -> bool:
        return sink.is_full or (self._oldest is not None and boot_time() - self._oldest >= self._flush_s)

    def _read(self, sink: Taker, *, ends: bool) -> None:
        """Read the logs that have grown according to a hint, and the others at longer intervals."""
        producers = self._input.producers
        for prefix in (each.prefix for each in producers):
            heard = self._context.hints.end_of(prefix)
            is_news = heard is not None and heard > sink.read_to(prefix)
            if is_news or ends or boot_time() >= self._asked.get(prefix, 0.0) + unasked_s(len(producers)):
                sink.read(prefix, ends=ends)
                self._asked[prefix] = boot_time()

    def _append(self, kind: Kind, began: float) -> None:
        """Append the record of a publish that began at `began`."""
        sink = self._sink
        assert sink is not None
        batch = self._record(kind)
        now, report = boot_time(), self.report
        since_s, self._published_at = now - self._published_at, now
        done = after_publish(report.progress or Progress(), sink.published_rows, now - began, since_s)
        done = replace(done, appended_ms=wall_ms())
        late = sink.left_out_rows
        self._tell(batch=batch, appended_at=report.appended_at or now, progress=done, late=late)

    def _record(self, kind: Kind = Kind.BATCH) -> int:
        """Append the position of the sink. Return the number of the record."""
        writer, sink = self._writer, self._sink
        assert writer is not None and sink is not None
        ours = run_folder(self.start_message.run_id)
        needs = {log: blob for log, (blob, _) in sink.position.at.items() if blob > 0 and log.startswith(ours)}
        batch = writer.last_batch + 1
        writer.append(batch, kind=kind, needs=needs, files=self._files)
        return batch

    def _end_drained(self) -> None:
        self._tell(drain=DrainPhase.COMMITTED)
        self._end(Phase.DRAINED)

    def _tell(self, **fields: Any) -> None:
        with self._lock:
            self._report = replace(self._report, **fields)

    def _end(self, phase: Phase, error: BaseException | None = None) -> None:
        """End in this phase, unless the task has ended already."""
        failure = reported(error, self._context.clean) if error is not None else None
        too_old_for = error.needs if isinstance(error, TooOld) else None
        with self._lock:
            if self._report.phase in (Phase.STARTING, Phase.RUNNING):
                self._report = replace(self._report, phase=phase, error=failure, too_old_for=too_old_for)


def after_publish(before: Progress, rows: int, seconds: float, since_s: float) -> Progress:
    """The progress of a task after one more publish: `rows` in all; this one took `seconds` and ended `since_s`
    after the one before it."""
    return replace(
        before,
        batches=before.batches + 1,
        rows=rows,
        rows_out=rows,
        seconds=round(before.seconds + seconds, 3),
        pace=round((rows - before.rows) / since_s, 1) if since_s > 0 else 0.0,
    )

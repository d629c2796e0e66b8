"""A task without a query: it follows the logs of a stream and writes the rows to a table, a folder or a system outside.

It has a log like any other task. The log holds its writer's rank, how far it has read (so that old blobs of its inputs
can be deleted), and in the end DRAINED. `table_task` and `delivery_task` write each row once, `outlet_task` at least
once.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from samza_azure.errors import CorruptState
from samza_azure.logs.names import run_folder
from samza_azure.logs.position import Position
from samza_azure.logs.record import INTERMEDIATE, Buffer, Kind, Slice
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.messages import DrainPhase, DrainStep, Phase, Progress, StartTask
from samza_azure.stream_io.log import LogReader, Restored
from samza_azure.streams.offset import ProducerPosition, least_us
from samza_azure.streams.pace import unasked_s
from samza_azure.tasks.backlog import furthest, of_sources, unread
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.figures import PACE_S
from samza_azure.tasks.life import TurnTask


class At(Protocol):
    """The position of a sink: rows up to these positions have been written."""

    @property
    def at(self) -> Mapping[str, Position]:
        """The positions by log."""


class SinkWriter(Protocol):
    """Reads rows and writes them out: `tables.sink.Sink`, `tables.delivery.Delivery` or `systems.outlet.Outlet`."""

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


class SinkTask(TurnTask):
    """One task of a table, a folder or a system outside under one writer. It reads a log only after a hint, or every
    `unasked_s`.
    """

    _limits: LogLimits | None = None  # of its log

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        """No batch of it can be too large, so `tried_bytes` is never known."""
        super().__init__(context, start)
        self._flush_s = context.pipeline.plan.stage_of(start.task).flush_s
        (self._input,) = context.pipeline.inputs_of(start.task, start.run_id)
        self._sink: SinkWriter | None = None
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

    def _rests(self) -> None:  # optional
        """Called after each look at the logs."""

    def _ends(self) -> None:
        """Called when all logs are read to their end; `_finish` follows."""

    def _leaves(self) -> None:
        self._sink = None  # the container keeps an ended task for its report, and does not need its rows

    @property
    def _meta(self) -> Mapping[str, Any]:
        """The description of the task in its log."""
        return {"stream": self._context.pipeline.plan.stage_of(self.name).output, INTERMEDIATE: True}

    @property
    def _files(self) -> Mapping[str, Buffer]:
        """The files of a record that the next owner needs."""
        return {}

    @property
    def _slices(self) -> Sequence[Slice]:
        """The rows of a record."""
        return ()

    def count(self) -> None:
        """Report how much is left to write. Set the pace to 0 when there are no publishes."""
        now, lately_s = boot_time(), max(PACE_S, 2 * self._flush_s)
        (done, size), each = self._done, self._input
        if not done or self.report.phase not in (Phase.RUNNING, Phase.DRAINED):
            return
        ends = [self._context.hints.end_of(producer.prefix) for producer in each.producers]
        positions = [done[producer.prefix].position for producer in each.producers]
        behind, of_partitions = unread(each, positions, ends), furthest(of_sources(each, positions, ends))
        least = least_us(list(done.values()))
        watermark_ms = None if least is None else least // 1000
        with self._lock:
            before = self._report.progress or Progress()
            pace = before.pace if now <= self._published_at + lately_s else 0.0
            progress = replace(
                before,
                size=size,
                pace=pace,
                watermark_ms=watermark_ms,
                behind={each.stream: behind},
                behind_sources=of_partitions,
            )
            self._report = replace(self._report, progress=progress)

    def _note_done(self, sink: SinkWriter) -> None:
        """Note up to where all rows are written. A range that was read counts as soon as none of its rows is held."""
        if not sink.has_rows:
            self._done = sink.positions, sink.read_bytes

    def _begin(self) -> bool:
        """Take over log and position. Return False if all rows were written before."""
        _, restored = self._take_over(self._meta, limits=self._limits)
        if restored.drained:
            self._end_drained()
            return False
        began, group_id = boot_time(), bytes.fromhex(self.start_message.group_id)
        readers = [
            LogReader(self._context.blobs, each.prefix, each.destinations, group_id=group_id)
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
        """Read what is new, publish what is due, and end with the drain. Of that, only FLUSH matters to it."""
        sink, flushes = self._sink, self._drain.step is DrainStep.FLUSH
        assert sink is not None
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

    def _is_due(self, sink: SinkWriter) -> bool:
        return sink.is_full or (self._oldest is not None and boot_time() - self._oldest >= self._flush_s)

    def _read(self, sink: SinkWriter, *, ends: bool) -> None:
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
        stands = sink.position.at if self._input.is_outside else {}
        writer.append(batch, kind=kind, needs=needs, stands=stands, files=self._files, slices=self._slices)
        return batch


def claim_at(claim: Callable[[bytes | None], object], restored: Restored, name: str) -> None:
    """Begin at the position that a file of the log's last record holds; `claim` raises `ValueError` if it is none."""
    try:
        claim(restored.files.get(name))
    except ValueError as error:
        blob, position = restored.places[name]
        raise CorruptState(
            f"The record's file {name!r} was not written by samza-azure: {error}", blob=blob, position=position
        ) from error


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

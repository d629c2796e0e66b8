"""A task's batches as records of its log: what was read up to where, the rows, the state, all in one append.

Promised: a batch's rows, its state and its place in the inputs become durable together, or not at all. While the
storage does not answer, a batch waits; only the rules of the log end the wait (see `LogWriter`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from samza_azure.errors import PermitExpired, StorageUnavailable
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Ends, Position
from samza_azure.logs.record import Buffer, Kind, Slice
from samza_azure.machine.clock import boot_time
from samza_azure.pipeline.analysed import AnalysedStage
from samza_azure.stream_io.arrow import DESTINATION, one_slice, slices, tables
from samza_azure.stream_io.log import LogWriter
from samza_azure.streams.offset import Offset
from samza_azure.streams.watermark import frontier_us, next_watermark_us
from samza_azure.tasks.checkpoint import NewFiles, Planned, as_file

#: Seconds between two tries of an append, while the storage does not answer or the permit has expired.
RETRY_S = 0.2
#: The most bytes of a batch that are laid out at once, and the most laid-out bytes that are held before a write.
LAID_OUT_BYTES = 32 << 20
HELD_BYTES = 32 << 20
#: How long a batch takes is known from so many.
BATCHES = 5

T = TypeVar("T")


def _slices(table: pa.Table, stage: AnalysedStage, number: int) -> list[Slice]:
    """The rows by destination, in the layout of the stream's schema. Without keys a task writes its own partition."""
    schema = stage.analysis.columns.arrow
    if DESTINATION in table.column_names:
        rows = _cast(table, schema.append(table.schema.field(DESTINATION)))
        return slices(rows, destinations=DESTINATION, event_time=stage.event_time)
    if table.num_rows == 0:
        return []
    return [one_slice(0 if stage.partitions else number, _cast(table, schema), stage.event_time)]


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in this schema. Arrow refuses even to cast a null variant to its own type, whose parts have no nulls."""
    if table.column_names != schema.names:
        raise ValueError(f"The rows have the columns {table.column_names}, not {schema.names}.")
    columns = zip(table.columns, schema.types, strict=True)
    return pa.table([column if column.type == kind else column.cast(kind) for column, kind in columns], schema)


def watermark_us(plan: Planned, stage: AnalysedStage) -> int | None:
    """The watermark after a batch of the stage."""
    delays = ((stage.plan.inputs[each.reads], each.delay_ms + each.below_ms) for each in stage.analysis.watermarks)
    return next_watermark_us(plan.offsets, plan.step, delays)


def _frontier_us(plan: Planned, stage: AnalysedStage) -> int | None:
    """The frontier that the record of a batch carries."""
    terms = (
        (None if each.reads is None else stage.plan.inputs[each.reads], each.shift_us)
        for each in stage.analysis.frontier
    )
    return frontier_us(plan.offsets, plan.watermark_ms, terms, stage.frontier_lag_us)


class RunningBatch:
    """The lock that a running batch holds, and when the batch will probably end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: float | None = None
        self._took: tuple[float, ...] = ()  # replaced as a whole, since others read it

    def __enter__(self) -> None:
        self._lock.acquire()
        self._began = boot_time()

    def __exit__(self, *error: object) -> None:
        began, self._began = self._began, None
        if began is not None:
            self._took = (*self._took, boot_time() - began)[-BATCHES:]
        self._lock.release()

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock for something else than a batch."""
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def ends_at(self) -> float | None:
        """When the running batch will have taken as long as the median of the last ones. None if none runs, or if that
        is not known.
        """
        began, took = self._began, sorted(self._took)
        return None if began is None or not took else began + took[len(took) // 2]


class RecordWriter:
    """The records of one task."""

    def __init__(
        self,
        stage: AnalysedStage,
        number: int,
        log: LogWriter,
        files: NewFiles,
        needs: Callable[[], Mapping[str, int]],
        read_to: Callable[[Iterable[Offset]], Ends],
        stands: Callable[[Iterable[Offset]], Ends],
        batch_bytes: Callable[[], int],
        appended: Callable[[int, Planned, int, int | None], None],
        last_rows: Callable[[], Iterable[pa.RecordBatch]] = tuple,
    ) -> None:
        """`appended` is called after each record, `last_rows` at the end of a drain without a batch."""
        self._stage = stage
        self._number = number
        self._log = log
        self._files = files
        self._needs = needs
        self._read_to = read_to
        self._stands = stands
        self._batch_bytes = batch_bytes
        self._appended = appended
        self._last_rows = last_rows
        self._running = RunningBatch()
        self.closed = threading.Event()
        self.error: BaseException | None = None
        self.idle = False  # whether the last record declares it

    def wait(self, seconds: float) -> bool:
        """Wait for the running batch to end. Return whether it has."""
        if not self._running.acquire(timeout=seconds):
            return False
        self._running.release()
        return True

    def ends_at(self) -> float | None:
        """When the running batch will probably end; None if none runs, or if that is not known."""
        return self._running.ends_at()

    def declare_idle(self, stood_at: Mapping[str, Position]) -> None:
        """Declare that the inputs have been at their end for long, and where. The next record takes it back."""
        if self._running.acquire(blocking=False):
            try:
                self._log.append_frontier(None, idle=True, stood_at=stood_at)
                self.idle = True
            finally:
                self._running.release()

    def drain(self, plan: Callable[[], Planned | None], seconds: float) -> bool:
        """Append DRAINED without a batch, for a task without state whose output is complete.

        `plan` returns the task's position, and is called while no batch runs; None if it is not complete after all. A
        later batch of a query has no rows, and appends nothing.
        """
        if not self._running.acquire(timeout=seconds):
            return False
        try:
            stands = plan()
            if stands is None or self.error is not None or self.closed.is_set():
                return False
            self.append(stands, self._last_rows(), {})
        finally:
            self._running.release()
        return True

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run a batch that is no query's. The body counts as the running batch, and calls `append`."""
        with self._running:
            try:
                yield
            except BaseException as error:
                self.error = self.error or error
                raise

    def append(
        self,
        plan: Planned,
        rows: Iterable[pa.RecordBatch],
        files: Mapping[str, Buffer],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Append the record of such a batch."""
        batch = self._log.last_batch + 1
        self._append(batch, plan, self._parts(batch, rows), {**files, f"offsets/{batch}": as_file(plan)}, meta)

    def _append(
        self,
        batch: int,
        plan: Planned,
        parts: list[Slice],
        files: Mapping[str, Buffer],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Append the record of a batch, and do what follows from it."""
        batch_bytes = self._batch_bytes()
        self._insist(
            lambda: self._log.append(
                batch,
                kind=Kind.DRAINED if plan.step >= 2 else Kind.BATCH,
                frontier_us=_frontier_us(plan, self._stage),
                watermark_us=watermark_us(plan, self._stage),
                slices=parts,
                files=files,
                meta=meta,
                needs=self._needs(),
                read=self._read_to(plan.offsets),
                stands=self._stands(plan.offsets),
                batch_bytes=batch_bytes,
            )
        )
        self._files.recorded(files)
        self.idle = False
        self._appended(batch, plan, sum(part.rows for part in parts), watermark_us(plan, self._stage))

    def _parts(self, batch: int, rows: Iterable[pa.RecordBatch]) -> list[Slice]:
        """The slices of the record, by destination. With many rows, all but the last are written before it."""
        written: list[Slice] = []
        held: list[Slice] = []
        for table in tables(rows, LAID_OUT_BYTES):
            held += _slices(table, self._stage, self._number)
            if sum(len(part.data) for part in held if isinstance(part.data, bytes)) > HELD_BYTES:
                written += self._insist(partial(self._log.set_aside, batch, held))
                held = []
        return sorted((*written, *held), key=lambda part: part.destination)

    def _insist(self, write: Callable[[], T]) -> T:
        """Repeat a write while the storage does not answer or the permit has expired, until the task is closed."""
        while True:
            try:
                return write()
            except (PermitExpired, StorageUnavailable) as error:
                if self.closed.wait(rest_s(RETRY_S, error)):
                    raise

"""What happens in foreachBatch: the batch becomes one record, the record is appended, the watermark is set.

Promised: a batch's rows, its state and its place in the inputs become durable together, or not at all. While the
storage does not answer, a batch waits; only the rules of the log end the wait (see `LogWriter`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from samza_azure.errors import PermitExpired, SamzaAzureError, StorageUnavailable
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Ends, Position
from samza_azure.logs.record import Buffer, Kind, Slice
from samza_azure.spark.jvm.output import Outlet
from samza_azure.spark.jvm.watermark import INFINITY_MS, OwnedWatermark
from samza_azure.spark.pipeline.destination import COLUMN
from samza_azure.spark.pipeline.pipeline import AnalysedStage
from samza_azure.spark.pipeline.schema import arrow_schema
from samza_azure.spark.task.checkpoint import NewFiles, Planned, as_file, planned
from samza_azure.storage.arrow import one_slice, slices, tables
from samza_azure.storage.log import LogWriter
from samza_azure.streams.offset import Offset
from samza_azure.streams.watermark import frontier_us, next_watermark_us

#: Seconds between two tries of an append, while the storage does not answer or the permit has expired.
RETRY_S = 0.2
#: The most bytes of a batch that are laid out at once, and the most laid-out bytes that are held before a write.
LAID_OUT_BYTES = 32 << 20
HELD_BYTES = 32 << 20

#: The name of StorageUnavailable in a Python worker's traceback.
IN_A_TRACEBACK = f"{StorageUnavailable.__module__}.{StorageUnavailable.__qualname__}: "

T = TypeVar("T")


def _slices(table: pa.Table, stage: AnalysedStage, number: int) -> list[Slice]:
    """The rows by destination, in the layout of the stream's schema. Without keys a task writes its own partition."""
    schema = arrow_schema(stage.analysis.schema)
    if COLUMN in table.column_names:
        rows = _cast(table, schema.append(table.schema.field(COLUMN)))
        return slices(rows, destinations=COLUMN, event_time=stage.event_time)
    if table.num_rows == 0:
        return []
    return [one_slice(0 if stage.partitions else number, _cast(table, schema), stage.event_time)]


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in this schema. Arrow refuses even to cast a null variant to its own type, whose parts have no nulls."""
    if table.column_names != schema.names:
        raise ValueError(f"The rows have the columns {table.column_names}, not {schema.names}.")
    columns = zip(table.columns, schema.types, strict=True)
    return pa.table([column if column.type == kind else column.cast(kind) for column, kind in columns], schema)


def _watermark_us(plan: Planned, stage: AnalysedStage) -> int | None:
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


class BatchWriter:
    """The foreachBatch of one task."""

    def __init__(
        self,
        stage: AnalysedStage,
        number: int,
        log: LogWriter,
        checkpoint: Path,
        files: NewFiles,
        own_watermark: Callable[[], OwnedWatermark],
        count_late: Callable[[int], None],
        needs: Callable[[], Mapping[str, int]],
        read_to: Callable[[Iterable[Offset]], Ends],
        batch_bytes: Callable[[], int],
        appended: Callable[[int, Planned, int, int | None], None],
        last_rows: Callable[[], Iterable[pa.RecordBatch]] = tuple,
    ) -> None:
        self._stage = stage
        self._number = number
        self._log = log
        self._checkpoint = checkpoint
        self._files = files
        self._own_watermark = own_watermark
        self._count_late = count_late
        self._watermark: OwnedWatermark | None = None
        self._needs = needs
        self._read_to = read_to
        self._batch_bytes = batch_bytes
        self._appended = appended
        self._last_rows = last_rows
        self._outlet = Outlet()
        self._running = threading.Lock()
        self.closed = threading.Event()
        self.error: BaseException | None = None
        self.idle = False  # whether the last record declares it

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark, once per batch."""
        with self._running:
            try:
                self._write(frame, batch)
            except BaseException as error:
                self.error = self.error or error
                raise

    def wait(self, seconds: float) -> bool:
        """Wait for the running batch to end. Return whether it has."""
        if not self._running.acquire(timeout=seconds):
            return False
        self._running.release()
        return True

    def declare_idle(self, stood_at: Mapping[str, Position]) -> None:
        """Declare that the inputs have been at their end for long, and where. The next record takes it back."""
        if self._running.acquire(blocking=False):
            try:
                self._log.append_frontier(None, idle=True, stood_at=stood_at)
                self.idle = True
            finally:
                self._running.release()

    def drain(self, plan: Callable[[], Planned | None], seconds: float) -> bool:
        """Append DRAINED without a Spark batch, for a task without state whose output is complete.

        `plan` returns the task's position, and is called while no batch runs; None if it is not complete after all. A
        later batch of Spark's has no rows, and appends nothing.
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
        """Run a batch without Spark. The body counts as the running batch, and calls `append`."""
        with self._running:
            try:
                yield
            except BaseException as error:
                self.error = self.error or error
                raise

    def append(self, plan: Planned, rows: Iterable[pa.RecordBatch], files: Mapping[str, Buffer]) -> None:
        """Append the record of such a batch."""
        batch = self._log.last_batch + 1
        self._append(batch, plan, self._parts(batch, rows), {**files, f"offsets/{batch}": as_file(plan)})

    def fire(self) -> bool:
        """Let all further batches run with the watermark at infinity. Return False while a batch runs.

        For a task that has read all its input. A batch that is planned after this also reads the watermark after it:
        Spark asks the sources first.
        """
        if not self._running.acquire(blocking=False):
            return False
        try:
            self._own().raise_to(INFINITY_MS)
        finally:
            self._running.release()
        return True

    def _write(self, frame: DataFrame, batch: int) -> None:
        with self._outlet.run(frame) as rows:  # the plan has run and its state files are on disk
            if batch <= self._log.last_batch:
                return  # a replay: its record is already in the log
            parts = self._parts(batch, rows)
        if self._log.drained and not parts:
            return  # DRAINED was appended without a batch, and a source says once more where it stands
        self._count_late(batch)  # before the append, after which others may delete what the batch has read
        plan = planned(self._checkpoint, batch)
        if plan.step >= 2 and plan.watermark_ms < INFINITY_MS:
            raise SamzaAzureError(
                f"Spark has planned the last batch of a drain with the watermark {plan.watermark_ms}."
            )
        files = self._files.of_batch(batch, is_stateful=bool(self._stage.plan.stateful))
        watermark = _watermark_us(plan, self._stage)
        self._own().raise_to(0 if watermark is None else watermark // 1000)
        self._append(batch, plan, parts, files)

    def _append(self, batch: int, plan: Planned, parts: list[Slice], files: Mapping[str, Buffer]) -> None:
        """Append the record of a batch, and do what follows from it."""
        batch_bytes = self._batch_bytes()
        self._insist(
            lambda: self._log.append(
                batch,
                kind=Kind.DRAINED if plan.step >= 2 else Kind.BATCH,
                frontier_us=_frontier_us(plan, self._stage),
                watermark_us=_watermark_us(plan, self._stage),
                slices=parts,
                files=files,
                needs=self._needs(),
                read=self._read_to(plan.offsets),
                batch_bytes=batch_bytes,
            )
        )
        self._files.recorded(files)
        self.idle = False
        self._appended(batch, plan, sum(part.rows for part in parts), _watermark_us(plan, self._stage))

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

    def _own(self) -> OwnedWatermark:
        if self._watermark is None:
            self._watermark = self._own_watermark()
        return self._watermark


def is_waiting_for_storage(error: BaseException | None) -> bool:
    """Whether a query ended because the storage did not answer or the permit expired: it is restarted, not failed.

    Spark reports an error of a source in a Python worker as text with the worker's traceback. The traceback has the
    full name of our class; the bare name could also be in a user's error.
    """
    return isinstance(error, PermitExpired | StorageUnavailable) or (
        not isinstance(error, SamzaAzureError) and error is not None and IN_A_TRACEBACK in str(error)
    )

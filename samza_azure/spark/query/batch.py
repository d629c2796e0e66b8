"""What happens at the end of a batch: it becomes one record, the record is appended, the watermark is set."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from samza_azure.errors import SamzaAzureError
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.watermark import END_OF_CLOCK_MS, OwnedWatermark
from samza_azure.streams.offset import INFINITY_MS
from samza_azure.tasks.checkpoint import planned
from samza_azure.tasks.figures import Spent
from samza_azure.tasks.records import RecordWriter, watermark_us


class BatchWriter(RecordWriter):
    """What Spark calls for each batch of one task."""

    def __init__(
        self,
        *arguments: Any,
        checkpoint: Path,
        own_watermark: Callable[[], OwnedWatermark],
        count_late: Callable[[int], None],
        spent: Callable[[int, Spent], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(*arguments)
        self._checkpoint = checkpoint
        self._own_watermark = own_watermark
        self._count_late = count_late
        self._spent, self._ended = spent, ended
        self._watermark: OwnedWatermark | None = None
        self._outlet = BatchOutput()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark, once per batch."""
        with self._running:
            try:
                self._write(frame, batch)
                self._ended()
            except BaseException as error:
                self.error = self.error or error
                raise

    def fire(self) -> bool:
        """Let all further batches run at the end of time. Return False while a batch runs.

        For a task that has read all its input. A batch that is planned after this also reads the watermark after it:
        Spark asks the sources first.
        """
        if not self._running.acquire(blocking=False):
            return False
        try:
            self._own().raise_to(INFINITY_MS)
            if self._stage.analysis.by_clock:
                self._own().end_clock()
        finally:
            self._running.release()
        return True

    def _write(self, frame: DataFrame, batch: int) -> None:
        began = time.monotonic()
        with self._outlet.run(frame) as rows:  # the plan has run and its state files are on disk
            computed, cpu = time.monotonic(), time.thread_time()
            if batch <= self._log.last_batch:
                return  # a replay: its record is already in the log
            parts = self._parts(batch, rows)
        if self._log.drained and not parts:
            return  # DRAINED was appended without a batch, and a source says once more where it stands
        self._count_late(batch)  # before the append, after which others may delete what the batch has read
        plan = planned(self._checkpoint, batch)
        is_early = self._stage.analysis.by_clock and plan.clock_ms < END_OF_CLOCK_MS
        if plan.step >= 2 and (is_early or plan.watermark_ms < INFINITY_MS):
            reached = f"the watermark {plan.watermark_ms} and the clock {plan.clock_ms}"
            raise SamzaAzureError(f"Spark has planned the last batch of a drain for {reached}.")
        files = self._files.of_batch(batch, is_stateful=bool(self._stage.plan.stateful))
        watermark = watermark_us(plan, self._stage)
        self._own().raise_to(0 if watermark is None else watermark // 1000)
        self._append(batch, plan, parts, files)
        self._spent(batch, Spent(computed - began, time.monotonic() - computed, time.thread_time() - cpu))

    def _own(self) -> OwnedWatermark:
        if self._watermark is None:
            self._watermark = self._own_watermark()
        return self._watermark

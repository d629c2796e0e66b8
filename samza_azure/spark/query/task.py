"""The task that runs a query of Spark's. What Spark does after the writer is closed does not count."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.errors import StorageUnavailable
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.spark.jvm.cpu_time import CpuTime
from samza_azure.spark.jvm.late import LateRows
from samza_azure.spark.jvm.leftovers import end_leftovers
from samza_azure.spark.jvm.progress import counted_since, recent
from samza_azure.spark.jvm.watermark import OwnedWatermark
from samza_azure.spark.pipeline.pipeline import AnalysedQuery
from samza_azure.spark.query.batch import BatchWriter
from samza_azure.spark.query.launch import launch, source
from samza_azure.spark.query.query_context import QueryContext
from samza_azure.spark.query.source import SPEC
from samza_azure.tasks.checkpoint import NewFiles
from samza_azure.tasks.figures import Counted
from samza_azure.tasks.stage_task import Query, StageTask

log = logging.getLogger(__name__)

QUERY_START_S = 120.0
SOURCE_START_S = 5.0


class QueryTask(StageTask):
    """One task with a query under one writer."""

    stage: AnalysedQuery
    finishes_at_once = False

    _context: QueryContext
    _batches: BatchWriter | None

    def __init__(self, context: QueryContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        self._has_query = threading.Event()
        self._late_rows: LateRows | None = None
        self._cpu_time: CpuTime | None = None
        self._location: str | None = None
        self._end_serving: Callable[[], None] = lambda: None

    def _records(self, checkpoint: Path, *arguments: Any) -> BatchWriter:
        return BatchWriter(
            *arguments,
            checkpoint=checkpoint,
            own_watermark=self._own_watermark,
            count_late=self._count_late,
            spent=self._figures.spent.__setitem__,
            ended=self._batch_ended,
        )

    def _located(self, checkpoint: Path, files: NewFiles) -> str | None:
        if (server := self._context.state_server) is not None and self.stage.plan.stateful:
            self._location, self._end_serving = server.serve(checkpoint, files.recorded_files)
        return self._location

    def _close_writer(self, until: float) -> None:
        self._end_serving()  # executors that still run a batch of this start fail
        super()._close_writer(until)

    def _start_query(self, checkpoint: Path) -> None:
        """Start the query, unless the task has ended meanwhile."""
        specs = [str(self._spec(number, each)) for number, each in enumerate(self.inputs)]
        with self._context.starts.turn():
            if self._is_ending:
                return
            frames = [
                source(self._context, self.stage, each, SPEC, spec)
                for each, spec in zip(self.inputs, specs, strict=True)
            ]
            with self._query_lock:
                if self._is_ending:
                    return
                self._query = self._started(frames, checkpoint)
            self._has_query.set()
            self._runs()
            if self._await_source():
                self._context.starts.succeeded()

    def _started(self, frames: Sequence[DataFrame], checkpoint: Path) -> StreamingQuery:
        """The running query over these inputs."""
        with suppress(Exception):  # any error of Java or py4j: the time of its batches stays unknown
            self._cpu_time = CpuTime(self._context.spark, self.name)
        with self._context.starts.session:
            return launch(
                self._context,
                self.stage,
                frames,
                self._location or str(checkpoint),
                self._run_batch,
                state=self._state,
                name=f"{self.name}-{self._directory.name}",
                pool=self.name,
            )

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark. Java keeps a reference to this until it has collected the query, long after its end."""
        assert self._batches is not None
        self._batches(frame, batch)

    def _batch_ended(self) -> None:
        query = self._query  # None: the task has ended meanwhile, and its record is appended
        if (shuffled := self._context.shuffled) is not None and isinstance(query, StreamingQuery):
            shuffled.batch_ended(query)

    def _await_source(self) -> bool:
        """Wait for a short time until the source is up. Return whether it is."""
        wait = threading.Event()
        until = boot_time() + SOURCE_START_S
        while not (is_up := bool(self._acknowledgements())) and boot_time() < until and not self._is_ending:
            wait.wait(0.05)
        return is_up

    def _own_watermark(self) -> OwnedWatermark:
        return OwnedWatermark(self._context.spark, self._running_query())

    def _running_query(self) -> StreamingQuery:
        """The query, for its batches. It exists then, but `start` may not have returned it yet."""
        if not self._has_query.wait(QUERY_START_S) or not isinstance(self._query, StreamingQuery):
            raise StorageUnavailable(f"The query of {self.name} did not start within {QUERY_START_S} s.")
        return self._query

    def _count_late(self, batch: int) -> None:
        """Count the late rows of a batch that has run. Spark's own figures follow later."""
        if not self.stage.plan.stateful or not self.stage.analysis.watermarks:
            return
        try:
            self._late_rows = self._late_rows or LateRows(self._context.spark, self._running_query())
            more = self._late_rows.uncounted()
        except Exception as error:  # noqa: BLE001  # the count serves people; no batch fails because of it
            log.info("%s: the late rows of batch %d are counted by group: %s", self.name, batch, error)
            return
        if more:
            self._figures.late[batch] = more

    def _fires(self) -> bool:
        return self._batches is not None and self._batches.fire()

    def _counted(self) -> Counted:
        """The figures of the batches that are not counted yet."""
        assert isinstance(self._query, StreamingQuery)
        figures = self._figures
        found = counted_since(recent(self._query), figures.through, figures.late, figures.spent)
        return found.with_cpu(*self._cpu_s(self._query)) if found.batches else found

    def _cpu_s(self, query: StreamingQuery) -> tuple[float, float]:
        """The processor time of the query's thread and of its tasks since the last call; nothing if it is not known."""
        try:
            return self._cpu_time.since_last(query) if self._cpu_time is not None else (0.0, 0.0)
        except Exception as error:  # noqa: BLE001  # the figures serve people; the batches are counted without them
            log.info("%s: the processor time of its batches is not known: %s", self.name, error)
            return 0.0, 0.0

    def _stopped(self, query: Query) -> None:
        if isinstance(query, StreamingQuery):
            end_leftovers(self._context.spark, query)

    def _drop(self) -> None:
        super()._drop()
        self._end_serving()
        self._late_rows = self._cpu_time = None

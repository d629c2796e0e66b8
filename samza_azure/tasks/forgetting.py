"""Which old blobs a task deletes, and when: of its own log, and of the source partitions that it is the first to read.

This only saves space, and nothing waits for it.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence

from samza_azure.errors import SamzaAzureError
from samza_azure.logs.names import stage_and_number, task_log
from samza_azure.logs.retention import Keeps
from samza_azure.logs.source_log import SPARED_S
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.pipeline.analysed import TaskInput
from samza_azure.stream_io.log import LogWriter
from samza_azure.stream_io.retention import Retention
from samza_azure.tasks.context import ContainerContext

log = logging.getLogger(__name__)

#: Old blobs are deleted when a new one begins, and at this interval: named readers advance, and rows expire.
HOUSE_S = 600.0


class Forgetting:
    """Deletes old blobs for one task, in a thread of its own."""

    def __init__(self, context: ContainerContext, start: StartTask, inputs: Iterable[TaskInput]) -> None:
        self._context = context
        self._start = start
        self._stage = context.pipeline.stage_of(start.task).plan
        self._prefix = task_log(start.run_id, start.task)
        self._inputs = inputs
        #: The blob of our last record, and for each log that we read the blob at which we continue.
        self._begun: tuple[int, dict[str, int]] = (0, {})
        self._thread: threading.Thread | None = None
        self._at = boot_time()
        self._spared_s = SPARED_S

    def appended(self, writer: LogWriter, needs: dict[str, int]) -> None:
        """Begin if a blob was begun here, or in an input."""
        begun = writer.position[0], needs
        if begun != self._begun:
            self._begun = begun
            self._begin(writer)

    def look(self, writer: LogWriter) -> None:
        """Begin when due."""
        if boot_time() - self._at >= HOUSE_S:
            self._begin(writer)

    def _begin(self, writer: LogWriter) -> None:
        self._at = boot_time()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self.forget, args=(writer,), name=f"forget-{self._start.task}", daemon=True
            )
            self._thread.start()

    def forget(self, writer: LogWriter) -> None:
        """Delete from a log between stages what all readers have read; from sources and outputs what retention says.

        An error is no failure; it is tried again when the next blob begins.
        """
        context, run = self._context, self._start.run_id
        readers = context.pipeline.readers_of(self._prefix, run)
        try:
            if self._stage.output in context.pipeline.streams:
                number = writer.forget(readers)
            else:
                number = self._past_retention(writer, readers)
            number += sum(self._sources_past_retention())
            if number:
                log.info("%s: %d old blobs were deleted", self._start.task, number)
        except SamzaAzureError as error:
            log.info("%s: old blobs were not deleted: %s", self._start.task, error)

    def _retention(self, stream: str) -> Retention | None:
        """What a stream keeps. None if it keeps everything."""
        declared, context = self._context.config.streams.get(stream), self._context
        if declared is None or (declared.retention_s is None and declared.retention_bytes is None):
            return None
        keeps = Keeps(declared.retention_s, declared.retention_bytes)
        return Retention(context.blobs, context.positions, stream, keeps, self._spared_s)

    def _past_retention(self, writer: LogWriter, readers: Sequence[str]) -> int:
        retention = self._retention(self._stage.output)
        if retention is None:
            return 0
        _, number = stage_and_number(self._start.task)
        return retention.delete_of_output(writer.kept(), readers, number, self._stage.tasks)

    def _sources_past_retention(self) -> Iterator[int]:
        """Delete old blobs of the source partitions of which this task is the first reader. Yield how many."""
        group_id, run = bytes.fromhex(self._start.group_id), self._start.run_id
        for each in self._inputs:
            retention = self._retention(each.stream)
            for producer in each.producers:
                if retention is not None and producer.source is not None:
                    tasks = self._context.pipeline.readers_of(producer.prefix, run)
                    if tasks[0] == self._prefix:
                        yield retention.delete_of_source(producer.prefix, group_id, tasks)

"""A task that writes the rows of a stream to a folder, as Parquet files. Its log records what each file holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from samza_azure.config import Files
from samza_azure.logs.record import Buffer
from samza_azure.messages import StartTask
from samza_azure.stream_io.log import LogReader, Restored
from samza_azure.tables.delivery import Delivery
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.sink_task import SinkTask, claim_at

#: In each record of such a task: the position of its delivery.
POSITION = "delivery.json"


class DeliveryTask(SinkTask):
    """One task of a folder under one writer."""

    _sink: Delivery | None

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        to = context.pipeline.sink_of(start.task)
        assert isinstance(to, Files)
        self._to = to

    @property
    def _meta(self) -> Mapping[str, Any]:
        return {**super()._meta, "files": self._to.folder}

    @property
    def _files(self) -> Mapping[str, Buffer]:
        assert self._sink is not None
        return {POSITION: bytes(self._sink.position)}

    def _claim(self, restored: Restored, readers: Sequence[LogReader]) -> bool:
        self._sink = Delivery(
            self._context.blobs,
            self._to,
            self._input.columns.arrow,
            run=self.start_message.run_id,
            task=self.name,
            readers=readers,
            record=self._record,
            may_write=self._context.may_append,
        )
        claim_at(self._sink.claim, restored, POSITION)
        return True

    def _flush(self) -> bool:
        assert self._sink is not None
        return self._sink.flush()

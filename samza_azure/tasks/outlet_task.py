"""A task that sends the rows of a stream to a system outside. Its log records what each range of rows holds, and keeps
the rows that can never be sent: it is the log of the stream `<id>-dead`.

A record before each range says also that all ranges before it were sent. Only where rows stop coming is there one more,
a moment later.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from samza_azure.config import Outside
from samza_azure.errors import SamzaAzureError
from samza_azure.logs.record import INTERMEDIATE, Buffer, Kind, Slice
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time
from samza_azure.messages import WARNING_LIMIT, Progress, StartTask
from samza_azure.names import dead_name
from samza_azure.pipeline.outside import sent
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import LogReader, LogWriter, Restored
from samza_azure.systems.api import SystemWriter
from samza_azure.systems.dead_letters import SCHEMA_DDL
from samza_azure.systems.outlet import Outlet
from samza_azure.systems.registry import factory_of, producer_of
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.life import LOOK_S, owner_number
from samza_azure.tasks.sink_task import SinkTask, claim_at

log = logging.getLogger(__name__)

#: In each record of such a task: the position of its outlet.
POSITION = "outlet.json"
#: So much later than a range its end is recorded, if no other range follows: until then a new owner sends it again.
SETTLE_S = 1.0
#: Old blobs of the log are deleted, so it begins new ones often.
ROLL_RECORDS = 2_000


class OutletTask(SinkTask):
    """One task of a stream that goes outside, under one writer."""

    _limits = LogLimits(roll_records=ROLL_RECORDS)
    _sink: Outlet | None

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        to = context.pipeline.sink_of(start.task)
        assert isinstance(to, Outside)
        self._to = to
        self._sent_at: float | None = None  # since when a range is sent, and no record says so
        self._is_busy = False
        self._blob = 0  # of our log, before which the blobs are deleted

    @property
    def _meta(self) -> Mapping[str, Any]:
        # What it puts aside stays after a drain, as an output does; a job may say so in the middle of a run.
        return {"stream": dead_name(self._to.stream), "schema": SCHEMA_DDL, "partitions": 1, INTERMEDIATE: False}

    @property
    def _files(self) -> Mapping[str, Buffer]:
        assert self._sink is not None
        return {POSITION: bytes(self._sink.position)}

    @property
    def _slices(self) -> Sequence[Slice]:
        assert self._sink is not None
        return [one_slice(0, rows) for rows in self._sink.dead()]

    def _claim(self, restored: Restored, readers: Sequence[LogReader]) -> bool:
        start, to = self.start_message, self._to
        outside = sent(self._context.pipeline, self.name, self._context.config)
        factory = factory_of(to.system, to.stream)
        self._sink = Outlet(
            to,
            self._input.columns.arrow,
            task=self.name,
            writer=SystemWriter(f"{start.group_id[:12]}:{start.run_id}:{self.name}", None, owner_number(start)),
            readers=readers,
            record=self._record,
            may_write=self._context.may_append,
            partitions=lambda: factory.get_admin(outside).partitions(),
            made=lambda: producer_of(factory, outside),
        )
        claim_at(self._sink.claim, restored, POSITION)
        return True

    def _turn(self) -> None:
        try:
            super()._turn()
        finally:
            self._tell_warning()

    def _tell_warning(self) -> None:
        """Report why the outside takes nothing, if it refuses us."""
        progress = self.report.progress or Progress()
        said = self._sink.warning if self._sink is not None else ""
        if (warning := self._context.clean(said)[:WARNING_LIMIT]) != progress.warning:
            if warning:
                log.warning("%s: %s", self.name, warning)
            self._tell(progress=replace(progress, warning=warning))

    def _flush(self) -> bool:
        assert self._sink is not None
        if not self._sink.flush():
            self._is_busy = False
            return False
        return True

    def _ends(self) -> None:
        self._is_busy = False

    def _is_due(self, sink: Any) -> bool:
        """Rows that come after a pause do not wait. Behind a full range the next turn comes at once."""
        self._is_busy = sink.is_full
        return sink.is_full or (sink.has_rows and boot_time() >= self._published_at + self._flush_s)

    def _record(self, kind: Kind = Kind.BATCH) -> int:
        """Append the position, unless the record before the next range will have it, too."""
        writer, sink = self._writer, self._sink
        assert writer is not None and sink is not None
        if kind is Kind.BATCH and sink.position.until is None and not sink.aside and self._sent_at is None:
            self._sent_at = boot_time()
            return writer.last_batch
        batch = super()._record(kind)
        self._sent_at, sink.aside = None, []
        self._forget(writer, sink)
        return batch

    def _rests(self) -> None:
        if self._sent_at is not None and boot_time() >= self._sent_at + SETTLE_S:
            self._tell(batch=self._record())

    def _pause_s(self) -> float:
        return 0.0 if self._is_busy else LOOK_S

    def _leaves(self) -> None:
        sink = self._sink
        if sink is not None:
            if self._sent_at is not None:
                with suppress(SamzaAzureError):  # otherwise the next owner sends the last range again
                    self._record()
            sink.close()
        super()._leaves()

    def _forget(self, writer: LogWriter, sink: Outlet) -> None:
        """Delete the blobs of our log that no restart needs, unless they hold what was put aside."""
        blob = writer.position[0]
        if blob == self._blob or sink.position.dead_to:
            return
        self._blob = blob
        try:
            writer.forget(())
        except SamzaAzureError as error:
            log.info("%s: old blobs were not deleted: %s", self.name, error)

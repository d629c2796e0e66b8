"""A task that publishes the rows of a stream as segments of a table.

The table's own position decides which rows are published (`tables.sink`), so a crash between a publish and the record
that follows it does no harm.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from samza_azure.config import TableSettings
from samza_azure.errors import CorruptState
from samza_azure.logs.names import stage_and_number
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.segments import LockOwner
from samza_azure.stream_io.log import LogReader, Restored
from samza_azure.tables.housekeeping import LOOK_MOST_S, LOOK_S, Housekeeping
from samza_azure.tables.sink import Sink
from samza_azure.tasks.account import segments
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.sink_task import SinkTask

log = logging.getLogger(__name__)


class TableTask(SinkTask):
    """One task of a table under one writer."""

    _sink: Sink | None

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        super().__init__(context, start, tried_bytes)
        table = context.pipeline.sink_of(start.task)
        assert isinstance(table, TableSettings)
        self._table = table
        self._house: threading.Thread | None = None
        self._house_ends = threading.Event()

    @property
    def _meta(self) -> Mapping[str, Any]:
        return {**super()._meta, "table": self._table.name}

    def _claim(self, restored: Restored, readers: Sequence[LogReader]) -> bool:
        start, schema = self.start_message, self._input.columns.arrow
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
        return self._sink.claim(first=restored.last_batch < 0)

    def _flush(self) -> bool:
        assert self._sink is not None
        return self._sink.flush(self._expired_us())

    def _finish(self) -> bool:
        assert self._sink is not None
        return self._sink.finish(self._expired_us())

    def _begun(self) -> None:
        if stage_and_number(self.name)[1] == 0:
            self._house = threading.Thread(target=self._keep_house, name=f"{self.name}-house", daemon=True)
            self._house.start()

    def _rests(self) -> None:
        assert self._sink is not None
        self._sink.release_older(boot_time())

    def _ends(self) -> None:
        self._end_house()

    def _leaves(self) -> None:
        self._end_house()
        if self._sink is not None:
            self._give_back(self._sink)
        super()._leaves()

    def _expired_us(self) -> int | None:
        """The moment by which intervals must have ended for retention to drop them."""
        keep_s = self._table.keep_s
        return None if keep_s is None else time.time_ns() // 1000 - round(keep_s * 1e6)

    def _keep_house(self) -> None:
        """Compaction, retention and garbage collection, besides the publishes. Its failures do not fail the task."""
        table, incarnation = self._table, f"{self.start_message.generation}.{self.start_message.attempt}"
        owner = LockOwner(f"{self.start_message.run_id}/{self.name}", incarnation)
        house = Housekeeping(segments(table.name), table, self.name, owner, self._may_keep_house)
        pause = LOOK_S
        while not self._house_ends.wait(pause):
            try:
                did = house.turn(time.time_ns() // 1000)
                pause = LOOK_S if did or house.is_written_to else min(2 * pause, LOOK_MOST_S)
            except Exception as error:  # noqa: BLE001
                log.info("%s: housekeeping: %s", self.name, error)
                pause = LOOK_MOST_S if isinstance(error, CorruptState) else LOOK_S

    def _may_keep_house(self) -> bool:
        leaves = self._house_ends.is_set() or self._closing.is_set() or self._drain.step is not None
        return self._context.may_append() and not leaves

    def _end_house(self) -> None:
        """Wait until the group of segments that is being merged is done and its locks are given back."""
        self._house_ends.set()
        if self._house is not None:
            self._house.join(self._context.config.task.shutdown_ms / 1000)

    def _give_back(self, sink: Sink) -> None:
        """Give our locks back. Otherwise the next owner has to end them."""
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001
            log.info("%s: its locks could not be given back: %s", self.name, error)

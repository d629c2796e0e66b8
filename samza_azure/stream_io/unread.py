"""How many bytes of rows in a source stream the tasks of the job have yet to read.

The positions of the tasks are in their logs, and the run's in the control blob. Only rows count, which are found by
reading the headers of the records that were not looked at before. Named readers do not count.
"""

from collections.abc import Mapping

from samza_azure.group import control as control_blob
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.drain import source_readers
from samza_azure.logs.names import source_log, source_partition, task_log
from samza_azure.logs.position import Position
from samza_azure.logs.record import READ, Kind
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.listing import log_indexes
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.unread import Unread

_ROWS = frozenset({0})


class UnreadOfJob:
    """What the slowest tasks of a job have yet to read of a source stream. For one thread."""

    def __init__(self, blobs: Blobs, stream: str, partitions: int) -> None:
        self._blobs, self._stream = blobs, stream
        self._partitions = [source_partition(stream, number) for number in range(partitions)]
        self._unread = {partition: Unread({partition: _ROWS}) for partition in self._partitions}
        self._counted: dict[str, Position] = {}  # up to where the records of a partition were counted

    def bytes(self) -> int:
        """The bytes of rows, as they are in the logs, of all partitions. 0 if the job does not read the stream.

        Raise StorageUnavailable if the storage does not answer.
        """
        stands = self._stands()
        for partition, at in stands.items():
            self._count(partition, at)
        return sum(self._unread[partition].size(partition) for partition in stands)

    def _stands(self) -> Mapping[str, Position]:
        """Up to where the slowest task has read each partition that any reads. Before the first run none is read."""
        found = self._blobs.read(control_blob.NAME, 0)
        control = Control("") if isinstance(found, Missing) else control_blob.decode(found.data)
        begun = {partition: control.positions.get(partition, (0, 0)) for partition in self._partitions}
        if control.phase is RunPhase.NONE:
            return begun
        if self._stream not in control.sources:
            return {}
        if control.phase is RunPhase.DRAINED:
            return begun
        stands: dict[str, Position] = {}
        for task, partitions in (source_readers(control, None) or {}).items():
            ours = [partition for partition in partitions if partition in begun]
            last = LogReader(self._blobs, task_log(control.run_id, task)).tail() if ours else None
            if last is not None and last.header.kind is Kind.DRAINED and control.phase is RunPhase.RUNNING:
                continue  # it has asked for its end
            read = {} if last is None else last.header.meta.get(READ, {})
            for partition in ours:
                index, position = read.get(partition, begun[partition])
                stands[partition] = min((index, position), stands.get(partition, (index, position)))
        return stands

    def _count(self, partition: str, at: Position) -> None:
        """Count what has come since the last look, and take off what is read."""
        prefix = source_log(partition)
        first = log_indexes(self._blobs, f"{prefix}/").get(prefix, [0])[0]  # retention may have deleted earlier blobs
        reader, start = LogReader(self._blobs, prefix), max(self._counted.get(partition, (0, 0)), at, (first, 0))
        while True:
            found = reader.scan(start)
            for part in found.parts:
                index, begin = part.position
                self._unread[partition].appended((index, begin + 1), {0: part.reference.length})
            start = found.end
            if found.at_end:
                break
        self._counted[partition] = start
        self._unread[partition].read(partition, at)

"""The tasks that read the log of a source task, and whether they are so far behind that it has to wait for them.

Their positions are in the last records of their logs, which are read only while the log has as many unread bytes as is
allowed by what is known; then at once after a hint, and otherwise ever more seldom.
"""

from collections import Counter
from collections.abc import Iterable

from samza_azure.logs.names import task_log
from samza_azure.logs.position import Position
from samza_azure.logs.record import STANDS, Kind, Slice
from samza_azure.machine.clock import boot_time
from samza_azure.messages import StartTask
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.pace import HINTS_BUSY_S, UNASKED_S
from samza_azure.streams.unread import Unread
from samza_azure.tasks.context import ContainerContext

#: The seconds between the first two looks at the same position of a reader; each later pause is twice as long.
AGAIN_S = 0.5


class Readers:
    """The readers of the log of one source task. For its thread."""

    def __init__(self, context: ContainerContext, start: StartTask, most_bytes: int | None) -> None:
        """`most_bytes`: None if they are never waited for."""
        self._context, self._most_bytes = context, most_bytes
        self._prefix, self._group_id = task_log(start.run_id, start.task), bytes.fromhex(start.group_id)
        pipeline = context.pipeline
        self._destinations: dict[str, frozenset[int]] = {}
        for task in pipeline.plan.tasks() if most_bytes is not None else ():
            producers = [each for one in pipeline.inputs_of(task, start.run_id) for each in one.producers]
            if ours := [each.destinations for each in producers if each.prefix == self._prefix]:
                self._destinations[task_log(start.run_id, task)] = frozenset().union(*ours)
        self._unread: Unread | None = None  # before the first look
        self._begins_at: Position = (0, 0)
        self._seen: dict[str, Position] = {}  # the ends of their logs
        self._looked_at: dict[str, float] = {}
        self._pause_s: dict[str, float] = {}

    def begin(self, end: Position) -> None:
        """Count from the log on as an owner before has left it."""
        self._begins_at = end

    def appended(self, end: Position, slices: Iterable[Slice]) -> None:
        """Count our own record. It comes after the first look."""
        sizes = Counter[int]()
        for part in slices:
            sizes[part.destination] += part.length
        if self._unread is not None:
            self._unread.appended(end, sizes)

    def are_behind(self) -> bool:
        """Whether one of them has yet to read as many bytes as is allowed."""
        if self._most_bytes is None or not self._destinations:
            return False
        if self._unread is None:
            self._unread = self._counted()
        for reader in self._unread.behind(self._most_bytes):
            if self._is_due(reader):
                self._look(self._unread, reader)
        return bool(self._unread.behind(self._most_bytes))

    def _counted(self) -> Unread:
        """What owners before us have appended, and nobody says of whom it was read."""
        unread = Unread(self._destinations)
        stands = {reader: at for reader in self._destinations if (at := self._stands(reader)) is not None}
        log = LogReader(self._context.blobs, self._prefix, group_id=self._group_id)
        for found in log.scans(min(stands.values(), default=self._begins_at), self._begins_at):
            for part in found.parts:
                index, begin = part.position
                unread.appended((index, begin + 1), {part.destination: part.reference.length})
        for reader in self._destinations:
            if reader in stands:
                unread.read(reader, stands[reader])
            else:
                unread.ended(reader)
        return unread

    def _is_due(self, reader: str) -> bool:
        heard, seen = self._context.hints.end_of(reader), self._seen.get(reader)
        has_news = heard is not None and (seen is None or heard > seen)
        pause_s = HINTS_BUSY_S if has_news else self._pause_s.get(reader, 0.0)
        return boot_time() >= self._looked_at.get(reader, 0.0) + pause_s

    def _look(self, unread: Unread, reader: str) -> None:
        before, self._looked_at[reader] = self._seen.get(reader), boot_time()
        at = self._stands(reader)
        has_moved = self._seen.get(reader) != before
        self._pause_s[reader] = AGAIN_S if has_moved else min(2 * self._pause_s.get(reader, AGAIN_S), UNASKED_S)
        if at is None:
            unread.ended(reader)
        else:
            unread.read(reader, at)

    def _stands(self, reader: str) -> Position | None:
        """Up to where a task has read the log, according to its own; None if it reads no more."""
        log, seen = LogReader(self._context.blobs, reader), self._seen.get(reader)
        last = log.tail(seen[0]) if seen is not None else None
        last = last or log.tail()  # its owner deletes old blobs
        if last is None:
            return 0, 0
        self._seen[reader] = last.end
        if last.header.kind is Kind.DRAINED:
            return None
        # Batches of earlier releases do not say it: what was there before us then counts as read.
        otherwise = (0, 0) if last.header.batch < 0 else self._begins_at
        index, position = last.header.meta.get(STANDS, {}).get(self._prefix, otherwise)
        return index, position

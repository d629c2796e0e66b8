"""How many bytes of rows in a log its readers have yet to read, by what is known of their positions. Pure.

Only rows for a reader count: one that has read all of its rows may stand far before the end forever.
"""

from collections import deque
from collections.abc import Mapping

from samza_azure.logs.position import Position

#: Records are counted together until they have so many bytes: a reader that stands in between counts as before them.
GRAIN = 64 << 10


class Unread:
    """What each reader of a log has yet to read. `readers` are the destinations of each."""

    def __init__(self, readers: Mapping[str, frozenset[int]]) -> None:
        self._destinations = dict(readers)
        #: By reader: up to where some records lie, and the bytes of its rows in them.
        self._left: dict[str, deque[tuple[Position, int]]] = {reader: deque() for reader in readers}
        self._sizes = dict.fromkeys(readers, 0)

    def appended(self, end: Position, sizes: Mapping[int, int]) -> None:
        """Count a record that ends there, with so many bytes of rows for each destination."""
        for reader, destinations in self._destinations.items():
            size = sum(sizes.get(each, 0) for each in destinations)
            if not size:
                continue
            left, together = self._left[reader], 0
            if left and left[-1][1] < GRAIN:
                together = left.pop()[1]
            left.append((end, together + size))
            self._sizes[reader] += size

    def read(self, reader: str, position: Position) -> None:
        """Take off what lies before a reader's position."""
        left = self._left[reader]
        while left and left[0][0] <= position:
            self._sizes[reader] -= left.popleft()[1]

    def ended(self, reader: str) -> None:
        """Leave out a reader that reads no more."""
        for known in (self._destinations, self._left, self._sizes):
            known.pop(reader, None)

    def size(self, reader: str) -> int:
        """The bytes that a reader has yet to read."""
        return self._sizes[reader]

    def behind(self, size: int) -> list[str]:
        """The readers that have at least so many bytes to read."""
        return [reader for reader, left in self._sizes.items() if left >= size]

"""A point in a table's history.

Publishes under different locks write no common row, since appenders would otherwise wait for each other. So a sequence
number is not one integer but one per lock: the number of its accepted publishes. Locks are numbered in the order of
their grants. A lock granted later has published nothing yet; one that was granted earlier and is not listed is gone,
and all that it published counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from samza_azure.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class SequenceNumber:
    """`granted` is the number of locks granted so far; `counts` has the number of publishes of each present lock."""

    granted: int = 0
    counts: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.granted}:" + ",".join(f"{lock}={count}" for lock, count in sorted(self.counts.items()))

    @classmethod
    def parse(cls, text: str) -> "SequenceNumber":
        """Parse what `str` wrote. Raise ValueError for any other text."""
        granted, colon, counts = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} is not a sequence number; it looks like 17:12=3,15=0.")
        pairs = (pair.partition("=") for pair in counts.split(",") if pair)
        return cls(int(granted), {int(lock): int(count) for lock, _, count in pairs})

    def of_oldest(self, locks: int) -> "SequenceNumber":
        """What the oldest `locks` locks, and those that were gone, had published: no later point, and a shorter text.

        This keeps the order of two points of one history.
        """
        numbers = sorted(self.counts)
        if len(numbers) <= locks:
            return self
        return SequenceNumber(numbers[locks] - 1, {number: self.counts[number] for number in numbers[:locks]})

    def count(self, lock: int) -> int | None:
        """How many publishes of a lock had been accepted. None means all that it ever made."""
        if lock > self.granted:
            return 0
        return self.counts.get(lock)

    def has(self, lock: int, number: int) -> bool:
        """Whether a publish had been accepted."""
        count = self.count(lock)
        return count is None or number <= count

    def includes(self, segment: Segment) -> bool:
        """Whether a segment had been published. If it depends on two publishes, both are needed."""
        return all(self.has(lock, number) for lock, number in segment.published)

    def __le__(self, other: "SequenceNumber") -> bool:
        """Whether everything that had been published here had been published there too."""
        if self.granted > other.granted:
            return False
        for lock in {*self.counts, *other.counts}:
            later = other.count(lock)
            if later is not None and later < (_ALL if (mine := self.count(lock)) is None else mine):
                return False
        return True


_ALL = 1 << 63

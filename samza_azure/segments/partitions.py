"""Sets of partition numbers, run-length encoded: {0, 1, 2, 7} is the runs [0, 3) and [7, 8).

The sets of a table are mostly a few long runs, but any set is legal. Sets are values: they compare and hash by content.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

Runs = tuple[tuple[int, int], ...]


class Partitions:
    """An immutable set of integers from 0 on."""

    __slots__ = ("_hash", "_size", "runs")

    def __init__(self, numbers: Iterable[int] = (), *, runs: Iterable[tuple[int, int]] = ()) -> None:
        """The set of these numbers, and of those in half-open runs. Raise ValueError for a negative one."""
        one_by_one = ((number, number + 1) for number in numbers)
        self.runs = _joined(sorted([*one_by_one, *((start, end) for start, end in runs if start < end)]))
        if self.runs and self.runs[0][0] < 0:
            raise ValueError(f"{self.runs[0][0]} is not a partition: they are numbered from 0 on.")
        self._size = sum(end - start for start, end in self.runs)
        self._hash = hash(self.runs)

    @classmethod
    def of(cls, *numbers: int) -> "Partitions":
        """The set of these numbers."""
        return cls(numbers)

    @classmethod
    def between(cls, start: int, end: int) -> "Partitions":
        """The numbers from `start` to just before `end`."""
        return cls.from_runs([(start, end)])

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int]]) -> "Partitions":
        """The union of half-open runs, in any order."""
        return cls(runs=runs)

    @classmethod
    def union_of(cls, sets: "Iterable[Partitions]") -> "Partitions":
        """All numbers of all these sets."""
        return cls.from_runs(run for one in sets for run in one.runs)

    @classmethod
    def parse(cls, text: str) -> "Partitions":
        """Parse what `str` wrote. Raise ValueError for any other text."""
        runs = []
        for part in text.split(",") if text else ():
            first, dash, last = part.partition("-")
            runs.append((int(first), int(last if dash else first) + 1))
        return cls.from_runs(runs)

    def __str__(self) -> str:
        return ",".join(f"{start}" if end == start + 1 else f"{start}-{end - 1}" for start, end in self.runs)

    def __repr__(self) -> str:
        return f"Partitions({str(self)!r})"

    def __len__(self) -> int:
        return self._size

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Partitions) and self.runs == other.runs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Partitions.from_runs, (self.runs,)

    def __iter__(self) -> Iterator[int]:
        for start, end in self.runs:
            yield from range(start, end)

    def __contains__(self, number: int) -> bool:
        if len(self.runs) == 1:
            return self.runs[0][0] <= number < self.runs[0][1]
        at = bisect_right(self.runs, (number, _INFINITE)) - 1
        return at >= 0 and number < self.runs[at][1]

    def __le__(self, other: "Partitions") -> bool:
        """Whether each number of this set is in the other one."""
        return self._size <= other._size and all(other.has_run(start, end) for start, end in self.runs)

    def __lt__(self, other: "Partitions") -> bool:
        return self._size < other._size and self <= other

    def __or__(self, other: "Partitions") -> "Partitions":
        return Partitions.from_runs((*self.runs, *other.runs))

    def __and__(self, other: "Partitions") -> "Partitions":
        found, mine, theirs = [], 0, 0
        while mine < len(self.runs) and theirs < len(other.runs):
            start = max(self.runs[mine][0], other.runs[theirs][0])
            end = min(self.runs[mine][1], other.runs[theirs][1])
            if start < end:
                found.append((start, end))
            if self.runs[mine][1] < other.runs[theirs][1]:
                mine += 1
            else:
                theirs += 1
        return Partitions.from_runs(found)

    def __sub__(self, other: "Partitions") -> "Partitions":
        found = []
        for first, end in self.runs:
            start = first
            for taken_start, taken_end in other.runs:
                if taken_start < end and start < taken_end:
                    found.append((start, taken_start))
                    start = taken_end
            found.append((start, end))
        return Partitions.from_runs(found)

    def isdisjoint(self, other: "Partitions") -> bool:
        """Whether no number is in both."""
        return not self & other

    @property
    def least(self) -> int:
        """The smallest number. IndexError for the empty set."""
        return self.runs[0][0]

    def has_run(self, start: int, end: int) -> bool:
        """Whether all numbers from `start` to just before `end` are in."""
        at = bisect_right(self.runs, (start, _INFINITE)) - 1
        return at >= 0 and end <= self.runs[at][1]


_INFINITE = 1 << 63
_SINGLES: list[Partitions] = []


def single(number: int) -> Partitions:
    """The set of one number. Sets of small numbers are cached, since a table has many roots."""
    if number >= 4096:
        return Partitions.between(number, number + 1)
    while number >= len(_SINGLES):
        _SINGLES.append(Partitions.between(len(_SINGLES), len(_SINGLES) + 1))
    return _SINGLES[number]


def _joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """Sorted runs, in which those that touch or overlap are merged."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)


#: The set of none.
EMPTY = Partitions()

"""Rows of logs that go elsewhere in ranges: a task's log records where each ends before it is written.

Promised: only the owner of that log decides what a range holds. So after any crash or pause an owner writes the same
rows in the same order under the same number again, and nothing else.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from samza_azure.foreign import parsed
from samza_azure.logs.position import Position
from samza_azure.messages import ends_from
from samza_azure.stream_io.intake import Follower


@dataclass(frozen=True, slots=True)
class RangePosition:
    """Where the rows of a task are, as recorded in its log: what has this `number` begins `at` these positions.

    `until` is where that range ends: it is written already, or will be next. None if its end is not decided yet.
    """

    number: int = 0
    at: Mapping[str, Position] = field(default_factory=dict)
    until: Mapping[str, Position] | None = None

    def __bytes__(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The inverse of `bytes`. Raise ValueError for anything else."""
        try:
            value = parsed(data)
            number, until = value["number"], value["until"]
            if type(number) is not int or number < 0:
                raise ValueError("a number is expected")
            return cls(number, ends_from(value["at"]), None if until is None else ends_from(until), **cls.rest(value))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"it makes no sense ({error!r})") from error

    @classmethod
    def rest(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """The other fields of a position."""
        return {}


P = TypeVar("P", bound=RangePosition)


class Ranged(Follower, Generic[P]):
    """What follows logs and writes their rows elsewhere, range by range. For one thread.

    `record` appends the position to the task's log, and returns when that is durable. `may_write` is called before a
    range is written.
    """

    left_out_rows = 0  # each row is in a range

    def __init__(self, record: Callable[[], object], may_write: Callable[[], bool], begin: P) -> None:
        self._record, self._may_write = record, may_write
        self._rows: pa.Table | None = None  # of the range that is being written
        self._is_recorded = True  # where it ends
        self.position = begin
        self.published_rows = 0  # under this writer

    @abstractmethod
    def _put(self, rows: pa.Table) -> None:
        """Write a range. It may have been written before. If this raises, it is called again."""

    @abstractmethod
    def _numbers(self, rows: int) -> int:
        """How many numbers a range of so many rows takes."""

    def claim(self, position: bytes | None) -> None:
        """Continue from the position of the log's last record; None if there is none yet."""
        if position is not None:
            self.position = type(self.position).parse(position)
        self._intake.begin(self.position.at)
        if self.position.until is not None:
            self._intake.read_again(self.position.until)
            self._rows = self._intake.take()

    @property
    def _flushes(self) -> bool:
        return self._rows is not None

    def flush(self) -> bool:
        """Write what was read as the next range. Return False if it may not be written now; call it again.

        Afterwards the position is that of the next range, and still has to be recorded. If the other side does not
        answer, this raises; call it again, too.
        """
        if self._rows is None and (rows := self._intake.take()) is not None:
            self._rows = rows
            self.position = replace(self.position, until={**self.position.at, **self._intake.at})
            self._is_recorded = False
        if not self._is_recorded:
            self._record()
            self._is_recorded = True
        if self._rows is not None:
            if not self._may_write():
                return False
            self._put(self._rows)
            self.published_rows += len(self._rows)
        if (end := self.position.until) is not None:
            after = self.position.number + self._numbers(0 if self._rows is None else len(self._rows))
            self.position = replace(self.position, number=after, at=end, until=None)
        self._rows = None
        return True

    def pass_over(self) -> bool:
        """Move the position up to what has been read, if no rows are held and one of the logs has reached a later blob.

        This lets the blobs that a task without rows has read be deleted. Return False if the position did not move.
        """
        if self.has_rows or not self._intake.is_in_later_blob(self.position.at):
            return False
        self.position = replace(self.position, at={**self.position.at, **self._intake.at})
        return True

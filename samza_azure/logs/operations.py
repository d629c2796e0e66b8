"""The operations that rules yield, as values, and how a rule reads records.

A rule is a generator: it yields operations and receives their answers, so the same rules run under a synchronous
driver (`samza_azure.stream_io.driver`) and on the simulator's virtual time. A driver performs each operation once, and
throws `StorageUnavailable` into the rule if it is not answered. What follows from that is decided in `repeating`.
"""

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from samza_azure.errors import CorruptState, StateLost
from samza_azure.logs.names import blob_index
from samza_azure.logs.position import Position
from samza_azure.logs.record import (
    PREFIX_LENGTH,
    TRAILER_LENGTH,
    Buffer,
    Header,
    Reference,
    check_trailer,
    checked,
    decode_header,
    header_size,
)

T = TypeVar("T")

#: How much is read at a time: doubled up to the maximum while reading is sequential, since then all of it is used.
CHUNK = 256 << 10
CHUNK_MAX = 4 << 20
#: What is read of a record of which only the index is wanted.
INDEX = 16 << 10
#: A busy service that asks for a longer pause (`Retry-After`) gets this one: a task that is released waits for it.
BUSY_MOST_S = 5.0


def rest_s(least_s: float, failed: object) -> float:
    """How long to rest after a failure, in seconds: at least `least_s`, longer if a busy service asks for that.

    `failed` is an error, or a pause after one; `after_s` is what the service asked for, if it has that.
    """
    return max(least_s, min(getattr(failed, "after_s", 0.0), BUSY_MOST_S))


@dataclass(frozen=True, slots=True)
class Create:
    """Create an empty append blob unless there is one. Answer: None."""

    name: str


@dataclass(frozen=True, slots=True)
class Append:
    """Append at exactly this position. Answer: `Sent` or `Refused`."""

    name: str
    data: bytes
    position: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read at most `length` bytes. Answer: `Span`, or None if there is no such blob."""

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Enumerate:
    """List the blobs below a prefix. Answer: names and sizes, in the order of the names."""

    prefix: str


@dataclass(frozen=True, slots=True)
class EnumerateAges:
    """List the blobs below a prefix with their ages. Answer: a `Listed` for each."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Put:
    """Write an immutable blob unless it exists. Answer: None."""

    name: str
    data: Buffer


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a blob if there is one, and nothing keeps it. Answer: None."""

    name: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the same operation is sent again. Answer: None. `after_s`: for how long the service asks for none."""

    tries: int
    after_s: float = 0.0

    @property
    def seconds(self) -> float:
        """20 ms after the first try, twice as long after each further one, at most 1 s; longer if the service asks."""
        return rest_s(min(0.01 * 2.0 ** min(self.tries, 10), 1.0), self)


Operation: TypeAlias = Create | Append | Read | Enumerate | EnumerateAges | Put | Delete | Pause
Rule: TypeAlias = Generator[Operation, Any, T]


class Sent(Enum):
    """The outcome of an append that was sent."""

    DONE = 1
    UNKNOWN = 2  # the answer was lost: it may have happened, or may still happen
    NOT = 3  # it did not happen and will not


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a blob, and the size of the whole blob. `data` is empty at or past the end."""

    data: bytes
    size: int


def indexes(prefix: str) -> Rule[list[tuple[int, int]]]:
    """Numbers and sizes of a log's blobs. This lists blobs: use it for starts and exports, never for polling."""
    listed = yield Enumerate(f"{prefix}/")
    return [(index, size) for name, size in listed if (index := blob_index(prefix, name)) is not None]


def fetch(reference: Reference, *, is_whole: bool = True) -> Rule[bytes]:
    """Read the bytes of a reference, and check them, unless they are only a part of what has its checksum."""
    span: Span | None = yield Read(reference.blob, reference.offset, reference.length)
    if span is None:
        raise StateLost("A record refers to this blob, which is gone", blob=reference.blob, position=reference.offset)
    if is_whole:
        checked(span.data, reference.crc, blob=reference.blob, position=reference.offset)
    return span.data


class Window:
    """The bytes of one blob that were read last, and the rules that read on."""

    def __init__(self, name: str, ahead: int = CHUNK) -> None:
        """A read that does not go straight on brings `ahead` bytes, if no more are asked for."""
        self.name = name
        self._ahead = ahead
        self.reads = 0
        self._start = 0
        self._data = memoryview(b"")
        self._size = 0
        self._chunk = ahead

    def has(self, position: int, length: int) -> bool:
        """Whether these bytes can be viewed without reading."""
        return self.reads > 0 and self._start <= position and position + length <= self._start + len(self._data)

    def view(self, position: int, length: int) -> memoryview:
        """A view of bytes for which `has` or `reach` has returned true."""
        return self._data[position - self._start : position - self._start + length]

    def at_end(self, position: int) -> bool:
        """Whether the blob ended here when it was read last."""
        return self.reads > 0 and position == self._size

    def reach(self, position: int, length: int) -> Rule[bool]:
        """Read these bytes if necessary. False: there is no blob yet, or it ended here when it was read last."""
        if self.at_end(position):
            return False
        if self.has(position, length):
            return True
        if not (yield from self._read(position, length)) or self.at_end(position):
            return False
        if position > self._size:
            raise CorruptState(
                f"The log is {self._size} bytes long and was longer before", blob=self.name, position=position
            )
        if not self.has(position, length):
            raise CorruptState("The log ends in the middle of a record", blob=self.name, position=position)
        return True

    def header(self, position: int) -> Rule[Header | None]:
        """The header of the record at this position, or None at the end."""
        if not (yield from self.reach(position, PREFIX_LENGTH)):
            return None
        size = header_size(self.view(position, PREFIX_LENGTH), blob=self.name, position=position)
        yield from self.reach(position, size)
        header = decode_header(self.view(position, size), blob=self.name, position=position)
        if position + header.length > self._size:  # appends are atomic, so waiting would not help
            raise CorruptState("The log ends in the middle of a record", blob=self.name, position=position)
        trailer = position + header.length - TRAILER_LENGTH
        if self.has(trailer, TRAILER_LENGTH):
            check_trailer(self.view(trailer, TRAILER_LENGTH), header, blob=self.name, position=position)
        return header

    def _read(self, position: int, length: int) -> Rule[bool]:
        straight_on = self.reads > 0 and self._start <= position <= self._start + len(self._data)
        self._chunk = min(2 * self._chunk, CHUNK_MAX) if straight_on else self._ahead
        span: Span | None = yield Read(self.name, position, max(length, self._chunk))
        self.reads += 1
        if span is None:
            if position > 0:
                raise StateLost("This blob of a log is gone", blob=self.name, position=position)
            self._size = 0
            return False
        self._start, self._data, self._size = position, memoryview(span.data), span.size
        return True


def next_blob(position: Position) -> Position:
    """The position at which a log goes on after ROLLED."""
    return position[0] + 1, 0

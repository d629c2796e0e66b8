"""How readers that do not own a log read it: what is new, where the rows are, and how it ends.

A scan reads headers, and skips rows for other destinations. It stops at a record's boundary, never inside a record. Its
result depends only on the log's content and the arguments, so a replay finds the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from samza_azure.errors import CorruptState
from samza_azure.logs.names import belongs_to, blob_name
from samza_azure.logs.operations import CHUNK, INDEX, Read, Rule, Span, Window, fetch, indexes, next_blob
from samza_azure.logs.position import Position
from samza_azure.logs.record import (
    STOOD_AT,
    TRAILER_LENGTH,
    Entry,
    Header,
    Kind,
    Reference,
    check_trailer,
    checked,
    decode_files,
    last_length,
)

#: The most ranged reads of one scan. A longer scan ends early, and the next one goes on from there.
READS_MAX = 32
#: A record from here on is large: less than a quarter of it comes along with what is read ahead.
LARGE = 4 * CHUNK


@dataclass(frozen=True, slots=True)
class Part:
    """One slice for us: its reference, and its bytes if they were read with the headers."""

    position: Position  # of its record
    destination: int
    rows: int
    least_us: int | None
    greatest_us: int | None
    reference: Reference
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Scan:
    """What is between two positions of a log. If `end` is `start`, the other fields have their defaults."""

    start: Position
    end: Position
    parts: tuple[Part, ...] = ()  # slices with rows for us
    records: int = 0  # all records, with rows for us or without
    frontier_us: int | None = None  # the highest one in between; None: there is none
    idle: bool = False  # at `end`
    drained: bool = False
    at_end: bool = False  # there was nothing more to read
    group_id: bytes | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # of a blob's first record, if that is in between
    ahead: int = CHUNK  # what the next scan had better read of a record at once

    @property
    def rows(self) -> int:
        """The number of rows for us."""
        return sum(part.rows for part in self.parts)

    @property
    def size(self) -> int:
        """The size of these rows in bytes."""
        return sum(part.reference.length for part in self.parts)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last record of a log, and the position of the next one."""

    header: Header
    end: Position


def scan(
    prefix: str,
    start: Position,
    *,
    destinations: frozenset[int] | None = None,
    group_id: bytes | None = None,
    until: Position | None = None,
    max_bytes: int | None = None,
    reads_max: int | None = READS_MAX,
    ahead: int = CHUNK,
) -> Rule[Scan]:
    """Read on from `start` to the end of the log, or to `until`, or until `max_bytes` of our rows are found.

    The first record with rows for us is always included, however large. `destinations` None means all. Raise
    CorruptState for a record of another group than `group_id`, which defaults to the first record's. `ahead`
    is what the previous scan returned; it decides how much is read at once, and nothing else.
    """
    found = _Found(start, group_id, ahead)
    window = Window(blob_name(prefix, start[0]), ahead)
    reads = 0
    while until is None or found.end < until:
        index, position = found.end
        if window.name != blob_name(prefix, index):
            reads += window.reads
            window = Window(blob_name(prefix, index), ahead)
        is_here = window.has(position, 1) or window.at_end(position)
        if reads_max is not None and reads + window.reads >= reads_max and not is_here:
            break
        header = yield from window.header(position)
        if header is None:
            found.at_end = True
            break
        if until is not None and (index, position + header.length) > until > (index, position):
            raise CorruptState(f"No record ends at {until}", blob=window.name, position=position)
        found.check(header, prefix, window.name)
        entries = [entry for entry in header.entries if destinations is None or entry.destination in destinations]
        if max_bytes is not None and found.parts and found.size + sum(part.length for part in entries) > max_bytes:
            break
        if entries and header.length <= CHUNK:  # small: one more read gets the rest of it and what follows
            yield from window.reach(position, header.length)
        if header.entries:
            # Most rows of a large record take a read of their own in any case, so its index is enough before that. Of
            # a smaller one the rows come along: calls cost money, bytes within a region do not (decision 14).
            is_index_enough = header.length > LARGE and len(entries) < len(header.entries)
            found.ahead = max(INDEX, header.size) if is_index_enough else CHUNK
        found.add(header, [_part(window, found.end, entry) for entry in entries])
    return found.scan()


def fetch_part(part: Part) -> Rule[bytes]:
    """The bytes of a slice, checked."""
    return part.data if part.data is not None else (yield from fetch(part.reference))


def opening(prefix: str, index: int = 0) -> Rule[Header | None]:
    """The first record of a blob, whose meta describes the log; None while there is none."""
    return (yield from Window(blob_name(prefix, index)).header(0))


def tail(prefix: str, index: int | None = None) -> Rule[Tail | None]:
    """The last record, found from the end; None for a log without records. `index` is a blob known to exist; without it
    the log is listed."""
    if index is None:
        return (yield from _tail_of_listed(prefix))
    last = yield from last_record(prefix, index)
    if last is None:
        return None if index == 0 else (yield from last_record(prefix, index - 1))
    while last.header.kind is Kind.ROLLED:
        following = yield from last_record(prefix, last.end[0])
        if following is None:
            break
        last = following
    return last


def _tail_of_listed(prefix: str) -> Rule[Tail | None]:
    """The last record. If blobs are deleted after they were listed, the log goes on in later ones.

    If the newest blob is empty, and the one before does not end there, it may have been created again meanwhile; so
    that counts only if the blobs are still the same.
    """
    before, last = list[tuple[int, int]](), None
    while True:
        listed = yield from indexes(prefix)
        if not listed:
            return None
        if listed == before:
            return last
        last = yield from tail(prefix, listed[-1][0])
        if last is not None and last.end[0] >= listed[-1][0]:
            return last
        before = listed


def unchanged(prefix: str, position: Position) -> Rule[bool]:
    """Whether a log still ends at `position`, and if its task is idle there, whether its inputs are unchanged, too.

    A task that reported itself idle and then died, or was slow, may have rows to read by now. So the report counts only
    as long as nothing was appended to its inputs, which only the logs can show, never a clock. Reports that refer
    to each other in a circle are each read once.
    """
    pending = [(prefix, position)]
    known = set(pending)
    while pending:
        source, place = pending.pop()
        last = yield from tail(source, place[0])
        if last is None:
            if place[1]:
                return False
            continue
        if last.end != place:
            return False
        for name, (blob, offset) in last.header.meta.get(STOOD_AT, {}).items():
            if (one := (name, (blob, offset))) not in known:
                known.add(one)
                pending.append(one)
    return True


def last_record(prefix: str, index: int) -> Rule[Tail | None]:
    """The last record of one blob; None if it is empty or gone. Two small reads, three if it is large."""
    name = blob_name(prefix, index)
    head: Span | None = yield Read(name, 0, TRAILER_LENGTH)
    if head is None or head.size == 0:
        return None
    size = head.size
    window = Window(name)
    try:
        if not (yield from window.reach(max(0, size - CHUNK), min(size, CHUNK))):
            return None
    except CorruptState:  # it was deleted since the first read, and perhaps created again
        return None
    header, _ = yield from _record_before(window, size)
    return Tail(header, next_blob((index, size)) if header.kind is Kind.ROLLED else (index, size))


def _record_before(window: Window, end: int) -> Rule[tuple[Header, int]]:
    """The record that ends here, and where it begins."""
    if not window.has(end - TRAILER_LENGTH, TRAILER_LENGTH):
        yield from window.reach(max(0, end - CHUNK), min(end, CHUNK))
    trailer = window.view(end - TRAILER_LENGTH, TRAILER_LENGTH)
    start = end - last_length(trailer, blob=window.name, position=end)
    header = yield from window.header(start)
    if header is None or start + header.length != end:
        raise CorruptState("The last record's lengths differ", blob=window.name, position=start)
    check_trailer(trailer, header, blob=window.name, position=start)
    return header, start


def last_plan(prefix: str) -> Rule[bytes | None]:
    """The content of offsets/N of the last batch N: up to where the task has read. None: it has no batch, or is no
    query. It is looked for from the end, since a log may have 64 MiB behind its last snapshot.
    """
    for index, size in reversed((yield from indexes(prefix))):
        window, end = Window(blob_name(prefix, index)), size
        while end > 0:
            header, end = yield from _record_before(window, end)
            if header.kind in (Kind.BATCH, Kind.DRAINED, Kind.SNAPSHOT):
                path = f"offsets/{header.batch}"
                if path in header.references:
                    return (yield from fetch(header.references[path]))
                yield from window.reach(end, header.size + header.files_length)
                packed = window.view(end + header.size, header.files_length)
                return decode_files(packed, header, blob=window.name, position=end).get(path)
    return None


@dataclass(slots=True)
class _Found:
    """The result of a scan so far."""

    start: Position
    group_id: bytes | None
    ahead: int
    end: Position = field(init=False)
    parts: list[Part] = field(default_factory=list)
    size: int = 0
    records: int = 0
    frontier_us: int | None = None
    idle: bool = False
    drained: bool = False
    at_end: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.end = self.start

    def check(self, header: Header, prefix: str, blob: str) -> None:
        """Raise CorruptState for a record of another group, or one that refers to blobs of other logs."""
        if foreign := [name for name in header.blobs if not belongs_to(prefix, name)]:
            raise CorruptState(
                f"The record refers to {min(foreign)}, which is no blob of this log", blob=blob, position=self.end[1]
            )
        self.group_id = self.group_id or header.group_id
        if header.group_id != self.group_id:
            raise CorruptState(
                f"This record belongs to another group, {header.group_id.hex()}, not {self.group_id.hex()}",
                blob=blob,
                position=self.end[1],
            )

    def add(self, header: Header, parts: Sequence[Part]) -> None:
        """Add one record."""
        self.records += 1
        self.parts += parts
        self.size += sum(part.reference.length for part in parts)
        if header.frontier_us is not None:
            known = header.frontier_us if self.frontier_us is None else self.frontier_us
            self.frontier_us = max(header.frontier_us, known)
        self.idle = header.idle
        self.drained = self.drained or header.kind is Kind.DRAINED
        if header.number == 0:
            self.meta = header.meta
        end = self.end[0], self.end[1] + header.length
        self.end = next_blob(end) if header.kind is Kind.ROLLED else end

    def scan(self) -> Scan:
        """The result."""
        return Scan(
            self.start,
            self.end,
            tuple(self.parts),
            self.records,
            self.frontier_us,
            self.idle,
            self.drained,
            self.at_end,
            self.group_id,
            self.meta,
            self.ahead,
        )


def _part(window: Window, record: Position, entry: Entry) -> Part:
    at = entry.offset + (record[1] if entry.blob is None else 0)
    reference = Reference(entry.blob or window.name, at, entry.length, entry.crc)
    data = None
    if entry.blob is None and window.has(at, entry.length):
        view = window.view(at, entry.length)
        data = bytes(checked(view, entry.crc, blob=window.name, position=at))
    return Part(record, entry.destination, entry.rows, entry.least_us, entry.greatest_us, reference, data)

"""The encoding of one record of a log, formats 1 and 2. Pure: bytes in, values out.

    header   magic, format, lengths, the writer, times, an index of the slices, and its own CRC32 last
    files    what Spark needs to resume, compressed as one part
    raw      larger files, uncompressed, one after the other; a record that has any is of format 2
    slices   the rows, one Arrow IPC stream for each destination that has any, in the order of the index
    trailer  16 bytes: the record's length and the header's CRC again, so that the last record is found from the end

Promised: decoding returns what was encoded, or raises `CorruptState` with the blob and the position. The header's CRC
covers the CRCs of the files and of each slice, so every byte is covered, and a reader that fetches the header and one
slice can check both. Not promised: that a record is the next one of its log, or its writer's; `task_log` checks that.

The format is the one that a reader must know, and a record has the lowest possible. A later release may add names to
the text and to `meta` without raising it: older readers ignore them. A later format raises `TooOld`; its header begins
and ends like this one, so that it can be distinguished from damage.

All numbers are little-endian; times are microseconds since 1970 UTC.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias, TypeGuard, TypeVar

from samza_azure.errors import CorruptState, TooOld
from samza_azure.foreign import exactly, parsed, unpacked

T = TypeVar("T")

MAGIC = b"SZAL"
MAGIC_AT_END = b"LAZS"
FORMAT = 2

#: A file of at least this size is stored uncompressed, so that later records can refer to it, and it can be read alone.
#: Spark has compressed it already. Except a zip, whose content a reader of the log needs.
RAW_BYTES = 16 << 10

#: The most bytes that the service accepts in one append.
LENGTH_MAX = 100 << 20
#: The most bytes of a header, which takes many times as much memory. One slice takes 48, one file about 150.
HEADER_MAX = 8 << 20

#: In the meta of a log: other tasks read it, and its old blobs are deleted when these are done with them.
INTERMEDIATE = "intermediate"
#: In the meta of a source log's first record: the columns by which its rows are partitioned, and into how many.
KEY, PARTITIONS = "key", "partitions"
#: In the meta of a record: for each log, the first blob that the task may have to read again. 0 is left out.
NEEDS = "needs"
#: In the meta of a record: up to where the task has read each source partition, for whoever looks from outside.
READ = "read"
#: In the meta of a record: up to where the task has read each log with rows from outside, for the task that writes it.
STANDS = "stands"
#: In the meta of a record: how many bytes of input a batch of its owner may have. 0, unknown, is left out.
BATCH_BYTES = "batch_bytes"
#: In the meta of a task's idle FRONTIER: the task's position in each log that it reads.
STOOD_AT = "stood_at"
#: In the meta of a DRAINED record: the task has asked for its end; no drain has.
SHUT_DOWN = "shut_down"
#: In the meta of a record: the producer's idempotence key, and up to which of its rows, counted over all partitions,
#: the log has those of its partition.
ONCE = "once"

#: magic, format, kind, flags, length of the header, length of the record
_PREFIX = struct.Struct("<4sHBBIQ")
#: group id, generation, attempt, number, batch, frontier, watermark,
#: files: packed length, unpacked length, CRC; number of slices, length of the text
_FIXED = struct.Struct("<16sQIIqqqIQIII")
#: destination, rows, least, greatest, offset, length, CRC, blob (0: in this record; else the n-th of the text's blobs)
_ENTRY = struct.Struct("<IIqqQQII")
_CRC = struct.Struct("<I")
#: length of the record, CRC of its header, magic
_TRAILER = struct.Struct("<QI4s")
#: length of a path, length of a file
_FILE = struct.Struct("<HI")

PREFIX_LENGTH = _PREFIX.size
TRAILER_LENGTH = _TRAILER.size

_IDLE = 1
_NO_TIME = -(1 << 63)

Buffer: TypeAlias = bytes | memoryview


class Kind(IntEnum):
    """The kind of a record."""

    EPOCH = 1  # a new owner starts
    BATCH = 2  # all that one micro-batch makes durable
    SNAPSHOT = 3  # everything a restore needs; earlier records are not read again
    FRONTIER = 4  # event time moved, or the writer is idle; no rows
    DRAINED = 5  # like BATCH, and the last one: the task is done
    ROLLED = 6  # the log continues in the next blob


#: The kinds of records that may carry files: only with a batch, or all at once, does state change.
CARRIERS = (Kind.BATCH, Kind.SNAPSHOT, Kind.DRAINED)


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """Who may append: the job-model version that gave the task to its owner, and the number of the owner's attempt."""

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Reference:
    """Bytes in a separate immutable blob, or in a record that stays."""

    blob: str
    offset: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one record for one destination partition, as an Arrow IPC stream."""

    destination: int
    data: bytes | Reference
    rows: int
    least_us: int | None = None
    greatest_us: int | None = None

    @property
    def length(self) -> int:
        """The bytes of the rows."""
        return self.data.length if isinstance(self.data, Reference) else len(self.data)


@dataclass(frozen=True, slots=True)
class Record:
    """One record before it is encoded, or after it was fully read.

    `task` is the task's name. In a source log it is the producer's id, and `batch` is the producer's sequence number.
    """

    kind: Kind
    group_id: bytes  # 16 bytes
    task: str
    writer: Writer
    batch: int = -1  # of the last batch, if the record is not one itself
    number: int = 0  # of the record in its blob, since the service limits the appends to a blob
    frontier_us: int | None = None
    idle: bool = False
    watermark_us: int | None = None
    slices: Sequence[Slice] = ()
    files: Mapping[str, Buffer | Reference] = field(default_factory=dict)  # path below the checkpoint -> content
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a slice. `blob` None: in the record itself, with `offset` from the record's start."""

    destination: int
    rows: int
    least_us: int | None
    greatest_us: int | None
    offset: int
    length: int
    crc: int
    blob: str | None


@dataclass(frozen=True, slots=True)
class Header:
    """A record without its rows and files: all that most readers need."""

    kind: Kind
    group_id: bytes
    task: str
    writer: Writer
    batch: int
    number: int
    frontier_us: int | None
    idle: bool
    watermark_us: int | None
    entries: tuple[Entry, ...]
    references: Mapping[str, Reference]  # files in separate blobs, or raw in a record
    raw: frozenset[str]  # those of them that are in this record
    meta: Mapping[str, Any]
    size: int  # of the header
    length: int  # of the record
    files_length: int  # of the files part, which follows the header
    files_unpacked: int
    files_crc: int
    crc: int  # the header's own

    @property
    def blobs(self) -> frozenset[str]:
        """The blobs that it refers to, besides the one that it is in."""
        entries = (entry.blob for entry in self.entries if entry.blob is not None)
        return frozenset((*entries, *(self.references[path].blob for path in self.references.keys() - self.raw)))


def encode(record: Record) -> bytes:
    """The record's bytes. Raise ValueError if they are too many for one append."""
    if len(record.group_id) != 16:
        raise ValueError(f"A group id has 16 bytes, not {len(record.group_id)}.")
    raw = {path: content for path, content in record.files.items() if _is_raw(content, path)}
    files = _pack_files({path: content for path, content in record.files.items() if path not in raw})
    if len(files) > LENGTH_MAX:
        raise ValueError(f"Small files of {len(files)} bytes; one record takes at most {LENGTH_MAX}.")
    packed = zlib.compress(files, 1) if files else b""
    blobs = _blobs(record)
    text = _text(record, blobs, raw)

    size = PREFIX_LENGTH + _FIXED.size + len(record.slices) * _ENTRY.size + len(text) + _CRC.size
    offset = size + len(packed) + sum(map(len, raw.values()))
    index, rows = [], []
    for part in record.slices:
        if isinstance(part.data, Reference):
            index.append(_entry(part, part.data.offset, part.data.length, part.data.crc, blobs[part.data.blob]))
            continue
        index.append(_entry(part, offset, len(part.data), zlib.crc32(part.data), 0))
        rows.append(part.data)
        offset += len(part.data)

    length = offset + TRAILER_LENGTH
    if length > LENGTH_MAX:
        raise ValueError(f"A record of {length} bytes; one append takes at most {LENGTH_MAX}.")
    if size > HEADER_MAX:
        raise ValueError(f"A header of {size} bytes; a record has one of at most {HEADER_MAX}.")

    prefix = _PREFIX.pack(MAGIC, FORMAT if raw else 1, record.kind, _IDLE if record.idle else 0, size, length)
    fixed = _FIXED.pack(
        record.group_id,
        record.writer.generation,
        record.writer.attempt,
        record.number,
        record.batch,
        _time(record.frontier_us),
        _time(record.watermark_us),
        len(packed),
        len(files),
        zlib.crc32(packed),
        len(record.slices),
        len(text),
    )
    head = b"".join((prefix, fixed, *index, text))
    crc = zlib.crc32(head)
    return b"".join((head, _CRC.pack(crc), packed, *raw.values(), *rows, _TRAILER.pack(length, crc, MAGIC_AT_END)))


def header_size(data: Buffer, *, blob: str, position: int) -> int:
    """The length of the header that begins with these bytes, of which at least `PREFIX_LENGTH` must be given."""
    magic, needs, _, _, size, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise CorruptState("No record begins here", blob=blob, position=position)
    if needs < 1 or not PREFIX_LENGTH + _FIXED.size + _CRC.size <= size <= length <= LENGTH_MAX:
        raise CorruptState("The record's lengths cannot be right", blob=blob, position=position)
    return int(size)


def decode_header(data: Buffer, *, blob: str, position: int) -> Header:
    """Decode a header from at least `header_size` bytes.

    `blob` and `position` become part of its references to raw files in the record itself.
    """
    size = header_size(data, blob=blob, position=position)
    view = memoryview(data)[:size]
    (crc,) = _CRC.unpack_from(view, size - _CRC.size)
    if zlib.crc32(view[: size - _CRC.size]) != crc:
        raise CorruptState("The record's header is damaged", blob=blob, position=position)
    needs = _PREFIX.unpack_from(view)[1]
    if needs > FORMAT:
        raise TooOld(f"The record at {position} of {blob}", needs, FORMAT)
    try:
        header = _header(view, crc, blob, position)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise CorruptState(f"The record's header makes no sense ({error})", blob=blob, position=position) from error
    at = size + header.files_length
    for offset, length in _inside(header, position):
        if offset != at:
            raise CorruptState("The record's parts do not follow each other", blob=blob, position=position)
        at += length
    if header.length != at + TRAILER_LENGTH:
        raise CorruptState("The record's parts do not add up to its length", blob=blob, position=position)
    return header


def _inside(header: Header, position: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each raw file and each slice that is in the record itself, as the header has them."""
    for path, reference in header.references.items():
        if path in header.raw:
            yield reference.offset - position, reference.length
    for entry in header.entries:
        if entry.blob is None:
            yield entry.offset, entry.length


def decode_files(data: Buffer, header: Header, *, blob: str, position: int) -> dict[str, bytes]:
    """The small files of a record, from the bytes of its files part. The others are in `header.references`."""
    if zlib.crc32(data) != header.files_crc:
        raise CorruptState("The record's files are damaged", blob=blob, position=position + header.size)
    try:
        files = _unpack_files(unpacked(data, header.files_unpacked) if data else b"")
        if files.keys() & header.references.keys():
            raise ValueError("two have the same name")
    except (ValueError, struct.error) as error:
        where = position + header.size
        raise CorruptState(f"The record's files make no sense ({error})", blob=blob, position=where) from error
    return files


def checked(data: Buffer, crc: int, *, blob: str, position: int) -> Buffer:
    """Return the bytes if they have this CRC; otherwise raise CorruptState."""
    if zlib.crc32(data) != crc:
        raise CorruptState("A slice or file is damaged", blob=blob, position=position)
    return data


def last_length(trailer: Buffer, *, blob: str, position: int) -> int:
    """The length of the record that ends with these `TRAILER_LENGTH` bytes; `position` is where it ends."""
    length, _, magic = _TRAILER.unpack(trailer)
    if magic != MAGIC_AT_END or not PREFIX_LENGTH <= length <= min(position, LENGTH_MAX):
        raise CorruptState("No record ends here", blob=blob, position=position - TRAILER_LENGTH)
    return int(length)


def check_trailer(trailer: Buffer, header: Header, *, blob: str, position: int) -> None:
    """Raise CorruptState if a record that begins at `position` does not end as its header says."""
    if bytes(trailer) != _TRAILER.pack(header.length, header.crc, MAGIC_AT_END):
        raise CorruptState("The record's end is damaged", blob=blob, position=position + header.length - TRAILER_LENGTH)


def decode(data: Buffer, *, blob: str, position: int) -> Record:
    """The whole record that begins with these bytes, every byte checked."""
    if len(data) < PREFIX_LENGTH or len(data) < header_size(data, blob=blob, position=position):
        raise CorruptState("The record is cut short", blob=blob, position=position)
    header = decode_header(data, blob=blob, position=position)
    if len(data) < header.length:
        raise CorruptState("The record is cut short", blob=blob, position=position)
    view = memoryview(data)
    check_trailer(view[header.length - TRAILER_LENGTH : header.length], header, blob=blob, position=position)
    packed = view[header.size : header.size + header.files_length]
    files: dict[str, Buffer | Reference] = {**decode_files(packed, header, blob=blob, position=position)}
    files |= header.references
    for path in header.raw:
        reference = header.references[path]
        part = view[reference.offset - position : reference.offset - position + reference.length]
        files[path] = bytes(checked(part, reference.crc, blob=blob, position=reference.offset))
    slices = []
    for entry in header.entries:
        content: bytes | Reference
        if entry.blob is None:
            part = view[entry.offset : entry.offset + entry.length]
            content = bytes(checked(part, entry.crc, blob=blob, position=position + entry.offset))
        else:
            content = Reference(entry.blob, entry.offset, entry.length, entry.crc)
        slices.append(Slice(entry.destination, content, entry.rows, entry.least_us, entry.greatest_us))
    return Record(
        header.kind,
        header.group_id,
        header.task,
        header.writer,
        header.batch,
        header.number,
        header.frontier_us,
        header.idle,
        header.watermark_us,
        tuple(slices),
        files,
        header.meta,
    )


def _time(value: int | None) -> int:
    return _NO_TIME if value is None else value


def _time_or_none(value: int) -> int | None:
    return None if value == _NO_TIME else value


def _entry(part: Slice, offset: int, length: int, crc: int, blob: int) -> bytes:
    least, greatest = _time(part.least_us), _time(part.greatest_us)
    return _ENTRY.pack(part.destination, part.rows, least, greatest, offset, length, crc, blob)


def _blobs(record: Record) -> dict[str, int]:
    """The blobs that the record refers to, numbered from 1 in the order of their first mention."""
    contents = (*(part.data for part in record.slices), *record.files.values())
    names = dict.fromkeys(content.blob for content in contents if isinstance(content, Reference))
    return {name: number for number, name in enumerate(names, 1)}


def _is_raw(content: Buffer | Reference, path: str) -> TypeGuard[Buffer]:
    return not isinstance(content, Reference) and len(content) >= RAW_BYTES and not path.endswith(".zip")


def _text(record: Record, blobs: Mapping[str, int], raw: Mapping[str, Buffer]) -> bytes:
    """The parts without a fixed length, as compact JSON, without empty ones."""
    text: dict[str, Any] = {"task": record.task}
    if record.meta:
        text["meta"] = record.meta
    if blobs:
        text["blobs"] = list(blobs)
    references = {
        path: [blobs[content.blob], content.offset, content.length, content.crc]
        for path, content in record.files.items()
        if isinstance(content, Reference)
    }
    offset = 0
    for path, content in raw.items():  # blob 0 is this record; raw files are counted from the first one's start
        references[path] = [0, offset, len(content), zlib.crc32(content)]
        offset += len(content)
    if references:
        text["files"] = references
    return json.dumps(text, separators=(",", ":")).encode()


def _header(view: memoryview, crc: int, name: str, position: int) -> Header:
    _, _, kind, flags, size, length = _PREFIX.unpack_from(view)
    (
        group_id,
        generation,
        attempt,
        number,
        batch,
        frontier,
        watermark,
        files_length,
        files_unpacked,
        files_crc,
        slices,
        text_length,
    ) = _FIXED.unpack_from(view, PREFIX_LENGTH)
    index = PREFIX_LENGTH + _FIXED.size
    text_at = index + slices * _ENTRY.size
    if text_at + text_length + _CRC.size != size:
        raise ValueError("its parts do not add up")
    if size > HEADER_MAX:
        raise ValueError(f"it has {size} bytes, at most {HEADER_MAX} are possible")
    if files_unpacked > LENGTH_MAX:
        raise ValueError(f"its files unpack to {files_unpacked} bytes, at most {LENGTH_MAX} are possible")
    text = parsed(bytes(view[text_at : text_at + text_length]))
    blobs: list[Any] = [None, *_each(str, text.get("blobs", []))]
    first_raw = position + size + files_length
    listed = {path: _each(int, of) for path, of in text.get("files", {}).items()}
    if any(len(of) != 4 or min(of) < 0 for of in listed.values()):
        raise ValueError("a file has no place")
    entries = tuple(
        Entry(
            destination, rows, _time_or_none(least), _time_or_none(greatest), offset, part_length, part_crc, blobs[blob]
        )
        for destination, rows, least, greatest, offset, part_length, part_crc, blob in _ENTRY.iter_unpack(
            view[index:text_at]
        )
    )
    return Header(
        Kind(kind),
        group_id,
        exactly(str, text["task"]),
        Writer(generation, attempt),
        batch,
        number,
        _time_or_none(frontier),
        bool(flags & _IDLE),
        _time_or_none(watermark),
        entries,
        {
            path: Reference(blobs[blob], offset, *rest) if blob else Reference(name, first_raw + offset, *rest)
            for path, (blob, offset, *rest) in listed.items()
        },
        frozenset(path for path, (blob, *_) in listed.items() if blob == 0),
        _meta(text.get("meta", {})),
        size,
        length,
        files_length,
        files_unpacked,
        files_crc,
        crc,
    )


def _each(kind: type[T], values: Any) -> list[T]:
    return [exactly(kind, value) for value in exactly(list, values)]


def _number(value: Any) -> None:
    if exactly(int, value) < 0:
        raise ValueError("a negative number")


def _place(value: Any) -> None:
    blob, position = _each(int, value)
    _number(blob)
    _number(position)


def _by_name(check: Callable[[Any], object]) -> Callable[[Any], None]:
    def of_all(value: Any) -> None:
        for each in exactly(dict, value).values():
            check(each)

    return of_all


def _named_row(value: Any) -> None:
    name, row = exactly(list, value)
    exactly(str, name)
    _number(row)


#: What the values of the names in `meta` are that this release knows.
_CHECKS: Mapping[str, Callable[[Any], object]] = {
    INTERMEDIATE: lambda value: exactly(bool, value),
    KEY: lambda value: _each(str, value),
    PARTITIONS: _number,
    NEEDS: _by_name(_number),
    READ: _by_name(_place),
    STANDS: _by_name(_place),
    BATCH_BYTES: _number,
    STOOD_AT: _by_name(_place),
    SHUT_DOWN: lambda value: exactly(bool, value),
    ONCE: _named_row,
}


def _meta(value: Any) -> Mapping[str, Any]:
    """The meta of a record, in which the known names have values of the right types."""
    for name, found in exactly(dict, value).items():
        if name in _CHECKS:
            try:
                _CHECKS[name](found)
            except (TypeError, ValueError) as error:
                raise ValueError(f"meta {name!r}: {error}") from error
    return dict[str, Any](value)


def _pack_files(files: Mapping[str, Buffer | Reference]) -> bytes:
    parts: list[Buffer] = []
    for path, content in files.items():
        if not isinstance(content, Reference):
            name = path.encode()
            parts += (_FILE.pack(len(name), len(content)), name, content)
    return b"".join(parts)


def _unpack_files(data: bytes) -> dict[str, bytes]:
    files, at = {}, 0
    while at < len(data):
        name_length, length = _FILE.unpack_from(data, at)
        at += _FILE.size
        name = data[at : at + name_length].decode()
        at += name_length
        if at + length > len(data):
            raise ValueError("one is cut short")
        if name in files:
            raise ValueError("two have the same name")
        files[name] = data[at : at + length]
        at += length
    return files

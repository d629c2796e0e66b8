"""How many bytes an Arrow message says that it unpacks to, and how many its rows take as plain values.

Arrow believes what a message says of itself: it allocates any size that is written before a compressed buffer. Layouts
that let rows share values (dictionaries, runs, views) are small in memory, and unfold when somebody uses the rows.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

#: The places of fields in the tables of Arrow's `Message.fbs`.
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_DATA = 1
_DICTIONARY, _RECORDS = 2, 3
#: Texts and bytes, which are written one after the other.
_LENGTHS = {kind.id for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())}
_INT64 = struct.Struct("<q")


def unpacked_bytes(message: pa.Message) -> int:
    """What the buffers of a message take once they are unpacked. Raise ValueError if it makes no sense."""
    try:
        return sum(_sizes(memoryview(message.metadata), memoryview(message.body or b"")))
    except struct.error as error:
        raise ValueError(f"an Arrow message makes no sense ({error})") from error


def _sizes(metadata: memoryview, body: memoryview) -> Iterator[int]:
    root = _at(metadata, 0)
    at, kind = _field(metadata, root, _HEADER), _field(metadata, root, _HEADER_TYPE)
    if at is None or kind is None or metadata[kind] not in (_DICTIONARY, _RECORDS):
        return
    table = _at(metadata, at)
    if metadata[kind] == _DICTIONARY:
        if (data := _field(metadata, table, _DATA)) is None:
            return
        table = _at(metadata, data)
    if (buffers := _field(metadata, table, _BUFFERS)) is None:
        return
    is_packed = _field(metadata, table, _COMPRESSION) is not None
    first = _at(metadata, buffers)
    for number in range(_unsigned(metadata, first)):
        offset, length = struct.unpack_from("<qq", metadata, first + 4 + 16 * number)
        if not 0 <= offset <= offset + length <= len(body):
            raise ValueError("a buffer of an Arrow message lies outside of it")
        unpacked = _INT64.unpack_from(body, offset)[0] if is_packed and length else -1
        if unpacked < -1:
            raise ValueError("a buffer of an Arrow message has a negative length")
        yield length if unpacked == -1 else unpacked


def _unsigned(data: memoryview, at: int) -> int:
    (value,) = struct.unpack_from("<I", data, at)
    return int(value)


def _at(data: memoryview, at: int) -> int:
    """Where an offset leads that is stored here."""
    return at + _unsigned(data, at)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    entries = table - back
    if entries < 0:
        raise ValueError("an Arrow message makes no sense")
    (size,) = struct.unpack_from("<H", data, entries)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, entries + 4 + 2 * number)
    return table + offset if offset else None


def is_flat(kind: pa.DataType) -> bool:
    """Whether each value has its own bytes: a number, a time, a text."""
    return bool(pa.types.is_primitive(kind)) or _has_lengths(kind)


def unfolded_bytes(values: pa.Array) -> int:
    """At most how many bytes the values take if each has its own; of a valid array, or a slice of one.

    Exact, but for values with parts that several rows may share: then each counts as all of them. A slice counts as
    much as what Arrow writes of it, or more, so that whoever reads it finds no more than its writer did.
    """
    kind = values.type
    if is_flat(kind):
        return max(int(values.nbytes), len(values))
    if isinstance(values, pa.ExtensionArray):
        return unfolded_bytes(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return _shared(values.dictionary, values.indices)
    if isinstance(values, pa.RunEndEncodedArray):
        return len(values) * _largest(values.values)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return sum(_lengths_of_views(values))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = pc.list_value_length(values).fill_null(0)
        inner, used = _range_of(values.values, values.offsets, lengths), _total(lengths)
        return unfolded_bytes(inner) if used <= len(inner) else used * _largest(inner)
    if isinstance(values, pa.StructArray):
        return sum(unfolded_bytes(values.field(number)) for number in range(kind.num_fields))
    if isinstance(values, pa.ListArray | pa.LargeListArray):  # also maps, which are lists of their entries
        if not len(values):
            return 0
        offsets = values.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        return int(offsets.nbytes) + unfolded_bytes(values.values.slice(first, last - first))
    if isinstance(values, pa.FixedSizeListArray):
        return unfolded_bytes(values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size))
    if isinstance(values, pa.UnionArray):
        return sum(len(values) * _largest(values.field(number)) for number in range(kind.num_fields))
    return max(int(values.nbytes), len(values))


def _range_of(values: pa.Array, starts: pa.Array, lengths: pa.Array) -> pa.Array:
    """The values from the first to the last that list views show."""
    starts, lengths = (pc.cast(each, pa.int64()).filter(pc.greater(lengths, 0)) for each in (starts, lengths))
    if not len(starts):
        return values.slice(0, 0)
    first, last = pc.min(starts).as_py(), pc.max(pc.add(starts, lengths)).as_py()
    return values.slice(first, last - first)


def _shared(values: pa.Array, indices: pa.Array) -> int:
    """Of values that are chosen by their number."""
    if _has_lengths(values.type):
        return _total(pc.take(pc.binary_length(values), indices))
    return len(indices) * _largest(values)


def _largest(values: pa.Array) -> int:
    """At most how many bytes one of these values takes."""
    if _has_lengths(values.type):
        return max(pc.max(pc.binary_length(values)).as_py() or 0, 1)
    try:
        return max(int(values.type.bit_width) // 8, 1)
    except ValueError:  # it has parts
        return max(unfolded_bytes(values), 1)


def _has_lengths(kind: pa.DataType) -> bool:
    return kind.id in _LENGTHS


def _lengths_of_views(values: pa.Array) -> Iterator[int]:
    """The lengths of texts that point into shared buffers: each has 16 bytes, which begin with its length."""
    numbers = memoryview(values.buffers()[1]).cast("i")
    for number in range(values.offset, values.offset + len(values)):
        yield max(numbers[4 * number], 0)


def _total(lengths: pa.Array) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)

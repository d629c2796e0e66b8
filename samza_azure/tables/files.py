"""The files of a table: Parquet, zstd, sorted by time, with statistics. They are read in ranges to bound memory."""

import io
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.logs.names import TABLES
from samza_azure.outcomes import Missing
from samza_azure.segments import File, Interval
from samza_azure.segments.interval import CALENDAR, microseconds
from samza_azure.storage.interface import Blobs

ROW_GROUP_ROWS = 64 << 10
#: Longer texts get no statistics.
_TEXT_MAX = 64
#: The statistics of a file have at most this many characters as JSON: they have to fit into a row and a transaction.
_STATISTICS_MAX = 8_000
#: A reader requests at least this many bytes at once: many small ranges cost more than the bytes between them.
_READ_AHEAD = 1 << 20


def microseconds_of(table: pa.Table, time: str) -> pa.ChunkedArray:
    """The event time of each row, in microseconds since 1970. Raise ConfigError if it is not a time, or has nulls."""
    if time not in table.column_names:
        raise ConfigError(f"The rows have no column {time!r}, which determines their interval. table.time names it.")
    column = table[time]
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        raise ConfigError(f"The column {time!r} is of type {column.type}; table.time must be a timestamp or a date.")
    if column.null_count:
        raise ConfigError(f"{column.null_count} rows have no {time!r}, so their interval is unknown. Leave them out.")
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # A cast rounds towards 1970: before 1970 that can be the next interval.
        column = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
    try:
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"A {time!r} is too far from 1970 to be counted in microseconds: {error}. Correct it, or leave the row out."
        ) from error


def check_moments(moments: pa.ChunkedArray, time: str) -> None:
    """Raise ConfigError for moments outside the calendar, which no interval contains."""
    outside = pc.or_(pc.less(moments, CALENDAR.start), pc.greater_equal(moments, CALENDAR.end))
    if count := pc.sum(outside).as_py():
        first = moments.filter(outside)[0].as_py()
        raise ConfigError(
            f"{count} rows have a {time!r} outside the years 1 to 9999, the first {first} µs from 1970: they belong "
            "to no interval. Correct them, or leave them out before they are written."
        )


def with_interval(table: pa.Table, time: str) -> pa.Table:
    """The rows that belong to an interval: those with a time, in the years 1 to 9999.

    The column is a date or in microseconds, as Spark has it.
    """
    column = table[time]
    # In the column's own unit: in microseconds a distant date cannot be counted.
    first, end = (pa.scalar(each, pa.timestamp("us")).cast(column.type) for each in (CALENDAR.start, CALENDAR.end))
    return table.filter(pc.and_(pc.greater_equal(column, first), pc.less(column, end)))


def plain(schema: pa.Schema) -> pa.Schema:
    """The schema without string and binary views, which Arrow cannot sort. The values are the same."""
    types = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([field.with_type(types.get(field.type, field.type)) for field in schema])


def without_views(rows: pa.Table) -> pa.Table:
    """The rows with the schema of `plain`."""
    schema = plain(rows.schema)
    return rows if schema == rows.schema else rows.cast(schema)


@lru_cache(maxsize=1024)
def may_be_held(type: pa.DataType) -> bool:  # noqa: A002
    """Whether a column of this type can be sorted and written to a file."""
    rows = pa.schema([("at", pa.int64()), ("column", pa.int64() if pa.types.is_null(type) else type)]).empty_table()
    try:
        encode(rows.sort_by("at"))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def encode(table: pa.Table) -> bytes:
    """The bytes of a file of these rows."""
    with io.BytesIO() as out:
        with writer(out, table.schema) as parquet:
            parquet.write_table(table, row_group_size=ROW_GROUP_ROWS)
        return out.getvalue()


def are_equal(found: pa.Table, rows: pa.Table) -> bool:
    """Whether two tables have the same rows in the same order, NaN being equal to NaN at any depth.

    Arrow compares NaN as unequal to itself. So the bytes are compared that this release makes of the rows.
    """
    # A file may have other names for the elements of lists and maps, and other chunks.
    return found.schema == rows.schema and (
        encode(found.cast(rows.schema).combine_chunks()) == encode(rows.combine_chunks())
    )


def writer(out: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer with the options of our files."""
    return pq.ParquetWriter(out, schema, compression="zstd", write_statistics=True, write_page_checksum=True)


def file_of(name: str, data: bytes, time: str) -> File:
    """The statistics of a file from its footer: minimum, maximum and nulls of each plain column.

    For a file with many columns: only those of the time, and of the columns with the shortest statistics.
    """
    found = pq.read_metadata(io.BytesIO(data))
    statistics: dict[str, dict[str, Any]] = {}
    for column in range(found.num_columns):
        groups = [found.row_group(group).column(column) for group in range(found.num_row_groups)]
        parts = [group.statistics for group in groups]
        path = groups[0].path_in_schema if groups else ""
        if not parts or "." in path or any(one is None or not one.has_null_count for one in parts):
            continue
        entry: dict[str, Any] = {"nulls": sum(one.null_count for one in parts)}
        # A group without bounds has only nulls, or values whose bounds Parquet does not keep, such as long texts.
        bounds = [_bounds(one) for one in parts if one.has_min_max or one.num_values]
        if bounds and all(None not in pair for pair in bounds):
            entry |= {"least": min(least for least, _ in bounds), "most": max(most for _, most in bounds)}
        statistics[path] = entry
    return File(name, found.num_rows, len(data), _shortened(statistics, time), zlib.crc32(data))


def _shortened(statistics: dict[str, dict[str, Any]], time: str) -> dict[str, dict[str, Any]]:
    sizes = {name: len(json.dumps({name: entry})) for name, entry in statistics.items()}
    kept, left = set[str](), _STATISTICS_MAX
    for name in sorted(sizes, key=lambda one: (one != time, sizes[one])):
        if (left := left - sizes[name]) < 0:
            break
        kept.add(name)
    return {name: entry for name, entry in statistics.items() if name in kept}


def _bounds(group: Any) -> tuple[Any, Any]:
    """The least and the greatest value of a row group."""
    try:
        return (_plain(group.min), _plain(group.max)) if group.has_min_max else (None, None)
    except (ValueError, OverflowError):  # a moment that Python cannot represent
        return None, None


def _plain(value: Any) -> Any:
    """A bound as JSON represents it; None for one that cannot be compared in that form."""
    if isinstance(value, datetime):
        if getattr(value, "nanosecond", 0):  # of pandas; without its nanoseconds it would be another moment
            return None
        return value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int) else None


def may_hold(file: File, column: str, operator: str, value: Any) -> bool:
    """Whether a row of the file may satisfy `column operator value`, according to its statistics."""
    found = file.statistics.get(column)
    if found is None or not {"least", "most"} <= found.keys() or _plain(value) is None or operator not in _TESTS:
        return True
    least, most = found["least"], found["most"]
    try:
        if isinstance(value, date):  # a date is compared as its first moment, whether the column has dates or moments
            least, most, value = microseconds(least), microseconds(most), microseconds(value)
        return bool(_TESTS[operator](least, most, value))
    except (TypeError, ValueError):  # of another type: the reader reports that
        return True


def is_text(schema: pa.Schema, column: str) -> bool:
    """Whether a column has strings, which are compared as such."""
    index = schema.get_field_index(column)
    return index >= 0 and schema.field(index).type in (pa.string(), pa.large_string())


_TESTS: dict[str, Any] = {
    "=": lambda least, most, value: least <= value <= most,
    "==": lambda least, most, value: least <= value <= most,
    "<": lambda least, most, value: least < value,
    "<=": lambda least, most, value: least <= value,
    ">": lambda least, most, value: most > value,
    ">=": lambda least, most, value: most >= value,
}


def span(file: File, time: str) -> Interval | None:
    """The times of the first and the last row of a file. None if unknown."""
    found = file.statistics.get(time, {})
    if "least" not in found:
        return None
    try:
        return Interval.of(found["least"], found["most"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptState(f"A segment's row has statistics that cannot be read: {error!r}", blob=file.name) from error


def lies_in(file: File, time: str, interval: Interval) -> bool:
    """Whether all rows of a file are known to be in an interval."""
    times = span(file, time)
    return times is not None and interval.start <= times.start and times.end < interval.end


def within(table: pa.Table, time: str, interval: Interval) -> pa.Table:
    """The rows of an interval."""
    moments = microseconds_of(table, time)
    return table.filter(pc.and_(pc.greater_equal(moments, interval.start), pc.less(moments, interval.end)))


def later(table: pa.Table, time: str, moment: int) -> pa.Table:
    """The rows at or after a moment."""
    return table.filter(pc.greater_equal(microseconds_of(table, time), moment))


class BlobFile(io.RawIOBase):
    """A blob to read, in ranges of at least 1 MiB. Raise CorruptState if it does not exist."""

    def __init__(self, blobs: Blobs, file: File) -> None:
        super().__init__()
        _checked(file)
        self._blobs, self._file, self._at = blobs, file, 0
        self._start, self._data = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._file.bytes if size < 0 else min(self._at + size, self._file.bytes)
        if self._at >= end:
            return b""
        if not self._start <= self._at <= end <= self._start + len(self._data):
            first = min(self._at, max(end - _READ_AHEAD, 0)) if end == self._file.bytes else self._at
            found = self._blobs.read(
                self._file.name, first, max(end - first, min(_READ_AHEAD, self._file.bytes - first))
            )
            if isinstance(found, Missing):
                raise gone(self._file)
            self._start, self._data = first, found.data
        part = self._data[self._at - self._start : end - self._start]
        self._at += len(part)
        return part


def gone(file: File) -> CorruptState:
    """The error for a file that a segment refers to and that does not exist."""
    return CorruptState(
        "The file of a segment is gone. If the table was opened longer ago than the grace of its garbage, open it "
        "again. Otherwise another program has deleted the file; the rest can be read with skip_damaged=True",
        blob=file.name,
    )


def _checked(file: File) -> str:
    """The name of a file of a table. Raise CorruptState for another blob: whoever may write rows can name any, such as
    one of a stream, which others may write."""
    if not file.name.startswith(TABLES):
        raise CorruptState("A segment's row names a blob that is no file of a table", blob=file.name)
    return file.name


def _whole(blobs: Blobs, file: File) -> bytes:
    """A file's bytes. Raise CorruptState if the file is gone, or differs from what was published: zstd and Parquet miss
    half of all flipped bits."""
    found = blobs.read(_checked(file), 0, max(file.bytes, 0) + 1)
    if isinstance(found, Missing):
        raise gone(file)
    if file.crc is not None and (crc := zlib.crc32(found.data)) != file.crc:
        raise CorruptState(
            f"The file of a segment is damaged: it has {len(found.data):,} bytes with the CRC-32 {crc:08x}, and "
            f"{file.bytes:,} with {file.crc:08x} were published",
            blob=file.name,
        )
    return found.data


@contextmanager
def _damage(file: File) -> Iterator[None]:
    """Turn Arrow's errors for an unreadable file into CorruptState."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptState(f"The file of a segment is damaged: {error}", blob=file.name) from error


def batches(blobs: Blobs, file: File, rows: int) -> Iterator[pa.RecordBatch]:
    """A file's rows in order, at most `rows` at once. Raise CorruptState with the name of a damaged or missing file.

    The checksum of a small file, which is in memory anyway, is verified first; of a larger file, each page's when read.
    """
    source = io.BytesIO(_whole(blobs, file)) if file.bytes <= _READ_AHEAD else BlobFile(blobs, file)
    with _damage(file):
        yield from pq.ParquetFile(source, page_checksum_verification=True).iter_batches(batch_size=rows)


def read(blobs: Blobs, file: File, columns: list[str] | None, expression: pc.Expression | None) -> pa.Table:
    """A file's rows. Raise CorruptState with the name of a damaged or missing file."""
    data = _whole(blobs, file)
    with _damage(file):
        parquet = pq.ParquetFile(io.BytesIO(data))
        have = [name for name in parquet.schema_arrow.names if columns is None or name in columns]
        table = parquet.read(columns=have)
    if expression is None:
        return table
    return table.filter(expression)

"""Rows as bytes and back: Arrow IPC streams, compressed with zstd, one for each destination of a record."""

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.logs.reading import Part
from samza_azure.logs.record import Slice
from samza_azure.stream_io.arrow_size import is_flat, unfolded_bytes, unpacked_bytes

#: Rows of flights take 40 to 45 % less than with lz4, for 20 ms of processor time a million to write and read them. A
#: stream says how it is compressed, and releases that write with lz4 read both.
#: Threads of Arrow's own cost more than they spare: buffers are small, and tasks run side by side.
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_BATCH_ROWS = 64 << 10
#: The column that carries the destination of each row to the writer. It is not part of the stream.
DESTINATION = "__samza_azure_destination"
#: What one stream may unpack to: it is in memory, of whoever reads it.
UNPACKED_MAX = 512 << 20
_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_MICROSECONDS = pa.timestamp("us", tz="UTC")


def encode(rows: pa.Table) -> bytes:
    """The rows as one stream, in their order. Raise ConfigError if `decode` would not take them."""
    rows = rows.combine_chunks()
    batches = rows.to_batches(max_chunksize=_BATCH_ROWS)
    # Measuring takes as long as writing a few rows does. Half of the bound is far more than Arrow pads buffers with.
    is_small = all(map(is_flat, rows.schema.types)) and (
        rows.nbytes + rows.num_rows * rows.num_columns <= UNPACKED_MAX // 2
    )
    if not is_small:
        _refuse_more(rows, sum(unfolded_bytes(column) for batch in batches for column in batch.columns))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data = sink.getvalue()
    if not is_small:
        _refuse_more(rows, sum(map(unpacked_bytes, pa.ipc.MessageReader.open_stream(data))))
    return data


def _refuse_more(rows: pa.Table, size: int) -> None:
    if size > UNPACKED_MAX:
        raise ConfigError(
            f"{rows.num_rows} rows of {size:,} bytes for one partition in one record, and {UNPACKED_MAX:,} are "
            "possible. Write fewer rows at once, or divide a row that is so large."
        )


def decode(data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of one stream. Raise ValueError for bytes that `encode` cannot have written.

    Sizes are checked before anything is unpacked, and offsets before anybody follows them: Arrow checks neither. A text
    may have any bytes, as Spark's texts may.
    """
    left = UNPACKED_MAX
    try:
        for message in pa.ipc.MessageReader.open_stream(data):
            if (left := left - unpacked_bytes(message)) < 0:
                raise ValueError(f"the rows unpack to more than {UNPACKED_MAX} bytes")
        left = UNPACKED_MAX
        with pa.ipc.open_stream(data, options=_READ) as stream:
            checked = [_checked_as(field.type) for field in stream.schema]
            for batch in stream:
                for column, kind in zip(batch.columns, checked, strict=True):
                    (column if kind == column.type else column.view(kind)).validate(full=True)
                if batch.num_rows > _BATCH_ROWS:
                    raise ValueError(f"{batch.num_rows} rows in a batch, at most {_BATCH_ROWS} are possible")
                if (left := left - sum(map(unfolded_bytes, batch.columns))) < 0:
                    raise ValueError(f"the rows take more than {UNPACKED_MAX} bytes")
                yield batch
    except (pa.ArrowException, OSError, EOFError, RecursionError, KeyError) as error:
        raise ValueError(f"they are no rows in Arrow's format ({error})") from error


def rows_of(part: Part, data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a slice of a record. Raise CorruptState, with the slice's place, if they are not what it says."""
    rows = 0
    try:
        for batch in decode(data):
            rows += batch.num_rows
            yield batch
        if rows != part.rows:
            raise ValueError(f"there are {rows}, and its record says {part.rows}")
    except ValueError as error:
        at = part.reference
        raise CorruptState(f"The rows cannot be read: {error}", blob=at.blob, position=at.offset) from error


def _checked_as(kind: pa.DataType) -> pa.DataType:
    """The type as which a column is validated: texts may have any bytes. But Arrow's view of a type with a void inside
    of a list gives the void the length of the whole column, so such a column is validated as it is.
    """
    as_bytes = _as_bytes(kind)
    return kind if kind.num_fields and _has_void(kind) else as_bytes


def _has_void(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(_has_void(kind.field(number).type) for number in range(kind.num_fields))


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of texts, at any depth."""
    match kind:
        case pa.TimestampType() if kind.tz is not None:
            pa.lib.string_to_tzinfo(kind.tz)  # raises if there is no such zone: nobody could use the values
        case pa.StructType():
            return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
        case pa.MapType():
            return pa.map_(kind.key_field.with_type(_as_bytes(kind.key_type)), _as_bytes(kind.item_type))
        case pa.ListType():
            return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
        case pa.LargeListType():
            return pa.large_list(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return _BYTES_OF.get(kind, kind)


def tables(batches: Iterable[pa.RecordBatch], at_most: int) -> Iterator[pa.Table]:
    """The rows in tables of about `at_most` bytes, so that no more are in memory at once."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > at_most:
            yield pa.Table.from_batches(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def slices(rows: pa.Table, *, destinations: str | None, event_time: str | None = None) -> list[Slice]:
    """One slice for each destination that has rows, in the order of destinations. Rows keep their order in a slice.

    `destinations` names the integer column with the destination of each row, which is not stored; None: all go to 0.
    """
    if rows.num_rows == 0:
        return []
    if destinations is None:
        return [one_slice(0, rows, event_time)]
    column = rows[destinations]
    rest = rows.drop_columns([destinations])
    present = sorted(pc.unique(column).to_pylist())
    if len(present) == 1:
        return [one_slice(present[0], rest, event_time)]
    return [one_slice(number, rest.filter(pc.equal(column, number)), event_time) for number in present]


def one_slice(destination: int, rows: pa.Table, event_time: str | None = None) -> Slice:
    """A slice of all these rows, for one destination."""
    least_us, greatest_us = (None, None) if event_time is None else event_time_range(rows, event_time)
    return Slice(destination, encode(rows), rows.num_rows, least_us, greatest_us)


def event_time_range(rows: pa.Table, column: str) -> tuple[int | None, int | None]:
    """The least and greatest event time, in microseconds since 1970; None and None without any."""
    extremes = pc.min_max(event_times(rows, column))
    return extremes["min"].as_py(), extremes["max"].as_py()


def event_times(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """The event time of each row, in microseconds since 1970.

    That of a window is its last instant, a microsecond before its end, as in Spark's `window_time`.
    """
    if column not in rows.column_names:
        raise ConfigError(f"There is no event-time column {column!r}. Columns are {', '.join(rows.column_names)}.")
    values = rows[column]
    is_window = pa.types.is_struct(values.type)
    if is_window:
        values = pc.struct_field(values, "end")
    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        raise ConfigError(f"The event-time column {column!r} is {values.type}; it must be a timestamp, date or window.")
    if pa.types.is_timestamp(values.type) and values.type.tz is None:
        values = pc.cast(values, pa.timestamp("us"), safe=False)
    times = pc.cast(pc.cast(values, _MICROSECONDS, safe=False), pa.int64())
    return pc.subtract(times, 1) if is_window else times

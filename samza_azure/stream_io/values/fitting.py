"""Tables of Arrow in the types of a stream: exactly, or refused.

Promised: a value keeps its meaning. A text is read as what it says, times without a zone are in UTC, and `float` and
`double` round to the nearest number that they hold, except Arrow's integers, which they hold exactly. Nothing else is
changed, cut or left out: Arrow's casts take true for 1, 5 for 5 µs after 1970, and the day of a time for a date.

Whether a value of one of Arrow's types is taken does not depend on the rows around it. Of which type a value in JSON is
does: a column with whole numbers and fractions is one of doubles.
"""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError
from samza_azure.stream_io.arrow import event_times
from samza_azure.stream_io.values.refusals import lacking, refusal, unknown_field, without_unit

#: A larger row is refused: a record holds 100 MiB, and may contain other buffered rows.
ROW_BYTES = 64 << 20
#: The number of values that are searched before all are.
SOME = 1_000
#: A time with a zone. A date ends like one.
ZONED = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
#: A date with a time of day that adds nothing, in UTC or without a zone.
_MIDNIGHT = r"^(\S{10})[T ]00(:00(:00(\.0+)?)?)?(Z|[+-]00(:?00)?)?$"
#: A fraction of a second with more digits than microseconds have, which lose nothing.
_LONG_FRACTION = r"(\.\d{6})0+($|\D)"
#: A type for each whole number in a text.
_WHOLE = pa.decimal128(38, 0)


def fitted(rows: pa.Table, schema: pa.Schema, event_time: str | None = None) -> pa.Table:
    """The rows with exactly the columns and types of a schema. Raise ConfigError if they do not fit, or if one lacks
    its event time or what is NOT NULL."""
    missing = [name for name in schema.names if name not in rows.column_names]
    if missing:
        raise lacking(missing, rows.column_names)
    for name in schema.names:
        if rows.column_names.count(name) > 1:
            raise ConfigError(f"The rows have more than one column {name!r}.")
    try:
        fitting = pa.table([_column(rows[each.name], each.type, each.name) for each in schema], schema=schema)
    except pa.ArrowInvalid as error:  # no value alone is at fault
        raise ConfigError(f"They do not fit its schema: {error}") from error
    refuse_untimed(fitting, event_time)
    if (path := part_without_value(fitting)) is not None:
        raise ConfigError(
            f"The column {path!r} is null in a row, and the schema says NOT NULL. Write a value, or leave the row out."
        )
    if (largest := max((piece.nbytes for piece in pieces(fitting, ROW_BYTES)), default=0)) > ROW_BYTES:
        raise ConfigError(f"A row has {largest} bytes. A stream takes rows of at most {ROW_BYTES} bytes.")
    return fitting


def refuse_untimed(rows: pa.Table, event_time: str | None) -> None:
    """Raise ConfigError if a row has no event time."""
    if event_time is not None and event_times(rows, event_time).null_count:
        raise ConfigError(
            f"The column {event_time!r} is null in a row, and it is the event time, which each row needs. Write a "
            "time, or leave the row out."
        )


def part_without_value(rows: pa.Table) -> str | None:
    """The first column, or part of one, that is null in a row although its schema says NOT NULL."""
    parts = (_lacking_parts(values, each, each.name) for each, values in zip(rows.schema, rows.columns, strict=True))
    return next(chain.from_iterable(parts), None)


def _lacking_parts(values: pa.ChunkedArray, field: pa.Field, path: str, allowed: int = 0) -> Iterator[str]:
    """The column, or the parts of it, that are NOT NULL and have more nulls than allowed: a field, those of its
    struct."""
    if not field.nullable and values.null_count > allowed:
        yield path
    kind = field.type
    if pa.types.is_struct(kind):
        for number, inner in enumerate(kind):
            part = pc.struct_field(values, [number])
            yield from _lacking_parts(part, inner, f"{path}.{inner.name}", allowed=values.null_count)
    elif pa.types.is_list(kind) and kind.value_type.num_fields:
        yield from _lacking_parts(pc.list_flatten(values), kind.value_field, f"{path}.element")


def pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The rows in order, in pieces of at most `most_bytes`; a larger row is a piece of its own."""
    if rows.num_rows <= 1 or rows.nbytes <= most_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from pieces(rows.slice(0, half), most_bytes)
    yield from pieces(rows.slice(half), most_bytes)


def _column(values: pa.ChunkedArray, kind: pa.DataType, path: str) -> pa.ChunkedArray:
    if values.type == kind:
        return values
    return pa.chunked_array([_fit(chunk, kind, path) for chunk in values.chunks], kind)


def _fit(values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The values in a type. An array that has no values has none in any type."""
    values = decoded(values)
    if values.type == kind:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        return _structs(values, kind, path)
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        keys, items = (each.slice(first, last - first) for each in (values.keys, values.items))
        return pa.MapArray.from_arrays(
            pc.subtract(values.offsets, first),
            _fit(keys, kind.key_type, f"{path}.key"),
            _fit(items, kind.item_type, f"{path}.value"),
            kind,
            mask=values.is_null(),
        )
    if pa.types.is_list(kind) and is_list(values.type):
        # The offsets of a slice, and of lists that are null, point to values that are not in it.
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(values), 0).cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        elements = _fit(values.flatten(), kind.value_type, f"{path}.element")
        return pa.ListArray.from_arrays(offsets, elements, kind, mask=values.is_null())
    try:
        return _converted(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        value = _first_refused(values, kind)
        if pa.types.is_integer(values.type) and pa.types.is_temporal(kind):
            raise without_unit(path, _shown(value)) from None
        raise refusal(path, kind, _shown(value)) from None


def decoded(values: pa.Array) -> pa.Array:
    """The values in the type that they have for people: layouts are for machines."""
    if isinstance(values, pa.ExtensionArray):
        return decoded(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return decoded(values.dictionary_decode())
    if isinstance(values, pa.RunEndEncodedArray):
        return decoded(pc.run_end_decode(values))
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    if _has_layout_of_bytes(values.type):
        return values.cast(pa.binary())
    return values


def _has_layout_of_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is an array of elements, in whatever layout."""
    layouts = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    return isinstance(kind, layouts)


def _structs(values: pa.StructArray, kind: pa.StructType, path: str) -> pa.StructArray:
    """Structs with the fields of the stream. One that is missing is null, as a column of JSON lines in some rows is."""
    names = [field.name for field in values.type]
    given = dict(zip(names, values.flatten(), strict=True))
    for name, inside in given.items():
        if names.count(name) > 1:
            raise ConfigError(f"The column {path!r} has more than one field {name!r}.")
        if kind.get_field_index(name) < 0 and inside.null_count < len(inside):
            raise unknown_field(f"{path}.{name}", _shown(inside.drop_null()[0]))
    fields = []
    for field in kind:
        if field.name not in given and not field.nullable:
            raise ConfigError(f"The field '{path}.{field.name}' is missing, and must not be null.")
        missing = pa.nulls(len(values), field.type)
        fields.append(_fit(given.get(field.name, missing), field.type, f"{path}.{field.name}"))
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values that have no parts, in a type. Raise an error of Arrow's for one that the type does not hold."""
    given, types = values.type, pa.types
    if types.is_string(given):
        return _read(values, kind)
    is_number = types.is_integer(given) or types.is_floating(given) or types.is_decimal(given)
    if is_number and types.is_decimal(kind):
        # Arrow would cast the bits of a double: 0.1 becomes 0.10000000000000000555. It casts whole numbers only to
        # decimals that have room for all of them.
        if types.is_decimal(given):
            return values.cast(kind)
        return values.cast(pa.string() if types.is_floating(given) else _WHOLE).cast(kind)
    if is_number and types.is_floating(kind):
        if types.is_decimal(given):  # Arrow divides two doubles: 189.70 becomes 189.70000000000002
            values = values.cast(pa.string())
        return _finite(values.cast(kind), None if types.is_integer(given) else values)
    if is_number and types.is_integer(kind):
        return values.cast(kind)
    if types.is_date(given) and (types.is_date(kind) or types.is_timestamp(kind)):
        return values.cast(kind)
    if types.is_timestamp(given) and types.is_timestamp(kind):
        return values.cast(kind)
    if types.is_timestamp(given) and types.is_date(kind) and given.tz in (None, "UTC"):
        return _if_same(values.cast(kind), values)
    if types.is_string(kind) and (types.is_integer(given) or types.is_decimal(given) or types.is_date(given)):
        return _if_same(values.cast(kind), values)
    of_one_kind = (types.is_duration, types.is_time, _is_text_or_bytes)
    if any(is_kind(given) and is_kind(kind) for is_kind in of_one_kind):
        return values.cast(kind)
    raise pa.ArrowInvalid(f"{given} is not {kind}")


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    """Texts and bytes become each other, as UTF-8."""
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _if_same(cast: pa.Array, values: pa.Array) -> pa.Array:
    """The values after a cast that may cut them."""
    if not cast.cast(values.type).equals(values):
        raise pa.ArrowInvalid("The cast changes a value.")
    return cast


def _finite(cast: pa.Array, values: pa.Array | None) -> pa.Array:
    """The numbers after a cast that makes great ones infinite."""
    is_infinite = pc.is_inf(cast)
    if values is not None and pc.any(is_infinite).as_py():
        is_text = pa.types.is_string(values.type)
        meant = pc.match_substring(values, "inf", ignore_case=True) if is_text else pc.is_inf(values)
        if not pc.all(pc.or_(pc.invert(is_infinite), meant)).as_py():
            raise pa.ArrowInvalid("A number is too great.")
    return cast


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """What texts say."""
    if pa.types.is_integer(kind):
        try:
            if not any(pc.any(pc.starts_with(texts, each)).as_py() for each in ("0x", "0X")):
                return texts.cast(kind)  # which takes 0x1F for 31, and 0xFF in 8 bits for -1
        except pa.ArrowInvalid:  # 1.0 and 1e3 are whole numbers, too
            pass
        return texts.cast(_WHOLE).cast(kind)
    if pa.types.is_floating(kind):
        return _finite(texts.cast(kind), texts)
    if pa.types.is_timestamp(kind):
        return _times(texts, kind)
    if pa.types.is_date(kind):
        return pc.replace_substring_regex(texts, _MIDNIGHT, r"\1").cast(kind)
    return texts.cast(kind)


def _times(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Times of which some may have a zone; the others are in UTC."""
    utc, local = pa.timestamp(kind.unit, "UTC"), pa.timestamp(kind.unit)
    some = pc.match_substring_regex(texts.slice(0, SOME), ZONED)
    if pc.any(some) == pc.all(some):  # usually all are alike; searching all values takes longer than the cast
        try:
            return texts.cast(utc if pc.any(some).as_py() else local).cast(utc).cast(kind)
        except pa.ArrowInvalid:
            pass
    texts = pc.replace_substring_regex(texts, _LONG_FRACTION, r"\1\2")
    zoned = pc.match_substring_regex(texts, ZONED)
    times = pc.if_else(zoned, None, texts).cast(local).cast(utc)
    return pc.coalesce(pc.if_else(zoned, texts, None).cast(utc), times).cast(kind)


def _first_refused(values: pa.Array, kind: pa.DataType) -> pa.Scalar:
    """The first value that the type does not hold, found by bisection."""
    values = values.drop_null()
    while len(values) > 1:
        half = len(values) // 2
        try:
            _converted(values.slice(0, half), kind)
            values = values.slice(half)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            values = values.slice(0, half)
    return values[0]


def _shown(value: pa.Scalar) -> str:
    """A value with its type; that of a text is plain."""
    try:
        known = value.as_py()
        return f"{known!r:.80}" if isinstance(known, str) else f"{known!s:.80} ({value.type})"
    except (ValueError, OverflowError):  # beyond the years of Python
        plain = value.cast(pa.timestamp(value.type.unit)) if pa.types.is_timestamp(value.type) else value
        return f"{plain.cast(pa.string())} ({value.type})"  # with a zone Arrow shows another year

"""The rows that a handler has sent, as a table with the columns of its stream.

Promised: a column holds exactly what was sent, rounded only to the precision of `float`; otherwise `NotHeld` says what
to send. Arrow refuses many values, but not all: it cuts 1.9 to 1, takes True for 1.0, an int for microseconds and a
text for an array of letters, and leaves out unknown fields and the zone of a time. `_keeps` looks for those.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import c_float
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa

from samza_azure.stream_io.values.fitting import part_without_value
from samza_azure.stream_io.values.refusals import why_not_sent

#: The relative precision of a `float`, and the absolute one near zero.
FLOAT_PRECISION, LEAST_FLOAT = 2**-23, 2**-149

#: What numpy calls a type, for arrays that need no look at each of their elements.
NUMPY = {
    pa.float32(): "float32",
    pa.float64(): "float64",
    **{kind: str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
}

_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class NotHeld(Exception):
    """A value that its column does not hold."""

    def __init__(self, row: int, path: str, value: object, reason: str) -> None:
        super().__init__(f"{value!r:.80} as {path}, {reason}")
        self.row = row


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Convert rows that have the columns of the schema. Raise `NotHeld` for the first value that would be changed, or
    that is null where the schema has no nulls."""
    table = _converted(rows, schema)
    if (path := part_without_value(table)) is not None:
        row = next(number for number in range(len(rows)) if part_without_value(table.slice(number, 1)) == path)
        needed = "which is the stream's event time, or NOT NULL in its schema. Send a value, or no row."
        raise NotHeld(row, path, None, needed)
    return table


def _converted(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    try:
        # Tested before Arrow sees them: Arrow 26 aborts the process for a map with the entry None.
        tests = [(column.name, test) for column in schema if (test := _keeps(column.type))]
        if all(test(row[name]) for name, test in tests for row in rows):
            return pa.Table.from_pylist(rows, schema=schema)
    except _REFUSALS:
        _look(rows, schema)
        raise  # no value alone is at fault
    _look(rows, schema)
    raise AssertionError("A value that was not kept is kept now.")


Test = Callable[[Any], bool]


@lru_cache(maxsize=1024)
def _keeps(kind: pa.DataType) -> Test | None:
    """A test whether a column of this type has a value unchanged, if Arrow accepts it. None: it has.

    Texts and bytes become each other, as UTF-8.
    """
    test = _test(kind)
    return None if test is None else lambda sent: sent is None or test(sent)


def _each(kind: pa.DataType) -> Callable[[Iterable[Any]], bool]:
    """A test of several values of a type."""
    test = _keeps(kind)
    return (lambda _: True) if test is None else lambda sent: all(map(test, sent))


def _test(kind: pa.DataType) -> Test | None:
    match kind:
        case pa.StructType():
            fields = {field.name: _each(field.type) for field in kind}
            return lambda sent: all(
                name in fields and fields[name]([value]) for name, value in _named(sent, fields).items()
            )
        case pa.MapType():
            are_keys, are_values = _each(kind.key_type), _each(kind.item_type)
            return lambda sent: all(are_keys([key]) and are_values([value]) for key, value in _elements(sent))
        case pa.ListType():
            are_elements, name = _each(kind.value_type), NUMPY.get(kind.value_type)
            return lambda sent: _is_array_of(name, sent) or are_elements(_elements(sent))
        case pa.TimestampType() if kind.tz is not None:  # without a zone it is a time of UTC, as Python is
            return lambda sent: isinstance(sent, datetime) and not _nanoseconds(sent)
        case pa.TimestampType():
            return lambda sent: isinstance(sent, datetime) and sent.tzinfo is None and not _nanoseconds(sent)
        case pa.DurationType():
            return lambda sent: isinstance(sent, timedelta) and not _nanoseconds(sent)
    if pa.types.is_integer(kind):
        return lambda sent: type(sent) is int or (sent == int(sent) and not type(sent).__name__.startswith("bool"))
    if pa.types.is_date(kind):
        return lambda sent: isinstance(sent, date) and not isinstance(sent, datetime)
    if pa.types.is_float32(kind):
        return lambda sent: (
            type(sent) is not bool
            and (
                math.isnan(sent)
                or math.isclose(sent, c_float(sent).value, rel_tol=FLOAT_PRECISION, abs_tol=LEAST_FLOAT)
            )
        )
    if pa.types.is_floating(kind):
        return lambda sent: type(sent) is not bool
    return None


def _named(sent: Any, names: Iterable[str]) -> Mapping[Any, Any]:
    """The fields of a struct, however it was written."""
    if isinstance(sent, tuple):
        named = getattr(sent, "_fields", None) or getattr(sent, "__fields__", None)  # of a namedtuple; of a Row
        if named is not None and list(named) != list(names):
            raise ValueError("Arrow takes its values by their positions.")
        return dict(zip(names, sent, strict=True))
    return sent if isinstance(sent, Mapping) else dict(sent)


def _elements(sent: Any) -> Iterable[Any]:
    """The elements of an array, or the entries of a map, however it was written."""
    if isinstance(sent, str | bytes | bytearray | memoryview):
        raise TypeError("Arrow takes it for an array of its letters or bytes.")
    if hasattr(sent, "iloc"):
        raise TypeError("Arrow takes the elements of a Series by their labels.")
    if hasattr(sent, "mask"):
        raise TypeError("Arrow takes the elements of an array without its mask.")
    return sent.items() if isinstance(sent, Mapping) else sent


def _is_array_of(name: str | None, sent: Any) -> bool:
    """Whether this is an array of numpy with elements of this type."""
    return name is not None and type(sent).__name__ == "ndarray" and str(sent.dtype) == name


def _nanoseconds(sent: datetime | timedelta) -> int:
    """What a time of pandas has beyond microseconds."""
    return getattr(sent, "nanosecond", 0) or getattr(sent, "nanoseconds", 0)


def _look(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Raise `NotHeld` for the first value that its column does not hold."""
    for number, row in enumerate(rows):
        for column in schema:
            for path, value, kind in _not_held(column.name, row[column.name], column.type):
                raise NotHeld(number, path, value, why_not_sent(kind))


Place = tuple[str, Any, pa.DataType | None]  # path, value, and type; a field without a type is unknown


def _not_held(path: str, sent: Any, kind: pa.DataType | None) -> Iterator[Place]:
    """What is not held in this value, the innermost first, and the value itself."""
    if kind is None:
        yield path, sent, kind
        return
    try:
        for inner in _inside(path, sent, kind):
            yield from _not_held(*inner)
        if _each(kind)([sent]):
            pa.array([sent], kind)
            return
    except _REFUSALS:
        pass
    yield path, sent, kind


def _inside(path: str, sent: Any, kind: pa.DataType) -> Iterator[Place]:
    if sent is None:
        return
    match kind:
        case pa.StructType():
            types = {field.name: field.type for field in kind}
            for name, value in _named(sent, types).items():
                yield f"{path}.{name}", value, types.get(name)
        case pa.MapType():
            for key, value in _elements(sent):
                yield f"{path}.key", key, kind.key_type
                yield f"{path}.value", value, kind.item_type
        case pa.ListType():
            for each in _elements(sent):
                yield f"{path}.element", each, kind.value_type

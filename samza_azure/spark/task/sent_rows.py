"""The rows that a handler has sent, as a table with the columns of its stream.

Promised: a column holds exactly what was sent, rounded only to the precision of `float`; otherwise `NotHeld` says what
to send. Arrow refuses many values, but not all: it cuts 1.9 to 1, takes an int for microseconds and a text for an array
of letters, and leaves out unknown fields and the zone of a time. `_keeps` looks for those.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import c_float
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa

from samza_azure.spark.pipeline.schema import type_name

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

    def __init__(self, row: int, path: str, value: object, kind: pa.DataType | None) -> None:
        if kind is None:
            what, advice = "which the schema does not have", "Leave it out, or add it to"
        else:
            what, advice = f"whose type is {type_name(kind)}", f"Send {_advice(kind)}, or change the type in"
        super().__init__(f"{value!r:.80} as {path}, {what}. {advice} the stream's schema.")
        self.row = row


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Convert rows that have the columns of the schema. Raise `NotHeld` for the first value that would be changed."""
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
        return lambda sent: type(sent) is int or bool(sent == int(sent))
    if pa.types.is_date(kind):
        return lambda sent: isinstance(sent, date) and not isinstance(sent, datetime)
    if pa.types.is_float32(kind):
        return lambda sent: (
            math.isnan(sent) or math.isclose(sent, c_float(sent).value, rel_tol=FLOAT_PRECISION, abs_tol=LEAST_FLOAT)
        )
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
            for found in _not_held(column.name, row[column.name], column.type):
                raise NotHeld(number, *found)


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


def _advice(kind: pa.DataType) -> str:
    """What a handler has to send for a column of this type."""
    match kind:
        case pa.StructType():
            return f"a dict with the fields {', '.join(field.name for field in kind) or '(none)'}"
        case pa.MapType():
            return "a dict without None as a key"
        case pa.ListType():
            return "a list"
        case pa.TimestampType() if kind.tz is not None:
            return "a datetime, such as datetime.fromtimestamp(seconds, UTC)"
        case pa.TimestampType():
            return "a datetime without a zone: value.replace(tzinfo=None), in the zone that is meant"
        case pa.DurationType():
            return "a timedelta"
        case pa.Decimal128Type():
            return f"an int or a Decimal with at most {kind.precision} digits, {kind.scale} of them after the point"
    return next((advice for is_kind, advice in _ADVICE if is_kind(kind)), "a value of this type")


_ADVICE = (
    (pa.types.is_integer, "a whole number within its range, such as round(value)"),
    (pa.types.is_floating, "a number within its range and precision: float(value)"),
    (pa.types.is_date, "a date, value.date() of a datetime"),
    (pa.types.is_string, "a text that UTF-8 can represent"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_boolean, "True or False: bool(value)"),
)

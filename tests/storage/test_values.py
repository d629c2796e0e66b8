"""Rows in the types of a stream: exactly, or not at all. Of Arrow's types each value is converted a second time, by
Python alone; the edges are compared with what a handler may send, and what a line of JSON may say."""

import datetime as dt
import itertools
import json
import math
import struct
from decimal import Context, Decimal
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from samza_azure.commands.row_files import RowsBefore, json_rows
from samza_azure.errors import ConfigError
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.stream_io.values.sent import NotHeld, table_of

MIDNIGHT = dt.time()
NUMBERS = [0, 1, -1, 7, 127, 128, -129, 2**15, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 10**8]
FRACTIONS = [0.0, -0.0, 1.0, 0.1, 0.125, 0.25, 1e3, 1e300, -1e300, 2.0**63, -(2.0**63), math.nan, math.inf, 189.7]
WORDS = [
    "7", "007", "1.0", "1e3", "1.5", "0.125", "-0.25", "9007199254740993", "1e300", "1e400", "inf", "-Infinity", "nan",
    "true", "false", "x", "", "0x1F", "0xFF", "0", "1", "2013-01-31", "2013-01-31 00:00:00", "2013-01-31T00:00:00Z",
    "2013-01-31T23:30:00-05:00", "2013-01-31T19:00:00-05:00", "2013-01-31 00:00:00+01:00", "2013-01-31 05:00:00.123456",
    "2013-01-31 05:00:00.1234567", "2013-01-31 05:00:00.123456000", "1357016400",
    "2013-01-31 23:30:00",
]  # fmt: skip
TIMES = [
    dt.datetime.fromisoformat(text)
    for text in ("2013-01-31 12:00", "2013-01-31", "1970-01-01", "1969-12-31 23:59:59", "9999-12-31")
]
ZONED = [each.replace(tzinfo=dt.UTC) for each in TIMES]
BYTES = [b"", b"7", b"\xff", b"x"]
DATES = [dt.date(2013, 1, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)]

#: Arrow's types, with values of which each that the type has is tried.
GIVEN: dict[pa.DataType, list[Any]] = {
    **dict.fromkeys(
        (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), NUMBERS
    ),
    **dict.fromkeys((pa.float32(), pa.float64()), FRACTIONS),
    pa.decimal128(10, 2): [Decimal("0.25"), Decimal("7.00"), Decimal("-0.10"), Decimal("99999999.99")],
    pa.decimal128(38, 3): [Decimal("0.125"), Decimal(10) ** 34, Decimal("189.700"), Decimal(2**63)],
    pa.decimal256(60, 0): [Decimal(10) ** 50, Decimal(7)],
    pa.bool_(): [True, False],
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())), WORDS),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), BYTES),
    pa.binary(1): [b"7", b"\xff"],
    **dict.fromkeys((pa.date32(), pa.date64()), DATES),
    **dict.fromkeys((pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")), TIMES),
    **dict.fromkeys((pa.timestamp("us", "UTC"), pa.timestamp("ms", "America/New_York")), ZONED),
    pa.duration("us"): [dt.timedelta(seconds=5), dt.timedelta()],
    pa.time64("us"): [dt.time(5), dt.time(0)],
    pa.time32("s"): [dt.time(5)],
}
KINDS = arrow_schema(
    "tiny tinyint, small smallint, n int, long bigint, f float, d double, price decimal(10,2), wide decimal(38,3), "
    "flag boolean, word string, raw binary, day date, at timestamp, local timestamp_ntz"
).types


class Unheld(Exception):
    """Python knows no such conversion."""


def by_python(value: Any, given: pa.DataType, kind: pa.DataType) -> Any:
    """The value as a column of this type has it, without Arrow; or raise."""
    number = type(value) in (int, float, Decimal)
    if isinstance(value, str) and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        value, number = Decimal(value), True
    if pa.types.is_integer(kind) and number and value == int(value):
        if -(2 ** (kind.bit_width - 1)) <= int(value) < 2 ** (kind.bit_width - 1):
            return int(value)
    elif pa.types.is_decimal(kind) and number:
        exact = Decimal(_shortest(value) if pa.types.is_float32(given) else str(value))
        if exact == exact.quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=60)) and abs(exact) < Decimal(
            10
        ) ** (kind.precision - kind.scale):
            return exact
    elif pa.types.is_floating(kind) and (number or isinstance(value, str)):
        if type(value) is int and abs(value) > 2 ** (53 if pa.types.is_float64(kind) else 24):
            raise Unheld  # the next one would round
        near = float(value)
        near = near if pa.types.is_float64(kind) else struct.unpack("f", struct.pack("f", near))[0]
        if math.isinf(near) and "inf" not in str(value).lower():
            raise Unheld
        return near
    elif pa.types.is_boolean(kind) and isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}[value]
    elif pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    elif pa.types.is_string(kind) and type(value) in (str, int, dt.date, Decimal):
        return str(value)
    elif pa.types.is_string(kind) and isinstance(value, bytes):
        return value.decode()
    elif pa.types.is_binary(kind) and isinstance(value, str | bytes):
        return value if isinstance(value, bytes) else value.encode()
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _time_by_python(value, kind)
    raise Unheld


def _shortest(value: float) -> str:
    """The text with the fewest digits that is this `float`."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if struct.pack("f", float(text)) == struct.pack("f", value))


def _time_by_python(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        if len(value) < 10 or value.isdigit() or len(value.partition(".")[2].rstrip("0")) > 6:
            raise Unheld
        value = dt.datetime.fromisoformat(value)
    if type(value) is dt.date:
        value = dt.datetime.combine(value, MIDNIGHT)
    if not isinstance(value, dt.datetime):
        raise Unheld
    if pa.types.is_date(kind):
        if value.time() != MIDNIGHT or value.utcoffset() not in (None, dt.timedelta()):
            raise Unheld
        return value.date()
    value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    return value if kind.tz else value.replace(tzinfo=None)


def given_arrays() -> list[tuple[pa.Array, list[Any]]]:
    """For each type of Arrow an array of the values that it has, and these as Python has them."""
    found = []
    for kind, values in GIVEN.items():
        held = []
        for value in values:
            try:
                held.append(pa.array([value], kind))
            except (pa.ArrowInvalid, OverflowError):
                continue
        array = pa.concat_arrays(held) if not pa.types.is_dictionary(kind) else pa.array(values).dictionary_encode()
        found.append(
            (array, [value.to_pydatetime() if hasattr(value, "nanosecond") else value for value in array.to_pylist()])
        )
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Equal, also if both are NaN; 0.0 and -0.0 differ."""
    return type(ours) is type(theirs) and (
        repr(ours) == repr(theirs) or (ours == theirs and not isinstance(ours, float))
    )


def column(array: pa.Array, kind: pa.DataType) -> list[Any] | None:
    """What the column of a stream then has; None: refused."""
    try:
        return list(fitted(pa.table({"a": array}), pa.schema({"a": kind}))["a"].to_pylist())
    except ConfigError:
        return None


CASES = list(itertools.product(given_arrays(), KINDS))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_is_stored_as_it_is_or_refused(kind: pa.DataType) -> None:
    """Each type of Arrow, each value, alone."""
    wrong = []
    for array, values in given_arrays():
        for number, value in enumerate(values):
            found = column(array.slice(number, 1), kind)
            try:
                expected = [by_python(value, array.type, kind)]
            except (Unheld, ArithmeticError, ValueError, KeyError, OverflowError):
                expected = None
            if found is not None and (expected is None or not same(found[0], expected[0])):
                wrong.append(f"{value!r} of {array.type} became {found[0]!r}, which is not {expected}")
            if found is None and expected is not None:
                wrong.append(f"{value!r} of {array.type} is refused, and is {expected[0]!r}")
    assert wrong == []


@pytest.mark.parametrize("shape", ["list", "fixed list", "view", "struct", "map", "list of structs"])
def test_values_within_others_are_stored_as_those_of_a_column_are(shape: str) -> None:
    """Drawn arrays with nulls, from the middle of larger ones: all is stored, or something in it cannot be."""
    draw, stored = Random(shape), 0
    for (array, values), kind in draw.sample(CASES, 250):
        alone = {number: column(array.slice(number, 1), kind) for number in range(len(values))}
        good = [number for number, each in alone.items() if each is not None] or [0]
        chosen = [draw.choice([*(good * 8), draw.randrange(len(values)), None]) for _ in range(5)]
        flat = pa.array([None if number is None else values[number] for number in chosen], array.type)
        given, target = wrapped(shape, flat, flat.type), wrapped_kind(shape, kind)
        found = column(given.slice(1), target)
        inside = [number for number in chosen[1:] if number is not None]
        if any(alone[number] is None for number in inside):
            assert found is None, f"{given} became {found}"
            continue
        as_kind = pa.array([(alone[number] or [None])[0] if number is not None else None for number in chosen], kind)
        expected = wrapped(shape, as_kind, kind).slice(1).to_pylist()
        assert repr(found) == repr(expected)
        stored += 1
    assert stored > 30


def wrapped(shape: str, flat: pa.Array, kind: pa.DataType) -> pa.Array:
    """One value in each row, in something around it."""
    offsets = pa.array(range(len(flat) + 1), pa.int32())
    match shape:
        case "list":
            return pa.ListArray.from_arrays(offsets, flat)
        case "fixed list":
            return pa.FixedSizeListArray.from_arrays(flat, 1)
        case "view":
            return pa.ListViewArray.from_arrays(offsets[:-1], pa.array([1] * len(flat), pa.int32()), flat)
        case "struct":
            return pa.StructArray.from_arrays([flat], names=["s"])
        case "map":
            return pa.MapArray.from_arrays(offsets, pa.array(["k"] * len(flat)), flat)
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([flat], names=["s"]))


def wrapped_kind(shape: str, kind: pa.DataType) -> pa.DataType:
    match shape:
        case "struct":
            return pa.struct({"s": kind})
        case "map":
            return pa.map_(pa.string(), kind)
        case "list of structs":
            return pa.list_(pa.struct({"s": kind}))
    return pa.list_(kind)


SECOND = pa.array([5], pa.timestamp("s"))


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (pa.array([0.25, 0.125]), "decimal(10,2)", "'a' is decimal(10,2), which cannot hold 0.125 (double)"),
        (SECOND, "bigint", "'a' is bigint, which cannot hold 1970-01-01 00:00:05 (timestamp[s])"),
        (SECOND, "date", "'a' is date, which cannot hold 1970-01-01 00:00:05 (timestamp[s])"),
        (pa.array([True]), "int", "'a' is int, which cannot hold True (bool). Write a whole number"),
        (pa.array([7]), "boolean", "'a' is boolean, which cannot hold 7 (int64). Write true or false."),
        (
            pa.array([5]),
            "timestamp",
            "'a' holds numbers, and their unit of time is unknown: 5 (int64). Write timestamps",
        ),
        (pa.array([5], pa.int32()), "date", "'a' holds numbers, and their unit of time is unknown: 5 (int32)"),
        (pa.array([1.5]), "string", "'a' is string, which cannot hold 1.5 (double). Write a text."),
        (pa.array(["1e400"]), "double", "'a' is double, which cannot hold '1e400'."),
        (
            pa.array([{"b": [{"c": None}]}, {"b": [{"c": 1.0}, {"c": 1.5}]}]),
            "struct<b: array<struct<c: bigint>>>",
            "'a.b.element.c' is bigint, which cannot hold 1.5 (double)",
        ),
        (
            pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int64())),
            "map<string, timestamp>",
            "'a.value' holds numbers, and their unit of time is unknown",
        ),
        (
            pa.array([{"b": 1, "x": None}, {"b": 2, "x": 7}]),
            "struct<b: bigint>",
            "The field 'a.x' is 7 (int64), and the stream",
        ),
        (pa.array([{"b": 1}]), "map<string, bigint>", "'a' is map<string,bigint>, which cannot hold {'b': 1}"),
        (pa.array(["ab"]), "array<string>", "'a' is array<string>, which cannot hold 'ab'. Write a list."),
        (pa.array([2**31 - 1], pa.date32()), "timestamp", "which cannot hold <value out of range: 2147483647>"),
    ],
    ids=str,
)
def test_a_refusal_names_the_place_the_value_its_type_and_what_to_write(given: pa.Array, kind: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        fitted(pa.table({"a": given}), arrow_schema(f"a {kind}"))
    assert said in str(refused.value)


def test_a_field_that_is_missing_or_null_everywhere_is_null() -> None:
    schema = arrow_schema("a struct<b: bigint, c: string>, n array<int>")
    rows = pa.table({"a": pa.array([{"b": 1, "x": None}, None]), "n": pa.nulls(2)})
    assert fitted(rows, schema).to_pylist() == [{"a": {"b": 1, "c": None}, "n": None}, {"a": None, "n": None}]
    with pytest.raises(ConfigError, match=r"The field 'a\.c' is missing, and must not be null"):
        fitted(rows, arrow_schema("a struct<b: bigint, c: string not null>"))


REFUSED, SAME = "refused", "same"
NANOSECONDS, NOT_A_TIME = pd.Timestamp(5), pd.NaT
NOON = dt.datetime(2013, 1, 31, 12, tzinfo=dt.UTC)
NEW_YORK = NOON.astimezone(dt.timezone(dt.timedelta(hours=-5)))


@pytest.mark.parametrize(
    ("kind", "value", "in_table", "sent", "in_json"),
    [
        # Digits: what a decimal has no room for is refused, never rounded. A handler's `float` is no exact number.
        ("decimal(10,2)", Decimal("99999999.99"), SAME, SAME, SAME),
        ("decimal(10,2)", Decimal("0.125"), REFUSED, REFUSED, REFUSED),
        ("decimal(10,2)", Decimal(10) ** 8, REFUSED, REFUSED, REFUSED),
        ("decimal(10,2)", 0.1, Decimal("0.10"), REFUSED, Decimal("0.10")),
        ("decimal(10,2)", math.nan, REFUSED, REFUSED, REFUSED),
        # The range of whole numbers.
        ("tinyint", 127, SAME, SAME, SAME),
        ("tinyint", 128, REFUSED, REFUSED, REFUSED),
        ("bigint", 2**63 - 1, SAME, SAME, SAME),
        ("bigint", -(2**63), SAME, SAME, SAME),
        ("bigint", 2**63, REFUSED, REFUSED, REFUSED),
        # From float to int and back.
        ("bigint", 2.0, 2, 2, 2),
        ("bigint", 1.5, REFUSED, REFUSED, REFUSED),
        ("bigint", math.nan, REFUSED, REFUSED, REFUSED),
        ("bigint", math.inf, REFUSED, REFUSED, REFUSED),
        ("double", 2**53, float(2**53), float(2**53), float(2**53)),
        ("double", 2**53 + 1, REFUSED, REFUSED, REFUSED),
        ("float", 1e300, REFUSED, REFUSED, REFUSED),
        ("double", math.inf, SAME, SAME, SAME),
        ("double", math.nan, SAME, SAME, SAME),
        # Times: a text and a value of Arrow's count as what they say, a handler's value also by its type.
        ("timestamp", NOON, SAME, SAME, SAME),
        ("timestamp", NEW_YORK, NOON, NOON, NOON),
        ("timestamp", NOON.replace(tzinfo=None), NOON, NOON, NOON),
        ("timestamp_ntz", NEW_YORK, NOON.replace(tzinfo=None), REFUSED, NOON.replace(tzinfo=None)),
        ("timestamp", NANOSECONDS, REFUSED, REFUSED, REFUSED),
        ("timestamp", NOT_A_TIME, None, REFUSED, REFUSED),
        ("timestamp", 5, REFUSED, REFUSED, REFUSED),
        ("timestamp", NOON.date(), NOON.replace(hour=0), REFUSED, NOON.replace(hour=0)),
        ("date", NOON.replace(hour=0, tzinfo=None), NOON.date(), REFUSED, NOON.date()),
        ("date", NOON, REFUSED, REFUSED, REFUSED),
        # Texts: a handler's text is no number. A number is no text, but a whole one in a table, whose digits are known.
        ("bigint", "7", 7, REFUSED, 7),
        ("string", 7, "7", REFUSED, REFUSED),
        ("string", 1.5, REFUSED, REFUSED, REFUSED),
        ("boolean", 1, REFUSED, REFUSED, REFUSED),
        ("bigint", True, REFUSED, REFUSED, REFUSED),
        ("float", True, REFUSED, REFUSED, REFUSED),
        ("array<double>", [True], REFUSED, REFUSED, REFUSED),
        # Null, where there is none.
        ("bigint", None, SAME, SAME, SAME),
        ("bigint not null", None, REFUSED, REFUSED, REFUSED),
        ("struct<b: bigint not null>", {"b": None}, REFUSED, REFUSED, REFUSED),
        ("struct<b: bigint not null>", None, SAME, SAME, SAME),
        ("array<struct<b: bigint not null>>", [{"b": 1}, {"b": None}], REFUSED, REFUSED, REFUSED),
        # Within others as alone.
        ("array<decimal(10,2)>", [Decimal("0.25"), Decimal("0.125")], REFUSED, REFUSED, REFUSED),
        ("array<tinyint>", [127, None], SAME, SAME, SAME),
        ("struct<b: bigint>", {"b": 1.5}, REFUSED, REFUSED, REFUSED),
        ("struct<b: bigint>", {"b": 1, "c": 2}, REFUSED, REFUSED, REFUSED),
        ("struct<b: bigint, c: string>", {"b": 1}, {"b": 1, "c": None}, {"b": 1, "c": None}, {"b": 1, "c": None}),
        ("map<string, tinyint>", {"k": 128}, REFUSED, REFUSED, REFUSED),
    ],
    ids=str,
)
def test_the_edges_of_values_in_tables_from_handlers_and_in_json(
    kind: str, value: Any, in_table: Any, sent: Any, in_json: Any
) -> None:
    """Wherever two forms differ, one knows more of what is meant."""
    schema = arrow_schema(f"a {kind}")
    line = json.dumps({"a": float(value) if isinstance(value, Decimal) else value}, default=str).encode() + b"\n"
    forms = {
        "in a table": (lambda: fitted(pa.table({"a": in_arrow(value, kind)}), schema), in_table),
        "sent": (lambda: table_of([{"a": value}], schema), sent),
        "in JSON": (lambda: fitted(json_rows(line, schema, None, RowsBefore()), schema), in_json),
    }
    for form, (convert, expected) in forms.items():
        try:
            found = convert()["a"].to_pylist()[0]
        except (ConfigError, NotHeld):
            found = REFUSED
        assert same(found, value if expected is SAME else expected), f"{form}: {found!r}"


def test_a_truth_of_numpy_is_no_number() -> None:
    for kind in ("bigint", "float", "double", "decimal(5,2)"):
        with pytest.raises(NotHeld):
            table_of([{"a": np.True_}], arrow_schema(f"a {kind}"))


def in_arrow(value: Any, kind: str) -> pa.Array:
    """The value in the type that a table would have for it."""
    if value is NANOSECONDS or value is NOT_A_TIME:
        return pa.array(np.array([value.to_datetime64()]), pa.timestamp("ns"))
    if kind.startswith("map"):
        return pa.array([list(value.items())], pa.map_(pa.string(), pa.int64()))
    return pa.array([value], pa.uint64() if value == 2**63 else None)

"""What goes outside in JSON comes back as the same rows, whatever their types and values are."""

import json
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from samza_azure.systems.encoding import Encoder
from samza_azure.systems.parsing import Parser

SCALARS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(20, 3)", "decimal(38, 38)",
           "string", "binary", "date", "timestamp", "timestamp_ntz"]  # fmt: skip
ROWS = 30


def a_type(dice: Random, depth: int) -> str:
    match dice.choice(["scalar", "scalar", "array", "struct", "map"]) if depth else "scalar":
        case "array":
            return f"array<{a_type(dice, depth - 1)}>"
        case "struct":
            return f"struct<a: {a_type(dice, depth - 1)}, `b c`: {a_type(dice, depth - 1)}>"
        case "map":
            return f"map<{dice.choice(SCALARS)}, {a_type(dice, depth - 1)}>"
        case _:
            return dice.choice(SCALARS)


def values(dice: Random, kind: pa.DataType, count: int, *, nullable: bool = True) -> pa.Array:
    """Any values that a type has, as far as JSON can say them."""
    mask = pa.array([nullable and dice.random() < 0.2 for _ in range(count)], pa.bool_())
    ends = [0]
    for _ in range(count):
        ends.append(ends[-1] + dice.choice([0, 1, 3]))
    offsets = pa.array(ends, pa.int32())
    match kind:
        case pa.StructType():
            fields = list(kind)
            return pa.StructArray.from_arrays(
                [values(dice, each.type, count) for each in fields], fields=fields, mask=mask
            )
        case pa.MapType():
            keys = values(dice, kind.key_type, ends[-1], nullable=False)
            return pa.MapArray.from_arrays(offsets, keys, values(dice, kind.item_type, ends[-1]), kind, mask=mask)
        case pa.ListType():
            return pa.ListArray.from_arrays(offsets, values(dice, kind.value_type, ends[-1]), kind, mask=mask)
    plain = pa.array([_scalar(dice, kind) for _ in range(count)], _plain(kind)).cast(kind)
    return pc.if_else(mask, None, plain)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _scalar(dice: Random, kind: pa.DataType) -> object:
    if pa.types.is_boolean(kind):
        return dice.random() < 0.5
    if pa.types.is_integer(kind):
        most = 1 << kind.bit_width - 1
        return dice.choice([0, most - 1, -most, dice.randrange(-most, most)])
    if pa.types.is_floating(kind):
        return dice.choice([0.0, -0.0, 1.5, 1e300, 5e-324, float("nan"), float("inf"), -float("inf"), dice.random()])
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return Decimal((0, [int(digit) for digit in str(dice.randint(0, most))], -kind.scale))
    if pa.types.is_string(kind):
        return "".join(dice.choices('ab"\\{}[],:\n\r\t\x00\u2028é\U0001f600 1', k=dice.choice([0, 1, 5, 100])))
    if pa.types.is_binary(kind):
        return dice.randbytes(dice.choice([0, 1, 2, 3, 100]))
    day = dice.choice([0, dice.randrange(-719_162, 2_932_896)])  # of the years 1 to 9999
    return day if pa.types.is_date(kind) else (day * 86_400 + dice.randrange(86_400)) * 10**6 + dice.randrange(10**6)


def comparable(kind: pa.DataType) -> pa.DataType:
    """The type with whole numbers for times, of which Python knows only some; and as text, NaN is like NaN."""
    match kind:
        case pa.StructType():
            return pa.struct([each.with_type(comparable(each.type)) for each in kind])
        case pa.MapType():
            return pa.map_(comparable(kind.key_type), comparable(kind.item_type))
        case pa.ListType():
            return pa.list_(comparable(kind.value_type))
    return _plain(kind)


def shown(rows: pa.Table) -> list[str]:
    return [repr(each.combine_chunks().view(comparable(each.type)).to_pylist()) for each in rows.columns]


def through_json(rows: pa.Table) -> tuple[list[pa.Table], list[str]]:
    """The rows that come back, and the reasons for those that do not."""
    stream = SystemStream("s", 1, rows.schema, {}, Path())
    messages = pa.table({"body": pa.array(Encoder(stream).bodies(rows), pa.binary())})
    parts = [*Parser(stream, []).rows(messages)]
    return [part for part, reason in parts if not reason], [reason for _, reason in parts if reason]


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_back_as_they_went(seed: int) -> None:
    dice = Random(seed)
    types = [*SCALARS, *(a_type(dice, 2) for _ in range(5))]
    schema = ddl.arrow_schema(", ".join(f"c{number} {each}" for number, each in enumerate(types)))
    rows = pa.table([values(dice, each.type, ROWS) for each in schema], schema=schema)
    back, refused = through_json(rows)
    assert refused == []
    assert shown(pa.concat_tables(back)) == shown(rows), schema


def test_what_json_cannot_say_is_refused() -> None:
    """A year that none of our readers takes is no other year."""
    for kind, value in ((pa.date32(), 2_932_897), (pa.timestamp("us", "UTC"), 2_932_897 * 86_400 * 10**6)):
        back, refused = through_json(pa.table({"c": pa.array([value], _plain(kind)).cast(kind)}))
        assert not back and "which cannot hold '+10000-01-01" in refused[0]


@pytest.mark.parametrize("text", ["plain", "AAE", "AAE=AAE=", "A A=", "é"])
def test_a_text_that_is_no_base64_is_no_bytes(text: str) -> None:
    stream = SystemStream("s", 1, ddl.arrow_schema("b binary"), {}, Path())
    body = json.dumps({"b": text}).encode()
    [(_, reason)] = Parser(stream, []).rows(pa.table({"body": pa.array([body], pa.binary())}))
    assert reason.endswith("Write bytes, in JSON their base64.") and "'b' is binary" in reason

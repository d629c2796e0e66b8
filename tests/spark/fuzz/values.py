"""Columns of every type, and their values: few different ones, so that they meet, and the odd ones among them."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

START = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
LOCAL = START.replace(tzinfo=None)

#: By type, as the job file writes it. Floating-point values add up exactly in any order.
VALUES: dict[str, Sequence[Any]] = {
    "string": ["", "a", "b", "bb", "é", "名", "A"],
    "tinyint": [-128, 0, 1, 2, 127],
    "smallint": [-300, 0, 1, 2],
    "int": [-7, 0, 1, 2, 3, 40_000],
    "bigint": [-7, 0, 1, 2, 3, 1 << 40],
    "boolean": [True, False],
    "date": [dt.date(1969, 12, 31), dt.date(2013, 1, 1), dt.date(2013, 1, 2)],
    "binary": [b"", b"\x00\xff", b"a"],
    "decimal(10,2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")],
    "double": [float("nan"), -0.0, 0.0, 0.5, -2.25, 8.0],
    "timestamp": [START, START + dt.timedelta(hours=1, microseconds=1), dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)],
    "struct<a:int,b:string>": [{"a": 1, "b": "x"}, {"a": None, "b": ""}, {"a": 1, "b": None}],
    "array<int>": [[], [1], [1, None, 2]],
}
#: Further types, which `odd` draws: the cases of `draw` stay as they are.
MORE_VALUES: dict[str, Sequence[Any]] = {
    "float": [float("nan"), -0.0, 0.5, -2.25],
    "timestamp_ntz": [LOCAL, LOCAL - dt.timedelta(days=50 * 365), LOCAL + dt.timedelta(hours=2, microseconds=1)],
    "decimal(38,18)": [Decimal("0.000000000000000001"), Decimal("-1234567890.5"), Decimal(3)],
    "map<string,int>": [[], [("a", 1)], [("a", None), ("", 2)]],
    "array<struct<a:int,b:string>>": [[], [{"a": 1, "b": "x"}], [{"a": None, "b": None}, {"a": 2, "b": ""}]],
}
#: What `partition_by` and a source's key take.
ROUTABLE = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date", "binary")
INTEGERS = ("tinyint", "smallint", "int", "bigint")


def one_of(dice: Random, kind: str, null_share: float) -> Any:
    """A value of a type, or null."""
    return None if dice.random() < null_share else dice.choice((VALUES | MORE_VALUES)[kind])

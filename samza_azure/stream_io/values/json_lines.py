"""Rows as JSON lines."""

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

#: The calendar repeats itself after 400 years.
CYCLE_DAYS = 146_097
DAY_S = 86_400


def lines_of(table: pa.Table) -> list[str]:
    """One JSON object per row: times as ISO 8601 with their zone, decimals as text with all digits, bytes as base64.

    Values that JSON or Python cannot represent are text as well: NaN, Infinity, and years after 9999 as +10000-01-01.
    """
    try:
        return [_json(row) for row in table.to_pylist()]
    except (ValueError, OverflowError):
        columns = [[_value(each) for each in column] for column in table.columns]
        return [_json(dict(zip(table.column_names, row, strict=True))) for row in zip(*columns, strict=True)]


def as_lines(table: pa.Table) -> str:
    """The lines as one text, with a newline behind each row."""
    return "".join([line + "\n" for line in lines_of(table)])


def _plain(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"A {type(value).__name__} cannot be written as JSON.")


#: Made once: `json.dumps` makes an encoder for each row.
_json = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False).encode


def _value(scalar: Any) -> object:
    """A value as `to_pylist` returns it, if Python and JSON can represent it; otherwise as text."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {name: _value(scalar[name]) for name in kind.names}
    if pa.types.is_map(kind):
        return [(_value(each["key"]), _value(each["value"])) for each in scalar.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(each) for each in scalar.values]
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        try:
            return scalar.as_py()
        except (ValueError, OverflowError):
            return _far(scalar)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return bytes(scalar.as_buffer()).decode(errors="replace")  # Spark's texts may have any bytes
    value = scalar.as_py()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _far(scalar: Any) -> str:
    """A time or date beyond the years 1 to 9999."""
    if pa.types.is_date32(scalar.type):
        days, rest = scalar.value, timedelta()
    else:
        in_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[scalar.type.unit]
        days, left = divmod(scalar.value, DAY_S * in_second)
        rest = timedelta(microseconds=left * 10**6 // in_second)
    cycles, day = divmod(days, CYCLE_DAYS)
    at = datetime(1970, 1, 1, tzinfo=UTC if getattr(scalar.type, "tz", None) else None) + timedelta(days=day) + rest
    text = at.date().isoformat() if pa.types.is_date32(scalar.type) else at.isoformat()
    return f"{at.year + 400 * cycles:+05d}{text[4:]}"

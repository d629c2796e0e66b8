"""Rows as JSON lines."""

import base64
import json
from datetime import date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa


def as_lines(table: pa.Table) -> str:
    """One JSON object per row: times as ISO 8601 with their zone, decimals as text with all digits, bytes as base64."""
    return "".join(json.dumps(row, default=_plain, ensure_ascii=False) + "\n" for row in table.to_pylist())


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

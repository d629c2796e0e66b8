"""Streams of messages in a format that needs a schema, as tests read them."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer

from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from samza_azure.systems.parsing import Parser

#: What stands beside a message: as with Event Hubs.
ENVELOPE = {"number": pa.int64(), "content_type": pa.string()}


def parser(schema: str, directory: Path = Path(), event_time: str | None = None, **options: str) -> Parser:
    """A parser; `__` in the name of an option is a point."""
    given = {"format": "avro"} | {name.replace("__", "."): value for name, value in options.items()}
    declared = SystemStream("s", 1, ddl.arrow_schema(schema), given, directory, event_time=event_time)
    return Parser(declared, list(ENVELOPE))


def parsed(
    parser: Parser, bodies: list[bytes | None], types: list[str] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and the reasons. Each message is one or the other."""
    columns = [pa.array(range(len(bodies)), pa.int64()), pa.array(types or [None] * len(bodies), pa.string())]
    messages = pa.table([pa.array(bodies, pa.binary()), *columns], ["body", *ENVELOPE])
    parts = [*parser.rows(messages)]
    assert all(part.num_rows == 1 for part, reason in parts if reason)
    assert sum(part.num_rows for part, _ in parts) == len(bodies)
    return [row for part, reason in parts if not reason for row in part.to_pylist()], [why for _, why in parts if why]


def record(**fields: Any) -> dict[str, Any]:
    """A schema of Avro."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def datum(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    """A row, written with a schema."""
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(schema), row)
    return written.getvalue()


def written(directory: Path, schema: Any, name: str = "s.avsc") -> str:
    """The name of a file with a schema, or with a text that should be one."""
    (directory / name).write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return name

"""`samza-azure peek`: the first rows of a stream that are still stored, in its logs, files or table."""

import json
import sys
from typing import Annotated

import pyarrow as pa
import typer

from samza_azure.commands.connect import connect
from samza_azure.commands.job import Job, load
from samza_azure.commands.kept_rows import kept_rows
from samza_azure.stream_io.values.json_lines import as_lines

#: Bytes to read at a time: a few rows need few.
AT_ONCE = 64 << 10


def shown(table: pa.Table) -> str:
    """The rows as JSON lines for a terminal: what it might obey is written out, as JSON does it."""
    lines = as_lines(table)
    if lines.replace("\n", "").isprintable():
        return lines
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in lines)


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the pipeline, or a source.", show_default=False)],
    number: Annotated[int, typer.Option("-n", min=1, help="How many rows.")] = 10,
) -> None:
    """Print the first rows of a stream, one JSON object per line.

    Example: samza-azure peek job.toml by-carrier -n 3
    """
    config = load(job)
    found = kept_rows(config, connect(config, create=False), stream, table_bytes=AT_ONCE)
    left = number
    for _, table in found.tables():
        sys.stdout.write(shown(table.slice(0, left)))
        left -= min(left, table.num_rows)
        if not left:
            return

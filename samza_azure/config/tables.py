"""The tables that the rows of streams are published to: `[streams.<id>] table = …`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samza_azure.config.sections import Stream
from samza_azure.names import TABLE
from samza_azure.segments.interval import Granularity


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A table that a stream's rows are published to.

    Rows are published after `flush_s` seconds, or as soon as there are `rows` rows or `bytes` bytes of them in memory.
    `target` is the size of file, in bytes, that compaction aims at; `grace_s` is how long garbage is kept, in seconds;
    `keep_s` is the age in seconds at which an interval is dropped, None: never.
    """

    name: str
    time: str
    granularity: Granularity
    flush_s: float
    rows: int
    bytes: int
    compact: bool
    target: int
    grace_s: float
    keep_s: float | None


def _valid_name(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:63] or "rows"


def table_of(name: str, stream: Stream) -> TableSettings | None:
    """The table of a stream; None if it has none."""
    if stream.table is None and stream.table_time is None:
        return None
    return TableSettings(
        stream.table or name,
        stream.table_time or "",
        stream.table_granularity,
        stream.table_flush_s,
        stream.table_rows,
        stream.table_bytes,
        stream.table_compact,
        stream.table_target,
        stream.table_grace_s,
        stream.table_keep_s,
    )


def mistakes_of_tables(values: Mapping[str, Any], streams: Mapping[str, Stream | None]) -> Iterator[str]:
    """The mistakes in the tables of a job file, each a sentence."""
    of_table: dict[str, str] = {}
    for name, stream in streams.items():
        if stream is None:
            continue
        table = table_of(name, stream)
        keys = [key for key in values if key.startswith(f"streams.{name}.table.")]
        if table is None:
            if keys:
                yield f"{keys[0]} has no effect without streams.{name}.table.time, the column of the interval."
            continue
        if not table.time:
            yield (
                f"streams.{name}.table.time is missing: the column of type timestamp or date by which the table "
                f"{table.name} is divided into intervals."
            )
        if not TABLE.accepts(table.name):
            yield (
                f"The table of the stream {name} would be called {table.name!r}, which is not a valid name. Add "
                f'streams.{name}.table = "{_valid_name(table.name)}": it {TABLE.says}.'
            )
        if (other := of_table.setdefault(table.name, name)) != name:
            yield (
                f"streams.{other} and streams.{name} both go to the table {table.name!r}. Their columns need not "
                "agree: give one of them another name."
            )

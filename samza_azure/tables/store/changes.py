"""Open a table quickly: a change row for each publish, and a checkpoint blob with all segments.

A table with many segments takes long to read row by row. So `collect` writes all of them into a blob from time to time,
the *checkpoint*, and each publish adds, in its own transaction, a row that repeats its segments. A client that knows a
table at one sequence number reads the change rows since then; a new client begins with the checkpoint.

Both are caches: the segments' own rows decide. If a change row or the checkpoint is missing, reading takes longer.
"""

import gc
import io
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.foreign import parsed
from samza_azure.segments import Publish, Segment, SequenceNumber
from samza_azure.storage.interface import Row, Value
from samza_azure.tables.store.rows import RowReading, SegmentReader, segment_key, segment_values

log = logging.getLogger(__name__)

CHANGE = "change."
_KEY = re.compile(r"change\.\d+\.\d+")
#: Characters in one column. The service accepts 64 KiB per column and 1 MiB per row.
_PART = 30_000
_PARTS_MAX = 12
_FORMAT = "2"
_NUMBERS = ("start", "end", "version", "partition", "generation", "lock", "number", "rows", "bytes", "crc")
_TEXTS = ("covers", "group", "overshadows", "more", "file", "statistics")
_COLUMNS = pa.schema([*((name, pa.int64()) for name in _NUMBERS), *((name, pa.string()) for name in _TEXTS)])


def change_key(lock: int, number: int) -> str:
    """The row of a publish."""
    return f"{CHANGE}{lock:012d}.{number:012d}"


def is_change(key: str) -> bool:
    """Whether a row has such a key."""
    return _KEY.fullmatch(key) is not None


def changed_key(key: str) -> tuple[int, int]:
    """The lock and the number of a publish, from the key of its row."""
    lock, number = key.removeprefix(CHANGE).split(".")
    return int(lock), int(number)


def change_values(segments: Sequence[Segment], *, is_staged: bool) -> dict[str, Value]:
    """The columns of a change row. `parts` is -1 if the segments do not fit into one row, or into the transaction."""
    text = "" if is_staged else json.dumps([[segment_key(one.id), segment_values(one)] for one in segments])
    parts = [text[first : first + _PART] for first in range(0, len(text), _PART)]
    if is_staged or len(parts) > _PARTS_MAX:
        return {"parts": -1}
    return {"parts": len(parts), **{f"part{number}": part for number, part in enumerate(parts)}}


def changed_by(row: Row, reader: SegmentReader) -> list[Segment] | None:
    """The segments of a publish. None if all rows of the table have to be read."""
    parts = row.values.get("parts")
    if not isinstance(parts, int) or parts < 0:
        return None
    with RowReading(row):
        text = "".join(str(row.values[f"part{number}"]) for number in range(parts))
        return [reader.segment(Row(key, "", values)) for key, values in parsed(text)]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All segments in the table at a sequence number. `restored` counts how often drops were deleted."""

    sequence: SequenceNumber
    restored: int
    segments: Sequence[Segment]

    def parts(self) -> tuple[list[Segment], list[Segment]]:
        """The segments that count, and those that wait for a publish that does not count yet."""
        known: dict[tuple[Publish, ...], bool] = {}  # most publishes have several segments
        counted, waiting = list[Segment](), list[Segment]()
        for one in self.segments:
            if (counts := known.get(one.published)) is None:
                counts = known[one.published] = self.sequence.includes(one)
            (counted if counts else waiting).append(one)
        return counted, waiting

    def encode(self) -> bytes:
        """The content of the checkpoint blob."""
        rows = [_columns(one) for one in self.segments]
        facts = {"format": _FORMAT, "sequence": str(self.sequence), "restored": str(self.restored)}
        table = pa.Table.from_pylist(rows, schema=_COLUMNS).replace_schema_metadata(facts)
        with io.BytesIO() as out:
            pq.write_table(table, out, compression="zstd")
            return out.getvalue()

    @classmethod
    def decode(cls, data: bytes, reader: SegmentReader) -> "Checkpoint | None":
        """The inverse of `encode`. None if another release wrote the blob or it is damaged: read the rows then."""
        try:
            table = pq.read_table(io.BytesIO(data))
            facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
            if facts.get("format") != _FORMAT:
                return None
            segments = reader.of_columns({name: table[name].to_pylist() for name in (*_NUMBERS, *_TEXTS)})
            return cls(SequenceNumber.parse(facts["sequence"]), int(facts["restored"]), segments)
        except (pa.ArrowInvalid, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
            log.warning("The checkpoint of a table is damaged; its rows are read instead: %r", error)
            return None


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn off the cycle collector, which runs whenever many objects are made: segments have no cycles, and stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _columns(segment: Segment) -> dict[str, Any]:
    """A row of the blob. Publishes after the first, which few segments have, share the column `more`."""
    file, (first, *more) = segment.file, segment.published
    return {
        "start": segment.interval.start,
        "end": segment.interval.end,
        "version": segment.version,
        "partition": segment.partition,
        "generation": segment.generation,
        "lock": first.lock,
        "number": first.number,
        "rows": file and file.rows,
        "bytes": file and file.bytes,
        "crc": file and file.crc,
        "covers": str(segment.covers),
        "group": str(segment.group),
        "overshadows": str(segment.overshadows),
        "more": ",".join(f"{one.lock}:{one.number}" for one in more),
        "file": file and file.name,
        "statistics": file and json.dumps(dict(file.statistics), separators=(",", ":")),
    }

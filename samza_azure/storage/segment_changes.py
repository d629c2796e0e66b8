"""What a publish has changed, in a row of its own, and all segments in one blob: so that a table is opened quickly.

A table of many segments takes long to read row by row. So `collect` writes all of them into a blob from time to time,
the *checkpoint*, and each publish writes, in its own transaction, a row that repeats its segments. Who knows a table at
one sequence number reads the rows of the publishes since then; who knows nothing begins with the checkpoint.

Neither is the truth: that is the segments' own rows. A row or blob that is not there costs time.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.errors import CorruptState
from samza_azure.segments import Segment
from samza_azure.segments import Sequence as SequenceNumber
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.segment_rows import SegmentReader, segment_key, segment_values

CHANGE = "change."
#: Of one column; the service takes 64 KiB, and a row of 1 MiB.
_PART = 30_000
_PARTS_MAX = 12
_FORMAT = "1"
_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("covers", pa.string()),
        ("generation", pa.int64()),
        ("group", pa.string()),
        ("overshadows", pa.string()),
        ("published", pa.string()),
        ("file", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("statistics", pa.string()),
    ]
)


def change_key(lock: int, number: int) -> str:
    """The row of a publish."""
    return f"{CHANGE}{lock:012d}.{number:012d}"


def change_values(segments: Sequence[Segment], *, is_staged: bool) -> dict[str, Value]:
    """What is repeated of a publish; `parts` is -1 if it is too much for one row, or for its transaction."""
    text = "" if is_staged else json.dumps([[segment_key(one.id), segment_values(one)] for one in segments])
    parts = [text[first : first + _PART] for first in range(0, len(text), _PART)]
    if is_staged or len(parts) > _PARTS_MAX:
        return {"parts": -1}
    return {"parts": len(parts), **{f"part{number}": part for number, part in enumerate(parts)}}


def changed_by(row: Row, reader: SegmentReader) -> list[Segment] | None:
    """The segments of a publish; None: all rows of the table have to be read."""
    parts = row.values.get("parts")
    if not isinstance(parts, int) or parts < 0:
        return None
    text = "".join(str(row.values[f"part{number}"]) for number in range(parts))
    return [reader.segment(Row(key, "", values)) for key, values in json.loads(text)]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All segments whose rows were there, and the sequence number. `restored` counts drops that were taken back."""

    sequence: SequenceNumber
    restored: int
    segments: Sequence[Segment]

    def encode(self) -> bytes:
        """As a blob."""
        values = [segment_values(one) for one in self.segments]
        columns = {name: [one.get(name) for one in values] for name in _COLUMNS.names if name != "key"}
        table = pa.table({"key": [segment_key(one.id) for one in self.segments], **columns}, schema=_COLUMNS)
        facts = {"format": _FORMAT, "sequence": str(self.sequence), "restored": str(self.restored)}
        with io.BytesIO() as out:
            pq.write_table(table.replace_schema_metadata(facts), out, compression="zstd")
            return out.getvalue()

    @classmethod
    def decode(cls, data: bytes, reader: SegmentReader) -> "Checkpoint | None":
        """What `encode` made; None for one of another release."""
        try:
            table = pq.read_table(io.BytesIO(data))
        except pa.ArrowInvalid as error:
            raise CorruptState(f"The checkpoint of a table is damaged: {error}", blob="checkpoint") from error
        facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if facts.get("format") != _FORMAT:
            return None
        segments = list(map(reader.segment, _rows(table)))
        return cls(SequenceNumber.parse(facts["sequence"]), int(facts["restored"]), segments)


def _rows(table: pa.Table) -> Iterator[Row]:
    names = table.column_names
    for key, *values in zip(*(table[name].to_pylist() for name in names), strict=True):
        columns: Mapping[str, Any] = dict(zip(names[1:], values, strict=True))
        yield Row(key, "", columns)

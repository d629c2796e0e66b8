"""The storage format of a table of segments: its rows in one partition.

| key | what it is | who writes it |
|---|---|---|
| `head` | format, how many locks were granted, what was collected | granting, revoking, allocating; If-Match |
| `lock.<id>` | one lock, and how many publishes were made under it | its owner's publishes, If-Match; a revocation |
| `next.<interval>.<version>` | the next partition number there | with the head |
| `change.<lock>.<number>` | what one publish has added, for readers that have the table open | with that publish |
| `position.<stream>` | how far a stream is in the table | the publish of its rows, If-Match |
| `reader.<id>` | a sequence number that somebody reads at, and until when | that reader |
| `segment.<interval>.<version>.<partition>` | a segment, and the publish that it came with | inserted once |

Moments are written as 16 hexadecimal digits, counted from -2**63, so keys sort by time.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.foreign import exactly, parsed
from samza_azure.segments import (
    File,
    Interval,
    LockOwner,
    LockType,
    Partitions,
    Publish,
    Segment,
    SegmentId,
    SequenceNumber,
    TableLock,
)
from samza_azure.segments.locks import Replaced
from samza_azure.storage.interface import Row, Value

T = TypeVar("T")

HEAD = "head"
LOCK, NEXT, POSITION, READER, SEGMENT = "lock.", "next.", "position.", "reader.", "segment."
#: 2: intervals that have no rows get a version of their own, and what counted their numbers is deleted with them.
FORMAT = 2

_ZERO = 1 << 63
_ESCAPED, _ESCAPE = re.compile(r"[=|\\#?%]"), re.compile(r"=([0-9A-F]{2})")
_PLACE = r"[0-9a-f]{16}\.[0-9a-f]{16}\.\d{12,}"
_OURS = re.compile(
    rf"head|lock\.\d{{12,}}|next\.{_PLACE}|change\.\d+\.\d+|(segment(?=\.{_PLACE}\.\d{{12,}}$)|position|reader)\..+"
)
_COLUMN_OF = {"segment": "covers", "position": "position", "reader": "until"}
#: The column of a segment lock without partitions; for an interval lock the column is empty.
_NONE = "none"


def is_ours(row: Row) -> bool:
    """Whether a row has a key that we write and, where anything may follow the full stop, the column that we write."""
    found = _OURS.fullmatch(row.key)
    return found is not None and (found[1] is None or _COLUMN_OF[found[1]] in row.values)


def past(prefix: str) -> str:
    """The end of the keys with this prefix, which ends with a full stop."""
    return prefix[:-1] + "~"


#: Numbers of locks have twelve digits in keys and names.
LOCKS_LIMIT = 10**12 - 1


def lock_key(lock: int) -> str:
    """The row of a lock."""
    return f"{LOCK}{lock:012d}"


def next_key(interval: Interval, version: int) -> str:
    """The row that counts the partitions of an interval and version."""
    return f"{NEXT}{_interval(interval)}.{version:012d}"


def next_place(key: str) -> tuple[Interval, int]:
    """The interval and version of such a row."""
    start, end, version = key.removeprefix(NEXT).split(".")
    return Interval(int(start, 16) - _ZERO, int(end, 16) - _ZERO), int(version)


def segment_key(name: SegmentId) -> str:
    """The row of a segment."""
    return f"{SEGMENT}{_interval(name.interval)}.{name.version:012d}.{name.partition:012d}"


def position_key(stream: str) -> str:
    """The row of a stream's position. A slash becomes a bar; bars and characters that a key cannot have are escaped."""
    return POSITION + _ESCAPED.sub(lambda found: f"={ord(found[0]):02X}", stream).replace("/", "|")


def position_stream(key: str) -> str:
    """The stream of such a row."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), key.removeprefix(POSITION).replace("|", "/"))


def position_of(row: Row) -> Any:
    """The position in such a row. Raise CorruptState if it is none."""
    with RowReading(row):
        return parsed(str(row.values["position"]))


def sequence_of(row: Row, column: str) -> SequenceNumber | None:
    """The sequence number in a column of a row; None if it has none. Raise CorruptState for another text."""
    with RowReading(row):
        text = row.values.get(column)
        return SequenceNumber.parse(str(text)) if text else None


def _interval(interval: Interval) -> str:
    return f"{interval.start + _ZERO:016x}.{interval.end + _ZERO:016x}"


def lock_values(lock: TableLock, owners: Mapping[str, LockOwner]) -> dict[str, Value]:
    """The columns of a lock."""
    return {
        "type": str(lock.type),
        "group": lock.group,
        "start": lock.interval.start,
        "end": lock.interval.end,
        "version": lock.version,
        "partitions": partitions_value(lock),
        "priority": lock.rank,
        "revoked": lock.revoked,
        "holders": json.dumps({task: list(owners.get(task, LockOwner())) for task in sorted(lock.holders)}),
        "count": lock.count,
        "read": "" if lock.read is None else str(lock.read),
        "writes": _intervals(lock.writes),
        "replaced": json.dumps([[*one[:3], _intervals(one.intervals)] for one in lock.replaced]),
        "staged": lock.staged,
    }


def lock_of(datasource: str, row: Row) -> tuple[TableLock, dict[str, LockOwner]]:
    """The lock of a row, and who holds it."""
    with RowReading(row):
        values: Mapping[str, Any] = row.values
        owners = {task: LockOwner(*owner) for task, owner in parsed(values["holders"]).items()}
        return TableLock(
            int(row.key.removeprefix(LOCK)),
            LockType(values["type"]),
            exactly(str, values["group"]),
            datasource,
            Interval(exactly(int, values["start"]), exactly(int, values["end"])),
            exactly(int, values["version"]),
            _partitions(values["partitions"]),
            exactly(int, values["priority"]),
            exactly(bool, values["revoked"]),
            frozenset(owners),
            exactly(int, values["count"]),
            SequenceNumber.parse(values["read"]) if values["read"] else None,
            tuple(_intervals_of(values["writes"])),
            tuple(
                Replaced(lock, number, version, tuple(_intervals_of(text)))
                for lock, number, version, text in parsed(values["replaced"])
            ),
            exactly(int, values["staged"]),
        ), owners


def segment_values(segment: Segment) -> dict[str, Value]:
    """The columns of a segment, without what its key contains."""
    file = segment.file
    values: dict[str, Value] = {
        "covers": str(segment.covers),
        "generation": segment.generation,
        "group": str(segment.group),
        "overshadows": str(segment.overshadows),
        "published": ",".join(f"{one.lock}:{one.number}" for one in segment.published),
    }
    if file is not None:
        values |= {
            "file": file.name,
            "rows": file.rows,
            "bytes": file.bytes,
            "statistics": json.dumps(dict(file.statistics), separators=(",", ":")),
        }
        if file.crc is not None:
            values["crc"] = file.crc
    return values


class _Statistics(Mapping[str, Any]):
    """The statistics of a file, parsed at the first use: those of most files are never used."""

    __slots__ = ("_file", "_found", "_text")

    def __init__(self, text: str, file: str) -> None:
        self._text: str = text
        self._file = file
        self._found: dict[str, Any] | None = None

    def __getitem__(self, column: str) -> Any:
        return self._all()[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return self._text

    def _all(self) -> dict[str, Any]:
        if self._found is None:
            try:
                found = parsed(self._text)
                if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
                    raise ValueError("an object of objects is expected")
            except (ValueError, TypeError) as error:
                message = f"A segment's row has statistics that cannot be read: {error!r:.300}"
                raise CorruptState(message, blob=self._file) from error
            self._found = found
        return self._found


def _each_once(values: Iterable[Any], make: Callable[[Any], T]) -> list[T]:
    """The result of `make` for each value; equal values share one object."""
    made: dict[Any, T] = {}
    return [made[one] if one in made else made.setdefault(one, make(one)) for one in values]


def _publishes(text: str) -> tuple[Publish, ...]:
    return tuple(Publish(*map(int, one.split(":"))) for one in text.split(",") if one)


class SegmentReader:
    """Make segments from rows. Equal sets share one object."""

    def __init__(self, datasource: str) -> None:
        self._datasource = datasource
        self._sets: dict[str, Partitions] = {}
        self._intervals: dict[str, Interval] = {}

    def segment(self, row: Row) -> Segment:
        """The segment of a row. Raise CorruptState if the row is not a segment."""
        with RowReading(row):
            values: Mapping[str, Any] = row.values
            start, end, version, partition = row.key.removeprefix(SEGMENT).split(".")
            file = None
            if name := values.get("file"):
                statistics = _Statistics(exactly(str, values["statistics"]), name)
                crc = None if values.get("crc") is None else exactly(int, values["crc"])
                rows, size = exactly(int, values["rows"]), exactly(int, values["bytes"])
                file = File(exactly(str, name), rows, size, statistics, crc)
            published = _publishes(values["published"])
            return Segment(
                self._datasource,
                self._interval(start, end),
                int(version),
                int(partition),
                self._set(values["covers"]),
                exactly(int, values["generation"]),
                self._set(values["group"]),
                self._set(values["overshadows"]),
                file,
                published,
            )

    def of_columns(self, of: Mapping[str, Sequence[Any]]) -> list[Segment]:
        """The segments of a checkpoint's columns. Equal values, of which there are many, share one object."""
        intervals = _each_once(zip(of["start"], of["end"], strict=True), lambda bounds: Interval(*bounds))
        numbered = zip(of["lock"], of["number"], of["more"], strict=True)
        published = _each_once(numbered, lambda one: (Publish(*one[:2]), *_publishes(one[2])))
        files = [
            None if name is None else File(name, rows or 0, size or 0, _Statistics(text or "{}", name), crc)
            for name, rows, size, text, crc in zip(
                *(of[column] for column in ("file", "rows", "bytes", "statistics", "crc")), strict=True
            )
        ]
        named = zip(intervals, of["version"], of["partition"], strict=True)
        sets = (_each_once(of[name], self._set) for name in ("covers", "group", "overshadows"))
        carried = zip(*sets, of["generation"], files, published, strict=True)
        return [
            Segment(
                self._datasource, interval, version, partition, covers, generation, group, overshadows, file, publishes
            )
            for (interval, version, partition), (covers, group, overshadows, generation, file, publishes) in zip(
                named, carried, strict=True
            )
        ]

    def _set(self, text: str) -> Partitions:
        if (known := self._sets.get(text)) is None:
            known = self._sets[text] = Partitions.parse(text)
        return known

    def _interval(self, start: str, end: str) -> Interval:
        text = f"{start}.{end}"
        if (known := self._intervals.get(text)) is None:
            known = self._intervals[text] = Interval(int(start, 16) - _ZERO, int(end, 16) - _ZERO)
        return known


def granted_by(head: Row) -> int:
    """How many locks were granted so far, as the head row says."""
    with RowReading(head):
        granted = exactly(int, head.values["granted"])
        if not 0 <= granted < LOCKS_LIMIT:  # the next lock is one more, and its key must stay behind the others
            raise ValueError(f"{granted} locks were never granted")
        return granted


def checked_head(row: Row, datasource: str) -> Row:
    """Return the head row. Raise ConfigError if a newer program wrote it."""
    found = row.values.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise ConfigError(
            f"The table {datasource} has format {found!r:.80}, and this program knows formats up to {FORMAT}. "
            "Use the version of samza-azure that wrote it, or a newer one."
        )
    return row


def _partitions(text: str) -> Partitions | None:
    return None if not text else Partitions.parse("" if text == _NONE else text)


def partitions_value(lock: TableLock) -> Value:
    """The `partitions` column of a lock, which its publishes change."""
    return "" if lock.partitions is None else str(lock.partitions) or _NONE


def _intervals(intervals: Iterable[Interval]) -> str:
    return ",".join(f"{one.start}:{one.end}" for one in intervals)


def _intervals_of(text: str) -> list[Interval]:
    return [Interval(*map(int, one.split(":"))) for one in text.split(",") if one]


class RowReading:
    """Turn errors while a row is read into a CorruptState that names the row."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LookupError | ValueError | TypeError | AttributeError):
            raise CorruptState(f"The row cannot be read: {error!r:.300}", blob=self._row.key) from error

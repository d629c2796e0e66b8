"""Appending to a table and compacting it, as library calls.

Memory is bounded by what is written at once: an append by its rows, a compaction by one batch of each of its inputs
and one output file.
"""

import base64
import io
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError
from samza_azure.segments import (
    Advance,
    File,
    Granted,
    Granularity,
    Interval,
    LockType,
    Partitions,
    Published,
    Refused,
    Request,
    Segment,
    Task,
)
from samza_azure.storage.interface import Row
from samza_azure.storage.segments import SegmentStore
from samza_azure.storage.transactions import Act, Write
from samza_azure.tables import files
from samza_azure.tables.table import fitted

#: So many partition numbers an appender takes at once: one write of the head for so many publishes.
NUMBERS = 64
#: So many intervals one append may touch: each has a lock, and a publish holds all its locks in one transaction.
INTERVALS_MAX = 90
#: The lock on an interval is given back when so many appends had no rows of it.
UNUSED_APPENDS = 10
#: So many segments are merged at once: a batch of each is in memory.
FAN_IN_MAX = 32
BATCH_ROWS = 16 << 10


@dataclass(frozen=True, slots=True)
class Shape:
    """What the head of a table says of its rows."""

    time: str
    granularity: Granularity
    schema: pa.Schema

    @classmethod
    def of(cls, head: Row, name: str) -> "Shape":
        """The shape in a head row. ConfigError if there is none: the table was created by something else."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(head.values["schema"]))))
            return cls(str(head.values["time"]), Granularity(str(head.values["granularity"])), schema)
        except (KeyError, ValueError, pa.ArrowInvalid) as error:
            raise ConfigError(f"The head of the table {name} does not say what its rows are: {error!r}.") from error


def create(store: SegmentStore, schema: pa.Schema, *, time: str, granularity: Granularity) -> Shape:
    """Create a table, or find it as it is. ConfigError if it is there with another time column or granularity."""
    files.microseconds_of(schema.empty_table(), time)
    head = store.create(time=time, granularity=str(granularity), schema=_text(schema))
    shape = Shape.of(head, store.name)
    if (shape.time, shape.granularity) != (time, granularity):
        raise ConfigError(
            f"The table {store.name} is by {shape.granularity} of {shape.time!r}, not by {granularity} of {time!r}. "
            "Two streams cannot share a table that they divide differently; give one of them another name."
        )
    return shape


def widen(store: SegmentStore, schema: pa.Schema) -> Shape:
    """The table's shape, with the columns of a schema added that it does not have yet; they are null in what is there.

    ConfigError for a column that has another type: rows that were written cannot be read so.
    """
    while True:
        state = store.state()
        shape = Shape.of(state.head, store.name)
        for field in schema:
            index = shape.schema.get_field_index(field.name)
            if index >= 0 and shape.schema.field(index).type != field.type:
                raise ConfigError(
                    f"{store.name} has {field.name!r} as {shape.schema.field(index).type}, and the rows have it as "
                    f"{field.type}. Cast it to {shape.schema.field(index).type}, or write to a table of another name."
                )
        added = [field for field in schema if field.name not in shape.schema.names]
        if not added:
            return shape
        wider = pa.schema([*shape.schema, *(field.with_nullable(True) for field in added)])
        store.rows.transact([Write(Act.MERGE, "head", {"schema": _text(wider)}, state.head.etag)])


class Appender:
    """Appends rows of one task. Its locks are kept until `close`, so most appends touch no row of anybody else."""

    def __init__(self, store: SegmentStore, task: Task, *, numbers: int = NUMBERS) -> None:
        self._store, self._task, self._numbers = store, task, numbers
        self._shape = Shape.of(store.state().head, store.name)
        self._free: dict[Interval, tuple[int, Interval, int, list[int]]] = {}  # by bucket: a lock and its free numbers
        self._appends = 0
        self._used: dict[Interval, int] = {}  # by bucket: the last append that had rows of it

    def append(self, rows: pa.Table, advance: Advance | None = None) -> Published | Refused:
        """Write rows to files, one per interval, and publish them with the position of the stream that they are from.

        `Refused`: nothing is in the table, and this task has to begin anew: its locks are lost, or the stream is
        elsewhere. Sending the same rows again, from the same position, is then harmless.
        """
        if any(self._shape.schema.get_field_index(field.name) < 0 for field in rows.schema):
            self._shape = widen(self._store, rows.schema)
        else:
            widen_needed = any(self._shape.schema.field(field.name).type != field.type for field in rows.schema)
            if widen_needed:
                widen(self._store, rows.schema)  # says what is wrong
        parts = list(by_bucket(rows, self._shape.time, self._shape.granularity))
        if len(parts) > INTERVALS_MAX:
            raise ConfigError(
                f"Rows of {len(parts)} intervals of {self._store.name} in one append; {INTERVALS_MAX} are possible. "
                "Append fewer rows at once, or give the table a coarser granularity."
            )
        return self.append_parts(parts, advance)

    def append_parts(
        self, parts: Sequence[tuple[Interval, pa.Table]], advance: Advance | None = None
    ) -> Published | Refused:
        """The same for rows that `by_bucket` has divided, and whose columns the table has."""
        segments, under = [], set()
        self._appends += 1
        for bucket, part in parts:
            self._used[bucket] = self._appends
            number = self._number(bucket)
            if isinstance(number, Refused):
                return number
            lock, interval, version, partition = number
            under.add(lock)
            data = files.encode(part)
            name = self._store.file_name(lock, uuid.uuid4().hex)
            self._store.blobs.put(name, data)
            segments.append(
                Segment.root(self._store.name, interval, version, partition, file=files.file_of(name, data))
            )
        if not segments and advance is None:
            return Published(())
        answer = self._store.publish(self._task.id, segments, advance=advance, under=under)
        if isinstance(answer, Refused):
            self.close()
        return answer

    def close(self) -> None:
        """Give all locks back."""
        for lock in self._store.state().box.held(self._task.id):
            self._store.release(self._task.id, lock.id)
        self._free.clear()
        self._used.clear()

    def release_unused(self) -> None:
        """Give back the locks of intervals to which nothing was appended for a while."""
        for bucket, last in list(self._used.items()):
            if self._appends - last >= UNUSED_APPENDS:
                del self._used[bucket]
                if (known := self._free.pop(bucket, None)) is not None:
                    self._store.release(self._task.id, known[0])

    def _number(self, bucket: Interval) -> tuple[int, Interval, int, int] | Refused:
        known = self._free.get(bucket)
        if known is None or not known[3]:
            answer = self._store.allocate(self._task, bucket.start, self._shape.granularity, self._numbers)
            if not isinstance(answer, Granted):
                return Refused(f"No lock on {bucket}: {answer}.")
            assert answer.lock.partitions is not None
            if known is not None:
                self._store.release(self._task.id, known[0])  # its numbers are used up
            lock = answer.lock
            known = self._free[bucket] = lock.id, lock.interval, lock.version, [*answer.lock.partitions]
        number, interval, version, free = known
        return number, interval, version, free.pop(0)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction has done: so many segments became so many. `refused` says why it has not."""

    inputs: int = 0
    outputs: int = 0
    refused: str = ""


def plan(store: SegmentStore, interval: Interval, *, target_bytes: int = 128 << 20) -> list[list[Segment]]:
    """What `compact` would merge: groups of small neighbours of one interval and version, each at most `FAN_IN_MAX`."""
    found: list[list[Segment]] = []
    for entry in store.latest().timeline.lookup(interval):
        waiting: list[Segment] = []
        for group in _groups(entry.segments):
            if sum(one.file.bytes for one in group if one.file is not None) >= target_bytes:
                continue  # large enough as it is
            if len(waiting) + len(group) > FAN_IN_MAX:
                found.append(waiting)
                waiting = []
            waiting = [*waiting, *group]
        found.append(waiting)
    unique = {tuple(one.id for one in group): group for group in found}
    return [group for group in unique.values() if len(_groups(group)) > 1]


def compact(store: SegmentStore, task: Task, interval: Interval, *, target_bytes: int = 128 << 20) -> list[Compacted]:
    """Merge the small segments of an interval while others append to it; each group is published as it is done.

    What is locked by others is left out, and said. A process that dies in the middle loses the group that it was at;
    called again, the rest is done. Memory: a batch of each of at most `FAN_IN_MAX` inputs, and one output file.
    """
    return [_compact(store, task, group, target_bytes) for group in plan(store, interval, target_bytes=target_bytes)]


def _compact(store: SegmentStore, task: Task, inputs: list[Segment], target_bytes: int) -> Compacted:
    one, there = inputs[0], Partitions(segment.partition for segment in inputs)
    shape = Shape.of(store.state().head, store.name)
    request = Request(task.id, store.name, one.interval, LockType.EXCLUSIVE, there, one.version)
    answer = store.acquire(task, request)
    if not isinstance(answer, Granted):
        return Compacted(refused=f"{one.interval}: others hold {there}.")
    try:
        sources = [(segment.file, segment.interval) for segment in inputs if segment.file is not None]
        made: list[File | None] = [*_merged(store, answer.lock.id, sources, shape, target_bytes)]
        numbers = store.allocate_outputs(task, one.interval, one.version, max(len(made), 1))
        if not isinstance(numbers, Granted) or numbers.lock.partitions is None:
            return Compacted(refused=f"{one.interval}: a lock was lost.")
        group = numbers.lock.partitions
        outputs = [
            Segment(
                store.name,
                one.interval,
                one.version,
                partition,
                Partitions.union_of(segment.covers for segment in inputs),
                1 + max(segment.generation for segment in inputs),
                group,
                there,
                file,
            )
            for partition, file in zip(group, made or [None], strict=True)
        ]
        under = (answer.lock.id, numbers.lock.id)
        published = store.publish(task.id, outputs, inputs=inputs, under=under)
        if isinstance(published, Refused):
            return Compacted(refused=published.reason)
        return Compacted(len(inputs), len(outputs))
    finally:
        for lock in store.state().box.held(task.id):
            store.release(task.id, lock.id)


def _merged(
    store: SegmentStore,
    lock: int,
    sources: Sequence[tuple[File, Interval]],
    shape: Shape,
    target_bytes: int,
) -> Iterator[File]:
    """Files of the rows of others, in the order of time, uploaded as soon as they are large enough."""
    out, writer = io.BytesIO(), None

    def finished() -> File:
        assert writer is not None
        writer.close()
        data = out.getvalue()
        name = store.file_name(lock, uuid.uuid4().hex)
        store.blobs.put(name, data)
        return files.file_of(name, data)

    for part in _in_order(store, sources, shape):
        if writer is None:
            out = io.BytesIO()
            writer = files.writer(out, shape.schema)
        writer.write_table(part, row_group_size=files.ROW_GROUP_ROWS)
        if out.tell() >= target_bytes:
            yield finished()
            writer = None
    if writer is not None:
        yield finished()


def _in_order(store: SegmentStore, sources: Sequence[tuple[File, Interval]], shape: Shape) -> Iterator[pa.Table]:
    """Rows of sorted files, merged. Each file has a batch in memory; what is not later than the earliest end of these
    cannot be preceded by anything that is still to come."""
    waiting: list[tuple[pa.Table, Iterator[pa.RecordBatch], Interval]] = []
    for file, interval in sources:
        _refill(waiting, files.batches(store.blobs, file, BATCH_ROWS), interval, shape)
    while waiting:
        moments = [files.microseconds_of(table, shape.time) for table, _, _ in waiting]
        up_to = min(pc.max(one).as_py() for one in moments)
        ready, rest = [], []
        for (table, source, interval), moment in zip(waiting, moments, strict=True):
            mask = pc.less_equal(moment, up_to)
            ready.append(table.filter(mask))
            left = table.filter(pc.invert(mask))
            if len(left):
                rest.append((left, source, interval))
            else:
                _refill(rest, source, interval, shape)
        yield pa.concat_tables(ready).sort_by(shape.time)
        waiting = rest


def _refill(
    waiting: list[tuple[pa.Table, Iterator[pa.RecordBatch], Interval]],
    source: Iterator[pa.RecordBatch],
    interval: Interval,
    shape: Shape,
) -> None:
    """The next batch that has rows of the interval, of which alone they count."""
    for batch in source:
        table = fitted(files.within(pa.Table.from_batches([batch]), shape.time, interval), shape.schema)
        if len(table):
            waiting.append((table, source, interval))
            return


def _groups(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments that become visible together, together."""
    found: dict[Any, list[Segment]] = {}
    for segment in segments:
        found.setdefault((segment.covers, segment.generation), []).append(segment)
    return list(found.values())


def by_bucket(rows: pa.Table, time: str, granularity: Granularity) -> Iterator[tuple[Interval, pa.Table]]:
    """The rows of each interval, in the order of time."""
    files.microseconds_of(rows, time)  # says what is wrong with the column
    rows = rows.sort_by(time)
    moments = files.microseconds_of(rows, time)
    first = 0
    while first < len(rows):
        bucket = granularity.bucket(moments[first].as_py())
        count = pc.sum(pc.less(moments.slice(first), bucket.end)).as_py()
        yield bucket, rows.slice(first, count)
        first += count


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


__all__ = ["Appender", "Compacted", "Shape", "by_bucket", "compact", "create", "plan", "widen"]

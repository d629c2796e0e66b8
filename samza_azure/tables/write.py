"""Creating a table and appending to it, as library calls. Memory is bounded by the rows of one append."""

import base64
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError
from samza_azure.segments import (
    Advance,
    Granted,
    Granularity,
    Interval,
    Published,
    Refused,
    Segment,
    Task,
)
from samza_azure.storage.interface import Row
from samza_azure.storage.segments import SegmentStore
from samza_azure.storage.transactions import Act, Write
from samza_azure.tables import files

#: So many partition numbers an appender takes at once: one write of the head for so many publishes.
NUMBERS = 64
#: So many intervals one append may touch: each has a lock, and a publish holds all its locks in one transaction.
INTERVALS_MAX = 90
#: The lock on an interval is given back when so many appends had no rows of it.
UNUSED_APPENDS = 10


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
            self._store.upload(name, data)
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


__all__ = ["Appender", "Shape", "by_bucket", "create", "widen"]

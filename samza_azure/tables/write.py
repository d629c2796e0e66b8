"""Creating a table and appending to it, as library calls. Memory is bounded by the rows of one append."""

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.segments import (
    Advance,
    Blocked,
    Granted,
    Granularity,
    Interval,
    LockTask,
    LostRace,
    Published,
    Revoked,
    Segment,
    TableLock,
    Timeline,
)
from samza_azure.storage.interface import Row
from samza_azure.storage.limits import TEXT_MAX
from samza_azure.storage.transactions import Act, Write
from samza_azure.tables import files
from samza_azure.tables.store.rows import HEAD
from samza_azure.tables.store.segments import SegmentStore

A = TypeVar("A", bound=Granted | Revoked | Blocked | None)

#: Granularities that a date is too coarse for.
WITHIN_A_DAY = (Granularity.SECOND, Granularity.MINUTE, Granularity.HOUR)
#: Partition numbers that an appender takes at once: one write of the head per this many publishes.
NUMBERS = 64
#: The most intervals of one append: each has a lock, and a publish writes all its locks in one transaction.
INTERVALS_MAX = 90
#: The lock on an interval is given back after this many appends without rows of it.
UNUSED_APPENDS = 10
#: And after this many seconds without any: compaction and retention skip intervals with a lock to append.
UNUSED_S = 300.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a table's rows, which its head stores."""

    time: str
    granularity: Granularity
    schema: pa.Schema

    @classmethod
    def of(cls, head: Row, name: str) -> "Shape":
        """The shape in a head row. Raise ConfigError if there is none: another program created the table."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(head.values["schema"]))))
            # Any column may have nulls: rows may lack it, or come from a later run in which it may be null.
            schema = files.plain(pa.schema([field.with_nullable(True) for field in schema]))
            time = schema.field(str(head.values["time"])).name
            return cls(time, Granularity(str(head.values["granularity"])), schema)
        except (LookupError, ValueError, TypeError, OSError, pa.ArrowException) as error:
            raise ConfigError(f"The head of the table {name} does not say what its rows are: {error!r}.") from error


def create(store: SegmentStore, schema: pa.Schema, *, time: str, granularity: Granularity | None = None) -> Shape:
    """Create a table unless it exists.

    Without `granularity`, an existing table may have any, and a new table gets days; `divide` changes it.

    Raises:
        ConfigError: the table exists with another time column or granularity; or a column, the time or the granularity
            cannot be that of a table.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int64())])
        tables.create(store, schema, time="at", granularity=tables.Granularity.DAY)
    """
    schema = _checked(schema, store.name)
    if untyped := [field.name for field in schema if pa.types.is_null(field.type)]:
        raise ConfigError(
            f"The column {untyped[0]!r} of {store.name} has no type but null. Give it the type of its values."
        )
    wanted = granularity or Granularity.DAY
    files.microseconds_of(schema.empty_table(), time)
    if granularity in WITHIN_A_DAY and pa.types.is_date(schema.field(time).type):
        raise ConfigError(
            f"The column {time!r} is a date, which is the same for a whole day, and cannot divide a table by "
            f"{granularity}. Take day or coarser, or a timestamp."
        )
    head = store.create(time=time, granularity=str(wanted), schema=_text(schema))
    shape = Shape.of(head, store.name)
    if (shape.time, shape.granularity) != (time, granularity or shape.granularity):
        raise ConfigError(
            f"The table {store.name} was created by {shape.granularity} of {shape.time!r}, and {wanted} of "
            f"{time!r} is asked for now. Keep table.time = {shape.time!r} and table.granularity = "
            f"{str(shape.granularity)!r}, or give the table another name."
        )
    return shape


def divide(store: SegmentStore, granularity: Granularity, stream: str, at: str) -> bool:
    """Set the granularity of intervals that have no rows yet. Those with rows stay as they are until a rewrite.

    Return False if the stream is no longer at this position: it has another owner, whose granularity counts.
    """
    while True:
        head = store.state().head
        if Shape.of(head, store.name).granularity == granularity:
            return True
        if (is_there := store.unmoved(stream, at)) is None:
            return False
        # With the position: otherwise a paused owner that resumes would set back the granularity of a later run.
        store.rows.transact([Write(Act.MERGE, HEAD, {"granularity": str(granularity)}, head.etag), is_there])


def widen(store: SegmentStore, schema: pa.Schema) -> Shape:
    """Add the columns of a schema that the table lacks, and return its shape. They are null in existing rows.

    Raise ConfigError for a column that has another type: existing rows could not be read as that type.
    """
    schema = _checked(schema, store.name)
    while True:
        state = store.state()
        shape = Shape.of(state.head, store.name)
        added = _added(shape, schema, store.name)
        if not added:
            return shape
        wider = pa.schema([*shape.schema, *added])
        store.rows.transact([Write(Act.MERGE, HEAD, {"schema": _text(wider)}, state.head.etag)])


def _added(shape: Shape, schema: pa.Schema, table: str) -> list[pa.Field]:
    """The columns of a schema that a table lacks. Raise ConfigError for one that it has with another type."""
    added = []
    for field in schema:
        if pa.types.is_null(field.type):
            continue
        index = shape.schema.get_field_index(field.name)
        if index < 0:
            added.append(field.with_nullable(True))
        elif (known := shape.schema.field(index).type) != field.type:
            raise ConfigError(
                f"{table} has {field.name!r} as {known}, and the rows have it as {field.type}. Cast it to {known}, or "
                "write to a table of another name."
            )
    return added


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Rows of one interval of the table, and the partition number of their segment. They lie within `span`."""

    lock: TableLock
    span: Interval
    partition: int
    rows: pa.Table


@dataclass(slots=True)
class _Held:
    """A lock that we hold: its free numbers, and the last append that had rows of its interval.

    `span` is the visible part of the interval. Another part may have been dropped before; none can be while we hold the
    lock.
    """

    lock: TableLock
    span: Interval
    free: list[int]
    used: int
    seen: int = -1  # `used` at the last look, and the time at which it had changed
    used_at: float = 0.0


class Appender:
    """Append rows of one task. Locks are kept until `close`, so most appends touch no shared row.

    Raises:
        ConfigError: there is no such table; `create` makes it.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call. Of any method; the appender
            may be used again.

    Example:
        appender = tables.Appender(store, tables.LockTask("nightly", "nightly", 50, tables.LockOwner("nightly")))
        for rows in (first, second):
            if isinstance(appender.append(rows), LostRace):
                sys.exit("others have taken the locks: begin again")
            appender.release_unused()
        appender.close()
    """

    def __init__(self, store: SegmentStore, task: LockTask, *, numbers: int = NUMBERS) -> None:
        self._store, self._task, self._numbers = store, task, numbers
        self._shape = Shape.of(store.state().head, store.name)
        self._held: list[_Held] = []
        self._is_unsure = False  # whether we may hold a lock that we do not know of
        self._appends = 0

    def append(self, rows: pa.Table, advance: Advance | None = None) -> Published | LostRace:
        """Write rows to files, one per interval, and publish them with the position of the stream that they are from.

        Columns that the table does not have yet are added to it, once the rows have been checked.
        Return `LostRace` if nothing was published, because locks are lost or the stream has moved. The task has to
        begin again; sending the same rows again, from the same position, is then harmless.

        Raises:
            ConfigError: a column does not fit the table, a row has no time, or the rows are of too many intervals.
                Nothing was published.
            SamzaAzureError: the rows would lie outside the locks, which is a bug. Nothing was published.

        Example:
            advance = Advance("orders", None, "17")  # its first publish; the next one begins at 17
            answer = appender.append(rows, advance)
        """
        _checked(rows.schema, self._store.name)
        rows = files.without_views(rows)
        # A column without any value has no known type; to readers it is the same as no column.
        rows = rows.drop_columns([field.name for field in rows.schema if pa.types.is_null(field.type)])
        added = _added(self._shape, rows.schema, self._store.name)
        parts = list(by_bucket(rows, self._shape.time, self._shape.granularity))
        before = {held.lock.id for held in self._held}
        found = self.place(parts[: INTERVALS_MAX + 1], INTERVALS_MAX)
        if isinstance(found, LostRace):
            return found
        placed, rest = found
        if rest:
            self._release(lambda held: held.lock.id not in before)  # nothing will be appended there
            count = len(placed) + len(rest) + max(len(parts) - INTERVALS_MAX - 1, 0)
            raise ConfigError(
                f"Rows of at least {count} intervals of {self._store.name} in one append; {INTERVALS_MAX} are "
                "possible. Append fewer rows at once, or give the table a coarser granularity."
            )
        if added:
            self._shape = widen(self._store, rows.schema)
        return self.append_parts(placed, advance)

    def place(
        self, parts: Sequence[tuple[Interval, pa.Table]], most: int
    ) -> tuple[list[SegmentRows], list[tuple[Interval, pa.Table]]] | LostRace:
        """Get locks and numbers for rows from `by_bucket`, for at most `most` intervals. Also return the rest.

        A rewrite may have divided the table more finely or more coarsely than its granularity. If more finely, a part
        that extends past the interval of its first row is cut there, since readers show only those rows of a segment
        that lie in its interval. If more coarsely, the parts of one interval are joined.

        Example:
            day = tables.Granularity.DAY.bucket(tables.Interval.of("2024-01-01", "2024-01-02").start)
            found = appender.place([(day, rows)], most=10)
        """
        placed: list[SegmentRows] = []
        waiting = list(reversed(parts))
        self._hold(files.microseconds_of(rows, self._shape.time)[0].as_py() for _, rows in parts[:most])
        while waiting and len(placed) < most:
            bucket, rows = waiting.pop()
            moments = files.microseconds_of(rows, self._shape.time)
            held = self._held_at(moments[0].as_py())
            if isinstance(held, LostRace):
                return held
            end = held.span.end
            while waiting and bucket.end < end and waiting[-1][0].start < end:
                bucket, more = waiting.pop()
                rows = pa.concat_tables([rows, more])
            if end < bucket.end:
                moments = files.microseconds_of(rows, self._shape.time)
                count = pc.sum(pc.less(moments, end)).as_py()
                if count < len(rows):
                    waiting.append((Interval(end, bucket.end), rows.slice(count)))
                    rows = rows.slice(0, count)
            held.used = self._appends + 1
            placed.append(SegmentRows(held.lock, held.span, held.free.pop(0), rows))
        return placed, waiting[::-1]

    def append_parts(self, parts: Sequence[SegmentRows], advance: Advance | None = None) -> Published | LostRace:
        """Like `append`, for rows that `place` has placed and whose columns the table has.

        Raises:
            SamzaAzureError: rows lie outside the span of their lock. Nothing was published.

        Example:
            if not isinstance(found, LostRace):
                placed, rest = found
                appender.append_parts(placed)
        """
        segments, under = [], set()
        self._appends += 1
        for part in parts:
            moments = files.microseconds_of(part.rows, self._shape.time)
            if moments[0].as_py() < part.span.start or moments[-1].as_py() >= part.span.end:
                raise SamzaAzureError(
                    f"Rows of {self._store.name} lie outside {part.span}, in which they were to be published: readers "
                    "would not show them. Nothing was published; please report this."
                )
            under.add(part.lock.id)
            data = files.encode(part.rows)
            name = self._store.file_name(part.lock.id, uuid.uuid4().hex)
            self._store.upload(name, data)
            segments.append(
                Segment.root(
                    self._store.name,
                    part.lock.interval,
                    part.lock.version,
                    part.partition,
                    file=files.file_of(name, data, self._shape.time),
                )
            )
        if not segments and advance is None:
            return Published(())
        answer = self._store.publish(self._task.id, segments, advance=advance, under=under)
        if isinstance(answer, LostRace):
            self.close()
        else:
            self._release(lambda held: not held.free)
        return answer

    def close(self) -> None:
        """Give all locks back."""
        self._store.release_all(self._task.id)
        self._held.clear()

    def release_unused(self) -> None:
        """Give back the locks of intervals to which nothing was appended for a while."""
        self._release(lambda held: self._appends - held.used >= UNUSED_APPENDS)

    def release_older(self, now: float) -> None:
        """Like `release_unused`, by the caller's clock in seconds: without appends there is nothing to count.

        Example:
            appender.release_older(time.monotonic())
        """
        for held in self._held:
            if held.used > held.seen:
                held.seen, held.used_at = held.used, now
        self._release(lambda held: now - held.used_at >= UNUSED_S)

    def _release(self, is_done: Callable[[_Held], bool]) -> None:
        if done := {held.lock.id for held in self._held if is_done(held)}:
            self._store.release_all(self._task.id, done)
            self._held = [held for held in self._held if held.lock.id not in done]

    def _hold(self, moments: Iterable[int]) -> None:
        """Acquire locks for many moments in few writes of the head. `_held_at` asks for the remaining ones singly."""
        ask = partial(self._store.allocate_many, self._task)
        missing, before = [moment for moment in moments if self._known_at(moment) is None], 0
        while len(missing) > 1 and len(missing) != before:
            self._ask(partial(ask, missing, *self._how))
            before, missing = len(missing), [moment for moment in missing if self._known_at(moment) is None]

    def _held_at(self, moment: int) -> _Held | LostRace:
        """A lock with free numbers whose interval contains a moment."""
        if held := self._known_at(moment):
            return held
        answer = self._ask(lambda: {moment: self._store.allocate(self._task, moment, *self._how)})[moment]
        if not isinstance(answer, Granted):
            return LostRace(_no_lock(self._shape.granularity.bucket(moment), answer))
        return self._held[-1]

    def _known_at(self, moment: int) -> _Held | None:
        return next((one for one in self._held if one.free and one.span.start <= moment < one.span.end), None)

    @property
    def _how(self) -> tuple[Granularity, int]:
        return self._shape.granularity, self._numbers

    def _ask(self, ask: Callable[[], Mapping[int, A]]) -> Mapping[int, A]:
        """Ask for locks, and keep what is granted. If the answer is lost, some may have been granted."""
        if self._is_unsure:
            self._release_unknown()
        self._is_unsure = True
        answers = ask()
        granted = {moment: one.lock for moment, one in answers.items() if isinstance(one, Granted)}
        timeline = self._store.latest().timeline if granted else Timeline()
        for moment, lock in granted.items():
            assert lock.partitions is not None
            span = _shown_around(timeline, moment, lock)
            self._held.append(_Held(lock, span, [*lock.partitions], self._appends))
        self._is_unsure = False
        return answers

    def _release_unknown(self) -> None:
        """Give back locks that were granted by a call whose answer was lost."""
        known = {held.lock.id for held in self._held}
        for lock in self._store.state().box.held(self._task.id):
            if lock.id not in known:
                self._store.release(self._task.id, lock.id)


def _shown_around(timeline: Timeline, moment: int, lock: TableLock) -> Interval:
    """The part of a lock's interval around a moment that nothing of a higher version hides."""
    entries = timeline.lookup(lock.interval, incomplete=True)
    hidden = [entry.interval for entry in entries if entry.version > lock.version]
    start = max([lock.interval.start, *(one.end for one in hidden if one.end <= moment)])
    end = min([lock.interval.end, *(one.start for one in hidden if one.start > moment)])
    return Interval(start, end)


def _no_lock(interval: Interval, answer: Revoked | Blocked | None) -> str:
    """Why rows of an interval cannot be appended now."""
    match answer:
        case Blocked(behind):
            held = ", ".join(f"{lock.group} (lock {lock.id}, {lock.type} on {lock.interval})" for lock in behind)
            return f"{interval} is held by {held}."
        case Revoked(lock):
            return f"Lock {lock.id} on {lock.interval} was revoked by a higher priority."
    return f"{interval} has no free interval: the existing intervals are divided differently."


def by_bucket(rows: pa.Table, time: str, granularity: Granularity) -> Iterator[tuple[Interval, pa.Table]]:
    """The rows of each interval, in the order of time."""
    files.check_moments(files.microseconds_of(rows, time), time)
    rows = files.without_views(rows).sort_by(time)
    moments = files.microseconds_of(rows, time)
    first = 0
    while first < len(rows):
        bucket = granularity.bucket(moments[first].as_py())
        count = pc.sum(pc.less(moments.slice(first), bucket.end)).as_py()
        yield bucket, rows.slice(first, count)
        first += count


def _checked(schema: pa.Schema, table: str) -> pa.Schema:
    """The schema as a table stores it. Raise ConfigError for a duplicate column, or a type that no file can hold."""
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise ConfigError(f"Two columns of the rows for {table} have the name {twice[0]!r}. Rename one of them.")
    schema = files.plain(schema)
    for field in schema:
        if not files.may_be_held(field.type):
            raise ConfigError(
                f"The column {field.name!r} of the rows for {table} is of type {field.type}, which cannot be sorted "
                "into files. Cast it to a type that Parquet has, a text for instance, or leave it out."
            )
    return schema


def _text(schema: pa.Schema) -> str:
    text = base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()
    if len(text) > TEXT_MAX:
        raise ConfigError(
            f"The {len(schema)} columns of the table do not fit into its head: their schema has {len(text):,} "
            f"characters, and {TEXT_MAX:,} are possible. Put columns that belong together into one of type struct or "
            "map, with shorter names, or divide the table."
        )
    return text


__all__ = ["WITHIN_A_DAY", "Appender", "SegmentRows", "Shape", "by_bucket", "create", "divide", "widen"]

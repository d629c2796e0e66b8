"""Compact a table, or rewrite it with another granularity, while others append to it.

Memory is bounded: one batch of each of at most `FAN_IN_MAX` files, and two output files. More files than that are
merged in passes, unless they follow each other in time. What is published stays, so an interrupted compaction
continues with the rest when it is called again.
"""

import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.logs.operations import Pause
from samza_azure.segments import (
    ETERNITY,
    File,
    Granted,
    Granularity,
    Interval,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Segment,
    Timeline,
    TimelineEntry,
)
from samza_azure.storage.interface import DELETE_MAX
from samza_azure.tables import files
from samza_azure.tables.store.segments import ANNOUNCED_MAX, GarbageCollected, SegmentStore
from samza_azure.tables.table import filled
from samza_azure.tables.write import WITHIN_A_DAY, Shape, by_bucket

#: At most this many sorted runs of rows are merged at once; a batch of each is in memory.
FAN_IN_MAX = 32
BATCH_ROWS = 16 << 10
#: A REPLACE writes at most this many intervals: its lock's row names each, and has room for about a thousand.
INTERVALS_MAX = 900
TARGET_BYTES = 128 << 20
#: How often something is tried that others are at work on.
TRIES_MAX = 5
#: An interval that is still written to is compacted when it has this many small segments.
SMALL_MAX = 16


def always() -> bool:
    """The default of `goes_on`: nothing asks the compaction to stop."""
    return True


class Unmerged(StrEnum):
    """Why segments were left out. After LOCKED, CHANGED and APPENDED another try may succeed.

    Example:
        again = [one for one in tables.compact(store, task) if one.why is tables.Unmerged.LOCKED]
    """

    LOCKED = "locked"  # another task holds a lock on them
    MERGED = "merged"  # another task has merged them
    CHANGED = "changed"  # others revoked the lock, or changed what was read
    APPENDED = "appended"  # too many of the intervals are appended to
    DAMAGED = "damaged"  # a file is damaged or missing


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the numbers of segments before and after. If segments were left as they are, `why`
    says for which reason, and `refused` says it in words.

    Example:
        for one in tables.compact(store, task):
            print(one.refused or f"{one.inputs} segments became {one.outputs}")
    """

    inputs: int = 0
    outputs: int = 0
    refused: str = ""
    why: Unmerged | None = None


def plan(
    store: SegmentStore,
    interval: Interval = ETERNITY,
    *,
    target_bytes: int = TARGET_BYTES,
    timeline: Timeline | None = None,
) -> list[list[Segment]]:
    """What `compact` would merge: groups of small neighbours of one interval and version, each at most `FAN_IN_MAX`.

    Raises:
        ConfigError: there is no such table.
        CorruptState: rows of the account that describe the table contradict each other, or are damaged.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        groups = tables.plan(store, tables.Interval.of("2024-01", "2024-02"))
        tables.compact(store, task, groups=groups[:10])
    """
    found: list[list[Segment]] = []
    for entry in (store.latest().timeline if timeline is None else timeline).lookup(interval):
        waiting: list[Segment] = []
        for group in _groups(entry.segments):
            if _bytes(group) >= target_bytes:
                continue  # large enough as it is
            if len(waiting) + len(group) > FAN_IN_MAX:
                found.append(waiting)
                waiting = []
            waiting = [*waiting, *group]
        found.append(waiting)
    unique = {tuple(one.id for one in group): group for group in found}
    return [group for group in unique.values() if len(_groups(group)) > 1]


def due(store: SegmentStore, now_us: int, *, target_bytes: int = TARGET_BYTES) -> list[list[Segment]]:
    """What a job compacts by itself: intervals that are over, and those with many small segments.

    The interval with the most appends is left out until it is over, since a compaction there would have to restart
    again and again.
    """
    snapshot, box = store.latest(), store.state().box
    appending = {lock.id: lock.interval for lock in box.active() if lock.type is LockType.APPEND}
    writes = dict.fromkeys(appending.values(), 0)
    for chunk in snapshot.timeline.chunks:
        if chunk.interval in writes:  # not by the locks' counts: a publish under several locks raises one of them
            published = (one.published for one in chunk.segments.values())
            writes[chunk.interval] += sum(any(each.lock in appending for each in under) for under in published)
    hardest = max(writes, key=lambda interval: (writes[interval], interval.end), default=None)
    found = []
    for group in plan(store, target_bytes=target_bytes, timeline=snapshot.timeline):
        interval = group[0].interval
        if interval.end <= now_us and interval not in writes:
            found.append(group)
        elif interval != hardest and len(small := _small(group)) >= SMALL_MAX:
            found.append(small)
    return found


def _small(segments: list[Segment]) -> list[Segment]:
    """The segments without the groups that are larger than all smaller ones together. Otherwise a large file would be
    rewritten after every few appends; this way each row is rewritten a logarithmic number of times."""
    groups = sorted(_groups(segments), key=_bytes)
    while len(groups) > 1 and _bytes(groups[-1]) > sum(map(_bytes, groups[:-1])):
        groups.pop()
    kept = {one.id for group in groups for one in group}
    return [one for one in segments if one.id in kept]


def compact(
    store: SegmentStore,
    task: LockTask,
    interval: Interval = ETERNITY,
    *,
    target_bytes: int = TARGET_BYTES,
    groups: Sequence[list[Segment]] | None = None,
    goes_on: Callable[[], bool] = always,
) -> list[Compacted]:
    """Merge the small segments of an interval while others append to it; each group is published as it is done.

    `groups` are the result of `plan` or `due`; `goes_on` is called before each of them. Groups that others have locked
    come after the rest, a few times. If they are locked still, or have a damaged or missing file, they are left out and
    reported. A process that dies in the middle loses only the current group; call this again for the rest. Memory: a
    batch of each of at most `FAN_IN_MAX` inputs, and one output file.

    Raises:
        ConfigError: there is no such table.
        CorruptState: rows of the account that describe the table contradict each other, or are damaged. A damaged file
            is only reported.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        task = tables.LockTask("compactor", "compactor", 0, tables.LockOwner("compactor"))
        print(sum(one.inputs for one in tables.compact(store, task)))
    """
    done, task = list[Compacted](), _alone(task)
    waiting = plan(store, interval, target_bytes=target_bytes) if groups is None else groups
    for tries in range(TRIES_MAX):
        if tries and waiting:
            store.wait(Pause(tries))
        locked = []
        for group in waiting:
            if not goes_on():
                return done
            one = _compact(store, task, group, target_bytes)
            if one.why is Unmerged.LOCKED and tries < TRIES_MAX - 1:
                locked.append(group)
            else:
                done.append(one)
        waiting = locked
    return done


def rewrite(
    store: SegmentStore,
    task: LockTask,
    interval: Interval,
    granularity: Granularity,
    *,
    target_bytes: int = TARGET_BYTES,
) -> Compacted:
    """Rewrite an interval with another granularity, finer or coarser, while others append to it.

    It holds a REPLACE lock on all intervals, of the old and the new granularity, that have rows of `interval`. Rows
    appended meanwhile are carried over. Everything is published at once.

    Raises:
        ConfigError: there is no such table, its dates cannot be divided that finely, or the interval would become too
            many.
        CorruptState: a file is damaged or missing. Nothing was changed.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        month = tables.Interval.of("2024-01", "2024-02")
        print(tables.rewrite(store, task, month, tables.Granularity.MONTH))
    """
    for _ in range(TRIES_MAX):
        with suppress(GarbageCollected):  # since the lock was granted, at whose sequence number it reads
            return _rewrite(store, _alone(task), interval, granularity, target_bytes)
    return _left(interval, Unmerged.CHANGED, "its garbage was collected each time before it was read. Try again.")


def _rewrite(
    store: SegmentStore, task: LockTask, interval: Interval, granularity: Granularity, target_bytes: int
) -> Compacted:
    shape = Shape.of(store.state().head, store.name)
    if granularity in WITHIN_A_DAY and pa.types.is_date(shape.schema.field(shape.time).type):
        raise ConfigError(
            f"The column {shape.time!r} of {store.name} is a date, which is the same for a whole day, and cannot "
            f"divide the table by {granularity}. Name day or coarser."
        )
    whole = _whole(store.latest().timeline, interval, granularity)
    if whole is None:
        return Compacted()
    entries = _with_rows(store.latest().timeline, whole)
    for number, _ in enumerate(bucket for entry in entries for bucket in granularity.buckets(entry.interval)):
        if number >= INTERVALS_MAX:
            raise ConfigError(
                f"{whole} would be divided into more than {INTERVALS_MAX:,} intervals by {granularity}. Name a shorter "
                "interval, or a coarser granularity; from there it can be divided again."
            )
    if all(entry.chunk.interval == granularity.bucket(entry.interval.start) for entry in entries):
        return Compacted()
    answer = store.acquire_anew(task, LockRequest(task.id, store.name, whole, LockType.REPLACE))
    if not isinstance(answer, Granted):
        return _left(whole, Unmerged.LOCKED, "another task holds a lock on it, or on a part of it.")
    lock = answer.lock
    try:
        appending = [one for one in store.state().box.active() if one.type is LockType.APPEND]
        if len([one for one in appending if one.interval.overlaps(whole)]) >= ANNOUNCED_MAX:
            return _left(
                whole,
                Unmerged.APPENDED,
                "too many of its intervals are appended to. Name a shorter interval, or try again "
                "later: a job gives such a lock back after 5 minutes without rows.",
            )
        timeline = store.snapshot(lock.read).timeline
        if _whole(timeline, whole, granularity) != whole:
            return _left(whole, Unmerged.CHANGED, "its intervals have changed meanwhile.")
        entries = _with_rows(timeline, whole)
        inputs = [*dict.fromkeys(one for entry in entries for one in entry.segments)]
        wanted = dict.fromkeys(bucket for entry in entries for bucket in granularity.buckets(entry.interval))
        # An interval without rows gets an empty segment; otherwise the older rows below it would stay visible.
        made: dict[Interval, list[File | None]] = {bucket: [] for bucket in wanted}
        for bucket, file in _divided(store, lock.id, entries, granularity, target_bytes):
            made.setdefault(bucket, []).append(file)
        outputs = []
        names_of = store.numbers_of({bucket: max(len(written), 1) for bucket, written in made.items()}, lock.version)
        for bucket, written in made.items():
            names = names_of[bucket]
            group = Partitions(name.partition for name in names)
            for name, one in zip(names, written or [None], strict=True):
                outputs.append(Segment.root(store.name, *name, group=group, file=one))
        published = store.publish(task.id, outputs, inputs=inputs, under=[lock.id])
        if isinstance(published, LostRace):
            return Compacted(refused=published.reason, why=Unmerged.CHANGED)
        return Compacted(len(inputs), len(outputs))
    finally:
        store.release_all(task.id)


def _left(interval: Interval, why: Unmerged, text: object) -> Compacted:
    return Compacted(refused=f"{interval}: {text}", why=why)


def _alone(task: LockTask) -> LockTask:
    """The task in a group of its own. Tasks of one group share locks, so a stopped compaction and its successor would
    both publish the rows of the same segments."""
    return replace(task, group=task.id)


def _whole(timeline: Timeline, interval: Interval, granularity: Granularity) -> Interval | None:
    """The interval extended to boundaries that the existing intervals and the wanted ones share; None without rows."""
    there = _with_rows(timeline, interval)
    if not there:
        return None
    whole = Interval(there[0].interval.start, there[-1].interval.end)
    while True:
        there = _with_rows(timeline, whole)
        start = min(whole.start, *(entry.chunk.interval.start for entry in there))
        end = max(whole.end, *(entry.chunk.interval.end for entry in there))
        wider = Interval(granularity.bucket(start).start, granularity.bucket(end - 1).end)
        if wider == whole:
            return whole
        whole = wider


def _with_rows(timeline: Timeline, interval: Interval) -> list[TimelineEntry]:
    """What shows rows in an interval. What was dropped stays hidden by its drop, which may be far longer."""
    return [entry for entry in timeline.lookup(interval) if entry.chunk.has_rows]


def _divided(
    store: SegmentStore, lock: int, entries: Sequence[TimelineEntry], granularity: Granularity, target_bytes: int
) -> Iterator[tuple[Interval, File]]:
    """Write the rows of entries to files of another granularity. Entries do not overlap, so they are read in order."""
    shape = Shape.of(store.state().head, store.name)
    output = _Output(store, lock, shape, target_bytes)
    current: Interval | None = None
    for entry in entries:
        sources = [(one.file, cut) for one in entry.segments if one.file and (cut := entry.interval.cut(one.interval))]
        for part in _in_order(store, lock, sources, shape, target_bytes):
            for bucket, rows in by_bucket(part, shape.time, granularity):
                if current is not None and bucket != current and (file := output.finish()):
                    yield current, file
                current = bucket
                if file := output.write(rows):
                    yield bucket, file
    if current is not None and (file := output.finish()):
        yield current, file


def _compact(store: SegmentStore, task: LockTask, inputs: list[Segment], target_bytes: int) -> Compacted:
    one, there = inputs[0], Partitions(segment.partition for segment in inputs)
    request = LockRequest(task.id, store.name, one.interval, LockType.EXCLUSIVE, there, one.version)
    answer = store.acquire_anew(task, request)
    if not isinstance(answer, Granted):
        return _left(one.interval, Unmerged.LOCKED, f"another task holds a lock on {there}.")
    try:
        # Another compaction may have merged them before we had the lock. From now on none can.
        snapshot = store.latest()
        shape = Shape.of(snapshot.head or store.state().head, store.name)
        if not all(map(snapshot.timeline.is_visible, inputs)):
            return _left(one.interval, Unmerged.MERGED, f"another task has merged {there} meanwhile.")
        sources = [(segment.file, segment.interval) for segment in inputs if segment.file is not None]
        made: list[File | None] = [*_merged(store, answer.lock.id, sources, shape, target_bytes)]
        numbers = store.allocate_outputs(task, one.interval, one.version, max(len(made), 1))
        if not isinstance(numbers, Granted) or numbers.lock.partitions is None:
            return _left(one.interval, Unmerged.CHANGED, "a lock was lost.")
        group = numbers.lock.partitions
        covers = Partitions.union_of(segment.covers for segment in inputs)
        outputs = [
            Segment(
                store.name,
                one.interval,
                one.version,
                partition,
                covers,
                1 + max(segment.generation for segment in inputs),
                group,
                there,
                file,
            )
            for partition, file in zip(group, made or [None], strict=True)
        ]
        under = (answer.lock.id, numbers.lock.id)
        published = store.publish(task.id, outputs, inputs=inputs, under=under)
        if isinstance(published, LostRace):
            return Compacted(refused=published.reason, why=Unmerged.CHANGED)
        return Compacted(len(inputs), len(outputs))
    except CorruptState as error:  # names the damaged or missing file; the other groups do not need it
        return _left(one.interval, Unmerged.DAMAGED, error)
    finally:
        store.release_all(task.id)


def _merged(
    store: SegmentStore,
    lock: int,
    sources: Sequence[tuple[File, Interval]],
    shape: Shape,
    target_bytes: int,
) -> Iterator[File]:
    """Merge the rows of files in time order into new files, each uploaded as soon as it is large enough."""
    output = _Output(store, lock, shape, target_bytes)
    for part in _in_order(store, lock, sources, shape, target_bytes):
        if file := output.write(part):
            yield file
    if file := output.finish():
        yield file


class _Output:
    """Write rows to files of about the target size. One file is in memory."""

    def __init__(self, store: SegmentStore, lock: int, shape: Shape, target_bytes: int) -> None:
        self._store, self._lock, self._shape, self._target_bytes = store, lock, shape, target_bytes
        self._out = io.BytesIO()
        self._writer: Any = None

    def write(self, rows: pa.Table) -> File | None:
        """Add rows. Return the file if it is now large enough."""
        if self._writer is None:
            self._out = io.BytesIO()
            self._writer = files.writer(self._out, self._shape.schema)
        self._writer.write_table(rows, row_group_size=files.ROW_GROUP_ROWS)
        return self.finish() if self._out.tell() >= self._target_bytes else None

    def finish(self) -> File | None:
        """Upload the remaining rows. Return None if there are none."""
        if self._writer is None:
            return None
        self._writer.close()
        self._writer = None
        data = self._out.getvalue()
        name = self._store.file_name(self._lock, uuid.uuid4().hex)
        self._store.upload(name, data)
        return files.file_of(name, data, self._shape.time)


#: Files that follow each other in time, each with the interval in which its rows count.
_Run = list[tuple[File, Interval]]


def _in_order(
    store: SegmentStore, lock: int, sources: Sequence[tuple[File, Interval]], shape: Shape, target_bytes: int
) -> Iterator[pa.Table]:
    """Merge the rows of sorted files. Passes write files under the same lock, which are deleted in the end."""
    waiting, between = _runs(sources, shape), list[str]()
    try:
        while len(waiting) > FAN_IN_MAX:
            output, run = _Output(store, lock, shape, target_bytes), _Run()
            for part in _merge(store, waiting[:FAN_IN_MAX], shape):
                run += [(file, ETERNITY) for file in (output.write(part),) if file]
            run += [(file, ETERNITY) for file in (output.finish(),) if file]
            between += [file.name for file, _ in run]
            waiting = [*waiting[FAN_IN_MAX:], run]
        yield from _merge(store, waiting, shape)
    finally:
        for first in range(0, len(between), DELETE_MAX):
            store.blobs.delete_many(between[first : first + DELETE_MAX])


def _runs(sources: Sequence[tuple[File, Interval]], shape: Shape) -> list[_Run]:
    """Put sorted files into as few runs as their times allow."""
    runs: list[tuple[int, _Run]] = []  # with the last moment of each
    spans = [(files.span(file, shape.time) or interval, file, interval) for file, interval in sources]
    for span, file, interval in sorted(spans, key=lambda one: (one[0].start, one[0].end, one[1].name)):
        number = next((number for number, (last, _) in enumerate(runs) if last <= span.start), len(runs))
        run = runs[number][1] if number < len(runs) else []
        runs[number : number + 1] = [(span.end, [*run, (file, interval)])]
    return [run for _, run in runs]


def _merge(store: SegmentStore, runs: Sequence[_Run], shape: Shape) -> Iterator[pa.Table]:
    """Merge runs with a batch of each in memory. Rows up to the earliest end of these batches are final: no row that is
    still unread is earlier."""
    waiting: list[tuple[pa.Table, Iterator[pa.Table]]] = []
    for run in runs:
        _refill(waiting, _rows(store, run, shape))
    while waiting:
        moments = [files.microseconds_of(table, shape.time) for table, _ in waiting]
        up_to = min(pc.max(one).as_py() for one in moments)
        ready, rest = [], []
        for (table, source), moment in zip(waiting, moments, strict=True):
            mask = pc.less_equal(moment, up_to)
            ready.append(table.filter(mask))
            left = table.filter(pc.invert(mask))
            if len(left):
                rest.append((left, source))
            else:
                _refill(rest, source)
        yield pa.concat_tables(ready).sort_by(shape.time)
        waiting = rest


def _rows(store: SegmentStore, run: _Run, shape: Shape) -> Iterator[pa.Table]:
    """The rows of a run that lie in its intervals."""
    for file, interval in run:
        for batch in files.batches(store.blobs, file, BATCH_ROWS):
            yield filled(files.within(pa.Table.from_batches([batch]), shape.time, interval), shape.schema)


def _refill(waiting: list[tuple[pa.Table, Iterator[pa.Table]]], source: Iterator[pa.Table]) -> None:
    """Add the next batch that has rows."""
    for table in source:
        if len(table):
            waiting.append((table, source))
            return


def _groups(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group the segments that become visible together."""
    found: dict[Any, list[Segment]] = {}
    for segment in segments:
        found.setdefault((segment.covers, segment.generation), []).append(segment)
    return list(found.values())


def _bytes(segments: Sequence[Segment]) -> int:
    return sum(one.file.bytes for one in segments if one.file is not None)

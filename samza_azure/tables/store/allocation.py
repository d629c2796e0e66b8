"""Allocate partition numbers for appends: each number is given out once, together with the lock on it.

*Where rows are appended.* At the interval and version that is visible. Where nothing is, or only a drop, at an interval
of the table's granularity, with the number of the new lock as its version: no other lock ever has it, and it lies above
all that was there before. If a REPLACE is under way there, the version is the one just below it, so that it carries the
rows. So an interval and version is never begun twice, and when its segments are gone the row that counts its numbers
can go, too. As long as such a lock is held, others append to the same place.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import count as counted
from itertools import pairwise
from typing import TypeAlias

from samza_azure.segments import (
    Granted,
    Granularity,
    Interval,
    LockBox,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    SegmentId,
    Timeline,
)
from samza_azure.segments.chunk import Chunk
from samza_azure.segments.locks import LockAnswer
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Write
from samza_azure.tables.store import locks, reading
from samza_azure.tables.store.rows import next_key
from samza_azure.tables.store.table import ChunkKey, SegmentTable, TableLocks, in_parts

#: So many intervals that were not asked for are read along with those that were: a call costs more.
BETWEEN_MAX = 100
#: An interval, and the version of what is appended there. None: that of the lock that is about to be granted.
_Place: TypeAlias = tuple[Interval, int | None]


def allocate(
    table: SegmentTable, task: LockTask, moment: int, granularity: Granularity, count: int = 1
) -> LockAnswer | None:
    """Allocate numbers for rows of a moment and acquire the APPEND lock on them, in one step.

    The numbers are the lock's `partitions`. The lock has the interval and version of what is visible at the moment; if
    nothing is, or a drop, the coarsest free interval up to `granularity`. Return None if no interval is free.
    """
    waited = None
    for rank in counted():
        answer = _allocate(table, task, [moment], granularity, count, rank).get(moment)
        if answer is None:
            return waited
        if isinstance(answer, Granted):
            return answer
        waited = waited or answer
    raise AssertionError  # `counted` does not end


def allocate_many(
    table: SegmentTable, task: LockTask, moments: Sequence[int], granularity: Granularity, count: int = 1
) -> dict[int, LockAnswer]:
    """Like `allocate` for several moments in one step, each in its best place. Return the answers by moment.

    If several moments share a place, only the first has an answer. A moment has none if no interval is free, or if
    the step has no room for it.
    """
    return _allocate(table, task, moments, granularity, count, 0)


def _allocate(
    table: SegmentTable, task: LockTask, moments: Sequence[int], granularity: Granularity, count: int, rank: int
) -> dict[int, LockAnswer]:
    """Allocate numbers for each moment in its best place; with a rank above 0, in its next best ones."""
    table.etags.clear()
    sent: dict[int, int] = {}  # moments by the locks that were asked for

    def decide(state: TableLocks) -> tuple[dict[int, LockAnswer], list[Write]]:
        state.box.tasks[task.id] = task
        if mine := [lock for lock in state.box.held(task.id) if lock.id in sent]:  # the answer to a try was lost
            return {sent[lock.id]: Granted(lock) for lock in mine}, []
        sent.clear()
        # Read after the locks. What appears later was published under one of these locks, or changes the head.
        timeline, chosen = reading.latest(table).timeline, dict[_Place, int]()
        for moment in moments:
            for place in _places(state.box, chosen, timeline, moment, granularity)[rank : rank + 1]:
                chosen.setdefault(place, moment)
        numbers = _numbers(table, {(interval, at): count for interval, at in chosen if at is not None})
        answers: dict[int, LockAnswer] = {}
        writes: list[Write] = []
        for (interval, at), moment in chosen.items():
            version = state.box.granted + 1 if at is None else at
            begun = 0, Write(Act.INSERT, next_key(interval, version), {"next": count})
            first, write = numbers.get((interval, version), begun)
            partitions = Partitions.between(first, first + count)
            request = LockRequest(task.id, table.name, interval, LockType.APPEND, partitions, version)
            decision = state.box.decide(request)
            if isinstance(decision.answer, Granted):
                more = [*locks.writes_of(table, state, decision), write]
                if len(writes) + len(more) >= OPERATIONS_MAX:
                    break
                writes += more
                sent[decision.answer.lock.id] = moment
                state.box.apply(decision)
            answers[moment] = decision.answer
        return answers, writes

    return table.with_head(decide) if moments else {}


def _places(
    box: LockBox, chosen: Collection[_Place], timeline: Timeline, moment: int, granularity: Granularity
) -> list[_Place]:
    """The places where rows of a moment may be appended, the best first. `chosen` are those of other moments."""
    active, copied = box.active(), {one.version for lock in box.locks.values() for one in lock.replaced}
    entries = timeline.lookup(Interval(moment, moment + 1), incomplete=True)
    least = entries[0].version if entries else 0
    # First what is about to be published above all that is visible: it would hide what is appended below it.
    promised = [place for place in chosen if place[1] is None or place[1] >= least]
    appended = [lock for lock in active if lock.type is LockType.APPEND and lock.partitions]
    promised += [(lock.interval, lock.version) for lock in appended if lock.version >= least]
    if over := [place for place in promised if place[0].start <= moment < place[0].end]:
        return over[:1]
    if entries and _is_taken(timeline, entries[0].chunk, copied):
        return [(entries[0].chunk.interval, entries[0].version)]
    found = []
    for each in granularity.finer():
        bucket = each.bucket(moment)
        there = timeline.lookup(bucket, incomplete=True)
        taken = [entry.interval for entry in there if _is_taken(timeline, entry.chunk, copied)]
        if taken and not entries:
            continue
        # A drop may begin and end anywhere: what it hides of the interval is an interval of its own.
        start = max([bucket.start, *(one.end for one in taken if one.end <= moment)])
        free = Interval(start, min([bucket.end, *(one.start for one in taken if one.start > moment)]))
        if not any(free.overlaps(interval) for interval, _ in promised):
            replacing = [
                lock.version for lock in active if lock.type is LockType.REPLACE and lock.interval.overlaps(free)
            ]
            found.append((free, min(replacing) - 1 if replacing else None))
    return [*dict.fromkeys(found)]


def _is_taken(timeline: Timeline, chunk: Chunk, copied: Collection[int]) -> bool:
    """Whether appends have to go where this is: to a drop only if copies for a REPLACE may still come there."""
    return chunk.has_rows or chunk.version in copied or not timeline.is_drop(chunk)


def allocate_outputs(table: SegmentTable, task: LockTask, interval: Interval, version: int, count: int) -> LockAnswer:
    """Allocate numbers for the outputs of a compaction. They are the `partitions` of the lock on them."""
    table.etags.clear()
    sent: set[int] = set()

    def decide(state: TableLocks) -> tuple[LockAnswer, list[Write]]:
        state.box.tasks[task.id] = task
        if mine := [lock for lock in state.box.held(task.id) if lock.id in sent]:  # the answer to a try was lost
            return Granted(mine[0]), []
        ((first, write),) = _numbers(table, {(interval, version): count}).values()
        partitions = Partitions.between(first, first + count)
        request = LockRequest(task.id, table.name, interval, LockType.EXCLUSIVE, partitions, version)
        decision = state.box.decide(request)
        if not isinstance(decision.answer, Granted):
            return decision.answer, []
        sent.add(decision.answer.lock.id)
        return decision.answer, [*locks.writes_of(table, state, decision), write]

    return table.with_head(decide)


def _numbers(table: SegmentTable, counts: Mapping[ChunkKey, int]) -> dict[ChunkKey, tuple[int, Write]]:
    """The next number of each place, and the write that takes `count` numbers from it on, sent with the head."""
    keys = {place: next_key(*place) for place in counts}
    spans = [(keys[part[0]], keys[part[-1]] + ".") for part in _near(sorted(keys, key=keys.__getitem__))]
    there = {row.key: row for span in spans for row in table.read(*span)}
    found = {}
    for place, count in counts.items():
        row = there.get(keys[place])
        first = 0 if row is None else row.values["next"]
        assert isinstance(first, int)
        found[place] = first, Write(Act.INSERT if row is None else Act.MERGE, keys[place], {"next": first + count})
    return found


def _near(places: Sequence[ChunkKey]) -> list[list[ChunkKey]]:
    """The places in parts, each of which is read in one call. Between old and new rows there may be counters of any
    number of intervals, as many as the table is old."""
    parts = [[*places[:1]]] if places else []
    for before, after in pairwise(places):
        (one, _), (other, _) = before, after
        length = min(one.end - one.start, other.end - other.start)
        if other.start - one.start > BETWEEN_MAX * length:
            parts.append([])
        parts[-1].append(after)
    return parts


def numbers(table: SegmentTable, interval: Interval, version: int, count: int) -> list[SegmentId]:
    """Numbers for segments that an interval lock covers."""
    return numbers_of(table, {interval: count}, version)[interval]


def numbers_of(table: SegmentTable, counts: Mapping[Interval, int], version: int) -> dict[Interval, list[SegmentId]]:
    """Like `numbers` for many intervals, in few writes."""
    found = {}
    for part in in_parts([*counts.items()], OPERATIONS_MAX - 2):
        wanted = {(interval, version): count for interval, count in part}
        for (interval, _), first in table.with_head(partial(_given, table, wanted)).items():
            found[interval] = [SegmentId(interval, version, first + number) for number in range(counts[interval])]
    return found


def _given(
    table: SegmentTable, counts: Mapping[ChunkKey, int], _: TableLocks
) -> tuple[dict[ChunkKey, int], list[Write]]:
    numbers = _numbers(table, counts)
    return {place: first for place, (first, _) in numbers.items()}, [write for _, write in numbers.values()]

"""Allocate partition numbers for appends: each number is given out once, together with the lock on it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial

from samza_azure.errors import StorageUnavailable
from samza_azure.segments import (
    Granted,
    Granularity,
    Interval,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    SegmentId,
    Timeline,
)
from samza_azure.segments.locks import LockAnswer
from samza_azure.storage import segment_locks as locks
from samza_azure.storage import segment_reading as reading
from samza_azure.storage.segment_rows import NEXT, is_ours, next_key, next_place, past
from samza_azure.storage.segment_table import TRIES_MAX, ChunkKey, SegmentTable, Snapshot, TableLocks, in_parts
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Write


class _Stale:
    """The visible segments may have changed since a place was chosen."""


def allocate(
    table: SegmentTable, task: LockTask, moment: int, granularity: Granularity, count: int = 1
) -> LockAnswer | None:
    """Allocate numbers for rows of a moment and acquire the APPEND lock on them, in one step.

    The numbers are the lock's `partitions`. The lock has the interval and version of what is visible at the moment;
    if nothing is, the coarsest free interval up to `granularity`. Return None if no interval is free.
    """
    for _ in range(TRIES_MAX):
        snapshot, waited = reading.latest(table), None
        for place in _places(table, snapshot.timeline, partial(_divided, table), moment, granularity):
            answers = _lock_new(table, task, [place], count, LockType.APPEND, snapshot)
            if isinstance(answers, _Stale):
                break
            if isinstance(answer := answers[place], Granted):
                return answer
            waited = waited or answer
        else:
            return waited
    raise StorageUnavailable(f"Allocating in {table.name}: others wrote first {TRIES_MAX} times.")


def allocate_many(
    table: SegmentTable, task: LockTask, moments: Sequence[int], granularity: Granularity, count: int = 1
) -> dict[int, LockAnswer]:
    """Like `allocate` for several moments in one step, each in its best place. Return the answers by moment.

    If several moments share a place, only the first has an answer. A moment has none if no interval is free, or if
    the step has no room for it.
    """
    for _ in range(TRIES_MAX):
        snapshot, divided, chosen = reading.latest(table), cache(partial(_divided, table)), dict[ChunkKey, int]()
        for moment in moments:
            there = lambda: [*divided(), *chosen]  # noqa: B023, E731 - called before the loop goes on
            for place in _places(table, snapshot.timeline, there, moment, granularity)[:1]:
                chosen.setdefault(place, moment)
        answers = _lock_new(table, task, [*chosen], count, LockType.APPEND, snapshot)
        if not isinstance(answers, _Stale):
            return {chosen[place]: answer for place, answer in answers.items()}
    raise StorageUnavailable(f"Allocating in {table.name}: others wrote first {TRIES_MAX} times.")


def allocate_outputs(table: SegmentTable, task: LockTask, interval: Interval, version: int, count: int) -> LockAnswer:
    """Allocate numbers for the outputs of a compaction. They are the `partitions` of the lock on them."""
    place = interval, version
    answers = _lock_new(table, task, [place], count, LockType.EXCLUSIVE, None)
    assert not isinstance(answers, _Stale)
    return answers[place]


def _lock_new(
    table: SegmentTable,
    task: LockTask,
    places: Sequence[ChunkKey],
    count: int,
    type: LockType,  # noqa: A002
    seen: Snapshot | None,
) -> dict[ChunkKey, LockAnswer] | _Stale:
    """Allocate numbers in each place and lock them, in one write, for the first places that fit into it."""
    table.etags.clear()
    sent: set[int] = set()

    def decide(state: TableLocks) -> tuple[dict[ChunkKey, LockAnswer] | _Stale, list[Write]]:
        state.box.tasks[task.id] = task
        if mine := [lock for lock in state.box.held(task.id) if lock.id in sent]:  # the answer to a try was lost
            return {(lock.interval, lock.version): Granted(lock) for lock in mine}, []
        if seen is not None and state.head.values.get("overwritten") != seen.overwritten:
            return _Stale(), []  # what is visible there may have another version by now
        numbers = _numbers(table, dict.fromkeys(places, count))
        new = [place for place, (_, write) in numbers.items() if write.act is Act.INSERT]
        if _are_divided_otherwise(table, new):
            return _Stale(), []
        answers: dict[ChunkKey, LockAnswer] = {}
        writes: list[Write] = []
        for (interval, version), (first, write) in numbers.items():
            partitions = Partitions.between(first, first + count)
            decision = state.box.decide(LockRequest(task.id, table.name, interval, type, partitions, version))
            if isinstance(decision.answer, Granted):
                more = [*locks.writes_of(table, state, decision), write]
                if len(writes) + len(more) >= OPERATIONS_MAX:
                    break
                writes += more
                sent.add(decision.answer.lock.id)
                state.box.apply(decision)
            answers[interval, version] = decision.answer
        return answers, writes

    return table.with_head(decide) if places else {}


def _places(
    table: SegmentTable,
    timeline: Timeline,
    divided: Callable[[], Iterable[ChunkKey]],
    moment: int,
    granularity: Granularity,
) -> list[ChunkKey]:
    """The places where rows of a moment may be appended, the best first. `divided` are those that have numbers."""
    if entries := timeline.lookup(Interval(moment, moment + 1), incomplete=True):
        return [(entries[0].chunk.interval, entries[0].version)]
    promised = [interval for interval, version in divided() if version == 0]
    if over := [one for one in promised if one.start <= moment < one.end]:
        return [(over[0], 0)]
    buckets = [each.bucket(moment) for each in granularity.finer()]
    free = (one for one in buckets if not any(one.overlaps(other) for other in promised))
    return [(one, 0) for one in free if not timeline.lookup(one, incomplete=True)]


def _are_divided_otherwise(table: SegmentTable, places: Sequence[ChunkKey]) -> bool:
    """Whether a different interval that overlaps one of these has numbers: segments may appear there."""
    return any(
        other.overlaps(interval) and known == version and other != interval
        for other, known in (_divided(table) if places else ())
        for interval, version in places
    )


def _divided(table: SegmentTable) -> list[ChunkKey]:
    """The places in which numbers have been given out."""
    return [next_place(row.key) for row in table.read(NEXT, past(NEXT)) if is_ours(row)]


def _numbers(table: SegmentTable, counts: Mapping[ChunkKey, int]) -> dict[ChunkKey, tuple[int, Write]]:
    """The next number of each place, and the write that takes `count` numbers from it on, sent with the head."""
    keys = {place: next_key(*place) for place in counts}
    there = {row.key: row for row in table.read(min(keys.values()), max(keys.values()) + ".")}
    found = {}
    for place, count in counts.items():
        row = there.get(keys[place])
        first = 0 if row is None else row.values["next"]
        assert isinstance(first, int)
        found[place] = first, Write(Act.INSERT if row is None else Act.MERGE, keys[place], {"next": first + count})
    return found


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

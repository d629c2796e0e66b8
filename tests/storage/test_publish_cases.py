"""The conformance cases of cover check, allocation and publish (S), of appending while replacing (C), and of locks that
are about publishes (L), by name.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import pytest

from samza_azure.segments import (
    Advance,
    Blocked,
    File,
    Granted,
    Granularity,
    Interval,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Published,
    Segment,
    SegmentId,
    TableLock,
)
from samza_azure.segments.publishing import locks_for
from tests.storage.conftest import Stores
from tests.storage.stored import Stored

DAY = Interval.of("2024-01-01", "2024-01-02")
MONTH = Interval.of("2024-01-01", "2024-02-01")
YEAR = Interval.of("2024-01-01", "2025-01-01")
QUARTERS = [*Granularity.QUARTER.buckets(YEAR)]
HOUR = Granularity.HOUR.bucket(DAY.start)
NEXT_HOUR = Granularity.HOUR.bucket(HOUR.end)


def day(text: str) -> Interval:
    return Granularity.DAY.bucket(Interval.of(text, text).start)


def lock(interval: Interval, version: int = 1, number: int = 1, **fields: object) -> TableLock:
    return TableLock(number, LockType.EXCLUSIVE, "g", "d", interval, version, **fields)  # type: ignore[arg-type]


def root(
    interval: Interval, version: int, partition: int, *, file: str = "", group: Partitions | None = None
) -> Segment:
    return Segment.root("d", interval, version, partition, group=group, file=File(file or f"{version}.{partition}"))


class Both(Stored):
    """R replaces, P appends."""

    def replacing(self, interval: Interval) -> TableLock:
        return locked(self, "R", interval, LockType.REPLACE)

    def commit(self, made: TableLock, *intervals: Interval) -> None:
        answer = self.publish("R", [root(each, made.version, 0, file=f"R {each}") for each in intervals])
        assert isinstance(answer, Published)

    def allocates(
        self,
        interval: Interval = DAY,
        granularity: Granularity = Granularity.DAY,
        *,
        previous: SegmentId | None = None,
    ) -> SegmentId:
        return allocated(self, "P", interval, granularity, previous=previous)

    def appends(self, name: SegmentId) -> None:
        answer = self.publish("P", [root(*name, file=f"P {name.partition}")])
        assert isinstance(answer, Published)


Make: TypeAlias = Callable[..., Stored]
Table = TypeVar("Table", bound=Stored)


def with_tasks(made: Table, *tasks: str | LockTask) -> Table:
    for task in tasks:
        made.add(LockTask(task, task) if isinstance(task, str) else task)
    return made


@pytest.fixture
def table(segment_stores: Stores) -> Make:
    """Makes a table with these tasks. A test makes one."""
    return lambda *tasks: with_tasks(Stored(segment_stores()), *tasks)


@pytest.fixture
def both(segment_stores: Stores) -> Both:
    return with_tasks(Both(segment_stores()), "R", "P")


def locked(
    of: Stored,
    task: str,
    interval: Interval,
    type: LockType = LockType.EXCLUSIVE,  # noqa: A002
    **more: object,
) -> TableLock:
    answer = of.box.acquire(LockRequest(task, "d", interval, type, **more))  # type: ignore[arg-type]
    assert isinstance(answer, Granted), answer
    return answer.lock


def allocated(
    of: Stored,
    task: str,
    interval: Interval = DAY,
    granularity: Granularity = Granularity.DAY,
    *,
    previous: SegmentId | None = None,
) -> SegmentId:
    answer = of.allocate(task, "s", interval.start, granularity, previous=previous)
    assert isinstance(answer, SegmentId), answer
    return answer


def shows(of: Stored) -> list[str]:
    return sorted(f"{one.version}.{one.partition}" for one in of.timeline.visible())


# Cover check.


def test_s1() -> None:
    days = [day("2024-01-01"), day("2024-01-02"), day("2024-01-03")]
    segments = [root(each, 1, 0) for each in days]
    locks = [lock(each, number=number) for number, each in enumerate(days)]
    assert locks_for(locks, segments, name="t1") == locks
    longer = [lock(Interval(days[0].start, days[2].end))]
    assert locks_for(longer, segments, name="t1") == longer
    with pytest.raises(ValueError, match="not covered"):
        locks_for([lock(each) for each in [day("2023-12-31"), *days[:2]]], segments, name="t1")


def test_s2() -> None:
    locks = [lock(DAY, number=number, partitions=Partitions.of(number)) for number in range(5)]
    segments = [root(DAY, 1, number) for number in range(5)]
    assert locks_for(locks, segments, name="t1") == locks
    assert locks_for(locks[::-1], segments[3:], name="t1") == locks[3:]
    with pytest.raises(ValueError, match="not covered"):
        locks_for(locks[:4], segments, name="t1")


def test_s3(table: Make) -> None:
    of = table("t1")
    version = locked(of, "t1", DAY).version
    with pytest.raises(ValueError, match="not covered"):
        of.publish("t1", [root(DAY, version + 1, 0)])


def test_s4() -> None:
    segment = root(DAY, 7, 0)
    assert not lock(DAY, 7, revoked=True).covers(segment)
    assert TableLock(1, LockType.APPEND, "g", "d", DAY, 0).covers(segment)
    assert not lock(DAY, 6).covers(segment)


# Allocation.


def test_s5(table: Make) -> None:
    of, previous, names = table("t1"), None, []
    for _ in range(3):
        previous = allocated(of, "t1", HOUR, Granularity.HOUR, previous=previous)
        names.append(previous)
    assert [name.partition for name in names] == [0, 1, 2]
    assert len({name.version for name in names}) == 1
    assert len(of.box.locks) == 3


@pytest.mark.parametrize("preferred", [Granularity.HOUR, Granularity.DAY, Granularity.MINUTE])
def test_s8_s9(table: Make, preferred: Granularity) -> None:
    of = table("batch", "t1")
    version = locked(of, "batch", HOUR).version
    core = Partitions.of(0, 1)
    of.publish("batch", [root(HOUR, version, number, group=core) for number in core])
    of.remove("batch")
    one = allocated(of, "t1", HOUR, preferred)
    two = allocated(of, "t1", HOUR, preferred, previous=one)
    assert (one, two) == (SegmentId(HOUR, version, 2), SegmentId(HOUR, version, 3))
    of.publish("t1", [root(*one), root(*two)])
    assert [str(one.group) for one in of.timeline.visible()] == ["0-1", "0-1", "2", "3"], "the core set is still of two"


# Publish.


def test_s12(table: Make) -> None:
    of = table("t1")
    version = locked(of, "t1", DAY).version
    assert isinstance(of.publish("t1", [root(DAY, version, 0)], advance=Advance("s", None, 10)), Published)
    assert of.positions == {"s": 10}
    refused = of.publish("t1", [root(DAY, version, 1)], advance=Advance("s", 9, 20))
    assert isinstance(refused, LostRace)
    assert "is at 10" in refused.reason
    assert len(of.timeline) == 1
    assert of.positions == {"s": 10}


def compaction(of: Stored, inputs: Sequence[Segment], count: int = 1, **fields: object) -> list[Segment]:
    """Outputs of a compaction, under locks of the task `compact`."""
    one = inputs[0]
    there = Partitions(segment.partition for segment in inputs)
    locked(of, "compact", one.interval, partitions=there, version=one.version)
    names = of.allocate_outputs("compact", one.interval, one.version, count)
    assert isinstance(names, list)
    group = Partitions(name.partition for name in names)
    covers = Partitions.union_of(segment.covers for segment in inputs)
    generation = 1 + max(segment.generation for segment in inputs)
    made = [Segment("d", *name, covers, generation, group, there) for name in names]
    return [replace(segment, **fields) for segment in made]


def appended(table: Make, *partitions: int, more: Sequence[str] = ()) -> Stored:
    """A table with roots in one day, and no locks."""
    of = table("append", *more)
    name = None
    for _ in partitions:
        name = allocated(of, "append", previous=name)
        of.publish("append", [root(*name)])
    of.remove("append")
    of.add(LockTask("compact", "compact", 1))
    return of


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"covers": Partitions.of(0, 1, 2)}, "What was not read"),
        ({"covers": Partitions.of(0)}, "no output covers"),
        ({"overshadows": Partitions.of(0)}, "its inputs are 0-1"),
    ],
)
def test_s13(table: Make, fields: dict[str, object], message: str) -> None:
    of = appended(table, 0, 1, 2)
    inputs = of.inputs("compact", DAY)[:2]
    with pytest.raises(ValueError, match=message):
        of.publish("compact", compaction(of, inputs, **fields), inputs=inputs)
    assert len(of.timeline) == 3


def test_s13_generation(table: Make) -> None:
    of = appended(table, 0, 1)
    inputs = of.inputs("compact", DAY)
    made = compaction(of, inputs)
    of.publish("compact", made, inputs=inputs)
    with pytest.raises(ValueError, match="has generation 1, and an input 1"):
        of.publish("compact", compaction(of, made, generation=1), inputs=made)


def test_s13_revoked(table: Make) -> None:
    of = appended(table, 0, 1, more=["high"])
    of.add(LockTask("high", "high", 9))
    inputs = of.inputs("compact", DAY)
    made = compaction(of, inputs)
    locked(of, "high", DAY)
    refused = of.publish("compact", made, inputs=inputs)
    assert isinstance(refused, LostRace)
    assert "was revoked" in refused.reason
    assert len(of.timeline) == 2


def test_s15(table: Make) -> None:
    of = appended(table, 0, 1)
    inputs = of.inputs("compact", DAY)
    made = compaction(of, inputs, 2)
    first = of.publish("compact", made, inputs=inputs)
    again = of.publish("compact", made, inputs=inputs)
    assert isinstance(first, Published) and not first.again
    assert isinstance(again, Published) and again.again
    assert len(of.timeline) == 4


def test_half_a_group_is_not_published(table: Make) -> None:
    of = appended(table, 0, 1)
    inputs = of.inputs("compact", DAY)
    made = compaction(of, inputs, 2)
    with pytest.raises(ValueError, match="of its group"):
        of.publish("compact", made[:1], inputs=inputs)


def test_inputs_that_are_hidden_meanwhile(table: Make) -> None:
    of = appended(table, 0, 1)
    inputs = of.inputs("compact", DAY)
    made = compaction(of, inputs)
    of.publish("compact", made, inputs=inputs)
    late = compaction(of, inputs, generation=7)
    refused = of.publish("compact", late, inputs=inputs)
    assert isinstance(refused, LostRace)
    assert "no longer visible" in refused.reason


# Appending while replacing.


def test_c1(both: Both) -> None:
    held = both.replacing(DAY)
    both.commit(held, DAY)
    name = both.allocates()
    assert name.version == held.version
    both.appends(name)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]


def test_c2(both: Both) -> None:
    held = both.replacing(DAY)
    both.appends(name := both.allocates())
    assert shows(both) == [f"{name.version}.0"]
    assert name.version < held.version
    both.commit(held, DAY)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]
    copy = both.timeline.get(SegmentId(DAY, held.version, 1))
    assert copy is not None
    assert copy.file == File("P 0")
    assert len(both.timeline) == 3


def test_c3(both: Both) -> None:
    held = both.replacing(DAY)
    name = both.allocates()
    both.commit(held, DAY)
    both.appends(name)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]
    assert both.timeline.get(name) is not None


def test_c4(both: Both) -> None:
    name = both.allocates()
    held = both.replacing(DAY)
    both.commit(held, DAY)
    both.appends(name)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]


def test_c5(both: Both) -> None:
    name = both.allocates()
    held = both.replacing(DAY)
    both.appends(name)
    both.commit(held, DAY)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]


def test_c6(both: Both) -> None:
    both.appends(both.allocates())
    held = both.replacing(DAY)
    both.commit(held, DAY)
    assert shows(both) == [f"{held.version}.0"]


def test_c8(both: Both) -> None:
    held = both.replacing(MONTH)
    both.commit(held, MONTH)
    assert both.allocates() == SegmentId(MONTH, held.version, 1)


def test_c9(both: Both) -> None:
    both.replacing(DAY)
    answer = both.box.acquire(LockRequest("P", "d", MONTH, LockType.APPEND))
    assert isinstance(answer, Blocked)
    assert both.allocates(granularity=Granularity.MONTH).interval == DAY


def test_c10(both: Both) -> None:
    both.allocates(MONTH, Granularity.MONTH)
    assert isinstance(both.box.acquire(LockRequest("R", "d", DAY, LockType.REPLACE)), Blocked)
    with pytest.raises(ValueError, match="not covered"):
        both.publish("R", [root(DAY, 1, 0)])


def test_c10_committed(both: Both) -> None:
    """A published number is no longer locked, so a day of the month may be replaced; the other days stay."""
    both.appends(both.allocates(MONTH, Granularity.MONTH))
    both.commit(both.replacing(DAY), DAY)
    shown = [
        (entry.interval, [one.file and one.file.name for one in entry.segments]) for entry in both.timeline.lookup()
    ]
    assert shown == [(DAY, [f"R {DAY}"]), (Interval(DAY.end, MONTH.end), ["P 0"])]


def test_c11(both: Both) -> None:
    held = both.replacing(YEAR)
    both.commit(held, *QUARTERS)
    assert both.allocates(YEAR, Granularity.YEAR) == SegmentId(QUARTERS[0], held.version, 1)


def test_c14(both: Both) -> None:
    first = both.allocates()
    both.appends(first)
    held = both.replacing(MONTH)
    second = both.allocates(previous=first)
    both.appends(second)
    assert [one.id for one in both.inputs("R", MONTH)] == [first]
    both.box.release("R", held.id)
    assert [one.id for one in both.inputs("R", MONTH)] == [first, second]


def test_c15(both: Both) -> None:
    """Druid has ten versions for this and then none. Here numbers go on, so nothing runs out and none comes again."""
    names: list[SegmentId] = []
    for turn in range(12):
        names.append(both.allocates(previous=names[-1] if names else None))
        both.appends(names[-1])
        both.remove("P")
        assert isinstance(both.store.drop(LockTask("drop", "drop"), DAY), Published)
        for now in (10 * turn, 10 * turn + 5):
            both.store.collect(now, 3)
        assert len(both.timeline) == 0
    assert len(set(names)) == 12


def test_an_append_of_a_year_is_carried_into_its_quarters(both: Both) -> None:
    """A finer granularity: one copy for each interval that is written, of which only its rows count; the rest of the
    append stays visible where nothing was written."""
    held = both.replacing(YEAR)
    both.appends(name := both.allocates(YEAR, Granularity.YEAR))
    both.commit(held, *QUARTERS[:3])
    files = [
        (entry.interval, entry.version, sorted(one.file.name[0] for one in entry.segments if one.file))
        for entry in both.timeline.lookup()
    ]
    rest = QUARTERS[3], name.version, ["P"]
    assert files == [*((quarter, held.version, ["P", "R"]) for quarter in QUARTERS[:3]), rest]


def test_an_append_that_has_a_copy_already_is_carried_once(both: Both) -> None:
    """An append of a year, part of which a REPLACE had overtaken, is visible twice, each time for some of its rows."""
    first = both.replacing(YEAR)
    name = both.allocates(YEAR, Granularity.YEAR)
    both.commit(first, QUARTERS[1])
    both.box.release("R", first.id)
    second = both.replacing(YEAR)
    both.appends(name)
    both.commit(second, YEAR)
    files = [one.file.name for one in both.timeline.visible() if one.file]
    assert sorted(files) == ["P 0", f"R {YEAR}"]


def test_a_compaction_does_not_wait_for_the_appender_of_what_it_reads(both: Both) -> None:
    """What was published is locked no longer, although the appender keeps its lock for more."""
    both.appends(both.allocates())
    locked(both, "R", DAY, partitions=Partitions.of(0), version=0)
    assert len(both.box.active()) == 2


# Cases of the same kind that the reference does not list.


def test_a_day_appended_before_and_a_month_after(both: Both) -> None:
    """A REPLACE by month overtakes an append of a day; the next append goes to the month."""
    held = both.replacing(MONTH)
    first = both.allocates()
    both.commit(held, MONTH)
    second = both.allocates(previous=first)
    assert (first.interval, second.interval, second.version) == (DAY, MONTH, held.version)
    both.appends(first)
    both.appends(second)
    assert {one.interval for one in both.timeline.visible()} == {MONTH}
    assert len(both.timeline.visible()) == 3


def test_a_month_is_asked_for_where_a_day_was_replaced(both: Both) -> None:
    held = both.replacing(DAY)
    both.commit(held, DAY)
    name = both.allocates(MONTH, Granularity.MONTH)
    assert name == SegmentId(DAY, held.version, 1)
    both.appends(name)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]


def test_two_late_appends_of_one_publish_are_both_carried(both: Both) -> None:
    """In memory their copies had the same number, and the rows of one were gone."""
    names = [first := both.allocates(), both.allocates(previous=first)]
    held = both.replacing(DAY)
    both.commit(held, DAY)
    both.publish("P", [root(*name, file=f"P {number}") for number, name in enumerate(names)])
    assert sorted(one.file.name for one in both.timeline.visible() if one.file) == ["P 0", "P 1", f"R {DAY}"]


def test_an_append_before_and_one_after_the_lock_of_a_month(both: Both) -> None:
    """The first was read, the second is carried."""
    first = both.allocates()
    both.appends(first)
    held = both.replacing(MONTH)
    both.appends(both.allocates(previous=first))
    both.commit(held, MONTH)
    assert [(one.interval, one.file and one.file.name) for one in both.timeline.visible()] == [
        (MONTH, f"R {MONTH}"),
        (MONTH, "P 1"),
    ]


def test_a_month_that_is_appended_while_it_becomes_days(both: Both) -> None:
    name = both.allocates(MONTH, Granularity.MONTH)
    held = both.replacing(MONTH)
    both.appends(name)
    both.commit(held, *Granularity.DAY.buckets(MONTH))
    assert len(both.timeline.visible()) == 62, "in each day a copy, of which its rows count"
    assert {one.version for one in both.timeline.visible()} == {held.version}


def test_each_append_under_a_replace_is_carried(both: Both) -> None:
    held = both.replacing(DAY)
    names = [both.allocates()]
    for _ in range(2):
        names.append(both.allocates(previous=names[-1]))
    for name in reversed(names):
        both.appends(name)
    both.commit(held, DAY)
    assert shows(both) == [f"{held.version}.{number}" for number in range(4)]
    assert len(both.timeline) == 7


def test_two_replaces_one_after_the_other(both: Both) -> None:
    """An append that was allocated before both is in the newer one's version."""
    name = both.allocates()
    for _ in range(2):
        held = both.replacing(DAY)
        both.commit(held, DAY)
        both.box.release("R", held.id)
    both.appends(name)
    assert shows(both) == [f"{held.version}.0", f"{held.version}.1"]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_ids_of_three_versions(both: Both, order: Sequence[int]) -> None:
    """Allocated before and between two REPLACEs and after them; published after both, in any order."""
    names = [both.allocates()]
    for _ in range(2):
        held = both.replacing(DAY)
        both.commit(held, DAY)
        both.box.release("R", held.id)
        names.append(both.allocates(previous=names[-1]))
    assert len({name.version for name in names}) == 3
    for number in order:
        answer = both.publish("P", [root(*names[number], file=f"id {number}")])
        assert isinstance(answer, Published)
    found = sorted(one.file.name for one in both.timeline.visible() if one.file)
    assert found == [f"R {DAY}", "id 0", "id 1", "id 2"]
    assert {one.version for one in both.timeline.visible()} == {held.version}


def test_a_lock_of_the_same_group_on_an_equal_interval(both: Both) -> None:
    """Both kinds at once, as a job needs them that is upgraded while it runs."""
    locked(both, "R", DAY)
    locked(both, "R", DAY, partitions=Partitions.of(3), version=1)
    assert isinstance(both.box.acquire(LockRequest("P", "d", DAY, partitions=Partitions.of(4), version=1)), Blocked)


# Locks of those that publish.


def test_l19(table: Make) -> None:
    of, where = table("t1"), Interval.of("2024-01-01", "2024-01-05")
    of.store.numbers(where, 1, 1)
    locked(of, "t1", where, partitions=Partitions.of(0), version=1)
    for number in range(1, 5):
        assert of.allocate_outputs("t1", where, 1, 1) == [SegmentId(where, 1, number)]
    assert [str(lock.partitions) for lock in of.box.held("t1")] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("publishes_first", [True, False])
def test_l35(table: Make, publishes_first: bool) -> None:
    """A publish is one step, so a request of a higher priority comes before it or after it, never in it."""
    of = table(LockTask("low", "low", 1), LockTask("high", "high", 2))
    made = root(DAY, locked(of, "low", DAY).version, 0)
    if publishes_first:
        of.publish("low", [made])
    locked(of, "high", DAY)
    assert isinstance(of.publish("low", [made]), Published if publishes_first else LostRace)
    assert len(of.timeline) == publishes_first


@pytest.mark.parametrize("removed", ["replace", "append"])
def test_l52(table: Make, removed: str) -> None:
    """What a task leaves: nothing of its own, and nothing of others is lost."""
    of = table("replace", "append")
    locked(of, "replace", DAY, LockType.REPLACE)
    allocated(of, "append")
    of.remove(removed)
    (left,) = of.box.locks.values()
    assert left.holders == {"replace", "append"} - {removed}


def test_a_position_may_move_without_segments(table: Make) -> None:
    of = table("t1")
    assert of.publish("t1", [], advance=Advance("s", None, 7)) == Published(())
    assert of.positions == {"s": 7}

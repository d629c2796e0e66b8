"""A table of segments on memory and on Azurite: the same tests.

What is read is judged by rows: each file stands for one row, of the same name, but those that compactions make.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from samza_azure.errors import ConfigError, CorruptState, StorageUnavailable, Unsettled
from samza_azure.outcomes import Refused
from samza_azure.segments import (
    Advance,
    Blocked,
    File,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Published,
    Segment,
    TableLock,
)
from samza_azure.storage import limits
from samza_azure.storage.interface import Row
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, MemoryTransactions, Transactions, Write
from samza_azure.tables.store import garbage as segment_garbage
from samza_azure.tables.store import reading as segment_reading
from samza_azure.tables.store.publishing import announce
from samza_azure.tables.store.rows import FORMAT, HEAD, lock_key, lock_values, segment_key, segment_values
from samza_azure.tables.store.segments import SegmentStore, Snapshot
from tests.storage.conftest import Stores

DAY = Interval.of("2024-01-01", "2024-01-02")
MONTH = Interval.of("2024-01-01", "2024-02-01")
LATER = Interval.of("2030-01-01", "2030-01-02")
HOUR_US = 3_600_000_000


@pytest.fixture
def stores(segment_stores: Stores) -> Stores:
    """Makes clients of one table, which is there."""
    segment_stores().create()
    return segment_stores


@pytest.fixture
def store(stores: Stores) -> SegmentStore:
    return stores()


def task(name: str, priority: int = 0, life: str = "1") -> LockTask:
    return LockTask(f"{name}.{life}", name, priority, LockOwner(name, life))


def rooted(store: SegmentStore, lock: TableLock, *, files: Sequence[str] = ()) -> list[Segment]:
    """Roots for all partitions of an APPEND lock, or as many as there are files."""
    assert lock.partitions is not None
    numbers = list(lock.partitions)
    return [
        Segment.root(store.name, lock.interval, lock.version, number, file=File(name, 1, 1))
        for number, name in zip(numbers, files or [f"{lock.id}-{number}" for number in numbers], strict=False)
    ]


def allocated(
    store: SegmentStore, who: LockTask, count: int = 1, granularity: Granularity = Granularity.DAY
) -> TableLock:
    answer = store.allocate(who, DAY.start + HOUR_US, granularity, count)
    assert isinstance(answer, Granted), answer
    return answer.lock


def appended(store: SegmentStore, *files: str, who: LockTask | None = None) -> list[Segment]:
    """Segments of these files, published; the lock is given back."""
    who = who or task("append")
    lock = allocated(store, who, len(files))
    made = rooted(store, lock, files=files)
    assert isinstance(store.publish(who.id, made), Published)
    store.release(who.id, lock.id)
    return made


def acquired(store: SegmentStore, who: LockTask, interval: Interval, type: LockType, **more: object) -> TableLock:  # noqa: A002
    answer = store.acquire(who, LockRequest(who.id, store.name, interval, type, **more))  # type: ignore[arg-type]
    assert isinstance(answer, Granted), answer
    return answer.lock


def compaction(store: SegmentStore, who: LockTask, inputs: Sequence[Segment], count: int = 1) -> list[Segment] | None:
    """Outputs that carry the rows of these inputs, under locks on both; None if they are locked."""
    one, there = inputs[0], Partitions(segment.partition for segment in inputs)
    request = LockRequest(who.id, store.name, one.interval, LockType.EXCLUSIVE, there, one.version)
    if not isinstance(store.acquire(who, request), Granted):
        return None
    answer = store.allocate_outputs(who, one.interval, one.version, count)
    if not isinstance(answer, Granted):
        return None
    group = answer.lock.partitions
    assert group is not None
    covers = Partitions.union_of(segment.covers for segment in inputs)
    generation = 1 + max(segment.generation for segment in inputs)
    rows = sorted(row for segment in inputs for row in rows_of(segment))
    return [
        Segment(
            store.name, one.interval, one.version, number, covers, generation, group, there,
            File("+".join(rows[place::count]), len(rows[place::count])),
        )
        for place, number in enumerate(group)
    ]  # fmt: skip


def rows_of(segment: Segment) -> list[str]:
    return segment.file.name.split("+") if segment.file is not None and segment.file.name else []


def rows(snapshot: Snapshot) -> list[str]:
    """What a reader sees of the first day, in which all rows lie."""
    return sorted(row for segment in snapshot.timeline.visible(DAY) for row in rows_of(segment))


# Rows.


def test_a_transaction_is_all_or_nothing(store: SegmentStore) -> None:
    partition = store.rows
    (etag,) = partition.transact([Write(Act.INSERT, "x.1", {"a": 1})])  # type: ignore[misc]
    two = Write(Act.INSERT, "x.2", {"a": 2})
    assert partition.transact([two, Write(Act.INSERT, "x.1", {})]) == Refused("EntityAlreadyExists")
    refused = partition.transact([two, Write(Act.MERGE, "x.1", {"a": 3}, 'W/"old"')])
    assert refused == Refused("UpdateConditionNotSatisfied")
    assert partition.transact([two, Write(Act.MERGE, "x.3", {})]) == Refused("ResourceNotFound")
    assert [row.values for row in partition.query("x.", "x~")] == [{"a": 1}]
    answer = partition.transact([two, Write(Act.MERGE, "x.1", {"b": "b"}, etag)])
    assert isinstance(answer, list)
    assert [row.etag for row in partition.query("x.", "x~")] == [answer[1], answer[0]]
    assert [row.values for row in partition.query("x.", "x.2")] == [{"a": 1, "b": "b"}]
    assert partition.transact([Write(Act.DELETE, "x.1", etag=answer[1]), Write(Act.DELETE, "x.2")]) == ["", ""]
    assert partition.query("x.", "x~") == []
    assert partition.transact([Write(Act.DELETE, "x.1")]) == Refused("ResourceNotFound")


def test_a_transaction_that_no_service_takes(store: SegmentStore) -> None:
    with pytest.raises(ValueError, match="101 operations"):
        store.rows.transact([Write(Act.INSERT, f"x.{number}") for number in range(101)])
    with pytest.raises(ValueError, match="each row once"):
        store.rows.transact([Write(Act.INSERT, "x.1"), Write(Act.INSERT, "x.1")])


# Stories.


def test_append_and_compact_meanwhile(store: SegmentStore) -> None:
    inputs = appended(store, "a", "b")
    made = compaction(store, task("compact"), inputs, 2)
    assert made is not None
    appended(store, "c")
    assert isinstance(store.publish("compact.1", made, inputs=inputs), Published)
    snapshot = store.snapshot()
    assert rows(snapshot) == ["a", "b", "c"]
    assert len(snapshot.timeline) == 5
    assert {one.generation for one in snapshot.timeline.visible()} == {0, 1}


def test_a_compaction_and_an_appender_that_goes_on_do_not_wait_for_each_other(stores: Stores) -> None:
    """What was published is locked no longer, although the appender keeps its lock for more."""
    sink, other = stores(), stores()
    who = task("sink")
    made = rooted(sink, allocated(sink, who, 3))
    for one in made[:2]:
        assert isinstance(sink.publish(who.id, [one]), Published)
    outputs = compaction(other, task("compact"), made[:2])
    assert outputs is not None, "an appender and a compaction wait for each other"
    assert isinstance(sink.publish(who.id, made[2:]), Published)
    assert isinstance(other.publish("compact.1", outputs, inputs=made[:2]), Published)
    assert len(rows(other.snapshot())) == 3
    (again,) = [lock for lock in sink.state().box.held(who.id) if lock.partitions is not None]
    assert list(again.partitions or ()) == []
    assert isinstance(sink.publish(who.id, made[:1]), Published), "sent again"


def test_a_publish_and_its_position_are_one(store: SegmentStore) -> None:
    who = task("sink")
    lock = allocated(store, who, 3)
    made = rooted(store, lock)
    assert isinstance(store.publish(who.id, made[:1], advance=Advance("s", None, [0, 10])), Published)
    assert store.position("s") == [0, 10]
    refused = store.publish(who.id, made[1:2], advance=Advance("s", None, [0, 20]))
    assert isinstance(refused, LostRace), "I12: published from a position that the stream has left"
    assert "is at [0, 10]" in refused.reason
    again = store.publish(who.id, made[:1], advance=Advance("s", None, [0, 10]))
    assert isinstance(again, Published)
    assert again.again
    assert (len(store.snapshot().timeline), store.position("s")) == (1, [0, 10])


def test_a_task_whose_owner_was_ended_is_refused(stores: Stores) -> None:
    zombie, other = stores(), stores()
    who = task("sink")
    made = rooted(zombie, allocated(zombie, who, 2))
    assert isinstance(zombie.publish(who.id, made[:1]), Published)
    assert other.end(who.owner) == [1]
    refused = zombie.publish(who.id, made[1:])
    assert isinstance(refused, LostRace), "I13: a zombie has published"
    assert "its life was ended" in refused.reason
    assert len(other.snapshot().timeline) == 1


def test_a_publish_under_a_revoked_lock_is_refused(stores: Stores) -> None:
    low, high = stores(), stores()
    inputs = appended(low, "a", "b")
    made = compaction(low, task("low", 1), inputs)
    assert made is not None
    acquired(high, task("high", 9), DAY, LockType.EXCLUSIVE)
    refused = low.publish("low.1", made, inputs=inputs)
    assert isinstance(refused, LostRace)
    assert "was revoked" in refused.reason
    assert isinstance(low.acquire(task("third", 9), LockRequest("third.1", low.name, DAY, LockType.EXCLUSIVE)), Blocked)


def test_a_publisher_learns_at_its_next_publish_that_its_lock_was_revoked(stores: Stores) -> None:
    """What it knows of its lock is old: the row's ETag tells."""
    sink, high = stores(), stores()
    who = task("sink", 1)
    made = rooted(sink, allocated(sink, who, 2))
    assert isinstance(sink.publish(who.id, made[:1]), Published)
    acquired(high, task("high", 9), DAY, LockType.EXCLUSIVE)
    refused = sink.publish(who.id, made[1:])
    assert isinstance(refused, LostRace), "I13: one whose lock was revoked has published"
    assert "was revoked" in refused.reason
    assert len(high.snapshot().timeline) == 1


def test_replace_carries_appends_forward(stores: Stores) -> None:
    """Before its lock (read), after it (carried), after its announcement (copied), after its publish (copied)."""
    store, other = stores(), stores()
    appended(store, "read")
    sink = task("sink")
    lock = allocated(other, sink, 4)
    replacer = task("replace")
    held = acquired(store, replacer, MONTH, LockType.REPLACE)
    seen = store.snapshot(held.read).timeline.visible(MONTH)
    made = rooted(other, lock, files=["after the lock", "announced", "after the publish"])
    other.publish(sink.id, made[:1])
    (name,) = store.numbers(MONTH, held.version, 1)
    outputs = [Segment.root(store.name, *name, file=File("read", 1))]
    announce(store, held, outputs)
    other.publish(sink.id, made[1:2])
    assert rows(store.snapshot()) == ["after the lock", "announced", "read"]
    assert isinstance(store.publish(replacer.id, outputs, inputs=seen), Published)
    assert rows(store.snapshot()) == ["after the lock", "announced", "read"], "I24: neither read nor carried"
    other.publish(sink.id, made[2:3])
    store.release(replacer.id, held.id)
    everything = ["after the lock", "after the publish", "announced", "read"]
    assert rows(store.snapshot()) == everything
    assert {one.interval for one in store.snapshot().timeline.visible()} == {MONTH}
    appended(store, "later", who=task("late"))
    assert rows(store.snapshot()) == sorted([*everything, "later"])


class Heads:
    """The rows of a table, and how many writes of its head were accepted or refused."""

    def __init__(self, store: SegmentStore) -> None:
        self._rows, self.writes = store.rows, 0

    def transact(self, writes: Sequence[Write]) -> object:
        self.writes += any(write.key == HEAD for write in writes)
        return self._rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        return self._rows.query(first, end)


@pytest.mark.parametrize("late", [True, False], ids=["copied by the append", "carried by the replace"])
def test_copies_into_many_intervals_get_their_numbers_in_one_write_of_the_head(stores: Stores, late: bool) -> None:
    store, other = stores(), stores()
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    lock = allocated(other, task("append"), granularity=Granularity.MONTH)
    days = [Interval(start, start + 24 * HOUR_US) for start in range(MONTH.start, MONTH.end, 24 * HOUR_US)]
    outputs = [
        Segment.root(store.name, *name, file=File("new", 1))
        for names in store.numbers_of(dict.fromkeys(days, 1), held.version).values()
        for name in names
    ]
    if not late:
        assert isinstance(other.publish("append.1", rooted(other, lock)), Published)
    announce(store, held, outputs)
    appends, replaces = Heads(other), Heads(store)
    other.rows, store.rows = appends, replaces  # type: ignore[assignment]
    if late:
        assert isinstance(other.publish("append.1", rooted(other, lock)), Published)
    assert isinstance(store.publish("replace.1", outputs), Published)
    assert (appends.writes, replaces.writes) == ((1, 1) if late else (0, 2)), "one by one it was 30 more"
    assert len(store.snapshot().timeline.visible()) == 2 * len(days)


def test_a_replace_that_gives_up_leaves_nothing(stores: Stores) -> None:
    store, other = stores(), stores()
    appended(store, "before")
    sink = task("sink")
    lock = allocated(other, sink, 3)
    made = rooted(other, lock, files=["a", "b", "c"])
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    (name,) = store.numbers(MONTH, held.version, 1)
    announce(store, held, [Segment.root(store.name, *name)])
    other.publish(sink.id, made[:1])
    assert len(store.snapshot().staged) == 1
    store.end(LockOwner("replace", "1"))
    other.publish(sink.id, made[1:2])
    snapshot = store.snapshot()
    assert (rows(snapshot), snapshot.staged) == (["a", "b", "before"], ()), "I12: what was given up is there"


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_an_announcement_is_taken_back_from_more_locks_than_a_transaction_holds(stores: Stores) -> None:
    """Some were granted after it. Its owner dies in the middle, and the task that ends that life does the rest."""
    store, other, again = stores(), stores(), stores()
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    (name,) = store.numbers(DAY, held.version, 1)
    made = [Segment.root(store.name, *name, file=File(""))]
    announce(store, held, made)
    locks = [allocated(other, task(f"a{number}")) for number in range(2 * OPERATIONS_MAX + 20)]
    assert all(lock.replaced for lock in other.state().box.locks.values() if lock.id != held.id)
    (copied,) = rooted(other, locks[0])
    assert isinstance(other.publish("a0.1", [copied]), Published)
    again.rows = Faulty(again.rows, 2, "crash after")  # type: ignore[assignment]
    with pytest.raises(Crash):
        again.release("replace.1", held.id)
    store.end(task("replace").owner)
    assert held.id not in store.state().box.locks
    assert not any(lock.replaced for lock in store.state().box.locks.values())
    assert rows(store.snapshot()) == rows(store.latest()) == rows_of(copied)


def test_a_publish_succeeds_after_half_of_its_announcement_was_taken_back(stores: Stores) -> None:
    store, other = stores(), stores()
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    lock = allocated(other, task("sink"))
    days = [Segment.root(store.name, *store.numbers(DAY, held.version, 1)[0], file=File(""))]
    month = [Segment.root(store.name, *store.numbers(MONTH, held.version, 1)[0], file=File(""))]
    announce(store, held, days)
    appended = replace(rooted(other, lock)[0], file=File("a", 1))
    assert isinstance(other.publish("sink.1", [appended]), Published)
    store.rows.transact([Write(Act.MERGE, f"lock.{held.id:012d}", {"writes": "", "staged": 1})])
    assert isinstance(store.publish("replace.1", month), Published)
    assert rows(store.snapshot()) == rows(stores().latest()) == ["a"]


def test_an_allocation_goes_where_something_is_visible(store: SegmentStore) -> None:
    appended(store, "a")
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    (name,) = store.numbers(MONTH, held.version, 1)
    store.publish(
        "replace.1", [Segment.root(store.name, *name, file=File("a"))], inputs=store.snapshot().timeline.visible()
    )
    lock = allocated(store, task("sink"), 2)
    assert (lock.interval, lock.version, str(lock.partitions)) == (MONTH, held.version, "1-2"), (
        "I16: numbers below what hides them"
    )


def test_two_granularities_do_not_cross(store: SegmentStore) -> None:
    month = allocated(store, task("one"), 1, Granularity.MONTH)
    day = allocated(store, task("two"), 1, Granularity.DAY)
    assert (month.interval, day.interval) == (MONTH, MONTH), "I9: one version, and two intervals that overlap"


def days(count: int) -> list[int]:
    return [DAY.start + number * 24 * HOUR_US for number in range(count)]


def test_places_of_many_moments_are_taken_in_one_write(stores: Stores) -> None:
    """Those that others hold wait alone, and those for which there is no room are asked for again."""
    store, who, hour = stores(), task("sink", 5), Granularity.HOUR
    sixth, seventh = (Interval(start, start + 24 * HOUR_US) for start in days(7)[5:])
    acquired(stores(), task("equal", 5), sixth, LockType.EXCLUSIVE)
    acquired(stores(), task("lower", 1), seventh, LockType.EXCLUSIVE)
    (known,) = appended(stores(), "there")
    moments = [*days(120), DAY.start + HOUR_US, days(3)[2] + HOUR_US]
    store.rows = Faulty(store.rows, 1, "answer lost")
    answers = store.allocate_many(who, moments, Granularity.DAY, 3)
    assert [*answers] == days(50)[:5] + days(50)[6:], "the granted ones, which all came with the answer that was lost"
    locks = [one.lock for one in answers.values() if isinstance(one, Granted)]
    assert [lock.interval.start for lock in locks] == [*answers]
    assert {str(lock.partitions) for lock in locks} == {"0-2", "1-3"}
    assert locks[0].partitions == Partitions.between(known.partition + 1, known.partition + 4)
    assert store.state().box.held(who.id) == locks
    again = store.allocate_many(who, days(120)[50:], hour, 1)
    assert not {lock.interval for lock in locks} & {
        one.lock.interval for one in again.values() if isinstance(one, Granted)
    }
    (blocked,) = store.allocate_many(who, [sixth.start], Granularity.DAY).values()
    assert isinstance(blocked, Blocked)
    store.release_all(who.id, [lock.id for lock in locks[1:]])
    assert store.state().box.locks[locks[0].id] == locks[0]
    store.release_all(who.id)
    assert not store.state().box.held(who.id)


def test_places_of_many_moments_do_not_cross(store: SegmentStore) -> None:
    """I9: weeks cross months, and an interval that is divided already is not divided otherwise."""
    allocated(store, task("one"), 1, Granularity.MONTH)
    moments = days(50)[29:]
    answers = store.allocate_many(task("two"), moments, Granularity.WEEK)
    found = {one.lock.interval for one in answers.values() if isinstance(one, Granted)}
    assert all(one == other or not one.overlaps(other) for one in found for other in found)
    assert {any(one.start <= moment < one.end for one in found) for moment in moments} == {True}
    assert MONTH in found
    assert Granularity.WEEK.bucket(moments[-1]) in found


def test_an_earlier_sequence_number_shows_what_was(store: SegmentStore) -> None:
    inputs = appended(store, "a", "b")
    before = store.snapshot()
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    store.publish("compact.1", made, inputs=inputs)
    appended(store, "c")
    again = store.snapshot(type(before.sequence).parse(str(before.sequence)))
    assert set(again.timeline.visible()) == set(before.timeline.visible())
    assert rows(store.snapshot()) == ["a", "b", "c"]


# Faults.


class Crash(Exception):
    """The process dies here."""


@dataclass
class Faulty:
    """Rows of which one write goes wrong: it does not happen, or its answer is lost, or the process dies."""

    rows: Transactions
    at: int
    fault: str
    calls: int = 0

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        self.calls += 1
        if self.calls != self.at:
            return self.rows.transact(writes)
        if self.fault == "crash before":
            raise Crash
        if self.fault == "never sent":
            raise StorageUnavailable("never sent")
        self.rows.transact(writes)
        raise Crash if self.fault == "crash after" else Unsettled("no answer")

    def query(self, first: str, end: str) -> list[Row]:
        return self.rows.query(first, end)


CRASHES = [*itertools.product(["memory"], range(1, 6), ["crash before", "crash after"])]


@pytest.mark.parametrize(
    ("stores", "at", "fault"),
    [*CRASHES, ("azurite", 3, "crash after"), ("azurite", 4, "crash before")],
    indirect=["stores"],
)
def test_a_large_publish_is_all_or_nothing_under_a_crash(stores: Stores, at: int, fault: str) -> None:
    """250 rows are three transactions. A later reader sees all of them or none, and can do it again."""
    store, other = stores(), stores()
    who, after = task("sink"), task("sink", life="2")
    made = rooted(store, allocated(store, who, 250))
    faulty = Faulty(store.rows, at, fault)
    store.rows = faulty
    try:
        store.publish(who.id, made, advance=Advance("s", None, 1))
    except Crash:
        pass
    else:
        assert faulty.calls == 4, "more steps than these are not tried"
    there = rows(other.snapshot())
    assert len(there) in (0, 250), "I12: half of a publish counts"
    assert other.position("s") == (1 if there else None)
    other.end(who.owner)
    assert rows(other.snapshot()) == there, "I12: what was never published counts now"
    assert other.snapshot().staged == ()
    if not there:
        again = rooted(other, allocated(other, after, 250))
        assert isinstance(other.publish(after.id, again, advance=Advance("s", None, 1)), Published)
    snapshot = other.snapshot()
    assert (len(rows(snapshot)), len(set(rows(snapshot))), snapshot.staged) == (250, 250, ())


@pytest.mark.parametrize(
    ("stores", "at", "size"),
    [*itertools.product(["memory"], range(1, 6), [1, 250]), ("azurite", 1, 1), ("azurite", 2, 1), ("azurite", 4, 250)],
    indirect=["stores"],
)
def test_a_lost_answer_is_settled_by_reading(stores: Stores, at: int, size: int) -> None:
    """Of allocating and of publishing: each happens once."""
    store = stores()
    store.rows = Faulty(store.rows, at, "lost answer")
    who = task("sink")
    lock = allocated(store, who, size)
    made = rooted(store, lock)
    answer = store.publish(who.id, made, advance=Advance("s", None, 1))
    assert isinstance(answer, Published), "I12: what was accepted is refused when it is sent again"
    snapshot = store.snapshot()
    assert (len(rows(snapshot)), snapshot.staged, store.position("s")) == (size, (), 1)
    assert [one.id for one in store.state().box.locks.values()] == [lock.id]
    assert str(lock.partitions) == ("0" if size == 1 else "0-249")


def test_a_publish_that_is_given_up_is_cleaned_by_the_next_one(stores: Stores) -> None:
    store = stores()
    who = task("sink")
    made = rooted(store, allocated(store, who, 251))
    rows_, store.rows = store.rows, Faulty(store.rows, 2, "crash before")
    with pytest.raises(Crash):
        store.publish(who.id, made[:250])
    store.rows = rows_
    store.etags.clear()
    assert len(store.snapshot().staged) == 99
    assert isinstance(store.publish(who.id, made[250:]), Published)
    assert (len(rows(store.snapshot())), store.snapshot().staged) == (1, ())


# Garbage.


def put(store: SegmentStore, lock: int, unique: str) -> str:
    name = store.file_name(lock, unique)
    store.blobs.put(name, b"rows")
    return name


def test_garbage_goes_after_its_grace_and_files_with_it(store: SegmentStore) -> None:
    who = task("append")
    lock = allocated(store, who, 2)
    files = [put(store, lock.id, "a"), put(store, lock.id, "b")]
    inputs = [replace(one, file=File(name, 1)) for one, name in zip(rooted(store, lock), files, strict=True)]
    store.publish(who.id, inputs)
    store.release(who.id, lock.id)
    early = store.snapshot()
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    made = [replace(one, file=File(put(store, 99, "c"), 2)) for one in made]
    store.publish("compact.1", made, inputs=inputs)
    assert store.collect(1_000, 100).segments == 0
    assert store.collect(1_050, 100).segments == 0, "snapshot: garbage goes before its grace is over"
    assert set(store.snapshot(early.sequence).timeline.visible()) == set(inputs)
    collected = store.collect(1_100, 100)
    assert (collected.segments, collected.files) == (2, 2)
    assert [name for name, _ in store.blobs.list(store.prefix)] == [made[0].file.name]  # type: ignore[union-attr]
    assert set(store.snapshot().timeline) == set(made)
    with pytest.raises(ConfigError, match="was collected"):
        store.snapshot(early.sequence)
    later = store.snapshot().sequence
    with pytest.raises(ConfigError, match="is not earlier"):
        store.snapshot(replace(later, granted=later.granted + 70))


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_number_is_not_used_again_after_its_segment_was_collected(store: SegmentStore) -> None:
    before = appended(store, "a", "b")
    compacted(store, before)
    store.drop(task("admin", 9), DAY)
    for now in (1_000, 2_000, 3_000):
        store.collect(now, 100)
    assert [*store.snapshot().timeline] == []
    x, y = allocated(store, task("x")), allocated(store, task("y"))
    assert (y.interval, y.version, str(x.partitions), str(y.partitions)) == (x.interval, x.version, "0", "1")
    assert before[0].version < x.version, "I9: of a version that is used again"


def test_segments_that_a_reader_pins_are_kept(store: SegmentStore) -> None:
    inputs = appended(store, "a", "b")
    early = store.snapshot()
    store.pin("r1", early, until_us=10_000)
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    store.publish("compact.1", made, inputs=inputs)
    store.collect(1_000, 100)
    assert store.collect(2_000, 100).segments == 0, "snapshot: what a reader has pinned is deleted"
    assert rows(store.snapshot(early.sequence)) == ["a", "b"]
    store.unpin("r1")
    assert store.collect(3_000, 100).segments == 2


def test_a_pin_ends_with_its_time(store: SegmentStore) -> None:
    inputs = appended(store, "a", "b")
    store.pin("r1", store.snapshot(), until_us=1_500)
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    store.publish("compact.1", made, inputs=inputs)
    store.collect(1_000, 100)
    assert store.collect(2_000, 100).segments == 2


def test_pins_that_are_over_are_deleted_unless_they_are_prolonged(stores: Stores) -> None:
    store, reader = stores(), stores()
    early = store.snapshot()
    for name in ("r1", "r2", "r3"):
        reader.pin(name, early, until_us=1_500)

    def prolong() -> None:
        reader.pin("r2", early, until_us=9_000)

    late = stores()
    late.rows = Meanwhile(late.rows, lambda call: call == "DELETE reader.r2", prolong)  # type: ignore[assignment]
    assert segment_garbage._pinned(late, 2_000) == []
    assert [row.key for row in store.rows.query("reader.", "reader~")] == ["reader.r2"]
    reader.pin("r1", early, until_us=9_000)
    assert len(segment_garbage._pinned(store, 2_000)) == 2


def test_streams_of_similar_names_have_their_own_positions(store: SegmentStore) -> None:
    names = ["a/b", "a|b", "a=7Cb", "a||b", "a//b", "a\\b", "a#b?c", "a%2Fb"]
    for number, name in enumerate(names):
        assert store.move(name, None, number)
    assert store.positions() == {name: number for number, name in enumerate(names)}
    store.forget("a|b")
    assert (store.position("a|b"), store.position("a/b")) == (None, 0)


def test_uploads_of_dead_tasks_are_deleted_and_those_of_live_ones_are_not(store: SegmentStore) -> None:
    dead, alive = task("dead"), task("alive")
    lost = put(store, allocated(store, dead, 1).id, "x")
    kept = put(store, allocated(store, alive, 1).id, "y")
    store.end(dead.owner)
    assert store.collect(1_000, 100).orphans == 1, "file: one that somebody may still publish is deleted"
    assert [name for name, _ in store.blobs.list(store.prefix)] == [kept] != [lost]


def test_a_file_with_a_copy_stays(stores: Stores) -> None:
    """The row that it was appended with is garbage; the copy at the version of the REPLACE is not."""
    store, other = stores(), stores()
    sink = task("sink")
    lock = allocated(other, sink, 1)
    name = put(other, lock.id, "a")
    held = acquired(store, task("replace"), MONTH, LockType.REPLACE)
    other.publish(sink.id, [replace(one, file=File(name, 1)) for one in rooted(other, lock)])
    (number,) = store.numbers(MONTH, held.version, 1)
    store.publish("replace.1", [Segment.root(store.name, *number)])
    store.collect(1_000, 0)
    assert store.collect(2_000, 0).segments == 1
    left = [found for found, _ in store.blobs.list(store.prefix)]
    assert left == [name], "file: one that a copy refers to is deleted"
    assert rows(store.snapshot()) == [name]


def test_an_interval_is_dropped_and_restored(store: SegmentStore) -> None:
    appended(store, "a", "b")
    assert isinstance(store.drop(task("admin", 9), DAY), Published)
    assert rows(store.snapshot()) == []
    assert store.restore(DAY) == 2
    assert rows(store.snapshot()) == ["a", "b"]
    appended(store, "c")
    assert rows(store.snapshot()) == ["a", "b", "c"]


@dataclass
class Meanwhile:
    """Rows in front of whose call another client acts, once: before the first call that `before` picks."""

    rows: Transactions
    before: Callable[[str], bool]  # of the first key that is read or written
    act: Callable[[], object]
    answers: list[object] = field(default_factory=list)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        self._perhaps(f"{writes[-1].act.name} {writes[-1].key}" if len(writes) == 1 else f"all {writes[0].key}")
        return self.rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        self._perhaps(f"query {first}")
        return self.rows.query(first, end)

    def _perhaps(self, call: str) -> None:
        if not self.answers and self.before(call):
            self.answers.append(None)
            self.answers[0] = self.act()


def compacted(store: SegmentStore, inputs: Sequence[Segment]) -> None:
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    assert isinstance(store.publish("compact.1", made, inputs=inputs), Published)
    store.release_all("compact.1")


def test_a_snapshot_whose_garbage_is_collected_while_it_is_read_is_refused(stores: Stores) -> None:
    store, reader = stores(), stores()
    inputs = appended(store, "a", "b")
    early = store.snapshot().sequence
    compacted(store, inputs)
    store.collect(1_000, 100)
    reader.rows = Meanwhile(reader.rows, lambda call: call == "query segment.", lambda: store.collect(2_000, 100))
    with pytest.raises(ConfigError, match="was collected"):
        reader.snapshot(early)
    assert reader.rows.answers[0].segments == 2  # type: ignore[attr-defined]


def test_garbage_collected_during_a_read_hides_no_row(stores: Stores) -> None:
    """A reader that was stopped between two calls for longer than the grace."""
    store, reader = stores(), stores()
    inputs = appended(store, "a", "b")

    def act() -> int:
        compacted(store, inputs)
        store.collect(1_000, 100)
        return store.collect(2_000, 100).segments

    reader.rows = Meanwhile(reader.rows, lambda call: call == "query segment.", act)
    assert rows(reader.snapshot()) == ["a", "b"]
    assert reader.rows.answers == [2]


@pytest.mark.parametrize("call", ["all head", "MERGE head", "all segment.", "DELETE segment."])
def test_a_drop_that_is_taken_back_while_its_garbage_is_collected(stores: Stores, call: str) -> None:
    """What `restore` has promised stays, at whatever point the collection is."""
    store, other = stores(), stores()
    appended(store, "a", "b")
    store.drop(task("admin", 9), DAY)
    store.collect(1_000, 100)
    one = Meanwhile(store.rows, lambda made: made.startswith(call), lambda: other.restore(DAY))
    store.rows = one
    found = store.collect(2_000, 100)
    promised = one.answers[0] if one.answers else 0
    assert len(rows(other.snapshot())) == promised
    assert found.segments == (0 if promised else 3), "the rows and the drop"
    assert store.collect(3_000, 100).segments == 0


def test_a_drop_is_not_undone_below_a_later_append(stores: Stores) -> None:
    """What he publishes would hide all that was restored."""
    store, other = stores(), stores()
    appended(store, "a", "b")
    store.drop(task("admin", 9), DAY)
    lock = allocated(other, task("append"))
    with pytest.raises(ConfigError, match="lock"):
        store.restore(DAY)
    other.release("append.1", lock.id)
    assert store.restore(DAY) == 2
    appended(other, "c")
    assert rows(store.snapshot()) == ["a", "b", "c"]


def test_the_answer_is_lost_when_a_drop_is_taken_back(stores: Stores) -> None:
    store = stores()
    appended(store, "a", "b")
    store.drop(task("admin", 9), DAY)
    store.rows = Faulty(store.rows, 1, "no answer")
    assert store.restore(DAY) == 2
    assert rows(store.snapshot()) == ["a", "b"]
    assert store.restore(DAY) == 0


def test_a_drop_is_taken_back_while_a_place_over_it_is_chosen(stores: Stores) -> None:
    store, other = stores(), stores()
    appended(store, "a", "b")
    store.drop(task("admin", 9), DAY)
    other.rows = Meanwhile(other.rows, lambda call: call == "all head", lambda: store.restore(DAY))
    appended(other, "c")
    assert other.rows.answers == [2]
    assert rows(store.snapshot()) == ["a", "b", "c"]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_garbage_goes_however_often_it_is_looked_for(store: SegmentStore) -> None:
    compacted(store, appended(store, "a", "b"))
    assert sum(store.collect(now, 1_000).segments for now in range(0, 3_000, 10)) == 2


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("locks", [8, 25])
def test_garbage_goes_however_many_locks_there_are(
    store: SegmentStore, locks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks of a grace have a sequence number each, which has a count of each lock; the head had no room for them.
    In the first case it has room for some of them, in the second for one."""
    for module in (limits, segment_garbage):
        monkeypatch.setattr(module, "TEXT_MAX", 600)  # with what the service takes, 400 locks are too many for all
    for number in range(locks):
        held = TableLock(1_000_000_000 + number, LockType.APPEND, "g", store.name, LATER, 0, Partitions.of(number))
        row = lock_values(replace(held, holders=frozenset({"g"}), count=1_234_567), {"g": LockOwner("g")})
        store.rows.transact([Write(Act.INSERT, lock_key(held.id), row)])
    compacted(store, appended(store, "a", "b"))
    assert sum(store.collect(now, 1_000).segments for now in range(0, 6_000, 500)) == 2
    early = store.snapshot()
    store.pin("reader", early, 20_000)
    store.drop(task("admin", 9), DAY)
    assert sum(store.collect(now, 1_000).segments for now in range(8_000, 12_000, 500)) == 0, "of a pinned snapshot"
    store.unpin("reader")
    assert sum(store.collect(now, 1_000).segments for now in range(12_000, 16_000, 500)) == 2


@pytest.mark.parametrize("listed", [0, 1, 1_000])
def test_a_segment_published_after_a_mark_waits_for_its_grace(store: SegmentStore, listed: int) -> None:
    """Also where the mark has no room to say how much the lock had published."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_reading, "LISTED_MAX", listed)
        inputs = appended(store, "a", "b")
        made = compaction(store, task("compact"), inputs)
        assert made is not None
        before = store.collect(0, 1_000).segments, store.snapshot().sequence
        store.publish("compact.1", made, inputs=inputs)
        assert (store.collect(1_400, 1_000).segments, before[0]) == (0, 0), "snapshot: garbage before its grace is over"
        assert rows(store.snapshot(before[1])) == ["a", "b"]
        store.release_all("compact.1")
        assert [store.collect(now, 1_000).segments for now in (2_500, 3_600, 4_700)] in ([2, 0, 0], [0, 2, 0])


@pytest.mark.long  # thousands of locks; test_segments_races.py has more than a transaction holds
@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_more_locks_than_a_sequence_number_has_room_for(store: SegmentStore) -> None:
    """What the oldest have published is collected, and what the youngest have waits. A pin keeps what is before it."""
    idle = TableLock(
        1, LockType.APPEND, "g", store.name, LATER, 0, Partitions(), holders=frozenset({"g"}), count=1_234_567
    )
    compacted(store, appended(store, "a", "b"))
    for number in range(3_000):
        row = lock_values(idle, {"g": LockOwner("g", str(number))})
        store.rows.transact([Write(Act.INSERT, lock_key(100_000_000_000 + number), row)])
    store.rows.transact([Write(Act.MERGE, HEAD, {"granted": 100_000_002_999})])
    with pytest.raises(ConfigError, match=r"^3,00\d locks of .* too many for a REPLACE"):
        store.acquire(
            LockTask("replace", "replace", 0),
            LockRequest("replace", store.name, Interval.of("2030-01-01", "2030-01-02"), LockType.REPLACE),
        )
    before = store.snapshot()
    store.pin("reader", before, 100_000)
    compacted(store, appended(store, "c", "d"))
    assert sum(store.collect(now, 1_000).segments for now in range(0, 3_000, 1_000)) == 2
    assert rows(store.snapshot(before.sequence)) == ["a", "b"]
    store.unpin("reader")
    assert sum(store.collect(now, 1_000).segments for now in range(3_000, 6_000, 1_000)) == 0, "locks are older"
    for number in range(2_500):
        store.rows.transact([Write(Act.DELETE, lock_key(100_000_000_000 + number))])
    assert sum(store.collect(now, 1_000).segments for now in range(6_000, 9_000, 1_000)) == 2
    assert rows(store.snapshot()) == ["a", "b", "c", "d"]
    with pytest.raises(ConfigError, match="was collected up to"):
        store.snapshot(before.sequence)


# What is not ours, or broken.


def test_rows_of_no_kind_that_we_know_are_counted(store: SegmentStore) -> None:
    appended(store, "a")
    store.rows.transact([Write(Act.INSERT, "segment.strange", {"what": "this"})])
    snapshot = store.snapshot()
    assert (rows(snapshot), snapshot.foreign, store.strangers()) == (["a"], 1, 0)
    names = ["0", "change.strange.row", "dog", "head.2", "imp", "mine", "other", "pride", "rest", "tail", "\u00e4"]
    # Between our own rows: the first one stopped the table, the others what reads such rows.
    names += ["lock.strange", "next.strange", "position.strange", "reader.strange"]
    assert rows(store.latest()) == ["a"]
    for name in names:
        store.rows.transact([Write(Act.INSERT, name, {"what": "this"})])
    assert store.strangers() == len(names) - 1, "all but the one among the publishes"
    appended(store, "b")
    assert store.positions() == {}
    other = store.allocate(task("other"), LATER.start, Granularity.DAY)
    assert isinstance(other, Granted) and other.lock.interval == LATER
    assert rows(store.latest()) == rows(store.snapshot()) == ["a", "b"]
    store.collect(1_000, 10)
    store.collect(2_000, 10)
    assert rows(store.latest()) == ["a", "b"]


@pytest.mark.parametrize("granted", [-1, 10**12 - 1, (1 << 63) - 1])
def test_a_head_that_counts_more_locks_than_keys_have_room_for_is_named(store: SegmentStore, granted: int) -> None:
    store.rows.transact([Write(Act.MERGE, "head", {"granted": granted})])
    for use in (lambda: store.allocate(task("t"), MONTH.start, Granularity.DAY), store.snapshot):
        with pytest.raises(CorruptState, match=rf"{granted} locks were never granted.*blob head"):
            use()


def test_a_row_that_cannot_be_read_is_named(store: SegmentStore) -> None:
    (made,) = appended(store, "a")
    (row,) = store.rows.query("segment.", "segment~")
    store.rows.transact([Write(Act.MERGE, row.key, {"covers": "seven"})])
    with pytest.raises(CorruptState, match=row.key):
        store.snapshot()
    assert made


def test_rows_that_contradict_each_other_are_named(stores: Stores) -> None:
    """It was a ValueError without the table's name."""
    store = stores()
    store.latest()
    (made,) = appended(store, "a")
    odd = replace(made, interval=MONTH)
    store.rows.transact([Write(Act.INSERT, segment_key(odd.id), segment_values(odd))])
    for read in (store.snapshot, stores().latest):
        with pytest.raises(CorruptState, match=f"the table {store.name} contradict each other: .*{MONTH}.*{DAY}"):
            read()
    store.rows.transact([Write(Act.DELETE, segment_key(odd.id))])
    assert rows(stores().latest()) == ["a"]


def test_a_newer_format_is_refused(store: SegmentStore) -> None:
    store.rows.transact([Write(Act.MERGE, "head", {"format": FORMAT + 1})])
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}"):
        store.state()


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="There is no table nothing"):
        SegmentStore(MemoryTransactions(), MemoryAccount().blobs(), "nothing").snapshot()


# All at once.


def test_a_drop_whose_owner_was_ended_is_refused(stores: Stores) -> None:
    """Between its grant and its publish. It is no mistake of the caller's, which would be a ValueError."""
    store, other, who = stores(), stores(), task("drop", 9)
    appended(store, "a")
    calls: list[str] = []

    def third(call: str) -> bool:
        calls.append(call)
        return calls.count("query head") == 3

    other.rows = Meanwhile(other.rows, third, lambda: store.end(who.owner))
    assert isinstance(other.drop(who, DAY), LostRace)
    assert rows(store.snapshot()) == ["a"]
    assert not store.state().box.locks


def test_a_life_that_is_being_ended_publishes_nothing(stores: Stores) -> None:
    """Its locks are given back one after the other, and it may be publishing under those that are left."""
    store, other, who = stores(), stores(), task("sink")
    day, month = allocated(store, who), acquired(store, who, MONTH, LockType.REPLACE)
    writes: list[str] = []

    def second(call: str) -> bool:
        writes.append(call)
        return writes.count("all head") == 2

    (number,) = store.numbers(MONTH, month.version, 1)
    late = [Segment.root(store.name, *number)]
    other.rows = meanwhile = Meanwhile(other.rows, second, lambda: store.publish(who.id, late))
    assert other.end(who.owner) == [day.id, month.id]
    assert isinstance(meanwhile.answers[0], LostRace), "I13: a zombie has published"
    assert not rows(store.snapshot())


@dataclass
class Crowd:
    """Threads that append, compact and replace one table, and a thread that reads all the time."""

    stores: Stores
    rounds: int
    published: Counter[str] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)
    busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        workers = [
            *(threading.Thread(target=self.guard, args=(self.append, f"a{number}")) for number in range(3)),
            *(threading.Thread(target=self.guard, args=(self.compact, f"c{number}")) for number in range(2)),
            threading.Thread(target=self.guard, args=(self.replace, "r")),
        ]
        self.busy = len(workers)
        for worker in workers:
            worker.start()
        self.read()
        for worker in workers:
            worker.join()
        assert self.errors == []

    def guard(self, work: Callable[[SegmentStore, str], None], name: str) -> None:
        try:
            work(self.stores(), name)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.errors.append(error)
        finally:
            with self.lock:
                self.busy -= 1

    def append(self, store: SegmentStore, name: str) -> None:
        who = task(name, 5)
        for part in range(self.rounds):
            lock = allocated(store, who, 3)
            for number, one in enumerate(rooted(store, lock)):
                row = f"{name}-{part}-{number}"
                answer = store.publish(
                    who.id,
                    [replace(one, file=File(row, 1))],
                    advance=Advance(name, store.position(name), part * 3 + number),
                )
                assert isinstance(answer, Published)
                with self.lock:
                    self.published[row] += 1
            store.release(who.id, lock.id)

    def compact(self, store: SegmentStore, name: str) -> None:
        who = task(name, 1)
        for _ in range(self.rounds):
            visible = store.snapshot().timeline.visible()
            chunks = sorted({(one.interval, one.version) for one in visible})
            for interval, version in chunks:
                here = [one for one in visible if (one.interval, one.version) == (interval, version)]
                covers = list({one.covers: None for one in here})[int(name[1:]) :: 2][:3]
                inputs = [one for one in here if one.covers in covers]
                if inputs and (made := compaction(store, who, inputs, 2)):
                    store.publish(who.id, made, inputs=inputs)
            for lock in store.state().box.held(who.id):
                store.release(who.id, lock.id)

    def replace(self, store: SegmentStore, name: str) -> None:
        who = task(name, 5)
        for number in range(self.rounds):
            answer = store.acquire(who, LockRequest(who.id, store.name, MONTH, LockType.REPLACE))
            if not isinstance(answer, Granted):
                continue
            held = answer.lock
            before = store.snapshot(held.read)
            seen, content = before.timeline.visible(MONTH), rows(before)
            interval = MONTH if number % 2 else DAY
            if content:
                (output,) = store.numbers(interval, held.version, 1)
                made = [Segment.root(store.name, *output, file=File("+".join(content), len(content)))]
                assert isinstance(store.publish(who.id, made, inputs=seen), Published)
            store.release(who.id, held.id)

    def read(self) -> None:
        """Never a row twice, never one missing that had been published before."""
        store = self.stores()
        looks = itertools.cycle([store.snapshot, store.latest])
        for _ in itertools.count():
            with self.lock:
                known, busy = Counter(self.published), self.busy
            found = Counter(rows(next(looks)()))
            assert not [row for row, count in found.items() if count > 1], "rows twice"
            assert not known - found, f"rows missing: {sorted(known - found)[:5]}"
            if not busy:
                assert found == known
                return


class Flaky:
    """Rows of which one answer in ten is lost, after the write or before it."""

    def __init__(self, rows: Transactions, seed: int) -> None:
        self.rows, self.dice = rows, Random(seed)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        lost = self.dice.random()
        answer = [] if lost < 0.05 else self.rows.transact(writes)
        if lost < 0.1:
            raise Unsettled("no answer")
        return answer

    def query(self, first: str, end: str) -> list[Row]:
        return self.rows.query(first, end)


@pytest.mark.parametrize("seed", range(4))
def test_many_users_of_a_table_at_once_with_lost_answers(seed: int) -> None:
    account, partition, seeds = MemoryAccount(), MemoryTransactions(), itertools.count(seed * 100)

    def another() -> SegmentStore:
        rows = Flaky(partition, next(seeds))
        return SegmentStore(rows, account.blobs(), "t", wait=lambda pause: None)

    another().create()
    Crowd(another, 4).run()


@pytest.mark.parametrize("segment_stores", ["memory", "azurite"], indirect=True)
def test_many_users_of_a_table_at_once(stores: Stores, request: pytest.FixtureRequest) -> None:
    azure = "azurite" in request.node.name
    Crowd(stores, 2 if azure else 6).run()

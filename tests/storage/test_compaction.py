"""What a job does for a table beside appending: by policy, by another granularity, by age."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.commands.table import dropped
from samza_azure.config import TableSettings
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.outcomes import Refused
from samza_azure.segments import (
    ETERNITY,
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
)
from samza_azure.storage.interface import Row
from samza_azure.storage.transactions import Transactions, Write
from samza_azure.tables import compaction, files
from samza_azure.tables.housekeeping import Housekeeping
from samza_azure.tables.store.rows import SEGMENT
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.conftest import Stores

#: What is decided here is the same on Azurite, where `test_tables.py` compacts.
pytestmark = pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
DAYS = [Granularity.DAY.bucket(round((START + timedelta(days=number)).timestamp() * 1e6)) for number in range(40)]
LATER = DAYS[-1].end


@pytest.fixture
def store(segment_stores: Stores) -> SegmentStore:
    store = segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    return store


def rows(*days: int, first: int = 0) -> pa.Table:
    numbers = list(range(first, first + len(days)))
    return pa.table([[START + timedelta(days=day, minutes=n) for n, day in enumerate(days)], numbers], schema=SCHEMA)


def appender(store: SegmentStore, name: str = "a") -> tables.Appender:
    return tables.Appender(store, LockTask(name, name, 50, LockOwner(name)))


def appended(store: SegmentStore, *parts: pa.Table) -> None:
    one = appender(store)
    for part in parts:
        assert isinstance(one.append(part), Published)
    one.close()


def numbers(store: SegmentStore, interval: Interval | None = None) -> list[int]:
    snapshot = tables.snapshot_of(store)
    return sorted((snapshot.to_arrow() if interval is None else snapshot.to_arrow(interval))["number"].to_pylist())


def house(store: SegmentStore, **more: object) -> Housekeeping:
    table = TableSettings(
        "t", "at", Granularity.DAY, 60, 10, 10, compact=True, target=1 << 20, grace_s=100, keep_s=None
    )
    for name, value in more.items():
        object.__setattr__(table, name, value)
    return Housekeeping(store, table, "sink-0", LockOwner("run/sink-0", "1.1"), lambda: True)


def segments_of(store: SegmentStore, day: int) -> int:
    return len(store.snapshot().timeline.visible(DAYS[day]))


def test_an_interval_that_is_over_is_compacted_and_one_that_is_written_to_is_not(store: SegmentStore) -> None:
    appended(store, rows(0), rows(0, first=1), rows(2, first=2))
    writer = appender(store, "b")
    writer.append(rows(1, first=3))
    writer.append(rows(1, first=4))
    now = DAYS[2].start + 1
    assert [group[0].interval for group in compaction.due(store, now)] == [DAYS[0]]
    assert house(store).turn(now)
    assert [segments_of(store, day) for day in range(3)] == [1, 2, 1]
    assert not house(store).turn(now)
    writer.close()
    assert house(store).turn(now)
    assert segments_of(store, 1) == 1
    assert numbers(store) == [0, 1, 2, 3, 4]


def test_compaction_leaves_the_busiest_interval_for_later(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALL_MAX", 3)
    writer = appender(store, "b")
    for number in range(4):
        writer.append(rows(0, first=number))
    other = appender(store, "c")
    for number in range(3):
        other.append(rows(1, first=4 + number))
    now = DAYS[0].start
    assert [group[0].interval for group in compaction.due(store, now)] == [DAYS[1]]
    house(store).turn(now)
    assert (segments_of(store, 0), segments_of(store, 1)) == (4, 1)
    assert numbers(store) == list(range(7))


def test_an_interval_is_as_hard_written_to_as_it_has_new_segments(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late rows go to an earlier interval in the same publish, which one of the two locks counts."""
    monkeypatch.setattr(compaction, "SMALL_MAX", 3)
    writer = appender(store, "b")
    for number in range(4):
        writer.append(rows(0, 1, first=2 * number))
    for number in range(3):
        writer.append(rows(1, first=8 + number))
    assert [group[0].interval for group in compaction.due(store, DAYS[0].start)] == [DAYS[0]]
    house(store).turn(DAYS[0].start)
    writer.append(rows(0, first=11))
    assert compaction.due(store, DAYS[0].start) == [], "the hardest stays the hardest when others are compacted"


def test_a_date_is_not_divided_by_hours(segment_stores: Stores) -> None:
    store = segment_stores()
    tables.create(store, pa.schema([("day", pa.date32())]), time="day", granularity=Granularity.DAY)
    one = appender(store)
    one.append(pa.table({"day": pa.array([START.date()], pa.date32())}))
    one.close()
    with pytest.raises(ConfigError, match=r"'day' of .* is a date, .* cannot divide the table by hour"):
        compaction.rewrite(store, LockTask("w", "w", 60, LockOwner("w")), ETERNITY, Granularity.HOUR)
    assert store.state().box.locks == {}


def test_an_append_of_too_many_intervals_leaves_no_lock(store: SegmentStore) -> None:
    writer = appender(store)
    writer.append(rows(0))
    held = set(store.state().box.locks)
    with pytest.raises(ConfigError, match=r"91 intervals of .* in one append; 90 are possible"):
        writer.append(rows(*range(91), first=1))
    assert store.state().box.locks.keys() == held != set()
    assert isinstance(writer.append(rows(0, first=200)), Published)
    assert numbers(store) == [0, 200]


def test_a_large_segment_is_not_rewritten_for_a_few_appends(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an interval that is still written to; the day before it is written to harder."""
    monkeypatch.setattr(compaction, "SMALL_MAX", 3)
    hardest, other = appender(store, "b"), appender(store, "c")
    for number in range(8):
        hardest.append(rows(0, first=number))
    other.append(rows(*[1] * 1_000, first=100))
    for number in range(2):
        other.append(rows(1, first=number))
    assert compaction.due(store, DAYS[0].start) == []
    other.append(rows(1, first=2))
    ((*small,),) = compaction.due(store, DAYS[0].start)
    assert [one.file.rows for one in small if one.file] == [1, 1, 1]
    other.close()
    ((*every,),) = [each for each in compaction.due(store, LATER) if each[0].interval == DAYS[1]]
    assert sum(one.file.rows for one in every if one.file) == 1_003, "when it is over, all of it once more"


def test_a_compaction_can_stop_between_two_groups_and_resume(store: SegmentStore) -> None:
    appended(store, *(rows(0, 1, 2, first=3 * part) for part in range(2)))
    asked: list[int] = []

    def once() -> bool:
        asked.append(1)
        return len(asked) == 1

    stopped = house(store)
    stopped.goes_on = once
    stopped.turn(LATER)
    assert sorted(segments_of(store, day) for day in range(3)) == [1, 2, 2]
    house(store).turn(LATER)
    assert [segments_of(store, day) for day in range(3)] == [1, 1, 1]
    assert store.state().box.locks == {}
    assert numbers(store) == list(range(6))


def test_a_higher_priority_takes_the_interval_from_a_compaction(
    store: SegmentStore, segment_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request comes when the files are merged; the publish is refused, and nothing of it stays visible."""
    appended(store, rows(0), rows(0, first=1))
    other, publish = segment_stores(), SegmentStore.publish

    def late(self: SegmentStore, *arguments: object, **more: object) -> object:
        monkeypatch.setattr(SegmentStore, "publish", publish)
        answer = other.acquire(
            LockTask("x", "x", 99, LockOwner("x")), LockRequest("x", store.name, DAYS[0], LockType.REPLACE)
        )
        assert isinstance(answer, Granted)
        return publish(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentStore, "publish", late)
    (done,) = tables.compact(store, LockTask("c", "c", 0, LockOwner("c")))
    assert (done.why, "revoked" in done.refused) == (tables.Unmerged.CHANGED, True)
    assert segments_of(store, 0) == 2
    assert [lock.holders for lock in store.state().box.locks.values()] == [{"x"}]


def test_two_compactors_with_one_plan(store: SegmentStore, segment_stores: Stores) -> None:
    """The second compaction finds the work done, and merges nothing only to be refused."""
    appended(store, rows(0), rows(0, first=1))
    groups = tables.plan(store)
    (first,) = tables.compact(store, LockTask("c", "c", 0, LockOwner("c")), groups=groups)
    files = store.blobs.list(store.prefix)
    (second,) = tables.compact(segment_stores(), LockTask("d", "d", 0, LockOwner("d")), groups=groups)
    assert (first.inputs, first.outputs) == (2, 1)
    assert (second.why, "another task has merged" in second.refused) == (tables.Unmerged.MERGED, True)
    assert store.blobs.list(store.prefix) == files
    assert store.state().box.locks == {}


@pytest.mark.parametrize("is_merged", [False, True])
def test_what_another_compaction_is_at_work_on_comes_last(
    store: SegmentStore, segment_stores: Stores, is_merged: bool
) -> None:
    """It was refused at once: with two scripts, one of them failed although everything was merged."""
    for day in range(3):
        appended(store, rows(day, first=2 * day), rows(day, first=2 * day + 1))
    other, first = LockTask("d", "d", 0, LockOwner("d")), tables.plan(store)[0]
    place = first[0].covers | first[1].covers
    request = LockRequest("d", store.name, DAYS[0], LockType.EXCLUSIVE, place, first[0].version)
    assert isinstance(store.acquire(other, request), Granted)
    merged = [segments_of(store, day) for day in range(3)]

    def wait(pause: object) -> None:
        merged[:] = [segments_of(store, day) for day in range(3)]
        store.release_all("d")
        if is_merged:
            tables.compact(segment_stores(), other, groups=[first])

    one = segment_stores()
    one.wait = wait
    done = tables.compact(one, LockTask("c", "c", 0, LockOwner("c")))
    assert merged == [2, 1, 1], "the others first"
    assert [one.why for one in done] == [None, None, tables.Unmerged.MERGED if is_merged else None]
    assert [segments_of(store, day) for day in range(3)] == [1, 1, 1]
    assert numbers(store) == list(range(6))


@pytest.mark.parametrize("collections", [1, 2, 9])
def test_a_rewrite_whose_lock_is_overtaken_by_a_collection_begins_again(
    store: SegmentStore, segment_stores: Stores, collections: int
) -> None:
    """It ended in a ConfigError, which says that the sequence number was too early."""
    appended(store, rows(0, 1))
    other, clock = segment_stores(), itertools.count(1_000, 1_000)
    one = Repeated(store.rows, other, collections, lambda: (appended(other, rows(5)), collected(other, clock)))
    store.rows = one
    done = tables.rewrite(store, LockTask("c", "c", 0, LockOwner("c")), DAYS[0], Granularity.HOUR)
    assert done.why is (None if collections < compaction.TRIES_MAX else tables.Unmerged.CHANGED), done
    assert bool(done.outputs) == (collections < compaction.TRIES_MAX)
    assert store.state().box.locks == {}


def collected(store: SegmentStore, clock: Iterator[int]) -> None:
    """Garbage up to now, whose mark is later than every lock that is held."""
    store.collect(next(clock), 100)
    store.collect(next(clock), 100)


@dataclass
class Repeated:
    """Rows in front of whose segments another client acts, if a REPLACE is under way; for so many REPLACEs."""

    rows: Transactions
    other: SegmentStore
    left: int
    act: Callable[[], object]
    seen: int = 0

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        return self.rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        locks = [lock for lock in self.other.state().box.locks.values() if lock.type is LockType.REPLACE]
        if first == SEGMENT and self.left and locks and locks[0].id != self.seen:
            self.left, self.seen = self.left - 1, locks[0].id
            self.act()
        return self.rows.query(first, end)


def test_a_damaged_file_stops_neither_the_rest_nor_the_garbage(store: SegmentStore) -> None:
    appended(store, *(rows(0, 1, first=2 * part) for part in range(2)))
    broken = store.snapshot().timeline.visible(DAYS[0])[0].file
    assert broken is not None
    store.blobs.delete(broken.name)
    store.upload(broken.name, b"PAR1 no more" * 10)
    keeper = house(store, keep_s=86_400.0 * 365)
    assert keeper.turn(LATER)
    assert [segments_of(store, day) for day in range(2)] == [2, 1]
    damaged, *_ = tables.compact(store, LockTask("c", "c", 0, LockOwner("c")))
    assert (damaged.why, broken.name in damaged.refused) == (tables.Unmerged.DAMAGED, True)
    assert store.state().box.locks == {}
    minutes = 10 * 60_000_000
    assert keeper.turn(LATER + minutes)
    assert len(store.snapshot().timeline) == 3, "what was merged is gone"


def test_a_clock_that_is_set_back_does_not_put_garbage_off(store: SegmentStore) -> None:
    appended(store, rows(0), rows(0, first=1))
    keeper = house(store)
    keeper.turn(LATER + 10 * 86_400_000_000)
    keeper.turn(LATER)
    keeper.turn(LATER + 200_000_000)
    assert len(store.snapshot().timeline) == 1


def test_days_become_months_and_days_again(store: SegmentStore) -> None:
    appended(store, rows(0, 5, 30, 31, 35), rows(5, 31, first=5))
    task = LockTask("c", "c", 0, LockOwner("c"))
    january = Granularity.MONTH.bucket(DAYS[0].start)
    done = tables.rewrite(store, task, DAYS[5], Granularity.MONTH)
    assert (done.inputs, done.outputs) == (4, 1)
    assert {one.interval for one in store.snapshot().timeline.visible(january)} == {january}
    assert numbers(store) == list(range(7))
    assert tables.rewrite(store, task, DAYS[5], Granularity.MONTH).inputs == 0, "it is so already"
    appended(store, rows(6, first=7))
    assert tables.rewrite(store, task, january, Granularity.DAY).outputs == 31
    assert numbers(store) == list(range(8))
    assert numbers(store, DAYS[5]) == [1, 5]
    assert all(one.interval in DAYS for one in store.snapshot().timeline.visible())
    assert store.state().box.locks == {}


def test_a_granularity_that_makes_too_many_intervals(store: SegmentStore) -> None:
    appended(store, rows(0, 1))
    with pytest.raises(ConfigError, match="more than 900 intervals by second"):
        tables.rewrite(store, LockTask("c", "c", 0, LockOwner("c")), DAYS[0], Granularity.SECOND)
    assert store.state().box.locks == {}


def test_rows_appended_during_a_rewrite_are_carried_over(
    store: SegmentStore, segment_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(store, rows(0, 1, 2))
    other, put = appender(segment_stores(), "b"), compaction._Output.finish

    def meanwhile(self: object) -> object:
        monkeypatch.setattr(compaction._Output, "finish", put)
        assert isinstance(other.append(rows(1, first=3)), Published)
        return put(self)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction._Output, "finish", meanwhile)
    done = tables.rewrite(store, LockTask("c", "c", 0, LockOwner("c")), DAYS[1], Granularity.MONTH)
    assert (done.inputs, done.outputs, done.refused) == (3, 1, "")
    assert isinstance(other.append(rows(2, first=4)), Published)
    assert numbers(store) == list(range(5))


@pytest.mark.parametrize(("is_in_turn", "at_once"), [(False, 2), (True, 1)])
def test_more_large_files_than_are_merged_at_once(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, is_in_turn: bool, at_once: int
) -> None:
    """They are merged in passes, and files that lie one after the other in time are read one after the other."""
    monkeypatch.setattr(compaction, "FAN_IN_MAX", 2)
    monkeypatch.setattr(compaction, "BATCH_ROWS", 2)
    true, opened = files.batches, []

    def batches(*arguments: Any) -> Iterator[pa.RecordBatch]:
        opened.append(arguments)
        counts.append(len(opened))
        try:
            yield from true(*arguments)
        finally:
            opened.pop()

    counts: list[int] = []
    monkeypatch.setattr(files, "batches", batches)
    for part in range(7):
        minutes = range(10 * part, 10 * part + 10) if is_in_turn else range(part, 70, 7)
        times = [START + timedelta(minutes=minute) for minute in minutes]
        appended(store, pa.table([times, [*minutes]], schema=SCHEMA))
    done = tables.rewrite(store, LockTask("c", "c", 0, LockOwner("c")), DAYS[0], Granularity.MONTH, target_bytes=1)
    assert done.refused == ""
    assert numbers(store) == list(range(70))
    assert max(counts) == at_once
    there = {one.file.name for one in store.snapshot().timeline if one.file}
    assert {name for name, _ in store.blobs.list(store.prefix)} == there, "what was between is deleted"
    spans = [files.span(one.file, "at") for one in store.snapshot().timeline.visible() if one.file]
    assert all(one.end <= other.start for one, other in itertools.pairwise(sorted(filter(None, spans))))


def test_old_intervals_are_dropped_and_can_be_had_back_until_their_garbage_is_collected(store: SegmentStore) -> None:
    appended(store, rows(0, 1, 2))
    keeper = house(store, keep_s=86_400.0)
    assert keeper.turn(DAYS[2].end)
    assert numbers(store) == [2]
    assert store.restore(DAYS[1]) == 1
    assert numbers(store) == [1, 2]
    assert keeper.turn(DAYS[2].end + 1)
    for minutes in (5, 10, 15):
        keeper.turn(DAYS[2].end + minutes * 60_000_000)
    assert numbers(store) == [2]
    assert store.restore(DAYS[1]) == 0
    assert {name for name, _ in store.blobs.list(store.prefix)} == {
        one.file.name for one in store.snapshot().timeline.visible() if one.file
    }


def test_an_idle_table_costs_no_more_than_its_regular_reads(store: SegmentStore) -> None:
    """Garbage is collected when it is old enough; where there is none, files are not listed again and again."""
    appended(store, rows(0), rows(0, first=1))
    keeper, listed, blobs = house(store), [], store.blobs

    class Listing:
        def __getattr__(self, name: str) -> object:
            listed.append(name)
            return getattr(blobs, name)

    store.blobs = Listing()  # type: ignore[assignment]
    for minutes in range(0, 60, 2):
        keeper.turn(LATER + minutes * 60_000_000)
    assert len(store.snapshot().timeline) == 1, "the two that were merged are gone"
    assert 0 < listed.count("list") <= 6
    before = len(listed)
    for minutes in range(60, 120, 2):
        assert not keeper.turn(LATER + minutes * 60_000_000)
    assert len(listed) == before
    appended(store, rows(0, first=2))
    assert keeper.turn(LATER + 120 * 60_000_000)
    assert listed.count("list") > 2


def test_a_compaction_whose_owner_was_ended_is_refused(store: SegmentStore, segment_stores: Stores) -> None:
    """Its life was ended when the sink moved; what it has merged is an orphan."""
    appended(store, rows(0), rows(0, first=1))
    inputs = store.snapshot().timeline.visible(DAYS[0])
    keeper = house(store)
    task = LockTask("h", "sink-0.housekeeping", 0, keeper.owner)
    covers, version = inputs[0].covers | inputs[1].covers, inputs[0].version
    request = LockRequest("h", store.name, DAYS[0], LockType.EXCLUSIVE, covers, version)
    answer = store.acquire(task, request)
    assert isinstance(answer, Granted)
    numbers_lock = store.allocate_outputs(task, DAYS[0], version, 1)
    assert isinstance(numbers_lock, Granted)
    group = numbers_lock.lock.partitions
    assert group is not None
    made = [Segment(store.name, DAYS[0], version, group.least, covers, 1, group, covers)]
    segment_stores().end(keeper.owner)
    under = (answer.lock.id, numbers_lock.lock.id)
    assert isinstance(store.publish("h", made, inputs=inputs, under=under), LostRace)
    assert numbers(store) == [0, 1]


def test_an_interval_that_too_many_append_to_is_not_written_anew(
    store: SegmentStore, segment_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks to append to it learn of it in one transaction."""
    month, who = Interval(DAYS[0].start, DAYS[30].end), LockTask("m", "m", 0, LockOwner("m"))
    writers = [appender(segment_stores(), name) for name in ("a", "b", "c", "d")]
    for number, one in enumerate(writers[:3]):
        one.append(rows(*range(31), first=number * 31))
    upload = SegmentStore.upload

    def meanwhile(self: SegmentStore, name: str, data: bytes) -> None:
        monkeypatch.setattr(SegmentStore, "upload", upload)
        writers[3].append(rows(*range(31), first=93))
        upload(self, name, data)

    monkeypatch.setattr(SegmentStore, "upload", meanwhile)
    with pytest.raises(SamzaAzureError, match="124 locks are held to append"):
        tables.rewrite(store, who, month, Granularity.MONTH)
    assert numbers(store) == list(range(124))
    assert "too many of its intervals" in tables.rewrite(store, who, month, Granularity.MONTH).refused
    assert [lock.type for lock in store.state().box.locks.values()] == [LockType.APPEND] * 124
    writers[0].close()
    assert tables.rewrite(store, who, month, Granularity.MONTH).outputs == 1
    assert numbers(store) == list(range(124))


def test_a_revoked_lock_that_was_not_given_back_is_asked_for_again(segment_stores: Stores) -> None:
    """A compaction that could not release its lock in an outage was answered "revoked" for all its life."""
    tables.create(store := segment_stores(), SCHEMA, time="at", granularity=Granularity.DAY)
    appended(store, rows(0), rows(0, first=1))
    low, high = LockTask("low", "low", 0, LockOwner("low")), LockTask("high", "high", 9, LockOwner("high"))
    segments = store.snapshot().timeline.visible()
    there = Partitions(one.partition for one in segments)
    store.acquire(low, LockRequest("low", store.name, DAYS[0], LockType.EXCLUSIVE, there, segments[0].version))
    store.acquire(high, LockRequest("high", store.name, DAYS[0]))
    store.release_all("high")
    assert [(one.inputs, one.outputs) for one in tables.compact(store, low)] == [(2, 1)]
    store.acquire(low, LockRequest("low", store.name, DAYS[0]))
    store.acquire(high, LockRequest("high", store.name, DAYS[0]))
    store.release_all("high")
    assert isinstance(store.drop(low, DAYS[0]), Published)
    assert store.state().box.locks == {}


def test_an_empty_interval_of_a_rewrite_is_not_a_drop(store: SegmentStore) -> None:
    """It was listed as one, and to take it back deleted a row of the REPLACE."""
    appended(store, rows(0))
    assert tables.rewrite(store, LockTask("c", "c", 0, LockOwner("c")), DAYS[0], Granularity.HOUR).outputs == 24
    timeline = store.latest().timeline
    assert dropped(timeline, DAYS[0]) == []
    empty = [entry.interval for entry in timeline.lookup(DAYS[0]) if not any(one.file for one in entry.segments)]
    assert len(empty) == 23
    assert [store.restore(one) for one in empty] == [0] * 23
    assert numbers(store) == [0]


def test_a_rewritten_interval_is_no_longer_dropped(store: SegmentStore) -> None:
    """It said that there was no drop of the day, with the garbage not collected and nothing about what to do."""
    appended(store, rows(0, 1))
    before = store.snapshot().sequence
    writer = LockTask("c", "c", 0, LockOwner("c"))
    assert isinstance(store.drop(writer, DAYS[0]), Published)
    month = Interval(DAYS[0].start, DAYS[30].end)
    assert isinstance(store.drop(writer, month), Published)
    with pytest.raises(
        ConfigError, match=r"2024-01-01/2024-02-01 was .*dropped or rewritten since.* restore that first"
    ):
        store.restore(DAYS[0])
    assert store.restore(month) == 2
    assert tables.rewrite(store, writer, month, Granularity.MONTH).outputs == 1
    with pytest.raises(ConfigError, match=r"rewritten since.* open\(\.\.\., at="):
        store.restore(DAYS[0])
    assert numbers(store) == [1]
    assert sorted(tables.snapshot_of(store, at=before).to_arrow()["number"].to_pylist()) == [0, 1]
    assert store.restore(DAYS[1]) == 0, "there is no drop of it"

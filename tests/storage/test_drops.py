"""Drops of a table by hand and by retention: what comes above them, and what remains when they are over."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.config import TableSettings
from samza_azure.errors import ConfigError
from samza_azure.outcomes import Refused
from samza_azure.segments import Granted, Granularity, Interval, LockOwner, LockTask, Published
from samza_azure.storage.interface import Row
from samza_azure.storage.transactions import Transactions, Write
from samza_azure.tables import compaction
from samza_azure.tables.housekeeping import Housekeeping
from samza_azure.tables.store.rows import NEXT, SEGMENT
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.conftest import Stores
from tests.storage.test_segments import Meanwhile

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CENTURY = Interval.of("2000-01-01", "2100-01-01")
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])


def task(name: str, priority: int = 0) -> LockTask:
    return LockTask(name, name, priority, LockOwner(name, "1"))


def us(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)


def day(number: int) -> Interval:
    return Granularity.DAY.bucket(us(START + number * DAY))


def appended(store: SegmentStore, *moments: datetime, name: str = "a") -> None:
    """A row at each of these moments."""
    appender = tables.Appender(store, task(name))
    found = pa.table([list(moments), list(range(len(moments)))], schema=SCHEMA)
    assert isinstance(appender.append(found), Published)
    appender.close()


def intervals(store: SegmentStore) -> list[Interval]:
    """The intervals that show rows."""
    timeline = store.snapshot().timeline
    return [one.interval for one in timeline.lookup() if any(segment.file for segment in one.segments)]


def moments(store: SegmentStore) -> list[datetime]:
    return sorted(tables.snapshot_of(store).to_arrow()["at"].to_pylist())


def housekeeping(store: SegmentStore, *, keep: timedelta | None = None) -> Housekeeping:
    settings = TableSettings("t", "at", Granularity.DAY, 1.0, 1, 1, True, 1 << 20, 60.0, keep and keep.total_seconds())
    return Housekeeping(store, settings, "t", LockOwner("p", "1"), lambda: True)


@dataclass
class Counting:
    """Rows that count the calls and the rows that these have read."""

    rows: Transactions
    calls: Counter[str] = field(default_factory=Counter)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        self.calls["calls"] += 1
        return self.rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        found = self.rows.query(first, end)
        self.calls += Counter({"calls": 1, "rows": len(found)})
        if first.startswith(NEXT):
            self.calls += Counter({"calls for numbers": 1, "numbers": len(found)})
        return found


@pytest.fixture
def stores(segment_stores: Stores) -> Stores:
    """Makes clients of one table, which is by day."""
    tables.create(segment_stores(), SCHEMA, time="at", granularity=Granularity.DAY)
    return segment_stores


def test_rows_above_a_drop_of_a_century_go_into_days(stores: Stores) -> None:
    """So retention, `compact --granularity` and the restore of a day go on as if nothing had been dropped."""
    store = stores()
    appended(store, START)
    assert isinstance(store.drop(task("admin", 9), CENTURY), Published)
    late = [START + number * DAY / 2 for number in range(8)]
    appended(stores(), *late)
    assert (intervals(store), moments(store)) == ([day(number) for number in range(4)], late)
    housekeeping(stores(), keep=2 * DAY).turn(us(START + 4 * DAY))
    assert moments(store) == late[4:]
    assert stores().restore(day(1)) == 1
    assert moments(store) == [*late[2:]]
    made = compaction.rewrite(stores(), task("c"), day(2), Granularity.HOUR)
    assert (made.refused, moments(store)) == ("", late[2:])
    assert len([one for one in intervals(store) if day(2).contains(one)]) == 2
    with pytest.raises(ConfigError, match="cannot be restored"):
        store.restore(CENTURY)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("days", [20, 80])
def test_nothing_of_the_gone_remains(stores: Stores, days: int) -> None:
    store = stores()
    keeps = housekeeping(stores(), keep=3 * DAY)
    for number in range(days):
        appended(store, START + number * DAY)
        keeps.turn(us(START + number * DAY))
    for _ in range(8):
        number += 1
        keeps.turn(us(START + number * DAY))
    assert not moments(store)
    assert [row.key for row in store.rows.query(" ", "~")] == ["head"]


@dataclass
class Paged:
    """Rows whose segments are read in two answers; in between another client acts, once."""

    rows: Transactions
    act: Callable[[], object]
    acts: int = 1

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        return self.rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        found = self.rows.query(first, end)
        if not first.startswith(SEGMENT) or not self.acts:
            return found
        self.acts -= 1
        self.act()
        return [found[0], *self.rows.query(found[1].key, end)]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_reader_sees_no_dropped_row_when_its_drop_goes(stores: Stores, earlier: bool) -> None:
    """It has read a row below the drop, and both are deleted before it comes to the drop. A collection that another
    one overtakes has announced before that how far it goes."""
    store, reader, other = stores(), stores(), stores()
    appended(store, START)
    store.drop(task("admin", 9), day(0))
    at = store.snapshot().sequence
    store.collect(1_000, 100)
    reader.rows = Paged(reader.rows, lambda: other.collect(2_000, 100))
    seen = []
    acts = [lambda: seen.append(reader.snapshot(at if earlier else None).timeline.visible())]
    store.rows = Meanwhile(store.rows, lambda call: "DELETE" in call or call.startswith("all segment"), acts[0])
    store.collect(2_000, 100)
    assert seen == [[]], "I23: rows are visible that were dropped"


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_reader_sees_the_days_of_an_append_above_a_part_of_a_drop(stores: Stores) -> None:
    """A drop may begin and end anywhere. What it hides of a day is an interval, and the rest of the day another one."""
    store = stores()
    morning, evening = START + timedelta(hours=1), START + timedelta(hours=22, minutes=59)
    appended(store, morning, evening)
    part = Interval(us(START + timedelta(hours=11, seconds=1)), us(START + 3 * DAY - timedelta(seconds=1)))
    store.drop(task("admin", 9), part)
    more = [START + timedelta(hours=11, seconds=2), evening, START + DAY, START + 3 * DAY - timedelta(seconds=2)]
    appended(stores(), *more)
    first = Interval(part.start, day(0).end)
    assert intervals(store) == [Interval(day(0).start, part.start), first, day(1), day(2)]
    assert moments(store) == [morning, *more]


def test_two_that_begin_a_day_at_once_go_to_one_place(stores: Stores) -> None:
    """Whoever publishes last hides nothing; and a collection in between forgets no number that somebody has taken."""
    first, second = tables.Appender(stores(), task("a")), tables.Appender(stores(), task("b"))
    held = [stores().allocate(task(name), us(START), Granularity.DAY) for name in ("x", "y")]
    stores().collect(1_000, 0)
    held.append(stores().allocate(task("z"), us(START), Granularity.DAY))
    ids = [(one.lock.interval, one.lock.version, str(one.lock.partitions)) for one in held if isinstance(one, Granted)]
    assert ids == [(day(0), 1, number) for number in "012"], "I9: a number is given twice, or a place is begun twice"
    for appender, moment in ((second, START), (first, START + DAY / 2)):
        assert isinstance(appender.append(pa.table([[moment], [0]], schema=SCHEMA)), Published)
    assert moments(stores()) == [START, START + DAY / 2]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("ages", [(10, 100), pytest.param((10, 500, 2_000), marks=pytest.mark.long)])
def test_an_append_costs_the_same_at_any_age_of_the_table(stores: Stores, ages: Sequence[int]) -> None:
    """By a client that has just opened it; with retention, days are few, and nothing remains of those that are gone."""
    keeps, number, costs = housekeeping(stores(), keep=3 * DAY), 0, {}
    for age in ages:
        while number < age:
            appended(stores(), START + number * DAY)
            keeps.turn(us(START + number * DAY))
            number += 1
        store = stores()
        counting = store.rows = Counting(store.rows)
        appended(store, START + number * DAY)
        number += 1
        costs[age] = dict(counting.calls)
    print(f"calls of one append to a new day, and rows that they read, by the days before: {costs}")
    assert [*costs.values()] == [costs[ages[0]]] * len(ages)
    assert costs[ages[0]]["calls"] < 25
    assert costs[ages[0]]["rows"] < 60


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_an_append_of_old_and_new_rows_reads_no_numbers_of_the_days_between(stores: Stores) -> None:
    """It read the numbers of each: of 2,000 days, two pages of rows."""
    number, costs = 0, []
    for age in (250, 500):
        for first in range(number, age, 50):
            appended(stores(), *(START + day * DAY for day in range(first, first + 50)))
        number = age
        store = stores()
        counting = store.rows = Counting(store.rows)
        days = [0, 1, age // 2, age - 2, age - 1]
        appended(store, *(START + day * DAY for day in days))
        costs.append((counting.calls["calls for numbers"], counting.calls["numbers"]))
    assert costs == [(3, len(days))] * 2

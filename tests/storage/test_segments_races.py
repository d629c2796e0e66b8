"""Races of a table's writers, readers and collectors, each of which once lost rows, or waited forever."""

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.config import TableSettings
from samza_azure.errors import ConfigError, StorageUnavailable, Unsettled
from samza_azure.outcomes import Refused
from samza_azure.segments import Granularity, LockOwner, LockTask, LockType, Published, Revoked, Segment
from samza_azure.storage.interface import Row
from samza_azure.storage.transactions import OPERATIONS_MAX, Transactions, Write
from samza_azure.tables.housekeeping import Housekeeping
from samza_azure.tables.store.segments import SegmentStore
from tests.storage.conftest import Stores
from tests.storage.test_segments import DAY, acquired, allocated, appended, compaction, rooted, rows, task

pytestmark = pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])


def numbered(*numbers: int) -> pa.Table:
    """Rows of the first day."""
    return pa.table([[START + timedelta(minutes=number) for number in numbers], list(numbers)], schema=SCHEMA)


def numbers(store: SegmentStore) -> list[int]:
    return sorted(tables.snapshot_of(store).to_arrow()["number"].to_pylist())


class Between:
    """Rows of a table; something happens just before the first transaction, or query, that is like this."""

    def __init__(self, rows: Transactions, is_it: Callable[[str], bool], happens: Callable[[], object]) -> None:
        self._rows, self._is_it, self._happens = rows, is_it, happens

    def transact(self, writes: list[Write]) -> list[str] | Refused:
        self._look("+".join(f"{write.act.name} {write.key}" for write in writes))
        return self._rows.transact(writes)

    def query(self, first: str, end: str) -> list[Row]:
        self._look(f"READ {first}")
        return self._rows.query(first, end)

    def _look(self, call: str) -> None:
        if self._is_it(call):
            self._is_it = lambda call: False
            self._happens()


# Two that the locks let through.


def three_appends(store: SegmentStore) -> list[Segment]:
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    appender = tables.Appender(store, task("a", 50))
    for number in range(3):
        assert isinstance(appender.append(numbered(number)), Published)
    appender.close()
    return store.snapshot().timeline.visible()


#: An actor that was stopped, and wakes up when its successor is at work.
ZOMBIE, SUCCESSOR = (LockTask(f"house@{life}", "house", 0, LockOwner("house", life)) for life in ("1", "2"))


def test_two_compactions_of_one_group(segment_stores: Stores) -> None:
    """Tasks of a group are not kept from each other by their locks: both were granted the second segment, and
    published its rows."""
    store, other = segment_stores(), segment_stores()
    first, second, third = three_appends(store)

    def wakes_up() -> None:
        tables.compact(other, SUCCESSOR, groups=[[second, third]])

    store.rows = Between(store.rows, lambda call: "INSERT segment." in call, wakes_up)  # type: ignore[assignment]
    tables.compact(store, ZOMBIE, groups=[[first, second]])
    assert numbers(other) == [0, 1, 2]
    assert other.state().box.locks == {}


def test_a_compaction_and_a_rewrite_of_one_group(segment_stores: Stores) -> None:
    """What was compacted meanwhile looked like an append, and was carried over beside the rows that it was made of."""
    store, other = segment_stores(), segment_stores()
    inputs = three_appends(store)

    def wakes_up() -> None:
        tables.compact(other, ZOMBIE, groups=[inputs])

    store.rows = Between(store.rows, lambda call: "INSERT next." in call, wakes_up)  # type: ignore[assignment]
    tables.rewrite(store, SUCCESSOR, inputs[0].interval, Granularity.HOUR)
    assert numbers(other) == [0, 1, 2]
    assert other.state().box.locks == {}


def test_a_revoked_lock_of_another_task_of_the_group(segment_stores: Stores) -> None:
    """It was asked for again and again, forever: only its holder can give it back."""
    segment_stores().create()
    store = segment_stores()
    appended(store, "a")
    acquired(store, ZOMBIE, DAY, LockType.EXCLUSIVE)
    acquired(store, task("high", 9), DAY, LockType.EXCLUSIVE)
    store.release_all("high.1")
    store.rows = Between(store.rows, lambda call: False, lambda: None)  # type: ignore[assignment]
    calls = iter(range(50))
    store.rows._is_it = lambda call: next(calls, None) is None  # type: ignore[attr-defined]
    store.rows._happens = lambda: pytest.fail("asked forever")  # type: ignore[attr-defined]
    assert isinstance(store.drop(SUCCESSOR, DAY), Revoked)
    assert rows(segment_stores().snapshot()) == ["a"]


# A lock that is given back while its owner publishes.


def test_the_end_of_a_life_with_more_locks_than_a_transaction_holds(segment_stores: Stores) -> None:
    """Those that were not revoked in it were deleted while a zombie staged a large publish: half of it counted."""
    segment_stores().create()
    zombie, other = segment_stores(), segment_stores()
    who = task("sink")
    for _ in range(OPERATIONS_MAX + 5):
        last = allocated(zombie, who)
    large = zombie.allocate(who, DAY.start, Granularity.DAY, 150).lock  # type: ignore[union-attr]
    assert large.id > last.id
    made = rooted(zombie, large)
    zombie.state()

    def stage() -> None:
        zombie.rows = Between(zombie.rows, lambda call: False, lambda: None)  # type: ignore[assignment]
        counted = iter(range(10))

        def dies(call: str) -> bool:
            return "INSERT segment." in call and next(counted, 9) == 1

        def death() -> None:
            raise KeyboardInterrupt

        zombie.rows._is_it, zombie.rows._happens = dies, death  # type: ignore[attr-defined]
        with contextlib.suppress(KeyboardInterrupt):
            zombie.publish(who.id, made)

    key = f"DELETE lock.{large.id:012d}"
    other.rows = Between(other.rows, lambda call: key in call, stage)  # type: ignore[assignment]
    other.end(who.owner)
    snapshot = segment_stores().snapshot()
    assert len(rows(snapshot)) in (0, 150), "I12: half of a publish counts"
    assert (snapshot.staged, other.state().box.locks) == ((), {})


# Readers that pin.


@pytest.mark.parametrize("at", ["before the mark", "after the mark"])
def test_a_pin_that_comes_during_a_collection(segment_stores: Stores, at: str) -> None:
    """Either the collection sees the pin, or the reader learns that it is too late: never neither."""
    segment_stores().create()
    store, reader, collector = segment_stores(), segment_stores(), segment_stores()
    inputs = appended(store, "a", "b")
    early = reader.snapshot()
    made = compaction(store, task("compact"), inputs)
    assert made is not None
    store.publish("compact.1", made, inputs=inputs)
    store.release_all("compact.1")
    store.collect(1_000, 100)
    told = []

    def pin() -> None:
        try:
            reader.pin("r1", early, until_us=10_000)
        except ConfigError as error:
            told.append(str(error))

    moment = "MERGE head" if at == "before the mark" else "DELETE segment."
    collector.rows = Between(collector.rows, lambda call: moment in call, pin)  # type: ignore[assignment]
    found = collector.collect(2_000, 100)
    if told:
        assert "garbage" in told[0]
        assert found.segments == 2
        assert list(store.rows.query("reader.", "reader~")) == []
    else:
        assert found.segments == 0
        assert rows(store.snapshot(early.sequence)) == ["a", "b"]


# Locks without an owner.


def test_a_lock_whose_grant_was_not_answered_is_given_back(segment_stores: Stores) -> None:
    """An outage hid the answer. The appender asked for another lock, and kept that one for all its life: its interval
    was neither compacted nor dropped."""
    store, other = segment_stores(), segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    appender = tables.Appender(store, task("a", 50))
    outage = Outage(store.rows, "INSERT lock.")
    store.rows = outage  # type: ignore[assignment]
    with pytest.raises(StorageUnavailable):
        appender.append(numbered(0))
    assert len(other.state().box.locks) == 1
    outage.down = 0
    assert isinstance(appender.append(numbered(0)), Published)
    assert len(other.state().box.locks) == 1
    appender.release_older(0.0)
    appender.release_older(1e9)
    assert other.state().box.locks == {}
    assert numbers(other) == [0]


class Outage:
    """The answer of one transaction is lost, and then nothing is answered until `down` is 0."""

    def __init__(self, rows: Transactions, key: str) -> None:
        self._rows, self._key, self.down = rows, key, 0
        self._is_armed = True

    def transact(self, writes: list[Write]) -> list[str] | Refused:
        self._look()
        answer = self._rows.transact(writes)
        if self._is_armed and self._key in "+".join(f"{write.act.name} {write.key}" for write in writes):
            self._is_armed, self.down = False, 1
            raise Unsettled("the answer is lost")
        return answer

    def query(self, first: str, end: str) -> list[Row]:
        self._look()
        return self._rows.query(first, end)

    def _look(self) -> None:
        if self.down:
            raise StorageUnavailable("down")


def test_a_housekeeper_gives_back_what_it_could_not_give_back_before(segment_stores: Stores) -> None:
    """An outage came when it had merged. Nothing more was due, so its locks stayed for all its life, and a compaction
    of these segments by hand was refused because of them."""
    store, other = segment_stores(), segment_stores()
    three_appends(store)
    table = TableSettings(
        "t", "at", Granularity.DAY, 60, 10, 10, compact=True, target=1 << 20, grace_s=100, keep_s=None
    )
    keeper = Housekeeping(store, table, "sink-0", LockOwner("run/sink-0", "1.1"), lambda: True)
    now = DAY.end + 1
    outage = Outage(store.rows, "INSERT change.")
    store.rows = outage  # type: ignore[assignment]
    with pytest.raises(StorageUnavailable):
        keeper.turn(now)
    assert other.state().box.locks
    outage.down = 0
    keeper.turn(now + 1)
    assert other.state().box.locks == {}
    assert numbers(other) == [0, 1, 2]

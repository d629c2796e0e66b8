"""A table outlives the runs that write to it: old rows, another granularity, positions of runs that are over."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa
import pytest

from samza_azure import tables
from samza_azure.config import TableSettings
from samza_azure.errors import Superseded
from samza_azure.logs.record import Kind
from samza_azure.outcomes import Refused
from samza_azure.segments import Advance, Granularity, Interval, LockOwner, LockTask, Published
from samza_azure.storage.interface import Row
from samza_azure.storage.transactions import MemoryTransactions, Transactions, Write
from samza_azure.stream_io.log import LogReader
from samza_azure.tables.housekeeping import Housekeeping
from samza_azure.tables.sink import Sink
from samza_azure.tables.store.rows import HEAD
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tables.write import UNUSED_S, Shape
from tests.storage.conftest import Stores
from tests.storage.test_sink import SCHEMA, START, TABLE, log_of, numbers, put

pytestmark = pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
DAY_US = 86_400_000_000
FIRST = Granularity.DAY.bucket(round(START.timestamp() * 1e6))
KEPT = replace(TABLE, keep_s=3 * 86_400.0)


def sink_of(store: SegmentStore, run: str = "r1", table: TableSettings = TABLE, attempt: int = 1) -> Sink:
    reader = LogReader(store.blobs, f"runs/{run}/count-0", frozenset({0}))
    return Sink(store, table, SCHEMA, run=run, task="out-table-0", writer=(1, attempt), readers=[reader])


def flushed(sink: Sink, run: str = "r1", expired_us: int | None = None) -> None:
    sink.read(f"runs/{run}/count-0", ends=True)
    assert sink.flush(expired_us)


def house(store: SegmentStore, run: str = "r1", table: TableSettings = TABLE) -> Housekeeping:
    return Housekeeping(store, table, "out-table-0", LockOwner(f"{run}/out-table-0", "1.1"), lambda: True)


def test_a_row_of_an_interval_that_has_expired_is_left_out(segment_stores: Stores) -> None:
    """Published, it would be dropped at the next turn; and a lock to append keeps an interval from being dropped."""
    store = segment_stores()
    log, sink = log_of(store, "runs/r1/count-0", whole=True), sink_of(store, table=KEPT)
    sink.claim(first=True)
    put(log, 0, 1, 2, 3, 4, hours=24)
    flushed(sink, expired_us=FIRST.start)
    assert (numbers(store), sink.left_out_rows) == ([0, 1, 2, 3, 4], 0)
    now = FIRST.end + 4 * DAY_US  # day 0 and day 1 have expired, which ended 4 and 3 days ago
    keeper = house(store, table=KEPT)
    assert not keeper.turn(now), "somebody appends"
    put(log, 0, 1, 2, hours=24)
    flushed(sink, expired_us=now - 3 * DAY_US)
    assert (numbers(store), sink.left_out_rows) == ([0, 1, 2, 2, 3, 4], 2)
    sink.release_older(0.0)
    sink.release_older(UNUSED_S)
    assert keeper.turn(now)
    put(log, 0, 0, 1, hours=24)
    flushed(sink, expired_us=now - 3 * DAY_US)
    assert (numbers(store), sink.left_out_rows) == ([2, 2, 3, 4], 5)
    again = sink_of(store, table=KEPT)
    again.claim(first=False)
    flushed(again, expired_us=now - 3 * DAY_US)
    assert (numbers(store), again.left_out_rows) == ([2, 2, 3, 4], 0), "its position has moved past them"


@pytest.mark.parametrize(("before", "after"), [("day", "hour"), ("day", "month"), ("month", "day"), ("week", "month")])
def test_another_granularity_counts_from_the_next_run_on(segment_stores: Stores, before: str, after: str) -> None:
    """For what has no rows yet; what has some stays as it is divided, until it is compacted with --granularity."""
    store, new = segment_stores(), Granularity(after)
    log, sink = (
        log_of(store, "runs/r1/count-0", whole=True),
        sink_of(store, table=replace(TABLE, granularity=Granularity(before))),
    )
    sink.claim(first=True)
    put(log, *range(5), hours=24, kind=Kind.DRAINED)
    flushed(sink)
    assert sink.finish()
    log, sink = log_of(store, "runs/r2/count-0", whole=True), sink_of(store, "r2", replace(TABLE, granularity=new))
    assert sink.claim(first=True)
    put(log, *range(50), hours=24)
    flushed(sink, "r2")
    assert numbers(store) == sorted([*range(5), *range(50)])
    late = round((START + timedelta(days=49)).timestamp() * 1e6)
    (entry,) = store.latest().timeline.lookup(Interval(late, late + 1))
    assert entry.chunk.interval == new.bucket(late)


@dataclass
class Frozen:
    """Rows of a client that waits before one of its calls, while another client acts."""

    rows: Transactions
    call: int
    meanwhile: Callable[[], object]
    calls: int = 0

    def _stand(self) -> None:
        self.calls += 1
        if self.calls == self.call:
            self.meanwhile()

    def query(self, first: str, end: str) -> list[Row]:
        self._stand()
        return self.rows.query(first, end)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        self._stand()
        return self.rows.transact(writes)


@dataclass
class Counted:
    """Rows of a client whose calls are counted, and those of them that write the head."""

    rows: Transactions
    calls: int = 0
    heads: int = 0

    def query(self, first: str, end: str) -> list[Row]:
        self.calls += 1
        return self.rows.query(first, end)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        self.calls += 1
        self.heads += any(write.key == HEAD for write in writes)
        return self.rows.transact(writes)


def test_a_former_owner_does_not_change_the_granularity_back(segment_stores: Stores) -> None:
    """It freezes in its claim, before any of its calls, and wakes up when the next run has divided the table."""
    ends = []
    for call in itertools.count(1):
        store = replace(segment_stores(), rows=MemoryTransactions())
        tables.create(store, SCHEMA, time="at", granularity=Granularity.MONTH)

        def next_life_and_next_run(store: SegmentStore = store) -> None:
            heir = sink_of(store, attempt=2)
            assert heir.claim(first=True)
            assert heir.finish()
            assert sink_of(store, "r2", replace(TABLE, granularity=Granularity.HOUR)).claim(first=True)

        rows = Frozen(store.rows, call, next_life_and_next_run)
        try:
            ends.append(str(sink_of(replace(store, rows=rows)).claim(first=True)))
        except Superseded:
            ends.append("superseded")
        if rows.calls < call:
            break
        assert Shape.of(store.state().head, "t").granularity is Granularity.HOUR, f"set back after {call - 1} calls"
    assert {"superseded", "False"} <= set(ends)


def test_a_backfill_of_years_takes_few_calls(segment_stores: Stores) -> None:
    """The places of many intervals are taken in one write of the head, and given back in one."""
    store = segment_stores()
    by_month = replace(TABLE, granularity=Granularity.MONTH)
    log, rows = log_of(store, "runs/r1/count-0", whole=True), Counted(store.rows)
    put(log, *range(3_650), hours=24, kind=Kind.DRAINED)
    sink = sink_of(replace(store, rows=rows), table=replace(by_month, rows=10_000))
    sink.claim(first=True)
    flushed(sink)
    assert sink.finish()
    assert numbers(store) == [*range(3_650)]
    assert len(store.latest().timeline.visible()) == 120
    assert rows.heads == 7, "one by one it was 145"
    assert rows.calls <= 60, "one by one it was 912"


def test_rows_of_one_interval_are_one_file(segment_stores: Stores) -> None:
    """Also where the rows are divided more finely than the table is by now."""
    store = segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    appender = tables.Appender(store, LockTask("a", "a", 50, LockOwner("a")))
    rows = pa.table([[START + timedelta(days=day) for day in range(40)], [*range(40)]], schema=SCHEMA)
    appender.append(rows)
    appender.close()
    assert not tables.rewrite(store, LockTask("c", "c"), Interval.of("2024", "2025"), Granularity.MONTH).refused
    answer = appender.append(rows)
    assert isinstance(answer, Published)
    assert [one.file.rows for one in answer.segments if one.file] == [31, 9]
    assert numbers(store) == sorted([*range(40)] * 2)


def test_positions_of_runs_whose_logs_are_gone_are_deleted(segment_stores: Stores) -> None:
    """Their rows cannot be published again. Positions of others, and of a run that was not drained, stay."""
    store = segment_stores()
    for run, kind in (("r1", Kind.DRAINED), ("r2", Kind.DRAINED), ("r3", Kind.BATCH), ("r4", Kind.BATCH)):
        log, sink = log_of(store, f"runs/{run}/count-0", whole=True), sink_of(store, run)
        sink.claim(first=True)
        put(log, 0, kind=kind)
        flushed(sink, run)
        assert kind is Kind.BATCH or sink.finish()
        sink.close()
    assert store.move("theirs/0", None, "drained")
    for run in ("r1", "r3"):
        store.blobs.delete_many([name for name, _ in store.blobs.list(f"runs/{run}/")])
    keeper = house(store, "r4")
    keeper.turn(FIRST.start)
    at = {run: store.position(f"{run}/out-table-0") for run in ("r1", "r2", "r3", "r4")}
    assert [run for run, place in at.items() if place is None] == ["r1"]
    assert store.position("theirs/0") == "drained"
    store.blobs.delete_many([name for name, _ in store.blobs.list("runs/r2/")])
    keeper.turn(FIRST.start + 60_000_000)
    assert store.position("r2/out-table-0") is None
    late = Advance("r2/out-table-0", at["r2"], "elsewhere")
    assert not store.move(*late), "a zombie finds its place gone"


@pytest.mark.parametrize("call", range(1, 20))
def test_a_sink_that_wakes_up_in_the_next_run_ends_no_lock_of_it(segment_stores: Stores, call: int) -> None:
    """It took the sinks of the next run for those of an earlier one, and their publishes were refused."""
    store = segment_stores()
    log = log_of(store, "runs/r1/count-0", whole=True)
    put(log, 0, kind=Kind.DRAINED)
    locks: list[int] = []

    def next_run() -> None:
        second = sink_of(segment_stores(), attempt=2)
        second.claim(first=not locks)
        flushed(second)
        assert second.finish()
        log, third = log_of(store, "runs/r2/count-0", whole=True), sink_of(segment_stores(), "r2")
        third.claim(first=True)
        put(log, 1)
        flushed(third, "r2")
        locks.extend(number for number, lock in store.state().box.locks.items() if not lock.revoked)

    late = segment_stores()
    late.rows = Frozen(late.rows, call, next_run)
    with suppress(Superseded):
        sink_of(late).claim(first=True)
    if late.rows.calls >= call:
        box = store.state().box
        assert locks
        assert [number for number in locks if number not in box.locks or box.locks[number].revoked] == []

"""A sink publishes each row of its logs once, wherever it is killed or however late it wakes up."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest

from samza_azure import segments, tables
from samza_azure.application import Stage
from samza_azure.config import Config, Files, Stream, TableSettings, files_of, table_of
from samza_azure.errors import (
    ConfigError,
    PipelineRefused,
    SamzaAzureError,
    StateLost,
    StorageUnavailable,
    Superseded,
    Unsettled,
)
from samza_azure.logs.record import Kind, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.messages import StagePlan
from samza_azure.outcomes import Refused
from samza_azure.pipeline.sinks import check_producers, name_mistakes
from samza_azure.segments import Granted, Granularity, Interval, LockOwner, LockRequest, LockTask
from samza_azure.segments.interval import CALENDAR
from samza_azure.storage.transactions import Write
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.tables.housekeeping import Housekeeping
from samza_azure.tables.sink import Sink, SinkPosition
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tables.write import UNUSED_S
from tests.storage.conftest import Stores

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
TABLE = TableSettings(
    "out", "at", Granularity.DAY, 60.0, 1_000, 1 << 20, compact=True, target=1 << 20, grace_s=60, keep_s=None
)


def log_of(store: SegmentStore, name: str = "count-0", *, whole: bool = False) -> LogWriter:
    """A log below the table's name, or of the whole name that is given."""
    writer, _ = take_over(
        store.blobs, name if whole else f"{store.name}/{name}", group_id=bytes(16), task=name, writer=Writer(1, 1),
        first=True, may_append=lambda: True, meta={"stream": "out"},
    )  # fmt: skip
    return writer


def put(log: LogWriter, *numbers: int, kind: Kind = Kind.BATCH, hours: int = 7) -> None:
    """A batch of rows, one every `hours` hours."""
    rows = pa.table([[START + number * timedelta(hours=hours) for number in numbers], list(numbers)], schema=SCHEMA)
    log.append(log.last_batch + 1, kind=kind, slices=[one_slice(0, rows)] if numbers else [])


def sink_of(store: SegmentStore, attempt: int = 1, *, logs: tuple[str, ...] = ("count-0",)) -> Sink:
    readers = [LogReader(store.blobs, f"{store.name}/{name}", frozenset({0})) for name in logs]
    return Sink(store, TABLE, SCHEMA, run="r1", task="out-table-0", writer=(1, attempt), readers=readers)


def turn(sink: Sink, store: SegmentStore, *, ends: bool = False, logs: tuple[str, ...] = ("count-0",)) -> bool:
    for name in logs:
        sink.read(f"{store.name}/{name}", ends=ends)
    return sink.flush()


def numbers(store: SegmentStore) -> list[int]:
    return sorted(tables.snapshot_of(store).to_arrow()["number"].to_pylist())


def dies_after_one_publish(sink: Sink) -> None:
    """Its flush needs two publishes; the owner dies before the second one."""
    appended, calls = tables.Appender.append_parts, []

    def dies(appender: tables.Appender, *arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise StorageUnavailable("dead")
        return appended(appender, *arguments)  # type: ignore[arg-type]

    assert sink._appender is not None
    sink._appender.append_parts = partial(dies, sink._appender)  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        sink.flush()


def test_rows_of_a_log_are_in_the_table_once(segment_stores: Stores) -> None:
    store = segment_stores()
    log = log_of(store)
    put(log, 0, 1, 2)
    sink = sink_of(store)
    assert sink.claim(first=True)
    assert turn(sink, store)
    put(log, 3, 4)
    assert turn(sink, store)
    assert turn(sink, store)
    assert numbers(store) == [0, 1, 2, 3, 4]
    put(log, 5, kind=Kind.DRAINED)
    assert not sink.is_at_end
    assert turn(sink, store)
    assert sink.is_at_end
    assert sink.finish()
    assert numbers(store) == [0, 1, 2, 3, 4, 5]
    assert store.state().box.locks == {}
    assert not sink_of(store, 2).claim(first=False), "all of it is published"


def test_the_next_owner_of_a_sink_continues_where_the_table_ends(segment_stores: Stores) -> None:
    """The first owner has read more than it has published, and its locks are ended."""
    store, other = segment_stores(), segment_stores()
    log = log_of(store)
    put(log, 0, 1)
    first = sink_of(store)
    first.claim(first=True)
    assert turn(first, store)
    put(log, 2, 3)
    first.read(f"{store.name}/count-0")
    second = sink_of(other, 2)
    assert second.claim(first=False)
    put(log, 4, kind=Kind.DRAINED)
    assert turn(second, other)
    with pytest.raises(Superseded):
        first.flush()
    assert numbers(store) == [0, 1, 2, 3, 4]
    with pytest.raises(Superseded):
        sink_of(store, 1).claim(first=False)
    third = sink_of(other, 3)
    assert third.claim(first=False)
    third.read(f"{store.name}/count-0")
    assert not third.is_at_end, "the log's last record was read by an owner before it"
    third.read(f"{store.name}/count-0", ends=True)
    assert third.is_at_end
    assert third.finish()
    assert store.state().box.locks == {}


def test_rows_of_more_days_than_one_publish_may_have(segment_stores: Stores) -> None:
    """A part of them is published when the owner dies; the next one publishes the rest."""
    store, other = segment_stores(), segment_stores()
    log = log_of(store)
    put(log, *range(60), hours=24)
    first = sink_of(store)
    first.claim(first=True)
    first.read(f"{store.name}/count-0")
    dies_after_one_publish(first)
    assert 0 < len(numbers(store)) < 60
    put(log, 99)
    second = sink_of(other, 2)
    assert second.claim(first=False)
    assert second.has_rows
    assert turn(second, other)
    assert turn(second, other)
    assert numbers(store) == [*range(60), 99]


def test_a_lock_that_is_lost_is_asked_for_again(segment_stores: Stores) -> None:
    store = segment_stores()
    log = log_of(store)
    put(log, 0)
    sink = sink_of(store)
    sink.claim(first=True)
    assert turn(sink, store)
    segment_stores().end(LockOwner("r1/out-table-0", "1.1"))
    put(log, 1)
    assert not turn(sink, store)
    assert sink.flush()
    assert numbers(store) == [0, 1]


def test_an_interval_that_is_dropped_meanwhile(segment_stores: Stores) -> None:
    """A sink waits for the holder of the whole interval."""
    store, other = segment_stores(), segment_stores()
    log = log_of(store)
    put(log, 0)
    sink = sink_of(store)
    sink.claim(first=True)
    request = LockRequest("x", store.name, Granularity.DAY.bucket(round(START.timestamp() * 1e6)))
    granted = other.acquire(LockTask("x", "x", 99, LockOwner("x")), request)
    assert isinstance(granted, Granted)
    assert not turn(sink, store)
    other.release("x", granted.lock.id)
    assert sink.flush()
    assert numbers(store) == [0]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("is_new_owner", [False, True])
def test_rows_of_a_day_that_was_written_anew_by_hour(segment_stores: Stores, is_new_owner: bool) -> None:
    """A segment counts for its interval only, so a part of a whole day is cut where the hours end."""
    store = segment_stores()
    log = log_of(store)
    put(log, 0, 1, 2, 3, hours=5)
    sink = sink_of(store)
    sink.claim(first=True)
    assert turn(sink, store)
    who = LockTask("c", "c", 0, LockOwner("c"))
    assert not tables.rewrite(segment_stores(), who, Interval.of("2024", "2025"), Granularity.HOUR).refused
    if is_new_owner:
        sink = sink_of(store, 2)
        sink.claim(first=False)
    put(log, *range(4, 12), hours=2)
    put(log, *range(12, 18), hours=1)
    assert turn(sink, store) or sink.flush()
    assert numbers(store) == [*range(18)]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_rows_of_a_week_that_was_written_anew_by_month(segment_stores: Stores) -> None:
    store, shape = segment_stores(), pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
    tables.create(store, shape, time="at", granularity=Granularity.WEEK)
    days = [START + timedelta(days=28 + day) for day in range(7)]  # 29 January to 4 February
    week = pa.table([days, [*range(7)]], schema=shape)
    appender = tables.Appender(store, LockTask("a", "a", 50, LockOwner("a")))
    assert not isinstance(appender.append(week), segments.LostRace)
    appender.close()
    rewritten = tables.rewrite(
        store, LockTask("c", "c", 0, LockOwner("c")), Interval.of("2024", "2025"), Granularity.MONTH
    )
    assert not rewritten.refused
    assert not isinstance(appender.append(week), segments.LostRace)
    assert numbers(store) == sorted([*range(7)] * 2)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_days_by_hour_are_more_than_one_publish_may_have(segment_stores: Stores) -> None:
    """The owner dies in the middle of a day; the next one reads the day again and publishes the rest of it."""
    store, other = segment_stores(), segment_stores()
    log = log_of(store)
    put(log, 0, 24, 48, hours=1)
    first = sink_of(store)
    first.claim(first=True)
    assert turn(first, store)
    first.close()
    who = LockTask("c", "c", 0, LockOwner("c"))
    assert not tables.rewrite(other, who, Interval.of("2024", "2025"), Granularity.HOUR).refused
    put(log, *range(50), hours=1)
    first.read(f"{store.name}/count-0")
    dies_after_one_publish(first)
    assert len(numbers(store)) == 3 + 45
    second = sink_of(other, 2)
    assert second.claim(first=False)
    assert turn(second, other)
    assert numbers(store) == sorted([0, 24, 48, *range(50)])


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_rows_that_belong_to_no_interval_are_left_out(
    segment_stores: Stores, kind: pa.DataType, caplog: pytest.LogCaptureFixture
) -> None:
    """They are in the log, so the sink would meet them again at each try."""
    store, (unit, count) = segment_stores(), (DAY_US, pa.int32()) if kind == pa.date32() else (1, pa.int64())
    first, last = CALENDAR.start // unit, CALENDAR.end // unit - 1
    most = 2 ** (count.bit_width - 1) - 1
    moments = [None, first, first - 1, last, last + 1, -most, most, 0]
    schema = pa.schema([("at", kind), ("number", pa.int64())])
    rows = pa.table([pa.array(moments, count).cast(kind), [*range(8)]], schema=schema)
    log, reader = log_of(store), LogReader(store.blobs, f"{store.name}/count-0", frozenset({0}))
    sink = Sink(store, TABLE, schema, run="r1", task="out-table-0", writer=(1, 1), readers=[reader])
    sink.claim(first=True)
    log.append(0, slices=[one_slice(0, rows)])
    assert turn(sink, store)
    assert (numbers(store), sink.left_out_rows, sink.published_rows) == ([1, 3, 7], 5, 3)
    assert "5 rows" in caplog.text
    log.append(1, slices=[one_slice(0, rows.slice(0, 1))])
    assert turn(sink, store), "none is left"
    log.append(2, kind=Kind.DRAINED, slices=[one_slice(0, rows.slice(7))])
    assert turn(sink, store, ends=True)
    assert sink.finish()
    assert (numbers(store), sink.left_out_rows) == ([1, 3, 7, 7], 6)


def test_who_continues_a_flush_leaves_the_same_rows_out(segment_stores: Stores) -> None:
    """And counts them: the owner that died had not reported them."""
    store, other = segment_stores(), segment_stores()
    log, first = log_of(store), sink_of(store)
    first.claim(first=True)
    log.append(0, slices=[one_slice(0, pa.table([[None], [100]], schema=SCHEMA))])
    put(log, *range(50), hours=24)
    first.read(f"{store.name}/count-0")
    dies_after_one_publish(first)
    assert len(numbers(store)) == 45
    second = sink_of(other, 2)
    assert second.claim(first=False)
    assert turn(second, other)
    assert (numbers(store), second.left_out_rows) == ([*range(50)], 1)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_rows_outside_their_interval_are_not_published(segment_stores: Stores) -> None:
    store = segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    appender = tables.Appender(store, LockTask("a", "a", 50, LockOwner("a")))
    rows = pa.table([[START], [0]], schema=SCHEMA)
    placed = appender.place([(Granularity.DAY.bucket(round(START.timestamp() * 1e6)), rows)], 1)
    assert not isinstance(placed, segments.LostRace)
    elsewhere = replace(placed[0][0], rows=pa.table([[START + timedelta(days=1)], [1]], schema=SCHEMA))
    with pytest.raises(SamzaAzureError, match="readers would not show them"):
        appender.append_parts([elsewhere])
    assert numbers(store) == []


def test_a_lost_position_is_an_error_and_not_a_fresh_start(segment_stores: Stores) -> None:
    store = segment_stores()
    with pytest.raises(StateLost, match="does not know how far"):
        sink_of(store).claim(first=False)


def test_a_stream_whose_columns_have_changed(segment_stores: Stores) -> None:
    """An added column is null before; a changed type is refused before anything is taken over."""
    store = segment_stores()
    put(log_of(store), 0)
    first = sink_of(store)
    first.claim(first=True)
    assert turn(first, store)
    place = store.position("r1/out-table-0")
    other = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.string())])
    with pytest.raises(ConfigError, match="Cast it to int64, or write to a table of another name"):
        Sink(store, TABLE, other, run="r2", task="out-table-0", writer=(1, 1), readers=[]).claim(first=True)
    assert store.position("r1/out-table-0") == place
    wider = SCHEMA.append(pa.field("more", pa.string()))
    assert Sink(store, TABLE, wider, run="r2", task="out-table-0", writer=(1, 1), readers=[]).claim(first=True)
    assert tables.snapshot_of(store).to_arrow()["more"].to_pylist() == [None]


class _Outage:
    """The rows of a table: the answer of one publish is lost, and then nothing is answered for some calls."""

    def __init__(self, rows: object, key: str) -> None:
        self._rows, self._key, self.is_armed, self._down = rows, key, True, 0

    def transact(self, writes: list[Write]) -> list[str] | Refused:
        self._look()
        answer: list[str] | Refused = self._rows.transact(writes)  # type: ignore[attr-defined]
        kinds = {write.key.partition(".")[0] for write in writes}
        if self.is_armed and {"position", self._key} <= kinds:
            self.is_armed, self._down = False, 12
            raise Unsettled("the answer is lost")
        return answer

    def query(self, first: str, end: str) -> object:
        self._look()
        return self._rows.query(first, end)  # type: ignore[attr-defined]

    def _look(self) -> None:
        if self._down:
            self._down -= 1
            raise StorageUnavailable("down")


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
@pytest.mark.parametrize("days", [3, 60])
def test_a_lost_answer_before_an_outage(segment_stores: Stores, days: int) -> None:
    """The position knows what was published, however long the storage was away."""
    store = segment_stores()
    store.rows = _Outage(store.rows, "segment")  # type: ignore[assignment]
    log = log_of(store)
    put(log, *range(days), hours=24)
    sink = sink_of(store)
    sink.claim(first=True)
    until_answered(lambda: turn(sink, store))
    put(log, days, kind=Kind.DRAINED, hours=24)
    until_answered(lambda: turn(sink, store))
    assert sink.finish()
    assert numbers(store) == [*range(days + 1)]
    assert sink.published_rows == days + 1


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_position_that_this_writer_has_not_sent_is_lost_state(segment_stores: Stores) -> None:
    store = segment_stores()
    put(log_of(store), 0)
    sink = sink_of(store)
    sink.claim(first=True)
    assert store.move("r1/out-table-0", str(sink.position), str(replace(sink.position, at={"x": (5, 5)})))
    with pytest.raises(StateLost, match="a position that this writer has not sent"):
        turn(sink, store)


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_the_locks_of_a_task_that_died_after_the_drain_are_released(segment_stores: Stores) -> None:
    """The position says that all is published, and the locks are still there."""
    store = segment_stores()
    put(log_of(store), 0, kind=Kind.DRAINED)
    first = sink_of(store)
    first.claim(first=True)
    assert turn(first, store)
    assert store.move("r1/out-table-0", str(first.position), str(replace(first.position, drained=True)))
    assert store.state().box.locks
    assert not sink_of(segment_stores(), 2).claim(first=False)
    assert store.state().box.locks == {}


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_locks_of_an_earlier_run_that_had_more_tasks(segment_stores: Stores) -> None:
    store = segment_stores()
    put(log_of(store), 0)
    held = []
    for run, task in (("r0", "out-table-3"), ("r1", "out-table-1"), ("r0", "other-0")):
        readers = [LogReader(store.blobs, f"{store.name}/count-0", frozenset({0}))]
        sink = Sink(segment_stores(), TABLE, SCHEMA, run=run, task=task, writer=(1, 1), readers=readers)
        assert sink.claim(first=True)
        assert turn(sink, store)
        held.append(f"{run}/{task}")
    assert sink_of(store).claim(first=True)
    box = store.state().box
    assert {box.tasks[name].owner.processor for lock in box.locks.values() for name in lock.holders} == {*held[1:]}


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_sink_without_rows_moves_past_old_blobs(segment_stores: Stores) -> None:
    """The rows are of another destination. The table knows how far it is, so the blobs can go."""
    store = segment_stores()
    writer, _ = take_over(
        store.blobs, f"{store.name}/count-0", group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={"stream": "out"}, limits=LogLimits(roll_records=1),
    )  # fmt: skip
    rows = pa.table([[START], [0]], schema=SCHEMA)
    for batch in range(3):
        writer.append(batch, slices=[one_slice(1, rows)])
    assert writer.position[0] > 0
    sink = sink_of(store)
    sink.claim(first=True)
    assert not sink.pass_over(), "nothing is read yet"
    assert turn(sink, store)
    assert sink.pass_over()
    assert not sink.pass_over(), "it has moved"
    assert sink.position.at == {f"{store.name}/count-0": sink.read_to(f"{store.name}/count-0")}
    later = sink_of(segment_stores(), 2)
    later.claim(first=False)
    assert later.read_to(f"{store.name}/count-0") == sink.read_to(f"{store.name}/count-0")


def test_a_place_is_read_as_it_was_written() -> None:
    place = SinkPosition((2, 3), {"a": (0, 7)}, {"a": (1, 0)}, 5)
    assert SinkPosition.parse(str(place)) == place


class _Faulty:
    """The rows of a table, behind a network that loses requests and answers."""

    def __init__(self, rows: object, dice: random.Random, faults: float) -> None:
        self._rows, self._dice, self.faults = rows, dice, faults

    def transact(self, writes: list[Write]) -> list[str] | Refused:
        if self._dice.random() < self.faults:
            raise StorageUnavailable("lost on the way")
        answer: list[str] | Refused = self._rows.transact(writes)  # type: ignore[attr-defined]
        if self._dice.random() < self.faults:
            raise Unsettled("the answer is lost")
        return answer

    def query(self, first: str, end: str) -> object:
        if self._dice.random() < self.faults:
            raise StorageUnavailable("lost on the way")
        return self._rows.query(first, end)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("segment_stores", "seed", "steps"),
    [*(("memory", seed, 25) for seed in range(12)), ("azurite", 1, 10)],
    indirect=["segment_stores"],
)
def test_owners_come_and_go_over_a_bad_network(segment_stores: Stores, seed: int, steps: int) -> None:
    """Three logs, owners that are replaced at random and go on all the same, compactions: each row once."""
    dice, store = random.Random(seed), segment_stores()
    logs = ("count-0", "count-1", "count-2")
    writers = {name: log_of(store, name) for name in logs}
    put_so_far: Counter[int] = Counter()
    sinks: list[Sink] = []

    def another() -> None:
        client = segment_stores()
        client.rows = _Faulty(client.rows, dice, 0.05)  # type: ignore[assignment]
        sink = sink_of(client, len(sinks) + 1, logs=logs)
        until_answered(lambda: sink.claim(first=not sinks))
        sinks.append(sink)

    another()
    for _ in range(steps):
        match dice.randrange(6):
            case 0 if len(sinks) < 6:
                another()
            case 1:
                tables.compact(store, LockTask("c", "c", 0, LockOwner("c")), Interval.of("2024", "2025"))
            case 2 | 3:
                new = [len(put_so_far) + number for number in range(dice.randrange(5))]
                put_so_far.update(new)
                put(writers[dice.choice(logs)], *new)
            case _:
                sink = dice.choice(sinks)
                try:
                    until_answered(lambda sink=sink: turn(sink, store, logs=logs))  # type: ignore[misc]
                except Superseded:
                    assert sink is not sinks[-1]
        assert not Counter(numbers(store)) - put_so_far, "no row twice"
    for log in writers.values():
        put(log, kind=Kind.DRAINED)
    last = sinks[-1]
    while not last.is_at_end:
        until_answered(lambda: turn(last, store, ends=True, logs=logs))
    until_answered(last.finish)
    assert Counter(numbers(store)) == put_so_far


def until_answered(call: Callable[[], object]) -> None:
    for _ in range(1_000):
        try:
            if call():
                return
        except StorageUnavailable:
            continue
    raise AssertionError("It never goes through.")


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_sink_releases_locks_that_it_no_longer_uses(segment_stores: Stores) -> None:
    """Retention and compaction leave an interval alone while a task holds a lock to append to it."""
    store = segment_stores()
    log = log_of(store)
    put(log, 0)
    sink = sink_of(store)
    sink.claim(first=True)
    assert turn(sink, store)
    sink.release_older(1_000.0)
    put(log, 1)
    assert turn(sink, store)
    sink.release_older(1_000.0 + UNUSED_S)
    assert store.state().box.locks, "it was used since"
    sink.release_older(1_000.0 + 2 * UNUSED_S)
    assert store.state().box.locks == {}
    put(log, 2)
    assert turn(sink, store)
    assert numbers(store) == [0, 1, 2]


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_housekeeping_returns_soon_to_intervals_with_new_rows(segment_stores: Stores) -> None:
    store = segment_stores()
    log = log_of(store)
    sink = sink_of(store)
    sink.claim(first=True)
    house = Housekeeping(store, TABLE, "out-table-0", LockOwner("r1/out-table-0", "1.1"), lambda: True)
    put(log, 0)
    assert turn(sink, store)
    house.turn(0)
    house.turn(1)
    assert not house.is_written_to
    put(log, 1)
    assert turn(sink, store)
    house.turn(2)
    assert house.is_written_to


@pytest.mark.parametrize("segment_stores", ["memory"], indirect=True)
def test_a_table_that_is_divided_otherwise_by_now(segment_stores: Stores) -> None:
    store = segment_stores()
    tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
    with pytest.raises(ConfigError, match=r"by day of 'at', and month of 'at' is asked for now\. Keep table\.time"):
        tables.create(store, SCHEMA, time="at", granularity=Granularity.MONTH)


def test_a_table_is_opened_by_a_whole_config() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        tables.open(Config.parse(JOB), "No Name")


def test_a_source_stream_that_has_the_name_of_a_sink() -> None:
    stage = Stage("count", ("orders", "out-table"), "out", (), "append", print)
    streams = Config.parse(JOB + '[streams.out]\ntable.time = "at"').streams
    (mistake,) = name_mistakes([stage], streams)
    assert "'out-table', but a stage or stream of the pipeline already has this name" in mistake


def test_a_stream_of_more_tasks_than_a_position_holds() -> None:
    plan = StagePlan("count", (), "out", 238, partitions=2)
    check_producers("out", plan)
    logs = {f"runs/{'r' * 32}/count-{number}": (999, 99_999_999) for number in range(238)}
    assert len(json.dumps(str(SinkPosition((999, 999), logs, logs, START.year * 10**15)))) < 32_768
    with pytest.raises(PipelineRefused, match=r"written by the 999 tasks of stage count.* at most 238 tasks"):
        check_producers("out", replace(plan, tasks=999))


JOB = """
[app]
name = "a"
main = "m:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[streams.out]\ntable = "x"', r"streams.out.table.time is missing"),
        ('[streams.out]\ntable.flush = "1 s"', r"no effect without streams.out.table.time"),
        ('[streams.Out]\ntable.time = "at"', r"'Out', which is not a valid name"),
        ('[streams.a]\ntable = "x"\ntable.time = "at"\n[streams.b]\ntable = "x"\ntable.time = "at"', "both go to"),
        ('[streams.a]\ntable = "x"\ntable.time = "at"\ntable.granularity = "fortnight"', "'second', 'minute'"),
        ('[streams.a]\ntable = "no Name"\ntable.time = "at"', "should be 1 to 63"),
        ("[streams.a]\ntable = 1\ntable = 2", "not TOML"),
        (
            '[streams.a]\ntable = "x"\ntable.time = "at"\n\n[streams.b]\ntable.time = at',
            "line 12, column 14: .* not TOML",
        ),
        ('[streams.a]\ntable = "x"\ntable.time = "at"\ntable.granularty = "day"', "nearest is .*a.table.granularity"),
        ('[streams.a]\ntable = "x"\n[streams.a.table]\ntime = "at"', "line 9, .* not in a section of their own"),
        ('[streams.a]\ntable.time = "at"\ntable.flush = "soon"', r"streams.a.table.flush .*'soon'"),
        ('[streams.a]\nfiles.flush = "1 s"', r"files.flush has no effect without streams.a.files"),
        ('[streams.a]\nfiles = "a/b"', "streams.a.files = 'a/b' cannot be used: it should be 1 to 63 letters"),
        ('[streams.a]\nfiles = ""', "streams.a.files = '' cannot be used"),
        ('[streams.a]\nfiles = ".."', "streams.a.files = '..' cannot be used"),
        ('[streams.a]\nfiles = "x"\n[streams.b]\nfiles = "x"', r"streams.a and streams.b both go to the folder 'x'"),
        (
            '[streams.a]\nfiles = "x"\nfiles.rows = 0',
            "line 9: streams.a.files.rows = 0 cannot be used: it should be at least 1",
        ),
    ],
)
def test_mistakes_of_a_job_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.parse(JOB + text)


@pytest.mark.parametrize("name", ['table = "delays"', 'table.name = "delays"', '"table" = "delays"'])
def test_a_table_in_a_job_file(name: str) -> None:
    text = f'{JOB}table = "rows1"\n[streams.out]\n{name}\ntable.time = "at"\ntable.granularity = "month"\n'
    if name.startswith('"'):
        text = text.replace("table.time", '"table.time"').replace("table.gran", '"table.gran')
        text = text.replace("ularity =", 'ularity" =')
    config = Config.parse(text)
    table = table_of("out", config.streams["out"])
    assert table is not None
    assert (table.name, table.time, table.granularity, table.flush_s) == ("delays", "at", Granularity.MONTH, 60.0)
    assert config.storage.table == "rows1"


@pytest.mark.parametrize("name", ['files = "out"', 'files.folder = "out"'])
def test_a_folder_in_a_job_file(name: str) -> None:
    """Beside a table."""
    config = Config.parse(f'{JOB}[streams.a]\n{name}\nfiles.flush = "5 s"\ntable = "x"\ntable.time = "at"\n')
    assert files_of(config.streams["a"]) == Files("out", 5.0, 1_000_000, 64 << 20)
    assert table_of("a", config.streams["a"]) is not None
    assert files_of(Stream()) is None

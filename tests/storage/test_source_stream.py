"""Rows into source streams, by one producer, by several, over a storage that loses answers."""

import datetime as dt
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError, StorageUnavailable, Unsettled
from samza_azure.logs.names import source_log, source_partition
from samza_azure.logs.operations import Pause, Rule
from samza_azure.logs.partition import partition_of
from samza_azure.logs.record import Kind, Slice
from samza_azure.logs.source_log import SharedLog, append_shared
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.driver import perform
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.source_stream import SourceWriter, partition_numbers
from samza_azure.stream_io.values.fitting import fitted
from tests.storage.conftest import AnyAccount
from tests.storage.stored_rows import export

NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
NOON_US = 1_357_041_600_000_000


def flights(numbers: Sequence[int]) -> pa.Table:
    """One flight a second, to ten airports."""
    return pa.table(
        {
            "dest": [f"D{number % 10}" for number in numbers],
            "ts": pa.array([NOON + dt.timedelta(seconds=number) for number in numbers], pa.timestamp("us", "UTC")),
            "number": pa.array(numbers, pa.int64()),
        }
    )


def writer(account: AnyAccount, partitions: int = 3, **settings: object) -> SourceWriter:
    """A producer of flights that never waits."""
    return SourceWriter(
        account.blobs(),
        account.hints(),
        "flights",
        partitions,
        wait=lambda pause: None,
        **{"event_time": "ts", **settings},  # type: ignore[arg-type]
    )


def numbers(blobs: Blobs) -> list[int]:
    return list(export(blobs, "flights")["number"].to_pylist())


def test_all_rows_are_there_once_in_the_partition_of_their_key(account: AnyAccount) -> None:
    producer = writer(account, flush_rows=7)
    producer.write(flights(range(100)), key="dest")
    producer.close()

    assert sorted(numbers(account.blobs())) == list(range(100))
    for partition in range(3):
        reader = LogReader(account.blobs(), source_log(source_partition("flights", partition)))
        parts = reader.scan((0, 0)).parts
        rows = pa.concat_tables(pa.ipc.open_stream(data).read_all() for data in reader.fetch(parts))
        assert {partition_of((key,), 3) for key in rows["dest"].to_pylist()} == {partition}
        assert rows["number"].to_pylist() == sorted(rows["number"].to_pylist())


def test_without_a_key_partitions_take_turns(account: AnyAccount) -> None:
    producer = writer(account, flush_rows=10)
    producer.write(flights(range(30)))
    producer.close()
    assert [
        LogReader(account.blobs(), source_log(source_partition("flights", each))).scan((0, 0)).rows for each in range(3)
    ] == [
        10,
        10,
        10,
    ]


def test_each_flush_tells_every_partition_how_far_event_time_has_come(account: AnyAccount) -> None:
    producer = writer(account, frontier_lag_s=2.5)
    producer.write(flights([5, 9]), key="dest")
    producer.flush()
    for partition in range(3):
        found = LogReader(account.blobs(), source_log(source_partition("flights", partition))).scan((0, 0))
        assert (found.frontier_us, found.idle) == (None, False)  # another partition was still to be written

    producer.write(flights([7]), key="dest")
    producer.flush()
    for partition in range(3):
        found = LogReader(account.blobs(), source_log(source_partition("flights", partition))).scan((0, 0))
        assert (found.frontier_us, found.idle) == (NOON_US + 6_500_000, False)

    producer.close()
    for partition in range(3):
        found = LogReader(account.blobs(), source_log(source_partition("flights", partition))).scan((0, 0))
        assert (found.frontier_us, found.idle) == (NOON_US + 6_500_000, True)


def test_a_row_far_in_the_future_is_stored_and_does_not_move_the_frontier(account: AnyAccount) -> None:
    """9999-12-31 often stands for "never". Every later row would be late."""
    day = 86_400
    producer = writer(account, clock=NOON.timestamp, max_future_s=day)
    never = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    times = [NOON, NOON + dt.timedelta(seconds=day), NOON + dt.timedelta(seconds=day, microseconds=1), never]
    producer.write(pa.table({"dest": ["D0"] * 4, "ts": pa.array(times, pa.timestamp("us", "UTC")), "number": range(4)}))
    producer.close()

    assert producer.frontier_us == NOON_US + day * 1_000_000
    assert producer.rows_of_the_future == 2
    assert sorted(numbers(account.blobs())) == list(range(4))


def test_a_row_without_its_event_time_or_what_is_not_null_is_refused() -> None:
    """It was stored, and jobs that waited for its time to pass waited forever."""
    account = MemoryAccount()
    times = pa.timestamp("us", "UTC")
    untimed = pa.table({"dest": ["D0", "D1"], "ts": pa.array([NOON, None], times), "number": [1, 2]})
    keyless = pa.table({"dest": ["D0", None], "ts": pa.array([NOON, NOON], times), "number": [1, 2]})
    needed = "The rows do not fit the stream 'flights'. The column 'ts' is null in a row, and it is the event time"
    for schema in (None, untimed.schema):
        with pytest.raises(ConfigError, match=needed):
            writer(account, schema=schema).write(untimed)
    writer(account, event_time=None).write(untimed)
    strict = arrow_schema("dest string NOT NULL, ts timestamp, number bigint")
    with pytest.raises(ConfigError, match="'dest' is null in a row, and the schema says NOT NULL"):
        writer(account, schema=strict).write(keyless)


def test_a_producer_without_rows_still_creates_its_stream(account: AnyAccount) -> None:
    writer(account).close()
    found = LogReader(account.blobs(), source_log("flights/2")).scan((0, 0))
    assert (found.records, found.frontier_us, found.idle) == (1, None, True)
    assert found.meta == {"stream": "flights", "partitions": 3, "partition": 2}


def test_hints_say_how_long_each_log_is(account: AnyAccount) -> None:
    producer = writer(account)
    producer.write(flights([7]))
    producer.close()
    for prefix, hint in account.hints().poll().items():
        blob, length = LogReader(account.blobs(), prefix).scan((0, 0)).end
        assert hint == {"blob": blob, "length": length, "frontier_us": NOON_US + 7_000_000, "drained": False}
    assert len(account.hints().poll()) == 3


def test_a_second_producer_goes_on_where_the_first_one_ended(account: AnyAccount) -> None:
    for start in (0, 50):
        producer = writer(account)
        producer.write(flights(range(start, start + 50)), key="dest")
        producer.close()
    assert sorted(numbers(account.blobs())) == list(range(100))


def test_producers_at_once_lose_nothing(account: AnyAccount) -> None:
    def produce(start: int) -> None:
        producer = writer(account, flush_rows=3)
        producer.write(flights(range(start, start + 30)), key="dest")
        producer.close()

    threads = [threading.Thread(target=produce, args=(start,)) for start in (0, 30, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers(account.blobs())) == list(range(90))


@dataclass(slots=True)
class Lossy(Link):
    """A way on which every third call fails, before or after it has taken effect."""

    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def call(self, operation: str, effect: Callable[[], object]) -> object:  # type: ignore[override]
        match self.chance.randrange(9):
            case 0:
                raise StorageUnavailable("Nothing was sent.")
            case 1:
                raise Unsettled("The request was lost.")
            case 2:
                effect()
                raise Unsettled("The answer was lost.")
        return effect()


@pytest.mark.parametrize("seed", range(20))
def test_lost_answers_lose_no_row_and_double_none(seed: int) -> None:
    storage = MemoryStorage()
    producer = writer(MemoryAccount(storage, link=Lossy(random.Random(seed))), flush_rows=5)
    producer.write(flights(range(60)), key="dest")
    producer.close()
    assert sorted(numbers(MemoryAccount(storage).blobs())) == list(range(60))


def test_a_producer_gives_up_when_its_caller_does() -> None:
    @dataclass(slots=True)
    class Out(Link):
        def call(self, operation: str, effect: Callable[[], object]) -> object:  # type: ignore[override]
            raise StorageUnavailable("The storage is out.")

    def wait(pause: Pause) -> None:
        if pause.tries == 30:
            raise TimeoutError

    account = MemoryAccount(link=Out())
    producer = SourceWriter(account.blobs(), account.hints(), "flights", 1, wait=wait)
    with pytest.raises(TimeoutError):
        producer.close()
    with pytest.raises(StorageUnavailable, match="its outcome is unknown"):
        producer.close()


# The rule below: producers in every mixture of turns.


def life(log: SharedLog, records: int) -> Rule[None]:
    """A producer's records, each with its number as its row."""
    for number in range(records):
        yield from append_shared(log, Kind.BATCH, slices=(Slice(0, b"%s %d" % (log.producer.encode(), number), 1),))


@pytest.mark.parametrize("seed", range(60))
def test_producers_in_any_mixture_of_turns_append_each_record_once(seed: int) -> None:
    chance = random.Random(seed)
    storage = MemoryStorage()
    blobs = MemoryAccount(storage, link=Lossy(chance)).blobs()
    ids = itertools.count(1)
    limits = LogLimits(roll_records=4)
    logs = [SharedLog("streams/s/0", name, bytes([next(ids)]) * 16, lambda: 0.0, limits=limits) for name in "abc"]
    lives = {log.producer: life(log, 5) for log in logs}
    asked = {name: next(each) for name, each in lives.items()}
    while asked:
        name = chance.choice(sorted(asked))
        try:
            answer = perform(asked[name], blobs)
        except StorageUnavailable:
            continue  # the same operation again, in a later turn
        try:
            asked[name] = lives[name].send(answer)
        except StopIteration:
            del asked[name]

    reader = LogReader(MemoryAccount(storage).blobs(), "streams/s/0")
    found = [data.decode() for data in reader.fetch(reader.scan((0, 0)).parts)]
    assert reader.scan((0, 0)).end[0] >= 3
    assert sorted(found) == sorted(f"{name} {number}" for name in "abc" for number in range(5))
    for name in "abc":
        assert [each for each in found if each[0] == name] == [f"{name} {number}" for number in range(5)]
    assert {log.group_id for log in logs} == {reader.group_id}


# What a program may get wrong.


def test_rows_are_brought_into_the_schema_of_the_stream() -> None:
    schema = pa.schema([("number", pa.int32()), ("dest", pa.string())])
    rows = fitted(flights([1, 2]), schema)
    assert (rows.schema, rows["number"].to_pylist()) == (schema, [1, 2])


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"The rows lack gate\. They have dest, ts, number"):
        fitted(flights([1]), pa.schema([("gate", pa.string())]))


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"The column 'dest' is int, which cannot hold 'D1'\. Write a whole number"):
        fitted(flights([1]), pa.schema([("dest", pa.int32())]))


def test_a_writer_refuses_what_the_stream_would_change_and_names_the_stream(account: AnyAccount) -> None:
    """Arrow stored 0.125 as 0.12, and a time as a number in whatever unit."""
    schema = pa.schema({"price": pa.decimal128(10, 2), "n": pa.int64()})
    for rows in ({"price": [0.5, 0.125], "n": [1, 2]}, {"price": [0.5, 0.25], "n": [NOON, NOON]}):
        producer = SourceWriter(account.blobs(), account.hints(), "flights", 3, schema=schema)
        with pytest.raises(
            ConfigError, match=r"^The rows do not fit the stream 'flights'\. The column '(price|n)' is "
        ):
            producer.write(pa.table(rows))


def test_the_key_need_not_be_a_column_of_the_stream() -> None:
    account = MemoryAccount()
    producer = writer(account, schema=pa.schema([("number", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]))
    producer.write(flights(range(20)), key="dest")
    producer.close()
    assert export(account.blobs(), "flights").column_names == ["number", "ts"]


def test_an_unknown_key_is_named_with_the_columns_there_are() -> None:
    with pytest.raises(ConfigError, match=r"There is no column 'destination'\. Columns are dest, ts, number"):
        partition_numbers(flights([1]), ("destination",), 3)


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="A float cannot decide a partition"):
        partition_numbers(pa.table({"x": [1.5]}), ("x",), 3)


def test_a_key_that_python_cannot_read() -> None:
    with pytest.raises(ConfigError, match="A date in day is outside of the years 1 to 9999"):
        partition_numbers(pa.table({"day": pa.array([2_932_897], pa.date32())}), ("day",), 3)


def test_partition_numbers_are_those_of_each_key() -> None:
    keys: dict[str, list[object]] = {
        "text": ["a", None, "b", "a"],
        "number": [1, -1, None, 1],
        "day": [dt.date(2013, 1, 1), None, dt.date(1, 2, 3), None],
        "flag": [True, False, None, True],
        "bytes": [b"", None, b"x", b"y"],
    }
    rows = pa.table(keys)
    for name, values in keys.items():
        assert partition_numbers(rows, (name,), 5).to_pylist() == [partition_of((each,), 5) for each in values]  # type: ignore[arg-type]
    pairs = list(zip(keys["text"], keys["number"], strict=True))
    assert partition_numbers(rows, ("text", "number"), 5).to_pylist() == [partition_of(pair, 5) for pair in pairs]  # type: ignore[arg-type]


def test_large_rows_are_spread_over_records(account: AnyAccount) -> None:
    rows = flights(range(8)).append_column("text", pa.array([random.Random(7).randbytes(500_000)] * 8))
    producer = writer(account, partitions=1, flush_bytes=1_000_000)
    producer.write(rows)
    producer.close()
    assert numbers(account.blobs()) == list(range(8))
    assert account.blobs().list(f"{source_log('flights/0')}/")[0][1] > 2_000_000
    assert len(LogReader(account.blobs(), source_log("flights/0")).scan((0, 0)).parts) >= 4


def test_a_row_that_no_record_takes_is_refused() -> None:
    rows = pa.table({"text": ["short", "x" * (65 << 20), "short"]})
    with pytest.raises(ConfigError, match="A row has 68157"):
        fitted(rows, rows.schema)


def test_a_key_counts_as_the_stream_holds_it(account: AnyAccount) -> None:
    schema = pa.schema({"number": pa.int64()})
    producer = SourceWriter(account.blobs(), account.hints(), "flights", 3, schema=schema)
    producer.write(pa.table({"number": ["007", "7"]}), key="number")
    producer.close()
    reader = LogReader(account.blobs(), source_log(source_partition("flights", partition_of((7,), 3))))
    assert reader.scan((0, 0)).rows == 2


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (pa.table([["a"], ["b"], [NOON]], names=["dest", "dest", "ts"]), "more than one column 'dest'"),
        (pa.table({"dest": ["a"], "ts": [1357016400]}), "'ts' holds numbers, and their unit of time is unknown"),
    ],
    ids=["a column twice", "a time without a unit"],
)
def test_rows_that_could_mean_two_things_are_refused(rows: pa.Table, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fitted(rows, pa.schema({"dest": pa.string(), "ts": pa.timestamp("us", "UTC")}))


def test_every_producer_of_a_stream_must_use_its_key(account: AnyAccount) -> None:
    """It stands in the first record of each log; a producer with another key, or none, writes nothing."""
    rows = pa.table({"n": [1, 2, 3], "letter": ["a", "b", "c"]})
    first = SourceWriter(account.blobs(), account.hints(), "keyed", 2, key="letter")
    first.write(rows)
    first.close()
    assert LogReader(account.blobs(), "streams/keyed/1").opening().meta["key"] == ["letter"]  # type: ignore[union-attr]
    length = LogReader(account.blobs(), "streams/keyed/1").tail(0)

    with pytest.raises(ConfigError, match="is partitioned by letter, not by n"):
        first.write(rows, "n")
    for key, partitions, said in (
        ("n", 2, "the key n over 2"),
        ((), 2, "no key"),
        ("letter", 4, "the key letter over 4"),
    ):
        other = SourceWriter(account.blobs(), account.hints(), "keyed", partitions, key=key)
        other.write(rows)
        begun = "begun with the key letter over 2 partitions, and is to be written with"
        with pytest.raises(ConfigError, match=f"{begun} {said}"):
            other.flush()
    assert LogReader(account.blobs(), "streams/keyed/1").tail(0) == length
    again = SourceWriter(account.blobs(), account.hints(), "keyed", 2, key=["letter"])
    again.write(rows, "letter")
    again.close()


def test_a_writer_that_others_have_overtaken_checks_their_key(account: AnyAccount) -> None:
    """Both found no log; the first record of the log is the faster one's."""
    rows = pa.table({"n": [1], "letter": ["a"]})
    slow = SourceWriter(account.blobs(), account.hints(), "raced", 1, key="letter")
    slow.write(rows)
    for log in slow._logs:
        log.is_open = True  # it has looked, and there was nothing
    fast = SourceWriter(account.blobs(), account.hints(), "raced", 1, key="n")
    fast.write(rows)
    fast.close()
    with pytest.raises(ConfigError, match="begun with the key n"):
        slow.flush()

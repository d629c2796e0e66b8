"""Retention on a whole stream: tasks and readers that stop and start at random, and producers that wake up late."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError, RowsGone
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Create, indexes
from samza_azure.logs.position import Position
from samza_azure.logs.record import KEY, PARTITIONS, Kind, Record, Slice, Writer
from samza_azure.logs.record import encode as encode_record
from samza_azure.logs.retention import Keeps
from samza_azure.logs.source_log import SPARED_S, SharedLog, append_shared
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.arrow import decode, encode
from samza_azure.stream_io.driver import drive, perform
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.stream_io.reader import Reader, forget_reader
from samza_azure.stream_io.retention import Retention
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.stream_io.token import Stand
from samza_azure.stream_io.token import encode as token_of
from tests.storage.conftest import AnyAccount
from tests.storage.stored_rows import export

GROUP = b"the group's id.."
ROLLS = LogLimits(roll_records=4)
LIMIT = 3_000


def producer(
    account: AnyAccount,
    partitions: int = 1,
    stream: str = "s",
    limits: LogLimits = ROLLS,
    now: Callable[[], float] = boot_time,
) -> SourceWriter:
    """A log whose blobs are full after a few records."""
    writer = SourceWriter(
        account.blobs(), account.hints(), stream, partitions, flush_rows=1 << 20, wait=lambda pause: None, now=now
    )
    for log in writer._logs:
        log.limits = limits
    return writer


def put(writer: SourceWriter, *values: int) -> None:
    writer.write(pa.table({"v": pa.array(values, pa.int64())}))
    writer.flush()


def task(blobs: Blobs, name: str, stream: str = "out", *, run: str = "r", generation: int = 1) -> LogWriter:
    log, _ = take_over(
        blobs, f"runs/{run}/{name}", group_id=GROUP, task=name, writer=Writer(generation, 1), first=generation == 1,
        may_append=lambda: True, meta={"stream": stream}, limits=ROLLS, wait=lambda pause: None,
    )  # fmt: skip
    return log


def part(*values: int) -> Slice:
    return Slice(0, encode(pa.table({"v": pa.array(values, pa.int64())})), len(values))


def values(reader: Reader) -> list[int]:
    return [value for table in reader for value in table["v"].to_pylist()]


@dataclass
class Consumer:
    """A named reader of a program: its rows and its token are stored together, and it commits now and then."""

    rows: list[int] = field(default_factory=list)
    token: str = ""


@dataclass
class RetainedStream:
    """One source partition, two tasks that read it, one output that two programs read."""

    dice: random.Random
    number: int = 0
    time_s: float = 0.0
    tasks: dict[str, LogWriter] = field(default_factory=dict)
    began: dict[str, Position] = field(default_factory=dict)  # where the last batch of a task began: it may be repeated
    stands: dict[str, Position] = field(default_factory=dict)
    seen: dict[str, list[int]] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    deleted: int = 0
    generation: int = 1

    def __post_init__(self) -> None:
        self.account = MemoryAccount(MemoryStorage(lambda: self.time_s))
        self.blobs = self.account.blobs()
        self.producers = [producer(self.account, now=lambda: self.time_s) for _ in range(3)]
        for name in ("a-0", "b-0"):
            self.tasks[name] = task(self.blobs, name)
            self.began[name] = self.stands[name] = (0, 0)
            self.seen[name] = []

    def produce(self) -> None:
        """Any of the producers, of which one may have slept for long."""
        put(self.dice.choice(self.producers), self.number)
        self.number += 1

    def batch(self, name: str) -> None:
        """Read on, and emit what was read with where it was read from."""
        begin = self.stands[name]
        found = LogReader(self.blobs, "streams/s/0").scan(begin, self.dice.choice((1, 1_000)))
        rows = [
            v
            for data in LogReader(self.blobs, "streams/s/0").fetch(found.parts)
            for b in decode(data)
            for v in b["v"].to_pylist()
        ]
        needs = {"streams/s/0": begin[0]} if begin[0] else {}
        log = self.tasks[name]
        log.append(log.last_batch + 1, slices=(part(*rows),) if rows else (), needs=needs)
        self.seen[name] += rows
        self.began[name], self.stands[name] = begin, found.end

    def restart(self, name: str) -> None:
        """The task goes to another owner, who repeats the last batch's read."""
        self.generation += 1
        self.tasks[name] = task(self.blobs, name, generation=self.generation)

    def consume(self, name: str) -> None:
        """A program starts, reads a while, and dies: after it has stored a table, or before."""
        consumer = self.consumers.setdefault(name, Consumer())
        reader = Reader(
            self.blobs, "out", name=name, positions=self.account.readers(), token=consumer.token,
            until_now=True, table_bytes=self.dice.choice((1, 500)),
        )  # fmt: skip
        for table in reader:
            if self.dice.random() < 0.2:
                return
            consumer.rows += table["v"].to_pylist()
            consumer.token = reader.token
            if self.dice.random() < 0.3:
                reader.commit()
            if self.dice.random() < 0.2:
                return

    def retain(self) -> None:
        self.time_s += SPARED_S
        keeps, positions = Keeps(bytes=LIMIT), self.account.readers()
        tasks = ["runs/r/a-0", "runs/r/b-0"]
        self.deleted += Retention(self.blobs, positions, "s", keeps).delete_of_source("streams/s/0", GROUP, tasks)
        for name, log in self.tasks.items():
            self.deleted += Retention(self.blobs, positions, "out", keeps).delete_of_output(
                log.kept(), [], "ab".index(name[0]), 2
            )

    def step(self) -> None:
        kind = self.dice.random()
        if kind < 0.4:
            self.produce()
        elif kind < 0.7:
            self.batch(self.dice.choice([*self.tasks]))
        elif kind < 0.75:
            self.restart(self.dice.choice([*self.tasks]))
        elif kind < 0.88:
            self.consume(self.dice.choice(("one", "two")))
        else:
            self.retain()
        self.check()

    def check(self) -> None:
        """What a restart of a task would read again is there."""
        for begin in self.began.values():
            assert begin == (0, 0) or self.blobs.list(blob_name("streams/s/0", begin[0])), begin

    def size(self, prefix: str) -> tuple[int, int]:
        sizes = [size for _, size in self.blobs.list(prefix)]
        return sum(sizes), max(sizes)


@pytest.mark.parametrize("number", range(6))
def test_no_reader_meets_a_hole_and_storage_stays_below_limit_and_one_blob(number: int) -> None:
    seed = random.Random().randrange(1 << 31) if number else 7
    print(f"RetainedStream(Random({seed}))")
    retained = RetainedStream(random.Random(seed))
    retained.consume("one")
    retained.consume("two")  # they are known before anything is deleted
    for _ in range(500):
        retained.step()
    for name in retained.tasks:
        while len(retained.seen[name]) < retained.number:
            retained.batch(name)
        assert Counter(retained.seen[name]) == Counter(range(retained.number)), "a task"
        retained.batch(name)  # says that it is done with what the last one read
    written = Counter([*range(retained.number), *range(retained.number)])
    for name, consumer in retained.consumers.items():
        reader = Reader(
            retained.blobs, "out", name=name, positions=retained.account.readers(), token=consumer.token, until_now=True
        )
        consumer.rows += values(reader)
        reader.commit()
        assert Counter(consumer.rows) == written, name
    retained.retain()
    assert retained.deleted > 5
    for prefix in ("streams/s/0/", "runs/r/a-0/", "runs/r/b-0/"):
        total, largest = retained.size(prefix)
        assert LIMIT <= total < LIMIT + largest, prefix


def test_a_reader_that_commits_too_early_is_seen() -> None:
    """The check can fail: this one commits before it has stored, and dies."""
    account = MemoryAccount()
    log = task(account.blobs(), "a-0")
    for number in range(30):
        log.append(number, slices=(part(number),))
    hasty = Reader(account.blobs(), "out", name="hasty", positions=account.readers(), until_now=True)
    for _ in hasty:
        hasty.commit()
    assert (
        Retention(account.blobs(), account.readers(), "out", Keeps(bytes=1)).delete_of_output(log.kept(), [], 0, 1) > 2
    )
    with pytest.raises(RowsGone):
        values(Reader(account.blobs(), "out", token=token_of("out", Stand({"runs/r/a-0": (0, 0)})), until_now=True))


def test_blobs_that_no_task_has_read_are_kept(account: AnyAccount) -> None:
    writer, blobs = producer(account), account.blobs()
    retention = Retention(blobs, account.readers(), "s", Keeps(bytes=1), spared_s=0.0)
    for number in range(20):
        put(writer, number)
    one = task(blobs, "a-0")
    assert retention.delete_of_source("streams/s/0", GROUP, ["runs/r/a-0", "runs/r/b-0"]) == 0
    one.append(0, needs={"streams/s/0": 3})
    assert retention.delete_of_source("streams/s/0", GROUP, ["runs/r/a-0", "runs/r/b-0"]) == 0, "the other has not"
    assert retention.delete_of_source("streams/s/0", GROUP, ["runs/r/a-0"]) == 3
    assert min(export(blobs, "s")["v"].to_pylist()) == 12


def test_the_last_blob_with_records_stays_while_the_next_one_is_empty(account: AnyAccount) -> None:
    """A producer died after it had created blob 1. Without a record, no reader would know where the log continues."""
    writer, blobs = producer(account), account.blobs()
    for number in range(4):
        put(writer, number)
    rule = append_shared(writer._logs[0], Kind.FRONTIER)
    operation = next(rule)
    while not isinstance(operation, Create):
        operation = rule.send(perform(operation, blobs))
    perform(operation, blobs)
    assert blobs.list("streams/s/0/")[-1] == (blob_name("streams/s/0", 1), 0)
    retention = Retention(blobs, account.readers(), "s", Keeps(bytes=0), spared_s=0.0)
    assert retention.delete_of_source("streams/s/0", GROUP, []) == 0
    put(producer(account), 5)
    assert export(blobs, "s")["v"].to_pylist() == [0, 1, 2, 3, 5]


def test_the_age_of_a_blob_is_measured_by_the_clock_of_the_service() -> None:
    now = [0.0]
    account = MemoryAccount(MemoryStorage(lambda: now[0]))
    writer, blobs = producer(account), account.blobs()
    retention = Retention(blobs, account.readers(), "s", Keeps(seconds=660))
    for number in range(12):
        put(writer, number)
        now[0] += 110
    task(blobs, "a-0").append(0, needs={"streams/s/0": 3})
    assert retention.delete_of_source("streams/s/0", GROUP, ["runs/r/a-0"]) == 1
    now[0] += 3_600
    assert retention.delete_of_source("streams/s/0", GROUP, ["runs/r/a-0"]) == 1, "the last one is never deleted"


def test_logs_of_earlier_runs_count_and_go_first_whole(account: AnyAccount) -> None:
    blobs = account.blobs()
    for run in ("1", "2"):
        old = task(blobs, "out-0", run=run)
        for number in range(6):
            old.append(number, slices=(part(number),))
        old.append(6, kind=Kind.DRAINED)
    task(blobs, "other-0", "other", run="1").append(0, slices=(part(0),))
    log = task(blobs, "out-0", run="3")
    log.append(0, slices=(part(0),))
    retention = Retention(blobs, account.readers(), "out", Keeps(bytes=1))
    reader = Reader(blobs, "out", name="late", positions=account.readers(), until_now=True)
    assert retention.delete_of_output(log.kept(), [], 0, 1) == 0, "a named reader has not read them"
    assert len(values(reader)) == 13
    reader.commit()
    assert retention.delete_of_output(log.kept(), [], 1, 2) == 0, "they fall to task 0"
    assert retention.delete_of_output(log.kept(), [], 0, 1) > 3
    assert {name.split("/")[1] for name, _ in blobs.list("runs/")} == {"1", "3"}
    assert [name for name, _ in blobs.list("runs/1/")] == ["runs/1/other-0/00000000"]
    log.append(1, slices=(part(99),))
    assert values(Reader(blobs, "out", token=reader.token, until_now=True)) == [99], "logs that it had read to the end"


def test_a_named_reader_continues_where_it_has_committed_until_it_is_removed(account: AnyAccount) -> None:
    writer, blobs, positions = producer(account), account.blobs(), account.readers()
    put(writer, 1)
    reader = Reader(blobs, "s", name="w", positions=positions, until_now=True)
    assert values(reader) == [1]
    assert values(Reader(blobs, "s", name="w", positions=positions, until_now=True)) == [1], "not committed"
    reader.commit()
    assert values(Reader(blobs, "s", name="w", positions=positions, until_now=True)) == []
    put(writer, 2)
    latest = Reader(blobs, "s", name="w", positions=positions, start="latest", until_now=True)
    assert values(latest) == [2], "its start counts the first time: it lost what it had not read"
    latest.commit()
    with pytest.raises(ConfigError, match=r"no reader 'x'. Named readers of it: w\."):
        forget_reader(positions, "s", "x")
    forget_reader(positions, "s", "w")
    assert values(Reader(blobs, "s", name="w", positions=positions, until_now=True)) == [1, 2]
    with pytest.raises(ConfigError, match="cannot be used"):
        Reader(blobs, "s", name="a/b", positions=positions)


def test_a_producer_that_slept_while_its_blob_was_deleted_goes_on_at_the_end(account: AnyAccount) -> None:
    slow, fast, blobs = producer(account), producer(account), account.blobs()
    put(slow, 0)
    for number in range(1, 12):
        put(fast, number)
    for index in (0, 1):
        blobs.delete(blob_name("streams/s/0", index))
    put(slow, 99)
    assert 99 in export(blobs, "s")["v"].to_pylist()


def test_a_producer_that_slept_between_two_blobs_makes_no_blob_anew(account: AnyAccount) -> None:
    """It has read ROLLED at the end of blob 0. Blob 1 was begun, filled, read and deleted before it went on."""
    slow, fast, blobs = producer(account), producer(account), account.blobs()
    slow._logs[0].end, slow._logs[0].is_open, slow._logs[0].is_checked = (1, 0), True, True
    for number in range(12):
        put(fast, number)
    slow._logs[0].group_id = fast._logs[0].group_id
    for index in (0, 1):
        blobs.delete(blob_name("streams/s/0", index))
    put(slow, 99)
    assert blobs.list(blob_name("streams/s/0", 1)) == []
    assert values(Reader(blobs, "s", until_now=True))[-1] == 99
    put(slow, 100)
    assert values(Reader(blobs, "s", until_now=True))[-1] == 100


def test_a_producer_that_slept_since_the_log_was_empty_makes_no_blob_0_anew(account: AnyAccount) -> None:
    slow, fast, blobs = producer(account), producer(account), account.blobs()
    slow._logs[0].is_open = True
    for number in range(6):
        put(fast, number)
    blobs.delete(blob_name("streams/s/0", 0))
    put(slow, 99)
    assert blobs.list(blob_name("streams/s/0", 0)) == []
    assert export(blobs, "s")["v"].to_pylist()[-1] == 99


def test_a_blob_that_a_dead_producer_has_created_again_is_deleted_first() -> None:
    """Readers without a position would begin with it, and stay there."""
    now = [0.0]
    account = MemoryAccount(MemoryStorage(lambda: now[0]))
    writer, blobs = producer(account, now=lambda: now[0]), account.blobs()
    for number in range(12):
        put(writer, number)
    retention = Retention(blobs, account.readers(), "s", Keeps(seconds=3_600))
    now[0] += SPARED_S
    blobs.delete(blob_name("streams/s/0", 0))
    late = Record(Kind.BATCH, writer._logs[0].group_id or b"", "late", Writer(0, 0), 0, 0, slices=(part(99),))
    blobs.create(blob_name("streams/s/0", 0))
    blobs.append(blob_name("streams/s/0", 0), encode_record(late), 0)
    assert retention.delete_of_source("streams/s/0", GROUP, []) == 0, "its producer may still look"
    now[0] += SPARED_S
    assert retention.delete_of_source("streams/s/0", GROUP, []) == 1
    assert [index for index, _ in drive(indexes("streams/s/0"), blobs)] == [1, 2]
    assert retention.delete_of_source("streams/s/0", GROUP, []) == 0, "the others are in line, and within the limit"


def test_the_key_of_a_stream_is_checked_where_its_first_blob_is_gone(account: AnyAccount) -> None:
    blobs = account.blobs()
    log = SharedLog("streams/s/0", "a", bytes(16), lambda: 0.0, {"stream": "s", PARTITIONS: 1, KEY: ("v",)}, ROLLS)
    writer = SourceWriter(blobs, account.hints(), "s", 1, key="v")
    writer._logs = [log]
    for number in range(9):
        put(writer, number)
    blobs.delete(blob_name("streams/s/0", 0))
    with pytest.raises(ConfigError, match="was begun with the key v over 1 partitions"):
        put(producer(account), 1)


def test_ages_are_those_of_the_service(account: AnyAccount) -> None:
    blobs = account.blobs()
    blobs.create("a/0")
    blobs.append("a/0", b"xyz", 0)
    [listed] = blobs.list_with_ages("a/")
    assert (listed.name, listed.size) == ("a/0", 3)
    assert -1.0 <= listed.age_s < 3_600

"""A reader goes on from its token: every row once, whenever it is stopped; what is gone is an error, never a gap."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError, RowsGone, StorageUnavailable
from samza_azure.logs.names import blob_name
from samza_azure.logs.record import Kind, Slice, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io import reader as reader_module
from samza_azure.stream_io.arrow import encode
from samza_azure.stream_io.log import LogWriter, take_over
from samza_azure.stream_io.reader import Reader
from samza_azure.stream_io.retention import readers_of
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.stream_io.token import Stand

T = TypeVar("T")


@pytest.fixture
def account() -> MemoryAccount:
    return MemoryAccount()


@pytest.fixture
def blobs(account: MemoryAccount) -> Blobs:
    return account.blobs()


def task(blobs: Blobs, run: str, name: str = "count-0", limits: LogLimits | None = None) -> LogWriter:
    """A task that writes the stream "out"."""
    writer, _ = take_over(
        blobs, f"runs/{run}/{name}", group_id=bytes(16), task=name, writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={"stream": "out"}, limits=limits,
    )  # fmt: skip
    return writer


def part(*values: int) -> Slice:
    return Slice(0, encode(pa.table({"v": values})), len(values))


def values(reader: Reader) -> list[int]:
    return [value for table in reader for value in table["v"].to_pylist()]


def test_a_reader_that_is_stopped_anywhere_has_each_row_once(account: MemoryAccount, blobs: Blobs) -> None:
    """What it made of a table is stored together with the token; it dies at random, rows come at random."""
    for seed in range(40):
        dice, stream = random.Random(seed), f"s{seed}"
        writer = SourceWriter(blobs, account.hints(), stream, 3, flush_rows=4)
        stored: list[int] = []
        token, number = "", 0
        for _ in range(30):
            rows = dice.randrange(12)
            writer.write(pa.table({"v": range(number, number + rows)}))
            writer.flush()
            number += rows
            reader = Reader(blobs, stream, token=token, until_now=True, table_bytes=dice.choice((1, 1000, 1 << 20)))
            for table in reader:
                if dice.random() < 0.3:
                    break  # died before it has stored this one
                stored, token = stored + table["v"].to_pylist(), reader.token
                if dice.random() < 0.2:
                    break
        stored += values(Reader(blobs, stream, token=token, until_now=True))
        assert sorted(stored) == list(range(number)), f"seed {seed}"


@pytest.fixture
def over_a_drain(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader that waits for two runs, each with a row."""
    monkeypatch.setattr("samza_azure.stream_io.reader.AWAIT_S", 0.0)
    monkeypatch.setattr("samza_azure.stream_io.reader.LIST_S", 1e9)
    writers: list[LogWriter] = []

    def wait(_: float) -> None:
        """The next thing happens while the reader waits: a run begins, it ends, the next one begins."""
        if len(writers) == 1:
            writers[0].append(1, kind=Kind.DRAINED)
        if len(writers) < 2:
            writers.append(task(blobs, f"{len(writers)}-run"))
            writers[-1].append(0, slices=(part(len(writers)),))

    return Reader(blobs, "out", wait=wait)


def test_a_reader_lists_logs_more_often_while_none_grows(over_a_drain: Reader) -> None:
    tables = iter(over_a_drain)
    assert [next(tables)["v"].to_pylist() for _ in range(2)] == [[1], [2]]


def test_an_event_loop_goes_on_with_the_next_run_too(over_a_drain: Reader) -> None:
    async def read() -> list[list[int]]:
        tables = aiter(over_a_drain)
        return [(await anext(tables))["v"].to_pylist() for _ in range(2)]

    assert asyncio.run(read()) == [[1], [2]]


def test_over_a_drain_it_goes_on_with_the_next_run(blobs: Blobs) -> None:
    first = task(blobs, "1-a")
    first.append(0, slices=(part(1, 2),))
    reader = Reader(blobs, "out", until_now=True)
    assert values(reader) == [1, 2]
    first.append(1, slices=(part(3),))
    task(blobs, "2-b").append(0, slices=(part(4),))
    task(blobs, "2-b", "count-1").append(0, slices=(part(5),))
    assert values(Reader(blobs, "out", token=reader.token, until_now=True)) == [3, 4, 5]
    assert values(reader) == [3, 4, 5]  # a blob that was there all the time, too


def test_latest_is_what_comes_from_now_on(blobs: Blobs) -> None:
    writer = task(blobs, "1-a")
    writer.append(0, slices=(part(1),))
    reader = Reader(blobs, "out", start="latest", until_now=True)
    assert values(reader) == []
    writer.append(1, slices=(part(2),))
    assert values(reader) == [2]


def test_a_reader_waits_for_rows_and_for_logs_that_do_not_exist_yet(blobs: Blobs) -> None:
    appends: list[Callable[[], object]] = [
        lambda: task(blobs, "1-a").append(0, slices=(part(1),)),
        lambda: task(blobs, "2-b").append(0, slices=(part(2),)),
    ]

    def wait(seconds: float) -> None:
        reader._listed_at -= 60  # as if this much time had passed
        appends.pop(0)()

    reader = Reader(blobs, "out", wait=wait)
    tables = iter(reader)
    assert [next(tables)["v"].to_pylist(), next(tables)["v"].to_pylist()] == [[1], [2]]


class Outage(Link):
    """Nothing answers while it is there."""

    lasts = False

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        if self.lasts:
            raise StorageUnavailable(operation)
        return effect()


def test_a_reader_waits_for_a_storage_that_does_not_list_the_logs(account: MemoryAccount, blobs: Blobs) -> None:
    link, waits = Outage(), list[float]()
    task(blobs, "1-a").append(0, slices=(part(1),))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        link.lasts = len(waits) < 3

    reader = Reader(MemoryAccount(account.storage, link=link).blobs(), "out", wait=wait)
    link.lasts = True
    assert next(iter(reader))["v"].to_pylist() == [1]
    assert len(waits) == 3
    link.lasts = True
    with pytest.raises(StorageUnavailable):
        values(Reader(MemoryAccount(account.storage, link=link).blobs(), "out", until_now=True))


async def _read(reader: Reader) -> list[int]:
    return [value async for table in reader for value in table["v"].to_pylist()]


def test_a_reader_is_an_asynchronous_iterator(blobs: Blobs) -> None:
    task(blobs, "1-a").append(0, slices=(part(1, 2),))
    assert asyncio.run(_read(Reader(blobs, "out", until_now=True))) == [1, 2]


def test_rows_that_were_deleted_before_they_were_read_are_an_error(blobs: Blobs) -> None:
    writer = task(blobs, "1-a", limits=LogLimits(roll_records=4))
    writer.append(0, slices=(part(0),))
    reader = Reader(blobs, "out", until_now=True)
    assert values(reader) == [0]
    for number in range(1, 8):
        writer.append(number, slices=(part(number),))
    blobs.delete("runs/1-a/count-0/00000000")
    with pytest.raises(RowsGone, match=r"from blob 0, position \d+ of runs/1-a/count-0 on are deleted"):
        values(Reader(blobs, "out", token=reader.token, until_now=True))
    # A reader that begins anew asks for what there is.
    assert values(Reader(blobs, "out", until_now=True)) == [3, 4, 5, 6, 7]


def test_a_log_that_came_after_the_token_and_lost_its_beginning_is_no_gap_either(blobs: Blobs) -> None:
    task(blobs, "1-a").append(0, slices=(part(0),))
    reader = Reader(blobs, "out", until_now=True)
    assert values(reader) == [0]
    writer = task(blobs, "2-b", limits=LogLimits(roll_records=4))
    for number in range(6):
        writer.append(number, slices=(part(number),))
    blobs.delete("runs/2-b/count-0/00000000")
    with pytest.raises(RowsGone):
        values(reader)


@dataclass(slots=True)
class Deletes(Link):
    """Blobs are deleted before one of this client's calls."""

    calls_left: int
    storage: MemoryStorage
    names: tuple[str, ...]

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        if self.calls_left == 0:
            self.storage.delete_many(self.names)
        self.calls_left -= 1
        return effect()


@pytest.mark.parametrize("deleted", [(0,), (0, 1), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("is_begun", [False, True])
def test_blobs_deleted_during_a_first_pass_are_not_a_gap(deleted: tuple[int, ...], *, is_begun: bool) -> None:
    """At whatever call retention comes: a reader that has begun has all rows or an error, one that begins has the rows
    that are left."""
    gone = whole = 0
    for calls in range(100):
        storage = MemoryStorage()
        blobs = MemoryAccount(storage).blobs()
        writer = task(blobs, "1-a", limits=LogLimits(roll_records=4))
        for number in range(12):
            writer.append(number, slices=(part(number),))
        first = Reader(blobs, "out", until_now=True, table_bytes=1)
        assert next(iter(first))["v"].to_pylist() == [0]
        link = Deletes(calls, storage, tuple(blob_name("runs/1-a/count-0", index) for index in deleted))
        try:
            reader = Reader(
                MemoryAccount(storage, link=link).blobs(), "out", token=first.token if is_begun else "", until_now=True
            )
            found = [value for _, table in reader.once_through() for value in table["v"].to_pylist()]
        except RowsGone:
            gone += 1
            continue
        if is_begun or found:
            assert found == list(range(12))[1 if is_begun else -len(found) :], f"deleted before call {calls}"
        else:
            assert len(deleted) == 5 and not reader.has_logs
        whole += len(found) >= 11
        if link.calls_left >= 0:
            break
    assert link.calls_left >= 0 and whole
    assert bool(gone) == (is_begun or len(deleted) > 1)


def test_a_token_of_another_stream_or_no_token_is_refused(blobs: Blobs) -> None:
    task(blobs, "1-a").append(0, slices=(part(0),))
    token = Reader(blobs, "out").token
    with pytest.raises(ConfigError, match="is of the stream 'out', not of 'in'"):
        Reader(blobs, "in", token=token)
    for wrong in ("x", token[:-5], "é", token + "%%%"):
        with pytest.raises(ConfigError, match=r"not a reader.s token"):
            Reader(blobs, "out", token=wrong)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"at": 7}, "The column at should be text, and is 7."),
        ({"at": True}, "The column at should be text, and is True."),
        ({"at": "x", "at1": 2.5}, r"The column at1 should be text, and is 2.5."),
        ({"at": "x"}, "The column at holds 'x', which is no position in s."),
        ({"at": ""}, "It has no column at."),
        ({"other": "x"}, "It has no column at."),
    ],
)
def test_a_named_reader_does_not_begin_again_because_of_a_foreign_row(
    account: MemoryAccount, blobs: Blobs, row: dict[str, Any], says: str
) -> None:
    """It began with the earliest rows, without a word, and its program had all rows twice."""
    positions = account.readers()
    account.storage.upsert("readers", "s|w", row)
    with pytest.raises(ConfigError) as refused:
        Reader(blobs, "s", name="w", positions=positions)
    said = str(refused.value)
    assert said.startswith(f"The row readers/s|w in memory was not written by samza-azure. {says}")
    assert said.endswith("samza-azure delete JOB --stream s --reader w.")
    assert readers_of(positions, "s") == {"w": Stand()}, "retention keeps everything for it"
    token = Reader(blobs, "s").token
    assert Reader(blobs, "s", name="w", positions=positions, token=token).token == token
    assert Reader(blobs, "s", name="w", positions=positions).token == token


def test_a_named_reader_of_thousands_of_logs_goes_on_where_it_stood(account: MemoryAccount, blobs: Blobs) -> None:
    """Its token is longer than a column of a table; with fewer logs later it is shorter again."""
    positions = account.readers()
    reader = Reader(blobs, "s", name="w", positions=positions)
    for count in (9_000, 10):
        reader._stand.at = {f"streams/s/{number}": (3, 268_435_456 - number * 7919) for number in range(count)}
        reader.commit()
        assert readers_of(positions, "s") == {"w": reader._stand}


def test_columns_that_changed_between_two_producers_come_in_one_table(account: MemoryAccount, blobs: Blobs) -> None:
    for rows in (pa.table({"v": [1]}), pa.table({"v": [2], "w": ["x"]})):
        writer = SourceWriter(blobs, account.hints(), "s", 1)
        writer.write(rows)
        writer.close()
    [table] = Reader(blobs, "s", until_now=True)
    assert table.to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": "x"}]


def test_records_that_unpack_to_much_are_returned_one_by_one(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """And from a token between them a reader goes on with the next one."""
    monkeypatch.setattr(reader_module, "MEMORY_BYTES", 1)
    writer = task(blobs, "1-a")
    for number in range(3):
        writer.append(number, slices=(part(number), part(10 + number)))
    reader = Reader(blobs, "out", until_now=True)
    found = [(table["v"].to_pylist(), reader.token) for table in reader]
    assert [rows for rows, _ in found] == [[0, 10], [1, 11], [2, 12]]
    assert values(Reader(blobs, "out", token=found[0][1], until_now=True)) == [1, 11, 2, 12]

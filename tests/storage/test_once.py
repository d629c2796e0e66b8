"""Rows that are produced under an idempotence key are stored once, wherever a producer is killed and however often it
is started."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from samza_azure.commands.delete import delete_stream
from samza_azure.config import Config
from samza_azure.errors import ConfigError, StateLost, StorageUnavailable
from samza_azure.logs.source_log import LogLimits
from samza_azure.storage.connection import Account
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from samza_azure.stream_io.produced import PRODUCED, Production
from samza_azure.stream_io.source_stream import SourceWriter
from tests.storage.conftest import AnyAccount
from tests.storage.stored_rows import batches_of

ROWS = 5_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "job.toml"


class Killed(BaseException):
    """The process is gone."""


@dataclass(slots=True)
class Mortal(Link):
    """A way of a client that is killed at one of its calls, before or after that has taken effect."""

    calls_left: int
    after: bool

    def call(self, operation: str, effect: Callable[[], object]) -> object:  # type: ignore[override]
        self.calls_left -= 1
        if self.calls_left < 0 and not self.after:
            raise Killed
        answer = effect()
        if self.calls_left < 0:
            raise Killed
        return answer


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.long)])
def account(request: pytest.FixtureRequest) -> AnyAccount:
    if request.param == "memory":
        return MemoryAccount()
    connect = request.getfixturevalue("connect")
    account: Account = connect(request.getfixturevalue("azurite").connection_string)
    account.ensure_created()
    return account


def writer(
    account: AnyAccount, key: str = "k", *, partitions: int = 3, content: str = "", size: int = 700
) -> SourceWriter:
    once = Production(account.transactions(PRODUCED), "s", key, content, wait=lambda pause: None)
    return SourceWriter(
        account.blobs(), account.hints(), "s", partitions, flush_rows=size, once=once, wait=lambda pause: None
    )  # fmt: skip


def rows(first: int = 0, end: int = ROWS) -> pa.Table:
    return pa.table({"v": range(first, end)})


def stored(account: AnyAccount) -> list[int]:
    return [value for batch in batches_of(account.blobs(), "s") for value in batch["v"].to_pylist()]


@pytest.mark.parametrize("by", ["v", None])
def test_rows_written_twice_under_a_key_are_stored_once(account: AnyAccount, by: str | None) -> None:
    for skipped in (0, ROWS, ROWS):
        producer = writer(account)
        producer.write(rows(), by)
        producer.close()
        assert producer.rows_skipped == skipped
    assert sorted(stored(account)) == list(range(ROWS))


@pytest.mark.parametrize("by", ["v", None])
def test_a_writer_that_is_closed_after_an_error_does_not_finish_its_key(by: str | None) -> None:
    """As `finally: writer.close()` does, and `with`, which says nothing of its own then."""
    account = MemoryAccount()
    producer = writer(account)
    producer.write(rows(0, 2_000), by)
    with pytest.raises(ConfigError, match="There is no column 'v'"):
        producer.write(pa.table({"w": [1]}), "v")
    for goes_on in (producer.close, lambda: producer.write(rows(2_000, 2_500), by), producer.close):
        with pytest.raises(ConfigError, match="A write with the key 'k' has failed, so the key is not finished"):
            goes_on()

    def stop_half_way() -> None:
        with writer(account) as failing:
            failing.write(rows(0, 2_000), by)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop_half_way()
    with writer(account) as producer:
        producer.write(rows(), by)
    assert sorted(stored(account)) == list(range(ROWS))
    assert Production(account.transactions(PRODUCED), "s", "k").find().rows == ROWS  # type: ignore[union-attr]


@pytest.mark.parametrize("by", ["v", None])
def test_a_writer_that_ends_in_the_middle_goes_on_there(account: AnyAccount, by: str | None) -> None:
    """Also if it flushes more or less often than before, and others write in between."""
    for size in (300, 1_300, 10_000):
        producer = writer(account, size=size)
        producer.write(rows(0, 2_345), by)
        producer.flush()
        other = writer(account, f"other {size}")
        other.write(rows(ROWS, ROWS + 10), by)
        other.close()
    producer = writer(account)
    producer.write(rows(0, 2_000), by)
    producer.write(rows(2_000), by)
    producer.close()
    assert producer.rows_skipped == 2_345
    assert sorted(stored(account)) == sorted([*range(ROWS), *[*range(ROWS, ROWS + 10)] * 3])


@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_stored_once_wherever_a_producer_is_killed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, storage = random.Random(seed), MemoryStorage()
    by = chance.choice(["v", None])
    limits = LogLimits(roll_records=chance.choice([3, 1_000]))
    for tries in range(1_000):  # each may live longer, since there is more to read
        link = Mortal(chance.randrange(60 + 10 * tries), chance.random() < 0.5)
        producer = writer(MemoryAccount(storage, link=link), size=chance.choice([200, 900, 3_000]))
        for log in producer._logs:
            log.limits = limits
        try:
            for first in range(0, ROWS, 500):
                producer.write(rows(first, first + 500), by)
            producer.close()
            break
        except Killed:
            continue
    account = MemoryAccount(storage)
    assert sorted(stored(account)) == list(range(ROWS))
    assert Production(account.transactions(PRODUCED), "s", "k").find().rows == ROWS  # type: ignore[union-attr]


@dataclass(slots=True)
class Turns(Link):
    """Lets another client act before each call of this one."""

    act: list[Callable[[], None]] = field(default_factory=list)

    def call(self, operation: str, effect: Callable[[], object]) -> object:  # type: ignore[override]
        while operation == "blobs.append" and self.act:
            self.act.pop()()
        return effect()


def test_a_producer_that_finds_the_rows_of_another_under_its_key_stops(account: AnyAccount) -> None:
    first, second = writer(account), writer(account)
    second.write(rows(0, 300), "v")  # it has begun, and its rows are still in its memory
    first.write(rows(0, 1_400), "v")
    with pytest.raises(ConfigError, match="Another producer writes streams/s/0 with the same idempotence key, 'k'"):
        second.flush()
    first.write(rows(1_400), "v")
    first.close()
    assert sorted(stored(account)) == list(range(ROWS))


@pytest.mark.parametrize("seed", range(40))
def test_producers_of_one_key_at_once_double_nothing(seed: int) -> None:
    """One producer acts between any two appends of the other; a stopped one is started again."""
    chance, storage = random.Random(seed), MemoryStorage()
    account = MemoryAccount(storage)
    link = Turns()
    slow, fast = writer(MemoryAccount(storage, link=link), size=400), writer(account, size=600)
    given = 0

    def go_on() -> None:
        nonlocal given
        try:
            fast.write(rows(given, given + 500), "v")
        except (ConfigError, StorageUnavailable):
            return
        given += 500

    try:
        for first in range(0, ROWS, 1_000):
            link.act = [go_on] * chance.choice([0, 0, 1])
            slow.write(rows(first, first + 1_000), "v")
        slow.close()
    except ConfigError:
        pass
    last = writer(account)
    last.write(rows(), "v")
    last.close()
    assert sorted(stored(account)) == list(range(ROWS))


def test_a_finished_key_needs_no_stored_rows_and_an_unfinished_one_is_refused_without_them() -> None:
    """Retention has deleted the records."""
    account = MemoryAccount()
    for key, end in (("done", True), ("half", False)):
        producer = writer(account, key, partitions=1)
        producer.write(rows(0, 900), "v")
        producer.flush()
        if end:
            producer.close()
    for log in producer._logs:
        log.limits, log.once = LogLimits(roll_records=1), "another"
    producer.write(rows(900, 1_000), "v")
    producer.flush()
    account.blobs().delete("streams/s/0/00000000")
    done = writer(account, "done", partitions=1)
    done.write(rows(0, 900), "v")
    done.close()
    assert done.rows_skipped == 900
    half = writer(account, "half", partitions=1)
    with pytest.raises(StateLost, match="It is unknown which rows with the key 'half' are stored"):
        half.write(rows(0, 900), "v")


def test_a_key_that_survives_in_a_later_record_is_trusted_although_earlier_ones_are_deleted() -> None:
    account = MemoryAccount()
    producer = writer(account, partitions=1)
    producer._logs[0].limits = LogLimits(roll_records=2)
    producer.write(rows(0, 3_000), "v")
    producer.flush()
    account.blobs().delete("streams/s/0/00000000")
    again = writer(account, partitions=1)
    again.write(rows(), "v")
    again.close()
    assert again.rows_skipped == 3_000


def test_a_key_of_a_stream_that_is_half_deleted_never_says_that_its_rows_are_stored() -> None:
    """A deletion is killed at each call in turn. Then the same rows are produced again, or the deletion is repeated."""
    config = Config.load(EXAMPLE, environment={"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"})
    said: list[str] = []
    for calls in range(100):
        storage = MemoryStorage()
        account = MemoryAccount(storage)
        for key in ("k", "another"):
            producer = writer(account, key)
            producer.write(rows(0, 900), "v")
            producer.close()
        mortal, is_killed = MemoryAccount(storage, link=Mortal(calls, after=calls % 2 == 0)), False
        try:
            delete_stream(config, mortal, "s", yes=True)  # type: ignore[arg-type]
        except Killed:
            is_killed = True
        try:
            again = writer(account)
            again.write(rows(0, 900), "v")
            again.close()
        except ConfigError as error:
            said.append(str(error))
        else:
            assert len(stored(account)) == (1_800 if is_killed else 900), f"killed at call {calls}"
        if not is_killed:
            break
        with suppress(ConfigError):  # nothing is left of it
            delete_stream(config, account, "s", yes=True)  # type: ignore[arg-type]
        again = writer(account)
        again.write(rows(), "v")
        again.close()
        assert sorted(stored(account)) == list(range(ROWS)), f"killed at call {calls}"
    assert not is_killed
    assert said and all("Run that delete again, to its end." in each for each in said)


def test_a_key_over_thousands_of_partitions_is_finished_and_skipped(account: AnyAccount) -> None:
    """The row of a key says where all logs ended, which is more than one column of a table holds."""
    ends = {f"streams/s/{number}": (7, 268_435_456 - number * 7919) for number in range(9_000)}
    begun = Production(account.transactions(PRODUCED), "s", "k").begin("no key", ends)
    assert begun.begun_at == ends


def test_other_rows_or_another_division_under_a_key_are_refused(account: AnyAccount) -> None:
    producer = writer(account, content="a")
    producer.write(rows(0, 1_000), "v")
    producer.flush()
    with pytest.raises(ConfigError, match="The key 'k' was used for other rows in the stream 's'"):
        writer(account, content="b").write(rows(), "v")
    with pytest.raises(
        ConfigError, match="begun with the key v over 3 partitions, and are to go on with no key over 3"
    ):
        writer(account, content="a").write(rows())
    with pytest.raises(ConfigError, match="to go on with the key v over 4 partitions"):
        writer(account, content="a", partitions=4).write(rows(), "v")
    producer.close()
    with pytest.raises(ConfigError, match="more than the 1000 rows that the idempotence key ended with"):
        writer(account, content="a").write(rows(), "v")


@pytest.mark.parametrize("key", ["a|b", "", "x" * 201, "line\nbreak", "50%?", "caf\udce9.csv"])
def test_a_key_that_no_row_can_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used: it should be 1 to 200 characters"):
        writer(MemoryAccount(), key)

"""What the storage in memory has beyond the contract: a clock that is given, the same ETags each time, faulty links."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Content, Row
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage

T = TypeVar("T")


@dataclass(slots=True)
class Clock:
    """A clock that a test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_ends_by_the_clock_that_was_given() -> None:
    clock = Clock()
    control = MemoryAccount(clock=clock).control_blob()

    async def story() -> list[object]:
        etag = await control.create(b"0", timeout=1)
        assert isinstance(etag, str)
        answers: list[object] = [await control.acquire("a", seconds=60, timeout=1)]
        clock.now = 59.9
        answers.append(await control.acquire("b", seconds=60, timeout=1))
        answers.append(await control.renew("a", timeout=1))
        clock.now = 119.8
        answers.append(await control.acquire("b", seconds=60, timeout=1))
        clock.now = 120.0
        answers.append(await control.write(b"1", etag=etag, lease_id="a", timeout=1))
        answers.append(await control.acquire("b", seconds=60, timeout=1))
        answers.append(await control.renew("a", timeout=1))
        return answers

    assert asyncio.run(story()) == [
        None,
        Refused("LeaseAlreadyPresent"),
        None,
        Refused("LeaseAlreadyPresent"),
        Refused("LeaseLost"),
        None,
        Refused("LeaseIdMismatchWithLeaseOperation"),
    ]


def test_an_expired_lease_can_be_renewed_if_there_was_no_other_lease() -> None:
    clock = Clock()
    control = MemoryAccount(clock=clock).control_blob()

    async def story() -> list[object]:
        await control.create(b"0", timeout=1)
        await control.acquire("a", seconds=60, timeout=1)
        clock.now = 1000
        answers: list[object] = [await control.renew("a", timeout=1)]
        answers.append(await control.acquire("b", seconds=60, timeout=1))
        return answers

    assert asyncio.run(story()) == [None, Refused("LeaseAlreadyPresent")]


def test_the_same_calls_give_the_same_etags() -> None:
    async def story() -> list[object]:
        account = MemoryAccount()
        rows = account.rows()
        control = account.control_blob()
        return [
            await control.create(b"0", timeout=1),
            await rows.insert("members", "one", {"beat": 1}, timeout=1),
            await rows.query("members", timeout=1),
            await control.read(timeout=1),
        ]

    assert asyncio.run(story()) == asyncio.run(story())


def test_many_clients_share_one_storage() -> None:
    storage = MemoryStorage()
    one, two = MemoryAccount(storage), MemoryAccount(storage)
    one.blobs().create("log/0")
    one.blobs().append("log/0", b"rows", 0)
    one.hints().publish("log", {"length": 4})
    assert two.blobs().read("log/0", 0) == Span(b"rows", 4)
    assert two.hints().poll() == {"log": {"length": 4}}


def test_a_value_that_was_read_does_not_change_with_the_storage() -> None:
    async def story() -> tuple[Row | None, object]:
        account = MemoryAccount()
        rows, control = account.rows(), account.control_blob()
        etag = await rows.insert("members", "one", {"beat": 1}, timeout=1)
        assert isinstance(etag, str)
        row, content = await rows.get("members", "one", timeout=1), await control.create(b"0", timeout=1)
        assert isinstance(content, str)
        read = await control.read(timeout=1)
        await rows.merge("members", "one", {"beat": 2}, etag=etag, timeout=1)
        await control.acquire("a", seconds=60, timeout=1)
        await control.write(b"1", etag=content, lease_id="a", timeout=1)
        return row, read

    row, read = asyncio.run(story())
    assert row is not None and row.values == {"beat": 1}
    assert isinstance(read, Content) and read.data == b"0"


class Lossy(Link):
    """Loses the answers of the calls that are named, and never delivers those that are refused."""

    def __init__(self, *, lost: set[str], refused: set[str]) -> None:
        self.lost = lost
        self.refused = refused

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        if operation in self.refused:
            raise StorageUnavailable(f"{operation} did not arrive.")
        answer = effect()
        if operation in self.lost:
            raise Unsettled(f"The answer of {operation} was lost.")
        return answer

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        return self.call(operation, effect)


def test_a_client_may_have_a_faulty_link() -> None:
    storage = MemoryStorage()
    link = Lossy(lost={"blobs.append", "control.create"}, refused={"blobs.put"})
    faulty, good = MemoryAccount(storage, link=link), MemoryAccount(storage)
    good.blobs().create("log/0")
    with pytest.raises(Unsettled):
        faulty.blobs().append("log/0", b"rows", 0)
    with pytest.raises(StorageUnavailable):
        faulty.blobs().put("large/1", b"rows")
    with pytest.raises(Unsettled):
        asyncio.run(faulty.control_blob().create(b"0", timeout=1))
    assert good.blobs().read("log/0", 0) == Span(b"rows", 4)
    assert good.blobs().read("large/1", 0) == Missing()
    assert good.blobs().read("control.json", 0) == Span(b"0", 1)

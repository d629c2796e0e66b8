"""Tokens that take their time, behind the SDK as it is: which calls wait for them, and how often they are asked for.

The credential stands for a managed identity's endpoint or for `az`: it answers when a test lets it, or after three
seconds.
"""

import asyncio
import gc
import logging
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator

import pytest
from azure.core.credentials import AccessTokenInfo
from azure.core.exceptions import ClientAuthenticationError

from samza_azure.errors import Ending, SignInFailed, StorageUnavailable
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Settings
from samza_azure.library.factory import reached
from samza_azure.library.lease_lock import LeaseLock
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.metrics.observer import Observer
from samza_azure.storage.identity import RETRY_MOST_S, Identity
from samza_azure.storage.memory import MemoryStorage
from simulator.sdk import SdkAccount
from tests.storage.conftest import Clock

#: What a call of the profile `fast` waits for.
CALL_S = 0.5
HOUR_S = 3600.0


class Slow:
    """A credential that answers when it may."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked = self.made = 0
        self.may_answer = threading.Event()
        self.delay_s: float | None = None
        self.refuses = False
        self.says = "nobody has signed in"
        self.lasts_s = HOUR_S
        self.begun = threading.Semaphore(0)

    def make(self) -> "Slow":
        self.made += 1
        return self

    def get_token_info(self, *scopes: str, options: object = None) -> AccessTokenInfo:
        self.asked += 1
        number = self.asked
        self.begun.release()
        if self.delay_s is not None:
            time.sleep(self.delay_s)
        else:
            assert self.may_answer.wait(30)
        if self.refuses:
            raise ClientAuthenticationError(self.says)
        return AccessTokenInfo(f"token {number}", int(self.clock.now + self.lasts_s))


@pytest.fixture
def slow(runner: asyncio.Runner) -> Iterator[Slow]:
    # The SDK keeps a token while the machine's clock says that it is good, so this one stands near it.
    made = Slow(Clock(time.time()))
    yield made
    made.may_answer.set()


@pytest.fixture
def account(slow: Slow) -> SdkAccount:
    return another(slow)


def another(slow: Slow, storage: MemoryStorage | None = None) -> SdkAccount:
    return SdkAccount(storage or MemoryStorage(slow.clock), identity=Identity(slow.make, clock=slow.clock))


def signed_in(account: SdkAccount, slow: Slow) -> None:
    slow.may_answer.set()
    account.ensure_created()
    assert slow.begun.acquire(timeout=5)
    slow.may_answer.clear()


def over() -> None:
    """Wait until no request for a token is under way."""
    for thread in threading.enumerate():
        if thread.name == "token":
            thread.join(30)


async def test_a_first_token_of_three_seconds_is_there_before_any_call_has_a_deadline(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.delay_s = 3.0
    account = another(slow)
    stores = await reached(account)
    assert isinstance(await stores.blob.create(b"0", timeout=CALL_S), str)
    assert isinstance(await stores.table.insert("members", "one", {"beat": 1}, timeout=CALL_S), str)
    assert await asyncio.to_thread(account.blobs().create, "runs/r/a-0/00000000")
    account.hints().publish("runs/r/a-0", {"length": 1})
    assert (slow.asked, slow.made) == (1, 1)
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith("Waiting for a token for blob.invalid, for at most 60 s: the managed identity")


def test_a_processor_of_the_profile_fast_joins_with_a_token_that_takes_three_seconds(slow: Slow) -> None:
    slow.delay_s = 3.0
    settings = Settings("a", PROFILES["fast"])
    coordinator = ThreadedCoordinator(settings, lambda: reached(another(slow)), Observer("a"))
    coordinator.start()
    until(lambda: coordinator.is_leader)
    coordinator.stop()
    assert coordinator.wait(30) and isinstance(coordinator.ending, Ending) and coordinator.ending.code == 0
    assert slow.asked == 1


def test_a_lock_waits_for_the_token_before_it_asks(slow: Slow) -> None:
    slow.delay_s = 3.0
    storage = MemoryStorage(slow.clock)
    lock = LeaseLock("nightly", lambda: another(slow, storage), now=slow.clock)
    assert lock.try_lock() == 1
    lock.unlock()


def test_a_lock_waits_while_there_is_no_token(slow: Slow) -> None:
    slow.refuses = True
    slow.may_answer.set()
    lock = LeaseLock("nightly", lambda: another(slow))
    with pytest.raises(SignInFailed):
        lock.try_lock()
    waiting = threading.Thread(target=lock.lock)
    waiting.start()
    slow.refuses = False
    patience = time.monotonic() + 30
    while waiting.is_alive() and time.monotonic() < patience:
        slow.clock.now += RETRY_MOST_S  # the next call asks again; the last one may have been refused just now
        waiting.join(0.1)
    assert lock.token == 1
    lock.unlock()


async def test_a_token_is_renewed_while_the_calls_go_on_with_the_old_one(account: SdkAccount, slow: Slow) -> None:
    await asyncio.to_thread(signed_in, account, slow)
    slow.clock.now += HOUR_S - 60
    rows = account.rows()
    for number in range(5):
        assert isinstance(await rows.insert("members", str(number), {}, timeout=CALL_S), str)
        account.hints().publish(f"runs/r/a-{number}", {"length": 1})
    assert await asyncio.to_thread(slow.begun.acquire, timeout=5)
    assert slow.asked == 2


async def test_calls_that_give_up_leave_the_request_for_a_token_at_work(account: SdkAccount, slow: Slow) -> None:
    await asyncio.to_thread(signed_in, account, slow)
    slow.clock.now += HOUR_S + 1  # the token has ended: nothing can be sent without a new one
    blob, rows = account.control_blob(), account.rows()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: blob.read(timeout=0.05),
        lambda: rows.query("members", timeout=0.05),
    ]
    for _ in range(4):
        for call in calls:
            with pytest.raises(StorageUnavailable, match=r"within 0.05 s, and no token of the identity yet\."):
                await call()
    assert slow.asked == 2
    slow.may_answer.set()
    assert await rows.query("members", timeout=5) == []
    assert slow.asked == 2


async def test_concurrent_callers_wait_for_one_token_request(account: SdkAccount, slow: Slow) -> None:
    blob, rows, blobs = account.control_blob(), account.rows(), account.blobs()
    asking = [
        *(asyncio.create_task(rows.query("members", timeout=20)) for _ in range(5)),
        *(asyncio.create_task(blob.read(timeout=20)) for _ in range(5)),
        *(asyncio.create_task(asyncio.to_thread(blobs.list, "runs/")) for _ in range(3)),
    ]
    assert await asyncio.to_thread(slow.begun.acquire, timeout=5)
    slow.may_answer.set()
    await asyncio.gather(*asking)
    assert slow.asked == 1


async def test_a_processor_without_a_token_asks_less_and_less_often_and_says_why(
    account: SdkAccount, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come: the machine's endpoint restarts, or the identity is assigned later."""
    monkeypatch.setattr("samza_azure.library.factory.UNREACHABLE_S", 0.5)
    slow.refuses = True
    slow.may_answer.set()
    with pytest.raises(SignInFailed, match=r"Signing in to blob.invalid: .* `az login`. .* says: nobody has signed in"):
        await reached(account)
    with pytest.raises(SignInFailed):
        await account.rows().query("members", timeout=CALL_S)
    assert slow.asked == 1  # `az` is a process each time, and the clock of this test stands still
    slow.clock.now += 1.0
    slow.refuses = False
    await reached(account)
    assert slow.asked == 2


async def test_each_caller_without_a_token_raises_an_error_of_its_own(
    account: SdkAccount, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """One error for all has a longer traceback with each caller: 11,086 lines in 100 s."""
    await asyncio.to_thread(signed_in, account, slow)
    slow.clock.now += HOUR_S + 1
    rows = account.rows()
    with pytest.raises(StorageUnavailable, match="no token of the identity yet"):
        await rows.query("members", timeout=0.05)  # it has given up before the request fails
    slow.refuses = True
    slow.may_answer.set()
    lines = []
    for _ in range(10):
        with pytest.raises(SignInFailed) as raised:
            await rows.query("members", timeout=CALL_S)
        lines.append(len("".join(traceback.format_exception(raised.value)).splitlines()))
    assert max(lines[1:]) == min(lines[1:])
    gc.collect()
    assert [record.name for record in caplog.records if record.name == "asyncio"] == []


async def test_a_token_that_cannot_be_renewed_is_told_once_a_minute_while_calls_go_on(
    account: SdkAccount, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(signed_in, account, slow)
    slow.clock.now += HOUR_S - 60
    slow.refuses = True
    slow.may_answer.set()
    for _ in range(5):
        assert await account.rows().query("members", timeout=CALL_S) == []
        assert await asyncio.to_thread(slow.begun.acquire, timeout=5)
        await asyncio.to_thread(over)  # the back-off counts from the end of a try, so the clock may not move before
        slow.clock.now += 10
    [said] = [record.getMessage() for record in caplog.records if "could not be renewed" in record.getMessage()]
    assert said.endswith("calls go on with the old one until it ends. nobody has signed in")


async def test_a_token_that_ends_soon_is_not_asked_for_at_each_call(account: SdkAccount, slow: Slow) -> None:
    slow.lasts_s = 200.0
    await asyncio.to_thread(signed_in, account, slow)
    slow.may_answer.set()
    for _ in range(10):
        await account.rows().query("members", timeout=CALL_S)
        slow.clock.now += 5
    assert slow.asked == 1


def test_no_token_is_in_the_text_of_a_failure(account: SdkAccount, slow: Slow) -> None:
    token = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJ4In0.c2ln"
    slow.says = f"Unexpected response \"{{'access_token': '{token}', 'refresh_token': 'abcdef'}}\"\nBearer {token}"
    slow.refuses = True
    slow.may_answer.set()
    with pytest.raises(SignInFailed) as raised:
        account.ensure_created()
    assert str(raised.value).endswith(
        "says: Unexpected response \"{'access_token': '**********', 'refresh_token': '**********'}\" Bearer **********"
    )


async def test_an_account_that_refuses_us_gets_a_token_of_a_new_credential_once_a_minute(
    account: SdkAccount, slow: Slow
) -> None:
    await asyncio.to_thread(signed_in, account, slow)
    identity = account._identity
    assert identity is not None
    for _ in range(3):
        identity.refused()
        assert isinstance(await account.rows().query("members", timeout=CALL_S), list)
    assert await asyncio.to_thread(slow.begun.acquire, timeout=5)
    assert (slow.asked, slow.made) == (2, 2)


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)

"""The lock of the library, in memory on a clock that is set and on Azurite with processes that are stopped."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import AccessDenied, ConfigError, CorruptState, StorageUnavailable
from samza_azure.explain import LOCK_ASK_S, LOCK_RENEW_S
from samza_azure.library.lease_lock import ASK_MOST_S, LEASE_S, AzureLock, LeaseLock, _Life
from samza_azure.machine.clock import boot_time
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from simulator.loop import VirtualLoop
from tests.storage.test_secrets import by_signature, signature_of

from .conftest import Clock, settings

T = TypeVar("T")


class Flaky(Link):
    """Carries nothing while it is down, refuses what it is told to, and remembers what it was given."""

    def __init__(self) -> None:
        self.down = self.refuses = False
        self.carried: list[str] = []

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if self.down:
            raise StorageUnavailable("Nobody answers.")
        self.carried.append(operation)
        if self.refuses:
            raise AccessDenied("The account refuses us.", may_pass=True)
        return effect()


class Locks:
    """One storage in memory, and locks of several holders on it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.storage = MemoryStorage(self.clock)
        self.made: list[LeaseLock] = []
        self.lost: list[str] = []

    def holder(self, link: Link | None = None) -> LeaseLock:
        lock = LeaseLock(
            "one",
            lambda: MemoryAccount(self.storage, link=link),
            on_lost=self.lost.append,
            now=self.clock,
        )
        self.made.append(lock)
        return lock

    @property
    def blob(self) -> MemoryStorage:
        return self.storage.beside("locks/one")


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks()
    yield made
    for lock in made.made:
        lock.unlock()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def test_each_grant_of_a_lock_has_a_higher_token(locks: Locks) -> None:
    one, two = locks.holder(), locks.holder()
    tokens = []
    for holder in (one, two, two, one):
        tokens.append(holder.lock())
        holder.unlock()
    assert tokens == [1, 2, 3, 4]


def test_a_lock_is_refused_to_others_until_its_holder_unlocks_it(locks: Locks) -> None:
    one, two = locks.holder(), locks.holder()
    with one as token:
        assert (token, one.held, one.token) == (1, True, 1)
        assert two.try_lock() is None
        assert (two.held, two.token, two.lost) == (False, None, None)
    assert (one.held, one.token, one.lost) == (False, None, None)
    assert two.try_lock() == 2


def test_a_waiting_caller_gets_the_lock_when_it_is_unlocked(locks: Locks) -> None:
    one, two = locks.holder(), locks.holder()
    one.lock()
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(two.lock(timeout=10)))
    waiting.start()
    one.unlock()
    waiting.join()
    assert got == [2]


def test_unlock_may_be_called_again_and_without_a_lock(locks: Locks) -> None:
    one = locks.holder()
    one.unlock()
    one.lock()
    one.unlock()
    one.unlock()
    assert locks.holder().try_lock() == 2


def test_locking_an_object_twice_is_refused(locks: Locks) -> None:
    one = locks.holder()
    one.lock()
    with pytest.raises(RuntimeError, match=r"Call unlock\(\) first"):
        one.lock()


def test_an_outage_longer_than_the_lease_loses_the_lock_before_another_can_acquire_it(locks: Locks) -> None:
    link = Flaky()
    one, two = locks.holder(link), locks.holder()
    one.lock()
    link.down = True
    locks.clock.now += 12.9
    assert one.held
    locks.clock.now += 0.2
    assert (one.held, one.token, one.lost) == (False, None, "The lease was not renewed in time.")
    assert two.try_lock() is None
    until(lambda: locks.lost == ["The lease was not renewed in time."])
    locks.clock.now += 2.0
    assert two.try_lock() == 2


def test_after_its_deadline_nothing_is_renewed(locks: Locks) -> None:
    link = Flaky()
    one = locks.holder(link)
    one.lock()
    link.carried.clear()
    locks.clock.now += 14.0  # the service has not ended the lease yet: a renewal would succeed
    until(lambda: bool(locks.lost))
    one.unlock()
    assert link.carried == ["control.release"]


def test_a_lock_is_kept_by_renewals_in_time(locks: Locks) -> None:
    one, two = locks.holder(link := Flaky()), locks.holder()
    one.lock()
    for _ in range(4):
        before = link.carried.count("control.renew")
        locks.clock.now += 6.0
        until(lambda before=before: link.carried.count("control.renew") > before)  # type: ignore[misc]
        until(lambda: one.ends_at == locks.clock.now + 13.0)
        assert two.try_lock() is None
    assert (one.held, locks.lost) == (True, [])


def test_a_lock_whose_object_is_gone_is_released(locks: Locks, caplog: pytest.LogCaptureFixture) -> None:
    """It was renewed for as long as the process lived, and nobody could release it."""
    one = LeaseLock("one", lambda: MemoryAccount(locks.storage), now=locks.clock)
    one.lock()
    thread = one._keeper._life.thread if one._keeper._life is not None else None
    del one
    gc.collect()
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
    assert locks.holder().try_lock() == 2
    assert "locks/one is released: its object is gone" in caplog.text


def test_a_lock_is_kept_while_the_account_refuses_its_renewal(locks: Locks) -> None:
    """As while a key was renewed and the file with the new one is late."""
    one = locks.holder(link := Flaky())
    one.lock()
    link.refuses = True
    before = len(link.carried)
    locks.clock.now += 6.0
    until(lambda: "control.renew" in link.carried[before:])
    assert (one.held, locks.lost) == (True, [])
    link.refuses = False
    locks.clock.now += 1.0
    until(lambda: one.ends_at == locks.clock.now + 13.0)
    assert one.held


def test_a_broken_lease_is_reported_at_the_next_renewal(locks: Locks) -> None:
    one = locks.holder()
    one.lock()
    assert locks.blob.lease_break(None) is None
    locks.clock.now += 6.0
    until(lambda: bool(locks.lost))
    assert one.lost == locks.lost[0]
    assert "LeaseIsBroken" in locks.lost[0]


def test_a_lease_that_another_holder_had_meanwhile_is_never_renewed(locks: Locks) -> None:
    one = locks.holder()
    one.lock()
    # Azurite renews an expired lease under any id; the ETag of our own grant is what keeps us from it.
    grant = one._keeper._grant
    assert grant is not None
    locks.blob.lease_break(None)
    with locks.holder():
        pass
    assert str(locks.blob.lease_renew(grant.lease_id, grant.etag)) == "Refused(code='ConditionNotMet')"


def test_try_lock_raises_storage_unavailable_in_an_outage(locks: Locks) -> None:
    link = Flaky()
    link.down = True
    with pytest.raises(StorageUnavailable):
        locks.holder(link).try_lock()


@pytest.mark.parametrize("data", [b"something else", b'{"token": Infinity}'])
def test_a_blob_that_is_not_a_lock_is_an_error(locks: Locks, data: bytes) -> None:
    locks.blob.control_create(data)
    one = locks.holder()
    with pytest.raises(CorruptState, match="locks/one"):
        one.try_lock()
    assert locks.blob._lease_state(locks.blob._blobs["control.json"]) == "available"


def test_a_lease_that_azure_does_not_grant_is_refused_with_its_number() -> None:
    with pytest.raises(ConfigError, match="lease_s is 5, but Azure leases for 15 to 60 s"):
        LeaseLock("one", MemoryAccount, lease_s=5)


class Gate(Link):
    """Holds each request for a lease until it may land."""

    def __init__(self) -> None:
        self.asked, self.may_land = threading.Event(), threading.Event()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if operation == "control.acquire":
            self.asked.set()
            assert await asyncio.to_thread(self.may_land.wait, 30)
        return effect()


def test_unlock_by_another_thread_cancels_a_waiting_lock(locks: Locks) -> None:
    locks.holder().lock()
    locks.made[0].unlock()  # so that the blob is there
    waiting = locks.holder(link := Gate())
    got: list[int | None] = []
    waiter = threading.Thread(target=lambda: got.append(waiting.lock()))
    waiter.start()
    assert link.asked.wait(10)
    life = waiting._keeper._life
    assert life is not None
    unlocking = threading.Thread(target=waiting.unlock)
    unlocking.start()
    assert life.given_back.wait(10)
    link.may_land.set()  # the lease is granted, and no caller waits for it
    waiter.join(10)
    unlocking.join(10)
    assert (got, waiting.held) == ([None], False)
    assert locks.holder().try_lock() is not None


def test_a_block_whose_lock_was_unlocked_while_it_waited_is_not_entered(locks: Locks) -> None:
    one, two = locks.holder(), locks.holder()
    one.lock()
    errors: list[str] = []

    def enter() -> None:
        try:
            with two:
                errors.append("it was entered")
        except RuntimeError as error:
            errors.append(str(error))

    waiter = threading.Thread(target=enter)
    waiter.start()
    until(lambda: two._keeper._life is not None)
    two.unlock()
    waiter.join(10)
    assert errors == ["Another thread unlocked this lock while this one waited for it."]


def test_on_lost_that_waits_for_the_unlocking_thread_does_not_deadlock(locks: Locks) -> None:
    mine, told = threading.Lock(), threading.Event()

    def on_lost(reason: str) -> None:
        told.set()
        with mine:
            locks.lost.append(reason)

    one = LeaseLock("one", lambda: MemoryAccount(locks.storage), on_lost=on_lost, now=locks.clock)
    one.lock()
    with mine:
        locks.blob.lease_break(None)
        locks.clock.now += 6.0
        assert told.wait(10)
        unlocking = threading.Thread(target=one.unlock, daemon=True)
        unlocking.start()
        unlocking.join(10)
        assert not unlocking.is_alive()
    until(lambda: bool(locks.lost))


def test_on_lost_may_unlock_and_lock_again(locks: Locks) -> None:
    tokens: list[int | None] = []

    def on_lost(reason: str) -> None:
        one.unlock()
        tokens.append(one.lock(timeout=10))

    one = LeaseLock("one", lambda: MemoryAccount(locks.storage), on_lost=on_lost, now=locks.clock)
    locks.made.append(one)
    one.lock()
    locks.blob.lease_break(None)
    locks.clock.now += 6.0
    until(lambda: tokens == [2])
    assert (one.held, one.lost) == (True, None)


def test_a_late_answer_to_an_earlier_grant_does_not_affect_the_present_one(locks: Locks) -> None:
    one = locks.holder()
    one.lock()
    earlier = one._keeper._life
    assert earlier is not None
    one.unlock()
    assert one.lock() == 2
    one._keeper._end(earlier)
    one._keeper._report(earlier.grant, "an earlier one")
    assert (one.held, one.lost, one.token) == (True, None, 2)


def test_a_waiting_caller_asks_less_and_less_often() -> None:
    """For an hour, at the price that `explain` shows."""
    loop = VirtualLoop()
    storage = MemoryStorage(loop.time)
    blob = storage.beside("locks/one")
    blob.control_create(b'{"token": 0, "nonce": ""}')
    assert blob.lease_acquire("somebody else", 3600 * 2, None) is None
    link = Flaky()
    account = MemoryAccount(storage, link=link)
    lock = LeaseLock("one", lambda: account, now=loop.time)
    waits = lock._keeper._wait(_Life(), account, account.leased_blob("locks/one"), until=3600.0)
    assert loop.run_until_complete(waits) is None
    assert link.carried.count("control.acquire") == pytest.approx(3600 / LOCK_ASK_S, rel=0.1)
    assert (ASK_MOST_S, LEASE_S[0] / 3) == (LOCK_ASK_S, LOCK_RENEW_S)


def test_a_waiter_reports_an_outage_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """It wrote a line for each try, since the lease may have been granted although the answer was lost."""
    loop, link = VirtualLoop(), Flaky()
    link.down = True
    account = MemoryAccount(MemoryStorage(loop.time), link=link)
    lock = LeaseLock("one", lambda: account, now=loop.time)
    with pytest.raises(StorageUnavailable):
        loop.run_until_complete(lock._keeper._wait(_Life(), account, account.leased_blob("locks/one"), until=600.0))
    said = [record for record in caplog.records if "could not be released" in record.getMessage()]
    assert 10 <= len(said) <= 11


# On Azurite.


@pytest.fixture
def account(azurite: Azurite) -> Storage:
    """The settings of an account in which there is nothing yet, not even a container."""
    return settings(azurite.connection_string)


def test_a_lock_on_azurite_creates_its_container_and_its_tokens_rise(account: Storage) -> None:
    one, two = AzureLock(account, "nightly"), AzureLock(account, "nightly")
    with one as token:
        assert (token, two.try_lock()) == (1, None)
        assert AzureLock(account, "another").try_lock() == 1
    assert two.lock(timeout=5) == 2
    two.unlock()


def test_a_signature_for_blobs_alone_opens_a_lock_that_is_there(azurite: Azurite, account: Storage) -> None:
    with AzureLock(account, "nightly"):
        pass
    connect = by_signature(azurite, signature_of(azurite, services="b"))
    with AzureLock(replace(account, connect=Secret(connect)), "nightly") as token:
        assert token == 2


def test_a_wrong_account_key_is_an_error_at_once(account: Storage) -> None:
    assert account.connect is not None
    right = account.connect.value
    key = right.split("AccountKey=")[1].split(";")[0]
    wrong = Storage(Secret(right.replace(key, "d3Jvbmc" + key[7:])), None, account.container, account.table)
    with pytest.raises(AccessDenied):
        AzureLock(wrong, "nightly").lock()


HOLDER = """
import sys, threading, time
from samza_azure.account import Secret, Storage
from samza_azure.library.lease_lock import AzureLock
from samza_azure.machine.clock import boot_time
connect, container, table = sys.argv[1:]
settings = Storage(Secret(connect), None, container, table)
told = threading.Event()
def on_lost(reason):
    print("lost", lock.ends_at, boot_time(), flush=True)
    told.set()
lock = AzureLock(settings, "nightly", on_lost=on_lost)
print("token", lock.lock(), flush=True)
while lock.held:
    time.sleep(0.001)
told.wait(20)  # the thread that tells it was stopped too
print("not held", lock.lost, flush=True)
lock.unlock()
print("given back", flush=True)
"""


def test_a_stopped_holder_loses_the_lock_before_another_can_acquire_it(account: Storage) -> None:
    assert account.connect is not None
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, account.connect.value, account.container, account.table],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "token 1\n"
        os.kill(holder.pid, signal.SIGSTOP)
        other = AzureLock(account, "nightly")
        assert other.lock(timeout=60) == 2
        granted_at = boot_time()
        os.kill(holder.pid, signal.SIGCONT)
        said = holder.communicate(timeout=30)[0].splitlines()
    finally:
        holder.kill()
    lost = next(line.split() for line in said if line.startswith("lost"))
    ends_at, told_at = float(lost[1]), float(lost[2])
    assert ends_at < granted_at < told_at
    assert said[-1] == "given back"
    assert (other.held, other.lost) == (True, None)  # what the old holder did when it came back changed nothing
    other.unlock()

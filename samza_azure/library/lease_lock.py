"""A lock for programs that use this library: one holder in the whole group, by the lease of a blob.

Promised: each grant has a token higher than all before, written into the blob under the lease and the blob's ETag.
Send the token with each write to what the lock protects: if that refuses lower tokens, it is safe in all cases.
A holder knows that it has lost the lock before the service can grant it to another: it counts the lease from before the
request, on a clock that runs on while the machine sleeps, and stops a margin early. `held` reads that clock at each
call, so it is right even in a process that was suspended. A renewal is sent only before that deadline and only with the
ETag of our own grant, so it can never revive a lease that somebody else has had in between.

Not promised: that nobody else holds the lock while you act. The process may be suspended between `held` and the next
line; then only the token helps. No order among waiters. Nothing in samza_azure itself depends on this lock.
"""

import asyncio
import contextlib
import json
import logging
import math
import random
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from samza_azure.account import Storage
from samza_azure.coordinator import Lock
from samza_azure.errors import AccessDenied, ConfigError, CorruptState, StorageUnavailable
from samza_azure.foreign import parsed
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.names import LOCKS
from samza_azure.machine.clock import boot_time
from samza_azure.names import LOCK
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Content, ControlBlob

log = logging.getLogger(__name__)

#: Azure leases for 15 to 60 s.
LEASE_S = (15, 60)
#: The margin before the end of the lease: a tenth of it, for clocks that run at different rates, and half a second.
MARGIN = 0.1
MARGIN_S = 0.5
#: The pause between two tries of a waiter: doubled from the first up to the second, with a quarter of jitter.
ASK_S, ASK_MOST_S = 0.5, 4.0
#: The timeout of a call: at most the first, what is left of the lease or of the caller's timeout; at least the second
#: while waiting for a grant.
CALL_S, LEAST_CALL_S = 3.0, 1.0


class LockStorage(Protocol):
    """The account that a lock needs."""

    def sign_in(self) -> None:
        """Wait for the first token of an identity, if it uses one."""

    def ensure_created(self) -> None:
        """Create what is absent."""

    def refuse_container(self) -> None:
        """Raise `ConfigError` if the container belongs to another table or application."""

    def leased_blob(self, name: str) -> ControlBlob:
        """The lock's blob."""

    def close(self) -> None:
        """Close the synchronous side."""

    async def aclose(self) -> None:
        """Close the asynchronous side."""


@dataclass(slots=True)
class Grant:
    """The lease that was granted to us, and when we requested it."""

    token: int
    lease_id: str
    etag: str
    asked_at: float
    lost: str | None = None


@dataclass(slots=True)
class _Life:
    """One acquisition, from a call of `lock` to the end of its thread. Late events of one do not affect another."""

    thread: threading.Thread | None = None
    loop: asyncio.AbstractEventLoop | None = None
    given_back: threading.Event = field(default_factory=threading.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    grant: Grant | None = None


class LeaseLock(Lock):
    """A `Lock` on a leased blob. Each grant has a thread of its own, which renews it until it is released.

    `on_lost` is called with the reason, on another thread that nobody waits for: it may block, and may call `unlock`.
    It may still run when an `unlock` elsewhere has returned. A lock whose object is gone is released, unless `on_lost`
    refers to the object and so keeps it.
    """

    def __init__(
        self,
        name: str,
        storage: Callable[[], LockStorage],
        *,
        lease_s: int = LEASE_S[0],
        on_lost: Callable[[str], None] = lambda reason: None,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._keeper = _Keeper(name, storage, lease_s, on_lost, now)
        # At the end of the process the lease ends by itself; nothing waits for its release.
        weakref.finalize(self, self._keeper.drop).atexit = False

    def lock(self, timeout: float | None = None) -> int | None:
        return self._keeper.lock(timeout)

    def unlock(self) -> None:
        self._keeper.unlock()

    @property
    def token(self) -> int | None:
        return self._keeper.token

    @property
    def held(self) -> bool:
        return self._keeper.held

    @property
    def lost(self) -> str | None:
        return self._keeper.lost

    @property
    def ends_at(self) -> float:
        """When the lock ends without a further renewal, in seconds of CLOCK_BOOTTIME."""
        return self._keeper.ends_at


class _Keeper:
    """What a lock's threads refer to: not the lock itself, so that it can be gone while they run."""

    def __init__(
        self,
        name: str,
        storage: Callable[[], LockStorage],
        lease_s: int,
        on_lost: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        if not LEASE_S[0] <= lease_s <= LEASE_S[1]:
            raise ConfigError(f"lease_s is {lease_s}, but Azure leases for 15 to 60 s. Use a number in that range.")
        self._name, self._storage, self._lease_s, self._on_lost = (
            f"{LOCKS}{LOCK.checked(name)}",
            storage,
            lease_s,
            on_lost,
        )
        self._now, self._rate_limit = now, LogRateLimit(now)
        self._is_checked = False  # whether the container was seen to belong to us, or to nobody
        self._life: _Life | None = None
        self._guard = threading.Lock()

    def lock(self, timeout: float | None = None) -> int | None:
        answer: Future[int | None] = Future()
        until = None if timeout is None else self._now() + timeout
        life = _Life()
        with self._guard:
            if self._life is not None:
                raise RuntimeError(f"This object holds the lock {self._name} or waits for it. Call unlock() first.")
            self._life = life
            arguments = life, until, answer
            life.thread = threading.Thread(target=self._live, args=arguments, name=self._name, daemon=True)
            life.thread.start()
        token = None
        try:
            token = answer.result()
        finally:
            if token is None:
                self._end(life)
        return token

    def unlock(self) -> None:
        with self._guard:  # so that a `lock` on another thread has started its own thread, or not begun
            life = self._life
        if life is not None:
            self._end(life)

    @property
    def token(self) -> int | None:
        grant = self._grant
        return grant.token if grant is not None and self._holds(grant) else None

    @property
    def held(self) -> bool:
        grant = self._grant
        return grant is not None and self._holds(grant)

    @property
    def lost(self) -> str | None:
        grant = self._grant
        if grant is None or self._holds(grant):
            return None
        return grant.lost or _TOO_LATE

    @property
    def ends_at(self) -> float:
        """When the lock ends without a further renewal, in seconds of CLOCK_BOOTTIME."""
        grant = self._grant
        return 0.0 if grant is None else self._ends_at(grant)

    @property
    def _grant(self) -> Grant | None:
        life = self._life
        return None if life is None else life.grant

    def _holds(self, grant: Grant) -> bool:
        return grant.lost is None and self._now() < self._ends_at(grant)

    def _ends_at(self, grant: Grant) -> float:
        return grant.asked_at + self._lease_s * (1 - MARGIN) - MARGIN_S

    def drop(self) -> None:
        """Release the lock, because nobody can: its object is gone. Waits for nothing; any thread may be here."""
        life = self._life
        if life is not None and life.grant is not None and not life.given_back.is_set():
            log.warning("The lock %s is released: its object is gone. Keep it, or call unlock().", self._name)
        if life is not None:
            self._ask_back(life)

    def _ask_back(self, life: _Life) -> None:
        life.given_back.set()
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            if life.loop is not None:
                life.loop.call_soon_threadsafe(life.news.set)

    def _end(self, life: _Life) -> None:
        self._ask_back(life)
        if life.thread is not None:
            life.thread.join()
        with self._guard:
            if self._life is life:
                self._life = None

    def _live(self, life: _Life, until: float | None, answer: Future[int | None]) -> None:
        try:
            asyncio.run(self._run(life, until, answer))
        except BaseException as error:
            if answer.done():
                log.exception("The lock %s failed", self._name)
                self._report(life.grant, f"{type(error).__name__}: {error}")
            else:
                answer.set_exception(error)

    async def _run(self, life: _Life, until: float | None, answer: Future[int | None]) -> None:
        life.loop = asyncio.get_running_loop()
        storage = self._storage()
        try:
            with contextlib.suppress(StorageUnavailable):  # then each call below says so, until the time is over
                await asyncio.to_thread(storage.sign_in)
            blob = storage.leased_blob(self._name)
            # Of the container alone: a lock that is there needs no table, and perhaps no right to read one.
            check = partial(asyncio.to_thread, storage.refuse_container)
            grant = life.grant = await self._wait(life, storage, blob, until, check)
            answer.set_result(None if grant is None else grant.token)
            if grant is not None:
                await self._keep(life, blob, grant)
        finally:
            await storage.aclose()
            storage.close()

    async def _wait(
        self,
        life: _Life,
        storage: LockStorage,
        blob: ControlBlob,
        until: float | None,
        check: Callable[[], Awaitable[object]] | None = None,
    ) -> Grant | None:
        """Try until the lock is granted, the time is over, or `unlock` is called, also while the account does not
        answer. `check` is made once in the life of this object, before the first try."""
        pause_s = ASK_S
        while not life.given_back.is_set():
            trouble: StorageUnavailable | None = None
            call_s = CALL_S if until is None else min(CALL_S, max(until - self._now(), LEAST_CALL_S))
            try:
                if check is not None and not self._is_checked:
                    await check()
                    self._is_checked = True
                grant = await self._ask(storage, blob, call_s)
                if grant is not None and life.given_back.is_set():  # unlocked meanwhile: the caller must not get it
                    await self._give_back(blob, grant.lease_id, call_s)
                    return None
                if grant is not None:
                    return grant
            except StorageUnavailable as error:
                trouble = error
            left = math.inf if until is None else until - self._now()
            if left <= 0:
                if trouble is not None:
                    raise trouble
                return None
            await self._pause(life, min(left, pause_s * random.uniform(0.75, 1.25)))
            pause_s = min(pause_s * 2, ASK_MOST_S)
        return None

    async def _ask(self, storage: LockStorage, blob: ControlBlob, call_s: float) -> Grant | None:
        """One try: lease the blob, read it under that lease, write the next token. None: another holds the lock."""
        lease_id, asked_at = str(uuid.uuid4()), self._now()
        try:
            answer = await blob.acquire(lease_id, seconds=self._lease_s, timeout=call_s)
            if isinstance(answer, Missing):
                await asyncio.to_thread(storage.ensure_created)
                await blob.create(_content(0, lease_id), timeout=call_s)
                answer = await blob.acquire(lease_id, seconds=self._lease_s, timeout=call_s)
            if answer is not None:
                return None
            grant = await self._take_token(blob, lease_id, asked_at, call_s)
            if grant is None:
                await self._give_back(blob, lease_id, call_s)
            return grant
        except BaseException:
            # The lease may have been granted although the answer was lost.
            await self._give_back(blob, lease_id, call_s)
            raise

    async def _take_token(self, blob: ControlBlob, lease_id: str, asked_at: float, call_s: float) -> Grant | None:
        found = await blob.read(lease_id=lease_id, timeout=call_s)
        if not isinstance(found, Content):
            return None
        token = _token(found.data, self._name) + 1
        etag = await blob.write(_content(token, lease_id), etag=found.etag, lease_id=lease_id, timeout=call_s)
        if isinstance(etag, Refused):
            return None
        grant = Grant(token, lease_id, etag, asked_at)
        return grant if self._now() < self._ends_at(grant) else None

    async def _keep(self, life: _Life, blob: ControlBlob, grant: Grant) -> None:
        """Renew until the lock is released; if that fails, report it before the lock can be granted to another."""
        next_try = grant.asked_at + self._lease_s / 3
        while True:
            now = self._now()
            if now >= self._ends_at(grant):
                self._report(grant, _TOO_LATE)
                break
            if now >= next_try:
                refusal = await self._renew(blob, grant)
                if refusal is not None:
                    why = f"The lease was refused its renewal ({refusal}): it was broken, or the blob changed."
                    self._report(grant, why)
                    break
                next_try = max(grant.asked_at + self._lease_s / 3, now + ASK_S)
            # Only short pauses: after the machine slept, the clock has jumped, and this must be noticed soon.
            if await self._pause(life, min(next_try - self._now(), self._ends_at(grant) - self._now(), ASK_S)):
                break
        await self._give_back(blob, grant.lease_id, CALL_S)

    async def _renew(self, blob: ControlBlob, grant: Grant) -> str | None:
        """Renew the lease; return the reason if the lease is refused. Without an answer, and while the account refuses
        us, the deadline stays."""
        asked_at = self._now()
        left = self._ends_at(grant) - asked_at
        if left <= 0:
            return None
        try:
            answer = await blob.renew(grant.lease_id, etag=grant.etag, timeout=min(CALL_S, left))
        except (StorageUnavailable, AccessDenied):
            return None
        match answer:
            case Refused(code=code):
                return code
            case Missing():
                return "BlobNotFound"
        if self._now() < self._ends_at(grant):
            grant.asked_at = asked_at
        return None

    async def _give_back(self, blob: ControlBlob, lease_id: str, call_s: float) -> None:
        """Try to release once. If that fails, the lease expires by itself."""
        try:
            await blob.release(lease_id, timeout=call_s)
        except (StorageUnavailable, AccessDenied) as error:
            if self._rate_limit.is_due("release"):
                log.warning("A lock's lease could not be released, and expires by itself: %s", error)

    async def _pause(self, life: _Life, seconds: float) -> bool:
        """Wait. True as soon as the lock is released."""
        try:
            async with asyncio.timeout(max(seconds, 0.001)):
                await life.news.wait()
        except TimeoutError:
            pass
        return life.given_back.is_set()

    def _report(self, grant: Grant | None, reason: str) -> None:
        if grant is not None and grant.lost is None:
            grant.lost = reason
            log.warning("Lost the lock %s: %s", self._name, reason)
            # `unlock` waits for our thread, and its caller may hold what `on_lost` waits for; hence another thread.
            threading.Thread(target=self._on_lost, args=(reason,), name=f"{self._name} lost", daemon=True).start()


_TOO_LATE = "The lease was not renewed in time."


class AzureLock(LeaseLock):
    """A lock in the application's container.

    `on_lost` is called with the reason, on another thread, if the lock is lost without `unlock`. A lock whose object is
    gone is released.

    Example:
        with AzureLock(Config.load("job.toml").storage, "nightly-report") as token:
            write_report(token)  # what stores the report refuses a lower token

    Raises:
        ConfigError: the name or `lease_s` (15 to 60) is not valid.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        *,
        lease_s: int = LEASE_S[0],
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        super().__init__(name, lambda: Account.from_config(storage), lease_s=lease_s, on_lost=on_lost)


def _content(token: int, nonce: str) -> bytes:
    return json.dumps({"token": token, "nonce": nonce}).encode()


def _token(data: bytes, name: str) -> int:
    try:
        return int(parsed(data)["token"])
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise CorruptState("The blob is not a lock of samza-azure", blob=name) from error

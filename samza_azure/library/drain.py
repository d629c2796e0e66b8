"""Drains for programs without Spark: request one, wait for one.

A notification is a request row of the application's table; once the leader has accepted it, it is in the control blob.
`DrainNotifications` writes the rows and reads both; `DrainMonitor` waits until a run is drained. If no processor has
ever coordinated, there is no control blob, and the rows alone decide, as in Samza's metadata store.

A drain can be cancelled until its FLUSH, so the monitor calls back at FLUSH, not at FREEZE. A member of the group is
called at each step, and sooner, through `JobCoordinatorListener.on_drain`.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.notification import DrainNotification, from_fields
from samza_azure.group.rows import REQUESTS, RequestKind
from samza_azure.host.asking import write_drain
from samza_azure.host.status import GroupAccount, control_of
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.messages import DrainStep
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Row
from samza_azure.storage.limits import HINTS, hint_name, is_drain_hint

log = logging.getLogger(__name__)
T = TypeVar("T")

#: The default interval of a monitor in seconds, as in Samza. No key of the job file sets it.
POLL_S = 60.0


class DrainAccount(GroupAccount, Protocol):
    """The account that is needed here: a storage account, or `samza_azure.storage.memory.MemoryAccount`."""

    def ensure_created(self, *, binds: bool = True) -> None: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FoundNotifications:
    """The notifications, in the order of their keys, and the number of rows that are not valid ones."""

    notifications: tuple[DrainNotification, ...]
    malformed: int


class DrainNotifications:
    """The drain notifications of one application. Each call reads the storage.

    Thread-safe. Do not call it from a running event loop.

    Raises:
        ConfigError: there is no account, or, at the first call, container or table belong to another job.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        notifications = DrainNotifications.of(Config.load("job.toml"))
        print(notifications.write())  # drain the run in progress
        for each in notifications.read().notifications:
            if notifications.wanted(each.run_id) is None:  # not certain yet
                print(notifications.clean(each.run_id))  # or all of them: clean_all()
    """

    def __init__(self, account: DrainAccount) -> None:
        if account is None:
            raise ConfigError("DrainNotifications needs an account: DrainNotifications.of(Config.load('job.toml')).")
        self._account = account
        self._lock = threading.Lock()  # the account's asynchronous side serves one event loop at a time
        self._is_created = False
        self._rate_limit = LogRateLimit()

    @classmethod
    def of(cls, config: Config) -> "DrainNotifications":
        """The notifications of the application that a job file describes. Sends nothing yet."""
        return cls(Account.from_config(config.storage))

    def write(self, run_id: str = "") -> DrainNotification:
        """Request the drain of a run; without an id, of the run in progress.

        Raises:
            ConfigError: no run is in progress, and none is named.
        """

        async def ask() -> DrainNotification:
            wanted, control = run_id, None
            if wanted:
                with suppress(SamzaAzureError):  # it only decides whether to write a hint
                    control = await self._control()
            else:
                control = await self._control()
                if control is None or control.phase in (RunPhase.NONE, RunPhase.DRAINED):
                    raise ConfigError("No run is in progress, so the run to drain must be named: write(run_id).")
                wanted = control.run_id
            return await write_drain(self._account.rows(), control, wanted)

        return self._run(ask)

    def read(self) -> FoundNotifications:
        """All requests for drains, obeyed or not; the leader deletes them after a day. Invalid rows are counted."""

        async def look() -> FoundNotifications:
            return self._found(await self._drains())

        return self._run(look)

    def wanted(self, run_id: str) -> DrainNotification | None:
        """The drain of this run if it is certain: the run flushes, or is drained. None if there is none, or if it may
        still be cancelled. Without a control blob, any request for the drain of this run is certain.
        """

        async def look() -> DrainNotification | None:
            control = await self._control()
            if control is None:
                found = self._found(await self._drains()).notifications
                return next((each for each in found if each.run_id == run_id), None)
            return _certain(control, run_id)

        return self._run(look)

    def clean(self, run_id: str) -> int:
        """Delete the requests for the drain of this run, and return their number. A drain that has begun goes on."""
        return self._run(lambda: self._delete(lambda values: values.get("runId") == run_id))

    def clean_all(self) -> int:
        """Delete all requests for drains, also invalid ones, and return their number."""
        return self._run(lambda: self._delete(lambda values: True))

    async def _delete(self, goes: Callable[[Mapping[str, Any]], bool]) -> int:
        table, gone = self._account.rows(), set[str]()
        for row in await self._drains():
            if goes(row.values):
                answer = await table.delete(REQUESTS, row.key, etag=row.etag, timeout=CALL_S)
                if answer is None:  # refused: the leader has just answered it, and will delete it
                    gone.add(row.key)
        for hint in await table.query(HINTS, timeout=CALL_S) if gone else ():
            name = hint_name(hint.key)
            if is_drain_hint(name) and name.rpartition("/")[2] in gone:
                await table.delete(HINTS, hint.key, etag=hint.etag, timeout=CALL_S)
        return len(gone)

    async def _control(self) -> Control | None:
        return await control_of(self._account)

    async def _drains(self) -> list[Row]:
        rows = await self._account.rows().query(REQUESTS, timeout=CALL_S)
        return [row for row in rows if row.values.get("kind") == RequestKind.DRAIN]

    def _found(self, rows: Iterable[Row]) -> FoundNotifications:
        notifications, malformed = [], 0
        for row in rows:
            try:
                found = from_fields(row.values)
                if found.uuid != row.key:
                    raise ValueError(f"its uuid is that of another request, {found.uuid}")
                notifications.append(found)
            except ValueError as error:
                if self._rate_limit.is_due(row.key):
                    log.warning("Request %.80s is skipped: %s", row.key, error)
                malformed += 1
        return FoundNotifications(tuple(notifications), malformed)

    def _run(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def once() -> T:
            try:
                return await ask()
            finally:
                await self._account.aclose()

        with self._lock:
            if not self._is_created:
                self._account.ensure_created(binds=False)
                self._is_created = True
            return asyncio.run(once())


def _certain(control: Control, run_id: str) -> DrainNotification | None:
    if control.drain is not None and control.drain.run_id == run_id:
        return control.drain if control.is_final else None
    if run_id not in control.past:
        return None
    past = next((each for each in reversed(control.drains) if each.run_id == run_id), None)
    return past or DrainNotification("", run_id, step=DrainStep.FLUSH, history=("DRAINED",))


class MonitorState(StrEnum):
    """The state of a monitor."""

    INIT = "INIT"  # not started, or it found a drain at once and never began to wait
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class DrainMonitor:
    """Calls back once when it is certain that a run drains: at FLUSH, after which a drain cannot be cancelled.

    Promised: at most one call, even if it raises. Invalid rows and errors of the storage do not end the monitor:
    `failures` counts the reads that failed, `last_error` is the last error.
    Not promised: a call sooner than the next read, which is made every `interval_s` seconds. Nor that no call follows
    `stop`: if a read has just found the drain, the call may begin after `stop` has returned.

    Example:
        monitor = DrainMonitor(DrainNotifications.of(Config.load("job.toml")), run_id, interval_s=5.0)
        monitor.register_drain_callback(lambda drain: print(drain))
        monitor.start()
        if monitor.state == "RUNNING":
            monitor.stop()
    """

    def __init__(self, notifications: DrainNotifications, run_id: str, interval_s: float = POLL_S) -> None:
        """`run_id` is `app.run.id`, or `run_id` of the coordinator's job model.

        Raises:
            ConfigError: an argument is missing, or `interval_s` is no number above 0.
        """
        if notifications is None:
            raise ConfigError("A DrainMonitor needs DrainNotifications: DrainNotifications.of(config).")
        if not run_id:
            raise ConfigError("A DrainMonitor needs the id of the run: app.run.id, or run_id of the job model.")
        if isinstance(interval_s, bool) or not isinstance(interval_s, int | float) or not math.isfinite(interval_s):
            raise ConfigError(f"interval_s is {interval_s!r}; it must be a number of seconds.")
        if interval_s <= 0:
            raise ConfigError(f"interval_s is {interval_s:g}; it must be greater than 0.")
        self._notifications, self._run_id, self._interval_s = notifications, run_id, interval_s
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._rate_limit = LogRateLimit()
        self._callback: Callable[[DrainNotification], None] | None = None
        self._is_started = False
        self._called = False
        self._state = MonitorState.INIT
        self.failures = 0
        self.last_error: Exception | None = None

    @property
    def state(self) -> MonitorState:
        """INIT, RUNNING or STOPPED."""
        return self._state

    def register_drain_callback(self, callback: Callable[[DrainNotification], None]) -> bool:
        """Set the function to call. Return False, without effect, if there is one already or the monitor runs."""
        with self._lock:
            if self._callback is not None or self._state is not MonitorState.INIT:
                return False
            self._callback = callback
            return True

    def start(self) -> None:
        """Read once. If the run is drained already, call back at once; the state stays INIT. Otherwise wait in the
        background. Later calls do nothing.

        Raises:
            ConfigError: no callback is registered.
        """
        with self._lock:
            if self._callback is None:
                raise ConfigError("Register a callback before start(): register_drain_callback(callback).")
            if self._state is not MonitorState.INIT or self._called:
                return
            self._is_started = True
        drain = self._look()
        if drain is not None:
            self._call(drain, MonitorState.INIT)
            return
        with self._lock:
            if self._state is not MonitorState.INIT or self._called:
                return  # started or stopped by another thread, or called back, meanwhile
            self._state = MonitorState.RUNNING
        threading.Thread(target=self._watch, name="drain-monitor", daemon=True).start()

    def stop(self) -> None:
        """Stop waiting. Call it from any thread, or from the callback; it does nothing before `start`. Idempotent."""
        with self._lock:
            if self._is_started and not self._called:  # also while `start` makes its first read
                self._state = MonitorState.STOPPED
                self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_s):
            drain = self._look()
            if drain is not None:
                self._call(drain, MonitorState.RUNNING)
                return

    def _look(self) -> DrainNotification | None:
        """Count any error and go on: one bad answer must not silently end the monitor."""
        try:
            return self._notifications.wanted(self._run_id)
        except Exception as error:  # noqa: BLE001
            self.failures += 1
            self.last_error = error
            if self._rate_limit.is_due("look"):
                log.warning("Whether run %s is drained cannot be read: %s", self._run_id, error)
            return None

    def _call(self, drain: DrainNotification, expected: MonitorState) -> None:
        with self._lock:
            if self._called or self._state is not expected or self._callback is None:
                return
            self._called = True
            if expected is MonitorState.RUNNING:
                self._state = MonitorState.STOPPED
            callback = self._callback
        self._stopped.set()
        try:
            callback(drain)  # without the lock: it may call `stop`
        except Exception:
            log.exception("The callback of the drain of run %s failed; it is not called again", self._run_id)


__all__ = [
    "DrainMonitor",
    "DrainNotifications",
    "FoundNotifications",
    "MonitorState",
]

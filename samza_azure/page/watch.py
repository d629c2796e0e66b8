"""Reads the account once for all browsers that show the page, and only while there are any.

One look is two calls, for the control blob and the members' rows; a blob that has not changed is not sent again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from samza_azure.config import Config
from samza_azure.errors import SamzaAzureError, StateLost
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control
from samza_azure.group.rows import MEMBERS, ProcessorRow
from samza_azure.group.view import View
from samza_azure.host.last_day import EVERY_S, read_record
from samza_azure.host.status import (
    SeenSilent,
    SeenWaiting,
    Silence,
    control_of,
    document,
    patience_s,
    processors,
)
from samza_azure.machine.clock import boot_time
from samza_azure.outcomes import Missing, NotModified
from samza_azure.page.day import day
from samza_azure.page.document import GAP_S, POINT_S, Lines, away, made, noted
from samza_azure.page.verdict import JobState, without_word
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Content

__all__ = ["CALLS", "Watcher", "lines_of", "note"]

log = logging.getLogger(__name__)

#: The calls of one look at the account, for `explain`.
CALLS = 2


class _ContainerGone(SamzaAzureError):
    """The job's table is there and its container is not."""


def lines_of(config: Config) -> Lines:
    """Empty curves. A page that reads once a heartbeat leaves no gap in them."""
    return Lines(max(GAP_S, 3 * config.coordinator.timing.heartbeat_s))


async def note(lines: Lines, view_of: Callable[[], View | None]) -> None:
    """Draw the curves on from what a processor knows, without a call, for as long as this is awaited."""
    while True:
        try:
            if (view := view_of()) is not None:
                await asyncio.to_thread(noted, lines, view, boot_time(), time.time_ns() // 1_000_000)
        except Exception:
            log.exception("The curves of the page have no point now; the next one is in %d s.", POINT_S)
        await asyncio.sleep(POINT_S)


class Watcher:
    """The page's document, kept up to date on the event loop of its user."""

    def __init__(self, config: Config, account: Account | None = None, lines: Lines | None = None) -> None:
        """`lines` may have points already, and get some from elsewhere."""
        self._config, self._timing = config, config.coordinator.timing
        self._account = account or Account.from_config(config.storage)
        self._etag: str | None = None
        self._control: Control | None = None
        self._is_new = False  # there is no control blob, and nothing that one has left
        self._silent = SeenSilent(self._timing.heartbeat_s)
        self._lines = lines or lines_of(config)
        self._waiting = SeenWaiting()
        self._shown: dict[str, Any] | None = None  # what was read last
        self._failing_since: float | None = None
        self._looked_at = -1e9
        self._look = asyncio.Lock()
        self._news = asyncio.Condition()
        self._watched = 0
        self._day: dict[str, Any] = {}
        self._day_read_at = -1e9
        self._reading_day = asyncio.Lock()
        self.version = 0
        self.document: dict[str, Any] = away(config.app.name, JobState.LOOKING, "The account is being read.", None)

    async def state(self) -> dict[str, Any]:
        """The document, read anew if it is older than a heartbeat."""
        if boot_time() >= self._looked_at + self._timing.heartbeat_s:
            await self.look()
        return self.document

    async def day(self) -> dict[str, Any]:
        """The record of the last day, read anew at most once a minute."""
        async with self._reading_day:
            if boot_time() >= self._day_read_at + EVERY_S:
                now_ms = time.time_ns() // 1_000_000
                record, _ = await read_record(self._account.rows(), now_ms)
                self._day, self._day_read_at = await asyncio.to_thread(day, record), boot_time()
            return self._day

    async def look(self) -> None:
        """Read once; calls at the same time share one read."""
        begun = boot_time()
        async with self._look:
            if self._looked_at >= begun:
                return
            started = boot_time()
            try:
                self.document = await self._read()
                self._failing_since = None
            except SamzaAzureError as error:
                self.document = await self._unread(error, started)
            except Exception as error:
                log.exception("The page could not show what was read.")
                text = f"This page could not show what it read ({type(error).__name__}: {error}). Its log has more."
                self.document = away(self._config.app.name, JobState.AWAY, text, self._shown)
            self._looked_at = boot_time()
            self.version += 1
        async with self._news:
            self._news.notify_all()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Callable[[int, float], Any]]:
        """Read once per heartbeat while at least one caller is inside. Yields a function that waits for a version."""
        self._watched += 1
        reading = asyncio.create_task(self._go_on()) if self._watched == 1 else None
        if reading is not None:
            self._reading = reading
        try:
            yield self._later
        finally:
            self._watched -= 1
            if not self._watched:
                self._reading.cancel()

    async def close(self) -> None:
        """Close the connections."""
        await self._account.aclose()
        self._account.close()

    async def _go_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._timing.heartbeat_s)

    async def _later(self, version: int, seconds: float) -> bool:
        """Wait until there is a later version than `version`; false if there is none within `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: self.version > version)
        return self.version > version

    async def _read(self) -> dict[str, Any]:
        found, rows = await asyncio.gather(
            self._account.control_blob().read(timeout=CALL_S, unless_etag=self._etag),
            self._account.rows().query(MEMBERS, timeout=CALL_S),
        )
        match found:
            case Content(data=data, etag=etag):
                self._control, self._etag, self._is_new = control_blob.decode(data), etag, False
            case NotModified():
                pass
            case Missing(container=True):
                raise _ContainerGone(
                    f"The container {self._config.storage.container} is gone, and with it the state of the job. Stop "
                    "whatever restarts processors, then restore it: docs/operate.md, Disaster."
                )
            case Missing():
                # Whether one was deleted is asked once: what is left later comes after another one, which is seen.
                self._control, self._etag = None if self._is_new else await control_of(self._account), None
                self._is_new = self._control is None
        members = processors(rows)
        silent = self._silent.note(members, boot_time())
        # On a thread: for a large fleet this takes long.
        self._shown = await asyncio.to_thread(self._made, self._control, members, silent)
        return self._shown

    def _made(self, control: Control | None, members: list[ProcessorRow], silent: dict[str, Silence]) -> dict[str, Any]:
        waits_s, gone = patience_s(self._config.task.shutdown_ms), without_word(silent, self._timing)
        shown = document(self._config.app.name, control, members, waits_s, gone)
        self._waiting.note(shown, boot_time())
        found: dict[str, Any] = made(shown, silent, self._timing, self._lines, time.time_ns() // 1_000_000)
        return found

    async def _unread(self, error: SamzaAzureError, started: float) -> dict[str, Any]:
        """The document after a failed read: there is no job, or it is gone, or the account cannot be read."""
        self._silent.forget()
        name, storage = self._config.app.name, self._config.storage
        text = f"The account cannot be read: {error} Reading is retried."
        if isinstance(error, _ContainerGone | StateLost):
            text = str(error)
        elif boot_time() < started + CALL_S and await self._is_absent():
            if self._shown is None:
                text = f"There is nothing of {name} in this account yet: `samza-azure run` or `produce` creates it."
                return away(name, JobState.EMPTY, text, None)
            lost = f"The container {storage.container} or the table {storage.table}"
            text = f"{lost} is gone. Stop whatever restarts processors, then see docs/operate.md, Disaster."
        self._failing_since = self._failing_since or started
        return away(name, JobState.AWAY, text, self._shown, boot_time() - self._failing_since)

    async def _is_absent(self) -> bool:
        """Whether the account says that the job's container or table does not exist."""
        with suppress(SamzaAzureError):
            return not await asyncio.to_thread(self._account.exists)
        return False

"""Copies of the control blob in the same container, for the day on which it is lost or an older one is put back.

The leader keeps one whenever the assignment, the phase of the run or the step of a drain has changed. A failed one is
tried again. Two things wait for a copy: the clean-up of a drained run, since without the copy of the drain's last step
`recover` would miss the logs that are deleted; and a leader that ends, though not for long. A crash between that step
and its copy loses nothing: the logs are there, and the copy of FLUSH comes to the same end. No processor reads a copy:
`samza-azure recover` is the only reader. The newest `KEPT` stay. Each costs two calls that are priced as writes, one to
put it and one to list the older ones, and the bytes of the control blob, some kilobytes per hundred tasks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control, RunPhase, milestone
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.names import COPIES, copy_name
from samza_azure.storage.interface import Blobs

log = logging.getLogger(__name__)

#: How many copies are kept. One would do; the others are for one that is damaged, and for people.
KEPT = 10
#: A copy that could not be written is tried again after this time, in seconds.
AGAIN_S = 5.0


class Copies:
    """Keeps copies of what a leader publishes: the newest value, one call after the other."""

    def __init__(self, keep: Callable[[Control], Awaitable[None]], rate_limit: LogRateLimit) -> None:
        self._keep, self._rate_limit = keep, rate_limit
        self._kept: tuple[str, ...] = ()
        self._next: Control | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()  # the newest value is kept, or refused
        self._is_over.set()

    def published(self, control: Control) -> None:
        """A write of the control blob was accepted."""
        if control.phase is RunPhase.NONE or milestone(control) == self._kept:
            return
        self._next, self._kept = control, milestone(control)
        self._is_over.clear()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while (control := self._next) is not None:
            try:
                await self._keep(control)
            except SamzaAzureError as error:
                # Whoever calls the storage notices that it is away. What is refused may be the copies alone.
                if not isinstance(error, StorageUnavailable):
                    self._is_over.set()
                    if self._rate_limit.is_due("copies"):
                        log.warning(
                            "No copy of control.json can be kept. The fleet works on, but should control.json be lost, "
                            "samza-azure recover would go on from an older copy, or from none. %s",
                            error,
                        )
                await asyncio.sleep(AGAIN_S)
            else:
                self._next = None if self._next is control else self._next
        self._is_over.set()

    async def kept(self, control: Control) -> None:
        """Wait until a copy of this value, or of a later one, is kept, however long an outage lasts. A refusal of any
        other kind may last forever, so it ends the wait; the log says it.
        """
        self.published(control)
        await self._is_over.wait()

    async def settle(self, most_s: float) -> None:
        """Wait until the newest value is kept, for at most so many seconds."""
        if self._keeping is not None:
            await asyncio.wait({self._keeping}, timeout=most_s)

    def close(self) -> None:
        """Give up what is under way."""
        if self._keeping is not None:
            self._keeping.cancel()


def keep_copy(blobs: Blobs, control: Control) -> None:
    """Write a copy, and delete the oldest of the others. Idempotent.

    Later copies than this are not of this value's past: an older blob was put back, or they are another group's. Only
    `recover` can tell, so they stay, and this one does, too.
    """
    ours = copy_name(control.revision)
    blobs.put(ours, control_blob.encode(control))
    if old := [name for name, _ in blobs.list(COPIES) if name != ours][: 1 - KEPT]:
        with suppress(AccessDenied):  # the copy is kept, and older ones harm nobody
            blobs.delete_many(old[:KEPT])

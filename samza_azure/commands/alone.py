"""Exclusive use of the control blob by a command, while no processor works on the job.

No processor leads without the blob's lease, so no run begins while a command holds it. Live processors are recognised
as in the group: their rows change. A processor that starts meanwhile waits; if it breaks the lease, the next write here
fails.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from samza_azure.commands.reach import POLL_S
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control
from samza_azure.group.timing import LEASE_S
from samza_azure.host.status import read
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Content, ControlBlob, Missing, Refused, Rows

T = TypeVar("T")

RENEW_S = LEASE_S / 4


@dataclass(slots=True)
class Held:
    """The group's storage and, if there is a control blob, its content, under our lease."""

    blob: ControlBlob
    table: Rows
    control: Control | None
    etag: str = ""
    lease_id: str = ""
    is_lost: bool = False

    def check(self) -> None:
        """Raise `ConfigError` if a processor has taken the lease."""
        if self.is_lost:
            raise ConfigError("A processor has started meanwhile. Stop it, and run this command again.")

    async def write(self, control: Control) -> None:
        """Replace the blob's content."""
        self.check()
        assert self.control is not None
        fresh = replace(control, revision=self.control.revision + 1, nonce=uuid.uuid4().hex)
        answer = await self.blob.write(
            control_blob.encode(fresh), etag=self.etag, lease_id=self.lease_id, timeout=CALL_S
        )
        if isinstance(answer, Refused):
            self.is_lost = True
            self.check()
        self.control, self.etag = fresh, str(answer)


def alone(config: Config, account: Account, act: Callable[[Held], Awaitable[T]]) -> T:
    """Run `act` while no processor runs; raise `ConfigError` with the names of those that do."""

    async def once() -> T:
        try:
            blob, table = account.control_blob(), account.rows()
            await _refuse_if_anybody_lives(config, blob, table)
            held = await _taken(blob, table)
            renewing = asyncio.create_task(_renew(held))
            try:
                return await act(held)
            finally:
                renewing.cancel()
                if held.lease_id:
                    with suppress(SamzaAzureError):  # the lease ends by itself
                        await blob.release(held.lease_id, timeout=CALL_S)
        finally:
            await account.aclose()

    return asyncio.run(once())


async def _refuse_if_anybody_lives(config: Config, blob: ControlBlob, table: Rows) -> None:
    """Raise `ConfigError` if a row changes within the time after which a leader would mark its processor dead."""
    timing = config.coordinator.timing
    seen: dict[str, str] = {}
    began = time.monotonic()
    while True:
        _, rows = await read(blob, table)
        living = [row for row in rows if row.alive]
        if running := [row.processor for row in living if seen.get(row.incarnation, row.etag) != row.etag]:
            raise ConfigError(
                f"Processors of {config.app.name!r} run: {', '.join(running)}. Stop them first: samza-azure stop "
                f"{config.path.name} --wait, or drain the run."
            )
        if not living or time.monotonic() > began + timing.heartbeat_timeout_s:
            return
        if not seen:
            names = ", ".join(row.processor for row in living)
            say(f"{names} may have died; waiting {timing.heartbeat_timeout_s:g} s to find out.")
        seen = {row.incarnation: row.etag for row in living} | seen
        await asyncio.sleep(POLL_S)


async def _taken(blob: ControlBlob, table: Rows) -> Held:
    """Acquire the lease of the blob in the version just read. Break the lease of a dead leader."""
    found = await blob.read(timeout=CALL_S)
    if isinstance(found, Missing):
        return Held(blob, table, None)
    assert isinstance(found, Content)
    lease_id = str(uuid.uuid4())
    answer = await blob.acquire(lease_id, seconds=LEASE_S, timeout=CALL_S, etag=found.etag)
    if isinstance(answer, Refused) and answer.code == "LeaseAlreadyPresent":
        await blob.break_now(timeout=CALL_S, etag=found.etag)
        answer = await blob.acquire(lease_id, seconds=LEASE_S, timeout=CALL_S, etag=found.etag)
    if answer is not None:
        raise ConfigError(
            "The control blob is leased: a processor or another command works on this job. Try again later."
        )
    return Held(blob, table, control_blob.decode(found.data), found.etag, lease_id)


async def _renew(held: Held) -> None:
    while held.lease_id and not held.is_lost:
        await asyncio.sleep(RENEW_S)
        with suppress(SamzaAzureError):  # the next renewal may succeed
            held.is_lost = await held.blob.renew(held.lease_id, timeout=CALL_S) is not None

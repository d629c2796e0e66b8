"""Exclusive use of the control blob by a command, while no processor works on the job.

No processor leads without the blob's lease, so no run begins while a command holds it. Live processors are recognised
as in the group: their rows change. A processor that starts meanwhile waits; if it breaks the lease, the next write here
fails.

Two commands at once: a blob that names no leader and is leased belongs to a command, and is left to it. A command that
finds the lease of a dead leader ends it and writes at once that nobody leads; of two that do so at the same moment, one
is refused by the ETag.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from samza_azure.commands.connect import POLL_S
from samza_azure.commands.job import in_shell
from samza_azure.commands.terminal import say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, CorruptState, SamzaAzureError
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control
from samza_azure.group.timing import LEASE_S
from samza_azure.host.status import GroupAccount, content_of, members
from samza_azure.outcomes import Refused
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Content, ControlBlob, Rows

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
    damage: str = ""  # why the blob that is there cannot be read

    def check(self) -> None:
        """Raise `ConfigError` if somebody else has taken the lease."""
        if self.is_lost:
            raise ConfigError(
                "A processor, or another such command, has started meanwhile. Stop it, and run this command again."
            )

    async def write(self, control: Control) -> Control:
        """Replace the blob's content, or create it. Return what was written, with its revision."""
        self.check()
        least = self.control.revision + 1 if self.control is not None else 0
        fresh = replace(control, revision=max(control.revision, least), nonce=uuid.uuid4().hex)
        data = control_blob.encode(fresh)
        if self.lease_id:
            answer = await self.blob.write(data, etag=self.etag, lease_id=self.lease_id, timeout=CALL_S)
        else:
            answer = await self.blob.create(data, timeout=CALL_S)
        if isinstance(answer, Refused):
            self.is_lost = True
            self.check()
        self.control, self.etag = fresh, str(answer)
        return fresh


def exclusively(
    config: Config,
    account: Account,
    act: Callable[[Held], Awaitable[T]],
    *,
    damaged: bool = False,
    only_looks: bool = False,
) -> T:
    """Run `act` while no processor runs; raise `ConfigError` with the names of those that do.

    A blob that was deleted raises `StateLost`, and one that cannot be read `CorruptState`; with `damaged` it is held
    without a content. With `only_looks` the lease is not taken, and `act` must not write.
    """

    async def once() -> T:
        try:
            await refuse_if_anybody_lives(config, account.rows())
            held = await _taken(account, damaged=damaged, only_looks=only_looks)
            renewing = asyncio.create_task(_renew(held))
            try:
                return await act(held)
            finally:
                renewing.cancel()
                if held.lease_id:
                    with suppress(SamzaAzureError):  # the lease ends by itself
                        await held.blob.release(held.lease_id, timeout=CALL_S)
        finally:
            await account.aclose()

    return asyncio.run(once())


async def refuse_if_anybody_lives(config: Config, table: Rows) -> None:
    """Raise `ConfigError` if a row changes within the time after which a leader would mark its processor dead."""
    timing = config.coordinator.timing
    seen: dict[str, str] = {}
    began = time.monotonic()
    while True:
        living = [row for row in await members(table) if row.alive]
        if running := [row.processor for row in living if seen.get(row.incarnation, row.etag) != row.etag]:
            raise ConfigError(
                f"Processors of {config.app.name!r} run: {', '.join(running)}. Stop them first: samza-azure stop "
                f"{in_shell(config)} --wait, or drain the run."
            )
        if not living or time.monotonic() > began + timing.heartbeat_timeout_s:
            return
        if not seen:
            names = ", ".join(row.processor for row in living)
            say(f"{names} may have died; waiting {timing.heartbeat_timeout_s:g} s to find out.")
        seen = {row.incarnation: row.etag for row in living} | seen
        await asyncio.sleep(POLL_S)


async def _taken(account: GroupAccount, *, damaged: bool, only_looks: bool) -> Held:
    """Acquire the lease of the blob in the version just read. End the lease of a dead leader."""
    blob, table = account.control_blob(), account.rows()
    found = await (blob.read(timeout=CALL_S) if damaged else content_of(account))
    if not isinstance(found, Content):
        return Held(blob, table, None)
    control, damage = None, ""
    try:
        control = control_blob.decode(found.data)
    except CorruptState as error:
        if not damaged:
            raise
        damage = str(error)
    if only_looks:
        return Held(blob, table, control, damage=damage)
    held = Held(blob, table, control, found.etag, str(uuid.uuid4()), damage=damage)
    answer = await blob.acquire(held.lease_id, seconds=LEASE_S, timeout=CALL_S, etag=found.etag)
    is_dead_leaders = control is None or control.leader is not None
    if isinstance(answer, Refused) and answer.code == "LeaseAlreadyPresent" and is_dead_leaders:
        await blob.break_now(timeout=CALL_S, etag=found.etag)
        answer = await blob.acquire(held.lease_id, seconds=LEASE_S, timeout=CALL_S, etag=found.etag)
        if answer is None and control is not None:
            await held.write(replace(control, leader=None, successor=None))
    if answer is not None:
        raise ConfigError(
            "The control blob is leased: another command works on this job, or one was killed less than a minute ago, "
            "or a processor has just started. Run this command again when that is over."
        )
    return held


async def _renew(held: Held) -> None:
    while held.lease_id and not held.is_lost:
        await asyncio.sleep(RENEW_S)
        with suppress(SamzaAzureError):  # the next renewal may succeed
            held.is_lost = await held.blob.renew(held.lease_id, timeout=CALL_S) is not None

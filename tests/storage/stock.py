"""Blobs whose lease has run out, for tests that cannot wait: leased when the session begins, used when it is over.

Azure's shortest lease takes 15 s. Every second blob was written under its lease.
"""

import asyncio
import time
from dataclasses import dataclass, field

from samza_azure.account import Storage
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import ControlBlob
from samza_azure.storage.memory import MemoryAccount

LEASE_S = 15
#: The clocks of the storages are those of this machine, or Azure's, which count the same seconds.
MARGIN_S = 0.5
BATCH = 160
SECONDS = 10.0


@dataclass(slots=True)
class Stock:
    """Such blobs by name, in the same state on a service and in memory."""

    place: Storage
    holder: str
    service: Account = field(init=False)
    memory: MemoryAccount = field(default_factory=MemoryAccount)
    names: list[str] = field(default_factory=list)
    made: int = 0
    over_at: float = 0.0

    def __post_init__(self) -> None:
        self.service = Account.from_config(self.place)

    def fill(self) -> None:
        """Lease another batch."""
        asyncio.run(self._fill())
        self.over_at = time.monotonic() + LEASE_S + MARGIN_S

    def take(self) -> str:
        """A unique blob, after its lease has run out."""
        if not self.names:
            self.fill()
        time.sleep(max(0.0, self.over_at - time.monotonic()))
        return self.names.pop()

    async def _fill(self) -> None:
        service = Account.from_config(self.place)  # its connections belong to this event loop
        for number in range(self.made, self.made + BATCH):
            name = f"expired/{number}"
            for account in (self.memory, service):
                await self._lease(account.leased_blob(name), written=number % 2 == 0)
            self.names.append(name)
        self.made += BATCH
        await service.aclose()

    async def _lease(self, blob: ControlBlob, *, written: bool) -> None:
        etag = await blob.create(b"0", timeout=SECONDS)
        assert isinstance(etag, str)
        assert await blob.acquire(self.holder, seconds=LEASE_S, timeout=SECONDS) is None
        if written:
            assert isinstance(await blob.write(b"1", etag=etag, lease_id=self.holder, timeout=SECONDS), str)

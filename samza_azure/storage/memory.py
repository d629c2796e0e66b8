"""A storage account in memory: what Azure *documents*, without Azure.

The contract tests in tests/storage run on this and on Azurite. It is deterministic: ETags come from a counter, time
from the given clock, and nothing waits. All clients share one `MemoryStorage`; each `MemoryAccount` is one client's
view of it, through a `Link` of its own that may lose, delay or refuse calls.

Every call takes effect in one method of `MemoryStorage`, at one instant. Leases in the state Breaking are not modelled:
we only break with period 0.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from samza_azure.errors import SamzaAzureError
from samza_azure.group.control import NAME
from samza_azure.logs.operations import Span
from samza_azure.logs.record import Buffer
from samza_azure.logs.retention import Listed
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.interface import Blobs, Content, ControlBlob, Row, Rows, Value
from samza_azure.storage.limits import (
    APPEND_BLOCKS_MAX,
    HINTS,
    READERS,
    checked_append,
    checked_key,
    checked_length,
    checked_values,
    hint_key,
    hint_name,
)
from samza_azure.storage.transactions import MemoryTransactions

T = TypeVar("T")


class Link:
    """The connection between one client and the storage. This one is perfect; the simulator's are not."""

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        """Carry a synchronous call: `effect` happens at the storage. Return its answer."""
        return effect()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        """Carry an asynchronous call. A lost answer is `Unsettled` after `effect`, a lost request is one before it."""
        return effect()


@dataclass(slots=True)
class _Lease:
    id: str
    seconds: int
    until: float
    broken: bool = False


@dataclass(slots=True)
class _Blob:
    data: bytearray
    etag: str
    kind: str  # "append" or "block"
    blocks: int = 0
    lease: _Lease | None = None
    created_at: float = 0.0
    written_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Entity:
    """A row. A write replaces it as a whole, so a reader's copy never changes."""

    etag: str
    values: dict[str, Value] = field(default_factory=dict)
    written_at: float = 0.0


class MemoryStorage:
    """One container and one table. Each method is one call of the service, taking effect at one instant."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blobs: dict[str, _Blob] = {}
        self._staged: dict[str, dict[str, bytes]] = {}  # blocks that are not part of a blob yet
        self._rows: dict[tuple[str, str], _Entity] = {}
        self._etags = 0
        self._beside: dict[str, MemoryStorage] = {}
        self.transactions: dict[str, MemoryTransactions] = {}
        self.held: dict[str, str] = {}  # blobs that a policy or a legal hold keeps -> the error code
        self.hierarchical = False  # listings show directories, too
        self.kind = ("StorageV2", "Standard_LRS")
        self.legal_hold = False  # on the container
        self.lock = threading.RLock()

    def _next_etag(self) -> str:
        self._etags += 1
        return f'"0x{self._etags:X}"'

    def beside(self, name: str) -> "MemoryStorage":
        """The storage of another leased blob, with the same clock."""
        with self.lock:
            return self._beside.setdefault(name, MemoryStorage(self._clock))

    # Blobs.

    def create(self, name: str) -> bool:
        """Put Blob (append blob), If-None-Match: *."""
        if name in self._blobs:
            return False
        self._blobs[name] = _Blob(
            bytearray(), self._next_etag(), "append", created_at=self._clock(), written_at=self._clock()
        )
        return True

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        """Append Block, with the append position as its condition."""
        blob = self._blobs.get(name)
        if blob is None:
            return Missing()
        if blob.kind != "append":
            return Refused("InvalidBlobType")
        if len(blob.data) != position:
            return Refused("AppendPositionConditionNotMet")
        if blob.blocks >= APPEND_BLOCKS_MAX:
            return Refused("BlockCountExceedsLimit")
        blob.data += data
        blob.blocks += 1
        blob.etag, blob.written_at = self._next_etag(), self._clock()
        return len(blob.data)

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        """Get Blob, a range of it."""
        blob = self._blobs.get(name)
        if blob is None:
            return Missing()
        end = len(blob.data) if length is None else start + length
        return Span(bytes(blob.data[start:end]), len(blob.data))

    def put(self, name: str, data: Buffer) -> bool:
        """Put Blob (block blob), If-None-Match: *."""
        if name in self._blobs:
            return False
        self._blobs[name] = _Blob(
            bytearray(data), self._next_etag(), "block", created_at=self._clock(), written_at=self._clock()
        )
        return True

    def stage(self, name: str, block: str, data: bytes) -> bool:
        """Put Block. It is no part of the blob yet."""
        self._staged.setdefault(name, {})[block] = data
        return True

    def commit(self, name: str, blocks: Sequence[str]) -> bool:
        """Put Block List, If-None-Match: *."""
        staged = self._staged.pop(name, {})
        return self.put(name, b"".join(staged[block] for block in blocks))

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        """List Blobs."""
        return [(name, len(blob.data)) for name, blob in sorted(self._blobs.items()) if name.startswith(prefix)]

    def list_with_ages(self, prefix: str) -> Sequence[Listed]:
        """List Blobs, with Last-Modified and Creation-Time."""
        now, found = self._clock(), [(*each, self._blobs[each[0]]) for each in self.list(prefix)]
        return [Listed(name, size, now - blob.written_at, now - blob.created_at) for name, size, blob in found]

    def delete_many(self, names: Sequence[str]) -> dict[str, str]:
        """Blob Batch with a Delete Blob for each."""
        found = {}
        for name in names:
            try:
                self.delete(name)
            except SamzaAzureError as error:
                found[name] = str(error).rpartition(" ")[2].removesuffix(".")
        return found

    def delete(self, name: str) -> None:
        """Delete Blob, without a lease id."""
        blob = self._blobs.get(name)
        if blob is None:
            return
        if name in self.held:
            raise SamzaAzureError(f"Deleting {name} was refused: {self.held[name]}.")
        if self._lease_state(blob) == "leased":
            raise SamzaAzureError(f"Deleting {name} was refused: LeaseIdMissing.")
        del self._blobs[name]

    # The control blob.

    def control_create(self, data: bytes) -> str | Refused:
        """Put Blob, If-None-Match: *."""
        return self._blobs[NAME].etag if self.put(NAME, data) else Refused("BlobAlreadyExists")

    def control_read(self, unless_etag: str | None, lease_id: str | None) -> Content | NotModified | Missing | Refused:
        """Get Blob, If-None-Match and lease id if given."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Missing()
        if lease_id is not None and (refused := self._unless_leased(blob, lease_id)):
            return refused
        if blob.etag == unless_etag:
            return NotModified()
        return Content(bytes(blob.data), blob.etag)

    def control_write(self, data: bytes, etag: str, lease_id: str) -> str | Refused:
        """Put Blob with If-Match and lease id."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Refused("LeaseNotPresentWithBlobOperation")
        if refused := self._unless_leased(blob, lease_id):
            return refused
        if blob.etag != etag:
            return Refused("ConditionNotMet")
        blob.data, blob.etag = bytearray(data), self._next_etag()
        return blob.etag

    def lease_acquire(self, lease_id: str, seconds: int, etag: str | None) -> None | Refused | Missing:
        """Acquire Lease under an id of the caller's. The present holder may, and gets the new duration."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Missing()
        if etag is not None and blob.etag != etag:
            return Refused("ConditionNotMet")
        if self._lease_state(blob) == "leased" and blob.lease and blob.lease.id != lease_id:
            return Refused("LeaseAlreadyPresent")
        blob.lease = _Lease(lease_id, seconds, self._clock() + seconds)
        return None

    def lease_renew(self, lease_id: str, etag: str | None = None) -> None | Refused | Missing:
        """Renew Lease. An expired lease revives if there was no other lease since, nor a write (impossible here)."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Missing()
        if etag is not None and blob.etag != etag:
            return Refused("ConditionNotMet")
        lease = blob.lease
        if lease is None or lease.id != lease_id:
            return Refused("LeaseIdMismatchWithLeaseOperation")
        if lease.broken:
            return Refused("LeaseIsBrokenAndCannotBeRenewed")
        lease.until = self._clock() + lease.seconds
        return None

    def lease_break(self, etag: str | None) -> None | Refused | Missing:
        """Break Lease with period 0."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Missing()
        if etag is not None and blob.etag != etag:
            return Refused("ConditionNotMet")
        if blob.lease is None:
            return Refused("LeaseNotPresentWithLeaseOperation")
        blob.lease.broken = True
        return None

    def lease_release(self, lease_id: str) -> None | Refused | Missing:
        """Release Lease."""
        blob = self._blobs.get(NAME)
        if blob is None:
            return Missing()
        if blob.lease is None or blob.lease.id != lease_id:
            return Refused("LeaseIdMismatchWithLeaseOperation")
        blob.lease = None
        return None

    def _lease_state(self, blob: _Blob) -> str:
        if blob.lease is None:
            return "available"
        if blob.lease.broken:
            return "broken"
        return "leased" if self._clock() < blob.lease.until else "expired"

    def _unless_leased(self, blob: _Blob, lease_id: str) -> Refused | None:
        match self._lease_state(blob):
            case "leased" if blob.lease and blob.lease.id == lease_id:
                return None
            case "leased":
                return Refused("LeaseIdMismatchWithBlobOperation")
            case "expired":
                return Refused("LeaseLost")
            case _:
                return Refused("LeaseNotPresentWithBlobOperation")

    # Rows.

    def insert(self, partition: str, key: str, values: Mapping[str, Value]) -> str | Refused:
        """Insert Entity."""
        if (partition, key) in self._rows:
            return Refused("EntityAlreadyExists")
        return self.upsert(partition, key, values)

    def upsert(self, partition: str, key: str, values: Mapping[str, Value]) -> str:
        """Insert Or Replace Entity."""
        entity = _Entity(self._next_etag(), dict(values), self._clock())
        self._rows[partition, key] = entity
        return entity.etag

    def update(self, partition: str, key: str, values: Mapping[str, Value], etag: str, *, merge: bool) -> str | Refused:
        """Merge Entity or Update Entity, If-Match."""
        entity = self._rows.get((partition, key))
        if entity is None:
            return Refused("ResourceNotFound")
        if entity.etag != etag:
            return Refused("UpdateConditionNotSatisfied")
        return self.upsert(partition, key, {**entity.values, **values} if merge else values)

    def get(self, partition: str, key: str) -> Row | None:
        """Query Entities by both keys."""
        entity = self._rows.get((partition, key))
        return None if entity is None else self._row(key, entity)

    def query(self, partition: str) -> Sequence[Row]:
        """Query Entities of one partition."""
        return [self._row(key, self._rows[partition, key]) for key in self.keys(partition)]

    def keys(self, partition: str) -> Sequence[str]:
        """The keys of the rows of one partition, in their order."""
        return sorted(key for other, key in self._rows if other == partition)

    def forget(self, partition: str, key: str) -> None:
        """Delete Entity, If-Match: *."""
        self._rows.pop((partition, key), None)

    def remove(self, partition: str, key: str, etag: str) -> None | Refused:
        """Delete Entity, If-Match."""
        entity = self._rows.get((partition, key))
        if entity is not None and entity.etag != etag:
            return Refused("UpdateConditionNotSatisfied")
        self._rows.pop((partition, key), None)
        return None

    def _row(self, key: str, entity: _Entity) -> Row:
        return Row(key, entity.etag, MappingProxyType(entity.values), self._clock() - entity.written_at)


class SimulatedAccount(Protocol):
    """One client's view of the storage, over any kind of link."""

    @property
    def storage(self) -> Blobs:
        """The logs, each call taking effect at once."""

    def control_blob(self) -> ControlBlob:
        """The control blob."""

    def rows(self) -> Rows:
        """The table."""

    def blobs(self) -> Blobs:
        """The logs."""

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        """Make an asynchronous call, over this client's link."""


class MemoryAccount:
    """One client's view of a storage in memory; the same methods as `samza_azure.storage.connection.Account`."""

    def __init__(
        self,
        storage: MemoryStorage | None = None,
        *,
        link: Link | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.storage = storage if storage is not None else MemoryStorage(clock)
        self.link = link if link is not None else Link()

    def sign_in(self) -> None:
        """Do nothing: there is no identity."""

    def ensure_created(self, *, binds: bool = True) -> None:
        """There is nothing to create, and nobody else to bind against."""

    def exists(self, *, to_empty: bool = False) -> bool:
        """Whether container and table are there: in memory always, and they belong to nobody else."""
        return True

    def refuse_container(self) -> None:
        """Do nothing: no container in memory belongs to another job."""

    def refuse_unbound(self) -> None:
        """Do nothing, for the same reason."""

    def blobs(self, *, timeout_s: float = 10.0) -> "MemoryBlobs":
        """The logs."""
        return MemoryBlobs(self)

    def hints(self, *, timeout_s: float = 3.0) -> "MemoryNamedRows":
        """The hint rows."""
        return MemoryNamedRows(self, HINTS)

    def readers(self, *, timeout_s: float = 3.0) -> "MemoryNamedRows":
        """The positions of the named readers."""
        return MemoryNamedRows(self, READERS)

    def transactions(self, partition: str, *, timeout_s: float | None = None) -> MemoryTransactions:
        """One partition of the table, for writes of several rows at once; kept apart from that of `rows`."""
        return self.storage.transactions.setdefault(partition, MemoryTransactions())

    def control_blob(self) -> "MemoryControlBlob":
        """The control blob."""
        return MemoryControlBlob(self)

    def leased_blob(self, name: str) -> "MemoryControlBlob":
        """A blob that is leased like the control blob, for a lock."""
        return MemoryControlBlob(MemoryAccount(self.storage.beside(name), link=self.link))

    def rows(self) -> "MemoryRows":
        """The table."""
        return MemoryRows(self)

    def close(self) -> None:
        """There is nothing to close."""

    async def aclose(self) -> None:
        """There is nothing to close."""

    def call(self, operation: str, effect: Callable[[], T]) -> T:
        """Make a synchronous call, over this client's link."""
        return self.link.call(operation, lambda: self._apply(effect))

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        """Make an asynchronous call, over this client's link."""
        return await self.link.carry(operation, lambda: self._apply(effect), timeout)

    def _apply(self, effect: Callable[[], T]) -> T:
        with self.storage.lock:
            return effect()


class MemoryBlobs:
    """`Blobs` in memory."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._storage = account.storage

    def create(self, name: str) -> bool:
        return self._account.call("blobs.create", lambda: self._storage.create(name))

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        checked_append(data)
        return self._account.call("blobs.append", lambda: self._storage.append(name, data, position))

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        checked_length(length)
        return self._account.call("blobs.read", lambda: self._storage.read(name, start, length))

    def put(self, name: str, data: Buffer) -> bool:
        return self._account.call("blobs.put", lambda: self._storage.put(name, data))

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        return self._account.call("blobs.list", lambda: self._storage.list(prefix))

    def list_with_ages(self, prefix: str) -> Sequence[Listed]:
        return self._account.call("blobs.list", lambda: self._storage.list_with_ages(prefix))

    def delete(self, name: str) -> None:
        return self._account.call("blobs.delete", lambda: self._storage.delete(name))

    def delete_many(self, names: Sequence[str]) -> Mapping[str, str]:
        return self._account.call("blobs.delete", lambda: self._storage.delete_many(names))


class MemoryNamedRows:
    """`NamedRows` in memory."""

    def __init__(self, account: MemoryAccount, partition: str) -> None:
        self._account = account
        self._storage = account.storage
        self._partition = partition

    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        key = hint_key(name)
        checked_values(values)
        self._account.call("hints.publish", lambda: self._storage.upsert(self._partition, key, values))

    def poll(self) -> Mapping[str, Mapping[str, Value]]:
        rows = self._account.call("hints.poll", lambda: self._storage.query(self._partition))
        return {hint_name(row.key): row.values for row in rows}

    def remove(self, name: str) -> None:
        key = hint_key(name)
        self._account.call("hints.remove", lambda: self._storage.forget(self._partition, key))

    def where(self, name: str) -> str:
        return f"The row {self._partition}/{hint_key(name)} in memory"


class MemoryControlBlob:
    """`ControlBlob` in memory."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._storage = account.storage

    async def create(self, data: bytes, *, timeout: float) -> str | Refused:
        return await self._account.carry("control.create", lambda: self._storage.control_create(data), timeout)

    async def read(
        self, *, timeout: float, unless_etag: str | None = None, lease_id: str | None = None
    ) -> Content | NotModified | Missing | Refused:
        return await self._account.carry(
            "control.read", lambda: self._storage.control_read(unless_etag, lease_id), timeout
        )

    async def write(self, data: bytes, *, etag: str, lease_id: str, timeout: float) -> str | Refused:
        return await self._account.carry(
            "control.write", lambda: self._storage.control_write(data, etag, lease_id), timeout
        )

    async def acquire(
        self, lease_id: str, *, seconds: int, timeout: float, etag: str | None = None
    ) -> None | Refused | Missing:
        return await self._account.carry(
            "control.acquire", lambda: self._storage.lease_acquire(lease_id, seconds, etag), timeout
        )

    async def renew(self, lease_id: str, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        return await self._account.carry("control.renew", lambda: self._storage.lease_renew(lease_id, etag), timeout)

    async def break_now(self, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        return await self._account.carry("control.break", lambda: self._storage.lease_break(etag), timeout)

    async def release(self, lease_id: str, *, timeout: float) -> None | Refused | Missing:
        return await self._account.carry("control.release", lambda: self._storage.lease_release(lease_id), timeout)


class MemoryRows:
    """`Rows` in memory."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._storage = account.storage

    async def insert(self, partition: str, key: str, values: Mapping[str, Value], *, timeout: float) -> str | Refused:
        _check(partition, key, values)
        return await self._account.carry("rows.insert", lambda: self._storage.insert(partition, key, values), timeout)

    async def merge(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        _check(partition, key, values)
        return await self._account.carry(
            "rows.merge", lambda: self._storage.update(partition, key, values, etag, merge=True), timeout
        )

    async def replace(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        _check(partition, key, values)
        return await self._account.carry(
            "rows.replace", lambda: self._storage.update(partition, key, values, etag, merge=False), timeout
        )

    async def get(self, partition: str, key: str, *, timeout: float) -> Row | None:
        _check(partition, key)
        return await self._account.carry("rows.get", lambda: self._storage.get(partition, key), timeout)

    async def query(self, partition: str, *, timeout: float) -> Sequence[Row]:
        checked_key(partition)
        return await self._account.carry("rows.query", lambda: self._storage.query(partition), timeout)

    async def delete(self, partition: str, key: str, *, etag: str, timeout: float) -> None | Refused:
        _check(partition, key)
        return await self._account.carry("rows.delete", lambda: self._storage.remove(partition, key, etag), timeout)


def _check(partition: str, key: str, values: Mapping[str, Value] = MappingProxyType({})) -> None:
    checked_key(partition)
    checked_key(key)
    checked_values(values)

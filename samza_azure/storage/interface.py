"""The interface of a storage account.

Coordination is asynchronous: `ControlBlob` and `Rows`. The data path runs in Spark's threads and is synchronous:
`Blobs`, `NamedRows` and, in its own module, `Transactions`. The modules of this folder implement them on Azure, and
`samza_azure.storage.memory` in memory; both pass the same contract tests.

A condition that does not hold is an answer and is *returned* (`Refused`). Only these are raised: `Unsettled` (the
answer was lost; read to find out), `StorageUnavailable` (nothing happened; try again), and `AccessDenied` (a retry does
not help). No call retries by itself: the caller's loop does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from samza_azure.outcomes import Missing, NotModified, Refused

if TYPE_CHECKING:
    from samza_azure.logs.operations import Span
    from samza_azure.logs.record import Buffer
    from samza_azure.logs.retention import Listed

Value: TypeAlias = str | int | bool

#: How long people wait for the answer to one call: those of commands, of the page, of monitors. In seconds.
CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class Content:
    """A blob's bytes and the ETag that they had."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Row:
    """One table row. Integers are 64 bit. `age_s` is the time since its last change when it was read, by the service's
    own clock; 0 if that is not known."""

    key: str
    etag: str
    values: Mapping[str, Value] = field(default_factory=dict)
    age_s: float = field(default=0.0, compare=False)


#: The most blobs that Azure deletes in one call.
DELETE_MAX = 256


class Blobs(Protocol):
    """Append blobs and immutable blobs of one container, for logs."""

    def create(self, name: str) -> bool:
        """Create an empty append blob if there is none (If-None-Match: *). False: it was there already."""

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        """Append at exactly `position`. Return the new length, or why not. One call, one block, at most 100 MiB."""

    def read(self, name: str, start: int, length: int | None = None) -> "Span | Missing":
        """Read at most `length` bytes from `start`. At or past the end: no bytes, and the size."""

    def put(self, name: str, data: "Buffer") -> bool:
        """Write an immutable blob (If-None-Match: *). False: it was there already. It is atomic: a large blob is sent
        in blocks, and exists after the last call."""

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        """Names and sizes of the blobs below a prefix, in the order of their names, without the directories of a
        hierarchical namespace. Slow, and priced as a write."""

    def list_with_ages(self, prefix: str) -> "Sequence[Listed]":
        """Like `list`, with the seconds since each blob was written and created, by the service's clock."""

    def delete(self, name: str) -> None:
        """Delete a blob and its snapshots, if it exists. Idempotent."""

    def delete_many(self, names: Sequence[str]) -> Mapping[str, str]:
        """Delete these, at most `DELETE_MAX`, like `delete`. Return those that are kept, by a policy, a legal hold or a
        lease, with the service's error code. Raise `AccessDenied` if there is no right to delete one of them."""


class NamedRows(Protocol):
    """The rows of one partition that have one writer each, so that no write needs a condition.

    Hints have the length of each log; late, lost or old ones only cost time. The positions of named readers must be
    right: what no named reader needs may be deleted.
    """

    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        """Insert or replace one row, unconditionally."""

    def poll(self) -> Mapping[str, Mapping[str, Value]]:
        """All rows, in one query."""

    def remove(self, name: str) -> None:
        """Delete the row if it exists."""

    def where(self, name: str) -> str:
        """Which row that is, with its table, for a message."""


class ControlBlob(Protocol):
    """The leased block blob `control.json`, or the one of a lock. After `timeout` seconds a call raises `Unsettled` (a
    write) or `StorageUnavailable` (a read)."""

    async def create(self, data: bytes, *, timeout: float) -> str | Refused:
        """Create the blob if there is none. Return its ETag."""

    async def read(
        self, *, timeout: float, unless_etag: str | None = None, lease_id: str | None = None
    ) -> Content | NotModified | Missing | Refused:
        """Read the blob. With a lease id the read also proves that this lease is held at that instant."""

    async def write(self, data: bytes, *, etag: str, lease_id: str, timeout: float) -> str | Refused:
        """Replace the content, if the blob has this ETag and this lease. Return the new ETag."""

    async def acquire(
        self, lease_id: str, *, seconds: int, timeout: float, etag: str | None = None
    ) -> None | Refused | Missing:
        """Lease the blob under an id of our own. None: the lease is ours."""

    async def renew(self, lease_id: str, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        """Renew the lease; with an ETag, only if the blob still has it."""

    async def break_now(self, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        """End any lease at once (with period 0; a longer one would be no fence)."""

    async def release(self, lease_id: str, *, timeout: float) -> None | Refused | Missing:
        """Release the lease."""


class Rows(Protocol):
    """The application's table. Partitions: members, leader, requests, hints."""

    async def insert(self, partition: str, key: str, values: Mapping[str, Value], *, timeout: float) -> str | Refused:
        """Insert a row that does not exist yet. Return its ETag."""

    async def merge(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        """Set these columns if the row has this ETag. Return the new ETag. Also refused if the row is gone."""

    async def replace(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        """Replace the whole row if it has this ETag. Return the new ETag."""

    async def get(self, partition: str, key: str, *, timeout: float) -> Row | None:
        """One row, by a point read."""

    async def query(self, partition: str, *, timeout: float) -> Sequence[Row]:
        """All rows of a partition, in the order of their keys."""

    async def delete(self, partition: str, key: str, *, etag: str, timeout: float) -> None | Refused:
        """Delete the row if it has this ETag. A row that is gone already counts as deleted."""

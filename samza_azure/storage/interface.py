"""What the program asks of a storage account, in as few words as possible.

Two users, two shapes. Coordination is asynchronous: `ControlBlob` and `Rows`. The data path runs in Spark's
threads and is synchronous: `Blobs` and `Hints`. Azure implements them in this folder, the simulator's memory in
`samza_azure.storage.memory`; the same contract tests hold both to this page.

A refused condition is a reading and is *returned* (`Refused`). Raised are only:
`Unsettled` (the answer was lost; read to find out), `StorageUnavailable` (nothing happened; try again),
`AccessDenied` (no retry helps). No call retries by itself: the loop above is the retry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from samza_azure.logs.record import Buffer
from samza_azure.logs.retention import Listed

Value: TypeAlias = str | int | bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The service said no: a condition did not hold. `code` is Azure's own error code, for messages."""

    code: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such blob."""


@dataclass(frozen=True, slots=True)
class NotModified:
    """The blob still has the ETag that was given."""


@dataclass(frozen=True, slots=True)
class Content:
    """A blob's bytes and the ETag that they had."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes from a position on, and how long the blob is in all. `data` is empty at or past the end."""

    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One table row. Integers are 64 bit."""

    key: str
    etag: str
    values: Mapping[str, Value] = field(default_factory=dict)


#: Azure deletes so many blobs in one call.
DELETE_MAX = 256


class Blobs(Protocol):
    """Append blobs and immutable blobs of one container, for logs."""

    def create(self, name: str) -> bool:
        """Create an empty append blob if there is none (If-None-Match: *). False: it was there already."""

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        """Append at exactly `position`; the new length, or why not. One call, one block, at most 100 MiB."""

    def read(self, name: str, start: int, length: int | None = None) -> Chunk | Missing:
        """At most `length` bytes from `start`. At or past the end: no bytes, and the size."""

    def put(self, name: str, data: Buffer) -> bool:
        """Write an immutable blob (If-None-Match: *). False: it was there already. Never half: a large one is sent in
        blocks, and is there after the last call."""

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        """Names and sizes of the blobs below a prefix, in the order of their names; no directories, which accounts
        with a hierarchical namespace have beside them. Slow and priced as a write."""

    def list_with_ages(self, prefix: str) -> Sequence[Listed]:
        """The same, and how many seconds ago each was written last, by the service's own clock."""

    def delete(self, name: str) -> None:
        """Delete if there, with its snapshots. Idempotent."""

    def delete_many(self, names: Sequence[str]) -> Mapping[str, str]:
        """Delete these, at most `DELETE_MAX` of them, as `delete` does; of those that are kept (a policy, a legal hold,
        a lease, a right that we do not have) the service's code for why."""


class Hints(Protocol):
    """Hint rows: how long each log is. Late, lost or old hints only cost time."""

    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        """Insert or replace the hint of one log, unconditionally."""

    def poll(self) -> Mapping[str, Mapping[str, Value]]:
        """All hints of the application, in one query."""


class Positions(Hints, Protocol):
    """Where named readers stand, a row each. Other than hints these are relied upon: what no named reader needs may be
    deleted."""

    def remove(self, name: str) -> None:
        """Delete the row if it is there."""


class ControlBlob(Protocol):
    """The one leased block blob, `control.json`, or one like it for a lock. Times out after `timeout` seconds with
    `Unsettled` (a write) or `StorageUnavailable` (a read)."""

    async def create(self, data: bytes, *, timeout: float) -> str | Refused:
        """Create it if there is none; its ETag."""

    async def read(
        self, *, timeout: float, unless_etag: str | None = None, lease_id: str | None = None
    ) -> Content | NotModified | Missing | Refused:
        """Its bytes. With a lease id the read also proves that this lease holds at that instant."""

    async def write(self, data: bytes, *, etag: str, lease_id: str, timeout: float) -> str | Refused:
        """Replace it, if it has this ETag and this lease; the new ETag."""

    async def acquire(
        self, lease_id: str, *, seconds: int, timeout: float, etag: str | None = None
    ) -> None | Refused | Missing:
        """Lease it under an id of our own. None: it is ours."""

    async def renew(self, lease_id: str, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        """Start the lease's time again; with an ETag only if nobody has written since."""

    async def break_now(self, *, timeout: float, etag: str | None = None) -> None | Refused | Missing:
        """End anybody's lease at once (period 0; a longer one is no fence)."""

    async def release(self, lease_id: str, *, timeout: float) -> None | Refused | Missing:
        """Give the lease back."""


class Rows(Protocol):
    """The application's table. Partitions: members, leader, requests, hints."""

    async def insert(self, partition: str, key: str, values: Mapping[str, Value], *, timeout: float) -> str | Refused:
        """Insert a row that is not there yet; its ETag."""

    async def merge(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        """Set these columns if the row has this ETag; the new ETag. Refused too if the row is gone."""

    async def replace(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        """Replace the whole row if it has this ETag; the new ETag."""

    async def get(self, partition: str, key: str, *, timeout: float) -> Row | None:
        """One row, by a point read."""

    async def query(self, partition: str, *, timeout: float) -> Sequence[Row]:
        """All rows of a partition, in the order of their keys."""

    async def delete(self, partition: str, key: str, *, etag: str, timeout: float) -> None | Refused:
        """Delete the row if it has this ETag. A row that is gone already is no refusal."""

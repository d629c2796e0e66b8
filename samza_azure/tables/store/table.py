"""The rows and files of one table, and the reads and writes that all operations on a table share.

A change to shared rows reads the head, decides, and writes the head if nobody has written it since. After a lost answer
the rows are read again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

from samza_azure.errors import ConfigError, StorageUnavailable, Unsettled
from samza_azure.logs.names import TABLES
from samza_azure.logs.operations import Pause
from samza_azure.outcomes import Refused
from samza_azure.segments import Interval, LockBox, LockOwner, LockTask, Segment, SequenceNumber, TableLock, Timeline
from samza_azure.storage.interface import Blobs, Row, Value
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Transactions, Write
from samza_azure.stream_io.driver import BetweenTries, answered, back_off
from samza_azure.tables.store.rows import FORMAT, HEAD, LOCK, checked_head, granted_by, is_ours, lock_of, past

T = TypeVar("T")
ChunkKey: TypeAlias = tuple[Interval, int]  # an interval and a version

#: How many times a write to a shared row is tried. Each failed try means that another client's write succeeded.
TRIES_MAX = 200
#: How many times a call is sent that is not answered.
CALLS_MAX = 6


@dataclass(frozen=True, slots=True)
class TableLocks:
    """The locks of a table at one moment."""

    head: Row
    box: LockBox
    rows: dict[int, Row]  # by lock

    @property
    def sequence(self) -> SequenceNumber:
        """The table's sequence number."""
        return self.box.sequence()

    @property
    def owners(self) -> dict[str, LockOwner]:
        """The owners of the tasks that hold locks."""
        return {task.id: task.owner for task in self.box.tasks.values()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a table showed at a sequence number. `foreign` counts rows of an unknown kind, which are ignored."""

    name: str
    sequence: SequenceNumber
    timeline: Timeline
    staged: tuple[Segment, ...] = ()  # in the table, but their publishes do not count
    foreign: int = 0
    head: Row | None = None  # as read after the segments


@dataclass(frozen=True, slots=True)
class Known:
    """A table as last seen. `waiting` are segments that count together with a publish that does not count yet."""

    snapshot: Snapshot
    restored: Value
    collected: Value
    waiting: tuple[Segment, ...] = ()
    repeats: int = 0  # known publishes that the last look read again

    @property
    def oldest(self) -> int:
        """The first lock under which something may have been published since."""
        since = self.snapshot.sequence
        return min([since.granted + 1, *since.counts])


@dataclass(slots=True)
class SegmentTable:
    """One table, and what this client knows about it."""

    rows: Transactions
    blobs: Blobs
    name: str
    wait: BetweenTries = back_off
    etags: dict[int, tuple[TableLock, str]] = field(default_factory=dict, init=False)  # of our own locks, as last seen
    known: Known | None = field(default=None, init=False)

    def create(self, **columns: Value) -> Row:
        """The head row, created if there is none; `columns` are kept in it. Idempotent."""
        values: dict[str, Value] = {"format": FORMAT, "granted": 0, "collected": "", "marks": "[]", **columns}
        self.tried(lambda: self.rows.transact([Write(Act.INSERT, HEAD, values)]))
        return self.state().head

    def exists(self) -> bool:
        """Whether somebody has created the table."""
        return any(row.key == HEAD for row in self.read(HEAD, past(HEAD)))

    def state(self) -> TableLocks:
        """Read the locks. Raise ConfigError if there is no such table."""
        return self.state_of(self.read(HEAD, past(LOCK)))

    def state_of(self, found: Sequence[Row]) -> TableLocks:
        """Like `state`, from the rows of the head and the locks."""
        if not found or found[0].key != HEAD:
            raise ConfigError(f"There is no table {self.name}. It is created by the first job that writes to it.")
        head = checked_head(found[0], self.name)
        box, rows = LockBox(), {}
        box.granted = granted_by(head)
        for row in found[1:]:
            if row.key.startswith(LOCK) and is_ours(row):
                lock, owners = lock_of(self.name, row)
                box.locks[lock.id], rows[lock.id] = lock, row
                for task, owner in owners.items():
                    box.tasks[task] = LockTask(task, lock.group, lock.rank, owner)
        return TableLocks(head, box, rows)

    def with_head(self, decide: Callable[[TableLocks], tuple[T, list[Write]]]) -> T:
        """Decide from the state of the locks, and write the decision if the head is unchanged; otherwise repeat."""
        for tries in range(1, TRIES_MAX):
            state = self.state()
            answer, writes = decide(state)
            if not writes:
                return answer
            on_head = [write for write in writes if write.key == HEAD]
            values = {name: value for write in on_head for name, value in write.values.items()}
            granted = max([state.box.granted, *(_number(write) for write in writes)])
            values = {"granted": granted, "format": FORMAT, **values}
            head = Write(Act.MERGE, HEAD, values, state.head.etag)
            if self.sent([head, *(write for write in writes if write.key != HEAD)]) is not None:
                return answer
            self.wait(Pause(tries))
        raise StorageUnavailable(f"The head of {self.name}: others wrote first {TRIES_MAX} times.")

    def sent(self, writes: Sequence[Write]) -> list[str] | None:
        """Send a transaction once. Return None if it was refused or its outcome is unknown; the caller reads again."""
        try:
            answer = self.rows.transact(writes)
        except Unsettled:
            return None
        return None if isinstance(answer, Refused) else answer

    def tried(self, call: Callable[[], T]) -> T:
        """Repeat a call a few times until it is answered. The call must be safe to repeat."""
        return answered(call, self.wait, tries=CALLS_MAX)

    def read(self, first: str, end: str) -> list[Row]:
        """The rows with keys from `first` to just before `end`."""
        return self.tried(lambda: self.rows.query(first, end))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete rows in batches; one by one if somebody else has deleted some of a batch."""
        for part in in_parts([Write(Act.DELETE, key) for key in keys], OPERATIONS_MAX):
            if isinstance(self.tried(partial(self.rows.transact, part)), Refused):
                for write in part:
                    self.tried(partial(self.rows.transact, [write]))

    @property
    def prefix(self) -> str:
        """The prefix of the names of this table's files."""
        return f"{TABLES}{self.name}/"

    def upload(self, name: str, data: bytes) -> None:
        """Upload a file that nobody sees yet. Repeat if the answer is lost."""
        self.tried(lambda: self.blobs.put(name, data))

    def file_name(self, lock: int, unique: str) -> str:
        """The name of a file that is uploaded under a lock. Without the lock the file cannot be published."""
        return f"{self.prefix}{lock:012d}-{unique}.parquet"


def _number(write: Write) -> int:
    """The number of the lock that a write grants; 0 if it grants none."""
    return int(write.key.removeprefix(LOCK)) if write.act is Act.INSERT and write.key.startswith(LOCK) else 0


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items, `size` at a time."""
    for first in range(0, len(items), size):
        yield items[first : first + size]

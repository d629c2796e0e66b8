"""Who may write where: the lock box of a table.

An interval lock covers one interval; granting it creates a new version. A segment lock covers some partitions of one
interval and version. EXCLUSIVE and SHARED have their usual meaning. REPLACE and APPEND are for rewriting an interval,
with any granularity, while others append to it.

Promised: no two active incompatible locks overlap. A lock is revoked only by a strictly higher priority, only if it is
incompatible, and stays revoked until its owner unlocks it; revoked locks block nobody. A request that is not granted
changes nothing.

Not promised: that waiting requests are granted in order. A waiting task must ask again.

Two locks must be compatible if their intervals overlap; two segment locks of equal intervals only if they have a
partition in common.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from samza_azure.segments.interval import Interval
from samza_azure.segments.partitions import Partitions
from samza_azure.segments.segment import Segment
from samza_azure.segments.sequence import SequenceNumber


class LockType(StrEnum):
    """What others may do meanwhile."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    APPEND = "append"
    REPLACE = "replace"


class LockOwner(NamedTuple):
    """One life of a processor.

    Example:
        owner = tables.LockOwner("p1", "2")
    """

    processor: str = ""
    incarnation: str = ""


NOBODY = LockOwner()


@dataclass(frozen=True, slots=True)
class LockTask:
    """A task that asks for locks. Tasks of one group (a job) share them. No two live tasks have the same id.

    Example:
        task = tables.LockTask("compactor-0", group="compactors", priority=0, owner=tables.LockOwner("p1"))
    """

    id: str
    group: str
    priority: int = 0
    owner: LockOwner = NOBODY


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a task asks for: an interval lock or, with `partitions` and `version`, a segment lock.

    An interval lock gets a new version, one of type APPEND version 0; another one can be asked for.
    """

    task: str
    datasource: str
    interval: Interval
    type: LockType = LockType.EXCLUSIVE
    partitions: Partitions | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if self.interval.is_empty:
            raise ValueError(f"{self.interval} is empty: there is nothing to lock.")
        if self.partitions is not None and (self.version is None or not self.partitions):
            raise ValueError("A segment lock needs a version and at least one partition.")


class Replaced(NamedTuple):
    """In an APPEND lock: a publish of a REPLACE over it, with its version and the intervals that it writes. Later
    appends under the lock are copied there."""

    lock: int
    number: int
    version: int
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class TableLock:
    """A lock that was granted. Locks are numbered in the order of their grants; no number is used twice.

    `count` publishes have been made under it. `read` is the sequence number at which a REPLACE was granted: what was
    published later, it has not read. `writes` are the intervals that its next publish writes, once that has begun.
    `staged` is the number of a publish of which rows may be there that do not count yet. A priority of None is only
    found in storage.
    """

    id: int
    type: LockType
    group: str
    datasource: str
    interval: Interval
    version: int
    partitions: Partitions | None = None
    priority: int | None = 0
    revoked: bool = False
    holders: frozenset[str] = frozenset()
    count: int = 0
    read: SequenceNumber | None = None
    writes: tuple[Interval, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    staged: int = 0

    @property
    def rank(self) -> int:
        """The priority."""
        return self.priority or 0

    @property
    def is_used_up(self) -> bool:
        """Whether it is a segment lock whose partitions are all published. It blocks nobody."""
        return self.partitions is not None and not self.partitions

    def covers(self, segment: Segment) -> bool:
        """Whether the segment may be published under this lock. Nothing may be published under a revoked one."""
        return not self.revoked and self.was_for(segment)

    def was_for(self, segment: Segment) -> bool:
        """The same, whether or not the lock was revoked."""
        if self.datasource != segment.datasource or not self.interval.contains(segment.interval):
            return False
        if self.partitions is not None:
            return (
                self.interval == segment.interval
                and self.version == segment.version
                and segment.partition in self.partitions
            )
        return self.type is LockType.APPEND or self.version >= segment.version

    def after(self, published: Iterable[Segment]) -> "TableLock":
        """The lock after these are published. The append no longer needs their numbers; a compaction may lock them."""
        if self.type is not LockType.APPEND or self.partitions is None:
            return self
        mine = Partitions(one.partition for one in published if self.was_for(one))
        return replace(self, partitions=self.partitions - mine)

    def looks_at(self, request: LockRequest) -> bool:
        """Whether this lock and the request must be compatible."""
        if self.datasource != request.datasource or not self.interval.overlaps(request.interval) or self.is_used_up:
            return False
        if self.partitions is None or request.partitions is None or self.interval != request.interval:
            return True
        return not self.partitions.isdisjoint(request.partitions)

    def is_compatible(self, request: LockRequest) -> bool:
        """Whether both may be active over the same time."""
        match self.type, request.type:
            case (LockType.SHARED, LockType.SHARED) | (LockType.APPEND, LockType.APPEND):
                return True
            case LockType.APPEND, LockType.REPLACE:
                return request.interval.contains(self.interval)
            case LockType.REPLACE, LockType.APPEND:
                return self.interval.contains(request.interval)
        return False

    def serves(self, request: LockRequest, group: str) -> bool:
        """Whether this lock already satisfies the request."""
        if (self.group, self.datasource, self.type) != (group, request.datasource, request.type):
            return False
        if self.partitions is None or request.partitions is None:
            if self.partitions is not request.partitions or not self.interval.contains(request.interval):
                return False
            return request.version is None or request.version == self.version
        same_chunk = (self.interval, self.version) == (request.interval, request.version)
        return same_chunk and request.partitions <= self.partitions


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock is held."""

    lock: TableLock


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group had this lock and lost it. Unlock it before asking for another one."""

    lock: TableLock


@dataclass(frozen=True, slots=True)
class Blocked:
    """Not granted, and nothing was changed. These locks are in the way."""

    behind: tuple[TableLock, ...]


LockAnswer: TypeAlias = Granted | Revoked | Blocked


@dataclass(frozen=True, slots=True)
class LockDecision:
    """An answer, and the changes to the box: locks that are new or changed, and locks that are removed."""

    answer: LockAnswer
    changed: tuple[TableLock, ...] = ()
    gone: tuple[TableLock, ...] = ()


@dataclass(slots=True)
class LockBox:
    """All locks of a table. `granted` counts all that were ever granted."""

    tasks: dict[str, LockTask] = field(default_factory=dict)
    locks: dict[int, TableLock] = field(default_factory=dict)
    granted: int = 0

    def decide(self, request: LockRequest) -> LockDecision:
        """The answer to a request, and the changes that it needs. Nothing is changed yet.

        Raise ValueError if the task is not known, or if its priority differs from that of a lock of its group.
        """
        task = self.tasks.get(request.task)
        if task is None:
            raise ValueError(f"{request.task} is not active: it was never added, or was removed.")
        seen = [lock for lock in self.locks.values() if lock.looks_at(request)]
        if found := next((lock for lock in _active_first(seen) if lock.serves(request, task.group)), None):
            return self._again(found, task)
        in_the_way = [lock for lock in seen if not lock.revoked and not lock.is_compatible(request)]
        lower = [lock for lock in in_the_way if lock.rank < task.priority]
        same_group = all(lock.group == task.group and lock.interval == request.interval for lock in in_the_way)
        if len(lower) == len(in_the_way):
            return self._grant(request, task, revoking=lower)
        if same_group:
            return self._grant(request, task)
        return LockDecision(Blocked(tuple(in_the_way)))

    def apply(self, decision: LockDecision) -> None:
        """Apply the changes of a decision."""
        if isinstance(decision.answer, Granted):
            self.granted = max(self.granted, decision.answer.lock.id)
        self.locks |= {lock.id: lock for lock in decision.changed}
        for lock in decision.gone:
            self.locks.pop(lock.id, None)

    def held(self, task: str) -> list[TableLock]:
        """The locks of a task, also revoked ones, in the order in which they were granted."""
        return [lock for _, lock in sorted(self.locks.items()) if task in lock.holders]

    def active(self) -> list[TableLock]:
        """All locks that are not revoked."""
        return [lock for _, lock in sorted(self.locks.items()) if not lock.revoked]

    def _again(self, lock: TableLock, task: LockTask) -> LockDecision:
        if lock.rank != task.priority:
            raise ValueError(
                f"{task.id} has priority {task.priority}, and lock {lock.id} of its group {lock.rank}. "
                "Tasks of one group have one priority."
            )
        if lock.revoked:
            return LockDecision(Revoked(lock))
        shared = replace(lock, holders=lock.holders | {task.id})
        return LockDecision(Granted(shared), changed=() if shared == lock else (shared,))

    def _grant(self, request: LockRequest, task: LockTask, revoking: Iterable[TableLock] = ()) -> LockDecision:
        # What is appended under a REPLACE where nothing was is of the version just below it, which no other lock gets.
        number = self.granted + (2 if request.type is LockType.REPLACE else 1)
        version = request.version
        if version is None:
            version = 0 if request.type is LockType.APPEND else number
        granted = TableLock(
            number,
            request.type,
            task.group,
            request.datasource,
            request.interval,
            version,
            request.partitions,
            task.priority,
            holders=frozenset({task.id}),
            read=self.sequence() if request.type is LockType.REPLACE else None,
        )
        superseded = [_without(lock, task.id) for lock in self.held(task.id) if _supersedes(granted, lock)]
        return LockDecision(
            Granted(granted),
            changed=(
                granted,
                *(replace(lock, revoked=True) for lock in revoking),
                *(lock for part in superseded for lock in part.changed),
            ),
            gone=tuple(lock for part in superseded for lock in part.gone),
        )

    def sequence(self) -> SequenceNumber:
        """The current point in the table's history."""
        return SequenceNumber(self.granted, {number: lock.count for number, lock in self.locks.items()})


def _active_first(locks: Iterable[TableLock]) -> list[TableLock]:
    return sorted(locks, key=lambda lock: (lock.revoked, lock.id))


def _without(lock: TableLock, task: str) -> LockDecision:
    """The lock without one of its holders."""
    rest = lock.holders - {task}
    if not rest:
        return LockDecision(Blocked(()), gone=(lock,))
    return LockDecision(Blocked(()), changed=() if rest == lock.holders else (replace(lock, holders=rest),))


def _supersedes(granted: TableLock, lock: TableLock) -> bool:
    """Whether an APPEND lock makes another one of the same task redundant."""
    return (
        granted.type is lock.type is LockType.APPEND
        and granted.partitions is lock.partitions is None
        and (granted.datasource, granted.version) == (lock.datasource, lock.version)
        and granted.interval.contains(lock.interval)
        and not lock.revoked
    )

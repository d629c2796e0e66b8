"""How the lock box decides, written down as plainly as the reference says it: sets of days and of numbers, no cases."""

from collections.abc import Iterable
from dataclasses import dataclass

from samza_azure.segments import Interval, LockRequest, LockTask, LockType, TableLock
from tests.segments.script import DAY_US

APPEND, REPLACE, SHARED = LockType.APPEND, LockType.REPLACE, LockType.SHARED


@dataclass(frozen=True)
class Said:
    """`answer` is grant, same, revoked, wait or error; `lock` the one that is returned, `revoked` those that go."""

    answer: str
    lock: int | None = None
    revoked: frozenset[int] = frozenset()


def days(interval: Interval) -> set[int]:
    return set(range(interval.start // DAY_US, interval.end // DAY_US))


def decide(locks: Iterable[TableLock], task: LockTask, request: LockRequest) -> Said:
    """The order of decision: reuse, grant beside compatible ones, revoke lower ones, grant within the group, wait."""
    conflicting = [lock for lock in locks if conflicts(lock, request)]
    same = [lock for lock in conflicting if lock.group == task.group and is_for(lock, request)]
    if same:
        active = [lock for lock in same if not lock.revoked]
        lock = min(active or same, key=lambda one: one.id)
        if lock.priority != task.priority:
            return Said("error")
        return Said("same" if active else "revoked", lock.id)
    bad = [lock for lock in conflicting if not lock.revoked and not compatible(lock, request)]
    if all((lock.priority or 0) < task.priority for lock in bad):
        return Said("grant", revoked=frozenset(lock.id for lock in bad))
    if all(lock.group == task.group and days(lock.interval) == days(request.interval) for lock in bad):
        return Said("grant")
    return Said("wait")


def conflicts(lock: TableLock, request: LockRequest) -> bool:
    if not days(lock.interval) & days(request.interval) or (lock.partitions is not None and not set(lock.partitions)):
        return False
    if lock.partitions is not None and request.partitions is not None and lock.interval == request.interval:
        return bool(set(lock.partitions) & set(request.partitions))
    return True


def is_for(lock: TableLock, request: LockRequest) -> bool:
    if lock.type is not request.type or (lock.partitions is None) != (request.partitions is None):
        return False
    if lock.partitions is None or request.partitions is None:
        return days(request.interval) <= days(lock.interval) and request.version in (None, lock.version)
    same = (lock.interval, lock.version) == (request.interval, request.version)
    return same and set(request.partitions) <= set(lock.partitions)


def compatible(lock: TableLock, request: LockRequest) -> bool:
    types = (lock.type, request.type)
    return (
        types in ((SHARED, SHARED), (APPEND, APPEND))
        or (types == (REPLACE, APPEND) and days(request.interval) <= days(lock.interval))
        or (types == (APPEND, REPLACE) and days(lock.interval) <= days(request.interval))
    )

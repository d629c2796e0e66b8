"""Locks: acquire, revoke and release them, and delete what was staged under them."""

from collections.abc import Callable, Collection
from dataclasses import replace

from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.segments import (
    Blocked,
    LockBox,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    Revoked,
    Segment,
    TableLock,
)
from samza_azure.segments.locks import LockAnswer, LockDecision, Replaced
from samza_azure.storage.limits import TEXT_MAX
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Write
from samza_azure.tables.store import reading
from samza_azure.tables.store.rows import lock_key, lock_values, segment_key
from samza_azure.tables.store.table import TRIES_MAX, SegmentTable, TableLocks

#: At most this many locks are given back in one transaction.
LOCKS_MAX = OPERATIONS_MAX - 2


def acquire(table: SegmentTable, task: LockTask, request: LockRequest) -> LockAnswer:
    """Ask for a lock, and take it if it is granted: one transaction with the head. Asking again is harmless."""

    def decide(state: TableLocks) -> tuple[LockAnswer, list[Write]]:
        state.box.tasks[task.id] = task
        decision = state.box.decide(request)
        return decision.answer, writes_of(table, state, decision)

    table.etags.clear()
    return table.with_head(decide)


def acquire_anew(table: SegmentTable, task: LockTask, request: LockRequest) -> LockAnswer:
    """Like `acquire`, for a task that begins: a lock that was revoked earlier and not given back is given back first.

    The answer is Revoked only if another task of the group holds that lock: only that task can give it back.
    """
    answer = acquire(table, task, request)
    while isinstance(answer, Revoked) and task.id in answer.lock.holders:
        release(table, task.id, answer.lock.id)
        answer = acquire(table, task, request)
    return answer


def release(table: SegmentTable, task: str, lock: int) -> None:
    """Give a lock back. First delete what was staged under it and does not count."""

    def decide(state: TableLocks) -> tuple[bool, list[Write]]:
        found = state.box.locks.get(lock)
        if found is not None and not found.holders - {task} and _has_leftovers(found):
            return False, []
        return True, writes_of(table, state, _released(state.box, task, lock))

    table.etags.pop(lock, None)
    for _ in range(TRIES_MAX):
        if table.with_head(decide):
            return
        clean(table, lock)
    raise StorageUnavailable(
        f"Lock {lock} of {table.name} is not given back: another process keeps staging rows under it. Try again."
    )


def release_all(table: SegmentTable, task: str, locks: Collection[int] | None = None) -> None:
    """Give back all locks of a task, or only `locks`, in as few writes as possible."""
    for number in [*table.etags] if locks is None else locks:
        table.etags.pop(number, None)

    def decide(state: TableLocks) -> tuple[list[TableLock] | None, list[Write]]:
        held = [lock for lock in state.box.held(task) if locks is None or lock.id in locks]
        staged = [lock for lock in held if not lock.holders - {task} and _has_leftovers(lock)]
        now = [lock for lock in held if lock not in staged]
        decisions = [_released(state.box, task, lock.id) for lock in now[:LOCKS_MAX]]
        return staged if len(now) <= LOCKS_MAX else None, [
            write for decision in decisions for write in writes_of(table, state, decision)
        ]

    while (staged := table.with_head(decide)) is None:
        pass
    for lock in staged:
        release(table, task, lock.id)


def end(table: SegmentTable, owner: LockOwner, *, fence: Callable[[], Write | None] | None = None) -> list[int]:
    """End a life of a processor: revoke its locks, then clean and give them back. Return their numbers.

    `fence` returns a write that is refused if the caller may no longer end it, or None if it may not now.
    """

    def decide(state: TableLocks) -> tuple[bool, list[Write]]:
        fences = [] if fence is None else [fence()]
        if None in fences:
            ended.clear()
            return True, []
        mine = {task.id for task in state.box.tasks.values() if task.owner == owner}
        locks = [lock for lock in state.box.locks.values() if lock.holders <= mine]
        ended[:] = [lock.id for lock in locks]
        active = [lock for lock in locks if not lock.revoked]
        room = LOCKS_MAX - len(fences)
        revoked = [Write(Act.MERGE, lock_key(lock.id), {"revoked": True}) for lock in active[:room]]
        return len(active) <= room, [*revoked, *(one for one in fences if one is not None and revoked)]

    ended: list[int] = []
    # Revoke all before the first is given back: the ended owner may still be publishing under any of them.
    while not table.with_head(decide):
        pass
    for number in ended:
        lock = table.state().box.locks.get(number)
        for task in lock.holders if lock is not None else ():
            release(table, task, number)
    return ended


def clean(table: SegmentTable, lock: int) -> None:
    """Delete what was staged under a lock and does not count.

    Taking back the announcement fences appends that place copies; writing the lock's row fences its owner. After
    both, nothing more can be staged. An announcement in many locks takes several transactions: the first one already
    hides it from new locks, and `staged` stays set until everything is deleted.
    """

    def decide(state: TableLocks) -> tuple[bool, list[Write]]:
        found = state.box.locks.get(lock)
        if found is None:
            return True, []
        writes = []
        for other in state.box.locks.values():
            rest = tuple(one for one in other.replaced if (one.lock, one.number) != (lock, found.count + 1))
            if rest != other.replaced:
                values = lock_values(replace(other, replaced=rest), state.owners)
                writes.append(Write(Act.MERGE, lock_key(other.id), {"replaced": values["replaced"]}))
        staged = max(found.staged, found.count + 1)
        mine = Write(Act.MERGE, lock_key(lock), {"writes": "", "staged": staged})
        return len(writes) <= LOCKS_MAX, [mine, *writes[:LOCKS_MAX]]

    while not table.with_head(decide):
        pass
    table.delete(segment_key(one.id) for one in leftovers(table, lock))
    is_clean = Write(Act.MERGE, lock_key(lock), {"staged": 0})
    # With the head: a delayed call must not reset `staged` after more has been staged.
    table.with_head(lambda state: (None, [is_clean] if lock in state.box.locks else []))


def leftovers(table: SegmentTable, lock: int) -> list[Segment]:
    """The segments of publishes under a lock that do not count."""
    snapshot = reading.snapshot(table)
    count = snapshot.sequence.count(lock) or 0
    return [
        one
        for one in snapshot.staged
        if any(publish.lock == lock and publish.number > count for publish in one.published)
    ]


def writes_of(table: SegmentTable, state: TableLocks, decision: LockDecision) -> list[Write]:
    """The writes that a decision of the lock box requires."""
    owners = state.owners
    writes = []
    for lock in decision.changed:
        known = state.box.locks.get(lock.id)
        if known is None:
            announced = _announced(state, lock)
            # Unlike a mark, the `read` of a REPLACE cannot be shortened: it would carry over again what was left out.
            if lock.read is not None and len(str(lock.read)) > TEXT_MAX:
                raise ConfigError(
                    f"{len(state.box.locks):,} locks of {table.name} are held at once, too many for a REPLACE, whose "
                    "row lists how much each of them had published. Nothing was changed. `samza-azure table JOB "
                    f"{table.name}` shows the locks; try again when jobs have given them back (after 5 minutes without "
                    "rows of the interval), or end those whose owners have died with --end."
                )
            writes.append(Write(Act.INSERT, lock_key(lock.id), lock_values(announced, owners)))
            continue
        before, after = lock_values(known, owners), lock_values(lock, owners)
        changes = {name: value for name, value in after.items() if before[name] != value}
        changes["holders"] = after["holders"]
        # The owner that loses the lock may be publishing, which does not touch the head. The new owner reads as of
        # its grant and must see that publish; so the ETag refuses one of the two writes.
        etag = state.rows[lock.id].etag if "revoked" in changes else None
        writes.append(Write(Act.MERGE, lock_key(lock.id), changes, etag))
    # Rows staged under a lock that is gone count. The ETag shows that nothing was staged since the lock was read.
    gone = [lock.id for lock in decision.gone if lock.id in state.box.locks]
    writes += [Write(Act.DELETE, lock_key(number), etag=state.rows[number].etag) for number in gone]
    if len(writes) > OPERATIONS_MAX - 2:
        raise SamzaAzureError(
            f"{len(writes)} locks of {table.name} would change at once; {OPERATIONS_MAX - 2} can. "
            "Ask for a shorter interval."
        )
    return writes


def _announced(state: TableLocks, lock: TableLock) -> TableLock:
    """Write into a new APPEND lock what a REPLACE is about to write."""
    if lock.type is not LockType.APPEND:
        return lock
    coming = tuple(
        Replaced(one.id, one.count + 1, one.version, one.writes)
        for one in state.box.active()
        if one.writes and one.count == 0 and one.interval.overlaps(lock.interval)
    )
    return replace(lock, replaced=coming)


def _has_leftovers(lock: TableLock) -> bool:
    """Whether something that does not count was staged or announced under a lock."""
    return lock.staged > lock.count or bool(lock.writes)


def _released(box: LockBox, task: str, lock: int) -> LockDecision:
    """How a box changes when a task gives one lock back."""
    found = box.locks.get(lock)
    if found is None:
        return LockDecision(Blocked(()))
    rest = found.holders - {task}
    if rest:
        return LockDecision(Blocked(()), changed=(replace(found, holders=rest),))
    return LockDecision(Blocked(()), gone=(found,))

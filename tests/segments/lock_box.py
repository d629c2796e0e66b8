"""A lock box whose decisions count at once; in a table they are written to rows (`tables/store/locks.py`)."""

from dataclasses import dataclass, replace

from samza_azure.segments import Interval, LockBox, LockOwner, LockRequest, LockTask
from samza_azure.segments.locks import LockAnswer, _without


@dataclass(slots=True)
class Box(LockBox):
    """What tasks do with their locks."""

    def add(self, task: LockTask) -> None:
        """Let a task ask for locks."""
        self.tasks[task.id] = task

    def remove(self, task: str) -> None:
        """Forget a task and all its locks."""
        for lock in self.held(task):
            self.release(task, lock.id)
        self.tasks.pop(task, None)

    def acquire(self, request: LockRequest) -> LockAnswer:
        """Ask for a lock, and take it if it is granted."""
        decision = self.decide(request)
        self.apply(decision)
        return decision.answer

    def unlock(self, task: str, interval: Interval, partition: int | None) -> None:
        """Release the interval lock, or the segment lock of a partition, of exactly this interval."""
        for lock in self.held(task):
            is_asked = lock.partitions is None if partition is None else partition in (lock.partitions or ())
            if lock.interval == interval and is_asked:
                self.release(task, lock.id)

    def release(self, task: str, lock: int) -> None:
        """Release one lock. It is removed when no task of the group holds it."""
        self.apply(_without(self.locks[lock], task))

    def revoke(self, lock: int) -> None:
        """Revoke a lock, whatever its priority."""
        self.locks[lock] = replace(self.locks[lock], revoked=True)

    def end(self, owner: LockOwner) -> None:
        """Revoke the locks of a life that is over."""
        dead = {task.id for task in self.tasks.values() if task.owner == owner}
        for lock in list(self.locks.values()):
            if lock.holders & dead and not lock.holders - dead:
                self.revoke(lock.id)

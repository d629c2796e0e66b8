"""A table in memory that decides by the rules of `samza_azure/segments`. The storage keeps the same in rows.

Histories are played on it, and the conformance cases. `tests/storage/stored.py` is asked likewise, on storage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from samza_azure.segments import (
    Advance,
    Blocked,
    Granted,
    Granularity,
    Interval,
    LockBox,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Publish,
    Published,
    Revoked,
    Segment,
    SegmentId,
    TableLock,
    Timeline,
)
from samza_azure.segments.locks import LockAnswer, LockDecision, _without
from samza_azure.segments.partitions import single
from samza_azure.segments.publishing import StreamPosition, check_outputs, copy_of, locks_for


@dataclass(slots=True)
class MemoryLocks(LockBox):
    """The lock box of a table in memory. Nothing is decided before `sync`."""

    is_synced: bool = False

    @classmethod
    def empty(cls) -> "MemoryLocks":
        """The box of a new table."""
        return cls(is_synced=True)

    def sync(self, stored: Iterable[TableLock], tasks: Iterable[LockTask], granted: int = 0) -> set[str]:
        """Restore the stored locks. Return the tasks that must fail.

        A lock without a priority gets its task's. Locks of unknown tasks are skipped. If one task of a group cannot
        get its lock back, since its priority differs or another lock is in the way, the whole group fails: no task may
        publish under a lock that it does not have.
        """
        known = {task.id: task for task in tasks}
        failed: set[str] = set()
        kept: dict[int, TableLock] = {}
        stored = sorted(stored, key=lambda lock: lock.id)
        for lock in stored:
            holders = [known[task] for task in sorted(lock.holders) if task in known]
            if not holders:
                continue
            priority = holders[0].priority if lock.priority is None else lock.priority
            if any(task.priority != priority or task.group != lock.group for task in holders):
                failed |= {task.group for task in holders}
                continue
            if not lock.revoked and not lock.is_used_up:
                request = LockRequest(
                    holders[0].id, lock.datasource, lock.interval, lock.type, lock.partitions, lock.version
                )
                others = [other for other in kept.values() if not other.revoked and other.looks_at(request)]
                if not _may_coexist(others, request, lock.group):
                    failed.add(lock.group)
                    continue
            kept[lock.id] = replace(lock, priority=priority, holders=frozenset(task.id for task in holders))
        self.locks = {number: lock for number, lock in kept.items() if lock.group not in failed}
        self.tasks = {name: task for name, task in known.items() if task.group not in failed}
        self.granted = max([granted, *(lock.id for lock in stored)])
        self.is_synced = True
        return {task.id for task in known.values() if task.group in failed}

    def add(self, task: LockTask) -> None:
        """Let a task ask for locks. Raise ValueError before the first `sync`: it might get a lock that another has."""
        if not self.is_synced:
            raise ValueError(f"{task.id} cannot be added yet: the locks that are stored have not been read.")
        self.tasks[task.id] = task

    def remove(self, task: str) -> None:
        """Forget a task and all its locks."""
        self.apply(self.removal(task))
        self.tasks.pop(task, None)

    def acquire(self, request: LockRequest) -> LockAnswer:
        """Ask for a lock, and take it if it is granted."""
        decision = self.decide(request)
        self.apply(decision)
        return decision.answer

    def unlock(self, task: str, datasource: str, interval: Interval, partition: int | None = None) -> None:
        """Release the interval lock, or the segment lock of a partition, of exactly this interval."""
        for lock in self.held(task):
            same = (lock.datasource, lock.interval) == (datasource, interval)
            kind = lock.partitions is None if partition is None else partition in (lock.partitions or ())
            if same and kind:
                self.release(task, lock.id)

    def release(self, task: str, lock: int) -> None:
        """Release one lock. It is removed when no task of the group holds it. Idempotent."""
        if found := self.locks.get(lock):
            self.apply(_without(found, task))

    def removal(self, task: str) -> LockDecision:
        """The changes to the locks of a task that is removed."""
        parts = [_without(lock, task) for lock in self.held(task)]
        return LockDecision(
            Blocked(()),
            changed=tuple(lock for part in parts for lock in part.changed),
            gone=tuple(lock for part in parts for lock in part.gone),
        )

    def revoke(self, lock: int) -> None:
        """Revoke a lock, whatever its priority. For administrators."""
        self.locks[lock] = replace(self.locks[lock], revoked=True)

    def end(self, owner: LockOwner) -> list[TableLock]:
        """Revoke the locks of an incarnation that is over. Return those that were revoked now."""
        dead = {task.id for task in self.tasks.values() if task.owner == owner}
        ended = []
        for lock in list(self.locks.values()):
            if lock.holders & dead and not lock.holders - dead and not lock.revoked:
                self.revoke(lock.id)
                ended.append(self.locks[lock.id])
        return ended

    def may_write(self, task: str, datasource: str, interval: Interval) -> bool:
        """Whether a task holds a lock over an interval that was not revoked. Raise ValueError if it holds none."""
        over = [lock for lock in self.held(task) if lock.datasource == datasource and lock.interval.contains(interval)]
        if not over:
            raise ValueError(f"{task} holds no lock over {interval} of {datasource}.")
        return any(not lock.revoked for lock in over)

    def locked_intervals(self, datasource: str, least: int = 0, *, concurrent: bool = False) -> list[Interval]:
        """The intervals locked with a priority of at least `least`. With `concurrent`, APPEND locks do not count."""
        return sorted(
            {
                lock.interval
                for lock in self.active()
                if lock.datasource == datasource
                and lock.rank >= least
                and not (concurrent and lock.type is LockType.APPEND)
            }
        )


@dataclass(slots=True)
class MemoryTable:
    """A table in memory."""

    name: str
    box: MemoryLocks = field(default_factory=MemoryLocks.empty)
    timeline: Timeline = field(default_factory=Timeline)
    positions: dict[str, StreamPosition] = field(default_factory=dict)
    allocated: dict[tuple[Interval, int], int] = field(default_factory=dict)  # by interval and version; never falls
    pending: dict[tuple[str, SegmentId | None], SegmentId] = field(default_factory=dict)
    _pending_of: dict[tuple[str, SegmentId | None], str] = field(default_factory=dict)

    # Tasks.

    def add(self, task: LockTask) -> None:
        """Let a task write."""
        self.box.add(task)

    def remove(self, task: str) -> None:
        """Remove a task that is done, with its locks and pending ids."""
        self.box.remove(task)
        for key in [key for key, whose in self._pending_of.items() if whose == task]:
            del self.pending[key], self._pending_of[key]

    # Allocation.

    def allocate(
        self,
        task: str,
        sequence: str,
        moment: int,
        granularity: Granularity,
        *,
        previous: SegmentId | None = None,
        query: Granularity | None = None,
        type: LockType = LockType.EXCLUSIVE,  # noqa: A002 - the field's name everywhere else
        by_segment: bool = False,
    ) -> SegmentId | Revoked | Blocked | None:
        """Allocate an id for an append, and its lock, in one step. The same sequence and previous id get the same id.

        If a segment is visible at `moment`, its interval and version are used, whatever granularity is preferred;
        otherwise the coarsest free interval up to `granularity`. `query` is the granularity to which rows were rolled
        up, which must fit in. None if there is no such interval.
        """
        rows = Interval(moment, moment + 1) if query is None else query.bucket(moment)
        key = sequence, previous
        if (known := self.pending.get(key)) is not None:
            if not known.interval.contains(rows):
                raise ValueError(f"{sequence} has {known} after {previous}, and now asks for another interval.")
            return known
        waited: Revoked | Blocked | None = None
        for interval, version in self._places(rows, granularity):
            answer = self._lock_new(task, interval, version, type, by_segment=by_segment)
            if isinstance(answer, SegmentId):
                self.pending[key] = answer
                self._pending_of[key] = task
                return answer
            waited = waited or answer
        return waited

    def allocate_outputs(
        self, task: str, interval: Interval, version: int, count: int
    ) -> list[SegmentId] | Revoked | Blocked:
        """Ids for the outputs of a compaction, and the lock on them."""
        first = self.next_partition(interval, version)
        mine = Partitions.between(first, first + count)
        answer = self.box.acquire(LockRequest(task, self.name, interval, LockType.EXCLUSIVE, mine, version))
        if not isinstance(answer, Granted):
            return answer
        self.allocated[interval, version] = first + count
        return [SegmentId(interval, version, partition) for partition in mine]

    def next_partition(self, interval: Interval, version: int) -> int:
        """The next number in an interval and version. A number is never allocated twice."""
        return self.allocated.get((interval, version), 0)

    def _places(self, rows: Interval, granularity: Granularity) -> list[tuple[Interval, int | None]]:
        """The intervals to which rows of a moment may go, best first, each with its version if it has one."""
        entries = self.timeline.lookup(rows, incomplete=True)
        if entries:
            chunk = entries[0].chunk
            return [(chunk.interval, chunk.version)] if chunk.interval.contains(rows) else []
        promised = {(name.interval, name.version) for name in self.pending.values() if name.interval.overlaps(rows)}
        if promised:
            interval, version = max(promised, key=lambda place: place[1])
            return [(interval, version)] if interval.contains(rows) else []
        free: list[tuple[Interval, int | None]] = []
        for each in granularity.finer():
            interval = each.bucket(rows.start)
            if not interval.contains(rows):
                break
            taken = self.timeline.lookup(interval, incomplete=True)
            if not taken and not any(name.interval.overlaps(interval) for name in self.pending.values()):
                free.append((interval, None))
        return free

    def _lock_new(
        self,
        task: str,
        interval: Interval,
        version: int | None,
        type: LockType,  # noqa: A002
        *,
        by_segment: bool,
    ) -> SegmentId | Revoked | Blocked:
        partitions = None
        if by_segment:
            if version is None:
                version = 0 if type is LockType.APPEND else self.box.granted + 1
            partitions = single(self.next_partition(interval, version))
        answer = self.box.acquire(
            LockRequest(task, self.name, interval, type, partitions, version if by_segment else None)
        )
        if not isinstance(answer, Granted):
            return answer
        if version is None:
            version = answer.lock.version
        partition = self.next_partition(interval, version)
        self.allocated[interval, version] = partition + 1
        return SegmentId(interval, version, partition)

    # Publish.

    def inputs(self, task: str, interval: Interval) -> list[Segment]:
        """What is visible in an interval. For the holder of a REPLACE over it: what was visible at its grant."""
        visible = self.timeline.visible(interval)
        for lock in self.box.held(task):
            if lock.read is not None and lock.interval.overlaps(interval):
                return [segment for segment in visible if lock.read.includes(segment)]
        return visible

    def publish(
        self,
        task: str,
        outputs: Sequence[Segment],
        *,
        inputs: Iterable[Segment] = (),
        advance: Advance | None = None,
    ) -> Published | LostRace:
        """Publish segments and the position of the stream that they come from.

        Raise ValueError for what can never be published: outputs that no lock of the task ever covered, or that do not
        carry the rows of their inputs.
        """
        inputs = list(inputs)
        if outputs and all(self.timeline.get(segment.id) is not None for segment in outputs):
            return Published(tuple(outputs), again=True)
        locks = locks_for(self.box.held(task), [*outputs, *inputs], name=task)
        check_outputs(outputs, inputs)
        if isinstance(locks, LostRace):
            return locks
        if advance is not None and self.positions.get(advance.stream) != advance.start:
            return LostRace(f"{advance.stream} is at {self.positions.get(advance.stream)!r}, not at {advance.start!r}.")
        for segment in inputs:
            if not self.timeline.is_visible(segment):
                return LostRace(f"{segment} is no longer visible.")
        for segment in outputs:
            if self.timeline.get(segment.id) is not None:
                raise ValueError(f"{segment} is there already, and others of this publish are not.")
        return self._publish(locks, outputs, inputs, advance)

    def drop(self, segments: Iterable[Segment]) -> None:
        """Remove segments from the table. Their numbers are not used again."""
        for segment in segments:
            self.timeline.remove(segment)

    def _publish(
        self, locks: list[TableLock], outputs: Sequence[Segment], inputs: Sequence[Segment], advance: Advance | None
    ) -> Published:
        published: tuple[Publish, ...] = ()
        if locks:
            lead = min(locks, key=lambda lock: lock.id)
            published = (Publish(lead.id, lead.count + 1),)
            self.box.locks[lead.id] = replace(lead, count=lead.count + 1)
            self.box.locks |= {lock.id: self.box.locks[lock.id].after(outputs) for lock in locks}
        made = [replace(segment, published=published) for segment in outputs]
        self._count(made)
        carried: list[Segment] = []
        replacing = next((lock for lock in locks if lock.type is LockType.REPLACE), None)
        if replacing is not None:
            carried = self._carried(replacing, made, inputs)
        elif any(lock.type is LockType.APPEND for lock in locks):
            for segment in made:
                self._count(copies := self._caught_up(segment))  # before the next one's copies get their numbers
                carried += copies
        self._count(carried)
        for segment in (*made, *carried):
            self.timeline.add(segment)
        if advance is not None:
            self.positions[advance.stream] = advance.end
        return Published((*made, *carried))

    def _count(self, segments: Iterable[Segment]) -> None:
        """Record numbers that are in use, so that they are not allocated."""
        for segment in segments:
            key = segment.interval, segment.version
            self.allocated[key] = max(self.allocated.get(key, 0), segment.partition + 1)

    def _carried(self, lock: TableLock, made: Sequence[Segment], inputs: Sequence[Segment]) -> list[Segment]:
        """Copies, at the REPLACE's version, of segments that were appended under it and that it has not read."""
        assert lock.read is not None
        late = [
            segment
            for segment in self.timeline.visible(lock.interval)
            if not lock.read.includes(segment) and segment.version < lock.version and segment not in inputs
        ]
        places = sorted({(segment.interval, segment.version) for segment in made})
        return self._copies(late, places, made[0].published if made else ())

    def _caught_up(self, segment: Segment) -> list[Segment]:
        """Copies of an append that a REPLACE has overtaken since its id was allocated."""
        above = [
            (entry.chunk.interval, entry.version)
            for entry in self.timeline.lookup(segment.interval)
            if entry.version > segment.version
        ]
        return self._copies([segment], sorted(set(above)), segment.published)

    def _copies(
        self, segments: Iterable[Segment], places: Iterable[tuple[Interval, int]], published: tuple[Publish, ...]
    ) -> list[Segment]:
        places = list(places)
        following = {place: self.next_partition(*place) for place in places}
        copies = []
        done = set()
        for segment in segments:
            for place in places:
                # A segment and its copies may both be visible, each for a part of its time: its rows are copied once.
                rows = place, segment.file or segment.id
                hides = place[1] > segment.version and place[0].overlaps(segment.interval)
                if hides and rows not in done:
                    done.add(rows)
                    copies.append(copy_of(segment, *place, following[place], published))
                    following[place] += 1
        return copies


def _may_coexist(others: Iterable[TableLock], request: LockRequest, group: str) -> bool:
    return all(
        lock.is_compatible(request) or (lock.group == group and lock.interval == request.interval) for lock in others
    )

"""One table: its locks, its timeline, its allocated numbers, and how a publish is decided.

Promised: a publish is one step. It checks that each lock is held and was not revoked, that the locks cover the outputs,
that the inputs are still visible, that outputs carry exactly the rows of their inputs, and that the stream's position
is the expected one. Then all outputs and the new position are stored, or nothing. Repeating a publish changes nothing.
A REPLACE never hides an append that it has not read: it carries the append forward.

`Datasource` keeps all of this in memory. The storage keeps the same in rows and takes the same decisions.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from samza_azure.segments.interval import Granularity, Interval
from samza_azure.segments.locks import Blocked, Granted, LockBox, LockRequest, LockTask, LockType, Revoked, TableLock
from samza_azure.segments.partitions import Partitions, single
from samza_azure.segments.segment import Publish, Segment, SegmentId
from samza_azure.segments.timeline import Timeline

StreamPosition = Hashable


@dataclass(frozen=True, slots=True)
class LostRace:
    """The publish lost a race; nothing was changed. `reason` says which."""

    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """These segments are in the table, copies included. `again`: they were there before."""

    segments: tuple[Segment, ...]
    again: bool = False


class Advance(NamedTuple):
    """The stream's positions at which the rows of this publish begin, and at which the next ones will begin."""

    stream: str
    start: StreamPosition
    end: StreamPosition


@dataclass(slots=True)
class Datasource:
    """A table in memory."""

    name: str
    box: LockBox = field(default_factory=LockBox.empty)
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
            carried = [copy for segment in made for copy in self._caught_up(segment)]
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


def copy_of(
    segment: Segment, interval: Interval, version: int, partition: int, published: tuple[Publish, ...]
) -> Segment:
    """A segment of the same file with another id. Only the rows of its interval count."""
    return Segment.root(segment.datasource, interval, version, partition, file=segment.file, published=published)


def locks_for(held: Sequence[TableLock], segments: Sequence[Segment], *, name: str) -> list[TableLock] | LostRace:
    """The locks under which segments are written or replaced, each once. Raise ValueError if one never had a lock."""
    used: dict[int, TableLock] = {}
    for segment in segments:
        lock = next((one for one in held if one.covers(segment)), None)
        if lock is None:
            if not any(one.was_for(segment) for one in held):
                raise ValueError(f"{segment} is not covered by a lock of {name}.")
            return LostRace(f"The lock of {name} on {segment} was revoked.")
        used[lock.id] = lock
    return list(used.values())


def check_outputs(outputs: Sequence[Segment], inputs: Sequence[Segment]) -> None:
    """Raise ValueError if outputs are incomplete groups, or do not carry exactly the rows of their inputs."""
    by_chunk: dict[tuple[Interval, int], dict[int, Segment]] = {}
    for segment in outputs:
        if (
            by_chunk.setdefault((segment.interval, segment.version), {}).setdefault(segment.partition, segment)
            is not segment
        ):
            raise ValueError(f"{segment} is published twice at once.")
    for segment in outputs:
        chunk = by_chunk[segment.interval, segment.version]
        if missing := [partition for partition in segment.group if partition not in chunk]:
            raise ValueError(f"{segment} is published without {missing[:5]} of its group {segment.group}.")
    for chunk_of, chunk in by_chunk.items():
        groups: dict[Partitions, list[Segment]] = {}
        for segment in chunk.values():
            if not segment.is_root:
                groups.setdefault(segment.group, []).append(segment)
        before = [segment for segment in inputs if (segment.interval, segment.version) == chunk_of]
        for segment in before:
            if groups and not any(segment.covers <= each[0].covers for each in groups.values()):
                raise ValueError(f"{segment} is an input, and no output covers its roots {segment.covers}.")
        for group, segments in groups.items():
            _check_group(group, segments, before)


def _check_group(group: Partitions, segments: Sequence[Segment], inputs: Sequence[Segment]) -> None:
    one = segments[0]
    if any((each.covers, each.generation) != (one.covers, one.generation) for each in segments):
        raise ValueError(f"The segments of the group {group} differ in what they cover or in their generation.")
    mine = [segment for segment in inputs if segment.covers <= one.covers]
    if Partitions.union_of(segment.covers for segment in mine) != one.covers:
        raise ValueError(
            f"{one} covers {one.covers}, and its inputs {Partitions.union_of(each.covers for each in mine)}. "
            "What was not read must not be covered."
        )
    if sum(len(cover) for cover in {segment.covers for segment in mine}) != len(one.covers):
        raise ValueError(f"Two inputs of {one} carry the same rows.")
    if one.generation <= (highest := max(segment.generation for segment in mine)):
        raise ValueError(f"{one} has generation {one.generation}, and an input {highest}.")
    there = Partitions(segment.partition for segment in mine)
    if one.overshadows and one.overshadows != there:
        raise ValueError(f"{one} says that it overshadows {one.overshadows}; its inputs are {there}.")
    for segment in mine:
        if not segment.is_root and not segment.group <= there:
            raise ValueError(f"{segment} is an input without the rest of its group {segment.group}.")

"""A table, and users that append to it, compact it, replace it, take locks away and die; and its invariants I1 to I24.

Every act is one choice among a few, made by a seed. Rows are known by number and moment; a file has its rows. Only
garbage is deleted, so what has been published is what is shown. The storage keeps the locks, so each act may be another
client's.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from samza_azure.segments import (
    Advance,
    File,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Publish,
    Published,
    Segment,
    SegmentId,
    TableLock,
)
from tests.segments import rule
from tests.segments.histories import Choose
from tests.segments.script import DAY_US, shown
from tests.storage.conftest import Stores
from tests.storage.stored import Stored

FEBRUARY = Interval.of("2011-02-01", "2011-03-01")
MOMENTS = [FEBRUARY.start, FEBRUARY.start + DAY_US, FEBRUARY.end]  # two days of February and one of March
MONTHS = [FEBRUARY, Interval.of("2011-03-01", "2011-04-01")]

#: Garbage of so many acts ago is deleted.
GRACE_US = 3

T = TypeVar("T")
Row = tuple[int, int]  # its number and its moment


@dataclass
class Worker:
    """A writer: what it believes to hold, and what it is about to publish."""

    name: str
    priority: int
    life: int = 0
    outputs: list[Segment] = field(default_factory=list)
    inputs: list[Segment] = field(default_factory=list)
    advance: Advance | None = None
    rows: list[Row] = field(default_factory=list)  # new ones
    previous: SegmentId | None = None

    @property
    def task(self) -> LockTask:
        return LockTask(f"{self.name}-{self.life}", self.name, self.priority, LockOwner(self.name, f"life {self.life}"))


class TableUsers:
    """`choose` makes all decisions; `stores` makes clients of the table."""

    def __init__(self, choose: Choose, stores: Stores) -> None:
        self.choose, self.stores, self.acts = choose, stores, 0
        self.table = Stored(stores())
        self.appenders = [Worker("a1", 5), Worker("a2", 5)]
        self.makers = [Worker("m1", 1), Worker("m2", 1), Worker("high", 9)]
        self.numbers = itertools.count()
        self.files: dict[str, list[Row]] = {}
        self.rows: Counter[Row] = Counter()  # what has been published
        self.came: dict[Row, Publish] = {}  # by which publish of an append
        self.given: dict[SegmentId, str] = {}
        self.versions: list[tuple[Interval, int]] = []
        self.ended: set[int] = set()  # locks that a death ended
        self.seen: dict[int, TableLock] = {}  # locks that were there during this act
        for worker in (*self.appenders, *self.makers):
            self.table.add(worker.task)

    # Acts.

    def step(self) -> None:
        """One act of one user, and a check."""
        self.acts += 1
        before = self.seen = dict(self.table.box.locks)
        acts = [*[self.append, self.publish_append] * 5, *[self.compact, self.publish] * 4]
        acts += [*[self.replace, self.publish] * 2, self.die, self.collect, self.sync, self.give_up]
        acts[self.choose(len(acts))]()
        self.look(before)

    def append(self) -> None:
        """Get an id, and make up rows."""
        worker = self.one_of(self.appenders)
        if worker.outputs:
            return
        moment = self.one_of(MOMENTS)
        granularity = [Granularity.DAY, Granularity.MONTH][self.choose(2)]
        key = worker.name, worker.previous
        known = self.table.pending.get(key)
        if known is not None and not known.interval.contains(Interval(moment, moment + 1)):
            return
        found = self.table.allocate(worker.task.id, worker.name, moment, granularity, previous=worker.previous)
        if not isinstance(found, SegmentId):
            return
        assert self.given.setdefault(found, worker.name) == worker.name, "I9: an id is given to two sequences"
        assert found not in self.table.timeline, "I9: an id is used again"
        worker.rows = [(next(self.numbers), moment) for _ in range(1 + self.choose(2))]
        worker.outputs = [Segment.root(self.table.name, *found, file=self.file(worker.rows))]
        at = self.table.positions.get(worker.name)
        worker.advance = Advance(worker.name, at, (at or 0) + len(worker.rows))  # type: ignore[operator]
        worker.previous = found

    def compact(self) -> None:
        """Lock some visible groups of a chunk, read them, and write them anew."""
        worker = self.one_of(self.makers[:2])
        chunks = [one for one in self.table.timeline.chunks if one.is_complete and one.visible()]
        if worker.outputs or not chunks:
            return
        chunk = self.one_of(chunks)
        groups = list({one.covers: None for one in chunk.visible()})
        chosen = {groups.pop(self.choose(len(groups))) for _ in range(1 + self.choose(min(3, len(groups))))}
        inputs = [one for one in chunk.visible() if one.covers in chosen]
        if any(not self.table.timeline.is_visible(one) for one in inputs):
            return
        there = Partitions(one.partition for one in inputs)
        if not self.ask(worker, chunk.interval, LockType.EXCLUSIVE, there, chunk.version):
            return
        names = self.table.allocate_outputs(worker.task.id, chunk.interval, chunk.version, 1 + self.choose(2))
        if not isinstance(names, list):
            return
        for name in names:
            assert self.given.setdefault(name, worker.name) == worker.name, "I9: an id is given to two sequences"
        group = Partitions(name.partition for name in names)
        covers = Partitions.union_of(one.covers for one in inputs)
        generation = 1 + max(one.generation for one in inputs)
        parts = self.dealt([row for one in inputs for row in self.rows_of(one)], len(names))
        worker.inputs = inputs
        worker.outputs = [
            Segment(self.table.name, *name, covers, generation, group, there, self.file(part))
            for name, part in zip(names, parts, strict=True)
        ]

    def replace(self) -> None:
        """Write a month anew, by day or as a whole, under a REPLACE or an EXCLUSIVE lock."""
        worker = self.one_of(self.makers)
        if worker.outputs:
            return
        month = self.one_of(MONTHS)
        lock = self.ask(worker, month, [LockType.REPLACE, LockType.EXCLUSIVE][self.choose(2)])
        if lock is None or lock.count:
            return
        inputs = self.table.inputs(worker.task.id, month)
        rows = [
            row
            for entry in self.table.timeline.lookup(month)
            for one in entry.segments
            if one in inputs
            for row in self.rows_of(one)
            if entry.interval.start <= row[1] < entry.interval.end
        ]
        granularity = [Granularity.DAY, Granularity.MONTH][self.choose(2)]
        places: dict[Interval, list[Row]] = {}
        for row in rows:
            places.setdefault(granularity.bucket(row[1]), []).append(row)
        for place, mine in places.items():
            parts = self.dealt(mine, 1 + self.choose(2))
            core = Partitions.between(0, len(parts))
            for number, part in enumerate(parts):
                worker.outputs.append(
                    Segment.root(self.table.name, place, lock.version, number, group=core, file=self.file(part))
                )
        worker.inputs = inputs

    def publish_append(self) -> None:
        """Publish what an appender has."""
        self.publish_of(self.one_of(self.appenders))

    def publish(self) -> None:
        """Publish what a compaction has."""
        self.publish_of(self.one_of(self.makers))

    def publish_of(self, worker: Worker, *, dead: bool = False) -> None:
        """In one step; sometimes its answer is lost, and it is sent again."""
        if not worker.outputs:
            return
        table, task = self.table, worker.task
        before, visible, positions = set(table.timeline), self.visible(), dict(table.positions)
        replacing = next((one for one in table.box.held(task.id) if one.type is LockType.REPLACE), None)
        ended = all(
            lock.id in self.ended or lock.revoked
            for lock in table.box.held(task.id)
            if any(lock.was_for(one) for one in worker.outputs)
        )
        answer = table.publish(task.id, worker.outputs, inputs=worker.inputs, advance=worker.advance)
        assert not dead or isinstance(answer, LostRace), "I13: a task whose life is over has published"
        if isinstance(answer, LostRace):
            assert (set(table.timeline), table.positions) == (before, positions), "I12: refused, and something changed"
        else:
            assert not ended, "I13: a revoked task has published"
            assert set(answer.segments) <= set(table.timeline), "I12: half of a publish is there"
            if worker.advance is not None:
                assert table.positions.get(worker.name) == worker.advance.end, "I12: published without its position"
                assert positions.get(worker.name) == worker.advance.start, "I12: published from another position"
            self.rows.update(worker.rows)
            self.came |= dict.fromkeys(worker.rows, answer.segments[0].published[0])
            if replacing is not None and any(one.version == replacing.version for one in worker.outputs):
                self.look_at_replaced(replacing, worker.outputs, answer.segments, visible)
            if worker.advance is not None and self.choose(3) == 0:
                self.send_again(worker)
            again = visible, set(table.timeline), dict(table.positions), self.visible()
            if self.choose(2):
                second = table.publish(task.id, worker.outputs, inputs=worker.inputs, advance=worker.advance)
                assert isinstance(second, Published) and second.again, "I12: repeating a publish is no no-op"
                now = visible, set(table.timeline), dict(table.positions), self.visible()
                assert now == again, "I12: repeating a publish changes something"
        self.forget(worker)

    def send_again(self, worker: Worker) -> None:
        """An appender that does not know that it has published these rows gets another id for them."""
        moment = worker.rows[0][1]
        found = self.table.allocate(worker.task.id, worker.name, moment, Granularity.DAY, previous=worker.previous)
        self.seen = {**self.seen, **self.table.box.locks}
        if isinstance(found, SegmentId):
            self.given[found] = worker.name
            worker.previous = found
            twice = [Segment.root(self.table.name, *found, file=self.file(worker.rows))]
            answer = self.table.publish(worker.task.id, twice, advance=worker.advance)
            assert isinstance(answer, LostRace), "I12: published from a position that the stream has left"

    def forget(self, worker: Worker) -> None:
        """The work is done, or lost; its locks are given back, or kept for more of it."""
        worker.outputs, worker.inputs, worker.rows, worker.advance = [], [], [], None
        if worker not in self.appenders or not self.choose(3):
            for lock in self.table.box.held(worker.task.id):
                self.table.box.release(worker.task.id, lock.id)

    def give_up(self) -> None:
        """A task is removed, and comes back with nothing."""
        worker = self.one_of([*self.appenders, *self.makers])
        task = worker.task.id
        self.table.remove(task)
        assert all(task not in lock.holders for lock in self.table.box.locks.values()), "I8: a lock of a removed task"
        worker.outputs, worker.inputs, worker.rows, worker.advance = [], [], [], None
        self.table.add(worker.task)

    def die(self) -> None:
        """A life is over. It may not know, and publish all the same; the next one comes with nothing."""
        worker = self.one_of([*self.appenders, *self.makers])
        self.ended |= {lock.id for lock in self.table.box.end(worker.task.owner)}
        if self.choose(2):
            with suppress(ValueError):  # it had no lock at all
                self.publish_of(worker, dead=True)
        self.table.remove(worker.task.id)
        worker.outputs, worker.inputs, worker.rows, worker.advance = [], [], [], None
        worker.life += 1
        self.table.add(worker.task)

    def collect(self) -> None:
        """Garbage goes, if it is as old as the grace."""
        before = self.visible()
        self.table.store.collect(self.acts, GRACE_US)
        assert self.visible() == before, "I20: collecting garbage changes what is shown"

    def sync(self) -> None:
        """Another client goes on, which knows nothing."""
        locks = dict(self.table.box.locks)
        self.table.store = self.stores()
        assert self.table.box.locks == locks, "I6: other locks after a restart"

    # What must hold.

    def look(self, before: dict[int, TableLock]) -> None:
        """All that can be seen from outside, after each act."""
        self.look_at_locks(before)
        timeline = self.table.timeline
        assert shown(timeline) == shown(timeline.copy()), "I19: another timeline of the same segments shows others"
        assert shown(timeline) == rule.visible(timeline), "I22: another lookup than the rule's"
        self.look_at_covers()
        visible = self.visible()
        doubled = [row for row, count in visible.items() if count > 1]
        assert not doubled, f"I17: rows are shown twice: {doubled}"
        hidden = set(self.rows) - set(visible)
        assert not hidden, f"I16: rows that were appended are hidden: {sorted(hidden)}"
        assert visible == self.rows, "I23: other rows are shown than were published"

    def look_at_locks(self, before: dict[int, TableLock]) -> None:
        box = self.table.box
        for one, other in itertools.combinations(box.active(), 2):
            same = one.group == other.group and one.interval == other.interval
            assert same or may_be_active(one, other), f"I1: both are active: {one}, {other}"
        new = [lock for number, lock in {**self.seen, **box.locks}.items() if number not in before]
        for number, lock in before.items():
            now = box.locks.get(number)
            if now is None or number in self.ended:
                continue
            assert now.revoked >= lock.revoked, f"I3: revoked no more: {lock}"
            if now.revoked and not lock.revoked:
                assert any(one.rank > lock.rank for one in new), f"I2: revoked by no higher priority: {lock}"

    def look_at_replaced(
        self, lock: TableLock, outputs: Sequence[Segment], published: Sequence[Segment], before: Counter[Row]
    ) -> None:
        """Each row where the outputs are is in them if it had come when the lock was granted, and in a copy if not."""
        assert lock.read is not None
        mine, places = {one.id for one in outputs}, {one.interval for one in outputs}
        read = Counter(row for one in outputs for row in self.rows_of(one))
        carried = Counter(row for one in published if one.id not in mine for row in self.rows_of(one))
        for row in before:
            if any(place.start <= row[1] < place.end for place in places):
                had_come = lock.read.has(*self.came[row])
                found = read[row], carried[row]
                assert found == (had_come, not had_come), f"I24: {row} is read and carried {found} times"

    def look_at_covers(self) -> None:
        for chunk in self.table.timeline.chunks:
            groups: dict[tuple[Partitions, int], Partitions] = {}
            for one in chunk.segments.values():
                assert groups.setdefault((one.covers, one.generation), one.group) == one.group, "I11: made twice"
            for (one, _), (other, _) in itertools.combinations(groups, 2):
                nested = one <= other or other <= one or one.isdisjoint(other)
                assert nested, f"I11: the covers {one} and {other} cross"
            for one in chunk.segments.values():
                for root in one.covers:
                    name = SegmentId(chunk.interval, chunk.version, root)
                    published = self.table.next_partition(chunk.interval, chunk.version) > root
                    assert published, f"I10: {one} covers {name}, which nobody has published"

    # Help.

    def ask(
        self,
        worker: Worker,
        interval: Interval,
        type: LockType,  # noqa: A002
        partitions: Partitions | None = None,
        version: int | None = None,
    ) -> TableLock | None:
        """Ask for a lock, and look at what the box does with that."""
        box = self.table.box
        before = dict(box.locks)
        request = LockRequest(worker.task.id, self.table.name, interval, type, partitions, version)
        answer = box.acquire(request)
        if not isinstance(answer, Granted):
            assert box.locks == before, "I4: not granted, and something changed"
            return None
        again = box.decide(request)
        assert isinstance(again.answer, Granted) and again.answer.lock.id == answer.lock.id, "I5: asking again"
        assert not again.changed, "I5: asking again changes something"
        if answer.lock.id not in before and partitions is None:
            for where, version_ in self.versions:
                assert not where.overlaps(interval) or version_ < answer.lock.version, "I7: versions do not rise"
            self.versions.append((interval, answer.lock.version))
        return answer.lock

    def one_of(self, items: Sequence[T]) -> T:
        return items[self.choose(len(items))]

    def file(self, rows: Sequence[Row]) -> File:
        made = File(f"file {len(self.files)}", len(rows))
        self.files[made.name] = list(rows)
        return made

    def rows_of(self, segment: Segment) -> list[Row]:
        assert segment.file is not None
        inside = segment.interval
        return [row for row in self.files[segment.file.name] if inside.start <= row[1] < inside.end]

    def dealt(self, rows: Sequence[Row], parts: int) -> list[list[Row]]:
        return [list(rows[part::parts]) for part in range(parts)]

    def visible(self) -> Counter[Row]:
        """The rows that a reader sees, each as often as it sees it."""
        return Counter(
            row
            for entry in self.table.timeline.lookup()
            for one in entry.segments
            for row in self.rows_of(one)
            if entry.interval.start <= row[1] < entry.interval.end
        )


def may_be_active(one: TableLock, other: TableLock) -> bool:
    """Whether two locks do not look at each other, or are compatible; said once more, in other words."""
    if one.interval.end <= other.interval.start or other.interval.end <= one.interval.start:
        return True
    if one.partitions == Partitions() or other.partitions == Partitions():
        return True
    by_segment = one.partitions is not None and other.partitions is not None and one.interval == other.interval
    if by_segment and not set(one.partitions or ()) & set(other.partitions or ()):
        return True
    types = {one.type, other.type}
    if types == {LockType.APPEND, LockType.REPLACE}:
        append, other = (one, other) if one.type is LockType.APPEND else (other, one)
        return other.interval.start <= append.interval.start and append.interval.end <= other.interval.end
    return types in ({LockType.SHARED}, {LockType.APPEND})

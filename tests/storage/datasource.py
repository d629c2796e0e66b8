"""A table under faults, call by call, from a seed: appends, compactions, REPLACEs, drops, deaths, garbage.

Each actor is a thread that waits before every call to the storage; the seed chooses which one continues.
So every order of calls can happen, an upload can take as long as all else, and a run can be repeated. A call may fail
before it is made, after it (its answer is lost), or be its actor's last.

After each transaction that the storage accepts all rows are looked at: what was published is visible, once, and nothing
else is (I12, I15, I16, I17, I23), and with a REPLACE that each row was either read by it or carried (I24). All rows lie
in one day. A reader that had opened the table before sees the same.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from samza_azure.errors import ConfigError, StorageUnavailable, Unsettled
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
    Segment,
    SequenceNumber,
)
from samza_azure.storage import interface
from samza_azure.storage.interface import Row
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.segment_publishing import announce
from samza_azure.storage.segments import SegmentStore, Snapshot
from samza_azure.storage.transactions import MemoryTransactions, Write
from tests.storage.test_segments import DAY, MONTH, compaction, rooted, rows_of

FAULTS = 0.02


class Violation(AssertionError):
    """What the seed has found."""


class Dead(BaseException):
    """The actor's process is gone; nothing of it goes on."""


class Actor:
    """A client of the table. Its calls are made when its turn has come."""

    def __init__(self, history: "DatasourceHistory", name: str, life: Callable[["Actor", SegmentStore], None]) -> None:
        self.name, self._history, self._life = name, history, life
        self.store = SegmentStore(self, _Files(self), "t", wait=lambda pause: None)  # type: ignore[arg-type]
        self._turn, self.waits = threading.Event(), threading.Event()
        self.is_over = self.is_killed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.waits.wait()

    def go_on(self) -> None:
        """Make one call, and stand before the next one."""
        if self.is_over:
            return
        self.waits.clear()
        self._turn.set()
        self.waits.wait()

    def _run(self) -> None:
        try:
            self.stand()
            self._life(self, self.store)
        except Dead:
            pass
        except BaseException as error:  # noqa: BLE001 - the history raises it
            self._history.trouble = self._history.trouble or error
        finally:
            self.is_over = True
            self.waits.set()

    def stand(self) -> None:
        """Wait for the turn."""
        self.waits.set()
        self._turn.wait()
        self._turn.clear()
        if self.is_killed:
            raise Dead

    def transact(self, writes: Sequence[Write]) -> list[str] | interface.Refused:
        self.stand()
        dice = self._history.dice
        if dice.random() < FAULTS:
            raise StorageUnavailable("lost on the way")
        answer = self._history.partition.transact(writes)
        if isinstance(answer, list):
            self._history.look(self.name)
        if dice.random() < FAULTS:
            raise Unsettled("the answer is lost")
        return answer

    def query(self, first: str, end: str) -> list[Row]:
        self.stand()
        return self._history.partition.query(first, end)


class _Files:
    """The blobs, which take a turn, too."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._blobs = actor, actor._history.account.blobs()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._actor.stand()
            return getattr(self._blobs, name)(*arguments)

        return call


class DatasourceHistory:
    """One table, its actors, and what its rows must be."""

    def __init__(self, seed: int, *, drops: bool = False) -> None:
        self.dice = Random(seed)
        self.account, self.partition = MemoryAccount(), MemoryTransactions()
        self.judge, self.reader = self._client(), self._client()
        self.judge.create()
        self.published: set[str] = set()
        self.ever: set[str] = set()
        self.dropped: dict[tuple[Interval, int], set[str]] = {}  # the rows that each drop has hidden
        self._hiding: set[tuple[Interval, int]] = set()  # the drops that were visible at the last look
        self.restored = self.swept = 0  # rows of drops
        self.replaced: set[tuple[Interval, int]] = set()
        self.carried = 0
        self.earlier: list[tuple[SequenceNumber, set[str]]] = []
        self.looks = self.is_collected = 0  # at what was shown earlier; and how often that was gone
        self.collected = 0
        self._kinds = [_append, _append, _append, _compact, _compact, _rewrite, _collect, _preempt]
        self._kinds += [_drop, _drop, *[_collect] * 5] if drops else []
        self.trouble: BaseException | None = None
        self.accepted = self.lives = 0
        self.clock = 1_000_000
        self.actors: list[Actor] = []

    def _client(self) -> SegmentStore:
        return SegmentStore(self.partition, self.account.blobs(), "t", wait=lambda pause: None)

    def run(self, steps: int) -> None:
        """Play; then end all lives, and look once more."""
        try:
            for _ in range(steps):
                while len(self.actors) < 5:
                    self._begin()
                actor = self.dice.choice(self.actors)
                if self.dice.random() < 0.004:
                    self._kill(actor)
                else:
                    actor.go_on()
                if self.trouble is not None:
                    raise self.trouble
                self.actors = [one for one in self.actors if not one.is_over]
        finally:
            for actor in self.actors:
                actor.is_killed = True
                actor.go_on()
        for lock in self.judge.state().box.locks.values():
            for task in lock.holders:
                self.judge.end(LockOwner(*task.split("@")))
        self.look("the end")
        if self.judge.state().box.locks:
            raise Violation("locks of the dead stay")

    def _begin(self) -> None:
        self.lives += 1
        kind = self.dice.choice(self._kinds)
        self.actors.append(Actor(self, f"{kind.__name__.strip('_')}@{self.lives}", kind))

    def _kill(self, actor: Actor) -> None:
        """Its process dies; that is noticed now, or only at the end. It may not know that it is dead."""
        if self.dice.random() < 0.5:
            actor.is_killed = True
            actor.go_on()
        if self.dice.random() < 0.7:
            self.judge.end(LockOwner(*actor.name.split("@")))
            self.look("end of a life")

    def look(self, who: str) -> None:
        """After each accepted write."""
        self.accepted += 1
        snapshot = self.judge.snapshot()
        for one in (*snapshot.timeline, *snapshot.staged):
            is_appended = one.file is not None and one.file.bytes == 1
            if is_appended and snapshot.sequence.has(*one.published[0]):
                self.published |= set(rows_of(one)) - self.ever
                self.ever |= set(rows_of(one))
        self._look_at_drops(snapshot)
        self._look_at_replaced(snapshot, who)
        self._judge(snapshot, who)
        if not self.dropped and self.restored == 0:
            self._look_back(snapshot, who)
        if self.dice.random() < 0.2:
            self._judge(self.reader.latest(), f"{who}, to one who had it open")

    def _look_at_drops(self, snapshot: Snapshot) -> None:
        """A drop hides what there is; a drop that goes while it is visible was restored, and shows all of it again,
        unless all that it had hidden was collected before."""
        there = {(one.interval, one.version) for one in snapshot.timeline if one.file is None}
        for name in self.dropped.keys() - there:
            rows = self.dropped.pop(name)
            if name in self._hiding and any(one.version < name[1] for one in snapshot.timeline):
                self.published |= rows
                self.restored += len(rows)
            elif name in self._hiding:
                self.swept += len(rows)
        for name in there - self.dropped.keys():
            self.dropped[name], self.published = self.published, set()
        self._hiding = {(one.interval, one.version) for one in snapshot.timeline.visible(DAY) if one.file is None}

    def _look_at_replaced(self, snapshot: Snapshot, who: str) -> None:
        """When a REPLACE begins to count, each row is in what it has read or in a copy that counts with it."""
        for one in snapshot.timeline:
            is_written = one.is_root and one.version > 0 and one.file is not None and one.file.bytes == 0
            if not is_written or (one.interval, one.version) in self.replaced:
                continue
            self.replaced.add((one.interval, one.version))
            copies = [other for other in snapshot.timeline if one.published[0] in other.published and other != one]
            self.carried += len(copies)
            read, carried = Counter(rows_of(one)), Counter(row for other in copies for row in rows_of(other))
            for row in sorted(self.published):
                if (found := read[row] + carried[row]) != 1:
                    raise Violation(f"I24: after a write of {who} {row} is read and carried {found} times")

    def _look_back(self, now: Snapshot, who: str) -> None:
        """What was shown earlier is shown again, as a whole, until it is refused."""
        self.earlier.append((now.sequence, set(self.published)))
        if len(self.earlier) % 4:
            return
        for at, rows in self.earlier[-3::-5][:4]:
            self.looks += 1
            try:
                found = Counter(row for one in self.judge.snapshot(at).timeline.visible(DAY) for row in rows_of(one))
            except ConfigError:
                self.is_collected += 1
            else:
                if found != Counter(rows):
                    raise Violation(f"snapshot: after a write of {who} it shows other rows at {at} than then")

    def _judge(self, snapshot: Snapshot, who: str) -> None:
        found = Counter(row for one in snapshot.timeline.visible(DAY) for row in rows_of(one))
        if twice := sorted(row for row, count in found.items() if count > 1):
            raise Violation(f"I17: after a write of {who} {twice[:3]} are there twice")
        if missing := sorted(self.published - found.keys()):
            raise Violation(f"I23: after a write of {who} {missing[:3]} are missing")
        if never := sorted(found.keys() - self.published):
            raise Violation(f"I12: after a write of {who} {never[:3]} are there, which nobody has published")


def _task(actor: Actor, priority: int = 0) -> LockTask:
    kind, life = actor.name.split("@")
    return LockTask(actor.name, kind + life, priority, LockOwner(kind, life))


def _append(actor: Actor, store: SegmentStore) -> None:
    """Some publishes under some locks, with a position that says how many."""
    dice, who = actor._history.dice, _task(actor, 5)
    done: int | None = None
    for part in range(dice.randrange(1, 5)):
        answer = _patiently(lambda: store.allocate(who, DAY.start, Granularity.DAY, dice.choice((1, 2, 3))))
        if not isinstance(answer, Granted):
            return
        made = [
            replace(one, file=File(f"row-{actor.name}-{part}-{number}", 1, 1))
            for number, one in enumerate(rooted(store, answer.lock))
        ]
        advance = Advance(actor.name, done, part)
        under = [answer.lock.id]
        if isinstance(_patiently(lambda: store.publish(who.id, made, advance=advance, under=under)), LostRace):  # noqa: B023
            return
        done = part
        _patiently(lambda: store.release(who.id, answer.lock.id))  # noqa: B023


def _compact(actor: Actor, store: SegmentStore) -> None:
    """Two or three neighbours, into one file or two."""
    dice, who = actor._history.dice, _task(actor)
    visible = store.latest().timeline.visible()
    chunks = sorted({(one.interval, one.version) for one in visible})
    if not chunks:
        return
    place = dice.choice(chunks)
    here = [one for one in visible if (one.interval, one.version) == place]
    covers = dice.sample(sorted({one.covers for one in here}, key=str), min(3, len({one.covers for one in here})))
    inputs = [one for one in here if one.covers in covers]
    # No output without rows: that is what a drop looks like.
    count = min(dice.choice((1, 2)), max(sum(len(rows_of(one)) for one in inputs), 1))
    made = _patiently(lambda: compaction(store, who, inputs, count))
    if made:
        # All locks that it was granted; its life may have been ended by now.
        under = range(1, _patiently(lambda: store.state().box.granted) + 1)
        _patiently(lambda: store.publish(who.id, made, inputs=inputs, under=under))
    _release(store, who)


def _rewrite(actor: Actor, store: SegmentStore) -> None:
    """A REPLACE with the same granularity or a coarser one; it may give up when it has announced itself."""
    dice, who = actor._history.dice, _task(actor, 6)
    request = LockRequest(who.id, store.name, dice.choice((DAY, MONTH)), LockType.REPLACE)
    answer = _patiently(lambda: store.acquire(who, request))
    if isinstance(answer, Granted):
        lock = answer.lock
        timeline = store.snapshot(lock.read).timeline
        seen = timeline.visible(lock.interval)
        names = sorted(row for one in timeline.visible(DAY) for row in rows_of(one))
        if names and all(lock.interval.contains(one.interval) for one in seen):
            (name,) = _patiently(lambda: store.numbers(lock.interval, lock.version, 1))
            made = [Segment.root(store.name, *name, file=File("+".join(names), len(names)))]
            if dice.random() < 0.3:
                _patiently(lambda: announce(store, store.state().box.locks.get(lock.id, lock), made))
            else:
                _patiently(lambda: store.publish(who.id, made, inputs=seen, under=[lock.id]))
    _release(store, who)


def _collect(actor: Actor, store: SegmentStore) -> None:
    """Garbage, with whatever grace; a checkpoint now and then."""
    history = actor._history
    history.clock += 100
    done = _patiently(lambda: store.collect(history.clock, history.dice.choice((50, 300))))
    history.collected += done.segments
    if history.dice.random() < 0.5:
        _patiently(store.checkpoint)


def _preempt(actor: Actor, store: SegmentStore) -> None:
    """Take an interval from its holder."""
    who = _task(actor, 9)
    _patiently(lambda: store.acquire(who, LockRequest(who.id, store.name, DAY)))
    _release(store, who)


def _drop(actor: Actor, store: SegmentStore) -> None:
    """Drop the day, and take that back most of the time; perhaps after a while, perhaps another actor's drop."""
    dice, who = actor._history.dice, _task(actor, 9)
    if dice.random() < 0.6:
        _patiently(lambda: store.drop(who, DAY))
    if dice.random() < 0.6:
        with suppress(ConfigError):
            _patiently(lambda: store.restore(DAY))
    _release(store, who)


def _release(store: SegmentStore, who: LockTask) -> None:
    for lock in _patiently(lambda: store.state().box.held(who.id)):
        _patiently(lambda: store.release(who.id, lock.id))  # noqa: B023


def _patiently(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call()
        except StorageUnavailable:
            continue

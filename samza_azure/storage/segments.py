"""A table of segments in one partition of the application's table, its files in the container.

Promised, if transactions of a partition are all or nothing: publishes are all or nothing, whatever their size; of two
that the locks do not allow together one is refused; a publish that is repeated changes nothing; what a snapshot shows
was published, and each publish is in it as a whole or not at all.

How:

- *A publish* is one transaction: its lock rows, if nobody wrote them since (so they still are granted), the position
  of its stream, likewise, and its segments. The first of its locks counts it. A row counts if its lock's count says so.
- *A publish of more than a transaction holds* is staged first: its rows are inserted with the next number of the lock,
  in transactions that each hold the lock's row, too. They do not count before the last transaction raises the count.
- *Granting, revoking and allocating* take place one after the other: each transaction holds the head, if nobody wrote
  it since.
- *Reading* reads the locks first and the segments after them. So each publish that the counts have is there as a
  whole, and what came later is known by its number.
- *REPLACE* writes into the APPEND locks that lie below it what it is about to write. From then on appends put a copy
  of themselves there, which counts with the REPLACE; whatever was appended before, the REPLACE finds and carries.
- *A lost answer* is settled by reading.

No clock is used but in `collect`, whose caller says what time it is and how long garbage is kept.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.segments import (
    Advance,
    Granted,
    Granularity,
    Interval,
    Lock,
    LockBox,
    LockType,
    Owner,
    Partitions,
    Publish,
    Published,
    Request,
    Revoked,
    Segment,
    SegmentId,
    Task,
    Timeline,
    Wait,
)
from samza_azure.segments import Refused as Lost
from samza_azure.segments import Sequence as SequenceNumber
from samza_azure.segments.datasource import check_outputs, copy_of, locks_for
from samza_azure.segments.locks import Decision, Replaced
from samza_azure.storage.driver import back_off
from samza_azure.storage.interface import DELETE_MAX, Blobs, Missing, Refused, Row, Value
from samza_azure.storage.limits import TEXT_MAX
from samza_azure.storage.segment_changes import (
    CHANGE,
    Checkpoint,
    change_key,
    change_values,
    changed_by,
    changed_key,
    is_change,
    no_collection,
)
from samza_azure.storage.segment_rows import (
    FORMAT,
    HEAD,
    LOCK,
    NEXT,
    POSITION,
    READER,
    SEGMENT,
    SegmentReader,
    checked_head,
    is_ours,
    lock_key,
    lock_of,
    lock_values,
    next_key,
    next_place,
    partitions_value,
    past,
    position_key,
    position_stream,
    segment_key,
    segment_values,
)
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, AtOnce, Transactions, Write

T = TypeVar("T")
_Place: TypeAlias = tuple[Interval, int]  # an interval and a version

#: A collection writes a checkpoint when so many segments were published since the last one.
CHECKPOINT_AFTER = 500
#: So many locks are asked for their publishes one by one; of more all publishes are read.
_RANGES_MAX = 6
#: So many publishes that are known are read once more, if that saves reading the locks alone.
_REPEATS_MAX = 100
#: Behind all keys of the letters that keys are made of.
_LAST = "\uffef"
#: So many locks are given back at once.
_LOCKS_MAX = OPERATIONS_MAX - 2
#: So many locks learn at once what a REPLACE is about to write, its own among them.
ANNOUNCED_MAX = OPERATIONS_MAX - 1
#: How often a write is tried whose row others write, too. Each try that fails means that another one went through.
TRIES_MAX = 200


@dataclass(frozen=True, slots=True)
class State:
    """What the locks of a table were at one moment."""

    head: Row
    box: LockBox
    rows: dict[int, Row]  # by lock

    @property
    def sequence(self) -> SequenceNumber:
        """Where the table's history was."""
        return self.box.sequence()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a table showed at a sequence number. `foreign` rows are of no kind that we know, and are ignored."""

    name: str
    sequence: SequenceNumber
    timeline: Timeline
    staged: tuple[Segment, ...] = ()  # there, but of publishes that do not count
    foreign: int = 0
    overwritten: Value | None = None  # the last publish that made a new version visible
    head: Row | None = None  # as it was after the segments were read


@dataclass(frozen=True, slots=True)
class _Known:
    """A table as we have seen it. `waiting` are segments that count with a publish that does not count yet."""

    snapshot: Snapshot
    restored: Value
    collected: Value
    waiting: tuple[Segment, ...] = ()
    repeats: int = 0  # publishes that were read at the last look, and were known

    @property
    def oldest(self) -> int:
        """The first lock under which anything may have been published since."""
        since = self.snapshot.sequence
        return min([since.granted + 1, *since.counts])


class _Stale:
    """What was visible when a place was chosen may have changed since."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage has deleted."""

    segments: int = 0
    files: int = 0
    orphans: int = 0


@dataclass(slots=True)
class SegmentStore:
    """One table."""

    rows: Transactions
    blobs: Blobs
    name: str
    wait: Callable[[int], None] = back_off
    _etags: dict[int, tuple[Lock, str]] = field(default_factory=dict)  # of locks of our own, as we know them
    _known: "_Known | None" = None

    # The head and the locks.

    def create(self, **columns: Value) -> Row:
        """The head row, created if there is none; `columns` are kept in it. Idempotent."""
        values: dict[str, Value] = {"format": FORMAT, "granted": 0, "collected": "", "marks": "[]", **columns}
        self._try(lambda: self.rows.transact([Write(Act.INSERT, HEAD, values)]))
        return self.state().head

    def state(self) -> State:
        """The locks, as they are. ConfigError if there is no such table."""
        return self._state_of(self._read(HEAD, past(LOCK)))

    def _state_of(self, found: Sequence[Row]) -> State:
        if not found or found[0].key != HEAD:
            raise ConfigError(f"There is no table {self.name}. It is created by the first job that writes to it.")
        head = checked_head(found[0], self.name)
        box, rows = LockBox.empty(), {}
        granted = head.values["granted"]
        assert isinstance(granted, int)
        box.granted = granted
        for row in found[1:]:
            if row.key.startswith(LOCK) and is_ours(row):
                lock, owners = lock_of(self.name, row)
                box.locks[lock.id], rows[lock.id] = lock, row
                for task, owner in owners.items():
                    box.tasks[task] = Task(task, lock.group, lock.rank, owner)
        return State(head, box, rows)

    def acquire(self, task: Task, request: Request) -> Granted | Revoked | Wait:
        """Ask for a lock, and take it if it is granted: one transaction with the head. Asking again is harmless."""

        def decide(state: State) -> tuple[Granted | Revoked | Wait, list[Write]]:
            state.box.tasks[task.id] = task
            decision = state.box.decide(request)
            return decision.answer, self._of_decision(state, decision)

        self._etags.clear()
        return self._with_head(decide)

    def acquire_anew(self, task: Task, request: Request) -> Granted | Revoked | Wait:
        """The same for who begins: a lock that was revoked earlier, and could not be given back, is given back now.

        Revoked only if another task of the group has that lock, who alone can give it back.
        """
        answer = self.acquire(task, request)
        while isinstance(answer, Revoked) and task.id in answer.lock.holders:
            self.release(task.id, answer.lock.id)
            answer = self.acquire(task, request)
        return answer

    def allocate(
        self, task: Task, moment: int, granularity: Granularity, count: int = 1
    ) -> Granted | Revoked | Wait | None:
        """Numbers to append rows of a moment under, and the APPEND lock on them, in one step.

        They are the lock's `partitions`, of its interval and version. Where something is visible, its interval and
        version are used; otherwise the coarsest free interval up to `granularity`. None: there is no free one.
        """
        for _ in range(TRIES_MAX):
            snapshot, waited = self.latest(), None
            for place in self._places(snapshot.timeline, self._divided, moment, granularity):
                answers = self._lock_new(task, [place], count, LockType.APPEND, snapshot)
                if isinstance(answers, _Stale):
                    break
                if isinstance(answer := answers[place], Granted):
                    return answer
                waited = waited or answer
            else:
                return waited
        raise StorageUnavailable(f"Allocating in {self.name}: others wrote first {TRIES_MAX} times.")

    def allocate_many(
        self, task: Task, moments: Sequence[int], granularity: Granularity, count: int = 1
    ) -> dict[int, Granted | Revoked | Wait]:
        """The same for several moments in one step, each in the best place that it has: the answers by moment.

        Of moments in one place the first is answered for all, and of those for which the step has no room, or no
        interval is free, none.
        """
        for _ in range(TRIES_MAX):
            snapshot, divided, chosen = self.latest(), cache(self._divided), dict[_Place, int]()
            for moment in moments:
                there = lambda: [*divided(), *chosen]  # noqa: B023, E731 - called before the loop goes on
                for place in self._places(snapshot.timeline, there, moment, granularity)[:1]:
                    chosen.setdefault(place, moment)
            answers = self._lock_new(task, [*chosen], count, LockType.APPEND, snapshot)
            if not isinstance(answers, _Stale):
                return {chosen[place]: answer for place, answer in answers.items()}
        raise StorageUnavailable(f"Allocating in {self.name}: others wrote first {TRIES_MAX} times.")

    def allocate_outputs(self, task: Task, interval: Interval, version: int, count: int) -> Granted | Revoked | Wait:
        """Numbers for the outputs of a compaction, and the lock on them: its `partitions`."""
        place = interval, version
        answers = self._lock_new(task, [place], count, LockType.EXCLUSIVE, None)
        assert not isinstance(answers, _Stale)
        return answers[place]

    def _lock_new(
        self,
        task: Task,
        places: Sequence[_Place],
        count: int,
        type: LockType,  # noqa: A002
        seen: Snapshot | None,
    ) -> "dict[_Place, Granted | Revoked | Wait] | _Stale":
        """New numbers in each place, and a lock on them: in one write, for the first places that it has room for."""
        self._etags.clear()
        sent: set[int] = set()

        def decide(state: State) -> "tuple[dict[_Place, Granted | Revoked | Wait] | _Stale, list[Write]]":
            state.box.tasks[task.id] = task
            if mine := [lock for lock in state.box.held(task.id) if lock.id in sent]:  # the answer to a try was lost
                return {(lock.interval, lock.version): Granted(lock) for lock in mine}, []
            if seen is not None and state.head.values.get("overwritten") != seen.overwritten:
                return _Stale(), []  # what is visible there may have another version by now
            numbers = self._numbers(dict.fromkeys(places, count))
            new = [place for place, (_, write) in numbers.items() if write.act is Act.INSERT]
            if self._are_divided_otherwise(new):
                return _Stale(), []
            answers: dict[_Place, Granted | Revoked | Wait] = {}
            writes: list[Write] = []
            for (interval, version), (first, write) in numbers.items():
                partitions = Partitions.between(first, first + count)
                decision = state.box.decide(Request(task.id, self.name, interval, type, partitions, version))
                if isinstance(decision.answer, Granted):
                    more = [*self._of_decision(state, decision), write]
                    if len(writes) + len(more) >= OPERATIONS_MAX:
                        break
                    writes += more
                    sent.add(decision.answer.lock.id)
                    state.box.apply(decision)
                answers[interval, version] = decision.answer
            return answers, writes

        return self._with_head(decide) if places else {}

    def _places(
        self, timeline: Timeline, divided: Callable[[], Iterable[_Place]], moment: int, granularity: Granularity
    ) -> list[_Place]:
        """Where rows of a moment may be appended, the best first. Numbers were given out where it is divided."""
        if entries := timeline.lookup(Interval(moment, moment + 1), incomplete=True):
            return [(entries[0].chunk.interval, entries[0].version)]
        promised = [interval for interval, version in divided() if version == 0]
        if over := [one for one in promised if one.start <= moment < one.end]:
            return [(over[0], 0)]
        buckets = [each.bucket(moment) for each in granularity.finer()]
        free = (one for one in buckets if not any(one.overlaps(other) for other in promised))
        return [(one, 0) for one in free if not timeline.lookup(one, incomplete=True)]

    def _are_divided_otherwise(self, places: Sequence[_Place]) -> bool:
        """Whether numbers were given out before in unequal intervals over one of these: segments may come there."""
        return any(
            other.overlaps(interval) and known == version and other != interval
            for other, known in (self._divided() if places else ())
            for interval, version in places
        )

    def _divided(self) -> list[_Place]:
        """The places in which numbers were given out."""
        return [next_place(row.key) for row in self._read(NEXT, past(NEXT)) if is_ours(row)]

    def release(self, task: str, lock: int) -> None:
        """Give a lock back. What was staged under it and does not count goes first."""

        def decide(state: State) -> tuple[bool, list[Write]]:
            found = state.box.locks.get(lock)
            if found is not None and not found.holders - {task} and _has_leftovers(found):
                return False, []
            return True, self._of_decision(state, _released(state.box, task, lock))

        self._etags.pop(lock, None)
        for _ in range(TRIES_MAX):
            if self._with_head(decide):
                return
            self._clean(lock)
        raise StorageUnavailable(f"Lock {lock} of {self.name} is not given back: somebody goes on to stage rows.")

    def release_all(self, task: str, locks: Collection[int] | None = None) -> None:
        """Give back all locks of a task, or these of them, in as few writes as possible."""
        for number in [*self._etags] if locks is None else locks:
            self._etags.pop(number, None)

        def decide(state: State) -> tuple[list[Lock] | None, list[Write]]:
            held = [lock for lock in state.box.held(task) if locks is None or lock.id in locks]
            staged = [lock for lock in held if not lock.holders - {task} and _has_leftovers(lock)]
            clean = [lock for lock in held if lock not in staged]
            decisions = [_released(state.box, task, lock.id) for lock in clean[:_LOCKS_MAX]]
            return staged if len(clean) <= _LOCKS_MAX else None, [
                write for decision in decisions for write in self._of_decision(state, decision)
            ]

        while (staged := self._with_head(decide)) is None:
            pass
        for lock in staged:
            self.release(task, lock.id)

    def end(self, owner: Owner) -> list[int]:
        """A life of a processor is over: its locks are revoked, then cleaned and given back. Their numbers."""

        def decide(state: State) -> tuple[bool, list[Write]]:
            mine = {task.id for task in state.box.tasks.values() if task.owner == owner}
            locks = [lock for lock in state.box.locks.values() if lock.holders <= mine]
            ended[:] = [lock.id for lock in locks]
            active = [lock for lock in locks if not lock.revoked]
            revoked = [Write(Act.MERGE, lock_key(lock.id), {"revoked": True}) for lock in active[:_LOCKS_MAX]]
            return len(active) <= _LOCKS_MAX, revoked

        ended: list[int] = []
        # All of them, before the first is given back: whoever was ended may be publishing under any of them.
        while not self._with_head(decide):
            pass
        for number in ended:
            lock = self.state().box.locks.get(number)
            for task in lock.holders if lock is not None else ():
                self.release(task, number)
        return ended

    # Publishing.

    def publish(
        self,
        task: str,
        outputs: Sequence[Segment],
        *,
        inputs: Iterable[Segment] = (),
        advance: Advance | None = None,
        under: Iterable[int] = (),
    ) -> Published | Lost:
        """Publish segments and the position of the stream that they come from, all or nothing.

        `under` are the locks that it was granted for this, as far as the caller knows them: one that is not there any
        more was ended by others. `Lost`: a lock was revoked or ended, an input is not visible any more, or the stream
        is elsewhere; nothing was changed.
        ValueError for outputs that could never be published, as `Datasource.publish` says.
        """
        inputs, under = list(inputs), set(under)
        check_outputs(outputs, inputs)
        if not outputs:
            if advance is None or self.move(*advance):
                return Published(())
            return Lost(f"{advance.stream} is at {self.position(advance.stream)!r}, not at {advance.start!r}.")
        for tries in range(1, TRIES_MAX):
            held = self._held(task)
            try:
                locks = locks_for([lock for lock, _ in held.values()], [*outputs, *inputs], name=task)
            except ValueError as error:
                if settled := self._settled(outputs):
                    return settled
                if tries == 1 and under <= held.keys():
                    raise
                locks = Lost(f"{error} It had one: its life was ended, and its locks with it.")
            if isinstance(locks, Lost):
                return self._settled(outputs) or locks
            if len(locks) > OPERATIONS_MAX - 4:
                raise ConfigError(
                    f"Rows of {len(locks)} intervals of {self.name} in one publish; {OPERATIONS_MAX - 4} are possible. "
                    "Write fewer rows at once, or give the table a coarser granularity."
                )
            lead = min(locks, key=lambda lock: lock.id)
            overwrites = [one for one in outputs if one.is_root and one.version == lead.version and lead.version]
            if lead.type is LockType.REPLACE and overwrites and lead.count:
                if settled := self._settled(outputs):
                    return settled
                raise ValueError(f"Lock {lead.id} has replaced {lead.interval} already. Ask for another one.")
            is_new = lead.type is LockType.REPLACE and bool(overwrites) and not lead.writes
            if lead.staged > lead.count and (is_new or not self._is_staged(lead, outputs)):
                self._clean(lead.id)  # of an earlier publish that was given up
                self._etags.clear()
                continue
            if is_new:
                self._announce(lead, outputs)
                self._etags.clear()
                continue
            if inputs and (gone := self._gone(inputs)):
                return self._settled(outputs) or Lost(f"{gone} is not visible any more.")
            made = [replace(one, published=(Publish(lead.id, lead.count + 1),)) for one in outputs]
            made += self._copies(locks, lead, made, inputs)
            answer = self._commit(held, locks, lead, made, advance)
            if answer is not None:
                return answer
            self._etags.clear()
            if settled := self._settled(outputs):
                return settled
            self.wait(tries)
        raise StorageUnavailable(f"Publishing to {self.name}: others wrote first {TRIES_MAX} times.")

    def position(self, stream: str) -> Any:
        """How far a stream is in the table; None at its beginning."""
        found = self._position(stream)
        return None if found is None else json.loads(str(found.values["position"]))

    def positions(self) -> dict[str, Any]:
        """All positions, by their stream."""
        rows = self._read(POSITION, past(POSITION))
        return {position_stream(row.key): json.loads(str(row.values["position"])) for row in rows if is_ours(row)}

    def forget(self, stream: str) -> None:
        """Delete a stream's position. Idempotent; nobody may begin the stream again after this."""
        self._try(lambda: self.rows.transact([Write(Act.DELETE, position_key(stream))]))

    def move(self, stream: str, start: Any, end: Any) -> bool:
        """Move a stream's position without publishing anything. False: it is not at `start`."""
        key, values = position_key(stream), {"position": json.dumps(end)}
        start, end = _stored(start), _stored(end)
        for tries in range(1, TRIES_MAX):
            at = self._position(stream)
            now = None if at is None else json.loads(str(at.values["position"]))
            if now == end:
                return True
            if now != start:
                return False
            write = Write(Act.INSERT, key, values) if at is None else Write(Act.MERGE, key, values, at.etag)
            if self._sent([write]) is not None:
                return True
            self.wait(tries)
        raise StorageUnavailable(f"The position of {stream} in {self.name}: others wrote first {TRIES_MAX} times.")

    def unmoved(self, stream: str, at: Any) -> Write | None:
        """A write that changes nothing and is refused if the stream has been moved since. None: it is not there."""
        found = self._position(stream)
        if found is None or json.loads(str(found.values["position"])) != _stored(at):
            return None
        return Write(Act.MERGE, found.key, etag=found.etag)

    def _commit(
        self,
        held: dict[int, tuple[Lock, str]],
        locks: Sequence[Lock],
        lead: Lock,
        made: Sequence[Segment],
        advance: Advance | None,
    ) -> Published | Lost | None:
        """One try. None: others were first, or nobody knows."""
        moved: list[Write] = []
        if advance is not None:
            at = self._position(advance.stream)
            now = None if at is None else json.loads(str(at.values["position"]))
            if now != _stored(advance.start):
                return self._settled(made) or Lost(f"{advance.stream} is at {now!r}, not at {advance.start!r}.")
            values: dict[str, Value] = {"position": json.dumps(advance.end)}
            key = position_key(advance.stream)
            moved = [Write(Act.INSERT, key, values) if at is None else Write(Act.MERGE, key, values, at.etag)]
        number = lead.count + 1
        after = {lock.id: lock.after(made) for lock in locks}
        others = [
            Write(Act.MERGE, lock_key(lock.id), _given_up(lock, after[lock.id]), held[lock.id][1])
            for lock in locks
            if lock.id != lead.id
        ]
        inserts = [Write(Act.INSERT, segment_key(one.id), segment_values(one)) for one in made]
        change = change_key(lead.id, number)
        etag = held[lead.id][1]
        if lead.partitions is None and lead.type is not LockType.APPEND:
            # Whoever allocates has to see what is visible now: see `_lock_new`.
            others.append(Write(Act.MERGE, HEAD, {"overwritten": f"{lead.id}.{number}"}))
        room = OPERATIONS_MAX - 2 - len(others) - len(moved)
        is_staged = len(inserts) > room
        moved.append(Write(Act.INSERT, change, change_values(made, is_staged=is_staged)))
        if is_staged:
            staged = self._stage(lead, etag, inserts)
            if staged is None:
                return None
            etag, inserts = staged, []
        counted: dict[str, Value] = {"count": number, "staged": 0, **_given_up(lead, after[lead.id])}
        answer = self._sent([Write(Act.MERGE, lock_key(lead.id), counted, etag), *others, *moved, *inserts])
        if answer is None:
            return None
        self._etags[lead.id] = replace(after[lead.id], count=number, staged=0), answer[0]
        for lock, new in zip([one for one in locks if one.id != lead.id], answer[1:], strict=False):
            self._etags[lock.id] = after[lock.id], new
        return Published(tuple(made))

    def _stage(self, lead: Lock, etag: str, inserts: Sequence[Write]) -> str | None:
        """Insert rows that do not count yet. Each transaction holds the lock: none goes through after a revocation."""
        there = {row.key for row in self._read(SEGMENT, past(SEGMENT))} if lead.staged > lead.count else set()
        missing = [write for write in inserts if write.key not in there]
        mark: dict[str, Value] = {"staged": lead.count + 1}
        for first in range(0, len(missing), OPERATIONS_MAX - 1):
            part = missing[first : first + OPERATIONS_MAX - 1]
            answer = self._sent([Write(Act.MERGE, lock_key(lead.id), mark, etag), *part])
            if answer is None:
                return None
            etag = answer[0]
        return etag

    def _held(self, task: str) -> dict[int, tuple[Lock, str]]:
        """The locks of a task and their ETags: as last seen, or read anew."""
        held = {number: known for number, known in self._etags.items() if task in known[0].holders}
        if not held:
            state = self.state()
            held = {lock.id: (lock, state.rows[lock.id].etag) for lock in state.box.held(task)}
            self._etags |= held
        return held

    def _is_staged(self, lead: Lock, outputs: Sequence[Segment]) -> bool:
        """Whether what is staged is a part of this very publish."""
        names = {one.id for one in outputs}
        mine = [one for one in self._leftovers(lead.id) if one.published[0].lock == lead.id]
        return all(one.id in names for one in mine)

    def _settled(self, outputs: Sequence[Segment]) -> Published | None:
        """Whether these outputs are in the table: their numbers were given to nobody else."""
        if not outputs:
            return None
        key = segment_key(outputs[0].id)
        if not self._read(key, key + "."):
            return None
        snapshot = self.latest()
        found = [snapshot.timeline.get(one.id) for one in outputs]
        if any(one is None for one in found):
            return None
        return Published(tuple(one for one in found if one is not None), again=True)

    def _gone(self, inputs: Sequence[Segment]) -> Segment | None:
        timeline = self.latest().timeline
        return next((one for one in inputs if not timeline.is_visible(one)), None)

    # REPLACE, and appending meanwhile.

    def _announce(self, lead: Lock, outputs: Sequence[Segment]) -> None:
        """Say in the APPEND locks below what is about to be written: with the head, so that no lock is overlooked."""
        places = tuple(sorted({one.interval for one in outputs if one.version == lead.version}))
        coming = Replaced(lead.id, lead.count + 1, lead.version, places)

        def decide(state: State) -> tuple[None, list[Write]]:
            if lead.id not in state.box.locks or not places:
                return None, []
            owners = {task.id: task.owner for task in state.box.tasks.values()}
            changed = [replace(state.box.locks[lead.id], writes=places)]
            for lock in state.box.active():
                below = lock.type is LockType.APPEND and lock.interval.overlaps(lead.interval)
                if below and coming not in lock.replaced:
                    changed.append(replace(lock, replaced=(*lock.replaced, coming)))
            if len(changed) > ANNOUNCED_MAX:
                raise SamzaAzureError(
                    f"{len(changed) - 1} locks to append to {lead.interval} of {self.name} would have to know what is "
                    f"about to be written there; {ANNOUNCED_MAX - 1} can. Nothing was changed. Ask for a shorter "
                    "interval, or again when fewer of its intervals are appended to."
                )
            # Columns of their own: counts are written by publishes, which do not hold the head.
            only = ("writes", "replaced")
            return None, [
                Write(
                    Act.MERGE,
                    lock_key(lock.id),
                    {name: value for name, value in lock_values(lock, owners).items() if name in only},
                )
                for lock in changed
            ]

        self._with_head(decide)

    def _copies(
        self, locks: Sequence[Lock], lead: Lock, made: Sequence[Segment], inputs: Sequence[Segment]
    ) -> list[Segment]:
        if lead.type is LockType.REPLACE:
            return self._carried(lead, made, inputs)
        copies: list[Segment] = []
        for coming in {one: None for lock in locks for one in lock.replaced}:
            late = [one for one in made if one.is_root and one.version < coming.version]
            publishes = (*made[0].published, Publish(coming.lock, coming.number))
            copies += self._copied(late, coming.intervals, coming.version, publishes)
        return copies

    def _carried(self, lead: Lock, made: Sequence[Segment], inputs: Sequence[Segment]) -> list[Segment]:
        """Copies of what was appended since the REPLACE was granted and before it was announced."""
        assert lead.read is not None
        snapshot = self.snapshot()
        mine = Publish(lead.id, lead.count + 1)
        themselves = {one.file for one in snapshot.staged if mine in one.published and one.published[0] != mine}
        late = [
            one
            for one in snapshot.timeline.visible(lead.interval)
            if not lead.read.includes(one)
            and one.version < lead.version
            and one not in inputs
            and one.file not in themselves
        ]
        return self._copied(late, lead.writes, lead.version, made[0].published)

    def _copied(
        self,
        segments: Sequence[Segment],
        intervals: Sequence[Interval],
        version: int,
        published: tuple[Publish, ...],
    ) -> list[Segment]:
        copies: list[Segment] = []
        for interval in intervals:
            below = {one.file: one for one in segments if one.interval.overlaps(interval) and one.version < version}
            if below:
                names = self.numbers(interval, version, len(below))
                copies += [
                    copy_of(one, interval, version, name.partition, published)
                    for name, one in zip(names, below.values(), strict=True)
                ]
        return copies

    def _numbers(self, counts: Mapping[_Place, int]) -> dict[_Place, tuple[int, Write]]:
        """The next number of each place, and what has to be written with the head to have so many from it on."""
        keys = {place: next_key(*place) for place in counts}
        there = {row.key: row for row in self._read(min(keys.values()), max(keys.values()) + ".")}
        found = {}
        for place, count in counts.items():
            row = there.get(keys[place])
            first = 0 if row is None else row.values["next"]
            assert isinstance(first, int)
            found[place] = first, Write(Act.INSERT if row is None else Act.MERGE, keys[place], {"next": first + count})
        return found

    def numbers(self, interval: Interval, version: int, count: int) -> list[SegmentId]:
        """Numbers for segments that an interval lock covers."""
        return self.numbers_of({interval: count}, version)[interval]

    def numbers_of(self, counts: Mapping[Interval, int], version: int) -> dict[Interval, list[SegmentId]]:
        """The same for many intervals, in few writes."""
        found = {}
        for part in _parts([*counts.items()], OPERATIONS_MAX - 2):
            wanted = {(interval, version): count for interval, count in part}
            for (interval, _), first in self._with_head(partial(self._given, wanted)).items():
                found[interval] = [SegmentId(interval, version, first + number) for number in range(counts[interval])]
        return found

    def _given(self, counts: Mapping[_Place, int], _: State) -> tuple[dict[_Place, int], list[Write]]:
        numbers = self._numbers(counts)
        return {place: first for place, (first, _) in numbers.items()}, [write for _, write in numbers.values()]

    # Reading.

    def snapshot(self, at: SequenceNumber | None = None) -> Snapshot:
        """What the table shows now, or showed at an earlier sequence number. ConfigError if that was collected."""
        while True:
            state = self.state()
            sequence = state.sequence if at is None else at
            self._check_kept(state.head, at)
            if not sequence <= state.sequence:
                raise ConfigError(f"{self.name} is at {state.sequence}, and has not been at {at}: of another table?")
            reader, foreign = SegmentReader(self.name), 0
            segments: list[Segment] = []
            staged: list[Segment] = []
            for row in self._read(SEGMENT, past(SEGMENT)):
                if not is_ours(row):
                    foreign += 1
                    continue
                one = reader.segment(row)
                (segments if sequence.includes(one) else staged).append(one)
            # What was collected meanwhile is said in the head before it is deleted: it may be missing here.
            (head,) = self._read(HEAD, HEAD + ".")
            self._check_kept(head, at)
            if at is not None or head.values.get("collected", "") == state.head.values.get("collected", ""):
                overwritten = state.head.values.get("overwritten")
                return Snapshot(self.name, sequence, Timeline(segments), tuple(staged), foreign, overwritten, head)

    def strangers(self) -> int:
        """How many rows there are between ours that are of no kind that we know. They are ignored.

        Those among the segments a snapshot counts; those among the publishes are not looked for.
        """
        spans = (("\x20", CHANGE), (past(CHANGE), SEGMENT), (past(SEGMENT), _LAST))
        return sum(not is_ours(row) for first, end in spans for row in self._read(first, end))

    def _check_kept(self, head: Row, at: SequenceNumber | None) -> None:
        """ConfigError if what a table showed then was collected, in part or as a whole."""
        collected = str(head.values.get("collected", ""))
        if at is not None and collected and not SequenceNumber.parse(collected) <= at:
            raise ConfigError(
                f"The garbage of {self.name} was collected up to {collected}; what it showed at {at} is not "
                "there any more. Read at a later sequence number, or keep garbage for longer."
            )

    def latest(self) -> Snapshot:
        """What the table shows now, without what is staged. Only what has changed since the last call is read."""
        while True:
            state, published = self._look()
            known = self._known
            restored, collected = state.head.values.get("restored", 0), state.head.values.get("collected", "")
            if known is None or (known.restored, known.collected) != (restored, collected):
                known, published = self._from_checkpoint(state), None
            changed = None if known is None else self._changed_since(known, state, published)
            if known is None or changed is None:
                return self._all_known(state)
            if not changed and (known.snapshot.sequence, known.snapshot.overwritten) == (
                state.sequence,
                state.head.values.get("overwritten"),
            ):
                snapshot = replace(known.snapshot, head=state.head)
                self._known = replace(known, snapshot=snapshot)
                return snapshot
            # Garbage collection deletes the rows of old publishes, but says so in the head before.
            (head,) = [state.head] if published is not None else self._read(HEAD, HEAD + ".")
            if (head.values.get("restored", 0), head.values.get("collected", "")) != (restored, collected):
                self._known = None
                continue
            counted = [one for one in changed if state.sequence.includes(one)]
            snapshot = replace(
                known.snapshot,
                sequence=state.sequence,
                timeline=known.snapshot.timeline.with_added(counted),
                overwritten=state.head.values.get("overwritten"),
                head=head,
            )
            waiting = tuple(
                one for one in dict.fromkeys((*known.waiting, *changed)) if not state.sequence.includes(one)
            )
            after = _Known(snapshot, restored, collected, waiting)
            self._known = replace(after, repeats=known.repeats) if after.oldest == known.oldest else after
            return snapshot

    def checkpoint(self) -> str:
        """Write all segments into one blob, from which the table is opened quickly; its name."""
        state, snapshot = self.state(), self.snapshot()
        restored = state.head.values.get("restored", 0)
        assert isinstance(restored, int)
        segments = [*snapshot.timeline, *_counted_by_their_own(snapshot)]
        name = f"{self.prefix}checkpoint-{snapshot.sequence.granted:012d}-{uuid.uuid4().hex}"
        self._try(lambda: self.blobs.put(name, Checkpoint(snapshot.sequence, restored, segments).encode()))
        before: list[str] = []

        def decide(state: State) -> tuple[None, list[Write]]:
            before[:] = [str(state.head.values.get("checkpoint", ""))]
            return None, [Write(Act.MERGE, HEAD, {"checkpoint": name})]

        self._with_head(decide)
        if before[0] not in ("", name):
            self._try(lambda: self.blobs.delete(before[0]))
        return name

    def _all_known(self, state: State) -> Snapshot:
        """The whole table, read anew."""
        snapshot = self.snapshot()
        waiting = tuple(_counted_by_their_own(snapshot))
        # As of before its rows were read: what was restored or collected meanwhile is read again.
        head = state.head.values
        slim = replace(snapshot, staged=(), foreign=0)
        self._known = _Known(slim, head.get("restored", 0), head.get("collected", ""), waiting)
        return snapshot

    def _from_checkpoint(self, state: State) -> "_Known | None":
        """What the last checkpoint says, if it is later than what was collected."""
        name = str(state.head.values.get("checkpoint", ""))
        data = self._try(lambda: self.blobs.read(name, 0)) if name else Missing()
        if isinstance(data, Missing):
            return None
        restored, collected = state.head.values.get("restored", 0), str(state.head.values.get("collected", ""))
        with no_collection():
            found = Checkpoint.decode(data.data, SegmentReader(self.name))
            if found is None or found.restored != restored:
                return None
            if collected and not SequenceNumber.parse(collected) <= found.sequence:
                return None
            counted, waiting = found.parts()
            timeline = Timeline(counted)
        overwritten = state.head.values.get("overwritten")
        return _Known(
            Snapshot(self.name, found.sequence, timeline, overwritten=overwritten), restored, collected, tuple(waiting)
        )

    def _look(self) -> tuple[State, list[Row] | None]:
        """The locks and, if both are to be had in one answer, the rows of all publishes since the table was seen.

        Keys are in this order: publishes, head, locks. Where many publishes of other locks lie between that are known,
        the locks are read alone: it is not known before which locks have published.
        """
        known = self._known
        if known is None or known.repeats > _REPEATS_MAX:
            return self.state(), None
        since = known.snapshot.sequence
        found = self._read(change_key(known.oldest, since.counts.get(known.oldest, -1) + 1), past(LOCK))
        published = [row for row in found if is_change(row.key)]
        state = self._state_of([row for row in found if row.key >= HEAD])
        now, there = state.sequence, {row.key for row in published}
        self._known = replace(known, repeats=sum(since.has(*changed_key(row.key)) for row in published))
        # A publish writes both rows or neither. If one of them is not here, this was no answer of one moment.
        missing = any(
            change_key(lock, number) not in there
            for lock, count in now.counts.items()
            for number in range((since.count(lock) or 0) + 1, count + 1)
        )
        return state, None if missing or not isinstance(found, AtOnce) else published

    def _changed_since(
        self, known: "_Known", state: State, published: Sequence[Row] | None = None
    ) -> list[Segment] | None:
        """The segments of all publishes since then, of which the rows may have been read with the locks. None: that
        cannot be said, and all rows have to be read."""
        since, now = known.snapshot.sequence, state.sequence
        reader, found = SegmentReader(self.name), dict[SegmentId, Segment]()
        for row in self._published_since(since, now) if published is None else published:
            lock, number = changed_key(row.key)
            if since.has(lock, number) or not now.has(lock, number):
                continue
            if (segments := changed_by(row, reader)) is None:
                return None
            found |= {one.id: one for one in segments}
        found |= {one.id: one for one in known.waiting if now.includes(one)}
        return [one for one in found.values() if not now.includes(one) or self._is_there(one)]

    def _published_since(self, since: SequenceNumber, now: SequenceNumber) -> Iterator[Row]:
        """The rows of publishes between two sequence numbers, and perhaps others."""
        ranges = [(change_key(since.granted + 1, 0), past(CHANGE))] if now.granted > since.granted else []
        for lock, count in since.counts.items():
            if (later := now.count(lock)) is None or later > count:
                ranges.append((change_key(lock, count + 1), change_key(lock + 1, 0)))
        if len(ranges) > _RANGES_MAX:
            ranges = [(min(first for first, _ in ranges), past(CHANGE))]
        for first, end in ranges:
            yield from (row for row in self._read(first, end) if is_change(row.key))

    def _is_there(self, segment: Segment) -> bool:
        """Whether what a publish has repeated is in the table. A copy is taken back if its REPLACE gives up, and that
        one's lock is gone then, as if it had published."""
        return len(segment.published) == 1 or bool(self._read(segment_key(segment.id), segment_key(segment.id) + "."))

    def pin(self, reader: str, snapshot: Snapshot, until_us: int) -> None:
        """Keep what a snapshot shows until a moment of the wall clock. Pinning again prolongs it.

        ConfigError if garbage was collected since which the snapshot may show: it is too late.
        """
        key, values = READER + reader, dict[str, Value](sequence=str(snapshot.sequence), until=until_us)

        def decide(state: State) -> tuple[None, list[Write]]:
            self._check_kept(state.head, snapshot.sequence)
            is_there = any(row.key == key for row in self._read(key, key + "\x20"))  # from before; it may go now
            return None, [Write(Act.MERGE if is_there else Act.INSERT, key, values)]

        # With the head, like the mark of a collection: one of the two comes first, and the other one knows of it.
        self._with_head(decide)

    def unpin(self, reader: str) -> None:
        """The snapshot is not needed any more. Idempotent."""
        self._try(lambda: self.rows.transact([Write(Act.DELETE, READER + reader)]))

    # Garbage.

    def drop(self, task: Task, interval: Interval) -> Published | Lost | Wait | Revoked:
        """Hide all of an interval, until `restore`. Its segments are garbage from now on."""
        answer = self.acquire_anew(task, Request(task.id, self.name, interval))
        if not isinstance(answer, Granted):
            return answer
        try:
            (name,) = self.numbers(interval, answer.lock.version, 1)
            return self.publish(task.id, [Segment.root(self.name, *name)], under=[answer.lock.id])
        finally:
            self.release(task.id, answer.lock.id)

    def restore(self, interval: Interval) -> int:
        """Take back the latest `drop` of exactly this interval; how many segments are visible again.

        0 if there is none, or the garbage that it made was collected. ConfigError if something lies over it by now:
        rows that were appended since, another drop, or what was written anew; and if somebody has a lock there, who may
        be about to write over it.
        """
        sent: list[Segment] = []  # in a try whose answer may have been lost

        def decide(state: State) -> tuple[bool, list[Write]]:
            timeline = self.snapshot().timeline
            visible = [one for one in timeline.visible(interval) if one.interval == interval]
            chunk = timeline.chunk(interval, visible[0].version) if visible else None
            # All that have no file: they may have been merged, and below the outcome lie the inputs.
            dropped = [one for one in chunk.segments.values() if one.file is None] if chunk is not None else []
            if dropped and dropped[0].version not in versions_of_drops(timeline):
                return False, []  # an empty interval of a REPLACE: without it the others would count no longer
            if dropped and any(one.file is not None for one in visible):
                raise ConfigError(
                    f"Rows were appended to {interval} since it was dropped, so the drop cannot be taken back. What "
                    "was dropped can still be read at the sequence number of before, until it is collected: "
                    "open(..., at=...)."
                )
            if not dropped and not sent and (over := _over_a_drop(timeline, interval)) is not None:
                raise ConfigError(
                    f"The drop of {interval} cannot be taken back: it lies below {over}, which was dropped or written "
                    "anew since. Take that drop back first. What was written anew stays, without what was dropped; "
                    "that can still be read at the sequence number of before, until it is collected: open(..., at=...)."
                )
            if not dropped:
                return bool(sent), []
            collected = str(state.head.values.get("collected", ""))
            if collected and any(map(SequenceNumber.parse(collected).includes, dropped)):
                return False, []  # what it hides may be half deleted at this moment
            there = [one for one in state.box.active() if one.interval.overlaps(interval) and not one.is_used_up]
            if busy := [str(lock.id) for lock in there]:
                raise ConfigError(
                    f"The drop of {interval} cannot be taken back while somebody has a lock there, who may be about to "
                    f"write over it: lock {', '.join(busy)}. Try again when it is given back."
                )
            sent[:] = dropped
            times = state.head.values.get("restored", 0)
            assert isinstance(times, int)
            # Whoever knows the table reads all of it again, and whoever has chosen a place over the drop another one.
            head: dict[str, Value] = {"restored": times + 1, "overwritten": f"restored.{times + 1}"}
            return True, [Write(Act.MERGE, HEAD, head), *(Write(Act.DELETE, segment_key(one.id)) for one in dropped)]

        is_restored = self._with_head(decide)
        return len(self.snapshot().timeline.visible(interval)) if is_restored else 0

    def collect(self, now_us: int, grace_us: int) -> Collected:
        """Delete what has been garbage for `grace_us`, the files that no row refers to, and uploads of the dead.

        What was garbage at the last look that is at least `grace_us` old, and is still, goes; unless a reader has
        pinned what was before that look. So the first call deletes no segment. A reader that does not pin its
        snapshot has `grace_us` to read it. A crash at any point leaves files that the next call deletes.
        """
        uploads = self.blobs.list(self.prefix)  # before the locks: what is uploaded later is not judged
        snapshot, mark = self._mark(now_us, grace_us)
        garbage: list[Segment] = []
        if mark is not None:
            then = set(snapshot.timeline.at(mark).fully_overshadowed())
            garbage = [one for one in snapshot.timeline.fully_overshadowed() if one in then]
        self._delete(garbage)
        if mark is not None:
            self._delete_changes(mark)
        if self._wants_checkpoint():
            self.checkpoint()
        state = self.state()
        left = self.snapshot()
        kept = {one.file.name for one in (*left.timeline, *left.staged) if one.file is not None}
        kept.add(str(state.head.values.get("checkpoint", "")))
        mine = {one.file.name for one in garbage if one.file is not None} - kept
        orphans = [name for name, _ in uploads if name not in kept | mine and not self._may_still_publish(name, state)]
        for names in _parts([*sorted(mine), *orphans], DELETE_MAX):
            self.blobs.delete_many(names)
        return Collected(len(garbage), len(mine), len(orphans))

    @property
    def prefix(self) -> str:
        """Where the files of this table are."""
        return f"tables/{self.name}/"

    def upload(self, name: str, data: bytes) -> None:
        """Put a file that nobody sees yet; again if the answer is lost."""
        self._try(lambda: self.blobs.put(name, data))

    def file_name(self, lock: int, unique: str) -> str:
        """The name of a file that is uploaded under a lock. Who has lost it cannot publish the file."""
        return f"{self.prefix}{lock:012d}-{unique}.parquet"

    def _wants_checkpoint(self) -> bool:
        """Whether so much was published since the last one that opening the table takes longer than it need."""
        state = self.state()
        known = self._from_checkpoint(state)
        changed = self._changed_since(known, state) if known is not None else None
        return len(self.latest().timeline if changed is None else changed) >= CHECKPOINT_AFTER

    def _delete_changes(self, mark: SequenceNumber) -> None:
        """Delete what the publishes up to a mark have repeated: nobody goes on from before it."""
        keys = [row.key for row in self._read(CHANGE, past(CHANGE)) if is_change(row.key)]
        old = [key for key in keys if mark.has(*changed_key(key))]
        for part in _parts([Write(Act.DELETE, key) for key in old], OPERATIONS_MAX):
            if isinstance(self._try(partial(self.rows.transact, part)), Refused):
                for write in part:
                    self._try(partial(self.rows.transact, [write]))

    def _may_still_publish(self, name: str, state: State) -> bool:
        number = name.removeprefix(self.prefix).partition("-")[0]
        if number == "checkpoint":  # of a collector that died, or is at work: without it readers take the rows
            return False
        return not number.isdigit() or int(number) in state.box.locks or int(number) > state.box.granted

    def _pinned(self, now_us: int) -> list[SequenceNumber]:
        """What readers have pinned. The rows of pins that are over are deleted, unless they are prolonged now."""
        found = []
        for row in filter(is_ours, self._read(READER, past(READER))):
            until = row.values["until"]
            if isinstance(until, int) and until > now_us:
                found.append(SequenceNumber.parse(str(row.values["sequence"])))
            else:
                self._sent([Write(Act.DELETE, row.key, etag=row.etag)])
        return found

    def _mark(self, now_us: int, grace_us: int) -> tuple[Snapshot, SequenceNumber | None]:
        """Note in the head what there is now, and that nothing before the mark that is returned can be read."""

        def decide(state: State) -> tuple[tuple[Snapshot, SequenceNumber | None], list[Write]]:
            snapshot = self.snapshot()  # a drop that is taken back before the head is written is not in it
            pinned = self._pinned(now_us)
            marks: list[tuple[int, str]] = json.loads(str(state.head.values["marks"]))
            old = [(at, text) for at, text in marks if at <= now_us - grace_us]
            able = [text for _, text in old if all(SequenceNumber.parse(text) <= pin for pin in pinned)]
            kept = [one for one in marks if one not in old or one == old[-1]]
            if len(kept) > 1 and 0 <= kept[-1][0] - kept[-2][0] < grace_us // 16:
                kept.pop()  # however often this is called, a few marks reach back to the grace
            marks = _fitting([*kept[-20:], (now_us, str(snapshot.sequence))], able[-1] if able else None)
            if not marks:
                raise ConfigError(
                    f"{len(snapshot.sequence.counts):,} locks of {self.name} are held at once, more than a sequence "
                    f"number in its head has room for. Garbage was not collected. `samza-azure table JOB {self.name}` "
                    "shows the locks; end those whose owners have died with --end."
                )
            values: dict[str, Value] = {"marks": json.dumps(marks)}
            before = str(state.head.values.get("collected", ""))
            if able and not (before and SequenceNumber.parse(able[-1]) <= SequenceNumber.parse(before)):
                values["collected"] = able[-1]  # never back: another collector may have a shorter grace
            mark = SequenceNumber.parse(able[-1]) if able else None
            return (snapshot, mark), [Write(Act.MERGE, HEAD, values)]

        return self._with_head(decide)

    # What a lock leaves behind.

    def _leftovers(self, lock: int) -> list[Segment]:
        """Rows of a publish under a lock that does not count."""
        snapshot = self.snapshot()
        count = snapshot.sequence.count(lock) or 0
        return [
            one
            for one in snapshot.staged
            if any(publish.lock == lock and publish.number > count for publish in one.published)
        ]

    def _clean(self, lock: int) -> None:
        """Delete what was staged under a lock and does not count.

        First the announcement is taken back, which fences appends that put copies there, and the lock's row is
        written, which fences its owner. After that no more of it can come. It is said in many locks in several
        transactions; `staged` says until the end that there is something to clean, and the first transaction that new
        locks are not told of it any more.
        """

        def decide(state: State) -> tuple[bool, list[Write]]:
            found = state.box.locks.get(lock)
            if found is None:
                return True, []
            owners = {task.id: task.owner for task in state.box.tasks.values()}
            said = []
            for other in state.box.locks.values():
                rest = tuple(one for one in other.replaced if (one.lock, one.number) != (lock, found.count + 1))
                if rest != other.replaced:
                    values = lock_values(replace(other, replaced=rest), owners)
                    said.append(Write(Act.MERGE, lock_key(other.id), {"replaced": values["replaced"]}))
            staged = max(found.staged, found.count + 1)
            mine = Write(Act.MERGE, lock_key(lock), {"writes": "", "staged": staged})
            return len(said) <= _LOCKS_MAX, [mine, *said[:_LOCKS_MAX]]

        while not self._with_head(decide):
            pass
        self._delete(self._leftovers(lock))
        clean = Write(Act.MERGE, lock_key(lock), {"staged": 0})
        # With the head: a call whose answer was lost, and that arrives when more is staged, must not say so of that.
        self._with_head(lambda state: (None, [clean] if lock in state.box.locks else []))

    def _delete(self, segments: Iterable[Segment]) -> None:
        """Delete rows, many at once, or one by one where somebody else has deleted some of them."""
        for part in _parts([Write(Act.DELETE, segment_key(one.id)) for one in segments], OPERATIONS_MAX):
            if isinstance(self._try(partial(self.rows.transact, part)), Refused):
                for write in part:
                    self._try(partial(self.rows.transact, [write]))

    # Calls.

    def _with_head(self, decide: Callable[[State], tuple[T, list[Write]]]) -> T:
        """Decide on what the locks are, and write it if they still are; again, if others were first."""
        for tries in range(1, TRIES_MAX):
            state = self.state()
            answer, writes = decide(state)
            if not writes:
                return answer
            on_head = [write for write in writes if write.key == HEAD]
            values = {name: value for write in on_head for name, value in write.values.items()}
            granted = max([state.box.granted, *(_number(write) for write in writes)])
            head = Write(Act.MERGE, HEAD, {"granted": granted, **values}, state.head.etag)
            if self._sent([head, *(write for write in writes if write.key != HEAD)]) is not None:
                return answer
            self.wait(tries)
        raise StorageUnavailable(f"The head of {self.name}: others wrote first {TRIES_MAX} times.")

    def _of_decision(self, state: State, decision: Decision) -> list[Write]:
        """What a decision of the lock box writes."""
        owners = {task.id: task.owner for task in state.box.tasks.values()}
        writes = []
        for lock in decision.changed:
            known = state.box.locks.get(lock.id)
            if known is None:
                announced = self._announced(state, lock)
                writes.append(Write(Act.INSERT, lock_key(lock.id), lock_values(announced, owners)))
                continue
            before, after = lock_values(known, owners), lock_values(lock, owners)
            changes = {name: value for name, value in after.items() if before[name] != value}
            changes["holders"] = after["holders"]
            # Whoever loses the lock may publish at this moment, which does not touch the head. Who is granted the
            # interval has to know that publish: it reads as of its grant.
            etag = state.rows[lock.id].etag if "revoked" in changes else None
            writes.append(Write(Act.MERGE, lock_key(lock.id), changes, etag))
        # Whatever is staged under a lock that is gone counts. So nobody may have staged anything since.
        gone = [lock.id for lock in decision.gone if lock.id in state.box.locks]
        writes += [Write(Act.DELETE, lock_key(number), etag=state.rows[number].etag) for number in gone]
        if len(writes) > OPERATIONS_MAX - 2:
            raise SamzaAzureError(
                f"{len(writes)} locks of {self.name} would change at once; {OPERATIONS_MAX - 2} can. "
                "Ask for a shorter interval."
            )
        return writes

    @staticmethod
    def _announced(state: State, lock: Lock) -> Lock:
        """A new APPEND lock knows what a REPLACE is about to write."""
        if lock.type is not LockType.APPEND:
            return lock
        coming = tuple(
            Replaced(one.id, one.count + 1, one.version, one.writes)
            for one in state.box.active()
            if one.writes and one.count == 0 and one.interval.overlaps(lock.interval)
        )
        return replace(lock, replaced=coming)

    def _position(self, stream: str) -> Row | None:
        key = position_key(stream)
        found = self._read(key, key + "\x20")
        return found[0] if found and found[0].key == key else None

    def _sent(self, writes: Sequence[Write]) -> list[str] | None:
        """One transaction, sent once. None: refused, or nobody knows; the caller reads."""
        try:
            answer = self.rows.transact(writes)
        except Unsettled:
            return None
        return None if isinstance(answer, Refused) else answer

    def _try(self, call: Callable[[], T]) -> T:
        """A call that may be repeated: until it is answered."""
        for tries in range(1, TRIES_MAX):
            try:
                return call()
            except StorageUnavailable:
                if tries > 5:
                    raise
                self.wait(tries)
        raise StorageUnavailable(f"{self.name} does not answer.")

    def _read(self, first: str, end: str) -> list[Row]:
        return self._try(lambda: self.rows.query(first, end))


def _counted_by_their_own(snapshot: Snapshot) -> list[Segment]:
    """Of what is staged, the copies that were published and wait for the REPLACE that they count with."""
    return [one for one in snapshot.staged if snapshot.sequence.has(*one.published[0])]


def _has_leftovers(lock: Lock) -> bool:
    """Whether something was staged under a lock, or announced, that does not count."""
    return lock.staged > lock.count or bool(lock.writes)


def _released(box: LockBox, task: str, lock: int) -> Decision:
    """How a box changes when a task gives one lock back."""
    found = box.locks.get(lock)
    if found is None:
        return Decision(Wait(()))
    rest = found.holders - {task}
    if rest:
        return Decision(Wait(()), changed=(replace(found, holders=rest),))
    return Decision(Wait(()), gone=(found,))


def _given_up(lock: Lock, after: Lock) -> dict[str, Value]:
    """What a publish changes in the row of a lock beside its count."""
    return {} if after == lock else {"partitions": partitions_value(after)}


def _number(write: Write) -> int:
    """The number of a lock that is granted by a write."""
    return int(write.key.removeprefix(LOCK)) if write.act is Act.INSERT and write.key.startswith(LOCK) else 0


def versions_of_drops(timeline: Timeline) -> set[int]:
    """The versions that a drop may have. A drop has one interval; a REPLACE has them all, with and without rows."""
    return {version for version, count in Counter(chunk.version for chunk in timeline.chunks).items() if count == 1}


def _fitting(marks: Sequence[tuple[int, str]], used: str | None) -> list[tuple[int, str]]:
    """The marks that the head has room for. The first makes room once it has been used; until then the last, which is
    new, is left out: one that is always replaced by a later one would never be as old as the grace."""
    kept = list(marks)
    while kept and len(json.dumps(kept)) > TEXT_MAX:
        del kept[0 if len(kept) > 1 and kept[0][1] == used else -1]
    return kept


def _over_a_drop(timeline: Timeline, interval: Interval) -> Interval | None:
    """What hides a drop of exactly this interval, if there is a drop and it is hidden."""
    drops = versions_of_drops(timeline)
    mine = [one for one in timeline.chunks if one.interval == interval and one.version in drops]
    there = [one.version for one in mine if any(segment.file is None for segment in one.segments.values())]
    above = [entry for entry in timeline.lookup(interval) if entry.version > max(there, default=entry.version)]
    return above[0].chunk.interval if above else None


def _stored(position: Any) -> Any:
    """A position as it is read again: JSON knows no tuples, and no keys but texts."""
    return json.loads(json.dumps(position))


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]

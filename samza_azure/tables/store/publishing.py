"""Publish segments together with the position that they come from, all or nothing; REPLACE, and appends meanwhile.

- *A publish* is one transaction: its lock rows and the position of its stream, if nobody wrote them since (so the
  locks are still granted), and its segments. The first of its locks counts it. A segment counts once its lock's count
  includes the publish.
- *A publish larger than one transaction* is staged first: its rows are inserted with the next number of the lock,
  in transactions that each hold the lock's row, too. They do not count before the last transaction raises the count.
- *REPLACE* announces in the APPEND locks below it what it is about to write. From then on each append also puts a
  copy of its rows there, which counts with the REPLACE. The REPLACE carries over what was appended before.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from samza_azure.errors import ConfigError, CorruptState, SamzaAzureError, StorageUnavailable
from samza_azure.logs.operations import Pause
from samza_azure.segments import Advance, Interval, LockType, LostRace, Publish, Published, Segment, TableLock
from samza_azure.segments.locks import Replaced
from samza_azure.segments.publishing import check_outputs, copy_of, locks_for
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Write
from samza_azure.tables.store import allocation, reading
from samza_azure.tables.store import locks as lock_rows
from samza_azure.tables.store.changes import change_key, change_values
from samza_azure.tables.store.rows import (
    HEAD,
    POSITION,
    SEGMENT,
    is_ours,
    lock_key,
    lock_values,
    partitions_value,
    past,
    position_key,
    position_of,
    position_stream,
    segment_key,
    segment_values,
)
from samza_azure.tables.store.table import TRIES_MAX, SegmentTable, TableLocks

#: A REPLACE announces its outputs in one transaction, in at most this many locks including its own.
ANNOUNCED_MAX = OPERATIONS_MAX - 1


def publish(
    table: SegmentTable,
    task: str,
    outputs: Sequence[Segment],
    *,
    inputs: Iterable[Segment] = (),
    advance: Advance | None = None,
    under: Iterable[int] = (),
) -> Published | LostRace:
    """Publish segments and the position of the stream that they come from, all or nothing.

    `under` are the locks that the caller was granted for this; one that is gone was ended by others. Return
    `LostRace`, with nothing changed, if a lock was revoked or ended, an input is no longer visible, or the stream has
    moved. Raise ValueError for outputs that can never be published (see `segments/publishing.py`).
    """
    inputs, under = list(inputs), set(under)
    check_outputs(outputs, inputs)
    if not outputs:
        if advance is None or move(table, *advance):
            return Published(())
        return LostRace(f"{advance.stream} is at {position(table, advance.stream)!r}, not at {advance.start!r}.")
    for tries in range(1, TRIES_MAX):
        held = _held(table, task)
        try:
            locks = locks_for([lock for lock, _ in held.values()], [*outputs, *inputs], name=task)
        except ValueError as error:
            if settled := _settled(table, outputs):
                return settled
            if tries == 1 and under <= held.keys():
                raise
            locks = LostRace(f"{error} It had one: its life was ended, and its locks with it.")
        if isinstance(locks, LostRace):
            return _settled(table, outputs) or locks
        if len(locks) > OPERATIONS_MAX - 4:
            raise ConfigError(
                f"Rows of {len(locks)} intervals of {table.name} in one publish; {OPERATIONS_MAX - 4} are possible. "
                "Write fewer rows at once, or give the table a coarser granularity."
            )
        lead = min(locks, key=lambda lock: lock.id)
        overwrites = [one for one in outputs if one.is_root and one.version == lead.version and lead.version]
        if lead.type is LockType.REPLACE and overwrites and lead.count:
            if settled := _settled(table, outputs):
                return settled
            raise ValueError(f"Lock {lead.id} has replaced {lead.interval} already. Ask for another one.")
        is_new = lead.type is LockType.REPLACE and bool(overwrites) and not lead.writes
        if lead.staged > lead.count and (is_new or not _is_staged(table, lead, outputs)):
            lock_rows.clean(table, lead.id)  # what an abandoned publish has staged
            table.etags.clear()
            continue
        if is_new:
            announce(table, lead, outputs)
            table.etags.clear()
            continue
        if inputs and (gone := _gone(table, inputs)):
            return _settled(table, outputs) or LostRace(f"{gone} is no longer visible.")
        made = [replace(one, published=(Publish(lead.id, lead.count + 1),)) for one in outputs]
        made += _copies(table, locks, lead, made, inputs)
        answer = _commit(table, held, locks, lead, made, advance)
        if answer is not None:
            return answer
        table.etags.clear()
        if settled := _settled(table, outputs):
            return settled
        table.wait(Pause(tries))
    raise StorageUnavailable(f"Publishing to {table.name}: others wrote first {TRIES_MAX} times.")


def position(table: SegmentTable, stream: str) -> Any:
    """The position of a stream in the table; None if it has none yet."""
    return _position(table, stream)[1]


def positions(table: SegmentTable) -> dict[str, Any]:
    """All positions, by stream."""
    rows = table.read(POSITION, past(POSITION))
    found = {}
    for row in filter(is_ours, rows):
        with suppress(CorruptState):  # a foreign row must not end the housekeeping of all others
            found[position_stream(row.key)] = position_of(row)
    return found


def forget(table: SegmentTable, stream: str) -> None:
    """Delete a stream's position. Idempotent. The stream must not be started again after this."""
    table.tried(lambda: table.rows.transact([Write(Act.DELETE, position_key(stream))]))


def move(table: SegmentTable, stream: str, start: Any, end: Any) -> bool:
    """Move a stream's position without publishing anything. False: it is not at `start`."""
    for tries in range(1, TRIES_MAX):
        at, now = _position(table, stream)
        if now == _stored(end):
            return True
        if now != _stored(start):
            return False
        if table.sent([_moved(stream, at, end)]) is not None:
            return True
        table.wait(Pause(tries))
    raise StorageUnavailable(f"The position of {stream} in {table.name}: others wrote first {TRIES_MAX} times.")


def unmoved(table: SegmentTable, stream: str, at: Any) -> Write | None:
    """A write that changes nothing and is refused if the stream has moved. None if it is not at this position now."""
    found, now = _position(table, stream)
    return None if found is None or now != _stored(at) else Write(Act.MERGE, found.key, etag=found.etag)


def _commit(
    table: SegmentTable,
    held: dict[int, tuple[TableLock, str]],
    locks: Sequence[TableLock],
    lead: TableLock,
    made: Sequence[Segment],
    advance: Advance | None,
) -> Published | LostRace | None:
    """Try once. Return None if others wrote first, or if the outcome is unknown."""
    moved: list[Write] = []
    if advance is not None:
        at, now = _position(table, advance.stream)
        if now != _stored(advance.start):
            return _settled(table, made) or LostRace(f"{advance.stream} is at {now!r}, not at {advance.start!r}.")
        moved = [_moved(advance.stream, at, advance.end)]
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
        # An allocation that has not seen what is visible now is refused: see `allocation._allocate`.
        others.append(Write(Act.MERGE, HEAD, {"overwritten": f"{lead.id}.{number}"}))
    room = OPERATIONS_MAX - 2 - len(others) - len(moved)
    is_staged = len(inserts) > room
    moved.append(Write(Act.INSERT, change, change_values(made, is_staged=is_staged)))
    if is_staged:
        staged = _stage(table, lead, etag, inserts)
        if staged is None:
            return None
        etag, inserts = staged, []
    counted: dict[str, Value] = {"count": number, "staged": 0, **_given_up(lead, after[lead.id])}
    answer = table.sent([Write(Act.MERGE, lock_key(lead.id), counted, etag), *others, *moved, *inserts])
    if answer is None:
        return None
    table.etags[lead.id] = replace(after[lead.id], count=number, staged=0), answer[0]
    for lock, new in zip([one for one in locks if one.id != lead.id], answer[1:], strict=False):
        table.etags[lock.id] = after[lock.id], new
    return Published(tuple(made))


def _stage(table: SegmentTable, lead: TableLock, etag: str, inserts: Sequence[Write]) -> str | None:
    """Insert rows that do not count yet. Each transaction writes the lock's row, so none passes after a revocation."""
    there = {row.key for row in table.read(SEGMENT, past(SEGMENT))} if lead.staged > lead.count else set()
    missing = [write for write in inserts if write.key not in there]
    mark: dict[str, Value] = {"staged": lead.count + 1}
    for first in range(0, len(missing), OPERATIONS_MAX - 1):
        part = missing[first : first + OPERATIONS_MAX - 1]
        answer = table.sent([Write(Act.MERGE, lock_key(lead.id), mark, etag), *part])
        if answer is None:
            return None
        etag = answer[0]
    return etag


def _held(table: SegmentTable, task: str) -> dict[int, tuple[TableLock, str]]:
    """The locks of a task and their ETags, as last seen or read again."""
    held = {number: known for number, known in table.etags.items() if task in known[0].holders}
    if not held:
        state = table.state()
        held = {lock.id: (lock, state.rows[lock.id].etag) for lock in state.box.held(task)}
        table.etags |= held
    return held


def _is_staged(table: SegmentTable, lead: TableLock, outputs: Sequence[Segment]) -> bool:
    """Whether what is staged belongs to this publish."""
    names = {one.id for one in outputs}
    mine = [one for one in lock_rows.leftovers(table, lead.id) if one.published[0].lock == lead.id]
    return all(one.id in names for one in mine)


def _settled(table: SegmentTable, outputs: Sequence[Segment]) -> Published | None:
    """The publish of these outputs if they are in the table; nobody else has their numbers."""
    if not outputs:
        return None
    key = segment_key(outputs[0].id)
    if not table.read(key, key + "."):
        return None
    snapshot = reading.latest(table)
    found = [snapshot.timeline.get(one.id) for one in outputs]
    if any(one is None for one in found):
        return None
    return Published(tuple(one for one in found if one is not None), again=True)


def _gone(table: SegmentTable, inputs: Sequence[Segment]) -> Segment | None:
    """An input that has been replaced by others."""
    timeline = reading.latest(table).timeline
    return next((one for one in inputs if not timeline.is_visible(one)), None)


# REPLACE, and appends meanwhile.


def announce(table: SegmentTable, lead: TableLock, outputs: Sequence[Segment]) -> None:
    """Announce in the APPEND locks below what is about to be written. With the head, so that no new lock is missed."""
    places = tuple(sorted({one.interval for one in outputs if one.version == lead.version}))
    coming = Replaced(lead.id, lead.count + 1, lead.version, places)

    def decide(state: TableLocks) -> tuple[None, list[Write]]:
        if lead.id not in state.box.locks or not places:
            return None, []
        changed = [replace(state.box.locks[lead.id], writes=places)]
        for lock in state.box.active():
            below = lock.type is LockType.APPEND and lock.interval.overlaps(lead.interval)
            if below and coming not in lock.replaced:
                changed.append(replace(lock, replaced=(*lock.replaced, coming)))
        if len(changed) > ANNOUNCED_MAX:
            raise SamzaAzureError(
                f"{len(changed) - 1} locks are held to append to {lead.interval} of {table.name}, and a rewrite can be "
                f"announced to {ANNOUNCED_MAX - 1}. Nothing was changed. Name a shorter interval, or try again when "
                "fewer of its intervals are appended to."
            )
        # Only these columns: publishes write the counts, and they do not touch the head.
        values = {lock.id: lock_values(lock, state.owners) for lock in changed}
        return None, [
            Write(Act.MERGE, lock_key(lock), {name: of[name] for name in ("writes", "replaced")})
            for lock, of in values.items()
        ]

    table.with_head(decide)


def _copies(
    table: SegmentTable, locks: Sequence[TableLock], lead: TableLock, made: Sequence[Segment], inputs: Sequence[Segment]
) -> list[Segment]:
    if lead.type is LockType.REPLACE:
        return _carried(table, lead, made, inputs)
    copies: list[Segment] = []
    for coming in {one: None for lock in locks for one in lock.replaced}:
        late = [one for one in made if one.is_root and one.version < coming.version]
        publishes = (*made[0].published, Publish(coming.lock, coming.number))
        copies += _copied(table, late, coming.intervals, coming.version, publishes)
    return copies


def _carried(table: SegmentTable, lead: TableLock, made: Sequence[Segment], inputs: Sequence[Segment]) -> list[Segment]:
    """Copies of what was appended since the REPLACE was granted and before it was announced."""
    assert lead.read is not None
    snapshot = reading.snapshot(table)
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
    return _copied(table, late, lead.writes, lead.version, made[0].published)


def _copied(
    table: SegmentTable,
    segments: Sequence[Segment],
    intervals: Sequence[Interval],
    version: int,
    published: tuple[Publish, ...],
) -> list[Segment]:
    below = {
        interval: {one.file: one for one in segments if one.interval.overlaps(interval) and one.version < version}
        for interval in intervals
    }
    wanted = {interval: len(found) for interval, found in below.items() if found}
    return [
        copy_of(one, interval, version, name.partition, published)
        for interval, names in allocation.numbers_of(table, wanted, version).items()
        for name, one in zip(names, below[interval].values(), strict=True)
    ]


def _position(table: SegmentTable, stream: str) -> tuple[Row | None, Any]:
    """The row of a stream's position, and the position."""
    key = position_key(stream)
    found = table.read(key, key + "\x20")
    return (found[0], position_of(found[0])) if found and found[0].key == key else (None, None)


def _moved(stream: str, at: Row | None, end: Any) -> Write:
    key, values = position_key(stream), {"position": json.dumps(end)}
    return Write(Act.INSERT, key, values) if at is None else Write(Act.MERGE, key, values, at.etag)


def _given_up(lock: TableLock, after: TableLock) -> dict[str, Value]:
    """What a publish changes in the row of a lock besides its count."""
    return {} if after == lock else {"partitions": partitions_value(after)}


def _stored(position: Any) -> Any:
    """A position as JSON returns it: without tuples, and with strings as keys."""
    return json.loads(json.dumps(position))

"""What a table shows, now or earlier: each publish as a whole or not at all.

Locks are read first and segments after them. So each publish that the locks count has all its rows, and a later one is
recognized by its number. A client that has the table open reads only what was published since.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.outcomes import Missing
from samza_azure.segments import Segment, SegmentId, SequenceNumber, Timeline
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.transactions import Act, AtOnce, Write
from samza_azure.tables.store.changes import (
    CHANGE,
    Checkpoint,
    change_key,
    changed_by,
    changed_key,
    is_change,
    no_collection,
)
from samza_azure.tables.store.rows import (
    HEAD,
    LOCK,
    READER,
    SEGMENT,
    SegmentReader,
    is_ours,
    past,
    segment_key,
    sequence_of,
)
from samza_azure.tables.store.table import Known, SegmentTable, Snapshot, TableLocks

#: A collection writes a checkpoint when this many segments were published since the last one.
CHECKPOINT_AFTER = 500
#: A larger checkpoint is neither written nor read: readers read the rows.
CHECKPOINT_BYTES_MAX = 256 << 20
#: A collection mark or a pin lists the publish counts of at most this many locks, which is what fits into a column.
LISTED_MAX = 1_000
#: The publishes of up to this many locks are read lock by lock; for more locks, all publishes are read.
_RANGES_MAX = 6
#: Up to this many known publishes are read again if that saves a separate read of the locks.
_REPEATS_MAX = 100
#: Sorts after every character that keys contain.
_LAST = "\uffef"


class GarbageCollected(ConfigError):
    """Garbage that the table showed at a sequence number was collected since."""


def snapshot(table: SegmentTable, at: SequenceNumber | None = None) -> Snapshot:
    """What the table shows now, or showed at an earlier sequence number. ConfigError if that was collected."""
    while True:
        state = table.state()
        sequence = state.sequence if at is None else at
        _check_kept(table, state.head, at)
        if not sequence <= state.sequence:
            raise ConfigError(
                f"{table.name} is at {state.sequence}, and {at} is not earlier. "
                "Is it a sequence number of another table?"
            )
        reader, foreign = SegmentReader(table.name), 0
        segments: list[Segment] = []
        staged: list[Segment] = []
        for row in table.read(SEGMENT, past(SEGMENT)):
            if not is_ours(row):
                foreign += 1
                continue
            one = reader.segment(row)
            (segments if sequence.includes(one) else staged).append(one)
        # A collection writes into the head before it deletes anything; what it deleted may be missing here.
        (head,) = table.read(HEAD, HEAD + ".")
        _check_kept(table, head, at)
        before, after = ([one.values.get(name) for name in ("collected", "restored")] for one in (state.head, head))
        # Without the drop that hid them, rows that were read before would seem to be visible.
        if before[1] == after[1] and (at is not None or before[0] == after[0]):
            return Snapshot(
                table.name, sequence, _timeline(table, partial(Timeline, segments)), tuple(staged), foreign, head
            )


def _timeline(table: SegmentTable, make: Callable[[], Timeline]) -> Timeline:
    """Make a timeline of segments that were read. Raise CorruptState if no publish has left them together."""
    try:
        return make()
    except ValueError as error:
        raise CorruptState(
            f"Segments of the table {table.name} contradict each other: {error} Another program has written the row of "
            "one of them. Nothing is read, since that row may hide others. Delete it, or restore it from a backup",
            blob=f"{SEGMENT}<interval>.<version>.<partition>",
        ) from error


def strangers(table: SegmentTable) -> int:
    """The number of rows of an unknown kind among ours. They are ignored.

    A snapshot counts those among the segments; those among the publishes are not counted.
    """
    spans = (("\x20", CHANGE), (past(CHANGE), SEGMENT), (past(SEGMENT), _LAST))
    return sum(not is_ours(row) for first, end in spans for row in table.read(first, end))


def _check_kept(table: SegmentTable, head: Row, at: SequenceNumber | None) -> None:
    """Raise ConfigError if any of what the table showed then was collected."""
    collected = sequence_of(head, "collected")
    if at is not None and collected is not None and not collected <= at:
        raise GarbageCollected(
            f"The garbage of {table.name} was collected up to {collected}; what it showed at {at} is no "
            "longer there. Read at a later sequence number, or keep garbage for longer."
        )


def latest(table: SegmentTable) -> Snapshot:
    """What the table shows now, without what is staged. Only what has changed since the last call is read."""
    while True:
        state, published = _look(table)
        known = table.known
        restored, collected = state.head.values.get("restored", 0), state.head.values.get("collected", "")
        if known is None or (known.restored, known.collected) != (restored, collected):
            known, published = _from_checkpoint(table, state), None
        changed = None if known is None else _changed_since(table, known, state, published)
        if known is None or changed is None:
            return _all_known(table, state)
        if not changed and known.snapshot.sequence == state.sequence:
            table.known = replace(known, snapshot=replace(known.snapshot, head=state.head))
            return table.known.snapshot
        # Garbage collection writes its mark into the head before it deletes the rows of old publishes.
        (head,) = [state.head] if published is not None else table.read(HEAD, HEAD + ".")
        if (head.values.get("restored", 0), head.values.get("collected", "")) != (restored, collected):
            table.known = None
            continue
        counted = [one for one in changed if state.sequence.includes(one)]
        shown = replace(
            known.snapshot,
            sequence=state.sequence,
            timeline=_timeline(table, partial(known.snapshot.timeline.with_added, counted)),
            head=head,
        )
        waiting = tuple(one for one in dict.fromkeys((*known.waiting, *changed)) if not state.sequence.includes(one))
        after = Known(shown, restored, collected, waiting)
        table.known = replace(after, repeats=known.repeats) if after.oldest == known.oldest else after
        return shown


def checkpoint(table: SegmentTable) -> str:
    """Write all segments into one blob, from which the table is opened quickly. Return its name; empty if it would be
    larger than readers take, which then read the rows.
    """
    state, shown = table.state(), snapshot(table)
    restored = state.head.values.get("restored", 0)
    assert isinstance(restored, int)
    segments = [*shown.timeline, *_counted_by_their_own(shown)]
    name = f"{table.prefix}checkpoint-{shown.sequence.granted:012d}-{uuid.uuid4().hex}"
    data = Checkpoint(shown.sequence, restored, segments).encode()
    if len(data) > CHECKPOINT_BYTES_MAX:
        return ""
    table.tried(lambda: table.blobs.put(name, data))
    before: list[str] = []

    def decide(state: TableLocks) -> tuple[None, list[Write]]:
        before[:] = [str(state.head.values.get("checkpoint", ""))]
        return None, [Write(Act.MERGE, HEAD, {"checkpoint": name})]

    table.with_head(decide)
    if before[0] not in ("", name):
        table.tried(lambda: table.blobs.delete(before[0]))
    return name


def _all_known(table: SegmentTable, state: TableLocks) -> Snapshot:
    """Read the whole table again."""
    shown = snapshot(table)
    waiting = tuple(_counted_by_their_own(shown))
    # As they were before the rows were read: after a restore or a collection meanwhile, the next call reads all again.
    head = state.head.values
    slim = replace(shown, staged=(), foreign=0)
    table.known = Known(slim, head.get("restored", 0), head.get("collected", ""), waiting)
    return shown


def _from_checkpoint(table: SegmentTable, state: TableLocks) -> Known | None:
    """The content of the last checkpoint, if it is later than the last collection."""
    name = str(state.head.values.get("checkpoint", ""))
    # What is cut short is damaged.
    is_ours = name.startswith(table.prefix)
    data = table.tried(lambda: table.blobs.read(name, 0, CHECKPOINT_BYTES_MAX)) if is_ours else Missing()
    if isinstance(data, Missing):
        return None
    restored, collected = state.head.values.get("restored", 0), str(state.head.values.get("collected", ""))
    least = sequence_of(state.head, "collected")
    with no_collection():
        found = Checkpoint.decode(data.data, SegmentReader(table.name))
        if found is None or found.restored != restored:
            return None
        if least is not None and not least <= found.sequence:
            return None
        counted, waiting = found.parts()
        timeline = _timeline(table, partial(Timeline, counted))
    return Known(Snapshot(table.name, found.sequence, timeline), restored, collected, tuple(waiting))


def _look(table: SegmentTable) -> tuple[TableLocks, list[Row] | None]:
    """The locks and, if one answer holds both, the rows of all publishes since the table was last seen.

    The keys sort as publishes, head, locks. If the range holds many publishes that are already known, only the locks
    are read.
    """
    known = table.known
    if known is None or known.repeats > _REPEATS_MAX:
        return table.state(), None
    since = known.snapshot.sequence
    found = table.read(change_key(known.oldest, since.counts.get(known.oldest, -1) + 1), past(LOCK))
    published = [row for row in found if is_change(row.key)]
    state = table.state_of([row for row in found if row.key >= HEAD])
    now, there = state.sequence, {row.key for row in published}
    table.known = replace(known, repeats=sum(since.has(*changed_key(row.key)) for row in published))
    # A publish writes both rows or neither. If one is missing, the answer does not show a single moment.
    missing = any(
        change_key(lock, number) not in there
        for lock, count in now.counts.items()
        for number in range((since.count(lock) or 0) + 1, count + 1)
    )
    return state, None if missing or not isinstance(found, AtOnce) else published


def _changed_since(
    table: SegmentTable, known: Known, state: TableLocks, published: Sequence[Row] | None = None
) -> list[Segment] | None:
    """The segments of all publishes since then; `published` are their rows, if they were read with the locks. None if
    all rows of the table have to be read."""
    since, now = known.snapshot.sequence, state.sequence
    reader, found = SegmentReader(table.name), dict[SegmentId, Segment]()
    for row in _published_since(table, since, now) if published is None else published:
        lock, number = changed_key(row.key)
        if since.has(lock, number) or not now.has(lock, number):
            continue
        if (segments := changed_by(row, reader)) is None:
            return None
        found |= {one.id: one for one in segments}
    found |= {one.id: one for one in known.waiting if now.includes(one)}
    return [one for one in found.values() if not now.includes(one) or _is_there(table, one)]


def _published_since(table: SegmentTable, since: SequenceNumber, now: SequenceNumber) -> Iterator[Row]:
    """The rows of the publishes between two sequence numbers, possibly with others."""
    ranges = [(change_key(since.granted + 1, 0), past(CHANGE))] if now.granted > since.granted else []
    for lock, count in since.counts.items():
        if (later := now.count(lock)) is None or later > count:
            ranges.append((change_key(lock, count + 1), change_key(lock + 1, 0)))
    if len(ranges) > _RANGES_MAX:
        ranges = [(min(first for first, _ in ranges), past(CHANGE))]
    for first, end in ranges:
        yield from (row for row in table.read(first, end) if is_change(row.key))


def _is_there(table: SegmentTable, segment: Segment) -> bool:
    """Whether a segment from a change row is in the table. If a REPLACE gives up, its copies are deleted; its lock is
    gone then, just as after a publish."""
    return len(segment.published) == 1 or bool(table.read(segment_key(segment.id), segment_key(segment.id) + "."))


def pin(table: SegmentTable, reader: str, snapshot: Snapshot, until_us: int) -> None:
    """Keep what a snapshot shows until a moment of the wall clock. Pinning again prolongs it.

    Raise ConfigError if garbage that the snapshot may show has been collected since: it is too late.
    """
    key, values = (
        READER + reader,
        dict[str, Value](sequence=str(snapshot.sequence.of_oldest(LISTED_MAX)), until=until_us),
    )

    def decide(state: TableLocks) -> tuple[None, list[Write]]:
        _check_kept(table, state.head, snapshot.sequence)
        is_there = any(row.key == key for row in table.read(key, key + "\x20"))  # from before; it may go now
        return None, [Write(Act.MERGE if is_there else Act.INSERT, key, values)]

    # With the head, like the mark of a collection: one of the two comes first, and the other sees it.
    table.with_head(decide)


def unpin(table: SegmentTable, reader: str) -> None:
    """The snapshot is no longer needed. Idempotent."""
    table.tried(lambda: table.rows.transact([Write(Act.DELETE, READER + reader)]))


def wants_checkpoint(table: SegmentTable) -> bool:
    """Whether so much was published since the last checkpoint that opening the table takes longer than necessary."""
    state = table.state()
    known = _from_checkpoint(table, state)
    changed = _changed_since(table, known, state) if known is not None else None
    return len(latest(table).timeline if changed is None else changed) >= CHECKPOINT_AFTER


def _counted_by_their_own(snapshot: Snapshot) -> list[Segment]:
    """The staged segments that are published copies and wait for the REPLACE with which they will count."""
    return [one for one in snapshot.staged if snapshot.sequence.has(*one.published[0])]

"""Drop an interval, restore it, and delete what no reader can see.

Only `collect` depends on the time; its caller passes the time and how long garbage is kept.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from samza_azure.errors import ConfigError
from samza_azure.foreign import parsed
from samza_azure.segments import (
    Blocked,
    Chunk,
    Granted,
    Interval,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Published,
    Revoked,
    Segment,
    SequenceNumber,
)
from samza_azure.storage.interface import DELETE_MAX, Value
from samza_azure.storage.limits import TEXT_MAX
from samza_azure.storage.transactions import Act, Write
from samza_azure.tables.store import allocation, locks, publishing, reading
from samza_azure.tables.store.changes import CHANGE, changed_key, is_change
from samza_azure.tables.store.rows import (
    HEAD,
    NEXT,
    READER,
    RowReading,
    is_ours,
    next_place,
    past,
    segment_key,
    sequence_of,
)
from samza_azure.tables.store.table import ChunkKey, SegmentTable, Snapshot, TableLocks, in_parts


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage has deleted."""

    segments: int = 0
    files: int = 0
    orphans: int = 0


def drop(table: SegmentTable, task: LockTask, interval: Interval) -> Published | LostRace | Blocked | Revoked:
    """Hide all of an interval until `restore`. Its segments are garbage from now on."""
    answer = locks.acquire_anew(table, task, LockRequest(task.id, table.name, interval))
    if not isinstance(answer, Granted):
        return answer
    try:
        (name,) = allocation.numbers(table, interval, answer.lock.version, 1)
        return publishing.publish(table, task.id, [Segment.root(table.name, *name)], under=[answer.lock.id])
    finally:
        locks.release(table, task.id, answer.lock.id)


def restore(table: SegmentTable, interval: Interval) -> int:
    """Undo the latest `drop` of exactly this interval. Return how many segments are visible again.

    Return 0 if there is no such drop, or if its garbage was collected. Raise ConfigError if something newer hides it
    (appended rows, another drop, a rewrite), or if a lock is held there, whose owner may be about to write.
    """
    sent: list[Segment] = []  # in an attempt whose answer may have been lost

    def decide(state: TableLocks) -> tuple[bool, list[Write]]:
        timeline = reading.snapshot(table).timeline
        mine = [one for one in timeline.chunks if one.interval == interval and timeline.is_drop(one)]
        dropped = max(mine, key=lambda one: one.version, default=None)
        if dropped is None:
            return bool(sent), []
        if over := [one.interval for one in timeline.above(dropped)]:
            raise ConfigError(
                f"{interval} cannot be restored: {over[0]} was appended to, dropped or rewritten since. "
                "If it was dropped, restore that first. The rows can still be read at the sequence number before the "
                "drop, until they are collected: open(..., at=...)."
            )
        collected = sequence_of(state.head, "collected")
        hiding = [*dropped.segments.values()]
        if collected is not None and any(map(collected.includes, hiding)):
            return False, []  # the segments that it hides may be partly deleted by now
        there = [one for one in state.box.active() if one.interval.overlaps(interval) and not one.is_used_up]
        if busy := [str(lock.id) for lock in there]:
            raise ConfigError(
                f"{interval} cannot be restored while it is locked: lock {', '.join(busy)}. The owner may be about to "
                "write there. Try again when the lock is released."
            )
        sent[:] = hiding
        return True, [_uncovered(state), *(Write(Act.DELETE, segment_key(one.id)) for one in hiding)]

    is_restored = table.with_head(decide)
    return len(reading.snapshot(table).timeline.visible(interval)) if is_restored else 0


def _uncovered(state: TableLocks) -> Write:
    """The write of the head that comes before a drop is deleted. Readers that are reading, or have the table open, read
    all of it again; appends that are choosing a place choose again."""
    times = state.head.values.get("restored", 0)
    assert isinstance(times, int)
    return Write(Act.MERGE, HEAD, {"restored": times + 1})


def collect(table: SegmentTable, now_us: int, grace_us: int) -> Collected:
    """Delete what has been garbage for `grace_us`, the files that no row refers to, and uploads of the dead.

    A segment is deleted if it was garbage at the latest mark that is at least `grace_us` old and still is, unless a
    reader has pinned a snapshot from before that mark. So the first call deletes no segment. A reader that does not
    pin its snapshot has `grace_us` to read it. A crash at any point leaves files that the next call deletes.
    """
    uploads = table.blobs.list(table.prefix)  # before the locks: later uploads are not considered
    snapshot, mark = _mark(table, now_us, grace_us)
    garbage: list[Segment] = []
    if mark is not None:
        then = set(snapshot.timeline.at(mark).fully_overshadowed())
        garbage = [one for one in snapshot.timeline.fully_overshadowed() if one in then]
    table.delete(segment_key(one.id) for one in garbage)
    if mark is not None:
        _delete_changes(table, mark)
    state, left, swept = _sweep(table)
    checkpoint = reading.checkpoint(table) if reading.wants_checkpoint(table) else ""
    kept = {one.file.name for one in (*left.timeline, *left.staged) if one.file is not None}
    kept |= {str(state.head.values.get("checkpoint", "")), checkpoint}
    # Whoever may write rows could name any blob of the container.
    mine = {one.file.name for one in garbage if one.file is not None and one.file.name.startswith(table.prefix)} - kept
    orphans = [name for name, _ in uploads if name not in kept | mine and not _may_still_publish(table, name, state)]
    for names in in_parts([*sorted(mine), *orphans], DELETE_MAX):
        table.blobs.delete_many(names)
    return Collected(len(garbage) + swept, len(mine), len(orphans))


def _sweep(table: SegmentTable) -> tuple[TableLocks, Snapshot, int]:
    """Delete drops that hide nothing, and what counted the numbers of intervals that are gone.

    Return the locks, the segments, and how many were deleted. A deleted interval and version does not come back: where
    nothing is visible, an append begins a new version.
    """
    # Before the locks: numbers are taken with a lock or under one, so those that are in use have their lock there.
    counters = [row.key for row in table.read(NEXT, past(NEXT)) if is_ours(row)]

    def decide(state: TableLocks) -> tuple[tuple[TableLocks, Snapshot, list[Segment]], list[Write]]:
        shown = reading.snapshot(table)
        empty = _hiding_nothing(shown, _in_use(state))
        return (state, shown, empty), [_uncovered(state)] if empty else []

    state, shown, empty = table.with_head(decide)
    table.delete(segment_key(one.id) for one in empty)
    there = {(one.interval, one.version) for one in {*shown.timeline, *shown.staged} - {*empty}}
    in_use, places = _in_use(state), {key: next_place(key) for key in counters}
    table.delete(key for key, place in places.items() if place not in there and place[1] not in in_use)
    return state, shown, len(empty)


def _in_use(state: TableLocks) -> set[int]:
    """The versions at which somebody may publish who has taken a number."""
    found = set[int]()
    for lock in state.box.locks.values():
        found |= {lock.version, *(one.version for one in lock.replaced)}
        if lock.type is LockType.REPLACE:
            found.add(lock.version - 1)  # where something is appended under it
    return found


def _hiding_nothing(shown: Snapshot, in_use: Collection[int]) -> list[Segment]:
    """The segments of drops, if there is nothing below them."""
    timeline, swept = shown.timeline, set[ChunkKey]()
    for chunk in sorted(timeline.chunks, key=lambda one: one.version):
        if not timeline.is_drop(chunk) or chunk.version in in_use:
            continue
        is_over = any((one.interval, one.version) not in swept for one in timeline.below(chunk))
        if not is_over and not any(_is_below(one, chunk) for one in shown.staged):
            swept.add((chunk.interval, chunk.version))
    return [one for one in timeline if (one.interval, one.version) in swept]


def _delete_changes(table: SegmentTable, mark: SequenceNumber) -> None:
    """Delete the change rows of publishes up to a mark: no reader continues from before it."""
    keys = [row.key for row in table.read(CHANGE, past(CHANGE)) if is_change(row.key)]
    table.delete(key for key in keys if mark.has(*changed_key(key)))


def _may_still_publish(table: SegmentTable, name: str, state: TableLocks) -> bool:
    number = name.removeprefix(table.prefix).partition("-")[0]
    if number == "checkpoint":  # by a collector that died or is at work; without it readers read the rows
        return False
    return not number.isdigit() or int(number) in state.box.locks or int(number) > state.box.granted


def _pinned(table: SegmentTable, now_us: int) -> list[SequenceNumber]:
    """The sequence numbers that readers have pinned. Expired pins are deleted, unless they are prolonged now."""
    found = []
    for row in filter(is_ours, table.read(READER, past(READER))):
        until, sequence = row.values["until"], sequence_of(row, "sequence")
        if isinstance(until, int) and until > now_us and sequence is not None:
            found.append(sequence)
        else:
            table.sent([Write(Act.DELETE, row.key, etag=row.etag)])
    return found


def _mark(table: SegmentTable, now_us: int, grace_us: int) -> tuple[Snapshot, SequenceNumber | None]:
    """Write a mark of the present into the head. Nothing before the mark that is returned can be read from now on."""

    def decide(state: TableLocks) -> tuple[tuple[Snapshot, SequenceNumber | None], list[Write]]:
        snapshot = reading.snapshot(table)  # without drops that are restored before the head is written
        pinned = _pinned(table, now_us)
        with RowReading(state.head):
            marks = [(int(at), str(text)) for at, text in parsed(str(state.head.values["marks"]))]
            parsed_marks = {text: SequenceNumber.parse(text) for _, text in marks}
        collected = sequence_of(state.head, "collected") or SequenceNumber(0)
        old = [one for one in marks if one[0] <= now_us - grace_us]
        # A mark that is neither later nor earlier was written by an earlier release, which listed more locks.
        able = [
            mark
            for mark in (parsed_marks[text] for _, text in old)
            if all(mark <= pin for pin in pinned) and (mark <= collected or collected <= mark)
        ]
        kept = [one for one in marks if one not in old or one == old[-1]]
        if len(kept) > 1 and 0 <= kept[-1][0] - kept[-2][0] < grace_us // 16:
            kept.pop()  # keeps few marks, however often this is called
        # With too many locks, what the youngest of them publish is marked only when there are fewer.
        now = str(snapshot.sequence.of_oldest(reading.LISTED_MAX))
        mark = able[-1] if able else None
        values: dict[str, Value] = {"marks": json.dumps(_fitting([*kept[-20:], (now_us, now)], str(mark)))}
        if mark is not None and not mark <= collected:
            values["collected"] = str(mark)  # never moved back: another collector may have a shorter grace
        return (snapshot, mark), [Write(Act.MERGE, HEAD, values)]

    return table.with_head(decide)


def _is_below(segment: Segment, chunk: Chunk) -> bool:
    """Whether a segment is at a chunk's version or a lower one, where the chunk lies."""
    return segment.version <= chunk.version and segment.interval.overlaps(chunk.interval)


def _fitting(marks: Sequence[tuple[int, str]], used: str) -> list[tuple[int, str]]:
    """The marks that fit into the head. The first is removed if it has been used; otherwise the last, which is new, is
    left out. If the new one replaced an unused one each time, no mark would ever become as old as the grace."""
    kept = list(marks)
    while kept and len(json.dumps(kept)) > TEXT_MAX:
        del kept[0 if len(kept) > 1 and kept[0][1] == used else -1]
    return kept

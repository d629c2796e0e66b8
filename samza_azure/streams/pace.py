"""When a batch is due, the offset at which it ends, how a bound that was lowered rises again, and how often to read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.logs.position import Position
from samza_azure.streams.idleness import is_quiet
from samza_azure.streams.offset import Offset, ProducerPosition, ProducerState, least_us

#: How long a source that has read to its end in a drain waits for the flush before it makes a batch that only moves
#: event time. Such a batch is needed if another source of the task has much to read: state must not grow meanwhile.
STEP_S = 0.5
#: The seconds between two reads of the hints: while logs grow, and while none does or after an error.
HINTS_BUSY_S, HINTS_IDLE_S = 0.2, 1.0
#: The seconds between two reads of a log without a hint: at least, for each producer of the task, at most.
UNASKED_S, UNASKED_EACH_S, UNASKED_MOST_S = 5.0, 0.5, 60.0
#: The seconds until a log is read again after a hint that was ahead of it.
DOUBT_S = 1.0
#: The seconds between two reads of a log without a hint while a run flushes, at least, and for each producer of the
#: task: the producers' last records come within seconds.
LAST_WORDS_S, LAST_WORDS_EACH_S = 0.2, 0.01
#: With so many bytes of input for each second of the period between two batches, the next one does not wait for it.
WORTH_BYTES_PER_S = 4 << 20
#: After this many batches with less input than usual, the next ones may have twice as much.
GROW_AFTER = 50


def unasked_s(producers: int) -> float:
    """The seconds between a task's reads of each producer's log without a hint."""
    return min(max(UNASKED_S, UNASKED_EACH_S * producers), UNASKED_MOST_S)


def reread_s(producers: int, *, is_believed: bool, is_flushing: bool) -> float:
    """The seconds until a log that was read to its end is read again without a new hint.

    A hint is not believed if it was ahead of the log.
    """
    seconds = unasked_s(producers) if is_believed else DOUBT_S
    return min(seconds, max(LAST_WORDS_S, LAST_WORDS_EACH_S * producers)) if is_flushing else seconds


def is_read_now(
    place: ProducerPosition, hint: Position | None, end: Position | None, *, is_due: bool, is_frozen: bool
) -> bool:
    """Whether a producer's log is read now: because of a hint, or because `reread_s` is over (`is_due`).

    A frozen source partition is read only up to the end that a drain has set: there is more, so no hint is needed.
    """
    if place.state is ProducerState.DRAINED:
        return False
    if is_frozen:
        return end is not None and place.position < end
    return is_due or (hint is not None and hint > place.position)


def raised_bytes(now: int, most: int, batches: int) -> int:
    """How much input the next batch may have: a bound that was lowered rises again slowly.

    `now`: the present bound; `batches`: how many have run under a lowered one.
    """
    return min(2 * now, most) if now < most and batches % GROW_AFTER == 0 else now


def worth_bytes(between_s: float, most: int) -> int:
    """How much input makes a batch due although the period is not over.

    The period spares appends and plans, whose cost does not depend on the rows. With much input they are a small part
    of it, and a wait leaves cores idle. Who chooses a longer period wants fewer appends, so it takes more input then,
    up to half of what a batch may have (`most`): the other half is room for a record that does not fit in.
    """
    return min(int(WORTH_BYTES_PER_S * between_s), most // 2)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a source may make a batch, in seconds."""

    between_rows: float
    between_ticks: float
    has_watermark: bool  # windows need a batch of their own to fire
    keeps_last_rows: bool = False  # the last rows of a drain go into the batch that fires; for a task with one source
    worth_bytes: int = 1 << 62  # of input make a batch due before that


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What a source has found beyond its present offset."""

    heads: tuple[ProducerPosition, ...]
    rows: int
    is_at_end: bool  # a drain has fixed the ends, and everything up to them was found
    since_rows: float  # seconds since the last batch with rows
    since_tick: float  # seconds since the last batch without
    since_end: float = math.inf  # seconds since `is_at_end`, if it is
    since_new: float = math.inf  # seconds since the first of it was found, while a run drains
    has_more: bool = False  # there is more beyond `heads`, the limit of one batch or of one read
    size: int = 0  # the bytes of the rows in the logs


def next_offset(start: Offset, found: SourceProgress, pace: Pace, *, step: int, draining: bool) -> Offset:
    """The next offset; `start` itself if no batch is due yet.

    Rows are due once the period is over, or at once if they are many (`worth_bytes`).

    A drain does not wait between two batches if there is more to read, nor before the last one. While producers still
    have to append their last records it does wait: otherwise each of them would get a batch of its own, and a batch
    costs the same with one row or a thousand. So `since_new` counts from the first of these records.
    """
    hurries = draining and (found.is_at_end or found.has_more)
    onward = Offset(start.of, start.step, least_us(start.at), found.heads)
    keeps = found.is_at_end and pace.keeps_last_rows
    if found.rows and not keeps:
        is_due = min(found.since_rows, found.since_new) >= pace.between_rows or found.size >= pace.worth_bytes
        return onward if hurries or is_due else start
    if found.is_at_end and step > start.step:
        return Offset(start.of, step, onward.fired_us, found.heads)
    if start.step or not (found.rows or _is_tick_due(start, found.heads, pace)):
        return start
    if keeps or (found.is_at_end and found.since_end < STEP_S):
        return start  # the flush is about to come, takes these rows along, and moves event time further than this would
    return onward if hurries or min(found.since_tick, found.since_new) >= pace.between_ticks else start


def _is_tick_due(start: Offset, heads: Sequence[ProducerPosition], pace: Pace) -> bool:
    """Whether a batch without rows has an effect: on the frontier, or on windows that the last batch made due."""
    before, after = least_us(start.at), least_us(heads)
    moved = after is not None and (before is None or after > before)
    due = pace.has_watermark and before is not None and (start.fired_us is None or before > start.fired_us)
    return moved or due or is_quiet(start.at) != is_quiet(heads)

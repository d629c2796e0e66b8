"""When there is reason for a batch, and which offset it ends at."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.streams.idleness import is_quiet
from samza_azure.streams.offset import Offset, Place, least_us

#: At its end in a drain a source waits this long for the flush before it makes a batch that only moves event time. That
#: one is needed where another source of the task has much to read still: its rows must not wait in the state meanwhile.
STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a source may make a batch, in seconds."""

    between_rows: float
    between_ticks: float
    has_watermark: bool  # a tick of its own is needed for windows to fire
    keeps_last_rows: bool = False  # the last rows of a drain come in the batch that fires; for a task with one source


@dataclass(frozen=True, slots=True)
class Progress:
    """What a source has found beyond the offset where it stands."""

    heads: tuple[Place, ...]
    rows: int
    is_at_end: bool  # a drain has told the ends, and all of it has been found
    since_rows: float  # seconds since the last batch with rows
    since_tick: float  # seconds since the last batch without
    since_end: float = math.inf  # seconds since all of it was found, if it is
    since_new: float = math.inf  # seconds since the first of it was found, while a run drains
    has_more: bool = False  # more lies beyond `heads`: this is what one batch may have, or one look has brought


def next_offset(start: Offset, found: Progress, pace: Pace, *, step: int, draining: bool) -> Offset:
    """The next offset, `start` itself if there is no reason for a batch yet.

    A drain does not wait between two batches where there is more to read, nor before the last one. While producers have
    yet to say their last words it does: else each of them would be given a batch of its own, and a batch costs the same
    whether it has one row or a thousand. So `since_new` counts from the first of them.
    """
    hurries = draining and (found.is_at_end or found.has_more)
    onward = Offset(start.of, start.step, least_us(start.at), found.heads)
    keeps = found.is_at_end and pace.keeps_last_rows
    if found.rows and not keeps:
        return onward if hurries or min(found.since_rows, found.since_new) >= pace.between_rows else start
    if found.is_at_end and step > start.step:
        return Offset(start.of, step, onward.fired_us, found.heads)
    if start.step or not (found.rows or _is_tick_due(start, found.heads, pace)):
        return start
    if keeps or (found.is_at_end and found.since_end < STEP_S):
        return start  # the flush takes these rows along, moves event time further than this would, and is about to come
    return onward if hurries or min(found.since_tick, found.since_new) >= pace.between_ticks else start


def _is_tick_due(start: Offset, heads: Sequence[Place], pace: Pace) -> bool:
    """Whether a batch without rows would move anything: the frontier, or windows that the last batch made due."""
    before, after = least_us(start.at), least_us(heads)
    moved = after is not None and (before is None or after > before)
    due = pace.has_watermark and before is not None and (start.fired_us is None or before > start.fired_us)
    return moved or due or is_quiet(start.at) != is_quiet(heads)

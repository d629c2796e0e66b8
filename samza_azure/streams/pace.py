"""When there is reason for a batch, and which offset it ends at."""

from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.streams.idleness import is_quiet
from samza_azure.streams.offset import Offset, Place, least_us


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a source may make a batch, in seconds."""

    between_rows: float
    between_ticks: float
    has_watermark: bool  # a tick of its own is needed for windows to fire


@dataclass(frozen=True, slots=True)
class Progress:
    """What a source has found beyond the offset where it stands."""

    heads: tuple[Place, ...]
    rows: int
    is_at_end: bool  # a drain has told the ends, and all of it is read
    since_rows: float  # seconds since the last batch with rows
    since_tick: float  # seconds since the last batch without


def next_offset(start: Offset, found: Progress, pace: Pace, *, step: int, draining: bool) -> Offset:
    """The next offset, `start` itself if there is no reason for a batch yet."""
    onward = Offset(start.of, start.step, least_us(start.at), found.heads)
    if found.rows:
        return onward if draining or found.since_rows >= pace.between_rows else start
    if found.is_at_end and step > start.step:
        return Offset(start.of, step, onward.fired_us, found.heads)
    if start.step or not _is_tick_due(start, found.heads, pace):
        return start
    return onward if draining or found.since_tick >= pace.between_ticks else start


def _is_tick_due(start: Offset, heads: Sequence[Place], pace: Pace) -> bool:
    """Whether a batch without rows would move anything: the frontier, or windows that the last batch made due."""
    before, after = least_us(start.at), least_us(heads)
    moved = after is not None and (before is None or after > before)
    due = pace.has_watermark and before is not None and (start.fired_us is None or before > start.fired_us)
    return moved or due or is_quiet(start.at) != is_quiet(heads)

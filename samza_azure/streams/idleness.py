"""When a reader is idle, who becomes idle, and which producers' claims to be idle have to be checked.

A source partition becomes idle by silence, for each of its readers. A task does not: only its live owner may declare
it idle, after all its inputs have been idle for as long. An idle producer does not hold the watermark back
(`offset.least_us`).
"""

from collections.abc import Sequence
from dataclasses import replace

from samza_azure.streams.offset import ProducerPosition, ProducerState, least_us


def is_quiet(producers: Sequence[ProducerPosition]) -> bool:
    """Whether no producer is active: then the reader is idle, too."""
    return all(producer.state in (ProducerState.IDLE, ProducerState.DRAINED) for producer in producers)


def in_question(producers: Sequence[ProducerPosition]) -> list[int]:
    """The producers whose idleness would let the least frontier rise: their claim is checked before it counts."""
    active = [producer for producer in producers if producer.state is ProducerState.ACTIVE]
    if not active:
        return [number for number, producer in enumerate(producers) if producer.state is ProducerState.DOUBTED]
    others = least_us(active)
    return [
        number
        for number, producer in enumerate(producers)
        if producer.state in (ProducerState.IDLE, ProducerState.DOUBTED)
        and others is not None
        and (producer.frontier_us is None or others > producer.frontier_us)
    ]


def after_silence(place: ProducerPosition, since: float | None, now: float, timeout_s: float) -> ProducerPosition:
    """A source partition that was read to its end again. `since`: the first time that nothing new was there."""
    is_idle = place.state is ProducerState.ACTIVE and is_long(since, now, timeout_s)
    return replace(place, state=ProducerState.IDLE) if is_idle else place


def is_long(since: float | None, now: float, timeout_s: float) -> bool:
    """Whether a silence has lasted for the timeout; None if there is no silence."""
    return since is not None and now - since >= timeout_s


def quiet_since(
    before: float | None, now: float, are_quiet: Sequence[bool], sources: int, *, is_open: bool
) -> float | None:
    """Since when a task has nothing to do; None if it has, or if one of its `sources` has not answered yet.

    `are_quiet`: of the sources that have, whether their producers were idle in what they read and returned last.
    `is_open`: all that the sources have returned is in the log, and the log neither ends nor says already that the task
    is idle.
    """
    if not is_open or len(are_quiet) < sources or not all(are_quiet):
        return None
    return now if before is None else before

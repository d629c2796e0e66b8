"""How event time moves with a batch: the watermark after it, and the frontier that its record carries."""

from collections.abc import Iterable, Sequence

from samza_azure.streams.offset import INFINITY_US, Offset, by_stream, least_us


def next_watermark_us(offsets: Sequence[Offset], step: int, delays: Iterable[tuple[str, int]]) -> int | None:
    """The watermark after a batch: the least progress of all producers less the delay, over all inputs that count.

    `offsets`: up to where the batch reads; `step`: the one that all of them have reached; `delays`: streams with delay.
    None: there is none, or somebody has not said anything yet. Whole milliseconds, as Spark counts.
    """
    if step >= 1:
        return INFINITY_US
    found, progress = [], by_stream(offsets)
    for stream, delay_ms in delays:
        least = least_us(progress[stream])
        if least is None:
            return None
        found.append(least // 1000 * 1000 - delay_ms * 1000)
    return min(found, default=None)


def frontier_us(
    offsets: Sequence[Offset], watermark_ms: int, terms: Iterable[tuple[str | None, int]], lag_us: int
) -> int | None:
    """The event time below which this batch and all before it have put out everything.

    `watermark_ms`: what the batch ran with; `terms`: streams with their shift in us, None where the watermark counts.
    """
    found, progress = [], by_stream(offsets)
    for stream, shift_us in terms:
        with_watermark = watermark_ms * 1000 or None  # Spark's 0 means: none yet
        reached = with_watermark if stream is None else least_us(progress[stream])
        if reached is None:
            return None
        found.append(reached if reached >= INFINITY_US else reached + shift_us - lag_us)
    return min(found, default=None)

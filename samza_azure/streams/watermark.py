"""How event time moves with a batch: the watermark after it, and the frontier that its record carries."""

from collections.abc import Iterable, Sequence

from samza_azure.streams.offset import INFINITY_US, Offset, by_stream, least_us


def next_watermark_us(offsets: Sequence[Offset], step: int, delays: Iterable[tuple[str, int]]) -> int | None:
    """The watermark after a batch, in microseconds: the least progress of all producers minus the delay. Producers
    that have been idle for `idle.timeout` do not count (`offset.least_us`, `idleness.after_silence`).

    `offsets`: the ends of the batch; `step`: the step that all of them have reached; `delays`: each stream that has a
    watermark, with its delay in ms. None: there is no watermark, or a producer has not reported any event time yet. The
    result is rounded down to whole milliseconds, as in Spark.
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
    """The event time, in microseconds, below which this batch and all before it have emitted everything.

    `watermark_ms`: the watermark of the batch; `terms`: streams with their shift in us, None for the watermark itself.
    """
    found, progress = [], by_stream(offsets)
    for stream, shift_us in terms:
        with_watermark = watermark_ms * 1000 or None  # in Spark 0 means none yet
        reached = with_watermark if stream is None else least_us(progress[stream])
        if reached is None:
            return None
        found.append(reached if reached >= INFINITY_US else reached + shift_us - lag_us)
    return min(found, default=None)

"""How event time moves with a batch: the watermark after it, and the frontier that its record carries."""

from collections.abc import Sequence

from samza_azure.spark.analysis import Watermark
from samza_azure.spark.checkpoint import Planned
from samza_azure.spark.offset import INFINITY_US, by_stream, least_us
from samza_azure.spark.pipeline import AnalysedStage


def next_watermark_us(plan: Planned, watermarks: Sequence[Watermark]) -> int | None:
    """The watermark after a batch: the least progress of all producers less the delay, over all withWatermark.

    None: there is none, or somebody has not said anything yet. Whole milliseconds, as Spark counts.
    """
    if plan.step >= 1:
        return INFINITY_US
    found, streams = [], by_stream(plan.offsets)
    for each in watermarks:
        least = least_us(streams[each.stream])
        if least is None:
            return None
        found.append(least // 1000 * 1000 - each.delay_ms * 1000)
    return min(found, default=None)


def frontier_us(plan: Planned, stage: AnalysedStage) -> int | None:
    """The event time below which this batch and all before it have put out everything."""
    if stage.analysis.stateful and stage.analysis.watermarks:
        frontier = plan.watermark_ms * 1000 or None  # Spark's 0 means: none yet
    else:
        frontier = least_us([place for places in by_stream(plan.offsets).values() for place in places])
    if frontier is None or frontier >= INFINITY_US:
        return frontier
    return frontier - stage.frontier_lag_us

"""How event time moves with a batch: the watermark after it, and the frontier that its record carries."""

from samza_azure.spark.pipeline.pipeline import AnalysedStage
from samza_azure.spark.task.checkpoint import Planned
from samza_azure.streams.offset import INFINITY_US, by_stream, least_us


def next_watermark_us(plan: Planned, stage: AnalysedStage) -> int | None:
    """The watermark after a batch: the least progress of all producers less the delay, over all inputs that count.

    None: there is none, or somebody has not said anything yet. Whole milliseconds, as Spark counts.
    """
    if plan.step >= 1:
        return INFINITY_US
    found, progress = [], by_stream(plan.offsets)
    for each in stage.analysis.watermarks:
        least = least_us(progress[stage.plan.inputs[each.reads]])
        if least is None:
            return None
        found.append(least // 1000 * 1000 - each.delay_ms * 1000)
    return min(found, default=None)


def frontier_us(plan: Planned, stage: AnalysedStage) -> int | None:
    """The event time below which this batch and all before it have put out everything."""
    found, progress = [], by_stream(plan.offsets)
    for term in stage.analysis.frontier:
        if term.reads is None:
            reached = plan.watermark_ms * 1000 or None  # Spark's 0 means: none yet
        else:
            reached = least_us(progress[stage.plan.inputs[term.reads]])
        if reached is None:
            return None
        found.append(reached if reached >= INFINITY_US else reached + term.shift_us - stage.frontier_lag_us)
    return min(found, default=None)

"""Timers and timeouts of functions with state fire, and in a drain no earlier than they may."""

from collections.abc import Iterator

from samza_azure.spark.jvm.catalyst import Node, join_type
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, goes_by_clock, state_of
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse those that never fire, or that meet the end of time in a drain."""
    for node in facts.operators:
        other = next((each for each in facts.operators if each is not node), None)
        if other is not None and goes_by_clock(node):
            # What fires in a drain must not meet another operator's state in the same batch, at the end of time.
            said = (
                f"the {described(node)} goes by processing time, and the stage has a {described(other)}, too. Put one "
                "of them into a stage of its own."
            )
            yield facts.refused(node, said, is_of_part=True)
        if node.kind == "FlatMapGroupsInPandasWithState" and "EventTime" in str(node.plan.timeout().toString()):
            yield from _after_the_end(facts, node)
        # Spark demands a watermark for the timeouts of applyInPandasWithState, but not for the timers of its successor.
        has_timers = node.kind.startswith("TransformWithState") and "EventTime" in str(node.plan.timeMode())
        if has_timers and facts.bounds.shift_us(node) is None:
            said = (
                f"no watermark reaches the {described(node)}, so its timers would never fire, not even in a drain. "
                f'{facts.advice.timed(node.child)} Or, if it has no timers, use timeMode "None".'
            )
            yield facts.refused(node, said, is_of_part=True)


def _after_the_end(facts: Facts, node: Node) -> Iterator[Refusal]:
    """A drain raises the watermark to infinity, and rows that an operator then emits reach the next one in that batch.

    A function that gets them can set no later timeout. `transformWithState` may register a timer for an earlier time.
    """
    if below := next(filter(_puts_out_later, node.child.walk()), None):
        yield Refusal(
            f"Stage {facts.stage.name} passes the output of the {described(below)} to applyInPandasWithState with "
            "EventTimeTimeout. A drain raises the watermark to infinity before the last rows are emitted, so "
            "setTimeoutTimestamp fails. Use applyInPandasWithState in a separate stage, or transformWithState.",
            node.plan,
            is_of_part=True,
        )


def _puts_out_later(node: Node) -> bool:
    """Whether an operator keeps rows until the watermark has passed them."""
    if node.is_join_of_streams:
        return join_type(node) in ("LeftOuter", "RightOuter", "FullOuter")
    return state_of(node) is not None and node.kind in (
        "Aggregate",
        "FlatMapGroupsInPandasWithState",
        "TransformWithStateInPySpark",
    )

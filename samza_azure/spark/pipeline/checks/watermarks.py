"""A watermark is set on an event time, and is no shorter than what comes before it allows."""

from collections.abc import Iterator

from samza_azure.config.values import in_words
from samza_azure.spark.jvm.catalyst import Node, identity, in_sql, is_marked, literal
from samza_azure.spark.pipeline.advice import event_time_of
from samza_azure.spark.pipeline.bounds import Unbounded
from samza_azure.spark.pipeline.event_time import delay_ms
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import MAKING
from samza_azure.spark.pipeline.refusals import Refusal

#: The remedy if a watermark is set behind a function that makes all columns anew.
AHEAD = (
    "Put what comes up to this operator into a stage of its own, with event_time and frontier_lag on its output "
    "stream, and set the watermark in the next stage."
)


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse others."""
    for node in facts.root.walk():
        if node.kind == "EventTimeWatermark" and (wrong := _wrong(facts, node)):
            yield Refusal(f"Stage {facts.stage.name} sets {wrong}", node.plan)


def _wrong(facts: Facts, node: Node) -> str:
    attribute = node.plan.eventTime()
    column = str(attribute.name())
    if is_marked(node.child.column(identity(attribute))):
        return f"two watermarks on column {column}. Keep one withWatermark."
    if any(each.kind == "EventTimeWatermark" for each in node.child.walk()):
        return (
            f"a watermark on column {column} after another withWatermark. Keep the first one, or move what follows it "
            "into a separate stage."
        )
    bound = facts.bounds.of(node.child, identity(attribute))
    if isinstance(bound, Unbounded):
        return f"a watermark on column {column}, but {bound.reason}. {bound.remedy or _elsewhere(facts, node)}"
    earliest = min((term.shift_us for term in bound), default=0)
    if -earliest > delay_ms(node) * 1000:
        return (
            f"a watermark of {in_words(delay_ms(node) / 1000)} on column {column}, but what comes before it makes rows "
            f"up to {in_words(-earliest / 1_000_000)} older than its inputs. Use "
            f'withWatermark({literal(in_sql(column))}, "{in_words(-(earliest // 1_000_000))}") or more.'
        )
    return ""


def _elsewhere(facts: Facts, node: Node) -> str:
    if any(each.kind in MAKING for each in node.child.walk()):
        return AHEAD
    known = " or ".join(f"{each.stream}.{each.event_time}" for each in facts.inputs if each.event_time)
    if known:
        return (
            f"Set it on the event time of an input ({known}), before any join or aggregation. Or, to go by "
            f"{node.plan.eventTime().name()}, put what computes it into a stage of its own, with event_time and "
            "frontier_lag on its output stream."
        )
    return f"{event_time_of(facts.inputs)} Set the watermark on it, before any join or aggregation."

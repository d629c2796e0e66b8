"""A join of two streams has an equality between them, and Spark leaves it where it is."""

from collections.abc import Iterator

from samza_azure.spark.jvm.catalyst import Node, equalities, join_type
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse other joins."""
    for node in facts.operators:
        if node.kind == "Join" and (wrong := _wrong(node)):
            yield facts.refused(node, wrong)


def _wrong(join: Node) -> str:
    groups = [below for below in join.child.walk() if below.kind == "Aggregate" and below.is_streaming]
    if groups and join_type(join) in ("LeftSemi", "LeftAnti"):
        return (
            f"Spark moves the left semi join below the {described(groups[0])} in batches with few rows on its right "
            "side, and the query fails. Move the aggregation into an earlier stage, with event_time on its stream, and "
            "join that here."
        )
    if not equalities(join):
        return (
            f"a join of two streams ({join_type(join)}) has no equality between a column of the left and one of the "
            "right. Add one to the join's condition; a filter after the join is too late."
        )
    return ""

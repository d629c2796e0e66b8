"""What reads the rows of applyInPandasWithState can do so: they are not in Spark's usual format.

Only the optimised plan shows what reads them. Any computation between the two converts the rows.
"""

from collections.abc import Iterator

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.catalyst import Node, items, text
from samza_azure.spark.jvm.rules import broadcast_side
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, state_of
from samza_azure.spark.pipeline.refusals import Refusal

#: Operators that read rows of any format: those that make new rows, and those that emit the rows that they get.
CONVERTING = frozenset({"Generate", "MapInArrow", "MapInPandas", "Project", "PythonMapInArrow"})
FORWARDING = frozenset({"EventTimeWatermark", "Filter", "LocalLimit", "Union"})


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse an operator that cannot."""
    for node in facts.optimised.walk():
        if not any(map(_is_unconverted, node.children)) or node.kind in CONVERTING or _forwards(node):
            continue
        if node.kind == "Join" and _is_broadcast(facts.spark, node):
            continue
        functions = items(node.plan.udfs()) if node.kind in ("ArrowEvalPython", "BatchEvalPython") else ()
        to = ", ".join(text(each) for each in functions) or f"the {described(node) if state_of(node) else node.kind}"
        remedy = "Move what follows it into a separate stage."
        if functions:
            remedy = "Use it inside the function of applyInPandasWithState, or in a separate stage."
        elif node.kind == "Join" and not node.is_join_of_streams:
            remedy = "Join with F.broadcast(table), or move what follows it into a separate stage."
        said = (
            f"Stage {facts.stage.name} passes columns of applyInPandasWithState to {to}, and Spark fails at the first "
            f"such row with a ClassCastException. {remedy}"
        )
        yield Refusal(said, node.plan)


def _is_unconverted(node: Node) -> bool:
    """Whether this emits the very rows of applyInPandasWithState."""
    return node.kind == "FlatMapGroupsInPandasWithState" or (
        _forwards(node) and any(map(_is_unconverted, node.children))
    )


def _forwards(node: Node) -> bool:
    """Whether this emits the rows that it gets. A repartition does so if it only merges partitions."""
    return node.kind in FORWARDING or (node.kind == "Repartition" and not node.plan.shuffle())


def _is_broadcast(spark: SparkSession, join: Node) -> bool:
    """Whether Spark broadcasts a static table, as its hint says, and so converts the rows that it joins with that."""
    side = broadcast_side(spark, join)
    return side is not None and not side.is_streaming

"""Spark runs each operator on a stream, and it is known to compute the same there as on a table.

Spark itself would refuse some only when the query starts. An operator that neither of us names is refused.
"""

from collections.abc import Iterator

from samza_azure.spark.jvm.catalyst import Node
from samza_azure.spark.jvm.errors import plan_of_error
from samza_azure.spark.jvm.rules import error_of_streaming
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import STATEFUL, STATELESS
from samza_azure.spark.pipeline.refusals import Refusal
from samza_azure.spark.pipeline.remedies import instead_of
from samza_azure.spark.pipeline.spark_errors import kind_refused, said_at_start, said_of_kind

#: What people call an operator that is refused.
NAMES = {
    "Except": "subtract or exceptAll",
    "FlatMapCoGroupsInArrow": "cogroup",
    "FlatMapCoGroupsInPandas": "cogroup",
    "LateralJoin": "a lateral join",
}
OTHERWISE = "Remove it from the stage, and apply it where the output is read."


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse other operators."""
    if (error := error_of_streaming(facts.spark, facts.plan, updates=facts.updates)) is not None:
        operator = plan_of_error(error)
        if operator is None and (kind := kind_refused(error)):  # it would be refused again below
            operator = next((node.plan for node in facts.root.walk() if node.kind == kind), None)
        said = said_at_start(error, facts.root, facts.advice, facts.stage)
        said = f"Stage {facts.stage.name} cannot run as a stream: {said}"
        yield Refusal(said, operator, is_vague=operator is None)
    for node in facts.root.walk():
        if node.is_streaming and (wrong := _wrong(facts, node)):
            yield Refusal(f"Stage {facts.stage.name} {wrong}", node.plan)


def _wrong(facts: Facts, node: Node) -> str:
    if node.kind in STATELESS or node.kind in STATEFUL or node.kind == "Join":
        return ""
    if node.kind in ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow"):
        return (
            "uses applyInPandas or applyInArrow, which on a stream sees only the rows of one batch, not all rows of a "
            "group. Use applyInPandasWithState or transformWithState."
        )
    if said := said_of_kind(node.kind, facts.root, facts.advice):
        return f"cannot run as a stream: {said}"
    name = NAMES.get(node.kind, f"the operator {node.kind}")
    remedy = instead_of(node.kind, facts.advice, facts.root) or OTHERWISE
    return f"uses {name}, which is not known to compute the same on a stream as on a table. {remedy}"

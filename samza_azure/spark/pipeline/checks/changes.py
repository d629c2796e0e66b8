"""In output mode update, each change of a group is emitted and shows its group.

An aggregation emits a row for each change of a group: the last row of each group is the batch's row.
"""

from collections.abc import Iterator
from typing import Any

from samza_azure.spark.jvm.catalyst import Node, identity, items, kind_of, without_alias
from samza_azure.spark.pipeline.advice import deduplicated
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, is_distinct, is_grouping_id, keys_of, state_of
from samza_azure.spark.pipeline.refusals import Refusal

#: Operators that emit exactly their input rows.
PASSING = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
        "View",
    }
)


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse operators between an aggregation and the output that drop a change or its key."""
    for node in facts.operators if facts.updates else ():
        if node.kind == "Aggregate" and (wrong := _wrong(facts.root, node)):
            yield facts.refused(node, f"in output mode update the {described(node)}{wrong}")


def _wrong(root: Node, aggregation: Node) -> str:
    if is_distinct(aggregation):
        return (
            ", which only removes duplicates, would emit a row again in each batch that has it. "
            f"{deduplicated(aggregation)}"
        )
    keys = [
        {each for each in aggregation.ids if aggregation.maker(each).semanticEquals(key)}
        for key in items(aggregation.plan.groupingExpressions())
    ]
    for node in _above(root, aggregation):
        if node.kind not in PASSING:
            return (
                f" emits a row for each change of a group, but the operator after it ({state_of(node) or node.kind}) "
                "does not pass on every row, so rows would remain that a later change replaces. Return the groups "
                "unchanged and do the rest where they are read; or group by a window and use output mode append."
            )
        if node.kind == "Project":
            keys = [{identity(made) for made in node.made if _shows(made, key)} for key in keys]
    if not all(keys):
        is_rollup = any(is_grouping_id(key) for (key,) in keys_of(aggregation))
        more = ", and F.grouping_id() beside them" if is_rollup else ""
        return (
            " emits a row for each change of a group, and without all of its keys a reader cannot tell which row "
            f"replaces which. Return the keys{more}."
        )
    return ""


def _above(root: Node, wanted: Node) -> Iterator[Node]:
    """The nodes above a node, from the lowest up to the root."""
    for child in root.children:
        if wanted in child.walk():
            yield from _above(child, wanted)
            yield root


def _shows(made: Any, key: set[int]) -> bool:
    """Whether a column shows the key: it is the key itself, or the start or end of the window that is the key."""
    below = without_alias(made)
    if kind_of(below) == "GetStructField" and str(below.extractFieldName()) in ("start", "end"):
        below = below.child()
    return kind_of(below) == "AttributeReference" and identity(below) in key

"""Which operators a stage's plan may contain, which of them keep state, and by which keys.

An operator that is not named here is refused, since it is not known to compute the same on a stream as on a table.
"""

from typing import Any

from samza_azure.spark.jvm.catalyst import (
    SESSION_MARK,
    Node,
    contains,
    equalities,
    is_marked,
    items,
    kind_of,
    references,
    spelled,
    without_alias,
)

#: Operators with state, and their names in messages.
STATEFUL = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "GlobalLimit": "limit",
    "FlatMapGroupsInPandasWithState": "state per group",
    "TransformWithStateInPySpark": "state machine",
}
JOIN = "join of two streams"
#: In these, Spark 4.3 drops late rows by the watermark of the previous batch, adds the other rows to the state, and
#: then fires by the watermark of the current batch. So one batch may have the last rows of a drain and a watermark of
#: infinity. A join would keep no row of that batch for its other side, and a function would see infinity beside rows.
FIRE_AFTER_ROWS = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "GlobalLimit"})
#: Operators whose function makes all columns anew, so that nothing is known of their times.
MAKING = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
#: Operators that treat each row by itself.
STATELESS = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LocalLimit",  # below a GlobalLimit, which keeps the count
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "StreamingRelation",
        "SubqueryAlias",
        "Union",
        "UpdateEventTimeWatermarkColumn",
        "View",
    }
)
#: The key by which Spark tells the groups of a rollup or a cube apart.
GROUPING_ID = "spark_grouping_id"


def state_of(node: Node) -> str | None:
    """The name of this operator's kind of state. None if it has no state."""
    if not node.is_streaming:
        return None
    if node.kind == "Join":
        return JOIN if node.is_join_of_streams else None
    return STATEFUL.get(node.kind)


def keys_of(node: Node) -> list[tuple[Any, ...]]:
    """The keys of an operator's state: expressions over its child; for a join, pairs of left and right expressions.

    Rows that agree in all keys must meet in one task. A session window is not a key, since it differs between the
    rows of one session.
    """
    match node.kind:
        case "Join":
            return [*equalities(node)]
        case "Aggregate":
            grouping = items(node.plan.groupingExpressions())
            return [(each,) for each in grouping if not is_session(each)]
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return [(each,) for each in items(node.plan.keys())]
        case "FlatMapGroupsInPandasWithState":
            return [(each,) for each in items(node.plan.groupingAttributes())]
        case "TransformWithStateInPySpark":
            return [(each,) for each in node.child.output[: int(node.plan.groupingAttributesLen())]]
    return []


def nulls_of(expand: Node) -> list[frozenset[int]]:
    """The columns that are null, for each of the rows that an Expand makes of each row."""
    return [
        frozenset(
            wanted
            for wanted, each in zip(expand.ids, items(projection), strict=True)
            if kind_of(without_alias(each)) == "Literal" and without_alias(each).value() is None
        )
        for projection in items(expand.plan.projections())
    ]


def groupings_of(aggregation: Node) -> list[list[Any]]:
    """The keys of each grouping of a rollup, a cube or GROUPING SETS. Empty for another aggregation."""
    keys, expand = list(items(aggregation.plan.groupingExpressions())), aggregation.child
    if expand.kind != "Expand" or not any(map(is_grouping_id, keys)):
        return []
    keys = [key for key in keys if not is_grouping_id(key)]
    return [[key for key in keys if not references(key) & nulls] for nulls in nulls_of(expand)]


def is_grouping_id(key: Any) -> bool:
    """Whether this is the key that Spark adds to those of a rollup, a cube or GROUPING SETS."""
    return kind_of(key) == "AttributeReference" and str(key.name()) == GROUPING_ID


def has_sessions(node: Node) -> bool:
    """Whether this is an aggregation by session windows."""
    return node.kind == "Aggregate" and any(is_session(each) for each in items(node.plan.groupingExpressions()))


def is_session(expression: Any) -> bool:
    """Whether this is a column of sessions."""
    return kind_of(expression) == "AttributeReference" and is_marked(expression, SESSION_MARK)


def is_distinct(aggregation: Node) -> bool:
    """Whether it only removes duplicates, as SELECT DISTINCT and UNION do."""
    return not any(contains(made, "AggregateExpression") for made in aggregation.made)


def described(node: Node) -> str:
    """The operator as messages name it, with its keys."""
    keys = keys_of(node)
    if node.kind == "Join":
        return "join on " + " and ".join(f"{spelled(node, left)} = {spelled(node, right)}" for left, right in keys)
    by = ", ".join(spelled(node, key) for (key,) in keys)
    return f"{state_of(node)} by {by}" if by else f"{state_of(node)} over all rows"


def goes_by_clock(node: Node) -> bool:
    """Whether this is a function with state that has timeouts or timers of processing time."""
    match state_of(node) and node.kind:
        case "FlatMapGroupsInPandasWithState":
            return "ProcessingTime" in str(node.plan.timeout().toString())
        case "TransformWithStateInPySpark":
            return "ProcessingTime" in str(node.plan.timeMode().toString())
    return False

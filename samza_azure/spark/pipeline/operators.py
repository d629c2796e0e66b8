"""Which operators a stage's plan may hold, which of them keep state, and by what.

What is not named here is refused: whether an operator computes on a stream what it computes on a table is known of
each, or it is not run.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.catalyst import (
    SESSION_MARK,
    Node,
    data_type,
    equalities,
    is_marked,
    items,
    join_type,
    kind_of,
    text,
)

#: Operators with state, and what people call them.
STATEFUL = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "Distinct": "deduplication",
    "GlobalLimit": "limit",
    "FlatMapGroupsInPandasWithState": "state per group",
    "TransformWithStateInPySpark": "state machine",
}
JOIN = "join of two streams"
#: Of these Spark 4.3 drops late rows by the watermark of the batch before, puts the others into the state, and then
#: fires by its own. So the last rows of a drain may come in one batch with a watermark of infinity. A join would keep
#: no row of that batch for the rows of its other side, and a function would see the infinity beside rows.
FIRE_AFTER_ROWS = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"})
#: Operators that treat each row by itself.
STATELESS = frozenset(
    {
        "CollectMetrics",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LocalLimit",  # below a limit, which counts
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
#: Leaves whose rows stand in the program, so that they are the same whenever it runs.
CONSTANT = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})


def state_of(node: Node) -> str | None:
    """What people call this operator's kind of state. None: it has none."""
    if not node.is_streaming:
        return None
    if node.kind == "Join":
        return JOIN if node.is_join_of_streams else None
    return STATEFUL.get(node.kind)


def keys_of(node: Node) -> list[tuple[Any, ...]]:
    """By what an operator keeps its state: expressions over its child; of a join, pairs over left and right.

    Rows that agree in all of them have to meet in one task. The window of a session is none of them: it differs
    between the rows of one session.
    """
    match node.kind:
        case "Join":
            return [*equalities(node)]
        case "Aggregate":
            grouping = items(node.plan.groupingExpressions())
            return [(each,) for each in grouping if not _is_session(each)]
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return [(each,) for each in items(node.plan.keys())]
        case "Distinct":
            return [(each,) for each in node.child.output]
        case "FlatMapGroupsInPandasWithState":
            return [(each,) for each in items(node.plan.groupingAttributes())]
        case "TransformWithStateInPySpark":
            return [(each,) for each in node.child.output[: int(node.plan.groupingAttributesLen())]]
    return []


def _is_session(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference" and is_marked(expression, SESSION_MARK)


def described(node: Node) -> str:
    """The operator as a message names it: what it is, and by what."""
    keys = keys_of(node)
    if node.kind == "Join":
        return "join on " + " and ".join(f"{text(left)} = {text(right)}" for left, right in keys)
    by = ", ".join(text(key) for (key,) in keys)
    return f"{state_of(node)} by {by}" if by else f"{state_of(node)} over all rows"


def check_operators(stage: Stage, root: Node) -> None:
    """Refuse what is not known to be right on a stream."""
    for node in root.walk():
        for subquery in items(node.plan.subqueries()):
            _check_subquery(stage, subquery)
        if not node.is_streaming:
            _check_constant(stage, node)
            continue
        if node.kind == "Join":
            _check_join(stage, node)
        elif node.kind in ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow"):
            raise PipelineRefused(
                f"Stage {stage.name} uses applyInPandas or applyInArrow, which on a stream sees the rows of one batch "
                "at a time and not all rows of a group. Use applyInPandasWithState or transformWithState."
            )
        elif node.kind not in STATELESS and node.kind not in STATEFUL:
            raise PipelineRefused(
                f"Stage {stage.name} uses the operator {node.kind}, of which it is not known that it computes on a "
                "stream what it computes on a table. Write it with grouping, joins or applyInPandasWithState."
            )
        _check_time(stage, node)
        _check_timeout(stage, node)


def _check_timeout(stage: Stage, node: Node) -> None:
    """A drain raises the watermark to infinity, and what an operator puts out then reaches the next one in that batch.

    There is no later time left that a function could set. `transformWithState` may register a timer for an earlier one.
    """
    if node.kind != "FlatMapGroupsInPandasWithState" or "EventTime" not in str(node.plan.timeout().toString()):
        return
    for below in node.child.walk():
        if _puts_out_later(below):
            raise PipelineRefused(
                f"Stage {stage.name} gives what the {described(below)} puts out to applyInPandasWithState with "
                "EventTimeTimeout. In a drain that is put out when no time is later than the watermark, and "
                "setTimeoutTimestamp fails. Use applyInPandasWithState in a stage of its own, or transformWithState."
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


def check_functions(spark: SparkSession, stage: Stage, plan: Any, root: Node) -> None:
    """A Python function right over rows of applyInPandasWithState: Spark hands them on in a form that it cannot read.

    Where such a function is evaluated is known when Spark has optimized the plan. An expression between the two that
    computes something puts the rows into the other form.
    """
    state = "FlatMapGroupsInPandasWithState"
    if not any(node.kind == state for node in root.walk()):
        return
    optimized = spark._jsparkSession.sessionState().optimizer().execute(plan)
    for evaluation in _operators(optimized):
        if kind_of(evaluation) in ("ArrowEvalPython", "BatchEvalPython") and kind_of(evaluation.child()) == state:
            functions = ", ".join(text(each) for each in items(evaluation.udfs()))
            raise PipelineRefused(
                f"Stage {stage.name} gives columns of applyInPandasWithState to {functions}, and Spark fails at the "
                "first row of that with a ClassCastException. Use it in the function of applyInPandasWithState, or "
                "in a stage of its own."
            )


def _operators(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items(plan.children()):
        yield from _operators(child)


def _check_constant(stage: Stage, node: Node) -> None:
    """A table beside the stream must be the same at each start: its rows stand in the program."""
    if node.children or (node.kind in CONSTANT and (node.kind != "LogicalRDD" or _is_in_program(node.plan.rdd()))):
        return
    raise PipelineRefused(
        f"Stage {stage.name} reads a table or files of its own ({node.kind}). A query fixes their list when it starts, "
        "and they may be others after a hand-over, so its rows would depend on restarts. Produce them into a stream "
        "and join with that, or put a small table into the code: spark.createDataFrame([…])."
    )


def _is_in_program(rdd: Any) -> bool:
    """Whether the rows come from the program, and not from files or from what was once computed of files."""
    below = [each.rdd() for each in items(rdd.dependencies())]
    return (
        all(_is_in_program(each) for each in below) if below else kind_of(rdd) in ("ParallelCollectionRDD", "EmptyRDD")
    )


def _check_subquery(stage: Stage, plan: Any) -> None:
    if plan.isStreaming():
        raise PipelineRefused(
            f"Stage {stage.name} uses a stream inside a subquery. Write it as a join, or as a left semi join."
        )
    for leaf in items(plan.collectLeaves()):
        _check_constant(stage, Node(kind_of(leaf), leaf, (), False, (), ()))


def _check_join(stage: Stage, node: Node) -> None:
    if node.is_join_of_streams and not equalities(node):
        raise PipelineRefused(
            f"Stage {stage.name}: a join of two streams ({join_type(node)}) has no equality between a column of the "
            "left and one of the right. Write one into the join's condition; a filter behind the join is too late."
        )


def _check_time(stage: Stage, node: Node) -> None:
    if node.kind.startswith("FlatMapGroups") and "ProcessingTime" in str(node.plan.timeout().toString()):
        raise PipelineRefused(
            f"Stage {stage.name} uses ProcessingTimeTimeout, which a drain cannot bring to an end. "
            "Use GroupStateTimeout.EventTimeTimeout."
        )
    if node.kind.startswith("TransformWithState") and "ProcessingTime" in str(node.plan.timeMode().toString()):
        raise PipelineRefused(
            f'Stage {stage.name} uses timeMode "ProcessingTime", which a drain cannot bring to an end. '
            'Use timeMode "EventTime".'
        )


def fingerprint_of(node: Node, origins: Any) -> dict[str, Any]:
    """What an operator's state depends on. `origins` tells what a key is made of, over the stage's inputs."""
    plan = node.plan
    state: dict[str, Any] = {
        "kind": node.kind,
        "keys": [
            [origins(child, key) for child, key in zip(node.children, keys, strict=False)] for keys in keys_of(node)
        ],
    }
    match node.kind:
        case "Join":
            condition = plan.condition()
            state["type"] = join_type(node)
            state["condition"] = text(condition.get()) if condition.isDefined() else None
            state["sides"] = [[_column(each) for each in child.output] for child in node.children]
        case "Aggregate":
            state["window"] = [origins(node.child, each) for each in items(plan.groupingExpressions())]
            state["functions"] = [f"{text(each)}: {data_type(each)}" for each in items(plan.aggregateExpressions())]
        case "GlobalLimit":
            state["limit"] = text(plan.limitExpr())
        case "FlatMapGroupsInPandasWithState":
            state["timeout"] = str(plan.timeout().toString())
            state["state"] = str(plan.stateType().json())
        case "TransformWithStateInPySpark":
            state["time"] = str(plan.timeMode().toString())
            state["mode"] = str(plan.outputMode().toString())
    return state


def _column(attribute: Any) -> str:
    return f"{attribute.name()}: {data_type(attribute)}"

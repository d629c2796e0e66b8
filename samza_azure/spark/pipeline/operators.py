"""Which operators a stage's plan may contain, which of them keep state, and by which keys.

An operator that is not named here is refused, since it is not known to compute the same on a stream as on a table.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.catalyst import (
    SESSION_MARK,
    Node,
    conjuncts,
    contains,
    equalities,
    identity,
    in_sql,
    is_marked,
    items,
    join_type,
    kind_of,
    literal,
    named,
    parts_of,
    references,
    scala_object,
    spelled,
    text,
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
#: Operators that read rows of any format: those that make new rows, and those that put out the rows that they get.
CONVERTING = frozenset({"Generate", "MapInArrow", "MapInPandas", "Project", "PythonMapInArrow"})
FORWARDING = frozenset({"EventTimeWatermark", "Filter", "LocalLimit", "Union"})
#: What people call an operator that is refused, and what to write instead of it.
INSTEAD = {
    "Except": (
        "subtract or exceptAll",
        (
            "Subtract where the output is read. Where no column is null and each row is wanted once, dropDuplicates "
            'and then a join of kind "left_anti" do the same.'
        ),
    ),
    "FlatMapCoGroupsInArrow": ("cogroup", "Use a join, or a union and then applyInPandasWithState."),
    "FlatMapCoGroupsInPandas": ("cogroup", "Use a join, or a union and then applyInPandasWithState."),
    "LateralJoin": (
        "a lateral join",
        (
            "Compute its columns with withColumn; for several rows of one, use F.explode or LATERAL VIEW explode(...). "
            "Instead of a Python table function over a stream, which would see one batch, use transformWithState."
        ),
    ),
}
OTHERWISE = "Use grouping, joins or applyInPandasWithState instead."
#: Leaves whose rows are part of the program, so that they are the same in every execution.
CONSTANT = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})


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
            return [(each,) for each in grouping if not _is_session(each)]
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
    return node.kind == "Aggregate" and any(_is_session(each) for each in items(node.plan.groupingExpressions()))


def _is_session(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference" and is_marked(expression, SESSION_MARK)


def described(node: Node) -> str:
    """The operator as messages name it, with its keys."""
    keys = keys_of(node)
    if node.kind == "Join":
        return "join on " + " and ".join(f"{spelled(node, left)} = {spelled(node, right)}" for left, right in keys)
    by = ", ".join(spelled(node, key) for (key,) in keys)
    return f"{state_of(node)} by {by}" if by else f"{state_of(node)} over all rows"


def check_operators(stage: Stage, root: Node) -> None:
    """Refuse operators that are not known to be right on a stream."""
    for subquery in items(root.plan.subqueriesAll()):  # also those inside of others
        _check_subquery(stage, subquery)
    for node in root.walk():
        if not node.is_streaming:
            _check_constant(stage, node)
            continue
        if node.kind == "Join":
            _check_join(stage, node)
        elif node.kind in ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow"):
            raise PipelineRefused(
                f"Stage {stage.name} uses applyInPandas or applyInArrow, which on a stream sees only the rows of one "
                "batch, not all rows of a group. Use applyInPandasWithState or transformWithState."
            )
        elif node.kind not in STATELESS and node.kind not in STATEFUL:
            name, remedy = INSTEAD.get(node.kind, (f"the operator {node.kind}", OTHERWISE))
            raise PipelineRefused(
                f"Stage {stage.name} uses {name}, which is not known to compute the same on a stream as on a table. "
                f"{remedy}"
            )
        _check_time(stage, node)
        _check_timeout(stage, node)
        _check_zeros(stage, node)
        _check_lists(stage, node)
        _check_sessions(stage, node)
        _check_collations(stage, node)
        _check_maps(stage, node)
        _check_pandas_aggregates(stage, node)
        _check_limit(stage, root, node)


def _check_zeros(stage: Stage, node: Node) -> None:
    """A function with state gets a group for each sequence of bytes. Elsewhere Spark takes both zeros for one."""
    if node.kind not in ("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"):
        return
    for (key,) in keys_of(node):
        kind, name = str(key.dataType().sql()), str(key.name())
        if kind in ("DOUBLE", "FLOAT"):
            as_text = literal(f"CAST({in_sql(name)} + 0.0 AS STRING)")
            remedy = f"Make the key a text before groupBy, .withColumn({literal(name)}, F.expr({as_text}))."
        elif "DOUBLE" in kind or "FLOAT" in kind:
            remedy = "Group by fields that are decimals, whole numbers or texts."
        else:
            continue
        raise PipelineRefused(
            f"Stage {stage.name}: the {described(node)} would have one group for 0.0 and another for -0.0, which are "
            f"equal in a batch. {remedy}"
        )


def _check_lists(stage: Stage, node: Node) -> None:
    """The Python process of transformWithState cannot read the type of such a key, nor the state store an interval."""
    for (key,) in keys_of(node) if node.kind == "TransformWithStateInPySpark" else ():
        kind, name = str(key.dataType().sql()), str(key.name())
        if any(word in kind for word in ("ARRAY<", "INTERVAL", "MAP<")):
            made = "F.col({}).cast('string')" if kind.startswith("INTERVAL") else "F.to_json({})"
            as_text = f".withColumn({literal(name)}, {made.format(literal(in_sql(name)))})"
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(node)} has a key of type {kind}, with which transformWithState "
                f"fails at its first row. Make the key a text before groupBy, {as_text}."
            )


def _check_sessions(stage: Stage, node: Node) -> None:
    """A batch merges sessions wherever it groups rows by them, also to remove duplicates. On a stream only the first
    aggregation merges them: behind it each is complete, and before it each is that of one row."""
    if node.kind != "Aggregate" and not node.kind.startswith("Deduplicate"):
        return
    keys = list(items(node.plan.groupingExpressions() if node.kind == "Aggregate" else node.plan.keys()))
    for session in filter(_is_session, keys):
        merged = _put_out_by(node.child, identity(session))
        if merged is None and node.kind != "Aggregate":
            by = ", ".join(literal(in_sql(str(key.name()))) for key in keys)
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(node)} compares sessions that are not merged yet, of one row "
                f"each; a batch would merge them. Group by them instead: .groupBy({by}).count()."
            )
        if merged is not None and not _has_all_keys(node, keys, merged[0]):
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(node)} groups sessions that an earlier aggregation has put out. A "
                "batch would merge those that overlap, but on a stream the first is complete before the next one "
                "comes. Use one aggregation by these keys; instead of a pivot, give it an aggregate with a FILTER "
                "clause for each value."
            )


def _put_out_by(node: Node, wanted: int) -> tuple[Node, Any] | None:
    """The aggregation that puts a column out, and what it computes it from; or the union of several of them."""
    if node.kind == "Aggregate":
        return node, without_alias(named(node.made, wanted))
    if node.kind in ("Project", "Expand"):
        rows = items(next(items(node.plan.projections()))) if node.kind == "Expand" else node.made
        made = without_alias(list(rows)[node.ids.index(wanted)])
        return _put_out_by(node.child, identity(made)) if kind_of(made) == "AttributeReference" else None
    if node.kind == "Union":
        index = node.ids.index(wanted)
        is_merged = any(_put_out_by(child, child.ids[index]) for child in node.children)
        return (node, None) if is_merged else None
    below = next((child for child in node.children if wanted in child.ids), None)
    return None if below is None else _put_out_by(below, wanted)


def _has_all_keys(node: Node, keys: Sequence[Any], below: Node) -> bool:
    """Whether the sessions of one group are those of one key of the aggregation below, so that none overlap."""
    if below.kind == "Union":
        return False
    columns = [key for key in keys if kind_of(key) == "AttributeReference"]
    found = [made for made in (_put_out_by(node.child, identity(key)) for key in columns) if made is not None]
    known = [expression for by, expression in found if by is below]
    return all(any(each.semanticEquals(key) for each in known) for (key,) in keys_of(below))


def check_global_sessions(stage: Stage, root: Node, optimised: Node) -> None:
    """Refuse sessions without another key, for which Spark has no plan on a stream. The optimiser drops constants."""
    if not any(node.is_streaming and has_sessions(node) and not keys_of(node) for node in optimised.walk()):
        return
    sessions = [node for node in root.walk() if node.is_streaming and has_sessions(node)]
    columns = [each for each in min(sessions, key=lambda node: len(keys_of(node))).child.output if _has_hash(each)]
    zero = f"F.pmod(F.hash({literal(in_sql(str(columns[0].name())))}), F.lit(1))" if columns else "the hash of a column"
    raise PipelineRefused(
        f"Stage {stage.name}: the aggregation by session windows has no key besides, and Spark cannot run it on a "
        f"stream. Group by another column as well, or by a number that is 0 in each row: {zero}."
    )


def check_whole_sessions(stage: Stage, root: Node, optimised: Node) -> None:
    """Refuse a condition on sessions that Spark's optimiser moves below their aggregation, where each session has one
    row: Spark takes a session for a key like any other. A batch has the same wrong rows."""
    before, after = (
        [each for each in top.walk() if each.is_streaming and has_sessions(each)] for top in (root, optimised)
    )
    for sessions, moved in zip(before, after, strict=False):
        if len(_conditions_below(moved)) > len(_conditions_below(sessions)):
            raise PipelineRefused(
                f"Stage {stage.name}: a filter or join after the {described(sessions)} has a condition on the session "
                "that Spark would apply to the single rows, before it merges them into sessions. Write it in the next "
                "stage: put out the session's start or end, and declare the end as event_time of the stream between."
            )


def _conditions_below(sessions: Node) -> list[Any]:
    """The conditions on sessions, or on a time that windows are made of, below their aggregation."""
    found = []
    for node in sessions.child.walk():
        parts = parts_of(node) if node.kind == "Join" else []
        parts += conjuncts(node.plan.condition()) if node.kind == "Filter" else []
        marked = {each for child in node.children for each in child.ids if is_marked(child.column(each), SESSION_MARK)}
        found += [part for part in parts if references(part) & marked or contains(part, "PreciseTimestampConversion")]
    return [part for part in found if kind_of(part) != "IsNotNull"]


def _has_hash(column: Any) -> bool:
    """Whether Spark computes a hash of this column's type."""
    kind = str(column.dataType().sql())
    return not _is_session(column) and not any(word in kind for word in ("COLLATE", "MAP<", "VARIANT"))


def _check_collations(stage: Stage, node: Node) -> None:
    """Spark keeps state by the bytes of a key, and refuses a text whose equal values have different bytes."""
    if node.kind == "Join" or state_of(node) is None:
        return
    for (key,) in keys_of(node):
        kind, name = str(key.dataType().sql()), text(key)
        if "COLLATE" not in kind:
            continue
        is_made = kind_of(key) == "Collate"
        as_text = f"F.expr({literal(text(key.child()))})" if is_made else f'F.expr({literal(name)}).cast("string")'
        as_text = f"F.lower({as_text})" if "UTF8_LCASE" in kind else as_text
        raise PipelineRefused(
            f"Stage {stage.name}: the {described(node)} has a text with a collation as key, by which Spark cannot keep "
            f"state. Use a text without one: {as_text}."
        )


def _check_maps(stage: Stage, node: Node) -> None:
    """Spark 4.3 takes a null in a map of numbers that is a key for 0, so two groups become one; also in a batch over
    a file."""
    for (key,) in keys_of(node) if node.kind == "Aggregate" else ():
        if "MAP<" in str(key.dataType().sql()):
            is_column = kind_of(key) == "AttributeReference" and str(key.dataType().sql()).startswith("MAP<")
            of = literal(in_sql(str(key.name()))) if is_column else "the map"
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(node)} has a map in its key, and Spark takes a null in a map of "
                f"numbers for 0. Group by its entries, F.array_sort(F.map_entries({of}))."
            )


def _check_pandas_aggregates(stage: Stage, node: Node) -> None:
    """Spark has no plan for a pandas_udf that aggregates a stream."""
    made = node.made if node.kind == "Aggregate" else ()
    if any(contains(each, "PythonUDAF") for each in made):
        raise PipelineRefused(
            f"Stage {stage.name}: the {described(node)} uses a pandas_udf or arrow_udf that makes one value of a "
            "group, which Spark cannot run on a stream. Collect the values with F.collect_list, and apply a F.udf to "
            "the list behind it."
        )


def _check_limit(stage: Stage, root: Node, node: Node) -> None:
    """Spark leaves a limit out of a batch that has no rows for it, and then misses the state of that batch."""
    inputs, all_inputs = ({leaf.ids for leaf in each.leaves()} for each in (node, root))
    if node.kind == "GlobalLimit" and inputs != all_inputs:
        raise PipelineRefused(
            f"Stage {stage.name} limits the rows of some inputs and reads others beside them. The query would fail "
            "after a batch without rows of the former. Limit them in an earlier stage, and read its stream here."
        )


def _check_timeout(stage: Stage, node: Node) -> None:
    """A drain raises the watermark to infinity, and rows that an operator then emits reach the next one in that batch.

    A function that gets them can set no later timeout. `transformWithState` may register a timer for an earlier time.
    """
    if node.kind != "FlatMapGroupsInPandasWithState" or "EventTime" not in str(node.plan.timeout().toString()):
        return
    for below in node.child.walk():
        if _puts_out_later(below):
            raise PipelineRefused(
                f"Stage {stage.name} passes the output of the {described(below)} to applyInPandasWithState with "
                "EventTimeTimeout. A drain raises the watermark to infinity before the last rows are emitted, so "
                "setTimeoutTimestamp fails. Use applyInPandasWithState in a separate stage, or transformWithState."
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


def check_row_formats(spark: SparkSession, stage: Stage, optimised: Node) -> None:
    """Refuse what cannot read the rows of applyInPandasWithState, which are not in Spark's usual format.

    Only the optimised plan shows what reads them. Any computation between the two converts the rows.
    """
    for node in optimised.walk():
        if not any(map(_is_unconverted, node.children)) or node.kind in CONVERTING or _forwards(node):
            continue
        if node.kind == "Join" and _is_broadcast(spark, node):
            continue
        functions = items(node.plan.udfs()) if node.kind in ("ArrowEvalPython", "BatchEvalPython") else ()
        to = ", ".join(text(each) for each in functions) or f"the {described(node) if state_of(node) else node.kind}"
        remedy = "Move what follows it into a separate stage."
        if functions:
            remedy = "Use it inside the function of applyInPandasWithState, or in a separate stage."
        elif node.kind == "Join" and not node.is_join_of_streams:
            remedy = "Join with F.broadcast(table), or move what follows it into a separate stage."
        raise PipelineRefused(
            f"Stage {stage.name} passes columns of applyInPandasWithState to {to}, and Spark fails at the first such "
            f"row with a ClassCastException. {remedy}"
        )


def _is_unconverted(node: Node) -> bool:
    """Whether this puts out the very rows of applyInPandasWithState."""
    return node.kind == "FlatMapGroupsInPandasWithState" or (
        _forwards(node) and any(map(_is_unconverted, node.children))
    )


def _forwards(node: Node) -> bool:
    """Whether this puts out the rows that it gets. A repartition does so if it only merges partitions."""
    return node.kind in FORWARDING or (node.kind == "Repartition" and not node.plan.shuffle())


def _is_broadcast(spark: SparkSession, join: Node) -> bool:
    """Whether Spark broadcasts a static table, as its hint says, and so converts the rows that it joins with that."""
    rule = scala_object(spark, "org.apache.spark.sql.catalyst.optimizer.PushDownLeftSemiAntiJoin")
    side = rule.getBroadcastBuildSide(join.plan, True, spark._jsparkSession.sessionState().conf())
    left, right = join.children
    return bool(side.isDefined()) and not (left if str(side.get().toString()) == "BuildLeft" else right).is_streaming


def _check_constant(stage: Stage, node: Node) -> None:
    """A static table must be the same at each start, so its rows must be part of the program."""
    if node.children or (node.kind in CONSTANT and (node.kind != "LogicalRDD" or _is_in_program(node.plan.rdd()))):
        return
    if node.kind == "UnionLoopRef":
        raise PipelineRefused(
            f"Stage {stage.name} uses a recursive query, whose rows Spark computes anew for each batch. Put them into "
            "the code, with spark.range or spark.createDataFrame."
        )
    if node.kind == "ResolvedInlineTable":
        raise PipelineRefused(
            f"Stage {stage.name} has VALUES with a value that is no constant, as the time or a random number, so each "
            "batch would have other rows. Write constants."
        )
    if node.kind == "LogicalRDD" and _is_kept(node.plan.rdd()):
        raise PipelineRefused(
            f"Stage {stage.name} reads a table that localCheckpoint or checkpoint has computed (LogicalRDD). Its plan "
            "no longer shows whether the rows come from files, which may be others after a hand-over. Remove the call, "
            "and put a small table into the code, with spark.createDataFrame."
        )
    raise PipelineRefused(
        f"Stage {stage.name} reads a table or files of its own ({node.kind}). A query lists the files when it starts, "
        "and the list may differ after a hand-over, so its rows would depend on restarts. Produce them into a stream "
        "and join with that, or put a small table into the code, with spark.createDataFrame."
    )


def _is_in_program(rdd: Any) -> bool:
    """Whether the rows come from the program, not from files or from a result computed from files."""
    below = [each.rdd() for each in items(rdd.dependencies())]
    return (
        all(_is_in_program(each) for each in below) if below else kind_of(rdd) in ("ParallelCollectionRDD", "EmptyRDD")
    )


def _is_kept(rdd: Any) -> bool:
    """Whether rows come from a checkpoint of a DataFrame, behind which Spark forgets where they came from."""
    return kind_of(rdd) in ("LocalCheckpointRDD", "ReliableCheckpointRDD") or any(
        _is_kept(each.rdd()) for each in items(rdd.dependencies())
    )


def _check_subquery(stage: Stage, plan: Any) -> None:
    if plan.isStreaming():
        raise PipelineRefused(
            f"Stage {stage.name} uses a stream inside a subquery. Write it as a join, or as a left semi join."
        )
    for leaf in items(plan.collectLeaves()):
        _check_constant(stage, Node(kind_of(leaf), leaf, (), False, (), ()))


def _check_join(stage: Stage, node: Node) -> None:
    if node.is_join_of_streams and join_type(node) in ("LeftSemi", "LeftAnti"):
        for below in node.child.walk():
            if below.kind == "Aggregate" and below.is_streaming:
                raise PipelineRefused(
                    f"Stage {stage.name}: Spark moves the left semi join below the {described(below)} in batches with "
                    "few rows on its right side, and the query fails. Move the aggregation into an earlier stage, "
                    "with event_time on its stream, and join that here."
                )
    if node.is_join_of_streams and not equalities(node):
        raise PipelineRefused(
            f"Stage {stage.name}: a join of two streams ({join_type(node)}) has no equality between a column of the "
            "left and one of the right. Add one to the join's condition; a filter after the join is too late."
        )


def _check_time(stage: Stage, node: Node) -> None:
    if node.kind.startswith("FlatMapGroups") and "ProcessingTime" in str(node.plan.timeout().toString()):
        raise PipelineRefused(
            f"Stage {stage.name} uses ProcessingTimeTimeout, which a drain cannot complete. "
            "Use GroupStateTimeout.EventTimeTimeout."
        )
    if node.kind.startswith("TransformWithState") and "ProcessingTime" in str(node.plan.timeMode().toString()):
        raise PipelineRefused(
            f'Stage {stage.name} uses timeMode "ProcessingTime", which a drain cannot complete. '
            'Use timeMode "EventTime".'
        )

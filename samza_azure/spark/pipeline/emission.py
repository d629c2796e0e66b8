"""Check that a stream emits exactly the rows that a batch would.

In output mode append, a row of an aggregation or of an outer join is emitted once the watermark has passed its time, so
its time must not be null. In output mode update, an aggregation emits a row for each change of a group: the last row
of each group is the batch's row, provided that every change is emitted and shows its group.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.advice import Advice, without_nulls
from samza_azure.spark.pipeline.bounds import window_time_of
from samza_azure.spark.pipeline.catalyst import (
    Node,
    conjuncts,
    contains,
    equalities,
    identity,
    in_sql,
    is_marked,
    is_window,
    items,
    join_type,
    kind_of,
    literal,
    named,
    text,
    without_alias,
)
from samza_azure.spark.pipeline.destination import INTEGERS
from samza_azure.spark.pipeline.operators import described, is_grouping_id, keys_of, nulls_of, state_of

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
#: Each of these types holds the values of those before it.
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
#: Functions of a time that are null only if the time is null.
OF_TIME = frozenset(
    {
        "KnownNullable",
        "PreciseTimestampConversion",
        "TimestampAddInterval",
        "TruncTimestamp",
        "UnixMicros",
        "UnixMillis",
        "UnixSeconds",
    }
)


def check_emission(stage: Stage, root: Node, advice: Advice) -> None:
    """Refuse a stage if rows would stay in its state for ever, or if it would emit rows that a batch does not have."""
    aggregations = [node for node in root.walk() if node.kind == "Aggregate" and node.is_streaming]
    if stage.output_mode == "update":
        for aggregation in aggregations:
            _check_changes(stage, root, aggregation)
    else:
        for aggregation in aggregations:
            _check_complete(stage, aggregation, advice)
    for node in root.walk():
        if node.is_join_of_streams:
            _check_outer(stage, node)
            check_null_keys(stage, node, equalities(node, ["EqualTo"]))
        elif node.kind == "DeduplicateWithinWatermark" and node.is_streaming:
            for time in _times(node.child):
                _check_reached(stage, node, time, "would never forget a key", advice)
                _check_not_null(stage, node.child, time, f"the {described(node)} does not know how long to keep it")
        elif node.kind == "TransformWithStateInPySpark" and "pandas" in str(node.plan.userFacingDataType().toString()):
            _check_pandas_keys(stage, node)


def _check_pandas_keys(stage: Stage, node: Node) -> None:
    """pandas has no null beside whole numbers: it makes fractions of a chunk's keys if one is null, and Spark takes
    each fraction for a null. So the groups would share one state. A null time cannot be converted at all."""
    for (key,) in keys_of(node):
        kind, name = str(key.dataType().simpleString()), str(key.name())
        if kind not in (*INTEGERS, "timestamp", "timestamp_ntz") or _is_never_null(node.child, identity(key)):
            continue
        consequence = "would put the groups beside it into the state of the null" if kind in INTEGERS else "would fail"
        column = in_sql(name)
        raise PipelineRefused(
            f"Stage {stage.name}: where {name} is null, transformWithStateInPandas {consequence}. Remove such rows "
            f"before groupBy, {without_nulls(column)}. If you need them, use transformWithState, or make the key a "
            f"text, .withColumn({literal(name)}, F.expr({literal(f'CAST({column} AS STRING)')}))."
        )


def puts_out_changes(stage: Stage, root: Node) -> bool:
    """Whether the stage's output may have several rows for one row of a batch."""
    return stage.output_mode == "update" and any(node.kind == "Aggregate" and node.is_streaming for node in root.walk())


# Append.


def _check_complete(stage: Stage, aggregation: Node, advice: Advice) -> None:
    """A group is emitted when the watermark has passed it."""
    keys = list(items(aggregation.plan.groupingExpressions()))
    times = [key for key in keys if kind_of(key) == "AttributeReference" and is_marked(key)]
    if not times:
        raise PipelineRefused(
            f"Stage {stage.name}: no group of the {described(aggregation)} is ever complete, since its keys have no "
            "event time with a watermark, and output mode append emits only complete groups. "
            + (
                _deduplicated(aggregation)
                if _is_distinct(aggregation)
                else f"{advice.complete(aggregation)} Or use output mode update, which emits a row for each change of "
                f"a group: {stage.decorator(output_mode='update')}."
            )
        )
    _check_reached(stage, aggregation, times[0], "would never emit a group", advice)
    for key in times:
        _check_totals(stage, aggregation, key)
        _check_not_null(stage, aggregation.child, key, f"the {described(aggregation)} never completes its group")


def _check_reached(stage: Stage, operator: Node, time: Any, consequence: str, advice: Advice) -> None:
    """Refuse a column that has Spark's mark of an event time, as from the schema of other rows, but no watermark."""
    if advice.is_reached(operator):
        return
    if any(node.kind == "EventTimeWatermark" for node in operator.walk()):
        raise PipelineRefused(
            f"Stage {stage.name}: the {described(operator)} {consequence}, since no watermark passes the function with "
            "state before it. Move what comes after that function into a separate stage, with event_time and "
            "frontier_lag on the stream between."
        )
    raise PipelineRefused(
        f"Stage {stage.name}: the {described(operator)} {consequence}, since no withWatermark is before it. Its "
        f"column {time.name()} has the mark of one from a schema that was taken from other rows. "
        f"{advice.timed(operator.leaves()[0])}"
    )


def _check_totals(stage: Stage, aggregation: Node, time: Any) -> None:
    """A rollup or a cube over a time has groups of all times, which are never complete. Spark marks them by a null."""
    expand = aggregation.child
    if expand.kind != "Expand" or identity(time) not in _made_null(expand):
        return
    keys = [key for key in items(aggregation.plan.groupingExpressions()) if not is_grouping_id(key)]
    names = {identity(key): literal(in_sql(str(key.name()))) for key in keys}
    timed = [nulls for nulls in nulls_of(expand) if identity(time) not in nulls]
    sets = [f"[{', '.join(name for each, name in names.items() if each not in nulls)}]" for nulls in timed]
    columns = {literal(in_sql(str(each.name()))) for child in expand.child.children for each in child.output}
    made = [name for name in names.values() if name not in columns or name == '"window"']  # as F.window calls it
    first = f" Make {', '.join(made)} with withColumn before it, if the grouping makes it." if made else ""
    raise PipelineRefused(
        f"Stage {stage.name}: the {described(aggregation)} has totals over all values of {time.name()}, which are "
        f"never complete, and their rows would never be emitted. Use totals of each {time.name()} only, "
        f".groupingSets([{', '.join(sets)}], {', '.join(names.values())}), and add them up where they are read.{first}"
    )


def _is_distinct(aggregation: Node) -> bool:
    """Whether it only removes duplicates, as SELECT DISTINCT and UNION do."""
    return not any(contains(made, "AggregateExpression") for made in aggregation.made)


def _deduplicated(aggregation: Node) -> str:
    """The line to write instead of an aggregation that only removes duplicates."""
    keys = [key for key in items(aggregation.plan.groupingExpressions()) if kind_of(key) == "AttributeReference"]
    columns = ", ".join(literal(str(key.name())) for key in keys)  # these are not parsed
    return (
        "Write SELECT and UNION ALL instead of SELECT DISTINCT, UNION and GROUP BY, and behind the DataFrame "
        f".dropDuplicates([{columns}]), which emits each row once."
    )


def _times(node: Node) -> list[Any]:
    return [each for each in node.output if is_marked(each)]


def _check_outer(stage: Stage, join: Node) -> None:
    """A row without a partner is emitted when the watermark has passed its time, or a key that equals a time."""
    kind = join_type(join)
    for number, where in enumerate((("LeftOuter", "FullOuter"), ("RightOuter", "FullOuter"))):
        if kind in where:
            side = join.children[number]
            for time in (*_times(side), *_keys_by_time(join, number)):
                _check_not_null(stage, side, time, f"the {described(join)} waits for its partner for ever")


def _keys_by_time(join: Node, number: int) -> Iterator[Any]:
    """The columns of one side that equal a time with a watermark of the other."""
    for pair in equalities(join, ["EqualTo"]):
        if all(kind_of(each) == "AttributeReference" for each in pair) and is_marked(pair[1 - number]):
            yield pair[number]


def check_null_keys(stage: Stage, join: Node, keys: Sequence[tuple[Any, Any]]) -> None:
    """A stream join compares keys as bytes, so null equals null; in a batch null equals nothing.

    The result is right if one side has no nulls. Spark itself removes them from a side that emits no rows without a
    partner, if the key is a column there.
    """
    kind = join_type(join)
    taken_out = {"Inner": (0, 1), "LeftSemi": (0, 1), "LeftOuter": (1,), "RightOuter": (0,)}.get(kind, ())
    for pair in keys:
        columns = [_column_of(each) for each in pair]
        if any(columns[side] is not None for side in taken_out):
            continue
        known = zip(join.children, columns, strict=True)
        if any(column is not None and _is_never_null(side, identity(column)) for side, column in known):
            continue
        if any(_is_filtered(side, key) for side, key in zip(join.children, pair, strict=True)):
            continue
        left, right = (text(each) for each in pair)
        raise PipelineRefused(
            f"Stage {stage.name}: the {described(join)} would match rows whose {left} and {right} are both null, "
            f"which a batch does not. Remove them on one side before the join, "
            f"{without_nulls(left)}, "
            "as a column if it is computed. If you need these rows, add them again with a union."
        )


def _is_filtered(side: Node, key: Any) -> bool:
    """Whether a filter removes the rows in which an expression is null."""
    known = items(side.plan.constraints().toSeq())
    return any(kind_of(each) == "IsNotNull" and each.child().semanticEquals(key) for each in known)


def _column_of(key: Any) -> Any | None:
    """The column, if the key is a column, or a cast of one that is null only where the column is."""
    while kind_of(key) == "Cast" and _keeps_values(key):
        key = key.child()
    return key if kind_of(key) == "AttributeReference" else None


def _keeps_values(cast: Any) -> bool:
    """Whether a cast makes no nulls: it fails instead (ANSI), or its type holds all values."""
    source, target = (str(each.dataType().simpleString()) for each in (cast.child(), cast))
    mode = str(cast.evalMode().toString())
    if mode == "ANSI":
        return not _has_null_values(source) and not (source in ("float", "double") and target.startswith("decimal"))
    if mode != "LEGACY":  # try_cast
        return source == target
    if target == "string":
        return not _has_null_values(source)
    if source in NUMBERS and target in NUMBERS:
        return NUMBERS.index(source) <= NUMBERS.index(target)
    return source == target or {source, target} <= {"date", "timestamp", "timestamp_ntz"}


def _has_null_values(source: str) -> bool:
    """Whether a type has values that a cast makes null: a variant may hold a null of JSON."""
    return "variant" in source


def _check_not_null(stage: Stage, node: Node, time: Any, consequence: str) -> None:
    if _is_never_null(node, identity(time)):
        return
    name = str(time.name())
    raise PipelineRefused(
        f"Stage {stage.name}: where {name} is null, {consequence}, and the row would never be emitted. Remove such "
        f"rows before it, {without_nulls(in_sql(name))}. If you need them, add them again with a union."
    )


def _is_never_null(node: Node, wanted: int) -> bool:
    """Whether the plan shows that a column of this node's output has no nulls."""
    if not node.column(wanted).nullable():
        return True
    if not node.children:
        return False
    match node.kind:
        case "Filter":
            if any(wanted in _never_null_where(each) for each in conjuncts(node.plan.condition())):
                return True
        case "Project" | "Aggregate":
            return _gives_no_null(node, without_alias(named(node.made, wanted)), node.column(wanted))
        case "Expand":
            index = node.ids.index(wanted)
            rows = [without_alias(list(items(each))[index]) for each in items(node.plan.projections())]
            return all(_gives_no_null(node, each, node.column(wanted)) for each in rows)
        case "Union":
            index = node.ids.index(wanted)
            return all(_is_never_null(child, child.ids[index]) for child in node.children)
        case "Join" if join_type(node) not in ("Inner", "LeftSemi", "LeftAnti", "Cross"):
            kept = {"LeftOuter": 0, "RightOuter": 1}.get(join_type(node))
            return kept is not None and _is_passed(node.children[kept : kept + 1], wanted)
    return _is_passed(node.children, wanted)


def _gives_no_null(node: Node, made: Any, column: Any) -> bool:
    """Whether an expression over a node's child, which makes one of its columns, has no nulls."""
    kind = kind_of(made)
    if kind == "AttributeReference":
        return _is_never_null(node.child, identity(made))
    if kind == "Literal":
        return not made.nullable()
    if is_window(column):
        return True  # Spark removes rows without a time when it computes windows
    if (window := window_time_of(made)) is not None:
        return _gives_no_null(node, window, window)
    if kind in OF_TIME or (kind == "Cast" and _keeps_values(made)):
        return all(_gives_no_null(node, each, each) for each in items(made.children()))
    return False


def _made_null(expand: Node) -> frozenset[int]:
    """The columns that are null in some of the rows that an Expand makes of each row."""
    return frozenset[int]().union(*nulls_of(expand))


def _is_passed(children: Sequence[Node], wanted: int) -> bool:
    return any(wanted in child.ids and _is_never_null(child, wanted) for child in children)


def _never_null_where(condition: Any) -> frozenset[int]:
    """The columns that have no nulls where a condition holds."""
    kind, operands = kind_of(condition), list(items(condition.children()))
    if kind == "Not" and kind_of(operands[0]) == "IsNull":  # ~F.col("ts").isNull()
        return _strict_in(operands[0].child())
    if kind == "IsNotNull" or (kind == "AtLeastNNonNulls" and condition.n() == len(operands)):  # the latter is dropna
        return frozenset[int]().union(*map(_strict_in, operands))
    return _strict_in(condition)


def _strict_in(expression: Any) -> frozenset[int]:
    """The columns whose nulls make an expression null."""
    if kind_of(expression) == "AttributeReference":
        return frozenset({identity(expression)})
    if not expression.nullIntolerant():
        return frozenset()
    return frozenset[int]().union(*map(_strict_in, items(expression.children())))


# Update.


def _check_changes(stage: Stage, root: Node, aggregation: Node) -> None:
    """Refuse operators between an aggregation and the output that drop a change or its key."""
    if _is_distinct(aggregation):
        raise PipelineRefused(
            f"Stage {stage.name}: in output mode update the {described(aggregation)}, which only removes duplicates, "
            f"would emit a row again in each batch that has it. {_deduplicated(aggregation)}"
        )
    keys = [
        {identity(made) for made in aggregation.made if without_alias(made).semanticEquals(key)}
        for key in items(aggregation.plan.groupingExpressions())
    ]
    for node in _above(root, aggregation):
        if node.kind not in PASSING:
            what = state_of(node) or node.kind
            raise PipelineRefused(
                f"Stage {stage.name}: in output mode update the {described(aggregation)} emits a row for each change "
                f"of a group, but the operator after it ({what}) does not pass on every row, so rows would remain that "
                "a later change replaces. Return the groups unchanged and do the rest where they are read; or group "
                "by a window and use output mode append."
            )
        if node.kind == "Project":
            keys = [{identity(made) for made in node.made if _shows(made, key)} for key in keys]
    if not all(keys):
        is_rollup = any(is_grouping_id(key) for (key,) in keys_of(aggregation))
        more = ", and F.grouping_id() beside them" if is_rollup else ""
        raise PipelineRefused(
            f"Stage {stage.name}: in output mode update the {described(aggregation)} emits a row for each change of a "
            f"group, and without all of its keys a reader cannot tell which row replaces which. Return the keys{more}."
        )


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

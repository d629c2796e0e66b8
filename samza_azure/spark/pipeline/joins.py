"""Check that Spark runs a join of two streams by the condition that the other checks have read.

They read the analysed plan. Spark takes the keys of a join's state, and the time at which it drops a row from it, from
the optimised plan: there the condition also has the filters above the join, and constants are computed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.session import java_class
from samza_azure.spark.pipeline.bounds import Bounds, linear
from samza_azure.spark.pipeline.catalyst import (
    Node,
    conjuncts,
    equalities,
    in_sql,
    is_marked,
    is_window,
    items,
    join_type,
    kind_of,
    literal,
    read_optimised,
    references,
    text,
)
from samza_azure.spark.pipeline.emission import check_null_keys
from samza_azure.spark.pipeline.operators import described

#: Spark derives from these when it can drop a row from a join's state.
ORDERED = frozenset({"GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"})
#: Of the optimiser's rules, those that remove casts to the same type, or give equal values equal bytes.
NORMALISING = (
    "org.apache.spark.sql.catalyst.optimizer.SimplifyCasts",
    "org.apache.spark.sql.catalyst.analysis.RewriteCollationJoin",
    "org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers",
)
#: Types of seconds since 1970.
NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


def check_joins(spark: SparkSession, stage: Stage, root: Node, plan: Any, directory: Path, bounds: Bounds) -> None:
    """Refuse a join whose state Spark keeps by other keys or times than its condition says."""
    joins = [node for node in root.walk() if node.is_join_of_streams]
    if not joins:
        return
    for join in joins:
        _check_times(stage, join)
        _check_seconds(stage, join)
    optimised = [node for node in read_optimised(spark, plan, directory).walk() if node.is_join_of_streams]
    if len(optimised) == len(joins):
        for join, ours in zip(optimised, joins, strict=True):
            _check_condition(spark, stage, join, ours, bounds)
        return
    known = [_kept_by(each, bounds) for each in joins]
    if any(_kept_by(each, bounds) not in known for each in optimised):  # it may move a semi join below a union
        raise PipelineRefused(
            f"Stage {stage.name} has {len(joins)} joins of two streams, and Spark's optimiser makes {len(optimised)} "
            "others of them. Move each join into a separate stage, and what is after it into the next one."
        )


def _check_times(stage: Stage, join: Node) -> None:
    """A key with a watermark is what Spark drops rows by, whatever it is compared with. So what it equals must not be
    late where its row is not."""
    for pair in equalities(join, ["EqualTo"]):
        for time, other in (pair, pair[::-1]):
            if _is_time(time) and kind_of(other) != "AttributeReference" and not _is_later(other):
                name = str(time.name())
                column = in_sql(name)
                copy = f"struct({column}.*)" if is_window(time) else f"{column} + INTERVAL 0 SECONDS"
                raise PipelineRefused(
                    f"Stage {stage.name}: the {described(join)} would drop rows that are not late, judged by "
                    f"{text(other)}: it is computed, and {name} has a watermark. Compare a copy of {name}, which has "
                    f"none: .withColumn({literal(f'{name}_copy')}, F.expr({literal(copy)})) before the join, and "
                    f"{in_sql(f'{name}_copy')} = {text(other)} in its condition."
                )


def _is_later(expression: Any) -> bool:
    """Whether this is an event time plus a constant: where the time is not late, this is not late either."""
    found, column = linear(expression), expression
    while children := list(items(column.children())):
        column = children[0]
    return found is not None and found[1] >= 0 and _is_time(column)


def _check_seconds(stage: Stage, join: Node) -> None:
    """A number of seconds is up to a second less than its time, and Spark compares it with the watermark as a time."""
    for each in _of_both(join):
        casts = list(_casts_of_time(each)) if kind_of(each) in ORDERED else []
        if casts:
            written = text(each)
            for cast in casts:
                time = text(cast.child())
                is_whole = _type_of(cast) not in ("float", "double", "decimal")
                seconds = f"unix_seconds({time})" if is_whole else f"(unix_micros({time}) / 1000000)"
                written = written.replace(text(cast), seconds)
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(join)} would drop rows up to a second early by {text(each)}, "
                f"since Spark takes the seconds for the time itself. Write in its condition: AND {written}."
            )


def _kept_by(join: Node, bounds: Bounds) -> tuple[object, ...]:
    """The number of keys, and the times at which rows leave the state."""
    return join_type(join), len(equalities(join)), bounds.evicted_us(join)


def _check_condition(spark: SparkSession, stage: Stage, join: Node, ours: Node, bounds: Bounds) -> None:
    added = [each for each in _of_both(join) if not any(each.semanticEquals(known) for known in _of_both(ours))]
    normalised = ours.plan
    for rule in NORMALISING:
        normalised = java_class(spark, rule).apply(normalised)
    known = equalities(replace(ours, plan=normalised), ["EqualTo"])
    keys = [pair for pair in equalities(join, ["EqualTo"]) if not any(_same(pair, each) for each in known)]
    if not any(map(_is_by_time, keys)) and bounds.evicted_us(join) == bounds.evicted_us(ours):
        check_null_keys(stage, join, keys)
        return
    written = "".join(f" AND {text(each)}" for each in added)
    remedy = f"Write in the join's condition:{written}." if added else "Move the join into a separate stage."
    raise PipelineRefused(
        f"Stage {stage.name}: Spark's optimiser gives the {described(ours)} another condition, from a filter after it "
        "or from constants that it computes, and so drops rows from its state at other times than the stage says. "
        f"{remedy}"
    )


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(ours.semanticEquals(theirs) for ours, theirs in zip(one, other, strict=True))


def _is_by_time(pair: tuple[Any, Any]) -> bool:
    return any(map(_is_time, pair))


def _is_time(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference" and is_marked(expression)


def _of_both(join: Node) -> list[Any]:
    """The parts of a join's condition that compare its sides."""
    condition = join.plan.condition()
    sides = [set(child.ids) for child in join.children]
    found = conjuncts(condition.get()) if condition.isDefined() else ()
    return [each for each in found if all(references(each) & side for side in sides)]


def _casts_of_time(expression: Any) -> Iterator[Any]:
    """The conversions of a time with a watermark to a number."""
    if kind_of(expression) == "Cast" and _type_of(expression) in NUMBERS and _is_time(expression.child()):
        yield expression
    for child in items(expression.children()):
        yield from _casts_of_time(child)


def _type_of(expression: Any) -> str:
    return str(expression.dataType().typeName()).partition("(")[0]

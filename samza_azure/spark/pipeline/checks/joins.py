"""Spark runs a join of two streams by the condition that the other checks have read, and so drops no row too early.

They read the analysed plan. Spark takes the keys of a join's state, and the time at which it drops a row from it, from
the optimised plan: there the condition also has the filters above the join, and constants are computed.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from samza_azure.spark.jvm.catalyst import (
    Node,
    contains,
    equalities,
    in_sql,
    is_marked,
    is_window,
    items,
    join_type,
    kind_of,
    literal,
    of_both,
    parts_of,
    references,
    text,
)
from samza_azure.spark.jvm.rules import normalised
from samza_azure.spark.pipeline.bounds import Bounds, linear
from samza_azure.spark.pipeline.checks.null_keys import matched
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described
from samza_azure.spark.pipeline.refusals import Refusal

#: Spark derives from these when it can drop a row from a join's state.
ORDERED = frozenset({"GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"})
#: Types of seconds since 1970.
NUMBERS = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a join whose state Spark keeps by other keys or times than its condition says."""
    stage, root, bounds = facts.stage, facts.root, facts.bounds
    joins = [node for node in facts.operators if node.kind == "Join"]
    for join in joins:
        for wrong in (*_compared_with_what_is_computed(join), *_in_seconds(join)):
            yield facts.refused(join, wrong)
    run = [node for node in facts.optimised.walk() if node.is_join_of_streams]
    written, known = [_inputs(join) for join in joins], [_kept_by(each, bounds) for each in joins]
    if len(run) > len(joins) and any(_has_subquery(node) for node in root.walk()):
        yield Refusal(
            f"Stage {stage.name}: Spark computes a subquery by joining a stream with itself, which would keep all rows "
            "as state. Join the table instead, on the subquery's condition, and choose among the rows of its partners "
            "where the output is read."
        )
        return
    is_same = [_inputs(join) for join in run] == written
    for join, ours in zip_longest(run, joins if is_same else ()):
        for wrong in (*_kept_for_ever(join, bounds), *_limited_by_others(join, bounds)):
            yield facts.refused(ours or join, wrong)  # the optimiser drops the line of some joins
        if is_same and (wrong := _by_another_condition(facts, join, ours)):
            yield facts.refused(ours, wrong)
    if not is_same and (len(run) == len(joins) or any(_kept_by(each, bounds) not in known for each in run)):
        yield Refusal(  # it may move a semi join below a union
            f"Stage {stage.name} has {len(joins)} joins of two streams, and Spark's optimiser makes {len(run)} "
            "others of them. Move each join into a separate stage, and what is after it into the next one."
        )


def _has_subquery(node: Node) -> bool:
    """Whether an expression of this operator is a query of its own."""
    return any(contains(each, "ScalarSubquery") for each in items(node.plan.expressions()))


def _inputs(join: Node) -> list[list[int | None]]:
    """The inputs that are read on each side."""
    return [[leaf.reads for leaf in child.leaves()] for child in join.children]


def _kept_for_ever(join: Node, bounds: Bounds) -> Iterator[str]:
    """A row without a partner is emitted when it leaves the state."""
    kinds = (("LeftOuter", "FullOuter"), ("RightOuter", "FullOuter"))
    for number, evicted in enumerate(bounds.evicted_us(join)):
        if evicted is None and join_type(join) in kinds[number]:
            side = ("left", "right")[number]
            yield (
                f"the {described(join)} would never emit a row of its {side} side that has no "
                f"partner, since its condition does not limit how late a partner can come. "
                f"{bounds.remedy_for_state(join, number)}"
            )


def _limited_by_others(join: Node, bounds: Bounds) -> Iterator[str]:
    """Spark takes a limit of any column for one of its side's event time, and of several limits the earliest. A limit
    of one side alone, as of seconds by a number, never moves."""
    by_keys, both = bounds.evicted_us(join, []), of_both(join)
    for number, child in enumerate(join.children):
        ours, others = list[Any](), list[Any]()
        for each in parts_of(join):
            is_limit = kind_of(each) in ORDERED and bounds.evicted_us(join, [each])[number] != by_keys[number]
            is_of_time = each in both and any(
                is_marked(child.column(column)) for column in references(each) & set(child.ids)
            )
            (others if is_limit and not is_of_time else ours).append(each)
        is_limited = bounds.evicted_us(join, ours)[number] is not None
        for each in others:
            said = f"in the condition of the {described(join)} Spark takes {text(each)} for a limit of the event time, "
            if each not in both:
                yield (
                    f"{said}and would keep rows forever. Compute it before the join, "
                    f'.withColumn("is_joined", F.expr({literal(text(each))})), write is_joined instead, and '
                    '.drop("is_joined") behind it.'
                )
            elif not is_limited:
                left, right = (f"unix_micros({text(side)})" for side in (each.left(), each.right()))
                yield (
                    f"{said}and would drop rows too early. {bounds.remedy_for_state(join, number)} Or, to keep them "
                    f"forever, write {left} {each.symbol()} {right} instead."
                )


def _compared_with_what_is_computed(join: Node) -> Iterator[str]:
    """A key with a watermark is what Spark drops rows by, whatever it is compared with. So what it equals must not be
    late where its row is not."""
    for pair in equalities(join, ["EqualTo"]):
        for time, other in (pair, pair[::-1]):
            if _is_time(time) and kind_of(other) != "AttributeReference" and not _is_later(other):
                name = str(time.name())
                column = in_sql(name)
                copy = f"struct({column}.*)" if is_window(time) else f"{column} + INTERVAL 0 SECONDS"
                yield (
                    f"the {described(join)} would drop rows that are not late, judged by "
                    f"{text(other)}: it is computed, and {name} has a watermark. Compare a copy of {name}, which has "
                    f"none: .withColumn({literal(f'{name}_copy')}, F.expr({literal(copy)})) before the join, "
                    f"{in_sql(f'{name}_copy')} = {text(other)} in its condition, and "
                    f".drop({literal(f'{name}_copy')}) behind it."
                )


def _is_later(expression: Any) -> bool:
    """Whether this is an event time plus a constant: where the time is not late, this is not late either."""
    found, column = linear(expression), expression
    while children := list(items(column.children())):
        column = children[0]
    return found is not None and found[1] >= 0 and _is_time(column)


def _in_seconds(join: Node) -> Iterator[str]:
    """A number of seconds is up to a second less than its time, and Spark compares it with the watermark as a time."""
    for each in of_both(join):
        casts = list(_casts_of_time(each)) if kind_of(each) in ORDERED else []
        if casts:
            written = text(each)
            for cast in casts:
                time = text(cast.child())
                is_whole = _type_of(cast) not in ("float", "double", "decimal")
                seconds = f"unix_seconds({time})" if is_whole else f"(unix_micros({time}) / 1000000)"
                written = written.replace(text(cast), seconds)
            times = list(dict.fromkeys(text(cast.child()) for cast in casts))
            remedy = f"Write in its condition instead: AND {written}"
            if len(times) == 2 and join_type(join) != "Inner":  # Spark wants a range of times there
                later, earlier = times
                remedy = (
                    f"Compare the times themselves, as in {later} BETWEEN {earlier} AND {earlier} + INTERVAL 1 HOUR"
                )
            yield (
                f"the {described(join)} would drop rows up to a second early by {text(each)}, "
                f"since Spark takes the seconds for the time itself. {remedy}."
            )


def _kept_by(join: Node, bounds: Bounds) -> tuple[object, ...]:
    """The number of keys, and the times at which rows leave the state."""
    return join_type(join), len(equalities(join)), bounds.evicted_us(join)


def _by_another_condition(facts: Facts, join: Node, ours: Node) -> str:
    bounds = facts.bounds
    added = [each for each in of_both(join) if not any(each.semanticEquals(known) for known in of_both(ours))]
    known = equalities(replace(ours, plan=normalised(facts.spark, ours.plan)), ["EqualTo"])
    keys = [pair for pair in equalities(join, ["EqualTo"]) if not any(_same(pair, each) for each in known)]
    if not any(map(_is_by_time, keys)) and bounds.evicted_us(join) == bounds.evicted_us(ours):
        return matched(join, keys, facts.nulls)
    written = "".join(f" AND {text(each)}" for each in added)
    remedy = f"Write in the join's condition:{written}." if added else "Move the join into a separate stage."
    return (
        f"Spark's optimiser gives the {described(ours)} another condition, from a filter after it "
        "or from constants that it computes, and so drops rows from its state at other times than the stage says. "
        f"{remedy}"
    )


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(ours.semanticEquals(theirs) for ours, theirs in zip(one, other, strict=True))


def _is_by_time(pair: tuple[Any, Any]) -> bool:
    return any(map(_is_time, pair))


def _is_time(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference" and is_marked(expression)


def _casts_of_time(expression: Any) -> Iterator[Any]:
    """The conversions of a time with a watermark to a number."""
    if kind_of(expression) == "Cast" and _type_of(expression) in NUMBERS and _is_time(expression.child()):
        yield expression
    for child in items(expression.children()):
        yield from _casts_of_time(child)


def _type_of(expression: Any) -> str:
    return str(expression.dataType().typeName()).partition("(")[0]

"""Each row leaves the state: in output mode append a group, or a row of an outer join, is emitted once the watermark
has passed its time. So it needs a time with a watermark, which is not null.
"""

from collections.abc import Iterator
from typing import Any

from samza_azure.spark.jvm.catalyst import (
    EVENT_TIME_MARK,
    Node,
    equalities,
    identity,
    in_sql,
    is_marked,
    items,
    join_type,
    kind_of,
    literal,
)
from samza_azure.spark.pipeline.advice import deduplicated, without_nulls
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, is_distinct, is_grouping_id, nulls_of
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse an operator that would keep rows forever."""
    for node in facts.operators:
        yield from (facts.refused(node, said) for said in _wrong(facts, node))


def _wrong(facts: Facts, node: Node) -> Iterator[str]:
    if node.kind == "Aggregate" and not facts.updates:
        yield from _incomplete(facts, node)
    elif node.kind == "Join":
        yield from _without_a_partner(facts, node)
    elif node.kind == "DeduplicateWithinWatermark":
        for time in _times(node.child):
            yield from _unreached(facts, node, time, "would never forget a key")
            consequence = f"the {described(node)} does not know how long to keep it"
            yield from _null(facts, node.child, time, consequence, "")


def _incomplete(facts: Facts, aggregation: Node) -> Iterator[str]:
    """A group is emitted when the watermark has passed it."""
    keys = items(aggregation.plan.groupingExpressions())
    times = [key for key in keys if kind_of(key) == "AttributeReference" and is_marked(key)]
    if not times:
        yield (
            f"no group of the {described(aggregation)} is ever complete, since its keys have no event time with a "
            "watermark, and output mode append emits only complete groups. "
        ) + (
            deduplicated(aggregation)
            if is_distinct(aggregation)
            else facts.advice.described(aggregation)
            or f"{facts.advice.complete(aggregation)} Or use output mode update, which emits a row for each change of "
            f"a group: {facts.stage.decorator(output_mode='update')}."
        )
        return
    yield from _unreached(facts, aggregation, times[0], "would never emit a group")
    for key in times:
        yield from _totals(aggregation, key)
        yield from _null(facts, aggregation.child, key, f"the {described(aggregation)} never completes its group", "")


def _unreached(facts: Facts, operator: Node, time: Any, consequence: str) -> Iterator[str]:
    """A column may have Spark's mark of an event time, as from the schema of other rows, but no watermark."""
    if facts.advice.is_reached(operator):
        return
    if any(node.kind == "EventTimeWatermark" for node in operator.walk()):
        yield (
            f"the {described(operator)} {consequence}, since no watermark passes the function with state before it. "
            "Move what comes after that function into a separate stage, with event_time and frontier_lag on the stream "
            "between."
        )
        return
    yield (
        f"the {described(operator)} {consequence}, since no withWatermark is before it. Its column {time.name()} has "
        f"the mark of one from a schema that was taken from other rows. {facts.advice.timed(operator.leaves()[0])}"
    )


def _totals(aggregation: Node, time: Any) -> Iterator[str]:
    """A rollup or a cube over a time has groups of all times, which are never complete. Spark marks them by a null."""
    expand = aggregation.child
    if expand.kind != "Expand" or not any(identity(time) in nulls for nulls in nulls_of(expand)):
        return
    keys = [key for key in items(aggregation.plan.groupingExpressions()) if not is_grouping_id(key)]
    names = {identity(key): literal(in_sql(str(key.name()))) for key in keys}
    timed = [nulls for nulls in nulls_of(expand) if identity(time) not in nulls]
    sets = [f"[{', '.join(name for each, name in names.items() if each not in nulls)}]" for nulls in timed]
    columns = {literal(in_sql(each)) for child in expand.child.children for each in child.names}
    made = [name for name in names.values() if name not in columns or name == '"window"']  # as F.window calls it
    first = f" Make {', '.join(made)} with withColumn before it, if the grouping makes it." if made else ""
    yield (
        f"the {described(aggregation)} has totals over all values of {time.name()}, which are never complete, and "
        f"their rows would never be emitted. Use totals of each {time.name()} only, "
        f".groupingSets([{', '.join(sets)}], {', '.join(names.values())}), and add them up where they are read.{first}"
    )


def _without_a_partner(facts: Facts, join: Node) -> Iterator[str]:
    """Such a row is emitted when the watermark has passed its time, or a key that equals a time."""
    kind = join_type(join)
    for number, where in enumerate((("LeftOuter", "FullOuter"), ("RightOuter", "FullOuter"))):
        if kind in where:
            side = join.children[number]
            for time in (*_times(side), *_keys_by_time(join, number)):
                consequence = f"the {described(join)} waits for its partner forever"
                yield from _null(facts, side, time, consequence, "; add them behind it with a union if you need them")


def _times(node: Node) -> list[Any]:
    return [node.column(each) for each in node.marked(EVENT_TIME_MARK)]


def _keys_by_time(join: Node, number: int) -> Iterator[Any]:
    """The columns of one side that equal a time with a watermark of the other."""
    for pair in equalities(join, ["EqualTo"]):
        if all(kind_of(each) == "AttributeReference" for each in pair) and is_marked(pair[1 - number]):
            yield pair[number]


def _null(facts: Facts, node: Node, time: Any, consequence: str, then: str) -> Iterator[str]:
    if facts.nulls.never(facts.nulls.of(node, time)):
        return
    name = str(time.name())
    yield (
        f"where {name} is null, {consequence}, and the row would never be emitted. Remove such rows before it, "
        f"{without_nulls(in_sql(name))}. The output then lacks them{then}."
    )

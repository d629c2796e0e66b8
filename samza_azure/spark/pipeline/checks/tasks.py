"""Each operator with state gets all rows of a key in one task, on any number of tasks."""

from collections.abc import Iterator, Sequence
from typing import Any

from samza_azure.application import Stage
from samza_azure.spark.jvm.catalyst import Node, contains, in_sql, kind_of, literal, references
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described, groupings_of, keys_of
from samza_azure.spark.pipeline.placement import Offers, can_route, family
from samza_azure.spark.pipeline.refusals import Refusal


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a stage of several tasks for which no partitioning of the inputs is right."""
    for node in () if facts.is_on_one_task else facts.operators:
        if node.kind == "TransformWithStateInPySpark" and node.plan.hasInitialState():
            said = (
                f"the {described(node)} has an initial state, and each task would load all of it. "
                f"{_on_one_task(facts.stage)} Or produce the initial state into a stream."
            )
            yield facts.refused(node, said)
    for offers in facts.placement.unplaced:
        yield facts.refused(*_impossible(facts.stage, offers))
    for stream, one, other in facts.placement.torn:
        yield facts.refused(other, _two_routes(facts.stage, stream, one, other))


def _two_routes(stage: Stage, stream: str, one: Node, other: Node) -> str:
    inputs = [*stage.inputs]
    inputs.insert(inputs.index(stream) + 1, stream)
    twice = stage.decorator(inputs=tuple(inputs))
    needs = f"the {described(one)} needs" if one is other else f"the {described(one)} and the {described(other)} need"
    return (
        f"{needs} the rows of stream {stream!r} partitioned by different columns. Name the stream "
        f"twice, {twice}: the function then gets two DataFrames of it, one after the other, each partitioned as it is "
        "needed."
    )


def _impossible(stage: Stage, offers: Offers) -> tuple[Node, str]:
    """The operator that no partitioning suits, and why."""
    for operator, places in offers:
        if not keys_of(operator):
            return operator, (
                f"the {described(operator)} needs all rows in one task. {_on_one_task(stage)}"
                + (" If that is too slow, group by a key in an earlier stage." if operator.kind == "Aggregate" else "")
            )
        groupings = groupings_of(operator) if operator.kind == "Aggregate" else []
        if not places and groupings and not _shared_keys(operator):
            return operator, (
                f"the {described(operator)} needs the rows of each key in one task, but none of its keys is in all of "
                "its groupings (GROUPING SETS, rollup or cube). "
                f"{_apart(stage, operator.child.child, groupings)}"
            )
        if not places:
            return operator, (
                f"the {described(operator)} needs the rows of each key in one task, but "
                f"{_obstacle(operator)}. {_split(stage, operator, 'Move what comes before it into a separate stage')}"
            )
    (upper, _), *_, (lower, _) = offers
    return upper, (
        f"no partitioning of its inputs suits both the {described(lower)} and the "
        f"{described(upper)}, which share no key. "
        f"{_split(stage, upper, f'Write two stages, the first with the {described(lower)}')}"
    )


def _obstacle(operator: Node) -> str:
    """Why no part of an operator's key determines the task of an input's row."""
    parts = [part for key in keys_of(operator) for part in key]
    if any(_is_random(child, each) for child in operator.children for part in parts for each in references(part)):
        return "its key is not deterministic, so the same row could go to different tasks"
    if not any(can_route(part) for part in parts):
        return "equal values of the key's type may have different bytes (a collation, a map or a variant)"
    reasons = ["an earlier operator creates it", "an earlier join uses another key"]
    making = [node for node in operator.walk() if node.kind in ("Project", "Aggregate")]
    if any(contains(made, "PythonUDF") for node in making for made in node.made):
        reasons.append("a filter keeps rows from the Python function that computes it")
    return f"no part of the key can be computed from an input row alone: {', or '.join(reasons)}"


def _is_random(node: Node, wanted: int) -> bool:
    """Whether a projection computes a column with a non-deterministic function."""
    made = node.maker(wanted) if node.kind == "Project" and wanted in node.ids else None
    if made is not None and not made.deterministic():
        return True
    below = frozenset({wanted}) if made is None else references(made)
    return any(_is_random(child, each) for child in node.children for each in below if each in child.ids)


def _shared_keys(operator: Node) -> list[Any]:
    """The keys of an operator; of a rollup, a cube or GROUPING SETS those that all groupings have."""
    groupings = groupings_of(operator) if operator.kind == "Aggregate" else []
    if not groupings:
        return [key for key, *_ in keys_of(operator)]
    return [key for key in groupings[0] if all(any(key is each for each in others) for others in groupings)]


def _apart(stage: Stage, grouped: Node, groupings: Sequence[Sequence[Any]]) -> str:
    """What to write instead of groupings without a common key. `grouped` computes the keys for all of them."""
    known = {name for child in grouped.children for name in child.names}
    if not all(grouping and all(str(key.name()) in known for key in grouping) for grouping in groupings):
        return _on_one_task(stage)
    lines = [f".groupBy({', '.join(literal(in_sql(str(key.name()))) for key in each)})" for each in groupings]
    written = f"{', '.join(lines[:-1])} and {lines[-1]}"
    return f"Write a stage for each of them, {written}. {_on_one_task(stage, 'Or run')}"


def _split(stage: Stage, operator: Node, first: str) -> str:
    """What to write: an earlier stage, if its output can be partitioned by the operator's keys; or one task."""
    names = [
        str(key.name())
        for key in _shared_keys(operator)
        if kind_of(key) == "AttributeReference" and family(key) and can_route(key)
    ]
    if not names:
        return _on_one_task(stage)
    by = repr(names[0]) if len(names) == 1 else f"[{', '.join(map(repr, names))}]"
    return f"{first} with partition_by={by}. {_on_one_task(stage, 'Or run')}"


def _on_one_task(stage: Stage, run: str = "Run") -> str:
    """The remedy that always works, if one task is fast enough."""
    return f"{run} the stage on one task: {stage.decorator(tasks=1)}."

"""What the state of a stage's operators depends on: equal fingerprints, and a new version may go on with the state.

Columns and expressions are compared by what they are computed from, however the columns are called.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.pipeline.catalyst import (
    COMMON,
    Node,
    all_of,
    alternatives,
    data_type,
    exact,
    has_pattern,
    identity,
    items,
    join_type,
    kind_of,
    numbers_of,
    scala_seq,
    spelled,
    substituted,
    text,
    without_alias,
)
from samza_azure.spark.pipeline.operators import keys_of, state_of


class Origins:
    """Follows columns from an operator down to the inputs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[tuple[Node, int], str] = {}
        self._functions: dict[int, str] = {}

    def of(self, children: Sequence[Node], expression: Any) -> str:
        """What an operator computes an expression from, for comparisons.

        Each column is called after a hash of its own origin. Spelled out, a column that is used twice at each of many
        steps would make a text without end.
        """
        if kind_of(expression) == "AttributeReference":
            return self._origin_of(children, expression)
        by = {}
        for column in items(expression.references().toSeq()):
            name = f"of_{_hash_of(self._origin_of(children, column))}"
            by[identity(column)] = column.withQualifier(scala_seq(self._spark, [])).withName(name)
        return exact(substituted(self._spark, expression, by))

    def of_function(self, children: Sequence[Node], function: Any) -> str:
        """The same of an aggregate function. Each is wanted twice."""
        number = _number_of(function)
        if number not in self._functions:
            self._functions[number] = self.of(children, function)
        return self._functions[number]

    def uses_present_time(self, node: Node) -> bool:
        """Whether an operator, or one below it, uses a function such as `current_timestamp`."""
        return has_pattern(self._spark, node.plan, "CURRENT_LIKE")

    def _origin_of(self, children: Sequence[Node], column: Any) -> str:
        wanted = identity(column)
        for side, child in enumerate(children):
            if wanted in child.ids:
                origin = self._traced(child, wanted)
                return f"{side} of {origin}" if len(children) > 1 else origin
        return f"new {column.name()}"

    def _traced(self, node: Node, wanted: int) -> str:
        """The origin of a column of a node's output."""
        if (known := self._known.get((node, wanted))) is not None:
            return known
        column = node.column(wanted)
        if node.reads is not None:
            found = f"input {node.reads}: {column.name()}"
        elif node.kind in ("Project", "Aggregate"):
            made = node.maker(wanted)
            follow = self._origin_of if kind_of(made) == "AttributeReference" else self.of
            found = follow(node.children, made)
        elif node.kind in ("Expand", "Union"):
            every = [self.of([child], each) for child, each in alternatives(self._spark, node, column)]
            found = every[0] if len(set(every)) == 1 else " or ".join(every)
        elif node.kind == "Generate" and wanted not in node.child.ids:
            place = len(node.ids) - node.ids.index(wanted)  # from the end, where a generator's columns are
            found = f"{place} of {self.of(node.children, node.plan.generator())}"
        elif not any(wanted in child.ids for child in node.children):  # a user's function makes it of all that it gets
            given = [self._origin_of([child], each) for child in node.children for each in child.output]
            found = f"new {column.name()} of {_hash_of(str(given))}" if given else f"new {column.name()}"
        elif node.kind == "Join" and not node.is_join_of_streams and not self._side_of(node, wanted).is_streaming:
            condition = node.plan.condition()  # it decides which row of a table the column is from
            by = self.of(node.children, condition.get()) if condition.isDefined() else ""
            found = f"{self._origin_of(node.children, column)}, {join_type(node)} by {by}"
        else:
            found = self._origin_of(node.children, column)
        self._known[node, wanted] = found
        return found

    def _side_of(self, join: Node, wanted: int) -> Node:
        return next(child for child in join.children if wanted in child.ids)


def _hash_of(origin: str) -> str:
    return hashlib.sha256(origin.encode()).hexdigest()[:32]


def fingerprint_of(node: Node, origins: Origins) -> dict[str, Any]:
    """What an operator's state depends on."""
    plan = node.plan
    state: dict[str, Any] = {
        "kind": node.kind,
        "keys": [
            [origins.of([child], key) for child, key in zip(node.children, keys, strict=False)]
            for keys in keys_of(node)
        ],
    }
    match node.kind:
        case "Join":
            condition = plan.condition()
            state["type"] = join_type(node)
            state["condition"] = origins.of(node.children, condition.get()) if condition.isDefined() else None
            state["sides"] = [[_column(each) for each in child.output] for child in node.children]
        case "Aggregate":
            state["window"] = [origins.of(node.children, each) for each in items(plan.groupingExpressions())]
            made = map(without_alias, node.made)
            state["functions"] = [f"{_origin_of_made(node, each, origins)}: {data_type(each)}" for each in made]
        case "GlobalLimit":
            state["limit"] = text(plan.limitExpr())
        case "FlatMapGroupsInPandasWithState":
            state["timeout"] = str(plan.timeout().toString())
            state["state"] = str(plan.stateType().json())
        case "TransformWithStateInPySpark":
            state["time"] = str(plan.timeMode().toString())
            state["mode"] = str(plan.outputMode().toString())
    return state


def _origin_of_made(node: Node, made: Any, origins: Origins) -> str:
    is_function = kind_of(made) == "AggregateExpression"
    return (origins.of_function if is_function else origins.of)(node.children, made)


def fingerprints_of(operators: Sequence[Node], origins: Origins) -> list[dict[str, Any]]:
    """The fingerprint of each operator. If two are equal, what is below them tells them apart: Spark numbers operators
    in their order, so that in another order each would go on with the state of the other."""
    found = [fingerprint_of(node, origins) for node in operators]
    return [
        {**state, "below": _below(node)} if found.count(state) > 1 else state
        for node, state in zip(operators, found, strict=True)
    ]


def held_by(operators: Sequence[Node], optimised: Node, origins: Origins) -> list[list[Any]]:
    """What the state of joins and aggregations holds, in its order: Spark's optimiser removes the columns and functions
    that nothing above the operator uses. The state of the others holds all that their fingerprints name.

    A function is described as it was before: the optimiser puts the time of the analysis into it, for example. So of a
    stage that uses the present time, a column that the optimiser makes has only its type here.
    """
    named = {number for node in operators for child in node.children for number in child.ids}
    known = {
        _number_of(each): origins.of_function(node.children, each) for node in operators for each in _functions(node)
    }
    is_timeless = not any(origins.uses_present_time(node) for node in operators)
    held: list[list[Any]] = []
    for node in (each for each in optimised.walk() if state_of(each)):
        if node.kind == "Join":
            held.append([_held(child, named, origins if is_timeless else None) for child in node.children])
        elif node.kind == "Aggregate":
            names = (
                known.get(_number_of(each)) or str(each.aggregateFunction().prettyName()) for each in _functions(node)
            )
            held.append(list(dict.fromkeys(names)))
    return held


def _held(side: Node, named: set[int], origins: Origins | None) -> list[str]:
    """The columns of a join's side; of those that the optimiser makes, what it makes them from, if `origins` knows."""
    return [
        _column(each)
        if number in named
        else f"{origins.of([side], each) if origins else 'computed'}: {data_type(each)}"
        for number, each in side.columns.items()
    ]


def _functions(node: Node) -> Iterator[Any]:
    """The aggregate functions of an aggregation."""
    for made in node.made if node.kind == "Aggregate" else ():
        yield from all_of(made, "AggregateExpression")


def _number_of(function: Any) -> int:
    """What the optimiser leaves as it is."""
    return int(function.resultId().id())


def _below(node: Node) -> list[list[str]]:
    below = (each for child in node.children for each in child.walk() if each.children)
    return [[each.kind, *_exact(each, items(each.plan.expressions()))] for each in below]


def _exact(node: Node, expressions: Iterable[Any]) -> list[str]:
    """An operator's expressions, for comparisons, with what Spark has put into a projection below it spelled out."""
    numbers = numbers_of(node)
    found = (spelled(node, expression, lambda each: exact(each, numbers)) for expression in expressions)
    return [COMMON.sub("computed", each) for each in found]


def _column(attribute: Any) -> str:
    return f"{COMMON.sub('computed', str(attribute.name()))}: {data_type(attribute)}"

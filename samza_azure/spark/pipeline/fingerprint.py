"""What the state of a stage's operators depends on: equal fingerprints, and a new version may go on with the state.

Columns and expressions are compared by what they are computed from, however the columns are called.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.catalyst import (
    COMMON,
    Node,
    alternatives,
    asked_once,
    attributes,
    exact,
    has_pattern,
    identity,
    items,
    join_type,
    kind_of,
    numbers_of,
    renamed,
    replaced,
    replacement,
    spelled,
    text,
)
from samza_azure.spark.pipeline.operators import keys_of, state_of


class Origins:
    """Follows columns from an operator down to the inputs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[tuple[Node, int], str] = {}
        self._functions: dict[int, str] = {}
        self._renamings: dict[Node, Any] = {}  # what `replaced` gets for the functions of an operator

    def of(self, children: Sequence[Node], expression: Any) -> str:
        """What an operator computes an expression from, for comparisons.

        Each column is called after a hash of its own origin. Spelled out, a column that is used twice at each of many
        steps would make a text without end.
        """
        if kind_of(expression) == "AttributeReference":
            return self._origin_of(children, identity(expression)) or f"new {expression.name()}"
        found = attributes(expression.references())
        return exact(replaced(self._spark, expression, self._renaming(children, found)) if found else expression)

    def of_function(self, node: Node, function: Any) -> str:
        """The same of an aggregate function of an operator. Each is wanted twice, and there may be hundreds."""
        number = _number_of(function)
        if number not in self._functions:
            if node not in self._renamings:
                self._renamings[node] = self._renaming(node.children, attributes(node.plan.references()))
            self._functions[number] = exact(replaced(self._spark, function, self._renamings[node]))
        return self._functions[number]

    def _renaming(self, children: Sequence[Node], found: Sequence[tuple[int, Any]]) -> Any:
        pairs = []
        for number, each in found:
            origin = self._origin_of(children, number) or f"new {each.name()}"
            pairs.append((each, renamed(self._spark, each, f"of_{_hash_of(origin)}")))
        return replacement(self._spark, pairs)

    def uses_present_time(self, node: Node) -> bool:
        """Whether an operator, or one below it, uses a function such as `current_timestamp`."""
        return has_pattern(self._spark, node.plan, "CURRENT_LIKE")

    def _origin_of(self, children: Sequence[Node], wanted: int) -> str:
        """The origin of a column that an operator gets; empty if it gets none with that id."""
        for side, child in enumerate(children):
            if wanted in child.ids:
                origin = self._traced(child, wanted)
                return f"{side} of {origin}" if len(children) > 1 else origin
        return ""

    def _traced(self, node: Node, wanted: int) -> str:
        """The origin of a column of a node's output."""
        if (known := self._known.get((node, wanted))) is not None:
            return known
        name = node.field_of(wanted)["name"]
        if node.reads is not None:
            found = f"input {node.reads}: {name}"
        elif node.kind in ("Project", "Aggregate"):
            found = self.of(node.children, node.maker(wanted))
        elif node.kind in ("Expand", "Union"):
            every = [self.of([child], each) for child, each in alternatives(self._spark, node, node.column(wanted))]
            found = every[0] if len(set(every)) == 1 else " or ".join(every)
        elif node.kind == "Generate" and wanted not in node.child.ids:
            place = len(node.ids) - node.ids.index(wanted)  # from the end, where a generator's columns are
            found = f"{place} of {self.of(node.children, node.plan.generator())}"
        elif not any(wanted in child.ids for child in node.children):  # a user's function makes it of all that it gets
            given = [self._traced(child, each) for child in node.children for each in child.ids]
            found = f"new {name} of {_hash_of(str(given))}" if given else f"new {name}"
        elif node.kind == "Join" and not node.is_join_of_streams and not self._side_of(node, wanted).is_streaming:
            condition = node.plan.condition()  # it decides which row of a table the column is from
            by = self.of(node.children, condition.get()) if condition.isDefined() else ""
            found = f"{self._origin_of(node.children, wanted)}, {join_type(node)} by {by}"
        else:
            found = self._origin_of(node.children, wanted)
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
            state["sides"] = [[_column(child, number) for number in child.ids] for child in node.children]
        case "Aggregate":
            state["window"] = [origins.of(node.children, each) for each in items(plan.groupingExpressions())]
            pairs = zip(node.makers, node.fields, strict=True)
            state["functions"] = [
                f"{_origin_of_made(node, made, origins)}: {_type_of(made, each)}" for made, each in pairs
            ]
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
    return (
        origins.of_function(node, made) if kind_of(made) == "AggregateExpression" else origins.of(node.children, made)
    )


def _type_of(made: Any, field: Mapping[str, Any]) -> Any:
    """The type of what an aggregation makes, as JSON. The column that it becomes may have elements that are null."""
    is_plain = isinstance(field["type"], str) and not field["metadata"]  # which has a collation
    return field["type"] if is_plain else json.loads(made.dataType().json())


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
    known = {_number_of(each): origins.of_function(node, each) for node in operators for each in _functions(node)}
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
        _column(side, number)
        if number in named
        else f"{origins.of([side], side.column(number)) if origins else 'computed'}: {_column_type(side, number)}"
        for number in dict.fromkeys(side.ids)
    ]


def _functions(node: Node) -> Iterator[Any]:
    """The aggregate functions of an aggregation."""
    for made in node.makers if node.kind == "Aggregate" else ():
        yield from _outermost(made)


def _outermost(expression: Any) -> Iterator[Any]:
    """The aggregate functions in an expression. None is in another one."""
    if kind_of(expression) == "AggregateExpression":
        yield expression
        return
    for child in items(expression.children()):
        yield from _outermost(child)


def _number_of(function: Any) -> int:
    """What the optimiser leaves as it is."""
    return int(asked_once(function, "_number", lambda: function.resultId().id()))


def _below(node: Node) -> list[list[str]]:
    below = (each for child in node.children for each in child.walk() if each.children)
    return [[each.kind, *_exact(each, items(each.plan.expressions()))] for each in below]


def _exact(node: Node, expressions: Iterable[Any]) -> list[str]:
    """An operator's expressions, for comparisons, with what Spark has put into a projection below it spelled out."""
    numbers = numbers_of(node)
    found = (spelled(node, expression, lambda each: exact(each, numbers)) for expression in expressions)
    return [COMMON.sub("computed", each) for each in found]


def _column(node: Node, number: int) -> str:
    return f"{COMMON.sub('computed', node.field_of(number)['name'])}: {_column_type(node, number)}"


def _column_type(node: Node, number: int) -> Any:
    return _type_of(node.column(number), node.field_of(number))

"""Which columns of a stage have no nulls, as far as its plan and what is promised of its inputs show.

Spark is told of no such promise: for it all columns of a stream are nullable, so that a null in spite of it never
becomes some other value. A stage that relies on a promise has it checked in the rows that its tasks read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.catalyst import (
    SESSION_MARK,
    WINDOW_MARK,
    Node,
    conjuncts,
    identity,
    is_window,
    items,
    join_type,
    kind_of,
    parts_of,
    references,
    substituted,
    without_alias,
)
from samza_azure.spark.pipeline.bounds import UNITS_US, Input, window_time_of

#: Each of these types holds the values of those before it.
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
#: Functions of a time that are null only if the time is null. Spark says of some that they may be null.
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

#: The columns of inputs, by number and name, whose promise a proof relies on.
Relied: TypeAlias = frozenset[tuple[int, str]]
NOTHING: Relied = frozenset()


class Nulls:
    """The columns of one plan that have no nulls, and the promises that have been relied on so far."""

    def __init__(self, spark: SparkSession, inputs: Sequence[Input]) -> None:
        self._relied: Relied = NOTHING
        self._spark, self._inputs = spark, inputs
        self._known: dict[tuple[Node, int], Relied | None] = {}
        self._removed: dict[Node, frozenset[int]] = {}

    def never(self, *proofs: Relied | None) -> bool:
        """Whether there is a proof. The one that relies on the least is relied on from now on."""
        found = [each for each in proofs if each is not None]
        if found:
            self._relied |= min(found, key=len)
        return bool(found)

    @property
    def relies_on(self) -> dict[int, frozenset[str]]:
        """The columns of each input whose promise has been relied on."""
        numbers = {number for number, _ in self._relied}
        return {wanted: frozenset(name for number, name in self._relied if number == wanted) for wanted in numbers}

    def proven(self, root: Node) -> frozenset[str]:
        """The columns of a stage's output that have no nulls."""
        columns = zip(root.ids, root.names, strict=True)
        return frozenset(name for number, name in columns if self.of_column(root, number) is not None)

    def of(self, node: Node, expression: Any) -> Relied | None:
        """The proof that an expression over a node's output has no nulls. None: it may have some."""
        kind = kind_of(expression)
        if kind == "AttributeReference":
            return self.of_column(node, identity(expression))
        if not expression.nullable():
            return NOTHING
        if (window := window_time_of(expression)) is not None:
            return self.of(node, window)
        if kind == "GetStructField" and is_window(expression.child()):
            return self.of(node, expression.child())
        if (kind in OF_TIME and _has_value(expression)) or (kind == "Cast" and keeps_values(expression)):
            return _all(self.of(node, each) for each in items(expression.children()))
        known = {number: self.of_column(node, number) for number in references(expression) if number in node.ids}
        by = {number: node.column(number).withNullability(False) for number, each in known.items() if each is not None}
        if not by or substituted(self._spark, expression, by).nullable():
            return None
        return _all(known[number] for number in by)

    def of_column(self, node: Node, wanted: int) -> Relied | None:
        """The same of a column of its output."""
        if (node, wanted) not in self._known:
            self._known[node, wanted] = self._found(node, wanted)
        return self._known[node, wanted]

    def _found(self, node: Node, wanted: int) -> Relied | None:
        column = node.field_of(wanted)
        if not column["nullable"]:
            return NOTHING
        if node.reads is not None:
            name = column["name"]
            return frozenset({(node.reads, name)}) if name in self._inputs[node.reads].not_null else None
        if not node.children:
            return None
        children = node.children
        match node.kind:
            case "Project" | "Aggregate":
                return self._of_made(node, node.maker(wanted), column)
            case "Expand":
                index = node.ids.index(wanted)
                rows = [without_alias(each.apply(index)) for each in items(node.plan.projections())]
                return _all(self._of_made(node, each, column) for each in rows)
            case "Union":
                index = node.ids.index(wanted)
                return _all(self.of_column(child, child.ids[index]) for child in children)
            case "Filter":
                if wanted in self._removed_by(node, conjuncts(node.plan.condition())):
                    return NOTHING
            case "Join" if join_type(node) in ("Inner", "LeftSemi", "Cross"):
                # Spark's joins of streams match null keys, but a stage in which they meet is refused.
                if wanted in self._removed_by(node, parts_of(node)):
                    return NOTHING
            case "Join" if join_type(node) != "LeftAnti":
                kept = {"LeftOuter": 0, "RightOuter": 1}.get(join_type(node))
                children = () if kept is None else children[kept : kept + 1]
        below = next((child for child in children if wanted in child.ids), None)
        return None if below is None else self.of_column(below, wanted)

    def _of_made(self, node: Node, made: Any, column: Mapping[str, Any]) -> Relied | None:
        """The proof for an expression over a node's child, which makes one of its columns."""
        of_window = not column["metadata"].keys().isdisjoint((WINDOW_MARK, SESSION_MARK))
        if of_window and kind_of(made) not in ("AttributeReference", "GetStructField"):
            return NOTHING  # Spark removes rows without a time when it computes windows
        return self.of(node.child, made)

    def _removed_by(self, node: Node, conditions: Iterable[Any]) -> frozenset[int]:
        """The columns that have no nulls where all these conditions hold."""
        if node not in self._removed:
            self._removed[node] = frozenset[int]().union(*map(_never_null_where, conditions))
        return self._removed[node]


def _all(proofs: Iterable[Relied | None]) -> Relied | None:
    """The proof of several things at once."""
    found = NOTHING
    for each in proofs:
        if each is None:
            return None
        found |= each
    return found


def _has_value(function: Any) -> bool:
    """Whether a function of a time has a value for each time: date_trunc has none for an unknown unit."""
    if kind_of(function) != "TruncTimestamp":
        return True
    unit = function.format()
    return kind_of(unit) == "Literal" and str(unit.value()).lower() in UNITS_US


def keeps_values(cast: Any) -> bool:
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

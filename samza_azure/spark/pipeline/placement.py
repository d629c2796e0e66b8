"""Which task processes a row: the columns by which each input of a stage must be partitioned.

An operator with state is right only if all rows that agree in its keys meet in one task. So its keys are traced through
the operators below it to expressions over the columns of each input. If these contain the key by which the input's
stream is partitioned, nothing has to be done. Otherwise the input is first routed by these expressions, through an
additional stream. If no partitioning of the inputs is right, the stage is refused (`checks/tasks.py`).

Promised: in an accepted stage, each operator with state gets all rows of a key in one task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from samza_azure.application import Stage
from samza_azure.spark.jvm.catalyst import (
    SESSION_MARK,
    WINDOW_MARK,
    Node,
    alternatives,
    conjuncts,
    equalities,
    has_pattern,
    is_marked,
    items,
    join_type,
    kind_of,
    references,
    substituted,
    text,
)
from samza_azure.spark.pipeline.bounds import Input, as_written
from samza_azure.spark.pipeline.destination import FAMILIES, INTEGERS
from samza_azure.spark.pipeline.nulls import Nulls
from samza_azure.spark.pipeline.operators import described, keys_of, state_of

#: Operators that may drop rows.
REMOVING = frozenset({"Deduplicate", "DeduplicateWithinWatermark", "Filter", "Generate", "GlobalLimit", "LocalLimit"})

#: An expression over a node's output, traced to each leaf below: rows of the node that agree in the expression come
#: from rows that agree in these.
LeafExpressions: TypeAlias = dict[Node, Any]
#: Operators that share inputs, each with those of its keys that can be traced to all of them.
Offers: TypeAlias = Sequence[tuple[Node, Sequence[LeafExpressions]]]


@dataclass(frozen=True, slots=True)
class Route:
    """The expressions by which the rows of an input are routed to the tasks that need them."""

    leaf: Node  # reads the input; the expressions are over its columns
    expressions: tuple[Any, ...]
    like_keys: bool  # hashed as by `partition_by`; otherwise by Spark's own hash, which supports more types
    partitions: int | None  # to match another input; None: any number
    group: int = 0  # inputs of one group meet in an operator, so they need the same number of partitions

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions in full."""
        return tuple(text(each) for each in self.expressions)

    @property
    def shown(self) -> tuple[str, ...]:
        """The expressions as people write them."""
        return tuple(as_written(each) for each in self.expressions)


@dataclass(frozen=True, slots=True)
class Placement:
    """The inputs that must be routed, by their number, and the key that the stage's output then has."""

    routes: Mapping[int, Route] = field(default_factory=dict)
    output_key: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: Groups of operators that no partitioning suits.
    unplaced: tuple[Offers, ...] = ()
    #: Streams that two operators need partitioned by different columns, with both.
    torn: tuple[tuple[str, Node, Node], ...] = ()


class Tracer:
    """Follows expressions from an operator down to the inputs."""

    def __init__(self, spark: SparkSession, root: Node, nulls: Nulls) -> None:
        self._spark, self._nulls = spark, nulls
        self._of_windows = {node.child for node in root.walk() if node.kind == "Project" and _makes_window(node)}
        self._known_results: dict[Node, frozenset[int]] = {}

    def place(self, node: Node, expression: Any) -> LeafExpressions | None:
        """The expression in terms of each leaf below. None if rows that agree in it may be in different tasks."""
        if not expression.deterministic() or has_pattern(self._spark, expression, "PLAN_EXPRESSION"):
            return None  # a router has no tables
        if node.reads is not None:
            if not references(expression) or not references(expression) <= set(node.ids) or not can_route(expression):
                return None
            return {
                node: substituted(self._spark, expression, _columns_in(node, expression))
            }  # without the names of aliases
        match node.kind:
            case "Project" | "Aggregate":
                return self._through(node, expression)
            case "Expand":
                return self._through_expand(node, expression)
            case "Union":
                return self._through_union(node, expression)
            case "Join":
                return self._through_join(node, expression)
        streaming = [child for child in node.children if child.is_streaming]
        if len(streaming) != 1 or not references(expression) <= set(streaming[0].ids):
            return None  # this operator creates the column
        if node.kind in REMOVING and self._is_kept_from_rows(node, streaming[0], expression):
            return None
        return self.place(streaming[0], expression)

    def place_of_key(self, node: Node, wanted: int) -> LeafExpressions | None:
        """The same of a column by which the output may be partitioned."""
        if node.kind == "Aggregate" and kind_of(node.maker(wanted)) == "AggregateExpression":
            return None  # of hundreds of columns
        return self.place(node, node.column(wanted)) if family(node.column(wanted)) else None

    def _is_kept_from_rows(self, node: Node, below: Node, expression: Any) -> bool:
        """Whether a Python function in an expression is not called for rows that a node drops; routing would call it.

        Spark also moves a condition below the functions whose results it does not read.
        """
        above = has_pattern(self._spark, expression, "PYTHON_UDF")
        if node.kind != "Filter":
            return above
        parts = [each for each in conjuncts(node.plan.condition()) if not self._is_harmless(node, each)]
        results = references(expression) & self._results(below)
        return bool(above and parts) or (bool(results) and not all(references(each) & results for each in parts))

    def _is_harmless(self, node: Node, condition: Any) -> bool:
        """Whether a condition drops no row, or is Spark's own below a window, where rows without a time are dropped."""
        if kind_of(condition) != "IsNotNull" or kind_of(condition.child()) != "AttributeReference":
            return False
        if self._nulls.of(node.child, condition.child()) is not None:
            return True
        return node in self._of_windows and is_marked(condition.child())

    def _results(self, node: Node) -> frozenset[int]:
        """The columns of a node's output that Python functions compute."""
        if not has_pattern(self._spark, node.plan, "PYTHON_UDF"):
            return frozenset()
        if node in self._known_results:
            return self._known_results[node]
        below = frozenset[int]().union(*map(self._results, node.children))
        if node.kind in ("Project", "Aggregate"):
            rows = [node.made]
        elif node.kind == "Expand":
            rows = [tuple(items(each)) for each in items(node.plan.projections())]
        else:
            rows = [tuple(child.output) for child in node.children] if node.kind == "Union" else []
        found = {
            wanted
            for row in rows
            for wanted, each in zip(node.ids, row, strict=True)
            if references(each) & below or has_pattern(self._spark, each, "PYTHON_UDF")
        }
        self._known_results[node] = known = frozenset(found) if rows else below & set(node.ids)
        return known

    def _inlined(self, node: Node, expression: Any) -> Any:
        by = {wanted: node.maker(wanted) for wanted in references(expression) if wanted in node.ids}
        return substituted(self._spark, expression, by)

    def same(self, one: Route, other: Route) -> bool:
        """Whether two routes of one input send each row to the same partition."""
        settings = [(each.like_keys, each.partitions, len(each.expressions)) for each in (one, other)]
        return settings[0] == settings[1] and all(
            theirs.semanticEquals(ours)
            for ours, theirs in zip(one.expressions, self.rebased(other, one.leaf), strict=True)
        )

    def rebased(self, route: Route, leaf: Node) -> tuple[Any, ...]:
        """A route's expressions over the columns of another leaf that reads the same input."""
        names = dict(zip(route.leaf.ids, route.leaf.names, strict=True))

        def here(expression: Any) -> Any:
            by = {number: leaf.output[leaf.names.index(names[number])] for number in references(expression)}
            return substituted(self._spark, expression, by)

        return tuple(map(here, route.expressions))

    def _through(self, node: Node, expression: Any) -> LeafExpressions | None:
        inlined = self._inlined(node, expression)
        if has_pattern(self._spark, inlined, "AGGREGATE_EXPRESSION") or not references(inlined) <= set(node.child.ids):
            return None
        return self.place(node.child, inlined)

    def _through_expand(self, node: Node, expression: Any) -> LeafExpressions | None:
        """A row becomes several rows: only an expression that is the same in all of them can be traced."""
        (_, first), *others = alternatives(self._spark, node, expression)
        if not all(first.semanticEquals(other) for _, other in others):
            return None
        return self.place(node.child, first)

    def _through_union(self, node: Node, expression: Any) -> LeafExpressions | None:
        found: LeafExpressions = {}
        for child, substitute in alternatives(self._spark, node, expression):
            place = self.place(child, substitute)
            if place is None:
                return None
            found |= place
        return found

    def _through_join(self, node: Node, expression: Any) -> LeafExpressions | None:
        left, right = node.children
        if not node.is_join_of_streams:
            side = left if left.is_streaming else right
            keeps_all = join_type(node) == ("LeftOuter" if side is left else "RightOuter")
            if not references(expression) <= set(side.ids) or (
                not keeps_all and has_pattern(self._spark, expression, "PYTHON_UDF")
            ):
                return None
            return self.place(side, expression)
        for first, second in equalities(node):
            if _is_held_by(join_type(node), expression, first, second):
                return _both(self.place(left, first), self.place(right, second))
        return None


def _is_held_by(kind: str, expression: Any, left: Any, right: Any) -> bool:
    """Whether an expression over a join's output has, in every row, the value by which the sides were joined.

    The columns of a missing side are null; such a row is in the task of its other side.
    """
    if kind == "FullOuter":
        if kind_of(expression) != "Coalesce":
            return False
        sides = list(items(expression.children()))
        return len(sides) == 2 and (
            (sides[0].semanticEquals(left) and sides[1].semanticEquals(right))
            or (sides[0].semanticEquals(right) and sides[1].semanticEquals(left))
        )
    from_left = kind in ("Inner", "Cross", "LeftOuter", "LeftSemi") and _is_composed(left, [expression])
    return from_left or (kind in ("Inner", "Cross", "RightOuter") and _is_composed(right, [expression]))


def _columns_in(leaf: Node, expression: Any) -> dict[int, Any]:
    """The columns of a leaf that an expression has."""
    return {number: leaf.column(number) for number in references(expression)}


def _both(one: LeafExpressions | None, other: LeafExpressions | None) -> LeafExpressions | None:
    return None if one is None or other is None else one | other


def can_route(expression: Any) -> bool:
    """Whether equal values have equal hashes. Maps, variants and text with a collation do not."""
    return not _has_type(expression, "COLLATE", "MAP<", "VARIANT")


def _makes_window(projection: Node) -> bool:
    """Whether Spark has put this projection, and the filter below it, in place of a window."""
    if projection.child.kind != "Filter":
        return False
    windows = map(projection.maker, projection.marked(WINDOW_MARK, SESSION_MARK))
    return any(kind_of(each) != "AttributeReference" for each in windows)


def _has_type(expression: Any, *words: str) -> bool:
    kind = str(expression.dataType().sql())
    return any(word in kind for word in words)


# The decision.


def place_stage(spark: SparkSession, stage: Stage, root: Node, inputs: Sequence[Input], nulls: Nulls) -> Placement:
    """How each input must be partitioned if the stage has several tasks."""
    tracer = Tracer(spark, root, nulls)
    keys = {leaf: _key_columns(leaf, _stream(leaf, inputs)) for leaf in root.leaves()}
    routes: dict[int, Route | None] = {}
    needed_by: dict[int, Node] = {}
    meeting: list[set[int]] = []
    unplaced: list[Offers] = []
    torn: list[tuple[str, Node, Node]] = []
    for group in _groups([node for node in root.walk() if state_of(node)]):
        offers = [(operator, _offered(tracer, operator)) for operator in group]
        if not (columns := _columns(offers)):
            unplaced.append(offers)
            continue
        decided = _decided(columns, keys, inputs)
        together = {leaf.reads for leaf in decided if leaf.reads is not None}
        apart = [each for each in meeting if not each & together]
        meeting = [*apart, together.union(*(each for each in meeting if each & together))]
        for leaf, route in decided.items():
            assert leaf.reads is not None
            before, first = routes.setdefault(leaf.reads, route), needed_by.setdefault(leaf.reads, group[0])
            if before is not route and (before is None or route is None or not tracer.same(before, route)):
                torn.append((_stream(leaf, inputs).stream, first, group[0]))
    group_of = {reads: number for number, each in enumerate(meeting) for reads in each}
    routed = {reads: replace(route, group=group_of[reads]) for reads, route in routes.items() if route is not None}
    for leaf in keys:
        if leaf.reads in routed:  # also where no operator with state needs it
            route = routed[leaf.reads]
            keys[leaf] = tracer.rebased(route, leaf) if route.like_keys else ()
    warnings = tuple(
        f"Stage {stage.name}: the {described(needed_by[reads])} gets the rows of stream {inputs[reads].stream!r} "
        "by their time alone, so all that arrive together go to one task. Compute another part of its key in an "
        "earlier stage, with partition_by."
        for reads, route in routed.items()
        if all(map(_is_time, route.expressions))
        and not all(_is_time(each) for key in keys_of(needed_by[reads]) for each in key)
    )
    return Placement(routed, _output_key(tracer, root, keys), warnings, tuple(unplaced), tuple(torn))


def _stream(leaf: Node, inputs: Sequence[Input]) -> Input:
    assert leaf.reads is not None
    return inputs[leaf.reads]


def _key_columns(leaf: Node, stream: Input) -> tuple[Any, ...]:
    return tuple(leaf.output[leaf.names.index(name)] for name in stream.key)


def _groups(operators: Sequence[Node]) -> list[list[Node]]:
    """Group each uppermost operator with those below it: they share inputs, so they need the same partitioning."""
    groups: list[list[Node]] = []
    for operator in operators:  # from the top
        if not any(operator in group for group in groups):
            groups.append([node for node in operator.walk() if state_of(node)])
    return groups


def _columns(offers: Offers) -> list[LeafExpressions]:
    """The columns by which the inputs may be partitioned so that each operator gets all rows of a key in one task."""
    leaves = set(offers[0][0].leaves())
    found: list[LeafExpressions] = []
    for candidate in [place for _, places in offers for place in places if place.keys() == leaves]:
        suits = all(_suits(candidate, operator, places) for operator, places in offers)
        if suits and not any(_is_same(candidate, other) for other in found):
            found.append(candidate)
    return found


def _offered(tracer: Tracer, operator: Node) -> list[LeafExpressions]:
    """The keys of an operator that can be traced to all inputs below it."""
    places = []
    for keys in keys_of(operator):
        traced = [tracer.place(child, key) for child, key in zip(operator.children, keys, strict=False)]
        if None not in traced:
            places.append({leaf: each for place in traced if place for leaf, each in place.items()})
    return places


def _suits(candidate: LeafExpressions, operator: Node, places: Sequence[LeafExpressions]) -> bool:
    """Whether rows that agree in the operator's keys also agree in the candidate."""
    here = {leaf: candidate[leaf] for leaf in operator.leaves()}
    if any(_is_same(here, place) for place in places):
        return True
    if len(here) > 1:
        return False  # an expression over several keys would have to be the same function of them on all sides
    ((leaf, expression),) = here.items()
    return _is_composed(expression, [place[leaf] for place in places])


def _is_composed(expression: Any, parts: Sequence[Any]) -> bool:
    """Whether an expression is one of the parts, or is computed only from parts and constants."""
    if any(expression.semanticEquals(part) for part in parts):
        return True
    return _is_computed(expression, [part for part in parts if _is_one_value(part)])


def _is_computed(expression: Any, parts: Sequence[Any]) -> bool:
    if any(expression.semanticEquals(part) for part in parts):
        return True
    if kind_of(expression) == "AttributeReference":
        return False
    return all(_is_computed(child, parts) for child in items(expression.children()))


def _is_one_value(expression: Any) -> bool:
    """Whether any function gives equal results for equal keys. 0.0 and -0.0 are one key, but differ as text."""
    return not _has_type(expression, "COLLATE", "MAP<", "VARIANT", "FLOAT", "DOUBLE")


def _is_same(one: LeafExpressions, other: LeafExpressions) -> bool:
    return one.keys() == other.keys() and all(one[leaf].semanticEquals(other[leaf]) for leaf in one)


def _decided(
    columns: Sequence[LeafExpressions], keys: Mapping[Node, tuple[Any, ...]], inputs: Sequence[Input]
) -> dict[Node, Route | None]:
    """The route of each leaf, or None if it needs none. As few leaves as possible are routed."""
    leaves = list(columns[0])
    best: dict[Node, Route | None] = {}
    for anchor in leaves:
        chosen = _columns_of_key(anchor, keys[anchor], columns)
        if not chosen or not all(family(place[leaf]) for place in chosen for leaf in leaves):
            continue
        partitions = _stream(anchor, inputs).partitions
        decided: dict[Node, Route | None] = {}
        for leaf in leaves:
            wanted = tuple(place[leaf] for place in chosen)
            stays = _stream(leaf, inputs).partitions == partitions and _is_key(keys[leaf], wanted)
            decided[leaf] = None if stays else Route(leaf, wanted, True, partitions)
        if not best or list(decided.values()).count(None) > list(best.values()).count(None):
            best = decided
    if best:
        return best
    chosen = [place for place in columns if not any(_is_time(each) for each in place.values())] or list(columns)
    like_keys = all(family(each) for place in chosen for each in place.values())
    return {leaf: Route(leaf, tuple(place[leaf] for place in chosen), like_keys, None) for leaf in leaves}


def _columns_of_key(leaf: Node, key: Sequence[Any], columns: Sequence[LeafExpressions]) -> list[LeafExpressions]:
    """The columns that are the leaf's key, in the key's order. Empty if one of them is missing."""
    found = [next((place for place in columns if _is_column(place[leaf], part)), None) for part in key]
    return [place for place in found if place is not None] if None not in found else []


def _is_key(key: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(key) == len(wanted) and all(_is_column(each, part) for each, part in zip(wanted, key, strict=True))


def _is_column(expression: Any, column: Any) -> bool:
    """Whether the expression is this column. A wider integer has the same canonical bytes, so the same partition."""
    if expression.semanticEquals(column):
        return True
    if kind_of(expression) != "Cast":
        return False
    wide, narrow = (str(each.dataType().simpleString()) for each in (expression, expression.child()))
    widens = wide in INTEGERS and narrow in INTEGERS and INTEGERS.index(wide) >= INTEGERS.index(narrow)
    return widens and _is_column(expression.child(), column)


def family(expression: Any) -> str | None:
    """The family of its type: equal values have the same canonical bytes. None if it cannot be a `partition_by` key."""
    return FAMILIES.get(str(expression.dataType().simpleString()))


def _is_time(expression: Any) -> bool:
    """Whether it is a time or a window. Routed by it, all rows that arrive together would go to one task."""
    return "timestamp" in str(expression.dataType().simpleString())


def _output_key(tracer: Tracer, root: Node, keys: Mapping[Node, tuple[Any, ...]]) -> tuple[str, ...]:
    """The columns by which the stage's output is already partitioned, since each task writes one partition."""
    lengths = {len(key) for key in keys.values()}
    if lengths in ({0}, set()) or len(lengths) > 1:
        return ()
    names = []
    for number in range(lengths.pop()):
        for wanted, name in zip(root.ids, root.names, strict=True):
            place = tracer.place_of_key(root, wanted)
            if place is not None and all(_is_column(place[leaf], key[number]) for leaf, key in keys.items()):
                names.append(name)
                break
        else:
            return ()
    return tuple(names)

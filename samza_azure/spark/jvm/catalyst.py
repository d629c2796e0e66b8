"""A stage's analysed plan as a tree of nodes, and functions on Catalyst's expressions, all over py4j.

The tree is read once. Expressions stay on the Java side, where they are compared, rebuilt and turned into columns.
A call to Java costs 0.1 ms and more, and a plan may have hundreds of columns. So what can be read of all columns at
once is, each expression is fetched once, and that when it is asked for.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from py4j.java_gateway import get_field
from pyspark.sql import Column, DataFrame, SparkSession

from samza_azure.spark.jvm.session import java_class, java_object

#: Spark marks a column that holds event time, or a window of it, with the first of these; a window with the others.
EVENT_TIME_MARK = "spark.watermarkDelayMs"
WINDOW_MARK = "spark.timeWindow"
SESSION_MARK = "spark.sessionWindow"
CATALYST = "org.apache.spark.sql.catalyst"
NIL = "scala.collection.immutable.Nil"
#: The rules by which Spark replaces what it does not run itself, in its order.
REPLACING = (
    "expressions.EliminatePipeOperators",
    "optimizer.EliminateSQLFunctionNode",
    "optimizer.ReplaceDistinctWithAggregate",
    "optimizer.ReplaceExpressions",
    "optimizer.RewriteWithExpression",
)


class Fetched(Sequence[Any]):
    """A Scala sequence, of which each element is fetched when it is asked for first, and then kept."""

    def __init__(self, sequence: Any, size: int | None = None) -> None:
        self._sequence = sequence
        self._found: list[Any] = [None] * (int(sequence.size()) if size is None else size)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        if self._found[index] is None:
            self._found[index] = self._sequence.apply(range(len(self))[index])
        return self._found[index]


@dataclass(slots=True, eq=False)
class Node:
    """One operator of the plan. Nodes are compared by identity: two leaves may read the same stream."""

    kind: str
    plan: Any
    children: tuple["Node", ...]
    is_streaming: bool
    output: Sequence[Any]  # Catalyst's attributes
    ids: tuple[int, ...]  # of the attributes in `output`
    fields: Sequence[Mapping[str, Any]] = ()  # the same as JSON: name, type, nullable, metadata
    reads: int | None = None  # for a leaf: the number of the stage's input that it reads
    _made: Sequence[Any] | None = field(default=None, init=False)
    _makers: dict[int, Any] = field(default_factory=dict, init=False)

    @property
    def child(self) -> "Node":
        """The only child, or the first one."""
        return self.children[0]

    def walk(self) -> Iterator["Node"]:
        """This node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()

    def leaves(self) -> tuple["Node", ...]:
        """The inputs that are read below this node."""
        return tuple(node for node in self.walk() if node.reads is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of its output."""
        return tuple(each["name"] for each in self.fields)

    @property
    def columns(self) -> dict[int, Any]:
        """The attributes of its output by their ids."""
        return dict(zip(self.ids, self.output, strict=True))

    def column(self, identity: int) -> Any:
        """The attribute of this node's output with that id."""
        return self.output[self.ids.index(identity)]

    def field_of(self, identity: int) -> Mapping[str, Any]:
        """The same as JSON."""
        return self.fields[self.ids.index(identity)]

    def marked(self, *marks: str) -> list[int]:
        """The columns of its output that have one of Spark's marks."""
        pairs = zip(self.ids, self.fields, strict=True)
        return [identity for identity, each in pairs if not each["metadata"].keys().isdisjoint(marks)]

    @property
    def made(self) -> Sequence[Any]:
        """The named expressions of a projection or an aggregation."""
        if self._made is None:
            is_projection = self.kind == "Project"
            made = self.plan.projectList() if is_projection else self.plan.aggregateExpressions()
            self._made = Fetched(made, len(self.ids))
        return self._made

    def maker(self, wanted: int) -> Any:
        """The expression from which a projection or an aggregation makes a column of its output."""
        if wanted not in self._makers:
            self._makers[wanted] = without_alias(self.made[self.ids.index(wanted)])
        return self._makers[wanted]

    @property
    def makers(self) -> Iterator[Any]:
        """All of these."""
        return map(self.maker, self.ids)

    @property
    def is_join_of_streams(self) -> bool:
        """Whether this is a join with state on both sides."""
        return self.kind == "Join" and all(child.is_streaming for child in self.children)


def input_directory(directory: Path, number: int, stream: str) -> Path:
    """The path that the stand-in for an input reads. The plan shows it, so it identifies the input of a leaf."""
    return directory / f"{number}-{stream}"


def analysed(frame: DataFrame) -> Any:
    """The plan of a DataFrame before it is optimised."""
    return frame._jdf.queryExecution().analyzed()


def read_plan(spark: SparkSession, frame: DataFrame, directory: Path) -> Node:
    """The plan of a streaming DataFrame that was built on stand-ins below `directory`.

    Common table expressions are inlined, and what Spark replaces before it runs a plan is replaced: functions in SQL,
    whose text would not show their arguments, expressions, and SELECT DISTINCT and UNION, which are aggregations by
    all columns.
    """
    plan = java_class(spark, f"{CATALYST}.optimizer.InlineCTE")(True, False, False).apply(analysed(frame))
    for rule in REPLACING:
        plan = java_class(spark, f"{CATALYST}.{rule}").apply(plan)
    return _node(plan, directory)


def read_optimised(spark: SparkSession, plan: Any, directory: Path) -> Node:
    """The plan as Spark's optimiser makes it, of which it runs each batch."""
    return _node(spark._jsparkSession.sessionState().optimizer().execute(plan), directory)


def _node(plan: Any, directory: Path) -> Node:
    children = tuple(_node(child, directory) for child in items(plan.children()))
    output, fields = plan.output(), json.loads(plan.schema().json())["fields"]
    fetched, reads = Fetched(output, len(fields)), None if children else input_of(plan, directory)
    return Node(kind_of(plan), plan, children, bool(plan.isStreaming()), fetched, _ids(output), fields, reads)


#: Separates what Spark prints of several attributes, with a number at the end of each. No name has it.
_SEPARATOR = uuid.uuid4().hex
_NUMBER = re.compile(rf"#(\d+)L?(?:-T-?\d+ms)?(?:{_SEPARATOR}|$)")


def _ids(attributes: Any) -> tuple[int, ...]:
    """The ids of a Scala collection of attributes, in one call."""
    return tuple(int(number) for number in _NUMBER.findall(str(attributes.mkString(_SEPARATOR))))


def input_of(leaf: Any, directory: Path) -> int | None:
    """The input that a leaf reads. None if it is not one of our stand-ins."""
    if kind_of(leaf) != "StreamingRelation":
        return None
    path = leaf.dataSource().options().get("path")
    if not path.isDefined() or Path(path.get()).parent != directory:
        return None
    return int(Path(path.get()).name.partition("-")[0])


def sources_of(spark: SparkSession, plan: Any, directory: Path) -> tuple[int, ...]:
    """The inputs that Spark's sources read: one source for equal leaves, as of a DataFrame that is used twice.

    A common table expression is one leaf, however often it is used, so they are not inlined here.
    """
    known, found = java_class(spark, "java.util.HashSet")(), []  # to loop over it would take sixty calls for its end
    for leaf in items(plan.collectLeaves()):
        if kind_of(leaf) == "StreamingRelation" and leaf not in known:
            known.add(leaf)
            found.append(leaf)
    return tuple(reads for reads in (input_of(leaf, directory) for leaf in found) if reads is not None)


def items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def kind_of(thing: Any) -> str:
    """The simple name of the class of a plan or an expression: a case class knows it, and answers in one call."""
    return str(asked_once(thing, "_kind", lambda: str(thing.productPrefix()) or class_of(thing)))


def asked_once(thing: Any, what: str, ask: Callable[[], Any]) -> Any:
    """What a plan or an expression says, which never changes. It is kept with our reference to it."""
    known = vars(thing)
    if what not in known:
        known[what] = ask()
    return known[what]


def class_of(thing: Any) -> str:
    """The simple name of the class of anything."""
    return str(thing.getClass().getSimpleName())


def identity(attribute: Any) -> int:
    """The id of an attribute or an alias."""
    return int(asked_once(attribute, "_identity", lambda: attribute.exprId().id()))


def is_marked(attribute: Any, mark: str = EVENT_TIME_MARK) -> bool:
    """Whether Spark treats this column as event time."""
    return bool(attribute.metadata().contains(mark))


def is_window(expression: Any) -> bool:
    """Whether this is a column of windows or sessions, or computes one."""
    is_named = kind_of(expression) in ("AttributeReference", "Alias")
    return is_named and (is_marked(expression, WINDOW_MARK) or is_marked(expression, SESSION_MARK))


def references(expression: Any) -> frozenset[int]:
    """The ids of the attributes in it."""
    return frozenset(_ids(expression.references()))


def contains(expression: Any, kind: str) -> bool:
    """Whether an expression of this kind is anywhere in it."""
    return kind_of(expression) == kind or any(contains(child, kind) for child in items(expression.children()))


def all_of(expression: Any, kind: str) -> Iterator[Any]:
    """The expressions of this kind in it, from left to right."""
    if kind_of(expression) == kind:
        yield expression
    for child in items(expression.children()):
        yield from all_of(child, kind)


def has_pattern(spark: SparkSession, expression: Any, pattern: str) -> bool:
    """Whether one of Catalyst's tree patterns, for example PYTHON_UDF, is anywhere in the expression."""
    return bool(expression.containsPattern(java_object(spark, f"{CATALYST}.trees.TreePattern", pattern)))


def substituted(spark: SparkSession, expression: Any, by: Mapping[int, Any]) -> Any:
    """The expression with attributes replaced, and without aliases.

    Catalyst walks the expression. One walk from here would be thousands of calls, since windows are large expressions.
    """
    found = attributes(expression.references())
    pairs = [(each, by[number]) for number, each in found if number in by]
    return replaced(spark, expression, replacement(spark, pairs)) if pairs else expression


def attributes(found: Any) -> list[tuple[int, Any]]:
    """The attributes of a set of Catalyst's, with their ids."""
    ordered = found.toSeq()
    return [(number, ordered.apply(place)) for place, number in enumerate(_ids(ordered))]


def replacement(spark: SparkSession, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """What replaces each of these attributes, for `replaced`."""
    alias, none, nil = java_class(spark, f"{CATALYST}.expressions.Alias"), _nothing(spark), scala_object(spark, NIL)
    named = [alias(new, attribute.name(), attribute.exprId(), nil, none, nil) for attribute, new in pairs]
    return _replacing(spark).getAliasMap(scala_seq(spark, named))


def replaced(spark: SparkSession, expression: Any, by: Any) -> Any:
    """The expression with attributes replaced, and without aliases."""
    return _replacing(spark).replaceAlias(expression, by)


def _replacing(spark: SparkSession) -> Any:
    return scala_object(spark, f"{CATALYST}.optimizer.CollapseProject")


def alternatives(spark: SparkSession, node: Node, expression: Any) -> Iterator[tuple[Node, Any]]:
    """The expression over each branch of a union, or over the child for each projection of an expand."""
    wanted = references(expression)
    if node.kind == "Union":
        for child in node.children:
            by = {old: new for old, new in zip(node.ids, child.output, strict=True) if old in wanted}
            yield child, substituted(spark, expression, by)
    else:
        for projection in items(node.plan.projections()):
            columns = zip(node.ids, items(projection), strict=True)
            by = {old: without_alias(new) for old, new in columns if old in wanted}
            yield node.child, substituted(spark, expression, by)


def scala_object(spark: SparkSession, name: str) -> Any:
    """A Scala object, also for those of its methods that have no static twin."""
    return java_object(spark, f"{name}$", "MODULE$")


def _nothing(spark: SparkSession) -> Any:
    return scala_object(spark, "scala.None")


def scala_seq(spark: SparkSession, values: Sequence[Any]) -> Any:
    """A list as a Scala sequence."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(list(values))


def renamed(spark: SparkSession, attribute: Any, name: str) -> Any:
    """The attribute under another name, of no table."""
    return attribute.withQualifier(scala_object(spark, NIL)).withName(name)


def interval_parts(value: Any) -> tuple[int, int, int]:
    """Months, days and microseconds of the value of an interval."""
    months, days, by_us = (int(get_field(value, name)) for name in ("months", "days", "microseconds"))
    return months, days, by_us


def without_alias(expression: Any) -> Any:
    """The expression below its aliases."""
    return without_alias(expression.child()) if kind_of(expression) == "Alias" else expression


def conjuncts(expression: Any) -> Iterator[Any]:
    """The parts of a condition that must all hold."""
    if kind_of(expression) == "And":
        yield from conjuncts(expression.left())
        yield from conjuncts(expression.right())
    else:
        yield expression


def tree(thing: Any) -> str:
    """Spark's text of a plan or an expression, with all columns. `toString` leaves out those behind the 25th."""
    return str(thing.treeString(True, False, 2**31 - 1, False, False))


#: What differs between Spark's own texts of two analyses of one query, also on another machine, and means nothing.
DIFFERING = (
    r"#\d+L?|\b_pyspark_[0-9a-f]{32}\b|(?<=\blambda )\w+"
    r"|(?m:(?<=\]), \d+$)"  # what `observe` numbers its DataFrames by
    r"|(?<=EventTimeWatermark )[0-9a-f-]{36}|(?<=CTERelation(?:Def|Ref) )\d+|(?<=\bCommonExpressionId\()\d+"
    r"|, splits=Some\(\d+\)"
)


def without_ids(said: str) -> str:
    """What Spark says of a plan or an expression, without ids and names of views and of lambdas' arguments."""
    return re.sub(DIFFERING, "", said)


#: What SQL calls each argument of a lambda.
VARIABLE = "namedlambdavariable()"


def text(expression: Any) -> str:
    """The expression as SQL, without ids and names of views that differ between analyses. What is quoted is unchanged:
    texts, and names in backticks."""
    differing = r"('(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`)|#\d+L?|\b_pyspark_[0-9a-f]{32}\.|(?<=\bCommonExpressionId\()\d+"
    said = re.sub(differing, lambda found: found[1] or "", str(expression.sql()))
    return _with_variables(said, expression) if VARIABLE in said else said


def _with_variables(sql: str, expression: Any) -> str:
    """The SQL with the arguments of its lambdas numbered: SQL has one name for all of them, and their own names differ
    between analyses. If they cannot be told apart in the SQL, their numbers follow it."""
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(each, len(numbers)) for each in re.findall(r"\blambda (\w+#\d+)", str(expression))]
    names = [f"x{number}" for number in found]
    if len(names) == sql.count(VARIABLE):
        return "".join(chain(*zip_longest(sql.split(VARIABLE), names, fillvalue="")))
    return f"{sql} of {', '.join(names)}"


#: What Spark works out once for several uses, as in `count_if(x IS NULL)`, has a name with the number of a counter.
COMMON = re.compile(r"\b_common_expr_\d+\b")


def spelled(node: Node, expression: Any, said_of: Callable[[Any], str] = text) -> str:
    """The text of an operator's expression, with what Spark has put into a projection below it spelled out."""
    said = said_of(expression)
    if not COMMON.search(said):
        return said
    projections = (below for child in node.children for below in child.walk() if below.kind == "Project")
    made = {str(each.name()): (below, each) for below in projections for each in below.made if kind_of(each) == "Alias"}

    def in_full(found: re.Match[str]) -> str:
        if found[0] not in made:
            return found[0]
        below, alias = made[found[0]]
        return f"({spelled(below, alias.child(), said_of)})"

    return COMMON.sub(in_full, said)


def exact(expression: Any, numbers: Mapping[int, str] | None = None) -> str:
    """The expression as SQL and as Spark's tree, for comparisons. SQL lacks arguments that are no expressions, such as
    the patterns of LIKE ANY and the schema of from_json. Neither shows the plan of a subquery, so it follows.
    `numbers` tells attributes of one name apart, by their ids."""
    known = numbers or {}
    said = tree(expression)
    in_spark = re.sub(r"#(\d+)L?", lambda found: known.get(int(found[1]), ""), said)
    plans = map(tree, _subqueries(expression)) if re.search(r"(?:subquery|exists|list)#\d", said) else ()
    below = (COMMON.sub("computed", without_ids(each)) for each in plans)
    return "\n".join((text(expression), without_ids(in_spark), *below))


def _subqueries(expression: Any) -> Iterator[Any]:
    """The plans of the subqueries in it."""
    if kind_of(expression) in ("Exists", "ListQuery", "ScalarSubquery"):
        yield expression.plan()
    for child in items(expression.children()):
        yield from _subqueries(child)


def numbers_of(node: Node) -> dict[int, str]:
    """What tells an operator's input columns of one name apart, by their ids: the side of a join, for example."""
    columns = [(number, str(each.name())) for child in node.children for number, each in child.columns.items()]
    names = [name for _, name in columns]
    return {number: f"@{names[:place].count(name)}" for place, (number, name) in enumerate(columns)}


def in_sql(name: str) -> str:
    """A name as SQL has it, and the methods that parse the name of a column: in backticks unless it is a plain word."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Python writes it."""
    return json.dumps(text, ensure_ascii=False)


def parts_of(join: Node) -> list[Any]:
    """The parts of a join's condition that must all hold."""
    condition = join.plan.condition()
    return list(conjuncts(condition.get())) if condition.isDefined() else []


def equalities(join: Node, kinds: Sequence[str] = ("EqualTo", "EqualNullSafe")) -> list[tuple[Any, Any]]:
    """The pairs of left and right expressions that a join's condition compares with one of these operators."""
    left, right = (frozenset(child.ids) for child in join.children)
    found = []
    for each in parts_of(join):
        if kind_of(each) not in kinds:
            continue
        sides = each.left(), each.right()
        first, second = (references(side) for side in sides)
        if first and second and first <= left and second <= right:
            found.append(sides)
        elif first and second and first <= right and second <= left:
            found.append((sides[1], sides[0]))
    return found


def of_both(join: Node) -> list[Any]:
    """The parts of a join's condition that compare its sides."""
    sides = [set(child.ids) for child in join.children]
    return [each for each in parts_of(join) if all(references(each) & side for side in sides)]


def join_type(join: Node) -> str:
    """Inner, LeftOuter, RightOuter, FullOuter, LeftSemi, …"""
    return str(join.plan.joinType().toString())


def column(spark: SparkSession, expression: Any) -> Column:
    """The expression as a column of a DataFrame that has its attributes. It is null if its evaluation fails."""
    tried = java_class(spark, "org.apache.spark.sql.catalyst.expressions.TryEval")(expression)
    return Column(java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils").column(tried))


def rebound(spark: SparkSession, expression: Any, leaf: Node, frame: DataFrame) -> Any:
    """Replace a leaf's columns in an expression by the DataFrame's columns of the same names."""
    ours = {str(each.name()): each for each in items(analysed(frame).output())}
    by = {number: ours[str(each.name())] for number, each in zip(leaf.ids, leaf.output, strict=True)}
    return substituted(spark, expression, by)

"""How old the rows that a plan will still emit can be: the frontier of a stage, derived operator by operator.

The bound of a column holds after every batch: no row emitted later has an older value there. A bound is the minimum of
several terms; each is the frontier of an input, or the stage's watermark, plus a fixed time. An operator that emits
rows as they arrive passes on the bound of its input. An operator that keeps rows until a partner arrives or the
watermark has passed has its own bound, or none; then the reason is given.

Promised: a column's bound holds for all rows that are not late themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from samza_azure.config.values import in_words
from samza_azure.pipeline.analysed import Term
from samza_azure.spark.jvm.catalyst import (
    EVENT_TIME_MARK,
    WINDOW_MARK,
    Node,
    all_of,
    equalities,
    identity,
    in_sql,
    interval_parts,
    is_marked,
    is_window,
    items,
    join_type,
    kind_of,
    literal,
    of_both,
    parts_of,
    text,
)
from samza_azure.spark.jvm.rules import evicted_us
from samza_azure.spark.pipeline.operators import JOIN, STATEFUL, state_of

DAY_US = 86_400_000_000
#: The maximum length of each unit to which a time can be truncated.
UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_US,
    "dd": DAY_US,
    "week": 7 * DAY_US,
    "month": 31 * DAY_US,
    "mon": 31 * DAY_US,
    "mm": 31 * DAY_US,
    "quarter": 92 * DAY_US,
    "year": 366 * DAY_US,
    "yyyy": 366 * DAY_US,
    "yy": 366 * DAY_US,
}
#: Operators that pass rows on as they arrive, with all their columns.
IMMEDIATE = frozenset(
    {
        "ArrowEvalPython",
        "BatchEvalPython",
        "CollectMetrics",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "SubqueryAlias",
        "View",
    }
)


@dataclass(frozen=True, slots=True)
class Unbounded:
    """No bound: the reason, and what to write to get one."""

    reason: str
    remedy: str = ""


Bound: TypeAlias = frozenset[Term] | Unbounded
KEPT = Unbounded("the aggregation keeps its groups until the watermark passes, and this is not the event time")


def least(bounds: Iterable[Bound]) -> Bound:
    """The minimum of several bounds. It holds for the rows of all of them."""
    found: frozenset[Term] = frozenset()
    for bound in bounds:
        if isinstance(bound, Unbounded):
            return bound
        found |= bound
    return found


def shifted(bound: Bound, by_us: int | None, reason: str = "") -> Bound:
    """The bound, later by `by_us`. If `by_us` is None, the difference is unknown, and so is the bound."""
    if isinstance(bound, Unbounded):
        return bound
    return Unbounded(reason) if by_us is None else frozenset(term.later(by_us) for term in bound)


@dataclass(frozen=True, slots=True)
class Input:
    """A stream as a stage sees it."""

    stream: str
    schema: StructType
    event_time: str | None
    partitions: int = 1
    key: tuple[str, ...] = ()  # the columns by which it is partitioned; empty if unknown
    not_null: frozenset[str] = frozenset()  # the columns that are promised to have no nulls

    @property
    def types(self) -> dict[str, str]:
        """By column: Spark's name of the type."""
        return {column.name: column.dataType.simpleString() for column in self.schema.fields}


class Bounds:
    """The bounds of one plan's columns."""

    def __init__(self, spark: SparkSession, inputs: Sequence[Input], *, updates: bool) -> None:
        self._spark = spark
        self._inputs = inputs
        self._updates = updates

    def of(self, node: Node, wanted: int) -> Bound:
        """The bound of a column of this node's output."""
        if not node.is_streaming:
            return Unbounded("it comes from a table, which has no event time")
        if node.reads is not None:
            return self._of_input(node, wanted)
        if node.kind in ("Project", "Aggregate", "Expand"):
            return self._computed(node, wanted)
        if node.kind == "Union":
            index = node.ids.index(wanted)
            return least(self.of(child, child.ids[index]) for child in node.children)
        if node.is_join_of_streams:
            return self._joined(node, wanted)
        if node.kind == "UpdateEventTimeWatermarkColumn" and wanted == identity(node.plan.eventTime()):
            return self._watermark(node.child)  # Spark refuses rows that are older
        if node.kind in ("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"):
            return Unbounded(f"a function with state ({STATEFUL[node.kind]}) may emit it at any time")
        below = next((child for child in node.children if wanted in child.ids), None)
        if below is None:
            return Unbounded(f"the operator {node.kind} computes it")
        return self.arriving(node, below, wanted)

    def arriving(self, node: Node, below: Node, wanted: int) -> Bound:
        """The bound of an operator's input rows. An operator with state drops rows older than its watermark."""
        if state_of(node) not in (None, STATEFUL["GlobalLimit"]) and is_marked(below.column(wanted)):
            return self._watermark(node)
        return self.of(below, wanted)

    def shift_us(self, node: Node) -> int | None:
        """The operator's watermark minus the stage's. None if no watermark reaches the operator."""
        shifts = [self._passed_on_us(child) for child in node.children if child.is_streaming]
        return min((shift for shift in shifts if shift is not None), default=None)

    def _watermark(self, node: Node) -> Bound:
        shift = self.shift_us(node)
        return Unbounded("no watermark reaches it") if shift is None else frozenset({Term(None, shift)})

    def _passed_on_us(self, node: Node) -> int | None:
        """The shift of the watermark behind a node, as Spark propagates watermarks from operator to operator."""
        if node.kind == "EventTimeWatermark":
            return 0
        incoming = self.shift_us(node)
        if incoming is None or node.kind == "FlatMapGroupsInPandasWithState":
            return None
        if state_of(node) != JOIN:
            return incoming
        return min([incoming, *(incoming + each for each in self.evicted_us(node) if each is not None)])

    def _of_input(self, node: Node, wanted: int) -> Bound:
        assert node.reads is not None
        each, name = self._inputs[node.reads], str(node.column(wanted).name())
        if name == each.event_time:
            return frozenset({Term(node.reads)})
        if each.event_time is None:
            return Unbounded(
                f"stream {each.stream!r} has no declared event time",
                f'Add to the job file, under [streams.{each.stream}]: event_time = "{name}".',
            )
        return Unbounded(
            f"it is the column {name} of stream {each.stream!r}, whose event time is {each.event_time}",
            f"Use that column, or change streams.{each.stream}.event_time in the job file.",
        )

    # Columns that are computed.

    def _computed(self, node: Node, wanted: int) -> Bound:
        index = node.ids.index(wanted)
        if node.kind == "Expand":
            rows = [each.apply(index) for each in items(node.plan.projections())]
            return least(self._of_expression(node, each, node.output[index]) for each in rows)
        return self._of_expression(node, node.maker(wanted), node.output[index])

    def _of_expression(self, node: Node, expression: Any, column: Any = None) -> Bound:
        """The bound of an expression over a node's child. The bound of a window is that of its end."""
        kind = kind_of(expression)
        if kind == "AttributeReference":
            return self._of_column(node, identity(expression))
        if kind in ("KnownNullable", "KnownNotNull", "Alias"):
            return self._of_expression(node, expression.children().apply(0), column)
        if kind == "Literal":
            return frozenset() if expression.value() is None else Unbounded(f"it is the constant {text(expression)}")
        if kind == "Cast":
            return self._of_cast(node, expression)
        if kind == "TimestampAddInterval":
            base = self._of_expression(node, expression.children().apply(0))
            return shifted(base, interval_us(expression.children().apply(1)), _computed_text(expression))
        if kind == "TruncTimestamp":
            unit = expression.format()
            known = UNITS_US.get(str(unit.value()).lower()) if kind_of(unit) == "Literal" else None
            base = self._of_expression(node, expression.timestamp())
            return shifted(base, None if known is None else -known, _computed_text(expression))
        if kind == "GetStructField" and kind_of(expression.child()) == "AttributeReference":
            return self._of_window_field(node, expression)
        if (window := window_time_of(expression)) is not None:
            return self._of_column(node, identity(window))
        if column is not None and is_window(column):
            time = time_in(expression)  # a window ends later than the times in it
            return self._of_expression(node, time) if time is not None else Unbounded(_computed_text(expression))
        return Unbounded(_computed_text(expression))

    def _of_column(self, node: Node, wanted: int) -> Bound:
        if node.kind != "Aggregate":
            return self.of(node.child, wanted)
        times = event_times(node, node.child)
        if wanted in times:
            return self._watermark(node)
        lengths = [
            self.window_us(node.child, each) for each in times if self._time_of_window(node.child, each) == wanted
        ]
        if lengths:  # a window that ends after the watermark begins at most its length before
            return shifted(self._watermark(node), None if lengths[0] is None else -lengths[0], "a session has no limit")
        return KEPT if self._keeps_groups(node) else self.of(node.child, wanted)

    def _keeps_groups(self, node: Node) -> bool:
        """Whether a node emits a group when the watermark has passed, and not when one of its rows arrives."""
        return node.kind == "Aggregate" and state_of(node) is not None and not self._updates

    def _of_cast(self, node: Node, expression: Any) -> Bound:
        source, target = (str(each.dataType().simpleString()) for each in (expression.children().apply(0), expression))
        base = self._of_expression(node, expression.children().apply(0))
        times = ("timestamp", "timestamp_ntz")
        if source == target or (source in (*times, "date") and target in times):
            return base  # the session's zone is UTC
        if source in times and target == "date":
            return shifted(base, -DAY_US)
        return Unbounded(_computed_text(expression))

    def _of_window_field(self, node: Node, expression: Any) -> Bound:
        """`window.end` is later than each time in the window; `window.start` is earlier by the window's length."""
        window = expression.child()
        if not is_window(window):
            if self._keeps_groups(node):
                return KEPT
            return self._of_field(node, identity(window), expression.ordinal()) or Unbounded(_computed_text(expression))
        base = self._of_column(node, identity(window))
        if str(expression.extractFieldName()) == "end":
            return base
        length = self.window_us(node.child, identity(window)) if is_marked(window, WINDOW_MARK) else None
        return shifted(
            base, None if length is None else -length, "it is the start of a session, whose length has no limit"
        )

    def _of_field(self, node: Node, struct: int, field: int) -> Bound | None:
        """The bound of a field of a struct that is made below this node, if its rows are passed on as they arrive."""
        while below := next((child for child in node.children if struct in child.ids), None):
            if below.kind == "Project":
                made = below.maker(struct)
                if kind_of(made) == "CreateNamedStruct":
                    return self._of_expression(below, made.children().apply(2 * field + 1))
                if kind_of(made) != "AttributeReference":
                    return None
                struct = identity(made)
            elif below.kind not in IMMEDIATE:
                return None
            node = below
        return None

    def _time_of_window(self, node: Node, wanted: int) -> int | None:
        """The column from which a window is computed. None if it is not known."""
        while below := next((each for each in (node, *node.children) if wanted in each.ids), None):
            if below.kind == "Project":
                made = below.maker(wanted)
                if kind_of(made) != "AttributeReference":
                    time = time_in(made)
                    return identity(time) if time is not None and kind_of(time) == "AttributeReference" else None
                wanted = identity(made)
            if not below.children or below.kind == "Union":  # its branches may compute it from other columns
                return None
            node = below.child
        return None

    def window_us(self, node: Node, wanted: int) -> int | None:
        """The length of the longest windows in a column, from what creates them. None if it is not known."""
        if wanted not in node.ids:
            return None
        if node.kind == "Union":
            index = node.ids.index(wanted)
            lengths = [self.window_us(child, child.ids[index]) for child in node.children]
            known = [length for length in lengths if length is not None]
            return max(known) if len(known) == len(lengths) else None
        if node.kind in ("Project", "Expand", "Aggregate"):
            if node.kind == "Expand":
                made = node.plan.projections().apply(0).apply(node.ids.index(wanted))
            else:
                made = node.maker(wanted)
            if kind_of(made) == "AttributeReference":
                return self.window_us(node.child, identity(made))
            return window_us(made)
        lengths = [self.window_us(child, wanted) for child in node.children if wanted in child.ids]
        return lengths[0] if lengths else None

    # Joins.

    def _joined(self, node: Node, wanted: int) -> Bound:
        """A joined row is emitted when its later half arrives; in an outer join also when no partner can arrive."""
        left, right = node.children
        mine, other = (left, right) if wanted in left.ids else (right, left)
        bounds = [self.arriving(node, mine, wanted), self._when_partner_comes(node, mine, other, wanted)]
        kind = join_type(node)
        if kind in ("FullOuter", "LeftOuter" if mine is left else "RightOuter"):
            evicted = self.evicted_us(node)[0 if mine is left else 1]
            incoming = self.shift_us(node)
            if evicted is None or incoming is None or not is_marked(mine.column(wanted)):
                return Unbounded("the outer join emits rows without a partner late, by another column's time")
            bounds.append(frozenset({Term(None, incoming + evicted)}))
        return least(bounds)

    def _when_partner_comes(self, node: Node, mine: Node, other: Node, wanted: int) -> Bound:
        """The bound from the join's condition, which limits how much older than its partner a row can be."""
        sides = (0, 1) if mine is node.children[0] else (1, 0)
        reasons = []
        for pair in equalities(node):
            own, theirs = pair[sides[0]], pair[sides[1]]
            if kind_of(own) == kind_of(theirs) == "AttributeReference" and identity(own) == wanted:
                bound = self.arriving(node, other, identity(theirs))
                if not isinstance(bound, Unbounded):
                    return bound
        for each in parts_of(node):
            found = _at_least(each, wanted, frozenset(other.ids))
            if found is None:
                continue
            column, by_us = found
            bound = shifted(self.arriving(node, other, column), by_us)
            if not isinstance(bound, Unbounded):
                return bound
            reasons.append(bound.reason)
        name, latest = str(mine.column(wanted).name()), self._latest_partner(node, mine, wanted, other)
        return Unbounded(
            f"the join keeps rows until a partner arrives, and its condition does not limit how much older than the "
            f"partner {name} can be" + (f" ({reasons[0]})" if reasons else ""),
            latest,
        )

    def kept_for_ever(self, node: Node) -> list[tuple[str, str]]:
        """The streams whose rows a join never drops from its state, and what to do about each."""
        found = []
        for number, evicted in enumerate(self.evicted_us(node)):
            if evicted is None:
                found.append((self._streams(node.children[number]), self.remedy_for_state(node, number)))
        return found

    def remedy_for_state(self, node: Node, number: int) -> str:
        """What makes a join drop the rows of one side: it can, when the watermark has passed their latest partner."""
        mine, other = node.children[number], node.children[1 - number]
        own, theirs = self.time_of(mine), self.time_of(other)
        if own is None or theirs is None:
            return (
                "To drop them, both inputs need an event_time and withWatermark, and the join's condition a limit of "
                "the time between two rows."
            )
        bound = self._when_partner_comes(node, mine, other, own)
        column = other.column(theirs)
        remedies = [bound.remedy] if isinstance(bound, Unbounded) else []
        if not is_marked(column):
            remedies.append(
                f'Set withWatermark({literal(in_sql(str(column.name())))}, "1 hour") on {self._streams(other)}.'
            )
        return " ".join(remedies)

    def _latest_partner(self, join: Node, mine: Node, wanted: int, other: Node) -> str:
        """A condition that limits how late a row's partner can come. Empty if the other side has no event time.

        It is whole where the join's condition may be names of columns, to which nothing can be added.
        """
        theirs = self.time_of(other)
        if theirs is None:
            return ""
        turn = 1 if mine is join.children[0] else -1
        equal = [pair[::turn] for pair in equalities(join, ["EqualTo"])]
        is_by_name = len(equal) == len(parts_of(join)) and all(text(one) == text(another) for one, another in equal)
        pairs = [(mine.column(wanted), other.column(theirs)), *(equal if is_by_name else ())]
        [(own, late), *keys], aliases = self.distinguished(mine, other, pairs)
        limit = f"{late} <= {own} + INTERVAL 1 HOUR"
        if not is_by_name:
            return f"Add to the join's condition how much later a partner can come, for example: AND {limit}{aliases}."
        condition = " AND ".join([*(f"{one} = {another}" for one, another in keys), limit])
        in_order = keys if mine is join.children[0] else [(left, right) for right, left in keys]
        return (
            "Join by a condition that says how much later a partner can come, for example: "
            f"F.expr({literal(condition)}){aliases}{once(join, in_order)}."
        )

    def distinguished(
        self, mine: Node, other: Node, pairs: Sequence[tuple[Any, Any]]
    ) -> tuple[list[tuple[str, str]], str]:
        """Pairs of expressions of both sides of a join as a condition names them, and the aliases that this needs."""
        written = [(text(own), text(theirs)) for own, theirs in pairs]
        if all(own != theirs for own, theirs in written):
            return written, ""
        one, another = self._streams(mine), self._streams(other)
        another = another if another != one else "other"
        apart = [
            (f"{in_sql(one)}.{own}", f"{in_sql(another)}.{theirs}")
            if own == theirs and kind_of(expression) == "AttributeReference"
            else (own, theirs)
            for (own, theirs), (expression, _) in zip(written, pairs, strict=True)
        ]
        return apart, f', with .alias("{one}") and .alias("{another}") on its sides'

    def time_of(self, node: Node) -> int | None:
        """A column of the event time, before those of other times with a bound. None: there is none."""
        return next((each for each in [*marked(node), *node.ids] if self.has_time(node, each)), None)

    def has_time(self, node: Node, column: int) -> bool:
        """Whether a column of a node is, or contains, an event time."""
        return not isinstance(self.of(node, column), Unbounded)

    def _streams(self, node: Node) -> str:
        """The streams that are read below a node."""
        numbers = sorted({leaf.reads for leaf in node.leaves() if leaf.reads is not None})
        return " and ".join(self._inputs[number].stream for number in numbers)

    def evicted_us(self, node: Node, parts: Sequence[Any] | None = None) -> tuple[int | None, int | None]:
        """For left and right: how far behind the watermark rows are still kept, as Spark computes it.

        It is computed from the parts of the condition that compare the sides, unless others are given.
        """
        pairs = equalities(node, ["EqualTo"])  # of the others Spark makes keys that have no time
        return evicted_us(self._spark, node, pairs, of_both(node) if parts is None else parts)


def once(join: Node, keys: Sequence[tuple[str, str]]) -> str:
    """How a join by a condition emits its keys, of left and right, once each, as one by names of columns does."""
    kind = join_type(join)
    if kind in ("LeftSemi", "LeftAnti"):
        return ""
    if kind == "FullOuter":
        made = [f"F.coalesce({', '.join(f'F.col({literal(each)})' for each in key)})" for key in keys]
        return f"; behind it {' and '.join(made)} for its key if the join was by names of columns"
    twice = ", ".join(f"F.col({literal(key[kind != 'RightOuter'])})" for key in keys)
    return f"; .drop({twice}) behind it if the join was by names of columns"


def _computed_text(expression: Any) -> str:
    return f"it is computed: {text(expression)[:120]}"


def interval_us(expression: Any) -> int | None:
    """A constant interval in microseconds. None if it is not constant or has months."""
    if not expression.foldable():
        return None
    value = expression.eval(None)
    if isinstance(value, int):
        return value
    if value is None:
        return None
    months, days, by_us = interval_parts(value)
    return None if months else days * DAY_US + by_us


def linear(expression: Any) -> tuple[int, int] | None:
    """The id and the time, if the expression is a column plus a constant time. Otherwise None."""
    kind = kind_of(expression)
    if kind == "AttributeReference":
        return identity(expression), 0
    children = list(items(expression.children()))
    if kind == "Cast" and str(expression.dataType().simpleString()) == str(children[0].dataType().simpleString()):
        return linear(children[0])
    if kind == "TimestampAddInterval":
        base, by_us = linear(children[0]), interval_us(children[1])
        return None if base is None or by_us is None else (base[0], base[1] + by_us)
    return None


def _at_least(condition: Any, wanted: int, others: frozenset[int]) -> tuple[int, int] | None:
    """The other column and the time, if a comparison says that a column is not older than their sum."""
    kind = kind_of(condition)
    if kind in ("LessThan", "LessThanOrEqual"):
        small, great = condition.left(), condition.right()
    elif kind in ("GreaterThan", "GreaterThanOrEqual"):
        small, great = condition.right(), condition.left()
    elif kind == "EqualTo":
        forward = _compared(condition.left(), condition.right(), wanted, others)
        return forward or _compared(condition.right(), condition.left(), wanted, others)
    else:
        return None
    return _compared(small, great, wanted, others)


def _compared(small: Any, great: Any, wanted: int, others: frozenset[int]) -> tuple[int, int] | None:
    less, more = linear(small), linear(great)
    if less is None or more is None or more[0] != wanted or less[0] not in others:
        return None
    return less[0], less[1] - more[1]


def window_time_of(expression: Any) -> Any | None:
    """The window of `window_time(window)`: its end less a microsecond."""
    if kind_of(expression) != "PreciseTimestampConversion" or kind_of(expression.child()) != "Subtract":
        return None
    end = expression.child().left()
    field = end.child() if kind_of(end) == "PreciseTimestampConversion" else None
    if field is None or kind_of(field) != "GetStructField" or str(field.extractFieldName()) != "end":
        return None
    return field.child() if kind_of(field.child()) == "AttributeReference" else None


def time_in(window: Any) -> Any | None:
    """The time from which a window is computed: the expression that is converted to microseconds."""
    for child in items(window.children()):
        is_number = str(child.dataType().simpleString()) == "bigint"
        if (found := time_in(child)) is not None:
            return found
        if kind_of(child) == "PreciseTimestampConversion" and is_number:
            return child.child()
    return None


def window_us(made: Any) -> int | None:
    """The length of the windows that a named_struct(start, …, end, …) creates."""
    parts = list(items(made.children())) if kind_of(made) == "CreateNamedStruct" else []
    if len(parts) != 4:  # some other struct
        return None
    end = parts[3]
    while kind_of(end) in ("KnownNullable", "PreciseTimestampConversion"):
        end = end.children().apply(0)
    return int(end.right().value()) if kind_of(end) == "Add" and kind_of(end.right()) == "Literal" else None


def as_written(expression: Any) -> str:
    """The expression as people write it: a window that begins with an hour or a day is not its arithmetic."""
    length_us, time = window_us(expression), time_in(expression)
    steps = [each.right() for each in all_of(expression, "Remainder")]
    offsets = [each.left().right() for each in all_of(expression, "Remainder") if kind_of(each.left()) == "Subtract"]
    if length_us is None or time is None or any(int(each.value()) != length_us for each in steps):
        return text(expression)
    if any(int(each.value()) != 0 for each in offsets):
        return text(expression)
    return f"window({text(time)}, {in_words(length_us / 1_000_000)})"


def marked(node: Node) -> list[int]:
    """The columns that Spark takes for event time in a node's output."""
    return node.marked(EVENT_TIME_MARK)


def event_times(operator: Node, child: Node) -> list[int]:
    """The columns of a child by which an operator may decide whether a row is late."""
    times = list(dict.fromkeys(marked(child)))  # transformWithState gets its keys twice
    if operator.kind != "Aggregate":
        return times
    grouping = items(operator.plan.groupingExpressions())  # with sessions, which are no keys of the state
    keys = {identity(key) for key in grouping if kind_of(key) == "AttributeReference"}
    return [wanted for wanted in times if wanted in keys]  # not what is computed of a time

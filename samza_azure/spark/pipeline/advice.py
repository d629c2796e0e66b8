"""The lines that a refusal advises, with the stage's own columns, so that they can be pasted as they are.

A column that is not known is described in words instead: no line has a gap to fill in.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from samza_azure.config.values import in_words
from samza_azure.pipeline.names import declare_event_time
from samza_azure.spark.jvm.catalyst import (
    Node,
    all_of,
    equalities,
    identity,
    in_sql,
    is_marked,
    is_window,
    items,
    join_type,
    kind_of,
    literal,
    parts_of,
    references,
    text,
    without_alias,
)
from samza_azure.spark.pipeline.bounds import DAY_US, Bounds, Input, as_written, once, time_in, window_us
from samza_azure.spark.pipeline.nulls import Nulls
from samza_azure.spark.pipeline.operators import groupings_of, is_grouping_id


def event_time_of(inputs: Sequence[Input]) -> str:
    """What to add to the job file so that an input has an event time."""
    return declare_event_time((each.stream, each.types) for each in inputs)


def count_in_windows(time: str | None) -> str:
    """How to count rows. `time` is the event time of an input."""
    if time is None:
        return "by a window of an event time"
    column = literal(in_sql(time))
    return f'.withWatermark({column}, "1 hour").groupBy(F.window({column}, "1 hour")).count()'


def without_nulls(column: str) -> str:
    """Remove the rows in which a column or another SQL expression is null."""
    return f".where({literal(f'{column} IS NOT NULL')})"


def deduplicated(aggregation: Node) -> str:
    """The line to write instead of an aggregation that only removes duplicates."""
    keys = [key for key in items(aggregation.plan.groupingExpressions()) if kind_of(key) == "AttributeReference"]
    columns = ", ".join(literal(str(key.name())) for key in keys)  # these are not parsed
    return (
        "Write SELECT and UNION ALL instead of SELECT DISTINCT, UNION and GROUP BY, and behind the DataFrame "
        f".dropDuplicates([{columns}]), which emits each row once."
    )


#: What to do where rows of one side have partners of any later time.
_LOOKUP = (
    " If one side is a lookup, whose rows hold for all time to come, use an inner join: it keeps the rows of both "
    "sides, and writes no row without a partner."
)


class Advice:
    """What to write instead of a stage's operator. All lines follow the DataFrame that the operator gets."""

    def __init__(self, inputs: Sequence[Input], bounds: Bounds, nulls: Nulls) -> None:
        self._inputs, self._bounds, self._nulls = inputs, bounds, nulls

    def windowed(self, node: Node, width: str, keys: Sequence[Any] = ()) -> str:
        """Group the rows of a node by windows of its event time, and by keys. Empty if it lacks one of these."""
        wanted = self._bounds.time_of(node)
        if wanted is None or not all(references(key) <= set(node.ids) for key in keys):
            return ""
        time = _quoted(node.column(wanted))
        by = ", ".join([f'F.window({time}, "{width}")', *map(_written, keys)])
        return f"{self._watermark(node, wanted)}.groupBy({by})"

    def _totals(self, node: Node, groupings: Sequence[Sequence[Any]], keys: Sequence[Any]) -> str:
        """Group them by windows of a day and by sets of keys. Empty if the node lacks one of these."""
        wanted, known = self._bounds.time_of(node), {*node.names}
        if wanted is None or not all(str(key.name()) in known for key in keys):
            return ""
        made = f'.withColumn("window", F.window({_quoted(node.column(wanted))}, "1 day"))'
        of_each = [", ".join(['"window"', *(_quoted(key) for key in each if not is_window(key))]) for each in groupings]
        sets = ", ".join(f"[{each}]" for each in dict.fromkeys(of_each))
        by = ", ".join(['"window"', *map(_quoted, keys)])
        return f"{self._watermark(node, wanted)}{made}.groupingSets([{sets}], {by})"

    def complete(self, aggregation: Node) -> str:
        """Make the groups of an aggregation complete."""
        grouping, groupings = list(items(aggregation.plan.groupingExpressions())), groupings_of(aggregation)
        windows = [identity(key) for key in grouping if is_window(key)]
        keys = [key for key in grouping if not is_window(key) and not is_grouping_id(key)]
        node = above = aggregation.child
        while node.children and (node.kind == "Expand" or any(map(is_window, node.output))):
            node, above = node.child, node  # Spark computes windows in a node of their own
        wanted = self._bounds.time_of(node)
        if wanted is not None and windows and not is_marked(node.column(wanted)):
            made = [identity(each) for each in above.output if is_window(each)]
            used = [each for each in windows if each in made] or made  # a window that got a name has another id
            if used and all(self._bounds.has_time(above, each) for each in used):
                return f"Set a watermark before it, {self._watermark(node, wanted)}."
        if said := self._in_parts(node, above, keys):
            return said
        lengths = [window_us(without_alias(each)) for each in (above.made if above.kind == "Project" else ())]
        known = next((each for each in lengths if each is not None), DAY_US) if windows else DAY_US
        width = in_words(known / 1_000_000)
        if line := self._totals(node, groupings, keys) if groupings else self.windowed(node, width, keys):
            return f"Group by a window of the event time {'instead' if windows else 'as well'}, {line}."
        return f"Group by a window of an event time as well. {self._kept()}"

    def described(self, aggregation: Node) -> str:
        """The aggregates of describe() and summary(), which make one map of each column, by windows. Empty: others."""
        maps = [each for each in aggregation.made if kind_of(without_alias(each)) == "CreateMap"]
        line = self.windowed(aggregation.child, "1 day")
        if not maps or len(maps) < len(aggregation.made) or not line:
            return ""
        averaged = [items(found.children()) for each in maps for found in all_of(each, "Average")]
        columns = [_quoted(each) for [each] in averaged if kind_of(each) == "AttributeReference"]  # no text
        functions = ("count", "mean", "stddev", "min", "max") if columns else ("count", "min", "max")
        columns = columns or [_quoted(maps[0])]
        agg = ", ".join(f"F.{function}({column})" for column in columns for function in functions)
        return f"describe and summary are aggregates over all rows. Compute them by windows, {line}.agg({agg})."

    def _in_parts(self, node: Node, above: Node, keys: Sequence[Any]) -> str:
        """Groups by windows of a computed time. Windows of the event time have other bounds, so they only divide the
        groups into parts that end."""
        made = [each for each in (above.made if above.kind == "Project" else ()) if is_window(each)]
        times = [time_in(without_alias(each)) for each in made]
        computed = [each for each in times if each is not None and kind_of(each) != "AttributeReference"]
        if not computed:
            return ""
        said = (
            f"A window of the event time would have other bounds than one of {text(computed[0])}. Divide the groups by "
            "one, so that each part ends, and add the parts up where the output is read"
        )
        written = as_written(without_alias(made[0]))
        wanted, length_us = self._bounds.time_of(node), window_us(without_alias(made[0]))
        is_plain = written.startswith("window(") and length_us is not None and len(made) == 1
        if wanted is None or not is_plain or not all(references(key) <= set(node.ids) for key in keys):
            return f"{said}."
        time, length = _quoted(node.column(wanted)), in_words((length_us or 0) / 1_000_000)
        window = f'.withColumn("of", F.window({_written(computed[0])}, "{length}"))'
        by = ", ".join([f'F.window({time}, "1 hour")', '"of"', *map(_written, keys)])
        return f"{said}: {self._watermark(node, wanted)}{window}.groupBy({by})."

    def is_reached(self, node: Node) -> bool:
        """Whether an operator gets a watermark."""
        return self._bounds.shift_us(node) is not None

    def timed(self, node: Node) -> str:
        """Give the rows of a node a watermark."""
        wanted = self._bounds.time_of(node)
        return self._kept() if wanted is None else f"Set one before it, {self._watermark(node, wanted)}."

    def _kept(self) -> str:
        """Have an event time where there is none."""
        known = " or ".join(f"{each.stream}.{each.event_time}" for each in self._inputs if each.event_time)
        return f"Keep {known} up to there." if known else event_time_of(self._inputs)

    def greatest(self, root: Node) -> str:
        """The greatest row of a window, for a stage that sorts its rows."""
        for node in root.walk():
            if node.kind == "Sort" and (line := self.windowed(node.child, "1 hour")):
                orders = [each.child() for each in items(node.plan.order())]
                by = next((each for each in orders if not is_window(each)), None)
                if by is None:
                    continue
                others = [each for each in node.child.output if identity(each) not in references(by)]
                others.sort(key=lambda each: is_window(each) or "timestamp" in str(each.dataType().simpleString()))
                greatest = f"F.max_by({_quoted(others[0])}, {_written(by)})" if others else f"F.max({_written(by)})"
                return f"; the greatest row of a window is an aggregate, {line}.agg({greatest})"
        return ""

    def first(self, root: Node) -> str:
        """A row of each key, for a stage that numbers its rows. It is another one, so what it does is said."""
        for node in root.walk():
            numbers = node.kind == "Window" and all(map(_numbers_rows, items(node.plan.windowExpressions())))
            keys = list(items(node.plan.partitionSpec())) if numbers else []
            if keys and (line := self.forgotten(node, keys)):
                return f" Or write the row of each that comes first, whatever its time. {line}"
        return ""

    def distinct(self, root: Node) -> str:
        """The number of distinct values, for a stage that counts them exactly; all of them for another aggregate.
        Empty: it has none of these."""
        for node in (each for each in root.walk() if each.kind == "Aggregate"):
            for each in (found for made in items(node.plan.aggregateExpressions()) for found in _distinct(made)):
                function = each.aggregateFunction()
                column = next(items(function.children()), None)
                if column is not None and kind_of(function) != "Count":
                    return (
                        f"Use F.collect_set({_written(column)}), and compute the result from that, as with F.aggregate."
                    )
                if column is not None and kind_of(column) == "AttributeReference":
                    return (
                        f"Use F.approx_count_distinct({_quoted(column)}); or group by {_quoted(column)} as well, and "
                        f"use F.count({_quoted(column)}) in the next stage."
                    )
                return (
                    "Use F.approx_count_distinct; or group by the values as well, and use F.count of them in the next "
                    "stage."
                )
        return ""

    def forgotten(self, node: Node, keys: Sequence[Any]) -> str:
        """A deduplication that forgets its keys. It is another one, so what it does is said."""
        wanted = self._bounds.time_of(node.child)
        if wanted is None or not all(kind_of(key) == "AttributeReference" for key in keys):
            return ""
        line = self._unrepeated(node.child, wanted, keys)
        return f"This one forgets a key when the watermark has passed, and then writes a row of it again: {line}."

    def divided(self, aggregation: Node, keys: Sequence[Any]) -> str:
        """Groups that end. If they have no window yet, they are other ones, which is said."""
        if any(map(is_window, keys)):
            return self.complete(aggregation)
        line = self.windowed(aggregation.child, "1 day", keys)
        return f"Groups of one day each end when the watermark has passed: {line}." if line else ""

    def in_time(self, root: Node) -> str:
        """A condition that bounds the time between the rows of a join, for a stage with one that does not."""
        join = next((node for node in root.walk() if node.is_join_of_streams), None)
        left, right = join.children if join is not None else (root, root)
        one, other = self._bounds.time_of(left), self._bounds.time_of(right)
        if join is None or one is None or other is None:
            lacking = [each for each in self._inputs if not each.event_time]
            return (f". {event_time_of(lacking)}" if lacking else ".") + _LOOKUP
        pairs = [(left.column(one), right.column(other)), *equalities(join)]
        [(earlier, later), *equal], aliases = self._bounds.distinguished(left, right, pairs)
        between = f"AND {later} BETWEEN {earlier} AND {earlier} + INTERVAL 1 HOUR"
        is_clear = all(first != second for first, second in equal)
        keys = " AND ".join(f"{first} = {second}" for first, second in equal if is_clear)
        said = f': F.expr("{keys} {between}"){aliases}' if keys else f", and have an equality: {between}{aliases}"
        if keys and aliases and all(text(one) == text(another) for one, another in equalities(join)):
            said += once(join, equal)
        return f"{said}.{_LOOKUP}"

    def with_table(self, root: Node) -> str:
        """A join that starts from the stream, for a stage whose join with a table writes rows of the table: those
        without a partner as well, or only those, or only the others."""
        joins = (node for node in root.walk() if node.kind == "Join" and not node.is_join_of_streams)
        for join in joins:
            left, right = join.children
            side = left if left.is_streaming else right
            kind = join_type(join)
            if kind in ("FullOuter", "RightOuter" if side is left else "LeftOuter"):
                by, how = _condition(join), "left" if kind == "FullOuter" else "inner"
                line = f', .join(table, {by}, "{how}")' if by else f", by a join of kind {how} on the same condition"
                rows = "the rows of the stream" if kind == "FullOuter" else "the rows that have a partner"
                return (
                    f"Write {rows}{line} with the stream on the left: which rows of the table have no partner is "
                    "known only where the output is read."
                )
            if kind in ("LeftSemi", "LeftAnti") and side is right:
                wanted = _found(join, side)
                if kind == "LeftSemi":
                    return f"Write {wanted}."
                return (
                    "Which rows of the table have no partner is known only where the output is read. Write those "
                    f"that have one, {wanted}, and subtract them there."
                )
        if any(node.is_join_of_streams and join_type(node) == "LeftAnti" for node in root.walk()):
            return (
                "Use a left outer join whose condition bounds the time, and behind it .where with IS NULL of a column "
                "of the other side that is never null there."
            )
        return "Join the table to the stream, with the stream on the left."

    def watermark_before(self, root: Node) -> str:
        """A watermark for a stage whose deduplication has none."""
        kind = "DeduplicateWithinWatermark"
        return next((self.timed(node.child) for node in root.walk() if node.kind == kind), self._kept())

    def _unrepeated(self, node: Node, wanted: int, keys: Sequence[Any]) -> str:
        time = node.column(wanted)
        known = without_nulls(in_sql(str(time.name()))) if self._nulls.of(node, time) is None else ""
        columns = ", ".join(literal(str(key.name())) for key in keys)  # these are not parsed
        return f"{known}{self._watermark(node, wanted)}.dropDuplicatesWithinWatermark([{columns}])"

    def _watermark(self, node: Node, wanted: int) -> str:
        time = node.column(wanted)
        return "" if is_marked(time) else f'.withWatermark({_quoted(time)}, "1 hour")'


def _numbers_rows(made: Any) -> bool:
    """Whether a window function numbers the rows in ascending order, so that the first is that which comes first."""
    found = next(all_of(made, "WindowExpression"), None)
    if found is None or kind_of(found.windowFunction()) not in ("RowNumber", "Rank", "DenseRank"):
        return False
    first = next(items(found.windowSpec().orderSpec()), None)
    return first is not None and str(first.direction().toString()) == "Ascending"


def _distinct(expression: Any) -> Iterator[Any]:
    """The aggregates over distinct values in an expression."""
    if kind_of(expression) == "AggregateExpression" and expression.isDistinct():
        yield expression
    for child in items(expression.children()):
        yield from _distinct(child)


def _condition(join: Node) -> str:
    """The condition of a join as an argument of `DataFrame.join`. Empty if a text cannot tell its columns apart."""
    parts, pairs = parts_of(join), equalities(join, ["EqualTo"])
    names = [(str(left.name()), str(right.name())) for left, right in pairs if _are_columns(left, right)]
    if parts and len(names) == len(parts) and all(left == right for left, right in names):
        return f"[{', '.join(literal(left) for left, _ in names)}]"  # these are not parsed
    known = [text(each) for child in join.children for each in child.output]
    is_clear = all(known.count(text(each)) == 1 for part in parts for each in items(part.references().toSeq()))
    written = " AND ".join(map(text, parts))
    return f"F.expr({literal(written)})" if parts and is_clear else ""


def _found(join: Node, side: Node) -> str:
    """The rows of a table that have a partner in the stream on the right, as a join that starts from the stream."""
    pairs, by = equalities(join, ["EqualTo"]), _condition(join)
    keys = [stream for table, stream in pairs if _are_columns(table, stream)]
    if by and len(keys) == len(parts_of(join)):
        names = ", ".join(map(_quoted, keys))
        besides = "" if by.startswith("[") else f".drop({', '.join(literal(str(key.name())) for key in keys)})"
        return f".select({names}).dropDuplicates().join(table, {by}){besides} with the stream on the left"
    line = f", .join(table, {by})" if by else " on the same condition"
    return f"an inner join{line}, and where the output is read keep each row of the table once"


def _are_columns(*expressions: Any) -> bool:
    return all(kind_of(each) == "AttributeReference" for each in expressions)


def _quoted(column: Any) -> str:
    """A column as an argument of a method that parses its name."""
    return literal(in_sql(str(column.name())))


def _written(expression: Any) -> str:
    """An expression as an argument of a DataFrame's method."""
    if kind_of(expression) == "AttributeReference":
        return _quoted(expression)
    return f"F.expr({literal(text(expression))})"

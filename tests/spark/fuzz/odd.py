"""The same cases as `draw`, written in ways that are less usual: SQL, copies of the event time, odd join conditions,
and with types, functions and inputs that are less usual.

The analysis reads plans, and one query has many. Whatever is drawn here still has one right answer in a batch.
"""

from dataclasses import replace
from random import Random
from typing import Any

from .case import Call, Case, DrawnInput, Join
from .draw import USUAL, Bias, Drawing, Frame
from .values import INTEGERS, MORE_VALUES, one_of

#: An event time that is another column and has the same value.
COPIES = (
    "{}",
    "to_timestamp({})",
    "array({})[0]",
    "if(true, {}, null)",
    "coalesce({0}, {0})",
    "greatest({0}, {0})",
    "cast(cast({} AS string) AS timestamp)",
    "named_struct('t', {}).t",
)
#: A time that is another one.
SHIFTED = ("{} - INTERVAL 10 MINUTES", "date_trunc('HOUR', {})", "{} + INTERVAL 10 MINUTES", "timestamp_seconds(0)")


def odd(seed: int, bias: Bias = USUAL) -> Case:
    """The odd case of a seed."""
    return _OddDrawing(Random(seed), seed, bias).case()


class _OddDrawing(Drawing):
    """Each operator may be written in another way, or be another one that resembles it."""

    def __init__(self, dice: Random, seed: int, bias: Bias) -> None:
        super().__init__(dice, seed, bias)
        self.odds = Random(f"oddities of {seed}")  # its own, so that a case resembles the one that `draw` makes
        self.later = Random(f"later oddities of {seed}")  # of shapes that came later: the seeds before them stay
        self.last = Random(f"types and functions of {seed}")  # of those that came after these
        self.newest = Random(f"equal times and sessions of {seed}")  # and after these
        self.times = Random(f"times as keys of {seed}")  # and last

    def may(self, share: float) -> bool:
        return self.odds.random() < share

    def delay(self) -> str:
        """Often the least that is right, so that a row may be as late as the watermark allows, to the microsecond."""
        return f"{self.disorder_s} seconds" if self.newest.random() < 0.3 else super().delay()

    # Inputs.

    def input(self, number: int) -> DrawnInput:
        made = super().input(number)
        if self.last.random() < 0.4:
            name, kind, nulls = f"w{number}", self.last.choice(list(MORE_VALUES)), self.last.choice([0.0, 0.2])
            rows = tuple((*row, one_of(self.last, kind, nulls)) for row in made.rows)
            made = replace(made, columns=(*made.columns, (name, kind)), rows=rows)
        if self.last.random() < 0.04:
            return replace(made, rows=())
        return self.silenced(made) if made.key and self.last.random() < 0.2 else made

    def rows(self, columns: list[tuple[str, str]]) -> list[tuple[Any, ...]]:
        """Sometimes of whole hours: rows that are produced later have the time of the greatest one before them."""
        made = super().rows(columns)
        if self.disorder_s or self.newest.random() < 0.6:
            return made
        place = [name for name, _ in columns].index("ts")
        times = (None if row[place] is None else row[place].replace(minute=0, second=0) for row in made)
        return [(*row[:place], time, *row[place + 1 :]) for row, time in zip(made, times, strict=True)]

    def silenced(self, made: DrawnInput) -> DrawnInput:
        """After a third of its rows there are none with the first row's key: its partition may fall silent."""
        places = [place for place, (name, _) in enumerate(made.columns) if name in made.key]
        key = [made.rows[0][place] for place in places]
        third = len(made.rows) // 3
        left = (row for row in made.rows[third:] if [row[place] for place in places] != key)
        return replace(made, rows=(*made.rows[:third], *left))

    # One input.

    def stateless(self, frame: Frame) -> Frame:
        if self.may(0.5):
            made = super().stateless(frame)
        else:
            made = self.odds.choice([self.copied, self.copied, self.shifted, self.by_sql, self.all_renamed])(frame)
        if self.last.random() < 0.1:
            code = self.last.choice([".repartition(3)", ".coalesce(1)"])
            return made.call("repartition", code)
        return made

    def copied(self, frame: Frame) -> Frame:
        """A copy of the event time beside it, or in its place."""
        if frame.time is None:
            return self.by_sql(frame)
        name, text = self.name("c"), self.odds.choice(COPIES).format(frame.time)
        made = frame.call(
            "a copy of the event time",
            f".withColumn({name!r}, F.expr({text!r}))",
            columns={**frame.columns, name: "timestamp"},
        )
        if self.may(0.6):
            return made
        kept = {column: (column, kind) for column, kind in made.columns.items() if column != frame.time}
        return made.select(kept, time=name)

    def shifted(self, frame: Frame) -> Frame:
        """Another time beside the event time."""
        if frame.time is None:
            return self.by_sql(frame)
        name, text = self.name("o"), self.odds.choice(SHIFTED).format(frame.time)
        columns = {**frame.columns, name: "timestamp"}
        return frame.call("another time", f".withColumn({name!r}, F.expr({text!r}))", columns=columns)

    def all_renamed(self, frame: Frame) -> Frame:
        names = {column: self.name("n") for column in frame.columns}
        return frame.call(
            "toDF",
            f".toDF({', '.join(map(repr, names.values()))})",
            columns={names[column]: kind for column, kind in frame.columns.items()},
            time=None if frame.time is None else names[frame.time],
        )

    def by_sql(self, frame: Frame) -> Frame:
        column, name = self.odds.choice(list(frame.columns)), self.name("q")
        if frame.columns[column].startswith("map"):
            column = next(iter(comparable(frame).columns))
        kind = frame.columns[column]
        text, more = self.odds.choice(
            [
                (f"SELECT * FROM {{rows}} WHERE {column} IS NOT NULL", {}),
                (f"WITH some AS (SELECT * FROM {{rows}}) SELECT *, {column} AS {name} FROM some", {name: kind}),
                (f"SELECT * FROM {{rows}} LATERAL VIEW explode(array(1, 2)) AS {name}", {name: "int"}),
                (
                    f"SELECT *, CASE WHEN {column} IS NULL THEN 'no' ELSE 'yes' END AS {name} FROM {{rows}}",
                    {name: "string"},
                ),
                (f"SELECT * FROM (SELECT * FROM {{rows}}) WHERE {column} IS NULL OR {column} = {column}", {}),
                ("SELECT * FROM {rows} UNION ALL SELECT * FROM {rows}", {}),
            ]
        )
        return frame.call("SQL", _sql(text), columns={**frame.columns, **more})

    # Several inputs.

    def together(self, frames: list[Frame]) -> Frame:
        frame = super().together(frames)
        if frame.marked and self.may(0.1):
            return self.united([self.dropped(frame), frame])
        return frame

    def joined(self, left: Frame, right: Frame) -> Frame:
        made = super().joined(left, right)
        if made is left:  # they have no column in common
            return self.joined_by_text(left, right)
        node = made.node
        if isinstance(node, Join):
            return replace(made, node=self.odd_join(node, made))
        if isinstance(node, Call) and isinstance(node.below, Join):
            return replace(made, node=replace(node, below=self.odd_join(node.below, made)))
        return made

    def joined_by_text(self, left: Frame, right: Frame) -> Frame:
        """Columns of different types, compared as texts."""
        mine, theirs = (
            [column for column, kind in each.columns.items() if kind in (*INTEGERS, "string", "date")]
            for each in (left, right)
        )
        if not mine or not theirs:
            return left
        names = {column: self.name("j") for column in right.columns}
        kept = {names[column]: (column, kind) for column, kind in right.columns.items()}
        other = right.select(kept, operator="rename all", time=None if right.time is None else names[right.time])
        one, two = self.newest.choice(mine), names[self.newest.choice(theirs)]
        node = Join(left.node, other.node, f"cast({one} AS string) = cast({two} AS string)", "inner")
        return replace(left, node=node, columns={**left.columns, **other.columns}, late=True, lag=None)

    def odd_join(self, node: Join, made: Frame) -> Join:
        """Another condition: a bound less, a condition on one side, a key that is made of columns."""
        conditions = node.condition.split(" AND ")
        bounds = [each for each in conditions if "INTERVAL" in each]
        if bounds and self.may(0.15):
            conditions.remove(self.odds.choice(bounds))
        if self.may(0.3):
            sides = [column for column, kind in made.columns.items() if kind in INTEGERS]
            if sides:
                conditions.append(f"{self.odds.choice(sides)} {self.odds.choice(['> 1', '<= 2', '<> 0', '= 1'])}")
        times = [column for column, kind in made.columns.items() if kind == "timestamp"]
        if len(times) > 1 and self.may(0.1):
            one, other = self.odds.sample(times, 2)
            conditions.append(f"{one} {self.odds.choice(['<=', '>=', '<'])} {other}")
        if self.may(0.2):
            left, _, right = conditions[0].partition(" = ")
            way = self.odds.choice(["cast({} AS string)", "coalesce({0}, {0})", "hash({})", "concat('k', {})"])
            conditions[0] = f"{way.format(left)} = {way.format(right)}"
        self.odds.shuffle(conditions)
        return replace(node, condition=" AND ".join(conditions))

    # State.

    def keys(self, frame: Frame) -> list[str]:
        return super().keys(comparable(frame))

    def aggregates(self, frame: Frame) -> tuple[str, dict[str, str]]:
        """Sometimes with a function that users write less often, and whose result no order of rows changes."""
        frame = comparable(frame)
        text, made = super().aggregates(frame)
        if self.last.random() < 0.5:
            return text, made
        column, name = self.last.choice(list(frame.columns)), self.name("a")
        kind = frame.columns[column]
        ways = [
            (f"approx_count_distinct({column})", "bigint"),
            (f"array_sort(collect_list({column}))", "other"),
            (f"count_if({column} IS NULL)", "bigint"),
            (f"count(*) FILTER (WHERE {column} IS NOT NULL)", "bigint"),
            (f"max_by({column}, {column})", kind),
            (f"min_by({column}, {column})", kind),
        ]
        if kind in INTEGERS:
            ways += [(f"{each}({column})", kind) for each in ("bit_and", "bit_or", "bit_xor")]
            ways += [(f"percentile({column}, 0.5)", "other"), (f"median({column})", "other")]
            ways += [(f"try_sum({column})", "bigint"), (f"try_avg(cast({column} % 100 AS int))", "other")]
        if kind == "boolean":
            ways += [(f"{each}({column})", "boolean") for each in ("bool_or", "some", "any")]
        way, into = self.last.choice(ways)
        made[name] = into
        return f"{text}, F.expr({way + ' AS ' + name!r})", made

    def windowed(self, frame: Frame) -> Frame:
        if self.may(0.5):
            made = super().windowed(frame)
            if self.may(0.1) and isinstance(made.node, Call):
                grouping = self.odds.choice([".rollup(", ".cube("])
                return replace(made, node=replace(made.node, code=made.node.code.replace(".groupBy(", grouping, 1)))
            return made
        return self.windowed_by_sql(frame)

    def sessions(self, frame: Frame) -> Frame:
        """Sometimes of more keys than needed, which a second aggregation puts together."""
        others = [column for column in comparable(frame).columns if column != frame.time]
        if self.newest.random() < 0.85 or len(others) < 2:
            return super().sessions(frame)
        key = "key" if "key" in others else others[0]
        more = self.newest.choice([column for column in others if column != key])
        keys = [key, more] if self.newest.random() < 0.5 else [key]
        time, count, total = self.name("t"), self.name("a"), self.name("a")
        gap = self.newest.choice(["5 minutes", "1 hour", "1 day"])
        first = (
            f".groupBy(F.session_window({frame.time!r}, {gap!r}), {key!r}, {more!r}).agg(F.count('*').alias({count!r}))"
        )
        names = ", ".join(map(repr, keys))
        second = f".groupBy('session_window', {names}).agg(F.sum({count!r}).alias({total!r}))"
        selected = f".select(F.col('session_window.end').alias({time!r}), {names}, {total!r})"
        columns = {time: "timestamp", **{name: frame.columns[name] for name in keys}, total: "bigint"}
        made = frame.call("two session aggregations", first + second + selected, columns=columns, time=time)
        return replace(made, marked=False, lag=None)

    def windowed_by_sql(self, frame: Frame) -> Frame:
        """In SQL, with a filter of rows or of groups; the window stays as a column, under another name."""
        keys, time, window, count = self.keys(frame), self.name("t"), self.name("w"), self.name("a")
        lengths = self.odds.choice(["'1 hour'", "'1 hour', '30 minutes'", "'1 hour', '1 hour', '10 minutes'"])
        column = self.odds.choice(list(frame.columns))
        counted = self.odds.choice(
            [
                "count(*)",
                f"count({column})",
                f"count(*) FILTER (WHERE {column} IS NOT NULL)",
                f"count_if({column} IS NULL)",
            ]
        )
        having = self.odds.choice(["", "", " HAVING count(*) > 1"])
        computed = self.computed_key(frame)
        grouped = ", ".join([f"window({frame.time}, {lengths})", *keys, *computed.values()])
        named = ", ".join(["window", *keys, *(f"{expression} AS {name}" for name, expression in computed.items())])
        groups = f"SELECT {named}, {counted} AS {count} FROM {{rows}} GROUP BY {grouped}{having}"
        columns = {time: "timestamp", window: "window", **{key: frame.columns[key] for key in keys}, count: "bigint"}
        columns |= {each: "timestamp" if "date_trunc" in text else "int" for each, text in computed.items()}
        selected = ", ".join([f"window_time(window) AS {time}", f"window AS {window}", *keys, *computed, count])
        text = f"SELECT {selected} FROM ({groups})"
        computed_times = [each for each in computed if columns[each] == "timestamp"]
        if computed_times and self.times.random() < 0.3:
            time = computed_times[0]  # it may be older than the window's end by more than the window
        return frame.call("window aggregation in SQL", _sql(text), columns=columns, time=time, lag=None)

    def computed_key(self, frame: Frame) -> dict[str, str]:
        """A key that is computed of the event time, beside its window; mostly none."""
        if self.times.random() < 0.2:
            time = frame.time if self.later.random() < 0.7 else f"named_struct('t', {frame.time}).t"
            return {self.name("h"): f"date_trunc('HOUR', {time})"}
        if self.later.random() < 0.7:
            return {}
        return {self.name("h"): self.later.choice(["hour({})", "minute({}) % 2", "day({})"]).format(frame.time)}


def comparable(frame: Frame) -> Frame:
    """It without its maps, which neither `=` nor an aggregate takes."""
    return replace(frame, columns={name: kind for name, kind in frame.columns.items() if not kind.startswith("map")})


def _sql(text: str) -> str:
    return f".transform(lambda rows: spark.sql({text!r}, rows=rows))"

"""A case from a seed: mostly what users write, in odd combinations.

What is drawn has one right answer: columns that a deduplication keeps are functions of its keys, floating-point sums
are exact, `limit` takes from equal rows, and no row is later than the delays allow.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

from . import stateful
from .case import (
    Action,
    Begin,
    Call,
    Case,
    Cut,
    DrawnInput,
    DrawnStage,
    Join,
    Move,
    Node,
    Produce,
    Read,
    ReadAll,
    StreamLines,
    Union,
)
from .values import INTEGERS, ROUTABLE, START, VALUES, one_of


@dataclass(frozen=True, slots=True)
class Frame:
    """A node and what is known of its rows."""

    node: Node
    columns: dict[str, str]  # name -> type
    time: str | None = None  # the column of event time
    marked: bool = False  # it has a watermark
    lag: str | None = None  # how much older than the watermark rows may be that leave the stage
    last_per: tuple[str, ...] | None = None  # of an aggregation in update mode
    late: bool = False  # rows that a state has kept leave it later than their time
    sure: frozenset[str] = frozenset()  # columns that have no nulls

    def call(self, operator: str, code: str, **changes: Any) -> "Frame":
        """With one operator more."""
        return replace(self, node=Call(self.node, operator, code), **changes)

    def select(self, columns: dict[str, tuple[str, str]], operator: str = "select", **changes: Any) -> "Frame":
        """Columns by name: expression and type."""
        expressions = [
            repr(expression if expression == name else f"{expression} AS {name}")
            for name, (expression, _) in columns.items()
        ]
        kinds = {name: kind for name, (_, kind) in columns.items()}
        sure = frozenset(name for name, (expression, _) in columns.items() if expression in self.sure)
        return self.call(operator, f".selectExpr({', '.join(expressions)})", columns=kinds, sure=sure, **changes)

    def keep(self, *names: str) -> "Frame":
        """Only these columns."""
        time = self.time if self.time in names else None
        kept = {name: (name, self.columns[name]) for name in names}
        return self.select(kept, time=time, marked=self.marked and time is not None)


@dataclass(frozen=True, slots=True)
class Bias:
    """What is drawn more or less often than usual, to look for one kind of mistake."""

    inputs: tuple[int, ...] = (1, 1, 1, 2, 2, 3)
    stages: tuple[float, ...] = (5, 4, 1)  # the weights of one, two and three
    keyed: float = 0.6  # the share of sources with a key
    laggard: float = 0.5  # of several inputs one is produced after all others
    marked: float = 0.93  # the share of inputs under withWatermark
    united: float = 0.5  # inputs are put together by a union and not by a join
    bounded: float = 0.6  # inner joins with a time bound
    after_join: float = 0.15  # of joins, those with a filter after them that compares their sides
    lagging: float = 0.7  # of outputs that need a frontier_lag, those that have one
    how: tuple[str, ...] = ("inner", "inner", "inner", "left", "right", "full", "leftsemi")
    states: tuple[int, ...] = (0, 1, 1, 1, 2)  # operators with state in the last stage
    early_states: tuple[int, ...] = (0, 1, 1, 1, 2)  # and in those before it
    windowed: float = 5.0  # the weight of an aggregation by window
    of_key: float = 0.0  # grouped by what is made of the key
    key: float = 0.6  # grouped by the column "key", and not by others
    prepared: tuple[int, ...] = (0, 0, 1, 2)  # operators before those with state
    partitions: tuple[int, ...] = (1, 2, 2, 2, 2, 3, 3, 4)
    rows: tuple[int, ...] = (5, 25, 50, 90)  # of an input
    steps: tuple[int, ...] = (30, 600, 3600)  # seconds from row to row
    delays: int = 4  # of a watermark: with 1 it just covers the disorder, else it is often longer
    laggards: int = 0  # the first input that may be the laggard
    batch_bytes: tuple[str, ...] = ("1 KiB", "1 KiB", "4 KiB", "1 MiB")
    moves: float = 0.25
    python: float = 1.0  # the weight of functions with state
    limited: float = 0.03  # of the last stages, those with a limit
    again: float = 0.0  # of aggregations, those with a deduplication by the same keys behind them


USUAL = Bias()


def timed(frame: Frame, *keys: str) -> Node:
    """Its rows that have an event time and these keys; else a row of an outer join might wait forever.

    And of two sides of a full join one must not have null as a key: both joins would be refused. People do not say so
    of columns that are never null.
    """
    unsure = [column for column in (frame.time, *keys) if column not in frame.sure]
    condition = " AND ".join(f"{column} IS NOT NULL" for column in unsure)
    return Call(frame.node, "where", f".where({condition!r})") if unsure else frame.node


def draw(seed: int, bias: Bias = USUAL) -> Case:
    """The case of a seed."""
    return Drawing(Random(seed), seed, bias).case()


def cut(case: Case) -> Case:
    """The same case, drained somewhere in mid-stream."""
    dice = Random(f"the drain of {case.seed}")
    return replace(case, cut=Cut(dice.randint(1, len(case.actions)), dice.choice([0, 1, 2, 4])))


def handled(case: Case) -> Case:
    """The same case, with a low-level task that passes on the rows of one of its inputs, by the same key."""
    dice = Random(f"the handler of {case.seed}")
    each = dice.choice(case.inputs)
    passed_on = f"{each.name}_passed"
    lag = None if each.event_time is None else "0 seconds"
    partitions = each.partitions if each.key else 1
    stream = StreamLines(partitions, each.event_time, lag, each.ddl)
    handler = DrawnStage("PassOn", (each.name,), passed_on, Read(0), each.key, stream=stream)
    behind = (
        replace(stage, inputs=tuple(passed_on if name == each.name else name for name in stage.inputs))
        for stage in case.stages
    )
    return replace(case, stages=(handler, *behind))


class Drawing:
    """What the parts of one case share."""

    def __init__(self, dice: Random, seed: int, bias: Bias) -> None:
        self.dice = dice
        self.seed = seed
        self.bias = bias
        self.disorder_s = dice.choice([0, 0, 60, 1800])
        self.partitions = dice.choice(bias.partitions)
        self.key_kind = dice.choice(["string", "string", "string", "int", "bigint", *ROUTABLE])
        self.names = 0

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def delay(self) -> str:
        """Of a watermark: covers the disorder."""
        delays = [f"{self.disorder_s} seconds", f"{self.disorder_s + 60} seconds", "1 hour", "3 hours"]
        return self.dice.choice(delays[: self.bias.delays])

    def case(self) -> Case:
        dice = self.dice
        inputs = tuple(self.input(number) for number in range(dice.choice(self.bias.inputs)))
        sources = {each.name: self.source(each) for each in inputs}
        stages: list[DrawnStage] = []
        waiting = list(sources)
        count = dice.choices([1, 2, 3], weights=self.bias.stages)[0]
        before: tuple[str, Frame] | None = None
        for number in range(count):
            is_last = number == count - 1
            used = [] if before is None else [before[0]]
            most = len(waiting) if is_last else min(len(waiting), dice.choice([1, 1, 2]))
            most = max(most, 1 if before is None else 0)
            used, waiting = used + waiting[:most], waiting[most:]
            known = {**sources, **({} if before is None else {before[0]: before[1]})}
            if len(used) == 1 and self.chance(0.06):
                used = used * 2  # the stream named twice
            stage, frame = self.stage(f"s{number + 1}", used, [known[name] for name in used], is_last=is_last)
            stages.append(stage)
            before = stage.output, frame
        tasks = self.partitions * len(stages)
        return Case(
            seed=self.seed,
            inputs=inputs,
            stages=tuple(stages),
            actions=self.actions(inputs, tasks),
            moved_in_flush=dice.randrange(tasks) if self.chance(0.05 + self.bias.moves) else None,
            task_count=dice.choice([1, 2]) if self.chance(0.15) else None,
            batch_bytes=dice.choice(self.bias.batch_bytes),
        )

    # Inputs.

    def input(self, number: int) -> DrawnInput:
        dice = self.dice
        extra = [("xyz"[place], dice.choice(list(VALUES))) for place in range(dice.choice([0, 1, 2]))]
        columns = [("key", self.key_kind), ("id", dice.choice(INTEGERS[1:])), ("v", "bigint"), ("ts", "timestamp")]
        columns += [(f"{name}{number}", kind) for name, kind in extra]
        dice.shuffle(columns)
        key: tuple[str, ...] = ()
        if self.chance(self.bias.keyed):
            key = ("key",) if self.chance(0.85) else ("key", "id")
        made = DrawnInput(
            name=f"in-{'abc'[number]}",
            columns=tuple(columns),
            rows=tuple(self.rows(columns)),
            partitions=self.partitions if self.chance(0.95) else dice.choice([1, 2, 3]),
            flush_rows=dice.choice([3, 7, 20]),
            event_time="ts" if self.chance(0.93) else None,
            frontier_lag=f"{self.disorder_s} s" if self.disorder_s and self.chance(0.3) else None,
            key=key,
        )
        return self.promised(made)

    def promised(self, made: DrawnInput) -> DrawnInput:
        """Some columns are NOT NULL. No row lacks these, or its event time: it has that of the row before."""
        dice = Random(f"what is not null in {made.name} of {self.seed}")  # its own, so that other draws stay the same
        needed = frozenset(
            name for name, _ in made.columns if dice.random() < 0.25 and (name != "ts" or made.event_time)
        )
        rows, before = [], START
        for row in made.rows:
            values = dict(zip((name for name, _ in made.columns), row, strict=True))
            for name, kind in made.columns:
                if values[name] is None and name in needed and name != "ts":
                    values[name] = dice.choice(VALUES[kind])
            if made.event_time is not None:
                before = values["ts"] = values["ts"] or before
            rows.append(tuple(values.values()))
        return replace(made, not_null=needed, rows=tuple(rows))

    def rows(self, columns: list[tuple[str, str]]) -> list[tuple[Any, ...]]:
        dice = self.dice
        null_share = dice.choice([0.0, 0.1, 0.3])
        null_times = dice.choice([0.0, 0.0, 0.1])
        skewed = dice.choice(VALUES[self.key_kind])
        skew = dice.choice([0.0, 0.0, 0.7])
        step = dice.choice(self.bias.steps)
        now, found = START + timedelta(hours=dice.choice([0, 0, 0, 7, 60])), []
        for _ in range(dice.choice(self.bias.rows)):
            now += timedelta(seconds=dice.choice([0, step, step, 3 * step]))
            row = {name: one_of(dice, kind, null_share) for name, kind in columns}
            if dice.random() < skew:
                row["key"] = skewed
            row["ts"] = (
                None if dice.random() < null_times else now - timedelta(seconds=dice.randint(0, self.disorder_s))
            )
            row["v"] = one_of(dice, "bigint", null_share)
            found.append(tuple(row.values()))
        return found

    def source(self, each: DrawnInput) -> Frame:
        sure = each.not_null if each.event_time is None else each.not_null | {each.event_time}
        return Frame(Read(0), dict(each.columns), each.event_time, sure=sure)

    # What happens.

    def actions(self, inputs: tuple[DrawnInput, ...], tasks: int) -> tuple[Action, ...]:
        dice = self.dice
        actions: list[Action] = (
            [Begin(number) for number in range(tasks) if self.chance(0.5)] if self.chance(0.3) else [Begin(None)]
        )
        left = {each.name: len(each.rows) for each in inputs}
        laggard = (
            dice.choice(list(left)[self.bias.laggards :]) if len(left) > 1 and self.chance(self.bias.laggard) else None
        )
        while any(left.values()):
            ready = [name for name, count in left.items() if count and name != laggard]
            if not ready:
                assert laggard is not None
                ready, laggard = [laggard], None
                actions.append(ReadAll())
            name = dice.choice(ready)
            rows = min(left[name], dice.choice([10, 30, 100]))
            left[name] -= rows
            actions.append(Produce(name, rows))
            if self.chance(self.bias.moves):
                actions.append(Move(dice.randrange(tasks), dice.choice([1, 2, 3])))
        return (*actions, Begin(None))

    # Stages.

    def stage(self, name: str, used: list[str], given: list[Frame], *, is_last: bool) -> tuple[DrawnStage, Frame]:
        dice = self.dice
        frames = [
            replace(frame, node=Read(number), marked=False, lag=None, late=False) for number, frame in enumerate(given)
        ]
        frames = [self.prepared(frame) for frame in frames]
        wants_time = self.chance(0.8)
        frames = [
            self.watermarked(frame) if wants_time and self.chance(self.bias.marked) else frame for frame in frames
        ]
        frame = self.together(frames)
        mode = "append"
        for _ in range(dice.choice(self.bias.states if is_last else self.bias.early_states)):
            frame, mode = self.with_state(frame, is_last=is_last)
            if mode == "update" or not frame.columns:
                break
        if mode == "append":
            frame = self.stateless(frame) if self.chance(0.4) else frame
            if is_last and self.chance(self.bias.limited):
                frame = frame.call(
                    "limit",
                    f".selectExpr('1 AS one').limit({dice.choice([3, 10, 500])})",
                    columns={"one": "int"},
                    time=None,
                    marked=False,
                )
        routable = [column for column, kind in frame.columns.items() if kind in ROUTABLE]
        partition_by: tuple[str, ...] = ()
        if routable and self.chance(0.3 if is_last else 0.75):
            partition_by = ("key",) if "key" in routable and self.chance(0.6) else (dice.choice(routable),)
        time = frame.time
        lines = StreamLines(
            partitions=self.partitions if partition_by else 1,
            event_time=time if not is_last or self.chance(0.2) else None,
            frontier_lag=frame.lag if time and frame.lag else None,
        )
        if lines.event_time is None:
            frame = replace(frame, time=None)
        tasks = 1 if self.chance(0.05) or (mode == "update" and self.chance(0.2)) else None
        stage = DrawnStage(
            name=name,
            inputs=tuple(used),
            output=f"{name}-out",
            node=frame.node,
            partition_by=partition_by,
            output_mode=mode,
            tasks=tasks,
            stream=lines,
            last_per=frame.last_per if mode == "update" else None,
        )
        return stage, frame

    def watermarked(self, frame: Frame) -> Frame:
        if frame.time is None or frame.marked:
            return frame
        return frame.call("withWatermark", f".withWatermark({frame.time!r}, {self.delay()!r})", marked=True)

    def prepared(self, frame: Frame) -> Frame:
        """What stands before anything with state."""
        for _ in range(self.dice.choice(self.bias.prepared)):
            frame = self.stateless(frame)
        return frame

    def stateless(self, frame: Frame) -> Frame:
        made = [self.derived, self.filtered, self.renamed, self.exploded, self.looked_up, self.by_python]
        return self.dice.choices(made, weights=[4, 3, 1, 1, 1, 1])[0](frame)

    def derived(self, frame: Frame) -> Frame:
        """A column made of others, which later may be a key."""
        column = self.dice.choice(list(frame.columns))
        if self.bias.of_key and "key" in frame.columns and self.chance(self.bias.of_key):
            column = "key"
        kind, name = frame.columns[column], self.name("d")
        if kind == "string":
            ways = [
                ("upper({})", "string"),
                ("substring({}, 1, 1)", "string"),
                ("concat({}, '-')", "string"),
                ("length({})", "int"),
            ]
        elif kind in INTEGERS:
            ways = [
                ("{} % 3", kind if kind != "tinyint" else "int"),
                ("cast({} AS bigint)", "bigint"),
                ("{} + 1", "bigint"),
            ]
            ways = [(f"cast({text} AS {into})" if "%" in text else text, into) for text, into in ways[:2]]
        elif kind == "timestamp":
            ways = [("date({})", "date"), ("hour({})", "int"), ("date_trunc('HOUR', {})", "timestamp")]
        elif kind == "date":
            ways = [("year({})", "int"), ("cast({} AS string)", "string")]
        elif kind.startswith("array"):
            ways = [("size({})", "int")]
        elif kind.startswith("struct"):
            ways = [("{}.a", "int"), ("{}.b", "string")]
        else:
            ways = [("{} IS NULL", "boolean"), ("coalesce({0}, {0})", kind)]
        text, into = self.dice.choice(ways)
        columns = {**frame.columns, name: into}
        return frame.call("withColumn", f".withColumn({name!r}, F.expr({text.format(column)!r}))", columns=columns)

    def filtered(self, frame: Frame) -> Frame:
        column = self.dice.choice(list(frame.columns))
        ways = [f"{column} IS NOT NULL"]
        if frame.columns[column] in INTEGERS:
            ways += [f"{column} > 0", f"{column} % 2 = 0 OR {column} IS NULL"]
        if frame.columns[column] == "string":
            ways += [f"{column} <> 'b'", f"{column} IN ('a', '', 'é')"]
        return frame.call("where", f".where({self.dice.choice(ways)!r})")

    def renamed(self, frame: Frame) -> Frame:
        column = self.dice.choice(list(frame.columns))
        name = self.name("r")
        columns = {(name if each == column else each): kind for each, kind in frame.columns.items()}
        time = name if frame.time == column else frame.time
        sure = frozenset(name if each == column else each for each in frame.sure)
        return frame.call("rename", f".withColumnRenamed({column!r}, {name!r})", columns=columns, time=time, sure=sure)

    def exploded(self, frame: Frame) -> Frame:
        name = self.name("e")
        arrays = [column for column, kind in frame.columns.items() if kind == "array<int>"]
        text = f"explode({arrays[0]})" if arrays and self.chance(0.5) else "explode(array(1, 2))"
        columns = {**frame.columns, name: "int"}
        return frame.call("explode", f".withColumn({name!r}, F.expr({text!r}))", columns=columns)

    def looked_up(self, frame: Frame) -> Frame:
        """A join with a small table of the program's own."""
        strings = [column for column, kind in frame.columns.items() if kind == "string"]
        if not strings:
            return self.filtered(frame)
        column, key, word = self.dice.choice(strings), self.name("k"), self.name("w")
        table = f"spark.createDataFrame([('a', 1), ('b', 2), ('', 3)], '{key} string, {word} int')"
        how = self.dice.choice(["inner", "left"])
        code = f".join({table}, F.expr('{column} = {key}'), {how!r}).drop({key!r})"
        return frame.call("join with a table", code, columns={**frame.columns, word: "int"})

    def by_python(self, frame: Frame) -> Frame:
        strings = [column for column, kind in frame.columns.items() if kind == "string"]
        if not strings:
            return self.derived(frame)
        column, name = self.dice.choice(strings), self.name("u")
        node = Call(frame.node, "Python UDF", f".withColumn({name!r}, shout({column!r}))", define=stateful.SHOUT)
        return replace(frame, node=node, columns={**frame.columns, name: "string"})

    # Several inputs into one.

    def together(self, frames: list[Frame]) -> Frame:
        while len(frames) > 1:
            if len(frames) > 2 and self.chance(0.3):
                return self.united(frames)
            left, right, *others = frames
            made = self.united([left, right]) if self.chance(self.bias.united) else self.joined(left, right)
            frames = [made, *others]
        frame = frames[0]
        if self.chance(0.06):
            return self.joined(frame, frame)
        if self.chance(0.05):
            return self.united([frame, self.filtered(frame)])
        return frame

    def united(self, frames: list[Frame]) -> Frame:
        dice = self.dice
        frames = dice.sample(frames, len(frames))
        first = frames[0]
        common = [
            column
            for column in first.columns
            if all(first.columns[column] == each.columns.get(column) for each in frames)
        ]
        if not common:
            return self.joined(*frames[:2])
        by_name = self.chance(0.5)
        parts = [each.keep(*(dice.sample(common, len(common)) if by_name else common)) for each in frames]
        return replace(
            parts[0],
            node=Union(tuple(each.node for each in parts), by_name),
            marked=any(each.marked for each in parts) and parts[0].marked,
            late=any(each.late for each in frames),
            sure=frozenset.intersection(*(each.sure for each in frames)),
            lag=next((each.lag for each in frames if each.lag), None),
        )

    def joined(self, left: Frame, right: Frame) -> Frame:
        dice = self.dice
        names = {column: self.name("j") for column in right.columns}
        other = right.select(
            {names[column]: (column, kind) for column, kind in right.columns.items()},
            operator="rename all",
            time=None if right.time is None else names[right.time],
        )
        equal = [(a, names[b]) for a in left.columns for b in right.columns if a == b and a in ("key", "id")]
        equal = (
            equal
            or [
                (a, names[b])
                for a, kind in left.columns.items()
                for b, other_kind in right.columns.items()
                if kind == other_kind and kind in ROUTABLE
            ][:1]
        )
        if not equal:
            return self.united([left, right]) if set(left.columns.items()) & set(right.columns.items()) else left
        pairs = [dice.choice(equal)] if self.chance(0.7) else equal
        conditions = [f"{a} = {b}" for a, b in pairs]
        how = dice.choice(self.bias.how)
        has_times = left.time is not None and other.time is not None
        bounded = has_times and (how != "inner" or self.chance(self.bias.bounded))
        lag: str | None = None
        if bounded:
            hours = dice.choice([0, 1, 3])
            conditions += [
                f"{other.time} >= {left.time} - INTERVAL {hours} HOURS",
                f"{other.time} <= {left.time} + INTERVAL {dice.choice([1, 2])} HOURS",
            ]
            lag = "8 h" if self.chance(self.bias.lagging) else None
        if how != "inner" and not (bounded and left.marked and right.marked):
            how = "inner"
        columns = dict(left.columns) if how == "leftsemi" else {**left.columns, **other.columns}
        sure = {"inner": left.sure | other.sure, "right": other.sure, "full": frozenset[str]()}.get(how, left.sure)
        made = Frame(
            Join(
                timed(left, *(a for a, _ in pairs if how == "full")) if how in ("left", "full") else left.node,
                timed(other) if how in ("right", "full") else other.node,
                " AND ".join(conditions),
                how,
            ),
            columns,
            time=left.time if how not in ("right", "full") else None,
            marked=left.marked and how not in ("right", "full"),
            lag=lag,
            late=True,
            sure=sure,
        )
        return made if how == "leftsemi" else self.filtered_after_join(made, left, other)

    def filtered_after_join(self, joined: Frame, left: Frame, right: Frame) -> Frame:
        """Sometimes with a filter that Spark's optimiser puts into the join's condition."""
        dice = Random(f"the filter after {joined.columns} of {self.seed}")  # its own, so that other draws stay the same
        if dice.random() > self.bias.after_join:
            return joined
        conditions = []
        if left.time is not None and right.time is not None:
            conditions += [f"{right.time} <= {left.time} + INTERVAL 30 MINUTES", f"{right.time} = {left.time}"]
        for one, kind in left.columns.items():
            others = [column for column, other_kind in right.columns.items() if other_kind == kind]
            if kind in ("string", "int") and others:
                other = dice.choice(others)
                conditions += [f"{one} = {other}", f"try_cast({one} AS int) = try_cast({other} AS int)"]
        if not conditions:
            return joined
        return joined.call("where after a join", f".where({dice.choice(conditions)!r})")

    # State.

    def with_state(self, frame: Frame, *, is_last: bool) -> tuple[Frame, str]:
        """One operator with state; the output mode that it wants."""
        makers: list[tuple[float, Callable[[Frame], Frame]]] = [(1, self.dropped_twice)]
        if frame.marked:
            makers += [
                (self.bias.windowed, self.windowed),
                (2, self.sessions),
                (2, self.dropped),
                (1.5, self.dropped_within),
            ]
            makers += [(self.bias.python, self.state_per_group), (self.bias.python, self.state_machine)]
        if is_last and not (isinstance(frame.node, Join) and frame.node.how != "inner"):
            makers.append((1.5, self.updated))
        maker = self.dice.choices([each for _, each in makers], weights=[weight for weight, _ in makers])[0]
        return maker(frame), "update" if maker == self.updated else "append"

    def keys(self, frame: Frame) -> list[str]:
        """Columns to group by, mostly the key."""
        dice = self.dice
        others = [column for column in frame.columns if column != frame.time]
        if not others:
            return []
        derived = [column for column in others if re.fullmatch(r"d\d+", column)]
        if self.bias.of_key and derived and self.chance(self.bias.of_key):
            return [dice.choice(derived)]
        if "key" in others and self.chance(self.bias.key):
            return ["key"] if self.chance(0.8) else list(dict.fromkeys(["key", dice.choice(others)]))
        return dice.sample(others, min(len(others), dice.choice([1, 1, 2])))

    def aggregates(self, frame: Frame) -> tuple[str, dict[str, str]]:
        """The arguments of `agg` and the columns that they make."""
        dice, made = self.dice, {}
        parts = []
        for _ in range(dice.choice([1, 2, 3])):
            column = dice.choice(list(frame.columns))
            kind, name = frame.columns[column], self.name("a")
            ways = [
                ("count(*)", "bigint"),
                (f"count({column})", "bigint"),
                (f"min({column})", kind),
                (f"max({column})", kind),
            ]
            ways += [(f"array_sort(collect_set({column}))", "other"), (f"size(collect_set({column}))", "int")]
            if kind in INTEGERS:
                ways += [(f"sum({column})", "bigint"), (f"avg(cast({column} % 100 AS int))", "double")]
            if kind == "double":
                ways += [(f"sum({column})", "double"), (f"avg({column})", "other")]
            if kind.startswith("decimal"):
                ways += [(f"sum({column})", "decimal(20,2)"), (f"avg({column})", "other")]
            if kind == "boolean":
                ways += [(f"bool_and({column})", "boolean"), (f"every({column})", "boolean")]
            text, into = dice.choice(ways)
            made[name] = into
            parts.append(f"F.expr({text + ' AS ' + name!r})")
        return ", ".join(parts), made

    def windowed(self, frame: Frame) -> Frame:
        dice = self.dice
        keys = self.keys(frame) if self.chance(0.93) else []
        length, slide = dice.choice(
            [("1 hour", None), ("1 day", None), ("2 hours", "30 minutes"), ("10 minutes", None)]
        )
        window = f"F.window({frame.time!r}, {length!r}" + (f", {slide!r})" if slide else ")")
        aggregates, made = self.aggregates(frame)
        time = self.name("t")
        grouped = ", ".join([window, *(repr(key) for key in keys)])
        selected = ", ".join(
            ["F.window_time('window').alias(" + repr(time) + ")", *(repr(name) for name in [*keys, *made])]
        )
        columns = {time: "timestamp", **{key: frame.columns[key] for key in keys}, **made}
        again = self.again("window", keys)
        if self.chance(0.2):
            selected = "F.col('window.end').alias(" + repr(time) + "), " + selected.partition(", ")[2]
            return frame.call(
                "window aggregation",
                f".groupBy({grouped}).agg({aggregates}){again}.select({selected})",
                columns=columns,
                time=time,
                marked=False,
                sure=frame.sure | {time},
            )
        return frame.call(
            "window aggregation",
            f".groupBy({grouped}).agg({aggregates}){again}.select({selected})",
            columns=columns,
            time=time,
            lag=None,
            sure=frame.sure | {time},
        )

    def sessions(self, frame: Frame) -> Frame:
        keys = self.keys(frame)
        if not keys:
            return self.windowed(frame)
        aggregates, made = self.aggregates(frame)
        time, began = self.name("t"), "began"
        if began in keys:  # of sessions before these
            began = self.name("began")
        gap = self.dice.choice(["5 minutes", "1 hour", "1 day"])
        grouped = ", ".join([f"F.session_window({frame.time!r}, {gap!r})", *(repr(key) for key in keys)])
        selected = ", ".join(
            [
                f"F.col('session_window.end').alias({time!r})",
                f"F.col('session_window.start').alias({began!r})",
                *(repr(name) for name in [*keys, *made]),
            ]
        )
        columns = {time: "timestamp", began: "timestamp", **{key: frame.columns[key] for key in keys}, **made}
        return frame.call(
            "session aggregation",
            f".groupBy({grouped}).agg({aggregates}){self.again('session_window', keys)}.select({selected})",
            columns=columns,
            time=time,
            marked=False,
            lag=None,
            sure=frame.sure | {time},
        )

    def again(self, window: str, keys: list[str]) -> str:
        """What takes each group of an aggregation once more, and so changes nothing."""
        dice = Random(f"the groups of {keys} again, of {self.seed}")  # its own, so that other draws stay the same
        if dice.random() >= self.bias.again:
            return ""
        names = [window, *keys] if dice.random() < 0.8 else [*keys, window]  # in another order Spark shuffles
        return f".dropDuplicates([{', '.join(map(repr, names))}])"

    def dropped(self, frame: Frame) -> Frame:
        """Distinct rows with their event time."""
        keys = list(dict.fromkeys([*self.keys(frame), str(frame.time)]))
        names = ", ".join(repr(key) for key in keys)
        columns = {key: frame.columns[key] for key in keys}
        code = f".select({names}).distinct()" if self.chance(0.5) else f".dropDuplicates([{names}]).select({names})"
        return frame.call("deduplication", code, columns=columns)

    def dropped_twice(self, frame: Frame) -> Frame:
        """Distinct rows without event time: the state grows forever."""
        keys = self.keys(frame)
        if not keys:
            return frame
        names = ", ".join(repr(key) for key in keys)
        columns = {key: frame.columns[key] for key in keys}
        code = f".select({names}).distinct()" if self.chance(0.5) else f".dropDuplicates([{names}]).select({names})"
        return frame.call("deduplication", code, columns=columns, time=None, marked=False, lag=None)

    def dropped_within(self, frame: Frame) -> Frame:
        """All copies lie within the delay: their key has the minute of their event time."""
        keys = self.keys(frame)
        bucket = self.name("b")
        names = ", ".join(repr(key) for key in [*keys, bucket])
        columns = {key: frame.columns[key] for key in keys} | {bucket: "timestamp"}
        minute = f".withColumn({bucket!r}, F.date_trunc('MINUTE', {frame.time!r}))"
        known = "" if frame.time in frame.sure else f".where('{frame.time} IS NOT NULL')"
        code = minute + f"{known}%s([{names}]).select({names})"
        node = Call(
            frame.node,
            "deduplication within the watermark",
            code % ".dropDuplicatesWithinWatermark",
            code % ".dropDuplicates",
        )
        return replace(frame, node=node, columns=columns, time=None, marked=False, lag=None)

    def state_per_group(self, frame: Frame) -> Frame:
        return self.counted_by_hour(frame, "applyInPandasWithState", stateful.COUNT_IN_PANDAS, stateful.BY_PANDAS)

    def state_machine(self, frame: Frame) -> Frame:
        if self.chance(0.5):
            return self.counted_by_hour(frame, "transformWithState", stateful.COUNT_ROWS, stateful.BY_ROWS)
        return self.counted_by_hour(
            frame, "transformWithStateInPandas", stateful.COUNT_PANDAS, stateful.BY_PANDAS_MACHINE
        )

    def counted_by_hour(self, frame: Frame, operator: str, define: str, call: str) -> Frame:
        """Rows per key and hour, emitted when the hour has passed. The key is text there."""
        column = next(
            (name for name in ("key", "id") if name in frame.columns and frame.columns[name] in ("string", *INTEGERS)),
            None,
        )
        column = column or next((name for name, kind in frame.columns.items() if kind in ("string", *INTEGERS)), None)
        if column is None:
            return self.dropped(frame)
        time, name = self.name("t"), self.name("g")
        prepared = (
            f".where('{frame.time} IS NOT NULL').selectExpr('cast({column} AS string) AS {name}', '{frame.time}', "
            f"'unix_seconds(date_trunc(\"HOUR\", {frame.time})) AS hour').groupBy({name!r}, 'hour')"
        )
        after = f".selectExpr({name!r}, 'n', 'timestamp_seconds(hour + 3599) AS {time}')"
        node = Call(
            frame.node,
            operator,
            prepared
            + call.format(schema="key string, hour bigint, n bigint")
            + after.replace(repr(name), f"'key AS {name}'"),
            prepared + ".agg(F.count('*').alias('n'))" + after,
            define,
        )
        lag = "4 h" if self.chance(self.bias.lagging) else None
        return replace(
            frame,
            node=node,
            columns={name: "string", "n": "bigint", time: "timestamp"},
            time=time,
            marked=False,
            lag=lag,
        )

    def updated(self, frame: Frame) -> Frame:
        """An aggregation whose rows come anew with each change."""
        keys = self.keys(frame) if self.chance(0.8) else []
        keys = [key for key in keys if frame.columns[key] not in ("double", "float")]
        aggregates, made = self.aggregates(frame)
        columns = {**{key: frame.columns[key] for key in keys}, **made}
        grouped = [repr(key) for key in keys]
        last_per = tuple(keys)
        if frame.marked and self.chance(0.4):
            grouped.append(f"F.window({frame.time!r}, '1 hour')")
            last_per += ("window",)
            columns["window"] = "struct"
        return frame.call(
            "aggregation in update mode",
            f".groupBy({', '.join(grouped)}).agg({aggregates})",
            columns=columns,
            time=None,
            marked=False,
            lag=None,
            last_per=last_per,
        )

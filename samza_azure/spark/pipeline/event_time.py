"""A stage's event time: its watermarks, its frontier, and whether an operator would drop rows in time.

Derived from the analysed plan and from the optimised one, which may have copies of event times. docs/event-time.md has
the rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.config.values import in_words
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.advice import Advice, declare_event_time, is_time
from samza_azure.spark.pipeline.bounds import Bounds, Input, Term, Unbounded, event_times, marked
from samza_azure.spark.pipeline.catalyst import (
    EVENT_TIME_MARK,
    Node,
    equalities,
    identity,
    in_sql,
    is_marked,
    is_window,
    kind_of,
    literal,
    named,
    text,
    without_alias,
)
from samza_azure.spark.pipeline.names import no_time
from samza_azure.spark.pipeline.operators import MAKING, STATEFUL, described, has_sessions, state_of

#: The remedy if an operator keeps rows for an unknown time before another one.
SPLIT = (
    "Bound the time in the operator before it, as a join does with BETWEEN; or move what comes before it into a "
    "separate stage, with event_time and frontier_lag on the stream between."
)
#: The remedy if a watermark is set behind one of them.
AHEAD = (
    "Put what comes up to this operator into a stage of its own, with event_time and frontier_lag on its output "
    "stream, and set the watermark in the next stage."
)
#: The remedy if a column is not an event time.
USE_MARKED = "Use the event time of an input, or window_time(window)."


@dataclass(frozen=True, slots=True)
class Output:
    """What the job file says about the stream that a stage writes."""

    stream: str
    event_time: str | None
    frontier_lag_s: float | None  # None: not declared


@dataclass(frozen=True, slots=True)
class Watermark:
    """One term of a stage's watermark: the frontier of an input, less the delay that late rows are granted.

    Spark drops a row whose time is the watermark itself, but a row at the frontier is not late. So the watermark of a
    stage that compares times with it stays a millisecond below. A window ends later than the times in it, but a session
    ends at the time of the last row that would extend it.
    """

    reads: int  # the input's number
    delay_ms: int
    below_ms: int = 0


def watermarks_of(
    stage: Stage, root: Node, optimised: Node, inputs: Sequence[Input], bounds: Bounds
) -> tuple[Watermark, ...]:
    """The stage's watermark is the minimum of these: one for each input of a stateful operator that has an event time.

    An input without a withWatermark counts too, so that its rows are not late because it is slower than the others.
    Its delay is the longest of the stage's delays, since that is what the operator grants its rows.
    """
    nodes = [node for node in root.walk() if node.kind == "EventTimeWatermark"]
    if not nodes:
        return ()
    found: dict[int, int] = {}
    for node in nodes:
        _check_watermark(stage, node, inputs, bounds)
        for leaf in node.leaves():
            assert leaf.reads is not None
            if inputs[leaf.reads].event_time is not None:
                found[leaf.reads] = max(_delay_ms(node), found.get(leaf.reads, 0))
    longest = max(found.values(), default=0)
    operators = [node for node in root.walk() if state_of(node)]
    for leaf in (leaf for operator in operators for leaf in operator.leaves()):
        assert leaf.reads is not None
        if inputs[leaf.reads].event_time is not None:
            found.setdefault(leaf.reads, longest)
    run = [node for node in optimised.walk() if state_of(node)]  # its operators may get copies of times
    below_ms = int(any(map(_compares_times, [*operators, *run])))
    return tuple(Watermark(reads, delay, below_ms) for reads, delay in sorted(found.items()))


def _compares_times(operator: Node) -> bool:
    """Whether it compares a time with the watermark, not only the end of a window; merges sessions; or has timers."""
    return (
        has_sessions(operator)
        or operator.kind.startswith("TransformWithState")
        or any(not is_window(child.column(each)) for child in operator.children for each in _times_of(operator, child))
    )


def _times_of(operator: Node, child: Node) -> list[int]:
    """The columns of a child by which an operator decides whether a row is late."""
    return _watched(operator, child) if operator.is_join_of_streams else event_times(operator, child)


def _check_watermark(stage: Stage, node: Node, inputs: Sequence[Input], bounds: Bounds) -> None:
    attribute = node.plan.eventTime()
    column = str(attribute.name())
    if is_marked(node.child.column(identity(attribute))):
        raise PipelineRefused(f"Stage {stage.name} sets two watermarks on column {column}. Keep one withWatermark.")
    if any(each.kind == "EventTimeWatermark" for each in node.child.walk()):
        raise PipelineRefused(
            f"Stage {stage.name} sets a watermark on column {column} after another withWatermark. Keep the first one, "
            "or move what follows it into a separate stage."
        )
    bound = bounds.of(node.child, identity(attribute))
    if isinstance(bound, Unbounded):
        known = " or ".join(f"{each.stream}.{each.event_time}" for each in inputs if each.event_time)
        remedy = bound.remedy
        if not remedy and any(each.kind in MAKING for each in node.child.walk()):
            remedy = AHEAD
        elif not remedy and known:
            remedy = f"Set it on the event time of an input ({known}), before any join or aggregation."
        elif not remedy:
            remedy = f"{declare_event_time(inputs)} Set the watermark on it, before any join or aggregation."
        raise PipelineRefused(f"Stage {stage.name} sets a watermark on column {column}, but {bound.reason}. {remedy}")
    earliest = min((term.shift_us for term in bound), default=0)
    if -earliest > _delay_ms(node) * 1000:
        raise PipelineRefused(
            f"Stage {stage.name} sets a watermark of {in_words(_delay_ms(node) / 1000)} on column {column}, but what "
            f"comes before it makes rows up to {in_words(-earliest / 1_000_000)} older than its inputs. Use "
            f'withWatermark({literal(in_sql(column))}, "{in_words(-(earliest // 1_000_000))}") or more.'
        )


def _delay_ms(node: Node) -> int:
    """The delay of a watermark, from the column's metadata."""
    attribute = node.column(identity(node.plan.eventTime()))
    return int(attribute.metadata().getLong(EVENT_TIME_MARK))


def check_on_time(
    stage: Stage,
    root: Node,
    optimised: Node,
    watermarks: Sequence[Watermark],
    bounds: Bounds,
    copies: frozenset[int],
) -> None:
    """Refuse an operator that would drop rows in time, because a watermark has already passed them."""
    delays = {each.reads: each.delay_ms * 1000 for each in watermarks}
    judged = set()
    for operator, below, wanted in _watching(root, lambda operator, child: [*_watched(operator, child), *copies]):
        judged.add((*_place(operator), wanted))
        if reason := _why_late(operator, below, wanted, delays, bounds):
            name = str(below.column(wanted).name())
            remedy = reason.remedy
            if wanted in copies:
                time = literal(f"{in_sql(name)} + INTERVAL 0 SECONDS")
                remedy = (
                    f"Spark's optimiser finds that {name} is an event time with a watermark. To be judged by none, "
                    f"compute it before the operator, .withColumn({literal(name)}, F.expr({time}))."
                )
            raise _drops(stage, operator, name, reason.reason, remedy)
    for operator, below, wanted in _watching(optimised, _times_of):
        if (*_place(operator), wanted) in judged:
            continue
        if reason := _why_late(operator, below, wanted, delays, bounds):
            remedy = reason.remedy
            if str(below.column(wanted).name()).startswith(("_extract_", "_groupingexpression")):
                remedy = (
                    "Spark's optimiser takes this event time, which has a watermark, out of a struct before the "
                    "operator. To be judged by none, put into the struct what is computed of it, such as the time + "
                    "INTERVAL 0 SECONDS."
                )
            raise _drops(stage, operator, _origin(below, wanted), reason.reason, remedy)


def _place(operator: Node) -> tuple[str, tuple[tuple[int | None, ...], ...]]:
    """What an operator has in both plans: its kind, and the inputs that are read on each side."""
    return operator.kind, tuple(tuple(leaf.reads for leaf in child.leaves()) for child in operator.children)


def _origin(node: Node, wanted: int) -> str:
    """What a column of the optimiser's own is made of, where its name does not say it."""
    name = str(node.column(wanted).name())
    if name == "_groupingexpression" and node.kind == "Project":
        name = text(without_alias(named(node.made, wanted)))
    return name.removeprefix("_extract_")


def _watching(root: Node, times_of: Callable[[Node, Node], Sequence[int]]) -> Iterator[tuple[Node, Node, int]]:
    """The operators of a plan that drop late rows, with the columns of their children by which they may do so."""
    for operator in root.walk():
        if state_of(operator) not in (None, STATEFUL["GlobalLimit"]):
            for child in operator.children:
                yield from ((operator, child, each) for each in times_of(operator, child) if each in child.ids)


def _why_late(operator: Node, below: Node, wanted: int, delays: Mapping[int, int], bounds: Bounds) -> Unbounded | None:
    """Why a row that is not late may be older in this column than the operator's watermark. None: it is not."""
    shift, bound = bounds.shift_us(operator), bounds.of(below, wanted)
    if shift is None:
        return None
    if isinstance(bound, Unbounded):
        return bound
    if any(term.shift_us < shift for term in bound if term.reads is None):
        return Unbounded("an operator before it emits rows later than its watermark allows for")
    if any(term.shift_us < shift - delays.get(term.reads, 0) for term in bound if term.reads is not None):
        return Unbounded("its rows may be older than the input's event time by more than the withWatermark says")
    return None


def _drops(stage: Stage, operator: Node, column: str, reason: str, remedy: str) -> PipelineRefused:
    return PipelineRefused(
        f"Stage {stage.name}: the {described(operator)} would drop rows that are not late, judged by column {column}: "
        f"{reason}. {remedy or SPLIT}"
    )


def check_timers(stage: Stage, operators: Sequence[Node], bounds: Bounds, advice: Advice) -> None:
    """Spark demands a watermark for the timeouts of applyInPandasWithState, but not for the timers of its successor."""
    for operator in operators:
        has_timers = operator.kind.startswith("TransformWithState") and "EventTime" in str(operator.plan.timeMode())
        if has_timers and bounds.shift_us(operator) is None:
            raise PipelineRefused(
                f"Stage {stage.name}: no watermark reaches the {described(operator)}, so its timers would never fire, "
                f'not even in a drain. {advice.timed(operator.child)} Or, if it has no timers, use timeMode "None".'
            )


def check_one_event_time(stage: Stage, operator: Node) -> None:
    """Spark uses one column to decide whether a row is late. If there are two, the query fails at its start."""
    for child in operator.children:
        times = event_times(operator, child)
        if len(times) > 1:
            names = " and ".join(str(child.column(wanted).name()) for wanted in times)
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(operator)} gets {names}, all with a watermark, so its event time "
                "is ambiguous. Drop all but one of them before it."
            )


def copies_of(stage: Stage, root: Node, optimised: Node) -> frozenset[int]:
    """The columns that the optimiser finds to be the event time itself, as a cast to its own type. So they are event
    times as well. Refuse an operator that gets several event times by them."""
    known, found = {wanted for node in root.walk() for wanted in marked(node)}, set[int]()
    for operator in optimised.walk():
        for child in operator.children if state_of(operator) and operator.kind != "GlobalLimit" else ():
            times = event_times(operator, child)
            copies = [wanted for wanted in times if wanted not in known]
            if copies and len(times) > 1 and operator.kind == "Aggregate":
                raise PipelineRefused(
                    f"Stage {stage.name}: Spark's optimiser finds that two keys of the {described(operator)} are event "
                    "times, and the query would fail. Group by one of them, and by the other as a text, "
                    '.cast("string").'
                )
            if copies and len(times) > 1:
                copy = str(child.column(copies[0]).name())
                time = next(str(child.column(wanted).name()) for wanted in times if wanted != copies[0])
                as_computed = literal(f"{in_sql(time)} + INTERVAL 0 SECONDS")
                raise PipelineRefused(
                    f"Stage {stage.name}: Spark's optimiser finds that {copy} is the event time {time} itself, and the "
                    f"query would fail since the {described(operator)} gets two event times. Drop one of them before "
                    f"it; or compute the copy, .withColumn({literal(copy)}, F.expr({as_computed}))."
                )
            found.update(copies)
    return frozenset(found)


def _watched(operator: Node, below: Node) -> list[int]:
    """The columns by which an operator decides whether a row is late: those that Spark has marked.

    In a join by event time, the key on one side is a time because the key on the other side is marked.
    """
    found = marked(below)
    if operator.is_join_of_streams:
        side = operator.children.index(below)
        for pair in _compared_columns(operator):
            own, other = pair[side], pair[1 - side]
            if is_marked(other) and identity(own) not in found:
                found.append(identity(own))
    return [wanted for wanted in found if wanted in below.ids]


def _compared_columns(join: Node) -> list[tuple[Any, Any]]:
    return [pair for pair in equalities(join) if all(kind_of(each) == "AttributeReference" for each in pair)]


def frontier_of(
    stage: Stage,
    frame: DataFrame,
    root: Node,
    inputs: Sequence[Input],
    output: Output,
    bounds: Bounds,
    watermarks: Sequence[Watermark],
    operators: Sequence[Node],
) -> tuple[Term, ...]:
    """The frontier of the stage's records is the minimum of these. It must hold for the output's event time."""
    if output.event_time is None:
        return ()
    column = next((each for each in root.output if str(each.name()) == output.event_time), None)
    if column is None:
        raise PipelineRefused(
            f"streams.{output.stream}.event_time is {output.event_time!r}, but stage {stage.name} writes the columns "
            f"{', '.join(frame.columns)}. Name one of them."
        )
    remedy = f"Make it one: to_timestamp({output.event_time})"
    check_event_time(frame.schema, output.event_time, output.stream, remedy)
    bound = bounds.of(root, identity(column))
    if not isinstance(bound, Unbounded):
        return tuple(sorted(bound, key=lambda term: (term.reads is None, term.reads or 0, term.shift_us)))
    if output.frontier_lag_s is None:
        raise PipelineRefused(
            f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but how old its "
            f"later rows can be is unknown: {bound.reason}. {bound.remedy or USE_MARKED} Or declare under "
            f"[streams.{output.stream}] how far rows can lag behind the inputs: "
            f'frontier_lag = "1 hour".'
        )
    held = {each.reads for each in watermarks}  # these hold the watermark back
    known = [Term(number) for number, each in enumerate(inputs) if each.event_time is not None and number not in held]
    if operators and watermarks:
        return (*known, Term(None))
    known += [Term(number) for number in sorted(held)]
    if not known:
        raise PipelineRefused(
            f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but none of its "
            f"inputs has an event time, so it would never advance. {declare_event_time(inputs)}"
        )
    return tuple(known)


def check_event_time(schema: StructType, column: str, stream: str, remedy: str) -> None:
    """Refuse an event time that is not of a time type."""
    kind = schema[column].dataType
    if not is_time(kind):
        raise PipelineRefused(no_time(stream, column, kind.simpleString(), remedy))

"""A stage's event time: its watermarks, its frontier, and by which columns an operator finds rows late.

Derived from the analysed plan and from the optimised one, which may have copies of event times. docs/event-time.md has
the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from samza_azure.pipeline.analysed import Term, Watermark
from samza_azure.spark.jvm.catalyst import (
    EVENT_TIME_MARK,
    Node,
    equalities,
    identity,
    is_marked,
    is_window,
    kind_of,
)
from samza_azure.spark.pipeline.bounds import Bound, Input, Unbounded, event_times, marked
from samza_azure.spark.pipeline.operators import has_sessions, state_of

#: An operator of the optimised plan, a child of it, and columns of the child that are copies of an event time.
Copy: TypeAlias = tuple[Node, Node, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Output:
    """What the job file says about the stream that a stage writes."""

    stream: str
    event_time: str | None
    frontier_lag_s: float | None  # None: not declared


def watermarks_of(root: Node, optimised: Node, inputs: Sequence[Input]) -> tuple[Watermark, ...]:
    """The stage's watermark is the minimum of these: one for each input of a stateful operator that has an event time.

    An input without a withWatermark counts too, so that its rows are not late because it is slower than the others.
    Its delay is the longest of the stage's delays, since that is what the operator grants its rows.
    """
    nodes = [node for node in root.walk() if node.kind == "EventTimeWatermark"]
    if not nodes:
        return ()
    found: dict[int, int] = {}
    for node in nodes:
        for leaf in node.leaves():
            assert leaf.reads is not None
            if inputs[leaf.reads].event_time is not None:
                found[leaf.reads] = max(delay_ms(node), found.get(leaf.reads, 0))
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
        or any(not is_window(child.column(each)) for child in operator.children for each in times_of(operator, child))
    )


def times_of(operator: Node, child: Node) -> list[int]:
    """The columns of a child by which an operator decides whether a row is late."""
    return watched(operator, child) if operator.is_join_of_streams else event_times(operator, child)


def delay_ms(node: Node) -> int:
    """The delay of a watermark, from the column's metadata."""
    attribute = node.column(identity(node.plan.eventTime()))
    return int(attribute.metadata().getLong(EVENT_TIME_MARK))


def watched(operator: Node, below: Node) -> list[int]:
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


def copies_of(root: Node, optimised: Node) -> list[Copy]:
    """The columns that the optimiser finds to be the event time itself, as a cast to its own type. So they are event
    times as well."""
    known, found = {wanted for node in root.walk() for wanted in marked(node)}, list[Copy]()
    for operator in optimised.walk():
        for child in operator.children if state_of(operator) and operator.kind != "GlobalLimit" else ():
            if copies := [wanted for wanted in event_times(operator, child) if wanted not in known]:
                found.append((operator, child, copies))
    return found


def frontier_of(
    bound: Bound, inputs: Sequence[Input], watermarks: Sequence[Watermark], operators: Sequence[Node]
) -> tuple[Term, ...]:
    """The frontier of records whose event time has this bound, as the minimum of terms. If there is no bound, that of
    the rows that a task has still to write."""
    if not isinstance(bound, Unbounded):
        return tuple(sorted(bound, key=lambda term: (term.reads is None, term.reads or 0, term.shift_us)))
    held = {each.reads for each in watermarks}  # these hold the watermark back
    known = [Term(number) for number, each in enumerate(inputs) if each.event_time is not None and number not in held]
    if operators and watermarks:
        return (*known, Term(None))
    return (*known, *(Term(number) for number in sorted(held)))

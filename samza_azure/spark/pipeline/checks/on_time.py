"""No operator drops rows that are not late."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from samza_azure.spark.jvm.catalyst import Node, in_sql, literal, text
from samza_azure.spark.pipeline.bounds import Bounds, Unbounded
from samza_azure.spark.pipeline.event_time import times_of, watched
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import STATEFUL, described, state_of
from samza_azure.spark.pipeline.refusals import Refusal

#: The remedy if an operator keeps rows for an unknown time before another one.
SPLIT = (
    "Bound the time in the operator before it, as a join does with BETWEEN; or move what comes before it into a "
    "separate stage, with event_time and frontier_lag on the stream between."
)


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse an operator whose watermark has already passed rows that it gets in time."""
    delays = {each.reads: each.delay_ms * 1000 for each in facts.watermarks}
    copies = {each for _, _, columns in facts.copies for each in columns}
    judged = set()
    for operator, below, wanted in _watching(facts.root, lambda node, child: [*watched(node, child), *copies]):
        judged.add((*_place(operator), wanted))
        if reason := _why_late(operator, below, wanted, delays, facts.bounds):
            name = str(below.column(wanted).name())
            remedy = reason.remedy
            if wanted in copies:
                time = literal(f"{in_sql(name)} + INTERVAL 0 SECONDS")
                remedy = (
                    f"Spark's optimiser finds that {name} is an event time with a watermark. To be judged by none, "
                    f"compute it before the operator, .withColumn({literal(name)}, F.expr({time}))."
                )
            yield facts.refused(operator, _drops(operator, name, reason.reason, remedy))
    for operator, below, wanted in _watching(facts.optimised, times_of):
        if (*_place(operator), wanted) in judged:
            continue
        if reason := _why_late(operator, below, wanted, delays, facts.bounds):
            remedy = reason.remedy
            if str(below.column(wanted).name()).startswith(("_extract_", "_groupingexpression")):
                remedy = (
                    "Spark's optimiser takes this event time, which has a watermark, out of a struct before the "
                    "operator. To be judged by none, put into the struct what is computed of it, such as the time + "
                    "INTERVAL 0 SECONDS."
                )
            yield facts.refused(operator, _drops(operator, _origin(below, wanted), reason.reason, remedy))


def _place(operator: Node) -> tuple[str, tuple[tuple[int | None, ...], ...]]:
    """What an operator has in both plans: its kind, and the inputs that are read on each side."""
    return operator.kind, tuple(tuple(leaf.reads for leaf in child.leaves()) for child in operator.children)


def _origin(node: Node, wanted: int) -> str:
    """What a column of the optimiser's own is made of, where its name does not say it."""
    name = str(node.column(wanted).name())
    if name == "_groupingexpression" and node.kind == "Project":
        name = text(node.maker(wanted))
    return name.removeprefix("_extract_")


def _watching(root: Node, times: Callable[[Node, Node], Sequence[int]]) -> Iterator[tuple[Node, Node, int]]:
    """The operators of a plan that drop late rows, with the columns of their children by which they may do so."""
    for operator in root.walk():
        if state_of(operator) not in (None, STATEFUL["GlobalLimit"]):
            for child in operator.children:
                yield from ((operator, child, each) for each in times(operator, child) if each in child.ids)


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


def _drops(operator: Node, column: str, reason: str, remedy: str) -> str:
    return (
        f"the {described(operator)} would drop rows that are not late, judged by column {column}: {reason}. "
        f"{remedy or SPLIT}"
    )

"""Mistakes that the analysis of a stage could make, each one rule less, as the fuzzer must notice them.

A mutant is noticed by a case whose rows are wrong with it, and equal or refused without it. `seed` draws such a case,
with the mutant's own bias; `python tests/prove/pipelines.py --mutants` looks for others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from samza_azure.pipeline.analysed import Term, Watermark
from samza_azure.spark.jvm.catalyst import Node, references
from samza_azure.spark.pipeline import event_time, facts, placement
from samza_azure.spark.pipeline.bounds import Bound, Bounds, Input
from samza_azure.spark.pipeline.checks import frontier, joins, on_time
from samza_azure.spark.pipeline.placement import Placement, Route
from samza_azure.spark.pipeline.refusals import Refusal

from .draw import Bias, draw
from .run import Bench, Outcome


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    seed: int
    bias: Bias
    patches: tuple[tuple[Any, str, Callable[..., Any]], ...]

    @contextmanager
    def made(self) -> Iterator[None]:
        """The analysis makes it meanwhile, in all threads: `Bench` analyses one pipeline at a time."""
        with ExitStack() as stack:
            for owner, attribute, instead in self.patches:
                stack.enter_context(patch.object(owner, attribute, instead))
            yield


def is_unlike(ready: Bench, mutant: Mutant, seed: int) -> bool:
    """Whether the mutant accepts this case, and derives something else of it than the analysis does."""
    case = draw(seed, mutant.bias)
    found = ready.analysis(case, mutant.made)
    return found is not None and found != ready.analysis(case)


def mistaken(ready: Bench, mutant: Mutant, seed: int) -> Outcome:
    """The case of a seed, run while the mistake is made."""
    return ready.run(draw(seed, mutant.bias), mutant.made)


def is_killed(outcome: Outcome) -> bool:
    """Whether this is what a mistake of the analysis looks like; a query that fails may have other reasons."""
    return outcome.verdict == "wrong" and outcome.reason.startswith("rows differ")


# Placement.


def _no_route(*_: Any) -> Placement:
    return Placement({}, ())


def _is_held_by_any_side(_: str, expression: Any, left: Any, right: Any) -> bool:
    return bool(expression.semanticEquals(left) or expression.semanticEquals(right))


def _is_made_of(expression: Any, column: Any) -> bool:
    return bool(references(expression) == references(column))


_decided = placement._decided


def _decided_by_two_hashes(*arguments: Any) -> dict[Node, Route | None]:
    """Spark's own hash for what is routed to where the others stay."""
    decided = _decided(*arguments)
    if None not in decided.values():
        return decided
    return {leaf: None if route is None else replace(route, like_keys=False) for leaf, route in decided.items()}


# Bounds.

_of = Bounds.of
_joined = Bounds._joined


def _of_its_own_side(self: Bounds, node: Node, wanted: int) -> Bound:
    left, right = node.children
    return self.arriving(node, left if wanted in left.ids else right, wanted)


# Event time.

_watermarks = event_time.watermarks_of
_frontier = event_time.frontier_of


def _watermarks_of_the_marked(root: Node, *others: Any) -> tuple[Watermark, ...]:
    under = {leaf.reads for node in root.walk() if node.kind == "EventTimeWatermark" for leaf in node.leaves()}
    return tuple(each for each in _watermarks(root, *others) if each.reads in under)


def _no_check(_: facts.Facts) -> tuple[Refusal, ...]:
    return ()


def _frontier_of_the_inputs(bound: Bound, inputs: Sequence[Input], *others: Any) -> tuple[Term, ...]:
    """A watermark counts like the progress of the inputs."""
    found = _frontier(bound, inputs, *others)
    if all(term.reads is not None for term in found):
        return found
    return tuple(Term(number) for number, each in enumerate(inputs) if each.event_time is not None)


#: What a mistake of the analysis needs is rows; few tasks that stay where they are make a case quick.
QUICK = Bias(partitions=(2,), rows=(25, 50), moves=0.0, python=0.1)
JOINS = replace(
    QUICK,
    inputs=(2,),
    united=0.05,
    how=("inner",),
    bounded=0.1,
    laggard=1.0,
    laggards=1,
    marked=1.0,
    lagging=0.1,
    windowed=50.0,
    key=0.9,
    rows=(50,),
    steps=(3600,),
)
UNIONS = replace(QUICK, inputs=(2,), united=0.95, laggard=0.95, states=(1,), windowed=50.0)
ALONE = replace(QUICK, inputs=(1,), stages=(1, 0, 0))
MUTANTS = (
    Mutant("keys are not compared", 3, replace(ALONE, keyed=0.1, states=(1,)), ((facts, "place_stage", _no_route),)),
    Mutant(
        "a key passes through an outer join",
        32,
        replace(
            QUICK, inputs=(2,), united=0.05, how=("right", "left", "full"), marked=1.0, stages=(1, 0, 0), states=(1,)
        ),
        ((placement, "_is_held_by", _is_held_by_any_side),),
    ),
    Mutant(
        "what is made of a key counts as the key",
        4,
        replace(ALONE, keyed=1.0, prepared=(1, 2), states=(1,), of_key=0.8),
        ((placement, "_is_column", _is_made_of),),
    ),
    Mutant(
        "one operator's key suits all",
        6,
        replace(ALONE, states=(2,), key=0.2),
        ((placement, "_suits", lambda *_: True),),
    ),
    Mutant(
        "two hashes in one stage",
        4,
        replace(QUICK, inputs=(2,), states=(1,), stages=(1, 0, 0)),
        ((placement, "_decided", _decided_by_two_hashes),),
    ),
    Mutant(
        "a join has the bound of its input",
        4,
        replace(JOINS, stages=(1, 0, 0), states=(1,)),
        ((Bounds, "_joined", _of_its_own_side),),
    ),
    Mutant(
        "an input without withWatermark does not count",
        1,
        replace(UNIONS, marked=0.5, stages=(1, 0, 0), rows=(50,), steps=(3600,), key=0.9),
        ((facts, "watermarks_of", _watermarks_of_the_marked),),
    ),
    Mutant(
        "late rows before an operator are not looked for",
        4,
        replace(JOINS, stages=(1, 0, 0), states=(1,)),
        ((on_time, "check", _no_check),),
    ),
    Mutant(
        "the frontier is that of the inputs",
        1,
        replace(
            ALONE,
            stages=(0, 1, 0),
            early_states=(1,),
            states=(1,),
            windowed=50.0,
            rows=(50,),
            steps=(3600,),
        ),
        ((facts, "frontier_of", _frontier_of_the_inputs),),
    ),
    Mutant(
        "a column without a bound has that of the watermark",
        6,
        replace(JOINS, stages=(0, 1, 0), early_states=(0,), states=(1,)),
        ((frontier, "check", _no_check),),
    ),
    Mutant(
        "a filter after a join is no part of its condition",
        17,
        replace(JOINS, stages=(1, 0, 0), states=(0,), after_join=1.0, early_states=(0,)),
        ((joins, "check", _no_check),),
    ),
    Mutant(
        "a row at the frontier is late",
        3,
        replace(ALONE, delays=1, steps=(0, 30), rows=(50,), states=(1,), windowed=0.5, marked=1.0),
        ((event_time, "_compares_times", lambda _: False),),
    ),
)

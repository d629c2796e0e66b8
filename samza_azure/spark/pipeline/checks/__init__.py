"""What a stage may be refused for: one file for each question, asked of the facts before the stage runs.

A check is a module with a function `check`, from facts to refusals. A refusal says what is wrong and what to write
instead. To add one, write its file, its line in `CHECKS`, and its test in `tests/spark/test_refused_stages.py`.
Promised: all checks are asked, and all that they refuse is told at once. An accepted stage emits what one Spark batch
over the same rows would, on any number of tasks.
Not promised: that a Python function that is declared deterministic is.
Start reading at `limits`, which is short, then `complete`.
"""

from collections.abc import Iterable
from typing import Protocol

from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.checks import (
    again,
    changes,
    columns,
    complete,
    event_times,
    frontier,
    functions,
    inputs,
    join_keys,
    joins,
    keys,
    kinds,
    limits,
    null_keys,
    on_time,
    row_formats,
    sessions,
    tables,
    tasks,
    timers,
    watermarks,
)
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal, Refusals


class Check(Protocol):
    """A module with this function."""

    def check(self, facts: Facts, /) -> Iterable[Refusal]:
        """What is wrong with a stage. It may also raise the one thing that is."""


#: In this order. Of an operator as a whole, only the first refusal is told: its remedy replaces the operator.
CHECKS: tuple[Check, ...] = (
    inputs,
    event_times,
    complete,
    changes,
    null_keys,
    kinds,
    functions,
    tables,
    join_keys,
    keys,
    limits,
    columns,
    row_formats,
    sessions,
    watermarks,
    joins,
    timers,
    on_time,
    tasks,
    frontier,
    again,
)
#: Whether each operator is known, so that it can be traced by `tasks` from which rows it gets its keys.
KNOWING: tuple[Check, ...] = (kinds, functions, tables, join_keys, keys, limits)
#: What is asked only where nothing is refused: rows may be late because of that.
LAST: tuple[Check, ...] = (on_time, frontier)


def examine(facts: Facts, refusals: Refusals) -> None:
    """Ask all checks, and add what they refuse."""
    is_known = True
    for check in CHECKS:
        if (check is tasks and not is_known) or (check in LAST and refusals):
            continue
        before = len(refusals)
        try:
            for refusal in check.check(facts):
                refusals.add(refusal)
        except PipelineRefused as error:
            refusals.raised(error)
        except Exception:  # a check relies on those before it: behind a refusal this follows from it
            if not refusals:
                raise
        is_known = is_known and (check not in KNOWING or len(refusals) == before)

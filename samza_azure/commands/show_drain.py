"""A drain for the terminal: the steps that each stage and each task have reached, in place or as lines."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TextIO

from rich.console import Group
from rich.live import Live

from samza_azure.commands.show import add_row, drain_in_words, folded, last_batch, plain_table
from samza_azure.commands.terminal import console, printable
from samza_azure.messages import DrainPhase

#: The least width, in characters, at which each step of a drain has a column.
WIDE = 130
_STEPS = [str(phase) for phase in DrainPhase]


class DrainDisplay:
    """Shows each task's drain phase: in place on a terminal, else a line per change and, now and then, per stage.

    A run with more than `MANY` tasks has lines per stage only.
    """

    EVERY_S = 5.0
    MANY = 50

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_at = clock, clock()
        self._console = console(stream)
        is_drawn = stream.isatty() and not self._console.is_dumb_terminal  # CI may force colours upon a file
        self._live = Live(console=self._console, auto_refresh=False) if is_drawn else None
        self._seen: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line. A closed pipe or a full disk does not end the process."""
        with suppress(OSError):
            if self._live is None:
                print(printable(text), file=self._console.file, flush=True)
            else:
                self._console.print(folded(text))

    def update(self, shown: dict[str, Any], left: Mapping[str, int], seconds: float | None = None) -> None:
        """Show the document's tasks, with the rows that they still have to read, where known.

        `seconds` is the estimated time for all these rows.
        """
        if self._live is not None:
            width, height = self._console.size
            self._live.update(drain_table(shown, left, seconds, width=width, height=height), refresh=True)
            return
        about = f" (all in about {seconds:.0f} s)" if seconds is not None else ""
        for task in shown["tasks"] if len(shown["tasks"]) <= self.MANY else ():
            name = task["name"]
            if self._seen.get(name) != task["phase"]:
                self._seen[name], self._said_at = task["phase"], self._clock()
                self.say(f"{name} {task['phase']}{_to_do([task], left, about)}")
        if self._clock() >= self._said_at + self.EVERY_S:
            self._said_at = self._clock()
            for line in stage_lines(shown, left, about):
                self.say(line)


def _to_do(tasks: Iterable[dict[str, Any]], left: Mapping[str, int], about: str) -> str:
    """The rows that these tasks have to read, and those in their state, whose windows have to fire."""
    flushing = [task for task in tasks if not _is_done(task)]
    rows, state = sum(left.get(task["name"], 0) for task in flushing), sum(_state_rows(task) or 0 for task in flushing)
    return (f", {rows} rows to read{about}" if rows else "") + (f", {state} rows of state" if state else "")


def _state_rows(task: dict[str, Any]) -> int | None:
    return (task["last_batch"] or {}).get("state_rows")


def _by_stage(shown: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    stages: dict[str, list[dict[str, Any]]] = {}
    for task in shown["tasks"]:
        stages.setdefault(task["stage"], []).append(task)
    return stages


def _is_done(task: dict[str, Any]) -> bool:
    return task["phase"] in (DrainPhase.COMMITTED, DrainPhase.DRAINED)


def _in_each_phase(tasks: Iterable[dict[str, Any]]) -> str:
    """How many tasks are in each phase: "1 COMMITTED, 3 FLUSHING"."""
    return ", ".join(f"{number} {phase}" for phase, number in Counter(task["phase"] for task in tasks).items())


def stage_lines(shown: dict[str, Any], left: Mapping[str, int], about: str = "") -> list[str]:
    """A line for each stage that is not done: how many tasks are in each phase, and how many rows they have to read."""
    lines = []
    for stage, tasks in _by_stage(shown).items():
        if not all(_is_done(task) for task in tasks):
            lines.append(f"{stage}: {_in_each_phase(tasks)}{_to_do(tasks, left, about)}")
    return lines


def drain_table(
    shown: dict[str, Any],
    left: Mapping[str, int],
    seconds: float | None = None,
    *,
    width: int = WIDE,
    height: int | None = None,
) -> Group:
    """A line for each stage with the number of its tasks that have reached each step, and below it its tasks.

    Below `WIDE` characters there is a column for the phase instead of one for each step. Of more tasks than fit into
    `height` lines the unfinished ones come first, and what is left out is counted.
    """
    is_wide, stages = width >= WIDE, _by_stage(shown)
    heads = (*_STEPS, "batch", "rows to read", "rows of state") if is_wide else ("phase", "to read", "state")
    table = plain_table("stage, task", "on", *heads)
    for column in table.columns:  # a line each: what does not fit is cut there, not at the bottom of the screen
        column.no_wrap, column.overflow = True, "ellipsis"
    caption = ""
    if shown["drain"]:
        about = f"; all rows are read in about {seconds:.0f} s" if seconds is not None else ""
        caption = drain_in_words(shown["drain"]) + about
    listed = {task["name"] for task in shown["tasks"]}
    room = (height or 1 << 30) - 1 - len(stages) - (len(caption) // max(width - 20, 1) + 2)
    if room < len(listed):
        unfinished_first = sorted(shown["tasks"], key=_is_done)
        listed = {task["name"] for task in unfinished_first[: max(room - len(stages), 0)]}
    for stage, tasks in stages.items():
        counts = [f"{sum(_reached(task) >= step for task in tasks)} of {len(tasks)}" for step in range(len(_STEPS))]
        steps = [*counts, ""] if is_wide else [_in_each_phase(tasks)]
        add_row(table, stage, "", *steps, *_counts(tasks, left), style="bold")
        for task in tasks:
            if task["name"] in listed:
                dots = ["●" if step <= _reached(task) else "·" for step in range(len(_STEPS))]
                steps = [*dots, last_batch(task)] if is_wide else [task["phase"]]
                add_row(table, f"  {task['name']}", task["owner"] or "-", *steps, *_counts([task], left))
        if more := sum(task["name"] not in listed for task in tasks):
            add_row(table, f"  and {more} more", style="dim")
    return Group(folded(caption), table)


def _counts(tasks: Sequence[dict[str, Any]], left: Mapping[str, int]) -> tuple[str, str]:
    """The rows to read and the rows of state of these tasks; empty if no task has reported any."""
    rows = [left[task["name"]] for task in tasks if task["name"] in left]
    state = [count for task in tasks if not _is_done(task) and (count := _state_rows(task)) is not None]
    return f"{sum(rows):,}" if rows else "", f"{sum(state):,}" if state else ""


def _reached(task: dict[str, Any]) -> int:
    """The index of a task's phase in the steps; -1 if it is not one of them."""
    return _STEPS.index(task["phase"]) if task["phase"] in _STEPS else -1

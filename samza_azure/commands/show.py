"""The status document for the terminal: a table of processors and one of tasks, or a drain's steps."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samza_azure.commands.terminal import LAST_MS, clock, console, error_lines, printable
from samza_azure.messages import DrainPhase

#: How many events are shown.
LAST_EVENTS = 8
_STEPS = [str(phase) for phase in DrainPhase]


def status_view(shown: dict[str, Any]) -> Group:
    """The whole status, for a terminal."""
    head = _text(f"{shown['app']}  run {shown['run_id'] or '-'}  {shown['phase']}", style="bold")
    detail = _text(
        f"epoch {shown['epoch']}, version {shown['version']}, leader {shown['leader'] or 'none'}, "
        f"barrier {shown['barrier']['state']} {shown['barrier']['version']}"
    )
    parts: list[Any] = [head, detail, _processors(shown), _tasks(shown)]
    if shown.get("behind"):
        parts.append(_behind(shown["behind"]))
    if shown["phase"] == "STARTING":
        parts.insert(2, _text(f"starting Spark on {len(shown['processors'])} processors"))
    if shown["drain"]:
        parts.insert(2, _text(drain_in_words(shown["drain"])))
    if shown["stop"] and shown["phase"] != "STOPPED":
        parts.insert(2, _text("stopping: all processors commit and leave"))
    parts += [_text(drain_in_words(each), style="dim") for each in reversed(shown["drains"])]
    for task in shown["tasks"]:
        if task["why"]:
            parts.append(_text(f"{task['name']} does not run: {task['why']}", style="yellow"))
        if task["error"]:
            parts.append(_text(f"{task['name']}: {error_lines(task['error']['message'])}", style="red"))
        if by := task["given_up"]:
            gave_up = f"{task['name']}: {by['processor']} gave it up: {error_lines(by['message'])}"
            parts.append(_text(gave_up, style="red"))
    parts += [
        _text(f"{count} blobs of the drained run {run_id} cannot be deleted; they are tried again", style="yellow")
        for run_id, count in shown["kept"].items()
    ]
    parts += [
        _text(
            f"{row['id']} stands by: format {row['too_old_for']} is in use, which its samza-azure does not know. "
            "Start a later release there.",
            style="yellow",
        )
        for row in shown["processors"]
        if row["too_old_for"]
    ]
    for row in shown["processors"]:
        if failure := row["failure"]:
            why = f"{row['id']} ended with exit code {failure['exit_code']}: {error_lines(failure['message'])}"
            parts.append(_text(why, style="red"))
    for event in shown["events"][-LAST_EVENTS:]:
        parts.append(_text(f"{_time(event['at_ms'])} {event['kind']}: {error_lines(event['text'])}", style="dim"))
    if failure := shown["failure"]:
        parts.append(_text(f"failed: {failure['task']}: {error_lines(failure['message'])}", style="red"))
    return Group(*parts)


def _text(text: str, style: str = "") -> Text:
    """A text with parts that are not ours: without markup and escapes, folded at the edge."""
    return Text(printable(text), style=style, overflow="fold")


def _processors(shown: dict[str, Any]) -> Table:
    table = _table("processor", "state", "tasks")
    for row in shown["processors"]:
        lead = " (leads)" if row["id"] == shown["leader"] else ""
        _add(table, row["id"] + lead, row["state"], ", ".join(row["tasks"]) or "-")
    return table


def _tasks(shown: dict[str, Any]) -> Table:
    table = _table("task", "owner", "phase", "batch", "rows/s", "watermark", "late")
    for task in shown["tasks"]:
        batch = "-" if task["batch"] is None else str(task["batch"])
        done = task["progress"] or {}
        pace = f"{done['pace']:.0f}" if done else "-"
        _add(table, task["name"], task["owner"] or "-", task["phase"], batch, pace, _watermark(done), str(task["late"]))
    return table


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(min(at_ms, LAST_MS) / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _watermark(progress: dict[str, Any]) -> str:
    """The watermark as a time, and how long ago that is."""
    at_ms = progress.get("watermark_ms")
    if at_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "the end of time"  # a drain has fired everything
    ago = timedelta(seconds=round(time.time() - at_ms / 1000))
    return f"{at:%Y-%m-%d %H:%M:%S} ({ago} behind)" if ago > timedelta(0) else f"{at:%Y-%m-%d %H:%M:%S}"


#: What each step of a drain completes.
_TOOK = {"FREEZE": "taken up", "FLUSH": "sources stopped", "DRAINED": "flushed"}


def drain_in_words(drain: dict[str, Any]) -> str:
    """The step of a drain, who asked for it, when, and how long each phase took, as one line."""
    asked = f", asked by {drain['asked_by']}" if drain["asked_by"] else ""
    at = f" at {clock(drain['asked_ms'])}" if drain["asked_ms"] else ""
    before, phases = drain["asked_ms"], []
    for step, reached_at in zip(drain["history"], drain["at_ms"], strict=False):
        if before and reached_at and step in _TOOK:
            phases.append(f"{_TOOK[step]} after {max(reached_at - before, 0) / 1000:.1f} s")
        before = reached_at
    return f"drain {drain['step']} of run {drain['run_id']}{asked}{at}{''.join(f', {each}' for each in phases)}"


def _behind(found: dict[str, Any]) -> Table:
    table = _table("source", "rows behind", "MiB behind")
    for partition, each in found.items():
        rows = f"{each['rows']}" if each["is_all"] else f"more than {each['rows']}"
        _add(table, partition, rows, f"{each['size'] / (1 << 20):.1f}")
    return table


def _table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def _add(table: Table, *cells: str, style: str = "") -> None:
    table.add_row(*(_text(cell) for cell in cells), style=style or None)


class DrainDisplay:
    """Shows each task's drain phase: in place on a terminal, else a line per change and, now and then, per stage."""

    EVERY_S = 5.0

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_at = clock, clock()
        self._console = console(stream)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._seen: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(_text(text))

    def update(self, shown: dict[str, Any], left: Mapping[str, int], seconds: float | None = None) -> None:
        """Show the document's tasks, with the rows that they still have to read, where known.

        `seconds` is the estimated time for all these rows.
        """
        if self._live is not None:
            self._live.update(drain_table(shown, left, seconds), refresh=True)
            return
        about = f" in about {seconds:.0f} s" if seconds is not None else ""
        for task in shown["tasks"]:
            name, rows = task["name"], left.get(task["name"], 0)
            to_do = f", {rows} rows to read{about}" if rows and task["phase"] != DrainPhase.COMMITTED else ""
            if self._seen.get(name) != task["phase"]:
                self._seen[name], self._said_at = task["phase"], self._clock()
                self.say(f"{name} {task['phase']}{to_do}")
        if self._clock() >= self._said_at + self.EVERY_S:
            self._said_at = self._clock()
            for line in stage_lines(shown, left, about):
                self.say(line)


def stage_lines(shown: dict[str, Any], left: Mapping[str, int], about: str = "") -> list[str]:
    """A line for each stage that is not done: how many tasks are in each phase, and how many rows they have to read."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for task in shown["tasks"]:
        stages.setdefault(task["stage"], []).append(task)
    lines = []
    for stage, tasks in stages.items():
        phases = Counter(task["phase"] for task in tasks)
        if phases.keys() - {DrainPhase.COMMITTED, DrainPhase.DRAINED}:
            rows = sum(left.get(task["name"], 0) for task in tasks)
            counted = ", ".join(f"{number} {phase}" for phase, number in phases.items())
            lines.append(f"{stage}: {counted}" + (f", {rows} rows to read{about}" if rows else ""))
    return lines


def drain_table(shown: dict[str, Any], left: Mapping[str, int], seconds: float | None = None) -> Table:
    """A line for each stage with the number of its tasks that have reached each step, and below it its tasks."""
    table = _table("stage, task", "on", *_STEPS, "batch", "rows to read")
    stages: dict[str, list[dict[str, Any]]] = {}
    for task in shown["tasks"]:
        stages.setdefault(task["stage"], []).append(task)
    for stage, tasks in stages.items():
        counts = [sum(_reached(task) >= step for task in tasks) for step in range(len(_STEPS))]
        rows = sum(left.get(task["name"], 0) for task in tasks)
        known = any(task["name"] in left for task in tasks)
        cells = [f"{count} of {len(tasks)}" for count in counts]
        _add(table, stage, "", *cells, "", f"{rows:,}" if known else "", style="bold")
        for task in tasks:
            dots = ("●" if step <= _reached(task) else "·" for step in range(len(_STEPS)))
            batch = "" if task["batch"] is None else str(task["batch"])
            to_do = f"{left[task['name']]:,}" if task["name"] in left else ""
            _add(table, f"  {task['name']}", task["owner"] or "-", *dots, batch, to_do)
    about = f"; all rows are read in about {seconds:.0f} s" if seconds is not None else ""
    table.caption = _text(drain_in_words(shown["drain"]) + about) if shown["drain"] else None
    return table


def _reached(task: dict[str, Any]) -> int:
    """The index of a task's phase in the steps; -1 if it is not one of them."""
    return _STEPS.index(task["phase"]) if task["phase"] in _STEPS else -1

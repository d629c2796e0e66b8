"""The status document for the terminal: a table of processors and one of tasks, or a drain's steps."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samza_azure.commands.terminal import LAST_MS, clock, console, counted, error_lines, printable
from samza_azure.group.rows import ProcessorState
from samza_azure.messages import DrainPhase, Phase

#: How many events are shown.
LAST_EVENTS = 8
#: A terminal of so many characters has room for a column for each step of a drain.
WIDE = 130
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
_STEPS = [str(phase) for phase in DrainPhase]


def status_view(shown: dict[str, Any]) -> Group:
    """The whole status, for a terminal."""
    head = _text(f"{shown['app']}  run {shown['run_id'] or '-'}  {shown['phase']}", style="bold")
    detail = _text(
        f"epoch {shown['epoch']}, version {shown['version']}, leader {shown['leader'] or 'none'}, "
        f"barrier {shown['barrier']['state']} {shown['barrier']['version']}"
    )
    parts: list[Any] = [head, detail, _processors(shown), _tasks(shown), *_work(shown)]
    if begins := how_it_begins(shown):
        parts.insert(2, _text(begins))
    if shown["drain"]:
        parts.insert(2, _text(drain_in_words(shown["drain"])))
    if shown["stop"] and shown["phase"] != "STOPPED":
        parts.insert(2, _text("stopping: all processors commit and leave"))
    parts += [_text(drain_in_words(each), style="dim") for each in reversed(shown["drains"])]
    if shown["phase"] != "STOPPED":  # then no task runs, and one sentence says why
        parts += [_text(line, style="yellow") for line in _why_not(shown["tasks"])]
    for task in shown["tasks"]:
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


def _why_not(tasks: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Why tasks do not run: a line for each reason, with the task or, of many, the first one and their number."""
    reasons: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        if task["why"]:
            reasons.setdefault(task["why"], []).append(task)
    for why, kept_back in reasons.items():
        longest_s = max(each.get("why_s", 0) for each in kept_back)
        seen = f" Seen for {longest_s:.0f} s." if longest_s else ""
        name, more = kept_back[0]["name"], len(kept_back) - 1
        yield f"{name} and {more} more do not run: {why}{seen}" if more else f"{name} does not run: {why}{seen}"


def how_it_begins(shown: dict[str, Any]) -> str:
    """What a run that is not in progress waits for, and which processors have yet to come up; empty if none of that."""
    if shown["phase"] == "STOPPED":
        then = f"resumes run {shown['run_id']}" if shown["run_id"] else "begins the first run"
        return f"No processor runs. The next start {then}."
    count = sum(row["state"] in _COMING_UP and not row["ready"] for row in shown["processors"])
    return starting_spark(count) if count else ""


#: The states of a processor that may become ready.
_COMING_UP = (ProcessorState.UNASSIGNED, ProcessorState.ACTIVE)


def starting_spark(count: int) -> str:
    """That so many processors have yet to come up."""
    return f"starting Spark on {counted(count, 'processor')}"


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
    table = _table("task", "owner", "phase", "batch", "late")
    for task in shown["tasks"]:
        owner = task["owner"]
        phase = "-" if owner is None and task["phase"] == Phase.STARTING else task["phase"]
        _add(table, task["name"], owner or "-", phase, _batch(task), str(task["late"]))
    return table


def _work(shown: dict[str, Any]) -> list[Table]:
    """How far behind each source and each task is, and what it does; nothing before anything of that is known."""
    table = _table("source, task", *_WORK)
    table.padding = (0, 1, 0, 0)  # so that it fits 80 characters
    for name, each in (shown.get("behind") or {}).items():
        ago_s = each["appended_s"]
        _add(table, name, *_left(each), _pace(each["pace"]), _event_time(each["event_ms"]), _ago(ago_s), "")
    for task in shown["tasks"]:
        done, ms = task["progress"] or {}, (task["last_batch"] or {}).get("ms", {})
        if not done and not task.get("behind"):
            continue
        appended_ms, took_ms = done.get("appended_ms"), ms.get("triggerExecution")
        _add(
            table,
            task["name"],
            *_left(task.get("behind")),
            _pace(done.get("pace")),
            _event_time(done.get("watermark_ms")),
            _ago(None if appended_ms is None else time.time() - appended_ms / 1000),
            "-" if took_ms is None else f"{took_ms / 1000:.2f} s",
        )
    for column in table.columns[1:]:
        column.no_wrap = True  # a time in two lines is hard to read; names are folded instead
    return [table] if table.row_count else []


#: The heads of the figures of sources and tasks.
_WORK = ("rows\nbehind", "MiB\nbehind", "rows/s", "event time (behind)", "last\nappend", "batch\ntook")


def _left(behind: dict[str, Any] | None) -> tuple[str, str]:
    """Rows and MiB that are not read: exactly, at least (>) or about (~); "-" where it is unknown."""
    if behind is None:
        return "-", "-"
    mark = "" if behind["is_all"] else ">"
    if behind.get("is_estimate"):
        mark = "~"
    rows = "-" if behind["rows"] is None else f"{mark}{behind['rows']}"
    return rows, f"{behind['size'] / (1 << 20):.1f}"


def _pace(rows_per_s: float | None) -> str:
    return "-" if rows_per_s is None else f"{rows_per_s:.0f}"


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{_in_one_unit(max(round(seconds), 0))} ago"


def _batch(task: dict[str, Any]) -> str:
    """The last batch that a task appended."""
    return "-" if task["batch"] is None or task["batch"] < 0 else str(task["batch"])


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(min(at_ms, LAST_MS) / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _event_time(at_ms: int | None) -> str:
    """An event time, and in brackets how long ago that is."""
    if at_ms is None:
        return "-"
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "the end of time"  # a drain has fired everything
    ago_s = round(time.time() - at_ms / 1000)
    if ago_s >= 120:
        return f"{at:%Y-%m-%d %H:%M} ({_in_one_unit(ago_s)})"
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f" ({ago_s} s)" if ago_s > 0 else "")


def _in_one_unit(seconds: int) -> str:
    """A duration in a few characters: 119 s, 12 min, 47 h, 4708 d."""
    unit, size = next((each for each in _UNITS if seconds >= 2 * each[1]), ("s", 1))
    return f"{seconds // size} {unit}"


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


def _table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def _add(table: Table, *cells: str, style: str = "") -> None:
    table.add_row(*(_text(cell) for cell in cells), style=style or None)


class DrainDisplay:
    """Shows each task's drain phase: in place on a terminal, else a line per change and, now and then, per stage.

    Of a run with more than `MANY` tasks the lines are per stage only.
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
                self._console.print(_text(text))

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
    table = _table("stage, task", "on", *heads)
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
        _add(table, stage, "", *steps, *_counts(tasks, left), style="bold")
        for task in tasks:
            if task["name"] in listed:
                dots = ["●" if step <= _reached(task) else "·" for step in range(len(_STEPS))]
                steps = [*dots, _batch(task)] if is_wide else [task["phase"]]
                _add(table, f"  {task['name']}", task["owner"] or "-", *steps, *_counts([task], left))
        if more := sum(task["name"] not in listed for task in tasks):
            _add(table, f"  and {more} more", style="dim")
    return Group(_text(caption), table)


def _counts(tasks: Sequence[dict[str, Any]], left: Mapping[str, int]) -> tuple[str, str]:
    """The rows to read and the rows of state of these tasks; empty where no task has told any."""
    rows = [left[task["name"]] for task in tasks if task["name"] in left]
    state = [count for task in tasks if not _is_done(task) and (count := _state_rows(task)) is not None]
    return f"{sum(rows):,}" if rows else "", f"{sum(state):,}" if state else ""


def _reached(task: dict[str, Any]) -> int:
    """The index of a task's phase in the steps; -1 if it is not one of them."""
    return _STEPS.index(task["phase"]) if task["phase"] in _STEPS else -1

"""The status document for the terminal: a table of processors and one of tasks."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from samza_azure.commands.terminal import LAST_MS, clock, counted, error_lines, printable
from samza_azure.group.notice import LEFT_LIMIT, going_again
from samza_azure.group.rows import ProcessorState
from samza_azure.host.status import held_up, waits, warning
from samza_azure.messages import Phase
from samza_azure.page.verdict import first_line

#: How many events are shown, and how many tasks are named that have one error.
LAST_EVENTS, NAMED = 8, 8
#: On a terminal of fewer columns, what a table has beside each other stands below each other.
NARROW = 80
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def status_view(shown: dict[str, Any]) -> Group:
    """The whole status, for a terminal."""
    head = folded(f"{shown['app']}  run {shown['run_id'] or '-'}  {shown['phase']}", style="bold")
    detail = folded(
        f"epoch {shown['epoch']}, version {shown['version']}, leader {shown['leader'] or 'none'}, "
        f"barrier {shown['barrier']['state']} {shown['barrier']['version']}"
    )
    parts: list[Any] = [head, detail, _processors(shown), _tasks(shown), *_work(shown), *_batches(shown)]
    errors = _errors(shown)
    if judged := shown.get("verdict"):
        sentence = _without(in_words(judged), errors)
        parts.insert(1, folded(sentence, style=_STYLES.get(judged["state"], "yellow")))
    if (begins := how_it_begins(shown)) and (not judged or shown["phase"] != "STOPPED"):
        parts.insert(2, folded(begins))
    if shown["drain"]:
        parts.insert(2, folded(drain_in_words(shown["drain"])))
    if shown["stop"] and shown["phase"] != "STOPPED":
        parts.insert(2, folded("stopping: all processors commit and leave"))
    parts += [folded(drain_in_words(each), style="dim") for each in reversed(shown["drains"])]
    if shown["phase"] != "STOPPED":  # if it is, no task runs, and one sentence above has the reason
        parts += [folded(line, style="yellow") for line in _why_not(shown["tasks"])]
        waiting = [task["name"] for task in shown["tasks"] if waits(task)]
        parts += [folded(f"{_named(waiting)} for readers", style="yellow")] if waiting else []
        warned: dict[str, list[str]] = {}
        for task in shown["tasks"]:
            if text := warning(task):
                warned.setdefault(text, []).append(task["name"])
        parts += [folded(f"{_some(names)}: {text}", style="yellow") for text, names in warned.items()]
    parts += [folded(f"{whose}: {error_lines(message)}", style="red") for message, whose in errors.items()]
    parts += [
        folded(f"{count} blobs of the drained run {run_id} cannot be deleted; they are tried again", style="yellow")
        for run_id, count in shown["kept"].items()
    ]
    parts += [
        folded(
            f"{row['id']} stands by: format {row['too_old_for']} is in use, which its samza-azure does not know. "
            "Start a later release there.",
            style="yellow",
        )
        for row in shown["processors"]
        if row["too_old_for"]
    ]
    for row in shown["processors"]:
        if text := going_in_words(row):
            parts.append(folded(text, style="yellow"))
        if row["waits_for"]:
            parts.append(folded(f"{row['id']} waits. {row['waits_for']}", style="yellow"))
        if failure := row["failure"]:
            why = f"{row['id']} ended with exit code {failure['exit_code']}: {failure['message']}"
            parts.append(folded(error_lines(_without(why, errors)), style="red"))
    for event in shown["events"][-LAST_EVENTS:]:
        text = error_lines(_without(event["text"], errors))
        parts.append(folded(f"{_time(event['at_ms'])} {event['kind']}: {text}", style="dim"))
    return Group(*parts)


def _errors(shown: dict[str, Any]) -> dict[str, str]:
    """Each error once, with the tasks that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for task in shown["tasks"]:
        if task["error"]:
            found.setdefault(task["error"]["message"], {}).setdefault(task["name"], [])
        if by := task["given_up"]:
            notes = found.setdefault(by["message"], {}).setdefault(task["name"], [])
            notes.append(f"given up by {by['processor']}")
    if failure := shown["failure"]:
        found.setdefault(failure["message"], {}).setdefault(failure["task"], []).append("so the run failed")
    return {message: _whose(tasks) for message, tasks in found.items()}


def _whose(tasks: Mapping[str, Sequence[str]]) -> str:
    """Tasks, each with notes: their number, if there are several, and their names."""
    names = [f"{name} ({', '.join(notes)})" if notes else name for name, notes in tasks.items()]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (f"{len(names)} tasks, " if len(names) > 1 else "") + ", ".join(names[:NAMED]) + more


def _named(waiting: Sequence[str]) -> str:
    """Tasks that wait."""
    return f"{_some(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"


def _some(tasks: Sequence[str]) -> str:
    """Tasks by name, of many the first ones and their number."""
    return ", ".join(tasks[:NAMED]) + (f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else "")


def _without(text: str, errors: Iterable[str]) -> str:
    """A text without the error that it ends with, or quotes the first line of: it is shown by itself."""
    for message in filter(None, errors):
        about, _, said = text.partition(": ")
        if said.endswith("…") and message.startswith(said[:-1]):
            return f"{about}."
        for each in (message, first_line(message).rstrip(".")):
            text = text.replace(f": {each}", "", 1)
    return text


#: The colours of verdicts; all others are yellow.
_STYLES = {"running": "green", "drained": "green", "failed": "red", "no leader": "red"}


def in_words(judged: dict[str, Any]) -> str:
    """A verdict in a line: its state, the sentence, and for how long it has been so."""
    since_s = round(judged["since_s"] or 0)
    return f"{judged['state'].upper()}: {judged['text']}" + (f" For {_in_one_unit(since_s)}." if since_s else "")


def _why_not(tasks: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Why tasks do not run: a line for each reason, with the task or, of many, the first one and their number."""
    for why, kept_back in held_up(tasks).items():
        longest_s = max(each.get("why_s", 0) for each in kept_back)
        seen = f" Seen for {longest_s:.0f} s." if longest_s else ""
        name, more = kept_back[0]["name"], len(kept_back) - 1
        yield f"{name} and {more} more do not run: {why}{seen}" if more else f"{name} does not run: {why}{seen}"


def how_it_begins(shown: dict[str, Any]) -> str:
    """How a stopped run goes on, or how many processors are not ready yet; empty if neither."""
    if shown["phase"] == "STOPPED":
        then = f"resumes run {shown['run_id']}" if shown["run_id"] else "begins the first run"
        return f"No processor runs. The next start {then}."
    count = sum(row["state"] in _COMING_UP and not row["ready"] for row in shown["processors"])
    return starting(count) if count else ""


#: The states of a processor that may become ready.
_COMING_UP = (ProcessorState.UNASSIGNED, ProcessorState.ACTIVE)


def starting(count: int) -> str:
    """The line shown while processors start."""
    return f"starting {counted(count, 'processor')}"


def folded(text: str, style: str = "") -> Text:
    """A text that may hold foreign parts: without markup and escapes, folded at the edge."""
    return Text(printable(text), style=style, overflow="fold")


def _processors(shown: dict[str, Any]) -> Table:
    table = _Rows("processor", "state", "heartbeat", "CPU", "memory", "tasks", **_PLAIN)
    for row in shown["processors"]:
        lead = " (leads)" if row["id"] == shown["leader"] else ""
        add_row(
            table, row["id"] + lead, _state(row), _ago(row["heartbeat_s"]), *_use(row), ", ".join(row["tasks"]) or "-"
        )
    return table


def _state(row: dict[str, Any]) -> str:
    """A processor's state; of one that will go how much it has handed over."""
    going = row.get("decommission") or {}
    if row["state"] != ProcessorState.LEAVING or row["too_old_for"] or going.get("tasks") is None:
        return str(row["state"])
    return f"{going['state']} {going['handed_over']}/{going['tasks']}"


def _use(row: dict[str, Any]) -> tuple[str, str]:
    """The cores and the MiB that a processor's container uses."""
    use = row["machine"]["use"]
    return (f"{use['cpu']:.1f}", f"{use['memory'] / (1 << 20):.0f} MiB") if use["memory"] else ("-", "-")


def _tasks(shown: dict[str, Any]) -> Table:
    has_replicas = any(task.get("replicas") for task in shown["tasks"])
    more = ("replica",) if has_replicas else ()
    table = _Rows("task", "owner", "phase", "batch", "late", "restarts", *more, **_PLAIN)
    for task in shown["tasks"]:
        owner = task["owner"]
        phase = "-" if owner is None and task["phase"] == Phase.STARTING else task["phase"]
        replicas = (", ".join(map(_replica, task.get("replicas") or ())) or "-",) if has_replicas else ()
        figures = last_batch(task), str(task["late"]), str(task["restarts"])
        add_row(table, task["name"], owner or "-", phase, *figures, *replicas)
    return table


def _replica(each: dict[str, Any]) -> str:
    """Where a replica is, and how many batches it is behind."""
    behind = each["batches_behind"]
    return f"{each['processor']} ({'not ready' if behind is None else f'-{behind}' if behind else 'ready'})"


def _work(shown: dict[str, Any]) -> list[Table]:
    """How far behind each source and each task is, and what it does. No table while nothing of that is known."""
    table = _Rows("source, task", *_WORK, **_PLAIN)
    table.padding = (0, 1, 0, 0)  # so that it fits 80 characters
    for name, each in (shown.get("behind") or {}).items():
        ago_s = each["appended_s"]
        lag_s = each.get("lag_s")
        late = _event_time(each["event_ms"]) if lag_s is None else f"({_in_one_unit(round(lag_s))})"
        add_row(table, name, *_left(each), _pace(each["pace"]), late, _ago(ago_s), "")
    for task in shown["tasks"]:
        done, ms = task["progress"] or {}, (task["last_batch"] or {}).get("ms", {})
        if not done and not task.get("behind"):
            continue
        appended_ms, took_ms = done.get("appended_ms"), ms.get("triggerExecution")
        add_row(
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


def _batches(shown: dict[str, Any]) -> list[Table]:
    """Where the last batch of each stage's slowest task has spent its time: by the clock, and of a processor."""
    slowest: dict[str, tuple[int, dict[str, Any]]] = {}
    for task in shown["tasks"]:
        ms = (task["last_batch"] or {}).get("ms", {})
        took_ms = ms.get("triggerExecution", 0)
        if "compute" in ms and took_ms >= slowest.get(task["stage"], (0, task))[0]:
            slowest[task["stage"]] = took_ms, task
    table = _Rows("ms of a batch (of CPU)", *_PHASES, **_PLAIN)
    for _, task in slowest.values():
        ms, cpu_ms = task["last_batch"]["ms"], task["last_batch"].get("cpu_ms") or {}
        read_ms = ms.get("latestOffset", 0) + ms.get("getBatch", 0)
        wall = {
            "read": read_ms,
            "plan": ms.get("queryPlanning", 0),
            "compute": ms["compute"],
            "append": ms.get("append"),
        }
        add_row(table, task["name"], *(_spent(wall[phase], cpu_ms.get(phase)) for phase in _PHASES))
    return [table] if table.row_count else []


_PHASES = ("read", "plan", "compute", "append")


def _spent(ms: int | None, cpu_ms: int | None) -> str:
    """Milliseconds of a phase, and in brackets those of a processor where they are known."""
    return "-" if ms is None else f"{ms}" if cpu_ms is None else f"{ms} ({cpu_ms})"


def _left(behind: dict[str, Any] | None) -> tuple[str, str]:
    """Rows and MiB that are not read: exactly, at least (>) or about (~); "-" if unknown."""
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


def last_batch(task: dict[str, Any]) -> str:
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


def going_in_words(row: dict[str, Any]) -> str:
    """Why a processor will go, until when, and what it has not handed over; empty if it stays."""
    going = going_again(row.get("decommission") or {})
    if row["state"] != ProcessorState.LEAVING or going is None:
        return ""
    by = f" by {clock(going.by_ms)}" if going.by_ms else ""
    return f"{row['id']} will go{by} ({going.why}): {going.in_words(LEFT_LIMIT)}"


class _Rows(Table):
    """A table; on a narrow terminal a paragraph for each row."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= NARROW:
            yield from super().__rich_console__(console, options)
            return
        first, *heads = (str(column.header).replace("\n", " ") for column in self.columns)
        yield Text(f"{first}:", style="bold")
        for name, *cells in zip(*(column.cells for column in self.columns), strict=True):
            said = [f"{head} {cell}" for head, cell in zip(heads, cells, strict=True) if str(cell) not in ("", "-")]
            yield name
            yield Padding(folded(", ".join(said)), (0, 0, 0, 2))


#: A table without lines.
_PLAIN: Mapping[str, Any] = {"box": None, "pad_edge": False}


def plain_table(*heads: str) -> Table:
    """A table without lines."""
    return Table(*heads, **_PLAIN)


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of texts that are not ours."""
    table.add_row(*(folded(cell) for cell in cells), style=style or None)

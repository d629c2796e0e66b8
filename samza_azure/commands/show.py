"""What a person sees of a status document: a table of processors and one of tasks, or a drain's steps."""

import sys
from typing import Any, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samza_azure.messages import DrainPhase

_STEPS = [str(phase) for phase in DrainPhase]


def status_view(shown: dict[str, Any]) -> Group:
    """The whole status, for a terminal."""
    head = Text(f"{shown['app']}  run {shown['run_id'] or '-'}  {shown['phase']}", style="bold")
    detail = Text(
        f"epoch {shown['epoch']}, version {shown['version']}, leader {shown['leader'] or 'none'}, "
        f"barrier {shown['barrier']['state']} {shown['barrier']['version']}"
    )
    parts: list[Any] = [head, detail, _processors(shown), _tasks(shown)]
    if shown["drain"]:
        parts.insert(2, Text(f"drain {shown['drain']['step']} of run {shown['drain']['run_id']}"))
    if shown["stop"] and shown["phase"] != "STOPPED":
        parts.insert(2, Text("stopping: all commit and go"))
    given_up = [(task["name"], task["given_up"]) for task in shown["tasks"] if task["given_up"]]
    parts += [Text(f"{name}: {by['processor']} gave it up: {by['message']}", style="red") for name, by in given_up]
    parts += [
        Text(f"{count} blobs of the drained run {run_id} cannot be deleted; they are tried again", style="yellow")
        for run_id, count in shown["kept"].items()
    ]
    if shown["failure"]:
        parts.append(Text(f"failed: {shown['failure']['task']}: {shown['failure']['message']}", style="red"))
    return Group(*parts)


def _processors(shown: dict[str, Any]) -> Table:
    table = Table("processor", "state", "tasks", box=None, pad_edge=False)
    for row in shown["processors"]:
        lead = " (leads)" if row["id"] == shown["leader"] else ""
        table.add_row(row["id"] + lead, row["state"], ", ".join(row["tasks"]) or "-")
    return table


def _tasks(shown: dict[str, Any]) -> Table:
    table = Table("task", "owner", "phase", "batch", "late", "error", box=None, pad_edge=False)
    for task in shown["tasks"]:
        error = task["error"]["message"] if task["error"] else ""
        batch = "-" if task["batch"] is None else str(task["batch"])
        table.add_row(task["name"], task["owner"] or "-", task["phase"], batch, str(task["late"]), error)
    return table


class DrainDisplay:
    """Each task's drain phase: in place on a terminal, one line per change elsewhere."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._seen: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, shown: dict[str, Any]) -> None:
        """Show the document's tasks as they stand now."""
        if self._live is not None:
            self._live.update(_drain_table(shown))
            return
        for task in shown["tasks"]:
            if self._seen.get(task["name"]) != task["phase"]:
                self._seen[task["name"]] = task["phase"]
                self._console.print(f"{task['name']} {task['phase']}", highlight=False)


def _drain_table(shown: dict[str, Any]) -> Table:
    table = Table("task", *_STEPS, box=None, pad_edge=False)
    for task in shown["tasks"]:
        reached = _STEPS.index(task["phase"]) if task["phase"] in _STEPS else -1
        table.add_row(task["name"], *("●" if step <= reached else "·" for step in range(len(_STEPS))))
    return table

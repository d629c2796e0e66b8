"""`samza-azure status`: who leads, who is alive, who runs what."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from samza_azure.commands.backlog import behind, behind_of_tasks
from samza_azure.commands.job import Job, load_seen
from samza_azure.commands.reach import look, reach
from samza_azure.commands.show import status_view
from samza_azure.commands.terminal import console
from samza_azure.host.status import SeenWaiting, document, patience_s
from samza_azure.machine import boot_time

WATCH_S = 2.0


def command(
    job: Job,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until Ctrl-C; to a pipe, after each change.")] = False,
) -> None:
    """Show who leads, who is alive, who runs what, where each task is, how far behind its sources it is.

    Example: samza-azure status job.toml --json
    """
    config = load_seen(job)
    account = reach(config, create=False)

    def shown() -> dict[str, Any]:
        control, rows = look(config, account)
        found = document(config.app.name, control, rows, patience_s(config.task.shutdown_ms))
        blobs = account.blobs()
        of_sources = behind(blobs, found)
        of_tasks = behind_of_tasks(blobs, found, of_sources)
        found["behind"] = {partition: asdict(each) for partition, each in of_sources.items()}
        for task in found["tasks"]:
            task["behind"] = asdict(of_tasks[task["name"]]) if task["name"] in of_tasks else None
        return found

    if as_json:
        print(json.dumps(shown(), indent=2))
        return
    screen = console(sys.stdout)
    if not watch:
        screen.print(status_view(shown()))
        return
    with suppress(KeyboardInterrupt):
        if screen.is_terminal:
            _in_place(screen, shown)
        else:
            _line_by_line(screen, shown)


def _in_place(screen: Console, shown: Callable[[], dict[str, Any]]) -> None:
    waiting = SeenWaiting()
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            now = shown()
            waiting.note(now, boot_time())
            live.update(status_view(now), refresh=True)
            time.sleep(WATCH_S)


def _line_by_line(screen: Console, shown: Callable[[], dict[str, Any]]) -> None:
    """Print the whole status whenever it has changed, with the time: `Live` prints nothing to a pipe until it ends."""
    before: dict[str, Any] = {}
    while True:
        now = shown()
        if (lasting := without_ages(now)) != before:
            before = lasting
            screen.print(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}", status_view(now), "", sep="\n")
        time.sleep(WATCH_S)


def without_ages(shown: dict[str, Any]) -> dict[str, Any]:
    """The document without the seconds since the last appends, which change even if nothing happens."""
    return {**shown, "behind": {name: {**each, "appended_s": None} for name, each in shown["behind"].items()}}

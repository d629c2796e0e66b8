"""`samza-azure status`: who leads, who is alive, who runs what, and whether all is well: as a sentence, and as the exit
code.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console, Group
from rich.live import Live

from samza_azure.commands.backlog import behind, behind_of_tasks, behind_outside, outside
from samza_azure.commands.connect import FIRST_S, LOOK_AGAIN, connect, look, patient
from samza_azure.commands.job import Job, load_seen
from samza_azure.commands.show import folded, status_view
from samza_azure.commands.terminal import console, say
from samza_azure.config import Config
from samza_azure.errors import StorageUnavailable, Verdict
from samza_azure.group.control import Control
from samza_azure.group.rows import ProcessorRow
from samza_azure.host.status import LATE, SeenSilent, SeenWaiting, document, patience_s
from samza_azure.machine.clock import boot_time
from samza_azure.page.verdict import JobState, look_again, verdict, without_word
from samza_azure.storage.connection import Account

WATCH_S = 2.0
#: The exit codes of what is not well, and of what does not run. Those of errors are less.
NOT_WELL, NOBODY = 6, 7
EXIT_CODES: dict[JobState, int] = {
    **dict.fromkeys(JobState, NOT_WELL),
    **dict.fromkeys((JobState.RUNNING, JobState.DRAINING, JobState.DRAINED), Verdict.DONE),
    JobState.FAILED: Verdict.FAILED,
    JobState.STOPPED: NOBODY,
}


def command(
    job: Job,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until Ctrl-C; to a pipe, after each change.")] = False,
) -> None:
    """Show who leads, who is alive, who runs what, where each task is, how far behind its sources it is.

    Exits with 0 if all tasks run, or the run drains or is drained; 1 if it failed; 6 if something does not run, or not
    yet, also in a drain; 7 if no processor runs. With --json it exits with 0; the document has the code.

    Example: samza-azure status job.toml --json
    """
    config = load_seen(job)
    seen = Onlooker(config, connect(config, create=False))
    if as_json:
        print(json.dumps(seen.sure(), indent=2))
        return
    screen = console(sys.stdout)
    if not watch:
        shown = seen.sure()
        screen.print(status_view(shown))
        raise typer.Exit(shown["verdict"]["exit_code"])
    with suppress(KeyboardInterrupt):
        if screen.is_terminal:
            _in_place(screen, seen.latest)
        else:
            _line_by_line(screen, seen.latest)


class Judge:
    """Makes the status documents of one onlooker, each with the verdict: silence is judged by more than one look."""

    def __init__(self, config: Config) -> None:
        self._config, self._timing = config, config.coordinator.timing
        self._silent, self._waiting = SeenSilent(self._timing.heartbeat_s), SeenWaiting()
        self.late: list[str] = []  # the processors of which only another look shows whether a heartbeat comes

    def forget(self) -> None:
        """Forget all suspicion: the account did not answer."""
        self._silent.forget()

    def document(self, control: Control | None, rows: Sequence[ProcessorRow]) -> dict[str, Any]:
        """The document of what was read now."""
        config, silent = self._config, self._silent.note(rows, boot_time())
        self.late = sorted(name for name, each in silent.items() if each.doubtful(LATE * self._timing.heartbeat_s))
        gone = without_word(silent, self._timing)
        found = document(config.app.name, control, rows, patience_s(config.task.shutdown_ms), gone)
        self._waiting.note(found, boot_time())
        judged = verdict(found, silent, self._timing, time.time_ns() // 1_000_000)
        found["verdict"] = {**asdict(judged), "exit_code": EXIT_CODES[judged.state]}
        return found


class Onlooker:
    """Looks at the fleet once or again and again."""

    def __init__(self, config: Config, account: Account) -> None:
        self._config, self._account, self._judge = config, account, Judge(config)
        self._last: tuple[float, dict[str, Any]] | None = None

    def sure(self) -> dict[str, Any]:
        """What is there now. If heartbeats are late, look once more: after an outage the next ones are on their way."""
        answered = patient(tell=True, seconds=FIRST_S)
        shown = answered(self.shown)
        if self._judge.late:
            say(look_again(self._judge.late))
            time.sleep(LOOK_AGAIN * self._config.coordinator.timing.heartbeat_s)
            shown = answered(self.shown)
        return shown

    def latest(self) -> tuple[dict[str, Any] | None, str]:
        """What is there now; or, while the account does not answer, what was there last, and a sentence about that."""
        try:
            shown = self.shown()
        except StorageUnavailable as error:
            self._judge.forget()
            ago = f" What is shown is {time.monotonic() - self._last[0]:.0f} s old." if self._last else ""
            return self._last[1] if self._last else None, f"AWAY: {error} It is tried again.{ago}"
        self._last = time.monotonic(), shown
        return shown, ""

    def shown(self) -> dict[str, Any]:
        """What is there now. Raise `StorageUnavailable` at once."""
        found = self._judge.document(*look(self._config, self._account, seconds=0.0))
        blobs = self._account.blobs()
        of_sources = behind(blobs, found, outside(self._config))
        of_tasks = behind_of_tasks(blobs, found, of_sources)
        found["behind"] = {each: asdict(left) for each, left in (of_sources | behind_outside(found)).items()}
        for task in found["tasks"]:
            task["behind"] = asdict(of_tasks[task["name"]]) if task["name"] in of_tasks else None
        return found


#: Looks, and returns what `Onlooker.latest` does.
Latest: TypeAlias = Callable[[], tuple[dict[str, Any] | None, str]]


def _in_place(screen: Console, latest: Latest) -> None:
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            now, away = latest()
            lines = [folded(away, style="red")] if away else []
            live.update(Group(*lines, *([status_view(now)] if now is not None else [])), refresh=True)
            time.sleep(WATCH_S)


def _line_by_line(screen: Console, latest: Latest) -> None:
    """Print the whole status whenever it has changed, with the time: `Live` prints nothing to a pipe until it ends."""
    before: dict[str, Any] | None = {}
    while True:
        now, away = latest()
        lasting = None if now is None or away else without_ages(now)
        if lasting != before:
            before = lasting
            view = folded(away) if now is None or away else status_view(now)
            screen.print(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}", view, "", sep="\n")
        time.sleep(WATCH_S)


def without_ages(shown: dict[str, Any]) -> dict[str, Any]:
    """The document without the seconds since the last appends, heartbeats and so on, which change by themselves."""
    return {
        **shown,
        "verdict": {**shown["verdict"], "since_s": None},
        "processors": [{**each, "heartbeat_s": None} for each in shown["processors"]],
        "tasks": [{**each, "why_s": None} for each in shown["tasks"]],
        "behind": {name: {**each, "appended_s": None} for name, each in shown["behind"].items()},
    }

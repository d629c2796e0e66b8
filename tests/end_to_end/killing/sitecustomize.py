"""Sends a signal, SIGKILL or SIGTERM, when a processor is at a named point of a drain. No part of the product.

Python imports a module of this name at its start, wherever it finds one; `JobOnAzurite` puts this folder into
PYTHONPATH. The folder in SAMZA_AZURE_KILL_AT holds a file for each signal that is still to come, say "p1 container
FLUSHING", with the signal's name in it. The first thread of that process that comes to the point deletes the file and
sends it: to its own process, or to the one whose id stands behind the name.

A point is a function of the product that is wrapped once its module is loaded. If it is renamed, no process dies, the
file stays, and the test that asked for the kill fails.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FOLDER = "SAMZA_AZURE_KILL_AT"
CONTAINER = "samza_azure.container"


def words_of(process: int | str) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")


class Points(MetaPathFinder):
    """The points of this process, under its processor's name."""

    def __init__(self, folder: Path, processor: str, kind: str) -> None:
        self._folder, self._prefix = folder, f"{processor} {kind}"
        self._flushes, self._batches, self._counting = False, 0, threading.Lock()
        container = {
            "samza_azure.messages": self._reports,
            "samza_azure.tasks.records": self._appends,
            "samza_azure.tasks.tasks": self._obeys,
        }
        supervisor = {
            "samza_azure.host.perform": self._writes,
            "samza_azure.host.runs": self._deletes,
            "samza_azure.host.supervisor": self._hears,
        }
        self._changes = container if kind == "container" else supervisor

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A module with points in it is loaded as always, then changed."""
        change = self._changes.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if change is not None else None
        if spec is None or spec.loader is None or change is None:
            return None
        load, changed = spec.loader.exec_module, change

        def load_and_change(module: Any) -> None:
            load(module)
            changed(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec

    def at(self, point: str) -> None:
        """Kill this process, ask it to leave, or do that to another one, if a test wants it here."""
        file = self._folder / f"{self._prefix} {point}"
        try:
            name, _, whom = file.read_text().partition(" ")
            file.unlink()
        except FileNotFoundError:
            return
        os.kill(int(whom or os.getpid()), signal.Signals[name])

    def _reports(self, module: Any) -> None:
        """A task of this container comes to a phase, which is not reported yet."""
        make: Callable[..., None] = module.TaskReport.__init__

        def made(report: Any, *values: Any, **fields: Any) -> None:
            make(report, *values, **fields)
            if report.drain is not None:
                self.at("DRAINED" if report.phase == module.Phase.DRAINED else str(report.drain))

        module.TaskReport.__init__ = made

    def _obeys(self, module: Any) -> None:
        """The container has heard of FLUSH, and begins to count the batches of the flush."""
        obey = module.Tasks._obey

        def obeyed(tasks: Any, command: Any) -> None:
            if isinstance(command, module.Drain):
                self._flushes = command.step == "FLUSH"
            obey(tasks, command)

        module.Tasks._obey = obeyed

    def _appends(self, module: Any) -> None:
        """Before and after a record: any, the first ones of the flush in this container, and the last one of a task."""
        append = module.RecordWriter._append

        def appended(writer: Any, batch: int, plan: Any, *more: Any) -> None:
            whats = [f"the end of {writer._stage.stage.name}" if plan.step >= 2 else "a batch"]
            if self._flushes:
                with self._counting:
                    self._batches += 1
                    whats.append(f"batch {self._batches} of the flush")
            for what in whats:
                self.at(f"before {what}")
            append(writer, batch, plan, *more)
            for what in whats:
                self.at(f"after {what}")

        module.RecordWriter._append = appended

    def _writes(self, module: Any) -> None:
        """Before and after the leader writes a step of the drain."""
        perform = module._perform

        async def performed(action: Any, *more: Any) -> Any:
            drain = action.control.drain if isinstance(action, module.actions.WriteControl) else None
            if drain is not None:
                self.at(f"before {drain.reached}")
            answer = await perform(action, *more)
            if drain is not None and isinstance(answer, str):  # the blob's new ETag
                self.at(f"after {drain.reached}")
            return answer

        module._perform = performed

    def _deletes(self, module: Any) -> None:
        """The clean-up has deleted one blob of several."""
        delete = module.RunLogs._delete

        def deleted(runs: Any, run_id: str, names: list[str], over: Any) -> Any:
            if len(names) > 1:
                delete(runs, run_id, names[:1], over)
                self.at("mid-clean-up")
            return delete(runs, run_id, names, over)

        module.RunLogs._delete = deleted

    def _hears(self, module: Any) -> None:
        """The container has reported the phase of a task, and the group does not know it yet. Or all is drained."""
        note, on_drain = module.Supervisor._note_closed, module.Supervisor.on_drain

        def noted(supervisor: Any, report: Any) -> None:
            if report.drain is not None:
                self.at(str(report.drain))
            note(supervisor, report)

        def drained(supervisor: Any, notification: Any) -> None:
            on_drain(supervisor, notification)
            if notification.reached == "DRAINED":
                self.at("DRAINED")

        module.Supervisor._note_closed, module.Supervisor.on_drain = noted, drained


def install() -> None:
    """In a processor's supervisor, and in its container; nowhere else."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    is_container = CONTAINER in sys.orig_argv
    words = words_of(os.getppid() if is_container else os.getpid())
    if "--id" in words:
        processor = words[words.index("--id") + 1]
        sys.meta_path.insert(0, Points(Path(folder), processor, "container" if is_container else "supervisor"))


install()

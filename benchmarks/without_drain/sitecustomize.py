"""Takes what a drain needs out of a container, or counts the processor time that it takes.

Python imports a module of this name at its start; `drain_idle.py` puts this folder into PYTHONPATH. Without it sources
ask for no gate and acknowledge nothing, and tasks look at nothing. Such a container cannot be drained, nor does it
release a task in order or declare one idle: it is measured beside a real one.
"""

import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any


class ChangedModules(MetaPathFinder):
    """The modules that differ."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A module that differs is loaded as always, then changed."""
        change = self._changes.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if change is not None else None
        if spec is None or spec.loader is None or change is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def without_gate(module: Any) -> None:
    """Sources see an open gate, and say nothing."""
    from samza_azure.streams.gate import Gate

    gate = Gate()
    assert callable(module.read_gate), "the gate is read by another name"
    module.read_gate = lambda _: gate
    assert callable(module.Poller._answered), "the gate is answered by another name"
    module.Poller._answered = lambda self, *_: None


def without_looking(module: Any) -> None:
    """Tasks look at nothing but whether their query runs."""

    def check(self: Any, _: Any) -> None:
        query, batches, writer = self._query, self._batches, self._writer
        if self.report.phase is not module.Phase.RUNNING or query is None or batches is None:
            return
        if writer is not None:
            self._forgetting.look(writer)
        if batches.error is not None or not query.isActive:
            self._query_ended(batches.error or query.exception())

    module.StageTask.check = check
    module.StageTask.follow = lambda self, drain: None


class Meter:
    """The processor time of some functions, kept in a file of each process: sources run in forks."""

    def __init__(self, folder: str) -> None:
        self._folder, self._process, self._file = Path(folder), 0, -1
        self._seconds, self._lock, self._local = 0.0, threading.Lock(), threading.local()

    def _add(self, seconds: float) -> None:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._seconds = os.getpid(), 0.0
                self._file = os.open(self._folder / str(self._process), os.O_CREAT | os.O_WRONLY)
            self._seconds += seconds
            os.pwrite(self._file, struct.pack("d", self._seconds), 0)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted; of calls within it only the whole."""

        def call(*arguments: Any, **named: Any) -> Any:
            if getattr(self._local, "counts", False):
                return function(*arguments, **named)
            self._local.counts, begun = True, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._local.counts = False
                self._add(time.thread_time() - begun)

        return call


def metered_source(folder: str) -> Callable[[Any], None]:
    """Count what sources do for the gate."""

    def change(module: Any) -> None:
        meter = Meter(folder)
        module.read_gate = meter.counted(module.read_gate)
        module.Poller._answered = meter.counted(module.Poller._answered)

    return change


def metered_task(folder: str) -> Callable[[Any], None]:
    """Count what tasks do for the gate."""

    def change(module: Any) -> None:
        meter = Meter(folder)
        module.StageTask.check = meter.counted(module.StageTask.check)
        module.StageTask.follow = meter.counted(module.StageTask.follow)

    return change


SOURCE, TASK = "samza_azure.tasks.poller", "samza_azure.tasks.stage_task"
if folder := os.environ.get("SAMZA_AZURE_METER_DRAIN"):
    sys.meta_path.insert(0, ChangedModules({SOURCE: metered_source(folder), TASK: metered_task(folder)}))
elif "SAMZA_AZURE_WITHOUT_DRAIN" in os.environ:
    sys.meta_path.insert(0, ChangedModules({SOURCE: without_gate, TASK: without_looking}))

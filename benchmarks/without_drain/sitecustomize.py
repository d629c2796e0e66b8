"""Takes what a drain needs out of a container: sources ask for no gate and acknowledge nothing, tasks look at nothing.

Python imports a module of this name at its start; `drain_idle.py` puts this folder into PYTHONPATH. Such a container
cannot be drained, nor does it release a task in order or declare one idle: it is measured beside a real one.
"""

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class Without(MetaPathFinder):
    """The modules that differ."""

    def __init__(self) -> None:
        self._changes: dict[str, Callable[[Any], None]] = {
            "samza_azure.spark.source.poller": self._source,
            "samza_azure.spark.task.task": self._task,
        }

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

    @staticmethod
    def _source(module: Any) -> None:
        from samza_azure.streams.gate import Gate

        gate = Gate()
        assert callable(module.read_gate), "the gate is read by another name"
        module.read_gate = lambda _: gate
        assert callable(module.Poller._answered), "the gate is answered by another name"
        module.Poller._answered = lambda self, *_: None

    @staticmethod
    def _task(module: Any) -> None:
        def check(self: Any, _: Any) -> None:
            query, batches = self._query, self._batches
            if self.report.phase is not module.Phase.RUNNING or query is None or batches is None:
                return
            if batches.error is not None or not query.isActive:
                self._query_ended()

        module.Task.check = check
        module.Task.follow = lambda self, drain: None


if "SAMZA_AZURE_WITHOUT_DRAIN" in os.environ:
    sys.meta_path.insert(0, Without())

"""Let Spark's workers have the environment variables that the user's module sets, and its folders of `sys.path`.

In a plain script they have them, since the session is made afterwards. Here the JVM, whose environment they have, is
started before the module is imported.
Promised: a function that is given to Spark finds what the module had set until then. What the job file says under
`spark.executorEnv` wins, as in Spark. The values may be secrets: they go to the JVM with the functions, and no message,
plan or setting shows them. Not promised: that what the module removes is missing there too.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.launcher import APPENDED_PATH

#: What comes after it in `sys.path` hides none of Python's own modules.
STDLIB = sysconfig.get_path("stdlib")


@contextmanager
def environment_sent(module: str) -> Iterator[None]:
    """Send what this block sets with each function that Spark gets, in the block and later."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        yield
        return
    context: Any = spark.sparkContext
    zone = os.environ.get("TZ")
    context.environment = environment = _Environment(context.environment)
    try:
        yield
    finally:
        context.environment = dict(environment)  # what is set later is not the module's
    if os.environ.get("TZ") not in (zone, "UTC", "Etc/UTC", "GMT"):
        raise PipelineRefused(
            f"The module {module} changes the environment variable TZ. Python is in UTC, as the session is: a time "
            "without a zone is one of UTC. Remove the line, and give times their zone where they are parsed."
        )


class _Environment(Mapping[str, str]):
    """The variables that pyspark reads when Spark gets a function: those of before, and what is set by then.

    Another thread gives our own source to Spark meanwhile; what the module sets is not for that.
    """

    def __init__(self, settled: Mapping[str, str]) -> None:
        self._settled, self._variables, self._folders = settled, dict(os.environ), set(sys.path)
        self._thread = threading.get_ident()

    def _now(self) -> dict[str, str]:
        if threading.get_ident() != self._thread:
            return dict(self._settled)
        changed = {name: value for name, value in os.environ.items() if self._variables.get(name) != value}
        changed.pop("TZ", None)  # it is refused
        changed.update(self._settled)
        own = sys.path.index(STDLIB) if STDLIB in sys.path else len(sys.path)
        for name, folders in (("PYTHONPATH", sys.path[:own]), (APPENDED_PATH, sys.path[own:])):
            added = [str(Path(each).absolute()) for each in folders if each not in self._folders]
            if path := [*added, *filter(None, [changed.get(name)])]:
                changed[name] = os.pathsep.join(path)
        return changed

    def __getitem__(self, name: str) -> str:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

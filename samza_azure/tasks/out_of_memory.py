"""Failures for lack of memory: how they are recognised and reported.

A batch that is too large for the memory would fail again if it were repeated unchanged. So it is tried again with less
input; `logs/task_log.py:take_over` determines how much.
"""

import re
from collections.abc import Mapping

#: The error texts of the JVM, Spark, Python and the service.
_CAUSES = re.compile(
    r"java\.lang\.OutOfMemoryError(?:: [^\n]+)?"
    r"|\[UNABLE_TO_ACQUIRE_MEMORY\][^\n]*"
    r"|Total size of serialized results of [^\n]*"
    r"|[^\n]*(?:Cannot grow BufferHolder|Cannot reserve additional contiguous bytes|Buffer overflow)[^\n]*"
    r"|^(?:[\w.]*\.)?\w*MemoryError(?:: [^\n]+)?$"
    # On a cluster: of Java's heap, by the kernel. Kubernetes' words begin on a line of their own.
    r"|ExecutorLostFailure[^\n]*\n?[^\n]*exited with (?:exit )?code (?:52|137)\b"
    r"|A record of \d+ bytes; one append takes[^\n]*",
    re.MULTILINE,
)


def why_too_large(error: BaseException) -> str | None:
    """The part of an error that shows that memory or size was the cause; None if there is none."""
    if isinstance(error, MemoryError):
        return f"{type(error).__name__}: {error}".rstrip(": ")
    found = _CAUSES.search(str(error))
    return found.group().strip() if found else None


def too_large(task: str, batch: int, rows: int, size: int, cause: str, least: int, settings: Mapping[str, str]) -> str:
    """The message to the user: which batch, how large, why, what happens next and what to do."""
    what = f"{task}, batch {batch}: its input of {rows:,} rows, {in_units(size)} in the log, "
    if cause.endswith("code 137") and cause.startswith("ExecutorLostFailure"):  # SIGKILL: its worker does not tell why
        what += f"ended its executors: the kernel has killed them for lack of memory, or somebody has ({cause}). "
    else:
        what += f"takes more memory than there is ({cause}). "
    if not rows:
        what += "It has no rows to leave out: the state is too large. "
    elif size <= least:
        what += "Less input is not tried. "
    else:
        what += f"It is tried again with {in_units(max(size // 2, least))}. "
    of_executors = cause.startswith("ExecutorLostFailure")
    key = "spark.executor.memory" if of_executors else "spark.driver.memory"
    others = "give its stage more tasks" if of_executors else "run more processors"
    return what + f"If that does not help, raise {key} (now {settings.get(key, 'the default')}) or {others}."


def in_units(size: int) -> str:
    """A number of bytes, for people."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"

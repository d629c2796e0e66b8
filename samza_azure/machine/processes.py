"""How processes end, and that none outlives those above it."""

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing may be imported between fork and exec
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def how_it_ended(code: int) -> str:
    """How a process ended, from `Popen.returncode`: "was killed by signal 9 (SIGKILL)", "exited with code 1"."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def die_with_parent() -> None:
    """Between fork and exec: ask for SIGKILL when the thread that starts this process ends. Survives the exec.

    So start a process that is to live long from the main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of each process below this one whose own parent ends. So none leaves the tree below us."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl failed: {os.strerror(ctypes.get_errno())}")

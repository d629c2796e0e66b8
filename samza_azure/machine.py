"""What both halves of a processor, the supervisor and its container, ask of the machine: its clock, and a common end.

Linux only; elsewhere there is the container image.
"""

import ctypes
import hashlib
import os
import signal
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing may be imported between fork and exec
_PR_SET_PDEATHSIG = 1


def boot_time() -> float:
    """Seconds of CLOCK_BOOTTIME, which goes on while the machine sleeps and is the same for all its processes.

    Only differences of it mean anything.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def place(directory: Path) -> str:
    """Names this start of this machine and a directory on it: where a lock that we hold proves that nobody else runs.

    The same path in another container is another directory, so the mount namespace is part of the name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mounts = Path("/proc/self/ns/mnt").readlink()
    return hashlib.sha256(f"{boot} {mounts} {directory.resolve()}".encode()).hexdigest()[:32]


def die_with_parent() -> None:
    """Between fork and exec: ask for SIGKILL when the thread that starts this process ends. Survives the exec.

    So whoever starts a process that is to live long does it on the main thread.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl failed: {os.strerror(ctypes.get_errno())}")

"""The host's clock: CLOCK_BOOTTIME, which goes on while the machine sleeps. Only differences of it mean anything."""

import hashlib
import time
from pathlib import Path


def now() -> float:
    """Seconds since this machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def place(directory: Path) -> str:
    """Names this start of this machine and a directory on it: where a lock that we hold proves that nobody else runs.

    The same path in another container is another directory, so the mount namespace is part of the name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mounts = Path("/proc/self/ns/mnt").readlink()
    return hashlib.sha256(f"{boot} {mounts} {directory.resolve()}".encode()).hexdigest()[:32]

"""The host's clock: CLOCK_BOOTTIME, which goes on while the machine sleeps. Only differences of it mean anything."""

import time
from pathlib import Path


def now() -> float:
    """Seconds since this machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Names this start of this machine; times and locks of another one say nothing here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

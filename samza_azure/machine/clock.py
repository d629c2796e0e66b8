"""The clocks of this machine."""

import time


def boot_time() -> float:
    """Seconds of CLOCK_BOOTTIME, which runs on while the machine sleeps and is the same for all its processes.

    Only differences between two readings have a meaning.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Milliseconds since 1970 by this machine's clock, for people."""
    return time.time_ns() // 1_000_000

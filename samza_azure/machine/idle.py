"""How much of the machine's processors nobody uses."""

import os
from pathlib import Path

from samza_azure.machine.clock import boot_time

#: The first line of this file is the sum of all processors. Of its columns these count idle time, and time in which
#: a disk is waited for, both in ticks.
STAT = Path("/proc/stat")
IDLE = slice(4, 6)


class IdleCores:
    """Counts from one call to the next. On a machine that does not say it, all count as idle."""

    def __init__(self) -> None:
        self._last = _looked()

    def since_last_call(self) -> float:
        """How many processors' worth of time nobody used since the last call, or since this object was made."""
        (then, before), self._last = self._last, _looked()
        at, idle = self._last
        if at <= then or idle is None or before is None:
            return float(os.cpu_count() or 1)
        return (idle - before) / (at - then)


def _looked() -> tuple[float, float | None]:
    """The time, and the processors' idle seconds until then."""
    now = boot_time()
    try:
        fields = STAT.read_text().split(maxsplit=6)
        return now, sum(int(each) for each in fields[IDLE]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return now, None

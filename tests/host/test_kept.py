"""A command under a keeper. `tests/fleet/test_guard.py` has the processes of a guard, and what is done to them."""

import os
import signal
import threading
from pathlib import Path

from samza_azure.host.kept import End, KeptCommand, only_one
from samza_azure.machine.clock import boot_time


class Slow(float):
    """A time; while it is compared with another one, somebody else says when the command has to end."""

    meanwhile: threading.Thread

    def __lt__(self, other: float) -> bool:
        self.meanwhile.start()
        self.meanwhile.join(0.5)  # it has done so, or waits until this is over
        return super().__lt__(other)


def test_of_two_deadlines_that_come_at_once_the_earlier_one_holds(tmp_path: Path) -> None:
    """One of the signal that the guard got, and one of a notice, on threads of their own."""
    ends = list[End]()
    lock = only_one(tmp_path)
    kept = KeptCommand(
        ["sleep", "600"],
        environment=os.environ,
        until=boot_time() + 600,
        slack_s=1.0,
        lock=lock,
        cgroup=None,
        on_end=lambda _, end: ends.append(end),
    )
    os.close(lock)
    earlier = boot_time() + 300
    later = Slow(earlier + 100)
    later.meanwhile = threading.Thread(target=kept.kill_at, args=[earlier])
    kept.kill_at(later)
    later.meanwhile.join()
    holds = kept._kill_at
    kept.end(signal.SIGKILL, 0.0)
    kept.wait()
    assert (holds, len(ends)) == (earlier, 1)

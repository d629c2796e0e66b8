"""All processes below this one, ended without exception: also those that ignore signals, double-fork or call setsid.

Promised: after `end_all` no process below this one exists. `adopt_orphans` makes this process the new parent of each
process below it whose own parent ends (PR_SET_CHILD_SUBREAPER), so none can leave the tree, and "no child is left to
wait for" proves that it is empty. A cgroup of version 2, where there is one, kills all of it in one step, also what we
may not signal.

Not promised: the end of what others have started on the command's behalf: a daemon (`docker run`, `systemd-run`, `at`)
or another machine (the executors of a cluster).
"""

import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Cgroup", "below", "end_all", "reap"]

#: The pause between two walks while processes are dying: doubled from the first up to the second.
AGAIN_S, AGAIN_MOST_S = 0.005, 0.25


def below(root: int) -> list[int]:
    """The ids of all processes below this one."""
    children = defaultdict[int, list[int]](list)
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it may end meanwhile
                # Split after the name, which may contain anything: state, parent, …
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                children[parent].append(int(process.name))
    found, unseen = list[int](), [root]
    while unseen:
        next_ones = children[unseen.pop()]
        found += next_ones
        unseen += next_ones
    return found


def end_all(cgroup: "Cgroup | None" = None, ended: Callable[[int, int], object] = lambda process, status: None) -> None:
    """Send SIGKILL to all processes below this one until none is left, and wait for each.

    Call `adopt_orphans` before anything is started. `ended` gets the id and the wait status of each child.
    """
    pause_s = AGAIN_S
    while True:
        if cgroup is not None:
            cgroup.kill()
        for process in below(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if not reap(ended):
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, AGAIN_MOST_S)


def reap(ended: Callable[[int, int], object]) -> bool:
    """Wait for the children that have ended. Whether there are others."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if process == 0:
            return True
        ended(process, status)


class Cgroup:
    """A cgroup of version 2 below our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def named(cls, name: str, root: Path = Path("/")) -> "Cgroup | None":
        """Make one, or find it. None where there is no version 2, or it is not ours to change. `root` is for tests."""
        try:
            mounts = (root / "proc/self/mounts").read_text()
            own = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
            at = re.search(r"^\S+ (\S+) cgroup2 ", mounts, re.MULTILINE)
            if own is None or at is None:
                return None
            folder = root / at[1].lstrip("/") / own[1] / name
            folder.mkdir(exist_ok=True)
            is_ours = all(os.access(folder / each, os.W_OK) for each in ("cgroup.kill", "cgroup.procs"))
        except OSError:
            return None
        return cls(folder) if is_ours else None

    def enter(self) -> None:
        """Move this process into it. Whatever it starts is in it, too."""
        with suppress(OSError):  # then the walk ends it
            (self.folder / "cgroup.procs").write_text("0")

    def kill(self) -> None:
        """Kill all processes in it at once."""
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")

    def end(self) -> None:
        """Kill all processes in it, wait until none is left, and remove it."""
        while self._is_populated():
            self.kill()
            time.sleep(AGAIN_S)
        with suppress(OSError):
            self.folder.rmdir()

    def _is_populated(self) -> bool:
        with suppress(OSError):
            return "populated 1" in (self.folder / "cgroup.events").read_text()
        return False

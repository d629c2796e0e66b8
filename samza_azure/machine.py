"""What both halves of a processor, the supervisor and its container, ask of the machine: its clock, its memory, and a
common end.

Linux only; elsewhere there is the container image.
"""

import ctypes
import hashlib
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Of the memory that there is, the part for Java's heap. The other half is for its classes and threads, for RocksDB,
#: for Python's supervisor, container and workers, and for the pages of files.
HEAP = 0.5
#: That other half is never less than this, which an idle processor with two tasks nearly has. In a container of 1 GiB
#: with a heap of half of it the kernel killed the JVM as soon as its state grew.
OUTSIDE_HEAP_MIB = 768
#: On a machine that nobody has divided, other processors may run as well. None takes more than this unasked.
UNDIVIDED_HEAP_MIB = 2_048
#: Spark refuses to start with less than 450 MiB.
LEAST_HEAP_MIB = 512

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


@dataclass(frozen=True, slots=True)
class Memory:
    """What this process and its children may use together, in bytes; and whether a cgroup sets that limit."""

    limit: int
    is_set: bool

    @property
    def heap_mib(self) -> int:
        """The default of `spark.driver.memory`."""
        half = min(int(self.limit * HEAP) >> 20, (self.limit >> 20) - OUTSIDE_HEAP_MIB)
        return max(LEAST_HEAP_MIB, half if self.is_set else min(half, UNDIVIDED_HEAP_MIB))

    def __str__(self) -> str:
        whose = "container or unit" if self.is_set else "machine"
        return f"Java's heap of at most {self.heap_mib} MiB, of the {self.limit >> 20} MiB of the {whose}"


def memory(root: Path = Path("/")) -> Memory:
    """The least of all limits of the cgroups that we are in, or else the machine's memory. `root` is for tests."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    total = int(found[1]) << 10
    limit = min((each for each in _limits(root) if each < total), default=None)
    return Memory(total, is_set=False) if limit is None else Memory(limit, is_set=True)


def memory_kills(root: Path = Path("/")) -> int:
    """How often the kernel has killed a process for want of memory, in our own cgroup: the deepest one that tells.
    Those above it count the kills of our neighbours, too. `root` is for tests."""
    deepest = dict[str, int]()
    for folder, number in _cgroups(root):
        with suppress(OSError):
            text = (folder / ("memory.events" if number == "0" else "memory.oom_control")).read_text()
            for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE):
                deepest[number] = int(count)
    return max(deepest.values(), default=0)


class RecentKills:
    """Whether the kernel has killed a process of ours for want of memory lately: since the look before the last one.

    Not since the last one: a container ends a moment after its JVM was killed, and a look may fall between the two.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = self._last = memory_kills(root)

    def look(self) -> None:
        """To be called now and then."""
        self._before, self._last = self._last, memory_kills(self._root)

    @property
    def any(self) -> bool:
        """Were there some?"""
        return memory_kills(self._root) > self._before


def _limits(root: Path) -> Iterator[int]:
    """A cgroup without a limit says `max`, or a number that no machine has."""
    for folder, number in _cgroups(root):
        with suppress(OSError, ValueError):
            yield int((folder / ("memory.max" if number == "0" else "memory.limit_in_bytes")).read_text())


def _cgroups(root: Path) -> Iterator[tuple[Path, str]]:
    """Where what limits our memory may be said, and the number of the hierarchy; 0 is version 2. From the top down."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and "memory" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("" if number == "0" else "memory")
            # A container may see its own cgroup as the top and its host's path all the same.
            parts = Path(path.lstrip("/")).parts
            for folder in [top, *(top.joinpath(*parts[: depth + 1]) for depth in range(len(parts)))]:
                yield folder, number


def memory_of_session(session: int) -> int:
    """Bytes of memory that the processes of a session use now. What they share counts for each of them."""
    pages = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):  # it may end meanwhile
                # After the name, which may hold anything: state, parent, group, session, ... and the 21st is resident.
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                pages += int(fields[21]) if int(fields[3]) == session else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def die_with_parent() -> None:
    """Between fork and exec: ask for SIGKILL when the thread that starts this process ends. Survives the exec.

    So whoever starts a process that is to live long does it on the main thread.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl failed: {os.strerror(ctypes.get_errno())}")

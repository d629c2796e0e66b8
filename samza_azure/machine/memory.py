"""How much memory there is, who uses how much of it, and whether the kernel has killed for it."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: The share of the memory for Java's heap. The rest is for Java's classes and threads, for RocksDB, for Python's
#: supervisor, container and workers, and for the page cache.
HEAP = 0.5
#: The least to leave outside the heap: an idle processor with two tasks uses nearly this much. In a container of 1 GiB
#: with half of it as heap, the kernel killed the JVM as soon as its state grew.
OUTSIDE_HEAP_MIB = 768
#: The largest default heap on a machine without memory limits, where other processors may run as well.
UNDIVIDED_HEAP_MIB = 2_048
#: Spark refuses to start with less than 450 MiB.
LEAST_HEAP_MIB = 512


@dataclass(frozen=True, slots=True)
class Memory:
    """How many bytes this process and its children may use together, and whether a cgroup sets that limit."""

    limit: int
    is_set: bool

    @property
    def heap_mib(self) -> int:
        """The default of `spark.driver.memory`."""
        half = min(int(self.limit * HEAP) >> 20, (self.limit >> 20) - OUTSIDE_HEAP_MIB)
        return max(LEAST_HEAP_MIB, half if self.is_set else min(half, UNDIVIDED_HEAP_MIB))

    @property
    def is_short(self) -> bool:
        """Whether there is less than what Java's least heap and the memory outside it take."""
        return self.limit >> 20 < LEAST_HEAP_MIB + OUTSIDE_HEAP_MIB

    def __str__(self) -> str:
        whose = "container or unit" if self.is_set else "machine"
        short = ""
        if self.is_short:
            least = LEAST_HEAP_MIB + OUTSIDE_HEAP_MIB
            short = f". This is too little, and the kernel may kill the processor: give it at least {least} MiB"
        return f"Java's heap of at most {self.heap_mib} MiB, of the {self.limit >> 20} MiB of the {whose}{short}"


def memory(root: Path = Path("/")) -> Memory:
    """The least limit of the cgroups that we are in, or else the machine's memory. `root` is for tests."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    total = int(found[1]) << 10
    limit = min((each for each in _limits(root) if each < total), default=None)
    return Memory(total, is_set=False) if limit is None else Memory(limit, is_set=True)


def memory_kills(root: Path = Path("/")) -> int:
    """How often the kernel's OOM killer has killed a process in our cgroup: the deepest one that has a count.

    The cgroups above it also count the kills of our neighbours. `root` is for tests.
    """
    deepest = dict[str, int]()
    for folder, number in _cgroups(root):
        with suppress(OSError):
            text = (folder / ("memory.events" if number == "0" else "memory.oom_control")).read_text()
            for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE):
                deepest[number] = int(count)
    return max(deepest.values(), default=0)


class RecentKills:
    """Whether the OOM killer has killed one of our processes lately, that is, since the last look but one.

    Not since the last: a container ends a moment after its JVM was killed, and a look may fall between the two.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = self._last = memory_kills(root)

    def look(self) -> None:
        """Count the kills. Call it at regular intervals."""
        self._before, self._last = self._last, memory_kills(self._root)

    @property
    def any(self) -> bool:
        """Whether there were kills since the last look but one."""
        return memory_kills(self._root) > self._before


def _limits(root: Path) -> Iterator[int]:
    """The limits of our cgroups. One without a limit says `max`, or a number larger than any memory."""
    for folder, number in _cgroups(root):
        with suppress(OSError, ValueError):
            yield int((folder / ("memory.max" if number == "0" else "memory.limit_in_bytes")).read_text())


def _cgroups(root: Path) -> Iterator[tuple[Path, str]]:
    """The folders that may hold a limit of our memory, from the top down, each with the number of its hierarchy.

    Hierarchy 0 is cgroup version 2.
    """
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and "memory" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("" if number == "0" else "memory")
            # A container may see its own cgroup as the root, and still the path that its host sees.
            parts = Path(path.lstrip("/")).parts
            for folder in [top, *(top.joinpath(*parts[: depth + 1]) for depth in range(len(parts)))]:
                yield folder, number


def use_of_session(session: int) -> tuple[int, float]:
    """Bytes of memory and seconds of CPU of all processes of a session, with the seconds of their ended children.

    Of a page that several processes share, each has its share. Where the kernel does not tell the shares, such a page
    counts once for each process.
    """
    size, ticks = 0, 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):  # it may end meanwhile
                # Split after the name, which may contain anything: state, parent, group, session, …; [21] is rss.
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))  # user and system, its own and those of its children
                    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
                    size += _share_of_memory(process, resident)
    return size, ticks / os.sysconf("SC_CLK_TCK")


def _share_of_memory(process: Path, resident: int) -> int:
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB$", (process / "smaps_rollup").read_text(), re.MULTILINE)
        return resident if found is None else int(found[1]) << 10
    return resident

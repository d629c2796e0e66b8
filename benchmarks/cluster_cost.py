"""What a standalone cluster of two executors of one core costs beside `local[2]`: two stages of one job, on both.

The first stage hashes a text a thousand times a row, in two partitions; the second one counts by windows and key, in
small batches. All rows of a batch are there before it begins, and how long it took is Spark's figure, which ends when
its record is appended. Both are run on each in turn, in both orders, by a fresh container, after half as many batches
that Java needs to get warm. Memory is that of all processes with their part of shared pages, at most while the first
stage runs: the container with its own, and those of the cluster, which are the master, the workers and the executors.

python benchmarks/cluster_cost.py [--quick]
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

import psutil
from batch_cores import EXECUTORS, JOB, PIPELINE, TASK, batch, batches, cluster, texts
from common import BenchJob, Claim, Container, bench_job, main, meanwhile, middle, say
from small_batch import ROWS as SMALL
from small_batch import rows as small_rows

LOCAL, CLUSTER = "local[2]", "cluster of two executors of one core"
LARGE, QUICK_LARGE = 20_000, 5_000
COUNT = "windows-0"


@dataclass(slots=True)
class Found:
    """The figures of one place."""

    large_s: list[float] = field(default_factory=list)  # a batch
    small_s: list[float] = field(default_factory=list)
    container_mib: list[float] = field(default_factory=list)  # at most, one for each turn
    cluster_mib: list[float] = field(default_factory=list)


def measure(quick: bool) -> list[Claim]:
    """Each by turns."""
    rows, large, small = (QUICK_LARGE, 2, 4) if quick else (LARGE, 4, 20)
    found: dict[str, Found] = defaultdict(Found)
    for where in (LOCAL, CLUSTER) if quick else (LOCAL, CLUSTER, CLUSTER, LOCAL):
        with nullcontext(LOCAL) if where == LOCAL else cluster(2) as master:
            job = JOB.format(partitions=2, master=master) + ("" if where == LOCAL else EXECUTORS.format(executors=2))
            turn(job, large, small, rows, found[where])
        say(f"{where}: {found[where]}")
    return [claim for where, each in found.items() for claim in claims(where, rows, each)]


def claims(where: str, rows: int, found: Found) -> Iterator[Claim]:
    """What is shown of one place."""
    large, small = middle(found.large_s), middle(found.small_s)
    yield Claim(f"{where}: a batch of {rows:,} rows that computes much", f"{large:.2f} s, {rows / large:,.0f} rows/s")
    yield Claim(
        f"{where}: a batch of {SMALL:,} rows, windowed",
        f"{1000 * small:.0f} ms ({1000 * min(found.small_s):.0f} to {1000 * max(found.small_s):.0f} ms)",
    )
    yield Claim(
        f"{where}: memory of the container, of the cluster",
        f"{middle(found.container_mib):,.0f} MiB, {middle(found.cluster_mib):,.0f} MiB",
    )


def turn(job: str, large: int, small: int, rows: int, found: Found) -> None:
    """Both stages in a fresh container: so many batches of each are counted, after half as many."""
    with bench_job(job, PIPELINE) as around:
        container = around.container("container")
        container.ready()
        container.run([TASK, COUNT])
        table = texts(rows)
        with highest(around, container) as most:
            for number in range(large + large // 2):
                source = around.source("texts", key=("key",))
                batch(container, TASK, source, table, (number + 1) * rows)
                source.close()
        found.container_mib.append(most[0])
        found.cluster_mib.append(most[1])
        source = around.source("rows")
        for number in range(small + small // 2):
            batch(container, COUNT, source, small_rows(number), (number + 1) * SMALL)
        source.close()
        told = batches(around, container)
        for size, count, to in ((rows, large, found.large_s), (SMALL, small, found.small_s)):
            to.extend([each["triggerExecution"] / 1000 for each in told if each["rows"] == size][-count:])


@contextmanager
def highest(around: BenchJob, container: Container) -> Iterator[list[float]]:
    """How much memory, in MiB, the container's processes and all others but the emulator have at most meanwhile."""
    most = [0.0, 0.0]

    def look() -> None:
        own, emulator = below(container.pid), below(around.emulator.pid)
        others = below(psutil.Process().pid) - {psutil.Process().pid} - own - emulator
        for number, each in enumerate((own, others)):
            most[number] = max(most[number], sum(map(pss_mib, each)))

    with meanwhile(look, 0.5):
        yield most


def below(pid: int) -> set[int]:
    """A process, and all below it."""
    return {pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))}


def pss_mib(pid: int) -> float:
    """The memory of a process, with its part of shared pages."""
    with suppress(psutil.NoSuchProcess):
        return float(psutil.Process(pid).memory_full_info().pss / 2**20)
    return 0.0


if __name__ == "__main__":
    main(measure, __doc__)

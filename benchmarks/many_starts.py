"""A container gets 8 tasks at once, then one gets 32: how long until all run, and what that takes.

Once for each number of cores that Spark is given, because half of them start queries (`spark/query/starts.py`). The
tasks copy rows that are there already, so each appends right after its start. The CPU time is of the container and all
processes below it, from the command until the last task has appended.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import pyarrow as pa
from common import BenchJob, Claim, bench_job, cpu_s, main, say

from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase

JOB = """
[app]
name = "starts"
main = "pipeline:app"
[azure.storage]
connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[task]
"commit.ms" = 0
[spark]
master = "local[%d,4]"
[streams.crowded]
partitions = %d
schema = "n int"
"""
PIPELINE = """
from samza_azure import Application

app = Application()

@app.stage("crowded", output="copied")
def copy(rows):
    return rows
"""
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Started:
    """What a container needed until all tasks ran."""

    running_s: float  # until the last task reported that it runs
    appended_s: float  # until the last task had appended
    cpu_s: float
    megabytes: float  # at most, of the container and all processes below it


def measure(quick: bool) -> list[Claim]:
    """Few tasks, then many."""
    claims = []
    for tasks in (8,) if quick else (8, 32):
        for cores in (2,) if quick else (2, 4, 8):
            with bench_job(JOB % (cores, tasks), PIPELINE) as around:
                found = start(around, tasks)
            figure = (
                f"running {found.running_s:.1f} s, appended {found.appended_s:.1f} s, CPU {found.cpu_s:.1f} s, "
                f"{found.megabytes:.0f} MB"
            )
            say(f"{tasks} tasks, {cores} cores: {figure}")
            claims.append(Claim(f"{tasks} tasks start at once, local[{cores}]", figure))
    return claims


def start(around: BenchJob, tasks: int) -> Started:
    """Start them all, and wait for the last one."""
    source = around.source("crowded")
    for number in range(tasks):
        source.write(pa.table({"n": pa.array([number], pa.int32())}))
        source.flush()  # into the next partition
    source.close()
    container = around.container("container")
    container.permit()
    container.ready()
    names = [f"copy-{number}" for number in range(tasks)]
    with peak_pss(container.pid) as peak:
        before, begun = cpu_s(container.pid), now()
        for name in names:
            container.start(name)
        container.until("running", lambda: all(container.phase(name) is Phase.RUNNING for name in names))
        running = now()
        appended = max(container.first_append(name) for name in names)
        used = cpu_s(container.pid) - before
    return Started(running - begun, appended - begun, used, max(peak) / 2**20)


@contextmanager
def peak_pss(pid: int) -> Iterator[list[int]]:
    """The memory of a process and all below it, looked at again and again. Shared memory counts once."""
    found, over = [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            root, size = psutil.Process(pid), 0
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.Error):  # it has ended
                    size += process.memory_full_info().pss
            found.append(size)
            over.wait(LOOK_S)

    looking = threading.Thread(target=look, name="memory", daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


if __name__ == "__main__":
    main(measure, __doc__)

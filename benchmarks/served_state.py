"""A state of a million keys on a Spark cluster, served by the container over WebHDFS, beside the same on `local[2]`.

One task counts by window and key, its state in RocksDB. It is measured how long a small batch takes with that state,
and how long until another container, which has run the query once, has restored it and appended. On the cluster each
container has one executor of one core, which gets the state's files from the container. It is also printed how much
memory the container's Python process, which serves them, has before and after, at most.

python benchmarks/served_state.py [--quick]
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import psutil
import pyarrow as pa
from batch_cores import EXECUTORS, cluster
from common import BenchJob, Claim, Container, bench_job, main, meanwhile, middle, say
from replicas import PIPELINE, TS

from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase

KEYS, QUICK_KEYS, A_FLUSH, SMALL = 1_000_000, 100_000, 50_000, 1_000
BATCHES = 8
TASK = "counts-0"
JOB = """
[app]
name = "served"
main = "pipeline:app"
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
[task]
state = "rocksdb"
commit.ms = 200
[streams.rows]
partitions = 1
key = "key"
schema = "key string, ts timestamp"
event_time = "ts"
[streams.counted]
[spark]
master = "{master}"
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds, and MiB of the processes that serve."""

    small_s: float
    running_s: float
    appended_s: float
    before_mib: float
    at_most_mib: float


def measure(quick: bool) -> list[Claim]:
    """Both, one after the other."""
    keys = QUICK_KEYS if quick else KEYS
    claims = []
    for where in ("local[2]", "a cluster"):
        with nullcontext(where) if where == "local[2]" else cluster(2) as master:
            job = JOB.format(master=master) + ("" if where == "local[2]" else EXECUTORS.format(executors=1))
            found = run(keys, job)
        claims += [
            Claim(f"{where}: a batch of {SMALL:,} rows with {keys:,} keys", f"{found.small_s:.2f} s"),
            Claim(
                f"{where}: moved, until it runs, and until its first append",
                f"{found.running_s:.1f} s, {found.appended_s:.1f} s",
            ),
            Claim(
                f"{where}: memory of the container's Python, before and at most",
                f"{found.before_mib:.0f} MiB, {found.at_most_mib:.0f} MiB",
            ),
        ]
    return claims


def run(keys: int, job: str) -> Found:
    """Two containers, of which the second one takes the task over, and back."""
    with bench_job(job, PIPELINE) as around:
        here, there = around.container("here"), around.container("there")
        for container in (here, there):
            container.ready()
            container.permit()
        before = max(_mib(each) for each in (here, there))
        with highest(here, there) as most:
            here.start(TASK)
            produce(around, 0, SMALL)
            here.until("the first rows are counted", lambda: _rows(here) >= SMALL)
            move(around, here, there, SMALL, 2)
            here, there = there, here
            for start in range(2 * SMALL, keys, A_FLUSH):
                produce(around, start, min(A_FLUSH, keys - start))
            read = keys - SMALL  # by this owner
            here.until("the state is there", lambda: _rows(here) >= read, patience_s=600)
            say(f"{keys:,} keys are there")
            took = []
            for number in range(BATCHES):
                begun = now()
                produce(around, number * SMALL, SMALL)
                wanted = read + (number + 1) * SMALL
                here.until("the next batch", lambda: _rows(here) >= wanted)  # noqa: B023 - used at once
                took.append(now() - begun)
            running, appended = move(around, here, there, 0, 3)
            found = Found(middle(took[2:]), running, appended, before, max(most))
    say(f"{found}")
    return found


def move(around: BenchJob, here: Container, there: Container, start: int, generation: int) -> tuple[float, float]:
    """Seconds from the command to start it there until it runs, and until its first append."""
    here.release(TASK)
    here.until("released", lambda: here.phase(TASK, generation - 1) is Phase.RELEASED)
    produce(around, start, SMALL)
    begun = now()
    there.start(TASK, generation, first=False)
    there.until("running", lambda: there.phase(TASK, generation) is Phase.RUNNING, patience_s=600)
    running = now() - begun
    return running, there.first_append(TASK, generation) - begun


def produce(around: BenchJob, start: int, count: int) -> None:
    """Rows with the keys from `start` on."""
    source = around.source("rows", key=("key",))
    keys = [f"key-{number:012}" for number in range(start, start + count)]
    source.write(pa.table({"key": keys, "ts": pa.repeat(TS, count)}))
    source.close()


@contextmanager
def highest(*containers: Container) -> Iterator[list[float]]:
    """How much memory their Python processes have, looked at all the time."""
    most = [0.0]

    def look() -> None:
        most[0] = max(most[0], *(_mib(each) for each in containers))

    with meanwhile(look, 0.2):
        yield most


def _mib(container: Container) -> float:
    return float(psutil.Process(container.pid).memory_info().rss / 2**20)


def _rows(container: Container) -> int:
    report = container.reports.get(TASK)
    return report.progress.rows if report is not None and report.progress is not None else 0


if __name__ == "__main__":
    main(measure, __doc__)

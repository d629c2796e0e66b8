"""What several partitions a batch (`stages.<name>.partitions`) gain for a task whose stage computes much.

One task, whose rows are all there before the time counts: with one partition and with two, on a Spark of its own with
two cores; then with two on a standalone cluster, whose executors have one core each: one of them, and both. The stage
hashes a text a thousand times a row, so the source is a small part of it.

python benchmarks/batch_cores.py [--quick]
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from common import BenchJob, Claim, Container, bench_job, main, middle, say, scratch

from samza_azure.machine.processes import die_with_parent
from samza_azure.messages import Phase

GOAL = 1.6
ROUNDS, WARM = 3, 2
KEYS = 1_000
JOB = """
[app]
name = "cores"
main = "pipeline:app"
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
[streams.seen]
key = "key"
schema = "key string, n bigint"
[stages.hash]
partitions = {partitions}
[task]
commit.ms = 0
batch.bytes = "64 MiB"
warm.up = false
[spark]
master = "{master}"
"""
EXECUTORS = """
cores.max = {executors}
executor.cores = 1
executor.memory = "700m"
"""
PIPELINE = """
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()


@app.stage("seen", output="hashed")
def hash(rows: DataFrame) -> DataFrame:
    hashed = "aggregate(sequence(1, 1000), concat(key, n), (text, _) -> sha2(text, 256))"
    return rows.withColumn("hashed", F.expr(hashed))
"""


def measure(quick: bool) -> list[Claim]:
    """Each way in turn."""
    rows = 10_000 if quick else 30_000
    one, two = (seconds_of(rows, JOB.format(partitions=number, master="local[2]")) for number in (1, 2))
    with cluster(2) as master:
        job = JOB.format(partitions=2, master=master)
        alone, both = (seconds_of(rows, job + EXECUTORS.format(executors=number)) for number in (1, 2))
    return [
        Claim(f"a batch of {rows:,} rows on two cores, one partition", f"{one:.2f} s"),
        Claim("two partitions", f"{two:.2f} s, {one / two:.2f} times as fast", f"{GOAL}", one / two >= GOAL),
        Claim("two partitions, on a cluster with an executor of one core", f"{alone:.2f} s"),
        Claim(
            "the same with two executors",
            f"{both:.2f} s, {alone / both:.2f} times as fast",
            f"{GOAL}",
            alone / both >= GOAL,
        ),
    ]


def seconds_of(rows: int, job: str) -> float:
    """The middle of some batches, after some that Java needs to get warm."""
    numbers = pa.array(range(rows))
    table = pa.table({"key": [f"{each % KEYS}" for each in range(rows)], "n": numbers})
    with bench_job(job, PIPELINE) as around:
        container = around.container("container")
        [task] = container.ready().tasks()
        container.permit()
        container.start(task)
        container.until("the task runs", lambda: container.phase(task) is Phase.RUNNING)
        took = [seconds_of_one(around, container, task, table) for _ in range(WARM + ROUNDS)]
        say(f"{job.partition('[spark]')[2].split()}: {', '.join(f'{each:.2f}' for each in took)} s")
    return middle(took[WARM:])


def seconds_of_one(around: BenchJob, container: Container, task: str, table: pa.Table) -> float:
    """Of a batch with all these rows."""
    wanted = put_out(container, task) + table.num_rows
    container.permit(0)
    source = around.source("seen", key=("key",))
    source.write(table)
    source.close()
    container.permit()
    begun = time.monotonic()
    container.until("all is hashed", lambda: put_out(container, task) >= wanted)
    return time.monotonic() - begun


def put_out(container: Container, task: str) -> int:
    """The rows that a task has emitted so far."""
    progress = container.reports[task].progress
    return 0 if progress is None else progress.rows_out


@contextmanager
def cluster(workers: int, page: int | None = None) -> Iterator[str]:
    """A standalone cluster of this machine, with a core for each worker. Its master has a page, at this port."""
    port = free_port()
    commands = [["master", "--host", "127.0.0.1", "--port", str(port), "--page", str(page or free_port())]]
    master = f"spark://127.0.0.1:{port}"
    with scratch() as folder:
        for number in range(2, 2 + workers):
            options = ["--master", master, "--host", f"127.0.0.{number}", "--cores", "1", "--memory-mib", "900"]
            commands.append(["worker", *options, "--dir", str(folder / f"{number}")])
        running = [started(command, folder) for command in commands]
        try:
            yield master
        finally:
            for each in running:
                each.kill()
                each.wait()


def started(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """A daemon of the cluster, which dies with this process."""
    with (folder / "cluster.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "samza_azure", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ,
            preexec_fn=die_with_parent,
        )


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(measure, __doc__)

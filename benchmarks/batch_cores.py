"""What several partitions a batch (`stages.<name>.partitions`) gain for a task whose stage computes much.

One task, whose rows are all there before the time counts: with one partition and with two, on a Spark of its own with
two cores; then with two on a standalone cluster, whose executors have one core each: one of them, and both; then all
four in the other order, each in a fresh container. The stage hashes a text a thousand times a row, so the source is a
small part of it. How long a batch took is Spark's figure, which ends when its record is appended.

Beside it is what the machine has to give: the same column computed by plain Spark in a process with one core, and half
of the rows in each of two such processes at the same time, by turns. Nothing passes between these, so two executors
cannot gain more.

python benchmarks/batch_cores.py [--quick]
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import BenchJob, Claim, Container, bench_job, main, middle, say, scratch

from samza_azure.machine.processes import die_with_parent
from samza_azure.stream_io.source_stream import SourceWriter

GOAL = 1.6
ROUNDS, WARM = 3, 2
ROWS, QUICK_ROWS = 20_000, 5_000
ONE, TWO = "on two cores, one partition", "on two cores, two partitions"
ALONE, BOTH = "two partitions, on a cluster with an executor of one core", "the same with two executors"
WAYS = (ONE, TWO, ALONE, BOTH)
TASK = "hash-0"
KEYS = 1_000
JOB = """
[app]
name = "cores"
main = "pipeline:app"
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
[streams.texts]
key = "key"
schema = "key string, n bigint"
[streams.rows]
schema = "key string, ts timestamp, value double"
event_time = "ts"
[stages.hash]
partitions = {partitions}
[task]
commit.ms = 0
batch.bytes = "64 MiB"
warm.up = false
[spark]
master = "{master}"
sql.streaming.numRecentProgressUpdates = "10000"
"""
EXECUTORS = """
cores.max = {executors}
executor.cores = 1
executor.memory = "700m"
"""
#: Of columns key and n.
HASHED = "aggregate(sequence(1, 1000), concat(key, n), (text, _) -> sha2(text, 256))"
#: The pipeline of watched.py, whose stage is windows, with one more.
PIPELINE = f"""{Path(__file__).with_name("watched.py").read_text()}

@app.stage("texts", output="hashed")
def hash(rows: DataFrame) -> DataFrame:
    return rows.withColumn("hashed", F.expr("{HASHED}"))
"""


def measure(quick: bool) -> list[Claim]:
    """Each way by turns, in both orders, and between these what the machine has to give."""
    rows = QUICK_ROWS if quick else ROWS
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        found[way] += seconds_of(way, rows)
    single, halves = apart(rows)
    for way in () if quick else reversed(WAYS):
        found[way] += seconds_of(way, rows)
    one, two, alone, both = map(middle, found.values())
    return [
        Claim(f"a batch of {rows:,} rows, {ONE}", f"{one:.2f} s"),
        gained(TWO, one, two),
        Claim(ALONE, f"{alone:.2f} s"),
        gained(BOTH, alone, both),
        Claim("plain Spark, the same column in one process of one core", f"{single:.2f} s"),
        Claim("half of the rows in each of two processes", f"{halves:.2f} s, {single / halves:.2f} times as fast"),
    ]


def gained(way: str, before_s: float, s: float) -> Claim:
    """What is aimed at."""
    return Claim(way, f"{s:.2f} s, {before_s / s:.2f} times as fast", f"{GOAL}", before_s / s >= GOAL)


def seconds_of(way: str, rows: int) -> list[float]:
    """Of some batches, after some that Java needs to get warm."""
    with cluster(2) if way in (ALONE, BOTH) else nullcontext("local[2]") as master:
        job = JOB.format(partitions=1 if way == ONE else 2, master=master)
        if way in (ALONE, BOTH):
            job += EXECUTORS.format(executors=1 if way == ALONE else 2)
        with bench_job(job, PIPELINE) as around:
            container = around.container("container")
            container.ready()
            container.run([TASK])
            for number in range(WARM + ROUNDS):
                source = around.source("texts", key=("key",))
                batch(container, TASK, source, texts(rows), (number + 1) * rows)
                source.close()
            took = [each["triggerExecution"] / 1000 for each in batches(around, container) if each["rows"] == rows]
    say(f"{way}: {', '.join(f'{each:.2f}' for each in took)} s")
    if len(took) != WARM + ROUNDS:
        raise SystemExit(f"{len(took)} batches have had {rows:,} rows.")
    return took[WARM:]


def texts(rows: int) -> pa.Table:
    """What is hashed."""
    return pa.table({"key": [f"{each % KEYS}" for each in range(rows)], "n": range(rows)})


def batch(container: Container, task: str, source: SourceWriter, table: pa.Table, wanted: int) -> None:
    """One with all these rows, after which the task has read so many."""
    container.permit(0)
    source.write(table)
    source.flush()
    container.permit()
    container.until("all is read", lambda: rows_in(container, task) >= wanted)


def rows_in(container: Container, task: str) -> int:
    """The rows that a task has read so far."""
    report = container.reports.get(task)
    return report.progress.rows if report is not None and report.progress is not None else 0


def batches(around: BenchJob, container: Container) -> list[dict[str, Any]]:
    """Spark's progress of all batches of the pipeline so far."""
    (around.directory / "tell").touch()
    told = around.directory / "progress.json"
    container.until("progress is told", told.exists)
    found: list[dict[str, Any]] = json.loads(told.read_text())
    return found


def apart(rows: int) -> tuple[float, float]:
    """How long one process takes for the column of so many rows, and two for half of them each, by turns."""
    with scratch() as work, computing(work / "one") as one, computing(work / "other") as other:
        found = [(seconds_apart(rows, one), seconds_apart(rows // 2, one, other)) for _ in range(WARM + 2 * ROUNDS)]
    say("plain Spark in one process, in two: " + ", ".join(f"{one:.2f}, {two:.2f}" for one, two in found) + " s")
    single, halves = zip(*found[WARM:], strict=True)
    return middle(single), middle(halves)


def seconds_apart(rows: int, *processes: "subprocess.Popen[str]") -> float:
    """Until each of them has computed so many."""
    begun = time.monotonic()
    for each in processes:
        assert each.stdin is not None
        each.stdin.write(f"{rows}\n")
        each.stdin.flush()
    for each in processes:
        assert each.stdout is not None
        if each.stdout.readline().strip() != f"{rows}":
            raise SystemExit(f"Plain Spark ended with {each.wait()}.")
    return time.monotonic() - begun


@contextmanager
def computing(work: Path) -> Iterator["subprocess.Popen[str]"]:
    """A plain Spark with one core that computes the column of as many rows as it is told."""
    work.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), "column", str(work), HASHED]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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

"""A task with a large state moves between two warm containers that know its query: with a replica there, and without.

Measured from the command to start it until its query runs, and until its first append, while rows come in. The state is
in RocksDB. That leaves out how long the others need to notice that an owner has died: `fail_over.py` and `explain` say
that. How long a copy of the state takes is printed, too, and how much disk it needs.
"""

import random
from pathlib import Path

import pyarrow as pa
from common import BenchJob, Claim, Container, bench_job, main, middle, say

from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase
from samza_azure.stream_io.source_stream import SourceWriter

JOB = """
[app]
name = "replicas"
main = "pipeline:app"
[azure.storage]
connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[task]
state = "rocksdb"
commit.ms = 200
[streams.rows]
partitions = 1
schema = "key string, ts timestamp"
event_time = "ts"
[streams.counted]
"""
PIPELINE = """
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()


@app.stage("rows", output="counted")
def counts(rows):
    return rows.withWatermark("ts", "1 day").groupBy(F.window("ts", "7 days"), "key").count()
"""
TASK = "counts-0"
KEY_BYTES, FLUSH_ROWS, QUICK_MB, MB = 400, 20_000, 5, 100
TS = pa.scalar(1_600_000_000_000_000, pa.timestamp("us", "UTC"))


def measure(quick: bool) -> list[Claim]:
    """To and fro by turns, with a replica and without."""
    size = (QUICK_MB if quick else MB) * 1_000_000
    with bench_job(JOB, PIPELINE) as around:
        here, there = around.container("here"), around.container("there")
        for container in (here, there):
            container.ready()
            container.permit()
        source, dice = around.source("rows"), random.Random(1)
        here.start(TASK)
        for done in range(0, size, KEY_BYTES * FLUSH_ROWS):
            _flush(source, dice, FLUSH_ROWS)
            say(f"{done / 1e6:.0f} MB of keys are produced")
        here.until("the state is there", lambda: _rows(here) >= size // KEY_BYTES, patience_s=900)
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        generation, copied = 1, []
        for number in range(4 if quick else 8):
            has_replica, is_first = number % 2 == 1, number < 2
            there.keep_replicas(*([TASK] if has_replica else []))
            begun = now()
            if has_replica:
                there.until("a replica", lambda: TASK in there.replicas)  # noqa: B023
                copied.append((now() - begun, there.replicas[TASK].size, _disk(there)))
                took_s, replica, disk = copied[-1]
                say(f"copied in {took_s:.1f} s, {replica / 1e6:.0f} MB, of it on the disk {disk / 1e6:.0f} MB")
            generation += 1
            took = _move(around, source, dice, here, there, generation)
            say(f"replica {has_replica}: running after {took[0]:.2f} s, first append after {took[1]:.2f} s")
            if not is_first:
                times[has_replica].append(took)
            here, there = there, here
    claims = []
    for has_replica, what in ((True, "with a replica"), (False, "without")):
        running, appended = (middle([each[part] for each in times[has_replica]]) for part in (0, 1))
        figure = f"{running:.2f} s, {appended:.2f} s (median of {len(times[has_replica])})"
        claims.append(
            Claim(f"{copied[-1][1] / 1e6:.0f} MB of state, {what}: start to running, to first append", figure)
        )
    most = max(each[2] / each[1] for each in copied)
    claims.append(
        Claim("the replica is copied in", f"{middle([each[0] for each in copied]):.1f} s, {most:.2f} x its size")
    )
    return claims


def _move(
    around: BenchJob, source: SourceWriter, dice: random.Random, here: Container, there: Container, generation: int
) -> tuple[float, float]:
    here.release(TASK)
    here.until("released", lambda: here.phase(TASK, generation - 1) is Phase.RELEASED)
    _flush(source, dice, 50)
    begun = now()
    there.start(TASK, generation, first=False)
    there.until("running", lambda: there.phase(TASK, generation) is Phase.RUNNING)
    running_s = now() - begun
    return running_s, there.first_append(TASK, generation) - begun


def _flush(source: SourceWriter, dice: random.Random, count: int) -> None:
    """Rows with keys that no row has had, as random as keys can be."""
    keys = [dice.randbytes(KEY_BYTES // 2).hex() for _ in range(count)]
    source.write(pa.table({"key": keys, "ts": pa.repeat(TS, count)}))
    source.flush()


def _rows(container: Container) -> int:
    report = container.reports.get(TASK)
    return report.progress.rows if report is not None and report.progress is not None else 0


def _disk(container: Container) -> int:
    """The bytes below the folder of replicas."""
    return sum(path.stat().st_size for path in Path(container.directory, "replicas").rglob("*") if path.is_file())


if __name__ == "__main__":
    main(measure, __doc__)

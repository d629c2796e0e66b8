"""Twenty thousand batches of one join task: memory and file handles stay as they are.

python tests/prove/soak.py [--batches 20000]

Printed are, at intervals: what this process (the container's Python side) and the JVM have in memory, the heap after a
collection, open files of both, and the sizes of what is kept per task. From the first fourth on none may grow by more
than a fixed amount and a small one per batch, by the median of what each two samples say; else the program ends with 1.
An hour and a quarter on two cores with nothing beside it; --batches 2000 says most of it in ten minutes. In
shorter runs the names still rise: it takes some minutes until Spark removes as many as it adds.
"""

import argparse
import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path

import psutil
import pyarrow as pa
from py4j.finalizer import ThreadSafeFinalizer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

sys.path[:0] = [str(Path(__file__).parents[2])]

from samza_azure.application import Application  # noqa: E402  (needs the path above)
from samza_azure.stream_io.source_stream import SourceWriter  # noqa: E402
from tests.spark.alone import Alone, alone  # noqa: E402
from tests.spark.task_driver import Fleet, config_of  # noqa: E402

SAMPLES = 40
TASK, PERMIT_S, MINUTE_S = "match-0", 3600, 60
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
JOB = """
[streams.left]
schema = "key string, ts timestamp"
event_time = "ts"
[streams.right]
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
"""

#: By how much each may grow: at all, since collectors and allocators breathe, and per batch.
MIB = 1 << 20
ALLOWED = {
    "Python": (8 * MIB, 200),
    "JVM": (64 * MIB, 1000),
    "heap": (8 * MIB, 300),
    "Python's files": (2, 0),
    "JVM's files": (8, 0),
    # Spark cleans up once a minute, and so do we: these are for each batch of a minute, whatever the speed.
    "names": (3, 0),
    "files in the log": (3, 0),
    "their bytes": (1 * MIB, 0),
    "objects": (5000, 0.5),
    "Java's objects": (100, 0),  # to which Python refers, without the help of its cyclic collector
}


def joined() -> Application:
    """Partners within five seconds of each other."""
    application = Application()

    @application.stage("left", "right", output="pairs")
    def match(left: DataFrame, right: DataFrame) -> DataFrame:
        ours = left.withWatermark("ts", "5 seconds").select("key", "ts")
        theirs = right.withWatermark("ts", "5 seconds").select(F.col("key").alias("their"), F.col("ts").alias("at"))
        near = F.expr("key = their AND at BETWEEN ts - INTERVAL 5 seconds AND ts + INTERVAL 5 seconds")
        return ours.join(theirs, near).select("key", F.col("ts").cast("string").alias("when"))

    return application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20_000)
    batches = parser.parse_args().batches
    with alone({"spark.driver.memory": "1g"}) as around:
        config = config_of(around.directory, JOB)
        fleet = Fleet(around.spark, around.account, config, joined(), around.directory / "fleet")
        try:
            return soak(around, fleet, batches)
        finally:
            fleet.close()


def soak(around: Alone, fleet: Fleet, batches: int) -> int:
    """Feed the task until it has run this many batches, and judge."""
    writers = [fleet.writer(stream, 1, flush_rows=1000) for stream in ("left", "right")]
    fleet.start(TASK)
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in ALLOWED}
    print("".join(f"{name:>17}" for name in ("batch", *ALLOWED, "batches/s")))
    begun, written, last = time.monotonic(), 0, 0
    done = deque([(begun, 0)])  # when each batch of the last minute was
    every = max(1, batches // SAMPLES)
    while last < batches:
        written = feed(fleet, writers, written)
        batch = fleet.tasks[TASK].report.batch
        done.append((time.monotonic(), batch))
        while len(done) > 2 and done[-1][0] - done[0][0] > MINUTE_S:
            done.popleft()
        if batch // every == last // every:
            continue
        rate, begun = (batch - last) / (time.monotonic() - begun), time.monotonic()
        last = batch
        for name, value in figures(around, fleet, batch - done[0][1]).items():
            found[name].append((batch, value))
        values = (found[name][-1][1] for name in ALLOWED)
        shown = (f"{value:>17,.{int(value < 100)}f}" for value in values)
        print(f"{batch:>17,}{''.join(shown)}{rate:>17.1f}", flush=True)
    return judged(found, ALLOWED)


def feed(fleet: Fleet, writers: list[SourceWriter], second: int) -> int:
    """One more second of both streams, and a batch with it."""
    fleet.allow(PERMIT_S)
    before = fleet.tasks[TASK].report.batch
    rows = [{"key": f"key-{number}", "ts": START + timedelta(seconds=second)} for number in range(5)]
    for writer in writers:
        writer.write(pa.Table.from_pylist(rows, schema=SCHEMA))
        writer.flush()
    fleet.hints.poll()  # the batch begins now, instead of up to a fifth of a second later
    fleet.until(lambda: fleet.tasks[TASK].report.batch > before)
    return second + 1


def figures(around: Alone, fleet: Fleet, per_minute: int) -> dict[str, float]:
    """What there is to be seen now, after so many batches in the last minute."""
    java = len(ThreadSafeFinalizer.finalizers)
    gc.collect()
    task, python = fleet.tasks[TASK], psutil.Process()
    assert task._batches is not None
    assert task._writer is not None
    heap = around.heap_bytes()
    return {
        "Python": python.memory_info().rss,
        "JVM": around.jvm.memory_info().rss,
        "heap": heap,
        "Python's files": python.num_fds(),
        "JVM's files": around.jvm.num_fds(),
        "names": task._batches._files.tracked / per_minute,
        "files in the log": len(task._writer._log.files) / per_minute,
        "their bytes": task._writer.held_bytes,
        "objects": len(gc.get_objects()),
        "Java's objects": java,
    }


def judged(found: Mapping[str, Sequence[tuple[float, float]]], allowed: Mapping[str, tuple[float, float]]) -> int:
    """1 if anything grows by more than it may: at all, and per batch."""
    grown = False
    for name, samples in found.items():
        counted = samples[len(samples) // 4 :]
        batches = counted[-1][0] - counted[0][0]
        slope = rise(counted)
        at_all, per_batch = allowed[name]
        bound = at_all + per_batch * batches
        verdict = "grows" if slope * batches > bound else "stays"
        grown |= verdict == "grows"
        print(
            f"{name}: {slope:+.1f} per batch, {slope * batches:+,.0f} over {batches} batches, {verdict} "
            f"(allowed: {bound:,.0f})"
        )
    return int(grown)


def rise(samples: Sequence[tuple[float, float]]) -> float:
    """Growth per batch: the median over all pairs of samples (Theil and Sen).

    A straight line through all samples would follow the few that are much higher than the others: one of them at the
    end would count as growth. Steady growth shows in most pairs.
    """
    pairs = combinations(samples, 2)
    return statistics.median(
        (after - before) / (last - first) for (first, before), (last, after) in pairs if last > first
    )


if __name__ == "__main__":
    sys.exit(main())

"""Outputs larger than any heap: one batch of 2 GB from a JVM of 512 MB, then a flush of five million windows.

python tests/prove/large_output.py [--rows 2000000] [--windows 5000000]

The first task explodes 2,000 rows, which are one batch, into rows of a KiB. The second counts rows by window and key,
in RocksDB, and a drain fires all windows in one batch. Both outputs must be exact. Printed are the times, and the most
memory that the JVM and this process had; the JVM's must stay below the heap and 1 GiB, ours below 1 GiB.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

sys.path[:0] = [str(Path(__file__).parents[2])]

import tests.spark.task_driver as driver  # noqa: E402  (needs the path above)
from samza_azure.application import Application  # noqa: E402
from samza_azure.logs.names import large_prefix  # noqa: E402
from tests.spark.alone import Alone, alone, peak_bytes  # noqa: E402
from tests.spark.task_driver import Fleet, config_of  # noqa: E402
from tests.storage.stored_rows import batches_of  # noqa: E402

HEAP_MIB = 512
MIB = 1 << 20
EACH = 1_000
CHUNK = 100_000
DAY = datetime(2024, 1, 1, tzinfo=UTC)
JOB = """
[streams.few]
schema = "id bigint, ts timestamp"
event_time = "ts"
[streams.seen]
schema = "id bigint, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
state = "rocksdb"
"""


def exploding() -> Application:
    """A thousand rows for each."""
    application = Application()

    @application.stage("few", output="many")
    def many(rows: DataFrame) -> DataFrame:
        each = rows.select(F.explode(F.sequence(F.col("id") * EACH, F.col("id") * EACH + EACH - 1)).alias("id"))
        return each.selectExpr(
            "id", "concat_ws('', transform(sequence(0, 7), i -> sha2(concat_ws('-', id, i), 512))) AS wide"
        )

    return application


def counting() -> Application:
    """How often each id came, by day: a window for each."""
    application = Application()

    @application.stage("seen", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        days = F.window("ts", "1 day")
        return rows.withWatermark("ts", "0 seconds").groupBy(days, "id").agg(F.count("*").alias("n"))

    return application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--windows", type=int, default=5_000_000)
    chosen = parser.parse_args()
    driver.PATIENCE_S = 3600.0
    with alone({"spark.driver.memory": f"{HEAP_MIB}m"}) as around:
        return max(explode(around, chosen.rows), flush(around, chosen.windows))


def explode(around: Alone, count: int) -> int:
    """All rows come out of one batch."""
    run = fleet_in(around, exploding())
    write(run, "few", count // EACH)
    begun = time.monotonic()
    run.start("many-0")
    run.until_all_is_read("few")
    said(f"{count:,} rows out of {run.tasks['many-0'].report.batch + 1} batch", begun)
    run.drain()

    def is_right(batch: pa.RecordBatch) -> bool:
        wide = zip(batch.column("id").to_pylist(), batch.column("wide").to_pylist(), strict=True)
        return all(
            len(text) == 1024 and text.startswith(hashlib.sha512(f"{number}-0".encode()).hexdigest())
            for number, text in wide
        )

    return judged(around, run, "many", count, is_right)


def flush(around: Alone, count: int) -> int:
    """All windows come out of the batch that ends a drain."""
    run = fleet_in(around, counting())
    write(run, "seen", count)
    begun = time.monotonic()
    run.start("count-0")
    run.until_all_is_read("seen")
    said(f"{count:,} windows in state, {run.tasks['count-0'].report.batch + 1} batches", begun)
    begun = time.monotonic()
    run.drain()
    said("flushed", begun)
    return judged(around, run, "counts", count, lambda batch: pc.all(pc.equal(batch.column("n"), 1)).as_py())


def fleet_in(around: Alone, application: Application) -> Fleet:
    """One task's container."""
    return Fleet(
        around.spark, around.account, config_of(around.directory, JOB), application, around.directory / "fleet"
    )


def write(run: Fleet, stream: str, count: int) -> None:
    """One row per id, all on one day."""
    writer = run.writer(stream, 1, flush_rows=CHUNK)
    for start in range(0, count, CHUNK):
        ids = pa.array(range(start, min(start + CHUNK, count)), pa.int64())
        writer.write(pa.table({"id": ids, "ts": pa.array([DAY] * len(ids), pa.timestamp("us", tz="UTC"))}))
    writer.close()


def judged(around: Alone, run: Fleet, stream: str, count: int, is_right: Callable[[pa.RecordBatch], bool]) -> int:
    """Print what was needed; 1 if rows are wrong or memory was not bounded."""
    peak, own = peak_bytes(around.jvm), peak_bytes(psutil.Process())
    (task,) = run.tasks
    log, blobs = f"runs/{run.run_id}/{task}", around.account.blobs()
    beside = [size for _, size in blobs.list(f"{large_prefix(log)}/")]
    print(f"at most: JVM {peak / MIB:,.0f} MiB with a heap of {HEAP_MIB} MiB, Python {own / MIB:,.0f} MiB")
    most = max(beside, default=0) / MIB
    print(f"beside the log: {len(beside)} blobs, {sum(beside) / MIB:,.0f} MiB, the largest {most:.0f} MiB")
    wrong = mistakes(batches_of(blobs, stream, [run.run_id]), count, is_right)
    print(f"output: {wrong or 'exact'}", flush=True)
    return int(bool(wrong) or peak > (HEAP_MIB + 1024) * MIB or own > 1024 * MIB)


def mistakes(batches: Iterator[pa.RecordBatch], count: int, is_right: Callable[[pa.RecordBatch], bool]) -> str:
    """What is wrong with the output; empty if it is exact."""
    rows = twice = size = 0
    seen = bytearray(count)
    for batch in batches:
        for number in batch.column("id").to_pylist():
            twice += seen[number]
            seen[number] = 1
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if not is_right(batch):
            return "a row holds something else"
    print(f"{size / MIB:,.0f} MiB of rows, unpacked")
    return "" if rows == count and not twice else f"{rows} rows, not {count}; {twice} of them twice"


def said(what: str, begun: float) -> None:
    """And how long it took."""
    print(f"{what}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

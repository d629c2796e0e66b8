"""State of five million keys on one processor with a heap of 2 GB, in RocksDB: written, moved, drained.

python tests/prove/large_state.py [--keys 5000000] [--heap 2g]

One task counts rows per key and day. It is released, another instance restores it in an empty directory from the log
alone and goes on, and a drain fires all windows: the output must have each key once, with its count. Printed are the
times, the sizes, and the most memory that the JVM and this process have ever had; the JVM's must stay below the heap
and 1 GiB. About ten minutes on two cores.
"""

import argparse
import sys
import time
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

TASK = "count-0"
MIB = 1 << 20
CHUNK = 100_000
DAY = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
JOB = """
[streams.seen]
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 MiB"
state = "rocksdb"
"""


def counting() -> Application:
    """How often each key came on each day."""
    application = Application()

    @application.stage("seen", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        days = F.window("ts", "1 day")
        return rows.withWatermark("ts", "0 seconds").groupBy(days, "key").agg(F.count("*").alias("n"))

    return application


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--heap", default="2g")
    chosen = parser.parse_args()
    driver.PATIENCE_S = 3600.0
    with alone({"spark.driver.memory": chosen.heap}) as around:
        return moved(around, chosen.keys, int(chosen.heap.removesuffix("g")) << 30)


def moved(around: Alone, keys: int, heap: int) -> int:
    """The life of the task; 1 if rows are wrong or memory is not bounded."""
    first = fleet_in(around, "first")
    begun = time.monotonic()
    write(first, range(keys))
    said("rows written", begun)
    begun = time.monotonic()
    first.start(TASK)
    first.until_all_is_read("seen")
    said(f"{keys:,} keys counted, {first.tasks[TASK].report.batch + 1} batches", begun)
    begun = time.monotonic()
    first.release(TASK)
    said("released", begun)
    log = f"runs/{first.run_id}/{TASK}"
    blobs = around.account.blobs()
    print(
        f"log {total(blobs.list(f'{log}/')):,.0f} MiB, beside it {total(blobs.list(f'{large_prefix(log)}/')):,.0f} MiB"
    )

    second = fleet_in(around, "second")
    second.run_id, second.group_id, second.generation = first.run_id, first.group_id, first.generation
    write(second, range(0, keys, 50))
    begun = time.monotonic()
    before = first.tasks[TASK].report.batch
    second.start(TASK, first=False)
    second.until(lambda: second.tasks[TASK].report.batch > before)
    said("restored elsewhere, until its first append", begun)
    second.until_all_is_read("seen")
    begun = time.monotonic()
    second.drain()
    said("drained", begun)
    peak, own = peak_bytes(around.jvm), peak_bytes(psutil.Process())
    print(f"at most: JVM {peak / MIB:,.0f} MiB, Python {own / MIB:,.0f} MiB", flush=True)

    wrong = mistakes(second, keys)
    print(f"rows: {wrong or 'exact'}")
    return int(bool(wrong) or peak > heap + (1 << 30))


def fleet_in(around: Alone, name: str) -> Fleet:
    """Another container's view of the run: it shares the log, and no file."""
    config = config_of(around.directory, JOB)
    return Fleet(around.spark, around.account, config, counting(), around.directory / name)


def write(fleet: Fleet, numbers: range) -> None:
    """One row per key, all on one day."""
    writer = fleet.writer("seen", 1, flush_rows=CHUNK)
    for start in range(0, len(numbers), CHUNK):
        keys = pc.cast(pa.array(numbers[start : start + CHUNK]), pa.string())
        padded = pc.utf8_lpad(keys, width=20, padding="k")
        writer.write(pa.table([padded, pa.array([DAY] * len(keys), SCHEMA.field("ts").type)], schema=SCHEMA))
    writer.close()


def mistakes(fleet: Fleet, keys: int) -> str:
    """What is wrong with the output; empty if it is exact."""
    rows = twice = 0
    seen = bytearray(keys)
    for batch in batches_of(fleet.account.blobs(), "counts", [fleet.run_id]):
        numbers = pc.cast(pc.utf8_ltrim(batch.column("key"), characters="k"), pa.int64()).to_pylist()
        counts = batch.column("n").to_pylist()
        rows += len(numbers)
        for number, count in zip(numbers, counts, strict=True):
            twice += seen[number]
            seen[number] = 1
            if count != (2 if number % 50 == 0 else 1):
                return f"key {number} was counted {count} times"
    return "" if rows == keys and not twice else f"{rows} rows for {keys} keys, {twice} of them twice"


def total(listed: object) -> float:
    """Mebibytes of some blobs."""
    return sum(size for _, size in listed) / MIB  # type: ignore[attr-defined]


def said(what: str, begun: float) -> None:
    """And how long it took."""
    print(f"{what}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Two drains that have much to do: rows that wait in the stream between two stages, and open windows that all fire.

The first stage has read all rows; the second one starts when the drain's ends are known. Beside it the same rows go
through the second stage without a drain: a drain is to keep the pipeline's throughput. Then as many windows as rows are
open in RocksDB, and a drain fires them all; beside it the reading of those rows. Shown with each: the most memory that
the container's processes had together, and how often the tasks reported their progress meanwhile.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import pyarrow as pa
from common import EXAMPLE, PATIENCE_S, RUN_ID, BenchJob, Claim, Container, Written, bench_job, flights, main, say
from throughput import has_read, kept, produce

from samza_azure.logs.position import Ends
from samza_azure.messages import Drain, DrainStep, Phase
from samza_azure.stream_io.log import LogReader

#: A drain may take longer than the same work without one by this part.
MORE = 0.1
#: Beside Spark's heap of 2 GiB: what is outside of it, RocksDB's caches, and the Python processes.
MEMORY_BYTES = 4 << 30
SPARK = '\n[spark]\ndriver.memory = "2g"\n'
TASKS = 4
WINDOWS = """
from pyspark.sql import functions as F
from samza_azure import Application
app = Application()

@app.stage("seen", output="counts")
def count(rows):
    return rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 day"), "key").agg(F.count("*").alias("n"))
"""
WINDOWS_JOB = """
app = { name = "windows", main = "pipeline:app" }
azure.storage.connect = "${AZURE_STORAGE_CONNECTION_STRING}"
task.state = "rocksdb"
[streams.seen]
partitions = 4
key = "key"
schema = "key string, ts timestamp"
event_time = "ts"
"""


@dataclass(slots=True)
class Watched:
    """What was seen while something went on."""

    seconds: float = 0.0
    peak_bytes: int = 0
    told: int = 0  # how often a task reported more batches


def measure(quick: bool) -> list[Claim]:
    """Once each: what is compared has millions of rows."""
    return [*backlog(1 if quick else 6), *windows(100_000 if quick else 2_000_000)]


def backlog(years: int) -> list[Claim]:
    """Rows that wait between the stages."""
    rows = flights(years)
    plain, drained = second_stage(rows, drains=False), second_stage(rows, drains=True)
    return claims(f"{kept(rows):,} rows between the stages", kept(rows), plain, drained, "read by the second stage")


def second_stage(rows: pa.Table, *, drains: bool) -> Watched:
    """The first stage has emitted these rows; now the second one starts, in a drain or without."""
    first, second = ([f"{stage}-{number}" for number in range(TASKS)] for stage in ("clean", "daily_delays"))
    with bench_job((EXAMPLE / "job.toml").read_text() + SPARK, (EXAMPLE / "pipeline.py").read_text()) as around:
        container = started(around, first)
        produce(around, rows)
        ends = wait_until_written(around, container, "clean", kept(rows))
        read = freeze(container, first) if drains else {}
        with watched(container) as seen:
            tell(container, Drain(DrainStep.FLUSH, "u", read) if drains else None)
            for task in second:
                container.start(task)
            if drains:
                container.until("all is drained", lambda: all_drained(container, second), 10 * PATIENCE_S)
            else:
                container.until("all is read", lambda: all(has_read(container, task, ends) for task in second))
        say(f"{'drained' if drains else 'read'}: {seen.seconds:.1f} s, {seen.peak_bytes >> 20} MiB, told {seen.told}")
        return seen


def windows(number: int) -> list[Claim]:
    """Windows that are open."""
    times = pa.array(
        [(1_704_067_200 + place % 3_600) * 1_000_000 for place in range(number)], pa.timestamp("us", "UTC")
    )
    rows = pa.table({"key": [f"key-{place}" for place in range(number)], "ts": times})
    tasks = [f"count-{place}" for place in range(TASKS)]
    with bench_job(WINDOWS_JOB + SPARK, WINDOWS) as around:
        container = started(around, tasks)
        container.permit(0)
        source = around.source("seen", key="key")
        source.write(rows)
        source.close()
        with watched(container) as read:
            container.permit()
            container.until("all is read", lambda: rows_read(container) >= number, 10 * PATIENCE_S)
        ends = freeze(container, tasks)
        with watched(container) as flushed:
            tell(container, Drain(DrainStep.FLUSH, "u", ends))
            container.until("all windows have fired", lambda: all_drained(container, tasks), 10 * PATIENCE_S)
        readers = [LogReader(around.account.blobs(), f"runs/{RUN_ID}/{task}") for task in tasks]
        out = sum(reader.scan((0, 0)).rows for reader in readers)
        if out != number:
            raise SystemExit(f"{out} windows fired, and {number} were open.")
    return claims(f"{number:,} open windows", number, read, flushed, "their rows read")


def claims(what: str, number: int, plain: Watched, drained: Watched, beside: str) -> list[Claim]:
    """A drain beside the same rows without one."""
    more = drained.seconds / plain.seconds - 1
    most = max(drained.peak_bytes, plain.peak_bytes)
    return [
        Claim(f"{what}, {beside}", f"{number / plain.seconds:,.0f} rows/s, {plain.seconds:.1f} s"),
        Claim(f"{what}, drained", f"{number / drained.seconds:,.0f} rows/s, {drained.seconds:.1f} s"),
        Claim("  the drain takes more", f"{more:+.0%}", f"{MORE:.0%}", more <= MORE),
        Claim("  most memory", f"{most >> 20:,} MiB", f"{MEMORY_BYTES >> 20:,} MiB", most <= MEMORY_BYTES),
        Claim("  told how far it is, times", str(drained.told)),
    ]


def started(around: BenchJob, tasks: list[str]) -> Container:
    """A container that runs these."""
    container = around.container("container")
    container.ready()
    container.run(tasks)
    return container


def tell(container: Container, drain: Drain | None) -> None:
    """As the supervisor does."""
    if drain is not None:
        container._child.send(drain)


def freeze(container: Container, tasks: list[str]) -> Ends:
    """The first half of a drain; where each source partition ends."""
    tell(container, Drain(DrainStep.FREEZE, "u"))
    container.until("all stand still", lambda: all(container.reports[task].frozen_for == "u" for task in tasks))
    ends: Ends = {}
    for task in tasks:
        ends |= container.reports[task].ends or {}
    return ends


def all_drained(container: Container, tasks: list[str]) -> bool:
    """Whether all these are."""
    return all(container.phase(task) is Phase.DRAINED for task in tasks)


def rows_read(container: Container) -> int:
    """Rows that all batches have read."""
    return sum(report.progress.rows for report in container.reports.values() if report.progress is not None)


def wait_until_written(around: BenchJob, container: Container, stage: str, expected: int) -> list[tuple[int, int]]:
    """Wait until a stage has emitted this many rows; return where its logs end then."""
    written = Written(around, stage, TASKS)
    container.until("all rows are between the stages", lambda: written.reaches(expected), 10 * PATIENCE_S)
    return written.ends


@contextmanager
def watched(container: Container) -> Iterator[Watched]:
    """How long what is done in here takes, and what is seen meanwhile."""
    seen, over = Watched(), threading.Event()
    ours = psutil.Process(container.pid)

    def look(then: Callable[[float], bool]) -> None:
        done = -1
        while not then(0.2):
            rss = 0
            for process in (ours, *ours.children(recursive=True)):
                try:
                    rss += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            seen.peak_bytes = max(seen.peak_bytes, rss)
            batches = sum(each.progress.batches for each in list(container.reports.values()) if each.progress)
            seen.told, done = seen.told + (batches > done >= 0), batches

    thread = threading.Thread(target=look, args=[over.wait], daemon=True)
    begun = time.monotonic()
    thread.start()
    try:
        yield seen
    finally:
        seen.seconds = time.monotonic() - begun
        over.set()
        thread.join()


if __name__ == "__main__":
    main(measure, __doc__)

"""Rows per second of the example's two stages: one container on the emulator, and plain Spark.

All rows are in the source before the time counts, and tasks have run a first batch. The time ends when the second
stage has committed the last row. Plain Spark has Parquet files between its two queries, the durable way that it has.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from common import (
    EXAMPLE,
    BenchJob,
    Claim,
    Container,
    Written,
    bench_job,
    cpu_s,
    flights,
    main,
    middle,
    plain_spark,
    say,
    scratch,
)

from samza_azure.streams.offset import Offset

GOAL, FLOOR = 0.9, 0.7
POLL_S = 0.1
#: This part of the rows goes through before the time counts, so that Java has compiled what there is to compile.
WARM = 0.25
COLUMNS = ["carrier", "ts", "dep_delay"]
FILES_A_YEAR = 8
TASKS = 4  # of each stage


@dataclass(frozen=True, slots=True)
class Speed:
    """Rows per second of the clock, and per second of processor time."""

    by_clock: float
    by_processor: float
    metered: float = 0.0  # the share of the processor time that a meter has counted


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several times."""
    years, rounds = (2, 1) if quick else (12, 3)
    rows = flights(years)
    ways: dict[str, Callable[[], Speed]] = {
        "container": lambda: run_ours(rows),
        "plain": lambda: run_plain("two", rows, "0"),
        "batches": lambda: run_plain("two", rows, "8"),
        "one": lambda: run_plain("one", rows, "0"),
    }
    found: dict[str, list[Speed]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            found[name].append(ways[name]())
    clock = {name: middle([speed.by_clock for speed in speeds]) for name, speeds in found.items()}
    processor = {name: middle([speed.by_processor for speed in speeds]) for name, speeds in found.items()}
    shown = {name: f"{clock[name]:,.0f} rows/s, {processor[name]:,.0f} per CPU second" for name in ways}
    ratio = clock["container"] / max(clock["plain"], clock["batches"])
    by_processor = processor["container"] / max(processor["plain"], processor["batches"])
    relation = f"{ratio:.2f}, by CPU time {by_processor:.2f}"
    return [
        Claim(f"two stages, {rows.num_rows:,} rows: one container", shown["container"]),
        Claim("two stages: plain Spark, Parquet files between, all rows in one batch", shown["plain"]),
        Claim("the same in batches of 8 files (340,000 rows)", shown["batches"]),
        Claim("one query without a stream between: plain Spark", shown["one"]),
        Claim(
            "container / plain Spark's two queries, the faster way of these",
            relation,
            f"{GOAL}, floor {FLOOR}",
            ratio >= GOAL,
        ),
    ]


def run_ours(rows: pa.Table, meter: Callable[[], float] | None = None) -> Speed:
    """The example in one container. `meter` tells the seconds of processor time that something has taken so far."""
    pipeline, job = (EXAMPLE / "pipeline.py").read_text(), (EXAMPLE / "job.toml").read_text()
    return speed_of("one container", job, pipeline, rows, "clean", kept, meter)


def speed_of(
    what: str,
    job: str,
    pipeline: str,
    rows: pa.Table,
    first: str,
    kept: Callable[[pa.Table], int],
    meter: Callable[[], float] | None = None,
) -> Speed:
    """One container whose stage `first` emits so many of some rows, and `daily_delays` reads them.

    The emulator's processor time counts too: it does what a disk does for plain Spark.
    """
    with bench_job(job, pipeline) as around:
        container = around.container("container")
        container.run(container.ready().tasks())
        warm = rows.slice(0, int(rows.num_rows * WARM))
        produce(around, warm)
        wait_for(around, container, first, kept(warm))
        container.permit(0)
        produce(around, rows.slice(warm.num_rows))
        container.permit()
        begun, cpu = time.monotonic(), cpu_s(container.pid, around.emulator.pid)
        metered = meter() if meter is not None else 0.0
        wait_for(around, container, first, kept(rows))
        seconds, cpu = time.monotonic() - begun, cpu_s(container.pid, around.emulator.pid) - cpu
        metered = (meter() - metered) / cpu if meter is not None else 0.0
        say(f"{what}: {seconds:.2f} s, CPU {cpu:.1f} s, batches {batches(container)}")
        counted = rows.num_rows - warm.num_rows
        return Speed(counted / seconds, counted / cpu, metered)


def produce(around: BenchJob, rows: pa.Table, key: str | None = "dest") -> None:
    """Everything into the source stream; without a key each partition has as many rows."""
    source = around.source("flights")
    source.write(rows, key)
    source.close()


def kept(rows: pa.Table) -> int:
    """How many of them the first stage emits."""
    return rows.num_rows - rows["dep_delay"].null_count


def wait_for(around: BenchJob, container: Container, first: str, expected: int, written: Written | None = None) -> None:
    """Wait until the stage `first` has emitted this many rows, and the second has appended a batch that has read them
    all. `written` goes on from an earlier wait: logs are deleted as they are read."""
    written = written or Written(around, first, TASKS)

    def all_read() -> bool:
        if written.reaches(expected) and all(
            has_read(container, f"daily_delays-{number}", written.ends) for number in range(len(written.ends))
        ):
            return True
        time.sleep(POLL_S)
        return False

    container.until("all rows are read", all_read)
    if written.rows > expected:
        raise SystemExit(f"{written.rows} rows came through the first stage, expected {expected}.")


def has_read(container: Container, task: str, ends: list[tuple[int, int]]) -> bool:
    """Whether the last batch that a task has appended has read all logs so far.

    Reports of batches come every half second. Spark's own files say it at once, as its progress does for plain Spark.
    """
    checkpoint = container.directory / "tasks" / task / "1-1" / "checkpoint"
    ended = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdecimal()]
    if not ended:
        return False
    try:
        offset = Offset.from_json(json.loads((checkpoint / f"offsets/{max(ended)}").read_text().splitlines()[-1]))
    except FileNotFoundError:  # it is batches ahead by now, and has deleted the file
        return False
    return all(stands >= end for stands, end in zip(offset.positions, ends, strict=True))


def batches(container: Container) -> dict[str, int]:
    """The last batch of each task."""
    return {task: report.batch for task, report in sorted(container.reports.items())}


def run_plain(what: str, rows: pa.Table, files: str) -> Speed:
    """Plain Spark with this many files a batch, 0 for all at once: the best case, which a stream seldom has."""
    with scratch() as work:
        source = work / "source"
        source.mkdir()
        count = FILES_A_YEAR * rows.num_rows // 336_776
        size = -(-rows.num_rows // count)
        first = int(rows.num_rows * WARM)
        cuts = [(0, first), *((start, size) for start in range(first, rows.num_rows, size))]
        for number, (start, length) in enumerate(cuts):
            pq.write_table(rows.select(COLUMNS).slice(start, length), source / f"{number:05}.parquet")
        (work / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        expected = rows.num_rows if what == "one" else rows.num_rows - rows["dep_delay"].null_count
        (line,) = plain_spark(what, str(work), str(source), files, str(expected))
        found = json.loads(line)
        seconds, cpu = found["seconds"], found["cpu"]
        say(f"plain Spark, {what}, {files} files a batch: {seconds:.2f} s, CPU {cpu:.1f} s, batches {found['batches']}")
        return Speed((rows.num_rows - first) / seconds, (rows.num_rows - first) / cpu)


if __name__ == "__main__":
    main(measure, __doc__)

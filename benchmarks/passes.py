"""The example's two stages in one warm Spark, pass by pass of 2 million rows, beside plain Spark.

Each way reads the same rows in the same passes, in one process: the first pass is the cold one, and the last four of 12
are the warm ones. Plain Spark has Parquet between its queries, in batches of 8 files (340,000 rows), and in one batch a
pass, with as many shuffle partitions as there are cores, which is the best for it. Ours has as many tasks a stage, and
a source with as many rows in each partition, in records of 10,000 rows, as a source writes them: in batches of so many
rows, and as large as they come, which is a batch a pass for each task of the first stage. Neither begins a batch more
often than each 100 ms: with ours that is `task.commit.ms`, by default a second, which the last rows of a pass would
wait for in each stage. After a pass each way rests, so that windows that are over are emitted, and then ours writes the
rows of the next one, some seconds in which its Java may go on compiling; neither counts. Of ours it is printed what
part of the processor time each kind of process needs: the JVM, the Python processes that read for Spark, the
container's Python, and the emulator. Both orders take turns.
"""

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from common import EXAMPLE, Claim, Written, bench_job, cpu_s, flights, main, middle, plain_spark, say, scratch
from plain import REST_S
from throughput import COLUMNS, FILES_A_YEAR, kept, produce, wait_for

YEARS_A_PASS, PASSES, WARM = 6, 12, 4
FIRST_GOAL, BATCHES_GOAL, ONE_GOAL = 1.2, 1.3, 1.0
#: Of the logs, 340,000 rows take so many bytes.
BATCH_BYTES = 2_100_000
OURS, OURS_IN_BATCHES, BATCHES, ONE = (
    "ours",
    "ours in batches of 340,000 rows",
    "batches of 8 files",
    "one batch a pass",
)


@dataclass
class Passes:
    """Rows per second of the clock of each pass, seconds of processor time per million rows, and of the warm passes the
    part of each kind of process."""

    by_clock: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)
    batches: list[int] = field(default_factory=list)  # of each pass, of all tasks; nothing of plain Spark


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, in both orders."""
    years, passes, rounds = (1, WARM, 1) if quick else (YEARS_A_PASS, PASSES, 2)
    last = flights(years)
    place, rows = last.column_names.index("ts"), []
    for number in range(-passes, 0):  # all are in the past: what is ahead of the clock closes no window here
        shift = pa.scalar(number * years * 365 * 86_400 * 1_000_000, pa.duration("us"))
        rows.append(last.set_column(place, "ts", pc.add(last["ts"], shift)))
    ways = {
        OURS: lambda: ours(rows, ""),
        OURS_IN_BATCHES: lambda: ours(rows, f"batch.bytes = {BATCH_BYTES}"),
        BATCHES: lambda: plain(rows, years, "8"),
        ONE: lambda: plain(rows, years, "0"),
    }
    found: dict[str, list[Passes]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            found[name].append(ways[name]())
            say(f"{name}: {_listed(found[name][-1])}")
    warm = {name: middle([rate for each in made for rate in each.by_clock[-WARM:]]) for name, made in found.items()}
    first = {name: middle([each.by_clock[0] for each in made]) for name, made in found.items()}
    cpu = {name: middle([cpu for each in made for cpu in each.cpu[-WARM:]]) for name, made in found.items()}
    claims = [
        Claim(
            f"{passes} passes of {rows[0].num_rows:,} rows: {name}",
            f"first {first[name]:,.0f} rows/s, the last {WARM} {warm[name]:,.0f} and {cpu[name]:.2f} CPU s a million",
        )
        for name in ways
    ]
    for what, rates, one, other, goal in (
        ("warm", warm, OURS_IN_BATCHES, BATCHES, BATCHES_GOAL),
        ("warm", warm, OURS, BATCHES, 0.0),
        ("warm", warm, OURS, ONE, ONE_GOAL),
        ("the first pass", first, OURS_IN_BATCHES, BATCHES, FIRST_GOAL),
        ("the first pass", first, OURS, ONE, FIRST_GOAL),
    ):
        ratio = rates[one] / rates[other]
        aim = (f"{goal}", ratio >= goal) if goal else ("", None)
        claims.append(Claim(f"{what}: {one} / {other}", f"{ratio:.2f}", *aim))
    parts = sum((each.parts for each in found[OURS]), Counter())
    shares = ", ".join(f"{name} {part / parts.total():.1%}" for name, part in parts.most_common())
    return [*claims, Claim("ours, warm: parts of the processor time", shares)]


def _listed(found: Passes) -> str:
    rates = ", ".join(f"{rate:,.0f}" for rate in found.by_clock)
    cpu = ", ".join(f"{each:.2f}" for each in found.cpu)
    return f"{rates} rows/s; {cpu} CPU s a million; batches a pass {found.batches}"


def ours(rows: list[pa.Table], settings: str) -> Passes:
    """One container with these settings of `[task]`."""
    found, tasks = Passes(), os.cpu_count() or 1
    job = f"{(EXAMPLE / 'job.toml').read_text()}\n[task]\ncount = {tasks}\ncommit.ms = 100\n{settings}\n"
    with bench_job(job, (EXAMPLE / "pipeline.py").read_text()) as around:
        container = around.container("container")
        container.run(container.ready().tasks())
        written = Written(around, "clean", tasks)
        expected, rested = 0, 0.0
        for number, each in enumerate(rows):
            container.until("it has rested", lambda: time.monotonic() >= rested)  # noqa: B023 - used at once
            container.permit(0)
            produce(around, each, key=None)
            expected += kept(each)
            before = parts_of(container.pid, around.emulator.pid)
            batches = sum(each.batch for each in container.reports.values())
            begun = time.monotonic()
            container.permit()
            wait_for(around, container, "clean", expected, written)
            seconds, rested = time.monotonic() - begun, time.monotonic() + REST_S
            parts = parts_of(container.pid, around.emulator.pid)
            parts.subtract(before)
            found.batches.append(sum(each.batch for each in container.reports.values()) - batches)
            found.by_clock.append(each.num_rows / seconds)
            found.cpu.append(parts.total() / each.num_rows * 1e6)
            if number >= len(rows) - WARM:
                found.parts.update(parts)
    return found


def plain(rows: list[pa.Table], years: int, files: str) -> Passes:
    """Plain Spark with this many files a batch; 0: all of a pass."""
    with scratch() as work:
        source = work / "source"
        source.mkdir()
        size = FILES_A_YEAR * years
        for number, each in enumerate(rows):
            length = -(-each.num_rows // size)
            for part in range(size):
                table = each.select(COLUMNS).slice(part * length, length)
                pq.write_table(table, source / f"{number * size + part:05}.parquet")
        (work / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        so_far = [str(sum(kept(each) for each in rows[: number + 1])) for number in range(len(rows))]
        (line,) = plain_spark("passes", str(work), str(source), files, str(size), *so_far)
        made = json.loads(line)
    sizes = [each.num_rows for each in rows]
    return Passes(
        [size / each["seconds"] for size, each in zip(sizes, made, strict=True)],
        [each["cpu"] / size * 1e6 for size, each in zip(sizes, made, strict=True)],
    )


def parts_of(container: int, emulator: int) -> "Counter[str]":
    """Processor time so far, by the kind of process."""
    parts = Counter({"emulator": cpu_s(emulator)})
    own = psutil.Process(container)
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # its parent has its time now
            if process == own:
                kind = "the container's Python"
            elif "java" in process.name():
                kind = "the JVM"
            else:
                kind = "Python that reads for Spark"
            parts[kind] += sum(process.cpu_times()[:4])
    return parts


if __name__ == "__main__":
    main(measure, __doc__)

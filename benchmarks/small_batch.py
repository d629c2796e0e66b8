"""How long a small batch takes: 1,000 rows into a windowed aggregation, in a container and into Parquet files.

Both get 1,000 rows at an even pace that leaves time between batches. Spark's progress says how long each batch took;
of the container's, the part from the arrival of the rows to the appended record is our own. The first batches, while
Java warms up, are left out. The second part runs the container with and without shuffles from one partition to one
(`samza_azure/spark/jvm/exchanges.py`), for the time that they take.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Claim, bench_job, cpu_s, main, middle, p95, plain_spark, say, scratch

from samza_azure.messages import BATCH_PHASES, Phase
from samza_azure.spark.jvm.exchanges import REMOVED

OWN_GOAL_MS, PLAIN_GOAL = 12.0, 0.8
ROWS = 1_000
PACE_S = 0.4
WARM = 30
JOB = """
[app]
name = "small"
main = "pipeline:app"
[azure.storage]
connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[task]
commit.ms = 0
[streams.rows]
schema = "key string, ts timestamp, value double"
event_time = "ts"
[spark]
sql.streaming.numRecentProgressUpdates = "10000"
"""


def measure(quick: bool) -> list[Claim]:
    """Both parts."""
    return [*beside_plain(quick), *beside_shuffles(quick)]


def beside_plain(quick: bool) -> list[Claim]:
    """Container and plain Spark, twice, in both orders."""
    count = 20 if quick else 60
    made: dict[str, list[dict[str, Any]]] = {"container": [], "plain Spark": []}
    for turn in range(1 if quick else 2):
        for name in made if turn % 2 == 0 else reversed(made):
            made[name] += run_ours(count, removed=True)[0] if name == "container" else run_plain(count)
    for name, rows in made.items():
        medians = {part: middle(column(rows, part)) for part in BATCH_PHASES}
        say(f"{name}, medians: " + ", ".join(f"{part} {value:.0f}" for part, value in medians.items()) + " ms")
    ours, plain = (column(each, "triggerExecution") for each in made.values())
    own, ratio = column(made["container"], "own_ms"), middle(ours) / middle(plain)
    return [
        Claim(f"batch of {ROWS:,} rows, windowed: container", figure(ours)),
        Claim(f"batch of {ROWS:,} rows, windowed: Parquet sink", figure(plain)),
        Claim("container / Parquet sink", f"{ratio:.2f}", f"{PLAIN_GOAL}", ratio <= PLAIN_GOAL),
        Claim(
            "of the container's: record building and append",
            figure(own),
            f"at most {OWN_GOAL_MS:.0f} ms",
            middle(own) <= OWN_GOAL_MS,
        ),
    ]


def beside_shuffles(quick: bool) -> list[Claim]:
    """The container as it is, and with its shuffles, twice, in both orders."""
    count = 20 if quick else 100
    made: dict[bool, list[float]] = {True: [], False: []}
    cpu_ms: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(1 if quick else 2):
        for removed in made if turn % 2 == 0 else reversed(made):
            batches, used_s = run_ours(count, removed=removed)
            made[removed] += column(batches, "triggerExecution")
            cpu_ms[removed].append(1000 * used_s / count)
    cpu = {removed: middle(each) for removed, each in cpu_ms.items()}
    return [
        *(
            Claim(f"batch of {ROWS:,} rows, {what}", f"{figure(made[removed])}; processor time {cpu[removed]:.0f} ms")
            for removed, what in ((True, "without a shuffle"), (False, "with its shuffle"))
        ),
        Claim(
            "processor time without / with", f"{cpu[True] / cpu[False]:.0%}", "less than all", cpu[True] < cpu[False]
        ),
    ]


def figure(values: list[float]) -> str:
    """Median and 95th percentile."""
    return f"median {middle(values):.0f} ms, p95 {p95(values):.0f} ms"


def column(batches: list[dict[str, Any]], name: str) -> list[float]:
    """One figure of all batches."""
    return [float(batch.get(name) or 0) for batch in batches]


def small(batches: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The last `count` batches with exactly the rows of one flush."""
    return [batch for batch in batches if batch["rows"] == ROWS][-count:]


def rows(number: int) -> pa.Table:
    """The rows of one batch: two seconds of event time, twenty keys."""
    places = np.arange(ROWS)
    times = (1_700_000_000_000_000 + number * 2_000_000 + places * 2_000).astype("datetime64[us]")
    return pa.table(
        {
            "key": pa.array([f"key-{place % 20}" for place in places]),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array(places.astype("float64")),
        }
    )


def run_ours(count: int, *, removed: bool) -> tuple[list[dict[str, Any]], float]:
    """The batches of one task in a container, and the processor time in which they were made, in seconds. `removed`:
    without shuffles from one partition to one.
    """
    job = f'{JOB}"{REMOVED.removeprefix("spark.")}" = "{str(removed).lower()}"\n'
    with bench_job(job, Path(__file__).with_name("watched.py").read_text()) as around:
        container = around.container("container")
        container.ready()
        container.permit()
        container.start("windows-0")
        container.until("it runs", lambda: container.phase("windows-0") is Phase.RUNNING)
        source = around.source("rows")
        used_s = 0.0
        for number in range(WARM + count):
            begun = time.monotonic()
            if number == WARM:
                used_s = -cpu_s(container.pid)
            source.write(rows(number))
            source.flush()
            container.until("the next flush", lambda: time.monotonic() >= begun + PACE_S)  # noqa: B023 - used at once
        used_s += cpu_s(container.pid)
        (around.directory / "tell").touch()
        told = around.directory / "progress.json"
        container.until("progress is told", told.exists)
        return small(json.loads(told.read_text()), count), used_s


def run_plain(count: int) -> list[dict[str, Any]]:
    """The batches of plain Spark's query into Parquet files."""
    with scratch() as work:
        (work / "pipeline.py").write_text(Path(__file__).with_name("watched.py").read_text())
        (work / "prepared").mkdir()
        for number in range(WARM + count):
            pq.write_table(rows(number), work / "prepared" / f"{number:05}.parquet")
        (line,) = plain_spark("small", str(work), str(PACE_S))
        return small(json.loads(line), count)


if __name__ == "__main__":
    main(measure, __doc__)

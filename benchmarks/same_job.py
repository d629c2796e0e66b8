"""One job, the windowed count of the example, here and in others, on the same two cores: rows per second and processor
time, cold and warm; and whether all find the same.

Flights by day and carrier: how many, and their mean delay, with a watermark of an hour, exactly once. Each way is one
process that lives through several passes of 1.3 million rows; the first is cold, the last two count as warm.

- Here: one container, with the emulator's processor time. Once with rows that were written by carrier, so that one
  stage is enough; once as in the example, where a first stage shuffles them through a log.
- Plain Spark: one query from Parquet files to Parquet files, in batches of a pass, in batches of 8 files (340,000
  rows), and with a trigger `availableNow` for each pass; the first once more from CSV, for a fair look at Flink.
- Flink: SQL from CSV files to CSV files, since what PyPI has of it reads no Parquet; two slots, a checkpoint a second,
  one job that watches its folder. It is left out unless FLINK is the Python of its environment, which
  `topic_to_topic.py` says how to make (without the jars of Kafka).

A pass ends when its rows are durable results or state: here when the last stage has appended, in Spark when the batch
has ended, in Flink when all windows that are over can be read in the sink.
"""

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from common import (
    EXAMPLE,
    RUN_ID,
    BenchJob,
    Claim,
    Container,
    bench_job,
    cpu_s,
    flights,
    main,
    middle,
    plain_spark,
    say,
    scratch,
)
from flink_drain import SETTINGS as OF_A_CLUSTER
from flink_drain import SUBMIT, Cluster, cluster
from passes import parts_of
from throughput import COLUMNS, FILES_A_YEAR, kept, wait_for

from samza_azure.logs.position import Position
from samza_azure.logs.reading import Part
from samza_azure.stream_io.log import LogReader

YEARS_A_PASS, PASSES, ROUNDS = 4, 5, 2
TASKS, SLOTS, POLL_S, PATIENCE_S = 4, 2, 0.05, 180.0
DAY = timedelta(days=1)
#: The key, then how many and their mean.
Found = dict[tuple[Any, str], tuple[int, float]]
BY_CARRIER_JOB = """
app = { name = "flights", main = "pipeline:app" }
azure.storage.connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[streams.flights]
partitions = 4
key = "carrier"
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
"""
BY_CARRIER = """
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()

@app.stage("flights", output="daily-delays")
def daily_delays(flights):
    days = (flights.where("dep_delay IS NOT NULL").withWatermark("ts", "1 hour")
                   .groupBy(F.window("ts", "1 day"), "carrier"))
    return days.agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
"""
SETTINGS = {
    **OF_A_CLUSTER,
    "taskmanager.memory.process.size": "2048m",
    "taskmanager.numberOfTaskSlots": f"{SLOTS}",
    "parallelism.default": f"{SLOTS}",
}
FLINK = """
CREATE TABLE flights (carrier STRING, ts TIMESTAMP(3), dep_delay DOUBLE, WATERMARK FOR ts AS ts - INTERVAL ''1'' HOUR)
  WITH (''connector'' = ''filesystem'', ''path'' = ''{inbox}'', ''format'' = ''csv'', ''csv.null-literal'' = '''',
        ''source.monitor-interval'' = ''100 ms'');
CREATE TABLE delays (day_begun TIMESTAMP(3), carrier STRING, flights BIGINT, delay DOUBLE)
  WITH (''connector'' = ''filesystem'', ''path'' = ''{sink}'', ''format'' = ''csv'');
INSERT INTO delays
  SELECT window_start, carrier, COUNT(*), AVG(dep_delay)
  FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL ''1'' DAY)) WHERE dep_delay IS NOT NULL
  GROUP BY window_start, window_end, carrier
""".replace("''", "'")


@dataclass
class Passes:
    """Rows per second of the clock of each pass, seconds of processor time per million rows, and what was found."""

    by_clock: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    found: Found = field(default_factory=dict)

    def add(self, rows: int, seconds: float, cpu: float) -> None:
        """One more pass."""
        self.by_clock.append(rows / seconds)
        self.cpu.append(cpu / rows * 1e6)


@dataclass(frozen=True)
class Input:
    """The passes, and two more parts that are not measured: they close the windows of the last pass."""

    years: int
    passes: Sequence[pa.Table]
    closing: Sequence[pa.Table]

    @property
    def all(self) -> list[pa.Table]:
        return [*self.passes, *self.closing]

    def counted(self, found: Found) -> Found:
        """The windows that are over whatever comes next."""
        last = _naive(pc.max(self.passes[-1]["ts"]))
        return {key: value for key, value in found.items() if key[0] + DAY <= last}


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, in both orders."""
    years, passes, rounds = (1, 3, 1) if quick else (YEARS_A_PASS, PASSES, ROUNDS)
    given = made(years, passes)
    runs: dict[str, list[Passes]] = {name: [] for name in ways()}
    for number in range(rounds):
        for name in runs if number % 2 == 0 else reversed(runs):
            runs[name].append(checked(name, given))
    missing = [] if "FLINK" in os.environ else [Claim("Flink is not measured: FLINK is not set, see same_job.py", "")]
    return missing + [Claim(name, figure(each)) for name, each in runs.items()]


def ways() -> dict[str, Callable[[Input], Passes]]:
    """Each way to run the job that there is on this machine."""
    job, pipeline = ((EXAMPLE / name).read_text() for name in ("job.toml", "pipeline.py"))
    found: dict[str, Callable[[Input], Passes]] = {
        "here, one stage, rows written by carrier": partial(ours, BY_CARRIER_JOB, BY_CARRIER, keyed=True),
        "here, two stages as in the example": partial(ours, job, pipeline, keyed=False),
        "plain Spark, one batch a pass": partial(plain, "all", "parquet"),
        "plain Spark, batches of 8 files": partial(plain, "8", "parquet"),
        "plain Spark, `availableNow` a pass": partial(plain, "now", "parquet"),
        "plain Spark, one batch a pass, from CSV": partial(plain, "all", "csv"),
    }
    if "FLINK" in os.environ:
        found["Flink, from CSV"] = partial(flink, Path(os.environ["FLINK"]).parents[1])
    return found


def checked(name: str, given: Input) -> Passes:
    """One run of a way; another result than pyarrow's ends the script."""
    run, wanted = ways()[name](given), given.counted(truth(given.passes))
    found = given.counted(run.found)
    if not same(found, wanted):
        raise SystemExit(f"{name} has found something else: {differences(found, wanted)}")
    say(f"{name}: {_listed(run)}; {len(wanted):,} windows, as expected")
    return run


def figure(runs: Sequence[Passes]) -> str:
    """Medians."""
    clock, cpu = middle([run.by_clock[0] for run in runs]), middle([run.cpu[0] for run in runs])
    warm = middle([rate for run in runs for rate in run.by_clock[-2:]])
    used = middle([seconds for run in runs for seconds in run.cpu[-2:]])
    first = f"first pass {clock:,.0f} rows/s, {cpu:.1f} CPU s a million"
    return f"{first}; warm {warm:,.0f} rows/s, {used:.2f} CPU s a million"


def _listed(run: Passes) -> str:
    rates = ", ".join(f"{rate:,.0f}" for rate in run.by_clock)
    return f"{rates} rows/s; {', '.join(f'{each:.2f}' for each in run.cpu)} CPU s a million"


def made(years: int, passes: int) -> Input:
    """Each pass goes on where the one before ended, all in the past: what is ahead of the clock closes no window."""
    first, parts = flights(years), []
    for number in range(passes + 1):
        shift = pa.scalar((number - passes) * years * 365 * 86_400 * 1_000_000, pa.duration("us"))
        place = first.column_names.index("ts")
        parts.append(first.set_column(place, "ts", pc.add(first["ts"], shift)))
    *timed, more = parts
    return Input(years, timed, [more.slice(0, 20_000), more.slice(20_000, 20_000)])


def truth(passes: Sequence[pa.Table]) -> Found:
    """The result, by pyarrow."""
    rows = pa.concat_tables(passes)
    rows = rows.filter(pc.is_valid(rows["dep_delay"]))
    days = pc.floor_temporal(rows["ts"], unit="day")
    table = pa.table({"day": days, "carrier": rows["carrier"].cast(pa.string()), "delay": rows["dep_delay"]})
    sums = table.group_by(["day", "carrier"]).aggregate([("delay", "count"), ("delay", "mean")])
    return found_in(sums["day"], sums["carrier"], sums["delay_count"], sums["delay_mean"])


def found_in(days: Any, carriers: Any, counts: Any, means: Any) -> Found:
    """Columns as a dictionary; a row that is there twice ends the run."""
    columns = [pc.cast(days, pa.timestamp("us")), carriers, counts, means]
    found: Found = {}
    for day, carrier, count, mean in zip(*(column.to_pylist() for column in columns), strict=True):
        if (day, carrier) in found:
            raise SystemExit(f"{carrier} of {day} is there twice.")
        found[day, carrier] = (count, mean)
    return found


def same(one: Found, other: Found) -> bool:
    """Equal, but for the order in which a mean was added up."""
    return one.keys() == other.keys() and all(
        one[key][0] == other[key][0] and math.isclose(one[key][1], other[key][1], abs_tol=1e-9) for key in one
    )


def differences(found: Found, wanted: Found) -> str:
    """Some of them."""
    keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    missing, more = len(wanted.keys() - found.keys()), len(found.keys() - wanted.keys())
    shown = [(key, found.get(key), wanted.get(key)) for key in keys[:5]]
    return f"{missing:,} missing, {more:,} more, {shown}"


def ours(job: str, pipeline: str, given: Input, *, keyed: bool) -> Passes:
    """One container."""
    run, expected = Passes(), 0
    with bench_job(job, pipeline) as around:
        container = around.container("container")
        container.run(container.ready().tasks())
        for number, rows in enumerate(given.all):
            container.permit(0)
            source = around.source("flights", **({"key": "carrier"} if keyed else {}))
            source.write(rows, *(() if keyed else ("dest",)))
            source.close()
            expected += kept(rows)
            last = last_rows(around)
            begun, before = time.monotonic(), parts_of(container.pid, around.emulator.pid).total()
            container.permit()
            if keyed:
                container.until("the rows are read", partial(_has_read, container, last))
            else:
                wait_for(around, container, "clean", expected)
            if number < len(given.passes):
                used = parts_of(container.pid, around.emulator.pid).total() - before
                run.add(rows.num_rows, time.monotonic() - begun, used)
        run.found = emitted(around)
    return run


def _has_read(container: Container, last: Sequence[Position]) -> bool:
    """Whether the one stage has appended batches that have read the last records with rows."""
    for partition, position in enumerate(last):
        report = container.reports.get(f"daily_delays-{partition}")
        read = (report.read if report is not None else None) or {}
        if read.get(f"flights/{partition}", (0, 0)) <= position:
            return False
    return True


def last_rows(around: BenchJob) -> list[Position]:
    """Where the last record with rows begins, of each log of the source."""
    found = [in_log(around, f"streams/flights/{partition}")[1] for partition in range(TASKS)]
    return [parts[-1].position if parts else (0, -1) for parts in found]


def in_log(around: BenchJob, prefix: str) -> tuple[LogReader, list[Part]]:
    """All that a log has, and who reads it."""
    reader, parts, position = LogReader(around.account.blobs(), prefix), list[Part](), (0, 0)
    while True:
        scan = reader.scan(position)
        parts += scan.parts
        if scan.at_end:
            return reader, parts
        position = scan.end


def emitted(around: BenchJob) -> Found:
    """What the logs of the windowed stage hold."""
    logs = [in_log(around, f"runs/{RUN_ID}/daily_delays-{number}") for number in range(TASKS)]
    rows = pa.Table.from_batches([batch for reader, parts in logs for batch in reader.rows(parts)])
    days = pc.struct_field(rows["window"], "start")
    return found_in(days, rows["carrier"], rows["flights"], rows["delay"])


def plain(form: str, kind: str, given: Input) -> Passes:
    """Plain Spark. `form`: all of a pass in a batch, so many files a batch, or a trigger `now` for each pass."""
    with scratch() as work:
        source = work / "source"
        source.mkdir()
        counts = [FILES_A_YEAR * given.years] * len(given.passes) + [1] * len(given.closing)
        for number, (rows, count) in enumerate(zip(given.all, counts, strict=True)):
            length = -(-rows.num_rows // count)
            for part in range(count):
                _write(rows.slice(part * length, length), source / f"{number:03}-{part:03}", kind)
        (work / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        # Spark counts what its reader of CSV hands out, and that leaves out rows without a delay.
        sizes = [str(kept(rows) if kind == "csv" else rows.num_rows) for rows in given.all]
        (line,) = plain_spark("same", str(work), str(source), form, kind, *sizes)
        run = Passes()
        for rows, each in zip(given.passes, json.loads(line), strict=False):
            run.add(rows.num_rows, each["seconds"], each["cpu"])
        result = ds.dataset(work / "result", format="parquet").to_table()
        days = pc.struct_field(result["window"], "start")
        run.found = found_in(days, result["carrier"], result["flights"], result["delay"])
    return run


def _write(rows: pa.Table, path: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(rows.select(COLUMNS), path)
    else:
        times = pc.strftime(pc.cast(rows["ts"], pa.timestamp("s")), "%Y-%m-%d %H:%M:%S")
        columns = {"carrier": rows["carrier"].cast(pa.string()), "ts": times, "dep_delay": rows["dep_delay"]}
        options = pc_csv.WriteOptions(include_header=False, quoting_style="none")
        pc_csv.write_csv(pa.table(columns), path, options)


def flink(environment: Path, given: Input) -> Passes:
    """A session cluster with one job. Each pass is a file for each slot, in the order of time."""
    run = Passes()
    with cluster(environment, SETTINGS) as session:
        inbox, sink, source = (session.directory / name for name in ("inbox", "sink", "source"))
        for folder in (inbox, source):
            folder.mkdir()
        for number, rows in enumerate(given.all):
            for slot in range(SLOTS):
                _write(rows.take(pa.array(range(slot, rows.num_rows, SLOTS))), source / f"{number:03}-{slot}", "csv")
        submit(session, FLINK.format(inbox=inbox, sink=sink))
        for number, (rows, expected) in enumerate(zip(given.all, due(given.all), strict=True)):
            begun, used = time.monotonic(), cpu_s(*session.processes)
            for slot in range(SLOTS):
                name = f"{number:03}-{slot}"
                os.link(source / name, inbox / name)
            while lines(sink) < expected:
                if time.monotonic() > begun + PATIENCE_S:
                    raise SystemExit(f"Flink's sink has {lines(sink):,} rows, expected {expected:,}.")
                time.sleep(POLL_S)
            if number < len(given.passes):
                run.add(rows.num_rows, time.monotonic() - begun, cpu_s(*session.processes) - used)
        names = ["day", "carrier", "flights", "delay"]
        files = [pc_csv.read_csv(path, pc_csv.ReadOptions(column_names=names)) for path in parts(sink)]
        result = pa.concat_tables(files)
        run.found = found_in(*(result[name] for name in names))
    return run


def submit(session: Cluster, sql: str) -> None:
    """Start the statements as a job, and wait until it runs."""
    script = session.directory / "job.py"
    script.write_text(SUBMIT.format(sql=sql))
    python = str(session.home.parents[3] / "bin" / "python")
    command = session.command("flink", "run", "-d", "-pyclientexec", python, "-pyexec", python, "-py", str(script))
    ended = subprocess.run(command, env=session.environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"flink run failed: {ended.stdout[-1000:]} {ended.stderr[-3000:]}")
    (job,) = (job["id"] for job in session.ask("/jobs")["jobs"])
    session.until(f"/jobs/{job}", lambda found: all(each["status"] == "RUNNING" for each in found["vertices"]))


def due(parts: Sequence[pa.Table]) -> list[int]:
    """How many windows Flink has fired after each part: those over by the last row of each slot, less an hour."""
    windows: set[tuple[Any, str]] = set()
    counts = []
    for rows in parts:
        windows |= truth([rows]).keys()
        until = _naive(rows["ts"][-SLOTS]) - timedelta(hours=1)
        counts.append(sum(day + DAY <= until for day, _ in windows))
    return counts


def _naive(time: pa.Scalar) -> Any:
    return time.cast(pa.timestamp("us")).as_py()


def parts(sink: Path) -> list[Path]:
    """The files that are finished."""
    return sorted(path for path in sink.glob("part-*") if path.stat().st_size)


def lines(sink: Path) -> int:
    """How many rows can be read in the sink."""
    return sum(path.read_bytes().count(b"\n") for path in parts(sink))


if __name__ == "__main__":
    main(measure, __doc__)

"""A job with every kind of state on a Spark cluster: killed in the midst of each, then drained and compared.

Each stage calls a Python function, at which its batch waits while something is done to the executor that runs it. What
the batch gives is computed here from the rows, without Spark.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from . import clusters
from .real_processes import cleaned, daily, daily_rows, rows_of

Rows: TypeAlias = Counter[tuple[Any, ...]]

#: Of the stages below: in which order they are struck.
STAGES = ("clean", "daily_delays", "busy", "joined", "once", "counted")
MACHINE = "machine"
#: Of these the ones that leave out what is too late, and how many such rows there are at the end.
BY_TIME, LATE = ("daily_delays", "busy", "joined", "once"), 200
STREAMS = """
[streams.flights]
partitions = 2
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
[streams.by-carrier]
partitions = 1
event_time = "ts"
[streams.late]
partitions = 1
event_time = "ts"
[stages.clean]
partitions = 2
[stages.daily_delays]
partitions = 2
[stages.joined]
partitions = 2
"""
PIPELINE = """import os
import time

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from samza_azure import Application

app = Application()


def wait(stage):
    while os.path.exists(f"{HOLD}-{stage}"):
        with open(f"{HOLD}-{stage}.at", "w") as at:
            at.write(f"{os.getpid()} ")
        time.sleep(0.05)


def held(stage):
    @F.udf("double")
    def minutes(delay):
        wait(stage)
        return delay

    return minutes


@app.stage("flights", output="by-carrier", partition_by="carrier")
def clean(flights: DataFrame) -> DataFrame:
    rows = flights.where("dep_delay IS NOT NULL")
    return rows.select("carrier", "ts", held("clean")("dep_delay").alias("dep_delay"))


@app.stage("flights", output="late", partition_by="carrier")
def late(flights: DataFrame) -> DataFrame:
    return flights.where("dep_delay > 60").select("carrier", "ts", "dep_delay")


@app.stage("by-carrier", output="daily-delays")
def daily_delays(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumn("dep_delay", held("daily_delays")("dep_delay"))
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
    )


@app.stage("by-carrier", output="sessions")
def busy(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumn("dep_delay", held("busy")("dep_delay"))
        .withWatermark("ts", "1 hour")
        .groupBy(F.session_window("ts", "37 minutes 30 seconds").alias("s"), "carrier")
        .agg(F.count("*").alias("flights"), F.max("dep_delay").alias("most"))
        .select("carrier", F.col("s.start").alias("start"), "flights", "most")
    )


@app.stage("late", "by-carrier", output="meetings")
def joined(late: DataFrame, rows: DataFrame) -> DataFrame:
    early = (
        rows.where("dep_delay < 0").withWatermark("ts", "1 hour")
        .select(F.col("carrier").alias("c"), F.col("ts").alias("t"), F.col("dep_delay").alias("early"))
    )
    late = late.withColumn("dep_delay", held("joined")("dep_delay")).withWatermark("ts", "1 hour")
    near = F.expr("carrier = c AND t BETWEEN ts - INTERVAL 10 MINUTES AND ts")
    return late.join(early, near, "leftOuter").select("carrier", "ts", "dep_delay", "t", "early")


@app.stage("by-carrier", output="times")
def once(rows: DataFrame) -> DataFrame:
    waited = rows.where(held("once")("dep_delay").isNotNull())
    return waited.withWatermark("ts", "1 hour").select("carrier", "ts").dropDuplicates(["carrier", "ts"])


def count(key, frames, state):
    wait("counted")
    here = sum(map(len, frames))
    so_far = here + (state.get[0] if state.exists else 0)
    state.update((so_far,))
    yield pd.DataFrame({"carrier": [key[0]], "here": [here], "so_far": [so_far]})


@app.stage("by-carrier", output="counts")
def counted(rows: DataFrame) -> DataFrame:
    schema = "carrier string, here bigint, so_far bigint"
    return rows.groupBy("carrier").applyInPandasWithState(count, schema, "so_far bigint", "append", "NoTimeout")
"""
#: Spark keeps the state of this one in RocksDB only.
STATE_MACHINE = """

class Counted(StatefulProcessor):
    def init(self, handle):
        self.rows = handle.getValueState("rows", "so_far bigint")

    def handleInputRows(self, key, rows, timerValues):
        wait("machine")
        here = sum(map(len, rows))
        so_far = here + (self.rows.get()[0] if self.rows.exists() else 0)
        self.rows.update((so_far,))
        yield pd.DataFrame({"carrier": [key[0]], "here": [here], "so_far": [so_far]})

    def close(self):
        pass


@app.stage("by-carrier", output="machine-counts")
def machine(rows: DataFrame) -> DataFrame:
    schema = "carrier string, here bigint, so_far bigint"
    return rows.groupBy("carrier").transformWithStateInPandas(Counted(), schema, "append", "None")
"""


class Struck(clusters.Trial):
    """A trial whose batches wait each at a stage."""

    def held(self, stage: str, rows: int) -> int:
        """Produce rows, and wait until a batch of the stage waits at its function. Return whose worker runs it."""
        self.hold(stage).touch()
        self.world.produce(rows)
        return self.waits_again(stage)

    def waits_again(self, stage: str) -> int:
        """Wait until a batch of the stage waits at its function. Return whose worker runs it."""
        at = self.hold(f"{stage}.at")
        found: list[int] = []
        self.cluster.until(
            f"a batch of {stage}", lambda: found or (at.exists() and found.extend(self.above(at.read_text())))
        )
        return found[0]

    def hold(self, stage: str) -> Path:
        """While this is there, batches of the stage wait."""
        return Path(f"{self._hold}-{stage}")

    def free(self, stage: str) -> None:
        """Let its batches go on."""
        self.hold(stage).unlink(missing_ok=True)
        self.hold(f"{stage}.at").unlink(missing_ok=True)

    def killed(self, stage: str, rows: int, *, worker: bool) -> None:
        """Kill the executor of a batch of the stage, or its worker and the executor; another worker comes."""
        number = self.held(stage, rows)
        before = self.driver.failed()
        if worker:
            self.cluster.kill(number)
        else:
            self.kill_executors([number])
        self.free(stage)
        self.cluster.until("a failed task", lambda: self.driver.failed()[0] > before[0])
        if worker:
            self.cluster.add(max(self.cluster.numbers) + 1)
        self.world.exact()
        tasks, stages = (now - then for now, then in zip(self.driver.failed(), before, strict=True))
        what = "worker and executor" if worker else "executor"
        self.say(f"kill -9 of the {what} of a batch of {stage}: {tasks} tasks and {stages} stages failed")

    def late_in_the_end(self) -> dict[str, int]:
        """How many rows each stage has left out when all has been read. Spark tells it of a batch later."""
        self.all_is_read()
        before, now = {"": 0}, self.late()
        while now != before:
            self.all_is_read()
            before, now = now, self.late()
        self.say(f"rows that were too late: {now}")
        return now

    def compared(self, stages: tuple[str, ...], late: int) -> None:
        """Drain. What each stage has emitted is that of a batch: without so many rows at the end, if they are late."""
        assert self.world.drained() == {"p0": 0}
        flights = self.world.flights.slice(0, self.world.produced)
        in_time = flights.slice(0, flights.num_rows - late)
        found = {
            "clean": lambda: rows_of(self.world.stream("by-carrier")),
            "daily_delays": lambda: daily_rows(self.world.stream("daily-delays")),
            "busy": lambda: _rows(self.world.stream("sessions"), "carrier", "start", "flights", "most"),
            "joined": lambda: _rows(self.world.stream("meetings"), "carrier", "ts", "dep_delay", "t", "early"),
            "once": lambda: _rows(self.world.stream("times"), "carrier", "ts"),
            "counted": lambda: _counts(self.world.stream("counts")),
            MACHINE: lambda: _counts(self.world.stream("machine-counts")),
        }
        expected: dict[str, Callable[[pa.Table], Rows]] = {
            "clean": lambda rows: rows_of(cleaned(rows)),
            "daily_delays": daily,
            "busy": busy,
            "joined": joined,
            "once": lambda rows: Counter(dict.fromkeys(_rows(cleaned(rows), "carrier", "ts"), 1)),
            "counted": counted,
            MACHINE: counted,
        }
        wrong = []
        for stage in stages:
            if stage == "clean":
                continue  # a drained run's intermediate streams are deleted; `exact` has compared it before
            here, there = found[stage](), expected[stage](in_time if stage in BY_TIME else flights)
            self.say(f"{stage}: {here.total():,} rows, {'equal to' if here == there else 'NOT those of'} the batch")
            if here != there:
                wrong.append(
                    f"{stage}: too many {[*(here - there).items()][:5]}, missing {[*(there - here).items()][:5]}"
                )
        assert not wrong, "\n".join(wrong)


def play(folder: Path, flights: pa.Table, rows: int, state: str, *, hidden: bool = False) -> None:
    """Kill in the midst of each stage, kill the processor, which restores on the cluster, and drain. The last rows are
    too late.
    """
    trial = Struck(folder, clusters.ending_late(flights, rows, LATE), state, hidden=hidden)
    stages = (*STAGES, MACHINE) if state == "rocksdb" else STAGES
    pipeline = PIPELINE + (STATE_MACHINE if state == "rocksdb" else "")
    trial.world.carries(STREAMS, pipeline.replace("HOLD", repr(str(folder / "hold"))))
    part = rows // (len(stages) + 1)
    try:
        trial.cluster.add(4)
        trial.start()
        for number, stage in enumerate(stages):
            trial.killed(stage, part, worker=number % 2 == 1)
        trial.restart(rows - LATE - trial.world.produced)
        trial.all_is_read()  # late is what the watermark of an earlier batch has passed
        trial.world.produce(LATE)
        trial.world.exact()
        late, expected = trial.late_in_the_end(), dropped(flights.slice(0, LATE))
        trial.compared(stages, LATE)
        assert late == expected, f"{late} instead of {expected}"
        trial.say(f"{trial.world.produced:,} rows with state in {state}")
    finally:
        trial.close()


# What the batch gives.


def busy(flights: pa.Table) -> Rows:
    """Sessions: rows of a carrier less than the gap apart."""
    gap = timedelta(minutes=37, seconds=30)
    found: list[tuple[str, datetime, int, float]] = []
    for carrier, rows in _by_carrier(flights).items():
        last: datetime | None = None
        for at, delay in rows:
            if last is None or at - last >= gap:
                found.append((carrier, at, 0, delay))
            _, start, number, most = found[-1]
            found[-1] = (carrier, start, number + 1, max(most, delay))
            last = at
    return Counter(found)


def joined(flights: pa.Table) -> Rows:
    """Late flights with those of their carrier that left early in the ten minutes before, or with none."""
    found: Rows = Counter()
    for carrier, rows in _by_carrier(flights).items():
        early = [each for each in rows if each[1] < 0]
        times = [at for at, _ in early]
        for at, delay in rows:
            if delay > 60:
                near = early[bisect_left(times, at - timedelta(minutes=10)) : bisect_right(times, at)]
                found.update((carrier, at, delay, *each) for each in near or [(None, None)])
    return found


def dropped(late: pa.Table) -> dict[str, int]:
    """How many of these rows each stage leaves out if all are too late."""
    delays = [delay for rows in _by_carrier(late).values() for _, delay in rows]
    sides = sum(delay > 60 or delay < 0 for delay in delays)
    return {stage: sides if stage == "joined" else len(delays) for stage in BY_TIME}


def counted(flights: pa.Table) -> Rows:
    """The rows of each carrier, counted in pieces, and the last count."""
    return Counter((carrier, len(rows), len(rows)) for carrier, rows in _by_carrier(flights).items())


def _counts(table: pa.Table) -> Rows:
    here: Counter[str] = Counter()
    most: dict[str, int] = {}
    for row in table.to_pylist():
        here[row["carrier"]] += row["here"]
        most[row["carrier"]] = max(row["so_far"], most.get(row["carrier"], 0))
    return Counter((carrier, number, most[carrier]) for carrier, number in here.items())


def _by_carrier(flights: pa.Table) -> dict[str, list[tuple[datetime, float]]]:
    """The times and delays of the rows that the first stage keeps, in order."""
    found = defaultdict(list)
    for row in cleaned(flights).to_pylist():
        found[row["carrier"]].append((row["ts"], row["dep_delay"]))
    return {carrier: sorted(rows) for carrier, rows in found.items()}


def _rows(table: pa.Table, *columns: str) -> Rows:
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))

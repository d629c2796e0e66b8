"""What Spark's own suites try of decommissioning and our other trials do not, on a cluster, under a processor.

Of a batch in two partitions one task has ended and the other one has not when a worker leaves: its blocks go to the
other worker, its shuffled rows there or to the container. The last worker leaves in a batch that shuffles twice: both
go to the container. Executors are told to leave and die in the middle of a task, more often than a task may fail.
Others are told in the instant in which they get a task: it may fail before it has computed anything, and only then.
And one leaves while a task of two that read what it has shuffled runs elsewhere, and the other one waits for its core.
"""

import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import clusters
from .cluster_leaving import Cost, Leaving
from .real_processes import cleaned, rows_of

STREAMS = """
[streams.flights]
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
[streams.by-carrier]
event_time = "ts"
[stages.clean]
partitions = 2
[stages.daily]
partitions = 2
[stages.counted]
partitions = 2
"""
#: A batch waits in the partitions whose numbers the file `HOLD` has.
PIPELINE = """import os
import time

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


def wait(stage):
    while True:
        try:
            with open(f"{HOLD}-{stage}") as hold:
                partitions = hold.read().split()
        except FileNotFoundError:
            return
        if str(TaskContext.get().partitionId()) not in partitions:
            return
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


@app.stage("flights", output="kept")
def kept(flights: DataFrame) -> DataFrame:
    rows = flights.where("dep_delay IS NOT NULL")
    return rows.select("carrier", "ts", held("kept")("dep_delay").alias("dep_delay"))


@app.stage("by-carrier", output="daily-times")
def daily(rows: DataFrame) -> DataFrame:
    once = rows.withWatermark("ts", "1 hour").dropDuplicates(["carrier", "ts"])
    return once.groupBy(F.window("ts", "1 day"), "carrier").agg(F.count(held("daily")("dep_delay")).alias("times"))


def count(key, frames, state):
    wait("counted")
    yield pd.DataFrame({"carrier": [key[0]], "here": [sum(map(len, frames))]})


@app.stage("by-carrier", output="counts")
def counted(rows: DataFrame) -> DataFrame:
    read = rows.withColumn("dep_delay", held("read")("dep_delay"))
    return read.groupBy("carrier").applyInPandasWithState(
        count, "carrier string, here bigint", "nothing bigint", "append", "NoTimeout"
    )
"""
#: How often a task of Spark may fail, and how often its executor leaves.
FAILURES, LEAVES = 2, 3
#: No task waits for the executor that has its state.
MORE = f"""
task.maxFailures = {FAILURES}
locality.wait = "0s"
"""


class Told(Leaving):
    """A trial whose batches wait in one of their partitions."""

    def held_at(self, partition: int, stage: str, rows: int) -> int:
        """Produce rows, and wait until a batch of the stage waits there. Return whose worker runs it."""
        self.hold(stage).write_text(str(partition))
        return self.held(stage, rows)

    def one_of_two_ended(self) -> bool:
        """Whether nothing runs but one of a stage's two tasks, the one that waits."""
        stages = [each for each in self.driver.asked("stages") if each["status"] == "ACTIVE"]
        return [(each["numCompleteTasks"], each["numActiveTasks"]) for each in stages] == [(1, 1)]

    def tell(self, number: int) -> None:
        """Tell a worker to leave, and wait until its master knows."""
        self.cluster.workers[number].send_signal(signal.SIGTERM)
        self.cluster.until("decommissioned", lambda: self.cluster.know_that_leave({f"127.0.0.{number}"}))

    def tell_executor(self, number: int) -> None:
        """Tell a worker to leave, and wait until its executor knows, and so the driver."""
        self.tell(number)
        logs = list(self.cluster.directory.glob(f"worker-{number}/executors/app-*/*/stderr"))
        self.cluster.until("it knows", lambda: any("Decommission executor" in each.read_text() for each in logs))

    def has_left(self, number: int) -> None:
        """Wait until the worker has ended in order."""
        assert self.cluster.workers.pop(number).wait(clusters.PATIENCE_S) == 0, self.cluster.said()

    def ends_as_told(self, number: int) -> None:
        """Tell a worker to leave, and kill its executor in the middle of a task, once that knows. If it were not told,
        that would be the task's failure; the death of a whole worker never is.
        """
        self.tell_executor(number)
        self.kill_executors([number])
        self.has_left(number)

    def gets_a_task_as_it_leaves(self, numbers: list[int], rows: int) -> None:
        """Tell workers whose executors stand still since before they got the tasks of a batch. Then let these go on."""
        executors = [each for number in numbers for each in self.cluster.executors(number)]
        for each in executors:
            each.suspend()
        self.world.produce(rows)
        self.cluster.until("a task", self.driver.addresses_at_work)
        for number in numbers:
            self.tell(number)
        for each in executors:
            each.resume()
        for number in numbers:
            self.has_left(number)

    def leaves_between_readers(self, rows: int) -> None:
        """A worker leaves with what a batch's two last tasks read. The other worker, of one core, has begun the first
        of them before, and begins the second one when it has gone.
        """
        leaver = self.held_at(0, "read", rows)
        self.all_is_read(but="counted")  # so the other worker is idle
        [other] = {*self.cluster.workers} - {leaver}
        self.hold("counted").write_text("0 1")
        self.tell_executor(leaver)
        self.free("read")
        assert self.waits_again("counted") == other
        self.has_left(leaver)
        self.free("counted")

    def shuffles(self) -> list[int]:
        """The numbers of the shuffles whose rows are with the container, in order."""
        files = self.world.directory.glob("**/shuffled/**/shuffle_*")
        return sorted({int(re.findall(r"\d+", each.name)[0]) for each in files})

    def on_executors(self) -> list[Path]:
        """What workers that have not left keep of shuffles, of whatever batch."""
        places = [self.cluster.directory / f"worker-{number}" for number in self.cluster.workers]
        assert all(each.is_dir() for each in places)
        return [found for each in places for found in each.rglob("shuffle_*")]

    def equal_to_the_batch(self) -> None:
        """Drain. What was emitted is that of a batch."""
        assert self.world.drained() == {"p0": 0}
        found = self.world.stream("daily-times").to_pylist()
        rows = cleaned(self.world.flights.slice(0, self.world.produced))
        assert rows_of(self.world.stream("kept")) == rows_of(rows)
        times = {(each["carrier"], each["ts"]) for each in rows.to_pylist()}
        day = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}
        expected: Counter[tuple[Any, ...]] = Counter((at.replace(**day), carrier) for carrier, at in times)
        assert {(each["window"]["start"], each["carrier"]): each["times"] for each in found} == expected
        assert len(found) == len(expected)
        counts: Counter[str] = Counter()
        for each in self.world.stream("counts").to_pylist():
            counts[each["carrier"]] += each["here"]
        assert counts == Counter(each["carrier"] for each in rows.to_pylist())


def play(folder: Path, flights: pa.Table, rows: int) -> None:
    """Each case on one cluster, then a drain."""
    trial = Told(folder, flights, "memory", more=MORE)
    trial.world.carries(STREAMS, PIPELINE.replace("HOLD", repr(str(folder / "hold"))))
    cluster, world, part = trial.cluster, trial.world, rows // 6
    try:
        trial.start()
        world.produce(part)
        world.exact()
        trial.all_is_read()
        cluster.until("two executors", lambda: len(trial.driver.executors()) == 2)

        before = trial.cost()
        waits = trial.held_at(0, "clean", part)
        cluster.until("the other task's end", trial.one_of_two_ended)
        [other] = {*cluster.workers} - {waits}
        trial.tell(other)
        trial.has_left(other)
        trial.free("clean")
        world.exact()
        trial.all_is_read()
        trial.say(f"a worker left when its task had ended and the batch had not: {trial.cost() - before}")
        assert trial.cost() - before == Cost(0, 0, 0, 0)

        before, known = trial.cost(), trial.failures()
        cluster.add(max(cluster.numbers) + 1)
        cluster.until("two executors", lambda: len(trial.driver.executors()) == 2)
        trial.leaves_between_readers(part)
        world.exact()
        trial.all_is_read()
        failures = [str(each) for each in trial.failures() if each not in known]
        trial.say(f"a worker left between two tasks that read from it: {trial.cost() - before}; {failures}")
        assert trial.cost() - before == Cost(0, 0, 0, 0)

        before = trial.cost()
        last = trial.held_at(1, "daily", part)
        cluster.until("the other task's end", trial.one_of_two_ended)
        trial.tell(last)
        trial.free("daily")
        trial.has_left(last)
        found = trial.shuffles()
        cluster.add(max(cluster.numbers) + 1)
        world.exact()
        trial.all_is_read()
        trial.say(f"the last worker left rows of shuffles {found}: {trial.cost() - before}")
        assert trial.cost() - before == Cost(0, 0, 0, 0)
        assert found[-1] - found[-2] == 1  # both of the batch
        cluster.until("nothing of it is left", lambda: not trial.shuffles())

        failed = trial.driver.failed()
        waits = trial.held_at(0, "kept", part)  # nothing is shuffled, so these are attempts of one task
        for _ in range(LEAVES):
            cluster.add(max(cluster.numbers) + 1)
            trial.ends_as_told(waits)
            waits = trial.waits_again("kept")
        trial.free("kept")
        world.exact()
        trial.all_is_read()
        tasks, stages = (now - then for now, then in zip(trial.driver.failed(), failed, strict=True))
        trial.say(
            f"{LEAVES} executors were told, and died in the middle of a task: {tasks} tasks, {stages} stages failed"
        )
        assert tasks >= LEAVES > FAILURES

        before, known, old = trial.cost(), trial.failures(), [*cluster.workers]
        cluster.add(*(max(cluster.numbers) + each for each in (1, 2)))
        trial.gets_a_task_as_it_leaves(old, part)
        world.exact()
        trial.all_is_read()
        failures = [str(each) for each in trial.failures() if each not in known]
        trial.say(f"executors were told as they got a task: {trial.cost() - before}; {failures}")
        assert trial.cost() - before == Cost(0, 0, 0, 0)

        assert "FAILED" not in [each["status"] for each in trial.driver.asked("jobs")]
        cluster.until("no rows of ended batches on executors", lambda: not trial.on_executors())
        trial.equal_to_the_batch()
    finally:
        trial.close()

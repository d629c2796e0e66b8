"""Batches of a stage with several of Spark's partitions, and its state: the same rows, in the order of each key.

`tests/prove/pipelines.py --spread` does it with drawn pipelines.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.messages import Phase

from .task_driver import Fleet

JOB = """
[streams.seen]
partitions = 1
key = "key"
schema = "key string, ts timestamp, n bigint"
event_time = "ts"
[streams.shouted]
event_time = "ts"
[stages.shout]
partitions = 3
[stages.count]
partitions = 4
[task]
commit.ms = 0
"""
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
KEYS = [f"{number}" for number in range(20)]


def pipeline() -> Application:
    """A stage without state, then one with it."""
    application = Application()

    @application.stage("seen", output="shouted", partition_by="key")
    def shout(rows: DataFrame) -> DataFrame:
        return rows.withColumn("part", F.udf(lambda _: TaskContext.get().partitionId(), "int")("key"))

    @application.stage("shouted", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        rows = rows.withWatermark("ts", "0 seconds")
        return rows.groupBy(F.window("ts", "1 day"), "key").agg(
            F.count("*").alias("c"), F.collect_list("n").alias("all")
        )

    return application


def test_rows_and_state_in_several_partitions_are_those_of_one(fleet: Callable[[Application, str], Fleet]) -> None:
    """Through a hand-over."""
    run = fleet(pipeline(), JOB)
    writer = run.writer("seen", 1, flush_rows=200)
    run.start("shout-0", "count-0")
    for number in range(2):
        numbers = list(range(200 * number, 200 * (number + 1)))
        times = [NOON + timedelta(seconds=each) for each in numbers]
        writer.write(pa.table({"key": [KEYS[each % 20] for each in numbers], "ts": times, "n": numbers}))
        writer.flush()
        run.until_all_is_read("seen")
        if number == 0:
            run.move("shout-0")
            run.move("count-0")
    writer.close()
    state = run.tasks["count-0"]._directory / "checkpoint" / "state" / "0"
    run.until(lambda: len(stores(state)) == 4)
    run.drain()

    found: dict[Any, list[dict[str, Any]]] = {}
    for row in run.rows("shouted"):
        found.setdefault(row["key"], []).append(row)
    assert {key: [row["n"] for row in rows] for key, rows in found.items()} == {
        key: list(range(number, 400, 20)) for number, key in enumerate(KEYS)
    }
    assert {row["part"] for rows in found.values() for row in rows} == {0, 1, 2}
    assert {(row["key"], row["c"], tuple(row["all"])) for row in run.rows("counts")} == {
        (key, 20, tuple(range(number, 400, 20))) for number, key in enumerate(KEYS)
    }


def stores(state: Any) -> list[str]:
    """The partitions of the state of an operator."""
    return [each.name for each in state.iterdir() if each.name.isdecimal()] if state.exists() else []


def test_another_number_is_another_state_and_no_other_pipeline(fleet: Callable[[Application, str], Fleet]) -> None:
    """So it cannot change while a run with that state goes on; without state it can."""
    one, other, third = (
        fleet(pipeline(), JOB.replace(*change)).pipeline.plan
        for change in (("", ""), ("partitions = 3", "partitions = 2"), ("partitions = 4", "partitions = 2"))
    )
    assert one.fingerprint == other.fingerprint != third.fingerprint
    assert (one.described["stage count"]["state_partitions"], third.described["stage count"]["state_partitions"]) == (
        "4",
        "2",
    )


@pytest.mark.parametrize(("began", "goes_on"), [(4, 2), (1, 4)])
def test_a_log_with_state_of_another_number_is_refused(
    fleet: Callable[[Application, str], Fleet], began: int, goes_on: int
) -> None:
    """By its records alone: here nobody has compared fingerprints. That of a stage without state may change."""
    jobs = [JOB.replace("partitions = 4", f"partitions = {each}") for each in (began, goes_on)]
    run, other = fleet(pipeline(), jobs[0]), fleet(pipeline(), jobs[1].replace("partitions = 3", "partitions = 2"))
    writer = run.writer("seen", 1, flush_rows=20)
    run.start("shout-0", "count-0")
    writer.write(pa.table({"key": KEYS, "ts": [NOON] * 20, "n": [*range(20)]}))
    writer.close()
    run.until(lambda: run.tasks["count-0"].report.batch >= 0)
    for name in run.tasks:
        run.release(name)

    other.run_id, other.group_id, other.generation = run.run_id, run.group_id, run.generation
    other.start("shout-0", "count-0", first=False)

    assert other.tasks["shout-0"].report.phase is Phase.RUNNING
    report = other.tasks["count-0"].report
    assert report.phase is Phase.FAILED
    assert report.error is not None
    assert report.error.message == (
        f"The log of count-0 holds state in {began} partition{'s' * (began > 1)}, but the job file now says {goes_on}; "
        f"which of them a key is in follows from their number. Write stages.count.partitions = {began} for this run; "
        "to change it, drain the run first."
    )
    other.release("shout-0")
    run.generation = other.generation
    run.start("shout-0", "count-0", first=False)
    run.drain()
    assert {(row["key"], row["c"]) for row in run.rows("counts")} == {(key, 1) for key in KEYS}


@pytest.mark.parametrize(
    ("mode", "whole", "named"),
    [
        ("update", lambda rows: rows.groupBy().count(), "an aggregation"),
        ("append", lambda rows: rows.limit(3), "a limit"),
    ],
    ids=["aggregation", "limit"],
)
def test_state_of_all_rows_has_one_partition(
    fleet: Callable[[Application, str], Fleet], mode: str, whole: Callable[[DataFrame], DataFrame], named: str
) -> None:
    """A task of such a stage could not be handed over: Spark notes more partitions than it makes (drawn seed 43)."""
    application = Application()

    @application.stage("seen", output="all", output_mode=mode, tasks=1)
    def count(rows: DataFrame) -> DataFrame:
        return whole(rows)

    job = JOB.replace("[stages.shout]\npartitions = 3\n", "")
    with pytest.raises(
        PipelineRefused, match=rf"stages\.count\.partitions is 4, but stage count has {named} of all rows"
    ):
        fleet(application, job)


def test_a_section_for_what_has_no_query_is_refused(fleet: Callable[[Application, str], Fleet]) -> None:
    application = pipeline()

    @application.task("seen", output="told")
    class Tell:
        def process(self, envelope: Any, collector: Any) -> None: ...

    sections = "[streams.told]\nschema = 'n bigint'\n[stages.counts]\npartitions = 2\n[stages.Tell]\npartitions = 2\n"
    with pytest.raises(PipelineRefused) as refused:
        fleet(application, JOB + sections)
    for said in (
        "no stage 'counts'. Did you mean 'count'? The stages with a query are: shout, count.",
        "Tell is a low-level task, whose messages Spark does not see. Remove it.",
    ):
        assert said in str(refused.value)

"""Stages with state run without a shuffle from one partition to one: the plans of Spark, and the rows and the state."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from samza_azure.application import Application
from samza_azure.messages import CPU_PHASES, WALL_PHASES
from samza_azure.spark.jvm import exchanges
from samza_azure.spark.jvm.session import compiled
from samza_azure.spark.jvm.settings import BASE

from .task_driver import Fleet

NODE = re.compile(r"^[\s:+\-]*(?:\*\(\d+\) )?(\w+)(.*)", re.MULTILINE)


class Counted(StatefulProcessor):
    """The number of rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield Row(key=key[0], n=sum(1 for _ in rows))

    def close(self) -> None:
        pass


class CountedInPandas(Counted):
    """The same, of frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield pd.DataFrame({"key": [key[0]], "n": [sum(map(len, rows))]})


def count_in_pandas(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """The number of rows of a key."""
    yield pd.DataFrame({"key": [key[0]], "n": [sum(map(len, frames))]})


def hours(rows: DataFrame) -> DataFrame:
    """Rows of each key and hour."""
    return rows.groupBy(F.window("ts", "1 hour"), "key").agg(F.count("*").alias("n"), F.max("ts").alias("last"))


def by_state(rows: DataFrame, other: DataFrame, call: str, function: object) -> DataFrame:
    """With a function that keeps state."""
    arguments = ("n bigint", "append", "NoTimeout") if call == "applyInPandasWithState" else ("append", "None")
    made: DataFrame = getattr(rows.groupBy("key"), call)(function, "key string, n bigint", *arguments)
    return made


def joined(rows: DataFrame, other: DataFrame, how: str = "inner") -> DataFrame:
    """By key and time."""
    return rows.join(other.select(F.col("key").alias("k"), F.col("ts").alias("t")), F.expr("key = k AND ts = t"), how)


shout = F.udf(lambda text: f"{text}!")
Stage = Callable[[DataFrame, DataFrame], DataFrame]
#: How often `Coalesce 1` takes the place of a shuffle.
WITHOUT: dict[str, tuple[Stage, int]] = {
    "window": (lambda rows, other: hours(rows), 1),
    "aggregation of a function's column": (lambda rows, other: rows.groupBy(shout("key").alias("k")).count(), 1),
    "aggregation of lists": (lambda rows, other: rows.groupBy("key").agg(F.collect_list("value").alias("all")), 1),
    "session": (lambda rows, other: rows.groupBy(F.session_window("ts", "1 hour"), "key").count(), 1),
    "chained windows": (lambda rows, other: hours(rows).groupBy(F.window("window", "1 day")).count(), 2),
    "deduplication": (lambda rows, other: rows.dropDuplicates(["key", "ts"]), 1),
    "deduplication within": (lambda rows, other: rows.dropDuplicatesWithinWatermark(["key"]), 1),
    "deduplication, then limit": (lambda rows, other: rows.dropDuplicates(["key", "ts"]).limit(3), 1),
    "inner join": (joined, 2),
    "full join": (lambda rows, other: joined(rows, other, "full"), 2),
    "join, then window": (lambda rows, other: hours(joined(rows, other).withColumn("key", F.col("k"))), 3),
    "state in pandas": (lambda *both: by_state(*both, "applyInPandasWithState", count_in_pandas), 1),
    "machine": (lambda *both: by_state(*both, "transformWithState", Counted()), 1),
    "machine in pandas": (lambda *both: by_state(*both, "transformWithStateInPandas", CountedInPandas()), 1),
}
#: What keeps its shuffles: how many. Spark reads one of them twice where both sides are the same rows.
WITH: dict[str, tuple[Stage, int]] = {
    "union": (lambda rows, other: hours(rows.union(other)), 1),
    "join with itself": (
        lambda rows, other: rows.alias("a").join(rows.alias("b"), F.expr("a.key = b.key AND a.ts = b.ts")),
        1,
    ),
}


def nodes(frame: DataFrame) -> list[str]:
    """The operators of the plan that Spark makes for a batch, each with what it moves where."""
    with redirect_stdout(io.StringIO()) as shown:
        frame.explain()
    return [f"{name}{rest}" for name, rest in NODE.findall(shown.getvalue())]


def planned(
    spark: SparkSession, stage: Stage, directory: Path, removed: str = "true", key: str = exchanges.REMOVED
) -> tuple[int, int]:
    """The numbers of shuffles, and of what takes their place, in the plan of a stage with two inputs."""
    both = [directory / name for name in ("a", "b")]
    for each in both:
        each.mkdir(exist_ok=True)
    session = spark.newSession()  # one of a query has the rules of the moment at which it was made, like this
    session.conf.set(exchanges.REMOVED, "false")
    session.conf.set(key, removed)
    read = session.readStream.schema("key string, ts timestamp, value double")
    found = nodes(stage(*(read.json(str(each)).withWatermark("ts", "1 hour") for each in both)))
    shuffles = [each for each in found if each.startswith("Exchange") and exchanges_for_state(each)]
    return len(shuffles), sum(each.startswith("Coalesce 1") for each in found)


def exchanges_for_state(node: str) -> bool:
    """Whether it is there for an operator with state."""
    return "REQUIRED_BY_STATEFUL_OPERATOR" in node


#: Of these kinds one each is planned in every `make test`.
ALWAYS = {"window", "session", "chained windows", "deduplication", "inner join", "machine in pandas"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ALWAYS)) for name in WITHOUT]
)
def test_an_operator_with_state_needs_no_shuffle(spark: SparkSession, tmp_path: Path, name: str) -> None:
    stage, number = WITHOUT[name]
    assert planned(spark, stage, tmp_path) == (0, number)


@pytest.mark.parametrize("name", WITH)
def test_rows_of_several_partitions_or_for_two_operators_are_shuffled(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stage, number = WITH[name]
    assert planned(spark, stage, tmp_path) == (number, 0)


def test_without_the_setting_all_shuffles_stay(spark: SparkSession, tmp_path: Path) -> None:
    for stage, number in (WITHOUT["window"], WITHOUT["join, then window"]):
        assert planned(spark, stage, tmp_path, "false") == (number, 0)


def test_a_rule_that_fails_leaves_a_plan_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """As where a release of Spark has changed what it looks at. The log of Java says it once."""
    key = "spark.samza_azure.exchanges.broken"
    fails = "collect(plan, shuffles)"
    source = exchanges.SOURCE.replace(exchanges.REMOVED, key)
    assert source.count(fails) == 1
    broken = source.replace(fails, f"if (LEFT_OUT.incrementAndGet() > 0) throw new NoSuchMethodError(); {fails}", 1)
    rule = compiled(spark, exchanges.NAME, broken)
    spark._jsparkSession.extensions().injectColumnar(rule)
    assert planned(spark, WITHOUT["window"][0], tmp_path, key=key) == (1, 0)
    assert rule.leftOut() > 0, "it has not run"


JOB = """
[streams.seen]
partitions = 1
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
"""
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(("state", "plan"), [("memory", (0, 2)), ("rocksdb", (1, 1))])
def test_a_task_goes_on_with_state_that_was_written_behind_a_shuffle_and_back(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession, state: str, plan: tuple[int, int]
) -> None:
    """Two operators with state, one behind the other, on an owner that shuffles, one that does not, one that does.

    With state in RocksDB the shuffle between the two stays: Spark would fail the first batch.
    """
    application = Application()

    @application.stage("seen", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        once = rows.withWatermark("ts", "0 seconds").dropDuplicates(["key", "ts"])
        return once.groupBy(F.window("ts", "1 day"), "key").count()

    run = fleet(application, f'{JOB}state = "{state}"\n')
    writer = run.writer("seen", 1, flush_rows=100)
    found, owners = [], []
    for number, removed in enumerate(("false", "true", "false")):
        spark.conf.set(exchanges.REMOVED, removed)
        run.start("count-0", first=number == 0)
        keys = [f"{key % 10}" for key in range(100)]
        times = [NOON + timedelta(seconds=key // 10 + 5 * number) for key in range(100)]  # half of them came before
        writer.write(pa.table({"key": keys, "ts": times}))
        writer.flush()
        run.until_all_is_read("seen")
        found.append(plan_of(run.tasks["count-0"]))
        if number < 2:
            run.release("count-0")
            owners.append(run.tasks["count-0"].report.progress)
    spark.conf.set(exchanges.REMOVED, BASE[exchanges.REMOVED])
    writer.close()
    run.drain()
    done = run.tasks["count-0"].report.progress

    assert found == [(2, 0), plan, (2, 0)]
    assert {row["key"]: row["count"] for row in run.rows("counts")} == {f"{key}": 20 for key in range(10)}
    # What its batches have cost is known by phase, as for each query. Spark tells of the last tasks a moment later.
    spent = [each.cpu_s for each in (*owners, done) if each is not None]
    assert done is not None and min(sum(each[phase] for each in spent) for phase in CPU_PHASES) > 0
    assert sum(done.wall_s[phase] for phase in WALL_PHASES) == pytest.approx(done.seconds, rel=0.05)


def plan_of(task: Any) -> tuple[int, int]:
    """The numbers of shuffles, and of what takes their place, in the plan of the last batch."""
    plan = task._query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    return plan.count("Exchange hashpartitioning"), plan.count("Coalesce 1")


@pytest.mark.long
@pytest.mark.parametrize("call", ["applyInPandasWithState", "transformWithStateInPandas"])
def test_a_function_that_reads_none_of_its_rows_leaves_no_state_below_it_behind(
    fleet: Callable[[Application, str], Fleet], call: str
) -> None:
    """Without a shuffle between the two, the deduplication runs only as far as the function's side asks it for rows."""
    application = Application()

    def ignoring(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"key": [key[0]], "n": [1]})

    class Ignoring(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            yield pd.DataFrame({"key": [key[0]], "n": [1]})

        def close(self) -> None:
            pass

    function = ignoring if call == "applyInPandasWithState" else Ignoring()

    @application.stage("seen", output="called")
    def once(rows: DataFrame) -> DataFrame:
        rows = rows.withWatermark("ts", "1 hour").dropDuplicates(["key", "ts"])  # no double is late
        return by_state(rows, rows, call, function)

    run = fleet(application, JOB)
    run.spark.conf.set(exchanges.REMOVED, "true")
    writer = run.writer("seen", 1, flush_rows=1_000)
    for number in range(3):  # after the first of them all rows are doubles
        run.start("once-0", first=number == 0)
        writer.write(pa.table({"key": [f"{key % 10}" for key in range(1_000)], "ts": [NOON] * 1_000}))
        writer.flush()
        run.until_all_is_read("seen")
        assert plan_of(run.tasks["once-0"]) == (0, 2)
        run.release("once-0")
    run.spark.conf.set(exchanges.REMOVED, BASE[exchanges.REMOVED])
    writer.close()
    assert sorted(f"{row['key']}" for row in run.rows("called")) == [f"{key}" for key in range(10)]

"""Stages with state run without a shuffle from one partition to one: the plans of Spark, and the rows and the state."""

import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from samza_azure.application import Application
from samza_azure.messages import CPU_PHASES, WALL_PHASES
from samza_azure.pipeline.state import PROVIDERS
from samza_azure.spark.jvm import exchanges, sink
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.session import compiled
from samza_azure.spark.jvm.settings import BASE
from samza_azure.spark.query.launch import STATE_PROVIDER as PROVIDER

from .task_driver import Fleet

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as `load` does it for a pipeline's module
NODE = re.compile(r"^[\s:+\-]*(?:\*\(\d+\) )?(\w+)(.*)", re.MULTILINE)


class Counted(StatefulProcessor):
    """The number of rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield Row(key=key[0], n=sum(1 for _ in rows))

    def close(self) -> None:
        pass


class OneEach(Counted):
    """A row for each row."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return (Row(key=key[0], n=1) for _ in rows)


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


def hourly(rows: DataFrame, key: str = "key") -> DataFrame:
    """Rows of each hour and key. Spark shuffles by the key first."""
    return rows.groupBy(F.col("key").alias(key), F.window("ts", "1 hour").alias(f"{key}_hour")).agg(
        F.count("*").alias(f"{key}_n")
    )


def some_hours(rows: DataFrame, other: DataFrame) -> DataFrame:
    """Hours and keys that have rows, once. Spark takes the last step in the one task of the union."""
    hours = hourly(rows.union(other)).select("key", "key_hour").union(hourly(other).select("key", "key_hour"))
    return hours.dropDuplicates(["key", "key_hour"])


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
    "union of rows of one task and of two": (some_hours, 2),
}


def numbered(hours: DataFrame, number: str = "key_n") -> DataFrame:
    """What the stages below emit."""
    return hours.select("key", F.col(number).alias("n"))


def distinct_hours(rows: DataFrame) -> DataFrame:
    """Hours in which a key has rows."""
    return rows.select("key", F.window("ts", "1 hour").alias("key_hour")).dropDuplicates(["key", "key_hour"])


def joined_hours(rows: DataFrame, other: DataFrame) -> DataFrame:
    """Of both inputs, by key and hour."""
    return rows.join(other, F.expr("key = k AND key_hour = k_hour")).drop("k_hour")


def sessions(rows: DataFrame) -> DataFrame:
    """Rows of each key that lie together."""
    return rows.groupBy("key", F.session_window("ts", "10 minutes").alias("session")).agg(F.count("*").alias("key_n"))


def machine_of_hours(rows: DataFrame, call: str, function: object) -> DataFrame:
    """How many results each key and hour has: one."""
    made: DataFrame = getattr(hourly(rows).groupBy("key", "key_hour"), call)(
        function, "key string, n bigint", "append", "None"
    )
    return made


@dataclass(frozen=True)
class Beside:
    """An aggregation and another operator that Spark would run in one task, with state in RocksDB."""

    stage: Stage
    rows: dict[tuple[str, int], int]  # that are emitted, each with how often
    has_other: bool = False  # it reads both inputs
    coalesced: bool = True  # of each input there is a shuffle less


def each(number: int, times: int = 3) -> dict[tuple[str, int], int]:
    """The same of all keys."""
    return {(key, number): times for key in KEYS}


KEYS = "abcd"
#: In each of three hours, of each input: how many rows a key has, the minutes in which they come.
MINUTES = (0, 1, 1, 2, 40)
BESIDE: dict[str, Beside] = {
    "deduplication": Beside(lambda rows, other: numbered(hourly(rows).dropDuplicates(["key", "key_hour"])), each(5)),
    "distinct": Beside(
        lambda rows, other: hourly(rows).select("key", "key_hour").distinct().select("key", F.lit(1).alias("n")),
        each(1),
    ),
    "deduplication within": Beside(
        lambda rows, other: numbered(hourly(rows).dropDuplicatesWithinWatermark(["key", "key_hour"])), each(5)
    ),
    "two deduplications": Beside(
        lambda rows, other: numbered(
            hourly(rows).dropDuplicates(["key", "key_hour"]).dropDuplicatesWithinWatermark(["key", "key_hour"])
        ),
        each(5),
    ),
    "limit": Beside(
        lambda rows, other: hourly(rows).select(F.lit("any").alias("key"), F.lit(1).alias("n")).limit(7),
        {("any", 1): 7},
    ),
    "machine": Beside(lambda rows, other: machine_of_hours(rows, "transformWithState", Counted()), each(1)),
    "machine in pandas": Beside(
        lambda rows, other: machine_of_hours(rows, "transformWithStateInPandas", CountedInPandas()), each(1)
    ),
    "sessions, then limit": Beside(
        lambda rows, other: sessions(rows).select(F.lit("any").alias("key"), F.lit(1).alias("n")).limit(7),
        {("any", 1): 7},
    ),
    "sessions, then deduplication": Beside(
        lambda rows, other: sessions(rows).select("key").dropDuplicates(["key"]).select("key", F.lit(1).alias("n")),
        each(1, times=1),
    ),
    "sessions, then machine": Beside(
        lambda rows, other: by_state(sessions(rows), other, "transformWithState", OneEach()), each(1, times=6)
    ),
    "distinct rows, then aggregation": Beside(
        lambda rows, other: (
            rows.dropDuplicates(["key", "ts"]).groupBy("key", "ts").agg(F.lit(1).alias("n")).select("key", "n")
        ),
        each(1, times=12),
    ),
    "join of aggregations, then deduplication": Beside(
        lambda rows, other: numbered(
            joined_hours(hourly(rows), hourly(other, "k")).dropDuplicates(["key", "key_hour"])
        ),
        each(5),
        has_other=True,
    ),
    "join of an aggregation with distinct rows": Beside(
        lambda rows, other: numbered(
            joined_hours(
                hourly(rows),
                distinct_hours(other).select(F.col("key").alias("k"), F.col("key_hour").alias("k_hour")),
            )
        ),
        each(5),
        has_other=True,
    ),
    "union of aggregations, then deduplication": Beside(
        lambda rows, other: numbered(hourly(rows).union(hourly(other)).dropDuplicates(["key", "key_hour"])),
        each(5),
        has_other=True,
    ),
    "union of aggregations, then aggregation": Beside(
        lambda rows, other: (
            hourly(rows)
            .union(hourly(other))
            .groupBy("key", "key_hour")
            .agg(F.sum("key_n").alias("n"))
            .select("key", "n")
        ),
        each(10),
        has_other=True,
    ),
    "union of an aggregation and distinct rows": Beside(
        lambda rows, other: (
            hourly(rows)
            .select("key", "key_hour")
            .union(distinct_hours(other))  # without the hours Spark runs two tasks
        ),
        each(1, times=6),
        has_other=True,
        coalesced=False,
    ),
}
#: The same with state in RocksDB where nothing has to be added: the numbers of shuffles, and of what is in their place.
APART: dict[str, tuple[Stage, int, int]] = {
    "window": (lambda rows, other: hours(rows), 0, 1),
    "windows of the same keys": (lambda rows, other: hourly(rows).groupBy("key", "key_hour").agg(F.sum("key_n")), 0, 1),
    "join of aggregations": (lambda rows, other: joined_hours(hourly(rows), hourly(other, "k")), 0, 2),
    "join, then window": (WITHOUT["join, then window"][0], 0, 3),
    "deduplication, then limit": (WITHOUT["deduplication, then limit"][0], 0, 1),
    "chained windows": (WITHOUT["chained windows"][0], 1, 1),
    "deduplication, then window": (lambda rows, other: hours(rows.dropDuplicates(["key", "ts"])), 1, 1),
    "window, then deduplication": (lambda rows, other: hours(rows).dropDuplicates(["key"]), 1, 1),
}


def nodes(frame: DataFrame) -> list[str]:
    """The operators of the plan that Spark makes for a batch, each with what it moves where."""
    with redirect_stdout(io.StringIO()) as shown:
        frame.explain()
    return [f"{name}{rest}" for name, rest in NODE.findall(shown.getvalue())]


def planned(
    spark: SparkSession,
    stage: Stage,
    directory: Path,
    removed: str = "true",
    key: str = exchanges.REMOVED,
    state: str = "memory",
) -> tuple[int, int]:
    """The numbers of shuffles, and of what takes their place, in the plan of a stage with two inputs."""
    both = [directory / name for name in ("a", "b")]
    for each in both:
        each.mkdir(exist_ok=True)
    session = spark.newSession()  # one of a query has the rules of the moment at which it was made, like this
    session.conf.set(exchanges.REMOVED, "false")
    session.conf.set(key, removed)
    session.conf.set(PROVIDER, PROVIDERS[state])
    read = session.readStream.schema("key string, ts timestamp, value double")
    found = nodes(stage(*(read.json(str(each)).withWatermark("ts", "1 hour") for each in both)))
    shuffles = [each for each in found if each.startswith("Exchange") and exchanges_for_state(each)]
    return len(shuffles), sum(each.startswith("Coalesce 1") for each in found)


def exchanges_for_state(node: str) -> bool:
    """Whether it is there for an operator with state."""
    return "REQUIRED_BY_STATEFUL_OPERATOR" in node


#: Of these kinds one each is planned in every `make test`.
ALWAYS = {
    "window", "session", "chained windows", "deduplication", "limit", "inner join", "machine in pandas",
    "union of aggregations, then aggregation",
}  # fmt: skip


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
    fails = "collect(plan);"
    source = exchanges.SOURCE.replace(exchanges.REMOVED, key)
    assert source.count(fails) == 1
    broken = source.replace(fails, f"if (LEFT_OUT.incrementAndGet() > 0) throw new NoSuchMethodError(); {fails}", 1)
    rule = compiled(spark, exchanges.NAME, broken)
    spark._jsparkSession.extensions().injectColumnar(rule)
    assert planned(spark, WITHOUT["window"][0], tmp_path, key=key) == (1, 0)
    assert rule.leftOut() > 0, "it has not run"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ALWAYS)) for name in BESIDE]
)
def test_on_disk_an_aggregation_and_another_operator_have_a_shuffle_between_them(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Also without the setting. In memory they need none."""
    beside = BESIDE[name]
    inputs = 1 + beside.has_other
    without = (1, inputs) if beside.coalesced else (1 + inputs, 0)
    assert planned(spark, beside.stage, tmp_path, state="rocksdb") == without
    assert planned(spark, beside.stage, tmp_path, "false", state="rocksdb") == (1 + inputs, 0)


@pytest.mark.parametrize("name", APART)
def test_on_disk_other_operators_have_the_shuffles_that_spark_plans_at_most(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stage, shuffles, coalesced = APART[name]
    assert planned(spark, stage, tmp_path, state="rocksdb") == (shuffles, coalesced)


def test_a_shuffle_that_is_added_has_the_partitions_of_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows stay where they are, by the hash of the operator's keys."""
    spark = spark.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.conf.set(PROVIDER, PROVIDERS["rocksdb"])
    rows = spark.readStream.schema("key string, ts timestamp").json(str(tmp_path)).withWatermark("ts", "1 hour")
    found = nodes(hourly(rows).dropDuplicates(["key", "key_hour"]))
    shuffles = [each for each in found if exchanges_for_state(each)]
    assert [re.sub(r"#\d+(?:-T\d+ms)?", "", each).split("), ")[0] for each in shuffles] == [
        "Exchange hashpartitioning(key, key_hour, 3",
        "Exchange hashpartitioning(key, window, 3",
    ]


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


STREAMS = "seen", "other"
BOTH = """
[streams.seen]
schema = "key string, ts timestamp"
event_time = "ts"
[streams.other]
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
state = "%s"
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in ALWAYS)) for name in BESIDE]
)
def test_on_disk_an_aggregation_runs_beside_another_operator(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession, name: str
) -> None:
    """Over a move to an owner that knows only the log, and a drain, each in the middle of an hour."""
    beside = BESIDE[name]
    assert emitted(fleet, beside.stage, STREAMS[: 1 + beside.has_other], "rocksdb") == beside.rows


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_an_operator_above_a_union_has_one_partition(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession, state: str
) -> None:
    """Its parts have the same one, so Spark plans no shuffle above them. Without that of one part they would have
    two, and each hour would come twice.
    """
    assert emitted(fleet, some_hours, STREAMS, state) == each(1)


def emitted(
    fleet: Callable[[Application, str], Fleet], stage: Stage, streams: Sequence[str], state: str
) -> Counter[tuple[Any, Any]]:
    """The rows of a stage, over a move in the middle of an hour, and a drain."""
    application = Application()

    @application.stage(*streams, output="found")
    def found(*inputs: DataFrame) -> DataFrame:
        first, *_, last = (each.withWatermark("ts", "0 seconds") for each in inputs * 2)
        return stage(first, last)

    run = fleet(application, BOTH % state)
    writers = [run.writer(stream, 1, flush_rows=100) for stream in streams]
    times = [NOON + timedelta(hours=hour, minutes=minute) for hour in range(3) for minute in MINUTES]
    for part in (times[:7], times[7:]):
        run.start("found-0", first=part[0] == NOON)
        for writer in writers:
            writer.write(pa.table({"key": list(KEYS) * len(part), "ts": [each for each in part for _ in KEYS]}))
            writer.flush()
        for stream in streams:
            run.until_all_is_read(stream)
        if part[0] == NOON:
            run.release("found-0")
    for writer in writers:
        writer.close()
    run.drain()
    return Counter((row["key"], row.get("n", 1)) for row in run.rows("found"))


def test_spark_still_needs_the_shuffles_that_are_added(spark: SparkSession, tmp_path: Path) -> None:
    """If this fails, a release of Spark has learned to run an aggregation on disk beside other operators."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text('{"key": "a", "ts": "2024-01-01T12:00:00Z"}')
    rows = spark.readStream.schema("key string, ts timestamp").json(str(tmp_path / "rows"))
    frame, outlet = hourly(rows.withWatermark("ts", "1 hour")).dropDuplicates(["key", "key_hour"]), BatchOutput()

    def keep(frame: DataFrame, batch: int) -> None:
        with outlet.run(frame) as found:
            list(found)

    before = {key: spark.conf.get(key, None) for key in (exchanges.ADDED, PROVIDER)}
    spark.conf.set(exchanges.ADDED, "false")
    spark.conf.set(PROVIDER, PROVIDERS["rocksdb"])
    try:
        query = sink.start(
            frame, keep, name="needed", checkpoint=str(tmp_path / "to"), output_mode="append", trigger_ms=10
        )
        with pytest.raises(StreamingQueryException, match="Can only upgrade readStore to writeStore"):
            query.processAllAvailable()
    finally:
        for key, value in before.items():
            spark.conf.set(key, value) if value is not None else spark.conf.unset(key)


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

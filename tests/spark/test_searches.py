"""Spark looks for windows that are over only in batches in which one may be: the rows and the state stay the same."""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.pipeline.state import PROVIDERS
from samza_azure.spark.jvm import late, searches, sink
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.session import compiled
from samza_azure.spark.jvm.settings import BASE

Stage = Callable[[DataFrame, DataFrame], DataFrame]
#: Each with its output mode. The event time of a file is about 20 s after that of the one before.
KNOWN: dict[str, tuple[str, Stage]] = {
    "windows": ("append", lambda rows, other: rows.groupBy(F.window("ts", "1 minute"), "key").count()),
    "sliding windows": (
        "append",
        lambda rows, other: rows.groupBy(F.window("ts", "100 seconds", "1 minute", "7 seconds"), "key").count(),
    ),
    "windows with updates": ("update", lambda rows, other: rows.groupBy(F.window("ts", "1 minute"), "key").count()),
    "windows with another name": (
        "append",
        lambda rows, other: (
            rows.withColumn("at", F.col("ts"))
            .select(F.window("at", "2 minutes", None, "30 seconds").alias("w"), "key", "n")
            .select(F.col("w").alias("v"), "n")
            .groupBy("v")
            .agg(F.collect_list("n"))
        ),
    ),
    "chained windows": (
        "append",
        lambda rows, other: (
            rows.groupBy(F.window("ts", "1 minute"), "key").count().groupBy(F.window("window", "3 minutes")).count()
        ),
    ),
    "windows of distinct rows": (
        "append",
        lambda rows, other: rows.dropDuplicates(["key", "ts"]).groupBy(F.window("ts", "1 minute")).count(),
    ),
}
#: Of these the ends of windows are not known.
UNKNOWN: dict[str, tuple[str, Stage]] = {
    "times": ("append", lambda rows, other: rows.groupBy("ts", "key").count()),
    "sessions": ("append", lambda rows, other: rows.groupBy(F.session_window("ts", "20 seconds"), "key").count()),
    "windows of a union": (
        "append",
        lambda rows, other: (
            rows.withColumn("w", F.window("ts", "1 minute"))
            .union(other.withColumn("w", F.window("ts", "1 minute", None, "7 seconds")))
            .groupBy("w", "key")
            .count()
        ),
    ),
}
KNOWN_OR_NOT = KNOWN | UNKNOWN
FILES = 14
#: By file: later than all before. The second brings the watermark just to the end of a window.
EXACT = {8: 21 * 60 + 40, 9: 22 * 60 + 10}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
TOTAL = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


def write(folder: Path, files: range, dice: random.Random) -> None:
    """Files of rows, a file a batch. Some rows are too late, and some files bring the watermark no further."""
    folder.mkdir(exist_ok=True)
    for number in files:
        now = 1_000 + 25 * number + dice.choice((-40, 0, 10, 60))
        now = EXACT.get(number, now)
        times = [now, *(now - dice.choice((0, 0, 3, 30, 90, 400)) for _ in range(8))]
        rows = (f'{{"key": "{dice.randrange(3)}", "n": {n}, "at": {at}}}\n' for n, at in enumerate(times))
        path = folder / f"{number:02}.json"
        path.write_text("".join(rows))
        os.utime(path, (number, number))  # Spark reads the oldest file first


def rows_of(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("key string, n int, at long").option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.select("key", "n", F.timestamp_seconds("at").alias("ts")).withWatermark("ts", "10 seconds")


@contextmanager
def settings(spark: SparkSession, chosen: dict[str, str]) -> Iterator[None]:
    """A query that starts in the body has them. Those of `BASE` are set again afterwards."""
    for key, value in chosen.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in chosen:
            spark.conf.set(key, BASE[key]) if key in BASE else spark.conf.unset(key)


def run(
    spark: SparkSession, folder: Path, mode: str, stage: Stage, state: str, left_out: str, key: str = searches.LEFT_OUT
) -> dict[int, Any]:
    """By batch: what it has emitted, and what it has done to the state. The query starts twice."""
    dice, found = random.Random(1), dict[int, Any]()
    outlet, emitted = BatchOutput(), dict[int, list[str]]()
    folder.mkdir()

    def keep(frame: DataFrame, batch: int) -> None:
        with outlet.run(frame) as rows:
            emitted[batch] = sorted(str(row) for each in rows for row in each.to_pylist())

    for files in (range(FILES // 2), range(FILES // 2, FILES)):
        for name in ("a", "b"):
            write(folder / name, files, dice)
        frame, to = stage(*(rows_of(spark, folder / name) for name in ("a", "b"))), str(folder / "to")
        with settings(spark, {searches.LEFT_OUT: "false", key: left_out, PROVIDER: PROVIDERS[state], TOTAL: "true"}):
            query = sink.start(frame, keep, name=folder.name, checkpoint=to, output_mode=mode, trigger_ms=10)
        try:
            query.processAllAvailable()
            for each in query.recentProgress:
                if each["numInputRows"]:
                    found[each["batchId"]] = emitted[each["batchId"]], [done_by(one) for one in each["stateOperators"]]
        finally:
            query.stop()
    return found


def done_by(operator: Any) -> tuple[int, ...]:
    """The rows of state that there are, were written, were removed, and the rows that were late."""
    names = ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")
    return tuple(int(operator[name]) for name in names)


def removed(found: dict[int, Any]) -> int:
    return sum(operator[2] for _, operators in found.values() for operator in operators)


@pytest.mark.parametrize("state", ["memory", pytest.param("rocksdb", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_each_batch_emits_the_same_and_leaves_the_same_state(
    spark: SparkSession, tmp_path: Path, name: str, state: str
) -> None:
    """Also the first batch of a query that goes on where another has ended."""
    mode, stage = KNOWN_OR_NOT[name]
    theirs = run(spark, tmp_path / "theirs", mode, stage, state, "false")
    before = searches.left_out(spark)
    ours = run(spark, tmp_path / "ours", mode, stage, state, "true")
    without = searches.left_out(spark) - before

    assert ours == theirs
    assert len(ours) == FILES
    assert removed(ours) > 0, "no window was over"
    assert any(operator[3] for _, operators in ours.values() for operator in operators), "no row was late"
    if name in KNOWN:
        assert without > FILES // 4, "it has searched nearly always"


def installed(spark: SparkSession, name: str, old: str, new: str) -> tuple[Any, str]:
    """The rule with this change, and the setting that it asks."""
    key = f"spark.samza_azure.searches.{name}"
    source = searches.SOURCE.replace(searches.LEFT_OUT, key).replace(searches.NAME, name)
    assert source.count(old) == 1
    rule = compiled(spark, name, source.replace(old, new))
    spark._jsparkSession.extensions().injectColumnar(rule)
    return rule, key


#: By name: a stage that shows it, and what is written instead of what.
MISTAKES = {
    "Never": ("windows", "return to <= from ||", "return true ||"),
    "Reached": ("windows", "> to * 1000;", ">= to * 1000;"),
    "Greatest": ("sliding windows", "Math.min(", "Math.max("),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_rule_shows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    stage, old, new = MISTAKES[name]
    _, key = installed(spark, name, old, new)
    theirs = run(spark, tmp_path / "theirs", *KNOWN_OR_NOT[stage], "memory", "false")
    assert run(spark, tmp_path / "mistaken", *KNOWN_OR_NOT[stage], "memory", "true", key) != theirs


def test_a_rule_that_fails_leaves_a_plan_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """As where a release of Spark has changed what it looks at. The log of Java says it once."""
    begins = "if (save.outputMode().isEmpty()"
    fails = f"if (LEFT_OUT.incrementAndGet() > 0) throw new NoSuchMethodError(); {begins}"
    rule, key = installed(spark, "Broken", begins, fails)
    mode, stage = KNOWN["windows"]
    found = run(spark, tmp_path / "broken", mode, stage, "memory", "true", key)
    assert found == run(spark, tmp_path / "theirs", mode, stage, "memory", "false")
    assert rule.leftOut() > 0, "it has not run"


def test_late_rows_are_looked_for_by_where_plans_of_each_shape_have_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that search and batches that do not come by turns, and each of the two plans is listed once."""
    folder, outlet, listed = tmp_path / "a", BatchOutput(), list[Any]()
    nodes, running = late._nodes, Future[StreamingQuery]()
    shapes, looks = list[str](), list[late.LateRows]()

    def listing(plan: Any) -> Iterator[Any]:
        listed.append(plan)
        return nodes(plan)

    def keep(frame: DataFrame, batch: int) -> None:
        with outlet.run(frame) as rows:
            list(rows)
        looks[:] = looks or [late.LateRows(spark, running.result(60))]
        assert looks[0].uncounted() == 0
        plan = frame._jdf.queryExecution().executedPlan()
        shapes.append(" ".join(node.nodeName() for node in nodes(plan)))

    monkeypatch.setattr(late, "_nodes", listing)
    folder.mkdir()
    for number in range(10):  # a window is over in every other batch, and none is late
        path = folder / f"{number:02}.json"
        path.write_text(f'{{"key": "a", "n": 1, "at": {1_000 + 30 * number}}}\n')
        os.utime(path, (number, number))
    mode, stage = KNOWN["windows"]
    frame = stage(rows_of(spark, folder), rows_of(spark, folder))
    with settings(spark, {searches.LEFT_OUT: "true"}):
        query = sink.start(frame, keep, name="late", checkpoint=str(tmp_path / "to"), output_mode=mode, trigger_ms=10)
    running.set_result(query)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sum(one != other for one, other in pairwise(shapes)) > 3
    assert len(listed) == len({*shapes}) == 2

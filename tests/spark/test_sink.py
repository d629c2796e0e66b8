"""A query that gives its batches to Python as Spark has planned them, beside Spark's own `foreachBatch`."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm import predicates, sink
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.session import java_class
from samza_azure.streams.offset import INFINITY_MS

from .task_driver import PATIENCE_S

Stage = Callable[[DataFrame], DataFrame]
STAGES: dict[str, tuple[str, Stage]] = {
    "rows": ("append", lambda rows: rows.where("n % 2 = 0").withColumn("m", F.col("n") * 2)),
    "windows": (
        "append",
        lambda rows: (
            rows.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 second")).agg(F.sum("n").alias("n"))
        ),
    ),
    "updates": ("update", lambda rows: rows.groupBy("n").count()),
    "distinct": ("append", lambda rows: rows.withWatermark("ts", "1 second").dropDuplicatesWithinWatermark(["n"])),
}


def input_of(spark: SparkSession, folder: Path, year: int = 2013) -> DataFrame:
    """Four files of rows, a file a batch."""
    folder.mkdir()
    for number in range(4):
        rows = "".join(f'{{"n": {n}, "ts": "{year}-01-01T00:00:{10 * number + n:02}Z"}}\n' for n in range(10))
        (folder / f"{number}.json").write_text(rows)
        os.utime(folder / f"{number}.json", (number, number))  # the oldest is read first
    return spark.readStream.schema("n int, ts timestamp").option("maxFilesPerTrigger", 1).json(str(folder))


def started(frame: DataFrame, run_batch: Any, folder: Path, output_mode: str = "append") -> StreamingQuery:
    return sink.start(
        frame, run_batch, name=folder.name, checkpoint=str(folder), output_mode=output_mode, trigger_ms=10
    )


def ended(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def until(condition: Callable[[], bool]) -> None:
    """Look until it holds, for a bounded time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("name", STAGES)
def test_its_batches_have_the_rows_of_foreach_batch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Batch by batch. What it gives is the batch's own plan; of `foreachBatch` it is one over rows."""
    output_mode, stage = STAGES[name]
    ours, theirs, plans = dict[int, list[Any]](), dict[int, list[Any]](), set[str]()
    outlet = BatchOutput()

    def keep(frame: DataFrame, batch: int) -> None:
        plans.add(frame._jdf.queryExecution().getClass().getSimpleName())
        with outlet.run(frame) as rows:
            ours[batch] = [row for each in rows for row in each.to_pylist()]

    frame = stage(input_of(spark, tmp_path / "in"))
    ended(started(frame, keep, tmp_path / "ours", output_mode))
    writer = frame.writeStream.foreachBatch(lambda frame, batch: theirs.__setitem__(batch, frame.toArrow().to_pylist()))
    ended(writer.outputMode(output_mode).option("checkpointLocation", str(tmp_path / "theirs")).start())

    assert plans == {"IncrementalExecution"}
    assert ours.keys() >= set(range(4))
    assert any(ours.values())
    assert ours == theirs


def test_an_error_in_python_ends_the_query_and_the_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    frame = input_of(spark, tmp_path / "in")
    batches: list[int] = []

    def fail(frame: DataFrame, batch: int) -> None:
        batches.append(batch)
        raise ValueError("it is told")

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="it is told"):
            ended(started(frame, fail, tmp_path / "checkpoint"))
    assert batches == [0, 0]


def test_a_query_that_is_stopped_ends_the_job_of_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody waits for a task that takes an hour."""
    runs = threading.Event()

    def keep(frame: DataFrame, batch: int) -> None:
        runs.set()
        with BatchOutput().run(frame) as rows:
            list(rows)

    frame = input_of(spark, tmp_path / "in").selectExpr("java_method('java.lang.Thread', 'sleep', 3600000L) AS slept")
    query = started(frame, keep, tmp_path / "checkpoint")
    assert runs.wait(60)
    jobs = spark.sparkContext._jsc.sc().dagScheduler().activeJobs()
    until(lambda: not jobs.isEmpty() or not query.isActive)
    assert query.isActive
    query.stop()

    until(jobs.isEmpty)
    assert not query.isActive
    assert spark.sparkContext._jsc.sc().getPersistentRDDs().size() == 0


def test_an_aggregation_compiles_its_comparison_with_the_watermark_once(spark: SparkSession, tmp_path: Path) -> None:
    """Without `predicates` it does so for each watermark."""
    counter = java_class(spark, "org.apache.spark.metrics.source.CodegenMetrics").METRIC_COMPILATION_TIME()
    rows: list[list[Any]] = []

    def compiled_for(year: int) -> int:
        outlet, before = BatchOutput(), counter.getCount()

        def keep(frame: DataFrame, batch: int) -> None:
            with outlet.run(frame) as found:
                rows[-1].extend(row["n"] for each in found for row in each.to_pylist())

        rows.append([])
        _, stage = STAGES["windows"]
        ended(started(stage(input_of(spark, tmp_path / str(year), year)), keep, tmp_path / f"checkpoint-{year}"))
        return int(counter.getCount() - before)

    compiled_for(2013)
    assert compiled_for(2014) == 0
    sink.sink(spark).prepareBy(None)
    try:
        assert compiled_for(2015) > 0
    finally:
        sink.sink(spark).prepareBy(predicates.predicates(spark))
    assert all(rows)


@pytest.mark.parametrize("value", [0, 1, -1, 10**18 - 1, 10**18, INFINITY_MS * 1000, 2**63 - 1, -(2**63)])
def test_a_watermark_that_is_read_from_a_field_is_the_same_number(spark: SparkSession, value: int) -> None:
    """Small and large numbers are kept in other ways."""
    assert predicates.predicates(spark).constant(value).eval(None) == value


def test_a_plan_that_is_none_stays_as_it_is(spark: SparkSession) -> None:
    assert predicates.predicates(spark).apply("no plan") == "no plan"


def test_without_predicates_batches_run_as_spark_has_planned_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(predicates, "SOURCE", predicates.SOURCE.replace("UnscaledValue", "Unknown"))
    assert predicates.predicates.__wrapped__(spark) is None
    assert predicates.ANEW in caplog.text

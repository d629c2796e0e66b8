"""What Python holds of Java's objects, while its cyclic collector never runs."""

import gc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from py4j.finalizer import ThreadSafeFinalizer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.spark.jvm.session import java_class

from .task_driver import Fleet

START = datetime(2024, 1, 1, tzinfo=UTC)
STREAMS = """
[streams.ones]
schema = "key string, ts timestamp"
event_time = "ts"
partitions = 1
[streams.twos]
schema = "key string, ts timestamp"
event_time = "ts"
partitions = 1
[task]
commit.ms = 0
"""
#: Batches before the count begins, and while it lasts.
FIRST, MORE = 3, 8


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """No cyclic collection while a test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> int:
    """How many of Java's objects Python refers to."""
    return len(ThreadSafeFinalizer.finalizers)


def test_an_object_is_released_as_soon_as_it_is_dropped(spark: SparkSession) -> None:
    before = held()
    for _ in range(10):
        spark.range(1)._jdf.queryExecution().executedPlan().toString()
        assert java_class(spark, "java.lang.System").getenv().size() > 0  # a map

    assert held() == before


def test_a_map_is_one_as_before(spark: SparkSession) -> None:
    found = java_class(spark, "java.util.HashMap")()
    found["a"] = 1
    assert (found["a"], found["b"], "a" in found, len(found), dict(found)) == (1, None, True, 1, {"a": 1})


def near(left: DataFrame, right: DataFrame) -> DataFrame:
    """A join."""
    ours = left.withWatermark("ts", "5 seconds").select("key", "ts")
    theirs = right.withWatermark("ts", "5 seconds").select(F.col("key").alias("their"), F.col("ts").alias("at"))
    return ours.join(theirs, F.expr("key = their AND at BETWEEN ts AND ts + INTERVAL 5 seconds")).select("key", "ts")


def counted(left: DataFrame, right: DataFrame) -> DataFrame:
    """An aggregation."""
    rows = left.union(right).withWatermark("ts", "5 seconds")
    return rows.groupBy(F.window("ts", "10 seconds"), "key").count().select("key", "count")


@pytest.mark.parametrize("function", [pytest.param(near, marks=pytest.mark.long), counted])
def test_batches_leave_nothing_behind(
    fleet: Callable[[Application, str], Fleet], function: Callable[[DataFrame, DataFrame], DataFrame]
) -> None:
    application = Application()
    application.stage("ones", "twos", output="out")(function)
    run = fleet(application, STREAMS)
    writers = [run.writer(stream, 1, flush_rows=1000) for stream in ("ones", "twos")]
    name = f"{function.__name__}-0"
    run.start(name)

    def batches(number: int) -> int:
        """Run `number` batches, one at a time. Return how many objects are held then."""
        for _ in range(number):
            before = run.tasks[name].report.batch
            at = START + timedelta(seconds=before + 1)
            rows = pa.table({"key": ["a"], "ts": pa.array([at], pa.timestamp("us", "UTC"))})
            for writer in writers:
                writer.write(rows)
                writer.flush()
            run.until(lambda before=before: run.tasks[name].report.batch > before)  # type: ignore[misc]
        return held()

    first = batches(FIRST)
    last = batches(MORE)
    assert last < first + MORE, "some are of the batch that runs now"

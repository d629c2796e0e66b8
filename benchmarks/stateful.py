"""A pipeline with a stage for each kind of state: what shuffles.py gives to a container, as pipeline.py.

It runs with the shuffles, or without, as the file `removed` beside it says, and says in a file `removed.set` that the
next query will.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from samza_azure import Application
from samza_azure.tasks.account import VARIABLE

app = Application()


@app.stage("window_rows", output="windows")
def window(rows: DataFrame) -> DataFrame:
    """Count and average per ten seconds and key."""
    return aggregated(rows.withWatermark("ts", "10 seconds"))


@app.stage("once_rows", output="once")
def once(rows: DataFrame) -> DataFrame:
    """Each row once."""
    return rows.withWatermark("ts", "10 seconds").dropDuplicates(["key", "ts"])


@app.stage("chained_rows", output="chained")
def chained(rows: DataFrame) -> DataFrame:
    """Both."""
    return aggregated(rows.withWatermark("ts", "10 seconds").dropDuplicates(["key", "ts"]))


@app.stage("join_rows", "join_others", output="joined")
def join(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Rows with the row of the same key and time."""
    right = others.withWatermark("ts", "10 seconds").select(
        F.col("key").alias("k"), F.col("ts").alias("t"), F.col("value").alias("other")
    )
    return rows.withWatermark("ts", "10 seconds").join(right, F.expr("key = k AND ts = t"))


@app.stage("state_rows", output="states")
def state(rows: DataFrame) -> DataFrame:
    """Count with a function of frames that keeps state."""
    arguments = ("key string, rows bigint", "rows bigint", "append", "NoTimeout")
    return rows.groupBy("key").applyInPandasWithState(count, *arguments)


@app.stage("machine_rows", output="machines")
def machine(rows: DataFrame) -> DataFrame:
    """Count with a state machine."""
    return rows.groupBy("key").transformWithStateInPandas(Counted(), "key string, rows bigint", "append", "None")


def aggregated(rows: DataFrame) -> DataFrame:
    """By windows."""
    by = rows.groupBy(F.window("ts", "10 seconds"), "key")
    return by.agg(F.count("*").alias("rows"), F.avg("value").alias("mean"))


def count(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """The rows of a key so far."""
    rows = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
    state.update((rows,))
    yield pd.DataFrame({"key": [key[0]], "rows": [rows]})


class Counted(StatefulProcessor):
    """The rows of a key so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.rows = handle.getValueState("rows", "rows bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        found = sum(map(len, rows)) + ((self.rows.get() or (0,))[0] if self.rows.exists() else 0)
        self.rows.update((found,))
        yield pd.DataFrame({"key": [key[0]], "rows": [found]})

    def close(self) -> None:
        pass


def follow(spark: SparkSession, directory: Path) -> None:
    """Set what the file says."""
    from samza_azure.spark.jvm.exchanges import REMOVED

    while True:
        if (asked := directory / "removed").exists():
            spark.conf.set(REMOVED, asked.read_text())
            asked.rename(directory / "removed.set")
        time.sleep(0.1)


if (session := SparkSession.getActiveSession()) is not None and VARIABLE in os.environ:  # in the container
    threading.Thread(target=follow, args=(session, Path(__file__).parent), daemon=True).start()

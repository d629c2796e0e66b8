"""A pipeline that notes how long its batches take: what small_batch.py gives to a container, as pipeline.py.

It adds a clock around the container's own part of a batch, from the rows' arrival to the appended record, and writes
that and Spark's progress of each batch to `progress.json` beside it, as soon as a file named `tell` is there.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure import Application
from samza_azure.tasks.account import VARIABLE

app = Application()
own_ms: dict[int, float] = {}


@app.stage("rows", output="windows")
def windows(rows: DataFrame) -> DataFrame:
    """Count and average per ten seconds and key."""
    return (
        rows.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "10 seconds"), "key")
        .agg(F.count("*").alias("rows"), F.avg("value").alias("mean"))
    )


def watch(spark: SparkSession) -> None:
    """Put the clock in, and wait to be asked."""
    from samza_azure.spark.jvm.output import BatchOutput
    from samza_azure.spark.query.batch import BatchWriter

    write, run = BatchWriter._write, BatchOutput.run
    arrived_at: dict[BatchOutput, float] = {}

    @contextmanager
    def clocked_run(self: Any, frame: DataFrame) -> Iterator[Any]:
        with run(self, frame) as rows:
            arrived_at[self] = time.perf_counter()
            yield rows

    def clocked(self: Any, frame: DataFrame, batch: int) -> None:
        write(self, frame, batch)
        own_ms[batch] = (time.perf_counter() - arrived_at[self._outlet]) * 1000

    BatchOutput.run = clocked_run  # type: ignore[method-assign]
    BatchWriter._write = clocked  # type: ignore[method-assign]
    threading.Thread(target=tell, args=(spark, Path(__file__).parent), daemon=True).start()


def tell(spark: SparkSession, directory: Path) -> None:
    """Write what is known of all batches, once asked."""
    while not (directory / "tell").exists():
        time.sleep(0.2)
    batches = [
        {"batch": each.batchId, "rows": each.numInputRows, "own_ms": own_ms.get(each.batchId), **each.durationMs}
        for query in spark.streams.active
        for each in query.recentProgress
    ]
    (directory / "progress.new").write_text(json.dumps(batches))
    (directory / "progress.new").rename(directory / "progress.json")


if (session := SparkSession.getActiveSession()) is not None and VARIABLE in os.environ:
    watch(session)  # in the container; not in its workers, nor in plain Spark

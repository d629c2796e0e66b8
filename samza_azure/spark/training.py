"""Makes the archive of Java's that lets Spark start in half the time: `python -m samza_azure.spark.training`.

Java notes the classes that a run has loaded and stores them, ready to be mapped, when it ends. So this runs once what
a container runs: a session, a Python source, stages with and without state, the way out for rows. No storage is needed.
It is run once per machine, by `make` and the image's build, or by the first container in the background.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from samza_azure.application import Application
from samza_azure.spark.jvm import java
from samza_azure.spark.jvm.improvements import improvements
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.precompiled import is_current
from samza_azure.spark.jvm.session import connect_session
from samza_azure.spark.jvm.settings import settings_of
from samza_azure.spark.jvm.sink import start
from samza_azure.spark.jvm.sources import register
from samza_azure.spark.jvm.watermark import OwnedWatermark, probe
from samza_azure.spark.pipeline.analysis import analyse
from samza_azure.spark.pipeline.bounds import Input
from samza_azure.spark.pipeline.destination import with_destination
from samza_azure.spark.pipeline.event_time import Output
from samza_azure.spark.pipeline.schema import parse_schema

FORMAT = "samza-azure-training"
BATCHES = 3
COLUMNS = "key string, ts timestamp, value double"


class TrainingSource(DataSource):
    """A few rows per batch."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TrainingReader()


class TrainingReader(_SimpleStreamReaderWrapper):
    """Hands over every other batch with the offset; the others are read by a worker."""

    def __init__(self) -> None:
        self.simple_reader: Any = None  # pyspark asks for it

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"at": min(start["at"] + 1, BATCHES)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(end["at"])]

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        return iter([_rows(end["at"])]) if end["at"] % 2 else None

    def read(self, partition: InputPartition) -> Any:
        return iter([_rows(partition.value)])

    def commit(self, end: dict[str, Any]) -> None:
        pass


def _rows(number: int) -> pa.RecordBatch:
    schema = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
    columns = [pa.array(["a", "b"]), pa.array([number * 3_600_000_000] * 2, schema.field("ts").type), [1.0, 2.0]]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)


def main(arguments: Sequence[str]) -> int:
    """Without an argument: build the archive if there is none for this release. With one: be the run that makes it."""
    if not arguments:
        built = java.build_archive(os.environ, is_current)
        result = f"Java's archive: {built}" if built else "Another process is making the archive."
        print(result)  # noqa: T201  # this is the command's result
        return 0
    archive, *base = map(Path, arguments)
    options = java.training_options(java.find_java(os.environ), archive, *base)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = settings_of({}, directory)
        # At the lowest priority, and Java 25 notes more: on a busy machine its start takes minutes.
        jvm = java.launch(settings, os.environ, directory, options, start_timeout_s=java.TRAINING_TIMEOUT_S)
        spark = connect_session("training", settings, jvm)
        _train(spark, directory)
        spark.stop()
        jvm.end()
    return 0


def _train(spark: SparkSession, directory: Path) -> None:
    register(spark, TrainingSource)
    for install in improvements({}):
        install(spark)
    probe(spark)
    for stage in (_plain, _windows):
        _analyse(spark, stage, directory)
    queries = [
        _query(spark, directory / "plain", _plain),
        _query(spark, directory / "windows", _windows),
    ]
    for query in queries:
        query.processAllAvailable()
        query.stop()


def _plain(rows: DataFrame) -> DataFrame:
    return rows.where("value IS NOT NULL")


def _windows(rows: DataFrame) -> DataFrame:
    grouped = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "key")
    return grouped.agg(F.count("*").alias("n"), F.avg("value").alias("mean"))


def _analyse(spark: SparkSession, function: Callable[[DataFrame], DataFrame], directory: Path) -> None:
    application = Application()
    application.stage("rows", output="out")(function)
    columns = parse_schema(spark, COLUMNS, "rows")
    analyse(spark, application.stages[0], [Input("rows", columns, "ts")], Output("out", None, None), 1, directory)


def _query(spark: SparkSession, directory: Path, stage: Any) -> Any:
    held: list[Any] = []
    outlet = BatchOutput()

    def write(frame: DataFrame, batch: int) -> None:
        with outlet.run(frame) as rows:
            list(rows)
        if held:
            OwnedWatermark(spark, held[0]).raise_to(batch * 3_600_000)

    source = spark.readStream.format(FORMAT).schema(COLUMNS).load()
    frame = with_destination(stage(source), [F.col("key")], 4)
    held.append(
        start(frame, write, name=directory.name, checkpoint=str(directory), output_mode="append", trigger_ms=100)
    )
    return held[0]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv[1:]))

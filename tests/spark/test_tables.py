"""Streams that become tables, as the analysis of a pipeline has them."""

import io
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure import Collector, Envelope, tables
from samza_azure.account import Storage
from samza_azure.application import Application, Stage
from samza_azure.config import Config, Files, TableSettings
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.logs.operations import Span
from samza_azure.messages import Phase, Progress, StartTask, TaskKind, facts_told
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.segments import Granularity, Interval, LockOwner, LockTask, SequenceNumber
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.storage.connection import Account
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.sink_task import SinkTask, after_publish

from .task_driver import Fleet, config_of

STREAMS = """
[streams.orders]
partitions = 3
schema = "id string, ts timestamp, amount double"
event_time = "ts"
[streams.big]
table.time = "ts"
"""


JOB = '[app]\nname = "a"\nmain = "m:app"'


def pipeline(spark: SparkSession, directory: Path, streams: str = STREAMS, **stage: object) -> Pipeline:
    app = Application()

    @app.stage("orders", output="big", **stage)  # type: ignore[arg-type]
    def large(orders: DataFrame) -> DataFrame:
        day = F.to_date("ts").alias("day")
        return orders.where("amount > 10").select("id", "ts", day, F.window("ts", "1 day").alias("w"))

    return analyse_pipeline(spark, app, config_of(directory, streams), directory)


def test_a_table_is_a_stage_whose_tasks_run_no_query(spark: SparkSession, tmp_path: Path) -> None:
    found = pipeline(spark, tmp_path)
    large, sink = found.plan.stages
    assert (sink.name, sink.inputs, sink.tasks, sink.target, sink.flush_s) == ("big-table", ("big",), 3, "big", 60.0)
    assert sink.schema == large.schema
    assert found.plan.tasks()[-1] == "big-table-2"
    (read,) = found.inputs_of("big-table-1", "r1")
    assert [producer.prefix for producer in read.producers] == ["runs/r1/large-1"]
    assert found.readers_of("runs/r1/large-1", "r1") == ["runs/r1/big-table-1"], "what it has not published is kept"
    table = found.sink_of("big-table-1")
    assert isinstance(table, TableSettings)
    assert (table.name, table.time) == ("big", "ts")
    assert found.sink_of("large-1") is None
    assert found.plan.described["stage big-table"]["table"] == "big"


def test_a_folder_is_such_a_stage_beside_the_table(spark: SparkSession, tmp_path: Path) -> None:
    found = pipeline(spark, tmp_path, STREAMS + 'files = "out"\nfiles.flush = "5 s"\n')
    large, _, files = found.plan.stages
    assert (files.name, files.inputs, files.tasks, files.target) == ("big-files", ("big",), 3, "out")
    assert (files.kind, files.flush_s, files.schema) == (TaskKind.FILES, 5.0, large.schema)
    assert found.readers_of("runs/r1/large-1", "r1") == ["runs/r1/big-table-1", "runs/r1/big-files-1"]
    assert found.sink_of("big-files-1") == Files("out", 5.0, 1_000_000, 64 << 20)
    assert facts_told(found.plan.described["stage big-files"]) is files.kind.facts
    assert found.plan.described["stage big-files"] == {"inputs": "big", "tasks": "3", "files": "out"}
    alone = pipeline(spark, tmp_path, STREAMS.replace('table.time = "ts"', 'files = "out"'))
    assert [stage.name for stage in alone.plan.stages] == ["large", "big-files"]
    other = pipeline(spark, tmp_path, STREAMS.replace('table.time = "ts"', 'files = "other"'))
    slower = pipeline(spark, tmp_path, STREAMS.replace('table.time = "ts"', 'files = "out"\nfiles.flush = "1 h"'))
    fingerprints = [each.plan.fingerprint for each in (found, alone, other)]
    assert len({*fingerprints, pipeline(spark, tmp_path).plan.fingerprint}) == 4
    assert slower.plan.fingerprint == alone.plan.fingerprint


def test_another_table_is_another_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    first = pipeline(spark, tmp_path).plan.fingerprint
    assert pipeline(spark, tmp_path, STREAMS + 'table.flush = "5 s"\n').plan.fingerprint == first
    assert (
        pipeline(spark, tmp_path, STREAMS.replace('table.time = "ts"', 'table.time = "day"')).plan.fingerprint != first
    )
    assert pipeline(spark, tmp_path, STREAMS.replace("[streams.big]\ntable.time", "#")).plan.fingerprint != first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('table.time = "when"', "the columns id, ts, day, w. Name one of them"),
        ('table.time = "id"', "a column of type string. It must be a timestamp or a date"),
        ('table.time = "w"', "for a window, select its start"),
        ('table.time = "day"\ntable.granularity = "hour"', "'day' is a date, which has no time of day"),
        ('table.time = "ts"\n[streams.orders-2]\ntable.time = "ts"', "no stage writes this stream"),
        ('[streams.orders-2]\nfiles = "out"', "orders-2.files is 'out', but no stage writes this stream. Files are"),
        ('files = "out"\nretention = "1 d"', "retention has no effect: stage big-files reads it"),
    ],
)
def test_mistakes(spark: SparkSession, tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(PipelineRefused, match=message):
        pipeline(spark, tmp_path, STREAMS.replace('table.time = "ts"', line))


@pytest.mark.parametrize("to", ['table.time = "ts"', 'files = "out"'])
@pytest.mark.parametrize(
    ("made", "kind"),
    [(F.struct, "struct<>"), (lambda: F.array(F.struct()), "array<struct<>>")],
    ids=["struct", "array"],
)
def test_a_column_that_no_file_holds_is_refused(
    spark: SparkSession, tmp_path: Path, to: str, made: Callable[[], Column], kind: str
) -> None:
    """The first file failed, at each try."""
    app = Application()

    @app.stage("orders", output="big")
    def with_nothing(orders: DataFrame) -> DataFrame:
        return orders.select("ts", made().alias("nothing"))

    with pytest.raises(PipelineRefused) as found:
        analyse_pipeline(spark, app, config_of(tmp_path, STREAMS.replace('table.time = "ts"', to)), tmp_path)
    assert str(found.value) == (
        f"The rows of stream 'big' go to {'a table' if 'table' in to else 'files'}, but its column 'nothing' is "
        f"{kind}, which Parquet cannot hold. Give each struct in it a field, or leave the column out."
    )
    alone = STREAMS.replace('table.time = "ts"', "")
    assert analyse_pipeline(spark, app, config_of(tmp_path, alone), tmp_path).plan.stages[0].name == "with_nothing"


def test_a_handler_may_not_send_such_a_column_either(spark: SparkSession, tmp_path: Path) -> None:
    app = Application()

    @app.task("orders", output="big")
    class Watch:
        def process(self, envelope: Envelope, collector: Collector) -> None: ...

    schema = 'schema = "ts timestamp, nothing struct<>, more array<struct<>>"'
    streams = STREAMS.replace('table.time = "ts"', f'table.time = "ts"\n{schema}\nfiles = "out"')
    with pytest.raises(Mistakes) as caught:
        analyse_pipeline(spark, app, config_of(tmp_path, streams), tmp_path)
    assert re.findall(r"go to (.*?), but its column '(.*?)'", str(caught.value)) == [
        (to, column) for to in ("a table", "files") for column in ("nothing", "more")
    ]


def test_changes_of_groups_are_no_table(spark: SparkSession, tmp_path: Path) -> None:
    app = Application()

    @app.stage("orders", output="big", output_mode="update")
    def counted(orders: DataFrame) -> DataFrame:
        return orders.groupBy("ts").count()

    with pytest.raises(PipelineRefused, match="a row for each change of a group"):
        analyse_pipeline(spark, app, config_of(tmp_path, STREAMS), tmp_path)


def test_a_name_that_is_taken(spark: SparkSession, tmp_path: Path) -> None:
    app = Application()
    for stage, output in (("a", "big"), ("big-table", "other")):
        app._add(replace(stage_of("orders", output), name=stage))
    with pytest.raises(PipelineRefused, match="already has this name"):
        analyse_pipeline(spark, app, config_of(tmp_path, STREAMS), tmp_path)


def test_rows_are_not_routed_through_a_stage_that_delivers_files(spark: SparkSession, tmp_path: Path) -> None:
    """Both would be called big-files."""
    app = Application()

    @app.stage("files", output="big")
    def big(files: DataFrame) -> DataFrame:
        return files.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "id").count()

    streams = STREAMS.replace("orders", "files").replace('table.time = "ts"', 'files = "out"')
    with pytest.raises(PipelineRefused, match=r"called 'big-files'\. The pipeline already has a stream of this name"):
        analyse_pipeline(spark, app, config_of(tmp_path, streams), tmp_path)


def stage_of(read: str, output: str) -> Stage:
    app = Application()
    app.stage(read, output=output)(lambda rows: rows)
    return app.stages[0]


def test_publishes_are_batches_with_their_time_and_their_pace() -> None:
    """They took 0 s, at 0 rows a second."""
    first = after_publish(Progress(), rows=600, seconds=0.25, since_s=60.0)
    assert first == Progress(batches=1, rows=600, rows_out=600, seconds=0.25, pace=10.0)
    second = after_publish(first, rows=900, seconds=0.5, since_s=30.0)
    assert second == Progress(batches=2, rows=900, rows_out=900, seconds=0.75, pace=10.0)


def test_the_output_of_a_stage_is_delivered_as_files(fleet: Callable[[Application, str], Fleet]) -> None:
    """The delivery moves in between, and the drain puts what is left."""
    app = Application()

    @app.stage("parts", output="wholes")
    def double(rows: DataFrame) -> DataFrame:
        return rows.select((F.col("v") * 2).alias("v"), F.lit(1.5).cast("decimal(4,2)").alias("d"), F.array("v"))

    streams = '[streams.parts]\nschema = "v bigint"\n[streams.wholes]\nfiles = "FOLDER"\nfiles.flush = "1 ms"\n'
    run = fleet(app, streams.replace("FOLDER", folder := uuid.uuid4().hex))
    blobs, writer = run.account.blobs(), run.writer("parts", 1, flush_rows=1, event_time=None)

    def delivered() -> list[int]:
        found = [blobs.read(name, 0) for name, _ in blobs.list(f"files/{folder}/")]
        files = [pq.read_table(io.BytesIO(each.data)) for each in found if isinstance(each, Span)]
        assert all(file.schema.types[1:] == [pa.decimal128(4, 2), pa.list_(pa.int64())] for file in files)
        return sorted(value for file in files for value in file["v"].to_pylist())

    def deliver(attempt: int) -> SinkTask:
        start = StartTask("wholes-files-0", 1, attempt, attempt == 1, run.run_id, run.group_id)
        task = task_of(run._context, start)
        assert isinstance(task, SinkTask)
        task.start()
        return task

    run.start("double-0")
    task = deliver(1)
    writer.write(pa.table({"v": [1, 2]}))
    run.until(lambda: delivered() == [2, 4])
    task.release(20)
    assert task.report.phase is Phase.RELEASED
    task = deliver(2)
    writer.write(pa.table({"v": [3]}))
    run.until_all_is_read("parts")
    run.drain()
    task.follow(run.drain_order)
    run.until(lambda: task.is_over)
    assert sorted(row["v"] for row in run.rows("wholes")) == [2, 4, 6]
    assert (task.report.phase, delivered()) == (Phase.DRAINED, [2, 4, 6]), task.report


def test_a_table_as_a_data_frame(spark: SparkSession, storage: Storage, account: Account) -> None:
    """Read by Spark's own processes, file by file, and pruned before; columns that a file lacks are null."""
    store = tables.store_of(account, "frames")
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
    tables.create(store, schema, time="at", granularity=Granularity.DAY)
    appender = tables.Appender(store, LockTask("a", "a", 0, LockOwner("a")))
    for day in range(1, 4):
        rows = pa.table([[datetime(2024, 1, day, hour, tzinfo=UTC) for hour in (1, 2)], [day, 10 * day]], schema=schema)
        appender.append(rows.append_column("more", pa.array(["x", "y"])) if day == 3 else rows)
    appender.close()
    assert storage.connect is not None
    names = f'container = "{storage.container}"\ntable = "{storage.table}"'
    text = f'{JOB}\n[azure.storage]\nconnect = "${{CONNECT}}"\n{names}'
    config = Config.parse(text, environment={"CONNECT": storage.connect.value})
    snapshot = tables.open(config.storage, "frames")
    assert tables.open(config.storage, "frames", at=SequenceNumber()).to_arrow().num_rows == 0, "before all publishes"
    frame = snapshot.spark(spark)
    assert frame.columns == ["at", "number", "more"]
    assert sorted((row.number, row.more) for row in frame.collect()) == [
        (1, None), (2, None), (3, "x"), (10, None), (20, None), (30, "y"),
    ]  # fmt: skip
    second = Interval.of("2024-01-02", "2024-01-03")
    assert [row.number for row in snapshot.spark(spark, second, ["number"], [("number", ">", 5)]).collect()] == [20]
    assert snapshot.spark(spark, Interval.of("2025-01-01", "2025-01-02")).count() == 0
    without = snapshot.spark(spark, second, [])
    assert (without.columns, without.count()) == ([], 2)
    here = tables.snapshot_of(store).spark(spark, second)
    assert sorted(row.number for row in here.collect()) == [2, 20]
    assert frame.where("number > 10").count() == 2
    gone = snapshot.files(second)[0].file.name
    account.blobs().delete(gone)
    with pytest.raises(Exception, match=gone):
        frame.collect()
    assert sorted(row.number for row in snapshot.spark(spark, skip_damaged=True).collect()) == [1, 3, 10, 30]

"""How rows leave Spark: what Spark lays out on the disk, and outputs that no heap has to hold."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import SamzaAzureError
from samza_azure.logs.names import large_prefix
from samza_azure.logs.record import Kind
from samza_azure.spark.jvm import output
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.stream_io.log import LogReader
from tests.storage.stored_rows import export

from .task_driver import Fleet

MakeFleet = Callable[[Application, str], Fleet]


def rows_of(frame: DataFrame) -> list[pa.RecordBatch]:
    with BatchOutput().run(frame) as rows:
        return list(rows)


def test_the_rows_are_those_that_spark_collects(spark: SparkSession) -> None:
    """Of all partitions in their order, of every type that a stream may have, in batches that are small at first."""
    frame = spark.range(0, 5_000, 1, 3).selectExpr(
        "id",
        "cast(id AS string) AS s",
        "cast(id AS decimal(38, 18)) AS d",
        "timestamp_micros(id) AS t",
        "cast(cast(id AS string) AS binary) AS b",
        "map('a', id, 'b', null) AS m",
        "array(named_struct('x', id, 'y', null)) AS a",
        "interval '1' day AS i",
        "parse_json(cast(id AS string)) AS v",
        "null AS n",
    )
    found = rows_of(frame)

    collected = frame.toArrow()
    assert pa.Table.from_batches(found).cast(collected.schema).equals(collected)
    assert max(batch.num_rows for batch in found) == output.ROWS_AT_FIRST


def test_a_plan_without_rows_has_none(spark: SparkSession) -> None:
    assert rows_of(spark.range(0)) == []
    assert rows_of(spark.range(0, 100, 1, 3).where("id > 100")) == []


def test_wide_rows_come_in_small_batches_once_they_were_seen(spark: SparkSession) -> None:
    frame = spark.range(0, 300, 1, 1).selectExpr("repeat('x', 100000) AS wide")
    outlet = BatchOutput()
    with outlet.run(frame) as rows:
        assert [batch.num_rows for batch in rows] == [300]
    with outlet.run(frame) as rows:
        sizes = [batch.nbytes for batch in rows]

    assert len(sizes) > 5
    assert max(sizes) <= output.BATCH_BYTES


def test_nothing_is_left_on_the_disk(spark: SparkSession) -> None:
    """Not even of a plan that fails."""
    outlet = BatchOutput()
    with outlet.run(spark.range(10)) as rows:
        list(rows)
    (java,) = [outlet._java]
    assert java is not None
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"), outlet.run(spark.range(10).selectExpr("1 / id")):
        pass
    directory = Path(java._disk.getFile("rdd_0_0").getPath()).parent.parent

    persistent = spark.sparkContext._jsc.sc().getPersistentRDDs()
    assert persistent.size() == 0
    while list(directory.glob("*/rdd_*")):  # Spark deletes them soon
        pass


def test_a_block_in_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(b"LZ4Block and so on, as spark.rdd.compress would have it")
    with path.open("rb") as block, pytest.raises(SamzaAzureError, match=r"Remove settings named spark\.kryo"):
        output._next(block)


EXPLODED = """
[streams.few]
partitions = 1
schema = "key string, ts timestamp, value double"
event_time = "ts"
[streams.many]
partitions = 4
event_time = "ts"
[task]
commit.ms = 0
"""
EACH = 140


def digest(key: str, n: int) -> str:
    """Two KiB that cannot be packed into less than half."""
    return "".join(hashlib.sha512(f"{key}-{n}-{i}".encode()).hexdigest() for i in range(16))


@pytest.mark.parametrize(("count", "blobs"), [(50, 1), pytest.param(500, 2, marks=pytest.mark.long)])
def test_a_batch_puts_out_more_than_the_driver_may_collect(fleet: MakeFleet, count: int, blobs: int) -> None:
    """50 rows become 7 MB in one record, and the next stage reads them all. The rows of a larger one lie in several
    blobs."""
    application = Application()

    @application.stage("few", output="many", partition_by="key")
    def exploded(rows: DataFrame) -> DataFrame:
        many = rows.select("key", "ts", F.explode(F.sequence(F.lit(1), F.lit(EACH))).alias("n"))
        digests = F.expr("transform(sequence(0, 15), i -> sha2(concat_ws('-', key, n, i), 512))")
        return many.withColumn("digest", F.concat_ws("", digests))

    @application.stage("many", output="kept")
    def kept(rows: DataFrame) -> DataFrame:
        return rows.where(f"n = 1 OR n = {EACH}").select("key", "n")

    run = fleet(application, EXPLODED)
    moment = datetime(2013, 1, 1, tzinfo=UTC)
    writer = run.writer("few", 1, flush_rows=count)
    keys = [f"{key}" for key in range(count)]
    writer.write(pa.table({"key": keys, "ts": [moment] * count, "value": [0.0] * count}))
    writer.close()
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("few")
    run.drain()

    rows = export(run.account.blobs(), "many", [run.run_id])
    found = Counter(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), rows["digest"].to_pylist(), strict=True))
    assert found == Counter((key, n, digest(key, n)) for key in keys for n in range(1, EACH + 1))
    assert sorted((row["key"], row["n"]) for row in run.rows("kept")) == sorted(
        (key, n) for key in keys for n in (1, EACH)
    )
    task = run.tasks["exploded-0"]
    parts = LogReader(run.account.blobs(), task.prefix).scan((0, 0)).parts
    assert len({part.position for part in parts}) == 1, "one record"
    assert [part.destination for part in parts] == sorted(part.destination for part in parts)
    assert Counter(part.destination for part in parts).keys() == {0, 1, 2, 3}
    assert len(run.account.blobs().list(large_prefix(task.prefix))) >= blobs
    header = LogReader(run.account.blobs(), task.prefix).tail()
    assert header is not None and header.header.kind is Kind.DRAINED


GREEDY = """
[streams.greedy]
partitions = 1
schema = "key string, ts timestamp, value double"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 MiB"
[spark]
driver.memory = "2g"
"""


def test_a_batch_that_needs_too_much_memory_is_repeated_with_half_the_input(fleet: MakeFleet) -> None:
    """And the next attempts remember it. The message says what happened, what comes next and what to do."""
    application = Application()

    @application.stage("greedy", output="fitting")
    def fitting(rows: DataFrame) -> DataFrame:
        def hold_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            held = list(batches)
            if sum(batch.num_rows for batch in held) > 150:
                raise MemoryError("150 rows are all that fit")
            yield from held

        return rows.select("key").mapInArrow(hold_all, "key string")

    run = fleet(application, GREEDY)
    dice = random.Random(1)
    keys = [dice.randbytes(512).hex() for _ in range(400)]
    writer = run.writer("greedy", 1, flush_rows=20)
    for start in range(0, 400, 20):
        some = keys[start : start + 20]
        writer.write(pa.table({"key": some, "ts": [datetime(2013, 1, 1, tzinfo=UTC)] * 20, "value": [0.0] * 20}))
    writer.close()
    messages = []
    while not messages or run.tasks["fitting-0"].is_over:
        run.start("fitting-0")
        task = run.tasks["fitting-0"]
        while not task.is_over and task.report.batch < 0:
            run.look()
        if task.report.error is not None:
            messages.append(task.report.error.message)
            assert len(messages) < 5, messages
    run.until_all_is_read("greedy")
    run.drain()

    assert [row["key"] for row in run.rows("fitting")] == keys
    assert len(messages) == 2
    assert messages[0].startswith("fitting-0, batch 0: its input of 400 rows, ")
    assert (
        "takes more memory than there is (MemoryError: 150 rows are all that fit). It is tried again with 1"
        in messages[0]
    )
    assert messages[0].endswith("raise spark.driver.memory (now 2g) or run more processors.")
    assert "awaitResult" not in messages[0]

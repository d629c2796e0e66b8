"""Retention in a run: tasks delete what their sources and outputs no longer keep, and nothing that they still read."""

import random
import string
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.logs.task_log import LogLimits
from samza_azure.stream_io.listing import log_indexes
from samza_azure.stream_io.reader import Reader
from tests.storage.stored_rows import export

from .task_driver import Fleet

STREAMS = """
[streams.kept]
partitions = 1
schema = "v bigint, text string"
retention.bytes = "1 KiB"
[streams.doubled]
retention.bytes = "1 KiB"
[task]
commit.ms = 0
batch.bytes = "1 KiB"
"""


@pytest.mark.long  # tests/storage/test_retention.py has the rule
def test_a_run_deletes_blobs_that_every_reader_has_read(fleet: Callable[[Application, str], Fleet]) -> None:
    """Two stages read the source; its first blob is gone already, from an earlier run. A record fills a blob."""
    application = Application()

    @application.stage("kept", output="doubled")
    def double(rows: DataFrame) -> DataFrame:
        return rows.select((F.col("v") * 2).alias("v"))

    @application.stage("kept", output="tripled")
    def triple(rows: DataFrame) -> DataFrame:
        return rows.select((F.col("v") * 3).alias("v"))

    run = fleet(application, STREAMS)
    blobs, dice = run.account.blobs(), random.Random(1)
    writer = run.writer("kept", 1, flush_rows=1, event_time=None)
    writer._logs[0].limits = LogLimits(roll_records=1)

    def put(number: int) -> None:
        text = "".join(dice.choices(string.ascii_letters, k=3_000))  # a record is larger than what is kept
        writer.write(pa.table({"v": pa.array([number], pa.int64()), "text": [text]}))

    def first(prefix: str) -> int:
        return log_indexes(blobs, f"{prefix}/")[prefix][0]

    for number in range(6):
        put(number)
    blobs.delete("streams/kept/0/00000000")

    def until_put_out(stream: str, times: int, last: int) -> None:
        wanted = [times * number for number in range(1, last + 1)]
        run.until(lambda: sorted(export(blobs, stream)["v"].to_pylist()) == wanted)

    run.start("double-0")
    run.tasks["double-0"]._forgetting._spared_s = 0.0  # nothing here waits for as long as a producer may sleep
    run.until(lambda: run.tasks["double-0"].report.batch >= 0)
    until_put_out("doubled", 2, 5)
    run.tasks["double-0"]._forgetting.forget(run.tasks["double-0"]._writer)  # type: ignore[arg-type]
    assert first("streams/kept/0") == 1, "the other stage has read nothing"

    run.start("triple-0")
    run.until(lambda: run.tasks["triple-0"].report.batch >= 0)
    until_put_out("tripled", 3, 5)
    for number in (6, 7):
        put(number)
        until_put_out("tripled", 3, number)
        until_put_out("doubled", 2, number)
    run.until(lambda: first("streams/kept/0") > 4)
    assert [row for table in Reader(blobs, "kept", until_now=True) for row in table["v"].to_pylist()][-1] == 7
    read = run.tasks["double-0"].report.read
    run.move("double-0")
    run.until(lambda: run.tasks["double-0"].report.read == read)  # without a row more

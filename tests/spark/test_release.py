"""A task that is handed over while the storage does not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from samza_azure.account import Secret, Storage
from samza_azure.application import Application
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Phase, StartTask
from samza_azure.spark.query.task import QueryTask
from samza_azure.storage.connection import Account
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.source_stream import SourceWriter
from tests.storage.proxy import Mode, Proxy

from .task_driver import JOB, Fleet, config_of

STREAMS = """
[streams.released]
schema = "key string, ts timestamp"
event_time = "ts"
partitions = 1
[streams.out]
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    with Proxy(azurite.blob_port) as proxy:
        yield proxy


def test_the_batch_and_its_append_have_one_deadline(
    spark: SparkSession, account: Account, storage: Storage, azurite: Azurite, proxy: Proxy, tmp_path: Path
) -> None:
    """The next owner waits for 1.5 times `task.shutdown.ms`; the loser needed up to twice that time."""
    run = copying(spark, storage, azurite, proxy, tmp_path)
    writer = SourceWriter(account.blobs(), account.hints(), "released", 1, event_time="ts")
    writer.write(rows(0))
    writer.flush()
    run.start("copied-0")
    run.until_all_is_read("released")
    task = run.tasks["copied-0"]
    batches = task._batches
    assert batches is not None
    proxy.mode = Mode.LOSE_REQUESTS
    writer.write(rows(1))
    writer.flush()
    run.until(lambda: not batches.wait(0.0))

    releasing = threading.Thread(target=task.release, args=(1.0,), daemon=True)
    releasing.start()
    run.until(lambda: task.report.phase is Phase.RELEASED)

    proxy.mode = Mode.PASS
    releasing.join()
    run.look()  # ends its query; another release would wait for the lost append, which only an EPOCH settles
    run.start("copied-0", first=False)
    run.until_all_is_read("released")
    assert len(run.rows("out")) == 2
    writer.close()
    run.close()
    run.account.close()


def test_a_task_that_is_not_restored_yet_is_released_within_the_deadline(
    spark: SparkSession, account: Account, storage: Storage, azurite: Azurite, proxy: Proxy, tmp_path: Path
) -> None:
    """Its start waits for the storage for as long as the permit holds, and appends nothing after the release."""
    run = copying(spark, storage, azurite, proxy, tmp_path)
    message = StartTask("copied-0", 1, 1, True, run.run_id, run.group_id)
    task = run.tasks["copied-0"] = QueryTask(run._context, message)
    proxy.mode = Mode.LOSE_REQUESTS
    starting = threading.Thread(target=task.start, daemon=True)
    starting.start()
    releasing = threading.Thread(target=task.release, args=(0.5,), daemon=True)
    releasing.start()
    run.until(lambda: task.report.phase is Phase.RELEASED)

    proxy.mode = Mode.PASS
    releasing.join()
    starting.join()
    run.until(task.is_finished.is_set)
    assert LogReader(account.blobs(), task.prefix).tail() is None
    assert not task._directory.exists()
    run.account.close()


def test_a_batch_that_cannot_end_in_time_is_given_up_early_and_repeated_by_the_next_owner(
    fleet: Callable[[Application, str], Fleet], tmp_path: Path
) -> None:
    """A slow Python function has the batch, as it had the one before, which took four seconds; the notice is three. So
    the next owner need not wait for the end of the notice.
    """
    slow, held_up = str(tmp_path / "slow"), str(tmp_path / "held up")
    application = Application()

    def hold(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in tables:
            while table.num_rows and Path(slow).exists():
                Path(held_up).touch()
                time.sleep(0.05)
            yield table

    @application.stage("released", output="out")
    def held(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(hold, rows.schema)

    run = fleet(application, f"{STREAMS}[task]\ncommit.ms = 0\nshutdown.ms = 600000\n")
    writer = run.writer("released", 1, flush_rows=1_000)

    def begun(day: int) -> None:
        """A batch with one more row has begun, and is held up."""
        Path(held_up).unlink(missing_ok=True)
        Path(slow).touch()
        writer.write(rows(day))
        writer.flush()
        run.until(Path(held_up).exists)

    run.start("held-0")
    task = run.tasks["held-0"]
    begun(0)
    since = boot_time()
    run.until(lambda: boot_time() > since + 4)
    Path(slow).unlink()
    run.until_all_is_read("released")
    begun(1)
    noticed = boot_time()
    task.hasten(noticed + 3)
    task.release(600)
    took = boot_time() - noticed
    assert took < 3, "it waited for a batch that will not end in time"
    assert (task.report.phase, task.report.repeated) == (Phase.RELEASED, 1)
    Path(slow).unlink()
    run.look()
    run.start("held-0", first=False)
    run.until_all_is_read("released")
    assert sorted(row["ts"] for row in run.rows("out")) == [START + timedelta(days=day) for day in (0, 1)]
    writer.close()
    run.close()


def copying(spark: SparkSession, storage: Storage, azurite: Azurite, proxy: Proxy, directory: Path) -> Fleet:
    """A fleet whose storage is behind the proxy. A batch may take as long as it likes."""
    application = Application()

    @application.stage("released", output="out")
    def copied(rows: DataFrame) -> DataFrame:
        return rows

    job = JOB + '[task]\n"shutdown.ms" = 600000\n'
    text = azurite.connection_string.replace(f":{azurite.blob_port}/", f":{proxy.port}/")
    behind = Account.from_config(replace(storage, connect=Secret(text)))
    return Fleet(spark, behind, config_of(directory, STREAMS, job), application, directory / "fleet")


def rows(day: int) -> pa.Table:
    return pa.table({"key": ["a"], "ts": pa.array([START + timedelta(days=day)], pa.timestamp("us", "UTC"))})

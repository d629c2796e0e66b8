"""A container without a task runs its stages on nothing. That leaves no trace, and the first task is faster for it."""

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Command, Drain, DrainStep, Exit, Permit, Phase, StartTask
from samza_azure.spark.jvm.session import java_object
from samza_azure.spark.query import warm_up
from samza_azure.spark.query.warm_up import BATCHES, Trial, WarmUp
from samza_azure.storage.connection import Account
from samza_azure.tasks import tasks
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.tasks import Tasks

from .task_driver import PATIENCE_S, Fleet

STREAMS = """
[streams.asleep]
partitions = 1
schema = "key string, ts timestamp, value double"
event_time = "ts"
[task]
commit.ms = 0
"""
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of a test may have no idle core for long."""
    monkeypatch.setattr(warm_up, "PAUSE_MOST_S", 0.0)


def compiled_so_far(spark: SparkSession) -> int:
    """How many classes Spark has generated in this JVM: its cache knows the others."""
    metrics = java_object(spark, "org.apache.spark.metrics.source.CodegenMetrics", "METRIC_COMPILATION_TIME")
    return int(metrics.getCount())


def warmed_up(fleet: Fleet) -> None:
    """Run all stages on nothing."""
    made = WarmUp(fleet._context)
    made.begin()
    assert made._thread is not None
    made._thread.join(PATIENCE_S)
    assert not made._thread.is_alive()


def test_the_first_batch_of_a_stage_that_was_warmed_up_compiles_only_what_comes_with_rows(
    fleet: Callable[[Application, str], Fleet], account: Account, spark: SparkSession
) -> None:
    app = Application()

    @app.stage("asleep", output="awake")
    def wake(rows: DataFrame) -> DataFrame:
        spread = F.stddev("value") - F.skewness("value") * F.kurtosis("value")
        return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "7 minutes"), "key").agg(spread.alias("odd"))

    run = fleet(app, STREAMS)
    blobs, before = account.blobs().list(""), compiled_so_far(spark)

    warmed_up(run)

    after = compiled_so_far(spark)
    assert after > before
    assert account.blobs().list("") == blobs
    assert not spark.streams.active
    assert not list(run.directory.rglob("warm-up*"))

    source = run.writer("asleep", 1, flush_rows=2)
    times = pa.array([NOON] * 2, pa.timestamp("us", tz="UTC"))
    source.write(pa.table({"key": ["a", "b"], "ts": times, "value": [1.0, 2.0]}))
    source.close()
    run.start("wake-0")
    run.until_all_is_read("asleep")
    assert compiled_so_far(spark) - after < (after - before) / 2


def test_a_stage_with_state_goes_on_once_from_its_files(
    fleet: Callable[[Application, str], Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does on a take-over."""
    app, ran = Application(), list[tuple[str, int]]()
    run_batch = Trial._run_batch

    def noted(trial: Trial, frame: DataFrame, batch: int) -> None:
        ran.append((trial._stage.plan.name, batch))
        run_batch(trial, frame, batch)

    monkeypatch.setattr(Trial, "_run_batch", noted)

    @app.stage("asleep", output="quick-rows")
    def pass_on(rows: DataFrame) -> DataFrame:
        return rows.where("value > 1")

    @app.stage("asleep", output="once")
    def once(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["key"])

    warmed_up(fleet(app, STREAMS))

    assert ran == [("once", number) for number in range(BATCHES + 1)] + [("pass_on", number) for number in range(3)]


def test_a_task_starts_while_another_stage_hangs_in_its_warm_up(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession, tmp_path: Path
) -> None:
    """A function that gets many rows at once is called with none."""
    app, hangs, called = Application(), tmp_path / "hangs", tmp_path / "called"
    hangs.touch()

    def slow(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        called.touch()
        while hangs.exists():
            threading.Event().wait(0.05)
        yield from parts

    @app.stage("asleep", output="slow-rows")
    def hang(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(slow, "key string, ts timestamp, value double")

    @app.stage("asleep", output="quick-rows")
    def pass_on(rows: DataFrame) -> DataFrame:
        return rows.where("value > 0")

    run = fleet(app, STREAMS)
    made = WarmUp(run._context)
    made.begin()
    assert made._thread is not None
    run.until(called.exists)

    made.stop()
    run.start("pass_on-0")
    run.until(lambda: run.tasks["pass_on-0"].report.phase is Phase.RUNNING)

    assert hangs.exists()
    made._thread.join(PATIENCE_S)
    assert not made._thread.is_alive()
    hangs.unlink()


def test_a_stage_that_fails_on_nothing_is_noted_and_the_next_one_is_warmed_up(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    app = Application()

    def broken(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("no rows, no luck, asked with hunter2-hunter2")

    @app.stage("asleep", output="broken-rows")
    def fail(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(broken, "key string, ts timestamp, value double")

    @app.stage("asleep", output="quick-rows")
    def pass_on(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("key", "ts", "exp(value) - sinh(value) * cosh(value) AS value")

    run, before = fleet(app, f'{STREAMS}[spark]\nhadoop.password = "hunter2-hunter2"\n'), compiled_so_far(spark)
    with caplog.at_level("INFO"):
        warmed_up(run)

    said = [each.getMessage() for each in caplog.records if each.name == warm_up.__name__]
    assert said[0].startswith("Stage fail could not be warmed up: ")
    assert "no luck, asked with" in said[0] and "hunter2" not in said[0]
    assert "Warm-up complete" in caplog.text
    assert compiled_so_far(spark) > before
    assert not spark.streams.active


def test_a_stage_that_has_rows_for_nothing_is_warmed_up_like_any_other(
    fleet: Callable[[Application, str], Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    app = Application()

    def head(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": ["the first"]})
        for each in parts:
            yield each.select(["key"])

    @app.stage("asleep", output="headed-rows")
    def with_head(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(head, "key string")

    run = fleet(app, STREAMS)
    with caplog.at_level("INFO"):
        warmed_up(run)

    assert "could not be warmed up" not in caplog.text
    assert "Warm-up complete" in caplog.text


class Turn:
    """A lock that tells when somebody comes to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_a_warm_up_that_waits_for_a_task_to_start_calls_no_stage_after_it(
    fleet: Callable[[Application, str], Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is the task's while its query starts, and the next task wants it then."""
    app, calls = Application(), list[str]()

    @app.stage("asleep", output="quick-rows")
    def pass_on(rows: DataFrame) -> DataFrame:
        calls.append("called")
        return rows

    run, turn = fleet(app, STREAMS), Turn()
    monkeypatch.setattr(run.starts, "session", turn)
    calls.clear()
    made = WarmUp(run._context)
    with turn.lock:
        made.begin()
        assert turn.asked.wait(PATIENCE_S)
        made.stop()
    assert made._thread is not None
    made._thread.join(PATIENCE_S)
    assert not made._thread.is_alive()
    assert calls == []


class Told:
    """What the loop of a container tells its warm-up, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.has_begun = threading.Event()

    def begin(self) -> None:
        if not self.has_begun.is_set():
            self.events.append("begin")
        self.has_begun.set()

    def stop(self) -> None:
        self.events.append("stop")


@pytest.mark.parametrize(
    "command", [StartTask("pass_on-0", 1, 1, True, "run", "00" * 16), Drain(DrainStep.FREEZE, "drain"), Exit()]
)
def test_a_container_warms_up_until_the_first_command_that_needs_it(
    fleet: Callable[[Application, str], Fleet], monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(tasks, "WARM_UP_AFTER_S", 0.0)
    app = Application()

    @app.stage("asleep", output="quick-rows")
    def pass_on(rows: DataFrame) -> DataFrame:
        return rows

    run, told = fleet(app, STREAMS), Told()
    ours, theirs = socket.socketpair()
    channel = Channel(theirs.detach())
    loop = threading.Thread(target=Tasks(channel, run._context, run.permit, warm_up=told).run, daemon=True)
    with ours:
        loop.start()
        channel.commands.put(Permit(boot_time() + 3600))
        assert told.has_begun.wait(PATIENCE_S)
        assert told.events == ["begin"]
        channel.commands.put(command)
        channel.commands.put(Exit())
        loop.join(PATIENCE_S)
        assert not loop.is_alive()
    assert told.events[:2] == ["begin", "stop"]

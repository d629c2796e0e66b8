"""Whole runs: rows through two stages and their logs, moved between writers, drained, and compared with a batch."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import ConfigError
from samza_azure.logs.partition import partition_of
from samza_azure.logs.position import Position
from samza_azure.logs.record import Writer
from samza_azure.messages import Drain, DrainPhase, DrainStep, Phase, Progress
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.log import LogReader, Restored, take_over
from samza_azure.streams.offset import Offset
from samza_azure.tasks.gate_files import Acknowledgement
from samza_azure.tasks.poller import PREFETCH_BYTES
from samza_azure.tasks.stage_task import StageTask

from .task_driver import Fleet

MakeFleet = Callable[[Application, str], Fleet]

START = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("value", pa.float64())])
COUNTED = """
[streams.%s]
partitions = 2
schema = "key string, ts timestamp, value double"
event_time = "ts"
[streams.by-key]
partitions = 2
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "%s"
"""


def counting(source: str) -> Application:
    """Clean and shuffle by key; then count and average per day and key."""
    application = Application()

    @application.stage(source, output="by-key", partition_by="key")
    def clean(rows: DataFrame) -> DataFrame:
        return rows.where("value IS NOT NULL").select("key", "ts", "value")

    @application.stage("by-key", output="daily")
    def daily(rows: DataFrame) -> DataFrame:
        return (
            rows.withWatermark("ts", "1 hour")
            .groupBy(F.window("ts", "1 day"), "key")
            .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        )

    return application


def rows_of(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """In the order of time, one each ten minutes."""
    dice = random.Random(seed)
    return [
        {
            "key": dice.choice("abcdefgh"),
            "ts": START + timedelta(minutes=10 * number),
            "value": dice.choice([None, 1.0, 2.0, 4.0]),
        }
        for number in range(count)
    ]


def as_batch(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What one batch over all rows would emit."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["value"] is not None:
            day = row["ts"].replace(hour=0, minute=0)
            found.setdefault((day, row["key"]), []).append(row["value"])
    return sorted((*key, len(values), sum(values)) for key, values in found.items())


def put_out(fleet: Fleet) -> list[tuple[Any, ...]]:
    return sorted((row["window"]["start"], row["key"], row["n"], row["total"]) for row in fleet.rows("daily"))  # type: ignore[index]


def produce(fleet: Fleet, stream: str, rows: list[dict[str, Any]], flush_rows: int) -> None:
    writer = fleet.writer(stream, 2, flush_rows=flush_rows)
    writer.write(pa.Table.from_pylist(rows, schema=SCHEMA), "key")
    writer.close()


def test_two_stages_through_logs_put_out_what_a_batch_would(fleet: MakeFleet) -> None:
    """Also when both stages move to other writers in the middle, with nothing but the log."""
    run = fleet(counting("moved"), COUNTED % ("moved", "32 MiB"))
    rows = rows_of(3000)
    run.start(*run.pipeline.plan.tasks())
    produce(run, "moved", rows[:1500], 300)
    run.until(lambda: all((task.report.batch or 0) >= 1 for task in run.tasks.values()))

    run.move("clean-0")
    run.move("daily-1")
    produce(run, "moved", rows[1500:], 300)
    run.until_all_is_read("moved")
    run.drain()

    assert put_out(run) == as_batch(rows)
    assert run.late == 0
    assert all(task.report.drain is DrainPhase.COMMITTED for task in run.tasks.values())


def test_the_tasks_behind_a_shuffle_count_their_shares_of_a_log_and_not_all_of_it(fleet: MakeFleet) -> None:
    """What they have read and what is left, in bytes, have the same measure: rows left are estimated from both."""
    run = fleet(counting("shared"), COUNTED % ("shared", "32 MiB"))
    daily = ("daily-0", "daily-1")
    produce(run, "shared", rows_of(400), flush_rows=50)
    run.start("clean-0", "clean-1", *daily)
    run.until_all_is_read("shared")

    def shares(name: str) -> tuple[int, float]:
        """What a task has left, and the part of the logs that it says it has read."""
        done, stands = run.tasks[name].report.progress or Progress(), run.tasks[name].inputs.positions()
        return done.behind.get("by-key", 1), done.size / (sum(position for _, position in stands.values()) or 1)

    run.until(lambda: all(shares(name) == (0, pytest.approx(1 / 2, abs=0.01)) for name in daily))
    first = run.tasks["clean-0"].report.progress
    assert first is not None and first.size > 0, "the bytes of the first batch count, as its rows do"


def test_windows_fire_without_a_drain_once_all_producers_have_passed_them(fleet: MakeFleet) -> None:
    """The last rows no longer move the watermark: ticks do, and idle producers let the others go on."""
    run = fleet(counting("ticked"), COUNTED % ("ticked", "32 MiB"))
    rows = rows_of(1000)
    run.start(*run.pipeline.plan.tasks())
    produce(run, "ticked", rows, 100)
    last_day = rows[-1]["ts"].replace(hour=0, minute=0)
    complete = [row for row in as_batch(rows) if row[0] < last_day]

    run.until(lambda: run.tasks["daily-0"].report.batch >= 0 and _has_rows(run, len(complete)))

    assert put_out(run) == complete


def _has_rows(run: Fleet, count: int) -> bool:
    try:
        return len(run.rows("daily")) >= count
    except ConfigError:  # the stream has no rows yet
        return False


@pytest.mark.long  # drawn pipelines have laggards, too
def test_a_producer_that_lags_by_days_makes_nothing_late(fleet: MakeFleet) -> None:
    """Records span hours, one producer is ten days behind, and the reader changes hands twice on the way."""
    run = fleet(counting("lagging"), COUNTED % ("lagging", "1 KiB"))
    rows = rows_of(2000)
    produce(run, "lagging", rows, 40)
    run.start("clean-0", "daily-0", "daily-1")
    run.until(lambda: run.read().get("lagging/0", (0, 0))[1] > 20_000)
    run.move("daily-0")
    run.start("clean-1")
    run.until(lambda: run.tasks["clean-1"].report.batch >= 5)
    run.move("daily-1")
    run.move("daily-0")

    run.until_all_is_read("lagging")
    run.drain()

    assert put_out(run) == as_batch(rows)
    assert run.late == 0


def test_the_flush_fires_every_window_also_after_restarts_in_it(fleet: MakeFleet) -> None:
    """The next owner sets the watermark again; or finds that every window has fired."""
    run = fleet(counting("flushed"), COUNTED % ("flushed", "32 MiB"))
    rows = rows_of(500)
    produce(run, "flushed", rows, 100)
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("flushed")
    run.flush(run.freeze())
    run.until(lambda: run.tasks["daily-0"]._gate.step == 2, but=["daily-1"])
    run.move("daily-0")
    run.leave_between_two_steps("daily-1")

    run.move("daily-1")
    run.until(run.is_drained)

    assert put_out(run) == as_batch(rows)


def test_a_task_without_state_is_drained_without_a_batch(fleet: MakeFleet) -> None:
    """It has nothing to fire: its log ends in DRAINED as soon as all that it read is in it. One with state steps."""
    run = fleet(counting("bare"), COUNTED % ("bare", "64 KiB"))
    rows = rows_of(400)
    produce(run, "bare", rows, flush_rows=50)
    run.start("clean-0", "clean-1", "daily-0", "daily-1")
    run.until_all_is_read("bare")
    run.drain()
    steps = {name: task._gate.step for name, task in run.tasks.items()}
    assert steps == {"clean-0": 0, "clean-1": 0, "daily-0": 2, "daily-1": 2}
    assert put_out(run) == as_batch(rows)
    ends = {partition: end for task in run.tasks.values() for partition, end in (task.report.ends or {}).items()}
    assert run.read() == ends
    for name in ("clean-0", "clean-1"):  # the next owner finds a log that says so, with its position
        _, restored = take_over(
            run._context.blobs,
            f"runs/{run.run_id}/{name}",
            group_id=bytes.fromhex(run.group_id),
            task=name,
            writer=Writer(99, 1),
            first=False,
            may_append=run.permit.holds,
            meta={},
        )
        assert restored.drained
        assert last_offset(restored) == [ends[f"bare/{name[-1]}"]]


def test_a_late_check_does_not_change_the_phase_of_a_drained_task(fleet: MakeFleet) -> None:
    """It began before the last record was in, and goes on after it."""
    application = Application()

    @application.stage("late-look", output="late-looked")
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, '[streams.late-look]\npartitions = 1\nschema = "n int"\n')
    run.start("copy-0")
    task = run.tasks["copy-0"]
    batches = task._batches
    assert batches is not None
    run.drain()
    said = task.report
    assert (said.phase, said.drain) == (Phase.DRAINED, DrainPhase.COMMITTED)
    task._flush_without_batch(batches, [])
    assert task.report == said


def test_the_last_rows_of_a_drain_come_in_the_batch_that_fires(fleet: MakeFleet) -> None:
    """Late is what the watermark of the batch before says. A batch for the rows and another one cost twice as much."""
    run = fleet(counting("at-once"), COUNTED % ("at-once", "32 MiB"))
    rows = rows_of(400)
    daily = ("daily-0", "daily-1")
    produce(run, "at-once", rows[:200], flush_rows=50)
    run.start("clean-0", "clean-1", *daily)
    run.until_all_is_read("at-once")
    run.until(lambda: all(run.tasks[name].report.batch >= 0 for name in daily))
    for name in daily:
        run.release(name)
    before = [run.tasks[name].report.batch for name in daily]
    produce(run, "at-once", rows[200:], flush_rows=50)
    run.until_all_is_read("at-once")
    run.flush(run.freeze())
    run.until(lambda: all(run.tasks[name].report.phase is Phase.DRAINED for name in ("clean-0", "clean-1")))
    run.start(*daily, first=False)
    run.until(run.is_drained)
    assert [run.tasks[name].report.batch for name in daily] == [batch + 1 for batch in before]
    assert put_out(run) == as_batch(rows)


def last_offset(restored: Restored) -> list[Position]:
    """Where the last record of a restored log says that its task stood."""
    *_, line = restored.files[f"offsets/{restored.last_batch}"].decode().splitlines()
    offset = Offset.from_json(json.loads(line))
    assert offset.step == 2
    return offset.positions


@pytest.mark.long  # without state it is shown below
def test_a_drain_before_the_start_reads_nothing(fleet: MakeFleet) -> None:
    """All tasks run their flush, and the ends are where they began."""
    run = fleet(counting("unread"), COUNTED % ("unread", "32 MiB"))
    produce(run, "unread", rows_of(100), 50)
    run.order(Drain(DrainStep.FREEZE, "drain-1"))
    run.start(*run.pipeline.plan.tasks())

    ends = run.freeze()
    run.flush(ends)
    run.until(run.is_drained)

    assert ends == {"unread/0": (0, 0), "unread/1": (0, 0)}
    assert all(task.report.batch >= 0 for task in run.tasks.values())


UNSHUFFLED = """
[streams.%s]
partitions = 2
key = "key"
schema = "key string, ts timestamp, value double"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 KiB"
"""


def straight(source: str) -> Application:
    """Rows without a shuffle: counted by the tasks that read the source, and passed on to a stage of their own."""
    application = Application()

    @application.stage(source, output="kept")
    def keep(rows: DataFrame) -> DataFrame:
        return rows.where("value IS NOT NULL")

    @application.stage(source, output="daily")
    def daily(rows: DataFrame) -> DataFrame:
        return (
            rows.where("value IS NOT NULL")
            .withWatermark("ts", "1 hour")
            .groupBy(F.window("ts", "1 day"), "key")
            .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        )

    return application


def read_of(run: Fleet, stream: str, ends: dict[str, Position]) -> list[dict[str, Any]]:
    """The rows of a source stream before these ends."""
    found: list[dict[str, Any]] = []
    for number in (0, 1):
        reader = LogReader(run.account.blobs(), f"streams/{stream}/{number}")
        for scan in reader.scans((0, 0), ends[f"{stream}/{number}"]):
            found += [row for data in reader.fetch(scan.parts) for each in decode(data) for row in each.to_pylist()]
    return found


def drained_in_mid_stream(run: Fleet, stream: str) -> list[dict[str, Any]]:
    """Drain a run that has read a part of its rows; the rows that it has read."""
    rows = rows_of(900)
    run.start(*run.pipeline.plan.tasks())
    produce(run, stream, rows, flush_rows=20)
    run.until(lambda: any(task.report.batch >= 2 for task in run.tasks.values()))
    ends = run.freeze()
    run.flush(ends)
    run.until(run.is_drained)
    read = read_of(run, stream, ends)
    assert 0 < len(read) < len(rows)
    return read


@pytest.mark.long  # drawn pipelines are drained in mid-stream
def test_drain_without_reshuffle_stages(fleet: MakeFleet) -> None:
    """testDrainWithoutReshuffleStages: in mid-stream. What was read comes out, and nothing else of what was there."""
    run = fleet(straight("straight"), UNSHUFFLED % "straight")
    read = drained_in_mid_stream(run, "straight")
    assert put_out(run) == as_batch(read)
    kept = [(row["key"], row["ts"], row["value"]) for row in run.rows("kept")]
    assert sorted(kept) == sorted((row["key"], row["ts"], row["value"]) for row in read if row["value"] is not None)


def drained_on_start(run: Fleet, stream: str) -> None:
    """Drain a run that finds rows, but the drain is there before its tasks."""
    produce(run, stream, rows_of(100), 50)
    run.order(Drain(DrainStep.FREEZE, "drain-1"))
    run.start(*run.pipeline.plan.tasks())
    run.drain()
    assert set(run.read().values()) == {(0, 0)}


def test_drain_on_container_start_without_reshuffle_stages(fleet: MakeFleet) -> None:
    """testDrainOnContainerStartWithoutReshuffleStages: a drain that is there before the tasks. Nothing comes out."""
    run = fleet(straight("straight-unread"), UNSHUFFLED % "straight-unread")
    drained_on_start(run, "straight-unread")
    assert (run.rows("kept"), put_out(run)) == ([], [])


TWICE_SHUFFLED = (
    COUNTED
    + """
[streams.by-half]
partitions = 2
event_time = "ts"
"""
)


def twice_shuffled(source: str) -> Application:
    """Shuffle by key, count per hour and key, shuffle by the half of the alphabet, and add up per day and half."""
    application = Application()

    @application.stage(source, output="by-key", partition_by="key")
    def clean(rows: DataFrame) -> DataFrame:
        return rows.where("value IS NOT NULL")

    @application.stage("by-key", output="by-half", partition_by="half")
    def hourly(rows: DataFrame) -> DataFrame:
        counted = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "key")
        return counted.agg(F.count("*").alias("n"), F.sum("value").alias("total")).select(
            F.expr("window.end").alias("ts"), F.expr("key < 'e'").alias("half"), "n", "total"
        )

    @application.stage("by-half", output="daily")
    def daily(rows: DataFrame) -> DataFrame:
        counted = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), F.col("half").alias("key"))
        return counted.agg(F.sum("n").alias("n"), F.sum("total").alias("total"))

    return application


def twice_as_batch(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What one batch over all rows would emit."""
    ended = [{**row, "ts": row["ts"].replace(minute=0) + timedelta(hours=1), "key": row["key"] < "e"} for row in rows]
    return as_batch(ended)


@pytest.mark.long  # drawn pipelines are drained in mid-stream, and tests/end_to_end drains two stages
def test_drain(fleet: MakeFleet) -> None:
    """testDrain: two shuffles, in mid-stream. What was read goes through both, and every window fires in each."""
    run = fleet(twice_shuffled("twice"), TWICE_SHUFFLED % ("twice", "1 KiB"))
    assert twice_as_batch(drained_in_mid_stream(run, "twice")) == put_out(run)


@pytest.mark.long  # without a shuffle it is shown above
def test_drain_on_container_start(fleet: MakeFleet) -> None:
    """testDrainOnContainerStart: two shuffles, and a drain that is there before the tasks. Nothing comes out."""
    run = fleet(twice_shuffled("twice-unread"), TWICE_SHUFFLED % ("twice-unread", "1 KiB"))
    drained_on_start(run, "twice-unread")
    assert put_out(run) == []


TWO_SOURCES = """
[streams.lefts]
partitions = 2
key = "key"
schema = "key string, ts timestamp, value double"
event_time = "ts"
[streams.rights]
partitions = 2
key = "key"
schema = "key string, ts timestamp, value double"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 KiB"
"""


@pytest.mark.long  # a drawn pipeline drains a union
def test_a_task_that_reads_two_source_streams_drains_both_in_mid_stream(fleet: MakeFleet) -> None:
    """testDrainForTasksWithMultipleSSP, with state: one end for each partition of each stream, and one record."""
    application = Application()

    @application.stage("lefts", "rights", output="daily")
    def daily(lefts: DataFrame, rights: DataFrame) -> DataFrame:
        rows = lefts.withWatermark("ts", "1 hour").union(rights.withWatermark("ts", "1 hour"))
        rows = rows.where("value IS NOT NULL")
        return rows.groupBy(F.window("ts", "1 day"), "key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))

    run = fleet(application, TWO_SOURCES)
    run.start(*run.pipeline.plan.tasks())
    produce(run, "lefts", rows_of(900, seed=2), flush_rows=20)
    produce(run, "rights", rows_of(300, seed=3), flush_rows=20)
    run.until(lambda: any(run.tasks[name].report.batch >= 2 for name in run.tasks))

    ends = run.freeze()
    assert set(ends) == {f"{stream}/{number}" for stream in ("lefts", "rights") for number in (0, 1)}
    run.flush(ends)
    run.until(run.is_drained)

    read = [row for stream in ("lefts", "rights") for row in read_of(run, stream, ends)]
    assert 0 < len(read) < 1_200
    assert put_out(run) == as_batch(read)


@pytest.mark.long  # tests/streams/test_gate.py has the gate, tests/storage/test_source_task.py a task without a query
def test_a_cancelled_freeze_reads_on(fleet: MakeFleet) -> None:
    """Nothing is lost of what came in while it was frozen, and the next drain gets an answer of its own."""
    run = fleet(counting("cancelled"), COUNTED % ("cancelled", "32 MiB"))
    rows = rows_of(600)
    run.start(*run.pipeline.plan.tasks())
    produce(run, "cancelled", rows[:300], 100)
    run.until_all_is_read("cancelled")
    run.freeze()
    produce(run, "cancelled", rows[300:], 100)
    run.order(Drain(None))
    assert all(task.report.drain is None and task.report.ends is None for task in run.tasks.values())

    run.until_all_is_read("cancelled")
    run.drain("drain-2")

    assert put_out(run) == as_batch(rows)


@pytest.mark.long  # test_handlers.py has it of a task without a query
def test_an_owner_that_finds_its_log_drained_runs_nothing(fleet: MakeFleet) -> None:
    run = fleet(counting("done"), COUNTED % ("done", "32 MiB"))
    produce(run, "done", rows_of(50), 50)
    run.start(*run.pipeline.plan.tasks())
    run.drain()

    run.start("clean-0", first=False)

    report = run.tasks["clean-0"].report
    assert (report.phase, report.drain) == (Phase.DRAINED, DrainPhase.COMMITTED)
    assert run.tasks["clean-0"]._query is None


def test_a_task_whose_log_has_a_new_owner_stops_by_itself(fleet: MakeFleet) -> None:
    """Its next append is refused; that is no failure."""
    run = fleet(counting("taken"), COUNTED % ("taken", "32 MiB"))
    run.start("clean-0")
    task = run.tasks["clean-0"]
    run.until(lambda: task.report.batch >= 0)
    take_over(
        run.account.blobs(),
        task.prefix,
        group_id=bytes.fromhex(run.group_id),
        task="clean-0",
        writer=Writer(99, 1),
        first=False,
        may_append=lambda: True,
        meta={},
    )

    produce(run, "taken", rows_of(200), 100)
    run.until(lambda: task.report.phase is Phase.SUPERSEDED)

    assert task.report.error is None


def test_without_a_permit_nothing_is_appended_and_with_it_work_goes_on(fleet: MakeFleet) -> None:
    run = fleet(counting("permitted"), COUNTED % ("permitted", "32 MiB"))
    rows = rows_of(400)
    run.start(*run.pipeline.plan.tasks())
    run.until(lambda: all(task.report.batch >= 0 for task in run.tasks.values()))
    run.allow(-1)
    before = {name: task._writer.position for name, task in run.tasks.items() if task._writer}
    produce(run, "permitted", rows, 100)
    for _ in range(20):
        run.look()
    assert {name: task._writer.position for name, task in run.tasks.items() if task._writer} == before

    run.allow(3600)
    run.until_all_is_read("permitted")
    run.drain()

    assert put_out(run) == as_batch(rows)


def test_a_stage_that_raises_fails_its_task_alone(fleet: MakeFleet) -> None:
    """With the message and the traceback of its own code; what was committed stays."""
    application = Application()

    @application.stage("broken", output="checked")
    def checked(rows: DataFrame) -> DataFrame:
        def refuse(value: float | None) -> float:
            if value == 13.0:
                raise ValueError("thirteen is not allowed, AccountKey=c2VjcmV0c2VjcmV0")
            return value or 0.0

        return rows.select("key", F.udf(refuse, "double")("value").alias("value"))

    run = fleet(application, COUNTED % ("broken", "32 MiB"))
    run.start("checked-0", "checked-1")
    produce(run, "broken", rows_of(40), 40)
    run.until_all_is_read("broken")
    failing, other = run.tasks["checked-0"], run.tasks["checked-1"]
    bad = next(key for key in "abcdefgh" if partition_of([key], 2) == 0)
    produce(run, "broken", [{"key": bad, "ts": START + timedelta(days=9), "value": 13.0}], 1)
    while not failing.is_over:
        run.look()

    report = failing.report
    assert report.phase is Phase.FAILED
    assert report.error is not None
    said, where, called_with = report.error.message.splitlines()
    assert said == "ValueError: thirteen is not allowed, AccountKey=**********"
    assert where.startswith(f"in refuse, {__file__}, line ")
    assert where.endswith(': raise ValueError("thirteen is not allowed, AccountKey=**********")')
    assert called_with == "Called with value=13.0"
    assert "in refuse" in report.error.traceback
    assert "c2VjcmV0" not in report.error.message + report.error.traceback
    assert other.report.phase is Phase.RUNNING
    assert len(run.rows("checked")) == 40


def test_rows_of_other_types_than_the_schema_says_fail_the_task_with_one_sentence(fleet: MakeFleet) -> None:
    """Also where a worker reads them: this many rows are not handed over with the offset."""
    run = fleet(counting("mistyped"), COUNTED % ("mistyped", "32 MiB"))
    dice = random.Random(1)
    rows = pa.table(
        {"key": ["a"] * 30_000, "ts": [START] * 30_000, "value": [f"{dice.random()}" for _ in range(30_000)]}
    )
    assert rows.nbytes > 2 * PREFETCH_BYTES
    writer = run.writer("mistyped", 2, flush_rows=30_000)
    writer.write(rows, "key")
    writer.close()
    part = partition_of(["a"], 2)
    run.start(f"clean-{part}")
    while not run.tasks[f"clean-{part}"].is_over:
        run.look()

    report = run.tasks[f"clean-{part}"].report
    assert report.phase is Phase.FAILED
    assert report.error is not None and report.error.message == (
        "The rows of stream 'mistyped' do not fit its schema: value is string in the log, double in the schema. "
        "Change streams.mistyped.schema to match the log, or write rows of the new schema into another stream."
    )


MATCHED = """
[streams.orders]
partitions = 1
schema = "key string, ts timestamp, value double"
event_time = "ts"
[streams.payments]
partitions = 1
schema = "key string, ts timestamp, value double"
event_time = "ts"
[task]
commit.ms = 0
batch.bytes = "1 KiB"
"""


@pytest.mark.long  # drawn pipelines have parts of it
def test_two_inputs_with_two_delays_are_joined_deduplicated_and_drained(fleet: MakeFleet) -> None:
    """An outer join under our own watermark, one input days behind, moved on the way, and again in the flush."""
    application = Application()

    @application.stage("orders", "payments", output="matched")
    def matched(orders: DataFrame, payments: DataFrame) -> DataFrame:
        timed = orders.where("ts IS NOT NULL").withWatermark("ts", "30 minutes")
        left = timed.dropDuplicatesWithinWatermark(["key"])
        right = payments.withWatermark("ts", "50 minutes").select(
            F.col("key").alias("paid_key"), F.col("ts").alias("paid_at")
        )
        condition = F.expr("key = paid_key AND paid_at BETWEEN ts AND ts + INTERVAL 2 HOURS")
        return left.join(right, condition, "leftOuter").select("key", "ts", "paid_at")

    run = fleet(application, MATCHED)
    orders = [{"key": f"{number}", "ts": START + timedelta(minutes=20 * number), "value": 1.0} for number in range(300)]
    payments = [
        {"key": order["key"], "ts": order["ts"] + timedelta(minutes=30 + 60 * (number % 3)), "value": 1.0}
        for number, order in enumerate(orders)
        if number % 4
    ]
    _produce_one(run, "orders", [order for order in orders for _ in range(2)], 60)
    run.start("matched-0")
    run.until(lambda: run.tasks["matched-0"].report.batch >= 3)
    run.move("matched-0")
    _produce_one(run, "payments", payments[:100], 30)
    run.until(lambda: run.tasks["matched-0"].report.batch >= 8)
    run.move("matched-0")
    _produce_one(run, "payments", payments[100:], 30)
    run.until_all_is_read("orders")
    run.until_all_is_read("payments")
    run.flush(run.freeze())
    run.leave_between_two_steps("matched-0")
    run.move("matched-0")
    run.until(run.is_drained)

    paid = {row["key"]: row["ts"] for row in payments}
    expected = sorted(
        (order["key"], order["ts"], paid[order["key"]] if _in_time(order, paid) else None) for order in orders
    )
    assert sorted((row["key"], row["ts"], row["paid_at"]) for row in run.rows("matched")) == expected


@pytest.mark.long  # an input that is used or shuffled twice is shown below
def test_a_stage_may_read_one_stream_twice(fleet: MakeFleet) -> None:
    """Given twice, or joined with itself: two sources that stand at different places, moved on the way and drained."""
    application = Application()

    @application.stage("repeated", "repeated", output="both")
    def both(some: DataFrame, others: DataFrame) -> DataFrame:
        return some.where("value >= 2").union(others.where("value < 2"))

    @application.stage("repeated", output="paired")
    def paired(rows: DataFrame) -> DataFrame:
        late = rows.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        condition = F.expr("a.key = b.key AND b.ts = a.ts + INTERVAL 10 MINUTES")
        return late.alias("a").join(late.alias("b"), condition, "leftOuter").selectExpr("a.ts", "a.key", "b.ts AS at")

    run = fleet(application, MATCHED.replace("orders", "repeated"))
    rows = rows_of(200)
    _produce_one(run, "repeated", rows[:100], 50)
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("repeated")
    for task in run.pipeline.plan.tasks():
        run.move(task)
    _produce_one(run, "repeated", rows[100:], 50)
    run.until_all_is_read("repeated")
    run.drain()

    assert [task.stage.analysis.sources for task in run.tasks.values()] == [(0, 1), (0, 0)]
    assert [len(task.inputs.stands_at) for task in run.tasks.values()] == [2, 2]
    kept = [(row["key"], row["ts"], row["value"]) for row in rows if row["value"] is not None]
    assert sorted((row["key"], row["ts"], row["value"]) for row in run.rows("both")) == sorted(kept)
    by_time = {row["ts"]: row["key"] for row in rows}
    found = sorted((row["ts"], row["key"], row["at"] is not None) for row in run.rows("paired"))
    later = timedelta(minutes=10)
    assert found == [(row["ts"], row["key"], by_time.get(row["ts"] + later) == row["key"]) for row in rows]


def test_a_stage_may_use_one_input_twice(fleet: MakeFleet) -> None:
    """Spark has one source for it then, and notes its place twice. Whether all is emitted does not depend on that."""
    application = Application()

    @application.stage("used-twice", output="split")
    def split(rows: DataFrame) -> DataFrame:
        return rows.where("value >= 2").union(rows.where("value < 2"))

    @application.stage("used-twice", output="firsts")
    def firsts(rows: DataFrame) -> DataFrame:
        late = rows.withWatermark("ts", "1 hour")
        return late.where("value >= 2").union(late.where("value < 2")).dropDuplicates(["key", "ts"])

    run = fleet(application, MATCHED.replace("orders", "used-twice"))
    rows = rows_of(100)
    _produce_one(run, "used-twice", rows, 50)
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("used-twice")
    run.drain()

    assert [len(task.inputs.stands_at) for task in run.tasks.values()] == [1, 2]
    kept = sorted((row["key"], row["ts"], row["value"]) for row in rows if row["value"] is not None)
    for stream in ("split", "firsts"):
        assert sorted((row["key"], row["ts"], row["value"]) for row in run.rows(stream)) == kept


def test_the_watermark_does_not_rise_before_the_last_rows_are_put_out(fleet: MakeFleet) -> None:
    """A source says that it stands at its end before Spark has planned the batch with the rows that it has given."""
    run = fleet(counting("last-rows"), COUNTED % ("last-rows", "32 MiB"))
    rows = rows_of(200)
    produce(run, "last-rows", rows, 100)
    run.start(*run.pipeline.plan.tasks())
    run.until_all_is_read("last-rows")
    counting_tasks = ["daily-0", "daily-1"]
    run.flush(run.freeze())
    task = run.tasks["daily-0"]
    run.until(lambda: any(each.is_at_end for each in _answered(task)), but=counting_tasks)
    run.until(lambda: task.inputs.has_put_out(_answered(task)), but=counting_tasks)
    (path,) = (task._directory / "acknowledgements").glob("[0-9]*")
    (said,) = _answered(task)
    assert said.offset is not None
    ahead = [[blob, position + 100, *more] for blob, position, *more in said.offset["at"]]
    replace(said, offset={**said.offset, "at": ahead}).write(path)
    run.look()
    assert task._gate.step == 0
    said.write(path)
    run.until(run.is_drained)
    assert put_out(run) == as_batch(rows)


def _answered(task: StageTask) -> list[Acknowledgement]:
    """What the sources of a task have said under the gate in force."""
    return [each for each in task._acknowledgements() if each.version == task._gate.version]


def _in_time(order: dict[str, Any], paid: dict[str, datetime]) -> bool:
    return order["key"] in paid and paid[order["key"]] <= order["ts"] + timedelta(hours=2)


def _produce_one(run: Fleet, stream: str, rows: list[dict[str, Any]], flush_rows: int) -> None:
    writer = run.writer(stream, 1, flush_rows=flush_rows)
    writer.write(pa.Table.from_pylist(rows, schema=SCHEMA))
    writer.flush()


def test_rows_at_the_end_of_time_come_out_with_a_drain(fleet: MakeFleet) -> None:
    """9999-12-31 often stands for "never". Its window ends in the year 10000, and it makes no other row late."""
    application = Application()

    @application.stage("never", output="by-day")
    def by_day(rows: DataFrame) -> DataFrame:
        counted = (
            rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").agg(F.count("*").alias("n"))
        )
        return counted.select("key", F.unix_micros("window.start").alias("start"), "n")

    run = fleet(application, (COUNTED % ("never", "32 MiB")).replace("by-key", "other"))
    last = datetime(9999, 12, 31, tzinfo=UTC)
    times = {
        "a": [START, START + timedelta(days=3), last],
        "b": [last + timedelta(hours=23, minutes=59, seconds=59, microseconds=999_999), START],
    }
    run.start(*run.pipeline.plan.tasks())
    produce(run, "never", [{"key": key, "ts": ts, "value": 1.0} for key, all_ in times.items() for ts in all_], 1)
    run.until_all_is_read("never")
    run.move("by_day-0")
    run.drain()

    expected = [(key, ts.replace(hour=0, minute=0, second=0, microsecond=0)) for key in times for ts in times[key]]
    found = [(row["key"], datetime.fromtimestamp(row["start"] / 1e6, UTC)) for row in run.rows("by-day")]  # type: ignore[operator]
    assert sorted(found) == sorted(expected)
    assert run.late == 0


def test_an_input_that_is_read_twice_with_a_shuffle_for_each(fleet: MakeFleet) -> None:
    """Adaptive execution planned the two at the same time, and both asked the source's only process: it hung."""
    application = Application()

    @application.stage("doubled", output="twice")
    def twice(rows: DataFrame) -> DataFrame:
        table = rows.sparkSession.createDataFrame([(1, "a"), (2, "b")], "m long, w string")
        named = rows.join(table, F.expr("n = m"), "left").drop("m")
        return named.unionByName(named.where("n > 1"))

    run = fleet(application, '[streams.doubled]\nschema = "n long"\n[task]\ncommit.ms = 0\n')
    writer = run.writer("doubled", 1, flush_rows=10, event_time=None)
    run.start("twice-0")
    for batch in range(3):
        writer.write(pa.table({"n": pa.array([1, 2, 3], pa.int64())}))
        writer.flush()
        run.until(lambda batch=batch: len(run.rows("twice")) == 5 * (batch + 1))
    writer.close()
    assert Counter(row["w"] for row in run.rows("twice")) == {"a": 3, "b": 6, None: 6}

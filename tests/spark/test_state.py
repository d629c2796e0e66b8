"""Where state lives: RocksDB by `task.state`, its snapshots in the log, and the way back from there."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.logs.names import large_prefix
from samza_azure.logs.operations import Span
from samza_azure.logs.position import Ends
from samza_azure.logs.record import Kind, Record, Reference, decode, decode_header
from samza_azure.logs.restart_files import snapshot_parts
from samza_azure.messages import BATCH_PHASES, LastBatch, Phase, TaskReport
from samza_azure.pipeline.state import PROVIDERS, check_chosen
from samza_azure.spark.jvm.progress import counted_since, recent
from samza_azure.spark.jvm.session import jvm_of
from samza_azure.spark.query.launch import STATE_PROVIDER
from samza_azure.spark.query.starts import Starts
from samza_azure.storage.interface import Blobs
from samza_azure.tasks.figures import Counted, Figures, Spent
from samza_azure.tasks.stage_task import StageTask

from .task_driver import PATIENCE_S, Fleet, config_of, has_read, last_rows

MakeFleet = Callable[[Application, str], Fleet]

SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
START = datetime(2024, 1, 1, tzinfo=UTC)
JOB = """
[streams.%s]
schema = "key string, ts timestamp"
event_time = "ts"
[task]
commit.ms = 0
state = "%s"
"""


def counting(source: str) -> Application:
    """How often each key came on each day."""
    application = Application()

    @application.stage(source, output="counts")
    def count(rows: DataFrame) -> DataFrame:
        days = F.window("ts", "1 day")
        return rows.withWatermark("ts", "0 seconds").groupBy(days, "key").agg(F.count("*").alias("n"))

    return application


def table(numbers: range, day: int = 0) -> pa.Table:
    """Keys that no compression makes small, all on one day."""
    keys = [f"{number:06d}-{hash_of(number)}" for number in numbers]
    return pa.table({"key": keys, "ts": [START + timedelta(days=day, seconds=1)] * len(keys)}, schema=SCHEMA)


def hash_of(number: int) -> str:
    """Sixteen hexadecimal digits."""
    return f"{(number * 0x9E3779B97F4A7C15) % (1 << 64):016x}"


@pytest.fixture
def often(spark: SparkSession) -> Iterator[None]:
    """Snapshots after each two batches."""
    name = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
    spark.conf.set(name, "2")
    yield
    spark.conf.unset(name)


@pytest.fixture
def often_idle(spark: SparkSession) -> Iterator[None]:
    """Spark reports a query that has nothing to read after 0.2 s, instead of after ten."""
    name = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(name, "200ms")
    yield
    spark.conf.unset(name)


def records_of(blobs: Blobs, prefix: str) -> list[Record]:
    """All records of a log."""
    found = []
    for name, _ in blobs.list(f"{prefix}/"):
        content = blobs.read(name, 0)
        assert isinstance(content, Span)
        position = 0
        while position < content.size:
            found.append(decode(content.data[position:], blob=name, position=position))
            position += decode_header(content.data[position:], blob=name, position=position).length
    return found


def files_of(records: list[Record], end: str) -> list[tuple[str, Any]]:
    """Each mention of a state file in a batch's record."""
    return [
        (path, content)
        for record in records
        if record.kind is Kind.BATCH
        for path, content in record.files.items()
        if path.endswith(end)
    ]


def test_rocksdb_is_restored_from_snapshots_whose_parts_are_in_the_log_once(fleet: MakeFleet, often: None) -> None:
    """Over several snapshots, a move to an empty directory, and a drain."""
    run = fleet(counting("seen"), JOB % ("seen", "rocksdb"))
    log = f"runs/{run.run_id}/count-0"
    blobs = run.account.blobs()
    writer = run.writer("seen", 1, flush_rows=10_000)
    expected: Counter[str] = Counter()
    run.start("count-0")

    def write(numbers: range) -> None:
        """One batch or more, each in the log when this returns."""
        rows = table(numbers)
        expected.update(rows["key"].to_pylist())
        writer.write(rows)
        writer.flush()
        run.until_all_is_read("seen")

    def snapshots() -> list[tuple[str, Any]]:
        return files_of(records_of(blobs, log), ".zip")

    write(range(10_000))
    number = 10_000
    while len(snapshots()) < 2:
        write(range(number, number + 100))
        number += 100
    run.move("count-0")
    before = len(snapshots())
    while len(snapshots()) < before + 1:
        write(range(number - 50, number + 50))
        number += 50
    writer.close()
    run.drain()

    parts = Counter(path for path, _ in files_of(records_of(blobs, log), ".sst"))
    named = Counter(part for path, content in snapshots() for part in snapshot_parts(path, content))
    assert set(parts) == set(named)
    assert max(named.values()) > 1, "a file is in several snapshots"
    assert max(parts.values()) == 1, "and in one record"
    large = [content for _, content in files_of(records_of(blobs, log), ".sst") if isinstance(content, Reference)]
    assert large
    assert {place.blob for place in large} <= {name for name, _ in blobs.list(f"{large_prefix(log)}/")}
    assert {row["key"]: row["n"] for row in run.rows("counts")} == expected
    assert run.late == 0


def test_the_stores_of_a_task_that_moves_are_closed_and_nothing_of_them_is_left(
    fleet: MakeFleet, spark: SparkSession, often: None
) -> None:
    """Spark left them open for up to a minute. Then it uploaded their last snapshots, and so made the directory of the
    former task anew."""
    run = fleet(counting("kept"), JOB % ("kept", "rocksdb"))
    writer, numbers = run.writer("kept", 1, flush_rows=10), itertools.count()
    folder = run.directory / "tasks" / "count-0"
    jvm = psutil.Process(jvm_of(spark).java.lang.ProcessHandle.current().pid())

    def write() -> None:
        number = next(numbers)
        writer.write(table(range(number, number + 1)))
        writer.flush()
        run.until_all_is_read("kept")

    def newest() -> int:
        """The last snapshot that the task's last start has, of those that it was restored with or has uploaded."""
        own = run.tasks["count-0"]._directory
        return max((int(path.stem) for path in own.rglob("*.zip")), default=0)

    def stores() -> set[str]:
        return {each.path for each in jvm.open_files() if Path(each.path).name == "LOCK"}

    def write_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            write()
            assert time.monotonic() < deadline, f"{stores() - others} are open; {sorted(folder.rglob('*.zip'))}"

    others = stores()  # of other tests

    run.start("count-0")
    for _ in range(3):
        for _ in range(3):  # the last snapshot waits for its upload
            write()
        (folder / "0-1" / "checkpoint").mkdir(parents=True)  # by an upload that had begun before the last move
        run.move("count-0")
    write()
    write_until(lambda: len(stores() - others) == 1)
    for _ in range(2):  # so Spark has also maintained what was left when the task moved
        before = newest()
        write_until(lambda before=before: newest() != before)  # type: ignore[misc]
    assert [path.name for path in folder.iterdir()] == [run.tasks["count-0"]._directory.name]
    writer.close()


def test_queries_that_start_side_by_side_have_the_stores_of_their_own_tasks(fleet: MakeFleet) -> None:
    """The store's class is a setting of the session that they share. Each start waits a while for the other one."""
    starts, both, is_starting = Starts(2), threading.Barrier(2), threading.Event()
    starts.succeeded()

    def beside(source: str) -> Application:
        application = Application()

        @application.stage(source, output="counts")
        def count(rows: DataFrame) -> DataFrame:
            if is_starting.is_set():
                with suppress(threading.BrokenBarrierError):
                    both.wait(2.0)
            return rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 day"), "key").count()

        return application

    runs = {kind: fleet(beside(f"beside-{kind}"), JOB % (f"beside-{kind}", kind)) for kind in PROVIDERS}
    is_starting.set()
    for generation, (kind, run) in enumerate(runs.items()):
        run.generation = generation  # queries of one session have different names
        run._context = replace(run._context, starts=starts)
        writer = run.writer(f"beside-{kind}", 1, flush_rows=10)
        writer.write(table(range(10)))
        writer.close()
    with ThreadPoolExecutor(len(runs)) as threads:
        for started in [threads.submit(run.start, "count-0") for run in runs.values()]:
            started.result()
    for run in runs.values():
        run.until(lambda run=run: run.tasks["count-0"].report.batch >= 0)  # type: ignore[misc]
    assert {kind: store_of(run.tasks["count-0"]) for kind, run in runs.items()} == PROVIDERS


def store_of(task: StageTask) -> str:
    """The class of the state store, as Spark has written it down with the first batch."""
    _, settings, *_ = (task._directory / "checkpoint" / "offsets" / "0").read_text().splitlines()
    return str(json.loads(settings)["conf"][STATE_PROVIDER])


def test_a_log_with_state_of_the_other_kind_is_refused(fleet: MakeFleet) -> None:
    run = fleet(counting("changed-kind"), JOB % ("changed-kind", "auto"))
    run.start("count-0")
    writer = run.writer("changed-kind", 1, flush_rows=10)
    writer.write(table(range(10)))
    writer.close()
    run.until_all_is_read("changed-kind")
    run.release("count-0")

    other = fleet(counting("changed-kind"), JOB % ("changed-kind", "rocksdb"))
    other.run_id, other.group_id, other.generation = run.run_id, run.group_id, run.generation
    other.start("count-0", first=False)

    report = other.tasks["count-0"].report
    assert report.phase is Phase.FAILED
    assert report.error is not None
    assert 'holds state written with task.state = "memory", but the job file now says "rocksdb"' in report.error.message
    assert 'Write task.state = "memory" for this run' in report.error.message
    run.generation = other.generation
    run.start("count-0", first=False)
    run.drain()
    assert len(run.rows("counts")) == 10


def test_a_state_machine_is_not_kept_in_memory() -> None:
    with pytest.raises(PipelineRefused, match=r'stage count uses transformWithState.*Write task.state = "rocksdb"'):
        check_chosen("count", "memory", needs_rocksdb=True)
    check_chosen("count", "auto", needs_rocksdb=True)
    check_chosen("count", "memory", needs_rocksdb=False)


def test_the_kind_of_state_is_one_of_three(tmp_path: Path) -> None:
    assert config_of(tmp_path).task.state == "auto"
    assert config_of(tmp_path, '[task]\nstate = "rocksdb"').task.state == "rocksdb"


def test_late_rows_are_counted_batch_by_batch(fleet: MakeFleet) -> None:
    """Their windows are gone when they come."""
    run = fleet(counting("late"), JOB % ("late", "auto"))
    run.start("count-0")
    writer = run.writer("late", 1, flush_rows=1000)
    # Rows are late by the watermark of the batch before theirs. A record carries the event time of those before it, so
    # that of the third one says that day 0 is over, and the batch of the fourth one has the watermark of day 10.
    for day in (0, 10, 20, 30):
        writer.write(table(range(1), day))
        writer.flush()
        run.until_all_is_read("late")
    for number in range(3):
        writer.write(table(range(4 * number, 4 * number + 4)))
        writer.flush()
        run.until_all_is_read("late")
    run.until(lambda: run.late >= 12)
    [done] = [task.report.progress for task in run.tasks.values()]
    assert done is not None and done.rows == 4 + 3 * 4 and done.batches >= 4 and done.seconds > 0 and done.size > 0
    assert done.watermark_ms is not None and done.behind == {"late": 0}
    [last] = [task.report.last_batch for task in run.tasks.values()]
    assert last is not None and last.state_rows and last.state_bytes and last.late is not None
    assert set(last.ms) == set(BATCH_PHASES) and last.ms["triggerExecution"] >= last.ms["addBatch"]
    writer.close()
    run.drain()
    assert run.late == 12


def _by(rows: DataFrame, time: Column) -> GroupedData:
    return rows.withWatermark("ts", "0 seconds").groupBy(time.alias("w"), "key")


def _counted(rows: DataFrame, time: Column) -> DataFrame:
    return _by(rows, time).agg(F.count("*").alias("n"))


def _distinct(rows: DataFrame) -> DataFrame:
    distinct = rows.withWatermark("ts", "0 seconds").dropDuplicates(["key", "ts"])
    return distinct.groupBy(F.window("ts", "10 minutes").alias("w"), "key").agg(F.count("*").alias("n"))


def _counted_twice(rows: DataFrame) -> DataFrame:
    counts = _counted(rows, F.window("ts", "10 minutes"))
    return counts.groupBy(F.window(F.window_time("w"), "20 minutes"), "key").agg(F.sum("n").alias("n"))


#: Aggregations of rows by key and time, and how many of LATE each must drop by the watermark of 200 to 201 minutes.
LATE = [("a", 1), ("a", 1), ("a", 2), ("b", 3), ("a", 187), ("a", 193), ("a", 199), ("a", 250)]
FORMS: dict[str, tuple[int, Callable[[DataFrame], DataFrame]]] = {
    "tumbling": (7, lambda rows: _counted(rows, F.window("ts", "10 minutes"))),
    # Two windows for each row, of which that of 199 from 195 on is still open.
    "sliding": (13, lambda rows: _counted(rows, F.window("ts", "10 minutes", "5 minutes"))),
    # A late row counts by its own session: that of 187 ends at 197, that of 193 at 203.
    "session": (5, lambda rows: _counted(rows, F.session_window("ts", "10 minutes"))),
    "instants": (7, lambda rows: _counted(rows.where("ts IS NOT NULL"), F.col("ts"))),
    "filtered": (6, lambda rows: _counted(rows.where("key = 'a'"), F.window("ts", "10 minutes"))),
    "sets": (7, lambda rows: _by(rows, F.window("ts", "10 minutes")).agg(F.collect_set("ts").alias("n"))),
    "keys": (7, lambda rows: _by(rows, F.window("ts", "10 minutes")).agg(F.lit(1).alias("n"))),
    # A deduplication drops late rows itself, so none is late in the aggregation behind it.
    "distinct": (7, _distinct),
    # One without a watermark cannot run twice, so the aggregation behind it counts groups.
    "behind": (4, lambda rows: _counted(rows.dropDuplicates(["key", "ts"]), F.window("ts", "10 minutes"))),
    "chained": (7, _counted_twice),
}
OFTEN = ("session", "behind")  # what is counted in its own way


def _all_have_read(run: Fleet, last: Ends) -> bool:
    return all(has_read(task.report.read or {}, last) for task in run.tasks.values())


def _minutes(rows: list[tuple[str, int]]) -> pa.Table:
    keys, minutes = zip(*rows, strict=True)
    return pa.table({"key": keys, "ts": [START + timedelta(minutes=each) for each in minutes]}, schema=SCHEMA)


@pytest.mark.parametrize("forms", [OFTEN, pytest.param(tuple(FORMS), marks=pytest.mark.long)], ids=len)
def test_late_counts_rows_and_not_groups_in_each_kind_of_aggregation(fleet: MakeFleet, forms: tuple[str, ...]) -> None:
    """Spark adds rows up before it drops them, and reports groups."""
    application = Application()
    for form in forms:
        _, function = FORMS[form]
        function.__name__ = form
        application.stage("forms", output=f"{form}-out")(function)
    run = fleet(application, (JOB % ("forms", "auto")).replace("[task]", 'key = ["key"]\n[task]'))
    tasks = [f"{form}-0" for form in forms]
    run.start(*tasks)
    writer = run.writer("forms", 1, flush_rows=1000)
    # A batch drops by the watermark of the batch before it, and the record of a table carries the event time of those
    # before it. So the batch of LATE drops by the times of the second table, also if there are batches in between.
    again = [("a", 200), ("b", 201)]
    for rows in ([("a", 100), ("b", 103)], again, again, [("a", 300), ("b", 300)], LATE):
        writer.write(_minutes(rows))
        writer.flush()
        end = last_rows(run.account.blobs(), ["forms/0"])
        run.until(partial(_all_have_read, run, end))
    run.until(lambda: all(task.is_counted for task in run.tasks.values()))
    assert {name: task.report.late for name, task in run.tasks.items()} == {
        f"{form}-0": FORMS[form][0] for form in forms
    }
    # Rows that were read again to be counted were not read as input.
    assert {task.report.progress.rows for task in run.tasks.values() if task.report.progress} == {8 + len(LATE)}
    writer.close()


def test_a_batch_that_spark_has_reported_before_it_ran_is_counted_once(fleet: MakeFleet, often_idle: None) -> None:
    """A query that has nothing to read is reported as well, under the number of its next batch. If both reports were
    seen at once, late rows counted twice; if the first one was seen with the batch before it, not at all.
    """
    application = Application()
    _, function = FORMS["session"]
    function.__name__ = "idle"
    application.stage("idle", output="idle-out")(function)
    run = fleet(application, (JOB % ("idle", "auto")).replace("[task]", 'key = ["key"]\n[task]'))
    run.start("idle-0")
    [task] = run.tasks.values()
    writer = run.writer("idle", 1, flush_rows=1000)

    def waits() -> bool:
        query = task._query
        return isinstance(query, StreamingQuery) and recent(query)[-1].batchId() > task.report.batch

    def write(rows: list[tuple[str, int]], *, but: list[str]) -> None:
        writer.write(_minutes(rows))
        writer.flush()
        end = last_rows(run.account.blobs(), ["idle/0"])
        run.until(lambda: _all_have_read(run, end) and waits(), but=but)
        run.until(lambda: task.is_counted)

    for minute in (100, 200, 200, 300):
        write([("a", minute)], but=[])
    late = LATE[:4]  # by any watermark of those rows
    for looks in (True, False, True):  # while its rows are read
        before = task.report
        write(late, but=[] if looks else ["idle-0"])
        after = task.report
        assert before.progress is not None and before.last_batch is not None
        assert after.progress is not None and after.last_batch is not None
        assert after.progress.rows - before.progress.rows == len(late)
        # On a slow machine one without rows follows, since the last one made windows due.
        batches = after.last_batch.batch - before.last_batch.batch
        assert after.progress.batches - before.progress.batches == batches > 0
    assert task.report.late == 3 * len(late)
    writer.close()


@dataclass
class Finished:
    """What Spark tells of a finished batch, as far as it is asked for."""

    batch: int
    dropped: tuple[int, ...]
    ran: bool = True
    asked: int = 0

    def batchId(self) -> int:  # noqa: N802  # Spark's name
        self.asked += 1
        return self.batch

    def numInputRows(self) -> int:  # noqa: N802  # Spark's name
        return 10 if self.ran else 0

    def durationMs(self) -> "Finished":  # noqa: N802  # Spark's name
        return self

    def toString(self) -> str:  # noqa: N802  # Java's name
        return "{triggerExecution=500, addBatch=400, somethingNew=7}" if self.ran else "{triggerExecution=3}"

    def stateOperators(self) -> list["Finished"]:  # noqa: N802  # Spark's name
        return [Finished(self.batch, (count,)) for count in self.dropped]

    def numRowsDroppedByWatermark(self) -> int:  # noqa: N802  # Spark's name
        return self.dropped[0]

    def numRowsTotal(self) -> int:  # noqa: N802  # Spark's name
        return 5

    def memoryUsedBytes(self) -> int:  # noqa: N802  # Spark's name
        return 700


def test_all_batches_since_the_last_reading_are_counted_and_no_others_are_read() -> None:
    """Several may have finished between two looks."""
    finished = [Finished(batch, (batch, 1)) for batch in range(100)]
    ms = {"triggerExecution": 500, "addBatch": 400}
    last = LastBatch(99, 10, ms, late=100, state_rows=10, state_bytes=1400)
    assert counted_since(finished, 96, {}) == Counted(99, 3, rows=30, late=97 + 98 + 99 + 3, seconds=1.5, last=last)
    assert [each.batch for each in finished if each.asked] == [96, 97, 98, 99]
    assert counted_since(finished, 99, {}) == Counted(99)
    assert counted_since([], -1, {}) == Counted(-1)
    last = LastBatch(1, 10, ms, late=2 + 40, state_rows=10, state_bytes=1400)
    uncounted = {1: 40, 2: 500}
    assert counted_since(finished[:2], -1, uncounted) == Counted(1, 2, rows=20, late=0 + 1 + 42, seconds=1.0, last=last)
    spent = {99: Spent(0.25, 0.125, 0.0625), 98: Spent(0.5, 0.5, 0.0625)}
    timed = counted_since(finished, 96, {}, spent).with_cpu(0.75, 1.5)
    assert timed.wall_s == {"read": 0.0, "plan": 0.0, "compute": 0.75, "append": 0.625, "rest": 0.125}
    assert timed.cpu_s == {"plan": 0.75, "compute": 1.5, "append": 0.125}
    assert timed.last is not None and timed.last.cpu_ms == {"plan": 250, "compute": 500, "append": 42}
    assert timed.last.ms == {**ms, "compute": 250, "append": 125}
    stateless = Finished(0, ())
    assert counted_since([stateless], -1, {}) == Counted(0, 1, rows=10, seconds=0.5, last=LastBatch(0, 10, ms))


def test_a_look_before_spark_reports_a_batch_keeps_the_figures_of_the_one_before() -> None:
    """By its state a task that moves has its turn, and a page shows it: both knew nothing of it in between."""
    report, figures = TaskReport("count-0", 1, 1, Phase.RUNNING), Figures()
    reported = [Finished(7, (3,))]
    for number in (7, 8):
        figures.ran_through = number  # appended
        report = figures.added(report, counted_since(reported, figures.through, {}))
        assert report.last_batch == LastBatch(7, 10, {"triggerExecution": 500, "addBatch": 400}, 3, 5, 700)
    assert not figures.is_complete and report.progress is not None and report.progress.batches == 1


def test_a_batch_that_is_reported_before_it_has_run_counts_when_it_has() -> None:
    """Until then the report says only that the batches before it are counted."""
    batch, next_waits, following = Finished(7, (3,)), Finished(8, (0,), ran=False), Finished(8, (1,))
    counted = counted_since([batch], 6, {7: 4})
    assert counted.late == 7 and counted.batches == 1
    assert counted_since([batch, next_waits, next_waits], 6, {7: 4}) == counted
    assert counted_since([batch, next_waits, following], 7, {8: 4}).late == 5
    assert counted_since([batch, next_waits, following], 7, {8: 4}).batches == 1
    assert counted_since([next_waits], 6, {7: 4}) == Counted(7)

"""All tasks of a container at once."""

import gc
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application, Collector, Envelope
from samza_azure.logs.record import READ
from samza_azure.machine.clock import boot_time
from samza_azure.messages import (
    Command,
    Drain,
    DrainStep,
    Exit,
    Permit,
    Phase,
    Progress,
    ReleaseTask,
    StartTask,
    TaskReport,
    decode,
)
from samza_azure.spark.jvm.session import compiled, java_class, jvm_of
from samza_azure.stream_io.log import LogReader
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.life import TaskLife
from samza_azure.tasks.tasks import DRAINED_S, Tasks

from .task_driver import PATIENCE_S, Fleet

MANY, MOVES = 40, 4
STREAMS = f"""
[streams.crowded]
partitions = {MANY}
schema = "n int"
"""
DAILY = """
[streams.counted]
partitions = 1
schema = "key string, ts timestamp"
event_time = "ts"
[streams.kept]
partitions = 1
event_time = "ts"
[task]
commit.ms = 0
"""


def test_a_hand_over_does_not_wait_for_tasks_that_start(fleet: Callable[[Application, str], Fleet]) -> None:
    """More tasks than there are threads wait for their turn to start a query, and one that runs is released."""
    application = Application()

    @application.stage("crowded", output="copied")
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, STREAMS + '[task]\n"shutdown.ms" = 600000\n')
    container = Container(run)
    start = [StartTask(f"copy-{number}", 1, 1, True, run.run_id, run.group_id) for number in range(MANY)]
    container.tell(start[0])
    container.until("copy-0", lambda report: report.phase is Phase.RUNNING)
    released = container.task("copy-0")
    with run._context.starts.turn(), run._context.starts.session:
        container.tell(*start[1:], *(ReleaseTask(each.task) for each in start))
        for each in start:  # also one that no thread was left for
            container.until(each.task, lambda report: report.phase is Phase.RELEASED)
        assert released.is_finished.wait(PATIENCE_S), "its query ends meanwhile, too"
    container.end()


def test_tasks_without_a_query_start_and_are_handed_over_while_queries_start(
    fleet: Callable[[Application, str], Fleet],
) -> None:
    """There are more hand-overs than threads that end queries."""
    application = Application()

    @application.task("crowded", output="copied")
    class Copy:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send(envelope.row)

    run = fleet(application, STREAMS + '[streams.copied]\nschema = "n int"\n')
    container = Container(run)
    names = [f"Copy-{number}" for number in range(MANY)]
    with run._context.starts.turn(), run._context.starts.session:
        container.tell(*(StartTask(name, 1, 1, True, run.run_id, run.group_id) for name in names))
        for name in names:
            container.until(name, lambda report: report.phase is Phase.RUNNING)
        container.tell(*(ReleaseTask(name) for name in names))
        for name in names:
            container.until(name, lambda report: report.phase is Phase.RELEASED)
    container.end()


def test_the_last_batch_of_a_drained_task_is_counted_too(fleet: Callable[[Application, str], Fleet]) -> None:
    """Its rows, and those of them that are late. Spark says so only when the task is drained already."""
    application = Application()

    @application.stage("counted", output="kept", partition_by="key")
    def keep(rows: DataFrame) -> DataFrame:
        return rows.where("key IS NOT NULL")

    @application.stage("kept", output="daily")
    def daily(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").count()

    def produce(*days: int) -> None:
        rows = [{"key": "a", "ts": datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=day)} for day in days]
        writer = run.writer("counted", 1, flush_rows=10)
        writer.write(pa.Table.from_pylist(rows), "key")
        writer.close()
        run.hints.poll()

    run, begun_ms = fleet(application, DAILY), int(time.time() * 1000)
    container = Container(run)
    produce(*range(10))
    container.tell(*(StartTask(name, 1, 1, True, run.run_id, run.group_id) for name in ("keep-0", "daily-0")))
    fired = container.until("daily-0", lambda report: (report.progress or Progress()).rows_out > 0)
    assert fired.progress and begun_ms <= (fired.progress.appended_ms or 0) <= time.time() * 1000
    container.tell(ReleaseTask("daily-0"))
    container.until("daily-0", lambda report: report.phase is Phase.RELEASED)
    produce(0, 20)  # the window of the first one's day has come out
    before = container.last["keep-0"].read
    after = container.until("keep-0", lambda report: report.read != before).read
    last = LogReader(run.account.blobs(), f"runs/{run.run_id}/keep-0").tail()
    assert after and last and last.header.meta[READ] == {partition: list(end) for partition, end in after.items()}
    container.tell(Drain(DrainStep.FREEZE, "drain-1"))
    ends = container.until("keep-0", lambda report: report.frozen_for == "drain-1").ends
    assert ends is not None
    container.tell(Drain(DrainStep.FLUSH, "drain-1", ends))
    container.until("keep-0", lambda report: report.phase is Phase.DRAINED)
    container.tell(StartTask("daily-0", 2, 2, False, run.run_id, run.group_id))
    container.until("daily-0", lambda report: (report.phase, report.generation) == (Phase.DRAINED, 2))
    said = container.until("daily-0", lambda report: (report.progress or Progress()).rows > 0, DRAINED_S)
    assert (said.late, said.progress and said.progress.rows) == (1, 2)
    container.end()


def holding(begun: Path, may_end: Path) -> Application:
    """A stage whose batches with rows go on until a file is there."""
    application = Application()

    @application.stage("held", output="copies")
    def copy(rows: DataFrame) -> DataFrame:
        def held(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:  # an earlier batch may have no rows
                if part.num_rows:
                    begun.touch()
                while part.num_rows and not may_end.exists():
                    time.sleep(0.01)  # the pace of asking
                yield part

        return rows.mapInArrow(held, "n int")

    return application


def hold(run: Fleet, begun: Path, partitions: int) -> None:
    """Give the first task of `holding` a batch with three rows, and wait until it has begun."""
    writer = run.writer("held", partitions, flush_rows=10, event_time=None)
    writer.write(pa.table({"n": pa.array([1, 2, 3], pa.int32())}))
    writer.close()
    run.hints.poll()
    deadline = boot_time() + 60
    while not begun.exists():
        assert boot_time() < deadline
        time.sleep(0.01)


def test_the_last_batch_of_a_released_task_is_counted_too(
    fleet: Callable[[Application, str], Fleet], tmp_path: Path
) -> None:
    """Spark says what it has read only when the task is released already."""
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    run = fleet(holding(begun, may_end), '[streams.held]\npartitions = 1\nschema = "n int"\n')
    container = Container(run)
    container.tell(StartTask("copy-0", 1, 1, True, run.run_id, run.group_id))
    container.until("copy-0", lambda report: report.phase is Phase.RUNNING)
    hold(run, begun, partitions=1)
    left = container.until("copy-0", lambda report: (report.progress or Progress()).behind.get("held", 0) > 0)
    assert left.progress and left.progress.rows == 0, (
        "what the first batch with rows reads is not read yet, and not unknown"
    )
    assert left.progress.behind_sources == {"held/0": left.progress.behind["held"]}
    container.tell(ReleaseTask("copy-0"))
    may_end.touch()
    container.until("copy-0", lambda report: report.phase is Phase.RELEASED)
    said = container.until("copy-0", lambda report: (report.progress or Progress()).rows > 0)
    assert (said.phase, said.progress and said.progress.rows) == (Phase.RELEASED, 3)
    container.end()


def test_a_container_ends_when_its_last_task_is_handed_over(
    fleet: Callable[[Application, str], Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two tasks is in a batch that goes on after the other one is released."""
    for limit in ("COUNT_AT_EXIT_S", "CLOSE_S"):  # what else an end waits for
        monkeypatch.setattr(f"samza_azure.tasks.tasks.{limit}", 0.0)
    begun, may_end = tmp_path / "begun", tmp_path / "may end"
    run = fleet(holding(begun, may_end), '[streams.held]\npartitions = 2\nschema = "n int"\n')
    container = Container(run)
    for task in ("copy-0", "copy-1"):
        container.tell(StartTask(task, 1, 1, True, run.run_id, run.group_id))
        container.until(task, lambda report: report.phase is Phase.RUNNING)
    hold(run, begun, partitions=2)
    container.tell(Exit())
    container.until("copy-1", lambda report: report.phase is Phase.RELEASED)
    container._thread.join(0.5)
    assert container._thread.is_alive() and container.last["copy-0"].phase is Phase.RUNNING
    may_end.touch()
    container.until("copy-0", lambda report: report.phase is Phase.RELEASED)
    container.end()


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_task_that_has_ended_keeps_neither_its_state_nor_its_last_batch(
    fleet: Callable[[Application, str], Fleet], fails: bool
) -> None:
    """The container keeps it for its report, and Java calls its batches until it has collected the query."""
    application = Application()

    @F.udf("string")
    def checked(key: str) -> str:
        if key == "bad":
            raise ValueError(key)
        return key

    @application.stage("counted", output="daily")
    def daily(rows: DataFrame) -> DataFrame:
        days = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), checked("key").alias("key"))
        return days.count().select("key", "count")

    def produce(key: str) -> None:
        writer = run.writer("counted", 1, flush_rows=10)
        writer.write(pa.Table.from_pylist([{"key": key, "ts": datetime(2013, 1, 1, tzinfo=UTC)}]))
        writer.close()

    run = fleet(application, DAILY.replace('[streams.kept]\npartitions = 1\nevent_time = "ts"\n', ""))
    run.start("daily-0")
    produce("good")
    run.until_all_is_read("counted")
    task = run.tasks["daily-0"]
    assert task._batches is not None and task._writer is not None and task._writer.held_bytes > 0
    batches, writer = weakref.ref(task._batches), weakref.ref(task._writer)
    if fails:
        produce("bad")
        deadline = boot_time() + 60
        while not task.is_finished.is_set():
            run.look()
            assert boot_time() < deadline
            time.sleep(0.05)
        assert task.report.phase is Phase.FAILED
    else:
        run.release("daily-0")
    gc.collect()
    assert (batches(), writer()) == (None, None)
    assert task.report.batch >= 0


def test_a_query_that_runs_on_behind_the_end_of_its_log_is_not_refused(
    fleet: Callable[[Application, str], Fleet],
) -> None:
    """Without state DRAINED is appended without a batch, and until its query is stopped, a source may say once more
    where it stands. The first such batch counted as a replay; the second failed the query, with a trace in the log."""
    application = Application()

    @application.stage("crowded", output="copied")
    def copy(rows: DataFrame) -> DataFrame:
        return rows

    run = fleet(application, '[streams.crowded]\npartitions = 1\nschema = "n int"\n')
    writer = run.writer("crowded", 1, flush_rows=10, event_time=None)
    writer.write(pa.table({"n": pa.array([1, 2], pa.int32())}))
    writer.close()
    run.start("copy-0")
    run.until_all_is_read("crowded")
    run.flush(run.freeze())
    task, deadline = run.tasks["copy-0"], time.monotonic() + PATIENCE_S
    while task.report.phase is not Phase.DRAINED:  # not `look`, which would end its query
        assert time.monotonic() < deadline, task.report
        task.check(run.drain_order)
        time.sleep(0.05)  # the pace of looking
    query = task._running_query()
    for step in (1, 2):
        before = (query.lastProgress or {})["batchId"]
        task._set_gate(task._gate.changed(step=step))
        while query.isActive and (query.lastProgress or {})["batchId"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # the pace of looking
    assert (query.exception(), query.isActive, task.report.phase) == (None, True, Phase.DRAINED)
    assert run.rows("copied") == [{"n": 1}, {"n": 2}]


class Container:
    """All tasks of a run in a container's loop, on a thread of the test, with its commands and reports.

    It polls no hints: a test does so when it has produced, or its rows are noticed after seconds.
    """

    def __init__(self, run: Fleet) -> None:
        ours, theirs = socket.socketpair()
        self._lines = ours.makefile("rb")
        self._tasks = Tasks(Channel(theirs.detach()), run._context, run.permit)
        self._said: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._tasks.run, daemon=True)
        self.last: dict[str, TaskReport] = {}
        threading.Thread(target=self._listen, daemon=True).start()
        self._thread.start()
        self.tell(Permit(boot_time() + 3600))

    def _listen(self) -> None:  # without a pause: a report that is not read holds up the container
        for line in self._lines:
            self._said.put(line)

    def task(self, name: str) -> TaskLife:
        """The task itself."""
        return self._tasks._tasks[name]

    def tell(self, *commands: Command) -> None:
        """One after the other."""
        for each in commands:
            self._tasks._channel.commands.put(each)

    def until(self, task: str, holds: Callable[[TaskReport], bool], seconds: float = 60) -> TaskReport:
        """Read its reports, until one of this task is as wanted: perhaps the last one that was read."""
        deadline = boot_time() + seconds
        while task not in self.last or not holds(self.last[task]):
            report = decode(self._said.get(timeout=max(deadline - boot_time(), 0.001)))
            if isinstance(report, TaskReport):
                assert report.error is None, report
                self.last[report.task] = report
        return self.last[task]

    def end(self) -> None:
        """Wait for its end. Queries of drained tasks are left then, and the session has more tests to run."""
        self.tell(Exit())
        self._thread.join(60)
        assert not self._thread.is_alive()
        for task in self._tasks._tasks.values():
            if task.begins_to_finish():
                task.finish()


@pytest.mark.long  # test_state moves one once
def test_a_task_that_moves_again_and_again_leaves_nothing_of_sparks_behind(
    fleet: Callable[[Application, str], Fleet], spark: SparkSession
) -> None:
    """Each start left a thread of Spark's for each source, which kept the session of the query, 400 kB; a listener, to
    which Spark handed all events of later queries; three open files for each source, of them two of a selector; an
    allocator of Arrow's and the path of a socket for each source; and a connection by which Java calls Python, with a
    thread of Python's."""
    application = Application()

    @F.udf("string")
    def same(key: str) -> str:
        return key

    @application.stage("wandering", output="copied")
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select(same("key").alias("key"))

    run = fleet(application, '[streams.wandering]\npartitions = 1\nschema = "key string"\n')
    writer = run.writer("wandering", 1, flush_rows=10, event_time=None)
    run.start("copy-0")

    jvm = psutil.Process(jvm_of(spark).java.lang.ProcessHandle.current().pid())
    port = spark.sparkContext._gateway._callback_server.server_socket.getsockname()[1]
    paths = java_class(spark, "java.lang.Class").forName("java.io.DeleteOnExitHook").getDeclaredField("files")
    paths.setAccessible(True)

    def connections() -> int:
        return sum(bool(each.raddr) and each.raddr.port == port for each in jvm.net_connections("tcp"))

    def after_moves() -> list[int]:
        for _ in range(MOVES):
            run.move("copy-0")
            writer.write(pa.Table.from_pylist([{"key": "k"}]))
            writer.flush()
            run.until_all_is_read("wandering")
        threads = jvm_of(spark).java.lang.Thread.getAllStackTraces().keySet().toArray()
        files = Path(f"/proc/{jvm.pid}/fd").iterdir()
        return [
            sum(each.getName().startswith("Idle Worker Monitor") for each in threads),
            spark.sparkContext._jsc.sc().listenerBus().listeners().size(),
            sum(str(each.readlink()) == "anon_inode:[eventpoll]" for each in files),
            java_class(spark, "org.apache.spark.sql.util.ArrowUtils").rootAllocator().getChildAllocators().size(),
            paths.get(None).size(),
        ]

    before, after = after_moves(), after_moves()
    # A slow machine keeps one more worker of Python, with two files, for a while.
    assert all(count - earlier < MOVES for earlier, count in zip(before, after, strict=True)), (before, after)
    assert connections() <= 2  # that of the query that runs, and one by which Java says what it has collected
    writer.close()


def test_a_selector_that_another_one_closes_is_in_nobodys_way(spark: SparkSession) -> None:
    """It was asked for its keys, which a closed selector refuses, each time that anybody opened one."""
    opener = compiled(
        spark,
        "Opener",
        """
        public class Opener {
            public boolean createSimpleWorker() throws java.io.IOException {
                java.nio.channels.Selector selector = java.nio.channels.Selector.open();
                selector.close();
                return selector.isOpen();
            }
        }
        """,
    )
    assert [opener.createSimpleWorker() for _ in range(3)] == [False] * 3

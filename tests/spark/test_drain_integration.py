"""Samza's integration tests of its drain, by name, with the coordinator that they use: Passthrough.

DrainHighLevelApiIntegrationTest and DrainLowLevelApiIntegrationTest put 200 page views into four partitions, drain a
job that is run by one processor, and ask that it finishes, having received some of them, or none if the drain was
requested before the start. Here the coordinator is the real one on Azurite, and so are the tasks, in a container's loop
on the shared session. Asked besides, which upstream does not: what came out is exactly what was read.
"""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import (
    Application,
    Collector,
    Config,
    ConfigError,
    DrainMonitor,
    DrainNotification,
    DrainNotifications,
    Envelope,
    JobCoordinatorListener,
    StorageUnavailable,
    TaskCoordinator,
)
from samza_azure.account import Storage
from samza_azure.commands.delete import delete_all
from samza_azure.coordinator import load_factory
from samza_azure.errors import Ending, Verdict
from samza_azure.group.control import Control, RunPhase
from samza_azure.host.status import control_of
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Alive, Command, DrainStep, Exit, Permit, Phase, Ready, TaskReport, decode
from samza_azure.storage.connection import Account
from samza_azure.stream_io.arrow import decode as decode_rows
from samza_azure.stream_io.log import LogReader
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.tasks import Tasks

from .task_driver import PATIENCE_S, Fleet

RUN_ID = "DrainTestId"
PARTITIONS, PAGE_VIEWS = 4, 200
POLL_S = 0.1
JOB = f"""
[job.coordinator]
factory = "samza_azure.PassthroughJobCoordinatorFactory"
profile = "fast"
[streams.PageView]
partitions = {PARTITIONS}
schema = "viewId long, pageKey string, memberId int"
"""
RECEIVED = """
[streams.received]
schema = "viewId long"
"""
SHUFFLED = """
[streams.p11]
partitions = 2
[streams.p21]
partitions = 2
"""
MakeFleet = Callable[[Application, str], Fleet]


#: After these rows the drain is requested, and the rest comes while it is under way.
BEFORE = 80


def high_level() -> Application:
    """Upstream's: map, partitionBy(memberId), map(key * 31), partitionBy, sink."""
    application = Application()

    @application.stage("PageView", output="p11", partition_by="memberId")
    def by_member(views: DataFrame) -> DataFrame:
        return views.select("viewId", "memberId")

    @application.stage("p11", output="p21", partition_by="key")
    def by_key(views: DataFrame) -> DataFrame:
        return views.select("viewId", (F.col("memberId") * 31).alias("key"))

    @application.stage("p21", output="received")
    def sink(views: DataFrame) -> DataFrame:
        return views.select("viewId")

    return application


def without_reshuffle_stages() -> Application:
    application = Application()

    @application.stage("PageView", output="received")
    def sink(views: DataFrame) -> DataFrame:
        return views.select("viewId")

    return application


def low_level(drains: list[str]) -> Application:
    """Upstream's StreamTask is a DrainListenerTask and an EndOfStreamListenerTask; a stream here has no end."""
    application = Application()

    @application.task("PageView", output="received")
    class Sink:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send({"viewId": envelope.row["viewId"]})

        def on_drain(self, collector: Collector) -> None:
            drains.append("onDrain")

    return application


class Alone(JobCoordinatorListener):
    """The processor: its coordinator, and the container's loop on a thread of the test."""

    def __init__(self, run: Fleet, config: Config) -> None:
        ours, theirs = socket.socketpair()
        self._run, self._lines = run, ours.makefile("rb")
        self._tasks = Tasks(Channel(theirs.detach()), run._context, run.permit)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._listen, self._tasks.run)]
        self._threads.append(threading.Thread(target=self._poll, daemon=True))
        self.steps: queue.Queue[str] = queue.Queue()
        self.failed: list[TaskReport] = []
        self.coordinator = load_factory(config.coordinator.factory).get_job_coordinator("alone", config)
        self.coordinator.set_listener(self)
        self._tell(Permit(0.0))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self.coordinator.report(Ready(self._run.pipeline.plan))
        self.coordinator.start()

    def on_command(self, command: Command) -> None:
        self._tell(command)

    def on_drain(self, notification: DrainNotification) -> None:
        self.steps.put(notification.reached)

    def on_coordinator_stop(self) -> None:
        self._ended.set()

    def on_coordinator_failure(self, error: Exception) -> None:
        self._ended.set()

    def finished(self) -> Ending | None:
        """Wait for its end. Queries of drained tasks are left then, and the session has more tests to run."""
        assert self._ended.wait(PATIENCE_S), self.failed
        self._tell(Exit())
        self._threads[1].join(PATIENCE_S)
        for task in self._tasks._tasks.values():
            if task.begins_to_finish():
                task.finish()
        return self.coordinator.ending

    def _tell(self, command: Command) -> None:
        self._tasks._channel.commands.put(command)

    def _listen(self) -> None:
        for line in self._lines:
            report = decode(line)
            # A task that waits for a slow Azurite says why it starts again, and that is no failure.
            if isinstance(report, TaskReport) and report.error is not None and report.phase is not Phase.RESTART:
                self.failed.append(report)
            if not isinstance(report, Alive):
                self.coordinator.report(report)  # type: ignore[arg-type]

    def _poll(self) -> None:
        """Read the hints, as a container does."""
        while not self._ended.wait(POLL_S):
            with suppress(StorageUnavailable):
                self._run.hints.poll()


class Job:
    """One of upstream's jobs, and the rows in and out."""

    def __init__(self, run: Fleet, storage: Storage) -> None:
        self.run = run
        self.config = replace(run.config, storage=storage, app=replace(run.config.app, run_id=RUN_ID))
        delete_all(self.config, Account.from_config(storage), yes=True)  # what other tests have left
        self.drains = DrainNotifications.of(self.config)
        self.processor = Alone(run, self.config)
        self.monitored: list[DrainNotification] = []
        self.monitor = DrainMonitor(self.drains, RUN_ID, POLL_S)
        self.monitor.register_drain_callback(self.monitored.append)
        self.monitor.start()
        self._fed = 0

    def feed(self, count: int) -> None:
        """As many page views, to each partition in turn."""
        writer = self.run.writer("PageView", PARTITIONS, flush_rows=PARTITIONS, event_time=None)
        numbers = range(self._fed, self._fed + count)
        columns = {
            "viewId": pa.array(numbers, pa.int64()),
            "pageKey": [f"p{number % 7}" for number in numbers],
            "memberId": pa.array([number % 10 for number in numbers], pa.int32()),
        }
        writer.write(pa.table(columns))
        writer.close()
        self._fed += count

    def received(self) -> list[int]:
        self.run.run_id = RUN_ID
        with suppress(ConfigError):  # no task has a log yet
            return sorted(int(str(row["viewId"])) for row in self.run.rows("received"))
        return []

    def read(self) -> list[int]:
        """The page views before the positions at which the drained run has ended."""
        control = self.control()
        found = []
        for number in range(PARTITIONS):
            reader = LogReader(self.run.account.blobs(), f"streams/PageView/{number}")
            scan = reader.scan((0, 0), until=control.positions[f"PageView/{number}"])
            found += [
                row
                for data in reader.fetch(scan.parts)
                for batch in decode_rows(data)
                for row in batch["viewId"].to_pylist()
            ]
        return sorted(found)

    def control(self) -> Control:
        async def ask() -> Control | None:
            account = Account.from_config(self.config.storage)
            try:
                return await control_of(account)
            finally:
                await account.aclose()

        control = asyncio.run(ask())
        assert control is not None
        return control

    def until_some_are_received(self) -> None:
        deadline = boot_time() + PATIENCE_S
        while not self.received():
            assert boot_time() < deadline and not self.processor.failed, self.processor.failed
            time.sleep(POLL_S)  # the pace of asking

    def finishes(self) -> None:
        """Upstream: `TestRunner.run` does not throw. And the monitor has called once, nothing is lost or doubled."""
        ending = self.processor.finished()
        assert ending is not None and (ending.code, ending.drained) == (Verdict.DONE, True), ending
        control = self.control()
        assert (control.run_id, control.phase, control.past) == (RUN_ID, RunPhase.DRAINED, (RUN_ID,))
        self.monitor_has_called()
        assert self.received() == self.read()
        assert not self.processor.failed

    def monitor_has_called(self) -> None:
        deadline = boot_time() + PATIENCE_S
        while not self.monitored:
            assert boot_time() < deadline
            time.sleep(POLL_S)  # the pace of asking
        assert [each.run_id for each in self.monitored] == [RUN_ID]


MakeJob = Callable[..., Job]


@pytest.fixture
def make(fleet: MakeFleet, storage: Storage) -> Iterator[MakeJob]:
    made: list[Job] = []

    def job(application: Application, streams: str = "") -> Job:
        made.append(Job(fleet(application, JOB + streams), storage))
        return made[-1]

    yield job
    for each in made:
        each.monitor.stop()
        each.processor.coordinator.stop()


def drained_while_it_runs(job: Job) -> None:
    """Upstream: the drain is written after 5 or 10 s, and 0 < received < 200."""
    job.feed(BEFORE)
    job.processor.start()
    job.until_some_are_received()
    job.drains.write()
    while job.processor.steps.get(timeout=PATIENCE_S) != DrainStep.FLUSH:
        pass
    job.feed(PAGE_VIEWS - BEFORE)
    job.finishes()
    assert 0 < len(job.received()) <= BEFORE < PAGE_VIEWS


def drained_before_the_start(job: Job) -> None:
    """Upstream: the drain is written before the run, and received == 0."""
    job.feed(PAGE_VIEWS)
    job.drains.write(RUN_ID)
    job.monitor_has_called()  # nobody coordinates yet, so the request alone decides
    job.processor.start()
    job.finishes()
    assert job.received() == []


@pytest.mark.long  # test_runs has it without the coordinator, tests/end_to_end with processors
def test_drain(make: MakeJob) -> None:
    drained_while_it_runs(make(high_level(), SHUFFLED))


@pytest.mark.long  # test_runs has it without the coordinator
def test_drain_without_reshuffle_stages(make: MakeJob) -> None:
    drained_while_it_runs(make(without_reshuffle_stages()))


@pytest.mark.long  # test_runs has it without the coordinator
def test_drain_on_container_start(make: MakeJob) -> None:
    drained_before_the_start(make(high_level(), SHUFFLED))


@pytest.mark.long  # test_runs has it without the coordinator
def test_drain_on_container_start_without_reshuffle_stages(make: MakeJob) -> None:
    drained_before_the_start(make(without_reshuffle_stages()))


@pytest.mark.long  # test_handlers has it without the coordinator
def test_drain_of_the_low_level_api(make: MakeJob) -> None:
    drains: list[str] = []
    drained_while_it_runs(make(low_level(drains), RECEIVED))
    assert len(drains) == PARTITIONS, "once for each task; upstream counts them and asks nothing"


@pytest.mark.long  # test_handlers has it without the coordinator
def test_drain_on_container_start_of_the_low_level_api(make: MakeJob) -> None:
    drains: list[str] = []
    drained_before_the_start(make(low_level(drains), RECEIVED))
    assert len(drains) == PARTITIONS


@pytest.mark.long  # test_handlers has it without the coordinator
def test_a_run_ends_when_all_its_tasks_have_asked_for_their_shutdown(make: MakeJob) -> None:
    """Nobody requests a drain. What was read is there once, and the next run would begin behind it."""
    application = Application()

    @application.task("PageView", output="received")
    class Sink:
        def __init__(self) -> None:
            self.left = 5

        def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
            collector.send({"viewId": envelope.row["viewId"]})
            self.left -= 1
            if not self.left:
                coordinator.shutdown()

    job = make(application, RECEIVED)
    job.feed(BEFORE)
    job.processor.start()
    job.finishes()
    job.feed(PAGE_VIEWS - BEFORE)
    assert job.received() == list(range(BEFORE))
    assert job.control().drain.by == "its tasks, which have all shut down"  # type: ignore[union-attr]

"""The container: the supervisor's child that holds the Spark session and runs the assigned tasks.

    python -m samza_azure.spark.container JOB_FILE --channel FD --directory DIRECTORY

It does what it is told over the channel and reports how each task is; it decides nothing. Promised: without the
supervisor it ends at once, and its JVM with it. A task's trouble, a query that dies, never takes the container down.
The directory is scratch space and is emptied at the start.
"""

import argparse
import logging
import os
import queue
import shutil
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.protocol.messages import (
    Command,
    Drain,
    Exit,
    Permit,
    Phase,
    Ready,
    Rejected,
    ReleaseTask,
    Report,
    StartTask,
    TaskError,
    TaskReport,
    decode,
    encode,
)
from samza_azure.spark.account import account, to_environment
from samza_azure.spark.gate import PermitFile, boot_time
from samza_azure.spark.hints import HintBoard
from samza_azure.spark.pipeline import Pipeline, analyse_pipeline, load
from samza_azure.spark.secrets import Secrets
from samza_azure.spark.session import java_process, start_session
from samza_azure.spark.source import LogSource
from samza_azure.spark.task import Surroundings, Task
from samza_azure.spark.watermark import probe

log = logging.getLogger(__name__)

#: How often tasks are looked at, and how often a task's batches are told.
LOOK_S = 0.25
LOOK_DRAINING_S = 0.05
TELL_S = 0.5


class Channel:
    """The socket to the supervisor. Its end is ours."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self.commands: queue.Queue[Command | None] = queue.Queue()  # None: look at the tasks now
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def tell(self, report: Report) -> None:
        """One report, whole. From the main thread."""
        try:
            self._socket.sendall(encode(report))
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        """A thread of its own, so that the end of the channel is noticed whatever the others do."""
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self.commands.put(decode(line))  # type: ignore[arg-type]
        except OSError:
            pass
        os._exit(1)  # the JVM and the workers follow: see `java.die_with_parent`


class Container:
    """The tasks of one processor, on one Spark session."""

    def __init__(self, channel: Channel, around: Surroundings, permit: PermitFile) -> None:
        self._channel = channel
        self._around = around
        self._patience_s = around.config.task.shutdown_ms / 1000
        self._permit = permit
        self._drain = Drain(None)
        self._tasks: dict[str, Task] = {}
        self._told: dict[str, tuple[float, TaskReport]] = {}
        self._threads = ThreadPoolExecutor(32, "task")

    def run(self) -> None:
        """Do as told until Exit."""
        while True:
            try:
                command = self._channel.commands.get(timeout=LOOK_S if self._drain.step is None else LOOK_DRAINING_S)
            except queue.Empty:
                command = None
            if isinstance(command, Exit):
                return self._exit()
            if command is None:
                self._look()
            else:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Permit(until):
                self._permit.set(until)
            case StartTask():
                self._start(command)
            case ReleaseTask(name):
                self._release(name)
            case Drain():
                self._drain = command
                for task in self._tasks.values():
                    task.follow(command)

    def _start(self, command: StartTask) -> None:
        before = self._tasks.get(command.task)
        if before is not None:
            known = before.start_message
            if (known.generation, known.attempt) >= (command.generation, command.attempt):
                return  # repeated: the report says how it is
        try:
            task = Task(self._around, command)
        except Exception as error:  # noqa: BLE001  # a task's trouble never takes the container down
            self._channel.tell(_failed(command, error, self._around))
            return
        self._tasks[command.task] = task
        self._around.hints.wanted = True
        task.follow(self._drain)
        self._threads.submit(_start_after, before, task, self._patience_s)
        self._tell(task)

    def _release(self, name: str) -> None:
        task = self._tasks.get(name)
        if task is not None:
            self._threads.submit(task.release, self._patience_s)

    def _look(self) -> None:
        for task in list(self._tasks.values()):
            try:
                task.check(self._drain)
                task.count_late()
            except Exception:
                log.exception("%s could not be looked at", task.name)
            self._tell(task)
            if task.is_over and task.begins_to_finish():
                self._threads.submit(task.finish)
        self._around.hints.wanted = any(not task.is_over for task in self._tasks.values())

    def _tell(self, task: Task) -> None:
        """A new phase at once, new batches now and then."""
        now, report = boot_time(), task.report
        told_at, told = self._told.get(task.name, (0.0, None))
        if report == told:
            return
        is_news = told is None or _without_batches(report) != _without_batches(told)
        if is_news or now - told_at >= TELL_S:
            self._told[task.name] = (now, report)
            self._channel.tell(report)

    def _exit(self) -> None:
        """Release everything that runs; what is released is told."""
        for task in self._tasks.values():
            if not task.is_over:
                self._threads.submit(task.release, self._patience_s)
        wait = threading.Event()
        while any(not task.is_over for task in self._tasks.values()):
            for task in self._tasks.values():
                self._tell(task)
            wait.wait(0.02)
        for task in self._tasks.values():
            self._tell(task)


def _start_after(before: Task | None, task: Task, patience_s: float) -> None:
    """Start a task; if it ran here before, only when that query is gone: their names and files must not meet."""
    if before is not None:
        before.release(patience_s)
        before.is_finished.wait()
    task.start()


def _without_batches(report: TaskReport) -> TaskReport:
    return replace(report, batch=-1, late=0, read=None)


def _failed(command: StartTask, error: Exception, around: Surroundings) -> TaskReport:
    message, trace = around.clean(str(error)), around.clean("".join(traceback.format_exception(error)))
    return TaskReport(
        command.task, command.generation, command.attempt, Phase.FAILED, error=TaskError(message[:4096], trace[-12288:])
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to exit. 2: the pipeline was rejected, and the supervisor knows why."""
    parser = argparse.ArgumentParser(prog="python -m samza_azure.spark.container", description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the supervisor")
    parser.add_argument("--directory", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("azure", "py4j", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    channel = Channel(chosen.channel)
    try:
        return _run(chosen.job, chosen.directory.absolute(), channel)
    except ConfigError as error:
        channel.tell(Rejected(str(error)))
        return ConfigError.exit_code


def _run(job: Path, directory: Path, channel: Channel) -> int:
    config = Config.load(job)
    _emptied(directory)
    permit = PermitFile(directory / "permit")
    spark = _session(config, directory)
    threading.Thread(target=_die_with_java, args=[spark], name="java", daemon=True).start()
    pipeline = _pipeline(spark, config, directory)
    hints = HintBoard(account().hints(), directory / "hints")
    hints.start()
    around = Surroundings(
        spark=spark,
        config=config,
        pipeline=pipeline,
        blobs=account().blobs(),
        hints=hints,
        directory=directory,
        may_append=permit.holds,
        clean=Secrets(config).removed_from,
        changed=lambda: channel.commands.put(None),
        starting=threading.Lock(),
    )
    channel.tell(Ready(pipeline.plan))
    Container(channel, around, permit).run()
    return 0


def _session(config: Config, directory: Path) -> SparkSession:
    """The session, its workers able to import the pipeline and to reach the account."""
    beside = str(config.path.absolute().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (beside, os.environ.get("PYTHONPATH"))))
    os.environ.update(to_environment(config.storage))
    spark = start_session(config.app.name, config.spark, directory)
    probe(spark)
    spark.dataSource.register(LogSource)
    return spark


def _die_with_java(spark: SparkSession) -> None:
    """Without its JVM a container can only fail its tasks. The supervisor starts another."""
    java_process(spark).wait()
    log.error("The JVM ended")
    sys.stderr.flush()
    os._exit(1)


def _pipeline(spark: SparkSession, config: Config, directory: Path) -> Pipeline:
    return analyse_pipeline(spark, load(config), config, directory / "analysis")


def _emptied(directory: Path) -> None:
    """What a container before us left there means nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # without waiting for Spark's threads: the JVM dies with us

"""Tasks of your own, without Spark: a group of processes shares numbered tasks, each run by one of them at a time.

Derive from `SharedTasks`, override `on_start` and `on_stop`, and enter it as a context manager. The two are called one
after another on a thread of their own and may block: a task is released only when `on_stop` has returned, and no other
process starts it before that (except after `task.shutdown.ms`, or when this process is considered dead).

A task's writes must carry its generation, which is higher with each owner, to a system that refuses lower ones.
`may_act` says whether this process may still act for the group, but no clock can stop a write that is on its way.
"""

import hashlib
import logging
import queue
import threading
import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from samza_azure.coordinator import JobCoordinator, TaskHost
from samza_azure.machine.clock import boot_time
from samza_azure.messages import (
    Command,
    Drain,
    DrainStep,
    Exit,
    Permit,
    Phase,
    Plan,
    Ready,
    ReleaseTask,
    StagePlan,
    StartTask,
    TaskError,
    TaskReport,
)
from samza_azure.names import STAGE

log = logging.getLogger(__name__)

#: Reports are sent together, but none waits longer than this, in seconds.
TOGETHER_S = 0.02


def plan_of(name: str, count: int) -> Plan:
    """The plan of `count` tasks `name-0`, `name-1`, …, which read no stream. Groups with other tasks do not mix."""
    fingerprint = hashlib.sha256(f"{name}/{count}".encode()).hexdigest()
    STAGE.checked(name)
    return Plan((StagePlan(name, (), name, count),), {}, fingerprint)


@dataclass(frozen=True, slots=True)
class _TaskEnded:
    """A start of a task has ended by itself, and why, if that is a failure."""

    start: StartTask
    why: str


class SharedTasks(TaskHost):
    """This process's share of the tasks `name-0` to `name-<count - 1>`. As a context manager it joins and leaves.

    Example:
        class Mine(SharedTasks):
            def on_start(self, task: str, generation: int) -> None:
                print("runs here", task, generation)

            def on_stop(self, task: str) -> None:
                print("moves", task, "until", self.stop_by)

        coordinator = AzureJobCoordinatorFactory().get_job_coordinator("one", Config.load("job.toml"))
        with Mine(coordinator, "partition", 16) as mine:
            print(mine.tasks, mine.may_act)
    """

    def __init__(self, coordinator: JobCoordinator, name: str, count: int) -> None:
        self.coordinator = coordinator
        self._plan = plan_of(name, count)
        self._commands: queue.SimpleQueue[Command | _TaskEnded | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._obey, name="tasks", daemon=True)
        self._tasks: dict[str, StartTask] = {}
        self._until = 0.0
        self._draining = False
        self._said: list[TaskReport] = []  # not reported yet
        self._tell_by = 0.0
        self._ended = threading.Event()
        self.error: Exception | None = None
        self._stop_by: dict[str, float | None] = {}
        self._stopping = ""

    def on_start(self, task: str, generation: int) -> None:
        """Start a task. If this raises, the task has failed and is tried again, up to `task.restart.limit`."""

    def on_stop(self, task: str) -> None:
        """Stop a task. It is released when this returns."""

    def ended(self, task: str, why: str = "") -> None:
        """Say that a task which runs here has ended by itself. With a reason it has failed, as if `on_start` had raised
        it; without one it starts again soon. `on_stop` is not called. Call it from any thread.

        Example:
            mine.ended("partition-3", "its connection was lost")
        """
        if (start := self._tasks.get(task)) is not None:
            self._commands.put(_TaskEnded(start, why))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that run here."""
        return tuple(sorted(self._tasks.copy()))

    @property
    def stop_by(self) -> float | None:
        """For `on_stop`: when it should have returned, in seconds of CLOCK_BOOTTIME, because this processor's machine
        ends soon after; None: only `task.shutdown.ms` counts. A notice that comes while `on_stop` runs counts, too.
        """
        return self._stop_by.get(self._stopping)

    @property
    def may_act(self) -> bool:
        """Whether this process's permit is valid. If not, start and write nothing: others may have our tasks."""
        return boot_time() < self._until

    def start(self) -> None:
        """Join the group, to get a share of the tasks. Returns at once.

        Example:
            mine = Mine(coordinator, "partition", 16)
            mine.start()
        """
        self.coordinator.set_listener(self)
        self._thread.start()
        self.coordinator.report(Ready(self._plan))
        self.coordinator.start()

    def stop(self) -> None:
        """Release all tasks, leave, and wait until that is done.

        Raises:
            SamzaAzureError: the coordinator has failed; this is its error.

        Example:
            mine.stop()  # as leaving the context manager does
        """
        self.coordinator.stop()
        self._ended.wait()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def on_command(self, command: Command) -> None:
        if isinstance(command, Permit):
            self._until = command.until  # not through the queue: an `on_start` that runs must see it
            return
        if isinstance(command, ReleaseTask):
            self._stop_by[command.task] = command.by  # nor this one, for an `on_stop` that runs
        elif isinstance(command, StartTask):
            self._stop_by.pop(command.task, None)
        self._commands.put(command)

    def on_coordinator_stop(self) -> None:
        self._end()

    def on_coordinator_failure(self, error: Exception) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        self._until = 0.0
        self._commands.put(None)
        self._ended.set()

    def _obey(self) -> None:
        while (command := self._commands.get()) is not None:
            self._do(command)
            if self._commands.empty() or boot_time() > self._tell_by:
                self._tell()
        for task in self.tasks:  # the coordinator failed, and requested no release
            self._release(task, Phase.RELEASED)
        self._tell()

    def _do(self, command: Command | _TaskEnded) -> None:
        match command:
            case StartTask():
                self._start(command)
            case ReleaseTask(task=task):
                self._release(task, Phase.RELEASED)
            case Drain(step=step):
                self._drain(step)
            case _TaskEnded(start=start, why=why):
                if self._tasks.get(start.task) is start:
                    del self._tasks[start.task]
                    self._say(start, Phase.FAILED if why else Phase.RESTART, TaskError(why, "") if why else None)
            case Exit() | Permit():
                pass

    def _tell(self) -> None:
        """Send the reports of several tasks together, so that they are written in one row."""
        said, self._said = self._said, []
        self.coordinator.report(*said)

    def _start(self, start: StartTask) -> None:
        if self._draining:  # there is nothing left to do
            self._say(start, Phase.DRAINED)
            return
        self._tasks[start.task] = start  # so that `ended` knows it, also before this returns
        try:
            self.on_start(start.task, start.generation)
        except Exception as error:
            log.exception("Task %s failed to start", start.task)
            del self._tasks[start.task]
            self._fail(start, error)
            return
        self._say(start, Phase.RUNNING)

    def _release(self, task: str, phase: Phase) -> None:
        start = self._tasks.pop(task, None)
        if start is None:
            return
        self._stopping = task
        try:
            self.on_stop(task)
        except Exception as error:
            log.exception("Task %s failed to stop", task)
            self._fail(start, error)
            return
        self._say(start, phase)

    def _drain(self, step: DrainStep | None) -> None:
        """Release all tasks for good. Until FLUSH a drain may be cancelled, so nothing happens before."""
        self._draining = step is DrainStep.FLUSH
        if self._draining:
            for task in self.tasks:
                self._release(task, Phase.DRAINED)

    def _say(self, start: StartTask, phase: Phase, error: TaskError | None = None) -> None:
        if not self._said:
            self._tell_by = boot_time() + TOGETHER_S
        self._said.append(TaskReport(start.task, start.generation, start.attempt, phase, error=error))

    def _fail(self, start: StartTask, error: Exception) -> None:
        self._say(start, Phase.FAILED, TaskError(f"{type(error).__name__}: {error}", traceback.format_exc()))

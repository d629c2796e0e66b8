"""Tasks of your own, without Spark: a group of processes shares numbered tasks, each run by one of them at a time.

Derive from `SharedTasks`, say what to do when a task comes and when it goes, and enter it. Both are called one after
another on a thread of their own and may take their time: a task counts as given up only when `on_stop` has returned,
and nobody else starts it before that (except after `task.shutdown.ms`, or when this process is taken for dead).

What a task writes must carry its generation, which is higher with each owner, to somewhere that refuses lower ones;
`may_act` says whether this process still has the word of the group, but no clock can stop a write that is on its way.
"""

import hashlib
import logging
import queue
import threading
import traceback
from types import TracebackType
from typing import Self

from samza_azure.coordinator import JobCoordinator, JobCoordinatorListener
from samza_azure.machine import boot_time
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

log = logging.getLogger(__name__)

#: A task that started is told after so long, whatever else is to start.
TOGETHER_S = 0.02


def plan_of(name: str, count: int) -> Plan:
    """The plan of `count` tasks `name-0`, `name-1`, …, which read no stream. Groups with other tasks do not mix."""
    fingerprint = hashlib.sha256(f"{name}/{count}".encode()).hexdigest()
    return Plan((StagePlan(name, (), name, count),), {}, fingerprint)


class SharedTasks(JobCoordinatorListener):
    """This process's share of the tasks `name-0` to `name-<count - 1>`. A context manager: in, a member; out, gone."""

    def __init__(self, coordinator: JobCoordinator, name: str, count: int) -> None:
        self.coordinator = coordinator
        self._plan = plan_of(name, count)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._obey, name="tasks", daemon=True)
        self._tasks: dict[str, StartTask] = {}
        self._until = 0.0
        self._draining = False
        self._said: list[TaskReport] = []  # and not told yet
        self._tell_by = 0.0
        self._ended = threading.Event()
        self.error: Exception | None = None

    def on_start(self, task: str, generation: int) -> None:
        """A task is ours from now on. An exception counts as its failure; it is tried again, up to the limit."""

    def on_stop(self, task: str) -> None:
        """A task is to be given up, and is when this returns."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that run here."""
        return tuple(sorted(self._tasks.copy()))

    @property
    def may_act(self) -> bool:
        """Has the group heard of us lately? If not, start nothing and write nothing: others may have our tasks."""
        return boot_time() < self._until

    def start(self) -> None:
        """Join the group and take a share. Returns at once."""
        self.coordinator.set_listener(self)
        self._thread.start()
        self.coordinator.report(Ready(self._plan))
        self.coordinator.start()

    def stop(self) -> None:
        """Give up all tasks, leave, and wait until that is done. Raises what ended the coordinator, if it failed."""
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
            self._until = command.until  # at once: a task that takes its time must see it
        else:
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
        for task in self.tasks:  # the coordinator failed: nobody asked for them back
            self._release(task, Phase.RELEASED)
        self._tell()

    def _do(self, command: Command) -> None:
        match command:
            case StartTask():
                self._start(command)
            case ReleaseTask(task=task):
                self._release(task, Phase.RELEASED)
            case Drain(step=step):
                self._drain(step)
            case Exit() | Permit():
                pass

    def _tell(self) -> None:
        """At once, what happened to many tasks: others wait for it, and a row is not written for each of them."""
        said, self._said = self._said, []
        self.coordinator.report(*said)

    def _start(self, start: StartTask) -> None:
        if self._draining:  # there is nothing left to do in it
            self._say(start, Phase.DRAINED)
            return
        try:
            self.on_start(start.task, start.generation)
        except Exception as error:
            log.exception("Task %s does not start", start.task)
            self._fail(start, error)
            return
        self._tasks[start.task] = start
        self._say(start, Phase.RUNNING)

    def _release(self, task: str, phase: Phase) -> None:
        start = self._tasks.pop(task, None)
        if start is None:
            return
        try:
            self.on_stop(task)
        except Exception as error:
            log.exception("Task %s does not stop as it should", task)
            self._fail(start, error)
            return
        self._say(start, phase)

    def _drain(self, step: DrainStep | None) -> None:
        """A drained task is given up for good. Until FLUSH a drain may be cancelled, so nothing happens before."""
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

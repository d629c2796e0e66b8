"""All tasks of one container: controlled over the channel, checked several times a second, and reported."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from samza_azure.machine.clock import boot_time
from samza_azure.messages import (
    Alive,
    Command,
    Drain,
    DrainAsked,
    Exit,
    KeepReplicas,
    Permit,
    Phase,
    ReleaseTask,
    StartTask,
    TaskReport,
)
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.failure import reported
from samza_azure.tasks.gate_files import PermitFile
from samza_azure.tasks.handler import CLOSE_S
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.life import TaskLife
from samza_azure.tasks.stage_task import COUNT_LOOK_S

log = logging.getLogger(__name__)

#: Intervals of checking tasks, also while a run drains; of reporting a task's batches; and of a sign of life.
LOOK_S = 0.25
LOOK_DRAINING_S = 0.05
TELL_S = 0.5
LIFE_S = 1.0
#: The interval of reporting a task's other figures while it has no new batches.
TELL_PROGRESS_S = 10.0
#: At its end, this process waits this long for the last figures of released tasks.
COUNT_AT_EXIT_S = 1.0
#: A drained query is stopped after this time.
DRAINED_S = 5.0
#: A container without a task for so long warms up: the leader has had the time to give it one.
WARM_UP_AFTER_S = 2.0


class WarmUp(Protocol):
    """What a container does while it has had no task yet."""

    def begin(self) -> None:
        """Begin, in another thread. Further calls do nothing."""

    def stop(self) -> None:
        """End it, for good, without waiting."""


class NoWarmUp:
    """For tasks that nothing makes faster."""

    def __init__(self, context: ContainerContext | None = None) -> None:
        """The context of the tasks."""

    def begin(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Tasks:
    """The tasks of one processor."""

    def __init__(
        self,
        channel: Channel,
        context: ContainerContext,
        permit: PermitFile,
        alive: Callable[[], Alive] = Alive,
        warm_up: WarmUp | None = None,
    ) -> None:
        """`alive` shows that what the tasks run on answers."""
        self._warm_up = warm_up or NoWarmUp()
        self._ready_at = boot_time()
        self._channel = channel
        self._alive = alive
        self._context = context
        self._patience_s = context.config.task.shutdown_ms / 1000
        self._permit = permit
        self._drain = Drain(None)
        self._tasks: dict[str, TaskLife] = {}
        self._counted_at = 0.0
        self._alive_at = -LIFE_S
        self._drained: dict[TaskLife, float] = {}  # since when
        self._releasing: dict[str, TaskLife] = {}  # those that were told to release
        self._reported: dict[str, tuple[float, TaskReport]] = {}
        # Three pools: a start may wait long, the end of a query may take long, and a hand-over waits for neither. A
        # thread for each task, because a start that waits for its turn must not keep others from being begun.
        count = len(context.pipeline.plan.tasks())
        self._starts = ThreadPoolExecutor(count, "start")
        self._releases = ThreadPoolExecutor(count, "release")
        self._finishes = ThreadPoolExecutor(32, "finish")

    def run(self) -> None:
        """Carry out commands until Exit. Each sign of life shows that this loop runs."""
        while True:
            self._show_life()
            try:
                command = self._channel.commands.get(timeout=LOOK_S if self._drain.step is None else LOOK_DRAINING_S)
            except queue.Empty:
                command = None
            if isinstance(command, Exit):
                self._warm_up.stop()
                return self._exit()
            if command is None:
                self._look()
            else:
                self._obey(command)

    def _show_life(self) -> None:
        """Send a sign of life, once a second. Without one for some seconds the tasks are given to others, so a look at
        many tasks on a busy machine must not hold it up.
        """
        if boot_time() - self._alive_at >= LIFE_S:
            self._channel.tell(self._alive())
            self._alive_at = boot_time()

    def _obey(self, command: Command) -> None:
        match command:
            case Permit(until):
                self._permit.set(until)
            case StartTask():
                self._warm_up.stop()
                self._start(command)
            case ReleaseTask(name, by):
                self._release(name, by)
            case KeepReplicas():
                context = self._context
                context.replicas.keep(command, context.blobs, context.hints, context.directory, self._channel.tell)
            case Drain():
                self._drain = command
                if command.step is not None:
                    self._warm_up.stop()  # the tasks that flush may need this machine
                for task in self._tasks.values():
                    task.follow(command)

    def _start(self, command: StartTask) -> None:
        before = self._tasks.get(command.task)
        if before is not None:
            known = before.start_message
            if (known.generation, known.attempt) >= (command.generation, command.attempt):
                return  # repeated: the report has its state
        try:
            task = task_of(self._context, command, before.tried_bytes if before is not None else None)
        except Exception as error:  # noqa: BLE001  # a task's trouble never takes the container down
            self._channel.tell(_failed(command, error, self._context))
            return
        self._tasks[command.task] = task
        self._context.replicas.reserve(command.task)
        if before is not None:
            self._drained.pop(before, None)
        self._context.hints.wanted = True
        task.follow(self._drain)
        self._starts.submit(_logged, task.name, _start_after, before, task, self._patience_s)
        self._tell(task)

    def _release(self, name: str, by: float | None) -> None:
        task = self._tasks.get(name)
        if task is None:
            return
        if by is not None:
            task.hasten(by)
        if self._releasing.get(name) is not task:  # otherwise it is told of an earlier deadline
            self._releasing[name] = task
            self._releases.submit(_logged, task.name, task.release, self._patience_s)

    def _look(self) -> None:
        if self._context.hints.drain_asked.is_set():
            self._context.hints.drain_asked.clear()
            self._channel.tell(DrainAsked())
        if not self._tasks and boot_time() >= self._ready_at + WARM_UP_AFTER_S:
            self._warm_up.begin()
        counts = boot_time() >= self._counted_at + LOOK_S
        self._counted_at = boot_time() if counts else self._counted_at
        for task in list(self._tasks.values()):
            self._show_life()
            try:
                task.check(self._drain)
                if counts or task.is_over:  # the process may end soon
                    task.count()
            except Exception:
                log.exception("%s could not be looked at", task.name)
            self._tell(task)
            if task.is_over and self._may_finish(task):
                self._finish(task)
        is_wanted = any(not task.is_over for task in self._tasks.values()) or self._context.replicas.any
        self._context.hints.wanted = is_wanted

    def _finish(self, task: TaskLife) -> None:
        if task.begins_to_finish():
            self._finishes.submit(_logged, task.name, task.finish)

    def _may_finish(self, task: TaskLife) -> bool:
        """Whether to stop its query now. That costs tasks that flush CPU time, and mostly this process ends first."""
        if task.report.phase is not Phase.DRAINED or task.finishes_at_once:
            return True
        return boot_time() >= self._drained.setdefault(task, boot_time()) + DRAINED_S

    def _tell(self, task: TaskLife) -> None:
        """Report a new phase at once, new batches at intervals."""
        now, report = boot_time(), task.report
        reported_at, reported = self._reported.get(task.name, (0.0, None))
        if report is reported or report == reported:
            return
        is_last = report.phase in (Phase.DRAINED, Phase.RELEASED)  # the process may end soon
        is_news = reported is None or is_last or _without_batches(report) != _without_batches(reported)
        # Each report is a write to our row. Spark's figures of a batch come after the batch, and are reported with the
        # next one; otherwise there would be twice as many writes.
        is_batch = reported is not None and (report.batch, report.late) != (reported.batch, reported.late)
        if is_news or now - reported_at >= (TELL_S if is_batch else TELL_PROGRESS_S):
            self._reported[task.name] = (now, report)
            self._channel.tell(report)

    def _exit(self) -> None:
        """Release all running tasks, and report them."""
        for task in self._tasks.values():
            if not task.is_over:
                self._releases.submit(_logged, task.name, task.release, self._patience_s)
        wait = threading.Event()
        while any(not task.is_over for task in self._tasks.values()):
            for task in self._tasks.values():
                self._tell(task)
            wait.wait(0.02)
        for task in self._tasks.values():
            if task.report.phase is Phase.RELEASED:
                self._finish(task)
        until = boot_time() + COUNT_AT_EXIT_S
        while boot_time() < until and not all(_is_counted(task) for task in self._tasks.values()):
            wait.wait(COUNT_LOOK_S)
        for task in self._tasks.values():
            self._tell(task)
        self._await_handlers()

    def _await_handlers(self) -> None:
        """Wait up to CLOSE_S for what outlives a release, because the process exits right after this."""
        until = boot_time() + CLOSE_S
        for task in self._tasks.values():
            if task.outlives_release:
                self._finish(task)
                task.is_finished.wait(max(until - boot_time(), 0))


def _logged(name: str, do: Callable[..., None], *arguments: Any) -> None:
    """Run it in a pool. An exception is logged, since no caller reads the result."""
    try:
        do(*arguments)
    except Exception:
        log.exception("%s: its start or its end failed", name)


def _start_after(before: TaskLife | None, task: TaskLife, patience_s: float) -> None:
    """Start a task. If it ran here before, wait until that query is gone: both use the same names and files."""
    if before is not None:
        before.release(patience_s)
        if before.begins_to_finish():
            before.finish()
        before.is_finished.wait()
    task.start()


def _is_counted(task: TaskLife) -> bool:
    """Whether a task that is over needs no further counting."""
    return task.is_counted or task.report.phase is not Phase.RELEASED


def _without_batches(report: TaskReport) -> TaskReport:
    return replace(report, batch=-1, late=0, read=None, progress=None, last_batch=None)


def _failed(command: StartTask, error: Exception, context: ContainerContext) -> TaskReport:
    said = reported(error, context.clean)
    return TaskReport(command.task, command.generation, command.attempt, Phase.FAILED, error=said)

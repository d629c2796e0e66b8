"""One `samza-azure run` process: a coordinator, a container, and the channel between them.

The supervisor decides nothing about tasks. It starts the container, restarts it with a back-off if it dies, passes the
coordinator's commands to it and its reports back, leaves the group on a signal, and ends everything in order.
"""

import logging
import math
import os
import selectors
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from samza_azure.coordinator import JobCoordinator, JobModel, TaskHost
from samza_azure.errors import Ending, SamzaAzureError, Verdict
from samza_azure.explain import routed
from samza_azure.group.notification import DrainNotification
from samza_azure.group.timing import LISTEN_S
from samza_azure.host.child import Child
from samza_azure.host.deaths import Deaths
from samza_azure.host.notify import notify
from samza_azure.machine.clock import boot_time
from samza_azure.machine.folders import private_folder
from samza_azure.machine.memory import Memory, RecentKills, memory, use_of_session
from samza_azure.machine.processes import how_it_ended
from samza_azure.messages import (
    APPLICATION_ENDED,
    OUT_OF_MEMORY,
    Alive,
    Command,
    Exit,
    JvmEnded,
    Kill,
    Permit,
    Phase,
    Ready,
    Rejected,
    StartTask,
    TaskReport,
    Use,
)

log = logging.getLogger(__name__)

#: Signals to leave the group: an orchestrator's, Ctrl-C, and that of a machine that loses its power, by which Spark
#: decommissions a worker.
LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR)
#: At the end the container gets this long to close its session.
GOODBYE_S = 5.0
#: How often the container's memory is measured.
MEASURE_S = 10.0


class Supervisor(TaskHost):
    """Runs one processor to its end."""

    def __init__(
        self,
        coordinator: JobCoordinator,
        job: Path,
        directory: Path,
        *,
        death_limit: int,
        silence_s: float,
        commit_s: float,
    ) -> None:
        """A container that was ready and then sends nothing for `silence_s` seconds hangs, or its JVM: it is killed."""
        self._coordinator, self._job, self._directory = coordinator, job, directory
        self._silence_s = silence_s
        self._commit_s = commit_s  # between two batches of a task, for the price of streams that the plan adds
        self._silent_s = 0.0  # counted in waits, so that a sleep of the machine does not count
        self._child: Child | None = None
        self._child_lock = threading.Lock()
        self._deaths = Deaths(death_limit)
        self._started_at = 0.0
        self._jvm_code: int | None = None  # of the container's JVM, once it has said so
        self._is_ready = False  # the container has reported it; before that it holds no tasks
        self._has_handlers = False  # its tasks have something to close
        self._start_at = boot_time()
        self._ending: Ending | None = None
        self._gave_up: Ending | None = None
        self._signals = 0
        self._is_leaving = False
        self._permit_until: float | None = None  # None: there was none yet
        self._paused_at: float | None = None
        self._steps = 0
        self._measured_at = -1e9
        self._cpu_s: float | None = None  # of the container until then
        self._heap, self._memory = Alive(), memory()
        self._kills = RecentKills()
        self._phases: dict[str, tuple[int, Phase]] = {}
        self._open: dict[
            str, tuple[int, int]
        ] = {}  # tasks that the container was ordered to run: generation and attempt
        self._wake_up, self._woken = socket.socketpair()
        self._wake_up.setblocking(False)

    def run(self) -> Ending:
        """Run on the main thread until the coordinator has ended. Return how it ended."""
        signal.set_wakeup_fd(self._wake_up.fileno(), warn_on_full_buffer=False)
        for number in LEAVE:
            signal.signal(number, self._on_signal)
        self._coordinator.set_listener(self)
        self._coordinator.start()
        try:
            while self._ending is None:
                self._step()
            return self._ending
        finally:
            self._end_child()

    @property
    def steps(self) -> int:
        """The number of rounds of the main thread."""
        return self._steps

    @property
    def has_container(self) -> bool:
        """Whether there is a container that has reported that it is ready."""
        return self._child is not None and self._is_ready

    @property
    def is_leaving(self) -> bool:
        """Whether the processor is ending, or has ended."""
        return self._is_leaving or self._gave_up is not None or self._ending is not None

    def wake(self) -> None:
        """Make the main thread do a round. Call it from any thread, at any time."""
        with suppress(BlockingIOError):  # the buffer is full, so the main thread will wake anyway
            self._wake_up.send(b"\0")

    def on_command(self, command: Command) -> None:
        if isinstance(command, Permit):
            self._permit_until = command.until
        with self._child_lock:
            child = self._child
            if isinstance(command, StartTask):
                self._open[command.task] = command.generation, command.attempt
        if child is None:
            return
        if isinstance(command, Kill):
            why = _silent_for(self._silent_s) if self._silent_s >= 1 else "it did not release its tasks in time"
            child.end_hanging(f"{why}, and its tasks were given to others")
        else:
            child.send(command)

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        mine = job_model.processors.get(processor_id, ())
        tasks = ", ".join(mine) or "no task, standing by"
        log.info("version %d, epoch %d: %s", job_model.version, job_model.epoch, tasks)

    def on_drain(self, notification: DrainNotification) -> None:
        by = f", asked for by {notification.by}" if notification.reached == "FREEZE" and notification.by else ""
        log.info("drain %s%s", notification.reached, by)

    def on_coordinator_stop(self) -> None:
        self._finish(Ending(Verdict.DONE, ""))

    def on_coordinator_failure(self, error: Exception) -> None:
        code = error.exit_code if isinstance(error, SamzaAzureError) else Verdict.FAILED
        self._finish(Ending(code, str(error)))

    def _finish(self, ending: Ending) -> None:
        self._ending = self._gave_up or self._coordinator.ending or ending
        self.wake()

    def _step(self) -> None:
        """Leave after a signal, start the container if it is time, then wait for the next event."""
        self._steps += 1
        if self._signals and not self._is_leaving:
            self._is_leaving = True
            notify("STOPPING=1")
            log.info("leaving: tasks are handed over (a second Ctrl-C kills)")
            self._coordinator.stop()
        now = boot_time()
        if self._child is None and now >= self._start_at:
            self._start_child(now)
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, "woken")
            if self._child is not None:
                selector.register(self._child, selectors.EVENT_READ, "child")
            events = selector.select(self._patience_s(now))
        self._notice_pause()
        self._measure(now)
        if not events and self._child is not None and self._is_ready:
            self._not_heard(self._child)
        for key, _ in events:
            if key.data == "woken":
                self._woken.recv(4096)
            else:
                self._hear_child()

    def _patience_s(self, now: float) -> float | None:
        """How long to wait for an event, in seconds; None: forever."""
        if self._is_ready or self._permit_until is not None:
            return LISTEN_S if self._child is not None else min(LISTEN_S, max(0.0, self._start_at - now))
        if self._child is not None:
            return None
        return None if self._start_at == math.inf else max(0.0, self._start_at - now)

    def _notice_pause(self) -> None:
        """Log once that the permit has expired, and once that it is renewed: else an outage would leave no trace.

        Without a container nothing works, so nothing pauses, and no permit is renewed.
        """
        until, now = self._permit_until, boot_time()
        if until is None or self._is_leaving or self._ending is not None:
            return
        if self._paused_at is None and self._child is not None and now >= until:
            self._paused_at = now
            log.warning("paused: no heartbeat was accepted in time, so no task may append; work resumes by itself")
        elif self._paused_at is not None and now < until:
            log.warning("resumed after %.0f s", now - self._paused_at)
            self._paused_at = None

    def _measure(self, now: float) -> None:
        """Measure what the container uses of the machine, every `MEASURE_S`."""
        if self._child is not None and now >= self._measured_at + MEASURE_S:
            size, cpu_s = use_of_session(self._child.pid)
            # Unknown for a new container, and less where a process has ended whose parent did not wait for it.
            cores = max(0.0, cpu_s - self._cpu_s) / (now - self._measured_at) if self._cpu_s is not None else 0.0
            self._measured_at, self._cpu_s = now, cpu_s
            self._coordinator.measured(
                Use(round(cores, 2), size, self._memory.limit, self._heap.heap, self._heap.heap_most)
            )
            self._kills.look()

    def _not_heard(self, child: Child) -> None:
        """The container has sent nothing for another `LISTEN_S`."""
        self._silent_s += LISTEN_S
        self._coordinator.container_silent(self._silent_s)
        if self._silent_s >= self._silence_s:
            child.end_hanging(_silent_for(self._silent_s))

    def _start_child(self, now: float) -> None:
        try:
            private_folder(self._directory / "container")  # somebody may have deleted it
            child = Child(self._job, self._directory / "container", self._directory / "container.log")
        except OSError as error:
            self._give_up(f"The container cannot be started: {error}")
            return
        self._started_at, self._is_ready, self._jvm_code = now, False, None
        self._heap, self._cpu_s = Alive(), None
        if self._deaths.in_a_row:
            self._permit_until = None  # it was the last container's; this one gets its own when it is ready
        with self._child_lock:
            self._child = child
        log.debug("Container %d started", child.pid)

    def _hear_child(self) -> None:
        child = self._child
        if child is None:
            return
        if self._silent_s:
            self._silent_s = 0.0
            self._coordinator.container_silent(0.0)
        reports = child.receive()
        if reports is None:
            self._child_died(child)
            return
        for report in reports:
            if isinstance(report, Alive):
                self._heap = report
                child.cut_log()
                continue
            if isinstance(report, JvmEnded):
                self._jvm_code = report.code
                continue
            if isinstance(report, Ready):
                self._is_ready = True
                self._has_handlers = any(stage.kind.facts.calls_handler for stage in report.plan.stages)
                log.info("container ready after %.1f s", boot_time() - self._started_at)
                for line in routed(report.plan, self._commit_s):
                    log.info("%s", line)
                for warning in report.plan.warnings:
                    log.warning("%s", warning)
            elif isinstance(report, Rejected):
                self._start_at = math.inf  # another container would reject it, too
            elif isinstance(report, TaskReport):
                self._note_closed(report)
                self._show(report)
            self._coordinator.report(report)

    def _child_died(self, child: Child) -> None:
        with self._child_lock:
            self._child = None
            self._open.clear()
        code = child.end(GOODBYE_S)
        child.kill()
        self._coordinator.measured(Use())
        if self._ending is not None or self._start_at == math.inf:
            return
        now = boot_time()
        self._deaths = self._deaths.after(now - self._started_at)
        reason = child.killed_because or why_it_ended(
            code, self._jvm_code, child.last_error(), memory() if self._kills.any else None
        )
        self._coordinator.container_lost(reason)
        if self._deaths.are_too_many:
            where = self._directory / "container.log"
            self._give_up(f"The container ended {self._deaths.in_a_row} times in a row ({reason}). See {where}.")
            return
        wait = self._deaths.back_off_s
        self._start_at = now + wait
        log.warning("container ended (%s); the next one starts in %.1f s", reason, wait)

    def _give_up(self, why: str) -> None:
        """End with exit code 1, after leaving the group."""
        self._gave_up = Ending(Verdict.FAILED, why)
        self._start_at = math.inf
        self._coordinator.give_up(why)

    def _note_closed(self, report: TaskReport) -> None:
        """Forget a task that was released or drained: it appends nothing more, and none of its writes is unsettled."""
        with self._child_lock:
            is_last = self._open.get(report.task) == (report.generation, report.attempt)
            if is_last and report.phase in (Phase.RELEASED, Phase.DRAINED):
                del self._open[report.task]

    def _show(self, report: TaskReport) -> None:
        shown = (report.attempt, report.phase)
        if self._phases.get(report.task) == shown:
            return
        self._phases[report.task] = shown
        error = report.error
        level = logging.INFO if error is None else logging.WARNING
        reason = "" if error is None else f": {error.message}"
        log.log(level, "task %s %s%s", report.task, report.phase, reason, extra={"task": report.task})

    def _end_child(self) -> None:
        child = self._child
        if child is None:
            return
        with self._child_lock:
            has_open_tasks = bool(self._open)
        # Close the session only if tasks are open or handlers have a `close` to call; otherwise that would waste time.
        if self._is_ready and (has_open_tasks or self._has_handlers):
            child.send(Exit())
            child.end(GOODBYE_S)
        child.kill()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """This may interrupt code that holds a lock: so it only counts, and the wakeup fd ends the wait."""
        self._signals += 1
        if self._signals > 1 and number == signal.SIGINT:
            if self._child is not None:
                self._child.end_group()
            os._exit(1)


def _silent_for(seconds: float) -> str:
    return f"it or its JVM did not answer for {seconds:.0f} s"


def why_it_ended(code: int, jvm_code: int | None, last_error: str, killed_in: Memory | None) -> str:
    """The reason why a container ended, for messages: how its process or its JVM ended, the last error in its log, and
    the memory, if the kernel has killed one of our processes lately.

    `jvm_code` is known if the JVM ended first. Then the exit code and the calls that failed are only what followed.
    """
    how = f"it {how_it_ended(code)}" if jvm_code is None else f"its JVM {how_it_ended(jvm_code)}"
    if killed_in is not None:
        last = f". The last error in its log: {last_error}" if last_error else ""
        return f"{how}: {killed_for_memory(killed_in)}{last}"
    if OUT_OF_MEMORY in (code, jvm_code):
        return "its JVM ran out of memory; tasks that made no progress get less input, see spark.driver.memory"
    if jvm_code == APPLICATION_ENDED:
        return (
            "Spark has ended its application: executors have failed too often, the master has removed it, or no master "
            "of its release answers; what executors say is in their logs, what Spark says in container.log"
        )
    is_killed = (code if jvm_code is None else jvm_code) < 0
    return how if is_killed or not last_error else f"{how}: {last_error}"


def killed_for_memory(found: Memory) -> str:
    """The message on a container that the kernel has killed."""
    whose = "container or unit" if found.is_set else "machine"
    return (
        f"the kernel killed it or its JVM, because the {found.limit >> 20} MiB of the {whose} were used up. Java's "
        "heap is only a part of that: give it more memory, lower spark.driver.memory, or run more processors"
    )

"""A command that runs on one machine of a group at a time: the group's only task is the command.

Promised, in this order: the permit of a guard ends, all processes of its command are killed and waited for, and only
then may another guard of the group start its own. The permit ends a quarter of `heartbeat.timeout` before anybody may
take the guard for dead. Lease, heartbeats, take-over, retries, drain and stop are the group's: see `SharedTasks`.

A member that is alive is also marked dead, if it reports for a while that it cannot read the control blob, or has not
read a version for `barrier.timeout`. It would hear of that up to a heartbeat later than its successor. So a guard that
does not hear from the group ends its command before either (`is_blind`).

Not promised: what nobody can who only kills processes. See docs/guard.md.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from samza_azure.config import Config
from samza_azure.coordinator import JobModel
from samza_azure.errors import Ending, SamzaAzureError
from samza_azure.group.control import Control
from samza_azure.group.timing import SELF_STOP, Timing
from samza_azure.group.view import View
from samza_azure.host.asking import write_drain
from samza_azure.host.kept import End, KeptCommand, only_one
from samza_azure.host.notify import notify
from samza_azure.host.tree import Cgroup
from samza_azure.library.fencing import TOKEN, TOKEN_FILE, check_token
from samza_azure.library.shared_tasks import SharedTasks
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.logs.names import task_name
from samza_azure.machine.clock import boot_time
from samza_azure.machine.memory import memory, use_of_session
from samza_azure.machine.processes import adopt_orphans, how_it_ended
from samza_azure.messages import Command, Permit, ReleaseTask, Use
from samza_azure.names import digest

__all__ = ["Guard", "is_blind", "with_time_to_end"]

log = logging.getLogger(__name__)

#: Signals to leave the group. The command gets the same one.
LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGPWR)
#: Signals that only the command gets.
PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: The group's only stage, its only task, and the field of log lines about it: they are never folded.
STAGE = "command"
NAME = task_name(STAGE, 0)
OF_TASK = {"task": NAME}
#: The token of a start is the generation of its owner times this, plus the number of its start there.
STARTS_MOST = 1_000_000
#: How long a guard goes on that does not hear from the leader: the first, but at least the second in heartbeats.
HEARS_S, HEARS_BEATS = 10.0, 3
#: What a loser of the task has besides `task.shutdown.ms` before its successor stops waiting: the time until it hears.
HEARS_LATE_S = 30.0
#: The longest pause of the main thread, and how often it measures.
LOOK_S, MEASURE_S = 1.0, 10.0
#: The timeout of the request that ends the run, and the pause between two tries.
ASK_S = 5.0


def with_time_to_end(config: Config) -> Config:
    """The configuration with which a guard's coordinator waits longer for others than any of them can take to hear
    that it has lost the task, and to end its command.
    """
    shutdown_ms = config.task.shutdown_ms + round(HEARS_LATE_S * 1000)
    return replace(config, task=replace(config.task, shutdown_ms=shutdown_ms))


def is_blind(view: View, now: float) -> bool:
    """Whether a member that still sends heartbeats may miss that its task was given to another one."""
    patience_s = max(HEARS_S, HEARS_BEATS * view.timing.heartbeat_s)
    return view.cut_off or now > view.others.leader_read_at + patience_s


class Guard(SharedTasks):
    """One guard, from `run` to its end. Make it and run it on the main thread."""

    coordinator: ThreadedCoordinator

    def __init__(
        self,
        coordinator: ThreadedCoordinator,
        command: Sequence[str],
        directory: Path,
        *,
        timing: Timing,
        patience_s: float,
        checkpoints: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`patience_s` is the time between a signal and SIGKILL. `checkpoints` are folders that check the token before
        each start.
        """
        super().__init__(coordinator, STAGE, 1)
        self._command, self._directory, self._environment = tuple(command), directory, environment
        self._patience_s, self._checkpoints = patience_s, tuple(checkpoints)
        self._slack_s = (1 - SELF_STOP) * timing.heartbeat_timeout_s / 2
        self._token_file = directory / "token"
        self._cgroup: Cgroup | None = None
        self._kept: KeptCommand | None = None
        self._permits = threading.Lock()  # so that the keeper gets them in the order in which they came
        self._starts = 0
        self._signals: list[int] = []
        self._wake_up, self._woken = socket.socketpair()
        self._wake_up.setblocking(False)
        self._measured_at, self._cpu_s = boot_time(), 0.0
        #: The number of rounds of the main thread.
        self.steps = 0
        #: Whether it hands over and ends.
        self.is_leaving = False

    def run(self) -> Ending:
        """Join the group, and run the command whenever it is ours to run, until the coordinator has ended."""
        adopt_orphans()
        self._cgroup = Cgroup.named(f"samza-azure-{digest(str(self._directory.resolve()))}")
        os.close(only_one(self._directory, self._cgroup))
        signal.set_wakeup_fd(self._wake_up.fileno(), warn_on_full_buffer=False)
        for number in (*LEAVE, *PASSED_ON):
            signal.signal(number, self._on_signal)
        self.start()
        while not self._ended.is_set():
            self.steps += 1
            self._obey_signals()
            self._measure()
            if select.select([self._woken], [], [], LOOK_S)[0]:
                self._woken.recv(4096)
        self._thread.join()
        ending = self.coordinator.ending
        assert ending is not None, "it is set before its listener is called"
        return ending

    def wake(self) -> None:
        """Make the main thread do a round. Call it from any thread."""
        with suppress(BlockingIOError):
            self._wake_up.send(b"\0")

    def on_command(self, command: Command) -> None:
        view = self.coordinator.view
        if isinstance(command, Permit) and view is not None and is_blind(view, boot_time()):
            command = Permit(0.0)
        with self._permits:
            super().on_command(command)
            kept = self._kept  # the thread of tasks may drop it meanwhile
            if isinstance(command, Permit) and kept is not None:
                kept.permit(command.until)
        if isinstance(command, ReleaseTask) and command.by is not None and kept is not None and kept.is_asked:
            kept.kill_at(command.by)  # `on_stop` waits for it, with a later deadline or none

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        is_ours = NAME in job_model.processors.get(processor_id, ())
        role = "the command is ours to run" if is_ours else "standing by"
        log.info("version %d, epoch %d: %s", job_model.version, job_model.epoch, role)

    def on_start(self, task: str, generation: int) -> None:
        if not self.may_act:
            threading.Timer(LOOK_S, self.ended, (task,)).start()  # to be tried again
            return
        self._starts += 1
        token = generation * STARTS_MOST + self._starts
        for each in self._checkpoints:
            check_token(each, token)
        self._token_file.write_text(f"{token}\n")
        lock = only_one(self._directory, self._cgroup)
        try:
            kept = self._kept = KeptCommand(
                self._command,
                environment={**self._environment, TOKEN: str(token), TOKEN_FILE: str(self._token_file.absolute())},
                until=self._until,
                slack_s=self._slack_s,
                lock=lock,
                cgroup=Cgroup.named(self._cgroup.folder.name) if self._cgroup is not None else None,
                on_end=self._on_end,
            )
        finally:
            os.close(lock)
        with self._permits:
            kept.permit(self._until)  # it may have changed meanwhile
        self._cpu_s = 0.0
        log.info("the command starts, with token %d", token)

    def on_stop(self, task: str) -> None:
        if (kept := self._kept) is not None:
            if not kept.is_asked:
                kept.end(signal.SIGTERM, self._patience_s)
            if (by := self.stop_by) is not None:  # the machine ends then, and others have to read that the command has
                kept.kill_at(by)
            kept.wait()
            self._kept = None

    def on_coordinator_stop(self) -> None:
        super().on_coordinator_stop()
        self.wake()

    def on_coordinator_failure(self, error: Exception) -> None:
        super().on_coordinator_failure(error)
        self.wake()

    def _on_end(self, kept: KeptCommand, end: End) -> None:
        """The command has ended, with all its processes; on a thread of its own."""
        self._token_file.unlink(missing_ok=True)
        if end.is_lost:
            log.warning("its keeper was killed or stood still, so the guard has ended the command", extra=OF_TASK)
        if end.error:
            self.ended(NAME, f"the command cannot be started: {end.error}")
        elif kept.is_asked:
            log.info("the command has ended%s", "" if end.code is None else f": it {how_it_ended(end.code)}")
        elif end.code is None:
            if not end.is_lost:
                log.warning(
                    "the command was ended: no heartbeat was accepted in time, so another guard may start it soon",
                    extra=OF_TASK,
                )
            self.ended(NAME)
        elif end.code == 0:
            log.info("the command has ended with 0, so the run is over for all")
            threading.Thread(target=self._drain_run, name="drain", daemon=True).start()
        else:
            log.warning("the command %s", how_it_ended(end.code), extra=OF_TASK)
            self.ended(NAME, f"the command {how_it_ended(end.code)}; its output says why")

    def _drain_run(self) -> None:
        """Ask for the end of the run, until the request is written or this guard ends."""
        while not self._ended.is_set():
            control = self.coordinator.view.control if self.coordinator.view is not None else None
            if isinstance(control, Control):
                with suppress(SamzaAzureError, TimeoutError, RuntimeError):  # away, or refused, or its loop has ended
                    ask = partial(write_drain, control=control, run_id=control.run_id)
                    self.coordinator.ask_storage(ask, ASK_S)
                    return
            time.sleep(LOOK_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """This may interrupt code that holds a lock: so it only notes the signal, and the wakeup fd ends the wait."""
        self._signals.append(number)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            kept = self._kept
            if number in PASSED_ON:
                if kept is not None:
                    kept.pass_on(number)
                continue
            if self.is_leaving and number == signal.SIGINT and kept is not None:
                kept.end(signal.SIGKILL, 0.0)  # the second Ctrl-C
            if not self.is_leaving:
                self.is_leaving = True
                notify("STOPPING=1")
                passed = signal.SIGTERM if number == signal.SIGPWR else number
                log.info("leaving: the command gets %s (a second Ctrl-C kills it)", signal.Signals(passed).name)
                if kept is not None:
                    kept.end(passed, self._patience_s)
                self.coordinator.stop()

    def _measure(self) -> None:
        """Measure what the command uses of the machine."""
        now, kept = boot_time(), self._kept
        if now < self._measured_at + MEASURE_S:
            return
        size, cpu_s = use_of_session(kept.process) if kept is not None and kept.process is not None else (0, 0.0)
        cores = max(0.0, cpu_s - self._cpu_s) / (now - self._measured_at)
        self._measured_at, self._cpu_s = now, cpu_s
        self.coordinator.measured(Use(round(cores, 2), size, memory().limit) if size else Use())

"""One processor without Spark, as a process of its own. It obeys its coordinator as a container does.

Each task counts: a batch is one number, one more than the last one in the task's checkpoint, appended by the rules of
`samza_azure.stream_io.log`. So a row that is lost, doubled or written by two owners at a time shows in the log. Each
process reports its events to the test through a pipe, at once, so the answers that a killed process had received are
known, too.
"""

import faulthandler
import json
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from samza_azure import AzureJobCoordinatorFactory, Config, JobCoordinatorListener, JobModel
from samza_azure.commands.run import answer_probes
from samza_azure.errors import PermitExpired, SamzaAzureError, StorageUnavailable, Superseded, Unsettled
from samza_azure.group.control import Control
from samza_azure.group.ending import waits_for
from samza_azure.library.shared_tasks import plan_of
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.logs.record import Slice, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time
from samza_azure.machine.processes import die_with_parent
from samza_azure.messages import Command, Permit, Phase, Ready, ReleaseTask, StartTask, TaskError, TaskReport
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.log import take_over

STAGE = "count"
EVERY_S = 0.2
#: Small, so that logs roll meanwhile.
LIMITS = LogLimits(roll_records=50)
#: What this module loads late, for the process from which all members are forked.
PRELOAD = ["samza_azure.storage.blobs", "samza_azure.storage.control_blob", "samza_azure.storage.rows", __name__]


class Member(JobCoordinatorListener):
    """A processor and its tasks."""

    def __init__(self, name: str, config: Config, tasks: int, said: Connection, only_holder: bool) -> None:
        self.name, self._said, self._said_lock = name, said, threading.Lock()
        self.ended = threading.Event()
        coordinator = AzureJobCoordinatorFactory().get_job_coordinator(name, config)
        assert isinstance(coordinator, ThreadedCoordinator)
        self.coordinator = coordinator
        self.coordinator.set_listener(self)
        self.coordinator.ask(new_run=False, wait_for_upgrade=False, only_holder=only_holder)
        self.coordinator.report(Ready(plan_of(STAGE, tasks)))
        answer_probes(
            config, coordinator, steps=lambda: 0, wake=lambda: None, container=lambda: True, leaving=lambda: False
        )
        self.blobs: Blobs = Account.from_config(config.storage).blobs()
        self._until = 0.0
        self._work: dict[str, Work] = {}

    def say(self, *what: Any) -> None:
        """Tell the test, with the time."""
        with self._said_lock:
            self._said.send((boot_time(), *what))

    def waits_for(self) -> str:
        """What keeps it from ending, for a test that has waited in vain."""
        view = self.coordinator.view
        if view is None:
            return "the storage"
        control = view.control if isinstance(view.control, Control) else None
        return (
            f"{waits_for(view, boot_time())}: {view.leaving=} {view.ending=} {view.lease=} {view.handing_over=} "
            f"{view.calls.busy=} {view.calls.unsettled=} {view.work.tasks=} {view.others.leader_row=} {control=}"
        )

    def may_append(self) -> bool:
        """The permit, asked before each append."""
        return boot_time() < self._until

    def on_command(self, command: Command) -> None:
        match command:
            case Permit(until=until):
                self._until = until
            case StartTask(task=task):
                self._work[task] = Work(self, command)
            case ReleaseTask(task=task):
                self._work[task].shut.set()

    def on_new_job_model(self, processor_id: str, job_model: JobModel) -> None:
        self.say("version", job_model.version)

    def on_leadership(self, leads: bool, epoch: int) -> None:
        self.say("leads" if leads else "leads no more", epoch)

    def on_coordinator_stop(self) -> None:
        self.say("ended", 0, "")
        self.ended.set()

    def on_coordinator_failure(self, error: Exception) -> None:
        self.say("ended", error.exit_code if isinstance(error, SamzaAzureError) else 1, str(error))
        self.ended.set()


class Work:
    """One attempt at one task, on a thread of its own."""

    def __init__(self, member: Member, start: StartTask) -> None:
        self._member, self._start = member, start
        self.shut = threading.Event()
        threading.Thread(target=self._run, name=start.task, daemon=True).start()

    def _run(self) -> None:
        try:
            self._count()
            self._report(Phase.RELEASED)
        except Superseded:
            self._report(Phase.SUPERSEDED)
        except (PermitExpired, StorageUnavailable, Unsettled):
            self._report(Phase.RESTART)
        except Exception as error:  # noqa: BLE001  # whatever it is fails the run, and the test says why
            self._report(Phase.FAILED, TaskError(repr(error), ""))

    def _count(self) -> None:
        member, start = self._member, self._start
        writer, restored = take_over(
            member.blobs,
            f"runs/{start.run_id}/{start.task}",
            group_id=bytes.fromhex(start.group_id),
            task=start.task,
            writer=Writer(start.generation, start.attempt),
            first=start.first,
            may_append=member.may_append,
            meta={},
            limits=LIMITS,
        )
        self._report(Phase.RUNNING)
        number = next_number(restored.files, restored.last_batch)
        while not self.shut.wait(EVERY_S):
            batch = writer.last_batch + 1
            row = json.dumps([number, member.name, start.generation, start.attempt]).encode()
            number += 1
            writer.append(batch, slices=[Slice(0, row, 1)], files={f"offsets/{batch}": str(number).encode()})
            member.say("wrote", start.task, number - 1)
        writer.close()

    def _report(self, phase: Phase, error: TaskError | None = None) -> None:
        start = self._start
        self._member.say(str(phase), start.task, start.generation, start.attempt, error)
        self._member.coordinator.report(TaskReport(start.task, start.generation, start.attempt, phase, error=error))


def next_number(files: Mapping[str, bytes], last_batch: int) -> int:
    """Where the checkpoint says that the count goes on."""
    return int(files[f"offsets/{last_batch}"]) if last_batch >= 0 else 0


def live(
    name: str, job: str, tasks: int, said: Connection, only_holder: bool, gate: Event | None, delay_s: float
) -> None:
    """A member's process, from its start until its coordinator has ended. With a gate it waits to be released."""
    die_with_parent()
    member = Member(name, Config.parse(job), tasks, said, only_holder)
    signal.signal(signal.SIGTERM, lambda *_: member.coordinator.stop())
    signal.signal(signal.SIGUSR1, lambda *_: member.say("waits for", member.waits_for()))
    faulthandler.register(signal.SIGUSR1, chain=True)  # and where its threads are, on the standard error
    if gate is not None:
        member.say("waits")
        gate.wait()
        threading.Event().wait(delay_s)
    member.coordinator.start()
    member.ended.wait()
    os._exit(0)

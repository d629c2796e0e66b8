"""The replicas that a container keeps: what a restore needs of tasks that other processors run.

They are caches, made from the logs alone: no fail-over waits for one, and a task whose replica is missing or useless is
restored from its log. So whatever goes wrong here costs time only.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from samza_azure.errors import SamzaAzureError, StorageUnavailable
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.names import task_log
from samza_azure.logs.operations import rest_s
from samza_azure.logs.position import Position
from samza_azure.machine.clock import boot_time
from samza_azure.messages import HeldReplicas, KeepReplicas, ReplicaState
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.stored import Replica
from samza_azure.tasks.hint_board import HintBoard

log = logging.getLogger(__name__)

#: The seconds between two reads of a log that has grown, as a hint says: at least; and of one without a hint.
READ_S, UNASKED_S = 1.0, 30.0
#: The seconds until a log is read again after an error of the storage; after another one, as of this machine's disk.
AGAIN_S, AGAIN_DISK_S = 5.0, 60.0


class _Kept:
    """One replica, and when it is read on."""

    def __init__(self, task: str, replica: Replica) -> None:
        self.task = task
        self.replica = replica
        self.is_wanted = True
        self.busy = threading.Lock()  # held while it is read
        self.due_at = self.not_before = 0.0  # it is read at `due_at` without a hint, with one at `not_before`

    def drop(self) -> None:
        """Delete its files, once nobody reads it."""
        self.is_wanted = False
        with self.busy:
            self.replica.copies.close()

    def state(self, hint: Position | None) -> ReplicaState:
        """How far it is, if its log ends where the hint says."""
        log = self.replica.log
        behind = hint[1] - (log.end[1] if hint[0] == log.end[0] else 0) if hint is not None and hint > log.end else 0
        return ReplicaState(log.last_batch, behind, self.replica.size)


class Replicas:
    """The replicas of one container. A thread reads them on, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._reserved: dict[str, _Kept] = {}
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._rate_limit = LogRateLimit()
        self._numbers = 0
        self._told = HeldReplicas()

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._kept)

    def keep(
        self,
        command: KeepReplicas,
        blobs: Blobs,
        hints: HintBoard,
        directory: Path,
        tell: Callable[[HeldReplicas], None],
    ) -> None:
        """Keep replicas of these tasks, and drop all others."""
        try:
            group = bytes.fromhex(command.group_id)
        except ValueError:  # from the account: the start of a task says what is wrong
            return
        wanted = {task: task_log(command.run_id, task) for task in command.tasks}
        with self._lock:
            gone = [task for task, kept in self._kept.items() if wanted.get(task) != kept.replica.log.prefix]
            dropped = [self._kept.pop(task) for task in gone]
            for task in [task for task in wanted if task not in self._kept]:
                self._numbers += 1
                folder = directory / "replicas" / str(self._numbers)
                self._kept[task] = _Kept(task, Replica(blobs, wanted[task], group_id=group, task=task, folder=folder))
        for kept in dropped:
            _drop(kept)
        if self._thread is None and wanted:
            self._thread = threading.Thread(target=self._run, args=[hints, tell], name="replicas", daemon=True)
            self._thread.start()
        self._news.set()

    def reserve(self, task: str) -> None:
        """Keep a replica for the start of its task, whatever `keep` says meanwhile."""
        with self._lock:
            if (kept := self._kept.pop(task, None)) is not None:
                kept.is_wanted = False
                if (earlier := self._reserved.pop(task, None)) is not None:  # of a start that never began
                    _drop(earlier)
                self._reserved[task] = kept
        self._news.set()  # or the thread, which may have reported it just now and have no other, waits for a command

    @contextmanager
    def taken(self, task: str, prefix: str) -> Iterator[Replica | None]:
        """The reserved replica of a task that has this log. What is left of it is deleted in the end."""
        with self._lock:
            kept = self._reserved.pop(task, None)
        try:
            if kept is None:
                yield None
                return
            with kept.busy:  # for one call to the storage, as a rule
                replica = kept.replica if kept.replica.log.prefix == prefix else None
            yield replica
        finally:
            if kept is not None:
                kept.drop()

    def _run(self, hints: HintBoard, tell: Callable[[HeldReplicas], None]) -> None:
        while True:
            self._news.wait(READ_S if self._kept else None)
            self._news.clear()
            for kept in list(self._kept.values()):
                hint = hints.end_of(kept.replica.log.prefix)
                is_behind = hint is not None and hint > kept.replica.log.end
                if boot_time() >= (kept.not_before if is_behind else kept.due_at):
                    self._read_on(kept)
            held = {
                kept.task: kept.state(hints.end_of(kept.replica.log.prefix))
                for kept in list(self._kept.values())
                if kept.replica.is_complete
            }
            if held != self._told.replicas:
                self._told = HeldReplicas(held)
                tell(self._told)

    def _read_on(self, kept: _Kept) -> None:
        with kept.busy:
            if not kept.is_wanted:
                return
            try:
                kept.replica.read_on(lambda: kept.is_wanted)
                kept.due_at = boot_time() + (UNASKED_S if not kept.replica.log.drained else math.inf)
            except Exception as error:  # noqa: BLE001  # the other replicas are read on, whatever is wrong with this one
                if not isinstance(error, StorageUnavailable):  # what it would read next was deleted, as a rule
                    kept.replica.begin_anew()
                if not isinstance(error, SamzaAzureError):  # the disk is full, as a rule: tasks need the room more
                    kept.replica.copies.close()
                seconds = rest_s(AGAIN_S if isinstance(error, SamzaAzureError) else AGAIN_DISK_S, error)
                kept.due_at = kept.not_before = boot_time() + seconds
                if self._rate_limit.is_due(kept.task):
                    log.info("The replica of %s could not be read on: %s", kept.task, error)


def _drop(kept: _Kept) -> None:
    """Drop a replica without waiting for it."""
    threading.Thread(target=kept.drop, name=f"drop-{kept.task}", daemon=True).start()

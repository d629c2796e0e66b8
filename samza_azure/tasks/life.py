"""The life of a task under one writer: taken over from its log, run, drained or released. A restart makes a new one.

It moves through its phases in one direction, and never out of the last. What happens after its writer is closed does
not count: the log's last record is its state. So a hand-over waits for `release` only, and `finish` does the rest.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from samza_azure.errors import StorageUnavailable, Superseded, TooOld
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.names import task_log
from samza_azure.logs.operations import rest_s
from samza_azure.logs.record import Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Drain, DrainPhase, Phase, StartTask, TaskReport
from samza_azure.stream_io.log import LogWriter, Restored, take_over
from samza_azure.stream_io.stored import Replica
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.failure import is_waiting_for_storage, reported

log = logging.getLogger(__name__)

#: The interval between two turns of a task that works in turns.
LOOK_S = 0.2
RETRY_S = 0.5
#: A generation has fewer attempts than this.
ATTEMPTS = 1024
#: A wait for the end of a batch looks this often whether its deadline has come forward.
HASTE_S = 0.1


def owner_number(start: StartTask) -> int:
    """A number that is greater for each later owner of a task."""
    return start.generation * ATTEMPTS + start.attempt % ATTEMPTS


class TaskLife(ABC):
    """What all tasks have in common."""

    #: So much input in one batch was too much for this machine. None if that is not known, or cannot be.
    tried_bytes: int | None = None
    #: Whether a drained task is finished at once. Otherwise that costs tasks that still flush CPU time.
    finishes_at_once = True
    #: Whether the end of the process waits for `finish`.
    outlives_release = False

    def __init__(self, context: ContainerContext, start: StartTask) -> None:
        self.start_message = start
        self.name = start.task
        self.prefix = task_log(start.run_id, start.task)
        self.is_finished = threading.Event()  # nothing of it is left; the task may be started here again
        self._context = context
        self._lock = threading.Lock()
        self._report = TaskReport(start.task, start.generation, start.attempt, Phase.STARTING)
        self._writer: LogWriter | None = None
        self._finishing = False
        self._haste_until = float("inf")

    @abstractmethod
    def start(self) -> None:
        """Take over and run. It may return later than that; an error ends up in the report."""

    @abstractmethod
    def follow(self, drain: Drain) -> None:
        """Do what the drain asks for."""

    @abstractmethod
    def check(self, drain: Drain) -> None:
        """Notice what has happened since the last call, and follow the drain. Called several times a second."""

    @abstractmethod
    def count(self) -> None:
        """Update the figures of the report."""

    @abstractmethod
    def release(self, patience_s: float) -> None:
        """Let what runs end, append nothing after that, and report it, all within that time or that of `hasten`."""

    def hasten(self, by: float) -> None:
        """Let a release, also one under way, be over by then. Call it from any thread."""
        self._haste_until = min(self._haste_until, by)

    @abstractmethod
    def finish(self) -> None:
        """End what the release has left, and set `is_finished`. Called once, if `begins_to_finish`."""

    @property
    def reads_source(self) -> bool:
        """Whether a drain freezes it, because at least one input is a source stream."""
        return False

    @property
    def is_counted(self) -> bool:
        """Whether the report includes all batches that were appended."""
        return True

    @property
    def report(self) -> TaskReport:
        """The state of the task, as it is reported to the supervisor."""
        with self._lock:
            return self._report

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens under this writer."""
        return self.report.phase not in (Phase.STARTING, Phase.RUNNING)

    def begins_to_finish(self) -> bool:
        """Whether the caller must call `finish`: true once, for a task that is over."""
        with self._lock:
            begins, self._finishing = not self._finishing, True
        return begins

    def _take_over(
        self,
        meta: Mapping[str, Any],
        may_append: Callable[[], bool] | None = None,
        limits: LogLimits | None = None,
        replica: Replica | None = None,
        **sizes: int | None,
    ) -> tuple[LogWriter, Restored]:
        """Become the writer of the log. The task is over if the log has been drained."""
        start = self.start_message
        writer, restored = take_over(
            self._context.blobs,
            self.prefix,
            group_id=bytes.fromhex(start.group_id),
            task=self.name,
            writer=Writer(start.generation, start.attempt),
            first=start.first,
            may_append=may_append or self._context.may_append,
            meta=meta,
            limits=limits,
            replica=replica,
            **sizes,  # type: ignore[arg-type]
        )
        self._writer = writer
        self._tell(batch=restored.last_batch)
        return writer, restored

    def _runs(self) -> None:
        """It has been taken over, unless it was released meanwhile."""
        with self._lock:
            if self._report.phase is Phase.STARTING:
                self._report = replace(self._report, phase=Phase.RUNNING)
        self._context.changed()

    def _tell(self, **fields: Any) -> None:
        with self._lock:
            self._report = replace(self._report, **fields)

    def _end(self, phase: Phase, error: BaseException | None = None, too_old_for: int | None = None) -> None:
        """End in this phase, unless the task has ended already."""
        if isinstance(error, TooOld):
            too_old_for = error.needs
        said = reported(error, self._context.clean) if error is not None else None
        with self._lock:
            if self._report.phase in (Phase.STARTING, Phase.RUNNING):
                self._report = replace(self._report, phase=phase, error=said, too_old_for=too_old_for)
        self._context.changed()

    def _end_with(self, error: BaseException) -> None:
        """End in the phase that follows from an error."""
        if isinstance(error, Superseded):
            log.info("%s: %s", self.name, error)
            self._end(Phase.SUPERSEDED)
        else:
            self._end(Phase.RESTART if is_waiting_for_storage(error) else Phase.FAILED, error)

    def _end_drained(self, **fields: Any) -> None:
        self._tell(drain=DrainPhase.COMMITTED, **fields)
        self._end(Phase.DRAINED)

    def _waited(self, wait: Callable[[float], bool], until: float, ends_at: Callable[[], float | None]) -> bool:
        """Wait for what runs to end, until then or until the deadline of `hasten`. Return whether it has ended.

        What cannot end before that deadline, as far as `ends_at` knows, is not waited for, so its next owner begins
        sooner.
        """
        while not wait(max(0.0, min(HASTE_S, until - boot_time()))):
            now, ends = boot_time(), ends_at()
            if now >= min(until, self._haste_until) or (ends is not None and now < ends > self._haste_until):
                return False
        return True

    def _released(self, repeated: int | None = None) -> None:
        """It is released. `repeated`: the input rows of the batch that was given up for that; -1: of one, if any."""
        with self._lock:
            if self._report.phase is not Phase.DRAINED:
                self._report = replace(self._report, phase=Phase.RELEASED, repeated=repeated)
        self._context.changed()


class TurnTask(TaskLife):
    """A task that works in turns, in a thread of its own."""

    def __init__(self, context: ContainerContext, start: StartTask) -> None:
        super().__init__(context, start)
        self._drain = Drain(None)
        self._closing = threading.Event()
        self._ended = threading.Event()  # set when its thread has ended
        self._awake = threading.Event()  # there may be something to do now
        self._rate_limit = LogRateLimit()

    @abstractmethod
    def _begin(self) -> bool:
        """Take over. Return False if the task is over with that."""

    @abstractmethod
    def _turn(self) -> None:
        """Do what is due. The storage may not answer: then there is another turn a moment later."""

    def _begun(self) -> None:  # optional
        """Called when the task has begun to run."""

    def _leaves(self) -> None:
        """Called when nothing more will be written under this writer."""

    def start(self) -> None:
        threading.Thread(target=self._live, name=self.name, daemon=True).start()

    def follow(self, drain: Drain) -> None:
        """Note the step of the drain. The next turn takes it."""
        with self._lock:
            self._drain = drain
            if drain.step is None:
                self._report = replace(self._report, drain=None, ends=None, frozen_for="")
            elif self._report.drain is None:
                self._report = replace(self._report, drain=DrainPhase.REQUESTED)
        self._awake.set()

    def check(self, drain: Drain) -> None:
        """Follow the drain. Everything else happens in the task's own thread."""
        if not self.is_over and drain is not self._drain:
            self.follow(drain)

    def release(self, patience_s: float) -> None:
        self._finishing = True
        self._closes()
        has_ended = self._waited(self._ended.wait, boot_time() + patience_s, lambda: None)
        self._close()
        self._released(None if has_ended else -1)
        self.is_finished.set()

    def finish(self) -> None:
        self._closes()
        self._ended.wait()
        self._close()
        self.is_finished.set()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _closes(self) -> None:
        self._closing.set()
        self._awake.set()

    def _live(self) -> None:
        try:
            if not self._closing.is_set() and self._begin():
                self._runs()
                self._begun()
                while not self._closing.is_set() and not self.is_over:
                    if self._context.may_append():
                        self._try()
                    self._rest()
        except Exception as error:  # noqa: BLE001  # an error of a task never ends the container
            self._end_with(error)
        finally:
            self._leaves()
            self._ended.set()
            self._context.changed()

    def _try(self) -> None:
        try:
            self._turn()
        except StorageUnavailable as error:
            if self._rate_limit.is_due("storage"):
                log.info("%s: %s", self.name, error)
            self._closing.wait(rest_s(RETRY_S, error))

    def _rest(self) -> None:
        """Wait for the next turn."""
        self._awake.wait(self._pause_s())
        self._awake.clear()

    def _pause_s(self) -> float:
        """How long to wait for the next turn, unless there is something to do before."""
        return LOOK_S

"""A processor's loop: learn from answers, decide, perform; again at the next answer, or when it is time.

The loop decides nothing itself. Time, random numbers and ids come from outside, so the simulator runs this very loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

from samza_azure.errors import AccessDenied, ConfigError, CorruptState, StorageUnavailable, Verdict
from samza_azure.group.actions import (
    LEADER_ROW,
    BeginEnd,
    CleanRun,
    Finish,
    Rejoin,
    StepDown,
    StorageAction,
    Tell,
    WriteControl,
    WriteLeaderRow,
    resource,
)
from samza_azure.group.answers import Answer, Denied, Later, TooLarge, Trouble
from samza_azure.group.bells import heard_gone, heard_ring, wanted
from samza_azure.group.control import Control
from samza_azure.group.decide import decide
from samza_azure.group.election import leader_timeout
from samza_azure.group.ending import FAREWELL_S, waiting
from samza_azure.group.learn import (
    heard_container_lost,
    heard_container_silent,
    heard_drain_asked,
    heard_leave,
    heard_notice,
    heard_plan,
    heard_rejected,
    heard_replicas,
    heard_task,
    heard_use,
    heard_withdrawn,
    learn,
    perform_locally,
    started,
    turn,
)
from samza_azure.group.notice import Availability, Going, Notice
from samza_azure.group.rows import Bell
from samza_azure.group.timing import DENIED_S, ROLE_S, Timing
from samza_azure.group.view import OwnIncarnation, Settings, View
from samza_azure.host.copies import Copies
from samza_azure.host.perform import perform
from samza_azure.host.runs import RunLogs
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.messages import Command, DrainAsked, HeldReplicas, Ready, Rejected, Report, TaskReport, Use
from samza_azure.storage.interface import ControlBlob, Rows

log = logging.getLogger(__name__)

#: A processor that never reached the account gives up after this long; one that had joined never does.
UNREACHABLE_S = 30.0
#: No call waits longer than this for its answer, and none gives up sooner than the second.
CALL_S, CALL_LEAST_S = 3.0, 0.5
#: What a processor does if its release is too old for what is stored.
STANDS_BY = "Until then this processor stands by: it releases its tasks, and others run them."
#: What a processor does if it is refused for a reason that may pass, and has not joined.
WAITS_FOR_ROLE = f"That may pass, so it is tried again for {ROLE_S:.0f} s."
#: The least time between two turns, unless there is news.
LEAST_SLEEP_S = 0.002


class ProcessorContext(Protocol):
    """Where a processor gets its time, random numbers and ids from."""

    def now(self) -> float:
        """Seconds of a monotonic clock; only differences have a meaning."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def random(self) -> float:
        """At least 0, below 1."""

    def fresh_id(self) -> str:
        """32 hexadecimal digits, never returned before."""


class Doorbells(Protocol):
    """The connections of a processor to others (`host/bells.py`)."""

    def hold(self, wanted: Mapping[str, Bell]) -> None:
        """Hold a connection to each of these incarnations, and to no other."""

    def ring(self) -> None:
        """Say over each connection that there is something to read."""


@dataclass(frozen=True, slots=True)
class ContainerLost:
    """The container process ended."""


@dataclass(frozen=True, slots=True)
class ContainerSilent:
    """The container has sent nothing for so many seconds; 0: it has just sent something."""

    seconds: float


class Processor:
    """One processor, with all its incarnations, until it finishes."""

    def __init__(
        self,
        settings: Settings,
        blob: ControlBlob,
        table: Rows,
        runs: RunLogs,
        context: ProcessorContext,
        *,
        tell: Callable[[Command], None],
        watch: Callable[[View], None] = lambda view: None,
        called: Callable[[StorageAction, Answer, float], None] = lambda action, answer, seconds: None,
        bells: Doorbells | None = None,
    ) -> None:
        self.view = View(settings, OwnIncarnation(context.fresh_id()))
        self._waits = ""  # what it waits for that only people can do
        self._blob, self._table, self._runs = blob, table, runs
        self._context = context
        self._tell, self._watch, self._called = tell, watch, called
        self._bells, self._rung_for = bells, (0, 0, "")
        self._news = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._rate_limit = LogRateLimit(context.now)
        self._copies = Copies(runs.keep_copy, self._rate_limit)
        self._reached = False
        self._end: Finish | None = None
        self._wake_at = 0.0
        self._state = Availability.SCHEDULABLE

    async def run(self) -> Finish:
        """Run until there is a verdict, and return it."""
        begun = self._context.now()
        try:
            while self._end is None:
                self._news.clear()
                self._turn()
                if self.view.finished is not None:
                    await self._copies.settle(FAREWELL_S)
                    return self.view.finished
                if not self._reached and self._context.now() > begun + UNREACHABLE_S:
                    return Finish(Verdict.UNREACHABLE, f"The storage account did not answer for {UNREACHABLE_S:.0f} s.")
                await self._wait()
            return self._end
        finally:
            self._copies.close()
            for call in self._calls:
                call.cancel()

    @property
    def under_way(self) -> int:
        """How many calls to the storage are under way."""
        return len(self._calls)

    def hear(self, report: Report | ContainerLost | ContainerSilent | Use) -> None:
        """Take a report of the container. Call it on the loop's thread."""
        now = self._context.now()
        match report:
            case Ready(plan=plan):
                heard_plan(self.view, plan)
            case TaskReport():
                stands_by = self.view.too_old_for
                heard_task(self.view, report, now)
                if self.view.too_old_for > stands_by and report.error is not None:
                    log.warning("%s %s", report.error.message, STANDS_BY)
            case ContainerLost():
                heard_container_lost(self.view, now)
            case ContainerSilent(seconds=seconds):
                heard_container_silent(self.view, seconds)
            case Use() as use:
                heard_use(self.view, use)
                return  # nothing to decide
            case Rejected(message=message):
                heard_rejected(self.view, message)
            case HeldReplicas():
                heard_replicas(self.view, report)
                return  # nothing to decide; the next heartbeat says it
            case DrainAsked():
                heard_drain_asked(self.view, now)
            case _:
                assert_never(report)
        self._news.set()

    def leave(self, gave_up: str = "") -> None:
        """Hand over, then end; with `gave_up`, end as failed for this reason. Call it on the loop's thread."""
        heard_leave(self.view, gave_up)
        self._news.set()

    def notice(self, source: str, notice: Notice) -> None:
        """This processor will go: it hands over its tasks and stays. Call it on the loop's thread."""
        if heard_notice(self.view, source, notice):
            by = f" in {max(notice.by - self._context.now(), 0.0):.0f} s" if notice.by is not None else ""
            log.warning("decommissioning: this processor will go%s (%s); its tasks are handed over", by, notice.why)
            self._news.set()

    def withdraw(self, source: str) -> None:
        """The notice of this source is withdrawn. Call it on the loop's thread."""
        if heard_withdrawn(self.view, source):
            self._news.set()

    def gone(self, incarnation: str) -> bool:
        """A connection to this incarnation was closed, then refused. Return whether that counts. Call it on the loop's
        thread."""
        counts = heard_gone(self.view, incarnation, self._context.now())
        if counts:
            log.info("the process of incarnation %s has ended, as its closed port says", incarnation[:8])
            self._news.set()
        return counts

    def rung(self) -> None:
        """Another processor says that there is something to read. Call it on the loop's thread."""
        if heard_ring(self.view, self._context.now()):
            self._news.set()

    def fail(self, finish: Finish) -> None:
        """End at once with this verdict, after an error that no step of the protocol can repair."""
        self._end = self._end or finish
        self._news.set()

    def _turn(self) -> None:
        view, context = self.view, self._context
        now = context.now()
        turn(view, now, random=context.random(), fresh_id=context.fresh_id(), wall_ms=context.wall_ms())
        decision = decide(view, now)
        self._wake_at = decision.wake_at
        for action in decision.actions:
            match action:
                case Tell(command=command):
                    perform_locally(view, action, now)
                    self._tell(command)
                case StepDown(reason=reason) | Rejoin(reason=reason):
                    log.warning(reason)
                    perform_locally(view, action, now)
                    self._news.set()
                case BeginEnd() | Finish():
                    perform_locally(view, action, now)
                    self._news.set()
                case _ if view.free(resource(action), now):
                    started(view, action, now)
                    call = asyncio.get_running_loop().create_task(self._call(action, now))
                    self._calls.add(call)
                    call.add_done_callback(self._calls.discard)
        self._watch(view)
        if self._bells is not None:
            self._bells.hold(wanted(view))
        self._say_going(view.going)
        if (waits := waiting(view)) != self._waits:
            self._waits = waits
            if waits:
                log.warning("This processor waits. %s", waits)

    def _say_going(self, going: Going | None) -> None:
        """Log each state once, and a notice of the control blob, which comes by none of our calls."""
        state = going.state if going is not None else Availability.SCHEDULABLE
        if state is self._state or self.view.leaving:
            return
        before, self._state = self._state, state
        if going is None:
            log.warning("schedulable again: the notice was withdrawn")
        elif going.state is Availability.DECOMMISSIONED:
            log.warning("decommissioned: %s; it waits without tasks until its machine ends", going.so_far)
        elif going.asked and before is Availability.SCHEDULABLE:
            log.warning("decommissioning: this processor will go (%s); its tasks are handed over", going.why)

    async def _call(self, action: StorageAction, sent_at: float) -> None:
        view = self.view
        if isinstance(action, CleanRun) and isinstance(view.control, Control):
            await self._copies.kept(view.control)  # says that the run is drained
        try:
            answer = await perform(
                action,
                view.me,
                self._blob,
                self._table,
                self._runs,
                limit=view.settings.blob_limit,
                timeout=answer_within_s(view, action),
                known=view.others.members,
                trouble=self._tell_trouble,
            )
            self._reached = self._reached or not isinstance(answer, Trouble)
        except AccessDenied as error:
            answer, self._reached = Denied(str(error), error.may_pass), True
        except (CorruptState, ConfigError) as error:
            self.fail(Finish(error.exit_code, str(error)))
            return
        except Exception:
            if self._rate_limit.is_due(resource(action)):
                log.exception("A call to the storage failed with an unexpected error: %s", resource(action))
            answer = Trouble.UNSETTLED  # the write may have happened; only a read can tell
        now = self._context.now()
        self._called(action, answer, now - sent_at)
        denied, stands_by = bool(view.calls.denied), view.too_old_for
        learn(view, action, answer, sent_at=sent_at, now=now)
        if isinstance(action, WriteControl) and isinstance(answer, str):
            self._copies.published(action.control)
        if self._bells is not None and isinstance(action, WriteLeaderRow) and isinstance(answer, str):
            news = action.row.epoch, action.row.version, action.row.signal
            if news != self._rung_for:
                self._rung_for = news
                self._bells.ring()
        if isinstance(answer, Denied) and view.calls.let_in and not denied:  # log it once, not for each call
            log.warning("%s It worked before. This processor ends if that lasts %.0f s.", answer.reason, DENIED_S)
        elif (
            isinstance(answer, Denied)
            and answer.may_pass
            and not view.calls.let_in
            and self._rate_limit.is_due("a right")
        ):
            log.warning("%s %s", answer.reason, WAITS_FOR_ROLE)
        elif denied and not view.calls.denied:
            log.warning("The storage account no longer refuses this processor.")
        if isinstance(answer, Later) and view.too_old_for > stands_by:
            log.warning("%s %s", answer.reason, STANDS_BY)
        if isinstance(answer, TooLarge) and view.ending is None:
            log.warning("%s Until then not all new processors get tasks; running tasks go on.", answer.reason)
        self._news.set()

    def _tell_trouble(self, error: StorageUnavailable) -> None:
        """Say why work is paused: the container only knows that no heartbeat was accepted."""
        view = self.view
        if view.calls.let_in and self._context.now() > view.permit_until and self._rate_limit.is_due("outage"):
            log.warning("%s Work is paused until the account answers again.", error)

    async def _wait(self) -> None:
        """Wait until something was learned, or until the decision may change by time alone."""
        sleep_s = max(LEAST_SLEEP_S, self._wake_at - self._context.now())
        timer = asyncio.get_running_loop().call_later(sleep_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()


def call_timeout_s(timing: Timing) -> float:
    """The timeout of a call, in seconds."""
    return min(CALL_S, max(CALL_LEAST_S, timing.heartbeat_timeout_s / 3))


def answer_within_s(view: View, action: StorageAction) -> float:
    """The timeout of this call, in seconds. A leader has to make another one of its row before others take over, also
    if two have no answer; after a wrong suspicion, since the storage may be slow, it waits for longer.
    """
    usual = call_timeout_s(view.timing)
    if resource(action) != LEADER_ROW or not view.leads:
        return usual
    return min(usual, max(CALL_LEAST_S, leader_timeout(view) / 3))


__all__ = [
    "UNREACHABLE_S",
    "WAITS_FOR_ROLE",
    "ContainerLost",
    "ContainerSilent",
    "Doorbells",
    "Processor",
    "ProcessorContext",
    "answer_within_s",
    "call_timeout_s",
]

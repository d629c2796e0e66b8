"""A storage that records what it accepted, and checks the invariants after each accepted write.

Safety is judged by what took effect, never by what a processor believes. `INVARIANTS` says what each name means; a
violation ends with that sentence. What the ledger cannot see is checked in `world`, `promises`, `container`, `life` and
`cost`.
`docs/invariants.md` lists where each invariant is checked and which mistakes the check must catch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from samza_azure.group.bells import MISSED
from samza_azure.group.control import BarrierState, Control, Owner, RunPhase, decode
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import REQUESTS, ProcessorState, processor_row
from samza_azure.group.timing import FORGIVE_AFTER_S, SELF_STOP, Timing
from samza_azure.logs.names import COPIES, RUNS, run_of, task_log
from samza_azure.logs.record import READ, SHUT_DOWN, Header, Kind, Writer, decode_header
from samza_azure.messages import DrainStep, Phase, TaskReport
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Value
from samza_azure.storage.memory import MemoryStorage
from simulator.cost import Cost
from simulator.deletions import Deletions
from simulator.network import SENDER
from simulator.requested import Requested
from simulator.shares import cold_moves, needless_moves, unowned
from simulator.steps import Steps
from simulator.vandal import VANDAL

#: What must always hold (S), what must come true in time (L), and rules of conduct without a number. The only place
#: where these sentences are written; `docs/invariants.md` repeats them, and a test compares.
INVARIANTS = {
    "S1": "Each accepted write of the control blob raises the revision by one. Epoch and version never fall, an epoch "
    "has one leader, the group id never changes, and the owner of a task changes only together with the version.",
    "S2": "The accepted records of a task's log form one run per writer. Writers only rise, batch ids strictly rise, "
    "and nothing follows DRAINED.",
    "S3": "No heartbeat of an incarnation is accepted after it was marked dead.",
    "S4": "Past its self-stop deadline a processor permits no batch, starts no task and sends no append.",
    "S5": "A task whose owner did not change is never released, except by an owner that is exiting.",
    "S6": "After a refused write of the control blob a leader sends nothing further as leader.",
    "S7": "Each row of the input is in the output exactly once, for every schedule of crashes, pauses, lost answers "
    "and drains, and no row is late that a serial reader would have read in time.",
    "S8": "A prefix of a log that was once readable never changes.",
    "S9": "Nothing is deleted that a restore, a replay or a reader may still need.",
    "S10": "A processor is marked dead, and its row deleted, only after its own silence has lasted as long as the "
    "timeout, or because it did not adopt a version in time, or because it cannot reach the control blob while the "
    "leader can; after a bell, 1.25 heartbeats of silence are enough, if the leader had an answer to each of its calls "
    "to the table meanwhile. An outage marks nobody dead.",
    "S11": "A fault causes at most two changes of the leader. Without a fault neither the epoch nor the version "
    "changes. Deposing a leader that is alive lengthens the timeout of all processors.",
    "S12": "A run keeps its pipeline. FLUSH follows a FREEZE of the same drain and cannot be taken back. While a run "
    "drains, a task moves only if it has lost its owner, or its owner its container, and a stop cancels a FREEZE. "
    "DRAINED implies that each log ends in DRAINED, and is final. A task that has asked for its shutdown does not "
    "run again in that run. The next run begins at the positions of the drained one. A clean-up deletes only what is "
    "left of drained runs, and only after the other processors have left them. A pipeline that has had its run gets "
    "another one only if somebody asks for it after that. A request has one answer, which is true.",
    "L1": "When the faults end, within a bound one processor leads and names its successors, every task runs at its "
    "owner and is known to have a log, and the tasks are balanced. A processor that is asked to leave is gone, and a "
    "drain is over, within a bound.",
    "L2": "Under mild faults that never end, every task runs at least 95 % of the time, and a death is handled within "
    "twice its stated bound.",
    "Order": "A processor first stops its work, then writes LEFT into its row, then gives up the lease. Two kinds of "
    "leaders give up the lease alone: one that stays, and cannot act where its successor can; and one that was told "
    "that it will go, once it has no tasks (others have them, or no run is in progress), or if it stays until its "
    "machine ends.",
    "Exit": "A processor exits only for a reason that is a fact, with the exit code of that reason, and never because "
    "of an unexpected error.",
    "Notice": "A processor that is told that it will go has handed over its tasks and the leadership before it goes, "
    "if nothing else is wrong, another one can take them, and there is time for a scan of the leader, a look of its "
    "own and a batch.",
    "Debounce": "Two versions of one leader are at least one debounce apart, unless a task has lost its owner.",
    "Retry": "A run fails only when two processors have given up a task, or one has while no other was there to try "
    "it.",
    "Leak": "A processor's row reports only tasks that the control blob gave to its incarnation, and is ACTIVE from "
    "the first version that this incarnation adopts. No life remembers more than there are rows, tasks and kinds of "
    "calls.",
    "Cost": "No processor makes more than 40 calls of one kind within a second, and a group that is calm, or that "
    "nothing answers, makes at most 1.5 times the calls that `explain` states. A task calls a throttling service no "
    "sooner than that asks for, or after five seconds.",
    "Overlap": "No task starts while an earlier owner of it, alive and permitted, still runs it, unless the new owner "
    "has waited for as long as a release may take.",
    "Leader": "No two processors say at the same time that they lead, and none says it past its permit.",
    "Fresh": "What a processor knows of another's row never becomes older.",
    "Patience": "A processor that was given a task, and may work, waits for the earlier owners no longer than 1.5 "
    "times as long as a release may take. A task that ended for want of a permit or a container is started again "
    "about a second after both are there.",
    "Bound": "When one processor dies and nothing else is wrong, its tasks have other owners, and the group has a "
    "leader, within 1.5 times the bound that `explain` states; the tasks run soon after. So they do when its container "
    "ends or hangs. While there are faults the same holds in each quiet time, with the bound for a leader that is lost "
    "with its successors.",
    "Idle": "In a quiet time no processor that could run tasks has two fewer than another for longer than a task may "
    "have no owner.",
    "Form": "What is written is read back as it was meant, by production and by a plain reader that shares no code "
    "with it, and stays within the limits of the service. Data that is damaged, foreign or of a later format is "
    "refused.",
    "Answer": "A call has done to the account what its answer means: done, refused, not done, or unknown. "
    "A clean-up deletes what is left of its run, and nothing else.",
    "Owned": "A published version names an owner for every task, while one processor is able to run it.",
    "Least moves": "A version moves as many tasks of processors that stay as there are above their shares, and no "
    "more; with replicas, some of them may wait. While a run drains, it moves none.",
    "Warm": "Where tasks have replicas, a task with state moves from a processor that stays only to one that was "
    "asked to follow its log before.",
    "Vandal": "Rows and requests with columns that are missing, too many or of another type, whoever writes them, end "
    "no processor, change no leader and no version, and begin no drain.",
}
#: In these phases nobody works in the run, so it is not taken back.
_OVER = (RunPhase.DRAINED, RunPhase.FAILED, RunPhase.NONE)
#: The change of phase when processors that come back continue the drain of a failed run.
FAILED_DRAIN = (RunPhase.FAILED, RunPhase.DRAINING)
#: Clocks differ by a tenth at most, so an observed silence is at least this part of the true one.
CLOCK_RATE = 0.88
#: Ages do not grow in an outage, so for this part of the timeout after it no row is old enough to be marked.
OUTAGE_FORGIVEN = 0.15


class Violation(AssertionError):
    """An invariant is violated. The message begins with its name and ends with its text."""

    def __init__(self, what: str) -> None:
        name = what.partition(":")[0]
        super().__init__(f"{what}\n{name}: {INVARIANTS[name]}" if name in INVARIANTS else what)


@dataclass(slots=True)
class Log:
    """What a task's log has accepted."""

    writer: Writer | None = None
    batch: int = -1
    begun_at: float | None = None  # when the first batch was appended
    drained: bool = False
    shut_down: Writer | None = None  # who has ended it because the task has asked for its shutdown
    read: Mapping[str, Sequence[int]] = field(default_factory=dict)  # source partitions, as the last record says


@dataclass(slots=True)
class Beats:
    """The accepted heartbeats of one incarnation."""

    last: float
    dead: bool = False
    cut_off_since: float | None = None  # since when its row says that it is cut off
    lacked_at: float = -1e9  # when its row last said that it has no container


@dataclass(slots=True)
class Facts:
    """Facts that the world knows and the storage does not."""

    instant: Callable[[], float]
    timing: Timing
    on_drained: Callable[[Control], None] = lambda control: None
    note: Callable[[str], None] = lambda text: None
    is_asked_for: Callable[[str], bool] = lambda run: True  # another run after this one
    rung_at: Callable[[str, str], float | None] = lambda processor, of: None  # a bell told it that this one has ended
    replicas: bool = False  # whether tasks with state have some
    clock_slack: float = 0.0  # the share by which a slow clock extends a deadline
    no_beats: list[tuple[float, float]] = field(default_factory=list)  # outages in which no heartbeat was possible
    no_blob: list[tuple[float, float]] = field(default_factory=list)  # outages in which nobody reached the control blob
    jumps: list[tuple[str, float]] = field(default_factory=list)  # processors whose clock jumped, and when

    def reachable_s(self, since: float) -> float:
        """How long since then the blob was reachable, except for processors that are cut off themselves."""
        now, free, at = self.instant(), 0.0, since
        for begun, ended in sorted(self.no_blob):
            free += max(min(begun, now) - at, 0.0)
            at = max(at, min(ended, now))
        return free + max(now - at, 0.0)

    def jumped(self, processor: str, since: float) -> int:
        """How often this processor's clock has jumped since then."""
        return sum(who == processor and at >= since for who, at in self.jumps)


class Ledger(MemoryStorage):
    """`MemoryStorage` that records its history and checks the invariants."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.instant)
        self.facts = facts
        self.control: Control | None = None
        self.logs: dict[str, Log] = {}
        self.beats: dict[str, Beats] = {}
        self.seen: Counter[str] = Counter()
        self.steps = Steps(facts.instant, self.seen)
        self.takeovers = 0
        self.told_until: dict[tuple[str, int], float] = {}  # (name, life) that was told that it will go -> until when
        self.deposed: dict[tuple[str, int], float] = {}  # (name, life) -> when it learned that its write was refused
        self._beaten: dict[tuple[str, int], float] = {}  # (name, life) -> its last accepted heartbeat
        self._owners: dict[tuple[str, int], str] = {}  # log and generation -> incarnation
        self._given: set[tuple[str, str, int]] = set()  # incarnation, task, generation
        self._given_at: dict[tuple[str, int], float] = {}  # log and generation -> when it was published
        self._left: dict[str, float] = {}  # incarnation -> when its row said that it has left
        self._fitted: dict[str, float] = {}  # processor -> until when the row of its former life named a pipeline
        self._kept: set[str] = set()  # the drained runs that a copy of the control blob knows as such
        self.deletions = Deletions()
        self.cost = Cost()
        self._requested = Requested()
        self._published = (0, 0.0)  # epoch and instant of the last version
        self._gave_up: dict[tuple[str, Owner], float] = {}  # (task, owner) -> since when its row says that it gave up

    # The control blob: S1, S6, S12.

    def control_create(self, data: bytes) -> str | Refused:
        answer = super().control_create(data)
        if isinstance(answer, str):
            self.control = decode(data)
            self.facts.note("the control blob is created")
        return answer

    def control_write(self, data: bytes, etag: str, lease_id: str) -> str | Refused:
        self._check_deposed("control write")
        answer = super().control_write(data, etag, lease_id)
        if isinstance(answer, Refused):
            self.seen[f"control write refused {answer.code}"] += 1
            return answer
        before, after = self.control, decode(data)
        assert before is not None
        self._check_control(before, after)
        _check(self._requested.publish(after))
        self.control = after
        self._tell(before, after)
        if after.phase is RunPhase.DRAINED and before.phase is not RunPhase.DRAINED:
            self.facts.on_drained(after)
        return answer

    def lease_break(self, etag: str | None) -> None | Refused | Missing:
        answer = super().lease_break(etag)
        if answer is None:
            self.steps.begin("campaign", who=_sender())
        return answer

    def lease_acquire(self, lease_id: str, seconds: int, etag: str | None) -> None | Refused | Missing:
        answer = super().lease_acquire(lease_id, seconds, etag)
        sender = SENDER.get()
        if answer is None:
            self.steps.begin("campaign", who=_sender())
        if answer is None and sender is not None:
            self.deposed.pop((sender.name, sender.life), None)
        return answer

    def _check_control(self, before: Control, after: Control) -> None:
        demand(after.revision == before.revision + 1, f"S1: revision {before.revision} became {after.revision}")
        demand(after.epoch >= before.epoch, f"S1: epoch {before.epoch} became {after.epoch}")
        demand(after.version >= before.version, f"S1: version {before.version} became {after.version}")
        demand(after.group_id == before.group_id, "S1: the group id changed")
        if after.epoch == before.epoch:
            same = after.leader in (before.leader, None)
            demand(same, f"S1: epoch {after.epoch} has two leaders, {before.leader} and {after.leader}")
        for task, now in after.tasks.items():
            old = before.tasks.get(task)
            if old is None or now.owner is None or now.owner == old.owner or after.run_id != before.run_id:
                continue
            demand(now.owner.generation == after.version, f"S1: {task} changed hands without a version of its own")
            values = self._member(now.owner.processor)
            fits = values.get("incarnation") != now.owner.incarnation or values.get("fingerprint") == after.fingerprint
            demand(fits, f"S12: {task} is given to {now.owner.processor}, which has another pipeline")
        if before.leader is not None and after.leader is None:
            values = self._member(before.leader.processor)
            works = values.get("incarnation") == before.leader.incarnation and _alive(values)
            # Without tasks it may have begun to leave while this write was under way: it has no work to stop.
            stays = works and (_present(values) or values.get("tasks") == "{}") and self._is_abler(after, values)
            stays = stays or self._goes_without_tasks(before, values)
            demand(not works or stays, f"Order: {before.leader.processor} gives up the lease, and its row is not LEFT")
        if after.version != before.version:
            self._check_debounce(before, after)
            is_judged, wrong = unowned(before, after)
            self.seen["judged Owned"] += is_judged
            _check(wrong)
        self._check_churn(before, after)
        self._check_drain(before, after)
        self._check_moves(before, after)
        self._check_retry(before, after)
        if after.version != before.version:  # last: of a drain S12 says which owner is there, and so more
            is_judged, wrong = needless_moves(before, after, replicas=self.facts.replicas)
            if is_judged and self.have_containers(after):
                self.seen["judged Least moves"] += 1
                _check(wrong)
            if self.have_containers(after):
                number, wrong = cold_moves(before, after, lambda task: self._is_heavy(before.run_id, task))
                self.seen["judged Warm"] += number
                _check(wrong)

    def _is_heavy(self, run_id: str, task: str) -> bool:
        """Whether a task had a batch so long ago that each leader knows it."""
        begun_at = self._log(run_id, task).begun_at
        return begun_at is not None and self.facts.instant() > begun_at + 3 * self.facts.timing.heartbeat_timeout_s

    def _goes_without_tasks(self, before: Control, values: Mapping[str, object]) -> bool:
        """Whether the leader of `before` was told that it will go, and has no tasks, or says that it stays until its
        machine ends. While no run is in progress its row tells: one that ends with its run still reports its tasks.
        """
        sender = SENDER.get()
        if sender is None or sender.sent_at > self.told_until.get((sender.name, sender.life), float("-inf")):
            return False
        if before.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
            return values.get("tasks") == "{}"
        has_tasks = any(each.owner is not None and each.owner.member == before.leader for each in before.tasks.values())
        return not has_tasks or '"stays":true' in str(values.get("going", ""))

    def lacks_container(self, processor: str) -> str | None:
        """The trouble if its row says that it has no container."""
        return f"{processor} has no container" if self._member(processor).get("no_container") else None

    def have_containers(self, control: Control) -> bool:
        """Whether no member's row has lately said that it lacks a container, or had no chance to say it: its tasks may
        wait, or move. A leader knows that it lacks its own before its row can say so.
        """
        since = self.facts.instant() - 2 * self.facts.timing.heartbeat_timeout_s
        if any(ended >= since for _, ended in self.facts.no_beats):
            return False
        return not any(self._lacks_container(member.incarnation) for member in control.members)

    def _lacks_container(self, incarnation: str) -> bool:
        """Whether its row has lately said that it lacks a container, or says so still: it may have died since, and the
        leader too, before that could mark it dead.
        """
        beats, since = self.beats.get(incarnation), self.facts.instant() - 2 * self.facts.timing.heartbeat_timeout_s
        return beats is not None and beats.lacked_at >= min(since, beats.last)

    def _is_abler(self, after: Control, former: Mapping[str, Value]) -> bool:
        """Whether the successor can act where the former leader, which stays, cannot, as far as that one can know."""
        theirs, ours = self._member(after.successor or "").get("fingerprint"), former.get("fingerprint")
        if after.phase is RunPhase.DRAINED:  # the successor may have been restarted since the former leader's last scan
            until = self._fitted.get(after.successor or "", float("-inf"))
            return bool(theirs) or self.facts.instant() <= until + 3 * self.facts.timing.heartbeat_timeout_s
        return bool(theirs) and theirs != ours and (not after.fingerprint or theirs == after.fingerprint)

    def _check_churn(self, before: Control, after: Control) -> None:
        """S11: a leader that finds its deposed predecessor alive counts a wrong suspicion."""
        deposed = before.deposed
        if deposed is None or after.deposed is not None or after.epoch != before.epoch:
            return
        values = self._member(deposed.processor)
        lives = values.get("incarnation") == deposed.incarnation and _alive(values)
        is_more_patient = after.churn > before.churn
        demand(
            is_more_patient or not lives,
            f"S11: {deposed.processor} was deposed although it lives, and the timeout has not grown",
        )

    def _check_moves(self, before: Control, after: Control) -> None:
        """S12: while a run drains, its tasks stay with their owners, unless these have lost their containers, as far as
        the leader knows. Those of the leader are not checked: it may have decided to leave before its row says so."""
        if after.phase is not RunPhase.DRAINING or after.run_id != before.run_id:
            return
        for task, each in before.tasks.items():
            owner = each.owner
            if owner is None or owner == after.tasks[task].owner or owner.member == before.leader:
                continue
            values = self._member(owner.processor)
            stays = values.get("incarnation") == owner.incarnation and _present(values)
            beats = self.beats.get(owner.incarnation)
            until = beats.lacked_at + 3 * self.facts.timing.heartbeat_timeout_s if beats is not None else 0.0
            stays = stays and self.facts.instant() > until
            forced = task in after.given_up and after.given_up[task] != before.given_up.get(task)
            demand(forced or not stays, f"S12: {task} leaves {owner.processor}, which is there, while the run drains")

    def _check_retry(self, before: Control, after: Control) -> None:
        """Retry: a run has failed only if two processors gave up one task, or no other was there to try it."""
        if after.run_id != before.run_id:
            return
        if after.phase is RunPhase.FAILED and before.phase is not RunPhase.FAILED:
            task = after.failure.task if after.failure is not None else ""
            owner, earlier = before.tasks[task].owner, before.given_up.get(task)
            demand(owner is not None and (task, owner) in self._gave_up, f"Retry: nobody gave {task} up, and it failed")
            assert owner is not None
            tried = earlier is not None and earlier.owner.processor != owner.processor
            others = [] if tried else self._others(before, after, owner.processor)
            demand(not others, f"Retry: {task} failed on {owner.processor} alone, and {others} were there")
        for task, each in after.given_up.items():
            owner = after.tasks[task].owner
            demand((task, each.owner) in self._gave_up, f"Retry: {each.owner.processor} did not give {task} up")
            demand(owner != each.owner, f"Retry: {task} was given up, and it does not move")
            if owner is not None and owner != before.tasks[task].owner and owner.processor == each.owner.processor:
                others = [
                    member.processor
                    for member in after.members
                    if member.processor != owner.processor and not self._lacks_container(member.incarnation)
                ]
                demand(not others, f"Retry: {task} goes back to {owner.processor}, and {others} were there")
        for task, each in before.given_up.items():
            if after.phase in (RunPhase.RUNNING, RunPhase.DRAINING) and task not in after.given_up:
                values = self._member(each.owner.processor)
                lives = values.get("incarnation") == each.owner.incarnation and _alive(values)
                since = self.facts.instant() - self._gave_up[task, each.owner]
                forgiven = since >= FORGIVE_AFTER_S * CLOCK_RATE or bool(self.facts.jumps)
                demand(not lives or forgiven, f"Retry: {each.owner.processor} gave {task} up, and that is forgotten")

    def _others(self, before: Control, after: Control, processor: str) -> list[str]:
        """Other members that are still there. Not the leader: it may have decided to leave before its row says so."""
        there = []
        for member in before.members:
            values = self._member(member.processor)
            if member.processor != processor and member != after.leader and _present(values):
                there += [member.processor] if values.get("incarnation") == member.incarnation else []
        return there

    def _check_debounce(self, before: Control, after: Control) -> None:
        """Unless a task has lost its owner, versions come one debounce apart, by the leader's clock."""
        epoch, instant = self._published
        self._published = (after.epoch, self.facts.instant())
        if after.leader is not None and self.facts.jumped(after.leader.processor, instant):
            return
        if any(before.given_up.get(task) != each for task, each in after.given_up.items()):
            return
        leaver = before.leader if before.leader == after.leader else None
        for task, assignment in before.tasks.items():
            owner = assignment.owner
            values = self._member(owner.processor) if owner is not None else {}
            moved = task not in after.tasks or after.tasks[task].owner != owner
            is_there = owner is not None and values.get("incarnation") == owner.incarnation and _present(values)
            if not is_there or (moved and owner is not None and leaver == owner.member):
                return
        gap = self.facts.instant() - instant
        soon = epoch == after.epoch and gap < self.facts.timing.debounce_s * CLOCK_RATE
        demand(not soon, f"Debounce: version {after.version} came {gap:.2f} s after the one before it")

    def _member(self, processor: str) -> Mapping[str, Value]:
        entity = self._rows.get(("members", processor))
        return entity.values if entity is not None else {}

    def _check_drain(self, before: Control, after: Control) -> None:
        same_run = after.run_id == before.run_id
        if same_run:
            demand(after.fingerprint == before.fingerprint, f"S12: run {after.run_id} changed its fingerprint")
        else:
            demand(before.phase in (RunPhase.NONE, RunPhase.DRAINED), f"S12: run {before.run_id} was not drained")
            demand(after.run_id not in before.past, f"S12: drained run {after.run_id} came back")
            demand(after.positions == before.positions, "S12: the next run does not begin where the last one ended")
            again = before.phase is RunPhase.DRAINED and before.has_finished(after.fingerprint)
            wanted = not again or self.facts.is_asked_for(before.run_id)
            demand(wanted, f"S12: {after.run_id} has the pipeline of a run that is drained, and nobody asked for it")
        old, new = before.drain, after.drain
        if old is not None and old.step is DrainStep.FLUSH and same_run:
            kept = new is not None and (new.uuid, new.step, new.ends) == (old.uuid, old.step, old.ends)
            demand(kept, f"S12: after FLUSH the drain became {new}")
        if new is not None and new.step is DrainStep.FLUSH and (old is None or old.uuid != new.uuid):
            raise Violation("S12: FLUSH without FREEZE")
        if new is not None and new.step is DrainStep.FREEZE and after.stop is not None and after.phase not in _OVER:
            raise Violation("S12: all are to stop, and the freeze is not taken back")
        if before.phase is RunPhase.DRAINED and same_run:
            demand(after.phase is RunPhase.DRAINED, f"S12: run {after.run_id} went from DRAINED to {after.phase}")
        if after.phase is RunPhase.DRAINED and before.phase is not RunPhase.DRAINED:
            open_logs = [task for task in after.tasks if not self._log(after.run_id, task).drained]
            demand(not open_logs, f"S12: DRAINED, but the logs of {open_logs} are not")

    def _log(self, run_id: str, task: str) -> Log:
        return self.logs.get(task_log(run_id, task), Log())

    def _tell(self, before: Control, after: Control) -> None:
        seen, note = self.seen, self.facts.note
        if after.epoch != before.epoch:
            self.takeovers += 1
            seen["take-over"] += 1
            deposed = after.deposed
            seen["take-over after a bell"] += (
                deposed is not None and self.facts.rung_at(_sender(), deposed.incarnation) is not None
            )
            note(f"epoch {after.epoch}: {after.leader.processor if after.leader else '?'} leads")
        if after.leader is None and before.leader is not None:
            seen["leader hands over"] += 1
            note(f"{before.leader.processor} hands the leadership to {after.successor or 'anyone'}")
        if after.version != before.version:
            moved = [
                task
                for task, now in after.tasks.items()
                if task in before.tasks
                and before.tasks[task].owner is not None
                and now.owner != before.tasks[task].owner
            ]
            seen["version"] += 1
            seen["task moved"] += len(moved)
            owners = Counter(each.owner.processor if each.owner else "nobody" for each in after.tasks.values())
            note(f"version {after.version}: {', '.join(f'{name} {count}' for name, count in sorted(owners.items()))}")
        for task, each in after.given_up.items():
            if before.given_up.get(task) != each:
                seen["task given up"] += 1
                note(f"{task} is tried elsewhere: {each.owner.processor} gave it up")
        if after.phase is RunPhase.FAILED and before.phase is not RunPhase.FAILED and after.failure is not None:
            seen["task failed on two processors"] += before.given_up.get(after.failure.task) is not None
        if after.barrier != before.barrier and after.barrier.state is not BarrierState.START:
            seen[f"barrier {after.barrier.state}"] += 1
        if _step(after.drain) != _step(before.drain):
            seen[f"drain {_step(after.drain)}"] += 1
            note(f"drain: {_step(after.drain) or 'none'}")
        if after.phase != before.phase:
            seen[f"phase {after.phase}"] += 1
            seen["failed run is resumed, and drains on"] += (before.phase, after.phase) == FAILED_DRAIN
            note(f"run {after.run_id} is {after.phase}")
        for task, assignment in after.tasks.items():
            if assignment.owner is not None:
                where = (task_log(after.run_id, task), assignment.owner.generation)
                self._owners[where] = assignment.owner.incarnation
                self._given_at.setdefault(where, self.facts.instant())
                self._given.add((assignment.owner.incarnation, task, assignment.owner.generation))
        self._follow_steps(before, after)

    def _follow_steps(self, before: Control, after: Control) -> None:
        steps, who = self.steps, _sender()
        if after.epoch != before.epoch:
            steps.end("campaign")
        steps.set("leaderless", after.leader is None, who)
        steps.set("barrier", after.barrier.state is not BarrierState.END, who)
        step = after.drain.step if after.drain is not None and after.phase is RunPhase.DRAINING else None
        steps.set("FREEZE", step is DrainStep.FREEZE, who)
        steps.set("FLUSH", step is DrainStep.FLUSH, who)
        steps.set("clean-up", bool(after.uncleaned), who)
        steps.set("stopping", after.stop is not None, who)
        if after.stop is not None and before.stop is None:
            self.seen["stop"] += 1
            self.facts.note("all are to stop")
        if before.stop is not None and after.stop is None:
            self.facts.note("the stop is over")
        if after.run_id != before.run_id:
            steps.begin("run begins", who=who)
        elif after.version and after.barrier.state is BarrierState.END:
            steps.end("run begins")
        for task, assignment in after.tasks.items():
            moved = task in before.tasks and assignment.owner != before.tasks[task].owner
            if moved and assignment.owner is not None and not self._log(after.run_id, task).drained:
                steps.begin("task moves", task, assignment.owner.processor)
            if after.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
                steps.end("task moves", task)
            if moved and (old := before.tasks[task].owner) is not None:
                steps.end("death", old.processor)

    # Rows: S3, S6, S10.

    def insert(self, partition: str, key: str, values: Mapping[str, Value]) -> str | Refused:
        answer = super().insert(partition, key, values)
        if partition == "members" and isinstance(answer, str):
            self._beat(key, values)
        return answer

    def update(self, partition: str, key: str, values: Mapping[str, Value], etag: str, *, merge: bool) -> str | Refused:
        entity = self._rows.get((partition, key))
        before = dict(entity.values) if entity is not None else {}
        # A former leader may later name itself the next leader, as any follower may.
        leads = partition == "leader" and values.get("successors") != _sender()
        if leads or (partition == "members" and "incarnation" not in values):
            self._check_deposed(f"write of {partition} row {key}")
        answer = super().update(partition, key, values, etag, merge=merge)
        if partition == "members" and before.get("fingerprint") and values.get("fingerprint") == "":
            self._fitted[key] = self.facts.instant()
        if isinstance(answer, Refused):
            self.seen[f"{partition} row refused"] += 1
        elif partition == "members" and "incarnation" in values:
            self._beat(key, values)
        elif partition == "members":
            self._check_mark(key, before, _whole(values.get("epoch")))
        elif partition == REQUESTS and "answer" in values:
            _check(self._requested.answer(key, before, str(values["answer"])))
        elif partition == "leader":
            demand(
                _whole(values.get("epoch")) >= _whole(before.get("epoch")),
                f"S1: the leader row went back from epoch {before.get('epoch')} to {values.get('epoch')}",
            )
        return answer

    def remove(self, partition: str, key: str, etag: str) -> None | Refused:
        values = dict(self._member(key)) if partition == "members" else {}
        answer = super().remove(partition, key, etag)
        gone = partition == "members" and answer is None and str(values.get("incarnation", "")) in self.beats
        demand(not (gone and _alive(values)), f"S10: the row of {key} was deleted, and it lives")
        return answer

    def _beat(self, processor: str, values: Mapping[str, Value]) -> None:
        incarnation, state = str(values["incarnation"]), values.get("state")
        if state == ProcessorState.LEFT:
            self._left.setdefault(incarnation, self.facts.instant())
        self.steps.set_for("joining", processor, state == ProcessorState.UNASSIGNED)
        self.steps.set_for("leaving", processor, state == ProcessorState.LEAVING)
        self.steps.end("death", processor)
        self._check_tasks(processor, values)
        beats = self.beats.setdefault(incarnation, Beats(self.facts.instant()))
        demand(not beats.dead, f"S3: a heartbeat of {incarnation[:8]} was accepted after its dead mark")
        beats.last = self.facts.instant()
        if values.get("cut_off"):
            beats.cut_off_since = beats.last if beats.cut_off_since is None else beats.cut_off_since
        else:
            beats.cut_off_since = None
        if values.get("no_container"):
            beats.lacked_at = beats.last
        if (sender := SENDER.get()) is not None:
            self._beaten[sender.name, sender.life] = beats.last

    def _check_tasks(self, processor: str, values: Mapping[str, Value]) -> None:
        row = processor_row(processor, "", values)
        if row.state in (ProcessorState.ACTIVE, ProcessorState.UNASSIGNED):
            fits = (row.state is ProcessorState.ACTIVE) == (row.adopted > 0)
            demand(fits, f"Leak: the row of {processor} says {row.state}, and version {row.adopted} is adopted")
        for task, report in row.tasks.items():
            given = (row.incarnation, task, report.generation) in self._given
            demand(
                given,
                f"Leak: the row of {processor} reports {task}, generation {report.generation}, which is not its own",
            )
            if report.phase is Phase.FAILED:
                owner = Owner(processor, row.incarnation, report.generation)
                self._gave_up.setdefault((task, owner), self.facts.instant())

    def _check_mark(self, processor: str, before: Mapping[str, Value], epoch: int) -> None:
        beats = self.beats.get(str(before.get("incarnation", "")))
        if beats is None:
            return
        beats.dead = True
        self.steps.end("joining", processor)
        self.steps.end("leaving", processor)
        if self.control is not None and any(
            each.owner is not None and each.owner.incarnation == before["incarnation"]
            for each in self.control.tasks.values()
        ):
            self.steps.begin("death", processor, _sender())
        silence = self.facts.instant() - beats.last
        self.seen["marked dead"] += 1
        self.facts.note(f"{processor} is marked dead after {silence:.1f} s of silence, epoch {epoch}")
        control = self.control
        behind = control is not None and _whole(before.get("adopted")) < control.version
        timing, jumps = self.facts.timing, self.facts.jumped(_sender(), beats.last)
        # A leader counts at most two intervals between two reads, so a jump of its clock adds no more than that.
        enough = silence >= timing.heartbeat_timeout_s * CLOCK_RATE - jumps * 2 * timing.scan_s
        timeout, now = self.facts.timing.heartbeat_timeout_s, self.facts.instant()
        rung_at, beat_s = self.facts.rung_at(_sender(), str(before["incarnation"])), timing.heartbeat_s / CLOCK_RATE
        # A bell is believed of one that has not beaten since; a write may have been under way.
        rung = rung_at is not None and (beats.last <= rung_at + beat_s or jumps > 0)
        rung = rung and silence >= MISSED * timing.heartbeat_s * CLOCK_RATE - jumps * 2 * timing.scan_s
        # A processor may also be marked if it has long reported that it is cut off while others could reach the blob.
        said = beats.cut_off_since
        cut_off = said is not None and self.facts.reachable_s(said) >= timeout * CLOCK_RATE
        self.seen["marked dead, cut off"] += cut_off and not enough and not behind
        behind = behind or cut_off
        self.seen["marked dead by a bell"] += rung and not enough and not behind
        demand(enough or behind or rung, f"S10: {processor} was marked dead after {silence:.2f} s of silence")
        for begun, ended in self.facts.no_beats:
            well_before = begun - timeout / 2 <= beats.last <= ended
            demand(
                behind or not well_before or now > ended + OUTAGE_FORGIVEN * timeout,
                f"S10: {processor} was marked dead for an outage that lasted from {begun:.2f} to {ended:.2f}",
            )

    def published_at(self, run_id: str, task: str, generation: int) -> float | None:
        """When this generation of a task was assigned to its owner."""
        return self._given_at.get((task_log(run_id, task), generation))

    def owns_alive(self, processor: str, run_id: str, task: str, generation: int) -> bool:
        """Whether, by its row, the incarnation that owns this generation of a task is alive."""
        values = self._member(processor)
        return _alive(values) and values.get("incarnation") == self._owners.get((task_log(run_id, task), generation))

    def asked(self, kind: str) -> bool:
        """Whether a request of this kind waits for its answer. A vandal's gets none."""
        waiting = (
            row for row in self.query(REQUESTS) if not row.key.startswith(VANDAL) and not row.values.get("answer")
        )
        return any(row.values.get("kind") == kind for row in waiting)

    def _check_deposed(self, what: str) -> None:
        sender = SENDER.get()
        if sender is None:
            return
        refused_at = self.deposed.get((sender.name, sender.life))
        demand(
            refused_at is None or sender.sent_at <= refused_at,
            f"S6: {sender.name} was refused as leader at {refused_at}, and its {what} was sent at {sender.sent_at}",
        )

    # Logs: S2, S4, S8, Order.

    def create(self, name: str) -> bool:
        known = self._blobs.get(name)
        length = len(known.data) if known is not None else 0
        answer = super().create(name)
        demand(len(self._blobs[name].data) >= length, f"S8: {name} was created again, with {length} bytes in it")
        return answer

    def append(self, name: str, data: bytes, position: int) -> int | Refused | Missing:
        answer = super().append(name, data, position)
        if isinstance(answer, int):
            start = 0
            while start < len(data):
                header = decode_header(data[start:], blob=name, position=position + start)
                self._check_record(name.rpartition("/")[0], header)
                files = start + header.size
                self.deletions.appended(
                    name, header, data[files : files + header.files_length], lambda blob: bytes(self._blobs[blob].data)
                )
                start += header.length
        else:
            self.seen["append refused"] += 1
        return answer

    def _check_record(self, prefix: str, header: Header) -> None:
        log = self.logs.setdefault(prefix, Log())
        where = f"{prefix}, writer {header.writer}, {header.kind.name} {header.batch}"
        self._check_appender(prefix, header, where)
        demand(not log.drained, f"S2: a record after DRAINED: {where}")
        if header.kind is Kind.EPOCH:
            rolled = log.writer == header.writer
            demand(log.writer is None or rolled or header.writer > log.writer, f"S2: {where} after writer {log.writer}")
            self.seen["log rolled" if rolled else "log taken over"] += 1
            self.seen["log with live readers rolled"] += rolled and ("/clean-" in prefix or "/tidy-" in prefix)
            self.steps.end("log rolls", prefix)
            self.steps.end("task moves", header.task)
        else:
            demand(log.writer == header.writer, f"S2: {where} without EPOCH, after writer {log.writer}")
        self.seen["idle record"] += header.kind is Kind.FRONTIER
        if header.kind in (Kind.BATCH, Kind.DRAINED):
            demand(header.batch > log.batch, f"S2: {where} after batch {log.batch}")
            log.batch = header.batch
            log.begun_at = self.facts.instant() if log.begun_at is None else log.begun_at
        if header.kind is Kind.ROLLED:
            self.steps.begin("log rolls", prefix, _sender())
        log.writer, log.drained, log.read = header.writer, header.kind is Kind.DRAINED, header.meta.get(READ, {})
        if header.meta.get(SHUT_DOWN):
            log.shut_down = header.writer
            self.seen["task shut down"] += 1
            self.facts.note(f"{header.task} has ended, as it asked")

    def _check_appender(self, prefix: str, header: Header, where: str) -> None:
        sender, incarnation = SENDER.get(), self._owners.get((prefix, header.writer.generation), "")
        if sender is None:
            return
        bound, left = self._bound(self._beaten[sender.name, sender.life]), self._left.get(incarnation)
        demand(
            sender.sent_at <= bound, f"S4: {where} was sent at {sender.sent_at:.2f}, {bound:.2f} was the last moment"
        )
        demand(left is None or sender.sent_at <= left, f"Order: {where} was sent at {sender.sent_at:.2f}, after LEFT")

    def delete(self, name: str) -> None:
        control = self.control
        if name.startswith(RUNS) and control is not None:
            run_id = run_of(name)
            demand(run_id in (control.run_id, *control.past), f"S12: {name} was deleted, and its run is not drained")
            if run_id == control.run_id and run_id in control.past and _sender():  # else a container forgets a blob
                working = [each.processor for each in self._workers(control) if each.processor != _sender()]
                demand(not working, f"S12: {name} was deleted, and {working} have not left the run")
            if run_id in control.past and _sender():
                self._check_copies(run_id, name)
            if run_id not in self._kept and name in self._blobs:  # later it is only cleaned up
                trouble = self.deletions.trouble(name, dict(self.list(RUNS)), control.tasks)
                demand(trouble is None, f"S9: {name} was deleted, and {trouble}")
                self.deletions.blobs[name] = bytes(self._blobs[name].data)
                self.seen["blob forgotten"] += 1
        super().delete(name)

    def _check_copies(self, run_id: str, name: str) -> None:
        """Without such a copy `recover` would take the drained run for one that has lost its logs."""
        if run_id not in self._kept:
            copies = (decode(bytes(self._blobs[each].data)) for each, _ in self.list(COPIES))
            known = any(run_id in each.past for each in copies)
            demand(known, f"S9: {name} was deleted, and no copy of the control blob says that its run is drained")
            self._kept.add(run_id)

    def _workers(self, control: Control) -> list[Owner]:
        """The owners of tasks whose rows still report them."""
        found = []
        for task, each in control.tasks.items():
            values = self._member(each.owner.processor) if each.owner is not None else {}
            if each.owner is None or values.get("incarnation") != each.owner.incarnation or not _alive(values):
                continue
            report = processor_row(each.owner.processor, "", values).tasks.get(task)
            if report is not None and report.generation == each.owner.generation:
                found.append(each.owner)
        return found

    def runs_on(self, run_id: str, report: TaskReport) -> str | None:
        """S12: what is wrong if a task runs that has asked for its shutdown."""
        log = self._log(run_id, report.task)
        is_over = log.shut_down is not None and log.shut_down < Writer(report.generation, report.attempt)
        if report.phase is not Phase.RUNNING or not is_over:
            return None
        return f"S12: {report.task} runs again in {run_id}, and has asked for its shutdown"

    def stopped_at(self, run_id: str, task: str) -> int | None:
        """Up to where a task has read its source partition, if it has asked for its shutdown."""
        log = self._log(run_id, task)
        return next((at for _, at in log.read.values()), 0) if log.shut_down is not None else None

    def has_log(self, run_id: str, task: str) -> bool:
        """Whether a task has a log."""
        return self._log(run_id, task).writer is not None

    def successors(self) -> list[str]:
        """The successors that the leader row names."""
        row = self._rows.get(("leader", "leader"))
        return str(row.values.get("successors", "")).split(",") if row is not None else []

    def all_written(self) -> MemoryStorage:
        """A storage that also has what was deleted during a run."""
        storage = MemoryStorage(self.facts.instant)
        for name, data in {**dict(self.deletions.blobs), **{n: bytes(b.data) for n, b in self._blobs.items()}}.items():
            storage.put(name, data)
        return storage

    def permit_bound(self, incarnation: str) -> float:
        """The true time until which this incarnation may work."""
        beats = self.beats.get(incarnation)
        return self._bound(beats.last if beats is not None else -1e9)

    def _bound(self, beaten: float) -> float:
        """The last accepted heartbeat plus the part of the timeout within which a processor must stop after it."""
        stop = SELF_STOP * self.facts.timing.heartbeat_timeout_s * (1 + self.facts.clock_slack)
        return beaten + stop + 1e-6


def demand(holds: bool, otherwise: str) -> None:
    """Raise `Violation` unless it holds."""
    if not holds:
        raise Violation(otherwise)


def _check(wrong: str | None) -> None:
    if wrong is not None:
        raise Violation(wrong)


def _sender() -> str:
    sender = SENDER.get()
    return sender.name if sender is not None else ""


def _alive(values: Mapping[str, Value]) -> bool:
    return values.get("state") not in (ProcessorState.DEAD, ProcessorState.LEFT)


def _present(values: Mapping[str, Value]) -> bool:
    return _alive(values) and values.get("state") != ProcessorState.LEAVING


def _step(drain: DrainNotification | None) -> str:
    return str(drain.step) if drain is not None else ""


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


__all__ = ["CLOCK_RATE", "INVARIANTS", "Facts", "Ledger", "Violation", "demand"]

"""Three processors, one control blob, one lease: which writes are accepted, however late they land.

What runs is production's: `election.campaign`, `decide.lead` with `next_control` and `hand_over`, `learn`, on a `View`
without time. Every wait may end at any moment or last forever, and a lease may run out at any moment while its holder
still believes in it; so what holds here depends on no clock. The blob and its lease are `storage/memory.py`. A call is
sent, then it lands, later if it must: its answer may be lost, it may land twice, or after its sender has given it up. A
crash or a pause: the processor's next step never comes, or comes late.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from samza_azure.group import decide, election
from samza_azure.group.actions import (
    AcquireLease,
    BreakLease,
    ReadControl,
    ReleaseLease,
    ScanMembers,
    StepDown,
    StorageAction,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, ControlRead, Trouble
from samza_azure.group.control import NAME, Assignment, Barrier, BarrierState, Control, Member, Owner, RunPhase
from samza_azure.group.learn import learn, perform_locally, turn
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.timing import LEASE_S, Timing
from samza_azure.group.view import Leadership, Lease, OwnIncarnation, Settings, View
from samza_azure.messages import Plan, StagePlan
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Content
from samza_azure.storage.memory import MemoryStorage
from tests.model.checker import Shelf, Violation

NAMES = ("p1", "p2", "p3")
PLAN = Plan((StagePlan("clean", ("flights",), "by", 3),), {"flights": 3}, "f" * 64)
ROWS = tuple(
    ProcessorRow(name, f"life of {name}", f"row of {name}", 1, 1, ProcessorState.ACTIVE, fingerprint=PLAN.fingerprint)
    for name in NAMES
)
#: p1 leads, and each has a task.
BEGUN = Control(
    group_id="ab" * 16,
    revision=1,
    epoch=1,
    version=1,
    leader=Member("p1", "life of p1"),
    run_id="run",
    phase=RunPhase.RUNNING,
    fingerprint=PLAN.fingerprint,
    sources=PLAN.sources,
    tasks={
        task: Assignment(Owner(name, f"life of {name}", 1), first=False)
        for task, name in zip(PLAN.tasks(), NAMES, strict=True)
    },
    barrier=Barrier(1, BarrierState.END),
)
NEVER = -1e9


class Blob(NamedTuple):
    """The control blob. Its ETag is the number of its accepted writes. A lease that is broken or has run out neither
    admits nor excludes a writer, so it counts as none."""

    control: int
    etag: int
    lease: str = ""


class Local(NamedTuple):
    """A processor: what it knows, and how many fresh ids it has used."""

    view: int
    fresh: int = 0


class State(NamedTuple):
    """A state."""

    blob: Blob
    locals: tuple[Local, ...]
    late: tuple[int, ...]  # calls that were given up and may still land
    faults: int


@dataclass(eq=False)
class Leading:
    """`revisions` bounds how often leaders change something; leaderships may change without bound."""

    faults: int = 1
    revisions: int = 3
    if_match: bool = True  # fence: each write, break and acquire carries the ETag that it was decided for
    lease_id: bool = True  # fence: each write carries the lease id
    own_order: bool = True  # judge also whether a leader's own writes keep their order

    def __post_init__(self) -> None:
        self.views: Shelf[View] = Shelf()
        self.controls: Shelf[Control] = Shelf()
        self.calls: Shelf[StorageAction] = Shelf()
        self.answers: Shelf[Answer] = Shelf()
        self.choices = cache(self._choices)
        self.perform = cache(self._perform)
        self.told = cache(self._told)
        self.judge = cache(self._judge)
        self.deposed = cache(self._deposed)
        self.leads = cache(self._leads)

    def begin(self) -> State:
        first = Blob(self.controls.put(BEGUN), 1, "p1.0")
        locals_ = []
        for name in NAMES:
            view = View(Settings(name, Timing()), OwnIncarnation(f"life of {name}"))
            view.work.plan, view.own.etag, view.group_id, view.work.active_run = (
                PLAN,
                "row",
                BEGUN.group_id,
                BEGUN.run_id,
            )
            view.own.written = next(row for row in ROWS if row.processor == name)
            view.own.control, view.own.control_etag = BEGUN, _etag(1)
            view.others.scanned_at = NEVER
            if name == "p1":
                view.leadership = Leadership(Lease("p1.0", 0.0), 0.0, 0.0)
            locals_.append(Local(self.views.put(timeless(view)), fresh=1))
        return State(first, tuple(locals_), (), self.faults)

    def steps(self, state: State) -> Iterator[tuple[str, State | Violation]]:
        for number, local in enumerate(state.locals):
            for call, asker in self.choices(local, state.blob.etag):
                yield from self.call_steps(put(state, number, asker), number, call)
            if self.leads(local.view):
                yield f"{NAMES[number]} steps down", put(state, number, local._replace(view=self.deposed(local.view)))
        for place, call in enumerate(state.late):
            _, landed = self.land(state._replace(late=state.late[:place] + state.late[place + 1 :]), call)
            yield f"late: {self.say(call)} lands", landed
        if state.blob.lease:
            yield "the lease runs out", state._replace(blob=state.blob._replace(lease=""))

    def rest(self, state: State) -> Violation | None:
        """A processor can always try to lead."""
        return Violation("L1", "nobody can do anything")

    def call_steps(self, state: State, number: int, call: int) -> Iterator[tuple[str, State | Violation]]:
        """What becomes of a call. While it waits its sender does nothing, so sending and landing can be one step."""
        says = f"{NAMES[number]}: {self.say(call)}"
        answer, landed = self.land(state, call)
        if isinstance(landed, Violation):
            yield says, landed
            return
        refused = isinstance(self.answers.look(answer), Refused)
        yield f"{says}{': refused' if refused else ''}", self.answered(landed, number, call, answer)
        if not state.faults or isinstance(self.calls.look(call), ReadControl):
            return  # a read that fails is only repeated
        lost, less, late = self.answers.put(Trouble.UNSETTLED), state.faults - 1, tuple(sorted((*state.late, call)))
        if not refused:
            yield f"{says}, the answer is lost", self.answered(landed._replace(faults=less), number, call, lost)
            twice = landed._replace(faults=less, late=late)
            yield f"{says}, and will land again", self.answered(twice, number, call, answer)
        waiting = state._replace(faults=less, late=late)
        yield f"{says}, no answer, it is still on its way", self.answered(waiting, number, call, lost)

    def land(self, state: State, call: int) -> tuple[int, State | Violation]:
        """The call takes effect, or is refused."""
        answer, blob = self.perform(state.blob, call)
        if blob.etag != state.blob.etag and (wrong := self.judge(state.blob.control, blob.control)):
            return answer, wrong
        late = state.late
        if late and self.if_match and blob.etag != state.blob.etag:  # what was decided for an earlier one cannot land
            late = tuple(
                call for call in late if getattr(self.calls.look(call), "etag", None) in (None, _etag(blob.etag))
            )
        return answer, State(blob, state.locals, late, state.faults)

    def answered(self, state: State, number: int, call: int, answer: int) -> State:
        """The processor goes on with this answer."""
        local = state.locals[number]
        return put(state, number, Local(self.told(local.view, call, answer), local.fresh))

    def say(self, call: int) -> str:
        """A call in words."""
        match self.calls.look(call):
            case WriteControl(control=control, etag=etag):
                leader = "no leader" if control.leader is None else f"epoch {control.epoch}"
                return f"write of revision {control.revision}, {leader}, version {control.version}, for ETag {etag}"
            case ReadControl(lease_id=lease_id):
                return "read of the blob" + (f" with lease {lease_id}" if lease_id else "")
            case AcquireLease(lease_id=lease_id, etag=etag):
                return f"acquiring lease {lease_id} for ETag {etag}"
            case BreakLease(etag=etag):
                return f"breaking the lease for ETag {etag}"
            case ReleaseLease(lease_id=lease_id):
                return f"releasing lease {lease_id}"
            case other:
                return type(other).__name__

    # Production's rules. The same question has the same answer.

    def _choices(self, local: Local, etag: int) -> list[tuple[int, Local]]:
        """The calls that production would make now, under each answer that its clock and a scan could give."""
        found = []
        for view in self._moments(local, etag):
            for call in self._calls(view, etag):
                number = self.calls.put(call)
                fresh = local.fresh + isinstance(call, AcquireLease | WriteControl)
                found.append((number, Local(self.views.put(timeless(view)), fresh)))
        return list(dict.fromkeys(found))

    def _moments(self, local: Local, etag: int) -> Iterator[View]:
        """The same knowledge at different times."""
        if self.leads(local.view):
            for rows in (ROWS, ROWS[:-1]):
                view = self._view(local)
                learn(view, ScanMembers(), rows, sent_at=0.0, now=0.0)
                yield view
            return
        for since in (-3 * Timing().scan_s, NEVER):
            view = self._view(local)
            view.others.leaderless_since, view.others.leader_age = since, Age("silent", 1e9, 9, 0.0)
            view.others.leader_row = Missing()  # the worst case: without a name in it the others may break the lease
            yield view

    def _calls(self, view: View, etag: int) -> Iterator[StorageAction]:
        if view.lease is not None:
            is_open = isinstance(view.control, Control) and view.control.revision < self.revisions
            for action in (*decide.lead(view, 0.0), *election.hand_over(view, 0.0)):
                if isinstance(action, ReadControl) or (isinstance(action, WriteControl) and is_open):
                    yield action
        elif view.handing_over is not None:
            yield ReleaseLease(view.handing_over.id)
        else:
            yield from (action for action in election.campaign(view, 0.0) if isinstance(action, StorageAction))
            if view.candidacy.campaign is not None and view.candidacy.campaign.lease is not None:
                yield ReleaseLease(view.candidacy.campaign.lease.id)
            elif view.candidacy.campaign is None and view.own.control_etag != _etag(etag):
                yield ReadControl()

    def _view(self, local: Local) -> View:
        view = self.views.get(local.view)
        view.fresh_id = f"{view.me}.{local.fresh}"
        return view

    def _told(self, number: int, call: int, answer: int) -> int:
        view = self.views.get(number)
        learn(view, self.calls.look(call), self.answers.look(answer), sent_at=0.0, now=0.0)
        return self.views.put(timeless(view))

    def _deposed(self, number: int) -> int:
        view = self.views.get(number)
        perform_locally(view, StepDown("the time is over"), 0.0)
        return self.views.put(timeless(view))

    def _leads(self, number: int) -> bool:
        return self.views.look(number).lease is not None

    def _perform(self, blob: Blob, call: int) -> tuple[int, Blob]:
        storage = MemoryStorage(lambda: 0.0)
        storage._etags = blob.etag - 1
        storage.control_create(str(blob.control).encode())
        if blob.lease:
            storage.lease_acquire(blob.lease, LEASE_S, None)
        answer = self.answers.put(self._ask(storage, blob, self.calls.look(call)))
        found = storage._blobs[NAME]
        held = found.lease.id if found.lease and storage._lease_state(found) == "leased" else ""
        return answer, Blob(int(found.data), storage._etags, held)

    def _ask(self, storage: MemoryStorage, blob: Blob, call: StorageAction) -> Answer:
        """As `host/perform.py` does it."""
        now = _etag(blob.etag)
        match call:
            case ReadControl(lease_id=lease_id):
                content = storage.control_read(None, lease_id)
                if isinstance(content, Content):
                    return ControlRead(self.controls.look(int(content.data)), content.etag)
                return content
            case BreakLease(etag=etag):
                return storage.lease_break(etag if self.if_match else now)
            case AcquireLease(lease_id=lease_id, etag=etag):
                return storage.lease_acquire(lease_id, LEASE_S, etag if self.if_match else now)
            case ReleaseLease(lease_id=lease_id):
                return storage.lease_release(lease_id)
            case WriteControl(control=control, etag=etag, lease_id=lease_id):
                data = str(self.controls.put(control)).encode()
                if not self.lease_id:
                    storage._unless_leased = lambda blob, lease_id: None  # type: ignore[method-assign]
                return storage.control_write(data, etag if self.if_match else now, lease_id)
        raise AssertionError(call)

    def _judge(self, old: int, new: int) -> Violation | None:
        """S1 of two control blobs that follow each other."""
        before, after = self.controls.look(old), self.controls.look(new)
        if after.epoch < before.epoch:
            return Violation("S1", f"epoch {before.epoch} became {after.epoch}")
        anew = before.leader is not None or self.own_order  # an own write that lands late may take back the farewell
        if after.epoch == before.epoch and anew and after.leader not in (before.leader, None):
            return Violation("S1", f"epoch {after.epoch} has two leaders, {before.leader} and {after.leader}")
        if self.own_order and after.revision != before.revision + 1:
            return Violation("S1", f"revision {before.revision} became {after.revision}: a change is lost")
        if self.own_order and after.version < before.version:
            return Violation("S1", f"version {before.version} became {after.version}")
        return None


def timeless(view: View) -> View:
    """The view with every wait over: what the clock says is no part of a state."""
    turn(view, 0.0, random=0.5, fresh_id="", wall_ms=0)
    view.calls.beat_sent_at = view.own.accepted_at = view.own.control_read_at = 0.0
    view.others.leader_read_at = view.others.leaderless_since = 0.0
    view.candidacy.hold_until = view.calls.leader_row_sent_at = NEVER
    if view.leadership is not None:
        view.leadership = Leadership(view.leadership.lease, 0.0, 0.0)
    view.others.scanned_at = NEVER if view.others.scanned_at < 0 else 0.0
    view.calls.busy, view.calls.failing, view.others.ages, view.own.control_read_for = {}, {}, {}, ""
    view.others.leader_age, view.others.leader_row, view.others.members = None, None, {}
    view.others.seen_alive, view.calls.doubted = frozenset(), {}
    view.others.write_seen_at = NEVER
    return view


def put(state: State, number: int, local: Local) -> State:
    """The state with this processor in it."""
    locals_ = (*state.locals[:number], local, *state.locals[number + 1 :])
    return State(state.blob, locals_, state.late, state.faults)  # four times as fast as _replace


def _etag(number: int) -> str:
    return f'"0x{number:X}"'

"""A run is drained, or stopped, or its processors leave: which processors end, wait for others, and continue.

Every order of events is tried. What runs is production's `decide`, whole, with `learn`. p1 leads; p2 was in the run
too; p3 comes to it. Processors rejoin, crash, start again with the same code or with an upgraded pipeline, are asked to
leave, and the leadership changes hands. There is no time: no wait ends by itself, so what holds here does not depend on
timeouts, and a state without a further step shows whether a processor waits forever. Of the storage only this is used:
a write lands if its ETag is the one that is there (`lease.py` and `hand_over.py` show the rest).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import pytest

from samza_azure.group import ending, housekeeping, tasks
from samza_azure.group.actions import (
    Action,
    BeginEnd,
    CleanRun,
    DeleteMember,
    Finish,
    InsertOwnRow,
    MergeOwnRow,
    ReadControl,
    ReadOwnRow,
    Rejoin,
    ReleaseLease,
    ReplaceOwnRow,
    ScanMembers,
    Tell,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, ControlRead
from samza_azure.group.control import Assignment, Barrier, BarrierState, Control, Member, Owner, RunPhase, Stop
from samza_azure.group.decide import decide
from samza_azure.group.learn import heard_leave, heard_plan, heard_task, learn, perform_locally, turn
from samza_azure.group.membership import own_row
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.view import Leadership, Lease, LocalTask, OwnIncarnation, Settings, View
from samza_azure.messages import Phase, Plan, ReleaseTask, StagePlan, TaskReport
from samza_azure.outcomes import Missing, Refused
from tests.model.checker import Shelf, Violation

NAMES = ("p1", "p2", "p3")
OLD = Plan((StagePlan("clean", ("flights",), "by", 2),), {"flights": 2}, "f" * 64)
NEW = Plan((StagePlan("tidy", ("flights",), "by", 1),), {"flights": 2}, "e" * 64)
TASKS = tuple(OLD.tasks())
NEVER = -1e9
#: How p2, which was considered dead, comes back as another life while a task of its former life still runs.
REJOINED = (
    "p2 is marked dead",
    "p2 MergeOwnRow",
    "p2 ReadOwnRow",
    "p2 ReadOwnRow",
    "p2 ReplaceOwnRow",
    "p2 ReadControl",
)
#: A processor that is not there: it has ended, has crashed, or has never been started.
ENDED, CRASHED = -1, -2


def _life(name: str, number: int) -> str:
    return f"{name}'s life {number}"


#: Both tasks are drained. The second one was p2's, until p2 was considered dead and p1 got it.
DRAINED = Control(
    group_id="ab" * 16,
    revision=5,
    epoch=1,
    version=4,
    leader=Member("p1", _life("p1", 1)),
    run_id="run",
    phase=RunPhase.DRAINED,
    fingerprint=OLD.fingerprint,
    sources=OLD.sources,
    members=tuple(Member(name, _life(name, 1)) for name in ("p1", "p2")),
    tasks={task: Assignment(Owner("p1", _life("p1", 1), 4), first=False) for task in TASKS},
    barrier=Barrier(4, BarrierState.END),
    past=("run",),
    finished=(OLD.fingerprint,),
    uncleaned=("run",),
)
#: The same before its drain, and when it is stopped in place of that.
RUNNING = replace(DRAINED, phase=RunPhase.RUNNING, past=(), finished=(), uncleaned=())
STOPPED = replace(RUNNING, stop=Stop("stop", DRAINED.members))
#: What p2 knows: it has read nothing since it had a task.
EARLIER = replace(
    RUNNING,
    revision=2,
    version=2,
    tasks={**DRAINED.tasks, TASKS[1]: Assignment(Owner("p2", _life("p2", 1), 2), first=False)},
)


class State(NamedTuple):
    """A state. `locals` are views by number, or ENDED, or CRASHED."""

    control: int
    etag: int
    rows: tuple[int, ...]
    locals: tuple[int, ...]
    faults: int


@dataclass(eq=False)
class Ending:
    """`faults` counts crashes, wrong marks, rejoins and restarts."""

    faults: int = 1
    processors: int = 2  # the third one comes to the run with upgraded code
    run: Control = DRAINED
    leaves: Sequence[str] = ()  # processors that can be asked to leave, at any moment
    own_words: bool = True  # fence: a life tells of, and is believed about, only what that very life was given
    remembers: bool = True  # fence: a new life knows the run that its processor was part of, and ends with it
    begun: Sequence[str] = ()  # steps that have been taken already, by the words that they begin with

    def __post_init__(self) -> None:
        self.views: Shelf[View] = Shelf()
        self.controls: Shelf[Control] = Shelf()
        self.table: Shelf[ProcessorRow | Missing] = Shelf()
        self.next = cache(self._next)

    def begin(self) -> State:
        rows, locals_ = [], []
        done = Phase.DRAINED if self.run.phase is RunPhase.DRAINED else Phase.RUNNING
        for name in NAMES[: self.processors]:
            view = self.started(name, 1, NEW if name == "p3" else OLD)
            if name != "p3":
                view.own.control, view.own.control_etag = (self.run, "1") if name == "p1" else (EARLIER, "0")
                view.group_id = DRAINED.group_id
                view.work.active_run, view.work.attempts, view.own.etag, view.calls.let_in = "run", 1, "1", True
                for task in TASKS if name == "p1" else TASKS[1:]:
                    generation, phase = (4, done) if name == "p1" else (2, Phase.RUNNING)
                    view.work.tasks[task] = LocalTask(generation, 1, 0.0, TaskReport(task, generation, 1, phase))
                view.own.written = view.own.found = replace(own_row(view), etag="1")
            if name == "p1":
                view.leadership = Leadership(Lease("lease 1", 0.0), NEVER, 0.0)
            rows.append(self.table.put(view.own.written or Missing()))
            locals_.append(self.settle(view))
        state = State(self.controls.put(self.run), 1, tuple(rows), tuple(locals_), self.faults)
        for words in self.begun:
            taken = next((after for step, after in self.steps(state) if step.startswith(words)), None)
            assert isinstance(taken, State), f"There is no such step: {words}"
            state = taken
        return state

    def started(self, name: str, number: int, plan: Plan) -> View:
        """A processor that has just started, and whose container is up."""
        view = View(Settings(name, boot="boot"), OwnIncarnation(_life(name, number)))
        heard_plan(view, plan)
        return view

    def steps(self, state: State) -> Iterator[tuple[str, State | Violation]]:
        crashed = tuple(local == CRASHED for local in state.locals)
        leader = self.controls.look(state.control).leader
        for number, name in enumerate(NAMES[: self.processors]):
            local = state.locals[number]
            if local in (ENDED, CRASHED):
                if state.faults:
                    for plan, code in ((OLD, "the same code"), (NEW, "upgraded code")):
                        view = self.started(name, 9 - state.faults, plan)
                        yield f"{name} starts again with {code}", self.put(self.less(state), number, self.settle(view))
                continue
            for says, after in self.next(local, number, state.control, state.etag, state.rows, crashed):
                yield f"{name} {says}", State(*after[:3], self.put(state, number, after[3]).locals, state.faults)
            if name in self.leaves and not self.views.look(local).leaving:
                view = self.views.get(local)
                heard_leave(view)
                yield f"{name} is asked to leave", self.put(state, number, self.settle(view))
            if state.faults:
                yield f"{name} crashes", self.put(self.less(state), number, CRASHED)
                row = self.table.look(state.rows[number])
                if isinstance(row, ProcessorRow) and row.alive:
                    dead = self.table.put(replace(row, state=ProcessorState.DEAD, etag=row.etag + "'"))
                    rows = (*state.rows[:number], dead, *state.rows[number + 1 :])
                    yield f"{name} is marked dead although it lives", self.less(state)._replace(rows=rows)
            gone = leader is None or state.locals[NAMES.index(leader.processor)] < 0
            gone = gone or self.views.look(state.locals[NAMES.index(leader.processor)]).leadership is None  # type: ignore[union-attr]
            view = self.views.look(local)
            if gone and view.own.etag is not None and view.ending is None and view.leadership is None:
                yield f"{name} becomes leader", self.elect(state, number)

    def rest(self, state: State) -> Violation | None:
        """When no step is left, no processor waits, and those that are there run the run, or if upgraded the
        next one."""
        control = self.controls.look(state.control)
        there = {}
        for number, name in enumerate(NAMES[: self.processors]):
            if state.locals[number] < 0:
                continue
            view = self.views.look(state.locals[number])
            if view.ending is not None:
                return Violation("L1", f"{name} waits for {waits(view)} forever")
            there[view.member] = view
        for member, view in there.items():
            name = member.processor
            if self.run.phase is not RunPhase.DRAINED:
                owners = {owner.member for each in control.tasks.values() if (owner := each.owner) is not None}
                if not owners <= set(there) or len(owners) == 0 or control.stop is not None:
                    return Violation("L1", f"{name} is there, and the run does not go on")
                if view.work.plan == NEW:
                    return Violation("L1", f"{name} is upgraded, and stays forever beside a run that goes on")
                continue
            if view.work.plan == OLD:
                return Violation("L1", f"{name} stays forever in a run that is drained")
            if control.fingerprint != NEW.fingerprint or control.phase is not RunPhase.RUNNING:
                return Violation("L1", f"{name} is upgraded, and the next run does not begin")
        return None

    def elect(self, state: State, number: int) -> State:
        """Leadership changes, by one write of the blob."""
        before = self.controls.look(state.control)
        view = self.views.get(state.locals[number])
        control = replace(before, revision=before.revision + 1, epoch=before.epoch + 1, leader=view.member)
        state = state._replace(control=self.controls.put(control), etag=state.etag + 1)
        learn(view, ReadControl(), ControlRead(control, str(state.etag)), sent_at=0.0, now=0.0)
        view.leadership = Leadership(Lease(f"lease {control.epoch}", 0.0), NEVER, 0.0)
        view.others.members = {}
        return self.put(state, number, self.settle(view))

    def put(self, state: State, number: int, local: int) -> State:
        """The state with this processor in it."""
        return state._replace(locals=(*state.locals[:number], local, *state.locals[number + 1 :]))

    def less(self, state: State) -> State:
        """One more thing has gone wrong."""
        return state._replace(faults=state.faults - 1)

    # Production's rules. The same question has the same answer.

    def _next(
        self, local: int, number: int, blob: int, etag: int, rows: tuple[int, ...], crashed: tuple[bool, ...]
    ) -> list[tuple[str, tuple[int, int, tuple[int, ...], int]]]:
        """Each call that the processor would make now, with what comes of it, and each report of its container."""
        found = []
        for task, known in self.views.look(local).work.tasks.items():
            if known.releasing_since is not None and not known.closed:
                view = self.views.get(local)
                heard_task(view, TaskReport(task, known.generation, known.attempt, Phase.SUPERSEDED), 0.0)
                found.append((f"lets go of {task}", (blob, etag, rows, self.settle(view))))
        view = self.moment(local, etag, rows, crashed)
        for action in [*self.decisions(view), *self.looks(view, etag, rows)]:
            view = self.moment(local, etag, rows, crashed)
            after = (blob, etag, rows)
            match action:
                case Finish():
                    found.append(("ends", (*after, ENDED)))
                    continue
                case ReadControl():
                    read = ControlRead(self.controls.look(blob), str(etag))
                    learn(view, action, read, sent_at=0.0, now=0.0)
                case ScanMembers():
                    seen = tuple(row for row in map(self.table.look, rows) if isinstance(row, ProcessorRow))
                    learn(view, action, seen, sent_at=0.0, now=0.0)
                case ReadOwnRow():
                    learn(view, action, self.table.look(rows[number]), sent_at=0.0, now=0.0)
                case InsertOwnRow() | ReplaceOwnRow() | MergeOwnRow():
                    nothing_new = isinstance(action, MergeOwnRow) and replace(action.row, beat=0) == view.own.written
                    there = self.table.look(rows[number])
                    if nothing_new and isinstance(there, ProcessorRow) and there.etag == view.own.etag:
                        continue
                    written = replace(action, row=replace(action.row, beat=0))
                    answer, row = self.write_row(there, written)
                    learn(view, written, answer, sent_at=0.0, now=0.0)
                    after = (blob, etag, (*rows[:number], row, *rows[number + 1 :]))
                case WriteControl(control=control):
                    if action.etag != str(etag):
                        learn(view, action, Refused("ConditionNotMet"), sent_at=0.0, now=0.0)
                    else:
                        control = replace(control, nonce="")
                        learn(view, replace(action, control=control), str(etag + 1), sent_at=0.0, now=0.0)
                        after = (self.controls.put(control), etag + 1, rows)
                case CleanRun() | ReleaseLease():
                    learn(view, action, None, sent_at=0.0, now=0.0)
                case DeleteMember(processor=processor, etag=seen_etag):
                    place = NAMES.index(processor)
                    there = self.table.look(rows[place])
                    if not isinstance(there, ProcessorRow) or there.etag != seen_etag:
                        continue
                    learn(view, action, None, sent_at=0.0, now=0.0)
                    after = (blob, etag, (*rows[:place], self.table.put(Missing()), *rows[place + 1 :]))
                case other if type(other).__name__ == "MarkDead":
                    place = NAMES.index(other.processor)  # type: ignore[union-attr]
                    there = self.table.look(rows[place])
                    if not isinstance(there, ProcessorRow) or there.etag != other.etag:  # type: ignore[union-attr]
                        continue
                    dead = replace(there, state=ProcessorState.DEAD, etag=there.etag + "'")
                    learn(view, other, dead.etag, sent_at=0.0, now=0.0)  # type: ignore[arg-type]
                    after = (blob, etag, (*rows[:place], self.table.put(dead), *rows[place + 1 :]))
                case _:
                    continue
            found.append((type(action).__name__, (*after, self.settle(view))))
        return [each for each in found if (each[1][:3], each[1][3]) != ((blob, etag, rows), local)]

    def moment(self, local: int, etag: int, rows: tuple[int, ...], crashed: tuple[bool, ...]) -> View:
        """The view at a time at which everything regular is due, and crashed processors have been silent."""
        view = self.views.get(local)
        view.others.ages = {
            name: Age(row.etag, 1e9, 9, 0.0) if crashed[NAMES.index(name)] else Age(row.etag, 0.0, 0, 0.0)
            for name, row in view.others.members.items()
        }
        view.others.seen_alive = frozenset(
            row.incarnation for name, row in view.others.members.items() if not crashed[NAMES.index(name)]
        )
        return view

    def looks(self, view: View, etag: int, rows: tuple[int, ...]) -> list[ReadControl | ScanMembers]:
        """The reads that follow a signal in the leader row."""
        seen = {row.processor: row for row in map(self.table.look, rows) if isinstance(row, ProcessorRow)}
        news: list[ReadControl | ScanMembers] = []
        if view.own.etag is not None and view.own.control_etag != str(etag):
            news.append(ReadControl())
        if view.leadership is not None and dict(view.others.members) != seen:
            news.append(ScanMembers())
        return news

    def decisions(self, view: View) -> list[Action]:
        """What production does now, or what it would do without a fence that was taken away."""
        if self.own_words:
            return decide(view, 0.0).actions
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(housekeeping, "counts", lambda owner, row, report: True)
            patch.setattr(tasks, "_is_given", lambda view, report: True)
            return decide(view, 0.0).actions

    def write_row(
        self, there: ProcessorRow | Missing, action: InsertOwnRow | ReplaceOwnRow | MergeOwnRow
    ) -> tuple[Answer, int]:
        """A write of one's own row, fenced by its ETag."""
        etag = there.etag if isinstance(there, ProcessorRow) else ""
        wanted = "" if isinstance(action, InsertOwnRow) else action.etag
        if etag != wanted:
            return Refused("UpdateConditionNotSatisfied"), self.table.put(there)
        anew = "1" if etag not in ("1", "1'") else "2"
        return anew, self.table.put(replace(action.row, etag=anew))

    def settle(self, view: View) -> int:
        """The view on its shelf, without time, after it has done at once what needs no call."""
        self.timeless(view)
        while True:
            actions = [each for each in self.decisions(view) if isinstance(each, Tell | BeginEnd | Rejoin)]
            actions = [each for each in actions if not isinstance(each, Tell) or isinstance(each.command, ReleaseTask)]
            if not actions:
                return self.views.put(view)
            for action in actions:
                name, _, life = view.incarnation.rpartition(" ")
                view.fresh_id = f"{name} {int(life) + 10}"
                perform_locally(view, action, 0.0)
                if isinstance(action, Rejoin) and not self.own_words:
                    view.work.tasks = {task: replace(each, former=False) for task, each in view.work.tasks.items()}
                if isinstance(action, Rejoin) and not self.remembers:
                    view.work.active_run = ""
            self.timeless(view)

    def timeless(self, view: View) -> None:
        """Forget what the clock says."""
        members = view.others.members
        turn(view, 0.0, random=0.5, fresh_id="", wall_ms=0)
        view.calls = replace(view.calls, busy={}, failing={}, doubted={}, beat_sent_at=NEVER, leader_row_sent_at=NEVER)
        view.own.accepted_at = view.own.control_read_at = 0.0
        view.own.found_age, view.own.beat, view.own.control_read_for, view.own.rewritten = None, 0, "", 0
        view.candidacy = type(view.candidacy)(campaign=view.candidacy.campaign, hold_until=1e9)
        view.others = type(view.others)(members=members, scanned_at=0.0, leader_row=Missing())
        if view.leadership is not None:
            kept = view.leadership
            view.leadership = Leadership(
                Lease(kept.lease.id, 0.0), NEVER, 0.0, requests_read_at=0.0, clean_done=kept.clean_done
            )
        view.ending_since = 0.0
        view.work.permit_sent, view.work.drain_sent = view.permit_until, tasks.wanted_drain(view)


def waits(view: View) -> str:
    """What it waits for, in words."""
    wait = ending.waits_for(view, 0.0)
    return wait.value if wait is not None else "nothing"

"""Three processors share three tasks: one joins, one may be paused and marked dead, or crash, and tasks change hands.

What runs is production's: `publish.next_control`, `membership.beat`, `join` and `mark_dead`, `tasks.commands` and
`learn`. Of the control blob only this is used: a write lands if its ETag is the blob's (`lease.py` shows that). Of a
task's log: a writer takes it over if it is higher than all before (`log.py` shows that). As in `lease.py` there is no
time: a leader may take any processor whose row it has read for silent, at any moment. A container obeys its commands,
later; its reports reach the supervisor at once, since both are paused together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from samza_azure.group import membership, publish, tasks
from samza_azure.group.actions import (
    Action,
    InsertOwnRow,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadOwnRow,
    Rejoin,
    ReplaceOwnRow,
    ScanMembers,
    StorageAction,
    Tell,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, ControlRead, Trouble
from samza_azure.group.control import Assignment, Barrier, BarrierState, Control, Member, Owner
from samza_azure.group.learn import heard_container_lost, heard_plan, heard_task, learn, perform_locally
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.view import Leadership, Lease, LocalTask, OwnIncarnation, Settings, View
from samza_azure.logs.record import Writer
from samza_azure.messages import Phase, ReleaseTask, TaskReport
from samza_azure.outcomes import Missing, Refused
from tests.model import lease
from tests.model.checker import Shelf, Violation
from tests.model.lease import NAMES, NEVER, PLAN

TASKS = tuple(PLAN.tasks())
#: p1 leads and has two tasks, p2 has one; p3 is about to join.
OWNERS = {"clean-0": "p1", "clean-1": "p2", "clean-2": "p1"}
BEGUN = replace(
    lease.BEGUN,
    leader=Member("p1", "p1's life 1"),
    members=tuple(Member(name, f"{name}'s life 1") for name in ("p1", "p2")),
    tasks={task: Assignment(Owner(name, f"{name}'s life 1", 1), first=False) for task, name in OWNERS.items()},
    barrier=Barrier(1, BarrierState.END),
)
#: How p3 joins, if nothing goes wrong, up to the first version with it.
JOINED = (
    "p3 reads its own row",
    "p3 writes its row: adopted 0",
    "p3 reads the control blob",
    "p3 writes its row: adopted 1",
    "p1 scans the rows",
    "p1 publishes version 2",
)
DOWN = -1


class State(NamedTuple):
    """A state. `locals` are views by number; all else that a processor has is in its view."""

    control: int
    etag: int  # of the control blob
    rows: tuple[int, ...]
    locals: tuple[int, ...]
    logs: tuple[Writer, ...]  # the writer of the last version
    former: tuple[int, ...]  # attempts up to this one belong to a processor's former lives
    late: tuple[tuple[int, int], ...]  # calls on rows that were given up and may still land: whose, which
    faults: int


@dataclass(eq=False)
class HandOver:
    """`faults` counts what may go wrong: a crash, a lost container, a leader deposed or mistaken, a lost answer."""

    faults: int = 1
    begun: Sequence[str] = ()  # steps that have been taken already, by the words that they begin with
    alone: bool = True  # judge also whether two run one task, which the log makes safe and useless
    waits: bool = True  # fence: a gainer waits until the losers have released the task
    by_generation: bool = True  # fence: a release says of which generation it speaks
    rising: bool = True  # fence: a version's number is never used again
    only_moved: bool = True  # fence: a version stops the tasks that move, and no others
    fenced_marks: bool = True  # fence: a mark carries the ETag whose age was measured
    fenced_beats: bool = True  # fence: a heartbeat carries the ETag of the row that it continues

    def __post_init__(self) -> None:
        self.views: Shelf[View] = Shelf()
        self.controls: Shelf[Control] = Shelf()
        self.table: Shelf[ProcessorRow | Missing] = Shelf()
        self.calls: Shelf[StorageAction] = Shelf()
        self.answers: Shelf[Answer] = Shelf()
        self.choices = cache(self._choices)
        self.told = cache(self._told)
        self.after = cache(self._after)
        self.containers = cache(self._containers)
        self.restarted = cache(self._restarted)
        self.read = cache(self._read)
        self.scan = cache(self._scan)
        self.write_row = cache(self._write_row)
        self.say = cache(self._say)

    def begin(self) -> State:
        rows, locals_ = [], []
        for name in NAMES:
            view = self.life(name, 1)
            if name != "p3":
                view.own.control, view.own.control_etag, view.group_id, view.work.active_run = (
                    BEGUN,
                    "1",
                    BEGUN.group_id,
                    "run",
                )
                for task, owner in OWNERS.items():
                    if owner == name:
                        view.work.tasks[task] = LocalTask(1, 1, 0.0, TaskReport(task, 1, 1, Phase.RUNNING))
                view.work.attempts, view.own.etag = 1, "1"
                view.own.written = view.own.found = replace(membership.own_row(view), etag="1")
            if name == "p1":
                view.leadership = Leadership(Lease("lease 1", 0.0), 0.0, 0.0)
            rows.append(self.table.put(Missing() if view.own.written is None else view.own.written))
            locals_.append(self.settle(view))
        logs = tuple(Writer(1, 1) for _ in TASKS)
        state = State(self.controls.put(BEGUN), 1, tuple(rows), tuple(locals_), logs, (0, 0, 0), (), self.faults)
        for words in self.begun:
            taken = next((after for step, after in self.steps(state) if step.startswith(words)), None)
            assert isinstance(taken, State), f"There is no such step: {words}"
            state = taken
        return state

    def life(self, name: str, number: int) -> View:
        """A processor that has just started."""
        view = View(Settings(name, boot="boot"), OwnIncarnation(f"{name}'s life {number}"))
        heard_plan(view, PLAN)
        view.others.scanned_at = NEVER
        return view

    def steps(self, state: State) -> Iterator[tuple[str, State | Violation]]:
        leading = self.controls.look(state.control).leader
        for number, name in enumerate(NAMES):
            local = state.locals[number]
            if local == DOWN:
                if state.faults:
                    yield f"{name} starts again", self.with_view(self.less(state), number, self.restarted(name))
                continue
            view, row = self.views.look(local), self.table.look(state.rows[number])
            news = view.own.control_etag != str(state.etag)
            changed = isinstance(row, ProcessorRow) and row.etag != view.own.etag
            for words, call in self.choices(local, news, changed):
                yield from self.call_steps(state, number, f"{name} {words}", call)
            for words, task, phase in self.containers(local):
                yield f"{name} {words}", self.report(state, number, task, phase)
            if state.faults:
                yield f"{name} crashes", self.with_view(self.less(state), number, DOWN)
                if self.views.look(local).work.tasks:
                    yield f"the container of {name} dies", self.with_view(self.less(state), number, self.after(local))
            deposed = leading is None or state.locals[NAMES.index(leading.processor)] == DOWN
            if (deposed or state.faults) and (leading is None or leading.processor != name) and self.has_joined(local):
                yield f"{name} becomes leader", self.elect(state if deposed else self.less(state), number)
        for place, (number, call) in enumerate(state.late):
            rest = state._replace(late=state.late[:place] + state.late[place + 1 :])
            yield f"late: {NAMES[number]} {self.say(call)}", self.land(rest, number, call)[1]

    def rest(self, state: State) -> Violation | None:
        """When nothing is left to do, every task runs where the control blob says, and everybody has adopted it."""
        control = self.controls.look(state.control)
        for task, assignment in control.tasks.items():
            owner = assignment.owner
            local = state.locals[NAMES.index(owner.processor)] if owner is not None else DOWN
            view = self.views.look(local) if local != DOWN else None
            runs = view.work.tasks.get(task) if view is not None and owner and view.member == owner.member else None
            if owner is None or runs is None or (runs.generation, runs.phase) != (owner.generation, Phase.RUNNING):
                return Violation("L1", f"{task} belongs to {owner} and does not run")
        if control.barrier.state is not BarrierState.END:
            return Violation("L1", f"the barrier stays {control.barrier}")
        return None

    def call_steps(self, state: State, number: int, says: str, call: int) -> Iterator[tuple[str, State | Violation]]:
        """What becomes of a call."""
        answer, landed = self.land(state, number, call)
        if isinstance(landed, Violation):
            yield says, landed
            return
        refused = isinstance(self.answers.look(answer), Refused)
        mistaken = self.is_mistaken(state, call)
        if mistaken and not state.faults:
            return
        landed = self.less(landed) if mistaken else landed
        yield f"{says}{': refused' if refused else ''}", self.answered(landed, number, call, answer)
        if landed.faults and isinstance(self.calls.look(call), MergeOwnRow | MarkDead):
            late = self.less(state if not mistaken else self.less(state))._replace(late=(*state.late, (number, call)))
            lost = self.answers.put(Trouble.UNSETTLED)
            yield f"{says}: no answer, it is still on its way", self.answered(late, number, call, lost)

    def is_mistaken(self, state: State, call: int) -> bool:
        """Whether this marks a live processor dead: a fault. That it lives on as another incarnation is no excuse."""
        action = self.calls.look(call)
        return isinstance(action, MarkDead) and state.locals[NAMES.index(action.processor)] != DOWN

    def land(self, state: State, number: int, call: int) -> tuple[int, State | Violation]:
        """The call takes effect, or is refused."""
        match self.calls.look(call):
            case ReadControl(lease_id=lease_id) | WriteControl(lease_id=lease_id) if self.is_lost(state, lease_id):
                return self.answers.put(Refused("LeaseIdMismatchWithBlobOperation")), state
            case ReadControl():
                return self.read(state.control, state.etag), state
            case ScanMembers():
                return self.scan(state.rows), state
            case ReadOwnRow():
                return self.scan(state.rows[number]), state
            case WriteControl(control=control, etag=etag):
                if etag != str(state.etag):
                    return self.answers.put(Refused("ConditionNotMet")), state
                anew = state._replace(control=self.controls.put(control), etag=state.etag + 1)
                return self.answers.put(str(anew.etag)), anew
            case action:
                place = NAMES.index(action.processor) if isinstance(action, MarkDead) else number
                landed = self.write_row(state.rows[place], call)
                if isinstance(landed, Violation):
                    return 0, landed
                answer, row = landed
                return answer, state._replace(rows=(*state.rows[:place], row, *state.rows[place + 1 :]))

    def is_lost(self, state: State, lease_id: str | None) -> bool:
        """Whether another has leased the blob since."""
        return lease_id not in (None, f"lease {self.controls.look(state.control).epoch}")

    def _read(self, control: int, etag: int) -> int:
        return self.answers.put(ControlRead(self.controls.look(control), str(etag)))

    def _scan(self, rows: tuple[int, ...] | int) -> int:
        if isinstance(rows, int):
            return self.answers.put(self.table.look(rows))
        return self.answers.put(tuple(row for row in map(self.table.look, rows) if isinstance(row, ProcessorRow)))

    def _write_row(self, number: int, call: int) -> tuple[int, int] | Violation:
        """A write of a row, fenced by its ETag."""
        there, action = self.table.look(number), self.calls.look(call)
        etag = there.etag if isinstance(there, ProcessorRow) else "0"
        fenced = self.fenced_marks if isinstance(action, MarkDead) else self.fenced_beats
        wanted = "0" if isinstance(action, InsertOwnRow) else action.etag  # type: ignore[union-attr]
        if etag != wanted and (fenced or isinstance(action, InsertOwnRow)):
            return self.answers.put(Refused("UpdateConditionNotSatisfied")), number
        anew = str(int(etag) + 1)
        match action:
            case MarkDead(processor=processor, epoch=epoch):
                if etag != wanted:
                    return Violation("S10", f"{processor} is marked dead although its row has changed since")
                assert isinstance(there, ProcessorRow)
                row = replace(there, state=ProcessorState.DEAD, epoch=epoch, etag=anew)
            case MergeOwnRow(row=own):
                assert isinstance(there, ProcessorRow)
                if not there.alive or there.incarnation != own.incarnation:
                    says = f"{there.state} and of {there.incarnation}"
                    return Violation("S3", f"a heartbeat of {own.incarnation} is accepted; its row was {says}")
                row = replace(own, etag=anew)
            case InsertOwnRow(row=own) | ReplaceOwnRow(row=own):
                row = replace(own, etag=anew)
            case _:
                raise AssertionError(action)
        return self.answers.put(anew), self.table.put(row)

    def answered(self, state: State, number: int, call: int, answer: int) -> State | Violation:
        """The processor goes on with this answer: it obeys what it has learned."""
        local, released = self.told(state.locals[number], call, answer)
        control, before, after = self.controls.look(state.control), *map(self.views.look, (state.locals[number], local))
        if after.incarnation != before.incarnation:
            state = state._replace(former=(*state.former[:number], after.work.attempts, *state.former[number + 1 :]))
        member = after.member
        for task, generation in released:
            if control.tasks[task].owner == Owner(member.processor, member.incarnation, generation):
                return Violation("S5", f"{task} stays with {member.processor} and is interrupted")
        return self.with_view(state, number, local)

    def report(self, state: State, number: int, task: str, phase: Phase) -> State | Violation:
        """The container goes on."""
        local, place = state.locals[number], TASKS.index(task)
        view = self.views.look(local)
        known = view.work.tasks[task]
        if phase is Phase.RUNNING:
            writer = Writer(known.generation, known.attempt)
            owner = self.controls.look(state.control).tasks[task].owner
            if writer <= state.logs[place]:
                if owner == Owner(view.me, view.incarnation, known.generation):
                    return Violation("S2", f"{view.me} owns {task} as {writer}, its log is {state.logs[place]}'s")
                phase = Phase.SUPERSEDED
            elif self.alone and (other := self.also_running(state, number, task)) is not None:
                return Violation("alone", f"{view.me} runs {task}, and so does {other}, which is not dead")
            else:
                state = state._replace(logs=(*state.logs[:place], writer, *state.logs[place + 1 :]))
        return self.with_view(state, number, self.after(local, task, phase))

    def also_running(self, state: State, number: int, task: str) -> str | None:
        """Another processor that runs this task, and was not marked dead or replaced."""
        for other, name in enumerate(NAMES):
            row = self.table.look(state.rows[other])
            if other == number or state.locals[other] == DOWN or not isinstance(row, ProcessorRow) or not row.alive:
                continue
            view = self.views.look(state.locals[other])
            known = view.work.tasks.get(task)
            alive = row.incarnation == view.incarnation and known is not None and known.attempt > state.former[other]
            if alive and known is not None and known.phase is Phase.RUNNING:
                return name
        return None

    def elect(self, state: State, number: int) -> State:
        """Leadership changes, by one write of the blob. The former leader does not learn of it."""
        before = self.controls.look(state.control)
        view = self.views.get(state.locals[number])
        control = replace(before, revision=before.revision + 1, epoch=before.epoch + 1, leader=view.member)
        state = state._replace(control=self.controls.put(control), etag=state.etag + 1)
        learn(view, ReadControl(), ControlRead(control, str(state.etag)), sent_at=0.0, now=0.0)
        view.leadership = Leadership(Lease(f"lease {control.epoch}", 0.0), 0.0, 0.0)
        view.others.members, view.others.scanned_at = {}, NEVER
        return self.with_view(state, number, self.settle(view))

    def with_view(self, state: State, number: int, local: int) -> State:
        """The state with this view in it."""
        return state._replace(locals=(*state.locals[:number], local, *state.locals[number + 1 :]))

    def less(self, state: State) -> State:
        """One more thing has gone wrong."""
        return state._replace(faults=state.faults - 1)

    def has_joined(self, local: int) -> bool:
        """Only a processor with an accepted heartbeat campaigns."""
        return self.views.look(local).own.etag is not None and bool(self.views.look(local).group_id)

    def _say(self, call: int) -> str:
        """A call in words."""
        match self.calls.look(call):
            case MarkDead(processor=processor):
                return f"marks {processor} dead"
            case WriteControl(control=control):
                owners = ", ".join(
                    f"{task} {each.owner and each.owner.processor}" for task, each in control.tasks.items()
                )
                return f"publishes version {control.version} ({owners}), barrier {control.barrier.state}"
            case MergeOwnRow(row=row) | ReplaceOwnRow(row=row) | InsertOwnRow(row=row):
                released = f", released {dict(row.released)}" if row.released else ""
                return f"writes its row: adopted {row.adopted}{released}"
            case ReadControl():
                return "reads the control blob"
            case other:
                return {"ScanMembers": "scans the rows", "ReadOwnRow": "reads its own row"}[type(other).__name__]

    # Production's rules. The same question has the same answer.

    def _choices(self, local: int, news: bool, changed: bool) -> list[tuple[str, int]]:
        """The calls that a processor would make now, if there is news in the blob, or if its row was changed."""
        view = self.views.get(local)
        found: list[Action] = []
        if news and view.own.etag is not None:
            found.append(ReadControl(lease_id=view.lease.id if view.lease is not None else None))
        for action in membership.beat(view, 0.0):
            nothing_new = isinstance(action, MergeOwnRow) and replace(action.row, beat=0) == view.own.written
            if isinstance(action, StorageAction) and not (nothing_new and not changed):
                found.append(replace(action, row=replace(action.row, beat=0)) if hasattr(action, "row") else action)
        if view.lease is not None or view.own.waiting_since:
            found.append(ScanMembers())
        if view.lease is not None and isinstance(view.control, Control) and view.others.scanned_at > NEVER:
            wanted = publish.next_control(view, view.control, 0.0)
            if wanted != view.control:
                anew = replace(wanted, revision=view.control.revision + 1)
                if not self.rising:
                    anew = replace(anew, tasks={task: _numbered(each, 1) for task, each in anew.tasks.items()})
                found.append(WriteControl(anew, view.own.control_etag, view.lease.id))
            view.others.ages = {name: Age(each.etag, 1e9, 9, 0.0) for name, each in view.others.members.items()}
            found += membership.mark_dead(view, view.control, 0.0)
        numbers = [self.calls.put(action) for action in found if isinstance(action, StorageAction)]
        return [(self.say(number), number) for number in numbers]

    def _told(self, local: int, call: int, answer: int) -> tuple[int, tuple[tuple[str, int], ...]]:
        view = self.views.get(local)
        action = self.calls.look(call)
        if isinstance(action, ReadControl):
            view.others.scanned_at = min(
                view.others.scanned_at, -1.0
            )  # what is waited for from now on was not seen before
        learn(view, action, self.answers.look(answer), sent_at=0.0, now=0.0)
        for rejoin in membership.beat(view, 0.0):
            if isinstance(rejoin, Rejoin):
                view.fresh_id = next_life(view.incarnation)
                perform_locally(view, rejoin, 0.0)
        released = []
        orders = tasks.commands(self.permissive(view), 0.0)
        if not self.only_moved and isinstance(action, ReadControl):
            orders += [Tell(ReleaseTask(task)) for task, known in view.work.tasks.items() if not known.closed]
        for told in orders:
            if isinstance(told, Tell):
                if isinstance(told.command, ReleaseTask):
                    released.append((told.command.task, view.work.tasks[told.command.task].generation))
                perform_locally(view, told, 0.0)
        return self.settle(view), tuple(released)

    def permissive(self, view: View) -> View:
        """The view as it is, or as it would be without a fence that was taken away."""
        if not self.waits and view.own.waiting_since:
            view.own.waiting_since = dict.fromkeys(view.own.waiting_since, NEVER)
        if not self.by_generation:
            view.others.members = {
                name: replace(row, released=dict.fromkeys(row.released, 1 << 30))
                for name, row in view.others.members.items()
            }
        return view

    def _after(self, local: int, task: str = "", phase: Phase = Phase.RUNNING) -> int:
        """A report of the container, or its end."""
        view = self.views.get(local)
        if task:
            known = view.work.tasks[task]
            heard_task(view, TaskReport(task, known.generation, known.attempt, phase), 0.0)
        else:
            heard_container_lost(view, 0.0)
            heard_plan(view, PLAN)
        for local_task in view.work.tasks.values():
            local_task.closed_at = NEVER
        for told in tasks.commands(self.permissive(view), 0.0):
            if isinstance(told, Tell):
                perform_locally(view, told, 0.0)
        return self.settle(view)

    def _containers(self, local: int) -> list[tuple[str, str, Phase]]:
        """What a container can do next."""
        found = []
        for task, known in self.views.look(local).work.tasks.items():
            if known.closed:
                continue
            if known.phase is Phase.STARTING:
                found.append((f"takes over {task} as {known.generation}.{known.attempt}", task, Phase.RUNNING))
            if known.releasing_since is not None:
                found.append((f"lets go of {task}", task, Phase.RELEASED))
        return found

    def _restarted(self, name: str) -> int:
        return self.settle(self.life(name, 9))

    def settle(self, view: View) -> int:
        """The view on its shelf, without time. Tasks that are long gone are forgotten."""
        scanned, seen = view.others.scanned_at, view.others.members
        waiting = dict.fromkeys(view.own.waiting_since, 0.0)
        lease.timeless(view)
        view.others.scanned_at, view.others.members, view.own.waiting_since = scanned, seen, waiting
        view.calls.beat_sent_at, view.own.beat, view.own.found_age = NEVER, 0, None
        if view.leadership is not None:
            view.leadership = replace(view.leadership, since=-2.0)
        view.work.permit_sent = view.permit_until
        return self.views.put(view)


def _numbered(assignment: Assignment, generation: int) -> Assignment:
    """The same owner with this generation."""
    owner = assignment.owner and replace(assignment.owner, generation=generation)
    return replace(assignment, owner=owner)


def next_life(incarnation: str) -> str:
    """The name of the life after this one."""
    name, _, number = incarnation.rpartition(" ")
    return f"{name} {int(number) + 1}"

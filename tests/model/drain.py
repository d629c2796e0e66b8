"""A drain, its cancellation and a second drain, leaders that all act, tasks that read sources.

What runs is production's: `with_cancel`, `with_drain` and `answers` of `group/requests.py`, `drain.progress`. The
control blob takes a write whose ETag is its own (`lease.py` shows what that is worth), the row of a request takes one
answer; a leader's write may land late. A leader acts on what it read last, however old that is, and one that is
deposed does not learn of it.

A task is hand-made, and small, after `TaskAttempt.clean` of `simulator/container.py` and `Gate` of `streams/gate.py`:
it reads a row, unless it knows of a freeze; then it reports its position and the drain that this answers; after FLUSH
it reads to the ends, and its log ends in DRAINED. Its report reaches its row later. A task that is started again learns
of the drain first (the order of `tasks.run`), so its position is the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from samza_azure.group import drain as draining
from samza_azure.group import requests as asking
from samza_azure.group.control import Assignment, Control, Member, Owner, RunPhase
from samza_azure.group.rows import ProcessorRow, ProcessorState, Request, RequestKind
from samza_azure.messages import DrainStep, Phase, Plan, StagePlan, TaskReport
from tests.model.checker import Shelf, Violation

TASKS = ("clean-0", "clean-1", "clean-2")
PARTITIONS = ("flights/0", "flights/1", "flights/2")
LEADERS = ("p1", "p2", "p3")
#: Asked for in this order. The first one is there at the beginning.
ASKED = (("drain 1", RequestKind.DRAIN), ("cancel", RequestKind.CANCEL), ("drain 2", RequestKind.DRAIN))
BEGUN = Control(
    group_id="ab" * 16,
    revision=1,
    epoch=1,
    version=1,
    leader=Member("p1", "life"),
    run_id="run",
    phase=RunPhase.RUNNING,
)


class Task(NamedTuple):
    """A task on its container."""

    read: int = 0  # rows, all of them durable
    drain: str = ""  # the drain that it knows of
    end: int = -1  # where FLUSH says that its partition ends
    frozen_for: str = ""
    ended: bool = False  # its log ends in DRAINED

    def report(self, task: str) -> TaskReport:
        """What it tells its supervisor."""
        phase = Phase.DRAINED if self.ended else Phase.RUNNING
        place = PARTITIONS[TASKS.index(task)]
        ends = {place: (0, self.read)} if self.frozen_for else None
        return TaskReport(task, 1, 1, phase, ends=ends, frozen_for=self.frozen_for)


class Leader(NamedTuple):
    """What a leader read last. A leader that was just elected knows no rows and no requests yet."""

    control: int
    etag: int
    rows: tuple[Task, ...] | None = None
    answers: tuple[str, ...] = ()  # of the requests that are there


class State(NamedTuple):
    """A state."""

    control: int
    etag: int
    holder: int  # of the lease: the leader elected last
    tasks: tuple[Task, ...]
    rows: tuple[Task, ...]  # as their rows show them
    answers: tuple[str, ...]
    leaders: tuple[Leader, ...]
    late: tuple[tuple[int, int], ...]  # writes of the blob that may still land: what, and for which ETag
    faults: int


@dataclass(eq=False)
class Drain:
    """`rows` is how many rows a partition has."""

    faults: int = 2
    leaders: int = 2
    tasks: int = 1
    rows: int = 1
    told: bool = True  # judge also whether the answers to requests are true
    conditional_flush: bool = True  # fence: FLUSH carries the ETag that it was decided for
    for_this_drain: bool = True  # fence: a task reports for which drain it has stopped
    written_down: bool = True  # fence: a cancellation is in the blob before it is answered

    def __post_init__(self) -> None:
        self.plan = Plan((StagePlan("clean", ("flights",), "by", self.tasks),), {"flights": self.tasks}, "f" * 64)
        self.controls: Shelf[Control] = Shelf()
        self.wanted = cache(self._wanted)
        self.said = cache(self._said)
        self.adopted = cache(self._adopted)
        self.judge = cache(self._judge)

    def begin(self) -> State:
        names, tasks = TASKS[: self.tasks], (Task(),) * self.tasks
        owned = {task: Assignment(Owner(f"p{number}", "life", 1), first=False) for number, task in enumerate(names, 3)}
        plan = self.plan
        control = self.controls.put(replace(BEGUN, sources=plan.sources, readers=plan.readers(), tasks=owned))
        leaders = (Leader(control, 1), *(Leader(control, 0),) * (self.leaders - 1))
        return State(control, 1, 0, tasks, tasks, ("",), leaders, (), self.faults)

    def steps(self, state: State) -> Iterator[tuple[str, State | Violation]]:
        if len(state.answers) < len(ASKED):
            yield f"somebody asks: {ASKED[len(state.answers)][0]}", state._replace(answers=(*state.answers, ""))
        for number, leader in enumerate(state.leaders):
            yield from self.leader_steps(state, number, leader)
        for number, task in enumerate(state.tasks):
            yield from self.task_steps(state, number, task)
        for place, (control, etag) in enumerate(state.late):
            rest = state._replace(late=state.late[:place] + state.late[place + 1 :])
            yield f"late: write of {self.say(control)} lands", self.write(rest, control, etag)[1]

    def rest(self, state: State) -> Violation | None:
        """Everything was answered, and a drain that was not cancelled is at its end."""
        control = self.controls.look(state.control)
        if "" in state.answers:
            return Violation("L1", f"an answer is missing: {state.answers}")
        if control.phase is RunPhase.DRAINING:
            return Violation("L1", f"the drain does not go on: {self.say(state.control)}")
        return None

    def leader_steps(self, state: State, number: int, leader: Leader) -> Iterator[tuple[str, State | Violation]]:
        """A leader reads, decides, and answers."""
        name = LEADERS[number]
        if state.faults and number != state.holder:
            yield f"{name} becomes leader", self.elect(state, number)
        if leader.etag == 0:
            return
        if number == state.holder and leader.etag != state.etag:
            found = leader._replace(control=state.control, etag=state.etag)
            yield f"{name} finds that its write was accepted", self.put(state, number, found)
        if (leader.rows, leader.answers) != (state.rows, state.answers):
            seen = leader._replace(rows=state.rows, answers=state.answers)
            yield f"{name} reads rows and requests", self.put(state, number, seen)
        if leader.rows is None:
            return
        wanted = self.wanted(leader.control, leader.rows, leader.answers)
        if wanted != leader.control:
            says = f"{name} writes {self.say(wanted)}"
            accepted, landed = self.write(state, wanted, leader.etag)
            if isinstance(landed, Violation):
                yield says, landed
            elif accepted:
                known = leader._replace(control=wanted, etag=landed.etag)
                yield says, self.put(landed, number, known)
            if state.faults:
                late = state._replace(faults=state.faults - 1, late=(*state.late, (wanted, leader.etag)))
                yield f"{says}: no answer, it is still on its way", late
        for place, said in self.said(leader.control, leader.rows, leader.answers):
            if not state.answers[place]:
                answers = (*state.answers[:place], said, *state.answers[place + 1 :])
                after = state._replace(answers=answers)
                yield f"{name} answers {ASKED[place][0]}: {said}", self.cancelled(after) or after

    def task_steps(self, state: State, number: int, task: Task) -> Iterator[tuple[str, State | Violation]]:
        """A task reads, learns of the drain and stops or ends, and reports so in its row."""
        name = TASKS[number]
        heard = self.adopted(state.control, number, task)
        if heard != task:
            yield f"{name} hears of {self.say(state.control)}", self.put_task(state, number, heard)
        may_read = task.read < self.rows if not task.drain else task.read < task.end
        if may_read and not task.ended:
            read = task._replace(read=task.read + 1, ended=task.read + 1 == task.end)
            yield f"{name} reads row {task.read}", self.put_task(state, number, read)
        if state.rows[number] != task:
            rows = (*state.rows[:number], task, *state.rows[number + 1 :])
            yield f"the row shows where {name} stands", state._replace(rows=rows)

    def write(self, state: State, control: int, etag: int) -> tuple[bool, State | Violation]:
        """A write of the control blob: was it accepted, and what then?"""
        after = self.controls.look(control)
        flushes = after.drain is not None and after.drain.step is DrainStep.FLUSH and after.phase is RunPhase.DRAINING
        if etag != state.etag and not (flushes and not self.conditional_flush):
            return False, state
        if wrong := self.judge(state.control, control, tuple(task.read for task in state.tasks)):
            return True, wrong
        landed = state._replace(control=control, etag=state.etag + 1)
        return True, self.cancelled(landed) or landed

    def cancelled(self, state: State) -> Violation | None:
        """A drain whose cancellation was confirmed does not flush."""
        drain = self.controls.look(state.control).drain
        told = self.told and len(state.answers) > 1 and state.answers[1] == asking.CANCELLED
        if told and drain is not None and (drain.uuid, drain.step) == ("drain 1", DrainStep.FLUSH):
            return Violation("S12", "drain 1 flushes, and the answer to its cancellation was: cancelled")
        return None

    def elect(self, state: State, number: int) -> State:
        """A write of the blob makes a leader, which reads rows and requests anew. The former one does not
        learn of it."""
        before = self.controls.look(state.control)
        control = self.controls.put(replace(before, revision=before.revision + 1, epoch=before.epoch + 1))
        state = state._replace(control=control, etag=state.etag + 1, holder=number, faults=state.faults - 1)
        return self.put(state, number, Leader(control, state.etag))

    def put(self, state: State, number: int, leader: Leader) -> State:
        """The state with this leader in it."""
        return state._replace(leaders=(*state.leaders[:number], leader, *state.leaders[number + 1 :]))

    def put_task(self, state: State, number: int, task: Task) -> State:
        """The state with this task in it."""
        return state._replace(tasks=(*state.tasks[:number], task, *state.tasks[number + 1 :]))

    def say(self, number: int) -> str:
        """A control blob in words."""
        control = self.controls.look(number)
        if control.drain is None:
            return "no drain"
        step = "DRAINED" if control.phase is RunPhase.DRAINED else str(control.drain.step)
        ends = [position for _, position in control.drain.ends.values()]
        return f"{step} of {control.drain.uuid}{f', ends {ends}' if ends else ''}"

    # Production's rules. The same question has the same answer.

    def _wanted(self, number: int, rows: tuple[Task, ...], answers: tuple[str, ...]) -> int:
        before = self.controls.look(number)
        requests = _requests(answers)
        control = asking.with_drain(asking.with_cancel(before, requests), requests)
        control = draining.progress(control, self.members(control, rows), self.plan)
        return number if control == before else self.controls.put(replace(control, revision=before.revision + 1))

    def _said(self, number: int, rows: tuple[Task, ...], answers: tuple[str, ...]) -> list[tuple[int, str]]:
        control, requests = self.controls.look(number), _requests(answers)
        if not self.written_down:
            control = replace(control, withdrawn=("cancel",))
        members = self.members(control, rows)
        return [(requests.index(request), said) for request, said in asking.answers(control, requests, members)]

    def members(self, control: Control, rows: tuple[Task, ...]) -> dict[str, ProcessorRow]:
        """The rows of the tasks' owners."""
        found = {}
        for number, (task, row) in enumerate(zip(TASKS, rows, strict=False), 3):
            report = row.report(task)
            if not self.for_this_drain and report.ends is not None and control.drain is not None:
                report = replace(report, frozen_for=control.drain.uuid)
            found[f"p{number}"] = ProcessorRow(f"p{number}", "life", state=ProcessorState.ACTIVE, tasks={task: report})
        return found

    def _adopted(self, number: int, place: int, task: Task) -> Task:
        """What a task knows after its supervisor has read this control blob."""
        control = self.controls.look(number)
        if task.ended or control.drain is None or control.phase is RunPhase.DRAINED:
            return task if task.ended or control.drain else task._replace(drain="", end=-1, frozen_for="")
        end = -1
        if control.drain.step is DrainStep.FLUSH:
            _, end = control.drain.ends.get(PARTITIONS[place], (0, 0))
        frozen_for = task.frozen_for if end >= 0 else control.drain.uuid
        return task._replace(drain=control.drain.uuid, end=end, frozen_for=frozen_for, ended=task.read == end)

    def _judge(self, old: int, new: int, read: tuple[int, ...]) -> Violation | None:
        """What a write may not do to rows: those beyond the ends belong to the next run."""
        before, after = self.controls.look(old), self.controls.look(new)
        drain = after.drain
        if drain is not None and drain.step is DrainStep.FLUSH:
            for task, partition, rows in zip(TASKS, PARTITIONS, read, strict=False):
                end = drain.ends.get(partition, (0, 0))[1]
                if rows > end:
                    return Violation(
                        "S7", f"{task} has read {rows} rows, the run ends after {end}: the rest comes twice"
                    )
        flushed = before.drain is not None and before.drain.step is DrainStep.FLUSH
        if flushed and (drain is None or before.drain is None or drain.ends != before.drain.ends):
            return Violation("S12", f"after {self.say(old)} comes {self.say(new)}")
        return None


@cache
def _requests(answers: tuple[str, ...]) -> tuple[Request, ...]:
    return tuple(Request(key, "etag", kind, answer=answer) for (key, kind), answer in zip(ASKED, answers, strict=False))

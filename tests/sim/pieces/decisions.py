"""What a processor decides, question by question, for a drawn state of what it knows.

Part of `pieces`. A fleet meets few of the states that are possible. Here any is drawn, and each question is answered a
second time, as plainly as its description: who may lead, what is asked of the leader, what a drain waits for, when a
task may start, who is too silent. Times are small numbers, so that equal ones are drawn, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from samza_azure.errors import CorruptState, Verdict
from samza_azure.group import (
    drain,
    election,
    ending,
    history,
    housekeeping,
    membership,
    next_run,
    publish,
    requests,
    tasks,
)
from samza_azure.group.actions import (
    CONTROL,
    HOUSEKEEPING,
    LEADER_ROW,
    LEASE,
    OWN_ROW,
    SCAN,
    AnswerRequest,
    CleanRun,
    DeleteMember,
    DeleteRequest,
    Finish,
    MarkDead,
    Tell,
)
from samza_azure.group.age import Age
from samza_azure.group.answers import Absent
from samza_azure.group.control import (
    Assignment,
    Barrier,
    BarrierState,
    Control,
    Failure,
    GivenUp,
    Member,
    Owner,
    RunPhase,
    Stop,
)
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import LeaderRow, ProcessorRow, Request, RequestKind, State
from samza_azure.group.timing import Timing
from samza_azure.group.view import (
    Denial,
    Failing,
    Leadership,
    Lease,
    Life,
    LocalTask,
    Settings,
    View,
    Well,
)
from samza_azure.messages import (
    Drain,
    DrainStep,
    Permit,
    Phase,
    Plan,
    ReleaseTask,
    StagePlan,
    StartTask,
    TaskError,
    TaskReport,
)
from samza_azure.sim.ledger import demand

NAMES, LIVES, TASKS = ("p0", "p1", "p2", "p3"), ("a-life-1", "b-life-2"), ("clean-0", "clean-1", "daily-0")
#: The time of every question; what was before it is drawn around the durations below.
NOW = 1000.0
TIMING = Timing(heartbeat_s=2.0, heartbeat_timeout_s=8.0, leader_timeout_s=5.0, scan_s=1.0, debounce_s=2.0)
SHUTDOWN_S = 4.0
PLAN = Plan(
    (StagePlan("clean", ("flights",), "between", 2), StagePlan("daily", ("between",), "out", 1)), {"flights": 3}, "f"
)
OTHER = replace(PLAN, fingerprint="g")
CLOSED = (Phase.RELEASED, Phase.DRAINED, Phase.SUPERSEDED, Phase.RESTART, Phase.FAILED)


class Drawn:
    """Values of everything that is known, from a small world."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice

    def often(self, value: Any, otherwise: Any, share: float = 0.5) -> Any:
        """One of the two."""
        return value if self.dice.random() < share else otherwise

    def before(self) -> float:
        """An instant a while ago, or never."""
        ago = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 30.0, 100.0, 599.0, 600.0, 601.0, 5000.0)
        return NOW - self.dice.choice(ago)

    def life(self) -> str:
        return self.dice.choice(LIVES)

    def owner(self) -> Owner:
        return Owner(self.dice.choice(NAMES), self.life(), self.dice.randrange(1, 4))

    def report(self, task: str) -> TaskReport:
        phase, dice = self.dice.choice(list(Phase)), self.dice
        at = {f"flights/{number}": (0, dice.randrange(4)) for number in range(dice.choice([1, 3, 3]))}
        return TaskReport(
            task,
            dice.randrange(1, 4),
            dice.randrange(1, 3),
            phase,
            dice.randrange(-1, 2),
            ends=self.often(at, None),
            frozen_for=dice.choice(["u", "u", "v"]),
            read=self.often({"flights/0": (0, dice.randrange(4))}, None, 0.3),
            error=TaskError("no", "trace") if phase is Phase.FAILED else None,
        )

    def row(self, name: str, share: float = 0.7) -> ProcessorRow:
        dice = self.dice
        return ProcessorRow(
            name,
            dice.choice([*LIVES, *LIVES, *LIVES, ""]),
            dice.choice(["e1", "e2"]),
            3,
            dice.choice([0, 4, 5, 6]),
            State.ACTIVE if dice.random() < share else dice.choice(list(State)),
            {task: dice.randrange(1, 4) for task in TASKS if dice.random() < 0.3},
            {task: self.report(task) for task in TASKS if dice.random() < 0.4},
            dice.choice(["f", "f", "f", "g", ""]),
            dice.choice(["", "", "new", "r9", "r1"]),
            too_old_for=self.often(7, 0, 0.1),
            format=self.often(2, 1, 0.05),
        )

    def control(self) -> Control:
        dice = self.dice
        step = dice.choice([None, DrainStep.FREEZE, DrainStep.FLUSH])
        ends = {"flights/0": (0, 3), "flights/1": (0, 3), "flights/2": (0, 3)}
        asked = DrainNotification(dice.choice(["u", "v", "k0"]), "r2", step=step, ends=ends, history=("FREEZE",))
        members = tuple(sorted({Member(dice.choice(NAMES), self.life()) for _ in range(3)}))
        run_id = dice.choice(["r2", "r2", "r1"])
        sources = self.often({"flights": 3}, {}, 0.8)
        return Control(
            "group",
            revision=6,
            epoch=3,
            version=dice.choice([0, 5, 5, 5]),
            leader=self.often(Member("p0", LIVES[0]), None, 0.8),
            successor=dice.choice([None, "p0", "p1"]),
            run_id=run_id,
            phase=dice.choice([*RunPhase, RunPhase.RUNNING, RunPhase.RUNNING, RunPhase.DRAINING]),
            fingerprint=dice.choice(["f", "f", "f", "g", ""]),
            sources=sources,
            readers=self.often({"clean": ("flights",)}, {}, 0.8) if sources else {},
            members=members,
            tasks={
                task: Assignment(
                    self.often(self.owner(), None, 0.8),
                    tuple(self.owner() for _ in range(dice.choice([0, 0, 1, 2]))),
                    dice.random() < 0.5,
                )
                for task in TASKS
            },
            given_up={task: GivenUp(self.owner(), "why") for task in TASKS if dice.random() < 0.15},
            barrier=Barrier(5, dice.choice(list(BarrierState))),
            drain=asked if step is not None else None,
            stop=self.often(Stop(dice.choice(["u", "k0"]), members[:2]), None, 0.25),
            withdrawn=tuple(f"k{number}" for number in range(3) if dice.random() < 0.3),
            positions={"flights/0": (0, dice.randrange(4))},
            past=self.often(("r0", "r2"), ("r0",), 0.3),
            finished=dice.choice([(), ("f",), ("g",)]),
            failure=self.often(Failure("clean", "clean-0", "no", "trace"), None),
            uncleaned=dice.choice([(), (), ("r0",), ("r0", "r2")]),
            kept=dice.choice([{}, {}, {"r0": 2}]),
            deposed=self.often(Member(dice.choice(NAMES), self.life()), None, 0.3),
            churn=dice.randrange(7),
            nonce="n",
        )

    def requests(self) -> tuple[Request, ...]:
        dice = self.dice
        return tuple(
            Request(
                f"k{number}",
                "e",
                dice.choice([None, *RequestKind, *RequestKind]),
                dice.choice(["", "", "r2", "r1", "r0"]),
                dice.choice(["", "", "", "accepted"]),
                frozenset(self.often({life[:8] for life in LIVES[:1]}, set())),
            )
            for number in range(dice.choice([0, 1, 2, 3, 12]))
        )

    def local(self, task: str) -> LocalTask:
        dice = self.dice
        report = self.often(self.report(task), None, 0.85)
        return LocalTask(
            dice.randrange(1, 4),
            1,
            self.before(),
            report,
            self.often(self.before(), None, 0.3),
            dice.randrange(7),
            self.before(),
            lost=dice.random() < 0.2,
            former=dice.random() < 0.1,
        )

    def view(self) -> View:
        """All that a processor knows: `p0`, of the first life."""
        dice = self.dice
        settings = Settings(
            "p0",
            TIMING,
            SHUTDOWN_S,
            dice.choice([0, 1, 5]),
            run_id=dice.choice(["", "", "", "r2", "r9", "r0"]),
            new_run=dice.random() < 0.2,
            wait_for_upgrade=dice.random() < 0.2,
            boot="boot",
            holds_directory=dice.random() < 0.5,
        )
        rows = {name: self.row(name) for name in NAMES if dice.random() < 0.85}
        view = View(settings, Life(LIVES[0]))
        view.life.control = self.control() if dice.random() < 0.93 else self.often(Absent(), None)
        view.life.accepted_at, view.life.beat = self.before(), 3
        view.life.etag = self.often("e", None, 0.9)
        if dice.random() < 0.8:
            view.life.written = replace(self.row("p0", 0.9), incarnation=LIVES[0])
        view.life.active_run = dice.choice(["", "r2", "r1"])
        view.life.older_copy = dice.random() < 0.05
        view.life.waiting_since = {task: self.before() for task in TASKS if dice.random() < 0.3}
        view.others.members = rows
        view.others.scanned_at = self.before()
        view.others.ages = {
            name: Age(
                dice.choice(["e1", "e2"]), dice.choice([0.0, 4.0, 7.9, 8.0, 86400.0]), dice.choice([2, 3, 9]), NOW
            )
            for name in rows
        }
        view.others.seen_alive = frozenset(life for life in LIVES if dice.random() < 0.6)
        view.others.read_at = {name: self.before() for name in NAMES if dice.random() < 0.3}
        view.others.leader_age = Age("e", dice.choice([0.0, 5.0, 7.0, 10.0, 20.0, 99.0]), dice.choice([0, 2, 3]), NOW)
        view.others.leader_row = dice.choice(
            [None, Absent(), LeaderRow(3, 5, "s", "c", 1, tuple(dice.sample(NAMES, dice.randrange(4))), "e")]
        )
        view.others.back = {name: (self.life(), self.before()) for name in NAMES if dice.random() < 0.2}
        view.others.well = {task: Well(dice.randrange(1, 4), 1, self.before()) for task in TASKS if dice.random() < 0.4}
        view.candidacy.patience = dice.choice([0.0, 0.5, 0.9])
        view.work.plan = dice.choice([PLAN, PLAN, PLAN, OTHER, None])
        view.work.container = dice.random() < 0.8
        view.work.rejected = self.often("bad", "", 0.05)
        view.work.tasks = {task: self.local(task) for task in TASKS if dice.random() < 0.7}
        view.work.permit_told = self.before()
        view.group_id = dice.choice(["group", "group", "group", "", "another"])
        view.too_old_for = self.often(7, 0, 0.07)
        view.leaving = dice.random() < 0.15
        view.calls.let_in = dice.random() < 0.7
        if dice.random() < 0.08:
            since = self.before()
            view.calls.denied = {
                "MergeOwnRow": Denial(since, self.dice.choice([since, NOW]), "no", dice.random() < 0.5)
            }
        view.calls.failing = {SCAN: Failing(dice.choice([1, 4, 5, 9]), NOW - 1.0)} if dice.random() < 0.4 else {}
        view.calls.busy = {name: self.before() for name in (SCAN, OWN_ROW, HOUSEKEEPING) if dice.random() < 0.15}
        if dice.random() < 0.2:
            view.ending, view.ending_since = Finish(Verdict.DONE, "bye"), self.before()
        if dice.random() < 0.7:
            view.leadership = self.leadership()
        view.random, view.fresh_id, view.wall_ms = dice.random(), "0123456789ab", 77
        return view

    def leadership(self) -> Leadership:
        dice = self.dice
        found = Leadership(Lease("l", self.before()), self.before(), self.before(), self.before())
        found.deposed_etag = dice.choice(["", "e1", "e2"])
        found.requests = self.requests()
        found.request_ages = {
            each.key: Age("e", dice.choice([0.0, 86399.0, 86400.0]), dice.choice([2, 3]), NOW)
            for each in found.requests
        }
        found.requests_read_at = self.before()
        found.clean_done = dice.choice(["", "r0", "r2"])
        found.clean_kept = dice.choice([("", 0), ("r0", 2), ("r2", 1)])
        found.clean_tries = dice.randrange(3)
        return found


def check_decisions(dice: Random) -> None:
    """Plain: each question, for some states."""
    drawn = Drawn(dice)
    for _ in range(6):
        view = drawn.view()
        control = view.control if isinstance(view.control, Control) else drawn.control()
        view.life.control = control if dice.random() < 0.97 else view.life.control
        _check_view(view)
        _check_requests(drawn, view, control)
        _check_drain(drawn, view, control)
        _check_runs(view, control)
        _check_tasks(view)
        _check_election(view, control)
        _check_house(view, control)
        _check_members(view, control)
        _check_ending(view)
        _check_publish(drawn, view, control)
        _check_history(drawn, view, control)


def same(what: str, found: Any, wanted: Any) -> None:
    demand(found == wanted, f"Plain: {what}: {str(found)[:300]}, and {str(wanted)[:300]} is right")


def alive(row: ProcessorRow | None) -> bool:
    return row is not None and row.state not in ("DEAD", "LEFT") and bool(row.incarnation)


def _present(view: View) -> dict[str, ProcessorRow]:
    rows = {name: row for name, row in view.others.members.items() if alive(row) and name != "p0"}
    own = view.life.written
    if own is not None and alive(own):
        rows["p0"] = replace(own, state=State.LEAVING) if view.ending is not None else own
    return rows


def _drawn_draining(control: Control) -> bool:
    return control.phase in ("RUNNING", "DRAINING")


# View.


def _check_view(view: View) -> None:
    rows = _present(view)
    same("who is present", dict(view.present), rows)
    control = view.control
    stop_at = view.life.accepted_at + 6.0
    denied = view.calls.denied_at
    same("the self-stop", view.permit_until, min(stop_at, denied) if denied > view.life.accepted_at else stop_at)
    every = view.settings.restart_limit + 1
    for task in TASKS:
        wanted = (every, 0)
        if isinstance(control, Control):
            given = control.given_up.get(task)
            if given is not None and given.owner.processor != "p0":
                wanted = (max(every - (every + 1) // 2, 1), (every + 1) // 2)
            elif any(member.processor != "p0" for member in control.members):
                wanted = ((every + 1) // 2, 0)
        same(f"the tries of {task}", view.tries(task), wanted)
    if isinstance(control, Control) and view.share is not None:
        me = ("p0", LIVES[0])
        mine = {
            task: each.owner
            for task, each in control.tasks.items()
            if each.owner is not None and (each.owner.processor, each.owner.incarnation) == me
        }
        same("our tasks", dict(view.share.mine), mine)
        awaited = [
            (task, each.generation)
            for task, one in control.tasks.items()
            for each in one.after
            if (each.processor, each.incarnation) == me
        ]
        same("what others wait for", list(view.share.awaited), awaited)
    row, leads = view.others.leader_row, view.leadership is not None
    watching = leads or isinstance(row, Absent) or (isinstance(row, LeaderRow) and "p0" in row.successors)
    same("whether we watch", view.watching(), watching)
    size = max(len(view.others.members), len(control.members) if isinstance(control, Control) else 0)
    same("the size of the group", view.size, size)
    due = view.others.leader_age is None or view.others.leader_age.reads > 0 or not view.others.leader_age.etag
    same("how often the leader row is read", view.read_interval(), (1.0 if due else 2.0) if watching else 2.0)
    for name in (SCAN, OWN_ROW, LEASE, CONTROL):
        failing = view.calls.failing.get(name)
        free = name not in view.calls.busy and (failing is None or failing.until <= NOW)
        same(f"whether {name} is free", view.free(name, NOW), free)
        same(f"whether {name} can be written", view.writable(name, NOW), free and name not in view.calls.doubted)
        same("calls that failed", view.failing_calls(name), failing.times if failing is not None else 0)
    spared = {
        OWN_ROW: (1.5, 1.5),
        SCAN: (1.0, 4.0),
        CONTROL: (0.25, 4.0),
        LEASE: (0.25, 5.0),
        HOUSEKEEPING: (1.0, 300.0),
        "member p1": (1.0, 4.0),
        LEADER_ROW: (1.5, 1.5) if leads else (view.read_interval(), 4 * view.read_interval()),
    }
    for name, (first, most) in spared.items():
        waits = view.back_off(name)
        same(f"how {name} is spared", (waits.first_s, waits.most_s), (first, most))
    for name in NAMES:
        seen = max(view.others.scanned_at, view.others.read_at.get(name, -1e9))
        same(f"when {name} was seen", view.seen_at(name), seen)


# Requests.


def _check_requests(drawn: Drawn, view: View, control: Control) -> None:
    asked = drawn.requests()
    rows = _present(view)
    frozen = control.drain is not None and control.drain.step is DrainStep.FREEZE
    flushes = control.phase is RunPhase.DRAINING and not frozen
    same("whether the drain flushes", requests.flushes(control), flushes)

    def ours(each: Request) -> bool:
        return each.kind is not None and each.run_id in ("", control.run_id)

    open_ones = [each for each in asked if not each.answer and ours(each)]
    ignored = [each for each in asked if not each.answer and not ours(each)]
    same("who waits in vain", requests.ignored(control, asked), len(ignored))

    def obeyed(each: Request) -> bool:
        if each.kind is RequestKind.CANCEL:
            return each.key in control.withdrawn and not frozen
        return each.kind is not RequestKind.STOP or control.stop is not None

    waiting = {each.kind for each in open_ones if obeyed(each)}

    def answer(each: Request) -> str:
        if not ours(each):
            return "already drained" if each.kind is not None and each.run_id in control.past else ""
        if each.kind is RequestKind.DRAIN:
            if control.phase in ("DRAINING", "DRAINED"):
                if control.drain is not None and control.drain.uuid == each.key:
                    return "accepted"
                return "already draining" if control.phase == "DRAINING" else "already drained"
            return "cancelled" if waiting & {RequestKind.CANCEL, RequestKind.STOP} else ""
        if each.kind is RequestKind.CANCEL:
            if control.drain is not None and not frozen:
                return "already drained" if control.phase == "DRAINED" else "refused: the run flushes already"
            return "cancelled" if obeyed(each) and RequestKind.DRAIN not in waiting else ""
        if control.stop is not None:
            if control.stop.uuid != each.key:
                return "already stopping"
            return "" if RequestKind.DRAIN in waiting else "accepted"
        if flushes:
            return "refused: the run flushes already"
        meant = [row for row in rows.values() if not each.incarnations or row.incarnation[:8] in each.incarnations]
        return "" if meant else "nobody is left to stop"

    wanted = [(each, answer(each)) for each in asked if not each.answer]
    same("the answers", requests.answers(control, asked, rows), [pair for pair in wanted if pair[1]])
    after = requests.with_cancel(control, asked)
    cancels = sorted(each.key for each in open_ones if each.kind is RequestKind.CANCEL)[:8]
    if (control.drain is not None and not frozen) or set(cancels) <= set(control.withdrawn):
        same("a cancellation without use", after, control)
    else:
        thawed = replace(control, drain=None, phase=_thawed(control)) if frozen else control
        same("a cancellation", after, replace(thawed, withdrawn=tuple(cancels)))
    after = requests.with_drain(control, asked)
    drains = [each for each in open_ones if each.kind is RequestKind.DRAIN]
    held = any(each.kind in (RequestKind.CANCEL, RequestKind.STOP) for each in open_ones)
    if not drains or held or control.phase != "RUNNING":
        same("a drain that is not taken up", after, control)
    else:
        first = drains[0]
        taken = after.drain is not None and (after.drain.uuid, after.drain.run_id) == (first.key, control.run_id)
        frozen_now = (
            taken and after.drain is not None and (after.drain.step, after.drain.history) == ("FREEZE", ("FREEZE",))
        )
        demand(frozen_now and after.phase == "DRAINING", f"Plain: the drain {first.key} becomes {after.drain}")
    _check_stop(view, control, rows, flushes=flushes, frozen=frozen)


def _thawed(control: Control) -> RunPhase:
    return RunPhase.RUNNING if control.phase is RunPhase.DRAINING else control.phase


def _check_stop(view: View, control: Control, rows: Mapping[str, ProcessorRow], *, flushes: bool, frozen: bool) -> None:
    if view.leadership is None:
        return
    asked, after = view.leadership.requests, requests.with_stop(view, control, rows)
    everybody = tuple(sorted(Member(row.processor, row.incarnation) for row in rows.values() if not row.too_old_for))
    certain = view.others.seen_alive | {LIVES[0]}
    if control.stop is None:
        able = [
            each
            for each in asked
            if each.kind is RequestKind.STOP and not each.answer and not flushes and each.run_id in ("", control.run_id)
            if any(
                row.incarnation in certain and (not each.incarnations or row.incarnation[:8] in each.incarnations)
                for row in rows.values()
            )
        ]
        if not able:
            same("no stop", after, control)
            return
        base = replace(control, drain=None, phase=_thawed(control)) if frozen else control
        same("a stop", after, replace(base, stop=Stop(able[0].key, everybody)))
        return
    there = [
        member
        for member in control.stop.members
        if member.processor in rows and rows[member.processor].incarnation == member.incarnation
    ]
    if not there:
        unanswered = [each for each in asked if each.key == control.stop.uuid and not each.answer]
        same("the end of a stop", after, control if unanswered else replace(control, stop=None))
        return
    joined = set(everybody) - set(control.stop.members)
    sure = [
        member for member in there if member == Member("p0", LIVES[0]) or member.incarnation in view.others.seen_alive
    ]
    grown = replace(control, stop=replace(control.stop, members=tuple(sorted({*there, *joined}))))
    same("who is stopped, too", after, grown if joined and sure else control)


# The drain.


def word(control: Control, task: str, rows: Mapping[str, ProcessorRow]) -> TaskReport | None:
    """What the owner of a task says of it."""
    owner = control.tasks[task].owner if task in control.tasks else None
    row = rows.get(owner.processor) if owner is not None else None
    if owner is None or row is None or row.incarnation != owner.incarnation or task not in row.tasks:
        return None
    return row.tasks[task] if row.tasks[task].generation == owner.generation else None


def _check_drain(drawn: Drawn, view: View, control: Control) -> None:
    dice = drawn.dice
    rows = {name: row for name, row in view.others.members.items() if row.incarnation}
    if dice.random() < 0.7:  # all that is still missing is one thing, or nothing
        control, rows = _almost_drained(drawn, control)
    after = drain.progress(control, rows, view.work.plan)
    going = control.drain
    if control.phase != "DRAINING" or going is None:
        same("a drain that is none", after, control)
        return
    words = {task: word(control, task, rows) for task in control.tasks}
    if going.step == "FREEZE":
        ends = _drain_ends(control, words, going.uuid, view.work.plan)
        if ends is None:
            same("a drain before all stand still", after, control)
            return
        moved = replace(going, step=DrainStep.FLUSH, ends=ends, history=(*going.history, "FLUSH"))
        same("FLUSH", after, replace(control, drain=moved))
        return
    if not all(word is not None and word.phase == "DRAINED" for word in words.values()):
        same("a drain before all are drained", after, control)
        return
    finished = [each for each in control.finished if each != control.fingerprint]
    wanted = replace(
        control,
        phase=RunPhase.DRAINED,
        given_up={},
        positions=going.ends,
        past=(*control.past, control.run_id),
        finished=(*finished, control.fingerprint),
        uncleaned=(*control.uncleaned, control.run_id),
        drain=replace(going, history=(*going.history, "DRAINED")),
    )
    same("DRAINED", after, wanted)


def _almost_drained(drawn: Drawn, control: Control) -> tuple[Control, dict[str, ProcessorRow]]:
    dice = drawn.dice
    step = dice.choice([DrainStep.FREEZE, DrainStep.FLUSH])
    phase = Phase.RUNNING if step is DrainStep.FREEZE else Phase.DRAINED
    odd = dice.choice([None, *TASKS])
    reports = {}
    for task in TASKS:
        number = int(task[-1])
        ends = {f"flights/{each}": (0, dice.randrange(2, 5)) for each in range(number, 3, 2)}
        report = TaskReport(
            task, 2, 1, phase, ends=ends, frozen_for="u", read=drawn.often({"flights/0": (0, 3)}, None, 0.2)
        )
        reports[task] = drawn.report(task) if task == odd else report
    rows = {"p1": replace(drawn.row("p1", 1.0), incarnation=LIVES[0], tasks=reports)}
    begun = {task: Assignment(Owner("p1", LIVES[0], 2)) for task in TASKS}
    drain_ = DrainNotification("u", "r2", step=step, ends={"flights/0": (0, 3)}, history=("FREEZE",))
    return replace(control, phase=RunPhase.DRAINING, drain=drain_, tasks=begun), rows


def _drain_ends(
    control: Control, words: Mapping[str, TaskReport | None], uuid: str, plan: Plan | None
) -> dict[str, tuple[int, int]] | None:
    streams: Mapping[str, Any] = control.readers
    if not streams and control.sources:
        if plan is None or plan.fingerprint != control.fingerprint:
            return None
        streams = {"clean": ("flights",)}
    ends = dict(control.positions)
    for task in [task for task in control.tasks if task.rpartition("-")[0] in streams]:
        word = words[task]
        wanted = {f"flights/{each}" for each in range(int(task[-1]), control.sources["flights"], 2)}
        if word is None or word.ends is None or word.frozen_for != uuid or wanted - word.ends.keys():
            return None
        for partition, at in word.ends.items():
            ends[partition] = max(at, ends.get(partition, (0, 0)))
    for word in words.values():
        for partition, at in ((word.read or {}) if word is not None else {}).items():
            if at > ends.get(partition, (0, 0)):
                return None
    return ends


# Runs.


def _wanted_run(view: View) -> str:
    control, by_hand = view.control, view.settings.run_id
    if view.life.active_run or not isinstance(control, Control):
        return ""
    if by_hand and by_hand != control.run_id and by_hand not in control.past:
        return by_hand
    return "new" if view.settings.new_run else ""


def _fits(control: Control, fingerprint: str, new_run: str) -> bool:
    if control.phase == "NONE":
        return fingerprint != ""
    if control.phase == "DRAINED":
        return fingerprint != "" and (new_run != "" or fingerprint not in (control.fingerprint, *control.finished))
    return fingerprint == control.fingerprint


def _check_runs(view: View, control: Control) -> None:
    same("the run that is asked for", next_run.wanted_run(view), _wanted_run(view))
    for fingerprint in ("f", "g", ""):
        for wish in ("", "new"):
            found = next_run.fits(control, fingerprint, wish)
            same(f"whether {fingerprint!r} fits", found, _fits(control, fingerprint, wish))
    plan, took_part = view.work.plan, control.phase == "DRAINED" and view.life.active_run == control.run_id
    able = plan is not None and not took_part and not view.too_old_for
    able = able and plan is not None and _fits(control, plan.fingerprint, _wanted_run(view))
    same("whether we can act", next_run.can_act(view, control), able)
    after = next_run.begin_run(view, control)
    if plan is None or view.ending is not None:
        same("a run without a plan", after, control)
        return
    if control.phase == "FAILED":
        resumed = view.life.active_run != control.run_id and plan.fingerprint == control.fingerprint
        phase = RunPhase.DRAINING if control.drain is not None else RunPhase.RUNNING
        same("a run that failed", after, replace(control, phase=phase, failure=None) if resumed else control)
        return
    wishes = [row.new_run for row in _present(view).values() if row.new_run and row.fingerprint == plan.fingerprint]
    fresh = plan.fingerprint not in (control.fingerprint, *control.finished) or bool(wishes)
    begins = control.phase == "NONE" or (
        control.phase == "DRAINED" and view.life.active_run != control.run_id and fresh
    )
    named = [wish for wish in wishes if wish != "new"] or [view.settings.run_id]
    if not begins or named[0] in control.past:
        same("no run begins", after, control)
        return
    said = (after.run_id, after.phase, after.fingerprint, after.sources, after.readers, after.members, after.drain)
    wanted = (named[0] or "77-01234567", "RUNNING", plan.fingerprint, plan.sources, {"clean": ("flights",)}, (), None)
    same("a run that begins", said, wanted)
    same("its tasks", dict(after.tasks), {task: Assignment() for task in TASKS})
    same("what failed before", (after.failure, dict(after.given_up)), (None, {}))
    same("where it begins", (after.positions, after.past), (control.positions, control.past))
    drains = [each.uuid for each in after.drains]
    same("what was drained", drains, [control.drain.uuid] if control.drain is not None else [])


# Tasks.


def _assigned(view: View) -> dict[str, Owner]:
    control = view.control
    if view.too_old_for or not isinstance(control, Control) or not _drawn_draining(control):
        return {}
    me = ("p0", LIVES[0])
    owners = {task: each.owner for task, each in control.tasks.items() if each.owner is not None}
    return {task: owner for task, owner in owners.items() if (owner.processor, owner.incarnation) == me}


def closed(local: LocalTask) -> bool:
    return local.report is not None and local.report.phase in CLOSED


def _tries_on(view: View, task: str, local: LocalTask) -> bool:
    return local.failures < view.tries(task)[0]


def _retry_at(view: View, task: str, local: LocalTask) -> float:
    phase = local.report.phase if local.report is not None else Phase.STARTING
    if local.lost or phase not in (Phase.FAILED, Phase.RESTART):
        return local.closed_at
    if phase is Phase.RESTART:
        return local.closed_at + 0.25
    return local.closed_at + min(2.0 ** (view.tries(task)[1] + local.failures - 1), 30.0) * 0.5


def _has_let_go(view: View, task: str, earlier: Owner) -> bool:
    row = view.others.members.get(earlier.processor)
    gone = row is None or row.incarnation != earlier.incarnation or not alive(row) or row.too_old_for > 0
    return gone or (row is not None and row.released.get(task, 0) >= earlier.generation)


def _may_start(view: View, task: str, owner: Owner) -> bool:
    control, local = view.control, view.work.tasks.get(task)
    if not isinstance(control, Control) or view.work.plan is None or view.work.plan.fingerprint != control.fingerprint:
        return False
    if local is not None:
        if not closed(local) or _retry_at(view, task, local) > NOW:
            return False
        if local.generation == owner.generation:
            phase = local.report.phase if local.report is not None else Phase.STARTING
            return phase is Phase.RESTART or (phase is Phase.FAILED and _tries_on(view, task, local))
    for earlier in control.tasks[task].after:
        if (earlier.processor, earlier.incarnation) == ("p0", LIVES[0]):
            continue
        since = view.life.waiting_since.get(task, NOW)
        seen = max(view.others.scanned_at, view.others.read_at.get(earlier.processor, -1e9))
        if since + 1.5 * SHUTDOWN_S > NOW and not (seen >= since and _has_let_go(view, task, earlier)):
            return False
    return True


def _reported(view: View, task: str, local: LocalTask) -> TaskReport | None:
    report, control = local.report, view.control
    if report is None or local.former or report.phase is Phase.RELEASED:
        return None
    owner = control.tasks[task].owner if isinstance(control, Control) else None
    given = owner is not None and (owner.processor, owner.incarnation) == ("p0", LIVES[0])
    given = given and owner is not None and owner.generation == report.generation
    if closed(local) and (view.too_old_for or not given):
        return None
    if report.phase is Phase.SUPERSEDED:
        return replace(report, phase=Phase.FAILED, error=TaskError(tasks.LATER_WRITER.format(task=task), ""))
    again = report.phase is Phase.RESTART or (report.phase is Phase.FAILED and _tries_on(view, task, local))
    return replace(report, phase=Phase.STARTING) if again else report


def _check_tasks(view: View) -> None:
    control = view.control
    mine = _assigned(view)
    same("what is assigned", dict(tasks.assigned(view)), mine)
    same(
        "what is reported",
        {task: tasks.reported(view, each) for task, each in view.work.tasks.items()},
        {task: _reported(view, task, each) for task, each in view.work.tasks.items()},
    )
    for task, each in view.work.tasks.items():
        same("when it is tried again", tasks.retry_at(view, task, each), _retry_at(view, task, each))
    gone: dict[str, int] = {}
    for task, given in control.tasks.items() if isinstance(control, Control) else ():
        for earlier in given.after:
            local = view.work.tasks.get(task)
            ours = (earlier.processor, earlier.incarnation) == ("p0", LIVES[0])
            if ours and (local is None or closed(local) or local.generation > earlier.generation):
                gone[task] = max(earlier.generation, gone.get(task, 0))
    same("what is released", tasks.released(view), gone)
    told = Drain(None)
    if isinstance(control, Control) and control.drain is not None and control.phase in ("DRAINING", "DRAINED"):
        told = Drain(control.drain.step, control.drain.uuid, control.drain.ends)
    same("the drain", tasks.wanted_drain(view), told)
    if isinstance(control, Control):
        waits = {
            earlier.processor
            for task in view.life.waiting_since
            for earlier in control.tasks[task].after
            if earlier.processor != "p0"
        }
        same("who is awaited", tasks.awaited(view), waits)
    _check_commands(view, mine, told)


def _check_commands(view: View, mine: Mapping[str, Owner], drain_: Drain) -> None:
    said = [each.command for each in tasks.commands(view, NOW) if isinstance(each, Tell)]
    if not view.work.container:
        same("commands without a container", said, [])
        return
    until = max(0.0, view.permit_until) if view.life.etag is not None else 0.0
    permits = [Permit(until)] if until != view.work.permit_told else []
    same("the permit", [each for each in said if isinstance(each, Permit)], permits)
    news = drain_ != view.work.drain_told and not (view.work.drain_told is None and drain_.step is None)
    same("the drain that is told", [each for each in said if isinstance(each, Drain)], [drain_] if news else [])
    ends = view.ending is not None
    goes = ends and (not view.leaving or view.ending_since + 6.0 <= NOW)
    released = [
        ReleaseTask(task)
        for task, local in view.work.tasks.items()
        if not closed(local) and local.releasing_since is None
        if goes or task not in mine or mine[task].generation != local.generation
    ]
    same("what is to be released", [each for each in said if isinstance(each, ReleaseTask)], released)
    starts = [task for task, owner in mine.items() if until > NOW and not ends and _may_start(view, task, owner)]
    found = [each for each in said if isinstance(each, StartTask)]
    same("what starts", [each.task for each in found], starts)
    control = view.control
    for each in found:
        assert isinstance(control, Control)
        before, owner = view.work.tasks.get(each.task), mine[each.task]
        known = before.report if before is not None and before.generation == owner.generation else None
        has_log = known is not None and (known.phase in ("RUNNING", "DRAINED") or known.batch >= 0)
        first = control.tasks[each.task].first and not has_log
        said_of = (each.generation, each.attempt, each.first, each.run_id, each.positions)
        wanted = (owner.generation, view.work.attempts + 1, first, control.run_id, control.positions)
        same(f"how {each.task} starts", said_of, wanted)
    order = [type(each).__name__ for each in said]
    same("the order of commands", order, sorted(order, key=["Permit", "Drain", "ReleaseTask", "StartTask"].index))


# Leading.


def who_leads_next(view: View, control: Control) -> list[str]:
    stopped = control.stop.members if control.stop is not None else ()
    owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
    able = [
        row
        for name, row in _present(view).items()
        if name != "p0" and row.state != "LEAVING" and Member(name, row.incarnation) not in stopped
    ]
    ranked = sorted(
        able,
        key=lambda row: (
            0 if _fits(control, row.fingerprint, row.new_run) else 1,
            -row.format,
            row.processor in owners,
            row.processor,
        ),
    )
    return [row.processor for row in ranked][:3]


def _check_election(view: View, control: Control) -> None:
    names = who_leads_next(view, control)
    same("the successors", list(election.successors_of(view, control)), names)
    known = view.control
    churn = known.churn if isinstance(known, Control) else 0
    timeout = 5.0 * 2 ** min(churn, 4)
    same("the leader's timeout", election.leader_timeout(view), timeout)
    age, row = view.others.leader_age, view.others.leader_row
    named = row.successors if isinstance(row, LeaderRow) else ()
    patience = named.index("p0") * 1.0 if "p0" in named else (3 + 3 * view.candidacy.patience) * 2.0
    silent = age is not None and age.seconds >= timeout + patience and age.reads >= 3
    same("a suspicion", election._suspect(view), silent)  # the question itself
    if view.leadership is None:
        return
    since = view.leadership.since
    heard = view.life.accepted_at > NOW - 4.0
    endless = SCAN in view.calls.busy and view.calls.busy[SCAN] + 24.0 < NOW
    tried = endless or view.failing_calls(SCAN) >= 5
    blind = heard and tried and max(view.others.scanned_at, since) + 24.0 < NOW
    same("a blind leader", election.is_blind(view, NOW), blind)
    same("who is abler", election.abler(view, control, NOW), _abler(view, control, names))
    after, deposed = election.with_churn(view, control, NOW), control.deposed
    if deposed is not None:
        found = view.others.members.get(deposed.processor)
        if found is None or not alive(found) or found.incarnation != deposed.incarnation:
            same("a suspicion that was right", after, replace(control, deposed=None))
            return
        if found.etag != view.leadership.deposed_etag:
            same("a suspicion that was wrong", after, replace(control, deposed=None, churn=control.churn + 1))
            return
    forgotten = control.churn > 0 and since + 10 * 5.0 * 2 ** min(control.churn, 4) <= NOW
    same("patience", after, replace(control, churn=0) if forgotten else control)


def _abler(view: View, control: Control, names: list[str]) -> str | None:
    rows, office = _present(view), view.leadership
    assert office is not None
    seen = {name: row for name, row in rows.items() if row.incarnation in view.others.seen_alive}
    latest = max([row.format for row in seen.values()], default=1)
    if (next_run.can_act(view, control) and latest <= 1) or view.ending is not None:
        return None
    if view.others.scanned_at < office.since or view.calls.unsettled is not None:
        return None
    for name in names:
        age = view.others.ages.get(name)
        silent = age is None or (age.seconds >= 4.0 and age.reads >= 3)
        if name not in seen or silent or rows[name].format < latest:
            continue
        if _fits(control, rows[name].fingerprint, rows[name].new_run):
            return name if office.since + 5.0 <= NOW else None
    return None


# Housekeeping.


def _check_house(view: View, control: Control) -> None:
    office = view.leadership
    if office is None:
        return
    members = view.others.members
    actions = housekeeping.keep_house(view, control, NOW)
    works = [
        name
        for name, row in members.items()
        if name != "p0" and alive(row) and any(word(control, task, {name: row}) for task in TASKS)
    ]
    waits = (control.phase == "DRAINED" and bool(works)) or view.others.scanned_at < office.since
    fresh = [run for run in control.uncleaned if run not in control.kept]
    cleans, leftovers = [], False
    if control.uncleaned and not waits:
        run = fresh[0] if fresh else control.uncleaned[office.clean_tries % len(control.uncleaned)]
        if office.clean_done != run and HOUSEKEEPING not in view.calls.busy:
            cleans = [CleanRun(run)]
        leftovers = run in (office.clean_done, office.clean_kept[0])
    same("what is cleaned up", [each for each in actions if isinstance(each, CleanRun)], cleans)
    gone = {name for name, row in members.items() if not alive(row) and row.incarnation and name != "p0"}
    old = {name for name in gone if view.others.ages[name].seconds >= 3600.0 and view.others.ages[name].reads >= 3}
    deleted = {each.processor for each in actions if isinstance(each, DeleteMember)}
    demand(deleted <= (gone if leftovers else old), f"Plain: the rows of {deleted - old} are deleted")
    aged = {key for key, age in office.request_ages.items() if age.seconds >= 86400.0 and age.reads >= 3}
    answered = {each.key for each in office.requests if each.answer} if leftovers else set()
    forgotten = {each.key for each in actions if isinstance(each, DeleteRequest)}
    demand(forgotten <= aged | answered, f"Plain: the requests {forgotten - aged} are deleted")
    said = {each.key: each.answer for each in actions if isinstance(each, AnswerRequest)}
    right = {each.key: text for each, text in requests.answers(control, office.requests, _present(view))}
    demand(said.items() <= right.items() or bool(set(said) & aged), "Plain: other answers are given")
    wanted = len(old | (gone if leftovers else set())) + len(aged | answered | set(right))
    did = len(deleted | forgotten | set(said))
    demand(did == min(wanted, 8), f"Plain: of {wanted} things to do in the house {did} are done")
    after = housekeeping.with_clean_up(view, control)
    left_over = bool(gone) or any(each.answer for each in office.requests)
    if not control.uncleaned or left_over:
        same("a run that is not cleaned up", after, control)
    elif office.clean_done in control.uncleaned:
        left = tuple(run for run in control.uncleaned if run != office.clean_done)
        kept = {run: count for run, count in control.kept.items() if run in left}
        same("a run that is cleaned up", after, replace(control, uncleaned=left, kept=kept))
    elif office.clean_kept[0] in control.uncleaned and control.kept.get(office.clean_kept[0]) != office.clean_kept[1]:
        kept = {**control.kept, office.clean_kept[0]: office.clean_kept[1]}
        same("what cannot be deleted", after, replace(control, kept=kept))
    else:
        same("nothing to clean up", after, control)


# Members.


def _candidates(view: View, control: Control) -> list[str]:
    return [
        name
        for name, row in _present(view).items()
        if row.state != "LEAVING" and row.fingerprint == control.fingerprint
        if row.adopted > 0 or control.version == 0 or Member(name, row.incarnation) in control.members
    ]


def _check_members(view: View, control: Control) -> None:
    able = _candidates(view, control)
    same("the candidates", sorted(membership.candidates(view, control)), sorted(able))
    own = membership.own_row(view)
    known = view.control
    adopted = known.version if isinstance(known, Control) else 0
    leaves = view.leaving or view.too_old_for > 0
    state = "LEAVING" if leaves else "ACTIVE" if adopted else "UNASSIGNED"
    same("our row", (own.processor, own.incarnation, own.adopted, own.state), ("p0", LIVES[0], adopted, state))
    open_ones = [task for task, local in view.work.tasks.items() if not closed(local)]
    stands_by = view.too_old_for if not open_ones else 0
    plan = view.work.plan.fingerprint if view.work.plan is not None else ""
    same(
        "what our row says",
        (own.too_old_for, own.fingerprint, own.new_run, own.boot, own.beat),
        (stands_by, plan, _wanted_run(view), "boot", view.life.beat),
    )
    if view.leadership is None:
        return
    late = max(view.leadership.barrier_since, view.leadership.since) + 30.0 <= NOW
    same("an overdue barrier", membership.is_overdue(view, NOW), late)
    overdue = control.barrier.state == "TIMEOUT" and late
    marks = []
    for name, row in view.others.members.items():
        age = view.others.ages[name]
        silent = age.seconds >= 8.0 and age.reads >= 3
        stuck = overdue and name in able and row.adopted < control.version
        if name != "p0" and alive(row) and (silent or stuck) and view.life.accepted_at + 4.0 >= NOW:
            marks.append(MarkDead(name, row.etag, 3))
    same("who is marked dead", membership.mark_dead(view, control, NOW), marks)
    _check_barrier(view, control, able, late=late)


def _check_barrier(view: View, control: Control, able: list[str], *, late: bool) -> None:
    after, rows = publish.with_barrier(view, control, NOW), _present(view)
    if control.barrier.state == "END":
        same("a barrier that is over", after, control)
    elif all(rows[name].adopted >= control.version for name in able):
        same("the end of a barrier", after.barrier, Barrier(control.version, BarrierState.END))
    else:
        known = view.control
        published = isinstance(known, Control) and known.version == control.version
        times_out = control.barrier.state == "START" and published and late
        wanted = Barrier(control.version, BarrierState.TIMEOUT) if times_out else control.barrier
        same("a barrier", after.barrier, wanted)


# Ending.


def _check_ending(view: View) -> None:
    found = ending.verdict(view)
    same("the verdict", found.code if found is not None else None, _verdict(view))
    control, patience = view.control, 1.5 * SHUTDOWN_S
    last = isinstance(control, Control) and (control.phase == "DRAINED" or control.stop is not None)
    until = view.ending_since + patience + ((patience + 24.0) if view.leadership is not None and last else 0.0)
    same("how long it waits", ending.rest_until(view), until)
    if view.ending is None:
        return
    same("what it waits for", ending.waits_for(view, NOW), _waits_for(view, until))


def _verdict(view: View) -> int | None:
    control, plan, by_hand = view.control, view.work.plan, view.settings.run_id
    if view.leaving:
        return 0
    for denial in view.calls.denied.values():
        patience = 120.0 if view.calls.let_in else 600.0 if denial.may_pass else 0.0
        if denial.last - denial.since >= patience:
            return 5 if view.calls.let_in else 2
    if view.work.rejected:
        return 2
    if view.too_old_for:
        return None
    if view.life.older_copy or (isinstance(control, Absent) and view.group_id):
        return 1
    if not isinstance(control, Control):
        return None
    if control.group_id != view.group_id:
        return 1
    if control.stop is not None and Member("p0", LIVES[0]) in control.stop.members:
        return 0
    took_part, waits = view.life.active_run == control.run_id, view.settings.wait_for_upgrade
    if control.phase == "NONE":
        return None
    if control.phase == "FAILED" and took_part and control.failure is not None:
        return 1
    if control.phase == "DRAINED":
        if took_part:
            return None if waits else 0
        if plan is None:
            return None
        if _wanted_run(view) or plan.fingerprint not in (control.fingerprint, *control.finished):
            return 2 if by_hand in control.past else None
        if waits:
            return None
        if plan.fingerprint != control.fingerprint:
            return 2
        return 0 if all(run in control.kept for run in control.uncleaned) else None
    if plan is not None and control.fingerprint and plan.fingerprint != control.fingerprint:
        return 0 if waits and not took_part else 2
    return 2 if by_hand and by_hand != control.run_id else None


def _waits_for(view: View, until: float) -> ending.Wait | None:
    control, patience = view.control, 1.5 * SHUTDOWN_S
    for local in view.work.tasks.values():
        releases = local.releasing_since
        if view.work.container and not closed(local) and (releases is None or releases + patience > NOW):
            return ending.Wait.OWN_TASKS
    if view.leadership is not None and isinstance(control, Control) and until > NOW:
        if control.stop is not None:
            others = [Member(row.processor, row.incarnation) for row in view.others.members.values() if alive(row)]
            if [other for other in others if other in control.members and other != Member("p0", LIVES[0])]:
                return ending.Wait.OTHERS
        elif view.leaving and view.work.plan is not None and _assigned(view):
            return ending.Wait.NEW_OWNERS
        if control.phase == "DRAINED" and not all(run in control.kept for run in control.uncleaned):
            return ending.Wait.CLEAN_UP
    if view.life.etag is None or until + 5.0 <= NOW:
        return None
    if view.life.written is None or view.life.written.state != "LEFT":
        return ending.Wait.OWN_ROW
    if view.leadership is not None:
        return ending.Wait.LEASE
    return ending.Wait.LEADER_ROW if LEADER_ROW in view.calls.busy else None


# Publishing.


def _check_publish(drawn: Drawn, view: View, control: Control) -> None:
    rows = _present(view)
    after = publish.with_births(view, control, control)
    everybody = {**view.others.members, **rows}
    owned = [task for task, each in control.tasks.items() if each.first and each.owner is not None]
    words = {task: word(control, task, everybody) for task in owned}
    born = {
        task
        for task, word in words.items()
        if word is not None and (word.phase in ("RUNNING", "DRAINED") or word.batch >= 0)
    }
    if not born or len(born) < len(owned):
        same("births alone", after, control)
    else:
        same(
            "who is born",
            {task for task, each in after.tasks.items() if each.first},
            {task for task, each in control.tasks.items() if each.first} - born,
        )
    with_more = publish.with_births(view, control, replace(control, churn=control.churn + 1))
    firsts = {task for task, each in control.tasks.items() if each.first}
    same("births along", {task for task, each in with_more.tasks.items() if each.first}, firsts - born)
    pardoned = publish.with_pardon(view, control, NOW).given_up
    kept = {}
    for task, each in control.given_up.items():
        row, well, owner = rows.get(each.owner.processor), view.others.well.get(task), control.tasks[task].owner
        lives = row is not None and row.incarnation == each.owner.incarnation
        runs = (
            well is not None and owner is not None and well.generation == owner.generation and well.since + 600.0 <= NOW
        )
        if lives and not runs:
            kept[task] = each
    same("who gave what up", dict(pardoned), kept)
    _check_failures(view, control, rows)
    _check_failures(view, _failing(drawn, control, rows), rows)
    if view.leadership is not None:
        _check_assignment(view, control, rows)
    _check_checked(drawn, control)


def _failing(drawn: Drawn, control: Control, rows: Mapping[str, ProcessorRow]) -> Control:
    """The same, where those own tasks who give them up now; some of these tasks were given up before."""
    owned, given_up = dict(control.tasks), {}
    for name, row in rows.items():
        for task, report in row.tasks.items():
            if report.phase == "FAILED" and task in owned:
                owned[task] = replace(owned[task], owner=Owner(name, row.incarnation, report.generation))
                earlier = drawn.dice.choice([name, name, *NAMES, None])
                given_up[task] = earlier and GivenUp(Owner(earlier, row.incarnation, 1), "earlier")
    return replace(control, tasks=owned, given_up={task: each for task, each in given_up.items() if each})


def _check_failures(view: View, control: Control, rows: Mapping[str, ProcessorRow]) -> None:
    able = {name: rows[name] for name in _candidates(view, control)}
    after = publish.with_failures(view, control, able)
    given_up = dict(control.given_up)
    for name, row in rows.items():
        for task, report in row.tasks.items():
            if report.phase != "FAILED" or word(control, task, {name: row}) is not report:
                continue
            before = given_up.get(task)
            elsewhere = before is not None and before.owner.processor != name
            if elsewhere or not set(able) - {name}:
                same("a run that fails", (after.phase, dict(after.given_up)), ("FAILED", {}))
                told = after.failure
                told_of = told is not None and (told.stage, told.task, told.traceback) == (task[:-2], task, "trace")
                told_who = told is not None and name in told.message and told.message.startswith("no\n")
                told_where = told is not None and (not elsewhere or before.owner.processor in told.message)  # type: ignore[union-attr]
                demand(told_of and told_who and told_where, f"Plain: {task} failed on {name}, and {told} is said")
                return
            owner = control.tasks[task].owner
            assert owner is not None
            given_up[task] = GivenUp(owner, "no")
    same("what is given up", after, replace(control, given_up=given_up))


def _check_assignment(view: View, control: Control, rows: Mapping[str, ProcessorRow]) -> None:
    """What holds of every new assignment, whatever it is."""
    able = {name: rows[name] for name in _candidates(view, control)}
    after = publish.with_assignment(view, control, able, NOW)
    if after is control:
        return
    same("the version", (after.version, after.barrier), (7, Barrier(7, BarrierState.START)))
    members = tuple(sorted(Member(name, row.incarnation) for name, row in able.items()))
    same("the members", after.members, members)
    for task, now in after.tasks.items():
        before = control.tasks[task]
        if now == before:
            continue
        same(f"whether {task} is first", now.first, before.first)
        if now.owner is not None:
            row = able.get(now.owner.processor)
            demand(row is not None, f"Plain: {task} is given to {now.owner.processor}, which cannot run it")
            assert row is not None
            same(f"the owner of {task}", now.owner, Owner(row.processor, row.incarnation, 7))
        waits = [each for each in before.after if not _has_let_go(view, task, each)]
        owner = before.owner
        if owner is not None and owner.processor in rows and rows[owner.processor].incarnation == owner.incarnation:
            local = view.work.tasks.get(task)
            ours = (owner.processor, owner.incarnation) == ("p0", LIVES[0])
            if not (ours and (local is None or closed(local))):
                waits.append(owner)
        same(f"whom {task} waits for", list(now.after), waits)


def _check_checked(drawn: Drawn, control: Control) -> None:
    """What may follow each other."""
    after = replace(control, revision=control.revision + 1)
    change = drawn.dice.choice(
        ["", "revision", "epoch", "version", "own version", "phase", "ends", "no drain", "before"]
    )
    flushes = control.phase == "DRAINING" and (control.drain is None or control.drain.step != "FREEZE")
    wrong = change in ("revision", "epoch", "version")
    match change:
        case "revision":
            after = replace(after, revision=control.revision + 2)
        case "epoch":
            after = replace(after, epoch=control.epoch + drawn.dice.choice([1, -1]))
        case "version":
            after = replace(after, version=control.version + 1)
            wrong = after.version != after.revision
        case "own version":
            after = replace(after, version=after.revision)
        case "phase":
            after = replace(after, phase=RunPhase.RUNNING)
            wrong = control.phase == "DRAINED"
        case "ends" if control.drain is not None:
            after = replace(after, drain=replace(control.drain, ends={"flights/0": (1, 9)}))
            wrong = flushes
        case "no drain":
            after = replace(after, drain=None)
            wrong = flushes
        case "before" if control.drain is not None:
            after = replace(after, run_id="r3", drain=replace(control.drain, ends={}))
            wrong = flushes and bool(control.positions)
    if change in ("", "revision", "epoch", "version", "own version") and flushes:
        ends = control.drain.ends if control.drain is not None else None
        wrong = wrong or ends is None  # a drain that flushes without any drain
        short = ends is not None and any(at > ends.get(name, (0, 0)) for name, at in control.positions.items())
        wrong = wrong or short
    if change == "ends" and control.drain is None and flushes:
        wrong = True
    if change == "before" and control.drain is None and flushes:
        wrong = True
    if change == "phase" and flushes:
        wrong = control.drain is None
    try:
        publish.checked(control, after)
    except CorruptState:
        demand(wrong, f"Plain: a leader may not change {change or 'nothing'}: {control.phase}, {control.drain}")
        return
    demand(not wrong, f"Plain: a leader may change {change}")


# History.


def _check_history(drawn: Drawn, view: View, control: Control) -> None:
    """One event for each thing that happened."""
    after = drawn.control()
    if drawn.dice.random() < 0.5:
        after = replace(after, run_id=control.run_id, epoch=control.epoch, stop=control.stop, drain=control.drain)
    if drawn.dice.random() < 0.3:
        after = replace(control, epoch=4, leader=drawn.dice.choice([Member("p1", "x"), control.leader, None]))
    after = replace(after, version=drawn.dice.choice([control.version, 9]))
    found = history.with_events(view, control, after)
    said = [(each.kind, each.text) for each in found.events]
    wanted = _happened(view, control, after)
    same("what happened", said, [(kind, text if len(text) <= 240 else text[:239] + "…") for kind, text in wanted])
    demand(all(each.at_ms == 77 for each in found.events), "Plain: when it happened")
    long = replace(control, events=found.events * 40)
    kept = history.with_events(view, long, replace(after, events=())).events if wanted else ()
    same("how much is remembered", len(kept), min(len(found.events) * 41, 40) if wanted else 0)


def _happened(view: View, before: Control, after: Control) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    if after.epoch != before.epoch and after.leader is not None:
        former = (
            f"{before.leader.processor} had given no sign of life."
            if before.leader is not None
            else ("Nobody led before it, or the one that did has handed over.")
        )
        if before.leader is not None and before.leader.processor == "p0":
            former = "It led before, in an earlier life."
        said.append(("leader", f"{after.leader.processor} leads. {former}"))
    if after.run_id != before.run_id:
        said.append(("run", f"Run {after.run_id} begins."))
    names, old = {each.processor for each in after.members}, {each.processor for each in before.members}
    said += [
        _gone(view, before, each)
        for each in sorted(set(before.members) - set(after.members))
        if each.processor not in names
    ]
    for each in sorted(set(after.members) - set(before.members)):
        said.append(("joined", f"{each.processor} {'is back as another life' if each.processor in old else 'joined'}."))
    for task, one in after.given_up.items():
        if before.given_up.get(task) != one:
            said.append(("given up", f"{one.owner.processor} gave up {task}: {one.message}"))
    if after.run_id == before.run_id and after.version != before.version:
        moved = []
        for task in after.tasks:
            a, b = before.tasks[task].owner, after.tasks[task].owner
            if a is not None and b is not None and (a.processor, a.incarnation) != (b.processor, b.incarnation):
                moved.append(f"{task} from {a.processor} to {b.processor}")
        if moved:
            more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
            said.append(("moved", f"{', '.join(moved[:3])}{more}."))
    if after.barrier.state == "TIMEOUT" and before.barrier != after.barrier:
        text = f"Not everybody adopted version {after.version} in time; the others went on without them."
        said.append(("slow", text))
    if after.stop is not None and before.stop is None:
        said.append(("stop", "Everybody was asked to stop."))
    if after.phase == "DRAINED" and before.phase != "DRAINED":
        said.append(("drain", f"Run {after.run_id} is drained."))
    elif after.run_id == before.run_id and after.drain is None and before.drain is not None:
        said.append(("drain", "The drain was cancelled."))
    elif after.drain is not None and (before.drain is None or before.drain.step != after.drain.step):
        said.append(("drain", f"The drain has reached {after.drain.step}."))
    if after.phase == "FAILED" and before.phase != "FAILED" and after.failure is not None:
        said.append(("failed", f"The run failed with {after.failure.task}: {after.failure.message}"))
    return said


def _gone(view: View, before: Control, member: Member) -> tuple[str, str]:
    who = member.processor
    row, age = view.others.members.get(who), view.others.ages.get(who)
    if row is not None and row.incarnation != member.incarnation:
        return "died", f"{who} was restarted; its new life is not a member yet."
    if row is not None and alive(row):
        return "left", f"{who} leaves, or stands by."
    if row is not None and row.state == "LEFT":
        return "left", f"{who} left."
    silent = age is not None and age.seconds >= 8.0 and age.reads >= 3
    if before.barrier.state == "TIMEOUT" and row is not None and row.adopted < before.version and not silent:
        return "died", f"{who} did not adopt version {before.version} in time."
    return "died", f"{who} gave no sign of life for 8 s."


__all__ = ["check_decisions"]

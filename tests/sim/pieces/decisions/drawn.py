"""A drawn state of all that a processor knows, and what every question about it needs."""

from dataclasses import replace
from random import Random
from typing import Any

from samza_azure.errors import Verdict
from samza_azure.group.actions import (
    CONTROL,
    HOUSEKEEPING,
    LEADER_ROW,
    LEASE,
    OWN_ROW,
    SCAN,
    Finish,
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
from samza_azure.group.ending import HANDED_OVER
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState, Request, RequestKind
from samza_azure.group.timing import Timing
from samza_azure.group.view import (
    Denial,
    Failing,
    Leadership,
    Lease,
    LocalTask,
    OwnIncarnation,
    Settings,
    View,
    Well,
)
from samza_azure.messages import (
    Drain,
    DrainStep,
    Phase,
    Plan,
    StagePlan,
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
    (StagePlan("clean", ("flights",), "between", 2), StagePlan("daily", ("between",), "out", 1)),
    {"flights": 3},
    "f",
    described={"stage clean": {"reads": "flights"}},
)
OTHER = replace(PLAN, fingerprint="g", sources={"flights": 4})
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
        ago = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 13.0, 24.0, 30.0, 50.0)
        long_ago = (100.0, 119.0, 120.0, 299.0, 300.0, 301.0, 599.0, 600.0, 601.0, 5000.0)
        return NOW - self.dice.choice(ago if self.dice.random() < 0.7 else long_ago)

    def life(self) -> str:
        return self.dice.choice(LIVES)

    def owner(self) -> Owner:
        return Owner(self.dice.choice([*NAMES, "p0"]), self.dice.choice([LIVES[0], *LIVES]), self.dice.randrange(1, 4))

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
            ProcessorState.ACTIVE if dice.random() < share else dice.choice(list(ProcessorState)),
            {task: dice.randrange(1, 4) for task in TASKS if dice.random() < 0.3},
            {task: self.report(task) for task in TASKS if dice.random() < 0.4},
            dice.choice(["f", "f", "f", "g", ""]),
            dice.choice(["", "", "new", "r9", "r1"]),
            too_old_for=self.often(7, 0, 0.1),
            format=self.often(2, 1, 0.05),
            ending=dice.choice([*[""] * 18, "0 bye", "1 no disk"]),
            cut_off=dice.random() < 0.15,
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
            described=dice.choice([{}, {"stage daily": {}}]),
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
            given_up={
                task: GivenUp(self.owner(), "why" * dice.choice([1, 1, 73, 74, 99]) + "?")
                for task in TASKS
                if dice.random() < 0.15
            },
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
            drains=(DrainNotification("k1", "r0", history=("FREEZE",)),) if run_id == "r1" else (),
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
        report = self.often(self.report(task), None, 0.7)
        return LocalTask(
            dice.randrange(1, 4),
            dice.choice([1, 1, 2]),
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
            dice.choice([0, 1, 4, 5]),
            run_id=dice.choice(["", "", "", "r2", "r9", "r0"]),
            new_run=dice.random() < 0.2,
            wait_for_upgrade=dice.random() < 0.2,
            restarted=dice.random() < 0.2,
            boot="boot",
            holds_directory=dice.random() < 0.5,
        )
        rows = {name: self.row(name) for name in NAMES if dice.random() < 0.85}
        view = View(settings, OwnIncarnation(LIVES[0]))
        view.life.control = self.control() if dice.random() < 0.93 else self.often(Absent(), None)
        view.life.accepted_at, view.life.beat = self.before(), 3
        view.life.control_read_at = self.often(NOW, self.before())
        view.life.etag = self.often("e", None, 0.9)
        if dice.random() < 0.8:
            view.life.written = replace(self.row("p0", 0.9), incarnation=LIVES[0])
        view.work.active_run = dice.choice(["", "r2", "r1"])
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
        age = Age("e", dice.choice([0.0, 5.0, 7.0, 10.0, 20.0, 99.0]), dice.choice([0, 2, 3]), NOW)
        view.others.leader_age = self.often(age, None, 0.95)
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
        view.work.permit_sent = self.before()
        sent = Drain(dice.choice([None, DrainStep.FREEZE, DrainStep.FLUSH]), "u", {"flights/0": (0, 3)})
        view.work.drain_sent = self.often(sent, None, 0.4)
        view.group_id = dice.choice([*["group"] * 6, "", "another", "other"])
        view.revision = 6 if view.group_id else -1
        view.too_old_for = self.often(7, 0, 0.12)
        view.leaving = dice.random() < 0.15
        view.gave_up = dice.choice(["", "no memory"]) if view.leaving else ""
        view.calls.let_in = dice.random() < 0.7
        if dice.random() < 0.08:
            since = self.before()
            view.calls.denied = {
                kind: Denial(since, dice.choice([since, NOW, max(since, self.before())]), "no", dice.random() < 0.5)
                for kind in ("MergeOwnRow", "ScanMembers")
                if dice.random() < 0.7
            }
        view.calls.denied_at = self.often(self.before(), -1e9, 0.2)
        view.calls.failing = {
            name: Failing(dice.choice([1, 4, 5, 9]), NOW - 1.0) for name in (SCAN, CONTROL) if dice.random() < 0.3
        }
        view.calls.busy = {
            name: self.before() for name in (SCAN, OWN_ROW, HOUSEKEEPING, LEADER_ROW, LEASE) if dice.random() < 0.15
        }
        if dice.random() < 0.2:
            message = dice.choice(["bye", HANDED_OVER])
            view.ending, view.ending_since = Finish(Verdict.DONE, message), self.before()
        if dice.random() < 0.7:
            view.leadership = self.leadership()
        view.random, view.fresh_id, view.wall_ms = dice.random(), "0123456789ab", 77
        view.turn_at = self.often(self.before(), None, 0.8)
        view.others.drain_asked_at = self.often((view.turn_at or NOW) - dice.choice([9.0, 10.0, 11.0]), self.before())
        if dice.random() < 0.3:
            self.undisturbed(view)
        if dice.random() < 0.2:
            self.tried_again(view)
        return view

    def undisturbed(self, view: View) -> None:
        """Nothing of what comes first is the case, so that the later questions are asked, too."""
        view.ending, view.leaving, view.gave_up, view.too_old_for = None, False, "", 0
        view.group_id, view.life.older_copy, view.work.rejected = "group", False, ""
        view.life.accepted_at, view.revision = NOW - self.dice.choice([0.0, 2.0, 4.0]), 6
        view.calls.denied, view.calls.failing, view.calls.busy = {}, {}, {}
        control = view.life.control
        if isinstance(control, Control):
            view.life.control = replace(control, stop=None)

    def tried_again(self, view: View) -> None:
        """A task of ours has ended here, and may be due to start again."""
        control, dice, task = view.life.control, self.dice, self.dice.choice(TASKS)
        if not isinstance(control, Control):
            return
        local, view.work.plan, view.work.container = self.local(task), PLAN, True
        owner = Owner("p0", LIVES[0], local.generation)
        local.report = replace(
            self.report(task), generation=local.generation, phase=dice.choice([Phase.RESTART, Phase.FAILED])
        )
        view.work.tasks[task] = local
        tasks = {**control.tasks, task: replace(control.tasks[task], owner=owner)}
        view.life.control = replace(control, phase=RunPhase.RUNNING, fingerprint=PLAN.fingerprint, tasks=tasks)

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
        found.in_vain = self.often("too large", "", 0.05)
        found.clean_done = dice.choice(["", "r0", "r2"])
        found.clean_kept = dice.choice([("", 0), ("r0", 2), ("r2", 1)])
        found.clean_tries = dice.randrange(3)
        found.cut_off = {life: self.before() for life in LIVES if dice.random() < 0.3}
        sent = ["cancelled", "already drained"]
        found.answering = {each.key: dice.choice(sent) for each in found.requests if dice.random() < 0.2}
        return found


def same(what: str, found: Any, wanted: Any) -> None:
    demand(found == wanted, f"Plain: {what}: {str(found)[:300]}, and {str(wanted)[:300]} is right")


def alive(row: ProcessorRow | None) -> bool:
    return row is not None and row.state not in ("DEAD", "LEFT") and bool(row.incarnation)


def present(view: View) -> dict[str, ProcessorRow]:
    rows = {name: row for name, row in view.others.members.items() if alive(row) and name != "p0"}
    own = view.life.written
    if own is not None and alive(own):
        rows["p0"] = replace(own, state=ProcessorState.LEAVING) if view.ending is not None else own
    return rows


def drawn_draining(control: Control) -> bool:
    return control.phase in ("RUNNING", "DRAINING")

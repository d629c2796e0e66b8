"""Situations to tell stories with: a group of processors, and what one of them knows of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from samza_azure.group import decide as deciding
from samza_azure.group.actions import Action, Tell
from samza_azure.group.age import Age
from samza_azure.group.control import Assignment, Barrier, Control, Member, Owner, RunPhase, signal
from samza_azure.group.learn import turn
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState
from samza_azure.group.timing import Timing
from samza_azure.group.view import Leadership, Lease, LocalTask, OwnIncarnation, Settings, View
from samza_azure.messages import DrainStep, Phase, Plan, StagePlan, StartTask, TaskReport
from samza_azure.outcomes import Missing

NOW = 1000.0
TIMING = Timing()
PLAN = Plan(
    (StagePlan("clean", ("flights",), "by", 2), StagePlan("daily", ("by",), "out", 1)), {"flights": 2}, "f" * 64
)


def decide(view: View, now: float) -> list[Action]:
    """What is to be done now."""
    return deciding.decide(view, now).actions


def life_of(processor: str) -> str:
    return f"life of {processor}"


def member(processor: str) -> Member:
    return Member(processor, life_of(processor))


def owner(processor: str, generation: int = 2) -> Owner:
    return Owner(processor, life_of(processor), generation)


def report(task: str, phase: Phase = Phase.RUNNING, *, generation: int = 2, **more: object) -> TaskReport:
    return replace(TaskReport(task, generation, 1, phase), **more)  # type: ignore[arg-type]


def row(processor: str, tasks: Mapping[str, TaskReport] | None = None, **more: object) -> ProcessorRow:
    """The row of a processor that has adopted version 2."""
    known = ProcessorRow(
        processor,
        life_of(processor),
        etag=f"row of {processor}",
        beat=5,
        adopted=2,
        state=ProcessorState.ACTIVE,
        tasks=tasks or {},
        fingerprint=PLAN.fingerprint,
        boot="boot",
    )
    return replace(known, **more)  # type: ignore[arg-type]


#: p1 leads; p1, p2 and p3 have a task each, and all is well.
OWNERS = {"clean-0": "p1", "clean-1": "p2", "daily-0": "p3"}
CONTROL = Control(
    group_id="ab" * 16,
    revision=9,
    epoch=3,
    version=2,
    leader=member("p1"),
    run_id="run",
    phase=RunPhase.RUNNING,
    fingerprint=PLAN.fingerprint,
    sources=PLAN.sources,
    readers=PLAN.readers(),
    members=(member("p1"), member("p2"), member("p3")),
    tasks={task: Assignment(owner(processor), first=False) for task, processor in OWNERS.items()},
    barrier=Barrier(2),
)
LEADER_ROW = LeaderRow(3, 2, signal(CONTROL), "control", 70, ("p2", "p3"), etag="leader row")
ROWS = {processor: row(processor, {task: report(task)}) for task, processor in OWNERS.items()}


def view_of(processor: str, blob: Control = CONTROL, **more: object) -> View:
    """A processor that knows all this, has just done everything that it does regularly, and waits."""
    view = View(Settings(processor, TIMING, boot="boot"), OwnIncarnation(life_of(processor)))
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    view.own.found, view.own.etag, view.own.beat = ROWS[processor], f"row of {processor}", 5
    view.calls.beat_sent_at = view.own.accepted_at = NOW
    view.own.control, view.own.control_etag, view.own.control_read_at = blob, "control", NOW
    view.group_id, view.revision, view.work.active_run = blob.group_id, blob.revision, "run"
    view.others.leader_row = replace(LEADER_ROW, epoch=blob.epoch, version=blob.version, signal=signal(blob))
    view.others.leader_read_at, view.others.leader_age = NOW, Age("leader row", 0.0, 0, NOW)
    view.others.members, view.others.scanned_at = dict(ROWS), NOW
    view.others.ages = {other: Age(each.etag, 0.0, 0, NOW) for other, each in ROWS.items()}
    view.work.plan, view.work.container = PLAN, True
    for task, its_owner in OWNERS.items():
        if its_owner == processor:
            view.work.tasks[task] = LocalTask(2, 1, NOW, report(task))
    view.work.permit_sent = view.permit_until
    view.own.written = replace(ROWS[processor], etag="")
    put(view, more)
    return view


#: What is named by itself belongs to one of these.
GROUPS = ("own", "others", "candidacy", "work", "calls", "leadership")


def put(view: View, values: Mapping[str, Any]) -> None:
    """Set what is known, each value in the group that it belongs to."""
    for name, value in values.items():
        group = next((each for each in GROUPS if hasattr(getattr(view, each), name)), "")
        setattr(getattr(view, group) if group else view, name, value)


def without_blob(processor: str, **more: object) -> View:
    """The same, and the control blob is not there."""
    return view_of(processor, control=Missing(), **more)


def leader(control: Control = CONTROL, **more: object) -> View:
    """The same for p1, which leads."""
    since = NOW - 100
    leading = Leadership(Lease("lease", NOW), since, barrier_since=0.0, row_etag="leader row", row_sent_at=NOW)
    leading.free_from = since
    view = view_of("p1", control, leadership=leading)
    view.calls.leader_row_sent_at = view.as_leader.requests_read_at = NOW
    put(view, more)
    return view


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def starts(view: View, now: float) -> list[str]:
    return [command.task for command in commands_in(decide(view, now)) if isinstance(command, StartTask)]


def commands_in(actions: list[Action]) -> list[object]:
    return [action.command for action in actions if isinstance(action, Tell)]


SILENT = Age("leader row", 60.0, 30, NOW)

DEAD = Age("row of p3", 60.0, 30, NOW)

DRAINING = replace(
    CONTROL,
    phase=RunPhase.DRAINING,
    drain=DrainNotification("u", "run", step=DrainStep.FREEZE, history=("FREEZE",)),
    positions={"flights/0": (0, 3)},
)

WIDER = Plan(
    (StagePlan("clean", ("flights",), "by", 4), StagePlan("daily", ("by",), "out", 1)), {"flights": 4}, "4" * 64
)

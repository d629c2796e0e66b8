"""Situations to tell stories with: a group of processors, and what one of them knows of it."""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group.age import Age
from samza_azure.group.answers import Absent
from samza_azure.group.control import Assignment, Barrier, Control, Member, Owner, RunPhase, signal
from samza_azure.group.learn import turn
from samza_azure.group.rows import LeaderRow, ProcessorRow, State
from samza_azure.group.timing import Timing
from samza_azure.group.view import Lease, LocalTask, Settings, View
from samza_azure.messages import Phase, Plan, StagePlan, TaskReport

NOW = 1000.0
TIMING = Timing()
PLAN = Plan(
    (StagePlan("clean", ("flights",), "by", 2), StagePlan("daily", ("by",), "out", 1)), {"flights": 2}, "f" * 64
)


def life_of(processor: str) -> str:
    return f"life of {processor}"


def member(processor: str) -> Member:
    return Member(processor, life_of(processor))


def owner(processor: str, generation: int = 2) -> Owner:
    return Owner(processor, life_of(processor), generation)


def report(task: str, phase: Phase = Phase.RUNNING, *, generation: int = 2, **more: object) -> TaskReport:
    return replace(TaskReport(task, generation, 1, phase), **more)  # type: ignore[arg-type]


def row(processor: str, tasks: Mapping[str, TaskReport] | None = None, **more: object) -> ProcessorRow:
    """A row of one that has adopted version 2."""
    known = ProcessorRow(
        processor,
        life_of(processor),
        etag=f"row of {processor}",
        beat=5,
        adopted=2,
        state=State.ACTIVE,
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
    view = View(Settings(processor, TIMING, boot="boot"), incarnation=life_of(processor))
    turn(view, NOW, random=0.5, fresh_id="fresh", wall_ms=1)
    view.found, view.etag, view.beat = ROWS[processor], f"row of {processor}", 5
    view.beat_sent_at = view.accepted_at = NOW
    view.control, view.control_etag, view.control_read_at = blob, "control", NOW
    view.group_id, view.active_run = blob.group_id, "run"
    view.leader_row = replace(LEADER_ROW, epoch=blob.epoch, version=blob.version, signal=signal(blob))
    view.leader_read_at, view.leader_age = NOW, Age("leader row", 0.0, 0, NOW)
    view.members, view.scanned_at = dict(ROWS), NOW
    view.ages = {other: Age(each.etag, 0.0, 0, NOW) for other, each in ROWS.items()}
    view.plan, view.container = PLAN, True
    for task, its_owner in OWNERS.items():
        if its_owner == processor:
            view.tasks[task] = LocalTask(2, 1, NOW, report(task))
    view.permit_told = view.permit_until
    view.written = replace(ROWS[processor], etag="")
    for name, value in more.items():
        setattr(view, name, value)
    return view


def without_blob(processor: str, **more: object) -> View:
    """The same, and the control blob is not there."""
    return view_of(processor, control=Absent(), **more)


def leader(control: Control = CONTROL, **more: object) -> View:
    """The same for p1, which leads."""
    view = view_of("p1", control, lease=Lease("lease", NOW), lead_since=NOW - 100)
    view.leader_row_sent_at = view.requests_read_at = NOW
    for name, value in more.items():
        setattr(view, name, value)
    return view

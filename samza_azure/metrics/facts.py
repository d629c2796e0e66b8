"""What is shown of a processor and its group: plain functions of a `View`, or of two states of the control blob."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from samza_azure.group.answers import Answer, Busy, Denied, Kept, TooLarge, Trouble
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.decommission import left_of
from samza_azure.group.notice import Availability, Left
from samza_azure.group.notification import DrainNotification
from samza_azure.group.reports import report_of
from samza_azure.group.requests import ignored
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.tasks import assigned
from samza_azure.group.timing import SELF_STOP
from samza_azure.group.view import View
from samza_azure.messages import DrainStep, Phase
from samza_azure.outcomes import Missing, NotModified, Refused

#: For how long the next leader reports a failed run. The processors of a run that fails end at once, before their
#: metrics are collected; so the incarnations that an orchestrator starts next report the failure.
FAILED_FOR_MS = 15 * 60 * 1000
_STEPS = {DrainStep.FREEZE: 1, DrainStep.FLUSH: 2}
_AT_WORK = (Phase.RUNNING, Phase.DRAINED)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The leader's figures of the whole group. Followers report 0, so the maximum over all is the leader's."""

    members: int = 0
    tasks: int = 0
    running: int = 0
    drain_step: int = 0
    failed: bool = False
    drain_age_s: float = 0.0


def group_facts(view: View) -> GroupFacts:
    """The present values of the group's gauges.

    Whether a task runs is read from its owner's row, unless the owner has been silent for so long that it has paused
    itself; so the tasks of a killed processor stop counting within one timeout. After a drain all tasks count as
    running: the blob still names the run's owners, which have ended, while others may wait for the upgrade.
    """
    control = view.control
    if not view.leads or not isinstance(control, Control):
        return GroupFacts()
    rows = _rows(view)
    alive = sum(row.alive for row in rows.values())
    drain = control.drain.step if control.drain is not None else None
    step = 3 if control.phase is RunPhase.DRAINED else 0 if drain is None else _STEPS[drain]
    at_work = len(control.tasks) if control.phase is RunPhase.DRAINED else running(view, control)
    age_s = _drain_age_s(control, view.wall_ms)
    return GroupFacts(alive, len(control.tasks), at_work, step, _has_failed(control, view.wall_ms), age_s)


def _drain_age_s(control: Control, now_ms: int) -> float:
    """Seconds since the drain reached its step, by the clock of the leader that took it and of the present one."""
    drain = control.drain
    if drain is None or control.phase is RunPhase.DRAINED or not drain.at_ms or not drain.at_ms[-1]:
        return 0.0
    return max(now_ms - drain.at_ms[-1], 0) / 1000


def _has_failed(control: Control, now_ms: int) -> bool:
    """Whether the run has failed lately. Processors that start again resume it, and find the event in the blob."""
    noted = any(each.kind == "failed" and now_ms < each.at_ms + FAILED_FOR_MS for each in control.events)
    return noted or control.phase is RunPhase.FAILED


@dataclass(frozen=True, slots=True)
class ProcessorFigures:
    """The figures of one processor."""

    leads: bool = False
    epoch: int = 0
    version: int = 0
    owned: int = 0
    running: int = 0
    ignored: int = 0
    strangers: int = 0
    kept: int = 0
    decommission: int = 0
    not_handed_over: Mapping[Left, int] = field(default_factory=dict)
    replicas: int = 0
    replicas_size: int = 0
    replicas_behind: int = 0


def facts(view: View) -> ProcessorFigures:
    """The present values of a processor's gauges."""
    control = view.control
    if not isinstance(control, Control):
        return ProcessorFigures()
    mine = assigned(view)
    running = 0
    for task, owner in mine.items():
        local = view.work.tasks.get(task)
        running += local is not None and local.generation == owner.generation and local.phase in _AT_WORK
    strange = ignored(control, view.as_leader.requests) if view.leads else 0
    strangers = sum(not row.is_ours for row in view.others.members.values()) if view.leads else 0
    kept = sum(control.kept.values()) if view.leads else 0
    leads = view.is_leader(view.turn_at or 0.0)
    going = view.going
    step = 0 if going is None else 1 + (going.state is Availability.DECOMMISSIONED)
    left = Counter(left_of(view).values()) if going is not None else {}
    held = view.work.replicas.values()
    replicas = len(held), sum(each.size for each in held), max((each.behind for each in held), default=0)
    return ProcessorFigures(
        leads, control.epoch, control.version, len(mine), running, strange, strangers, kept, step, left, *replicas
    )


def outcome(answer: Answer) -> str:
    """The kind of an answer, in a word or two, as a metric's attribute."""
    match answer:
        case Trouble():
            return answer.name.lower()
        case Busy():
            return Trouble.UNAVAILABLE.name.lower()
        case Refused():
            return "refused"
        case Missing():
            return "absent"
        case NotModified():
            return "unchanged"
        case TooLarge():
            return "too large"
        case Denied():
            return "denied"
        case Kept():
            return "kept"
    return "done"


def moved(before: Control, after: Control) -> int:
    """How many tasks moved from one owner to another."""
    return sum(
        earlier.owner is not None and later.owner is not None and earlier.owner.member != later.owner.member
        for task, later in after.tasks.items()
        if (earlier := before.tasks.get(task)) is not None
    )


def steps_taken(before: DrainNotification | None, after: DrainNotification | None) -> list[tuple[str, float]]:
    """The steps that a drain has taken since `before`, and the seconds that each took by the leaders' clocks."""
    if after is None:
        return []
    known = len(before.history) if before is not None and before.uuid == after.uuid else 0
    times = list(zip(after.history, (after.asked_ms, *after.at_ms), after.at_ms, strict=False))
    return [(step, max(at - since, 0) / 1000) for step, since, at in times[known:] if since and at]


def running(view: View, control: Control) -> int:
    """How many tasks run under their present owner, as the last scan saw it."""
    rows, count = _rows(view), 0
    # A processor that was silent for so long has paused itself by now, if it is alive at all.
    mute = {name for name, age in view.others.ages.items() if age.silent(SELF_STOP * view.timing.heartbeat_timeout_s)}
    for task, assignment in control.tasks.items():
        owner, report = assignment.owner, report_of(task, assignment.owner, rows)
        if owner is not None and report is not None and report.phase in _AT_WORK and not report.failing:
            row = rows[owner.processor]
            count += row.alive and not row.no_container and owner.processor not in mute - {view.me}
    return count


def all_run(view: View, control: Control) -> bool:
    """Whether every task runs under its present owner, as the last scan saw it."""
    return running(view, control) == len(control.tasks)


def _rows(view: View) -> Mapping[str, ProcessorRow]:
    return view.others.members if view.own.written is None else {**view.others.members, view.me: view.own.written}

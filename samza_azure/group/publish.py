"""What does the leader publish?

Everything that the group must agree on is one conditional write of the control blob. The leader works out the next
value whole, as one function of the present value and of what it saw, and writes it if it differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from samza_azure.group import election, housekeeping, membership, next_run
from samza_azure.group.assign import assign
from samza_azure.group.control import (
    REASON_LIMIT,
    Assignment,
    Barrier,
    BarrierState,
    Control,
    Failure,
    GivenUp,
    Member,
    Owner,
    RunPhase,
)
from samza_azure.group.drain import progress
from samza_azure.group.moment import reached
from samza_azure.group.notification import timed
from samza_azure.group.requests import with_cancel, with_drain, with_stop
from samza_azure.group.rows import ProcessorRow, Request
from samza_azure.group.tasks import has_let_go
from samza_azure.group.timing import FORGIVE_AFTER_S
from samza_azure.group.view import View
from samza_azure.messages import Phase


def next_control(view: View, control: Control, now: float) -> Control:
    """The control blob as it should be now. Equal to `control` if there is nothing to publish."""
    if not _may_publish(view):
        return control
    before, has_read = control, view.office.requests_read_at > view.office.since
    if has_read:
        control = with_stop(view, with_cancel(control, view.office.requests), view.present)
    if control.stop is None:
        control = with_run(view, control, now, view.office.requests if has_read else ())
    control = with_births(view, before, housekeeping.with_clean_up(view, election.with_churn(view, control, now)))
    return replace(control, drain=timed(control.drain, before.drain, view.wall_ms))


def _may_publish(view: View) -> bool:
    """What holds for everything below: we have looked at the others since we lead, and what we found can be run."""
    return view.others.scanned_at >= view.office.since and not view.office.in_vain


def with_run(view: View, control: Control, now: float, requests: Sequence[Request]) -> Control:
    """What a run needs that nobody has stopped."""
    control = next_run.begin_run(view, control)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        able = fitting(view, control, now)
        control = with_failures(view, with_pardon(view, control, now), able)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        control = with_drain(control, requests)
        control = with_assignment(view, control, able, now)
        control = with_barrier(view, control, now)
        control = progress(control, view.present, view.work.plan)
    return control


def with_pardon(view: View, control: Control, now: float) -> Control:
    """Forget who gave a task up: when that life is over, or when the task has run well for a while."""
    given_up = {
        task: each
        for task, each in control.given_up.items()
        if _is(view.present.get(each.owner.processor), each.owner) and not _runs_well(view, control, task, now)
    }
    return control if given_up == control.given_up else replace(control, given_up=given_up)


def with_failures(view: View, control: Control, able: Mapping[str, ProcessorRow]) -> Control:
    """A task that its processor gives up is tried on another one, with what is left of its tries.

    When that one gives it up as well, or there is no other, the run has failed: all commit what they have, and exit.
    The same write that remembers who gave a task up moves it, so no leader finds one without the other.
    """
    given_up = dict(control.given_up)
    for processor, row in view.present.items():
        for task, report in row.tasks.items():
            if report.phase is not Phase.FAILED or report.error is None or task not in control.tasks:
                continue
            owner, before = control.tasks[task].owner, given_up.get(task)
            if owner is None or owner != Owner(processor, row.incarnation, report.generation):
                continue  # the word of a former owner does not count
            if before is not None and before.owner.processor == processor:
                before = None  # it had the task again because nobody else was there
            if before is not None or able.keys() <= {processor}:
                told = f"{report.error.message}\n{_tried(processor, before)}"
                failure = Failure(task.rpartition("-")[0], task, told, report.error.traceback)
                return replace(control, phase=RunPhase.FAILED, failure=failure, given_up={})
            given_up[task] = GivenUp(owner, report.error.message[:REASON_LIMIT])
    return control if given_up == control.given_up else replace(control, given_up=given_up)


def fitting(view: View, control: Control, now: float) -> dict[str, ProcessorRow]:
    """The candidates with whom the job model is not too large."""
    able = membership.candidates(view, control)
    while _is_too_large(view, able, now):  # those who work already go on with half as many newcomers, or none
        newcomers = sorted(name for name, row in able.items() if Member(name, row.incarnation) not in control.members)
        if not newcomers:
            break  # another leader, with more room, has let them in since
        able = {name: row for name, row in able.items() if name not in newcomers[len(newcomers) // 2 :]}
    return able


def with_assignment(view: View, control: Control, able: Mapping[str, ProcessorRow], now: float) -> Control:
    """Sticky, balanced, published at once if a task has lost its owner, otherwise as often as the debounce allows."""
    rows, given_up = view.present, {task: each.owner for task, each in control.given_up.items()}
    current = {
        task: assignment.owner.processor
        for task, assignment in control.tasks.items()
        if assignment.owner is not None
        and _is(able.get(assignment.owner.processor), assignment.owner)
        and given_up.get(task) != assignment.owner
    }
    draining = control.phase is RunPhase.DRAINING
    by_whom = {task: owner.processor for task, owner in given_up.items()}
    wanted = assign(list(control.tasks), able, current, balance=not draining, given_up=by_whom)
    if wanted == current and all(
        (assignment.owner is None) == (task not in wanted) for task, assignment in control.tasks.items()
    ):
        return control
    urgent = len(current) < len(control.tasks)  # somebody died, leaves or gave one up, or nobody had them
    if not urgent and not reached(view.office.published_at + view.timing.debounce_s, now):
        return control
    version = control.revision + 1
    owners = {processor: Owner(processor, row.incarnation, version) for processor, row in able.items()}
    tasks = {}
    for task, assignment in control.tasks.items():
        before, to = assignment.owner, wanted.get(task)
        if before is not None and current.get(task) == to and to is not None:
            tasks[task] = assignment
            continue
        after = [owner for owner in assignment.after if not has_let_go(view, task, owner)]
        if before is not None and _is(rows.get(before.processor), before) and not _own_and_closed(view, task, before):
            after.append(before)
        tasks[task] = Assignment(owners[to] if to is not None else None, tuple(after), assignment.first)
    return replace(
        control, version=version, tasks=tasks, members=_members(able), barrier=Barrier(version, BarrierState.START)
    )


def with_barrier(view: View, control: Control, now: float) -> Control:
    """END when every live row has adopted the version, TIMEOUT when one takes too long, until it has or is dead."""
    rows = membership.candidates(view, control)
    if control.barrier.state is BarrierState.END:
        return control
    if all(row.adopted >= control.version for row in rows.values()):
        return replace(control, barrier=Barrier(control.version, BarrierState.END))
    is_published = isinstance(view.control, Control) and view.control.version == control.version
    if control.barrier.state is BarrierState.START and is_published and membership.is_overdue(view, now):
        return replace(control, barrier=Barrier(control.version, BarrierState.TIMEOUT))
    return control


def with_births(view: View, before: Control, control: Control) -> Control:
    """Tasks whose logs exist are `first` no more, as their owners before this write say, the dead ones too.

    It goes along with any write, so a task that moves on cannot be created again; alone only once all have logs.
    """
    rows = {**view.others.members, **view.present}
    owners = {task: each.owner for task, each in before.tasks.items() if each.first and each.owner is not None}
    born = {task for task, owner in owners.items() if _has_log(rows, task, owner)}
    if not born or control.run_id != before.run_id or (control == before and len(born) < len(owners)):
        return control
    tasks = {
        task: Assignment(each.owner, each.after, first=False) if task in born and each.first else each
        for task, each in control.tasks.items()
    }
    return replace(control, tasks=tasks)


def _runs_well(view: View, control: Control, task: str, now: float) -> bool:
    """Whether the present owner has run it for as long as after which a task's failures are forgotten."""
    well, owner = view.others.well.get(task), control.tasks[task].owner if task in control.tasks else None
    if well is None or owner is None or well.generation != owner.generation:
        return False
    return reached(well.since + FORGIVE_AFTER_S, now)


def _tried(processor: str, before: GivenUp | None) -> str:
    """Where a task has failed, for the message of the run's failure."""
    if before is None:
        return f"It failed on {processor}, and there is no other processor to try it on."
    return f"It failed on {before.owner.processor} and on {processor}. On {before.owner.processor}: {before.message}"


def _is_too_large(view: View, rows: Mapping[str, ProcessorRow], now: float) -> bool:
    return bool(view.office.too_large) and not reached(view.office.too_large.get(_members(rows), now), now)


def _members(rows: Mapping[str, ProcessorRow]) -> tuple[Member, ...]:
    return tuple(sorted(Member(processor, row.incarnation) for processor, row in rows.items()))


def _is(row: ProcessorRow | None, owner: Owner) -> bool:
    return row is not None and row.incarnation == owner.incarnation


def _own_and_closed(view: View, task: str, owner: Owner) -> bool:
    if not view.is_me(owner):
        return False
    local = view.work.tasks.get(task)
    return local is None or local.closed


def _has_log(rows: dict[str, ProcessorRow], task: str, owner: Owner) -> bool:
    row = rows.get(owner.processor)
    report = row.tasks.get(task) if _is(row, owner) and row is not None else None
    return report is not None and report.generation == owner.generation and report.has_log

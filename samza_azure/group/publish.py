"""What the leader publishes: the complete next control blob.

Everything that the group must agree on is one conditional write of the control blob. The leader computes the complete
next value as one function of the current value and of what it saw, and writes it if it differs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from samza_azure.errors import CorruptState
from samza_azure.group import containers, election, history, housekeeping, membership, next_run, replicas, warm_up
from samza_azure.group.actions import CONTROL, Action, ReadControl, WriteControl
from samza_azure.group.assign import assign
from samza_azure.group.control import (
    NAME,
    REASON_LIMIT,
    Barrier,
    BarrierState,
    Control,
    Failure,
    GivenUp,
    Member,
    Owner,
    RunPhase,
)
from samza_azure.group.drain import furthest, progress, with_end
from samza_azure.group.moment import reached
from samza_azure.group.notification import timed
from samza_azure.group.reports import counts, report_of
from samza_azure.group.requests import flushes, with_cancel, with_drain, with_notices, with_stop
from samza_azure.group.rows import ProcessorRow, ProcessorState, Request
from samza_azure.group.tasks import has_released, starts_again
from samza_azure.group.timing import FORGIVE_AFTER_S
from samza_azure.group.view import Lease, View
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.position import Ends
from samza_azure.messages import Phase


def write(view: View, lease: Lease, control: Control, now: float) -> list[Action]:
    """Write the next control blob. Before that, read what became of a write without an answer; if there is nothing to
    publish, read when a member reports that it cannot.

    A read may overtake the write that it asks about: the request is still on its way, and may be accepted later. If
    the leader has no reason left to write by then, nobody would notice, since the others follow the leader row. So it
    writes what it has once more: the new ETag keeps the lost one out, however late it comes.
    """
    if not view.free(CONTROL, now):
        return []
    if view.calls.unsettled is not None:
        return [ReadControl(lease_id=lease.id)]
    may_land = view.as_leader.lost_for == view.own.control_etag
    if (wanted := next_control(view, control, now)) != control or may_land:
        wanted = history.with_events(view, control, wanted)
        written = checked(control, replace(wanted, revision=control.revision + 1, nonce=view.fresh_id))
        has_newcomers = not set(written.members) <= set(control.members)
        return [WriteControl(written, view.own.control_etag, lease.id, has_newcomers)]
    return [ReadControl(lease_id=lease.id)] if membership.tries_blob(view, now) else []


def next_control(view: View, control: Control, now: float) -> Control:
    """The control blob as it should be now. Equal to `control` if there is nothing to publish."""
    if not _may_publish(view):
        return control
    before, has_read = control, view.as_leader.requests_read_at > view.as_leader.since
    if has_read:
        control = with_cancel(control, view.as_leader.requests, view.as_leader.answering)
        control = with_stop(view, control, view.present)
    control = with_notices(control, view.as_leader.requests if has_read else (), view.present)
    if control.stop is None:
        control = with_run(view, control, now, view.as_leader.requests if has_read else ())
    control = with_births(view, before, housekeeping.with_clean_up(view, election.with_churn(view, control, now)))
    drain = timed(control.drain, before.drain, view.wall_ms)
    return control if drain is control.drain else replace(control, drain=drain)


def _may_publish(view: View) -> bool:
    """Whether anything may be published: we have looked since we became leader, and the job model is not too large."""
    return view.has_looked and not view.as_leader.in_vain


def checked(before: Control, after: Control) -> Control:
    """Return the value to write. Raise `CorruptState` if it violates an invariant between consecutive values.

    The checks are cheap comparisons, so they run in production too: a faulty leader ends before it writes.
    """
    same_run = before.run_id == after.run_id
    wrong = None
    if after.revision != before.revision + 1 or after.epoch != before.epoch:
        wrong = f"revision {before.revision}, epoch {before.epoch} became {after.revision}, {after.epoch}"
    elif after.version not in (before.version, after.revision):
        wrong = f"version {before.version} became {after.version} in revision {after.revision}"
    elif same_run and before.phase is RunPhase.DRAINED and after.phase is not RunPhase.DRAINED:
        wrong = f"the drained run {before.run_id} became {after.phase}"
    elif same_run and flushes(before) and (after.drain is None or after.drain.ends != _ends(before)):
        wrong = "the ends of a drain that flushes became others"
    elif after.drain is not None and flushes(after) and furthest([after.drain.ends], before.positions) != _ends(after):
        wrong = "a drain ends before the run began to read"
    elif after.tasks is not before.tasks:
        wrong = _wrong_owner(before, after)
    if wrong is not None:
        raise CorruptState(f"This leader would have written a control blob that cannot be: {wrong}", blob=NAME)
    return after


def _wrong_owner(before: Control, after: Control) -> str | None:
    """A task that is given to an incarnation that is not a member, or under another version than this one.

    Reports count by incarnation and generation, so such an owner's reports would be ignored.
    """
    members = {(member.processor, member.incarnation) for member in after.members}
    for task, assignment in after.tasks.items():
        owner, earlier = assignment.owner, before.tasks.get(task)
        if owner is None or earlier is assignment or (earlier is not None and earlier.owner == owner):
            continue
        if owner.generation != after.version or (owner.processor, owner.incarnation) not in members:
            return f"{task} is given to {owner}, which is not a member of version {after.version}"
    return None


def _ends(control: Control) -> Ends:
    return control.drain.ends if control.drain is not None else {}


def with_run(view: View, control: Control, now: float, requests: Sequence[Request]) -> Control:
    """What a run that is not stopped needs next."""
    control = next_run.begin_run(view, control)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        able = fitting(view, control, now)
        control = with_failures(view, with_pardon(view, control, now), able)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        control = with_drain(control, requests, view.as_leader.answering)
        control = with_end(control, view.present, view.work.plan, view.fresh_id)
        version = control.version
        control = with_assignment(view, control, able, now)
        warm_ups = _now(view, control, able, now).shares.warm_ups if view.settings.replicas else {}
        control = replicas.with_replicas(view, control, able, warm_ups, version, now)
        control = with_barrier(view, control, now)
        control = progress(control, view.present, view.work.plan)
    return control


def with_pardon(view: View, control: Control, now: float) -> Control:
    """Forget who gave up a task when that incarnation is over, or when the task has run well for a while."""
    given_up = {
        task: each
        for task, each in control.given_up.items()
        if _is(view.present.get(each.owner.processor), each.owner) and not _runs_well(view, control, task, now)
    }
    return control if given_up == control.given_up else replace(control, given_up=given_up)


def with_failures(view: View, control: Control, able: Mapping[str, ProcessorRow]) -> Control:
    """Try a task that its processor gives up on another one, with the remaining tries.

    If that one gives it up too, or there is no other, the run fails: all processors commit what they have, and exit.
    The write that records who gave up a task also moves it, so no leader finds one without the other.
    """
    given_up = dict(control.given_up)
    for processor, row in view.present.items():
        for task, report in row.tasks.items():
            if report.phase is not Phase.FAILED or report.error is None or task not in control.tasks:
                continue
            owner, before = control.tasks[task].owner, given_up.get(task)
            if owner is None or not counts(owner, row, report):
                continue  # a former owner's report does not count
            if before is not None and before.owner.processor == processor:
                before = None  # it got the task again because there was no other processor
            if before is not None or able.keys() <= {processor}:
                message = f"{report.error.message}\n{_tried(processor, before)}"
                failure = Failure(stage_and_number(task)[0], task, message, report.error.traceback)
                return replace(control, phase=RunPhase.FAILED, failure=failure, given_up={})
            given_up[task] = GivenUp(owner, report.error.message[:REASON_LIMIT])
    return control if given_up == control.given_up else replace(control, given_up=given_up)


def fitting(view: View, control: Control, now: float) -> dict[str, ProcessorRow]:
    """The candidates, without newcomers for whom the job model would be too large."""
    able = membership.candidates(view, control)
    while _is_too_large(view, able, now):  # members continue with half as many newcomers, or none
        newcomers = sorted(name for name, row in able.items() if Member(name, row.incarnation) not in control.members)
        if not newcomers:
            break  # another leader, with a higher limit, has let them in since
        able = {name: row for name, row in able.items() if name not in newcomers[len(newcomers) // 2 :]}
    return able


@dataclass(frozen=True, slots=True)
class _Now:
    """The tasks and their owners, as with_assignment finds them."""

    kept: Mapping[str, Owner]  # the owners that have not given their task up
    stays: Collection[str]  # the tasks that wait for a container
    current: Mapping[str, str]  # the processors of the others whose owner can go on
    shares: warm_up.Shares


def _now(view: View, control: Control, able: Mapping[str, ProcessorRow], now: float) -> _Now:
    """If a processor was restarted and came back before it was marked dead, its tasks wait until its new incarnation is
    a candidate, unless another one has a copy of their state. Some tasks wait for a container (`containers.awaited`).
    """
    given_up = {task: each.owner for task, each in control.given_up.items()}
    kept = {
        task: assignment.owner
        for task, assignment in control.tasks.items()
        if assignment.owner is not None and (task not in given_up or given_up[task] != assignment.owner)
    }
    ready = containers.ready(able)
    warm, near = replicas.warm(control, ready), replicas.near(control, ready)
    heavy = replicas.heavy(view, control)
    elsewhere = {task for task in heavy if near.get(task)} - given_up.keys()
    stays = {
        task
        for task, owner in kept.items()
        if owner.processor not in able and task not in elsewhere and _comes_up(view, control, owner, now)
    } | containers.awaited(view, control, able, now)
    stays |= containers.kept(view, control, able)
    current = {
        task: owner.processor
        for task, owner in kept.items()
        if task not in stays
        and (row := able.get(owner.processor)) is not None
        and (row.incarnation == owner.incarnation or (task not in elsewhere and _is_back(view, owner)))
    }
    wanted = assign(
        [task for task in control.tasks if task not in stays],
        ready,
        current,
        balance=control.phase is not RunPhase.DRAINING,
        given_up={task: owner.processor for task, owner in given_up.items()},
        warm=warm,
    )
    there = {task: owner for task, owner in current.items() if owner in ready}
    overdue = replicas.overdue(view, control, now) if heavy else ()
    follow = {processor for processor, row in ready.items() if row.replicas is not None}  # not one of an older release
    settling = replicas.taken_over(view, control, heavy & there.keys(), control.version, now)
    shares = warm_up.waiting(
        wanted, there, near, heavy=heavy - given_up.keys(), follow=follow, overdue=overdue, settling=settling
    )
    return _Now(kept, stays, current, shares)


def with_assignment(view: View, control: Control, able: Mapping[str, ProcessorRow], now: float) -> Control:
    """Assign tasks, sticky and balanced: at once if a task has lost its owner, otherwise when the debounce allows."""
    found = _now(view, control, able, now)
    kept, awaited, current, wanted = found.kept, found.stays, found.current, found.shares.owners
    incarnations = {processor: row.incarnation for processor, row in able.items()}
    others = [task for task in control.tasks if task not in awaited]
    stays = {*awaited} | {
        task
        for task, processor in current.items()
        if wanted.get(task) == processor and incarnations[processor] == kept[task].incarnation
    }
    if all(task in stays or (control.tasks[task].owner is None and task not in wanted) for task in control.tasks):
        return control
    lost = len(current) < len(others)  # an owner died, leaves or gave a task up, or there was none
    urgent = lost or any(incarnations[processor] != kept[task].incarnation for task, processor in current.items())
    if not urgent and not reached(view.as_leader.published_at + view.timing.debounce_s, now):
        return control
    version = control.revision + 1
    owners = {processor: Owner(processor, each, version) for processor, each in incarnations.items()}
    tasks = {}
    for task, assignment in control.tasks.items():
        before, to = assignment.owner, wanted.get(task)
        if task in stays:
            tasks[task] = assignment
            continue
        after = [owner for owner in assignment.after if not has_released(view, task, owner)]
        if (
            before is not None
            and _is(view.present.get(before.processor), before)
            and not _own_and_over(view, task, before)
        ):
            after.append(before)
        tasks[task] = replace(assignment, owner=owners[to] if to is not None else None, after=tuple(after))
    return replace(
        control, version=version, tasks=tasks, members=_members(able), barrier=Barrier(version, BarrierState.START)
    )


def _is_back(view: View, owner: Owner) -> bool:
    """Whether the owner was restarted, and its new incarnation was seen while the old one still counted as alive."""
    row = view.present.get(owner.processor)
    life, _ = view.others.back.get(owner.processor, ("", 0.0))
    return row is not None and row.state is not ProcessorState.LEAVING and row.incarnation == life != owner.incarnation


def _comes_up(view: View, control: Control, owner: Owner, now: float) -> bool:
    """Whether an owner's new incarnation may still become a candidate. It has as much time as it had to come back."""
    if view.settings.alone and owner.processor != view.me:
        return False
    if not _is_back(view, owner) or view.present[owner.processor].fingerprint not in ("", control.fingerprint):
        return False
    _, since = view.others.back[owner.processor]
    return not reached(since + view.timing.heartbeat_timeout_s, now)


def with_barrier(view: View, control: Control, now: float) -> Control:
    """END when every live row has adopted the version; TIMEOUT when one takes too long, until it adopts or is dead."""
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
    """Clear `first` of tasks whose logs exist, as their owners before this write say or have said, dead ones included.

    This is part of any other write, so that a task that moves is not created again. It is a write of its own only once
    all tasks have logs.
    """
    rows = {**view.others.members, **view.present}
    owners = {task: each.owner for task, each in before.tasks.items() if each.first and each.owner is not None}
    seen = view.others.seen_born
    born = {task for task, owner in owners.items() if _has_log(rows, task, owner) or (before.run_id, task) in seen}
    if not born or control.run_id != before.run_id or (control == before and len(born) < len(owners)):
        return control
    tasks = {
        task: replace(each, first=False) if task in born and each.first else each
        for task, each in control.tasks.items()
    }
    return replace(control, tasks=tasks)


def _runs_well(view: View, control: Control, task: str, now: float) -> bool:
    """Whether the current owner has run the task for FORGIVE_AFTER_S."""
    well, owner = view.others.seen_running.get(task), control.tasks[task].owner if task in control.tasks else None
    if well is None or owner is None or well.generation != owner.generation:
        return False
    return reached(well.since + FORGIVE_AFTER_S, now)


def _tried(processor: str, before: GivenUp | None) -> str:
    """Where a task has failed, for the message of the run's failure."""
    if before is None:
        return f"It failed on {processor}, and there is no other processor to try it on."
    return f"It failed on {before.owner.processor} and on {processor}. On {before.owner.processor}: {before.message}"


def _is_too_large(view: View, rows: Mapping[str, ProcessorRow], now: float) -> bool:
    return bool(view.as_leader.too_large) and not reached(view.as_leader.too_large.get(_members(rows), now), now)


def _members(rows: Mapping[str, ProcessorRow]) -> tuple[Member, ...]:
    return tuple(sorted(Member(processor, row.incarnation) for processor, row in rows.items()))


def _is(row: ProcessorRow | None, owner: Owner) -> bool:
    return row is not None and row.incarnation == owner.incarnation


def _own_and_over(view: View, task: str, owner: Owner) -> bool:
    """Ours, and it no longer runs here. What we may yet start, we may start before this write is answered."""
    if not view.is_me(owner):
        return False
    local = view.work.tasks.get(task)
    if view.ending is not None:
        return local is None or local.closed
    is_closed = local is not None and local.generation == owner.generation and local.closed
    return local is not None and is_closed and not starts_again(view, task, local)


def _has_log(rows: dict[str, ProcessorRow], task: str, owner: Owner) -> bool:
    report = report_of(task, owner, rows)
    return report is not None and report.has_log

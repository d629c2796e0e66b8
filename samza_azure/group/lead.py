"""What the leader does: keep the lease, show that it lives, watch the others, and publish what changes.

Everything that the group must agree on is one conditional write of the control blob. The leader works out the next
value whole, as one function of the present value and of what it saw, and writes it if it differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from samza_azure.group.actions import (
    CONTROL,
    HOUSEKEEPING,
    LEADER_ROW,
    LEASE,
    MEMBER,
    REQUEST,
    REQUESTS,
    SCAN,
    Action,
    AnswerRequest,
    CleanRun,
    DeleteMember,
    DeleteRequest,
    MarkDead,
    ReadControl,
    ReadRequests,
    ReleaseLease,
    RenewLease,
    ScanMembers,
    StepDown,
    WriteControl,
    WriteLeaderRow,
    resource,
)
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
    signal,
)
from samza_azure.group.drain import progress
from samza_azure.group.notification import remembered, timed
from samza_azure.group.requests import FORGOTTEN_AFTER_S, answers, with_cancel, with_drain, with_stop
from samza_azure.group.rows import LeaderRow, ProcessorRow, Request, State
from samza_azure.group.run import has_let_go, wanted_run
from samza_azure.group.timing import CHURN_FORGOTTEN, CHURN_MAX, FORGIVE_AFTER_S, RENEW_EVERY_S, URGENT_GAP_S
from samza_azure.group.view import View
from samza_azure.messages import Phase

#: How many successors the leader row names.
SUCCESSORS = 3
#: A leader that cannot act so long after it came to lead hands over to one that can. Containers start in this time or a
#: few times of it; while nobody's has, nobody gets the leadership for it.
UNABLE_S = 5.0
#: After so many looks that failed in a row, and long enough, a leader is blind.
BLIND_AFTER = 5
#: So many requests are answered, and so many of them and of rows deleted, at the same time.
ANSWERS_AT_ONCE = 8
HouseWork: TypeAlias = AnswerRequest | DeleteRequest | DeleteMember
#: The row of a dead or left processor is shown for so long. Machines come and go, and scans read all rows.
GONE_AFTER_S = 3600.0


def lead(view: View, now: float) -> list[Action]:
    """One turn as leader."""
    lease, control = view.lease, view.control
    if lease is None or not isinstance(control, Control):
        return []
    if view.reached(lease.ends_at, now):
        return [StepDown("The lease was not renewed in time.")]
    if _is_blind(view, now):
        return [StepDown("This leader is heard, and has not been able to read the rows of the others for too long.")]
    abler = _abler(view, control, now)
    if abler is not None and (last := hand_over(view, now, abler)):
        return last  # while this write cannot be sent it goes on as well as it can
    actions: list[Action] = []
    if view.reached(lease.asked_at + RENEW_EVERY_S, now) and view.free(LEASE, now):
        actions.append(RenewLease(lease.id))
    actions += _show_life(view, control, now)
    if view.free(SCAN, now) and view.reached(view.scanned_at + view.scan_interval, now):
        actions.append(ScanMembers())
    if view.free(REQUESTS, now) and view.reached(view.requests_read_at + view.timing.scan_s, now):
        actions.append(ReadRequests())
    actions += _mark_dead(view, control, now)
    if view.free(CONTROL, now):
        if view.unsettled is not None:
            actions.append(ReadControl(lease_id=lease.id))
        elif (wanted := next_control(view, control, now)) != control:
            written = replace(wanted, revision=control.revision + 1, nonce=view.fresh_id)
            has_newcomers = not set(written.members) <= set(control.members)
            actions.append(WriteControl(written, view.control_etag, lease.id, has_newcomers))
    actions += _keep_house(view, control, now)
    return actions


def _is_blind(view: View, now: float) -> bool:
    """One that beats and never sees the others decides nothing, and keeps those from leading who could.

    While its own beats fail too, the storage is away, and nobody else would see more.
    """
    since = max(view.scanned_at, view.lead_since)
    is_heard = view.accepted_at > now - 2 * view.timing.heartbeat_s
    return is_heard and view.failing_calls(SCAN) >= BLIND_AFTER and now > since + 3 * view.timing.heartbeat_timeout_s


def next_control(view: View, control: Control, now: float) -> Control:
    """The control blob as it should be now. Equal to `control` if there is nothing to publish."""
    if view.scanned_at < view.lead_since:
        return control  # nothing is decided before the first look at the others
    before, has_read = control, view.requests_read_at > view.lead_since
    if has_read:
        control = with_stop(view, with_cancel(control, view.requests), view.present)
    if control.stop is None:
        control = with_run(view, control, now, view.requests if has_read else ())
    control = with_births(view, before, with_clean_up(view, with_churn(view, control, now)))
    return replace(control, drain=timed(control.drain, before.drain, view.wall_ms))


def with_run(view: View, control: Control, now: float, requests: Sequence[Request]) -> Control:
    """What a run needs that nobody has stopped."""
    control = begin_run(view, control)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        able = fitting(view, control, now)
        control = with_failures(view, with_pardon(view, control, now), able)
    if control.phase in (RunPhase.RUNNING, RunPhase.DRAINING):
        control = with_drain(control, requests)
        control = with_assignment(view, control, able, now)
        control = with_barrier(view, control, now)
        control = progress(control, view.present, view.plan)
    return control


def candidates(view: View, control: Control) -> dict[str, ProcessorRow]:
    """Those that can be given tasks: the run's pipeline, able to read the control blob, and not about to leave.

    Who is a member already keeps what it has until the barrier times out: after the first version nobody has adopted
    one yet.
    """
    members = set(control.members)
    return {
        processor: row
        for processor, row in view.present.items()
        if row.state is not State.LEAVING
        and row.fingerprint == control.fingerprint
        and (row.adopted or not control.version or Member(processor, row.incarnation) in members)
    }


def begin_run(view: View, control: Control) -> Control:
    """The first run, the next one after a drain, or the same one again after it had failed."""
    plan = view.plan
    if plan is None or view.ending is not None:
        return control
    if control.phase is RunPhase.FAILED:
        if view.active_run == control.run_id or plan.fingerprint != control.fingerprint:
            return control
        return replace(control, phase=RunPhase.DRAINING if control.drain else RunPhase.RUNNING, failure=None)
    wishes = [row.new_run for row in view.present.values() if row.new_run and row.fingerprint == plan.fingerprint]
    again = not control.has_finished(plan.fingerprint) or bool(wishes)
    fresh = control.phase is RunPhase.DRAINED and view.active_run != control.run_id and again
    if control.phase is not RunPhase.NONE and not fresh:
        return control
    by_hand = next((wish for wish in wishes if wish != "new"), view.settings.run_id)
    if by_hand in control.past:
        return control  # a drained run never comes back
    return replace(
        control,
        run_id=by_hand or f"{view.wall_ms}-{view.fresh_id[:8]}",
        phase=RunPhase.RUNNING,
        fingerprint=plan.fingerprint,
        sources=plan.sources,
        readers=plan.readers(),
        members=(),
        tasks={task: Assignment() for task in plan.tasks()},
        drain=None,
        drains=remembered(control.drains, control.drain),
        failure=None,
        given_up={},
    )


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
    able = candidates(view, control)
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
    if not urgent and not view.reached(view.published_at + view.timing.debounce_s, now):
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
    rows = candidates(view, control)
    if control.barrier.state is BarrierState.END:
        return control
    if all(row.adopted >= control.version for row in rows.values()):
        return replace(control, barrier=Barrier(control.version, BarrierState.END))
    is_published = isinstance(view.control, Control) and view.control.version == control.version
    if control.barrier.state is BarrierState.START and is_published and _is_overdue(view, now):
        return replace(control, barrier=Barrier(control.version, BarrierState.TIMEOUT))
    return control


def with_births(view: View, before: Control, control: Control) -> Control:
    """Tasks whose logs exist are `first` no more, as their owners before this write say, the dead ones too.

    It goes along with any write, so a task that moves on cannot be created again; alone only once all have logs.
    """
    rows = {**view.members, **view.present}
    owners = {task: each.owner for task, each in before.tasks.items() if each.first and each.owner is not None}
    born = {task for task, owner in owners.items() if _has_log(rows, task, owner)}
    if not born or control.run_id != before.run_id or (control == before and len(born) < len(owners)):
        return control
    tasks = {
        task: Assignment(each.owner, each.after, first=False) if task in born and each.first else each
        for task, each in control.tasks.items()
    }
    return replace(control, tasks=tasks)


def with_churn(view: View, control: Control, now: float) -> Control:
    """Was it right to depose the leader before us? If its row has changed since, it was not."""
    deposed = control.deposed
    if deposed is not None:
        row = view.members.get(deposed.processor)
        if row is None or not row.alive or row.incarnation != deposed.incarnation:
            return replace(control, deposed=None)
        if row.etag != view.deposed_etag:
            return replace(control, deposed=None, churn=control.churn + 1)
    calm = CHURN_FORGOTTEN * view.timing.leader_timeout_s * 2 ** min(control.churn, CHURN_MAX)
    if control.churn and view.reached(view.lead_since + calm, now):
        return replace(control, churn=0)
    return control


def with_clean_up(view: View, control: Control) -> Control:
    """A drained run whose leftovers are deleted is done with."""
    if not control.uncleaned or _leftovers(view):
        return control
    run_id, count = view.clean_kept
    if view.clean_done in control.uncleaned:
        left = tuple(each for each in control.uncleaned if each != view.clean_done)
        return replace(
            control, uncleaned=left, kept={each: control.kept[each] for each in left if each in control.kept}
        )
    if run_id in control.uncleaned and control.kept.get(run_id) != count:
        return replace(control, kept={**control.kept, run_id: count})
    return control


def hand_over(view: View, now: float, to: str | None = None) -> list[Action]:
    """The last acts of a leader that leaves, or cannot act: name a successor in the blob, then release the lease."""
    control, lease = view.control, view.lease
    if view.handing_over is not None and isinstance(control, Control):
        released = [ReleaseLease(view.handing_over.id)] if view.free(LEASE, now) else []
        return [*_say_vacant(view, control, now), *released]
    if lease is None or not isinstance(control, Control) or not view.free(CONTROL, now) or view.unsettled is not None:
        return []
    written = replace(
        control,
        revision=control.revision + 1,
        leader=None,
        successor=to or next(iter(successors_of(view, control)), None),
        nonce=view.fresh_id,
    )
    return [WriteControl(written, view.control_etag, lease.id)]


def _say_vacant(view: View, control: Control, now: float) -> list[Action]:
    """The leader row says the same as the blob, so that the successor looks at once."""
    seen = view.leader_row
    if not isinstance(seen, LeaderRow) or seen.epoch != control.epoch or seen.signal == signal(control):
        return []
    if not view.free(LEADER_ROW, now):
        return []
    row = replace(seen, signal=signal(control), control_etag=view.control_etag, beat=seen.beat + 1)
    return [WriteLeaderRow(row, seen.etag)]


def successors_of(view: View, control: Control) -> tuple[str, ...]:
    """Who should lead next: those who can act before those who cannot, and of them standbys first, since they have the
    least to do; never one that leaves, or is stopped."""
    stopped = control.stop.members if control.stop is not None else ()
    owners = {assignment.owner.processor for assignment in control.tasks.values() if assignment.owner is not None}
    others = [
        (not _can_act(control, row.fingerprint, row.new_run), processor in owners, processor)
        for processor, row in view.present.items()
        if processor != view.me and row.state is not State.LEAVING and Member(processor, row.incarnation) not in stopped
    ]
    return tuple(processor for _, _, processor in sorted(others)[:SUCCESSORS])


def _can_act(control: Control, fingerprint: str, new_run: str) -> bool:
    """Whether somebody whose container has analysed this pipeline, or none yet, can lead the run or begin the next."""
    match control.phase:
        case RunPhase.NONE:
            return bool(fingerprint)
        case RunPhase.DRAINED:
            return bool(fingerprint) and (bool(new_run) or not control.has_finished(fingerprint))
    return fingerprint == control.fingerprint


def can_act(view: View, control: Control) -> bool:
    """Whether we can lead this run, or begin the next."""
    took_part = control.phase is RunPhase.DRAINED and view.active_run == control.run_id
    return view.plan is not None and not took_part and _can_act(control, view.plan.fingerprint, wanted_run(view))


def _abler(view: View, control: Control, now: float) -> str | None:
    """To whom a leader hands over that cannot act, as its container does not come up or its run is over. To nobody, if
    no other can, or who can has been silent: then it would only come back.

    Who ends hands over when it is at rest, and after a drain cleans up before.
    """
    if can_act(view, control) or view.ending is not None or view.scanned_at < view.lead_since:
        return None
    if view.unsettled is not None:
        return None  # `lead` asks first what became of that write
    for processor in successors_of(view, control):
        row, age = view.present[processor], view.ages.get(processor)
        if row.incarnation not in view.seen_alive or age is None or age.silent(2 * view.timing.heartbeat_s):
            continue
        if _can_act(control, row.fingerprint, row.new_run):
            return processor if view.reached(view.lead_since + UNABLE_S, now) else None
    return None


def leader_row(view: View, control: Control, successors: tuple[str, ...]) -> LeaderRow:
    """What the leader row is to say next."""
    beat = view.leader_row.beat + 1 if isinstance(view.leader_row, LeaderRow) else 1
    return LeaderRow(control.epoch, control.version, signal(control), view.control_etag, beat, successors)


def _show_life(view: View, control: Control, now: float) -> list[Action]:
    """The leader row: the beat that others watch, and the word of what is new."""
    if not view.free(LEADER_ROW, now) or view.leader_row is None:
        return []  # `follow` reads it first
    seen = view.leader_row if isinstance(view.leader_row, LeaderRow) else None
    if seen is not None and seen.epoch > control.epoch and view.control_read_at <= view.leader_read_at:
        # Another leads, or somebody wrote nonsense. A read with our lease tells: it is refused, or the row is a lie.
        lease = view.lease
        return [ReadControl(lease_id=lease.id)] if lease is not None and view.free(CONTROL, now) else []
    row = leader_row(view, control, successors_of(view, control))
    news = seen is None or (seen.epoch, seen.version, seen.signal, seen.successors) != (
        row.epoch,
        row.version,
        row.signal,
        row.successors,
    )
    gap = URGENT_GAP_S if news else view.timing.heartbeat_s
    if view.reached(view.leader_row_sent_at + gap, now):
        return [WriteLeaderRow(row, seen.etag if seen else None)]
    return []


def _mark_dead(view: View, control: Control, now: float) -> list[Action]:
    """Mark first, publish second. A member that beats but does not adopt is marked too, when the barrier times out: one
    that the barrier waits for. Who has only just joined, or come back, has had no time to adopt anything."""
    if now > view.accepted_at + 2 * view.timing.heartbeat_s:
        return []  # an observer that is cut off itself must not judge others
    overdue = control.barrier.state is BarrierState.TIMEOUT and _is_overdue(view, now)
    awaited = candidates(view, control) if overdue else {}
    actions: list[Action] = []
    for processor, row in view.members.items():
        age = view.ages.get(processor)
        if processor == view.me or not row.alive or age is None or not view.writable(f"{MEMBER}{processor}", now):
            continue
        stuck = processor in awaited and row.adopted < control.version
        if age.silent(view.timing.heartbeat_timeout_s) or stuck:
            actions.append(MarkDead(processor, row.etag, control.epoch))
    return actions


def _is_overdue(view: View, now: float) -> bool:
    return view.reached(max(view.barrier_since, view.lead_since) + view.timing.barrier_timeout_s, now)


def _keep_house(view: View, control: Control, now: float) -> list[Action]:
    """Answer requests, forget who is long gone; after a drain delete what is left of the run, its rows too."""
    wanted, actions = [*_answers(view, control), *_long_gone(view)], list[Action]()
    others_work = control.phase is RunPhase.DRAINED and any(
        row.alive and processor != view.me and _has_tasks(control, row) for processor, row in view.members.items()
    )
    if control.uncleaned and not others_work:  # else they have not left the run yet
        fresh = [each for each in control.uncleaned if each not in control.kept]
        run_id = fresh[0] if fresh else control.uncleaned[view.clean_tries % len(control.uncleaned)]
        if view.clean_done != run_id and view.free(HOUSEKEEPING, now):
            actions.append(CleanRun(run_id))
        if run_id in (view.clean_done, view.clean_kept[0]):
            wanted += _leftovers(view)
    return actions + _at_once(view, wanted, now)


def _at_once(view: View, wanted: Sequence[HouseWork], now: float) -> list[Action]:
    """A few at a time: a stranger may have written thousands of requests, and a thousand members may have left."""
    under_way = sum(name.startswith((MEMBER, REQUEST)) for name in view.busy)
    free = {name: action for action in wanted if view.writable(name := resource(action), now)}
    return list[Action](free.values())[: max(ANSWERS_AT_ONCE - under_way, 0)]


def _answers(view: View, control: Control) -> list[HouseWork]:
    """Answers to requests, and the end of old ones."""
    if not view.requests:
        return []
    actions: list[HouseWork] = [
        DeleteRequest(each.key, each.etag)
        for each in view.requests
        if each.key in view.request_ages and view.request_ages[each.key].silent(FORGOTTEN_AFTER_S)
    ]
    said = answers(control, view.requests, view.present)
    return actions + [AnswerRequest(each.key, each.etag, text) for each, text in said]


def _long_gone(view: View) -> list[HouseWork]:
    """The ends of rows that nobody will write any more. Whoever comes back inserts a new one."""
    return [
        DeleteMember(processor, row.etag)
        for processor, row in view.members.items()
        if not row.alive and row.is_ours and processor != view.me
        if processor in view.ages and view.ages[processor].silent(GONE_AFTER_S)
    ]


def _leftovers(view: View) -> list[HouseWork]:
    """What a drained run leaves in the table: its answered requests, the rows of the dead and left."""
    requests = [DeleteRequest(request.key, request.etag) for request in view.requests if request.answer]
    rows = [
        DeleteMember(processor, row.etag)
        for processor, row in view.members.items()
        if not row.alive and row.is_ours and processor != view.me
    ]
    return [*requests, *rows]


def _runs_well(view: View, control: Control, task: str, now: float) -> bool:
    """Whether the present owner has run it for as long as after which a task's failures are forgotten."""
    well, owner = view.well.get(task), control.tasks[task].owner if task in control.tasks else None
    if well is None or owner is None or well.generation != owner.generation:
        return False
    return view.reached(well.since + FORGIVE_AFTER_S, now)


def _tried(processor: str, before: GivenUp | None) -> str:
    """Where a task has failed, for the message of the run's failure."""
    if before is None:
        return f"It failed on {processor}, and there is no other processor to try it on."
    return f"It failed on {before.owner.processor} and on {processor}. On {before.owner.processor}: {before.message}"


def _is_too_large(view: View, rows: Mapping[str, ProcessorRow], now: float) -> bool:
    return bool(view.too_large) and not view.reached(view.too_large.get(_members(rows), now), now)


def _members(rows: Mapping[str, ProcessorRow]) -> tuple[Member, ...]:
    return tuple(sorted(Member(processor, row.incarnation) for processor, row in rows.items()))


def _is(row: ProcessorRow | None, owner: Owner) -> bool:
    return row is not None and row.incarnation == owner.incarnation


def _own_and_closed(view: View, task: str, owner: Owner) -> bool:
    if not view.is_me(owner):
        return False
    local = view.tasks.get(task)
    return local is None or local.closed


def _has_tasks(control: Control, row: ProcessorRow) -> bool:
    """Whether a row reports a task that the blob gives to that very life under that generation."""
    return any(
        task in control.tasks and control.tasks[task].owner == Owner(row.processor, row.incarnation, report.generation)
        for task, report in row.tasks.items()
    )


def _has_log(rows: dict[str, ProcessorRow], task: str, owner: Owner) -> bool:
    row = rows.get(owner.processor)
    report = row.tasks.get(task) if _is(row, owner) and row is not None else None
    return report is not None and report.generation == owner.generation and report.has_log

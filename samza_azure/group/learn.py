"""How a view changes: by answers, by reports of the container, and by local actions."""

from dataclasses import replace
from types import NoneType
from typing import assert_never

from samza_azure.group import bells, decommission
from samza_azure.group.actions import (
    CONTROL,
    LEASE,
    MEMBER,
    OWN_ROW,
    REQUEST,
    AcquireLease,
    AnswerRequest,
    BeginEnd,
    BreakLease,
    CleanRun,
    CreateControl,
    DeleteMember,
    DeleteRequest,
    Finish,
    InsertOwnRow,
    LocalAction,
    MarkDead,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ReadOwnRow,
    ReadRequests,
    Rejoin,
    ReleaseLease,
    RenewLease,
    ReplaceOwnRow,
    ScanMembers,
    StepDown,
    StorageAction,
    Tell,
    WriteControl,
    WriteLeaderRow,
    resource,
)
from samza_azure.group.age import Age, observed, young
from samza_azure.group.answers import (
    Answer,
    Busy,
    ControlRead,
    Denied,
    Kept,
    Later,
    Nothing,
    TooLarge,
    Trouble,
    expected,
)
from samza_azure.group.control import Control, Member, Owner, RunPhase, announces_vacancy
from samza_azure.group.notice import ASKED, ASKED_BEFORE, Notice
from samza_azure.group.reports import report_of
from samza_azure.group.rows import LeaderRow, ProcessorRow, ProcessorState, Request
from samza_azure.group.timing import BACK_S, DENIED_S, FIT_AGAIN_S, FORGIVE_AFTER_S, SELF_STOP
from samza_azure.group.view import (
    Campaign,
    Candidacy,
    ContainerSeen,
    Denial,
    Failing,
    Leadership,
    Lease,
    LocalTask,
    OwnIncarnation,
    SeenRunning,
    View,
)
from samza_azure.messages import (
    Drain,
    HeldReplicas,
    KeepReplicas,
    Kill,
    Permit,
    Phase,
    Plan,
    ReleaseTask,
    StartTask,
    TaskReport,
    Use,
)
from samza_azure.outcomes import Missing, NotModified, Refused


def turn(view: View, now: float, *, random: float, fresh_id: str, wall_ms: int) -> None:
    """Begin a turn. An observer that was paused forgets its suspicions."""
    paused = view.turn_at is not None and now - view.turn_at > 2 * view.timing.heartbeat_s
    view.turn_at, view.random, view.fresh_id, view.wall_ms = now, random, fresh_id, wall_ms
    if paused:
        _forget_ages(view, now)
    _note_going(view, now)


def _note_going(view: View, now: float) -> None:
    """Since when we will go, what we had then or got since, and what our row says of it."""
    if not view.departs:
        view.departs_since, view.held, view.repeated, view.going = None, {}, {}, None
        return
    if view.departs_since is None:
        view.departs_since = view.others.news_expected_at = now  # the next version moves our tasks
    # The very blob that asks us to go may give our tasks to others.
    mine = {task: local.generation for task, local in view.work.tasks.items() if not (local.closed or local.former)}
    mine |= {task: owner.generation for task, owner in view.given.items()}
    if not mine.keys() <= view.held.keys():
        view.held = {**view.held, **mine}
    if (going := decommission.going_of(view)) != view.going:
        view.going = going


def started(view: View, action: StorageAction, now: float) -> None:
    """A call was sent."""
    view.calls.busy[resource(action)] = now
    match action:
        case MergeOwnRow() | InsertOwnRow() | ReplaceOwnRow():
            view.calls.beat_sent_at = now
        case WriteLeaderRow():
            view.calls.leader_row_sent_at = now
        case ReadLeaderRow():
            view.others.rung = False
        case WriteControl(control=Control(leader=None)) if view.leadership is not None:
            view.leadership.resigns = True  # the successor may lead before we have the answer
        case AnswerRequest(key=key, answer=answer) if view.leadership is not None:
            view.leadership.answering[key] = answer


def learn(view: View, action: StorageAction, answer: Answer, *, sent_at: float, now: float) -> None:
    """A call was answered, or was not."""
    name, busy_s = resource(action), 0.0
    if isinstance(answer, Busy):
        busy_s, answer = answer.after_s, Trouble.UNAVAILABLE
    view.calls.busy.pop(name, None)
    refused_read = isinstance(answer, Refused) and isinstance(action, ReadControl) and action.lease_id is None
    unread = isinstance(answer, Later) and not isinstance(action, ReadControl)  # otherwise we stand by, and stop asking
    if isinstance(answer, Trouble | Denied | Kept) or refused_read or unread:
        times, back_off = view.failing_calls(name) + 1, view.back_off(name)
        until = sent_at + back_off.after(times, view.random)
        if busy_s and name != OWN_ROW:  # beats do not back off, or a busy service would look like a death
            until = max(until, now + min(busy_s, back_off.longest_s))
        view.calls.failing[name] = Failing(times, until)
        if name not in (CONTROL, LEASE) and isinstance(answer, Trouble | Denied):
            view.calls.troubled_at = now
        if name in (CONTROL, LEASE) and times > 1 and view.leadership is not None:
            view.leadership.cut_off = {}  # it may be an outage for all
    elif not _is_undone(view, action, answer):
        view.calls.failing.pop(name, None)
    _learn_access(view, action, answer, sent_at, now)
    match action:
        case ReadOwnRow():
            _read_own_row(view, expected(answer, ProcessorRow, Missing), now)
        case InsertOwnRow() | ReplaceOwnRow() | MergeOwnRow():
            _wrote_own_row(view, action, expected(answer, str, Refused), sent_at, now)
        case ReadLeaderRow():
            _read_leader_row(view, expected(answer, LeaderRow, Missing), now)
        case WriteLeaderRow():
            _wrote_leader_row(view, action, expected(answer, str, Refused), sent_at, now)
        case ReadControl():
            _read_control(view, action, expected(answer, ControlRead, NotModified, Missing, Refused), now)
        case CreateControl(control=control):
            _created_control(view, control, expected(answer, str, Refused), now)
        case BreakLease(etag=etag):
            _broke_lease(view, etag, expected(answer, NoneType, Refused, Missing), now)
        case AcquireLease():
            _acquired_lease(view, action, expected(answer, NoneType, Refused, Missing), sent_at, now)
        case WriteControl():
            _wrote_control(view, action, expected(answer, str, Refused, TooLarge), now)
        case RenewLease(lease_id=lease_id):
            _renewed_lease(view, lease_id, expected(answer, NoneType, Refused, Missing), sent_at, now)
        case ReleaseLease():
            _released_lease(view, expected(answer, NoneType, Refused, Missing), now)
        case ScanMembers():
            if isinstance(answer, tuple):
                _learn_members(view, answer, sent_at, now)
        case ReadMember(processor=processor):
            _learn_member(view, processor, expected(answer, ProcessorRow, Missing), sent_at, now)
        case ReadRequests():
            if isinstance(answer, tuple):
                _learn_requests(view, answer, sent_at, now)
        case AnswerRequest():
            _answered_request(view, action, expected(answer, str, Refused), now)
        case DeleteRequest():
            _deleted_request(view, action, expected(answer, NoneType, Refused, Missing), now)
        case MarkDead():
            _marked_dead(view, action, expected(answer, str, Refused), now)
        case DeleteMember():
            _deleted_member(view, action, expected(answer, NoneType, Refused, Missing), now)
        case CleanRun(run_id=run_id):
            _cleaned_run(view, run_id, expected(answer, NoneType, Kept))
        case _:
            assert_never(action)


def perform_locally(view: View, action: LocalAction, now: float) -> None:
    """A local action was done. Local actions cannot fail."""
    match action:
        case Tell(command=Permit(until=until)):
            view.work.permit_sent = until
        case Tell(command=StartTask() as start):
            before = view.work.tasks.get(start.task)
            same = before is not None and before.generation == start.generation
            view.work.attempts = start.attempt
            fresh = LocalTask(start.generation, start.attempt, started_at=now)
            if before is not None and same:
                fresh.failures, fresh.error, fresh.restarts = before.failures, before.error, before.restarts + 1
            view.work.tasks[start.task] = fresh
            view.own.waiting_since.pop(start.task, None)
        case Tell(command=ReleaseTask(task=task, by=by)):
            local = view.work.tasks[task]
            local.releasing_since = now if local.releasing_since is None else local.releasing_since
            local.release_by = by
        case Tell(command=Drain() as drain):
            view.work.drain_sent = drain
        case Tell(command=KeepReplicas() as replicas):
            view.work.replicas_sent = replicas
        case Tell(command=Kill()):
            view.work.killed = True
        case StepDown():
            demote(view, now)
        case Rejoin():
            demote(view, now)
            view.own = OwnIncarnation(view.fresh_id)
            if (asked := view.notices.get(ASKED)) is not None:
                heard_withdrawn(view, ASKED)
                heard_notice(view, ASKED_BEFORE, asked)
            view.work.tasks = {
                task: replace(each, former=True) for task, each in view.work.tasks.items() if not each.closed
            }
        case BeginEnd(verdict=verdict):
            view.ending, view.ending_since = verdict, now
        case Finish():
            view.finished = action
        case Tell():
            pass  # the container reports its end itself
        case _:
            assert_never(action)


def heard_plan(view: View, plan: Plan) -> None:
    """The container is up and has analysed the pipeline."""
    view.work.plan, view.work.container = plan, True
    view.work.silent_s, view.work.killed = 0.0, False
    _has_nothing(view)
    _take_part(view)


def _has_nothing(view: View) -> None:
    """A container is new, or gone: it knows nothing."""
    view.work.permit_sent, view.work.drain_sent = 0.0, None
    view.work.replicas_sent, view.work.replicas = KeepReplicas(), {}


def heard_task(view: View, report: TaskReport, now: float) -> None:
    """The container reports on a task. A report of an earlier attempt is ignored."""
    local = view.work.tasks.get(report.task)
    if local is None or local.attempt != report.attempt:
        return
    newly_closed = not local.closed
    local.report = report
    if report.too_old_for is not None:
        _stand_by(view, report.too_old_for)
    if report.phase is Phase.FAILED and newly_closed:
        local.error = report.error
        local.failures = 1 if now - local.started_at > FORGIVE_AFTER_S else local.failures + 1
    if local.closed and newly_closed:
        local.closed_at = now
    if report.repeated is not None:
        view.repeated = {**view.repeated, report.task: report.repeated}


def _stand_by(view: View, needs: int) -> None:
    view.too_old_for = max(view.too_old_for, needs)


def heard_container_lost(view: View, now: float) -> None:
    """The container is gone with everything in it. Its tasks start again in the next one."""
    view.work.container = False
    _has_nothing(view)
    for task, local in list(view.work.tasks.items()):
        if local.phase is not Phase.DRAINED:
            if view.departs and local.releasing_since is not None and not local.closed:
                view.repeated = {**view.repeated, task: -1}  # nobody can say what its last batch had read
            phase = Phase.RELEASED if local.releasing_since is not None else Phase.RESTART
            local.report = TaskReport(
                task, local.generation, local.attempt, phase, batch=local.report.batch if local.report else -1
            )
            local.closed_at, local.lost = now, True


def heard_container_silent(view: View, seconds: float) -> None:
    """The container has sent nothing for so long; 0: it has just sent something."""
    view.work.silent_s = seconds


def heard_replicas(view: View, held: HeldReplicas) -> None:
    """Our container has these replicas ready."""
    view.work.replicas = held.replicas


def heard_use(view: View, use: Use) -> None:
    """Our container uses so much of the machine."""
    view.work.use = use


def heard_rejected(view: View, message: str) -> None:
    """The container cannot run this pipeline, and ends."""
    view.work.rejected = message


def heard_drain_asked(view: View, now: float) -> None:
    """A drain of this or another run was requested: its first step may soon be in the control blob."""
    view.others.news_expected_at = now


def heard_leave(view: View, gave_up: str = "") -> None:
    """This processor is asked to leave: hand over, then end. `gave_up` is the reason if its host cannot continue."""
    view.leaving = True
    if view.ending is None:
        view.gave_up = view.gave_up or gave_up


def heard_notice(view: View, source: str, notice: Notice) -> bool:
    """This processor will go. Return whether that is news: a second notice of the same source changes nothing."""
    if source in view.notices:
        return False
    view.notices = {**view.notices, source: notice}
    return True


def heard_withdrawn(view: View, source: str) -> bool:
    """The notice of this source is withdrawn. Return whether there was one."""
    if source not in view.notices:
        return False
    view.notices = {name: each for name, each in view.notices.items() if name != source}
    return True


def _heed_blob(view: View, control: Control, now: float) -> None:
    """Take a notice, or its withdrawal, from the control blob. It names one incarnation. A later one of this process
    keeps the notice until the process ends, as the machine goes all the same.
    """
    asked = control.noticed.get(view.incarnation)
    if asked is not None and asked.uuid and asked.processor == view.me:
        view.noticed_life = view.incarnation
        by = now + (asked.by_ms - view.wall_ms) / 1000 if asked.by_ms else None
        heard_notice(view, ASKED, Notice(asked.why, by, asked.by_ms))
    elif view.noticed_life == view.incarnation:
        view.noticed_life = ""
        heard_withdrawn(view, ASKED)


def demote(view: View, now: float) -> None:
    """We no longer lead. Nothing further is sent as leader; observing begins again."""
    view.leadership, view.calls.unsettled = None, None
    observe_again(view, now)


def observe_again(view: View, now: float) -> None:
    """After any refused step: a full timeout of observing, and a random part of one more."""
    hold_until = now + view.timing.leader_timeout_s * (1 + view.random)
    view.candidacy = Candidacy(patience=view.random, hold_until=hold_until)
    view.others.followed = frozenset(view.others.gone)
    if view.others.leader_age is not None:
        view.others.leader_age = young(view.others.leader_age, now)


def _forget_ages(view: View, now: float) -> None:
    view.others.ages = {processor: young(age, now) for processor, age in view.others.ages.items()}
    if view.others.leader_age is not None:
        view.others.leader_age = young(view.others.leader_age, now)


def _learn_access(view: View, action: StorageAction, answer: Answer, sent_at: float, now: float) -> None:
    """Learn about access by kind of call, not by resource: a reader of a blob may be refused its lease."""
    kind = type(action).__name__
    match answer:
        case Denied(reason=reason, may_pass=may_pass):
            recent = {each: denial for each, denial in view.calls.denied.items() if now - denial.last < DENIED_S}
            since = recent[kind].since if kind in recent else sent_at
            view.calls.denied = {**recent, kind: Denial(since, now, reason, may_pass)}
            if isinstance(action, MergeOwnRow | InsertOwnRow | ReplaceOwnRow):
                view.calls.denied_at = sent_at
        case Trouble():
            pass
        case _ if view.calls.denied:
            view.calls.denied = {
                each: denial
                for each, denial in view.calls.denied.items()
                if each != kind and now - denial.last < DENIED_S
            }


def _read_own_row(view: View, answer: ProcessorRow | Missing | Nothing, now: float) -> None:
    if isinstance(answer, ProcessorRow) and answer.incarnation == view.incarnation:
        view.calls.let_in = True  # the answer to the write may have been lost
    match answer:
        case ProcessorRow() as row if row.incarnation == view.incarnation and (
            row.alive or row.state is ProcessorState.LEFT
        ):
            if view.own.beat_unsettled is not None and row.beat == view.own.beat_unsettled[0]:
                _beat_accepted(view, view.own.beat_unsettled[1], now)
            view.own.etag, view.own.found = row.etag, row
            view.own.beat = max(view.own.beat, row.beat)
            if not row.alive:
                view.own.written = row  # our last write, whose answer was lost
        case ProcessorRow() as row:
            # Its owner beats. A merge by anybody else also changes the ETag, but is no sign of life.
            known, beat = view.own.found_age, f"{row.incarnation} {row.beat}"
            if known is not None and known.etag != beat and row.alive:
                view.own.rewritten += 1
            view.own.found, view.own.found_age = row, observed(known, beat, now, view.timing.heartbeat_s)
        case Missing():
            view.own.found = Missing()
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _wrote_own_row(
    view: View,
    action: InsertOwnRow | ReplaceOwnRow | MergeOwnRow,
    answer: str | Refused | Nothing,
    sent_at: float,
    now: float,
) -> None:
    row = action.row
    match answer:
        case str() as etag:
            view.own.etag, view.own.written, view.own.beat, view.own.found = etag, row, row.beat, row
            view.own.beat_unsettled, view.calls.let_in = None, True
            _beat_accepted(view, sent_at, now)
        case Refused():
            view.own.found = None
        case Trouble.UNSETTLED:
            view.own.found = None
            earlier = view.own.beat_unsettled
            if not isinstance(action, MergeOwnRow):
                view.own.join_unsettled = True
            elif earlier is None or earlier[0] != row.beat:
                view.own.beat_unsettled = row.beat, sent_at  # otherwise the earlier one may still arrive
        case Trouble.UNAVAILABLE | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _beat_accepted(view: View, sent_at: float, now: float) -> None:
    """Our heartbeat that was sent then was accepted. If before it nobody wrote, or we had to pause, perhaps few or none
    could write, and silent members are alive.
    """
    beaten, timing = view.own.accepted_at, view.timing
    nobody_wrote = sent_at > max(beaten, view.others.write_seen_at) + 2 * timing.heartbeat_s
    if nobody_wrote or sent_at > beaten + SELF_STOP * timing.heartbeat_timeout_s:
        _forget_ages(view, now)
    view.own.accepted_at = max(beaten, sent_at)


def _renewed_lease(
    view: View, lease_id: str, answer: None | Refused | Missing | Nothing, sent_at: float, now: float
) -> None:
    """The lease was renewed or refused. Without an answer the same call is sent again."""
    leading = view.leadership
    if leading is None or leading.lease.id != lease_id:
        return
    match answer:
        case None:
            leading.lease = replace(leading.lease, asked_at=sent_at)
        case Refused() | Missing():
            demote(view, now)
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _released_lease(view: View, answer: None | Refused | Missing | Nothing, now: float) -> None:
    """The lease was released. Without an answer this is sent again: the next leader would have to break the lease."""
    match answer:
        case None | Refused() | Missing():
            view.handing_over = None
            if view.candidacy.campaign is not None:
                observe_again(view, now)
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _is_undone(view: View, action: StorageAction, answer: Answer) -> bool:
    """Whether a read shows that our heartbeat as leader, or our write of the control blob, was not written. It has
    failed, although this read has not: it is sent again at once, and if it fails again, it waits for longer than the
    first time.
    """
    if view.leadership is None:
        return False
    if isinstance(action, ReadControl) and isinstance(answer, ControlRead):
        return view.calls.unsettled is not None and answer.etag == view.calls.unsettled.etag
    if isinstance(action, ReadLeaderRow) and isinstance(answer, LeaderRow | Missing):
        return view.calls.leader_row_unsettled is not None and not _is_our_write(view, answer)
    return False


def _is_our_write(view: View, row: LeaderRow | Missing) -> bool:
    """Whether the leader row is as we wrote it when the answer was lost."""
    ours = view.calls.leader_row_unsettled
    return ours is not None and isinstance(row, LeaderRow) and row == replace(ours, etag=row.etag)


def _read_leader_row(view: View, answer: LeaderRow | Missing | Nothing, now: float) -> None:
    match answer:
        case LeaderRow() | Missing() as row:
            etag = row.etag if isinstance(row, LeaderRow) else ""
            is_ours = _is_our_write(view, row)
            view.calls.leader_row_unsettled = None
            if view.others.leader_age is not None and is_ours:
                view.others.leader_age = replace(
                    view.others.leader_age, etag=etag
                )  # our own write is no sign of the leader's life
            if (leading := view.leadership) is not None and leading.row_etag is not None and etag != leading.row_etag:
                leading.row_etag = etag if is_ours else None
            if view.others.leader_age is None or view.others.leader_age.etag != etag:
                view.candidacy.patience = view.random
            view.others.leader_age = observed(view.others.leader_age, etag, now, view.read_interval())
            if view.settings.alone:
                view.others.leader_beats = _leader_beats(view, row)
            view.others.leader_row, view.others.leader_read_at = row, now
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _leader_beats(view: View, row: LeaderRow | Missing) -> int:
    """How many changes of one leadership's row we have seen, this read included. Our own writes are not among them."""
    known = view.others.leader_row
    if not isinstance(row, LeaderRow) or not isinstance(known, LeaderRow) or known.epoch != row.epoch:
        return 0
    return view.others.leader_beats + (known.etag != row.etag)


def _wrote_leader_row(
    view: View, action: WriteLeaderRow, answer: str | Refused | Nothing, sent_at: float, now: float
) -> None:
    row = action.row
    match answer:
        case str() as etag:
            if view.leadership is not None:
                _shown(view, view.leadership, action, etag, sent_at, now)
            view.others.leader_row = replace(row, etag=etag)
            view.others.leader_read_at = now
        case Refused():
            view.others.leader_row = None
        case Trouble.UNSETTLED:
            view.others.leader_row, view.calls.leader_row_unsettled = None, row
        case Trouble.UNAVAILABLE | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _shown(view: View, leading: Leadership, action: WriteLeaderRow, etag: str, sent_at: float, now: float) -> None:
    """Our write of the leader row was accepted: from now on no earlier leader can prolong its claim to lead.

    A leader says that it leads for a part of the leader timeout after it has sent a write of this row that is accepted.
    So nobody does if the row that we have replaced is our own, or was unchanged for the whole timeout, or announces
    that its writer has handed over. Otherwise the claim of its writer ends within the timeout from now.
    """
    seen = view.others.leader_row
    is_vacant = isinstance(seen, LeaderRow) and seen.epoch == action.row.epoch - 1 and announces_vacancy(seen.signal)
    if is_vacant or action.row.epoch == 1 or (action.etag or "") == leading.row_etag:
        leading.free_from = now if leading.free_from == float("inf") else leading.free_from
    else:
        leading.free_from = now + view.timing.leader_timeout_s
    leading.row_etag, leading.row_sent_at = etag, sent_at


def _read_control(
    view: View, action: ReadControl, answer: ControlRead | NotModified | Missing | Refused | Nothing, now: float
) -> None:
    match answer:
        case ControlRead(control=control, etag=etag):
            if _is_older(view, control):
                view.own.older_copy = True  # nobody follows it: its versions were used already
                _control_seen(view, now)
            else:
                _know_control(view, control, etag, now)
        case Later(needs=needs):
            _stand_by(view, needs)
            if view.leads:
                demote(view, now)
        case Refused() | Missing() if action.lease_id is not None:
            _refused(view, now)
        case Missing():
            view.own.control, view.own.control_read_at = Missing(), now
        case NotModified() if action.lease_id is None:
            _control_seen(view, now)
        case NotModified() | Refused() | Trouble() | Denied():
            pass
        case _:
            assert_never(answer)


def _created_control(view: View, control: Control, answer: str | Refused | Nothing, now: float) -> None:
    match answer:
        case str() as etag:
            _know_control(view, control, etag, now)
        case Refused() | Trouble.UNSETTLED:
            view.own.control, view.own.control_read_at = None, -1e9
        case Trouble.UNAVAILABLE | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _broke_lease(view: View, etag: str, answer: None | Refused | Missing | Nothing, now: float) -> None:
    match answer:
        case None:
            view.candidacy.campaign = Campaign(etag)
        case Refused(code=code) if code.startswith("Lease"):
            view.candidacy.campaign = Campaign(etag)  # there was no lease to break
        case Refused() if bells.may_read_again(view):
            view.own.control_read_at = -1e9
        case Refused() | Missing():
            _refused(view, now)
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _acquired_lease(
    view: View, action: AcquireLease, answer: None | Refused | Missing | Nothing, sent_at: float, now: float
) -> None:
    match answer:
        case None:
            view.candidacy.campaign = Campaign(action.etag, lease=Lease(action.lease_id, sent_at))
        case Refused() if isinstance(view.control, Control) and view.control.leader is None:
            view.candidacy.campaign = None
            view.candidacy.hold_until = now + view.timing.scan_s * (1 + view.random)
            view.own.control_read_at = -1e9
        case Refused() | Missing():
            _refused(view, now)
        case Trouble.UNSETTLED:  # only its holder can acquire it again
            view.candidacy.campaign = Campaign(action.etag, asked=action.lease_id)
        case Trouble.UNAVAILABLE | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _wrote_control(view: View, action: WriteControl, answer: str | Refused | TooLarge | Nothing, now: float) -> None:
    if view.leadership is not None:
        view.leadership.resigns = False
        lost = answer is Trouble.UNSETTLED and action.control.leader is None
        view.leadership.may_have_resigned = lost or (
            view.leadership.may_have_resigned and not isinstance(answer, str)  # a later write settles it
        )
    match answer:
        case str() as etag:
            _control_written(view, action, action.control, etag, now)
        case TooLarge(reason=reason):
            if (leading := view.leadership) is not None:
                waiting = {members: until for members, until in leading.too_large.items() if until > now}
                leading.too_large = {**waiting, action.control.members: now + FIT_AGAIN_S}
                leading.in_vain = "" if _somebody_works(view, action.control.run_id) else reason
        case Refused():
            _refused(view, now)
        case Trouble.UNSETTLED:
            view.calls.unsettled = action
            if (leading := view.leadership) is not None:
                leading.lost_for = action.etag
        case Trouble.UNAVAILABLE | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _refused(view: View, now: float) -> None:
    """Another was faster: nothing more is sent as leader or candidate until the blob is read."""
    demote(view, now)
    view.own.control_read_at = -1e9


def _control_seen(view: View, now: float) -> None:
    """The control blob was read, for the leader row that we know."""
    view.own.control_read_at = now
    view.own.control_read_for = view.others.leader_row.etag if isinstance(view.others.leader_row, LeaderRow) else ""
    if (leading := view.leadership) is not None:
        leading.cut_off = {each: leading.cut_off.get(each, now) for each in _cut_off(view)}


def _know_control(view: View, control: Control, etag: str, now: float) -> None:
    if view.calls.unsettled is not None:
        unsettled, view.calls.unsettled = view.calls.unsettled, None
        if control.nonce == unsettled.control.nonce:
            _control_written(view, unsettled, control, etag, now)
            return
    if etag != view.own.control_etag:
        view.others.leaderless_since = now
    leading = view.leadership
    if leading is not None and isinstance(view.control, Control) and control.version != view.control.version:
        # It is ours in any case, also if it landed after we had given that write up and sent another one.
        leading.published_at = leading.barrier_since = now
        leading.too_large = {}
    if leading is not None:
        leading.placed = {
            task: {each: leading.placed.get(task, {}).get(each, now) for each in processors}
            for task, processors in control.replicas.items()
        }
    if isinstance(view.control, Control) and control.epoch != view.control.epoch and view.others.leader_age is not None:
        view.others.leader_age = young(view.others.leader_age, now)
    if view.candidacy.campaign is not None and view.candidacy.campaign.lease is not None:
        view.candidacy.campaign = replace(view.candidacy.campaign, read=True, etag=etag)
    view.own.control, view.own.control_etag = control, etag
    _control_seen(view, now)
    view.group_id, view.revision = view.group_id or control.group_id, control.revision
    _heed_blob(view, control, now)
    _take_part(view)
    mine = view.share.mine if view.share is not None else {}
    view.work.tasks = {task: local for task, local in view.work.tasks.items() if task in mine or not local.closed}
    view.own.waiting_since = {
        task: view.own.waiting_since.get(task, now)
        for task, owner in mine.items()
        if control.tasks[task].after and not _has_begun(view, task, owner)
    }
    awaited = {earlier.processor for task in view.own.waiting_since for earlier in control.tasks[task].after}
    view.others.read_at = {processor: at for processor, at in view.others.read_at.items() if processor in awaited}


def _take_part(view: View) -> None:
    """We are part of a run that is in progress and ours: it has the id that app.run.id says and our pipeline, so not
    before that is analysed.

    Upgraded code that comes during a drain and analyses longer than it lasts is to begin the next run.
    """
    control, plan = view.control, view.work.plan
    if not isinstance(control, Control) or control.phase not in (RunPhase.RUNNING, RunPhase.DRAINING):
        return
    is_named = view.settings.run_id in ("", control.run_id)
    if is_named and plan is not None and plan.fingerprint == control.fingerprint:
        view.work.active_run = control.run_id


def _somebody_works(view: View, run_id: str) -> bool:
    """Whether any member of this run, according to the blob, is alive."""
    control = view.control
    if not isinstance(control, Control) or control.run_id != run_id:
        return False
    known = set(control.members)
    return any(Member(processor, row.incarnation) in known for processor, row in view.present.items())


def _is_older(view: View, control: Control) -> bool:
    return view.group_id == control.group_id and view.revision > control.revision


def _has_begun(view: View, task: str, owner: Owner) -> bool:
    local = view.work.tasks.get(task)
    return local is not None and local.generation == owner.generation


def _control_written(view: View, action: WriteControl, control: Control, etag: str, now: float) -> None:
    won = view.candidacy.campaign.lease if view.candidacy.campaign is not None else None
    if won is not None and won.id == action.lease_id:
        age = view.others.leader_age
        silent = age.etag if age is not None and age.silent(view.timing.leader_timeout_s) else None
        view.leadership, view.candidacy.campaign = Leadership(won, now, barrier_since=now, row_etag=silent), None
        view.others.scanned_at = -1e9  # nothing is decided before the first scan of the others
        view.others.leader_row = None  # the next write takes it over
    before = view.control
    if isinstance(before, Control) and control.churn > before.churn and bells.was_wrong(view, before.deposed):
        view.others.deaf_until = now + bells.WINDOW_S
        if before.deposed is not None:
            bells.forget(view, before.deposed.incarnation)
    _know_control(view, control, etag, now)
    if control.leader != view.member:
        leading = view.leadership
        view.vacates = leading is not None and now >= leading.free_from
        view.leadership, view.handing_over = None, view.lease
        observe_again(view, now)  # a leader that hands over and stays gives the successor time


def _learn_members(view: View, rows: tuple[ProcessorRow | Request, ...], sent_at: float, now: float) -> None:
    interval = view.scan_interval
    _trust(view, MEMBER, sent_at)
    members, ages, alive, changed = {}, {}, set(), False
    back = {processor: each for processor, each in view.others.back.items() if now < each[1] + BACK_S}
    for read in rows:
        if not isinstance(read, ProcessorRow):
            continue
        known, before = view.others.ages.get(read.processor), view.others.members.get(read.processor)
        if before is not None and before.incarnation != read.incarnation and before.alive and read.alive:
            back.setdefault(read.processor, (read.incarnation, now))  # one that comes back repeatedly counts once
        is_over = before is not None and before.incarnation == read.incarnation and not before.alive
        bells.heard_life(view, read, now)
        row = before if before is not None and is_over and read.alive else read  # we marked it dead during the scan
        members[row.processor] = row
        age = ages[row.processor] = observed(known, row.etag, now, interval, row.age_s)
        if row.alive:
            if (_is_leaving(row) and not (before and _is_leaving(before))) or _nears_its_end(view, known, age):
                view.others.news_expected_at = now  # its tasks will be given to others
            is_news = known is not None and known.etag != row.etag
            changed = changed or is_news
            if is_news or row.incarnation in view.others.seen_alive:
                alive.add(row.incarnation)
    view.others.members, view.others.ages, view.others.seen_alive = members, ages, frozenset(alive)
    if changed:  # by somebody else since the last scan
        evident = max(view.own.accepted_at, view.others.write_seen_at)
        view.others.write_seen_at = max(view.others.write_seen_at, view.others.scanned_at)
        if view.others.write_seen_at > evident + 2 * max(view.timing.heartbeat_s, interval):
            _forget_ages(view, now)  # the first sign that rows can be written again
    view.others.scanned_at, view.others.back = sent_at, back
    view.others.seen_running = _seen_running(view, now)
    view.others.seen_born = _seen_born(view)
    view.others.containers = _containers(view, now)
    deposed = view.control.deposed if isinstance(view.control, Control) else None
    leading = view.leadership
    if leading is not None and leading.cut_off:
        leading.cut_off = {each: leading.cut_off[each] for each in _cut_off(view) & leading.cut_off.keys()}
    if leading is not None and deposed is not None and deposed.processor in members and not leading.deposed_etag:
        leading.deposed_etag = members[deposed.processor].etag


def _is_leaving(row: ProcessorRow) -> bool:
    return row.alive and row.state is ProcessorState.LEAVING


def _nears_its_end(view: View, known: Age | None, age: Age) -> bool:
    """Whether a member has just missed so many heartbeats that it is marked dead after one more."""
    limit_s = view.timing.heartbeat_timeout_s - view.timing.heartbeat_s
    return age.seconds >= limit_s and known is not None and known.seconds < limit_s


def _cut_off(view: View) -> set[str]:
    """The lives that report that they cannot reach the blob."""
    return {row.incarnation for row in view.others.members.values() if row.alive and row.cut_off}


def _containers(view: View, now: float) -> dict[str, ContainerSeen]:
    """Who has lost its container, and who has had one again for less than a death timeout; and since when."""
    found = {}
    for row in view.others.members.values():
        known, ready = view.others.containers.get(row.incarnation), not row.no_container
        if row.alive and (known is not None or not ready):
            seen = known if known is not None and known.ready is ready else ContainerSeen(ready, now)
            if not (ready and now >= seen.since + view.timing.heartbeat_timeout_s):
                found[row.incarnation] = seen
    return found


def _seen_running(view: View, now: float) -> dict[str, SeenRunning]:
    """The tasks that a processor gave up and that run with their present owner, and since when without a failure."""
    well, control = dict[str, SeenRunning](), view.control
    if not isinstance(control, Control):
        return well
    for task in control.given_up:
        owner = control.tasks[task].owner if task in control.tasks else None
        report = report_of(task, owner, view.others.members)
        if report is not None and report.phase is Phase.RUNNING:
            known = view.others.seen_running.get(task)
            same = known is not None and (known.generation, known.attempt) == (report.generation, report.attempt)
            well[task] = known if known is not None and same else SeenRunning(report.generation, report.attempt, now)
    return well


def _seen_born(view: View) -> frozenset[tuple[str, str]]:
    """The tasks that have a log, as their owners say or have said: one that starts its task again says nothing."""
    control = view.control
    if not isinstance(control, Control):
        return frozenset()
    rows = {**view.others.members, **view.present}
    first = {task: each.owner for task, each in control.tasks.items() if each.first}
    said = (report_of(task, owner, rows) for task, owner in first.items())
    born = {(control.run_id, report.task) for report in said if report is not None and report.has_log}
    return frozenset(born | {each for each in view.others.seen_born if each[0] == control.run_id and each[1] in first})


def _learn_member(
    view: View, processor: str, answer: ProcessorRow | Missing | Nothing, sent_at: float, now: float
) -> None:
    """One member's row was read. Its age belongs to its ETag, as always. A scan that was sent later knows better."""
    if sent_at < view.others.scanned_at:
        return
    match answer:
        case ProcessorRow() as row:
            bells.heard_life(view, row, now)
            _know_member(view, row)
            known = view.others.ages.get(processor)
            view.others.ages[processor] = observed(known, row.etag, now, view.scan_interval, row.age_s)
        case Missing():
            _forget_member(view, processor)
            view.others.ages.pop(processor, None)
        case Trouble() | Denied() | Later():
            return
        case _:
            assert_never(answer)
    view.others.read_at[processor] = sent_at
    view.calls.doubted.pop(f"{MEMBER}{processor}", None)


def _marked_dead(view: View, action: MarkDead, answer: str | Refused | Nothing, now: float) -> None:
    """A member was marked dead. If that was not accepted, the next scan shows its row."""
    match answer:
        case str() as etag:
            row = view.others.members.get(action.processor)
            if row is not None and row.etag == action.etag:  # a scan may have seen what has become of it since
                _know_member(view, replace(row, state=ProcessorState.DEAD, etag=etag, epoch=action.epoch))
        case Refused():
            view.calls.doubted[resource(action)] = now
            view.others.ages.pop(action.processor, None)  # it shows life
            if (row := view.others.members.get(action.processor)) is not None and row.incarnation in view.others.gone:
                view.others.deaf_until = now + bells.WINDOW_S
                bells.forget(view, row.incarnation)
        case Trouble.UNAVAILABLE:
            pass  # nothing was written, so the row is unchanged: try again later
        case Trouble.UNSETTLED | Denied() | Later():
            view.calls.doubted[resource(action)] = now
        case _:
            assert_never(answer)


def _deleted_member(view: View, action: DeleteMember, answer: None | Refused | Missing | Nothing, now: float) -> None:
    match answer:
        case None | Missing():
            row = view.others.members.get(action.processor)
            if row is not None and row.etag == action.etag:  # otherwise a scan has seen its next incarnation
                _forget_member(view, action.processor)
        case Refused():  # it is another row by now, perhaps of a stranger who goes on under a name that was marked dead
            view.calls.doubted[resource(action)] = now
            view.others.ages.pop(action.processor, None)
            row = view.others.members.get(action.processor)
            if row is not None and row.etag == action.etag:
                _forget_member(view, action.processor)
        case Trouble.UNAVAILABLE:
            pass
        case Trouble.UNSETTLED | Denied() | Later():
            view.calls.doubted[resource(action)] = now
        case _:
            assert_never(answer)


def _answered_request(view: View, action: AnswerRequest, answer: str | Refused | Nothing, now: float) -> None:
    """Record accepted writes at once: otherwise the answer would be sent again before the next read."""
    match answer:
        case str() as etag:
            if (leading := view.leadership) is not None:  # otherwise the current leader reads them
                leading.answered_at[action.key] = now
                leading.requests = tuple(
                    replace(each, answer=action.answer, etag=etag) if each.key == action.key else each
                    for each in leading.requests
                )
        case Trouble.UNAVAILABLE:
            pass
        case Refused() | Trouble.UNSETTLED | Denied() | Later():
            view.calls.doubted[resource(action)] = now
        case _:
            assert_never(answer)


def _deleted_request(view: View, action: DeleteRequest, answer: None | Refused | Missing | Nothing, now: float) -> None:
    match answer:
        case None | Missing():
            if (leading := view.leadership) is not None:
                leading.requests = tuple(each for each in leading.requests if each.key != action.key)
        case Trouble.UNAVAILABLE:
            pass
        case Refused() | Trouble.UNSETTLED | Denied() | Later():
            view.calls.doubted[resource(action)] = now
        case _:
            assert_never(answer)


def _cleaned_run(view: View, run_id: str, answer: None | Kept | Nothing) -> None:
    leading = view.leadership
    if leading is None:
        return  # the current leader looks again
    match answer:
        case None:
            leading.clean_done, leading.clean_tries = run_id, 0
        case Kept(count=count):
            leading.clean_kept, leading.clean_tries = (run_id, count), leading.clean_tries + 1
        case Trouble() | Denied() | Later():
            pass
        case _:
            assert_never(answer)


def _trust(view: View, kind: str, sent_at: float) -> None:
    """All rows of a kind were read. That settles earlier doubts; one that arose after the read was sent remains."""
    view.calls.doubted = {
        name: since for name, since in view.calls.doubted.items() if not name.startswith(kind) or since > sent_at
    }


def _know_member(view: View, row: ProcessorRow) -> None:
    view.others.members = {**view.others.members, row.processor: row}


def _forget_member(view: View, processor: str) -> None:
    view.others.members = {name: row for name, row in view.others.members.items() if name != processor}


def _learn_requests(view: View, rows: tuple[ProcessorRow | Request, ...], sent_at: float, now: float) -> None:
    _trust(view, REQUEST, sent_at)
    # A row with an empty key can be neither answered nor deleted.
    requests = tuple(row for row in rows if isinstance(row, Request) and row.key)
    leading, interval = view.leadership, view.timing.scan_s
    if leading is not None and sent_at >= leading.since:  # otherwise another leader may have answered them since
        before, answering = leading.request_ages, leading.answering
        # What was answered after this read was sent stays so. What was answered before is as the read says: a stranger
        # may have put another row under the same key, and the one that we know could never be deleted.
        at = leading.answered_at = {key: at for key, at in leading.answered_at.items() if at >= sent_at}
        answered = {each.key: each for each in leading.requests if each.answer and each.key in at}
        requests = tuple(each if each.answer else answered.get(each.key, each) for each in requests)
        leading.request_ages = {
            each.key: observed(before.get(each.key), each.etag, now, interval, each.age_s) for each in requests
        }
        leading.answering = {each.key: answering[each.key] for each in requests if each.key in answering}
        leading.requests, leading.requests_read_at = requests, now

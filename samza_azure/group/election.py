"""Election: who leads, who leads next, and when a leader steps down. Refusals end it, too: `learn.demote`.

Safety does not depend on time or on a belief to hold the lease: time only decides when to try, and each attempt carries
the ETag of the state for which it was decided.
"""

from dataclasses import replace

from samza_azure.group import bells, decommission, history, membership, next_run
from samza_azure.group.actions import (
    CONTROL,
    LEADER_ROW,
    LEASE,
    SCAN,
    AcquireLease,
    Action,
    BreakLease,
    CreateControl,
    ReadControl,
    ReadLeaderRow,
    ReleaseLease,
    RenewLease,
    StepDown,
    WriteControl,
    WriteLeaderRow,
)
from samza_azure.group.control import Control, Member, signal
from samza_azure.group.moment import reached
from samza_azure.group.rows import FORMAT, LeaderRow, ProcessorState
from samza_azure.group.timing import (
    CHURN_FORGOTTEN,
    CHURN_MAX,
    LEASE_MARGIN_S,
    OUT_OF_REACH,
    RENEW_EVERY_S,
    SIGHT_S,
    URGENT_GAP_S,
)
from samza_azure.group.view import Campaign, Lease, View
from samza_azure.outcomes import Missing

#: How many successors the leader row names.
SUCCESSORS = 3


#: A leader that still cannot act this long after its election hands over to a processor that can. Containers take this
#: time, or several times it, to start; while no container has started, the leadership stays.
UNABLE_S = 5.0


def follow(view: View, now: float) -> list[Action]:
    """Read the leader row at our rate, and the control blob when that row announces a change.

    The blob is also read now and then without a change, to see whether it can be read: a processor that cannot read it
    would miss changes, and keep its tasks.
    """
    actions: list[Action] = []
    unknown = view.others.leader_row is None
    # Who has handed over writes that row first: the successor waits for it.
    is_ours = view.handing_over is not None and isinstance(view.control, Control) and _is_unsaid(view, view.control)
    if (
        view.free(LEADER_ROW, now)
        and not is_ours
        and (
            unknown
            or view.others.rung
            or (view.lease is None and reached(view.others.leader_read_at + view.look_gap(), now))
        )
    ):
        actions.append(ReadLeaderRow())
    if view.lease is None:
        actions += membership.look(view, now)
    if (
        view.lease is None
        and view.candidacy.campaign is None
        and view.free(CONTROL, now)
        and _control_is_old(view, now)
    ):
        actions.append(ReadControl(unless_etag=view.own.control_etag or None))
    return actions


def _control_is_old(view: View, now: float) -> bool:
    if view.too_old_for:
        return False  # we could not decode it
    match view.control, view.others.leader_row:
        case None, _:
            return True
        case Missing() | Control(leader=None), _:  # the next leader may be slow to write the leader row
            return reached(view.own.control_read_at + view.timing.ask_every_s(view.size), now)
        case (Control() as control, LeaderRow() as row):
            is_heard = now <= view.own.accepted_at + 2 * view.timing.heartbeat_s  # otherwise the storage is down
            if is_heard and reached(view.own.control_read_at + SIGHT_S, now):
                return True
            if row.epoch < control.epoch or row.etag == view.own.control_read_for:
                return False
            if bells.must_know_blob(view, row):
                return True
            return (row.epoch, row.version, row.signal) != (control.epoch, control.version, signal(control))
        case _, Missing():
            return reached(view.own.control_read_at + view.timing.look_every_s(view.size), now)
    return False


def campaign(view: View, now: float) -> list[Action]:
    """Try to lead: when nobody does, or when the leader has been silent for too long."""
    if (
        not view.free(CONTROL, now)
        or view.ending is not None
        or now > view.own.accepted_at + 2 * view.timing.heartbeat_s
    ):
        return []
    if view.too_old_for:  # one of our tasks may have found this after we took the lease
        taken = view.candidacy.campaign.lease_id if view.candidacy.campaign is not None else ""
        return [ReleaseLease(taken)] if taken and view.free(LEASE, now) else []
    if view.candidacy.campaign is not None:
        return _continue_campaign(view, view.candidacy.campaign, now)
    if not reached(view.candidacy.hold_until, now):
        return []
    match view.control:
        case Missing() if not view.group_id:
            return [CreateControl(Control(group_id=view.fresh_id, nonce=view.fresh_id))]
        case Control(leader=None) as control:
            first_choice = control.successor == view.me or (control.successor is None and not view.notices)
            patience = view.timing.scan_s * (1 + 2 * view.candidacy.patience)
            if not next_run.can_act(view, control) or view.notices:  # the successor has time: it looks once a heartbeat
                patience += 2 * view.timing.heartbeat_s
            if not first_choice and not reached(view.others.leaderless_since + patience, now):
                return []
            if reached(
                view.others.leaderless_since + view.timing.leader_timeout_s * (1 + view.candidacy.patience), now
            ):
                return [BreakLease(view.own.control_etag)]  # a processor took the lease and never wrote the blob
            return [AcquireLease(view.fresh_id, view.own.control_etag)]
        case Control() as control if bells.leader_gone(view, control, now) or _suspect(view):
            if now > view.own.control_read_at + view.timing.scan_s and not bells.knows_blob(view):
                return [
                    ReadControl(unless_etag=view.own.control_etag)
                ]  # the leader may have written after its last heartbeat
            return [BreakLease(view.own.control_etag)] if _is_named(view) else _name_ourselves(view, control, now)
    return []


def _continue_campaign(view: View, going: Campaign, now: float) -> list[Action]:
    if going.lease is None:
        return [AcquireLease(going.asked or view.fresh_id, going.etag)]
    if now > going.lease.ends_at - LEASE_MARGIN_S:
        return [ReleaseLease(going.lease.id)]
    is_known = going.read or bells.knows_acquired(view, going)
    if view.calls.unsettled is not None or not is_known or not isinstance(view.control, Control):
        return [ReadControl(lease_id=going.lease.id)]
    control = replace(
        view.control,
        revision=view.control.revision + 1,
        epoch=view.control.epoch + 1,
        leader=view.member,
        deposed=view.control.leader,
        successor=None,
        nonce=view.fresh_id,
    )
    return [WriteControl(history.with_events(view, view.control, control), going.etag, going.lease.id)]


def _is_named(view: View) -> bool:
    """Whether we are a named successor, or there is no leader row to name one."""
    row = view.others.leader_row
    return isinstance(row, Missing) or (isinstance(row, LeaderRow) and view.me in row.successors)


def _name_ourselves(view: View, control: Control, now: float) -> list[Action]:
    """The named successors are gone too. The first processor to change the row is next; the others see that and wait.

    Without this, all members of a large group would break each other's leases, since that leaves the blob's ETag
    unchanged.
    """
    seen = view.others.leader_row
    if not isinstance(seen, LeaderRow) or not view.free(LEADER_ROW, now):
        return []
    return [WriteLeaderRow(leader_row(view, control, (view.me,)), seen.etag)]


def _suspect(view: View) -> bool:
    age = view.others.leader_age
    if age is None:
        return False
    successors = view.others.leader_row.successors if isinstance(view.others.leader_row, LeaderRow) else ()
    if view.me in successors:
        patience = successors.index(view.me) * view.timing.scan_s
    else:
        patience = (3 + 3 * view.candidacy.patience) * view.timing.heartbeat_s
    return age.silent(leader_timeout(view) + patience)


def leader_timeout(view: View) -> float:
    """How long a leader may be silent. Consecutive wrong suspicions increase it: the storage or a machine is slow."""
    churn = view.control.churn if isinstance(view.control, Control) else 0
    return view.timing.leader_timeout_s * 2.0 ** min(churn, CHURN_MAX)


def step_down(view: View, lease: Lease, control: Control, now: float) -> list[Action]:
    """The last acts of a leader that may not lead on, or hands over to an abler one. Empty: it leads on."""
    if reached(lease.ends_at, now):
        return [StepDown("The lease was not renewed in time.")]
    if is_blind(view, now):
        return [StepDown("This leader's heartbeats succeed, but for too long it could not read the others' rows.")]
    to = abler(view, control, now) or heir(view, control, now)
    return hand_over(view, now, to) if to is not None else []  # until that write can be sent, it continues to lead


def keep_lease(view: View, lease: Lease, now: float) -> list[Action]:
    """Renew the lease every 20 s."""
    is_due = reached(lease.asked_at + RENEW_EVERY_S, now) and view.free(LEASE, now)
    return [RenewLease(lease.id)] if is_due else []


def show_life(view: View, control: Control, now: float) -> list[Action]:
    """Write the leader row: the heartbeat that others watch, and the announcement of changes."""
    if not view.free(LEADER_ROW, now) or view.others.leader_row is None:
        return []  # `follow` reads it first
    seen = view.others.leader_row if isinstance(view.others.leader_row, LeaderRow) else None
    if seen is not None and seen.epoch > control.epoch and view.own.control_read_at <= view.others.leader_read_at:
        # Another processor leads, or the row is garbage. A read with our lease tells which: it is refused if we were
        # deposed.
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
    has_failed = view.failing_calls(LEADER_ROW) > 0  # then the back-off alone says when it comes again
    if has_failed or reached(view.calls.leader_row_sent_at + gap, now):
        return [WriteLeaderRow(row, seen.etag if seen else None)]
    return []


def leader_row(view: View, control: Control, successors: tuple[str, ...]) -> LeaderRow:
    """The next value of the leader row."""
    beat = view.others.leader_row.beat + 1 if isinstance(view.others.leader_row, LeaderRow) else 1
    return LeaderRow(control.epoch, control.version, signal(control), view.own.control_etag, beat, successors)


def successors_of(view: View, control: Control) -> tuple[str, ...]:
    """Who should lead next. Processors that can act come before those that cannot, and among them standbys first, since
    they have the least to do. Those that cannot reach the blob, or have not read it yet, come last; those that leave or
    are stopped are left out.
    """
    stopped = control.stop.members if control.stop is not None else ()
    owners = {assignment.owner.processor for assignment in control.tasks.values() if assignment.owner is not None}
    others = [
        (
            row.cut_off or (control.version > 0 and not row.adopted),
            not next_run.fits(control, row.fingerprint, row.new_run),
            -row.format,
            processor in owners,
            processor,
        )
        for processor, row in view.present.items()
        if processor != view.me
        and row.state is not ProcessorState.LEAVING
        and row.incarnation not in control.noticed
        and Member(processor, row.incarnation) not in stopped
    ]
    return tuple(processor for *_, processor in sorted(others)[:SUCCESSORS])


def is_blind(view: View, now: float) -> bool:
    """Whether this leader's heartbeats succeed although it cannot read the others' rows.

    Such a leader decides nothing, and keeps abler ones from leading. If its own heartbeats fail too, the storage is
    down, and nobody else could read more.
    """
    patience = 3 * view.timing.heartbeat_timeout_s
    is_heard = view.own.accepted_at > now - 2 * view.timing.heartbeat_s
    never_ends = now > view.calls.busy.get(SCAN, now) + patience  # page after page
    has_tried = never_ends or view.failing_calls(SCAN) >= OUT_OF_REACH
    return is_heard and has_tried and now > max(view.others.scanned_at, view.as_leader.since) + patience


def abler(view: View, control: Control, now: float) -> str | None:
    """The processor to which a leader that cannot act hands over: its container does not start, its run is over, or it
    cannot read what a later release writes. None if no other can act, or if those have been silent: then the
    leadership would only come back.

    An ending leader hands over when its work has ended, and after a drain it first cleans up.
    """
    latest = max(
        (row.format for row in view.present.values() if row.incarnation in view.others.seen_alive), default=FORMAT
    )
    is_able = next_run.can_act(view, control) and latest <= FORMAT
    if is_able or view.ending is not None or not view.has_looked:
        return None
    if view.calls.unsettled is not None:
        return None  # `lead` asks first what became of that write
    for processor in successors_of(view, control):
        row = view.present[processor]
        if not _lives(view, processor):
            continue
        if next_run.fits(control, row.fingerprint, row.new_run) and row.format >= latest and not row.cut_off:
            return processor if reached(view.as_leader.since + UNABLE_S, now) else None
    return None


def heir(view: View, control: Control, now: float) -> str | None:
    """The processor to which a leader that will go hands over. None if it does not go, or not yet, or if no other
    lives that could lead: then it leads until it ends. None also if it ends with its run: it cleans up first.
    """
    ends_with_run = view.ending is not None and not view.leaving
    if ends_with_run or not decommission.must_hand_over(view, control, now):
        return None
    return next((each for each in successors_of(view, control) if _lives(view, each)), None)


def _lives(view: View, processor: str) -> bool:
    """Whether a processor was seen to change its row, lately."""
    age = view.others.ages.get(processor)
    is_seen = view.present[processor].incarnation in view.others.seen_alive
    return is_seen and age is not None and not age.silent(2 * view.timing.heartbeat_s)


def hand_over(view: View, now: float, to: str | None = None) -> list[Action]:
    """The last acts of a leader that leaves, or cannot act: name a successor in the blob, then release the lease."""
    control, lease = view.control, view.lease
    if view.handing_over is not None and isinstance(control, Control):
        if _is_unsaid(view, control) and LEADER_ROW in view.calls.busy:
            return []  # with the lease the vacancy would be forgotten, and the successor would wait for a silence
        released = [ReleaseLease(view.handing_over.id)] if view.free(LEASE, now) else []
        return [*_say_vacant(view, control, now), *released]
    if (
        lease is None
        or not isinstance(control, Control)
        or not view.free(CONTROL, now)
        or view.calls.unsettled is not None
    ):
        return []
    written = replace(
        control,
        revision=control.revision + 1,
        leader=None,
        successor=to or next(iter(successors_of(view, control)), None),
        nonce=view.fresh_id,
    )
    return [WriteControl(written, view.own.control_etag, lease.id)]


def _say_vacant(view: View, control: Control, now: float) -> list[Action]:
    """Write to the leader row that nobody leads, as in the blob, so that the successor looks at once."""
    seen = view.others.leader_row
    if not isinstance(seen, LeaderRow) or not _is_unsaid(view, control) or not view.free(LEADER_ROW, now):
        return []
    row = replace(seen, signal=signal(control), control_etag=view.own.control_etag, beat=seen.beat + 1)
    return [WriteLeaderRow(row, seen.etag)]


def _is_unsaid(view: View, control: Control) -> bool:
    """Whether the leader row has yet to say that nobody leads. If a leader before us may still say that it leads, the
    successor must wait for that to end.
    """
    seen = view.others.leader_row
    if not view.vacates or not isinstance(seen, LeaderRow):
        return False
    return seen.epoch == control.epoch and seen.signal != signal(control)


def with_churn(view: View, control: Control, now: float) -> Control:
    """Count a wrong suspicion: if the deposed leader's row has changed since, it was alive."""
    deposed = control.deposed
    if deposed is not None:
        row = view.others.members.get(deposed.processor)
        if row is None or not row.alive or row.incarnation != deposed.incarnation:
            return replace(control, deposed=None)
        if row.etag != view.as_leader.deposed_etag:
            return replace(control, deposed=None, churn=control.churn + 1)
    calm = CHURN_FORGOTTEN * view.timing.leader_timeout_s * 2 ** min(control.churn, CHURN_MAX)
    if control.churn and reached(view.as_leader.since + calm, now):
        return replace(control, churn=0)
    return control

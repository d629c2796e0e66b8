"""What a processor does next, given what it knows. Called each turn; the same knowledge gives the same answer.

No argument for safety here rests on time or on believing to hold a lease: time only decides when to try, and every
try carries the ETag of what it was decided for. What leading means is in `lead`, what tasks need in `run`.
"""

from dataclasses import replace

from samza_azure.group import lead, run
from samza_azure.group.actions import (
    CONTROL,
    LEADER_ROW,
    LEASE,
    OWN_ROW,
    SCAN,
    AcquireLease,
    Action,
    BeginEnd,
    BreakLease,
    CreateControl,
    Finish,
    InsertOwnRow,
    MergeOwnRow,
    ReadControl,
    ReadLeaderRow,
    ReadMember,
    ReadOwnRow,
    Rejoin,
    ReleaseLease,
    ReplaceOwnRow,
    ScanMembers,
    WriteControl,
    WriteLeaderRow,
    resource,
)
from samza_azure.group.control import Control, signal
from samza_azure.group.rows import ENDING_LIMIT, LeaderRow, ProcessorRow, State
from samza_azure.group.timing import CHURN_MAX, LEASE_MARGIN_S, WAITS_PER_S
from samza_azure.group.view import Absent, Campaign, View

#: A processor that leaves gives each of its last calls so long, then goes without.
FAREWELL_S = 5.0
#: A row of our id that changes so often has a live owner. Once may be the last words of a dead one, landing late.
RIVAL_WRITES = 2


def decide(view: View, now: float) -> list[Action]:
    """All that is to be done now."""
    if view.finished is not None:
        return []
    last = end(view, now)
    actions: list[Action] = [] if MergeOwnRow in map(type, last) else beat(view, now)  # the last beat says all
    if view.etag is not None:
        actions += follow(view, now)
        if view.lease is not None:
            actions += lead.lead(view, now)
        elif view.handing_over is None:
            actions += campaign(view, now)
        elif view.ending is None:
            actions += lead.hand_over(view, now)
    actions += run.run(view, now)
    return actions + last


def beat(view: View, now: float) -> list[Action]:
    """Join, then one conditional merge of our own row per heartbeat; what others wait for goes at once."""
    if not view.free(OWN_ROW, now) or (view.written is not None and view.written.state is State.LEFT):
        return []
    if view.found is None:
        return [ReadOwnRow()]
    if view.etag is None:
        return join(view, now)
    if _fenced(view):
        return [Rejoin("This processor was declared dead, or its row taken; it comes back as a new incarnation.")]
    row = own_row(view)
    gap = view.timing.heartbeat_s if row == view.written else view.timing.urgent_gap_s(view.size)
    if view.reached(view.beat_sent_at + gap, now):
        return [MergeOwnRow(replace(row, beat=view.beat + 1), view.etag)]
    return []


def join(view: View, now: float) -> list[Action]:
    """Insert our row, or replace that of a predecessor of the same id that is certainly gone."""
    row = own_row(view)
    match view.found:
        case ProcessorRow() as found if view.written is not None:
            return [Rejoin(f"The row of {view.me} belongs to incarnation {found.incarnation} now.")]
        case ProcessorRow() as found if found.incarnation == view.incarnation:
            return [Rejoin("This processor was declared dead before it heard that it had joined.")]
        case ProcessorRow() as found:
            age = view.found_age
            gone = not found.alive or (view.settings.holds_directory and found.boot == view.settings.boot)
            if gone or (age is not None and age.silent(view.timing.heartbeat_timeout_s)):
                return [ReplaceOwnRow(row, found.etag)]
            if view.rewritten >= RIVAL_WRITES:
                return [
                    Finish(
                        2,
                        f"A live processor has the id {view.me!r}. Start this one with another --id, or stop that one.",
                    )
                ]
            if age is not None and view.reached(age.read_at + view.timing.heartbeat_s / 2, now):
                return [ReadOwnRow()]
            return []
        case _:
            return [InsertOwnRow(row)]


def own_row(view: View) -> ProcessorRow:
    """What our row has to say now, the beat left as it is."""
    control = view.control if isinstance(view.control, Control) else None
    adopted = control.version if control is not None else 0
    state = State.LEAVING if view.leaving else State.ACTIVE if adopted else State.UNASSIGNED
    return ProcessorRow(
        processor=view.me,
        incarnation=view.incarnation,
        etag=view.written.etag if view.written else "",
        beat=view.beat,
        adopted=adopted,
        state=state,
        released=run.released(view),
        tasks={task: report for task, local in view.tasks.items() if (report := run.told(view, local)) is not None},
        fingerprint=view.plan.fingerprint if view.plan else "",
        new_run=run.wanted_run(view),
        boot=view.settings.boot,
    )


def follow(view: View, now: float) -> list[Action]:
    """Read the leader row at our rate, and the control blob only when that row says that there is news."""
    actions: list[Action] = []
    unknown = view.leader_row is None
    if view.free(LEADER_ROW, now) and (
        unknown or (view.lease is None and view.reached(view.leader_read_at + view.read_interval(), now))
    ):
        actions.append(ReadLeaderRow())
    if view.lease is None:
        actions += _look_at_members(view, now)
    if view.lease is None and view.campaign is None and view.free(CONTROL, now) and _control_is_old(view, now):
        actions.append(ReadControl(unless_etag=view.control_etag or None))
    return actions


def _look_at_members(view: View, now: float) -> list[Action]:
    """All of them, if we may have to lead next; otherwise, or in between, those whose tasks we wait for."""
    if view.watching() and view.free(SCAN, now) and view.reached(view.scanned_at + view.scan_interval, now):
        return [ScanMembers()]
    if SCAN in view.busy:
        return []
    awaited, gap = sorted(run.awaited(view)), view.size / WAITS_PER_S
    if len(awaited) * gap > view.timing.scan_s:  # one after the other, in a circle
        is_due = view.reached(max(view.read_at.values(), default=-1e9) + gap, now)
        awaited = [min(awaited, key=view.seen_at)] if is_due else []
    return [
        ReadMember(processor)
        for processor in awaited
        if view.reached(view.seen_at(processor) + view.timing.scan_s, now)
        and view.free(resource(ReadMember(processor)), now)
    ]


def campaign(view: View, now: float) -> list[Action]:
    """Try to lead: when nobody does, or when the leader has been silent for too long."""
    if not view.free(CONTROL, now) or view.ending is not None or now > view.accepted_at + 2 * view.timing.heartbeat_s:
        return []
    if view.campaign is not None:
        return _continue_campaign(view, view.campaign, now)
    if not view.reached(view.hold_until, now):
        return []
    match view.control:
        case Absent() if not view.group_id:
            return [CreateControl(Control(group_id=view.fresh_id, nonce=view.fresh_id))]
        case Control(leader=None) as control:
            first_choice = control.successor in (None, view.me)
            patience = view.timing.scan_s * (1 + 2 * view.patience)
            if not lead.can_act(view, control):  # the successor looks once a heartbeat, and can
                patience += 2 * view.timing.heartbeat_s
            if not first_choice and not view.reached(view.leaderless_since + patience, now):
                return []
            if view.reached(view.leaderless_since + view.timing.leader_timeout_s * (1 + view.patience), now):
                return [BreakLease(view.control_etag)]  # somebody took the lease and never wrote
            return [AcquireLease(view.fresh_id, view.control_etag)]
        case Control() as control if _suspect(view):
            if now > view.control_read_at + view.timing.scan_s:
                return [ReadControl(unless_etag=view.control_etag)]  # the leader may have written after its last beat
            return [BreakLease(view.control_etag)] if _is_named(view) else _name_ourselves(view, control, now)
    return []


def end(view: View, now: float) -> list[Action]:
    """Work, then row, then lease; then this processor is gone. Also when storage is down."""
    if view.ending is None:
        verdict = run.verdict(view)
        return [BeginEnd(verdict)] if verdict is not None else []
    if not run.at_rest(view, now):
        return []
    late = view.reached(run.rest_until(view) + FAREWELL_S, now)
    if view.etag is None or late:
        return [view.ending]
    if view.written is None or view.written.state is not State.LEFT:
        return _leave_row(view, now)
    if view.lease is not None or view.handing_over is not None:
        return lead.hand_over(view, now)
    if view.campaign is not None and view.campaign.lease_id:  # else the next one would have to break it
        return [ReleaseLease(view.campaign.lease_id)] if view.free(LEASE, now) else []
    return [view.ending] if LEADER_ROW not in view.busy else []


def _leave_row(view: View, now: float) -> list[Action]:
    """Say that we have left; first `beat` must know what stands there, and that it is still ours."""
    if not view.free(OWN_ROW, now) or view.etag is None or view.found is None or _fenced(view):
        return []
    why = view.ending.message.partition("\n")[0] if view.ending is not None else ""
    ending = f"{view.ending.code} {why}"[:ENDING_LIMIT] if view.ending is not None else ""
    return [MergeOwnRow(replace(own_row(view), beat=view.beat + 1, state=State.LEFT, ending=ending), view.etag)]


def _continue_campaign(view: View, going: Campaign, now: float) -> list[Action]:
    if going.lease is None:
        return [AcquireLease(going.asked or view.fresh_id, going.etag)]
    if now > going.lease.ends_at - LEASE_MARGIN_S:
        return [ReleaseLease(going.lease.id)]
    if view.unsettled is not None or not going.read or not isinstance(view.control, Control):
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
    return [WriteControl(control, going.etag, going.lease.id)]


def _fenced(view: View) -> bool:
    match view.found:
        case ProcessorRow() as found:
            return found.incarnation != view.incarnation or found.state is State.DEAD
        case Absent():
            return True  # dead for so long that a clean-up has forgotten us
    return False


def _control_is_old(view: View, now: float) -> bool:
    match view.control, view.leader_row:
        case None, _:
            return True
        case Absent() | Control(leader=None), _:  # whoever leads next may be slow to write the leader row
            return view.reached(view.control_read_at + view.timing.ask_every_s(view.size), now)
        case (Control() as control, LeaderRow() as row):
            if row.epoch < control.epoch or row.etag == view.control_read_for:
                return False
            return (row.epoch, row.version, row.signal) != (control.epoch, control.version, signal(control))
        case _, Absent():
            return view.reached(view.control_read_at + view.timing.look_every_s(view.size), now)
    return False


def _is_named(view: View) -> bool:
    """A named successor, or nobody can be one."""
    row = view.leader_row
    return isinstance(row, Absent) or (isinstance(row, LeaderRow) and view.me in row.successors)


def _name_ourselves(view: View, control: Control, now: float) -> list[Action]:
    """The named successors are gone too. Whoever changes the row first is the next; the others see that, and wait.

    Without this all of a large group would break each other's leases, since that does not change the blob's ETag.
    """
    seen = view.leader_row
    if not isinstance(seen, LeaderRow) or not view.free(LEADER_ROW, now):
        return []
    return [WriteLeaderRow(lead.leader_row(view, control, (view.me,)), seen.etag)]


def _suspect(view: View) -> bool:
    age = view.leader_age
    if age is None:
        return False
    successors = view.leader_row.successors if isinstance(view.leader_row, LeaderRow) else ()
    if view.me in successors:
        patience = successors.index(view.me) * view.timing.scan_s
    else:
        patience = (3 + 3 * view.patience) * view.timing.heartbeat_s
    return age.silent(leader_timeout(view) + patience)


def leader_timeout(view: View) -> float:
    """Wrong suspicions in a row make everybody more patient: the storage, or this machine, is slow now."""
    churn = view.control.churn if isinstance(view.control, Control) else 0
    return view.timing.leader_timeout_s * 2.0 ** min(churn, CHURN_MAX)

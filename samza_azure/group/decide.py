"""What a processor does next, given what it knows: the order of the questions, and nothing else.

Called each turn; the same knowledge gives the same answer. Each question has a file of its own.
"""

from dataclasses import dataclass, replace

from samza_azure.group import election, ending, history, housekeeping, membership, publish, tasks
from samza_azure.group.actions import (
    CONTROL,
    LEASE,
    REQUESTS,
    SCAN,
    Action,
    MergeOwnRow,
    ReadControl,
    ReadRequests,
    RenewLease,
    ScanMembers,
    StepDown,
    WriteControl,
)
from samza_azure.group.control import Control
from samza_azure.group.moment import Moment, reached
from samza_azure.group.timing import RENEW_EVERY_S
from samza_azure.group.view import View


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to call `decide` again if nothing is learned before."""

    actions: list[Action]
    wake_at: float


def decide(view: View, now: float) -> Decision:
    """Return all actions that are due now. Calling it has no side effects."""
    moment = Moment(now, now + view.timing.heartbeat_s)
    actions = _turn(view, moment) if view.finished is None else []
    return Decision(actions, moment.wake_at)


def _turn(view: View, now: Moment) -> list[Action]:
    last = ending.end(view, now)
    says_all = MergeOwnRow in map(type, last)  # the last heartbeat, so none may follow
    actions: list[Action] = [] if says_all else membership.beat(view, now)
    if view.life.etag is not None:
        actions += election.follow(view, now)
        if view.lease is not None:
            actions += lead(view, now)
        elif view.handing_over is None:
            actions += election.campaign(view, now)
        elif view.ending is None:
            actions += election.hand_over(view, now)
    actions += tasks.commands(view, now)
    return actions + last


def lead(view: View, now: float) -> list[Action]:
    """One turn as leader."""
    lease, control = view.lease, view.control
    if lease is None or not isinstance(control, Control):
        return []
    if reached(lease.ends_at, now):
        return [StepDown("The lease was not renewed in time.")]
    if election.is_blind(view, now):
        return [StepDown("This leader's heartbeats succeed, but for too long it could not read the others' rows.")]
    abler = election.abler(view, control, now)
    if abler is not None and (last := election.hand_over(view, now, abler)):
        return last  # until this write can be sent, it continues to lead
    actions: list[Action] = []
    if reached(lease.asked_at + RENEW_EVERY_S, now) and view.free(LEASE, now):
        actions.append(RenewLease(lease.id))
    actions += election.show_life(view, control, now)
    if view.free(SCAN, now) and (not view.has_looked or reached(view.others.scanned_at + view.scan_gap(), now)):
        actions.append(ScanMembers())
    if view.free(REQUESTS, now) and reached(view.office.requests_read_at + view.timing.requests_every_s, now):
        actions.append(ReadRequests())
    actions += membership.mark_dead(view, control, now)
    if view.free(CONTROL, now):
        if view.calls.unsettled is not None:
            actions.append(ReadControl(lease_id=lease.id))
        elif (wanted := publish.next_control(view, control, now)) != control:
            wanted = history.with_events(view, control, wanted)
            written = publish.checked(control, replace(wanted, revision=control.revision + 1, nonce=view.fresh_id))
            has_newcomers = not set(written.members) <= set(control.members)
            actions.append(WriteControl(written, view.life.control_etag, lease.id, has_newcomers))
        elif membership.tries_blob(view, now):
            actions.append(ReadControl(lease_id=lease.id))
    actions += housekeeping.keep_house(view, control, now)
    return actions

"""What a processor does next, given what it knows: the order of the questions, and nothing else.

Called each turn; the same knowledge gives the same answer. Each question has a file of its own.
"""

from dataclasses import dataclass

from samza_azure.group import election, ending, housekeeping, membership, publish, requests, tasks
from samza_azure.group.actions import Action, BeginEnd, MergeOwnRow, WriteControl
from samza_azure.group.control import Control
from samza_azure.group.moment import Moment
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
    kinds = set(map(type, last))
    says_all = MergeOwnRow in kinds  # the last heartbeat, so none may follow
    actions: list[Action] = [] if says_all else membership.beat(view, now)
    if view.own.etag is not None:
        actions += election.follow(view, now)
        if view.lease is not None:
            # A leader that begins to end publishes in its next turn, at once: in this one it would as if it stayed.
            actions += [each for each in lead(view, now) if not (BeginEnd in kinds and isinstance(each, WriteControl))]
        elif view.handing_over is None:
            actions += election.campaign(view, now)
        elif not ending.releases_lease(view, now):
            actions += election.hand_over(view, now)
    actions += tasks.commands(view, now)
    return actions + last


def lead(view: View, now: float) -> list[Action]:
    """One turn as leader."""
    lease, control = view.lease, view.control
    if lease is None or not isinstance(control, Control):
        return []
    view.is_leader(now)  # the next turn comes when that changes, so that the host is told
    if last := election.step_down(view, lease, control, now):
        return last
    return [
        *election.keep_lease(view, lease, now),
        *election.show_life(view, control, now),
        *membership.scan(view, now),
        *requests.read(view, now),
        *membership.mark_dead(view, control, now),
        *publish.write(view, lease, control, now),
        *housekeeping.keep_house(view, control, now),
    ]

"""Decommissioning: what a processor that will go hands over, in which order, and until when.

Its row says LEAVING, so the leader gives it no task and moves those that it has. It releases a task when the blob gives
it to another processor. A leader that will go moves its own tasks, then hands over the leadership, before it has
released anything. Nothing is copied to others: the log of a task is complete after each batch, and the next owner
restores from it. So a notice that is too short costs a batch that is repeated, and the time until others notice.

A processor that was told by a signal ends with that. Any other notice may be withdrawn, so it stays, without tasks,
until its machine ends. If nobody else can take a task, it keeps it: stopping early would help nobody.
"""

from collections.abc import Mapping
from itertools import islice

from samza_azure.group.control import Control
from samza_azure.group.moment import reached
from samza_azure.group.notice import ASKED, LEFT_LIMIT, Availability, Going, Left
from samza_azure.group.view import LocalTask, View
from samza_azure.logs.names import stage_of
from samza_azure.messages import Phase

#: The release of a task must be over this long before the deadline: it has to be written, and read by the next owner.
LAST_WORD_S = 2.0
#: Of a notice that is shorter than twice that, this part.
LAST_PART = 0.5
#: So far apart, in seconds, are the releases of a processor that will go: the next owner starts one query after the
#: other, and a task that has been released and waits for that stands still.
APART_S = 1.5
#: All of them begin within this part of the time until the last one, and within this part of `task.shutdown.ms`: after
#: 1.5 times that a next owner begins without the release.
SPREAD, SPREAD_OF_SHUTDOWN = 0.25, 0.5
#: A turn for the next ones comes no sooner than after this.
LEAST_APART_S = 0.1


def going_of(view: View) -> Going | None:
    """What our row says, if we will go."""
    if not view.departs:
        return None
    left = left_of(view)
    notice = view.notice
    is_over = not left and view.own.control is not None and view.leadership is None and view.handing_over is None
    return Going(
        Availability.DECOMMISSIONED if is_over else Availability.DECOMMISSIONING,
        notice.why if notice is not None else "it was asked to leave",
        notice.by_ms if notice is not None else 0,
        len(view.held),
        len(view.held) - len(left),
        dict(islice(left.items(), LEFT_LIMIT)),
        sum(max(rows, 0) for rows in view.repeated.values()),
        stays=not view.leaving and view.ending is None,
        asked=not view.leaving and view.notices.keys() == {ASKED},
    )


def left_of(view: View) -> dict[str, Left]:
    """The tasks that we had and that are not handed over, by name, and why."""
    return {task: why for task in sorted(view.held) if (why := _why_not(view, task)) is not None}


def _why_not(view: View, task: str) -> Left | None:
    """Why a task that we had is not handed over; None if it is, or has ended for good."""
    local, control = view.work.tasks.get(task), view.control
    assignment = control.tasks.get(task) if isinstance(control, Control) else None
    if assignment is None or (local is not None and local.phase is Phase.DRAINED):
        return None  # of another run, or at its end
    is_closed = local is None or local.closed
    if assignment.owner is not None and assignment.owner.processor != view.me:  # nor our own earlier life
        return None if is_closed else Left.RUNS
    if assignment.owner is None:
        return Left.NOBODY if is_closed else Left.RUNS
    return Left.NOT_TAKEN


def release_by(view: View, now: float) -> float | None:
    """Until when a release may wait for a running batch; None: there is no deadline."""
    return _before_deadline(view, now, 1.0)


def ends_container_at(view: View, now: float) -> float | None:
    """When a container that has not released its tasks is ended; None: there is no deadline."""
    return _before_deadline(view, now, 0.75)


def last_word_at(view: View, now: float) -> float | None:
    """When a processor that ends waits no longer for its tasks, since the others have to read that it has left."""
    return _before_deadline(view, now, 0.5)


def _before_deadline(view: View, now: float, part: float) -> float | None:
    by, since = view.deadline, now if view.departs_since is None else view.departs_since
    return None if by is None else by - part * min(LAST_WORD_S, LAST_PART * max(by - since, 0.0))


def in_order(view: View, tasks: Mapping[str, LocalTask]) -> list[str]:
    """The tasks in the order of their release: the largest states first, since the next owner needs longest for them,
    then those for which the most readers wait."""
    stages = view.work.plan.stages if view.work.plan is not None else ()
    readers = {stage.name: sum(other.tasks for other in stages if stage.output in other.inputs) for stage in stages}

    def rank(task: str) -> tuple[int, int]:
        report = tasks[task].report
        last = report.last_batch if report is not None else None
        return -((last.state_bytes or 0) if last is not None else 0), -readers.get(stage_of(task), 0)

    return sorted(tasks, key=rank)


def in_turn(view: View, due: Mapping[str, LocalTask], by: float, now: float) -> list[str]:
    """Of the tasks that have to be released by then, those whose turn it is, and those that were told before.

    A processor that ends releases all at once: it is killed soon. So does a life that was marked dead, whose tasks the
    next owners do not wait for.
    """
    order = in_order(view, due)
    rest = [task for task in order if due[task].releasing_since is None and not due[task].former]
    if view.ending is not None or not rest:
        return order
    since = view.departs_since if view.departs_since is not None else now
    times = (each.releasing_since for each in view.work.tasks.values() if not each.former)
    told = sorted(each for each in times if each is not None and each >= since)
    first = told[0] if told else now
    within = min(SPREAD * (by - first), SPREAD_OF_SHUTDOWN * view.settings.shutdown_s)
    apart = min(APART_S, within / (len(told) + len(rest)))
    turns = int((now - first) / apart + 1e-6) + 1 - len(told) if apart > 0 else len(rest)
    later = set(rest[max(turns, 0) :])
    if later:
        reached(now + max(apart, LEAST_APART_S), now)  # the next turn comes although nothing is learned
    return [task for task in order if task not in later]


def must_hand_over(view: View, control: Control, now: float) -> bool:
    """Whether a leader that will go must hand over the leadership now: once it has moved its own tasks or, if it stays
    until its machine ends, has tried for as long as a scan of the others and their next heartbeat take. One that stops
    the others waits for them first.
    """
    if not view.departs or control.stop is not None or not view.has_looked or view.calls.unsettled is not None:
        return False
    since = view.departs_since if view.departs_since is not None else now
    if not (view.share and view.share.mine):
        return True
    return not view.leaving and reached(since + view.timing.scan_s + view.timing.heartbeat_s, now)

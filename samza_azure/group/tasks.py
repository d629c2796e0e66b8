"""What the container has to do next, and what our row says of our tasks.

A task starts when the control blob gives it to this incarnation and its earlier owners have let go; it is released
when the blob gives it to somebody else. A task that does not move is never touched.
"""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group.actions import Action, Tell
from samza_azure.group.control import Assignment, Control, Owner, RunPhase
from samza_azure.group.moment import reached
from samza_azure.group.timing import RETRY_S
from samza_azure.group.view import LocalTask, View
from samza_azure.messages import Drain, Permit, Phase, ReleaseTask, StartTask, TaskError, TaskReport

#: The blob gives a task to us, and its log has had a later owner: versions are being used twice.
LATER_WRITER = (
    "The log of {task} has a record of a later owner than control.json knows of: an older control.json was put back, "
    "or the account was restored or failed over to an older state. Stop all processors, restore the newest "
    "control.json (Azure keeps versions if that is switched on), then start again."
)


#: A gainer waits for the loser this many times task.shutdown.ms, then relies on the log's take-over rule alone.
PATIENCE = 1.5


def commands(view: View, now: float) -> list[Action]:
    """Commands for the container, in the order in which it must hear them."""
    if not view.work.container:
        return []
    actions: list[Action] = []
    until = max(0.0, view.permit_until) if view.life.etag is not None else 0.0
    if until != view.work.permit_told:
        actions.append(Tell(Permit(until)))
    drain = wanted_drain(view)
    if drain != view.work.drain_told and not (view.work.drain_told is None and drain.step is None):
        actions.append(Tell(drain))
    mine = assigned(view)
    for task, local in view.work.tasks.items():
        gone = task not in mine or mine[task].generation != local.generation
        if (gone or _lets_go(view, now)) and not local.closed and local.releasing_since is None:
            actions.append(Tell(ReleaseTask(task)))
    if until > now and view.ending is None:
        actions += [
            Tell(_start(view, task, owner)) for task, owner in mine.items() if _may_start(view, task, owner, now)
        ]
    return actions


def assigned(view: View) -> Mapping[str, Owner]:
    """The tasks that the control blob gives to this incarnation."""
    if view.too_old_for:
        return {}
    share = view.share
    runs = share is not None and share.control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
    return share.mine if share is not None and runs else {}


def released(view: View) -> dict[str, int]:
    """What we have let go of and somebody waits for; a task that we never started is let go of at once."""
    gone: dict[str, int] = {}
    for task, generation in view.share.awaited if view.share is not None else ():
        local = view.work.tasks.get(task)
        if local is None or local.closed or local.generation > generation:
            gone[task] = max(generation, gone.get(task, 0))
    return gone


def reported(view: View, local: LocalTask) -> TaskReport | None:
    """What our row says of a task: nothing, if another incarnation of ours was given it, or if it is closed and not
    ours any more, or its run is drained: who waits for an upgrade has left that run, and nobody waits for it to go.
    A failure that will be tried again is shown, but is not final. Who stands by has failed at nothing.

    One that was final is told until somebody else has the task; then the control blob remembers it.
    """
    report = local.report
    if report is None or local.former or report.phase is Phase.RELEASED:
        return None
    if local.closed and (view.too_old_for or not _is_given(view, report) or _has_left(view)):
        return None
    if report.phase is Phase.SUPERSEDED:
        # If we only have not heard yet who has the task now, the blob names that owner, and nobody believes this.
        return replace(report, phase=Phase.FAILED, error=TaskError(LATER_WRITER.format(task=report.task), ""))
    if report.phase is Phase.RESTART or (report.phase is Phase.FAILED and _tries_on(view, report.task, local)):
        return replace(report, phase=Phase.STARTING)
    return report


def _has_left(view: View) -> bool:
    """Whether we stay although the run is drained."""
    is_drained = isinstance(view.control, Control) and view.control.phase is RunPhase.DRAINED
    return is_drained and view.settings.wait_for_upgrade


def wanted_drain(view: View) -> Drain:
    """The drain as the control blob has it."""
    control = view.control
    draining = (RunPhase.DRAINING, RunPhase.DRAINED)
    if isinstance(control, Control) and control.drain is not None and control.phase in draining:
        return Drain(control.drain.step, control.drain.uuid, control.drain.ends)
    return Drain(None)


def _lets_go(view: View, now: float) -> bool:
    """Release what nobody else was given yet. Who leaves waits a little for the leader to move its tasks first."""
    if view.ending is None:
        return False
    grace = 2 * (view.timing.scan_s + view.timing.heartbeat_s)
    return not view.leaving or reached(view.ending_since + grace, now)


def _may_start(view: View, task: str, owner: Owner, now: float) -> bool:
    control, local = view.control, view.work.tasks.get(task)
    if not isinstance(control, Control) or view.work.plan is None or view.work.plan.fingerprint != control.fingerprint:
        return False
    if local is not None:
        if not local.closed or not reached(retry_at(view, task, local), now):
            return False
        if local.generation == owner.generation:
            # Earlier owners had let go when it started first.
            return local.phase is Phase.RESTART or (local.phase is Phase.FAILED and _tries_on(view, task, local))
    return all(_let_go(view, task, earlier, now) for earlier in control.tasks[task].after)


def retry_at(view: View, task: str, local: LocalTask) -> float:
    """When a closed task may start again here: later and later after failures, those on its former owner included."""
    if local.lost:
        return local.closed_at
    match local.phase:
        case Phase.FAILED:
            _, before = view.tries(task)
            return local.closed_at + min(2.0 ** (before + local.failures - 1), 30.0) * RETRY_S * 2
        case Phase.RESTART:
            return local.closed_at + RETRY_S
    return local.closed_at


def _tries_on(view: View, task: str, local: LocalTask) -> bool:
    """A failed task is tried here again, after a while."""
    here, _ = view.tries(task)
    return local.failures < here


def _is_given(view: View, report: TaskReport) -> bool:
    """The control blob gives us the task under the generation of this report."""
    owner = view.share.mine.get(report.task) if view.share is not None else None
    return owner is not None and owner.generation == report.generation


def awaited(view: View) -> set[str]:
    """The processors that are to let go of a task before we can start it."""
    tasks = view.control.tasks if isinstance(view.control, Control) else {}
    return {
        earlier.processor
        for task in view.life.waiting_since
        if task in tasks
        for earlier in tasks[task].after
        if earlier.processor != view.me
    }


def _let_go(view: View, task: str, earlier: Owner, now: float) -> bool:
    if view.is_me(earlier):
        return True  # our own earlier life of the task is closed, `_may_start` saw to that
    waiting_since = view.life.waiting_since.get(task, now)
    if reached(waiting_since + PATIENCE * view.settings.shutdown_s, now):
        return True
    return view.seen_at(earlier.processor) >= waiting_since and has_let_go(view, task, earlier)


def has_let_go(view: View, task: str, earlier: Owner) -> bool:
    """Released, replaced, dead, gone, or standing by, as it was seen last."""
    row = view.others.members.get(earlier.processor)
    if row is None or row.incarnation != earlier.incarnation or not row.alive or row.too_old_for:
        return True
    return row.released.get(task, -1) >= earlier.generation


def _start(view: View, task: str, owner: Owner) -> StartTask:
    control = view.control
    assert isinstance(control, Control)
    assignment: Assignment = control.tasks[task]
    before = view.work.tasks.get(task)
    has_log = before is not None and before.generation == owner.generation and before.report and before.report.has_log
    return StartTask(
        task=task,
        generation=owner.generation,
        attempt=view.work.attempts + 1,
        first=assignment.first and not has_log,
        run_id=control.run_id,
        group_id=control.group_id,
        positions=control.positions,
    )

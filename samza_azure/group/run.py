"""What a processor's own tasks need: commands for the container, and what our row says of them.

A task starts when the control blob gives it to this incarnation and its earlier owners have let go; it is released
when the blob gives it to somebody else. A task that does not move is never touched.
"""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group.actions import Action, Finish, Tell
from samza_azure.group.control import Assignment, Control, Member, Owner, RunPhase
from samza_azure.group.view import Absent, LocalTask, View
from samza_azure.messages import Drain, Permit, Phase, Plan, ReleaseTask, StartTask, TaskError, TaskReport, changes

#: The blob gives a task to us, and its log has had a later owner: versions are being used twice.
LATER_WRITER = (
    "The log of {task} has a record of a later owner than control.json knows of: an older control.json was put back, "
    "or the account was restored or failed over to an older state. Stop all processors, restore the newest "
    "control.json (Azure keeps versions if that is switched on), then start again."
)
#: A gainer waits for the loser this many times task.shutdown.ms, then relies on the log's take-over rule alone.
PATIENCE = 1.5


def run(view: View, now: float) -> list[Action]:
    """Commands for the container, in the order in which it must hear them."""
    if not view.container:
        return []
    actions: list[Action] = []
    until = max(0.0, view.permit_until) if view.etag is not None else 0.0
    if until != view.permit_told:
        actions.append(Tell(Permit(until)))
    drain = wanted_drain(view)
    if drain != view.drain_told and not (view.drain_told is None and drain.step is None):
        actions.append(Tell(drain))
    mine = assigned(view)
    for task, local in view.tasks.items():
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
    share = view.share
    runs = share is not None and share.control.phase in (RunPhase.RUNNING, RunPhase.DRAINING)
    return share.mine if share is not None and runs else {}


def released(view: View) -> dict[str, int]:
    """What we have let go of and somebody waits for; a task that we never started is let go of at once."""
    gone: dict[str, int] = {}
    for task, generation in view.share.awaited if view.share is not None else ():
        local = view.tasks.get(task)
        if local is None or local.closed or local.generation > generation:
            gone[task] = max(generation, gone.get(task, 0))
    return gone


def told(view: View, local: LocalTask) -> TaskReport | None:
    """What our row says of a task: nothing, if another incarnation of ours was given it, or if it is closed and not
    ours any more. A failure that will be tried again is shown, but is not final.

    One that was final is told until somebody else has the task; then the control blob remembers it.
    """
    report = local.report
    if report is None or local.former or report.phase is Phase.RELEASED:
        return None
    if local.closed and not _is_given(view, report):
        return None
    if report.phase is Phase.SUPERSEDED:
        # If we only have not heard yet who has the task now, the blob names that owner, and nobody believes this.
        return replace(report, phase=Phase.FAILED, error=TaskError(LATER_WRITER.format(task=report.task), ""))
    if report.phase is Phase.RESTART or (report.phase is Phase.FAILED and _tries_on(view, report.task, local)):
        return replace(report, phase=Phase.STARTING)
    return report


def wanted_drain(view: View) -> Drain:
    """The drain as the control blob has it."""
    control = view.control
    draining = (RunPhase.DRAINING, RunPhase.DRAINED)
    if isinstance(control, Control) and control.drain is not None and control.phase in draining:
        return Drain(control.drain.step, control.drain.uuid, control.drain.ends)
    return Drain(None)


def wanted_run(view: View) -> str:
    """The next run that this processor asks for, if it has not been part of one yet."""
    control = view.control
    if view.active_run or not isinstance(control, Control):
        return ""
    by_hand = view.settings.run_id
    if by_hand and by_hand != control.run_id and by_hand not in control.past:
        return by_hand
    return "new" if view.settings.new_run else ""


def verdict(view: View) -> Finish | None:
    """Why this processor is to end, if it is."""
    if view.leaving:
        return Finish(0, "Left the group; its tasks were handed over.")
    control = view.control
    if isinstance(control, Absent) and view.group_id:
        return Finish(1, "The control blob is gone: the state of this application was deleted while it ran.")
    if not isinstance(control, Control):
        return None
    if control.group_id != view.group_id:
        return Finish(1, "The control blob belongs to another group: it was deleted and made anew while this one ran.")
    if control.stop is not None and view.member in control.stop.members:
        return Finish(0, f"Run {control.run_id} is stopped. The next start resumes it.")
    match control.phase:
        case RunPhase.DRAINED:
            return _after_drain(view, control)
        case RunPhase.FAILED if view.active_run == control.run_id and control.failure is not None:
            return Finish(
                1, f"Task {control.failure.task} failed: {control.failure.message}\n{control.failure.traceback}"
            )
        case RunPhase.RUNNING | RunPhase.DRAINING | RunPhase.FAILED:
            return _misfit(view, control)
    return None


def at_rest(view: View, now: float) -> bool:
    """No task of ours can append any more, or the time for letting go is over; and a leader has done its duty."""
    patience = PATIENCE * view.settings.shutdown_s
    if view.container and any(
        not local.closed and (local.releasing_since is None or not view.reached(local.releasing_since + patience, now))
        for local in view.tasks.values()
    ):
        return False
    if not view.leads or not isinstance(view.control, Control) or view.reached(rest_until(view), now):
        return True
    if view.control.stop is not None:  # who came since has nothing to commit, and orchestrators send more of them
        others = (Member(row.processor, row.incarnation) for row in view.members.values() if row.alive)
        if any(other in view.control.members for other in others if other != view.member):
            return False
    elif view.leaving and view.plan is not None and assigned(view):
        return False  # publish first, so that others start while we go
    return view.control.phase is not RunPhase.DRAINED or view.control.cleaned


def rest_until(view: View) -> float:
    """Past this nobody waits for a processor that ends. A leader may take longer: the others leave a drained or
    stopped run first, those that died are marked, and then it cleans up."""
    until = view.ending_since + PATIENCE * view.settings.shutdown_s
    control = view.control
    is_last = isinstance(control, Control) and (control.phase is RunPhase.DRAINED or control.stop is not None)
    if (view.lease or view.handing_over) and is_last:
        until += PATIENCE * view.settings.shutdown_s + 3 * view.timing.heartbeat_timeout_s
    return until


def _after_drain(view: View, control: Control) -> Finish | None:
    if view.active_run == control.run_id:
        return None if view.settings.wait_for_upgrade else Finish(0, f"Run {control.run_id} is drained.")
    if view.plan is None:
        return None
    if wanted_run(view) or not control.has_finished(view.plan.fingerprint):
        if view.settings.run_id not in control.past:
            return None
        by_hand = f"app.run.id is {view.settings.run_id!r}, a run that is drained for good."
        return Finish(2, f"{by_hand} Name another one, or take the line out.")
    if view.settings.wait_for_upgrade:
        return None
    if view.plan.fingerprint != control.fingerprint:
        return Finish(
            2,
            f"Run {control.run_id} is drained. This processor has pipeline {view.plan.fingerprint[:12]}, which an "
            "earlier run had: it may be old code that comes late. Start the present code, or this one with --new-run "
            "to go back to it.",
        )
    if not control.cleaned:
        return None  # its leader may have died over it: then whoever comes next leads, and cleans up
    return Finish(
        0,
        f"Run {control.run_id} is drained and the pipeline is the same. Nothing to do: change the pipeline, "
        "set a new app.run.id or start with --new-run to begin the next run.",
    )


def _misfit(view: View, control: Control) -> Finish | None:
    if view.plan is not None and control.fingerprint and view.plan.fingerprint != control.fingerprint:
        if view.settings.wait_for_upgrade and view.active_run != control.run_id:
            return Finish(0, f"Run {control.run_id} has begun with an upgraded pipeline.")
        return Finish(2, _other_pipeline(control, view.plan))
    by_hand = view.settings.run_id
    if by_hand and by_hand != control.run_id:
        return Finish(2, f"Run {control.run_id} is in progress, app.run.id says {by_hand}. Drain it, or unset the key.")
    return None


def _other_pipeline(control: Control, plan: Plan) -> str:
    """What differs, stage by stage and stream by stream, and what to do about it."""
    differences = changes(control.described, plan.described) if control.described and plan.described else []
    if differences:
        what = ":\n" + "\n".join(f"  {each}" for each in differences) + "\n"
    else:
        what = (
            f" ({control.fingerprint[:12]} there, {plan.fingerprint[:12]} here)"
            f"{_recounted(control.sources, plan.sources)}. "
        )
    return (
        f"Run {control.run_id} has another pipeline than this processor{what}"
        "Drain the run with the old code (samza-azure drain), then start the new: it begins the next run."
    )


def _recounted(there: Mapping[str, int], here: Mapping[str, int]) -> str:
    """Which source streams have another number of partitions, for the message: that is told apart most easily."""
    told = [
        f"{stream} has {count} partitions there, {here[stream]} here"
        for stream, count in sorted(there.items())
        if here.get(stream, count) != count
    ]
    return f": {', '.join(told)}" if told else ""


def _lets_go(view: View, now: float) -> bool:
    """Release what nobody else was given yet. Who leaves waits a little for the leader to move its tasks first."""
    if view.ending is None:
        return False
    grace = 2 * (view.timing.scan_s + view.timing.heartbeat_s)
    return not view.leaving or view.reached(view.ending_since + grace, now)


def _may_start(view: View, task: str, owner: Owner, now: float) -> bool:
    control, local = view.control, view.tasks.get(task)
    if not isinstance(control, Control) or view.plan is None or view.plan.fingerprint != control.fingerprint:
        return False
    if local is not None:
        if not local.closed or not view.reached(local.not_before, now):
            return False
        if local.generation == owner.generation:
            # Earlier owners had let go when it started first.
            return local.phase is Phase.RESTART or (local.phase is Phase.FAILED and _tries_on(view, task, local))
    return all(_let_go(view, task, earlier, now) for earlier in control.tasks[task].after)


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
        for task in view.waiting_since
        if task in tasks
        for earlier in tasks[task].after
        if earlier.processor != view.me
    }


def _let_go(view: View, task: str, earlier: Owner, now: float) -> bool:
    if view.is_me(earlier):
        return True  # our own earlier life of the task is closed, `_may_start` saw to that
    waiting_since = view.waiting_since.get(task, now)
    if view.reached(waiting_since + PATIENCE * view.settings.shutdown_s, now):
        return True
    return view.seen_at(earlier.processor) >= waiting_since and has_let_go(view, task, earlier)


def has_let_go(view: View, task: str, earlier: Owner) -> bool:
    """Released, replaced, dead, or gone, as it was seen last."""
    row = view.members.get(earlier.processor)
    if row is None or row.incarnation != earlier.incarnation or not row.alive:
        return True
    return row.released.get(task, -1) >= earlier.generation


def _start(view: View, task: str, owner: Owner) -> StartTask:
    control = view.control
    assert isinstance(control, Control)
    assignment: Assignment = control.tasks[task]
    before = view.tasks.get(task)
    has_log = before is not None and before.generation == owner.generation and before.report and before.report.has_log
    return StartTask(
        task=task,
        generation=owner.generation,
        attempt=view.attempts + 1,
        first=assignment.first and not has_log,
        run_id=control.run_id,
        group_id=control.group_id,
        positions=control.positions,
    )

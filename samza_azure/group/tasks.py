"""What the container must do next, and what our row reports about our tasks.

A task starts when the control blob gives it to this incarnation and its earlier owners have released it; it is released
when the blob gives it to another processor. A task that does not move is not touched.
"""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group import decommission, replicas
from samza_azure.group.actions import Action, Tell
from samza_azure.group.control import Assignment, Control, Owner, RunPhase
from samza_azure.group.moment import reached
from samza_azure.group.rows import ProcessorState
from samza_azure.group.timing import RETRY_S
from samza_azure.group.view import LocalTask, View
from samza_azure.messages import Drain, Kill, Permit, Phase, ReleaseTask, StartTask, TaskError, TaskReport

#: The blob gives a task to us, but its log has had a later owner: version numbers are being used twice.
LATER_WRITER = (
    "The log of {task} has a record of a later owner than control.json knows of: an older control.json was restored, "
    "or the account was restored or failed over to an older state. Stop all processors, run samza-azure recover JOB, "
    "then start again."
)
#: Nothing drains.
NO_DRAIN = Drain(None)
#: A leaving processor waits this long for a storage that accepts no heartbeat.
SILENT_S = 10.0
#: A task that has failed counts as well again after its first append or, if it has nothing to append, this long.
CALM_S = 60.0
#: A deadline that is earlier by less is the same one.
EARLIER_S = 0.5
#: A container has at least this long to obey a release.
OBEYS_S = 1.0
#: The new owner waits for the old one this many times task.shutdown.ms, then relies on the log's take-over rule alone.
PATIENCE = 1.5


def commands(view: View, now: float) -> list[Action]:
    """Commands for the container, in the order in which it must get them."""
    if not view.work.container or view.work.killed:
        return []
    actions: list[Action] = []
    until = 0.0 if view.own.etag is None or _is_cut_short(view, now) else max(0.0, view.permit_until)
    if until != view.work.permit_sent:
        actions.append(Tell(Permit(until)))
    drain = wanted_drain(view)
    if drain != view.work.drain_sent and not (view.work.drain_sent is None and drain.step is None):
        actions.append(Tell(drain))
    keeps = replicas.kept(view)
    if keeps != view.work.replicas_sent:
        actions.append(Tell(keeps))
    mine = assigned(view)
    due = {task: local for task, local in view.work.tasks.items() if not local.closed and _goes(view, task, local, now)}
    by = decommission.release_by(view, now)
    releases: list[Action] = [
        Tell(ReleaseTask(task, by))
        for task in (due if by is None else decommission.in_turn(view, due, by, now))
        if due[task].releasing_since is None or is_sooner(by, due[task].release_by)
    ]
    if (releases and view.hangs) or _ignores_releases(view, due, now):
        return [Tell(Kill())]  # it would read these commands when it wakes up, and others wait for the tasks now
    actions += releases
    if until > now and view.ending is None:
        actions += [
            Tell(_start(view, task, owner)) for task, owner in mine.items() if _may_start(view, task, owner, now)
        ]
    return actions


def _ignores_releases(view: View, due: Mapping[str, LocalTask], now: float) -> bool:
    """Whether the container has not released a task in time, although the deadline comes: its next owner may begin once
    the container has ended, but must wait while it may still append.
    """
    at = decommission.ends_container_at(view, now)
    late = [local.releasing_since for local in due.values() if local.release_by is not None]
    return at is not None and any(told is not None and reached(max(at, told + OBEYS_S), now) for told in late)


def _goes(view: View, task: str, local: LocalTask, now: float) -> bool:
    """Whether we have to release a task: another has it, or we end."""
    owner = assigned(view).get(task)
    return owner is None or owner.generation != local.generation or _releases_all(view, now)


def is_sooner(by: float | None, told: float | None) -> bool:
    """Whether a task that is being released must hear of an earlier deadline."""
    return by is not None and (told is None or by < told - EARLIER_S)


def may_still_release(view: View, now: float) -> bool:
    """Whether one of our tasks may still append, and its time for the release is not over."""
    patience = PATIENCE * view.settings.shutdown_s
    # The last write is a sign that the storage answers again, and comes too late: nothing may be appended after it.
    has_left = view.own.written is not None and view.own.written.state is ProcessorState.LEFT
    if view.leaving and (has_left or reached(silent_at(view), now)):
        return False
    if view.leaving and (last := decommission.last_word_at(view, now)) is not None and reached(last, now):
        return False
    return view.work.container and any(
        not local.closed and (local.releasing_since is None or not reached(local.releasing_since + patience, now))
        for local in view.work.tasks.values()
    )


def silent_at(view: View) -> float:
    """When a leaving processor stops waiting for a storage that accepts no heartbeat: orchestrators kill it soon.

    Its tasks may not append after that: their permit has expired, or is withdrawn. An accepted heartbeat defers it.
    """
    return min(view.permit_until, max(view.ending_since, view.own.accepted_at) + SILENT_S)


def _is_cut_short(view: View, now: float) -> bool:
    """We end without a task that was not released in time, so it must stop appending before our last write."""
    if view.ending is None or may_still_release(view, now):
        return False
    return any(not local.closed for local in view.work.tasks.values())


def assigned(view: View) -> Mapping[str, Owner]:
    """The tasks that the control blob gives to this incarnation."""
    return view.given


def released(view: View) -> dict[str, int]:
    """The tasks that we have released and another owner waits for. A task that we never started counts at once."""
    gone: dict[str, int] = {}
    for task, generation in view.share.awaited if view.share is not None else ():
        local = view.work.tasks.get(task)
        if local is None or local.closed or local.generation > generation:
            gone[task] = max(generation, gone.get(task, 0))
    return gone


def reported(view: View, local: LocalTask) -> TaskReport | None:
    """What our row reports about a task. None if it was given to our earlier incarnation, if it is closed and we
    no longer own it or stand by, or if it is closed and its run is drained: a processor that waits for an upgrade has
    left that run, and the clean-up must not wait for it. A failure that will be tried again is reported as STARTING,
    with how many tries have failed.

    A final failure is reported until another processor has the task; then the control blob records it.
    """
    report = local.report
    if report is None or local.former or report.phase is Phase.RELEASED:
        return None
    if local.closed and (view.too_old_for or not _is_given(view, report) or _stays_for_next_run(view)):
        return None
    if report.phase is Phase.SUPERSEDED:
        # If we only have not read the latest blob, it names another owner, and this report does not count.
        return replace(report, phase=Phase.FAILED, error=TaskError(LATER_WRITER.format(task=report.task), ""))
    elsewhere = view.tries(report.task)[1]
    failed = elsewhere + local.failures
    report = replace(report, failures=failed, restarts=local.restarts)
    if starts_again(view, report.task, local):
        report = replace(report, phase=Phase.STARTING)
    if (local.error is not None or elsewhere) and _may_fail_again(view, local):
        return replace(report, error=local.error, tried=_tried(view, report.task, local, failed))
    return report


def _may_fail_again(view: View, local: LocalTask) -> bool:
    """Whether nothing shows that a task which has failed, here or where it was given up, runs better since then: no
    append, no time without a failure.

    Otherwise a task that fails again and again would be reported as well between its failures.
    """
    if local.phase not in (Phase.STARTING, Phase.RUNNING, Phase.FAILED):
        return False
    is_calm = local.phase is Phase.RUNNING and reached(local.started_at + CALM_S, view.turn_at or 0.0)
    return not is_calm and (local.phase is Phase.FAILED or local.report is None or local.report.appended_at is None)


def _tried(view: View, task: str, local: LocalTask, failed: int) -> str | None:
    """How many tries of a task have failed, here and on the processor that gave it up, and of how many."""
    tries = f"{failed} of {view.settings.restart_limit + 1} tries have failed"
    if not starts_again(view, task, local):
        return tries if local.phase is not Phase.FAILED else None
    return f"{tries}; the next begins after {retry_at(view, task, local) - local.closed_at:g} s"


def _stays_for_next_run(view: View) -> bool:
    """Whether this processor stays for the next run after a drain."""
    is_drained = isinstance(view.control, Control) and view.control.phase is RunPhase.DRAINED
    return is_drained and view.settings.wait_for_upgrade


def wanted_drain(view: View) -> Drain:
    """The drain command that the control blob asks for."""
    control = view.control
    draining = (RunPhase.DRAINING, RunPhase.DRAINED)
    if isinstance(control, Control) and control.drain is not None and control.phase in draining:
        return Drain(control.drain.step, control.drain.uuid, control.drain.ends)
    return NO_DRAIN


def _releases_all(view: View, now: float) -> bool:
    """Whether to release all tasks. A leaving processor first gives the leader a little time to move them."""
    if view.ending is None:
        return False
    until = view.ending_since + 2 * (view.timing.scan_s + view.timing.heartbeat_s)
    by = decommission.release_by(view, now)
    return not view.leaving or reached(until if by is None else min(until, by), now)


def _may_start(view: View, task: str, owner: Owner, now: float) -> bool:
    control, local = view.control, view.work.tasks.get(task)
    if not isinstance(control, Control) or view.work.plan is None or view.work.plan.fingerprint != control.fingerprint:
        return False
    if local is not None:
        if not local.closed or not reached(retry_at(view, task, local), now):
            return False
        if local.generation == owner.generation:
            # Earlier owners had released it before its first start.
            return starts_again(view, task, local)
    return all(_is_released_by(view, task, earlier, now) for earlier in control.tasks[task].after)


def retry_at(view: View, task: str, local: LocalTask) -> float:
    """When a closed task may start again here.

    After a failure that is 0.5 s, twice as long after each further one, also of its former owner, and at most 15 s.
    """
    if local.lost:
        return local.closed_at
    match local.phase:
        case Phase.FAILED:
            _, before = view.tries(task)
            return local.closed_at + min(2.0 ** (before + local.failures - 1), 30.0) * RETRY_S * 2
        case Phase.RESTART:
            return local.closed_at + RETRY_S
    return local.closed_at


def starts_again(view: View, task: str, local: LocalTask) -> bool:
    """Whether a task that ended here is to run again under the same generation; one that failed does after a while."""
    return local.phase is Phase.RESTART or (local.phase is Phase.FAILED and local.failures < view.tries(task)[0])


def _is_given(view: View, report: TaskReport) -> bool:
    """Whether the control blob gives us the task under the generation of this report."""
    owner = view.share.mine.get(report.task) if view.share is not None else None
    return owner is not None and owner.generation == report.generation


def awaited(view: View) -> dict[str, float]:
    """The processors that must release a task before we can start it, and since when we have waited for the last one.

    A read that was sent before that does not count.
    """
    tasks = view.control.tasks if isinstance(view.control, Control) else {}
    since: dict[str, float] = {}
    for task, waits in view.own.waiting_since.items():
        for earlier in tasks[task].after if task in tasks else ():
            if earlier.processor != view.me:
                since[earlier.processor] = max(waits, since.get(earlier.processor, waits))
    return since


def _is_released_by(view: View, task: str, earlier: Owner, now: float) -> bool:
    if view.is_me(earlier):
        return True  # `_may_start` has checked that our own earlier attempt is closed
    waiting_since = view.own.waiting_since.get(task, now)
    if reached(waiting_since + PATIENCE * view.settings.shutdown_s, now):
        return True
    return view.seen_at(earlier.processor) >= waiting_since and has_released(view, task, earlier)


def has_released(view: View, task: str, earlier: Owner) -> bool:
    """Whether the last seen row shows that the owner has released the task, or is replaced, dead or standing by."""
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

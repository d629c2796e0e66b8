"""When a task starts, stops and is tried again, and what is said of it."""

from collections.abc import Mapping
from dataclasses import replace

from samza_azure.group import (
    tasks,
)
from samza_azure.group.actions import (
    Tell,
)
from samza_azure.group.control import (
    Control,
    Owner,
)
from samza_azure.group.view import (
    LocalTask,
    View,
)
from samza_azure.messages import (
    Drain,
    Permit,
    Phase,
    ReleaseTask,
    StartTask,
    TaskError,
    TaskReport,
)

from .drawn import CLOSED, LIVES, NOW, SHUTDOWN_S, alive, drawn_draining, same


def assigned(view: View) -> dict[str, Owner]:
    control = view.control
    if view.too_old_for or not isinstance(control, Control) or not drawn_draining(control):
        return {}
    me = ("p0", LIVES[0])
    owners = {task: each.owner for task, each in control.tasks.items() if each.owner is not None}
    return {task: owner for task, owner in owners.items() if (owner.processor, owner.incarnation) == me}


def closed(local: LocalTask) -> bool:
    return local.report is not None and local.report.phase in CLOSED


def _tries_on(view: View, task: str, local: LocalTask) -> bool:
    return local.failures < view.tries(task)[0]


def _retry_at(view: View, task: str, local: LocalTask) -> float:
    phase = local.report.phase if local.report is not None else Phase.STARTING
    if local.lost or phase not in (Phase.FAILED, Phase.RESTART):
        return local.closed_at
    if phase is Phase.RESTART:
        return local.closed_at + 0.25
    return local.closed_at + min(2.0 ** (view.tries(task)[1] + local.failures - 1), 30.0) * 0.5


def has_released(view: View, task: str, earlier: Owner) -> bool:
    row = view.others.members.get(earlier.processor)
    gone = row is None or row.incarnation != earlier.incarnation or not alive(row) or row.too_old_for > 0
    return gone or (row is not None and row.released.get(task, 0) >= earlier.generation)


def _may_start(view: View, task: str, owner: Owner) -> bool:
    control, local = view.control, view.work.tasks.get(task)
    if not isinstance(control, Control) or view.work.plan is None or view.work.plan.fingerprint != control.fingerprint:
        return False
    if local is not None:
        if not closed(local) or _retry_at(view, task, local) > NOW:
            return False
        if local.generation == owner.generation:
            phase = local.report.phase if local.report is not None else Phase.STARTING
            return phase is Phase.RESTART or (phase is Phase.FAILED and _tries_on(view, task, local))
    for earlier in control.tasks[task].after:
        if (earlier.processor, earlier.incarnation) == ("p0", LIVES[0]):
            continue
        since = view.life.waiting_since.get(task, NOW)
        seen = max(view.others.scanned_at, view.others.read_at.get(earlier.processor, -1e9))
        if since + 1.5 * SHUTDOWN_S > NOW and not (seen >= since and has_released(view, task, earlier)):
            return False
    return True


def _reported(view: View, task: str, local: LocalTask) -> TaskReport | None:
    report, control = local.report, view.control
    if report is None or local.former or report.phase is Phase.RELEASED:
        return None
    owner = control.tasks[task].owner if isinstance(control, Control) else None
    given = owner is not None and (owner.processor, owner.incarnation) == ("p0", LIVES[0])
    given = given and owner is not None and owner.generation == report.generation
    stays = isinstance(control, Control) and control.phase == "DRAINED" and view.settings.wait_for_upgrade
    if closed(local) and (view.too_old_for or not given or stays):
        return None
    if report.phase is Phase.SUPERSEDED:
        return replace(report, phase=Phase.FAILED, error=TaskError(tasks.LATER_WRITER.format(task=task), ""))
    again = report.phase is Phase.RESTART or (report.phase is Phase.FAILED and _tries_on(view, task, local))
    if not again:
        return report
    tried = None
    if report.phase is Phase.FAILED:
        failures, pause = view.tries(task)[1] + local.failures, _retry_at(view, task, local) - local.closed_at
        most = view.settings.restart_limit + 1
        tried = f"{failures} of {most} tries have failed; the next begins after {pause:g} s"
    return replace(report, phase=Phase.STARTING, tried=tried)


def check_tasks(view: View) -> None:
    control = view.control
    mine = assigned(view)
    same("what is assigned", dict(tasks.assigned(view)), mine)
    same(
        "what is reported",
        {task: tasks.reported(view, each) for task, each in view.work.tasks.items()},
        {task: _reported(view, task, each) for task, each in view.work.tasks.items()},
    )
    for task, each in view.work.tasks.items():
        same("when it is tried again", tasks.retry_at(view, task, each), _retry_at(view, task, each))
    gone: dict[str, int] = {}
    for task, given in control.tasks.items() if isinstance(control, Control) else ():
        for earlier in given.after:
            local = view.work.tasks.get(task)
            ours = (earlier.processor, earlier.incarnation) == ("p0", LIVES[0])
            if ours and (local is None or closed(local) or local.generation > earlier.generation):
                gone[task] = max(earlier.generation, gone.get(task, 0))
    same("what is released", tasks.released(view), gone)
    told = Drain(None)
    if isinstance(control, Control) and control.drain is not None and control.phase in ("DRAINING", "DRAINED"):
        told = Drain(control.drain.step, control.drain.uuid, control.drain.ends)
    same("the drain", tasks.wanted_drain(view), told)
    if isinstance(control, Control):
        waits = {
            earlier.processor
            for task in view.life.waiting_since
            for earlier in control.tasks[task].after
            if earlier.processor != "p0"
        }
        found = tasks.awaited(view)
        same("who is awaited", set(found), waits)
        for who, since in found.items():
            began = [
                began
                for task, began in view.life.waiting_since.items()
                if who in {each.processor for each in control.tasks[task].after}
            ]
            same("since when one waits", since, max(began))
    _check_commands(view, mine, told)


def silent_at(view: View) -> float:
    """Ten seconds after the last accepted heartbeat, or the order to leave; sooner if nothing may be appended."""
    accepted, denied = view.life.accepted_at, view.calls.denied_at
    permit = accepted + 6.0 if denied <= accepted else min(accepted + 6.0, denied)
    return min(permit, max(view.ending_since, accepted) + 10.0)


def gives_up_tasks(view: View) -> bool:
    """Whether a leaving processor waits for no task: the storage is silent, or has its last row."""
    has_left = view.life.written is not None and view.life.written.state == "LEFT"
    return view.leaving and (has_left or silent_at(view) <= NOW)


def _check_commands(view: View, mine: Mapping[str, Owner], drain_: Drain) -> None:
    said = [each.command for each in tasks.commands(view, NOW) if isinstance(each, Tell)]
    if not view.work.container:
        same("commands without a container", said, [])
        return
    until = max(0.0, view.permit_until) if view.life.etag is not None else 0.0
    late = [local.releasing_since for local in view.work.tasks.values() if not closed(local)]
    patience = 1.5 * view.settings.shutdown_s
    over = all(since is not None and since + patience <= NOW for since in late)
    if view.ending is not None and late and (over or gives_up_tasks(view)):
        until = 0.0
    permits = [Permit(until)] if until != view.work.permit_sent else []
    same("the permit", [each for each in said if isinstance(each, Permit)], permits)
    news = drain_ != view.work.drain_sent and not (view.work.drain_sent is None and drain_.step is None)
    same("the drain that is told", [each for each in said if isinstance(each, Drain)], [drain_] if news else [])
    ends = view.ending is not None
    goes = ends and (not view.leaving or view.ending_since + 6.0 <= NOW)
    released = [
        ReleaseTask(task)
        for task, local in view.work.tasks.items()
        if not closed(local) and local.releasing_since is None
        if goes or task not in mine or mine[task].generation != local.generation
    ]
    same("what is to be released", [each for each in said if isinstance(each, ReleaseTask)], released)
    starts = [task for task, owner in mine.items() if until > NOW and not ends and _may_start(view, task, owner)]
    found = [each for each in said if isinstance(each, StartTask)]
    same("what starts", [each.task for each in found], starts)
    control = view.control
    for each in found:
        assert isinstance(control, Control)
        before, owner = view.work.tasks.get(each.task), mine[each.task]
        known = before.report if before is not None and before.generation == owner.generation else None
        has_log = known is not None and (known.phase in ("RUNNING", "DRAINED") or known.batch >= 0)
        first = control.tasks[each.task].first and not has_log
        said_of = (each.generation, each.attempt, each.first, each.run_id, each.positions)
        wanted = (owner.generation, view.work.attempts + 1, first, control.run_id, control.positions)
        same(f"how {each.task} starts", said_of, wanted)
    order = [type(each).__name__ for each in said]
    same("the order of commands", order, sorted(order, key=["Permit", "Drain", "ReleaseTask", "StartTask"].index))

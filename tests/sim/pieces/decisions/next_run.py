"""When the next run begins, and with what."""

from dataclasses import replace

from samza_azure.group import (
    next_run,
)
from samza_azure.group.control import (
    Assignment,
    Control,
    RunPhase,
)
from samza_azure.group.view import (
    View,
)

from .drawn import TASKS, present, same


def wanted_run(view: View) -> str:
    control, by_hand = view.control, view.settings.run_id
    if view.work.active_run or not isinstance(control, Control):
        return ""
    if by_hand and by_hand != control.run_id and by_hand not in control.past:
        return by_hand
    return "new" if view.settings.new_run else ""


def fits(control: Control, fingerprint: str, new_run: str) -> bool:
    if control.phase == "NONE":
        return fingerprint != ""
    if control.phase == "DRAINED":
        return fingerprint != "" and (new_run != "" or fingerprint not in (control.fingerprint, *control.finished))
    return fingerprint == control.fingerprint


def check_runs(view: View, control: Control) -> None:
    same("the run that is asked for", next_run.wanted_run(view), wanted_run(view))
    for fingerprint in ("f", "g", ""):
        for wish in ("", "new"):
            found = next_run.fits(control, fingerprint, wish)
            same(f"whether {fingerprint!r} fits", found, fits(control, fingerprint, wish))
    plan, took_part = view.work.plan, control.phase == "DRAINED" and view.work.active_run == control.run_id
    able = plan is not None and not took_part and not view.too_old_for
    able = able and plan is not None and fits(control, plan.fingerprint, wanted_run(view))
    same("whether we can act", next_run.can_act(view, control), able)
    after = next_run.begin_run(view, control)
    if plan is None or view.ending is not None:
        same("a run without a plan", after, control)
        return
    if control.phase == "FAILED":
        resumed = view.work.active_run != control.run_id and plan.fingerprint == control.fingerprint
        phase = RunPhase.DRAINING if control.drain is not None else RunPhase.RUNNING
        same("a run that failed", after, replace(control, phase=phase, failure=None) if resumed else control)
        return
    wishes = [row.new_run for row in present(view).values() if row.new_run and row.fingerprint == plan.fingerprint]
    fresh = plan.fingerprint not in (control.fingerprint, *control.finished) or bool(wishes)
    begins = control.phase == "NONE" or (
        control.phase == "DRAINED" and view.work.active_run != control.run_id and fresh
    )
    named = [wish for wish in wishes if wish != "new"] or [view.settings.run_id]
    if not begins or named[0] in control.past:
        same("no run begins", after, control)
        return
    said = (after.run_id, after.phase, after.fingerprint, after.sources, after.readers, after.members, after.drain)
    wanted = (named[0] or "77-01234567", "RUNNING", plan.fingerprint, plan.sources, {"clean": ("flights",)}, (), None)
    same("a run that begins", said, wanted)
    same("its tasks", dict(after.tasks), {task: Assignment() for task in TASKS})
    same("what failed before", (after.failure, dict(after.given_up)), (None, {}))
    same("where it begins", (after.positions, after.past), (control.positions, control.past))
    drains, earlier = [each.uuid for each in after.drains], [each.uuid for each in control.drains]
    same("what was drained", drains, [*earlier, *([control.drain.uuid] if control.drain is not None else [])])

"""Which run is in progress, who can lead it, and who begins the next one.

A run begins with the first plan. After a drain the next one begins with a pipeline that has not run yet, or on request.
A failed run is resumed.
"""

from dataclasses import replace

from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.group.notification import remembered
from samza_azure.group.view import View
from samza_azure.names import ANY_RUN


def wanted_run(view: View) -> str:
    """The next run that this processor asks for, if it has not been part of one yet."""
    control = view.control
    if view.work.active_run or not isinstance(control, Control):
        return ""
    by_hand = view.settings.run_id
    if by_hand and by_hand != control.run_id and by_hand not in control.past:
        return by_hand
    return ANY_RUN if view.settings.new_run else ""


def begin_run(view: View, control: Control) -> Control:
    """Begin the first run, begin the next one after a drain, or resume a failed one."""
    plan = view.work.plan
    if plan is None or view.ending is not None:
        return control
    if control.phase is RunPhase.FAILED:
        if view.work.active_run == control.run_id or plan.fingerprint != control.fingerprint:
            return control
        return replace(control, phase=RunPhase.DRAINING if control.drain else RunPhase.RUNNING, failure=None)
    wishes = [row.new_run for row in view.present.values() if row.new_run and row.fingerprint == plan.fingerprint]
    again = not control.has_finished(plan.fingerprint) or bool(wishes)
    fresh = control.phase is RunPhase.DRAINED and view.work.active_run != control.run_id and again
    if control.phase is not RunPhase.NONE and not fresh:
        return control
    by_hand = next((wish for wish in wishes if wish != ANY_RUN), view.settings.run_id)
    if by_hand in control.past:
        return control  # a drained run never comes back
    return replace(
        control,
        run_id=by_hand or f"{view.wall_ms}-{view.fresh_id[:8]}",
        phase=RunPhase.RUNNING,
        fingerprint=plan.fingerprint,
        sources=plan.sources,
        readers=plan.readers(),
        described=plan.described,
        members=(),
        tasks={task: Assignment() for task in plan.tasks()},
        drain=None,
        drains=remembered(control.drains, control.drain),
        failure=None,
        given_up={},
    )


def can_act(view: View, control: Control) -> bool:
    """Whether we can lead this run, or begin the next."""
    took_part = control.phase is RunPhase.DRAINED and view.work.active_run == control.run_id
    if view.work.plan is None or took_part or view.too_old_for:
        return False
    return fits(control, view.work.plan.fingerprint, wanted_run(view))


def fits(control: Control, fingerprint: str, new_run: str) -> bool:
    """Whether a processor with this pipeline can lead the run or begin the next. Empty: none is analysed yet."""
    match control.phase:
        case RunPhase.NONE:
            return bool(fingerprint)
        case RunPhase.DRAINED:
            return bool(fingerprint) and (bool(new_run) or not control.has_finished(fingerprint))
    return fingerprint == control.fingerprint

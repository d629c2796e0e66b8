"""Which members are dead, which may have tasks, and when a barrier ends."""

from dataclasses import replace

from samza_azure.group import (
    membership,
    publish,
)
from samza_azure.group.actions import (
    CONTROL,
    MarkDead,
)
from samza_azure.group.control import (
    Barrier,
    BarrierState,
    Control,
    Member,
)
from samza_azure.group.view import (
    View,
)

from .drawn import LIVES, NOW, alive, present, same
from .next_run import wanted_run
from .tasks import closed


def candidates(view: View, control: Control) -> list[str]:
    return [
        name
        for name, row in present(view).items()
        if row.state != "LEAVING" and row.fingerprint == control.fingerprint
        if row.adopted > 0 or control.version == 0 or Member(name, row.incarnation) in control.members
    ]


def check_members(view: View, control: Control) -> None:
    able = candidates(view, control)
    same("the candidates", sorted(membership.candidates(view, control)), sorted(able))
    own = membership.own_row(view)
    known = view.control
    adopted = known.version if isinstance(known, Control) else 0
    leaves = view.leaving or view.too_old_for > 0
    state = "LEAVING" if leaves else "ACTIVE" if adopted else "UNASSIGNED"
    same("our row", (own.processor, own.incarnation, own.adopted, own.state), ("p0", LIVES[0], adopted, state))
    open_ones = [task for task, local in view.work.tasks.items() if not closed(local)]
    stands_by = view.too_old_for if not open_ones else 0
    plan = view.work.plan.fingerprint if view.work.plan is not None else ""
    same(
        "what our row says",
        (own.too_old_for, own.fingerprint, own.new_run, own.boot, own.beat),
        (stands_by, plan, wanted_run(view), "boot", view.life.beat),
    )
    same("how our row says that we gave up", own.ending, f"1 {view.gave_up}" if view.gave_up else "")
    blob = view.calls.failing.get(CONTROL)
    cut_off = view.leadership is None and isinstance(known, Control) and blob is not None and blob.times >= 5
    same("whether we are cut off", own.cut_off, cut_off)
    if view.leadership is None:
        return
    late = max(view.leadership.barrier_since, view.leadership.since) + 30.0 <= NOW
    same("an overdue barrier", membership.is_overdue(view, NOW), late)
    overdue = control.barrier.state == "TIMEOUT" and late
    marks = []
    for name, row in view.others.members.items():
        age = view.others.ages[name]
        silent = age.seconds >= 8.0 and age.reads >= 3
        stuck = overdue and name in able and row.adopted < control.version
        since = view.leadership.cut_off.get(row.incarnation)
        cut_off = row.cut_off and since is not None and view.life.control_read_at - since >= 8.0 + 1.25 * 4.0
        if name != "p0" and alive(row) and (silent or stuck or cut_off) and view.life.accepted_at + 4.0 >= NOW:
            marks.append(MarkDead(name, row.etag, 3))
    same("who is marked dead", membership.mark_dead(view, control, NOW), marks)
    for version in (control.version, 4, 6):
        now = replace(control, version=version)
        _check_barrier(view, now, candidates(view, now), late=late)


def _check_barrier(view: View, control: Control, able: list[str], *, late: bool) -> None:
    after = publish.with_barrier(view, control, NOW)
    same("a barrier", after, replace(control, barrier=next_barrier(view, control, able, late=late)))


def next_barrier(view: View, control: Control, able: list[str], *, late: bool) -> Barrier:
    """END when all processors that can run tasks have adopted the version, TIMEOUT when that takes too long."""
    rows, known = present(view), view.control
    if control.barrier.state == "END":
        return control.barrier
    if all(rows[name].adopted >= control.version for name in able):
        return Barrier(control.version, BarrierState.END)
    published = isinstance(known, Control) and known.version == control.version
    times_out = control.barrier.state == "START" and published and late
    return Barrier(control.version, BarrierState.TIMEOUT) if times_out else control.barrier

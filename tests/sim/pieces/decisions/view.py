"""What is known of the others."""

from dataclasses import replace

from samza_azure.group.actions import (
    CONTROL,
    HOUSEKEEPING,
    LEADER_ROW,
    LEASE,
    OWN_ROW,
    SCAN,
)
from samza_azure.group.answers import Absent
from samza_azure.group.control import (
    Control,
)
from samza_azure.group.rows import LeaderRow
from samza_azure.group.view import (
    View,
)

from .drawn import LIVES, NAMES, NOW, TASKS, present, same


def check_view(view: View) -> None:
    rows = present(view)
    same("who is present", dict(view.present), rows)
    control = view.control
    stop_at = view.life.accepted_at + 6.0
    denied = view.calls.denied_at
    same("the self-stop", view.permit_until, min(stop_at, denied) if denied > view.life.accepted_at else stop_at)
    every = view.settings.restart_limit + 1
    for task in TASKS:
        wanted = (every, 0)
        if isinstance(control, Control):
            given = control.given_up.get(task)
            if given is not None and given.owner.processor != "p0":
                wanted = (max(every - (every + 1) // 2, 1), (every + 1) // 2)
            elif any(member.processor != "p0" for member in control.members):
                wanted = ((every + 1) // 2, 0)
        same(f"the tries of {task}", view.tries(task), wanted)
    if isinstance(control, Control) and view.share is not None:
        me = ("p0", LIVES[0])
        mine = {
            task: each.owner
            for task, each in control.tasks.items()
            if each.owner is not None and (each.owner.processor, each.owner.incarnation) == me
        }
        same("our tasks", dict(view.share.mine), mine)
        awaited = [
            (task, each.generation)
            for task, one in control.tasks.items()
            for each in one.after
            if (each.processor, each.incarnation) == me
        ]
        same("what others wait for", list(view.share.awaited), awaited)
    life = view.life
    for name in ("0-life", LIVES[1]):
        view.life = replace(life, incarnation=name)
        if isinstance(control, Control) and view.share is not None:
            owned = {task: one.owner for task, one in control.tasks.items() if one.owner is not None}
            wanted = {task: each for task, each in owned.items() if (each.processor, each.incarnation) == ("p0", name)}
            same("the tasks of another life", dict(view.share.mine), wanted)
    view.life = life
    row, leads = view.others.leader_row, view.leadership is not None
    watching = leads or isinstance(row, Absent) or (isinstance(row, LeaderRow) and "p0" in row.successors)
    same("whether we watch", view.watching(), watching)
    size = max(len(view.others.members), len(control.members) if isinstance(control, Control) else 0)
    same("the size of the group", view.size, size)
    due = view.others.leader_age is None or view.others.leader_age.reads > 0 or not view.others.leader_age.etag
    same("how often the leader row is read", view.read_interval(), (1.0 if due else 2.0) if watching else 2.0)
    for name in (SCAN, OWN_ROW, LEASE, CONTROL):
        failing = view.calls.failing.get(name)
        free = name not in view.calls.busy and (failing is None or failing.until <= NOW)
        same(f"whether {name} is free", view.free(name, NOW), free)
        same(f"whether {name} can be written", view.writable(name, NOW), free and name not in view.calls.doubted)
        same("calls that failed", view.failing_calls(name), failing.times if failing is not None else 0)
    spared = {
        OWN_ROW: (1.5, 2.0),
        SCAN: (1.0, 4.0),
        CONTROL: (0.25, 4.0),
        LEASE: (0.25, 5.0),
        HOUSEKEEPING: (1.0, 300.0),
        "member p1": (1.0, 4.0),
        LEADER_ROW: (1.5, 1.5) if leads else (view.read_interval(), 4 * view.read_interval()),
    }
    for name, (first, most) in spared.items():
        waits = view.back_off(name)
        same(f"how {name} is spared", (waits.first_s, waits.most_s), (first, most))
    for name in NAMES:
        seen = max(view.others.scanned_at, view.others.read_at.get(name, -1e9))
        same(f"when {name} was seen", view.seen_at(name), seen)

"""Whether a processor is to end, how, and what it waits for first."""

from dataclasses import replace
from itertools import product

from samza_azure.errors import Verdict
from samza_azure.group import (
    ending,
    membership,
)
from samza_azure.group.actions import (
    CONTROL,
    LEADER_ROW,
    LEASE,
    Finish,
    ReleaseLease,
)
from samza_azure.group.answers import Absent
from samza_azure.group.control import (
    Control,
    Member,
)
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import (
    Campaign,
    Candidacy,
    Leadership,
    Lease,
    View,
    Work,
)

from .drawn import LIVES, NOW, SHUTDOWN_S, Drawn, alive, same
from .next_run import wanted_run
from .tasks import assigned, closed, gives_up_tasks, silent_at


def check_ending(drawn: Drawn, view: View) -> None:
    """As it is, and once it ends."""
    _check_ending(view)
    if view.ending is None:
        message = drawn.dice.choice([ending.HANDED_OVER, "bye"])
        view.ending, view.ending_since = Finish(Verdict.DONE, message), drawn.before()
        view.leaving = message == ending.HANDED_OVER
        _check_ending(view)
        view.ending, view.leaving = None, False


def _check_ending(view: View) -> None:
    found = ending.verdict(view)
    same("the verdict", found.code if found is not None else None, _verdict(view))
    _check_message(view, found)
    control, patience = view.control, 1.5 * SHUTDOWN_S
    last = isinstance(control, Control) and (control.phase == "DRAINED" or control.stop is not None)
    until = (
        view.ending_since
        + patience
        + ((patience + 24.0) if view.leadership is not None and last and not view.leaving else 0.0)
    )
    if view.leaving:
        until = min(until, max(view.ending_since, silent_at(view)))
    same("how long it waits", ending.rest_until(view), until)
    if view.ending is None:
        return
    same("what it waits for", ending.waits_for(view, NOW), _waits_for(view, until))
    check_farewell(view)
    for leads, hands_over, is_candidate in product((False, True), repeat=3):
        _check_last(view, leads=leads, hands_over=hands_over, is_candidate=is_candidate)


def _check_message(view: View, found: Finish | None) -> None:
    """The message to a refused processor names what differs."""
    control, plan = view.control, view.work.plan
    if (
        found is None
        or not isinstance(control, Control)
        or plan is None
        or "another pipeline than" not in found.message
    ):
        return
    told = {
        "stages": "stage clean is new",
        "flights": f"flights has 3 partitions there, {plan.sources['flights']} here",
    }
    described = bool(control.described and plan.described)
    differs = {"stages": described, "flights": control.sources not in ({}, plan.sources)}
    for what, text in told.items():
        says = differs[what] and (what == "stages" or not described)
        same(f"whether a message names {what}", text in found.message, says)


def check_farewell(view: View) -> None:
    """The last message of a processor that was asked to leave says what became of its row and of its tasks."""
    if view.ending is None:
        return
    said = ending._as_it_came(view, view.ending)  # the words themselves
    left = view.life.written is not None and view.life.written.state == "LEFT"
    own = sorted(name for name, local in view.work.tasks.items() if view.work.container and not local.former)
    open_ones = [name for name in own if not closed(view.work.tasks[name])]
    if view.ending.message != ending.HANDED_OVER or view.life.etag is None or (left and not open_ones):
        same("how it came", said, view.ending)
        return
    doubts, get = "could not write this to the storage" in said.message, f"others get {', '.join(own)} when"
    same("whether it says that the others do not know", doubts, not left)
    same("whether it says what the others get", get in said.message, bool(own) and not left)
    waits = f"{', '.join(open_ones)} did not end in time"
    same("whether it says what is in doubt", (waits if open_ones else "did not end") in said.message, bool(open_ones))
    same("how often it says that it left", said.message.count("Left the group"), 1)
    same("how it ended", replace(said, message=""), replace(view.ending, message=""))


def _check_last(view: View, *, leads: bool, hands_over: bool, is_candidate: bool) -> None:
    """When its work and its row are done, the lease that it has, or may have, is released last."""
    lease = Lease("lease", NOW)
    over = replace(
        view,
        life=replace(
            view.life, etag="e", written=replace(membership.own_row(view), state=ProcessorState.LEFT), control=None
        ),
        work=Work(),
        leadership=Leadership(lease, NOW, NOW) if leads else None,
        handing_over=lease if hands_over else None,
        candidacy=Candidacy(Campaign("e", asked="a lease") if is_candidate else None),
        ending_since=NOW,
    )
    wanted = ending.Wait.ANSWER if LEADER_ROW in view.calls.busy else None
    if is_candidate:
        wanted = ending.Wait.CANDIDACY
    if leads or hands_over:
        wanted = ending.Wait.LEASE
    same("what it waits for last", ending.waits_for(over, NOW), wanted)
    if wanted is ending.Wait.CANDIDACY:
        released = [ReleaseLease("a lease")] if view.free(LEASE, NOW) else []
        same("what it releases last", ending.end(over, NOW), released)


def _verdict(view: View) -> int | None:
    control, plan, by_hand = view.control, view.work.plan, view.settings.run_id
    if view.leaving:
        return 1 if view.gave_up else 0
    for denial in view.calls.denied.values():
        patience = 120.0 if view.calls.let_in else 600.0 if denial.may_pass else 0.0
        if denial.last - denial.since >= patience:
            return 5 if view.calls.let_in else 3 if denial.may_pass else 2
    if view.work.rejected or (view.leadership is not None and view.leadership.in_vain):
        return 2
    if view.too_old_for:
        return None
    if view.life.older_copy or (isinstance(control, Absent) and view.group_id):
        return 1
    if not isinstance(control, Control):
        return None
    if control.group_id != view.group_id:
        return 1
    if control.stop is not None and Member("p0", LIVES[0]) in control.stop.members:
        return 0
    took_part, waits = view.work.active_run == control.run_id, view.settings.wait_for_upgrade
    waits = waits or (view.settings.restarted and view.work.active_run == "")
    if control.phase == "NONE":
        return None
    if control.phase == "FAILED" and took_part and control.failure is not None:
        return 1
    is_other = plan is not None and control.fingerprint not in ("", plan.fingerprint)
    is_other = is_other or by_hand not in ("", control.run_id)
    if control.phase == "DRAINED":
        if took_part:
            return None if waits else 0
        if plan is None:
            return None
        if wanted_run(view) or plan.fingerprint not in (control.fingerprint, *control.finished):
            return 2 if by_hand in control.past else None
        if view.work.active_run and is_other:
            return 0
        if waits:
            return None
        if plan.fingerprint != control.fingerprint:
            return 2
        return 0 if all(run in control.kept for run in control.uncleaned) else None
    if not is_other:
        return None
    return 0 if view.work.active_run and not took_part else 2


def _waits_for(view: View, until: float) -> ending.Wait | None:
    control, patience = view.control, 1.5 * SHUTDOWN_S
    for local in view.work.tasks.values():
        releases = local.releasing_since
        if gives_up_tasks(view):
            break
        if view.work.container and not closed(local) and (releases is None or releases + patience > NOW):
            return ending.Wait.OWN_TASKS
    if view.leadership is not None and isinstance(control, Control) and until > NOW:
        if control.stop is not None:
            others = [Member(row.processor, row.incarnation) for row in view.others.members.values() if alive(row)]
            if [other for other in others if other in control.members and other != Member("p0", LIVES[0])]:
                return ending.Wait.OTHERS
        elif view.leaving and view.work.plan is not None and assigned(view):
            return ending.Wait.NEW_OWNERS
        if control.phase == "DRAINED" and not all(run in control.kept for run in control.uncleaned):
            return ending.Wait.CLEAN_UP
    if view.life.etag is None or until + 5.0 <= NOW:
        return None
    if view.life.written is None or view.life.written.state != "LEFT":
        return ending.Wait.OWN_ROW
    if view.leadership is not None:
        return ending.Wait.LEASE
    campaigns = view.candidacy.campaign is not None or (isinstance(control, Control) and control.leader is None)
    return ending.Wait.ANSWER if LEADER_ROW in view.calls.busy or (campaigns and CONTROL in view.calls.busy) else None

"""What is deleted, and when."""

from dataclasses import replace

from samza_azure.group import (
    housekeeping,
    requests,
)
from samza_azure.group.actions import (
    HOUSEKEEPING,
    AnswerRequest,
    CleanRun,
    DeleteMember,
    DeleteRequest,
)
from samza_azure.group.control import (
    Control,
)
from samza_azure.group.view import (
    View,
)
from samza_azure.sim.ledger import demand

from .drain import word
from .drawn import NOW, TASKS, alive, present, same


def check_house(view: View, control: Control) -> None:
    office = view.leadership
    if office is None:
        return
    members = view.others.members
    actions = housekeeping.keep_house(view, control, NOW)
    works = [
        name
        for name, row in members.items()
        if name != "p0" and alive(row) and any(word(control, task, {name: row}) for task in TASKS)
    ]
    waits = (control.phase == "DRAINED" and bool(works)) or view.others.scanned_at < office.since
    fresh = [run for run in control.uncleaned if run not in control.kept]
    cleans, leftovers = [], False
    if control.uncleaned and not waits:
        run = fresh[0] if fresh else control.uncleaned[office.clean_tries % len(control.uncleaned)]
        if office.clean_done != run and HOUSEKEEPING not in view.calls.busy:
            cleans = [CleanRun(run)]
        ends = control.phase == "DRAINED" and bool(fresh)
        leftovers = ends and run in (office.clean_done, office.clean_kept[0])
    same("what is cleaned up", [each for each in actions if isinstance(each, CleanRun)], cleans)
    gone = {name for name, row in members.items() if not alive(row) and row.incarnation and name != "p0"}
    old = {name for name in gone if view.others.ages[name].seconds >= 3600.0 and view.others.ages[name].reads >= 3}
    deleted = {each.processor for each in actions if isinstance(each, DeleteMember)}
    demand(deleted <= (gone if leftovers else old), f"Plain: the rows of {deleted - old} are deleted")
    aged = {key for key, age in office.request_ages.items() if age.seconds >= 86400.0 and age.reads >= 3}
    answered = {each.key for each in office.requests if each.answer} if leftovers else set()
    forgotten = {each.key for each in actions if isinstance(each, DeleteRequest)}
    demand(forgotten <= aged | answered, f"Plain: the requests {forgotten - aged} are deleted")
    said = {each.key: each.answer for each in actions if isinstance(each, AnswerRequest)}
    right = {each.key: text for each, text in requests.answers(control, office.requests, present(view))}
    for each in office.requests:  # a request that was answered once gets the same answer again
        if each.answer == "" and each.key in office.answering:
            right[each.key] = office.answering[each.key]
    demand(said.items() <= right.items() or bool(set(said) & aged), "Plain: other answers are given")
    wanted = len(old | (gone if leftovers else set())) + len(aged | answered | set(right))
    did = len(deleted | forgotten | set(said))
    demand(did == min(wanted, 8), f"Plain: of {wanted} things to do in the house {did} are done")
    after = housekeeping.with_clean_up(view, control)
    left_over = control.phase == "DRAINED" and bool(fresh)
    left_over = left_over and (bool(gone) or any(each.answer for each in office.requests))
    left_over = left_over or any(name.startswith("member ") for name in view.calls.doubted)
    if not control.uncleaned or left_over:
        same("a run that is not cleaned up", after, control)
    elif office.clean_done in control.uncleaned:
        left = tuple(run for run in control.uncleaned if run != office.clean_done)
        kept = {run: count for run, count in control.kept.items() if run in left}
        same("a run that is cleaned up", after, replace(control, uncleaned=left, kept=kept))
    elif office.clean_kept[0] in control.uncleaned and control.kept.get(office.clean_kept[0]) != office.clean_kept[1]:
        kept = {**control.kept, office.clean_kept[0]: office.clean_kept[1]}
        same("what cannot be deleted", after, replace(control, kept=kept))
    else:
        same("nothing to clean up", after, control)

"""Housekeeping: the leader answers requests, deletes rows of members long gone and, after a drain, the run's leftovers.

It deletes a few things at a time, and a run's leftovers only after the others have left the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from samza_azure.group.actions import (
    CONTROL,
    HOUSEKEEPING,
    MEMBER,
    REQUEST,
    Action,
    AnswerRequest,
    CleanRun,
    DeleteMember,
    DeleteRequest,
    resource,
)
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.reports import counts
from samza_azure.group.requests import answers, is_forgotten
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.view import View

#: The maximum number of answers to requests, and deletions of requests and rows, at the same time.
ANSWERS_AT_ONCE = 8


HouseWork: TypeAlias = AnswerRequest | DeleteRequest | DeleteMember


#: How long the row of a dead or left processor is kept. Machines come and go, and scans read all rows.
GONE_AFTER_S = 3600.0


def keep_house(view: View, control: Control, now: float) -> list[Action]:
    """Answer requests and delete the rows of members long gone; after a drain delete the run's logs and rows."""
    wanted, actions = [*_answers(view, control), *_long_gone(view)], list[Action]()
    others_work = control.phase is RunPhase.DRAINED and any(
        row.alive and processor != view.me and _has_tasks(control, row)
        for processor, row in view.others.members.items()
    )
    if control.uncleaned and view.has_looked and not others_work:  # else they have not left the run yet
        fresh = [each for each in control.uncleaned if each not in control.kept]
        run_id = fresh[0] if fresh else control.uncleaned[view.as_leader.clean_tries % len(control.uncleaned)]
        if view.as_leader.clean_done != run_id and view.free(HOUSEKEEPING, now):
            actions.append(CleanRun(run_id))
        if run_id in (view.as_leader.clean_done, view.as_leader.clean_kept[0]):
            wanted += _leftovers(view, control)
    return actions + _at_once(view, wanted, now)


def with_clean_up(view: View, control: Control) -> Control:
    """Remove a drained run from `uncleaned` once its leftovers are deleted, or count what cannot be deleted."""
    is_unclear = any(name.startswith(MEMBER) for name in view.calls.doubted)  # the next scan shows what is there
    if not control.uncleaned or is_unclear or _leftovers(view, control):
        return control
    run_id, count = view.as_leader.clean_kept
    if view.as_leader.clean_done in control.uncleaned:
        left = tuple(each for each in control.uncleaned if each != view.as_leader.clean_done)
        return replace(
            control, uncleaned=left, kept={each: control.kept[each] for each in left if each in control.kept}
        )
    if run_id in control.uncleaned and control.kept.get(run_id) != count:
        return replace(control, kept={**control.kept, run_id: count})
    return control


def _at_once(view: View, wanted: Sequence[HouseWork], now: float) -> list[Action]:
    """The first few actions: there may be thousands of a stranger's requests, or of members that have left."""
    under_way = sum(name.startswith((MEMBER, REQUEST)) for name in view.calls.busy)
    free = {name: action for action in wanted if view.writable(name := resource(action), now)}
    return list[Action](free.values())[: max(ANSWERS_AT_ONCE - under_way, 0)]


def _answers(view: View, control: Control) -> list[HouseWork]:
    """Answers to requests, and deletions of old requests."""
    if not view.as_leader.requests:
        return []
    actions: list[HouseWork] = [
        DeleteRequest(each.key, each.etag)
        for each in view.as_leader.requests
        if each.key in view.as_leader.request_ages and is_forgotten(each, view.as_leader.request_ages[each.key])
    ]
    # A write under way may obey the very request that the blob as we know it would have refused.
    is_known = CONTROL not in view.calls.busy and view.calls.unsettled is None
    found = answers(control, view.as_leader.requests, view.present) if is_known else []
    answered = {each.key: text for each, text in found}
    answered |= view.as_leader.answering  # the first answer holds, even if it was lost
    return actions + [
        AnswerRequest(each.key, each.etag, answered[each.key])
        for each in view.as_leader.requests
        if each.key in answered and not each.answer
    ]


def _long_gone(view: View) -> list[HouseWork]:
    """Deletions of rows of members long gone. A member that comes back inserts a new row."""
    return [
        DeleteMember(processor, row.etag)
        for processor, row in view.others.members.items()
        if not row.alive and row.is_ours and processor != view.me
        if processor in view.others.ages and view.others.ages[processor].unchanged_s >= GONE_AFTER_S
    ]


def _leftovers(view: View, control: Control) -> list[HouseWork]:
    """Deletions of what a drained run leaves in the table: its answered requests, the rows of dead and left members.

    Only until the run is cleaned up, and before the next run begins. After that somebody may wait for an answer, and
    what cannot be deleted may stay for years.
    """
    if control.phase is not RunPhase.DRAINED or control.cleaned:
        return []
    requests = [DeleteRequest(request.key, request.etag) for request in view.as_leader.requests if request.answer]
    rows = [
        DeleteMember(processor, row.etag)
        for processor, row in view.others.members.items()
        if not row.alive and row.is_ours and processor != view.me
    ]
    return [*requests, *rows]


def _has_tasks(control: Control, row: ProcessorRow) -> bool:
    """Whether a row reports a task that the blob gives to the row's incarnation under the reported generation."""
    return any(
        task in control.tasks and counts(control.tasks[task].owner, row, report) for task, report in row.tasks.items()
    )

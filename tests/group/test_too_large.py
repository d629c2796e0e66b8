"""A job model that is too large: newcomers wait, and no other processor is disturbed."""

import asyncio
from dataclasses import replace

from samza_azure.group.actions import (
    BeginEnd,
    Finish,
    WriteControl,
)
from samza_azure.group.answers import TooLarge
from samza_azure.group.control import (
    Assignment,
    Control,
    RunPhase,
)
from samza_azure.group.ending import verdict
from samza_azure.group.learn import demote, learn
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import Campaign, Lease
from samza_azure.host.perform import perform
from samza_azure.host.runs import RunLogs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from tests.group.situation import (
    CONTROL,
    NOW,
    PLAN,
    ROWS,
    decide,
    kinds,
    leader,
    member,
    owner,
    row,
    view_of,
)
from tests.group.transcript import Story


def test_a_newcomer_that_would_make_the_job_model_too_large_gets_no_task(
    story: Story,
) -> None:
    blob = replace(CONTROL, tasks={**CONTROL.tasks, "clean-2": Assignment(owner("p1"), first=False)})
    view = leader(blob, plan=replace(PLAN, stages=(replace(PLAN.stages[0], tasks=3), PLAN.stages[1])))
    too_large = {WriteControl: TooLarge("it needs more")}

    story.remark("p4 joins.")
    view.others.members = {**view.others.members, "p4": row("p4")}
    story.turn(view, NOW + 2, too_large)
    assert (view.leads, view.ending) == (True, None)
    assert WriteControl not in kinds(story.turn(view, NOW + 3))
    assert WriteControl in kinds(decide(view, NOW + 7)), "what was on the move has arrived by then, perhaps"

    story.remark("p3 dies: another set of members may fit.")
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.DEAD)}
    story.turn(view, NOW + 3.1, too_large)
    story.turn(view, NOW + 4, {WriteControl: "written"})
    assert isinstance(view.control, Control)
    assert view.control.members == (member("p1"), member("p2"))
    assert view.control.tasks["daily-0"].owner in (owner("p1", 10), owner("p2", 10))
    assert not view.as_leader.too_large


def test_as_many_newcomers_get_tasks_as_the_job_model_has_room_for() -> None:
    view = leader(replace(CONTROL, tasks={f"clean-{n}": Assignment(owner("p1"), first=False) for n in range(9)}))
    view.work.plan = None
    view.others.members = {**view.others.members, **{f"p{number}": row(f"p{number}") for number in range(4, 8)}}
    tried = []
    for moment in range(3):
        now = NOW + 2 + moment
        [write] = [each for each in decide(view, now) if isinstance(each, WriteControl)]
        tried.append([each.processor for each in write.control.members])
        learn(view, write, TooLarge("it needs more"), sent_at=now, now=now)
    everybody = [f"p{number}" for number in range(1, 8)]
    assert tried == [everybody, everybody[:5], everybody[:4]]


def test_members_admitted_by_another_leader_do_not_count_as_newcomers() -> None:
    view = leader(too_large={CONTROL.members: NOW + 60})
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], tasks={})}
    assert WriteControl not in kinds(decide(view, NOW + 2))


def test_a_next_run_whose_job_model_is_too_large_does_not_begin() -> None:
    """Members that are left from the last run are no reason to begin a run that no processor can run."""
    drained = replace(CONTROL, phase=RunPhase.DRAINED)
    view = leader(drained, active_run="", plan=replace(PLAN, fingerprint="e" * 64), tasks={})
    view.own.written = replace(ROWS["p1"], fingerprint="e" * 64, tasks={})
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    assert write.control.run_id != "run"
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert verdict(view) == Finish(2, "it needs more")
    assert [each.control.run_id for each in decide(view, NOW + 3) if isinstance(each, WriteControl)] in ([], ["run"])


def test_a_first_job_model_that_is_too_large_ends_the_leader_with_2() -> None:
    view = leader(replace(CONTROL, members=(), tasks={}, phase=RunPhase.NONE, version=0))
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert BeginEnd(Finish(2, "it needs more")) in decide(view, NOW + 2)


def test_a_candidate_whose_limit_is_below_the_job_model_takes_it_over() -> None:
    """It admits no member, so the limit does not apply, and it need not leave the lease to another."""
    view = view_of("p2", campaign=Campaign("control", lease=Lease("won", NOW), read=True))
    [write] = [each for each in decide(view, NOW) if isinstance(each, WriteControl)]
    assert write.control.members == CONTROL.members
    account = MemoryAccount(MemoryStorage(lambda: NOW))
    blob, runs = account.control_blob(), RunLogs(account.blobs())
    answer = asyncio.run(perform(write, "p2", blob, account.rows(), runs, limit=1, timeout=1.0))
    assert not isinstance(answer, TooLarge)
    admits = replace(write, has_newcomers=True)
    answer = asyncio.run(perform(admits, "p2", blob, account.rows(), runs, limit=1, timeout=1.0))
    assert isinstance(answer, TooLarge)


def test_a_job_model_that_was_too_large_is_of_no_interest_after_the_leadership() -> None:
    blob = replace(CONTROL, tasks={**CONTROL.tasks, "clean-2": Assignment(owner("p1"), first=False)})
    view = leader(blob, plan=replace(PLAN, stages=(replace(PLAN.stages[0], tasks=3), PLAN.stages[1])))
    view.others.members = {**view.others.members, "p4": row("p4")}
    [write] = [each for each in decide(view, NOW + 2) if isinstance(each, WriteControl)]
    demote(view, NOW + 2)
    learn(view, write, TooLarge("it needs more"), sent_at=NOW + 2, now=NOW + 2)
    assert verdict(view) is None

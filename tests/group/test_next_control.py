"""What the next version of the control blob says."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    Finish,
)
from samza_azure.group.control import (
    Assignment,
    Barrier,
    BarrierState,
    RunPhase,
)
from samza_azure.group.learn import heard_container_lost, heard_task
from samza_azure.group.membership import own_row
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import LocalTask
from samza_azure.messages import (
    Phase,
    StartTask,
    TaskError,
)
from tests.group.situation import (
    CONTROL,
    NOW,
    ROWS,
    WIDER,
    commands_in,
    decide,
    leader,
    owner,
    report,
    row,
    view_of,
)


def test_only_the_tasks_of_a_dead_processor_move_and_at_once() -> None:
    view = leader(published_at=NOW)  # within the debounce
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.DEAD)}
    after = next_control(view, CONTROL, NOW)
    assert after.version == 10
    assert {task: each.owner for task, each in after.tasks.items()} == {
        "clean-0": owner("p1"),
        "clean-1": owner("p2"),
        "daily-0": owner("p1", 10),
    }
    assert after.tasks["daily-0"].after == ()  # a dead owner need not be waited for
    assert after.barrier == Barrier(10, BarrierState.START)


FIRST = replace(CONTROL, tasks={task: replace(each, first=True) for task, each in CONTROL.tasks.items()})


def test_the_first_flag_is_cleared_for_all_tasks_in_one_write() -> None:
    view = leader(FIRST)
    view.others.members = {**view.others.members, "p3": row("p3", {"daily-0": report("daily-0", Phase.STARTING)})}
    assert next_control(view, FIRST, NOW) == FIRST
    view.others.members = {**view.others.members, "p3": ROWS["p3"]}
    assert next_control(view, FIRST, NOW) == CONTROL


def test_a_log_that_exists_is_not_created_again_by_its_next_owner_although_other_tasks_have_none_yet() -> None:
    view = leader(FIRST)
    view.others.members = {
        **view.others.members,
        "p3": row("p3", {"daily-0": report("daily-0", Phase.FAILED, batch=7)}, state=ProcessorState.DEAD),
    }
    view.others.members = {**view.others.members, "p2": row("p2", {"clean-1": report("clean-1", Phase.STARTING)})}
    after = next_control(view, FIRST, NOW)
    assert after.tasks["daily-0"] == Assignment(owner("p1", 10), first=False)
    assert after.tasks["clean-1"] == Assignment(owner("p2"), first=True)


def test_the_next_attempt_of_the_same_owner_is_not_a_first_start() -> None:
    view = view_of("p3", FIRST)
    heard_task(view, report("daily-0", batch=7), NOW)
    heard_container_lost(view, NOW)
    view.work.container = True
    assert [command.first for command in commands_in(decide(view, NOW)) if isinstance(command, StartTask)] == [False]


def test_a_join_waits_for_the_debounce() -> None:
    control = replace(CONTROL, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p1"), first=False)})
    view = leader(control, published_at=NOW - 1)
    view.work.tasks["daily-0"] = LocalTask(2, 1, NOW, report("daily-0"))
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], tasks={})}
    assert next_control(view, control, NOW) == control
    after = next_control(view, control, NOW + 1)
    assert after.tasks["daily-0"] == Assignment(owner("p3", 10), (owner("p1"),), first=False)


def test_a_leaving_processor_loses_its_tasks_and_the_next_owner_waits_for_it() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.LEAVING)}
    after = next_control(view, CONTROL, NOW)
    assert after.tasks["daily-0"] == Assignment(owner("p1", 10), (owner("p3"),), first=False)


def test_one_with_other_code_or_without_the_control_blob_gets_no_task() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4", fingerprint="0" * 64)}
    view.others.members = {**view.others.members, "p5": row("p5", adopted=0)}
    assert next_control(view, CONTROL, NOW) == CONTROL


def test_a_failed_task_fails_the_run_only_if_its_present_owner_says_so() -> None:
    failed = report("daily-0", Phase.FAILED, error=TaskError("no", "Traceback"))
    view = leader()
    view.others.members = {**view.others.members, "p3": row("p3", {"daily-0": replace(failed, generation=1)})}
    assert next_control(view, CONTROL, NOW) == CONTROL
    view.others.members = {"p3": row("p3", {"daily-0": failed})}
    view.own.written = replace(ROWS["p1"], state=ProcessorState.LEAVING)
    after = next_control(view, CONTROL, NOW)
    assert (after.phase, after.failure and after.failure.task) == (RunPhase.FAILED, "daily-0")


def test_a_log_with_a_later_owner_than_the_blob_knows_of_fails_its_task_with_the_way_out() -> None:
    """An older control.json was put back while no processor ran: the task was shown as STARTING forever."""
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", Phase.SUPERSEDED)
    told_of = own_row(view).tasks["daily-0"]
    assert told_of.phase is Phase.FAILED
    assert told_of.error is not None
    assert "samza-azure recover" in told_of.error.message

    leads = leader(members={**ROWS, "p3": row("p3", {"daily-0": told_of})})
    assert next_control(leads, CONTROL, NOW).given_up["daily-0"].owner == owner("p3"), "it is tried elsewhere"
    leads.others.members = {"p3": row("p3", {"daily-0": told_of})}
    leads.own.written = replace(ROWS["p1"], state=ProcessorState.LEAVING)
    failed = next_control(leads, CONTROL, NOW)
    assert (failed.phase, failed.failure and failed.failure.task) == (RunPhase.FAILED, "daily-0")


def test_a_superseded_former_owner_fails_nothing() -> None:
    moved = replace(CONTROL, version=10, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10))})
    view = view_of("p3")
    view.work.tasks["daily-0"].report = report("daily-0", Phase.SUPERSEDED)
    leads = leader(moved, members={**ROWS, "p3": row("p3", own_row(view).tasks, adopted=10)})
    assert next_control(leads, moved, NOW).given_up == {}
    assert next_control(leads, moved, NOW).phase is RunPhase.RUNNING


@pytest.mark.parametrize("phase", [None, Phase.RESTART, Phase.FAILED, Phase.RELEASED])
def test_others_wait_for_what_a_leader_may_start_before_it_knows_that_it_gave_it_away(phase: Phase | None) -> None:
    """Its write took seconds to land, and in between it started the task that the write gave to another."""
    tasks = dict.fromkeys(("clean-0", "clean-1"), Assignment(owner("p1"), first=False))
    uneven = replace(CONTROL, tasks={**tasks, "daily-0": Assignment(owner("p2"), first=False)})
    ended = {} if phase is None else {task: LocalTask(2, 1, NOW, report(task, phase)) for task in tasks}
    for ending in (None, Finish(0, "told to leave")):
        view = leader(uneven, tasks=ended, ending=ending)
        after = next_control(view, uneven, NOW)
        moved = {each.after for each in after.tasks.values() if each.owner not in (owner("p1"), owner("p2"))}
        assert moved == {() if ending is not None or phase is Phase.RELEASED else (owner("p1"),)}


def test_the_leader_gives_it_no_task_and_the_run_goes_on_as_it_is() -> None:
    view = leader()
    view.others.members = {**view.others.members, "p4": row("p4", fingerprint=WIDER.fingerprint)}
    assert next_control(view, CONTROL, NOW + 60) == CONTROL

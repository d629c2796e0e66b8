"""The tasks of a processor whose container has ended or hangs: who gets them, when, and when they stay."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from samza_azure.group.actions import BeginEnd, MergeOwnRow, ScanMembers, Tell
from samza_azure.group.control import Assignment, Control, GivenUp, RunPhase, Stop
from samza_azure.group.decide import decide as decided
from samza_azure.group.ending import Wait, waits_for
from samza_azure.group.learn import (
    heard_container_lost,
    heard_container_silent,
    heard_plan,
    learn,
    perform_locally,
)
from samza_azure.group.membership import own_row
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState, columns, processor_row
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.group.view import View
from samza_azure.host.status import why
from samza_azure.messages import Kill, Permit, Phase, ReleaseTask, StartTask, TaskError
from samza_azure.metrics.facts import running
from tests.group.situation import (
    CONTROL,
    DRAINING,
    NOW,
    PLAN,
    ROWS,
    TIMING,
    commands_in,
    decide,
    leader,
    owner,
    report,
    view_of,
)

DEBOUNCE, SETTLES = TIMING.debounce_s, TIMING.heartbeat_timeout_s


def scan(view: View, at: float, without: Collection[str]) -> None:
    """The leader reads all rows; these processors have no container."""
    rows = tuple(replace(row, no_container=name in without) for name, row in ROWS.items())
    learn(view, ScanMembers(), rows, sent_at=at, now=at)
    view.own.accepted_at = at
    view.own.written = replace(rows[0], etag="")


def owners(control: Control) -> dict[str, str]:
    return {task: each.owner.processor for task, each in control.tasks.items() if each.owner is not None}


STAYS = owners(CONTROL)


def test_a_processor_says_in_its_row_at_once_that_its_container_is_gone_and_when_the_next_one_is_ready() -> None:
    view = view_of("p3")
    assert not own_row(view).no_container
    heard_container_lost(view, NOW + 1)
    [beat] = [action for action in decide(view, NOW + 1) if isinstance(action, MergeOwnRow)]
    assert beat.row.no_container
    assert processor_row("p3", "e", columns(beat.row)).no_container
    heard_plan(view, PLAN)
    assert not own_row(view).no_container


def test_one_whose_first_container_starts_says_nothing_of_it_since_it_can_have_no_task() -> None:
    view = view_of("p3")
    view.work.plan, view.work.container = None, False
    assert not own_row(view).no_container


@pytest.mark.parametrize("profile", PROFILES)
def test_a_container_counts_as_hanging_when_a_processor_would_pause_and_never_within_some_seconds(profile: str) -> None:
    timing = PROFILES[profile]
    assert timing.hangs_after_s == max(0.75 * timing.heartbeat_timeout_s, 5.0)
    view = view_of("p3")
    view.settings = replace(view.settings, timing=timing)
    heard_container_silent(view, timing.hangs_after_s - 0.1)
    assert not own_row(view).no_container
    heard_container_silent(view, timing.hangs_after_s)
    assert own_row(view).no_container
    heard_container_silent(view, 0.0)
    assert not own_row(view).no_container


def test_its_tasks_go_to_those_with_a_container_after_the_debounce_and_stay_there() -> None:
    view = leader()
    scan(view, NOW, {"p3"})
    assert next_control(view, CONTROL, NOW) == CONTROL
    assert decided(view, NOW).wake_at <= NOW + DEBOUNCE
    assert next_control(view, CONTROL, NOW + DEBOUNCE - 0.1) == CONTROL
    after = next_control(view, CONTROL, NOW + DEBOUNCE)
    assert after.tasks["daily-0"] == Assignment(owner("p1", 10), (owner("p3"),), first=False)
    assert owners(after) == {**STAYS, "daily-0": "p1"}
    assert after.members == CONTROL.members  # it is alive, reads the blob, and is a member


def test_a_move_for_want_of_a_container_keeps_the_debounce_between_two_versions_too() -> None:
    view = leader(published_at=NOW + 1)
    scan(view, NOW, {"p3"})
    assert next_control(view, CONTROL, NOW + DEBOUNCE) == CONTROL
    assert next_control(view, CONTROL, NOW + 1 + DEBOUNCE) != CONTROL


def test_when_the_container_is_ready_again_one_version_balances_the_tasks() -> None:
    view = leader()
    scan(view, NOW, {"p3"})
    moved = next_control(view, CONTROL, NOW + DEBOUNCE)
    view.own.control = moved
    for at in (3.0, 4.0, 5.0):
        scan(view, NOW + at, {"p3"})
        assert next_control(view, moved, NOW + at).tasks == moved.tasks
    scan(view, NOW + 20, ())
    back = next_control(view, moved, NOW + 20)
    assert sorted(owners(back).values()) == ["p1", "p2", "p3"]
    view.own.control = back
    scan(view, NOW + 30, ())
    assert next_control(view, back, NOW + 30).tasks == back.tasks


def test_a_replacement_that_is_ready_within_the_debounce_moves_nothing() -> None:
    view = leader()
    scan(view, NOW, {"p3"})
    scan(view, NOW + 1, ())
    assert next_control(view, CONTROL, NOW + 60) == CONTROL
    scan(view, NOW + 60, {"p3"})  # and the next loss has its own debounce
    assert next_control(view, CONTROL, NOW + 60) == CONTROL


def test_when_all_containers_start_again_at_once_the_first_one_that_is_ready_does_not_get_everything() -> None:
    view = leader()
    scan(view, NOW, {"p1", "p2", "p3"})
    assert next_control(view, CONTROL, NOW + 100) == CONTROL
    scan(view, NOW + 100, {"p2", "p3"})
    assert next_control(view, CONTROL, NOW + 100) == CONTROL
    scan(view, NOW + 101, {"p2"})
    assert next_control(view, CONTROL, NOW + 100 + SETTLES - 0.1) == CONTROL
    after = next_control(view, CONTROL, NOW + 100 + SETTLES)  # p1 has been ready for as long as a death takes
    assert owners(after)["clean-1"] in ("p1", "p3")
    assert {**owners(after), "clean-1": "p2"} == STAYS


def test_a_processor_that_is_alone_keeps_its_tasks() -> None:
    view = leader()
    view.others.members = {}
    alone = replace(CONTROL, members=CONTROL.members[:1], tasks={"clean-0": CONTROL.tasks["clean-0"]})
    alone = replace(alone, version=2)
    row = replace(ROWS["p1"], no_container=True)
    learn(view, ScanMembers(), (row,), sent_at=NOW, now=NOW)
    view.own.written = replace(row, etag="")
    assert owners(next_control(view, alone, NOW + 100)) == {"clean-0": "p1"}


def test_a_new_task_and_one_that_has_lost_its_owner_go_to_those_with_a_container() -> None:
    view = leader()
    scan(view, NOW, {"p2"})
    view.others.members = {**view.others.members, "p3": replace(ROWS["p3"], state=ProcessorState.DEAD)}
    after = next_control(view, CONTROL, NOW)
    assert owners(after) == {**STAYS, "daily-0": "p1"}  # clean-1 waits for its debounce still


def test_the_tasks_of_a_processor_without_a_container_move_in_a_drain_too_and_no_others() -> None:
    view = leader(DRAINING)
    scan(view, NOW, {"p3"})
    after = next_control(view, DRAINING, NOW + DEBOUNCE)
    assert owners(after) == {**STAYS, "daily-0": "p1"}
    view.own.control = after
    scan(view, NOW + 60, ())
    assert next_control(view, after, NOW + 60).tasks == after.tasks


def test_a_stopped_or_drained_run_moves_nothing() -> None:
    drained = replace(DRAINING, phase=RunPhase.DRAINED)
    view = leader(drained)
    scan(view, NOW, {"p3"})
    assert owners(next_control(view, drained, NOW + DEBOUNCE)) == STAYS


def test_a_task_that_the_only_ready_processor_gave_up_waits_for_a_container_instead_of_going_back_and_forth() -> None:
    error = TaskError("no such column", "")
    view = leader()
    scan(view, NOW, {"p2", "p3"})
    failed = {"clean-0": report("clean-0", Phase.FAILED, error=error)}
    view.own.written = replace(ROWS["p1"], etag="", tasks=failed)
    after = next_control(view, CONTROL, NOW + SETTLES)
    assert after.given_up == {"clean-0": GivenUp(owner("p1"), "no such column")}
    assert owners(after)["clean-0"] == "p1"
    view.own.control = after
    assert next_control(view, after, NOW + SETTLES).tasks == after.tasks
    scan(view, NOW + 20, {"p3"})
    view.own.written = replace(ROWS["p1"], etag="", tasks=failed)
    assert owners(next_control(view, after, NOW + 20))["clean-0"] == "p2"


def test_a_container_that_hangs_is_killed_once_when_its_tasks_are_given_to_others() -> None:
    """It cannot release them: otherwise the new owner would wait for the longest time that a release may take."""
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p3", replace(CONTROL, version=9, tasks=moved))
    heard_container_silent(view, TIMING.hangs_after_s)
    assert commands_in(decide(view, NOW)) == [Kill()]
    perform_locally(view, Tell(Kill()), NOW)
    assert commands_in(decide(view, NOW)) == []
    heard_container_lost(view, NOW + 0.1)
    assert own_row(view).released == {"daily-0": 2}
    heard_plan(view, PLAN)
    heard_container_silent(view, TIMING.hangs_after_s)  # the next one hangs, too
    assert commands_in(decide(view, NOW + 0.1)) == [Permit(view.permit_until)]


def test_a_container_that_hangs_is_killed_when_all_is_to_be_released() -> None:
    """A processor that left or whose run was stopped waited for it, for 1.5 times task.shutdown.ms."""
    stopped = replace(CONTROL, stop=Stop("request", CONTROL.members))
    for view in (view_of("p3", stopped), view_of("p3")):
        heard_container_silent(view, TIMING.hangs_after_s)
        view.leaving = view.control is CONTROL
        (begin,) = (action for action in decide(view, NOW) if isinstance(action, BeginEnd))
        perform_locally(view, begin, NOW)
        soon = NOW + 10.0  # a leaving processor first gives the leader time to move its tasks
        view.own.accepted_at = soon
        assert commands_in(decide(view, soon)) == [Kill()]
        assert waits_for(view, soon) is Wait.OWN_TASKS
        perform_locally(view, Tell(Kill()), soon)
        heard_container_lost(view, soon)
        assert waits_for(view, soon) is Wait.OWN_ROW


def test_a_container_that_hangs_and_keeps_its_tasks_is_left_to_the_supervisor() -> None:
    view = view_of("p3")
    heard_container_silent(view, 1000.0)
    assert commands_in(decide(view, NOW)) == []


def test_one_whose_container_ended_says_that_it_has_released_what_others_are_to_run() -> None:
    moved = {**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)}
    view = view_of("p3", replace(CONTROL, version=9, tasks=moved))
    heard_container_lost(view, NOW)
    assert own_row(view).released == {"daily-0": 2}
    heard_plan(view, PLAN)
    assert {type(command) for command in commands_in(decide(view, NOW))} == {Permit}


def test_until_it_reads_of_the_move_a_ready_container_runs_the_tasks_again_and_then_releases_them() -> None:
    view = view_of("p3")
    heard_container_lost(view, NOW)
    heard_plan(view, PLAN)
    assert [type(command) for command in commands_in(decide(view, NOW))] == [Permit, StartTask]
    for command in commands_in(decide(view, NOW)):
        perform_locally(view, Tell(command), NOW)  # type: ignore[arg-type]
    view.own.control = replace(
        CONTROL,
        version=9,
        tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 9), (owner("p3"),), first=False)},
    )
    assert commands_in(decide(view, NOW)) == [ReleaseTask("daily-0")]
    assert own_row(view).released == {}


def test_a_task_whose_container_hangs_does_not_count_as_running_and_says_why() -> None:
    """Its row still has its last report: RUNNING."""
    view = leader()
    assert running(view, CONTROL) == 3
    scan(view, NOW, {"p3"})
    assert running(view, CONTROL) == 2
    rows = dict(view.others.members)
    said = why(CONTROL.tasks["daily-0"], CONTROL, rows, rows["p3"].tasks["daily-0"])
    assert said is not None and said.startswith("The container of p3 has ended or hangs.")
    assert why(CONTROL.tasks["clean-0"], CONTROL, rows, rows["p1"].tasks["clean-0"]) is None
    drained = replace(rows["p3"].tasks["daily-0"], phase=Phase.DRAINED)
    assert why(CONTROL.tasks["daily-0"], CONTROL, rows, drained) is None


def test_the_durations_of_each_profile_give_a_move_no_more_time_than_a_death() -> None:
    for timing in (*PROFILES.values(), Timing()):
        assert timing.debounce_s <= timing.heartbeat_timeout_s

"""A task that one processor gave up is tried by another before the run fails."""

from dataclasses import replace
from typing import Any

import pytest

from samza_azure.group.actions import (
    ScanMembers,
    Tell,
)
from samza_azure.group.control import (
    Assignment,
    Barrier,
    Failure,
    GivenUp,
    Owner,
    RunPhase,
)
from samza_azure.group.learn import heard_task, learn, perform_locally
from samza_azure.group.membership import own_row
from samza_azure.group.notification import DrainNotification
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.tasks import CALM_S, retry_at
from samza_azure.group.timing import FORGIVE_AFTER_S, ROLE_S
from samza_azure.group.view import LocalTask, Settings, View
from samza_azure.host.status import why
from samza_azure.messages import (
    DrainStep,
    Phase,
    StartTask,
    TaskError,
)
from tests.group.situation import (
    CONTROL,
    NOW,
    ROWS,
    TIMING,
    leader,
    life_of,
    member,
    owner,
    report,
    row,
    starts,
    view_of,
)

FULL_DISK = TaskError("OSError: no space left on device", "Traceback of p3")

#: p3 has given its task up, and p1 has moved it to p2, or is about to.
GAVE_UP = {"daily-0": GivenUp(owner("p3"), FULL_DISK.message)}

MOVED = replace(
    CONTROL,
    revision=10,
    version=10,
    tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p2", 10), (owner("p3"),), first=False)},
    given_up=GAVE_UP,
    barrier=Barrier(10),
)


def failing(processor: str = "p3", *, generation: int = 2, error: TaskError = FULL_DISK) -> ProcessorRow:
    failed = report("daily-0", Phase.FAILED, generation=generation, error=error)
    return row(processor, {**ROWS[processor].tasks, "daily-0": failed}, adopted=10)


def others() -> dict[str, ProcessorRow]:
    """All have adopted version 10."""
    return {processor: replace(each, adopted=10) for processor, each in ROWS.items()}


def leads_after_it_moved(**rows: ProcessorRow) -> View:
    view = leader(MOVED)
    view.others.members, view.own.written = others() | rows, replace(ROWS["p1"], adopted=10)
    return view


@pytest.mark.parametrize("phase", [RunPhase.RUNNING, RunPhase.DRAINING])
def test_a_task_that_its_processor_gave_up_is_moved_at_once_and_no_other_task_is(phase: RunPhase) -> None:
    drain = DrainNotification("u", "run", step=DrainStep.FLUSH) if phase is RunPhase.DRAINING else None
    control = replace(CONTROL, phase=phase, drain=drain)
    view = leader(control, published_at=NOW)
    view.others.members = {**ROWS, "p3": failing()}
    after = next_control(view, control, NOW)
    assert (after.phase, after.failure, after.given_up) == (phase, None, GAVE_UP)
    moved = after.tasks["daily-0"]
    assert moved == Assignment(Owner("p1", life_of("p1"), 10), (owner("p3"),), first=False)
    assert {task: each for task, each in after.tasks.items() if task != "daily-0"} == {
        task: each for task, each in CONTROL.tasks.items() if task != "daily-0"
    }


def test_the_run_fails_when_a_second_processor_gives_it_up_and_says_where_it_was_tried() -> None:
    view = leads_after_it_moved(p2=failing("p2", generation=10, error=TaskError("ValueError: no", "Traceback of p2")))
    after = next_control(view, MOVED, NOW)
    assert (after.phase, after.given_up) == (RunPhase.FAILED, {})
    assert after.failure == Failure(
        "daily",
        "daily-0",
        "ValueError: no\nIt failed on p3 and on p2. On p3: OSError: no space left on device",
        "Traceback of p2",
    )


def test_the_run_fails_at_once_if_no_other_processor_can_run_the_task() -> None:
    view = leader()
    leaves, other_code = replace(ROWS["p1"], state=ProcessorState.LEAVING), row("p2", fingerprint="0" * 64)
    view.others.members, view.own.written = {"p2": other_code, "p3": failing()}, leaves
    after = next_control(view, CONTROL, NOW)
    assert after.phase is RunPhase.FAILED
    assert after.failure is not None and "failed on p3, and there is no other processor" in after.failure.message


def test_a_given_up_task_does_not_return_while_others_are_present() -> None:
    view = leads_after_it_moved(p2=replace(ROWS["p2"], state=ProcessorState.DEAD))
    after = next_control(view, MOVED, NOW)
    assert after.tasks["daily-0"].owner == Owner("p1", life_of("p1"), 11)
    view.own.written = replace(view.own.written, state=ProcessorState.LEAVING)  # type: ignore[arg-type]
    last = next_control(view, MOVED, NOW)
    assert last.tasks["daily-0"].owner == Owner("p3", life_of("p3"), 11)
    assert last.given_up == GAVE_UP


def test_a_task_given_up_twice_by_one_processor_moves_on_or_fails_the_run() -> None:
    again = replace(MOVED, tasks={**MOVED.tasks, "daily-0": Assignment(owner("p3", 10), first=False)})
    view = leader(again)
    view.others.members, view.own.written = others() | {"p3": failing(generation=10)}, replace(ROWS["p1"], adopted=10)
    after = next_control(view, again, NOW)
    assert (after.phase, after.tasks["daily-0"].owner) == (RunPhase.RUNNING, Owner("p1", life_of("p1"), 11))
    assert after.given_up["daily-0"].owner == owner("p3", 10)
    view.others.members, view.own.written = (
        {"p3": failing(generation=10)},
        replace(ROWS["p1"], state=ProcessorState.LEAVING),
    )
    assert next_control(view, again, NOW).phase is RunPhase.FAILED


@pytest.mark.parametrize(
    "gone", [replace(ROWS["p3"], incarnation="another"), replace(ROWS["p3"], state=ProcessorState.DEAD), None]
)
def test_a_give_up_is_forgotten_with_the_incarnation(gone: ProcessorRow | None) -> None:
    runs = row("p2", {"daily-0": report("daily-0", generation=10)}, adopted=10)
    view = leads_after_it_moved(p2=runs)
    assert next_control(view, MOVED, NOW).given_up == GAVE_UP
    view.others.members = {name: each for name, each in view.others.members.items() if name != "p3"} | (
        {"p3": gone} if gone else {}
    )
    assert next_control(view, MOVED, NOW).given_up == {}


def test_a_give_up_is_forgotten_after_the_task_ran_elsewhere_for_ten_minutes() -> None:
    view, view_of_attempt = leads_after_it_moved(), {"generation": 10, "attempt": 1}
    for now, phase, attempt in (
        (NOW, Phase.RUNNING, 1),
        (NOW + 300, Phase.FAILED, 1),
        (NOW + 310, Phase.RUNNING, 2),
        (NOW + 310 + FORGIVE_AFTER_S - 1, Phase.RUNNING, 2),
    ):
        said = report("daily-0", phase, **{**view_of_attempt, "attempt": attempt})
        rows = (*[each for name, each in others().items() if name != "p2"], row("p2", {"daily-0": said}, adopted=10))
        learn(view, ScanMembers(), rows, sent_at=now, now=now)
        assert next_control(view, MOVED, now).given_up == GAVE_UP
    assert next_control(view, MOVED, NOW + 310 + FORGIVE_AFTER_S).given_up == {}


def test_two_processors_share_the_tries_that_one_has_alone() -> None:
    limit = view_of("p3").settings.restart_limit
    alone = replace(CONTROL, members=(member("p3"),))
    assert view_of("p3", alone).tries("daily-0") == (limit + 1, 0)
    assert view_of("p3").tries("daily-0") == (3, 0)
    assert view_of("p2", MOVED).tries("daily-0") == (3, 3)
    for few, first, second in ((0, 1, 1), (1, 1, 1), (2, 2, 1)):
        settings = Settings("p2", TIMING, restart_limit=few)
        assert view_of("p2", settings=settings).tries("daily-0") == (first, 0)
        assert view_of("p2", MOVED, settings=settings).tries("daily-0")[0] == second


def test_the_second_processor_continues_the_back_off_of_the_first() -> None:
    view = view_of("p2", MOVED)
    view.work.tasks["daily-0"] = LocalTask(10, 1, NOW)
    heard_task(view, report("daily-0", Phase.FAILED, generation=10), NOW)
    assert retry_at(view, "daily-0", view.work.tasks["daily-0"]) == NOW + 4.0


def test_a_task_that_was_given_up_is_shown_as_failed_until_another_has_it_and_is_then_released() -> None:
    view = view_of("p3")
    failed = report("daily-0", Phase.FAILED, error=FULL_DISK)
    view.work.tasks["daily-0"] = LocalTask(2, 1, NOW, failed, failures=3)
    assert own_row(view).tasks == {"daily-0": replace(failed, failures=3)}
    assert starts(view, NOW + 60) == []
    view.own.control = MOVED
    assert (own_row(view).tasks, own_row(view).released) == ({}, {"daily-0": 2})


def test_a_task_that_was_given_up_elsewhere_is_no_better_before_it_appends() -> None:
    """With its new owner it was RUNNING until it failed there as well."""
    view = view_of("p2", MOVED)
    view.work.tasks["daily-0"] = LocalTask(10, 1, NOW)
    view.turn_at = NOW + CALM_S - 1
    shown = []
    for more in ({}, {"appended_at": NOW}):
        heard_task(view, report("daily-0", generation=10, **more), NOW)
        found = own_row(view)
        tells, each = found.tasks["daily-0"], MOVED.tasks["daily-0"]
        shown.append((tells.failing, tells.tried, why(each, MOVED, {"p2": found}, tells)))
    tried = "3 of 6 tries have failed"
    assert shown == [(True, tried, f"It failed and has appended nothing since. {tried}."), (False, None, None)]


def test_a_task_that_a_system_refuses_each_time_is_given_up() -> None:
    """It waits for a role before it fails, which counted as having run well: so it was tried forever."""
    view, now, failures = view_of("p3"), NOW, []
    view.work.tasks["daily-0"] = LocalTask(2, 1, now)
    for attempt in range(1, 4):
        now += ROLE_S + 60
        heard_task(view, report("daily-0", Phase.FAILED, attempt=attempt, error=FULL_DISK), now)
        failures.append(view.work.tasks["daily-0"].failures)
        start = StartTask("daily-0", 2, attempt + 1, first=False, run_id="run", group_id="g")
        perform_locally(view, Tell(start), now)
    assert failures == [1, 2, 3]


def test_a_task_that_fails_again_and_again_says_so_between_its_failures() -> None:
    """It was RUNNING then, without an error, and nothing counted how often it was started."""
    view = view_of("p3")
    view.work.tasks["daily-0"] = LocalTask(2, 1, NOW)
    for attempt in (1, 2):
        heard_task(view, report("daily-0", Phase.FAILED, attempt=attempt, error=FULL_DISK), NOW)
        start = StartTask("daily-0", 2, attempt + 1, first=False, run_id="run", group_id="g")
        perform_locally(view, Tell(start), NOW)
    view.turn_at = NOW + CALM_S - 1

    def said(phase: Phase, **more: Any) -> tuple[bool, TaskError | None, str | None, int, int]:
        heard_task(view, report("daily-0", phase, attempt=3, **more), NOW)
        found = own_row(view).tasks["daily-0"]
        return found.failing, found.error, found.tried, found.failures, found.restarts

    assert said(Phase.STARTING) == (False, FULL_DISK, "2 of 6 tries have failed", 2, 2)
    assert said(Phase.RUNNING) == (True, FULL_DISK, "2 of 6 tries have failed", 2, 2)
    assert said(Phase.RUNNING, appended_at=NOW) == (False, None, None, 2, 2), "it has got over it"
    view.turn_at = NOW + CALM_S
    assert said(Phase.RUNNING) == (False, None, None, 2, 2), "it may have nothing to append"

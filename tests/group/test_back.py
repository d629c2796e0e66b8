"""A processor that was restarted and is back before it was marked dead keeps its tasks."""

from dataclasses import replace

import pytest

from samza_azure.group.actions import (
    ScanMembers,
)
from samza_azure.group.control import (
    Assignment,
    Control,
    Owner,
)
from samza_azure.group.learn import learn
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import View
from tests.group.situation import (
    CONTROL,
    NOW,
    ROWS,
    TIMING,
    leader,
    life_of,
    row,
)


def restarted(**more: object) -> View:
    """p1 leads, and has just seen that p2 was started again: there is a new life of it, which has read nothing yet."""
    view = leader()
    new = replace(
        row("p2"), incarnation="new life", etag="new", adopted=0, state=ProcessorState.UNASSIGNED, fingerprint=""
    )
    learn(view, ScanMembers(), (ROWS["p1"], replace(new, **more), ROWS["p3"]), sent_at=NOW, now=NOW)  # type: ignore[arg-type]
    return view


def owners(control: Control) -> dict[str, str]:
    return {task: each.owner.incarnation for task, each in control.tasks.items() if each.owner is not None}


def test_the_tasks_of_one_that_is_back_wait_until_it_is_able_and_are_its_own_again_with_one_version() -> None:
    view = restarted()
    assert next_control(view, CONTROL, NOW) == CONTROL
    able = replace(row("p2"), incarnation="new life", etag="able", state=ProcessorState.ACTIVE)
    learn(view, ScanMembers(), (ROWS["p1"], able, ROWS["p3"]), sent_at=NOW + 1, now=NOW + 1)
    after = next_control(view, CONTROL, NOW + 1)
    assert owners(after) == {**owners(CONTROL), "clean-1": "new life"}
    assert after.tasks["clean-1"] == Assignment(Owner("p2", "new life", after.version), (), first=False)
    assert after.version > CONTROL.version


@pytest.mark.parametrize(
    "more",
    [{"fingerprint": "e" * 64}, {"state": ProcessorState.LEAVING}],
    ids=["it has another pipeline", "it leaves"],
)
def test_tasks_do_not_wait_for_a_processor_that_cannot_run_them(more: dict[str, object]) -> None:
    assert owners(next_control(restarted(**more), CONTROL, NOW))["clean-1"] in (life_of("p1"), life_of("p3"))


def test_tasks_wait_for_a_restarted_processor_for_a_death_timeout_at_most() -> None:
    view = restarted()
    soon = NOW + TIMING.heartbeat_timeout_s
    assert next_control(view, CONTROL, soon - 0.1) == CONTROL
    assert owners(next_control(view, CONTROL, soon))["clean-1"] in (life_of("p1"), life_of("p3"))


def test_a_processor_that_restarts_repeatedly_keeps_its_tasks_once_in_ten_minutes() -> None:
    view = restarted()
    third = replace(row("p2"), incarnation="third life", etag="third", adopted=0, fingerprint="")
    learn(view, ScanMembers(), (ROWS["p1"], third, ROWS["p3"]), sent_at=NOW + 1, now=NOW + 1)
    assert owners(next_control(view, CONTROL, NOW + 1))["clean-1"] in (life_of("p1"), life_of("p3"))
    learn(view, ScanMembers(), (ROWS["p1"], third, ROWS["p3"]), sent_at=NOW + 601, now=NOW + 601)
    assert view.others.back == {}

"""A group of one: who ends because another processor runs the job, and who gets the tasks."""

from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import Verdict
from samza_azure.group.actions import BeginEnd, MergeOwnRow, ReadLeaderRow, WriteControl, WriteLeaderRow
from samza_azure.group.answers import Trouble
from samza_azure.group.control import Control, Member
from samza_azure.group.ending import NOT_ALONE, verdict
from samza_azure.group.learn import learn
from samza_azure.group.membership import own_row
from samza_azure.group.publish import next_control
from samza_azure.group.rows import LeaderRow
from samza_azure.group.view import View
from tests.group.situation import CONTROL, LEADER_ROW, NOW, OWNERS, ROWS, decide, leader, life_of, row, view_of


def alone(view: View) -> View:
    view.settings = replace(view.settings, alone=True)
    return view


def newcomer(control: Control = CONTROL) -> View:
    """p3, without a task, under a leader whose row it has just read."""
    tasks = {task: replace(each, owner=control.tasks["clean-0"].owner) for task, each in control.tasks.items()}
    return alone(view_of("p3", replace(control, tasks=tasks), tasks={}))


def read(view: View, row: LeaderRow, at: float) -> None:
    learn(view, ReadLeaderRow(), row, sent_at=at, now=at)


def beat(number: int, epoch: int = CONTROL.epoch) -> LeaderRow:
    return replace(LEADER_ROW, epoch=epoch, beat=70 + number, etag=f"beat {number} of epoch {epoch}")


def test_it_ends_if_another_processor_leads_and_was_seen_to_live() -> None:
    view = newcomer()
    read(view, beat(1), NOW + 1)
    assert verdict(view) is None, "one change may be the last write of a dead leader, landing late"
    read(view, beat(2), NOW + 2)
    [end] = [each for each in decide(view, NOW + 2) if isinstance(each, BeginEnd)]
    assert (end.verdict.code, end.verdict.message) == (Verdict.REFUSED, NOT_ALONE.format(leader="p1"))


def test_several_processors_are_no_mistake_otherwise() -> None:
    view = newcomer()
    view.settings = replace(view.settings, alone=False)
    for number in range(1, 4):
        read(view, beat(number), NOW + number)
    assert verdict(view) is None


def dead(view: View) -> None:
    for number in range(1, 6):
        read(view, LEADER_ROW, NOW + number)


def left(view: View) -> None:
    view.own.control = replace(CONTROL, leader=None, successor="p3")
    for number in range(1, 4):
        read(view, beat(number), NOW + number)


def ourselves(view: View) -> None:
    """It led, stepped down after an outage, and leads again as soon as it can."""
    view.own.control = replace(CONTROL, leader=Member("p3", life_of("p3")))
    for number in range(1, 4):
        read(view, beat(number), NOW + number)


def another_leadership(view: View) -> None:
    read(view, beat(1), NOW + 1)
    read(view, beat(2, CONTROL.epoch + 1), NOW + 2)
    read(view, beat(3, CONTROL.epoch + 1), NOW + 3)


def our_own_writes(view: View) -> None:
    """As candidate it names itself in the row of the silent leader; once the answer is lost."""
    row = replace(LEADER_ROW, successors=("p3",), beat=71)
    learn(view, WriteLeaderRow(row, LEADER_ROW.etag), "ours", sent_at=NOW + 1, now=NOW + 1)
    read(view, replace(row, etag="ours"), NOW + 2)
    row = replace(row, beat=72)
    learn(view, WriteLeaderRow(row, "ours"), Trouble.UNSETTLED, sent_at=NOW + 3, now=NOW + 3)
    read(view, replace(row, etag="ours, too"), NOW + 4)
    read(view, beat(4), NOW + 5)


@pytest.mark.parametrize("seen", [dead, left, ourselves, another_leadership, our_own_writes])
def test_it_goes_on_if_nobody_else_certainly_lives_and_leads(seen: object) -> None:
    view = newcomer()
    seen(view)  # type: ignore[operator]
    assert verdict(view) is None


def test_its_leader_gives_tasks_to_nobody_else() -> None:
    view = alone(leader())
    after = next_control(view, CONTROL, NOW)
    assert {each.owner.processor for each in after.tasks.values() if each.owner} == {"p1"}
    assert [each.processor for each in after.members] == ["p1"]
    moved = {task for task, processor in OWNERS.items() if processor != "p1"}
    assert all(after.tasks[task].after for task in moved), "the former owners release them first"


def test_its_leader_waits_for_no_former_owner_that_comes_back() -> None:
    """That one is to be refused. Others would wait: it has been restarted."""
    back = row("p2", incarnation="its next life", adopted=0, fingerprint="")
    known: dict[str, Any] = {"members": {**ROWS, "p2": back}, "back": {"p2": ("its next life", NOW)}}
    waited_for = next_control(leader(**known), CONTROL, NOW).tasks["clean-1"].owner
    assert waited_for == CONTROL.tasks["clean-1"].owner
    after = next_control(alone(leader(**known)), CONTROL, NOW).tasks["clean-1"].owner
    assert after is not None and after.processor == "p1"


def test_no_leader_gives_it_a_task_before_it_ends() -> None:
    """Its row names no pipeline, unless it leads, or has tasks: a leader that steps down is to keep them."""
    view = newcomer()
    assert (view.work.plan is not None, own_row(view).fingerprint) == (True, "")
    assert own_row(alone(view_of("p3"))).fingerprint == CONTROL.fingerprint
    [merged] = [each for each in decide(alone(leader()), NOW + 2) if isinstance(each, MergeOwnRow)]
    assert merged.row.fingerprint == CONTROL.fingerprint


def test_a_leader_that_is_alone_and_steps_down_publishes_nothing_when_it_leads_again() -> None:
    own = {task: replace(each, owner=CONTROL.tasks["clean-0"].owner) for task, each in CONTROL.tasks.items()}
    control = replace(CONTROL, tasks=own, members=CONTROL.members[:1])
    view = alone(view_of("p1", control))
    view.own.written = replace(own_row(view), etag="")
    again = alone(leader(control, written=view.own.written, members={"p1": view.own.written}))
    assert WriteControl not in [type(each) for each in decide(again, NOW)]

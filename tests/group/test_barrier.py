"""When all have adopted a version, and what becomes of those that have not."""

from dataclasses import replace

from samza_azure.group.actions import (
    MarkDead,
    WriteControl,
)
from samza_azure.group.age import Age
from samza_azure.group.control import (
    Barrier,
    BarrierState,
    Control,
)
from samza_azure.group.publish import next_control
from samza_azure.group.rows import ProcessorState
from samza_azure.group.view import Lease
from tests.group.situation import (
    CONTROL,
    NOW,
    ROWS,
    decide,
    leader,
    owner,
    row,
)
from tests.group.transcript import Story


def test_the_barrier_ends_when_all_have_adopted() -> None:
    started = replace(CONTROL, version=9, barrier=Barrier(9, BarrierState.START))
    view = leader(started, barrier_since=NOW, members={name: replace(each, adopted=9) for name, each in ROWS.items()})
    view.own.written = replace(ROWS["p1"], adopted=9)
    assert next_control(view, started, NOW).barrier == Barrier(9, BarrierState.END)


def test_a_member_that_does_not_adopt_a_version_is_marked_dead_and_its_tasks_move(story: Story) -> None:
    started = replace(CONTROL, version=9, barrier=Barrier(9, BarrierState.START))
    others = {name: replace(each, adopted=9) for name, each in ROWS.items() if name != "p3"}
    view = leader(started, barrier_since=NOW, members={**others, "p3": ROWS["p3"]})
    view.own.written = others["p1"]
    assert next_control(view, started, NOW + 29).barrier == Barrier(9, BarrierState.START)

    view.as_leader.lease, view.own.accepted_at = Lease("lease", NOW + 30), NOW + 30
    story.turn(view, NOW + 30, {WriteControl: "timed out"})
    actions = story.turn(view, NOW + 30.1, {MarkDead: "dead"})
    assert MarkDead("p3", "row of p3", 3) in actions
    story.turn(view, NOW + 30.2, {WriteControl: "moved"})
    assert isinstance(view.control, Control)
    assert view.control.tasks["daily-0"].owner in (owner("p1", 11), owner("p2", 11))


OVERDUE = replace(CONTROL, barrier=Barrier(2, BarrierState.TIMEOUT))


def test_a_barrier_that_timed_out_ends_when_the_last_one_has_adopted_or_is_dead() -> None:
    """One without tasks is marked dead and nothing moves: no other version comes that would end it."""
    behind = row("p4", adopted=1)
    assert next_control(leader(OVERDUE, members={**ROWS, "p4": behind}), OVERDUE, NOW) == OVERDUE
    for later in (replace(behind, adopted=2), replace(behind, state=ProcessorState.DEAD)):
        after = next_control(leader(OVERDUE, members={**ROWS, "p4": later}), OVERDUE, NOW)
        assert after.barrier == Barrier(2, BarrierState.END)


def test_a_processor_that_joins_late_is_not_marked_dead_at_the_barrier() -> None:
    fresh = {"p5": row("p5", adopted=0, state=ProcessorState.UNASSIGNED)}
    back = {"p6": row("p6", incarnation="a later one", adopted=0)}
    view = leader(OVERDUE, members={**ROWS, "p4": row("p4", adopted=1), **fresh, **back})
    view.others.ages = {name: Age(each.etag, 0.0, 0, NOW) for name, each in view.others.members.items()}
    marked = [action.processor for action in decide(view, NOW + 0.05) if isinstance(action, MarkDead)]
    assert marked == ["p4"]

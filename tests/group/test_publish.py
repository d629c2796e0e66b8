"""What a leader must not write, whatever it has worked out: checked before each write, in production too."""

from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import CorruptState
from samza_azure.group.actions import ScanMembers
from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.group.learn import learn
from samza_azure.group.notification import DrainNotification
from samza_azure.group.publish import checked, with_births
from samza_azure.messages import DrainStep, Phase
from tests.group.situation import CONTROL, NOW, ROWS, leader, owner, report, row

BEGUN = replace(CONTROL, positions={"flights/0": (1, 10), "flights/1": (0, 0)})
ENDS = {"flights/0": (1, 20), "flights/1": (0, 5)}
FLUSH = replace(BEGUN, phase=RunPhase.DRAINING, drain=DrainNotification("d", "run", step=DrainStep.FLUSH, ends=ENDS))
DRAINED = replace(FLUSH, phase=RunPhase.DRAINED)


def after(control: Control, **more: Any) -> Control:
    return replace(control, revision=control.revision + 1, **more)


def given(processor: str, generation: int) -> dict[str, Assignment]:
    """The first task is another's from now on."""
    return {**CONTROL.tasks, "clean-0": Assignment(owner(processor, generation), first=False)}


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        (BEGUN, replace(BEGUN, revision=8)),
        (BEGUN, after(BEGUN, epoch=4)),
        (BEGUN, after(BEGUN, version=1)),
        (BEGUN, after(BEGUN, version=11)),
        (BEGUN, after(BEGUN, version=10, tasks=given("p2", 11))),
        (BEGUN, after(BEGUN, version=10, tasks=given("p2", 9))),
        (BEGUN, after(BEGUN, version=10, tasks=given("p4", 10))),
        (DRAINED, after(DRAINED, phase=RunPhase.RUNNING)),
        (FLUSH, after(FLUSH, drain=None, phase=RunPhase.RUNNING)),
        (FLUSH, after(FLUSH, drain=replace(FLUSH.drain, ends={**ENDS, "flights/1": (0, 4)}))),  # type: ignore[type-var]
        (BEGUN, after(FLUSH, drain=replace(FLUSH.drain, ends={**ENDS, "flights/0": (1, 9)}))),  # type: ignore[type-var]
    ],
)
def test_a_control_blob_that_cannot_follow_is_not_written(before: Control, wrong: Control) -> None:
    with pytest.raises(CorruptState, match="would have written a control blob that cannot be"):
        checked(before, wrong)


@pytest.mark.parametrize(
    ("before", "good"),
    [
        (BEGUN, after(BEGUN, version=10)),
        (BEGUN, after(BEGUN, version=10, tasks=given("p2", 10))),
        (BEGUN, after(FLUSH)),
        (FLUSH, after(DRAINED)),
        (DRAINED, after(BEGUN, run_id="next", positions=ENDS)),
    ],
)
def test_a_valid_successor_of_the_control_blob_is_written(before: Control, good: Control) -> None:
    assert checked(before, good) == good


@pytest.mark.parametrize(("run_id", "is_first"), [("run", False), ("earlier", True)])
def test_a_task_that_starts_again_is_known_to_have_a_log(run_id: str, is_first: bool) -> None:
    """Its report says nothing of the log until the task runs again, and it was moved as one that had never begun."""
    before = replace(CONTROL, run_id=run_id, tasks={**CONTROL.tasks, "daily-0": Assignment(owner("p3"))})
    view = leader(before)
    for phase in (Phase.RUNNING, Phase.STARTING):
        rows = {**ROWS, "p3": row("p3", {"daily-0": report("daily-0", phase)})}
        learn(view, ScanMembers(), (*rows.values(),), sent_at=NOW + 1, now=NOW + 1)
        assert "daily-0" in {task for _, task in view.others.seen_born}
    now = replace(before, run_id="run", version=10, tasks=given("p2", 10) | {"daily-0": Assignment(owner("p2", 10))})
    assert with_births(view, replace(before, run_id="run"), now).tasks["daily-0"].first is is_first

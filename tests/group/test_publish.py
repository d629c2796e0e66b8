"""What a leader must not write, whatever it has worked out: checked before each write, in production too."""

from dataclasses import replace
from typing import Any

import pytest

from samza_azure.errors import CorruptState
from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.group.notification import DrainNotification
from samza_azure.group.publish import checked
from samza_azure.messages import DrainStep
from tests.group.situation import CONTROL, owner

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

"""What supervisor and container say to each other survives the wire."""

import pytest

from samza_azure.messages import (
    Alive,
    Command,
    Drain,
    DrainAsked,
    DrainPhase,
    DrainStep,
    Exit,
    Permit,
    Phase,
    Plan,
    Ready,
    Rejected,
    ReleaseTask,
    Report,
    StagePlan,
    StartTask,
    TaskError,
    TaskReport,
    decode,
    encode,
)

PLAN = Plan(
    (StagePlan("clean", ("flights",), "by", 2, partition_by=("carrier",)), StagePlan("daily", ("by",), "out", 1)),
    {"flights": 2},
    "f" * 64,
    ("a warning",),
    described={"stage clean": {"inputs": "flights"}},
)


@pytest.mark.parametrize(
    "message",
    [
        Permit(12.5),
        StartTask("clean-0", 7, 1, True, "run", "ab" * 16, {"flights/0": (0, 9)}),
        ReleaseTask("clean-0"),
        Drain(DrainStep.FLUSH, "u", {"flights/0": (1, 2)}),
        Drain(None),
        Exit(),
        Ready(PLAN),
        Rejected("No."),
        Alive(),
        DrainAsked(),
        TaskReport("clean-0", 7, 1, Phase.RUNNING),
        TaskReport(
            "clean-0",
            7,
            1,
            Phase.FAILED,
            4,
            2,
            DrainPhase.FLUSHING,
            ends={"flights/0": (0, 1)},
            error=TaskError("m", "t"),
        ),
    ],
)
def test_each_message_survives_the_wire(message: Command | Report | Alive) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode(line) == message


def test_tasks_are_named_after_their_stage() -> None:
    assert PLAN.tasks() == ["clean-0", "clean-1", "daily-0"]
    assert PLAN.stage_of("clean-1") == PLAN.stages[0]

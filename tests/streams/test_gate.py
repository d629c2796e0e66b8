"""The gate of a task's sources, and which step of a drain is next. Pure."""

from dataclasses import dataclass

import pytest

from samza_azure.messages import Drain, DrainPhase, DrainStep
from samza_azure.streams.gate import Gate, next_gate, next_steps

ENDS = {"flights/0": (0, 90)}
NO_DRAIN = Drain(None)
FREEZE, FLUSH = Drain(DrainStep.FREEZE, "d"), Drain(DrainStep.FLUSH, "d", ENDS)
FROZEN = Gate(version=1, frozen=True, draining=True)
FLUSHING = Gate(version=2, frozen=True, draining=True, ends=ENDS)
STOPPED, FLUSHED = DrainPhase.SOURCES_STOPPED, DrainPhase.FLUSHING


@dataclass(frozen=True)
class Answer:
    """What a source answered."""

    version: int
    is_at_end: bool = False


@pytest.mark.parametrize(
    ("gate", "drain", "expected"),
    [
        (Gate(), NO_DRAIN, Gate()),
        (Gate(), FREEZE, FROZEN),
        (FROZEN, FREEZE, FROZEN),
        (FROZEN, FLUSH, FLUSHING),
        (Gate(), FLUSH, Gate(version=1, frozen=True, draining=True, ends=ENDS)),
        (FLUSHING, FLUSH, FLUSHING),
        (FLUSHING, FREEZE, FLUSHING),
        (FROZEN, NO_DRAIN, Gate(version=2)),
        (FLUSHING, NO_DRAIN, FLUSHING),
        (Gate(4, batch_bytes=7), FREEZE, Gate(5, frozen=True, draining=True, batch_bytes=7)),
    ],
)
def test_a_drain_moves_the_gate_on_and_only_a_cancelled_freeze_moves_it_back(
    gate: Gate, drain: Drain, expected: Gate
) -> None:
    assert next_gate(gate, drain) == expected


@pytest.mark.parametrize(
    ("gate", "drain", "said", "frozen_for", "expected"),
    [
        (Gate(), NO_DRAIN, [Answer(0)], "", []),
        (FROZEN, FREEZE, [], "", []),
        (FROZEN, FREEZE, [Answer(0)], "", []),
        (FROZEN, FREEZE, [Answer(1)], "", [STOPPED]),
        (FROZEN, FREEZE, [Answer(1)], "an earlier drain", [STOPPED]),
        (FROZEN, FREEZE, [Answer(1)], "d", []),
        (FROZEN, FREEZE, [Answer(1)], None, []),
        (FROZEN, FLUSH, [Answer(1)], "d", []),
        (FLUSHING, FLUSH, [Answer(2)], "d", []),
        (FLUSHING, FLUSH, [Answer(1, is_at_end=True)], "d", []),
        (FLUSHING, FLUSH, [Answer(2, is_at_end=True)], "d", [FLUSHED]),
        (FLUSHING, FLUSH, [Answer(2, is_at_end=True)], "", [STOPPED, FLUSHED]),
        (FLUSHING, FLUSH, [Answer(2, is_at_end=True)], None, [FLUSHED]),
        (FLUSHING.changed(step=2), FLUSH, [Answer(3, is_at_end=True)], "d", []),
    ],
)
def test_a_drain_steps_on_once_all_sources_have_answered_under_the_gate(
    gate: Gate, drain: Drain, said: list[Answer], frozen_for: str | None, expected: list[DrainPhase]
) -> None:
    assert next_steps(gate, drain, said, sources=1, frozen_for=frozen_for) == expected


def test_a_task_waits_for_the_answers_of_all_its_sources() -> None:
    at_end = Answer(2, is_at_end=True)
    assert next_steps(FLUSHING, FLUSH, [at_end], sources=2, frozen_for="d") == []
    assert next_steps(FLUSHING, FLUSH, [at_end, Answer(2)], sources=2, frozen_for="d") == []
    assert next_steps(FLUSHING, FLUSH, [at_end, at_end], sources=2, frozen_for="d") == [FLUSHED]

"""The gate of a task's sources, and which step of a drain is next. Pure."""

from dataclasses import dataclass

import pytest

from samza_azure.logs.position import Position
from samza_azure.messages import Drain, DrainPhase, DrainStep
from samza_azure.streams.gate import Gate, is_all_read, next_gate, next_steps, read_too_far
from samza_azure.streams.offset import ProducerPosition, ProducerState

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


def at(position: int, state: ProducerState = ProducerState.ACTIVE) -> ProducerPosition:
    return ProducerPosition((0, position), 5, state)


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


@pytest.mark.parametrize(
    ("gate", "partition", "expected"),
    [
        (FROZEN, "flights/0", None),
        (FLUSHING, "flights/0", (0, 90)),
        (FLUSHING, "flights/1", (0, 0)),
        (FLUSHING, None, None),
    ],
)
def test_a_drain_ends_source_partitions_and_no_logs_of_tasks(
    gate: Gate, partition: str | None, expected: Position | None
) -> None:
    assert gate.end_of(partition) == expected


@pytest.mark.parametrize(
    ("places", "ends", "is_read", "too_far"),
    [
        ([at(90)], [(0, 90)], True, None),
        ([at(90), at(0)], [(0, 90), (0, 0)], True, None),
        ([at(90), at(80)], [(0, 90), (0, 90)], False, None),
        ([at(90), at(91)], [(0, 90), (0, 90)], False, 1),
        ([at(7, ProducerState.DRAINED)], [None], True, None),
        ([at(7, ProducerState.DRAINED), at(7, ProducerState.IDLE)], [None, None], False, None),
        ([], [], True, None),
    ],
)
def test_a_source_has_read_all_at_the_ends_of_partitions_and_after_the_last_record_of_tasks(
    places: list[ProducerPosition], ends: list[Position | None], is_read: bool, too_far: int | None
) -> None:
    assert is_all_read(places, ends) == is_read
    assert read_too_far(places, ends) == too_far

"""How often logs are read, and how much of them. `next_offset` is in test_offset.py. Pure."""

import pytest

from samza_azure.logs.position import Position
from samza_azure.streams.offset import ProducerPosition, ProducerState
from samza_azure.streams.pace import GROW_AFTER, is_read_now, raised_bytes, reread_s

KIB = 1024
HERE, BEFORE, AFTER = (1, 50), (1, 40), (2, 0)


@pytest.mark.parametrize(
    ("producers", "is_believed", "is_flushing", "expected"),
    [
        (1, True, False, 5.0),
        (20, True, False, 10.0),
        (1000, True, False, 60.0),
        (1000, False, False, 1.0),
        (1, True, True, 0.2),
        (50, True, True, 0.5),
        (50, False, True, 0.5),
        (1000, False, True, 1.0),
        (1000, True, True, 10.0),
    ],
)
def test_a_log_that_was_read_to_its_end_is_read_again_after_a_while(
    producers: int, is_believed: bool, is_flushing: bool, expected: float
) -> None:
    assert reread_s(producers, is_believed=is_believed, is_flushing=is_flushing) == expected


@pytest.mark.parametrize(
    ("hint", "is_due", "expected"),
    [
        (None, False, False),
        (None, True, True),
        (BEFORE, False, False),
        (HERE, False, False),
        (HERE, True, True),
        (AFTER, False, True),
    ],
)
def test_a_log_is_read_when_it_is_due_or_after_a_hint(hint: Position | None, is_due: bool, expected: bool) -> None:
    active, drained = ProducerPosition(HERE), ProducerPosition(HERE, state=ProducerState.DRAINED)
    assert is_read_now(active, hint, None, is_due=is_due, is_frozen=False) == expected
    assert not is_read_now(drained, hint, None, is_due=is_due, is_frozen=False)


@pytest.mark.parametrize(("end", "expected"), [(None, False), (BEFORE, False), (HERE, False), (AFTER, True)])
def test_a_frozen_source_partition_is_read_only_up_to_its_end(end: Position | None, expected: bool) -> None:
    assert is_read_now(ProducerPosition(HERE), AFTER, end, is_due=True, is_frozen=True) == expected


@pytest.mark.parametrize(
    ("now", "batches", "expected"),
    [
        (100 * KIB, 1, 100 * KIB),
        (100 * KIB, GROW_AFTER - 1, 100 * KIB),
        (100 * KIB, GROW_AFTER, 200 * KIB),
        (100 * KIB, GROW_AFTER + 1, 100 * KIB),
        (200 * KIB, 2 * GROW_AFTER, 300 * KIB),
        (300 * KIB, 3 * GROW_AFTER, 300 * KIB),
    ],
)
def test_a_lowered_bound_of_a_batch_doubles_now_and_then_up_to_the_usual_one(
    now: int, batches: int, expected: int
) -> None:
    assert raised_bytes(now, 300 * KIB, batches) == expected

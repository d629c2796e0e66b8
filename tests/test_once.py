"""Whose events are remembered, and for how long: `EventHubsOnce`."""

import json

import pytest

from samza_azure import EventHubsOnce
from samza_azure.systems.once import LONGEST, MOST, NUMBER, WRITER, WRITERS


def test_an_event_comes_again_whose_number_is_not_behind_the_last_one() -> None:
    once = EventHubsOnce()
    assert [once.is_next("w", number) for number in (0, 1, 1, "2", b"2", 0, MOST)] == [True] * 2 + [False, True] + [
        False
    ] * 2 + [True]
    assert bytes(once) == b'{"w":%d}' % MOST


@pytest.mark.parametrize("number", [-1, "-7", MOST + 1, "9" * 4_000, "9" * 5_000, "x", None, float("inf")])
def test_a_number_that_no_job_of_ours_counts_to_is_always_new(number: object) -> None:
    """A stranger's event with a number below 0 was dropped as a repetition."""
    once = EventHubsOnce()
    assert [once.is_new({WRITER: "w", NUMBER: number}) for _ in range(2)] == [True, True] and bytes(once) == b""


@pytest.mark.parametrize("writer", ["w" * (LONGEST + 1), "é", b"w" * 300, 7, None])
def test_a_writer_that_is_none_of_ours_is_not_remembered(writer: object) -> None:
    once = EventHubsOnce()
    assert [once.is_new({WRITER: writer, NUMBER: 1}) for _ in range(2)] == [True, True] and bytes(once) == b""


def test_the_state_is_bounded_whatever_is_sent() -> None:
    """A thousand names of 100 kB made one of 100 MB, written again with each record."""
    once = EventHubsOnce()
    for each in range(WRITERS + 100):
        once.is_next(f"{each:04}" + "\0" * 100_000, 1)
        once.is_next(f"{each:04}" + "\0" * (LONGEST - 4), MOST)
    assert 1_000_000 < len(bytes(once)) < 1_300_000
    assert len(json.loads(bytes(once))) == WRITERS


def test_a_state_that_is_too_large_loses_what_is_not_ours() -> None:
    """An older version has kept it."""
    state = json.dumps({"w": 3, "x" * 100_000: 3, "y": -1}).encode()
    assert bytes(EventHubsOnce(state)) == b'{"w":3}'

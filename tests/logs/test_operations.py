"""How much a window reads at a time: twice as much with each read that goes straight on, little after a jump."""

import pytest

from samza_azure.logs.operations import CHUNK_MAX, Read, Span, Window

AHEAD = 100
BLOB = bytes(4 * CHUNK_MAX)


def read(window: Window, position: int) -> int:
    """Reach one byte there: how many bytes are asked for."""
    rule = window.reach(position, 1)
    asked = next(rule)
    assert isinstance(asked, Read)
    with pytest.raises(StopIteration):
        rule.send(Span(BLOB[asked.start : asked.start + asked.length], len(BLOB)))
    return asked.length


def test_each_read_that_goes_straight_on_asks_for_twice_as_much() -> None:
    window, position, asked = Window("b", AHEAD), 0, []
    for _ in range(3):
        asked.append(read(window, position))
        position += asked[-1]
    assert asked == [AHEAD, 2 * AHEAD, 4 * AHEAD]


def test_no_read_asks_for_more_than_the_maximum() -> None:
    window = Window("b", CHUNK_MAX)
    assert read(window, 0) == read(window, CHUNK_MAX) == CHUNK_MAX


@pytest.mark.parametrize("jumps_to", [AHEAD + 1, 10 * AHEAD, 0], ids=["a gap", "far ahead", "back"])
def test_a_read_that_does_not_go_straight_on_asks_for_little_again(jumps_to: int) -> None:
    """Whoever skips records would read all that it skips."""
    window = Window("b", AHEAD)
    start = 5 * AHEAD
    assert read(window, start) == AHEAD
    assert read(window, start + AHEAD) == 2 * AHEAD
    assert read(window, start + 3 * AHEAD + 1 + jumps_to if jumps_to else 0) == AHEAD

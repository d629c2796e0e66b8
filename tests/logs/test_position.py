"""How much of a log lies between two places in it, as far as positions tell."""

import pytest

from samza_azure.logs.position import Position, bytes_between

MIB = 1 << 20


@pytest.mark.parametrize(
    ("begin", "end", "size"),
    [
        ((0, MIB), (0, 3 * MIB), 2 * MIB),
        ((2, 7), (2, 7), 0),
        ((0, MIB), (1, 4_096), 63 * MIB + 4_096),
        ((0, MIB), (3, 4_096), 63 * MIB + 2 * 64 * MIB + 4_096),
        ((0, 65 * MIB), (1, 4_096), 4_096),
    ],
    ids=["one blob", "nothing", "the next blob", "whole blobs between", "a blob that is longer than it should be"],
)
def test_blobs_between_count_as_full(begin: Position, end: Position, size: int) -> None:
    """They once counted for nothing: a reader 64 MiB behind the end was said to be 4 KiB behind."""
    assert bytes_between(begin, end, 64 * MIB) == size


@pytest.mark.parametrize("end", [(0, 0), (1, 100), (0, 1 << 40)])
def test_an_end_before_the_position_leaves_nothing_to_read(end: Position) -> None:
    assert bytes_between((1, 200), end, 64 * MIB) == 0

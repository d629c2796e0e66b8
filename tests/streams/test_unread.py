"""What the readers of a log have yet to read."""

from random import Random

import pytest

from samza_azure.streams.unread import GRAIN, Unread


def test_only_rows_for_a_reader_count_and_the_slowest_decides() -> None:
    unread = Unread({"rows": frozenset({0, 1}), "dead": frozenset({2})})
    unread.appended((0, 10), {0: GRAIN, 2: 5})
    unread.appended((0, 20), {1: GRAIN})
    assert unread.behind(2 * GRAIN) == ["rows"]
    assert unread.behind(5) == ["rows", "dead"]
    unread.read("rows", (0, 10))
    unread.read("dead", (0, 10))
    assert (unread.behind(GRAIN), unread.behind(GRAIN + 1), unread.behind(1)) == (["rows"], [], ["rows"])
    unread.ended("rows")
    unread.appended((1, 5), {0: GRAIN})
    assert unread.behind(1) == []


@pytest.mark.parametrize("seed", range(5))
def test_it_counts_as_a_list_of_all_records_does_but_for_a_grain(seed: int) -> None:
    dice, unread = Random(seed), Unread({"reader": frozenset({0})})
    records: list[tuple[int, int]] = []
    for number in range(500):
        size = dice.choice([0, 10, 1_000, GRAIN])
        records.append((number, size))
        unread.appended((0, number), {0: size})
        if dice.random() < 0.1:
            at = dice.randrange(records[0][0], number + 1)
            unread.read("reader", (0, at))
            records = [each for each in records if each[0] > at] or [(number, 0)]
        left = sum(size for _, size in records)
        assert not left or unread.behind(left)
        assert not unread.behind(left + 2 * GRAIN)
    unread.read("reader", (0, 500))
    assert not unread.behind(1)

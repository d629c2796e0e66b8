"""Fleets whose processors keep replicas of each other's tasks, under all kinds of faults: rows come once as ever."""

from random import Random

import pytest

from simulator.scenario import replicated
from simulator.world import play


@pytest.mark.parametrize(
    "seed", [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (*range(5), *range(6, 12), 950004, 8300006))]
)
def test_a_fleet_with_replicas(seed: int) -> None:
    result = play(replicated(seed))
    assert result.violation is None, "\n".join(result.history)
    assert result.seen["replica taken"] > 0 or seed != 5, "it shows nothing"


@pytest.mark.long
@pytest.mark.parametrize("seed", [950001, 950005])
def test_moves_to_who_has_no_replica_are_judged(seed: int) -> None:
    result = play(replicated(seed))
    assert result.violation is None, "\n".join(result.history)
    assert result.seen["judged Warm"] > 0


@pytest.mark.long
def test_fresh_fleets_with_replicas_find_nothing() -> None:
    first = Random().randrange(1 << 31)
    print(f"fresh seeds of simulator.scenario.replicated from {first}")
    for seed in range(first, first + 10):
        result = play(replicated(seed))
        assert result.violation is None, "\n".join(result.history)

"""Each known mistake is caught by the invariant that it names; otherwise the simulator would be blind to it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from samza_azure.sim.world import Scenario, draw, play
from tests.sim.mutants import MUTANTS, Mutant

#: So many seeds may a mistake live. Most do not outlive the first.
SEEDS = 40


def scenario(mutant: Mutant, seed: int) -> Scenario:
    """A small fleet under the faults that the mistake cannot bear."""
    small = draw(seed, processors=3, fault_s=60.0)
    return replace(small, faults=mutant.faults, every_s=10.0, profile="default", sources=2, counts=1)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_caught_by_its_invariant(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    mutant.apply(patch)
    violations = (play(scenario(mutant, seed)).violation for seed in range(mutant.seed, mutant.seed + SEEDS))
    first = next((violation for violation in violations if violation is not None), None)
    assert first is not None, f"{mutant.name} survives"
    assert first.partition(": ")[2].startswith(f"{mutant.killed_by}:")

"""Each known mistake is caught by the invariant that it names; otherwise the simulator would be blind to it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from samza_azure.sim.world import Scenario, draw, play
from tests.sim.mutants import MUTANTS, Mutant


def scenario(mutant: Mutant) -> Scenario:
    """A small fleet under the faults that the mistake cannot bear."""
    small = draw(mutant.seed, processors=3, fault_s=60.0)
    return replace(small, faults=mutant.faults, every_s=10.0, profile="default", sources=2, counts=1)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_caught_by_its_invariant(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    assert play(scenario(mutant)).violation is None, "the seed must be clean without the mistake"
    mutant.apply(patch)
    violation = play(scenario(mutant)).violation
    assert violation is not None
    assert violation.partition(": ")[2].startswith(f"{mutant.killed_by}:")

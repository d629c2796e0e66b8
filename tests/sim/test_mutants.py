"""Each known mistake is caught by the invariant that it names; otherwise the simulator would be blind to it.

With -rP the table of all of them is printed: name, whose mistake it was, invariant, seed, what was said.
"""

import pytest

from tests.sim.mutants import ELSEWHERE, MUTANTS, Elsewhere, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_known_mistake_is_caught_by_its_invariant(mutant: Mutant) -> None:
    killer = mutant.killer()
    assert killer is not None, f"{mutant.name} survives"
    seed, violation = killer
    print(f"| {mutant.name} | {mutant.whose} | {mutant.killed_by} | {seed} | {violation.splitlines()[0]}")


@pytest.mark.parametrize("mutant", ELSEWHERE, ids=lambda mutant: mutant.name)
def test_a_mistake_that_no_simulation_shows_is_caught_by_an_ordinary_test(mutant: Elsewhere) -> None:
    mutant.test()
    with pytest.MonkeyPatch.context() as patch:
        mutant.mistake(patch)
        with pytest.raises((AssertionError, ImportError, AttributeError, pytest.fail.Exception)) as caught:
            mutant.test()
    print(f"| {mutant.name} | {mutant.whose} | {mutant.test.__name__} | {caught.typename}")

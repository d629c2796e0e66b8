"""Each known mistake is caught by the invariant that it names; otherwise the simulator would be blind to it.

With -rP the table of all of them is printed: name, whose mistake it was, invariant, seed, what was said.
"""

import pytest

from tests.sim.mutants import ELSEWHERE, MUTANTS, Elsewhere, Mutant

#: Their seeds take seconds each. Of each invariant that they break another mutant remains.
SLOW = {
    "DRAINED before the logs are",
    "FLUSH before all stand still",
    "a barrier without an end",
    "a container that hangs counts",
    "a drain waits for a task that has ended",
    "a leader elects itself",
    "a leader is suspected three times late",
    "a leader that will go leads on",
    "a processor that is cut off keeps its tasks",
    "a renewal is tried once",
    "a row is only inserted",
    "a stop keeps the freeze",
    "an older writer takes the log back",
    "an outage quadruples the calls",
    "any incarnation of a processor will do",
    "clean-up before the others have left",
    "dead after three timeouts",
    "every drain is accepted",
    "leaving waits for the storage",
    "no deadline of the lease",
    "no successors are named",
    "nobody warms up",
    "other partitions are not noticed",
    "tasks wait for the next container",
    "the fastest producer counts",
    "the first start is never over",
}


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=[pytest.mark.long] * (each.name in SLOW)) for each in MUTANTS],
    ids=lambda mutant: mutant.name,
)
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

"""Wide fleets: of any size, profile, style and clocks; what lasts in them is met nowhere else."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samza_azure.group.timing import PROFILES
from simulator.scenario import draw, wide
from simulator.world import World, play

ROOT = Path(__file__).parents[2]
SIMULATION = ROOT / "tests" / "prove" / "simulation.py"


def test_a_wide_fleet_may_be_any() -> None:
    fleets = [wide(seed) for seed in range(400)]
    assert {each.processors for each in fleets} == set(range(1, 13))
    assert {each.profile for each in fleets} == set(PROFILES)
    assert {each.style for each in fleets} == {"storm", "busy", "mild"}
    assert {each.clocks for each in fleets} == {True, False}
    assert [each.seed for each in fleets] == list(range(400))
    assert all(each.processors > 1 and each.profile != "fast" for each in fleets if each.style == "mild")
    assert not any(draw(seed).lasting or draw(seed).throttled or draw(seed).pauses for seed in range(400))


@pytest.mark.long  # it takes as long as all others here together
def test_a_leader_that_sees_the_others_write_again_marks_no_processor_dead() -> None:
    """No write was accepted for 30 s, and another processor was the first to write again: S10."""
    result = play(wide(1))
    assert result.violation is None, "\n".join(result.history)


@pytest.mark.long  # ten fleets, of which one meets it; tests/storage/test_outcomes.py has the answer to such a write
def test_a_write_meets_a_lease_that_has_run_out() -> None:
    """One fleet in ten shows it. Any change of the calls changes which."""
    for seed in range(2027, 2087):
        result = play(wide(seed))
        assert result.violation is None
        if result.seen["control write refused LeaseLost"] > 0 and result.seen["idle record"] > 0:
            break
    else:
        pytest.fail("no write has met a lease that had run out")


#: The pairs of a fault and a step for which the faults of a steered fleet wait.
STEERED = (
    "container freezes/death;poison/clean-up;crash/death;container dies/death;clock jumps/death;"
    "cut off/stopping;cancel/death;cancel/stopping;garbage/joining;garbage/log rolls;garbage/clean-up;"
    "garbage/stopping;poison/run begins;old code/joining;old code/campaign;old code/leaderless;"
    "other stages/death;other stages/run begins;access refused/campaign;access refused/FREEZE;"
    "access refused/clean-up;container dies/joining;container dies/FLUSH;supervisor freezes/campaign"
)


@pytest.mark.long  # about twenty seconds
def test_a_task_may_go_back_to_where_it_failed_if_the_others_lack_a_container() -> None:
    """Retry counted a member whose container hung, and had been ended, as one that could have tried the task."""
    rare = tuple((fault, step) for fault, _, step in (pair.partition("/") for pair in STEERED.split(";")))
    result = play(replace(wide(434600986), seed=434601010, rare=rare))
    assert result.violation is None, "\n".join(result.history)


def test_the_death_in_a_lull_is_a_fault() -> None:
    """It was not counted as one: S11 said that the leader changed without a fault."""
    world = World(wide(11))
    world._fault = lambda kind, who="": None  # type: ignore[method-assign]  # no other fault
    result = world.play()
    assert result.violation is None, "\n".join(result.history)
    assert any("dies in a lull" in line for line in result.history)
    assert world.faults == 1


@pytest.mark.long  # of what tests/prove/simulation.py prints, which `make prove` runs
def test_a_long_simulation_says_how_far_a_short_one_came() -> None:
    command = [sys.executable, str(SIMULATION), "--from", "3", "--seconds", "0.1", "--jobs", "1", "--branches"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    said = re.search(r"a fleet has met \d+ of (\d+) branches", process.stdout)
    assert "not reached yet:" in process.stdout
    branches = re.findall(r"^  \d+ samza_azure/", process.stdout, re.MULTILINE)
    assert said is not None and len(branches) == int(said[1]), "each of them is printed"

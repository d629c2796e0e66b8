"""Groups of other sizes: many that start at once, and more processors than tasks."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from samza_azure.commands.azurite.emulator import Azurite

from .group_members import World, processes

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def group(emulator: Azurite) -> Iterator[Callable[..., World]]:
    """Makes a group that shares so many tasks."""
    made: list[World] = []

    def make(tasks: int, profile: str = "fast") -> World:
        made.append(World(emulator, tasks, profile))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.mark.parametrize(("profile", "count", "within_s"), [("fast", 8, 0.0), ("default", 20, 2.0)])
def test_processors_that_are_released_together_share_evenly_and_soon(
    group: Callable[..., World], profile: str, count: int, within_s: float
) -> None:
    """`fast` takes a processor for dead after 1.5 s. Twenty on two cores wait longer than that for their turn, and say
    so in a warning; eight do not."""
    world, gate = group(2 * count, profile), processes.Event()
    world.start(*(f"p{number:02}" for number in range(count)), gate=gate, within_s=within_s)
    world.until(lambda: "some do not wait", lambda: all(life.of("waits") for life in world.members.values()))
    gate.set()
    shown = world.settled()
    assert Counter(len(each["tasks"]) for each in shown["processors"]) == {2: count}
    # A version per debounce of 2 s is what a slow machine keeps, too. With `fast` (0.5 s, dead after 1.5 s) the count
    # says how slow the machine is; `tests/sim/test_cost.py` counts there, by the clock of the simulator.
    assert profile == "fast" or len(world.versions()) <= 3


def test_a_processor_without_a_task_is_a_standby_under_any_leader(group: Callable[..., World]) -> None:
    """Four groups at the same time, each led by another one."""
    worlds = {leader: group(2) for leader in NAMES}
    for leader, world in worlds.items():
        world.start(leader)
    for leader, world in worlds.items():
        world.settled()
        world.start(*(name for name in NAMES if name != leader))
    for leader, world in worlds.items():
        shown = world.settled()
        assert shown["leader"] == leader
        assert sorted(len(each["tasks"]) for each in shown["processors"]) == [0, 0, 1, 1]
        world.kill(leader)
    for leader, world in worlds.items():
        after = world.settled()
        assert sorted(len(each["tasks"]) for each in after["processors"] if each["id"] != leader) == [0, 1, 1]

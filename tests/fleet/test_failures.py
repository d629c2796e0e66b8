"""One warm group of three through Samza's failure suite, and on. After each test all is well and every log is exact.

The tests share the group and run in their order.
"""

import os
import signal
import time
from typing import Any

import pytest

from .group_members import World, incarnations, undisturbed

#: Longer than the death timeout, and than the time after which a processor that is cut off stops by itself.
OUTAGE_S = 2.5
#: So many rows take longer than the death timeout, too.
STEADY_ROWS = 10


def kept(before: dict[str, Any], *lost: str) -> set[str]:
    """The tasks of those that were not lost."""
    return {task["name"] for task in before["tasks"] if task["owner"] not in lost}


def taken_over(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """One fault means one take-over, or two if the first successor was slow."""
    return before["epoch"] < after["epoch"] <= before["epoch"] + 2


def test_three_processors_share_all_tasks(world: World) -> None:
    shown = world.settled()
    assert sorted(len(each["tasks"]) for each in shown["processors"]) == [2, 3, 3]


def test_the_leader_is_killed(world: World) -> None:
    before = world.settled()
    world.kill(before["leader"])
    after = world.settled()
    assert taken_over(before, after)
    assert undisturbed(before, after) == kept(before, before["leader"])
    world.start(before["leader"])
    world.settled()


def test_a_follower_is_killed(world: World) -> None:
    before = world.settled()
    victim = world.followers[0]
    world.kill(victim)
    after = world.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert undisturbed(before, after) == kept(before, victim)
    world.start(victim)
    world.settled()


def test_both_followers_are_killed(world: World) -> None:
    before = world.settled()
    victims = world.followers
    world.kill(*victims)
    after = world.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert undisturbed(before, after) == kept(before, *victims)
    world.start(*victims)
    world.settled()


def test_the_leader_and_a_follower_are_killed(world: World) -> None:
    before = world.settled()
    victims = [before["leader"], world.followers[0]]
    world.kill(*victims)
    after = world.settled()
    assert taken_over(before, after)
    assert undisturbed(before, after) == kept(before, *victims)
    world.start(*victims)
    world.settled()


def test_the_leader_stands_still_is_deposed_and_comes_back_as_a_new_incarnation(world: World) -> None:
    before = world.settled()
    victim = before["leader"]
    world.pause(victim)
    meanwhile = world.settled()
    world.resume(victim)
    after = world.settled(lambda shown: incarnations(shown)[victim] != incarnations(before)[victim])
    assert taken_over(before, meanwhile)
    assert (after["leader"], after["epoch"]) == (meanwhile["leader"], meanwhile["epoch"])


def test_all_are_restarted_one_after_another(world: World) -> None:
    before = world.settled()
    for name in world.alive:
        world.leave(name)
        world.start(name)
        world.settled()
    after = world.settled()
    assert not set(incarnations(before).values()) & set(incarnations(after).values())


def test_a_second_processor_with_the_id_of_a_live_one_is_refused_and_disturbs_nobody(world: World) -> None:
    before = world.settled()
    second = world.another("p1")
    second.process.join(10)
    ((code, message),) = second.of("ended")
    assert (code, "A live processor has the id 'p1'" in message) == (2, True)
    after = world.settled()
    assert undisturbed(before, after) == kept(before)
    assert incarnations(after) == incarnations(before)


@pytest.mark.parametrize("only_holder", [True, False], ids=["its directory is known to be free", "it has to wait"])
def test_a_processor_is_killed_and_started_again_before_anybody_takes_it_for_dead(
    world: World, only_holder: bool
) -> None:
    before = world.settled()
    victim = world.followers[0]
    world.kill(victim)
    world.start(victim, only_holder=only_holder)
    after = world.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])


@pytest.mark.parametrize("away", ["blobs", "table", "both"])
def test_storage_is_away_for_longer_than_the_death_timeout_and_nobody_is_taken_for_dead(
    world: World, away: str
) -> None:
    before, alive = world.settled(), world.alive
    services = {"blobs": [world.emulator.pid], "table": [world.emulator.table_pid]}
    stopped = services.get(away, [world.emulator.pid, world.emulator.table_pid])
    for service in stopped:
        os.kill(service, signal.SIGSTOP)
    try:
        time.sleep(OUTAGE_S)  # how long the outage lasts, not a hope
        assert world.alive == alive
    finally:
        for service in stopped:
            os.kill(service, signal.SIGCONT)
    world.exact(world.settled(), more=STEADY_ROWS)
    after = world.status()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert incarnations(after) == incarnations(before)
    assert undisturbed(before, after) == kept(before)

"""One warm group of three through Samza's failure suite, and on. After each test all is well and every log is exact.

The tests share the group and run in their order.
"""

import os
import signal
import time
from typing import Any

import pytest

from .group_members import GroupOnAzurite, incarnations, undisturbed

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


def test_three_processors_share_all_tasks(group: GroupOnAzurite) -> None:
    shown = group.settled()
    assert sorted(len(each["tasks"]) for each in shown["processors"]) == [2, 3, 3]


def test_the_leader_is_killed(group: GroupOnAzurite) -> None:
    before = group.settled()
    group.kill(before["leader"])
    after = group.settled()
    assert taken_over(before, after)
    assert undisturbed(before, after) == kept(before, before["leader"])
    group.start(before["leader"])
    group.settled()


@pytest.mark.long  # one dies with the leader below
def test_a_follower_is_killed(group: GroupOnAzurite) -> None:
    before = group.settled()
    victim = group.followers[0]
    group.kill(victim)
    after = group.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert undisturbed(before, after) == kept(before, victim)
    group.start(victim)
    group.settled()


@pytest.mark.long  # the leader and one of them is below
def test_both_followers_are_killed(group: GroupOnAzurite) -> None:
    before = group.settled()
    victims = group.followers
    group.kill(*victims)
    after = group.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert undisturbed(before, after) == kept(before, *victims)
    group.start(*victims)
    group.settled()


def test_the_leader_and_a_follower_are_killed(group: GroupOnAzurite) -> None:
    before = group.settled()
    victims = [before["leader"], group.followers[0]]
    group.kill(*victims)
    after = group.settled()
    assert taken_over(before, after)
    assert undisturbed(before, after) == kept(before, *victims)
    group.start(*victims)
    group.settled()


def test_a_frozen_leader_is_deposed_and_rejoins_as_a_new_incarnation(group: GroupOnAzurite) -> None:
    before = group.settled()
    victim = before["leader"]
    group.pause(victim)
    meanwhile = group.settled()
    group.resume(victim)
    after = group.settled(lambda shown: incarnations(shown)[victim] != incarnations(before)[victim])
    assert taken_over(before, meanwhile)
    assert (after["leader"], after["epoch"]) == (meanwhile["leader"], meanwhile["epoch"])


def test_all_are_restarted_one_after_another(group: GroupOnAzurite) -> None:
    before = group.settled()
    for name in group.alive:
        group.leave(name)
        group.start(name)
        group.settled()
    after = group.settled()
    assert not set(incarnations(before).values()) & set(incarnations(after).values())


def test_a_second_processor_with_the_id_of_a_live_one_is_refused_and_disturbs_no_other(group: GroupOnAzurite) -> None:
    before = group.settled()
    second = group.another("p1")
    second.join(10)
    ((code, message),) = second.of("ended")
    assert (code, "A live processor has the id 'p1'" in message) == (2, True)
    after = group.settled()
    assert undisturbed(before, after) == kept(before)
    assert incarnations(after) == incarnations(before)


@pytest.mark.parametrize("only_holder", [True, False], ids=["its directory is known to be free", "it has to wait"])
def test_a_processor_is_killed_and_restarted_before_it_is_marked_dead(group: GroupOnAzurite, only_holder: bool) -> None:
    before = group.settled()
    victim = group.followers[0]
    group.kill(victim)
    group.start(victim, only_holder=only_holder)
    after = group.settled()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])


@pytest.mark.parametrize("away", [*(pytest.param(each, marks=pytest.mark.long) for each in ("blobs", "table")), "both"])
def test_an_outage_longer_than_the_death_timeout_marks_no_processor_dead(group: GroupOnAzurite, away: str) -> None:
    before, alive = group.settled(), group.alive
    services = {"blobs": [group.emulator.pid], "table": [group.emulator.table_pid]}
    stopped = services.get(away, [group.emulator.pid, group.emulator.table_pid])
    for service in stopped:
        os.kill(service, signal.SIGSTOP)
    try:
        time.sleep(OUTAGE_S)  # how long the outage lasts, not a hope
        assert group.alive == alive
    finally:
        for service in stopped:
            os.kill(service, signal.SIGCONT)
    group.exact(group.settled(), more=STEADY_ROWS)
    after = group.status()
    assert (after["leader"], after["epoch"]) == (before["leader"], before["epoch"])
    assert incarnations(after) == incarnations(before)
    assert undisturbed(before, after) == kept(before)

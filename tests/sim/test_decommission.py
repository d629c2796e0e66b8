"""Processors that are told that they will go, and die at that time: stories, and fleets from seeds.

In each the rows are exact at the end, and nothing has two owners: the simulator checks that all along.
"""

from collections.abc import Sequence
from random import Random

import pytest

from samza_azure.group.control import RunPhase
from samza_azure.group.notice import Availability
from samza_azure.group.rows import RequestKind
from simulator.life import Life
from simulator.network import Outage
from simulator.scenario import noticed
from simulator.simulate import command
from simulator.world import play
from tests.sim.test_ending import Story, played

#: Enough to hand over, by the default profile.
NOTICE_S = 30.0


class Told(Story):
    """A fleet that runs; some are told that they will go, and then die."""

    def __init__(self, seed: int = 1, profile: str = "default") -> None:
        super().__init__(seed, profile)
        self.died_with: dict[str, int] = {}  # the tasks that were its own when it died

    def others(self, *gone: Life) -> list[Life]:
        return [life for life in self.lives.values() if life not in gone]

    async def tell(self, victims: Sequence[Life], seconds: float = NOTICE_S) -> None:
        """A notice for all of them, and their death, whatever they have done by then."""
        for life in victims:
            life.notice("event", seconds)
        await self._wait(seconds)
        for life in victims:
            mine = life.processor.view.incarnation
            owners = [each.owner.incarnation for each in self.control.tasks.values() if each.owner is not None]
            self.died_with[life.name] = owners.count(mine)
            life.crash()
            self._disturb()

    async def is_well(self, *names: str) -> None:
        """The rest is well, after those that were named have been started again."""
        for name in names:
            self.start(name, delay=1.0)
        await self._until("all is well", lambda: self.unhealed() is None, 120.0)


@pytest.mark.parametrize("profile", ["default", pytest.param("fast", marks=pytest.mark.long)])
def test_two_of_three_leave_at_once_the_leader_first(profile: str) -> None:
    class Two(Told):
        async def _play(self) -> None:
            await self._runs()
            leader, other = self._life(leads=True), self._life(leads=False)
            (rest,) = self.others(leader, other)
            epoch = self.control.epoch
            await self.tell([leader, other])
            # The leader may hand over before it knows that the other one goes, too.
            assert set(self.died_with.values()) == {0} and self.control.epoch <= epoch + 2
            assert self.control.leader is not None and self.control.leader.processor == rest.name
            await self.is_well(leader.name, other.name)
            await self._drain()

    played(Two(profile=profile))


def test_the_leader_leaves_and_hands_over_the_leadership_before_it_has_released_anything() -> None:
    class Leads(Told):
        async def _play(self) -> None:
            await self._runs()
            leader = self._life(leads=True)
            epoch, had = self.control.epoch, set(leader.running)
            leader.notice("event", NOTICE_S)
            await self._until("it hands over", lambda: self.control.leader is None, NOTICE_S / 2, step=0.002)
            assert had and set(leader.running) == had
            await self._until("another one leads", lambda: self.control.leader is not None, NOTICE_S / 2)
            await self._until("it has released all", lambda: not leader.running, NOTICE_S / 2)
            assert self.control.epoch == epoch + 1 and leader.supervisor.alive
            await self._wait(NOTICE_S)
            leader.crash()
            self._disturb()
            await self.is_well(leader.name)
            await self._drain()

    played(Leads())


def test_both_followers_leave_at_once_and_the_leader_goes_on_alone() -> None:
    class Two(Told):
        async def _play(self) -> None:
            await self._runs()
            leader, epoch = self._life(leads=True), self.control.epoch
            followers = self.others(leader)
            await self.tell(followers)
            assert set(self.died_with.values()) == {0} and self.control.epoch == epoch
            assert set(leader.running) == self.control.tasks.keys()
            await self.is_well(*(life.name for life in followers))
            await self._drain()

    played(Two())


def test_all_leave_and_run_on_to_the_end_and_the_next_to_start_goes_on() -> None:
    class All(Told):
        async def _play(self) -> None:
            await self._runs()
            gone = list(self.lives.values())
            for life in gone:
                life.notice("event", NOTICE_S)
            await self._wait(NOTICE_S / 2)  # at first the leader does not know that the others go, too
            for _ in range(int(NOTICE_S / 2)):
                run = {task for life in gone for task in life.running}
                assert run == self.control.tasks.keys() and self.control.leader is not None
                await self._wait(0.9)
            for life in gone:
                life.crash()
            await self.is_well(*(life.name for life in gone))
            await self._drain()

    played(All())


def test_a_notice_during_a_drain_delays_it_by_a_move_only() -> None:
    class Drains(Told):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=True)
            self.ask(RequestKind.DRAIN)
            await self._until("it drains", lambda: self.control.phase is RunPhase.DRAINING, step=0.002)
            victim.notice("event", NOTICE_S)
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED, 60.0)

    played(Drains())


def test_a_notice_during_a_rebalance_moves_what_was_just_given() -> None:
    class Joins(Told):
        async def _play(self) -> None:
            await self._runs()
            version = self.control.version
            self.start("p3")
            await self._until("p3 is given tasks", lambda: self.control.version > version, step=0.002)
            await self.tell([self.lives["p3"]])
            assert self.died_with == {"p3": 0}
            await self._drain()

    played(Joins())


def test_a_notice_in_an_outage_is_heeded_after_it() -> None:
    class Away(Told):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=False)
            self.weather.outages.append(Outage("all", self.loop.time() + 12.0, hangs=False))
            self._disturb(12.0)
            await self.tell([victim])
            assert self.died_with == {victim.name: 0}
            await self.is_well(victim.name)
            await self._drain()

    played(Away())


def test_a_notice_that_is_withdrawn_brings_the_processor_back() -> None:
    class Stays(Told):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=True)
            victim.notice("event", NOTICE_S)

            def is_decommissioned() -> bool:
                going = victim.processor.view.going
                return going is not None and going.state is Availability.DECOMMISSIONED

            await self._until("it is decommissioned", is_decommissioned, 15.0)
            assert not victim.running
            victim.take_back("event")
            await self._until("it has its share", lambda: self.unhealed() is None)
            assert victim.running and victim.processor.view.notices == {}
            await self._drain()

    played(Stays())


def test_a_notice_that_is_withdrawn_at_once_moves_each_task_at_most_there_and_back() -> None:
    class Cancelled(Told):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=False)
            before, view = victim.processor.view.incarnation, victim.processor.view
            victim.notice("event", NOTICE_S)
            await self._until("it has heard", lambda: view.departs, step=0.002)
            victim.take_back("event")
            await self._until("it has heard", lambda: not view.departs, step=0.002)
            await self._until("it has its share", lambda: bool(victim.running) and self.unhealed() is None)
            assert view.incarnation == before
            assert all(each.owner is not None for each in self.control.tasks.values())
            await self._drain()

    played(Cancelled())


def test_a_notice_that_is_withdrawn_in_an_outage_moves_nothing() -> None:
    """Nobody has heard of it."""

    class Away(Told):
        async def _play(self) -> None:
            await self._runs()
            victim, version = self._life(leads=False), self.control.version
            self.weather.outages.append(Outage("all", self.loop.time() + 5.0, hangs=False))
            self._disturb(5.0)
            victim.notice("event", NOTICE_S)
            await self._until("it has heard", lambda: victim.processor.view.departs, step=0.002)
            await self._wait(2.0)
            victim.take_back("event")
            await self._wait(10.0)
            assert not victim.processor.view.departs and self.control.version == version
            await self._drain()

    played(Away())


def test_a_leader_that_will_go_hands_over_though_no_run_has_begun() -> None:
    class Early(Told):
        async def _play(self) -> None:
            self.stuck = {"p0"}
            self.start("p0")
            await self._until("it leads", lambda: self.ledger.control is not None and self.control.leader is not None)
            self.lives["p0"].notice("event", NOTICE_S)
            self.stuck = {"p1"}
            self.start("p1")
            await self._until("the other one leads", lambda: self._leader() == "p1", NOTICE_S / 2)
            assert self.control.phase is RunPhase.NONE and self.lives["p0"].supervisor.alive

        def _leader(self) -> str:
            return self.control.leader.processor if self.control.leader is not None else ""

    played(Early())


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
def test_a_notice_of_0_s_is_a_death(leads: bool) -> None:
    class Now(Told):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=leads)
            await self.tell([victim], 0.0)
            await self.is_well(victim.name)
            await self._drain()

    played(Now())


#: What each of them found is in the message of the commit that mended it, or they meet all kinds of notices.
PINNED = [0]
LONGER = [*range(1, 20), 2411714699, 2411714776, 2411714836, 2411714852]


@pytest.mark.parametrize("seed", [*PINNED, *(pytest.param(seed, marks=pytest.mark.long) for seed in LONGER)])
def test_a_fleet_whose_processors_are_told_that_they_will_go(seed: int) -> None:
    result = play(noticed(seed))
    assert result.violation is None, "\n".join(result.history)


@pytest.mark.parametrize("seed", [950015, *(pytest.param(seed, marks=pytest.mark.long) for seed in (950007, 950019))])
def test_a_death_is_judged_by_what_was_handed_over(seed: int) -> None:
    """In a fifth of the fleets there is one. What is judged seldom could be judged never."""
    result = play(noticed(seed))
    assert result.violation is None, "\n".join(result.history)
    assert result.seen["judged Notice"] > 0


@pytest.mark.long
def test_fresh_fleets_with_notices_find_nothing() -> None:
    first = Random().randrange(1 << 31)
    print(f"fresh seeds of simulator.scenario.noticed from {first}")
    for seed in range(first, first + 10):
        result = play(noticed(seed))
        assert result.violation is None, "\n".join([*result.history, command(seed)])

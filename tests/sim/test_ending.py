"""How a run ends, step by step: production's processors in the simulator, and one thing that happens at its time.

A random seed meets such a moment once in hundreds. Each story ends with a bound, after which it hangs.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.rows import MEMBERS, REQUESTS, ProcessorState, RequestKind, request_columns
from samza_azure.group.timing import DENIED_S
from samza_azure.group.view import Settings
from samza_azure.messages import Phase
from simulator.ledger import demand
from simulator.life import Life
from simulator.network import Outage
from simulator.processors import OTHER_STAGES
from simulator.scenario import Scenario
from simulator.world import World

CALM = Scenario(
    seed=1,
    style="storm",
    processors=3,
    sources=2,
    counts=2,
    profile="default",
    fault_s=0.0,
    every_s=1.0,
)


def two_of(seeds: int) -> list[object]:
    """A story has the same end with each: two are for `make test`."""
    return [pytest.param(seed, marks=[pytest.mark.long] * (seed > 1)) for seed in range(seeds)]


class Story(World):
    """A fleet that runs, without faults but those of the story. A processor that ends is started again."""

    def __init__(self, seed: int, profile: str = "default", *, clocks: bool = False) -> None:
        super().__init__(replace(CALM, seed=seed, profile=profile, clocks=clocks))
        self.code = ""  # of processors that start from now on
        self.stuck: set[str] = set()  # their containers never come up

    @property
    def control(self) -> Control:
        assert self.ledger.control is not None
        return self.ledger.control

    def _upgrade(self) -> None:
        """No upgrade comes by chance."""

    def _start(self, name: str, code: str) -> None:
        super()._start(name, code or self.code)
        if name in self.stuck:
            self.lives[name].plan_start_s = float("inf")

    async def _until(self, what: str, is_so: Callable[[], bool], bound: float = 60.0, step: float = 0.02) -> None:
        since = self.loop.time()
        while not is_so():
            demand(self.loop.time() < since + bound, f"L1: {bound:.0f} s later it is still not so: {what}")
            await self._wait(step)

    async def _runs(self) -> None:
        for number in range(self.scenario.processors):
            self.start(f"p{number}")
        await self._until("all is well", lambda: self.ledger.control is not None and self.unhealed() is None)

    def _life(self, *, leads: bool) -> Life:
        leader = self.control.leader
        return next(
            life for life in self.lives.values() if (leader is not None and life.name == leader.processor) == leads
        )

    async def _back_from_the_dead(self) -> None:
        """A member pauses when its task is drained, is declared dead, and comes back, but hears of the drained run
        only, in which its new life has no part; and the leader dies before it has cleaned up."""
        victim = self._life(leads=False)
        self.ask(RequestKind.DRAIN)
        tasks = victim.processor.view.work.tasks
        await self._until(
            "a task is drained", lambda: Phase.DRAINED in [each.phase for each in tasks.values()], step=0.002
        )
        victim.freeze(1000.0, supervisor=True, container=False)
        before = victim.processor.view.incarnation
        await self._until("it is declared dead", lambda: self._row(victim)["state"] == ProcessorState.DEAD)
        victim.link.outages.append(Outage("blob", float("inf"), hangs=False))
        victim.supervisor.thaw()
        await self._until("it has come back", lambda: self._row(victim)["incarnation"] != before)
        await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED, step=0.002)
        self._life(leads=True).crash()
        epoch = self.control.epoch
        for number in range(self.scenario.processors):
            self.start(f"p{number}", delay=1.0)
        await self._until("another leads", lambda: self.control.epoch > epoch)
        victim.calm_down()

    def _row(self, life: Life) -> Mapping[str, object]:
        return next(row.values for row in self.ledger.query(MEMBERS) if row.key == life.name)


def played(story: Story) -> None:
    """Play it; print the history if it fails."""
    logging.disable(logging.CRITICAL)
    try:
        result = story.play()
    finally:
        logging.disable(logging.NOTSET)
    if result.violation is not None:
        pytest.fail("\n".join([*result.history, result.violation]))


@pytest.mark.parametrize("seed", two_of(6))
def test_a_fleet_with_a_processor_that_rejoined_cleans_up_and_ends(seed: int) -> None:
    """It waited for the clean-up, and the clean-up for its row, which named a task of its former life: forever."""

    class Back(Story):
        async def _play(self) -> None:
            await self._runs()
            await self._back_from_the_dead()
            await self._until("the drained run is cleaned up", lambda: self.control.cleaned, 60.0)

    played(Back(seed))


@pytest.mark.parametrize("seed", two_of(6))
def test_upgraded_processors_begin_the_next_run_after_it(seed: int) -> None:
    class Upgraded(Story):
        async def _play(self) -> None:
            await self._runs()
            await self._back_from_the_dead()
            for name in ("p3", "p4"):
                self.start(name, code=OTHER_STAGES)
            await self._until("the next run has begun", lambda: self.control.fingerprint == OTHER_STAGES, 60.0)
            await self._until("it runs", lambda: self.control.barrier.version == self.control.version)

    played(Upgraded(seed))


class Stuck(Story):
    """A processor whose container never comes up leads, since it is the first that is there."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stuck = {"p0"}

    async def _begins(self) -> None:
        self.start("p0")
        await self._until("it leads", lambda: self.ledger.control is not None and self.control.leader is not None)
        for name in ("p1", "p2"):
            self.start(name)


def test_a_leader_whose_container_does_not_come_up_hands_over_within_seconds() -> None:
    """It held the leadership for as long as it lived, and no run began."""

    class First(Stuck):
        async def _play(self) -> None:
            await self._begins()
            await self._until("a run has begun", lambda: self.control.phase is RunPhase.RUNNING, 15.0)
            await self._until("it runs", lambda: self.control.barrier.version == self.control.version)
            assert self.lives["p0"].supervisor.alive

    played(First(1))


def test_a_leader_that_handed_over_does_not_lead_again_while_another_can_act() -> None:
    class Second(Stuck):
        async def _play(self) -> None:
            await self._begins()
            await self._until("a run has begun", lambda: self.control.phase is RunPhase.RUNNING, 15.0)
            await self._wait(10.0)
            leader = self._life(leads=True)
            assert leader.name != "p0"
            leader.leave()
            await self._until("another leads", lambda: self.control.leader not in (None, leader.processor.view.member))
            assert self._life(leads=True).name in {"p1", "p2"} - {leader.name}

    played(Second(1))


def test_the_misfit_of_an_upgrade_never_leads_a_drain() -> None:
    """It was the leader's first choice: a newcomer has the least to do."""

    class Misfit(Story):
        async def _play(self) -> None:
            await self._runs()
            self.stuck = {"new"}  # for now
            self.start("new", code=OTHER_STAGES)
            await self._wait(5.0)
            leader = self._life(leads=True)
            leader.leave()
            self.ask(RequestKind.DRAIN)
            while self.control.phase is not RunPhase.DRAINED:
                named = self.control.leader
                demand(named is None or named.processor != "new", "S12: the misfit leads")
                await self._wait(0.05)

    played(Misfit(1))


def test_who_cleans_up_after_all_were_killed_has_the_code_of_the_drained_run() -> None:
    """The simulator let upgraded code come back, which began the next run, and called it a run that never ends."""

    class Killed(Story):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED)
            for life in self.lives.values():
                life.crash()
            demand(not self.control.cleaned, "nothing is left to clean up")
            self.habits = self._habits("upgraded")
            await self._drain()

    played(Killed(0))


class Waits(Story):
    """Everybody waits for an upgrade."""

    def _settings(self, name: str) -> Settings:
        return replace(super()._settings(name), wait_for_upgrade=True)

    def _replace_soon(self, run_id: str) -> None:
        """No operator sends them away: what they do by themselves is the story."""


@pytest.mark.parametrize("seed", two_of(4))
def test_a_processor_that_waits_for_an_upgrade_lets_the_new_code_begin_the_next_run(seed: int) -> None:
    """Its own code cannot, and it does not end: one that can leads."""

    class Drained(Waits):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED)
            self.start("new", code=OTHER_STAGES)
            await self._until("the next run has begun", lambda: self.control.fingerprint == OTHER_STAGES, 30.0)

    played(Drained(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_a_drained_run_is_cleaned_up_though_all_wait_for_an_upgrade(seed: int) -> None:
    """Their rows reported its tasks for as long as they waited, so no leader cleaned up, and `drain --wait`
    had no end."""

    class Drained(Waits):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED)
            await self._until("it is cleaned up", lambda: self.control.cleaned)
            demand(all(life.supervisor.alive for life in self.lives.values()), "somebody has ended")
            # They look for the next step of a drain five times a second.
            views = [life.processor.view for life in self.lives.values()]
            await self._until(
                "all know that", lambda: not any(view.drains for view in views), 2 * self.timing.heartbeat_s
            )

    played(Drained(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_those_who_wait_for_an_upgrade_take_over_and_clean_up_if_the_leader_dies(seed: int) -> None:
    class Drained(Waits):
        async def _play(self) -> None:
            await self._runs()
            self.ask(RequestKind.DRAIN)
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED, step=0.002)
            self._life(leads=True).crash()
            demand(not self.control.cleaned, "the leader was faster")
            await self._until("another has cleaned up", lambda: self.control.cleaned)
            demand(sum(life.supervisor.alive for life in self.lives.values()) == 2, "somebody has ended")

    played(Drained(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_a_processor_that_joins_a_draining_run_gets_no_task_and_ends_with_the_run(seed: int) -> None:
    class Joined(Story):
        async def _play(self) -> None:
            await self._runs()
            self._life(leads=False).freeze(6.0, supervisor=False, container=True)  # the drain lasts at least this long
            self.ask(RequestKind.DRAIN)
            await self._until("it drains", lambda: self.control.phase is RunPhase.DRAINING)
            self.start("p3")
            is_there = False
            while self.control.phase is not RunPhase.DRAINED:
                owners = {each.owner.processor for each in self.control.tasks.values() if each.owner is not None}
                demand("p3" not in owners, "the joiner has a task")
                is_there = is_there or any(row.key == "p3" for row in self.ledger.query(MEMBERS))
                await self._wait(0.05)
            demand(is_there, "it has not joined while the run drained")
            await self._drain()

    played(Joined(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_two_requests_drain_once_and_one_for_another_run_drains_nothing(seed: int) -> None:
    class Asked(Story):
        async def _play(self) -> None:
            await self._runs()
            for run_id in ("another", "an-earlier-one"):
                self.ledger.insert(REQUESTS, run_id, request_columns(RequestKind.DRAIN, run_id, run_id, ()))
            await self._wait(10 * self.timing.scan_s)
            demand(self.control.phase is RunPhase.RUNNING, "it obeys a request for another run")
            run_id = self.control.run_id
            self.ask(RequestKind.DRAIN)
            self.ask(RequestKind.DRAIN)
            await self._drain()
            demand(self.control.past == (run_id,), "one run, drained once")

    played(Asked(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_a_drain_asked_for_while_an_outage_pauses_all_goes_on_after_it(seed: int) -> None:
    class Away(Story):
        async def _play(self) -> None:
            await self._runs()
            self._outage("all", 3 * self.timing.heartbeat_timeout_s)
            await self._wait(2 * self.timing.heartbeat_timeout_s)
            at_work = [life for life in self.lives.values() if life.container is None or life.container.may_append()]
            demand(not at_work, "all are paused by now")
            self.ask(RequestKind.DRAIN)  # a command sees the storage
            await self._wait(self.timing.heartbeat_timeout_s)
            await self._drain()

    played(Away(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_a_drain_asked_for_while_a_task_changes_hands_drains_it_under_its_new_owner(seed: int) -> None:
    """The former owner has not released it when the run begins to drain; the new one then starts it frozen."""

    class Handed(Story):
        def _waits(self) -> list[str]:
            """Tasks whose new owner has to wait for a release."""
            return [
                name
                for name, each in self.control.tasks.items()
                if each.owner is not None and each.owner.processor == "p3" and each.after
            ]

        async def _play(self) -> None:
            await self._runs()
            for life in self.lives.values():
                life.freeze(4.0, supervisor=False, container=True)  # no task is released meanwhile
            self.start("p3")
            await self._until("a task changes hands", lambda: bool(self._waits()), step=0.002)
            moving = self._waits()
            self.ask(RequestKind.DRAIN)
            await self._until("it drains", lambda: self.control.phase is RunPhase.DRAINING, step=0.002)
            new = self.lives["p3"].processor.view.work.tasks
            demand(not any(name in new and new[name].report for name in moving), "it was handed over before the drain")
            await self._until("the run is drained", lambda: self.control.phase is RunPhase.DRAINED)
            owners = {self.control.tasks[name].owner for name in moving}
            demand({owner.processor for owner in owners if owner} == {"p3"}, "they stay where they went")
            await self._drain()

    played(Handed(seed))


@pytest.mark.parametrize("seed", two_of(4))
def test_who_lost_its_access_takes_its_time_to_leave_if_nobody_can_write_by_then(seed: int) -> None:
    """The access is back, which the processors that end do not ask: each waits as long as any other for its last word.
    The simulator took that for an end without a reason."""

    class Refused(Story):
        async def _play(self) -> None:
            await self._runs()
            lives = list(self.lives.values())
            self._refuse_access(None, 2 * DENIED_S)
            await self._until("all end", lambda: all(life.processor.view.ending for life in lives), 2 * DENIED_S)
            for outage in self.weather.outages:
                outage.until = self.loop.time()
            self._refused_until[""] = self.loop.time()
            self._outage("writes", DENIED_S)
            await self._until("all have ended", lambda: all(life.finish for life in lives))
            demand({life.finish and life.finish.code for life in lives} == {5}, "with the code of that")

    played(Refused(seed))

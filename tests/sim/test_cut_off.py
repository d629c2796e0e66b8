"""A processor that sends heartbeats and cannot reach the control blob, as behind a firewall that knows one of the two
endpoints.

It learns nothing new: its tasks have to run elsewhere, and a drain must not wait for it. An outage that hits all is
another matter: no other processor would see more, and tasks that moved would only move back.
"""

import pytest

from samza_azure.group.control import RunPhase
from samza_azure.group.rows import RequestKind
from samza_azure.group.timing import SIGHT_S
from simulator.healing import blind_within
from simulator.life import RATE_ERROR, Life
from simulator.network import Outage
from tests.sim.test_ending import Story, played


class CutOff(Story):
    """One that leads or does not loses sight of the blob; what it had, others run within a bound."""

    @property
    def bound(self) -> float:
        return SIGHT_S + self.bound_with_news

    @property
    def bound_with_news(self) -> float:
        return self.timing.barrier_timeout_s + 2 * self._handled_within(leads=True)

    def _lose_sight(self, *, hangs: bool) -> Life:
        victim = self._life(leads=False)
        victim.link.outages.append(Outage("blob", float("inf"), hangs))
        self.blind = victim.name
        return victim

    def _tries_soon(self) -> bool:
        followers = [life for life in self.lives.values() if not life.processor.view.leads]
        ages = [life.clock.now() - life.processor.view.own.control_read_at for life in followers]
        return max(ages) > SIGHT_S - 1.0

    def _owners(self) -> dict[str, str]:
        return {task: each.owner.processor for task, each in self.control.tasks.items() if each.owner is not None}


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("seed", "hangs"), [(0, False), *(pytest.param(*each, marks=LONG) for each in ((0, True), (1, False), (1, True)))]
)
def test_the_tasks_of_a_processor_that_is_cut_off_run_elsewhere_without_a_new_version(seed: int, hangs: bool) -> None:
    """It kept them forever. When it sees the blob again it gets its share."""

    class Quiet(CutOff):
        async def _play(self) -> None:
            await self._runs()
            victim = self._lose_sight(hangs=hangs)
            await self._until("others run its tasks", lambda: self.unhealed() is None, self.bound)
            assert victim.name not in self._owners().values()
            assert victim.supervisor.alive
            victim.link.outages.clear()
            self.blind = ""
            await self._until("it has its share", lambda: self.unhealed() is None, self.bound)
            assert victim.name in self._owners().values()

    played(Quiet(seed))


def test_by_a_slow_clock_it_is_noticed_later_and_in_time() -> None:
    """Its five minutes without news are five and a half. The bound of L2 did not count that."""

    class Slow(CutOff):
        def _start(self, name: str, code: str) -> None:
            super()._start(name, code)
            self.lives[name].clock._rate = 1 - RATE_ERROR

        async def _play(self) -> None:
            await self._runs()  # each has just read the blob
            self._lose_sight(hangs=False)
            since, start_s = self.loop.time(), self.habits.start_s
            bound = blind_within(self.timing, start_s, is_news=False, clocks=True)
            await self._until("others run its tasks", lambda: self.unhealed() is None, bound, step=0.25)
            by_exact_clocks = blind_within(self.timing, start_s, is_news=False, clocks=False)
            assert self.loop.time() - since > by_exact_clocks, "it shows nothing"

    played(Slow(0, clocks=True))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG)])
def test_a_drain_does_not_wait_for_it(seed: int) -> None:
    """It never froze, and the fleet stood still forever."""

    class Drained(CutOff):
        async def _play(self) -> None:
            await self._runs()
            self._lose_sight(hangs=False)
            self.ask(RequestKind.DRAIN)
            await self._until(
                "the run is drained", lambda: self.control.phase is RunPhase.DRAINED, 2 * self.bound_with_news
            )

    played(Drained(seed))


@pytest.mark.long  # the seeds of the simulator have such outages, too
@pytest.mark.parametrize(("lasts", "hangs"), [(8.0, False), (20.0, False), (20.0, True), (50.0, False), (120.0, True)])
def test_an_outage_of_the_blob_for_all_moves_nothing(lasts: float, hangs: bool) -> None:
    """It begins just before they try the blob, so all say at once that they are cut off, before the leader knows."""

    class Away(CutOff):
        async def _play(self) -> None:
            await self._runs()
            owners = self._owners()
            for _ in range(2):
                await self._until("one tries the blob soon", self._tries_soon, SIGHT_S)
                until = self.loop.time() + lasts
                self.weather.outages.append(Outage("blob", until, hangs))
                self.facts.no_blob.append((until - lasts, until))
                await self._wait(lasts + 2.0)
            await self._wait(SIGHT_S)
            assert self._owners() == owners
            assert self.ledger.seen["marked dead"] == 0
            assert self.unhealed() is None

    played(Away(1))

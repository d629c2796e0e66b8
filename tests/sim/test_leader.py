"""A leader that is cut off stops saying that it leads before the next one begins, in every profile."""

import pytest

from samza_azure.group.timing import PROFILES, SELF_STOP
from simulator.life import RATE_ERROR, Life
from simulator.network import Outage
from tests.sim.test_ending import Story, played


@pytest.mark.parametrize("profile", PROFILES)
def test_a_leader_that_is_cut_off_stops_saying_so_before_the_next_one_begins(profile: str) -> None:
    """It said so for 34 s (fast), 31 s (default) and 19 s (eco) beside the next one, until its lease ended."""

    class Quiet(Story):
        async def _play(self) -> None:
            await self._runs()
            victim = self._life(leads=True)
            since = self.loop.time()
            victim.link.outages.append(Outage("all", float("inf"), hangs=True))
            self.blind = victim.name
            await self._until("it stops saying so", lambda: not says(victim), bound := self.timing.leader_timeout_s)
            ended = self.loop.time() - since
            assert ended <= SELF_STOP * bound * (1 + RATE_ERROR) + 0.3
            others = [life for life in self.lives.values() if life is not victim]
            assert not any(map(says, others))
            await self._until("another says so", lambda: any(map(says, others)), 6 * bound + 5)
            print(f"{profile}: it ended after {ended:.1f} s, the next began after {self.loop.time() - since:.1f} s")

    def says(life: Life) -> bool:
        return life.processor.view.is_leader(life.clock.now())

    played(Quiet(3, profile))

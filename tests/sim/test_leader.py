"""A leader that is cut off stops saying that it leads before the next one begins, in every profile. One or two calls
that fail cost no leader its leadership."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import product
from typing import TypeVar

import pytest

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.group.control import Control
from samza_azure.group.rows import LEADER
from samza_azure.group.timing import PROFILES, SELF_STOP, Timing
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.memory import MemoryAccount, MemoryRows, MemoryStorage
from simulator.life import RATE_ERROR, Life
from simulator.loop import VirtualLoop
from simulator.network import READS, Outage
from tests.sim.group import LATENCY_S, Member, Slow, leader_of
from tests.sim.test_ending import Story, played

T = TypeVar("T")
#: How a call may fail: at once or without an answer, and with or without an effect.
FAILS = ("is refused", "is answered 500 and does nothing", "is answered 500 and is done", "is done without an answer")


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


#: Each pair happens so often: when a call is made again differs each time.
ROUNDS = 2


class Failing(Slow):
    """The next calls of the leader row fail, each in its own way, from the next write on."""

    def __init__(self) -> None:
        self.of_leader, self.todo, self.begun = False, list[str](), False

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        of_leader, self.of_leader = self.of_leader, False
        self.begun = self.begun or (of_leader and operation not in READS)
        if not (of_leader and self.begun and self.todo):
            return await super().carry(operation, effect, timeout)
        how = self.todo.pop(0)
        await asyncio.sleep(LATENCY_S)
        if "done" in how:
            effect()
        if how.endswith("without an answer"):
            await asyncio.sleep(timeout - LATENCY_S)
        if operation in READS or how == "is refused":
            raise StorageUnavailable(how)
        raise Unsettled(how)


class Rows(MemoryRows):
    """Says which calls are about the leader row."""

    def __init__(self, account: MemoryAccount) -> None:
        super().__init__(account)
        self._link = account.link

    async def get(self, partition: str, key: str, *, timeout: float) -> Row | None:
        self._says(partition)
        return await super().get(partition, key, timeout=timeout)

    async def merge(
        self, partition: str, key: str, values: Mapping[str, Value], *, etag: str, timeout: float
    ) -> str | Refused:
        self._says(partition)
        return await super().merge(partition, key, values, etag=etag, timeout=timeout)

    def _says(self, partition: str) -> None:
        assert isinstance(self._link, Failing)
        self._link.of_leader = partition == LEADER


class Account(MemoryAccount):
    """One whose calls of the leader row are distinguished."""

    def rows(self) -> Rows:
        return Rows(self)


async def two_calls_fail(timing: Timing, hows: list[tuple[str, str]]) -> list[str]:
    """After which of these pairs another leads."""
    storage, lost = MemoryStorage(asyncio.get_running_loop().time), []
    members = [Member(f"p{number}", timing, storage, Failing(), account=Account) for number in range(4)]
    await asyncio.sleep(5 * timing.heartbeat_timeout_s)
    for pair in hows:
        leads = leader_of(members)
        assert leads is not None and isinstance(leads.processor.view.control, Control)
        link, epoch = leads.link, leads.processor.view.control.epoch
        assert isinstance(link, Failing)
        link.todo, link.begun = [*pair], False
        await asyncio.sleep(3 * timing.leader_timeout_s)
        assert link.todo == [], "both have failed"
        known = [each.processor.view.control for each in members]
        if {each.epoch for each in known if isinstance(each, Control)} != {epoch}:
            lost.append(" then ".join(pair))
    for member in members:
        member.life.cancel()
    await asyncio.sleep(0)
    return lost


@pytest.mark.parametrize("profile", PROFILES)
def test_a_leader_of_which_two_calls_in_a_row_fail_leads_on(profile: str) -> None:
    """A refused heartbeat was sent again a whole heartbeat later, so a second one cost the leadership; and so did a
    heartbeat that did nothing, if the answer to the read that had to settle it was lost.

    With `fast` an answer is awaited for longer than half the leader timeout.
    """
    pairs = [pair for pair in product(FAILS, repeat=2) if profile != "fast" or FAILS[-1] not in pair]
    assert VirtualLoop().run_until_complete(two_calls_fail(PROFILES[profile], ROUNDS * pairs)) == []

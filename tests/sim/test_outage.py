"""The storage is away, or throttles: the group calls it less often than usual, and is back soon after it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.host.processor import call_timeout_s
from samza_azure.storage.memory import MemoryStorage
from simulator.loop import VirtualLoop
from simulator.network import READS
from tests.sim.group import LATENCY_S, Member, Slow, leader_of

T = TypeVar("T")
OUTAGE_S = 600.0
#: Calls are counted in windows of this many heartbeats.
WINDOW = 5
#: The calls of one draw differ from those of another by up to a tenth.
DRAWS = 3


class Trouble(Slow):
    """A part of all calls fails, and all are counted."""

    def __init__(self, draw: int = 1) -> None:
        self.sent, self.part, self.how, self.dice = list[float](), 0.0, "", Random(draw)

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        self.sent.append(asyncio.get_running_loop().time())
        if self.dice.random() >= self.part:
            return await super().carry(operation, effect, timeout)
        await asyncio.sleep(timeout if self.how == "hangs" else LATENCY_S)
        if operation in READS or self.how == "throttles":
            raise StorageUnavailable("ServerBusy")
        raise Unsettled("InternalError")

    def most(self, since: float, until: float, window: float) -> float:
        """The greatest number of calls in one window."""
        counts = Counter(
            (at - since) // window for at in self.sent if since <= at < since + window * ((until - since) // window)
        )
        return max(counts.values())

    def mean(self, since: float, until: float, window: float) -> float:
        """Calls per window."""
        return sum(since <= at < until for at in self.sent) / (until - since) * window


async def group(timing: Timing, count: int, draw: int = 1) -> tuple[Trouble, list[Member]]:
    """So many, that have begun and do what they regularly do."""
    link, storage = Trouble(draw), MemoryStorage(asyncio.get_running_loop().time)
    members = [Member(f"p{number}", timing, storage, link, f", {draw}") for number in range(count)]
    await asyncio.sleep(10 * timing.heartbeat_timeout_s)
    return link, members


def end(members: list[Member]) -> None:
    for member in members:
        member.life.cancel()


def is_well(members: list[Member], now: float) -> bool:
    """One leads, and all may work."""
    return leader_of(members) is not None and all(member.processor.view.permit_until > now for member in members)


async def an_outage(timing: Timing, count: int, how: str, lasts: float) -> None:
    loop, window = asyncio.get_running_loop(), WINDOW * timing.heartbeat_s
    link, members = await group(timing, count)
    before = loop.time() - 5 * timing.heartbeat_timeout_s
    usual = link.mean(before, loop.time(), window)
    link.part, link.how, begun = 1.0, how, loop.time()
    await asyncio.sleep(lasts)
    ended = loop.time()
    assert link.most(begun, ended, window) <= usual
    assert link.mean(ended - lasts / 2, ended, window) < 0.9 * usual
    link.part = 0.0
    bound = timing.leader_timeout_s + timing.heartbeat_timeout_s + call_timeout_s(timing)
    while not is_well(members, loop.time()):
        assert loop.time() < ended + bound
        await asyncio.sleep(timing.scan_s / 10)
    end(members)
    await asyncio.sleep(0)


#: The others are for `make prove`.
OFTEN = {("fast", "throttles"), ("default", "fails"), ("eco", "hangs")}


@pytest.mark.parametrize(
    ("profile", "how"),
    [
        pytest.param(profile, how, marks=[pytest.mark.long] * ((profile, how) not in OFTEN))
        for profile in PROFILES
        for how in ("throttles", "fails", "hangs")
    ],
)
def test_a_long_outage_costs_no_more_calls_than_normal_operation(profile: str, how: str) -> None:
    lasts = OUTAGE_S if profile == "default" else 100 * PROFILES[profile].heartbeat_s
    VirtualLoop().run_until_complete(an_outage(PROFILES[profile], 10, how, lasts))


@pytest.mark.long
def test_a_long_outage_costs_a_large_group_no_more_calls_than_normal_operation() -> None:
    VirtualLoop().run_until_complete(an_outage(PROFILES["default"], 100, "throttles", 60.0))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["throttles", "fails"])
def test_an_outage_of_ten_minutes_costs_a_thousand_processors_no_more_calls(how: str) -> None:
    VirtualLoop().run_until_complete(an_outage(PROFILES["default"], 1000, how, OUTAGE_S))


async def throttled(timing: Timing, part: float, draw: int) -> float:
    """How many calls are made while a part of them is refused, in relation to the usual number."""
    loop = asyncio.get_running_loop()
    link, members = await group(timing, 10, draw)
    now = loop.time()
    usual = link.mean(now - 5 * timing.heartbeat_timeout_s, now, 1.0)
    link.part, link.how = part, "throttles"
    await asyncio.sleep(100 * timing.heartbeat_s)
    found = link.mean(now, loop.time(), 1.0) / usual
    end(members)
    await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(("part", "most"), [(0.3, 1.03), (0.7, 0.75)])
def test_the_more_is_throttled_the_less_is_called(part: float, most: float) -> None:
    """With 0.3 it is the usual number, with a heartbeat of the leader that is soon sent again as with one that comes a
    heartbeat later: then its successors read more often, and a second refusal changes the leader."""
    timing = PROFILES["default"]
    found = [VirtualLoop().run_until_complete(throttled(timing, part, draw)) for draw in range(DRAWS)]
    assert sum(found) / DRAWS < most

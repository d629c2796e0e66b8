"""A group without faults: its idle hour costs what `samza-azure explain` says, its start needs two versions at most.

Whoever looks at its page adds the page's own calls, and not one of the group's.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import pytest

from samza_azure.config import Config
from samza_azure.explain import Operations, draining, follower, leader, page, successor
from samza_azure.group.control import Control
from samza_azure.group.rows import RequestKind
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.host.asking import write_request
from samza_azure.page.watch import Watcher
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from simulator.cost import MOST_PER_S, Cost
from simulator.loop import VirtualLoop
from tests.sim.group import Member, Slow, leader_of

T = TypeVar("T")
#: A third of an hour counts for a whole one; the page is open for a sixth.
THIRD_S, SIXTH_S = 1200.0, 600.0


class Counting(Slow):
    """Counts what is sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        self.sent["table" if operation.startswith("rows.") else operation] += 1
        return await super().carry(operation, effect, timeout)


async def a_third_of_an_hour(timing: Timing, storage: MemoryStorage, count: int) -> list[Member]:
    members = [Member(f"p{number}", timing, storage, Counting()) for number in range(count)]
    await asyncio.sleep(60)
    for member in members:
        sent_by(member).clear()
    await asyncio.sleep(THIRD_S)
    for member in members:
        member.life.cancel()
    return members


def sent_by(member: Member) -> Counter[str]:
    assert isinstance(member.link, Counting)
    return member.link.sent


def rest_of(sent: Counter[str]) -> dict[str, int]:
    return {operation: 3 * number for operation, number in sent.items() if operation != "table"}


@pytest.mark.parametrize("profile", ["eco", pytest.param("default", marks=pytest.mark.long)])
def test_an_idle_hour_costs_what_explain_says(profile: str) -> None:
    timing, loop = PROFILES[profile], VirtualLoop()
    members = loop.run_until_complete(a_third_of_an_hour(timing, MemoryStorage(loop.time), 5))
    view = next(member.processor.view for member in members if member.processor.view.leads)
    expected: dict[str, Operations] = {}
    for member in members:
        own = member.processor.view
        role = leader(timing, 5) if own.leads else successor(timing, 5) if own.watching() else follower(timing, 5)
        expected[own.me] = role
    for member in members:
        role = expected[member.processor.view.me]
        assert 3 * sent_by(member)["table"] == pytest.approx(role.table, rel=0.05)
        blob = {"control.renew": 180} if role.other else {"control.read": role.read}
        assert rest_of(sent_by(member)) == pytest.approx(blob, rel=0.05)
    assert sum(role.other > 0 for role in expected.values()) == 1
    assert [*expected.values()].count(follower(timing, 5)) == 1
    assert all(assignment.owner is not None for assignment in view.control.tasks.values())  # type: ignore[union-attr]


class Threadless(VirtualLoop):
    """What is for a thread is done at once: the page makes its document on one."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *arguments: Any
    ) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self.create_future()
        done.set_result(func(*arguments))
        return done


async def a_sixth_watched(
    config: Config, storage: MemoryStorage, *, is_open: bool
) -> tuple[list[Counter[str]], Counter[str]]:
    """What each of five members sends in a sixth of an hour, and what the page sends."""
    timing, link = config.coordinator.timing, Counting()
    members = [Member(f"p{number}", timing, storage, Counting()) for number in range(5)]
    watcher = Watcher(config, MemoryAccount(storage, link=link))  # type: ignore[arg-type]
    await asyncio.sleep(60)
    for member in members:
        sent_by(member).clear()
    async with watcher.watched() if is_open else nullcontext():
        await asyncio.sleep(SIXTH_S)
    for member in members:
        member.life.cancel()
    assert (watcher.document["verdict"]["state"] == "running") is is_open
    return [sent_by(member) for member in members], link.sent


@pytest.mark.parametrize("profile", ["eco", pytest.param("default", marks=pytest.mark.long)])
def test_a_group_makes_the_same_calls_with_its_page_open_or_closed(profile: str) -> None:
    job = f"""
        app = {{ name = "seen", main = "none:none" }}
        azure.storage.connect = "UseDevelopmentStorage=true"
        job.coordinator.profile = "{profile}"
        """
    (closed, none), (opened, looks) = (
        loop.run_until_complete(a_sixth_watched(Config.parse(job), MemoryStorage(loop.time), is_open=is_open))
        for is_open, loop in ((False, Threadless()), (True, Threadless()))
    )
    assert opened == closed and not none
    said = page(PROFILES[profile], 5)
    told = {operation: 6 * number for operation, number in looks.items()}
    assert told == {"table": pytest.approx(said.table, rel=0.01), "control.read": pytest.approx(said.read, rel=0.01)}


async def a_start(timing: Timing, storage: MemoryStorage, count: int) -> tuple[list[Member], int]:
    members = [Member(f"p{number}", timing, storage, Counting()) for number in range(count)]
    versions = set()
    for _ in range(400):
        await asyncio.sleep(timing.scan_s / 10)
        versions |= {
            control.version for member in members if isinstance(control := member.processor.view.control, Control)
        }
    for member in members:
        member.life.cancel()
    return members, len(versions - {0})


@pytest.mark.parametrize("count", [4, 20])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_group_that_starts_together_is_balanced_by_its_first_version_or_its_second(profile: str, count: int) -> None:
    loop = VirtualLoop()
    members, versions = loop.run_until_complete(a_start(PROFILES[profile], MemoryStorage(loop.time), count))
    shares = [len(member.running) for member in members]
    assert sum(shares) == 8
    assert max(shares) - min(shares) <= 1
    assert versions <= 2


async def a_minute_of_draining(storage: MemoryStorage, count: int) -> list[Member]:
    members = [Member(f"p{number}", PROFILES["default"], storage, Counting()) for number in range(count)]
    await asyncio.sleep(60)
    leader = leader_of(members)
    assert leader is not None and isinstance(leader.processor.view.control, Control)
    await write_request(MemoryAccount(storage).rows(), RequestKind.DRAIN, leader.processor.view.control.run_id)
    await asyncio.sleep(10)  # no task answers, so FREEZE lasts
    for member in members:
        sent_by(member).clear()
    await asyncio.sleep(60)
    for member in members:
        member.life.cancel()
    return members


def test_a_drain_costs_what_explain_says() -> None:
    loop = VirtualLoop()
    members = loop.run_until_complete(a_minute_of_draining(MemoryStorage(loop.time), 5))
    assert all(member.processor.view.drains for member in members)
    sent = 60 * sum(sent_by(member)["table"] for member in members)
    assert sent == pytest.approx(draining(PROFILES["default"], 5).table, rel=0.05)


def test_an_answered_request_counts_until_the_end_of_its_second_though_it_is_deleted() -> None:
    """A leader that found 48 requests answered and deleted them at once, and was mistaken for a hot loop."""
    cost, left = Cost(), 20
    for number in range(MOST_PER_S + 20):
        assert cost.counted("p0", 1, "rows.merge", 7.1, max(0, left - number)) is None
    assert cost.counted("p0", 1, "rows.merge", 7.9) is not None
    assert cost.counted("p0", 1, "rows.merge", 8.0) is None

"""A group without faults: its idle hour costs what `samza-azure explain` says, its start needs two versions at most."""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest

from samza_azure.explain import Operations, follower, leader, successor
from samza_azure.host.processor import Processor
from samza_azure.host.runs import RunLogs
from samza_azure.host.share import plan_of
from samza_azure.protocol.control import Control
from samza_azure.protocol.messages import Command, Phase, Ready, ReleaseTask, StartTask, TaskReport
from samza_azure.protocol.timing import PROFILES, Timing
from samza_azure.protocol.view import Settings
from samza_azure.sim.loop import VirtualLoop
from samza_azure.sim.memory import Link, MemoryAccount, MemoryStorage

T = TypeVar("T")
#: A third of an hour is told for a whole one.
THIRD_S = 1200.0
LATENCY_S = 0.005


class Counting(Link):
    """Counts what is sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        self.sent["table" if operation.startswith("rows.") else operation] += 1
        await asyncio.sleep(LATENCY_S)
        return effect()


class NoLogs(RunLogs):
    """There are none, and none are made."""

    async def refuse_if_any(self) -> None:
        return

    async def clean(self, run_id: str) -> None:
        return


class Member:
    """A processor on virtual time whose tasks start at once."""

    def __init__(self, name: str, timing: Timing, storage: MemoryStorage, loop: asyncio.AbstractEventLoop) -> None:
        self.link, self.loop = Counting(), loop
        account = MemoryAccount(storage, link=self.link)
        self.processor = Processor(
            Settings(name, timing),
            account.control_blob(),
            account.rows(),
            NoLogs(account.blobs()),
            self,
            tell=self.tell,
        )
        self.processor.hear(Ready(plan_of("part", 8)))

    @property
    def running(self) -> list[str]:
        """Its tasks that run."""
        return [task for task, local in self.processor.view.tasks.items() if local.phase is Phase.RUNNING]

    def now(self) -> float:
        return self.loop.time()

    def wall_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def random(self) -> float:
        return random.random()

    def fresh_id(self) -> str:
        return uuid.uuid4().hex

    def tell(self, command: Command) -> None:
        match command:
            case StartTask(task=task, generation=generation, attempt=attempt):
                self.loop.call_soon(self.processor.hear, TaskReport(task, generation, attempt, Phase.RUNNING))
            case ReleaseTask(task=task):
                local = self.processor.view.tasks[task]
                gone = TaskReport(task, local.generation, local.attempt, Phase.RELEASED)
                self.loop.call_soon(self.processor.hear, gone)


async def a_third_of_an_hour(timing: Timing, storage: MemoryStorage, count: int) -> list[Member]:
    loop = asyncio.get_running_loop()
    members = [Member(f"p{number}", timing, storage, loop) for number in range(count)]
    lives = [loop.create_task(member.processor.run()) for member in members]
    await asyncio.sleep(60)
    for member in members:
        member.link.sent.clear()
    await asyncio.sleep(THIRD_S)
    for life in lives:
        life.cancel()
    return members


def rest_of(sent: Counter[str]) -> dict[str, int]:
    return {operation: 3 * number for operation, number in sent.items() if operation != "table"}


@pytest.mark.parametrize("profile", ["eco", "default"])
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
        assert 3 * member.link.sent["table"] == pytest.approx(role.table, rel=0.05)
        lease = {"control.renew": 180} if role.other else {}
        assert rest_of(member.link.sent) == pytest.approx(lease, rel=0.05)
    assert sum(role.other > 0 for role in expected.values()) == 1
    assert [*expected.values()].count(follower(timing, 5)) == 1
    assert all(assignment.owner is not None for assignment in view.control.tasks.values())  # type: ignore[union-attr]


async def a_start(timing: Timing, storage: MemoryStorage, count: int) -> tuple[list[Member], int]:
    loop = asyncio.get_running_loop()
    members = [Member(f"p{number}", timing, storage, loop) for number in range(count)]
    lives = [loop.create_task(member.processor.run()) for member in members]
    versions = set()
    for _ in range(400):
        await asyncio.sleep(timing.scan_s / 10)
        versions |= {
            control.version for member in members if isinstance(control := member.processor.view.control, Control)
        }
    for life in lives:
        life.cancel()
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

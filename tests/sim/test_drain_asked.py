"""A requested drain is hinted at: followers whose containers read the hint hear of FREEZE within two looks."""

import asyncio

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.timing import DRAINING_LOOK_S, PROFILES
from samza_azure.host.asking import write_drain
from samza_azure.messages import DrainAsked
from samza_azure.storage.limits import HINTS, drain_hint, hint_name
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from simulator.loop import VirtualLoop
from tests.sim.group import Member, Slow, leader_of

SETTLED_S = 60.0
TURN_S = 0.01


def drains(member: Member) -> bool:
    control = member.processor.view.control
    return isinstance(control, Control) and control.phase is RunPhase.DRAINING


async def when_all_drain(members: list[Member]) -> float:
    loop = asyncio.get_running_loop()
    while not all(map(drains, members)):  # noqa: ASYNC110  # virtual time
        await asyncio.sleep(TURN_S)
    return loop.time()


async def last_follower_after(storage: MemoryStorage, *, are_told: bool) -> float:
    """How long after FREEZE the last follower hears of it; each container reads the hint before FREEZE is there."""
    members = [Member(f"p{number}", PROFILES["default"], storage, Slow()) for number in range(5)]
    await asyncio.sleep(SETTLED_S)
    leader = leader_of(members)
    assert leader is not None
    control = leader.processor.view.control
    assert isinstance(control, Control)
    account = MemoryAccount(storage)
    key = (await write_drain(account.rows(), control, control.run_id)).uuid
    hints = [hint_name(row.key) for row in await account.rows().query(HINTS, timeout=1.0)]
    assert hints == [drain_hint(control.run_id, key)]
    for member in members:
        if are_told:
            member.processor.hear(DrainAsked())
    began = await when_all_drain([leader])
    took = await when_all_drain(members) - began
    for member in members:
        member.life.cancel()
    await asyncio.wait({member.life for member in members})
    return took


def after(*, are_told: bool) -> float:
    loop = VirtualLoop()
    return loop.run_until_complete(last_follower_after(MemoryStorage(loop.time), are_told=are_told))


def test_a_processor_that_has_read_the_hint_learns_of_the_drain_at_once() -> None:
    assert after(are_told=True) <= 2 * DRAINING_LOOK_S


def test_a_processor_that_missed_the_hint_learns_of_the_drain_at_its_next_read() -> None:
    heartbeat_s = PROFILES["default"].heartbeat_s
    assert 2 * DRAINING_LOOK_S < after(are_told=False) <= heartbeat_s + DRAINING_LOOK_S

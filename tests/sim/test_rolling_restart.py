"""All processors are replaced, one after the other: each task moves twice on average, and no more can be saved.

A processor that is asked to leave gives its share to others at once, so that its tasks are idle for a moment only; when
it is back it gets a share again. Each of these moves is one that balance demands, so no other choice of the next owner
would save one.
"""

import asyncio
from collections.abc import Iterator

import pytest

from samza_azure.group.control import NAME, Owner, decode
from samza_azure.group.timing import PROFILES
from samza_azure.storage.interface import Content
from samza_azure.storage.memory import MemoryStorage
from simulator.loop import VirtualLoop
from tests.sim.group import TASKS, Member, Slow

#: How long one processor is away, and how long until the next one is asked to leave.
AWAY_S, SETTLED_S = 3.0, 15.0


def owners(storage: MemoryStorage) -> dict[str, Owner | None]:
    """The owner of each task, as the control blob says."""
    found = storage.control_read(None, None)
    assert isinstance(found, Content), NAME
    return {task: each.owner for task, each in decode(found.data).tasks.items()}


async def rolling_restart(count: int, names: Iterator[str]) -> int:
    """How many moves it costs. Each processor comes back under the next of these names."""
    loop, timing, link = asyncio.get_running_loop(), PROFILES["default"], Slow()
    storage = MemoryStorage(loop.time)
    members = [Member(f"p{number}", timing, storage, link) for number in range(count)]
    await asyncio.sleep(SETTLED_S)
    moves, before = 0, owners(storage)

    async def wait(seconds: float) -> None:
        nonlocal moves, before
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(0.05)
            after = owners(storage)
            moves, before = moves + sum(after[task] != owner for task, owner in before.items()), after

    for member in members[:count]:
        member.processor.leave()
        while not member.life.done():
            await wait(0.05)
        await wait(AWAY_S)
        members.append(Member(next(names), timing, storage, link, life="2"))
        await wait(SETTLED_S)
    for member in members:
        member.life.cancel()
    await asyncio.sleep(0)
    return moves


@pytest.mark.parametrize("first", ["p", "q"], ids=["the same names", "new names"])
@pytest.mark.parametrize("count", [3, 6])
def test_a_rolling_restart_moves_each_task_twice_on_average(count: int, first: str) -> None:
    names = (f"{first}{number}" for number in range(count))
    moves = VirtualLoop().run_until_complete(rolling_restart(count, names))
    share = -(-TASKS // count)
    assert moves <= 2 * share * count

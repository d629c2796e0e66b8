"""The leader is gone, and one answer is lost: the next one leads within the stated bound all the same.

Every call of the group, from the crash or the request to leave until one of the others has published who has the tasks,
loses its answer once, in a run of its own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

from samza_azure.errors import StorageUnavailable, Unsettled
from samza_azure.explain import bounds
from samza_azure.group.control import Control
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.host.processor import call_timeout_s
from samza_azure.storage.memory import MemoryStorage
from simulator.loop import VirtualLoop
from simulator.network import READS
from tests.sim.group import LATENCY_S, Member, Slow, leader_of

T = TypeVar("T")
COUNT = 3


class Losing(Slow):
    """All calls of the group, counted from the crash on. The answer to one of them is lost."""

    def __init__(self, lost: int) -> None:
        self.lost, self.counts, self.sent = lost, False, list[str]()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if self.counts:
            self.sent.append(operation)
        if not self.counts or len(self.sent) - 1 != self.lost:
            return await super().carry(operation, effect, timeout)
        await asyncio.sleep(LATENCY_S)
        effect()
        await asyncio.sleep(timeout)
        raise StorageUnavailable("Lost.") if operation in READS else Unsettled("Lost.")


@dataclass(frozen=True)
class FailOver:
    """How long after the crash another processor led, and had given the tasks to others; the calls meanwhile."""

    led_s: float
    moved_s: float
    sent: list[str]


async def fail_over(timing: Timing, lost: int, *, leaves: bool) -> FailOver:
    """The leader leaves or crashes, and the answer to this call is lost."""
    loop = asyncio.get_running_loop()
    storage, link = MemoryStorage(loop.time), Losing(lost)
    members = [Member(f"p{number}", timing, storage, link) for number in range(COUNT)]
    await asyncio.sleep(3 * timing.heartbeat_timeout_s)
    leader = leader_of(members)
    assert leader is not None
    if leaves:
        leader.processor.leave()
    else:
        leader.life.cancel()
    left = [member for member in members if member is not leader]
    await asyncio.sleep(0)
    link.counts, crashed, led_s = True, loop.time(), None
    while True:
        await asyncio.sleep(timing.scan_s / 20)
        took, next_one = loop.time() - crashed, leader_of(left)
        led_s = took if led_s is None and next_one is not None else led_s
        if led_s is not None and next_one is not None and leader.name not in owners(next_one):
            break
        assert took < 60, "nobody leads"
    for member in members:
        member.life.cancel()
    await asyncio.sleep(0)
    return FailOver(led_s, took, link.sent)


def owners(member: Member) -> set[str]:
    """The owners of tasks, as far as this one knows."""
    control = member.processor.view.control
    assert isinstance(control, Control)
    return {each.owner.processor for each in control.tasks.values() if each.owner is not None}


@pytest.mark.parametrize(
    ("profile", "every"),
    [("fast", 6), *(pytest.param(each, 1, marks=pytest.mark.long) for each in ("default", "fast"))],
)
def test_one_lost_answer_at_any_step_keeps_the_fail_over_within_the_stated_bound(profile: str, every: int) -> None:
    """To lead takes as long as without it, the time for which the answer is awaited, and a look or two more."""
    timing = PROFILES[profile]
    call_s = call_timeout_s(timing)
    stated = bounds(timing, COUNT, call_s).leader_lost + call_s
    usual = VirtualLoop().run_until_complete(fail_over(timing, -1, leaves=False))
    late = {}
    for lost, operation in list(enumerate(usual.sent))[::every]:
        found = VirtualLoop().run_until_complete(fail_over(timing, lost, leaves=False))
        if found.led_s > usual.led_s + call_s + 2 * timing.scan_s or found.moved_s > stated:
            late[f"{lost} of {len(usual.sent)}, {operation}"] = round(found.led_s, 1), round(found.moved_s, 1)
    assert late == {}


@pytest.mark.parametrize(
    ("profile", "every"),
    [("fast", 4), *(pytest.param(each, 1, marks=pytest.mark.long) for each in ("default", "fast"))],
)
def test_a_leader_that_leaves_is_replaced_no_later_than_one_that_crashes(profile: str, every: int) -> None:
    """Whichever answer is lost, to the leader or to its successor."""
    timing = PROFILES[profile]
    stated = bounds(timing, COUNT, call_timeout_s(timing)).leader_lost
    usual = VirtualLoop().run_until_complete(fail_over(timing, -1, leaves=True))
    assert usual.moved_s < stated / 2
    late = {}
    for lost, operation in list(enumerate(usual.sent))[::every]:
        found = VirtualLoop().run_until_complete(fail_over(timing, lost, leaves=True))
        if found.moved_s > stated:
            late[f"{lost} of {len(usual.sent)}, {operation}"] = round(found.led_s, 1), round(found.moved_s, 1)
    assert late == {}

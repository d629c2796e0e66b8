"""Copies of the control blob: the newest one is kept before a clean-up and the leader's end; a refusal is logged."""

import asyncio
import logging

import pytest

from samza_azure.commands.recover import copies_in
from samza_azure.errors import AccessDenied, StorageUnavailable, Verdict
from samza_azure.group.control import Control, RunPhase, milestone
from samza_azure.group.ending import FAREWELL_S
from samza_azure.group.timing import PROFILES
from samza_azure.host.copies import AGAIN_S, Copies
from samza_azure.log_rate_limit import EVERY_S, LogRateLimit
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from simulator.loop import VirtualLoop
from tests.sim.group import LATENCY_S, TASKS, Member, Slow
from tests.sim.test_drained import Cut, drawn, silence

OUTAGE = StorageUnavailable("It is away.")
CONTROL = Control("a" * 32, revision=7, run_id="r1", phase=RunPhase.RUNNING)


async def leaves_early(storage: MemoryStorage, copy_s: float) -> tuple[float, Control]:
    """How long a lone leader takes to end that leaves as soon as it runs all tasks; and what it has last published."""
    leader = Member("p1", PROFILES["default"], storage, Slow())
    leader.runs.copy_s = copy_s
    while len(leader.running) < TASKS:  # noqa: ASYNC110  # virtual time
        await asyncio.sleep(LATENCY_S)
    published, began = leader.processor.view.control, leader.now()
    assert isinstance(published, Control)
    leader.processor.leave()
    assert (await leader.life).code == Verdict.DONE
    return leader.now() - began, published


def test_a_leader_that_ends_keeps_the_copy_under_way() -> None:
    """Without the last copy `recover` would take a drained run for one whose logs are gone."""
    loop = VirtualLoop()
    storage = MemoryStorage(loop.time)
    _, published = loop.run_until_complete(leaves_early(storage, copy_s=0.8 * FAREWELL_S))
    kept = copies_in(MemoryAccount(storage).blobs()).values()
    assert milestone(published) in map(milestone, kept)


def test_a_leader_waits_for_no_copy_longer_than_for_another_farewell() -> None:
    loop = VirtualLoop()
    usual, _ = loop.run_until_complete(leaves_early(MemoryStorage(loop.time), copy_s=0.0))
    longest, _ = loop.run_until_complete(leaves_early(MemoryStorage(loop.time), copy_s=1e6))
    assert FAREWELL_S <= longest <= usual + FAREWELL_S + 1.0


def test_no_log_of_a_drained_run_is_deleted_before_a_copy_says_that_it_is_drained() -> None:
    """S9, which was broken by 26: without that copy `recover` called the run lost, and it was drained."""
    with silence():
        assert Cut(drawn(26)).play().violation is None


@pytest.mark.parametrize(("error", "ends"), [(AccessDenied("We may not write there."), True), (OUTAGE, False)])
def test_a_clean_up_waits_for_an_outage_to_end_and_for_no_other_refusal(error: Exception, ends: bool) -> None:
    """A refusal of the copies alone may last forever; the log says it."""
    loop = VirtualLoop()
    is_away = True

    async def keep(control: Control) -> None:
        if is_away:
            raise error

    async def story() -> None:
        nonlocal is_away
        copies = Copies(keep, LogRateLimit(loop.time))
        waits = asyncio.create_task(copies.kept(CONTROL))
        await asyncio.sleep(10 * AGAIN_S)
        assert waits.done() is ends
        is_away = False
        await waits
        copies.close()

    loop.run_until_complete(story())


@pytest.mark.parametrize(("error", "lines"), [(AccessDenied("We may not write there."), 2), (OUTAGE, 0)])
def test_a_lasting_refusal_is_logged_seldom_and_an_outage_is_not(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever meets an outage says so; a refusal of copies alone is seen here only."""
    loop = VirtualLoop()
    tries = []

    async def keep(control: Control) -> None:
        tries.append(control)
        raise error

    async def story() -> None:
        copies = Copies(keep, LogRateLimit(loop.time))
        copies.published(CONTROL)
        await asyncio.sleep(1.5 * EVERY_S)
        copies.close()

    with caplog.at_level(logging.WARNING):
        loop.run_until_complete(story())
    assert len(tries) > 10
    said = [record.getMessage() for record in caplog.records if "copy of control.json" in record.getMessage()]
    assert len(said) == lines
    assert all(str(error) in line for line in said)

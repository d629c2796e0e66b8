"""What it costs to be watched: the calls of a live fleet, counted by proxies, while its page is closed and open.

The page is that of `samza-azure ui`, then that of one of the processors. `tests/sim/test_cost.py` compares exactly.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands import run
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.coordinator import JobCoordinator
from samza_azure.explain import Operations, coordination, page
from samza_azure.group.control import BarrierState
from samza_azure.host.status import read
from samza_azure.storage.connection import Account
from tests.page.test_serving import play, read_event, served
from tests.storage.proxy import Guard

PROCESSORS, TASKS, HEARTBEATS = 3, 6, 5
JOB = """
app = {{ name = "seen", id = "{id}", main = "none:none" }}
azure.storage.connect = "{connect}"
"""


@dataclass(frozen=True, slots=True)
class Counter:
    """Proxies before an emulator, which count."""

    connection: str
    blobs: Guard
    tables: Guard

    def sent(self) -> tuple[int, int]:
        """The calls so far: of the table, of blobs."""
        return len(self.tables.seen), len(self.blobs.seen)

    def beats(self) -> int:
        """The calls so far that write a row: while nothing happens, these are heartbeats."""
        return sum(each.split()[0] not in ("GET", "HEAD") for each in self.tables.seen)


@dataclass(frozen=True, slots=True)
class Phase:
    """What the fleet sent for some time."""

    seconds: float
    sent: tuple[int, int]
    beats: int


@contextmanager
def counter(emulator: Azurite) -> Iterator[Counter]:
    with (
        Guard(emulator.blob_port, lambda method, path: False) as blobs,
        Guard(emulator.table_port, lambda method, path: False) as tables,
    ):
        text = emulator.connection_string.replace(f":{emulator.blob_port}/", f":{blobs.port}/")
        yield Counter(text.replace(f":{emulator.table_port}/", f":{tables.port}/"), blobs, tables)


async def settled(account: Account) -> None:
    """All processors have their tasks, and nothing is on its way."""
    async with asyncio.timeout(60):
        while True:
            control, rows = await read(account)
            if control is not None and len(control.members) == PROCESSORS and len(rows) == PROCESSORS:
                owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
                adopted = all(row.adopted == control.version for row in rows)
                if len(owners) == PROCESSORS and adopted and control.barrier.state is BarrierState.END:
                    return
            await asyncio.sleep(0.2)


async def watch(session: aiohttp.ClientSession, address: str, looks: int) -> None:
    """Show the page until it has been read `looks` times."""
    async with session.get(address + "events") as news:
        for _ in range(looks):
            assert (await read_event(news))["verdict"]["state"] == "running"  # type: ignore[index]


def within(sent: tuple[int, int], said: Operations, seconds: float) -> None:
    """Each kind of calls is what `explain` says, but for those at the edges, and late ones of a busy machine."""
    for counted, per_hour in zip(sent, (said.table, said.read + said.other), strict=True):
        expected = per_hour * seconds / 3600
        assert 0.7 * expected - PROCESSORS <= counted <= 1.05 * expected + 2 * PROCESSORS, (sent, said, seconds)


@asynccontextmanager
async def own_page(config: Config, coordinator: JobCoordinator) -> AsyncIterator[str]:
    """The address of the page that a processor serves, as `samza-azure run` does."""
    app = web.Application()
    run.page_of(config, coordinator)(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@contextmanager
def counted(fleet: Counter) -> Iterator[list[Phase]]:
    """Afterwards the list has what the fleet sent meanwhile."""
    phases: list[Phase] = []
    begun, (tables, blobs), beats = time.monotonic(), fleet.sent(), fleet.beats()
    yield phases
    after = fleet.sent()
    sent = after[0] - tables, after[1] - blobs
    phases.append(Phase(time.monotonic() - begun, sent, fleet.beats() - beats))


@pytest.mark.long  # tests/sim/test_cost.py counts the same calls
def test_a_fleet_costs_the_same_with_its_page_open_and_the_page_what_explain_says() -> None:
    with ExitStack() as stack:
        emulator = stack.enter_context(Azurite().start())
        fleet, reader, own = (stack.enter_context(counter(emulator)) for _ in range(3))
        name = uuid.uuid4().hex[:8]
        config = Config.parse(JOB.format(id=name, connect=fleet.connection))
        timing = config.coordinator.timing
        straight = Account.from_config(Config.parse(JOB.format(id=name, connect=emulator.connection_string)).storage)
        straight.ensure_created()
        coordinators = [AzureJobCoordinatorFactory().get_job_coordinator(f"p{n}", config) for n in range(PROCESSORS)]
        for each in coordinators:
            stack.enter_context(SharedTasks(each, "part", TASKS))

        async def story(session: aiohttp.ClientSession) -> None:
            await settled(straight)
            await straight.aclose()
            straight.close()
            by_reader, by_own = (Config.parse(JOB.format(id=name, connect=each.connection)) for each in (reader, own))
            async with served(by_reader) as (address, _), own_page(by_own, coordinators[0]) as its_address:
                with counted(fleet) as closed:
                    await asyncio.sleep(HEARTBEATS * timing.heartbeat_s)  # it is this long that is counted
                assert reader.sent() == own.sent() == (0, 0), "nobody looks, so nobody reads"
                with counted(fleet) as opened:
                    await watch(session, address, HEARTBEATS + 1)
                    read_by_page = reader.sent()  # it may read once more before it notices that the page is closed
                assert own.sent() == (0, 0)
                with counted(fleet) as opened_there:
                    await watch(session, its_address, HEARTBEATS + 1)
                    read_there = own.sent()
            said = coordination(timing, PROCESSORS)
            looks = page(timing, PROCESSORS) * ((HEARTBEATS + 1) * timing.heartbeat_s / 3600)
            for what, [phase] in {"closed": closed, "open": opened, "open in a processor": opened_there}.items():
                print(f"page {what}: {phase.sent} calls of tables and blobs in {phase.seconds:.1f} s")
                within(phase.sent, said, phase.seconds)
                same(phase, closed[0], said * (timing.heartbeat_s / 3600))
            assert read_by_page == read_there == (looks.table, looks.read)

        play(story)


def same(opened: Phase, closed: Phase, of_a_heartbeat: Operations) -> None:
    """As many calls per heartbeat as with the page closed; the edges may cut off or add those of one heartbeat."""
    edge = of_a_heartbeat.table + of_a_heartbeat.read + of_a_heartbeat.other
    assert abs(sum(opened.sent) - sum(closed.sent) * opened.beats / closed.beats) <= edge, (opened, closed, edge)

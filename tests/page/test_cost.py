"""What it costs to be watched: the calls of a live fleet, counted by proxies, while its page is closed and open."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import aiohttp

from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.explain import Operations, coordination, page
from samza_azure.group.control import BarrierState
from samza_azure.host.status import read
from samza_azure.storage.connection import Account
from tests.page.test_serving import play, read_event, served
from tests.storage.proxy import Guard

PROCESSORS, TASKS, HEARTBEATS = 3, 6, 4
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
            control, rows = await read(account.control_blob(), account.rows())
            if control is not None and len(control.members) == PROCESSORS and len(rows) == PROCESSORS:
                owners = {each.owner.processor for each in control.tasks.values() if each.owner is not None}
                adopted = all(row.adopted == control.version for row in rows)
                if len(owners) == PROCESSORS and adopted and control.barrier.state is BarrierState.END:
                    return
            await asyncio.sleep(0.2)


async def watch(session: aiohttp.ClientSession, address: str, looks: int) -> float:
    """Show the page until it has been read `looks` times; how long that took."""
    async with session.get(address + "events") as news:
        begun = time.monotonic()
        for _ in range(looks):
            assert (await read_event(news))["verdict"]["state"] == "running"  # type: ignore[index]
        return time.monotonic() - begun


def within(sent: tuple[int, int], said: Operations, seconds: float) -> None:
    """Each kind of calls is what `explain` says, but for those at the edges, and late ones of a busy machine."""
    for counted, per_hour in zip(sent, (said.table, said.read + said.other), strict=True):
        expected = per_hour * seconds / 3600
        assert 0.7 * expected - PROCESSORS <= counted <= 1.05 * expected + 2 * PROCESSORS, (sent, said, seconds)


def test_a_fleet_costs_the_same_with_its_page_open_and_the_page_what_explain_says() -> None:
    with ExitStack() as stack:
        emulator = stack.enter_context(Azurite().start())
        fleet, reader = (stack.enter_context(counter(emulator)) for _ in range(2))
        name = uuid.uuid4().hex[:8]
        config = Config.parse(JOB.format(id=name, connect=fleet.connection))
        timing = config.coordinator.timing
        straight = Account.from_config(Config.parse(JOB.format(id=name, connect=emulator.connection_string)).storage)
        straight.ensure_created()
        for number in range(PROCESSORS):
            coordinator = AzureJobCoordinatorFactory().get_job_coordinator(f"p{number}", config)
            stack.enter_context(SharedTasks(coordinator, "part", TASKS))

        async def story(session: aiohttp.ClientSession) -> None:
            await settled(straight)
            await straight.aclose()
            straight.close()
            async with served(Config.parse(JOB.format(id=name, connect=reader.connection))) as (address, _):
                before = fleet.sent()
                begun = time.monotonic()
                await asyncio.sleep(HEARTBEATS * timing.heartbeat_s)  # it is this long that is counted
                closed_s, closed = time.monotonic() - begun, since(fleet, before)
                assert reader.sent() == (0, 0), "nobody looks, so nobody reads"
                before = fleet.sent()
                open_s = await watch(session, address, HEARTBEATS + 1)
                opened, read_by_page = since(fleet, before), reader.sent()
            said = coordination(timing, PROCESSORS)
            print(f"calls of tables and blobs in {closed_s:.1f} s with the page closed: {closed}")
            print(f"in {open_s:.1f} s with the page open: {opened}, and of the page itself: {read_by_page}")
            within(closed, said, closed_s)
            within(opened, said, open_s)
            looks = page(timing, PROCESSORS) * ((HEARTBEATS + 1) * timing.heartbeat_s / 3600)
            assert read_by_page == (looks.table, looks.read)

        play(story)


def since(counted: Counter, before: tuple[int, int]) -> tuple[int, int]:
    tables, blobs = counted.sent()
    return tables - before[0], blobs - before[1]

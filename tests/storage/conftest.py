"""The storages that the contract tests run on: memory, memory behind the SDK, Azurite, a real account if one is named.

Each test has a fresh container and table. SAMZA_AZURE_LIVE holds the real account's connection string.
"""

import asyncio
import inspect
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import ControlBlob
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.storage.transactions import MemoryTransactions
from samza_azure.tables import store_of
from samza_azure.tables.store.segments import SegmentStore
from simulator.sdk import SdkAccount
from tests.storage.differences import AZURITE, Difference
from tests.storage.stock import LEASE_S, Stock

AnyAccount: TypeAlias = Account | MemoryAccount

LIVE = os.environ.get("SAMZA_AZURE_LIVE", "")
#: The services that are asked over the network, and where each is known to differ from Azure's documents.
SERVICES: dict[str, tuple[Difference, ...]] = {"azurite": AZURITE, **({"live": ()} if LIVE else {})}
#: What promises of the storage itself are tested in. All else is above it: `make test` plays that in memory and behind
#: the SDK, which are shown there to be the same; `make prove` on Azurite, too.
OF_THE_STORAGE = {
    f"test_{name}.py" for name in ("blobs", "contract", "control_blob", "log", "named_rows", "outcomes", "rows", "same")
}
#: The first lessee.
A = str(uuid.UUID(int=0xA))


@dataclass(slots=True)
class Clock:
    """A clock that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On Azurite, what is above the storage takes long."""
    for item in items:
        case = getattr(item, "callspec", None)
        if case and case.params.get("storages") == "azurite" and item.path.name not in OF_THE_STORAGE:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """One Azurite for all tests."""
    with Azurite() as emulator:
        yield emulator


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of one test and of the clients that it uses."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on the loop that its fixtures know."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    runner.run(pyfuncitem.obj(**arguments))
    return True


def settings(connect: str) -> Storage:
    """Settings with unique names."""
    name = uuid.uuid4().hex
    return Storage(Secret(connect), None, f"c{name}", f"t{name}")


@pytest.fixture
def connect(
    azurite: Azurite, runner: asyncio.Runner, places: Callable[[str], Storage]
) -> Iterator[Callable[[str], Account]]:
    """Makes accounts from connection strings and closes them."""
    accounts: list[Account] = []

    def make(text: str) -> Account:
        accounts.append(Account.from_config(places(text)))
        return accounts[-1]

    yield make
    for account in accounts:
        account.close()
        runner.run(account.aclose())


@pytest.fixture
def clock() -> Clock:
    """The clock of the memory."""
    return Clock()


@pytest.fixture(scope="session")
def places() -> Iterator[Callable[[str], Storage]]:
    """Makes names on the account of a connection string. What a real account got is deleted at the end."""
    used: list[Storage] = []

    def make(text: str) -> Storage:
        used.append(settings(text))
        return used[-1]

    yield make
    for place in used:
        if LIVE and place.connect == Secret(LIVE):
            BlobServiceClient.from_connection_string(LIVE).delete_container(place.container)
            TableServiceClient.from_connection_string(LIVE).delete_table(place.table)


@pytest.fixture(scope="session")
def stocks(azurite: Azurite, places: Callable[[str], Storage]) -> Iterator[Callable[[str], Stock]]:
    """The stock of a service, which is leased when it is first asked for."""
    made: dict[str, Stock] = {}

    def of(service: str) -> Stock:
        if service not in made:
            made[service] = Stock(places(connection_string(azurite, service)), A)
            made[service].service.ensure_created()
            made[service].fill()
        return made[service]

    yield of
    for stock in made.values():
        stock.service.close()


def connection_string(azurite: Azurite, service: str) -> str:
    """Where a service is."""
    return LIVE if service == "live" else azurite.connection_string


@dataclass(frozen=True, slots=True)
class Storages:
    """One of the storages that the contract tests run on."""

    another: Callable[[], AnyAccount]  # makes accounts, each with an empty container and an empty table
    expired: Callable[[], Awaitable[ControlBlob]]  # a blob on which A's lease has run out
    differences: tuple[Difference, ...] = ()


@pytest.fixture(params=["memory", "sdk", *SERVICES])
def storages(request: pytest.FixtureRequest, runner: asyncio.Runner, clock: Clock) -> Iterator[Storages]:
    """Each of them in turn."""
    if request.param == "memory":
        yield Storages(lambda: MemoryAccount(clock=clock), lambda: expired(MemoryAccount(clock=clock), clock))
        return
    if request.param == "sdk":

        def simulated() -> SdkAccount:
            return SdkAccount(MemoryStorage(clock))

        yield Storages(simulated, lambda: expired(simulated(), clock))
        return
    connect: Callable[[str], Account] = request.getfixturevalue("connect")
    stock: Stock = request.getfixturevalue("stocks")(request.param)
    text = connection_string(request.getfixturevalue("azurite"), request.param)

    def another() -> Account:
        account = connect(text)
        account.create()  # bound to nobody: the container is empty
        return account

    async def from_stock() -> ControlBlob:
        return stock.service.leased_blob(stock.take())

    yield Storages(another, from_stock, SERVICES[request.param])
    runner.run(stock.service.aclose())


async def expired(account: AnyAccount, clock: Clock) -> ControlBlob:
    """The memory's leases end when its clock says so."""
    blob = account.control_blob()
    await blob.create(b"0", timeout=1)
    await blob.acquire(A, seconds=LEASE_S, timeout=1)
    clock.now += LEASE_S
    return blob


@pytest.fixture
def another(storages: Storages) -> Callable[[], AnyAccount]:
    """Makes accounts, each with an empty container and an empty table."""
    return storages.another


@pytest.fixture
def account(another: Callable[[], AnyAccount]) -> AnyAccount:
    """An account with an empty container and an empty table."""
    return another()


Stores: TypeAlias = Callable[[], SegmentStore]


@pytest.fixture(scope="session")
def connected(azurite: Azurite, places: Callable[[str], Storage]) -> Iterator[Account]:
    """One account for all tables of segments: each has its own partition."""
    account = Account.from_config(places(azurite.connection_string))
    account.ensure_created()
    yield account
    account.close()


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.long)])
def segment_stores(request: pytest.FixtureRequest) -> Stores:
    """Makes clients of one table of segments, which is not there yet. A test that names its stores itself has those."""
    name = f"t{uuid.uuid4().hex}"
    if request.param == "memory":
        account, rows = MemoryAccount(), MemoryTransactions()
        return lambda: SegmentStore(rows, account.blobs(), name, wait=lambda pause: None)
    shared: Account = request.getfixturevalue("connected")
    return lambda: store_of(shared, name)

"""The storages that the contract tests run on: memory and a real Azurite, a fresh container and table each time."""

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from pydantic import SecretStr

from samza_azure.host.azurite import Azurite
from samza_azure.sim.memory import MemoryAccount
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Refused

AnyAccount: TypeAlias = Account | MemoryAccount


@dataclass(frozen=True, slots=True)
class Settings:
    """`config.storage`."""

    connect: SecretStr | None
    account: str | None
    container: str
    table: str


@dataclass(slots=True)
class Clock:
    """A clock that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


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


def settings(connect: str) -> Settings:
    """Settings with names that nobody else has."""
    name = uuid.uuid4().hex
    return Settings(SecretStr(connect), None, f"c{name}", f"t{name}")


@pytest.fixture
def connect(azurite: Azurite, runner: asyncio.Runner) -> Iterator[Callable[[str], Account]]:
    """Makes accounts from connection strings and closes them."""
    accounts: list[Account] = []

    def make(text: str) -> Account:
        accounts.append(Account.from_config(settings(text)))
        return accounts[-1]

    yield make
    for account in accounts:
        account.close()
        runner.run(account.aclose())


@pytest.fixture
def clock() -> Clock:
    """The clock of the memory."""
    return Clock()


@pytest.fixture(params=["memory", "azurite"])
def another(request: pytest.FixtureRequest, runner: asyncio.Runner, clock: Clock) -> Callable[[], AnyAccount]:
    """Makes accounts, each with an empty container and an empty table."""
    if request.param == "memory":
        return lambda: MemoryAccount(clock=clock)
    azurite: Azurite = request.getfixturevalue("azurite")
    connect: Callable[[str], Account] = request.getfixturevalue("connect")

    def make() -> Account:
        account = connect(azurite.connection_string)
        account.ensure_created()
        return account

    return make


@pytest.fixture
def account(another: Callable[[], AnyAccount]) -> AnyAccount:
    """An account with an empty container and an empty table."""
    return another()


@pytest.fixture
def until_leases_end(another: Callable[[], AnyAccount], clock: Clock) -> Callable[[int], Awaitable[None]]:
    """Waits until every lease that was taken before for so many seconds has run out: until one taken now has."""

    async def wait(seconds: int) -> None:
        canary = another().control_blob()
        await canary.create(b"", timeout=3)
        assert await canary.acquire(str(uuid.uuid4()), seconds=seconds, timeout=3) is None
        clock.now += seconds
        deadline = time.monotonic() + 2 * seconds
        while isinstance(await canary.acquire(str(uuid.uuid4()), seconds=seconds, timeout=3), Refused):
            assert time.monotonic() < deadline, "the lease does not end"
            await asyncio.sleep(0.2)

    return wait

"""One Spark session and one Azurite for all tests here."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.account import Secret, Storage
from samza_azure.application import Application
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.storage.connection import Account

from .session import QUICK_JAVA, session
from .task_driver import Fleet, config_of, delete_below


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """The storage. A request to it takes a few milliseconds of processor time, and must get them among busy JVMs."""
    with Azurite() as emulator:
        os.nice(5)  # these tests and all that they start, Spark above all; three of them share two cores
        yield emulator


@pytest.fixture(scope="session")
def storage(azurite: Azurite) -> Storage:
    """Unique names."""
    name = uuid.uuid4().hex
    return Storage(Secret(azurite.connection_string), None, f"c{name}", f"t{name}")


@pytest.fixture(scope="session")
def account(storage: Storage) -> Iterator[Account]:
    """The account, with its container and table."""
    account = Account.from_config(storage)
    account.ensure_created()
    yield account
    account.close()


@pytest.fixture(scope="session")
def spark(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Its sources find the account in the environment."""
    more = {
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.driver.maxResultSize": "1m",  # rows leave Spark without being collected
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",  # many snapshots
    }
    with session(storage, tmp_path_factory.mktemp("spark"), more) as made:
        yield made


@pytest.fixture
def empty_streams(account: Account) -> None:
    """No source stream has rows: another test may have used the same name."""
    delete_below(account, "streams/")


@pytest.fixture
def fleet(
    spark: SparkSession, account: Account, empty_streams: None, tmp_path: Path
) -> Iterator[Callable[[Application, str], Fleet]]:
    """Makes a fleet of an application and the stream sections of its job file."""
    fleets: list[Fleet] = []

    def make(application: Application, streams: str) -> Fleet:
        fleets.append(Fleet(spark, account, config_of(tmp_path, streams), application, tmp_path / f"{len(fleets)}"))
        return fleets[-1]

    yield make
    for each in fleets:
        each.close()

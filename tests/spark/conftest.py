"""One Spark session and one Azurite for all tests here."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from samza_azure.application import Application
from samza_azure.host.azurite import Azurite
from samza_azure.spark import java, zygote
from samza_azure.spark.account import to_environment
from samza_azure.spark.session import connect_session
from samza_azure.spark.settings import settings_of
from samza_azure.spark.source import LogSource
from samza_azure.storage.connection import Account

from .fleet import Fleet, config_of


@dataclass(frozen=True, slots=True)
class Settings:
    """`config.storage`."""

    connect: SecretStr | None
    account: str | None
    container: str
    table: str


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """The storage."""
    with Azurite() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def storage(azurite: Azurite) -> Settings:
    """Names that nobody else has."""
    name = uuid.uuid4().hex
    return Settings(SecretStr(azurite.connection_string), None, f"c{name}", f"t{name}")


@pytest.fixture(scope="session")
def account(storage: Settings) -> Iterator[Account]:
    """The account, with its container and table."""
    account = Account.from_config(storage)
    account.ensure_created()
    yield account
    account.close()


@pytest.fixture(scope="session")
def spark(storage: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Its sources find the account in the environment."""
    directory = tmp_path_factory.mktemp("spark")
    settings = settings_of(
        {
            "spark.driver.maxResultSize": "1m",  # rows leave Spark without being collected
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",  # many snapshots
        },
        directory,
    )
    with forked_workers(directory) as python:
        jvm = java.launch(settings, {**os.environ, **to_environment(storage)}, directory, python=python)
        session = connect_session("tests", settings, jvm)
        session.dataSource.register(LogSource)
        yield session
        session.stop()
        jvm.end()


@contextmanager
def forked_workers(directory: Path) -> Iterator[str]:
    """Spark's Python processes as a container has them: forked, 30 ms each. The zygote's parent has no threads."""
    code = "import signal, sys; from pathlib import Path; from samza_azure.spark import zygote\n"
    code += "zygote.start(Path(sys.argv[1])); print(flush=True); signal.pause()"
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        yield zygote.executable(directory)
        parent.kill()


@pytest.fixture
def fleet(spark: SparkSession, account: Account, tmp_path: Path) -> Iterator[Callable[[Application, str], Fleet]]:
    """Makes a fleet of an application and the stream sections of its job file."""
    fleets: list[Fleet] = []

    def make(application: Application, streams: str) -> Fleet:
        fleets.append(Fleet(spark, account, config_of(tmp_path, streams), application, tmp_path / f"{len(fleets)}"))
        return fleets[-1]

    yield make
    for each in fleets:
        each.close()

"""Storage and a Spark session for a program that plays cases outside of pytest."""

import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from samza_azure.host.azurite import Azurite
from samza_azure.spark import java
from samza_azure.spark.account import to_environment
from samza_azure.spark.session import connect_session
from samza_azure.spark.settings import settings_of
from samza_azure.spark.source import LogSource
from samza_azure.storage.connection import Account

from .run import Bench


@dataclass(frozen=True, slots=True)
class _Settings:
    """`config.storage`."""

    connect: SecretStr | None
    account: str | None
    container: str
    table: str


@contextmanager
def bench() -> Iterator[Bench]:
    """Everything that cases share; gone at the end."""
    with Azurite() as emulator, tempfile.TemporaryDirectory(prefix="samza-azure-fuzz-") as name:
        directory = Path(name)
        unique = uuid.uuid4().hex
        storage = _Settings(SecretStr(emulator.connection_string), None, f"c{unique}", f"t{unique}")
        account = Account.from_config(storage)
        account.ensure_created()
        settings = settings_of({}, directory)
        jvm = java.launch(settings, {**os.environ, **to_environment(storage)}, directory)
        spark = connect_session("fuzz", settings, jvm)
        spark.dataSource.register(LogSource)
        try:
            yield Bench(spark, account, directory, threading.Lock())
        finally:
            spark.stop()
            jvm.end()
            account.close()

"""One Spark session and one Azurite for a program of its own, and what the processes use."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from samza_azure.account import Secret, Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.spark.jvm import java, local_files, selectors, sources
from samza_azure.spark.jvm.session import connect_session, jvm_of
from samza_azure.spark.jvm.settings import settings_of
from samza_azure.spark.query.source import LogSource
from samza_azure.storage.connection import Account
from samza_azure.tasks.account import to_environment


@dataclass(frozen=True, slots=True)
class Alone:
    """What a container has: the session, the account, scratch space, its JVM's process."""

    spark: SparkSession
    account: Account
    directory: Path
    jvm: psutil.Process

    def heap_bytes(self) -> int:
        """Of the JVM, what is still used after a collection."""
        runtime = jvm_of(self.spark).java.lang.Runtime.getRuntime()
        runtime.gc()
        return int(runtime.totalMemory() - runtime.freeMemory())


@contextmanager
def alone(chosen: Mapping[str, str]) -> Iterator[Alone]:
    """The settings go before the container's own."""
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    try:
        with Azurite() as emulator:
            name = uuid.uuid4().hex
            storage = Storage(Secret(emulator.connection_string), None, f"c{name}", f"t{name}")
            account = Account.from_config(storage)
            account.ensure_created()
            settings = settings_of(chosen, directory)
            jvm = java.launch(settings, {**os.environ, **to_environment(storage)}, directory)
            session = connect_session("prove", settings, jvm)
            sources.register(session, LogSource)
            local_files.install(session)
            selectors.install(session)
            try:
                yield Alone(session, account, directory, psutil.Process(jvm.process.pid))
            finally:
                session.stop()
                jvm.end()
                account.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process has ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) << 10

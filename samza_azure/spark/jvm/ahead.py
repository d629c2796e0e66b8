"""A JVM for a command, which starts while the command does other things. Importing this imports no Spark."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samza_azure.spark.jvm.java import Jvm, launch
from samza_azure.spark.jvm.settings import analysed, settings_of


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a session is made with, see `session.connect_session`."""

    jvm: Jvm
    settings: Mapping[str, str]
    directory: Path


@contextmanager
def launched(chosen: Mapping[str, str]) -> Iterator[Ahead]:
    """The JVM, with the user's settings. It is killed at the end of the block: to stop Spark in it takes longer."""
    with tempfile.TemporaryDirectory(prefix="samza-azure-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        settings = settings_of(analysed(chosen), directory)
        jvm = launch(settings, os.environ, directory)
        try:
            yield Ahead(jvm, settings, directory)
        finally:
            jvm.process.kill()
            jvm.process.wait()

"""What a container installs in its session before the first query."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm import cpu_time, exchanges, local_files, searches, selectors


def improvements(settings: Mapping[str, str]) -> Iterator[Callable[[SparkSession], Any]]:
    """Each is called with the session. `settings` are those of the job file."""
    yield from (local_files.install, selectors.install, cpu_time.installed, exchanges.install)
    if settings.get(searches.LEFT_OUT) != "false":
        yield searches.install

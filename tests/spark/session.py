"""A Spark session as the container makes it, for tests and trials: its Python processes come from a zygote."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from samza_azure.account import Storage
from samza_azure.spark.jvm import java, sources
from samza_azure.spark.jvm.improvements import improvements
from samza_azure.spark.jvm.session import connect_session
from samza_azure.spark.jvm.settings import settings_of
from samza_azure.spark.query.source import LogSource
from samza_azure.tasks.account import to_environment

#: Queries that run once do not pay for a second compiler; the first one alone would get a small code cache. It is
#: quick, so let it compile earlier: that saves about a tenth of the JVM's time once it is warm.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:CompileThresholdScaling=0.3"
#: The zygote has to be forked before there are threads, which cannot be promised here: it gets a process of its own.
ZYGOTE = """
import signal, sys
from pathlib import Path
from samza_azure.machine.processes import die_with_parent
from samza_azure.spark.jvm import zygote
die_with_parent()
print(zygote.executable(Path(sys.argv[1])), flush=True)
zygote.start(Path(sys.argv[1]))
print("forked", flush=True)
signal.pause()
"""


@contextmanager
def session(storage: Storage, directory: Path, more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The session. Its sources find the account in the environment."""
    settings = settings_of(more or {}, directory)
    environment = {**os.environ, **to_environment(storage)}
    zygote = subprocess.Popen([sys.executable, "-c", ZYGOTE, str(directory)], stdout=subprocess.PIPE, text=True)
    assert zygote.stdout is not None
    jvm = java.launch(settings, environment, directory, python=zygote.stdout.readline().strip())
    assert zygote.stdout.readline() == "forked\n"
    spark = connect_session("tests", settings, jvm)
    sources.register(spark, LogSource)
    for install in improvements({}):
        install(spark)
    try:
        yield spark
    finally:
        spark.stop()
        jvm.end()
        zygote.kill()
        zygote.wait()

"""A container from the start of its JVM on: session, pipeline, tasks."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.config.spark import STATE_PORT, cores_of, is_dynamic, on_cluster, on_kubernetes
from samza_azure.errors import SamzaAzureError
from samza_azure.machine.processes import how_it_ended
from samza_azure.messages import OUT_OF_MEMORY, Alive, JvmEnded
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.jvm import java, sources
from samza_azure.spark.jvm.application_end import end_with_application
from samza_azure.spark.jvm.errors import BROKEN
from samza_azure.spark.jvm.executors import replace_executors
from samza_azure.spark.jvm.improvements import improvements
from samza_azure.spark.jvm.session import EndedAtStart, connect_session, java_class, jvm_of
from samza_azure.spark.jvm.settings import FALLBACK, STATE_HEADER
from samza_azure.spark.jvm.watermark import probe
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.query.beside import send_modules
from samza_azure.spark.query.query_context import QueryContext
from samza_azure.spark.query.shuffled import ShuffledRows
from samza_azure.spark.query.source import LogSource
from samza_azure.spark.query.starts import Starts, at_once
from samza_azure.spark.query.state_server import StateServer
from samza_azure.spark.query.warm_up import WarmUp
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.recorded_files import RecordedFiles
from samza_azure.tasks.serve import serve as serve_tasks
from samza_azure.tasks.tasks import NoWarmUp

log = logging.getLogger(__name__)

#: The folder of the container in which executors that leave put shuffled rows.
SHUFFLED = "shuffled"
#: A container that has lived this long makes Java's archive for the next one, if there is none.
ARCHIVE_AFTER_S = 60.0
#: The time from the end of its connections to that of a JVM's process: if its code comes later, it counts for nothing.
JVM_ENDS_S = 10.0


def serve(config: Config, directory: Path, settings: Mapping[str, str], jvm: java.Jvm, channel: Channel) -> None:
    """Report the plan, then carry out commands until Exit."""
    server = None
    if on_cluster(settings):
        server, settings = _with_server(settings, directory)
    try:
        spark = connect_session(config.app.name, settings, jvm)
    except Exception as error:
        if server is not None:
            server.close()
        if server is None or not isinstance(error, EndedAtStart):
            raise
        raise SamzaAzureError(_why_ended(settings)) from error
    with ended_with(jvm, channel.tell):
        _serve(config, directory, settings, spark, server, channel)


def _why_ended(settings: Mapping[str, str]) -> str:
    """Why there was no session on a cluster, and what to do."""
    master = settings["spark.master"]
    if on_kubernetes(settings):
        return (
            f"Spark has ended its application at {master} before there was a session, as it does when too many pods of "
            "executors fail. The log says why; what became of them, kubectl get pods."
        )
    return (
        f"No master of Spark {pyspark.__version__} at {master} took this application within a minute. Nobody listens "
        "there, or a master of another release of Spark, whose page says which, or with spark.authenticate one with "
        "another secret. Correct spark.master, or start such a master."
    )


def _with_server(settings: Mapping[str, str], directory: Path) -> tuple[StateServer, Mapping[str, str]]:
    """The server of state, and the settings with a folder of it: there an executor that leaves, the last of all, puts
    the rows that its batch has shuffled.
    """
    here, bind = settings["spark.driver.host"], settings["spark.driver.bindAddress"]
    server = StateServer(bind, here, settings[STATE_HEADER], int(settings.get(STATE_PORT, "0")))
    log.info("Executors find state at %s", server.authority)
    folder = directory / SHUFFLED
    folder.mkdir()
    url, _ = server.serve(folder, RecordedFiles(folder, ()))
    return server, {FALLBACK: f"{url}/", **settings}


@contextmanager
def ended_with(jvm: java.Jvm, tell: Callable[[JvmEnded], None]) -> Iterator[None]:
    """Inside, this process ends with its JVM, and tells the supervisor how that has ended."""
    watching = threading.Thread(target=_die_with_java, args=[jvm, tell], name="java", daemon=True)
    watching.start()
    try:
        yield
    except BROKEN:
        log.exception("A call to the JVM failed")
        watching.join(JVM_ENDS_S)
        raise


def _serve(
    config: Config,
    directory: Path,
    settings: Mapping[str, str],
    spark: SparkSession,
    server: StateServer | None,
    channel: Channel,
) -> None:
    log.info("Spark %s is up, on Java %s", spark.version, java.find_java(os.environ).version)
    probe(spark)
    threading.Timer(ARCHIVE_AFTER_S, _make_archive).start()
    java_runtime = jvm_of(spark).Runtime.getRuntime()

    if server is not None:
        # Before anything runs in a task, as a module of the pipeline may let it.
        major = java_class(spark, "java.lang.Runtime").version().feature()
        spark.sparkContext.addFile(server.only_for(major))
        send_modules(spark, config.path.absolute().parent, directory)

    def analyse() -> Pipeline:
        with ThreadPoolExecutor(2) as threads:
            registered = threads.submit(sources.register, spark, LogSource, config.path.absolute().parent)
            for install in improvements(config.spark):
                threads.submit(install, spark)
            pipeline = analyse_pipeline(spark, load(config), config, directory / "analysis")
            registered.result()
        if server is not None:
            end_with_application(spark)  # not before: a module of the pipeline that stops the session is refused above
        return pipeline

    def alive() -> Alive:
        return Alive(java_runtime.totalMemory() - java_runtime.freeMemory(), java_runtime.maxMemory())

    # On a cluster a container without a task takes no core of others.
    warm_up = WarmUp if config.task.warm_up and not on_cluster(settings) else NoWarmUp
    starts = Starts(at_once(cores_of(settings)))
    if server is not None and not on_kubernetes(settings):  # Spark's own allocator of pods sees to it there
        replace_executors(spark, dynamic=is_dynamic(settings))
    shuffled = ShuffledRows(spark, directory / SHUFFLED) if server is not None else None
    context_of = partial(QueryContext, spark=spark, starts=starts, state_server=server, shuffled=shuffled)
    serve_tasks(config, directory, channel, analyse, context_of=context_of, alive=alive, warm_up=warm_up)


def _die_with_java(jvm: java.Jvm, tell: Callable[[JvmEnded], None]) -> None:
    """Without its JVM a container can only fail its tasks. The supervisor starts another."""
    code = jvm.process.wait()
    log.error("The JVM %s", how_it_ended(code))
    sys.stderr.flush()
    tell(JvmEnded(code))
    os._exit(code if code == OUT_OF_MEMORY else 1)


def _make_archive() -> None:
    """Make Java's archive for the next start on this machine, at low priority. It may fail."""
    try:
        java.build_archive(os.environ)
    except (OSError, subprocess.SubprocessError, SamzaAzureError) as error:
        log.info("Java's archive could not be made: %s", error)

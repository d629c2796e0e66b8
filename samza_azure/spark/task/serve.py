"""A container from the start of its JVM on: session, pipeline, tasks."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.config.spark import cores_of
from samza_azure.errors import SamzaAzureError
from samza_azure.machine import how_it_ended
from samza_azure.messages import OUT_OF_MEMORY, JvmEnded, Ready
from samza_azure.spark.jvm import java, local_files, selectors
from samza_azure.spark.jvm.session import connect_session
from samza_azure.spark.jvm.watermark import probe
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.source.account import blobs, hints, positions
from samza_azure.spark.source.gate_files import PermitFile
from samza_azure.spark.source.hint_board import HintBoard
from samza_azure.spark.source.source import LogSource
from samza_azure.spark.task.channel import Channel
from samza_azure.spark.task.context import ContainerContext
from samza_azure.spark.task.secrets import Secrets
from samza_azure.spark.task.starts import Starts, at_once
from samza_azure.spark.task.tasks import Tasks

log = logging.getLogger(__name__)

#: A container that has lived this long makes the class-data archive for the next one, if there is none.
ARCHIVE_AFTER_S = 60.0
#: The time from the end of its connections to that of a JVM's process: if its code comes later, it counts for nothing.
JVM_ENDS_S = 10.0


def serve(config: Config, directory: Path, settings: Mapping[str, str], jvm: java.Jvm, channel: Channel) -> None:
    """Report the plan, then carry out commands until Exit."""
    spark = connect_session(config.app.name, settings, jvm)
    with ended_with(jvm, channel.tell):
        _serve(config, directory, spark, channel)


@contextmanager
def ended_with(jvm: java.Jvm, tell: Callable[[JvmEnded], None]) -> Iterator[None]:
    """Inside, this process ends with its JVM, and tells the supervisor how that has ended."""
    watching = threading.Thread(target=_die_with_java, args=[jvm, tell], name="java", daemon=True)
    watching.start()
    try:
        yield
    except (Py4JError, ConnectionError):  # a JVM that runs out of memory breaks its connections before it ends
        log.exception("A call to the JVM failed")
        watching.join(JVM_ENDS_S)
        raise


def _serve(config: Config, directory: Path, spark: SparkSession, channel: Channel) -> None:
    permit = PermitFile(directory / "permit")
    log.info("Spark %s is up, on Java %s", spark.version, java.find_java(os.environ).version)
    probe(spark)
    with ThreadPoolExecutor(2) as threads:  # Spark starts a Python process to register a source
        registered = threads.submit(spark.dataSource.register, LogSource)
        threads.submit(local_files.install, spark)
        threads.submit(selectors.install, spark)
        pipeline = analyse_pipeline(spark, load(config), config, directory / "analysis")
        registered.result()

    def changed() -> None:
        channel.commands.put(None)

    board = HintBoard(hints(), directory / "hints", changed)
    board.start()
    context = ContainerContext(
        spark=spark,
        config=config,
        pipeline=pipeline,
        blobs=blobs(),
        positions=positions(),
        hints=board,
        directory=directory,
        may_append=permit.holds,
        clean=Secrets(config).removed_from,
        changed=changed,
        starts=Starts(at_once(cores_of(spark.sparkContext.master or "local"))),
    )
    described = {
        name: {fact: context.clean(value) for fact, value in facts.items()}  # a condition may quote a setting
        for name, facts in pipeline.plan.described.items()
    }
    channel.tell(Ready(replace(pipeline.plan, described=described)))
    log.info("Ready: %s", ", ".join(pipeline.plan.tasks()))
    threading.Timer(ARCHIVE_AFTER_S, _make_archive).start()
    Tasks(channel, context, permit).run()


def _die_with_java(jvm: java.Jvm, tell: Callable[[JvmEnded], None]) -> None:
    """Without its JVM a container can only fail its tasks. The supervisor starts another."""
    code = jvm.process.wait()
    log.error("The JVM %s", how_it_ended(code))
    sys.stderr.flush()
    tell(JvmEnded(code))
    os._exit(code if code == OUT_OF_MEMORY else 1)


def _make_archive() -> None:
    """Make the class-data archive for the next start on this machine, at low priority. It may fail."""
    try:
        java.build_archive(os.environ)
    except (OSError, subprocess.SubprocessError, SamzaAzureError) as error:
        log.info("The class-data archive could not be made: %s", error)

"""The one Spark session of a container, with the settings that the container relies on."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark import java

#: Each value here is needed for what the container promises, or was measured to matter (reference/spark.md).
BASE = {
    "spark.master": "local[*,4]",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.maxResultSize": "1g",  # bounds the output of one batch, which is collected on the driver
    "spark.ui.enabled": "false",
    "spark.scheduler.mode": "FAIR",  # one pool per task
    "spark.python.unix.domain.socket.enabled": "true",  # saves 40 ms per batch
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "4",  # the log is the memory; the directory stays small
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # ticks of the source do that, see watermark.py
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.log.level": "ERROR",
}
LOCAL_STATE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def jvm_of(spark: SparkSession) -> Any:
    """The Java side of a session. There always is one here, which pyspark's types do not know."""
    return spark.sparkContext._jvm


def start_session(
    name: str,
    settings: Mapping[str, str],
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    java_options: tuple[str, ...] | None = None,
) -> SparkSession:
    """Start a JVM and a session in it. Call it from the main thread (see `java.launch`)."""
    environment = dict(os.environ) if environment is None else environment
    own = {"spark.local.dir": str(directory / "spark"), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    chosen = {**BASE, **own, **settings}
    options = java.archive_options(environment) if java_options is None else java_options
    gateway = java.launch(chosen, environment, archive=tuple(options))
    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = _connect(builder, gateway)
    _gateway_of(spark).proc = gateway.process  # as if pyspark had started it
    return spark


def java_process(spark: SparkSession) -> "subprocess.Popen[bytes]":
    """The JVM of a session."""
    process: subprocess.Popen[bytes] = _gateway_of(spark).proc
    return process


def _gateway_of(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def _connect(builder: SparkSession.Builder, gateway: java.Gateway) -> SparkSession:
    """pyspark takes a JVM that is already there from these two variables. The secret does not stay in them."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        return builder.getOrCreate()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]

"""Analyse a pipeline for commands that do not run it, in a temporary Spark session."""

import tempfile
from pathlib import Path

from samza_azure.config import Config
from samza_azure.messages import Plan
from samza_azure.spark.jvm.session import start_session
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline


def plan_of(config: Config) -> Plan:
    """Analyse the job file's pipeline as a container would. Raise the same PipelineRefused."""
    with tempfile.TemporaryDirectory(prefix="samza-azure-") as name:
        directory = Path(name)
        spark = start_session(config.app.name, config.spark, directory)
        try:
            return analyse_pipeline(spark, load(config), config, directory / "analysis").plan
        finally:
            spark.stop()

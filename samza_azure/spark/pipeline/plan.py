"""Analyse a pipeline for commands that do not run it, in a Spark session of their own."""

import warnings

from samza_azure.config import Config
from samza_azure.messages import Plan
from samza_azure.spark.jvm.ahead import Ahead
from samza_azure.spark.jvm.session import connect_session, gateway_of
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline


def plan_with_spark(config: Config, ahead: Ahead) -> Plan:
    """Analyse the job file's pipeline as a container would. Raise the same PipelineRefused."""
    spark = connect_session(config.app.name, ahead.settings, ahead.jvm)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"pyspark\.")  # of what it does instead; we refuse that
        try:
            return analyse_pipeline(spark, load(config), config, ahead.directory / "analysis").plan
        finally:
            gateway_of(spark).shutdown()  # else py4j would report that it cannot release what Python drops now

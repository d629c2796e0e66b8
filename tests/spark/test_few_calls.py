"""How often Python calls Java while a container starts: each call takes both a tenth of a millisecond of time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient
from pyspark.sql import DataFrame, SparkSession

from samza_azure.application import Application
from samza_azure.spark.jvm import sources
from samza_azure.spark.jvm.improvements import improvements
from samza_azure.spark.jvm.session_kept import session_kept
from samza_azure.spark.jvm.watermark import probe
from samza_azure.spark.pipeline.analysis import analyse
from samza_azure.spark.pipeline.bounds import Input
from samza_azure.spark.pipeline.event_time import Output
from samza_azure.spark.pipeline.schema import parse_schema
from samza_azure.spark.query.source import LogSource


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The commands that are sent to Java, but for releases of objects, which another thread may send at any time."""
    sent: list[str] = []
    send = GatewayClient.send_command

    def send_command(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        if not command.startswith("m\n"):
            sent.append(command)
        return send(self, command, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(GatewayClient, "send_command", send_command)
        yield sent


def test_what_a_container_installs_takes_few_calls(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods were looked for one by one, and settings read one by one: 700 calls."""
    with counted(monkeypatch) as sent:
        probe(spark)
        sources.register(spark, LogSource)
        for install in improvements({}):
            install(spark)
        with session_kept(spark, "stage"):
            pass
    assert 50 < len(sent) < 200


def plain(rows: DataFrame) -> DataFrame:
    return rows.where("value IS NOT NULL").select("key", "value")


def test_an_analysis_takes_few_calls(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An iterator of Java's took sixty calls for its end alone."""
    application = Application()
    application.stage("rows", output="out")(plain)
    inputs = [Input("rows", parse_schema(spark, "key string, value double", "rows"), None)]
    with counted(monkeypatch) as sent:
        analyse(spark, application.stages[0], inputs, Output("out", None, None), 1, tmp_path)
    assert 100 < len(sent) < 400
    assert not [each for each in sent if "isInstanceOf" in each]  # pyspark asks it of each error of Java's

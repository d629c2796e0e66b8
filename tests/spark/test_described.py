"""The differences between two pipelines, as a processor with the other one reports them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.messages import changes
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .task_driver import config_of

ORDERS = '[streams.orders]\nevent_time = "ts"\nschema = "id string, ts timestamp, amount int{more}"\n'
Described = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture
def described(spark: SparkSession, tmp_path: Path) -> Described:
    """The facts of a pipeline of one stage, `stage`."""

    def run(function: Callable[..., Any], *, more: str = "", **options: Any) -> dict[str, dict[str, str]]:
        application = Application()
        function.__name__ = "stage"
        application.stage("orders", output="out", **options)(function)
        config = config_of(tmp_path, ORDERS.format(more=more))
        return analyse_pipeline(spark, application, config, tmp_path / "analysis").plan.described

    return run


def counted(window: str = "1 day", delay: str = "1 hour", slide: str | None = None, total: bool = False) -> Any:
    """A stage that counts in windows, and perhaps adds up."""

    def stage(rows: DataFrame) -> DataFrame:
        made = [F.count("*").alias("n")] + ([F.sum("amount").alias("s")] if total else [])
        return rows.withWatermark("ts", delay).groupBy(F.window("ts", window, slide), "id").agg(*made)

    return stage


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (counted(), []),
        (counted("1 hour"), ["stage stage: window 1 day became 1 hour"]),
        (counted(delay="10 minutes"), ["stage stage: delay of orders 1 hour became 10 minutes"]),
    ],
)
def test_a_window_and_a_delay(described: Described, stage: Any, said: list[str]) -> None:
    assert changes(described(counted()), described(stage)) == said


def test_a_changed_slide_is_reported_although_no_fact_shows_it(described: Described) -> None:
    assert changes(described(counted()), described(counted("1 day", "1 hour", "6 hours"))) == [
        "stage stage: what its state depends on differs (functions, the slide of a window, a schema)"
    ]


def test_functions_and_the_columns_that_they_make(described: Described) -> None:
    assert changes(described(counted()), described(counted(total=True))) == [
        "stage stage: functions count(1) became count(1), sum(amount)",
        "stream out: gained column s (bigint)",
    ]


def test_a_column_of_a_source_and_the_key_of_a_deduplication(described: Described) -> None:
    def by(*keys: str) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: rows.withWatermark("ts", "1 hour").dropDuplicates([*keys, "ts"])

    found = changes(described(by("id")), described(by("id", "amount"), more=", s string"))
    assert [each for each in found if each.startswith("stream")] == [
        "stream orders: gained column s (string)",
        "stream out: gained column s (string)",
    ]
    assert any("keys of the deduplication id, ts became id, amount, ts" in each for each in found)

"""Call a stage's function with empty streams, and refuse what is not a plan over these."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.catalyst import input_directory
from samza_azure.spark.jvm.session import is_of
from samza_azure.spark.jvm.session_kept import session_kept
from samza_azure.spark.pipeline.bounds import Input
from samza_azure.spark.pipeline.spark_errors import said_by_stage
from samza_azure.user_code import noted, place_of


def called(
    spark: SparkSession, stage: Stage, inputs: Sequence[Input], directory: Path
) -> tuple[DataFrame, tuple[str, ...]]:
    """The plan that a stage's function makes of its inputs, and why it is refused for what it does besides."""
    frames = _empty_streams(spark, inputs, directory)
    queries = {query.id for query in spark.streams.active}
    frame: Any = None
    refused: list[str] = []
    try:
        with session_kept(spark, stage.name):
            frame = _returned(stage, inputs, frames)
    except PipelineRefused as error:
        if frame is None:
            raise
        refused.append(str(error))
    finally:
        started = [query for query in spark.streams.active if query.id not in queries]
        for query in started:
            query.stop()
    if started:
        refused.append(
            f"Stage {stage.name} starts a query. Return the DataFrame instead; samza-azure starts the query. "
            f"{_where_rows_go(stage)}"
        )
    if wrong := _why_no_plan(spark, stage, frame):
        raise PipelineRefused(" ".join(refused) or wrong)
    assert isinstance(frame, DataFrame)
    return frame, tuple(refused)


def _returned(stage: Stage, inputs: Sequence[Input], frames: Sequence[DataFrame]) -> Any:
    """What the function returns. If it raises, that is said for the person who wrote it."""
    try:
        return stage.function(*frames)
    except Exception as error:
        columns = list(dict.fromkeys(name for each in frames for name in each.columns))
        time = next((each.event_time for each in inputs if each.event_time), None)
        refused = PipelineRefused(f"Stage {stage.name} cannot be analysed: {said_by_stage(error, columns, time)}")
        noted(refused, place_of(error), stage.name)
        raise refused from error


def _empty_streams(spark: SparkSession, inputs: Sequence[Input], directory: Path) -> list[DataFrame]:
    """Stand-ins for the streams: they have the same columns, but start no Python source."""
    frames = []
    for number, each in enumerate(inputs):
        path = input_directory(directory, number, each.stream)
        path.mkdir(parents=True, exist_ok=True)
        frames.append(spark.readStream.schema(each.schema).format("json").load(str(path)))
    return frames


def _why_no_plan(spark: SparkSession, stage: Stage, frame: Any) -> str:
    """Why what the function returns is no stream of this session with columns. Empty: it is one."""
    returned = type(frame)
    if returned.__name__ == "DataStreamWriter":
        return (
            f"Stage {stage.name} returns a DataStreamWriter. Return the DataFrame, without writeStream. "
            f"{_where_rows_go(stage)}"
        )
    if not isinstance(frame, DataFrame) and returned.__name__ == DataFrame.__name__:
        return f"Stage {stage.name} returns a DataFrame of {returned.__module__}. Return one of pyspark.sql."
    if not isinstance(frame, DataFrame):
        return f"Stage {stage.name} returns {returned.__name__}. Return a DataFrame."
    if not is_of(frame, spark):
        return (
            f"Stage {stage.name} returns a DataFrame of another session, which has other settings. Build it from the "
            "DataFrames that the function gets, without newSession()."
        )
    if not frame.isStreaming:
        return (
            f"Stage {stage.name} returns a DataFrame that is not streaming. "
            "Return one that is built from the DataFrames that the function gets."
        )
    if not frame.columns:
        return f"Stage {stage.name} has no columns, and a log cannot store such rows. Select at least one column."
    return ""


def _where_rows_go(stage: Stage) -> str:
    """Where people look for what they would have written as a sink."""
    return (
        f"Its rows go to stream {stage.output!r}. [streams.{stage.output}.table] or [streams.{stage.output}.files] in "
        "the job file delivers them; to another sink, a program of yours writes them with a Reader."
    )

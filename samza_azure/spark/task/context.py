"""What all tasks of a container share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from samza_azure.config import Config
from samza_azure.spark.pipeline.pipeline import Pipeline
from samza_azure.spark.source.hint_board import HintBoard
from samza_azure.spark.task.starts import Starts
from samza_azure.storage.interface import Blobs, Positions


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """What all tasks of a container share."""

    spark: SparkSession
    config: Config
    pipeline: Pipeline
    blobs: Blobs
    positions: Positions
    hints: HintBoard
    directory: Path
    may_append: Callable[[], bool]
    clean: Callable[[str], str]  # takes secrets out of a message
    changed: Callable[[], None]  # a task has something to report at once
    starts: Starts

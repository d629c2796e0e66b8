"""What the tasks with a query share beside what all tasks do."""

from dataclasses import dataclass

from pyspark.sql import SparkSession

from samza_azure.spark.query.shuffled import ShuffledRows
from samza_azure.spark.query.starts import Starts
from samza_azure.spark.query.state_server import StateServer
from samza_azure.tasks.context import ContainerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryContext(ContainerContext):
    """What all tasks of a container share, one with a session of Spark's."""

    spark: SparkSession
    starts: Starts
    state_server: StateServer | None = None  # on a cluster
    shuffled: ShuffledRows | None = None  # on a cluster

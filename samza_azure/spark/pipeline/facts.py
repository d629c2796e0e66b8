"""What is known of a stage's plan. The checks judge it.

A fact is found out when it is first asked for, and then kept: much of it is many calls to Java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.analysed import Term, Watermark
from samza_azure.spark.jvm.catalyst import Node, analysed, items, read_optimised, read_plan, tree, without_ids
from samza_azure.spark.pipeline.advice import Advice
from samza_azure.spark.pipeline.bounds import Bound, Bounds, Input
from samza_azure.spark.pipeline.calling import called
from samza_azure.spark.pipeline.event_time import Copy, Output, copies_of, frontier_of, watermarks_of
from samza_azure.spark.pipeline.fingerprint import Origins
from samza_azure.spark.pipeline.nulls import Nulls
from samza_azure.spark.pipeline.operators import state_of
from samza_azure.spark.pipeline.placement import Placement, place_stage
from samza_azure.spark.pipeline.refusals import Refusal
from samza_azure.spark.pipeline.schema import nullable
from samza_azure.spark.pipeline.spark_errors import said_at_start


@dataclass(eq=False)
class Facts:
    """One stage, as its function has been called."""

    spark: SparkSession
    stage: Stage
    inputs: Sequence[Input]
    output: Output
    tasks: int | None  # the number that the user asks for
    directory: Path  # of the stand-ins for its inputs
    frame: DataFrame
    done: Sequence[str]  # why it is refused for what the call did besides

    def __post_init__(self) -> None:
        self.plan: Any = analysed(self.frame)
        self.bounds = Bounds(self.spark, self.inputs, updates=self.updates)
        self.nulls = Nulls(self.spark, self.inputs)
        self.advice = Advice(self.inputs, self.bounds, self.nulls)

    def refused(self, node: Node, said: str, *, is_of_part: bool = False) -> Refusal:
        """A refusal of one of its operators."""
        return Refusal(f"Stage {self.stage.name}: {said}", node.plan, is_of_part)

    @property
    def updates(self) -> bool:
        """Whether an aggregation emits a row for each change of a group."""
        return self.stage.output_mode == "update"

    @property
    def puts_out_changes(self) -> bool:
        """Whether the stage's output may have several rows for one row of a batch."""
        return self.updates and any(node.kind == "Aggregate" and node.is_streaming for node in self.root.walk())

    @cached_property
    def root(self) -> Node:
        """The plan, as far as it is read."""
        return read_plan(self.spark, self.frame, self.directory)

    @cached_property
    def operators(self) -> list[Node]:
        """Those that have state."""
        return [node for node in self.root.walk() if state_of(node)]

    @cached_property
    def schema(self) -> StructType:
        """The columns of its output."""
        return nullable(self.frame.schema)

    @cached_property
    def is_random(self) -> bool:
        """Whether an expression is random. Aggregations do not count: Spark computes below one what is random in it,
        and calls `collect_set` so, too, whose order is that of the rows, as another warning says."""
        if self.root.plan.deterministic():
            return False
        nodes = (node for node in self.root.walk() if node.kind != "Aggregate")
        return any(not each.deterministic() for node in nodes for each in items(node.plan.expressions()))

    @cached_property
    def optimised(self) -> Node:
        """The plan that Spark runs. Refuse the stage if there is none."""
        try:
            return read_optimised(self.spark, self.plan, self.directory)
        except Exception as error:
            said = said_at_start(error, self.root, self.advice, self.stage)
            raise PipelineRefused(f"Stage {self.stage.name} cannot run as a stream: {said}") from error

    @cached_property
    def copies(self) -> list[Copy]:
        """The columns of the optimised plan that are copies of an event time."""
        return copies_of(self.root, self.optimised)

    @cached_property
    def watermarks(self) -> tuple[Watermark, ...]:
        """The terms of the stage's watermark."""
        return watermarks_of(self.root, self.optimised, self.inputs)

    @property
    def is_on_one_task(self) -> bool:
        """Whether it has one task, which needs no partitioning."""
        return self.tasks == 1 or all(each.partitions == 1 for each in self.inputs)

    @cached_property
    def placement(self) -> Placement:
        """Which task processes which row."""
        if self.is_on_one_task:
            return Placement()
        return place_stage(self.spark, self.stage, self.root, self.inputs, self.nulls)

    @cached_property
    def origins(self) -> Origins:
        """What columns are computed from."""
        return Origins(self.spark)

    @cached_property
    def time_bound(self) -> Bound:
        """How old the output's event time can be. It must be one of the columns."""
        return self.bounds.of(self.root, self.root.ids[self.root.names.index(str(self.output.event_time))])

    @cached_property
    def frontier(self) -> tuple[Term, ...]:
        """The frontier of the stage's records is the minimum of these."""
        if self.output.event_time is None:
            return ()
        return frontier_of(self.time_bound, self.inputs, self.watermarks, self.operators)

    @cached_property
    def again(self) -> "Facts":
        """The same of a second call: each processor makes one, and each task."""
        directory = self.directory / "again"
        frame, done = called(self.spark, self.stage, self.inputs, directory)
        return Facts(self.spark, self.stage, self.inputs, self.output, self.tasks, directory, frame, done)

    @cached_property
    def text(self) -> str:
        """Spark's text of the plan."""
        return tree(self.plan)

    @cached_property
    def drifts(self) -> bool:
        """Whether the second call has made another plan."""
        again = self.again.text.replace(str(self.again.directory), str(self.directory))
        return without_ids(self.text) != without_ids(again)

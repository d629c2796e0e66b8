"""The pipeline: put in order, analysed, cut into tasks. All that can be wrong with it is said here.

A stream that no stage writes is a source stream; its partitions and its schema stand in the job file. A stream
between two stages has the schema of the stage that writes it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Application, Stage
from samza_azure.config import Config, Stream
from samza_azure.errors import PipelineRefused
from samza_azure.protocol.messages import Plan, StagePlan
from samza_azure.spark.analysis import Analysis, Input, Output, analyse
from samza_azure.spark.destination import check_keys
from samza_azure.spark.schema import check_columns, parse_schema


@dataclass(frozen=True, slots=True)
class Producer:
    """One log that a task reads, and the destinations in it that are for this task."""

    prefix: str
    destinations: frozenset[int]
    source: str | None = None  # "flights/0" of a source stream; None: a task of this run writes it


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One input of one task."""

    stream: str
    schema: StructType
    producers: tuple[Producer, ...]
    idle_timeout_s: float


@dataclass(frozen=True, slots=True)
class AnalysedStage:
    """A stage with all that its tasks need to run."""

    stage: Stage
    plan: StagePlan
    analysis: Analysis
    partitions: int | None  # of the stream it writes; None: each task writes a partition of its own
    event_time: str | None  # of the stream it writes
    frontier_lag_us: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the container runs."""

    plan: Plan
    stages: Mapping[str, AnalysedStage]
    streams: Mapping[str, "AnalysedStream"]

    def stage_of(self, task: str) -> AnalysedStage:
        """The stage of a task."""
        return self.stages[self.plan.stage_of(task).name]

    def inputs_of(self, task: str, run_id: str) -> tuple[TaskInput, ...]:
        """What a task reads. The order is fixed by the plan: offsets refer to producers by their place in it."""
        stage = self.stage_of(task).plan
        number = int(task.rpartition("-")[2])
        return tuple(self._input(stream, number, stage.tasks, run_id) for stream in stage.inputs)

    def readers_of(self, task: str, run_id: str) -> list[str]:
        """The logs of the tasks that read what this one writes."""
        prefix = f"runs/{run_id}/{task}"
        tasks = [f"{stage.name}-{number}" for stage in self.plan.stages for number in range(stage.tasks)]
        return [
            f"runs/{run_id}/{reader}"
            for reader in tasks
            if any(producer.prefix == prefix for each in self.inputs_of(reader, run_id) for producer in each.producers)
        ]

    def _input(self, name: str, number: int, tasks: int, run_id: str) -> TaskInput:
        stream = self.streams[name]
        mine = range(number, stream.partitions, tasks)
        if stream.writer is None:
            producers = [Producer(f"streams/{name}/{part}", frozenset({0}), f"{name}/{part}") for part in mine]
        else:
            writer = self.stages[stream.writer]
            # Without partition_by, partition i is written by task i alone.
            writers = mine if writer.partitions is None else range(writer.plan.tasks)
            producers = [Producer(f"runs/{run_id}/{stream.writer}-{task}", frozenset(mine)) for task in writers]
        return TaskInput(name, stream.schema, tuple(producers), stream.idle_timeout_s)


@dataclass(frozen=True, slots=True)
class AnalysedStream:
    """A stream that a stage reads."""

    partitions: int
    schema: StructType
    event_time: str | None
    idle_timeout_s: float
    writer: str | None  # the stage; None: a source stream


def analyse_pipeline(spark: SparkSession, application: Application, config: Config, directory: Path) -> Pipeline:
    """Check each stage against the streams it reads, in the order in which rows pass through them."""
    stages = _ordered(application.stages)
    writers = {stage.output: stage for stage in stages}
    streams: dict[str, AnalysedStream] = {}
    analysed: dict[str, AnalysedStage] = {}
    for stage in stages:
        for name in stage.inputs:
            if name not in writers and name not in streams:
                streams[name] = _source_stream(spark, stage, name, config)
        analysed[stage.name] = done = _analysed_stage(spark, stage, streams, config, directory)
        if any(stage.output in other.inputs for other in stages):
            streams[stage.output] = _intermediate_stream(done, config)
    sources = {name: stream.partitions for name, stream in sorted(streams.items()) if stream.writer is None}
    return Pipeline(_plan(list(analysed.values()), sources, streams), analysed, streams)


def _ordered(stages: Sequence[Stage]) -> list[Stage]:
    """Each stage behind those that write what it reads."""
    if not stages:
        raise PipelineRefused("The application has no stage. Decorate a function with @app.stage(input, output=…).")
    waiting = list(stages)
    ordered: list[Stage] = []
    while waiting:
        unwritten = {stage.output for stage in waiting}
        ready = next((stage for stage in waiting if not unwritten.intersection(stage.inputs)), None)
        if ready is None:
            names = ", ".join(stage.name for stage in waiting)
            raise PipelineRefused(f"The stages {names} wait for each other's output. Break the circle.")
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def _source_stream(spark: SparkSession, stage: Stage, name: str, config: Config) -> AnalysedStream:
    declared = config.streams.get(name)
    if declared is None or declared.schema is None:
        raise PipelineRefused(
            f"Stage {stage.name} reads stream {name!r}, which no stage writes, and the job file does not say what is "
            f'in it. Add: [streams.{name}] with schema = "…" and partitions = ….'
        )
    schema = parse_schema(spark, declared.schema, name)
    check_columns(schema, f"streams.{name}.schema")
    if declared.event_time is not None and declared.event_time not in schema.names:
        raise PipelineRefused(
            f"streams.{name}.event_time is {declared.event_time!r}, but its schema has the columns "
            f"{', '.join(schema.names)}. Name one of them."
        )
    return AnalysedStream(declared.partitions, schema, declared.event_time, declared.idle_timeout_s, writer=None)


def _intermediate_stream(written_by: AnalysedStage, config: Config) -> AnalysedStream:
    declared = config.streams.get(written_by.stage.output) or Stream()
    partitions = written_by.plan.tasks if written_by.partitions is None else written_by.partitions
    return AnalysedStream(
        partitions, written_by.analysis.schema, declared.event_time, declared.idle_timeout_s, written_by.stage.name
    )


def _analysed_stage(
    spark: SparkSession, stage: Stage, streams: Mapping[str, AnalysedStream], config: Config, directory: Path
) -> AnalysedStage:
    tasks = _task_count(stage, streams, config)
    declared = config.streams.get(stage.output) or Stream()
    inputs = [Input(name, streams[name].schema, streams[name].event_time) for name in dict.fromkeys(stage.inputs)]
    positions = [next(each for each in inputs if each.stream == name) for name in stage.inputs]
    analysis = analyse(
        spark, stage, positions, Output(stage.output, declared.event_time, declared.frontier_lag_s), directory
    )
    check_keys(stage, analysis.schema)
    if not stage.partition_by and declared.partitions not in (1, tasks):
        raise PipelineRefused(
            f"streams.{stage.output}.partitions is {declared.partitions}, but stage {stage.name} has no partition_by, "
            f"so each of its {tasks} tasks writes one partition. Add partition_by=…, or take the line out."
        )
    plan = StagePlan(
        name=stage.name,
        inputs=stage.inputs,
        output=stage.output,
        tasks=tasks,
        partition_by=stage.partition_by,
        schema=analysis.schema.toDDL(),
        stateful=analysis.stateful,
    )
    return AnalysedStage(
        stage=stage,
        plan=plan,
        analysis=analysis,
        partitions=declared.partitions if stage.partition_by else None,
        event_time=declared.event_time,
        frontier_lag_us=round(declared.frontier_lag_s * 1_000_000),
    )


def _task_count(stage: Stage, streams: Mapping[str, AnalysedStream], config: Config) -> int:
    """One task per partition, or `task.count` tasks that share the partitions."""
    partitions = {name: streams[name].partitions for name in stage.inputs}
    if len(set(partitions.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in partitions.items())
        raise PipelineRefused(
            f"The inputs of stage {stage.name} have different numbers of partitions ({told}), so equal keys would not "
            "meet. Give them the same number in the job file."
        )
    count = next(iter(partitions.values()))
    return count if config.task.count is None else min(count, config.task.count)


def _plan(stages: Sequence[AnalysedStage], sources: Mapping[str, int], streams: Mapping[str, AnalysedStream]) -> Plan:
    warnings = [warning for stage in stages for warning in stage.analysis.warnings]
    described = {
        "stages": [
            {
                "name": stage.plan.name,
                "inputs": stage.plan.inputs,
                "output": stage.plan.output,
                "tasks": stage.plan.tasks,
                "partition_by": stage.plan.partition_by,
                "schema": stage.plan.schema,
                "stateful": stage.plan.stateful,
                "output_mode": stage.stage.output_mode,
            }
            for stage in sorted(stages, key=lambda stage: stage.plan.name)
        ],
        "streams": {
            name: {"partitions": stream.partitions, "schema": stream.schema.toDDL()} for name, stream in streams.items()
        },
    }
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return Plan(
        stages=tuple(stage.plan for stage in stages),
        sources=dict(sources),
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest(),
        warnings=tuple(warnings),
    )

"""The pipeline: order its stages, analyse them, divide them into tasks.

A stream that no stage writes is a source stream; its partitions and its schema are in the job file. A stream
between two stages has the schema of the stage that writes it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Application, Stage
from samza_azure.config import Config, Files, Stream, TableSettings
from samza_azure.config.values import in_words
from samza_azure.errors import PipelineRefused
from samza_azure.logs.names import source_log, source_partition, stage_and_number, task_log, task_name
from samza_azure.messages import Plan, StagePlan, partitions_of
from samza_azure.spark.pipeline.analysis import Analysis, analyse
from samza_azure.spark.pipeline.bounds import Input, Term
from samza_azure.spark.pipeline.catalyst import column, in_sql, rebound
from samza_azure.spark.pipeline.describe import MOST, columns
from samza_azure.spark.pipeline.destination import check_key, with_destination
from samza_azure.spark.pipeline.event_time import Output, check_event_time
from samza_azure.spark.pipeline.handlers import analyse_handler
from samza_azure.spark.pipeline.names import at_once, check_names, declare_timestamp, ordered, undeclared
from samza_azure.spark.pipeline.placement import Route
from samza_azure.spark.pipeline.schema import check_carried, check_columns, parse_schema
from samza_azure.spark.pipeline.sinks import check_held, check_producers, check_time, sink_plan, sinks_of
from samza_azure.spark.pipeline.state import check_chosen, kind_of_state
from samza_azure.spark.user_code import noted, place_of_function


@dataclass(frozen=True, slots=True)
class Producer:
    """One log that a task reads, and the destinations in it that the task consumes."""

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
    key: tuple[str, ...] = ()  # the columns by which the stream is partitioned
    partitions: int = 0  # of the stream


@dataclass(frozen=True, slots=True)
class AnalysedStage:
    """A stage with everything that its tasks need to run."""

    stage: Stage
    plan: StagePlan
    analysis: Analysis
    partitions: int | None  # of the stream it writes; None: each task writes its own partition
    event_time: str | None  # of the stream it writes
    frontier_lag_us: int
    route: Route | None = None  # for a router: it passes its input on unchanged, partitioned by these expressions

    def with_destination(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The stage's output rows, each with its partition of the output stream."""
        if self.partitions is None or self.partitions == 1:
            return frame
        if self.route is None:
            return with_destination(frame, [frame[in_sql(key)] for key in self.stage.partition_by], self.partitions)
        # The next stage may filter rows out for which an expression fails, so a failure must not be an error here.
        by = [column(spark, rebound(spark, each, self.route.leaf, frame)) for each in self.route.expressions]
        return with_destination(frame, by, self.partitions, like_keys=self.route.like_keys)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the container runs."""

    plan: Plan
    stages: Mapping[str, AnalysedStage]
    streams: Mapping[str, "AnalysedStream"]
    sinks: Mapping[str, TableSettings | Files] = field(default_factory=dict)  # by the stage that puts rows there

    def sink_of(self, task: str) -> TableSettings | Files | None:
        """The table or folder that a task writes rows to. None if the task runs a query or a handler."""
        return self.sinks.get(self.plan.stage_of(task).name)

    def stage_of(self, task: str) -> AnalysedStage:
        """The stage of a task."""
        return self.stages[self.plan.stage_of(task).name]

    def inputs_of(self, task: str, run_id: str) -> tuple[TaskInput, ...]:
        """What a task reads. The plan fixes the order: offsets refer to producers by their index in it."""
        stage = self.plan.stage_of(task)
        _, number = stage_and_number(task)
        return tuple(self._input(stream, number, stage.tasks, run_id) for stream in stage.inputs)

    def readers_of(self, prefix: str, run_id: str) -> list[str]:
        """The logs of the tasks that read this log, which belongs to a task or a source partition."""
        return [
            task_log(run_id, reader)
            for reader in self.plan.tasks()
            if any(producer.prefix == prefix for each in self.inputs_of(reader, run_id) for producer in each.producers)
        ]

    def _input(self, name: str, number: int, tasks: int, run_id: str) -> TaskInput:
        stream = self.streams[name]
        mine = partitions_of(number, tasks, stream.partitions)
        if stream.writer is None:
            sources = [source_partition(name, part) for part in mine]
            producers = [Producer(source_log(source), frozenset({0}), source) for source in sources]
        else:
            writer = self.stages[stream.writer]
            # Without partition_by, partition i is written by task i alone.
            writers = mine if writer.partitions is None else range(writer.plan.tasks)
            logs = [task_log(run_id, task_name(stream.writer, number)) for number in writers]
            producers = [Producer(log, frozenset(mine)) for log in logs]
        return TaskInput(name, stream.schema, tuple(producers), stream.idle_timeout_s, stream.key, stream.partitions)


@dataclass(frozen=True, slots=True)
class AnalysedStream:
    """A stream that a stage reads."""

    partitions: int
    schema: StructType
    event_time: str | None
    idle_timeout_s: float
    writer: str | None  # the stage; None: a source stream
    key: tuple[str, ...]  # the columns by which its rows are partitioned; empty if unknown


def analyse_pipeline(spark: SparkSession, application: Application, config: Config, directory: Path) -> Pipeline:
    """Check each stage against the streams it reads, in the order in which rows pass through them."""
    warnings = check_names(application, config)
    stages = ordered(application.stages)
    writers = {stage.output: stage for stage in stages}
    streams: dict[str, AnalysedStream] = {}
    analysed: dict[str, AnalysedStage] = {}
    sinks: list[tuple[StagePlan, TableSettings | Files]] = []
    sink_names = [sink for name in config.streams for sink in sinks_of(name, config.streams)]
    for stage in stages:
        for name in stage.inputs:
            if name not in writers and name not in streams:
                streams[name] = _source_stream(spark, stage, name, config)
            elif name in writers and analysed[writers[name].name].analysis.puts_out_changes:
                raise _reads_changes(stage, writers[name])
        try:
            analysis = _analysis(spark, stage, streams, config, directory)
        except PipelineRefused as error:
            noted(error, place_of_function(stage.function), stage.name)
            raise
        inputs = list(stage.inputs)
        routers: dict[int, AnalysedStage] = {}
        for number, route in sorted(analysis.placement.routes.items()):
            taken = {*writers, *streams, *(router.plan.name for router in routers.values()), *sink_names}
            routers[number] = _router(stage, number, route, streams, config, taken)
        _check_meeting(stage, list(routers.values()))
        for number, router in routers.items():
            analysed[router.plan.name] = router
            streams[router.plan.output] = _intermediate_stream(router, config, ())
            inputs[number] = router.plan.output
        analysed[stage.name] = done = _analysed_stage(stage, inputs, analysis, streams, config)
        goes_to = sinks_of(stage.output, config.streams)
        if goes_to or any(stage.output in other.inputs for other in stages):
            streams[stage.output] = _intermediate_stream(done, config, _key_of_output(done, streams))
        for sink, to in goes_to.items():
            check_held(stage.output, to, analysis.schema)
            if isinstance(to, TableSettings):
                check_time(stage.output, to, analysis.schema)
                if done.partitions is not None:  # each sink reads all tasks of the stage then
                    check_producers(stage.output, done.plan)
            sinks.append((sink_plan(sink, stage.output, to, done.plan, config), to))
    sources = {name: stream.partitions for name, stream in sorted(streams.items()) if stream.writer is None}
    plan = _plan(list(analysed.values()), sinks, sources, streams, config, warnings)
    return Pipeline(plan, analysed, streams, {sink.name: to for sink, to in sinks})


def _source_stream(spark: SparkSession, stage: Stage, name: str, config: Config) -> AnalysedStream:
    declared = config.streams.get(name)
    if declared is None or declared.schema is None:
        raise PipelineRefused(undeclared(stage, name, config.streams))
    schema = parse_schema(spark, declared.schema, name)
    check_columns(schema, f"streams.{name}.schema")
    check_carried(schema, f"streams.{name}.schema", "{}")
    if declared.event_time is not None and declared.event_time not in schema.names:
        raise PipelineRefused(
            f"streams.{name}.event_time is {declared.event_time!r}, but its schema has the columns "
            f"{', '.join(schema.names)}. Name one of them."
        )
    if declared.event_time is not None:
        check_event_time(schema, declared.event_time, name, declare_timestamp(name, declared.event_time))
    for key in declared.key:
        check_key(
            schema, key, f"streams.{name}.key has {key!r}", f"its schema has the columns {', '.join(schema.names)}"
        )
    return AnalysedStream(
        declared.partitions, schema, declared.event_time, declared.idle_timeout_s, writer=None, key=declared.key
    )


def _intermediate_stream(written_by: AnalysedStage, config: Config, key: tuple[str, ...]) -> AnalysedStream:
    declared = config.streams.get(written_by.plan.output) or Stream()
    return AnalysedStream(
        written_by.plan.partitions,
        written_by.analysis.schema,
        written_by.event_time,
        declared.idle_timeout_s,
        written_by.plan.name,
        key,
    )


def _key_of_output(stage: AnalysedStage, streams: Mapping[str, AnalysedStream]) -> tuple[str, ...]:
    """The key of a stage's output: its `partition_by`, or that of its inputs if each task writes its own partition."""
    if stage.partitions is not None:
        return stage.stage.partition_by
    is_one_to_one = all(streams[name].partitions == stage.plan.tasks for name in stage.plan.inputs)
    return stage.analysis.placement.output_key if is_one_to_one else ()


def _analysis(
    spark: SparkSession, stage: Stage, streams: Mapping[str, AnalysedStream], config: Config, directory: Path
) -> Analysis:
    declared = config.streams.get(stage.output) or Stream()
    read = [streams[name] for name in stage.inputs]
    inputs = [
        Input(name, stream.schema, stream.event_time, stream.partitions, stream.key)
        for name, stream in zip(stage.inputs, read, strict=True)
    ]
    if stage.is_handler:
        return analyse_handler(spark, stage, inputs, declared)
    output = Output(stage.output, declared.event_time, declared.frontier_lag_s)
    analysis = analyse(spark, stage, inputs, output, stage.tasks or config.task.count, directory)
    for key in stage.partition_by:
        columns = ", ".join(analysis.schema.names)
        check_key(analysis.schema, key, f"Stage {stage.name} has partition_by {key!r}", f"writes the columns {columns}")
    return analysis


def _router(
    stage: Stage,
    number: int,
    route: Route,
    streams: Mapping[str, AnalysedStream],
    config: Config,
    taken: set[str],
) -> AnalysedStage:
    """An added stage that passes an input on unchanged, partitioned as the next stage needs it."""
    read = stage.inputs[number]
    name = f"{stage.name}-{read}" + (f"-{number}" if stage.inputs.count(read) > 1 else "")
    if name in taken:
        raise PipelineRefused(
            f"The rows of stream {read!r} have to be routed for stage {stage.name}, through a stream called {name!r}. "
            "The pipeline already has a stream of this name. Rename that one."
        )
    stream, declared = streams[read], config.streams.get(name)
    partitions = route.partitions or max(streams[each].partitions for each in stage.inputs)
    if declared is not None and route.partitions in (None, declared.partitions):
        partitions = declared.partitions
    elif declared is not None:
        raise PipelineRefused(
            f"streams.{name}.partitions is {declared.partitions}, but its rows meet those of a stream with "
            f"{route.partitions} partitions in stage {stage.name}. Write {route.partitions}, or remove the line."
        )
    router = Stage(name, (read,), name, (), "append", _unchanged)
    analysis = Analysis(
        schema=stream.schema,
        fingerprint=({"routed": route.texts, "like_keys": route.like_keys},),
        facts={"routed by": ", ".join(route.texts)},
        frontier=() if stream.event_time is None else (Term(0),),
    )
    plan = StagePlan(
        name=name,
        inputs=(read,),
        output=name,
        tasks=_task_count(router, (read,), streams, config),
        schema=stream.schema.toDDL(),
        routed_for=stage.name,
        routed_by=route.shown,
        partitions=partitions,
    )
    return AnalysedStage(
        stage=router,
        plan=plan,
        analysis=analysis,
        partitions=partitions,
        event_time=stream.event_time,
        frontier_lag_us=0,
        route=route,
    )


def _reads_changes(stage: Stage, writer: Stage) -> PipelineRefused:
    return PipelineRefused(
        f"Stage {stage.name} reads stream {writer.output!r}, to which stage {writer.name} writes a row for each change "
        f"of a group (output mode update), and it would read each change as a separate row. Let {writer.name} group by "
        "a window as well, after withWatermark, in output mode append: then each group is written once."
    )


def _check_meeting(stage: Stage, routers: Sequence[AnalysedStage]) -> None:
    """Refuse routers whose rows meet in one operator but that have different numbers of partitions."""
    partitions: dict[int, AnalysedStage] = {}
    for router in routers:
        assert router.route is not None
        other = partitions.setdefault(router.route.group, router)
        if other.partitions != router.partitions:
            raise PipelineRefused(
                f"streams.{other.plan.output}.partitions is {other.partitions}, and streams.{router.plan.output}."
                f"partitions is {router.partitions}. Their rows meet in stage {stage.name}: write the same for both."
            )


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def _analysed_stage(
    stage: Stage,
    inputs: Sequence[str],
    analysis: Analysis,
    streams: Mapping[str, AnalysedStream],
    config: Config,
) -> AnalysedStage:
    declared = config.streams.get(stage.output) or Stream()
    tasks = _task_count(stage, inputs, streams, config)
    check_chosen(
        stage.name, config.task.state, needs_rocksdb=analysis.needs_rocksdb, needs_memory=analysis.needs_memory
    )
    if not stage.partition_by and declared.partitions not in (1, tasks):
        raise PipelineRefused(
            f"streams.{stage.output}.partitions is {declared.partitions}, but stage {stage.name} has no partition_by, "
            f"so each of its {tasks} tasks writes one partition. Add partition_by with a column of the stage "
            f"({', '.join(analysis.schema.names)}), or remove the line."
        )
    partitions = declared.partitions if stage.partition_by else None
    plan = StagePlan(
        name=stage.name,
        inputs=tuple(inputs),
        output=stage.output,
        tasks=tasks,
        partition_by=stage.partition_by,
        schema=analysis.schema.toDDL(),
        stateful=analysis.stateful,
        state=analysis.state,
        partitions=tasks if partitions is None else partitions,
        at_once=at_once(stage, config) if stage.is_handler else 0,
    )
    return AnalysedStage(
        stage=stage,
        plan=plan,
        analysis=analysis,
        partitions=partitions,
        event_time=declared.event_time,
        frontier_lag_us=round((declared.frontier_lag_s or 0.0) * 1_000_000),
    )


def _task_count(stage: Stage, inputs: Sequence[str], streams: Mapping[str, AnalysedStream], config: Config) -> int:
    """One task per partition, or fewer if the user says so. Inputs may differ in partitions if no rows must meet."""
    least = min(streams[name].partitions for name in inputs)
    wanted = stage.tasks or config.task.count
    return least if wanted is None else min(least, wanted)


def _plan(
    stages: Sequence[AnalysedStage],
    sinks: Sequence[tuple[StagePlan, TableSettings | Files]],
    sources: Mapping[str, int],
    streams: Mapping[str, AnalysedStream],
    config: Config,
    warnings: Sequence[str],
) -> Plan:
    warnings = [*warnings, *(warning for stage in stages for warning in stage.analysis.warnings)]
    described: dict[str, object] = {
        "stages": [
            {
                "name": stage.plan.name,
                "inputs": stage.plan.inputs,
                "output": stage.plan.output,
                "tasks": stage.plan.tasks,
                "partition_by": stage.plan.partition_by,
                "partitions": stage.plan.partitions,
                "schema": stage.plan.schema,
                "state": stage.analysis.fingerprint,
                "sources": stage.analysis.sources,
                "kept": kind_of_state(config.task.state, needs_rocksdb=stage.analysis.needs_rocksdb)
                if stage.plan.stateful
                else None,
                "event_time": stage.event_time,
                "frontier_lag_us": stage.frontier_lag_us,
                "output_mode": stage.stage.output_mode,
            }
            for stage in sorted(stages, key=lambda stage: stage.plan.name)
        ],
        "streams": {
            name: {
                "partitions": stream.partitions,
                "schema": stream.schema.toDDL(),
                "event_time": stream.event_time,
                "key": stream.key,
            }
            for name, stream in streams.items()
        },
    }
    if tables := [(sink, to) for sink, to in sinks if isinstance(to, TableSettings)]:
        described["tables"] = [
            {"stream": sink.inputs[0], "tasks": sink.tasks, "table": table.name, "time": table.time}
            for sink, table in tables
        ]
    if folders := [sink for sink, _ in sinks if sink.files]:
        described["files"] = [{"stream": sink.inputs[0], "tasks": sink.tasks, "folder": sink.files} for sink in folders]
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return Plan(
        stages=(*(stage.plan for stage in stages), *(sink for sink, _ in sinks)),
        sources=dict(sources),
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest(),
        warnings=tuple(warnings),
        keys={name: stream.key for name, stream in sorted(streams.items()) if stream.key},
        described=_described(stages, sinks, streams),
    )


def _described(
    stages: Sequence[AnalysedStage],
    sinks: Sequence[tuple[StagePlan, TableSettings | Files]],
    streams: Mapping[str, AnalysedStream],
) -> dict[str, dict[str, str]]:
    """All facts of the pipeline. Empty if they are too large to be stored with the run."""
    found: dict[str, dict[str, str]] = {}
    for stage in stages:
        lag = stage.frontier_lag_us / 1_000_000
        found[f"stage {stage.plan.name}"] = _said(
            {
                "inputs": ", ".join(stage.plan.inputs),
                "output": stage.plan.output,
                "tasks": str(stage.plan.tasks),
                "partition_by": ", ".join(stage.plan.partition_by),
                "output_mode": stage.stage.output_mode,
                "event_time": stage.event_time or "",
                "frontier_lag": in_words(lag) if lag else "",
                **stage.analysis.facts,
            }
        )
        if stage.plan.output not in streams:
            found[f"stream {stage.plan.output}"] = columns(stage.analysis.schema)
    for sink, to in sinks:
        goes = {"table": to.name, "time": to.time} if isinstance(to, TableSettings) else {"files": to.folder}
        found[f"stage {sink.name}"] = {"inputs": sink.inputs[0], "tasks": str(sink.tasks), **goes}
    for name, stream in streams.items():
        found[f"stream {name}"] = _said(
            {
                "partitions": str(stream.partitions),
                "event_time": stream.event_time or "",
                "key": ", ".join(stream.key),
                **columns(stream.schema),
            }
        )
    return found if len(json.dumps(found)) <= MOST else {}


def _said(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}

"""Streams that come from outside or go there, through a connector: `streams.<id>.system` names it.

For each stream from outside a stage is added. Its tasks read the stream outside and write `<id>-source`, which the
stages that name the stream read in its place. What goes outside has a stage as a table has (`sinks`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from samza_azure.application import Stage
from samza_azure.config import Config, Stream
from samza_azure.messages import Plan, StagePlan, TaskKind
from samza_azure.names import STREAM, dead_name, source_name
from samza_azure.pipeline.analysed import AnalysedStage, AnalysedStream, Analysis, Pipeline, Term
from samza_azure.stream_io import ddl
from samza_azure.stream_io.columns import Columns
from samza_azure.systems.api import SystemStream
from samza_azure.systems.dead_letters import SCHEMA_DDL, Keep
from samza_azure.systems.registry import factory_of

if TYPE_CHECKING:
    import pyarrow as pa


def source_stage(name: str, stream: AnalysedStream, config: Config) -> AnalysedStage:
    """The stage that reads a stream from outside. Raise ConfigError if its system or its options are wrong."""
    declared, added = config.streams[name], STREAM.checked(source_name(name))
    factory_of(declared.system, name).get_admin(outside(name, declared, config))
    tasks = min(stream.partitions, config.task.count or stream.partitions)
    plan = StagePlan(
        name=added,
        inputs=(name,),
        output=added,
        tasks=tasks,
        schema=stream.columns.ddl,
        partitions=stream.partitions,
        kind=TaskKind.SOURCE,
        target=declared.system,
    )
    analysis = Analysis(
        columns=stream.columns,
        fingerprint=({"system": declared.system},),
        facts={"reads": f"the system {declared.system}"},
        frontier=() if stream.event_time is None else (Term(0),),
        not_null=stream.not_null,
    )
    return AnalysedStage(
        stage=Stage(added, (name,), added, (), "append", _no_function, kind=TaskKind.SOURCE),
        plan=plan,
        analysis=analysis,
        partitions=None if tasks == stream.partitions else stream.partitions,
        event_time=stream.event_time,
        frontier_lag_us=round((declared.frontier_lag_s or 0.0) * 1_000_000),
    )


def dead_letter_stage(name: str, source: StagePlan) -> AnalysedStage:
    """The stage that keeps what is no row of a stream from outside."""
    columns, added = Columns.declared(SCHEMA_DDL), STREAM.checked(dead_name(name))
    plan = StagePlan(
        name=added,
        inputs=(source.output,),
        output=added,
        tasks=1,
        schema=columns.ddl,
        kind=TaskKind.HANDLER,
        at_once=1,
    )
    analysis = Analysis(
        columns=columns,
        fingerprint=({"dead letters": True},),
        facts={"keeps": f"what is no row of {name}"},
        reads_dead=True,
    )
    return AnalysedStage(
        stage=Stage(added, plan.inputs, added, (), "append", Keep, kind=TaskKind.HANDLER),
        plan=plan,
        analysis=analysis,
        partitions=None,
        event_time=None,
        frontier_lag_us=0,
    )


def outside(name: str, declared: Stream, config: Config) -> SystemStream:
    """A stream that is read, as a connector sees it."""
    return _stream(name, declared, config, ddl.arrow_schema(declared.schema or ""))


def _stream(name: str, declared: Stream, config: Config, schema: "pa.Schema") -> SystemStream:
    return SystemStream(
        name,
        declared.partitions,
        schema,
        declared.options,
        config.path.absolute().parent,
        event_time=declared.event_time,
        dead_letters=declared.dead_letters,
    )


def sent_as(
    name: str, declared: Stream, config: Config, written_by: AnalysedStage, key: tuple[str, ...]
) -> SystemStream:
    """The stream that a stage writes, as a connector sees it. `key` are the columns by which it is partitioned."""
    columns = written_by.analysis.columns.arrow
    return replace(_stream(name, declared, config, columns), is_output=True, key=key)


def sent_in(plan: Plan, name: str, config: Config) -> SystemStream | None:
    """The same, of a plan; None if nothing is sent there."""
    if not any(stage.kind.facts.sends_outside and name in stage.inputs for stage in plan.stages):
        return None
    writer = next(stage for stage in plan.stages if stage.output == name)
    stream = _stream(name, config.streams[name], config, ddl.arrow_schema(writer.schema))
    return replace(stream, is_output=True, key=writer.partition_by)


def sent(pipeline: Pipeline, task: str, config: Config) -> SystemStream:
    """The same for a task that sends rows outside."""
    (name,) = pipeline.plan.stage_of(task).inputs
    stream = pipeline.streams[name]
    assert stream.writer is not None
    return sent_as(name, config.streams[name], config, pipeline.stages[stream.writer], stream.key)


def _no_function() -> NoReturn:
    raise AssertionError("a source task calls no function of the job")

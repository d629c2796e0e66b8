"""A pipeline with queries: analyse its stages in order, and report all mistakes at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Application, Stage
from samza_azure.config import Config
from samza_azure.errors import PipelineRefused
from samza_azure.messages import StagePlan
from samza_azure.pipeline.analysed import AnalysedStage, AnalysedStream, Analysis, Pipeline, Term
from samza_azure.pipeline.assembly import Assembly
from samza_azure.pipeline.sinks import sinks_of
from samza_azure.spark.jvm.catalyst import column, in_sql, rebound
from samza_azure.spark.jvm.session import released_at_end
from samza_azure.spark.pipeline.analysis import QueryAnalysis, analyse
from samza_azure.spark.pipeline.bounds import Input
from samza_azure.spark.pipeline.calling import called
from samza_azure.spark.pipeline.destination import with_destination
from samza_azure.spark.pipeline.event_time import Output
from samza_azure.spark.pipeline.placement import Route
from samza_azure.spark.pipeline.refusals import StageRefused
from samza_azure.spark.pipeline.schema import columns_of, not_carried, not_null, parse_schema, wrong_columns
from samza_azure.stream_io.columns import Columns


@dataclass(frozen=True, slots=True)
class AnalysedQuery(AnalysedStage):
    """A stage with a query."""

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


def analyse_pipeline(spark: SparkSession, application: Application, config: Config, directory: Path) -> Pipeline:
    """Check each stage against the streams it reads, in the order in which rows pass through them."""
    writers = {stage.output: stage for stage in application.stages}
    assembly = Assembly(application, config, partial(_declare, spark, writers.keys()))
    streams, analysed, doubtful = assembly.streams, assembly.stages, assembly.doubtful
    sink_names = [sink for name in config.streams for sink in sinks_of(name, config.streams)]
    columns: dict[str, StructType] = {}  # of streams of which no more is known: a mistake is in front of them
    unknown: set[str] = set()  # streams whose columns are unknown, since the stage that writes them is refused

    def add(stage: Stage) -> None:
        assembly.add_sources(stage)
        for name in stage.inputs:
            if name in writers and (by := analysed.get(writers[name].name)) and by.analysis.puts_out_changes:
                assembly.note(_reads_changes(stage, writers[name]), stage)
        if not stage.kind.facts.has_query:
            done = assembly.analysed(stage, stage.inputs, assembly.handler(stage))
            assembly.add(done, assembly.key_of(done))
            return
        analysis = _analysis(spark, stage, assembly, config.task.count, directory)
        inputs = list(stage.inputs)
        routers: dict[int, AnalysedQuery] = {}
        for number, route in sorted(analysis.placement.routes.items()):
            taken = {*writers, *streams, *(router.plan.name for router in routers.values()), *sink_names}
            routers[number] = _router(stage, number, route, assembly, config, taken)
        _check_meeting(stage, list(routers.values()))
        for number, router in routers.items():
            assembly.add_between(router)
            inputs[number] = router.plan.output
        query = _query(assembly.analysed(stage, inputs, analysis))
        assembly.add(query, assembly.key_of(query, analysis.placement.output_key))

    for stage in assembly.in_order:
        all_known = (doubtful | columns.keys()).isdisjoint(stage.inputs)
        is_handler = not stage.kind.facts.has_query  # its columns are declared, so those in front of it tell nothing
        if unknown.intersection(stage.inputs) or stage.name in doubtful or (is_handler and not all_known):
            assembly.note_keys(stage)
            unknown.add(stage.output)
            continue
        try:
            if all_known:
                add(stage)
                continue
            known = {name: parse_schema(spark, each.columns.ddl, name) for name, each in streams.items()} | columns
            if (made := _called(spark, stage, known, config, directory)) is None:
                unknown.add(stage.output)
            else:
                columns[stage.output] = made
        except PipelineRefused as error:
            assembly.note(error, stage)
            written = None
            if isinstance(error, StageRefused):
                try:
                    written = _refused_stream(stage, error.schema, assembly)
                except (PySparkException, ValueError):  # no log can carry its columns
                    columns[stage.output] = error.schema
                    continue
            if written is None:
                unknown.add(stage.output)
            else:
                streams[stage.output] = written
    return assembly.finished()


def _query(stage: AnalysedStage, route: Route | None = None) -> AnalysedQuery:
    return AnalysedQuery(
        stage.stage, stage.plan, stage.analysis, stage.partitions, stage.event_time, stage.frontier_lag_us, route
    )


def _declare(
    spark: SparkSession, written: Collection[str], name: str, ddl: str, event_time: str | None
) -> tuple[Columns, frozenset[str]]:
    schema = _declared_columns(spark, name, ddl)
    if name not in written:
        _refuse(not_carried(schema, f"streams.{name}.schema", "{}"))
    return columns_of(schema), not_null(spark, ddl, name, event_time)


def _declared_columns(spark: SparkSession, name: str, ddl: str) -> StructType:
    schema = parse_schema(spark, ddl, name)
    _refuse(wrong_columns(schema, f"streams.{name}.schema"))
    return schema


def _refuse(mistakes: Iterable[str]) -> None:
    if said := " ".join(mistakes):
        raise PipelineRefused(said)


def _called(
    spark: SparkSession, stage: Stage, known: Mapping[str, StructType], config: Config, directory: Path
) -> StructType | None:
    """The columns that a stage makes of streams of which only the columns count; None if those are unknown.

    A misspelt column is refused. What else its plan lacks may follow from another mistake.
    """
    inputs = []
    for name in stage.inputs:
        declared = config.streams.get(name)
        with suppress(PipelineRefused):
            if name in known:
                inputs.append(Input(name, known[name], None))
            elif declared is not None and declared.schema is not None:
                inputs.append(Input(name, _declared_columns(spark, name, declared.schema), None))
    if len(inputs) < len(stage.inputs):
        return None
    frame, wrong = called(spark, stage, inputs, directory / stage.name)
    _refuse(wrong)
    return frame.schema


def _refused_stream(stage: Stage, schema: StructType, assembly: Assembly) -> AnalysedStream | None:
    """What a refused stage would write, so that the stages behind it can be analysed. None: that is not known.

    No column counts as one with nulls, so that no stage is refused for what this one does not show.
    """
    declared = assembly.declared(stage.output)
    if not {declared.event_time or schema.names[0], *stage.partition_by} <= {*schema.names}:
        return None
    return AnalysedStream(
        declared.partitions if stage.partition_by else assembly.tasks_of(stage, stage.inputs),
        columns_of(schema),
        declared.event_time,
        declared.idle_timeout_s,
        writer=stage.name,
        key=stage.partition_by,
        not_null=frozenset(schema.names),
    )


def _analysis(
    spark: SparkSession, stage: Stage, assembly: Assembly, task_count: int | None, directory: Path
) -> QueryAnalysis:
    declared = assembly.declared(stage.output)
    inputs = []
    for name in stage.inputs:
        stream = assembly.streams[name]
        schema = parse_schema(spark, stream.columns.ddl, name)
        inputs.append(Input(name, schema, stream.event_time, stream.partitions, stream.key, stream.not_null))
    output = Output(stage.output, declared.event_time, declared.frontier_lag_s)
    with released_at_end(spark):
        return analyse(spark, stage, inputs, output, stage.tasks or task_count, directory)


def _router(
    stage: Stage,
    number: int,
    route: Route,
    assembly: Assembly,
    config: Config,
    taken: set[str],
) -> AnalysedQuery:
    """An added stage that passes an input on unchanged, partitioned as the next stage needs it."""
    read = stage.inputs[number]
    name = f"{stage.name}-{read}" + (f"-{number}" if stage.inputs.count(read) > 1 else "")
    if name in taken:
        raise PipelineRefused(
            f"The rows of stream {read!r} have to be routed for stage {stage.name}, through a stream called {name!r}. "
            "The pipeline already has a stream of this name. Rename that one."
        )
    streams = assembly.streams
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
        columns=stream.columns,
        fingerprint=({"routed": route.texts, "like_keys": route.like_keys},),
        facts={"routed by": ", ".join(route.texts)},
        frontier=() if stream.event_time is None else (Term(0),),
        not_null=stream.not_null,
    )
    plan = StagePlan(
        name=name,
        inputs=(assembly.read_as(read),),
        output=name,
        tasks=assembly.tasks_of(router, (read,)),
        schema=stream.columns.ddl,
        routed_for=stage.name,
        routed_by=route.shown,
        partitions=partitions,
    )
    return AnalysedQuery(
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


def _check_meeting(stage: Stage, routers: Sequence[AnalysedQuery]) -> None:
    """Refuse routers whose rows meet in one operator but that have different numbers of partitions."""
    partitions: dict[int, AnalysedQuery] = {}
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

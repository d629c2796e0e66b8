"""A pipeline without a query: analysed without Spark.

Promised: the plan and its fingerprint are the same that an analysis with Spark would make.
"""

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.errors import ConfigError, PipelineRefused
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.pipeline.assembly import Assembly
from samza_azure.pipeline.quick_check import no_spark
from samza_azure.stream_io import ddl as parser
from samza_azure.stream_io.columns import Columns


def analyse_without_spark(application: Application, config: Config) -> Pipeline:
    """Check each task against the streams it reads. Raise PipelineRefused with all mistakes."""
    assembly = Assembly(application, config, declare)
    unknown = set(assembly.doubtful)
    if queries := [stage for stage in assembly.in_order if stage.kind.facts.has_query]:
        assembly.note(no_spark(f"stage {queries[0].name}"), queries[0])
    for stage in assembly.in_order:
        if stage.kind.facts.has_query or stage.name in assembly.doubtful or unknown.intersection(stage.inputs):
            assembly.note_keys(stage)
            unknown.add(stage.output)
            continue
        try:
            assembly.add_sources(stage)
            done = assembly.analysed(stage, stage.inputs, assembly.handler(stage))
            assembly.add(done, assembly.key_of(done))
        except PipelineRefused as error:
            assembly.note(error, stage)
            unknown.add(stage.output)
    return assembly.finished()


def declare(stream: str, ddl: str, event_time: str | None) -> tuple[Columns, frozenset[str]]:
    """The columns that a job file declares, and those that no row may lack: NOT NULL, or the event time."""
    try:
        fields, columns = parser.arrow_schema(ddl), Columns.declared(ddl)
    except ConfigError as error:
        raise PipelineRefused(
            f'streams.{stream}.schema cannot be read: {error} Write it like "carrier string, ts timestamp, delay '
            'double".'
        ) from error
    lower = [name.lower() for name in columns.names]
    if twice := next((name for name in lower if lower.count(name) > 1), None):
        raise PipelineRefused(f"streams.{stream}.schema has {lower.count(twice)} columns called {twice}. Rename one.")
    return columns, frozenset(each.name for each in fields if each.name == event_time or not each.nullable)

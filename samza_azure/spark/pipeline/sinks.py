"""Streams that go to tables and folders: for each a stage without a query, whose tasks put its rows there."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

from samza_azure.application import Stage
from samza_azure.config import Config, Files, Stream, Table, files_of, table_of
from samza_azure.errors import PipelineRefused
from samza_azure.messages import StagePlan
from samza_azure.tables.write import WITHIN_A_DAY

#: Characters of a row's value, of which some are for the rest of a position, and of a run's name.
_POSITION_MAX, _RUN_MAX = 32_000, 32


def sinks_of(stream: str, streams: Mapping[str, Stream]) -> dict[str, Table | Files]:
    """Where the rows of a stream go, by the name of the stage that puts them there."""
    declared = streams.get(stream, Stream())
    found = {f"{stream}-table": table_of(stream, declared), f"{stream}-files": files_of(declared)}
    return {name: to for name, to in found.items() if to is not None}


def name_mistakes(stages: Sequence[Stage], streams: Mapping[str, Stream]) -> Iterator[str]:
    """What is wrong with tables and folders and is known without Spark."""
    written = {stage.output: stage for stage in stages}
    taken = {name for stage in stages for name in (stage.name, stage.output, *stage.inputs)}
    for stream in streams:
        for sink, to in sinks_of(stream, streams).items():
            yield from _sink_mistakes(stream, sink, to, written.get(stream), taken)


def _sink_mistakes(
    stream: str, sink: str, to: Table | Files, written_by: Stage | None, taken: Collection[str]
) -> Iterator[str]:
    if isinstance(to, Table):
        said, made = f"streams.{stream}.table is {to.name!r}", "A table is made"
    else:
        said, made = f"streams.{stream}.files is {to.folder!r}", "Files are made"
    if written_by is None:
        yield (
            f"{said}, and no stage writes this stream. {made} of what a stage puts out; a stage that passes the "
            "source's rows on will do."
        )
    elif isinstance(to, Table) and written_by.output_mode == "update":
        yield (
            f"{said}, and stage {written_by.name} writes a row for each change of a group (output mode update): the "
            "table would have all of them. Use output mode append."
        )
    if sink in taken:
        yield (
            f"The stage that puts out the rows of the stream {stream!r} would be called {sink!r}, and a stage or "
            "stream of the pipeline has this name already; rename that one."
        )


def check_time(stream: str, table: Table, schema: StructType) -> None:
    """`PipelineRefused` unless the table can be divided by its column."""
    if table.time not in schema.names:
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, but the stream has the columns {', '.join(schema.names)}. "
            "Name one of them; of a window select its start: F.col('window.start').alias('day')."
        )
    kind: DataType = schema[table.time].dataType
    if not isinstance(kind, DateType | TimestampType | TimestampNTZType):
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, a column of type {kind.simpleString()}. It must be a "
            "timestamp or a date; of a window select its start: F.col('window.start').alias('day')."
        )
    if isinstance(kind, DateType) and table.granularity in WITHIN_A_DAY:
        raise PipelineRefused(
            f"streams.{stream}.table.granularity is {table.granularity}, but {table.time!r} is a date, which is the "
            "same for a whole day. Write day or coarser, or keep a timestamp."
        )


def check_producers(stream: str, written_by: StagePlan) -> None:
    """`PipelineRefused` if so many tasks write a stream that its position is too long for a row of the table."""
    each = len(rf"\"runs/{'r' * _RUN_MAX}/{written_by.name}-999\":[999,99999999],")
    most = _POSITION_MAX // (2 * each)  # each log is in it twice while a part of a flush is published
    if written_by.tasks > most:
        raise PipelineRefused(
            f"The stream {stream!r} becomes a table and is written by the {written_by.tasks} tasks of stage "
            f"{written_by.name}; the table's row that says how far each of their logs is published holds {most}. "
            f"Give the stage at most {most} tasks (tasks=… of the stage, or task.count)."
        )


def sink_plan(name: str, stream: str, to: Table | Files, written_by: StagePlan, config: Config) -> StagePlan:
    """The stage of a table or folder: as many tasks as the stream has partitions, or `task.count`."""
    most = config.task.count or written_by.partitions
    return StagePlan(
        name=name,
        inputs=(stream,),
        output=name,
        tasks=min(written_by.partitions, most),
        schema=written_by.schema,
        table=to.name if isinstance(to, Table) else "",
        files=to.folder if isinstance(to, Files) else "",
        flush_s=to.flush_s,
    )

"""Streams that become tables. For each, a stage without a query is added; its tasks publish the rows as segments."""

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

from samza_azure.application import Stage
from samza_azure.config import Config, Stream, Table, table_of
from samza_azure.errors import PipelineRefused
from samza_azure.messages import StagePlan
from samza_azure.tables.write import WITHIN_A_DAY

#: In characters: how much of a position's logs fits into a row's value, and the longest name of a run.
_POSITION_MAX, _RUN_MAX = 32_000, 32


def tables_of(streams: Mapping[str, Stream]) -> dict[str, Table]:
    """The tables of a job, by stream."""
    found = {name: table_of(name, stream) for name, stream in streams.items()}
    return {name: table for name, table in found.items() if table is not None}


def sink_name(stream: str) -> str:
    """The stage that publishes a stream's rows."""
    return f"{stream}-table"


def name_mistakes(stages: Sequence[Stage], streams: Mapping[str, Stream]) -> Iterator[str]:
    """Yield the mistakes about tables that can be found without Spark."""
    written = {stage.output: stage for stage in stages}
    taken = {name for stage in stages for name in (stage.name, stage.output, *stage.inputs)}
    for stream, table in tables_of(streams).items():
        if stream not in written:
            yield (
                f"streams.{stream}.table is {table.name!r}, but no stage writes this stream. A table is made from the "
                "output of a stage; a stage that returns its input unchanged will do."
            )
        elif written[stream].output_mode == "update":
            yield (
                f"streams.{stream}.table is {table.name!r}, but stage {written[stream].name} writes a row for each "
                "change of a group (output mode update), and the table would keep them all. Use output mode append."
            )
        if sink_name(stream) in taken:
            yield (
                f"The stage that publishes the stream {stream!r} would be called {sink_name(stream)!r}, but a stage or "
                "stream of the pipeline already has this name. Rename that one."
            )


def check_time(stream: str, table: Table, schema: StructType) -> None:
    """Raise `PipelineRefused` unless the table can be divided into segments by its time column."""
    if table.time not in schema.names:
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, but the stream has the columns {', '.join(schema.names)}. "
            "Name one of them; for a window, select its start: F.col('window.start').alias('day')."
        )
    kind: DataType = schema[table.time].dataType
    if not isinstance(kind, DateType | TimestampType | TimestampNTZType):
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, a column of type {kind.simpleString()}. It must be a "
            "timestamp or a date; for a window, select its start: F.col('window.start').alias('day')."
        )
    if isinstance(kind, DateType) and table.granularity in WITHIN_A_DAY:
        raise PipelineRefused(
            f"streams.{stream}.table.granularity is {table.granularity}, but {table.time!r} is a date, which has no "
            "time of day. Write day or coarser, or keep a timestamp."
        )


def check_producers(stream: str, written_by: StagePlan) -> None:
    """Raise `PipelineRefused` if a stream has too many writing tasks for its position to fit in one table row."""
    each = len(rf"\"runs/{'r' * _RUN_MAX}/{written_by.name}-999\":[999,99999999],")
    most = _POSITION_MAX // (2 * each)  # the position names each log twice while a flush is partly published
    if written_by.tasks > most:
        raise PipelineRefused(
            f"The stream {stream!r} becomes a table and is written by the {written_by.tasks} tasks of stage "
            f"{written_by.name}. The table records how far each task's log is published, for at most {most} tasks. "
            f"Give the stage at most {most} tasks (tasks=… of the stage, or task.count)."
        )


def sink_plan(stream: str, table: Table, written_by: StagePlan, config: Config) -> StagePlan:
    """The stage of a table. It has a task per partition of the stream, but at most `task.count`."""
    most = config.task.count or written_by.partitions
    return StagePlan(
        name=sink_name(stream),
        inputs=(stream,),
        output=sink_name(stream),
        tasks=min(written_by.partitions, most),
        schema=written_by.schema,
        table=table.name,
        flush_s=table.flush_s,
    )

"""Streams that go to tables, folders and systems outside. For each, a stage without a query is added; its tasks write
the rows there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from samza_azure.application import Stage
from samza_azure.config import Config, Files, Outside, Stream, TableSettings, files_of, outside_of, table_of
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.logs.names import task_log, task_name
from samza_azure.messages import StagePlan, TaskKind
from samza_azure.names import dead_name, outlet_name

if TYPE_CHECKING:
    from samza_azure.stream_io.columns import Columns

#: Where the rows of a stream go.
Sink: TypeAlias = TableSettings | Files | Outside
#: In characters: how much of a position's logs fits into a row's value, and the longest name of a run.
_POSITION_MAX, _RUN_MAX = 32_000, 32


def sinks_of(stream: str, streams: Mapping[str, Stream]) -> dict[str, Sink]:
    """Where the rows of a stream go if a stage writes it, by the name of the stage that puts them there."""
    declared = streams.get(stream, Stream())
    found: dict[str, Sink | None] = {
        f"{stream}-table": table_of(stream, declared),
        f"{stream}-files": files_of(declared),
        outlet_name(stream): outside_of(stream, declared),
    }
    return {name: to for name, to in found.items() if to is not None}


def name_mistakes(
    stages: Sequence[Stage], streams: Mapping[str, Stream], of_refused: Collection[str] = ()
) -> Iterator[str]:
    """Yield the mistakes about tables and folders that can be found without Spark. Streams `of_refused` stages have
    writers, of which no more is said.
    """
    writers = dict[str, Stage | None].fromkeys(of_refused) | {stage.output: stage for stage in stages}
    taken = {name for stage in stages for name in (stage.name, stage.output, *stage.inputs)}
    for stream in streams:
        for sink, to in sinks_of(stream, streams).items():
            if stream in writers or not isinstance(to, Outside):  # what no stage writes comes from there
                yield from _sink_mistakes(stream, sink, to, writers, taken)


def _sink_mistakes(
    stream: str, sink: str, to: Sink, writers: Mapping[str, Stage | None], taken: Collection[str]
) -> Iterator[str]:
    writer = writers.get(stream)
    match to:
        case TableSettings():
            setting, made = f"streams.{stream}.table is {to.name!r}", "A table is made"
        case Files():
            setting, made = f"streams.{stream}.files is {to.folder!r}", "Files are made"
        case Outside():
            setting, made = f"streams.{stream}.system is {to.system!r}", "Rows are sent"
    if stream not in writers:
        yield (
            f"{setting}, but no stage writes this stream. {made} from the output of a stage; a stage that returns its "
            "input unchanged will do."
        )
    elif isinstance(to, TableSettings) and writer is not None and writer.output_mode == "update":
        yield (
            f"{setting}, but stage {writer.name} writes a row for each change of a group (output mode update), and "
            "the table would keep them all. Use output mode append."
        )
    if sink in taken:
        yield (
            f"The stage that publishes the stream {stream!r} would be called {sink!r}, but a stage or stream of the "
            "pipeline already has this name. Rename that one."
        )
    if isinstance(to, Outside) and dead_name(stream) in taken:
        yield (
            f"{setting}, and its rows that cannot be sent would be in the stream {dead_name(stream)!r}, but a stage or "
            "stream of the pipeline already has this name. Rename that one."
        )


def check_held(stream: str, to: Sink, columns: "Columns") -> None:
    """Raise `Mistakes` for columns that cannot be written to a file."""
    from samza_azure.tables.files import may_be_held  # with Arrow and the SDK: not for `check --quick`

    place = "a table" if isinstance(to, TableSettings) else "files"
    wrong = [
        f"The rows of stream {stream!r} go to {place}, but its column {column.name!r} is "
        f"{columns.types[column.name]}, which Parquet cannot hold. Give each struct in it a field, or leave the column "
        "out."
        for column in columns.arrow
        if not may_be_held(column.type)
    ]
    if wrong:
        raise Mistakes([(said, "") for said in wrong])


def check_time(stream: str, table: TableSettings, types: Mapping[str, str]) -> None:
    """Raise `PipelineRefused` unless the table can be divided into segments by its time column."""
    from samza_azure.tables.write import WITHIN_A_DAY  # with the SDK: not for `check --quick`

    if table.time not in types:
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, but the stream has the columns {', '.join(types)}. "
            "Name one of them; for a window, select its start: F.col('window.start').alias('day')."
        )
    kind = types[table.time]
    if kind not in ("date", "timestamp", "timestamp_ntz"):
        raise PipelineRefused(
            f"streams.{stream}.table.time is {table.time!r}, a column of type {kind}. It must be a "
            "timestamp or a date; for a window, select its start: F.col('window.start').alias('day')."
        )
    if kind == "date" and table.granularity in WITHIN_A_DAY:
        raise PipelineRefused(
            f"streams.{stream}.table.granularity is {table.granularity}, but {table.time!r} is a date, which has no "
            "time of day. Write day or coarser, or keep a timestamp."
        )


def check_producers(stream: str, written_by: StagePlan) -> None:
    """Raise `PipelineRefused` if a stream has too many writing tasks for its position to fit in one table row."""
    each = len(rf"\"{task_log('r' * _RUN_MAX, task_name(written_by.name, 999))}\":[999,99999999],")
    most = _POSITION_MAX // (2 * each)  # the position names each log twice while a flush is partly published
    if written_by.tasks > most:
        raise PipelineRefused(
            f"The stream {stream!r} becomes a table and is written by the {written_by.tasks} tasks of stage "
            f"{written_by.name}. The table records how far each task's log is published, for at most {most} tasks. "
            f"Give the stage at most {most} tasks: tasks={most} in its decorator, or task.count = {most}."
        )


def sink_plan(name: str, stream: str, to: Sink, written_by: StagePlan, config: Config) -> StagePlan:
    """The stage of a table, a folder or a system. It has a task per partition of the stream, at most `task.count`."""
    most = config.task.count or written_by.partitions
    match to:
        case TableSettings():
            kind, target, flush_s = TaskKind.TABLE, to.name, to.flush_s
        case Files():
            kind, target, flush_s = TaskKind.FILES, to.folder, to.flush_s
        case Outside():
            kind, target, flush_s = TaskKind.OUTLET, to.system, config.task.commit_ms / 1000
    return StagePlan(
        name=name,
        inputs=(stream,),
        output=name,
        tasks=min(written_by.partitions, most),
        schema=written_by.schema,
        kind=kind,
        target=target,
        flush_s=flush_s,
    )

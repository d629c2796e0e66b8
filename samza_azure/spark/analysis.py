"""What one stage is, found out before it runs: its columns, its watermarks, its state; or why it is refused.

The stage's function is called once with empty streams of the right columns. What Spark would notice only while the
query dies, or never, is noticed here, with the stage, the column and what to write instead.
Not noticed: a Python function that claims to be deterministic and is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.packages import check_packages, in_one_sentence
from samza_azure.spark.schema import check_columns, nullable
from samza_azure.spark.session import jvm_of

STATEFUL = {
    "Aggregate": "aggregation",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "Distinct": "deduplication",
    "GlobalLimit": "limit",
    "FlatMapGroupsWithState": "state per group",
    "FlatMapGroupsInPandasWithState": "state per group",
    "TransformWithState": "state machine",
    "TransformWithStateInPySpark": "state machine",
    "TransformWithStateInPandas": "state machine",
}
#: Spark marks a column that holds event time, or a window of it, with this.
EVENT_TIME_MARK = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class Input:
    """A stream as a stage sees it."""

    stream: str
    schema: StructType
    event_time: str | None


@dataclass(frozen=True, slots=True)
class Output:
    """What the job file says about the stream that a stage writes."""

    stream: str
    event_time: str | None
    frontier_lag_s: float


@dataclass(frozen=True, slots=True)
class Watermark:
    """One withWatermark of a stage: on which stream, and how long late rows are waited for."""

    stream: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """One stage as Spark understands it."""

    schema: StructType
    sources: int  # that Spark starts for a task; more than inputs, where a stage joins a stream with itself
    watermarks: tuple[Watermark, ...]
    stateful: tuple[str, ...]
    needs_rocksdb: bool
    warnings: tuple[str, ...]


def analyse(spark: SparkSession, stage: Stage, inputs: Sequence[Input], output: Output, directory: Path) -> Analysis:
    """Call the stage's function once and look at the plan that it made."""
    frames = [_empty_stream(spark, each, directory) for each in inputs]
    frame = _called(spark, stage, frames)
    plan = frame._jdf.queryExecution().analyzed()
    nodes = list(_nodes(plan))
    sources = _check_sources(stage, nodes, inputs, directory)
    _check_state(stage, nodes)
    check_packages(stage, nodes)
    _check_supported(spark, stage, plan)
    check_columns(frame.schema, f"Stage {stage.name}")
    watermarks = _watermarks(stage, nodes, inputs, directory)
    stateful = tuple(name for node in nodes if (name := _state_of(node)))
    _check_event_time(stage, frame, plan, inputs, output, directory, watermarks, stateful)
    return Analysis(
        schema=nullable(frame.schema, spark),
        sources=_different(spark, sources),
        watermarks=watermarks,
        stateful=stateful,
        needs_rocksdb="state machine" in stateful,
        warnings=_warnings(stage, plan),
    )


def _empty_stream(spark: SparkSession, each: Input, directory: Path) -> DataFrame:
    """A stand-in for the stream: the same columns, no Python source to start."""
    path = directory / each.stream
    path.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(each.schema).format("json").load(str(path))


def _called(spark: SparkSession, stage: Stage, frames: Sequence[DataFrame]) -> DataFrame:
    """The stage's result, if calling it changed nothing else."""
    queries = {query.id for query in spark.streams.active}
    settings = dict(spark.conf.getAll)
    try:
        frame = stage.function(*frames)
    except Exception as error:
        raise PipelineRefused(f"Stage {stage.name} cannot be analysed: {in_one_sentence(error)}") from error
    finally:
        started = [query for query in spark.streams.active if query.id not in queries]
        for query in started:
            query.stop()
        changed = _restored(spark, settings)
    if started:
        raise PipelineRefused(
            f"Stage {stage.name} starts a query. Return the DataFrame instead; it is started for you."
        )
    if changed:
        raise PipelineRefused(
            f"Stage {stage.name} changes {', '.join(changed)}, which all stages share. Set it in the job file instead."
        )
    if not isinstance(frame, DataFrame):
        raise PipelineRefused(f"Stage {stage.name} returns {type(frame).__name__}. Return a DataFrame.")
    if not frame.isStreaming:
        raise PipelineRefused(
            f"Stage {stage.name} returns a DataFrame that does not stream. "
            "Make it from the DataFrames that it is given."
        )
    return frame


def _restored(spark: SparkSession, settings: Mapping[str, str]) -> list[str]:
    """Put the session's settings back; the names of those that had changed."""
    now = dict(spark.conf.getAll)
    changed = sorted(key for key in now.keys() | settings.keys() if now.get(key) != settings.get(key))
    for key in changed:
        if key in settings:
            spark.conf.set(key, settings[key])
        else:
            spark.conf.unset(key)
    return changed


# The plan, read through py4j.


def _items(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _stream_of(leaf: Any, directory: Path) -> str | None:
    """The stream that a leaf stands for. None: it is none of ours."""
    if _kind(leaf) != "StreamingRelation":
        return None
    path = leaf.dataSource().options().get("path")
    if not path.isDefined():
        return None
    stands_for = Path(path.get())
    return stands_for.name if stands_for.parent == directory else None


def _check_sources(stage: Stage, nodes: Sequence[Any], inputs: Sequence[Input], directory: Path) -> list[Any]:
    """The leaves that stand for streams, once none of them is foreign and no input is without one."""
    leaves, used = [], set()
    for node in nodes:
        if node.children().size() or not node.isStreaming():
            continue
        stream = _stream_of(node, directory)
        if stream is None:
            raise PipelineRefused(
                f"Stage {stage.name} reads a stream of its own. Read only the DataFrames that it is given: "
                f"name the stream in @app.stage(…) and in the job file."
            )
        used.add(stream)
        leaves.append(node)
    for each in inputs:
        if each.stream not in used:
            raise PipelineRefused(
                f"Stage {stage.name} does not use its input {each.stream!r}. Use it, or take it out of @app.stage(…)."
            )
    return leaves


def _different(spark: SparkSession, leaves: Sequence[Any]) -> int:
    """Spark starts one source for all leaves that are equal, as those of a DataFrame that is used twice may be."""
    found = jvm_of(spark).java.util.HashSet()
    for leaf in leaves:
        found.add(leaf)
    return int(found.size())


def _state_of(node: Any) -> str | None:
    if not node.isStreaming():
        return None
    kind = _kind(node)
    if kind == "Join":
        both = all(child.isStreaming() for child in _items(node.children()))
        return "join of two streams" if both else None
    return STATEFUL.get(kind)


def _check_state(stage: Stage, nodes: Sequence[Any]) -> None:
    for node in nodes:
        kind = _kind(node)
        if kind.startswith("FlatMapGroups") and "ProcessingTime" in str(node.timeout().toString()):
            raise PipelineRefused(
                f"Stage {stage.name} uses ProcessingTimeTimeout, which a drain cannot bring to an end. "
                "Use GroupStateTimeout.EventTimeTimeout."
            )
        if kind.startswith("TransformWithState") and "ProcessingTime" in str(node.timeMode().toString()):
            raise PipelineRefused(
                f'Stage {stage.name} uses timeMode "ProcessingTime", which a drain cannot bring to an end. '
                'Use timeMode "EventTime".'
            )


def _check_supported(spark: SparkSession, stage: Stage, plan: Any) -> None:
    """What Spark itself would refuse, but only when the query starts."""
    jvm = jvm_of(spark)
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Update() if stage.output_mode == "update" else modes.Append()
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rstrip(";")
        raise PipelineRefused(f"Stage {stage.name} cannot run as a stream: {reason}") from error


def _warnings(stage: Stage, plan: Any) -> tuple[str, ...]:
    if plan.deterministic():
        return ()
    return (
        (
            f"Stage {stage.name} is not deterministic (rand, uuid, a non-deterministic function): "
            "its output cannot be compared with a second run over the same input."
        ),
    )


# Event time.

#: Columns of streams: (stream, column).
_Origins = frozenset[tuple[str, str]]


def _origins(node: Any, expression: int, directory: Path) -> _Origins | None:
    """The stream columns that an attribute is, unchanged, through renames and unions. None: it was computed."""
    kind = _kind(node)
    if node.children().size() == 0:
        stream = _stream_of(node, directory)
        found = [column.name() for column in _items(node.output()) if column.exprId().id() == expression]
        return frozenset({(stream, found[0])}) if stream and found else None
    if kind == "Union":
        return _origins_of_union(node, expression, directory)
    if kind in ("Project", "Aggregate"):
        below = _renamed(node.projectList() if kind == "Project" else node.aggregateExpressions(), expression)
        return None if below is None else _origins(node.children().apply(0), below, directory)
    for child in _items(node.children()):
        if any(column.exprId().id() == expression for column in _items(child.output())):
            return _origins(child, expression, directory)
    return None


def _renamed(expressions: Any, expression: int) -> int | None:
    for each in _items(expressions):
        if each.exprId().id() != expression:
            continue
        if _kind(each) == "Alias":
            return int(each.child().exprId().id()) if _kind(each.child()) == "AttributeReference" else None
        return expression
    return None


def _origins_of_union(node: Any, expression: int, directory: Path) -> _Origins | None:
    columns = [column.exprId().id() for column in _items(node.output())]
    if expression not in columns:
        return None
    index = columns.index(expression)
    found: _Origins = frozenset()
    for child in _items(node.children()):
        origins = _origins(child, child.output().apply(index).exprId().id(), directory)
        if origins is None:
            return None
        found |= origins
    return found


def _watermarks(stage: Stage, nodes: Sequence[Any], inputs: Sequence[Input], directory: Path) -> tuple[Watermark, ...]:
    """Each watermark of the plan, by the stream whose frontier moves it."""
    event_times = {each.stream: each.event_time for each in inputs}
    found = []
    for node in nodes:
        if _kind(node) != "EventTimeWatermark":
            continue
        column = node.eventTime().name()
        below = node.children().apply(0)
        if _is_marked(below, node.eventTime().exprId().id()):
            raise PipelineRefused(f"Stage {stage.name} sets two watermarks on column {column}. Keep one withWatermark.")
        for stream, _ in _checked_origins(stage, node, column, event_times, directory):
            found.append(Watermark(stream, _delay_ms(node)))
    return tuple(found)


def _is_marked(node: Any, expression: int) -> bool:
    return any(
        column.exprId().id() == expression and column.metadata().contains(EVENT_TIME_MARK)
        for column in _items(node.output())
    )


def _checked_origins(
    stage: Stage, node: Any, column: str, event_times: Mapping[str, str | None], directory: Path
) -> list[tuple[str, str]]:
    origins = _origins(node.children().apply(0), node.eventTime().exprId().id(), directory)
    for stream in sorted(event_times) if origins is None else sorted(stream for stream, _ in origins):
        declared = event_times[stream]
        if declared is None:
            raise PipelineRefused(
                f"Stage {stage.name} sets a watermark on column {column}, but nothing is said about the event time of "
                f'stream {stream!r}. Add to the job file, under [streams.{stream}]: event_time = "{column}".'
            )
    if origins is None:
        known = ", ".join(f"{stream}.{column}" for stream, column in sorted(event_times.items()))
        raise PipelineRefused(
            f"Stage {stage.name} sets a watermark on column {column}, which the stage computes. "
            f"Set it on the event time of its input, unchanged or renamed: {known}."
        )
    for stream, origin in origins:
        if origin != event_times[stream]:
            raise PipelineRefused(
                f"Stage {stage.name} sets a watermark on column {origin} of stream {stream!r}, whose event time is "
                f"{event_times[stream]}. Use that column, or change streams.{stream}.event_time in the job file."
            )
    return sorted(origins)


def _delay_ms(node: Any) -> int:
    """The delay of a watermark, as Spark notes it on the column."""
    marks = [column.metadata() for column in _items(node.output()) if column.metadata().contains(EVENT_TIME_MARK)]
    return max(int(mark.getLong(EVENT_TIME_MARK)) for mark in marks)


def _check_event_time(
    stage: Stage,
    frame: DataFrame,
    plan: Any,
    inputs: Sequence[Input],
    output: Output,
    directory: Path,
    watermarks: Sequence[Watermark],
    stateful: Sequence[str],
) -> None:
    """The frontier that the stage's records carry must hold for the event time of its output stream."""
    if output.event_time is None:
        return
    column = next((each for each in _items(plan.output()) if each.name() == output.event_time), None)
    if column is None:
        raise PipelineRefused(
            f"streams.{output.stream}.event_time is {output.event_time!r}, but stage {stage.name} writes the columns "
            f"{', '.join(frame.columns)}. Name one of them."
        )
    if output.frontier_lag_s > 0:
        return
    if stateful and watermarks:
        holds = column.metadata().contains(EVENT_TIME_MARK) and "join of two streams" not in stateful
    else:
        event_times = {(each.stream, each.event_time) for each in inputs}
        origins = _origins(plan, column.exprId().id(), directory)
        holds = origins is not None and origins <= event_times
    if not holds:
        raise PipelineRefused(
            f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but it is "
            "neither the event time of an input nor Spark's own: rows could be older than what the stage promises. "
            f"Use window_time(window), or say under [streams.{output.stream}] how much older they can be: "
            'frontier_lag = "1 hour".'
        )

"""Analyse one stage before it runs: its columns, its state, its event time; or refuse it.

The stage's function is called with empty streams of the right columns, and the resulting plan is examined. It is called
twice, to see whether the plan differs from start to start.
The rule: an accepted stage emits what one Spark batch over the same rows would, for any number of partitions and tasks.
Other stages are refused; the message names the stage, the operator and what to write instead.
Not detected: a Python function that is declared deterministic and is not; a value that differs only between days,
processes or machines, such as `date.today()`; other rows of a table that the function creates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.session import java_class
from samza_azure.spark.pipeline.advice import Advice
from samza_azure.spark.pipeline.bounds import Bounds, Input, Term
from samza_azure.spark.pipeline.catalyst import (
    Node,
    all_of,
    analysed,
    input_directory,
    input_of,
    is_marked,
    items,
    kind_of,
    read_optimised,
    read_plan,
    tree,
    without_ids,
)
from samza_azure.spark.pipeline.describe import operator_facts, stage_facts
from samza_azure.spark.pipeline.emission import check_emission, puts_out_changes
from samza_azure.spark.pipeline.event_time import (
    Output,
    Watermark,
    check_on_time,
    check_one_event_time,
    check_timers,
    copies_of,
    frontier_of,
    watermarks_of,
)
from samza_azure.spark.pipeline.fingerprint import Origins, fingerprint_of, fingerprints_of, held_by
from samza_azure.spark.pipeline.joins import check_joins
from samza_azure.spark.pipeline.operators import (
    FIRE_AFTER_ROWS,
    MAKING,
    check_global_sessions,
    check_operators,
    check_row_formats,
    check_whole_sessions,
    described,
    has_sessions,
    keys_of,
    state_of,
)
from samza_azure.spark.pipeline.packages import check_packages
from samza_azure.spark.pipeline.placement import Placement, place_stage
from samza_azure.spark.pipeline.schema import check_carried, check_columns, nullable
from samza_azure.spark.pipeline.session_kept import session_kept
from samza_azure.spark.pipeline.words import said_at_start, said_by_stage
from samza_azure.spark.user_code import noted, place_of

#: The functions of rows that get them in chunks, as series of pandas or arrays of Arrow.
OF_CHUNKS = frozenset(
    {
        PythonEvalType.SQL_SCALAR_PANDAS_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
    }
)
UNSUPPORTED = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"


@dataclass(frozen=True, slots=True)
class Analysis:
    """One stage as Spark understands it."""

    schema: StructType
    fingerprint: tuple[Mapping[str, Any], ...]  # what the state of its operators depends on
    facts: Mapping[str, str]  # the fingerprint for people who compare two pipelines
    #: The input that each of Spark's sources reads, in the order in which Spark stores their offsets. A stage that
    #: joins a stream with itself has more sources than inputs.
    sources: tuple[int, ...] = (0,)
    watermarks: tuple[Watermark, ...] = ()
    frontier: tuple[Term, ...] = ()  # the minimum of these; empty: the stage's records carry no frontier
    stateful: tuple[str, ...] = ()
    state: tuple[str, ...] = ()  # the same operators with their keys, for people
    placement: Placement = field(default_factory=Placement)
    puts_out_changes: bool = False  # there may be several rows for one row of a batch
    needs_rocksdb: bool = False
    needs_memory: bool = False
    fires_after_rows: bool = False  # the last rows of a drain and the watermark of infinity may come in one batch
    warnings: tuple[str, ...] = ()


def analyse(
    spark: SparkSession, stage: Stage, inputs: Sequence[Input], output: Output, tasks: int | None, directory: Path
) -> Analysis:
    """Call the stage's function and examine its plan. `tasks` is the number that the user asks for."""
    directory = directory / stage.name
    frame = _called(spark, stage, _empty_streams(spark, inputs, directory), inputs)
    root = read_plan(spark, frame, directory)
    _check_inputs(stage, root, inputs)
    plan = analysed(frame)
    check_packages(stage, [node.plan for node in root.walk()])
    bounds = Bounds(spark, inputs, updates=stage.output_mode == "update")
    advice = Advice(inputs, bounds)
    operators = [node for node in root.walk() if state_of(node)]
    for operator in operators:
        check_one_event_time(stage, operator)
    check_emission(stage, root, advice)
    _check_supported(spark, stage, plan, root, advice)
    check_operators(stage, root)
    optimised = _optimised(spark, stage, plan, root, advice, directory)
    check_row_formats(spark, stage, optimised)
    check_global_sessions(stage, root, optimised)
    check_whole_sessions(stage, root, optimised)
    if not frame.columns:
        raise PipelineRefused(
            f"Stage {stage.name} has no columns, and a log cannot store such rows. Select at least one column."
        )
    check_columns(frame.schema, f"Stage {stage.name}")
    schema = nullable(frame.schema)
    check_carried(schema, f"Stage {stage.name}")
    watermarks = watermarks_of(stage, root, optimised, inputs, bounds)
    copies = copies_of(stage, root, optimised)
    check_joins(spark, stage, root, optimised, bounds)
    check_on_time(stage, root, optimised, watermarks, bounds, copies)
    check_timers(stage, operators, bounds, advice)
    placement = place_stage(spark, stage, root, inputs, tasks)
    origins = Origins(spark)
    other = directory / "again"
    again = _called(spark, stage, _empty_streams(spark, inputs, other), inputs)
    _check_frames(stage, again, other)
    if drifts := without_ids(tree(plan)) != without_ids(tree(analysed(again)).replace(str(other), str(directory))):
        _check_drift(stage, root, read_plan(spark, again, other), origins, is_random=_is_random(root))
    delays = [str(each.delay_ms) for each in watermarks]
    held = held_by(operators, optimised, origins)
    fingerprint = tuple({**each, "delays": delays, "holds": held} for each in fingerprints_of(operators, origins))
    sources = _sources(spark, plan, directory)
    by_stream = {inputs[each.reads].stream: each.delay_ms for each in watermarks}
    return Analysis(
        schema=schema,
        sources=sources,
        watermarks=watermarks,
        frontier=frontier_of(stage, frame, root, inputs, output, bounds, watermarks, operators),
        stateful=tuple(state_of(node) or "" for node in operators),
        state=tuple(described(node) for node in operators),
        fingerprint=fingerprint,
        facts=stage_facts(
            [operator_facts(node, bounds) for node in operators],
            by_stream,
            fingerprint,
            [f"{inputs[reads].stream} (input {reads + 1})" for reads in sources],
        ),
        placement=placement,
        puts_out_changes=puts_out_changes(stage, root),
        needs_rocksdb=any(node.kind.startswith("TransformWithState") for node in operators),
        needs_memory=len(operators) > 1 and any(has_sessions(node) for node in operators),
        fires_after_rows=bool(operators) and all(node.kind in FIRE_AFTER_ROWS for node in operators),
        warnings=(
            *_warnings(stage, plan, root, drifts=drifts),
            *_kept_for_ever(stage, operators, bounds, advice),
            *placement.warnings,
        ),
    )


def _empty_streams(spark: SparkSession, inputs: Sequence[Input], directory: Path) -> list[DataFrame]:
    """Stand-ins for the streams: they have the same columns, but start no Python source."""
    frames = []
    for number, each in enumerate(inputs):
        path = input_directory(directory, number, each.stream)
        path.mkdir(parents=True, exist_ok=True)
        frames.append(spark.readStream.schema(each.schema).format("json").load(str(path)))
    return frames


def _called(spark: SparkSession, stage: Stage, frames: Sequence[DataFrame], inputs: Sequence[Input]) -> DataFrame:
    """Call the stage's function. Refuse it if it starts a query, or returns anything but a stream of this session."""
    queries = {query.id for query in spark.streams.active}
    with session_kept(spark, stage.name):
        try:
            frame = stage.function(*frames)
        except Exception as error:
            columns = list(dict.fromkeys(name for each in frames for name in each.columns))
            time = next((each.event_time for each in inputs if each.event_time), None)
            refused = PipelineRefused(f"Stage {stage.name} cannot be analysed: {said_by_stage(error, columns, time)}")
            noted(refused, place_of(error), stage.name)
            raise refused from error
        finally:
            started = [query for query in spark.streams.active if query.id not in queries]
            for query in started:
                query.stop()
    if started:
        raise PipelineRefused(
            f"Stage {stage.name} starts a query. Return the DataFrame instead; samza-azure starts the query."
        )
    if not isinstance(frame, DataFrame):
        returned = type(frame)
        if returned.__name__ == DataFrame.__name__:
            raise PipelineRefused(
                f"Stage {stage.name} returns a DataFrame of {returned.__module__}. Return one of pyspark.sql."
            )
        raise PipelineRefused(f"Stage {stage.name} returns {returned.__name__}. Return a DataFrame.")
    if not frame.sparkSession._jsparkSession.equals(spark._jsparkSession):
        raise PipelineRefused(
            f"Stage {stage.name} returns a DataFrame of another session, which has other settings. Build it from the "
            "DataFrames that the function gets, without newSession()."
        )
    if not frame.isStreaming:
        raise PipelineRefused(
            f"Stage {stage.name} returns a DataFrame that is not streaming. "
            "Return one that is built from the DataFrames that the function gets."
        )
    return frame


def _check_inputs(stage: Stage, root: Node, inputs: Sequence[Input]) -> None:
    """Refuse a plan that reads other streams or leaves an input unread."""
    for node in root.walk():
        if node.is_streaming and not node.children and node.reads is None:
            raise PipelineRefused(
                f"Stage {stage.name} reads a stream of its own. Read only the DataFrames that the function gets: "
                "name the stream in @app.stage and in the job file."
            )
    for leaf in root.leaves():
        assert leaf.reads is not None
        known = inputs[leaf.reads].schema.names
        if any(str(each.name()) == "_metadata" and "_metadata" not in known for each in leaf.output):
            raise PipelineRefused(
                f"Stage {stage.name} uses _metadata, which only files have. Stream {inputs[leaf.reads].stream!r} has "
                f"the columns {', '.join(known)}."
            )
    used = {leaf.reads for leaf in root.leaves()}
    for number, each in enumerate(inputs):
        if number not in used:
            raise PipelineRefused(
                f"Stage {stage.name} does not use its input {each.stream!r}. Use it, or remove it from @app.stage."
            )


def _check_frames(stage: Stage, frame: DataFrame, directory: Path) -> None:
    """Refuse a second call that reads what the first one was given: a task would read the analysis's stand-ins."""
    for leaf in items(analysed(frame).collectLeaves()):
        if leaf.isStreaming() and kind_of(leaf) == "StreamingRelation" and input_of(leaf, directory) is None:
            raise PipelineRefused(
                f"Stage {stage.name} keeps a DataFrame of an earlier call. It is called again for each task, with "
                "other DataFrames: build everything from those, in each call."
            )


def _sources(spark: SparkSession, plan: Any, directory: Path) -> tuple[int, ...]:
    """The inputs that Spark's sources read: one source for equal leaves, as of a DataFrame that is used twice.

    A common table expression is one leaf, however often it is used, so they are not inlined here.
    """
    found = java_class(spark, "java.util.LinkedHashSet")()
    for leaf in items(plan.collectLeaves()):
        if kind_of(leaf) == "StreamingRelation":
            found.add(leaf)
    return tuple(reads for reads in (input_of(leaf, directory) for leaf in found) if reads is not None)


def _check_supported(spark: SparkSession, stage: Stage, plan: Any, root: Node, advice: Advice) -> None:
    """Refuse what Spark itself would refuse, but only when the query starts."""
    modes = java_class(spark, "org.apache.spark.sql.streaming.OutputMode")
    mode = modes.Update() if stage.output_mode == "update" else modes.Append()
    try:
        java_class(spark, UNSUPPORTED).checkForStreaming(plan, mode)
    except Exception as error:
        said = said_at_start(error, root, advice)
        raise PipelineRefused(f"Stage {stage.name} cannot run as a stream: {said}") from error


def _optimised(spark: SparkSession, stage: Stage, plan: Any, root: Node, advice: Advice, directory: Path) -> Node:
    try:
        return read_optimised(spark, plan, directory)
    except Exception as error:
        said = said_at_start(error, root, advice)
        raise PipelineRefused(f"Stage {stage.name} cannot run as a stream: {said}") from error


def _is_random(root: Node) -> bool:
    """Whether an expression is random. Spark calls `collect_set` so, too: its order is that of the rows."""
    nodes = (node for node in root.walk() if node.kind != "Aggregate")
    return any(not each.deterministic() for node in nodes for each in items(node.plan.expressions()))


def _check_drift(stage: Stage, root: Node, again: Node, origins: Origins, *, is_random: bool) -> None:
    """Refuse a plan that another call of the function makes with other names or keys: because of a random seed, or of a
    value that Python works out, as `datetime.now()`.

    Each processor calls the function when it analyses the stage, and for each task that it starts.
    """
    cause, name, remedy = (
        ("a random seed", "random", "Set the seed yourself, as in F.rand(7)")
        if is_random
        else ("a value that your code works out", "value", "Write the value down, or take it from a column")
    )
    for one, other in zip(root.output, again.output, strict=False):
        if one.name() != other.name():
            raise PipelineRefused(
                f"Stage {stage.name}: Spark calls a column {one.name()}, after {cause}, which differs from start to "
                f'start. Name the column yourself, with .alias("{name}").'
            )
    operators = ([node for node in each.walk() if state_of(node)] for each in (root, again))
    for one, other in zip(*operators, strict=False):
        if fingerprint_of(one, origins) != fingerprint_of(other, origins):
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(one)} depends on {cause}, which differs from start to start. So "
                f"no processor could go on with the state of another. {remedy}."
            )


def _warnings(stage: Stage, plan: Any, root: Node, *, drifts: bool) -> tuple[str, ...]:
    found = []
    is_random = _is_random(root)
    if drifts and not is_random:
        found.append("has a value in it that differs from start to start, as datetime.now() does")
    if is_random or any(node.kind == "Sample" for node in root.walk()):
        found.append("is not deterministic (rand, uuid, a non-deterministic function)")
    times = ("current_timestamp(", "current_date(", "current_time(", "localtimestamp(", "now(")
    said = tree(plan)
    if any(word in said for word in times):
        found.append("uses the time at which a batch runs")
    if any(node.kind == "GlobalLimit" and node.is_streaming for node in root.walk()):
        found.append("limits its rows, and takes those that come first")
    warnings = [
        f"Stage {stage.name} {each}: a second run over the same input may give another output." for each in found
    ]
    used = ["mapInPandas or mapInArrow"] * any(node.kind in MAKING for node in root.walk())
    used += ["pandas_udf or arrow_udf"] * any(map(_gets_chunks, root.walk()))
    warnings += [
        f"Stage {stage.name} uses {each}: its function gets the rows in chunks that differ from run to run, so it must "
        "process each row independently."
        for each in used
    ]
    return tuple(warnings)


def _gets_chunks(node: Node) -> bool:
    """Whether it has a function of rows that gets many of them at once, as columns."""
    functions = (found for each in items(node.plan.expressions()) for found in all_of(each, "PythonUDF"))
    return any(int(each.evalType()) in OF_CHUNKS for each in functions)


def _kept_for_ever(stage: Stage, operators: Sequence[Node], bounds: Bounds, advice: Advice) -> Iterator[str]:
    """Warn of state that only grows. It is accepted: the keys may be few, and the rows end some day."""
    for operator in operators:
        for kept, remedy in _what_is_kept(operator, bounds, advice):
            yield (
                f"Stage {stage.name}: the {described(operator)} keeps {kept} for ever, so its state grows without end. "
                f"{remedy}".rstrip()
            )


def _what_is_kept(operator: Node, bounds: Bounds, advice: Advice) -> Iterator[tuple[str, str]]:
    """What an operator never removes from its state, and how it would."""
    if operator.is_join_of_streams:
        yield from ((f"the rows of {streams}", remedy) for streams, remedy in bounds.kept_for_ever(operator))
        return
    keys = [key for (key,) in keys_of(operator)]
    if not keys or any(kind_of(key) == "AttributeReference" and is_marked(key) for key in keys):
        return  # one group, or groups that end
    elif operator.kind == "Deduplicate":
        yield "each key", advice.forgotten(operator, keys)
    elif operator.kind == "Aggregate":
        yield "each group", advice.divided(operator, keys)
    elif operator.kind == "FlatMapGroupsInPandasWithState" and str(operator.plan.timeout().toString()) == "NoTimeout":
        yield (
            "what a group without further rows has left there",
            "To remove it then, use GroupStateTimeout.EventTimeTimeout and a timeout.",
        )
    elif operator.kind == "TransformWithStateInPySpark" and str(operator.plan.timeMode().toString()) == "NoTime":
        yield (
            "what a key without further rows has left there",
            'To remove it then, use timeMode "EventTime" and a timer.',
        )

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

from samza_azure.application import Stage
from samza_azure.config.values import in_words
from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.session import java_class
from samza_azure.spark.pipeline.advice import Advice, declare_event_time, is_time
from samza_azure.spark.pipeline.bounds import Bounds, Input, Term, Unbounded, marked
from samza_azure.spark.pipeline.catalyst import (
    EVENT_TIME_MARK,
    Node,
    analysed,
    equalities,
    identity,
    in_sql,
    input_directory,
    input_of,
    is_marked,
    is_window,
    items,
    kind_of,
    literal,
    read_optimised,
    read_plan,
    tree,
    without_ids,
)
from samza_azure.spark.pipeline.describe import operator_facts, stage_facts
from samza_azure.spark.pipeline.emission import check_emission, puts_out_changes
from samza_azure.spark.pipeline.joins import check_joins
from samza_azure.spark.pipeline.names import no_time
from samza_azure.spark.pipeline.operators import (
    FIRE_AFTER_ROWS,
    check_global_sessions,
    check_operators,
    check_row_formats,
    described,
    fingerprint_of,
    fingerprints_of,
    has_sessions,
    state_of,
)
from samza_azure.spark.pipeline.packages import check_packages
from samza_azure.spark.pipeline.placement import Placement, Tracer, place_stage
from samza_azure.spark.pipeline.schema import check_carried, check_columns, nullable
from samza_azure.spark.pipeline.session_kept import session_kept
from samza_azure.spark.pipeline.words import said_at_start, said_by_stage
from samza_azure.spark.user_code import noted, place_of

UNSUPPORTED = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
#: The remedy if an operator keeps rows for an unknown time before another one.
SPLIT = (
    "Bound the time in the operator before it, as a join does with BETWEEN; or move what comes before it into a "
    "separate stage, with event_time and frontier_lag on the stream between."
)
#: Operators whose function makes all columns anew, so that nothing is known of their times.
MAKING = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
#: The remedy if a watermark is set behind one of them.
AHEAD = (
    "Put what comes up to this operator into a stage of its own, with event_time and frontier_lag on its output "
    "stream, and set the watermark in the next stage."
)
#: The remedy if a column is not an event time.
USE_MARKED = "Use the event time of an input, or window_time(window)."


@dataclass(frozen=True, slots=True)
class Output:
    """What the job file says about the stream that a stage writes."""

    stream: str
    event_time: str | None
    frontier_lag_s: float | None  # None: not declared


@dataclass(frozen=True, slots=True)
class Watermark:
    """One term of a stage's watermark: the frontier of an input, less the delay that late rows are granted.

    Spark drops a row whose time is the watermark itself, but a row at the frontier is not late. So the watermark of a
    stage that compares times with it stays a millisecond below. A window ends later than the times in it, but a session
    ends at the time of the last row that would extend it.
    """

    reads: int  # the input's number
    delay_ms: int
    below_ms: int = 0


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
        _check_one_event_time(stage, operator)
    check_emission(stage, root, advice)
    _check_supported(spark, stage, plan, root, advice)
    check_operators(stage, root)
    optimised = _optimised(spark, stage, plan, root, advice, directory)
    check_row_formats(spark, stage, optimised)
    check_global_sessions(stage, root, optimised)
    if not frame.columns:
        raise PipelineRefused(
            f"Stage {stage.name} has no columns, and a log cannot store such rows. Select at least one column."
        )
    check_columns(frame.schema, f"Stage {stage.name}")
    schema = nullable(frame.schema, spark)
    check_carried(schema, f"Stage {stage.name}")
    watermarks = _watermarks(stage, root, optimised, inputs, bounds)
    copies = _copies(stage, root, optimised)
    check_joins(spark, stage, root, optimised, bounds)
    _check_on_time(stage, operators, watermarks, bounds, copies)
    _check_timers(stage, operators, bounds, advice)
    placement = place_stage(spark, stage, root, inputs, tasks)
    tracer = Tracer(spark)
    other = directory / "again"
    again = _called(spark, stage, _empty_streams(spark, inputs, other), inputs)
    _check_frames(stage, again, other)
    if drifts := without_ids(tree(plan)) != without_ids(tree(analysed(again)).replace(str(other), str(directory))):
        _check_drift(stage, root, read_plan(spark, again, other), tracer, is_random=_is_random(root))
    delays = [str(each.delay_ms) for each in watermarks]
    fingerprint = tuple({**each, "delays": delays} for each in fingerprints_of(operators, tracer.origins))
    sources = _sources(spark, plan, directory)
    by_stream = {inputs[each.reads].stream: each.delay_ms for each in watermarks}
    return Analysis(
        schema=schema,
        sources=sources,
        watermarks=watermarks,
        frontier=_frontier(stage, frame, root, inputs, output, bounds, watermarks, operators),
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
        warnings=(*_warnings(stage, plan, root, drifts=drifts), *_kept_for_ever(stage, operators, bounds)),
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


def _check_drift(stage: Stage, root: Node, again: Node, tracer: Tracer, *, is_random: bool) -> None:
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
        if fingerprint_of(one, tracer.origins) != fingerprint_of(other, tracer.origins):
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
    warnings = [
        f"Stage {stage.name} {each}: a second run over the same input may give another output." for each in found
    ]
    if any(node.kind in MAKING for node in root.walk()):
        warnings.append(
            f"Stage {stage.name} uses mapInPandas or mapInArrow: its function gets the rows in chunks that differ from "
            "run to run, so it must process each row independently."
        )
    return tuple(warnings)


def _kept_for_ever(stage: Stage, operators: Sequence[Node], bounds: Bounds) -> Iterator[str]:
    """Warn of state that only grows, since a join without a limit of time is accepted."""
    for operator in operators:
        for streams, remedy in bounds.kept_for_ever(operator) if operator.is_join_of_streams else ():
            yield (
                f"Stage {stage.name}: the {described(operator)} keeps the rows of {streams} for ever, so its state "
                f"grows without end. {remedy}"
            )


# Event time.


def _watermarks(
    stage: Stage, root: Node, optimised: Node, inputs: Sequence[Input], bounds: Bounds
) -> tuple[Watermark, ...]:
    """The stage's watermark is the minimum of these: one for each input of a stateful operator that has an event time.

    An input without a withWatermark counts too, so that its rows are not late because it is slower than the others.
    Its delay is the longest of the stage's delays, since that is what the operator grants its rows.
    """
    nodes = [node for node in root.walk() if node.kind == "EventTimeWatermark"]
    if not nodes:
        return ()
    found: dict[int, int] = {}
    for node in nodes:
        _check_watermark(stage, node, inputs, bounds)
        for leaf in node.leaves():
            assert leaf.reads is not None
            if inputs[leaf.reads].event_time is not None:
                found[leaf.reads] = max(_delay_ms(node), found.get(leaf.reads, 0))
    longest = max(found.values(), default=0)
    operators = [node for node in root.walk() if state_of(node)]
    for leaf in (leaf for operator in operators for leaf in operator.leaves()):
        assert leaf.reads is not None
        if inputs[leaf.reads].event_time is not None:
            found.setdefault(leaf.reads, longest)
    run = [node for node in optimised.walk() if state_of(node)]  # its operators may get copies of times
    below_ms = int(any(map(_compares_times, [*operators, *run])))
    return tuple(Watermark(reads, delay, below_ms) for reads, delay in sorted(found.items()))


def _compares_times(operator: Node) -> bool:
    """Whether it compares a time with the watermark, not only the end of a window; merges sessions; or has timers."""
    times_of = _watched if operator.is_join_of_streams else _event_times
    return (
        has_sessions(operator)
        or operator.kind.startswith("TransformWithState")
        or any(not is_window(child.column(each)) for child in operator.children for each in times_of(operator, child))
    )


def _check_watermark(stage: Stage, node: Node, inputs: Sequence[Input], bounds: Bounds) -> None:
    attribute = node.plan.eventTime()
    column = str(attribute.name())
    if is_marked(node.child.column(identity(attribute))):
        raise PipelineRefused(f"Stage {stage.name} sets two watermarks on column {column}. Keep one withWatermark.")
    if any(each.kind == "EventTimeWatermark" for each in node.child.walk()):
        raise PipelineRefused(
            f"Stage {stage.name} sets a watermark on column {column} after another withWatermark. Keep the first one, "
            "or move what follows it into a separate stage."
        )
    bound = bounds.of(node.child, identity(attribute))
    if isinstance(bound, Unbounded):
        known = " or ".join(f"{each.stream}.{each.event_time}" for each in inputs if each.event_time)
        remedy = bound.remedy
        if not remedy and any(each.kind in MAKING for each in node.child.walk()):
            remedy = AHEAD
        elif not remedy and known:
            remedy = f"Set it on the event time of an input ({known}), before any join or aggregation."
        elif not remedy:
            remedy = f"{declare_event_time(inputs)} Set the watermark on it, before any join or aggregation."
        raise PipelineRefused(f"Stage {stage.name} sets a watermark on column {column}, but {bound.reason}. {remedy}")
    earliest = min((term.shift_us for term in bound), default=0)
    if -earliest > _delay_ms(node) * 1000:
        raise PipelineRefused(
            f"Stage {stage.name} sets a watermark of {in_words(_delay_ms(node) / 1000)} on column {column}, but what "
            f"comes before it makes rows up to {in_words(-earliest / 1_000_000)} older than its inputs. Use "
            f'withWatermark({literal(in_sql(column))}, "{in_words(-(earliest // 1_000_000))}") or more.'
        )


def _delay_ms(node: Node) -> int:
    """The delay of a watermark, from the column's metadata."""
    attribute = node.column(identity(node.plan.eventTime()))
    return int(attribute.metadata().getLong(EVENT_TIME_MARK))


def _check_on_time(
    stage: Stage, operators: Sequence[Node], watermarks: Sequence[Watermark], bounds: Bounds, copies: frozenset[int]
) -> None:
    """Refuse an operator that would drop rows in time, because a watermark has already passed them."""
    delays = {each.reads: each.delay_ms * 1000 for each in watermarks}
    for operator in operators:
        shift = bounds.shift_us(operator)
        if shift is None or state_of(operator) == "limit":
            continue
        watched = [(child, _watched(operator, child)) for child in operator.children]
        copied = [(child, [each for each in child.ids if each in copies]) for child in operator.children]
        for below, wanted in [(child, each) for child, found in (*watched, *copied) for each in found]:
            bound = bounds.of(below, wanted)
            name = str(below.column(wanted).name())
            reason, remedy = "", ""
            if isinstance(bound, Unbounded):
                reason, remedy = bound.reason, bound.remedy
                if wanted in copies:
                    time = literal(f"{in_sql(name)} + INTERVAL 0 SECONDS")
                    remedy = (
                        f"Spark's optimiser finds that {name} is an event time with a watermark. To be judged by none, "
                        f"compute it before the operator, .withColumn({literal(name)}, F.expr({time}))."
                    )
            elif any(term.shift_us < shift for term in bound if term.reads is None):
                reason = "an operator before it emits rows later than its watermark allows for"
            elif any(term.shift_us < shift - delays.get(term.reads, 0) for term in bound if term.reads is not None):
                reason = "its rows may be older than the input's event time by more than the withWatermark says"
            if reason:
                raise PipelineRefused(
                    f"Stage {stage.name}: the {described(operator)} would drop rows that are not late, judged by "
                    f"column {name}: {reason}. {remedy or SPLIT}"
                )


def _check_timers(stage: Stage, operators: Sequence[Node], bounds: Bounds, advice: Advice) -> None:
    """Spark demands a watermark for the timeouts of applyInPandasWithState, but not for the timers of its successor."""
    for operator in operators:
        has_timers = operator.kind.startswith("TransformWithState") and "EventTime" in str(operator.plan.timeMode())
        if has_timers and bounds.shift_us(operator) is None:
            raise PipelineRefused(
                f"Stage {stage.name}: no watermark reaches the {described(operator)}, so its timers would never fire, "
                f'not even in a drain. {advice.timed(operator.child)} Or, if it has no timers, use timeMode "None".'
            )


def _check_one_event_time(stage: Stage, operator: Node) -> None:
    """Spark uses one column to decide whether a row is late. If there are two, the query fails at its start."""
    for child in operator.children:
        times = _event_times(operator, child)
        if len(times) > 1:
            names = " and ".join(str(child.column(wanted).name()) for wanted in times)
            raise PipelineRefused(
                f"Stage {stage.name}: the {described(operator)} gets {names}, all with a watermark, so its event time "
                "is ambiguous. Drop all but one of them before it."
            )


def _event_times(operator: Node, child: Node) -> list[int]:
    """The columns of a child by which an operator may decide whether a row is late."""
    times = list(dict.fromkeys(marked(child)))  # transformWithState gets its keys twice
    if operator.kind != "Aggregate":
        return times
    grouping = items(operator.plan.groupingExpressions())  # with sessions, which are no keys of the state
    keys = {identity(key) for key in grouping if kind_of(key) == "AttributeReference"}
    return [wanted for wanted in times if wanted in keys]  # not what is computed of a time


def _copies(stage: Stage, root: Node, optimised: Node) -> frozenset[int]:
    """The columns that the optimiser finds to be the event time itself, as a cast to its own type. So they are event
    times as well. Refuse an operator that gets several event times by them."""
    known, found = {wanted for node in root.walk() for wanted in marked(node)}, set[int]()
    for operator in optimised.walk():
        for child in operator.children if state_of(operator) and operator.kind != "GlobalLimit" else ():
            times = _event_times(operator, child)
            copies = [wanted for wanted in times if wanted not in known]
            if copies and len(times) > 1 and operator.kind == "Aggregate":
                raise PipelineRefused(
                    f"Stage {stage.name}: Spark's optimiser finds that two keys of the {described(operator)} are event "
                    "times, and the query would fail. Group by one of them, and by the other as a text, "
                    '.cast("string").'
                )
            if copies and len(times) > 1:
                copy = str(child.column(copies[0]).name())
                time = next(str(child.column(wanted).name()) for wanted in times if wanted != copies[0])
                as_computed = literal(f"{in_sql(time)} + INTERVAL 0 SECONDS")
                raise PipelineRefused(
                    f"Stage {stage.name}: Spark's optimiser finds that {copy} is the event time {time} itself, and the "
                    f"query would fail since the {described(operator)} gets two event times. Drop one of them before "
                    f"it; or compute the copy, .withColumn({literal(copy)}, F.expr({as_computed}))."
                )
            found.update(copies)
    return frozenset(found)


def _watched(operator: Node, below: Node) -> list[int]:
    """The columns by which an operator decides whether a row is late: those that Spark has marked.

    In a join by event time, the key on one side is a time because the key on the other side is marked.
    """
    found = marked(below)
    if operator.is_join_of_streams:
        side = operator.children.index(below)
        for pair in _compared_columns(operator):
            own, other = pair[side], pair[1 - side]
            if is_marked(other) and identity(own) not in found:
                found.append(identity(own))
    return [wanted for wanted in found if wanted in below.ids]


def _compared_columns(join: Node) -> list[tuple[Any, Any]]:
    return [pair for pair in equalities(join) if all(kind_of(each) == "AttributeReference" for each in pair)]


def _frontier(
    stage: Stage,
    frame: DataFrame,
    root: Node,
    inputs: Sequence[Input],
    output: Output,
    bounds: Bounds,
    watermarks: Sequence[Watermark],
    operators: Sequence[Node],
) -> tuple[Term, ...]:
    """The frontier of the stage's records is the minimum of these. It must hold for the output's event time."""
    if output.event_time is None:
        return ()
    column = next((each for each in root.output if str(each.name()) == output.event_time), None)
    if column is None:
        raise PipelineRefused(
            f"streams.{output.stream}.event_time is {output.event_time!r}, but stage {stage.name} writes the columns "
            f"{', '.join(frame.columns)}. Name one of them."
        )
    remedy = f"Make it one: to_timestamp({output.event_time})"
    check_event_time(frame.schema, output.event_time, output.stream, remedy)
    bound = bounds.of(root, identity(column))
    if not isinstance(bound, Unbounded):
        return tuple(sorted(bound, key=lambda term: (term.reads is None, term.reads or 0, term.shift_us)))
    if output.frontier_lag_s is None:
        raise PipelineRefused(
            f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but how old its "
            f"later rows can be is unknown: {bound.reason}. {bound.remedy or USE_MARKED} Or declare under "
            f"[streams.{output.stream}] how far rows can lag behind the inputs: "
            f'frontier_lag = "1 hour".'
        )
    held = {each.reads for each in watermarks}  # these hold the watermark back
    known = [Term(number) for number, each in enumerate(inputs) if each.event_time is not None and number not in held]
    if operators and watermarks:
        return (*known, Term(None))
    known += [Term(number) for number in sorted(held)]
    if not known:
        raise PipelineRefused(
            f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but none of its "
            f"inputs has an event time, so it would never advance. {declare_event_time(inputs)}"
        )
    return tuple(known)


def check_event_time(schema: StructType, column: str, stream: str, remedy: str) -> None:
    """Refuse an event time that is not of a time type."""
    kind = schema[column].dataType
    if not is_time(kind):
        raise PipelineRefused(no_time(stream, column, kind.simpleString(), remedy))

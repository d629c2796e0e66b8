"""Analyse one stage before it runs: its columns, its state, its event time; or refuse it.

The stage's function is called with empty streams of the right columns, and the resulting plan is examined. It is called
twice, to see whether the plan differs from start to start. What is found are facts (`facts`), which `checks` judge.
The rule: an accepted stage emits what one Spark batch over the same rows would, for any number of partitions and tasks.
Other stages are refused; the message names the stage, the operator and what to write instead.
Not detected: a Python function that is declared deterministic and is not; a value that differs only between days,
processes or machines, such as `date.today()`; other rows of a table that the function creates.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.util import PythonEvalType

from samza_azure.application import Stage
from samza_azure.pipeline.analysed import Analysis
from samza_azure.spark.jvm.call_sites import CallSites
from samza_azure.spark.jvm.catalyst import Node, all_of, has_pattern, is_marked, items, kind_of, sources_of
from samza_azure.spark.pipeline.advice import Advice
from samza_azure.spark.pipeline.bounds import Bounds, Input
from samza_azure.spark.pipeline.calling import called
from samza_azure.spark.pipeline.checks import examine
from samza_azure.spark.pipeline.describe import operator_facts, stage_facts
from samza_azure.spark.pipeline.event_time import Output
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.fingerprint import fingerprints_of, held_by
from samza_azure.spark.pipeline.operators import (
    FIRE_AFTER_ROWS,
    MAKING,
    described,
    goes_by_clock,
    has_sessions,
    keys_of,
    state_of,
)
from samza_azure.spark.pipeline.placement import Placement
from samza_azure.spark.pipeline.refusals import Refusal, Refusals
from samza_azure.spark.pipeline.schema import columns_of

#: The functions of rows that get them in chunks, as series of pandas or arrays of Arrow.
OF_CHUNKS = frozenset(
    {
        PythonEvalType.SQL_SCALAR_PANDAS_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
    }
)
#: Aggregates whose results depend on the order of rows, and how Spark prints them before it replaces some.
BY_ORDER = frozenset({"CollectList", "CollectSet", "First", "Last", "ListAgg"})
IN_ORDER = re.compile(r"\b(?:any_value|array_agg|collect_list|collect_set|first|last|listagg|string_agg)(?:_value)?\(")
#: What is the same for a list in any order.
OF_ANY_ORDER = frozenset({"ArrayContains", "ArrayMax", "ArrayMin", "ArraySort", "Size", "SortArray"})


@dataclass(frozen=True, slots=True)
class QueryAnalysis(Analysis):
    """One stage as Spark understands it."""

    placement: Placement = field(default_factory=Placement)


def analyse(
    spark: SparkSession, stage: Stage, inputs: Sequence[Input], output: Output, tasks: int | None, directory: Path
) -> QueryAnalysis:
    """Call the stage's function and examine its plan. `tasks` is the number that the user asks for."""
    directory = directory / stage.name
    places = CallSites(spark)
    with places.noted():
        frame, done = called(spark, stage, inputs, directory)
    facts = Facts(spark, stage, inputs, output, tasks, directory, frame, done)
    root, operators, bounds = facts.root, facts.operators, facts.bounds
    refusals = Refusals(stage, places)
    for node in root.walk():
        if node.is_streaming and not node.children and node.reads is None:
            said = (
                f"Stage {stage.name} reads a stream of its own. Read only the DataFrames that the function gets: "
                "name the stream in @app.stage and in the job file."
            )
            refusals.add(Refusal(said, node.plan))
    refusals.end(facts.schema)
    examine(facts, refusals)
    refusals.end(facts.schema)
    delays = [str(each.delay_ms) for each in facts.watermarks]
    held = held_by(operators, facts.optimised, facts.origins)
    fingerprint = tuple({**each, "delays": delays, "holds": held} for each in fingerprints_of(operators, facts.origins))
    sources = sources_of(spark, facts.plan, directory)
    by_stream = {inputs[each.reads].stream: each.delay_ms for each in facts.watermarks}
    return QueryAnalysis(
        columns=columns_of(facts.schema),
        sources=sources,
        watermarks=facts.watermarks,
        frontier=facts.frontier,
        stateful=tuple(state_of(node) or "" for node in operators),
        state=tuple(described(node) for node in operators),
        fingerprint=fingerprint,
        facts=stage_facts(
            [operator_facts(node, bounds) for node in operators],
            by_stream,
            fingerprint,
            [f"{inputs[reads].stream} (input {reads + 1})" for reads in sources],
        ),
        placement=facts.placement,
        not_null=facts.nulls.proven(root),
        relies_on=facts.nulls.relies_on,
        puts_out_changes=facts.puts_out_changes,
        needs_rocksdb=any(node.kind.startswith("TransformWithState") for node in operators),
        fires_after_rows=bool(operators) and all(node.kind in FIRE_AFTER_ROWS for node in operators),
        by_clock=any(map(goes_by_clock, operators)),
        warnings=(
            *_warnings(facts),
            *_warned_of_order(facts, places),
            *_kept_for_ever(stage, operators, bounds, facts.advice),
            *facts.placement.warnings,
        ),
    )


def _warnings(facts: Facts) -> tuple[str, ...]:
    stage, root, found = facts.stage, facts.root, []
    if facts.drifts and not facts.is_random:
        found.append("has a value in it that differs from start to start, as datetime.now() does")
    if facts.is_random or any(node.kind == "Sample" for node in root.walk()):
        found.append("is not deterministic (rand, uuid, a non-deterministic function)")
    times = ("current_timestamp(", "current_date(", "current_time(", "localtimestamp(", "now(")
    if any(word in facts.text for word in times):
        found.append("uses the time at which a batch runs")
    if any(node.kind == "GlobalLimit" and node.is_streaming for node in root.walk()):
        found.append("limits its rows, and takes those that come first")
    warnings = [
        f"Stage {stage.name} {each}: a second run over the same input may give another output." for each in found
    ]
    if any(map(goes_by_clock, root.walk())):
        warnings.append(
            f"Stage {stage.name} goes by processing time: its rows depend on when others come, so a second run may "
            "give another output. A timer fires in the first batch after its time, and a batch takes new rows, or the "
            "end of a drain."
        )
    used = ["mapInPandas or mapInArrow"] * any(node.kind in MAKING for node in root.walk())
    functions = [node for node in root.walk() if has_pattern(facts.spark, node.plan, "PYTHON_UDF")]
    used += ["pandas_udf or arrow_udf"] * any(map(_gets_chunks, functions))
    warnings += [
        f"Stage {stage.name} uses {each}: its function gets the rows in chunks that differ from run to run, so it must "
        "process each row independently."
        for each in used
    ]
    return tuple(warnings)


def _warned_of_order(facts: Facts, places: CallSites) -> Iterator[str]:
    """Warn of aggregates whose results depend on the order of rows."""
    if not IN_ORDER.search(facts.text):  # most stages have none, and it would take some calls of Java for each column
        return
    aggregations = [node for node in facts.root.walk() if node.kind == "Aggregate" and node.is_streaming]
    found = {node: [name for each in node.made for name in _by_order(each)] for node in aggregations}
    if names := dict.fromkeys(name for each in found.values() for name in each):
        lines = dict.fromkeys(places.of(node.plan) for node, each in found.items() if each)
        yield (
            f"Stage {facts.stage.name} uses {' and '.join(names)}, whose result depends on the order of rows: a second "
            "run over the same input may give another output. For one value take F.min_by or F.max_by of a time "
            "without ties; sort a list where it is collected, with F.array_sort."
        ) + "".join(f"\n    {line}" for line in lines if line)


def _by_order(expression: Any) -> Iterator[str]:
    """The names of such aggregates in an expression."""
    kind = kind_of(expression)
    if kind in BY_ORDER and not (kind == "ListAgg" and expression.orderExpressions().size()):
        yield str(expression.prettyName())
    elif kind not in OF_ANY_ORDER:
        for child in items(expression.children()):
            yield from _by_order(child)


def _gets_chunks(node: Node) -> bool:
    """Whether it has a function of rows that gets many of them at once, as columns."""
    functions = (found for each in items(node.plan.expressions()) for found in all_of(each, "PythonUDF"))
    return any(int(each.evalType()) in OF_CHUNKS for each in functions)


def _kept_for_ever(stage: Stage, operators: Sequence[Node], bounds: Bounds, advice: Advice) -> Iterator[str]:
    """Warn of state that only grows. It is accepted: the keys may be few, and the rows end some day."""
    for operator in operators:
        for kept, remedy in _what_is_kept(operator, bounds, advice):
            yield (
                f"Stage {stage.name}: the {described(operator)} keeps {kept} forever, so its state grows without end. "
                f"{remedy}".rstrip()
            )


def _what_is_kept(operator: Node, bounds: Bounds, advice: Advice) -> Iterator[tuple[str, str]]:
    """What an operator never removes from its state, and how it would."""
    if operator.is_join_of_streams:
        yield from ((f"the rows of {streams}", remedy) for streams, remedy in bounds.kept_for_ever(operator))
        return
    keys = [key for (key,) in keys_of(operator)]
    if has_sessions(operator):
        return  # they end with the watermark, without which Spark refuses them
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

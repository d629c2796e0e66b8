"""Low-level tasks as stages: analysed without a plan.

A handler is a black box: no plan shows which columns it emits or how old its rows can be. The job file must declare
both; if it does not, the start is refused with the line to add.
"""

from collections.abc import Sequence

from samza_azure.application import Stage
from samza_azure.config import Stream
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.pipeline.analysed import AnalysedStream, Analysis, Declare, Term
from samza_azure.pipeline.names import check_event_time, check_key, declare_event_time, is_time, no_time_among
from samza_azure.stream_io.columns import Columns, no_columns


def analyse_handler(
    stage: Stage, inputs: Sequence[tuple[str, AnalysedStream]], declared: Stream, declare: Declare
) -> Analysis:
    """Analyse a low-level task, which has no plan: one source per input, no state in Spark, no watermark."""
    columns, not_null, mistakes = declared_columns(stage, declared, declare)
    frontier: tuple[Term, ...] = ()
    try:
        frontier = _frontier(stage, inputs, declared, columns)
    except PipelineRefused as error:
        mistakes.append((str(error), ""))
    if mistakes:
        raise Mistakes(mistakes)
    return Analysis(
        columns=columns,
        fingerprint=({"handler": True},),
        facts={"runs": "a handler"},
        sources=tuple(range(len(inputs))),
        frontier=frontier,
        not_null=not_null,
    )


def declared_columns(
    stage: Stage, declared: Stream, declare: Declare
) -> tuple[Columns, frozenset[str], list[tuple[str, str]]]:
    """The columns that a low-level task writes, those that no row may lack, and what is wrong with its keys."""
    ddl, mistakes = declared.schema, list[tuple[str, str]]()
    if ddl is None:
        columns, not_null = no_columns(), frozenset[str]()
    else:
        columns, not_null = declare(stage.output, ddl, declared.event_time)
    named = f"streams.{stage.output}.schema has the columns {', '.join(columns.names) or 'none'}"
    for key in stage.partition_by:
        try:
            check_key(columns.types, key, f"Task {stage.name} has partition_by {key!r}", named)
        except PipelineRefused as error:
            mistakes.append((str(error), ""))
    return columns, not_null, mistakes


def _frontier(
    stage: Stage, inputs: Sequence[tuple[str, AnalysedStream]], declared: Stream, columns: Columns
) -> tuple[Term, ...]:
    """The records' frontier is the minimum of these: the frontiers of all inputs with an event time."""
    column, output = declared.event_time, stage.output
    if column is None:
        return ()
    if column not in columns.names:
        if not any(map(is_time, columns.types.values())):
            raise PipelineRefused(no_time_among(output, column, columns.names))
        raise PipelineRefused(
            f"streams.{output}.event_time is {column!r}, but its schema has the columns {', '.join(columns.names)}. "
            "Name one of them."
        )
    check_event_time(columns.types, column, output, f'Write "{column} timestamp" in streams.{output}.schema')
    if declared.frontier_lag_s is None:
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but how old its later rows can be "
            f"is unknown: a handler may emit any row. Declare under [streams.{output}] how far rows can lag behind the "
            'inputs: frontier_lag = "1 hour".'
        )
    terms = tuple(Term(number) for number, (_, each) in enumerate(inputs) if each.event_time is not None)
    if not terms:
        types = [(name, each.columns.types) for name, each in inputs]
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but none of its inputs has an "
            f"event time, so it would never advance. {declare_event_time(types)}"
        )
    return terms

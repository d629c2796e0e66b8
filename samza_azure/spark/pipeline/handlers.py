"""Low-level tasks as stages: check them before they run, and analyse them without a plan.

A handler is a black box: no plan shows which columns it emits or how old its rows can be. The job file must declare
both; if it does not, the start is refused with the line to add.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.config import Stream
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.advice import declare_event_time
from samza_azure.spark.pipeline.analysis import Analysis
from samza_azure.spark.pipeline.bounds import Input, Term
from samza_azure.spark.pipeline.destination import check_key
from samza_azure.spark.pipeline.event_time import check_event_time
from samza_azure.spark.pipeline.schema import check_columns, parse_schema


def analyse_handler(spark: SparkSession, stage: Stage, inputs: Sequence[Input], declared: Stream) -> Analysis:
    """Analyse a low-level task, which has no plan: one source per input, no state in Spark, no watermark."""
    schema = StructType([]) if declared.schema is None else parse_schema(spark, declared.schema, stage.output)
    check_columns(schema, f"streams.{stage.output}.schema")
    for key in stage.partition_by:
        columns = f"streams.{stage.output}.schema has the columns {', '.join(schema.names) or 'none'}"
        check_key(schema, key, f"Task {stage.name} has partition_by {key!r}", columns)
    return Analysis(
        schema=schema,
        fingerprint=({"handler": True},),
        facts={"runs": "a handler"},
        sources=tuple(range(len(inputs))),
        frontier=_frontier(stage, inputs, declared, schema),
    )


def _frontier(stage: Stage, inputs: Sequence[Input], declared: Stream, schema: StructType) -> tuple[Term, ...]:
    """The records' frontier is the minimum of these: the frontiers of all inputs with an event time."""
    column, output = declared.event_time, stage.output
    if column is None:
        return ()
    if column not in schema.names:
        raise PipelineRefused(
            f"streams.{output}.event_time is {column!r}, but its schema has the columns {', '.join(schema.names)}. "
            "Name one of them."
        )
    check_event_time(schema, column, output, f'Write "{column} timestamp" in streams.{output}.schema')
    if declared.frontier_lag_s is None:
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but how old its later rows can be "
            f"is unknown: a handler may emit any row. Declare under [streams.{output}] how far rows can lag behind the "
            'inputs: frontier_lag = "1 hour".'
        )
    terms = tuple(Term(number) for number, each in enumerate(inputs) if each.event_time is not None)
    if not terms:
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but none of its inputs has an "
            f"event time, so it would never advance. {declare_event_time(inputs)}"
        )
    return terms

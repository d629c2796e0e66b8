"""Low-level tasks as stages: what is wrong with one before it runs, and what is known of it without a plan.

A handler is a black box: no plan says which columns it puts out, and how old a row of it can be. Both stand in the job
file, and where they do not, the start says which line to add.
"""

import inspect
from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from samza_azure.application import Stage, check_methods
from samza_azure.config import Config, Stream
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.analysis import Analysis, Input, check_event_time
from samza_azure.spark.pipeline.bounds import Term
from samza_azure.spark.pipeline.destination import check_key
from samza_azure.spark.pipeline.placement import Placement
from samza_azure.spark.pipeline.schema import check_columns, parse_schema


def at_once(stage: Stage, config: Config) -> int:
    """How many messages may be in flight in a task of this stage."""
    return stage.max_concurrency or config.task.max_concurrency


def handler_mistakes(stage: Stage, config: Config) -> Iterator[str]:
    """What is wrong with a handler and is known without Spark."""
    try:
        inspect.signature(stage.function).bind()
    except TypeError:
        yield (
            f"Each task of {stage.name} makes its handler by {stage.name}(), without arguments, and it needs some. "
            f"Decorate a function that returns it: @app.task({', '.join(map(repr, stage.inputs))}) "
            "def name(): return …"
        )
    except ValueError:
        pass  # a callable without a signature
    if inspect.isclass(stage.function):
        try:
            check_methods(stage.function, stage.name, at_once(stage, config))
        except PipelineRefused as error:
            yield str(error)
    declared = config.streams.get(stage.output)
    if stage.output != stage.name and (declared is None or declared.schema is None):
        yield (
            f"Task {stage.name} writes stream {stage.output!r}, and no plan says what is in it. "
            f'Add: [streams.{stage.output}] with schema = "…", like "id string, amount double".'
        )


def analyse_handler(spark: SparkSession, stage: Stage, inputs: Sequence[Input], declared: Stream) -> Analysis:
    """A low-level task as a stage without a plan: one source for each input, no state of Spark's, no watermark."""
    schema = StructType([]) if declared.schema is None else parse_schema(spark, declared.schema, stage.output)
    check_columns(schema, f"streams.{stage.output}.schema")
    for key in stage.partition_by:
        columns = f"streams.{stage.output}.schema has the columns {', '.join(schema.names) or 'none'}"
        check_key(schema, key, f"Task {stage.name} has partition_by {key!r}", columns)
    return Analysis(
        schema=schema,
        sources=len(inputs),
        watermarks=(),
        frontier=_frontier(stage, inputs, declared, schema),
        stateful=(),
        state=(),
        fingerprint=({"handler": True},),
        facts={"runs": "a handler"},
        placement=Placement({}, ()),
        puts_out_changes=False,
        needs_rocksdb=False,
        fires_after_rows=False,
        warnings=(),
    )


def _frontier(stage: Stage, inputs: Sequence[Input], declared: Stream, schema: StructType) -> tuple[Term, ...]:
    """What the frontier of the records is the least of: all inputs with an event time, less the declared lag."""
    column, output = declared.event_time, stage.output
    if column is None:
        return ()
    if column not in schema.names:
        raise PipelineRefused(
            f"streams.{output}.event_time is {column!r}, but its schema has the columns {', '.join(schema.names)}. "
            "Name one of them."
        )
    check_event_time(schema, column, f"streams.{output}.event_time")
    if declared.frontier_lag_s is None:
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but nothing says how old its later "
            f"rows can be: a handler may put out any row. Say under [streams.{output}] how much older than the "
            'progress of the inputs rows can be: frontier_lag = "1 hour".'
        )
    terms = tuple(Term(number) for number, each in enumerate(inputs) if each.event_time is not None)
    if not terms:
        raise PipelineRefused(
            f"Task {stage.name} writes {column} as event time of stream {output!r}, but none of its inputs has an "
            f"event time, so it would stand still. Add to the job file, under [streams.{inputs[0].stream}]: "
            'event_time = "…".'
        )
    return terms

"""The output's event time is one of the columns, and it is known how old its later rows can be."""

from collections.abc import Iterator

from samza_azure.pipeline.names import check_event_time, is_time
from samza_azure.spark.jvm.catalyst import literal
from samza_azure.spark.pipeline.advice import event_time_of
from samza_azure.spark.pipeline.bounds import Unbounded
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal
from samza_azure.spark.pipeline.schema import types_of

#: The remedy if a column is not an event time.
USE_MARKED = "Use the event time of an input, or window_time(window)."


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse a stage whose records would promise a wrong progress, or none."""
    stage, output, inputs = facts.stage, facts.output, facts.inputs
    if output.event_time is None:
        return
    types = types_of(facts.frame.schema)
    if output.event_time not in facts.root.names:
        times = [name for name, kind in types.items() if is_time(kind)]
        is_input = any(output.event_time in each.schema.names for each in inputs)
        remedy = f"none of which is a time. Write {output.event_time if is_input else 'one'} as well."
        if times:
            remedy = f"of which {' or '.join(times)} can be one. Write event_time = {literal(times[0])}."
        yield Refusal(
            f"streams.{output.stream}.event_time is {output.event_time!r}, but stage {stage.name} writes the columns "
            f"{', '.join(facts.frame.columns)}, {remedy}"
        )
        return
    check_event_time(types, output.event_time, output.stream, f"Make it one: to_timestamp({output.event_time})")
    bound = facts.time_bound
    writes = f"Stage {stage.name} writes {output.event_time} as event time of stream {output.stream!r}, but"
    if isinstance(bound, Unbounded) and output.frontier_lag_s is None:
        yield Refusal(
            f"{writes} how old its later rows can be is unknown: {bound.reason}. {bound.remedy or USE_MARKED} Or "
            f"declare under [streams.{output.stream}] how far rows can lag behind the inputs: "
            f'frontier_lag = "1 hour".'
        )
    elif isinstance(bound, Unbounded) and not facts.frontier:
        yield Refusal(
            f"{writes} none of its inputs has an event time, so it would never advance. {event_time_of(inputs)}"
        )

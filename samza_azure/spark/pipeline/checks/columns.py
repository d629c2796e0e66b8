"""A log can store the output's columns, and returns them unchanged; and the output can be partitioned by its keys."""

from collections.abc import Iterator

from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.names import check_key
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.refusals import Refusal
from samza_azure.spark.pipeline.schema import not_carried, types_of, wrong_columns


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse others."""
    where, schema = f"Stage {facts.stage.name}", facts.schema
    yield from map(Refusal, [*wrong_columns(facts.frame.schema, where)] or not_carried(schema, where))
    for key in facts.stage.partition_by:
        try:
            columns = f"writes the columns {', '.join(schema.names)}"
            check_key(types_of(schema), key, f"{where} has partition_by {key!r}", columns)
        except PipelineRefused as error:
            yield Refusal(str(error))

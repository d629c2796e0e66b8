"""Which partition of its output stream a row goes to, computed inside the plan.

The same numbers as `samza_azure.protocol.partition`, of which this is the form for Spark; a test compares the two.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from samza_azure.application import Stage
from samza_azure.errors import PipelineRefused

#: The column that carries the destination from the plan to the writer. It is not part of the stream.
COLUMN = "__samza_azure_destination"
KEY_TYPES = (StringType, ByteType, ShortType, IntegerType, LongType, BooleanType, DateType, BinaryType)


def check_keys(stage: Stage, schema: StructType) -> None:
    """Refuse keys that the stage does not write, or whose type has no canonical bytes."""
    for key in stage.partition_by:
        if key not in schema.names:
            raise PipelineRefused(
                f"Stage {stage.name} has partition_by {key!r}, but writes the columns {', '.join(schema.names)}. "
                "Name one of them."
            )
        kind = schema[key].dataType
        if not isinstance(kind, KEY_TYPES):
            raise PipelineRefused(
                f"Stage {stage.name} has partition_by {key!r}, a column of type {kind.simpleString()}. "
                "Use a string, integer, boolean, date or binary column."
            )


def with_destination(frame: DataFrame, keys: Sequence[str], partitions: int | None) -> DataFrame:
    """The same rows with their partition. Without keys, or with one partition, there is nothing to compute."""
    if not keys or partitions is None or partitions == 1:
        return frame
    return frame.withColumn(COLUMN, destination(frame.schema, keys, partitions))


def destination(schema: StructType, keys: Sequence[str], partitions: int) -> Column:
    """The partition of a row, from 0. Null goes to 0."""
    columns = [_canonical(F.col(f"`{key}`"), schema[key].dataType) for key in keys]
    data = columns[0] if len(columns) == 1 else reduce(F.concat, [_framed(column) for column in columns])
    return F.coalesce(F.pmod(F.crc32(data), F.lit(partitions)), F.lit(0)).cast("int")


def _canonical(column: Column, kind: DataType) -> Column:
    return column if isinstance(kind, BinaryType) else column.cast("string").cast("binary")


def _framed(data: Column) -> Column:
    """Its length, a colon and the bytes; a null is a tilde."""
    length = F.concat(F.octet_length(data).cast("string"), F.lit(":")).cast("binary")
    return F.coalesce(F.concat(length, data), F.lit("~").cast("binary"))

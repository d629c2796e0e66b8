"""Compute inside the plan which partition of the output stream a row goes to.

This is `samza_azure.logs.partition` for Spark, with the same results; a test compares the two.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType

from samza_azure.stream_io.arrow import DESTINATION

#: The integers' names in SQL; the narrower first.
INTEGERS = ("tinyint", "smallint", "int", "bigint")
#: Equal values of types of one family have the same canonical bytes, and so the same partition.
FAMILIES = {each: each for each in ("string", "boolean", "date", "binary")} | dict.fromkeys(INTEGERS, "integer")


def with_destination(frame: DataFrame, by: Sequence[Column], partitions: int, *, like_keys: bool = True) -> DataFrame:
    """The same rows with their partition, from 0: by their canonical bytes, or by Spark's own hash."""
    if not like_keys:
        return frame.withColumn(DESTINATION, F.pmod(F.hash(*by), F.lit(partitions)).cast("int"))
    types = frame.select(*(each.alias(f"key{number}") for number, each in enumerate(by))).schema.fields
    return frame.withColumn(DESTINATION, destination(by, [field.dataType for field in types], partitions))


def destination(by: Sequence[Column], types: Sequence[DataType], partitions: int) -> Column:
    """The partition of a row, from 0. Null goes to 0."""
    columns = [_canonical(column, kind) for column, kind in zip(by, types, strict=True)]
    data = columns[0] if len(columns) == 1 else reduce(F.concat, [_framed(column) for column in columns])
    return F.coalesce(F.pmod(F.crc32(data), F.lit(partitions)), F.lit(0)).cast("int")


def _canonical(column: Column, kind: DataType) -> Column:
    return column if isinstance(kind, BinaryType) else column.cast("string").cast("binary")


def _framed(data: Column) -> Column:
    """The column's length, a colon and its bytes; null becomes a tilde."""
    length = F.concat(F.octet_length(data).cast("string"), F.lit(":")).cast("binary")
    return F.coalesce(F.concat(length, data), F.lit("~").cast("binary"))

"""Columns as Spark's own parser reads them, which pyspark shows through a session that is active only."""

from functools import cache
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_json_string

from samza_azure.spark.jvm.session import java_class

STRUCT = "org.apache.spark.sql.types.StructType"


def parsed_ddl(spark: SparkSession, ddl: str) -> StructType:
    """The columns that a text such as `carrier string, ts timestamp` declares. Raise Spark's error if it is none."""
    return _parsed(java_class(spark, STRUCT), ddl)


@cache  # a stream's columns are asked for twice and more
def _parsed(struct: Any, ddl: str) -> StructType:
    parsed = _parse_datatype_json_string(struct.fromDDL(ddl).json())
    assert isinstance(parsed, StructType)
    return parsed

"""Which columns a stream may have, and how its rows are laid out in Arrow.

All columns of a stream are nullable for Spark and Arrow, whatever the job file says and Spark infers about the stage
that writes it. It may be something else for a later version, and the layout of the log's rows, and of the state of
operators, must not change with it. Which columns have no nulls is known beside the schema (`nulls`).
"""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    YearMonthIntervalType,
)

from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.types import parsed_ddl
from samza_azure.stream_io.columns import Columns

#: Keyed by Spark's name of the type, since some of these types have no public class in pyspark.
_REFUSED = {
    "char": "a CHAR, which no DataFrame can have; write it as a string",
    "varchar": "a VARCHAR, which no DataFrame can have; write it as a string",
    "time": "a TIME; write it as a string or as an integer of seconds",
    "geometry": "a geometry; write it as binary (ST_AsBinary)",
    "geography": "a geography; write it as binary (ST_AsBinary)",
}


def parse_schema(spark: SparkSession, ddl: str, stream: str) -> StructType:
    """The columns of a stream as the job file declares them, all of them nullable."""
    return nullable(_declared(spark, ddl, stream))


def not_null(spark: SparkSession, ddl: str, stream: str, event_time: str | None) -> frozenset[str]:
    """The columns that no row may lack: those that are NOT NULL, and the event time."""
    fields = _declared(spark, ddl, stream).fields
    return frozenset(each.name for each in fields if each.name == event_time or not each.nullable)


def _declared(spark: SparkSession, ddl: str, stream: str) -> StructType:
    try:
        return parsed_ddl(spark, ddl)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise PipelineRefused(
            f"streams.{stream}.schema cannot be read: {reason}. "
            'Write it like "carrier string, ts timestamp, delay double".'
        ) from error


def nullable(schema: StructType) -> StructType:
    """The same schema, with every column and every element allowed to be null, and without metadata and comments."""
    return StructType([StructField(each.name, _nullable(each.dataType)) for each in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """How Spark and the logs lay out these columns."""
    return to_arrow_schema(schema, timezone="UTC")


def types_of(schema: StructType) -> dict[str, str]:
    """By column: Spark's name of the type."""
    return {column.name: column.dataType.simpleString() for column in schema.fields}


def columns_of(schema: StructType) -> Columns:
    """These columns, for all that needs no Spark."""
    return Columns(arrow_schema(schema), schema.toDDL(), types_of(schema))


def wrong_columns(schema: StructType, where: str) -> Iterator[str]:
    """Say which columns a log cannot store and return unchanged, and what to write instead."""
    counted = Counter(name.lower() for name in schema.names)
    for name, times in counted.items():
        if times > 1:
            yield f"{where} has {times} columns called {name}. Rename or drop one with select()."
    for column in schema.fields:
        for path, inside in _inside(column.name, column.dataType):
            if reason := _why_refused(inside):
                yield f"{where}: column {path} is {reason}."


def not_carried(schema: StructType, where: str, written: str = '.cast("{}")') -> Iterator[str]:
    """Say which columns would have another type when they are read from a log. All of the schema may be null.

    `written` is how a type is given to a column there.
    """
    for column in schema.fields:
        kind = column.dataType.simpleString()
        try:
            (carried,) = from_arrow_schema(arrow_schema(StructType([column])), prefer_timestamp_ntz=True).fields
        except (PySparkException, ValueError) as error:  # a map() without entries has keys of no type
            yield (
                f"{where}: column {column.name} is {kind}, which Arrow cannot carry ({error}). Give it another type, "
                f"such as {written.format('map<string,string>')}."
            )
            continue
        if carried.dataType != column.dataType:
            other = carried.dataType.simpleString()
            yield (
                f"{where}: column {column.name} is {kind}, of which Arrow makes {other}. Give it that type: "
                f"{written.format(other)}."
            )


def _inside(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    yield path, kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _inside(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _inside(f"{path}.element", kind.elementType)
    elif isinstance(kind, MapType):
        yield from _inside(f"{path}.key", kind.keyType)
        yield from _inside(f"{path}.value", kind.valueType)


def _why_refused(kind: DataType) -> str | None:
    if isinstance(kind, YearMonthIntervalType):
        return "a year-month interval, which Arrow cannot carry; write it as a number of months"
    if isinstance(kind, CalendarIntervalType):
        return "a calendar interval, which Arrow cannot carry; write it as months, days and microseconds"
    if isinstance(kind, StructType) and len(set(kind.names)) < len(kind.names):
        twice = next(name for name, times in Counter(kind.names).items() if times > 1)
        return f"a struct with two fields called {twice}; rename one of them with alias"
    if isinstance(kind, UserDefinedType):
        return "of a user-defined type; write its underlying struct"
    if isinstance(kind, StringType) and "collate" in kind.simpleString():
        return "a text with a collation, which Arrow does not carry; write it as a string, with cast"
    return _REFUSED.get(kind.simpleString().partition("(")[0])

"""The columns of a stream, without Spark: how their rows are laid out, and what Spark calls their types.

All columns are nullable, whatever the job file says: the layout of a log's rows must not change with that. Which
columns have no nulls is known beside them. Plans and fingerprints hold `ddl`, so it is Spark's own text, letter by
letter; a test compares the two.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.stream_io import ddl as parser

_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.null(): "void",
}
#: A name that needs no backticks in Spark's DDL.
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a stream."""

    arrow: pa.Schema
    ddl: str
    types: Mapping[str, str]  # by name: what Spark calls the type

    @classmethod
    def declared(cls, ddl: str) -> "Columns":
        """The columns that a job file declares, all of them nullable. Raise ConfigError if it declares none."""
        schema = pa.schema([_nullable(field) for field in parser.arrow_schema(ddl)])
        text = ",".join(f"{quoted(field.name)} {_in_ddl(field.type)}" for field in schema)
        return cls(schema, text, {field.name: type_name(field.type) for field in schema})

    @property
    def names(self) -> list[str]:
        """The names, in their order."""
        found: list[str] = self.arrow.names
        return found


def strict_schema(ddl: str | None, event_time: str | None) -> pa.Schema:
    """The columns that a job file declares, with what no row may lack: NOT NULL at any depth, and the event time."""
    fields = parser.arrow_schema(ddl) if ddl else ()
    return pa.schema([each.with_nullable(each.nullable and each.name != event_time) for each in fields])


def no_columns() -> Columns:
    """Those of a stream without rows."""
    return Columns(pa.schema([]), "", {})


def type_name(kind: pa.DataType) -> str:
    """Spark's name of the type, since Arrow may have several layouts for one Spark type."""
    match kind:
        case pa.StructType():
            if any(field.metadata and field.metadata.get(b"variant") == b"true" for field in kind):
                return "variant"
            return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in kind)}>"
        case pa.MapType():
            return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return f"array<{type_name(kind.value_type)}>"
        case pa.TimestampType():
            return "timestamp" if kind.tz is not None else "timestamp_ntz"
        case pa.DurationType():
            return "interval day to second"
        case pa.DictionaryType():
            return type_name(kind.value_type)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind, str(kind))


def laid_out(rows: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Rows of a log in the layout that the reader expects. Raise ConfigError if columns or types differ."""
    if rows.schema.equals(schema):
        return rows
    there, here = ({column.name: type_name(column.type) for column in each} for each in (rows.schema, schema))
    if there != here:
        differences = [
            f"{name} is {there.get(name, 'missing')} in the log, {here.get(name, 'missing')} in the schema"
            for name in {**here, **there}
            if there.get(name) != here.get(name)
        ]
        raise ConfigError(
            f"The rows of stream {stream!r} do not fit its schema: {'; '.join(differences)}. "
            f"Change streams.{stream}.schema to match the log, or write rows of the new schema into another stream."
        )
    return rows.select(schema.names).cast(schema)


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _with_nulls(field.type))


def _with_nulls(kind: pa.DataType) -> pa.DataType:
    """The type as Spark lays it out, and with nulls at any depth."""
    match kind:
        case pa.StructType():
            return pa.struct([_nullable(field) for field in kind])
        case pa.MapType():
            key, value = _with_nulls(kind.key_type), _with_nulls(kind.item_type)
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
        case pa.ListType():
            return pa.list_(pa.field("element", _with_nulls(kind.value_type)))
    return kind


def _in_ddl(kind: pa.DataType) -> str:
    match kind:
        case pa.StructType():
            return f"STRUCT<{', '.join(f'{quoted(field.name)}: {_in_ddl(field.type)}' for field in kind)}>"
        case pa.MapType():
            return f"MAP<{_in_ddl(kind.key_type)}, {_in_ddl(kind.item_type)}>"
        case pa.ListType():
            return f"ARRAY<{_in_ddl(kind.value_type)}>"
    return type_name(kind).upper()


def quoted(name: str) -> str:
    """A name as SQL has it: in backticks unless it is a plain word."""
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"

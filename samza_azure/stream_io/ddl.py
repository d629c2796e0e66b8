"""Parse a stream's schema from the job file, "carrier string, ts timestamp", into an Arrow schema.

It accepts Spark's names of types, without Spark: `produce` and programs that write source streams need no JVM. Types
that a stream cannot hold (intervals of months, TIME, geometry) are refused, as in Spark's half.
"""

import re
from dataclasses import dataclass

import pyarrow as pa

from samza_azure.errors import ConfigError

__all__ = ["arrow_schema"]

_SIMPLE = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[A-Za-z_0-9]+|.)")


def arrow_schema(ddl: str) -> pa.Schema:
    """Parse a schema in Spark's DDL. Raise `ConfigError` where it is invalid."""
    tokens = [token for token in _TOKEN.findall(ddl) if token.strip()]
    parser = _Parser(ddl, tokens)
    fields = parser.fields(end="")
    names = [field.name for field in fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"The schema {ddl!r} names {', '.join(sorted(twice))} twice.")
    return pa.schema(fields)


@dataclass
class _Parser:
    """One pass over the tokens."""

    text: str
    tokens: list[str]
    at: int = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted is not None and token.lower() != wanted):
            found = repr(token) if token else "its end"
            raise ConfigError(f"The schema {self.text!r} has {found} where {wanted or 'a name'} should be.")
        self.at += 1
        return token

    def fields(self, end: str, separator: str = "") -> list[pa.Field]:
        """Names and types up to `end`; in a struct, a colon may separate them."""
        found = []
        while True:
            name = self.take()
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if separator and self.peek() == separator:
                self.take()
            kind = self.type()
            nullable = True
            if self.peek().lower() == "not":
                self.take()
                self.take("null")
                nullable = False
            found.append(pa.field(name, kind, nullable=nullable))
            if self.peek() == end:
                return found
            self.take(",")

    def type(self) -> pa.DataType:
        name = self.take().lower()
        match name:
            case "array":
                self.take("<")
                item = self.type()
                self.take(">")
                return pa.list_(item)
            case "map":
                self.take("<")
                key = self.type()
                self.take(",")
                value = self.type()
                self.take(">")
                return pa.map_(key, value)
            case "struct":
                self.take("<")
                fields = self.fields(end=">", separator=":")
                self.take(">")
                return pa.struct(fields)
            case "decimal" | "dec" | "numeric":
                return pa.decimal128(*self._numbers(10, 0))
            case "varchar" | "char" | "character":
                self._numbers(0, 0)
                return pa.string()
        if name not in _SIMPLE:
            raise ConfigError(
                f"The schema {self.text!r} has the type {name!r}, which a stream cannot hold. "
                f"Types are {', '.join(sorted(_SIMPLE))}, decimal(p, s), array<int>, map<string, int>, struct<a: int>."
            )
        return _SIMPLE[name]

    def _numbers(self, first: int, second: int) -> tuple[int, int]:
        """`(10, 2)`, `(10)` or nothing."""
        if self.peek() != "(":
            return first, second
        self.take()
        numbers = [first, second]
        numbers[0] = int(self.take())
        if self.peek() == ",":
            self.take()
            numbers[1] = int(self.take())
        self.take(")")
        return numbers[0], numbers[1]

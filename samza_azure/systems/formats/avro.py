"""A schema of Avro, and the data that were written with it, as columns of Arrow.

fastavro reads the data, once `avro_bytes` has seen that they are what the specification allows. It is told of no
logical type, and of enums that they are numbers: it rounds decimals, and knows no time before the year 1 or after
9999. What they mean is said to Arrow in its own types, which `fitting` brings into those of the stream, exactly or not
at all.

fastavro has no bounds: a schema that refers to itself ends the process where the data are deep enough, and a list of
values that take no bytes may have any length. Such schemas are refused, and those that are large once each name in
them is replaced by what it stands for.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any, TypeAlias, cast
from uuid import UUID

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import fingerprint, to_parsing_canonical_form

from samza_azure.errors import ConfigError
from samza_azure.foreign import depth, exactly
from samza_azure.systems.formats import avro_bytes
from samza_azure.systems.formats.avro_bytes import Ends

#: The most characters of a schema, and the most types in it, with those that names stand for.
MOST_CHARACTERS, MOST_TYPES = 1 << 20, 10_000
#: How deep types may lie inside each other.
DEEPEST = 50
#: A decimal of more bytes fits no column.
_DECIMAL_BYTES = 40
_EXACTLY = Context(prec=200)

Convert: TypeAlias = Callable[[Any], Any]

_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_ENDS: Mapping[str, Ends] = {
    "null": avro_bytes.of_null,
    "boolean": avro_bytes.of_boolean,
    "int": avro_bytes.of_int,
    "long": avro_bytes.of_long,
    "float": avro_bytes.of_fixed(4),
    "double": avro_bytes.of_fixed(8),
    "bytes": avro_bytes.of_bytes,
    "string": avro_bytes.of_bytes,
}
_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
_LOGICAL = {
    ("int", "date"): pa.date32(),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, None if local else "UTC")
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
        for local in ("", "local-")
    },
}


@dataclass(frozen=True, slots=True)
class Type:
    """A type of a schema, as its values are read."""

    named: str  # for people
    plain: Any  # the type by which fastavro reads it
    arrow: pa.DataType | None  # None: no column takes its values
    ends: Ends  # where a value ends
    convert: Convert | None = None  # from what fastavro reads to what Arrow takes; None: it is the same
    fields: Mapping[str, "Type"] = field(default_factory=dict)  # of a record
    values: "Type | None" = None  # of a map
    is_empty: bool = False  # whether its values take no bytes
    has_empty: bool = False  # whether parts of its values take none, so that a byte may become any number of values
    count: int = 1  # of types, with those inside
    depth: int = 1


class AvroSchema:
    """A schema of whoever writes: a record."""

    def __init__(self, text: str, referred: Sequence[str] = (), *, cuts: bool = False) -> None:
        """`referred` are the texts of schemas whose names it uses, each behind those that it uses itself. `cuts`: times
        lose what is less than a microsecond, instead of being refused.

        Raises:
            ConfigError: it is no schema of a record, or a hostile one.

        """
        found: dict[str, Any] = {}
        for each in referred:
            _parsed(each, found)
        parsed = _parsed(text, found)
        try:
            top = _Types(found, cuts=cuts).of(parsed)
            plain = parse_schema({"type": "array", "items": top.plain})
        except RecursionError as error:
            raise _too_deep() from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"Its schema is none of Avro: {type(error).__name__} {error!s:.200}.") from error
        if not isinstance(top.plain, dict) or top.plain["type"] != "record":
            raise ConfigError(f"Its schema is {top.named}, and should be a record.")
        self.name, self._top, self._plain = top.named.removeprefix("record "), top, plain
        #: By which data name it that are encoded as single objects.
        self.fingerprint = bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))

    def __contains__(self, path: Sequence[str]) -> bool:
        """Whether there is a field at a path."""
        return self._at(path) is not None

    def read(self, bodies: Sequence[bytes], paths: Mapping[str, Sequence[str]]) -> pa.Table:
        """A row for each datum, with a column for each path of fields. Raise ConfigError if one is none."""
        rows = self._rows(bodies)
        return pa.table({name: self._column(rows, name, path) for name, path in paths.items()})

    def _rows(self, bodies: Sequence[bytes]) -> list[Any]:
        ends = self._top.ends
        try:
            for body in bodies:
                if (left := len(body) - ends(body, 0)) > 0:
                    raise ConfigError(f"It has {left} bytes behind what the schema {self.name} says.")
                if left < 0:
                    raise IndexError
            # As one array, in which each is a block, since a call takes as long as a field or two.
            array = b"".join(b"\x02" + body for body in bodies) + b"\x00"
            found = cast("list[Any]", schemaless_reader(io.BytesIO(array), self._plain, None))
        except ConfigError:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, ValueError) else "it ends early, or has a number that means nothing"
            raise ConfigError(f"It was not written with the schema {self.name}: {why}.") from error
        return found

    def _column(self, rows: Sequence[Any], name: str, path: Sequence[str]) -> pa.Array:
        if (kind := self._at(path)) is None:
            return pa.nulls(len(rows))
        if kind.arrow is None:
            raise ConfigError(
                f"The column {name!r} is the field {'.'.join(path)!r} of the schema {self.name}, and that is "
                f"{kind.named}, which no column holds. Leave it out, or read the messages with a function: parse."
            )
        values = rows
        for each in path:
            values = [None if value is None else value.get(each) for value in values]
        try:
            if (convert := kind.convert) is not None:
                values = [None if value is None else convert(value) for value in values]
            return pa.array(values, kind.arrow)
        except (ValueError, TypeError, LookupError, OverflowError, ArithmeticError) as error:
            raise ConfigError(f"The field {'.'.join(path)!r} is no {kind.named}: {error}") from error

    def _at(self, path: Sequence[str]) -> Type | None:
        kind: Type | None = self._top
        for name in path:
            if kind is not None and kind.arrow is None and not kind.fields:
                return kind  # a union: some of its values may have such a field
            kind = None if kind is None else kind.fields.get(name, kind.values)
        return kind


def _parsed(text: str, named: dict[str, Any]) -> Any:
    """A schema with all names in full; those that it defines are added to what is named."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"Its schema has {len(text)} characters, and {MOST_CHARACTERS} are the most.")
    if depth(text.encode(errors="replace")) > 4 * DEEPEST:  # at some depth fastavro ends the process
        raise _too_deep()
    try:
        return parse_schema(json.loads(text), named)
    except Exception as error:
        said = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
        raise ConfigError(f"Its schema is none of Avro: {said:.200}.") from error


def _too_deep() -> ConfigError:
    return ConfigError(f"Its schema has more than {DEEPEST} types inside each other.")


class _Types:
    """What the types of a schema are read as."""

    def __init__(self, named: Mapping[str, Any], *, cuts: bool) -> None:
        """`named`: what names stand for."""
        self._cuts, self._named, self._done, self._open = cuts, named, dict[str, Type](), set[str]()

    def of(self, schema: Any) -> Type:
        """A type, checked."""
        found = self._of(schema)
        if found.count > MOST_TYPES:
            raise ConfigError(f"Its schema has more than {MOST_TYPES} types, with those that names in it stand for.")
        if found.depth > DEEPEST:
            raise _too_deep()
        return found

    def _of(self, schema: Any) -> Type:
        if isinstance(schema, list):
            return self._union([self.of(each) for each in schema])
        if isinstance(schema, str):
            return self._primitive(schema, {}) if schema in _PRIMITIVE else self._of_name(schema)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        match kind:
            case "array":
                return self._list(self.of(schema["items"]))
            case "map":
                return self._map(self.of(schema["values"]))
            case "record" | "error" | "enum" | "fixed":
                return self._of_name(schema["name"])
        return self._primitive(kind, schema) if kind in _PRIMITIVE else self._of_name(kind)

    def _of_name(self, name: str) -> Type:
        if name in self._open:
            raise ConfigError(f"Its schema has the type {name} inside itself, so data may be of any depth.")
        if (found := self._done.get(name)) is not None:
            return found if isinstance(found.plain, str) else replace(found, plain=name)  # it is defined once
        self._open.add(name)
        self._done[name] = found = self._definition(name, self._named[name])
        self._open.remove(name)
        return found

    def _definition(self, name: str, schema: Mapping[str, Any]) -> Type:
        if schema["type"] == "enum":
            symbols = dict(enumerate(schema["symbols"]))
            return Type(f"enum {name}", "int", pa.string(), avro_bytes.of_enum(len(symbols)), symbols.__getitem__)
        if schema["type"] == "fixed":
            size, plain = schema["size"], {"type": "fixed", "name": name, "size": schema["size"]}
            if type(size) is not int or not 0 <= size <= MOST_CHARACTERS:
                raise ConfigError(f"Its schema has the type {name} of {size!r:.20} bytes.")
            arrow, convert = _of_bytes(schema)
            if schema.get("logicalType") == "uuid" and size == 16:
                arrow, convert = pa.string(), lambda value: str(UUID(bytes=value))
            return Type(f"fixed {name}", plain, arrow, avro_bytes.of_fixed(size), convert, is_empty=not size)
        fields: dict[str, Type] = {}
        for each in schema["fields"]:
            if each["name"] in fields:
                raise ConfigError(f"Its schema has more than one field {each['name']!r:.80} in {name}.")
            fields[exactly(str, each["name"])] = self.of(each["type"])
        kinds = fields.values()
        converts = {key: kind.convert for key, kind in fields.items() if kind.convert is not None}
        return Type(
            f"record {name}",
            {
                "type": "record",
                "name": name,
                "fields": [{"name": key, "type": kind.plain} for key, kind in fields.items()],
            },
            None
            if any(kind.arrow is None for kind in kinds)
            else pa.struct([pa.field(key, kind.arrow) for key, kind in fields.items()]),
            avro_bytes.of_record([kind.ends for kind in kinds]),
            (lambda row: row | {key: _converted(convert, row[key]) for key, convert in converts.items()})
            if converts
            else None,
            fields,
            is_empty=all(kind.is_empty for kind in kinds),
            has_empty=any(kind.is_empty or kind.has_empty for kind in kinds),
            count=1 + sum(kind.count for kind in kinds),
            depth=1 + max((kind.depth for kind in kinds), default=0),
        )

    def _primitive(self, kind: str, schema: Mapping[str, Any]) -> Type:
        logical, named = str(schema.get("logicalType")), kind
        arrow, convert = _LOGICAL.get((kind, logical), _PRIMITIVE[kind]), None
        if kind == "bytes":
            arrow, convert = _of_bytes(schema)
        if self._cuts and pa.types.is_timestamp(arrow) and arrow.unit == "ns":
            arrow, convert = pa.timestamp("us", arrow.tz), lambda value: value // 1000
        if arrow is not _PRIMITIVE[kind]:
            named = f"{logical} ({kind})"
        return Type(named, kind, arrow, _ENDS[kind], convert, is_empty=kind == "null")

    @staticmethod
    def _union(branches: Sequence[Type]) -> Type:
        """With one type beside null it is that type; numbers together are numbers."""
        values = [each for each in branches if each.arrow != pa.null()]
        said: dict[str, Any] = {"arrow": None, "named": f"a union of {', '.join(each.named for each in branches)}"}
        if not values:
            said["arrow"] = pa.null()
        elif len(values) == 1:
            said = {each: getattr(values[0], each) for each in ("named", "arrow", "convert", "fields", "values")}
        elif all(each.arrow in _NUMBERS for each in values):
            said["arrow"] = pa.float64() if any(each.arrow in _NUMBERS[2:] for each in values) else pa.int64()
        return Type(
            plain=[each.plain for each in branches],
            ends=avro_bytes.of_union([each.ends for each in branches]),
            has_empty=any(each.has_empty for each in branches),
            count=1 + sum(each.count for each in branches),
            depth=1 + max((each.depth for each in branches), default=0),
            **said,
        )

    @staticmethod
    def _list(items: Type) -> Type:
        _refuse_empty(items)
        convert = items.convert
        return Type(
            f"an array of {items.named}",
            {"type": "array", "items": items.plain},
            None if items.arrow is None else pa.list_(items.arrow),
            avro_bytes.of_array(items.ends),
            None if convert is None else lambda values: [_converted(convert, value) for value in values],
            count=1 + items.count,
            depth=1 + items.depth,
        )

    @staticmethod
    def _map(values: Type) -> Type:
        _refuse_empty(values)
        convert = values.convert
        return Type(
            f"a map of {values.named}",
            {"type": "map", "values": values.plain},
            None if values.arrow is None else pa.map_(pa.string(), values.arrow),
            avro_bytes.of_map(values.ends),
            (lambda found: [*found.items()])
            if convert is None
            else lambda found: [(key, _converted(convert, value)) for key, value in found.items()],
            values=values,
            count=1 + values.count,
            depth=1 + values.depth,
        )


def _refuse_empty(inside: Type) -> None:
    """Of what takes no bytes a list of any length takes none, and a map a few."""
    if inside.is_empty or inside.has_empty:
        raise ConfigError(f"Its schema has a list or map of {inside.named:.80}, of which something takes no bytes.")


def _converted(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _of_bytes(schema: Mapping[str, Any]) -> tuple[pa.DataType, Convert | None]:
    """Bytes as they are, or decimals."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or type(precision) is not int or type(scale) is not int:
        return pa.binary(), None
    if not 0 <= scale <= precision <= 76:
        return pa.binary(), None

    def convert(value: bytes) -> Decimal:
        if len(value) > _DECIMAL_BYTES:
            raise ValueError(f"it has {len(value)} bytes")
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _EXACTLY)

    return (pa.decimal128(38, scale) if precision <= 38 else pa.decimal256(76, scale)), convert

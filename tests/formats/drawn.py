"""Streams drawn from a seed: columns, the schema that a writer has for them, rows, and what is written of them."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from samza_azure.systems.parsing import Parser

from .streams import datum, parser, written

#: What is written, and what is read again.
Value: TypeAlias = tuple[Any, Any]
_F = FieldDescriptorProto
_TEXTS = "abcé\u2028\U0001f600 \x00"


@dataclass(frozen=True)
class Kind:
    """A type of a column: in the job file, for Avro, and a way to draw its values."""

    ddl: str
    avro: Any
    draw: Callable[[Random], Value]
    proto: int | None = None  # None: it is not drawn for protobuf
    fields: tuple[tuple[str, "Kind"], ...] = ()  # of a message
    is_repeated: bool = False


def _same(draw: Callable[[Random], Any]) -> Callable[[Random], Value]:
    def drawn(dice: Random) -> Value:
        value = draw(dice)
        return value, value

    return drawn


def _int(bits: int) -> Callable[[Random], Value]:
    edges = [0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1)]
    return _same(lambda dice: dice.choice([*edges, dice.randint(edges[4], edges[3]), dice.randint(-100, 100)]))


def _texts(dice: Random) -> str:
    return "".join(dice.choices(_TEXTS, k=dice.choice([0, 1, 5, 200])))


SCALARS = [
    Kind("bigint", "long", _int(64), _F.TYPE_SINT64),
    Kind("bigint", "long", _int(64), _F.TYPE_INT64),
    Kind("int", "int", _int(32), _F.TYPE_SFIXED32),
    Kind("bigint", "int", _int(32), _F.TYPE_INT32),
    Kind("double", "double", _same(lambda dice: dice.choice([0.0, -1e300, dice.random()])), _F.TYPE_DOUBLE),
    Kind("double", "float", _same(lambda dice: struct.unpack("f", struct.pack("f", dice.random()))[0]), _F.TYPE_FLOAT),
    Kind("boolean", "boolean", _same(lambda dice: dice.random() < 0.5), _F.TYPE_BOOL),
    Kind("string", "string", _same(_texts), _F.TYPE_STRING),
    Kind("binary", "bytes", _same(lambda dice: dice.randbytes(dice.choice([0, 1, 30]))), _F.TYPE_BYTES),
    Kind(
        "decimal(20,3)",
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        _same(lambda dice: Decimal(dice.randint(-(10**20) + 1, 10**20 - 1)).scaleb(-3)),
    ),
    Kind(
        "timestamp",
        {"type": "long", "logicalType": "timestamp-micros"},
        _same(lambda dice: datetime(1, 1, 2, tzinfo=UTC) + timedelta(microseconds=dice.randint(0, 315 * 10**15))),
    ),
    Kind(
        "date",
        {"type": "int", "logicalType": "date"},
        _same(lambda dice: date(1, 1, 1) + timedelta(dice.randint(0, 3_000_000))),
    ),
]


def kind(dice: Random, depth: int, *, protobuf: bool) -> Kind:
    """A type, perhaps with others inside."""
    what = dice.choice(["scalar", "scalar", "scalar", "array", "struct", "map"]) if depth else "scalar"
    if what == "struct":
        return record(dice, depth - 1, protobuf=protobuf)
    if what == "scalar":
        return dice.choice([each for each in SCALARS if each.proto is not None or not protobuf])
    inner = kind(dice, 0 if protobuf else depth - 1, protobuf=protobuf)
    if what == "map" and not protobuf:

        def draw(dice: Random) -> Value:
            found = {f"k{number}": inner.draw(dice) for number in range(dice.randint(0, 3))}
            return {key: value for key, (value, _) in found.items()}, [(key, read) for key, (_, read) in found.items()]

        return Kind(f"map<string, {inner.ddl}>", {"type": "map", "values": inner.avro}, draw)

    def several(dice: Random) -> Value:
        found = [inner.draw(dice) for _ in range(dice.choice([0, 1, 4]))]
        return [value for value, _ in found], [read for _, read in found]

    avro = {"type": "array", "items": inner.avro}
    return Kind(f"array<{inner.ddl}>", avro, several, inner.proto, inner.fields, is_repeated=True)


def record(dice: Random, depth: int, *, protobuf: bool) -> Kind:
    """A record or message."""
    fields = tuple((f"f{number}", kind(dice, depth, protobuf=protobuf)) for number in range(dice.randint(1, 4)))
    may_lack = [not each.is_repeated if protobuf else dice.random() < 0.5 for _, each in fields]

    def draw(dice: Random) -> Value:
        written_, read = {}, {}
        for (name, each), lacks in zip(fields, may_lack, strict=True):
            written_[name], read[name] = (None, None) if lacks and dice.random() < 0.3 else each.draw(dice)
        return written_, read

    avro = {
        "type": "record",
        "name": f"R{dice.getrandbits(64)}",
        "fields": [
            {"name": name, "type": ["null", each.avro] if lacks else each.avro}
            for (name, each), lacks in zip(fields, may_lack, strict=True)
        ],
    }
    return Kind(
        f"struct<{', '.join(f'{name}: {each.ddl}' for name, each in fields)}>", avro, draw, _F.TYPE_MESSAGE, fields
    )


@dataclass
class Drawn:
    """A stream, and how its rows are written."""

    reads: Parser
    draw: Callable[[Random], Value]
    write: Callable[[Any], bytes]


def stream(dice: Random, folder: Path, *, protobuf: bool) -> Drawn:
    """A stream with a schema in a file."""
    top = record(dice, 3, protobuf=protobuf)
    ddl = ", ".join(f"{name} {each.ddl}" for name, each in top.fields)
    if not protobuf:
        return Drawn(
            parser(ddl, folder, schema__file=written(folder, top.avro)), top.draw, lambda row: datum(top.avro, row)
        )
    file = FileDescriptorProto(name="drawn.proto", syntax="proto3")
    _describe(file.message_type.add(name="Top"), ".Top", top.fields)
    (folder / "drawn.pb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    pool = DescriptorPool()
    pool.Add(file)
    made = GetMessageClass(pool.FindMessageTypeByName("Top"))
    of_messages = parser(ddl, folder, format="protobuf", descriptor__file="drawn.pb", message="Top")

    def write(row: Any) -> bytes:
        found: bytes = made(**_without_none(row)).SerializeToString()
        return found

    return Drawn(of_messages, top.draw, write)


def _describe(message: DescriptorProto, path: str, fields: tuple[tuple[str, Kind], ...]) -> None:
    for number, (name, each) in enumerate(fields, 1):
        field = message.field.add(name=name, number=number, type=each.proto)
        field.label = _F.LABEL_REPEATED if each.is_repeated else _F.LABEL_OPTIONAL
        if each.proto == _F.TYPE_MESSAGE:
            field.type_name = f"{path}.M{number}"
            _describe(message.nested_type.add(name=f"M{number}"), field.type_name, each.fields)
        elif not each.is_repeated:
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def mutated(dice: Random, body: bytes) -> bytes:
    """Bytes that are near to a message."""
    at, other = dice.randint(0, len(body)), dice.randbytes(dice.choice([1, 1, 3]))
    match dice.choice(["change", "change", "cut", "insert", "remove", "end"]):
        case "change":
            return body[:at] + other + body[at + len(other) :]
        case "cut":
            return body[:at]
        case "insert":
            return body[:at] + other + body[at:]
        case "remove":
            return body[:at] + body[at + 1 :]
        case _:
            return body[:at] + b"\xff" * 12 + body[at:]

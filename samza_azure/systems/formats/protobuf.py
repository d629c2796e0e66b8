"""A message of protobuf, and what was written as one, as columns of Arrow.

The parser of protobuf has bounds of its own: it takes 100 messages inside each other. Only a column may not be of a
message that contains itself, or of one with very many fields once each message in it is replaced by its own.
"""

from base64 import b64decode
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from samza_azure.errors import ConfigError
from samza_azure.systems.formats.confluent import Confluent, Registered

#: The most bytes of descriptors, and the most fields of a column, with those of messages in it.
MOST_BYTES, MOST_FIELDS = 4 << 20, 1_000
#: How deep a message may be defined inside others.
_DEEPEST = 20

Convert: TypeAlias = Callable[[Any], Any]

_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_BOOL: pa.bool_(), _F.TYPE_STRING: pa.string(), _F.TYPE_BYTES: pa.binary(), _F.TYPE_ENUM: pa.string(),
    _F.TYPE_FLOAT: pa.float32(), _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_INT32: pa.int32(), _F.TYPE_SINT32: pa.int32(), _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_INT64: pa.int64(), _F.TYPE_SINT64: pa.int64(), _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT32: pa.uint32(), _F.TYPE_FIXED32: pa.uint32(),
    _F.TYPE_UINT64: pa.uint64(), _F.TYPE_FIXED64: pa.uint64(),
}  # fmt: skip
_GOOGLE = "google.protobuf."
_WRAPPERS = {
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
#: Messages of protobuf's own that no column takes.
_OF_NO_COLUMN = {f"{_GOOGLE}{name}" for name in ("Any", "Duration", "Struct", "Value", "ListValue")}
_KNOWN_FILES: Mapping[str, Any] = {
    each.DESCRIPTOR.name: each.DESCRIPTOR
    for each in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
_KNOWN = {each.full_name: each for file in _KNOWN_FILES.values() for each in file.message_types_by_name.values()}


@dataclass(frozen=True, slots=True)
class Type:
    """The values of a field, as they are read."""

    arrow: pa.DataType | None  # None: no column takes them
    convert: Convert | None = None  # from what protobuf has to what Arrow takes; None: it is the same


class ProtobufSchema:
    """A message of whoever writes."""

    def __init__(self, descriptor: Descriptor, *, cuts: bool = False) -> None:
        """`cuts`: times lose what is less than a microsecond, instead of being refused."""
        self._descriptor, self._cuts = descriptor, cuts
        self._read = GetMessageClass(descriptor).FromString
        self.name: str = descriptor.full_name

    def __contains__(self, path: Sequence[str]) -> bool:
        """Whether there is a field at a path."""
        return self._fields(path) is not None

    def read(self, bodies: Sequence[bytes], paths: Mapping[str, Sequence[str]]) -> pa.Table:
        """A row for each message, with a column for each path of fields. Raise ConfigError if one is none."""
        try:
            messages = [self._read(body) for body in bodies]
        except Exception as error:
            raise ConfigError(f"It is no message {self.name}: {error}.") from error
        if not all(message.IsInitialized() for message in messages):
            raise ConfigError(f"It is no message {self.name}: it lacks a field that is required.")
        return pa.table({name: self._column(messages, name, path) for name, path in paths.items()})

    def _column(self, messages: Sequence[Any], name: str, path: Sequence[str]) -> pa.Array:
        if (fields := self._fields(path)) is None:
            return pa.nulls(len(messages))
        where = ".".join(path)
        try:
            kind = _Types(cuts=self._cuts).of(fields[-1])
            if kind.arrow is None:
                raise ConfigError(
                    f"The column {name!r} is the field {where!r} of the message {self.name}, which no column holds. "
                    "Leave it out, take a field inside it, or read the messages with a function: parse."
                )
            values = messages
            for field in fields:
                values = _present(values, field)
            if (convert := kind.convert) is not None:
                values = [None if value is None else convert(value) for value in values]
            return pa.array(values, kind.arrow)
        except ConfigError:
            raise
        except Exception as error:  # whoever registers a descriptor may have written anything
            raise ConfigError(f"The field {where!r} holds what it should not: {error}") from error

    def _fields(self, path: Sequence[str]) -> list[FieldDescriptor] | None:
        """The fields on a path; None if there is none of some name, or it is inside a list or a map."""
        found: list[FieldDescriptor] = []
        for name in path:
            within = found[-1].message_type if found else self._descriptor
            field = None if within is None or (found and found[-1].is_repeated) else within.fields_by_name.get(name)
            if field is None:
                return None
            found.append(field)
        return found


def _present(messages: Sequence[Any], field: FieldDescriptor) -> list[Any]:
    """The values of a field. None where it is not set, if it can be told. Raise ValueError where it is an enum of
    proto2 and has a number that this lacks: the parser leaves it out as if it were not set.
    """
    name = field.name
    if _is_closed(field):
        for message in messages:
            if message is not None and any(each.field_number == field.number for each in UnknownFieldSet(message)):
                raise ValueError("an enum has a number that its schema lacks")
    if not field.has_presence:
        return [None if message is None else getattr(message, name) for message in messages]
    return [getattr(message, name) if message is not None and message.HasField(name) else None for message in messages]


def _is_closed(field: FieldDescriptor) -> bool:
    """Whether a field, or the values of a map, are an enum of proto2."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        field = field.message_type.fields_by_name["value"]
    return field.enum_type is not None and field.enum_type.is_closed


class _Types:
    """What the fields of one column are read as."""

    def __init__(self, *, cuts: bool) -> None:
        self._cuts, self._open, self._count = cuts, set[str](), 0

    def of(self, field: FieldDescriptor) -> Type:
        self._count += 1
        if self._count > MOST_FIELDS:
            raise ConfigError(f"It has the field {field.full_name}, with more than {MOST_FIELDS} fields in it.")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._map(field.message_type)
        one = self._one(field)
        if not field.is_repeated or one.arrow is None:
            return one
        convert = one.convert
        return Type(pa.list_(one.arrow), list if convert is None else lambda values: [convert(each) for each in values])

    def _one(self, field: FieldDescriptor) -> Type:
        if field.type == _F.TYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return Type(pa.string(), names.__getitem__)
        if (inner := field.message_type) is None:
            return Type(_SCALARS[field.type])
        if inner.full_name == f"{_GOOGLE}Timestamp":
            return Type(pa.timestamp("us", "UTC"), self._microseconds)
        if inner.full_name in _WRAPPERS:
            return Type(_SCALARS[inner.fields_by_name["value"].type], lambda message: message.value)
        if inner.full_name in _OF_NO_COLUMN or inner.full_name in self._open:
            return Type(None)
        self._open.add(inner.full_name)
        kinds = [(each, self.of(each)) for each in inner.fields]
        self._open.remove(inner.full_name)
        if any(kind.arrow is None for _, kind in kinds):
            return Type(None)

        def convert(message: Any) -> dict[str, Any]:
            row = {}
            for each, kind in kinds:
                (value,) = _present([message], each)
                row[each.name] = value if value is None or kind.convert is None else kind.convert(value)
            return row

        return Type(pa.struct([pa.field(each.name, kind.arrow) for each, kind in kinds]), convert)

    def _map(self, entry: Descriptor) -> Type:
        key, value = self.of(entry.fields_by_name["key"]), self.of(entry.fields_by_name["value"])
        if value.arrow is None:
            return value
        convert = value.convert
        if convert is None:
            return Type(pa.map_(key.arrow, value.arrow), lambda found: [*found.items()])
        return Type(
            pa.map_(key.arrow, value.arrow), lambda found: [(key, convert(each)) for key, each in found.items()]
        )

    def _microseconds(self, time: Any) -> int:
        if not 0 <= time.nanos < 1_000_000_000:
            raise ValueError(f"a time has {time.nanos} nanoseconds")
        if time.nanos % 1000 and not self._cuts:
            raise ValueError(
                f"a time has {time.nanos} nanoseconds, and columns have microseconds. Send those, or write "
                "options.nanoseconds = 'cut'"
            )
        return int(time.seconds * 1_000_000 + time.nanos // 1000)


class ConfluentProtobuf(Confluent):
    """Messages as of a registry, of which each also says which message of its schema it is: the place of one at the
    top, of one inside that, and so on."""

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        return [((number, *_indexes(body)[0]), body[_indexes(body)[1] :]) for number, body in super().split(messages)]


def _indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of its schema a body is, and where that begins."""
    count, at = _number(body, 0)
    if not count:
        return (0,), at
    if not 0 < count <= _DEEPEST:
        raise ConfigError(f"It is a message inside {count} others of its schema, and at most {_DEEPEST} are read.")
    found = []
    for _ in range(count):
        index, at = _number(body, at)
        found.append(index)
    return tuple(found), at


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A whole number in zigzags, and where it ends."""
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            break
        found, at = found | (body[at] & 0x7F) << shift, at + 1
        if body[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise ConfigError("It does not say which message of its schema it is.")


def from_file(data: bytes, message: str, *, cuts: bool) -> ProtobufSchema:
    """A message of a descriptor set. Raise ConfigError if that is none, or has no such message."""
    if len(data) > MOST_BYTES:
        raise ConfigError(f"it has {len(data)} bytes, and {MOST_BYTES} are the most.")
    pool = DescriptorPool()
    try:
        files = {file.name: file for file in FileDescriptorSet.FromString(data).file}
        for name in files:
            _add(pool, name, files, ())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"it is no set of descriptors, as protoc --descriptor_set_out writes it: {error}.") from error
    try:
        return ProtobufSchema(pool.FindMessageTypeByName(message), cuts=cuts)
    except KeyError:
        names = [f"{file.package}.{each.name}".lstrip(".") for file in files.values() for each in file.message_type]
        raise ConfigError(f"it has no message {message!r}. It has {', '.join(sorted(names))[:200]}.") from None


def from_registry(found: Registered, indexes: Sequence[int], *, cuts: bool) -> ProtobufSchema:
    """A message of a schema of a registry, in bytes. Raise ConfigError if there is none, or it is of no use."""
    pool, files = DescriptorPool(), dict[str, FileDescriptorProto]()
    try:
        for name, text in [*found.referred.items(), ("", found.text)]:
            files[name] = FileDescriptorProto.FromString(b64decode(text, validate=True))
            files[name].name = name or "of the message"
        for name in files:
            _add(pool, name, files, ())
        within = list(pool.FindFileByName(files[""].name).message_types_by_name.values())
        for index in indexes:
            if not 0 <= index < len(within):
                raise ConfigError(f"It is message {index} of its schema, which has {len(within)}.")
            message, within = within[index], list(within[index].nested_types)
    except ConfigError:
        raise
    except Exception as error:
        why = f"is none of protobuf, or the registry does not give descriptors: {error}"
        raise ConfigError(f"Its schema {why}.") from error
    return ProtobufSchema(message, cuts=cuts)


def _add(pool: DescriptorPool, name: str, files: Mapping[str, FileDescriptorProto], within: Sequence[str]) -> None:
    """Add a file, behind those that it imports."""
    file = files[name]
    if name in within or len(within) > 100:
        raise ConfigError(f"its file {file.name} imports itself, or too many others after each other.")
    try:
        pool.FindFileByName(file.name)
        return
    except KeyError:
        pass
    for imported in file.dependency:
        if imported in files:
            _add(pool, imported, files, (*within, name))
        elif imported in _KNOWN_FILES:
            pool.AddSerializedFile(_KNOWN_FILES[imported].serialized_pb)
        else:
            raise ConfigError(
                f"its file {file.name} imports {imported}, which is missing. Write protoc --include_imports."
            )
    pool.Add(file)
    for message in pool.FindFileByName(file.name).message_types_by_name.values():
        if (known := _KNOWN.get(message.full_name)) is not None and _shape(message) != _shape(known):
            raise ConfigError(f"its file {file.name} has another {message.full_name} than that of protobuf.")


def _shape(message: Descriptor) -> Any:
    """By which messages of protobuf's own are known."""
    return [
        (each.name, each.number, each.type, each.is_repeated, each.message_type and each.message_type.full_name)
        for each in sorted(message.fields, key=lambda each: each.number)
    ]

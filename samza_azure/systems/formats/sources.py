"""Where the schemas of a stream's messages are, as its options say: in files, or in a registry."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from samza_azure import extras
from samza_azure.errors import ConfigError
from samza_azure.systems.api import SystemStream
from samza_azure.systems.formats.confluent import Confluent, ConfluentRegistry
from samza_azure.systems.formats.read import Bare, Framing, Messages, Paths, Schema, SingleObjects
from samza_azure.systems.options import (
    AVRO,
    DESCRIPTOR_FILE,
    FILE,
    FORMAT,
    FRAMING,
    MESSAGE,
    NANOSECONDS,
    PROTOBUF,
    REGISTRY,
    SCHEMA_FILE,
    SCHEMAS,
    one_of,
    secret,
)
from samza_azure.systems.registry import installed

if TYPE_CHECKING:
    from samza_azure.systems.formats.avro import AvroSchema

URL, NAMESPACE, CA = "registry.url", "registry.namespace", "registry.ca.file"
NONE, SINGLE_OBJECT = "none", "single-object"
#: So many answers of a registry are kept whose schemas have several messages.
ANSWERS = 100
_OF_URL = ("registry.user", "registry.password", "registry.password.file", CA)
#: Where schemas may be, by format, and the options that go with each place.
PLACES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    AVRO: {SCHEMA_FILE: (FRAMING,), URL: _OF_URL, NAMESPACE: (CA,)},
    PROTOBUF: {DESCRIPTOR_FILE: (MESSAGE,), URL: _OF_URL},
}

Look: TypeAlias = Callable[[], str]
Source: TypeAlias = tuple[Framing, Callable[[Any], Schema], Look | None]


def messages_of(
    stream: SystemStream, paths: Paths, wanted: pa.Schema, envelope: Sequence[str]
) -> tuple[Messages, Look | None]:
    """What reads the messages of a stream, and what looks whether its registry can be reached, if it has one.

    `wanted` are the columns that come from the body, `paths` where in it, `envelope` what may stand beside it.

    Raises:
        ConfigError: the options do not fit together, a file cannot be read, or it has not what the columns are.

    """
    given, key = stream.options[FORMAT], f"streams.{stream.name}.options"
    place, cuts = _place(stream, PLACES[given]), one_of(stream, NANOSECONDS, "fail", "cut") == "cut"
    with installed(f"{key}.{FORMAT}", given, extras.AVRO if given == AVRO else extras.PROTOBUF):
        framing, schema, look = (_avro if given == AVRO else _protobuf)(stream, place, paths, envelope, cuts)
    return Messages(framing, schema, paths, wanted), look


def _of_avro(data: bytes, *, cuts: bool) -> "AvroSchema":
    from samza_azure.systems.formats.avro import AvroSchema

    return AvroSchema(data.decode(), cuts=cuts)


def _avro(stream: SystemStream, place: str, paths: Paths, envelope: Sequence[str], cuts: bool) -> Source:
    from samza_azure.systems.formats.avro import AvroSchema

    key = f"streams.{stream.name}.options"
    if place == SCHEMA_FILE:
        paths_of = [stream.directory / name.strip() for name in stream.options[place].split(",")]
        made = partial(_of_avro, cuts=cuts)
        schemas = [_checked(f"{key}.{place}", path, made) for path in paths_of]
        _refuse_missing(stream, paths, schemas)
        if one_of(stream, FRAMING, NONE, SINGLE_OBJECT) == SINGLE_OBJECT:
            return SingleObjects(), _known({each.fingerprint: each for each in schemas}), None
        if len(schemas) > 1:
            raise ConfigError(
                f"{key}.{place} names {len(schemas)} files, and messages do not say which of them they were "
                f"written with. Name one, or write options.{FRAMING} = {SINGLE_OBJECT!r} if they do."
            )
        return Bare(), _known({None: schemas[0]}), None
    if place == NAMESPACE:
        with installed(f"{key}.{place}", stream.options[place], extras.AZURE_REGISTRY):
            from samza_azure.systems.formats.azure_registry import AzureContentType, AzureRegistry
        azure = AzureRegistry(key, stream.options[place], _ca(stream))
        return AzureContentType(envelope), lambda number: AvroSchema(azure.schema(number), cuts=cuts), azure.look
    registry = _registry(stream)

    def load(number: int) -> Schema:
        found = registry.schema(number)
        _refuse_kind(number, found.kind, "AVRO")
        return AvroSchema(found.text, [*found.referred.values()], cuts=cuts)

    return Confluent(), load, registry.look


def _protobuf(stream: SystemStream, place: str, paths: Paths, _envelope: Sequence[str], cuts: bool) -> Source:
    from samza_azure.systems.formats.protobuf import ConfluentProtobuf, from_file, from_registry

    key = f"streams.{stream.name}.options"
    if place == DESCRIPTOR_FILE:
        if (message := stream.options.get(MESSAGE)) is None:
            raise ConfigError(f'{key}.{MESSAGE} is missing. Write options.{MESSAGE} = "package.Message".')
        path = stream.directory / stream.options[place]
        schema = _checked(f"{key}.{place}", path, lambda data: from_file(data, message, cuts=cuts))
        _refuse_missing(stream, paths, [schema])
        return Bare(), _known({None: schema}), None
    registry = _registry(stream)
    ask = lru_cache(ANSWERS)(partial(registry.schema, serialized=True))

    def load(named: tuple[int, ...]) -> Schema:
        number, *indexes = named
        found = ask(number)
        _refuse_kind(number, found.kind, "PROTOBUF")
        return from_registry(found, indexes, cuts=cuts)

    return ConfluentProtobuf(), load, registry.look


def _registry(stream: SystemStream) -> ConfluentRegistry:
    user, password = stream.options.get("registry.user", ""), secret(stream, "registry.password")
    key, is_renewed = f"streams.{stream.name}.options", f"registry.password{FILE}" in stream.options
    return ConfluentRegistry(key, stream.options[URL], user, password, _ca(stream), is_renewed=is_renewed)


def _ca(stream: SystemStream) -> Path | None:
    if CA not in stream.options:
        return None
    if not (path := stream.directory / stream.options[CA]).is_file():
        raise ConfigError(f"streams.{stream.name}.options.{CA} names no file on this machine. Correct the path.")
    return path


def _refuse_kind(number: int, kind: str, wanted: str) -> None:
    if kind != wanted:
        raise ConfigError(f"Its schema {number} is of {kind:.40}, and not of {wanted}.")


def _place(stream: SystemStream, ways: Mapping[str, tuple[str, ...]]) -> str:
    """The option that says where schemas are, of which there is one, with nothing but what goes with it."""
    key, named = f"streams.{stream.name}.options", [name for name in stream.options if name in {*SCHEMAS, *REGISTRY}]
    found = [name for name in ways if name in named]
    if len(found) != 1:
        raise ConfigError(
            f"{key}.format is {stream.options['format']!r}, whose messages need the schema that they were written "
            f"with, and {' and '.join(found) or 'nothing'} says where that is. Write one of {', '.join(ways)}."
        )
    if wrong := [name for name in named if name not in (found[0], NANOSECONDS, *ways[found[0]])]:
        raise ConfigError(f"{key}.{wrong[0]} does not go with {found[0]}. Remove the line.")
    return found[0]


def _checked(key: str, path: Path, made: Callable[[bytes], Any]) -> Any:
    try:
        return made(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{key} names {path.name}, which cannot be read: {why}. Correct the path.") from error
    except ConfigError as error:
        raise ConfigError(f"{key} names {path.name}, which is of no use: {error}") from error


def _refuse_missing(stream: SystemStream, paths: Paths, schemas: Sequence[Schema]) -> None:
    """A column that no schema has would be null forever."""
    for name, path in paths.items():
        if any(path in schema for schema in schemas):
            continue
        raise ConfigError(
            f"streams.{stream.name}.schema has the column {name!r}, and the schema in the file has no field "
            f'{".".join(path)!r}. Write options.from.{name} = "field.inside", or remove the column.'
        )


def _known(schemas: Mapping[Hashable, Schema]) -> Callable[[Any], Schema]:
    def schema(key: Hashable) -> Schema:
        if (found := schemas.get(key)) is None:
            name = key.hex() if isinstance(key, bytes) else key
            raise ConfigError(f"It names a schema with the fingerprint {name}, which none of the files has.")
        return found

    return schema

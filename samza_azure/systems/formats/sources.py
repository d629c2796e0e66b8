"""Where the schemas of a stream's messages are, as its options say: in files, or in a registry."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from samza_azure import extras
from samza_azure.errors import ConfigError
from samza_azure.systems.api import SystemStream
from samza_azure.systems.formats.confluent import Confluent, ConfluentRegistry
from samza_azure.systems.formats.read import Bare, Framing, Messages, Paths, Schema, SingleObjects
from samza_azure.systems.options import FRAMING, REGISTRY, SCHEMA_FILE, SCHEMAS, one_of, secret
from samza_azure.systems.registry import installed

URL, NAMESPACE, CA = "registry.url", "registry.namespace", "registry.ca.file"
NONE, SINGLE_OBJECT = "none", "single-object"
#: The options that go with each place of schemas.
OF_AVRO: Mapping[str, tuple[str, ...]] = {
    SCHEMA_FILE: (FRAMING,),
    URL: ("registry.user", "registry.password", "registry.password.file", CA),
    NAMESPACE: (CA,),
}


def messages_of(
    stream: SystemStream, paths: Paths, wanted: pa.Schema, envelope: Sequence[str]
) -> tuple[Messages, Callable[[], str] | None]:
    """What reads the messages of a stream, and what looks whether its registry can be reached, if it has one.

    `wanted` are the columns that come from the body, `paths` where in it, `envelope` what may stand beside it.

    Raises:
        ConfigError: the options do not fit together, a file cannot be read, or it has not what the columns are.

    """
    key = f"streams.{stream.name}.options"
    place = _place(stream, OF_AVRO)
    with installed(f"{key}.format", stream.options["format"], extras.AVRO):
        from samza_azure.systems.formats.avro import AvroSchema
    if place == SCHEMA_FILE:
        schemas = [_checked(f"{key}.{SCHEMA_FILE}", path, AvroSchema) for path in _files(stream, SCHEMA_FILE)]
        _refuse_missing(stream, key, paths, [path for path in paths.values() if any(path in each for each in schemas)])
        if one_of(stream, FRAMING, NONE, SINGLE_OBJECT) == SINGLE_OBJECT:
            known: dict[Hashable, Schema] = {each.fingerprint: each for each in schemas}
            return Messages(SingleObjects(), _known(known), paths, wanted), None
        if len(schemas) > 1:
            raise ConfigError(
                f"{key}.{SCHEMA_FILE} names {len(schemas)} files, and messages do not say which of them they were "
                f"written with. Name one, or write options.{FRAMING} = {SINGLE_OBJECT!r} if they do."
            )
        return Messages(Bare(), _known({None: schemas[0]}), paths, wanted), None
    ca = stream.directory / stream.options[CA] if CA in stream.options else None
    framing: Framing
    if place == NAMESPACE:
        with installed(f"{key}.{NAMESPACE}", stream.options[NAMESPACE], extras.AZURE_REGISTRY):
            from samza_azure.systems.formats.azure_registry import AzureContentType, AzureRegistry
        registry = AzureRegistry(key, stream.options[NAMESPACE], ca)
        framing = AzureContentType(envelope)
        return Messages(framing, lambda number: AvroSchema(registry.schema(str(number))), paths, wanted), registry.look
    asked = ConfluentRegistry(
        key, stream.options[URL], stream.options.get("registry.user", ""), secret(stream, "registry.password"), ca
    )

    def load(number: Any) -> Schema:
        found = asked.schema(number)
        if found.kind != "AVRO":
            raise ConfigError(f"Its schema {number} is of {found.kind:.40}, and not of Avro.")
        return AvroSchema(found.text, [*found.referred.values()])

    return Messages(Confluent(), load, paths, wanted), asked.look


def _place(stream: SystemStream, ways: Mapping[str, tuple[str, ...]]) -> str:
    """The option that says where schemas are, of which there is one, with nothing but what goes with it."""
    key, named = f"streams.{stream.name}.options", [name for name in stream.options if name in {*SCHEMAS, *REGISTRY}]
    found = [name for name in ways if name in named]
    if len(found) != 1:
        raise ConfigError(
            f"{key}.format is {stream.options['format']!r}, whose messages need the schema that they were written "
            f"with, and {' and '.join(found) or 'nothing'} says where that is. Write one of {', '.join(ways)}."
        )
    if wrong := [name for name in named if name != found[0] and name not in ways[found[0]]]:
        raise ConfigError(f"{key}.{wrong[0]} does not go with {found[0]}. Remove the line.")
    return found[0]


def _files(stream: SystemStream, option: str) -> list[Path]:
    return [stream.directory / name.strip() for name in stream.options[option].split(",")]


def _checked(key: str, path: Path, made: Callable[[str], Any]) -> Any:
    try:
        return made(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{key} names {path.name}, which cannot be read: {why}. Correct the path.") from error
    except ConfigError as error:
        raise ConfigError(f"{key} names {path.name}, which is of no use: {error}") from error


def _refuse_missing(stream: SystemStream, key: str, paths: Paths, found: Sequence[Sequence[str]]) -> None:
    """A column that no schema has would be null for ever."""
    if missing := next((name for name, path in paths.items() if path not in found), None):
        raise ConfigError(
            f"streams.{stream.name}.schema has the column {missing!r}, and the schema in the file has no field "
            f'{".".join(paths[missing])!r}. Write options.from.{missing} = "field.inside", or remove the column.'
        )


def _known(schemas: Mapping[Hashable, Schema]) -> Callable[[Hashable], Schema]:
    def schema(key: Hashable) -> Schema:
        if (found := schemas.get(key)) is None:
            name = key.hex() if isinstance(key, bytes) else key
            raise ConfigError(f"It names a schema with the fingerprint {name}, which none of the files has.")
        return found

    return schema

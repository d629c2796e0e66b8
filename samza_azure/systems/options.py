"""What the options of a stream say, where several connectors ask the same."""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.systems.api import SystemStream

#: The options that say how bytes become rows.
FORMAT, PARSE, ENVELOPE, FROM = "format", "parse", "envelope", "from."
JSON, CSV, RAW, AVRO, PROTOBUF = FORMATS = ("json", "csv", "raw", "avro", "protobuf")
#: Where the schemas of messages are, by the formats that need some.
SCHEMA_FILE, FRAMING, DESCRIPTOR_FILE, MESSAGE, NANOSECONDS = SCHEMAS = (
    "schema.file", "framing", "descriptor.file", "message", "nanoseconds",
)  # fmt: skip
REGISTRY = ("registry.url", "registry.user", "registry.password", "registry.password.file", "registry.ca.file",
            "registry.namespace")  # fmt: skip
#: The bytes of a message; the other columns are the envelope.
BODY = "body"
#: Beside the option that is a secret, the one that names a file with it.
FILE = ".file"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: What other programs call one of our options, in small letters and with points.
ELSEWHERE = {
    "bootstrap.servers": "brokers", "kafka.bootstrap.servers": "brokers", "servers": "brokers", "hosts": "brokers",
    "group.id": "group", "groupid": "group", "subscribe": "topic", "topics": "topic", "topic.name": "topic",
    "auto.offset.reset": "start", "starting.offsets": "start", "starting.position": "start", "offset": "start",
    "fail.on.data.loss": "on_expired", "sasl.mechanism": "sasl", "sasl.mechanisms": "sasl", "security.protocol": "sasl",
    "username": "user", "sasl.username": "user", "sasl.password": "password", "ssl": "tls",
    "ssl.ca.location": "ca.file",
    "connection.string": "connect", "connection": "connect", "hub": "name", "hub.name": "name", "eventhub": "name",
    "event.hub.name": "name", "consumergroup": "consumer_group", "schema.registry.url": "registry.url",
    "value.format": "format", "partition.key": "partition.by", "key": "partition.by",
}  # fmt: skip

Word: TypeAlias = Literal["oldest", "newest"]
#: Where to begin: by a word, at a time, or in each partition by a word or with the row of a number.
Start: TypeAlias = Word | datetime | Mapping[int, int | Word]
OLDEST: Word = "oldest"
WORDS: Mapping[str, Word] = {"oldest": "oldest", "newest": "newest"}


def is_of_parser(name: str) -> bool:
    """Whether an option of a stream says how bytes become rows."""
    return name in (FORMAT, PARSE, ENVELOPE, *SCHEMAS, *REGISTRY) or name.startswith(FROM)


def refuse_unknown(stream: SystemStream, system: str, known: Collection[str]) -> None:
    """Raise ConfigError for an option that is not one of these, and of a stream that is read none of a parser."""
    if unknown := [
        name for name in stream.options if name not in known and (stream.is_output or not is_of_parser(name))
    ]:
        which = "which has for a stream that a stage writes" if stream.is_output else "which has"
        others = "" if stream.is_output else ", format and what belongs to it, parse, envelope, and from.<column>"
        meant = _meant(
            min(unknown), [*known, *([] if stream.is_output else (FORMAT, PARSE, ENVELOPE, *SCHEMAS, *REGISTRY))]
        )
        raise ConfigError(
            f"streams.{stream.name}.options.{min(unknown)} is not an option of {system}, {which} "
            f"{', '.join(sorted(known))}{others}. {f'Write options.{meant}.' if meant else 'Remove the line.'}"
        )


def _meant(option: str, known: Collection[str]) -> str:
    """The option that is probably meant; empty if none is near."""
    said = re.sub(r"[-_\s]", ".", re.sub(r"(?<=[a-z])(?=[A-Z])", ".", option)).lower()
    for system in ("kafka.", "eventhubs.", "options."):
        said = said.removeprefix(system)
    if (other := ELSEWHERE.get(said)) in known:
        return other or ""
    near = {name.replace("_", "."): name for name in known}
    found = difflib.get_close_matches(said, near, n=1, cutoff=0.6)
    return near[found[0]] if found else ""


def one_of(stream: SystemStream, option: str, *values: str) -> str:
    """An option that is one of these; the first is the default."""
    said = stream.options.get(option, values[0])
    if said not in values:
        raise ConfigError(f"streams.{stream.name}.options.{option} is {said!r}. Write one of {', '.join(values)}.")
    return said


def other_count(stream: str, declared: int, number: int) -> ConfigError:
    """A stream outside has another number of partitions than the job file says."""
    return ConfigError(
        f"streams.{stream}.partitions is {declared}, but the stream has {number} there. Drain the run, write "
        f"partitions = {number}, and start again."
    )


def added(stream: str, declared: int, number: int) -> str:
    """What to do if a stream outside has got more partitions than the run reads; empty if it has not."""
    if number <= declared:
        return ""
    return (
        f"streams.{stream}.partitions is {declared}, and the stream has {number} there by now: nobody reads the new "
        f"ones. Drain the run, write partitions = {number}, and start again: then they are read from their beginning."
    )


def start_of(stream: SystemStream, number: str) -> Start:
    """Where to begin a partition that was never read. `number` is what the system calls that of a row."""
    said = stream.options.get("start", OLDEST)
    if ":" in said and "T" not in said and "-" not in said:
        return _exact(stream, said, number)
    if said in WORDS:
        return WORDS[said]
    try:
        at = datetime.fromisoformat(said)
    except ValueError as error:
        raise ConfigError(
            f'streams.{stream.name}.options.start is {said!r}. Write "oldest", "newest", {number} for each partition '
            'like "0:120,1:88", or a time like "2026-01-31T12:00:00Z".'
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _exact(stream: SystemStream, said: str, number: str) -> Mapping[int, int | Word]:
    """The number of the first row of each partition, or a word."""
    try:
        parts = [each.strip().split(":") for each in said.split(",")]
        found = {int(partition): WORDS[at] if at in WORDS else int(at) for partition, at in parts}
    except ValueError:
        found, parts = {}, []
    wanted = {*range(stream.partitions)}
    is_whole = len(parts) == len(found) and wanted - stream.added <= found.keys() <= wanted
    if not is_whole or any(isinstance(at, int) and not 0 <= at < 1 << 63 for at in found.values()):
        raise ConfigError(
            f"streams.{stream.name}.options.start is {said!r}. Write {number} for each of the {stream.partitions} "
            'partitions, like "0:120,1:88"; "oldest" and "newest" may stand for one.'
        )
    return found


def start_at(stream: SystemStream, start: Start, partition: int) -> int | Word | datetime:
    """The same for one partition."""
    if partition in stream.added:
        return OLDEST
    return start[partition] if isinstance(start, Mapping) else start


def whole_ms(time: datetime) -> int:
    """The first millisecond since 1970 that is not before a time."""
    return -((EPOCH - time) // timedelta(milliseconds=1))


def secret(stream: SystemStream, option: str) -> Callable[[], str] | None:
    """What returns the present value of a secret: of the option, or of the file that `<option>.file` names, which is
    read each time. None if the stream has neither.
    """
    options, in_file = stream.options, option + FILE
    if in_file in options:
        path, key = stream.directory / options[in_file], f"streams.{stream.name}.options"
        return lambda: _read(path, f"{key}.{in_file}")
    if option in options:
        value = options[option]
        return lambda: value
    return None


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"  # its path is not for the log
        raise StorageUnavailable(f"{key} cannot be read: {why}. See to the file, or correct the path.") from error

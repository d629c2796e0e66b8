"""Messages as columns of a stream: each is read by the schema that it was written with.

Which that is, the options say: a file, what the message begins with (`Framing`), or what stands beside it. Messages of
several schemas may come together, as they do while writers are upgraded.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.machine.clock import boot_time
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.systems.options import BODY

#: How many schemas are remembered, and for how long that one cannot be used: it may be registered by then.
MOST_SCHEMAS, REFUSED_S = 1_000, 10.0
#: So long schemas are asked for while messages are read: the task that reads them has other things to do.
ASK_S = 2.0
#: Times are dates of these years in Python.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

Paths: TypeAlias = Mapping[str, Sequence[str]]


class Schema(Protocol):
    """What some messages were written with."""

    name: str

    def __contains__(self, path: Sequence[str]) -> bool:
        """Whether there is a field at a path."""

    def read(self, bodies: Sequence[bytes], paths: Paths) -> pa.Table:
        """A row for each body, with a column for each path of fields. Raise ConfigError if one is none."""


class Framing(Protocol):
    """How messages say which schema they were written with."""

    @property
    def needs(self) -> Sequence[str]:
        """The columns of messages that it looks at, beside their bodies."""

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        """Of each message which schema it has, and what was written with it. Raise ConfigError if one does not say."""


class Messages:
    """Reads messages."""

    def __init__(self, framing: Framing, schema: Callable[[Hashable], Schema], paths: Paths, wanted: pa.Schema) -> None:
        """`schema` returns what `framing` names. It may raise ConfigError, and StorageUnavailable.

        `wanted` are the columns that come from the body, and `paths` where in it.
        """
        self.needs, self._split, self._load = framing.needs, framing.split, schema
        self._paths, self._wanted = paths, wanted
        self._schemas: dict[Hashable, Schema] = {}
        self._refused: dict[Hashable, tuple[float, str]] = {}  # until when, and why
        self._began_at = self._asked_s = 0.0  # of the messages that are read
        self._is_given_up = False

    def begin(self) -> None:
        """Messages are about to be read, in one or several calls. If the last ones were given up, they come again: then
        nothing of what was learned is forgotten, so that in the end all of it is known.
        """
        if not self._is_given_up:
            self._began_at = boot_time()
            for known in (self._schemas, self._refused):
                if len(known) >= MOST_SCHEMAS:
                    known.clear()
        self._is_given_up, self._asked_s = False, 0.0

    def __call__(self, messages: pa.Table) -> pa.Table:
        """A row for each message. Raise ConfigError if one is none, and StorageUnavailable if the schemas are not known
        yet that some were written with.
        """
        found = defaultdict[Hashable, tuple[list[int], list[bytes]]](lambda: ([], []))
        for number, (key, body) in enumerate(self._split(messages)):
            numbers, bodies = found[key]
            numbers.append(number)
            bodies.append(body)
        read = {key: self._read(self._schema(key), bodies) for key, (_, bodies) in found.items()}
        if len(read) == 1:
            return next(iter(read.values()))
        numbers = [number for each, _ in found.values() for number in each]
        return pa.concat_tables(read.values()).take(pc.sort_indices(pa.array(numbers)))

    def _read(self, schema: Schema, bodies: Sequence[bytes]) -> pa.Table:
        rows = fitted(schema.read(bodies, self._paths), self._wanted)
        for field, values in zip(rows.schema, rows.columns, strict=True):
            for chunk in values.chunks:
                refuse_beyond_calendar(chunk, field.name)
        return rows

    def _schema(self, key: Hashable) -> Schema:
        if (found := self._schemas.get(key)) is not None:
            return found
        until, why = self._refused.get(key, (0.0, ""))
        if self._began_at < until:
            raise ConfigError(why)
        if self._asked_s > ASK_S:
            self._is_given_up = True
            raise StorageUnavailable(
                f"The messages were written with more schemas than are known after {ASK_S:g} s of asking. They are "
                "read again, and the others asked for."
            )
        asked_at = boot_time()
        try:
            found = self._load(key)
            if self._paths and not any(path in found for path in self._paths.values()):
                fields = ", ".join(".".join(path) for path in self._paths.values())
                raise ConfigError(f"Its schema {found.name:.80} has none of the fields {fields:.200}.")
        except AccessDenied:  # it says nothing of the message
            raise
        except StorageUnavailable:
            self._is_given_up = True
            raise
        except ConfigError as error:
            self._refused[key] = boot_time() + REFUSED_S, str(error)
            raise
        finally:
            self._asked_s += boot_time() - asked_at
        self._schemas[key] = found
        return found


def refuse_beyond_calendar(values: pa.Array, path: str) -> None:
    """Raise ConfigError for a time or date that is none of the years 1 to 9999, which Python has."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        numbers = values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values.cast(pa.int32())
        days = 1 if pa.types.is_timestamp(kind) else 86_400_000_000
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and not _FIRST_US <= found["min"] * days <= found["max"] * days <= _LAST_US:
            raise ConfigError(f"The column {path!r} holds times of the years 1 to 9999, and this is none of them.")
    elif pa.types.is_struct(kind):
        for inner, part in zip(kind, values.flatten(), strict=True):
            refuse_beyond_calendar(part, f"{path}.{inner.name}")
    elif pa.types.is_map(kind):
        refuse_beyond_calendar(values.keys, f"{path}.key")
        refuse_beyond_calendar(values.items, f"{path}.value")
    elif pa.types.is_list(kind):
        refuse_beyond_calendar(values.flatten(), f"{path}.element")


class Bare:
    """Messages of one schema, which they do not name."""

    needs: Sequence[str] = ()

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        return [(None, body) for body in bodies_of(messages)]


class SingleObjects:
    """Messages that are single objects of Avro: C3 01, and the fingerprint of their schema."""

    needs: Sequence[str] = ()

    def split(self, messages: pa.Table) -> Sequence[tuple[Hashable, bytes]]:
        found = []
        for body in bodies_of(messages):
            if len(body) < 10 or not body.startswith(b"\xc3\x01"):
                raise ConfigError(
                    f"It begins with {body[:10].hex(' ') or 'nothing'}, and should as a single object of Avro: with "
                    "c3 01 and the fingerprint of its schema in eight bytes."
                )
            found.append((body[2:10], body[10:]))
        return found


def bodies_of(messages: pa.Table) -> list[bytes]:
    """The bodies. Raise ConfigError if there is none."""
    found: list[bytes] = messages[BODY].to_pylist()
    if messages[BODY].null_count:
        raise ConfigError("It is empty.")
    return found

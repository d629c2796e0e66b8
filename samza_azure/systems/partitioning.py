"""Which partition outside a row goes to, by Samza's three methods.

Promised: it depends on the row, its number and its writer alone; and `EVENT_HASHING` sends a key where the system's own
clients send it.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from samza_azure.errors import ConfigError
from samza_azure.systems.api import SystemStream, SystemWriter
from samza_azure.systems.options import one_of

METHOD, KEY = OPTIONS = ("partition.method", "partition.by")
ROUND_ROBIN, EVENT_HASHING, KEY_AS_PARTITION = METHODS = ("ROUND_ROBIN", "EVENT_HASHING", "PARTITION_KEY_AS_PARTITION")
_KEYS = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
#: The partitions of so many keys up to this length are kept in memory.
KEPT, SHORT = 1 << 16, 128


class Partitioner:
    """The partitions of the rows of one stream. `hashed` is the partition of a key among so many, for the system."""

    def __init__(self, stream: SystemStream, hashed: Callable[[str, int], int]) -> None:
        """Raise ConfigError for a key that the method cannot use."""
        self._stream, self._hashed, self._known = stream, hashed, lru_cache(KEPT)(hashed)
        self._key, self._method = _key(stream), one_of(stream, METHOD, "", *METHODS)
        if not self._method:
            self._method = EVENT_HASHING if self._key else ROUND_ROBIN
        self._check_key()

    def keys(self, rows: pa.Table) -> Sequence[str | None]:
        """The key of each row as text; None for one without a key."""
        return [None] * rows.num_rows if self._method == ROUND_ROBIN else rows[self._key].cast(pa.string()).to_pylist()

    def places(self, writer: SystemWriter, number: int, rows: pa.Table) -> Iterator[int | str]:
        """The partition of each row, or why it has none. The rows have numbers from `number` on."""
        partitions = writer.partitions or 1
        begin = first_turn(writer.id)
        if self._method == KEY_AS_PARTITION:
            for key in rows[self._key].to_pylist():
                yield (
                    f"Its {self._key} is {key}, which is no partition: a whole number from 0 is expected."
                    if key is None or key < 0
                    else key % partitions
                )
        else:
            for index, key in enumerate(self.keys(rows)):
                if key is None:
                    yield (number + index + begin) % partitions
                else:
                    yield (self._known if len(key) <= SHORT else self._hashed)(key, partitions)

    def _check_key(self) -> None:
        name = f"streams.{self._stream.name}.options"
        if self._method == ROUND_ROBIN:
            if KEY in self._stream.options:
                raise ConfigError(f"{name}.{KEY} has no effect with {ROUND_ROBIN}. Remove one of the two lines.")
            return
        types = {field.name: field.type for field in self._stream.schema}
        if self._key not in types:
            said = f"{name}.{KEY} is {self._key!r}" if self._key else f"{name}.{METHOD} is {self._method!r}"
            raise ConfigError(
                f"{said}, and the stream has the columns {', '.join(types)}. Write {KEY} = one of them, by which rows "
                "go to their partitions."
            )
        kind = types[self._key]
        if self._method == KEY_AS_PARTITION and not pa.types.is_integer(kind):
            raise ConfigError(f"{name}.{METHOD} is {self._method!r}, so {self._key!r} should be a whole number.")
        if not any(is_kind(kind) for is_kind in _KEYS):
            raise ConfigError(
                f"{name}.{KEY} is {self._key!r}, a column that is no text, whole number, boolean or date. Name another."
            )


def _key(stream: SystemStream) -> str:
    """The column that decides the partition: the one that is named, or that of the stage's `partition_by`."""
    by = stream.key[0] if len(stream.key) == 1 else ""
    asked = stream.options.get(KEY)
    if asked is not None:
        return asked
    fits = any(is_kind(stream.schema.field(by).type) for is_kind in _KEYS) if by in stream.schema.names else False
    return by if fits and stream.options.get(METHOD) != ROUND_ROBIN else ""


def first_turn(writer: str) -> int:
    """What is added to the number of a row without a key for its partition: writers begin at different ones."""
    return zlib.crc32(writer.encode())

"""Messages as rows: the value as it is, and what the broker says of it. Only the columns that somebody wants are made:
taking the headers of a message apart costs as much as the rest of it.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from confluent_kafka import Message

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary()),  # null: a tombstone
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),  # of the producer or the broker, as the topic is set up
        pa.field("key", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),  # a name may come more than once
    ]
)
#: The years from 1 to 9999, for which Python has dates.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
#: What the place of a message is told by.
ALWAYS = frozenset({"body", "offset", "timestamp"})


def rows(messages: "Sequence[Message]", wanted: Collection[str]) -> pa.Table:
    """One row per message, with the columns that are wanted."""
    names = [name for name in SCHEMA.names if name in wanted or name in ALWAYS]
    columns = [pa.array(_values(name, messages), SCHEMA.field(name).type) for name in names]
    return pa.table(columns, pa.schema([SCHEMA.field(name) for name in names]))


def _values(name: str, messages: "Sequence[Message]") -> list[Any]:
    match name:
        case "body":
            return [message.value() for message in messages]
        case "partition":
            return [message.partition() for message in messages]
        case "offset":
            return [message.offset() for message in messages]
        case "timestamp":
            return [_us(time_ms(message)) for message in messages]
        case "key":
            return [message.key() for message in messages]
        case _:
            return [[{"key": key, "value": value} for key, value in message.headers() or ()] for message in messages]


def time_ms(message: "Message") -> int | None:
    """When a message was written. None if it does not say, or says what is in no calendar: some producers count in
    nanoseconds.
    """
    kind, ms = message.timestamp()
    return ms if kind and _FIRST_MS <= ms <= _LAST_MS else None


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000

"""Messages as rows: the value as it is, and what the broker says of it. Only the columns that somebody wants are made:
taking the headers of a message apart costs as much as the rest of it.
"""

from collections.abc import Collection, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from confluent_kafka import Message

HEADERS = "headers"
_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary()),  # null: a tombstone
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC")),  # of the producer or the broker, as the topic is set up
        pa.field("key", pa.binary()),
        pa.field(HEADERS, pa.list_(_HEADER)),  # a name may come more than once; null: they cannot be read
    ]
)
#: The years from 1 to 9999, for which Python has dates.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
#: In the place of headers that the client cannot read.
UNREADABLE: list[tuple[str, bytes | None]] = [("", None)]
#: Why they make a message none, for who wants them.
NO_TEXT = "The name of one of its headers is not UTF-8."
# Of `message.headers()`, Python from 3.11 may see an error only some steps later: where it has specialised the call,
# it looks for none beside a result.
_headers = methodcaller("headers")
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
            return [_pairs(headers_of(message)) for message in messages]


def headers_of(message: "Message") -> Sequence[tuple[str, bytes | None]]:
    """The names and values of its headers; `UNREADABLE` if the name of one is not UTF-8."""
    try:
        return _headers(message) or ()
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        # confluent-kafka 2.16 has kept what it made until then, with null pointers: to look at it ends the process.
        message.set_headers(UNREADABLE)
        return UNREADABLE


def _pairs(headers: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]] | None:
    return None if headers is UNREADABLE else [{"key": key, "value": value} for key, value in headers]


def time_ms(message: "Message") -> int | None:
    """When a message was written. None if it does not say, or says what is in no calendar: some producers count in
    nanoseconds.
    """
    kind, ms = message.timestamp()
    return ms if kind and _FIRST_MS <= ms <= _LAST_MS else None


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000

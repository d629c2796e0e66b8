"""Events as rows: the body as it is, and what the service says of it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("offset", pa.string(), nullable=False),
        pa.field("enqueued_time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("partition_key", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("content_type", pa.string()),
    ]
)


class Received:
    """An event as the SDK's AMQP has decoded it, in the place of `EventData`, of which it would make two."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    @property
    def facts(self) -> Mapping[bytes, Any]:
        """What the service says of it."""
        return self._message.message_annotations or {}

    @property
    def sequence_number(self) -> int | None:
        return self.facts.get(b"x-opt-sequence-number")

    @property
    def end(self) -> tuple[int, int] | None:
        """The number of the last event in the partition and when it was enqueued, in milliseconds since 1970, if the
        service says that.
        """
        said = self._message.delivery_annotations or {}
        number, time = said.get(b"last_enqueued_sequence_number"), said.get(b"last_enqueued_time_utc")
        return None if number is None or time is None else (number, time)

    @property
    def properties(self) -> dict[str, Any]:
        """Those of its sender."""
        return named(self._message.application_properties or {})

    @property
    def content_type(self) -> str | None:
        return text(self._message.properties.content_type) if self._message.properties else None

    @property
    def body(self) -> bytes:
        """The bytes of a body of bytes. Clients in other languages may send values, too: those become JSON, and text is
        taken as it is.
        """
        if data := self._message.data:
            return b"".join(data)
        value = self._message.sequence or self._message.value
        if isinstance(value, (bytes, str)):
            return value if isinstance(value, bytes) else value.encode()
        return json.dumps(_plain(value), default=text).encode()


def rows(events: Sequence[Received]) -> pa.RecordBatch:
    """One row per event."""
    facts = [event.facts for event in events]
    columns = [
        [event.body for event in events],
        [fact[b"x-opt-sequence-number"] for fact in facts],
        [text(fact[b"x-opt-offset"]) for fact in facts],
        [fact[b"x-opt-enqueued-time"] * 1000 for fact in facts],
        [text(fact.get(b"x-opt-partition-key")) for fact in facts],
        [[(name, text(value)) for name, value in event.properties.items()] for event in events],
        [event.content_type for event in events],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _plain(value: Any) -> Any:
    """A value with the names that JSON has."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in named(value).items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def named(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A map of AMQP, in which anything may be a name, without what null names."""
    return {name: value for key, value in values.items() if (name := text(key)) is not None}


def text(value: Any) -> str | None:
    """A value of AMQP as text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return json.dumps(value) if isinstance(value, bool) else str(value)

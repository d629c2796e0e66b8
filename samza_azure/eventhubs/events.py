"""Events as rows: the body as it is, and what the service says of it."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from azure.eventhub import EventData

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


def rows(events: Sequence["EventData"]) -> pa.RecordBatch:
    """One row per event."""
    facts = [event.raw_amqp_message.annotations or {} for event in events]
    columns = [
        [_body(event) for event in events],
        [fact[b"x-opt-sequence-number"] for fact in facts],
        [_text(fact[b"x-opt-offset"]) for fact in facts],
        [fact[b"x-opt-enqueued-time"] * 1000 for fact in facts],
        [_text(fact.get(b"x-opt-partition-key")) for fact in facts],
        [[(name, _text(value)) for name, value in _named(event.properties or {}).items()] for event in events],
        [_text(event.content_type) for event in events],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def _body(event: "EventData") -> bytes:
    """The bytes of a body of bytes. Clients in other languages may send values, too: those become JSON, and text is
    taken as it is.
    """
    body: Any = event.body
    if isinstance(body, (bytes, str)):
        return body if isinstance(body, bytes) else body.encode()
    if event.body_type.value == "data":
        return b"".join(body)
    return json.dumps(_plain(body if event.body_type.value == "value" else list(body)), default=_text).encode()


def _plain(value: Any) -> Any:
    """A value with the names that JSON has."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in _named(value).items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _named(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A map of AMQP, in which anything may be a name, without what null names."""
    return {name: value for key, value in values.items() if (name := _text(key)) is not None}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return json.dumps(value) if isinstance(value, bool) else str(value)

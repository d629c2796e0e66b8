"""Events taken from AMQP frames as columns: faster than by the SDK, which makes objects of all that a message has.

Promised: the rows that the SDK's decoder and `events.rows` make of the same bytes, or nothing: of a frame that is not
of the usual kind nothing is taken, and whoever calls gives it to the SDK.

Usual is a message in one frame, with one body of bytes and what the service says of an event. The header, what is said
of the delivery and the footer are passed over by their size.
"""

from collections.abc import Sequence
from struct import Struct, error
from typing import Any

import pyarrow as pa

from samza_azure.eventhubs.amqp import decode
from samza_azure.eventhubs.events import SCHEMA, named, text

_U32, _I64 = Struct(">I"), Struct(">q")
#: How long unsigned numbers are, with their code.
_UINT = {0x43: 1, 0x52: 2, 0x70: 5}
#: How long values of a fixed size are, with their code.
_FIXED = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 1),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 2),
    **dict.fromkeys((0x60, 0x61), 3),
    **dict.fromkeys((0x70, 0x71, 0x72), 5),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83), 9),
    **dict.fromkeys((0x94, 0x98), 17),
}
#: Binary, text and symbol, shorter than 256 bytes or not.
_TEXTS, _LONG_TEXTS = frozenset((0xA0, 0xA1, 0xA3)), frozenset((0xB0, 0xB1, 0xB3))
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_NUMBERS = {
    code: Struct(">" + form)
    for code, form in [
        *[(0x50, "B"), (0x51, "b"), (0x52, "B"), (0x53, "B"), (0x54, "b"), (0x55, "b"), (0x60, "H"), (0x61, "h")],
        *[(0x70, "I"), (0x71, "i"), (0x72, "f"), (0x80, "Q"), (0x81, "q"), (0x82, "d"), (0x83, "q")],
    ]
}
#: Lists and maps, with sizes of one byte or four; whole numbers of 64 bits; and the header and the footer.
_SMALL, _LARGE, _LONGS, _PASSED_OVER = (
    frozenset(two) for two in ((0xC0, 0xC1), (0xD0, 0xD1), (0x81, 0x83), (0x70, 0x78))
)
#: The fields of the section of properties, and the place of the type of the content among them.
_FIELDS, _CONTENT_TYPE = 13, 6
_OFFSET, _NUMBER, _TIME, _KEY = (
    b"x-opt-offset",
    b"x-opt-sequence-number",
    b"x-opt-enqueued-time",
    b"x-opt-partition-key",
)


class _Unusual(Exception):
    """Something that is for the SDK to read."""


class Transfers:
    """Events in the order in which they came on a link.

    Example:
        at = transfers.take(data, 0, head, handles)
    """

    def __init__(self) -> None:
        self._taken: list[tuple[Any, ...]] = []
        self._said: tuple[bytes, int] | None = None  # the last delivery annotations, and where they begin

    def __len__(self) -> int:
        return len(self._taken)

    def numbers(self) -> list[int]:
        """Their numbers in the partition."""
        return [event[1] for event in self._taken]

    def rows(self, kept: Sequence[int] | None = None) -> pa.RecordBatch:
        """One row per event, or for those at some places."""
        taken = self._taken if kept is None else [self._taken[at] for at in kept]
        bodies, numbers, offsets, times, keys, properties, types = zip(*taken, strict=True)
        columns = [
            pa.array(bodies, pa.binary()),
            pa.array(numbers, pa.int64()),
            _texts(offsets),
            pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
            _texts(keys),
            _properties(properties),
            _texts(types),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def end(self) -> tuple[int, int] | None:
        """The number of the last event in the partition and when it was enqueued, in milliseconds since 1970, as the
        last event here says.
        """
        if self._said is None:
            return None
        try:
            facts, _ = decode(*self._said)
        except (IndexError, ValueError, error):
            return None
        if not isinstance(facts, dict):
            return None
        number, time = facts.get("last_enqueued_sequence_number"), facts.get("last_enqueued_time_utc")
        return None if number is None or time is None else (number, time)

    def take(self, data: bytes, at: int, head: bytes, handles: frozenset[bytes]) -> int:
        """Take events from the frames that begin at `at`, and return where the first frame begins that is not whole or
        of another kind.

        `head` is what stands behind the size of the frames, up to the fields of the transfer; `handles` has the ways
        to write the link's.
        """
        size_at, left, taken, uint = _U32.unpack_from, len(data), self._taken, _UINT
        while True:
            if left - at < 24:
                return at
            end = at + size_at(data, at)[0]
            if end > left or data[at + 4 : at + 11] != head:
                return at
            code = data[at + 11]
            if code == 0xC0:
                at_field, section = at + 14, at + 13 + data[at + 12]
            elif code == 0xD0:
                at_field, section = at + 20, at + 16 + size_at(data, at + 12)[0]
            else:
                return at
            try:
                size = uint[data[at_field]]
                if data[at_field : at_field + size] not in handles:
                    return at
                at_field += size
                at_field += uint[data[at_field]]
                if data[at_field] != 0xA0:
                    return at
                at_field += 2 + data[at_field + 1]
                at_field += 1 if data[at_field] == 0x40 else uint[data[at_field]]
                # Whether it is settled, and whether more follows.
                if not 0x40 <= data[at_field] <= 0x42 or data[at_field + 1] not in (0x40, 0x42):
                    return at
                if at_field + 2 > section:
                    return at
                event = self._event(data, section, end)
            except (_Unusual, KeyError, IndexError, error):
                return at
            taken.append(event)
            at = end

    def _event(self, data: bytes, at: int, end: int) -> tuple[Any, ...]:
        size_at = _U32.unpack_from
        body = content_type = said = None
        facts: dict[Any, Any] | None = None
        properties: dict[Any, Any] | None = None
        while at < end:
            if data[at] or data[at + 1] != 0x53:
                raise _Unusual
            section, code = data[at + 2], data[at + 3]
            if section == 0x75:
                begin = at + 5 if code == 0xA0 else at + 8
                at = begin + data[at + 4] if code == 0xA0 else begin + size_at(data, at + 4)[0]
                if body is not None or code not in (0xA0, 0xB0) or at > end:
                    raise _Unusual
                body = data[begin:at]
                continue
            if code in _SMALL:
                count, begin, after = data[at + 5], at + 6, at + 5 + data[at + 4]
            elif code in _LARGE:
                count, begin, after = size_at(data, at + 8)[0], at + 12, at + 8 + size_at(data, at + 4)[0]
            elif code == 0x45:
                count, begin, after = 0, at + 4, at + 4
            else:
                raise _Unusual
            if after > end:
                raise _Unusual
            if section == 0x72:
                facts = _pairs(data, begin, after, count)
            elif section == 0x74:
                properties = _pairs(data, begin, after, count)
            elif section == 0x73:
                content_type = _content_type(data, begin, after, count)
            elif section == 0x71:
                said = data, at + 3
            elif section not in _PASSED_OVER:
                raise _Unusual
            at = after
        if body is None or facts is None or at != end:
            raise _Unusual
        number, offset, time = facts[_NUMBER], facts[_OFFSET], facts[_TIME]
        if type(number) is not int or type(offset) is not bytes or type(time) is not int:
            raise _Unusual
        self._said = said
        return body, number, offset, time, facts.get(_KEY), properties, content_type


def _texts(values: Sequence[Any]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.string())
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([text(value) for value in values], pa.string())


def _properties(values: Sequence[dict[Any, Any] | None]) -> pa.Array:
    kind = SCHEMA.field("properties").type
    if not any(values):
        return pa.MapArray.from_arrays(
            pa.array([0] * (len(values) + 1), pa.int32()), pa.array([], pa.string()), pa.array([], pa.string())
        )
    return pa.array([[(name, text(value)) for name, value in named(each or {}).items()] for each in values], kind)


def _pairs(data: bytes, at: int, end: int, count: int) -> dict[Any, Any]:
    """A map, as the SDK reads it: texts are bytes."""
    if count & 1:
        raise _Unusual
    found: dict[Any, Any] = {}
    texts = _TEXTS
    for _ in range(count >> 1):
        if data[at] not in texts:
            raise _Unusual
        begin = at + 2
        at = begin + data[at + 1]
        name, code = data[begin:at], data[at]
        if code in texts:
            begin = at + 2
            at = begin + data[at + 1]
            found[name] = data[begin:at]
        elif code in _LONGS:
            found[name] = _I64.unpack_from(data, at + 1)[0]
            at += 9
        else:
            found[name], at = _value(data, at)
    if at != end:
        raise _Unusual
    return found


def _value(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    if code in _CONSTANTS:
        return _CONSTANTS[code], at + 1
    if (kind := _NUMBERS.get(code)) is not None:
        return kind.unpack_from(data, at + 1)[0], at + 1 + kind.size
    if code in _LONG_TEXTS:
        begin = at + 5
        end = begin + _U32.unpack_from(data, at + 1)[0]
        return data[begin:end], end
    raise _Unusual


def _content_type(data: bytes, at: int, end: int, count: int) -> bytes | None:
    """The type of the content among the fields of the section, which has so many."""
    found = None
    if count > _FIELDS:
        raise _Unusual
    for number in range(count):
        code = data[at]
        begin = at
        if code in _FIXED:
            at += _FIXED[code]
        elif code in _TEXTS:
            at += 2 + data[at + 1]
        elif code in _LONG_TEXTS:
            at += 5 + _U32.unpack_from(data, at + 1)[0]
        else:
            raise _Unusual
        if number == _CONTENT_TYPE and code != 0x40:
            found, _ = _value(data, begin)
            if type(found) is not bytes:
                raise _Unusual
    if at != end:
        raise _Unusual
    return found

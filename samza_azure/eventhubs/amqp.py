"""AMQP 1.0: its types and frames, as far as Event Hubs needs them. Only the standard library is used.

Values are written by the function of their type, so what is passed on is bytes. Each list that is written has all of
its fields, null where there is nothing to say: the Python SDK cannot read one whose last fields are left out, although
the standard allows that.
"""

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
NULL = b"\x40"


class Code(IntEnum):
    """The descriptors of frames, states and sections of messages."""

    OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
    ERROR = 0x1D
    ACCEPTED, REJECTED = 0x24, 0x25
    SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
    DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA = range(0x71, 0x76)
    VALUE = 0x77


def boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def ubyte(value: int) -> bytes:
    return struct.pack(">BB", 0x50, value)


def ushort(value: int) -> bytes:
    return struct.pack(">BH", 0x60, value)


def uint(value: int) -> bytes:
    return struct.pack(">BI", 0x70, value)


def int32(value: int) -> bytes:
    return struct.pack(">Bi", 0x71, value)


def ulong(value: int) -> bytes:
    return struct.pack(">BQ", 0x80, value)


def long(value: int) -> bytes:
    return struct.pack(">Bq", 0x81, value)


def timestamp(milliseconds: int) -> bytes:
    return struct.pack(">Bq", 0x83, milliseconds)


def _sized(code: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes([code, len(content)]) + content
    return struct.pack(">BI", code | 0x10, len(content)) + content


def binary(value: bytes) -> bytes:
    return _sized(0xA0, value)


def string(value: str) -> bytes:
    return _sized(0xA1, value.encode())


def symbol(value: str) -> bytes:
    return _sized(0xA3, value.encode())


def _compound(code: int, items: list[bytes]) -> bytes:
    content = b"".join(items)
    return struct.pack(">BII", code, len(content) + 4, len(items)) + content


def mapping(items: Mapping[bytes, bytes]) -> bytes:
    return _compound(0xD1, [each for pair in items.items() for each in pair])


def array(code: int, texts: Iterable[str]) -> bytes:
    """Strings (0xb1) or symbols (0xb3)."""
    items = [struct.pack(">I", len(text.encode())) + text.encode() for text in texts]
    content = bytes([code]) + b"".join(items)
    return struct.pack(">BII", 0xF0, len(content) + 4, len(items)) + content


def described(code: int, value: bytes) -> bytes:
    return bytes([0x00, 0x53, code]) + value


def composite(code: int, *fields: bytes) -> bytes:
    return described(code, _compound(0xD0, list(fields)))


def error(condition: str, text: str) -> bytes:
    return composite(Code.ERROR, symbol(condition), string(text), mapping({}))


def frame(channel: int, body: bytes, *, sasl: bool = False) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, int(sasl), channel) + body


class Described(NamedTuple):
    """A value and what says what it means."""

    descriptor: Any
    value: Any


_CONSTANTS: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: ()}
_FIXED = {
    code: struct.Struct(">" + form)
    for code, form in [
        *[(0x50, "B"), (0x51, "b"), (0x52, "B"), (0x53, "B"), (0x54, "b"), (0x55, "b"), (0x56, "?"), (0x60, "H")],
        *[(0x61, "h"), (0x70, "I"), (0x71, "i"), (0x72, "f"), (0x73, "I"), (0x80, "Q"), (0x81, "q"), (0x82, "d")],
        *[(0x83, "q"), (0x98, "16s")],
    ]
}


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the value that is written there, and where it ends."""
    return _decode(data[at], data, at + 1)


def _decode(code: int, data: bytes, at: int) -> tuple[Any, int]:
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if fixed := _FIXED.get(code):
        return fixed.unpack_from(data, at)[0], at + fixed.size
    if code == 0x00:
        descriptor, at = decode(data, at)
        value, at = decode(data, at)
        return Described(descriptor, value), at
    wide = ">I" if code & 0x10 else ">B"
    width = struct.calcsize(wide)
    (size,) = struct.unpack_from(wide, data, at)
    end = at + width + size
    if code & 0xE0 == 0xA0:
        content = data[at + width : end]
        return content if code & 0x0F == 0 else content.decode(), end
    (count,) = struct.unpack_from(wide, data, at + width)
    at += 2 * width
    items = []
    if code & 0xE0 == 0xE0:
        constructor, at = data[at], at + 1
        for _ in range(count):
            item, at = _decode(constructor, data, at)
            items.append(item)
        return items, end
    for _ in range(count):
        item, at = decode(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if code & 0x0F == 1 else items), end


class Fields(NamedTuple):
    """A described list: its descriptor, its fields, the same as they are written, and where it ends."""

    code: int
    values: list[Any]
    written: list[bytes]
    end: int


def fields(data: bytes, at: int = 0) -> Fields:
    """Read a described list. What is left out at its end is None."""
    code, at = decode(data, at + 1)
    values: list[Any] = []
    written: list[bytes] = []
    end = at + 1
    if data[at] != 0x45:
        width = 4 if data[at] == 0xD0 else 1
        count = int.from_bytes(data[at + 1 + width : at + 1 + 2 * width], "big")
        end = at + 1 + 2 * width
        for _ in range(count):
            value, after = decode(data, end)
            values.append(value)
            written.append(data[end:after])
            end = after
    missing = 14 - len(values)  # no list has more
    return Fields(code, values + [None] * missing, written + [NULL] * missing, end)


def sections(message: bytes) -> list[tuple[int, Any, int]]:
    """The sections of a message: descriptor, value, and where it begins."""
    found = []
    at = 0
    while at < len(message):
        (section, end) = decode(message, at)
        found.append((section.descriptor, section.value, at))
        at = end
    return found

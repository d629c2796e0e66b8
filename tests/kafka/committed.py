"""What a topic holds for a reader that is `read_committed`, worked out from the topic itself: its batches, and the
marks by which each transaction ends. tansu writes these marks as Kafka does, and shows what was given up to everybody;
a broker of Kafka's tells its clients what to leave out.
"""

import socket
import struct
from dataclasses import dataclass, field

_FETCH, _VERSION, _BYTES = 1, 4, 16 << 20
_IN_TRANSACTION, _IS_MARK = 1 << 4, 1 << 5


@dataclass
class Content:
    """The bodies of the messages of a partition, in order."""

    committed: list[bytes] = field(default_factory=list)
    given_up: list[bytes] = field(default_factory=list)
    open: list[bytes] = field(default_factory=list)  # of transactions without an end


def content(port: int, topic: str, partition: int) -> Content:
    """Read a partition of a broker on this machine from its beginning to its end. Each transaction counts where it
    ends, so those of several writers may be in another order than their offsets.
    """
    found, following = Content(), 0
    pending: dict[tuple[int, int], list[bytes]] = {}
    while data := _fetched(port, topic, partition, following):
        at = 0
        while at + 61 <= len(data):
            first, length, kind, last, writer, epoch, count = struct.unpack_from(">qi9xhi16xqh4xi", data, at)
            records = data[at + 61 : at + 12 + length]
            at, following = at + 12 + length, first + last + 1
            if kind & _IS_MARK:
                is_commit = struct.unpack_from(">h", _records(records, 1)[0][0], 2)[0] == 1
                # A successor ends what a lower epoch has left open.
                for key in [key for key in pending if key[0] == writer and key[1] <= epoch]:
                    (found.committed if is_commit else found.given_up).extend(pending.pop(key))
            else:
                bodies = [body for _, body in _records(records, count)]
                (pending.setdefault((writer, epoch), []) if kind & _IN_TRANSACTION else found.committed).extend(bodies)
    found.open = [body for each in pending.values() for body in each]
    return found


def _fetched(port: int, topic: str, partition: int, offset: int) -> bytes:
    """The batches from an offset on."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    request = struct.pack(">hhih", _FETCH, _VERSION, 1, -1) + struct.pack(">iiiibi", -1, 100, 0, _BYTES, 0, 1)
    request += name + struct.pack(">iiqi", 1, partition, offset, _BYTES)
    with socket.create_connection(("127.0.0.1", port), 30.0) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">i", len(request)) + request)
        data = answer.read(struct.unpack(">i", answer.read(4))[0])
    at = 12 + len(name) + 4
    _, error, _, _, given_up = struct.unpack_from(">ihqqi", data, at)
    assert error == 0
    at += 26 + 16 * max(0, given_up)
    return data[at + 4 : at + 4 + struct.unpack_from(">i", data, at)[0]]


def _records(data: bytes, count: int) -> list[tuple[bytes, bytes]]:
    """Key and body of each."""
    found, at = [], 0
    for _ in range(count):
        length, at = _varint(data, at)
        end, at = at + length, at + 1
        for _ in range(2):  # its time and its offset
            _, at = _varint(data, at)
        values = []
        for _ in range(2):
            size, at = _varint(data, at)
            values.append(data[at : at + max(0, size)])
            at += max(0, size)
        found.append((values[0], values[1]))
        at = end
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return (value >> 1) ^ -(value & 1), at

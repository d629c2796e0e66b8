"""What is taken from frames without the SDK is what it would make of them; and what it does not take, the SDK reads."""

import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload

from samza_azure.eventhubs.amqp import (
    NULL,
    Code,
    binary,
    boolean,
    composite,
    described,
    frame,
    int32,
    long,
    mapping,
    string,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.eventhubs.events import Received, rows
from samza_azure.eventhubs.hub import EventHub
from samza_azure.eventhubs.partition_reader import PartitionReader
from samza_azure.eventhubs.receiving import SDK, Receiving
from samza_azure.eventhubs.transfers import Transfers
from tests.tls import certificate_in

from .clients import PATIENCE_S, receiving, until

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 100))]

HEAD, HANDLES = b"\x02\x00\x00\x01\x00\x53\x14", frozenset([b"\x43", b"\x52\x00", uint(0)])
HEADER, SEQUENCE, FOOTER = 0x70, 0x76, 0x78


def text(dice: Random, most: int = 300) -> str:
    return "".join(dice.choice("aé ☂z") for _ in range(dice.choice([0, 1, 20, most])))


def value(dice: Random) -> bytes:
    """One of the types that a property may have; the last ones are read by the SDK alone."""
    number = dice.getrandbits(8)
    return dice.choice(
        [
            *(NULL, boolean(True), boolean(False), b"\x56\x01", b"\x56\x00", b"\x43", b"\x44"),
            *(ubyte(number), ushort(number), uint(number), ulong(number), int32(-number), long(-number)),
            *(b"\x51\xff", b"\x52\x80", b"\x53\x80", b"\x54\x80", b"\x55\x80", b"\x61\x80\x00"),
            *(struct.pack(">Bf", 0x72, number / 7), struct.pack(">Bd", 0x82, number / 7), timestamp(number)),
            *(string(text(dice)), symbol(text(dice)), binary(dice.randbytes(number)), b"\xa1\x01\xff"),
            *(b"\x98" + dice.randbytes(16), b"\x45", composite(0x99, string("x")), b"\x73\x00\x00\x00A"),
        ]
    )


def annotations(dice: Random, number: int) -> bytes:
    facts = {
        symbol("x-opt-sequence-number"): dice.choice([long(number), ulong(number), b"\x55" + bytes([number % 128])]),
        symbol("x-opt-offset"): dice.choice([string, symbol])(text(dice)),
        symbol("x-opt-enqueued-time"): timestamp(dice.randrange(-(1 << 45), 1 << 45)),
    }
    if dice.random() < 0.5:
        facts[symbol("x-opt-partition-key")] = dice.choice([string(text(dice)), NULL, uint(3), boolean(True)])
    for _ in range(dice.choice([0, 0, 2])):
        facts[dice.choice([symbol, string])(text(dice, 20))] = value(dice)
    if dice.random() < 0.05:
        del facts[dice.choice(list(facts))]
    return mapping(dict(dice.sample(list(facts.items()), len(facts))))


def small(written: bytes) -> bytes:
    """A list or map with sizes of one byte, where they fit."""
    size, count = struct.unpack(">II", written[1:9])
    if size - 4 + 1 > 255 or count > 255:
        return written
    return bytes([written[0] & 0xCF | (0xC0 if written[0] >= 0xD0 else 0), size - 3, count]) + written[9:]


def message(dice: Random, number: int) -> bytes:
    """One message: mostly of the usual kind."""
    shrunk = dice.choice([small, lambda written: written])
    parts = [described(Code.MESSAGE_ANNOTATIONS, shrunk(annotations(dice, number)))]
    if dice.random() < 0.8:
        said = {symbol("last_enqueued_sequence_number"): long(number), symbol("last_enqueued_time_utc"): timestamp(1)}
        parts.append(described(Code.DELIVERY_ANNOTATIONS, shrunk(mapping(said))))
    if dice.random() < 0.3:
        parts.append(composite(HEADER, boolean(True), ubyte(4), NULL, boolean(False), uint(0)))
    if dice.random() < 0.4:
        given = [value(dice) if dice.random() < 0.3 else NULL for _ in range(6)]
        kinds = [string("json"), symbol("a/b"), NULL, value(dice)]
        fields = [*given, dice.choice(kinds), *[NULL] * 6][: dice.choice([0, 3, 7, 13, 13])]
        parts.append(described(Code.PROPERTIES, shrunk(composite(0, *fields)[3:]) if fields else b"\x45"))
    if dice.random() < 0.4:
        names = [dice.choice([string, symbol])(text(dice, 20)) for _ in range(3)]
        parts.append(described(Code.APPLICATION_PROPERTIES, shrunk(mapping({name: value(dice) for name in names}))))
    bodies = [described(Code.DATA, binary(dice.randbytes(dice.choice([0, 200, 300])))) for _ in range(2)]
    others = [described(Code.VALUE, string("text")), composite(SEQUENCE, long(1)), b""]
    kinds_of_body = [*[bodies[:1]] * 8, bodies, [dice.choice(others)]]
    parts += dice.choice(kinds_of_body)
    if dice.random() < 0.1:
        parts.append(described(FOOTER, mapping({symbol("f"): long(number)})))
    if dice.random() < 0.3:
        dice.shuffle(parts)
    return b"".join(parts)


def transfer(dice: Random, number: int) -> bytes:
    handle = dice.choice([*HANDLES, b"\x43", uint(1)]) if dice.random() < 0.2 else b"\x43"
    ids = dice.choice([uint(number), b"\x52" + bytes([number % 256]), b"\x43"])
    settled, more = dice.choice([boolean(True), boolean(False), NULL]), boolean(dice.random() < 0.05)
    fields = (handle, ids, binary(dice.randbytes(dice.choice([4, 16]))), dice.choice([b"\x43", uint(0)]), settled, more)
    listed = composite(Code.TRANSFER, *fields, *[NULL] * dice.choice([0, 5]))
    head = listed[:3] + dice.choice([small, lambda written: written])(listed[3:])
    return frame(1, head + message(dice, number))


def taken(data: bytes) -> tuple[Transfers, int]:
    found = Transfers()
    return found, found.take(data, 0, HEAD, HANDLES)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_taken_is_what_the_sdk_makes_of_it(seed: int) -> None:
    """A frame is taken as a whole, or not at all."""
    dice = Random(seed)
    counts = {True: 0, False: 0}
    for number in range(150):
        data = transfer(dice, number)
        found, at = taken(data)
        assert at in (0, len(data))
        counts[at > 0] += 1
        if at:
            fields = decode_frame(memoryview(data)[8:])[1]
            event = Received(decode_payload(fields[-1]))
            assert (fields[0], bool(fields[5])) == (0, False)
            assert found.numbers() == [event.sequence_number] and found.end() == event.end
            assert found.rows().equals(rows([event]))
    assert counts[True] > 20 and counts[False] > 20


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_many_are_taken_in_their_order_up_to_the_first_that_is_none(seed: int) -> None:
    dice = Random(seed)
    usual = [data for number in range(100) if taken(data := transfer(dice, number))[1]]
    found, at = taken(b"".join(usual) + usual[0][:-1])
    assert at == sum(map(len, usual)) and len(found) == len(usual)
    alone = pa.concat_batches([taken(data)[0].rows() for data in usual])
    assert found.rows().equals(alone)
    assert found.rows([2, 4]).equals(alone.take(pa.array([2, 4])))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_or_damaged_frame_ends_nothing_but_the_taking(seed: int) -> None:
    """Whatever stands in it: then the SDK says what is wrong."""
    dice = Random(seed)
    for number in range(100):
        data = bytearray(transfer(dice, number))
        for _ in range(dice.choice([1, 3])):
            data[dice.randrange(4, len(data))] = dice.getrandbits(8)
        found, at = taken(bytes(data))
        assert at in (0, len(data)) and len(found) == (at > 0)
        assert taken(bytes(data)[: dice.randrange(len(data))])[1] == 0


@pytest.fixture
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"hub": 1}) as hubs:
        yield hubs


def test_the_private_parts_of_the_sdk_are_those_that_we_know(hubs: EventHubs) -> None:
    """Fails if the SDK changes: then look whether `receiving.py` still does what the SDK did."""
    hub = EventHub("hub", connect=lambda: hubs.connection_string)
    client, seen, made = hub.client(), list[Any](), list[Any]()

    def came(_: object, events: Any) -> None:
        (consumer,) = next(iter(client._event_processors.values()))._consumers.values()  # type: ignore[attr-defined]
        handler = consumer._handler
        made.append((consumer, handler))
        known = {
            "consumer": consumer,
            "handler": handler,
            "link": handler._link,
            "session": handler._session,
            "connection": handler._connection,
            "transport": handler._connection._transport,
        }
        for kind, names in SDK.items():
            seen.extend(f"{kind}.{name}" for name in names if not hasattr(known[kind], name))
        seen.append(type(events))

    hubs.send("hub", 0, [b"0"])
    with receiving(client, came):
        until(lambda: seen)
    assert seen == [Transfers]


def test_a_message_in_several_frames_and_others_between_keep_their_order(hubs: EventHubs) -> None:
    """The SDK reads it, and what comes before and after it is taken as usual."""
    bodies = [b"0", b"x" * 200_000, b"1", *[b"%d" % number for number in range(2, 1_000)], b"y" * 70_000]
    hubs.send("hub", 0, bodies)
    found: list[bytes] = []
    hub = EventHub("hub", connect=lambda: hubs.connection_string)
    with PartitionReader(hub, "0", "oldest", level=1) as reader:
        while len(found) < len(bodies):
            arrival = reader.read(PATIENCE_S)
            assert arrival is not None
            found += arrival.rows["body"].to_pylist()
    assert found == bodies


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("73 00 00 00 41", "A"),
        ("73 00 01 f6 00", "😀"),
        # What .NET writes of 1.5m, -5000000000.25m, 0m and its least and greatest decimal.
        ("94 303e0000 00000000 00000000 0000000f", "1.5"),
        ("94 b03c0000 00000000 00000074 6a528819", "-5000000000.25"),
        ("94 30400000 00000000 00000000 00000000", "0"),
        ("94 30080000 00000000 00000000 00000001", "1E-28"),
        ("94 30400000 ffffffff ffffffff ffffffff", "79228162514264337593543950335"),
        ("74 32 80 00 01", "1"),
        ("74 6b f8 96 7f", "9.999999"),
        ("84 b1 c0 00 00 00 00 00 2a", "-42"),
        ("74 78 00 00 00", "Infinity"),
        ("94 f8000000 00000000 00000000 00000000", "-Infinity"),
        ("84 7c 00 00 00 00 00 00 00", "NaN"),
    ],
)
def test_a_property_of_a_type_that_the_sdk_cannot_read_is_read(written: str, expected: str) -> None:
    facts = mapping(
        {
            symbol("x-opt-sequence-number"): long(1),
            symbol("x-opt-offset"): string("1"),
            symbol("x-opt-enqueued-time"): timestamp(1),
        }
    )
    message = described(Code.MESSAGE_ANNOTATIONS, facts) + described(
        Code.APPLICATION_PROPERTIES, mapping({string("a"): bytes.fromhex(written), string("b"): NULL})
    )
    found = rows([Received(decode_payload(memoryview(message + described(Code.DATA, binary(b"")))))])
    assert found["properties"].to_pylist() == [[("a", expected), ("b", None)]]


def test_of_an_encrypted_connection_what_was_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    """The socket has nothing to read then. A frame that has come in part only is read once the rest is here."""
    ours, theirs = socket.socketpair()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(path := certificate_in(tmp_path))
    client.load_verify_locations(path)
    with ThreadPoolExecutor(1) as threads:
        shaken = threads.submit(server.wrap_socket, theirs, server_side=True)
        here, there = client.wrap_socket(ours, server_hostname="localhost"), shaken.result()
    consumer = SimpleNamespace(_create_handler=None, _message_buffer=deque())
    reading = Receiving(consumer, socket.socketpair()[0])
    transport = SimpleNamespace(sock=here, socket_lock=Lock(), connected=True, _read_buffer=BytesIO(b"\0"))
    assert reading._adopts(transport)
    there.sendall(b"\0\0\x0a\2\0\0\1AB" + b"\0\0\0\x09\2\0\0\2C" + b"\0\0")
    until(lambda: reading._is_readable(1))
    there.sendall(b"\0\x08")
    frames = [transport.read() for _ in range(2)]
    assert [(channel, bytes(payload)) for _, channel, payload in frames] == [(1, b"AB"), (2, b"C")]
    assert not reading._has_frame()
    here.settimeout(0.05)
    with pytest.raises(TimeoutError):
        transport.read()
    there.sendall(b"\2\0\0\3")
    assert transport.read()[1:] == (3, None)
    there.sendall(b"x" * 10_000)
    assert here.recv(1) == b"x" and reading._is_readable(0)

"""Rows that are sent to a hub: where they go, what they say, and what happens when the service does not take them."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pyarrow as pa
import pytest
from azure.eventhub import EventData
from azure.eventhub._buffered_producer._partition_resolver import generate_hash_code

from samza_azure import EventHubsOnce, SystemStream, SystemWriter
from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.eventhubs import jenkins
from samza_azure.eventhubs import producer as producer_module
from samza_azure.eventhubs.amqp import Code, sections
from samza_azure.eventhubs.connector import EventHubsFactory
from samza_azure.eventhubs.emulator import KEY, EventHubs, Refused
from samza_azure.eventhubs.jenkins import of_key
from samza_azure.eventhubs.producer import EventHubsOutput
from samza_azure.kafka import murmur
from samza_azure.systems.partitioning import SHORT, Partitioner
from tests.eventhubs.clients import producer as client
from tests.eventhubs.clients import until

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string())])
WRITER = SystemWriter("g:r:out-0", 3, 1)


@pytest.fixture(scope="module")
def namespace() -> Iterator[EventHubs]:
    with EventHubs({"hub": 3}) as hubs:
        yield hubs


@pytest.fixture
def hubs(namespace: EventHubs) -> EventHubs:
    """An empty hub."""
    namespace.make_again("hub")
    return namespace


def stream(hubs: EventHubs, schema: pa.Schema = SCHEMA, /, **options: str) -> SystemStream:
    said = {"connect": hubs.connection_string, "name": "hub"} | {key.replace("_", "."): options[key] for key in options}
    return SystemStream("out", 1, schema, said, Path(), is_output=True)


def opened(hubs: EventHubs, schema: pa.Schema = SCHEMA, /, **options: str) -> EventHubsOutput:
    made = EventHubsFactory().get_producer(stream(hubs, schema, **options))
    made.open(WRITER)
    return made


def rows(*shops: str | None, begin: int = 0) -> pa.Table:
    return pa.table([range(begin, begin + len(shops)), list(shops)], schema=SCHEMA)


def sent(made: EventHubsOutput, number: int, table: pa.Table) -> None:
    assert made.send(number, table) == []
    made.flush()


def events(hubs: EventHubs, partition: int) -> list[tuple[Any, bytes]]:
    """The number and the body of each event."""
    found = []
    for event in hubs._hubs["hub"].partitions[partition].events:
        parts = {code: value for code, value, _ in sections(event.body)}
        said = parts[Code.APPLICATION_PROPERTIES]
        assert said["samza-writer"] == WRITER.id
        found.append((said["samza-number"], parts[Code.DATA]))
    return found


def test_rows_without_a_key_go_to_the_partitions_in_turn(hubs: EventHubs) -> None:
    made = opened(hubs)
    sent(made, 0, rows("a", "b", "c", "d", None))
    found = [events(hubs, partition) for partition in range(3)]
    assert sorted(number for each in found for number, _ in each) == [0, 1, 2, 3, 4]
    assert sorted(map(len, found)) == [1, 2, 2]
    bodies = sorted(json.loads(body)["id"] for each in found for _, body in each)
    assert bodies == [0, 1, 2, 3, 4]
    assert {json.loads(body)["shop"] for each in found for _, body in each} == {"a", "b", "c", "d", None}
    again = opened(hubs)
    again.send(3, rows("d", begin=3))
    again.flush()
    both = [events(hubs, partition) for partition in range(3)]
    assert [set(each) for each in both] == [set(each) for each in found], "the same number goes to the same place"


def test_a_key_goes_where_the_service_sends_it(hubs: EventHubs) -> None:
    keys = ["", "a", "shop 7", "Zürich", "東京", "x" * 200, "12"]
    with client(hubs) as other:
        for key in keys[1:]:
            batch = other.create_batch(partition_key=key)
            batch.add(EventData(key.encode()))
            other.send_batch(batch)
    theirs = {body.decode(): partition for partition in range(3) for body in hubs.bodies("hub", partition)}
    hubs.make_again("hub")
    made = opened(hubs, partition_by="shop")
    sent(made, 0, rows(*keys, None))
    ours = {json.loads(body)["shop"]: partition for partition in range(3) for body in hubs.bodies("hub", partition)}
    assert {key: ours[key] for key in keys[1:]} == theirs
    assert ours[""] == 0
    assert None in ours


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("7", -15263),
        ("131", 30562),
        ("$0cb", 26269),
        ("FWfAT", -22341),
        ("!c*_!I@1^c", 15372),
        ("7149583486996073602", 12977),
        ("-4189260826195535198", 453),
        ("p4*!jioeO/z-!-;w:dh", -3104),
        ("sOdeEAsyQoEuEFPGerWO", -6503),
        ("FAyAIctPeCgmiwLKbJcyswoHglHVjQdvtBowLACDNORsYvOcLddNJYDmhAVkbyLOrHTKLneMNcbgWVlasVywOByANjs", 5226),
    ],
)
def test_the_hash_of_a_key_is_that_of_other_clients(key: str, code: int) -> None:
    """The fake has ours. These numbers are those of the SDKs of .NET and Java; they drop the sign of the remainder."""
    assert generate_hash_code(key) == code
    assert [of_key(key, partitions) for partitions in (1, 3, 32)] == [abs(code) % each for each in (1, 3, 32)]


def test_the_hash_of_any_bytes_is_that_of_the_sdk() -> None:
    """It takes a character for a byte, which is right for keys of ASCII alone."""
    dice = Random(7)
    for size in (each for each in range(1, 40) for _ in range(5)):
        data = dice.randbytes(size)
        assert jenkins._lookup3(data) == generate_hash_code(data.decode("latin-1"))


def test_a_number_may_be_the_partition(hubs: EventHubs) -> None:
    made = opened(hubs, partition_by="id", partition_method="PARTITION_KEY_AS_PARTITION")
    table = pa.table([[0, 1, 5, -1, None], ["a"] * 5], schema=SCHEMA)
    refused = made.send(0, table)
    made.flush()
    assert [(each.index, each.reason[:12]) for each in refused] == [(3, "Its id is -1"), (4, "Its id is No")]
    assert [[number for number, _ in events(hubs, each)] for each in range(3)] == [[0], [1], [2]]


def test_a_row_that_is_too_large_is_refused_and_large_ones_come_in_several_batches(hubs: EventHubs) -> None:
    made, large = opened(hubs, partition_method="ROUND_ROBIN"), "x" * 400_000
    refused = made.send(0, rows(large, "y" * 1_100_000, *[large] * 10))
    assert [each.index for each in refused] == [1]
    assert "1,048,576 bytes" in refused[0].reason
    made.flush()
    assert sum(len(events(hubs, each)) for each in range(3)) == 11
    for each in range(3):
        numbers = [number for number, _ in events(hubs, each)]
        assert numbers == sorted(numbers)


def test_an_answer_that_is_lost_or_a_cut_only_repeats(hubs: EventHubs) -> None:
    """A reader that keeps the last number of the writer sees each row once."""
    made = opened(hubs)
    for begin in range(0, 60, 10):
        hubs.lost["after" if begin % 20 else "before"] = 3
        made.send(begin, rows(*["a"] * 10, begin=begin))
        while True:
            try:
                made.flush()
                break
            except StorageUnavailable:
                pass
    found = []
    for partition in range(3):
        once = EventHubsOnce()
        for number, _ in events(hubs, partition):
            if once.is_new({b"samza-writer": WRITER.id.encode(), b"samza-number": number}):
                found.append(number)
            once = EventHubsOnce(bytes(once))
    assert sorted(found) == list(range(60))
    assert sum(len(events(hubs, each)) for each in range(3)) > 60


def test_a_try_to_send_that_nobody_answers_leaves_nothing_behind(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them left a thread and its connection."""
    monkeypatch.setattr(producer_module, "ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = hubs.connection_string.replace(f":{hubs.port}", f":{silent.getsockname()[1]}")
        there = SystemStream("out", 1, SCHEMA, {"name": "hub", "connect": connect}, Path(), is_output=True)
        made = EventHubsFactory().get_producer(there)
        before, files = {*threading.enumerate()}, psutil.Process().num_fds()
        with pytest.raises(StorageUnavailable, match="has not answered within"):
            made.open(WRITER)
        until(lambda: {*threading.enumerate()} <= before and psutil.Process().num_fds() <= files)


def test_a_hub_that_is_throttled_is_asked_again_later_and_later(hubs: EventHubs) -> None:
    made = opened(hubs)
    made.send(0, rows("a"))
    waits = []
    for _ in range(2):
        hubs.throttle(2)  # the SDK asks twice
        with pytest.raises(StorageUnavailable, match="'hub' is throttled") as error:
            made.flush()
        waits.append(error.value.after_s)
    assert waits == [4.0, 8.0]
    made.flush()
    assert sum(len(events(hubs, each)) for each in range(3)) == 1


def test_a_client_that_was_not_let_in_at_its_first_question_is_made_anew(hubs: EventHubs) -> None:
    """It was kept without knowing how large a batch may be, and asked that in the middle of the next send."""
    made = opened(hubs)
    made.close()
    hubs.refusals.append(Refused("com.microsoft:server-busy", "Please wait 4 seconds."))
    with pytest.raises(StorageUnavailable, match="'hub' is throttled"):
        made.send(0, rows("a"))
    assert made._client is None
    sent(made, 0, rows("a"))
    assert sum(len(events(hubs, each)) for each in range(3)) == 1


def test_a_key_that_is_renewed_before_the_first_row_is_waited_for(hubs: EventHubs, tmp_path: Path) -> None:
    """Whoever has opened a sender was let in."""
    file = tmp_path / "key"
    file.write_text(hubs.connection_string)
    said = {"connect.file": "key", "name": "hub"}
    made = EventHubsOutput(SystemStream("out", 1, SCHEMA, said, tmp_path, is_output=True))
    made.open(WRITER)
    file.write_text(hubs.connection_string.replace(KEY, "b3RoZXI="))
    made.close()
    with pytest.raises(StorageUnavailable, match="refuses its key"):
        made.send(0, rows("a"))
    file.write_text(hubs.connection_string)
    sent(made, 0, rows("a"))
    made.close()


def test_what_was_not_sent_is_sent_by_the_next_flush_after_an_outage(hubs: EventHubs) -> None:
    made = opened(hubs)
    sent(made, 0, rows("a"))
    made.send(1, rows("b", begin=1))
    hubs.close()
    try:
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="'hub' does not answer"):
                made.flush()
        made._tries = 5_001  # it has lasted for hours
        with pytest.raises(StorageUnavailable, match="'hub' does not answer"):
            made.flush()
    finally:
        hubs.listen()
    made.flush()
    assert sorted(number for each in range(3) for number, _ in events(hubs, each)) == [0, 1]


def test_bytes_go_as_they_are_with_properties(hubs: EventHubs) -> None:
    schema = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    made = opened(hubs, schema, format="raw")
    sent(made, 0, pa.table([[b"\xff\x00", b""], [[("a", "1")], None]], schema=schema))
    assert sorted(body for each in range(3) for body in hubs.bodies("hub", each)) == [b"", b"\xff\x00"]


@pytest.mark.parametrize("hashed", [of_key, murmur.of_key], ids=["hub", "topic"])
def test_long_keys_are_not_kept_in_memory(hashed: Callable[[str, int], int]) -> None:
    keys = ["k" * length for length in (1, SHORT, SHORT + 1, 1 << 20)]
    schema = pa.schema([("s", pa.string())])
    made = Partitioner(SystemStream("out", 1, schema, {"partition.by": "s"}, Path(), is_output=True), hashed)
    for _ in range(2):
        places = list(made.places(SystemWriter("w", 7, 1), 0, pa.table([keys], schema=schema)))
        assert places == [hashed(key, 7) for key in keys]
    assert made._known.cache_info().currsize == 2


def test_a_body_that_is_null_is_refused(hubs: EventHubs) -> None:
    """Such as a tombstone of Kafka's: an event of no bytes is not the same."""
    made = opened(hubs, pa.schema([("body", pa.binary())]), format="raw")
    refused = made.send(0, pa.table({"body": [b"a", None, b""]}))
    made.flush()
    assert [(each.index, each.reason) for each in refused] == [(1, "Its body is null, and each event has one.")]
    assert sorted(body for each in range(3) for body in hubs.bodies("hub", each)) == [b"", b"a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": "newest"}, "start is not an option of eventhubs, which has for a stream that a stage writes"),
        ({"partition_method": "HASH"}, "Write one of"),
        ({"partition_method": "EVENT_HASHING"}, r"Write partition\.by = one of them"),
        ({"partition_by": "town"}, "options.partition.by is 'town', and the stream has the columns id, shop"),
        ({"partition_by": "id", "partition_method": "ROUND_ROBIN"}, "no effect with ROUND_ROBIN"),
        ({"partition_by": "shop", "partition_method": "PARTITION_KEY_AS_PARTITION"}, "should be a whole number"),
        ({"format": "csv"}, "Write json or raw"),
        ({"format": "raw"}, "needs a column 'body'"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], said: str, hubs: EventHubs) -> None:
    with pytest.raises(ConfigError, match=said):
        EventHubsFactory().get_admin(stream(hubs, **options))


def test_what_cannot_be_sent_to_is_named(hubs: EventHubs) -> None:
    admin = EventHubsFactory().get_admin(stream(hubs))
    assert "has 3 partitions, and may be written, 1,048,576 bytes at once" in admin.look()
    hubs.rights["local"] = {"Listen"}
    try:
        for call in (admin.look, lambda: opened(hubs)):
            with pytest.raises(AccessDenied, match="needs the right to send"):
                call()
    finally:
        hubs.rights["local"] = {"Listen", "Send"}
    with pytest.raises(AccessDenied) as error:
        opened(hubs, connect=hubs.connection_string.replace("a2V5", "b2V5"))
    assert "b2V5" not in str(error.value)
    with pytest.raises(ConfigError, match="The hub 'other' does not exist: correct its name"):
        opened(hubs, name="other")

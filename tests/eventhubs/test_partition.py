"""A partition is read exactly: where it begins, what it does when the connection ends, and what it calls an error."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from azure.core.credentials import AccessTokenInfo
from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message
from azure.eventhub.amqp import AmqpAnnotatedMessage

from samza_azure.errors import AccessDenied, ConfigError, RowsGone, SamzaAzureError, StorageUnavailable, Superseded
from samza_azure.eventhubs import hub as hub_module
from samza_azure.eventhubs import partition_reader as partition_module
from samza_azure.eventhubs.amqp import Code, described, mapping, string
from samza_azure.eventhubs.emulator import KEY, Event, EventHubs, Refused
from samza_azure.eventhubs.events import Received
from samza_azure.eventhubs.hub import BALANCE_S, EventHub, PartitionEnds, reader_in
from samza_azure.eventhubs.partition_reader import EventPosition, PartitionReader
from samza_azure.eventhubs.receiving import Messages
from samza_azure.eventhubs.transfers import Transfers
from samza_azure.storage.identity import Identity

from .clients import PATIENCE_S, consumer, producer, receiving, until


@pytest.fixture
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"hub": 1}) as hubs:
        yield hubs


def hub(hubs: EventHubs, name: str = "hub", group: str = "$Default") -> EventHub:
    return EventHub(name, group, connect=lambda: hubs.connection_string)


def reader(hubs: EventHubs, start: Any = "oldest", *, level: int = 1024, **options: Any) -> PartitionReader:
    return PartitionReader(hub(hubs), "0", start, level=level, **options)


def bodies(reading: PartitionReader, count: int) -> list[bytes]:
    """The next events, at least so many."""
    found: list[bytes] = []
    while len(found) < count:
        arrival = reading.read(PATIENCE_S)
        assert arrival is not None
        found += arrival.rows["body"].to_pylist()
    return found


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in range(*numbers)]


class Silent:
    """A proxy whose connections fall silent, and are not closed: as if a cable was cut. One of them, by its number, has
    been silent from the beginning.
    """

    def __init__(self, target: int, silent: int = 0) -> None:
        self._listener, self._target, self._silent = socket.create_server(("127.0.0.1", 0)), target, silent
        self.port: int = self._listener.getsockname()[1]
        self.cuts: list[threading.Event] = []  # of the connections
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let what there is now fall silent."""
        for each in self.cuts:
            each.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server, cut = socket.create_connection(("127.0.0.1", self._target)), threading.Event()
            self.cuts.append(cut)
            if len(self.cuts) == self._silent:
                cut.set()
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target, cut), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not cut.is_set():
                    target.sendall(data)
        if not cut.is_set():
            target.close()


@pytest.mark.parametrize(("start", "before"), [("oldest", 3), (datetime(2026, 1, 1, tzinfo=UTC), 0)], ids=str)
def test_a_connection_that_breaks_without_a_word_is_made_anew(
    hubs: EventHubs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: Literal["oldest"] | datetime,
    before: int,
) -> None:
    """It was waited for until TCP gave it up: events were there, nothing came, and nothing was wrong."""
    monkeypatch.setattr(partition_module, "QUIET_S", 0.5)
    proxy = Silent(hubs.port)
    there = EventHub("hub", connect=lambda: hubs.connection_string.replace(f":{hubs.port}", f":{proxy.port}"))
    hubs.send("hub", 0, numbered(before))
    with PartitionReader(there, "0", start, level=1) as reading:
        assert bodies(reading, before) == numbered(before)
        until(lambda: hubs.counts["readers of hub/0"] and reading._client)
        proxy.cut()
        hubs.send("hub", 0, numbered(before, before + 3))
        found: list[bytes] = []

        def has_come() -> bool:
            reading.look()
            arrival = reading.read(0.2)
            found.extend(arrival.rows["body"].to_pylist() if arrival else [])
            return len(found) == 3

        until(has_come)
        assert (found, reading.repeated) == (numbered(before, before + 3), 0)
    assert f"event {before + 2} is there, and none comes: reconnecting" in caplog.text


def test_a_connection_that_is_taken_and_never_answered_is_cut(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits forever while it connects, where no `close` reaches it: the reader stood still without a word."""
    monkeypatch.setattr(partition_module, "OPENS_S", 0.5)
    proxy = Silent(hubs.port, silent=2)  # the first one asks for the facts of the hub
    there = EventHub("hub", connect=lambda: hubs.connection_string.replace(f":{hubs.port}", f":{proxy.port}"))
    hubs.send("hub", 0, numbered(3))
    with PartitionReader(there, "0", "oldest", level=1) as reading:
        until(lambda: reading.trouble)
        assert str(reading.trouble) == "The hub 'hub' has not let us in within 0.5 s."
        assert bodies(reading, 3) == numbered(3)
    assert not reading._thread.is_alive()


def open_files() -> int:
    """How many this process has."""
    return psutil.Process().num_fds()


@pytest.mark.parametrize(
    "ask",
    [
        lambda there: there.ends("0"),
        lambda there: there.facts(),
        lambda there: there.refusal_without_level("0", 0.3),
    ],
    ids=["ends", "facts", "who"],
)
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "connected"])
def test_a_question_that_nobody_answers_leaves_nothing_behind(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch, ask: Callable[[EventHub], Any], is_taken: bool
) -> None:
    """Each of them left a thread and its connection, until the process could open nothing more."""
    monkeypatch.setattr(hub_module, "ANSWER_S", 0.3)
    hubs.management = False
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_taken else hubs.port
        there = EventHub("hub", connect=lambda: hubs.connection_string.replace(f":{hubs.port}", f":{port}"))
        before, files = {*threading.enumerate()}, open_files()
        with suppress(StorageUnavailable):
            ask(there)
        until(lambda: {*threading.enumerate()} <= before)
        until(lambda: open_files() <= files)


def test_a_hub_whose_sign_in_fails_is_away_and_refuses_nobody() -> None:
    """A key in the environment was said to be refused, and the run failed within seconds."""

    class Busy(EventHubs):
        def _sign_in(self, *_: Any) -> tuple[int, str]:
            return 503, "The service is busy."

    with Busy({"hub": 1}) as hubs:
        there = EventHub("hub", connect=lambda: hubs.connection_string, is_fixed=True)
        with pytest.raises(StorageUnavailable, match="does not answer: its sign-in fails with 503"):
            there.facts()


@pytest.mark.long
def test_it_begins_with_the_oldest_the_newest_or_after_a_time(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(5))
    hubs.trim("hub", 0, 2)
    with reader(hubs) as oldest:
        assert bodies(oldest, 3) == numbered(2, 5)
        assert oldest.position is not None and oldest.position.number == 4
    with reader(hubs, "newest") as newest:
        until(lambda: newest.position)
        hubs.send("hub", 0, numbered(5, 6))
        assert bodies(newest, 1) == numbered(5, 6)
    with reader(hubs, datetime.now(UTC) - timedelta(hours=1)) as then:
        assert bodies(then, 4) == numbered(2, 6)


def test_it_goes_on_after_a_position(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(5))
    with reader(hubs) as first:
        bodies(first, 5)
        position = first.position
    hubs.send("hub", 0, numbered(5, 8))
    with reader(hubs, position) as second:
        assert bodies(second, 3) == numbered(5, 8)


@pytest.mark.long
def test_newest_is_settled_when_the_partition_is_opened(hubs: EventHubs) -> None:
    """An owner after us must begin where we would have."""
    hubs.send("hub", 0, numbered(5))
    with reader(hubs, "newest") as first:
        until(lambda: first.position)
        position = first.position
    hubs.send("hub", 0, numbered(5, 7))
    with reader(hubs, position) as second:
        assert bodies(second, 2) == numbered(5, 7)


@pytest.mark.long
@pytest.mark.parametrize("how", ["tcp", "close", "detach"])
def test_a_cut_connection_is_neither_seen_nor_does_it_repeat_or_lose_events(hubs: EventHubs, how: str) -> None:
    hubs.send("hub", 0, numbered(1_000))
    with reader(hubs, prefetch=100, held_rows=100) as reading:
        found = bodies(reading, 100)
        hubs.cut(how)
        found += bodies(reading, 1_000 - len(found))
        assert found == numbered(1_000)
        hubs.send("hub", 0, numbered(1_000, 1_001))
        assert bodies(reading, 1) == numbered(1_000, 1_001)


@pytest.mark.long
def test_a_replicated_namespace_is_read_on_from_the_offset(hubs: EventHubs) -> None:
    with EventHubs({"hub": 1}, geo=True) as replicated:
        replicated.send("hub", 0, numbered(3))
        with reader(replicated) as first:
            bodies(first, 3)
            assert first.position is not None and not first.position.offset.isdecimal()
            replicated.cut("tcp")
            replicated.send("hub", 0, numbered(3, 5))
            assert bodies(first, 2) == numbered(3, 5)


@pytest.mark.long
def test_events_that_expired_unread_are_an_error_or_counted(hubs: EventHubs, caplog: pytest.LogCaptureFixture) -> None:
    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as first:
        bodies(first, 3)
        position = first.position
    hubs.send("hub", 0, numbered(3, 10))
    hubs.trim("hub", 0, 8)
    with (
        reader(hubs, position) as second,
        pytest.raises(RowsGone, match=r"event 2, and its oldest event is 8.* 5 events"),
    ):
        second.read(PATIENCE_S)
    with reader(hubs, position, skips=True) as third:
        assert bodies(third, 2) == numbered(8, 10)
        assert third.skipped == 5
    assert "was read up to event 2, and its oldest event is 8 now: 5 events expired unread." in caplog.text


@pytest.mark.long
def test_a_look_finds_that_all_events_have_expired(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as first:
        bodies(first, 3)
        position = first.position
    hubs.send("hub", 0, numbered(3, 10))
    hubs.trim("hub", 0, 10)
    with reader(hubs, position) as second:
        second.look()
        with pytest.raises(RowsGone, match="7 events expired unread"):
            second.read(PATIENCE_S)


def test_a_hub_that_was_made_anew_is_recognised(hubs: EventHubs) -> None:
    """Also one that has as many events by now."""
    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as first:
        bodies(first, 3)
        hubs.make_again("hub")
        hubs.send("hub", 0, numbered(5))
        with pytest.raises(RowsGone, match=r"recreated .* up to event 2.*on_expired"):
            first.read(PATIENCE_S)
        position = first.position
    with reader(hubs, position, skips=True) as second:
        assert bodies(second, 5) == numbered(5)
        assert second.position is not None and position is not None
        assert second.position.created_ms > position.created_ms


def test_one_thread_reads_a_connection(hubs: EventHubs) -> None:
    """The SDK has a second one for each reader, which made events change places: that looked as if some had expired."""

    def second() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "keep_alive" in thread.name]

    hubs.send("hub", 0, numbered(1))
    with receiving(consumer(hubs), lambda *_: None):
        until(second)
    with reader(hubs) as reading:
        assert bodies(reading, 1) == numbered(1)
        assert not second()


def test_a_newer_owner_ends_the_older_one_and_is_named(hubs: EventHubs) -> None:
    """`tests/prove/eventhubs.py` has the time that it takes."""
    hubs.send("hub", 0, numbered(3))
    with reader(hubs, level=2048) as older:
        assert bodies(older, 3) == numbered(3)
        with reader(hubs, older.position, level=3072) as newer:
            with pytest.raises(Superseded, match="a newer owner: the reader without a name, of the owner level 3072"):
                older.read(PATIENCE_S)
            hubs.send("hub", 0, numbered(3, 4))
            assert bodies(newer, 1) == numbered(3, 4)
            older._thread.join(PATIENCE_S)
            assert not older._thread.is_alive() and hubs.readers("hub", 0) == 1
            with pytest.raises(Superseded):
                older.read()
        assert hubs.counts["readers of hub/0"] == 2, "the older one did not come back"


@pytest.mark.parametrize(
    ("text", "who"),
    [
        (
            "New receiver 'billing-7f' with higher epoch of '12' is created hence current receiver 'nil' is getting …",
            "the reader 'billing-7f', of the owner level 12",
        ),
        (
            "Receiver 'nil' with a higher epoch '5' already exists. Receiver 'nil' with epoch 1 cannot be created.",
            "the reader without a name, of the owner level 5",
        ),
        (
            "At least one receiver for the endpoint is created with epoch of '22', and so non-epoch receiver is not …",
            "a reader of the owner level 22, which the service does not name",
        ),
        ("Something else happened.", "Something else happened"),
    ],
)
def test_who_reads_in_our_place_is_named_as_the_service_says_it(text: str, who: str) -> None:
    assert reader_in(text) == who


def test_an_owner_before_us_is_no_stranger(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_module, "WHO_S", 30.0)
    with reader(hubs, level=1024):
        until(lambda: hubs.readers("hub", 0))
        with reader(hubs, level=2048, asks_who=True) as newer:
            until(lambda: newer._was_let_in)
            assert hubs.counts["readers of hub/0"] == 3 and not newer.stranger


@pytest.mark.long
def test_an_older_owner_that_comes_late_is_not_let_in(hubs: EventHubs) -> None:
    with reader(hubs, level=3072):
        until(lambda: hubs.readers("hub", 0))
        with reader(hubs, level=2048) as late, pytest.raises(Superseded, match="of the owner level 3072"):
            late.read(PATIENCE_S)


@pytest.mark.long
def test_a_full_reader_holds_back_the_service(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(2_000))
    with reader(hubs, prefetch=50, held_rows=100) as reading:
        until(lambda: reading._rows >= 100)
        assert bodies(reading, 2_000) == numbered(2_000)
        assert reading._rows == reading.held_size == 0


def test_nothing_is_held_once_all_is_read(hubs: EventHubs) -> None:
    """What came in parts has more bytes than the whole, for its padding: the rest counted as held forever, and in days
    no room was left."""
    with reader(hubs) as reading:
        for number in range(40):
            hubs.send("hub", 0, numbered(number, number + 1))
            until(lambda number=number: reading._last is not None and reading._last.number == number)
        assert len(reading._held) > 10
        assert bodies(reading, 40) == numbered(40)
        assert (reading._rows, reading.held_size) == (0, 0)


def test_where_all_has_expired_the_link_is_alive(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    hubs.trim("hub", 0, 3)
    with reader(hubs) as reading:
        until(lambda: reading._client)
        reading._came_at = -1e9
        assert not any(reading._gives_up(hub(hubs).ends("0")) for _ in range(3))


def test_what_all_readers_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the storage is away. One that holds little goes on beside those that hold much."""
    monkeypatch.setattr(partition_module, "ALL_BYTES", 300_000)
    monkeypatch.setattr(partition_module, "OWN_BYTES", 20_000)
    with EventHubs({"hub": 3}) as hubs, ExitStack() as stack:
        for number in range(3):
            hubs.send("hub", number, [b"%01000d" % each for each in range(1_000)])
        readers = [
            stack.enter_context(PartitionReader(hub(hubs), str(number), "oldest", level=1, prefetch=10))
            for number in range(3)
        ]

        def is_full() -> bool:
            return sum(each.held_size for each in readers) >= 300_000 and all(
                each.held_size >= 20_000 for each in readers
            )

        until(is_full)
        sizes = [sum(each.held_size for each in readers) for _ in range(5) if readers[0].read(0.2) is not None]
        assert len(sizes) == 5 and max(sizes) < 500_000, "three had taken in a million bytes each"
        read = {each: each.position.number + 1 for each in readers[:1] if each.position is not None}
        for each in readers:
            bodies(each, 1_000 - read.get(each, 0))
            assert each.position is not None and each.position.number == 999


@pytest.mark.long
def test_a_link_is_made_anew_before_the_sdk_keeps_too_much(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of events that the SDK reads it keeps something."""
    monkeypatch.setattr(partition_module, "LINK_EVENTS", 300)
    monkeypatch.setattr(Transfers, "take", lambda _self, _data, at, *_: at)
    hubs.send("hub", 0, numbered(1_000))
    with reader(hubs, prefetch=100) as reading:
        assert bodies(reading, 1_000) == numbered(1_000)
    assert hubs.counts["readers of hub/0"] >= 3


def test_the_end_is_known_from_events_and_from_looks(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as reading:
        bodies(reading, 3)
        assert reading.end is not None and reading.end.number == 2
        asked_at = reading.end.asked_at
        reading.look()
        assert reading.end.number == 2 and reading.end.asked_at > asked_at


def test_a_look_that_takes_its_time_takes_nothing_back(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that came meanwhile has said a later end."""
    ask = EventHub.ends

    def slow(self: EventHub, partition: str) -> PartitionEnds:
        found = ask(self, partition)
        hubs.send("hub", 0, numbered(3, 4))
        until(lambda: reading.end is not None and reading.end.number == 3)
        return found

    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as reading:
        bodies(reading, 3)
        monkeypatch.setattr(EventHub, "ends", slow)
        reading.look()
        assert reading.end is not None and reading.end.number == 3


@pytest.mark.long
def test_an_outage_is_trouble_and_says_nothing_of_the_end(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    with reader(hubs) as reading:
        bodies(reading, 3)
        end = reading.end
        hubs.close()
        until(lambda: isinstance(reading.trouble, StorageUnavailable))
        with pytest.raises(StorageUnavailable, match="does not answer"):
            reading.look()
        assert reading.end == end
        assert reading.read() is None
        hubs.listen()
        hubs.send("hub", 0, numbered(3, 4))
        assert bodies(reading, 1) == numbered(3, 4)
        assert reading.trouble is None


@pytest.mark.long
def test_a_throttled_reader_tries_again(hubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samza_azure.eventhubs.hub.BUSY_S", 0.1)
    hubs.send("hub", 0, numbered(3))
    hubs.refusals.extend([Refused("com.microsoft:server-busy", "Please wait 4 seconds.")] * 2)
    with reader(hubs) as reading:
        assert bodies(reading, 3) == numbered(3)
    assert hubs.counts["readers of hub/0"] == 3


@pytest.mark.long
def test_an_added_partition_is_seen_by_the_next_look(hubs: EventHubs) -> None:
    assert hub(hubs).facts().partitions == ("0",)
    hubs.add_partitions("hub", 2)
    assert hub(hubs).facts().partitions == ("0", "1", "2")


@pytest.mark.long
def test_wrong_settings_are_explained(hubs: EventHubs) -> None:
    """Each in one sentence that says what to do."""
    with pytest.raises(AccessDenied, match="needs the right to listen"):
        EventHub("hub", connect=lambda: hubs.connection_string.replace(KEY, "b3RoZXI=")).facts()
    with pytest.raises(ConfigError, match="'nowhere' does not exist"):
        hub(hubs, "nowhere").facts()
    with pytest.raises(ConfigError, match="connection string of the hub 'hub' cannot be used"):
        EventHub("hub", connect=lambda: "Endpoint=sb://localhost").facts()
    with (
        PartitionReader(hub(hubs, group="nobody"), "0", "oldest", level=1) as reading,
        pytest.raises(ConfigError, match="no consumer group 'nobody'"),
    ):
        reading.read(PATIENCE_S)
    with (
        PartitionReader(hub(hubs), "9", "oldest", level=1) as reading,
        pytest.raises(ConfigError, match="has no partition 9"),
    ):
        reading.read(PATIENCE_S)
    hubs.rights["local"] = {"Send"}
    with reader(hubs) as reading, pytest.raises(AccessDenied, match="needs the right to listen"):
        reading.read(PATIENCE_S)
    hubs.close()
    with pytest.raises(StorageUnavailable, match="does not answer"):
        hub(hubs).facts()
    hubs.listen()


@pytest.mark.long
def test_an_identity_is_let_in_by_its_token(hubs: EventHubs) -> None:
    class Known:
        def get_token_info(self, *_scopes: str, options: object = None) -> AccessTokenInfo:
            return AccessTokenInfo("token", int(time.time()) + 3600)

    hubs.tokens["token"] = {"Listen"}
    hubs.send("hub", 0, numbered(2))
    known = EventHub("hub", namespace=f"localhost:{hubs.port}", credential=Identity(Known), tls=False)
    with PartitionReader(known, "0", "oldest", level=1) as reading:
        assert bodies(reading, 2) == numbered(2)


def test_a_key_that_is_renewed_before_an_event_has_come_is_waited_for(hubs: EventHubs) -> None:
    """Whoever has an open link was let in, and is promised to wait."""
    renewed, key = False, hubs.connection_string
    known = EventHub("hub", connect=lambda: key if not renewed else key.replace(KEY, "b3RoZXI="))
    with PartitionReader(known, "0", "oldest", level=1) as reading:
        until(lambda: reading._was_let_in)
        renewed = True
        hubs.cut("tcp")
        until(lambda: reading._fault or "refuses its key" in str(reading.trouble))
        assert reading.read() is None
        with pytest.raises(StorageUnavailable, match="refuses its key"):
            reading.look()  # it ended the task, 5 s later
        renewed = False
        hubs.send("hub", 0, numbered(1))
        assert bodies(reading, 1) == numbered(1)


def test_rows_have_what_the_service_says_of_an_event(hubs: EventHubs) -> None:
    event = EventData(b"body")
    event.properties = {"text": "a", "number": 1, "bytes": b"b", "truth": True}
    event.content_type = "avro/binary+1"
    with producer(hubs) as client:
        client.send_batch([event], partition_key="key")
    with reader(hubs) as reading:
        arrival = reading.read(PATIENCE_S)
    assert arrival is not None
    (row,) = arrival.rows.to_pylist()
    enqueued = row.pop("enqueued_time")
    assert row == {
        "body": b"body",
        "sequence_number": 0,
        "offset": "0",
        "partition_key": "key",
        "properties": [("text", "a"), ("number", "1"), ("bytes", "b"), ("truth", "true")],
        "content_type": "avro/binary+1",
    }
    assert arrival.position == EventPosition(0, "0", round(enqueued.timestamp() * 1000), arrival.position.created_ms)


def test_maps_of_any_names_are_json_and_what_null_names_is_left_out(hubs: EventHubs) -> None:
    with producer(hubs) as client:
        client.send_batch(
            [
                AmqpAnnotatedMessage(value_body={"a": [{1: b"x", None: 0}]}),
                AmqpAnnotatedMessage(sequence_body=[{"a": None}]),
            ]
        )
    with reader(hubs) as reading:
        assert bodies(reading, 2) == [b'{"a": [{"1": "x"}]}', b'[[{"a": null}]]']


@pytest.mark.long
def test_an_event_that_cannot_be_read_is_named_after_those_before_it(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK itself fails at a type that AMQP does not have, and hands over nothing that came with it."""
    monkeypatch.setattr(partition_module, "RETRY_S", 0.01)
    monkeypatch.setattr(partition_module, "RETRY_MAX_S", 0.01)
    hubs.send("hub", 0, numbered(2))
    here = hubs._hubs["hub"].partitions[0]
    odd = described(Code.APPLICATION_PROPERTIES, mapping({string("c"): b"\x7f\x00\x00\x00A"}))
    here.events.append(Event(2, str(here.size), here.events[-1].enqueued_ms, None, odd))
    here.size += len(odd)
    with reader(hubs) as reading:
        assert bodies(reading, 2) == numbered(2)
        with pytest.raises(SamzaAzureError, match=r"Event 2 of partition 0 of the hub 'hub' cannot be read"):
            reading.read(PATIENCE_S)


@pytest.mark.long
def test_a_reader_whose_links_end_keeps_no_files_open_and_no_threads(hubs: EventHubs) -> None:
    """The SDK kept each client for 30 s, in a thread."""

    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    threads = {*threading.enumerate()}
    with reader(hubs) as reading:
        for number in range(4):
            hubs.send("hub", 0, [b"%d" % number])
            assert bodies(reading, 1) == [b"%d" % number]
            if number == 0:
                before = count()
            hubs.cut("detach")
        hubs.send("hub", 0, [b"4"])
        assert bodies(reading, 1) == [b"4"]
        assert count() <= before + 2
    end = time.monotonic() + 5 * BALANCE_S
    while left := {*threading.enumerate()} - threads:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_an_event_that_has_no_row_is_named_and_is_no_outage(hubs: EventHubs) -> None:
    reading, came = reader(hubs), Messages()
    came.append(Received(Message(data=[b"without what the service says"])))
    with pytest.raises(SamzaAzureError, match="of partition 0 of the hub 'hub' cannot be read: KeyError") as found:
        reading._batch(came)
    assert reading._explained(found.value) is found.value


@pytest.mark.long
def test_a_hub_that_was_made_anew_while_it_is_read_is_read_on_where_that_is_skipped(hubs: EventHubs) -> None:
    hubs.send("hub", 0, numbered(3))
    with reader(hubs, skips=True) as reading:
        assert bodies(reading, 3) == numbered(3)
        hubs.make_again("hub")
        hubs.send("hub", 0, numbered(5))
        assert bodies(reading, 5) == numbered(5)

"""The stream of a task: its options, what it hands out, where it begins, and what is left."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, TopicPartition

from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.kafka import consumer as consumer_module
from samza_azure.kafka.consumer import KafkaStream
from samza_azure.kafka.local_broker import LocalBroker, free_port
from samza_azure.machine.clock import boot_time
from tests.faltering import parser_that_falters
from tests.formats.registries import FakeConfluentRegistry
from tests.formats.streams import datum, record

from .clients import Messages, bodies, following, numbers, until
from .front import Front


def test_messages_of_all_partitions_are_rows_in_their_order(messages: Messages) -> None:
    messages.send(0, bodies(0, 500))
    messages.send(1, bodies(500, 900))
    reading = messages.stream()
    assert numbers(reading, 900) == {0: [*range(500)], 1: [*range(500, 900)]}
    reading.close()


def test_what_the_broker_says_of_a_message_may_be_columns(messages: Messages) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None)]
    messages.send(1, [b'{"n": 1}'], key=b"k", headers=headers, timestamp=1_700_000_000_123)
    schema = (
        "n bigint, key string, offset bigint, partition int, timestamp timestamp, "
        "headers array<struct<key string, value binary>>"
    )
    reading = messages.stream(schema, envelope="key, offset, partition, timestamp, headers")
    [row] = following(reading).table.to_pylist()
    reading.close()
    assert row.pop("timestamp").timestamp() == 1_700_000_000.123
    told = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert row == {"n": 1, "key": "k", "offset": 0, "partition": 1, "headers": told}


@pytest.mark.parametrize("time", [1_700_000_000_000_000, 1_700_000_000_000_000_000], ids=["us", "ns"])
def test_a_message_with_a_time_in_no_calendar_is_a_row_without_it(messages: Messages, time: int) -> None:
    """Some producers give the broker nanoseconds. Such a message ended the task, with or without the column."""
    messages.send(0, [b'{"n": 1}', b"x"], timestamp=time)
    reading = messages.stream("n bigint, timestamp timestamp", dead_letters=1, envelope="timestamp")
    rows = following(reading)
    reading.close()
    assert rows.table.to_pylist() == [{"n": 1, "timestamp": None}] and rows.dead is not None
    assert [each["time"] for each in rows.dead.to_pylist()] == [None]


def test_a_header_whose_name_is_no_text_concerns_only_who_wants_headers(messages: Messages) -> None:
    """Such a message ended each owner of the task, and nothing named it."""
    messages.send(0, [b'{"n": 1}'], headers={"a": "1"})
    messages.send_with_header(b"\xff\xfe", b'{"n": 2}')
    reading = messages.stream()
    assert numbers(reading, 2) == {0: [1, 2]}
    reading.close()
    schema = "n bigint, headers array<struct<key string, value binary>>"
    strict = messages.stream(schema, envelope="headers")
    named = rf"essage 1 of partition 0 of the topic '{messages.topic}'"
    with pytest.raises(ConfigError, match=rf"M{named} is no row\. The name of one of its headers is not UTF-8"):
        numbers(strict, 3)
    with pytest.raises(ConfigError, match=f"M{named}"):  # the same is found again
        strict.read()
    strict.close()
    reading = messages.stream(schema, dead_letters=1, envelope="headers")
    found, dead = list[int](), list[dict[str, object]]()
    while len(found) < 1 or not dead:
        rows = following(reading)
        found += rows.table["n"].to_pylist()
        dead += rows.dead.to_pylist() if rows.dead is not None else []
    reading.close()
    assert found == [1] and [(each["raw"], each["place"]) for each in dead] == [(b'{"n": 2}', f"m{named}")]


def test_messages_are_handed_out_as_they_are_also_those_without_a_body(messages: Messages) -> None:
    messages.send(0, [b"\x00\xff", None], key=b"k")
    reading = messages.stream("body binary, offset bigint, key binary", format="raw")
    assert following(reading).table.to_pylist() == [
        {"body": b"\x00\xff", "offset": 0, "key": b"k"},
        {"body": None, "offset": 1, "key": b"k"},
    ]
    reading.close()


def test_tombstones_are_no_rows_or_are_passed_over(messages: Messages) -> None:
    messages.send(0, [b'{"n": 1}', None, b'{"n": 2}'], key=b"k")
    strict = messages.stream()
    with pytest.raises(ConfigError, match=r"Message 1 of partition 0 of the topic '\w+' is no row\. It is empty"):
        numbers(strict, 2)
    strict.close()
    reading = messages.stream(tombstones="skip")
    assert numbers(reading, 2) == {0: [1, 2]}
    reading.close()


def test_a_message_that_is_no_row_is_put_aside_with_its_place(messages: Messages) -> None:
    messages.send(0, [b"1,a", b"x,b", b"3,"])
    reading = messages.stream(dead_letters=1, format="csv")
    rows = following(reading)
    reading.close()
    assert rows.table.to_pylist() == [{"n": 1, "s": "a"}, {"n": 3, "s": None}] and rows.dead is not None
    [dead] = rows.dead.to_pylist()
    assert (dead["raw"], dead["place"]) == (b"x,b", f"message 1 of partition 0 of the topic {messages.topic!r}")


def test_a_time_that_no_clock_shows_is_none(messages: Messages) -> None:
    """Some write nanoseconds, which Kafka takes."""
    messages.send(0, [b'{"n": 1}'], timestamp=1_700_000_000_000_000_000)
    reading = messages.stream("n bigint, timestamp timestamp", envelope="timestamp")
    assert following(reading).table.to_pylist() == [{"n": 1, "timestamp": None}]
    reading.close()


def test_what_cannot_be_parsed_for_a_while_is_parsed_later(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parser_that_falters(monkeypatch)
    messages.send(0, bodies(0, 3))
    reading = messages.stream("n bigint", parse="faltering:parse")
    with pytest.raises(StorageUnavailable, match="the registry"):
        until(lambda: (rows := reading.read()) is not None and rows.table.num_rows)
    assert numbers(reading, 3) == {0: [0, 1, 2]} and asked == [3, 3]
    reading.close()


def test_messages_wait_for_the_registry_of_their_schema(messages: Messages) -> None:
    schema = record(n="long", s="string")
    with FakeConfluentRegistry() as registry:
        number = registry.register("t-value", schema)
        good = [b"\x00" + number.to_bytes(4, "big") + datum(schema, {"n": n, "s": "a"}) for n in range(3)]
        messages.send(0, [*good, b"{}", None])
        reading = messages.stream(dead_letters=1, format="avro", registry__url=registry.url, tombstones="skip")
        assert "and may be read, and the schema registry http://localhost" in reading.look()
        registry.fails = 503
        with pytest.raises(StorageUnavailable, match="the schema registry"):
            until(lambda: (rows := reading.read()) is not None and rows.table.num_rows)
        registry.fails = None
        found, dead = list[int](), list[bytes]()
        while len(found) < 3 or not dead:
            rows = following(reading)
            found += rows.table["n"].to_pylist()
            dead += rows.dead["raw"].to_pylist() if rows.dead is not None else []
        reading.close()
    assert found == [0, 1, 2] and dead == [b"{}"]


def test_it_goes_on_behind_a_position(messages: Messages) -> None:
    messages.send(0, bodies(0, 10))
    first = messages.stream()
    rows = following(first)
    first.close()
    assert rows.position[1] == 10
    messages.send(0, bodies(10, 12))
    second = messages.stream(opened=False)
    second.open(0, rows.position)
    second.open(1, (0, 0))
    assert numbers(second, 2) == {0: [10, 11]}
    second.close()


def test_where_newest_begins_is_handed_out_before_any_row(messages: Messages) -> None:
    """A later owner must begin where we would have."""
    messages.send(0, bodies(0, 1))  # tansu says of a batch where it begins
    reading = messages.stream(start="newest")
    found = {rows.partition: rows for rows in (following(reading, empty=True), following(reading, empty=True))}
    reading.close()
    assert {number: (rows.table.num_rows, rows.position[1]) for number, rows in found.items()} == {0: (0, 1), 1: (0, 0)}
    assert all(rows.position > (0, 0) for rows in found.values())


def test_it_may_begin_at_an_offset_of_each_partition(messages: Messages) -> None:
    messages.send(0, bodies(0, 10))
    messages.send(1, bodies(0, 10))
    reading = messages.stream(start="0:7,1:9")
    assert numbers(reading, 4) == {0: [7, 8, 9], 1: [9]}
    reading.close()


def test_what_is_left_is_told(messages: Messages) -> None:
    messages.send(0, bodies(0, 1))
    reading = messages.stream()
    assert reading.lag(0) is None
    numbers(reading, 1)
    until(lambda: (reading.read(), reading.lag(0))[1])
    left = reading.lag(0)
    assert left is not None and (left.rows, left.size, left.seconds) == (0, 0, 0.0)
    messages.send(0, bodies(1, 3))

    def is_told() -> bool:
        reading.pause()
        left = reading.lag(0)
        return left is not None and left.rows > 0

    until(is_told)
    assert not reading._held  # and nothing is read meanwhile
    reading.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hub": "x"}, r"hub is not an option of kafka, which has brokers"),
        ({"topic": ""}, r"options\.topic is missing"),
        ({"start": "0:1"}, r"start is '0:1'. Write an offset for each of the 2 partitions"),
        ({"start": "0:1,1:9223372036854775808"}, "Write an offset for each of the 2 partitions"),
        (
            {"start": "yesterday"},
            r'Write "oldest", "newest", an offset for each partition like "0:120,1:88", or a time',
        ),
        ({"on_expired": "wait"}, "on_expired is 'wait'. Write one of fail, skip"),
        ({"sasl": "plain"}, r"sasl is 'plain', which takes both user and password. Write options\.user"),
        ({"user": "me", "password": "secret"}, r"sasl is 'none', which takes no user and password"),
        ({"sasl": "ntlm"}, "sasl is 'ntlm'. Write one of none, plain, scram-sha-256"),
        ({"connect": "Endpoint=sb://x", "brokers": "x:1"}, "should name the brokers"),
        ({"ca.file": "x"}, "ca.file is for TLS, which these options do not ask for"),
        ({"librdkafka.group.id": "x"}, r"librdkafka\.group\.id is set by samza-azure itself"),
        ({"format": "raw"}, "'n' is to come from the envelope, and is not in the envelope, which has partition"),
        ({"format": "raw", "tombstones": "skip"}, "'n' is to come from the envelope"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Messages("localhost:1", "t", None).stream(opened=False, **options)  # type: ignore[arg-type]


def test_the_position_is_of_the_topic_that_was_read(messages: Messages) -> None:
    reading: KafkaStream = messages.stream()
    messages.send(0, bodies(0, 1))
    made, _ = following(reading).position
    reading.close()
    assert made >> 32 == 1 and made % (1 << 32) > 0


@pytest.fixture
def timed() -> Iterator[Messages]:
    """A topic whose broker finds offsets by time, in a partition with times that go back as well."""
    times = {0: [1000, 2000, 3000, 2500, 4000], 1: [100]}
    port = free_port()
    with (
        Front(port, times=times, members=("g", [("billing", "/10.0.0.7"), *[("lag", "/h")] * 4])) as front,
        LocalBroker({"t": 2}, port=port, advertised=f"127.0.0.1:{front.port}") as broker,
    ):
        messages = Messages.of(broker.brokers, "t")
        for partition, written in times.items():
            for n, ms in enumerate(written):
                messages.send(partition, [b'{"n": %d}' % n], timestamp=ms)
        yield messages


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_messages_are_found_by_their_time(timed: Messages) -> None:
    reading = timed.stream(start=at(2001).isoformat())
    rows = following(reading)
    assert rows.table["n"].to_pylist() == [2, 3, 4], "the first one as young, and all behind it"
    stood = {0: rows.position, 1: (rows.position[0], 1)}
    reading.close()
    assert reading.back_to(at(2000), stood) == {0: (rows.position[0], 1)}
    assert reading.back_to(at(2001), stood) == {0: (rows.position[0], 2)}
    for before in (50, -1, -3):  # -1 is `latest` where offsets are asked for by time
        assert reading.back_to(at(before), stood) == {0: (rows.position[0], 0), 1: (rows.position[0], 0)}
    assert reading.back_to(at(2001), {0: (rows.position[0], 2)}) == {}, "where it stands already"
    assert reading.back_to(at(5000), stood) == {}, "none is as young"
    assert reading.back_to(at(50), {0: (0, 0)}) == {}, "nothing was read"
    with pytest.raises(ConfigError, match="was deleted and recreated since it was read"):
        reading.back_to(at(50), {0: (rows.position[0] + 1, 5)})


def test_offsets_of_recorded_rows_are_committed_for_others_and_never_read(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "COMMIT_S", 0.0)
    messages.send(0, bodies(0, 8))
    reading = messages.stream(partitions=2, commit="true", group=f"g-{messages.topic}")
    assert numbers(reading, 8) == {0: [*range(8)]}
    made = reading._places[0].made

    def committed() -> dict[int, int]:
        assert reading.read() is None
        return reading._topic.committed_by(f"g-{messages.topic}", [0, 1])[0]

    following(reading, empty=True)
    assert committed()[0] < 0, "nothing is in the log yet"
    reading.recorded(0, (made, 5))
    until(lambda: committed()[0] == 5)
    assert committed()[1] < 0
    monkeypatch.setattr(consumer_module, "COMMIT_S", 1e9)
    reading.recorded(0, (made, 8))
    assert reading.read() is None
    reading.close()
    again = messages.stream(partitions=2, commit="true", group=f"g-{messages.topic}")
    assert again._topic.committed_by(f"g-{messages.topic}", [0])[0][0] == 8, "close has not waited for the last one"
    assert numbers(again, 8) == {0: [*range(8)]}
    again.close()
    with pytest.raises(
        ConfigError, match=r"options\.commit needs a group that no other job has\. Write options\.group"
    ):
        messages.stream(commit="true")


def test_who_has_joined_the_group_is_named(timed: Messages) -> None:
    """As a broker says it that tells more of groups than tansu."""
    reading, named = timed.stream(group="g", commit="true"), "the client 'billing' at 10.0.0.7"
    assert reading._topic.members() == [named, *["the client 'lag' at h"] * 2, "2 others"]
    assert f"the group 'g', and they keep its offsets from being committed: {named}, the client" in reading.look()
    refused = [TopicPartition("t", 0, 3)]
    reading._refused(KafkaError(KafkaError.UNKNOWN_MEMBER_ID), refused)
    until(reading.warning)
    assert "No row is concerned" in reading.warning() and named in reading.warning()
    assert [(each.partition, each.offset) for each in reading._to_commit()] == [(0, 3)], "it is tried again"
    reading._refused(None, [])
    assert reading.warning() == "", "it is over"
    reading._complain("late", boot_time() - 1)
    assert reading.warning() == "", "one was accepted since"

"""Rows that are written to a topic: where they go, what they say, transactions and who is shut out of them, and what
happens when the brokers do not take them.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from samza_azure import SystemStream, SystemWriter
from samza_azure.errors import AccessDenied, ConfigError, StorageUnavailable
from samza_azure.kafka import producer as producer_module
from samza_azure.kafka import topic_check
from samza_azure.kafka.connector import KafkaFactory
from samza_azure.kafka.local_broker import LocalBroker, free_port
from samza_azure.kafka.murmur import of_key
from samza_azure.kafka.producer import KafkaOutput
from samza_azure.systems.looks import begun

from .clients import PATIENCE_S, Messages, bodies, following, numbers, until
from .committed import Content, content
from .front import Front
from .mock_cluster import FIND_COORDINATOR, MockCluster

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
WRITER = SystemWriter("g:r:out-0", 2, 1)
INIT_PRODUCER, OFFSET_FETCH, END_TRANSACTION = 22, 9, 26
NOT_COORDINATOR = 16


def stream(brokers: str, topic: str, schema: pa.Schema = SCHEMA, /, **options: str) -> SystemStream:
    said = {"brokers": brokers, "topic": topic} | {key.replace("__", "."): options[key] for key in options}
    return SystemStream("out", 1, schema, said, Path(), is_output=True)


def made(messages: Messages, schema: pa.Schema = SCHEMA, /, **options: str) -> KafkaOutput:
    return KafkaFactory().get_producer(stream(messages.brokers, messages.topic, schema, **options))


def opened(messages: Messages, schema: pa.Schema = SCHEMA, /, **options: str) -> KafkaOutput:
    output = made(messages, schema, **options)
    output.open(WRITER)
    return output


def rows(begin: int, end: int) -> pa.Table:
    return pa.table([range(begin, end), [f"s{number}" for number in range(begin, end)]], schema=SCHEMA)


def sent(output: KafkaOutput, begin: int, end: int) -> None:
    assert output.send(begin, rows(begin, end)) == []
    output.flush()


def contents(broker: LocalBroker, messages: Messages) -> Content:
    """Of both partitions."""
    found = [content(broker.port, messages.topic, partition) for partition in range(2)]
    return Content(*(sorted(each) for each in zip_of(found)))


def zip_of(found: list[Content]) -> Iterator[list[bytes]]:
    for name in ("committed", "given_up", "open"):
        yield [body for each in found for body in getattr(each, name)]


def line(number: int) -> bytes:
    return b'{"n": %d, "s": "s%d"}' % (number, number)


def test_a_range_and_the_number_behind_it_are_one_transaction(broker: LocalBroker, messages: Messages) -> None:
    first = made(messages)
    assert first.open(WRITER) == 0
    sent(first, 0, 10)
    sent(first, 10, 20)
    second = made(messages)
    assert second.open(WRITER) == 20
    assert made(messages).open(SystemWriter("another", 2, 1)) == 0
    sent(second, 20, 30)
    assert contents(broker, messages) == Content(sorted(map(line, range(30))))


def test_what_an_owner_has_not_committed_is_given_up_and_comes_again(broker: LocalBroker, messages: Messages) -> None:
    """It dies between the rows and the commit, and between the position and the commit."""
    for dies in ("rows", "position"):
        owner = opened(messages)
        owner.send(0, rows(0, 10))
        owner._client.begin_transaction()
        owner._queue(owner._client)
        assert owner._client.flush(PATIENCE_S) == 0
        if dies == "position":
            behind = [TopicPartition(messages.topic, 0, 10)]
            owner._client.send_offsets_to_transaction(behind, owner._group, PATIENCE_S)
        owner.close()
    last = made(messages)
    assert last.open(WRITER) == 0
    sent(last, 0, 10)
    wanted = sorted(map(line, range(10)))
    assert contents(broker, messages) == Content(wanted, sorted(wanted * 2))


def test_a_body_that_is_null_is_a_message_without_a_value(messages: Messages) -> None:
    schema = pa.schema([("body", pa.binary())])
    made = opened(messages, schema, format="raw")
    assert made.send(0, pa.table({"body": [b"a", None, b""]}, schema=schema)) == []
    made.flush()
    reading = messages.stream("body binary", format="raw")
    found: list[bytes | None] = []
    while len(found) < 3:
        found += following(reading).table["body"].to_pylist()
    reading.close()
    assert sorted(found, key=repr) == [None, b"", b"a"]


def test_an_owner_that_wakes_up_is_shut_out(broker: LocalBroker, messages: Messages) -> None:
    zombie = opened(messages)
    sent(zombie, 0, 10)
    zombie.send(10, rows(10, 20))
    owner = made(messages)
    assert owner.open(WRITER) == 10
    with pytest.raises(StorageUnavailable, match="Another owner of this task has begun to write to the topic"):
        zombie.flush()
    sent(owner, 10, 20)
    assert contents(broker, messages).committed == sorted(map(line, range(20)))


def test_a_commit_whose_answer_is_lost_counts_once() -> None:
    """The next producer learns whether it was one."""
    port = free_port()
    with (
        Front(port, lose={END_TRANSACTION}) as front,
        LocalBroker({"t": 2}, port=port, advertised=f"127.0.0.1:{front.port}") as broker,
    ):
        through = Messages.of(broker.brokers, "t")
        owner = opened(through)
        owner.send(0, rows(0, 10))
        begun(owner.flush)
        until(lambda: front.lost)
        front.lose = set()
        after = made(through)
        done = after.open(WRITER)
        assert done == 10, "the broker has it"
        sent(after, 10, 20)
        assert contents(broker, through).committed == sorted(map(line, range(20)))


def test_after_a_cut_the_next_transaction_does_not_hang() -> None:
    """It did, until its 30 s were over."""
    port = free_port()
    with Front(port) as front, LocalBroker({"t": 2}, port=port, advertised=f"127.0.0.1:{front.port}"):
        owner = opened(Messages.of(f"127.0.0.1:{front.port}", "t"))
        sent(owner, 0, 10)
        front.cut()
        sent(owner, 10, 20)


def test_rows_go_in_turn_or_where_the_clients_of_java_send_their_key(broker: LocalBroker, messages: Messages) -> None:
    theirs = Producer({"bootstrap.servers": messages.brokers, "partitioner": "murmur2", "log_level": 0})
    keys, placed = ["", "a", "ab", "abc", "shop 7", "Zürich", "東京", "x" * 200], dict[str, int]()
    for key in keys:
        theirs.produce(
            messages.topic, b"", key.encode(),
            on_delivery=lambda _, message: placed.update({message.key().decode(): message.partition()}),
        )  # fmt: skip
    assert theirs.flush(PATIENCE_S) == 0
    assert {key: of_key(key, 2) for key in keys} == placed
    output = opened(messages, partition__by="s", transactions="false")
    output.send(0, pa.table([range(9), [*keys, None]], schema=SCHEMA))
    output.flush()
    schema = "n bigint, partition int, key string, headers array<struct<key string, value binary>>"
    reading = messages.stream(schema, envelope="partition, key, headers", dead_letters=99)
    found = list[dict[str, object]]()
    while len(found) < 9:
        found += following(reading).table.to_pylist()
    reading.close()
    assert {row["n"]: (row["partition"], row["key"]) for row in found if row["n"] != 8} == {
        n: (placed[key], key) for n, key in enumerate(keys)
    }
    said = {row["n"]: row["headers"] for row in found}
    assert said[3] == [
        {"key": "samza-writer", "value": b"g:r:out-0"},
        {"key": "samza-number", "value": b"3"},
    ]


def test_what_comes_again_is_read_once(messages: Messages) -> None:
    output = opened(messages, transactions="false")
    sent(output, 0, 20)
    again = opened(messages, transactions="false")
    sent(again, 10, 30)
    messages.send(0, bodies(100, 101))
    reading = messages.stream()
    found = numbers(reading, 31)
    assert sorted(number for each in found.values() for number in each) == [*range(30), 100]
    sent(opened(messages, transactions="false"), 20, 31)
    states = [reading.state(partition) for partition in range(2)]
    after = messages.stream(opened=False)
    for partition, place in reading._places.items():
        after.restore(partition, states[partition])
        after.open(partition, place.returned)
    reading.close()
    assert [number for each in numbers(after, 1).values() for number in each] == [30]
    after.close()


def test_a_row_that_is_too_large_is_refused(messages: Messages) -> None:
    output = opened(messages)
    table = pa.table([[0, 1, 2], ["x" * 900_000, "y" * 1_100_000, "z"]], schema=SCHEMA)
    refused = output.send(0, table)
    assert [each.index for each in refused] == [1]
    assert "larger than the 999,744 bytes" in refused[0].reason
    output.flush()
    assert made(messages).open(WRITER) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": ""}, r"options\.topic is missing"),
        ({"start": "newest"}, "start is not an option of kafka, which has for a stream that a stage writes"),
        ({"transactions": "maybe"}, "transactions is 'maybe'. Write one of true, false"),
        ({"partition__by": "town"}, "partition.by is 'town', and the stream has the columns n, s"),
        ({"librdkafka__transactional.id": "x"}, r"librdkafka\.transactional\.id is set by samza-azure itself"),
        ({"librdkafka__message.max.bytes": "x"}, r"message\.max\.bytes is 'x', and no number of bytes"),
        ({"format": "csv"}, "Write json or raw"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaFactory().get_admin(stream("localhost:1", "t", **options))


def test_a_topic_can_be_tried_and_one_that_is_missing_is_named(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_check, "CONNECT_S", 0.3)
    assert "has 2 partitions, and takes transactions" in made(messages).look()
    assert "transactions" not in made(messages, transactions="false").look()
    messages.topic = "missing"
    with pytest.raises(ConfigError, match=r"The topic 'missing' does not exist at .*Correct options\.topic, or make"):
        made(messages).look()


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster({"t": 2}) as cluster:
        yield cluster


@pytest.fixture
def mocked(cluster: MockCluster) -> Messages:
    return Messages.of(cluster.brokers, "t")


@pytest.mark.parametrize(
    ("request_", "error", "kind", "said"),
    [
        (INIT_PRODUCER, 53, AccessDenied, "do not let us write in transactions. Give this user or identity the rights"),
        (FIND_COORDINATOR, 42, StorageUnavailable, r"take no transactions, .*, write options\.transactions = false"),
        (OFFSET_FETCH, 30, AccessDenied, "read groups, whose names begin with 'samza-azure'"),
    ],
)
def test_what_brokers_refuse_at_the_start_is_named(
    cluster: MockCluster,
    mocked: Messages,
    request_: int,
    error: int,
    kind: type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "STEP_S", 2.0)  # the client asks again each half second
    monkeypatch.setattr(topic_check, "ANSWER_S", 2.0)
    for call in (lambda: opened(mocked), made(mocked).look):
        cluster.refuse(request_, *[error] * 9)
        with pytest.raises(kind, match=said):
            call()
        cluster.forget(request_)


def test_a_group_that_has_moved_to_another_broker_is_asked_for_again(cluster: MockCluster, mocked: Messages) -> None:
    """That ended the process."""
    cluster.refuse(OFFSET_FETCH, NOT_COORDINATOR)
    with pytest.raises(StorageUnavailable, match="Not coordinator"):
        opened(mocked)
    assert made(mocked).open(WRITER) == 0


@pytest.mark.parametrize("transactions", ["true", "false"])
def test_who_may_not_write_is_named(cluster: MockCluster, mocked: Messages, transactions: str) -> None:
    output = opened(mocked, transactions=transactions)
    output.send(0, rows(0, 10))
    cluster.refuse(0, 29, 29)
    with pytest.raises(AccessDenied, match="The topic 't' may not be written: give this user or identity the right"):
        output.flush()


def test_an_outage_without_transactions_repeats_nothing(
    cluster: MockCluster, mocked: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = opened(mocked, transactions="false")
    sent(output, 0, 10)
    cluster.stop()
    output.send(10, rows(10, 20))
    monkeypatch.setattr(producer_module, "SEND_S", 0.2)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="The brokers of the topic 't' do not answer"):
            output.flush()
    cluster.start()
    monkeypatch.setattr(producer_module, "SEND_S", PATIENCE_S)
    output.flush()
    reading = mocked.stream()
    assert sorted(n for each in numbers(reading, 20).values() for n in each) == [*range(20)]
    reading.close()
    output.close()

"""What tansu and librdkafka do that the code is made for: a test that fails says that a release has changed it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from samza_azure.kafka.local_broker import LocalBroker

from .clients import PATIENCE_S, Messages, bodies, following

ROOT = Path(__file__).parents[2]


def test_tansu_says_of_the_end_where_its_last_batch_begins(messages: Messages) -> None:
    """So what is left may look like nothing while something is; no test may rely on it."""
    messages.send(0, bodies(0, 1))
    for number in range(1, 10):
        messages.producer.produce(messages.topic, b"%d" % number, partition=0)
    messages.producer.flush(PATIENCE_S)
    partition = TopicPartition(messages.topic, 0)
    admin = AdminClient({"bootstrap.servers": messages.brokers})
    assert admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(PATIENCE_S).offset < 10


def test_tansu_shows_what_a_transaction_has_given_up(broker: LocalBroker, messages: Messages) -> None:
    """A broker of Kafka's hides it from us. So what `read_committed` does is not shown here."""
    writer = Messages.of(broker.brokers, messages.topic, **{"transactional.id": messages.topic})
    writer.producer.init_transactions(PATIENCE_S)
    writer.producer.begin_transaction()
    writer.send(0, bodies(0, 3))
    writer.producer.abort_transaction(PATIENCE_S)
    reading = messages.stream()
    assert following(reading).table["n"].to_pylist() == [0, 1, 2]
    reading.close()


def test_the_end_of_a_transaction_takes_an_offset_that_the_position_goes_over(
    broker: LocalBroker, messages: Messages
) -> None:
    writer = Messages.of(broker.brokers, messages.topic, **{"transactional.id": messages.topic})
    writer.producer.init_transactions(PATIENCE_S)
    for number in range(2):
        writer.producer.begin_transaction()
        writer.send(0, bodies(number, number + 1))
        writer.producer.commit_transaction(PATIENCE_S)
    reading, ends = messages.stream(), list[int]()
    while not ends or ends[-1] < 4:
        rows = following(reading, empty=True)
        ends += [rows.position[1]] if rows.partition == 0 else []
    reading.close()
    assert ends[-1] == 4


def test_tansu_holds_back_offsets_behind_a_transaction_that_was_left(broker: LocalBroker, messages: Messages) -> None:
    """A broker of Kafka's does not. So nothing is shown here of a program that takes another transactional id at each
    start.
    """
    reader = Consumer({"bootstrap.servers": broker.brokers, "group.id": messages.topic})

    def begun(name: str, offset: int) -> Producer:
        writer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": f"{messages.topic}-{name}"})
        writer.init_transactions(PATIENCE_S)
        writer.begin_transaction()
        writer.produce(messages.topic, b"", partition=0)
        writer.flush(PATIENCE_S)
        behind = [TopicPartition(messages.topic, 0, offset)]
        writer.send_offsets_to_transaction(behind, reader.consumer_group_metadata(), PATIENCE_S)
        return writer

    def committed() -> int:
        (found,) = reader.committed([TopicPartition(messages.topic, 0)], PATIENCE_S)
        return int(found.offset)

    left = begun("left", 1)
    begun("later", 2).commit_transaction(PATIENCE_S)
    assert committed() < 0
    begun("left", 3)
    assert committed() == 2
    reader.close()
    del left


ABORTS = """
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from tests.kafka.mock_cluster import METADATA, MockCluster

with MockCluster({"t": 1}) as cluster:
    admin = AdminClient({"bootstrap.servers": cluster.brokers})
    admin.list_topics("t", timeout=10)
    cluster.refuse(METADATA, 7)
    admin.describe_topics(TopicCollection(["t"]))["t"].result(10)
"""


@pytest.mark.long
def test_a_question_for_the_id_of_a_topic_that_is_refused_as_a_whole_ends_the_process() -> None:
    """So it is asked right after another one that would be refused as well. Once this fails that is not needed."""
    ended = subprocess.run([sys.executable, "-c", ABORTS], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGABRT and "rko_result" in ended.stderr


MOVES = """
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.kafka.mock_cluster import MockCluster

with MockCluster({"t": 1}) as cluster:
    admin = AdminClient({"bootstrap.servers": cluster.brokers})
    cluster.refuse(9, 16)
    asked = ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0)])
    admin.list_consumer_group_offsets([asked])["g"].result(10)
"""


@pytest.mark.long
def test_a_question_for_a_group_that_has_moved_ends_the_process_of_an_admin() -> None:
    """So a consumer asks. Once this fails an AdminClient may."""
    ended = subprocess.run([sys.executable, "-c", MOVES], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGSEGV


def test_a_client_asks_for_the_end_of_a_partition_once(messages: Messages) -> None:
    """After that it is silent, whether there is nothing or nobody answers. So somebody has to look."""
    consumer = Consumer({"bootstrap.servers": messages.brokers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(messages.topic, 0, 0)])
    assert consumer.poll(PATIENCE_S).error() is not None
    until = time.monotonic() + 1.2  # two more answers of the broker, which each come after half a second
    while time.monotonic() < until:
        assert consumer.poll(0.1) is None
    consumer.close()

"""Topics and streams of them, as tests use them."""

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from samza_azure.errors import StorageUnavailable
from samza_azure.kafka.consumer import KafkaStream
from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemRows, SystemStream

from .mock_cluster import library

PATIENCE_S = 60.0
JSON = "n bigint, s string"


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@dataclass
class Messages:
    """A topic and who writes to it."""

    brokers: str
    topic: str
    producer: Producer

    @classmethod
    def of(cls, brokers: str, topic: str, **settings: Any) -> Self:
        return cls(brokers, topic, Producer({"bootstrap.servers": brokers, "linger.ms": 1, "log_level": 0} | settings))

    @classmethod
    def in_new_topic(cls, broker: LocalBroker, topic: str, partitions: int = 2) -> Self:
        broker.add(topic, partitions)
        return cls.of(broker.brokers, topic)

    def send(self, partition: int, values: Sequence[bytes | None], **more: Any) -> None:
        """Write messages in their order, and wait until they are there."""
        for value in values:
            self.producer.produce(self.topic, value, partition=partition, **more)
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0

    def send_with_header(self, name: bytes, value: bytes) -> None:
        """Write a message to partition 0 with a header whose name is no text: confluent-kafka itself takes none."""
        called, error = library(), ctypes.create_string_buffer(512)
        called.rd_kafka_conf_new.restype = called.rd_kafka_new.restype = called.rd_kafka_producev.restype = c_void_p
        settings = c_void_p(called.rd_kafka_conf_new())
        called.rd_kafka_conf_set(settings, b"bootstrap.servers", self.brokers.encode(), error, c_size_t(512))
        client = c_void_p(called.rd_kafka_new(c_int(0), settings, error, c_size_t(512)))
        topic, partition, flags = (c_int(1), c_char_p(self.topic.encode())), (c_int(3), c_int(0)), (c_int(7), c_int(2))
        body, header = (c_int(4), c_char_p(value), c_size_t(len(value))), (c_int(9), c_char_p(name), b"v", c_size_t(1))
        assert not called.rd_kafka_producev(client, *topic, *partition, *flags, *body, *header, c_int(0))
        assert called.rd_kafka_flush(client, c_int(round(PATIENCE_S * 1000))) == 0
        called.rd_kafka_destroy(client)

    def stream(
        self, schema: str = JSON, dead_letters: int = 0, partitions: int = 2, opened: bool = True, **options: str
    ) -> KafkaStream:
        """A stream of the topic, with all its partitions opened at their beginning."""
        given = {"topic": self.topic} | {name.replace("__", "."): value for name, value in options.items()}
        if "connect" not in given:
            given.setdefault("brokers", self.brokers)
        declared = SystemStream(
            "s", partitions, ddl.arrow_schema(schema), given, Path(), owner=1, dead_letters=dead_letters
        )
        reading = KafkaStream(declared)
        for partition in range(partitions if opened else 0):
            reading.open(partition, (0, 0))
        return reading


def following(reading: KafkaStream, *, empty: bool = False) -> SystemRows:
    """The next rows; those without any, which only move the position, on request."""
    found: list[SystemRows] = []

    def comes() -> bool:
        try:
            rows = reading.read()
        except StorageUnavailable:
            return False
        if rows is not None and (empty or rows.table.num_rows or rows.dead is not None):
            found.append(rows)
        return bool(found)

    until(comes)
    return found[0]


def numbers(reading: KafkaStream, count: int) -> dict[int, list[int]]:
    """The column n of so many rows, by partition."""
    found: dict[int, list[int]] = {}
    while sum(map(len, found.values())) < count:
        rows = following(reading)
        found.setdefault(rows.partition, []).extend(rows.table["n"].to_pylist())
    return found


def bodies(*between: int) -> list[bytes]:
    """Messages that are rows, with numbers."""
    return [b'{"n": %d}' % number for number in range(*between)]

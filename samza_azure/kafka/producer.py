"""`system = "kafka"` of a stream that a stage writes: its rows are messages of a topic.

Promised, with transactions: each range of rows is one, together with the number behind it, which is the committed
offset of a group that only this writer has. Whoever opens a producer ends what its predecessor has left open, shuts it
out, and then reads that number. So whoever dies when, each row is there once for a reader that is `read_committed`.

Promised, without: each row is there at least once. What comes behind a message that failed is not sent, so a row that
comes again comes before all with higher numbers, and a reader that keeps these sees each once.

Not promised: the former, once the brokers have forgotten the group, which has no members. Kafka does so after a week
without a row; then the range that was being sent when the task stopped may come again, with its numbers.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.kafka.access import CLIENT, access_of, is_client_setting
from samza_azure.kafka.access import OPTIONS as ACCESS
from samza_azure.kafka.murmur import of_key
from samza_azure.kafka.topic import GROUP, Told, Topic, answered
from samza_azure.kafka.topic_check import tried_to_send
from samza_azure.machine.clock import boot_time
from samza_azure.systems.api import RefusedRow, SystemStream, SystemWriter
from samza_azure.systems.encoding import Encoder
from samza_azure.systems.looks import begun
from samza_azure.systems.once import NUMBER, WRITER
from samza_azure.systems.options import FORMAT, one_of, refuse_unknown
from samza_azure.systems.partitioning import OPTIONS as PARTITIONING
from samza_azure.systems.partitioning import Partitioner

TRANSACTIONS, LARGEST = "transactions", "message.max.bytes"
OPTIONS = {*ACCESS, "topic", "group", TRANSACTIONS, *PARTITIONING, FORMAT}
#: How long the brokers may take for a range, and for each step of a transaction.
SEND_S, STEP_S = 30.0, 10.0
#: They end a transaction themselves that has lasted for so long; until then it holds up its readers.
OPEN_MS = 60_000
#: What a batch and a message add to the bytes of a row, at most.
FRAME_BYTES = 256


class KafkaOutput:
    """A topic that is written: its admin and its producer."""

    def __init__(self, stream: SystemStream) -> None:
        options = stream.options
        refuse_unknown(stream, "kafka", OPTIONS | {name for name in options if is_client_setting(name)})
        if not options.get("topic"):
            raise ConfigError(f'streams.{stream.name}.options.topic is missing. Write options.topic = "name".')
        self._topic = Topic(options["topic"], access_of(stream), options.get("group", GROUP), sends=True)
        self._in_transactions = one_of(stream, TRANSACTIONS, "true", "false") == "true"
        self._encoder, self._partitioner = Encoder(stream), Partitioner(stream, of_key)
        self._given = options.get(CLIENT + LARGEST, "")
        if self._given and not (self._given.isdecimal() and int(self._given) > FRAME_BYTES):
            raise ConfigError(
                f"streams.{stream.name}.options.{CLIENT}{LARGEST} is {self._given!r}, and no number of bytes."
            )
        self._most = 0  # bytes of a row
        self._writer = SystemWriter("", None, 0)
        self._producer: Producer | None = None
        self._told = Told()
        self._group: Any = None  # what a transaction has to know of it
        self._waiting: list[tuple[int, str | None, bytes | None, dict[str, str]]] = []
        self._is_queued = False  # whether the producer has them
        self._behind = 0  # the number behind them

    def partitions(self) -> int | None:
        """As many as the topic has. Their ids are the numbers from 0."""
        return self._topic.count()

    def look(self) -> str:
        """What a try to reach the topic has found. Raise an error that says what to do if nothing can be written."""
        return tried_to_send(self._topic, in_transactions=self._in_transactions)

    def open(self, writer: SystemWriter) -> int | None:
        self._writer = writer
        largest = int(self._given) if self._given else self._topic.most_bytes()
        self._most = largest - FRAME_BYTES
        if not self._in_transactions:
            return None
        name = f"{self._topic.group}:{writer.id}"
        self._told, settings = Told(), {"transaction.timeout.ms": OPEN_MS, LARGEST: largest}
        self._producer = self._topic.in_transactions(self._told, name, settings, STEP_S)
        committed, self._group = self._topic.committed(name)
        return max(0, committed)

    def send(self, number: int, rows: pa.Table) -> Sequence[RefusedRow]:
        """Make messages of rows."""
        refused, writer = list[RefusedRow](), self._writer.id
        keys, bodies, more = self._partitioner.keys(rows), self._encoder.bodies(rows), self._encoder.properties(rows)
        places = self._partitioner.places(self._writer, number, rows)
        for index, (where, key, body, said) in enumerate(zip(places, keys, bodies, more, strict=True)):
            if isinstance(where, str):
                refused.append(RefusedRow(index, where, body or b""))
                continue
            headers = {**said, WRITER: writer, NUMBER: str(number + index)}
            size = (
                len(body or b"") + len((key or "").encode()) + sum(len(f"{a}{b}".encode()) for a, b in headers.items())
            )
            if size > self._most:
                reason = f"It is larger than the {self._most:,} bytes that the topic {self._topic.name!r} takes."
                refused.append(RefusedRow(index, reason, body or b""))
                continue
            self._waiting.append((where, key, body, headers))
        self._behind = number + rows.num_rows
        return refused

    def flush(self) -> None:
        """Write all messages, and with transactions the number behind them."""
        if not self._waiting:
            return
        if self._in_transactions:
            self._commit()
        else:
            self._deliver()
        self._waiting, self._is_queued = [], False
        self._told.errors.clear()

    def close(self) -> None:
        producer, self._producer, self._is_queued = self._producer, None, False
        if producer is not None:
            begun(producer.purge)  # what it has left to do comes again; it takes a while until it has ended

    def _commit(self) -> None:
        """Write them in a transaction. What becomes of one that fails, only the next producer learns."""
        behind = [TopicPartition(self._topic.name, 0, self._behind)]

        def commit(producer: Producer) -> None:
            producer.begin_transaction()
            self._queue(producer)
            producer.send_offsets_to_transaction(behind, self._group, STEP_S)
            producer.commit_transaction(SEND_S)

        try:
            answered(self._client, commit, self._told, SEND_S)
        except KafkaException as error:
            raise self._failed(error.args[0]) from error

    def _deliver(self) -> None:
        """Write them without. What takes too long goes on meanwhile, and is waited for again."""
        if self._producer is None:
            self._told, settings = Told(), {"message.timeout.ms": 0, LARGEST: self._most + FRAME_BYTES}
            self._producer = self._topic.producer(self._told, settings)
        if not self._is_queued:
            self._queue(self._client)
            self._is_queued = True
        told, client, left, end = self._told, self._client, 1, boot_time() + SEND_S
        try:
            while left and not told.is_final and told.unsent is None and boot_time() < end:
                left = client.flush(0.1)
        except KafkaException as error:  # the first message that failed says why
            client.poll(0.1)
            raise self._failed(error.args[0]) from error
        if told.unsent is not None or (left and told.is_final):
            raise self._failed(KafkaError(KafkaError._TIMED_OUT))
        if left:
            raise self._topic.explained(KafkaError(KafkaError._TIMED_OUT), told)

    def _queue(self, producer: Producer) -> None:
        name = self._topic.name
        for where, key, body, headers in self._waiting:
            producer.produce(name, body, key, where, headers=headers)

    @property
    def _client(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def _failed(self, error: KafkaError) -> SamzaAzureError:
        """What a failed try means. The next one needs another client, which takes a secret that is read again."""
        found = self._topic.explained(self._told.unsent or error, self._told)
        self.close()
        return found

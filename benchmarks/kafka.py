"""Messages of a topic on this machine, tansu, read into the logs by one container without Spark, in each format; and
what the client alone does, the parser alone, and quixstreams, where it is installed.

Processor time is what counts: the broker, the emulator and whatever else runs here share the machine.
"""

import importlib.util
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
from common import Claim, Written, bench_job, cpu_s, main, say
from confluent_kafka import Consumer, Producer, TopicPartition
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP

from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.systems.api import SystemStream
from samza_azure.systems.parsing import Parser

PARTITIONS = 4
JOB = """
[app]
name = "bench"
main = "pipeline:app"
[azure.storage]
connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[streams.clicks]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "TOPIC"
OPTIONS
partitions = 4
schema = "SCHEMA"
[streams.seen]
schema = "n bigint"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="seen")
class Pass:
    def process(self, envelope, collector): ...
"""
COLUMNS = "n bigint, at timestamp, shop string"
FORMATS = {
    "json": COLUMNS,
    "raw": "body binary, offset bigint, timestamp timestamp",
    "avro": COLUMNS,
    "protobuf": COLUMNS,
}
#: What is parsed at once, as the connector of Kafka does.
AT_ONCE = 10_000
AVRO = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "shop", "type": "string"},
        {"name": "rest", "type": "string"},
    ],
}
PROTOBUF = """
name: "click.proto" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
message_type {
  name: "Click"
  field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "at" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "shop" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "rest" number: 4 type: TYPE_STRING label: LABEL_OPTIONAL }
}
"""
FIRST_S = 1_767_225_600
#: Counts the messages in the same way: JSON in, nothing out, at least once.
QUIX = """
import sys, time
from quixstreams import Application
app = Application(broker_address=sys.argv[1], consumer_group="bench", auto_offset_reset="earliest", loglevel="ERROR")
count, times = int(sys.argv[2]), time.process_time()
seen = 0
def one(row):
    global seen
    seen += 1
    if seen == count:
        app.stop()
app.dataframe(app.topic("json", value_deserializer="json")).update(one)
app.run()
print(seen, time.process_time() - times)
"""


def measure(quick: bool) -> list[Claim]:
    """200 bytes each in JSON, in four partitions; the same in other formats."""
    count = 100_000 if quick else 1_000_000
    claims = []
    with LocalBroker(dict.fromkeys(("json", "avro", "protobuf"), PARTITIONS)) as broker, TemporaryDirectory() as folder:
        bodies, options = written_in(Path(folder))
        sizes = {named: write(broker.brokers, named, body, count) for named, body in bodies.items()}
        say(f"{count:,} messages are there, of so many bytes: {sizes}")
        claims.append(Claim("the client alone, which only counts them", figure(count, *counted(broker.brokers, count))))
        for named, schema in FORMATS.items():
            topic = named if named in bodies else "json"
            lines = [f'options.{name} = "{value}"' for name, value in options[named].items()]
            job = JOB.replace("BROKERS", broker.brokers).replace("TOPIC", topic).replace("SCHEMA", schema)
            cpu, wall = in_logs(job.replace("OPTIONS", "\n".join(lines)), count)
            claims.append(
                Claim(
                    f"{count:,} messages of {sizes[topic]} bytes, {named}, in the logs of four tasks of one container",
                    figure(count, cpu, wall),
                    "100,000 a core",
                    count / cpu >= 100_000,
                )
            )
            if named in bodies:
                alone = figure(AT_ONCE, parsing_alone(options[named], schema, bodies[named]))
                claims.append(Claim(f"{named}, {sizes[topic]} bytes, the parser alone, {AT_ONCE:,} at once", alone))
        if importlib.util.find_spec("quixstreams") is not None:
            ran = subprocess.run(
                [sys.executable, "-c", QUIX, broker.brokers, str(count)], stdout=subprocess.PIPE, text=True, check=True
            )
            seen, used = ran.stdout.split()
            claims.append(Claim("quixstreams, JSON, which only counts them", figure(int(seen), float(used))))
    return claims


def written_in(folder: Path) -> tuple[dict[str, Callable[[int], bytes]], dict[str, dict[str, str]]]:
    """How a message is written in each format; and the options of a stream of them, with their schemas in a folder."""
    schema, file, pool = fastavro.parse_schema(AVRO), Parse(PROTOBUF, FileDescriptorProto()), DescriptorPool()
    (folder / "click.avsc").write_text(json.dumps(AVRO))
    (folder / "click.pb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    pool.AddSerializedFile(TIMESTAMP.serialized_pb)
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("Click"))

    def in_json(number: int) -> bytes:
        at = f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
        return b'{"n": %9d, "at": "%s", "shop": "s%03d", "rest": "%s"}' % (number, at.encode(), number % 50, b"x" * 127)

    def in_avro(number: int) -> bytes:
        stream, at = io.BytesIO(), (FIRST_S + number % 86_400) * 1000
        row = {"n": number, "at": at, "shop": f"s{number % 50:03d}", "rest": "x" * 127}
        fastavro.schemaless_writer(stream, schema, row)
        return stream.getvalue()

    def in_protobuf(number: int) -> bytes:
        at = {"seconds": FIRST_S + number % 86_400}
        made: bytes = message(n=number, at=at, shop=f"s{number % 50:03d}", rest="x" * 127).SerializeToString()
        return made

    options = {name: {"format": name} for name in FORMATS}
    options["avro"]["schema.file"] = str(folder / "click.avsc")
    options["protobuf"] |= {"descriptor.file": str(folder / "click.pb"), "message": "Click"}
    return {"json": in_json, "avro": in_avro, "protobuf": in_protobuf}, options


def parsing_alone(options: dict[str, str], schema: str, body: Callable[[int], bytes]) -> float:
    """Processor time of a parser: the least of five times."""
    parser = Parser(SystemStream("clicks", 1, arrow_schema(schema), options, Path()), [])
    messages, took = pa.table({"body": pa.array([body(number) for number in range(AT_ONCE)], pa.binary())}), []
    for _ in range(5):
        used = time.process_time()
        assert sum(rows.num_rows for rows, reason in parser.rows(messages) if not reason) == AT_ONCE
        took.append(time.process_time() - used)
    return min(took)


def write(brokers: str, topic: str, message: Callable[[int], bytes], count: int) -> int:
    """Write them, and return the size of one."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    body = b""
    for number in range(count):
        body = message(number)
        while True:
            try:
                producer.produce(topic, body, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(180) == 0
    return len(body)


def counted(brokers: str, count: int) -> tuple[float, float]:
    """Processor time and time of a consumer that throws all away."""
    settings: dict[str, Any] = {"bootstrap.servers": brokers, "group.id": "bench", "enable.auto.commit": False}
    consumer, seen, begun, used = Consumer(settings), 0, time.monotonic(), time.process_time()
    consumer.assign([TopicPartition("json", number, 0) for number in range(PARTITIONS)])
    while seen < count:
        seen += len(consumer.consume(10_000, 1.0))
    took = time.process_time() - used, time.monotonic() - begun
    consumer.close()
    return took


def in_logs(job: str, count: int) -> tuple[float, float]:
    """Processor time and time of a container from the start of its source tasks until all rows are in their logs."""
    with bench_job(job, PIPELINE) as around:
        container = around.container("one")
        plan = container.ready()
        container.permit()
        written = Written(around, "clicks-source", PARTITIONS)
        used, begun = cpu_s(container.pid), time.monotonic()
        assert plan.stage_of("clicks-source-0").tasks == PARTITIONS
        for number in range(PARTITIONS):
            container.start(f"clicks-source-{number}")
        container.until("all rows in the logs", lambda: written.reaches(count))
        assert written.rows == count
        return cpu_s(container.pid) - used, time.monotonic() - begun


def figure(count: int, cpu: float, wall: float | None = None) -> str:
    beside = "" if wall is None else f", {count / wall:,.0f}/s on this machine"
    return f"{count / cpu:,.0f}/s a core{beside}"


if __name__ == "__main__":
    main(measure, __doc__)

"""Messages of a topic on this machine, tansu, read into the logs by one container without Spark; and what the client
alone does, and quixstreams, where it is installed.

Processor time is what counts: the broker, the emulator and whatever else runs here share the machine.
"""

import importlib.util
import subprocess
import sys
import time
from typing import Any

from common import Claim, Written, bench_job, cpu_s, main, say
from confluent_kafka import Consumer, Producer, TopicPartition

from samza_azure.kafka.local_broker import LocalBroker

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
options.topic = "clicks"
options.format = "FORMAT"
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
FORMATS = {
    "json": "n bigint, at timestamp, shop string",
    "raw": "body binary, offset bigint, timestamp timestamp",
}
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
app.dataframe(app.topic("clicks", value_deserializer="json")).update(one)
app.run()
print(seen, time.process_time() - times)
"""


def measure(quick: bool) -> list[Claim]:
    """200 bytes each, in four partitions."""
    count = 100_000 if quick else 1_000_000
    claims = []
    with LocalBroker({"clicks": PARTITIONS}) as broker:
        size = write(broker.brokers, count)
        say(f"{count:,} messages of {size} bytes are there")
        claims.append(Claim("the client alone, which only counts them", figure(count, *counted(broker.brokers, count))))
        for named, schema in FORMATS.items():
            job = JOB.replace("BROKERS", broker.brokers).replace("FORMAT", named).replace("SCHEMA", schema)
            cpu, wall = in_logs(job, count)
            claims.append(
                Claim(
                    f"{count:,} messages of {size} bytes, {named}, in the logs of four tasks of one container",
                    figure(count, cpu, wall),
                    "100,000 a core",
                    count / cpu >= 100_000,
                )
            )
        if importlib.util.find_spec("quixstreams") is not None:
            ran = subprocess.run(
                [sys.executable, "-c", QUIX, broker.brokers, str(count)], stdout=subprocess.PIPE, text=True, check=True
            )
            seen, used = ran.stdout.split()
            claims.append(Claim("quixstreams, JSON, which only counts them", figure(int(seen), float(used))))
    return claims


def write(brokers: str, count: int) -> int:
    """Write them, and return the size of one."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    body = b""
    for number in range(count):
        at = f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
        body = b'{"n": %9d, "at": "%s", "shop": "s%03d", "rest": "%s"}' % (number, at.encode(), number % 50, b"x" * 127)
        while True:
            try:
                producer.produce("clicks", body, partition=number % PARTITIONS)
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
    consumer.assign([TopicPartition("clicks", number, 0) for number in range(PARTITIONS)])
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

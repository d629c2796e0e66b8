"""A hub and a topic of this machine, connected to a job: how fast a hub is read into the logs, how long an event takes
from its arrival until it is in its log, and what a connector takes that has nothing to do.

The hub is the emulator, the broker tansu, each in a process of its own, whose time is not counted. All is read by four
source tasks in one container without Spark. `benchmarks/kafka.py` has how fast a topic is read.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from azure.eventhub import EventHubConsumerClient
from common import BenchJob, Claim, Container, Written, bench_job, cpu_s, main, middle, p95, say
from confluent_kafka import Producer
from kafka import COLUMNS, JOB, PARTITIONS, PIPELINE, figure, in_logs

from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.kafka.local_broker import LocalBroker

TOPIC = JOB.replace('"TOPIC"', '"clicks"').replace("OPTIONS", 'options.format = "json"').replace("SCHEMA", COLUMNS)
HUB = TOPIC.replace('"kafka"', '"eventhubs"').replace("options.topic", "options.name")
HUB = HUB.replace("options.brokers", "options.connect")
#: Per second of processor time, from the hub into the logs.
LEAST = 15_000
#: Until an event is in its log: a commit, a fifth of it, and 0.1 s. `task.commit.ms` is 1,000.
LATE_S, IDLE = 1.2 * 1.0 + 0.1, 0.02
PER_CALL, POLL_S = 5_000, 0.02

#: Puts messages into a partition.
Send = Callable[[int, Sequence[bytes]], None]


def measure(quick: bool) -> list[Claim]:
    """200 bytes each, as JSON."""
    count, singles, idle_s, claims = (40_000, 10, 10.0, list[Claim]()) if quick else (400_000, 100, 60.0, [])
    with beside(_run_hubs) as (connect, send):
        for begin in range(0, count, PER_CALL):
            send(begin // PER_CALL % PARTITIONS, [body(number) for number in range(begin, begin + PER_CALL)])
        say(f"{count:,} events of {len(body(0))} bytes are there")
        cpu, wall = in_logs(HUB.replace("BROKERS", connect), count)
        name = f"{count:,} events of {len(body(0))} bytes from a hub, JSON, in the logs"
        claims.append(Claim(name, figure(count, cpu, wall), f"{LEAST:,} a core", count / cpu >= LEAST))
        cpu, wall = received(connect, count)
        claims.append(Claim("the same, received by the SDK alone", figure(count, cpu, wall)))
    for named, outside in (("hub", hub), ("topic", topic)):
        with outside() as (job, send), reading(job) as (around, container):
            idle = idle_for(container, idle_s)
            claims.append(
                Claim(f"four readers of a {named} that is silent", f"{idle:.1%} of a core", f"{IDLE:.0%}", idle <= IDLE)
            )
            took = list(one_by_one(around, container, send, singles))
            claims.append(
                Claim(
                    f"from the arrival of an event of a {named} until it is in its log, {singles} of them",
                    f"median {middle(took):.2f} s, 95th percentile {p95(took):.2f} s, at most {max(took):.2f} s",
                    f"at most {LATE_S:.1f} s",
                    max(took) <= LATE_S,
                )
            )
    return claims


def body(number: int) -> bytes:
    """One of 200 bytes."""
    at = f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    return b'{"n": %9d, "at": "%s", "shop": "s%03d", "rest": "%s"}' % (number, at.encode(), number % 50, b"x" * 127)


def received(connect: str, count: int) -> tuple[float, float]:
    """Processor time and seconds in which the SDK alone receives all events, one partition after the other."""
    begun, used = time.monotonic(), time.process_time()
    for partition in range(PARTITIONS):
        left = [count // PARTITIONS]
        client = EventHubConsumerClient.from_connection_string(connect, "$Default", eventhub_name="clicks")

        def came(
            _: object, events: Sequence[object], left: list[int] = left, client: EventHubConsumerClient = client
        ) -> None:
            left[0] -= len(events)
            if left[0] <= 0:
                client.close()

        with client:
            client.receive_batch(
                came, partition_id=f"{partition}", starting_position="-1", prefetch=2_000, max_batch_size=2_000
            )
    return time.process_time() - used, time.monotonic() - begun


@contextmanager
def reading(job: str) -> Iterator[tuple[BenchJob, Container]]:
    """A container whose tasks read."""
    with bench_job(job, PIPELINE) as around:
        container = around.container("one")
        container.ready()
        container.permit()
        for number in range(PARTITIONS):
            container.start(f"clicks-source-{number}")
        container.until("all tasks have begun", lambda: len(container.reports) == PARTITIONS)
        yield around, container


def idle_for(container: Container, seconds: float) -> float:
    """How much of a core it takes while nothing comes."""
    wait(container, 5.0)  # clients connect, Python is warm
    used, begun = cpu_s(container.pid), time.monotonic()
    wait(container, seconds)
    return (cpu_s(container.pid) - used) / (time.monotonic() - begun)


def one_by_one(around: BenchJob, container: Container, send: Send, count: int) -> Iterator[float]:
    """How long each of some events takes. Between two of them passes a random time, so some meet a task that has just
    appended and some do not.
    """
    written, dice = Written(around, "clicks-source", PARTITIONS), random.Random(1)
    for number in range(count):
        begun = time.monotonic()
        send(number % PARTITIONS, [body(number)])
        while not written.reaches(number + 1):
            wait(container, POLL_S)
        yield time.monotonic() - begun
        wait(container, dice.uniform(0.0, 1.0))


def wait(container: Container, seconds: float) -> None:
    """Let time pass, and hear what the container reports meanwhile."""
    end = time.monotonic() + seconds
    container.until("a while", lambda: time.monotonic() >= end, seconds + 60.0)


@contextmanager
def hub() -> Iterator[tuple[str, Send]]:
    """A job file, and what sends to the hub that it names."""
    with beside(_run_hubs) as (connect, send):
        yield HUB.replace("BROKERS", connect), send


@contextmanager
def topic() -> Iterator[tuple[str, Send]]:
    """A job file, and what writes to the topic that it names."""
    with beside(_run_broker) as (brokers, send):
        yield TOPIC.replace("BROKERS", brokers), send


@contextmanager
def beside(run: Callable[[Connection], None]) -> Iterator[tuple[str, Send]]:
    """What is outside, in a process of its own: its address, and what sends to it."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run, args=(there,), daemon=True)
    process.start()

    def send(partition: int, bodies: Sequence[bytes]) -> None:
        here.send((partition, bodies))
        here.recv()

    try:
        yield here.recv(), send
    finally:
        here.send(None)
        process.join()


def _run_hubs(told: Connection) -> None:
    with EventHubs({"clicks": PARTITIONS}) as hubs:
        told.send(hubs.connection_string)
        while (asked := told.recv()) is not None:
            hubs.send("clicks", *asked)
            told.send(None)


def _run_broker(told: Connection) -> None:
    with LocalBroker({"clicks": PARTITIONS}) as broker:
        producer = Producer({"bootstrap.servers": broker.brokers, "linger.ms": 0, "enable.idempotence": True})
        told.send(broker.brokers)
        while (asked := told.recv()) is not None:
            for each in asked[1]:
                producer.produce("clicks", each, partition=asked[0])
            producer.flush()
            told.send(None)


if __name__ == "__main__":
    main(measure, __doc__)

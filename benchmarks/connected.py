"""A hub and a topic of this machine, connected to a job: how fast a hub is read into the logs, how long an event takes
from its arrival until it is in its log, and what a connector takes that has nothing to do.

The hub is the emulator, the broker tansu, each in a process of its own, whose time is not counted. All is read by
source tasks in one container without Spark, four where nothing else is said. What tasks take until their first rows are
in the logs (connections, what Python imports) stands by itself: it does not grow with the events. `benchmarks/kafka.py`
has how fast a topic is read in other formats.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pyarrow as pa
from azure.eventhub import EventHubConsumerClient
from common import PATIENCE_S, BenchJob, Claim, Container, Written, bench_job, cpu_s, main, middle, p95, say
from confluent_kafka import Producer
from kafka import COLUMNS, JOB, PARTITIONS, PIPELINE, figure

from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.eventhubs.hub import EventHub
from samza_azure.eventhubs.partition_reader import PartitionReader
from samza_azure.kafka.local_broker import LocalBroker

TOPIC = JOB.replace('"TOPIC"', '"clicks"').replace("OPTIONS", 'options.format = "json"').replace("SCHEMA", COLUMNS)
HUB = TOPIC.replace('"kafka"', '"eventhubs"').replace("options.topic", "options.name")
HUB = HUB.replace("options.brokers", "options.connect")
#: Per second of processor time, from the hub and the topic into the logs; and of what the SDK alone receives, since
#: machines differ.
LEAST, LEAST_KAFKA, LEAST_PART = 15_000, 100_000, 0.6
#: Silent readers in one container.
READERS = (1, PARTITIONS, 16)
#: Until an event is in its log: a commit, a fifth of it, and 0.1 s. `task.commit.ms` is 1,000.
LATE_S, IDLE = 1.2 * 1.0 + 0.1, 0.02
PER_CALL, POLL_S = 5_000, 0.02

#: Puts messages into a partition.
Send = Callable[[int, Sequence[bytes]], None]


def measure(quick: bool) -> list[Claim]:
    """200 bytes each, as JSON."""
    count, singles, idle_s = (40_000, 10, 10.0) if quick else (400_000, 100, 60.0)
    claims = [*speed_of_hub(count), *speed_of_topic(count * 5)]  # a quick one would be over with the first records
    for number in READERS[:2] if quick else READERS:
        with hub(number) as (job, send), reading(job, number) as (around, container):
            Events(around, container, send, number)
            claims.append(silent(f"{number} readers of a hub", idle_for(container, idle_s)))
    for named, outside in (("hub", hub), ("topic", topic)):
        with outside() as (job, send), reading(job) as (around, container):
            events = Events(around, container, send, PARTITIONS)
            if named == "topic":
                claims.append(silent(f"{PARTITIONS} readers of a topic", idle_for(container, idle_s)))
            took = list(one_by_one(events, singles))
            claims.append(
                Claim(
                    f"from the arrival of an event of a {named} until it is in its log, {singles} of them",
                    f"median {middle(took):.2f} s, 95th percentile {p95(took):.2f} s, at most {max(took):.2f} s",
                    f"at most {LATE_S:.1f} s",
                    max(took) <= LATE_S,
                )
            )
    return claims


def silent(who: str, idle: float) -> Claim:
    return Claim(f"{who} in one container, all silent", f"{idle:.1%} of a core", f"{IDLE:.0%}", idle <= IDLE)


def filled(send: Send, count: int) -> None:
    """Send so many events."""
    for begin in range(0, count, PER_CALL):
        send(begin // PER_CALL % PARTITIONS, [body(number) for number in range(begin, begin + PER_CALL)])
    say(f"{count:,} events of {len(body(0))} bytes are there")


def speed_of_hub(count: int) -> Iterator[Claim]:
    """From a hub into the logs, beside what the SDK does alone, and our own reader."""
    with beside(_run_hubs, PARTITIONS) as (connect, send):
        filled(send, count)
        speed, claims = into_logs("hub", HUB.replace("BROKERS", connect), count, LEAST)
        yield from claims
        pa.array([])  # else the time would have what Arrow imports at first
        alone = "alone, partition after partition"
        cpu, wall = received(connect, count)
        yield Claim(f"the same, received by the SDK {alone}", figure(count, cpu, wall))
        part = speed * cpu / count
        used, seconds, times = read_alone(connect, count)
        size = f"{count // times:,} at a time"
        yield Claim(f"the same, received by our reader {alone}, {size}", figure(count, used, seconds))
    yield Claim("the speed into the logs", f"{part:.2f} of the SDK alone", f"{LEAST_PART} of it", part >= LEAST_PART)


def speed_of_topic(count: int) -> Iterator[Claim]:
    """From a topic into the logs."""
    with beside(_run_broker, PARTITIONS) as (brokers, send):
        filled(send, count)
        yield from into_logs("topic", TOPIC.replace("BROKERS", brokers), count, LEAST_KAFKA)[1]


def into_logs(outside: str, job: str, count: int, least: int) -> tuple[float, list[Claim]]:
    """What source tasks take until their first rows are in the logs, and then until all are: rows a CPU second."""
    with reading(job, begun=False) as (around, container):
        written, used, begun = Written(around, "clicks-source", PARTITIONS), cpu_s(container.pid), time.monotonic()
        for number in range(PARTITIONS):
            container.start(f"clicks-source-{number}")
        container.until("the first rows in the logs", lambda: written.reaches(1), PATIENCE_S)
        rows, start, start_s = written.rows, cpu_s(container.pid), time.monotonic()
        container.until("all rows in the logs", lambda: written.reaches(count), PATIENCE_S)
        cpu, wall = cpu_s(container.pid) - start, time.monotonic() - start_s
        assert written.rows == count
    left, tasks = count - rows, f"{PARTITIONS} source tasks of a {outside}"
    took = f"{start - used:.1f} CPU seconds, {start_s - begun:.1f} s on this machine"
    more = f"{left:,} events of {len(body(0))} bytes more from the {outside}, JSON, in the logs"
    return left / cpu, [
        Claim(f"{tasks}, until {rows:,} rows are in the logs", took),
        Claim(more, figure(left, cpu, wall), f"{least:,} a core", left / cpu >= least),
    ]


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


def read_alone(connect: str, count: int) -> tuple[float, float, int]:
    """Processor time and seconds in which our readers take all events, one partition after the other, and in how
    many parts. Each part costs about a millisecond. So beside an emulator that is slower than the reader, which hands
    it few events at a time, this is a figure of the emulator: with five at a time, 5,000 a second of processor time.
    """
    times = 0
    hub, begun, used = EventHub("clicks", connect=lambda: connect), time.monotonic(), time.process_time()
    for partition in range(PARTITIONS):
        left = count // PARTITIONS
        with PartitionReader(hub, f"{partition}", "oldest", level=1) as reader:
            while left > 0:
                arrival = reader.read(PATIENCE_S)
                assert arrival is not None
                left, times = left - arrival.rows.num_rows, times + 1
    return time.process_time() - used, time.monotonic() - begun, times


@contextmanager
def reading(job: str, tasks: int = PARTITIONS, *, begun: bool = True) -> Iterator[tuple[BenchJob, Container]]:
    """A container whose tasks read, or are about to be started."""
    job = job.replace("partitions = 4", f"partitions = {tasks}").replace(
        "[streams", f"[task]\ncount = {tasks}\n[streams", 1
    )
    with bench_job(job, PIPELINE) as around:
        container = around.container("one")
        container.ready()
        container.permit()
        for number in range(tasks if begun else 0):
            container.start(f"clicks-source-{number}")
        container.until("all tasks have begun", lambda: not begun or len(container.reports) == tasks)
        yield around, container


def idle_for(container: Container, seconds: float) -> float:
    """How much of a core it takes while nothing comes."""
    wait(container, 5.0)  # clients connect, Python is warm
    used, begun = cpu_s(container.pid), time.monotonic()
    wait(container, seconds)
    return (cpu_s(container.pid) - used) / (time.monotonic() - begun)


class Events:
    """Events that are sent one by one, the first ones so that each partition has been read."""

    def __init__(self, around: BenchJob, container: Container, send: Send, partitions: int) -> None:
        self.container, self._send, self._partitions = container, send, partitions
        self._written, self._sent = Written(around, "clicks-source", partitions), 0
        for _ in range(partitions):
            self.pass_on()

    def pass_on(self) -> float:
        """Send one, and return how long it took into its log."""
        begun = time.monotonic()
        self._send(self._sent % self._partitions, [body(self._sent)])
        self._sent += 1
        while not self._written.reaches(self._sent):
            wait(self.container, POLL_S)
        return time.monotonic() - begun


def one_by_one(events: Events, count: int) -> Iterator[float]:
    """How long each of some events takes. Between two of them passes a random time, so some meet a task that has just
    appended and some do not.
    """
    dice = random.Random(1)
    for _ in range(count):
        wait(events.container, dice.uniform(0.0, 1.0))
        yield events.pass_on()


def wait(container: Container, seconds: float) -> None:
    """Let time pass, and hear what the container reports meanwhile."""
    end = time.monotonic() + seconds
    container.until("a while", lambda: time.monotonic() >= end, seconds + 60.0)


@contextmanager
def hub(partitions: int = PARTITIONS) -> Iterator[tuple[str, Send]]:
    """A job file, and what sends to the hub that it names."""
    with beside(_run_hubs, partitions) as (connect, send):
        yield HUB.replace("BROKERS", connect), send


@contextmanager
def topic(partitions: int = PARTITIONS) -> Iterator[tuple[str, Send]]:
    """A job file, and what writes to the topic that it names."""
    with beside(_run_broker, partitions) as (brokers, send):
        yield TOPIC.replace("BROKERS", brokers), send


@contextmanager
def beside(run: Callable[[Connection, int], None], partitions: int) -> Iterator[tuple[str, Send]]:
    """What is outside, in a process of its own: its address, and what sends to it."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run, args=(there, partitions), daemon=True)
    process.start()

    def send(partition: int, bodies: Sequence[bytes]) -> None:
        here.send((partition, bodies))
        here.recv()

    try:
        yield here.recv(), send
    finally:
        here.send(None)
        process.join()


def _run_hubs(told: Connection, partitions: int) -> None:
    with EventHubs({"clicks": partitions}) as hubs:
        told.send(hubs.connection_string)
        while (asked := told.recv()) is not None:
            hubs.send("clicks", *asked)
            told.send(None)


def _run_broker(told: Connection, partitions: int) -> None:
    with LocalBroker({"clicks": partitions}) as broker:
        producer = Producer({"bootstrap.servers": broker.brokers, "linger.ms": 0, "enable.idempotence": True})
        told.send(broker.brokers)
        while (asked := told.recv()) is not None:
            for each in asked[1]:
                producer.produce("clicks", each, partition=asked[0])
            producer.flush()
            told.send(None)


if __name__ == "__main__":
    main(measure, __doc__)

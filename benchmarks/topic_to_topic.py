"""From topic to topic on this machine: the same job here and in quixstreams. How many messages pass per second of
processor time, and what is lost or there twice after ten kills (kill -9), for a reader of committed messages.

quixstreams needs an older client of Kafka, so it has an environment of its own: QUIXSTREAMS is its Python. Without
one it is left out. PyPI has Flink (apache-flink) and its connector of Kafka (shigawire-apache-flink-libraries); they
were not run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Claim, cpu_s, main, say, scratch
from confluent_kafka import Producer

from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.machine.processes import die_with_parent
from tests.end_to_end.real_processes import JobOnAzurite
from tests.kafka.committed import content

PARTITIONS, KILLS, RATE = 4, 10, 400.0
#: Until nothing has come for so long: where messages lack, and where only some can come again.
PATIENCE_S, STILL_S, SETTLED_S = 900.0, 30.0, 10.0
STREAMS = """
[streams.clicks]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "clicks"
partitions = 4
schema = "n bigint, rest string"
[streams.passed]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "passed"
schema = "n bigint, rest string"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="passed")
class Pass:
    def process(self, envelope, collector):
        collector.send(envelope.row)
"""
#: The defaults, but for a shorter time until a killed member of the group is missed.
QUIX = """
import sys
from quixstreams import Application
app = Application(
    broker_address=sys.argv[1], consumer_group="bench", auto_offset_reset="earliest", loglevel="ERROR",
    processing_guarantee=sys.argv[2], commit_interval=1.0,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
)
clicks = app.topic("clicks", value_deserializer="json")
app.dataframe(clicks).to_topic(app.topic("passed", value_serializer="json"))
app.run()
"""


class Job(Protocol):
    """What passes messages on, as a process that can be killed and started again."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def pid(self) -> int: ...


class Ours:
    """A fleet of one processor without Spark."""

    def __init__(self, world: JobOnAzurite, brokers: str) -> None:
        self.world = world
        world.carries(STREAMS.replace("BROKERS", brokers), PIPELINE)

    def start(self) -> None:
        self.world.fleet.start("p0")

    def kill(self) -> None:
        self.world.fleet.send("p0", signal.SIGKILL)
        self.world.fleet.processes["p0"].wait()

    def pid(self) -> int:
        return self.world.fleet.processes["p0"].pid


class Quix:
    """One process of quixstreams."""

    def __init__(self, brokers: str, guarantee: str) -> None:
        self.command = [os.environ["QUIXSTREAMS"], "-c", QUIX, brokers, guarantee]

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, preexec_fn=die_with_parent)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pid(self) -> int:
        return self.process.pid


#: A job that is not running yet, on these brokers.
Make = Callable[[str], AbstractContextManager[Job]]


@contextmanager
def ours(brokers: str) -> Iterator[Job]:
    import pyarrow as pa

    with scratch() as directory:
        world = JobOnAzurite(directory, pa.table({}))
        try:
            yield Ours(world, brokers)
        finally:
            world.close()


@contextmanager
def quix(brokers: str, guarantee: str) -> Iterator[Job]:
    job = Quix(brokers, guarantee)
    try:
        yield job
    finally:
        job.kill()


def measure(quick: bool) -> list[Claim]:
    """Each alone, with a broker of its own."""
    jobs: dict[str, Make] = {"samza_azure": ours}
    for guarantee in ("at-least-once", "exactly-once") if "QUIXSTREAMS" in os.environ else ():
        jobs[f"quixstreams, {guarantee}"] = partial(quix, guarantee=guarantee)
    claims = []
    for named, make in jobs.items():
        say(named)
        claims.append(Claim(f"from topic to topic, {named}", passed(make, 20_000 if quick else 100_000)))
        say(claims[-1].figure)
        lost, doubled, count = under_kills(make, 2 if quick else KILLS)
        goal = "none" if named == "samza_azure" else ""
        claims.append(
            Claim(
                f"the same, {count:,} messages and {2 if quick else KILLS} kills",
                f"{lost:,} lost, {doubled:,} too many",
                goal,
                lost == doubled == 0 if goal else None,
            )
        )
    return claims


def passed(make: Make, count: int) -> str:
    """How many pass per second of processor time, starts not counted."""
    with LocalBroker({"clicks": PARTITIONS, "passed": PARTITIONS}) as broker, make(broker.brokers) as job:
        write(broker.brokers, 0, PARTITIONS)
        job.start()
        until(broker, PARTITIONS)
        write(broker.brokers, PARTITIONS, count)
        used, begun = cpu_s(job.pid()), time.monotonic()
        until(broker, count)
        cpu, wall = cpu_s(job.pid()) - used, time.monotonic() - begun
    return f"{count / cpu:,.0f}/s a core, {count / wall:,.0f}/s on this machine"


def under_kills(make: Make, kills: int) -> tuple[int, int, int]:
    """How many messages are missing at the end and how many are there too often, of how many."""
    dice, sent, over = random.Random(7), [0], threading.Event()
    with LocalBroker({"clicks": PARTITIONS, "passed": PARTITIONS}) as broker, make(broker.brokers) as job:

        def feed() -> None:
            while not over.wait(0.1):
                write(broker.brokers, sent[0], sent[0] + int(RATE / 10))
                sent[0] += int(RATE / 10)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            job.start()
            for _ in range(kills):
                before = len(there(broker))
                until(broker, before + 1)  # it works again
                time.sleep(dice.uniform(0.0, 5.0))  # the random moment
                job.kill()
                job.start()
        finally:
            over.set()
            feeding.join()
        found = there(broker)
        last, moved = len(found), time.monotonic()
        while time.monotonic() < moved + (STILL_S if len(set(found)) < sent[0] else SETTLED_S):
            time.sleep(0.5)  # the pace of asking
            found = there(broker)
            if len(found) != last:
                last, moved = len(found), time.monotonic()
        counts = Counter(found)
    return sent[0] - len(counts), counts.total() - len(counts), sent[0]


def write(brokers: str, first: int, end: int) -> None:
    """Write messages of 200 bytes."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for number in range(first, end):
        body = b'{"n": %9d, "rest": "%s"}' % (number, b"x" * 172)
        producer.produce("clicks", body, partition=number % PARTITIONS)
    assert producer.flush(120) == 0


def there(broker: LocalBroker) -> list[int]:
    """The numbers in the second topic."""
    found = [content(broker.port, "passed", partition) for partition in range(PARTITIONS)]
    return [json.loads(body)["n"] for each in found for body in each.committed]


def until(broker: LocalBroker, count: int) -> None:
    """Wait until so many have passed."""
    begun = time.monotonic()
    while (asked := time.monotonic()) < begun + PATIENCE_S:
        if len(there(broker)) >= count:
            return
        # The pace of asking: all messages are read each time, beside what is measured.
        time.sleep(max(1.0, 5 * (time.monotonic() - asked)))
    raise SystemExit(f"{count} messages have not passed within {PATIENCE_S:.0f} s")


if __name__ == "__main__":
    main(measure, __doc__)

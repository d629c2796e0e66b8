"""From topic to topic on this machine: the same job here, in quixstreams and in Flink. How many messages pass per
second of processor time, and what is lost or there twice after ten kills (kill -9), for a reader of committed messages.

The others have environments of their own, with Python 3.11; QUIXSTREAMS and FLINK are their Pythons. What has none is
left out.

pip install quixstreams                       # needs an older client of Kafka
pip install --no-deps apache-flink==2.0.2 apache-flink-libraries==2.0.2 py4j==0.10.9.7 cloudpickle python-dateutil \
    pytz six ruamel.yaml                      # what SQL without functions in Python needs; and Java 17
pip download --no-deps shigawire-apache-flink-libraries==2.0.0.post1
unzip -j shigawire*.whl '*/flink-connector-kafka.jar' '*/flink-connector-base.jar' '*/kafka-clients.jar' -d JARS
                                              # JARS is the folder pyflink/lib of Flink's environment
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from common import Claim, cpu_s, main, say, scratch
from confluent_kafka import Producer

from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.machine.processes import die_with_parent
from tests.end_to_end.real_processes import JobOnAzurite
from tests.kafka.committed import content

PARTITIONS, WARM, KILLS, RATE = 4, 10_000, 10, 400.0
#: A job stands still if nothing has come for so long. At the end, where only some can come again, less is enough.
PATIENCE_S, STANDS_S, SETTLED_S = 900.0, 180.0, 10.0
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
#: The defaults, but for a shorter time until a killed member of the group is missed, and the same transactional id at
#: each start. tansu ends no transaction that a killed writer has left, and shows no offset of later ones until somebody
#: opens its id again: with another id at each start, the default, all is read again after each kill.
QUIX = """
import sys
from quixstreams import Application
app = Application(
    broker_address=sys.argv[1], consumer_group="bench", auto_offset_reset="earliest", loglevel="ERROR",
    processing_guarantee=sys.argv[2], commit_interval=1.0,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    producer_extra_config={"transactional.id": "bench"} if sys.argv[2] == "exactly-once" else {},
)
clicks = app.topic("clicks", value_deserializer="json")
app.dataframe(clicks).to_topic(app.topic("passed", value_serializer="json"))
app.run()
"""
#: The defaults, but for one thread, checkpoints as often as the others commit, and a time after which brokers give up a
#: transaction that they allow. It goes on from the last checkpoint, as a cluster would.
FLINK = """
import os, sys
os.environ["_python_worker_execution_mode"] = "process"  # it has no function in Python, and needs no worker for one
from pathlib import Path
from pyflink.table import EnvironmentSettings, TableEnvironment
brokers, guarantee, checkpoints = sys.argv[1], sys.argv[2], Path(sys.argv[3])
settings = {
    "parallelism.default": "1",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.dir": checkpoints.as_uri(),
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
if done := sorted(checkpoints.glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime):
    settings["execution.state-recovery.path"] = done[-1].parent.as_uri()
tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for name, value in settings.items():
    tables.get_config().set(name, value)
source = "'scan.startup.mode' = 'earliest-offset', 'properties.group.id' = 'bench'"
sink = f"'sink.delivery-guarantee' = '{guarantee}', 'sink.transactional-id-prefix' = 'bench'"
sink += ", 'properties.transaction.timeout.ms' = '60000'"
for topic, more in (("clicks", source), ("passed", sink)):
    tables.execute_sql(
        f"CREATE TABLE {topic} (n BIGINT, rest STRING) WITH ('connector' = 'kafka', 'topic' = '{topic}', "
        f"'properties.bootstrap.servers' = '{brokers}', 'format' = 'json', {more})"
    )
tables.execute_sql("INSERT INTO passed SELECT * FROM clicks").wait()
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


class Program:
    """A program of somebody else's: one process, and those that it starts."""

    def __init__(self, *command: str) -> None:
        self.command = command

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, preexec_fn=die_with_parent)

    def kill(self) -> None:
        tree = psutil.Process(self.process.pid)
        for each in (*tree.children(recursive=True), tree):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()

    def pid(self) -> int:
        return self.process.pid


#: A job that is not running yet, on these brokers.
Make = Callable[[str], AbstractContextManager[Job]]


@contextmanager
def ours(brokers: str) -> Iterator[Job]:
    import pyarrow as pa

    with scratch() as directory:
        world = JobOnAzurite(directory, pa.table({}), timing="")  # the defaults
        try:
            yield Ours(world, brokers)
        finally:
            world.close()


@contextmanager
def theirs(brokers: str, python: str, script: str, guarantee: str) -> Iterator[Job]:
    with scratch() as directory:
        job = Program(python, "-c", script, brokers, guarantee, str(directory))
        try:
            yield job
        finally:
            job.kill()


def measure(quick: bool) -> list[Claim]:
    """Each alone, with a broker of its own."""
    jobs: dict[str, Make] = {"samza_azure": ours}
    for named, script in (("quixstreams", QUIX), ("Flink", FLINK)):
        if (python := os.environ.get(named.upper())) is not None:
            for guarantee in ("at-least-once", "exactly-once"):
                jobs[f"{named}, {guarantee}"] = partial(theirs, python=python, script=script, guarantee=guarantee)
    claims = []
    for named, make in jobs.items():
        say(named)
        claims.append(Claim(f"from topic to topic, {named}", passed(make, 20_000 if quick else 100_000)))
        say(claims[-1].figure)
        kills, goal = 2 if quick else KILLS, "none" if named == "samza_azure" else ""
        found = under_kills(make, kills)
        claims.append(
            Claim(
                f"the same, {found.sent:,} messages and {kills} kills",
                str(found),
                goal,
                found.lost == found.doubled == 0 if goal else None,
            )
        )
        say(claims[-1].figure)
    return claims


@dataclass
class Found:
    """What a reader of committed messages finds at the end."""

    sent: int
    lost: int
    doubled: int
    stood: Sequence[int]  # after which kills nothing came for STANDS_S, so that it was killed and started once more

    def __str__(self) -> str:
        stood = ", ".join(map(str, self.stood))
        still = f"; nothing came for {STANDS_S:g} s after kill {stood}" if stood else ""
        return f"{self.lost:,} lost, {self.doubled:,} too many{still}"


def passed(make: Make, count: int) -> str:
    """How many pass per second of processor time, after the start and some others."""
    with LocalBroker({"clicks": PARTITIONS, "passed": PARTITIONS}) as broker, make(broker.brokers) as job:
        write(broker.brokers, 0, WARM)
        job.start()
        until(broker, WARM)
        write(broker.brokers, WARM, WARM + count)
        used, begun = cpu_s(job.pid()), time.monotonic()
        until(broker, WARM + count)
        cpu, wall = cpu_s(job.pid()) - used, time.monotonic() - begun
    return f"{count / cpu:,.0f}/s a core, {count / wall:,.0f}/s on this machine"


def under_kills(make: Make, kills: int) -> Found:
    """What is missing at the end, or there too often, of a job that is killed at random moments."""
    dice, sent, over, stood = random.Random(7), [0], threading.Event(), list[int]()
    with LocalBroker({"clicks": PARTITIONS, "passed": PARTITIONS}) as broker, make(broker.brokers) as job:

        def feed() -> None:
            while not over.wait(0.1):
                write(broker.brokers, sent[0], sent[0] + int(RATE / 10))
                sent[0] += int(RATE / 10)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            job.start()
            for kill in range(kills):
                if has_passed(broker, len(there(broker)) + 1, STANDS_S):  # it works again
                    time.sleep(dice.uniform(0.0, 5.0))  # the random moment
                else:
                    stood.append(kill)
                job.kill()
                job.start()
        finally:
            over.set()
            feeding.join()
        found = there(broker)
        last, moved = len(found), time.monotonic()
        while time.monotonic() < moved + (STANDS_S if len(set(found)) < sent[0] else SETTLED_S):
            time.sleep(0.5)  # the pace of asking
            found = there(broker)
            if len(found) != last:
                last, moved = len(found), time.monotonic()
        counts = Counter(found)
    return Found(sent[0], sent[0] - len(counts), counts.total() - len(counts), stood)


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
    if not has_passed(broker, count, PATIENCE_S):
        raise SystemExit(f"{count} messages have not passed within {PATIENCE_S:.0f} s")


def has_passed(broker: LocalBroker, count: int, patience_s: float) -> bool:
    """Whether so many pass within some seconds."""
    begun = time.monotonic()
    while (asked := time.monotonic()) < begun + patience_s:
        if len(there(broker)) >= count:
            return True
        # The pace of asking: all messages are read each time, beside what is measured.
        time.sleep(max(1.0, 5 * (time.monotonic() - asked)))
    return False


if __name__ == "__main__":
    main(measure, __doc__)

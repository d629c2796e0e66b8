"""A topic of messages in Avro on this machine, read exactly once by a fleet without Spark whose processes are killed,
while its registry comes and goes, and the writer's schema changes.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from samza_azure.kafka.local_broker import LocalBroker
from tests.formats.registries import FakeConfluentRegistry
from tests.formats.streams import datum, record
from tests.kafka.clients import Messages, until

from .real_processes import PATIENCE_S, JobOnAzurite, growing, with_patience
from .test_eventhubs import PARTITIONS, PIPELINE, until_all_seen

STREAMS = """
[streams.clicks]
system = "kafka"
options.brokers = "${BROKERS}"
options.topic = "clicks"
options.format = "avro"
options.registry.url = "${REGISTRY}"
options.from.ts = "meta.ts"
partitions = 2
schema = "n bigint, ts timestamp"
event_time = "ts"
frontier_lag = "0 s"
dead_letters = 1000
[streams.seen]
schema = "n bigint, partition int"
"""
META = {
    "type": "record",
    "name": "Meta",
    "fields": [{"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}
SCHEMAS = [record(n="int", meta=META), record(shop="string", meta=["null", META], n="long")]
FIRST_MS = 1_767_225_600_000


class Written:
    """The messages of the topic, of which one in ten is none."""

    def __init__(self, broker: LocalBroker, registry: FakeConfluentRegistry) -> None:
        self.messages = Messages.of(broker.brokers, "clicks", **{"enable.idempotence": True})
        self.registry, self.numbers = registry, [registry.register("clicks-value", SCHEMAS[0])]
        self.count, self.rows, self.dead = 0, Counter[tuple[int, int]](), Counter[bytes]()

    def upgrade(self) -> None:
        """From now on every other message is of another schema."""
        self.numbers.append(self.registry.register("clicks-value", SCHEMAS[1]))

    def grow(self, count: int) -> None:
        bodies: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for n in range(self.count, self.count + count):
            which, partition = n // PARTITIONS % len(self.numbers), n % PARTITIONS
            row = {"n": n, "meta": {"ts": FIRST_MS + 1000 * n}, "shop": "a"}
            body = b"\x00" + self.numbers[which].to_bytes(4, "big") + datum(SCHEMAS[which], row)
            if n % 10 == 7:
                body += b"%d" % n  # what follows a datum is none
                self.dead[body] += 1
            else:
                self.rows[n, partition] += 1
            bodies[partition].append(body)
        for partition, each in enumerate(bodies):
            self.messages.send(partition, [*each])
        self.count += count


@pytest.fixture
def registry() -> Iterator[FakeConfluentRegistry]:
    with FakeConfluentRegistry() as registry:
        yield registry


@pytest.mark.long
def test_messages_in_avro_are_exactly_once(
    tmp_path_factory: pytest.TempPathFactory,
    flights: pa.Table,
    registry: FakeConfluentRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a row or a dead letter, through kill -9 of a container and a processor and an outage of the registry."""
    with LocalBroker({"clicks": PARTITIONS}) as broker:
        monkeypatch.setenv("BROKERS", broker.brokers)
        monkeypatch.setenv("REGISTRY", registry.url)
        world = JobOnAzurite(tmp_path_factory.mktemp("formats"), flights)
        try:
            world.carries(STREAMS, PIPELINE)
            written = Written(broker, registry)
            written.grow(100)
            world.start("p0", "p1")
            with growing(written.grow, 200):
                registry.fails, asked = 503, len(registry.asked)  # the next owner knows no schema
                with_patience(world.container("p0").kill)
                world.settled()
                until(lambda: len(registry.asked) > asked + 1)
                registry.fails = None
                written.upgrade()
                world.fleet.send("p1", signal.SIGKILL)
                world.settled()
            world.start("p1")
            until_all_seen(world, written)
            until_all_aside(world, written)
            print(f"{written.count} messages, {written.dead.total()} of them none; {len(registry.asked)} questions")
        finally:
            world.close()


def until_all_aside(world: JobOnAzurite, written: Written) -> None:
    """What is no row has been put aside; nothing twice."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := Counter(row["raw"] for row in world.stream("clicks-dead").to_pylist())) != written.dead:
        assert not found - written.dead, "a message was put aside twice, or is a row"
        assert time.monotonic() < deadline, f"{(written.dead - found).total()} are missing: {world.fleet.status()}"
        time.sleep(0.2)

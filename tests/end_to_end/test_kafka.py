"""A topic on this machine, read exactly once by a fleet without Spark whose processes are killed."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from samza_azure.kafka.local_broker import LocalBroker
from tests.kafka.clients import Messages
from tests.kafka.committed import content

from .real_processes import PATIENCE_S, JobOnAzurite, growing, with_patience
from .takings import over_a_topic
from .test_eventhubs import FORTH_AND_BACK, HUB_TO_HUB, PARTITIONS, PIPELINE, forth_and_back, until_all_seen

STREAMS = """
[streams.clicks]
system = "kafka"
options.brokers = "${BROKERS}"
options.topic = "clicks"
partitions = 2
schema = "n bigint, ts timestamp"
event_time = "ts"
frontier_lag = "0 s"
[streams.seen]
schema = "n bigint, partition int"
"""


class Written:
    """The messages of the topic."""

    def __init__(self, broker: LocalBroker) -> None:
        self.messages = Messages.of(broker.brokers, "clicks", **{"enable.idempotence": True})
        self.rows = Counter[tuple[int, int]]()

    def grow(self, count: int) -> None:
        first = self.rows.total()
        for partition in range(PARTITIONS):
            ours = [n for n in range(first, first + count) if n % PARTITIONS == partition]
            stamps = [f"2026-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z" for n in ours]
            self.messages.send(
                partition, [json.dumps({"n": n, "ts": ts}).encode() for n, ts in zip(ours, stamps, strict=True)]
            )
            self.rows.update((n, partition) for n in ours)


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker({"clicks": PARTITIONS, "passed": 3}) as broker:
        yield broker


@pytest.fixture
def world(
    tmp_path_factory: pytest.TempPathFactory, flights: pa.Table, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobOnAzurite]:
    monkeypatch.setenv("BROKERS", broker.brokers)
    made = JobOnAzurite(tmp_path_factory.mktemp("kafka"), flights)
    try:
        made.carries(STREAMS, PIPELINE)
        yield made
    finally:
        made.close()


@pytest.mark.long
def test_messages_of_a_topic_are_exactly_once(world: JobOnAzurite, broker: LocalBroker) -> None:
    """Through kill -9 of a container and a processor, a drain while messages come, and the next run."""
    written = Written(broker)
    written.grow(100)
    world.start("p0", "p1")
    with growing(written.grow, 200):
        with_patience(world.container("p0").kill)
        world.settled()
        world.fleet.send("p1", signal.SIGKILL)
        world.settled()
    world.start("p1")
    until_all_seen(world, written)
    with growing(written.grow, 200):
        draining = world.drain_begins()
        _, said = draining.communicate(timeout=PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(world.fleet.exit_codes(PATIENCE_S).values()) == {0}
    for name in ("p0", "p1"):
        world.fleet.start(name, "--new-run")
    until_all_seen(world, written)


@pytest.mark.long
def test_from_topic_to_topic_and_back_each_message_is_once(world: JobOnAzurite, broker: LocalBroker) -> None:
    """So is each in the topic between, for a reader of committed ones."""
    streams = HUB_TO_HUB.replace("eventhubs", "kafka").replace("options.name", "options.topic")
    streams = streams.replace('connect = "${EVENTHUBS}"', 'brokers = "${BROKERS}"')
    world.carries(streams.replace("options.consumer_group", "options.group"), FORTH_AND_BACK)
    written = Written(broker)
    forth_and_back(world, written, lambda _: None, lambda: None)
    found = [content(broker.port, "passed", partition) for partition in range(3)]
    passed = Counter((row["n"], row["partition"]) for each in found for row in map(json.loads, each.committed))
    assert passed == written.rows
    print(f"{passed.total()} messages, and {sum(len(each.given_up) for each in found)} that were given up")


@pytest.mark.long
def test_windows_over_a_topic_equal_the_batch(tmp_path: Path) -> None:
    over_a_topic(tmp_path, 40_000)

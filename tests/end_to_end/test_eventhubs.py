"""A hub on this machine, read exactly once by a fleet without Spark whose processes are killed."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest

from samza_azure.eventhubs.emulator import EventHubs

from .real_processes import PATIENCE_S, JobOnAzurite, growing, with_patience
from .takings import over_a_hub
from .test_table import table_of

PARTITIONS = 2
STREAMS = """
[streams.clicks]
system = "eventhubs"
options.connect = "${EVENTHUBS}"
options.name = "clicks"
partitions = 2
schema = "n bigint, ts timestamp"
event_time = "ts"
frontier_lag = "0 s"
[streams.seen]
schema = "n bigint, partition int"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="seen")
class Pass:
    def process(self, envelope, collector):
        collector.send({"n": envelope.row["n"], "partition": envelope.partition})
"""


HUB_TO_HUB = """
[streams.clicks]
system = "eventhubs"
options.connect = "${EVENTHUBS}"
options.name = "clicks"
partitions = 2
schema = "n bigint, ts timestamp"
[streams.passed]
system = "eventhubs"
options.connect = "${EVENTHUBS}"
options.name = "passed"
options.partition.by = "n"
schema = "n bigint, partition int"
[streams.back]
system = "eventhubs"
options.connect = "${EVENTHUBS}"
options.name = "passed"
options.consumer_group = "back"
partitions = 3
schema = "n bigint, partition int"
[streams.seen]
schema = "n bigint, partition int"
[streams.kept]
schema = "n bigint, partition int, ts timestamp"
table.time = "ts"
table.flush = "1 s"
"""
FORTH_AND_BACK = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="passed")
class Pass:
    def process(self, envelope, collector):
        collector.send({"n": envelope.row["n"], "partition": envelope.partition})

@app.task("back", output="seen")
class Keep:
    def process(self, envelope, collector):
        collector.send(envelope.row)

@app.task("clicks", output="kept")
class Store:
    def process(self, envelope, collector):
        collector.send({"n": envelope.row["n"], "partition": envelope.partition, "ts": envelope.row["ts"]})
"""


class Events:
    """The events of the hub."""

    def __init__(self, hubs: EventHubs) -> None:
        self.hubs = hubs
        self.rows = Counter[tuple[int, int]]()
        self.next = 0

    def grow(self, count: int) -> None:
        for n in range(self.next, self.next + count):
            body = json.dumps({"n": n, "ts": f"2026-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z"}).encode()
            self.hubs.send("clicks", n % PARTITIONS, [body])
            self.rows[n, n % PARTITIONS] += 1
            self.next = n + 1


@pytest.fixture
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"clicks": PARTITIONS, "passed": 3}) as hubs:
        hubs.add_group("passed", "back")
        yield hubs


@pytest.fixture
def world(
    tmp_path_factory: pytest.TempPathFactory, flights: pa.Table, hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobOnAzurite]:
    monkeypatch.setenv("EVENTHUBS", hubs.connection_string)
    made = JobOnAzurite(tmp_path_factory.mktemp("eventhubs"), flights)
    try:
        made.carries(STREAMS, PIPELINE)
        yield made
    finally:
        made.close()


class Sent(Protocol):
    """What was sent, whoever keeps it."""

    rows: Counter[tuple[int, int]]


def until_all_seen(
    world: JobOnAzurite, events: Sent, rows: Callable[[JobOnAzurite], pa.Table] = lambda world: world.stream("seen")
) -> None:
    """Every event has come out; none of them twice."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := Counter((row["n"], row["partition"]) for row in rows(world).to_pylist())) != events.rows:
        assert not found - events.rows, "an event came twice, or from nowhere"
        assert time.monotonic() < deadline, f"{(events.rows - found).total()} are missing: {world.fleet.status()}"
        time.sleep(0.2)


@pytest.mark.long
def test_events_of_a_hub_are_exactly_once(world: JobOnAzurite, hubs: EventHubs) -> None:
    """Through kill -9 of a container and a processor, cut connections, a drain while events come, and the next run."""
    events = Events(hubs)
    events.grow(100)
    world.start("p0", "p1")
    with growing(events.grow, 200):
        with_patience(world.container("p0").kill)
        world.settled()
        hubs.cut("tcp")
        world.fleet.send("p1", signal.SIGKILL)
        world.settled()
    world.start("p1")
    until_all_seen(world, events)
    with growing(events.grow, 200):
        draining = world.drain_begins()
        _, said = draining.communicate(timeout=PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(world.fleet.exit_codes(PATIENCE_S).values()) == {0}
    for name in ("p0", "p1"):
        world.fleet.start(name, "--new-run")
    until_all_seen(world, events)


@pytest.mark.long
def test_what_came_since_a_time_is_read_once_more_by_the_next_run(world: JobOnAzurite, hubs: EventHubs) -> None:
    """With kill -9 of a container and a processor while it is read again."""
    events = Events(hubs)
    events.grow(300)
    world.start("p0", "p1")
    until_all_seen(world, events)
    since = datetime.now(UTC)
    before = Counter(events.rows)
    events.grow(300)
    with growing(events.grow, 200):
        with_patience(world.container("p0").kill)
        world.settled()
    until_all_seen(world, events)
    assert set(world.drained().values()) == {0}
    ended = world.command("rewind", "--to", since.isoformat())
    assert ended.returncode == 0 and "what is left of clicks since" in ended.stdout + ended.stderr, ended
    events.rows += events.rows - before
    again = events.rows.total()
    for name in ("p0", "p1"):
        world.fleet.start(name, "--new-run")
    world.settled()
    with growing(events.grow, 200):
        with_patience(world.container("p1").kill)
        world.settled()
        world.fleet.send("p0", signal.SIGKILL)
    world.start("p0")
    until_all_seen(world, events)
    print(f"{before.total()} events before the time, {again - before.total()} rows of those since then in two runs")


class Growing(Sent, Protocol):
    """The same, and how more is sent."""

    def grow(self, count: int) -> None: ...


def forth_and_back(world: JobOnAzurite, events: Growing, hurt: Callable[[int], None], cut: Callable[[], None]) -> None:
    """Without Spark, into a table as well, through kill -9 of containers and processors, and a drain under load."""
    events.grow(100)
    world.start("p0", "p1")
    assert not any(world.has_spark(name) for name in ("p0", "p1"))
    for number in range(6):
        with growing(events.grow, 100):
            hurt(number)
            with_patience(world.container(f"p{number % 2}").kill)
            world.settled()
            cut()
    world.fleet.send("p1", signal.SIGKILL)
    world.start("p1")
    until_all_seen(world, events)
    with growing(events.grow, 200):
        draining = world.drain_begins()
        _, said = draining.communicate(timeout=PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(world.fleet.exit_codes(PATIENCE_S).values()) == {0}
    for name in ("p0", "p1"):
        world.fleet.start(name, "--new-run")
    until_all_seen(world, events)
    until_all_seen(world, events, lambda world: table_of(world, "kept"))


@pytest.mark.long
def test_from_hub_to_hub_and_back_each_event_is_once(world: JobOnAzurite, hubs: EventHubs) -> None:
    """Connections are cut, and answers are lost, too."""
    world.carries(HUB_TO_HUB, FORTH_AND_BACK)
    events = Events(hubs)

    def hurt(number: int) -> None:
        hubs.lost["after" if number % 2 else "before"] = 2

    forth_and_back(world, events, hurt, lambda: hubs.cut("tcp"))
    sent = sum(len(hubs.bodies("passed", partition)) for partition in range(3))
    print(f"{events.rows.total()} events, {sent} of them sent")


@pytest.mark.long
def test_windows_over_a_hub_equal_the_batch_and_what_is_no_row_is_put_aside(tmp_path: Path) -> None:
    over_a_hub(tmp_path, 40_000)

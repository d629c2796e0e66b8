"""What shops take in a minute: the example of Event Hubs, whose four partitions a fleet reads while its leader and an
owner of tasks are killed (kill -9). What comes out must equal the batch over all events, each row once.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from samza_azure import EventHubsOnce
from samza_azure.commands.fleet import Fleet
from samza_azure.eventhubs.amqp import Code, sections
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.kafka.local_broker import LocalBroker
from tests.kafka.clients import Messages
from tests.kafka.committed import content

from .real_processes import ROOT, TIMING, JobOnAzurite

EXAMPLE = ROOT / "examples" / "eventhubs"
TAKEN = 2  # partitions of what comes out
#: Nothing here is measured, and beside much else on the machine a processor that is alive is silent for long.
PATIENT = TIMING.replace('timeout = "5 s"', 'timeout = "30 s"').replace('timeout = "3 s"', 'timeout = "15 s"')


def load_module(path: Path, **beside: ModuleType) -> Any:
    """A program of the example, with others that it imports."""
    sys.modules.update(beside)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


orders = load_module(EXAMPLE / "send.py")


@contextmanager
def running(directory: Path, job: str) -> Iterator[JobOnAzurite]:
    """Two processors of a job with the pipeline of the example."""
    world = JobOnAzurite(directory, pa.table({}))
    try:
        job = job.replace("[azure.storage]", f"{PATIENT}\n[azure.storage]")
        world.fleet.job.write_text(job.replace("dead_letters = 100 ", "dead_letters = 10000 "))
        (directory / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        world.fleet = Fleet(world.fleet.job, world.fleet.directory, world.fleet.environment)
        world.start("p0", "p1")
        yield world
    finally:
        world.close()


def over_a_hub(directory: Path, events: int, *, by_the_sdk: bool = True) -> None:
    """The example as it is. Its own client is slow: else the events are put into the hub."""
    with EventHubs({"orders": 4, "takings": TAKEN}) as hubs:
        job = (EXAMPLE / "job.toml").read_text().replace("${EVENTHUBS}", hubs.connection_string)

        def send(first: int, end: int) -> None:
            if by_the_sdk:
                orders.send(hubs.connection_string, first, end)
            else:
                for partition, bodies in orders.batches(first, end):
                    hubs.send("orders", int(partition), bodies)

        with running(directory, job) as world:
            under_kills(world, events, send, lambda: [b for each in range(TAKEN) for b in new_bodies(hubs, each)])
        check = load_module(EXAMPLE / "check.py", send=orders)
        assert check.received(hubs.connection_string) == check.expected(events)


def over_a_topic(directory: Path, events: int) -> None:
    """The same with topics in the places of the hubs; what comes out is read as `read_committed` shows it."""
    with LocalBroker({"orders": 4, "takings": TAKEN}) as broker:
        job = (EXAMPLE / "job.toml").read_text().replace('"eventhubs"', '"kafka"')
        job = job.replace('connect = "${EVENTHUBS}"', f'brokers = "{broker.brokers}"')
        job = job.replace("options.name", "options.topic")
        written = Messages.of(broker.brokers, "orders", **{"enable.idempotence": True})

        def send(first: int, end: int) -> None:
            for partition, bodies in orders.batches(first, end):
                written.send(int(partition), bodies)

        def taken() -> list[bytes]:
            found = [content(broker.port, "takings", partition) for partition in range(TAKEN)]
            assert not any(each.open for each in found), "a transaction without an end"
            return [body for each in found for body in each.committed]

        with running(directory, job) as world:
            under_kills(world, events, send, taken)


def under_kills(
    world: JobOnAzurite, events: int, send: Callable[[int, int], None], taken: Callable[[], list[bytes]]
) -> None:
    """Send in four parts. While the first two are read, the leader and then another owner of tasks are killed."""
    for part, role in enumerate(("leader", "owner", "", "")):
        send(part * events // 4, (part + 1) * events // 4)
        if role:
            shown = world.settled()
            [victim] = {"p0", "p1"} & {shown["leader"]} if role == "leader" else {"p0", "p1"} - {shown["leader"]}
            assert victim in {task["owner"] for task in shown["tasks"]}
            world.fleet.send(victim, signal.SIGKILL)
            world.start(victim)
    until_all_in_logs(world, events)
    assert world.drained().keys() >= {"p0", "p1"}
    bodies = [orders.body(number) for number in range(events)]
    aside = [body for body in bodies if not body.startswith(b"{")]
    assert sorted(row["raw"] for row in world.stream("orders-dead").to_pylist()) == sorted(aside)
    rows = [json.loads(body) for body in taken()]
    found = {
        (datetime.fromisoformat(row["window"]["start"]), row["shop"]): (row["orders"], row["cents"]) for row in rows
    }
    assert len(rows) == len(found), "a row came twice"
    assert found == batch([json.loads(body) for body in bodies if body.startswith(b"{")])


def new_bodies(hubs: EventHubs, partition: int) -> Iterator[bytes]:
    """What a reader of what comes out sees that drops what comes again."""
    once = EventHubsOnce()
    for event in hubs._hubs["takings"].partitions[partition].events:
        parts = {code: value for code, value, _ in sections(event.body)}
        if once.is_new(parts[Code.APPLICATION_PROPERTIES]):
            yield parts[Code.DATA]


def batch(orders: list[dict[str, Any]]) -> dict[tuple[datetime, str], tuple[int, int]]:
    """What must come out."""
    found = dict[tuple[datetime, str], tuple[int, int]]()
    for order in orders:
        key = datetime.fromisoformat(order["at"]).replace(second=0, microsecond=0), order["shop"]
        count, cents = found.get(key, (0, 0))
        found[key] = count + 1, cents + order["cents"]
    return found


def until_all_in_logs(world: JobOnAzurite, events: int) -> None:
    """The source tasks have read everything, and nothing is left outside."""
    world.fleet.wait_until(
        "all events are in the logs",
        lambda shown: (
            sum(end for partition, (_, end) in shown["read"].items() if partition.startswith("orders/")) == events
        ),
        120.0 + events / 500,
    )

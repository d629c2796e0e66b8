"""Processors of virtual machines, from an event that Azure announces to the end of the machine, under load.

Their tasks have state, of handlers or of Spark, and each machine has a metadata service of its own.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pyarrow as pa
import pytest

from samza_azure import SourceWriter
from samza_azure.errors import Verdict
from samza_azure.group.notice import Availability
from samza_azure.storage.connection import Account
from tests.host.fake_metadata import FakeMetadata

from .real_processes import EXAMPLE, PARTITIONS, PATIENCE_S, JobOnAzurite, cleaned, daily, daily_rows, growing
from .test_last_line import last_line
from .test_life_and_death import STREAMS

HOST = """
[host]
notices = "azure"
metadata = "${METADATA}"
"""
#: A batch of a stage ends no sooner than the file of this name is gone.
HOLD = """
import json
import os
import time
from pathlib import Path

HERE = Path(HOLD)


def wait(stage):
    while (HERE / f"hold-{stage}").exists():
        (HERE / f"held-{os.getpid()}").touch()
        time.sleep(0.02)
"""
#: The stages of the example, with handlers. A row that is lost, counted twice or counted with older state shows.
HANDLERS = """
from samza_azure import Application

app = Application()


@app.task("flights", output="by-carrier", partition_by="carrier")
class Clean:
    def process(self, envelope, collector):
        wait("Clean")
        if envelope.row["dep_delay"] is not None:
            collector.send({name: envelope.row[name] for name in ("carrier", "ts", "dep_delay")})


@app.task("by-carrier", output="counted")
class Count:
    def __init__(self):
        self.counts = {}

    def process(self, envelope, collector):
        wait("Count")
        carrier = envelope.row["carrier"]
        self.counts[carrier] = self.counts.get(carrier, 0) + 1
        collector.send({"carrier": carrier, "number": self.counts[carrier]})

    def snapshot(self):
        return json.dumps(self.counts).encode()

    def restore(self, state):
        self.counts = json.loads(state)
"""
COUNTED = f"""
[streams.counted]
partitions = {PARTITIONS}
schema = "carrier string, number bigint"
"""
#: What the example's own stages are changed by.
WAITS = """

def waits(stage):
    def same(delay):
        wait(stage)
        return delay

    return F.udf(same, "double")("dep_delay").alias("dep_delay")
"""
NAMES = ("p0", "p1")
#: The least that Azure gives a machine that is evicted.
NOTICE_S = 30.0
#: Rows a second.
RATE = 200


class Machine(FakeMetadata):
    """The metadata service of a processor's machine. It notes who has the tasks when it is asked to start an event."""

    def __init__(self, processor: str) -> None:
        super().__init__(f"vm-{processor}")
        self.answers = 0
        self.owners: Callable[[], set[str]] = set
        self.approvals: list[tuple[float, set[str]]] = []

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        super().get(handler)
        self.answers += 1

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        self.approvals.append((time.time(), self.owners()))
        super().post(handler)

    def is_asked_twice(self) -> None:
        """Wait until its processor has asked again, and has done what follows from the answer."""
        before = self.answers
        until("it is asked", lambda: self.answers >= before + 2)


class Machines:
    """Two of them, each with a processor of one job."""

    rows: SourceWriter

    def __init__(self, world: JobOnAzurite, machines: dict[str, Machine]) -> None:
        self.world, self.of = world, machines
        for each in machines.values():
            each.owners = lambda: owners(world.fleet.status())
        for name, machine in machines.items():
            world.fleet.environment["METADATA"] = machine.url
            world.fleet.start(name)
        self.both_work()

    def grow(self, rows: int) -> None:
        """Write the next flights."""
        self.rows.write(self.world.flights.slice(self.world.produced, rows), "dest")
        self.rows.flush()
        self.world.produced += rows

    def both_work(self) -> dict[str, Any]:
        return self.world.settled(lambda shown: owners(shown) == {*NAMES})

    def leader(self) -> tuple[str, str]:
        """Who leads, and the other one."""
        leader = self.both_work()["leader"]
        return leader, NAMES[1 - NAMES.index(leader)]

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """A batch of this processor, which is under way, does not end."""
        shown = self.world.fleet.status()
        stage = next(task["stage"] for task in shown["tasks"] if task["owner"] == name)
        folder = self.world.directory
        (folder / f"hold-{stage}").touch()
        try:
            until(
                "a batch is held",
                lambda: any((folder / f"held-{each.pid}").exists() for each in self.world.tree(name)),
            )
            yield
        finally:
            (folder / f"hold-{stage}").unlink()

    def handed_over(self, name: str, other: str) -> dict[str, Any]:
        """Wait until a processor has handed over all its tasks to the other one; what it says of that."""
        shown = self.world.settled(
            lambda shown: owners(shown) == {other} and going(shown, name)["state"] == Availability.DECOMMISSIONED
        )
        return going(shown, name)


def with_waits(example: str) -> str:
    """The example's module, with stages that wait."""
    made = example.replace("app = Application()", f"app = Application()\n{WAITS}")
    made = made.replace('"ts", "dep_delay")', '"ts", waits("clean"))')
    made = made.replace("rows.with", 'rows.withColumn("dep_delay", waits("daily_delays")).with')
    assert made.count("waits(") == 3
    return made


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # the pace of looking


def owners(shown: dict[str, Any]) -> set[str]:
    return {task["owner"] for task in shown["tasks"]}


def going(shown: dict[str, Any], name: str) -> dict[str, Any]:
    """What a processor says of its going."""
    (found,) = [each["decommission"] for each in shown["processors"] if each["id"] == name]
    return dict(found)


def counted(flights: pa.Table) -> Counter[tuple[Any, ...]]:
    """What the handlers make of these flights."""
    seen = Counter[str]()
    found = Counter[tuple[Any, ...]]()
    for carrier in cleaned(flights)["carrier"].to_pylist():
        seen[carrier] += 1
        found[carrier, seen[carrier]] += 1
    return found


@pytest.fixture(scope="module", params=["handlers", pytest.param("spark", marks=pytest.mark.long)])
def machines(
    tmp_path_factory: pytest.TempPathFactory, flights: pa.Table, request: pytest.FixtureRequest
) -> Iterator[Machines]:
    with ExitStack() as stack:
        services = {name: stack.enter_context(Machine(name)) for name in NAMES}
        folder, environment = tmp_path_factory.mktemp("machines"), {"METADATA": services["p0"].url}
        world = JobOnAzurite(folder, flights, environment=environment)
        stack.callback(world.close)
        hold = HOLD.replace("HOLD", repr(str(world.directory)))
        if request.param == "handlers":
            world.carries(STREAMS + COUNTED, hold + HANDLERS)
        else:
            (world.directory / "pipeline.py").write_text(hold + with_waits((EXAMPLE / "pipeline.py").read_text()))
        world.fleet.job.write_text(world.fleet.job.read_text() + HOST)
        made = Machines(world, services)
        account = Account.from_config(world.fleet.config.storage)
        stack.callback(account.close)
        with SourceWriter.of(world.fleet.config, account, "flights") as made.rows:
            yield made


def test_an_event_of_several_machines_is_not_approved_and_one_that_is_over_brings_the_processor_back(
    machines: Machines,
) -> None:
    """A leader, with two events of which one outlasts the other."""
    name, other = machines.leader()
    with growing(machines.grow, RATE):
        machine = machines.of[name]
        redeploy = machine.schedule("Redeploy", resources=[machine.machine, "vm-9"])
        freeze = machine.schedule("Freeze", in_s=NOTICE_S, lasts_s=9)
        machines.handed_over(name, other)
        machine.is_asked_twice()
        assert machine.start_requests == 0
        machine.remove(redeploy)
        machine.events[0]["EventStatus"] = "Started"
        machine.is_asked_twice()
        assert machines.handed_over(name, other)["why"] == "Freeze, Scheduled Events"
        machine.remove(freeze)
        machines.both_work()


def test_an_eviction_is_approved_when_others_have_all_tasks_and_the_processor_ends_with_its_machine(
    machines: Machines,
) -> None:
    """Within the notice; then the system ends the processor, as it does when the machine goes down."""
    world, (name, other) = machines.world, machines.leader()
    machine = machines.of[name]
    not_before = time.time() + NOTICE_S
    with growing(machines.grow, RATE):
        with machines.held(name):
            event = machine.schedule("Preempt", in_s=NOTICE_S)
            world.fleet.wait_until(
                "it hands over",
                lambda shown: going(shown, name)["state"] == Availability.DECOMMISSIONING,
                PATIENCE_S,
            )
            machine.is_asked_twice()
            assert machine.approvals == [], "it has a task"
        until("approved", lambda: bool(machine.approved))
        said = machines.handed_over(name, other)
        assert (said["handed_over"], said["repeated"], said["left"]) == (said["tasks"], 0, {})
        world.fleet.send(name, signal.SIGTERM)
        assert world.fleet.processes[name].wait(PATIENCE_S) == Verdict.DONE
        assert last_line(world, name).endswith(f"Left the group; {said['tasks']} of {said['tasks']} tasks handed over.")
    [(at, had)] = machine.approvals
    assert (machine.approved, had) == ([event], {other})
    assert at < not_before
    assert machines.of[other].start_requests == 0


def test_each_row_counts_once(machines: Machines) -> None:
    world = machines.world
    world.exact()
    assert set(world.drained().values()) == {Verdict.DONE}
    flights = world.flights.slice(0, world.produced)
    if "counted" in world.fleet.job.read_text():
        rows = world.stream("counted").to_pylist()
        assert Counter((row["carrier"], row["number"]) for row in rows) == counted(flights)
    else:
        assert daily_rows(world.stream("daily-delays")) == daily(flights)

"""Upgrades of a pipeline with whole processes, in random orders: Spark, Azurite, SIGTERM, kills and drains.

python tests/prove/pipeline_upgrades.py [--orders 20] [--seed N]

A fleet of two runs the example's pipeline, the same with a stage put in front, or the same with its first stage
renamed. Rows come in all the time. In each order it is drained in mid-stream and goes on with another of the three.
Processors of the new code are started before the drain, in the middle of it, or after it; those that come too early end
with 2 and are started again, as an orchestrator does. At a named point of the drain (tests/end_to_end/killing) a leader
or follower of the old code is killed, or asked to leave (SIGTERM), or its container is killed; or nothing happens.

After each drain the rows out must be those of one batch for each run over what it has read, by the positions in the
control blob, so nothing is lost or doubled; each processor must have exited with 0, or with 2 if it came too early; and
the next run must begin with the new stages. A failing order prints its seed. About a minute each on two quiet cores.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT)]

from flights import write  # noqa: E402  (needs the path above)

from samza_azure.commands.fleet import Fleet, all_running  # noqa: E402
from samza_azure.errors import StorageUnavailable  # noqa: E402
from tests.end_to_end.real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite, daily, daily_rows  # noqa: E402

CHUNK, RATE = 6_000, 1_000.0
FRONT = '''
@app.stage("flights", output="departures", partition_by="carrier")
def departures(flights: DataFrame) -> DataFrame:
    """What has left the ground."""
    return flights.where("dep_delay IS NOT NULL")


@app.stage("departures", output="by-carrier", partition_by="carrier")
'''
STREAM = f'\n[streams.departures]\npartitions = {PARTITIONS}\nevent_time = "ts"\n'
CLEAN = '@app.stage("flights", output="by-carrier", partition_by="carrier")\n'
#: Each pipeline: its keys beside those of the example, its code, its stages.
PIPELINES: dict[str, tuple[str, Callable[[str], str], set[str]]] = {
    "plain": ("", str, {"clean", "daily_delays"}),
    "front": (STREAM, lambda code: code.replace(CLEAN, FRONT.lstrip("\n")), {"departures", "clean", "daily_delays"}),
    "renamed": ("", lambda code: code.replace("def clean(", "def tidied("), {"tidied", "daily_delays"}),
}
ARRIVALS = ("before the drain", "at its begin", "in its middle", "after it")
OF_LEADER = ("before FREEZE", "after FREEZE", "before FLUSH", "after FLUSH", "before DRAINED", "after DRAINED")
PHASES = ("REQUESTED", "SOURCES_STOPPED", "FLUSHING", "COMMITTED")


@dataclass(frozen=True, slots=True)
class Fault:
    """Which process gets which signal, and where."""

    role: str
    kind: str
    point: str
    how: signal.Signals

    def __str__(self) -> str:
        return f"{self.how.name} for the {self.role}'s {self.kind} {self.point}"


def drawn(dice: random.Random) -> Fault | None:
    """What happens during a drain, if anything does."""
    how, role = dice.choice([signal.SIGKILL, signal.SIGTERM]), dice.choice(["leader", "follower"])
    match dice.randrange(5):
        case 0:
            return None
        case 1:
            return Fault(role, "container", dice.choice(PHASES), signal.SIGKILL)
        case 2 | 3:
            return Fault("leader", "supervisor", dice.choice(OF_LEADER), how)
    return Fault(role, "supervisor", dice.choice(PHASES), how)


def status(fleet: Fleet) -> dict[str, Any]:
    """How things are. A busy machine may have no answer in time."""
    for _ in range(10):
        with suppress(StorageUnavailable):
            return fleet.status()
    return fleet.status()


def until(what: str, fleet: Fleet, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for what the fleet does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(shown := status(fleet)):
        assert time.monotonic() < deadline, f"{what}: {shown}"
        time.sleep(0.1)  # the pace of asking


class Upgrades:
    """One world, and what its runs have read so far."""

    def __init__(self, world: JobOnAzurite, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.pipeline, self.fleet = "plain", world.fleet
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self.positions: dict[str, list[int]] = {}
        self.runs = 0
        self.lives = 0
        self.finished: set[str] = set()  # the pipelines of drained runs

    def start(self, fleet: Fleet, pipeline: str) -> None:
        """Another processor. A pipeline that has had no run begins the next one by itself; one that comes back counts
        as old code unless `new_run` is set."""
        self.lives += 1
        fleet.start(f"p{self.lives}", *(["--new-run"] if pipeline in self.finished else []))

    def settled(self, fleet: Fleet, pipeline: str) -> dict[str, Any]:
        """All tasks of this pipeline run on its processors. A processor that was there too early is started again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for name in [name for name, process in fleet.processes.items() if process.poll() is not None]:
                assert fleet.processes.pop(name).returncode == 2, fleet.log_file(name).read_text()[-2000:]
                self.start(fleet, pipeline)
            shown = status(fleet)
            stages = {task["stage"] for task in shown["tasks"]}
            if all_running(shown) and stages == PIPELINES[pipeline][2] and self.run_by(fleet, shown):
                return shown
            assert time.monotonic() < deadline, f"the run of {pipeline} does not begin: {shown}"
            time.sleep(0.2)  # the pace of asking

    @staticmethod
    def run_by(fleet: Fleet, shown: dict[str, Any]) -> bool:
        """Whether exactly the live processors have tasks."""
        return {task["owner"] for task in shown["tasks"]} == set(fleet.alive())

    def victim(self, fault: Fault, shown: dict[str, Any]) -> str:
        """Who comes to that point, in that role if anybody in it does: the stop of a source is said by its readers."""
        source = "departures" if self.pipeline == "front" else min(PIPELINES[self.pipeline][2] - {"daily_delays"})
        is_of_source = fault.point == "SOURCES_STOPPED"
        owners = sorted(
            {task["owner"] for task in shown["tasks"] if not is_of_source or task["stage"] == source},
            key=lambda owner: (owner == shown["leader"]) != (fault.role == "leader"),
        )
        return str(owners[0])

    def order(self, number: int) -> str:
        """One upgrade; what was done."""
        new = self.dice.choice(sorted(PIPELINES.keys() - {self.pipeline}))
        arrival, fault, world = self.dice.choice(ARRIVALS), drawn(self.dice), self.world
        what = f"{self.pipeline} to {new}, which comes {arrival}; {fault or 'no fault'}"
        print(f"{number:2} {what}", flush=True)
        old, (more, change, _) = self.fleet, PIPELINES[new]
        before = self.settled(old, self.pipeline)
        run = before["run_id"]
        fleet = world.another(f"{number}-{new}", more, change)
        producer = world.producing(CHUNK, RATE)
        until("something is read", old, lambda shown: shown["read"] != before["read"])
        if fault is not None:
            world.kill_at(self.victim(fault, before), fault.kind, fault.point, fault.how)
        if arrival == "before the drain":
            self.start(fleet, new)
        draining = world.drain_begins()
        if arrival == "at its begin":
            self.start(fleet, new)
        elif arrival == "in its middle":
            until("the drain begins", old, lambda shown: shown["phase"] != "RUNNING")
            self.start(fleet, new)
        _, said = draining.communicate(timeout=2 * PATIENCE_S)
        assert draining.returncode == 0, f"{what}: {said}"
        codes = old.exit_codes(PATIENCE_S)
        allowed = {0, -signal.SIGKILL} if fault is not None and fault.how is signal.SIGKILL else {0}
        assert set(codes.values()) <= allowed, f"{what}: {codes}"
        assert world.kills_to_come() == [], f"{what}: nobody came there"
        self.read_by_the_drained(what)
        self.finished.add(self.pipeline)
        while len(fleet.alive()) < 2:
            fleet.processes = {name: fleet.processes[name] for name in fleet.alive()}
            self.start(fleet, new)
        self.pipeline, self.fleet = new, fleet
        after = self.settled(fleet, new)
        assert after["run_id"] != run, f"{what}: no run has begun"
        assert after["positions"] == self.positions, f"{what}: the next run begins elsewhere"
        assert producer.wait() == 0
        return what

    def read_by_the_drained(self, what: str) -> None:
        """The run that has ended has emitted one batch over what it has read."""
        read = self.world.rows_up_to_positions(self.positions)
        self.positions = status(self.world.fleet)["positions"]
        self.expected += daily(read)
        found = daily_rows(self.world.stream("daily-delays"))
        assert not self.expected - found, f"{what}: lost {list((self.expected - found).items())[:5]}"
        # A next run that has begun already may have emitted windows of its own, which the next drain accounts for.
        self.runs += 1

    def end(self) -> None:
        """The last run is drained; then all rows out are accounted for."""
        self.settled(self.fleet, self.pipeline)
        draining = self.world.drain_begins()
        _, said = draining.communicate(timeout=2 * PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(self.fleet.exit_codes(PATIENCE_S).values()) == {0}
        self.read_by_the_drained("at the end")
        assert daily_rows(self.world.stream("daily-delays")) == self.expected, "rows are doubled"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = JobOnAzurite(directory, pq.read_table(directory / "flights.parquet"))
    begun = time.monotonic()
    upgrades = Upgrades(world, random.Random(asked.seed))
    try:
        for _ in range(2):
            upgrades.start(world.fleet, upgrades.pipeline)
        for number in range(1, asked.orders + 1):
            since = time.monotonic()
            upgrades.order(number)
            print(f"   exact so far, the next run runs, {time.monotonic() - since:.0f} s", flush=True)
        upgrades.end()
    finally:
        world.close()
    rows, took = sum(upgrades.expected.values()), time.monotonic() - begun
    print(f"{asked.orders} orders, {upgrades.runs} runs, {rows} windows, all exact, {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

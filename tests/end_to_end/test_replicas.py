"""Tasks that leave in a hurry: a container that ignores its release, and an owner whose tasks have replicas.

Its job is low-level tasks with a large state, which need no Spark; benchmarks/decommission.py has queries.
"""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.commands.requests import ask_notice
from samza_azure.group.rows import RequestKind
from samza_azure.machine.clock import wall_ms
from samza_azure.storage.connection import Account
from tests.storage.stored_rows import batches_of

from .real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite, incarnations

#: In pieces: tests/group/test_replicas.py, tests/storage/test_replica.py, and the simulator.
pytestmark = pytest.mark.long

STREAMS = """
[job.standby]
replicas = 1

[streams.flights]
partitions = 2
schema = "carrier string, ts timestamp, dep_delay double"

[streams.counted]
schema = "carrier string, number bigint"
"""
#: As much as a handler's state may be, nearly.
STATE_BYTES = 1_000_000
#: Each flight is counted; the state is large and changes with each batch.
PIPELINE = """
import json

from samza_azure import Application

app = Application()


@app.task("flights", output="counted")
class Count:
    def __init__(self):
        self.counts = {}

    def process(self, envelope, collector, coordinator):
        carrier = envelope.row["carrier"]
        self.counts[carrier] = self.counts.get(carrier, 0) + 1
        collector.send({"carrier": carrier, "number": self.counts[carrier]})

    def snapshot(self):
        return json.dumps(self.counts).encode().ljust(STATE_BYTES)

    def restore(self, state):
        self.counts = json.loads(state)
"""


def replicas(shown: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {task["name"]: task["replicas"] for task in shown["tasks"]}


def are_ready(shown: dict[str, Any]) -> bool:
    """Whether each task has a replica on a processor that does not run it, and that is nearly at the end of the log."""
    return all(
        [each["processor"] != task["owner"] and each["batches_behind"] in range(4) for each in task["replicas"]]
        == [True]
        for task in shown["tasks"]
    ) and all(task["batch"] is not None and task["batch"] >= 0 for task in shown["tasks"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, flights: pa.Table) -> Iterator[JobOnAzurite]:
    """Two processors, and two tasks that have a replica each."""
    world = JobOnAzurite(tmp_path_factory.mktemp("replicas"), flights)
    world.carries(STREAMS, PIPELINE.replace("STATE_BYTES", str(STATE_BYTES)))
    try:
        world.start("p0", "p1")
        yield world
    finally:
        world.close()


def a_followers(shown: dict[str, Any]) -> tuple[str, str, list[str]]:
    """A processor that does not lead, the other one, and the tasks of the first."""
    victim = next(task["owner"] for task in shown["tasks"] if task["owner"] != shown["leader"])
    other = next(each["id"] for each in shown["processors"] if each["id"] != victim)
    return victim, other, [task["name"] for task in shown["tasks"] if task["owner"] == victim]


def ask(fleet: JobOnAzurite, kind: RequestKind, incarnation: str, seconds: float = 0.0) -> None:
    async def write() -> None:
        account = Account.from_config(fleet.fleet.config.storage)
        try:
            await ask_notice(account.rows(), kind, incarnation, wall_ms() + int(seconds * 1000) if seconds else 0)
        finally:
            await account.aclose()

    asyncio.run(write())


def log_of(fleet: JobOnAzurite, processor: str) -> str:
    """What a processor's container has logged."""
    return "".join(path.read_text() for path in fleet.directory.rglob("container.log") if processor in path.parts)


def test_a_container_that_ignores_its_release_is_ended_when_the_deadline_comes(fleet: JobOnAzurite) -> None:
    """It is frozen in mid-batch when its processor is told that it will go in six seconds. It holds its tasks no longer
    than that, although it might wake up, and the other processor repeats what it had not appended.
    """
    fleet.produce(600)
    shown = fleet.fleet.wait_until("replicas are ready", are_ready, PATIENCE_S)
    victim, other, lost = a_followers(shown)
    incarnation = incarnations(shown)[victim]
    fleet.produce(600)
    frozen = fleet.container(victim)
    frozen.suspend()
    begun = time.monotonic()
    ask(fleet, RequestKind.DECOMMISSION, incarnation, 6.0)
    fleet.settled(lambda now: all(task["owner"] == other for task in now["tasks"]))
    print(f"{', '.join(lost)} ran elsewhere {time.monotonic() - begun:.1f} s after a notice of 6 s")
    assert frozen.wait(PATIENCE_S) is not None or not frozen.is_running()
    assert fleet.fleet.processes[victim].poll() is None, "its supervisor stays until its machine ends"
    ask(fleet, RequestKind.RECOMMISSION, incarnation)
    fleet.settled(lambda now: {task["owner"] for task in now["tasks"]} == {victim, other})


def restored(said: str, task: str) -> tuple[int, int, int]:
    """What the last start of a task had to read: records, bytes of large files; and how many bytes were there."""
    found = re.findall(rf"{task} is restored: (\d+) records .* and (\d+) bytes .* read; (\d+) were here", said)
    assert found, said[-3000:]
    records, read, here = map(int, found[-1])
    return records, read, here


def test_who_takes_over_from_a_killed_owner_restores_almost_nothing(fleet: JobOnAzurite) -> None:
    """kill -9 of an owner under load. Its task goes where its replica is, so no state is read after the death."""
    producer = fleet.producing(1_500, rate=100)
    victim, other, lost = a_followers(fleet.fleet.wait_until("replicas are ready", are_ready, PATIENCE_S))
    shown = fleet.fleet.status()
    assert [each["processor"] for each in replicas(shown)[lost[0]]] == [other]
    assert replicas(shown)[lost[0]][0]["size"] > STATE_BYTES
    before = log_of(fleet, other)
    fleet.signal_tree(victim, signal.SIGKILL)
    fleet.settled(lambda now: all(task["owner"] == other for task in now["tasks"]))
    assert producer.wait(PATIENCE_S) == 0
    said = log_of(fleet, other).removeprefix(before)
    for task in lost:
        assert said.count(f"{task} is restored") == 1, said[-3000:]
        records, read, here = restored(said, task)
        assert records < 20
        assert read + here == STATE_BYTES
        assert read == 0 or records > 2, "what came after the last look of the replica"


def test_a_processor_that_comes_back_gets_its_task_once_it_has_its_state(fleet: JobOnAzurite) -> None:
    """The one that was killed starts again while rows come in. Until it has followed a task's log, that one runs on
    where it is.
    """
    producer = fleet.producing(1_000, rate=100)
    victim = next(name for name in ("p0", "p1") if name not in fleet.fleet.alive())
    before = log_of(fleet, victim)
    fleet.start(victim)
    (task,) = [task["name"] for task in fleet.fleet.status()["tasks"] if task["owner"] == victim]
    records, read, here = restored(log_of(fleet, victim).removeprefix(before), task)
    assert records < 20, "it had followed the log nearly to its end; the state changes with each batch"
    assert read + here == STATE_BYTES
    assert producer.wait(PATIENCE_S) == 0


def test_a_rolling_upgrade_and_a_stop(fleet: JobOnAzurite) -> None:
    """Each processor in turn hands over, ends, and starts again with other code of the same plan. Then all stop, and
    go on.
    """
    producer = fleet.producing(2_000, rate=100)
    code = fleet.directory / "pipeline.py"
    code.write_text(code.read_text() + "\n# the next version\n")
    for name in ("p0", "p1"):
        fleet.fleet.wait_until("replicas are ready", are_ready, PATIENCE_S)
        fleet.fleet.send(name, signal.SIGTERM)
        assert fleet.fleet.processes[name].wait(PATIENCE_S) == 0
        fleet.start(name)
    fleet.fleet.wait_until("replicas are ready", are_ready, PATIENCE_S)
    assert fleet.command("stop", "--wait").returncode == 0
    fleet.fleet.exit_codes(PATIENCE_S)
    fleet.start("p0", "p1")
    assert producer.wait(PATIENCE_S) == 0


def test_all_rows_are_there_once(fleet: JobOnAzurite) -> None:
    """After all that."""
    assert 0 in fleet.drained().values()
    is_exact(fleet)


def test_a_run_that_reads_all_again_uses_no_copy_of_the_last_one(fleet: JobOnAzurite) -> None:
    """After a rewind. Its tasks have the names of those of the last run; one owner is killed, and a copy is used."""
    last = fleet.fleet.status()["run_id"]
    assert fleet.command("rewind", "--to", "earliest").returncode == 0
    for name in ("p0", "p1"):
        fleet.fleet.start(name, "--new-run")
    shown = fleet.fleet.wait_until(
        "the next run has replicas, and both have a task",
        lambda shown: (
            shown["run_id"] != last and are_ready(shown) and {task["owner"] for task in shown["tasks"]} == {"p0", "p1"}
        ),
        PATIENCE_S,
    )
    producer = fleet.producing(500, rate=100)
    victim, other, lost = a_followers(shown)
    before = log_of(fleet, other)
    fleet.signal_tree(victim, signal.SIGKILL)
    fleet.settled(lambda now: all(task["owner"] == other for task in now["tasks"]))
    for task in lost:
        assert sum(restored(log_of(fleet, other).removeprefix(before), task)[1:]) == STATE_BYTES
    assert producer.wait(PATIENCE_S) == 0
    assert 0 in fleet.drained().values()
    is_exact(fleet, [fleet.fleet.status()["run_id"]])


def is_exact(fleet: JobOnAzurite, runs: Sequence[str] | None = None) -> None:
    """Each row of the source is counted once, in all runs or in these."""
    carriers = Counter(fleet.flights.slice(0, fleet.produced)["carrier"].to_pylist())
    account = Account.from_config(fleet.fleet.config.storage)
    rows = pa.Table.from_batches(batches_of(account.blobs(), "counted", runs)).to_pylist()
    account.close()
    seen: dict[str, Counter[int]] = {}
    for row in rows:
        seen.setdefault(row["carrier"], Counter())[row["number"]] += 1
    assert Counter(row["carrier"] for row in rows) == carriers
    assert max(max(each.values()) for each in seen.values()) <= PARTITIONS, "a number comes once from each task"

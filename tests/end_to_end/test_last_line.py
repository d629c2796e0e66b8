"""What the exit code and the last line of the log say of a processor that was asked to leave, with batches that do not
end, and with nobody who could take its tasks.
"""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from samza_azure.errors import Verdict
from samza_azure.group.notice import Left

from .real_processes import PATIENCE_S, JobOnAzurite
from .test_life_and_death import STREAMS

TASKS = [f"Clean-{number}" for number in range(4)]
#: A batch of a partition ends no sooner than the file `stuck-<partition>` is gone.
PIPELINE = """
import time
from pathlib import Path

from samza_azure import Application

app = Application()
HERE = Path(__file__).parent


@app.task("flights", output="by-carrier", partition_by="carrier")
class Clean:
    def process(self, envelope, collector):
        while (HERE / f"stuck-{envelope.partition}").exists():
            (HERE / f"reached-{envelope.partition}").touch()
            time.sleep(0.05)
        if envelope.row["dep_delay"] is not None:
            collector.send({name: envelope.row[name] for name in ("carrier", "ts", "dep_delay")})
"""


@pytest.fixture(scope="module")
def world(world: JobOnAzurite) -> JobOnAzurite:
    """Two processors without Spark that share four tasks."""
    world.carries(re.sub("partitions = .*", f"partitions = {len(TASKS)}", STREAMS), PIPELINE)
    gives_batches(world, 60)
    world.start("p1")
    world.start("p0")
    return world


def gives_batches(world: JobOnAzurite, seconds: int) -> None:
    """Processors that start from now on give a running batch so long to end."""
    job = re.sub(r"^\[task\]\nshutdown\.ms = .*\n", "", world.fleet.job.read_text(), flags=re.MULTILINE)
    world.fleet.job.write_text(f"[task]\nshutdown.ms = {seconds * 1000}\n{job}")


@contextmanager
def stuck(world: JobOnAzurite, task: str) -> Iterator[None]:
    """Rows are produced, and the batch of this task that reads them does not end."""
    number = task.rpartition("-")[2]
    there, reached = (world.directory / f"{name}-{number}" for name in ("stuck", "reached"))
    reached.unlink(missing_ok=True)
    there.touch()
    try:
        world.produce(1_000)
        deadline = time.monotonic() + PATIENCE_S
        while not reached.exists():
            assert time.monotonic() < deadline, world.fleet.status()
            time.sleep(0.05)  # the pace of looking
        yield
    finally:
        there.unlink()


def goes_by(world: JobOnAzurite, name: str, seconds: int) -> None:
    """Tell a processor that it will go, and wait until that time has passed."""
    assert world.command("decommission", name, "--by", f"{seconds}s").returncode == 0

    def is_over(shown: dict[str, Any]) -> bool:
        [going] = [each["decommission"] for each in shown["processors"] if each["id"] == name]
        return going.get("tasks") is not None and going["by_ms"] < time.time() * 1000

    world.fleet.wait_until("it should have gone", is_over, PATIENCE_S)


def tasks_of(world: JobOnAzurite, name: str) -> list[str]:
    return [task["name"] for task in world.fleet.status()["tasks"] if task["owner"] == name]


def last_line(world: JobOnAzurite, name: str) -> str:
    """Without its time and its level."""
    line = world.fleet.log_file(name).read_text().splitlines()[-1]
    return line.partition("  ")[2].partition("  ")[2] or line


def test_a_processor_that_leaves_in_an_outage_says_which_of_its_tasks_others_have(world: JobOnAzurite) -> None:
    """One of two is handed over, and the batch of the other one does not end."""
    free, held = tasks_of(world, "p0")
    with stuck(world, held):
        assert world.command("decommission", "p0").returncode == 0

        def is_half_done(shown: dict[str, Any]) -> bool:
            [going] = [each["decommission"] for each in shown["processors"] if each["id"] == "p0"]
            runs = {each["name"] for each in shown["tasks"] if (each["owner"], each["phase"]) == ("p1", "RUNNING")}
            return going.get("left") == {held: Left.RUNS} and free in runs

        world.fleet.wait_until("the other one is handed over", is_half_done, PATIENCE_S)
        world.emulator_signal(signal.SIGSTOP)
        try:
            world.fleet.send("p0", signal.SIGTERM)
            assert world.fleet.processes["p0"].wait(PATIENCE_S) == Verdict.LEFT_OPEN
        finally:
            world.emulator_signal(signal.SIGCONT)
    assert last_line(world, "p0").endswith(
        "Left the group, but could not write this to the storage: the others do not know; others get "
        f"{held} when it has been silent for 5 s. {held} did not end in time; the next owner finds in the log whether "
        "the last batch is stored. Nothing is lost or duplicated. So far: 1 of 2 tasks handed over."
    )
    world.settled(lambda shown: {task["owner"] for task in shown["tasks"]} == {"p1"})
    world.exact()


def gave_up(world: JobOnAzurite, held: str) -> None:
    """Its last line says that the batch of this task was given up, and the other processor repeats that."""
    said = (
        r"Left the group; 2 of 2 tasks handed over. Batches given up, because they could not end in time: "
        rf"{held}; the next owners repeat [1-9]\d* input rows\.$"
    )
    assert re.search(said, last_line(world, "p0")), last_line(world, "p0")
    world.settled(lambda shown: {task["owner"] for task in shown["tasks"]} == {"p1"})
    world.exact()


def test_a_processor_says_what_was_given_up_when_it_should_have_gone(world: JobOnAzurite) -> None:
    """It is still there after the time that it was told, and ends later. The batch may have taken a minute."""
    world.start("p0")
    _, held = tasks_of(world, "p0")
    with stuck(world, held):
        goes_by(world, "p0", 3)
        world.settled(lambda shown: {task["owner"] for task in shown["tasks"] if task["name"] != held} == {"p1"})
        world.fleet.send("p0", signal.SIGTERM)
        assert world.fleet.processes["p0"].wait(PATIENCE_S) == Verdict.DONE
    gave_up(world, held)


def test_a_processor_says_how_many_rows_are_repeated_of_a_batch_that_did_not_end(world: JobOnAzurite) -> None:
    gives_batches(world, 2)
    world.start("p0")
    _, held = tasks_of(world, "p0")
    with stuck(world, held):
        world.fleet.send("p0", signal.SIGTERM)
        assert world.fleet.processes["p0"].wait(PATIENCE_S) == Verdict.DONE
    gave_up(world, held)


def test_the_last_one_says_that_nobody_can_take_its_tasks(world: JobOnAzurite) -> None:
    """It goes on with them until it ends, also after the time at which it should have gone."""
    goes_by(world, "p1", 2)
    world.produce(1_000)
    world.exact()
    world.fleet.send("p1", signal.SIGTERM)
    assert world.fleet.processes["p1"].wait(PATIENCE_S) == Verdict.DONE
    assert last_line(world, "p1").endswith(
        f"Left the group; 0 of 4 tasks handed over. {', '.join(TASKS)}: no other processor can take it; the next owner "
        "goes on from the log."
    )

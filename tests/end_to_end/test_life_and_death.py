"""How single processors begin and end: drained before they began, restarted, refused, failed.

Their job is the example's first stage as a task without Spark: none of it depends on what computes.
"""

import signal
import time
from typing import Any

import pytest

from samza_azure.commands.fleet import Fleet, all_running

from .real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite
from .test_leaving import leaves_in_an_outage

STREAMS = f"""
[streams.flights]
partitions = {PARTITIONS}
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
[streams.by-carrier]
partitions = {PARTITIONS}
schema = "carrier string, ts timestamp, dep_delay double"
"""
PIPELINE = """
from samza_azure import Application

app = Application()


@app.task("flights", output="by-carrier", partition_by="carrier")
class Clean:
    def process(self, envelope, collector):
        if envelope.row["dep_delay"] is not None:
            collector.send({name: envelope.row[name] for name in ("carrier", "ts", "dep_delay")})
"""

ENDLESS = """
from dataclasses import replace

from samza_azure import AzureJobCoordinatorFactory
from samza_azure.messages import Permit


class Endless:
    def __init__(self, listener):
        self.listener = listener

    def __getattr__(self, name):
        return getattr(self.listener, name)

    def on_command(self, command):
        self.listener.on_command(replace(command, until=1e12) if isinstance(command, Permit) else command)


class Factory(AzureJobCoordinatorFactory):
    def get_job_coordinator(self, processor_id, config, metrics=None):
        coordinator = super().get_job_coordinator(processor_id, config, metrics)
        set_listener = coordinator.set_listener
        coordinator.set_listener = lambda listener: set_listener(Endless(listener))
        return coordinator
"""


@pytest.fixture(scope="module")
def world(world: JobOnAzurite) -> JobOnAzurite:
    """Without Spark."""
    world.carries(STREAMS, PIPELINE)
    return world


def test_a_drain_asked_for_before_the_start_reads_nothing(world: JobOnAzurite) -> None:
    world.produce(2_000)
    assert world.command("drain").returncode == 2, "it would end whatever begins first"
    asked = world.command("drain", "--run-id", "first")
    assert (asked.returncode, asked.stdout) == (0, "")
    assert "run first" in asked.stderr
    job = world.fleet.job.read_text()
    world.fleet.job.write_text(job.replace("[app]\n", '[app]\nrun.id = "first"\n'))
    world.fleet.start("p0")
    assert world.fleet.exit_codes(PATIENCE_S) == {"p0": 0}
    world.fleet.job.write_text(job)
    shown = world.fleet.status()
    assert shown["phase"] == "DRAINED"
    assert shown["positions"] == {f"flights/{number}": [0, 0] for number in range(PARTITIONS)}
    assert world.stream("by-carrier").num_rows == 0
    assert "already drained" in world.command("drain").stdout


def test_a_restarted_processor_does_not_begin_a_drained_run_again(world: JobOnAzurite) -> None:
    """A processor that is restarted at once would be restarted forever, so it stays. The next one reports that nothing
    is to do."""

    def stands_by(shown: dict[str, Any]) -> bool:
        return [each["state"] for each in shown["processors"]] == ["ACTIVE"] and shown["leader"] == "p0"

    world.fleet.start("p0")
    assert world.fleet.wait_until("it stands by", stands_by, PATIENCE_S)["phase"] == "DRAINED"
    world.fleet.send("p0", signal.SIGTERM)
    assert world.fleet.exit_codes(PATIENCE_S) == {"p0": 0}
    assert "it waits for an upgrade" in world.fleet.log_file("p0").read_text()
    world.fleet.start("p0")
    assert world.fleet.exit_codes(PATIENCE_S) == {"p0": 0}
    assert "is drained and the pipeline is the same" in world.fleet.log_file("p0").read_text()


def test_the_next_run_begins_where_the_drained_one_stopped(world: JobOnAzurite) -> None:
    world.fleet.start("p0", "--new-run")
    world.settled()
    world.exact()


def test_a_second_processor_with_the_id_of_a_live_one_is_refused(world: JobOnAzurite) -> None:
    world.settled()
    here = world.fleet
    same_machine = Fleet(here.job, world.directory / "again", here.environment)
    same_machine.start("p0")
    assert same_machine.exit_codes(30) == {"p0": 2}
    assert "A live processor on this machine has the id 'p0'" in same_machine.log_file("p0").read_text()
    elsewhere = world.another("elsewhere", "[processor]\ndir = 'elsewhere'\n")
    elsewhere.start("p0")
    assert elsewhere.exit_codes(30) == {"p0": 2}
    assert "A live processor has the id 'p0'" in elsewhere.log_file("p0").read_text()


def test_a_former_owner_with_an_endless_permit_is_refused_by_the_storage(world: JobOnAzurite) -> None:
    # The factory is the user's own, and takes the permit's end away: only the log itself can stop this one.
    zombies = world.another(
        "zombies", "", job=lambda text: text.replace("samza_azure.AzureJobCoordinatorFactory", "endless.Factory")
    )
    (zombies.job.parent / "endless.py").write_text(ENDLESS)
    zombies.start("p1")
    world.fleet.wait_until("p1 owns tasks", lambda shown: owned_by("p1", shown) and all_running(shown), PATIENCE_S)
    supervisor, *container = world.tree("p1", zombies)
    supervisor.suspend()
    for process in container:
        process.suspend()
    world.settled(lambda shown: not owned_by("p1", shown))
    for process in container:
        process.resume()
    world.produce(3_000)
    world.exact()
    until_refused(zombies, "p1")
    supervisor.resume()
    world.fleet.wait_until("p1 is back", lambda shown: owned_by("p1", shown) and all_running(shown), PATIENCE_S)
    world.produce(1_000)
    world.exact()
    zombies.send("p1", signal.SIGTERM)
    assert zombies.exit_codes(60) == {"p1": 0}


def test_a_missing_pipeline_ends_the_processor_with_a_remedy(world: JobOnAzurite) -> None:
    nowhere = world.another("nowhere", "", job=lambda text: text.replace("pipeline:app", "pipelines:app"))
    nowhere.start("p1")
    assert nowhere.exit_codes(PATIENCE_S) == {"p1": 2}
    assert "pipelines" in nowhere.log_file("p1").read_text()


def test_sigterm_in_an_outage_ends_the_processor_and_its_tree_within_the_promised_time(world: JobOnAzurite) -> None:
    world.settled()
    leaves_in_an_outage(world, signal.SIGSTOP)


def owned_by(processor: str, shown: dict[str, Any]) -> bool:
    """It owns a task."""
    return processor in {task["owner"] for task in shown["tasks"]}


def until_refused(fleet: Fleet, name: str) -> None:
    """Wait until a container has tried to append and the log has shown it another owner of the task."""
    (log_file,) = fleet.job.parent.rglob(f"{name}/container.log")
    deadline = time.monotonic() + PATIENCE_S
    while "belongs to writer" not in log_file.read_text():
        assert time.monotonic() < deadline, log_file.read_text()
        time.sleep(0.1)  # the pace of looking

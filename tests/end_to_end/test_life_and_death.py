"""How single processors begin and end: drained before they began, killed with a JVM that hangs, refused, failed."""

import signal
import time
from collections import Counter
from typing import Any

import psutil
import pyarrow as pa
import pytest

from samza_azure.commands.fleet import Fleet, all_running

from .real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite, daily, daily_rows

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
FAILS_ON_ZZ = "rows.where(\"if(carrier = 'ZZ', raise_error('no such carrier'), true)\").withWatermark"


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
    assert world.stream("daily-delays").num_rows == 0
    assert "already drained" in world.command("drain").stdout


def test_a_restarted_processor_does_not_begin_a_drained_run_again(world: JobOnAzurite) -> None:
    """A processor that is restarted at once would be restarted for ever, so it stays. The next one reports that nothing
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


def test_the_whole_tree_dies_with_its_supervisor_even_if_the_jvm_hangs(world: JobOnAzurite) -> None:
    tree = world.tree("p0")
    assert len(tree) >= 3
    world.jvm("p0").send_signal(signal.SIGSTOP)
    world.fleet.send("p0", signal.SIGKILL)
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_second_processor_with_the_id_of_a_live_one_is_refused(world: JobOnAzurite) -> None:
    world.start("p0")
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


@pytest.mark.long  # tests/commands has a processor that does not fit
def test_another_pipeline_is_refused_while_the_run_goes_on(world: JobOnAzurite) -> None:
    changed = world.another("changed", "", lambda text: text.replace('alias("delay")', 'alias("mean_delay")'))
    changed.start("p1")
    assert changed.exit_codes(PATIENCE_S) == {"p1": 2}
    said = changed.log_file("p1").read_text()
    assert "has another pipeline" in said and "samza-azure drain" in said
    assert "lost column delay (double)" in said and "gained column mean_delay (double)" in said
    world.settled()


def test_a_missing_pipeline_ends_the_processor_with_a_remedy(world: JobOnAzurite) -> None:
    nowhere = world.another("nowhere", "", job=lambda text: text.replace("pipeline:app", "pipelines:app"))
    nowhere.start("p1")
    assert nowhere.exit_codes(PATIENCE_S) == {"p1": 2}
    assert "pipelines" in nowhere.log_file("p1").read_text()


@pytest.mark.long  # tests/spark has the task, tests/group and tests/sim the run that fails and is resumed
def test_a_stage_that_raises_fails_the_run_and_a_fix_resumes_it(world: JobOnAzurite) -> None:
    assert world.drained() == {"p0": 0}
    failing = world.another(
        "failing",
        "[task]\nrestart.limit = 1\n",
        lambda text: text.replace("rows.withWatermark", FAILS_ON_ZZ),
    )
    failing.start("p0", "--new-run")
    world.fleet.processes.pop("p0")
    failing.wait_until(
        "all run",
        lambda shown: all(task["phase"] == "RUNNING" for task in shown["tasks"]) and bool(shown["tasks"]),
        PATIENCE_S,
    )
    poison = pa.table(
        {"carrier": ["ZZ"], "dest": ["ZZZ"], "ts": world.flights["ts"].slice(world.produced, 1), "dep_delay": [1.0]}
    )
    world.flights = pa.concat_tables(
        [world.flights.slice(0, world.produced), poison.cast(world.flights.schema), world.flights.slice(world.produced)]
    )
    world.produce(3_000)
    assert failing.exit_codes(PATIENCE_S) == {"p0": 1}
    shown = failing.status()
    assert shown["phase"] == "FAILED"
    assert shown["failure"]["stage"] == "daily_delays"
    assert "no such carrier" in shown["failure"]["message"] + shown["failure"]["traceback"]
    assert "no such carrier" in failing.log_file("p0").read_text()
    pipeline = failing.job.parent / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("raise_error('no such carrier')", "true"))
    failing.start("p0")
    failing.wait_until(
        "the run goes on", lambda shown: shown["phase"] == "RUNNING" and bool(shown["tasks"]), PATIENCE_S
    )
    world.exact()
    assert world.command("drain", "--wait", "--timeout", "60").returncode == 0
    assert failing.exit_codes(PATIENCE_S) == {"p0": 0}
    assert totals(daily_rows(world.stream("daily-delays"))) == totals(daily(world.rows_up_to_positions()))


def totals(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Flights and minutes of each day and carrier: a window that a drain has cut off has a row from each run."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (day, carrier, flights, delay), times in rows.items():
        found[day, carrier, "flights"] += times * flights
        found[day, carrier, "minutes"] += times * round(flights * delay)
    return found


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

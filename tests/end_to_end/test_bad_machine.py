"""A machine on which a stage's own Python code fails: the task goes on elsewhere, and nothing is lost."""

from typing import Any

import pytest

from .real_processes import JobOnAzurite, daily, daily_rows

ROWS = 4_000
#: The code is the same everywhere; the machine's environment is not.
FAILS_THERE = '''
import os


@F.udf("boolean")
def is_fine(carrier: str) -> bool:
    if "BAD_MACHINE" in os.environ:
        raise OSError("No space left on device")
    return True


@app.stage("by-carrier"'''


@pytest.mark.long
def test_a_task_that_fails_on_one_machine_continues_on_another(world: JobOnAzurite) -> None:
    pipeline = world.directory / "pipeline.py"
    changed = pipeline.read_text().replace('@app.stage("by-carrier"', FAILS_THERE.lstrip(), 1)
    pipeline.write_text(changed.replace("rows.withWatermark", "rows.where(is_fine('carrier')).withWatermark"))
    world.start("good")
    world.fleet.environment["BAD_MACHINE"] = "yes"
    before = owners(world.start("bad"))
    there = {task for task, (owner, _) in before.items() if owner == "bad" and task.startswith("daily_delays")}
    assert len(there) == 1  # of the stage that calls the function

    world.produce(ROWS)
    shown = world.settled(lambda shown: bool(given_up(shown)))
    ((task, reason),) = given_up(shown).items()
    assert (task in there, reason["processor"]) == (True, "bad")
    assert "No space left on device" in reason["message"]
    after = owners(shown)
    assert after.pop(task)[0] == "good"
    assert after == {name: owner for name, owner in before.items() if name != task}
    assert f"{task} (given up by bad):" in world.command("status").stdout

    world.produce(ROWS)
    world.exact()
    assert world.drained() == {"good": 0, "bad": 0}
    assert daily_rows(world.stream("daily-delays")) == daily(world.flights.slice(0, world.produced))


def given_up(shown: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The processors that could not run each task, and why."""
    return {task["name"]: task["given_up"] for task in shown["tasks"] if task["given_up"]}


def owners(shown: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """The owner of each task, and the version that made it so."""
    return {task["name"]: (task["owner"], task["generation"]) for task in shown["tasks"]}

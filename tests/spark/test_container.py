"""The container as a process: what it says over the channel, and that nothing of it is left when its parent is gone."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.messages import Permit, Ready, Rejected

from .child import PATIENCE_S, Child, state_of

PIPELINE = """
from samza_azure import Application
app = Application()

@app.stage("numbers", output="evens")
def even(rows):
    return rows.where("n % 2 = 0")
"""
JOB = """
[app]
name = "test"
main = "pipeline:app"
[azure.storage]
connect = "%s"
[streams.numbers]
partitions = 2
schema = "n int"
"""


@pytest.fixture
def job(tmp_path: Path, azurite: Azurite) -> Path:
    """A job file with its pipeline beside it."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    path = tmp_path / "job.toml"
    path.write_text(JOB % azurite.connection_string)
    return path


@pytest.fixture
def child(job: Path) -> Iterator[Child]:
    """A container that was just started."""
    child = Child(job)
    yield child
    child.kill()


def all_gone(processes: list[int]) -> bool:
    """Whether each ends in time."""
    deadline = time.monotonic() + PATIENCE_S
    while any(state_of(process)[0] != "Z" for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.long  # tests/commands/test_mistakes.py starts processors
def test_a_pipeline_that_cannot_run_is_rejected_with_its_reason(job: Path) -> None:
    (job.parent / "pipeline.py").write_text(PIPELINE.replace("return rows.where", "rows.where"))
    child = Child(job)
    try:
        where = f"{job.parent / 'pipeline.py'}, line 5 (stage even)"
        assert child.report() == Rejected(f"Stage even returns NoneType. Return a DataFrame.\n  {where}")
        assert child.process.wait(PATIENCE_S) == 2
    finally:
        child.kill()


@pytest.mark.long  # a Spark of its own
def test_a_container_whose_directory_is_gone_ends_at_once(child: Child, job: Path) -> None:
    """It can no longer tell its sources until when they may read. Another container begins with a fresh directory."""
    assert isinstance(child.report(), Ready)
    shutil.rmtree(job.parent / "scratch", ignore_errors=True)

    child.tell(Permit(until=1e12))

    assert child.process.wait(10) == 1
    assert "No such file or directory" in child.log.read_text()


def test_a_container_has_no_secret_on_a_command_line_or_on_disk_and_dies_with_its_channel(
    job: Path, child: Child
) -> None:
    """The account's settings travel in the environment of our own processes only. A stopped JVM cannot notice the end
    of its input: the kernel kills it."""
    ready = child.report()
    assert isinstance(ready, Ready)
    assert ready.plan.tasks() == ["even-0", "even-1"]
    key = job.read_text().partition("AccountKey=")[2].partition(";")[0]
    assert len(key) > 20
    tree = child.tree()

    lines = [Path(f"/proc/{process}/cmdline").read_text() for process in tree]
    files = [path for path in (job.parent / "scratch").rglob("*") if path.is_file()]

    assert not [line for line in lines if key in line]
    assert not [path for path in files if key.encode() in path.read_bytes()]

    os.kill(child.jvm(), signal.SIGSTOP)
    child.channel.close()

    assert all_gone(tree)

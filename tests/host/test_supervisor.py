"""What a supervisor does when it is signalled, under a coordinator of the test's own. No storage is asked."""

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import psutil
import pytest

JOB = """
app = {{ name = "test", main = "pipeline:app" }}
job.coordinator.factory = "own.{}"
azure.storage.connect = "${{CONNECT}}"
"""
OWN = """
import os
import signal
import sys
import threading

from samza_azure.coordinator import JobCoordinator
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Permit


class Coordinator(JobCoordinator):
    is_leader, job_model = False, None

    def __init__(self):
        self.lock = threading.Lock()

    def set_listener(self, listener):
        self.listener = listener

    def start(self):
        pass

    def container_lost(self, reason):
        pass

    def report(self, report):
        with self.lock:
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self):
        with self.lock:
            threading.Thread(target=self.listener.on_coordinator_stop).start()


class Endless(Coordinator):
    def stop(self):
        pass


class Paused(Coordinator):
    # Its permit has run out, and is renewed when the test has seen that.
    def start(self):
        self.listener.on_command(Permit(0.0))
        threading.Thread(target=self.renew, daemon=True).start()

    def renew(self):
        while not os.path.exists(os.environ["RENEW"]):
            threading.Event().wait(0.05)
        self.listener.on_command(Permit(boot_time() + 1000))

    def report(self, report):
        pass


class Measured(Coordinator):
    # Has its container measured at once, and leaves when it hears that it uses nothing any more.
    def start(self):
        self.listener.wake()

    def report(self, report):
        pass

    def container_uses(self, size):
        print("memory:", size, file=sys.stderr, flush=True)
        if size == 0:
            os.kill(os.getpid(), signal.SIGTERM)


class Dies:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        del os.environ["CONNECT"]
        return Measured()


class Outage:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        return Paused()


class Locked:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        del os.environ["CONNECT"]  # the container will say what it lacks: the report that is passed on
        return Coordinator()


class Never:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        return Endless()
"""


def supervisor(directory: Path, factory: str) -> "subprocess.Popen[str]":
    """`samza-azure run` with the test's own factory; what it says comes through a pipe."""
    (directory / "own.py").write_text(OWN)
    (directory / "job.toml").write_text(JOB.format(factory))
    environment = {**os.environ, "CONNECT": "UseDevelopmentStorage=true", "RENEW": str(directory / "renew")}
    command = [sys.executable, "-m", "samza_azure", "run", str(directory / "job.toml")]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_a_signal_in_the_middle_of_a_report_is_obeyed_after_it(tmp_path: Path) -> None:
    """The coordinator holds its lock then, and `stop` needs it."""
    process = supervisor(tmp_path, "Locked")
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "leaving: tasks are handed over" in said


def test_a_second_interrupt_kills_the_container_too(tmp_path: Path) -> None:
    process = supervisor(tmp_path, "Never")
    try:
        assert process.stderr is not None
        assert "pid" in process.stderr.readline()
        tree = [psutil.Process(process.pid)]
        while len(tree) == 1:
            tree = [tree[0], *tree[0].children(recursive=True)]
        process.send_signal(signal.SIGINT)
        assert "leaving" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
        _, alive = psutil.wait_procs(tree, timeout=30)
        assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        process.kill()


def test_a_container_that_has_died_uses_no_memory(tmp_path: Path) -> None:
    """The gauge kept its last value, through a back-off of half a minute and for good after the last one."""
    for _ in range(10):  # a container that dies before it is first measured shows nothing
        process = supervisor(tmp_path, "Dies")
        try:
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 0
        sizes = [int(line.split()[1]) for line in said.splitlines() if line.startswith("memory:")]
        assert sizes[-1] == 0
        if max(sizes) > 0:
            return
    raise AssertionError("no container was measured while it lived")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGPWR])
def test_an_outage_leaves_a_line_when_work_pauses_and_one_when_it_goes_on(tmp_path: Path, number: int) -> None:
    """And the processor leaves: SIGPWR, Spark's signal to decommission a worker, killed it at once."""
    process = supervisor(tmp_path, "Outage")
    try:
        assert process.stderr is not None
        while "paused: no heartbeat was accepted in time" not in process.stderr.readline():
            assert process.poll() is None
        (tmp_path / "renew").touch()
        while " resumed after " not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_the_log_is_json_lines_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "job.toml").write_text(JOB.format("Locked"))
    log = tmp_path / "processor.log"
    command = [sys.executable, "-m", "samza_azure", "run", str(tmp_path / "job.toml"), "--id", "p1"]
    command += ["--log-format", "json", "--log-file", str(log)]
    environment = {**os.environ, "CONNECT": "UseDevelopmentStorage=true"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {(line["processor"], line["app"]) for line in lines} == {("p1", "test")}
    assert lines[0]["level"] == "INFO" and lines[0]["message"].startswith("pid ")
    assert datetime.fromisoformat(lines[0]["time"]).tzinfo is not None

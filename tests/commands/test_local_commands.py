"""The commands that bring their own emulator: `azurite` alone, and `dev` with processors. No Spark is waited for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
app = { name = "test", main = "pipeline:app" }
job.coordinator.factory = "own.Factory"
azure.storage.connect = "${AZURE_STORAGE_CONNECTION_STRING}"
"""
OWN = """
import os
import threading

from samza_azure.errors import Ending
from samza_azure.coordinator import JobCoordinator


class Coordinator(JobCoordinator):
    is_leader, job_model = False, None

    def __init__(self, processor_id):
        self.ending = Ending(3 if processor_id == "dev-1" else 0, f"{processor_id} has ended")

    def set_listener(self, listener):
        self.listener = listener

    def start(self):
        print("it has started", flush=True)

    def stop(self):
        threading.Thread(target=self.listener.on_coordinator_stop).start()

    def report(self, report):
        pass

    def container_lost(self, reason):
        pass


class Factory:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        del os.environ["AZURE_STORAGE_CONNECTION_STRING"]  # no container stays: it says what it lacks
        return Coordinator(processor_id)
"""


def begun(*arguments: str) -> "subprocess.Popen[str]":
    command, pipe = [sys.executable, "-m", "samza_azure", *arguments], subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_emulator_alone_prints_its_connection_string_and_ends_when_it_is_told(number: signal.Signals) -> None:
    process = begun("azurite", "--port", "0")
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;")
        while "Ctrl-C ends the emulator" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_dev_starts_processors_ends_them_in_order_and_has_the_worst_of_their_codes(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "own.py").write_text(OWN)
    process = begun("dev", str(tmp_path / "job.toml"), "--processors", "2")
    try:
        assert process.stderr is not None
        while "2 processors started; what they say is in " not in (line := process.stderr.readline()):
            assert process.poll() is None
        logs = Path(line.partition("they say is in ")[2].partition(". Ctrl-C")[0])
        while not all("it has started" in log.read_text() for log in logs.glob("dev-*.log")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 3
        assert "dev-1 exited with 3: " in said and "dev-1 has ended" in said and "dev-0" not in said
    finally:
        process.kill()

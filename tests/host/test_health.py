"""The answers of a processor to health checks, and the notifications to systemd. No storage is called."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samza_azure.group.actions import CONTROL
from samza_azure.group.control import Control
from samza_azure.group.view import Denial, Failing, OwnIncarnation, Settings, View
from samza_azure.host.endpoint import Endpoint
from samza_azure.host.health import Health, Pulse, Reason, patience, readiness
from samza_azure.host.notify import notify

JOB = """
app = {{ name = "test", main = "pipeline:app" }}
job.coordinator.factory = "own.Factory"
azure.storage.connect = "${{CONNECT}}"
processor.port = {port}
"""
#: Its loop goes round until SIGUSR1 stops it. No version of a job model ever comes.
OWN = """
import os
import signal
import threading
import time

from samza_azure.coordinator import JobCoordinator


class Coordinator(JobCoordinator):
    is_leader, job_model, turns = False, None, 0

    def set_listener(self, listener):
        self.listener = listener

    def start(self):
        self.stuck = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: self.stuck.set())
        threading.Thread(target=self.live, daemon=True).start()

    def live(self):
        while not self.stuck.wait(0.1):
            self.turns += 1

    def stop(self):
        threading.Thread(target=self.listener.on_coordinator_stop).start()

    def ask(self, **how):
        pass

    def report(self, *reports):
        pass

    def container_lost(self, reason):
        pass


class Factory:
    group_in_account = True  # so it has a page, which shows what is there

    def get_job_coordinator(self, processor_id, config, metrics=None):
        del os.environ["CONNECT"]  # so the container says what it lacks, and costs no JVM
        return Coordinator()
"""


def test_a_count_that_goes_on_is_never_silent() -> None:
    pulse = Pulse()
    for count in range(5):
        pulse.tick(count)
    assert pulse.silent == 0


def test_silence_is_counted_in_ticks_and_over_with_the_next_count() -> None:
    """No turn is counted while the process is frozen, so a machine that thaws has not been silent."""
    pulse = Pulse()
    pulse.tick(7)
    for _ in range(3):
        pulse.tick(7)
    assert pulse.silent == 3
    pulse.tick(8)
    assert pulse.silent == 0


def test_patience_is_half_a_minute_or_ten_heartbeats() -> None:
    assert (patience(0.5), patience(2.0), patience(10.0)) == (30, 30, 100)


def view(*, etag: str | None = "e", accepted_at: float = 100.0) -> View:
    """A processor that has joined, and whose last heartbeat was accepted then."""
    control = Control(group_id="g", revision=1, run_id="")
    return View(Settings("p"), OwnIncarnation("life", etag=etag, accepted_at=accepted_at, control=control))


def why(
    now: float, of: View | None = None, *, adopted: bool = True, container: bool = True, leaving: bool = False
) -> Reason | None:
    """The word for why it is not ready."""
    found = readiness(of or view(), now, adopted=adopted, container=container, leaving=leaving)
    return found[0] if found is not None else None


def test_a_member_that_cannot_reach_the_control_blob_is_not_ready() -> None:
    cut_off = view()
    cut_off.calls.failing = {CONTROL: Failing(4, 0.0)}
    assert why(101.0, cut_off) is None
    cut_off.calls.failing = {CONTROL: Failing(5, 0.0)}
    assert why(101.0, cut_off) is Reason.STORAGE


def test_a_member_with_a_container_is_ready_whoever_leads() -> None:
    assert why(101.0) is None
    assert readiness(None, 101.0, adopted=True, container=True, leaving=False) is None


def test_a_processor_that_the_account_refuses_says_so_and_when_it_ends() -> None:
    refused = view()
    refused.calls.let_in, refused.calls.denied_at = True, 101.0
    refused.calls.denied = {"MergeOwnRow": Denial(101.0, 101.0, "The account refuses this key.")}
    found = readiness(refused, 110.0, adopted=True, container=True, leaving=False)
    assert found == (
        Reason.ACCESS,
        "The account refuses this key. If this lasts for 120 s, the processor ends.",
    )


def test_each_reason_not_to_be_ready() -> None:
    assert why(101.0, view(etag=None)) is Reason.JOINING
    assert why(101.0, adopted=False) is Reason.JOINING
    assert why(101.0, container=False) is Reason.CONTAINER
    hangs = view()
    hangs.work.container, hangs.work.silent_s = True, 6.0
    assert why(101.0, hangs) is Reason.CONTAINER
    assert why(101.0, leaving=True) is Reason.LEAVING
    assert why(view().permit_until) is None
    assert why(view().permit_until + 0.1) is Reason.STORAGE


@contextmanager
def listener(address: str) -> Iterator[socket.socket]:
    """What systemd has at the other end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(20)
        yield manager


def test_systemd_is_notified_through_a_path_or_an_abstract_socket(tmp_path: Path) -> None:
    name = f"samza-azure-{os.getpid()}"
    for address, told in ((str(tmp_path / "notify"), str(tmp_path / "notify")), (f"\0{name}", f"@{name}")):
        with listener(address) as manager:
            notify("READY=1", {"NOTIFY_SOCKET": told})
            assert manager.recv(100) == b"READY=1"


def test_without_systemd_or_with_one_that_has_gone_nothing_happens(tmp_path: Path) -> None:
    notify("READY=1", {})
    notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})


def prepared(directory: Path, port: int, more: str = "") -> list[str]:
    """The command that runs a processor under the coordinator above."""
    directory.mkdir()
    (directory / "job.toml").write_text(JOB.format(port=port) + more)
    (directory / "own.py").write_text(OWN)
    return [sys.executable, "-m", "samza_azure", "run", str(directory / "job.toml"), "--id", "p"]


CONNECT = {**os.environ, "CONNECT": "UseDevelopmentStorage=true"}


class Running:
    """A `samza-azure run` under the coordinator above."""

    def __init__(self, directory: Path, port: int = 0, **more: str) -> None:
        command = prepared(directory, port)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**CONNECT, **more})
        self.said = ""

    def port(self) -> int:
        """Where it listens, as it says."""
        assert self.process.stderr is not None
        while not (found := re.search(r"health on 127\.0\.0\.1, port (\d+)", self.said)):
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        return int(found[1])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server that listens on any free port."""
    made = Running(tmp_path / "one", NOTIFY_SOCKET=str(tmp_path / "notify"))
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def get(port: int, route: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{route}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_processor_answers_while_it_joins_and_notifies_systemd_of_its_life_and_end(tmp_path: Path) -> None:
    with listener(str(tmp_path / "notify")) as manager:
        made = Running(tmp_path / "one", NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            port = made.port()
            status, body = get(port, "/livez")
            assert (status, json.loads(body)["alive"]) == (200, True)
            status, body = get(port, "/readyz")
            assert (status, json.loads(body)["reason"]) == (503, "joining")
            status, body = get(port, "/metrics")
            assert status == 200 and "# TYPE python_info gauge" in body
            assert "samza_azure" in get(port, "/")[1] and get(port, "/nothing")[0] == 404
            assert manager.recv(100) == b"WATCHDOG=1"
            made.process.send_signal(signal.SIGTERM)
            while (told := manager.recv(100)) != b"STOPPING=1":
                assert told == b"WATCHDOG=1"
            assert made.process.wait(20) == 0
        finally:
            made.process.kill()
            made.process.communicate()


def test_a_second_processor_of_the_machine_takes_the_next_port(tmp_path: Path, running: Running) -> None:
    first = running.port()
    second = Running(tmp_path / "two", port=first)
    try:
        assert second.port() > first
        assert get(second.port(), "/livez")[0] == 200
    finally:
        second.process.kill()
        second.process.communicate()


def test_an_address_that_is_not_this_machines_is_a_mistake(tmp_path: Path) -> None:
    command = prepared(tmp_path / "one", 0, 'processor.host = "192.0.2.1"\n')
    done = subprocess.run(command, capture_output=True, text=True, env=CONNECT)
    assert done.returncode == 2
    assert "processor.port is 0, but no port from there on can be opened on 192.0.2.1" in done.stderr


@pytest.mark.long
def test_a_processor_whose_loop_is_stuck_says_so_within_a_minute(running: Running) -> None:
    """Half a minute of patience, and what the tests on Azurite show with less of it."""
    port = running.port()
    assert get(port, "/livez")[0] == 200
    running.process.send_signal(signal.SIGUSR1)
    begun = time.monotonic()
    while get(port, "/livez")[0] == 200:
        assert time.monotonic() < begun + 60
        time.sleep(0.5)  # the pace of asking
    assert json.loads(get(port, "/livez")[1])["silent_s"]["coordinator"] >= 30


class Stumbling(Health):
    """Of which the first tick fails."""

    def __init__(self) -> None:
        self.ticks, self.went_on = 0, threading.Event()

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == 1:
            raise RuntimeError("changed while it was read")
        self.went_on.set()

    def ready(self) -> tuple[int, dict[str, object]]:
        return 200, {}

    @property
    def alive(self) -> bool:
        return True


def test_an_endpoint_goes_on_after_a_failed_health_check() -> None:
    """Otherwise systemd gets no more notifications of a processor that works, and ends it."""
    health = Stumbling()
    Endpoint(health).start("127.0.0.1", None)
    assert health.went_on.wait(60)

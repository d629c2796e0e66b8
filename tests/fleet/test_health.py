"""What a processor answers about itself while things go wrong around it, and in it."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from samza_azure.commands.azurite.emulator import Azurite

from .group_members import GroupOnAzurite, processes
from .healthy import PATIENCE, live

PATIENCE_S = 60.0


class Watched:
    """One member, and where it listens."""

    def __init__(self, emulator: Azurite) -> None:
        self.group = GroupOnAzurite(emulator, tasks=2)
        here, there = processes.Pipe(duplex=False)
        self.process = processes.Process(target=live, args=(self.group.job, 2, there), daemon=True)
        self.process.start()
        there.close()
        self.port = here.recv()

        def hear() -> None:  # so that the pipe is never full
            with suppress(EOFError, OSError):
                while True:
                    here.recv()

        threading.Thread(target=hear, daemon=True).start()

    def send(self, number: signal.Signals) -> None:
        """A signal to it."""
        os.kill(self.process.pid or 0, number)

    def get(self, route: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{route}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until(self, route: str, holds: Callable[[int, str], bool], *, lives: bool = True) -> str:
        """Ask until the answer is as wished; it stays alive meanwhile, if that is asked."""
        begun = time.monotonic()
        while True:
            assert not lives or self.get("/livez")[0] == 200
            status, body = self.get(route)
            if holds(status, body):
                return body
            assert time.monotonic() < begun + PATIENCE_S, (route, status, body)
            time.sleep(0.05)  # the pace of asking

    def ready(self) -> None:
        """It is a member that can take tasks."""
        self.until("/readyz", lambda status, body: status == 200)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()
        self.group.close()


@pytest.fixture
def watched(emulator: Azurite) -> Iterator[Watched]:
    """A member of its own group."""
    made = Watched(emulator)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def frozen(emulator: Azurite) -> Iterator[None]:
    """The storage takes connections and answers nothing."""
    services = (emulator.pid, emulator.table_pid)
    for service in services:
        os.kill(service, signal.SIGSTOP)
    try:
        yield
    finally:
        for service in services:
            os.kill(service, signal.SIGCONT)


def test_a_processor_without_storage_is_unready_and_still_live(emulator: Azurite, watched: Watched) -> None:
    watched.ready()
    with frozen(emulator):
        body = watched.until("/readyz", lambda status, body: status == 503)
        assert json.loads(body)["reason"] == "storage"
        for _ in range(100):  # for longer than a silence may last
            assert watched.get("/livez")[0] == 200
            time.sleep(0.05)  # the pace of asking
    watched.ready()


def test_a_loop_that_is_stuck_is_dead_and_its_metrics_are_still_there(watched: Watched) -> None:
    watched.ready()
    assert "samza_azure_tasks_owned{" in watched.get("/metrics")[1]
    watched.send(signal.SIGUSR1)
    body = watched.until("/livez", lambda status, body: status == 503, lives=False)
    assert json.loads(body)["silent_s"]["coordinator"] >= PATIENCE
    assert watched.get("/metrics")[0] == 200


def test_a_main_thread_that_is_stuck_is_dead(watched: Watched) -> None:
    watched.ready()
    watched.send(signal.SIGUSR2)
    body = watched.until("/livez", lambda status, body: status == 503, lives=False)
    assert json.loads(body)["silent_s"]["main"] >= PATIENCE


def test_a_machine_that_was_frozen_is_still_live(watched: Watched) -> None:
    watched.ready()
    watched.send(signal.SIGSTOP)
    time.sleep(3 * PATIENCE)  # it is this long that makes the case
    watched.send(signal.SIGCONT)
    watched.ready()  # alive at every look until then


def test_a_processor_that_is_sent_sigterm_exits_with_0(watched: Watched) -> None:
    watched.ready()
    watched.send(signal.SIGTERM)
    watched.process.join(PATIENCE_S)
    assert watched.process.exitcode == 0

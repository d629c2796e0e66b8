"""A member that is watched, as `samza-azure run` is, with a patience of three ticks; and what makes it hang."""

import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from samza_azure.config import Config
from samza_azure.host.endpoint import Endpoint
from samza_azure.host.health import Health
from samza_azure.machine.processes import die_with_parent
from samza_azure.metrics.prometheus import on_scrape

from .member import Member

PATIENCE = 3
FOR_EVER_S = 10_000.0


def live(job: str, tasks: int, said: Connection, name: str = "p0") -> None:
    """SIGUSR1 blocks the coordinator's loop, SIGUSR2 the main thread. The first thing that is said is the port."""
    die_with_parent()
    member = Member(name, Config.parse(job), tasks, said, only_holder=False)
    steps, awake, leaving = 0, threading.Event(), threading.Event()

    def leave() -> None:
        leaving.set()
        member.coordinator.stop()

    def block() -> None:
        loop = member.coordinator._loop  # type: ignore[attr-defined]
        loop.call_soon_threadsafe(time.sleep, FOR_EVER_S)

    signal.signal(signal.SIGTERM, lambda *_: leave())
    signal.signal(signal.SIGUSR1, lambda *_: block())
    signal.signal(signal.SIGUSR2, lambda *_: time.sleep(FOR_EVER_S))
    health = Health(
        member.coordinator,
        steps=lambda: steps,
        wake=awake.set,
        container=lambda: True,
        leaving=leaving.is_set,
        patience=PATIENCE,
    )
    said.send(Endpoint(health, on_scrape()).start("127.0.0.1", 0))
    member.coordinator.start()
    while not member.ended.is_set():
        steps += 1
        awake.wait(0.5)
        awake.clear()
    os._exit(0)

"""Processes that a benchmark starts and kills, and what they say, each with the time of CLOCK_BOOTTIME.

They are forked from one process that has imported everything, so that starting one costs little and disturbs little.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, TypeVar

from samza_azure.machine.clock import boot_time
from samza_azure.machine.processes import die_with_parent

T = TypeVar("T")
PATIENCE_S = 120.0
#: The interval of looks: looking at a thousand tasks for each report would take the machine from the processes that are
#: measured.
LOOK_S = 0.02

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "__main__",
        "peers",
        "coordination",
        "samza_azure.storage.control_blob",
        "samza_azure.storage.rows",
        "samza_azure.storage.blobs",
    ]
)


@dataclass(frozen=True, slots=True)
class Said:
    """What a process said."""

    at: float
    who: str
    what: str
    about: tuple[Any, ...]


Say = Callable[..., None]
#: What a member's process runs: its name, how it says something, and what else it was given.
Life = Callable[..., None]


@dataclass(slots=True)
class Group:
    """Processes of one kind, by name."""

    life: Life
    arguments: Sequence[Any]
    said: list[Said] = field(default_factory=list)
    latest: dict[tuple[str, str], Said] = field(default_factory=dict)  # of each live process: (name, report)
    _running: dict[str, ForkServerProcess] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, *names: str, more: Sequence[Any] = ()) -> None:
        """Start processes, or start them again."""
        for name in names:
            here, there = processes.Pipe(duplex=False)
            arguments = (self.life, name, there, *self.arguments, *more)
            process = processes.Process(target=_live, args=arguments, name=name, daemon=True)
            process.start()
            there.close()
            self._running[name] = process
            threading.Thread(target=self._listen, args=(name, process, here), daemon=True).start()

    @property
    def alive(self) -> list[str]:
        """Those that were not killed."""
        return sorted(self._running)

    def send(self, name: str, number: signal.Signals) -> float:
        """A signal that ends one of them; it counts as gone from now on. When it was sent."""
        with self._lock:
            process = self._running.pop(name)
            self.latest = {key: said for key, said in self.latest.items() if key[0] != name}
        at = boot_time()
        os.kill(process.pid or 0, number)
        return at

    def wait(self, what: str, answer: Callable[[], T | None]) -> T:
        """Ask again and again until there is an answer. Its time is in the reports."""
        deadline = boot_time() + PATIENCE_S
        while boot_time() < deadline:
            with self._lock:
                found = answer()
            if found is not None:
                return found
            time.sleep(LOOK_S)
        raise SystemExit(f"Not within {PATIENCE_S:.0f} s: {what}. What was said last: {self.latest}")

    def close(self) -> None:
        """Kill them all."""
        for process in self._running.values():
            process.kill()
            process.join()

    def _listen(self, name: str, process: ForkServerProcess, pipe: Connection) -> None:
        while True:
            try:
                at, what, about = pipe.recv()
            except (EOFError, OSError):
                return
            said = Said(at, name, what, about)
            with self._lock:
                self.said.append(said)
                if self._running.get(name) is process:
                    self.latest[name, what] = said


@contextmanager
def group(life: Life, *arguments: Any) -> Iterator[Group]:
    """A group without members yet, gone afterwards."""
    made = Group(life, arguments)
    try:
        yield made
    finally:
        made.close()


def _live(life: Life, name: str, pipe: Connection, *arguments: Any) -> None:
    die_with_parent()
    lock = threading.Lock()

    def say(what: str, *about: Any) -> None:
        at = boot_time()
        with lock:
            pipe.send((at, what, about))

    life(name, say, *arguments)

"""A group of processes on an emulator, their reports, and the check that all is well again.

All is well when exactly the processes that should live do, one of them leads, every task has one owner, which runs it
and appends, and each log holds every number once, in order, written by one owner at a time.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.errors import StorageUnavailable
from samza_azure.host.status import document, read
from samza_azure.logs.position import Position
from samza_azure.storage.connection import Account
from samza_azure.stream_io.log import LogReader

from .member import PRELOAD, live

JOB = """
app = {{ name = "fleet", id = "{id}", main = "fleet:none" }}
azure.storage.connect = "{connect}"
job.coordinator.profile = "{profile}"
"""
PATIENCE_S = 60.0
#: What a member of a pinned release runs.
RUN = "live({!r}, {!r}, {!r}, here, {!r}, None, 0.0)"
#: How often the account is asked how things are.
LOOK_S = 0.1

# Members import their module by its name, wherever the tests were started.
sys.path.insert(0, str(Path(__file__).parents[__name__.count(".")]))
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(PRELOAD)


@dataclass(slots=True)
class Life:
    """One process, and what it has said: (time, what, ...)."""

    name: str
    process: "ForkServerProcess | Released"
    said: list[tuple[Any, ...]] = field(default_factory=list)
    listener: threading.Thread | None = None

    def join(self, timeout: float) -> None:
        """Wait for the end of the process, and for all that it has said."""
        self.process.join(timeout)
        if self.listener is not None and not self.alive:
            self.listener.join(timeout)

    @property
    def alive(self) -> bool:
        """Does the process exist?"""
        return self.process.is_alive()

    def of(self, what: str) -> list[tuple[Any, ...]]:
        """What it has said of one kind, without time and kind."""
        return [said[2:] for said in self.said.copy() if said[1] == what]

    def send(self, number: signal.Signals) -> None:
        """A signal to this very process."""
        os.kill(self.process.pid or 0, number)


class Released:
    """A member's process that runs the code of a pinned release, all of it: nothing of today's is on its path."""

    def __init__(self, release: Path, arguments: tuple[Any, ...], there: Connection) -> None:
        code = f"from member import *; here = Connection({there.fileno()}, readable=False); {RUN.format(*arguments)}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from multiprocessing.connection import Connection; " + code],
            env=os.environ | {"PYTHONPATH": str(release)},
            pass_fds=[there.fileno()],
        )
        self.pid = self._process.pid
        self.kill = self._process.kill

    def is_alive(self) -> bool:
        """Does the process exist?"""
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


@dataclass(slots=True)
class Written:
    """What a task's log is known to hold."""

    reader: LogReader
    end: Position = (0, 0)
    rows: list[tuple[int, str, int, int]] = field(default_factory=list)  # number, owner, generation, attempt


class GroupOnAzurite:
    """A group of its own on an emulator."""

    def __init__(self, emulator: Azurite, tasks: int, profile: str = "fast", more: str = "") -> None:
        self.emulator, self.tasks = emulator, tasks
        self.job = JOB.format(id=uuid.uuid4().hex[:8], connect=emulator.connection_string, profile=profile) + more
        self.account = Account.from_config(Config.parse(self.job).storage)
        self.account.ensure_created()
        self.runner = asyncio.Runner()
        self.members: dict[str, Life] = {}
        self.past: list[Life] = []
        self.paused: set[str] = set()
        self.former: set[str] = set()  # incarnations of processes that are no more
        self.logs: dict[str, Written] = {}

    def close(self) -> None:
        """Kill everything that is ours, by process id."""
        for life in [*self.past, *self.members.values()]:
            life.process.kill()
            life.process.join()
        self.runner.run(self.account.aclose())
        self.runner.close()
        self.account.close()

    # What is done to them.

    def start(
        self,
        *names: str,
        only_holder: bool = False,
        gate: Any = None,
        within_s: float = 0.0,
        release: Path | None = None,
    ) -> None:
        """Start processes, or start them again, of today's code or of a release. Behind a gate they wait, then join one
        after another within a time."""
        for place, name in enumerate(names):
            if name in self.members:
                self.former |= {each["incarnation"] for each in self.status()["processors"] if each["id"] == name}
                self.past.append(self.members.pop(name))
            self.members[name] = self.another(name, only_holder, gate, within_s * place / len(names), release)

    def another(
        self,
        name: str,
        only_holder: bool = False,
        gate: Any = None,
        delay_s: float = 0.0,
        release: Path | None = None,
    ) -> Life:
        """Start a process of this name, whether there is one or not."""
        here, there = processes.Pipe(duplex=False)
        if release is not None:
            life = Life(name, Released(release, (name, self.job, self.tasks, only_holder), there))
        else:
            arguments = (name, self.job, self.tasks, there, only_holder, gate, delay_s)
            process = processes.Process(target=live, name=name, args=arguments, daemon=True)
            life = Life(name, process)
            process.start()
        there.close()

        def listen() -> None:
            while True:
                try:
                    life.said.append(here.recv())
                except (EOFError, OSError):
                    return

        life.listener = threading.Thread(target=listen, daemon=True)
        life.listener.start()
        return life

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once."""
        for name in names:
            self.members[name].send(signal.SIGKILL)
        for name in names:
            self.members[name].process.join()

    def leave(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        self.members[name].send(signal.SIGTERM)
        life = self.members[name]
        life.join(PATIENCE_S)
        if life.alive:
            life.send(signal.SIGUSR1)
            life.join(5.0)
        ended = life.of("ended")
        assert ended == [(0, "")], (ended, life.of("waits for"), [said[:2] for said in life.said[-20:]])

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.members[name].send(signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.members[name].send(signal.SIGCONT)
        self.paused.discard(name)

    # How they are.

    @property
    def alive(self) -> list[str]:
        """Those whose process runs."""
        return sorted(name for name, life in self.members.items() if life.alive and name not in self.paused)

    @property
    def followers(self) -> list[str]:
        """Those that do not lead, as the account has it."""
        leader = self.status()["leader"]
        return [name for name in self.alive if name != leader]

    def status(self) -> dict[str, Any]:
        """What `samza-azure status` would show."""
        return document("fleet", *self.runner.run(read(self.account)))

    def versions(self) -> set[int]:
        """All versions of the job model that any process has adopted."""
        return {version for life in self.members.values() for (version,) in life.of("version")}

    def settled(self, also: Callable[[dict[str, Any]], bool] = lambda shown: True) -> dict[str, Any]:
        """Wait until all is well, and see that every log is exact."""
        shown: dict[str, Any] = {}

        def is_well() -> bool:
            nonlocal shown
            try:
                shown = self.status()
            except StorageUnavailable:
                return False
            return self.trouble(shown) is None and also(shown)

        self.until(lambda: f"{self.trouble(shown) or 'something else'}; the status is {shown}", is_well)
        self.exact(shown)
        return shown

    def trouble(self, shown: dict[str, Any]) -> str | None:
        """What is wrong, if anything is."""
        members = sorted(each["id"] for each in shown["processors"] if each["state"] not in ("DEAD", "LEFT"))
        if members != self.alive:
            return f"{members} are members, {self.alive} live"
        if self.former & {each["incarnation"] for each in shown["processors"] if each["id"] in members}:
            return "a former life is still a member"
        if shown["leader"] not in members:
            return f"{shown['leader']} leads"
        if len(shown["tasks"]) != self.tasks:
            return f"there are {len(shown['tasks'])} tasks"
        for task in shown["tasks"]:
            if task["owner"] not in members or task["phase"] != "RUNNING":
                return f"{task['name']} is {task['phase']} at {task['owner']}"
        shares = [len(each["tasks"]) for each in shown["processors"] if each["id"] in members]
        return None if max(shares) - min(shares) <= 1 else f"the shares are {shares}"

    def exact(self, shown: dict[str, Any], more: int = 1) -> None:
        """Every owner appends this many rows from now on. The logs are exact."""
        seen = {task["name"]: len(self.log(shown, task).rows) for task in shown["tasks"]}
        for task in shown["tasks"]:
            self._exact(shown, task, seen[task["name"]] + more)

    def _exact(self, shown: dict[str, Any], task: dict[str, Any], least: int) -> None:
        name, now = task["name"], (task["owner"], task["generation"])
        told = {number for of, number in self.told() if of == name}

        def goes_on() -> bool:
            rows = self.log(shown, task).rows
            return len(rows) >= least and rows[-1][1:3] == now

        self.until(lambda: f"{now} appends too little to {name}", goes_on)
        rows = self.logs[name].rows
        writers = [(generation, attempt) for _, _, generation, attempt in rows]
        assert [number for number, *_ in rows] == list(range(len(rows))), name
        assert writers == sorted(writers), name
        assert len({(generation, owner) for _, owner, generation, _ in rows}) == len({each for each, _ in writers}), (
            name
        )
        assert told <= set(range(len(rows))), f"the end of {name} was lost"

    def told(self) -> Iterator[tuple[str, int]]:
        """All appends that were reported to a process as successful."""
        for life in [*self.past, *self.members.values()]:
            yield from life.of("wrote")

    def log(self, shown: dict[str, Any], task: dict[str, Any]) -> Written:
        """A task's log, read on to its end."""
        prefix = f"runs/{shown['run_id']}/{task['name']}"
        log = self.logs.setdefault(task["name"], Written(LogReader(self.account.blobs(), prefix)))
        while True:
            found = log.reader.scan(log.end)
            log.rows += [tuple(json.loads(row)) for row in log.reader.fetch(found.parts)]
            log.end = found.end
            if found.at_end:
                return log

    def until(self, what: Callable[[], str], holds: Callable[[], bool]) -> None:
        """Wait until it holds; say what was, if it never does."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, what()
            for life in self.members.values():
                assert all(code == 0 for code, _ in life.of("ended")), life.said[-20:]
            time.sleep(LOOK_S)  # the pace of asking


def incarnations(shown: dict[str, Any]) -> dict[str, str]:
    """Which life of each processor is known."""
    return {each["id"]: each["incarnation"] for each in shown["processors"]}


def undisturbed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The tasks that never moved in between."""
    generations = {task["name"]: (task["owner"], task["generation"]) for task in before["tasks"]}
    return {task["name"] for task in after["tasks"] if generations[task["name"]] == (task["owner"], task["generation"])}

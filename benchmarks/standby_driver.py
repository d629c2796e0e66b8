"""Two processors on one Spark cluster, one with the only task, which is killed: how soon the other one appends.

The cluster has two workers of one core each, on this machine. With dynamic allocation each processor may take both
cores, and the one without a task has none. Without it there are two ways to share them: one core each, all the time;
or both for each, and then who comes first has them. The stage leaves out what it has had, in two partitions, while rows
come in; the profile is `default` with doorbells, so that a killed process is noticed at once. The killed one comes back
as the standby before the next one is killed. Counted from just before the kill (kill -9 of a processor's whole tree):
until the account shows that the task runs, until the master has given the other application cores, until rows are
appended.

python benchmarks/standby_driver.py [--quick]
"""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from batch_cores import cluster, free_port
from common import CONNECT, BenchJob, Claim, main, meanwhile, middle, say, scratch

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.stream_io.log import LogReader

NAMES = ("one", "two")
TASK = "once-0"
KILLS, PATIENCE_S = 3, 120.0
REST_S = 5.0
ROWS, FLUSH_EVERY_S = 200, 0.5
JOB = """
[app]
name = "standby"
main = "pipeline:app"
[job.coordinator]
profile = "default"
[processor]
port = 0
bells = true
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
[task]
commit.ms = 200
[streams.rows]
key = "key"
schema = "key string, ts timestamp"
event_time = "ts"
[streams.seen]
[stages.once]
partitions = 2
[spark]
master = "{master}"
executor.cores = 1
executor.memory = "600m"
driver.memory = "700m"
"""
PIPELINE = """
from pyspark.sql import DataFrame
from samza_azure import Application

app = Application()


@app.stage("rows", output="seen")
def once(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 day").dropDuplicates(["key", "ts"])
"""
#: How the processors share two cores, and the settings for it.
WAYS = {
    "dynamic allocation, both cores for each": "cores.max = 2\ndynamicAllocation.enabled = true\n",
    "fixed, one core for each": "cores.max = 1\n",
    "fixed, both cores for each": "cores.max = 2\n",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Seconds from a kill, and how many cores the other one had before."""

    runs_s: float
    cores_s: float
    appended_s: float
    cores_before: int


def measure(quick: bool) -> list[Claim]:
    """Each way in turn."""
    claims = []
    for way, settings in WAYS.items():
        found = killed(settings, 1 if quick else KILLS, way)
        runs, cores, appended = (
            middle([getattr(each, name) for each in found]) for name in ("runs_s", "cores_s", "appended_s")
        )
        least, most = (pick(each.appended_s for each in found) for pick in (min, max))
        claims += [
            Claim(f"{way}: cores of the standby", f"{max(each.cores_before for each in found)}"),
            Claim(
                f"{way}: killed until the task runs; until the other one has cores; until it has appended",
                f"{runs:.1f} s; {cores:.1f} s; {appended:.1f} s (median of {len(found)}, {least:.1f} to {most:.1f} s)",
            ),
        ]
    return claims


def killed(settings: str, times: int, way: str) -> list[Kill]:
    """One fleet; what each kill took."""
    page = free_port()
    with cluster(2, page) as master, scratch() as directory, Azurite() as emulator:
        around = BenchJob(directory, emulator, JOB.format(master=master) + settings, PIPELINE)
        fleet = Fleet(around.job, directory / "logs", {CONNECT: emulator.connection_string})
        found = []
        try:
            fleet.start(NAMES[0])
            with rows_coming(around):
                fleet.wait_until("its task runs", all_running, PATIENCE_S)
                fleet.start(NAMES[1])
                for _ in range(times):
                    found.append(_killed(around, fleet, page))
                    say(f"{way}: {found[-1]}")
        finally:
            fleet.stop()
            around.close()
    return found


def _killed(around: BenchJob, fleet: Fleet, page: int) -> Kill:
    """Wait until both are there, kill the one with the task, and let it come back."""
    shown = fleet.wait_until("both are there", _both, PATIENCE_S)
    _until("both applications", lambda: len(applications(page)) == 2)
    log = LogReader(around.account.blobs(), f"runs/{shown['run_id']}/{TASK}")
    before = log.scan((0, 0))
    _until("rows", lambda: log.scan(before.end).rows > 0)
    time.sleep(REST_S)
    [victim] = {task["owner"] for task in shown["tasks"]}
    cores = [each["cores"] for each in applications(page)]
    begun = time.monotonic()
    os.killpg(fleet.processes[victim].pid, signal.SIGKILL)
    fleet.processes[victim].wait()
    end = log.scan((0, 0)).end  # of what was under way
    holds: dict[str, Callable[[], bool]] = {
        "runs_s": lambda: _runs(fleet.status(), victim),
        "cores_s": lambda: len(found := applications(page)) == 1 and found[0]["cores"] > 0,
        "appended_s": lambda: log.scan(end).rows > 0,
    }
    took: dict[str, float] = {}

    def all_hold() -> bool:
        for name, each in holds.items():
            if name not in took and each():
                took[name] = time.monotonic() - begun
        return len(took) == len(holds)

    _until("the other one has appended", all_hold)
    fleet.start(victim)
    return Kill(**took, cores_before=min(cores))


def _both(shown: dict[str, Any]) -> bool:
    """Whether one has the task, and the other one has analysed the pipeline."""
    there = [each["id"] for each in shown["processors"] if each["ready"] and each["state"] == "ACTIVE"]
    return all_running(shown) and sorted(there) == sorted(NAMES)


def _runs(shown: dict[str, Any], victim: str) -> bool:
    return all_running(shown) and victim not in {task["owner"] for task in shown["tasks"]}


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"Not within {PATIENCE_S:.0f} s: {what}.")
        time.sleep(0.03)  # the pace of asking


def applications(page: int) -> list[dict[str, Any]]:
    """Those that the master has, with their cores."""
    with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=20) as said:
        found: list[dict[str, Any]] = json.load(said)["activeapps"]
        return found


@contextmanager
def rows_coming(around: BenchJob) -> Iterator[None]:
    """Rows of a hundred keys come in at an even pace, meanwhile."""
    source, numbers = around.source("rows", key=("key",)), count()

    def produce() -> None:
        at = pa.scalar(1_700_000_000_000_000 + next(numbers) * 1_000_000, pa.timestamp("us", "UTC"))
        source.write(pa.table({"key": [f"{each % 100}" for each in range(ROWS)], "ts": pa.repeat(at, ROWS)}))
        source.flush()

    with meanwhile(produce, FLUSH_EVERY_S):
        yield


if __name__ == "__main__":
    main(measure, __doc__)

"""A process of a Spark job is killed: how soon all its tasks run elsewhere, in each profile, by each means.

Three processors on Azurite that have warmed up, on the example's two stages: as they are, with doorbells, with a
replica of each task with state, with both. The victim is one that does not lead; it comes back, and all comes to rest,
before the next one is killed. Counted as in `fail_over.py`. Beside them stands a plain Spark job with the same two
queries, which a supervisor starts again at once: until its queries run, and until both have finished a batch.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
from common import CONNECT, EXAMPLE, Azurite, Claim, flights, main, meanwhile, middle, say, scratch

from samza_azure.commands.fleet import Fleet, all_running

NAMES = ("one", "two", "three")
#: Profile and goal, without doorbells and with them.
GOALS_S = {"default": (9.0, 4.0), "fast": (2.5, 2.5)}
PATIENCE_S = 240.0
REST_S = 12.0  # beyond the last task's start: standbys warm up, replicas follow
ROWS_A_FILE, FILE_EVERY_S = 300, 0.5


def measure(quick: bool) -> list[Claim]:
    """Each way in turn, several kills each."""
    return [*of_default(quick), *of_fast(quick), *with_replicas(quick)]


def of_default(quick: bool) -> list[Claim]:
    """`default`, as it is and with doorbells; plain Spark beside it."""
    times = _times(quick)
    claims = _by_each_means("default", times, replicas=0)
    runs, appended = zip(*(supervised() for _ in range(times)), strict=True)
    figure = f"{middle(runs):.1f} s, {middle(appended):.1f} s (median of {times})"
    return [*claims, Claim("plain Spark, started again at once: until it runs, until it has finished batches", figure)]


def of_fast(quick: bool) -> list[Claim]:
    """`fast`, as it is and with doorbells."""
    return _by_each_means("fast", _times(quick), replicas=0)


def with_replicas(quick: bool) -> list[Claim]:
    """Each profile with a replica of each task with state."""
    return [claim for profile in GOALS_S for claim in _by_each_means(profile, _times(quick), replicas=1)]


def _times(quick: bool) -> int:
    return 1 if quick else 3


def _by_each_means(profile: str, times: int, *, replicas: int) -> list[Claim]:
    claims = []
    for bells, goal in zip((False, True), GOALS_S[profile], strict=True):
        took = killed(profile, times, bells=bells, replicas=replicas)
        means = f"{'doorbells' if bells else 'no doorbells'}, {'a replica each' if replicas else 'no replicas'}"
        claims.append(
            Claim(
                f"`{profile}`, {means}: killed until all its tasks run",
                f"{middle(took):.1f} s (median of {times}, {min(took):.1f} to {max(took):.1f} s)",
                f"{goal:g} s",
                middle(took) <= goal,
            )
        )
    return claims


def killed(profile: str, times: int, *, bells: bool, replicas: int) -> list[float]:
    """One fleet; seconds of each kill."""
    with scratch() as directory, Azurite() as emulator:
        (directory / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        text = (EXAMPLE / "job.toml").read_text().replace('profile = "default"', f'profile = "{profile}"')
        for name in NAMES:
            processor = f"\n[processor]\nport = {_free_port()}\nbells = {str(bells).lower()}\n"
            standby = f"\n[job.standby]\nreplicas = {replicas}\n"
            (directory / f"{name}.toml").write_text(text + processor + standby)
        fleet = Fleet(directory / "one.toml", directory / "logs", {CONNECT: emulator.connection_string})
        try:
            for name in NAMES:
                _start(fleet, name)
            return [_moved(fleet, f"{profile}, bells {bells}, replicas {replicas}") for _ in range(times)]
        finally:
            fleet.stop()


def _start(fleet: Fleet, name: str) -> None:
    """Each has a port of its own, so a job file of its own."""
    fleet.job = fleet.job.with_name(f"{name}.toml")
    fleet.start(name)


def _moved(fleet: Fleet, what: str) -> float:
    """Kill one that does not lead; seconds until the others run everything. Then it comes back."""
    fleet.wait_until(
        "all run tasks",
        lambda shown: (
            all_running(shown)
            and {task["owner"] for task in shown["tasks"]} == set(NAMES)
            and all(each["batches_behind"] is not None for task in shown["tasks"] for each in task["replicas"])
        ),
        PATIENCE_S,
    )
    time.sleep(REST_S)
    shown = fleet.status()
    victim = next(name for name in NAMES if name != shown["leader"])
    begun = time.monotonic()
    os.killpg(fleet.processes[victim].pid, signal.SIGKILL)
    fleet.wait_until(
        "the others run all tasks",
        lambda shown: all_running(shown) and victim not in {task["owner"] for task in shown["tasks"]},
        PATIENCE_S,
    )
    took = time.monotonic() - begun
    say(f"{what}: {took:.1f} s")
    fleet.processes[victim].wait()
    _start(fleet, victim)
    return took


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def supervised() -> tuple[float, float]:
    """Seconds from the kill of a plain Spark job until its next process runs both queries, and has finished batches."""
    with scratch() as work:
        (work / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        (work / "inbox").mkdir()
        with _files_coming(work / "inbox"):
            process = _plain(work)
            _said(process, "finished")
            time.sleep(REST_S)
            begun = time.monotonic()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process = _plain(work)
            try:
                _said(process, "runs")
                runs = time.monotonic() - begun
                _said(process, "finished")
                finished = time.monotonic() - begun
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    say(f"plain Spark: runs after {runs:.1f} s, has finished batches after {finished:.1f} s")
    return runs, finished


def _plain(work: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), "supervised", str(work)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _said(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line) == word:
            return
    raise SystemExit(f"The job ended with {process.wait()}.")


@contextmanager
def _files_coming(inbox: Path) -> Iterator[None]:
    """Files with flights come in at an even pace, meanwhile."""
    rows, numbers = flights(1), count()

    def produce() -> None:
        number, fresh = next(numbers), inbox.parent / "fresh"
        pq.write_table(rows.slice(number * ROWS_A_FILE, ROWS_A_FILE), fresh)
        fresh.rename(inbox / f"{number}.parquet")

    with meanwhile(produce, FILE_EVERY_S):
        yield


if __name__ == "__main__":
    main(measure, __doc__)

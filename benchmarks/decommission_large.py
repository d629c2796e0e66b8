"""One of three processors leaves, with 12 tasks that have 100 MB of state each: told beforehand, and killed.

Real processors on the emulator, the state in RocksDB, 240 rows a second meanwhile, which each task appends every 15
seconds: with batches every five, two cores are busy for 84 % of the time, and those that take over wait for them. With
a replica of each task, and without. What is measured is that of `decommission.py`, and from a task's release to its
first append elsewhere: how much later than usual its rows come. Beside it stands how far apart a task's appends are
while nobody leaves. Who has left comes back, and all is warm again, before the next one goes. At the end the run is
drained, and the counted rows must be those that were produced.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from common import CONNECT, Claim, main, middle, say
from decommission import NAMES, watch
from replicas import PIPELINE, TS

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.storage.connection import Account
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.source_stream import SourceWriter

GOAL_S, PAUSE_GOAL_S = 10.0, 1.0
TASKS, MB, QUICK_MB = 12, 100, 5
#: Long keys: the size of a state is what matters here, and rows cost processor time.
KEY_BYTES, FLUSH_ROWS = 4_000, 3_000
ROWS_A_FLUSH, FLUSH_EVERY_S, APPEND_EVERY_S = 120, 0.5, 15
PATIENCE_S = 900.0
COMMAND = (sys.executable, "-P", "-m", "samza_azure")
JOB = """
[app]
name = "decommission-large"
main = "pipeline:app"
[job]
standby.replicas = {replicas}
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
[task]
state = "rocksdb"
commit.ms = {commit_ms}
[streams.rows]
partitions = {tasks}
schema = "key string, ts timestamp"
event_time = "ts"
key = "key"
[streams.counted]
"""


def measure(quick: bool) -> list[Claim]:
    """Each of both with replicas and without, by turns, in one fleet of each kind."""
    claims = []
    for replicas in (1,) if quick else (1, 0):
        with fleet_with_state(replicas, quick) as around:
            told, killed = [], []
            for _ in range(1 if quick else 2):
                told.append(around.leave(kill=False))
                killed.append(around.leave(kill=True))
            produced, counted = around.produced, around.drained()
        what = f"{'with a replica of each' if replicas else 'without replicas'}: "
        handed_over = middle([each["handed_over_s"] for each in told])
        repeated = sum(each["repeated"] for each in told)
        pauses = [pause for each in told for pause in each["pauses"]]
        waited = [wait for each in told for wait in each["waited"]]
        claims += [
            Claim(
                f"{what}notice of 30 s, all tasks handed over after",
                f"{handed_over:.1f} s (median of {len(told)})",
                f"{GOAL_S:g} s",
                handed_over <= GOAL_S,
            ),
            Claim(
                f"{what}pause of a task, release to first append",
                _spread(waited),
                f"{PAUSE_GOAL_S:g} s" if replicas else "",
                middle(waited) <= PAUSE_GOAL_S if replicas else None,
            ),
            Claim(f"{what}the same, append to append", _spread(pauses)),
            Claim(f"{what}the same of any task while nobody leaves", _spread(around.intervals)),
            Claim(f"{what}kill -9, pause of a task", _spread([pause for each in killed for pause in each["pauses"]])),
            Claim(f"{what}input rows repeated after the notices", f"{repeated}", "0", repeated == 0),
            Claim(f"{what}rows counted, of those produced", f"{counted:,} of {produced:,}", "all", counted == produced),
        ]
    return claims


def _follows(replica: dict[str, Any]) -> bool:
    return replica["batches_behind"] is not None and replica["batches_behind"] < 60  # it looks now and then


def _spread(values: list[float]) -> str:
    return f"{middle(values):.1f} s, {max(values):.1f} s at most ({len(values)})"


@dataclass
class Around:
    """A fleet whose tasks have their state, and what it is fed."""

    fleet: Fleet
    source: SourceWriter
    produced: int = 0
    intervals: list[float] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def flush(self, rows: int, key_bytes: int) -> None:
        """Put rows in with keys that no row has had, as random as keys can be."""
        keys = [self.dice.randbytes(key_bytes // 2).hex() for _ in range(rows)]
        self.source.write(pa.table({"key": keys, "ts": pa.repeat(TS, rows)}))
        self.source.flush()
        self.produced += rows

    def feed(self) -> None:
        """One flush of the even pace that goes on meanwhile."""
        self.flush(ROWS_A_FLUSH, 40)
        time.sleep(FLUSH_EVERY_S)

    def warm(self) -> dict[str, Any]:
        """Feed until all processors have an even share, all tasks run and keep up, and all replicas follow."""
        until = time.monotonic() + PATIENCE_S
        since = None
        while True:
            self.feed()
            shown = self.fleet.status()
            shares = [len(each["tasks"]) for each in shown["processors"]]
            even = sorted(shares) == [TASKS // len(NAMES)] * len(NAMES)
            since = (since or time.monotonic()) if even and all_running(shown) and self._keeps_up(shown) else None
            if since is not None and time.monotonic() > since + APPEND_EVERY_S:
                return shown
            assert time.monotonic() < until, shown

    def _keeps_up(self, shown: dict[str, Any]) -> bool:
        wanted = len(shown["tasks"]) if self.fleet.config.standby_replicas else 0
        has = sum(_follows(each) for task in shown["tasks"] for each in task["replicas"])
        progress = [task["progress"] for task in shown["tasks"]]
        return has >= wanted and all(each and sum(each["behind"].values()) < 100_000 for each in progress)

    def leave(self, *, kill: bool) -> dict[str, Any]:
        """One that does not lead leaves, and comes back."""
        shown = self.warm()
        self._watch_intervals()
        victim = next(each for each in shown["processors"] if each["id"] != shown["leader"])
        result = watch(self.fleet, victim, self.feed, kill=kill)
        gone = self.fleet.processes[victim["id"]]
        gone.kill()
        gone.wait()
        self.fleet.start(victim["id"])
        return result

    def _watch_intervals(self) -> None:
        """How far apart the appends of each task are."""
        seen: dict[str, list[int]] = {}
        until = time.monotonic() + 2 * APPEND_EVERY_S + 5
        while time.monotonic() < until:
            self.feed()
            for task in self.fleet.status()["tasks"]:
                at = (task["progress"] or {}).get("appended_ms")  # None: it has an owner that has appended nothing yet
                if at is not None and at not in seen.setdefault(task["name"], []):
                    seen[task["name"]].append(at)
        self.intervals += [(b - a) / 1000 for each in seen.values() for a, b in pairwise(each)]

    def drained(self) -> int:
        """The rows that the output says there were, after a drain. What it had not read would be the next run's."""
        self.fleet.wait_until("all rows are read", lambda shown: self.fleet.unread(shown) == 0, PATIENCE_S)
        job = str(self.fleet.job)
        command = [*COMMAND, "drain", job, "--wait"]
        subprocess.run(command, env=self.fleet.environment, check=True, stdout=subprocess.DEVNULL)
        out = self.fleet.directory / "counted.parquet"
        subprocess.run([*COMMAND, "export", job, "counted", "--to", str(out)], env=self.fleet.environment, check=True)
        return int(pc.sum(pq.read_table(out, columns=["count"])["count"]).as_py())


@contextmanager
def fleet_with_state(replicas: int, quick: bool) -> Iterator[Around]:
    """Three processors, whose tasks are given their state."""
    each_mb = QUICK_MB if quick else MB
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.toml"
        job.write_text(JOB.format(replicas=replicas, tasks=TASKS, commit_ms=1000 * APPEND_EVERY_S))
        (Path(folder) / "pipeline.py").write_text(PIPELINE)
        fleet = Fleet(job, Path(folder) / "logs", {CONNECT: azurite.connection_string})
        account = Account.from_config(fleet.config.storage)
        account.ensure_created()
        schema = arrow_schema(fleet.config.streams["rows"].schema or "")
        source = SourceWriter(
            account.blobs(), account.hints(), "rows", TASKS, schema=schema, event_time="ts", key="key"
        )
        around = Around(fleet, source)
        try:
            for name in NAMES:
                fleet.start(name)
            for done in range(0, TASKS * each_mb * 1_000_000, KEY_BYTES * FLUSH_ROWS):
                around.flush(FLUSH_ROWS, KEY_BYTES)
                if done % (100 * KEY_BYTES * FLUSH_ROWS) == 0:
                    say(f"{done / 1e6:.0f} MB of keys are produced")
            yield around
        finally:
            fleet.stop()
            source.close()
            account.close()


if __name__ == "__main__":
    main(measure, __doc__)

"""Processors in cgroups with little memory and without swap, whose jobs take all of it, in two ways.

A pipeline that takes memory outside Java: the kernel kills its container, and its processor says so and starts the next
one. A job whose state grows: Java's heap, whose size follows from the limit, is full before the cgroup is, so the JVM
ends by itself and the kernel kills nothing. After three such ends in a row the processor ends with 1 and says why, its
task is moved, and the other processor ends in the same way. What happens to the memory is printed.
Needs root and a machine whose cgroups may be made. About six minutes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from samza_azure.commands.azurite.emulator import Azurite  # noqa: E402
from samza_azure.commands.dev import VARIABLE  # noqa: E402
from samza_azure.commands.fleet import Fleet  # noqa: E402

MIB = 1 << 20
GREEDY_MIB, GROWING_MIB = 900, 1_280
PATIENCE_S, PRINTED_EVERY_S = 900.0, 5.0
JOB = """
app = {{ name = "greedy", id = "{id}", main = "pipeline:app" }}
azure.storage.connect = "${{{variable}}}"
processor.dir = "{directory}/state"
"""
GREEDY = """
held = []
while True:
    held.append(b"x" * (16 << 20))
"""
#: Each key holds several kilobytes of state, which no watermark ever removes; in the log they are a few bytes.
GROWING = """
from pyspark.sql import functions as F
from samza_azure import Application

app = Application()


@app.stage("seen", output="counts")
def count(rows):
    wide = rows.withWatermark("ts", "3650 days").withColumn("wide", F.repeat("key", 400))
    return wide.groupBy("key", F.window("ts", "1 day")).agg(F.max("wide").alias("wide"))
"""
GROWS = """
task = { restart.limit = 2, batch.bytes = "256 KiB" }
[streams.seen]
partitions = 1
schema = "key string, ts timestamp"
key = "key"
event_time = "ts"
"""
KEYS = 400_000


class Cgroup:
    """A cgroup with a limit."""

    def __init__(self, name: str, limit_mib: int) -> None:
        top = Path("/sys/fs/cgroup/memory")
        self.is_first = top.exists()
        self.folder = (top if self.is_first else top.parent) / f"samza-azure-{os.getpid()}-{name}"
        self.folder.mkdir()
        limits = {"memory.limit_in_bytes": limit_mib * MIB}
        if not self.is_first:
            limits = {"memory.max": limit_mib * MIB, "memory.swap.max": 0}
        for file, value in limits.items():
            (self.folder / file).write_text(str(value))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until = time.monotonic() + 10
        while (self.folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.1)  # children die after their parent
        self.folder.rmdir()

    def within(self, command: list[str]) -> list[str]:
        """The command, run in here."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs; exec "$@"', "sh", *command]

    @property
    def used(self) -> int:
        """Bytes that are in use, without the page cache, which the kernel takes back."""
        name = "total_rss" if self.is_first else "anon"
        return self._number("memory.stat", rf"^{name} (\d+)$")

    @property
    def used_with_cache(self) -> int:
        """Bytes that count against the limit now."""
        return int((self.folder / ("memory.usage_in_bytes" if self.is_first else "memory.current")).read_text())

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed because memory ran out."""
        return self._number("memory.oom_control" if self.is_first else "memory.events", r"^oom_kill (\d+)$")

    def _number(self, file: str, pattern: str) -> int:
        found = re.search(pattern, (self.folder / file).read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


def machine_kills() -> int:
    """How many processes the kernel has killed because memory ran out since the machine started, in cgroups or not."""
    found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(found[1]) if found is not None else 0


class Members(Fleet):
    """Processors that each have a cgroup, and so a heap of their own size."""

    def __init__(self, job: Path, directory: Path, environment: dict[str, str], groups: dict[str, Cgroup]) -> None:
        super().__init__(job, directory, environment)
        self.groups = groups

    def start(self, processor_id: str, *options: str) -> None:
        """As ever, but in its cgroup."""
        super().start(processor_id, *options)
        process = self.processes[processor_id]
        (self.groups[processor_id].folder / "cgroup.procs").write_text(str(process.pid))


def main() -> None:
    """Both."""
    greedy()
    growing()


def greedy() -> None:
    """Until it has said so twice: the next container was started, and the supervisor lives."""
    with (
        Cgroup("greedy", GREEDY_MIB) as cgroup,
        Azurite() as emulator,
        tempfile.TemporaryDirectory() as directory,
    ):
        job = made(Path(directory), GREEDY, "")
        command = [sys.executable, "-m", "samza_azure", "run", str(job), "--log-format", "json"]
        environment = {**os.environ, VARIABLE: emulator.connection_string}
        with subprocess.Popen(cgroup.within(command), stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            seen = 0
            for line in process.stderr:
                said = json.loads(line)["message"] if line.startswith("{") else line
                if "the kernel killed it" in said and "the next one starts" in said:
                    print(said.strip(), flush=True)
                    seen += 1
                if seen == 2:
                    break
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
        assert seen == 2, "its processor ended, or never said so"
        assert process.returncode == 0


def growing() -> None:
    """Until both processors have had the task, and have ended."""
    killed_before = machine_kills()
    with ExitStack() as stack:
        groups = {name: stack.enter_context(Cgroup(name, GROWING_MIB)) for name in ("p0", "p1")}
        emulator = stack.enter_context(Azurite())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = made(directory, GROWING, GROWS)
        environment = {VARIABLE: emulator.connection_string}
        fleet = Members(job, directory / "logs", environment, groups)
        stack.callback(fleet.stop)
        write(fleet, directory / "seen.parquet")
        for name in groups:
            fleet.start(name)
        owners = watched(fleet)
        codes = fleet.exit_codes(PATIENCE_S)
        last = {name: fleet.log_file(name).read_text().rstrip().splitlines()[-1] for name in groups}
        for name, line in last.items():
            print(f"{name} ended with {codes[name]}: {line}")
        told = {row["id"]: row["failure"] for row in fleet.status()["processors"]}
        print(f"the account says: {told}")
        kills = sum(cgroup.kills for cgroup in groups.values())
        outside = machine_kills() - killed_before - kills
        print(f"killed by the kernel: {kills} in the two cgroups, {outside} elsewhere on the machine")
        assert owners == set(groups), "the task was not moved"
        assert set(codes.values()) == {1}
        assert all("ran out of memory" in line and "spark.driver.memory" in line for line in last.values())
        assert {name: each["exit_code"] for name, each in told.items()} == codes
        assert all("ran out of memory" in each["message"] for each in told.values())
        assert kills == outside == 0


def watched(fleet: Members) -> set[str]:
    """Print owner, batch and memory until no processor runs; return the owners."""
    begun, owners = time.monotonic(), set[str]()
    print(f"{'seconds':>8}{'task':>12}{'owner':>7}{'batch':>7}{'p0 MiB':>9}{'p1 MiB':>9}  of {GROWING_MIB}")
    printed_at = -PRINTED_EVERY_S
    while fleet.alive():
        shown, after = fleet.status(), time.monotonic() - begun
        assert after < PATIENCE_S, shown
        owners |= {task["owner"] for task in shown["tasks"] if task["owner"] is not None}
        if after >= printed_at + PRINTED_EVERY_S:
            printed_at = after
            used = "".join(f"{cgroup.used / MIB:9,.0f}" for cgroup in fleet.groups.values())
            for task in shown["tasks"]:
                print(
                    f"{after:8.0f}{task['phase']:>12}{task['owner'] or '':>7}{task['batch'] or 0:7}{used}", flush=True
                )
        time.sleep(0.5)  # the pace of asking
    return owners


def write(fleet: Fleet, path: Path) -> None:
    """One row per key."""
    keys = pa.array([f"key-{number:08}" for number in range(KEYS)])
    at = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * KEYS, pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"key": keys, "ts": at}), path)
    command = [sys.executable, "-m", "samza_azure", "produce", str(fleet.job), "seen", str(path), "--key", "key"]
    subprocess.run(command, env=fleet.environment, check=True, capture_output=True)


def made(directory: Path, pipeline: str, more: str) -> Path:
    """A job's folder with both files; the path of the job file."""
    job = directory / "job.toml"
    job.write_text(JOB.format(id=uuid.uuid4().hex[:8], variable=VARIABLE, directory=directory) + more)
    (directory / "pipeline.py").write_text(pipeline)
    return job


if __name__ == "__main__":
    main()

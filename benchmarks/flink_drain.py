"""Our own drain and Flink's, in turns: two stages with four tasks each, one processor beside a local cluster.

pip install apache-flink, in a virtual environment of its own, then
python benchmarks/flink_drain.py --flink FOLDER [--rounds 8]      # the folder of that environment

Both count and average flights by carrier and window, 4,000 rows a second for half a minute, and are drained while more
arrive; all windows are open then. Flink is drained by its command line (`flink stop --drain`) and by one REST call;
measured is the time until the job is FINISHED. Ours is the example, drained by `drain --wait`; measured is the time
until the command and the processor have ended. Each drain of Flink's is looked at: without rows in the sink it has
fired nothing, and the script fails. Ours is compared with a batch by the tests.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from common import PATIENCE_S, Claim, flights, middle, p95, say, scratch, show
from drain import ARRIVING_RATE, ARRIVING_S, HERE, Load, Side
from drain import drain as drain_ours

from samza_azure.commands.azurite.emulator import Azurite

SETTINGS = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.memory.process.size": "1024m",
    "taskmanager.memory.process.size": "1536m",
    "taskmanager.numberOfTaskSlots": "4",
    "parallelism.default": "4",
    "execution.checkpointing.interval": "1s",
}
JOB = """
CREATE TABLE flights (
  number INT, delay DOUBLE, ts AS LOCALTIMESTAMP, carrier AS MOD(number, 16),
  WATERMARK FOR ts AS ts - INTERVAL '1' MINUTE
) WITH ('connector' = 'datagen', 'rows-per-second' = '{rate}', 'fields.number.min' = '0', 'fields.number.max' = '999');
CREATE TABLE delays (hour_begun TIMESTAMP(3), carrier INT, flights BIGINT, delay DOUBLE)
  WITH ('connector' = 'filesystem', 'path' = '{sink}', 'format' = 'csv');
INSERT INTO delays
  SELECT window_start, carrier, COUNT(*), AVG(delay)
  FROM TABLE(TUMBLE(TABLE flights, DESCRIPTOR(ts), INTERVAL '1' HOUR)) WHERE delay IS NOT NULL
  GROUP BY window_start, window_end, carrier;
"""
SUBMIT = """
from pyflink.table import EnvironmentSettings, TableEnvironment

tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for statement in '''{sql}'''.split(";"):
    if statement.strip():
        tables.execute_sql(statement)
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A job manager and a task manager of this machine."""

    home: Path
    directory: Path
    port: int
    processes: list[int] = field(default_factory=list)  # and what is below them

    @property
    def environment(self) -> dict[str, str]:
        """What Flink's scripts read."""
        folders = {"FLINK_HOME": self.home, "FLINK_CONF_DIR": self.directory / "conf"}
        folders |= {"FLINK_LOG_DIR": self.directory / "log", "FLINK_PID_DIR": self.directory}
        return {**os.environ, **{name: str(folder) for name, folder in folders.items()}}

    def command(self, script: str, *arguments: str) -> list[str]:
        """One of the scripts."""
        return ["bash", str(self.home / "bin" / script), *arguments]

    def ask(self, path: str, send: dict[str, Any] | None = None) -> Any:
        """The REST interface's answer."""
        data = None if send is None else json.dumps(send).encode()
        asked = urllib.request.Request(
            f"http://localhost:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)

    def until(self, path: str, holds: Any) -> float:
        """Ask until it holds; when that was."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds(self.ask(path)):
                    return time.monotonic()
            except OSError:
                pass  # not up yet
            if time.monotonic() > deadline:
                raise SystemExit(f"Flink's {path} is not as expected within {PATIENCE_S:.0f} s.")
            time.sleep(0.02)


@contextmanager
def cluster(environment: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[Cluster]:
    """Started, and gone at the end."""
    home = next(environment.glob("lib/python3*/site-packages/pyflink"), None)
    if home is None:
        raise SystemExit(f"There is no apache-flink in {environment}. pip install apache-flink there.")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-flink-"))
    made = Cluster(home, directory, port)
    shutil.copytree(home / "conf", directory / "conf")
    (directory / "log").mkdir()
    lines = {**settings, "rest.port": str(port), "execution.checkpointing.dir": f"file://{directory}/checkpoints"}
    lines["execution.checkpointing.savepoint-dir"] = f"file://{directory}/savepoints"
    stored = directory / "conf" / "config.yaml"
    for line in stored.read_text().splitlines():
        name, found, options = line.strip().partition(": ")
        if found and name == "all" and "--add-opens" in options:  # without them Flink does not run on Java 17
            lines["env.java.opts.all"] = options
    stored.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    processes = []
    try:
        for script in ("jobmanager.sh", "taskmanager.sh"):
            with (directory / "log" / f"{script}.out").open("wb") as log:
                command = made.command(script, "start-foreground")
                processes.append(subprocess.Popen(command, env=made.environment, stdout=log, stderr=log))
            made.processes.append(processes[-1].pid)
        slots = int(lines["taskmanager.numberOfTaskSlots"])
        made.until("/overview", lambda found: found["slots-available"] == slots)
        yield made
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def start(flink: Cluster, number: int) -> str:
    """A job that runs; its id."""
    before = {job["id"] for job in flink.ask("/jobs")["jobs"]}
    script = flink.directory / f"job-{number}.py"
    script.write_text(SUBMIT.format(sql=JOB.format(rate=ARRIVING_RATE, sink=flink.directory / f"sink-{number}")))
    python = str(flink.home.parents[3] / "bin" / "python")  # the SQL client of PyPI's package lacks a jar
    command = flink.command("flink", "run", "-d", "-pyclientexec", python, "-pyexec", python, "-py", str(script))
    ended = subprocess.run(command, env=flink.environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"flink run failed: {ended.stdout[-1000:]} {ended.stderr[-1000:]}")
    (job,) = {job["id"] for job in flink.ask("/jobs")["jobs"]} - before
    flink.until(f"/jobs/{job}", lambda found: all(each["status"] == "RUNNING" for each in found["vertices"]))
    time.sleep(ARRIVING_S)  # rows are read meanwhile
    return str(job)


def drain(flink: Cluster, job: str, *, by_command: bool) -> float:
    """Seconds until the job is finished."""
    begun = time.monotonic()
    if by_command:
        command = flink.command("flink", "stop", "--drain", job)
        ended = subprocess.run(command, env=flink.environment, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise SystemExit(f"flink stop --drain failed: {ended.stdout[-1000:]} {ended.stderr[-1000:]}")
    else:
        flink.ask(f"/jobs/{job}/stop", {"drain": True})
    return flink.until(f"/jobs/{job}", lambda found: found["state"] == "FINISHED") - begun


def drain_flink(flink: Cluster, number: int, *, by_command: bool) -> float:
    """Start a job, and drain it; how long the drain took."""
    took = drain(flink, start(flink, number), by_command=by_command)
    fired = [path for path in (flink.directory / f"sink-{number}").rglob("*") if path.is_file()]
    if not any(path.stat().st_size for path in fired):
        raise SystemExit("The drain has fired no window.")
    return took


def measure(environment: Path, rounds: int) -> list[Claim]:
    """In turns; the first of each kind warms everything up."""
    command, call, ours = "flink stop --drain", "Flink's REST call", "samza-azure drain --wait"
    found: dict[str, list[float]] = {command: [], call: [], ours: []}
    with scratch() as directory, cluster(environment) as flink:
        rows = directory / "flights.parquet"
        pq.write_table(flights(1), rows)
        for number in range(rounds + 1):
            for name, seconds in found.items():
                if name == ours:
                    with Azurite() as emulator:  # a fresh one: see drain.py
                        where = directory / f"{number}"
                        took = drain_ours(Side(HERE), where, emulator, Load.ARRIVING, rows, watched=False).seconds
                else:
                    took = drain_flink(flink, 2 * number + (name == call), by_command=name == command)
                say(f"{name}: {took:.2f} s")
                if number:
                    seconds.append(took)
    goal = middle(found[command])
    return [
        Claim(
            f"{name}, median of {len(took)}",
            f"{middle(took):.2f} s (95th percentile {p95(took):.2f} s)",
            *(("that of Flink's command line", middle(took) < goal) if name == ours else ()),
        )
        for name, took in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flink", type=Path, required=True, help="the virtual environment with apache-flink")
    parser.add_argument("--rounds", type=int, default=8)
    chosen = parser.parse_args()
    started = time.monotonic()
    show(measure(chosen.flink, chosen.rounds), time.monotonic() - started)
    sys.exit(0)

"""Fleets of real processes on a real Azurite, and the oracle that their output must equal.

The job is the example's. Rows come in chunks of the flights, so a warm fleet can serve several cases: after each, the
intermediate stream must hold exactly the rows of all chunks so far, and after the drain the result must be the batch's.
"""

import asyncio
import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.group.rows import LEADER, MEMBERS, REQUESTS
from samza_azure.logs.record import decode_files, decode_header
from samza_azure.spark.jvm.java import GATEWAY, SUBMIT
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Row
from samza_azure.storage.limits import HINTS
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.log import LogReader
from tests.storage.stored_rows import batches_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flights"
KILLING = Path(__file__).parent / "killing"
#: Faster than the default profile, slower than the fast one: Spark and the fleet share two cores here. A JVM that lives
#: for a minute spends more on its second compiler than that saves, and so does a standby that warms up.
TIMING = """
[job.coordinator.heartbeat]
interval = "1 s"
timeout = "5 s"
[job.coordinator.leader]
timeout = "3 s"
[job.coordinator.scan]
interval = "0.5 s"
[task.warm]
up = false
[spark]
driver.extraJavaOptions = "-XX:TieredStopAtLevel=1"
"""
PATIENCE_S = 180.0
#: Of the source and of the intermediate stream: four tasks for three processors.
PARTITIONS = 2


class JobOnAzurite:
    """One Azurite, one job, one fleet, and the rows produced so far."""

    def __init__(
        self,
        directory: Path,
        flights: pa.Table,
        *,
        separate: bool = False,
        more: str = "",
        timing: str = TIMING,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self.flights = directory, flights
        self.emulator = Azurite(separate=separate).start()
        job = (EXAMPLE / "job.toml").read_text().replace("[azure.storage]", f"{timing}\n[azure.storage]") + more
        job = job.replace("partitions = 4", f"partitions = {PARTITIONS}")
        (directory / "job.toml").write_text(job)
        (directory / "pipeline.py").write_text((EXAMPLE / "pipeline.py").read_text())
        self.kills = directory / "kills"  # killing/sitecustomize.py reads it
        self.kills.mkdir()
        environment = {
            **(environment or {}),
            VARIABLE: self.emulator.connection_string,
            "SAMZA_AZURE_KILL_AT": str(self.kills),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(KILLING), os.environ.get("PYTHONPATH")))),
        }
        self.fleet = Fleet(directory / "job.toml", directory / "logs", environment)
        self.produced = 0
        self.drained_at = 0  # rows that belong to drained runs, whose intermediate streams are deleted
        self.others: list[Fleet] = []

    def carries(self, streams: str, pipeline: str) -> None:
        """Run another job than the example's, with these streams and this module. Call it before the start."""
        job = self.fleet.job.read_text().partition("\n[streams.")[0]
        self.fleet.job.write_text(f"{job}\n{streams}")
        (self.directory / "pipeline.py").write_text(pipeline)

    def close(self) -> None:
        """Kill everything that is ours, by process id."""
        ours = [process for name in self.fleet.alive() for process in self.tree(name)]
        for fleet in (self.fleet, *self.others):
            fleet.stop()
        for process in ours:
            with_patience(process.kill)
        self.emulator.stop()

    def start(self, *names: str) -> dict[str, Any]:
        """Start processors and wait until every task runs and each of them owns one.

        A predecessor that was killed still has its row, which says that all is well: that is not waited for.
        """
        before = incarnations(self.fleet.wait_until("the account answers", lambda shown: True, PATIENCE_S))
        for name in names:
            self.fleet.start(name)
        return self.settled(
            lambda shown: (
                {task["owner"] for task in shown["tasks"]} >= set(names)
                and all(incarnations(shown)[name] != before.get(name) for name in names)
            )
        )

    def settled(self, holds: Callable[[dict[str, Any]], bool] = lambda shown: True) -> dict[str, Any]:
        """All tasks run, on processors that are alive, and whatever else is asked."""
        return self.fleet.wait_until(
            "all tasks run on living processors",
            lambda shown: (
                all_running(shown)
                and {task["owner"] for task in shown["tasks"]} <= set(self.fleet.alive())
                and holds(shown)
            ),
            PATIENCE_S,
        )

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on this job; what it printed and how it ended."""
        name, *rest = arguments
        command = [sys.executable, "-m", "samza_azure", name, str(self.fleet.job), *rest]
        return subprocess.run(
            command, env=self.fleet.environment, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
        )

    def produce(self, rows: int) -> None:
        """Produce the next `rows` flights into the source stream."""
        path = self.directory / f"chunk-{self.produced}.parquet"
        pq.write_table(self.flights.slice(self.produced, rows), path)
        ended = self.command("produce", "flights", str(path), "--key", "dest")
        assert ended.returncode == 0, ended.stderr
        self.produced += rows

    def producing(self, rows: int, rate: float) -> subprocess.Popen[bytes]:
        """The same in the background, at a rate. Returns when the first of them are in the source stream."""
        path = self.directory / f"chunk-{self.produced}.parquet"
        pq.write_table(self.flights.slice(self.produced, rows), path)
        self.produced += rows
        arguments = ["produce", str(self.fleet.job), "flights", str(path), "--key", "dest", "--rate", str(rate)]
        before = self.source_bytes()
        producer = subprocess.Popen([sys.executable, "-m", "samza_azure", *arguments], env=self.fleet.environment)
        deadline = time.monotonic() + PATIENCE_S
        while self.source_bytes() == before:
            assert time.monotonic() < deadline and producer.poll() is None
            time.sleep(0.05)  # the pace of asking
        return producer

    def source_bytes(self) -> int:
        """How long the logs of the source stream are, together."""
        account = Account.from_config(self.fleet.config.storage)
        try:
            return sum(size for _, size in account.blobs().list("streams/flights/"))
        finally:
            account.close()

    def secrets_told(self) -> list[str]:
        """Where the account's key, which is the emulator's well-known one, can be read: logs, blobs, rows."""
        key = self.emulator.connection_string.split("AccountKey=")[1].split(";")[0].encode()
        files = [*self.directory.rglob("*.log")]
        told = [str(path) for path in files if key in path.read_bytes()]
        account = Account.from_config(self.fleet.config.storage)
        blobs = account.blobs()
        told += [name for name, size in blobs.list("") if key in unpacked(blobs.read(name, 0, size).data)]
        account.close()
        rows = (row for partition in (MEMBERS, LEADER, REQUESTS, HINTS) for row in self.rows(partition))
        return told + [str(row) for row in rows if key in str(row).encode()]

    def rows(self, partition: str) -> Sequence[Row]:
        """The rows of a partition of the table."""
        return asyncio.run(self._rows(partition))

    async def _rows(self, partition: str) -> Sequence[Row]:
        account = Account.from_config(self.fleet.config.storage)
        try:
            return await account.rows().query(partition, timeout=10)
        finally:
            await account.aclose()

    def exact(self) -> None:
        """The intermediate stream comes to hold each row of this run that the first stage keeps, exactly once."""
        expected = rows_of(cleaned(self.flights.slice(self.drained_at, self.produced - self.drained_at)))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.stream("by-carrier")
            if found.num_rows >= sum(expected.values()):
                break
            if time.monotonic() > deadline:
                pytest.fail(
                    f"{found.num_rows} of {sum(expected.values())} rows came through; {self.fleet.status()}"
                    + "".join(
                        f"\n{name}:\n{self.fleet.log_file(name).read_text()[-2000:]}" for name in self.fleet.processes
                    )
                )
            time.sleep(0.5)  # the pace of asking
        assert rows_of(found) == expected

    def another(
        self, name: str, more: str, change: Callable[[str], str] = str, job: Callable[[str], str] = str
    ) -> Fleet:
        """A fleet of the same job from another folder, with a changed pipeline or other keys."""
        directory = self.directory / name
        directory.mkdir()
        (directory / "job.toml").write_text(job(self.fleet.job.read_text()) + more)
        (directory / "pipeline.py").write_text(change((self.directory / "pipeline.py").read_text()))
        fleet = Fleet(directory / "job.toml", directory / "logs", self.fleet.environment)
        self.others.append(fleet)
        return fleet

    def drain_begins(self) -> subprocess.Popen[str]:
        """`drain --wait` in the background."""
        command = [sys.executable, "-m", "samza_azure", "drain", str(self.fleet.job), "--wait", "--timeout", "120"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.fleet.environment, stdout=pipe, stderr=pipe, text=True)

    def drained(self) -> dict[str, int]:
        """Drain and wait for the end of all, everything produced being read; how they ended."""
        self.drained_at = self.produced
        ended = self.command("drain", "--wait", "--timeout", str(PATIENCE_S))
        assert ended.returncode == 0, ended.stderr
        return self.fleet.exit_codes(PATIENCE_S)

    def stream(self, name: str) -> pa.Table:
        """The committed rows of a stream."""
        account = Account.from_config(self.fleet.config.storage)
        try:
            batches = list(batches_of(account.blobs(), name))
        except Exception as error:
            if "No log holds" in str(error):
                return pa.table({})
            raise
        finally:
            account.close()
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def kill_at(
        self, processor: str, kind: str, point: str, how: signal.Signals = signal.SIGKILL, whom: int | None = None
    ) -> None:
        """From now on the processor's "supervisor" or "container" gets a signal when it comes to a point of a drain.

        Or the process `whom` gets it then.
        """
        (self.kills / f"{processor} {kind} {point}").write_text(how.name if whom is None else f"{how.name} {whom}")

    def kills_to_come(self) -> list[str]:
        """The points that no process has reached."""
        return sorted(path.name for path in self.kills.iterdir())

    def rows_up_to_positions(self, since: Mapping[str, Sequence[int]] | None = None) -> pa.Table:
        """The source rows that the drained run has read, as its positions say; `since` those of the run before."""
        account = Account.from_config(self.fleet.config.storage)
        batches = []
        for partition, (blob, position) in self.fleet.status()["positions"].items():
            reader = LogReader(account.blobs(), f"streams/{partition}")
            first = (since or {}).get(partition, (0, 0))
            start = (first[0], first[1])
            while start < (blob, position):
                found = reader.scan(start, until=(blob, position))
                batches += [batch for data in reader.fetch(found.parts) for batch in decode(data)]
                start = found.end
        account.close()
        return pa.Table.from_batches(batches) if batches else self.flights.slice(0, 0)

    def emulator_signal(self, number: signal.Signals) -> None:
        """A signal to the emulator."""
        psutil.Process(self.emulator.pid).send_signal(number)

    def tree(self, name: str, fleet: Fleet | None = None) -> list[psutil.Process]:
        """A processor's processes: the supervisor first, then its container, the JVM and its Python workers."""
        supervisor = psutil.Process((fleet or self.fleet).processes[name].pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def container(self, name: str) -> psutil.Process:
        """The container's Python process."""
        return next(process for process in self.tree(name) if "samza_azure.container" in process.cmdline())

    def jvm(self, name: str) -> psutil.Process:
        """The container's JVM."""
        return next(process for process in self.tree(name) if not {SUBMIT, GATEWAY}.isdisjoint(process.cmdline()))

    def has_spark(self, name: str) -> bool:
        """Whether the container has a process below it, as the JVM would be, or has loaded PySpark."""
        container = self.container(name)
        loaded = any("pyspark" in mapped.path for mapped in container.memory_maps())
        return loaded or bool(container.children(recursive=True))

    def signal_tree(self, name: str, number: signal.Signals) -> None:
        """A signal to the whole tree of one processor."""
        for process in self.tree(name):
            with_patience(lambda process=process: process.send_signal(number))


def unpacked(data: bytes) -> bytes:
    """A blob with what is compressed in it: the control blob or a copy, the records of a log with their files; or the
    binding, which is JSON as it is."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"{"):
        return data
    parts, position = [data], 0
    while position < len(data):
        header = decode_header(data[position:], blob="", position=position)
        packed = data[position + header.size :][: header.files_length]
        parts += decode_files(packed, header, blob="", position=position).values()
        position += header.length
    return b"".join(parts)


def incarnations(shown: dict[str, Any]) -> dict[str, str]:
    """Which incarnation of each processor the status knows."""
    return {each["id"]: each["incarnation"] for each in shown["processors"]}


def followers_task(shown: dict[str, Any]) -> dict[str, Any]:
    """A task that a follower owns, of the last stage unless the leader owns all tasks of that."""
    theirs: list[dict[str, Any]] = [task for task in shown["tasks"] if task["owner"] != shown["leader"]]
    return max(theirs, key=lambda task: task["stage"] != "clean")


@contextmanager
def growing(grow: Callable[[int], None], rate: float) -> Iterator[None]:
    """Have a stream outside grow by so many rows a second, ten at a time."""
    ends = threading.Event()

    def work() -> None:
        while not ends.wait(10 / rate):
            grow(10)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def with_patience(act: Callable[[], None]) -> None:
    """Do it, unless the process has gone already."""
    try:
        act()
    except psutil.NoSuchProcess:
        return


def cleaned(flights: pa.Table) -> pa.Table:
    """What the example's first stage keeps."""
    return flights.filter(pc.is_valid(flights["dep_delay"])).select(["carrier", "ts", "dep_delay"])


def daily(flights: pa.Table) -> Counter[tuple[Any, ...]]:
    """What the example's second stage makes of it, as one batch and without Spark."""
    rows = cleaned(flights)
    days = rows.append_column("day", pc.floor_temporal(rows["ts"], unit="day"))
    grouped = days.group_by(["day", "carrier"]).aggregate([("dep_delay", "count"), ("dep_delay", "mean")])
    return Counter(
        (row["day"], row["carrier"], row["dep_delay_count"], row["dep_delay_mean"]) for row in grouped.to_pylist()
    )


def daily_rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of `daily-delays` in the same form."""
    return Counter((row["window"]["start"], row["carrier"], row["flights"], row["delay"]) for row in table.to_pylist())


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset."""
    columns = sorted(table.column_names)
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True)) if columns else Counter()

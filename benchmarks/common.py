"""What all benchmarks share: claims and their table, a job with an emulator and a job, and a container in our hand.

A container is driven here as a supervisor drives it, over its channel, by the messages of the protocol. That leaves
out the coordination, whose cost is a few small requests per second, and lets a benchmark say exactly when work may
begin: by the permit. Nothing here asserts a time. Two machines differ, and so do two minutes of the same machine.
"""

import argparse
import os
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.host.child import Child
from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import (
    HeldReplicas,
    KeepReplicas,
    Permit,
    Phase,
    Plan,
    Ready,
    Rejected,
    ReleaseTask,
    ReplicaState,
    StartTask,
    TaskReport,
)
from samza_azure.storage.connection import Account
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.source_stream import SourceWriter

EXAMPLE = Path(__file__).parents[1] / "examples" / "flights"
CONNECT = "AZURE_STORAGE_CONNECTION_STRING"
RUN_ID = "benchmark"
GROUP_ID = uuid.uuid4().hex
PATIENCE_S = 180.0
FOR_EVER_S = 1e6

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """One line of the table. Without a goal it is there for comparison; `reached` None then."""

    what: str
    figure: str
    goal: str = ""
    reached: bool | None = None


def show(claims: Sequence[Claim], seconds: float) -> None:
    """The table, and what the machine was like meanwhile."""
    table = Table("claim", "figure", "goal", "reached", title="samza_azure, measured")
    for claim in claims:
        reached = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[claim.reached]
        table.add_row(claim.what, claim.figure, claim.goal, reached)
    console.print(table)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    console.print(f"{os.cpu_count()} CPUs, load average {load} (1, 5, 15 minutes), {seconds:.0f} s in all")


def main(measure: Callable[[bool], list[Claim]], about: str | None) -> None:
    """A benchmark as a command: measure, print the table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions: to see that it works")
    begun = time.monotonic()
    show(measure(parser.parse_args().quick), time.monotonic() - begun)


def say(text: str) -> None:
    """One line of progress."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/]  {text}", soft_wrap=True)


def middle(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def cpu_s(*processes: int) -> float:
    """Processor time of these processes and all below them: what other work on the machine disturbs least."""
    trees = [psutil.Process(number) for number in processes]
    everybody = [process for tree in trees for process in (tree, *tree.children(recursive=True))]
    total = 0.0
    for process in everybody:
        with suppress(psutil.NoSuchProcess):  # its parent has its time now
            total += sum(process.cpu_times()[:4])
    return total


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-benchmark-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def meanwhile(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Take a step at an even pace, in a thread of its own."""
    over = threading.Event()

    def steps() -> None:
        while not over.wait(every_s):
            step()

    taking = threading.Thread(target=steps, name="meanwhile")
    taking.start()
    try:
        yield
    finally:
        over.set()
        taking.join()


def plain_spark(script: str, *arguments: str) -> list[str]:
    """The lines that a run in a Spark of its own has printed: `plain.py WHAT …`, in a fresh process."""
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), script, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def flights(years: int) -> pa.Table:
    """The example's input, repeated with shifted dates: 336,776 rows a year, ordered by event time."""
    sys.path.insert(0, str(EXAMPLE))
    from flights import write

    with scratch() as directory:
        write(directory / "flights.parquet")
        one = pq.read_table(directory / "flights.parquet")
    year = pa.scalar(365 * 86_400 * 1_000_000, pa.duration("us"))
    return pa.concat_tables(
        one.set_column(one.column_names.index("ts"), "ts", pc.add(one["ts"], pc.multiply(year, number)))
        for number in range(years)
    )


class BenchJob:
    """An emulator, a job in a directory of its own, and the containers that run it."""

    def __init__(self, directory: Path, emulator: Azurite, job: str, pipeline: str) -> None:
        self.directory, self.emulator = directory, emulator
        os.environ[CONNECT] = emulator.connection_string
        self.job = directory / "job.toml"
        self.job.write_text(job)
        directory.joinpath("pipeline.py").write_text(pipeline)
        self.config = Config.load(self.job)
        self.account = Account.from_config(self.config.storage)
        self.account.ensure_created()
        self._containers: list[Container] = []

    def source(self, stream: str, **options: Any) -> SourceWriter:
        """A writer of one of the job's source streams."""
        settings = self.config.streams[stream]
        return SourceWriter(
            self.account.blobs(),
            self.account.hints(),
            stream,
            settings.partitions,
            schema=arrow_schema(settings.schema or ""),
            event_time=settings.event_time,
            **options,
        )

    def container(self, name: str) -> "Container":
        """Start a container. It has no permit yet. Call it on the main thread."""
        made = Container(self, self.directory / name)
        self._containers.append(made)
        return made

    def close(self) -> None:
        """End what runs."""
        for container in self._containers:
            container.kill()
        self.account.close()


@contextmanager
def bench_job(job: str, pipeline: str) -> Iterator[BenchJob]:
    """A fresh job, gone afterwards."""
    with scratch() as directory, Azurite() as emulator:
        made = BenchJob(directory, emulator, job, pipeline)
        try:
            yield made
        finally:
            made.close()


class Container:
    """A container, driven by hand."""

    def __init__(self, around: BenchJob, directory: Path) -> None:
        self.started_at = now()
        directory.mkdir()
        self.log_file = directory / "container.log"
        self.directory = directory / "container"
        self._child = Child(around.job, self.directory, self.log_file)
        self.plan: Plan | None = None
        self.reports: dict[str, TaskReport] = {}
        self.replicas: dict[str, ReplicaState] = {}

    def permit(self, seconds: float = FOR_EVER_S) -> None:
        """Permit batches for this many seconds from now on. 0 takes the permit away."""
        self._child.send(Permit(now() + seconds))

    def start(self, task: str, generation: int = 1, *, first: bool = True, run_id: str = RUN_ID) -> None:
        """Give it a task."""
        self._child.send(StartTask(task, generation, 1, first, run_id, GROUP_ID))

    def run(self, tasks: Sequence[str]) -> None:
        """Permit batches, give it these tasks, and wait until they run."""
        self.permit()
        for task in tasks:
            self.start(task)
        self.until("tasks run", lambda: all(self.phase(task) is Phase.RUNNING for task in tasks))

    def release(self, task: str) -> None:
        """Take a task away."""
        self._child.send(ReleaseTask(task))

    def keep_replicas(self, *tasks: str) -> None:
        """Have it keep replicas of these tasks, and of no others."""
        self._child.send(KeepReplicas(RUN_ID, GROUP_ID, tasks))

    def ready(self) -> Plan:
        """Wait for the session and the analysed pipeline."""
        self.until("ready", lambda: self.plan is not None)
        assert self.plan is not None
        return self.plan

    def phase(self, task: str, generation: int = 1) -> Phase | None:
        """The phase that was reported last."""
        report = self.reports.get(task)
        return report.phase if report is not None and report.generation == generation else None

    def first_append(self, task: str, generation: int = 1) -> float:
        """Wait until the task has appended under this generation; when it did, by the machine's clock."""

        def appended_at() -> float | None:
            report = self.reports.get(task)
            return report.appended_at if report is not None and report.generation == generation else None

        self.until(f"the first append of {task}", lambda: appended_at() is not None)
        return appended_at() or 0.0

    def until(self, what: str, holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Hear reports until it holds."""
        deadline = now() + patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._child, selectors.EVENT_READ)
            while not holds():
                if now() > deadline:
                    raise SystemExit(f"Not within {patience_s:.0f} s: {what}. Reports: {self.reports}\n{self.tail()}")
                if selector.select(0.05):
                    self._hear()

    def _hear(self) -> None:
        reports = self._child.receive()
        if reports is None:
            raise SystemExit(f"The container ended.\n{self.tail()}")
        for report in reports:
            match report:
                case Ready(plan):
                    self.plan = plan
                case Rejected(message):
                    raise SystemExit(message)
                case HeldReplicas(replicas=replicas):
                    self.replicas = replicas
                case TaskReport(task=task, phase=Phase.FAILED):
                    raise SystemExit(f"{task} failed: {report.error}\n{self.tail()}")
                case TaskReport(task=task):
                    self.reports[task] = report

    @property
    def pid(self) -> int:
        """Of its Python process, below which all others are."""
        return self._child.pid

    def tail(self) -> str:
        """The end of what it logged."""
        return self.log_file.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()


class Written:
    """What a stage has emitted so far: its rows, and where its logs end."""

    def __init__(self, around: BenchJob, stage: str, tasks: int) -> None:
        prefixes = [f"runs/{RUN_ID}/{stage}-{number}" for number in range(tasks)]
        self._readers = [LogReader(around.account.blobs(), prefix) for prefix in prefixes]
        self.ends, self.rows = [(0, 0)] * tasks, 0

    def reaches(self, expected: int) -> bool:
        """Read the logs, if there were fewer rows than expected; return whether there are that many now."""
        if self.rows < expected:
            for number, reader in enumerate(self._readers):
                found = reader.scan(self.ends[number])
                self.ends[number], self.rows = found.end, self.rows + found.rows
        return self.rows >= expected

"""What a stage with state costs with a shuffle from one partition to one, and without (`spark/jvm/exchanges.py`).

One container runs each kind of stage by turns, with the shuffles and without them, in both orders: batches of 1,000
rows, one after the other, then some of 50,000. Processor time is that of the container and of all below it, memory that
of its Python processes at most.

python benchmarks/shuffles.py [--quick]
"""

import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from common import BenchJob, Claim, Container, bench_job, cpu_s, main, middle, say

from samza_azure.messages import Phase
from samza_azure.spark.jvm import java
from samza_azure.stream_io.source_stream import SourceWriter

KINDS = ("window", "once", "chained", "join", "state", "machine")
SMALL, LARGE = 1_000, 50_000
#: How often the memory is looked at, which takes the kernel some milliseconds.
LOOK_S = 0.5
JOB = """
[app]
name = "shuffles"
main = "pipeline:app"
[azure.storage]
connect = "${AZURE_STORAGE_CONNECTION_STRING}"
[task]
commit.ms = 0
count = 1
warm.up = false
"""
STREAM = """
[streams.{name}]
schema = "key string, ts timestamp, value double"
event_time = "ts"
"""
STREAMS = {kind: (f"{kind}_rows", "join_others")[: 1 + (kind == "join")] for kind in KINDS}


@dataclass(slots=True)
class Found:
    """The figures of one kind, one of each for a turn."""

    small_ms: list[float] = field(default_factory=list)  # of processor time, a batch
    large_s: list[float] = field(default_factory=list)  # a million rows
    written_mib: list[float] = field(default_factory=list)  # to files and sockets, a million rows
    python_mib: list[float] = field(default_factory=list)


def measure(quick: bool) -> list[Claim]:
    """Each kind by turns."""
    warm, small, large, order = (3, 5, 2, (True, False)) if quick else (8, 20, 4, (False, True, True, False))
    found: dict[tuple[str, bool], Found] = defaultdict(Found)
    job = JOB + "".join(STREAM.format(name=name) for names in STREAMS.values() for name in names)
    with no_archive(), bench_job(job, Path(__file__).with_name("stateful.py").read_text()) as around:
        container = around.container("container")
        container.ready()
        container.permit()
        for kind in KINDS:
            played = Played(around, container, kind)
            for removed in order:
                played.turn(warm, small, large, found[kind, removed], removed=removed)
                say(f"{kind}, {'without' if removed else 'with'}: {found[kind, removed]}")
            played.close()
    return [claim for kind in KINDS for claim in claims(kind, found[kind, False], found[kind, True])]


@contextmanager
def no_archive() -> Iterator[None]:
    """No container makes an archive of Java's meanwhile, which takes processor time a minute after its start."""
    with (java.cache_directory(os.environ) / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def claims(kind: str, before: Found, after: Found) -> list[Claim]:
    """What is shown of one kind."""
    less = [middle(getattr(after, each)) / middle(getattr(before, each)) for each in ("small_ms", "large_s")]
    return [
        Claim(
            f"{kind}: a batch of {SMALL:,} rows, processor time with a shuffle, without",
            f"{middle(before.small_ms):.0f} ms, {middle(after.small_ms):.0f} ms ({less[0] - 1:+.0%})",
            "not more",
            less[0] <= 1,
        ),
        Claim(
            f"{kind}: a million rows in batches of {LARGE:,}; Python's memory; MiB that Java writes",
            f"{middle(before.large_s):.2f} s, {middle(after.large_s):.2f} s ({less[1] - 1:+.0%}); "
            f"{max(before.python_mib):.0f}, {max(after.python_mib):.0f} MiB; "
            f"{middle(before.written_mib):.0f}, {middle(after.written_mib):.0f} MiB",
            "not more",
            less[1] <= 1,
        ),
    ]


class Played:
    """The task of one stage, which gets a new owner for each turn."""

    def __init__(self, around: BenchJob, container: Container, kind: str) -> None:
        self._around, self._container, self._task = around, container, f"{kind}-0"
        self._sources: list[SourceWriter] = [around.source(each, flush_rows=LARGE) for each in STREAMS[kind]]
        self._generation = self._next = 0
        self._look_at = 0.0

    def turn(self, warm: int, small: int, large: int, found: Found, *, removed: bool) -> None:
        """So many batches of each size."""
        container, task = self._container, self._task
        directory = self._around.directory
        (directory / "removed.new").write_text(str(removed).lower())
        (directory / "removed.set").unlink(missing_ok=True)
        (directory / "removed.new").rename(directory / "removed")
        container.until("the setting", (directory / "removed.set").exists)
        self._generation += 1
        container.start(task, self._generation, first=self._generation == 1)
        container.until("it runs", lambda: container.phase(task, self._generation) is Phase.RUNNING)
        self._before = 0
        self._python_mib = 0.0
        self._batches(warm, SMALL)
        used = cpu_s(container.pid)
        self._batches(small, SMALL)
        found.small_ms.append(1000 * (cpu_s(container.pid) - used) / small)
        self._batches(1, LARGE)
        used, written = cpu_s(container.pid), self._written()
        self._batches(large, LARGE)
        rows = large * LARGE * len(self._sources)
        found.large_s.append((cpu_s(container.pid) - used) / rows * 1e6)
        found.written_mib.append((self._written() - written) / rows * 1e6 / (1 << 20))
        found.python_mib.append(self._python_mib)
        container.release(task)
        container.until("released", lambda: container.phase(task, self._generation) is Phase.RELEASED)

    def _batches(self, count: int, rows: int) -> None:
        """One after the other: the next one when the figures of this one are there."""
        for _ in range(count):
            table = table_of(rows, self._next)
            self._next += rows
            for source in self._sources:
                source.write(table)
            for source in self._sources:
                source.flush()
            self._before += rows * len(self._sources)
            self._container.until("the rows are read", self._are_read)

    def _are_read(self) -> bool:
        if (now := time.monotonic()) >= self._look_at:
            self._look_at, self._python_mib = now + LOOK_S, max(self._python_mib, self._python() / (1 << 20))
        report = self._container.reports.get(self._task)
        if report is None or report.generation != self._generation or report.progress is None:
            return False
        return report.progress.rows >= self._before

    def _processes(self) -> list[psutil.Process]:
        return list(psutil.Process(self._container.pid).children(recursive=True))

    def _python(self) -> float:
        """The memory of the Python processes, with their part of shared pages."""
        total = 0
        for each in self._processes():
            with suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss if "python" in each.name() else 0
        return total

    def _written(self) -> int:
        jvm = min((each for each in self._processes() if each.name() == "java"), key=psutil.Process.create_time)
        return int(jvm.io_counters().write_chars)

    def close(self) -> None:
        """No rows of these come any more."""
        for source in self._sources:
            source.close()


def table_of(rows: int, first: int) -> pa.Table:
    """Rows of twenty keys, 2 ms apart, from this one on."""
    times = (1_700_000_000_000_000 + (first + np.arange(rows)) * 2_000).astype("datetime64[us]")
    return pa.table(
        {
            "key": pa.array([f"key-{place % 20}" for place in range(rows)]),
            "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array(np.arange(rows).astype("float64")),
        }
    )


if __name__ == "__main__":
    main(measure, __doc__)

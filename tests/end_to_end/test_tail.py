"""A stream from outside: local files that grow, read exactly once by a fleet without Spark that is killed."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from .real_processes import PATIENCE_S, JobOnAzurite, growing, with_patience

STREAMS = """
[streams.clicks]
system = "tail"
options.path = "clicks-{partition}.jsonl"
partitions = 2
schema = "n bigint, ts timestamp"
event_time = "ts"
idle.timeout = "2 s"
[streams.seen]
schema = "n bigint, of string, partition int"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="seen")
class Pass:
    def process(self, envelope, collector):
        collector.send({"n": envelope.row["n"], "of": envelope.stream, "partition": envelope.partition})
"""


class Files:
    """The files of the stream, and the rows in them."""

    def __init__(self, directory: Path) -> None:
        self._paths = [directory / f"clicks-{number}.jsonl" for number in range(2)]
        self.rows = Counter[tuple[int, str, int]]()

    def grow(self, rows: int) -> None:
        """Append rows to both files, and sometimes the first half of a line."""
        for _ in range(rows):
            n = self.rows.total()
            partition, time_of = n % 2, f"2026-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z"
            line = json.dumps({"n": n, "ts": time_of}).encode() + b"\n"
            with self._paths[partition].open("ab", buffering=0) as file:
                file.write(line[:5])
                file.write(line[5:])
            self.rows[n, "clicks", partition] += 1


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory, flights: pa.Table) -> Iterator[JobOnAzurite]:
    made = JobOnAzurite(tmp_path_factory.mktemp("tail"), flights)
    try:
        made.carries(STREAMS, PIPELINE)
        yield made
    finally:
        made.close()


def seen(world: JobOnAzurite) -> Counter[tuple[int, str, int]]:
    """The rows in the output stream."""
    return Counter((row["n"], row["of"], row["partition"]) for row in world.stream("seen").to_pylist())


def until_all_seen(world: JobOnAzurite, files: Files) -> None:
    """Every row of the files has come out; none of them twice."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := seen(world)) != files.rows:
        assert not found - files.rows, "a row came twice, or from nowhere"
        assert time.monotonic() < deadline, f"{(files.rows - found).total()} rows are missing: {world.fleet.status()}"
        time.sleep(1)  # the pace of asking: each looks through all rows


def begin(world: JobOnAzurite, files: Files) -> None:
    files.grow(100)
    shown = world.start("p0", "p1")
    assert {each["name"] for each in shown["tasks"]} == {
        *(f"Pass-{number}" for number in range(2)), *(f"clicks-source-{number}" for number in range(2))
    }  # fmt: skip


def drain_and_resume(world: JobOnAzurite, files: Files) -> None:
    """Rows that come during the drain, or while nothing runs, belong to the next run."""
    with growing(files.grow, 200):
        draining = world.drain_begins()
        _, said = draining.communicate(timeout=PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(world.fleet.exit_codes(PATIENCE_S).values()) == {0}
    first = seen(world)
    ends = world.fleet.status()["positions"]
    assert ends.keys() == {"clicks/0", "clicks/1"}
    for partition in range(2):
        held = [n for n, _, of in first if of == partition]
        whole = (world.directory / f"clicks-{partition}.jsonl").read_bytes()[: ends[f"clicks/{partition}"][1]]
        assert sorted(held) == [json.loads(line)["n"] for line in whole.splitlines()], "the drain ends where they end"
    files.grow(50)
    for name in ("p0", "p1"):
        world.fleet.start(name, "--new-run")
    until_all_seen(world, files)


def test_rows_of_growing_files_are_exactly_once_without_spark(world: JobOnAzurite) -> None:
    """Through kill -9 of a container, a drain while rows come, and the next run."""
    files = Files(world.directory)
    begin(world, files)
    assert not any(world.has_spark(name) for name in ("p0", "p1"))
    memory = [world.container(name).memory_info().rss >> 20 for name in ("p0", "p1")]
    print(f"containers without Spark: {memory} MiB")
    assert max(memory) < 200
    with growing(files.grow, 200):
        with_patience(world.container("p0").kill)
        world.settled()
    until_all_seen(world, files)
    drain_and_resume(world, files)


@pytest.mark.long  # a short one is above
def test_rows_of_growing_files_are_exactly_once_through_thirty_kills(world: JobOnAzurite) -> None:
    files, dice = Files(world.directory), random.Random(35)
    begin(world, files)
    with growing(files.grow, 500):
        for number in range(30):
            name = dice.choice(("p0", "p1"))
            time.sleep(dice.uniform(0.0, 2.0))  # at any moment of a batch
            if number % 3 and name in world.fleet.alive():
                with suppress(StopIteration, psutil.NoSuchProcess):
                    world.container(name).kill()
            else:
                if name in world.fleet.alive():
                    world.fleet.send(name, signal.SIGKILL)
                    world.fleet.processes[name].wait()
                world.start(name)
        world.settled()
    until_all_seen(world, files)
    print(f"{files.rows.total()} rows, each once, through 30 kills")
    drain_and_resume(world, files)

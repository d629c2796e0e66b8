"""From outside to job to outside to job: the tasks of both jobs are killed, wake up late, lose answers and connections,
and go through drains. At the end the last log must hold each message once, and the dead letters of the first job each
row that is too large to be sent.

The stages between them are the test's own: what they read and write is exact, and dies with nobody.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from samza_azure.config import Config
from samza_azure.errors import StorageUnavailable, Superseded
from samza_azure.logs.position import Position
from samza_azure.logs.record import Kind, Writer
from samza_azure.messages import Drain, DrainStep, StartTask
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.outlet_task import OutletTask
from samza_azure.tasks.source_task import SourceTask
from tests.storage.containers import container_context

PATIENCE_S = 240.0
GROUP = bytes(16)
FIRST, SECOND = 2, 3  # partitions
JOB = """
[app]
name = "chain"
main = "chained:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
count = 1
commit.ms = 0
STREAMS[streams.seen]
schema = "n bigint"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("first", output="passed")
class Pass:
    def process(self, envelope, collector): ...

@app.task("back", output="seen")
class Keep:
    def process(self, envelope, collector): ...
"""
#: The most bytes of a message, and those of a row that is too large.
MOST, LARGE = 16 << 10, 20 << 10
METHODS = ("ROUND_ROBIN", "EVENT_HASHING", "PARTITION_KEY_AS_PARTITION")


def is_large(number: int) -> bool:
    """Whether what the stage makes of a message is too large to be sent."""
    return number % 20 == 7


class Side(Protocol):
    """The system outside, with two streams there."""

    #: In the job file, the streams `first`, `passed` and `back`; `METHOD` and `BY` are how rows are placed. It takes
    #: messages of `MOST` bytes.
    streams: str
    faults: Sequence[str]

    def send(self, partition: int, bodies: Sequence[bytes]) -> None:
        """Write messages to the first of them."""

    def harm(self, what: str, dice: Random) -> None:
        """Let one of its faults happen."""

    def on_the_wire(self) -> int:
        """How many messages the second one has."""


SOURCES = ("first-source-0", "back-source-0")
OUTLET = "passed-out-0"


class Chain:
    """The system outside, the tasks and their logs."""

    def __init__(self, dice: Random, side: Side, directory: Path, events: int) -> None:
        self.dice, self.side, self.events = dice, side, events
        method = dice.choice(METHODS)
        by = "" if method == METHODS[0] else 'options.partition.by = "n"'
        job = JOB.replace("STREAMS", side.streams).replace("METHOD", method).replace("BY", by)
        (directory / "chained.py").write_text(PIPELINE)
        (directory / "job.toml").write_text(job)
        sys.modules.pop("chained", None)
        config, account = Config.load(directory / "job.toml"), MemoryAccount()
        self.blobs: Any = account.blobs()
        self.context = container_context(account, directory, config, analyse_without_spark(load(config), config))
        self.faults: Counter[str] = Counter()
        self.zombies: list[SourceTask | OutletTask] = []
        self.sent, self.run, self.attempt = 0, 0, 0
        self.ends: dict[str, Position] = {}
        self.tasks: dict[str, SourceTask | OutletTask] = {}
        self.stage: LogWriter
        self.read: Position = (0, 0)
        self.next_run()

    def next_run(self) -> None:
        """Begin where the last run has ended."""
        self.run += 1
        self.stage, _ = take_over(
            self.blobs, f"runs/r{self.run}/Pass-0", group_id=GROUP, task="Pass-0", writer=Writer(1, 1), first=True,
            may_append=lambda: True, meta={"stream": "passed"},
        )  # fmt: skip
        self.read = (0, 0)
        for name in (*SOURCES, OUTLET):
            self.take_over(name, first=True)

    def take_over(self, name: str, *, first: bool = False) -> None:
        """Let a new owner have a task."""
        self.attempt += 1
        start = StartTask(name, 1, self.attempt, first, f"r{self.run}", GROUP.hex(), self.ends)
        task = task_of(self.context, start)
        assert isinstance(task, SourceTask | OutletTask)
        assert task._begin()
        self.tasks[name] = task

    def turn(self, task: SourceTask | OutletTask) -> None:
        """One turn, in which everything is due."""
        if isinstance(task, SourceTask):
            task._appended_at = 0.0
        with suppress(StorageUnavailable):
            task._turn()

    def pass_on(self, kind: Kind = Kind.BATCH) -> None:
        """The stage between: what the first source has is what the outlet gets."""
        reader = LogReader(self.blobs, f"runs/r{self.run}/{SOURCES[0]}", group_id=GROUP)
        found = reader.scan(self.read)
        slices = [one_slice(0, rows) for rows in self.context_rows(reader, found.parts)]
        self.read = found.end
        if slices or kind is Kind.DRAINED:
            end = self.stage.append(self.stage.last_batch + 1, kind=kind, slices=slices)
            self.context.hints.appended(f"runs/r{self.run}/Pass-0", end, None, kind is Kind.DRAINED)

    def context_rows(self, reader: LogReader, parts: Any) -> list[Any]:
        """The rows as one table, or none."""
        import pyarrow as pa

        batches = list(reader.rows(parts))
        if not batches:
            return []
        rows = pa.Table.from_batches(batches)
        pads = ["x" * LARGE if is_large(number) else None for number in rows["n"].to_pylist()]
        return [rows.append_column("pad", pa.array(pads, pa.string()))]

    def drain(self) -> None:
        """End the run: what was read goes all the way."""
        self.faults["drain"] += 1
        uuid, end = f"drain-{self.run}", time.monotonic() + PATIENCE_S
        for name in SOURCES:
            task = self.tasks[name]
            task.follow(Drain(DrainStep.FREEZE, uuid))
            while task.report.ends is None:
                self.turn(task)
            self.ends |= task.report.ends
        for name in (*SOURCES, OUTLET):
            if name == OUTLET:
                self.pass_on()
                self.pass_on(Kind.DRAINED)
            task = self.tasks[name]
            task.follow(Drain(DrainStep.FLUSH, uuid, self.ends))
            while not task.is_over:
                assert time.monotonic() < end, f"{name} is not drained"
                self.turn(task)
            task._leaves()

    def kill(self, name: str, *, wakes: bool) -> None:
        """Let a task die, or be thought dead."""
        task = self.tasks[name]
        if wakes:
            self.zombies.append(task)
        else:
            self.die(task)
        self.take_over(name)

    @staticmethod
    def die(task: SourceTask | OutletTask) -> None:
        """What the death of a process does to its connections; nothing is recorded."""
        if isinstance(task, SourceTask):
            task._leaves()
        elif task._sink is not None:
            task._sink.close()

    def fault(self) -> None:
        """Let one thing go wrong."""
        what = self.dice.choice(["kill", "kill", "zombie", *self.side.faults, "drain"])
        if what == "drain":
            if self.dice.random() < 0.3:
                self.drain()
                self.next_run()
            return
        self.faults[what] += 1
        if what in ("kill", "zombie"):
            self.kill(self.dice.choice([*SOURCES, OUTLET, OUTLET]), wakes=what == "zombie")
        else:
            self.side.harm(what, self.dice)

    def play(self) -> None:
        """Play to the end, and compare."""
        end, wanted = time.monotonic() + PATIENCE_S, [each for each in range(self.events) if not is_large(each)]
        while self.sent < self.events or len(set(self.seen())) < len(wanted):
            assert time.monotonic() < end, f"no progress: {len(self.seen())} of {self.sent}, {self.faults}"
            count = min(self.dice.randint(0, 40), self.events - self.sent)
            for number in range(self.sent, self.sent + count):
                self.side.send(number % FIRST, [json.dumps({"n": number}).encode()])
            self.sent += count
            if self.dice.random() < 0.3 and self.sent < self.events:
                self.fault()
            self.turn(self.tasks[SOURCES[0]])
            self.pass_on()
            self.turn(self.tasks[OUTLET])
            self.turn(self.tasks[SOURCES[1]])
            for zombie in list(self.zombies):
                try:
                    self.turn(zombie)
                except Superseded:
                    self.faults["superseded"] += 1
                    self.zombies.remove(zombie)
                    self.die(zombie)
        self.drain()
        assert sorted(self.seen()) == wanted, "events are missing, or there twice"
        large = sorted(json.loads(raw)["n"] for raw in self._logged(OUTLET, "raw"))
        assert large == list(filter(is_large, range(self.events))), "dead letters are missing, or there twice"
        self.faults["on the wire"] = self.side.on_the_wire()

    def seen(self) -> list[int]:
        """What the last source has, run by run."""
        return self._logged(SOURCES[1], "n")

    def _logged(self, task: str, column: str) -> list[Any]:
        found = []
        for run in range(1, self.run + 1):
            reader = LogReader(self.blobs, f"runs/r{run}/{task}", group_id=GROUP)
            for batch in reader.rows(reader.scan((0, 0)).parts):
                found += batch[column].to_pylist()
        return found

    def close(self) -> None:
        for task in [*self.zombies, *self.tasks.values()]:
            self.die(task)


def play(seed: int, side: Side, events: int) -> Counter[str]:
    """Play a seed. Return what happened."""
    path = list(sys.path)
    with TemporaryDirectory() as folder:
        chain = Chain(Random(seed), side, Path(folder), events)
        try:
            chain.play()
        finally:
            chain.close()
            sys.path[:] = path  # the job's folder is on it
    return chain.faults


def main(script: str, play: Callable[[int, int], Counter[str]]) -> None:
    """Play fresh seeds, or the one that is asked for. One that fails is printed."""
    options = argparse.ArgumentParser()
    options.add_argument("--seeds", type=int, default=30)
    options.add_argument("--seed", type=int)
    options.add_argument("--events", type=int, default=600)
    asked = options.parse_args()
    first = Random().randrange(1 << 32) if asked.seed is None else asked.seed
    happened: Counter[str] = Counter()
    seeds = range(first, first + (asked.seeds if asked.seed is None else 1))
    for seed in seeds:
        try:
            happened += play(seed, asked.events)
        except BaseException:
            print(f"python tests/prove/{script} --seed {seed} --events {asked.events}")
            raise
    print(
        f"{len(seeds) * asked.events:,} events, each once, as a row or a dead letter; what happened: {dict(happened)}"
    )

"""How fast an outlet sends rows to a hub or a topic: rows per second of its task's processor time, and by the clock.

Rows of about 200 bytes as JSON lie in the log of a stage in memory, so the storage takes no time. The hub is the
emulator, the broker tansu, each in a process of its own, whose time is not counted. The task works as in a container,
in one thread, beside the threads that the client has.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from common import Claim, main

from samza_azure.config import Config
from samza_azure.eventhubs.emulator import EventHubs
from samza_azure.kafka.local_broker import LocalBroker
from samza_azure.logs.record import Kind, Writer
from samza_azure.messages import StartTask
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import take_over
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.outlet_task import OutletTask

#: Per second of processor time, at 200 bytes.
LEAST, LEAST_KAFKA = 15_000, 20_000
GROUP, PER_RECORD, PARTITIONS = bytes(16), 5_000, 4
JOB = """
[app]
name = "out"
main = "sender:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
commit.ms = 0
[streams.clicks]
schema = "n bigint"
[streams.sent]
schema = "n bigint, user string, text string, at timestamp"
options.partition.method = "METHOD"
"""
HUB = """
system = "eventhubs"
options.connect = "CONNECT"
options.name = "hub"
"""
TOPIC = """
system = "kafka"
options.brokers = "CONNECT"
options.topic = "topic"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="sent")
class Pass:
    def process(self, envelope, collector): ...
"""


def measure(quick: bool) -> list[Claim]:
    """Send rows by two methods, to a topic also without transactions."""
    rows, found = 40_000 if quick else 200_000, []
    key = 'options.partition.by = "user"'
    ways = (
        ("a hub", HUB, "ROUND_ROBIN", "", LEAST),
        ("a hub", HUB, "EVENT_HASHING", key, LEAST),
        ("a topic in transactions", TOPIC, "ROUND_ROBIN", "", LEAST_KAFKA),
        ("a topic in transactions", TOPIC, "EVENT_HASHING", key, LEAST_KAFKA),
        ("a topic without transactions", TOPIC, "ROUND_ROBIN", "options.transactions = false", LEAST_KAFKA),
    )
    for where, system, method, more, least in ways:
        cpu_s, wall_s = _sent(
            rows, JOB.replace("METHOD", method) + system + more, _run_hubs if system == HUB else _run_broker
        )
        pace = rows / cpu_s
        found.append(
            Claim(
                f"{rows:,} rows of 200 bytes to {where} of {PARTITIONS} partitions, {method}",
                f"{pace:,.0f} rows per second of processor time, {rows / wall_s:,.0f} by the clock",
                f"at least {least:,} rows per second of processor time",
                pace >= least,
            )
        )
    return found


def _sent(rows: int, job: str, run: Callable[[Connection], None]) -> tuple[float, float]:
    """Let a task send so many rows. Return the seconds of processor time, and those by the clock."""
    here, there = multiprocessing.Pipe()
    outside = multiprocessing.get_context("spawn").Process(target=run, args=(there,), daemon=True)
    outside.start()
    path = list(sys.path)
    with TemporaryDirectory() as folder:
        try:
            context = _context(Path(folder), job.replace("CONNECT", here.recv()))
            _fill(context.blobs, rows)
            task = OutletTask(context, StartTask("sent-out-0", 1, 1, True, "r1", GROUP.hex()))
            assert task._begin()
            cpu, wall = time.process_time(), time.monotonic()
            while task._sink is None or task._sink.published_rows < rows:
                task._try()
            taken = time.process_time() - cpu, time.monotonic() - wall
            task._leaves()
        finally:
            sys.path[:] = path
            sys.modules.pop("sender", None)
            here.send(None)
            outside.join()
    return taken


def _run_hubs(told: Connection) -> None:
    with EventHubs({"hub": PARTITIONS}) as hubs:
        told.send(hubs.connection_string)
        told.recv()


def _run_broker(told: Connection) -> None:
    with LocalBroker({"topic": PARTITIONS}) as broker:
        told.send(broker.brokers)
        told.recv()


def _context(directory: Path, job: str) -> ContainerContext:
    (directory / "sender.py").write_text(PIPELINE)
    (directory / "job.toml").write_text(job)
    config, account = Config.load(directory / "job.toml"), MemoryAccount()
    return ContainerContext(
        config=config,
        pipeline=analyse_without_spark(load(config), config),
        blobs=account.blobs(),
        positions=account.readers(),
        hints=HintBoard(account.hints(), directory / "hints"),
        directory=directory,
        may_append=lambda: True,
        clean=str,
        changed=lambda: None,
    )


def _fill(blobs: Any, rows: int) -> None:
    """Let the stage write its rows."""
    log, _ = take_over(
        blobs, "runs/r1/Pass-0", group_id=GROUP, task="Pass-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={"stream": "sent"},
    )  # fmt: skip
    types = [pa.int64(), pa.string(), pa.string(), pa.timestamp("us", "UTC")]
    for begin in range(0, rows, PER_RECORD):
        numbers = range(begin, min(begin + PER_RECORD, rows))
        users = [f"user {number % 5_000}" for number in numbers]
        columns = [list(numbers), users, ["x" * 105] * len(numbers), list(numbers)]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        table = pa.table(arrays, names=["n", "user", "text", "at"])
        log.append(log.last_batch + 1, kind=Kind.BATCH, slices=[one_slice(0, table)])


if __name__ == "__main__":
    main(measure, __doc__)

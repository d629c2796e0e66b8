"""Sinks and compactors as processes of their own on one table, killed and stopped at random, and a reader that looks.

    python -m tests.storage.crowd sink|compact TABLE NAME ATTEMPT    # one of them; CONNECT names the account

`Crowd` starts them. Its rows are numbers in logs, one log for each sink; the oracle is what it has put there.
A process that is stopped is replaced, and wakes up when its successor is at work: a zombie, whose publish must be
refused by the storage.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from samza_azure import tables
from samza_azure.config import Config, TableSettings
from samza_azure.errors import StorageUnavailable, Superseded
from samza_azure.logs.position import Position
from samza_azure.logs.record import Kind, Writer
from samza_azure.segments import Granularity, LockOwner, LockTask
from samza_azure.storage.arrow import one_slice
from samza_azure.storage.connection import Account
from samza_azure.storage.log import LogReader, LogWriter, take_over
from samza_azure.storage.segments import SegmentStore
from samza_azure.tables import compaction
from samza_azure.tables.sink import Sink, SinkPosition

ROOT = Path(__file__).parents[2]
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])
TABLE = TableSettings(
    "t", "at", Granularity.DAY, 0.3, 100_000, 1 << 24, compact=True, target=1 << 20, grace_s=5, keep_s=None
)
DAYS = 4
PATIENCE_S = 120.0
SUPERSEDED = 3


def account_of(connect: str, table: str) -> Account:
    text = f'[app]\nname = "crowd-{table}"\nmain = "m:app"\n[azure.storage]\nconnect = "${{CONNECT}}"\n'
    return Account.from_config(Config.parse(text, environment={"CONNECT": connect}).storage)


def main() -> int:
    role, table, name, attempt = sys.argv[1:]
    store = tables.store_of(account_of(os.environ["CONNECT"], table), table)
    return sink(store, name, int(attempt)) if role == "sink" else compact(store, name, attempt)


def sink(store: SegmentStore, name: str, attempt: int) -> int:
    """Publish the rows of a log until it has ended."""
    prefix = f"logs/{name}"
    reader = LogReader(store.blobs, prefix, frozenset({0}))
    one = Sink(store, TABLE, SCHEMA, run="r", task=name, writer=(1, attempt), readers=[reader])
    claimed = False
    while True:
        try:
            if not claimed:
                if not one.claim(first=attempt == 1 or store.position(f"r/{name}") is None):
                    return 0
                claimed = True
            one.read(prefix, ends=True)
            if one.is_at_end and one.finish():
                return 0
            one.flush()
        except Superseded:
            return SUPERSEDED
        except StorageUnavailable:
            continue
        time.sleep(TABLE.flush_s)


def compact(store: SegmentStore, name: str, attempt: str) -> int:
    """Merge what is small, into several files and with another granularity now and then, until it is killed."""
    dice, task = random.Random(f"{name}{attempt}"), LockTask(f"{name}.{attempt}", name, 0, LockOwner(name, attempt))
    while True:
        try:
            day = Granularity.DAY.bucket(round((START + timedelta(days=dice.randrange(DAYS))).timestamp() * 1e6))
            if dice.random() < 0.15:
                wide = dice.choice((Granularity.MONTH, Granularity.DAY))
                tables.rewrite(store, task, day, wide)
            else:
                tables.compact(store, task, day, target_bytes=dice.choice((2_000, 1 << 20)))
            if dice.random() < 0.2:
                store.collect(time.time_ns() // 1000, 20_000_000)
        except StorageUnavailable:
            continue
        time.sleep(dice.random() * 0.2)


@dataclass
class Log:
    """The rows of one sink: which numbers end where."""

    writer: LogWriter
    ends: list[Position] = field(default_factory=list)
    numbers: list[list[int]] = field(default_factory=list)

    def up_to(self, position: Position) -> list[int]:
        return [each for part in self.numbers[: bisect_right(self.ends, position)] for each in part]


class Crowd:
    """All of them on one Azurite."""

    def __init__(self, connect: str, table: str, sinks: int, compactors: int, seed: int) -> None:
        self.connect, self.table, self.dice = connect, table, random.Random(seed)
        self.account = account_of(connect, table)
        self.account.ensure_created()
        self.store = tables.store_of(self.account, table)
        tables.create(self.store, SCHEMA, time="at", granularity=Granularity.DAY)
        self.sinks = [f"sink-{number}" for number in range(sinks)]
        self.compactors = [f"compact-{number}" for number in range(compactors)]
        self.attempts: Counter[str] = Counter()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.zombies: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.logs = {name: Log(self._log(name)) for name in self.sinks}
        self.number = 0
        self.looks = self.kills = self.stops = 0
        self.lock = threading.Lock()
        self.trouble: BaseException | None = None
        self.over = threading.Event()

    def _log(self, name: str) -> LogWriter:
        writer, _ = take_over(
            self.account.blobs(), f"logs/{name}", group_id=bytes(16), task=name, writer=Writer(1, 1), first=True,
            may_append=lambda: True, meta={"stream": "out"},
        )  # fmt: skip
        return writer

    def start(self, name: str) -> None:
        self.attempts[name] += 1
        command = [sys.executable, "-m", "tests.storage.crowd", "sink" if name in self.sinks else "compact"]
        command += [self.table, name, str(self.attempts[name])]
        environment = {**os.environ, "CONNECT": self.connect, "PYTHONPATH": str(ROOT)}
        self.running[name] = subprocess.Popen(command, cwd=ROOT, env=environment)

    def run(self, seconds: float, *, every: float) -> None:
        """Rows come, and processes are killed or stopped, until the time is over; then everything is drained."""
        reader = threading.Thread(target=self._guarded)
        try:
            for name in (*self.sinks, *self.compactors):
                self.start(name)
            self._put()
            self._published_any()
            reader.start()
            until, next_harm = time.monotonic() + seconds, time.monotonic() + every
            while time.monotonic() < until:
                self._put()
                if time.monotonic() >= next_harm:
                    self._harm()
                    next_harm = time.monotonic() + every
                if self.trouble:
                    raise self.trouble
                time.sleep(0.1)  # the rate of the rows
            self._drain()
            self.over.set()
            reader.join()
            if self.trouble:
                raise self.trouble
            assert self._seen() == self._all(), "the table is what was put into the logs"
        finally:
            self.over.set()
            for process in (*self.running.values(), *(process for _, process in self.zombies)):
                process.kill()
                process.wait()
            self.account.close()

    def _put(self, name: str = "") -> None:
        name = name or self.dice.choice(self.sinks)
        numbers = list(range(self.number, self.number + self.dice.randrange(1, 8)))
        self.number += len(numbers)
        moments = [START + timedelta(days=self.dice.randrange(DAYS), seconds=number) for number in numbers]
        rows = pa.table([moments, numbers], schema=SCHEMA)
        log = self.logs[name]
        with self.lock:
            end = log.writer.append(log.writer.last_batch + 1, slices=[one_slice(0, rows)])
            log.ends.append(end)
            log.numbers.append(numbers)

    def _harm(self) -> None:
        """Kill a process, or stop one and let it wake up when its successor is at work."""
        if self.zombies:
            name, zombie = self.zombies[-1]
            if name in self.sinks:
                self._put(name)  # a process that has nothing to publish is not refused, and does not end
            zombie.send_signal(signal.SIGCONT)
            if name in self.sinks:
                assert zombie.wait(PATIENCE_S) == SUPERSEDED, "a zombie goes on"
            else:
                time.sleep(0.5)  # let it try
                zombie.kill()
                zombie.wait()
            self.zombies.pop()
            return
        name = self.dice.choice([*self.sinks, *self.compactors])
        process = self.running[name]
        if self.dice.random() < 0.5:
            process.kill()
            process.wait()
            self.kills += 1
        else:
            process.send_signal(signal.SIGSTOP)
            self.zombies.append((name, process))
            self.stops += 1
        if name in self.compactors:  # a sink's successor does that itself
            self.store.end(LockOwner(name, str(self.attempts[name])))
        self.start(name)
        if self.zombies and name in self.sinks:
            self._claimed(name)

    def _claimed(self, name: str) -> None:
        """Wait until a sink has taken over."""
        deadline = time.monotonic() + PATIENCE_S
        while SinkPosition.parse(self.store.position(f"r/{name}")).writer[1] < self.attempts[name]:
            assert time.monotonic() < deadline and self.running[name].poll() is None
            time.sleep(0.05)  # the pace of asking

    def _published_any(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._seen():
            assert time.monotonic() < deadline, "nobody publishes"
            time.sleep(0.1)  # the pace of asking
        for name in self.sinks:
            while self.store.position(f"r/{name}") is None:
                assert time.monotonic() < deadline, f"{name} does not begin"
                time.sleep(0.1)  # the pace of asking

    def _drain(self) -> None:
        while self.zombies:
            self._harm()
        for log in self.logs.values():
            log.writer.append(log.writer.last_batch + 1, kind=Kind.DRAINED)
        for name in self.sinks:
            assert self.running[name].wait(PATIENCE_S) == 0, f"{name} has not published all"

    def _guarded(self) -> None:
        try:
            store = tables.store_of(self.account, self.table)
            while not self.over.is_set():
                self._look(store)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.trouble = error

    def _look(self, store: SegmentStore) -> None:
        """Each row at most once, and all that the positions say."""
        with self.lock:
            positions = {name: store.position(f"r/{name}") for name in self.sinks}
            known = Counter(
                number
                for name, text in positions.items()
                if text is not None
                for number in self.logs[name].up_to(SinkPosition.parse(text).at.get(f"logs/{name}", (0, 0)))
            )
        snapshot = tables.snapshot_of(store)
        found = Counter(snapshot.to_arrow()["number"].to_pylist())
        assert not [number for number, count in found.items() if count > 1], "rows twice"
        assert not known - found, f"rows missing: {sorted(known - found)[:5]}"
        with self.lock:
            assert not found - self._all(), "rows that nobody has put there"
        self.looks += 1

    def _all(self) -> Counter[int]:
        return Counter(number for log in self.logs.values() for part in log.numbers for number in part)

    def _seen(self) -> Counter[int]:
        return Counter(tables.snapshot_of(tables.store_of(self.account, self.table)).to_arrow()["number"].to_pylist())


if __name__ == "__main__":
    compaction.BATCH_ROWS = 16  # of many batches each
    sys.exit(main())

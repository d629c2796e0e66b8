"""Two partitions of a topic, read by source task after source task, while everything happens to them that a seed draws.

Between them and the broker is a proxy that cuts connections, loses answers and holds them back. What is written
between faults, some of it in transactions, is there once. So must it be in the log, in the order of its partition.
"""

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from samza_azure.errors import StorageUnavailable, Superseded
from samza_azure.kafka.local_broker import LocalBroker, free_port
from samza_azure.tasks.source_task import SourceTask
from tests.storage.proxy import Mode, Proxy
from tests.storage.test_source_task import Run, turn

from .clients import Messages, bodies

PATIENCE_S = 120.0
FAULT = 0.25
JOB = """
[app]
name = "kafka"
main = "outside:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
[streams.clicks]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "clicks"
partitions = 2
schema = "n bigint not null"
[streams.seen]
schema = "n bigint"
"""


@dataclass(eq=False)
class Play:
    """A topic of two partitions, the log, and its owners."""

    dice: Random
    run: Run
    proxy: Proxy
    plain: Messages
    in_transactions: Messages
    messages: int
    sent: list[int] = field(default_factory=lambda: [0, 0])
    ends: list[int] = field(default_factory=lambda: [0, 0])  # the offsets behind what was written
    owner: SourceTask | None = None
    zombies: list[SourceTask] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def play(self) -> None:
        """Play to the end, and say what is wrong with the log."""
        self.in_transactions.producer.init_transactions(PATIENCE_S)
        self.owner = self.run.owner(first=True)
        end = time.monotonic() + PATIENCE_S
        try:
            while not self.is_done():
                assert time.monotonic() < end, f"no progress: {self.places()} of {self.ends}, {self.faults}"
                self.feed()
                if self.dice.random() < FAULT and min(self.sent) < self.messages:
                    self.fault()
                for task in [self.owner, *self.zombies]:
                    self.turn(task)
        finally:
            for task in [self.owner, *self.zombies]:
                task._leaves()
        found, expected = self.run.rows(), [*range(self.messages)] * 2
        twice, missing = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
        assert found == expected, f"missing: {missing}, twice: {twice}, or in another order; {self.faults}"

    def is_done(self) -> bool:
        assert self.owner is not None
        return min(self.sent) == self.messages and self.places() == self.ends and not self.owner._has_moved

    def places(self) -> list[int]:
        """How far the owner has read."""
        assert self.owner is not None
        return [each.position[1] for _, each in sorted(self.owner._partitions.items())]

    def turn(self, task: SourceTask) -> None:
        try:
            turn(task)
        except Superseded:
            self.faults["superseded"] += 1
            task._leaves()
            self.zombies.remove(task)
        except StorageUnavailable:
            self.faults["unavailable"] += 1
            time.sleep(0.01)

    def feed(self) -> None:
        """Write some messages."""
        for partition in range(2):
            begin = self.sent[partition]
            count = min(self.dice.randint(0, 30), self.messages - begin)
            if not count:
                continue
            if self.dice.random() < 0.5:
                self.plain.send(partition, bodies(begin, begin + count))
            else:
                self.in_transactions.producer.begin_transaction()
                self.in_transactions.send(partition, bodies(begin, begin + count))
                self.in_transactions.producer.commit_transaction(PATIENCE_S)
                self.ends[partition] += 1  # the mark of its end
            self.sent[partition] += count
            self.ends[partition] += count

    def fault(self) -> None:
        """Let one thing go wrong."""
        what = self.dice.choice(
            ["cut", "cut", "kill", "kill", "steal", "steal", "lose", "half", "hold", "slow", "read"]
        )
        self.faults[what] += 1
        assert self.owner is not None
        match what:
            case "cut":
                self.proxy.cut()
            case "kill":
                self.owner._leaves()
                self.owner = self.run.owner()
            case "steal":
                self.zombies.append(self.owner)
                self.owner = self.run.owner()
            case "read":  # and die before the append
                with suppress(StorageUnavailable):
                    self.owner._read()
                self.owner._leaves()
                self.owner = self.run.owner()
            case _:
                modes = {
                    "lose": Mode.LOSE_ANSWERS,
                    "half": Mode.BREAK_ANSWERS,
                    "hold": Mode.HOLD_ANSWERS,
                    "slow": Mode.SLOW_REQUESTS,
                }
                self.proxy.mode, self.proxy.delay_s = modes[what], 0.05
                end = time.monotonic() + self.dice.uniform(0.1, 1.0)
                while time.monotonic() < end:
                    self.turn(self.owner)
                self.proxy.mode = Mode.PASS
                self.proxy.cut()  # what was held back never comes


def play(seed: int, messages: int, directory: Path) -> Play:
    """Play a seed."""
    port = free_port()
    with Proxy(port) as proxy, LocalBroker({"clicks": 2}, port=port, advertised=f"127.0.0.1:{proxy.port}") as broker:
        told = Play(
            Random(seed),
            Run(directory, JOB.replace("BROKERS", broker.brokers)),
            proxy,
            Messages.of(broker.brokers, "clicks", **{"enable.idempotence": True}),
            Messages.of(broker.brokers, "clicks", **{"transactional.id": "writer"}),
            messages,
        )
        told.play()
    return told

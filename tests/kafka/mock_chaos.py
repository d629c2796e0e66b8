"""One partition of librdkafka's mock cluster, read by owner after owner into a log, while everything happens to the
broker that a seed draws.

The log keeps rows together with the position behind them. At the end it must hold each message once, in order, but for
those that were deleted unread where that is to be skipped.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from samza_azure.errors import StorageUnavailable
from samza_azure.kafka.consumer import KafkaStream
from samza_azure.systems import looks
from samza_azure.systems.api import SystemPosition

from .clients import Messages, bodies
from .mock_cluster import FETCH, FIND_COORDINATOR, LIST_OFFSETS, MockCluster

PATIENCE_S = 120.0
FAULT = 0.25
#: Leader not available, not leader, timed out, throttled, a lost connection, of a former leader. Not that the topic
#: is unknown: at the start of an owner that is an error, and the task is tried again.
PASSING = (5, 6, 7, 89, -195, 74)


@dataclass(eq=False)
class Play:
    """A topic of one partition, the log, and its owners."""

    dice: Random
    cluster: MockCluster
    skips: bool
    messages: int
    sent: int = 0
    first: int = 0  # the message at offset 0
    expired: int = 0  # messages below this one may have been deleted unread
    log: list[int] = field(default_factory=list)
    position: SystemPosition = (0, 0)
    owner: KafkaStream | None = None
    faults: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Play to the end, and say what is wrong with the log."""
        try:
            self.written = Messages.of(self.cluster.brokers, "t", **{"enable.idempotence": True})
            self.take_over()
            end = time.monotonic() + PATIENCE_S
            while self.sent < self.messages or not self.log or self.log[-1] < self.messages - 1:
                assert time.monotonic() < end, f"no progress: {len(self.log)} of {self.messages}, {self.faults}"
                self.feed()
                if self.dice.random() < FAULT and self.sent < self.messages:
                    self.fault()
                self.read()
        finally:
            if self.owner is not None:
                self.owner.close()
        assert self.log == sorted(set(self.log)), f"messages came twice, or in another order: {self.faults}"
        missing = {*range(self.messages)} - {*self.log}
        assert max(missing, default=-1) < self.expired, f"{len(missing)} messages are missing that were there"

    def take_over(self) -> None:
        """Let a new owner read on behind the last position in the log."""
        assert self.owner is None
        options = {"on_expired": "skip" if self.skips else "fail"}
        options["librdkafka.queued.max.messages.kbytes"] = self.dice.choice(["1", "16384"])
        options["librdkafka.fetch.message.max.bytes"] = self.dice.choice(["1000", "1048576"])
        self.owner = Messages(self.cluster.brokers, "t", self.written.producer).stream(
            "n bigint", partitions=1, opened=False, **options
        )
        self.owner.open(0, self.position)

    def feed(self) -> None:
        """Write some messages, of which the last one is never deleted unread."""
        count = min(self.dice.randint(0, 30), self.messages - self.sent)
        self.written.send(0, bodies(self.sent, self.sent + count))
        self.sent += count

    def read(self) -> None:
        """Append what the owner has."""
        assert self.owner is not None
        for _ in range(self.dice.choice([1, 10])):
            try:
                rows = self.owner.read()
            except StorageUnavailable:
                self.faults["unavailable"] += 1
                rows = None
            if rows is None:
                time.sleep(0.01)
                continue
            assert rows.position > self.position
            self.log += rows.table["n"].to_pylist()
            self.position = rows.position

    def fault(self) -> None:
        """Let one thing go wrong."""
        what = self.dice.choice(["kill", "refuse", "refuse", "restart", "trim", "anew"])
        self.faults[what] += 1
        match what:
            case "kill":
                assert self.owner is not None
                self.owner.close()
                self.owner = None
                self.take_over()
            case "refuse":
                request = self.dice.choice([FETCH, FETCH, LIST_OFFSETS, FIND_COORDINATOR])
                errors = [self.dice.choice(PASSING) for _ in range(self.dice.randint(1, 4))]
                self.cluster.refuse(request, *errors)
            case "restart":
                self.cluster.stop()
                self.read()
                self.cluster.start()
            case "trim":
                # What is in the log may always go; what is not, only where that is to be skipped.
                if self.skips:
                    self.expired = self.sent
                elif not self.position[1]:
                    return
                self.cluster.trim("t", 0, self.sent - self.first if self.skips else self.position[1])
            case "anew":
                if self.skips:
                    self.expired = self.sent
                    self.cluster.delete("t")
                    self.cluster.create("t", 1)
                    self.written = Messages.of(self.cluster.brokers, "t", **{"enable.idempotence": True})
                    self.first, before = self.sent, self.position
                    end = time.monotonic() + PATIENCE_S
                    while before[0] and self.position[0] == before[0]:  # until the next look
                        assert time.monotonic() < end, "nobody noticed"
                        self.read()


def play(seed: int, messages: int) -> Play:
    """Play a seed."""
    dice = Random(seed)
    with pytest.MonkeyPatch.context() as patch, MockCluster({"t": 1}) as cluster:
        patch.setattr(looks, "LOOK_S", 0.2)
        told = Play(dice, cluster, dice.random() < 0.4, messages)
        told.run()
    return told

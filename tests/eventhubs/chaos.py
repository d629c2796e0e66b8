"""One partition of a hub, read by owner after owner into a log, while everything happens to them that a seed draws.

The log keeps what an arrival holds together with the position after it, as one append of the newest owner only. At
the end it must hold each event once, in order, but for those that expired unread where that is to be skipped.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from samza_azure.errors import Superseded
from samza_azure.eventhubs.emulator import EventHubs, Refused
from samza_azure.eventhubs.hub import EventHub
from samza_azure.eventhubs.partition_reader import EventPosition, PartitionReader

PATIENCE_S = 120.0
#: How often something goes wrong: between two times that events are sent.
FAULT = 0.25


@dataclass(eq=False)
class Play:
    """A hub of one partition, the log, and its owners."""

    dice: Random
    hubs: EventHubs
    skips: bool
    events: int
    sent: int = 0
    expired: int = 0  # events below this one may have expired unread
    log: list[int] = field(default_factory=list)
    position: EventPosition | None = None
    level: int = 0
    owner: PartitionReader | None = None
    zombies: list[PartitionReader] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Play to the end, and say what is wrong with the log."""
        try:
            self.take_over()
            end = time.monotonic() + PATIENCE_S
            while self.sent < self.events or not self.log or self.log[-1] < self.events - 1:
                assert time.monotonic() < end, f"no progress: {len(self.log)} of {self.events}, {self.faults}"
                self.feed()
                if self.dice.random() < FAULT and self.sent < self.events:
                    self.fault()
                self.read()
        finally:
            for reader in [*self.zombies, *filter(None, [self.owner])]:
                reader.close()
        assert self.log == sorted(set(self.log)), "events came twice, or in another order"
        missing = {*range(self.events)} - {*self.log}
        assert max(missing, default=-1) < self.expired, f"{len(missing)} events are missing that had not expired"

    def take_over(self) -> None:
        """Let a new owner read on after the last position in the log."""
        self.level += 1
        hub = EventHub("hub", connect=lambda: self.hubs.connection_string)
        start = self.position or "oldest"
        limits = {"prefetch": self.dice.choice([1, 20, 300]), "held_rows": self.dice.choice([10, 500])}
        self.owner = PartitionReader(hub, "0", start, level=self.level * 1024, skips=self.skips, **limits)
        self.owner.__enter__()

    def feed(self) -> None:
        """Send some events."""
        count = min(self.dice.randint(0, 60), self.events - self.sent)
        self.hubs.send("hub", 0, [b"%d" % number for number in range(self.sent, self.sent + count)])
        self.sent += count

    def read(self) -> None:
        """Append what the owner has, and see that older ones have nothing to say."""
        assert self.owner is not None
        arrival = self.owner.read(self.dice.choice([0.0, 0.01]))
        if arrival is not None:
            numbers = [int(body) for body in arrival.rows["body"].to_pylist()]
            assert numbers == arrival.rows["sequence_number"].to_pylist()
            self.log += numbers
            self.position = arrival.position
        for zombie in list(self.zombies):
            try:
                zombie.read()
            except Superseded:
                self.faults["superseded"] += 1
                zombie.close()
                self.zombies.remove(zombie)

    def fault(self) -> None:
        """Let one thing go wrong."""
        what = self.dice.choice(["tcp", "close", "detach", "kill", "steal", "throttle", "restart", "expire", "silence"])
        self.faults[what] += 1
        match what:
            case "tcp" | "close" | "detach":
                self.hubs.cut(what)
            case "kill":
                assert self.owner is not None
                self.owner.close()
                self.take_over()
            case "steal":
                assert self.owner is not None
                self.zombies.append(self.owner)
                self.take_over()
            case "throttle":
                self.hubs.refusals.append(Refused("com.microsoft:server-busy", "Please wait 4 seconds."))
                self.hubs.cut("detach")
            case "restart":
                self.hubs.close()
                self.hubs.listen()
            case "expire":
                # What is in the log may always go; what is not, only where that is to be skipped.
                self.expired = self.sent if self.skips else 0
                self.hubs.trim("hub", 0, self.expired or len(self.log))
            case "silence":
                self.hubs.hold("hub", 0)
                self.hubs.hold("hub", 0, held=False)


def play(seed: int, events: int) -> Play:
    """Play a seed."""
    dice = Random(seed)
    with EventHubs({"hub": 1}, geo=dice.random() < 0.3) as hubs:
        told = Play(dice, hubs, dice.random() < 0.3, events)
        told.run()
    return told

"""From hub to job to hub to job (`tests/storage/chain.py`), on the emulator."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from samza_azure.eventhubs import emulator
from samza_azure.eventhubs.emulator import EventHubs
from tests.storage import chain
from tests.storage.chain import FIRST, SECOND

STREAMS = """
[streams.first]
system = "eventhubs"
options.connect = "CONNECT"
options.name = "first"
partitions = 2
schema = "n bigint"
[streams.passed]
system = "eventhubs"
options.connect = "CONNECT"
options.name = "second"
options.partition.method = "METHOD"
BY
dead_letters = 600
schema = "n bigint, pad string"
[streams.back]
system = "eventhubs"
options.connect = "CONNECT"
options.name = "second"
partitions = 3
schema = "n bigint"
"""


class Hubs:
    """Two hubs."""

    faults = ("before", "after", "after", "tcp", "throttle")

    def __init__(self, hubs: EventHubs) -> None:
        self._hubs, self.streams = hubs, STREAMS.replace("CONNECT", hubs.connection_string)

    def send(self, partition: int, bodies: Sequence[bytes]) -> None:
        self._hubs.send("first", partition, bodies)

    def harm(self, what: str, dice: Random) -> None:
        match what:
            case "before" | "after":
                self._hubs.lost[what] = dice.randint(1, 3)
            case "tcp":
                self._hubs.cut("tcp")
            case "throttle":
                self._hubs.throttle(2)

    def on_the_wire(self) -> int:
        return sum(len(self._hubs.bodies("second", each)) for each in range(SECOND))


def play(seed: int, events: int) -> Counter[str]:
    """Play a seed. Return what happened."""
    with pytest.MonkeyPatch.context() as patch, EventHubs({"first": FIRST, "second": SECOND}) as hubs:
        patch.setattr(emulator, "MESSAGE_BYTES", chain.MOST)
        return chain.play(seed, Hubs(hubs), events)

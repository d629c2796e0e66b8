"""What may be wrong with the settings of a hub and of a topic, each as `check --connect` says it, and after how long.

python tests/prove/wrong_settings.py

Each is one sentence or two within 10 s, by the time-outs that users have: a table shows them. The tests of
`tests/eventhubs/test_hub_check.py` and `tests/kafka/test_access.py` look at the words.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from azure.core.credentials import AccessTokenInfo
from azure.core.exceptions import ClientAuthenticationError
from confluent_kafka import Producer

from samza_azure.errors import SamzaAzureError
from samza_azure.eventhubs.emulator import KEY, KEY_NAME, EventHubs
from samza_azure.eventhubs.hub import EventHub
from samza_azure.eventhubs.hub_check import tried
from samza_azure.kafka.local_broker import LocalBroker, free_port
from samza_azure.storage.identity import Identity
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream
from samza_azure.systems.registry import factory_of
from tests.kafka.front import Front
from tests.tls import certificate_in

SAID_WITHIN_S = 10.0
Case = tuple[str, dict[str, str]]


def hub_cases(hubs: EventHubs, silent: int) -> Iterator[Case]:
    """What is wrong, and the options."""
    connect = hubs.connection_string
    hubs.rights["sender"] = {"Send"}

    def case(what: str, was: str = "", other: str = "", **more: str) -> Case:
        return what, {"name": "hub", "connect": connect.replace(was, other) if was else connect + other, **more}

    yield case("key is missing", "SharedAccessKey=", "Key=")
    yield case("wrong key", KEY, "b3RoZXI=")
    yield case("a key that may only send", f"SharedAccessKeyName={KEY_NAME}", "SharedAccessKeyName=sender")
    yield case("no such hub", name="hubb")
    yield case("no such consumer group", consumer_group="mine")
    yield case("no such host", "localhost:", "nowhere.invalid:")
    yield case("no port", "localhost:", "localhost:9")
    yield case("a port that is shut", str(hubs.port), str(free_port()))
    yield case("a host that is silent", str(hubs.port), str(silent))
    yield case("another number of partitions", partitions="4")
    yield case("a connection string of another hub", other=";EntityPath=other")
    yield "a file that is missing", {"name": "hub", "connect.file": "gone"}
    yield case("a misspelt option", consumergroup="mine")


class Credential:
    """What azure-identity is on a machine that has no identity, or one that takes its time, as a cold one does."""

    def __init__(self, *, delay_s: float, has_token: bool) -> None:
        self.delay_s, self.has_token = delay_s, has_token

    def get_token_info(self, *_scopes: str, options: object = None) -> AccessTokenInfo:
        time.sleep(self.delay_s)
        if not self.has_token:
            raise ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token.")
        return AccessTokenInfo("token", int(time.time()) + 3600)


def of_identities(hubs: EventHubs) -> list[str]:
    """Print the same of an identity. Return what was not said as it should be. The fake speaks no TLS."""
    hubs.tokens["token"], bad = {"Listen"}, []
    for what, delay_s, has_token, says in (
        ("no token", 0.0, False, "There is no token for localhost"),
        ("no token after 6 s", 6.0, False, "There is no token for localhost"),
        ("a token after 6 s", 6.0, True, "may read it"),
    ):
        identity = Identity(partial(Credential, delay_s=delay_s, has_token=has_token))
        hub = EventHub("hub", namespace=f"localhost:{hubs.port}", credential=identity, tls=False)
        began = time.monotonic()
        try:
            said = tried(hub, 2)
        except SamzaAzureError as error:
            said = str(error)
        took = time.monotonic() - began
        print(f"{'eventhubs':<10}{what:<36}{took:>6.2f} s  {said}", flush=True)
        if took > SAID_WITHIN_S or says not in said:
            bad.append(f"eventhubs: {what}")
    return bad


def topic_cases(folder: Path, silent: int, started: ExitStack) -> Iterator[Case]:
    """The same of a topic."""
    certificate = certificate_in(folder)

    def front(**how: Any) -> str:
        port = free_port()
        before = started.enter_context(Front(port, **how))
        started.enter_context(LocalBroker({}, port=port, advertised=f"localhost:{before.port}"))
        return f"localhost:{before.port}"

    plain = started.enter_context(LocalBroker({"t": 2})).brokers
    over_tls, known = front(certificate=certificate), front(mechanism="PLAIN", password="secret")
    elsewhere = started.enter_context(LocalBroker({}, advertised="nowhere.invalid:9092"))
    Producer({"bootstrap.servers": f"127.0.0.1:{elsewhere.port}", "log_level": 0}).list_topics("t", timeout=20)
    me = {"sasl": "plain", "user": "me", "password": "secret", "tls": "false"}
    yield "no such topic", {"brokers": plain, "topic": "tt"}
    yield "another number of partitions", {"brokers": plain, "partitions": "4"}
    yield "no such host", {"brokers": "nowhere.invalid:9092"}
    yield "no port", {"brokers": "localhost:99999"}
    yield "a port that is shut", {"brokers": f"localhost:{free_port()}"}
    yield "a host that is silent", {"brokers": f"localhost:{silent}"}
    yield "TLS where there is none", {"brokers": plain, "tls": "true"}
    yield "no TLS where there is some", {"brokers": over_tls}
    yield "a certificate that nobody knows", {"brokers": over_tls, "tls": "true"}
    yield "a wrong password", {"brokers": known, **me, "password": "other"}
    yield "a mechanism that they do not take", {"brokers": known, **me, "sasl": "scram-sha-256"}
    yield "no password where they want one", {"brokers": known}
    yield "a file that is missing", {"brokers": known, "sasl": "plain", "user": "me", "password.file": "gone",
                                   "tls": "false"}  # fmt: skip
    yield "brokers that are elsewhere", {"brokers": f"127.0.0.1:{elsewhere.port}", "partitions": "4"}
    yield "a setting that the client has not", {"brokers": plain, "librdkafka.fetch.wait": "1"}
    yield "a misspelt option", {"brokers": plain, "bootstrap.servers": plain}


@contextmanager
def silence() -> Iterator[int]:
    """A port where somebody takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def show(system: str, cases: Iterator[Case]) -> list[str]:
    """Print a line for each case. Return those that took too long or had no sentence."""
    bad = []
    for what, options in cases:
        given = {"topic": "t", **options} if system == "kafka" else options
        partitions = int(given.pop("partitions", 2))
        began, said = time.monotonic(), ""
        try:
            stream = SystemStream("s", partitions, ddl.arrow_schema("n int"), given, Path())
            look: Callable[[], str] = factory_of(system, "s").get_admin(stream).look  # type: ignore[attr-defined]
            look()
        except SamzaAzureError as error:
            said = str(error)
        took = time.monotonic() - began
        print(f"{system:<10}{what:<36}{took:>6.2f} s  {said}", flush=True)
        if took > SAID_WITHIN_S or not said.endswith(".") or "\n" in said:
            bad.append(f"{system}: {what}")
    return bad


def main() -> None:
    with EventHubs({"hub": 2}) as hubs, silence() as silent, TemporaryDirectory() as folder, ExitStack() as started:
        bad = show("eventhubs", hub_cases(hubs, silent))
        bad += of_identities(hubs)
        bad += show("kafka", topic_cases(Path(folder), silent, started))
    assert not bad, f"too late, or without a sentence: {', '.join(bad)}"


if __name__ == "__main__":
    main()

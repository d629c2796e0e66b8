"""`check --connect`: each thing that may be wrong with a hub is one sentence, which says what to do."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from azure.core.credentials import AccessTokenInfo
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub.exceptions import ConnectError

from samza_azure.errors import AccessDenied, ConfigError, SamzaAzureError, SignInFailed, StorageUnavailable
from samza_azure.eventhubs import hub_check
from samza_azure.eventhubs import options as options_module
from samza_azure.eventhubs.consumer import EventHubsStream
from samza_azure.eventhubs.emulator import KEY, KEY_NAME, READERS, EventHubs
from samza_azure.eventhubs.hub import SCOPE, EventHub
from samza_azure.storage.identity import Identity
from samza_azure.stream_io import ddl
from samza_azure.systems.api import SystemStream

from .clients import consumer, receiving, until

SAID_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def hubs() -> Iterator[EventHubs]:
    with EventHubs({"hub": 2}) as hubs:
        yield hubs


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is on this machine."""
    monkeypatch.setattr(hub_check, "OPEN_S", 0.5)


def looked(connect: str, partitions: int = 2, **options: str) -> str:
    """What a look says, in time."""
    given = {"name": "hub", "connect": connect} | options
    given = {name.replace("__", "."): value for name, value in given.items() if value}
    began = time.monotonic()
    try:
        return EventHubsStream(SystemStream("s", partitions, ddl.arrow_schema("n int"), given, Path())).look()
    finally:
        assert time.monotonic() < began + SAID_WITHIN_S


def test_a_hub_that_can_be_read_is_described_and_a_reader_is_not_evicted(hubs: EventHubs) -> None:
    assert looked(hubs.connection_string) == (
        "the hub 'hub' at localhost has 2 partitions, and the consumer group '$Default' may read it"
    )
    reading = EventHubsStream(
        SystemStream(
            "s", 2, ddl.arrow_schema("n int"), {"name": "hub", "connect": hubs.connection_string}, Path(), owner=1024
        )
    )
    reading.open(0, (0, 0))
    while not hubs.readers("hub", 0):
        time.sleep(0.01)
    assert looked(hubs.connection_string).endswith(
        "and a job reads it now: a reader of the owner level 1024, which the service does not name"
    )
    assert hubs.readers("hub", 0) == 1
    reading.close()


@pytest.mark.parametrize(
    ("instead", "options", "error", "says"),
    [
        (("SharedAccessKey=", "Key="), {}, ConfigError, "connection string of the hub 'hub' cannot be used"),
        ((KEY, "b3RoZXI="), {}, AccessDenied, "refuses its key or identity: it needs the right to listen"),
        (
            (f"SharedAccessKeyName={KEY_NAME}", "SharedAccessKeyName=sender"),
            {},
            AccessDenied,
            "it needs the right to listen",
        ),
        (("", ""), {"name": "hubb"}, ConfigError, "The hub 'hubb' does not exist"),
        (("", ""), {"consumer_group": "mine"}, ConfigError, "has no consumer group 'mine'. Correct"),
        (("localhost:", "nowhere.invalid:"), {}, ConfigError, "finds no address of 'nowhere.invalid'"),
        (("localhost:", f"{'n' * 64}.invalid:"), {}, ConfigError, "finds no address of 'nnn.*too long"),
        (("localhost:", "localhost:9"), {}, ConfigError, r"is no port of 'localhost': ports are 1 to 65535. Correct"),
        (("", ""), {"partitions": "4"}, ConfigError, "has 2 partitions, and the job file says 4. Write partitions = 2"),
        (("", ";EntityPath=other"), {}, ConfigError, "is for the hub 'other', as its EntityPath says"),
    ],
)
def test_what_is_wrong_is_said(
    hubs: EventHubs, instead: tuple[str, str], options: dict[str, str], error: type[SamzaAzureError], says: str
) -> None:
    hubs.rights["sender"] = {"Send"}
    was, other = instead
    connect = hubs.connection_string.replace(was, other) if was else hubs.connection_string + other
    partitions = int(options.pop("partitions", 2))
    with pytest.raises(error, match=says):
        looked(connect, partitions, **options)


def test_a_group_that_is_full_of_readers_without_a_level_is_said_and_is_no_error(hubs: EventHubs) -> None:
    """The job gets in, since its level disconnects them; `check` said that the hub does not answer."""
    with ExitStack() as reading:
        for _ in range(READERS):
            reading.enter_context(receiving(consumer(hubs), lambda *_: None))
        until(lambda: hubs.readers("hub", 0) == READERS)
        assert "as many readers without an owner level as it takes read it now" in looked(hubs.connection_string)
        assert hubs.readers("hub", 0) == READERS


def test_a_limit_of_the_namespace_is_named() -> None:
    error = ConnectError("Cannot allocate more handles.")
    error.error = "amqp:resource-limit-exceeded"
    found = EventHub("hub").explained(error)
    assert isinstance(found, StorageUnavailable) and "as many readers, senders or connections as it takes" in str(found)


def test_a_file_with_the_connection_string_that_is_not_there_is_named() -> None:
    with pytest.raises(StorageUnavailable, match=r"connect\.file cannot be read"):
        looked("", connect__file="gone")


def test_a_port_that_is_shut_and_a_host_that_is_silent_are_told_apart(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connect = hubs.connection_string.replace(str(hubs.port), str(port))
        monkeypatch.setattr(hub_check, "ANSWER_S", 0.5)
        with pytest.raises(StorageUnavailable, match=r"takes connections, and has not answered within 0.5 s"):
            looked(connect)
    with pytest.raises(StorageUnavailable, match=rf"Port {port} of localhost cannot be reached.*Open it"):
        looked(connect)


class Credential:
    """Of this machine: it takes a while, or has no token."""

    def __init__(self, *, delay_s: float = 0.0, has_token: bool = True) -> None:
        self.delay_s, self.has_token, self.scopes = delay_s, has_token, list[str]()

    def get_token_info(self, *scopes: str, options: object = None) -> AccessTokenInfo:
        self.scopes += scopes
        time.sleep(self.delay_s)
        if not self.has_token:
            raise ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token from all it knows.")
        return AccessTokenInfo("token", int(time.time()) + 3600)


def by_identity(hubs: EventHubs, credential: Credential, monkeypatch: pytest.MonkeyPatch) -> EventHubsStream:
    """A stream that is read by the identity of the machine. The fake speaks no TLS."""
    identity = Identity(lambda: credential)
    monkeypatch.setattr(options_module, "of_this_process", lambda: identity)
    given = {"name": "hub", "namespace": f"localhost:{hubs.port}"}
    reading = EventHubsStream(SystemStream("s", 2, ddl.arrow_schema("n int"), given, Path()))
    reading._hub = replace(reading._hub, tls=False)
    return reading


def test_without_a_token_the_identity_is_at_fault_and_not_the_hub(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = by_identity(hubs, Credential(has_token=False), monkeypatch)
    with pytest.raises(
        SignInFailed, match=r"no token for localhost:\d+, so nothing was sent\. .*`az login`.*failed to"
    ):
        reading.look()
    with pytest.raises(SignInFailed):
        reading.partitions()


def test_a_token_that_takes_longer_than_the_hub_may_is_waited_for_once(
    hubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs.tokens["token"] = {"Listen"}
    credential = Credential(delay_s=hub_check.ANSWER_S + 0.2)
    reading = by_identity(hubs, credential, monkeypatch)
    assert reading.look().endswith("the consumer group '$Default' may read it")
    assert reading.partitions() == 2
    assert credential.scopes == [SCOPE], "there is one token for all clients"

"""TLS, passwords and tokens: who is let in, what is said of who is not, and secrets that are renewed. tansu stands
behind a front that has them (`front.py`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessTokenInfo

from samza_azure.errors import AccessDenied, ConfigError, SamzaAzureError, SignInFailed, StorageUnavailable
from samza_azure.kafka import access as access_module
from samza_azure.kafka import topic as topic_module
from samza_azure.kafka import topic_check
from samza_azure.kafka.local_broker import LocalBroker, free_port
from samza_azure.storage.identity import Identity
from samza_azure.systems import looks as looks_module
from tests.tls import certificate_in

from .clients import Messages, bodies, numbers, until
from .front import Front

SECRET = "a-word-that-nobody-knows"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers are on this machine."""
    monkeypatch.setattr(looks_module, "LOOK_S", 0.2)
    monkeypatch.setattr(topic_module, "ANSWER_S", 1.0)
    monkeypatch.setattr(topic_check, "CONNECT_S", 0.3)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_in(tmp_path_factory.mktemp("tls"))


@contextmanager
def behind(client: dict[str, str], **front: Any) -> Iterator[tuple[Front, Messages]]:
    """A front and a topic of ten messages behind it, which a client with these settings has written."""
    port = free_port()
    with (
        Front(port, **front) as before,
        LocalBroker({}, port=port, advertised=f"localhost:{before.port}") as broker,
    ):
        messages = Messages.of(broker.brokers, "t", **client)
        messages.send(0, bodies(0, 10))
        yield before, messages


def refused(messages: Messages, **options: str) -> SamzaAzureError:
    """What is said of a stream with these options."""
    reading = messages.stream(opened=False, partitions=4, **options)
    with pytest.raises(SamzaAzureError) as raised:
        reading.look()
    assert options.get("password", SECRET) not in str(raised.value)
    return raised.value


def read(messages: Messages, **options: str) -> None:
    reading = messages.stream(partitions=4, **options)
    assert reading.look().endswith("has 4 partitions, and may be read")
    assert numbers(reading, 10) == {0: [*range(10)]}
    reading.close()


@pytest.mark.long
def test_tls_is_spoken_and_a_wrong_guess_is_named(certificate: Path) -> None:
    trusted = {"security.protocol": "ssl", "ssl.ca.location": str(certificate)}
    with behind(trusted, certificate=certificate) as (_, messages):
        read(messages, tls="true", ca__file=str(certificate))
        assert "speaks TLS, and options.tls is false. Write options.tls = true" in str(refused(messages))
        error = refused(messages, tls="true")
        assert isinstance(error, AccessDenied) and "options.ca.file" in str(error)
        error = refused(messages, tls="true", ca__file="gone.pem")
        assert isinstance(error, ConfigError) and "options.ca.file names a file that is not on this machine" in str(
            error
        )


@pytest.mark.parametrize(
    ("brokers", "says"),
    [
        ("localhost:99999", "99999 is no port of 'localhost'"),
        ("localhost:http", "'localhost:http' is no address of a broker. Write host:port."),
        ("nowhere.invalid:9092", "finds no address of 'nowhere.invalid'"),
    ],
)
def test_an_address_that_is_none_is_named(brokers: str, says: str) -> None:
    assert says in str(refused(Messages.of("localhost:1", "t"), brokers=brokers, tls="false"))


@pytest.mark.parametrize("mechanism", ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.long)])
def test_a_password_lets_in_and_a_wrong_one_is_named(mechanism: str) -> None:
    sasl, user = mechanism.lower(), {"sasl.username": "me", "sasl.password": SECRET}
    client = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": mechanism, **user}
    with behind(client, mechanism=mechanism, password=SECRET) as (_, messages):
        read(messages, sasl=sasl, user="me", password=SECRET, tls="false")
        error = refused(messages, sasl=sasl, user="me", password="another-word", tls="false")
        assert isinstance(error, AccessDenied) and "refuse the user or its password" in str(error)
        error = refused(messages, sasl="scram-sha-512", user="me", password=SECRET, tls="false")
        assert isinstance(error, ConfigError) and "do not take options.sasl = 'scram-sha-512'" in str(error)
        error = refused(messages)
        assert isinstance(error, StorageUnavailable) and "write options.sasl" in str(error)


def test_who_is_refused_later_does_not_hammer_the_brokers(tmp_path: Path) -> None:
    """It tried more than fifty times a second, for as long as it took: accounts are locked by that."""
    user = {"sasl.username": "me", "sasl.password": SECRET}
    client = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", **user}
    file = tmp_path / "password"
    file.write_text(SECRET)
    with behind(client, mechanism="PLAIN", password=SECRET) as (front, messages):
        messages.producer = None  # type: ignore[assignment] # it would be refused as well
        reading = messages.stream(partitions=4, sasl="plain", user="me", password__file=str(file), tls="false")
        numbers(reading, 10)
        front.password = "renewed-word"
        front.cut()
        until(lambda: front.refused and unavailable(reading))
        end = time.monotonic() + 3
        until(lambda: (unavailable(reading), time.monotonic() > end)[1])
        assert front.refused < 40
        reading.close()


@pytest.mark.long
def test_a_password_in_a_file_is_read_again_once_it_is_refused(tmp_path: Path) -> None:
    user = {"sasl.username": "me", "sasl.password": SECRET}
    client = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", **user}
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    with behind(client, mechanism="PLAIN", password=SECRET) as (front, messages):
        reading = messages.stream(partitions=4, sasl="plain", user="me", password__file=str(file), tls="false")
        numbers(reading, 10)
        front.password = "renewed-word"
        front.cut()
        until(lambda: front.refused and unavailable(reading))
        file.write_text("renewed-word")
        Messages.of(messages.brokers, "t", **client | {"sasl.password": "renewed-word"}).send(0, bodies(10, 20))
        assert numbers(reading, 10) == {0: [*range(10, 20)]}
        reading.close()


def unavailable(reading: Any) -> bool:
    try:
        reading.read()
    except StorageUnavailable:
        return True
    return False


@pytest.mark.long
def test_an_identity_is_let_in_by_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Known:
        def get_token_info(self, scope: str, options: object = None) -> AccessTokenInfo:
            asked.append(scope)
            return AccessTokenInfo("token-of-the-machine", int(time.time()) + 3600)

    identity = Identity(Known)
    monkeypatch.setattr(access_module, "of_this_process", lambda: identity)
    plain = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "OAUTHBEARER"}
    token = lambda _: ("token-of-the-machine", time.time() + 3600)  # noqa: E731
    front = {"mechanism": "OAUTHBEARER", "token": "token-of-the-machine"}
    with behind(plain | {"oauth_cb": token}, **front) as (before, messages):
        read(messages, sasl="identity", tls="false")
        assert asked == ["https://localhost/.default"], "there is one token for all clients"
        before.token = "another"
        error = refused(messages, sasl="identity", tls="false")
        assert isinstance(error, AccessDenied) and "refuse the identity" in str(error)


def test_no_token_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    class Nobody:
        def get_token_info(self, _scope: str, options: object = None) -> AccessTokenInfo:
            raise ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token.")

    identity = Identity(Nobody)
    monkeypatch.setattr(access_module, "of_this_process", lambda: identity)
    with LocalBroker({"t": 4}) as broker:
        error = refused(Messages(broker.brokers, "t", None), sasl="identity", tls="false")  # type: ignore[arg-type]
    assert isinstance(error, SignInFailed) and "`az login`" in str(error) and "failed to retrieve a token" in str(error)


def test_a_connection_string_of_event_hubs_is_a_user_and_a_password() -> None:
    connect = f"Endpoint=sb://localhost:PORT/;SharedAccessKeyName=reads;SharedAccessKey={SECRET}"
    client = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", "sasl.username": "me"}
    with behind(client | {"sasl.password": "first"}, mechanism="PLAIN", password="first") as (front, messages):
        own = connect.replace("PORT", str(front.port))
        front.user, front.password = "$ConnectionString", own
        reading = messages.stream(opened=False, partitions=4, connect=own, tls="false")
        for number in range(4):
            reading.open(number, (0, 0))
        assert numbers(reading, 10) == {0: [*range(10)]}
        reading.close()
        assert SECRET not in str(refused(messages, connect=own.replace("reads", "sends"), tls="false"))
        error = refused(messages, connect=f"SharedAccessKey={SECRET}")
        assert isinstance(error, ConfigError) and "no connection string of Event Hubs" in str(error)


def test_a_connection_that_breaks_in_the_sign_in_is_no_refusal() -> None:
    """One ended a run whose key is in the environment, and closed the consumer of one that was let in."""
    user = {"sasl.username": "me", "sasl.password": SECRET}
    client = {"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", **user}
    with behind(client, mechanism="PLAIN", password=SECRET) as (front, messages):
        reading = messages.stream(partitions=4, sasl="plain", user="me", password=SECRET, tls="false")
        front.breaks = True
        with pytest.raises(StorageUnavailable, match=r"do not answer: .*handshake failed"):
            reading.partitions()
        front.breaks = False
        assert numbers(reading, 10) == {0: [*range(10)]}
        consumer, front.breaks = reading._consumer, True
        front.cut()
        until(lambda: unavailable(reading))
        front.breaks = False
        until(lambda: not unavailable(reading))
        assert reading._consumer is consumer
        reading.close()

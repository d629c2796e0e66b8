"""Who we are to a broker, and how its client is set up.

A secret comes from the job file, where an environment variable may stand for it, or from a file, which is read again
once the broker has refused it: so a renewed one counts without a restart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samza_azure.account import parts_of
from samza_azure.errors import ConfigError
from samza_azure.storage.identity import NoToken, of_this_process, sign_in_failed, signed_in
from samza_azure.systems.api import SystemStream
from samza_azure.systems.options import FILE, one_of, secret

#: An option with this before it is a setting of the client, librdkafka.
CLIENT = "librdkafka."
OPTIONS = (
    "brokers", "connect", "connect.file", "sasl", "user", "password", "password.file", "scope", "tls", "ca.file",
    "certificate.file", "certificate.key.file", "certificate.key.password",
)  # fmt: skip
NONE, IDENTITY, SCOPE, PASSPHRASE = "none", "identity", "scope", "certificate.key.password"
#: Options that name files, and what the client calls them.
FILES = {
    "ca.file": "ssl.ca.location",
    "certificate.file": "ssl.certificate.location",
    "certificate.key.file": "ssl.key.location",
}
MECHANISMS = (NONE, "plain", "scram-sha-256", "scram-sha-512", IDENTITY)
#: The user that the Kafka endpoint of Event Hubs wants with a connection string.
CONNECTION_STRING = "$ConnectionString"
EVENT_HUBS_PORT = 9093
#: At most so long a client waits until it connects again; at first for a tenth of a second.
RECONNECT_MS = 2_000
#: Settings on which rests what is promised.
OWN = {
    "bootstrap.servers", "metadata.broker.list", "security.protocol", "sasl.mechanism", "sasl.mechanisms",
    "sasl.username", "sasl.password", "group.id", "enable.auto.commit", "enable.auto.offset.store",
    "auto.offset.reset", "isolation.level", "enable.partition.eof", "allow.auto.create.topics", "oauth_cb", "error_cb",
    "check.crcs", "transactional.id", "enable.idempotence", "enable.gapless.guarantee", "message.timeout.ms", "acks",
    "request.required.acks", "delivery.report.only.error", "partitioner",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """The way to the brokers of a stream."""

    key: str  # of the options, for messages
    settings: Mapping[str, Any]  # of librdkafka, but for what may be renewed
    named: str  # brokers; empty: the connection string says them
    connect: Callable[[], str] | None
    user: str
    password: Callable[[], str] | None
    tls: bool
    mechanism: str
    files: Mapping[str, Path]  # by option
    is_fixed: bool = False  # whether the secret stays as it is, and with it a refusal

    def brokers(self) -> str:
        """host:port, with commas between."""
        return self.named or _endpoint(self.connect() if self.connect else "", self.key)

    def present(self) -> dict[str, Any]:
        """The settings, with the present password. Raise `StorageUnavailable` if a file with it cannot be read."""
        for option, path in self.files.items():
            if not path.is_file():
                raise ConfigError(f"{self.key}.{option} names a file that is not on this machine. Correct the path.")
        brokers = self.brokers()
        found = {**self.settings, "bootstrap.servers": brokers}
        if self.mechanism == IDENTITY:
            found["oauth_cb"] = Tokens(self.settings.get(SCOPE) or _scope(brokers))
            found.pop(SCOPE, None)
        if self.password is not None:
            found |= {"sasl.username": self.user, "sasl.password": self.password()}
        return found


def access_of(stream: SystemStream) -> Access:
    """What the options say. Raise ConfigError if they do not fit together."""
    options, key = stream.options, f"streams.{stream.name}.options"
    connect, user, password = secret(stream, "connect"), options.get("user", ""), secret(stream, "password")
    if (connect is None) == ("brokers" not in options):
        raise ConfigError(
            f"{key} should name the brokers. Write under [streams.{stream.name}]: options.brokers = "
            '"host:9092,host:9092", or, for Event Hubs, options.connect = "${EVENTHUBS}" with its connection string.'
        )
    if connect is not None:
        if wrong := next((name for name in ("sasl", "user", "password", "password.file") if name in options), None):
            raise ConfigError(f"{key} has connect and {wrong}: a connection string says who we are. Remove {wrong}.")
        mechanism, user, password = "plain", CONNECTION_STRING, connect
    else:
        mechanism = one_of(stream, "sasl", *MECHANISMS)
        needs = mechanism not in (NONE, IDENTITY)
        if needs != bool(user) or needs != (password is not None):
            rest = (
                'Write options.user, and options.password = "${NAME}" or options.password.file = "path".'
                if needs
                else "Remove them, or write options.sasl: plain, scram-sha-256 or scram-sha-512."
            )
            raise ConfigError(
                f"{key}.sasl is {mechanism!r}, which takes {'both' if needs else 'no'} user and password. {rest}"
            )
    tls = one_of(stream, "tls", *(("false", "true") if mechanism == NONE else ("true", "false"))) == "true"
    settings: dict[str, Any] = {
        "security.protocol": ("sasl_" if mechanism != NONE else "") + ("ssl" if tls else "plaintext"),
        "socket.keepalive.enable": True,
        "metadata.max.age.ms": 180_000,  # Event Hubs ends a connection that was idle for four minutes
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "log_level": 0,  # it also logs each error that it hands to us
    }
    if mechanism == IDENTITY:
        settings |= {"sasl.mechanisms": "OAUTHBEARER", SCOPE: options.get(SCOPE, "")}
    elif mechanism != NONE:
        settings["sasl.mechanisms"] = mechanism.upper()
    if SCOPE in options and mechanism != IDENTITY:
        raise ConfigError(f"{key}.{SCOPE} is for sasl = {IDENTITY!r} alone. Remove the line.")
    files = {option: stream.directory / options[option] for option in FILES if option in options}
    if not tls and (wrong := next(iter([*files, *([PASSPHRASE] if PASSPHRASE in options else [])]), None)):
        raise ConfigError(f"{key}.{wrong} is for TLS, which these options do not ask for. Write options.tls = true.")
    settings |= {FILES[option]: str(path) for option, path in files.items()}
    if PASSPHRASE in options:
        settings["ssl.key.password"] = options[PASSPHRASE]
    given = {name.removeprefix(CLIENT): value for name, value in options.items() if name.startswith(CLIENT)}
    if wrong := next((name for name in given if name in OWN), None):
        raise ConfigError(f"{key}.{CLIENT}{wrong} is set by samza-azure itself. Remove the line.")
    is_fixed = password is not None and not {f"{name}{FILE}" for name in ("connect", "password")} & {*options}
    return Access(
        key, settings | given, options.get("brokers", ""), connect, user, password, tls, mechanism, files, is_fixed
    )


def is_client_setting(name: str) -> bool:
    """Whether an option is a setting of librdkafka."""
    return name.startswith(CLIENT)


def _endpoint(connect: str, key: str) -> str:
    """The Kafka endpoint of the namespace in a connection string."""
    found = dict(parts_of(connect))
    host = found.get("endpoint", "").removeprefix("sb://").rstrip("/")
    if not host or "sharedaccesskey" not in found:
        raise ConfigError(
            f"{key}.connect is no connection string of Event Hubs: it lacks Endpoint or SharedAccessKey. "
            "Copy that of a policy with the right to listen, or name the brokers of another service: options.brokers."
        )
    return host if ":" in host else f"{host}:{EVENT_HUBS_PORT}"


def _scope(brokers: str) -> str:
    """Event Hubs and Fabric want a token for the namespace."""
    return f"https://{brokers.partition(',')[0].partition(':')[0]}/.default"


class Tokens:
    """The tokens of this machine's identity. The client asks for one before its first connection, and whenever the last
    one is about to expire; without an answer it would wait for ten seconds and then not say why.
    """

    def __init__(self, scope: str) -> None:
        """Get the first one. Raise SignInFailed if there is none."""
        self._scope, self._identity = scope, of_this_process()
        signed_in(self._identity, scope, scope)

    def __call__(self, _config: str) -> tuple[str, float]:
        """A token, and when it expires, in seconds since 1970."""
        try:
            found = self._identity.get_token(self._scope)
        except NoToken as error:
            raise sign_in_failed(self._scope, error) from error
        return found.token, float(found.expires_on)

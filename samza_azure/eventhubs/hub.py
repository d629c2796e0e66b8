"""One hub, as a consumer group sees it: clients of the SDK, the hub's properties, and what its errors mean.

The SDK hides each error but a stolen link while it has retries left, and a reader that reconnects by itself is handed
events twice. So nothing here retries; whoever calls waits and asks again. After 30 s a second thread of the SDK reads
the connection, too, and then events change places. So it has none. `tests/eventhubs/test_sdk_traps.py` shows all three.
"""

import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError

from samza_azure.errors import (
    AccessDenied,
    ConfigError,
    RowsGone,
    SamzaAzureError,
    StorageUnavailable,
    Superseded,
)
from samza_azure.eventhubs.deadline import Deadline
from samza_azure.eventhubs.receiving import ReadingClient
from samza_azure.storage.identity import Identity, no_token_in, sign_in_failed, signed_in
from samza_azure.systems.looks import begun
from samza_azure.systems.options import EPOCH, whole_ms

#: The SDK also logs each error that it hands to us, as many lines.
logging.getLogger("azure.eventhub").setLevel(logging.CRITICAL)

#: How long the SDK waits for the next frame while it connects.
SOCKET_TIMEOUT_S = 0.1
#: How long a thread of the SDK goes on that outlives its link: it sleeps so long between two looks at who reads what.
BALANCE_S = 2.0
#: How long an answer about a hub is waited for. The SDK would wait forever.
ANSWER_S = 10.0
#: What the SDK asks an identity for.
SCOPE = "https://eventhubs.azure.net//.default"
#: What the service asks of clients that it throttles.
BUSY_S = 4.0
#: How the service names a reader that evicts us, or keeps us out.
_READER = re.compile(r"[Rr]eceiver '([^']*)' with (?:a )?higher epoch (?:of )?'(-?\d+)'")
_LEVEL = re.compile(r"epoch (?:of )?'(-?\d+)'")
#: What the sign-in answers, and what of that is a refusal: all else is a fault of the service.
_STATUS, REFUSALS = re.compile(r"Status code: (\d+)"), ("400", "401", "403", "404")
#: What it says of too many readers, senders or connections.
TOO_MANY = "resource-limit-exceeded"
C = TypeVar("C", ReadingClient, EventHubProducerClient)


@dataclass(frozen=True, slots=True)
class HubFacts:
    """What the service says of a hub."""

    partitions: tuple[str, ...]
    created_ms: int


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """The numbers of the oldest event and of the last one. They are equal but one if there is none."""

    first: int
    last: int
    enqueued_ms: int  # the last one


@dataclass(frozen=True, slots=True)
class EventHub:
    """A hub in a namespace, and a consumer group. `connect` returns the connection string and is asked for each new
    connection, so a new secret counts from then on; otherwise `namespace` and `credential` are used.
    """

    name: str
    group: str = "$Default"
    connect: Callable[[], str] | None = None
    namespace: str = ""
    credential: Identity | None = None
    tls: bool = True
    sends: bool = False  # whether it is written
    is_fixed: bool = False  # whether the connection string stays as it is, and with it a refusal

    def sign_in(self) -> None:
        """Have a token of the identity, before the time begins in which the hub has to answer: the first one may take
        seconds. Raise SignInFailed if there is none.
        """
        if self.credential is not None:
            signed_in(self.credential, SCOPE, self.namespace)

    def client(self, partition: str = "") -> ReadingClient:
        """A client that reads this partition, or asks, and tries everything once."""
        options = {"socket_timeout": SOCKET_TIMEOUT_S, "load_balancing_interval": BALANCE_S}
        client = self._client(ReadingClient, consumer_group=self.group, **options)
        client.partition = partition
        return client

    def sender(self) -> EventHubProducerClient:
        """A client that sends, and tries everything once or twice: `send_batch` has its own mind."""
        return self._client(EventHubProducerClient)

    def _client(self, kind: type[C], **more: Any) -> C:
        options: dict[str, Any] = {"eventhub_name": self.name, "retry_total": 0, "retry_backoff_factor": 0, **more}
        if self.connect is None:
            assert self.credential is not None
            self.sign_in()
            return kind(self.namespace, credential=self.credential, use_tls=self.tls, **options)
        try:
            made: Any = kind.from_connection_string(self.connect(), **options)
        except ValueError as error:
            raise unusable(self.name) from error
        assert isinstance(made, kind)
        return made

    def facts(self) -> HubFacts:
        """Ask for its partitions and its time of creation: one connection."""
        found = self._asked(lambda client: client.get_eventhub_properties())
        return HubFacts(tuple(found["partition_ids"]), round(found["created_at"].timestamp() * 1000))

    def ends(self, partition: str) -> PartitionEnds:
        """Ask for the ends of a partition: one connection."""
        found = self._asked(lambda client: client.get_partition_properties(partition))
        enqueued_ms = round(found["last_enqueued_time_utc"].timestamp() * 1000)
        return PartitionEnds(found["beginning_sequence_number"], found["last_enqueued_sequence_number"], enqueued_ms)

    def first_since(self, partition: str, ms: int) -> int | None:
        """The number of the first event that was enqueued at a time or later, in milliseconds since 1970; None if there
        is none: two connections. A reader with an owner level in this consumer group keeps us out.
        """
        ends = self.ends(partition)
        if ends.first > ends.last or ends.enqueued_ms < ms:
            return None
        client, numbers, errors = self.client(partition), list[int](), list[Exception]()

        def came(_context: object, events: Any) -> None:  # `Came`
            numbers.extend(events.numbers() if events else ())
            client.close()

        def failed(_context: object, error: Exception) -> None:
            errors.append(error)
            client.close()

        def receive() -> None:
            with Deadline(2 * ANSWER_S), client:
                client.receive(
                    came,
                    partition_id=partition,
                    starting_position=behind_earlier(EPOCH + timedelta(milliseconds=ms)),
                    prefetch=1,
                    max_wait_time=ANSWER_S,
                    on_error=failed,
                )

        with suppress(TooLate):
            begun(receive).result(2 * ANSWER_S)
        if errors:
            raise self.explained(errors[0])
        if not numbers:
            raise StorageUnavailable(f"The hub {self.name!r} sent no event within {ANSWER_S:g} s.")
        return numbers[0]

    def refusal_without_level(self, partition: str, within_s: float) -> Exception | None:
        """Open a reader without an owner level, which evicts nobody, and close it. Return why it was not let in."""
        client, errors, attached = self.client(partition), list[Exception](), threading.Event()

        def opened() -> None:
            attached.set()
            client.close()

        def came(_context: object, _events: object) -> None:
            client.close()

        def failed(_context: object, error: Exception) -> None:
            if not attached.is_set():  # else it is about our own end
                errors.append(error)
            client.close()

        client.on_attach = opened
        with Deadline(within_s), client:
            client.receive(
                came,
                partition_id=partition,
                starting_position="@latest",
                max_wait_time=within_s,
                on_error=failed,
            )
        if errors:
            return errors[0]
        return None if attached.is_set() else TooLate()  # which says nothing of who reads it

    def _asked(self, ask: Callable[[EventHubConsumerClient], dict[str, Any]]) -> dict[str, Any]:
        def answer(client: ReadingClient) -> dict[str, Any]:
            with Deadline(ANSWER_S), client:
                return ask(client)

        try:
            return begun(partial(answer, self.client())).result(ANSWER_S)
        except TooLate as error:
            raise StorageUnavailable(f"The hub {self.name!r} has not answered within {ANSWER_S:g} s.") from error
        except SamzaAzureError:
            raise
        except Exception as error:
            raise self.explained(error) from error

    def explained(self, error: Exception) -> SamzaAzureError:
        """What an error of the SDK means, and what to do."""
        if isinstance(error, SamzaAzureError):
            return error
        if (missing := no_token_in(error)) is not None:
            return sign_in_failed(self.namespace, missing)
        hub, condition = f"The hub {self.name!r}", condition_of(error)
        text = str(error).partition("\n")[0]
        if condition == "link:stolen":
            return Superseded(f"{hub} is read by a newer owner: {reader_in(text)}.")
        if isinstance(error, AuthenticationError) or condition == "unauthorized-access":
            if (status := _STATUS.search(str(error))) is not None and status[1] not in REFUSALS:
                return StorageUnavailable(f"{hub} does not answer: its sign-in fails with {status[1]}.")
            if self.credential is not None:
                self.credential.refused()
            right, policy, role = ("send", "Send", "Sender") if self.sends else ("listen", "Listen", "Receiver")
            return AccessDenied(
                f"{hub} refuses its key or identity: it needs the right to {right} (a policy with {policy}, or the "
                f"role Azure Event Hubs Data {role}).",
                may_pass=not self.is_fixed,
            )
        if condition.endswith("message-size-exceeded"):
            return ConfigError(f"{hub} takes smaller messages than it says: {text}")
        if condition == "not-found" and self.sends:
            return ConfigError(f"{hub} does not exist: correct its name, or make it.")
        if condition == "not-found":
            return ConfigError(f"{hub} does not exist, or has no consumer group {self.group!r}: correct its name.")
        if condition == "argument-error":
            return RowsGone(f"{hub} does not know the position to read on from: {text}")
        if condition.endswith(TOO_MANY):
            return StorageUnavailable(
                f"{hub} has as many readers, senders or connections as it takes. Close some, give each program a "
                f"consumer group of its own, or raise the tier of the namespace: {text}"
            )
        if condition == "server-busy":
            return StorageUnavailable(f"{hub} is throttled.", after_s=BUSY_S)
        return StorageUnavailable(f"{hub} does not answer: {text}")


def condition_of(error: Exception) -> str:
    """What the service calls an error."""
    return str(getattr(error, "error", None) or "").removeprefix("com.microsoft:")


def unusable(hub: str) -> ConfigError:
    """The error for a connection string that is none."""
    return ConfigError(
        f"The connection string of the hub {hub!r} cannot be used: it lacks Endpoint, SharedAccessKeyName or "
        "SharedAccessKey. Copy that of a shared access policy of the hub or its namespace."
    )


def reader_in(text: str) -> str:
    """The reader with an owner level of which the service speaks. The SDKs of .NET and Java name theirs."""
    if (said := _READER.search(text)) is None:
        if (known := level_in(text)) is None:
            return f"{text:.300}".rstrip(".")
        return f"a reader of the owner level {known}, which the service does not name"
    name, level = said.groups()
    called = "without a name" if name in ("", "nil") else f"{name!r:.100}"
    return f"the reader {called}, of the owner level {level}"


def level_in(text: str) -> int | None:
    """The owner level of that reader. None: the service does not say it."""
    said = _LEVEL.search(text)
    return int(said[1]) if said else None


def behind_earlier(time: datetime) -> datetime:
    """Where to open a partition so that the events of a time come, too: the SDK asks for later ones alone."""
    return EPOCH + timedelta(milliseconds=whole_ms(time) - 1)

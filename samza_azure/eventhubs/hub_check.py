"""Whether a hub can be read or written from here: what `samza-azure check --connect` does. What may be wrong is one
sentence each.

Nothing is read or sent, and nobody is evicted: it asks as a reader without an owner level, which a running job keeps
out.
"""

from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLate
from typing import TypeVar

from azure.eventhub import parse_connection_string

from samza_azure.errors import AccessDenied, ConfigError, SamzaAzureError, StorageUnavailable, Superseded
from samza_azure.eventhubs.hub import TOO_MANY, EventHub, HubFacts, condition_of, reader_in, unusable
from samza_azure.systems.looks import begun
from samza_azure.systems.tcp import connected

#: For a connection, and for each answer.
CONNECT_S, ANSWER_S = 2.0, 4.0
#: For a reader to be let in.
OPEN_S = 2.0
T = TypeVar("T")


def tried(hub: EventHub, partitions: int) -> str:
    """What was found. Raise an error that says what to do if the hub cannot be read."""
    host, facts = _found(hub)
    if len(facts.partitions) != partitions:
        raise ConfigError(
            f"The hub {hub.name!r} has {len(facts.partitions)} partitions, and the job file says {partitions}. Write "
            f"partitions = {len(facts.partitions)}."
        )
    read_by = _within(lambda: _open(hub, facts), hub, host)
    return f"the hub {hub.name!r} at {host} has {partitions} partitions, and {read_by}"


def tried_to_send(hub: EventHub) -> str:
    """What was found. Raise an error that says what to do if nothing can be sent to the hub. Nothing is sent."""
    host, facts = _found(hub)
    client = hub.sender()
    try:
        most = _within(client.create_batch, hub, host).max_size_in_bytes  # it opens a link of a sender
    finally:
        begun(client.close)
    return (
        f"the hub {hub.name!r} at {host} has {len(facts.partitions)} partitions, and may be written, "
        f"{most:,} bytes at once"
    )


def _found(hub: EventHub) -> tuple[str, HubFacts]:
    host, port = _address(hub)
    connected(host, port, CONNECT_S, to="namespace", behind="namespace").close()
    hub.sign_in()  # not in the time that the hub has
    return host, _within(hub.facts, hub, host)


def _address(hub: EventHub) -> tuple[str, int]:
    where, tls = hub.namespace, hub.tls
    if hub.connect is not None:
        try:
            said = parse_connection_string(text := hub.connect())
        except ValueError as error:
            raise unusable(hub.name) from error
        if said.eventhub_name and said.eventhub_name != hub.name:
            raise ConfigError(
                f"The connection string is for the hub {said.eventhub_name!r}, as its EntityPath says, and "
                f"options.name is {hub.name!r}. Correct one of them."
            )
        where, tls = said.fully_qualified_namespace, "usedevelopmentemulator=true" not in text.lower()
    host, _, port = where.partition(":")
    return host, int(port) if port.isdecimal() else 5671 if tls else 5672


def _open(hub: EventHub, facts: HubFacts) -> str:
    """Open a reader at the end of a partition. Return in words who reads it, or that we may."""
    if (error := hub.refusal_without_level(facts.partitions[0], OPEN_S)) is None:
        return f"the consumer group {hub.group!r} may read it"
    found = hub.explained(error)
    if isinstance(found, Superseded):
        return f"a job reads it now: {reader_in(str(error))}"
    if condition_of(error).endswith(TOO_MANY):
        return (
            f"as many readers without an owner level as it takes read it now in the consumer group {hub.group!r}: this "
            "job disconnects them. Give it a consumer group of its own"
        )
    if isinstance(found, ConfigError) and not isinstance(found, AccessDenied):
        raise ConfigError(
            f"The hub {hub.name!r} has no consumer group {hub.group!r}. Correct options.consumer_group, or make it."
        )
    raise found


def _within(ask: Callable[[], T], hub: EventHub, host: str) -> T:
    """Ask, and wait for less than the SDK does: a minute, or forever."""
    try:
        return begun(ask).result(ANSWER_S)
    except TooLate as error:
        raise StorageUnavailable(
            f"{host} takes connections, and has not answered within {ANSWER_S:g} s. See that this is the namespace, "
            "and that nothing between here and there holds AMQP back."
        ) from error
    except SamzaAzureError:
        raise
    except Exception as error:
        raise hub.explained(error) from error

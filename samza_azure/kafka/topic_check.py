"""Whether a topic can be read or written from here: what `samza-azure check --connect` does. What is wrong is one
sentence each.

No group is joined, nothing is committed, and a running job does not notice.
"""

import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import TimeoutError as TooLate
from contextlib import closing
from functools import partial

from confluent_kafka import KafkaError, TopicPartition

from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.kafka.access import NONE
from samza_azure.kafka.topic import Told, Topic
from samza_azure.machine.clock import boot_time
from samza_azure.systems.looks import begun
from samza_azure.systems.tcp import connected

#: For a connection, for all answers about the topic, and for the first word of a partition.
CONNECT_S, ANSWER_S, READ_S = 1.5, 2.5, 2.0
#: So many brokers are tried.
BROKERS = 2


def tried(topic: Topic, partitions: int, *, commits: bool = False) -> str:
    """What was found. Raise an error that says what to do if the topic cannot be read. `commits`: offsets are to be
    committed in the name of the group.
    """
    brokers, count = _found(topic)
    if count != partitions:
        raise ConfigError(
            f"The topic {topic.name!r} has {count} partitions, and the job file says {partitions}. Write partitions = "
            f"{count}."
        )
    _read(topic)
    said = f"the topic {topic.name!r} at {brokers} has {count} partitions, and may be read"
    if members := topic.members():
        harm = "they keep its offsets from being committed" if commits else "they neither disturb us nor we them"
        said += f"; others have joined the group {topic.group!r}, and {harm}: {', '.join(members)}"
    return said


def tried_to_send(topic: Topic, *, in_transactions: bool) -> str:
    """What was found. Raise an error that says what to do if nothing can be written to the topic. Nothing is."""
    brokers, count = _found(topic)
    may = topic.may_be_written()
    if may is False:
        raise topic.explained(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    if in_transactions:
        name = f"{topic.group}:check"
        topic.in_transactions(Told(), name, {}, ANSWER_S)
        topic.committed(name)
    takes = ", and takes transactions" if in_transactions else ""
    unknown = "" if may else ". Whether it may be written shows the first row: these brokers do not say it"
    return f"the topic {topic.name!r} at {brokers} has {count} partitions{takes}{unknown}"


def _found(topic: Topic) -> tuple[str, int]:
    """The brokers, and how many partitions it has."""
    topic.is_trial = True
    brokers = topic.access.brokers()
    _connect_to_one([each.strip() for each in brokers.split(",")], tls=topic.access.tls)
    try:
        return brokers, topic.count(ANSWER_S)
    except StorageUnavailable as error:
        if topic.access.mechanism == NONE:
            raise StorageUnavailable(
                f"{error} They take connections. If they want to know who comes, write options.sasl; else see "
                "that they speak Kafka's protocol."
            ) from error
        raise


def _connect_to_one(brokers: Sequence[str], *, tls: bool) -> None:
    """See that one of the brokers can be reached. Raise what is wrong with the first one if none can."""
    errors = list[SamzaAzureError]()
    for broker in brokers[:BROKERS]:
        try:
            return _connect(broker, tls=tls)
        except SamzaAzureError as error:
            errors.append(error)
    raise errors[0]


def _connect(broker: str, *, tls: bool) -> None:
    """See that a broker can be reached, and whether it speaks TLS: its client tells neither clearly."""
    host, _, port = broker.rpartition(":") if ":" in broker.rpartition("]")[2] else (broker, "", "9092")
    if not port.isdecimal():
        raise ConfigError(f"{broker!r} is no address of a broker. Write host:port.")
    connection = connected(host.strip("[]"), int(port), CONNECT_S, to="broker", behind="brokers")
    with closing(connection):
        speaks_tls = _speaks_tls(connection, host)
    if speaks_tls is None and tls:
        raise ConfigError(
            f"{broker} takes connections, and answers no greeting of TLS within {CONNECT_S:g} s. If it speaks no "
            "TLS, write options.tls = false, or name its port for TLS."
        )
    if speaks_tls is not None and speaks_tls != tls:
        raise ConfigError(
            f"{broker} speaks {'TLS' if speaks_tls else 'no TLS'}, and options.tls is {str(tls).lower()}. Write "
            f"options.tls = {str(speaks_tls).lower()}, or name its port {'for TLS' if tls else 'without TLS'}."
        )


def _speaks_tls(connection: socket.socket, host: str) -> bool | None:
    """Whether somebody answers a greeting of TLS. None: not known. Nothing is sent that could be a secret."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the client itself looks at certificates
    try:
        context.wrap_socket(connection, server_hostname=host).close()
    except TimeoutError:
        return None  # a broker may wait for more of what it takes for the length of a request
    except ssl.SSLError as error:
        # One that wants a client certificate speaks it, too.
        return "ALERT" in str(error).upper() and "PROTOCOL_VERSION" not in str(error).upper()
    except OSError:
        return False
    return True


def _read(topic: Topic) -> None:
    """Read at the end of a partition until it says something: only then is it known that we may."""
    told, end = Told(), boot_time() + READ_S
    consumer = topic.consumer(told)
    try:
        try:
            behind = topic.behind(0)
            begun(partial(consumer.assign, [TopicPartition(topic.name, 0, behind)])).result(READ_S)  # it may hang, too
        except (StorageUnavailable, TooLate) as away:  # others have answered
            raise _unreachable(topic) from away
        while boot_time() < end:
            message = consumer.poll(0.1)
            if message is None and told.telling() is None:
                continue
            error = message.error() if message is not None else told.telling()
            if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                return
            if message is not None or told.is_refused or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise topic.explained(error)
    finally:
        begun(consumer.close)  # it may hang
    raise _unreachable(topic)


def _unreachable(topic: Topic) -> StorageUnavailable:
    return StorageUnavailable(
        f"The brokers of the topic {topic.name!r} answer, and sent nothing of its partition 0 within {READ_S:g} s. "
        f"See that all of them can be reached from here, as they want to be: {topic.named_brokers()}."
    )

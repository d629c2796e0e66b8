"""One topic: what clients of it are made of, where its partitions begin and end, and what errors mean.

A client of librdkafka tries forever by itself, and tells its errors beside the calls. So each question has a time to
be answered in, and what was told meanwhile says why it was not.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec

from samza_azure.errors import AccessDenied, ConfigError, RowsGone, SamzaAzureError, StorageUnavailable
from samza_azure.kafka.access import CLIENT, IDENTITY, Access
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.storage.identity import of_this_process
from samza_azure.systems.looks import begun

#: In whose name a topic is read, and how the names begin under which it is written.
GROUP = "samza-azure"
#: How long an answer about a topic is waited for.
ANSWER_S = 5.0
#: How long it is asked who has joined a group: for people alone.
MEMBERS_S = 2.0
#: After so many answers to all but that, brokers do not know the ids of topics.
TRIES = 3
#: What the client keeps of messages that were not asked for yet, of all partitions of a task.
HELD_KIB = 16 << 10
#: What brokers take as one batch if nobody has said otherwise; and the client.
USUAL_BYTES = 1_000_000
T = TypeVar("T")
C = TypeVar("C", AdminClient, Consumer, Producer)

_UNKNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NO_RIGHT = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_NO_TRANSACTIONS = {
    KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
}  # fmt: skip
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
#: With these a handshake fails, also where the words of the error say that only its connection broke.
_HANDSHAKE = {KafkaError._AUTHENTICATION, KafkaError._SSL}
_BROKEN = ("broker transport failure", "ssl transport error", "local: timed out")
#: A client that has lost all brokers does not begin anew with those of the options: whoever made it does.
NO_RECOVERY = {"metadata.recovery.strategy": "none"}
#: The first of these that was told says best why nobody answers.
_TELLING = (
    *_REFUSED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError._SSL,
    KafkaError._RESOLVE,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError._TRANSPORT,
)


@dataclass(frozen=True, slots=True)
class Ends:
    """The offsets of the oldest message of a partition, and behind its last one."""

    first: int
    behind: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What the brokers say of a topic."""

    partitions: int
    id: int  # a number for the topic's own id; 0: the brokers have none
    ends: Mapping[int, Ends]  # of the partitions whose brokers have answered
    asked_at: float  # by the clock of the machine's boot
    asked_ms: int  # by that of the wall


def _kind(error: KafkaError) -> int:
    """The code of an error; of a connection that broke in the middle of a sign-in that of a broken one, which is no
    refusal.
    """
    is_broken = error.code() in _HANDSHAKE and any(each in error.str().lower() for each in _BROKEN)
    return KafkaError._TRANSPORT if is_broken else int(error.code())


@dataclass(slots=True)
class Told:
    """The errors that a client has told beside its calls, the latest of each kind."""

    errors: dict[int, KafkaError] = field(default_factory=dict)
    unsent: KafkaError | None = None  # why a message was not taken

    def __call__(self, error: KafkaError) -> None:
        self.errors[_kind(error)] = error

    def failed(self, error: KafkaError | None, _message: Message) -> None:
        """Take in why a message was not taken; the first one says why the others were not."""
        if error is not None and self.unsent is None:
            self.unsent = error

    @property
    def is_final(self) -> bool:
        """Whether the client need not be waited for: it will try the same again."""
        return self.is_refused or KafkaError._SSL in self.errors

    @property
    def is_refused(self) -> bool:
        """Whether the brokers do not know us."""
        return not _REFUSED.isdisjoint(self.errors)

    def telling(self) -> KafkaError | None:
        """The one that says most."""
        return next((self.errors[code] for code in _TELLING if code in self.errors), None)


class Topic:
    """A topic of some brokers, read in the name of a group; or written: `sends`."""

    def __init__(self, name: str, access: Access, group: str, *, sends: bool = False) -> None:
        self.name, self.access, self.group, self._sends = name, access, group, sends
        self._admin: AdminClient | None = None
        self._told = Told()
        self.is_trial = False  # whether it is asked for a moment only, to say what is wrong
        self._untold = 0  # how often it was not answered what its id is, one after the other

    def consumer(
        self, told: Told, group: str = "", on_commit: Callable[[KafkaError | None, Any], None] | None = None
    ) -> Consumer:
        """A consumer that reads where it is told to, and nowhere else. What it has to say goes to `told`, and what
        becomes of a commit to `on_commit`.
        """
        return _made(
            lambda: Consumer(
                {
                    **self.access.present(),
                    "group.id": group or self.group,  # which is not joined
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "check.crcs": True,
                    "allow.auto.create.topics": False,
                    "error_cb": told,
                    **({"on_commit": on_commit} if on_commit else {}),
                    "queued.max.messages.kbytes": self.access.settings.get("queued.max.messages.kbytes", HELD_KIB),
                    "fetch.queue.backoff.ms": self.access.settings.get("fetch.queue.backoff.ms", 10),
                }
            )
        )

    def producer(self, told: Told, settings: Mapping[str, Any]) -> Producer:
        """A producer that keeps the order of each partition: what comes behind a message that failed fails, too."""
        return _made(
            lambda: Producer(
                {
                    **self.access.present(),
                    "enable.idempotence": True,
                    "enable.gapless.guarantee": True,
                    "delivery.report.only.error": True,
                    "on_delivery": told.failed,
                    "error_cb": told,
                    "queue.buffering.max.messages": 0,  # as many as a range has
                    "queue.buffering.max.kbytes": 2_147_483_647,
                    **settings,
                }
            )
        )

    def in_transactions(self, told: Told, name: str, settings: Mapping[str, Any], seconds: float) -> Producer:
        """A producer that shuts out all others of this name, and has ended what they had left open."""
        # librdkafka 2.16 forgets all brokers once none can be reached, and then asks one that it has forgotten for the
        # group: each transaction would hang. A new producer begins with those of the options.
        producer = self.producer(told, {**settings, **NO_RECOVERY, "transactional.id": name})
        try:
            answered(producer, lambda made: made.init_transactions(seconds), told, seconds)
        except KafkaException as error:
            found = self.explained(error.args[0], told)
            if type(found) is not StorageUnavailable:
                raise found from error
            # Some brokers only say of the question for the one that keeps them that it is unavailable, again and again.
            raise StorageUnavailable(
                f"{found} If they answer, and take no transactions, as Event Hubs in its tier Standard, write "
                "options.transactions = false."
            ) from error
        return producer

    def committed(self, group: str) -> tuple[int, Any]:
        """The offset that a group has committed for the first partition, in no open transaction, negative if none; and
        what a transaction has to know of the group.
        """
        found, metadata = self.committed_by(group, [0])
        return found[0], metadata

    def committed_by(self, group: str, partitions: Iterable[int]) -> tuple[dict[int, int], Any]:
        """The same for several partitions."""
        # A consumer asks, being `read_committed`: an AdminClient of librdkafka 2.16 ends the process once the group has
        # moved to another broker (`tests/kafka/test_traps.py`).
        told, asked = Told(), [TopicPartition(self.name, each) for each in partitions]
        consumer = self.consumer(told, group)
        try:
            found = answered(consumer, lambda made: made.committed(asked, ANSWER_S), told)
            if error := next((each.error for each in found if each.error is not None), None):
                raise KafkaException(error)
        except KafkaException as error:
            raise self.explained(error.args[0], told) from error
        return {each.partition: each.offset for each in found}, consumer.consumer_group_metadata()

    def members(self) -> list[str]:
        """Who has joined the group, as far as the brokers say it; of more than three, how many others."""
        try:
            # All brokers are asked: what asks the one that has the group may end the process (`committed_by`), as
            # `describe_consumer_groups` does, for which this is deprecated. tansu has no members for it, and the mock
            # cluster no answer.
            found = self._asked(lambda admin: admin.list_groups(self.group, timeout=MEMBERS_S))
        except SamzaAzureError:
            return []
        members = [
            f"the client {each.client_id!r:.100} at {each.client_host.strip('/'):.100}"
            for group in found
            for each in group.members
        ]
        return [*members[:3], f"{len(members) - 3} others"] if len(members) > 3 else members

    def may_be_written(self) -> bool | None:
        """Whether the brokers say that we have the right to. None: they do not say."""
        try:
            rights = self._described(include_authorized_operations=True).authorized_operations
        except StorageUnavailable:
            return None
        return None if rights is None else AclOperation.WRITE in rights or AclOperation.ALL in rights

    def most_bytes(self) -> int:
        """The largest batch that the brokers take for it, as far as they say so."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.name)
        try:
            found = self._asked(
                lambda admin: admin.describe_configs([resource], request_timeout=ANSWER_S)[resource].result()
            )
            return int(found["max.message.bytes"].value)
        except (SamzaAzureError, KeyError, ValueError):
            return USUAL_BYTES

    def survey(self, partitions: Sequence[int]) -> Survey:
        """Ask for its id and for the ends of some partitions, as far as their brokers answer.

        Raises:
            StorageUnavailable: none does.
            ConfigError: there is no such topic, or it may not be read.

        """
        asked_at, asked_ms = boot_time(), wall_ms()
        # The id is asked for right behind the count: librdkafka 2.16 ends the process where a broker refuses that as a
        # whole, and it would have refused the count, too (`tests/kafka/test_traps.py`).
        count, topic_id = self.count(), self._id()
        there = [each for each in partitions if each < count]
        first = self._offsets(dict.fromkeys(there, OffsetSpec.earliest()))
        behind = self._offsets(dict.fromkeys(first, OffsetSpec.latest()))
        ends = {each: Ends(first[each], behind[each]) for each in behind}
        return Survey(count, topic_id, ends, asked_at, asked_ms)

    def count(self, seconds: float = 0.0) -> int:
        """How many partitions it has."""
        topics = self._asked(lambda admin: admin.list_topics(self.name, timeout=seconds or ANSWER_S)).topics
        found = topics.get(self.name)
        if found is None or found.error is not None or not found.partitions:
            unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            raise self.explained((found.error if found is not None else None) or unknown)
        return len(found.partitions)

    def named_brokers(self) -> str:
        """The addresses by which the brokers want to be reached."""
        found = self._asked(lambda admin: admin.list_topics(self.name, timeout=ANSWER_S)).brokers.values()
        return ", ".join(sorted(f"{each.host}:{each.port}" for each in found))

    def behind(self, partition: int) -> int:
        """The offset behind the last message of a partition."""
        return self._offsets({partition: OffsetSpec.latest()})[partition]

    def after(self, partitions: Iterable[int], ms: int) -> dict[int, int]:
        """The offset of the first message of each partition that is not older than a time, -1 if there is none; as far
        as their brokers answer.
        """
        # Before 1970 numbers are words: -1 is behind the last message.
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.for_timestamp(max(0, ms))), least=-1)

    def _id(self) -> int:
        if self._untold >= TRIES:
            return 0
        try:
            described = self._described()
        except StorageUnavailable:
            self._untold += 1  # the other questions were answered
            return 0
        self._untold = 0
        known = str(described.topic_id)
        return zlib.crc32(known.encode()) if known.strip("A") else 0  # in base 64, where zero is A

    def _described(self, **more: bool) -> Any:
        """What is answered to a question for all that is known of it; some brokers have no answer."""
        asked, name = TopicCollection([self.name]), self.name
        return self._asked(lambda admin: admin.describe_topics(asked, request_timeout=ANSWER_S, **more)[name].result())

    def _offsets(self, wanted: Mapping[int, Any], least: int = 0) -> dict[int, int]:
        """What the brokers answer for some of the partitions. Raise an error if they do for none."""
        if not wanted:
            return {}
        by_partition = {TopicPartition(self.name, each): spec for each, spec in wanted.items()}

        def ask(admin: AdminClient) -> dict[int, int]:
            # Behind the last message, not the last one of a transaction that has ended: its rows are still to come.
            asked = admin.list_offsets(
                by_partition, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ANSWER_S
            )
            errors = {each: answer.exception() for each, answer in asked.items()}
            if all(errors.values()):
                raise next(iter(errors.values()))
            return {each.partition: asked[each].result().offset for each, error in errors.items() if error is None}

        # librdkafka knows no error for a connection that was lost meanwhile.
        found = {each: offset for each, offset in self._asked(ask).items() if offset >= least}
        if not found:
            raise StorageUnavailable(f"The brokers of the topic {self.name!r} do not say which offsets it has.")
        return found

    def _asked(self, ask: Callable[[AdminClient], T]) -> T:
        """The answer to a question, which is asked in a thread: meanwhile the client may want a token of us, or tell
        that it is refused, so that nothing is to be waited for.
        """
        if self._admin is None:
            # A broker that hangs is given up as soon as its answer is, so that the next question is for another one.
            settings: dict[str, Any] = {"socket.timeout.ms": round(ANSWER_S * 1000), **self.access.present()}
            settings |= {"error_cb": self._told, "allow.auto.create.topics": False}
            if not self.is_trial:
                # One that is refused would begin anew with the brokers of the options many times a second.
                settings |= NO_RECOVERY
            self._admin = _made(lambda: AdminClient(settings))
        try:
            answer = answered(self._admin, ask, self._told)
        except KafkaException as error:
            raise self._refused(error.args[0], self._told) from error
        self._told.errors.clear()  # what was wrong before is not why a later question is not answered
        return answer

    def _refused(self, error: KafkaError, told: Told) -> SamzaAzureError:
        found = self.explained(error, told)
        if told.is_final or isinstance(found, StorageUnavailable):
            # The next question is asked with a secret that is read again, and of the brokers of the options: those that
            # this client has found may be gone, or out of reach.
            self._admin, self._told = None, Told()
        told.errors.clear()
        return found

    def explained(self, error: KafkaError, told: Told | None = None) -> SamzaAzureError:
        """What an error means, and what to do. `told` may say more than the call that has failed."""
        code, topic = error.code(), f"The topic {self.name!r}"
        if code in _UNKNOWN:
            return ConfigError(f"{topic} does not exist at {self.access.brokers()}. Correct options.topic, or make it.")
        if code in _NO_RIGHT:
            do, done = ("write to", "written") if self._sends else ("read", "read")
            return AccessDenied(
                f"{topic} may not be {done}: give this user or identity the right to {do} it.", may_pass=True
            )
        error = (told.telling() if told else None) or error
        code = _kind(error)
        text = f"{error.str().partition(chr(10))[0].rstrip('.')}."
        if self._sends and (found := self._unsent(error, text)):
            return found
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return AccessDenied(
                f"The brokers of the topic {self.name!r} do not let us read in the name of the group {self.group!r}. "
                "Give the right to it, or write another one: options.group.",
                may_pass=True,
            )
        if code == KafkaError._SSL or "certificate" in text:
            return AccessDenied(
                f"The brokers of the topic {self.name!r} and this machine do not trust each other: {text} Write "
                "options.ca.file, a file with the certificates that signed theirs, or options.certificate.file if they "
                "want a client certificate."
            )
        if code == KafkaError.UNSUPPORTED_SASL_MECHANISM or (code in _REFUSED and "Unsupported SASL mechanism" in text):
            return ConfigError(
                f"The brokers of the topic {self.name!r} do not take options.sasl = {self.access.mechanism!r}: {text} "
                "Write one that they take."
            )
        if code in _REFUSED:
            if is_token := self.access.mechanism == IDENTITY:
                of_this_process().refused()
            what = "identity" if is_token else "user or its password"
            do = "Give it the right to the topic" if is_token else "Correct options.user and options.password"
            return AccessDenied(
                f"The brokers of the topic {self.name!r} refuse the {what}: {text} {do}.",
                may_pass=not self.access.is_fixed,
            )
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return RowsGone(f"{topic} does not have the offset to read on from: {text}")
        return StorageUnavailable(f"The brokers of the topic {self.name!r} do not answer: {text}")

    def _unsent(self, error: KafkaError, text: str) -> SamzaAzureError | None:
        """What an error of a producer means, if readers have none like it."""
        code, topic = error.code(), f"the topic {self.name!r}"
        if code in (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            return AccessDenied(
                f"The brokers of {topic} do not let us write in transactions. Give this user or identity the rights to "
                f"write transactional ids, and to read groups, whose names begin with {self.group!r} (options.group), "
                "and to read the topic. Or write options.transactions = false, and each row is there at least once.",
                may_pass=True,
            )
        if code in _NO_TRANSACTIONS:
            return ConfigError(
                f"The brokers of {topic} take no transactions: {text} Write options.transactions = false, and each row "
                "is there at least once."
            )
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return ConfigError(
                f"The brokers of {topic} take no batch as large as ours. Write options.{CLIENT}message.max.bytes = as "
                "many bytes as its max.message.bytes; larger rows are refused then."
            )
        if code in _FENCED:
            return StorageUnavailable(f"Another owner of this task has begun to write to {topic}, or we were too slow.")
        return None


def answered(client: C, ask: Callable[[C], T], told: Told, seconds: float = 2 * ANSWER_S) -> T:
    """What a client answers, asked in a thread: meanwhile it may want a token of us, or tell that it is refused, so
    that nothing is to be waited for. Raise `KafkaException` if there is no answer.
    """
    end = boot_time() + seconds
    asked = begun(partial(ask, client))
    try:
        while not asked.done() and not told.is_final and boot_time() < end:
            client.poll(0)
            wait([asked], 0.02)
        return asked.result(0)
    except TooLate as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
    finally:
        del client, asked  # else the error would hold a client with its threads, by its traceback


def _made(make: Callable[[], T]) -> T:
    """A client. Raise ConfigError for a setting that it refuses."""
    try:
        return make()
    except KafkaException as error:
        raise ConfigError(
            f"The client of Kafka refuses its settings: {error.args[0].str()}. Correct the options."
        ) from error

"""`system = "kafka"`: the partitions of a topic, read by one consumer for each task.

A position is (which topic of that name, the offset to read on from). The first number counts the topics of the name
that we have seen, and holds a part of the topic's own id: offsets begin again in a topic that is recreated, and so the
positions still grow.

Behind the last message there may be offsets without any: of transactions that ended, and of what was compacted. The
position goes over them once the broker has said that nothing comes there. Otherwise their deletion would look like that
of messages that were not read.
"""

import logging
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from samza_azure.errors import AccessDenied, ConfigError, RowsGone, SamzaAzureError, StorageUnavailable
from samza_azure.kafka.access import OPTIONS as ACCESS
from samza_azure.kafka.access import access_of, is_client_setting
from samza_azure.kafka.messages import HEADERS, NO_TEXT, SCHEMA, headers_of, rows, time_ms
from samza_azure.kafka.topic import GROUP, Survey, Told, Topic
from samza_azure.kafka.topic_check import tried
from samza_azure.machine.clock import boot_time
from samza_azure.systems.api import SystemLag, SystemPosition, SystemRows, SystemStream
from samza_azure.systems.looks import Look, begun
from samza_azure.systems.once import EventHubsOnce
from samza_azure.systems.options import (
    BODY,
    FORMAT,
    RAW,
    added,
    one_of,
    other_count,
    refuse_unknown,
    start_at,
    start_of,
    whole_ms,
)
from samza_azure.systems.parsing import Parser
from samza_azure.systems.patience import Barred

log = logging.getLogger(__name__)

OPTIONS = {*ACCESS, "topic", "group", "start", "on_expired", "tombstones", "commit"}
#: What is taken from the client at once.
MESSAGES, BYTES = 10_000, 4 << 20
#: How long a client may take to be told what to read.
ASSIGN_S = 10.0
#: How long a topic that we have read may be unknown to the brokers: some are, while they start.
GRACE_S = 30.0
#: After so long without a message of a partition that has some, it is asked for anew.
STUCK_S = 30.0
#: The same of one that we may not read. An answer that there is nothing takes half a second.
BARRED_S = 3.0
#: For how long people are told that messages were lost unread.
LOST_TOLD_S = 3600.0
#: Between two commits, and between two complaints that they are refused; and how long the last one may take.
COMMIT_S, COMPLAIN_S, LAST_S = 5.0, 300.0, 3.0
#: The first number of a position: the topics so far, and then so many bits of the present one's id.
ID_BITS = 32

_LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
_AWAY = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_UNREADABLE = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED}


@dataclass(slots=True)
class Place:
    """How far one partition was read."""

    returned: SystemPosition  # behind what `read` has returned
    made: int  # the first number of positions; 0: no topic was seen yet
    following: int | None  # the offset behind the last message that has come; None: it is not known where to begin
    read_ms: int | None = None  # when the last message that was returned was written
    lost: str = ""  # what the broker said when it could not go on there
    heard_at: float = 0.0
    survey: Survey | None = None  # the last one that has its ends
    barred: SamzaAzureError | None = None  # why no message comes


class KafkaStream:
    """A stream that is a topic: its admin and its consumer."""

    def __init__(self, stream: SystemStream) -> None:
        options, self._stream = stream.options, stream
        refuse_unknown(stream, "kafka", OPTIONS | {name for name in options if is_client_setting(name)})
        named = {"group": GROUP, **options}
        for option in ("topic", "group"):
            if not named.get(option):
                raise ConfigError(
                    f'streams.{stream.name}.options.{option} is missing. Write options.{option} = "name".'
                )
        self._topic = Topic(named["topic"], access_of(stream), named["group"])
        self._start = start_of(stream, "an offset")
        self._skips = one_of(stream, "on_expired", "fail", "skip") == "skip"
        self._drops_tombstones = one_of(stream, "tombstones", "fail", "skip") == "skip"
        self._commits = one_of(stream, "commit", "false", "true") == "true"
        if self._commits and "group" not in options:
            raise ConfigError(
                f"streams.{stream.name}.options.commit needs a group that no other job has. Write options.group = "
                '"name", the one that your tools look at.'
            )
        self._recorded: dict[int, SystemPosition] = {}  # to be committed
        self._committed_at = self._accepted_at = self._complained_at = -math.inf
        self._uncommitted = ""  # why the last ones were refused, and who is in the group
        self._parser = Parser(stream, [name for name in SCHEMA.names if name != BODY])
        if self._drops_tombstones and options.get(FORMAT) == RAW:
            raise ConfigError(
                f"streams.{stream.name}.options.tombstones: in format = {RAW!r} a tombstone is a row without a body. "
                "Remove the line."
            )
        self._columns = [name for name in SCHEMA.names if self._parser.wants(name)]
        self._places: dict[int, Place] = {}
        self._once: dict[int, EventHubsOnce] = {}
        self._held: deque[tuple[int, list[Message]]] = deque()
        self._at_once = 500
        self._consumer: Consumer | None = None
        self._told = Told()
        self._look = Look(self._ask, f"The ends of the topic {self._topic.name!r} are not known.", at_once=True)
        self._found: tuple[Survey, Mapping[int, int]] | None = None
        self._survey: Survey | None = None  # the last one
        self._seen: Survey | None = None  # the same, unless a look has failed since
        self._hurries = False  # the next one is needed now
        self._denied: tuple[float, SamzaAzureError] | None = None  # no look: since when, and why
        self._lost_at = -math.inf
        self._was_let_in = False  # the brokers have handed out messages, or said that there are none
        self._messages = self._bytes = 0  # that were read

    def partitions(self) -> int | None:
        """As many as the topic has. Their ids are the numbers from 0."""
        return self._topic.count()

    def look(self) -> str:
        """What a try to read the topic has found. Raise an error that says what to do if it cannot be read."""
        return ", and ".join(
            filter(None, [tried(self._topic, self._stream.partitions, commits=self._commits), self._parser.look()])
        )

    def back_to(self, time: datetime, stood: Mapping[int, SystemPosition]) -> dict[int, SystemPosition]:
        """Where the messages begin that are as old as a time or younger, as the brokers find them by their timestamps.

        A producer may set these, so messages that are older may lie behind.
        """
        read = {each: at for each, at in stood.items() if at[0]}
        if not read:
            return {}
        survey = self._topic.survey(sorted(read))
        for made, _ in read.values():
            if (known := made % (1 << ID_BITS)) and survey.id and known != survey.id:
                raise ConfigError(
                    f"The topic {self._topic.name!r} was deleted and recreated since it was read: what it held is "
                    "lost, and offsets begin again. To read the new one, use --to earliest."
                )
        first = self._topic.after(read, whole_ms(time))
        if silent := [str(each) for each in read if each not in first]:
            raise StorageUnavailable(
                f"The broker of partition {', '.join(silent)} of the topic {self._topic.name!r} does not answer."
            )
        return {each: (stood[each][0], at) for each, at in first.items() if 0 <= at < stood[each][1]}

    def committed(self, group: str) -> dict[int, int]:
        """The offset that a consumer group would read next, for each partition of which it has committed one."""
        found, _ = self._topic.committed_by(group, range(self._topic.count()))
        if all(offset < 0 for offset in found.values()):
            raise ConfigError(
                f"The group {group!r} has committed no offset in the topic {self._topic.name!r}. Write its name as its "
                "job does, with its capitals, and see that the topic is the one that it reads."
            )
        return {number: offset for number, offset in found.items() if offset >= 0}

    def open(self, partition: int, position: SystemPosition) -> None:
        made, following = position
        self._places[partition] = Place(position, made, following if made else None, heard_at=boot_time())

    def restore(self, partition: int, state: bytes) -> None:
        """Take over whose messages were read up to which number."""
        self._once[partition] = EventHubsOnce(state)

    def state(self, partition: int) -> bytes:
        """Whose messages were read up to which number, behind what `read` has returned."""
        once = self._once.get(partition)
        return b"" if once is None else bytes(once)

    def read(self) -> SystemRows | None:
        """What has come of one of the partitions."""
        self._see()
        self._commit()
        if not self._held:
            self._fetch()
        if self._held:
            # What parses may fail for a while: then the next call finds all as it was.
            found = self._rows(*self._held[0])
            self._held.popleft()
            return found
        for number, place in self._places.items():
            if place.following is not None and (position := (place.made, place.following)) != place.returned:
                place.returned = position
                return SystemRows(number, self._stream.schema.empty_table(), position)
        if trouble := self._trouble():
            raise trouble
        return None

    def pause(self) -> None:
        """Look at the ends of the partitions."""
        for place in self._places.values():
            place.heard_at = boot_time()  # nothing was asked for that could have come
        self._see()
        self._commit()

    def recorded(self, partition: int, position: SystemPosition) -> None:
        """Tell the group's offset to people's tools, soon. Nothing is ever read from there."""
        if self._commits and position[0]:
            self._recorded[partition] = position

    def lag(self, partition: int) -> SystemLag | None:
        """What is left behind what `read` has returned, as the last look has said that has found the end of this
        partition. Offsets without a message count.
        """
        place = self._places[partition]
        survey = place.survey
        if survey is None or place.following is None:
            return None
        left = max(0, survey.ends[partition].behind - (place.returned[1] if place.returned[0] else place.following))
        seconds = 0.0 if not left else None
        if left and place.read_ms is not None:
            seconds = max(0.0, (survey.asked_ms - place.read_ms) / 1000)
        size = left * self._bytes // max(1, self._messages)
        return SystemLag(left, size, seconds, boot_time() - survey.asked_at, survey is self._seen and not place.barred)

    def warning(self) -> str:
        """What to do about partitions that nobody reads, and about commits that are refused; and what is lost."""
        said, topic = [self._uncommitted], f"the topic {self._topic.name!r}"
        if (survey := self._survey) is not None:
            said.append(added(self._stream.name, self._stream.partitions, survey.partitions))
            if away := ", ".join(str(each) for each in sorted(self._places) if each not in survey.ends):
                said.append(f"The broker that leads partition {away} of {topic} does not answer. The others are read.")
        if boot_time() < self._lost_at + LOST_TOLD_S:
            said.append(f"Of {topic} messages were lost unread; the log says which.")
        return " ".join(filter(None, said))

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        behind = self._to_commit()

        def end() -> None:
            try:
                if behind:
                    consumer.commit(offsets=behind, asynchronous=False)
            finally:
                consumer.close()

        ending = begun(end)  # the client may hang
        if behind:  # the process may end soon, but not for brokers that are away
            try:
                ending.result(LAST_S)
            except (KafkaException, TooLate) as error:
                log.info("The last offsets of the group %r were perhaps not committed: %r", self._topic.group, error)

    # The group's offsets

    def _commit(self) -> None:
        """Commit what is recorded, without waiting. What becomes of it is nobody's failure."""
        if not self._recorded or self._consumer is None or boot_time() < self._committed_at + COMMIT_S:
            return
        self._committed_at = boot_time()
        try:
            if behind := self._to_commit():
                self._consumer.commit(offsets=behind, asynchronous=True)
        except KafkaException as error:
            self._refused(error.args[0], behind)

    def _to_commit(self) -> list[TopicPartition]:
        """What is recorded and was not committed yet."""
        recorded, self._recorded = self._recorded, {}
        return [
            TopicPartition(self._topic.name, each, offset)
            for each, (made, offset) in recorded.items()
            if made == self._places[each].made  # of the topic that is there now
        ]

    def _refused(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """After a commit: try again those that were refused, and say why, now and then."""
        if error is None:
            self._uncommitted, self._accepted_at = "", boot_time()
            return
        for each in offsets:
            self._recorded.setdefault(each.partition, (self._places[each.partition].made, each.offset))
        if boot_time() >= self._complained_at + COMPLAIN_S:
            self._complained_at = boot_time()
            begun(partial(self._complain, error.str(), boot_time()))

    def _complain(self, why: str, at: float) -> None:
        """Find out who hinders it, for `warning`. Nobody does if one was accepted meanwhile."""
        others = ", ".join(self._topic.members()) or "nobody, as far as the brokers say"
        if self._accepted_at < at:
            self._uncommitted = (
                f"The offsets of the group {self._topic.group!r} were not committed: {why.rstrip('.')}. No row is "
                f"concerned. The group was joined by: {others}. If another program uses it, write another "
                "options.group."
            )

    # Looks at the topic

    def _ask(self) -> None:
        """Ask the brokers, in a thread."""
        starts: Mapping[int, int] = {}
        found = self._topic.survey(sorted(self._places))
        if isinstance(self._start, datetime):
            new = [number for number, place in self._places.items() if place.following is None and number in found.ends]
            starts = self._topic.after(new, whole_ms(self._start))
        self._found = found, starts

    def _see(self) -> None:
        """Do what follows from a look, and look again if it is time."""
        try:
            self._look.see(self._survey.asked_at if self._survey and not self._hurries else 0.0)
        except ConfigError as error:
            since = self._denied[0] if self._denied and type(self._denied[1]) is type(error) else boot_time()
            if self._survey is None or not (isinstance(error, AccessDenied) or boot_time() < since + GRACE_S):
                raise
            self._denied, self._seen = (since, error), None
            self._hurries = True
        if self._look.unseen is not None:
            self._denied = self._seen = None
        if self._found is None:
            return
        (survey, starts), self._found = self._found, None
        self._survey = self._seen = survey
        self._hurries, self._denied = False, None
        if survey.partitions < self._stream.partitions:  # it was recreated: none can lose some
            raise other_count(self._stream.name, self._stream.partitions, survey.partitions)
        moved = [self._agreed(number, self._places[number], survey, starts) for number in survey.ends]
        if any(moved) or self._consumer is None:
            self._assign()

    def _agreed(self, number: int, place: Place, survey: Survey, starts: Mapping[int, int]) -> bool:
        """Bring a place into agreement with a look. Return whether the partition is to be read anew."""
        ends, known = survey.ends[number], place.made % (1 << ID_BITS)
        place.survey = survey
        if place.made and known and survey.id and known != survey.id:
            self._lose(
                f"The topic {self._topic.name!r} was deleted and recreated since its partition {number} was read up "
                f"to offset {place.following}: what it held is lost, and offsets begin again.",
                "read the new one from its beginning",
            )
            place.made, place.following, place.lost = self._next_made(place, survey), ends.first, ""
            self._held = deque(each for each in self._held if each[0] != number)
            return True
        if not place.made:
            place.made = (1 << ID_BITS) + survey.id
        elif not known:
            place.made += survey.id
        if place.following is None:
            place.following = self._first(number, ends.first, ends.behind, starts)
            return place.following is not None
        if place.lost and any(number == each for each, _ in self._held):
            self._hurries = True  # first hand out what has come before that
            return False
        if place.lost:
            self._find(number, place, survey)
            return True
        # Who is let in again hears so only then, where no message comes.
        waits_s = BARRED_S if place.barred else STUCK_S if ends.behind > place.following else math.inf
        is_stuck = boot_time() > place.heard_at + waits_s
        place.heard_at = boot_time() if is_stuck else place.heard_at
        return is_stuck

    def _first(self, number: int, oldest: int, newest: int, starts: Mapping[int, int]) -> int | None:
        """The offset at which a partition begins that was never read; None if it is not known yet."""
        start = start_at(self._stream, self._start, number)
        if isinstance(start, datetime):
            at = starts.get(number)
            return newest if at == -1 else at
        if isinstance(start, int):
            return start
        return newest if start == "newest" else oldest

    def _find(self, number: int, place: Place, survey: Survey) -> None:
        """Find out why a broker does not go on at an offset, and where to go on."""
        ends, following = survey.ends[number], place.following or 0
        which, said, place.lost = f"Partition {number} of the topic {self._topic.name!r}", place.lost, ""
        if following < ends.first:
            self._lose(
                f"{which} is to be read on from offset {following}, and its oldest message has offset "
                f"{ends.first} now: up to {ends.first - following} messages were deleted unread.",
                "go on without them",
            )
            place.following = ends.first
        elif following > ends.behind and isinstance(self._start, Mapping) and following == self._start.get(number):
            raise ConfigError(  # nothing was read, so nothing is lost
                f"streams.{self._stream.name}.options.start has offset {following} for partition {number}, and "
                f"{which[0].lower()}{which[1:]} ends before offset {ends.behind}. Write one up to {ends.behind}."
            )
        elif following > ends.behind:
            self._lose(
                f"{which} is to be read on from offset {following}, and it ends before offset "
                f"{ends.behind}: the topic was deleted and recreated, or a broker has lost what it had.",
                "read what is there now",
            )
            place.made, place.following = self._next_made(place, survey), ends.first
        elif "runcat" in said:
            self._lose(
                f"{which} has other messages before offset {following} than those that we have read ({said}).",
                "go on from there",
            )

    def _lose(self, what: str, otherwise: str) -> None:
        """Pass over what is lost, or raise an error that says how to."""
        if not self._skips:
            raise RowsGone(f'{what} To {otherwise}, set options.on_expired = "skip" for its stream.')
        self._lost_at = boot_time()
        log.warning("%s options.on_expired says to %s.", what, otherwise)

    @staticmethod
    def _next_made(place: Place, survey: Survey) -> int:
        return (((place.made >> ID_BITS) + 1) << ID_BITS) + survey.id

    # Messages

    def _assign(self) -> None:
        """Have the partitions read from their places."""
        if self._consumer is None:
            self._told = Told()
            self._consumer = self._topic.consumer(self._told, on_commit=self._refused if self._commits else None)
        places = [
            TopicPartition(self._topic.name, number, place.following)
            for number, place in sorted(self._places.items())
            if place.following is not None
        ]
        try:
            # librdkafka 2.16 was seen to wait forever in it, while connections were cut.
            begun(partial(self._consumer.assign, places)).result(ASSIGN_S)
        except TooLate as error:
            self._consumer, self._hurries = None, True  # not closed, which would hang as well
            raise StorageUnavailable(
                f"The client of the topic {self._topic.name!r} does not answer. Another one takes its place."
            ) from error

    def _fetch(self) -> None:
        """Take in what the client has."""
        if self._consumer is None:
            return
        parts, ends = defaultdict[int, list[Message]](list), dict[int, int]()
        for message in self._consumer.consume(self._at_once, 0.0):
            number, error = message.partition(), message.error()
            if error is None:
                parts[number].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[number] = message.offset()
            else:
                self._hear(message, error)
        if parts or ends:
            self._look.unseen = None  # some brokers answer
            self._was_let_in = True
        for number, came in parts.items():
            place = self._places[number]
            following, place.barred = place.following or 0, None
            fresh = came if came[0].offset() >= following else [each for each in came if each.offset() >= following]
            if fresh:
                place.following, place.heard_at = fresh[-1].offset() + 1, boot_time()
                self._held.append((number, fresh))
        for number, end in ends.items():
            place = self._places[number]
            place.following, place.heard_at, place.barred = max(end, place.following or 0), boot_time(), None
        if self._told.is_refused:
            self.close()  # the next one takes a secret that is read again
            self._hurries = True

    def _hear(self, message: Message, error: KafkaError) -> None:
        """Take in an error that came in the place of a message."""
        place, code = self._places.get(message.partition()), error.code()
        if place is not None and code in _LOST:
            place.lost, self._hurries = error.str(), True
        elif code in _AWAY:
            self._hurries = True
        elif code in _UNREADABLE:
            raise SamzaAzureError(
                f"Message {message.offset()} of partition {message.partition()} of the topic {self._topic.name!r} "
                f"cannot be read: {error.str()}. To go on behind it, read the topic as a stream of another id, with "
                "offsets in options.start."
            )
        else:
            found = self._topic.explained(error)
            if not isinstance(found, AccessDenied):
                self._told(error)
                return
            if not self._was_let_in:
                raise found
            for each in self._places.values() if place is None else [place]:
                each.barred, each.heard_at = found, boot_time()

    def _trouble(self) -> StorageUnavailable | None:
        """Why nothing comes, if it is not that there is nothing."""
        denied = [self._denied[1]] if self._denied else [each.barred for each in self._places.values() if each.barred]
        return self._look.unseen or (Barred(str(denied[0])) if denied else None)

    def _rows(self, number: int, messages: list[Message]) -> SystemRows:
        """The rows of some messages, and what is none."""
        last, place, once = messages[-1], self._places[number], EventHubsOnce(self.state(number))
        table = rows(self._new(once, messages), self._columns)
        kept = table.filter(pc.is_valid(table[BODY])) if self._drops_tombstones else table
        unread = kept.slice(0, 0)
        if HEADERS in kept.column_names:
            unread, kept = kept.filter(pc.is_null(kept[HEADERS])), kept.filter(pc.is_valid(kept[HEADERS]))
        found, dead = self._parser.parted(
            kept,
            lambda row: f"message {row['offset']} of partition {number} of the topic {self._topic.name!r}",
            "timestamp",
            [(unread.slice(row, 1), NO_TEXT) for row in range(unread.num_rows)],
        )
        if table.num_rows:
            self._messages, self._bytes = self._messages + table.num_rows, self._bytes + table.nbytes
            self._at_once = max(1, min(MESSAGES, BYTES * table.num_rows // table.nbytes))
        place.returned, place.read_ms = (place.made, last.offset() + 1), time_ms(last)
        self._once[number] = once
        return SystemRows(number, found, place.returned, dead=dead)

    @staticmethod
    def _new(once: EventHubsOnce, messages: list[Message]) -> list[Message]:
        """Those that do not come again, as the job that has sent them says."""
        said = [
            headers_of(message) for message in messages
        ]  # unreadable ones are not from samza_azure, whose names are texts
        if not any(said):
            return messages
        return [each for each, headers in zip(messages, said, strict=True) if once.is_new(dict(headers))]

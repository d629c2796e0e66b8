"""An Event Hubs namespace of our own: AMQP 1.0 over plain TCP, in memory, for clients on this machine.

Promised: what docs and dumps say of the service. Events of a partition are numbered without a gap; a reader with an
owner level evicts those with the same or a lower one; a position that has expired is read from the oldest event on,
without an error; one that lies beyond the end is refused; offsets are opaque, and with geo-replication no numbers.

Not promised: TLS and WebSockets, compaction, quotas, tokens that expire on open links. It was written after
documentation, dumps and the source code of clients, and never beside the service itself.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from samza_azure.eventhubs.amqp import (
    AMQP_HEADER,
    EMPTY_FRAME,
    NULL,
    SASL_HEADER,
    Code,
    Fields,
    array,
    binary,
    boolean,
    composite,
    described,
    error,
    fields,
    frame,
    int32,
    long,
    mapping,
    sections,
    string,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)
from samza_azure.eventhubs.jenkins import of_key

KEY_NAME, KEY = "local", "a2V5IG9mIHRoZSBmYWtl"
MESSAGE_BYTES, FRAME_BYTES, BATCH_FORMAT = 1 << 20, 1 << 16, 0x80013700
CREDIT = 1000  # of senders
READERS = 5  # without an owner level, of one consumer group and partition
BUSY = "The request was terminated because the entity is being throttled. Error code : 50002. Please wait 4 seconds."
SELECTOR = re.compile(r"amqp\.annotation\.x-opt-([a-z-]+) (>=?) '([^']*)'")
T = TypeVar("T")
IDLE_S = 10.0  # between two empty frames, by which clients see that we live


class Refused(Exception):
    """What the service says instead of doing what it was asked."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.written = error(condition, text)


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it is stored: what follows its annotations, byte for byte."""

    number: int
    offset: str
    enqueued_ms: int
    key: str | None
    body: bytes


@dataclass(eq=False)
class Partition:
    """The events that are still kept, and who reads them."""

    id: str
    geo: bool
    first: int = 0
    size: int = 0
    held: bool = False
    events: list[Event] = field(default_factory=list)
    readers: list["Reading"] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def append(self, message: bytes, now_ms: int) -> None:
        key, at = None, 0
        for code, value, start in sections(message):
            if code >= Code.PROPERTIES:
                at = start
                break
            if code == Code.MESSAGE_ANNOTATIONS:
                key = value.get("x-opt-partition-key")
        offset = f"1:{self.end}:{self.size}" if self.geo else str(self.size)
        self.size += len(message)
        enqueued = max(now_ms, self.events[-1].enqueued_ms if self.events else 0)
        self.events.append(Event(self.end, offset, enqueued, key, message[at:]))

    def start(self, selector: str) -> int:
        """The number of the first event after a position."""
        found = SELECTOR.fullmatch(selector)
        if found is None:
            raise Refused("amqp:invalid-field", f"The filter {selector!r} is invalid.")
        kind, compare, text = found.groups()
        inclusive = compare == ">="
        if kind == "offset" and text in ("-1", "@latest"):
            return self.first if text == "-1" else self.end
        if kind == "enqueued-time":
            wanted = [e.number for e in self.events if e.enqueued_ms > int(text) - inclusive]
            return wanted[0] if wanted else self.end
        if kind == "offset":
            if self.geo and ":" not in text:
                raise Refused(
                    "com.microsoft:georeplication:invalid-offset", f"The supplied offset '{text}' is invalid."
                )
            at = int(text.rpartition(":")[2])
            if at >= self.size:
                raise Refused("com.microsoft:argument-error", f"The supplied offset '{text}' is invalid.")
            wanted = [e.number for e in self.events if int(e.offset.rpartition(":")[2]) > at - inclusive]
            return wanted[0] if wanted else self.end
        if int(text) >= self.end and self.end > 0:
            last = f"The last sequence number in the system is '{self.end - 1}'"
            raise Refused("com.microsoft:argument-error", f"The supplied sequence number '{text}' is invalid. {last}")
        return max(self.first, int(text) + (not inclusive))


@dataclass(eq=False)
class Hub:
    """The partitions, and when the hub was made."""

    name: str
    partitions: list[Partition]
    groups: set[str]
    geo: bool
    created_ms: int
    turn: int = 0


@dataclass(eq=False)
class Session:
    """The transfers that a client still lets us send, and its links by handle."""

    connection: "Connection"
    channel: int
    window: int
    sent: int = 0  # frames of messages
    deliveries: int = 0
    links: dict[int, "Link"] = field(default_factory=dict)

    def say(self, body: bytes) -> None:
        self.connection.say(frame(self.channel, body))

    def flow(self, handle: int, count: int, credit: int) -> None:
        window = uint(0x7FFFFFFF)
        numbers = (uint(0), window, uint(self.sent), window, uint(handle), uint(count), uint(credit))
        self.say(composite(Code.FLOW, *numbers, NULL, boolean(False), boolean(False), NULL))

    def pump(self) -> None:
        for link in self.links.values():
            link.pump()


@dataclass(eq=False)
class Link:
    """One end of a link, as the service sees it."""

    session: Session
    handle: int
    address: str
    settled: bool
    count: int = 0

    def pump(self) -> None:
        """Send what there is."""

    def drop(self) -> None:
        """Forget the link."""

    def detach(self, why: bytes) -> None:
        self.session.links.pop(self.handle, None)
        self.drop()
        self.session.say(composite(Code.DETACH, uint(self.handle), boolean(True), why))


@dataclass(eq=False)
class Intake(Link):
    """What a client sends: events, tokens and requests."""

    hub: Hub | None = None
    partition: Partition | None = None
    parts: list[bytes] = field(default_factory=list)
    head: list[Any] = field(default_factory=list)

    def take(self, transfer: Fields, payload: bytes) -> None:
        if not self.parts:
            self.head = transfer.values
        self.parts.append(payload)
        if transfer.values[5]:
            return
        message, self.parts = b"".join(self.parts), []
        self.count += 1
        if self.count % (CREDIT // 2) == 0:
            self.session.flow(self.handle, self.count, CREDIT)
        state = self.session.connection.hubs.received(self, message, self.head[3] or 0)
        if state is not None and not self.head[4]:
            number = uint(self.head[1])
            self.session.say(
                composite(Code.DISPOSITION, boolean(True), number, number, boolean(True), state, boolean(False))
            )


@dataclass(eq=False)
class Outlet(Link):
    """What a client receives, one message per credit: here the answers to its requests."""

    credit: int = 0
    queue: deque[bytes] = field(default_factory=deque)

    def next(self) -> bytes | None:
        return self.queue.popleft() if self.queue else None

    def pump(self) -> None:
        while self.credit > 0 and self.session.window > 0 and (message := self.next()) is not None:
            room = self.session.connection.frame_bytes - 100
            number, tag = uint(self.session.deliveries), binary(self.count.to_bytes(8, "big"))
            for at in range(0, len(message), room):
                marks = (uint(0), boolean(self.settled), boolean(at + room < len(message)))
                head = composite(Code.TRANSFER, uint(self.handle), number, tag, *marks, *[NULL] * 5)
                self.session.say(head + message[at : at + room])
                self.session.window -= 1
                self.session.sent += 1
            self.session.deliveries += 1
            self.count += 1
            self.credit -= 1


@dataclass(eq=False)
class Reading(Outlet):
    """A reader of a partition."""

    partition: Partition = field(kw_only=True)
    group: str = field(kw_only=True)
    epoch: int | None = field(kw_only=True)
    at: int = field(kw_only=True)
    metrics: bool = field(kw_only=True)

    def next(self) -> bytes | None:
        here = self.partition
        if here.held or self.at >= here.end or not here.events:  # all before the end may have expired
            return None
        event = here.events[max(self.at - here.first, 0)]
        self.at = event.number + 1
        return (
            (self._metrics() if self.metrics else b"") + described(Code.MESSAGE_ANNOTATIONS, _named(event)) + event.body
        )

    def _metrics(self) -> bytes:
        last = self.partition.events[-1]
        facts = {
            symbol("last_enqueued_sequence_number"): long(last.number),
            symbol("last_enqueued_offset"): string(last.offset),
            symbol("last_enqueued_time_utc"): timestamp(last.enqueued_ms),
            symbol("runtime_info_retrieval_time_utc"): timestamp(_now_ms()),
        }
        return described(Code.DELIVERY_ANNOTATIONS, mapping(facts))

    def drop(self) -> None:
        if self in self.partition.readers:
            self.partition.readers.remove(self)


def _named(event: Event) -> bytes:
    """What the service says of an event."""
    facts = {
        symbol("x-opt-sequence-number"): long(event.number),
        symbol("x-opt-offset"): string(event.offset),
        symbol("x-opt-enqueued-time"): timestamp(event.enqueued_ms),
    }
    return mapping(facts | ({symbol("x-opt-partition-key"): string(event.key)} if event.key else {}))


def _now_ms() -> int:
    return int(time.time() * 1000)


class Connection(asyncio.Protocol):
    """One client's connection: headers, sign-in, sessions, links."""

    transport: asyncio.Transport

    def __init__(self, hubs: "EventHubs") -> None:
        self.hubs = hubs
        self.frame_bytes = FRAME_BYTES
        self.is_open = False
        self.rights: set[str] = set()
        self.sessions: dict[int, Session] = {}
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.hubs.counts["connections"] += 1
        self.hubs.connections.add(self)

    def connection_lost(self, _why: Exception | None) -> None:
        self.hubs.connections.discard(self)
        for session in self.sessions.values():
            for link in session.links.values():
                link.drop()
        self.sessions.clear()

    def say(self, written: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(written)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 8:
            size = 8 if self._received[:4] == b"AMQP" else int.from_bytes(self._received[:4], "big")
            if len(self._received) < size:
                return
            whole = bytes(self._received[:size])
            del self._received[:size]
            self._take(whole)

    def _take(self, whole: bytes) -> None:
        if whole == SASL_HEADER:
            ways = array(0xB3, ["MSSBCBS", "ANONYMOUS", "EXTERNAL"])
            self.say(SASL_HEADER + frame(0, composite(Code.SASL_MECHANISMS, ways), sasl=True))
        elif whole == AMQP_HEADER:
            self.say(AMQP_HEADER)
        elif len(whole) > 4 * whole[4]:
            body = whole[4 * whole[4] :]
            self._perform(int.from_bytes(whole[6:8], "big"), fields(body), body)

    def _perform(self, channel: int, said: Fields, body: bytes) -> None:
        values = said.values
        match said.code:
            case Code.SASL_INIT:
                self.say(frame(0, composite(Code.SASL_OUTCOME, ubyte(0), NULL), sasl=True))
            case Code.OPEN:
                self.frame_bytes = min(values[2] or FRAME_BYTES, FRAME_BYTES)
                limits = (uint(FRAME_BYTES), ushort(4999), uint(120_000))
                opened = composite(Code.OPEN, string("fake"), NULL, *limits, *[NULL] * 5)
                self.say(frame(0, opened))
                self.is_open = True
            case Code.BEGIN:
                self.sessions[channel] = Session(self, channel, values[2])
                window = uint(0x7FFFFFFF)
                numbers = (ushort(channel), uint(0), window, window, uint(255))
                self.sessions[channel].say(composite(Code.BEGIN, *numbers, NULL, NULL, NULL))
            case Code.END:
                for link in self.sessions.pop(channel).links.values():
                    link.drop()
                self.say(frame(channel, composite(Code.END, NULL)))
            case Code.CLOSE:
                self.say(frame(0, composite(Code.CLOSE, NULL)))
                self.transport.close()
            case _ if channel in self.sessions:
                self._on_link(self.sessions[channel], said, body)

    def _on_link(self, session: Session, said: Fields, body: bytes) -> None:
        values = said.values
        match said.code:
            case Code.ATTACH:
                self._attach(session, said)
            case Code.FLOW:
                session.window = (values[0] or 0) + values[1] - session.sent
                link = session.links.get(values[4])
                if isinstance(link, Outlet):
                    link.credit = (values[5] or 0) + values[6] - link.count
                session.pump()
                if isinstance(link, Outlet) and values[8]:  # the client wants its credit used up
                    link.count, link.credit = link.count + link.credit, 0
                    session.flow(link.handle, link.count, 0)
            case Code.TRANSFER:
                link = session.links.get(values[0])
                if isinstance(link, Intake):
                    link.take(said, body[said.end :])
            case Code.DETACH:
                link = session.links.pop(values[0], None)
                if link is not None:
                    link.drop()
                    session.say(composite(Code.DETACH, uint(values[0]), boolean(True), NULL))

    def _attach(self, session: Session, said: Fields) -> None:
        name, handle, receives = said.values[:3]
        source, target, why = said.written[5], said.written[6], None
        try:
            session.links[handle] = link = self.hubs.link(session, said)
        except Refused as refused:
            why = refused.written
            source, target = (NULL, target) if receives else (source, NULL)
        modes = (said.written[3], said.written[4])
        count = uint(0) if receives else NULL
        properties = mapping({symbol("com.microsoft:tracking-id"): string(uuid.uuid4().hex)})
        rest = (NULL, NULL, count, ulong(MESSAGE_BYTES), NULL, NULL, properties)
        session.say(
            composite(Code.ATTACH, string(name), uint(handle), boolean(not receives), *modes, source, target, *rest)
        )
        if why is not None:
            session.say(composite(Code.DETACH, uint(handle), boolean(True), why))
        elif isinstance(link, Intake):
            session.flow(handle, 0, CREDIT)


class EventHubs:
    """The namespace, in a thread of its own. `hubs` has the number of partitions of each hub.

    All faults are asked for by calls, from any thread, and have happened when the call returns.
    """

    def __init__(self, hubs: dict[str, int], *, geo: bool = False) -> None:
        self.rights = {KEY_NAME: {"Listen", "Send"}}  # of each key's name
        self.tokens: dict[str, set[str]] = {}  # rights of each token of an identity
        self.answers: deque[bytes] = deque()  # to the next sends, instead of storing what was sent
        self.refused_at: list[float] = []
        self.lost = {"after": 0, "before": 0}  # how many sends end with a cut connection, after or before it is stored
        self.refusals: deque[Refused] = deque()  # of the next links
        self.management = True  # whether it answers
        self.counts: Counter[str] = Counter()
        self.connections: set[Connection] = set()
        self._geo = geo
        self._hubs = {name: self._made(name, count) for name, count in hubs.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event hubs", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        self._loop.call_soon_threadsafe(self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connection_string(self) -> str:
        where = f"Endpoint=sb://localhost:{self.port}"
        return f"{where};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true"

    # What tests do to it

    def listen(self) -> None:
        """Begin, or begin again after `close` at the same port."""

        async def serve() -> asyncio.Server:
            return await self._loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, reuse_address=True)

        self._server = asyncio.run_coroutine_threadsafe(serve(), self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Cut all connections and accept none."""
        self._call(self._server.close)
        self.cut("tcp")

    def cut(self, how: str, *, partition: str | None = None) -> None:
        """End connections by "tcp" or "close", or links of readers by "detach"; all, or those that read a partition."""

        def apply() -> None:
            for connection in list(self.connections):
                readings = [each for each in self._readings(connection) if partition in (None, each.partition.id)]
                if partition is not None and not readings:
                    continue
                if how == "tcp":
                    connection.transport.abort()
                elif how == "close":
                    why = error("amqp:connection:forced", "The connection was closed by the service.")
                    connection.say(frame(0, composite(Code.CLOSE, why)))
                    connection.transport.close()
                else:
                    for each in readings:
                        each.detach(error("amqp:link:detach-forced", "The link was detached by the service."))

        self._call(apply)

    def throttle(self, times: int) -> None:
        """Refuse the next sends."""
        self._call(lambda: self.answers.extend([_rejected("com.microsoft:server-busy", BUSY)] * times))

    def hold(self, hub: str, partition: int, *, held: bool = True) -> None:
        """Deliver nothing of a partition for a while."""

        def apply() -> None:
            self._hubs[hub].partitions[partition].held = held
            self._pump(self._hubs[hub].partitions[partition])

        self._call(apply)

    def trim(self, hub: str, partition: int, before: int) -> None:
        """Let events expire."""

        def apply() -> None:
            here = self._hubs[hub].partitions[partition]
            count = max(0, min(before, here.end) - here.first)
            del here.events[:count]
            here.first += count

        self._call(apply)

    def add_group(self, hub: str, group: str) -> None:
        """Make a consumer group."""
        self._call(lambda: self._hubs[hub].groups.add(group))

    def add_partitions(self, hub: str, count: int) -> None:
        """Make more of them."""
        here = self._hubs[hub].partitions
        self._call(lambda: here.extend([Partition(str(len(here) + each), self._geo) for each in range(count)]))

    def make_again(self, hub: str) -> None:
        """Delete a hub and make one of the same name."""

        def apply() -> None:
            for partition in self._hubs[hub].partitions:
                for reading in list(partition.readers):
                    reading.detach(error("amqp:not-found", f"The messaging entity '{hub}' could not be found."))
            later = max(_now_ms(), self._hubs[hub].created_ms + 1)
            self._hubs[hub] = self._made(hub, len(self._hubs[hub].partitions), later)

        self._call(apply)

    def send(self, hub: str, partition: int, bodies: list[bytes]) -> None:
        """Append events without a client."""

        def apply() -> None:
            here = self._hubs[hub].partitions[partition]
            for body in bodies:
                here.append(described(Code.DATA, binary(body)), _now_ms())
            self._pump(here)

        self._call(apply)

    def bodies(self, hub: str, partition: int) -> list[bytes]:
        """What is stored."""
        here = self._hubs[hub].partitions[partition]
        return self._call(
            lambda: [value for e in here.events for code, value, _ in sections(e.body) if code == Code.DATA]
        )

    def readers(self, hub: str, partition: int) -> int:
        """How many readers are attached now."""
        return len(self._hubs[hub].partitions[partition].readers)

    # What clients ask for

    def link(self, session: Session, said: Fields) -> Link:
        """Make the link that a client asks for."""
        _, handle, receives = said.values[:3]
        end = said.values[5 if receives else 6]
        address = end.value[0]
        kind = (session, handle, address, said.values[3] == 1)
        if address.rpartition("/")[2] in ("$cbs", "$management"):
            return Outlet(*kind) if receives else Intake(*kind)
        path = (urlsplit(address).path if "://" in address else address).strip("/").split("/")
        hub = self._hubs.get(path[0])
        needed = "Listen" if receives else "Send"
        if needed not in session.connection.rights:
            raise Refused("amqp:unauthorized-access", f"Unauthorized access. '{needed}' claim(s) are required.")
        if hub is None:
            raise _unknown(address)
        if self.refusals and not receives:
            raise self.refusals.popleft()
        if not receives and len(path) == 1:
            return Intake(*kind, hub=hub)
        partition = next((each for each in hub.partitions if each.id == path[-1]), None)
        if partition is None:
            raise Refused("com.microsoft:argument-out-of-range", "The specified partition is invalid for an EventHub.")
        if not receives:
            return Intake(*kind, hub=hub, partition=partition)
        self.counts[f"readers of {hub.name}/{partition.id}"] += 1
        if self.refusals:
            raise self.refusals.popleft()
        if path[2] not in hub.groups:
            raise _unknown(address)
        filters = end.value[7] if len(end.value) > 7 else None
        selector = next(iter(filters.values())).value if filters else "amqp.annotation.x-opt-offset > '@latest'"
        epoch = (said.values[13] or {}).get("com.microsoft:epoch")
        at = partition.start(selector)
        self._evict(partition, path[2], epoch)
        metrics = "com.microsoft:enable-receiver-runtime-metric" in (said.values[12] or ())
        reading = Reading(*kind, partition=partition, group=path[2], epoch=epoch, at=at, metrics=metrics)
        partition.readers.append(reading)
        return reading

    def _evict(self, partition: Partition, group: str, epoch: int | None) -> None:
        """Let the newer owner in, and the older one out."""
        others = [each for each in partition.readers if each.group == group]
        highest = max((each.epoch for each in others if each.epoch is not None), default=None)
        if highest is not None and (epoch is None or epoch < highest):
            text = f"Receiver 'nil' with a higher epoch '{highest}' already exists. Receiver 'nil' with epoch {epoch} "
            text += "cannot be created."
            if epoch is None:
                text = f"At least one receiver for the endpoint is created with epoch of '{highest}', and so non-epoch "
                text += "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
                text += "receivers are closed or disconnected."
            raise Refused("amqp:link:stolen", text)
        if epoch is None:
            if len(others) >= READERS:
                text = "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5."
                raise Refused("amqp:resource-limit-exceeded", text)
            return
        text = f"New receiver 'nil' with higher epoch of '{epoch}' is created hence current receiver 'nil' with epoch "
        for each in others:
            each.detach(error("amqp:link:stolen", text + f"'{each.epoch}' is getting disconnected."))

    def received(self, link: Intake, message: bytes, kind: int) -> bytes | None:
        """Do what a message asks for, and return its outcome; None: the client hears nothing."""
        accepted = composite(Code.ACCEPTED)
        if link.hub is None:
            self._answer(link, message)
            return accepted
        self.counts["sends"] += 1
        if self.answers:
            self.refused_at.append(time.monotonic())
            return self.answers.popleft()
        if len(message) > MESSAGE_BYTES:
            return _rejected("amqp:link:message-size-exceeded", f"The message has {len(message)} bytes.")
        if self._is_lost("before", link):
            return None
        parts = sections(message)
        events = [value for code, value, _ in parts if code == Code.DATA] if kind == BATCH_FORMAT else [message]
        partition = link.partition
        if partition is None:
            key = next(
                (value.get("x-opt-partition-key") for code, value, _ in parts if code == Code.MESSAGE_ANNOTATIONS), None
            )
            link.hub.turn += 1
            number = len(link.hub.partitions)
            partition = link.hub.partitions[of_key(key, number) if key else link.hub.turn % number]
        for event in events:
            partition.append(event, _now_ms())
        self._pump(partition)
        return None if self._is_lost("after", link) else accepted

    def _is_lost(self, when: str, link: Link) -> bool:
        if self.lost[when] == 0:
            return False
        self.lost[when] -= 1
        link.session.connection.transport.abort()
        return True

    def _answer(self, link: Intake, message: bytes) -> None:
        found = {code: (value, start) for code, value, start in sections(message)}
        asked: dict[str, Any] = found[Code.APPLICATION_PROPERTIES][0]
        if link.address.endswith("$cbs"):
            status, text, body = (*self._sign_in(link.session.connection, found[Code.VALUE][0], asked), NULL)
        elif not self.management:
            return
        else:
            status, text, body = self._look(link.session.connection, asked)
        to = fields(message, found[Code.PROPERTIES][1]).written[0]  # its id
        facts = {string("status-code"): int32(status), string("status-description"): string(text)}
        answer = composite(Code.PROPERTIES, *[NULL] * 5, to, *[NULL] * 7)
        answer += described(Code.APPLICATION_PROPERTIES, mapping(facts)) + described(Code.VALUE, body)
        for session in link.session.connection.sessions.values():
            for other in session.links.values():
                if isinstance(other, Outlet) and other.address == link.address:
                    other.queue.append(answer)
                    other.pump()

    def _sign_in(self, connection: Connection, token: str, asked: dict[str, Any]) -> tuple[int, str]:
        if asked["type"] == "jwt":
            rights = self.tokens.get(token)
        else:
            said = {name: values[0] for name, values in parse_qs(token.partition(" ")[2]).items()}
            signed = f"{_quoted(token, 'sr')}\n{said['se']}".encode()
            mine = base64.b64encode(hmac.digest(KEY.encode(), signed, hashlib.sha256)).decode()
            right = hmac.compare_digest(mine, said["sig"]) and int(said["se"]) > time.time()
            rights = self.rights.get(said["skn"]) if right else None
        if rights is None:
            return 401, "InvalidSignature: The token has an invalid signature."
        connection.rights |= rights
        return 202, "Accepted"

    def _look(self, connection: Connection, asked: dict[str, Any]) -> tuple[int, str, bytes]:
        hub = self._hubs.get(asked["name"])
        if hub is None:
            return 404, f"The messaging entity '{asked['name']}' could not be found.", NULL
        if not connection.rights:
            return 401, "Unauthorized access. 'Listen' claim(s) are required to perform this operation.", NULL
        facts = {"name": string(hub.name), "type": string(asked["type"])}
        if asked["type"] == "com.microsoft:eventhub":
            self.counts["looks at hubs"] += 1
            facts |= {
                "created_at": timestamp(hub.created_ms),
                "partition_count": int32(len(hub.partitions)),
                "partition_ids": array(0xB1, [each.id for each in hub.partitions]),
                "georeplication_factor": int32(3 if hub.geo else 1),
            }
        else:
            self.counts["looks at partitions"] += 1
            here = next((each for each in hub.partitions if each.id == asked["partition"]), None)
            if here is None:
                return 400, "The specified partition is invalid for an EventHub.", NULL
            last = here.events[-1] if here.events else None
            facts |= {
                "partition": string(here.id),
                "begin_sequence_number": long(here.first),
                "last_enqueued_sequence_number": long(here.end - 1),
                "last_enqueued_offset": string(str(here.size - 1 if last is None or self._geo else last.offset)),
                "last_enqueued_time_utc": timestamp(last.enqueued_ms if last else 0),
                "is_partition_empty": boolean(last is None),
            }
        return 200, "OK", mapping({string(name): value for name, value in facts.items()})

    # Its own ways

    def _made(self, name: str, count: int, now_ms: int | None = None) -> Hub:
        partitions = [Partition(str(each), self._geo) for each in range(count)]
        return Hub(name, partitions, {"$Default"}, self._geo, now_ms or _now_ms())

    def _call(self, function: Callable[[], T]) -> T:
        """Let our thread do something, and wait for it."""

        async def there() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()

    def _beat(self) -> None:
        for connection in self.connections:
            if connection.is_open:  # before that the client expects its sign-in to be answered
                connection.say(EMPTY_FRAME)
        self._loop.call_later(IDLE_S, self._beat)

    @staticmethod
    def _pump(partition: Partition) -> None:
        for reading in list(partition.readers):
            reading.pump()

    @staticmethod
    def _readings(connection: Connection) -> Iterator[Reading]:
        for session in connection.sessions.values():
            yield from [each for each in session.links.values() if isinstance(each, Reading)]


def _rejected(condition: str, text: str) -> bytes:
    return composite(Code.REJECTED, error(condition, text))


def _unknown(address: str) -> Refused:
    return Refused("amqp:not-found", f"The messaging entity '{address}' could not be found.")


def _quoted(token: str, name: str) -> str:
    """A part of a token as it was signed."""
    return next(part.partition("=")[2] for part in token.partition(" ")[2].split("&") if part.startswith(f"{name}="))

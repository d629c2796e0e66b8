"""A standing reader of one partition: each event once, in order, or an error that says what is missing.

The SDK calls us in a thread of our own. It may hand over events again after it has connected anew, so what lies below
the expected number is dropped; what lies above it is missing, and nothing is handed out until somebody has decided
what to do about that. Its link is renewed now and then, since the SDK keeps some bytes for each event that it has
decoded itself.

A full reader holds back the SDK, and so the service, by not returning from its call.
"""

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from samza_azure.errors import AccessDenied, ConfigError, RowsGone, SamzaAzureError, StorageUnavailable
from samza_azure.eventhubs.deadline import Deadline
from samza_azure.eventhubs.hub import (
    TOO_MANY,
    EventHub,
    PartitionEnds,
    behind_earlier,
    condition_of,
    level_in,
    reader_in,
)
from samza_azure.eventhubs.receiving import Came, Messages
from samza_azure.machine.clock import boot_time
from samza_azure.systems.looks import begun
from samza_azure.systems.options import whole_ms
from samza_azure.systems.patience import Barred

if TYPE_CHECKING:
    from samza_azure.eventhubs.receiving import ReadingClient

log = logging.getLogger(__name__)

#: Between two tries of a reader that has lost its connection: at first, and at most.
RETRY_S, RETRY_MAX_S = 0.2, 10.0
#: What all readers of this process may hold together. One that holds less than its own part may always take in more.
ALL_BYTES, OWN_BYTES = 64 << 20, 1 << 20
#: How often a reader without room sees whether others have left it some.
ROOM_S = 0.2
#: The link is renewed after so many events: 40 MB of the SDK's memory.
LINK_EVENTS = 500_000
#: The most rows that arrive together, if they have come in parts.
TOGETHER = 10_000
#: For how long nothing may come although the service has more, until the link is renewed: at first, and at most.
#: Otherwise a connection that breaks without a word is waited for until TCP gives it up, after a quarter of an hour.
QUIET_S, QUIET_MAX_S = 15.0, 240.0
#: How long it may take to connect, to sign in and to be let in. The SDK would wait forever.
OPENS_S = 20.0
#: After so long without a link people are told.
FAILING_S = 60.0
#: How long the thread of a reader that is closed is waited for.
CLOSE_S = 5.0
#: Owner levels of our tasks begin here (`tasks.life.owner_number`); those of other programs are small, mostly 0.
OUR_LEVELS = 1024
#: For how long it is waited who reads the partition now, before we disconnect it; and how long the answer may take.
WHO_S, WHO_ANSWERS_S = 0.05, 5.0
#: After so many tries that ended with an error of the SDK's own, the next event is one that it cannot read.
TRIES = 3


@dataclass(frozen=True, slots=True)
class EventPosition:
    """The last event of a partition that was read. Without `number`, there was none yet when the partition was opened.

    `offset` is empty where only the number is known, as after a take-over. Only it tells the place in a namespace that
    is replicated elsewhere, so a reader that makes its link anew begins there.
    """

    number: int
    offset: str
    enqueued_ms: int
    created_ms: int  # the hub


@dataclass(frozen=True, slots=True)
class Arrival:
    """Some events, the position after them, and when the last of them was enqueued."""

    rows: pa.RecordBatch
    position: EventPosition


@dataclass(frozen=True, slots=True)
class End:
    """The last event in the partition, and when the service was asked, by the clock of the machine's boot."""

    number: int
    enqueued_ms: int
    asked_at: float
    first: int | None = None  # the number of the oldest event, if that was said


_open = set["PartitionReader"]()
_opening = threading.Lock()


class PartitionReader:
    """The events of one partition after `start`, or from a time or the one of a number on. A context manager; `read`
    and `look` are for one thread.

    `level` orders owners: a reader with a lower or an equal one ends with `Superseded`. `skips` says that events that
    expired unread, or were lost with their hub, are passed over instead of being an error. `asks_who` has `stranger`
    say which other program reads the partition when it is opened: our reader disconnects it. `news` is called, in
    another thread, when `read` has something to return or to raise.
    """

    def __init__(
        self,
        hub: EventHub,
        partition: str,
        start: EventPosition | datetime | int | Literal["oldest", "newest"],
        *,
        level: int,
        skips: bool = False,
        asks_who: bool = False,
        held_rows: int = 20_000,
        held_bytes: int = 32 << 20,
        prefetch: int = 2_000,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._hub, self._partition, self._start, self._level, self._skips = hub, partition, start, level, skips
        self._rows_max, self._bytes_max, self._prefetch = held_rows, held_bytes, prefetch
        self._changed, self._news = threading.Condition(), news
        self._held: deque[Arrival] = deque()
        self._rows = self.held_size = 0  # that are held
        self._last = start if isinstance(start, EventPosition) else None  # that came in
        self.created_ms: int | None = self._last.created_ms if self._last else None  # the hub
        self._was_let_in = False
        self._on_link = 0  # events since the link was made
        self._kept = 0  # of them, those of which the SDK keeps something
        self._doubts = 0  # tries since the last event that ended with an error of the SDK's own
        self._came_at = 0.0  # when the link was opened, or handed over events last
        self._quiet_s = QUIET_S  # that are waited for
        self._lacked: int | None = None  # the last event that had come when a look found later ones
        self._client: ReadingClient | None = None  # while it receives
        self._error: Exception | None = None  # that ended the link
        self._fault: SamzaAzureError | None = None  # that ended the reader
        self._closing = False
        self._asks_who = asks_who
        self.stranger = ""  # another program that read it when it was opened
        self.position = self._last  # after what `read` has returned, or where `newest` was
        self._trouble: SamzaAzureError | None = None  # why the last link has ended
        self._troubled_at = 0.0
        self._failing: tuple[float, SamzaAzureError] | None = None  # since when no link has come about, and why
        self.end: End | None = None  # as the service last said
        self.skipped = 0  # events that expired unread
        self.skipped_at = 0.0  # the last ones
        self.repeated = 0  # events that came again, and were dropped
        self._thread = threading.Thread(target=self._run, name=f"{hub.name}/{partition}", daemon=True)

    def __enter__(self) -> Self:
        with _opening:
            _open.add(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, wait_s: float = 0.0) -> Arrival | None:
        """The next events, or None if there are none yet.

        Raises:
            Superseded: a newer owner reads the partition.
            RowsGone: events expired before they were read, or the hub was recreated.
            ConfigError: the hub, its partition or the consumer group does not exist, or does not let us in.

        """
        with self._changed:
            self._changed.wait_for(lambda: self._held or self._fault, wait_s)
            if self._held:
                arrival = self._all_held()
                self._rows -= arrival.rows.num_rows
                self.position = arrival.position
                self._changed.notify_all()
                return arrival
            if self._fault is not None:
                raise self._fault
            return None

    @property
    def trouble(self) -> SamzaAzureError | None:
        """Why nothing comes, while the hub does not answer: a link that is there again tells of itself by events alone,
        so a later look that has an answer counts as much.
        """
        with self._changed:
            has_answered = self.end is not None and self.end.asked_at > self._troubled_at
            return None if has_answered else self._trouble

    @property
    def failing(self) -> SamzaAzureError | None:
        """Why no link has come about for `FAILING_S`; None if one has."""
        failing = self._failing
        return failing[1] if failing is not None and boot_time() > failing[0] + FAILING_S else None

    def _all_held(self) -> Arrival:
        """What is held, up to some rows: many together are parsed faster."""
        taken, size = [self._held.popleft()], 0
        while self._held and taken[0].rows.num_rows + size + self._held[0].rows.num_rows <= TOGETHER:
            taken.append(self._held.popleft())
            size += taken[-1].rows.num_rows
        self.held_size -= sum(each.rows.nbytes for each in taken)  # together they have fewer: each has its own padding
        return (
            taken[0]
            if len(taken) == 1
            else Arrival(pa.concat_batches([each.rows for each in taken]), taken[-1].position)
        )

    def look(self) -> None:
        """Ask the service for the end of the partition. That takes a connection, so ask seldom, and not while events
        come: each of them says it, too.

        Raises:
            StorageUnavailable: it does not answer.

        """
        asked_at = boot_time()
        try:
            ends = self._hub.ends(self._partition)
        except AccessDenied as error:
            raise self._barred(error) from error
        with self._changed:
            if self.end is None or self.end.asked_at < asked_at:  # events may have said a later one meanwhile
                is_other = self._last is not None and ends.last < self._last.number  # a hub that was recreated
                self.end = None if is_other else End(ends.last, ends.enqueued_ms, asked_at, ends.first)
            if self._last is not None and ends.first > self._last.number + 1 and not self._held and not self._skips:
                self._fault = self._expired(self._last.number, ends.first)
            dead = self._client if self._gives_up(ends) else None
        if dead is not None:
            log.warning("%s: event %d is there, and none comes: reconnecting", self._thread.name, ends.last)
            dead.close()

    def _gives_up(self, ends: PartitionEnds) -> bool:
        """Note what a look has found. Return whether the link counts as dead: it hands over nothing, although this look
        and the one before found later events.
        """
        number = self._last.number if self._last is not None else -1
        start = self._start
        begins_there = ends.enqueued_ms >= whole_ms(start) if isinstance(start, datetime) else start == "oldest"
        is_there = ends.last > number and ends.first <= ends.last  # else all have expired
        lacks = (begins_there or self._last is not None) and is_there and not self._held
        before, self._lacked = self._lacked, number if lacks else None
        is_quiet = boot_time() > self._came_at + self._quiet_s
        if self._client is None or self._lacked is None or self._lacked != before or not is_quiet:
            return False
        self._quiet_s = min(2 * self._quiet_s, QUIET_MAX_S)
        return True

    def close(self) -> None:
        """Let the partition go."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            client = self._client
        with _opening:
            _open.discard(self)
        if client is not None:
            client.close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)  # the SDK may hang

    # In the thread

    def _run(self) -> None:
        delay_s = RETRY_S
        while not self._closing:
            self._error, self._doubts, self._on_link = None, 0 if self._on_link else self._doubts, 0
            self._kept = 0
            try:
                self._receive()
            except Exception as error:  # noqa: BLE001 the SDK raises what it likes; `_explained` says what it means
                self._error = self._error or error
            if self._error is None or self._closing:
                continue
            found = self._explained(self._error)
            with self._changed:
                if not isinstance(found, StorageUnavailable):
                    self._fault = found
                    self._changed.notify_all()
                    self._news()
                    return
                self._trouble, self._troubled_at = found, boot_time()
                since = self._troubled_at if self._failing is None else self._failing[0]
                if self._failing is None or self._troubled_at < since + FAILING_S:  # then it stays as it was told
                    self._failing = since, found
                delay_s = RETRY_S if self._on_link else min(2 * delay_s, RETRY_MAX_S)
                self._changed.wait_for(lambda: self._closing, max(delay_s, found.after_s))

    def _receive(self) -> None:
        """Read until the link ends."""
        asked, self._asks_who = ([begun(self._ask_who)] if self._asks_who else []), False
        self._agree()  # meanwhile, so that this costs no time
        wait(asked, WHO_S)
        client, deadline = self._hub.client(self._partition), Deadline(OPENS_S)

        def attached() -> None:
            deadline.reached()
            self._attached()

        client.on_attach = attached
        # Of events that came with one that it cannot read, the SDK hands over none: they come one by one.
        prefetch = 1 if self._doubts else self._prefetch

        def opened(_context: object) -> None:
            # The SDK does not hear a `close` before now, and while it connects.
            with self._changed:
                self._client, self._came_at = client, boot_time()
                closing = self._closing
            if closing:
                client.close()

        def failed(_context: object, error: Exception) -> None:
            # Whoever does not close here sees the SDK open the link again by itself.
            self._error = self._error or error
            client.close()

        with deadline, client:
            client.receive_batch(
                self._arrived,
                partition_id=self._partition,
                owner_level=self._level,
                starting_position=self._from(),
                prefetch=prefetch,
                max_batch_size=1,  # what comes is some events already
                track_last_enqueued_event_properties=True,
                on_partition_initialize=opened,
                on_error=failed,
            )
        if deadline.is_missed:
            self._error = StorageUnavailable(f"The hub {self._hub.name!r} has not let us in within {OPENS_S:g} s.")
        with self._changed:
            self._client = None

    def _ask_who(self) -> None:
        """Find out whether another program reads the partition, which our link is about to disconnect."""
        error = self._hub.refusal_without_level(self._partition, WHO_ANSWERS_S)
        if error is None:
            return
        text, condition = str(error), condition_of(error)
        level = level_in(text)
        if condition == "link:stolen" and (level is None or (level < OUR_LEVELS and level != self._level)):
            self.stranger = reader_in(text.partition("\n")[0])
        elif condition.endswith(TOO_MANY):
            self.stranger = "as many readers without an owner level as it takes"

    def _attached(self) -> None:
        """The service has let us in, also if it has no event for us."""
        self._was_let_in, self._failing = True, None

    def _agree(self) -> None:
        """See that it is the hub that our position is of, and find out where `newest` is."""
        facts = self._hub.facts()
        if self.created_ms not in (None, facts.created_ms):
            if not self._skips:
                number = self._last.number if self._last else -1
                raise RowsGone(
                    f"The hub {self._hub.name!r} was deleted and recreated since its partition {self._partition} was "
                    f"read up to event {number}: what it held is lost, and numbers begin again. To read the new one "
                    'from its beginning, set options.on_expired = "skip" for its stream.'
                )
            log.warning("%s: the hub was recreated, and what it held is lost", self._thread.name)
            self._last, self._start, self.end = None, "oldest", None
        if self._partition not in facts.partitions:
            raise ConfigError(f"The hub {self._hub.name!r} has no partition {self._partition}.")
        self.created_ms = facts.created_ms
        if self._last is None and (isinstance(self._start, int) or self._start == "newest"):
            ends = self._hub.ends(self._partition)
            number = self._start - 1 if isinstance(self._start, int) else ends.last
            if number > ends.last:
                raise ConfigError(
                    f"options.start has the number {number + 1} for partition {self._partition} of the hub "
                    f"{self._hub.name!r}, whose next event will be {ends.last + 1}. Write one up to that."
                )
            with self._changed:
                self._last = self.position = EventPosition(number, "", 0, facts.created_ms)

    def _from(self) -> str | int | datetime:
        """Where to open: after the last event that came in, and never at one, since the SDK would hand it over again
        whenever it reconnects."""
        if self._last is None:
            return behind_earlier(self._start) if isinstance(self._start, datetime) else "-1"
        if self._last.number < 0:
            return "-1"
        offset = self._last.offset
        return self._last.number if not offset or offset.isdecimal() else offset

    def _arrived(self, _context: object, came: Sequence[Any]) -> None:  # `Came`
        """Take in what the SDK hands over, and return when there is room for more."""
        asked_at = boot_time()
        for events in came:
            batch = self._fresh(events)
            self._on_link += len(events)
            self._kept += len(events) if isinstance(events, Messages) else 0
            said = events.end()
            with self._changed:
                self._trouble = None
                self._came_at, self._quiet_s = asked_at, QUIET_S
                if batch is not None:
                    self._last = self._after(batch)
                    self._held.append(Arrival(batch, self._last))
                    self._rows += batch.num_rows
                    self.held_size += batch.nbytes
                if said is not None:
                    self.end = End(said[0], said[1], asked_at)
                self._changed.notify_all()
        self._news()
        with self._changed:
            while not self._changed.wait_for(lambda: self._closing or self._has_room, ROOM_S):
                pass
        is_over = self._on_link >= self._prefetch if self._doubts else self._kept >= LINK_EVENTS
        if is_over and self._client is not None:
            self._client.close()

    def _fresh(self, events: Came) -> pa.RecordBatch | None:
        """The rows of those that have not come before."""
        numbers = events.numbers()
        first = numbers[0] if self._last is None else self._last.number + 1
        assert first is not None
        if numbers == list(range(first, first + len(numbers))):
            return self._batch(events)
        kept = self._next(numbers)
        return self._batch(events, kept) if kept else None

    def _batch(self, events: Came, kept: Sequence[int] | None = None) -> pa.RecordBatch:
        """The rows of events, or of those at some places. An event that has none is an error, and no outage."""
        try:
            return events.rows(kept)
        except Exception as error:
            places = range(len(events)) if kept is None else kept
            if len(places) == 1:
                raise self._unreadable(f"{events.numbers()[places[0]]}", error) from error
        return pa.concat_batches([self._batch(events, [place]) for place in places])

    def _unreadable(self, event: str, error: Exception) -> SamzaAzureError:
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return SamzaAzureError(
            f"Event {event} of partition {self._partition} of the hub {self._hub.name!r} cannot be read: {text}. To go "
            "on behind it, read the hub as a stream of another id, with options.start a later time than it has."
        )

    def _after(self, batch: pa.RecordBatch) -> EventPosition:
        number, offset, enqueued = (batch[name][-1] for name in ("sequence_number", "offset", "enqueued_time"))
        assert self.created_ms is not None
        return EventPosition(number.as_py(), offset.as_py(), enqueued.value // 1000, self.created_ms)

    @property
    def _has_room(self) -> bool:
        if self._rows >= self._rows_max or self.held_size >= self._bytes_max:
            return False
        if self.held_size < OWN_BYTES:
            return True
        with _opening:
            return sum(each.held_size for each in _open) < ALL_BYTES

    def _next(self, numbers: Sequence[int | None]) -> list[int]:
        """The places of those that have not come before."""
        expected = None if self._last is None else self._last.number + 1
        fresh = []
        for place, number in enumerate(numbers):
            assert number is not None
            if expected is not None and number < expected:
                self.repeated += 1
                continue
            if expected is not None and number > expected:
                if not self._skips:
                    raise self._expired(expected - 1, number)
                self.skipped += number - expected
                self.skipped_at = boot_time()
                log.warning("%s options.on_expired says to go on without them.", self._gap(expected - 1, number))
            fresh.append(place)
            expected = number + 1
        return fresh

    def _gap(self, read: int, oldest: int) -> str:
        return (
            f"Partition {self._partition} of the hub {self._hub.name!r} was read up to event {read}, and its oldest "
            f"event is {oldest} now: {oldest - read - 1} events expired unread."
        )

    def _expired(self, read: int, oldest: int) -> RowsGone:
        gap = self._gap(read, oldest)
        return RowsGone(f'{gap} To go on without them, set options.on_expired = "skip" for its stream.')

    def _explained(self, error: Exception) -> SamzaAzureError:
        """What ended the link. A hub that was recreated is told by nothing but its time of creation, and whoever was
        let in once waits to be let in again."""
        found, created_ms = self._hub.explained(error), self.created_ms
        try:
            if isinstance(found, (RowsGone, ConfigError)):
                self._agree()
                if created_ms not in (None, self.created_ms):
                    return StorageUnavailable(f"The hub {self._hub.name!r} was recreated.")
            elif not self._on_link and isinstance(error.__context__ or error, (TypeError, ValueError, struct.error)):
                self._doubts += 1
                # Only a hub that answers has an event that is at fault.
                if self._doubts >= TRIES:
                    ends = self._hub.ends(self._partition)
                    number = max(ends.first, self._last.number + 1 if self._last else 0)
                    is_since_time = self._last is None and isinstance(self._start, datetime)
                    if number <= ends.last:
                        return self._unreadable(f"since {self._start}" if is_since_time else str(number), error)
        except Exception as cause:  # noqa: BLE001 as above: with it the thread would end without a word
            found = self._hub.explained(cause)
        return self._barred(found)

    def _barred(self, error: SamzaAzureError) -> SamzaAzureError:
        """The same error, but for a refusal of whoever was let in: that is waited for."""
        return Barred(str(error)) if isinstance(error, AccessDenied) and self._was_let_in else error

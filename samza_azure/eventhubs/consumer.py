"""`system = "eventhubs"`: the partitions of a hub, one standing reader each.

A position is (when the hub was made, the number of the last event + 1): numbers begin again in a hub of the same name,
and so the positions still grow.

A partition is only silent if the service has said so: `lag` tells it. So an outage never counts as the end of what
there is.
"""

from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.eventhubs.events import SCHEMA
from samza_azure.eventhubs.hub import EventHub, begun
from samza_azure.eventhubs.partition_reader import EventPosition, PartitionReader
from samza_azure.eventhubs.reach import tried
from samza_azure.machine.clock import boot_time
from samza_azure.systems.api import SystemLag, SystemPosition, SystemRows, SystemStream
from samza_azure.systems.dead_letters import SCHEMA as DEAD_LETTERS
from samza_azure.systems.parsing import BODY, Parser, is_option

#: A partition that has been silent for so long is looked at, and again after as long.
LOOK_S = 5.0
OPTIONS = {"connect", "connect.file", "namespace", "name", "consumer_group", "start", "on_expired"}


class EventHubsStream:
    """A stream that is a hub: its admin and its consumer."""

    def __init__(self, stream: SystemStream) -> None:
        self._stream = stream
        options = stream.options
        if unknown := [name for name in options if name not in OPTIONS and not is_option(name)]:
            raise ConfigError(
                f"streams.{stream.name}.options.{min(unknown)} is not an option of eventhubs, which has "
                f"{', '.join(sorted(OPTIONS))}, format, parse, envelope, and from.<column>. Remove the line."
            )
        self._hub = _hub(stream)
        self._start = _start(stream)
        self._skips = _one_of(stream, "on_expired", "fail", "skip") == "skip"
        self._parser = Parser(stream, [name for name in SCHEMA.names if name != BODY])
        self._readers: dict[int, PartitionReader] = {}
        self._told: dict[int, EventPosition | None] = {}  # the position that was handed out last
        self._heard_at: dict[int, float] = {}  # when rows came last
        self._looking: dict[int, Future[None]] = {}
        self._unseen: dict[int, StorageUnavailable] = {}  # why the end of a partition is not known
        self._events = self._bytes = 0  # that were read
        self._turn = 0

    def partitions(self) -> int | None:
        """As many as the hub has. Their ids are the numbers from 0."""
        return len(self._hub.facts().partitions)

    def look(self) -> str:
        """What a try to read the hub has found. Raise an error that says what to do if it cannot be read."""
        return tried(self._hub, self._stream.partitions)

    def open(self, partition: int, position: SystemPosition) -> None:
        created_ms, following = position
        start = EventPosition(following - 1, "", 0, created_ms) if created_ms else self._start
        reader = PartitionReader(self._hub, str(partition), start, level=self._stream.owner, skips=self._skips)
        reader.__enter__()
        self._readers[partition] = reader
        self._told[partition], self._heard_at[partition] = reader.position, boot_time()

    def read(self) -> SystemRows | None:
        """What one of the partitions has; each has its turn."""
        numbers = sorted(self._readers)
        for at in range(len(numbers)):
            number = numbers[(self._turn + at) % len(numbers)]
            if (found := self._read(number)) is not None:
                self._turn += at + 1
                return found
        for number in numbers:
            self._see_silence(number)
        troubles = [self._readers[number].trouble or self._unseen.get(number) for number in numbers]
        if troubles and all(troubles):  # one alone does not hold back the others
            raise troubles[0] or AssertionError
        return None

    def lag(self, partition: int) -> SystemLag | None:
        """What is left after what `read` has returned, as the last event or look has said."""
        reader, told, start = self._readers[partition], self._told[partition], self._start
        if (end := reader.end) is None:
            return None
        if told is not None and told.created_ms != reader.created_ms:  # numbers begin again
            told, start = None, "oldest"
        left: int | None
        if told is not None:
            left = end.number - told.number
        elif end.first is not None and end.first > end.number:  # all events have expired
            left = 0
        elif isinstance(start, datetime):
            left = 0 if end.enqueued_ms <= start.timestamp() * 1000 else None
        else:
            left = end.number - end.first + 1 if start == "oldest" and end.first is not None else None
        if left is None:
            return None
        seconds = 0.0 if left <= 0 else None
        if left > 0 and told is not None and told.enqueued_ms:
            seconds = max(0.0, (end.enqueued_ms - told.enqueued_ms) / 1000)
        size = max(0, left) * self._bytes // max(1, self._events)
        return SystemLag(max(0, left), size, seconds, boot_time() - end.asked_at)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _read(self, number: int) -> SystemRows | None:
        reader = self._readers[number]
        arrival = reader.read()
        if arrival is not None:
            self._told[number], self._heard_at[number] = arrival.position, boot_time()
            self._unseen.pop(number, None)
            self._events += arrival.rows.num_rows
            self._bytes += arrival.rows.nbytes
            return self._rows(number, arrival.rows, arrival.position)
        if reader.position is not None and reader.position != self._told[number]:  # what `newest` means is known now
            self._told[number] = reader.position
            return SystemRows(number, self._stream.schema.empty_table(), _system_position(reader.position))
        return None

    def _see_silence(self, number: int) -> None:
        """Look at the end of a partition that is silent, now and then."""
        looking, now, reader = self._looking.get(number), boot_time(), self._readers[number]
        if looking is not None and looking.done():
            del self._looking[number]
            self._unseen.pop(number, None)
            try:
                looking.result()
            except StorageUnavailable as error:
                self._unseen[number] = error
            return
        looked_at = max(reader.end.asked_at if reader.end else 0.0, self._heard_at[number])
        if now < looked_at + LOOK_S:
            return
        if looking is None:
            self._looking[number] = begun(reader.look)
        elif now > looked_at + 3 * LOOK_S:
            name = self._hub.name
            self._unseen[number] = StorageUnavailable(
                f"The end of partition {number} of the hub {name!r} is not known."
            )

    def _rows(self, number: int, events: pa.RecordBatch, position: EventPosition) -> SystemRows:
        """The rows of some events, and what is none."""
        good, dead = [], []
        for part, reason in self._parser.rows(pa.Table.from_batches([events])):
            if not reason:
                good.append(part)
                continue
            event = part.to_pylist()[0]
            place = f"event {event['sequence_number']} of partition {number} of the hub {self._hub.name!r}"
            if not self._stream.dead_letters:
                raise ConfigError(
                    f"E{place[1:]} is no row. {reason} Correct its format, or put such events aside: "
                    f"streams.{self._stream.name}.dead_letters = 100."
                )
            dead.append({"raw": event[BODY], "reason": reason, "place": place, "time": event["enqueued_time"]})
        rows = pa.concat_tables(good) if good else self._stream.schema.empty_table()
        aside = pa.Table.from_pylist(dead, DEAD_LETTERS) if dead else None
        return SystemRows(number, rows, _system_position(position), dead=aside)


def _system_position(position: EventPosition) -> SystemPosition:
    return position.created_ms, position.number + 1


def _hub(stream: SystemStream) -> EventHub:
    """The hub that the options name, and the way to it."""
    options = stream.options
    key = f"streams.{stream.name}.options"
    ways = [name for name in ("connect", "connect.file", "namespace") if name in options]
    if len(ways) != 1 or "name" not in options:
        raise ConfigError(
            f"{key} should name the hub, and one way to it. Write under [streams.{stream.name}]: options.name = "
            '"hub", and options.connect = "${EVENTHUBS}", options.connect.file = "path", or options.namespace = '
            '"name.servicebus.windows.net" for an identity.'
        )
    name, group = options["name"], options.get("consumer_group", "$Default")
    if ways == ["namespace"]:
        from azure.identity import DefaultAzureCredential

        return EventHub(name, group, namespace=options["namespace"], credential=DefaultAzureCredential())
    if ways == ["connect"]:
        connect = options["connect"]
        return EventHub(name, group, connect=lambda: connect)
    path = stream.directory / options["connect.file"]
    return EventHub(name, group, connect=lambda: _secret(path, key))


def _secret(path: Path, key: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"  # its path is not for the log
        raise StorageUnavailable(f"{key}.connect.file cannot be read: {why}.") from error


def _start(stream: SystemStream) -> Literal["oldest", "newest"] | datetime:
    said = stream.options.get("start", "oldest")
    if said == "oldest":
        return "oldest"
    if said == "newest":
        return "newest"
    try:
        at = datetime.fromisoformat(said)
    except ValueError as error:
        raise ConfigError(
            f'streams.{stream.name}.options.start is {said!r}. Write "oldest", "newest", or a time like '
            '"2026-01-31T12:00:00Z".'
        ) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _one_of(stream: SystemStream, option: str, *values: str) -> str:
    """An option that is one of these; the first is the default."""
    said = stream.options.get(option, values[0])
    if said not in values:
        raise ConfigError(f"streams.{stream.name}.options.{option} is {said!r}. Write one of {', '.join(values)}.")
    return said

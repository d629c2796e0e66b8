"""`system = "eventhubs"`: the partitions of a hub, one standing reader each.

A position is (when the hub was made, the number of the last event + 1): numbers begin again in a hub of the same name,
and so the positions still grow.

A partition is only silent if the service has said so: `lag` tells it. So an outage never counts as the end of what
there is.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.eventhubs.events import SCHEMA
from samza_azure.eventhubs.hub_check import tried
from samza_azure.eventhubs.options import WAYS, hub_of
from samza_azure.eventhubs.partition_reader import Arrival, EventPosition, PartitionReader
from samza_azure.machine.clock import boot_time
from samza_azure.systems.api import SystemLag, SystemPosition, SystemRows, SystemStream
from samza_azure.systems.looks import Look
from samza_azure.systems.once import NUMBER, WRITER, EventHubsOnce
from samza_azure.systems.options import BODY, added, one_of, refuse_unknown, start_at, start_of, whole_ms
from samza_azure.systems.parsing import Parser

log = logging.getLogger(__name__)

OPTIONS = {*WAYS, "name", "consumer_group", "start", "on_expired"}
#: How often the task of partition 0 asks whether the hub has got more partitions.
COUNT_S = 60.0
#: For how long people are told what happened once.
TOLD_S = 3600.0
#: The partitions that are asked at a time where their events of a time begin.
AT_ONCE = 8


class EventHubsStream:
    """A stream that is a hub: its admin and its consumer."""

    def __init__(self, stream: SystemStream) -> None:
        self._stream = stream
        refuse_unknown(stream, "eventhubs", OPTIONS)
        self._hub = hub_of(stream)
        self._start = start_of(stream, "the number of an event")
        self._skips = one_of(stream, "on_expired", "fail", "skip") == "skip"
        self._parser = Parser(stream, [name for name in SCHEMA.names if name != BODY])
        self._readers: dict[int, PartitionReader] = {}
        self._told: dict[int, EventPosition | None] = {}  # the position that was handed out last
        self._looks: dict[int, Look] = {}
        self._taken: dict[int, Arrival] = {}  # events that are not parsed yet
        self._events = self._bytes = 0  # that were read
        self._turn = 0
        self._news: Callable[[], None] = lambda: None
        self._once: dict[int, EventHubsOnce] = {}
        self._count = Look(
            self._count_partitions, f"The partitions of the hub {self._hub.name!r} are not known.", at_once=True
        )
        self._counted_at, self._counted = 0.0, 0
        self._opened_at = boot_time()

    def partitions(self) -> int | None:
        """As many as the hub has. Their ids are the numbers from 0."""
        return len(self._hub.facts().partitions)

    def look(self) -> str:
        """What a try to read the hub has found. Raise an error that says what to do if it cannot be read."""
        return ", and ".join(filter(None, [tried(self._hub, self._stream.partitions), self._parser.look()]))

    def back_to(self, time: datetime, stood: Mapping[int, SystemPosition]) -> dict[int, SystemPosition]:
        """Where the events begin that were enqueued at a time or later."""
        read = {each: at for each, at in stood.items() if at[0]}
        created_ms = self._hub.facts().created_ms if read else 0
        if any(at[0] != created_ms for at in read.values()):
            raise ConfigError(
                f"The hub {self._hub.name!r} was deleted and recreated since it was read: what it held is lost, and "
                "numbers begin again. To read the new one, use --to earliest."
            )
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = threads.map(lambda each: self._hub.first_since(str(each), whole_ms(time)), read)
            first = dict(zip(read, found, strict=True))
        return {each: (created_ms, at) for each, at in first.items() if at is not None and at < stood[each][1]}

    def checkpoints(self, container: str, group: str) -> dict[int, int]:
        """The number behind the last event that another reader has handled, by its checkpoints in blobs."""
        from samza_azure.eventhubs.checkpoints import checkpoints  # with the storage's SDK

        return checkpoints(replace(self._hub, group=group or self._hub.group), container)

    def restore(self, partition: int, state: bytes) -> None:
        """Take over whose events were read up to which number."""
        self._once[partition] = EventHubsOnce(state)

    def state(self, partition: int) -> bytes:
        """Whose events were read up to which number, behind what `read` has returned."""
        once = self._once.get(partition)
        return b"" if once is None else bytes(once)

    def tell(self, function: Callable[[], None]) -> None:
        """Call this whenever there may be something to read."""
        self._news = function

    def open(self, partition: int, position: SystemPosition) -> None:
        created_ms, following = position
        start = EventPosition(following - 1, "", 0, created_ms) if created_ms else self._start_of(partition)
        reader = PartitionReader(
            self._hub,
            str(partition),
            start,
            level=self._stream.owner,
            skips=self._skips,
            asks_who=not created_ms,  # not in a take-over, which it would hold up
            news=self._news,
        )
        reader.__enter__()
        self._readers[partition] = reader
        self._counted_at = boot_time()  # whoever opens has asked
        self._told[partition] = reader.position
        self._looks[partition] = Look(
            reader.look, f"The end of partition {partition} of the hub {self._hub.name!r} is not known.", is_dear=True
        )

    def read(self) -> SystemRows | None:
        """What one of the partitions has; each has its turn."""
        numbers = sorted(self._readers)
        self.pause()
        for at in range(len(numbers)):
            number = numbers[(self._turn + at) % len(numbers)]
            if (found := self._read(number)) is not None:
                self._turn += at + 1
                return found
        troubles = [self._readers[number].trouble or self._looks[number].unseen for number in numbers]
        if troubles and all(troubles):  # one alone does not hold back the others
            raise troubles[0] or AssertionError
        return None

    def pause(self) -> None:
        """Look at the ends of the partitions, since no events say them, and for more partitions."""
        self._look_for_more()
        for number, reader in self._readers.items():
            self._looks[number].see(reader.end.asked_at if reader.end else 0.0, soon=reader.trouble is not None)

    def lag(self, partition: int) -> SystemLag | None:
        """What is left after what `read` has returned, as the last event or look has said."""
        reader, told, start = self._readers[partition], self._told[partition], self._start_of(partition)
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
            left = 0 if end.enqueued_ms < whole_ms(start) else None
        else:
            left = end.number - end.first + 1 if start == "oldest" and end.first is not None else None
        if left is None:
            return None
        seconds = 0.0 if left <= 0 else None
        if left > 0 and told is not None and told.enqueued_ms:
            seconds = max(0.0, (end.enqueued_ms - told.enqueued_ms) / 1000)
        size = max(0, left) * self._bytes // max(1, self._events)
        is_current = reader.trouble is None and self._looks[partition].unseen is None
        return SystemLag(max(0, left), size, seconds, boot_time() - end.asked_at, is_current)

    def warning(self) -> str:
        """What to do about partitions that nobody reads, other programs that read ours, and events that were lost."""
        said = [added(self._stream.name, self._stream.partitions, self._counted), self._of_failing()]
        if boot_time() < self._opened_at + TOLD_S:
            said += [self._of_strangers(sorted({each.stranger for each in self._readers.values() if each.stranger}))]
        lost = sum(each.skipped for each in self._readers.values() if boot_time() < each.skipped_at + TOLD_S)
        said += [f"Of the hub {self._hub.name!r} {lost} events expired unread; the log says which."] if lost else []
        return " ".join(filter(None, said))

    def _of_failing(self) -> str:
        failing = {number: why for number, each in sorted(self._readers.items()) if (why := each.failing) is not None}
        if not failing:
            return ""
        numbers, why = ", ".join(map(str, failing)), next(iter(failing.values()))
        return f"Partition {numbers} of the hub {self._hub.name!r} has not been read for a minute or longer: {why}"

    def _of_strangers(self, strangers: list[str]) -> str:
        if not strangers:
            return ""
        numbers = ", ".join(str(number) for number, each in sorted(self._readers.items()) if each.stranger)
        return (
            f"When this task began, another program read partition {numbers} of the hub {self._hub.name!r} in the "
            f"consumer group {self._hub.group!r}, and was disconnected: {'; '.join(strangers)}. A consumer group is "
            f"for one job: write another one, streams.{self._stream.name}.options.consumer_group."
        )

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _start_of(self, partition: int) -> datetime | int | Literal["oldest", "newest"]:
        return start_at(self._stream, self._start, partition)

    def _look_for_more(self) -> None:
        if 0 in self._readers:  # one task of the stream is enough
            self._count.see(self._counted_at + COUNT_S)

    def _count_partitions(self) -> None:
        """Ask for the number of partitions: nobody reads one that was added since the task began."""
        self._counted_at = boot_time()
        with suppress(SamzaAzureError):  # the readers say what is wrong with the hub
            self._counted = len(self._hub.facts().partitions)

    def _read(self, number: int) -> SystemRows | None:
        reader = self._readers[number]
        arrival = self._taken.pop(number, None) or reader.read()
        if arrival is not None:
            self._looks[number].heard()
            once = EventHubsOnce(self.state(number))
            self._taken[number] = arrival  # what parses may fail for a while: then the next call finds all as it was
            found = self._rows(number, self._new(number, once, arrival.rows), arrival.position)
            del self._taken[number]
            self._told[number], self._once[number] = arrival.position, once
            self._events += arrival.rows.num_rows
            self._bytes += arrival.rows.nbytes
            return found
        if reader.position is not None and reader.position != self._told[number]:  # what `newest` means is known now
            self._told[number] = reader.position
            return SystemRows(number, self._stream.schema.empty_table(), _system_position(reader.position))
        return None

    def _new(self, number: int, once: EventHubsOnce, events: pa.RecordBatch) -> pa.RecordBatch:
        """Those that do not come again, as the job that has sent them says."""
        writers, numbers = (pc.map_lookup(events["properties"], name, "first") for name in (WRITER, NUMBER))
        if writers.null_count == len(writers):
            return events
        are_new = [once.is_next(*each) for each in zip(writers.to_pylist(), numbers.to_pylist(), strict=True)]
        if all(are_new):
            return events
        log.info("partition %d: %d events come again", number, are_new.count(False))
        return events.filter(pa.array(are_new))

    def _rows(self, number: int, events: pa.RecordBatch, position: EventPosition) -> SystemRows:
        """The rows of some events, and what is none."""
        rows, dead = self._parser.parted(
            pa.Table.from_batches([events]),
            lambda event: f"event {event['sequence_number']} of partition {number} of the hub {self._hub.name!r}",
            "enqueued_time",
        )
        return SystemRows(number, rows, _system_position(position), dead=dead)


def _system_position(position: EventPosition) -> SystemPosition:
    return position.created_ms, position.number + 1

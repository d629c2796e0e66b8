"""`system = "eventhubs"` of a stream that a stage writes: its rows are sent to a hub, as batches for each partition.

Promised: one batch at a time is on its way to a partition, and the next one only when the service has taken it. Each
event says who sent it and which number it has there; so what comes again is known, and comes before anything later.

Not promised: that nothing comes twice. The service has no way to refuse it, and the SDK sends a batch again by itself.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as TooLate
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable
from samza_azure.eventhubs.batches import add
from samza_azure.eventhubs.deadline import Deadline
from samza_azure.eventhubs.hub import ANSWER_S
from samza_azure.eventhubs.hub_check import tried_to_send
from samza_azure.eventhubs.jenkins import of_key
from samza_azure.eventhubs.options import WAYS, hub_of
from samza_azure.systems.api import RefusedRow, SystemStream, SystemWriter
from samza_azure.systems.encoding import Encoder
from samza_azure.systems.looks import begun
from samza_azure.systems.once import NUMBER, WRITER
from samza_azure.systems.options import FORMAT, refuse_unknown
from samza_azure.systems.partitioning import OPTIONS as PARTITIONING
from samza_azure.systems.partitioning import Partitioner
from samza_azure.systems.patience import Barred

if TYPE_CHECKING:
    from azure.eventhub import EventDataBatch, EventHubProducerClient

OPTIONS = {*WAYS, "name", *PARTITIONING, FORMAT}
#: How long the service may take for a batch; and for all of a range, before the SDK is believed to hang.
SEND_S, HANGS_S = 30.0, 120.0
#: So many partitions are sent to at the same time.
LANES = 4
#: Between two tries: half of the first wait, and the longest; the longest of one that is throttled.
RETRY_S, RETRY_MAX_S, BUSY_MAX_S = 0.1, 10.0, 60.0
#: After so many of them the number of partitions is looked at.
LOOK_TRIES = 5
#: Between two tries of who was let in, and is not any more.
DENIED_S = 5.0


class EventHubsOutput:
    """A hub that is written: its admin and its producer."""

    def __init__(self, stream: SystemStream) -> None:
        refuse_unknown(stream, "eventhubs", OPTIONS)
        self._hub = hub_of(stream)
        self._encoder = Encoder(stream)
        self._partitioner = Partitioner(stream, of_key)
        self._writer = SystemWriter("", None, 0)
        self._client: EventHubProducerClient | None = None
        self._most = 0  # bytes of a batch
        self._waiting: dict[int, deque[EventDataBatch]] = {}
        self._tries = 0  # that failed, one after the other
        self._was_let_in = False

    def partitions(self) -> int | None:
        """As many as the hub has. Their ids are the numbers from 0."""
        return len(self._hub.facts().partitions)

    def look(self) -> str:
        """What a try to send to the hub has found. Raise an error that says what to do if nothing can be sent."""
        return tried_to_send(self._hub)

    def open(self, writer: SystemWriter) -> None:
        self._writer = writer
        self._see_to_client()

    def send(self, number: int, rows: pa.Table) -> Sequence[RefusedRow]:
        """Put rows into batches, as many into each as the service takes."""
        client, refused = self._see_to_client(), list[RefusedRow]()
        waiting: dict[int, deque[EventDataBatch]] = {}
        bodies, properties = self._encoder.bodies(rows), self._encoder.properties(rows)
        places = self._partitioner.places(self._writer, number, rows)
        for index, (where, body, more) in enumerate(zip(places, bodies, properties, strict=True)):
            if body is None:
                refused.append(RefusedRow(index, "Its body is null, and each event has one.", b""))
                continue
            if isinstance(where, str):
                refused.append(RefusedRow(index, where, body))
                continue
            said = {**more, WRITER: self._writer.id}
            add_to = partial(add, body=body, properties=said, numbers={NUMBER: number + index})
            if not self._add(client, waiting.setdefault(where, deque()), where, add_to):
                reason = f"It is larger than the {self._most:,} bytes that the hub {self._hub.name!r} takes."
                refused.append(RefusedRow(index, reason, body))
        for where, batches in waiting.items():
            self._waiting.setdefault(where, deque()).extend(batches)
        return refused

    def flush(self) -> None:
        """Send all batches, those of a partition one after the other."""
        client = self._see_to_client()
        lanes: list[list[deque[EventDataBatch]]] = [[] for _ in range(LANES)]
        for number, batches in enumerate(self._waiting.values()):
            lanes[number % LANES].append(batches)
        sending = [begun(partial(_send, client, lane)) for lane in lanes if lane]
        until, errors = time.monotonic() + HANGS_S, list[Exception]()
        for each in sending:
            try:
                each.result(max(0.0, until - time.monotonic()))
            except TooLate:
                errors.append(self._silent(HANGS_S))
            except Exception as error:  # noqa: BLE001 the SDK raises what it likes; `explained` says what it means
                errors.append(error)
        if errors:
            # A lane that hangs keeps the old queues. If it wakes up, what it sends comes again, and in its order.
            self._waiting = {where: deque(batches) for where, batches in self._waiting.items() if batches}
            raise self._failed(errors[0])
        self._waiting.clear()
        self._tries = 0

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            begun(client.close)  # the SDK may hang

    def _see_to_client(self) -> "EventHubProducerClient":
        """The client, which knows how large a batch may be."""
        if self._client is None:
            client = self._hub.sender()
            try:
                self._most = begun(partial(_size_of_batch, client)).result(ANSWER_S)
            except Exception as error:
                begun(client.close)  # the SDK may hang
                raise self._failed(self._silent(ANSWER_S) if isinstance(error, TooLate) else error) from error
            self._client, self._was_let_in = client, True
        return self._client

    def _silent(self, seconds: float) -> StorageUnavailable:
        return StorageUnavailable(f"The hub {self._hub.name!r} has not answered within {seconds:g} s.")

    def _failed(self, error: Exception) -> SamzaAzureError:
        """What a failed try means, and when the next one is due."""
        found = self._hub.explained(error)
        if isinstance(found, AccessDenied) and self._was_let_in:  # a secret that is renewed, a right that comes back
            self.close()
            return Barred(str(found), after_s=DENIED_S)
        if not isinstance(found, StorageUnavailable):
            self.close()
            return found
        self._tries += 1
        if found.after_s:
            return StorageUnavailable(str(found), after_s=_wait_s(found.after_s, self._tries - 1, BUSY_MAX_S))
        self.close()
        if self._tries % LOOK_TRIES == 0 and (lost := self._lost_partitions()) is not None:
            return lost
        return StorageUnavailable(str(found), after_s=_wait_s(RETRY_S, self._tries, RETRY_MAX_S))

    def _lost_partitions(self) -> SamzaAzureError | None:
        """An error if the hub has fewer partitions than when the rows were numbered: it was recreated."""
        had = self._writer.partitions or 0
        try:
            number = self.partitions() or 0
        except SamzaAzureError:
            return None
        if number >= had:
            return None
        return SamzaAzureError(f"The hub {self._hub.name!r} had {had} partitions, and was recreated with {number}.")

    def _add(
        self,
        client: "EventHubProducerClient",
        to: "deque[EventDataBatch]",
        where: int,
        add_to: "Callable[[EventDataBatch], None]",
    ) -> bool:
        """Add an event to the last batch of a partition, or to a new one. Return False if it is too large for any."""
        if to:
            try:
                add_to(to[-1])
            except ValueError:  # it is full
                pass
            else:
                return True
        batch = client.create_batch(partition_id=str(where))
        try:
            add_to(batch)
        except ValueError:
            return False
        to.append(batch)
        return True


def _wait_s(first_s: float, times: int, most_s: float) -> float:
    """The first wait, doubled so many times; an outage may be long, and a power of two then be no float."""
    return min(first_s * 2.0 ** min(times, 20), most_s)


def _size_of_batch(client: "EventHubProducerClient") -> int:
    """How many bytes a batch may have. It opens a link."""
    with Deadline(ANSWER_S):
        return int(client.create_batch().max_size_in_bytes)


def _send(client: "EventHubProducerClient", lane: "Sequence[deque[EventDataBatch]]") -> None:
    """Send the batches of some partitions. Connections that it opens are cut once nobody waits for it any more."""
    with Deadline(HANGS_S):
        for batches in lane:
            while batches:
                client.send_batch(batches[0], timeout=SEND_S)
                batches.popleft()

"""A client of the SDK whose consumers hand over events by hundreds, and wake up only when something comes.

The SDK makes two system calls, a decoder's tree of objects and an `EventData` for each event, hands them over once none
came for a tenth of a second, and asks ten times a second whether there is something. Here a consumer waits for its
socket, takes from it what is there, and reads usual events by `transfers`; all else the SDK reads, frame by frame.

This module and `deadline` know private parts of the SDK that receives; `SDK` lists them. If one of them changes,
`tests/eventhubs/test_receiving.py` fails.
"""

# ruff: noqa: SLF001

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
from azure.eventhub import EventHubConsumerClient
from azure.eventhub._pyamqp import _decode
from azure.eventhub._pyamqp.constants import LinkState

from samza_azure.eventhubs.events import Received, rows
from samza_azure.eventhubs.transfers import Transfers

#: What is used beneath the public names of azure-eventhub 5.15, by the kind of object.
SDK = {
    "consumer": (
        "running",
        "_keep_alive",
        "_create_handler",
        "_handler",
        "_message_buffer",
        "_message_received",
        "_prefetch",
    ),
    "handler": ("_client_run", "_connection", "_session", "_link"),
    "link": ("state", "current_link_credit", "delivery_count", "remote_handle", "flow", "_received_payload"),
    "session": (
        *("incoming_window", "target_incoming_window", "next_incoming_id", "remote_outgoing_window"),
        "_outgoing_flow",
    ),
    "connection": ("_incoming_endpoints", "_transport", "_last_frame_received_time", "listen"),
    "transport": ("sock", "socket_lock", "connected", "read", "_read_buffer", "_init_socket"),
}
#: How long a consumer sleeps while nothing comes. Then the SDK looks whether it has to say that we live, or to sign in
#: again.
SLEEP_S = 1.0
#: How long it waits for more, and how long it gathers in all, before it hands over what came.
MORE_S, GATHER_S = 0.005, 0.05
#: The most bytes that are taken from the socket at once.
READ_BYTES = 256 << 10


def _char(data: memoryview) -> tuple[memoryview, str]:
    return data[4:], bytes(data[:4]).decode("utf-32-be")


def _decimal(size: int, exponent_bits: int, bias: int) -> Callable[[memoryview], tuple[memoryview, Decimal]]:
    """What reads a decimal of IEEE 754 that has so many bytes, and its digits as a binary number."""
    bits = 8 * size - 1  # without the sign

    def read(data: memoryview) -> tuple[memoryview, Decimal]:
        number = int.from_bytes(data[:size], "big")
        sign, low, high = number >> bits, bits - exponent_bits, 0
        if number >> bits - 4 & 0b1111 == 0b1111:
            return data[size:], Decimal("NaN" if number >> bits - 5 & 1 else "-Infinity" if sign else "Infinity")
        if number >> bits - 2 & 0b11 == 0b11:  # the digits have three more bits, which are always the same
            low, high = low - 2, 0b100
        exponent = (number >> low & (1 << exponent_bits) - 1) - bias
        digits = high << low | number & (1 << low) - 1
        return data[size:], Decimal((sign, tuple(map(int, str(digits))), exponent))

    return read


#: Types that the SDK cannot read, or reads wrongly: an event with one ended what read it, or was read forever.
_decode._DECODE_BY_CONSTRUCTOR[0x73] = _char
_decode._DECODE_BY_CONSTRUCTOR[0x74] = _decimal(4, 8, 101)
_decode._DECODE_BY_CONSTRUCTOR[0x84] = _decimal(8, 10, 398)
_decode._DECODE_BY_CONSTRUCTOR[0x94] = _decimal(16, 14, 6176)


class Messages:
    """Events that the SDK has read."""

    def __init__(self) -> None:
        self._events: list[Received] = []

    def __len__(self) -> int:
        return len(self._events)

    def append(self, event: Received) -> None:
        """Take in the next one."""
        self._events.append(event)

    def numbers(self) -> list[int | None]:
        """Their numbers in the partition."""
        return [event.sequence_number for event in self._events]

    def rows(self, kept: Sequence[int] | None = None) -> pa.RecordBatch:
        """One row per event, or for those at some places."""
        return rows(self._events if kept is None else [self._events[at] for at in kept])

    def end(self) -> tuple[int, int] | None:
        """The number of the last event in the partition and when it was enqueued, as the last event here says."""
        return self._events[-1].end


#: Events in the order in which they came.
Came = Transfers | Messages


class ReadingClient(EventHubConsumerClient):
    """A client that reads a connection in one thread, and calls back with `Came` in the place of events. For one
    partition.

    The thread that reads says, too, that we live, while it reads.
    """

    def __init__(self, *of: Any, **more: Any) -> None:
        super().__init__(*of, **more)
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self.on_attach: Callable[[], None] = lambda: None  # called when the service has let us in
        self.partition = ""  # that will be read

    def get_partition_ids(self) -> list[str]:
        """The one that will be read: the SDK would ask the service which there are, each time before it reads one."""
        return [self.partition] if self.partition else super().get_partition_ids()

    def close(self) -> None:
        """Let the thread that reads end now."""
        super().close()
        with suppress(OSError):  # it has been told often
            self._waker.send(b"\0")

    def __exit__(self, *of: object) -> None:
        super().__exit__(*of)
        # A thread of the SDK holds the client for some seconds more (`hub.BALANCE_S`).
        self._woken.close()
        self._waker.close()

    def _create_consumer(self, *of: Any, **more: Any) -> Any:
        made: Any = super()._create_consumer(*of, **more)
        # Seconds between two times that another thread reads; 0: none is made. There is no option for it.
        made._keep_alive = 0
        Receiving(made, self._woken, self.on_attach)
        return made


class Receiving:
    """In the place of how a consumer of the SDK reads."""

    def __init__(self, consumer: Any, woken: socket.socket, on_attach: Callable[[], None] = lambda: None) -> None:
        self._consumer, self._woken, self._on_attach = consumer, woken, on_attach
        self._is_new = False  # the link
        self._create, self._came = consumer._create_handler, list[Came]()
        self._transport: Any = None
        self._data, self._at = b"", 0  # what was taken from the socket, and how much of it was read
        consumer._create_handler = self._handler_created
        consumer._message_received = self._message_came
        consumer._next_message_in_buffer = consumer._message_buffer.popleft

    def _handler_created(self, *of: Any) -> None:
        self._create(*of)
        self._is_new = True
        # Before the SDK opens the connection. Else it takes an error there for our `close`, and opens another one at
        # once, again and again.
        self._consumer.running = True
        handler = self._consumer._handler
        self._by_sdk, handler._client_run = handler._client_run, self._run

    def _message_came(self, message: Any) -> None:
        """Called by the SDK for each message that it has read."""
        last = self._came[-1] if self._came else None
        if not isinstance(last, Messages):
            self._came.append(last := Messages())
        last.append(Received(message))

    def _run(self, batch: int = 1, **more: Any) -> bool:
        """Hand over what has come, or wait for it. Called by the SDK once the link is attached, or was refused."""
        handler = self._consumer._handler
        if self._is_new and handler._link.state is LinkState.ATTACHED:
            self._is_new = False
            self._on_attach()
        if not self._adopts(handler._connection._transport):
            goes_on: bool = self._by_sdk(batch=batch, **more)
        else:
            goes_on = True
            self._read(handler)
        came, self._came = self._came, []
        self._consumer._message_buffer.extend(came)
        return goes_on

    def _read(self, handler: Any) -> None:
        connection, link, prefetch = handler._connection, handler._link, self._consumer._prefetch
        if link.current_link_credit <= prefetch // 2:  # before it is used up, so that the service goes on
            link.flow(link_credit=prefetch)
        connection.listen(batch=0)  # reads nothing: it sees that the connection is alive, and says so
        if not self._has_frame() and not self._is_readable(SLEEP_S):
            return
        until = time.monotonic() + GATHER_S
        while True:
            if not self._has_frame():
                if not self._is_readable(MORE_S if self._came else 0) or time.monotonic() >= until:
                    return
                if not self._fill():
                    connection.listen(batch=1)  # the SDK finds out what is wrong, and says it the next time
                    return
            if not self._take(handler) or sum(map(len, self._came)) >= prefetch:
                return

    def _take(self, handler: Any) -> bool:
        """Read the whole frames that are here. Return whether to go on: the SDK may have closed the link."""
        connection, session, link = handler._connection, handler._session, handler._link
        channel = next(number for number, each in connection._incoming_endpoints.items() if each is session)
        head = b"\x02\x00" + channel.to_bytes(2, "big") + b"\x00\x53\x14"
        handle = link.remote_handle
        handles = {b"\x70" + handle.to_bytes(4, "big"), b"\x52" + bytes([handle & 0xFF]) if handle < 256 else b""}
        known = frozenset(handles | ({b"\x43"} if handle == 0 else set()))
        while True:
            if not link._received_payload:  # of a message in several frames
                last = self._came[-1] if self._came else None
                found = last if isinstance(last, Transfers) else Transfers()
                before = len(found)
                self._at = found.take(self._data, self._at, head, known)
                if len(found) > before:
                    self._count(handler, len(found) - before)
                    if found is not last:
                        self._came.append(found)
            if not self._has_frame():
                return True
            before = sum(map(len, self._came))
            connection.listen(batch=1)
            if sum(map(len, self._came)) == before and not link._received_payload:
                return False  # it was no event

    def _count(self, handler: Any, count: int) -> None:
        """Do what the SDK does with as many transfers."""
        connection, session, link = handler._connection, handler._session, handler._link
        connection._last_frame_received_time = time.time()
        link.current_link_credit -= count
        link.delivery_count += count
        session.next_incoming_id += count
        session.remote_outgoing_window -= count
        session.incoming_window -= count
        if session.incoming_window <= 0:
            session.incoming_window = session.target_incoming_window
            session._outgoing_flow()

    # The connection

    def _adopts(self, transport: Any) -> bool:
        """Let the SDK, too, read what we have taken from the socket."""
        if transport is self._transport:
            return True
        if not isinstance(transport.sock, socket.socket):
            return False
        self._transport, self._data, self._at = transport, transport._read_buffer.read(), 0
        transport.read = self._next_frame
        self._poll = select.poll()
        self._poll.register(transport.sock, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        return True

    def _has_frame(self) -> bool:
        left = len(self._data) - self._at
        return left >= 8 and left >= int.from_bytes(self._data[self._at : self._at + 4], "big")

    def _is_readable(self, wait_s: float) -> bool:
        sock = self._transport.sock
        if sock is None or (hasattr(sock, "pending") and sock.pending()):
            return True
        found = self._poll.poll(wait_s * 1000)
        return any(number != self._woken.fileno() for number, _ in found)

    def _fill(self) -> bool:
        """Take from the socket what is there. Return whether that went well."""
        with suppress(OSError), self._transport.socket_lock:
            self._receive()
            return True
        return False

    def _receive(self) -> None:
        transport = self._transport
        try:
            if transport.sock is None:
                raise OSError("The connection was closed.")
            data = transport.sock.recv(READ_BYTES)
            if not data:
                raise OSError("The service has closed the connection.")
        except TimeoutError:
            raise
        except OSError:
            transport.connected = False
            raise
        self._data, self._at = self._data[self._at :] + data, 0

    def _next_frame(self, verify_frame_type: int | None = 0) -> tuple[memoryview, int, memoryview | None]:
        """In the place of `transport.read`."""
        with self._transport.socket_lock:
            while not self._has_frame():
                self._receive()
        header = memoryview(self._data)[self._at : self._at + 8]
        size, offset, kind, channel = struct.unpack(">IBBH", header)
        begin, self._at = self._at + 8, self._at + max(size, 8)
        if size == 8:
            return header, channel, None
        if verify_frame_type is not None and kind != verify_frame_type:
            raise ValueError(f"A frame has type {kind} instead of {verify_frame_type}.")
        return header, channel, memoryview(self._data)[begin + offset - 2 : self._at]

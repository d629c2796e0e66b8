"""A limit for how long the SDK opens a connection, or waits for an answer.

It waits as long as it takes for a handshake, for a sign-in and for an answer, and nothing that it offers ends that: its
thread would stay, and so would its connection. So we note the connections that it opens, and cut them: then it sees an
error.
"""

# ruff: noqa: SLF001

import socket
import threading
from contextlib import suppress
from typing import Any, Self

from azure.eventhub._pyamqp._transport import _AbstractTransport

_here = threading.local()


class Deadline:
    """Inside, connections that this thread opens are cut after some seconds, unless `reached` was called before."""

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._lock, self._is_over = threading.Lock(), False
        self._transports, self._sockets = list[Any](), list[socket.socket]()
        self.is_missed = False

    def __enter__(self) -> Self:
        _here.deadline = self
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        _here.deadline = None
        self.reached()
        if self.is_missed:  # the SDK leaves those that it was opening to the garbage collector
            for each in self._transports:
                each.close()

    def reached(self) -> None:
        """Cut nothing any more."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            for each in self._sockets:
                each.close()

    def opens(self, transport: Any) -> None:
        """Note a connection. What is kept is another handle of it: the SDK may close its own at any time."""
        with self._lock:
            self._transports.append(transport)
            if self.is_missed:
                transport.sock.shutdown(socket.SHUT_RDWR)
            elif not self._is_over:
                self._sockets.append(transport.sock.dup())

    def _cut(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self.is_missed = True
            for each in self._sockets:
                with suppress(OSError):  # the other side has cut it
                    each.shutdown(socket.SHUT_RDWR)


def _noted(transport: Any, *of: Any) -> None:
    """In the place of what the SDK does once it is connected: a handshake comes next."""
    deadline = getattr(_here, "deadline", None)
    if deadline is not None:
        deadline.opens(transport)
    _init_socket(transport, *of)


_init_socket: Any = _AbstractTransport._init_socket
_AbstractTransport._init_socket = _noted  # type: ignore[method-assign]

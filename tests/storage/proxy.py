"""A TCP proxy that can lose what passes through it, a server that always gives the same answer, and servers before an
emulator that answer some requests themselves."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from enum import Enum, auto
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Mode(Enum):
    """What happens to a connection."""

    PASS = auto()
    LOSE_ANSWERS = auto()  # the request arrives; the connection breaks when its answer begins
    LOSE_ONE_ANSWER = auto()  # the same, once; then PASS
    BREAK_ANSWERS = auto()  # the connection breaks after the first kilobyte of the answer
    HOLD_ANSWERS = auto()  # the request arrives; the answer never does
    SLOW_REQUESTS = auto()  # each request arrives `delay_s` late
    LOSE_REQUESTS = auto()  # the connection breaks when the request begins


class Proxy:
    """Listens on `port` and passes on to `target`, as `mode` says at each moment. Counts the requests that arrived."""

    def __init__(self, target: int) -> None:
        self.mode = Mode.PASS
        self.connections = 0
        self.delay_s = 0.0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._sockets:
            _end(one)

    def cut(self) -> None:
        """Break the connections that there are."""
        _, *now = self._sockets
        for one in now:
            _end(one)
            with contextlib.suppress(ValueError):  # another thread may cut at the same time
                self._sockets.remove(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _end(client)
                continue
            self._sockets += [client, server]
            for source, target, keep in ((client, server, self._request), (server, client, self._answer)):
                threading.Thread(target=self._pump, args=(source, target, keep), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, keep: Callable[[bytes], bytes | None]) -> None:
        try:
            while data := source.recv(1 << 16):
                kept = keep(data)
                if kept is not None:
                    target.sendall(kept)
                if kept is None or (kept and len(kept) < len(data)):
                    break
        except OSError:
            pass
        _end(source)
        _end(target)

    def _request(self, data: bytes) -> bytes | None:
        if self.mode is Mode.SLOW_REQUESTS:
            time.sleep(self.delay_s)
        return None if self.mode is Mode.LOSE_REQUESTS else data

    def _answer(self, data: bytes) -> bytes | None:
        match self.mode:
            case Mode.LOSE_ANSWERS:
                return None
            case Mode.LOSE_ONE_ANSWER:
                self.mode = Mode.PASS
                return None
            case Mode.BREAK_ANSWERS:
                return data[:1024]
            case Mode.HOLD_ANSWERS:
                return b""
            case _:
                return data


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class Server:
    """An HTTP server on a free port, from its creation to the end of its context."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Answering(Server):
    """An HTTP server that answers everything with one status and one of Azure's error codes, or none; but a question
    for a blob's size with 3."""

    def __init__(self, status: int, code: str | None) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                requests.append(f"{self.command} {self.path}")
                if self.command == "HEAD":
                    self.send_response(200)
                    self.send_header("Content-Length", "3")
                    self.end_headers()
                    return
                body = b"<html>no answer of Azure's</html>"
                self.send_response(status)
                if code is not None:
                    self.send_header("x-ms-error-code", code)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Location", "/elsewhere")
                self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that arrives at a `Front`."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in Azure's form: the code is in a header, and for tables in the body. Without a code: a proxy's."""

    status: int
    code: str | None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return b"<html>no answer of Azure's</html>" if self.code is None else json.dumps(self._said).encode()

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        said = {"x-ms-error-code": self.code, "Content-Type": "application/json"} if self.code else {}
        return list({"Content-Type": "text/html", "Date": formatdate(usegmt=True), **said, **self.headers}.items())

    @property
    def _said(self) -> object:
        return {"odata.error": {"code": self.code, "message": {"lang": "en-us", "value": "no"}}}


#: What an account answers for want of a role.
NO_ROLE = Reply(403, "AuthorizationPermissionMismatch")


class Front(Server):
    """An HTTP server before an emulator: it passes requests on, or answers them itself.

    It also takes requests by CONNECT, as a proxy for https does, if it has a certificate for the hosts.
    """

    certificate: ssl.SSLContext | None = None

    def __init__(self) -> None:
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    self.raw_requestline = self.rfile.readline(65537)
                    if not self.raw_requestline or not self.parse_request():
                        self.close_connection = True
                    elif self.command == "CONNECT":
                        self.become_https()
                    else:
                        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                        self.answer(*front.answer(Request(self.command, self.path, self.headers, body)))
                except OSError:  # the client has gone
                    self.close_connection = True

            def become_https(self) -> None:
                assert front.certificate is not None
                self.send_response_only(200)
                self.end_headers()
                self.connection = front.certificate.wrap_socket(self.connection, server_side=True)
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
                self.close_connection = False

            def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                size = str(len(body))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        size = value
                    elif name.lower() not in ("content-length", "transfer-encoding", "connection", "keep-alive"):
                        self.send_header(name, value)
                self.send_header("Content-Length", size)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)

    def answer(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        """The answer to one request: our own, or the emulator's."""
        reply = self.instead(request)
        if reply is not None:
            return reply.status, reply.all_headers, reply.body
        port, request = self.passed_on(request)
        there = HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            there.request(request.method, request.path, request.body, dict(request.headers))
            found = there.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            there.close()

    def instead(self, request: Request) -> Reply | None:
        """What to answer instead of the emulator."""
        return None

    def passed_on(self, request: Request) -> tuple[int, Request]:
        """The port to which a request is passed on, and in which form."""
        raise NotImplementedError


class Guard(Front):
    """In front of one of an emulator's services; what it refuses it answers as Azure does for want of a role. It keeps
    the method and path of each request that it saw, and of each that it refused."""

    def __init__(self, target: int, refuses: Callable[[str, str], bool]) -> None:
        self.refuses = refuses
        self.seen: list[str] = []
        self.refused: list[str] = []
        self._target = target
        super().__init__()

    def instead(self, request: Request) -> Reply | None:
        shown = f"{request.method} {request.path}"
        self.seen.append(shown)
        if not self.refuses(request.method, request.path):
            return None
        self.refused.append(shown)
        return NO_ROLE

    def passed_on(self, request: Request) -> tuple[int, Request]:
        return self._target, request

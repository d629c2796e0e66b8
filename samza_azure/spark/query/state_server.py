"""Serve the checkpoints of tasks to executors on other machines, in the words of WebHDFS.

On a cluster Spark's state is loaded and written by executors, which have no disk in common with the container, and no
access to the account. The client of WebHDFS is in pyspark's wheel. So the files of each batch land in the container's
own folder, from which its record takes them, as without a cluster. What may be seen and changed says
`served_folders.py`; here is how it is asked. One more file is for who has the same Java: see `tasks/same_java.py`.
Promised: who does not send the secret of the container sees nothing of them. The secret is the *name* of a header, the
only thing that the wheel's client takes from a setting. So it is in no URL, and in no plan, page or log of Spark's. Of
an upload that ends early nothing is kept. Memory does not depend on the size of files. There are `CONNECTIONS` at most,
others wait, and one that sends no whole request ends after `HEAD_S`.
Not promised: that nobody listens on the way. The secret and the state go over plain HTTP.
No answer has a `Content-Type`: with one the wheel's client fails, since it lacks a class that reads it.
"""

import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

from samza_azure.errors import ConfigError
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.spark.query.served_folders import UPLOAD, ServedFolders
from samza_azure.tasks import same_java
from samza_azure.tasks.recorded_files import RecordedFiles

log = logging.getLogger(__name__)

PREFIX = "/webhdfs/v1/"
PIECE = 1 << 20
#: How many connections there are at a time. An executor has one for each store that it loads or writes.
CONNECTIONS = 256
#: How long a connection may take until a whole request has come, and how long a reader may take nothing of a file.
HEAD_S, SILENCE_S = 30.0, 120.0
#: An upload may say nothing for longer: Spark opens a store's changelog when a batch begins, and writes as it computes.
#: Its machine is asked whether it is there after so many seconds, in steps of these, and so often.
THERE_S, AGAIN_S, TIMES = 60, 20, 3
#: How often the listener looks for such connections.
LOOK_S = 0.5
#: How many ports are tried, from the chosen one on: several processors of a machine have the same job file.
PORTS = 100


class StateServer:
    """The server of one container."""

    def __init__(self, bind: str, host: str, header: str, port: int = 0) -> None:
        """Listen at an address of this machine, at this port or one of the next; 0: any. Executors reach it under the
        name `host`, and send a `header` of this name. Raise ConfigError if it cannot be done.
        """
        bind, host = bind.strip("[]"), host.strip("[]")
        self._folders = ServedFolders()

        class Handler(_Handler):
            folders = self._folders
            secret = header

        class Listener(_Listener):
            address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET

        self._listener = _opened(Listener, Handler, bind, port)
        name = f"[{host}]" if ":" in host else host
        self.authority = f"{name}:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, args=[LOOK_S], name="state server", daemon=True).start()

    @contextmanager
    def serving(self, folder: Path, recorded: RecordedFiles) -> Iterator[str]:
        """Inside, this folder is served under the URL that this yields."""
        url, end = self.serve(folder, recorded)
        try:
            yield url
        finally:
            end()

    def serve(self, folder: Path, recorded: RecordedFiles) -> tuple[str, Callable[[], None]]:
        """As `serving`: the URL, and what ends it."""
        name, end = self._folders.add(folder, recorded)
        return f"webhdfs://{self.authority}/{name}", end

    def only_for(self, java: int) -> str:
        """The URL of a file that only executors with this major version of Java get."""
        return f"http://{self.authority}{same_java.path_for(java)}"

    def close(self) -> None:
        """Answer no more."""
        self._folders.end()
        self._listener.is_closing = True
        self._listener.shutdown()
        self._listener.server_close()


class _Listener(ThreadingHTTPServer):
    """Accepts a bounded number of connections, each with a thread."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self.waiting: dict[_Handler, float] = {}  # until when a whole request must have come
        self.is_closing = False
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self.said = LogRateLimit()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """That of HTTP asks for the name of this machine, which nobody needs and which may take many seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for room: meanwhile others wait in the kernel's queue."""
        while not self._room.acquire(timeout=LOOK_S):
            if self.said.is_due("full"):
                log.warning(
                    "There are %d connections to the state of tasks, as many as may be: others wait. If that lasts, "
                    "executors have too many cores for one processor, or a stranger is in the cluster's network.",
                    CONNECTIONS,
                )
            self.service_actions()
            if self.is_closing:
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def service_actions(self) -> None:
        """Called every `LOOK_S`: end connections that have sent no whole request for too long, byte by byte or none."""
        now = time.monotonic()
        for handler, until in [*self.waiting.items()]:
            if now >= until:
                with suppress(OSError):  # it has just ended
                    handler.connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("An executor at %s has ended in the middle of a request.", client_address)


def _opened(listener: type[_Listener], handler: "type[_Handler]", bind: str, port: int) -> _Listener:
    last = min(port + PORTS, 65536) - 1 if port else 0
    for number in range(port, last + 1):
        try:
            return listener((bind, number), handler)
        except OSError as error:
            if number == last or error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"The state of tasks cannot be served to executors: port {number} of {bind} cannot be opened "
                    f"({error.strerror}). Choose another spark.samza_azure.state.port, or an address of this machine "
                    "as spark.driver.bindAddress."
                ) from error
    raise AssertionError


class _Handler(BaseHTTPRequestHandler):
    """One connection of an executor, or of the container's own JVM."""

    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = 64 << 10
    server: _Listener
    folders: ServedFolders
    secret: str

    def do_GET(self) -> None:
        agent = self.headers.get("User-Agent", "")
        if (told := same_java.answer(self.path, agent)) is not None:
            self._tell_java(agent, *told)
            return
        self._answer({"GETFILESTATUS": self._status, "LISTSTATUS": self._list, "OPEN": self._open})

    def do_PUT(self) -> None:
        self._answer({"MKDIRS": self._make, "CREATE": self._create, "RENAME": self._rename})

    def do_DELETE(self) -> None:
        self._answer({"DELETE": self._delete})

    def log_message(self, *args: Any) -> None:
        """Nothing: executors ask often."""

    def handle_one_request(self) -> None:
        self.server.waiting[self] = time.monotonic() + HEAD_S
        try:
            super().handle_one_request()
        finally:
            self.server.waiting.pop(self, None)

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        self.server.waiting.pop(self, None)
        return is_whole

    def _answer(self, operations: dict[str, Callable[[str, dict[str, str]], None]]) -> None:
        url = urlsplit(self.path)
        options = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        self._is_read = not self._has_body()
        operation = operations.get(options.get("op", "").upper())
        try:
            if self.secret not in self.headers:
                raise PermissionError("Only executors of this application see the state of its tasks.")
            if operation is None or not url.path.startswith(PREFIX):
                self._failed(HTTPStatus.BAD_REQUEST, "java.lang.UnsupportedOperationException", "It is not offered.")
                return
            operation(unquote(url.path.removeprefix(PREFIX)), options)
        except PermissionError as error:
            name = "org.apache.hadoop.security.AccessControlException"
            self._failed(HTTPStatus.FORBIDDEN, name, error.strerror or str(error))
        except ValueError as error:
            self._failed(HTTPStatus.BAD_REQUEST, "java.lang.IllegalArgumentException", str(error))
        except FileNotFoundError:
            self._failed(HTTPStatus.NOT_FOUND, "java.io.FileNotFoundException", "There is no such file.")
        except FileExistsError:
            name = "org.apache.hadoop.fs.FileAlreadyExistsException"
            self._failed(HTTPStatus.FORBIDDEN, name, "It is there already.")
        except OSError as error:
            code = HTTPStatus.INTERNAL_SERVER_ERROR
            self._failed(code, "java.io.IOException", error.strerror or type(error).__name__)

    def _status(self, path: str, options: dict[str, str]) -> None:
        self._json({"FileStatus": _described(self.folders.place(path).file, "")})

    def _list(self, path: str, options: dict[str, str]) -> None:
        file = self.folders.place(path).file
        found = [file] if file.is_file() else list(file.iterdir())
        shown = []
        for each in found:
            with suppress(FileNotFoundError):  # it is just being renamed
                if not each.name.endswith(UPLOAD):
                    shown.append(_described(each, "" if each is file else each.name))
        self._json({"FileStatuses": {"FileStatus": shown}})

    def _open(self, path: str, options: dict[str, str]) -> None:
        with self.folders.place(path).file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            offset = min(int(options.get("offset", 0)), size)
            length = min(int(options.get("length", size)), size - offset)
            self._head(HTTPStatus.OK, length)
            try:
                self.wfile.flush()
                sent = self.connection.sendfile(content, offset, length) if length else 0
            except OSError as error:  # an answer has begun, so another one would look like its content
                log.debug("An executor has not read all of a file: %s", error)
                sent = -1
            if sent != length:  # the file has become shorter, or nobody reads
                self.close_connection = True

    def _make(self, path: str, options: dict[str, str]) -> None:
        self.folders.place(path).make()
        self._json({"boolean": True})

    def _create(self, path: str, options: dict[str, str]) -> None:
        """The client asks twice: first it is sent to where it may write, which is here."""
        place = self.folders.place(path)
        if options.get("overwrite", "false") != "true" and place.file.exists():
            raise FileExistsError
        place.check_new()
        if "datanode" not in options:
            host = self.headers.get("Host", "")
            self._drop_body()
            self._head(HTTPStatus.TEMPORARY_REDIRECT, 0, Location=f"http://{host}{self.path}&datanode=true")
            return
        with place.written(self._cut) as fresh, fresh.open("wb") as content, self._as_slow_as_a_batch():
            self._read_body(content)
        self._head(HTTPStatus.CREATED, 0)

    def _rename(self, path: str, options: dict[str, str]) -> None:
        there = self.folders.place(options.get("destination", ""))
        self._json({"boolean": self.folders.place(path).rename(there)})

    def _delete(self, path: str, options: dict[str, str]) -> None:
        recursive = options.get("recursive", "false") == "true"
        self._json({"boolean": self.folders.place(path).delete(recursive=recursive)})

    def _tell_java(self, agent: str, status: HTTPStatus, path: str) -> None:
        address = self.client_address[0]
        if path and self.server.said.is_due(address):
            log.warning("An executor at %s has another Java (%s): %s", address, agent, path.lstrip("/"))
        self.close_connection = True  # it asks once
        self._head(status, 0, **({"Location": path} if path else {}))

    # HTTP.

    def _cut(self) -> None:
        with suppress(OSError):  # it has ended by itself
            self.connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _as_slow_as_a_batch(self) -> Iterator[None]:
        """Inside, read without a time limit, for as long as the other machine is there."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("KEEPIDLE", THERE_S), ("KEEPINTVL", AGAIN_S), ("KEEPCNT", TIMES)):
            self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)
        self.connection.settimeout(None)
        try:
            yield
        finally:
            self.connection.settimeout(self.timeout)

    def _has_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0"

    def _read_body(self, sink: IO[bytes]) -> None:
        """Read the body piece by piece. Raise ConnectionError if it ends early."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := self._size():
                self._copy(size, sink)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            self._copy(int(self.headers.get("Content-Length", "0")), sink)
        self._is_read = True

    def _size(self) -> int:
        """That of the next chunk; 0 for the last one."""
        try:
            return int(self.rfile.readline().partition(b";")[0], 16)
        except ValueError:
            raise ConnectionError("An upload has ended early.") from None

    def _copy(self, size: int, sink: IO[bytes]) -> None:
        while size:
            piece = self.rfile.read(min(size, PIECE))
            if not piece:
                raise ConnectionError("An upload has ended early.")
            sink.write(piece)
            size -= len(piece)

    def _drop_body(self) -> None:
        if not self._is_read:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                self._read_body(nowhere)

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self._head(HTTPStatus.OK, len(data))
        self.wfile.write(data)

    def _failed(self, status: HTTPStatus, name: str, message: str) -> None:
        """Answer with the Java exception that Hadoop's client raises."""
        if not self._is_read:
            self.close_connection = True  # rather than to read what nobody wants
        said = {"exception": name.rpartition(".")[2], "javaClassName": name, "message": message}
        data = json.dumps({"RemoteException": said}).encode()
        self._head(status, len(data))
        self.wfile.write(data)

    def _head(self, status: HTTPStatus, length: int, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()


def _described(file: Path, name: str) -> dict[str, object]:
    found = file.stat()
    is_folder = file.is_dir()
    return {
        "accessTime": int(found.st_atime * 1000),
        "blockSize": 0 if is_folder else 128 << 20,
        "group": "samza",
        "length": 0 if is_folder else found.st_size,
        "modificationTime": int(found.st_mtime * 1000),
        "owner": "samza",
        "pathSuffix": name,
        "permission": "755" if is_folder else "644",
        "replication": 0 if is_folder else 1,
        "type": "DIRECTORY" if is_folder else "FILE",
    }

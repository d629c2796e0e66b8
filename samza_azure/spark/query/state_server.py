"""Serve the checkpoints of tasks to executors on other machines, in the words of WebHDFS.

On a cluster Spark's state is loaded and written by executors, which have no disk in common with the container, and no
access to the account. The client of WebHDFS is in pyspark's wheel. So the files of each batch land in the container's
own folder, from which its record takes them, as without a cluster.
Promised: who does not know the token of a task's start sees nothing, and after the end of the start nobody does (403):
an executor that is cut off, or slow, changes nothing of what a later start has. An upload never replaces a file that is
in the log already. A file is there when all of it is: of an upload that ends early nothing is kept. Memory does not
depend on the size of files.
Not promised: that nobody listens on the way. The token and the state go over plain HTTP. Nor that who has the token, as
an executor that was given up, renames and deletes nothing; nor a bound on connections.
No answer has a `Content-Type`: with one the wheel's client fails, since it lacks a class that reads it.
"""

import json
import logging
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

log = logging.getLogger(__name__)

PREFIX = "/webhdfs/v1/"
PIECE = 1 << 20
#: How long a connection may say nothing before its thread ends.
SILENCE_S = 120.0
UPLOAD = ".upload"


@dataclass(frozen=True, slots=True)
class _Served:
    folder: Path
    is_recorded: Callable[[str], bool]


class _Refused(Exception):
    """An answer that is not 200, with the name of the exception that Hadoop's client raises."""

    def __init__(self, status: HTTPStatus, exception: str, message: str) -> None:
        super().__init__(message)
        self.status, self.exception = status, exception


class StateServer:
    """The server of one container."""

    def __init__(self, bind: str, host: str, port: int = 0) -> None:
        """Listen at an address of this machine. Executors reach it under the name `host`."""
        self._served: dict[str, _Served] = {}
        server = self

        class Handler(_Handler):
            files = server

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                log.debug("An executor at %s has ended in the middle of a request.", client_address)

        self._listener = Listener((bind, port), Handler)
        name = f"[{host}]" if ":" in host else host
        self.authority = f"{name}:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, name="state server", daemon=True).start()

    @contextmanager
    def serving(self, folder: Path, is_recorded: Callable[[str], bool]) -> Iterator[str]:
        """Inside, this folder is served under the URL that this yields. `is_recorded` tells of a name in the folder
        whether it may not be replaced any more.
        """
        url, end = self.serve(folder, is_recorded)
        try:
            yield url
        finally:
            end()

    def serve(self, folder: Path, is_recorded: Callable[[str], bool]) -> tuple[str, Callable[[], None]]:
        """As `serving`: the URL, and what ends it."""
        token = secrets.token_hex(16)
        self._served[token] = _Served(folder, is_recorded)
        return f"webhdfs://{self.authority}/{token}", lambda: void(self._served.pop(token, None))

    def close(self) -> None:
        """Answer no more."""
        self._served.clear()
        self._listener.shutdown()
        self._listener.server_close()

    def place(self, path: str) -> tuple[_Served, str, Path]:
        """What a path of a request means: whose it is, its name in the folder, and the file. Raise `_Refused`."""
        token, _, name = path.strip("/").partition("/")
        served = self._served.get(token)
        if served is None:
            raise _Refused(HTTPStatus.FORBIDDEN, "AccessControlException", "This start of the task has ended.")
        parts = [part for part in name.split("/") if part]
        if any(part in (".", "..") or "\0" in part for part in parts):
            raise _Refused(HTTPStatus.BAD_REQUEST, "IllegalArgumentException", "A path without . and .. is expected.")
        return served, "/".join(parts), served.folder.joinpath(*parts)


def void(_: object) -> None:
    """Nothing."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of an executor, or of the container's own JVM."""

    protocol_version = "HTTP/1.1"
    timeout = SILENCE_S
    disable_nagle_algorithm = True
    wbufsize = 64 << 10
    files: StateServer

    def do_GET(self) -> None:
        self._answer({"GETFILESTATUS": self._status, "LISTSTATUS": self._list, "OPEN": self._open})

    def do_PUT(self) -> None:
        self._answer({"MKDIRS": self._make, "CREATE": self._create, "RENAME": self._rename})

    def do_DELETE(self) -> None:
        self._answer({"DELETE": self._delete})

    def log_message(self, *args: Any) -> None:
        """Nothing: a path has the token."""

    def _answer(self, operations: dict[str, Callable[[str, dict[str, str]], None]]) -> None:
        url = urlsplit(self.path)
        options = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        self._is_read = not self._has_body()
        try:
            operation = operations.get(options.get("op", "").upper())
            if operation is None or not url.path.startswith(PREFIX):
                raise _Refused(HTTPStatus.BAD_REQUEST, "UnsupportedOperationException", "It is not offered.")
            operation(unquote(url.path.removeprefix(PREFIX)), options)
        except _Refused as error:
            self._failed(error.status, error.exception, str(error))
        except FileNotFoundError:
            self._failed(HTTPStatus.NOT_FOUND, "FileNotFoundException", "There is no such file.")
        except FileExistsError:
            self._failed(HTTPStatus.FORBIDDEN, "FileAlreadyExistsException", "It is there already.")
        except OSError as error:
            self._failed(HTTPStatus.INTERNAL_SERVER_ERROR, "IOException", error.strerror or type(error).__name__)

    def _status(self, path: str, options: dict[str, str]) -> None:
        _, _, file = self.files.place(path)
        self._json({"FileStatus": _described(file, "")})

    def _list(self, path: str, options: dict[str, str]) -> None:
        _, _, file = self.files.place(path)
        found = [file] if file.is_file() else list(file.iterdir())
        shown = []
        for each in found:
            with suppress(FileNotFoundError):  # it is just being renamed
                if not each.name.endswith(UPLOAD):
                    shown.append(_described(each, "" if each is file else each.name))
        self._json({"FileStatuses": {"FileStatus": shown}})

    def _open(self, path: str, options: dict[str, str]) -> None:
        _, _, file = self.files.place(path)
        with file.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            offset = min(int(options.get("offset", 0)), size)
            length = min(int(options.get("length", size)), size - offset)
            self._head(HTTPStatus.OK, length)
            try:
                self.wfile.flush()
                sent = self.connection.sendfile(content, offset, length) if length else 0
            except OSError as error:  # an answer has begun, so another one would be taken for its content
                log.debug("An executor has not read all of a file: %s", error)
                sent = -1
            if sent != length:  # the file has become shorter, or nobody reads
                self.close_connection = True

    def _make(self, path: str, options: dict[str, str]) -> None:
        _, _, file = self.files.place(path)
        file.mkdir(parents=True, exist_ok=True)
        self._json({"boolean": True})

    def _create(self, path: str, options: dict[str, str]) -> None:
        """The client asks twice: first it is sent to where it may write, which is here."""
        served, name, file = self.files.place(path)
        if options.get("overwrite", "false") != "true" and file.exists():
            raise FileExistsError
        self._check_new(served, name)
        if "datanode" not in options:
            host = self.headers.get("Host", self.files.authority)
            self._drop_body()
            self._head(HTTPStatus.TEMPORARY_REDIRECT, 0, Location=f"http://{host}{self.path}&datanode=true")
            return
        fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}{UPLOAD}")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with fresh.open("wb") as content:
                self._read_body(content)
            self.files.place(path)  # the start may have ended meanwhile
            self._check_new(served, name)
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
        self._head(HTTPStatus.CREATED, 0)

    def _rename(self, path: str, options: dict[str, str]) -> None:
        _, _, file = self.files.place(path)
        served, name, there = self.files.place(options.get("destination", ""))
        self._check_new(served, name)
        if there.is_dir():
            there = there / file.name
        if file.exists():
            file.replace(there)
            self._json({"boolean": True})
        else:
            self._json({"boolean": False})

    def _delete(self, path: str, options: dict[str, str]) -> None:
        _, name, file = self.files.place(path)
        if not file.exists() or not name:
            self._json({"boolean": False})
            return
        if not file.is_dir():
            file.unlink(missing_ok=True)
        elif options.get("recursive", "false") == "true":
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.rmdir()
        self._json({"boolean": True})

    def _check_new(self, served: _Served, name: str) -> None:
        if served.is_recorded(name):
            raise _Refused(HTTPStatus.FORBIDDEN, "AccessControlException", f"{name} is in the task's log already.")

    # HTTP.

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

    def _failed(self, status: HTTPStatus, exception: str, message: str) -> None:
        if not self._is_read:
            self.close_connection = True  # rather than to read what nobody wants
        package = {"AccessControlException": "org.apache.hadoop.security", "IllegalArgumentException": "java.lang"}
        package |= {"UnsupportedOperationException": "java.lang"}
        package |= {"FileAlreadyExistsException": "org.apache.hadoop.fs"}
        name = f"{package.get(exception, 'java.io')}.{exception}"
        data = json.dumps({"RemoteException": {"exception": exception, "javaClassName": name, "message": message}})
        self._head(status, len(data))
        self.wfile.write(data.encode())

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

"""A service that breaks one promise: a proxy in front of an emulator that changes requests or answers.

It wants a connection by signature, since a key signs the headers that it changes.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import TypeAlias

from tests.storage.proxy import Server


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def blob(self) -> str:
        """What it is about, without the query."""
        return self.path.partition("?")[0]

    @property
    def lease(self) -> str:
        """Which lease call it is, or none."""
        return self.headers.get("x-ms-lease-action", "")

    def without(self, header: str) -> "Asked":
        return replace(self, headers={name: value for name, value in self.headers.items() if name != header})

    def having(self, header: str, value: str) -> "Asked":
        return replace(self, headers=self.headers | {header: value})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    def having(self, **headers: str) -> "Answer":
        return replace(self, headers=self.headers | headers)


Forward: TypeAlias = Callable[[Asked], Answer]
Behaviour: TypeAlias = Callable[[Asked, Forward], Answer]


class Breaking(Server):
    """Passes everything on to `target` as `behaves` says."""

    def __init__(self, target: int, behaves: Behaviour) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                said = behaves(Asked(self.command, self.path, headers, body), forward)
                self.send_response_only(said.status)
                size = said.headers.get("content-length", "0") if self.command == "HEAD" else str(len(said.body))
                for name, value in said.headers.items():
                    if name not in ("content-length", "transfer-encoding", "connection", "keep-alive"):
                        self.send_header(name, value)
                self.send_header("Content-Length", size)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else said.body)

            def log_message(self, *_: object) -> None:
                pass

        def forward(asked: Asked) -> Answer:
            there = HTTPConnection("127.0.0.1", target, timeout=30)
            try:
                there.request(asked.method, asked.path, asked.body, asked.headers)
                found = there.getresponse()
                return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
            finally:
                there.close()

        super().__init__(Handler)


def honest(asked: Asked, forward: Forward) -> Answer:
    return forward(asked)


def ignores(header: str, applies: Callable[[Asked], bool]) -> Behaviour:
    """A condition that the service does not look at."""
    return lambda asked, forward: forward(asked.without(header) if applies(asked) else asked)


def claims(status: int, instead_of: int, applies: Callable[[Asked], bool]) -> Behaviour:
    """A refusal that becomes a success."""

    def behaves(asked: Asked, forward: Forward) -> Answer:
        said = forward(asked)
        if not applies(asked) or said.status != instead_of:
            return said
        etag = "W/\"datetime'2026-01-01T00%3A00%3A00.0000000Z'\""
        return Answer(status, {"etag": etag, "x-ms-lease-id": asked.headers.get("x-ms-proposed-lease-id", "")})

    return behaves


@dataclass(slots=True)
class Leases:
    """Who holds which blob, as the service said."""

    holders: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, asked: Asked, said: Answer) -> None:
        with self.lock:
            if said.status == 201 and asked.lease == "acquire":
                self.holders[asked.blob] = asked.headers["x-ms-proposed-lease-id"]
            elif said.status in (200, 202) and asked.lease in ("break", "release"):
                self.holders.pop(asked.blob, None)

    def as_holder(self, asked: Asked) -> Asked:
        """The request as the holder would make it."""
        if "x-ms-lease-id" not in asked.headers:
            return asked
        holder = self.holders.get(asked.blob)
        return asked.having("x-ms-lease-id", holder) if holder else asked.without("x-ms-lease-id")


def takes_any_lease() -> Behaviour:
    leases = Leases()

    def behaves(asked: Asked, forward: Forward) -> Answer:
        said = forward(asked if asked.lease else leases.as_holder(asked))
        leases.note(asked, said)
        return said

    return behaves


def renews_for_anybody() -> Behaviour:
    leases = Leases()

    def behaves(asked: Asked, forward: Forward) -> Answer:
        known = asked.lease == "renew" and asked.blob in leases.holders
        said = forward(leases.as_holder(asked) if known else asked)
        leases.note(asked, said)
        return said

    return behaves


def keeps_released_leases() -> Behaviour:
    leases = Leases()

    def behaves(asked: Asked, forward: Forward) -> Answer:
        if asked.lease == "release" and leases.holders.get(asked.blob) == asked.headers["x-ms-lease-id"]:
            return Answer(200, {"etag": '"0x1"'})
        said = forward(asked)
        leases.note(asked, said)
        return said

    return behaves


def changes_etags_by_leases() -> Behaviour:
    changed: set[str] = set()

    def behaves(asked: Asked, forward: Forward) -> Answer:
        said = forward(asked)
        if asked.lease in ("renew", "break") and said.status < 300:
            changed.add(asked.blob)
        return said.having(etag='"0xDEAD"') if asked.method == "GET" and asked.blob in changed else said

    return behaves


def with_header(name: str, old: str, new: str) -> Behaviour:
    """A header that the service takes for another value."""
    return lambda asked, forward: forward(asked.having(name, new) if asked.headers.get(name) == old else asked)


def reads_from_a_replica() -> Behaviour:
    """Which has what each log held when it was first read."""
    first: dict[tuple[str, str | None], Answer] = {}

    def behaves(asked: Asked, forward: Forward) -> Answer:
        said, key = forward(asked), (asked.blob, asked.headers.get("x-ms-range"))
        if asked.method != "GET" or said.headers.get("x-ms-blob-type") != "AppendBlob":
            return said
        return first.setdefault(key, said)

    return behaves


def knows_no_404(asked: Asked, forward: Forward) -> Answer:
    said = forward(asked)
    if asked.method == "GET" and said.status == 404 and "comp=" not in asked.path:
        code = {"x-ms-error-code": "InvalidRange", "content-range": "bytes */0"}
        return Answer(416, code) if "x-ms-range" in asked.headers else Answer(200, {"etag": '"0x1"'})
    return said


def hides_the_newest(asked: Asked, forward: Forward) -> Answer:
    said = forward(asked)
    return replace(
        said, body=re.sub(rb"<Blob>(?:(?!<Blob>).)*</Blob></Blobs>", b"</Blobs>", said.body, flags=re.DOTALL)
    )


def has_another_clock(asked: Asked, forward: Forward) -> Answer:
    said = forward(asked)
    date = parsedate_to_datetime(said.headers["date"]) + timedelta(hours=1)
    return said.having(date=format_datetime(date, usegmt=True))


def deletes_nothing(asked: Asked, forward: Forward) -> Answer:
    if asked.method == "DELETE" and "restype=container" not in asked.path:
        return Answer(202, {})
    return forward(asked)


def answers_to_any_etag(asked: Asked, forward: Forward) -> Answer:
    return forward(asked.having("if-match", "*") if "if-match" in asked.headers else asked)


def has_one_etag_for_all(asked: Asked, forward: Forward) -> Answer:
    etag = "W/\"datetime'2026-01-01T00%3A00%3A00.0000000Z'\""
    if asked.headers.get("if-match") == etag:
        asked = asked.having("if-match", "*")
    said = forward(asked)
    return said.having(etag=etag) if "etag" in said.headers else said


def _changes_rows(change: Callable[[list[dict[str, object]]], object]) -> Behaviour:
    def behaves(asked: Asked, forward: Forward) -> Answer:
        said = forward(asked)
        if asked.method != "GET" or said.status != 200:
            return said
        found = json.loads(said.body)
        change(found.get("value", [found]))
        return replace(said, body=json.dumps(found).encode())

    return behaves


def says(code: str, instead_of: str) -> Behaviour:
    """One of Azure's error codes for another."""

    def behaves(asked: Asked, forward: Forward) -> Answer:
        said = forward(asked)
        if said.headers.get("x-ms-error-code") != instead_of:
            return said
        body = said.body.replace(instead_of.encode(), code.encode())
        return replace(said, headers=said.headers | {"x-ms-error-code": code}, body=body)

    return behaves


def _an_hour_earlier(rows: list[dict[str, object]]) -> None:
    for row in rows:
        written = datetime.fromisoformat(str(row["Timestamp"]))
        row["Timestamp"] = (written - timedelta(hours=1)).isoformat().replace("+00:00", "Z")


has_an_earlier_timestamp = _changes_rows(_an_hour_earlier)


def _without_types(rows: list[dict[str, object]]) -> None:
    for row in rows:
        for name in [name for name, value in row.items() if value == "Edm.Int64"]:
            del row[name]


numbers_as_texts = _changes_rows(_without_types)
drops_the_last_row = _changes_rows(lambda rows: rows and rows.pop())


def has_one_page(asked: Asked, forward: Forward) -> Answer:
    said = forward(asked)
    return replace(said, headers={key: value for key, value in said.headers.items() if "continuation" not in key})


def writes_half(asked: Asked, forward: Forward) -> Answer:
    """The first operation of a transaction that is refused."""
    said = forward(asked)
    if asked.path.partition("?")[0].endswith("$batch") and b"HTTP/1.1 4" in said.body:
        line = re.search(rb"(?:POST|PATCH|MERGE|PUT) http://[^/]+(/\S+) HTTP/1.1", asked.body)
        row = re.search(rb"^{.*}", asked.body, re.MULTILINE)
        assert line is not None and row is not None
        query = asked.path.partition("?")[2]
        path = line[1].decode().partition("?")[0]
        kept = {name: value for name, value in asked.headers.items() if not name.startswith("content")}
        kept |= {"content-type": "application/json", "accept": "application/json;odata=minimalmetadata"}
        method = "POST"
        if "(" in path:
            method, kept = "PATCH", kept | {"if-match": "*"}
        forward(Asked(method, f"{path}?{query}", kept, row[0]))
    return said


def answers_late(seconds: float, applies: Callable[[Asked], bool]) -> Behaviour:
    def behaves(asked: Asked, forward: Forward) -> Answer:
        if applies(asked):
            time.sleep(seconds)  # the fault itself
        return forward(asked)

    return behaves

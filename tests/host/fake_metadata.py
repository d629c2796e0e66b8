"""A metadata service of our own: HTTP as Azure's instance metadata service speaks it, as far as Scheduled Events go.

It refuses what the real one refuses: a question without the header `Metadata: true`, one that came by a proxy, one
without a version, the approval of an unknown event; more than `per_second` questions get 429.
"""

import json
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class FakeMetadata:
    """The service of one machine. Its events may concern others, too."""

    def __init__(self, machine: str = "vm_1", *, first_s: float = 0.0, per_second: int = 1000) -> None:
        self.machine, self.first_s, self.per_second = machine, first_s, per_second
        self.events: list[dict[str, Any]] = []
        self.incarnation = 1
        self.approved: list[str] = []
        self.asked: list[float] = []
        self.refuses = 0  # so many questions get this answer
        self.refused_with = 500
        self.garbage: bytes | None = None
        self.starts_refused_with = 0  # what an approval is answered with; 0: as Azure does
        self.start_requests = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.get(self)

            def do_POST(self) -> None:
                fake.post(self)

            def log_message(self, *arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def schedule(
        self,
        kind: str,
        *,
        resources: list[str] | None = None,
        status: str = "Scheduled",
        in_s: float | None = 900.0,
        lasts_s: int = -1,
        name: str = "",
    ) -> str:
        """Schedule an event, and return its id."""
        name = name or f"E-{len(self.events)}-{kind}"
        self.incarnation += 1
        self.events.append(
            {
                "EventId": name,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [self.machine] if resources is None else resources,
                "EventStatus": status,
                "NotBefore": "" if in_s is None else formatdate(time.time() + in_s, usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": lasts_s,
            }
        )
        return name

    def remove(self, name: str) -> None:
        """The event is over, or is cancelled."""
        self.incarnation += 1
        self.events = [each for each in self.events if each["EventId"] != name]

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a question."""
        parts = urlsplit(handler.path)
        answer = self._refusal(handler, parse_qs(parts.query))
        if answer is None and parts.path == "/metadata/instance/compute/name":
            answer = 200, self.machine.encode()
        elif answer is None and parts.path == "/metadata/scheduledevents":
            first, self.first_s = self.first_s, 0.0
            time.sleep(first)  # how slow the service is
            document = {"DocumentIncarnation": self.incarnation, "Events": self.events}
            answer = 200, self.garbage if self.garbage is not None else json.dumps(document).encode()
        self._answer(handler, *(answer or (404, b"")))

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        """Start events."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        answer = self._refusal(handler, parse_qs(urlsplit(handler.path).query))
        self.start_requests += 1
        if self.starts_refused_with:
            answer = self.starts_refused_with, b"refused"
        if answer is None:
            ids = [each["EventId"] for each in json.loads(body)["StartRequests"]]
            is_known = set(ids) <= {each["EventId"] for each in self.events}
            answer = (200, b"") if is_known else (400, b"unknown event")
            self.approved += ids if is_known else []
            for each in self.events:
                each["EventStatus"] = "Started" if each["EventId"] in ids else each["EventStatus"]
        self._answer(handler, *answer)

    def _refusal(self, handler: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> tuple[int, bytes] | None:
        now = time.monotonic()
        self.asked = [at for at in self.asked if at > now - 1] + [now]
        if self.refuses > 0:
            self.refuses -= 1
            return self.refused_with, b"refused"
        if len(self.asked) > self.per_second:
            return 429, b"too many"
        if handler.headers.get("Metadata", "").lower() != "true" or "X-Forwarded-For" in handler.headers:
            return 400, b"Metadata: true is required"
        return None if query.get("api-version") else (400, b"api-version is required")

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        if status == 429:
            handler.send_header("Retry-After", "2")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

"""Schema registries on this machine: one speaks Confluent's interface, the other one that of Azure.

They answer as their documentation says, and fail on request. What only the services do is not here: compatibility,
rights by name, replicas that lag.
"""

import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from azure.core.credentials import AccessTokenInfo

from samza_azure.storage.identity import Identity

TOKEN = "token-of-the-machine"


class Known:
    """The credential of this machine, which Azure's registry lets in."""

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        assert scopes == ("https://eventhubs.azure.net/.default",)
        return AccessTokenInfo(TOKEN, int(time.time()) + 3600)


IDENTITY = Identity(Known)


class _Registry:
    """A server, and what was asked of it."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[str] = []
        self.fails: int | None = None  # the status of each answer; 0: the connection ends
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                if registry.fails == 0:
                    self.connection.close()
                    return
                status, headers, body = registry.fails or 0, {}, b"no"
                if not status:
                    status, headers, body = registry.answer(self.path, self.headers)  # type: ignore[arg-type]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"http{'s' if certificate else ''}://localhost:{self.port}"

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class FakeConfluentRegistry(_Registry):
    """Schemas by ids and by versions of subjects."""

    def __init__(self, certificate: Path | None = None, user: str = "", password: str = "") -> None:
        super().__init__(certificate)
        self._let_in = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}" if user else None
        self._known: list[dict[str, Any]] = []
        self._serialized: list[dict[str, Any]] = []  # with `?format=serialized`
        self._versions: dict[tuple[str, int], int] = {}

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
        descriptor: bytes = b"",
    ) -> int:
        """Add a version to a subject; of protobuf also its descriptor. Return the id of its schema."""
        found = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if kind != "AVRO":  # it says nothing of the kind it had first
            found["schemaType"] = kind
        if references:
            each = [{"name": name, "subject": of, "version": version} for name, of, version in references]
            found |= {"references": each}  # type: ignore[dict-item]
        self._known.append(found)
        self._serialized.append(found | {"schema": b64encode(descriptor).decode()} if descriptor else found)
        version = 1 + sum(1 for of, _ in self._versions if of == subject)
        self._versions[subject, version] = len(self._known)
        return len(self._known)

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(path)
        schemas = self._serialized if parts.query == "format=serialized" else self._known
        status, found = self._found([unquote(each) for each in parts.path.split("/")[1:]], headers, schemas)
        return status, {"Content-Type": "application/vnd.schemaregistry.v1+json"}, json.dumps(found).encode()

    def _found(
        self, parts: list[str], headers: Mapping[str, str], schemas: Sequence[dict[str, Any]]
    ) -> tuple[int, Any]:
        if self._let_in and headers.get("Authorization") != self._let_in:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        match parts:
            case ["schemas", "types"]:
                return 200, ["JSON", "PROTOBUF", "AVRO"]
            case ["schemas", "ids", number]:
                if 0 < int(number) <= len(schemas):
                    return 200, schemas[int(number) - 1]
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            case ["subjects", subject, "versions", version]:
                if (number := self._versions.get((subject, int(version)))) is not None:
                    known = {"subject": subject, "version": int(version), "id": number}
                    return 200, known | schemas[number - 1]
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


class FakeAzureRegistry(_Registry):
    """Schemas of a namespace by ids."""

    def __init__(self, certificate: Path, token: str) -> None:
        super().__init__(certificate)
        self._let_in = f"Bearer {token}"
        self.schemas: dict[str, str] = {}

    def answer(self, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        if headers.get("Authorization") != self._let_in:
            return 401, {"WWW-Authenticate": "Bearer"}, b'{"error": {"code": "Unauthorized"}}'
        *folder, number = urlsplit(path).path.split("/")
        if folder != ["", "$schemaGroups", "$schemas"] or number not in self.schemas:
            error = {"error": {"code": "ItemNotFound", "message": f"Schema id {number} does not exist."}}
            return 404, {"Content-Type": "application/json"}, json.dumps(error).encode()
        told = {
            "Content-Type": "application/json;serialization=Avro",
            "Schema-Id": number,
            "Schema-Group-Name": "orders",
            "Schema-Name": "order",
            "Schema-Version": "1",
        }
        return 200, told, self.schemas[number].encode()

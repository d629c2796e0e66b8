"""Azure's REST interface to the storage in memory: the requests that the SDK sends, and the answers that it reads.

Only requests of `samza_azure.storage` are supported; any other raises. A request is mapped to the operation names of
links, takes effect in one call of `MemoryStorage`, and renders the result. The contract tests run over this too, so it
answers as Azure does.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from math import isnan
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from samza_azure.group.control import NAME
from samza_azure.logs.names import LOCKS
from samza_azure.logs.operations import Span
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.interface import Content, Row, Value
from samza_azure.storage.memory import MemoryStorage

#: The refusals that Azure answers with 412: a condition did not hold. All others are a 409: the state forbids the call.
PRECONDITIONS = frozenset(
    {
        "AppendPositionConditionNotMet",
        "ConditionNotMet",
        "LeaseIdMismatchWithBlobOperation",
        "LeaseLost",
        "LeaseNotPresentWithBlobOperation",
        "UpdateConditionNotSatisfied",
    }
)
#: In the URL of the table a quotation mark in a key is doubled.
_ENTITY = re.compile(r"\w+\(PartitionKey='((?:[^']|'')*)',RowKey='((?:[^']|'')*)'\)")
_PARTITION = re.compile(r"PartitionKey eq '((?:[^']|'')*)'")
_DELETIONS = re.compile(r"^DELETE ([^ ?]*)[^ ]* HTTP/1.1\r?$", re.MULTILINE)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request. Header names are in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def query(self) -> dict[str, str]:
        """The parameters after the question mark."""
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    @property
    def resource(self) -> str:
        """The path below the account."""
        return unquote(urlsplit(self.url).path).split("/", 2)[2]


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed request."""

    operation: str
    effect: Callable[[], Any]
    render: Callable[[Any], Response]


def understand(request: HttpRequest, storage: MemoryStorage) -> Call:
    """The call of the storage that a request stands for."""
    if request.headers["accept"].startswith("application/xml") or request.query.get("comp") == "batch":
        container, _, name = request.resource.partition("/")
        if not name:
            return _of_container(request, storage, container)
        if name == NAME:
            return _of_leased_blob(request, storage)
        if name.startswith(LOCKS):
            return _of_leased_blob(request, storage.beside(name))
        return _of_log(request, storage, name)
    return _of_table(request, storage)


def _of_container(request: HttpRequest, storage: MemoryStorage, container: str) -> Call:
    match request.method, request.query:
        case "PUT", {"restype": "container"}:
            return Call("blobs.create", lambda: True, _created)
        case "GET", {"comp": "list", "prefix": prefix}:
            marked = request.query.get("include") == "metadata"
            beside = _directories(storage, prefix) if storage.hierarchical else set()
            return Call(
                "blobs.list",
                lambda: storage.list(prefix),
                lambda found: _listing(container, prefix, found, beside, marked=marked),
            )
        case "GET", {"restype": "account", "comp": "properties"}:
            kind, sku = storage.kind
            properties = {"x-ms-account-kind": kind, "x-ms-sku-name": sku}
            return Call("blobs.account", lambda: True, lambda _: Response(200, properties))
        case "GET", {"restype": "container"}:
            held = {"x-ms-has-legal-hold": str(storage.legal_hold).lower()}
            return Call("blobs.container", lambda: True, lambda _: Response(200, held))
        case "POST", {"restype": "container", "comp": "batch"}:
            below = f"/{container}/"
            names = [unquote(path).partition(below)[2] for path in _DELETIONS.findall(request.body.decode())]
            return Call("blobs.delete", lambda: storage.delete_many(names), lambda refused: _batch(names, refused))
    raise NotImplementedError(f"{request.method} {request.url}")


def _of_leased_blob(request: HttpRequest, storage: MemoryStorage) -> Call:
    headers = request.headers
    etag, lease = headers.get("if-match"), headers.get("x-ms-lease-id")
    match request.method, headers.get("x-ms-lease-action"):
        case "GET", None:
            unless = headers.get("if-none-match")
            return Call("control.read", lambda: storage.control_read(unless, lease), _whole)
        case "HEAD", None:  # sent to check whether the container exists
            return Call("control.read", lambda: storage.control_read(None, None), _whole_properties)
        case "PUT", None if headers.get("if-none-match") == "*":
            return Call("control.create", lambda: storage.control_create(request.body), _written)
        case "PUT", None if etag is not None and lease is not None:
            return Call("control.write", lambda: storage.control_write(request.body, etag, lease), _written)
        case "PUT", "acquire":
            mine, seconds = headers["x-ms-proposed-lease-id"], int(headers["x-ms-lease-duration"])
            return Call("control.acquire", lambda: storage.lease_acquire(mine, seconds, etag), _leased(201))
        case "PUT", "renew" if lease is not None:
            return Call("control.renew", lambda: storage.lease_renew(lease, etag), _leased(200))
        case "PUT", "break" if headers["x-ms-lease-break-period"] == "0":
            return Call("control.break", lambda: storage.lease_break(etag), _leased(202))
        case "PUT", "release" if lease is not None:
            return Call("control.release", lambda: storage.lease_release(lease), _leased(200))
        case "DELETE", None:
            return Call("blobs.delete", lambda: storage.delete(NAME), lambda _: Response(202))
    raise NotImplementedError(f"{request.method} {request.url} {headers}")


def _of_log(request: HttpRequest, storage: MemoryStorage, name: str) -> Call:
    headers, body = request.headers, request.body
    match request.method, headers.get("x-ms-blob-type"):
        case "PUT", "AppendBlob" if headers.get("if-none-match") == "*":
            return Call("blobs.create", lambda: storage.create(name), _created)
        case "PUT", "BlockBlob" if headers.get("if-none-match") == "*":
            return Call("blobs.put", lambda: storage.put(name, body), _created)
        case "PUT", None if request.query.get("comp") == "block":
            return Call("blobs.put", lambda: storage.stage(name, request.query["blockid"], body), _created)
        case "PUT", None if request.query == {"comp": "blocklist"} and headers.get("if-none-match") == "*":
            blocks = re.findall(r"<Latest>(.*?)</Latest>", body.decode())
            return Call("blobs.put", lambda: storage.commit(name, blocks), _created)
        case "PUT", None if request.query == {"comp": "appendblock"}:
            position = int(headers["x-ms-blob-condition-appendpos"])
            return Call("blobs.append", lambda: storage.append(name, body, position), _written)
        case "GET", _:
            start, end = _range(headers.get("x-ms-range", "bytes=0-"))
            length = None if end is None else end - start
            return Call("blobs.read", lambda: storage.read(name, start, length), lambda found: _part(found, start))
        case "HEAD", _:
            return Call("blobs.read", lambda: storage.read(name, 0, 0), _properties)
        case "DELETE", _ if storage.hierarchical and storage.list(f"{name}/"):
            return Call("blobs.delete", lambda: Refused("DirectoryIsNotEmpty"), _refused)
        case "DELETE", _:
            return Call("blobs.delete", lambda: storage.delete(name), lambda _: Response(202))
    raise NotImplementedError(f"{request.method} {request.url} {headers}")


def _of_table(request: HttpRequest, storage: MemoryStorage) -> Call:
    method, resource, etag = request.method, request.resource, request.headers.get("if-match")
    if method == "POST" and resource == "Tables":
        return Call("rows.create", lambda: True, lambda _: _json(201, json.loads(request.body)))
    if method == "POST":
        sent = json.loads(request.body)
        place, values = (sent["PartitionKey"], sent["RowKey"]), _values(sent)
        return Call("rows.insert", lambda: storage.insert(*place, values), _put)
    if method == "GET" and (found := _PARTITION.fullmatch(request.query.get("$filter", ""))):
        of = _unquoted(found[1])
        return Call("rows.query", lambda: storage.query(of), lambda rows: _rows(of, rows))
    if (found := _ENTITY.fullmatch(resource)) is None:
        raise NotImplementedError(f"{method} {request.url}")
    at, key = _unquoted(found[1]), _unquoted(found[2])
    match method, etag:
        case "GET", None:
            return Call("rows.get", lambda: storage.get(at, key), lambda row: _row(at, row))
        case "PATCH" | "PUT", str():
            values = _values(json.loads(request.body))
            merge = method == "PATCH"
            operation = "rows.merge" if merge else "rows.replace"
            return Call(operation, lambda: storage.update(at, key, values, etag, merge=merge), _put)
        case "PUT", None:
            values = _values(json.loads(request.body))
            return Call("hints.publish", lambda: storage.upsert(at, key, values), _put)
        case "DELETE", str():
            remove = partial(storage.forget, at, key) if etag == "*" else partial(storage.remove, at, key, etag)
            return Call("rows.delete", remove, _put)
    raise NotImplementedError(f"{method} {request.url} {etag}")


# Answers of the blob service.


def _refused(answer: Refused | Missing | NotModified) -> Response:
    match answer:
        case NotModified():
            return Response(304, {"x-ms-error-code": "ConditionNotMet"})
        case Missing():
            return Response(404, {"x-ms-error-code": "BlobNotFound"})
        case Refused(code=code):
            return Response(412 if code in PRECONDITIONS else 409, {"x-ms-error-code": code})


def _created(done: bool) -> Response:
    return Response(201, {"ETag": '"0x0"'}) if done else _refused(Refused("BlobAlreadyExists"))


def _written(answer: str | int | Refused | Missing) -> Response:
    match answer:
        case str():
            return Response(201, {"ETag": answer})
        case int():
            return Response(201, {"ETag": '"0x0"'})
    return _refused(answer)


def _leased(status: int) -> Callable[[None | Refused | Missing], Response]:
    return lambda answer: Response(status, {"x-ms-lease-time": "0"}) if answer is None else _refused(answer)


def _whole(found: Content | NotModified | Missing | Refused) -> Response:
    """The answer to a read of the control blob, which requests a longer range than any blob has."""
    if not isinstance(found, Content):
        return _refused(found)
    size = len(found.data)
    return Response(206, {"ETag": found.etag, "Content-Range": f"bytes 0-{size - 1}/{size}"}, found.data)


def _whole_properties(found: Content | NotModified | Missing | Refused) -> Response:
    return replace(_whole(found), status=200, body=b"") if isinstance(found, Content) else _refused(found)


def _part(found: Span | Missing, start: int) -> Response:
    if isinstance(found, Missing):
        return _refused(found)
    if not found.data:
        return Response(416, {"x-ms-error-code": "InvalidRange", "Content-Range": f"bytes */{found.size}"})
    end = start + len(found.data) - 1
    return Response(206, {"Content-Range": f"bytes {start}-{end}/{found.size}"}, found.data)


def _properties(found: Span | Missing) -> Response:
    return _refused(found) if isinstance(found, Missing) else Response(200, {"Content-Length": str(found.size)})


def _batch(names: Sequence[str], refused: Mapping[str, str]) -> Response:
    """An answer in parts, each of which is an answer of its own."""
    parts = []
    for number, name in enumerate(names):
        code = refused.get(name)
        status = f"409 Conflict\r\nx-ms-error-code: {code}" if code else "202 Accepted"
        parts.append(
            f"--parts\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n"
        )
    return Response(202, {"Content-Type": "multipart/mixed; boundary=parts"}, "".join([*parts, "--parts--"]).encode())


def _directories(storage: MemoryStorage, prefix: str) -> set[str]:
    """The directories that a hierarchical namespace has above its blobs."""
    names = (name.split("/")[:-1] for name, _ in storage.list(""))
    every = {"/".join(parts[: depth + 1]) for parts in names for depth in range(len(parts))}
    return {each for each in every if each.startswith(prefix)}


def _listing(
    container: str, prefix: str, found: list[tuple[str, int]], directories: set[str], *, marked: bool
) -> Response:
    mark = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if marked else ""
    blobs = "".join(
        f"<Blob><Name>{escape(name)}</Name><Properties><Creation-Time>{_LONG_AGO}</Creation-Time><Last-Modified>{_LONG_AGO}</Last-Modified>"
        f"<Content-Length>{size}</Content-Length><BlobType>{'BlockBlob' if name in directories else 'AppendBlob'}"
        f"</BlobType></Properties>{mark if name in directories else ''}</Blob>"
        for name, size in sorted([*found, *((each, 0) for each in directories)])
    )
    body = (
        f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="{container}">'
        f"<Prefix>{escape(prefix)}</Prefix><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
    )
    return Response(200, {"Content-Type": "application/xml", "Date": _LONG_AGO}, body.encode())


def _range(header: str) -> tuple[int, int | None]:
    """Start and end of a range. The header names the last byte itself."""
    found = _RANGE.fullmatch(header)
    assert found is not None, header
    return int(found[1]), int(found[2]) + 1 if found[2] else None


# Answers of the table.


def _json(status: int, body: Mapping[str, Any], **headers: str) -> Response:
    return Response(
        status, {"Content-Type": "application/json", "Date": _LONG_AGO, **headers}, json.dumps(body).encode()
    )


def _put(answer: str | None | Refused) -> Response:
    if not isinstance(answer, Refused):
        return Response(204, {} if answer is None else {"ETag": answer})
    code = answer.code
    status = 412 if code in PRECONDITIONS else 404 if code == "ResourceNotFound" else 409
    return _json(status, {"odata.error": {"code": code, "message": {"lang": "en-US", "value": code}}})


def _row(partition: str, row: Row | None) -> Response:
    return _put(Refused("ResourceNotFound")) if row is None else _json(200, _entity(partition, row))


def _rows(partition: str, rows: list[Row]) -> Response:
    return _json(200, {"value": [_entity(partition, row) for row in rows]})


def _entity(partition: str, row: Row) -> dict[str, Any]:
    written_at = parsedate_to_datetime(_LONG_AGO) - timedelta(seconds=row.age_s)
    shown: dict[str, Any] = {"odata.etag": row.etag, "PartitionKey": partition, "RowKey": row.key}
    shown["Timestamp"] = f"{written_at:%Y-%m-%dT%H:%M:%S.%fZ}"
    for name, value in row.values.items():
        shown[name], kind = _typed(value)
        if kind:
            shown[f"{name}@odata.type"] = kind
    return shown


def _typed(value: Any) -> tuple[Any, str]:
    """A column as JSON shows it, and its type if that is named. Others than we may have written any type."""
    if type(value) is int:
        return str(value), "Edm.Int64"
    if isinstance(value, bytes):
        return b64encode(value).decode(), "Edm.Binary"
    if isinstance(value, float) and isnan(value):
        return "NaN", "Edm.Double"
    return value, ""


def _values(sent: Mapping[str, Any]) -> dict[str, Value]:
    """The columns of an entity that was sent, without its keys."""
    return {
        name: int(value) if sent.get(f"{name}@odata.type") == "Edm.Int64" else value
        for name, value in sent.items()
        if name not in ("PartitionKey", "RowKey") and "@" not in name
    }


def _unquoted(key: str) -> str:
    return key.replace("''", "'")

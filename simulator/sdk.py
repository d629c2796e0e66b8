"""The production account with the Azure SDK, over a simulated network to the storage in memory.

Everything from `Account` down to the SDK's transports is production code; only the two sessions below them, of aiohttp
and of requests, are replaced. An asynchronous request goes over the client's link, which may delay, lose or refuse it;
a synchronous one takes effect at the instant at which it is sent.
"""

import io
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import aiohttp
import requests
import urllib3
from requests.adapters import BaseAdapter

from samza_azure.errors import SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.storage.account_calls import AccountCalls, Reading
from samza_azure.storage.address import Address, from_connection_string
from samza_azure.storage.clients import READ_S
from samza_azure.storage.connection import Account
from samza_azure.storage.identity import Identity
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import Link, MemoryStorage
from simulator.rest import Call, HttpRequest, Response, understand

T = TypeVar("T")

#: An account that is accessed with a key, and one that is accessed with an identity.
EMULATOR = from_connection_string("UseDevelopmentStorage=true")
ENTERED = Address(
    blob_url=f"https://blob.invalid/{EMULATOR.name}",
    table_url=f"https://table.invalid/{EMULATOR.name}",
    name=EMULATOR.name,
    setting="azure.storage.account",
)

#: The timeout of the current call. The link gets the same value as with `MemoryAccount`.
_PATIENCE: ContextVar[float] = ContextVar("patience", default=READ_S)


class SdkAccount(Account):
    """One client's view of a storage in memory, through the SDK."""

    def __init__(self, storage: MemoryStorage, *, link: Link | None = None, identity: Identity | None = None) -> None:
        super().__init__(EMULATOR if identity is None else ENTERED, "simulated", "simulated", identity=identity)
        self._calls = _Impatient(self._calls.where, identity)
        self._memory, self._link = storage, link if link is not None else Link()
        self._asynchronous().use(_Session(self._understand, self._link))
        self._synchronous().use(_Adapter(self._answer))

    @property
    def storage(self) -> Blobs:
        """The logs, each call taking effect at once."""
        return self.blobs()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        """Make an asynchronous call, over this client's link."""
        return await self._link.carry(operation, effect, timeout)

    def _understand(self, request: HttpRequest) -> Call:
        return understand(request, self._memory)

    def _answer(self, request: HttpRequest) -> Response:
        call = self._understand(request)
        with self._memory.lock:
            try:
                return call.render(self._link.call(call.operation, call.effect))
            except SamzaAzureError as error:  # a deletion that was refused, which is nobody's reading
                code = str(error).rpartition(" ")[2].removesuffix(".")
                return Response(412 if code.startswith("Lease") else 409, {"x-ms-error-code": code})


class _Impatient(AccountCalls):
    async def wait(self, call: Callable[[], Awaitable[T]], doing: str, *, write: bool, timeout: float) -> T | Reading:
        token = _PATIENCE.set(timeout)
        try:
            return await super().wait(call, doing, write=write, timeout=timeout)
        finally:
            _PATIENCE.reset(token)


class _Session:
    """The part of an aiohttp session that `AioHttpTransport` uses."""

    auto_decompress = False

    def __init__(self, understand: Callable[[HttpRequest], Call], link: Link) -> None:
        self._understand, self._link = understand, link

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """There is nothing to close."""

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: Any, **how: object
    ) -> "_Answer":
        """Send one request over the link. Its errors are raised as those of a connection, as aiohttp does."""
        call = self._understand(HttpRequest(method, url, _lower(headers), _bytes(data)))
        try:
            return _Answer(call.render(await self._link.carry(call.operation, call.effect, _PATIENCE.get())))
        except Unsettled:
            return _Answer(Response(500, {"x-ms-error-code": "InternalError"}))
        except StorageUnavailable as error:
            place = SimpleNamespace(host="simulated", port=0, ssl=True)
            raise aiohttp.ClientConnectorError(place, OSError(str(error))) from error  # type: ignore[arg-type]


class _Answer:
    """The part of aiohttp's response that the transport uses."""

    def __init__(self, response: Response) -> None:
        self.status, self.reason = response.status, ""
        self.headers = {**response.headers, "Content-Length": str(len(response.body))}
        self.content = self
        self._body = io.BytesIO(response.body)

    async def read(self, size: int = -1) -> bytes:
        """The body, or the next part of it."""
        return self._body.read(size)

    def close(self) -> None:
        """There is nothing to close."""


class _Adapter(BaseAdapter):
    """The adapter with which requests sends."""

    def __init__(self, answer: Callable[[HttpRequest], Response]) -> None:
        super().__init__()
        self._answer = answer

    def send(self, request: requests.PreparedRequest, *how: object, **more: object) -> requests.Response:
        """Answer a request at once."""
        headers = {name: str(value) for name, value in request.headers.items()}
        body = _bytes(request.body)
        found = self._answer(HttpRequest(request.method or "", request.url or "", _lower(headers), body))
        size = {} if "Content-Length" in found.headers else {"Content-Length": str(len(found.body))}
        answer = requests.Response()
        answer.status_code, answer.reason, answer.url, answer.request = found.status, "", request.url or "", request
        answer.headers.update({**found.headers, **size})
        answer.raw = urllib3.HTTPResponse(
            io.BytesIO(found.body), headers=answer.headers, status=found.status, preload_content=False
        )
        return answer

    def close(self) -> None:
        """There is nothing to close."""


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _bytes(body: Any) -> bytes:
    if hasattr(body, "read"):
        body = body.read()
    return body.encode() if isinstance(body, str) else bytes(body or b"")

"""The asynchronous clients of a storage account, over one session.

aiohttp would send a PUT a second time when a kept-alive connection breaks; here nothing is sent twice.
"""

from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables.aio import TableClient
from azure.storage.blob.aio import ContainerClient

from samza_azure.storage.address import Address
from samza_azure.storage.clients import ONCE, SIZES, TRANSPORT
from samza_azure.storage.limits import LEASED_BYTES_MAX

# How long an idle connection is kept. Azurite hangs up after 5 s, and a write that crosses that would be unsettled.
_IDLE_S = 15.0
_IDLE_EMULATOR_S = 4.0


#: Blobs with a lease are all that is downloaded here.
LEASED = {"max_single_get_size": LEASED_BYTES_MAX}


class AsyncClients:
    """The clients of one container and one table."""

    def __init__(self, where: Address, container: str, table: str, opens: object) -> None:
        self._transport = _OneTry(use_env_settings=_goes_by_proxy(where.blob_url), **TRANSPORT)
        self._transport.idle_s = _IDLE_S if where.blob_url.startswith("https:") else _IDLE_EMULATOR_S
        common: dict[str, Any] = {"transport": self._transport, "credential": opens, **ONCE}
        self.container = ContainerClient(where.blob_url, container, **(common | SIZES | LEASED))
        self.table = TableClient(where.table_url, table, **common)

    def use(self, session: Any) -> None:
        """Send through this stand-in for an aiohttp session instead of the network."""
        self._transport.session = session

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


class AnswerLost(aiohttp.ClientError):
    """A connection broke after a request was sent on it."""


class _OneTry(AioHttpTransport):  # type: ignore[misc]  # azure.core loads it lazily, so its type is not known
    """A transport whose session sends each request once."""

    session: aiohttp.ClientSession | None
    idle_s: float
    _use_env_settings: bool

    async def open(self) -> None:
        if self.session is None:
            self.session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=self.idle_s),
                trust_env=self._use_env_settings,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        await super().open()


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Hide a broken connection from aiohttp, which would send a PUT on a kept-alive one a second time."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(type(error).__name__) from error


def _goes_by_proxy(url: str) -> bool:
    """Whether the environment names a proxy for this URL. Read once: aiohttp would start a thread for each call."""
    parts = urlsplit(url)
    return not getproxies().keys().isdisjoint({parts.scheme, "all"}) and not proxy_bypass(parts.hostname or "")

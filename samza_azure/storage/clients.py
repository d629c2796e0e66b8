"""The synchronous clients of a storage account, over one pool of connections.

The client of the container is created at its first use. Importing its package, and aiohttp with it, takes half of a
command's start, and a command whose request is a row of the table need not wait for that.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import requests
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import TableClient
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import ProtocolError

from samza_azure.storage.address import Address

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

#: In seconds: how long a connection may take, and how long the next bytes of an answer.
CONNECT_S = 3.0
READ_S = 10.0

#: One request each, of any size: a second one would see another state of the log.
SIZES = {"max_single_get_size": 1 << 30, "max_single_put_size": 5000 << 20}
#: Neither repeated nor redirected by the SDK.
ONCE = {"retry_total": 0, "permit_redirects": False}
#: How each connection is used.
TRANSPORT = {"connection_timeout": CONNECT_S, "read_timeout": READ_S, "connection_data_block_size": 1 << 20}
_THREADS_MAX = 64


class _Adapter(HTTPAdapter):
    """Sends a read again, once, if its connection was closed in place of an answer. A write is never sent twice.

    A service closes a connection that nobody has used for a while (Azurite after 5 s), perhaps just as we send on it.
    """

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        try:
            return super().send(request, *args, **more)
        except requests.ConnectionError as error:
            if request.method not in ("GET", "HEAD") or not _was_closed(error):
                raise
            return super().send(request, *args, **more)


def _was_closed(error: requests.ConnectionError) -> bool:
    reason = error.args[0] if error.args else None
    return isinstance(reason, ProtocolError) and isinstance(reason.args[-1], ConnectionError)  # of Python: reset, ended


class Clients:
    """The clients of one container and one table."""

    def __init__(self, where: Address, container: str, table: str, opens: object, made: Callable[[Any], None]) -> None:
        """`opens` is the credential; `made` is called with the client of the container when it is created."""
        self._session = requests.Session()
        self._session.trust_env = where.blob_url.startswith("https:")  # proxies and certificates; not for an emulator
        self._session.mount("https://", adapter := _Adapter(pool_maxsize=_THREADS_MAX, max_retries=Retry(False)))
        self._session.mount("http://", adapter)
        self._transport = RequestsTransport(session=self._session, session_owner=False, **TRANSPORT)
        self._options: dict[str, Any] = {"transport": self._transport, "credential": opens, **ONCE}
        self._blob_url, self._name, self._made = where.blob_url, container, made
        self._container: ContainerClient | None = None
        self._lock = threading.Lock()
        self.table = TableClient(where.table_url, table, **self._options)

    @property
    def container(self) -> "ContainerClient":
        """The container."""
        with self._lock:
            if self._container is None:
                self._container = self.beside(self._name)
                self._made(self._container)
            return self._container

    def beside(self, container: str) -> "ContainerClient":
        """Another container of this account."""
        from azure.storage.blob import ContainerClient

        return ContainerClient(self._blob_url, container, **(self._options | SIZES))

    def use(self, adapter: BaseAdapter) -> None:
        """Send through this adapter instead of the network."""
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()
        self._session.close()

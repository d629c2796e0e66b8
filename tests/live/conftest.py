"""The services whose raw answers are looked at: Azurite, and a real account if one is named."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from azure.data.tables import TableClient
from azure.storage.blob import BlobClient, ContainerClient

from samza_azure.account import Storage
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.storage.connection import Account
from tests.storage.conftest import SERVICES, azurite, connection_string, places, stocks
from tests.storage.differences import Difference
from tests.storage.stock import Stock

__all__ = ["azurite", "places", "stocks"]


@dataclass(frozen=True, slots=True)
class Service:
    """A container and a table, through the SDK alone."""

    container: ContainerClient
    table: TableClient
    stock: Stock
    differences: tuple[Difference, ...]

    def blob(self, name: str) -> BlobClient:
        """A blob of the container."""
        return self.container.get_blob_client(name)

    def expired(self) -> BlobClient:
        """A blob on which A's lease has run out."""
        where = self.container.from_connection_string
        connect = self.stock.place.connect
        assert connect is not None
        text = connect.value
        return where(text, self.stock.place.container, retry_total=0).get_blob_client(self.stock.take())


@pytest.fixture(scope="session", params=SERVICES)
def service(
    request: pytest.FixtureRequest,
    azurite: Azurite,
    places: Callable[[str], Storage],
    stocks: Callable[[str], Stock],
) -> Iterator[Service]:
    """Each of them in turn."""
    text = connection_string(azurite, request.param)
    stock, place = stocks(request.param), places(text)
    Account.from_config(place).ensure_created()
    container = ContainerClient.from_connection_string(text, place.container, retry_total=0)
    table = TableClient.from_connection_string(text, place.table, retry_total=0)
    yield Service(container, table, stock, SERVICES[request.param])
    container.close()
    table.close()

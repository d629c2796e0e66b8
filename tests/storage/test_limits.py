"""Limits of the storage that the code writes down as numbers, each tested at its edge: our check and the service."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException

import pytest
from azure.core.exceptions import AzureError
from azure.data.tables import TableClient, TableServiceClient
from azure.storage.blob import BlobServiceClient, ContainerClient

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config.account import valid_container, valid_table
from samza_azure.group.rows import COLUMN_LIMIT
from samza_azure.group.timing import LEASE_S as GROUP_LEASE_S
from samza_azure.library.lease_lock import LEASE_S
from samza_azure.storage.interface import DELETE_MAX
from samza_azure.storage.limits import APPEND_BYTES_MAX, KEY_MAX, TEXT_MAX, checked_append, checked_key, checked_values
from samza_azure.storage.transactions import OPERATIONS_MAX, Act, Write, checked

ROCKET = "\U0001f680"  # one character of Python, two of UTF-16


@dataclass(frozen=True, slots=True)
class Service:
    """Clients that check nothing, repeat nothing, and have names of their own."""

    blobs: BlobServiceClient
    tables: TableServiceClient
    container: ContainerClient
    table: TableClient

    def insert(self, key: str = "", **values: object) -> None:
        self.table.create_entity({"PartitionKey": "p", "RowKey": key or uuid.uuid4().hex, **values})

    def transact(self, count: int) -> None:
        rows = [("create", {"PartitionKey": "p", "RowKey": uuid.uuid4().hex}) for _ in range(count)]
        self.table.submit_transaction(rows)

    def append(self, size: int) -> None:
        blob = self.container.get_blob_client(uuid.uuid4().hex)
        blob.create_append_blob()
        blob.append_block(bytes(size))

    def lease(self, seconds: int) -> None:
        self.container.upload_blob(uuid.uuid4().hex, b"").acquire_lease(seconds).release()

    def delete(self, count: int) -> None:
        self.container.delete_blobs(*[uuid.uuid4().hex for _ in range(count)], raise_on_any_failure=False)

    def make_container(self, name: str) -> None:
        self.blobs.create_container(name)

    def make_table(self, name: str) -> None:
        self.tables.create_table(name)


@pytest.fixture(scope="module")
def service(azurite: Azurite) -> Iterator[Service]:
    connect = azurite.connection_string
    blobs = BlobServiceClient.from_connection_string(connect, retry_total=0)
    tables = TableServiceClient.from_connection_string(connect, retry_total=0)
    name = f"limits{uuid.uuid4().hex}"
    with blobs, tables:
        yield Service(blobs, tables, blobs.create_container(name), tables.create_table(name))


def named(length: int) -> str:
    return uuid.uuid4().hex.ljust(length, "x")[:length]


#: The most that is possible, our check of it, and the call. Azurite takes more than Azure where a limit is not here: in
#: names of columns, in the size of a row, and in deletions.
LIMITS: dict[str, tuple[int, Callable[[int], object] | None, Callable[[Service, int], object]]] = {
    "key": (KEY_MAX, lambda n: checked_key("k" * n), lambda to, n: to.insert(key=named(n))),
    "key of emoji": (
        KEY_MAX // 2,
        lambda n: checked_key(ROCKET * n),
        lambda to, n: to.insert(key=ROCKET * n),
    ),
    "text": (TEXT_MAX, lambda n: checked_values({"a": "x" * n}), lambda to, n: to.insert(a="x" * n)),
    "text of emoji": (
        TEXT_MAX // 2,
        lambda n: checked_values({"a": ROCKET * n}),
        lambda to, n: to.insert(a=ROCKET * n),
    ),
    "transaction": (
        OPERATIONS_MAX,
        lambda n: checked([Write(Act.INSERT, str(key)) for key in range(n)]),
        lambda to, n: to.transact(n),
    ),
    "append": (APPEND_BYTES_MAX, lambda n: checked_append(bytes(n)), lambda to, n: to.append(n)),
    "lease": (LEASE_S[1], None, lambda to, n: to.lease(n)),
    "container": (63, lambda n: valid_container("c" * n), lambda to, n: to.make_container(named(n))),
    "table": (63, lambda n: valid_table("t" * n), lambda to, n: to.make_table(f"t{named(n)}"[:n])),
}


@pytest.mark.parametrize("what", LIMITS)
def test_the_most_is_taken_and_more_is_refused_by_us_and_by_the_service(service: Service, what: str) -> None:
    most, check, ask = LIMITS[what]
    ask(service, most)
    if check is not None:
        check(most)
        with pytest.raises(ValueError, match=r"."):
            check(most + 1)
    # After a refused transaction the SDK cannot read Azurite's answer.
    with pytest.raises((AzureError, HTTPException)):
        ask(service, most + 1)


LEAST: dict[str, tuple[int, Callable[[Service, int], object]]] = {
    "lease": (LEASE_S[0], lambda to, n: to.lease(n)),
    "container": (3, lambda to, n: to.make_container(named(n))),
    "table": (3, lambda to, n: to.make_table("t" * n)),
}


@pytest.mark.parametrize("what", LEAST)
def test_the_least_is_taken_and_less_is_refused(service: Service, what: str) -> None:
    least, ask = LEAST[what]
    ask(service, least)
    with pytest.raises(AzureError):
        ask(service, least - 1)


def test_what_rests_on_a_limit_keeps_within_it(service: Service) -> None:
    assert LEASE_S[0] <= GROUP_LEASE_S <= LEASE_S[1]
    assert COLUMN_LIMIT <= TEXT_MAX
    service.delete(DELETE_MAX)

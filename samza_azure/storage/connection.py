"""One storage account: its clients, made once and shared.

No layer below repeats a call. The SDK's retries are off (its first back-off would be 15 s, and a conditional write that
is sent again may be refused because of its own first copy). So are redirects, and aiohttp's repetition of a PUT when a
kept-alive connection breaks. The synchronous side serves many threads, the asynchronous one a single event loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import HttpResponseError

from samza_azure.account import Storage
from samza_azure.errors import AccessDenied, ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.group.control import NAME
from samza_azure.outcomes import Missing
from samza_azure.storage.account_calls import AccountCalls, error_code
from samza_azure.storage.address import Address, address
from samza_azure.storage.binding import (
    AzureHalves,
    Half,
    Names,
    Nowhere,
    begin_to_empty,
    bind,
    end_emptying,
    read,
    refuse_container,
    refuse_others,
    refuse_table,
    refuse_unbound,
    unbind,
)
from samza_azure.storage.clients import CONNECT_S, READ_S, Clients
from samza_azure.storage.identity import Identity, of_this_process
from samza_azure.storage.interface import Blobs, ControlBlob, NamedRows, Rows
from samza_azure.storage.limits import READERS
from samza_azure.storage.secret_file import SecretFile
from samza_azure.storage.transactions import Transactions

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient
    from azure.storage.blob.aio import ContainerClient as AsyncContainerClient

    from samza_azure.storage.async_clients import AsyncClients
    from samza_azure.storage.blobs import AzureBlobs

# What accounts that are not general-purpose lack.
_LACKS = {"BlobStorage": "tables", "BlockBlobStorage": "tables", "FileStorage": "blobs and tables"}
# The scope of a token for the storage of any account.
_SCOPE = "https://storage.azure.com/.default"


class Account:
    """A storage account with the application's container and table in it."""

    def __init__(
        self, where: Address, container: str, table: str, *, application: str = "", identity: Identity | None = None
    ) -> None:
        self._where = where
        self._container = container
        self._table = table
        self._names = Names(application, container, table)
        self._identity = (identity or of_this_process()) if where.by_identity else None
        self._secret = _secret(where)
        self._file = None if where.file is None or self._secret is None else SecretFile(where.file, where, self._secret)
        self._calls = AccountCalls(where, self._identity, self._file)
        self._lock = threading.Lock()
        self._now: Clients | None = None
        self._soon: AsyncClients | None = None
        if where.signature is not None:
            logging.getLogger("urllib3.connectionpool").addFilter(_hide_signature)

    @classmethod
    def from_config(cls, storage: Storage) -> "Account":
        """The account that the job file names. Sends nothing yet."""
        return cls(address(storage), storage.container, storage.table, application=storage.application)

    def __repr__(self) -> str:
        return f"Account({self._where!r}, container={self._container!r}, table={self._table!r})"

    def sign_in(self) -> None:
        """Wait for the first token, if an identity opens the account: that may take much longer than a call."""
        if (identity := self._identity) is not None:
            host = self._where.host
            self._calls.make(lambda: identity.sign_in(_SCOPE, host), f"Signing in to {host}", write=False)

    def ensure_created(self, *, binds: bool = True) -> None:
        """Create the container and the table if they are missing, and bind them to each other and to the application.
        Only then are the rights to do so needed. With `binds=False`, for requests, which store nothing that another
        job could take for its own, they are not bound.

        Raise `ConfigError` if the container or the table belongs to another one, or to another application, before
        anything is created.
        """
        self.sign_in()
        clients, halves = self._synchronous(), self._halves()
        self._refuse_a_kind_that_cannot_work(clients.container)
        row, blob = read(halves)
        if blob is Nowhere.NOT_THERE:
            # First: an empty container would stand in the way of who restores the one that the table belongs to.
            refuse_others(self._names, row, blob)
            self._create(clients.container.create_container, f"the container {self._container}", "Blob")
            blob = halves.read_blob()
        self._refuse_a_container_that_is_kept(clients.container)
        if row is Nowhere.NOT_THERE:
            refuse_container(self._names, blob)
            self._create(clients.table.create_table, f"the table {self._table}", "Table")
            row, blob = read(halves, blob)
        if binds:
            bind(halves, self._names, row, blob)
        else:
            refuse_others(self._names, row, blob)

    def create(self) -> None:
        """Create the container and the table, of which none is there, and bind them to nobody."""
        self.sign_in()
        clients = self._synchronous()
        self._refuse_a_kind_that_cannot_work(clients.container)
        self._create(clients.container.create_container, f"the container {self._container}", "Blob")
        self._refuse_a_container_that_is_kept(clients.container)
        self._create(clients.table.create_table, f"the table {self._table}", "Table")

    def exists(self, *, to_empty: bool = False) -> bool:
        """Whether the container and the table are there. Reads, and creates nothing.

        Raise `ConfigError` like `ensure_created`. With `to_empty`, a table whose container was deleted is one to empty.
        """
        self.sign_in()
        row, blob = read(self._halves())
        refuse_others(self._names, row, blob, to_empty=to_empty)
        return Nowhere.NOT_THERE not in (row, blob) or isinstance(row, Half)

    def refuse_container(self) -> None:
        """Raise `ConfigError` if the container belongs to another table or application, for who needs no table."""
        refuse_container(self._names, self._halves().read_blob())

    def refuse_table(self) -> None:
        """Raise `ConfigError` if the table belongs to another container or application, for who needs no container."""
        refuse_table(self._names, self._halves().read_row())

    def refuse_unbound(self) -> None:
        """Raise `ConfigError` if the container is no longer that of this job, or is being emptied."""
        refuse_unbound(self._halves(), self._names)

    def begin_to_empty(self) -> None:
        """Say in the container that all is being deleted: from now on nobody begins to write, until `unbind`."""
        begin_to_empty(self._halves(), self._names)

    def end_emptying(self) -> None:
        """Let others in again, although not all could be deleted."""
        end_emptying(self._halves())

    def unbind(self) -> None:
        """Release the container and the table, which are empty: another application may have the names."""
        halves = self._halves()
        unbind(halves, *read(halves))

    def delete(self) -> None:
        """Delete the container and the table with all that is in them, if they are there."""
        clients = self._synchronous()
        for call, what in (
            (clients.container.delete_container, f"the container {self._container}"),
            (clients.table.delete_table, f"the table {self._table}"),
        ):
            self._calls.make(call, f"Deleting {what}", write=True)

    def described(self) -> str:
        """The account, what kind it is if we may know, and what opens it; no secret."""
        kind = self._properties(
            self._synchronous().container.get_account_information, "Asking what kind of account this is"
        )
        kinds = [str(kind[name]) for name in ("account_kind", "sku_name") if kind.get(name)]
        opens = "a signature" if self._where.signature else "a key" if self._where.key else "an identity"
        return f"{self._where.host} ({', '.join([*kinds, f'opened by {opens}'])})"

    def clock_ahead_s(self) -> float:
        """How far the account's clock is ahead of this machine's, in seconds, to a second or two."""
        answered: list[datetime] = []

        def note(response: Any) -> None:
            answered.append(parsedate_to_datetime(response.http_response.headers["Date"]))

        pages = self._synchronous().container.list_blobs(results_per_page=1, raw_response_hook=note).by_page()
        begun = time.time()
        self._calls.make(lambda: next(pages, None), "Asking for the account's clock", write=False)
        return answered[0].timestamp() + 0.5 - (begun + time.time()) / 2  # the answer has whole seconds

    def blobs(self, *, timeout_s: float = READ_S) -> Blobs:
        """The logs. No call waits longer than about `timeout_s` seconds for data."""
        from samza_azure.storage.blobs import AzureBlobs  # kept out of the supervisor

        return AzureBlobs(self._synchronous().container, self._calls, timeout_s=timeout_s)

    def container(self, name: str, *, timeout_s: float = READ_S) -> "AzureBlobs":
        """The blobs of any container of the account. Raise ConfigError if there is none of this name."""
        from samza_azure.storage.blobs import AzureBlobs  # kept out of the supervisor

        if not self.has_container(name):
            raise ConfigError(f"The account has no container {name}. Create it, or name another one.")
        return AzureBlobs(self._synchronous().beside(name), self._calls, timeout_s=timeout_s)

    def has_container(self, name: str) -> bool:
        """Whether the account has a container of this name."""
        return self._has(self._synchronous().beside(name))

    def hints(self, *, timeout_s: float = CONNECT_S) -> NamedRows:
        """The hint rows."""
        from samza_azure.storage.named_rows import AzureNamedRows  # kept out of the supervisor

        return AzureNamedRows(self._synchronous().table, self._calls, timeout_s=timeout_s)

    def readers(self, *, timeout_s: float = READ_S) -> NamedRows:
        """The positions of the named readers."""
        from samza_azure.storage.named_rows import AzureNamedRows  # kept out of the supervisor

        return AzureNamedRows(self._synchronous().table, self._calls, timeout_s=timeout_s, partition=READERS)

    def control_blob(self) -> ControlBlob:
        """The control blob."""
        return self.leased_blob(NAME)

    def leased_blob(self, name: str) -> ControlBlob:
        """A blob that is leased like the control blob, for a lock."""
        from samza_azure.storage.control_blob import AzureControlBlob  # kept out of the container

        return AzureControlBlob(self._asynchronous().container, self._calls, name)

    def rows(self) -> Rows:
        """The table."""
        from samza_azure.storage.rows import AzureRows  # kept out of the container

        return AzureRows(self._asynchronous().table, self._calls)

    def transactions(self, partition: str, *, timeout_s: float | None = None) -> Transactions:
        """One partition of the table, for writes of several rows at once."""
        from samza_azure.storage.transactions import AzureTransactions  # kept out of the supervisor

        return AzureTransactions(self._synchronous().table, self._calls, partition, timeout_s=timeout_s)

    def partitions(self, prefix: str) -> list[str]:
        """The partitions of the table that begin with this, and have rows. One call for each."""
        found, table = list[str](), self._synchronous().table
        end = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"

        def next_one(after: str) -> str | None:
            asked = table.query_entities(
                "PartitionKey gt @after and PartitionKey lt @end",
                parameters={"after": after, "end": end},
                results_per_page=1,
                select=["PartitionKey"],
            )
            row = next(iter(asked), None)
            return None if row is None else str(row["PartitionKey"])

        while True:
            ask = partial(next_one, found[-1] if found else prefix)
            answer = self._calls.make(ask, f"Looking for rows of {prefix}", write=False)
            if not isinstance(answer, str):
                return found
            found.append(answer)

    def close(self) -> None:
        """Close the connections of the synchronous side."""
        with self._lock:
            clients, self._now = self._now, None
        if clients is not None:
            clients.close()

    async def aclose(self) -> None:
        """Close the connections of the asynchronous side."""
        with self._lock:
            clients, self._soon = self._soon, None
        if clients is not None:
            await clients.close()

    def _refuse_a_kind_that_cannot_work(self, container: "ContainerClient") -> None:
        """Raise `ConfigError` for a wrong kind of account, before anything is asked of its tables: without tables it
        has no address for them, which would look as if it were unreachable. The container need not exist."""
        kind = self._properties(container.get_account_information, "Asking what kind of account this is")
        name, sku = kind.get("account_kind", "StorageV2"), kind.get("sku_name", "Standard_LRS")
        lacks = _LACKS.get(name) or ("append blobs and tables" if sku.startswith("Premium") else "")
        if lacks:
            raise ConfigError(
                f"The storage account {self._where.host} is of kind {name}, {sku}: it has no {lacks}. "
                f"{self._where.setting} has to name a general-purpose account (StorageV2, standard performance)."
            )

    def _refuse_a_container_that_is_kept(self, container: "ContainerClient") -> None:
        """Raise `ConfigError` if a policy lets no blob of the container be changed."""
        holds = self._properties(
            container.get_container_properties, f"Asking what keeps the container {self._container}"
        )
        for hold, what in (("has_immutability_policy", "an immutability policy"), ("has_legal_hold", "a legal hold")):
            if holds.get(hold) and not holds.get("immutable_storage_with_versioning_enabled"):
                raise ConfigError(
                    f"The container {self._container} has {what}, and {NAME} in it is written again and again. "
                    "Name a container without one in azure.storage.container; single blobs may be held."
                )

    def _properties(self, ask: Callable[[], Any], doing: str) -> Mapping[str, Any]:
        """Properties of the account; empty if we may not read them, since nothing else needs that right."""
        try:
            answer = self._calls.make(ask, doing, write=False)
        except StorageUnavailable:
            raise
        except SamzaAzureError:
            return {}
        return answer if isinstance(answer, Mapping) else getattr(answer, "__dict__", {})

    def _halves(self) -> AzureHalves:
        clients = self._synchronous()
        return AzureHalves(lambda: clients.container, clients.table, self._calls)

    def _has(self, container: "ContainerClient") -> bool:
        """Checked by a blob in it: not every role may read a container's own properties."""

        def ask() -> bool:
            try:
                container.get_blob_client(NAME).get_blob_properties()
            except HttpResponseError as error:
                if error.status_code != 404:
                    raise
                return error_code(error) != "ContainerNotFound"
            return True

        return self._calls.make(ask, f"Asking for the container {container.container_name}", write=False) is not False

    def _create(self, call: Callable[[], object], what: str, kind: str) -> None:
        doing = f"Creating {what}"
        try:
            answer = self._calls.make(call, doing, write=True)
        except AccessDenied as error:
            raise AccessDenied(
                f"There is no {what.removeprefix('the ')}, and we may not create it. Create it beforehand, as "
                f"infra/azure does, or grant Storage {kind} Data Contributor on the whole account. {error}",
                may_pass=error.may_pass,
            ) from error.__cause__
        # Refused means that somebody else has created it meanwhile.
        if isinstance(answer, Missing):
            raise StorageUnavailable(f"{doing}: there is no such account.")

    def _synchronous(self) -> Clients:
        with self._lock:
            if self._now is None:
                opens = self._secret or self._identity
                self._now = Clients(self._where, self._container, self._table, opens, self._serve)
            return self._now

    def _asynchronous(self) -> "AsyncClients":
        from samza_azure.storage.async_clients import AsyncClients  # a request of a command goes without them

        with self._lock:
            if self._soon is None:
                opens = self._secret or (self._identity.asynchronous if self._identity else None)
                self._soon = AsyncClients(self._where, self._container, self._table, opens)
                self._serve(self._soon.container)
            return self._soon

    def _serve(self, container: "ContainerClient | AsyncContainerClient") -> None:
        if self._file is not None:
            self._file.serve(container)


def _secret(where: Address) -> AzureNamedKeyCredential | AzureSasCredential | None:
    if where.signature is not None:
        return AzureSasCredential(where.signature)
    return None if where.key is None else AzureNamedKeyCredential(where.name, where.key)


def _hide_signature(record: logging.LogRecord) -> bool:
    """Cut the query off URLs in urllib3's debug log, because a signature in it is a secret."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    record.args = tuple(one.partition("?")[0] if isinstance(one, str) else one for one in arguments)
    return True

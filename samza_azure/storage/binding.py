"""Which container and which table belong together, and to which application.

A blob in the container names the table, a row in the table names the container, and both name the application and carry
one random id. Whatever stores something writes the two before anything else, and each start and each command reads
them. So two job files that share only a part of their names are refused: with one table and two containers, the
idempotence keys, named readers and processors of one job would count for the other; with one container and two tables,
two leaders would take the control blob from each other.

Promised: however many begin at once, each container is bound to one table, and each table to one container. The blob is
written first, and the row only by who has read a blob that names the table. So a row whose container has no such blob
was not interrupted: the blob was lost. It lies where producers and lifecycle rules may delete it, so if the container
still has anything of a job, the next start writes it again, as the row says. If not, the container was deleted or
emptied, and the keys and positions beside the row are about rows that are gone.

Before a job's data is deleted, the blob says so: from then on nobody begins. A producer looks at the binding whenever
it has created a blob, before it appends to it. So what it has created before the mark is in the listing that follows
the mark, and what it creates after it gets no rows.

Not promised: any other check after the start. Whoever deletes a container or a table under a running job unbinds it.
Nor whose the blobs of a container are that has lost its own: they are taken to be those of the row that names it.
"""

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError

from samza_azure.errors import ConfigError, StorageUnavailable, TooOld
from samza_azure.foreign import parsed
from samza_azure.group.control import NAME
from samza_azure.logs.names import BINDING, FOLDERS
from samza_azure.names import APPLICATION, BINDING_ID, CONTAINER_OR_TABLE
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.account_calls import AccountCalls, error_code
from samza_azure.storage.entities import entity
from samza_azure.storage.interface import CALL_S

if TYPE_CHECKING:
    from azure.data.tables import TableClient
    from azure.storage.blob import ContainerClient

log = logging.getLogger(__name__)

#: The partition and the key of the row.
ROW = "binding"
#: The format of both.
FORMAT = 1
#: More than the blob can hold; a larger one is not ours.
_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Names:
    """What a job file names: its application as `app.name/app.id`, its container and its table.

    Without an application, as for settings that were made by hand, only container and table are compared.
    """

    application: str
    container: str
    table: str


@dataclass(frozen=True, slots=True)
class Half:
    """What the blob or the row says: the application, the name of the other one, and the id that both have."""

    application: str
    other: str
    id: str
    etag: str = ""
    emptying: bool = False  # only in the blob: all that the container and the table hold is being deleted


class Nowhere(Enum):
    """Why there is no half."""

    NOT_BOUND = auto()  # the container or the table is there, and belongs to nobody
    NOT_THERE = auto()  # not even a container or a table
    LOST = auto()  # the blob of a container whose table has its row, and which has other blobs of a job


class Halves(Protocol):
    """The blob and the row of one container and one table."""

    def read_blob(self) -> Half | Nowhere:
        """What the blob says."""

    def read_row(self) -> Half | Nowhere:
        """What the row says."""

    def is_used(self) -> bool:
        """Whether the container has a blob of a job, other than this one."""

    def create_blob(self, half: Half) -> None:
        """Create the blob, if there is none."""

    def create_row(self, half: Half) -> None:
        """Insert the row, if there is none."""

    def replace_blob(self, half: Half) -> None:
        """Write the blob, if it is still the one that was read."""

    def delete_blob(self, half: Half) -> None:
        """Delete the blob, if it is still the one that was read."""

    def delete_row(self, half: Half) -> None:
        """Delete the row, if it is still the one that was read."""


def read(halves: Halves, blob: Half | Nowhere | None = None) -> tuple[Half | Nowhere, Half | Nowhere]:
    """The row, and the blob unless it was just read.

    The blob of a row is there before it. So a blob that was read before the row and does not go with it is read again:
    a job may have been bound between the two reads, and would look like one whose container was deleted.
    """
    blob = halves.read_blob() if blob is None else blob
    row = halves.read_row()
    if isinstance(row, Half) and not _go_together(row, blob):
        blob = halves.read_blob()
        if blob is Nowhere.NOT_BOUND and halves.is_used():
            blob = Nowhere.LOST
    return row, blob


def bind(halves: Halves, names: Names, row: Half | Nowhere, blob: Half | Nowhere) -> None:
    """Bind container and table to each other and to the application, unless they are. Both were read, as `read` does.

    Raise `ConfigError` if one of them belongs to others.
    """
    while True:
        _take_back(halves, names, row, blob)
        refuse_others(names, row, blob)
        if isinstance(blob, Half) and isinstance(row, Half):
            return
        # What is created is read again: another one may have been faster, or the answer of an earlier try was lost.
        if isinstance(blob, Half):
            halves.create_row(Half(blob.application, names.container, blob.id))
        elif isinstance(row, Half):  # and the blob is lost
            log.warning(
                "The blob %s of the container %s was deleted. It is written again from the row %s/%s of the table %s",
                *(BINDING, names.container, ROW, ROW, names.table),
            )
            halves.create_blob(Half(row.application, names.table, row.id))
        else:
            halves.create_blob(Half(names.application, names.table, uuid.uuid4().hex))
        row, blob = read(halves)
        if Nowhere.NOT_THERE in (blob, row):
            raise StorageUnavailable(f"The container {names.container} or the table {names.table} was deleted at once.")


def begin_to_empty(halves: Halves, names: Names) -> None:
    """Say in the blob that all is being deleted; `unbind` or `end_emptying` ends that. Raise `ConfigError` if the
    container or the table belongs to others."""
    while True:
        row, blob = read(halves)
        refuse_others(names, row, blob, to_empty=True)
        if blob is Nowhere.NOT_THERE or (isinstance(blob, Half) and blob.emptying):
            return
        if isinstance(blob, Half):
            halves.replace_blob(replace(blob, emptying=True))
        else:
            key = row.id if isinstance(row, Half) else uuid.uuid4().hex
            halves.create_blob(Half(names.application, names.table, key, emptying=True))


def end_emptying(halves: Halves) -> None:
    """Say that the container and the table are in use again: not all could be deleted."""
    while isinstance(blob := halves.read_blob(), Half) and blob.emptying:
        halves.replace_blob(replace(blob, emptying=False))


def unbind(halves: Halves, row: Half | Nowhere, blob: Half | Nowhere) -> None:
    """Release container and table, which are empty. The row goes first: a blob alone is what a start completes."""
    if isinstance(row, Half):
        halves.delete_row(row)
    if isinstance(blob, Half):
        halves.delete_blob(blob)


def _take_back(halves: Halves, names: Names, row: Half | Nowhere, blob: Half | Nowhere) -> None:
    """Delete our blob if the table went to another container: two began at once, and that one was faster."""
    if (
        isinstance(blob, Half)
        and isinstance(row, Half)
        and _same(blob.other, names.table)
        and row.other != names.container
    ):
        halves.delete_blob(blob)


def refuse_others(names: Names, row: Half | Nowhere, blob: Half | Nowhere, *, to_empty: bool = False) -> None:
    """Raise `ConfigError` if the container or the table belongs to others, or the table to a container that is gone;
    but who is about to empty both may find that.
    """
    refuse_container(names, blob, to_empty=to_empty)
    refuse_table(names, row)
    is_gone = isinstance(row, Half) and blob is not Nowhere.LOST and not _go_together(row, blob)
    if is_gone and not to_empty:
        raise ConfigError(
            f"The table {names.table} belongs to a container {names.container} that was deleted since, or emptied: its "
            "idempotence keys and the positions of its readers are about rows that are gone. Restore that container, "
            "or let `samza-azure delete JOB --all` empty the table too: then the names can be used again."
        )


def refuse_container(names: Names, blob: Half | Nowhere, *, to_empty: bool = False) -> None:
    """Raise `ConfigError` if the container belongs to others, or, but to who does that, if it is being emptied."""
    if isinstance(blob, Half) and not (
        _same(blob.other, names.table) and not _differ(blob.application, names.application)
    ):
        raise ConfigError(_others(names, blob, "container", names.container, "table", names.table))
    if isinstance(blob, Half) and blob.emptying and not to_empty:
        raise ConfigError(
            f"`samza-azure delete JOB --all` deletes what the container {names.container} holds, or was interrupted. "
            "Wait for its end, or give it again; then start anew."
        )


def refuse_unbound(halves: Halves, names: Names) -> None:
    """Raise `ConfigError` if the container is no longer that of this job, for a producer that has begun before."""
    blob = halves.read_blob()
    if isinstance(blob, Half):
        refuse_container(names, blob)
        return
    row, blob = read(halves, blob)
    refuse_others(names, row, blob)
    if not isinstance(row, Half) and not isinstance(blob, Half):
        raise ConfigError(
            f"All that the container {names.container} held was deleted while rows were written to it, so these are "
            "gone, too. Write them again with a new writer."
        )


def refuse_table(names: Names, row: Half | Nowhere) -> None:
    """Raise `ConfigError` if the table belongs to others."""
    if isinstance(row, Half) and (row.other != names.container or _differ(row.application, names.application)):
        raise ConfigError(_others(names, row, "table", names.table, "container", names.container))


def _others(names: Names, half: Half, kind: str, name: str, other_kind: str, other: str) -> str:
    """Who has it, and the two ways out: names of one's own, or the names that the job had."""
    theirs, ours = f"the {other_kind} {half.other}", f"the {other_kind} {other}"
    had = [] if _same(half.other, other) else [f'azure.storage.{other_kind} = "{half.other}"']
    if _differ(half.application, names.application):
        theirs = f"{theirs} of the application {half.application}"
        ours = f"{ours} of {names.application}"
        name_and_id = half.application.split("/")
        had += [f'app.name = "{name_and_id[0]}" and app.id = "{name_and_id[1]}"'] if len(name_and_id) == 2 else []
    again = (
        f" If it is the same job under another name, give it the names that it had: {', '.join(had)}." if had else ""
    )
    return (
        f"The {kind} {name} belongs to {theirs}, and not to {ours}: two jobs that share one would take each other's "
        f"rows. Name another {kind} in azure.storage.{kind}, or leave that line out for one named after the "
        f"application.{again}"
    )


def _go_together(row: Half | Nowhere, blob: Half | Nowhere) -> bool:
    return isinstance(row, Half) and isinstance(blob, Half) and row.id == blob.id


def _same(one: str, other: str) -> bool:
    """Whether two names are those of one table: Azure ignores case in them. Names of containers have none."""
    return one.lower() == other.lower()


def _differ(one: str, other: str) -> bool:
    return bool(one and other and one != other)


class AzureHalves:
    """The blob and the row in an account."""

    def __init__(self, container: "Callable[[], ContainerClient]", table: "TableClient", calls: AccountCalls) -> None:
        """The client of the container is made only where the blob is asked for: importing its package takes long."""
        self._container, self._table, self._calls = container, table, calls

    def read_blob(self) -> Half | Nowhere:
        blob = self._container().get_blob_client(BINDING)

        def ask() -> Half | Nowhere:
            try:
                download = blob.download_blob(offset=0, length=_BYTES_MAX, read_timeout=CALL_S)
                return _half(download.readall(), "table", str(download.properties.etag), f"The blob {BINDING}")
            except HttpResponseError as error:
                if error.status_code == 416:  # it is empty
                    return _half(b"", "table", "", f"The blob {BINDING}")
                if error.status_code != 404:
                    raise
                return Nowhere.NOT_THERE if error_code(error) == "ContainerNotFound" else Nowhere.NOT_BOUND

        return _found(self._calls.make(ask, f"Asking what the container {blob.container_name} belongs to", write=False))

    def read_row(self) -> Half | Nowhere:
        def ask() -> Half | Nowhere:
            try:
                found = self._table.get_entity(ROW, ROW, read_timeout=CALL_S)
            except HttpResponseError as error:
                if error.status_code != 404:
                    raise
                return Nowhere.NOT_THERE if error_code(error) == "TableNotFound" else Nowhere.NOT_BOUND
            return _half_of(dict(found), "container", str(found.metadata["etag"]), f"The row {ROW}/{ROW}")

        doing = f"Asking what the table {self._table.table_name} belongs to"
        return _found(self._calls.make(ask, doing, write=False))

    def is_used(self) -> bool:
        from samza_azure.storage.blobs import is_directory  # kept out of the supervisor

        container = self._container()

        def ask() -> bool:
            return any(
                found.name != BINDING and not is_directory(found)
                for prefix in (NAME, *FOLDERS)
                for found in container.list_blobs(name_starts_with=prefix, include=["metadata"], results_per_page=100)
            )

        doing = f"Asking what the container {container.container_name} holds"
        return self._calls.make(ask, doing, write=False) is True

    def create_blob(self, half: Half) -> None:
        blob = self._container().get_blob_client(BINDING)
        data = _written(half)
        self._made(
            lambda: blob.upload_blob(data, length=len(data), overwrite=False),
            f"Binding the container {blob.container_name} to the table {half.other}",
        )

    def create_row(self, half: Half) -> None:
        said: dict[str, str | int] = {
            "format": FORMAT,
            "application": half.application,
            "container": half.other,
            "id": half.id,
        }
        self._made(
            lambda: self._table.create_entity(entity(ROW, ROW, said)),
            f"Binding the table {self._table.table_name} to the container {half.other}",
        )

    def replace_blob(self, half: Half) -> None:
        blob, data = self._container().get_blob_client(BINDING), _written(half)
        unchanged = MatchConditions.IfNotModified
        self._changed(
            lambda: blob.upload_blob(data, overwrite=True, etag=half.etag, match_condition=unchanged),
            f"Marking the container {blob.container_name}",
        )

    def delete_blob(self, half: Half) -> None:
        blob, unchanged = self._container().get_blob_client(BINDING), MatchConditions.IfNotModified
        self._changed(
            lambda: blob.delete_blob("include", etag=half.etag, match_condition=unchanged),
            f"Releasing the container {blob.container_name}",
        )

    def delete_row(self, half: Half) -> None:
        unchanged = MatchConditions.IfNotModified
        self._calls.make(
            lambda: self._table.delete_entity(ROW, ROW, etag=half.etag, match_condition=unchanged),
            f"Releasing the table {self._table.table_name}",
            write=True,
        )

    def _made(self, call: Callable[[], object], doing: str) -> None:
        if isinstance(self._calls.make(call, doing, write=True), Missing):
            raise StorageUnavailable(f"{doing}: it was deleted at once.")

    def _changed(self, call: Callable[[], object], doing: str) -> None:
        """Another ETag is for the caller, who reads again; that would not end while somebody holds a lease."""
        answer = self._calls.make(call, doing, write=True)
        if isinstance(answer, Refused) and answer.code != "ConditionNotMet":
            raise ConfigError(
                f"{doing} was refused ({answer.code}): another program has leased the blob {BINDING}. End that lease, "
                "for example with `az storage blob lease break`, and run this command again."
            )


def _written(half: Half) -> bytes:
    """What the blob holds."""
    said: dict[str, object] = {
        "format": FORMAT,
        "application": half.application,
        "table": half.other,
        "id": half.id,
    }
    return json.dumps(said | ({"emptying": True} if half.emptying else {}), indent=1).encode()


def _found(answer: object) -> Half | Nowhere:
    if isinstance(answer, Half | Nowhere):
        return answer
    raise StorageUnavailable(f"Unexpected answer {answer}.")


def _half(data: bytes, other: str, etag: str, what: str) -> Half:
    try:
        said = parsed(data)
    except ValueError:
        said = None
    return _half_of(said if isinstance(said, dict) else {}, other, etag, what)


def _half_of(said: dict[str, object], other: str, etag: str, what: str) -> Half:
    """Check what was read: whoever may write there may have written anything."""
    form, application, name, key = said.get("format"), said.get("application"), said.get(other), said.get("id")
    form = getattr(form, "value", form)  # a 64-bit integer of a row
    if type(form) is int and form > FORMAT:
        raise TooOld(what, form, FORMAT)
    if (
        (type(form), form) != (int, FORMAT)
        or not (isinstance(application, str) and (not application or APPLICATION.accepts(application)))
        or not (isinstance(name, str) and CONTAINER_OR_TABLE.accepts(name))
        or not (isinstance(key, str) and BINDING_ID.accepts(key))
    ):
        raise ConfigError(
            f"{what}, which says what the job's container and table belong to, was not written by samza-azure. Find "
            "out who wrote it, and delete it: the next start writes it anew."
        )
    return Half(application, name, key, etag, said.get("emptying") is True)

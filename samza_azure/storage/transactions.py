"""Several rows of one partition, written all or none: what tables of segments ask of the table service.

Synchronous, for threads that move data. As everywhere in this folder a refused condition is returned; raised are
`Unsettled`, `StorageUnavailable` and `AccessDenied`. No call is repeated here.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Protocol

from samza_azure.errors import StorageUnavailable
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Row, Value
from samza_azure.storage.limits import checked_key, checked_values

#: The service takes at most this many operations in one transaction.
OPERATIONS_MAX = 100


class Act(Enum):
    """What is done to one row."""

    INSERT = auto()  # refused if it is there
    MERGE = auto()  # sets columns; refused if the row is gone or, with an ETag, has another one
    DELETE = auto()  # the same


@dataclass(frozen=True, slots=True)
class Write:
    """One operation of a transaction. Without an ETag any state of the row will do."""

    act: Act
    key: str
    values: Mapping[str, Value] = field(default_factory=dict)
    etag: str | None = None


class AtOnce(list[Row]):
    """Rows that one answer of the service had, all of them as they were at one moment."""


class Transactions(Protocol):
    """The rows of one partition."""

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        """Do all of these, at most `OPERATIONS_MAX` and each of another row, or none; the new ETags, "" of what was
        deleted."""

    def query(self, first: str, end: str) -> list[Row]:
        """The rows with keys from `first` to just before `end`, in their order. One call per 1,000 rows: each is
        consistent in itself, and a later one may see what was written after an earlier one. `AtOnce` if there was no
        later one."""


def checked(writes: Sequence[Write]) -> Sequence[Write]:
    """ValueError for a transaction that the service would not take."""
    if not 0 < len(writes) <= OPERATIONS_MAX:
        raise ValueError(f"A transaction of {len(writes)} operations: 1 to {OPERATIONS_MAX} are possible.")
    if len({write.key for write in writes}) < len(writes):
        raise ValueError("A transaction writes each row once.")
    for write in writes:
        checked_key(write.key)
        checked_values(write.values)
    return writes


class MemoryTransactions:
    """A partition in memory: an implementation, not a mock; the contract tests hold it to what Azure does."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._etags = 0
        self._lock = threading.Lock()

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        with self._lock:
            for write in checked(writes):
                if refused := self._refusal(write):
                    return refused
            return [self._do(write) for write in writes]

    def query(self, first: str, end: str) -> list[Row]:
        with self._lock:
            return AtOnce(row for key, row in sorted(self._rows.items()) if first <= key < end)

    def _refusal(self, write: Write) -> Refused | None:
        row = self._rows.get(write.key)
        if write.act is Act.INSERT:
            return None if row is None else Refused("EntityAlreadyExists")
        if row is None:
            return Refused("ResourceNotFound")
        if write.etag is not None and write.etag != row.etag:
            return Refused("UpdateConditionNotSatisfied")
        return None

    def _do(self, write: Write) -> str:
        if write.act is Act.DELETE:
            del self._rows[write.key]
            return ""
        before = self._rows.get(write.key)
        values = {**(before.values if before else {}), **write.values}
        self._etags += 1
        self._rows[write.key] = Row(write.key, f'"{self._etags}"', MappingProxyType(values))
        return self._rows[write.key].etag


class AzureTransactions:
    """A partition of an Azure table."""

    def __init__(self, table: Any, calls: Any, partition: str, *, timeout_s: float | None = None) -> None:
        self._table = table
        waits = {"connection_timeout": timeout_s, "read_timeout": timeout_s}
        self._timeouts: dict[str, Any] = {} if timeout_s is None else waits
        self._calls = calls
        self._partition = checked_key(partition)

    def transact(self, writes: Sequence[Write]) -> list[str] | Refused:
        operations = [self._operation(write) for write in checked(writes)]
        doing = f"Writing {len(writes)} rows of {self._partition}"
        answer = self._calls.make(
            lambda: self._table.submit_transaction(operations, **self._timeouts), doing, write=True
        )
        if isinstance(answer, Missing):
            return Refused("ResourceNotFound")
        if isinstance(answer, Refused):
            return answer
        if not isinstance(answer, list):
            raise StorageUnavailable(f"{doing}: unexpected answer {answer}.")
        return [str(each.get("etag") or "") for each in answer]

    def query(self, first: str, end: str) -> list[Row]:
        from samza_azure.storage.entities import row

        doing = f"Reading the rows of {self._partition}"
        found = self._calls.make(
            lambda: [
                [row(one) for one in page]
                for page in self._table.query_entities(
                    # The end first: an emulator that looks at each row has most of them behind it with that.
                    "PartitionKey eq @partition and RowKey lt @end and RowKey ge @first",
                    parameters={"partition": self._partition, "first": checked_key(first), "end": checked_key(end)},
                    **self._timeouts,
                ).by_page()
            ],
            doing,
            write=False,
        )
        if not isinstance(found, list):
            raise StorageUnavailable(f"{doing}: unexpected answer {found}.")
        return AtOnce(found[0]) if len(found) == 1 else [one for page in found for one in page]

    def _operation(self, write: Write) -> tuple[Any, ...]:
        from azure.core import MatchConditions
        from azure.data.tables import UpdateMode

        from samza_azure.storage.entities import entity

        one = entity(self._partition, write.key, write.values)
        condition: dict[str, Any] = {}
        if write.etag is not None:
            condition = {"etag": write.etag, "match_condition": MatchConditions.IfNotModified}
        match write.act:
            case Act.INSERT:
                return "create", one
            case Act.MERGE:
                return "update", one, {"mode": UpdateMode.MERGE, **condition}
            case Act.DELETE:
                return "delete", one, condition

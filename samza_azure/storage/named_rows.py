"""Hint rows, and the rows of named readers: `NamedRows` on Azure, synchronous."""

from collections.abc import Mapping
from typing import Any

from azure.data.tables import TableClient, UpdateMode

from samza_azure.errors import StorageUnavailable
from samza_azure.storage.account_calls import AccountCalls
from samza_azure.storage.entities import entity, row
from samza_azure.storage.interface import Value
from samza_azure.storage.limits import HINTS, hint_key, hint_name


class AzureNamedRows:
    """`NamedRows` of one partition of a table."""

    def __init__(self, table: TableClient, calls: AccountCalls, *, timeout_s: float, partition: str = HINTS) -> None:
        self._table = table
        self._partition = partition
        self._calls = calls
        self._timeouts: dict[str, Any] = {"connection_timeout": timeout_s, "read_timeout": timeout_s}

    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        hint = entity(self._partition, hint_key(name), values)
        self._calls.make(
            lambda: self._table.upsert_entity(hint, mode=UpdateMode.REPLACE, **self._timeouts),
            f"Writing the row {self._partition}/{name}",
            write=True,
        )

    def poll(self) -> Mapping[str, Mapping[str, Value]]:
        answer = self._calls.make(
            lambda: list(self._table.query_entities(f"PartitionKey eq '{self._partition}'", **self._timeouts)),
            f"Reading the {self._partition}",
            write=False,
        )
        if not isinstance(answer, list):
            raise StorageUnavailable(f"Reading the {self._partition}: {answer}.")
        return {hint_name(found.key): found.values for found in map(row, answer)}

    def remove(self, name: str) -> None:
        self._calls.make(
            lambda: self._table.delete_entity(self._partition, hint_key(name), **self._timeouts),
            f"Deleting the row {self._partition}/{name}",
            write=True,
        )

    def where(self, name: str) -> str:
        return f"The row {self._partition}/{hint_key(name)} of the table {self._table.table_name}"

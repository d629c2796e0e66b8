"""Hint rows: `Hints` on Azure, synchronous. Late, lost or old hints only cost time, so nothing fences them."""

from collections.abc import Mapping
from typing import Any

from azure.data.tables import TableClient, UpdateMode

from samza_azure.errors import StorageUnavailable
from samza_azure.storage.answers import Calls
from samza_azure.storage.entities import entity, row
from samza_azure.storage.interface import Value
from samza_azure.storage.limits import HINTS, hint_key, hint_name


class AzureHints:
    """`Hints` of one table."""

    def __init__(self, table: TableClient, calls: Calls, *, timeout_s: float) -> None:
        self._table = table
        self._calls = calls
        self._timeouts: dict[str, Any] = {"connection_timeout": timeout_s, "read_timeout": timeout_s}

    def publish(self, name: str, values: Mapping[str, Value]) -> None:
        hint = entity(HINTS, hint_key(name), values)
        self._calls.make(
            lambda: self._table.upsert_entity(hint, mode=UpdateMode.REPLACE, **self._timeouts),
            f"Publishing the hint of {name}",
            write=True,
        )

    def poll(self) -> Mapping[str, Mapping[str, Value]]:
        answer = self._calls.make(
            lambda: list(self._table.query_entities(f"PartitionKey eq '{HINTS}'", **self._timeouts)),
            "Polling the hints",
            write=False,
        )
        if not isinstance(answer, list):
            raise StorageUnavailable(f"Polling the hints: {answer}.")
        return {hint_name(found.key): found.values for found in map(row, answer)}

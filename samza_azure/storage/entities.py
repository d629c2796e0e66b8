"""Converts rows to entities of the table service, and back. All integers are Edm.Int64."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from azure.data.tables import EdmType, EntityProperty, TableEntity

from samza_azure.storage.interface import Row, Value
from samza_azure.storage.limits import checked_key, checked_values

_KEYS = ("PartitionKey", "RowKey", "Timestamp")


def entity(partition: str, key: str, values: Mapping[str, Value]) -> dict[str, Any]:
    """The entity that stands for a row."""
    columns = {name: _typed(value) for name, value in checked_values(values).items()}
    return {"PartitionKey": checked_key(partition), "RowKey": checked_key(key), **columns}


def row(found: TableEntity, read_at: datetime | None = None) -> Row:
    """The row that an entity stands for. `read_at` is the time of the answer, by the clock of the service."""
    values = {name: _plain(value) for name, value in found.items() if name not in _KEYS}
    written_at = found.metadata.get("timestamp")
    age_s = (read_at - written_at).total_seconds() if read_at is not None and written_at is not None else 0.0
    return Row(found["RowKey"], str(found.metadata["etag"]), MappingProxyType(values), max(age_s, 0.0))


def _typed(value: Value) -> Any:
    # A bool is an int to Python, not to the table.
    return EntityProperty(value, EdmType.INT64) if type(value) is int else value


def _plain(value: Any) -> Value:
    plain: Value = value.value if isinstance(value, EntityProperty) else value
    return plain

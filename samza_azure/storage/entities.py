"""Converts rows to entities of the table service, and back. All integers are Edm.Int64."""

from collections.abc import Mapping
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


def row(found: TableEntity) -> Row:
    """The row that an entity stands for."""
    values = {name: _plain(value) for name, value in found.items() if name not in _KEYS}
    return Row(found["RowKey"], str(found.metadata["etag"]), MappingProxyType(values))


def _typed(value: Value) -> Any:
    # A bool is an int to Python, not to the table.
    return EntityProperty(value, EdmType.INT64) if type(value) is int else value


def _plain(value: Any) -> Value:
    plain: Value = value.value if isinstance(value, EntityProperty) else value
    return plain

"""Accounts on which nothing can work are refused at the start, with the reason; those that can are not."""

import pytest

from samza_azure.errors import ConfigError
from samza_azure.storage.memory import MemoryStorage
from simulator.sdk import SdkAccount


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [
        (("BlockBlobStorage", "Premium_LRS"), "tables"),
        (("BlobStorage", "Standard_LRS"), "tables"),
        (("FileStorage", "Premium_LRS"), "blobs and tables"),
        (("StorageV2", "Premium_LRS"), "append blobs and tables"),
    ],
)
def test_a_kind_without_tables_or_append_blobs_is_refused(kind: tuple[str, str], lacks: str) -> None:
    storage = MemoryStorage()
    storage.kind = kind
    with pytest.raises(ConfigError, match=f"is of kind {kind[0]}, {kind[1]}: it has no {lacks}\\. azure\\.storage"):
        SdkAccount(storage).ensure_created()


@pytest.mark.parametrize("kind", [("StorageV2", "Standard_RAGZRS"), ("Storage", "Standard_LRS")])
def test_a_general_purpose_account_is_not(kind: tuple[str, str]) -> None:
    storage = MemoryStorage()
    storage.kind, storage.hierarchical = kind, True
    SdkAccount(storage).ensure_created()


def test_a_container_under_a_legal_hold_is_refused() -> None:
    storage = MemoryStorage()
    storage.legal_hold = True
    with pytest.raises(ConfigError, match=r"The container simulated has a legal hold, and control\.json in it is writ"):
        SdkAccount(storage).ensure_created()

"""The storage account for Spark's own processes, which know neither the job file nor the container.

The settings are passed in the environment, which only this user can read: not on disk, and not in a data source's
options, which Spark shows and logs.
"""

import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from samza_azure.account import Secret, Storage
from samza_azure.storage.limits import OF_TABLES
from samza_azure.storage.patience import Patient

if TYPE_CHECKING:
    from samza_azure.storage.connection import Account
    from samza_azure.storage.interface import Blobs, NamedRows
    from samza_azure.storage.transactions import Transactions
    from samza_azure.tables.store.segments import SegmentStore

VARIABLE = "SAMZA_AZURE_STORAGE"


def to_environment(storage: Storage) -> dict[str, str]:
    """The environment variable from which `account` reads the settings in a child process."""
    fields = {**asdict(storage), "connect": storage.connect and storage.connect.value}
    return {VARIABLE: json.dumps(fields, default=str)}


@cache
def account() -> "Account":
    """The account, one for the life of a process."""
    from samza_azure.storage.connection import Account

    fields = json.loads(os.environ[VARIABLE])
    connect, file = fields.pop("connect"), fields.pop("connect_file")
    storage = Storage(connect and Secret(connect), connect_file=file and Path(file), **fields)
    return Account.from_config(storage)


def blobs() -> "Blobs":
    """The logs, as a running task sees them."""
    logs: Blobs = Patient(account().blobs())
    return logs


def hints() -> "NamedRows":
    """The hints, as a running task sees them."""
    rows: NamedRows = Patient(account().hints())
    return rows


def positions() -> "NamedRows":
    """The positions of the named readers, as a running task sees them."""
    rows: NamedRows = Patient(account().readers())
    return rows


def segments(table: str) -> "SegmentStore":
    """A table of segments, as a running task sees it."""
    from samza_azure.tables.store.segments import SegmentStore

    rows: Transactions = Patient(account().transactions(f"{OF_TABLES}{table}"))
    return SegmentStore(rows, blobs(), table)

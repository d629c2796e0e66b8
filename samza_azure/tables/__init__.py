"""Tables: read a snapshot, append rows, compact while others append.

    from samza_azure import tables

    table = tables.open(config, "daily_delays")
    table.to_arrow(tables.Interval.parse("2013-01-01/2013-02-01"), ["day", "delay"], [("delay", ">", 60)])

Promised: each published row is seen exactly once, by every reader at every moment.

Not promised: an order of rows, or that a snapshot lasts longer than the grace period.
docs/segments.md has both lists.

Start reading at `open`, then `table.TableSnapshot`, `write.Appender` and `compaction.compact`.
"""

from dataclasses import replace
from functools import lru_cache

from samza_azure.account import Storage
from samza_azure.config import Config
from samza_azure.names import TABLE
from samza_azure.segments import Granularity, Interval, LockOwner, LockTask, SequenceNumber
from samza_azure.storage.connection import Account
from samza_azure.storage.limits import OF_TABLES
from samza_azure.tables.compaction import Compacted, Unmerged, compact, plan, rewrite
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tables.table import FilePart, Filter, TableSnapshot
from samza_azure.tables.write import Appender, Shape, create


def store_of(account: Account, name: str) -> SegmentStore:
    """The rows and files of a table, which need not exist.

    Raises:
        ConfigError: the name is not that of a table; the message has the rule.

    Example:
        same = tables.store_of(account, "delays")  # sends nothing
    """
    TABLE.checked(name)
    return SegmentStore(account.transactions(f"{OF_TABLES}{name}"), account.blobs(), name)


def store(config: Config | Storage, name: str) -> SegmentStore:
    """The rows and files of a table, for `create`, `Appender`, `compact`, `plan` and `rewrite`. Each thread needs its
    own.

    Creates the container and the table of the account if they are missing.

    Raises:
        ConfigError: the name is not valid, or the container or the table of the account belongs to another job.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        store = tables.store(Config.load("job.toml"), "delays")
    """
    TABLE.checked(name)
    account = Account.from_config(config.storage if isinstance(config, Config) else config)
    account.ensure_created()
    return store_of(account, name)


def open(config: Config | Storage, name: str, *, at: SequenceNumber | None = None) -> TableSnapshot:  # noqa: A001
    """A snapshot of a table, now or at an earlier sequence number. `config` is a `Config`, or its `storage`.

    It has the table's current columns; those that were added after the sequence number are null.

    Raises:
        ConfigError: there is no such table, the container or the table of the account belongs to another job, or
            garbage has been collected since that sequence number.
        CorruptState: rows of the account that describe the table contradict each other, or are damaged.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        table = tables.open(Config.load("job.toml"), "delays")
        before = tables.open(Config.load("job.toml"), "delays", at=table.sequence)
        assert before.to_arrow() == table.to_arrow()
    """
    storage = config.storage if isinstance(config, Config) else config
    return replace(snapshot_of(_opened(storage, name), at=at), settings=storage)


@lru_cache(maxsize=8)
def _opened(storage: Storage, name: str) -> SegmentStore:
    """The tables that this process has opened last: what is known of them need not be read again."""
    account = Account.from_config(storage)
    store = store_of(account, name)
    account.exists()
    return store


def snapshot_of(store: SegmentStore, *, at: SequenceNumber | None = None) -> TableSnapshot:
    """Like `open`, for a table whose account is already open.

    Raises:
        ConfigError: there is no such table, or garbage has been collected since that sequence number.
        CorruptState: rows of the account that describe the table contradict each other, or are damaged.
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.

    Example:
        print(tables.snapshot_of(store).to_arrow().num_rows)
    """
    snapshot = store.latest() if at is None else store.snapshot(at)
    # A column that a segment has is in a head that was read after it.
    shape = Shape.of(snapshot.head or store.state().head, store.name)
    return TableSnapshot(store.name, shape.time, shape.schema, snapshot, store.blobs)


__all__ = [
    "Appender",
    "Compacted",
    "FilePart",
    "Filter",
    "Granularity",
    "Interval",
    "LockOwner",
    "LockTask",
    "TableSnapshot",
    "Unmerged",
    "compact",
    "create",
    "open",
    "plan",
    "rewrite",
    "snapshot_of",
    "store",
    "store_of",
]

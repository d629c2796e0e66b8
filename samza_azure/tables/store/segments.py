"""A table of segments in one partition of the application's table, its files in the container.

Promised, if transactions of a partition are all or nothing: publishes are all or nothing, whatever their size; of two
that the locks do not allow together one is refused; a publish that is repeated changes nothing; what a snapshot shows
was published, and each publish is in it as a whole or not at all.

*Granting, revoking and allocating* take place one after the other: each transaction holds the head, if nobody wrote it
since. *Publishing* holds rows of its own, so appenders do not wait for each other.
"""

from samza_azure.tables.store import allocation, garbage, locks, publishing, reading
from samza_azure.tables.store.garbage import Collected
from samza_azure.tables.store.publishing import ANNOUNCED_MAX
from samza_azure.tables.store.reading import GarbageCollected
from samza_azure.tables.store.table import SegmentTable, Snapshot, TableLocks


class SegmentStore(SegmentTable):
    """One table and its operations. Each is implemented in the module named beside it."""

    acquire = locks.acquire
    acquire_anew = locks.acquire_anew
    release = locks.release
    release_all = locks.release_all
    end = locks.end

    allocate = allocation.allocate
    allocate_many = allocation.allocate_many
    allocate_outputs = allocation.allocate_outputs
    numbers = allocation.numbers
    numbers_of = allocation.numbers_of

    publish = publishing.publish
    position = publishing.position
    positions = publishing.positions
    move = publishing.move
    unmoved = publishing.unmoved
    forget = publishing.forget

    snapshot = reading.snapshot
    latest = reading.latest
    checkpoint = reading.checkpoint
    pin = reading.pin
    unpin = reading.unpin
    strangers = reading.strangers

    drop = garbage.drop
    restore = garbage.restore
    collect = garbage.collect


__all__ = [
    "ANNOUNCED_MAX",
    "Collected",
    "GarbageCollected",
    "SegmentStore",
    "SegmentTable",
    "Snapshot",
    "TableLocks",
]

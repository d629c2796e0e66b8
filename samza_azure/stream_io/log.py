"""The logs, read and written over a storage account.

Promised: a record that `append` has returned is durable and visible, once. After `close` nothing more is appended.
Not promised: that a record whose `append` raised is *not* there; the next owner finds it in the log or does not.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from samza_azure.errors import CorruptState, PermitExpired, SamzaAzureError, StorageUnavailable
from samza_azure.logs.forget import NeededBlobs, kept, outdated
from samza_azure.logs.operations import CHUNK, Rule
from samza_azure.logs.position import Position
from samza_azure.logs.reading import Part, Scan, Tail, fetch_part, last_plan, opening, scan, tail, unchanged
from samza_azure.logs.record import STOOD_AT, Header, Kind, Record, Slice, Writer
from samza_azure.logs.task_log import (
    LogLimits,
    RecordFields,
    StoredFiles,
    TaskLog,
    append,
    log_record,
    look,
    set_aside,
)
from samza_azure.logs.task_log import take_over as take_over_rule
from samza_azure.storage.interface import DELETE_MAX, Blobs, Value
from samza_azure.stream_io.driver import BetweenTries, back_off, drive
from samza_azure.stream_io.stored import LogFiles, Replica

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Restored:
    """What the log says a task's state is."""

    files: LogFiles  # into the empty checkpoint directory, read as asked for; the caller adds commits/N
    last_batch: int  # -1: none yet
    watermark_us: int | None
    frontier_us: int | None
    drained: bool  # the task is done; the log was not taken over
    records: int  # how many were read, and their bytes
    bytes: int
    meta: Mapping[str, Any]  # as the log's first owner gave it
    batch_bytes: int  # how much input a batch may have
    read: Mapping[str, Position] = field(default_factory=dict)  # up to where it has read each source partition
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict, compare=False)  # a `Places`, for messages


class Places(dict[str, tuple[str, int]]):
    """Of each file of a checkpoint: blob and position of the record that holds it. Of any other: the log's end."""

    def __init__(self, known: Mapping[str, tuple[str, int]], end: tuple[str, int]) -> None:
        super().__init__(known)
        self._end = end

    def __missing__(self, path: str) -> tuple[str, int]:
        return self._end


class LogWriter:
    """The owner's end of a task's log. May be used from any thread; appends one record at a time."""

    def __init__(self, log: TaskLog, blobs: Blobs, may_append: Callable[[], bool], wait: BetweenTries) -> None:
        self._log = log
        self._blobs = blobs
        self._may_append = may_append
        self._wait = wait
        self._lock = threading.Lock()
        self._closing = False
        self._ended: SamzaAzureError | None = None

    @property
    def position(self) -> Position:
        """Where the log ends, as far as we know."""
        return self._log.end

    @property
    def last_batch(self) -> int:
        """The last batch appended; -1: none yet. A replay of it runs its plan and appends nothing."""
        return self._log.last_batch

    @property
    def drained(self) -> bool:
        """Whether the log ends in DRAINED. Nothing can follow."""
        return self._log.drained

    @property
    def held_bytes(self) -> int:
        """How many bytes of files are kept in memory for the next snapshot."""
        with self._lock:
            return sum(len(content) for content in self._log.files.values() if isinstance(content, bytes))

    @property
    def frontier_us(self) -> int | None:
        """The frontier of the last record."""
        return self._log.frontier_us

    def append(self, batch: int, *, kind: Kind = Kind.BATCH, **fields: Unpack[RecordFields]) -> Position:
        """Append one batch, whatever it takes; where the log ends after it.

        Raises Superseded (stop the task), PermitExpired (take over again, as the next attempt) and CorruptState.
        """
        return self._append(kind, batch=batch, idle=False, **fields)

    def set_aside(self, batch: int, slices: Sequence[Slice]) -> list[Slice]:
        """Write rows of the next batch to blobs of their own before its record. Raises what `append` does."""
        return self._drive(lambda: set_aside(self._log, batch, slices))

    def kept(self) -> NeededBlobs:
        """What the next owner will ask for."""
        with self._lock:
            return kept(self._log)

    def forget(self, readers: Sequence[str]) -> int:
        """Delete what neither a restore nor these logs' tasks can still need of this one; how many blobs."""
        names = drive(outdated(self.kept(), readers), self._blobs)
        kept_ones = 0  # by a policy or a legal hold: no reason to end the task
        for start in range(0, len(names), DELETE_MAX):
            kept_ones += len(self._blobs.delete_many(names[start : start + DELETE_MAX]))
        return len(names) - kept_ones

    def append_frontier(
        self, frontier_us: int | None, *, idle: bool = False, stood_at: Mapping[str, Position] | None = None
    ) -> Position:
        """Say that event time has moved, or that the task is idle, and where it stood in the logs that it reads.

        After DRAINED there is nothing left to say.
        """
        meta = None if stood_at is None else {STOOD_AT: stood_at}
        return self._append(Kind.FRONTIER, frontier_us=frontier_us, idle=idle, meta=meta)

    def close(self) -> bool:
        """Append nothing more; an append in flight is not tried again. False: what became of it is not known.

        False is doubt, not danger: the next owner finds it in the log or does not.
        """
        self._closing = True  # before the lock: an append holds that for as long as the storage does not answer
        with self._lock:
            self._ended = self._ended or PermitExpired(f"The writer of {self._log.prefix} is closed.")
            try:
                return drive(look(self._log), self._blobs)
            except SamzaAzureError:
                return False

    def _may_still_append(self) -> bool:
        return not self._closing and self._may_append()

    def _append(
        self, kind: Kind, *, batch: int | None = None, idle: bool | None = None, **fields: Unpack[RecordFields]
    ) -> Position:
        return self._drive(
            lambda: self._record(kind, lambda: log_record(self._log, kind, batch=batch, idle=idle, **fields))
        )

    def _record(self, kind: Kind, make: Callable[[], Record]) -> Rule[Position]:
        if kind is Kind.FRONTIER and self._log.drained:
            return self._log.end
        return (yield from append(self._log, make))

    def _drive(self, rule: Callable[[], Rule[T]]) -> T:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            try:
                return drive(rule(), self._blobs, may_append=self._may_still_append, wait=self._wait)
            except (PermitExpired, StorageUnavailable):
                raise
            except SamzaAzureError as error:
                self._ended = error
                raise


def take_over(
    blobs: Blobs,
    prefix: str,
    *,
    group_id: bytes,
    task: str,
    writer: Writer,
    first: bool,
    may_append: Callable[[], bool],
    meta: Mapping[str, Any],
    limits: LogLimits | None = None,
    wait: BetweenTries = back_off,
    batch_bytes: int = 0,
    tried_bytes: int | None = None,
    replica: Replica | None = None,
) -> tuple[LogWriter, Restored]:
    """Read a task's log and make it ours, or create it if the task is `first`. Of one with a `replica` only the end
    is read, and its copies are used up.

    `batch_bytes` is how much input a batch may have at most, `tried_bytes` what is known to have been too much.

    Raises Superseded if a writer at or above ours has been here, StateLost if the log should exist and does not,
    PermitExpired if the storage did not answer in time: use a new attempt then, never the same one twice.
    A drained log is not taken over, and its writer is closed.
    """
    log = TaskLog(prefix, group_id, task, writer, limits or LogLimits())
    known = replica.log if replica is not None else None
    rule = take_over_rule(log, first=first, meta=meta, batch_bytes=batch_bytes, tried_bytes=tried_bytes, replica=known)
    drive(rule, blobs, may_append=may_append, wait=wait)
    log_writer = LogWriter(log, blobs, may_append, wait)
    if log.drained:
        log_writer.close()
    copies = replica.copies if replica is not None else None
    files = LogFiles(StoredFiles(log), lambda rule: drive(rule, blobs, may_append=may_append, wait=wait), copies)
    restored = Restored(
        files,
        log.last_batch,
        log.watermark_us,
        log.frontier_us,
        log.drained,
        log.records,
        log.length,
        log.meta,
        log.batch_bytes,
        {partition: (blob, position) for partition, (blob, position) in log.read.items()},
        Places(log.places, (log.blob, log.end[1])),
    )
    return log_writer, restored


class LogReader:
    """A consumer's view of a log: records in order, rows of some destinations only (None: all).

    Storage errors are raised at once; the caller decides when to ask again. Without `group_id` the first record read
    says which it is, and all others must agree.
    """

    def __init__(
        self,
        blobs: Blobs,
        prefix: str,
        destinations: frozenset[int] | None = None,
        *,
        group_id: bytes | None = None,
    ) -> None:
        self.prefix = prefix
        self.group_id = group_id
        self._blobs = blobs
        self._destinations = destinations
        self._ahead = CHUNK

    def scan(self, position: Position, max_bytes: int | None = None, until: Position | None = None) -> Scan:
        """What is new since `position`, up to `max_bytes` of our rows but at least one record of them.

        `until` is the end of a record, known from an earlier scan: nothing behind it is looked at.
        """
        return self._scan(position, max_bytes=max_bytes, until=until)

    def scans(self, start: Position, end: Position) -> Iterator[Scan]:
        """All that lies between two positions that a scan has returned, in several scans if it is much."""
        while start < end:
            found = self._scan(start, until=end)
            yield found
            if found.at_end:
                return
            start = found.end

    def parts(self, start: Position, end: Position) -> tuple[Part, ...]:
        """The slices between two positions that a scan has returned."""
        found = self._scan(start, until=end, reads_max=None)
        if found.end != end:
            raise CorruptState(f"The log ends before {end}", blob=self.prefix, position=found.end[1])
        return found.parts

    def fetch(self, parts: Iterable[Part]) -> Iterator[bytes]:
        """The rows of these parts, as Arrow IPC streams. What the scan has downloaded is not downloaded again."""
        for part in parts:
            yield drive(fetch_part(part), self._blobs)

    def rows(self, parts: Iterable[Part]) -> "Iterator[pa.RecordBatch]":
        """The same, unpacked. Raise CorruptState for bytes that are no rows."""
        from samza_azure.stream_io.arrow import rows_of  # heavy, and a processor lists logs without reading rows

        for part in parts:
            yield from rows_of(part, drive(fetch_part(part), self._blobs))

    def opening(self, index: int = 0) -> Header | None:
        """The first record of a blob; None while there is none."""
        return drive(opening(self.prefix, index), self._blobs)

    def tail(self, index: int | None = None) -> Tail | None:
        """The last record, read from the end. `index` is a blob known to exist; without it the log is listed."""
        return drive(tail(self.prefix, index), self._blobs)

    def last_plan(self) -> bytes | None:
        """The content of offsets/N of a task's last batch N; None without one."""
        return drive(last_plan(self.prefix), self._blobs)

    def is_unchanged(self, position: Position) -> bool:
        """Whether the log still ends there, and an idle task's own inputs do where it stood."""
        return drive(unchanged(self.prefix, position), self._blobs)

    def _scan(self, position: Position, **arguments: Any) -> Scan:
        given: dict[str, Any] = {
            "destinations": self._destinations,
            "group_id": self.group_id,
            "ahead": self._ahead,
            **arguments,
        }
        found = drive(scan(self.prefix, position, **given), self._blobs)
        self.group_id, self._ahead = found.group_id, found.ahead
        return found


def hint_values(end: Position, frontier_us: int | None, drained: bool) -> dict[str, Value]:
    """What a hint row says of a log, published under the log's prefix."""
    values: dict[str, Value] = {"blob": end[0], "length": end[1], "drained": drained}
    if frontier_us is not None:
        values["frontier_us"] = frontier_us
    return values


def hint_position(values: Mapping[str, Value]) -> Position | None:
    """Where a log ends, as its hint row says; None for a row that no log's owner wrote."""
    index, length = values.get("blob"), values.get("length")
    return (index, length) if type(index) is int and type(length) is int and min(index, length) >= 0 else None

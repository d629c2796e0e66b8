"""Who may append to a task's log, what a refused append means, and when the log goes on in the next blob.

Promised, if the storage honours conditional appends: the accepted records of a task form one sequence per writer,
writers only rise, batch ids strictly rise, and what was once readable never changes. Nothing here relies on time.

Four rules ensure that:

- *Take-over.* An owner appends EPOCH(writer) at length L only if it has read the log up to L and found no writer at or
  above its own. The position alone would let an older owner that wakes up late take the log back.
- *Settling.* After a refused or lost append we read at its position. Our bytes: it succeeded. Nothing: the same bytes
  go to the same position again, as often as necessary. A higher writer: we are superseded.
- *Deleting.* Only blobs before the newest one are deleted, and none that holds its files (`forget`). An owner that
  slept so long that its blob is gone, or that creates it again, finds a later one and is superseded.
- *Rolling.* After ROLLED nothing is appended to a blob. An owner that finds ROLLED at the end opens the next blob with
  EPOCH and SNAPSHOT in one append. So a blob is empty or complete, and an empty one can be completed from the one
  before. The SNAPSHOT refers to a large file where it was first written: a separate blob, or a record of an older blob.

A `TaskLog` is changed only by records that are known to be in the storage. So a rule may be dropped between any two of
its operations, and the next rule goes on from there; `unsettled` holds bytes that may or may not have been appended. An
append under way is not dropped: the driver gives the rule an answer, UNKNOWN if there is none.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar, Unpack

from samza_azure.errors import CorruptState, StateLost, Superseded
from samza_azure.logs.names import belongs_to, blob_index, blob_name, large_name
from samza_azure.logs.operations import (
    Append,
    Create,
    Pause,
    Put,
    Read,
    Rule,
    Sent,
    Span,
    Window,
    fetch,
    indexes,
    next_blob,
)
from samza_azure.logs.position import Position
from samza_azure.logs.record import (
    BATCH_BYTES,
    CARRIERS,
    INTERMEDIATE,
    NEEDS,
    READ,
    STANDS,
    Buffer,
    Header,
    Kind,
    Record,
    Reference,
    Slice,
    Writer,
    checked,
    decode_files,
    decode_header,
    encode,
)
from samza_azure.logs.restart_files import LARGE_BYTES, is_lasting, needed
from samza_azure.outcomes import Refused

T = TypeVar("T")

#: How many bytes are compared to recognise our record: they include the header's CRC, which covers all the rest.
COMPARED = 64 << 10

#: How many bytes of files that may no longer be needed are kept in memory.
PRUNE_BYTES = 8 << 20

_REPEATED = (NEEDS, READ, STANDS, BATCH_BYTES)
#: What of a log's state is its owner's, and not the log's.
_OF_OWNER = ("prefix", "group_id", "task", "owner", "limits")
#: A batch that fails because of its size is made no smaller than this. One record of input is always read.
BATCH_BYTES_MIN = 64 << 10

#: After this many refusals although nothing was added, none of our appends will ever be accepted.
REFUSALS_MAX = 3


@dataclass(frozen=True, slots=True)
class LogLimits:
    """When a log rolls, and how large a record may be."""

    roll_bytes: int = 64 << 20  # since the last snapshot: what a restore has to read
    roll_records: int = 40_000  # the service takes 50,000 appends in one blob
    record_bytes: int = 4 << 20  # the excess goes to separate blobs
    large_bytes: int = 64 << 20  # the most in one of these: it is held in memory to be sent


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Records that go into one append, and their bytes."""

    data: bytes
    records: tuple[tuple[Header, Mapping[str, bytes]], ...]


@dataclass(slots=True)
class TaskLog:
    """The known state of one task's log: its end, and what a restore needs."""

    prefix: str
    group_id: bytes
    task: str
    owner: Writer  # ourselves; `writer` is the one that wrote last
    limits: LogLimits = field(default_factory=LogLimits)
    end: Position = (0, 0)
    writer: Writer | None = None
    last_batch: int = -1
    frontier_us: int | None = None
    watermark_us: int | None = None
    idle: bool = False
    drained: bool = False
    rolled: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, int] = field(default_factory=dict)  # of other logs; repeated in each record
    read: Mapping[str, Position] = field(default_factory=dict)  # source partitions; repeated in each record
    stands: Mapping[str, Position] = field(default_factory=dict)  # logs of streams from outside; repeated, too
    batch_bytes: int = 0  # of input; repeated in each record
    is_fruitless: bool = False  # whether the last owner has appended nothing but its EPOCH
    files: dict[str, bytes | Reference] = field(default_factory=dict)  # only small ones as bytes
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # of their records: blob and position
    number: int = 0  # of the next record in its blob
    snapshot_end: int = 0  # rolling counts bytes from here
    records: int = 0  # read by a take-over
    length: int = 0  # of these records together
    unsettled: EncodedRecords | None = None
    _prune_at: int = 64
    _unpruned: int = 0

    @property
    def blob(self) -> str:
        """The blob that takes the next record."""
        return blob_name(self.prefix, self.end[0])

    def add(self, header: Header, files: Mapping[str, bytes]) -> None:
        """Apply the record at the end. Raise CorruptState if none of the rules could have written it there."""
        self._check(header)
        place = self.blob, self.end[1]
        self.end = (self.end[0], self.end[1] + header.length)
        self.number += 1
        if header.kind is Kind.EPOCH:
            self.is_fruitless = self.is_fruitless or header.writer != self.writer  # rolling repeats the writer
        elif header.kind in (Kind.BATCH, Kind.DRAINED, Kind.FRONTIER):
            self.is_fruitless = False
        self.writer = header.writer
        self.last_batch = header.batch
        self.idle = header.idle
        self.needs = header.meta.get(NEEDS, {})
        self.read = header.meta.get(READ, {})
        self.stands = header.meta.get(STANDS, {})
        self.batch_bytes = header.meta.get(BATCH_BYTES, 0)
        if header.frontier_us is not None:
            self.frontier_us = header.frontier_us
        if header.watermark_us is not None:
            self.watermark_us = header.watermark_us
        if header.kind is Kind.EPOCH:
            meta = header.meta.items()
            self.meta = self.meta or {name: value for name, value in meta if name not in _REPEATED}
        if header.kind is Kind.SNAPSHOT:
            self.files, self.places, self.snapshot_end = {}, {}, self.end[1]
        self._keep(header, files, place)
        if header.kind is Kind.DRAINED:
            self.drained = True
        if header.kind is Kind.ROLLED:
            self.rolled, self.end, self.number, self.snapshot_end = True, next_blob(self.end), 0, 0
        else:
            self.rolled = False

    def adopt(self, other: "TaskLog") -> None:
        """Go on from what somebody else has read of the same log."""
        for each in fields(self):
            if each.name not in _OF_OWNER:
                setattr(self, each.name, getattr(other, each.name))

    def take_in(self, encoded: EncodedRecords) -> None:
        """Apply records of our own that are now at the end."""
        for header, files in encoded.records:
            self.add(header, files)

    def prune(self) -> None:
        """Forget the files that no restart needs."""
        self.files = needed(self.files, self.last_batch)
        self.places = {path: self.places[path] for path in self.files}
        self._prune_at = 64 + 2 * len(self.files)

    def _keep(self, header: Header, files: Mapping[str, bytes], place: tuple[str, int]) -> None:
        fresh: dict[str, bytes | Reference] = {**files, **header.references}
        self.files |= fresh
        self.places |= dict.fromkeys(fresh, place)
        self._unpruned += header.files_unpacked
        if len(self.files) > self._prune_at or self._unpruned > PRUNE_BYTES:  # rarely, so it is cheap on average
            self.prune()
            self._unpruned = 0

    def _check(self, header: Header) -> None:
        if header.group_id != self.group_id:
            self.refuse(f"This record belongs to another group, {header.group_id.hex()}, not {self.group_id.hex()}")
        if header.task != self.task:
            self.refuse(f"This record is of task {header.task!r}, not {self.task!r}")
        if header.number != self.number:
            self.refuse(f"This is record {header.number} of its blob, where {self.number} belongs")
        if header.kind not in CARRIERS and (header.files_length or header.references):
            self.refuse(f"A record of the kind {header.kind.name} carries no files")
        if foreign := [name for name in header.blobs if not belongs_to(self.prefix, name)]:
            self.refuse(f"The record refers to {min(foreign)}, which is no blob of this log")
        opens, is_epoch = header.number == 0, header.kind is Kind.EPOCH
        if opens and not is_epoch:
            self.refuse("The blob does not begin with an EPOCH")
        if (header.number == 1 and self.end[0] > 0) != (header.kind is Kind.SNAPSHOT):
            self.refuse("A SNAPSHOT is the second record of each blob but the first one, and no other")
        if self.writer is not None:
            # Rolling repeats the writer in the new blob's EPOCH.
            rises = header.writer >= self.writer if opens else header.writer > self.writer
            if is_epoch and not rises:
                self.refuse(f"EPOCH of writer {header.writer} after writer {self.writer}")
            if not is_epoch and header.writer != self.writer:
                self.refuse(f"A record of writer {header.writer} without its EPOCH, after writer {self.writer}")
        if self.drained:
            self.refuse("A record after DRAINED")
        first_known = self.writer is None or header.kind is Kind.SNAPSHOT
        if header.kind in (Kind.BATCH, Kind.DRAINED):
            if header.batch <= self.last_batch:
                self.refuse(f"Batch {header.batch} after batch {self.last_batch}")
        elif not first_known and header.batch != self.last_batch:
            self.refuse(f"The record says batch {header.batch} was the last one; it was {self.last_batch}")

    def refuse(self, message: str) -> None:
        """Raise CorruptState for the record at the end."""
        raise CorruptState(message, blob=self.blob, position=self.end[1])


def follow(log: TaskLog) -> Rule[None]:
    """Read on to the end of a log that others own, as far as there is one. Nothing is written.

    Raise StateLost or CorruptState if the log does not go on where it was read last, as one of which that part was
    deleted meanwhile: then it must be read anew.
    """
    if log.writer is None:
        if not (yield from indexes(log.prefix)):
            return
        log.end = (yield from _newest(log, first=True)), 0
    yield from _catch_up(log)
    log.prune()


def take_over(
    log: TaskLog,
    *,
    first: bool,
    meta: Mapping[str, Any],
    batch_bytes: int = 0,
    tried_bytes: int | None = None,
    replica: TaskLog | None = None,
) -> Rule[None]:
    """Read the log and take it over. A drained log is only read. Of one with a `replica` only the end is read.

    Afterwards `log.batch_bytes` is how much input a batch may have: at most `batch_bytes`; less if `tried_bytes` were
    too much, or if the last owner has appended nothing, perhaps because its input was too much.

    Raise Superseded if a writer at or above ours has been here, StateLost if there is no log and `first` is false. An
    attempt must not be used twice: after a failed take-over, try again with the next attempt.
    """
    log.end = (yield from _newest(log, first)), 0
    if replica is not None and replica.writer is not None and (yield from _goes_on(replica, log.end[0])):
        log.adopt(replica)
    yield from _unless_overtaken(log, _catch_up(log))
    while not log.drained:
        if log.writer is not None and log.writer >= log.owner:
            raise Superseded(f"{log.task} belongs to writer {log.writer}; we are {log.owner}.")
        if (yield from _land(log, (yield from _opening(log, meta, first_bytes(log, batch_bytes, tried_bytes))))):
            return
        yield from _unless_overtaken(log, _catch_up(log))


def append(log: TaskLog, make: Callable[[], Record]) -> Rule[Position]:
    """Append the record that `make` returns, by `log_record`, once nothing is unsettled. Return the new end of the log.

    A batch that turns out to be appended already, because its first answer was lost, is not appended again.
    """
    unsettled = log.unsettled
    if unsettled is not None:
        yield from _append_encoded(log, unsettled)
    record = make()
    if unsettled is not None and _says(unsettled, record):
        return log.end
    if record.kind not in (Kind.BATCH, Kind.DRAINED, Kind.FRONTIER):
        raise ValueError(f"{record.kind.name} is written by the rules alone.")
    if record.kind is not Kind.FRONTIER and record.batch <= log.last_batch:
        raise ValueError(f"Batch {record.batch} of {log.task}: batch {log.last_batch} is appended already.")
    if log.drained:
        raise ValueError(f"{log.task} is drained, nothing can follow.")

    yield from _roll(log)
    record = yield from _set_apart(log, replace(record, number=log.number))
    yield from _append_encoded(log, _encode(log, (yield from _spill(log, record))))
    return log.end


def set_aside(log: TaskLog, batch: int, slices: Sequence[Slice]) -> Rule[list[Slice]]:
    """Put rows of a batch that is not appended yet into separate blobs. Return the slices for its record.

    So a batch may have more rows than memory holds. Readers see them only when the record is appended.
    """
    if log.unsettled is not None:
        yield from _append_encoded(log, log.unsettled)
    yield from _roll(log)  # now: a deletion of old blobs goes by the number of the record's blob
    references = yield from _put(log, f"{batch}-rows", [part.data for part in slices if isinstance(part.data, bytes)])
    return [replace(part, data=next(references) if isinstance(part.data, bytes) else part.data) for part in slices]


def look(log: TaskLog) -> Rule[bool]:
    """Try to settle by reading only. Return whether nothing is unsettled now."""
    if log.unsettled is None:
        return True
    span: Span | None = yield Read(log.blob, log.end[1], min(len(log.unsettled.data), COMPARED))
    if span is not None and span.size == log.end[1]:
        return False
    encoded, log.unsettled = log.unsettled, None
    if span is not None and span.data == encoded.data[: len(span.data)]:
        log.take_in(encoded)
    return True


class StoredFiles:
    """The files that a restart needs, read one by one, so that they are never all in memory at once."""

    def __init__(self, log: TaskLog) -> None:
        log.prune()
        self.files = dict(log.files)
        self._log = log
        self._window = Window("")

    def read(self, path: str) -> Rule[bytes]:
        """The content of a file. Raise Superseded if it is gone because a higher writer has replaced it."""
        content = self.files[path]
        return (
            content if isinstance(content, bytes) else (yield from _unless_overtaken(self._log, self._fetch(content)))
        )

    def piece(self, path: str, start: int, length: int) -> Rule[bytes]:
        """A part of a file that is stored outside of memory, unchecked; `check` does that for all of it."""
        reference = self.files[path]
        assert isinstance(reference, Reference)
        part = replace(reference, offset=reference.offset + start, length=length)
        content = yield from _unless_overtaken(self._log, fetch(part, is_whole=False))
        if len(content) != length:
            raise CorruptState("A file is cut short", blob=part.blob, position=part.offset + len(content))
        return content

    def check(self, path: str, crc: int) -> None:
        """Raise CorruptState if a file that was read in pieces has not this CRC."""
        reference = self.files[path]
        assert isinstance(reference, Reference)
        if crc != reference.crc:
            raise CorruptState("A slice or file is damaged", blob=reference.blob, position=reference.offset)

    def _fetch(self, reference: Reference) -> Rule[bytes]:
        """Read a file through a window: files in records are near each other, so one read gets several."""
        if blob_index(self._log.prefix, reference.blob) is None:
            return (yield from fetch(reference))
        if self._window.name != reference.blob:
            self._window = Window(reference.blob)
        yield from self._window.reach(reference.offset, reference.length)
        view = self._window.view(reference.offset, reference.length)
        return bytes(checked(view, reference.crc, blob=reference.blob, position=reference.offset))


def restored_files(log: TaskLog) -> Rule[dict[str, bytes]]:
    """All files that a restart needs."""
    stored = StoredFiles(log)
    files = {}
    for path in stored.files:
        files[path] = yield from stored.read(path)
    return files


class RecordFields(TypedDict, total=False):
    """What the owner of a log says in a record. What is left out, or None, stays as it was."""

    frontier_us: int | None
    watermark_us: int | None
    slices: Sequence[Slice]
    files: Mapping[str, Buffer | Reference] | None
    meta: Mapping[str, Any] | None
    needs: Mapping[str, int] | None  # from which blob on this batch and all later ones read another log
    read: Mapping[str, Position] | None  # up to where it has read each source partition
    stands: Mapping[str, Position] | None  # and each log with rows from outside
    batch_bytes: int | None  # how much input the next batch may have


def log_record(
    log: TaskLog,
    kind: Kind,
    *,
    number: int = 0,
    batch: int | None = None,
    idle: bool | None = None,
    **fields: Unpack[RecordFields],
) -> Record:
    """A record of the owner. What is not given stays as it was; frontier and watermark never fall."""
    needs, read, stands = fields.get("needs"), fields.get("read"), fields.get("stands")
    batch_bytes = fields.get("batch_bytes")
    repeated = {
        NEEDS: log.needs if needs is None else needs,
        READ: log.read if read is None else read,
        STANDS: log.stands if stands is None else stands,
        BATCH_BYTES: log.batch_bytes if batch_bytes is None else batch_bytes,
    }
    return Record(
        kind,
        log.group_id,
        log.task,
        log.owner,
        log.last_batch if batch is None else batch,
        number,
        _later(fields.get("frontier_us"), log.frontier_us),
        log.idle if idle is None else idle,
        _later(fields.get("watermark_us"), log.watermark_us),
        fields.get("slices", ()),
        fields.get("files") or {},
        {**(fields.get("meta") or {}), **{name: value for name, value in repeated.items() if value}},
    )


class NotSent(StateLost):
    """The blob is gone, and our bytes were never in it."""


def send(log_name: str, data: bytes, position: int) -> Rule[bool]:
    """Append at exactly this position, and repeat as often as necessary. True: our bytes are there. False: others are.

    Once others are there, ours can never follow: the position is taken. Raise StateLost if the blob is gone.
    """
    tries = refusals = 0
    in_doubt = False
    while True:
        answer = yield Append(log_name, data, position)
        if answer is Sent.DONE:
            return True
        in_doubt = in_doubt or answer is Sent.UNKNOWN
        span: Span | None = yield Read(log_name, position, min(len(data), COMPARED))
        if span is None:
            kind = StateLost if in_doubt else NotSent
            raise kind("This blob of a log is gone", blob=log_name, position=position)
        if span.size < position:
            raise CorruptState(f"The log is {span.size} bytes long and was longer", blob=log_name, position=position)
        if span.size > position:
            return span.size >= position + len(data) and span.data == data[: len(span.data)]
        if isinstance(answer, Refused):
            refusals += 1
            if refusals == REFUSALS_MAX:
                raise CorruptState(f"The service takes no append: {answer.code}", blob=log_name, position=position)
        tries += 1
        yield Pause(tries)


def _newest(log: TaskLog, first: bool) -> Rule[int]:
    """The blob to read from: the newest one, or the one before if that was created and not yet opened."""
    known = dict((yield from indexes(log.prefix)))
    if not known:
        if not first:
            raise StateLost(
                f"The log of {log.task} must exist and does not. It is never started afresh",
                blob=blob_name(log.prefix, 0),
            )
        return 0
    newest = max(known)
    if known[newest] > 0 or newest == 0:
        return newest
    if newest - 1 not in known:
        raise StateLost(
            "The log's newest blob is empty and the one before it is gone", blob=blob_name(log.prefix, newest)
        )
    return newest - 1


def _catch_up(log: TaskLog) -> Rule[None]:
    """Read on to the end of the log, through ROLLED into the next blob. Rows are skipped."""
    window = Window(log.blob)
    while True:
        if window.name != log.blob:
            window = Window(log.blob)
        position = log.end[1]
        header = yield from window.header(position)
        if header is None:
            return
        yield from window.reach(position, header.size + header.files_length)
        packed = window.view(position + header.size, header.files_length)
        log.add(header, decode_files(packed, header, blob=log.blob, position=position))
        log.records += 1
        log.length += header.length


def _goes_on(replica: TaskLog, newest: int) -> Rule[bool]:
    """Read on from where a replica ends. Return whether that leads to the end of the log: if not, nothing of it counts.

    `newest` is where a restore begins to read. If a replica ends with a blob, and the later ones were deleted since,
    the log seems to end there.
    """
    replica.records = replica.length = 0
    try:
        yield from _catch_up(replica)
    except (CorruptState, StateLost):
        return False
    return replica.end[0] >= newest


def first_bytes(log: TaskLog, most: int, tried: int | None) -> int:
    """How many bytes of input a batch of the next owner may have.

    It is unknown what killed an owner before its first batch. If the batch did, the same batch would kill the next one.
    So the limit falls to a quarter at once: the batch may have been much smaller than the limit, and few owners should
    die of it.
    """
    least = min(BATCH_BYTES_MIN, most)
    if tried is not None:
        return max(min(tried // 2, most), least)
    known = min(log.batch_bytes or most, most)
    return max(known // 4, least) if log.is_fruitless else known


def _opening(log: TaskLog, meta: Mapping[str, Any], batch_bytes: int | None = None) -> Rule[EncodedRecords]:
    """The first records of a new owner, or of a new blob."""
    if log.end[1] == 0:
        yield Create(log.blob)
        if (log.meta or meta).get(INTERMEDIATE):
            yield from _refuse_if_overtaken(log)
    idle = log.idle and log.writer == log.owner  # a new owner is not idle until it reports so
    common: dict[str, Any] = {"idle": idle, "meta": log.meta or meta, "batch_bytes": batch_bytes}
    epoch = log_record(log, Kind.EPOCH, number=log.number, **common)
    if log.end[0] == 0 or log.end[1] > 0:
        return _encode(log, epoch)
    log.prune()
    snapshot = log_record(log, Kind.SNAPSHOT, number=log.number + 1, files=log.files, **common)
    return _encode(log, epoch, (yield from _spill(log, snapshot)))


def _append_encoded(log: TaskLog, encoded: EncodedRecords) -> Rule[None]:
    """Append the records; only a higher writer may prevent that."""
    if (yield from _land(log, encoded)):
        return
    header = yield from Window(log.blob).header(log.end[1])
    if header is not None and header.group_id == log.group_id and header.writer > log.owner:
        raise Superseded(f"{log.task} belongs to writer {header.writer} now; we are {log.owner}.")
    log.refuse(f"There is something else than what writer {log.owner} appended")


def _unless_overtaken(log: TaskLog, rule: Rule[T]) -> Rule[T]:
    """The result of a rule. A missing blob is StateLost only if it is the log's last one, else Superseded."""
    try:
        return (yield from rule)
    except StateLost:
        yield from _refuse_if_overtaken(log)
        raise


def _refuse_if_overtaken(log: TaskLog) -> Rule[None]:
    """Raise Superseded if the log goes on in a later blob than the one that we believe to be its last."""
    if any(index > log.end[0] for index, _ in (yield from indexes(log.prefix))):
        raise Superseded(f"The log of {log.task} went on after {log.blob} while we, {log.owner}, were away.")


def _land(log: TaskLog, encoded: EncodedRecords) -> Rule[bool]:
    """Append at the end and apply the records. False: another writer was faster."""
    sending = _unless_overtaken(log, send(log.blob, encoded.data, log.end[1]))
    answer: Any = None
    while True:
        try:
            operation = sending.send(answer)
        except StopIteration as stop:
            landed = bool(stop.value)
            break
        answer = yield operation
        if answer is Sent.UNKNOWN:
            log.unsettled = encoded
    log.unsettled = None
    if landed:
        log.take_in(encoded)
    return landed


def _set_apart(log: TaskLog, record: Record) -> Rule[Record]:
    """Move the record's large and lasting files to separate blobs, so that rolling does not write them again."""
    files = dict(record.files)
    for path, content in record.files.items():
        if not isinstance(content, Reference) and len(content) >= LARGE_BYTES and is_lasting(path):
            crc = zlib.crc32(content)
            mark = f"{log.owner}-{record.batch}-{path.rpartition('/')[2]}-{len(content)}-{crc:08x}"
            name = large_name(log.prefix, log.end[0], mark)
            yield Put(name, content)
            files[path] = Reference(name, 0, len(content), crc)
    return replace(record, files=files)


def _spill(log: TaskLog, record: Record) -> Rule[Record]:
    """Move the record's largest parts to separate blobs if it would be too large."""
    moved = _too_large(record, log.limits.record_bytes)
    if not moved:
        return record
    put = yield from _put(log, f"{record.batch}-{record.kind.name.lower()}", list(moved.values()))
    references = dict(zip(moved, put, strict=True))
    slices = tuple(replace(part, data=references.get(index, part.data)) for index, part in enumerate(record.slices))
    files = {path: references.get(path, content) for path, content in record.files.items()}
    return replace(record, slices=slices, files=files)


def _put(log: TaskLog, what: str, contents: Sequence[Buffer]) -> Rule[Iterator[Reference]]:
    """Write contents to immutable blobs, as many into one as `large_bytes` allows. Return their references."""
    references: list[Reference] = []
    groups: list[list[Buffer]] = []
    room = 0
    for content in contents:
        if len(content) > room:
            groups.append([])
            room = log.limits.large_bytes
        groups[-1].append(content)
        room -= len(content)
    for group in groups:
        data = group[0] if len(group) == 1 else b"".join(group)
        # The checksum is part of the name: a batch that is built again may differ, and must not use the first's blob.
        mark = f"{log.owner}-{what}-{len(data)}-{zlib.crc32(data):08x}"
        name = large_name(log.prefix, log.end[0], mark)
        yield Put(name, data)
        offset = 0
        for content in group:
            references.append(Reference(name, offset, len(content), zlib.crc32(content)))
            offset += len(content)
    return iter(references)


def _too_large(record: Record, limit: int) -> dict[str | int, Buffer]:
    """The largest slices (by index) and files (by path), as many as are needed for the rest to fit into the limit."""
    contents: dict[str | int, Buffer | Reference] = dict(enumerate(part.data for part in record.slices))
    contents.update(record.files)
    parts = [(key, content) for key, content in contents.items() if not isinstance(content, Reference)]
    rest = sum(len(content) for _, content in parts)
    moved: dict[str | int, Buffer] = {}
    for key, content in sorted(parts, key=lambda part: -len(part[1])):
        if rest <= limit:
            break
        moved[key] = content
        rest -= len(content)
    return moved


def _roll(log: TaskLog) -> Rule[None]:
    """Continue in the next blob if this one is full."""
    if not log.rolled and _is_full(log):
        yield from _append_encoded(log, _encode(log, log_record(log, Kind.ROLLED, number=log.number)))
    if log.rolled:
        yield from _append_encoded(log, (yield from _opening(log, log.meta)))


def _is_full(log: TaskLog) -> bool:
    return log.end[1] - log.snapshot_end >= log.limits.roll_bytes or log.number >= log.limits.roll_records


def _encode(log: TaskLog, *records: Record) -> EncodedRecords:
    """Encode records for one append at the log's end. Only their small files stay in memory."""
    encoded, taken, position = [], [], log.end[1]
    for record in records:
        data = encode(record)
        header = decode_header(data, blob=log.blob, position=position)
        small = {path: bytes(content) for path, content in record.files.items() if path not in header.references}  # type: ignore[arg-type]
        encoded.append(data)
        taken.append((header, small))
        position += len(data)
    return EncodedRecords(b"".join(encoded), tuple(taken))


def _says(encoded: EncodedRecords, record: Record) -> bool:
    """Whether the records hold this very batch."""
    last = encoded.records[-1][0]
    return last.kind is record.kind and last.kind in (Kind.BATCH, Kind.DRAINED) and last.batch == record.batch


def _later(given: int | None, known: int | None) -> int | None:
    if given is None or known is None:
        return known if given is None else given
    return max(given, known)

"""The log of a source stream's partition: any number of producers append, each record in one piece.

Promised: a record that was reported as appended is there once. Not promised: an order between producers, nor that a
producer that crashes and starts again knows what it had written. There is no owner, so there is no EPOCH and no
take-over: a producer that is refused reads what was added, and goes on at the new end.

The producer that appends the first record makes the group id; all others learn it from that record.

Retention deletes old blobs, and a producer may sleep for longer than that takes. One that sleeps as it begins a blob
creates that blob again, out of line; a second sleeper may then find it exactly as long as the blob that it knew. So
what a blob answers counts only if it cannot be one that was created again. Retention deletes a blob only if a later one
that has records was created `SPARED_S` ago. A producer knows a time at which there was no later one, and relies on the
blob for half as long after it; the other half is for clocks that run at different rates. After that it looks for the
end again before it appends. If it sleeps in the middle of an append, it asks afterwards whether the blob is in line
(`is_in_line`): a blob that was created again is younger than a later one. If it is not in line, nobody knows what
became of the record, since a first copy of it may have been in the blob that was deleted: the producer deletes the blob
and ends with StateLost. A producer that has begun a blob always asks, in case its clock stood still.

Not promised: that this holds if a producer's clock stands still for minutes, as in a machine that is paused from
outside, while another one sleeps as it begins the same blob; if a request arrives more than ten minutes late; or if a
stream is deleted and begun again while a producer sleeps.

A producer may have an idempotence key. Each of its records then says how many rows of the key the partition has by now
(`ONCE`), and a producer that goes on with the key reads that from the headers (`resume`). An append takes effect only
at the end that its producer knows, so the producer has read every record before its own: it stops at one that another
producer has written with the same key. So, but for what is said above of sleepers, neither clocks nor leases are needed
against two producers of one key.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from samza_azure.errors import ConfigError, CorruptState, StateLost
from samza_azure.logs.names import blob_index, blob_name
from samza_azure.logs.operations import INDEX, Create, Delete, EnumerateAges, Rule, Window, indexes, next_blob
from samza_azure.logs.position import Position
from samza_azure.logs.reading import opening, tail
from samza_azure.logs.record import (
    KEY,
    ONCE,
    PARTITIONS,
    Header,
    Kind,
    Record,
    Slice,
    Writer,
    decode_header,
    encode,
)
from samza_azure.logs.retention import Listed
from samza_azure.logs.task_log import LogLimits, NotSent, send

#: How rows are partitioned: the columns, and the number of partitions. Without columns a row may be anywhere.
Partitioning: TypeAlias = tuple[tuple[str, ...], int]

#: The writer in each record: producers have no generations.
NOBODY = Writer(0, 0)

#: Retention deletes a blob of a source log only if a later one that has records was created so long ago, by the
#: service's clock.
SPARED_S = 600.0
#: So long a producer relies on what it knows of the end of the log, by its own clock.
TRUSTED_S = SPARED_S / 2
#: By so much a blob may seem to be younger than the next one, since the service's clocks differ.
ORDER_S = 60.0

#: No restore reads a source log, so its blobs may be long.
SOURCE_LIMITS = LogLimits(roll_bytes=256 << 20)


@dataclass(slots=True)
class SharedLog:
    """One producer's knowledge of a log. `fresh_id` becomes the group id if the log has none yet. `now` is a clock that
    runs on while the machine sleeps, in seconds."""

    prefix: str
    producer: str
    fresh_id: bytes
    now: Callable[[], float]
    meta: Mapping[str, Any] = field(default_factory=dict)  # for the first record of each blob
    limits: LogLimits = SOURCE_LIMITS
    group_id: bytes | None = None
    end: Position = (0, 0)
    number: int = 0  # of the next record in its blob
    sequence: int = -1  # of this producer's last record
    is_open: bool = False
    known_s: float = -math.inf  # at this time there was no blob behind that of `end`
    is_checked: bool = False  # the log's first record has the same partitioning as ours
    once: str = ""  # the idempotence key
    row: int = 0  # what the next record says of it

    def add(self, header: Header) -> None:
        """Add the record at the end."""
        if self.group_id is not None and header.group_id != self.group_id:
            raise CorruptState(
                f"This record belongs to another stream, {header.group_id.hex()}, not {self.group_id.hex()}",
                blob=blob_name(self.prefix, self.end[0]),
                position=self.end[1],
            )
        self.group_id = header.group_id
        end = self.end[0], self.end[1] + header.length
        if header.kind is Kind.ROLLED:
            self.end, self.number = next_blob(end), 0
        else:
            self.end, self.number = end, header.number + 1

    @property
    def is_trusted(self) -> bool:
        """Whether what the blob of `end` has answered just now counts: it cannot be one that was created again."""
        return self.now() - self.known_s <= TRUSTED_S


def append_shared(
    log: SharedLog,
    kind: Kind,
    *,
    frontier_us: int | None = None,
    idle: bool = False,
    slices: Sequence[Slice] = (),
) -> Rule[Position]:
    """Append this producer's next record at the present end. Return the end of the log after it.

    Raise StateLost if this producer has slept until retention deleted its blob, and has a key or may have been in the
    middle of an append; ConfigError if another producer has the same key, or if the log was begun with another
    partitioning.
    """
    while True:
        if not log.is_open:
            yield from _open(log)
        if not log.is_checked and log.end > (0, 0):
            yield from _check(log)
        if not log.is_trusted:
            yield from (_catch_up(log) if log.once else _open(log))
        elif log.number >= log.limits.roll_records or log.end[1] >= log.limits.roll_bytes:
            yield from _settled(log, _record(log, Kind.ROLLED, log.sequence, frontier_us, idle))
        elif (yield from _settled(log, _record(log, kind, log.sequence + 1, frontier_us, idle, slices))):
            log.sequence += 1
            return log.end


def resume(log: SharedLog, start: Position) -> Rule[int]:
    """Find the end of the log, and how far it has the rows of our idempotence key, which are all behind `start`.

    Raise StateLost if records that might say so are deleted.
    """
    yield from _open(log)
    if log.end <= start:
        return 0
    end, found, is_whole = log.end, dict[int, int](), True  # by blob, up to which row
    log.end = start
    while True:
        index = log.end[0]
        window = Window(blob_name(log.prefix, index), INDEX)
        try:
            while log.end[0] == index and (header := (yield from window.header(log.end[1]))) is not None:
                key, row = header.meta.get(ONCE, ("", 0))
                found[index] = max(found.get(index, 0), row if key == log.once else 0)
                log.add(header)
        except StateLost:
            pass  # retention has deleted the blob
        if log.end[0] > index:
            continue
        if log.end >= end:
            break
        left = [number for number, _ in (yield from indexes(log.prefix)) if number > index]
        if not left:
            raise lost_track(log)
        # What is missing may have had later rows; and a blob that ends without ROLLED was created again, out of line.
        log.end, found, is_whole = (min(left), 0), {}, False
    if len(found) > 1:  # a late ROLLED may have led through one that was created again
        listed = yield EnumerateAges(f"{log.prefix}/")
        if gone := [index for index in found if not in_line(log.prefix, listed, index)]:
            found, is_whole = {index: row for index, row in found.items() if index > max(gone)}, False
    stored = max(found.values(), default=0)
    if not stored and not is_whole:
        raise StateLost(
            f"It is unknown which rows with the key {log.once!r} are stored, because retention has deleted records "
            "since they were begun. Export the stream to find out, and produce the rest with another key",
            blob=blob_name(log.prefix, start[0]),
            position=start[1],
        )
    return stored


def partitioning_of(meta: Mapping[str, Any]) -> Partitioning:
    """The partitioning in the meta of a log's first record. Without a key the number of partitions is 0."""
    key = tuple(meta.get(KEY, ()))
    return key, int(meta.get(PARTITIONS, 0)) if key else 0


def in_words(partitioning: Partitioning) -> str:
    """A partitioning, for a message."""
    key, partitions = partitioning
    return f"the key {', '.join(key)} over {partitions} partitions" if key else "no key"


def _check(log: SharedLog) -> Rule[None]:
    """Raise ConfigError if the log was begun with another partitioning: readers would look in the wrong partition.

    Called once the log has a first record, which may be that of another, faster producer.
    """
    index, position = log.end
    first = yield from opening(log.prefix, index if position else index - 1)  # each blob begins with it
    ours = partitioning_of(log.meta)
    theirs = partitioning_of(first.meta) if first is not None else ours
    if theirs != ours:
        raise ConfigError(
            f"{log.prefix} was begun with {in_words(theirs)}, and is to be written with {in_words(ours)}: rows of one "
            "key would be in several partitions. Write as it was begun, or write into another stream."
        )
    log.is_checked = True


def is_in_line(prefix: str, index: int) -> Rule[bool]:
    """Whether this blob is there and is part of the log, and not one that was deleted and created again."""
    return in_line(prefix, (yield EnumerateAges(f"{prefix}/")), index)


def in_line(prefix: str, listed: Sequence[Listed], index: int) -> bool:
    """The same, of a listing.

    When a blob is deleted, a later one was created `SPARED_S` ago; and that one or a later one stays as long as the
    blob that is created again, since the oldest blob is deleted first.
    """
    found = {blob_index(prefix, each.name): each for each in listed}
    ours = found.get(index)
    return ours is not None and not any(
        number is not None and number > index and each.size and each.since_s > ours.since_s + ORDER_S
        for number, each in found.items()
    )


def _open(log: SharedLog) -> Rule[None]:
    """Find the end of the log; (0, 0) if there is none."""
    asked_s = log.now()
    last = yield from tail(log.prefix)
    log.group_id, log.end, log.number, log.is_checked = None, (0, 0), 0, False
    if last is not None:
        log.group_id, log.end = last.header.group_id, last.end
        log.number = 0 if last.header.kind is Kind.ROLLED else last.header.number + 1
    log.known_s, log.is_open = asked_s, True


def _settled(log: SharedLog, record: Record) -> Rule[bool]:
    """Append at the end that we know. False: another producer was faster, and we know the new end now.

    Raise StateLost if nobody knows what became of the record.
    """
    (index, position), asked_s = log.end, log.now()
    is_there, failure = False, None
    try:
        is_there = yield from _try(log, record)
    except NotSent as error:  # retention has deleted the blob
        if log.once:  # what was written meanwhile was not read
            raise lost_track(log) from error
        log.is_open = False
        return False
    except (StateLost, CorruptState) as error:
        failure = error
    if (log.is_trusted and position) or (yield from is_in_line(log.prefix, index)):
        if failure is not None:
            raise failure
        if is_there:
            log.known_s = asked_s
        return is_there
    yield Delete(blob_name(log.prefix, index))  # no reader shall begin with it
    if log.once:
        raise lost_track(log) from failure
    if record.kind is Kind.ROLLED:  # which has no rows
        log.is_open = False
        return False
    raise StateLost(
        "This producer slept while it appended, and retention has deleted its blob meanwhile. Nobody knows whether its "
        "last rows were stored and read: produce them again if they are missing in what the readers have written",
        blob=blob_name(log.prefix, index),
    ) from failure


def _try(log: SharedLog, record: Record) -> Rule[bool]:
    name = blob_name(log.prefix, log.end[0])
    data = encode(record)
    if log.end[1] == 0:
        yield Create(name)
    if (yield from send(name, data, log.end[1])):
        log.add(decode_header(data, blob=name, position=log.end[1]))
        return True
    asked_s = log.now()
    has_ended = yield from _read_on(log)
    if log.is_trusted and not has_ended:  # so there was no later one
        log.known_s = asked_s
    return False


def _read_on(log: SharedLog) -> Rule[bool]:
    """Read what others have appended to the blob. Return whether it has ended."""
    index = log.end[0]
    window = Window(blob_name(log.prefix, index))
    while log.end[0] == index and (header := (yield from window.header(log.end[1]))) is not None:
        log.add(header)
        if log.once and header.meta.get(ONCE, [""])[0] == log.once:
            raise ConfigError(
                f"Another producer writes {log.prefix} with the same idempotence key, {log.once!r}. Let it end, or end "
                "it; then run this one again: it skips the rows that are stored."
            )
    return log.end[0] > index


def _catch_up(log: SharedLog) -> Rule[None]:
    """Read on to the end of the log: a producer with a key has to read every record before its own.

    A blob that is in line after it was read was so before.
    """
    first, ended = log.end[0], None
    while True:
        asked_s = log.now()
        try:
            while (yield from _read_on(log)):
                pass
        except CorruptState as error:  # or StateLost: it was deleted, or created again
            if (yield from is_in_line(log.prefix, log.end[0])):
                raise
            raise lost_track(log) from error
        listed = yield EnumerateAges(f"{log.prefix}/")
        newest = max(
            (number for each in listed if (number := blob_index(log.prefix, each.name)) is not None), default=-1
        )
        index, position = log.end
        read = range(first, index + (position > 0))
        if ended == log.end or not all(in_line(log.prefix, listed, number) for number in read):
            raise lost_track(log)
        if newest in (index - 1, index):
            log.known_s = asked_s
            return
        ended = log.end  # there are later ones: unless there is more to read now, it is gone


def lost_track(log: SharedLog) -> StateLost:
    """The error of a producer with an idempotence key that retention has overtaken."""
    return StateLost(
        f"Retention has deleted the blob that this producer of {log.once!r} was to write next. Run it again: it skips "
        "the rows that are stored",
        blob=blob_name(log.prefix, log.end[0]),
        position=log.end[1],
    )


def _record(
    log: SharedLog,
    kind: Kind,
    sequence: int,
    frontier_us: int | None,
    idle: bool,
    slices: Sequence[Slice] = (),
) -> Record:
    meta = dict(log.meta if log.number == 0 else {})
    if log.once and kind is not Kind.ROLLED:  # which comes before the rows
        meta[ONCE] = log.once, log.row
    return Record(
        kind,
        log.group_id or log.fresh_id,
        log.producer,
        NOBODY,
        sequence,
        log.number,
        frontier_us,
        idle,
        None,
        slices,
        {},
        meta,
    )

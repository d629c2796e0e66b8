"""A sink follows logs and publishes their rows as segments of a table, each row once.

Promised: segments and the position in the logs that their rows come from are published in one transaction. So after
any crash the next owner continues exactly where the table ends. The position also names its owner: a later owner first
writes itself there, and from then on the storage service refuses every publish of an earlier one.

Not promised: an order of rows, nor that rows are published before `flush` is called. Rows of more intervals than fit
into one publish are published in several; the position then includes the interval that has been reached.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from samza_azure.config import TableSettings
from samza_azure.errors import CorruptState, StateLost, Superseded
from samza_azure.foreign import parsed
from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.logs.names import stage_of
from samza_azure.logs.position import Position
from samza_azure.messages import ends_from
from samza_azure.segments import Advance, Interval, LockOwner, LockTask, LostRace
from samza_azure.stream_io.intake import Follower, Intake
from samza_azure.stream_io.log import LogReader
from samza_azure.tables.files import later, with_interval
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tables.write import Appender, by_bucket, create, divide, widen

log = logging.getLogger(__name__)

#: Intervals in one publish. With their locks, their segments and the position they fit into one transaction.
INTERVALS_MAX = 45
#: Appends have a higher priority than compactions.
APPEND_PRIORITY = 50

_INCARNATION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """Where a sink is in its logs, as stored in the table: the `position` of its stream.

    With `until` and `before_us`: of the rows from `at` up to `until`, those before this moment are published.
    """

    writer: tuple[int, int]
    at: Mapping[str, Position] = field(default_factory=dict)
    until: Mapping[str, Position] | None = None
    before_us: int | None = None
    drained: bool = False

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def parse(cls, text: object, stream: str = "a stream") -> "SinkPosition":
        """The inverse of `str`. Raise CorruptState for anything else."""
        try:
            value = parsed(str(text))
            (generation, attempt), before_us, until = value["writer"], value["before_us"], value["until"]
            if not all(type(each) is int for each in (generation, attempt, before_us or 0)):
                raise ValueError("whole numbers are expected")
            return cls(
                (generation, attempt),
                ends_from(value["at"]),
                None if until is None else ends_from(until),
                before_us,
                bool(value["drained"]),
            )
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise CorruptState(
                f"The table holds a position that no sink has written: {error!r}", blob=f"position of {stream}"
            ) from error


Parts = list[tuple[Interval, pa.Table]]


@dataclass(slots=True)
class _Flush:
    """Rows that are being published, and the position of the sink once all of them are."""

    parts: Parts
    until: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class _Try:
    """A position that was sent and whose answer may be lost: the number of rows sent with it, and the rows after it."""

    position: SinkPosition
    rows: int = 0
    rest: Parts | None = None  # None: no rows went with it


class Sink(Follower):
    """One task's part of a table, under one writer. For one thread."""

    def __init__(
        self,
        store: SegmentStore,
        table: TableSettings,
        schema: pa.Schema,
        *,
        run: str,
        task: str,
        writer: tuple[int, int],
        readers: Sequence[LogReader],
        widened: Callable[[pa.Table], pa.Table] = lambda rows: rows,
    ) -> None:
        self._store, self._table, self._schema = store, table, schema
        self._intake = Intake(readers, rows=table.rows, size=table.bytes, widened=widened)
        self._task, self._stream, self._writer = task, f"{run}/{task}", writer
        self._appender: Appender | None = None
        self.position = SinkPosition(writer)
        self._flush: _Flush | None = None
        self._tries: dict[str, _Try] = {}  # since `position` was reached, by the position as the table has it
        self._refused = ""  # why the last publish was refused; empty if it was not
        self.published_rows = 0  # under this writer
        self.left_out_rows = 0  # of an interval that has expired, or of none
        self._rate_limit = LogRateLimit()

    # Taking over.

    def claim(self, *, first: bool) -> bool:
        """Make the position ours. Return False if everything was published before, and no more rows will come.

        Raise Superseded if a later owner has it. Raise StateLost if the sink had a position and it is gone: everything
        would be published again.
        """
        create(self._store, self._schema, time=self._table.time)
        widen(self._store, self._schema)
        while True:
            known = self._store.position(self._stream)
            position = SinkPosition(self._writer) if known is None else SinkPosition.parse(known, self._stream)
            if known is None and not first:
                raise StateLost(
                    f"The table {self._table.name} does not know how far {self._stream} is, and it has been there",
                    blob=f"position of {self._stream}",
                )
            if position.drained:
                self._end_earlier_lives()  # the owner that drained it may have died before it released its locks
                return False
            if position.writer > self._writer:
                raise Superseded(f"{self._stream} belongs to writer {position.writer}; we are {self._writer}.")
            self.position = replace(position, writer=self._writer)
            if self._store.move(self._stream, known, str(self.position)):
                break
        self._end_earlier_lives()
        if not divide(self._store, self._table.granularity, self._stream, str(self.position)):
            raise Superseded(f"{self._stream} has a later writer than {self._writer} by now.")
        self._appender = Appender(self._store, self._lock_task)
        self._intake.begin(self.position.at)
        if self.position.until is not None:
            self._read_again(self.position.until)
        return True

    @property
    def _lock_task(self) -> LockTask:
        incarnation = f"{self._writer[0]}.{self._writer[1]}"
        return LockTask(
            f"{self._stream}@{incarnation}", self._task, APPEND_PRIORITY, LockOwner(self._stream, incarnation)
        )

    def _end_earlier_lives(self) -> None:
        """Give back the locks of our predecessors: the earlier writers of this task in this run, and all tasks of this
        stage in earlier runs, which may have had more tasks.

        Other runs are earlier ones while the position is ours: a next run begins when another writer has drained it.
        """
        box, run = self._store.state().box, self._stream.removesuffix(self._task)
        stage = stage_of(self._task)
        owners = {
            (lock.group.partition(group_of(""))[0], box.tasks[name].owner)
            for lock in box.locks.values()
            for name in lock.holders
        }
        for task, owner in sorted(owners):
            found = _INCARNATION.fullmatch(owner.incarnation)
            writer = (int(found[1]), int(found[2])) if found else (-1, -1)
            if owner.processor.startswith(run):
                if task == self._task and (owner.processor != self._stream or writer < self._writer):
                    self._store.end(owner)
            elif task == self._task or stage_of(task) == stage:
                self._store.end(owner, fence=lambda: self._store.unmoved(self._stream, str(self.position)))

    def _read_again(self, until: Mapping[str, Position]) -> None:
        """Read again the rest of what an earlier owner has published in part."""
        self._intake.read_again(until)
        self._begin_flush()
        before = self.position.before_us
        if self._flush is not None and before is not None:
            # A flush may have ended within a bucket, where the table is divided more finely than its granularity.
            rows = [(bucket, later(part, self._table.time, before)) for bucket, part in self._flush.parts]
            self._flush.parts = [(bucket, part) for bucket, part in rows if len(part)]

    @property
    def _flushes(self) -> bool:
        return self._flush is not None

    # Publishing.

    def flush(self, expired_us: int | None = None) -> bool:
        """Publish what was read. Return False if a lock was lost, or others hold the interval; call it again.

        Rows of intervals that have ended by `expired_us`, which retention would drop at its next turn, are counted and
        left out: each interval would need a lock, and retention does not drop an interval while somebody has a lock to
        append to it. Rows that belong to no interval are counted and left out, too: they are in the log for good, so an
        error would come again at every try.

        Raise Superseded if a later owner has taken over. If the storage does not answer, this raises; call it again.
        """
        self._begin_flush(expired_us)
        appender = self._appender
        assert appender is not None
        while (flush := self._flush) is not None:
            placed = appender.place(flush.parts, INTERVALS_MAX)
            if isinstance(placed, LostRace):
                if self._has_arrived(placed.reason):
                    continue
                return False
            now, rest = placed
            position = replace(self.position, at={**self.position.at, **flush.until}, until=None, before_us=None)
            if rest:
                position = replace(self.position, until=dict(flush.until), before_us=rest[0][0].start)
            tried = self._tries[str(position)] = _Try(position, sum(part.rows.num_rows for part in now), rest)
            answer = appender.append_parts(now, Advance(self._stream, str(self.position), str(position)))
            if not isinstance(answer, LostRace):
                self._arrive(tried)
            elif not self._has_arrived(answer.reason):
                return False
        return True

    def pass_over(self) -> bool:
        """Move the position up to what has been read, if no rows are held and one of the logs has reached a later blob.

        This lets the blobs that a sink without rows has read be deleted, and saves the next owner from reading them.
        Return False if the position did not move.
        """
        if self.has_rows or not self._intake.is_in_later_blob(self.position.at):
            return False
        return self._move(replace(self.position, at={**self.position.at, **self._intake.at}))

    def finish(self, expired_us: int | None = None) -> bool:
        """Record that everything is published, and give the locks back. Return False as `flush` does."""
        if not self.flush(expired_us):
            return False
        if not self._move(replace(self.position, drained=True)):
            return False
        self.close()
        return True

    def release_older(self, now: float) -> None:
        """Give back the locks under which nothing was published for a while, by the caller's clock in seconds."""
        if self._appender is not None and self._flush is None:
            self._appender.release_older(now)

    def close(self) -> None:
        """Give the locks back. The next owner reads unpublished rows again."""
        if self._appender is not None:
            self._appender.close()

    def _begin_flush(self, expired_us: int | None = None) -> None:
        if self._flush is not None or (rows := self._intake.take()) is None:
            return
        timed = with_interval(rows, self._table.time)
        if (count := len(rows) - len(timed)) and self._rate_limit.is_due("no interval"):
            log.warning(
                "%s: %d rows are left out of the table: their %r is null or outside the years 1 to 9999, so they "
                "belong to no interval. `late` counts all such rows.", self._stream, count, self._table.time,
            )  # fmt: skip
        every = by_bucket(timed, self._table.time, self._table.granularity)
        parts = [(bucket, part) for bucket, part in every if expired_us is None or bucket.end > expired_us]
        self.left_out_rows += len(rows) - sum(len(part) for _, part in parts)
        self._flush = _Flush(parts, dict(self._intake.at))

    def _move(self, position: SinkPosition) -> bool:
        """Move the position without publishing anything."""
        tried = self._tries[str(position)] = _Try(position)
        if self._store.move(self._stream, str(self.position), str(position)):
            self._arrive(tried)
        else:
            self._has_arrived(f"{self._stream} is elsewhere.")
        return self.position == position

    def _arrive(self, tried: _Try) -> None:
        """Note that the table has this position."""
        self.position = tried.position
        self._tries.clear()
        self._refused = ""
        if tried.rest is None or self._flush is None:
            return
        self.published_rows += tried.rows
        self._flush.parts = tried.rest
        if not tried.rest:
            self._flush = None
            assert self._appender is not None
            self._appender.release_unused()

    def _has_arrived(self, refused: str) -> bool:
        """After a refusal: whether the table has one of our positions that was sent before and whose answer was lost.

        Otherwise a lock was refused, and is asked for again. Raise Superseded if another writer is the owner now. Raise
        StateLost if the position is ours but none that we have sent.
        """
        known = self._store.position(self._stream)
        position = None if known is None else SinkPosition.parse(known, self._stream)
        if position is None or position.writer != self._writer:
            raise Superseded(f"{self._stream} belongs to writer {position and position.writer}; we are {self._writer}.")
        if (tried := self._tries.get(known)) is not None:
            log.info(
                "%s: the answer to a publish was lost; continuing from the position stored in the table.", self._stream
            )
            self._arrive(tried)
            return True
        if position != self.position:
            raise StateLost(
                f"The table {self._table.name} has {self._stream} at {known}, a position that this writer has not sent",
                blob=f"position of {self._stream}",
            )
        if refused != self._refused:
            log.info("%s: not published yet; trying again: %s", self._stream, refused)
            self._refused = refused
        return False


def group_of(task: str) -> str:
    """The prefix of the lock groups of a sink's housekeeping; each life of it has a group of its own."""
    return f"{task}.housekeeping"


def is_drained(position: object) -> bool:
    """Whether a position in a table belongs to a sink that has published everything."""
    try:
        return SinkPosition.parse(position).drained
    except CorruptState:
        return False  # not the position of a sink

"""A stream read from outside: its committed rows in order, with a token to go on from.

Promised: a program that stores its result of a table together with the table's token, and continues from that token,
has each row exactly once, over any number of restarts of either side, and over drains: the next run's rows follow, by
the order of run ids. Rows that were deleted before they were read are an error, `RowsGone`, and never a gap.
Retention does not delete what a reader with a name has not committed.
Not promised: an order between partitions, or between tasks of one run. Rows of a log that it knows are seen after half
a second or so, those of a new run or a new stream after about a second. A log that is added while others go on, as with
a partition's first row, is seen after up to five seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from samza_azure.config import Config
from samza_azure.errors import ConfigError, RowsGone, StateLost, StorageUnavailable
from samza_azure.logs.names import RUNS, run_of, stage_and_number, stream_folder
from samza_azure.logs.reading import Scan
from samza_azure.logs.record import Kind
from samza_azure.names import READER, STREAM
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs, Positions
from samza_azure.storage.listing import log_indexes, log_sizes, stream_of, streams
from samza_azure.storage.log import LogReader
from samza_azure.storage.patience import PatientOnceLetIn
from samza_azure.storage.retention import readers_of, row_of, stand_of
from samza_azure.storage.token import Stand, columns, decode
from samza_azure.storage.token import encode as token_of

#: A table has at most about this many bytes of a log, or one record.
TABLE_BYTES = 8 << 20
#: And, once it is unpacked, not much more than this.
MEMORY_BYTES = 64 << 20
#: How often the reader asks for new rows, and for new logs, which costs more.
POLL_S, LIST_S = 0.5, 5.0
#: How often a reader asks for new logs while none can grow: it waits for the next run, or the first row.
AWAIT_S = 1.0

Start = Literal["earliest", "latest"]


class Reader:
    """Reads a stream from a token, or from one of its ends: `for table in reader: store(table, reader.token)`."""

    def __init__(
        self,
        blobs: Blobs,
        stream: str,
        *,
        start: Start | None = None,
        token: str = "",
        until_now: bool = False,
        table_bytes: int = TABLE_BYTES,
        wait: Callable[[float], None] = time.sleep,
        name: str = "",
        positions: Positions | None = None,
    ) -> None:
        """`until_now`: end when all rows committed so far are read; otherwise the reader waits for more.

        A token takes precedence over the position of the reader of this `name`, and that over `start`, which counts the
        first time; without any of them it begins with the earliest rows. `wait` is called with the seconds to wait
        between two reads. A name needs `positions`, which stores it; remove a reader that is no longer used with
        `forget_reader`.
        """
        self.stream, self.name = STREAM.checked(stream), name
        self._blobs: Blobs = PatientOnceLetIn(blobs)
        self._until_now, self._table_bytes, self._wait = until_now, table_bytes, wait
        self._stand = Stand()
        self._untouched: set[str] = set()  # logs of which nothing was read: they may begin with any blob
        self._streams: dict[str, str] = {}  # task's log -> the stream that it holds
        self._listed_at = -LIST_S
        self._check: Callable[[], None] | None = None  # of the account, before the first listing
        self._positions = checked_positions(name, positions)
        if token:
            self._stand = decode(token, stream)
        elif self._positions and (known := stand_of(self._positions, stream, name)) is not None:
            self._stand = known
        else:
            self._begin(start or "earliest")
        if self._positions is not None:
            self.commit()  # from now on retention keeps what it has not read

    @classmethod
    def from_job(
        cls,
        job: str | Path,
        stream: str,
        *,
        start: Start | None = None,
        token: str = "",
        until_now: bool = False,
        name: str = "",
    ) -> "Reader":
        """A reader of a stream of this job file. With a token alone nothing is sent yet.

        Raise `ConfigError` if the container or the table belongs to another job.
        """
        account = Account.from_config(Config.load(job).storage)
        if name:
            account.exists()
        elif not token:  # what follows needs the account as well
            account.refuse_container()
        positions = account.readers() if name else None
        reader = cls(
            account.blobs(), stream, start=start, token=token, until_now=until_now, name=name, positions=positions
        )
        reader._check = account.refuse_container if token and not name else None
        return reader

    @property
    def token(self) -> str:
        """The end of the tables returned so far, as text of letters, digits, hyphens and underscores."""
        return token_of(self.stream, self._stand)

    def commit(self) -> None:
        """Record that all rows returned so far are stored: retention may delete them, and the next reader of this name
        continues after them. Raise `ConfigError` for a reader without a name."""
        if self._positions is None:
            raise ConfigError(
                f'Only a reader with a name commits: Reader.from_job("job.toml", "{self.stream}", name="nightly").'
            )
        self._positions.publish(row_of(self.stream, self.name), columns(self.token))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield tables with at least one row.

        Wait while the storage does not answer, and for two minutes while it refuses access that it gave before, if that
        may pass.
        """
        while True:
            any_rows = False
            for _, table in self._round(_in_order):
                any_rows = True
                yield table
            if self._until_now and not any_rows:
                self._look()  # raises if blobs were deleted: then this is not the end
                return
            if not any_rows:
                self._wait(POLL_S)

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        """The same, without blocking the event loop."""
        tables = iter(self)
        while (table := await asyncio.to_thread(next, tables, None)) is not None:
            yield table

    def once_through(self, runs: Sequence[str] = ()) -> Iterator[tuple[str, pa.Table]]:
        """Yield all new rows, with the names of their logs. Each log is read once to its end.

        `runs` are run ids in their order; others follow, by name.
        """
        ranks = {run: rank for rank, run in enumerate(runs)}

        def in_order(prefix: str) -> tuple[int, tuple[str, str, int]]:
            order = _in_order(prefix)
            return ranks.get(order[0], len(ranks)), order

        yield from self._round(in_order)

    def _round(self, in_order: Callable[[str], Any]) -> Iterator[tuple[str, pa.Table]]:
        """Yield all new rows, log by log. A run's logs come before those of the next run."""
        try:
            pause = LIST_S if self._stand.at.keys() - self._stand.ended else AWAIT_S
            if time.monotonic() >= self._listed_at + pause or self._until_now:
                self._look()
        except StorageUnavailable:
            if self._until_now:
                raise
            return
        for prefix in sorted(self._stand.at.keys() - self._stand.ended, key=in_order):
            reader = LogReader(self._blobs, prefix)
            while True:
                try:
                    found, batches = _taken(reader, reader.scan(self._stand.at[prefix], self._table_bytes))
                except StorageUnavailable:
                    if self._until_now:
                        raise
                    return
                except StateLost as error:
                    raise self._gone(prefix, "it lacks that blob now") from error
                if found.records:
                    self._untouched.discard(prefix)
                self._stand.at[prefix] = found.end
                if found.drained:
                    self._stand.ended.add(prefix)
                if batches:
                    yield prefix, _table(batches)
                if found.drained or (found.at_end and not self._goes_on(prefix)):
                    break

    def _goes_on(self, prefix: str) -> bool:
        """Whether to go on in a later blob, since the first ones were deleted: a deleted blob looks like an empty one.

        Raise `RowsGone` if rows that were not read are deleted. A reader that waits for more finds out in `_look`.
        """
        index, position = self._stand.at[prefix]
        if position or not self._until_now:
            return False
        left = sorted(log_sizes(self._blobs, prefix))
        if left and left[0] > index and prefix in self._untouched:
            self._stand.at[prefix] = left[0], 0
            return True
        if not left or left[0] > index:
            raise self._gone(prefix, f"the log begins with blob {left[0]} now" if left else "the log is gone")
        return False

    def _look(self) -> None:
        """List the logs, and raise `RowsGone` if rows that were not read are deleted."""
        if self._check is not None:
            self._check()
            self._check = None
        self._listed_at = time.monotonic()
        stand, logs = self._stand, self._logs()
        for prefix in stand.at.keys() - logs.keys():
            if prefix not in stand.ended:
                raise self._gone(prefix, "the log is gone")
            del stand.at[prefix]
            stand.ended.discard(prefix)
        for prefix, indexes in logs.items():
            index, _ = stand.at.setdefault(prefix, (0, 0))
            if index < indexes[0] and prefix in self._untouched:
                stand.at[prefix] = indexes[0], 0
            elif index < indexes[0] and prefix not in stand.ended:
                raise self._gone(prefix, f"the log begins with blob {indexes[0]} now")

    def _gone(self, prefix: str, why: str) -> RowsGone:
        index, position = self._stand.at[prefix]
        return RowsGone(
            f"The rows of {self.stream!r} from blob {index}, position {position} of {prefix} on are deleted: {why}. "
            f"They were past what streams.{self.stream}.retention keeps, or the run was deleted. "
            f"{self._forget_first()}Begin with the earliest rows that are left (earliest) or at the end (latest). "
            "Retention waits for a reader with a name."
        )

    def _forget_first(self) -> str:
        """What a reader with a position has to do before it can begin elsewhere."""
        if not self.name:
            return ""
        return f"Forget the reader first: samza-azure delete JOB --stream {self.stream} --reader {self.name}. "

    def _begin(self, start: Start) -> None:
        for prefix, indexes in self._logs().items():
            if start == "earliest":
                self._stand.at[prefix] = (indexes[0], 0)
                self._untouched.add(prefix)
                continue
            last = LogReader(self._blobs, prefix).tail(indexes[-1])
            self._stand.at[prefix] = last.end if last is not None else (indexes[-1], 0)
            if last is not None and last.header.kind is Kind.DRAINED:
                self._stand.ended.add(prefix)

    def _logs(self) -> dict[str, list[int]]:
        """The stream's logs, and the blobs that each has."""
        if found := log_indexes(self._blobs, stream_folder(self.stream)):
            return found
        return {
            prefix: indexes
            for prefix, indexes in log_indexes(self._blobs, RUNS).items()
            if self._stream(prefix, indexes[0]) == self.stream
        }

    def _stream(self, prefix: str, index: int) -> str:
        if not self._streams.get(prefix):
            self._streams[prefix] = stream_of(self._blobs, prefix, index)
        return self._streams[prefix]

    @property
    def has_logs(self) -> bool:
        """Whether any log holds the stream yet."""
        return bool(self._stand.at)

    def known_streams(self) -> list[str]:
        """The existing streams, for a message."""
        return streams(self._blobs)


def _taken(reader: LogReader, found: Scan) -> tuple[Scan, list[pa.RecordBatch]]:
    """The rows of a scan, and the scan. If they unpack to much, only its first records, and a scan that ends there."""
    batches, size = list[pa.RecordBatch](), 0
    for part, after in zip_longest(found.parts, found.parts[1:]):
        for batch in reader.rows([part]):
            batches.append(batch)
            size += batch.nbytes
        if after is not None and after.position > part.position and size > MEMORY_BYTES:
            return replace(found, end=after.position, drained=False, at_end=False), batches
    return found, batches


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([each]) for each in batches], promote_options="permissive")


def _in_order(prefix: str) -> tuple[str, str, int]:
    """Runs by their id, which begins with the time; stages by name, tasks and partitions by number."""
    log, number = stage_and_number(prefix.replace("/", "-"))
    run = run_of(prefix) if prefix.startswith(RUNS) else ""
    return run, log, number


def checked_positions(name: str, positions: Positions | None) -> Positions | None:
    """The storage of the positions of named readers; None for a reader without a name."""
    if not name:
        return None
    READER.checked(name)
    if positions is None:
        raise ConfigError(f"The reader {name!r} needs positions, since it has a name. Reader.from_job brings them.")
    return positions


def forget_reader(positions: Positions, stream: str, name: str) -> None:
    """Remove a named reader: retention may delete what it has not read. Raise `ConfigError` if there is none."""
    known = readers_of(positions, stream)
    if name not in known:
        raise ConfigError(
            f"The stream {stream!r} has no reader {name!r}. Named readers of it: {', '.join(sorted(known)) or 'none'}."
        )
    positions.remove(row_of(stream, name))

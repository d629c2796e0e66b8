"""A stream read from outside: its committed rows in order, with a token to go on from.

Promised: a program that stores its result of a table together with the table's token, and continues from that token,
has each row exactly once, over any number of restarts of either side, and over drains: the next run's rows follow, by
the order of run ids. Rows that were deleted before they were read are an error, `RowsGone`, and never a gap.
Retention does not delete what a reader with a name has not committed. The rows of a stream that goes to files
(`streams.<id>.files`) are read from the files.
Not promised: the rows of a stream that is read by another stage, or goes to a table only, once they have been taken
over: its log is deleted piece by piece, and with the drain.
Not promised: an order between partitions, or between tasks of one run. Rows of a log that it knows are seen after half
a second or so, those of a new run or a new stream after about a second. A log that is added while others go on, as with
a partition's first row, is seen after up to five seconds.
"""

import asyncio
import difflib
import io
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.config import LOG, Config, Stream, table_of
from samza_azure.errors import ConfigError, CorruptState, RowsGone, StateLost, StorageUnavailable
from samza_azure.logs.names import FILES, RUNS, file_in, run_of_rows, stage_and_number, stream_folder
from samza_azure.logs.reading import Scan
from samza_azure.logs.record import INTERMEDIATE, Kind
from samza_azure.names import READER, STREAM, source_name
from samza_azure.outcomes import Missing
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs, NamedRows
from samza_azure.storage.patience import PatientOnceLetIn
from samza_azure.stream_io.listing import file_indexes, log_indexes, log_sizes, meta_of, streams
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.retention import readers_of, row_of, stand_of
from samza_azure.stream_io.token import Stand, columns, decode
from samza_azure.stream_io.token import encode as token_of

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
    """Reads a stream from a token, or from one of its ends.

    Example:
        reader = Reader.from_job("job.toml", "daily-delays", token=token_of_last_time)
        for rows in reader:
            store(rows, reader.token)  # in one transaction
    """

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
        positions: NamedRows | None = None,
        files: str = "",
        table: str = "",
        passing: bool = True,
    ) -> None:
        """`until_now`: end when all rows committed so far are read; otherwise the reader waits for more.

        A token takes precedence over the position of the reader of this `name`, and that over `start`, which counts the
        first time; without any of them it begins with the earliest rows. `wait` is called with the seconds to wait
        between two reads. A name needs `positions`, which stores it; remove a reader that is no longer used with
        `forget_reader`.

        `files` is the folder, and `table` the table, that the job file sends the stream's rows to. The files are read.
        A table is not: with one and without files, the earliest rows are refused, since the log does not have them;
        with `passing=False`, the logs from which the table takes rows are left out instead.

        Raises:
            ConfigError: the token or the name is not valid, or the rows asked for are in a table only.
        """
        self.stream, self.name = STREAM.checked(stream), name
        self.files, self.table = files, table
        self._passing = passing and not files
        self._blobs: Blobs = PatientOnceLetIn(blobs)
        self._until_now, self._table_bytes, self._wait = until_now, table_bytes, wait
        self._stand = Stand()
        self._untouched: set[str] = set()  # logs of which nothing was read: they may begin with any blob
        self._metas: dict[str, Mapping[str, Any]] = {}  # task's log -> what its first record says of it
        self._numbers: dict[str, list[int]] = {}  # a task's files -> their numbers, at the last look
        self._listed_at = -LIST_S
        self._check: Callable[[], None] | None = None  # of the account, before the first listing
        self._positions = checked_positions(name, positions)
        if token:
            self._stand = decode(token, stream)
        elif self._positions and (known := stand_of(self._positions, stream, name)) is not None:
            self._stand = known
        elif table and self._passing and start != "latest":
            raise ConfigError(
                f"The rows of {stream!r} are in the table {table}; its log only has those that are not there yet. "
                f"{self.elsewhere()} New rows from now on: begin with latest."
            )
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

        Raises:
            ConfigError: the job file has mistakes, its container or table belongs to another job, the token is not one
                of this stream, or the rows asked for are in a table only or come from outside.
            StorageUnavailable, AccessDenied: the account does not answer, or refuses the call.
        """
        config = Config.load(job)
        account = Account.from_config(config.storage)
        if name:
            account.exists()
        elif not token:  # what follows needs the account as well
            account.refuse_container()
        reader = cls.of(config, account, stream, start=start, token=token, until_now=until_now, name=name)
        reader._check = account.refuse_container if token and not name else None  # noqa: SLF001 - it is of this class
        return reader

    @classmethod
    def of(cls, config: Config, account: Account, stream: str, *, name: str = "", **options: Any) -> "Reader":
        """Like `from_job`, for a loaded job file and an account; `options` are the constructor's.

        Raises:
            ConfigError: the rows come from outside, and the constructor's.

        Example:
            from samza_azure.storage.connection import Account

            reader = Reader.of(config, Account.from_config(config.storage), "daily-delays", until_now=True)
        """
        settings = config.streams.get(stream, Stream())
        if settings.system != LOG:
            raise ConfigError(
                f"The rows of the stream {stream!r} are outside, in the system {settings.system!r}. If they come from "
                f"there, read {source_name(stream)!r} instead: it has them from when they were read there until they "
                "are processed."
            )
        table = table_of(stream, settings)
        return cls(
            account.blobs(),
            stream,
            name=name,
            positions=account.readers() if name else None,
            files=settings.files or "",
            table=table.name if table else "",
            **options,
        )

    @property
    def token(self) -> str:
        """The end of the tables returned so far, as text of letters, digits, hyphens and underscores."""
        return token_of(self.stream, self._stand)

    def commit(self) -> None:
        """Record that all rows returned so far are stored: retention may delete them, and the next reader of this name
        continues after them.

        Raises:
            ConfigError: the reader has no name.

        Example:
            for rows in (reader := Reader.from_job("job.toml", "daily-delays", name="nightly", until_now=True)):
                store(rows)
                reader.commit()
        """
        if self._positions is None:
            raise ConfigError(
                f'Only a reader with a name commits: Reader.from_job("job.toml", "{self.stream}", name="nightly").'
            )
        self._positions.publish(row_of(self.stream, self.name), columns(self.token))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield tables with at least one row.

        Wait while the storage does not answer, and for two minutes while it refuses access that it gave before, if that
        may pass.

        Raises:
            RowsGone: the next rows were deleted before they were read.
            AccessDenied: the account refuses access for longer than that, or for a reason that does not pass.
            CorruptState: a blob is damaged.
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
        """The same, without blocking the event loop.

        Raises:
            RowsGone, AccessDenied, CorruptState: as `for`.

        Example:
            async for rows in reader:
                await store(rows, reader.token)
        """
        tables = iter(self)
        while (table := await asyncio.to_thread(next, tables, None)) is not None:
            yield table

    def once_through(self, runs: Sequence[str] = ()) -> Iterator[tuple[str, pa.Table]]:
        """Yield all new rows, with the names of their logs. Each log is read once to its end.

        `runs` are run ids in their order; others follow, by name.

        Raises:
            RowsGone: the next rows were deleted before they were read.
            CorruptState: a blob is damaged.

        Example:
            for log, rows in reader.once_through(["2026-11-28-a"]):
                print(log, rows.num_rows)
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
            if prefix.startswith(FILES):
                yield from self._new_files(prefix)
                continue
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

    def _new_files(self, prefix: str) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of a task's files that were there at the last look."""
        for number in self._numbers.get(prefix, []):
            expected, _ = self._stand.at[prefix]
            if number < expected:
                continue
            name = file_in(prefix, number)
            try:
                found = self._blobs.read(name, 0)
            except StorageUnavailable:
                if self._until_now:
                    raise
                return
            if isinstance(found, Missing) or (number > expected and prefix not in self._untouched):
                raise self._gone(prefix, f"there is no {file_in(prefix, expected)}")
            try:
                rows = pq.read_table(io.BytesIO(found.data))
            except (pa.ArrowException, OSError) as error:
                raise CorruptState(f"The file is damaged: {error}", blob=name) from error
            self._untouched.discard(prefix)
            self._stand.at[prefix] = number + 1, 0
            if rows.num_rows:
                yield prefix, rows

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
            if prefix.startswith(FILES):
                continue  # others may delete files that they have; a gap is seen when a later one comes
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
        if prefix.startswith(FILES):
            return RowsGone(
                f"Files of {self.stream!r} were deleted before they were read: {why}. Another program has deleted "
                f"them. {self._forget_first()}Begin with the earliest rows that are left (earliest) or at the end "
                "(latest)."
            )
        if self.table:
            return RowsGone(
                f"Rows of {self.stream!r} were deleted from its log before they were read, since they are in the "
                f"table {self.table}. {self.elsewhere()} {self._forget_first()}To go on with what comes: latest."
            )
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
            if start == "latest" and prefix.startswith(FILES):
                self._stand.at[prefix] = indexes[-1] + 1, 0
                continue
            if start == "earliest":
                self._stand.at[prefix] = (indexes[0], 0)
                self._untouched.add(prefix)
                continue
            last = LogReader(self._blobs, prefix).tail(indexes[-1])
            self._stand.at[prefix] = last.end if last is not None else (indexes[-1], 0)
            if last is not None and last.header.kind is Kind.DRAINED:
                self._stand.ended.add(prefix)

    def _logs(self) -> dict[str, list[int]]:
        """The stream's logs, and the blobs that each has; of a stream that goes to files, these."""
        if found := log_indexes(self._blobs, stream_folder(self.stream)):
            return found
        self._numbers = file_indexes(self._blobs, self.files) if self.files else {}
        return self._numbers | {
            prefix: indexes
            for prefix, indexes in log_indexes(self._blobs, RUNS).items()
            if self._is_ours(self._meta(prefix, indexes[0]))
        }

    def _is_ours(self, meta: Mapping[str, Any]) -> bool:
        """Whether a log has rows of the stream that are not read elsewhere."""
        return meta.get("stream") == self.stream and (self._passing or not meta.get(INTERMEDIATE))

    def _meta(self, prefix: str, index: int) -> Mapping[str, Any]:
        if not self._metas.get(prefix):
            self._metas[prefix] = meta_of(self._blobs, prefix, index)
        return self._metas[prefix]

    @property
    def has_logs(self) -> bool:
        """Whether any log, or file, holds the stream yet.

        Example:
            if not reader.has_logs:
                print(reader.absent())
        """
        return bool(self._stand.at)

    @property
    def is_passing(self) -> bool:
        """Whether the rows are in a log between stages, which is deleted as they are read.

        Example:
            if reader.is_passing:
                print(f"{reader.stream} is read by another stage: its rows are deleted one after the other")
        """
        return any(self._metas.get(prefix, {}).get(INTERMEDIATE) for prefix in self._stand.at)

    def absent(self) -> str:
        """What is said if no log holds the stream.

        Example:
            if not reader.has_logs:
                print(reader.absent())
        """
        if self.files or self.table:
            return f"No log holds the stream {self.stream!r}. {self.elsewhere()}"
        known = streams(self._blobs)
        if near := difflib.get_close_matches(self.stream, known, n=1):
            return f"No log holds the stream {self.stream!r}. The nearest is {near[0]!r}. All: {', '.join(known)}."
        return (
            f"No log holds the stream {self.stream!r}. Known streams: {', '.join(known) or 'none'}. The rows of a "
            f'stream between stages are deleted once they are read; streams.{self.stream}.files = "{self.stream}" '
            "keeps them."
        )

    def elsewhere(self) -> str:
        """Where the rows are that the log does not have, and how to get them.

        Example:
            if reader.table:
                print(reader.elsewhere())
        """
        if self.files:
            return f"Its rows come as files into {FILES}{self.files}/, each within streams.{self.stream}.files.flush."
        return (
            f"All rows that are in the table: samza-azure export JOB {self.stream} --to FILE, or in Python "
            f'samza_azure.tables.open(config, "{self.table}"). With streams.{self.stream}.files = "{self.stream}" they '
            "also come as files, which follow and Reader read from the first row on."
        )


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
    return run_of_rows(prefix), log, number


def checked_positions(name: str, positions: NamedRows | None) -> NamedRows | None:
    """The storage of the positions of named readers; None for a reader without a name."""
    if not name:
        return None
    READER.checked(name)
    if positions is None:
        raise ConfigError(f"The reader {name!r} needs positions, since it has a name. Reader.from_job brings them.")
    return positions


def forget_reader(positions: NamedRows, stream: str, name: str) -> None:
    """Remove a named reader: retention may delete what it has not read. Raise `ConfigError` if there is none."""
    known = readers_of(positions, stream)
    if name not in known:
        raise ConfigError(
            f"The stream {stream!r} has no reader {name!r}. Named readers of it: {', '.join(sorted(known)) or 'none'}."
        )
    positions.remove(row_of(stream, name))

"""Writing rows to a source stream, for `samza-azure produce` and programs of your own.

Promised: rows of one partition keep their order, and each row that `flush` or `close` has returned for is stored once.
Each flush writes the frontier, the event time reached, to *every* partition, so that a partition without rows does not
hold readers back; `close` reports this producer as idle. Not promised: that a writer that crashed knows which rows of
its last flush are stored, unless it has an idempotence key: with `once`, a writer that is given the same rows in the
same order again skips those that are stored, and `close` says that these are all rows of the key. An input without an
end goes on with `resume`, which says how many rows are stored: only those behind them are given.

Several writers may write one stream. Readers take the latest frontier for all of them, so concurrent writers must be at
about the same event time, or the stream must declare a `frontier_lag` that covers the difference.

A row whose event time is further ahead of this machine's clock than `max_future` is written and counted, but does not
advance the frontier: one 9999-12-31, which often means "never", would make all rows after it late.
"""

import difflib
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from samza_azure.config import LOG, Config, Stream
from samza_azure.errors import ConfigError, StorageUnavailable, TimedOut
from samza_azure.logs.names import source_log, source_partition
from samza_azure.logs.operations import Pause
from samza_azure.logs.partition import partition_of
from samza_azure.logs.reading import tail
from samza_azure.logs.record import KEY, PARTITIONS, Kind
from samza_azure.logs.source_log import SharedLog, append_shared, resume
from samza_azure.machine.clock import boot_time
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs, NamedRows
from samza_azure.storage.patience import PatientOnceLetIn
from samza_azure.stream_io.arrow import event_times, one_slice
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.driver import BetweenTries, answered, back_off, drive
from samza_azure.stream_io.log import hint_values
from samza_azure.stream_io.produced import PRODUCED, Produced, Production
from samza_azure.stream_io.unread import UnreadOfJob
from samza_azure.stream_io.values.fitting import fitted, pieces, refuse_untimed

#: Rows and bytes in memory at which the buffer is flushed; compression makes the records smaller.
FLUSH_ROWS = 10_000
FLUSH_BYTES = 8 << 20
MAX_FUTURE_S = 86_400.0
#: Where readers stand is looked at so often, besides when the rows of this writer alone may be too many.
LOOK_S = 10.0
#: With an idempotence key and without a key of partitions, as many rows go to one partition before the next one's turn:
#: that must not depend on when the writer flushes.
ROWS_IN_TURN = 1_000


def source_of(config: Config, stream: str) -> Stream:
    """A source stream's settings in the job file. Raise `ConfigError` with the known streams if there is none."""
    settings = config.streams.get(stream)
    known = [name for name, each in config.streams.items() if each.schema]
    if settings is None:
        near = difflib.get_close_matches(stream, known, n=1, cutoff=0.6)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"The job file has no stream {stream!r}.{meant} Source streams in it: {', '.join(known) or 'none'}."
        )
    if settings.schema is None:
        raise ConfigError(
            f"The stream {stream!r} has no schema in the job file, so it is not a source stream. Source streams in it: "
            f"{', '.join(known) or 'none'}. If no stage writes this one, add its columns under [streams.{stream}], "
            'for example schema = "id string, ts timestamp".'
        )
    if settings.system != LOG:
        raise ConfigError(
            f"The rows of the stream {stream!r} are outside, in the system {settings.system!r}. Write them "
            f"there; or remove streams.{stream}.system, and write them into the account."
        )
    return settings


class SourceWriter:
    """Buffers rows per partition and appends them, all partitions at once. Not thread-safe.

    With `schema`, rows are converted to it, or refused. So are rows without an event time. `key` is the stream's
    (`streams.<id>.key`): the log's first record holds it, all writers of the stream must have the same, and jobs rely
    on it. While the storage does not answer, and for two minutes while it refuses a writer that it let in before,
    `wait` is called repeatedly with a `Pause`: it waits for `seconds`, and gives up by raising. After an error the
    writer must not be used again: the outcome of the last append is unknown. `clock` is the machine's clock, which
    `max_future` is measured by; `now` runs on while the machine sleeps.

    With `max_backlog_bytes`, `write` takes no rows while the tasks of the job have yet to read so many bytes of the
    stream, as they are in its logs. It waits `backlog_wait_s` at most, by default as long as it takes, then raises
    `TimedOut`; that is no error of the writer. Rows in the buffer are not counted, nor are named readers.

    Raises:
        ConfigError: `max_backlog_bytes` is no number above 0.

    Example:
        with SourceWriter.from_job("job.toml", "orders", once="orders-2026-11-28") as writer:
            writer.write(pa.table({"id": ["a"], "ts": [now], "amount": [amount]}))
    """

    def __init__(
        self,
        blobs: Blobs,
        hints: NamedRows,
        stream: str,
        partitions: int,
        *,
        schema: pa.Schema | None = None,
        key: str | Sequence[str] = (),
        event_time: str | None = None,
        frontier_lag_s: float = 0.0,
        max_future_s: float = MAX_FUTURE_S,
        flush_rows: int = FLUSH_ROWS,
        flush_bytes: int = FLUSH_BYTES,
        wait: BetweenTries = back_off,
        new_id: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
        clock: Callable[[], float] = time.time,
        now: Callable[[], float] = boot_time,
        once: Production | None = None,
        max_backlog_bytes: int | None = None,
        backlog_wait_s: float | None = None,
    ) -> None:
        self._blobs: Blobs = PatientOnceLetIn(blobs)
        self._hints: NamedRows = PatientOnceLetIn(hints)
        self._stream = stream
        self._schema = schema
        self._event_time = event_time
        self._frontier_lag_us = round(frontier_lag_s * 1_000_000)
        self._max_future_us = round(max_future_s * 1_000_000)
        self._clock = clock
        self._now = now
        self._flush_rows = flush_rows
        self._flush_bytes = flush_bytes
        self._wait = wait
        producer = new_id().hex()
        self._key = (key,) if isinstance(key, str) else tuple(key)
        meta = {"stream": stream, PARTITIONS: partitions, **({KEY: self._key} if self._key else {})}
        self._logs = [
            SharedLog(
                source_log(source_partition(stream, number)),
                producer,
                new_id(),
                now,
                {**meta, "partition": number},
                once="" if once is None else once.key,
            )
            for number in range(partitions)
        ]
        self._once = once
        self._produced: Produced | None = None  # what was known of the idempotence key when it was begun
        self._stored = [0] * partitions  # up to which row of the key each partition has its rows
        self._given = 0  # rows of the key that were written so far
        self._is_resumed = False  # the key stays open
        self._buffers: list[list[pa.Table]] = [[] for _ in range(partitions)]
        self._rows = 0
        self._bytes = 0
        self._greatest_us: int | None = None
        self._promised_us: int | None = None
        self._next_partition = 0
        self.rows_of_the_future = 0  # rows beyond `max_future`, which do not advance the frontier
        self.rows_skipped = 0  # rows that were stored before, under the same idempotence key
        if max_backlog_bytes is not None and max_backlog_bytes <= 0:
            raise ConfigError(f"max_backlog_bytes is {max_backlog_bytes}. Give a number of bytes, or leave it out.")
        self._most_unread, self._backlog_wait_s = max_backlog_bytes, backlog_wait_s
        self._unread_of_job = UnreadOfJob(self._blobs, stream, partitions)
        self._unread = 0  # bytes that readers have yet to read: at the last look, and what was appended since
        self._looked_at: float | None = None
        self._is_appending = False
        self._is_writing = False  # also after a write that has failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; but after an error leave what is buffered, and an idempotence key unfinished."""
        if kind is None:
            self.close()

    @classmethod
    def from_job(cls, job: str | Path, stream: str, *, once: str = "", **options: Any) -> "SourceWriter":
        """A writer of a source stream of this job file; `options` are the constructor's that no job file has.

        With `once`, an idempotence key, rows that were stored under the same key before are skipped.

        Creates the container and the table if they are missing.

        Raises:
            ConfigError: the job file has mistakes, the stream is not one of its sources, or the container or the table
                belongs to another job.
            StorageUnavailable, AccessDenied: the account does not answer, or refuses a call.
        """
        config = Config.load(job)
        account = Account.from_config(config.storage)
        account.ensure_created()
        return cls.of(config, account, stream, once=once, **options)

    @classmethod
    def of(
        cls, config: Config, account: Account, stream: str, *, once: str = "", content: str = "", **options: Any
    ) -> "SourceWriter":
        """Like `from_job`, for a loaded job file and an account.

        `content` is a digest of all rows of the key, if it is known: other rows are refused.

        Raises:
            ConfigError: the stream is not a source.

        Example:
            from samza_azure.storage.connection import Account

            writer = SourceWriter.of(config, Account.from_config(config.storage), "orders", flush_rows=1_000)
        """
        settings = source_of(config, stream)
        if once:
            wait = options.get("wait", back_off)
            keys = PatientOnceLetIn(account.transactions(PRODUCED))
            options["once"] = Production(keys, stream, once, content, wait, account.refuse_unbound)
        return cls(
            _WhileBound(account.blobs(), account.refuse_unbound),
            account.hints(),
            stream,
            settings.partitions,
            schema=arrow_schema(settings.schema or ""),
            key=settings.key,
            event_time=settings.event_time,
            frontier_lag_s=settings.frontier_lag_s or 0.0,
            max_future_s=settings.max_future_s,
            **options,
        )

    @property
    def frontier_us(self) -> int | None:
        """The event time, in microseconds, up to which all rows are written in every partition; None: no row had one.

        A flush writes one partition after the other, so its records still carry the frontier of the flush before. So if
        one log has a frontier, no older row is still on its way to another log.

        Example:
            writer.flush()
            if writer.frontier_us is not None:
                print(datetime.fromtimestamp(writer.frontier_us / 1e6, UTC))
        """
        return self._promised_us

    def write(self, rows: pa.Table, key: str | Sequence[str] | None = None) -> None:
        """Buffer rows, and flush when there are enough. Without a key, partitions are used round robin.

        Raises:
            ConfigError: a row does not fit the stream, the key is not the stream's own, or these are other rows than
                the idempotence key began with.
            TimedOut: readers are too far behind, with `max_backlog_bytes`. None of these rows was taken.
            StorageUnavailable: a flush failed; make a new writer.
        """
        given = (key,) if isinstance(key, str) else tuple(key or ())
        if self._key and given not in ((), self._key):
            raise ConfigError(
                f"The stream is partitioned by {', '.join(self._key)}, not by {', '.join(given)}. Leave the key out."
            )
        key = self._key or key
        if self._is_resumed and not self._key and key:
            raise ConfigError("A writer that resumes divides rows by the stream's own key. Leave the key out.")
        self._refuse_after_an_error()
        self._wait_for_readers()
        self._is_writing = True
        self._begin((key,) if isinstance(key, str) else tuple(key or ()))
        ended = None if self._produced is None else self._produced.rows
        if ended is not None and self._given + rows.num_rows > ended:
            raise ConfigError(f"These are more than the {ended} rows that the idempotence key ended with.")
        size = max(1, self._flush_rows)
        for start in range(0, rows.num_rows, size):
            for piece in pieces(rows.slice(start, size), self._flush_bytes):
                self._buffer(piece, key)
                if self._rows >= self._flush_rows or self._bytes >= self._flush_bytes:
                    self.flush()
        self._is_writing = False

    def resume(self) -> int:
        """Go on behind the rows of the idempotence key that are stored, and return their number: the next row that is
        written is the one with this number, counted from 0. The key stays open, also after `close`.

        For inputs without an end. Reads the headers of all records since the key was begun, so begin another key now
        and then.

        Raises:
            ConfigError: the writer has no key or has written a row, or the key has ended.

        Example:
            writer = SourceWriter.from_job("job.toml", "orders", once="orders-2026")
            for rows in input_from(writer.resume()):
                writer.write(rows)
        """
        if self._once is None:
            raise ConfigError("Only a writer with an idempotence key resumes: give once=KEY.")
        if self._given or self._is_writing:
            raise ConfigError("A writer resumes before its first row.")
        self._begin(self._key)
        if self._produced is not None and self._produced.rows is not None:
            raise ConfigError(
                f"The key {self._once.key!r} has ended with {self._produced.rows} rows. Begin another key for what "
                "comes after them."
            )
        self._is_resumed, self._given = True, min(self._stored)
        return self._given

    def flush(self) -> None:
        """Append the buffered rows, and the frontier to every partition. Does nothing without buffered rows.

        Raises:
            StorageUnavailable: an append failed, and its outcome is unknown; make a new writer.

        Example:
            writer.write(rows)
            writer.flush()  # when it returns, the rows are stored
        """
        if self._rows:
            self._append_all(idle=False)

    def _wait_for_readers(self) -> None:
        """Wait until they have few enough bytes to read."""
        if self._most_unread is None:
            return
        until = None if self._backlog_wait_s is None else self._now() + self._backlog_wait_s
        tries = 0
        while self._is_look_due(self._most_unread):
            self._unread = answered(self._unread_of_job.bytes, self._wait)
            self._looked_at = self._now()
            if self._unread < self._most_unread:
                return
            if until is not None and self._now() >= until:
                raise TimedOut(
                    f"The job has yet to read {self._unread} bytes of the stream {self._stream!r}, "
                    f"max_backlog_bytes is {self._most_unread}, and {self._backlog_wait_s:g} s were not enough. None "
                    "of these rows was taken: write them again later, with this writer. `samza-azure status` shows how "
                    "far the job is."
                )
            tries += 1
            self._wait(Pause(tries))

    def _is_look_due(self, most: int) -> bool:
        return self._unread >= most or self._looked_at is None or self._now() >= self._looked_at + LOOK_S

    def _refuse_after_an_error(self) -> None:
        """Raise `ConfigError` if a write with an idempotence key has failed: later rows would take the place of its."""
        if self._once is not None and self._is_writing:
            raise ConfigError(
                f"A write with the key {self._once.key!r} has failed, so the key is not finished. Make a new writer "
                "with this key, and write all rows again from the first one: it skips those that are stored."
            )

    def close(self) -> None:
        """Flush, and report this producer as idle in every partition. Missing partitions are created.

        With an idempotence key, also record that all its rows are stored, unless the writer has resumed.

        Raises:
            ConfigError: a write with the key has failed, so its rows are not all stored.
            StorageUnavailable: an append failed, and its outcome is unknown; make a new writer.

        Example:
            writer = SourceWriter.from_job("job.toml", "orders")
            writer.write(rows)
            writer.close()  # as leaving the context manager does
        """
        self._refuse_after_an_error()
        self._begin(self._key)
        self.flush()
        if self._produced is not None and self._produced.rows is not None:
            return
        self._append_all(idle=True)
        if self._once is not None and not self._is_resumed:
            self._once.finish(self._given)

    def _begin(self, key: tuple[str, ...]) -> None:
        """With an idempotence key, find out which of its rows are stored. `key` is that of the partitions."""
        if self._once is None or self._produced is not None:
            return
        lasts = {log.prefix: drive(tail(log.prefix), self._blobs, wait=self._wait) for log in self._logs}
        ends = {prefix: (0, 0) if last is None else last.end for prefix, last in lasts.items()}
        by = f"the key {', '.join(key)}" if key else "no key"
        self._produced = self._once.begin(f"{by} over {len(self._logs)} partitions", ends)
        for number, log in enumerate(self._logs):
            self._stored[number] = (
                drive(resume(log, self._produced.begun_at[log.prefix]), self._blobs, wait=self._wait)
                if self._produced.rows is None
                else self._produced.rows
            )

    def _buffer(self, rows: pa.Table, key: str | Sequence[str] | None) -> None:
        given, rows = rows, self._fitted(rows)
        parts = self._partitioned(given, rows, key)
        if self._event_time is not None:
            self._follow(event_times(rows, self._event_time))
        fresh = 0
        for number, chosen in parts:
            skipped = min(max(self._stored[number] - self._given, 0), rows.num_rows)
            left = rows if chosen is None else rows.slice(skipped).filter(chosen.slice(skipped))
            if left.num_rows:
                self._buffers[number].append(left)
                self._rows += left.num_rows
                self._bytes += left.nbytes
            fresh += left.num_rows
        self._given += rows.num_rows
        self.rows_skipped += rows.num_rows - fresh

    def _fitted(self, rows: pa.Table) -> pa.Table:
        try:
            if self._schema is not None:
                return fitted(rows, self._schema, self._event_time)
            refuse_untimed(rows, self._event_time)
            return rows
        except ConfigError as error:
            raise ConfigError(f"The rows do not fit the stream {self._stream!r}. {error}") from error

    def _follow(self, times_us: pa.ChunkedArray) -> None:
        """Advance event time to these rows, except those too far in the future."""
        limit_us = round(self._clock() * 1_000_000) + self._max_future_us
        near = times_us.filter(pc.less_equal(times_us, limit_us))
        self.rows_of_the_future += len(times_us) - times_us.null_count - len(near)
        greatest_us = pc.max(near).as_py()
        if greatest_us is not None and (self._greatest_us is None or greatest_us > self._greatest_us):
            self._greatest_us = greatest_us

    def _partitioned(
        self, given: pa.Table, rows: pa.Table, key: str | Sequence[str] | None
    ) -> list[tuple[int, pa.Array | None]]:
        """The partitions, and which rows each gets; None: all of them.

        The key is taken as the stream stores it, so that 007 and 7 of two files go to one partition. It may also be a
        column that the stream does not store.
        """
        if key is None and self._once is not None:
            turns = [(self._given + row) // ROWS_IN_TURN % len(self._logs) for row in range(rows.num_rows)]
            numbers = pa.array(turns, pa.int32())
            return [(number, pc.equal(numbers, number)) for number in pc.unique(numbers).to_pylist()]
        if key is None:
            number = self._next_partition
            self._next_partition = (number + 1) % len(self._logs)
            return [(number, None)]
        columns = (key,) if isinstance(key, str) else tuple(key)
        by = rows if set(columns) <= set(rows.column_names) else given
        numbers = partition_numbers(by, columns, len(self._logs))
        return [(number, pc.equal(numbers, number)) for number in pc.unique(numbers).to_pylist()]

    def _append_all(self, *, idle: bool) -> None:
        if self._is_appending:
            raise StorageUnavailable(
                f"An append of {self._logs[0].producer} failed, and its outcome is unknown. Make a new writer."
            )
        self._is_appending = True
        for log, buffered in zip(self._logs, self._buffers, strict=True):
            log.row = self._given
            if buffered:
                part = one_slice(0, pa.concat_tables(buffered), self._event_time)
                self._unread += part.length
                self._append(log, Kind.BATCH, idle=idle, slices=(part,))
            else:
                self._append(log, Kind.FRONTIER, idle=idle)
            buffered.clear()
        self._rows = self._bytes = 0
        if self._greatest_us is not None:
            self._promised_us = self._greatest_us - self._frontier_lag_us
        self._is_appending = False

    def _append(self, log: SharedLog, kind: Kind, **fields: Any) -> None:
        end = drive(append_shared(log, kind, frontier_us=self.frontier_us, **fields), self._blobs, wait=self._wait)
        with suppress(StorageUnavailable):  # a missing hint only costs time
            self._hints.publish(log.prefix, hint_values(end, self.frontier_us, drained=False))


class _WhileBound:
    """Blobs that are created only while `check` does not raise: a deletion of all may have begun since the start.

    The check comes after the blob, which so is in the deletion's listing unless the check raises; and before the first
    append, so that a blob that is left behind has no rows.
    """

    def __init__(self, blobs: Blobs, check: Callable[[], None]) -> None:
        self._blobs, self._check = blobs, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def create(self, name: str) -> bool:
        is_new = self._blobs.create(name)
        self._check()
        return is_new


def partition_numbers(rows: pa.Table, key: Sequence[str], partitions: int) -> pa.Array:
    """The partition of each row. Each distinct key is hashed once, since files often have few."""
    for column in key:
        if (count := rows.column_names.count(column)) != 1:
            found = "more than one" if count else "no"
            raise ConfigError(f"There is {found} column {column!r}. Columns are {', '.join(rows.column_names)}.")
    try:
        if len(key) > 1:
            keys = [tuple(row[column] for column in key) for row in rows.select(list(key)).to_pylist()]
            return pa.array([_number(each, partitions) for each in keys], pa.int32())
        encoded = rows[key[0]].combine_chunks().dictionary_encode()
        numbers = pa.array([_number((value,), partitions) for value in encoded.dictionary.to_pylist()], pa.int32())
    except OverflowError as error:
        raise ConfigError(
            f"A date in {', '.join(key)} is outside of the years 1 to 9999, so it cannot be a key."
        ) from error
    return pc.fill_null(numbers.take(encoded.indices), 0)


def _number(key: Sequence[Any], partitions: int) -> int:
    try:
        return partition_of(key, partitions)
    except TypeError as error:
        raise ConfigError(str(error)) from error

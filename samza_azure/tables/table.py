"""Read a table through snapshots, each of which shows one sequence number."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.account import Storage
from samza_azure.errors import ConfigError, CorruptState
from samza_azure.segments import ETERNITY, File, Interval, SequenceNumber
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.tables import files
from samza_azure.tables.store.segments import Snapshot

#: (column, operator, value), as pyarrow has them; all of them must hold.
Filter = Sequence[tuple[str, str, Any]]


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, and the interval in which its rows count. `is_whole`: all its rows count.

    Example:
        for part in table.files(tables.Interval.of("2024-01", "2024-02")):
            print(part.file.name, part.interval, part.is_whole)
    """

    file: File
    interval: Interval
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Reading:
    """The rows and columns to read from each file."""

    time: str
    schema: pa.Schema  # of the columns that are wanted or filtered by
    wanted: tuple[str, ...]
    filter: Filter
    skip_damaged: bool

    def tables(self, blobs: Blobs, parts: Iterable[FilePart]) -> Iterator[pa.Table]:
        """The requested rows and columns of files."""
        for part in parts:
            try:
                yield self._rows(blobs, part)
            except CorruptState:
                if not self.skip_damaged:
                    raise

    def _rows(self, blobs: Blobs, part: FilePart) -> pa.Table:
        found = files.read(blobs, part.file, [*self.schema.names, self.time], None)
        if not part.is_whole:
            found = files.within(found, self.time, part.interval)
        found = filled(found, self.schema)
        if self.filter:
            found = found.filter(pq.filters_to_expression(list(self.filter)))
        return found.select(list(self.wanted))


def _read_by_spark(settings: Storage, read: _Reading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the rows of the given files, in a Spark worker. The driver has pickled the list."""
    account = Account.from_config(settings)
    try:
        for batch in batches:
            parts = (pickle.loads(part) for part in batch["part"].to_pylist())  # noqa: S301
            for table in read.tables(account.blobs(), parts):
                yield from table.to_batches()
    finally:
        account.close()


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The content of a table at one sequence number.

    Files are read one by one when rows are requested. They are kept for the grace period of garbage collection; to read
    for longer, pin the snapshot.

    Raises:
        StorageUnavailable, AccessDenied: the account does not answer, or refuses a call; of the methods that read
            files.
        CorruptState: a file is damaged or missing, perhaps because the grace period is over; it is named. Of the
            methods that read files.

    Example:
        table = tables.open(Config.load("job.toml"), "delays")
        late = [("delay", ">", 60)]
        month = tables.Interval.of("2024-01", "2024-02")
        print(table.sequence, len(table.files(month, late)), table.to_arrow(month, ["delay"], late).num_rows)
        for rows in table.each():
            print(rows.num_rows)
    """

    name: str
    time: str
    schema: pa.Schema
    snapshot: Snapshot
    blobs: Blobs
    settings: Storage | None = None  # of the account, for reading in other processes

    @property
    def sequence(self) -> SequenceNumber:
        """This point in the table's history: `open(..., at=sequence)` shows the same again."""
        return self.snapshot.sequence

    def files(self, interval: Interval = ETERNITY, filter: Filter = ()) -> list[FilePart]:  # noqa: A002
        """The files that, by their statistics, may have rows in the interval that satisfy the filter."""
        found = []
        for entry in self.snapshot.timeline.lookup(interval):
            for segment in entry.segments:
                span = entry.interval.cut(segment.interval)
                if segment.file is None or span is None:
                    continue
                if all(self._may_hold(segment.file, *each) for each in filter) and self._may_lie(segment.file, span):
                    found.append(FilePart(segment.file, span, files.lies_in(segment.file, self.time, span)))
        return found

    def to_arrow(
        self,
        interval: Interval = ETERNITY,
        columns: Sequence[str] | None = None,
        filter: Filter = (),  # noqa: A002 - pyarrow's name for it
        *,
        skip_damaged: bool = False,
    ) -> pa.Table:
        """The rows of an interval, in no particular order. Columns that a file does not have are null.

        With `columns=[]` the result has the number of rows and no columns. With `skip_damaged`, files that are damaged
        or missing are left out.

        Raises:
            ConfigError: the table has no column of this name.
        """
        wanted = list(self.schema.names if columns is None else columns)
        # Without any column Arrow loses the number of rows.
        read = self._reading(wanted or [self.time], filter, skip_damaged=skip_damaged)
        tables = read.tables(self.blobs, self.files(interval, filter))
        empty = pa.schema([self.schema.field(name) for name in read.wanted]).empty_table()
        found = pa.concat_tables([empty, *tables])
        return found if wanted else found.select([])

    def each(self) -> Iterator[pa.Table]:
        """The rows, file by file, in the order of their intervals: one file at a time is in memory."""
        return self._reading(list(self.schema.names), (), skip_damaged=False).tables(self.blobs, self.files())

    def to_pandas(
        self,
        interval: Interval = ETERNITY,
        columns: Sequence[str] | None = None,
        filter: Filter = (),  # noqa: A002
        *,
        skip_damaged: bool = False,
    ) -> Any:
        """Like `to_arrow`, as a `pandas.DataFrame`. pandas must be installed.

        Raises:
            ConfigError: the table has no column of this name.

        Example:
            print(table.to_pandas(columns=["delay"]).describe())
        """
        return self.to_arrow(interval, columns, filter, skip_damaged=skip_damaged).to_pandas()

    def spark(
        self,
        session: Any,
        interval: Interval = ETERNITY,
        columns: Sequence[str] | None = None,
        filter: Filter = (),  # noqa: A002
        *,
        skip_damaged: bool = False,
    ) -> Any:
        """Like `to_arrow`, as a DataFrame of a Spark session. Its tasks read the files, each one at a time.

        This holds for a snapshot from `open`. Any other snapshot knows its account only in this process, and is read
        here first. Evaluate the DataFrame while the snapshot's files are kept, as for other reads.

        Raises:
            ConfigError: the table has no column of this name.

        Example:
            table.spark(session, columns=["delay"]).groupBy().max("delay").show()
        """
        wanted = list(self.schema.names if columns is None else columns)
        if not wanted:
            return self.spark(session, interval, [self.time], filter, skip_damaged=skip_damaged).select()
        if self.settings is None:
            return session.createDataFrame(self.to_arrow(interval, wanted, filter, skip_damaged=skip_damaged))
        read = self._reading(wanted, filter, skip_damaged=skip_damaged)
        schema = session.createDataFrame(pa.schema([self.schema.field(name) for name in wanted]).empty_table()).schema
        parts = self.files(interval, filter)
        if not parts:
            return session.createDataFrame([], schema)
        listed = session.createDataFrame(pa.table({"part": [pickle.dumps(part) for part in parts]}))
        return listed.repartition(len(parts)).mapInArrow(partial(_read_by_spark, self.settings, read), schema)

    def _reading(self, wanted: list[str], filter: Filter, *, skip_damaged: bool) -> "_Reading":  # noqa: A002
        used = {*wanted, *(column for column, _, _ in filter)}
        if unknown := sorted(used - set(self.schema.names)):
            raise ConfigError(f"{self.name} has no column {unknown[0]!r}. It has {', '.join(self.schema.names)}.")
        schema = pa.schema([field for field in self.schema if field.name in used])
        return _Reading(self.time, schema, tuple(wanted), tuple(filter), skip_damaged)

    def _may_hold(self, file: File, column: str, operator: str, value: Any) -> bool:
        # A string is not compared with a moment. pyarrow raises for that, but only if a file is read.
        is_text = isinstance(value, str) and not files.is_text(self.schema, column)
        return is_text or files.may_hold(file, column, operator, value)

    def _may_lie(self, file: File, interval: Interval) -> bool:
        times = files.span(file, self.time)
        return times is None or (times.start < interval.end and times.end >= interval.start)


def filled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a schema. Missing columns are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)

"""Reading a table: a snapshot, which shows one sequence number and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError, CorruptState
from samza_azure.segments import ETERNITY, File, Interval
from samza_azure.segments import Sequence as SequenceNumber
from samza_azure.storage.interface import Blobs
from samza_azure.storage.segments import Snapshot
from samza_azure.tables import files

#: (column, operator, value), as pyarrow has them; all of them must hold.
Filter = Sequence[tuple[str, str, Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """A file, and the interval of which its rows count. `is_whole`: all its rows do."""

    file: File
    interval: Interval
    is_whole: bool


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """What a table shows at one sequence number.

    It is read file by file when it is asked for rows. Files stay for the grace that garbage collection is called
    with; who reads for longer pins the snapshot.
    """

    name: str
    time: str
    schema: pa.Schema
    snapshot: Snapshot
    blobs: Blobs

    @property
    def sequence(self) -> SequenceNumber:
        """Where in the table's history this is: `open(..., at=sequence)` shows the same again."""
        return self.snapshot.sequence

    def files(self, interval: Interval = ETERNITY, filter: Filter = ()) -> list[Part]:  # noqa: A002
        """The files with rows of an interval that may satisfy the filter, by the statistics of their columns."""
        found = []
        for entry in self.snapshot.timeline.lookup(interval):
            for segment in entry.segments:
                span = entry.interval.cut(segment.interval)
                if segment.file is None or span is None:
                    continue
                if all(files.may_hold(segment.file, *each) for each in filter) and self._may_lie(segment.file, span):
                    found.append(Part(segment.file, span, files.lies_in(segment.file, self.time, span)))
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

        CorruptState names a file that is damaged or gone; with `skip_damaged` the others are read all the same.
        ConfigError for a column that the table does not have.
        """
        wanted = list(self.schema.names if columns is None else columns)
        used = {*wanted, *(column for column, _, _ in filter)}
        if unknown := sorted(used - set(self.schema.names)):
            raise ConfigError(f"{self.name} has no column {unknown[0]!r}. It has {', '.join(self.schema.names)}.")
        expression = pq.filters_to_expression(list(filter)) if filter else None
        tables = []
        for part in self.files(interval, filter):
            try:
                found = files.read(self.blobs, part.file, [*used, self.time], None)
            except CorruptState:
                if not skip_damaged:
                    raise
                continue
            if not part.is_whole:
                found = files.within(found, self.time, part.interval)
            found = fitted(found, pa.schema([field for field in self.schema if field.name in used]))
            tables.append((found if expression is None else found.filter(expression)).select(wanted))
        empty = pa.schema([self.schema.field(name) for name in wanted]).empty_table()
        return pa.concat_tables([empty, *tables])

    def to_pandas(
        self,
        interval: Interval = ETERNITY,
        columns: Sequence[str] | None = None,
        filter: Filter = (),  # noqa: A002
        *,
        skip_damaged: bool = False,
    ) -> Any:
        """The same as a `pandas.DataFrame`; pandas has to be installed."""
        return self.to_arrow(interval, columns, filter, skip_damaged=skip_damaged).to_pandas()

    def _may_lie(self, file: File, span: Interval) -> bool:
        found = file.statistics.get(self.time, {})
        if "least" not in found:
            return True
        return Interval.of(found["least"], found["most"]).start < span.end and (
            Interval.of(found["least"], found["most"]).end >= span.start
        )


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a schema, null where there are none."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)

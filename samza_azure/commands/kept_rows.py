"""The committed rows of a stream, wherever they are: in its logs, in files, or in a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from samza_azure import tables
from samza_azure.config import Config, Stream, table_of
from samza_azure.errors import ConfigError
from samza_azure.storage.connection import Account
from samza_azure.stream_io.reader import Reader
from samza_azure.tables import TableSnapshot

#: What rows of a table are said to come from, instead of the name of a log.
FROM_TABLE = ""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows that are committed now. Of a stream that is a table and has no files, those of the table follow those
    that earlier runs, in which it was none, have left in logs."""

    reader: Reader
    table: TableSnapshot | None

    def tables(self, runs: Sequence[str] = ()) -> Iterator[tuple[str, pa.Table]]:
        """Yield all rows, with the names of their logs; `runs` are run ids in their order."""
        yield from self.reader.once_through(runs)
        if self.table is not None:
            yield from ((FROM_TABLE, rows) for rows in self.table.each() if rows.num_rows)


def kept_rows(config: Config, account: Account, stream: str, *, table_bytes: int, since: str = "") -> KeptRows:
    """The rows of a stream, or of one with logs or files those since a token. Raise ConfigError if there are none."""
    settings = config.streams.get(stream, Stream())
    is_table = table_of(stream, settings) is not None and settings.files is None
    reader = Reader.of(
        config, account, stream, token=since, until_now=True, table_bytes=table_bytes, passing=not is_table
    )
    found = None
    if is_table:
        if since:
            raise ConfigError(
                f"The rows of {stream!r} are in the table {reader.table}, which has no order, so none are behind a "
                f'token. Leave --since out; or add streams.{stream}.files = "{stream}", whose rows have one.'
            )
        store = tables.store_of(account, reader.table)
        found = tables.snapshot_of(store) if store.exists() else None
    if found is None and not reader.has_logs:
        raise ConfigError(reader.absent())
    return KeptRows(reader, found)

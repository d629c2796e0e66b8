"""The committed rows of a stream into a Parquet file, as `samza-azure export` does it."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.protocol.control import Control
from samza_azure.storage.connection import Account
from samza_azure.storage.export import batches_of


def export(account: Account, control: Control | None, stream: str, to: Path, *, progress: Callable[[int], None]) -> int:
    """Write all rows that are committed now, runs in their order; how many there are. The file appears when whole."""
    if to.is_dir():
        raise ConfigError(f"{to} is a folder. Name the file to write, for example {to / stream}.parquet.")
    if not to.parent.is_dir():
        raise ConfigError(f"There is no folder {to.parent} to write {to.name} into.")
    runs = None if control is None else list(dict.fromkeys([*control.past, *filter(None, [control.run_id])]))
    unfinished = to.with_name(f".{to.name}.{os.getpid()}.unfinished")  # another export may write the same file
    try:
        rows = _written(batches_of(account.blobs(), stream, runs), stream, unfinished, progress)
        unfinished.rename(to)
    except OSError as error:
        raise SamzaAzureError(f"{to} cannot be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return rows


def _written(batches: Iterator[pa.RecordBatch], stream: str, file: Path, progress: Callable[[int], None]) -> int:
    first = next(batches, None)
    if first is None:
        raise ConfigError(f"The stream {stream!r} has no rows yet.")
    rows = 0
    with pq.ParquetWriter(file, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_table(pa.Table.from_batches([batch]).cast(first.schema))
            rows += batch.num_rows
            progress(rows)
    return rows

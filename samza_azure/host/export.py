"""The committed rows of a stream into a Parquet file, as `samza-azure export` does it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError
from samza_azure.protocol.control import Control
from samza_azure.storage.connection import Account
from samza_azure.storage.export import batches_of


def export(account: Account, control: Control | None, stream: str, to: Path, *, progress: Callable[[int], None]) -> int:
    """Write all rows that are committed now, runs in their order; how many there are. The file appears when whole."""
    if not to.parent.is_dir():
        raise ConfigError(f"There is no folder {to.parent} to write {to.name} into.")
    runs = None if control is None else list(dict.fromkeys([*control.past, *filter(None, [control.run_id])]))
    unfinished = to.with_name(f".{to.name}.unfinished")
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for batch in batches_of(account.blobs(), stream, runs):
            if writer is None:
                writer = pq.ParquetWriter(unfinished, batch.schema)
            writer.write_table(pa.Table.from_batches([batch]).cast(writer.schema))
            rows += batch.num_rows
            progress(rows)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ConfigError(f"The stream {stream!r} has no rows yet.")
    unfinished.rename(to)
    return rows

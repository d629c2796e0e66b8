"""`samza-azure export`: the committed rows of a stream in a Parquet file.

An upgrade may have changed the columns. Then the file has the columns of all runs, with null where a row lacks one.
"""

import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import look, reach
from samza_azure.commands.terminal import ProgressLine
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.group.control import Control
from samza_azure.group.drain import is_forgotten
from samza_azure.storage.connection import Account
from samza_azure.storage.export import batches_of, runs_in
from samza_azure.storage.interface import Blobs


def export(account: Account, control: Control | None, stream: str, to: Path, *, progress: Callable[[int], None]) -> int:
    """Write all rows that are committed now, run by run, and return their number. The file appears when complete."""
    if to.is_dir():
        raise ConfigError(f"{to} is a folder. Name the file to write, for example {to / stream}.parquet.")
    if not to.parent.is_dir():
        raise ConfigError(f"There is no folder {to.parent} to write {to.name} into.")
    runs = None if control is None else in_order(account.blobs(), control)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as unfinished:
            parts, rows = _written(batches_of(account.blobs(), stream, runs), Path(unfinished), progress)
            if not parts:
                raise ConfigError(f"The stream {stream!r} has no rows yet.")
            whole = parts[0] if len(parts) == 1 else _together(parts, Path(unfinished) / "whole", stream)
            whole.rename(to)
    except OSError as error:
        raise SamzaAzureError(f"{to} cannot be written: {error}") from error
    return rows


def in_order(blobs: Blobs, control: Control) -> list[str]:
    """The ids of all runs, oldest first: the control blob forgets old runs, so those are found by their logs."""
    known = dict.fromkeys([*control.past, *filter(None, [control.run_id])])
    return [*(run for run in runs_in(blobs) if is_forgotten(control.past, run)), *known]


def _written(
    batches: Iterator[pa.RecordBatch], folder: Path, progress: Callable[[int], None]
) -> tuple[list[Path], int]:
    """Write one file for each change of columns, in the order of the rows; return the files and the number of rows."""
    parts: list[Path] = []
    rows = 0
    for _, alike in groupby(batches, lambda batch: (batch.schema.names, batch.schema.types)):
        first = next(alike)
        parts.append(folder / str(len(parts)))
        with pq.ParquetWriter(parts[-1], first.schema) as writer:
            for batch in chain([first], alike):
                writer.write_table(pa.Table.from_batches([batch]).cast(first.schema))
                rows += batch.num_rows
                progress(rows)
    return parts, rows


def _together(parts: list[Path], whole: Path, stream: str) -> Path:
    """Merge the files into one that has the columns of all."""
    try:
        schema = pa.unify_schemas([pq.read_schema(part) for part in parts], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"The rows of {stream!r} have columns that do not fit into one file: {error}") from error
    with pq.ParquetWriter(whole, schema) as writer:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches():
                rows = [schema.empty_table(), pa.Table.from_batches([batch])]
                writer.write_table(pa.concat_tables(rows, promote_options="permissive"))
    return whole


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the pipeline, or a source.", show_default=False)],
    to: Annotated[Path, typer.Option(help="The Parquet file to write.", show_default=False)],
) -> None:
    """Write the committed rows of a stream to a Parquet file.

    Example: samza-azure export job.toml daily-delays --to daily.parquet
    """
    config = load(job)
    account = reach(config, create=False)
    control, _ = look(config, account)
    rows = export(account, control, stream, to, progress=ProgressLine(f"export {stream}"))
    print(f"{rows} rows to {to}")

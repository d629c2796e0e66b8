"""`samza-azure export`: the committed rows of a stream in a file, a folder of files, or blobs of the account. They
are read from its logs, or from the files or the table that they go to.

Promised: a file appears whole or not at all, and so does a new folder. The token that is returned stands for exactly
the rows that were written and those before them: an export `--since` that token has the rest, each row once.

A folder is divided as Hive does it, by `of_run` or `on_day`, which no column of the stream is likely to be called.

An upgrade may have changed the columns. Then a file has the columns of all its rows, with null where a row lacks one.
"""

import gzip
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import typer

from samza_azure.commands.connect import connect, look
from samza_azure.commands.job import Job, load
from samza_azure.commands.kept_rows import FROM_TABLE, KeptRows, kept_rows
from samza_azure.commands.terminal import ProgressLine, say, tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError, StateLost
from samza_azure.group.control import NAME, Control
from samza_azure.group.drain import is_forgotten
from samza_azure.logs.names import BINDING, FOLDERS, run_of_rows
from samza_azure.logs.operations import Span
from samza_azure.names import BLOB
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.listing import runs_in
from samza_azure.stream_io.values.json_lines import as_lines

#: The bytes of rows that are fetched from a log at a time.
AT_ONCE = 32 << 20
#: The most Parquet files that are open at a time; each has a row group in memory.
OPEN_MAX = 32
#: The formats of files, by their endings. Text formats may have .gz after that.
KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
#: What targets in the account begin with.
AZ = "az://"


class By(StrEnum):
    """How the files of a folder divide the rows."""

    RUN = "run"
    DAY = "day"


@dataclass(slots=True)
class Target:
    """Where the rows go: a file or a folder, on this machine or in a container of the job's account."""

    path: str  # in the container, or on this machine
    container: str = ""  # empty: on this machine
    is_folder: bool = False
    kind: str = "parquet"
    gz: bool = False

    @classmethod
    def of(cls, to: str, by: By | None, config: Config) -> "Target":
        """Raise ConfigError for a target that cannot be written."""
        container, _, path = to.removeprefix(AZ).partition("/") if to.startswith(AZ) else ("", "", to)
        if to.startswith(AZ):
            if not container or not path:
                raise ConfigError(f"{to} names no blob. Write {AZ}CONTAINER/PATH.")
            BLOB.checked(path.rstrip("/"))
            own = container == config.storage.container
            if path == NAME or (own and f"{path}/".startswith(FOLDERS)):
                raise ConfigError(
                    f"{to} is where a job keeps its own data ({', '.join(FOLDERS)}{NAME}). Choose another name, or "
                    "another container."
                )
        elif not path.strip("/"):
            raise ConfigError(f"{to!r} names no file and no folder of its own.")
        is_folder = path.endswith("/") or by is not None or (not container and Path(path).is_dir())
        if is_folder:
            if by is None:
                raise ConfigError(
                    f"{to} is a folder. Add --by run or --by day; or name the file to write, for example "
                    f"{to.rstrip('/')}/rows.parquet."
                )
            return cls(path.rstrip("/"), container, is_folder=True)
        gz = path.lower().endswith(".gz")
        kind = KINDS.get(Path(path[:-3] if gz else path).suffix.lower())
        if kind is None or (gz and kind == "parquet"):
            raise ConfigError(
                f"The ending of {to} says no kind of file. Possible: {', '.join(KINDS)}; .csv.gz, .json.gz."
            )
        return cls(path, container, kind=kind, gz=gz)

    def __str__(self) -> str:
        return (f"{AZ}{self.container}/{self.path}" if self.container else self.path) + "/" * self.is_folder


def export(
    account: Account,
    control: Control | None,
    found: KeptRows,
    target: Target,
    *,
    progress: Callable[[int], None],
    since: str = "",
    by: By | None = None,
    time: str | None = None,
) -> tuple[int, str]:
    """Write all rows that are committed now, run by run, or those since a token; return their number and the new token.

    Without rows nothing is written. `time` is the column whose day decides the folder. The token is empty for a table.
    """
    runs, stream = () if control is None else in_order(account.blobs(), control), found.reader.stream
    _refuse_what_is_there(account, target, since)
    local = Path(target.path)
    beside = None if target.container else local.parent
    try:
        with tempfile.TemporaryDirectory(prefix=f".{local.name}.", dir=beside) as unfinished:
            parts, rows = PartFiles(Path(unfinished)), 0
            for log, table in found.tables(runs):
                _refuse_parts_of_values(target, table.schema)
                for subfolder, some in _divided(log, table, by, time, stream):
                    parts.write(subfolder, some)
                rows += table.num_rows
                progress(rows)
            if not rows and not since:
                raise ConfigError(f"The stream {stream!r} has no rows yet.")
            if rows:
                _deliver(account, target, parts, Path(unfinished), f"{stream}{_mark(since)}.parquet")
    except OSError as error:
        raise SamzaAzureError(f"{target} cannot be written: {error}") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(f"The rows of {stream!r} do not fit into {target}: {error}") from error
    return rows, "" if found.table is not None else found.reader.token


def in_order(blobs: Blobs, control: Control) -> list[str]:
    """The ids of all runs, oldest first. The control blob forgets old runs, so these are found by their logs."""
    known = dict.fromkeys([*control.past, *filter(None, [control.run_id])])
    return [*(run for run in runs_in(blobs) if is_forgotten(control, run)), *known]


def _refuse_what_is_there(account: Account, target: Target, since: str) -> None:
    if not target.container and not Path(target.path).parent.is_dir():
        path = Path(target.path)
        raise ConfigError(f"There is no folder {path.parent} to write {path.name} into.")
    blobs, path = account.container(target.container) if target.container else None, Path(target.path)
    if blobs is not None and f"{target.path}/".startswith(FOLDERS) and isinstance(blobs.read(BINDING, 0, 1), Span):
        raise ConfigError(f"{target} is where the job of that container keeps its own data. Choose another name.")
    if target.is_folder == bool(since):
        return  # files are added to a folder, and a file is replaced as a whole
    if blobs is not None:
        listed = blobs.list(target.path + "/" * target.is_folder)
        found = any(target.is_folder or name == target.path for name, _ in listed)
    else:
        found = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if found and since:
        raise ConfigError(
            f"{target} is there already, and with --since it would have only the new rows. Name another file."
        )
    if found:  # a file of an earlier export, of a day that is not written again, would double its rows
        raise ConfigError(f"{target} is not empty. Name another folder, or add the new rows with --since TOKEN.")


def _refuse_parts_of_values(target: Target, schema: pa.Schema) -> None:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested and target.kind == "csv":
        raise ConfigError(
            f"{target} cannot hold {', '.join(nested)}: such values have parts, as a window has start and end, and CSV "
            "has no way to write them. Write a .jsonl or .parquet file; or have the stage select the parts, for "
            'example F.col("window.start").'
        )


def _mark(since: str) -> str:
    """A mark in the names of an export's files: other exports have other marks, a repetition of it has the same."""
    return f"-{hashlib.blake2b(since.encode(), digest_size=4).hexdigest()}" if since else ""


def _divided(log: str, table: pa.Table, by: By | None, time: str | None, stream: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows by their folder; "" without folders."""
    if by is None:
        yield "", table
        return
    if by is By.RUN:
        if not (run := run_of_rows(log)):
            what = "is a table" if log == FROM_TABLE else "is a source"
            raise ConfigError(f"The stream {stream!r} {what}, whose rows belong to no run. Use --by day.")
        yield f"of_run={run}", table
        return
    if time is None:
        raise ConfigError(
            f"Which column has the day? Add --time COLUMN, or streams.{stream}.event_time in the job file."
        )
    days = _days(table, time)
    for day in pc.unique(days).to_pylist():
        chosen = pc.is_null(days) if day is None else pc.equal(days, day)
        yield f"on_day={day or '__HIVE_DEFAULT_PARTITION__'}", table.filter(chosen)


def _days(table: pa.Table, time: str) -> pa.ChunkedArray:
    """The days, in UTC, of a column of times or dates; of a field of a column: `window.start`."""
    first, *fields = [time] if time in table.column_names else time.split(".")
    if first not in table.column_names:
        raise ConfigError(f"There is no column {time!r} for --by day. Columns: {', '.join(table.column_names)}.")
    try:
        column = pc.struct_field(table[first], fields) if fields else table[first]
        if not pa.types.is_temporal(column.type):
            raise ConfigError(f"The column {time!r} holds {column.type}, which has no day.")
        days = column.cast(pa.date32()).cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"The column {time!r} has no day: {error}") from error
    if any(_is_far(day) for day in pc.unique(days).to_pylist()):
        raise ConfigError(f"The column {time!r} has a date that no folder can be named after. Export without --by day.")
    return days


@dataclass(slots=True)
class PartFiles:
    """The rows so far, in Parquet files: for each subfolder one for each change of columns."""

    folder: Path
    paths: dict[str, list[Path]] = field(default_factory=dict)
    _open: dict[str, pq.ParquetWriter] = field(default_factory=dict)
    _number: int = 0

    def write(self, subfolder: str, rows: pa.Table) -> None:
        """Append rows to those of their subfolder."""
        writer = self._open.get(subfolder)
        if writer is None or (writer.schema.names, writer.schema.types) != (rows.schema.names, rows.schema.types):
            self.close(None if len(self._open) >= OPEN_MAX else subfolder)
            path = self.folder / f"part-{self._number}"
            self._number += 1
            self.paths.setdefault(subfolder, []).append(path)
            writer = self._open[subfolder] = pq.ParquetWriter(path, rows.schema)
        writer.write_table(rows.cast(writer.schema))

    def close(self, subfolder: str | None = None) -> None:
        """Close the file of a subfolder, or all."""
        for each in [*self._open] if subfolder is None else [subfolder] if subfolder in self._open else []:
            self._open.pop(each).close()


def _deliver(account: Account, target: Target, parts: PartFiles, unfinished: Path, name: str) -> None:
    """Write the files of the parts, and make them visible."""
    parts.close()
    whole = unfinished / "whole"
    whole.mkdir()
    made: dict[str, Path] = {}  # below the target
    for subfolder, paths in parts.paths.items():
        leaf = f"{subfolder}/{name}" if target.is_folder else ""
        path = whole / (leaf or "file")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(paths, path, target)
        made[leaf] = path
    if target.container:
        blobs = account.container(target.container)
        for leaf, path in made.items():
            blobs.put_file("/".join(filter(None, [target.path, leaf])), path)
        return
    to = Path(target.path)
    if target.is_folder:
        with suppress(OSError):  # a folder with files is not replaced: it gets more
            whole.rename(to)
            return
    for leaf, path in made.items():
        (to / leaf).parent.mkdir(parents=True, exist_ok=True)
        path.replace(to / leaf)


def _write_whole(parts: list[Path], to: Path, target: Target) -> None:
    """Make one file, of the target's kind, of parts with different columns."""
    schemas = [pq.read_schema(part) for part in parts]  # of one as well: Arrow writes deeper types than it reads
    if target.kind == "parquet" and len(parts) == 1:
        parts[0].rename(to)
        return
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    batches = (_filled(batch, schema) for part in parts for batch in pq.ParquetFile(part).iter_batches())
    if target.kind == "parquet":
        with pq.ParquetWriter(to, schema) as writer:
            for rows in batches:
                writer.write_table(rows)
        return
    with gzip.open(to, "wb") if target.gz else to.open("wb") as plain:
        out = cast(IO[bytes], plain)
        if target.kind == "json":
            for rows in batches:
                out.write(as_lines(rows).encode())
            return
        with pyarrow.csv.CSVWriter(out, schema) as lines:
            for rows in batches:
                _refuse_far_dates(rows)
                lines.write_table(rows)


def _refuse_far_dates(rows: pa.Table) -> None:
    """Raise ConfigError for a date or a time that Arrow writes as `<value out of range>`, or with a zone wrongly."""
    for column in rows.schema:
        if not pa.types.is_timestamp(column.type) and not pa.types.is_date(column.type):
            continue
        plain = pa.timestamp(column.type.unit) if pa.types.is_timestamp(column.type) else column.type
        ends = pc.min_max(rows[column.name].cast(plain))
        if any(_is_far(ends[each].cast(pa.string()).as_py()) for each in ("min", "max")):
            raise ConfigError(
                f"The column {column.name!r} has a date that CSV cannot show. Export to a .parquet or .jsonl file."
            )


def _is_far(shown: str | None) -> bool:
    """Whether this is Arrow's text for a date beyond its calendar, which ends with the year 32767."""
    return "out of range" in (shown or "")


def _filled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The rows with all columns of the schema."""
    rows = [schema.empty_table(), pa.Table.from_batches([batch])]
    return pa.concat_tables(rows, promote_options="permissive")


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the pipeline, or a source.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            help="A .parquet, .csv or .jsonl file, of texts also .gz; with --by a folder; on this machine, or "
            "az://CONTAINER/PATH in the job's account.",
            show_default=False,
        ),
    ],
    by: Annotated[By | None, typer.Option(help="Write a folder with a Parquet file for each run or day.")] = None,
    time: Annotated[
        str | None,
        typer.Option(help="With --by day: the column, in UTC; also window.start. [default: the stream's event time]"),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TOKEN", help="Only the rows since the token of an earlier export or follow.")
    ] = "",
) -> None:
    """Write the committed rows of a stream to a file, a folder of files, or the account.

    Example: samza-azure export job.toml daily-delays --to daily.parquet
    """
    config = load(job)
    target = Target.of(to, by, config)
    account = connect(config, create=False)
    try:
        control, _ = look(config, account)
    except StateLost as error:
        control = None  # the rows are there, and this may be all that can be done with them
        say(f"The runs are exported in the order of their ids. {error}")
    settings = config.streams.get(stream)
    found = kept_rows(config, account, stream, table_bytes=AT_ONCE, since=since)
    rows, token = export(
        account,
        control,
        found,
        target,
        progress=ProgressLine(f"export {stream}"),
        since=since,
        by=by,
        time=time or (settings.event_time if settings else None),
    )
    tell(f"{rows} rows to {target}" if rows else f"No rows since the token; {target} is not written")
    if found.reader.files:
        say(f"They are those of the files in files/{found.reader.files}/. {found.reader.elsewhere()}")
    elif found.table is not None:
        say(
            f"They are those of the table {found.table.name} at {found.table.sequence}; a committed row is there "
            f"within streams.{stream}.table.flush."
        )
    elif found.reader.is_passing:
        say(
            f"The stream {stream!r} is between stages: what they have read may be deleted already, and is not among "
            f'these rows. streams.{stream}.files = "{stream}" keeps all of them.'
        )
    if token:
        say(f"To export what comes after them: --since {token}")

"""`samza-azure produce`: put the rows of files into a source stream, in file order.

All files are checked against the stream's schema before the first row is written, so a row that does not fit leaves no
partial result. What is taken in one of several possible ways is said, alike for all kinds of files.
"""

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import look, reach
from samza_azure.commands.terminal import ProgressLine, say
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, RunPhase
from samza_azure.storage.connection import Account
from samza_azure.storage.ddl import arrow_schema
from samza_azure.storage.driver import back_off
from samza_azure.storage.produced import PRODUCED, Production
from samza_azure.storage.source_stream import SourceWriter, fitted, source_of

#: Rows read from the file at a time.
CHUNK_ROWS = 50_000
#: The longest line of a CSV or JSON-lines file, in bytes: the size of the blocks that are parsed.
LONGEST_LINE = 16 << 20
#: The flushes per second with a rate.
FLUSHES_PER_S = 5.0
#: The kinds of files, by their endings; of texts also with .gz behind it.
KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
STDIN = Path("-")
#: While the storage does not answer, one try in this many is reported.
SAID_EACH = 12


def produce(
    config: Config,
    account: Account,
    stream: str,
    given: Sequence[Path],
    *,
    key: str | None,
    rate: float | None,
    dry_run: bool,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
    once: str = "",
) -> int:
    """Write all rows and return their number. While the storage does not answer, wait and say so.

    With `once`, an idempotence key, the rows that are stored under it already are neither written nor counted.
    """
    settings = source_of(config, stream)
    schema = arrow_schema(settings.schema or "")
    if settings.key and key not in (None, *settings.key[:1]):
        raise ConfigError(
            f"streams.{stream}.key is {', '.join(settings.key)}, but --key is {key}. Leave --key out; or change the "
            "line in the job file and write into another stream."
        )
    key = None if settings.key else key
    files = list(_files(given))
    content = _digest(files) if once else ""
    if once and (known := Production(account.transactions(PRODUCED), stream, once, content).find()) is not None:
        if known.rows is not None:
            say(f"All {known.rows} rows of {once!r} are in {stream} already.")
            return 0
        say(f"Rows of {once!r} are in {stream} already; they are skipped.")
    seen = Seen()
    for file in files:
        _check(seen, file, stream, schema, settings.event_time, key)
    for line in seen.lines():
        say(line)
    if dry_run:
        return seen.rows
    at_once = 10_000 if rate is None else max(1, round(rate / FLUSHES_PER_S))
    waiting = {"flush_rows": at_once, "wait": lambda tries: _wait(tries, say)}
    writer = SourceWriter.of(config, account, stream, once=once, content=content, **waiting)
    written, begun = 0, time.monotonic()
    try:
        for chunk in (chunk for file in files for chunk in _chunks(file, schema, key)):
            for start in range(0, chunk.num_rows, at_once):
                rows = chunk.slice(start, at_once)
                writer.write(rows, key)
                writer.flush()
                written += rows.num_rows
                progress(written, seen.rows)
                if rate is not None:
                    time.sleep(max(0.0, begun + written / rate - time.monotonic()))
        writer.close()
    except KeyboardInterrupt:
        whole = ", ".join(str(file) for file in files)
        say(f"\nInterrupted. The first {written} rows of {whole} are stored, and perhaps some of the next {at_once}.")
        if once:
            say(f"The same command goes on from there: --once {once} skips the rows that are stored.")
        raise
    if writer.rows_of_the_future:
        say(
            f"{writer.rows_of_the_future} of the rows are more than {settings.max_future_s:g} s ahead of this "
            f"machine's clock (streams.{stream}.max_future). They are stored, but do not advance event time."
        )
    return written - writer.rows_skipped


def refuse_other_partitions(config: Config, control: Control | None, stream: str) -> None:
    """Raise ConfigError if the run in progress reads another number of partitions: it would miss rows."""
    if control is None or control.phase in (RunPhase.NONE, RunPhase.DRAINED):
        return
    ours, theirs = source_of(config, stream).partitions, control.sources.get(stream)
    if theirs not in (None, ours):
        raise ConfigError(
            f"Run {control.run_id} reads {theirs} partitions of {stream}, and the job file has streams.{stream}."
            f"partitions = {ours}. Nothing was written. Produce with streams.{stream}.partitions = {theirs}; for "
            f"another number drain the run first: samza-azure drain {config.path.name} --wait."
        )


def _digest(files: Sequence[Path]) -> str:
    """A digest of the contents of all files, and of where each ends."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.open("rb") as data:
                digest.update(hashlib.file_digest(data, hashlib.blake2b).digest())
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


def _wait(tries: int, say: Callable[[str], None]) -> None:
    if tries % SAID_EACH == SAID_EACH // 2:
        say("The storage account does not answer; waiting for it. Nothing is lost. Ctrl-C gives up.")
    back_off(tries)


@dataclass(slots=True)
class Seen:
    """What the check of all files has seen."""

    rows: int = 0
    left_out: set[str] = field(default_factory=set)  # columns that the stream does not have
    without_zone: set[str] = field(default_factory=set)  # columns of times
    without_time: int = 0  # rows whose event time is null

    def lines(self) -> Iterator[str]:
        """What a user must know about it."""
        if self.left_out:
            yield f"Columns that the stream does not have are left out: {', '.join(sorted(self.left_out))}."
        if self.without_zone:
            yield f"The times of {', '.join(sorted(self.without_zone))} have no zone; they are taken as UTC."
        if self.without_time:
            yield f"{self.without_time} rows have no event time: they are stored, but no window contains them."


def _files(given: Sequence[Path]) -> Iterator[Path]:
    """The files, and those of the folders by name."""
    for path in given:
        if not path.is_dir():
            yield path
            continue
        found = sorted(each for each in path.iterdir() if each.is_file() and _kind(each) is not None)
        if not found:
            raise ConfigError(f"The folder {path} has no file that ends in {', '.join(KINDS)}.")
        yield from found


def _kind(file: Path) -> str | None:
    """The kind of a file; None if its ending is none of ours."""
    return KINDS.get(Path(file.stem if file.suffix.lower() == ".gz" else file.name).suffix.lower())


def _check(seen: Seen, file: Path, stream: str, schema: pa.Schema, event_time: str | None, key: str | None) -> None:
    """Check that all rows of a file fit, and note what a user must know about them."""
    total = 0
    for chunk in _chunks(file, schema, key):
        if key is not None and key not in chunk.column_names:
            raise ConfigError(f"{file} has no column {key!r}. Columns: {', '.join(chunk.column_names)}.")
        try:
            fitting = _fitted(chunk, schema)
        except ConfigError:
            row, reason = _first_misfit(chunk, schema)
            raise ConfigError(
                f"Row {total + row + 1} of {file} does not fit the stream {stream!r}. {reason} Nothing was written."
            ) from None
        total += chunk.num_rows
        seen.left_out |= {*chunk.column_names} - {*schema.names, key}
        seen.without_zone |= {
            column.name
            for column in chunk.schema
            if pa.types.is_timestamp(column.type)
            and column.type.tz is None
            and column.name in schema.names
            and getattr(schema.field(column.name).type, "tz", None)
        }
        seen.without_time += fitting[event_time].null_count if event_time else 0
    seen.rows += total


def _fitted(chunk: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the stream's schema. A number that its decimals would change is refused."""
    for column in schema:
        if pa.types.is_decimal(column.type) and column.name in chunk.column_names:
            _check_digits(chunk[column.name], column)
    fitting = fitted(chunk, schema)
    for column in schema:
        before = chunk[column.name]
        if pa.types.is_decimal(column.type) and pa.types.is_floating(before.type):
            doubtful = pc.not_equal(fitting[column.name].cast(before.type), before)
            numbers, decimals = before.filter(doubtful), fitting[column.name].filter(doubtful)
            for lost, decimal in zip(numbers.to_pylist(), decimals.to_pylist(), strict=True):
                if float(decimal) != lost:  # Arrow's cast to a double is not to the nearest: 189.70 becomes another
                    raise ConfigError(f"The column {column.name!r} is {column.type}, which would change {lost}.")
    return fitting


def _check_digits(values: pa.ChunkedArray, column: pa.Field) -> None:
    """Check that a decimal column holds each of these texts as it is."""
    if not pa.types.is_string(values.type):
        return
    try:
        values.cast(column.type)
    except pa.ArrowInvalid as error:
        lost = next((value for value in values.to_pylist() if value is not None), "")
        why = f"would change {lost}" if "data loss" in str(error) else f"cannot hold {lost!r}"
        raise ConfigError(f"The column {column.name!r} is {column.type}, which {why}.") from error


def _first_misfit(chunk: pa.Table, schema: pa.Schema) -> tuple[int, str]:
    """The number of the first row that does not fit, found by bisection, and why it does not."""
    low, high, reason = 0, chunk.num_rows, ""
    while True:
        middle = (low + high) // 2 if high - low > 1 else high
        try:
            _fitted(chunk.slice(low, middle - low), schema)
        except ConfigError as error:
            reason, high = str(error), middle
            if high - low <= 1:
                return low, reason
        else:
            low = middle


def _chunks(file: Path, schema: pa.Schema, key: str | None) -> Iterator[pa.Table]:
    """The rows of a file in chunks, in file order.

    Text columns of the stream are read as text, such as 00501, and so is a key of a CSV file that the stream lacks. So
    are the decimals of a CSV file, since a double would change their last digits.
    """
    texts = pa.schema([column for column in schema if column.type == pa.string()])
    try:
        match _kind(file):
            case "parquet" if file.suffix.lower() != ".gz":
                with pq.ParquetFile(file) as parquet:
                    for batch in parquet.iter_batches(CHUNK_ROWS):
                        yield pa.Table.from_batches([batch])
            case "csv":
                types = texts if key is None or key in schema.names else texts.append(pa.field(key, pa.string()))
                for column in schema:
                    if pa.types.is_decimal(column.type):
                        types = types.append(pa.field(column.name, pa.string()))
                convert = pyarrow.csv.ConvertOptions(column_types=types)
                reading = pyarrow.csv.ReadOptions(block_size=LONGEST_LINE)
                with (
                    pa.input_stream(str(file), compression="detect") as data,
                    pyarrow.csv.open_csv(data, read_options=reading, convert_options=convert) as lines,
                ):
                    for batch in lines:
                        yield _nulls_for_empty(pa.Table.from_batches([batch]))
            case "json":
                options = pyarrow.json.ParseOptions(explicit_schema=texts, unexpected_field_behavior="infer")
                blocks = pyarrow.json.ReadOptions(block_size=LONGEST_LINE)
                with pa.input_stream(str(file), compression="detect") as data:
                    yield pyarrow.json.read_json(data, read_options=blocks, parse_options=options)
            case _:
                raise ConfigError(
                    f"{file} has the ending {file.suffix or 'none'}. Give a .parquet, .csv or .jsonl file, "
                    "or - for JSON lines from standard input."
                )
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if "straddling object" in str(error):  # pyarrow's message for a line longer than a block
            raise ConfigError(
                f"{file} has a line longer than {LONGEST_LINE >> 20} MiB. Is it one row per line?"
            ) from error
        raise ConfigError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error


def _nulls_for_empty(rows: pa.Table) -> pa.Table:
    """An empty field of a CSV file is null, as in Spark, also where the column holds text."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_string(column.type):
            texts = rows[column.name]
            rows = rows.set_column(place, column, pc.if_else(pc.equal(texts, ""), None, texts))
    return rows


@contextmanager
def _without_stdin(given: Sequence[Path], stdin: IO[bytes]) -> Iterator[list[Path]]:
    """The paths, with a copy of standard input for `-`: it is read twice, first to check it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin.jsonl"
        if STDIN in given:
            with copy.open("wb") as out:
                shutil.copyfileobj(stdin, out)
        yield [copy if path == STDIN else path for path in given]


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A source stream of the job file.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Parquet, CSV or JSON lines, also .gz; a folder of them; or - for JSON lines from standard input.",
            show_default=False,
        ),
    ],
    key: Annotated[str | None, typer.Option(help="The column that decides the partition; else round robin.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="Rows per second; without it: as fast as possible.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the rows; write nothing.")] = False,
    once: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Store each row once, however often this command is run or killed: what is stored under this key, for "
            "example the file's name, is skipped. Other files under the same key are refused.",
        ),
    ] = "",
) -> None:
    """Put the rows of files into a source stream, in file order.

    Example: samza-azure produce job.toml flights flights.parquet --key dest
    """
    config = load(job)
    account = reach(config)
    refuse_other_partitions(config, look(config, account)[0], stream)
    with _without_stdin(files, sys.stdin.buffer) as given:
        shown = ProgressLine(f"produce {stream}")
        rows = produce(
            config, account, stream, given, key=key, rate=rate, dry_run=dry_run, progress=shown, say=say, once=once
        )
    print(f"{rows} rows fit {stream}; nothing was written" if dry_run else f"{rows} rows into {stream}")

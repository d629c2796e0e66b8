"""`samza-azure produce`: put the rows of a file into a source stream, in file order.

The whole file is checked against the stream's schema before the first row is written, so a row that does not fit
leaves no partial result.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import reach
from samza_azure.commands.terminal import ProgressLine, say
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.storage.connection import Account
from samza_azure.storage.ddl import arrow_schema
from samza_azure.storage.driver import back_off
from samza_azure.storage.source_stream import SourceWriter, fitted, source_of

#: Rows read from the file at a time.
CHUNK_ROWS = 50_000
#: The longest line of a CSV or JSON-lines file, in bytes: the size of the blocks that are parsed.
LONGEST_LINE = 16 << 20
#: The flushes per second with a rate.
FLUSHES_PER_S = 5.0
#: While the storage does not answer, one try in this many is reported.
SAID_EACH = 12


def produce(
    config: Config,
    account: Account,
    stream: str,
    file: Path,
    *,
    key: str | None,
    rate: float | None,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
) -> int:
    """Write all rows and return their number. While the storage does not answer, wait and say so."""
    settings = source_of(config, stream)
    schema = arrow_schema(settings.schema or "")
    if settings.key and key not in (None, *settings.key[:1]):
        raise ConfigError(
            f"streams.{stream}.key is {', '.join(settings.key)}, but --key is {key}. Leave --key out; or change the "
            "line in the job file and write into another stream."
        )
    key = None if settings.key else key
    total = _checked(file, stream, schema, key)
    at_once = 10_000 if rate is None else max(1, round(rate / FLUSHES_PER_S))
    writer = SourceWriter.of(config, account, stream, flush_rows=at_once, wait=lambda tries: _wait(tries, say))
    written, begun = 0, time.monotonic()
    try:
        for chunk in _chunks(file, schema, key):
            for start in range(0, chunk.num_rows, at_once):
                rows = chunk.slice(start, at_once)
                writer.write(rows, key)
                writer.flush()
                written += rows.num_rows
                progress(written, total)
                if rate is not None:
                    time.sleep(max(0.0, begun + written / rate - time.monotonic()))
        writer.close()
    except KeyboardInterrupt:
        say(f"\nInterrupted. The first {written} rows of {file} are stored, and perhaps some of the next {at_once}.")
        raise
    if writer.rows_of_the_future:
        say(
            f"{writer.rows_of_the_future} of the rows are more than {settings.max_future_s:g} s ahead of this "
            f"machine's clock (streams.{stream}.max_future). They are stored, but do not advance event time."
        )
    return written


def _wait(tries: int, say: Callable[[str], None]) -> None:
    if tries % SAID_EACH == SAID_EACH // 2:
        say("The storage account does not answer; waiting for it. Nothing is lost. Ctrl-C gives up.")
    back_off(tries)


def _checked(file: Path, stream: str, schema: pa.Schema, key: str | None) -> int:
    """Check that all rows fit, and return their number."""
    total = 0
    for chunk in _chunks(file, schema, key):
        if key is not None and key not in chunk.column_names:
            raise ConfigError(f"{file} has no column {key!r}. Columns: {', '.join(chunk.column_names)}.")
        try:
            fitted(chunk, schema)
        except ConfigError:
            row, reason = _first_misfit(chunk, schema)
            raise ConfigError(
                f"Row {total + row + 1} of {file} does not fit the stream {stream!r}. {reason} Nothing was written."
            ) from None
        total += chunk.num_rows
    return total


def _first_misfit(chunk: pa.Table, schema: pa.Schema) -> tuple[int, str]:
    """The number of the first row that does not fit, found by bisection, and why it does not."""
    low, high, reason = 0, chunk.num_rows, ""
    while True:
        middle = (low + high) // 2 if high - low > 1 else high
        try:
            fitted(chunk.slice(low, middle - low), schema)
        except ConfigError as error:
            reason, high = str(error), middle
            if high - low <= 1:
                return low, reason
        else:
            low = middle


def _chunks(file: Path, schema: pa.Schema, key: str | None) -> Iterator[pa.Table]:
    """The rows of a file in chunks, in file order.

    Text columns of the stream are read as text, such as 00501, and so is a key of a CSV file that the stream lacks.
    """
    texts = pa.schema([column for column in schema if column.type == pa.string()])
    try:
        match file.suffix.lower():
            case ".parquet":
                with pq.ParquetFile(file) as parquet:
                    for batch in parquet.iter_batches(CHUNK_ROWS):
                        yield pa.Table.from_batches([batch])
            case ".csv":
                types = texts if key is None or key in schema.names else texts.append(pa.field(key, pa.string()))
                convert = pyarrow.csv.ConvertOptions(column_types=types)
                reading = pyarrow.csv.ReadOptions(block_size=LONGEST_LINE)
                with pyarrow.csv.open_csv(file, read_options=reading, convert_options=convert) as lines:
                    for batch in lines:
                        yield pa.Table.from_batches([batch])
            case ".json" | ".jsonl" | ".ndjson":
                options = pyarrow.json.ParseOptions(explicit_schema=texts, unexpected_field_behavior="infer")
                blocks = pyarrow.json.ReadOptions(block_size=LONGEST_LINE)
                yield pyarrow.json.read_json(file, read_options=blocks, parse_options=options)
            case other:
                raise ConfigError(f"{file} has the ending {other or 'none'}. Give a .parquet, .csv or .jsonl file.")
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if "straddling object" in str(error):  # pyarrow's message for a line longer than a block
            raise ConfigError(
                f"{file} has a line longer than {LONGEST_LINE >> 20} MiB. Is it one row per line?"
            ) from error
        raise ConfigError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A source stream of the job file.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines.", show_default=False)],
    key: Annotated[str | None, typer.Option(help="The column that decides the partition; else round robin.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="Rows per second; without it: as fast as possible.")
    ] = None,
) -> None:
    """Put the rows of a file into a source stream, in file order.

    Example: samza-azure produce job.toml flights flights.parquet --key dest
    """
    config = load(job)
    account = reach(config)
    rows = produce(
        config, account, stream, file, key=key, rate=rate, progress=ProgressLine(f"produce {stream}"), say=say
    )
    print(f"{rows} rows into {stream}")

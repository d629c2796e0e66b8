"""The rows of files as `produce` takes them: Parquet, CSV and JSON lines, checked against a stream's schema.

What is taken in one of several possible ways is noted, alike for all kinds of files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError
from samza_azure.storage.source_stream import fitted

#: Rows read from the file at a time.
CHUNK_ROWS = 50_000
#: The longest line of a CSV or JSON-lines file, in bytes: the size of the blocks that are parsed.
LONGEST_LINE = 16 << 20
#: The kinds of files, by their endings; of texts also with .gz behind it.
KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


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


def files_in(given: Sequence[Path]) -> Iterator[Path]:
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


def check(seen: Seen, file: Path, stream: str, schema: pa.Schema, event_time: str | None, key: str | None) -> None:
    """Check that all rows of a file fit, and note what a user must know about them."""
    total = 0
    for chunk in chunks(file, schema, key):
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


def chunks(file: Path, schema: pa.Schema, key: str | None) -> Iterator[pa.Table]:
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

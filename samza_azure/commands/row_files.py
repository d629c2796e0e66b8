"""The rows of files as `produce` takes them: Parquet, CSV and JSON lines, checked against a stream's schema.

What is taken in one of several possible ways is noted, alike for all kinds of files.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
#: What holds each whole number of a text.
_WHOLE = pa.decimal128(38, 0)
#: A number of JSON that a double may not hold: from 16 digits on, perhaps with a point among them.
_NUMBER = re.compile(rb"[-:,\[\s][0-9.]{16}")
_DIGITS, _TO_DIGITS = b"0" * 16, bytes(ord("0") if chr(byte) in "0123456789." else 0 for byte in range(256))
_SPACE = re.compile(r"\s*")


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
            fitting = fitted(typed(chunk, schema), schema)
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


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the stream's types where a file has texts, or numbers for decimals.

    Raise ConfigError for a value that the stream's type does not hold as it is.
    """
    for place, name in enumerate(rows.column_names):
        if name in schema.names:
            column, values = schema.field(name), rows.column(place)
            try:
                # Arrow would cast the bits of a double: 0.1 becomes 0.10000000000000000555.
                values = values.cast(_with_texts(values.type, column.type, pa.types.is_decimal))
                rows = rows.set_column(place, name, _read_as(values, column.type))
            except pa.ArrowInvalid as error:
                told = next((value for value in values.to_pylist() if value is not None), "")
                why = f"would change {told}" if "data loss" in str(error) else f"cannot hold {told!r}"
                raise ConfigError(f"The column {name!r} is {column.type}, which {why}.") from error
    return rows


def _read_as(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Texts as values of a type of numbers; all others as they are."""
    if not pa.types.is_string(values.type):
        return values
    if pa.types.is_decimal(kind):
        return values.cast(kind)
    if pa.types.is_integer(kind):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:  # 1.0 and 1e3 are whole numbers, too
            return values.cast(_WHOLE).cast(kind)
    return values


def _with_texts(kind: pa.DataType, target: pa.DataType, exact: Callable[[pa.DataType], bool]) -> pa.DataType:
    """The type, with texts for the floating-point numbers that become a type for which `exact` holds, and for whole
    numbers that become decimals: Arrow casts those only to decimals that have room for all of them."""
    if (pa.types.is_floating(kind) and exact(target)) or (pa.types.is_integer(kind) and pa.types.is_decimal(target)):
        return pa.string()
    if pa.types.is_list(kind) and pa.types.is_list(target):
        return pa.list_(_with_texts(kind.value_type, target.value_type, exact))
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        targets = {field.name: field.type for field in target}
        return pa.struct(
            [field.with_type(_with_texts(field.type, targets.get(field.name, field.type), exact)) for field in kind]
        )
    return kind


def _first_misfit(chunk: pa.Table, schema: pa.Schema) -> tuple[int, str]:
    """The number of the first row that does not fit, found by bisection, and why it does not."""
    low, high, reason = 0, chunk.num_rows, ""
    while True:
        middle = (low + high) // 2 if high - low > 1 else high
        try:
            fitted(typed(chunk.slice(low, middle - low), schema), schema)
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
                    rows = pyarrow.json.read_json(data, read_options=blocks, parse_options=options)
                yield _exact(file, rows, schema)
            case _:
                raise ConfigError(
                    f"{file} has the ending {file.suffix or 'none'}. Give a .parquet, .csv or .jsonl file, "
                    "or - for JSON lines from standard input."
                )
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as error:
        if "straddling object" in str(error):  # pyarrow's message for a line longer than a block
            raise ConfigError(
                f"{file} has a line longer than {LONGEST_LINE >> 20} MiB. Is it one row per line?"
            ) from error
        raise ConfigError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error


def _exact(file: Path, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of a JSON-lines file, with texts for numbers that Arrow has read as doubles and that are longer.

    Only a file with such numbers is read once more, by Python, which takes several times as long.
    """
    names = [
        name
        for name, kind in zip(rows.column_names, rows.schema.types, strict=True)
        if name in schema.names and _with_texts(kind, schema.field(name).type, _is_exact) != kind
    ]
    if not names or not _has_long_number(file):
        return rows
    with pa.input_stream(str(file), compression="detect") as data:
        text = data.read().decode()
    decoder = json.JSONDecoder(parse_float=str, parse_int=str)
    found: dict[str, list[Any]] = {name: [] for name in names}
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        row, at = decoder.raw_decode(text, at)
        for name, values in found.items():
            values.append(row.get(name))
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    for name, values in found.items():
        rows = rows.set_column(rows.column_names.index(name), name, pa.chunked_array([pa.array(values)]))
    return rows


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_integer(kind))


def _has_long_number(file: Path) -> bool:
    """Whether a file has a number of more digits than a double holds."""
    end = b""
    with pa.input_stream(str(file), compression="detect") as data:
        while block := data.read(LONGEST_LINE):
            block = end + block
            # The search for digits takes a small part of the time that the one for numbers takes.
            if _DIGITS in block.translate(_TO_DIGITS) and _NUMBER.search(block):
                return True
            end = block[-len(_DIGITS) :]
    return False


def _nulls_for_empty(rows: pa.Table) -> pa.Table:
    """An empty field of a CSV file is null, as in Spark, also where the column holds text."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_string(column.type):
            texts = rows[column.name]
            rows = rows.set_column(place, column, pc.if_else(pc.equal(texts, ""), None, texts))
    return rows

"""The rows of files as `produce` takes them: Parquet, CSV and JSON lines, checked against a stream's schema.

Ambiguous values (times without a zone, NA for null) are noted in `Seen`, in the same way for each format.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from samza_azure.errors import ConfigError
from samza_azure.storage.fitting import fitted

#: Rows read from the file at a time.
CHUNK_ROWS = 50_000
#: The longest line of a CSV or JSON-lines file, in bytes: the size of the blocks that are parsed.
LONGEST_LINE = 16 << 20
#: The formats of files, by their endings. Text formats may have .gz after that.
KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
#: A type for each whole number in a text.
_WHOLE = pa.decimal128(38, 0)
#: A number in JSON that a double may not hold exactly: 16 or more digits, perhaps with a point among them.
_NUMBER = re.compile(rb"[-:,\[\s][0-9.]{16}")
_DIGITS, _TO_DIGITS = b"0" * 16, bytes(ord("0") if chr(byte) in "0123456789." else 0 for byte in range(256))
#: The number of values that are searched before all are.
SOME = 1_000
#: The end of a block that is searched again with the next one: a column's name, spaces and a number are shorter.
KEPT = 4 << 10
_SPACE = re.compile(r"\s*")
#: A time with a zone. A date ends like one.
_ZONED = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
#: The words for null in a CSV file, in columns that do not hold text.
_NOTHING = pa.array(["NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "NaN", "nan", "-NaN", "-nan"])
#: The words for null in columns of floating-point numbers.
_NO_NUMBER = _NOTHING.slice(0, 8)


@dataclass(slots=True)
class Seen:
    """What the check of all files has seen."""

    rows: int = 0
    left_out: set[str] = field(default_factory=set)  # columns that the stream does not have
    without_zone: set[str] = field(default_factory=set)  # columns of times
    without_time: int = 0  # rows whose event time is null
    words_for_null: Counter[str] = field(default_factory=Counter)  # by column

    def lines(self) -> Iterator[str]:
        """The messages to the user about it."""
        if self.left_out:
            yield f"Columns that the stream does not have are left out: {', '.join(sorted(self.left_out))}."
        if self.without_zone:
            yield f"The times of {', '.join(sorted(self.without_zone))} have no zone; they are taken as UTC."
        if self.words_for_null:
            columns = ", ".join(sorted(self.words_for_null))
            yield f"{self.words_for_null.total()} fields of {columns} say NA, NULL or the like; they are null."
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
    """The format of a file; None if its ending is not in `KINDS`."""
    return KINDS.get(Path(file.stem if file.suffix.lower() == ".gz" else file.name).suffix.lower())


def check(seen: Seen, file: Path, stream: str, schema: pa.Schema, event_time: str | None, key: str | None) -> None:
    """Check that all rows of a file fit, and note what a user must know about them."""
    total = 0
    for chunk in chunks(seen, file, schema):
        if key is not None and key not in chunk.column_names:
            raise ConfigError(f"{file} has no column {key!r}. Columns: {', '.join(chunk.column_names)}.")
        try:
            fitting = fitted(typed(chunk, schema), schema)
        except ConfigError:
            row, reason = _first_misfit(chunk, schema)
            raise ConfigError(
                f"Row {total + row + 1} of {file} does not fit the stream {stream!r}. {reason.rstrip('.')}. "
                "Nothing was written."
            ) from None
        total += chunk.num_rows
        seen.left_out |= {*chunk.column_names} - {*schema.names, key}
        seen.without_zone |= {
            name
            for name, values in zip(chunk.column_names, chunk.columns, strict=True)
            if name in schema.names and _lack_zone(values, schema.field(name).type)
        }
        seen.without_time += fitting[event_time].null_count if event_time else 0
    seen.rows += total


def _lack_zone(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Whether some of the times have no zone, although the stream's type has one."""
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return False
    if pa.types.is_string(values.type):
        if pc.any(pc.invert(pc.match_substring_regex(values.slice(0, SOME), _ZONED))).as_py():
            return True
        with suppress(pa.ArrowInvalid):
            values.cast(kind)
            return False
        return bool(pc.any(pc.invert(pc.match_substring_regex(values, _ZONED))).as_py())
    return pa.types.is_timestamp(values.type) and values.type.tz is None


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the stream's types where a file has texts, or numbers for decimals.

    Raise ConfigError for a value that the stream's type cannot hold exactly.
    """
    for index, name in enumerate(rows.column_names):
        if name in schema.names:
            column, values = schema.field(name), rows.column(index)
            try:
                # Arrow would cast the bits of a double: 0.1 becomes 0.10000000000000000555.
                values = values.cast(_with_texts(values.type, column.type, pa.types.is_decimal))
                rows = rows.set_column(index, name, _read_as(values, column.type))
            except pa.ArrowInvalid as error:
                shown = next((value.as_py() for value in values if value.is_valid), "")
                loses = "data loss" in str(error) or "lose data" in str(error)
                why = f"would change {shown}" if loses else f"cannot hold {shown!r}"
                remedy = " Write times like 2013-01-31 05:00:00Z." if pa.types.is_timestamp(column.type) else ""
                raise ConfigError(f"The column {name!r} is {column.type}, which {why}.{remedy}") from error
    return rows


def _read_as(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Texts as values of a type; all others as they are."""
    if not pa.types.is_string(values.type) or pa.types.is_string(kind):
        return values
    if pa.types.is_integer(kind):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:  # 1.0 and 1e3 are whole numbers, too
            return values.cast(_WHOLE).cast(kind)
    if pa.types.is_timestamp(kind):
        return _times(values, kind)
    if pa.types.is_date(kind):
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:  # 2013-01-31 00:00:00 is a date, too
            return _times(values, pa.timestamp("us")).cast(kind)
    return values.cast(kind) if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) else values


def _times(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Times of which some may have a zone; the others are in UTC."""
    utc, local = pa.timestamp(kind.unit, "UTC"), pa.timestamp(kind.unit)
    some = pc.match_substring_regex(texts.slice(0, SOME), _ZONED)
    if pc.any(some) == pc.all(some):  # usually all are alike; searching all values takes longer than the cast
        with suppress(pa.ArrowInvalid):
            return texts.cast(utc if pc.any(some).as_py() else local).cast(utc).cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    times = _in_units(pc.if_else(zoned, None, texts), local).cast(utc)
    return pc.coalesce(_in_units(pc.if_else(zoned, texts, None), utc), times).cast(kind)


def _in_units(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # .123456000 has more digits, and loses nothing
        return texts.cast(pa.timestamp("ns", kind.tz)).cast(kind)


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


def chunks(seen: Seen, file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file in chunks, in file order.

    Text columns of the stream are read as text, such as 00501, and so are times in texts. So is a CSV file as a whole,
    since the first block of it does not show what comes later, and a double would change the last digits of a decimal.
    """
    try:
        match _kind(file):
            case "parquet" if file.suffix.lower() != ".gz":
                with pq.ParquetFile(file) as parquet:
                    for batch in parquet.iter_batches(CHUNK_ROWS):
                        yield pa.Table.from_batches([batch])
            case "csv":
                types = dict.fromkeys(_header(file), pa.string())
                types |= {column.name: column.type for column in schema if pa.types.is_binary(column.type)}
                convert = pyarrow.csv.ConvertOptions(column_types=types)
                reading = pyarrow.csv.ReadOptions(block_size=LONGEST_LINE)
                with (
                    pa.input_stream(str(file), compression="detect") as data,
                    pyarrow.csv.open_csv(data, read_options=reading, convert_options=convert) as lines,
                ):
                    for batch in lines:
                        yield _with_nulls(seen, pa.Table.from_batches([batch]), schema)
            case "json":
                yield _exact(file, _json_rows(file, schema), schema)
            case _:
                raise ConfigError(
                    f"{file} has the ending {file.suffix or 'none'}. Give a .parquet, .csv or .jsonl file, "
                    "or - for JSON lines from standard input."
                )
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, csv.Error, OSError) as error:
        if "straddling object" in str(error):  # pyarrow's message for a line longer than a block
            raise ConfigError(
                f"{file} has a line longer than {LONGEST_LINE >> 20} MiB. Is it one row per line?"
            ) from error
        raise ConfigError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error


def _json_rows(file: Path, schema: pa.Schema) -> pa.Table:
    """The rows of a JSON-lines file, with times as texts: once Arrow has parsed them, their zone is lost."""
    texts = [column.name for column in schema if pa.types.is_string(column.type)]
    times = [column.name for column in schema if pa.types.is_timestamp(column.type)]
    try:
        rows = _parsed(file, texts + times)
    except pa.ArrowInvalid:  # perhaps because times are numbers; the check of the rows has a better message
        return _parsed(file, texts)
    # A requested column is there, with nulls, even if the file lacks it.
    known = [name for name in times if rows[name].null_count < rows.num_rows]
    return rows if known == times else _parsed(file, texts + known)


def _parsed(file: Path, texts: Sequence[str]) -> pa.Table:
    schema = pa.schema([pa.field(name, pa.string()) for name in texts])
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")
    blocks = pyarrow.json.ReadOptions(block_size=LONGEST_LINE)
    with pa.input_stream(str(file), compression="detect") as data:
        return pyarrow.json.read_json(data, read_options=blocks, parse_options=options)


def _exact(file: Path, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of a JSON-lines file, with texts for numbers that Arrow has read as doubles and that are longer.

    Only a file with such numbers is read once more, by Python, which takes several times as long.
    """
    names = {
        name: kind
        for name, kind in zip(rows.column_names, rows.schema.types, strict=True)
        if name in schema.names and _with_texts(kind, schema.field(name).type, _is_exact) != kind
    }
    if not names or not _has_long_number(file, names):
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


def _has_long_number(file: Path, columns: Mapping[str, pa.DataType]) -> bool:
    """Whether one of these columns of a file has a number of more digits than a double holds."""
    # After its name. A number in a list has no name, and letters beyond ASCII may be written in two ways.
    are_plain = all(name.isascii() and not pa.types.is_nested(kind) for name, kind in columns.items())
    named = b"|".join(re.escape(json.dumps(name).encode()) for name in columns)
    number = re.compile(rb"(?:%s)\s*:\s*-?[0-9.]{16}" % named) if are_plain else _NUMBER
    end = b""
    with pa.input_stream(str(file), compression="detect") as data:
        while block := data.read(LONGEST_LINE):
            block = end + block
            # The search for digits takes a small part of the time of a search for any number.
            if (are_plain or _DIGITS in block.translate(_TO_DIGITS)) and number.search(block):
                return True
            end = block[-KEPT:]
    return False


def _header(file: Path) -> list[str]:
    """The names of a CSV file's columns."""
    with pa.input_stream(str(file), compression="detect") as data:
        lines = csv.reader(io.TextIOWrapper(data, "utf-8-sig", errors="replace"))
        return next(filter(None, lines), [])


def _with_nulls(seen: Seen, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Replace empty CSV fields by null, as Spark does, and words like NA in columns that do not hold text."""
    for index, column in enumerate(rows.schema):
        texts = rows.column(index)
        texts = pc.if_else(pc.equal(pc.binary_length(texts), 0), None, texts)
        kind = schema.field(column.name).type if column.name in schema.names else column.type
        if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
            texts = pc.utf8_trim_whitespace(texts)
            is_nothing = pc.is_in(texts, value_set=_NO_NUMBER if pa.types.is_floating(kind) else _NOTHING)
            if count := pc.sum(is_nothing).as_py():
                seen.words_for_null[column.name] += count
                texts = pc.if_else(is_nothing, None, texts)
        rows = rows.set_column(index, column, texts)
    return rows

"""The rows of files as `produce` takes them: Parquet, CSV and JSON lines, checked against a stream's schema.

Ambiguous values (times without a zone, NA for null) are noted in `Seen`, in the same way for each format.
"""

import csv
import difflib
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from samza_azure.stream_io.source_stream import partition_numbers
from samza_azure.stream_io.values.fitting import SOME, ZONED, decoded, fitted, is_list
from samza_azure.stream_io.values.json_texts import (
    all_texts,
    as_texts,
    decoder,
    has_bytes,
    has_part,
    may_lose_digits,
    shown,
    text_of,
    with_texts,
)
from samza_azure.stream_io.values.refusals import lacking

#: Rows read from the file at a time.
CHUNK_ROWS = 50_000
#: The longest line of a CSV or JSON-lines file, in bytes: the size of the parts that are parsed.
LONGEST_LINE = 16 << 20
#: The formats of files, by their endings. Text formats may have .gz after that.
KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
#: A number in JSON that a double may not hold exactly: 16 or more digits, perhaps with a point among them.
_NUMBER = re.compile(rb"[-:,\[\s][0-9.]{16}")
#: A name of words in which a letter is written as \uXXXX.
_ESCAPED_NAME = re.compile(rb'[{,]\s*"[\w ]*(?:\\u00[0-7][0-9a-fA-F][\w ]*)+"\s*:')
_DIGITS, _TO_DIGITS = b"0" * 16, bytes(ord("0") if chr(byte) in "0123456789." else 0 for byte in range(256))
#: The number of a row in Arrow's errors, which begins with 0.
_ROW = re.compile(r"(?<= in row )\d+$")
_SPACE = re.compile(r"\s*")
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
    words_for_null: Counter[str] = field(default_factory=Counter)  # by column

    def add(self, other: "Seen") -> None:
        """Note what the check of another file has seen, too."""
        self.rows += other.rows
        self.left_out |= other.left_out
        self.without_zone |= other.without_zone
        self.words_for_null += other.words_for_null

    def lines(self) -> Iterator[str]:
        """The messages to the user about it."""
        if self.left_out:
            yield f"Columns that the stream does not have are left out: {', '.join(sorted(self.left_out))}."
        if self.without_zone:
            yield f"The times of {', '.join(sorted(self.without_zone))} have no zone; they are taken as UTC."
        if self.words_for_null:
            columns = ", ".join(sorted(self.words_for_null))
            number = self.words_for_null.total()
            yield (
                f"1 field of {columns} says NA, NULL or the like; it is null."
                if number == 1
                else f"{number} fields of {columns} say NA, NULL or the like; they are null."
            )


@dataclass(slots=True)
class RowsBefore:
    """What of a JSON-lines file has been read."""

    rows: int = 0
    columns: dict[str, None] = field(default_factory=dict)


class LacksColumn(ConfigError):
    """No row of a file has a column that the stream has."""


class _Misfit(ConfigError):
    """A row of a file that does not fit."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def files_in(given: Sequence[Path]) -> Iterator[Path]:
    """The files, and those of the folders by name."""
    for path in given:
        if not path.is_dir():
            yield _there(path)
            continue
        found = sorted(each for each in path.iterdir() if each.is_file() and kind_of(each) is not None)
        if not found:
            raise ConfigError(f"The folder {path} has no file that ends in {', '.join(KINDS)}.")
        yield from found


def _there(file: Path) -> Path:
    if file.exists():
        return file
    beside = [each.name for each in file.parent.iterdir()] if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, beside, n=1)
    raise ConfigError(f"There is no file {file}.{f' Did you mean {file.with_name(near[0])}?' if near else ''}")


def kind_of(file: Path) -> str | None:
    """The format of a file; None if its ending is not in `KINDS`."""
    return KINDS.get(Path(file.stem if file.suffix.lower() == ".gz" else file.name).suffix.lower())


def check(seen: Seen, file: Path, stream: str, schema: pa.Schema, event_time: str | None, key: str | None) -> None:
    """Check that all rows of a file fit, and note what a user must know about them."""
    total = 0
    try:
        for chunk in chunks(seen, file, schema, key):
            if key is not None and key not in chunk.column_names:
                raise _no_key(file, key, chunk.column_names)
            try:
                fitting = fitted(chunk, schema, event_time)
            except ConfigError as error:
                if (misfit := _first_misfit(chunk, schema, event_time)) is not None:
                    raise _Misfit(total + misfit.row, str(misfit)) from None
                raise ConfigError(f"{file} does not fit the stream {stream!r}. {error} Nothing was written.") from error
            if key is not None:
                partition_numbers(fitting if key in schema.names else chunk, [key], 1)
            total += chunk.num_rows
            seen.left_out |= {*chunk.column_names} - {*schema.names, key}
            seen.without_zone |= {
                name
                for name, values in zip(chunk.column_names, chunk.columns, strict=True)
                if name in schema.names and any(_lack_zone(each, schema.field(name).type) for each in values.chunks)
            }
    except _Misfit as misfit:
        _refuse_lacking(file, schema, key)
        raise ConfigError(
            f"Row {misfit.row + 1} of {file} does not fit the stream {stream!r}. {str(misfit).rstrip('.')}. "
            "Nothing was written."
        ) from None
    seen.rows += total


def _refuse_lacking(file: Path, schema: pa.Schema, key: str | None) -> None:
    """Raise LacksColumn if all rows of a JSON-lines file lack a column, which no line alone shows."""
    try:
        for _ in chunks(Seen(), file, schema, key) if kind_of(file) == "json" else ():
            pass
    except LacksColumn:
        raise
    except ConfigError:
        pass  # it comes later in the file than what is reported


def _lack_zone(values: pa.Array, kind: pa.DataType) -> bool:
    """Whether some of the times have no zone, although the stream's type has one."""
    values = decoded(values)
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        given = {field.name for field in values.type}
        return any(_lack_zone(values.field(each.name), each.type) for each in kind if each.name in given)
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return _lack_zone(values.keys, kind.key_type) or _lack_zone(values.items, kind.item_type)
    if pa.types.is_list(kind) and is_list(values.type):
        return _lack_zone(values.flatten(), kind.value_type)
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return False
    if pa.types.is_string(values.type):
        if pc.any(pc.invert(pc.match_substring_regex(values.slice(0, SOME), ZONED))).as_py():
            return True
        with suppress(pa.ArrowInvalid):
            values.cast(kind)
            return False
        return bool(pc.any(pc.invert(pc.match_substring_regex(values, ZONED))).as_py())
    return pa.types.is_timestamp(values.type) and values.type.tz is None


def _first_misfit(chunk: pa.Table, schema: pa.Schema, event_time: str | None) -> _Misfit | None:
    """The first row that does not fit, found by bisection. None: the rows do not fit together, but in parts they do."""
    low, high = 0, chunk.num_rows
    while True:
        middle = (low + high + 1) // 2
        try:
            fitted(chunk.slice(low, middle - low), schema, event_time)
        except ConfigError as error:
            if middle - low <= 1:
                return _Misfit(low, str(error))
            high = middle
        else:
            if middle == high:
                return None
            low = middle


def _no_key(file: Path, key: str, columns: Iterable[str]) -> ConfigError:
    return ConfigError(f"{file} has no column {key!r}. Columns: {', '.join(columns)}.")


def _too_long(file: Path) -> ConfigError:
    return ConfigError(f"{file} has a line longer than {LONGEST_LINE >> 20} MiB. Is it one row per line?")


def chunks(seen: Seen, file: Path, schema: pa.Schema, key: str | None) -> Iterator[pa.Table]:
    """The rows of a file in chunks, in file order.

    Text columns of the stream are read as text, such as 00501, and so are times in texts. So is a CSV file as a whole,
    since the first block of it does not show what comes later, and a double would change the last digits of a decimal.
    """
    try:
        match kind_of(file):
            case "parquet" if file.suffix.lower() != ".gz":
                with pq.ParquetFile(file) as parquet:
                    for batch in parquet.iter_batches(CHUNK_ROWS):
                        yield pa.Table.from_batches([batch])
            case "csv":
                with pa.input_stream(str(file), compression="detect") as data:
                    yield from csv_rows(seen, data, header(file), schema)
            case "json":
                yield from _json_chunks(file, schema, key)
            case _:
                raise ConfigError(
                    f"{file} has the ending {file.suffix or 'none'}. Give a .parquet, .csv or .jsonl file, "
                    "or - for JSON lines from standard input."
                )
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}.") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, csv.Error, OSError) as error:
        if "straddling object" in str(error):  # pyarrow's message for a line longer than a block
            raise _too_long(file) from error
        raise ConfigError(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error


def csv_rows(seen: Seen, data: Any, names: Iterable[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of CSV with a header of these names, as texts."""
    types = dict.fromkeys(names, pa.string())
    types |= {column.name: column.type for column in schema if pa.types.is_binary(column.type)}
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    reading = pyarrow.csv.ReadOptions(block_size=LONGEST_LINE)
    with pyarrow.csv.open_csv(data, read_options=reading, convert_options=convert) as lines:
        for batch in lines:
            yield _with_nulls(seen, pa.Table.from_batches([batch]), schema)


def json_rows(part: bytes, schema: pa.Schema, key: str | None, behind: RowsBefore) -> pa.Table:
    """The rows of whole JSON lines, with null in a column that they lack."""
    rows = _json_rows(part, schema, behind)
    for name in (*schema.names, *([key] if key else [])):
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def _json_chunks(file: Path, schema: pa.Schema, key: str | None) -> Iterator[pa.Table]:
    """The rows of a JSON-lines file, part by part. A column that a part lacks, and another part has, is null there.

    Arrow decides on the kinds of values for each block, so that it gets each part as one block: over several, a column
    of two kinds was stored with wrong values, or ended the process.
    """
    behind = RowsBefore()
    for part in _parts(file):
        try:
            rows = json_rows(part, schema, key, behind)
        except pa.ArrowInvalid as error:
            raise ValueError(_ROW.sub(lambda row: f"{behind.rows + int(row[0]) + 1}", str(error))) from error
        behind.rows += rows.num_rows
        yield rows
    if not behind.rows:
        raise ValueError("it has no rows")
    if key is not None and key not in behind.columns:
        raise _no_key(file, key, behind.columns)
    if missing := [name for name in schema.names if name not in behind.columns]:
        raise LacksColumn(f"{file} does not fit the stream. {lacking(missing, behind.columns)} Nothing was written.")


def _parts(file: Path) -> Iterator[bytes]:
    """The bytes of a text file in parts of whole lines."""
    rest = b""
    with pa.input_stream(str(file), compression="detect") as data:
        while part := rest + data.read(LONGEST_LINE - len(rest)):
            end = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1 or len(part)
            if end == LONGEST_LINE and not part.endswith((b"\n", b"\r")):
                raise _too_long(file)
            yield part[:end]
            rest = part[end:]


def _json_rows(part: bytes, schema: pa.Schema, behind: RowsBefore) -> pa.Table:
    """Rows of a JSON-lines file, with texts where Arrow would read something else into them.

    Python reads what Arrow cannot, which takes about ten times as long: objects of any keys, bytes, numbers beside
    texts, and numbers that are longer than a double. It also finds the row in which a text is a number.
    """
    if any(has_part(column.type, pa.types.is_map) or has_bytes(column.type) for column in schema):
        return _read_by_python(part, schema, behind)
    texts = {column.name: kind for column in schema if (kind := with_texts(column.type)) is not None}
    try:
        rows = _parsed(part, texts)
    except pa.ArrowInvalid as error:
        if " changed from " not in str(error):
            raise
        return _read_by_python(part, schema, behind)
    # A requested column is there, with nulls, even if the file lacks it.
    known = {
        name: kind for name, kind in texts.items() if name in behind.columns or rows[name].null_count < rows.num_rows
    }
    behind.columns |= dict.fromkeys((rows if known == texts else _parsed(part, known)).column_names)
    doubles = {
        name: kind
        for name, kind in zip(rows.column_names, rows.schema.types, strict=True)
        if name in schema.names and may_lose_digits(kind, schema.field(name).type)
    }
    if doubles and _has_long_number(part, doubles):
        exact = _read_by_python(part, schema, behind, only=doubles)
        for name in doubles:
            rows = rows.set_column(rows.column_names.index(name), name, exact[name])
    return rows


def _parsed(part: bytes, texts: Mapping[str, pa.DataType]) -> pa.Table:
    options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts), unexpected_field_behavior="infer")
    blocks = pyarrow.json.ReadOptions(block_size=LONGEST_LINE)
    return pyarrow.json.read_json(pa.BufferReader(part), read_options=blocks, parse_options=options)


def _read_by_python(
    part: bytes, schema: pa.Schema, behind: RowsBefore, only: Collection[str] | None = None
) -> pa.Table:
    """Rows of a JSON-lines file, with texts for all values: for numbers, and for the columns the stream has not."""
    text = part.decode("utf-8-sig")
    values_of = decoder()
    kinds = {column.name: column.type for column in schema if only is None or column.name in only}
    found: dict[str, list[Any]] = {name: [] for name in kinds}
    at, row = _SPACE.match(text).end(), 0  # type: ignore[union-attr]
    while at < len(text):
        try:
            values, at = values_of.raw_decode(text, at)
        except ValueError as error:
            raise ValueError(f"{getattr(error, 'msg', error)} in row {behind.rows + row + 1}") from error
        if not isinstance(values, dict):
            raise ValueError(f"row {behind.rows + row + 1} is {shown(values)}, and not an object")
        behind.columns |= dict.fromkeys(values)
        for name, value in values.items():
            if only is not None and name not in only:
                continue
            column = found.setdefault(name, [])
            column += [None] * (row - len(column))
            try:
                column.append(as_texts(value, kinds[name], name) if name in kinds else text_of(value))
            except ConfigError as error:
                raise _Misfit(behind.rows + row, str(error)) from None
        at, row = _SPACE.match(text, at).end(), row + 1  # type: ignore[union-attr]
    types = {name: all_texts(kinds.get(name, pa.string())) for name in found}
    return pa.table(
        {name: pa.array([*column, *[None] * (row - len(column))], types[name]) for name, column in found.items()}
    )


def _has_long_number(part: bytes, columns: Mapping[str, pa.DataType]) -> bool:
    """Whether one of these columns has a number of more digits than a double holds."""
    # After its name. A number in a list has no name, and all but words may be written in two ways: a/b, a\/b. So may
    # words, if a letter is written as \uXXXX.
    plain = all(re.fullmatch(r"[\w ]+", name, re.ASCII) and not pa.types.is_nested(columns[name]) for name in columns)
    if plain and _ESCAPED_NAME.search(part) is None:
        named = b"|".join(re.escape(json.dumps(name).encode()) for name in columns)
        return re.search(rb"(?:%s)\s*:\s*-?[0-9.]{16}" % named, part) is not None
    # The search for digits takes a small part of the time of a search for any number.
    return _DIGITS in part.translate(_TO_DIGITS) and _NUMBER.search(part) is not None


def header(file: Path) -> list[str]:
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

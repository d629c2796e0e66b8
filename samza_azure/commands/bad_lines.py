"""The lines of CSV and JSON-lines files that do not fit a stream, each with the reason; and files without them.

`row_files` reads a file fast, and stops at the first error, often without its line. This reads a file that has one
again, record by record: those that can be parsed in groups, which are halved where one does not fit.

Promised: what is a bad line depends on the line, its file's header and the schema alone, but for values of JSON lines
whose type depends on the rows around them.
"""

import csv
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from samza_azure.commands import row_files
from samza_azure.commands.row_files import (
    RowsBefore,
    Seen,
    csv_rows,
    header,
    json_rows,
    kind_of,
)
from samza_azure.errors import ConfigError
from samza_azure.stream_io.source_stream import partition_numbers
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.stream_io.values.json_texts import decoder

#: Records that are tried together, and lines that an object of JSON may have.
GROUP, OBJECT_LINES = 1_000, 100
TOO_LONG = "it is a line longer than {} MiB. Is it one row per line?"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A record, with the number of its first line, and a sentence on what is wrong. `is_read`: its values are known."""

    file: Path
    line: int
    data: bytes
    reason: str
    is_read: bool = True

    def told(self, stream: str) -> str:
        """The sentence for the user."""
        if self.is_read:
            return f"Line {self.line} of {self.file} does not fit the stream {stream!r}. {self.reason}"
        return f"Line {self.line} of {self.file} cannot be read as {self.file.suffix[1:]}: {self.reason}"

    def as_json(self) -> str:
        """The line of a file of bad lines. `text` is what the record is, so it can be corrected and produced again."""
        text = self.data.decode(errors="backslashreplace").rstrip("\r\n")
        values = {"file": self.file.name, "line": self.line, "error": self.reason, "text": text}
        return json.dumps(values, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class _Record:
    line: int
    data: bytes


def sort_out(file: Path, schema: pa.Schema, event_time: str | None, key: str | None) -> Iterator[bytes | BadLine]:
    """Yield the header of a file and its records in order, as they are; bad ones as `BadLine`.

    Nothing for a file of another kind, or of which all records would be bad: without a column, for example.
    """
    kind = kind_of(file)
    names = header(file) if kind == "csv" else []
    if kind not in ("csv", "json") or (kind == "csv" and not {*schema.names, *([key] if key else [])} <= {*names}):
        return
    with pa.input_stream(str(file), compression="detect") as data:
        lines = _Lines(io.BufferedReader(data))
        if kind == "csv":
            head = _csv_head(lines)
            yield head
            texts = {
                name for name in names if name not in schema.names or not pa.types.is_binary(schema.field(name).type)
            }
            records = _csv_records(file, lines, names, texts)
            group = _Together(file, schema, event_time, key, head, names)
        else:
            records = _json_records(file, lines)
            group = _Together(file, schema, event_time, key, b"", [])
        for each in records:
            if isinstance(each, BadLine):
                yield from group.taken()
                yield each
            else:
                if not group.has_room_for(each):
                    yield from group.taken()
                group.add(each)
        yield from group.taken()


class _Lines:
    """The lines of a file, which can be put back."""

    def __init__(self, data: Iterable[bytes]) -> None:
        self._data, self._back = enumerate(data, 1), deque[_Record]()

    def next(self) -> _Record | None:
        if self._back:
            return self._back.popleft()
        number, line = next(self._data, (0, b""))
        return _Record(number, line) if line else None

    def put_back(self, lines: Iterable[_Record]) -> None:
        self._back.extendleft(reversed([*lines]))


class _Together:
    """Records that are tried together."""

    def __init__(
        self,
        file: Path,
        schema: pa.Schema,
        event_time: str | None,
        key: str | None,
        head: bytes,
        names: list[str],
    ) -> None:
        self._file, self._schema, self._event_time, self._key = file, schema, event_time, key
        self._head, self._names = head, names
        self._records: list[_Record] = []
        self._bytes = len(head)

    def has_room_for(self, record: _Record) -> bool:
        """Whether the group can still be read as one block with this record, which Arrow needs."""
        return len(self._records) < GROUP and self._bytes + len(record.data) < row_files.LONGEST_LINE

    def add(self, record: _Record) -> None:
        self._records.append(record)
        self._bytes += len(record.data)

    def taken(self) -> Iterator[bytes | BadLine]:
        """Its records, of which no more is known afterwards."""
        records, self._records, self._bytes = self._records, [], len(self._head)
        yield from self._tried(records)

    def _tried(self, records: list[_Record]) -> Iterator[bytes | BadLine]:
        if not records:
            return
        try:
            self._try(b"".join(each.data for each in records))
        except (ConfigError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            if len(records) == 1:
                yield BadLine(self._file, records[0].line, records[0].data, str(error))
                return
            half = len(records) // 2
            yield from self._tried(records[:half])
            yield from self._tried(records[half:])
        else:
            yield from (each.data for each in records)

    def _try(self, data: bytes) -> None:
        if self._head:
            tables = csv_rows(Seen(), io.BytesIO(self._head + data), self._names, self._schema)
        else:
            tables = iter([json_rows(data, self._schema, self._key, RowsBefore())])
        for rows in tables:
            fitting = fitted(rows, self._schema, self._event_time)
            if self._key is not None:
                partition_numbers(fitting if self._key in self._schema.names else rows, [self._key], 1)


def _with_end(data: bytes) -> bytes:
    return data if data.endswith(b"\n") else data + b"\n"


def _csv_head(lines: _Lines) -> bytes:
    """The record with the names of the columns."""
    while (line := lines.next()) is not None:
        if line.data.strip(b"\r\n"):
            data = [line.data]
            is_open = _ends_open(line.data, inside=False)
            while is_open and (more := lines.next()) is not None:
                data.append(more.data)
                is_open = _ends_open(more.data, inside=True)
            return _with_end(b"".join(data))
    return b""


def _ends_open(record: bytes, *, inside: bool) -> bool:
    """Whether a field in quotes goes on behind this line; `inside`: it begins in one. A quote counts where a field
    begins, as Arrow has it."""
    if b'"' not in record:
        return inside
    begins, at = True, 0
    while at < len(record):
        byte = record[at : at + 1]
        if inside and byte == b'"':
            if record[at + 1 : at + 2] == b'"':
                at += 1
            else:
                inside = False
        elif not inside:
            inside = begins and byte == b'"'
            begins = byte in (b",", b"\n", b"\r")
        at += 1
    return inside


def _csv_records(file: Path, lines: _Lines, names: list[str], texts: set[str]) -> Iterator[_Record | BadLine]:
    while (first := lines.next()) is not None:
        if not first.data.strip(b"\r\n"):
            continue
        more = list[_Record]()
        size, is_open = len(first.data), _ends_open(first.data, inside=False)
        while is_open and size <= row_files.LONGEST_LINE and (line := lines.next()) is not None:
            more.append(line)
            size += len(line.data)
            is_open = _ends_open(line.data, inside=True)
        data = b"".join(each.data for each in (first, *more))
        reason = _wrong_record(data, names, texts, is_open=is_open)
        if reason:  # of several lines the first one is at fault: its quote was not meant as one
            lines.put_back(more)
            yield BadLine(file, first.line, first.data, reason, is_read=False)
        else:
            yield _Record(first.line, _with_end(data))


def _wrong_record(data: bytes, names: list[str], texts: set[str], *, is_open: bool) -> str:
    """What is wrong with a record of CSV, apart from its values; empty if nothing is."""
    if len(data) >= row_files.LONGEST_LINE and not is_open:
        return TOO_LONG.format(row_files.LONGEST_LINE >> 20)
    text = data.decode(errors="surrogateescape")
    short = f"{data.splitlines()[0].decode(errors='backslashreplace')!r:.120}"
    if is_open:
        return f"a quote is opened and not closed: {short}. Write it twice in a field in quotes, or close it."
    try:
        (fields,) = csv.reader(io.StringIO(text, newline=""))
    except (csv.Error, ValueError):
        return ""  # Arrow decides
    if len(fields) != len(names):
        return (
            f"it has {len(fields)} fields, and the header names {len(names)}: {short}. Write one for each column, and "
            "a field that has a comma in double quotes."
        )
    for name, value in zip(names, fields, strict=True):
        if name in texts and not value.isascii() and (wrong := _wrong_bytes(value)):
            return f"the column {name!r} has {wrong}"
    return ""


def _wrong_bytes(text: str) -> str:
    """What is said of a text with bytes that are not UTF-8; empty if it has none."""
    if not any("\udc80" <= each <= "\udcff" for each in text):
        return ""
    data = text.encode(errors="surrogateescape")
    remedy = "Convert the file, for example: iconv -f latin1 -t utf-8 rows.csv > utf8.csv"
    return f"{data!r:.80}, which is not UTF-8. {remedy}."


def _json_records(file: Path, lines: _Lines) -> Iterator[_Record | BadLine]:
    while (first := lines.next()) is not None:
        if not first.data.strip():
            continue
        more = list[_Record]()
        data, (reason, is_open) = first.data, _wrong_json(first.data)
        while is_open and len(more) < OBJECT_LINES and (line := lines.next()) is not None:
            more.append(line)
            data += line.data
            _, is_open = wrong = _wrong_json(data)
            if not wrong[0]:
                reason = ""
        if reason:
            lines.put_back(more)
            yield BadLine(file, first.line, first.data, reason, is_read=False)
        else:
            yield _Record(first.line, _with_end(data))


def _wrong_json(data: bytes) -> tuple[str, bool]:
    """What is wrong with a line of JSON, apart from its values, and whether further lines may mend it."""
    if len(data) >= row_files.LONGEST_LINE:
        return TOO_LONG.format(row_files.LONGEST_LINE >> 20), False
    text = data.decode("utf-8-sig", errors="surrogateescape").rstrip()
    if not text.isascii() and (wrong := _wrong_bytes(text)):
        return f"it has {wrong}", False
    values = decoder()
    at = 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value: Any
            value, at = values.raw_decode(text, at)
        except json.JSONDecodeError as error:
            said = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}: {text!r:.120}"
            return (
                f"{said}. Write one JSON object per line.",
                error.pos >= len(text) or error.msg.startswith("Unterminated string"),
            )
        except ValueError as error:
            return f"{error}: {text!r:.120}.", False
        if not isinstance(value, dict):
            return f'{text:.80} is not an object. Write one JSON object per line, like {{"id": 1}}.', False
    return "", False

"""What a file of rows is, if it is not what its name says, and how to make that of it.

Arrow's own errors show a part of the bytes, or the first comma that it misses.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from samza_azure.commands.row_files import header, kind_of
from samza_azure.errors import ConfigError
from samza_azure.stream_io.values.refusals import lacking

#: How other files begin, and what is done about them.
_BEGINNINGS = {
    b"\xff\xfe": "is UTF-16, and not UTF-8. Convert it: iconv -f utf-16 -t utf-8 {file} > {utf8}",
    b"\xfe\xff": "is UTF-16, and not UTF-8. Convert it: iconv -f utf-16 -t utf-8 {file} > {utf8}",
    b"PK\x03\x04": "is a zip archive or a spreadsheet. Unpack it, or save the sheet as CSV.",
    b"PAR1": "is a Parquet file. Rename it: mv {file} {parquet}",
}
_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|$)")


def check_whole(file: Path, wanted: Sequence[str]) -> None:
    """Raise `ConfigError` if a text file, perhaps compressed, is of another kind, or lacks columns in its header."""
    kind = kind_of(file)
    if kind in ("csv", "json"):
        _refuse_others(file, kind)
    if kind == "csv":
        _check_header(file, header(file), wanted)


def _refuse_others(file: Path, kind: str) -> None:
    with file.open("rb") as data:
        is_packed = data.read(2) == b"\x1f\x8b"
    if is_packed and file.suffix.lower() != ".gz":
        raise ConfigError(f"{file} is compressed by gzip. Rename it: mv {_quoted(file)} {_quoted(f'{file}.gz')}")
    with pa.input_stream(str(file), compression="detect") as data:
        begins = data.read(1 << 10)
    if not begins.strip():
        raise ConfigError(f"{file} is empty.")
    utf8, parquet = f"utf8-{file.name}", file.with_suffix(".parquet")
    for beginning, said in _BEGINNINGS.items():
        if begins.startswith(beginning):
            raise ConfigError(f"{file} {said.format(file=_quoted(file), utf8=_quoted(utf8), parquet=_quoted(parquet))}")
    if kind == "json" and _ARRAY.match(begins) is not None:
        unpacked = "zcat" if is_packed else "cat"
        lines = file.with_name(f"{file.name.partition('.')[0]}-lines.jsonl")
        raise ConfigError(
            f"{file} is one JSON array. Write one object per line: {unpacked} {_quoted(file)} | jq -c '.[]' > "
            f"{_quoted(lines)}"
        )


def _quoted(file: Path | str) -> str:
    """A file as a shell takes it."""
    return shlex.quote(str(file))


def _check_header(file: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    plain = {name.strip().lower(): name for name in names}
    for separator, said in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(names) == 1 and set(missing) <= {each.strip() for each in names[0].split(separator)}:
            reason = f"Its columns are separated by {said}. Separate them by commas, and write decimals with a point"
            break
    else:
        if set(missing) <= plain.keys() | set(plain.values()):
            written = ", ".join(f"{name} for {plain[name.lower()]!r}" for name in missing if name.lower() in plain)
            reason = f"Write {written} in its first line" if written else ""
        elif not plain.keys() & {name.lower() for name in missing} and set(missing) == set(wanted):
            reason = f"The first line of a CSV file names the columns. Put one in front: {','.join(missing)}"
        else:
            reason = ""
    raise ConfigError(f"{file}: {lacking(missing, names)!s}{f' {reason}.' if reason else ''} Nothing was written.")

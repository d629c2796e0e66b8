"""Lines of CSV and JSON files that do not fit: each is named with its place, value and remedy, and can be set aside."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.commands import produce as produce_module
from samza_azure.errors import ConfigError
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.source_stream import SourceWriter
from tests.commands.test_files import put, stored, stored_values

GOOD = "UA,2013-01-01 05:00:00,1"
SCHEMA = "carrier string, ts timestamp, dep_delay double"


@pytest.fixture
def account() -> Any:
    made = MemoryAccount()
    made.ensure_created()
    return made


def csv_of(folder: Path, *lines: bytes | str, name: str = "rows.csv") -> Path:
    file = folder / name
    data = [line if isinstance(line, bytes) else line.encode() for line in ("carrier,ts,dep_delay", *lines)]
    file.write_bytes(b"\n".join(data) + b"\n")
    return file


def json_of(folder: Path, *lines: str, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def row(delay: str, name: str = "dep_delay") -> str:
    return f'{{"carrier": "UA", "ts": "2013-01-01 05:00:00", "{name}": {delay}}}'


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("UA,2013-01-01 05:00:00", "Line 3 of {file} cannot be read as csv: it has 2 fields, and the header names 3: "),
        (
            "UA,x,y,z",
            "it has 4 fields, and the header names 3: 'UA,x,y,z'. Write one for each column, and a field that",
        ),
        (b"caf\xe9,2013-01-01,1", "the column 'carrier' has b'caf\\xe9', which is not UTF-8. Convert the file, for"),
        ('UA,2013-01-01 05:00:00,"20,5"', "'dep_delay' is double, which cannot hold '20,5'. Write a point instead of"),
        (
            "UA,2013-01-01 05:00:00,late",
            "Line 3 of {file} does not fit the stream 'flights'. The column 'dep_delay' is",
        ),
        ("UA,2013-01-01 05:00:00,late", "which cannot hold 'late'. Write a number, like 20.5."),
        (
            "UA,,1",
            "Line 3 of {file} does not fit the stream 'flights'. The column 'ts' is null in a row, and it is the",
        ),
        (
            ",2013-01-01,1",
            "The column 'carrier' is null in a row, and the schema says NOT NULL. Write a value, or leave",
        ),
        ("UA,yesterday,1", "The column 'ts' is timestamp, which cannot hold 'yesterday'. Write times like"),
        ('UA,"2013-01-01 05:00:00,1', "a quote is opened and not closed: 'UA,\"2013-01-01 05:00:00,1'"),
    ],
    ids=str,
)
def test_a_bad_line_of_csv_is_named_with_column_value_and_remedy(
    bad: str | bytes, says: str, account: Any, tmp_path: Path
) -> None:
    file, schema = csv_of(tmp_path, GOOD, bad, GOOD), SCHEMA.replace("string", "string NOT NULL")
    with pytest.raises(ConfigError) as refused:
        put(account, file, schema=schema)
    assert says.format(file=file) in str(refused.value)
    assert "--bad-lines FILE" in str(refused.value) and stored(account) == 0
    assert put(account, file, schema=schema, bad_lines=tmp_path / "bad") == stored(account) == 2
    (aside,) = map(json.loads, (tmp_path / "bad").read_text().splitlines())
    assert (aside["file"], aside["line"], aside["error"] in str(refused.value)) == ("rows.csv", 3, True)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row('"20,5"'), "cannot hold '20,5'. Write a point instead of the comma: 20.5."),
        ('{"carrier": "UA", "dep_delay": 1', "Expecting ',' delimiter at character 33: "),
        ("[1]", "Line 2 of {file} cannot be read as jsonl: [1] is not an object. Write one JSON object per"),
        ('{"carrier": "UA", "carrier": "AA"}', "an object has the key 'carrier' twice"),
        (row("true"), "'dep_delay' is double, which cannot hold True (bool)"),
        ('{"carrier": "UA" "x"}', "Expecting ',' delimiter at character 18"),
        ('{"carrier": "UA", "dep_delay": 1}', "Line 2 of {file} does not fit the stream 'flights'. The column 'ts' is"),
    ],
    ids=str,
)
def test_a_bad_line_of_json_is_named_with_column_value_and_remedy(
    bad: str, says: str, account: Any, tmp_path: Path
) -> None:
    file = json_of(tmp_path, row("1"), bad, row("2.5"))
    with pytest.raises(ConfigError) as refused:
        put(account, file)
    assert says.format(file=file) in str(refused.value)
    assert put(account, file, bad_lines=tmp_path / "bad") == 2
    assert sorted(stored_values(account)) == [1.0, 2.5]
    (aside,) = map(json.loads, (tmp_path / "bad").read_text().splitlines())
    assert (aside["line"], aside["text"]) == (2, bad)


def test_all_bad_lines_of_all_files_are_named_at_once_up_to_a_bound(account: Any, tmp_path: Path) -> None:
    """One error was told at a time, and each mended line showed the next one."""
    first = csv_of(tmp_path, GOOD, "UA", "", GOOD.replace("1", "x"), name="a.csv")
    second = json_of(tmp_path, row("1"), "{", row('"x"'), name="b.jsonl")
    with pytest.raises(ConfigError) as refused:
        put(account, first, second)
    said = str(refused.value).splitlines()
    assert [line.partition(" of ")[0] for line in said[:-1]] == ["Line 3", "Line 5", "Line 2", "Line 3"]
    many = csv_of(tmp_path, *["UA"] * 50)
    with pytest.raises(ConfigError) as refused:
        put(account, many)
    assert str(refused.value).count("\n") == 21 and "These are the first 20; there may be more." in str(refused.value)


def test_fields_over_several_lines_count_as_lines_and_are_kept_whole(account: Any, tmp_path: Path) -> None:
    file = csv_of(tmp_path, '"U', 'A",2013-01-01 05:00:00,1', "", "UA,x,1", '"A\r\nA ""x""",2013-01-01 05:00:00,2')
    with pytest.raises(ConfigError, match=r"Line 5 of .*cannot hold 'x'"):
        put(account, file)
    assert put(account, file, bad_lines=tmp_path / "bad") == 2
    file = json_of(tmp_path, '{"carrier":\n "UA",\n', row("1")[18:], row('"x"'))
    with pytest.raises(ConfigError, match=r"Line 5 of .*cannot hold 'x'"):
        put(account, file)


def test_a_file_that_does_not_fit_as_a_whole_is_not_set_aside(account: Any, tmp_path: Path) -> None:
    file = csv_of(tmp_path, GOOD)
    file.write_text(file.read_text().replace("dep_delay", "delay"))
    with pytest.raises(ConfigError, match="The rows lack dep_delay"):
        put(account, file, bad_lines=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_the_file_of_bad_lines_is_not_replaced_by_another(account: Any, tmp_path: Path) -> None:
    file, to, said = csv_of(tmp_path, GOOD, "UA"), tmp_path / "bad", list[str]()
    assert put(account, file, bad_lines=to, dry_run=True, say=said.append) == 1
    assert not to.exists() and f"1 lines that do not fit would be set aside in {to}." in said
    put(account, file, bad_lines=to)
    put(account, file, bad_lines=to)
    before = to.read_bytes()
    with pytest.raises(ConfigError, match="is there already, with other lines"):
        put(account, csv_of(tmp_path, GOOD, "AA"), bad_lines=to)
    assert (to.read_bytes(), stored(account)) == (before, 2)


class Killed(BaseException):
    """The process is killed here."""


def killed_at(at: int, calls: list[int]) -> Callable[..., Any]:
    """Counts calls, and kills the process before one of them."""

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == at:
                raise Killed
            return function(*arguments, **named)

        return counted

    return before


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_each_line_is_stored_or_set_aside_once_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    dice = random.Random(34)
    monkeypatch.setattr(produce_module, "_Paced", Small)
    lines = [f"UA,2013-01-01 05:00:00,{'x' * dice.randrange(2)}{number}" for number in range(30)]
    file, good = csv_of(tmp_path, *lines), sorted(float(line.split(",")[2]) for line in lines if "x" not in line)
    at, kills = 0, 0
    while True:
        at += step
        account, to, calls = MemoryAccount(), tmp_path / f"bad-{at}", list[int]()
        account.ensure_created()
        with monkeypatch.context() as patch:
            kill = killed_at(at, calls)
            for place, name in (
                (SourceWriter, "write"), (SourceWriter, "flush"), (SourceWriter, "close"),
                (produce_module._Aside, "deliver"), (Path, "replace"),
            ):  # fmt: skip
                patch.setattr(place, name, kill(getattr(place, name)))
            try:
                put(account, file, once="k", bad_lines=to)
            except Killed:
                kills += 1
                assert to.exists() or stored(account) == 0, "the bad lines are there before the first row"
            else:
                break
        for _ in range(2):
            put(account, file, once="k", bad_lines=to)
        assert sorted(stored_values(account)) == good
        aside = [json.loads(line)["text"] for line in to.read_text().splitlines()]
        assert aside == [line for line in lines if "x" in line]
    assert kills > 7 // step


class Small(produce_module._Paced):
    """Writes few rows at a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.at_once = 7


def test_other_bad_lines_are_other_rows_under_a_key(account: Any, tmp_path: Path) -> None:
    """Which lines are bad decides which rows those of the key are."""
    file = csv_of(tmp_path, GOOD, GOOD.replace(",1", ",1.5"), GOOD)
    put(account, file, once="k", bad_lines=tmp_path / "bad", schema=SCHEMA)
    with pytest.raises(ConfigError, match="The key 'k' was used for other rows"):
        put(account, file, once="k", bad_lines=tmp_path / "bad", schema=SCHEMA.replace("double", "int"))
    assert pa.array(stored_values(account)).to_pylist().count(1.5) == 1

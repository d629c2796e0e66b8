"""What produce and export do with files, over the storage in memory. What their commands print: `test_commands.py`."""

import gzip
import io
import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from samza_azure.commands.export import By, Target, export
from samza_azure.commands.kept_rows import KeptRows, kept_rows
from samza_azure.commands.produce import _without_stdin, produce, refuse_other_partitions
from samza_azure.commands.row_files import _first_misfit, _has_long_number
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.group.control import Control, RunPhase
from samza_azure.logs.names import source_log
from samza_azure.logs.partition import partition_of
from samza_azure.logs.record import Slice, Writer
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.arrow import encode
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.stream_io.values.fitting import fitted
from samza_azure.stream_io.values.json_lines import as_lines
from tests.storage.stored_rows import batches_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "job.toml"
ENVIRONMENT = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}


@pytest.fixture
def account() -> Any:
    made = MemoryAccount()
    made.ensure_created()
    return made


def put(
    account: Any,
    *files: Path,
    key: str | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda written, total: None,
    say: Callable[[str], None] = lambda text: None,
    once: str = "",
    bad_lines: Path | None = None,
    job: Path = EXAMPLE,
    **changes: Any,
) -> int:
    """Produce the files into the example's source stream, as a job file with these changes has it."""
    overrides = {f"streams.flights.{name}": value for name, value in changes.items()}
    config = Config.load(job, environment=ENVIRONMENT, overrides=overrides)
    return produce(
        config,
        account,
        "flights",
        files,
        key=key,
        rate=rate,
        dry_run=dry_run,
        progress=progress,
        say=say,
        once=once,
        bad_lines=bad_lines,
    )


def untimed(folder: Path) -> Path:
    """The example's job file, in which the stream has no event time."""
    job = folder / "untimed.toml"
    job.write_text(EXAMPLE.read_text().replace('event_time = "ts"', "", 1))
    return job


def flights(folder: Path, *lines: str, columns: str = "carrier,ts,dep_delay") -> Path:
    file = folder / "rows.csv"
    file.write_text("\n".join((columns, *lines, "")))
    return file


def test_a_key_that_looks_like_a_number_remains_text(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, "02101,UA,2013-01-01 05:00:00,1", columns="zip,carrier,ts,dep_delay")
    put(account, file, key="zip")
    assert (partition_of(("02101",), 4), partition_of((2101,), 4)) == (3, 0)
    assert LogReader(account.blobs(), source_log("flights/3")).scan((0, 0)).rows == 1


def test_an_interrupted_produce_reports_which_rows_are_stored(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, *(f"UA,2013-01-01 05:{number:02}:00,{number}" for number in range(30)))

    def interrupt(written: int, total: int) -> None:
        if written == 20:
            raise KeyboardInterrupt

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        put(account, file, rate=50.0, progress=interrupt, say=said.append)
    assert said[1:] == [f"\nInterrupted. The first 20 rows of {file} are stored, and perhaps some of the next 10."]
    assert sum(batch.num_rows for batch in batches_of(account.blobs(), "flights")) == 20


def test_produce_reports_rows_far_in_the_future(account: Any, tmp_path: Path) -> None:
    said: list[str] = []
    file = flights(tmp_path, "UA,2013-01-01 05:00:00,1", "UA,9999-12-31 00:00:00,2")
    assert put(account, file, say=said.append, max_future="2 h") == 2
    assert said[-1] == (
        "1 of the rows are more than 7200 s ahead of this machine's clock (streams.flights.max_future). "
        "They are stored, but do not advance event time."
    )


def stored(account: Any) -> int:
    if not list(account.blobs().list("streams/flights/")):
        return 0
    return sum(batch.num_rows for batch in batches_of(account.blobs(), "flights"))


ROW = {"carrier": "UA", "ts": "2013-01-01T05:00:00", "dep_delay": 1.0}


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.csv.gz", "rows.jsonl.gz", "rows.parquet"])
def test_each_file_type_is_read_with_the_same_warnings(name: str, account: Any, tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / name
    rows = [{**ROW, "more": 1}, {**ROW, "more": 2}]
    table = pa.Table.from_pylist(rows)
    table = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("s")))
    if name.endswith(".parquet"):
        pq.write_table(table, file)
    else:
        text = io.BytesIO()
        if "csv" in name:
            pyarrow.csv.write_csv(table, text)
        else:
            text.write("".join(f"{json.dumps(each)}\n" for each in rows).encode())
        file.write_bytes(gzip.compress(text.getvalue()) if name.endswith(".gz") else text.getvalue())
    assert put(account, file, dry_run=True, say=said.append) == 2
    assert stored(account) == 0
    assert said == [
        "Columns that the stream does not have are left out: more.",
        "The times of ts have no zone; they are taken as UTC.",
    ]
    assert put(account, file) == 2 and stored(account) == 2


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_a_zone_is_seen_in_each_time_that_has_one(name: str, account: Any, tmp_path: Path) -> None:
    """Arrow reads times of JSON into a type without a zone, so all were said to have none."""
    said: list[str] = []
    file = tmp_path / name

    def given(*times: str) -> Path:
        rows = [{"carrier": "UA", "ts": each, "dep_delay": 1.0} for each in times]
        if name == "rows.jsonl":
            file.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
        else:
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)
        return file

    zoned = ("2013-01-01T05:00:00Z", "2013-01-01 05:00:00+01:00", "2013-01-01T05:00:00.123-0130", "2013-01-01 05+02")
    put(account, given(*zoned), partitions=1, say=said.append)
    assert said == []
    found = [row["ts"] for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert [f"{each:%H:%M:%S.%f}" for each in found] == [
        "05:00:00.000000", "04:00:00.000000", "06:30:00.123000", "03:00:00.000000"
    ]  # fmt: skip
    put(account, given(*zoned, "2013-01-31"), dry_run=True, say=said.append)
    assert said == ["The times of ts have no zone; they are taken as UTC."]


def test_times_of_json_that_are_numbers_or_missing_are_refused(account: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"carrier": "UA", "ts": 1357016400, "dep_delay": 1.0}\n')
    with pytest.raises(ConfigError, match=r"Line 1 of .* The column 'ts' holds numbers, and their unit of time is unk"):
        put(account, file)
    file.write_text('{"carrier": "UA", "tss": "2013-01-01T05:00:00Z", "dep_delay": 1.0}\n')
    with pytest.raises(ConfigError, match="The rows lack ts"):
        put(account, file)


def test_several_files_and_folders_are_read_in_order_and_checked_before_the_first_row(
    account: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    for day in (2, 1):
        (folder / f"{day}.jsonl").write_text(json.dumps({**ROW, "carrier": f"day {day}"}) + "\n")
    (folder / "notes.txt").write_text("not rows")
    first = flights(tmp_path, "first,2013-01-01 05:00:00,1")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("carrier,ts,dep_delay\nUA,yesterday,1\n")
    with pytest.raises(ConfigError, match=r"Line 2 of .*wrong.csv does not fit"):
        put(account, first, folder, wrong)
    assert stored(account) == 0
    assert put(account, first, folder, partitions=1) == 3
    rows = pa.Table.from_batches(batches_of(account.blobs(), "flights"))
    assert rows["carrier"].to_pylist() == ["first", "day 1", "day 2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no file that ends in"):
        put(account, tmp_path / "empty")


def test_an_empty_field_is_null_and_a_decimal_that_would_change_is_refused(account: Any, tmp_path: Path) -> None:
    schema = "carrier string, ts timestamp, dep_delay decimal(10,2)"
    with pytest.raises(
        ConfigError,
        match=r"Line 3 of .* cannot hold '1\.005'\. Write .*, 2 of them after the point\.\nNothing was written",
    ):
        put(account, flights(tmp_path, "UA,2013-01-01 05:00:00,1.25", "UA,2013-01-01 05:00:00,1.005"), schema=schema)
    put(account, flights(tmp_path, ",2013-01-01 05:00:00,1.25"), schema=schema)
    [row] = [row for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert row["carrier"] is None and str(row["dep_delay"]) == "1.25"


def test_the_decimals_of_a_csv_file_are_stored_to_their_last_digit(account: Any, tmp_path: Path) -> None:
    """As doubles they were stored as 12345678901234568.00, without a word."""
    schema = "carrier string, ts timestamp, dep_delay decimal(38,2)"
    rows = ("UA,2013-01-01 05:00:00,12345678901234567.89", "UA,2013-01-01 05:00:00,", "UA,2013-01-01 05:00:00,1")
    put(account, flights(tmp_path, *rows), schema=schema)
    found = [row["dep_delay"] for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert sorted(map(str, found)) == ["1.00", "12345678901234567.89", "None"]
    with pytest.raises(ConfigError, match=r"Line 2 of .* is decimal\(38,2\), which cannot hold 'x'\."):
        put(account, flights(tmp_path, "UA,2013-01-01 05:00:00,x"), schema=schema)


def test_the_types_of_a_csv_file_do_not_depend_on_how_it_begins(
    account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes them from the first 16 MiB: whole numbers there, and a 1.5 later was refused, without its row."""
    monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", 256)
    some = [",2013-01-01,7,1,", "UA,2013-01-01,7,2,"] * 20
    others = ["UA,2013-01-01 05:00:00.5Z,1.0,1.5,x", "UA,2013-01-01 05:00:00+01:00, 8,-inf,"]
    schema = "carrier string, ts timestamp, gate int, dep_delay double"
    columns = "carrier,ts,gate,dep_delay,more"
    put(account, flights(tmp_path, *some, *others, columns=columns), schema=schema, partitions=1)
    rows = pa.Table.from_batches(batches_of(account.blobs(), "flights")).to_pylist()
    assert [(each["gate"], each["dep_delay"], f"{each['ts']:%d %H:%M:%S.%f}") for each in rows[39:]] == [
        (7, 2.0, "01 00:00:00.000000"),
        (1, 1.5, "01 05:00:00.500000"),
        (8, -math.inf, "01 04:00:00.000000"),
    ]
    with pytest.raises(ConfigError, match=r"cannot hold '1357016400'\. Write times like 2013-01-31 05:00:00Z\."):
        put(account, flights(tmp_path, "UA,1357016400,1,1,", columns=columns), schema=schema)
    with pytest.raises(ConfigError, match=r"Line 44 of .* The column 'gate' is int, which cannot hold '1\.5'\."):
        put(account, flights(tmp_path, *some, *others, "UA,,1.5,,", columns=columns), schema=schema)


def test_na_and_null_in_a_csv_file_are_null_and_reported(account: Any, tmp_path: Path) -> None:
    """In a column of text it is text, and NaN is a number to a double."""
    said: list[str] = []
    schema = "carrier string, ts timestamp, gate int, dep_delay double"
    rows = ("NA,2013-01-01 05:00:00,NA,NaN", "null,2013-01-01 05:00:00,NaN,NULL", ",2013-01-01 05:00:00,7,")
    file = flights(tmp_path, *rows, columns="carrier,ts,gate,dep_delay")
    put(account, file, schema=schema, partitions=1, say=said.append)
    assert "3 fields of dep_delay, gate say NA, NULL or the like; they are null." in said
    found = [row for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert [(each["carrier"], each["gate"], str(each["dep_delay"])) for each in found] == [
        ("NA", None, "nan"),
        ("null", None, "None"),
        (None, 7, "None"),
    ]


def test_no_number_of_json_lines_is_refused_that_a_decimal_can_hold(account: Any, tmp_path: Path) -> None:
    """Arrow casts the decimal 189.70 to 189.70000000000002, so every seventh price was refused."""
    file, schema = tmp_path / "prices.jsonl", "carrier string, ts timestamp, dep_delay decimal(10,2)"
    row = '{{"carrier": "UA", "ts": "2013-01-01 05:00:00", "dep_delay": {}.{:02}}}\n'
    file.write_text("".join(row.format(number // 100, number % 100) for number in range(0, 40_000, 7)))
    put(account, file, schema=schema)
    file.write_text(row.format("1.00", 5).replace("1.00.05", "1.005"))
    with pytest.raises(ConfigError, match=r"which cannot hold 1\.005 \(double\)\. Write .*\.\nNothing was written"):
        put(account, file, schema=schema)


def lines(folder: Path, *rows: str) -> Path:
    """A JSON-lines file of rows that are given as texts."""
    file = folder / "rows.jsonl"
    file.write_text("".join(f'{{"carrier": "UA", "ts": "2013-01-01 05:00:00Z", {row}}}\n' for row in rows))
    return file


@pytest.mark.parametrize(
    ("kind", "numbers", "told"),
    [
        ("decimal(38,2)", ["12345678901234567.89", "12345678901234567890", "-1234567890123456.7", "1", "1e3"], []),
        ("decimal(38,20)", ["0.1", "0.12345678901234567891", "1e-20"], []),
        ("decimal(10,2)", ["5", "7"], []),
        ("bigint", ["9007199254740993", "1.0", "1e3", "-9223372036854775807"], []),
        ("double", ["0.1", "1", "1234567890.1234567"], []),
        ("decimal(38,1)", ["1.0", "12345678901234567.89"], ["Line 2", "which cannot hold '12345678901234567.89'"]),
        ("bigint", ["1.0", "9223372036854775808"], ["Line 2", "bigint, which cannot hold '9223372036854775808'"]),
        ("bigint", ["9007199254740993", "1.5"], ["Line 2", "bigint, which cannot hold 1.5 (double)"]),
    ],
)
def test_the_numbers_of_json_lines_are_stored_to_their_last_digit(
    kind: str, numbers: list[str], told: list[str], account: Any, tmp_path: Path
) -> None:
    """As doubles, as which Arrow reads a column with one 1.0 in it, they lost those from the sixteenth on."""
    file = lines(tmp_path, *(f'"dep_delay": {number}' for number in numbers))
    schema = f"carrier string, ts timestamp, dep_delay {kind}"
    if told:
        with pytest.raises(ConfigError) as refused:
            put(account, file, schema=schema)
        assert [part for part in told if part not in str(refused.value)] == []
        return
    put(account, file, schema=schema, partitions=1)
    found = [row["dep_delay"] for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert list(map(Decimal, map(str, found))) == list(map(Decimal, numbers))


def test_numbers_within_lists_and_structs_keep_their_digits_too(account: Any, tmp_path: Path) -> None:
    schema = "carrier string, ts timestamp, dep_delay array<struct<n: bigint, price: decimal(38,2)>>"
    long = '"dep_delay": [{"n": 9007199254740993, "price": 12345678901234567.89}, {"n": 1, "price": 0.1}]'
    put(account, lines(tmp_path, long, '"dep_delay": []'), schema=schema, partitions=1)
    [first, second] = [
        row["dep_delay"] for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()
    ]
    assert [(each["n"], str(each["price"])) for each in first] == [
        (9007199254740993, "12345678901234567.89"),
        (1, "0.10"),
    ]
    assert second == []
    with pytest.raises(ConfigError, match="Line 1 of"):
        put(account, lines(tmp_path, '"dep_delay": [{"n": 1, "price": 1.005}]'), schema=schema)


def stored_values(account: Any) -> list[Any]:
    return [row["dep_delay"] for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]


NOON = datetime(2013, 1, 31, 12, tzinfo=ZoneInfo("UTC"))
DAY = date(2013, 1, 31)


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (
            "array<string>",
            ['["2013-01-31"]', '["2013-01-31T05:00:00Z", "x"]'],
            [["2013-01-31"], ["2013-01-31T05:00:00Z", "x"]],
        ),
        (
            "struct<s: string>",
            ['{"s": "2013-01-31T05:00:00Z"}', "{}", "null"],
            [{"s": "2013-01-31T05:00:00Z"}, {"s": None}, None],
        ),
        ("array<struct<s: string, n: bigint>>", ['[{"s": "2013-01-31", "n": 1}]'], [[{"s": "2013-01-31", "n": 1}]]),
        ("struct<t: timestamp>", ['{"t": "2013-01-31T13:00+01:00"}', '{"t": "2013-01-31 12:00"}'], [{"t": NOON}] * 2),
        ("array<date>", ['["2013-01-31", "2013-01-31 00:00:00"]', "[]"], [[DAY] * 2, []]),
        ("binary", ['"MjAxMy0wMS0zMQ=="', '"/wA="', "null"], [b"2013-01-31", b"\xff\0", None]),
        (
            "map<string, bigint>",
            ['{"a": 1, "b": null}', "{}", "null", '[["c", 9007199254740993]]'],
            [[("a", 1), ("b", None)], [], None, [("c", 9007199254740993)]],
        ),
        (
            "map<int, struct<s: string, flag: boolean>>",
            ['{"7": {"s": "2013-01-31", "flag": true}}'],
            [[(7, {"s": "2013-01-31", "flag": True})]],
        ),
        ("array<map<string, double>>", ['[{"a": 1.5}, {"b": "NaN"}]'], [[[("a", 1.5)], [("b", math.nan)]]]),
        ("double", ["1.5", '"NaN"', '"-Infinity"'], [1.5, math.nan, -math.inf]),
        ("bigint", ['"7"', "8"], [7, 8]),
    ],
    ids=str,
)  # fmt: skip
def test_texts_of_json_lines_are_stored_as_they_are_written(
    kind: str, values: list[str], stored: list[Any], account: Any, tmp_path: Path
) -> None:
    """Within lists and structs Arrow took texts for times, wrote numbers as texts, and lost zones."""
    file = lines(tmp_path, *(f'"dep_delay": {value}' for value in values))
    put(account, file, schema=f"carrier string, ts timestamp, dep_delay {kind}", partitions=1)
    assert repr(stored_values(account)) == repr(stored)


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("string", "1.10", "'dep_delay' is string, which cannot hold 1.10 (a number). Write a text."),
        ("array<string>", "[1.10, 2]", "'dep_delay.element' is string, which cannot hold 1.10 (a number)"),
        ("struct<s: string>", '{"s": 1e3}', "'dep_delay.s' is string, which cannot hold 1e3 (a number)"),
        ("struct<x: bigint>", '{"x": "2013-01-31"}', "'dep_delay.x' is bigint, which cannot hold 2013-01-31 00:00:00"),
        ("bigint", '"2013-01-31"', "'dep_delay' is bigint, which cannot hold 2013-01-31 00:00:00 (timestamp[s])"),
        ("bigint", "true", "'dep_delay' is bigint, which cannot hold True (bool). Write a whole number"),
        ("boolean", "7", "'dep_delay' is boolean, which cannot hold 7 (int64). Write true or false."),
        ("date", '"2013-01-31 23:30:00"', "'dep_delay' is date, which cannot hold '2013-01-31 23:30:00'"),
        ("date", '"2013-01-31T19:00:00-05:00"', "which cannot hold '2013-01-31T19:00:00-05:00'. Write a date like"),
        ("struct<t: timestamp>", '{"t": 5}', "'dep_delay.t' holds numbers, and their unit of time is unknown: 5"),
        ("struct<t: timestamp>", '{"t": "x"}', "'dep_delay.t' is timestamp, which cannot hold 'x'"),
        ("struct<n: bigint>", '{"n": 1, "m": 2}', "field 'dep_delay.m' is 2 (int64), and the stream has no"),
        ("float", "1e300", "'dep_delay' is float, which cannot hold 1e+300 (double)"),
        ("map<string, bigint>", "7", "which cannot hold 7 (a number). Write a map, in JSON an object."),
        ("map<string, bigint>", '{"a": true}', "'dep_delay.value' is bigint, which cannot hold true"),
        ("map<string, bigint>", '{"a": 1, "a": 2}', "has the key 'a' twice"),
        ("map<string, bigint>", '[["a"]]', 'which cannot hold [["a"]] (a list)'),
        ("map<string, bigint>", "[[null, 1]]", "The field 'dep_delay.key' must not be null."),
        ("array<bigint>", '{"a": 1}', "which cannot hold {'a': 1} (struct<a: int64>). Write a list."),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_json_lines_that_the_column_cannot_hold_is_refused(
    kind: str, value: str, told: str, account: Any, tmp_path: Path
) -> None:
    file = lines(tmp_path, '"dep_delay": null', f'"dep_delay": {value}')
    with pytest.raises(ConfigError) as refused:
        put(account, file, schema=f"carrier string, ts timestamp, dep_delay {kind}")
    assert "twice" in told or f"Line 2 of {file} does not fit the stream 'flights'. The " in str(refused.value)
    assert told in str(refused.value)
    assert stored(account) == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("struct<t: timestamp>", '{"t": "2013-01-31T12:00:00%s"}'),
        ("array<struct<t: timestamp>>", '[{"t": "2013-01-31T12:00:00%s"}]'),
        ("map<string, timestamp>", '{"k": "2013-01-31T12:00:00%s"}'),
    ],
)
def test_times_without_a_zone_are_reported_within_others_too(
    kind: str, value: str, account: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    schema = f"carrier string, ts timestamp, dep_delay {kind}"
    put(account, lines(tmp_path, f'"dep_delay": {value % "Z"}'), schema=schema, say=said.append)
    assert said == []
    put(account, lines(tmp_path, f'"dep_delay": {value % ""}'), schema=schema, say=said.append)
    assert said == ["The times of dep_delay have no zone; they are taken as UTC."]
    first, second = stored_values(account)
    assert first == second


def test_a_text_column_that_a_json_file_lacks_is_named(account: Any, tmp_path: Path) -> None:
    """It was null in each row, while a column of numbers was missed."""
    file = lines(tmp_path, '"dep_dalay": "x"')
    with pytest.raises(ConfigError, match="The rows lack dep_delay"):
        put(account, file, schema="carrier string, ts timestamp, dep_delay string")
    put(account, lines(tmp_path, '"dep_delay": null'), schema="carrier string, ts timestamp, dep_delay string")
    assert stored_values(account) == [None]


ROWS = "carrier,ts,dep_delay\nUA,2013-01-01T05:00:00Z,1.5\n"
OBJECTS = '[{"carrier": "UA", "ts": "2013-01-01T05:00:00Z", "dep_delay": 1.5}]'


def zipped(text: str) -> bytes:
    """A gzip file without the time of its making, which would be part of a test's name."""
    return gzip.compress(text.encode(), mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.csv", ROWS[ROWS.index("UA") :], "Put one in front: carrier,ts,dep_delay. Nothing was written."),
        ("rows.csv", ROWS.replace(",", ";"), "Its columns are separated by semicolons."),
        ("rows.csv", ROWS.replace("carrier,ts", "Carrier, ts"), "Write carrier for 'Carrier', ts for ' ts' in"),
        ("rows.csv", ROWS.replace(",dep_delay", ",delay"), "The rows lack dep_delay. They have carrier, ts, delay."),
        ("rows.csv", "", "rows.csv is empty."),
        ("rows.csv", ROWS.encode("utf-16"), "is UTF-16, and not UTF-8. Convert it: iconv -f utf-16 -t utf-8 "),
        ("rows.csv", zipped(ROWS), "is compressed by gzip. Rename it: mv "),
        ("rows.csv", b"PK\x03\x04", "is a zip archive or a spreadsheet."),
        ("rows.csv", b"PAR1", "is a Parquet file. Rename it: mv "),
        ("rows.json", OBJECTS, "is one JSON array. Write one object per line: cat "),
        ("rows.json.gz", zipped(OBJECTS), "is one JSON array. Write one object per line: zcat "),
    ],
)  # fmt: skip
def test_a_file_that_is_not_what_its_name_says_is_refused_with_what_to_do(
    name: str, content: str | bytes, told: str, account: Any, tmp_path: Path
) -> None:
    """Also where bad lines are set aside: each of its lines would be one."""
    folder = tmp_path / "Ann's rows"
    folder.mkdir()
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for bad_lines in (None, tmp_path / "bad"):
        with pytest.raises(ConfigError) as caught:
            put(account, file, bad_lines=bad_lines)
        assert told in str(caught.value)
    remedy = re.search(r": ((?:iconv|mv|z?cat) .*)", str(caught.value))
    if remedy and b"PAR1" not in file.read_bytes() and (shutil.which("jq") or "jq" not in remedy[1]):
        subprocess.run(remedy[1], shell=True, check=True, cwd=folder)  # as a user pastes it
        [made] = {*folder.iterdir()} - {file}
        assert put(account, made) == 1


def test_a_file_that_is_not_there_is_named_with_one_that_is(account: Any, tmp_path: Path) -> None:
    flights(tmp_path).rename(tmp_path / "flights.csv")
    with pytest.raises(ConfigError) as caught:
        put(account, tmp_path / "flihgts.csv")
    assert str(caught.value) == f"There is no file {tmp_path / 'flihgts.csv'}. Did you mean {tmp_path / 'flights.csv'}?"


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
@pytest.mark.parametrize(
    ("kind", "first", "last", "stored_or_told"),
    [
        ("bigint", "1.0", '"9007199254740993"', [1, 9007199254740993]),
        ("bigint", "1.0", "9007199254740993", [1, 9007199254740993]),
        ("bigint", "9007199254740993", "1.0", [9007199254740993, 1]),
        ("decimal(38,2)", "1.5", '"12345678901234567.89"', [Decimal("1.50"), Decimal("12345678901234567.89")]),
        ("boolean", "true", '"true"', [True, True]),
        ("map<string, bigint>", '{"a": 1}', "[]", [[("a", 1)], []]),
        ("string", "null", '"x"', [None, "x"]),
        ("struct<b: bigint>", '{"b": 1}', "5", "'dep_delay' is struct<b:bigint>, which cannot hold 5 (int64)"),
        ("array<bigint>", "[1]", "5", "which cannot hold 5 (int64). Write a list."),
        ("string", '"x"', "1.10", "'dep_delay' is string, which cannot hold 1.10 (a number). Write a text."),
        ("map<string, bigint>", '{"a": 1}', "5", "which cannot hold 5 (a number). Write a map, in JSON an object."),
    ],
    ids=str,
)  # fmt: skip
def test_a_column_of_json_lines_may_change_its_kind_far_behind(
    kind: str,
    first: str,
    last: str,
    stored_or_told: Any,
    ending: str,
    account: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrow sees a change of kind only within 16 MiB. Behind that, values were changed, or the process was killed."""
    monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", 256)
    between = ['"dep_delay": null'] * 10 + ['"more": 1'] * 10
    file = lines(tmp_path, f'"dep_delay": {first}', *between, f'"dep_delay": {last}', *between)
    if ending.endswith("gz"):
        file.with_suffix(".jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
        file = file.with_suffix(".jsonl.gz")
    schema = f"carrier string, ts timestamp, dep_delay {kind}"
    if isinstance(stored_or_told, str):
        with pytest.raises(ConfigError) as refused:
            put(account, file, schema=schema)
        assert str(refused.value).startswith(f"Line 22 of {file} does not fit the stream 'flights'. ")
        assert stored_or_told in str(refused.value)
        assert stored(account) == 0
        return
    said: list[str] = []
    assert put(account, file, schema=schema, partitions=1, say=said.append) == 42
    assert said == ["Columns that the stream does not have are left out: more."]
    found = stored_values(account)
    assert [found[0], found[21]] == stored_or_told
    assert found[1:21] == found[22:] == [None] * 20


def test_long_numbers_are_found_wherever_a_part_of_a_json_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = ["1.0", "9007199254740993", "1.0"]
    file = lines(tmp_path, *(f'"dep_delay": {number}' for number in numbers))
    for size in range(81, 250):  # a line has at most 81 bytes
        monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", size)
        account = MemoryAccount()
        account.ensure_created()
        put(account, file, schema="carrier string, ts timestamp, dep_delay bigint", partitions=1)
        assert stored_values(account) == [1, 9007199254740993, 1]


@pytest.mark.parametrize("kind", ["string", "double", "map<string, int>"])
def test_what_a_large_json_file_lacks_is_named(
    kind: str, account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", 256)
    schema = f"carrier string, ts timestamp, dep_delay {kind}"
    file = lines(tmp_path, *['"more": 1'] * 20, '"other": 1')
    with pytest.raises(
        ConfigError, match=r"does not fit .* The rows lack dep_delay\. They have .*more, other\. Nothing"
    ):
        put(account, file, schema=schema)
    file = lines(tmp_path, *['"dep_delay": null'] * 20)
    with pytest.raises(ConfigError, match=r"has no column 'zip'\. Columns: carrier, ts, dep_delay\."):
        put(account, file, schema=schema, key="zip")
    with pytest.raises(
        ConfigError,
        match=r"rows\.jsonl cannot be read as jsonl: it is a line longer than 0 MiB\. Is it one row per line\?",
    ):
        put(account, lines(tmp_path, '"dep_delay": null', f'"more": "{"x" * 512}"'), schema=schema)
    with pytest.raises(ConfigError, match=r"Line 21 of .* cannot be read as jsonl: "):
        put(account, lines(tmp_path, *['"dep_delay": null'] * 20, '"dep_delay": ?'), schema=schema)
    assert stored(account) == 0


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["double", "map<string, int>"])
def test_the_last_line_of_a_json_file_needs_no_end(
    kind: str, end: str, account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty object is a row, too."""
    monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", 128)
    file = lines(tmp_path, '"dep_delay": null')
    file.write_bytes(("\ufeff" + end.join([file.read_text().strip(), *["{}"] * 99, "", " " * 99, "{}"])).encode())
    schema = f"carrier string, ts timestamp, dep_delay {kind}"
    assert put(account, file, schema=schema, job=untimed(tmp_path)) == 101
    assert stored(account) == 101


def test_a_key_that_the_stream_does_not_store_may_be_rare_in_a_json_file(
    account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a row goes to partition 0. One that is no key is refused before the first row is written."""
    monkeypatch.setattr("samza_azure.commands.row_files.LONGEST_LINE", 256)
    many = ['"dep_delay": 1'] * 20
    with pytest.raises(ConfigError, match="A float cannot decide a partition"):
        put(account, lines(tmp_path, '"zip": 7', *many, '"zip": 7.5'), key="zip")
    assert stored(account) == 0
    assert put(account, lines(tmp_path, '"zip": 7', *many, '"zip": "7"', *many, '"zip": "x"'), key="zip") == 43
    assert stored(account) == 43


@pytest.mark.parametrize("text", ["[1]\n", "7\n", '{"carrier": \n', ""], ids=["a list", "a number", "half", "nothing"])
def test_what_is_no_json_lines_is_refused(text: str, account: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    for kind in ("double", "map<string, int>"):
        with pytest.raises(ConfigError, match=r"rows\.jsonl (cannot be read as jsonl|is empty)"):
            put(account, file, schema=f"carrier string, ts timestamp, dep_delay {kind}")


@pytest.mark.parametrize("given", ["2013-01-31 23:30:00", "2013-01-31 19:00:00-05:00", "2013-01-31 00:00:00+01:00"])
def test_a_date_in_a_csv_file_has_no_time_of_day(given: str, account: Any, tmp_path: Path) -> None:
    schema = "carrier string, ts timestamp, dep_delay date"
    with pytest.raises(ConfigError, match=r"Line 3 of .* is date, which cannot hold '2013-01-31 "):
        put(account, flights(tmp_path, "UA,2013-01-31,2013-01-31 00:00:00Z", f"UA,2013-01-31,{given}"), schema=schema)
    put(account, flights(tmp_path, "UA,2013-01-31,2013-01-31 00:00:00Z"), schema=schema)
    assert stored_values(account) == [DAY]


@pytest.mark.parametrize(
    ("kind", "number", "shown"),
    [
        (pa.date32(), 2_932_897, "10000-01-01"),
        (pa.date32(), 2**30, ""),
        (pa.date32(), -(2**30), ""),
        (pa.timestamp("us"), 253_402_300_800_000_000, "10000-01-01 00:00:00.000000"),
        (pa.timestamp("us", "UTC"), 2**62, ""),
    ],
    ids=str,
)
def test_a_date_that_a_csv_file_cannot_show_is_refused(
    kind: pa.DataType, number: int, shown: str, account: Any, tmp_path: Path
) -> None:
    """It was written as <value out of range: 1073741824>, and a time with a zone as one of another year."""
    far = pa.array([0, None, number], pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    writer = SourceWriter(account.blobs(), account.hints(), "flights", 1)
    writer.write(pa.table({"at": far}))
    writer.close()
    to = tmp_path / "out.csv"
    if shown:
        assert exported(account, to)[0] == 3 and shown in to.read_text()
        return
    with pytest.raises(ConfigError, match=r"The column 'at' has a date that CSV cannot show\. .* \.parquet or \.jsonl"):
        exported(account, to)
    with pytest.raises(ConfigError, match=r"The column 'at' has a date that no folder can be named after\."):
        exported(account, tmp_path / "days", By.DAY, time="at")
    assert sorted(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float64())], ids=["by its name", "in a list"])
def test_long_digits_elsewhere_make_no_file_slow(kind: pa.DataType, tmp_path: Path) -> None:
    columns = {"dep_delay": kind}
    text = lines(tmp_path, '"dep_delay": 1.5, "more": "12345678901234567890"').read_bytes()
    assert not _has_long_number(text, columns)
    text = text.replace(b"1.5", b"-1.123456789012345678")
    assert _has_long_number(text, columns)
    assert _has_long_number(text.replace(b"dep_delay", b"another"), columns) == pa.types.is_nested(kind)


def test_letters_that_are_escaped_make_no_file_slow() -> None:
    """As `json.dumps` writes all letters but ASCII. The search for names began again at each, up to the text's end."""

    def seconds(letter: str) -> float:
        text = json.dumps({"more": letter * (300_000 // len(json.dumps(letter)))}).encode()
        before = time.perf_counter()
        assert not _has_long_number(text, {"dep_delay": pa.float64()})
        return time.perf_counter() - before

    assert seconds("\u4e2d") < 100 * (seconds("a") + 0.001)


@pytest.mark.parametrize("name", ["a/b", "a\\/b", "a\\u0026b", "a&b", "\\u0061b", "b \\u0061", "\\u0061\\u005F1"])
def test_long_numbers_are_found_behind_names_that_have_two_spellings(name: str) -> None:
    """JSON may escape any character; many writers do so with those that HTML or JavaScript would take for their own."""
    columns = {json.loads(f'"{name}"'): pa.float64()}
    assert _has_long_number(f'{{"{name}": 9007199254740993}}'.encode(), columns)


def test_the_same_file_produced_twice_under_one_key_is_there_once(account: Any, tmp_path: Path) -> None:
    """Also if it was interrupted in the middle, and goes on with another rate. Another file of that key is refused."""
    file = flights(tmp_path, *(f"UA,2013-01-01 05:{number:02}:00,{number}" for number in range(30)))
    said: list[str] = []

    def interrupt(written: int, total: int) -> None:
        if written == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(account, file, rate=50.0, progress=interrupt, say=said.append, once="rows.csv")
    assert said[-1] == "The same command goes on from there: --once rows.csv skips the rows that are stored."
    assert put(account, file, say=said.append, once="rows.csv") == 10
    assert "Rows of 'rows.csv' are in flights already; they are skipped." in said
    assert put(account, file, say=said.append, once="rows.csv") == 0
    assert said[-1] == "All 30 rows of 'rows.csv' are in flights already."
    assert stored(account) == 30
    with pytest.raises(ConfigError, match=r"The key 'rows\.csv' was used for other rows in the stream 'flights'"):
        put(account, flights(tmp_path, "AA,2013-01-01 05:00:00,1"), once="rows.csv")
    assert put(account, flights(tmp_path, "AA,2013-01-01 05:00:00,1"), once="the next day") == 1


def test_rows_that_are_skipped_are_not_paced(account: Any, tmp_path: Path) -> None:
    """At a row in 100 s the skipped ones alone would take half an hour."""
    file = flights(tmp_path, *(f"UA,2013-01-01 05:{number:02}:00,{number}" for number in range(30)))

    def interrupt(written: int, total: int) -> None:
        if written == 20:
            raise KeyboardInterrupt

    for rate in (50.0, 0.01):
        with pytest.raises(KeyboardInterrupt):
            put(account, file, rate=rate, progress=interrupt, once="rows.csv")
    assert stored(account) == 20


def test_a_partition_count_that_differs_from_the_runs_is_refused(tmp_path: Path) -> None:
    config = Config.load(EXAMPLE, environment=ENVIRONMENT, overrides={"streams.flights.partitions": 8})
    running = Control("g", run_id="r1", phase=RunPhase.RUNNING, sources={"flights": 4})
    with pytest.raises(ConfigError, match=r"Run r1 reads 4 partitions of flights, and the job file has .* = 8\."):
        refuse_other_partitions(config, running, "flights")
    for control in (None, Control("g"), Control("g", phase=RunPhase.DRAINED, sources={"flights": 4})):
        refuse_other_partitions(config, control, "flights")
    refuse_other_partitions(config, Control("g", phase=RunPhase.RUNNING, sources={"flights": 8}), "flights")


def test_rows_from_standard_input_are_read_twice(tmp_path: Path) -> None:
    with _without_stdin([Path("-"), tmp_path / "a.csv"], io.BytesIO(b"{}\n")) as given:
        assert given[0].read_bytes() == b"{}\n" and given[1] == tmp_path / "a.csv"


def test_a_line_that_is_too_long(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, f"{'x' * (33 << 20)},2013-01-01 05:00:00,1")
    with pytest.raises(ConfigError, match="a line longer than 16 MiB"):
        put(account, file)


def test_no_row_is_at_fault_where_the_parts_of_a_chunk_fit() -> None:
    """An array of Arrow's holds 2^31 elements. The search for a row that is at fault never ended."""
    chunk = pa.table({"all": pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 31), 1 << 29)})
    schema = pa.schema({"all": pa.list_(pa.null())})
    with pytest.raises(ConfigError, match="They do not fit its schema"):
        fitted(chunk, schema)
    assert _first_misfit(chunk, schema, None) is None
    assert fitted(chunk.slice(0, 2), schema).num_rows == fitted(chunk.slice(2), schema).num_rows == 2


def test_an_export_over_an_upgrade_has_the_columns_of_both_runs(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, "UA,2013-01-01 05:00:00,1,7", columns="carrier,ts,dep_delay,gate")
    schema = "carrier string, ts timestamp, dep_delay double"
    for columns in (schema, f"{schema}, gate int"):
        put(account, file, schema=columns, partitions=1)
    to = tmp_path / "out.parquet"
    assert export(account, None, kept(account), Target(str(to)), progress=lambda rows: None)[0] == 2
    assert pq.read_table(to)["gate"].to_pylist() == [None, 7]
    assert sorted(tmp_path.iterdir()) == [to, file]


def test_csv_cannot_hold_a_value_with_parts(account: Any, tmp_path: Path) -> None:
    """A newcomer exported windows, and read the name of a type of Arrow."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"carrier": "UA", "ts": "2013-01-01 05:00:00", "span": {"n": 1}, "all": [1]}\n')
    put(account, file, schema="carrier string, ts timestamp, span struct<n: int>, all array<int>", partitions=1)
    with pytest.raises(ConfigError, match=r"out.csv cannot hold span, all: .* Write a \.jsonl or \.parquet file"):
        exported(account, tmp_path / "out.csv")
    assert exported(account, tmp_path / "out.jsonl")[0] == 1
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out.jsonl", file]


def kept(account: Any, since: str = "", stream: str = "flights") -> KeptRows:
    config = Config.load(EXAMPLE, environment=ENVIRONMENT)
    return kept_rows(config, account, stream, table_bytes=1 << 20, since=since)


def exported(
    account: Any, to: Path | str, by: By | None = None, since: str = "", time: str | None = "ts"
) -> tuple[int, str]:
    """Export the source stream; the number of rows and the token."""
    config = Config.load(EXAMPLE, environment=ENVIRONMENT)
    target = Target.of(str(to), by, config)
    found = kept(account, since)
    return export(account, None, found, target, progress=lambda rows: None, since=since, by=by, time=time)


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.csv.gz", "out.jsonl", "out.json.gz"])
def test_an_exported_file_can_be_produced_again(name: str, account: Any, tmp_path: Path) -> None:
    put(account, flights(tmp_path, "UA,2013-01-01 05:00:00.000001,1.5", ",2013-01-01,"), partitions=1)
    assert exported(account, tmp_path / name)[0] == 2
    again = MemoryAccount()
    assert put(again, tmp_path / name, partitions=1) == 2
    ours, theirs = (list(batches_of(each.blobs(), "flights")) for each in (account, again))
    assert pa.Table.from_batches(theirs).to_pylist() == pa.Table.from_batches(ours).to_pylist()


def test_times_after_the_year_9999_and_what_is_no_number_are_shown_as_texts() -> None:
    """Python has no such times, and JSON no NaN."""
    us, utc = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
    last = 253_402_300_799_999_999  # of the year 9999
    rows = pa.table(
        {
            "at": pa.array([last, last + 1, 2**63 - 1, None, -(2**63)], utc),
            "local": pa.array([last, last + 1, -62_167_219_200_000_001, 0, -62_135_596_800_000_000], us),
            "day": pa.array([2_932_896, 2_932_897, 2**31 - 1, None, 0], pa.date32()),
            "number": pa.array([1.5, math.nan, math.inf, -math.inf, None]),
            "window": pa.array(
                [{"end": 0}, {"end": last + 1}, None, {"end": None}, {"end": 1}], pa.struct({"end": utc})
            ),
            "list": pa.array([[0.5], [math.nan, None], [], None, [1.0]]),
            "map": pa.array([[("a", 1.0)], [("b", math.inf)], None, [], []], pa.map_(pa.string(), pa.float64())),
            "rest": pa.array([Decimal("1.50")] * 5),
        }
    )
    found = [json.loads(line, parse_constant=pytest.fail) for line in as_lines(rows).splitlines()]
    assert found[:2] == [json.loads(as_lines(rows.slice(number, 1))) for number in (0, 1)]
    assert found[0] == json.loads(
        '{"at": "9999-12-31T23:59:59.999999+00:00", "local": "9999-12-31T23:59:59.999999", "day": "9999-12-31", '
        '"number": 1.5, "window": {"end": "1970-01-01T00:00:00+00:00"}, "list": [0.5], "map": [["a", 1.0]], '
        '"rest": "1.50"}'
    )
    assert found[1] == {
        "at": "+10000-01-01T00:00:00+00:00", "local": "+10000-01-01T00:00:00", "day": "+10000-01-01", "number": "NaN",
        "window": {"end": "+10000-01-01T00:00:00+00:00"}, "list": ["NaN", None], "map": [["b", "Infinity"]],
        "rest": "1.50",
    }  # fmt: skip
    assert [each["at"] for each in found[2:]] == [
        "+294247-01-10T04:00:54.775807+00:00", None, "-290308-12-21T19:59:05.224192+00:00"
    ]  # fmt: skip
    assert [each["local"] for each in found[2:]] == [
        "-0001-12-31T23:59:59.999999", "1970-01-01T00:00:00", "0001-01-01T00:00:00"
    ]  # fmt: skip
    assert [each["day"] for each in found[2:]] == ["+5881580-07-11", None, "1970-01-01"]
    assert [each["number"] for each in found[2:]] == ["Infinity", "-Infinity", None]


def test_an_export_to_json_lines_has_the_rows_that_python_cannot_hold(account: Any, tmp_path: Path) -> None:
    writer = SourceWriter(account.blobs(), account.hints(), "flights", 1)
    writer.write(pa.table({"at": pa.array([253_402_300_800_000_000], pa.timestamp("us", tz="UTC"))}))
    writer.close()
    assert exported(account, tmp_path / "out.jsonl")[0] == 1
    assert (tmp_path / "out.jsonl").read_text() == '{"at": "+10000-01-01T00:00:00+00:00"}\n'


def test_a_folder_by_day_gets_what_is_new_since_the_token_and_each_row_is_there_once(
    account: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "days"
    first = flights(tmp_path, "A,2013-01-01 23:59:59,1", "B,2013-01-02 00:00:00,2", "C,,3")
    put(account, first, job=untimed(tmp_path))
    rows, token = exported(account, folder, By.DAY)
    assert rows == 3
    assert sorted(str(each.relative_to(folder)) for each in folder.rglob("*.parquet")) == [
        "on_day=2013-01-01/flights.parquet",
        "on_day=2013-01-02/flights.parquet",
        "on_day=__HIVE_DEFAULT_PARTITION__/flights.parquet",
    ]
    with pytest.raises(ConfigError, match=r"days/ is not empty\. .* --since TOKEN"):
        exported(account, folder, By.DAY)
    assert exported(account, folder, By.DAY, token) == (0, token)
    put(account, flights(tmp_path, "D,2013-01-02 00:00:00,4"))
    for _ in range(2):  # a repetition replaces its own files
        rows, later = exported(account, folder, By.DAY, token)
        assert rows == 1
    assert exported(account, folder, By.DAY, later)[0] == 0
    assert sorted(pq.read_table(folder)["carrier"].to_pylist()) == ["A", "B", "C", "D"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["days", "rows.csv", "untimed.toml"]


@pytest.mark.parametrize(
    ("to", "by", "time", "said"),
    [
        ("{}", None, "ts", "is a folder. Add --by run or --by day"),
        ("{}/new/", None, "ts", "is a folder. Add --by run or --by day"),
        ("{}/rows.xlsx", None, "ts", "says no kind of file"),
        ("{}/rows.parquet.gz", None, "ts", "says no kind of file"),
        ("{}/no/rows.parquet", None, "ts", "There is no folder"),
        ("{}/out", By.RUN, "ts", "is a source, whose rows belong to no run"),
        ("{}/out", By.DAY, None, "Which column has the day"),
        ("{}/out", By.DAY, "at", "There is no column 'at'"),
        ("{}/out", By.DAY, "carrier", "holds string, which has no day"),
        ("az://flights-1/runs/x.parquet", None, "ts", "is where a job keeps its own data"),
        ("az://flights-1/tables", By.DAY, "ts", "is where a job keeps its own data"),
        ("az://flights-1/x/../runs/x.parquet", None, "ts", "no part is empty"),
        ("az://flights-1/runs\\x.parquet", None, "ts", "none has a backslash"),
        ("az://flights-1/runs./x.parquet", None, "ts", "ends with a dot"),
        ("/", By.DAY, "ts", "names no file and no folder of its own"),
        ("az://other/control.json", None, "ts", "is where a job keeps its own data"),
        ("az://other", None, "ts", "names no blob"),
    ],
)
def test_a_target_that_cannot_be_is_refused_and_nothing_is_left(
    to: str, by: By | None, time: str | None, said: str, account: Any, tmp_path: Path
) -> None:
    put(account, flights(tmp_path, "UA,2013-01-01 05:00:00,1"))
    with pytest.raises(ConfigError, match=said):
        exported(account, to.format(tmp_path), by, time=time)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "rows.csv"]


def test_the_new_rows_do_not_replace_a_file_of_all_rows(account: Any, tmp_path: Path) -> None:
    to = tmp_path / "out.parquet"
    put(account, flights(tmp_path, "A,2013-01-01 23:59:59,1"))
    _, token = exported(account, to)
    put(account, flights(tmp_path, "B,2013-01-01 23:59:59,1"))
    with pytest.raises(ConfigError, match="is there already, and with --since it would have only the new rows"):
        exported(account, to, since=token)
    assert exported(account, tmp_path / "more.parquet", since=token)[0] == 1
    assert exported(account, to)[0] == 2


def test_many_days_and_changing_columns_come_into_one_file_each(account: Any, tmp_path: Path) -> None:
    """More days than files are open at a time, in any order."""
    schema = "carrier string, ts timestamp, dep_delay double"
    lines = [f"UA,2013-{1 + day // 28:02}-{1 + day % 28:02} 05:00:00,{day},7" for day in range(100)]
    for columns in (schema, f"{schema}, gate int"):
        file = flights(tmp_path, *lines, *lines[::-1], columns="carrier,ts,dep_delay,gate")
        put(account, file, schema=columns, partitions=1)
    assert exported(account, tmp_path / "days", By.DAY)[0] == 400
    assert len(list((tmp_path / "days").iterdir())) == 100
    rows = pq.read_table(tmp_path / "days")
    assert rows.num_rows == 400 and rows["gate"].null_count == 200


def written(account: Any, rows: pa.Table) -> Callable[..., int]:
    """A stream `out` with these rows; a function that exports it."""
    writer, _ = take_over(
        account.blobs(), "runs/r/count-0", group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={"stream": "out"},
    )  # fmt: skip
    writer.append(0, slices=(Slice(0, encode(rows), rows.num_rows),))
    config = Config.load(EXAMPLE, environment=ENVIRONMENT)

    def exported(to: Path, by: By | None = None, time: str | None = None) -> int:
        target = Target.of(str(to), by, config)
        found = kept(account, stream="out")
        return export(account, None, found, target, progress=lambda rows: None, by=by, time=time)[0]

    return exported


def test_no_file_is_written_that_nobody_could_read(account: Any, tmp_path: Path) -> None:
    """Arrow writes deeper types to Parquet than it reads from there."""
    deep: pa.DataType = pa.int64()
    for _ in range(60):
        deep = pa.list_(deep)
    to = tmp_path / "out.parquet"
    with pytest.raises(SamzaAzureError, match=r"out\.parquet cannot be written: .*too deeply nested"):
        written(account, pa.table({"deep": pa.nulls(1, deep)}))(to)
    assert not to.exists()


def test_a_column_with_a_dot_in_its_name_has_the_day(account: Any, tmp_path: Path) -> None:
    export_by_day = written(account, pa.table({"a.b": pa.array([0], pa.timestamp("us"))}))
    assert export_by_day(tmp_path / "days", By.DAY, "a.b") == 1
    assert [path.name for path in (tmp_path / "days").iterdir()] == ["on_day=1970-01-01"]


def test_a_folder_by_run_has_each_runs_rows_in_the_order_of_the_runs(account: Any, tmp_path: Path) -> None:
    for run in ("2-b", "1-a"):
        writer, _ = take_over(
            account.blobs(), f"runs/{run}/count-0", group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True,
            may_append=lambda: True, meta={"stream": "out"},
        )  # fmt: skip
        writer.append(0, slices=(Slice(0, encode(pa.table({"run": [run]})), 1),))
    config = Config.load(EXAMPLE, environment=ENVIRONMENT)

    def rows(to: Path, by: By | None) -> pa.Table:
        control = Control("g", run_id="1-a", past=("2-b",))  # named by hand: the second one began first
        found = kept(account, stream="out")
        export(account, control, found, Target.of(str(to), by, config), progress=lambda rows: None, by=by)
        return pq.read_table(to)

    assert rows(tmp_path / "out.parquet", None)["run"].to_pylist() == ["2-b", "1-a"]
    rows(tmp_path / "runs", By.RUN)
    for run in ("1-a", "2-b"):
        assert pq.read_table(tmp_path / "runs" / f"of_run={run}" / "out.parquet", partitioning=None).to_pylist() == [
            {"run": run}
        ]

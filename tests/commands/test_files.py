"""What produce and export do with files, over the storage in memory. What their commands print: `test_commands.py`."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from samza_azure.commands.export import export
from samza_azure.commands.produce import _without_stdin, produce, refuse_other_partitions
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, RunPhase
from samza_azure.logs.names import source_log
from samza_azure.logs.partition import partition_of
from samza_azure.storage.export import batches_of
from samza_azure.storage.log import LogReader
from samza_azure.storage.memory import MemoryAccount

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
    **changes: Any,
) -> int:
    """Produce the files into the example's source stream, as a job file with these changes has it."""
    overrides = {f"streams.flights.{name}": value for name, value in changes.items()}
    config = Config.load(EXAMPLE, environment=ENVIRONMENT, overrides=overrides)
    return produce(
        config, account, "flights", files, key=key, rate=rate, dry_run=dry_run, progress=progress, say=say, once=once
    )


def flights(folder: Path, *lines: str, columns: str = "carrier,ts,dep_delay") -> Path:
    file = folder / "rows.csv"
    file.write_text("\n".join((columns, *lines, "")))
    return file


def test_a_key_that_looks_like_a_number_stays_the_text_that_it_is(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, "02101,UA,2013-01-01 05:00:00,1", columns="zip,carrier,ts,dep_delay")
    put(account, file, key="zip")
    assert (partition_of(("02101",), 4), partition_of((2101,), 4)) == (3, 0)
    assert LogReader(account.blobs(), source_log("flights/3")).scan((0, 0)).rows == 1


def test_who_interrupts_produce_is_told_which_rows_are_stored(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, *(f"UA,2013-01-01 05:{number:02}:00,{number}" for number in range(30)))

    def interrupt(written: int, total: int) -> None:
        if written == 20:
            raise KeyboardInterrupt

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        put(account, file, rate=50.0, progress=interrupt, say=said.append)
    assert said[1:] == [f"\nInterrupted. The first 20 rows of {file} are stored, and perhaps some of the next 10."]
    assert sum(batch.num_rows for batch in batches_of(account.blobs(), "flights")) == 20


def test_rows_far_in_the_future_are_told(account: Any, tmp_path: Path) -> None:
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
def test_each_kind_of_file_is_taken_and_what_it_leaves_open_is_said_alike(
    name: str, account: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    file = tmp_path / name
    rows = [{**ROW, "more": 1}, {**ROW, "ts": None, "more": 2}]
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
        "1 rows have no event time: they are stored, but no window contains them.",
    ]
    assert put(account, file) == 2 and stored(account) == 2


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
    with pytest.raises(ConfigError, match=r"Row 1 of .*wrong.csv does not fit"):
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
    with pytest.raises(ConfigError, match=r"Row 2 of .* would change 1.005\. Nothing was written"):
        put(account, flights(tmp_path, "UA,2013-01-01 05:00:00,1.25", "UA,2013-01-01 05:00:00,1.005"), schema=schema)
    put(account, flights(tmp_path, ",2013-01-01 05:00:00,1.25"), schema=schema)
    [row] = [row for batch in batches_of(account.blobs(), "flights") for row in batch.to_pylist()]
    assert row["carrier"] is None and str(row["dep_delay"]) == "1.25"


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


def test_an_export_over_an_upgrade_has_the_columns_of_both_runs(account: Any, tmp_path: Path) -> None:
    file = flights(tmp_path, "UA,2013-01-01 05:00:00,1,7", columns="carrier,ts,dep_delay,gate")
    schema = "carrier string, ts timestamp, dep_delay double"
    for columns in (schema, f"{schema}, gate int"):
        put(account, file, schema=columns, partitions=1)
    to = tmp_path / "out.parquet"
    assert export(account, None, "flights", to, progress=lambda rows: None) == 2
    assert pq.read_table(to)["gate"].to_pylist() == [None, 7]
    assert sorted(tmp_path.iterdir()) == [to, file]


def test_an_export_to_a_folder_says_so_and_leaves_nothing_there(account: Any, tmp_path: Path) -> None:
    put(account, flights(tmp_path, "UA,2013-01-01 05:00:00,1"))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        export(account, None, "flights", folder, progress=lambda rows: None)
    assert sorted(tmp_path.rglob("*")) == [folder, tmp_path / "rows.csv"]

"""`samza-azure table` and `samza-azure compact`, on a table that a library call has filled."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from samza_azure import cli, tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.segments import Granularity, LockOwner, LockTask
from samza_azure.storage.connection import Account

JOB = Path(__file__).parents[2] / "examples" / "flights" / "job.toml"
SCHEMA = pa.schema([("day", pa.timestamp("us", "UTC")), ("delay", pa.int64())])

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with Azurite().start() as azurite:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
        yield azurite.connection_string


@pytest.fixture
def samza_azure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["samza-azure", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def test_what_the_page_on_tables_says_needs_no_private_module(
    connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB.read_text())
    page = (JOB.parents[2] / "docs" / "tables.md").read_text()
    reading, writing = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rows = pa.table({"at": [datetime(2013, 1, 3, tzinfo=UTC)], "delay": [7]})
    names: dict[str, object] = {"rows": rows}
    load, read = reading.replace("daily_delays", "delays").rsplit("rows = ", 1)
    exec(load + writing, names)  # as a reader types it
    assert eval(read, names) == rows.cast(pa.schema([("at", pa.timestamp("us", "UTC")), ("delay", pa.int64())]))


def test_a_table_is_shown_compacted_and_dropped(
    connect: str, samza_azure: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account.from_config(Config.load(JOB).storage)
    account.ensure_created()
    store = tables.store_of(account, "delays")
    tables.create(store, SCHEMA, time="day", granularity=Granularity.DAY)
    appender = tables.Appender(store, LockTask("a", "\x1b[31m", 0, LockOwner("a", "dead")))
    for number in range(3):
        appender.append(pa.table([[datetime(2024, 1, 1, number, tzinfo=UTC)], [number]], schema=SCHEMA))

    code, said, _ = samza_azure("table", str(JOB), "delays", "--json")
    found = json.loads(said)
    (interval,) = found["intervals"]
    assert code == 0
    assert (interval["interval"], interval["segments"], interval["rows"]) == ("2024-01-01/2024-01-02", 3, 3)
    assert found["compaction"] == [{"interval": "2024-01-01/2024-01-02", "segments": 3}]
    (lock,) = found["locks"]
    assert (lock["group"], lock["publishes"]) == ("\x1b[31m", 3)
    assert "append of \\x1b[31m  2024-01-01/2024-01-02" in samza_azure("table", str(JOB), "delays")[1]

    assert samza_azure("compact", str(JOB), "delays", "--dry-run")[:2] == (0, "2024-01-01/2024-01-02: 3 segments\n")
    assert samza_azure("compact", str(JOB), "delays")[:2] == (0, "3 segments became 1\n")
    for more in ((), ("--dry-run",), ("--granularity", "day")):
        assert "There is nothing to do" in samza_azure("compact", str(JOB), "delays", *more)[1], (
            "it printed nothing at all"
        )
    code, said, _ = samza_azure("table", str(JOB), "delays", "--end", str(lock["id"]))
    assert "1 segments  3 rows" in said
    assert "garbage: 3 segments" in said
    assert "lock" not in said
    assert sorted(tables.open(Config.load(JOB).storage, "delays").to_arrow()["delay"].to_pylist()) == [0, 1, 2]

    day = "2024-01-01/2024-01-02"
    monkeypatch.setattr(sys, "stdin", io.StringIO("another\n"))
    code, _, said = samza_azure("table", str(JOB), "delays", "--drop", day)
    assert code == 2
    assert f"This hides the rows of {day} of delays: 1 segments of 3 rows. --restore {day} undoes it" in said
    assert "Nothing was dropped" in said
    monkeypatch.setattr(sys, "stdin", io.StringIO("delays\n"))
    code, said, _ = samza_azure("table", str(JOB), "delays", "--drop", day)
    assert (code, f"{day} is dropped; --restore {day} undoes that" in said) == (0, True)
    assert tables.open(Config.load(JOB).storage, "delays").to_arrow().num_rows == 0
    code, said, _ = samza_azure("table", str(JOB), "delays", "--restore", day, "--json")
    assert (code, json.loads(said)["dropped"]) == (0, [])
    assert sorted(tables.open(Config.load(JOB).storage, "delays").to_arrow()["delay"].to_pylist()) == [0, 1, 2]
    code, said, _ = samza_azure("table", str(JOB), "delays", "--drop", "2024-01-01T01:00/2024-01-01T02:00", "--yes")
    assert "2024-01-01T01:00:00/2024-01-01T02:00:00 is dropped" in said
    assert sorted(tables.open(Config.load(JOB).storage, "delays").to_arrow()["delay"].to_pylist()) == [0, 2]

    for arguments, message in (
        (("delays", "--drop", day, "--restore", day), "cannot be used together"),
        (("delays", "--drop", "2024-01-02/2024-01-01"), "before it begins"),
        (("delays", "--drop", "2024-01-02/2024-01-02"), "is empty: it ends where it begins"),
        (("delays", "--drop", "2025-01-01/2025-01-02", "--yes"), "shows no rows in 2025-01-01/2025-01-02"),
        (("delays", "--restore", day), "Dropped intervals: 2024-01-01T01:00:00/2024-01-01T02:00:00."),
        (("delays", "--interval", "2024-02-01/2024-01-01"), "before it begins"),
        (("delays", "--end", "99"), "has no lock 99"),
        (("nothing",), "There is no table nothing"),
        (("No/Name",), "The table 'No/Name' cannot be used"),
    ):
        code, _, said = samza_azure("table", str(JOB), *arguments)
        assert code == 2
        assert message in " ".join(said.replace("│", " ").split())
    account.close()

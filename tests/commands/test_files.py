"""What produce and export do with files, over the storage in memory. What their commands print: `test_commands.py`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from samza_azure.commands.export import export
from samza_azure.commands.produce import produce
from samza_azure.config import Config
from samza_azure.errors import ConfigError
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
    file: Path,
    *,
    key: str | None = None,
    rate: float | None = None,
    progress: Callable[[int, int], None] = lambda written, total: None,
    say: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> int:
    """Produce the file into the example's source stream, as a job file with these changes has it."""
    overrides = {f"streams.flights.{name}": value for name, value in changes.items()}
    config = Config.load(EXAMPLE, environment=ENVIRONMENT, overrides=overrides)
    return produce(config, account, "flights", file, key=key, rate=rate, progress=progress, say=say)


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
    assert said == [f"\nInterrupted. The first 20 rows of {file} are stored, and perhaps some of the next 10."]
    assert sum(batch.num_rows for batch in batches_of(account.blobs(), "flights")) == 20


def test_rows_far_in_the_future_are_told(account: Any, tmp_path: Path) -> None:
    said: list[str] = []
    file = flights(tmp_path, "UA,2013-01-01 05:00:00,1", "UA,9999-12-31 00:00:00,2")
    assert put(account, file, say=said.append, max_future="2 h") == 2
    assert "\n".join(said) == (
        "1 of the rows are more than 7200 s ahead of this machine's clock (streams.flights.max_future). "
        "They are stored, but do not advance event time."
    )


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

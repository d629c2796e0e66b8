"""A day of 1,000 small segments against the same day compacted: by pyarrow, and by DuckDB where it is installed.

Read are all rows, and the few that a filter lets through. The table is on Azurite; its snapshot is open already.
"""

import importlib.util
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import Claim, main, middle, say

from samza_azure import tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.segments import Granularity, LockOwner, LockTask, Published
from samza_azure.storage.connection import Account
from samza_azure.tables.table import FilePart

ROWS = 1_000  # of a segment
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int64())])


def measure(quick: bool) -> list[Claim]:
    """The same rows, before and after."""
    count, rounds = (40, 1) if quick else (1_000, 5)
    with Azurite().start() as azurite:
        text = 'app = { name = "bench", main = "m:app" }\nazure.storage.connect = "${CONNECT}"\n'
        account = Account.from_config(Config.parse(text, environment={"CONNECT": azurite.connection_string}).storage)
        account.ensure_created()
        store = tables.store_of(account, "day")
        tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
        appender = tables.Appender(store, LockTask("a", "a", 50, LockOwner("a")))
        for number in range(count):
            assert isinstance(appender.append(rows_of(number, count)), Published)
        appender.close()
        small = measured(tables.snapshot_of(store), account, rounds)
        say(f"{count:,} small segments are read")
        begun = time.perf_counter()
        while tables.plan(store):
            tables.compact(store, LockTask("c", "c", 0, LockOwner("c")))
        merging = time.perf_counter() - begun
        snapshot = tables.snapshot_of(store)
        large = measured(snapshot, account, rounds)
        files = len(snapshot.files())
        account.close()
    claims = [Claim(f"{count:,} segments merged into {files}", f"{merging:.1f} s")]
    for what, took in small.items():
        figure = f"{took * 1e3:,.0f} ms; compacted {large[what] * 1e3:,.1f} ms: {took / large[what]:.0f} times faster"
        claims.append(Claim(f"a day of {count:,} segments, {what}", figure, "measured"))
    return claims


def rows_of(number: int, count: int) -> pa.Table:
    """What one flush appends: the rows of a moment of the day."""
    dice, first = random.Random(number), 86_400 * number / count
    times = [START + timedelta(seconds=first + row / ROWS) for row in range(ROWS)]
    return pa.table([times, dice.choices(["AA", "UA", "DL"], k=ROWS), dice.choices(range(300), k=ROWS)], schema=SCHEMA)


def measured(snapshot: tables.TableSnapshot, account: Account, rounds: int) -> dict[str, float]:
    """Seconds of each way to read it."""
    hour = [("at", ">=", START + timedelta(hours=12)), ("at", "<", START + timedelta(hours=13))]
    ways: dict[str, Callable[[], Any]] = {
        "pyarrow, all rows": snapshot.to_arrow,
        "pyarrow, one hour by a filter": lambda: snapshot.to_arrow(filter=hour),
    }
    if importlib.util.find_spec("duckdb") is None:
        say("duckdb is not measured: pip install duckdb")
        return {what: timed(way, rounds) for what, way in ways.items()}
    with tempfile.TemporaryDirectory() as folder:
        ways["DuckDB over the files, downloaded first"] = lambda: duck(folder, account, snapshot.files())
        return {what: timed(way, rounds) for what, way in ways.items()}


def duck(folder: str, account: Account, parts: list[FilePart]) -> Any:
    """An average over Parquet files."""
    import duckdb

    for number, part in enumerate(parts):
        whole: Any = account.blobs().read(part.file.name, 0)
        Path(folder, f"{number}.parquet").write_bytes(whole.data)
    names = [f"{folder}/{number}.parquet" for number in range(len(parts))]
    found: Any = duckdb.connect().read_parquet(names).query("rows", "SELECT avg(delay) FROM rows")
    return found.fetchall()


def timed(way: Callable[[], Any], rounds: int) -> float:
    """The median of some calls."""
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        way()
        took.append(time.perf_counter() - begun)
    return middle(took)


if __name__ == "__main__":
    main(measure, __doc__)

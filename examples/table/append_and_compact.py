"""Rows are appended to a table while it is compacted, and DuckDB reads it: nobody waits, and no row is lost.

Run it: pip install duckdb, then python examples/table/append_and_compact.py
"""

import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa

from samza_azure import Config, tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.tables import Granularity, Interval, LockOwner, LockTask

JOB = """
app = { name = "delays", main = "delays:app" }
azure.storage.connect = "${CONNECT}"
"""
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int64())])
START = datetime(2024, 1, 1, tzinfo=UTC)
APPENDS = 60


def rows(number: int) -> pa.Table:
    """A row an hour for two days."""
    hours = range(48)
    times = [START + timedelta(hours=hour, seconds=number) for hour in hours]
    return pa.table([times, ["AA" if hour % 2 else "UA" for hour in hours], [number + hour for hour in hours]], SCHEMA)


def append(config: Config) -> None:
    """Sixty publishes; each is a file for each of the two days."""
    appender = tables.Appender(
        tables.store(config, "delays"), LockTask("appender", "appender", 50, LockOwner("appender"))
    )
    for number in range(APPENDS):
        appender.append(rows(number))
    appender.close()


def main() -> None:
    """Append and compact at the same time, then ask DuckDB."""
    with Azurite().start() as azurite:
        config = Config.parse(JOB, environment={"CONNECT": azurite.connection_string})
        store = tables.store(config, "delays")
        tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)

        appending = threading.Thread(target=append, args=(config,))
        appending.start()
        merged, task = 0, LockTask("compactor", "compactor", 0, LockOwner("compactor"))
        while appending.is_alive():
            done = tables.compact(store, task)
            merged += sum(one.inputs for one in done)
        appending.join()
        merged += sum(one.inputs for one in tables.compact(store, task))

        table = tables.open(config, "delays")
        print(f"{APPENDS * 2} files were appended, {merged} merged meanwhile; {len(table.files())} are left")

        con = duckdb.connect()
        con.register("delays", table.to_arrow(columns=["carrier", "delay"]))
        print(con.sql("SELECT carrier, count(*) AS rows, avg(delay) AS delay FROM delays GROUP BY 1 ORDER BY 1"))

        # Large intervals need not be in memory: the files are plain Parquet, chosen by interval and statistics.
        with tempfile.TemporaryDirectory() as folder:
            found = table.files(Interval.of("2024-01-02", "2024-01-03"), [("delay", ">", 100)])
            for number, part in enumerate(found):
                Path(folder, f"{number}.parquet").write_bytes(store.blobs.read(part.file.name, 0).data)
            print(con.sql(f"SELECT max(delay) AS delay FROM '{folder}/*.parquet'"))


if __name__ == "__main__":
    main()

"""A stream between two stages is a table and files, too: its sinks are killed and drained like any other task."""

import io
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samza_azure import tables
from samza_azure.logs.operations import Span
from samza_azure.storage.connection import Account

from .real_processes import PARTITIONS, PATIENCE_S, JobOnAzurite, cleaned, daily, daily_rows, rows_of


def table_of(world: JobOnAzurite, name: str) -> pa.Table:
    """The rows of a table now."""
    return looked_into(world, name)[0]


def looked_into(world: JobOnAzurite, name: str) -> tuple[pa.Table, int]:
    """The same, and how many locks it has."""
    account = Account.from_config(world.fleet.config.storage)
    try:
        store = tables.store_of(account, name)
        return tables.snapshot_of(store).to_arrow(), len(store.state().box.locks)
    finally:
        account.close()


def delivered(world: JobOnAzurite) -> pa.Table:
    """The rows of all files now."""
    account = Account.from_config(world.fleet.config.storage)
    try:
        blobs = account.blobs()
        found = [blobs.read(name, 0) for name, _ in blobs.list("files/delays/")]
        return pa.concat_tables([pq.read_table(io.BytesIO(each.data)) for each in found if isinstance(each, Span)])
    finally:
        account.close()


@pytest.mark.long  # what it rests on is shown by tests/storage/test_sink.py
def test_each_row_of_a_stream_is_in_its_table_once(world: JobOnAzurite) -> None:
    """A processor is killed while rows come, the run is drained, and the next one appends to the same table."""
    job = world.fleet.job.read_text().replace(
        "[streams.by-carrier]",
        '[streams.by-carrier]\ntable = "delays"\ntable.time = "ts"\ntable.granularity = "month"\ntable.flush = "1 s"\n'
        'files = "delays"\nfiles.flush = "1 s"',
    )
    world.fleet.job.write_text(job)
    shown = world.start("p0", "p1")
    sinks = {f"by-carrier-{kind}-{number}" for kind in ("table", "files") for number in range(PARTITIONS)}
    assert sinks <= {each["name"] for each in shown["tasks"]}
    producer = world.producing(6_000, rate=1_000)
    deadline = time.monotonic() + PATIENCE_S
    while table_of(world, "delays").num_rows == 0:
        assert time.monotonic() < deadline, world.fleet.status()
        time.sleep(0.2)  # the pace of asking
    world.fleet.send("p1", signal.SIGKILL)
    assert producer.wait(PATIENCE_S) == 0
    world.settled()
    seen = table_of(world, "delays")
    assert not rows_of(seen) - rows_of(cleaned(world.flights.slice(0, world.produced))), "no row twice"
    assert {code for name, code in world.drained().items() if name != "p1"} == {0}
    found, locks = looked_into(world, "delays")
    assert rows_of(found) == rows_of(cleaned(world.flights.slice(0, world.produced)))
    assert locks == 0
    assert rows_of(delivered(world)) == rows_of(cleaned(world.flights.slice(0, world.produced)))
    assert daily_rows(world.stream("daily-delays")) == daily(world.flights.slice(0, world.produced))

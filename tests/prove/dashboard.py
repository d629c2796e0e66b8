"""Every panel of the dashboard, on a live Prometheus that scrapes two processors of the example with Spark.

They read flights, and are drained while many wait to be read, which is when the panels of a drain have something to
show. Printed is, for each panel, how many samples and series its query had, and their last values; a panel without a
sample is an error. Debian's `prometheus` is fetched if there is none. About three minutes.
"""

import math
import re
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT), str(Path(__file__).parent)]

from alerts import Prometheus, until  # noqa: E402  (needs the path above)
from flights import write  # noqa: E402

from infra.check.prometheus import install  # noqa: E402
from infra.prometheus.dashboard import panels  # noqa: E402
from samza_azure.storage.connection import Account  # noqa: E402
from samza_azure.storage.source_stream import SourceWriter  # noqa: E402
from tests.end_to_end.real_processes import World  # noqa: E402

NAMES = ("p0", "p1")
#: Small batches of small records, so that a drain has rows to read for some scrapes.
MORE = """
[processor]
port = 0
[task]
batch.bytes = "16 KiB"
"""
FIRST_ROWS, DRAINED_ROWS, RECORD_ROWS = 5_000, 60_000, 50


def main() -> None:
    if not install():
        raise SystemExit("There is no prometheus here. On Debian run apt-get update first.")
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = World(directory, pq.read_table(directory / "flights.parquet"), more=MORE)
    try:
        world.start(*NAMES)
        logs = [world.fleet.log_file(name).read_text() for name in NAMES]
        ports = [int(re.findall(r"health on 127\.0\.0\.1, port (\d+)", log)[-1]) for log in logs]
        server = Prometheus(directory, dict(zip(NAMES, ports, strict=True)))
        try:
            show(world, server)
        finally:
            server.process.terminate()
            server.process.wait()
    finally:
        world.close()


def show(world: World, server: Prometheus) -> None:
    """Run the job to its end, then ask what each panel would have shown."""
    begun = time.time()
    until("both are scraped", lambda: server.value("sum(up)") == len(NAMES), 60)
    world.produce(FIRST_ROWS)
    world.exact()
    until("rows are scraped", lambda: (server.value("sum(samza_azure_task_rows_total)") or 0) >= FIRST_ROWS, 60)
    produce(world, DRAINED_ROWS)
    assert set(world.drained().values()) == {0}
    empty = []
    for panel in panels():
        found = server.get("query_range", query=panel.query, start=str(begun), end=str(time.time()), step="1")["result"]
        series = [[float(value) for _, value in each["values"]] for each in found]
        samples = [[value for value in values if not math.isnan(value)] for values in series]
        last = ", ".join(f"{values[-1]:.4g}" for values in samples if values)
        print(f"{panel.title}: {sum(map(len, samples))} samples in {len(samples)} series, at last {last}", flush=True)
        if not any(samples):
            empty.append(panel.title)
    assert not empty, f"panels without data: {', '.join(empty)}"
    print(f"all {len(panels())} panels have data")


def produce(world: World, rows: int) -> None:
    """The next flights, in small records."""
    account = Account.from_config(world.fleet.config.storage)
    writer = SourceWriter.of(world.fleet.config, account, "flights", flush_rows=RECORD_ROWS)
    for first in range(world.produced, world.produced + rows, RECORD_ROWS):
        writer.write(world.flights.slice(first, RECORD_ROWS), "dest")
    writer.close()
    account.close()
    world.produced += rows


if __name__ == "__main__":
    main()

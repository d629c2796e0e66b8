"""Every panel of the dashboard, on a live Prometheus that scrapes two processors of the example with Spark.

They read flights and are drained. A container is frozen while the drain flushes, until that was scraped: otherwise a
drain is over between two scrapes. Printed is, for each panel, how many samples and series its query had, and their last
values; a panel without a sample is an error. Debian's `prometheus` is fetched if there is none. About three minutes.
"""

import math
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT), str(Path(__file__).parent)]

from alerts import Prometheus, until  # noqa: E402  (needs the path above)
from flights import write  # noqa: E402

from infra.check.prometheus import install  # noqa: E402
from infra.prometheus.dashboard import panels  # noqa: E402
from tests.end_to_end.real_processes import JobOnAzurite  # noqa: E402

NAMES = ("p0", "p1")
MORE = """
[processor]
port = 0
"""
ROWS = 5_000
#: What only a job with a stream from outside has.
OUTSIDE = re.compile("samza_azure_(partition_lag|tasks_waiting)")


def main() -> None:
    if not install():
        raise SystemExit("There is no prometheus here. On Debian run apt-get update first.")
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = JobOnAzurite(directory, pq.read_table(directory / "flights.parquet"), more=MORE)
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


def show(world: JobOnAzurite, server: Prometheus) -> None:
    """Run the job to its end, then ask what each panel would have shown."""
    begun = time.time()
    until("both are scraped", lambda: server.value("sum(up)") == len(NAMES), 60)
    world.produce(ROWS)
    world.exact()
    until("rows are scraped", lambda: (server.value("sum(samza_azure_task_rows_total)") or 0) >= ROWS, 60)
    drain(world, server)
    empty = []
    for panel in panels():
        found = server.get("query_range", query=panel.query, start=str(begun), end=str(time.time()), step="1")["result"]
        series = [[float(value) for _, value in each["values"]] for each in found]
        samples = [[value for value in values if not math.isnan(value)] for values in series]
        last = ", ".join(f"{values[-1]:.4g}" for values in samples if values)
        print(f"{panel.title}: {sum(map(len, samples))} samples in {len(samples)} series, at last {last}", flush=True)
        if not any(samples) and not OUTSIDE.search(panel.query):
            empty.append(panel.title)
    assert not empty, f"panels without data: {', '.join(empty)}"
    print(f"all {len(panels())} panels have data, but for those of streams from outside")


def drain(world: JobOnAzurite, server: Prometheus) -> None:
    """Drain; the container of a task that reads the source is frozen before the task's last record."""
    owner = next(task["owner"] for task in world.fleet.status()["tasks"] if task["stage"] == "clean")
    container = world.container(owner)
    world.kill_at(owner, "container", "before the end of clean", signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(world.drained)
        try:
            until("a container stands still", lambda: container.status() == psutil.STATUS_STOPPED, 60)
            until("the flush is scraped", lambda: server.value("sum(samza_azure_drain_rows)") is not None, 10)
        finally:
            container.send_signal(signal.SIGCONT)
        assert set(ended.result().values()) == {0}


if __name__ == "__main__":
    main()

"""`make demo`: the main job on real input. Three processors, one storage emulator, one killed leader, one drain.

It prints what it does while it does it, compares the result with one Spark batch over the same input, row for row,
and exits with 1 if anything differs.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from flights import write
from rich.console import Console
from rich.live import Live

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.commands.show import status_view

HERE = Path(__file__).parent
PROCESSORS = 3
#: All flights arrive in about this time, so that there is a half-way at which to kill the leader.
PRODUCE_S = 45.0
PATIENCE_S = 120.0

console = Console(highlight=False)
begun = time.monotonic()


def main() -> int:
    """The whole story; the exit code."""
    work = Path(tempfile.mkdtemp(prefix="samza-azure-demo-"))
    for name in ("pipeline.py", "job.toml"):
        shutil.copy(HERE / name, work / name)
    say(f"Everything of this run is in {work}")
    flights = work / "flights.parquet"
    count = write(flights)
    say(f"{count:,} flights, ordered by scheduled departure")
    with Azurite(say=say).start() as emulator:
        os.environ[VARIABLE] = emulator.connection_string
        fleet = Fleet(work / "job.toml", work / "logs")
        try:
            return story(work, fleet, flights, count)
        finally:
            fleet.stop()


def story(work: Path, fleet: Fleet, flights: Path, count: int) -> int:
    """Start, produce, kill, drain, compare."""
    figures: dict[str, str] = {}
    step(f"1. Start {PROCESSORS} processors")
    started = time.monotonic()
    for number in range(PROCESSORS):
        fleet.start(f"demo-{number}")
    shown = watch(fleet, "all tasks run", all_running)
    figures["start until all tasks run"] = seconds(started)
    say(f"All {len(shown['tasks'])} tasks run; {shown['leader']} leads epoch {shown['epoch']}")

    step("2. Produce all flights while they run")
    rate = count / PRODUCE_S
    producer = command(work, "produce", "flights", str(flights), "--key", "dest", "--rate", f"{rate:.0f}")
    produced = subprocess.Popen(producer)
    until(time.monotonic() + PRODUCE_S / 2, fleet)

    step("3. Kill the leader (SIGKILL), half-way")
    victim, epoch = shown["leader"], fleet.status()["epoch"]
    killed = time.monotonic()
    fleet.send(victim, signal.SIGKILL)
    shown = watch(fleet, "another leader", lambda now: now["epoch"] > epoch and now["leader"] not in (None, victim))
    figures["leader killed until a new one leads"] = seconds(killed)
    say(f"{shown['leader']} leads epoch {shown['epoch']} after {seconds(killed)}")
    watch(fleet, "all tasks run again", lambda now: all_running(now) and no_task_of(victim, now))
    figures["leader killed until all tasks run again"] = seconds(killed)
    say(f"All tasks run again after {seconds(killed)}")
    if produced.wait() != 0:
        say("The producer failed.")
        return 1
    watch(fleet, "all flights are read", lambda now: fleet.unread(now) == 0)

    step("4. Drain: read no more, fire every window, commit, exit, clean up")
    drained = time.monotonic()
    if subprocess.run(command(work, "drain", "--wait", "--timeout", str(PATIENCE_S)), check=False).returncode != 0:
        return 1
    figures["drain until every log ends drained"] = seconds(drained)
    fleet.processes.pop(victim)
    codes = fleet.exit_codes(PATIENCE_S)
    figures["drain until all processes have exited"] = seconds(drained)
    say(f"Exit codes: {codes}")

    step("5. Export, and compare with one Spark batch over the same input")
    result = work / "daily-delays.parquet"
    if subprocess.run(command(work, "export", "daily-delays", "--to", str(result)), check=False).returncode != 0:
        return 1
    ours, expected = rows_of(pq.read_table(result)), rows_of(batch(work, flights))
    picture = plot(ours, work / "delays.png")
    equal = ours == expected and set(codes.values()) == {0}
    for what, figure in figures.items():
        say(f"{what}: {figure}")
    say(f"picture: {picture}")
    say(f"rows in: {count:,}")
    say(f"rows out: {len(ours):,}, expected {len(expected):,}")
    say("equal" if equal else "DIFFERENT")
    if not equal:
        missing = [row for row in expected if row not in ours][:5]
        surplus = [row for row in ours if row not in expected][:5]
        say(f"missing: {missing}\nsurplus: {surplus}")
    return 0 if equal else 1


def batch(work: Path, flights: Path) -> pa.Table:
    """The same stages, as one Spark batch over the whole file."""
    sys.path.insert(0, str(work))
    from pipeline import clean, daily_delays

    from samza_azure.spark.jvm.session import start_session

    spark = start_session("the same as one batch", {}, work / "batch")
    try:
        return daily_delays(clean(spark.read.parquet(str(flights)))).toArrow()
    finally:
        spark.stop()


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Sorted rows, every column."""
    columns = sorted(table.column_names)
    return sorted(
        tuple(str(row[name]) if isinstance(row[name], dict) else row[name] for name in columns)
        for row in table.to_pylist()
    )


def plot(rows: list[tuple[Any, ...]], path: Path) -> Path:
    """Mean delay per carrier; columns are carrier, delay, flights, window."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    flights: dict[str, int] = {}
    minutes: dict[str, float] = {}
    for carrier, delay, number, _ in rows:
        flights[carrier] = flights.get(carrier, 0) + number
        minutes[carrier] = minutes.get(carrier, 0.0) + delay * number
    means = sorted((minutes[carrier] / flights[carrier], carrier) for carrier in flights)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    axes.barh([carrier for _, carrier in means], [mean for mean, _ in means], color="#1668a8")
    axes.set_xlabel("mean departure delay, minutes")
    axes.set_title("Flights out of New York, 2013")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return path


def watch(fleet: Fleet, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for it, with the status in view on a terminal."""
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look(shown: dict[str, Any]) -> bool:
            if console.is_terminal:
                live.update(status_view(shown), refresh=True)
            return holds(shown)

        return fleet.wait_until(what, look, PATIENCE_S)


def until(deadline: float, fleet: Fleet) -> None:
    """Show the status until then."""
    watch(fleet, "half of the flights", lambda _: time.monotonic() >= deadline)


def no_task_of(processor: str, shown: dict[str, Any]) -> bool:
    """It owns nothing now."""
    return all(task["owner"] != processor for task in shown["tasks"])


def command(work: Path, name: str, *rest: str) -> list[str]:
    """A command of samza-azure on this job."""
    return [sys.executable, "-m", "samza_azure", name, str(work / "job.toml"), *rest]


def seconds(since: float) -> str:
    """Time passed."""
    return f"{time.monotonic() - since:.1f} s"


def step(title: str) -> None:
    """A headline."""
    console.rule(title, align="left")


def say(text: str) -> None:
    """One line, with the time since the beginning."""
    console.print(f"{time.monotonic() - begun:6.1f} s  {text}")


if __name__ == "__main__":
    sys.exit(main())

"""An upgrade in mid-stream: version 1 runs, is drained while rows come in, and version 2 goes on where it ended.

    python examples/upgrade/upgrade.py [--rows 20000] [--processors 2]

It brings its own emulator, says what it does, and compares: what came out must be a Spark batch of version 1 over the
rows up to the positions of the drain, and one of version 2 over the rows after them, row for row. Exit code 1 if not.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.logs.position import Position
from samza_azure.storage.connection import Account
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.log import LogReader

HERE = Path(__file__).parent
#: The first half comes in for about this time, so that there is a middle in which to drain.
PRODUCE_S = 30.0
PATIENCE_S = 240.0
Rows = Counter[tuple[Any, ...]]
Positions = Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What came of it."""

    before: int  # source rows that version 1 has read
    after: int  # and version 2
    found: Rows
    expected: Rows
    codes: tuple[int, ...]  # how all processors ended
    merged: Rows  # of each window one row


def upgrade(work: Path, flights: Path, processors: int) -> Upgrade:
    """The whole story. The emulator's address is in the environment."""
    first, second = (_fleet(work, version) for version in ("v1", "v2"))
    names = [f"p{number}" for number in range(processors)]
    try:
        _start(first, names)
        say(f"version 1 runs: {_stages(first)}")
        early, late = _in_two(flights)
        rate = pq.read_metadata(early).num_rows / PRODUCE_S
        producer = _begin(first, "produce", "flights", str(early), "--key", "dest", "--rate", f"{rate:.0f}")
        first.wait_until("a first part is read", _has_read, PATIENCE_S)
        say("rows come in, and version 1 is drained")
        codes = _drained(first)
        positions = first.status()["positions"]
        say(f"version 1 has ended with {codes}, read up to {positions}")
        more = _begin(second, "produce", "flights", str(late), "--key", "dest")
        _start(second, names)
        say(f"version 2 has taken over: {_stages(second)}")
        if producer.wait(PATIENCE_S) != 0 or more.wait(PATIENCE_S) != 0:
            raise SystemExit("A producer failed.")
        second.wait_until("all is read", lambda now: second.unread(now) == 0, PATIENCE_S)
        codes += _drained(second)
        say("version 2 has read all the rest, and is drained")
        ends = {partition: _position(end) for partition, end in second.status()["positions"].items()}
        cut = {partition: _position(end) for partition, end in positions.items()}
        result = work / "daily-delays.parquet"
        if _begin(second, "export", "daily-delays", "--to", str(result)).wait(PATIENCE_S) != 0:
            raise SystemExit("The export failed.")
        found = pq.read_table(result)
        before, after = _between(second, {}, cut), _between(second, cut, ends)
        expected = _batches(work, before, after)
    finally:
        first.stop()
        second.stop()
    return Upgrade(before.num_rows, after.num_rows, rows_of(found), expected, codes, rows_of(merged(found)))


def _in_two(flights: Path) -> tuple[Path, Path]:
    """What comes in while version 1 runs and is drained, and what comes in after that."""
    rows, paths = pq.read_table(flights), (flights.with_name("early.parquet"), flights.with_name("late.parquet"))
    half = rows.num_rows // 2
    for path, part in zip(paths, (rows.slice(0, half), rows.slice(half)), strict=True):
        pq.write_table(part, path)
    return paths


def merged(rows: pa.Table) -> pa.Table:
    """One row per window and carrier: a window that the drain has cut has one of each version."""
    flat = rows.append_column("start", pc.struct_field(rows["window"], "start")).append_column(
        "end", pc.struct_field(rows["window"], "end")
    )
    grouped = flat.group_by(["start", "end", "carrier"]).aggregate([("flights", "sum"), ("minutes", "sum")])
    window = pa.StructArray.from_arrays(
        [grouped["start"].combine_chunks(), grouped["end"].combine_chunks()], names=["start", "end"]
    )
    return pa.table(
        {
            "window": window,
            "carrier": grouped["carrier"],
            "flights": grouped["flights_sum"],
            "minutes": grouped["minutes_sum"],
        }
    )


def rows_of(table: pa.Table) -> Rows:
    """Rows as a multiset."""
    return Counter(
        (row["window"]["start"], row["carrier"], row["flights"], row["minutes"]) for row in table.to_pylist()
    )


def _fleet(work: Path, version: str) -> Fleet:
    shutil.copytree(HERE / version, work / version)
    return Fleet(work / version / "job.toml", work / f"logs-{version}")


def _start(fleet: Fleet, names: list[str]) -> None:
    for name in names:
        fleet.start(name)
    fleet.wait_until(
        "all tasks run",
        lambda shown: all_running(shown) and {task["owner"] for task in shown["tasks"]} <= set(fleet.alive()),
        PATIENCE_S,
    )


def _stages(fleet: Fleet) -> str:
    return ", ".join(dict.fromkeys(task["stage"] for task in fleet.status()["tasks"]))


def _has_read(shown: dict[str, Any]) -> bool:
    """Something of each partition, and the second stage has put something into its log."""
    return all(tuple(end) > (0, 0) for end in shown["read"].values()) and all(
        (task["batch"] or 0) >= 1 for task in shown["tasks"]
    )


def _begin(fleet: Fleet, name: str, *rest: str) -> "subprocess.Popen[bytes]":
    """A command of samza-azure on this job."""
    command = [sys.executable, "-m", "samza_azure", name, str(fleet.job), *rest]
    return subprocess.Popen(command, env=fleet.environment, stdout=sys.stderr)


def _drained(fleet: Fleet) -> tuple[int, ...]:
    """How the command and all processors end."""
    code = _begin(fleet, "drain", "--wait", "--timeout", f"{PATIENCE_S:.0f}").wait(PATIENCE_S + 60)
    return code, *fleet.exit_codes(PATIENCE_S).values()


def _position(end: list[int]) -> Position:
    return end[0], end[1]


def _between(fleet: Fleet, starts: Positions, ends: Positions) -> pa.Table:
    """The source rows between two positions of each partition."""
    account = Account.from_config(fleet.config.storage)
    batches: list[pa.RecordBatch] = []
    try:
        for partition, end in ends.items():
            reader = LogReader(account.blobs(), f"streams/{partition}")
            for found in reader.scans(starts.get(partition, (0, 0)), end):
                batches += [batch for data in reader.fetch(found.parts) for batch in decode(data)]
    finally:
        account.close()
    return pa.Table.from_batches(batches)


def _batches(work: Path, before: pa.Table, after: pa.Table) -> Rows:
    """What the two versions make of their rows, each as one Spark batch."""
    from samza_azure.spark.jvm.session import start_session

    old, new = (_module(work / version / "pipeline.py") for version in ("v1", "v2"))
    for name, table in (("before", before), ("after", after)):
        pq.write_table(table, work / f"{name}.parquet")
    spark = start_session("the same as two batches", {}, work / "batch")
    try:
        first = old.daily_delays(old.clean(spark.read.parquet(str(work / "before.parquet"))))
        second = new.daily_delays(new.rated(new.departures(spark.read.parquet(str(work / "after.parquet")))))
        return rows_of(first.toArrow()) + rows_of(second.toArrow())
    finally:
        spark.stop()


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pipeline_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr, flush=True)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processors", type=int, default=2)
    chosen = parser.parse_args()
    sys.path.insert(0, str(HERE.parent / "flights"))
    from flights import write

    work = Path(tempfile.mkdtemp(prefix="samza-azure-upgrade-"))
    say(f"everything of this run is in {work}")
    write(work / "all.parquet")
    pq.write_table(pq.read_table(work / "all.parquet").slice(0, chosen.rows), work / "flights.parquet")
    with Azurite(say=say).start() as emulator:
        os.environ[VARIABLE] = emulator.connection_string
        result = upgrade(work, work / "flights.parquet", chosen.processors)
    cut = sum(result.found.values()) - sum(result.merged.values())
    print(f"source rows: {result.before} of version 1, {result.after} of version 2")
    print(f"rows out: {sum(result.found.values())}, expected {sum(result.expected.values())}")
    print(f"windows that the drain has cut: {cut}; merged: {sum(result.merged.values())} rows")
    is_equal = result.found == result.expected
    is_whole = result.before + result.after == chosen.rows and result.before > 0 and result.after > 0 and cut > 0
    print("equal" if is_equal else f"DIFFERENT: {result.found - result.expected}, {result.expected - result.found}")
    print(f"exit codes: {result.codes}")
    return 0 if is_equal and is_whole and set(result.codes) == {0} else 1


begun = time.monotonic()
if __name__ == "__main__":
    sys.exit(main())

"""Four appenders and two compactors on one table: ours, deltalake's and pyiceberg's, on the same Azurite.

python benchmarks/tables.py [--quick]

Each is a process of its own. Counted are the publishes, what was refused or failed, and in the end the rows: each that
was acknowledged must be there once. A peer that is not installed is left out: pip install --group bench-tables, best
into a venv of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from common import Claim, main, middle, say, scratch

from samza_azure import tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.segments import Granularity, LockOwner, LockTask, Published
from samza_azure.storage.connection import Account
from samza_azure.tables.compaction import SMALL_MAX

APPENDERS, COMPACTORS = 4, 2
ROWS = 100  # of an append
START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("who", pa.string()), ("number", pa.int64())])
#: This many times more publishes than deltalake in the same run, and at most this much slower beside a compaction.
TIMES, SLOWER = 3.0, 1.1
PAUSE_S = 0.5


class Table(Protocol):
    """What is asked of each of them. A refusal or a failure is raised."""

    def create(self) -> None: ...
    def append(self, rows: pa.Table) -> None: ...
    def compact(self) -> int: ...
    def rows(self) -> pa.Table: ...


class Ours:
    """This package: an appender that keeps its locks, and compactions of what is small."""

    def __init__(self, connect: str, directory: str, who: str) -> None:
        text = 'app = { name = "bench", main = "m:app" }\nazure.storage.connect = "${CONNECT}"\n'
        config = Config.parse(text, environment={"CONNECT": connect})
        account = Account.from_config(config.storage)
        account.ensure_created()
        self._store = tables.store_of(account, "bench")
        self._task = LockTask(who, who, 50 if who.startswith("append") else 0, LockOwner(who))
        self._appender: tables.Appender | None = None

    def create(self) -> None:
        tables.create(self._store, SCHEMA, time="at", granularity=Granularity.DAY)

    def append(self, rows: pa.Table) -> None:
        self._appender = self._appender or tables.Appender(self._store, self._task)
        answer = self._appender.append(rows)
        if not isinstance(answer, Published):
            raise RuntimeError(answer.reason)

    def compact(self) -> int:
        groups = [group for group in tables.plan(self._store) if len(group) >= SMALL_MAX]  # as a job does it
        done = tables.compact(self._store, self._task, groups=groups)
        if lost := [one.refused for one in done if one.why not in (None, tables.Unmerged.MERGED)]:
            raise RuntimeError(lost[0])
        return sum(one.outputs for one in done)

    def rows(self) -> pa.Table:
        return tables.snapshot_of(self._store).to_arrow()


class Delta:
    """deltalake on the same account."""

    def __init__(self, connect: str, directory: str, who: str) -> None:
        parts = dict(part.split("=", 1) for part in connect.split(";") if part)
        self._url = "az://delta/bench"
        self._options = {
            "account_name": parts["AccountName"],
            "account_key": parts["AccountKey"],
            "azure_storage_endpoint": parts["BlobEndpoint"],
            "allow_http": "true",
        }
        self._connect = connect

    def create(self) -> None:
        from azure.storage.blob import ContainerClient
        from deltalake import DeltaTable

        ContainerClient.from_connection_string(self._connect, "delta").create_container()
        DeltaTable.create(self._url, SCHEMA, storage_options=self._options)

    def append(self, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self._url, rows, mode="append", storage_options=self._options)

    def compact(self) -> int:
        from deltalake import DeltaTable

        return int(DeltaTable(self._url, storage_options=self._options).optimize.compact()["numFilesAdded"])

    def rows(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self._url, storage_options=self._options).to_pyarrow_table()


class Iceberg:
    """pyiceberg with a catalog in SQLite, its files on the same account. It has no compaction: all is overwritten."""

    def __init__(self, connect: str, directory: str, who: str) -> None:
        self._connect = connect
        self._properties = {
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": "abfs://iceberg/bench",
            "adls.connection-string": connect,
            "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        }

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("bench", **self._properties)

    def create(self) -> None:
        from azure.storage.blob import ContainerClient

        ContainerClient.from_connection_string(self._connect, "iceberg").create_container()
        catalog = self._catalog()
        catalog.create_namespace("n")
        catalog.create_table("n.bench", SCHEMA)

    def append(self, rows: pa.Table) -> None:
        self._catalog().load_table("n.bench").append(rows)

    def compact(self) -> int:
        table = self._catalog().load_table("n.bench")
        table.overwrite(table.scan().to_arrow())
        return 1

    def rows(self) -> pa.Table:
        return self._catalog().load_table("n.bench").scan().to_arrow()


SYSTEMS: dict[str, Any] = {"ours": Ours, "deltalake": Delta, "pyiceberg": Iceberg}


def work(system: str, role: str, directory: str, seconds: float, pause: float) -> None:
    """One process: appends or compacts until the time is over, and leaves what happened in a file."""
    table: Table = SYSTEMS[system](os.environ["CONNECT"], directory, role)
    table.rows()  # what is imported and opened first takes its time
    Path(directory, f"{role}.ready").touch()
    while not Path(directory, "go").exists():
        time.sleep(0.01)
    until, took, failures, done, number = time.monotonic() + seconds, [], Counter[str](), 0, 0
    acknowledged: list[int] = []
    while time.monotonic() < until:
        begun = time.perf_counter()
        try:
            if role.startswith("append"):
                table.append(made(role, number))
                acknowledged.append(number)
                done += 1
            else:
                done += table.compact()
            took.append(time.perf_counter() - begun)
        except Exception as error:  # noqa: BLE001 - whatever a system says when it loses a race
            failures[f"{type(error).__name__}: {str(error)[:120]}"] += 1
        number += 1
        time.sleep(0.5 if role.startswith("compact") else pause)  # a pause, as a policy has one
    found = {"took": took, "failures": failures, "done": done, "acknowledged": acknowledged}
    Path(directory, f"{role}.json").write_text(json.dumps(found))


def made(role: str, number: int) -> pa.Table:
    """The rows of one append: of one day."""
    times = [START + timedelta(seconds=(number * ROWS + row) % 86_400) for row in range(ROWS)]
    return pa.table([times, [role] * ROWS, [number * ROWS + row for row in range(ROWS)]], schema=SCHEMA)


def together(system: str, connect: str, seconds: float, compactors: int, pause: float = 0.0) -> dict[str, Any]:
    """A fresh account, a table, all the processes, and what became of it. `pause` is between two appends of one."""
    with scratch() as directory:
        table: Table = SYSTEMS[system](connect, str(directory), "look")
        table.create()
        roles = [f"append-{number}" for number in range(APPENDERS)]
        roles += [f"compact-{number}" for number in range(compactors)]
        command = [sys.executable, __file__, "--work", system]
        environment = {**os.environ, "CONNECT": connect}
        running = [
            subprocess.Popen([*command, role, str(directory), str(seconds), str(pause)], env=environment)
            for role in roles
        ]
        while not all((directory / f"{role}.ready").exists() for role in roles):
            if any(process.poll() is not None for process in running):
                raise RuntimeError(f"A process of {system} did not begin.")
            time.sleep(0.05)
        (directory / "go").touch()
        for process in running:
            process.wait()
        found = {
            role: json.loads((directory / f"{role}.json").read_text())
            for role in roles
            if (directory / f"{role}.json").exists()
        }
        expected = Counter(
            (role, number * ROWS + row)
            for role, each in found.items()
            for number in each["acknowledged"]
            for row in range(ROWS)
        )
        rows = table.rows()
        there = Counter(zip(rows["who"].to_pylist(), rows["number"].to_pylist(), strict=True))
    appends = [each for role, each in found.items() if role.startswith("append")]
    merges = [each for role, each in found.items() if role.startswith("compact")]
    took = [one for each in appends for one in each["took"]]
    return {
        "took": took,
        "publishes": sum(each["done"] for each in appends) / seconds,
        "conflicts": sum(sum(each["failures"].values()) for each in appends),
        "compactions": sum(each["done"] for each in merges),
        "failed": sum(sum(each["failures"].values()) for each in merges),
        "latency": middle(took or [float("nan")]),
        "missing": sum((expected - there).values()),
        "too many": sum((there - expected).values()),
        "why": Counter({why: count for each in found.values() for why, count in each["failures"].items()}),
    }


def measure(quick: bool) -> list[Claim]:
    """All that are installed, one after the other; ours once more without compactors."""
    seconds = 8.0 if quick else 60.0
    claims, found = [], {}
    for system in SYSTEMS:
        if system != "ours" and importlib.util.find_spec(system) is None:
            say(f"{system} is not measured: pip install --group bench-tables")
            continue
        with Azurite().start() as azurite:
            found[system] = one = together(system, azurite.connection_string, seconds, COMPACTORS)
        figure = (
            f"{one['publishes']:.1f} publishes/s, median {one['latency'] * 1e3:.0f} ms; conflicts {one['conflicts']}; "
            f"{one['compactions']} files compacted, {one['failed']} compactions failed; rows missing "
            f"{one['missing']:,}, too many {one['too many']:,}"
        )
        is_exact = not (one["conflicts"] or one["failed"] or one["missing"] or one["too many"])
        what = f"{APPENDERS} appenders, {COMPACTORS} compactors, {seconds:g} s: {system}"
        claims.append(Claim(what, figure, "no conflict, exact", is_exact) if system == "ours" else Claim(what, figure))
        for why, count in one["why"].most_common(2):
            say(f"{system}: {count} times {why}")
    claims.append(beside(seconds))
    if "deltalake" in found:
        times = found["ours"]["publishes"] / max(found["deltalake"]["publishes"], 1e-9)
        claims.append(Claim("publishes, ours to deltalake's", f"{times:.1f} times", ">= 3 times", times >= TIMES))
    for claim in claims:
        say(f"{claim}")
    return claims


def beside(seconds: float) -> Claim:
    """How long our append takes beside compactors, and alone.

    Not as fast as they can, which would measure who gets the processors. In an order in which a machine that becomes
    slower or faster meanwhile is no reason.
    """
    found_s: dict[int, list[float]] = {0: [], COMPACTORS: []}
    merged = 0
    for compactors in (0, COMPACTORS, COMPACTORS, 0):
        with Azurite().start() as azurite:
            one = together("ours", azurite.connection_string, seconds / 2, compactors, PAUSE_S)
            found_s[compactors] += one["took"]
            merged += one["compactions"]
    latency = {compactors: middle(took) for compactors, took in found_s.items()}
    slower = latency[COMPACTORS] / latency[0]
    figure = f"{latency[COMPACTORS] * 1e3:.1f} ms, alone {latency[0] * 1e3:.1f} ms: {slower - 1:+.0%}"
    what = (
        f"an append beside {COMPACTORS} compactors ({merged} files), {1 / PAUSE_S:g} a second from each of {APPENDERS}"
    )
    return Claim(what, figure, "<= 10 % slower", slower <= SLOWER)


if __name__ == "__main__":
    if "--work" in sys.argv:
        _, _, system, role, directory, seconds, pause = sys.argv
        work(system, role, directory, float(seconds), float(pause))
    else:
        main(measure, __doc__)

"""The examples of the public docstrings, run with an emulator: one job whose streams and table have some rows."""

import contextlib
import importlib
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import samza_azure
from samza_azure import AzureJobCoordinatorFactory, Config, DrainNotification, Reader, SourceWriter, tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.library.shared_tasks import plan_of
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Ready, Use
from samza_azure.segments import Advance, LostRace
from samza_azure.storage.connection import Account
from samza_azure.systems.api import SystemStream
from tests.test_docs import PUBLIC, documented, parts_of

#: Why an example is not run.
NOT_RUN = {
    "DrainMonitor": "waits for a drain: tests/library/test_drain.py",
    "DrainNotifications": "needs a run: tests/library/test_drain.py",
    "Reader": "waits for more rows: tests/storage/test_reader.py",
    "Reader.__aiter__": "needs an event loop: tests/storage/test_reader.py",
    "SystemConsumer": "tests/storage/test_source_task.py",
    "SystemProducer": "tests/storage/test_outlet.py",
    "TableSnapshot.spark": "tests/spark/test_tables.py",
}
EXAMPLES = {
    called: parts_of(node)["Example"]
    for package, name in PUBLIC
    for called, node in documented(getattr(importlib.import_module(package), name))
    if "Example" in parts_of(node)
}
NOW = datetime(2024, 1, 31, 12, tzinfo=UTC)
DELAYS = pa.schema([("at", pa.timestamp("us", "UTC")), ("carrier", pa.string()), ("delay", pa.int64())])
LATE = pa.table([[NOW], ["AA"], [90]], schema=DELAYS)
ORDER = pa.table({"id": ["a"], "ts": [NOW], "amount": [1]})
JOB = """
app = {{ name = "{name}", main = "pipeline:app" }}
azure.storage.connect = "{connect}"
[streams.orders]
schema = "id string, ts timestamp, amount long"
event_time = "ts"
[streams.daily-delays]
schema = "id string, ts timestamp, amount long"
event_time = "ts"
"""


@pytest.fixture(scope="module")
def config(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """A job in a folder that is the working directory meanwhile."""
    folder = tmp_path_factory.mktemp("job")
    connect = azurite.connection_string
    Path(folder, "job.toml").write_text(JOB.format(name=f"n{uuid.uuid4().hex[:12]}", connect=connect))
    before = Path.cwd()
    os.chdir(folder)
    config = Config.load("job.toml")
    with SourceWriter.from_job("job.toml", "daily-delays") as writer:
        writer.write(ORDER)
    store = tables.store(config, "delays")
    tables.create(store, DELAYS, time="at")
    appender = tables.Appender(store, tables.LockTask("before", "before"))
    for _ in range(2):
        appender.append(LATE)
    appender.close()
    yield config
    os.chdir(before)


def ignore(*_: object) -> None:
    """What an example calls of its reader's program."""


def of_tables(config: Config) -> dict[str, Any]:
    """What the examples of `samza_azure.tables` use."""
    store = tables.store(config, "delays")
    task = tables.LockTask("task", "task")
    appender = tables.Appender(store, task)
    day = tables.Granularity.DAY.bucket(tables.Interval.of(NOW, NOW).start)
    return {
        **{name: getattr(tables, name) for name in ("Granularity", "Interval")},
        "store": store,
        "task": task,
        "appender": appender,
        "rows": LATE,
        "first": LATE,
        "second": LATE,
        "found": appender.place([(day, LATE)], most=10),
        "table": tables.open(config, "delays"),
        "Advance": Advance,
        "LostRace": LostRace,
    }


def of_package(config: Config, cleared: contextlib.ExitStack) -> dict[str, Any]:
    """What the others use."""
    found: dict[str, Any] = {name: getattr(samza_azure, name) for name in samza_azure.__all__}
    utils = AzureJobCoordinatorFactory().get_coordination_utils("others", "two", config)
    cleared.callback(utils.close)

    class Mine(samza_azure.SharedTasks):
        """Does nothing."""

    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("three", config)
    mine = Mine(coordinator, "partition", 4)
    mine.start()
    cleared.callback(mine.stop)
    return found | {
        **dict.fromkeys(["store", "write_report", "handle", "request"], ignore),
        "utils": utils,
        "Listener": samza_azure.LeaderElectorListener,
        "Mine": Mine,
        "mine": mine,
        "coordinator": AzureJobCoordinatorFactory().get_job_coordinator("four", config),
        "reader": Reader.from_job("job.toml", "daily-delays", until_now=True),
        "writer": SourceWriter.from_job("job.toml", "orders"),
        "input_from": lambda number: [ORDER],
        "rows": ORDER,
        "now": NOW,
        "amount": 1,
        "stored": b"",
        "events": [SimpleNamespace(properties={}, offset="7")],
        "DataFrame": Any,
        "notification": DrainNotification(str(uuid.uuid4()), "2026-11-28-a"),
        "plan": plan_of("partition", 4),
        "Ready": Ready,
        "boot_time": boot_time,
        "use": Use(memory=512 << 20),
        "turns_a_minute_ago": 7,
        "stream": SystemStream("orders", 1, ORDER.schema, {"path": "orders"}, Path()),
    }


@pytest.mark.parametrize("called", sorted({*EXAMPLES} - {*NOT_RUN}))
def test_an_example_runs(called: str, config: Config) -> None:
    account = Account.from_config(config.storage)
    given = {
        "config": config,
        "account": account,
        "tables": tables,
        "Config": Config,
        "pa": pa,
        "Path": Path,
        "UTC": UTC,
    }
    names = [name for _, name in PUBLIC]
    is_of_tables = called.partition(".")[0] in tables.__all__
    assert called.partition(".")[0] in names
    with contextlib.ExitStack() as cleared:
        cleared.callback(account.close)
        given |= of_tables(config) if is_of_tables else of_package(config, cleared)
        libraries = "import sys, time\nfrom datetime import datetime, timedelta\n"
        exec(compile(libraries + EXAMPLES[called], called, "exec"), given)
    assert not isinstance(given.get("answer"), LostRace)


def test_what_is_not_run_is_an_example() -> None:
    assert {*NOT_RUN} <= {*EXAMPLES}

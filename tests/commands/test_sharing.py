"""Two jobs in one account, whose job files have some names in common: each is right, or refused with exit code 2."""

import itertools
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from samza_azure import (
    AzureJobCoordinatorFactory,
    AzureLock,
    Config,
    DrainNotifications,
    Reader,
    SharedTasks,
    SourceWriter,
    cli,
    tables,
)
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.errors import ConfigError, Ending, Verdict
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.logs.names import BINDING
from samza_azure.logs.operations import Span
from samza_azure.storage.connection import Account
from samza_azure.stream_io.retention import readers_of
from tests.storage.proxy import Guard

JOB = """
app = {{ name = "{name}", id = "{id}", main = "none:none" }}
azure.storage = {{ {storage} }}
job.coordinator.profile = "fast"

[streams.orders]
partitions = 1
schema = "id BIGINT"
"""
ROWS = 5
#: The commands that read no container and no table of a job.
AT_HOME = {"dev", "azurite", "master", "worker", "executor", "explain", "check", "positions", "verify"}
PATIENCE_S = 60.0


@dataclass(slots=True)
class Users:
    """Job files in a folder, and a terminal."""

    folder: Path
    emulator: Azurite
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def job(self, name: str, app_id: str = "1", connect: str = "", **storage: str) -> Path:
        """A job file; `storage` are its container and its table, where they are not the default."""
        names = {"connect": connect or self.emulator.connection_string, **storage}
        path = self.folder / f"{uuid.uuid4().hex}.toml"
        settings = ", ".join(f'{key} = "{value}"' for key, value in names.items())
        path.write_text(JOB.format(name=name, id=app_id, storage=settings))
        return path

    def command(self, command: str, job: Path, *options: str) -> tuple[int, str]:
        """The exit code, and all that it said."""
        self.patch.setattr(sys, "argv", ["samza-azure", command, str(job), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self.capture.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    def rows(self, first: int = 0) -> Path:
        """A file of rows."""
        path = self.folder / f"{first}.jsonl"
        path.write_text("".join(f'{{"id": {number}}}\n' for number in range(first, first + ROWS)))
        return path


@pytest.fixture
def users(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Users:
    return Users(tmp_path, emulator, monkeypatch, capsys)


def unique(name: str) -> str:
    return f"{name}{uuid.uuid4().hex[:12]}"


def stored(job: Path) -> list[int]:
    """The rows of the job's stream."""
    return sorted(
        number for rows in Reader.from_job(job, "orders", until_now=True) for number in rows["id"].to_pylist()
    )


SHARED, OWN, DEFAULT = "shared", "own", "default"
#: How the names of the second job go with those of the first: its container, its table, its name, its id.
COMBINATIONS = [
    (*storage, *application)
    for storage in itertools.product((SHARED, OWN, DEFAULT), repeat=2)
    for application in ((SHARED, SHARED), (OWN, SHARED), (SHARED, OWN))
]


def two_jobs(users: Users, container: str, table: str, name: str, app_id: str) -> tuple[Path, Path]:
    """The first job has all names by default."""
    first = users.job(ours := unique("one"))
    theirs = Config.load(first).storage
    named = {
        kind: value if choice == SHARED else unique("own")
        for kind, choice, value in (("container", container, theirs.container), ("table", table, theirs.table))
        if choice != DEFAULT
    }
    return first, users.job(ours if name == SHARED else unique("two"), "1" if app_id == SHARED else "2", **named)


# Each fourth has each way of each name.
@pytest.mark.parametrize(
    "names",
    [pytest.param(each, marks=[pytest.mark.long] * bool(place % 4)) for place, each in enumerate(COMBINATIONS)],
    ids=map("-".join, COMBINATIONS),
)
def test_two_jobs_never_take_rows_keys_or_readers_from_each_other(users: Users, names: tuple[str, ...]) -> None:
    first, second = two_jobs(users, *names)
    configs = [Config.load(each) for each in (first, second)]
    one, two = (each.storage for each in configs)
    [identity, other] = [(each.app.name, each.app.id) for each in configs]
    assert users.command("produce", first, "orders", str(users.rows()), "--once", "day")[0] == 0
    reader = Reader.from_job(first, "orders", name="nightly", until_now=True)
    for _ in reader:
        reader.commit()
    code, said = users.command("produce", second, "orders", str(users.rows()), "--once", "day")
    if (one.container, one.table, identity) == (two.container, two.table, other):
        assert code == 0 and f"All {ROWS} rows of 'day' are in orders already." in said
    elif one.container != two.container and one.table != two.table:
        assert (code, stored(second)) == (0, list(range(ROWS)))
        assert users.command("follow", second, "orders", "--until-now", "--name", "nightly")[0] == 0
        assert users.command("delete", second, "--all", "--yes")[0] == 0
        assert stored(second) == []
    else:
        assert code == 2 and "belongs to the " in said
        assert users.command("delete", second, "--all", "--yes")[0] == 2
    assert stored(first) == list(range(ROWS))
    assert users.command("produce", first, "orders", str(users.rows()), "--once", "day")[0] == 0
    assert stored(first) == list(range(ROWS))
    assert readers_of(Account.from_config(one).readers(), "orders").keys() == {"nightly"}


def test_names_can_be_used_again_when_all_of_their_job_is_deleted(users: Users) -> None:
    first = users.job(unique("one"))
    names = Config.load(first).storage
    assert users.command("produce", first, "orders", str(users.rows()), "--once", "day")[0] == 0
    second = users.job(unique("two"), container=names.container, table=unique("t"))
    assert users.command("produce", second, "orders", str(users.rows()), "--once", "day")[0] == 2
    assert users.command("delete", first, "--all", "--yes")[0] == 0
    assert users.command("produce", second, "orders", str(users.rows()), "--once", "day")[0] == 0
    assert stored(second) == list(range(ROWS))
    assert users.command("produce", first, "orders", str(users.rows()), "--once", "day")[0] == 2


@pytest.mark.parametrize("is_made_anew", [True, False], ids=["anew", "gone"])
def test_a_container_that_was_deleted_is_refused_until_its_table_is_empty(users: Users, is_made_anew: bool) -> None:
    """Its table says that the rows of the key are stored."""
    job = users.job(unique("one"))
    assert users.command("produce", job, "orders", str(users.rows()), "--once", "day")[0] == 0
    account = Account.from_config(Config.load(job).storage)
    container = account._synchronous().container
    container.delete_container()
    if is_made_anew:
        container.create_container()
    for command, *options in (("produce", "orders", str(users.rows()), "--once", "day"), ("status",), ("drain",)):
        code, said = users.command(command, job, *options)
        assert code == 2 and "that was deleted since" in said and "delete JOB --all" in said
    assert account.has_container(account._container) == is_made_anew
    assert users.command("delete", job, "--all", "--yes")[0] == 0
    assert account.has_container(account._container) == is_made_anew
    assert users.command("produce", job, "orders", str(users.rows()), "--once", "day")[0] == 0
    assert stored(job) == list(range(ROWS))


@pytest.mark.parametrize("is_foreign", [True, False], ids=["foreign", "deleted"])
def test_who_loses_the_blob_of_the_binding_loses_no_row_or_key(users: Users, is_foreign: bool) -> None:
    """A producer or a lifecycle rule may have replaced or deleted it."""
    job = users.job(unique("one"))
    produce = ("produce", job, "orders", str(users.rows()), "--once", "day")
    assert users.command(*produce)[0] == 0
    blobs = Account.from_config(Config.load(job).storage).blobs()
    blobs.delete(BINDING)
    if is_foreign:
        blobs.put(BINDING, b"{}")
        for command in (produce, ("status", job)):
            code, said = users.command(*command)
            assert code == 2 and "delete it: the next start writes it anew" in said
        blobs.delete(BINDING)
    assert stored(job) == list(range(ROWS))
    code, said = users.command(*produce)
    assert code == 0 and f"All {ROWS} rows of 'day' are in orders already." in said
    assert isinstance(blobs.read(BINDING, 0), Span)
    assert stored(job) == list(range(ROWS))


@pytest.mark.parametrize("shares", ["container", "table", "both"])
def test_every_command_refuses_names_of_another_job(users: Users, shares: str, tmp_path: Path) -> None:
    first = users.job(unique("one"))
    assert users.command("produce", first, "orders", str(users.rows()), "--once", "day")[0] == 0
    names = Config.load(first).storage
    own = {kind: unique("own") for kind in ("container", "table") if shares not in (kind, "both")}
    second = users.job(unique("two"), **{"container": names.container, "table": names.table, **own})
    before = everything(names.container, users.emulator)
    options: Mapping[str, tuple[str, ...]] = {
        "produce": ("orders", str(users.rows(10))),
        "export": ("orders", "--to", str(tmp_path / "rows.csv")),
        "peek": ("orders",),
        "follow": ("orders", "--until-now"),
        "decommission": ("vm",),
        "drain": (),
        "stop": (),
        "status": (),
        "ui": ("--port", "0"),
        "delete": ("--all", "--yes"),
        "rewind": ("--to", "earliest"),
        "recover": (),
        "table": ("orders",),
        "compact": ("orders",),
    }
    assert {*options, "run", "guard"} == cli.COMMANDS.keys() - AT_HOME, "a command that is not tried here"
    for command, given in options.items():
        code, said = users.command(command, second, *given)
        assert (code, "belongs to the " in said) == (2, True), (command, said)
    for given in (
        ("produce", "orders", str(users.rows(10)), "--dry-run"),
        ("follow", "orders", "--until-now", "--name", "nightly"),
        ("drain", "--when-caught-up", "--wait"),
        ("drain", "--cancel"),
        ("stop", "--wait"),
        ("delete", "--stream", "orders", "--yes"),
        ("delete", "--stream", "orders", "--reader", "nightly"),
        ("delete", "--run", "1-a", "--yes"),
    ):
        code, said = users.command(given[0], second, *given[1:])
        assert (code, "belongs to the " in said) == (2, True), (given, said)
    config = Config.load(second)
    calls: list[Callable[[], object]] = [
        lambda: SourceWriter.from_job(second, "orders"),
        lambda: SourceWriter.from_job(second, "orders", once="day"),
        lambda: Reader.from_job(second, "orders"),
        lambda: list(Reader.from_job(second, "orders", token=Reader.from_job(first, "orders").token, until_now=True)),
        lambda: Reader.from_job(second, "orders", name="nightly"),
        lambda: tables.open(config, "orders"),
        lambda: DrainNotifications.of(config).read(),
        lambda: DrainNotifications.of(config).write("1-a"),
        lambda: AzureLock(config.storage, "lock").lock(),
    ]
    for number, call in enumerate(calls):
        if shares == "table" and number in (2, 3):  # they read the job's own container, and no row of the table
            continue
        with pytest.raises(ConfigError, match="belongs to the "):
            call()
    assert ended(member("p0", config, "part")).code == Verdict.REFUSED
    assert everything(names.container, users.emulator) == before, "something was written"


def everything(container: str, emulator: Azurite) -> list[tuple[str, int]]:
    """All blobs of a container."""
    config = Config.parse(JOB.format(name="x", id="1", storage=f'connect = "{emulator.connection_string}"'))
    return list(Account.from_config(config.storage).container(container).list(""))


def test_a_processor_ends_with_2(users: Users) -> None:
    first = users.job(unique("one"))
    assert users.command("produce", first, "orders", str(users.rows()))[0] == 0
    second = users.job(unique("two"), table=Config.load(first).storage.table)
    run = subprocess.run(
        [sys.executable, "-m", "samza_azure", "run", str(second)], cwd=users.folder, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "belongs to the container" in run.stderr


def test_a_check_costs_no_call_more_than_the_search_for_container_and_table(users: Users) -> None:
    """One of the blob and one of the row at a start, which find out what is there as well; one where a producer
    creates a blob, and none at another flush."""
    emulator = users.emulator
    with Guard(emulator.blob_port, lambda *_: False) as blobs, Guard(emulator.table_port, lambda *_: False) as rows:
        connect = emulator.connection_string.replace(f":{emulator.blob_port}/", f":{blobs.port}/")
        job = users.job(unique("one"), connect=connect.replace(f":{emulator.table_port}/", f":{rows.port}/"))
        writer = SourceWriter.from_job(job, "orders")
        assert sum("binding" in each for each in blobs.seen + rows.seen) <= 9  # once in the life of the job
        for seen in (blobs.seen, rows.seen):
            seen.clear()
        for number in range(3):
            writer.write(tables_of(number))
            writer.flush()
        writer.close()
        created = [each for each in blobs.seen if each.startswith("PUT") and "comp=" not in each]
        assert len([each for each in blobs.seen + rows.seen if "binding" in each]) == len(created) == 1
        for seen in (blobs.seen, rows.seen):
            seen.clear()
        SourceWriter.from_job(job, "orders")
        assert [len([each for each in seen if "binding" in each]) for seen in (blobs.seen, rows.seen)] == [1, 1]
        assert len(rows.seen) == 1


def tables_of(number: int) -> pa.Table:
    return pa.table({"id": [number]})


def test_an_export_into_the_container_of_another_job_leaves_what_is_its_own(users: Users) -> None:
    first, second = users.job(unique("one")), users.job(unique("two"))
    for job in (first, second):
        assert users.command("produce", job, "orders", str(users.rows()))[0] == 0
    container = Config.load(second).storage.container
    before = everything(container, users.emulator)
    for path in ("streams/binding.json", "files/out/rows.parquet", "streams/orders/0/rows.csv"):
        code, said = users.command("export", first, "orders", "--to", f"az://{container}/{path}")
        assert code == 2 and "is where the job of that container keeps its own data" in said
    assert everything(container, users.emulator) == before
    assert users.command("export", first, "orders", "--to", f"az://{container}/exports/rows.parquet")[0] == 0


# Processors.


class Working(SharedTasks):
    """Has tasks, or an end."""

    def __init__(self, coordinator: ThreadedCoordinator, pipeline: str) -> None:
        super().__init__(coordinator, pipeline, 2)
        self.of = coordinator


def member(name: str, config: Config, pipeline: str) -> Working:
    """A processor without Spark."""
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator(name, config)
    assert isinstance(coordinator, ThreadedCoordinator)
    working = Working(coordinator, pipeline)
    working.start()
    return working


def ended(working: Working) -> Ending:
    until(lambda: working.of.ending is not None)
    assert working.of.ending is not None
    return working.of.ending


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # the pace of asking


#: What two jobs share. The last one may be the same job twice.
PAIRS = [
    (OWN, OWN, OWN, SHARED),
    (SHARED, OWN, OWN, SHARED),
    (OWN, SHARED, OWN, SHARED),
    (SHARED, SHARED, OWN, SHARED),
    (SHARED, SHARED, SHARED, OWN),
    (DEFAULT, DEFAULT, SHARED, SHARED),
]


@pytest.mark.parametrize(
    ("pipeline", "cases"),
    [
        ("other", [PAIRS[1], PAIRS[2], PAIRS[5]]),
        *(pytest.param(each, PAIRS, marks=pytest.mark.long) for each in ("same", "other")),
    ],
    ids=["one shared, or none", "same", "other"],
)
def test_processors_of_two_jobs_get_their_own_tasks_or_end(
    users: Users, pipeline: str, cases: Sequence[tuple[str, ...]]
) -> None:
    """The first jobs run when the second ones start."""
    jobs = [tuple(map(Config.load, two_jobs(users, *each))) for each in cases]
    firsts = [member("p0", one, "part") for one, _ in jobs]
    others: list[Working] = []
    try:
        until(lambda: all(len(each.tasks) == 2 for each in firsts))
        others = [member("p1", two, "part" if pipeline == "same" else "more") for _, two in jobs]
        *firsts_alone, together = firsts
        *others_alone, also = others
        for (container, table, *_), first, other in zip(cases[:-1], firsts_alone, others_alone, strict=True):
            until(lambda first=first: len(first.tasks) == 2)
            if container == table == OWN:
                until(lambda other=other: len(other.tasks) == 2)
            else:
                assert ended(other).code == Verdict.REFUSED and "belongs to the " in ended(other).message
        if pipeline == "same":  # and so the same job: two processors share its tasks
            until(lambda: len(together.tasks) == len(also.tasks) == 1)
        else:
            assert ended(also).code == Verdict.REFUSED
            until(lambda: len(together.tasks) == 2)
    finally:
        for each in firsts + others:
            if each.of.ending is None:
                each.stop()

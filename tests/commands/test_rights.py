"""With the least rights: each command on an emulator that a proxy guards as roles guard an account.

What a role would refuse the proxy refuses, with Azure's code. Nothing in the package knows that it is there.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from infra.check.rules import CONFINED
from samza_azure import AzureJobCoordinatorFactory, Config, SharedTasks, SourceWriter, cli
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.status import NOT_WELL
from samza_azure.errors import AccessDenied, Verdict
from samza_azure.storage.connection import Account
from tests.storage.proxy import Guard
from tests.storage.test_secrets import signature_of

JOB = """
app = {{ name = "rights", id = "{id}", main = "none:none" }}
azure.storage.connect = "${{CONNECT}}"
job.coordinator.profile = "fast"

[streams.orders]
partitions = 2
key = ["id"]
schema = "id BIGINT, at TIMESTAMP"
event_time = "at"
"""
#: What comes out is a table.
TABLE = """
[streams.copied]
schema = "id BIGINT, at TIMESTAMP"
table.time = "at"
table.flush = "1 s"
"""
PIPELINE = """
from samza_azure import Application

app = Application()


@app.task("orders", output="copied")
class Copy:
    def process(self, envelope, collector):
        collector.send(envelope.row)
"""
#: The commands that do not read the account, and those that other tests try: tests/page/test_serving.py,
#: tests/storage/test_contract.py, tests/fleet/test_guard.py.
AT_HOME = {"dev", "azurite", "master", "worker", "executor", "explain", "check", "positions"}
ELSEWHERE = {"ui", "verify", "guard"}
Refuses = Callable[[str, str], bool]
ROW = '{"id": 1, "at": "2026-01-01T00:00:00Z"}\n'


def creates(method: str, path: str) -> bool:
    """The right to create containers and tables, which roles at a container and a table do not have."""
    return (method == "PUT" and "restype=container" in path) or (method == "POST" and path.endswith("/Tables"))


def writes(method: str, path: str) -> bool:
    """What a reader's roles do not have."""
    return method not in ("GET", "HEAD")


def is_own(method: str, path: str) -> bool:
    """What a reader's roles lack, and also to ask for a container's properties, which is a right of its own."""
    return writes(method, path) or ("restype=container" in path and "comp=list" not in path)


def everything(method: str, path: str) -> bool:
    """The rights that a user without any role lacks."""
    return True


@dataclass(slots=True)
class Place:
    """A job on the emulator, seen past the guards and by way of them."""

    job: Path
    connect: str
    emulator: Azurite
    guarded: str
    blobs: Guard
    tables: Guard
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    tried: set[str] = field(default_factory=set)  # commands

    def config(self, connect: str) -> Config:
        return Config.load(self.job, environment={**os.environ, "CONNECT": connect})

    def command(self, name: str, *options: str) -> tuple[int, str, str]:
        """A command of a user whose rights the guards know, in this process."""
        self.tried.add(name)
        self.patch.setenv("CONNECT", self.guarded)
        self.patch.setattr(sys, "argv", ["samza-azure", name, str(self.job), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self.capture.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def allow(self, blobs: Refuses, tables: Refuses) -> None:
        """Which rights there are from now on."""
        for guard, refuses in ((self.blobs, blobs), (self.tables, tables)):
            guard.refuses = refuses
            guard.seen.clear()
            guard.refused.clear()

    def create(self) -> None:
        """What the templates do."""
        account = Account.from_config(self.config(self.connect).storage)
        account.ensure_created()
        account.close()

    @contextmanager
    def running(self, connect: str) -> Iterator[SharedTasks]:
        """A processor without Spark whose tasks all run."""
        coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", self.config(connect))
        with SharedTasks(coordinator, "part", 2) as tasks:
            self.until(lambda: len(tasks.tasks) == 2)
            yield tasks

    def until(self, holds: Callable[[], bool], seconds: float = 60, pace: float = 0.02) -> None:
        """Wait for something that others do."""
        begun = time.monotonic()
        while not holds():
            assert time.monotonic() < begun + seconds, (self.blobs.refused, self.tables.refused)
            time.sleep(pace)  # of asking

    def signed(self, signature: str) -> str:
        """The guarded account, opened by a signature."""
        kept = [part for part in self.guarded.split(";") if "Endpoint=" in part or "AccountName" in part]
        return ";".join([*kept, f"SharedAccessSignature={signature}"])

    @property
    def container(self) -> str:
        return self.config(self.connect).storage.container


@pytest.fixture
def place(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Place]:
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(id=uuid.uuid4().hex[:8]))
    connect = emulator.connection_string
    with ExitStack() as stack:
        blobs = stack.enter_context(Guard(emulator.blob_port, creates))
        tables = stack.enter_context(Guard(emulator.table_port, creates))
        guarded = connect.replace(f":{emulator.blob_port}/", f":{blobs.port}/")
        guarded = guarded.replace(f":{emulator.table_port}/", f":{tables.port}/")
        yield Place(job, connect, emulator, guarded, blobs, tables, monkeypatch, capsys)


def test_no_command_needs_the_right_to_create_a_container_or_table_that_exists(place: Place, tmp_path: Path) -> None:
    place.create()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW)
    processor_with_a_table(place, rows)
    place.job.write_text(JOB.format(id=uuid.uuid4().hex[:8]))
    place.create()
    assert place.command("produce", "orders", str(rows))[:2] == (0, "1 rows into orders\n")
    with place.running(place.guarded):
        code, said, _ = place.command("status", "--json")
        assert (code, json.loads(said)["phase"]) == (0, "RUNNING")
        [processor] = json.loads(said)["processors"]
        assert place.command("decommission", processor["id"])[0] == 0
        assert place.command("decommission", processor["id"], "--cancel")[0] == 0
        assert place.command("peek", "orders")[0] == 0
        assert place.command("follow", "orders", "--from", "earliest", "--until-now")[0] == 0
        assert place.command("export", "orders", "--to", str(tmp_path / "orders.parquet"))[0] == 0
        assert place.command("follow", "orders", "--until-now", "--name", "w")[0] == 0
        assert "There is no table segments" in place.command("table", "segments")[2]
        assert place.command("drain", "--wait", "--timeout", "60")[0] == 0
    assert place.command("stop", "--wait")[:2] == (0, "No processor runs.\n")
    assert place.command("recover")[0] == 0
    assert place.command("rewind", "--to", "earliest")[0] == 0
    assert place.command("delete", "--stream", "orders", "--yes")[0] == 0
    assert place.command("delete", "--all", "--yes")[0] == 0
    assert place.blobs.refused == place.tables.refused == []
    assert place.tried == cli.COMMANDS.keys() - AT_HOME - ELSEWHERE


def processor_with_a_table(place: Place, rows: Path) -> None:
    """It makes a table of a stream, which is then looked at and compacted."""
    place.job.write_text(JOB.format(id=uuid.uuid4().hex[:8]).replace("none:none", "pipeline:app") + TABLE)
    (place.job.parent / "pipeline.py").write_text(PIPELINE)
    place.create()
    assert place.command("produce", "orders", str(rows))[0] == 0
    place.tried.add("run")
    run = [sys.executable, "-m", "samza_azure", "run", str(place.job)]
    with subprocess.Popen(run, env={**os.environ, "CONNECT": place.guarded}, cwd=place.job.parent) as processor:
        try:
            place.until(lambda: json.loads(place.command("status", "--json")[1])["phase"] == "RUNNING", 180, 0.5)
            assert place.command("drain", "--when-caught-up", "--wait", "--timeout", "180")[0] == 0
            assert processor.wait(60) == 0
        finally:
            processor.kill()
    code, said, _ = place.command("table", "copied", "--json")
    assert (code, [each["rows"] for each in json.loads(said)["intervals"]]) == (0, [1])
    assert place.command("compact", "copied")[0] == 0


def test_read_only_commands_write_nothing_and_need_reader_roles_only(place: Place, tmp_path: Path) -> None:
    place.create()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW)
    assert place.command("produce", "orders", str(rows))[0] == 0
    place.allow(is_own, is_own)
    with place.running(place.connect):
        assert place.command("status")[0] in (0, NOT_WELL)  # its tasks may not run yet
        assert place.command("peek", "orders")[0] == 0
        assert place.command("follow", "orders", "--from", "earliest", "--until-now")[0] == 0
        assert "There is no table segments" in place.command("table", "segments")[2]
        assert place.command("export", "orders", "--to", str(tmp_path / "orders.parquet"))[0] == 0
    assert place.blobs.refused == place.tables.refused == []
    assert {each.split()[0] for each in place.blobs.seen} <= {"GET", "HEAD"}
    assert {each.split()[0] for each in place.tables.seen} == {"GET"}


def test_a_producer_writes_no_blob_outside_of_the_streams(place: Place, tmp_path: Path) -> None:
    """The condition of its role, as infra/azure/roles.bicep has it, refuses every other change of a blob."""
    part = f"/{place.container}/{CONFINED['producers', 'streamWriter'].removesuffix('*')}"
    place.create()
    place.allow(lambda method, path: writes(method, path) and part not in path, creates)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(ROW)
    assert place.command("produce", "orders", str(rows))[:2] == (0, "1 rows into orders\n")
    assert place.command("produce", "orders", str(rows), "--once", "monday")[:2] == (0, "1 rows into orders\n")
    with SourceWriter.from_job(place.job, "orders") as writer:
        writer.write(pa.table({"id": [2], "at": pa.array([0], pa.timestamp("us", "UTC"))}))
    assert place.blobs.refused == place.tables.refused == []
    assert [each for each in place.blobs.seen if each.startswith("PUT")]
    other = Account.from_config(place.config(place.guarded).storage).blobs()
    with pytest.raises(AccessDenied, match="AuthorizationPermissionMismatch"):
        other.put("runs/forged", b"")


def test_drain_and_stop_write_only_table_rows(place: Place) -> None:
    place.create()
    place.allow(writes, creates)
    with place.running(place.connect):
        assert place.command("drain", "--cancel")[0] == 0
        assert place.command("stop", "--wait")[0] == 0
    assert place.blobs.refused == place.tables.refused == []
    assert any(each.startswith("POST") for each in place.tables.seen)


def test_a_missing_container_or_table_names_the_role_that_may_create_it(place: Place) -> None:
    code, _, said = place.command("drain", "--run-id", "first")
    assert code == 3
    assert "There is no container rights-" in said and "as infra/azure does" in said
    assert "Storage Blob Data Contributor on the whole account" in said
    place.allow(lambda method, path: False, creates)
    code, _, said = place.command("drain", "--run-id", "first")
    assert code == 3 and "There is no table " in said and "Storage Table Data Contributor on the whole account" in said


def test_looking_where_nothing_is_creates_nothing(place: Place) -> None:
    place.allow(writes, writes)
    code, _, said = place.command("status")
    assert code == 2 and "There is nothing of 'rights' in this account" in said
    assert place.blobs.refused == place.tables.refused == []


def test_an_identity_without_rights_gets_an_error_that_may_pass(place: Place) -> None:
    place.allow(everything, everything)
    with pytest.raises(AccessDenied, match="AuthorizationPermissionMismatch") as raised:
        Account.from_config(place.config(place.guarded).storage).ensure_created()
    assert raised.value.may_pass


def test_a_processor_that_waits_for_a_role_stops_at_once_on_request(place: Place) -> None:
    place.allow(everything, everything)
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", place.config(place.guarded))
    coordinator.start()
    place.until(lambda: bool(place.blobs.refused))
    coordinator.stop()
    assert coordinator.wait(10)
    assert coordinator.ending is not None and coordinator.ending.code is Verdict.DONE


def test_a_role_that_counts_only_later_keeps_a_processor_waiting(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """First the look is refused, then, with the blob's role there, the row."""
    place.create()
    place.allow(everything, writes)
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", place.config(place.guarded))
    with SharedTasks(coordinator, "part", 2) as tasks:
        place.until(lambda: len(place.blobs.refused) > 1)
        place.blobs.refuses = creates
        place.until(lambda: len(place.tables.refused) > 1)
        assert coordinator.ending is None
        place.tables.refuses = creates
        place.until(lambda: len(tasks.tasks) == 2)
    said = [record.getMessage() for record in caplog.records if "is tried again for 600 s" in record.getMessage()]
    assert [each.partition(":")[0] for each in said] == [
        f"Asking what the container {place.container} belongs to",
        "Inserting the row members/p0",
    ]


def test_a_processor_whose_signature_ends_goes_on_with_the_one_that_is_in_the_file_by_then(
    place: Place, tmp_path: Path
) -> None:
    """As Kubernetes mounts a secret. The processor does not have to be restarted."""
    place.create()
    old, new = (signature_of(place.emulator, timedelta(hours=hours)) for hours in (1, 2))
    file = tmp_path / "connect"
    file.write_text(place.signed(old))
    place.job.write_text(place.job.read_text().replace('connect = "${CONNECT}"', f'connect.file = "{file.name}"'))
    with place.running(place.guarded) as tasks:
        place.allow(*[lambda method, path: old.rpartition("sig=")[2] in path] * 2)
        place.until(lambda: not tasks.may_act)
        file.write_text(place.signed(new))
        place.until(lambda: tasks.may_act)
        assert len(tasks.tasks) == 2

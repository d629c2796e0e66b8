"""Each failure of access is played for each of us: a command, a processor, a Reader and a SourceWriter.

The account is an emulator behind servers that answer in its place, and the identity is azure-identity's own behind a
metadata service; see tests/storage/cloud.py.
"""

import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from azure.core.credentials import AccessTokenInfo

from samza_azure import AzureJobCoordinatorFactory, Config, Reader, SharedTasks, SourceWriter, cli
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.library.threaded import ThreadedCoordinator
from samza_azure.log_rate_limit import RepeatFilter
from samza_azure.storage.connection import Account
from samza_azure.storage.identity import Identity, of_this_process
from tests.commands.access_failures import FAILURES, By, Failure, Outcome
from tests.storage import cloud
from tests.storage.cloud import ACCOUNT, TOKEN_S, Azure, Says, as_on_azure, certificates
from tests.storage.cloud import environment as machine_of
from tests.storage.conftest import Clock
from tests.storage.proxy import Reply, Request
from tests.storage.test_secrets import signature_of

T = TypeVar("T")
__all__ = ["certificates"]  # a fixture

JOB = """
app = {{ name = "access", id = "{id}", main = "none:none" }}
{account}
job.coordinator.profile = "fast"

[streams.orders]
partitions = 1
schema = "id BIGINT"
"""
PIPELINE = """
from samza_azure import Application

app = Application()


@app.stage("orders", output="copied")
def copy(orders):
    return orders
"""
#: As many lines of the log an outage may take in a minute.
LINES_MOST = 10
HOUR = timedelta(hours=1)
ROWS = pa.table({"id": [1, 2, 3]})
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#: One failure for each way to open the account and each outcome: what has begun depends on no more.
KINDS = list({(each.by, each.outcome): each for each in FAILURES}.values())
SOME_KINDS = [pytest.param(each, marks=[pytest.mark.long] * (place % 2)) for place, each in enumerate(KINDS)]


@dataclass(slots=True)
class Machine:
    """A machine with a job, and what happens to its access."""

    azure: Azure
    azurite: Azurite
    folder: Path
    clock: Clock
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    app: str = "shared"

    def job(self, by: By, opened_by: str = "") -> Path:
        """The job file for an account that is opened in this way."""
        opened_by = opened_by or (
            f"SharedAccessSignature={signature_of(self.azurite, 2 * HOUR, begins=-HOUR)}"
            if by is By.SIGNATURE
            else f"AccountKey={KEY}"
        )
        connect = self.azure.connect(opened_by)
        self.patch.setenv("CONNECT", connect)
        (self.folder / "secret").write_text(connect)
        account = {
            By.IDENTITY: f'azure.storage.account = "{ACCOUNT}"',
            By.FILE: 'azure.storage.connect.file = "secret"',
        }.get(by, 'azure.storage.connect = "${CONNECT}"')
        job = self.folder / "job.toml"
        job.write_text(JOB.format(id=self.app, account=account))
        return job

    def config(self, by: By, opened_by: str = "") -> Config:
        return Config.load(self.job(by, opened_by), environment=dict(os.environ))

    def has_its_own(self) -> None:
        """A job that no other test uses, with container and table."""
        self.app = uuid.uuid4().hex[:8]
        self.create()

    def create(self) -> None:
        """Container and table, past all doors."""
        connect, by_doors = self.azurite.connection_string, self.config(By.KEY)
        self.patch.setenv("CONNECT", connect)
        account = Account.from_config(Config.load(by_doors.path, environment=dict(os.environ)).storage)
        account.ensure_created()
        account.close()

    def command(self, name: str, job: Path, *options: str) -> tuple[int, str]:
        """A command in this process: its exit code, and what it says on stderr."""
        self.patch.setattr(sys, "argv", ["samza-azure", name, str(job), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), self.capture.readouterr().err

    def breaks(self, failure: Failure) -> None:
        """The access fails from now on. A token has just ended, so that the next call needs another."""
        failure.breaks(self.azure, self.patch)
        self.clock.now += TOKEN_S + 1

    def heal(self) -> None:
        """It works again."""
        self.azure.heal()
        self.patch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", f"http://127.0.0.1:{self.azure.metadata.port}")
        self.clock.now += TOKEN_S + 1  # and no back-off of the identity is left

    @property
    def failures(self) -> int:
        """How often something was refused, or a token asked for."""
        return self.azure.refused + self.azure.metadata.asked


@pytest.fixture(scope="module")
def azure(emulator: Azurite, certificates: Any) -> Iterator[Azure]:
    context, _ = certificates
    made = Azure(emulator, context)
    with made.with_stack:
        yield made


@pytest.fixture
def machine(
    azure: Azure,
    emulator: Azurite,
    certificates: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Machine]:
    from azure.identity import DefaultAzureCredential

    clock = Clock(time.time())
    identity = Identity(DefaultAzureCredential, clock=clock)
    monkeypatch.setattr("samza_azure.storage.connection.of_this_process", lambda: identity)
    for name in ("PATIENCE_S", "TELL_AFTER_S"):  # of an endpoint that does not answer
        monkeypatch.setattr(f"samza_azure.storage.identity.{name}", 0.5)
    monkeypatch.setattr("samza_azure.commands.connect.PATIENCE_S", 0.5)
    monkeypatch.setattr("samza_azure.commands.connect.FIRST_S", 0.5)
    with as_on_azure(azure, certificates[1], monkeypatch):
        made = Machine(azure, emulator, tmp_path, clock, monkeypatch, capsys)
        if not azure.has_shared:
            azure.has_shared = True
            made.create()  # for the tests that change nothing
        yield made
    azure.heal()


def shows_no_secret(said: str) -> bool:
    return "eyJ" not in said and KEY not in said and "sig=" not in said.replace("sig=**********", "")


def test_the_identity_of_the_process_is_what_azure_identity_finds(machine: Machine) -> None:
    found = of_this_process.__wrapped__().ask(("https://storage.azure.com/.default",), None).result(30)
    assert isinstance(found, AccessTokenInfo) and machine.azure.metadata.asked


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_command_ends_at_once_and_says_what_to_do(machine: Machine, failure: Failure) -> None:
    follows = failure.outcome.value
    if failure.opens is not None:
        job = machine.job(failure.by, failure.opens(machine.azurite))
    else:
        job = machine.job(failure.by)
        machine.breaks(failure)
    code, said = machine.command("status", job)
    assert (code, failure.says in said) == (follows.exits, True), said
    assert shows_no_secret(said)
    assert machine.azure.refused <= 4, "a refusal is not asked for again"


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_processor_that_has_not_joined_ends_with_2_only_if_no_later_try_can_help(
    machine: Machine, failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    # Long enough for a second try, however long the first one takes on a busy machine.
    for name, seconds in {"ROLE_S": 1.5, "ROLE_AGAIN_S": 0.3, "UNREACHABLE_S": 1.5, "KNOCK_S": 0.3}.items():
        machine.patch.setattr(f"samza_azure.library.factory.{name}", seconds)
    opened_by = failure.opens(machine.azurite) if failure.opens is not None else ""
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", machine.config(failure.by, opened_by))
    if failure.opens is None:
        machine.breaks(failure)
    coordinator.start()
    assert coordinator.wait(30)
    ending = coordinator.ending
    assert ending is not None and ending.code is failure.outcome.value.exits, ending
    assert failure.says in ending.message and shows_no_secret(ending.message)
    told = ("tried again for", "Waiting for a token")
    has_said = any(text in record.getMessage() for record in caplog.records for text in told)
    assert has_said == (failure.outcome is not Outcome.FOR_GOOD)


@pytest.mark.parametrize("failure", SOME_KINDS, ids=str)
def test_a_processor_that_has_joined_pauses_and_goes_on_and_says_so_in_a_few_lines(
    machine: Machine, failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    machine.has_its_own()
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", machine.config(failure.by))
    with SharedTasks(coordinator, "part", 2) as tasks:
        until(lambda: len(tasks.tasks) == 2 and tasks.may_act)
        machine.breaks(failure)
        until(lambda: not tasks.may_act)
        until(lambda: any(failure.says in line for line in told(caplog)))
        assert coordinator.ending is None
        machine.heal()
        until(lambda: tasks.may_act)
        assert len(tasks.tasks) == 2
    said = told(caplog)
    assert len(said) <= LINES_MOST and not any("Traceback" in line for line in said), said


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that a processor's log would have."""
    repeats, formatter = RepeatFilter(), logging.Formatter()
    kept = [copy(each) for each in caplog.records if each.levelno >= logging.WARNING]
    return "\n".join(formatter.format(each) for each in kept if repeats.filter(each)).splitlines()


#: What lasts for a while, and how it begins.
OUTAGES: dict[str, Callable[[Azure], None]] = {
    "no token": lambda azure: setattr(azure.metadata, "says", Says.BUSY),
    "the token service hangs": lambda azure: setattr(azure.metadata, "says", Says.NOTHING),
    "a proxy refuses": lambda azure: setattr(azure, "refuses", lambda request: Reply(403, None)),
    "a firewall": lambda azure: setattr(azure, "refuses", lambda request: Reply(403, "AuthorizationFailure")),
    "connections break": lambda azure: setattr(azure, "refuses", breaks_off),
    "busy": lambda azure: setattr(azure, "refuses", lambda request: Reply(503, "ServerBusy", {"Retry-After": "1"})),
    "the service fails": lambda azure: setattr(azure, "refuses", lambda request: Reply(500, "InternalError")),
    "it comes and goes": lambda azure: setattr(
        azure, "refuses", lambda request: Reply(503, "ServerBusy") if time.monotonic() % 5 < 2.5 else None
    ),
}


def breaks_off(request: Request) -> Reply | None:
    """The connection ends without an answer."""
    raise ConnectionResetError


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_real_processor_logs_at_most_ten_lines_in_each_outage(
    azure: Azure, certificates: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Spark and four tasks, each outage for a minute; tests/test_log_rate_limit.py shows it for any lines."""
    monkeypatch.setattr(cloud, "TOKEN_S", 8)  # a token always ends soon
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    job = JOB.format(id=uuid.uuid4().hex[:8], account=f'azure.storage.account = "{ACCOUNT}"')
    job = job.replace("none:none", "pipeline:app").replace("partitions = 1", "partitions = 4")
    (tmp_path / "job.toml").write_text(job + '\n[processor]\ndir = "work"\n[streams.copied]\n')
    log, environment = tmp_path / "log", {**os.environ, **machine_of(azure, certificates[1])}
    run = [sys.executable, "-m", "samza_azure", "run", "job.toml", "--log-file", str(log)]
    with subprocess.Popen(run, cwd=tmp_path, env=environment) as processor:
        try:
            until(lambda: log.exists() and "task copy-3 RUNNING" in log.read_text(), 180)
            for name, begins in OUTAGES.items():
                before = len(log.read_text().splitlines())
                begins(azure)
                until(lambda: azure.refused + azure.metadata.asked > 5)
                time.sleep(60)  # the outage lasts
                said = log.read_text().splitlines()[before:]
                assert processor.poll() is None and 1 <= len(said) <= LINES_MOST, (name, said)
                azure.heal()
                until(lambda: azure.passed > 50)
            processor.terminate()
            assert processor.wait(60) == 0
        finally:
            processor.kill()


@pytest.mark.parametrize("failure", SOME_KINDS, ids=str)
def test_a_processor_that_has_joined_ends_with_5_if_it_is_refused_for_long(machine: Machine, failure: Failure) -> None:
    """For two minutes, which tests/library/test_access.py plays on virtual time."""
    machine.patch.setattr("samza_azure.group.ending.DENIED_S", 1.0)
    machine.has_its_own()
    coordinator = AzureJobCoordinatorFactory().get_job_coordinator("p0", machine.config(failure.by))
    assert isinstance(coordinator, ThreadedCoordinator)
    tasks = SharedTasks(coordinator, "part", 2)
    tasks.start()
    until(lambda: len(tasks.tasks) == 2)
    view, ends = coordinator.view, failure.outcome.value.ends
    assert view is not None
    machine.breaks(failure)
    if ends is None:
        until(lambda: not tasks.may_act)
        seen = machine.failures
        machine.clock.now += 60  # the identity asks again
        until(lambda: machine.failures > seen)
        assert view.ending is None
        machine.heal()
        tasks.stop()
        return
    until(lambda: view.ending is not None)
    machine.heal()  # it would wait for its last calls
    assert coordinator.wait(30)
    assert coordinator.ending is not None and coordinator.ending.code is ends
    assert failure.says in coordinator.ending.message


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_reader_and_a_writer_raise_if_they_cannot_begin(machine: Machine, failure: Failure) -> None:
    opened_by = failure.opens(machine.azurite) if failure.opens is not None else ""
    job = machine.job(failure.by, opened_by)
    if failure.opens is None:
        machine.breaks(failure)
    for begin in (lambda: Reader.from_job(job, "orders"), lambda: SourceWriter.from_job(job, "orders")):
        with pytest.raises(failure.outcome.value.error) as raised:
            begin()
        assert raised.value.exit_code is failure.outcome.value.exits
        assert failure.says in str(raised.value) and shows_no_secret(str(raised.value))


@pytest.mark.parametrize("failure", KINDS, ids=str)
def test_a_reader_and_a_writer_that_have_begun_wait_for_what_may_pass(machine: Machine, failure: Failure) -> None:
    machine.has_its_own()
    job, paused = machine.job(failure.by), list[float]()

    def wait(pause: Any) -> None:
        paused.append(pause.seconds)
        machine.heal()

    writer = SourceWriter.from_job(job, "orders", wait=wait)
    writer.write(ROWS)
    writer.flush()
    reader = iter(Reader.from_job(job, "orders"))
    assert next(reader).num_rows == 3
    machine.breaks(failure)
    if failure.outcome.value.waits:
        waiting = begun(lambda: next(reader))
        until(lambda: machine.failures > 0 or failure.by is By.IDENTITY)
        writer.write(ROWS)
        writer.flush()  # heals, as soon as it has to wait
        assert paused
        assert waiting.result(30).num_rows == 3
        return
    for act in (lambda: next(reader), lambda: (writer.write(ROWS), writer.flush())):
        with pytest.raises(failure.outcome.value.error) as raised:
            act()
        assert failure.says in str(raised.value)


def begun(act: Callable[[], T]) -> "Future[T]":
    """The outcome of what is done on another thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)  # the pace of asking

"""The commands that bring their own emulator: `azurite` alone, and `dev` with processors. No Spark is waited for."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import psutil
import pyarrow.parquet as pq
import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.dev import VARIABLE, _code, _View
from samza_azure.commands.fleet import Fleet
from samza_azure.config import Config
from samza_azure.errors import TimedOut
from samza_azure.group.control import Control, RunPhase, encode
from samza_azure.group.rows import ProcessorRow
from samza_azure.storage.connection import Account

#: The pace of asking: a loop without it takes the core that a processor needs to start.
LOOK_S = 0.02
PIPELINE = """
from samza_azure import Application

app = Application()

@app.stage("orders", output="out")
def all_of_them(orders):
    return orders
"""
JOB = """
app = { name = "test", main = "pipeline:app" }
job.coordinator.factory = "own.Factory"
azure.storage.connect = "${AZURE_STORAGE_CONNECTION_STRING}"
streams.orders.schema = "id string"
"""
OWN = """
import os
import threading

from samza_azure.errors import Ending
from samza_azure.coordinator import JobCoordinator


class Coordinator(JobCoordinator):
    is_leader, job_model = False, None

    def __init__(self, processor_id):
        self.ending = Ending(3 if processor_id == "dev-1" else 0, f"{processor_id} has ended")

    def set_listener(self, listener):
        self.listener = listener

    def start(self):
        print("it has started", flush=True)

    def stop(self):
        threading.Thread(target=self.listener.on_coordinator_stop).start()

    def report(self, report):
        pass

    def container_lost(self, reason):
        pass


class Elsewhere:
    def get_job_coordinator(self, processor_id, config, metrics=None):
        del os.environ["AZURE_STORAGE_CONNECTION_STRING"]  # no container stays: it says what it lacks
        return Coordinator(processor_id)


class Factory(Elsewhere):
    group_in_account = True  # as far as dev can tell
"""


def begun(*arguments: str) -> "subprocess.Popen[str]":
    command, pipe = [sys.executable, "-m", "samza_azure", *arguments], subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job whose coordinator runs nothing, until it is asked to leave."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


def said_until(process: "subprocess.Popen[str]", text: str) -> str:
    """The lines on stderr up to the one with this text."""
    assert process.stderr is not None
    lines = []
    while True:
        lines.append(process.stderr.readline())
        if text in lines[-1]:
            return "".join(lines)
        assert lines[-1], f"it has ended without {text!r}: {''.join(lines)}"


def connection_string(said: str) -> str:
    """What dev tells other commands to use."""
    return said.partition("export AZURE_STORAGE_CONNECTION_STRING='")[2].partition("'")[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_azurite_prints_its_connection_string_and_ends_on_a_signal(number: signal.Signals) -> None:
    process = begun("azurite", "--port", "0")
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(
            "export AZURE_STORAGE_CONNECTION_STRING='DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
        )
        while "Ctrl-C ends the emulator" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()


def test_dev_starts_processors_ends_them_in_order_and_has_the_worst_of_their_codes(job: Path) -> None:
    process = begun("dev", str(job), "--processors", "2")
    try:
        line = said_until(process, "; their logs are in ").splitlines()[-1]
        logs = Path(line.partition("their logs are in ")[2].partition(". Ctrl-C")[0])
        while sum("it has started" in log.read_text() for log in logs.glob("dev-*.log")) < 2:
            assert process.poll() is None
            time.sleep(LOOK_S)
        shown = said_until(process, "starting 2 processors\n")
        process.send_signal(signal.SIGINT)
        said = shown + process.communicate(timeout=60)[1]
        assert process.returncode == 3, said
        assert "dev-1 exited with 3: dev-1 has ended" in said and "dev-0 exited" not in said
        assert "The emulator has ended. The data is gone with it." in said
        assert said.count("starting 2 processors\n") == 1
        assert "STOPPED" not in said, "they were started, and have not joined yet"
    finally:
        process.kill()


def test_dev_shows_no_group_that_is_elsewhere_and_starts_one_processor_in_a_group_of_one(job: Path) -> None:
    """Its view would say forever that processors start."""
    text = job.read_text()
    job.write_text(text.replace("own.Factory", "own.Elsewhere"))
    process = begun("dev", str(job))
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, "own.Elsewhere coordinates this job, and keeps its group elsewhere" in said) == (
        2,
        True,
    )
    job.write_text(text.replace("own.Factory", "samza_azure.PassthroughJobCoordinatorFactory"))
    process = begun("dev", str(job), "--processors", "2")
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, "--processors is 2, and with samza_azure.Passthrough" in said) == (2, True)


def test_dev_sees_code_that_changes_while_other_files_come_and_go(tmp_path: Path) -> None:
    """It ended, and the processors with it, when Spark deleted one of their folders while it looked for code."""
    (tmp_path / "job.toml").touch()
    for code in ("pipeline.py", "shop/__init__.py", "shop/prices.py", ".samza-azure/scratch.py", "__pycache__/x.py"):
        (tmp_path / code).parent.mkdir(exist_ok=True)
        (tmp_path / code).touch()
    is_over = Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for folder in (tmp_path / ".samza-azure" / "blocks", tmp_path / "blocks"):
                (folder / "0e" / "1f").mkdir(parents=True)
                (folder / "0e" / "saved.py").touch()
                shutil.rmtree(folder)

    spark = Thread(target=come_and_go)
    spark.start()
    try:
        looks = [_code(tmp_path / "job.toml") for _ in range(300)]
    finally:
        is_over.set()
        spark.join()
    ours = {"job.toml", "pipeline.py", "shop/__init__.py", "shop/prices.py"}
    seen = [{str(path.relative_to(tmp_path)) for path in look} for look in looks]
    assert all(ours <= each <= ours | {"blocks/0e/saved.py"} for each in seen)


class EndsWhileShown(Fleet):
    """Ctrl-C comes when dev has just found all processors alive, and all have ended before it checks again."""

    def look(self) -> tuple[Control | None, list[ProcessorRow]]:
        while self.alive() and "it has started" not in self.log_file("dev-1").read_text():
            time.sleep(LOOK_S)
        signal.raise_signal(signal.SIGINT)
        self.exit_codes(60)
        return super().look()


def test_ctrl_c_just_after_dev_has_started_says_something_at_once_and_ends_soon(job: Path) -> None:
    """Nothing was said for 30 s; or that the processors had exited with 1 and said nothing: they did not listen yet."""
    process = begun("dev", str(job), "--processors", "2")
    try:
        said_until(process, "starting 2 processors\n")
        process.send_signal(signal.SIGINT)
        begun_at = time.monotonic()
        said_until(process, "dev-0, dev-1 end in order; press Ctrl-C again to kill them.\n")
        assert time.monotonic() < begun_at + 2
        said = process.communicate(timeout=60)[1]
        assert (time.monotonic() < begun_at + 15, process.returncode in (0, 3)) == (True, True), said
        assert "it said nothing" not in said
    finally:
        process.kill()


def watched(fleet: Fleet) -> int:
    """The exit code of dev with this fleet, which ends dev by a signal."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _View(fleet, 2, None, reload=False).watch("")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        fleet.stop()


class InterruptedWhileItStarts(Fleet):
    """Ctrl-C comes between the start of the first processor and that of the second."""

    def start(self, processor_id: str, *options: str) -> None:
        super().start(processor_id, *options)
        signal.raise_signal(signal.SIGINT)


def test_dev_starts_no_processor_after_ctrl_c(job: Path, emulator: Azurite) -> None:
    """The second one ran on, and dev with it."""
    path = os.pathsep.join([str(job.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {VARIABLE: emulator.connection_string, "PYTHONPATH": path}
    fleet = InterruptedWhileItStarts(job, job.parent / "logs", environment)
    assert watched(fleet) == 0
    assert list(fleet.processes) == ["dev-0"]


def test_dev_has_the_code_of_processors_that_end_while_they_are_shown(job: Path, emulator: Azurite) -> None:
    path = os.pathsep.join([str(job.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    fleet = EndsWhileShown(job, job.parent / "logs", {VARIABLE: emulator.connection_string, "PYTHONPATH": path})
    assert watched(fleet) == 3


class AllKilledWhileShown(Fleet):
    """Somebody kills all processors at once. When that was shown, Ctrl-C comes."""

    def look(self) -> tuple[Control | None, list[ProcessorRow]]:
        if not self.alive():
            signal.raise_signal(signal.SIGINT)
        for name in self.alive():
            self.send(name, signal.SIGKILL)
        self.exit_codes(60)
        return super().look()


def test_dev_says_that_the_last_processor_was_killed(
    job: Path, emulator: Azurite, capfd: pytest.CaptureFixture[str]
) -> None:
    """As by a machine that has no more memory: all processors had ended, and nobody knew why."""
    path = os.pathsep.join([str(job.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    fleet = AllKilledWhileShown(job, job.parent / "logs", {VARIABLE: emulator.connection_string, "PYTHONPATH": path})
    assert watched(fleet) == 0
    assert "dev-1 was killed by signal 9 (SIGKILL)." in capfd.readouterr().err


class KilledWhileShown(Fleet):
    """Somebody kills the first processor, and then a drain ends the other one. When that was shown, Ctrl-C comes."""

    looks = 0

    def look(self) -> tuple[Control | None, list[ProcessorRow]]:
        self.looks += 1
        if self.looks == 1:
            while self.alive() and "it has started" not in self.log_file("dev-1").read_text():
                time.sleep(LOOK_S)
            self.send("dev-0", signal.SIGABRT)
            self.processes["dev-0"].wait(60)
        elif self.looks == 2:
            self.send("dev-1", signal.SIGTERM)
            self.exit_codes(60)
        else:
            signal.raise_signal(signal.SIGINT)
        return super().look()


def test_dev_stays_when_one_processor_was_killed_and_the_others_have_ended_in_order(
    job: Path, emulator: Azurite, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who did as the first hour says, killed one and drained the run, lost the data, and the exit code was 1. Of the
    kill nothing was said, and with other signals than SIGKILL it was so still.
    """
    (job.parent / "own.py").write_text(OWN.replace('3 if processor_id == "dev-1" else 0', "0"))
    path = os.pathsep.join([str(job.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    fleet = KilledWhileShown(job, job.parent / "logs", {VARIABLE: emulator.connection_string, "PYTHONPATH": path})
    assert watched(fleet) == 0
    said = capfd.readouterr().err
    assert "dev-0 was killed by signal 6 (SIGABRT); dev-1 goes on." in said
    assert "All processors have ended. The emulator runs on" in said and "exited with" not in said
    assert f"(dev-0 is process {fleet.processes['dev-0'].pid}, dev-1 is process " in said


def test_dev_stays_when_the_processors_have_ended_and_keeps_the_data(job: Path, tmp_path: Path) -> None:
    """As after a drain: what was produced and computed is there for export, and for the next dev."""
    (tmp_path / "own.py").write_text(
        OWN.replace("print(", "self.stop(); print(").replace('3 if processor_id == "dev-1" else 0', "0")
    )
    rows, out, data = tmp_path / "rows.csv", tmp_path / "out.parquet", tmp_path / "data"
    rows.write_text("id\na\nb\n")
    for command in (["produce", str(job), "orders", str(rows)], ["export", str(job), "orders", "--to", str(out)]):
        process = begun("dev", str(job), "--data", str(data), "--processors", "1")
        try:
            said = said_until(process, "All processors have ended. The emulator runs on")
            assert f"Ctrl-C ends it and keeps the data in {data}" in said
            environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connection_string(said)}
            subprocess.run([sys.executable, "-m", "samza_azure", *command], env=environment, check=True, timeout=60)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0
            assert f"The data is kept in {data}: samza-azure dev {job} --data {data} goes on." in said
        finally:
            process.kill()
    assert pq.read_table(out)["id"].to_pylist() == ["a", "b"]


@pytest.mark.long
def test_dev_on_the_data_of_a_drained_run_says_how_the_next_one_begins(job: Path, tmp_path: Path) -> None:
    """It waited in silence. With --new-run the processors are asked for it, which those of this job refuse."""
    data = tmp_path / "data"

    async def drain(config: Config) -> None:
        account = Account.from_config(config.storage)
        account.ensure_created()
        control = Control("0" * 32, run_id="1-a", phase=RunPhase.DRAINED, past=("1-a",))
        await account.control_blob().create(encode(control), timeout=10)
        await account.aclose()

    with Azurite(data=data).start() as azurite:
        asyncio.run(drain(Config.load(job, environment={VARIABLE: azurite.connection_string})))
    process = begun("dev", str(job), "--data", str(data))
    try:
        # As `status` says it.
        said = said_until(process, "DRAINED: Run 1-a is drained. A changed pipeline begins the next one.")
        assert "is drained. A pipeline that has had its run waits or ends; for the next run" in said
        assert f"Ctrl-C, and samza-azure dev {job} --data {data} --new-run." in said
        refused = begun("dev", str(job), "--data", str(data))
        assert "uses the data in" in refused.communicate(timeout=60)[1] and refused.returncode == 2
        assert "Run 1-a in " in said
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    _, said = begun("dev", str(job), "--data", str(data), "--new-run").communicate(timeout=60)
    assert "Coordinator supports neither --new-run nor --wait-for-upgrade." in said
    assert "--new-run. A changed" not in said


def test_dev_prints_the_error_of_a_refused_pipeline_verbatim(job: Path, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE + "raise ValueError('no [red] file at [/tmp/x]')\n")
    process = begun("dev", str(job))
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ValueError: no [red] file at [/tmp/x]" in said
    assert f"{tmp_path / 'pipeline.py'}, line 9" in said


def test_dev_waits_for_the_mistake_to_be_mended_and_starts_again_with_each_change(job: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(PIPELINE.replace('"orders"', '"order"'))
    process = begun("dev", str(job), "--reload", "--processors", "1")
    try:
        assert "Did you mean 'orders'?" in said_until(process, "Correct it; the processors start when it is saved.")
        pipeline.write_text(PIPELINE)
        said_until(process, "1 processor started")
        pipeline.write_text(PIPELINE + "oops\n")
        assert "NameError: name 'oops' is not defined" in said_until(process, "The saved code is not started")
        pipeline.write_text(PIPELINE + "# mended\n")
        said_until(process, "The code has changed: the processors start again.")
        said_until(process, "1 processor started")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_dev_waits_for_a_job_file_that_is_refused_and_ends_with_its_emulator(
    job: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """It ended, although it was to start again with what is saved."""
    right = job.read_text()
    job.write_text(right + '\n[spark]\nmaster = "yarn"\n')
    process = begun("dev", str(job), "--reload")
    try:
        assert "spark.master = 'yarn' cannot be used" in said_until(process, "the processors start when it is saved.")
        if number == signal.SIGINT:
            job.write_text(right)
            said_until(process, "2 processors started")
        emulators = psutil.Process(process.pid).children()
        process.send_signal(number)
        process.communicate(timeout=60)
        psutil.wait_procs(emulators, timeout=10)
        assert not any(each.is_running() for each in emulators)
    finally:
        process.kill()


def test_an_account_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    """As Azurite on a machine with too much to do: the demo goes on once it answers."""
    nobody = Azurite()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody.blob_port = nobody.table_port = closed.getsockname()[1]
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    fleet = Fleet(job, tmp_path / "logs", {VARIABLE: nobody.connection_string})
    with pytest.raises(TimedOut, match=r"^Not within 0 s: it runs\. .* cannot be reached"):
        fleet.wait_until("it runs", bool, 0)

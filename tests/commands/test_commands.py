"""What the commands say about bad input, each with the right exit code. No Spark: `tests/end_to_end` has the rest."""

import gzip
import importlib
import importlib.metadata
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.storage.blob import BlobServiceClient

from samza_azure import ConfigError, Reader, SourceWriter
from samza_azure.cli import COMMANDS
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.connect import with_rows
from samza_azure.commands.show import how_it_begins
from samza_azure.commands.status import NOBODY
from samza_azure.config import Config
from samza_azure.host.status import document, read
from samza_azure.host.supervisor import GOODBYE_S
from samza_azure.storage.connection import Account
from tests.commands.forked import run
from tests.commands.mistakes import JOB

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights" / "job.toml"


def samza_azure(*arguments: str, connect: str = "UseDevelopmentStorage=true") -> tuple[int, str, str]:
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connect}
    ended = run(*arguments, env=environment)
    return ended.returncode, ended.stdout, ended.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert samza_azure("--version")[:2] == (0, f"samza-azure {importlib.metadata.version('samza-azure')}\n")


def test_a_missing_job_file(tmp_path: Path) -> None:
    code, _, said = samza_azure("run", str(tmp_path / "none.toml"))
    assert code == 2
    assert "There is no job file" in said


def test_a_malformed_job_file_is_reported_with_line_and_column(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[app]\nname = \n")
    code, _, said = samza_azure("status", str(job))
    assert code == 2
    assert "line 2, column" in said


def test_a_wrong_key_names_the_nearest_one(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace("profile =", "profil ="))
    code, _, said = samza_azure("status", str(job))
    assert code == 2
    assert "job.coordinator.profil" in said and "job.coordinator.profile" in said


def test_dev_does_not_touch_an_account_that_the_job_file_names(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace("${AZURE_STORAGE_CONNECTION_STRING}", "UseDevelopmentStorage=true"))
    code, _, said = samza_azure("dev", str(job))
    assert code == 2
    assert 'azure.storage.connect = "${AZURE_STORAGE_CONNECTION_STRING}"' in said


def test_a_container_name_that_azure_would_refuse(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace("[azure.storage]", '[azure.storage]\ncontainer = "Flights_1"'))
    code, _, said = samza_azure("run", str(job))
    assert code == 2
    assert "azure.storage.container" in said and "3 to 63 lower-case letters" in said


@pytest.mark.parametrize("command", ["run", "status"])
def test_a_wrong_account_key(emulator: Azurite, command: str) -> None:
    right = emulator.connection_string
    key = right.split("AccountKey=")[1].split(";")[0]
    code, _, said = samza_azure(command, str(EXAMPLE), connect=right.replace(key, "d3Jvbmc" + key[7:]))
    assert code == 2
    assert "azure.storage.connect" in said
    assert key[7:] not in said


@pytest.mark.parametrize("listens", [True, False])
def test_no_storage_is_given_up_within_ten_seconds_by_who_only_asks(*, listens: bool) -> None:
    """It took 32 s, and said nothing of an emulator. One that hangs takes connections and does not answer."""
    commands = (("status",), ("drain",), ("drain", "--wait"), ("drain", "--cancel"), ("stop",))
    with socket.socket() as nobody, ThreadPoolExecutor() as threads:
        nobody.bind(("127.0.0.1", 0))
        if listens:
            nobody.listen(100)
        connect = nowhere(nobody)

        def ask(command: tuple[str, ...]) -> tuple[int, str, float]:
            begun = time.monotonic()
            code, _, said = samza_azure(command[0], str(EXAMPLE), *command[1:], connect=connect)
            return code, said, time.monotonic() - begun

        ended = list(threads.map(ask, commands))
    for command, (code, said, took_s) in zip(commands, ended, strict=True):
        assert code == 3 and took_s < 15, (command, code, took_s, said)  # on a machine with many of them at once
        says = "If that lasts" if listens else "No emulator listens there:"
        assert re.search(rf"{says}[^.]* start samza-azure dev", said), (command, said)


@pytest.mark.long  # it waits for half a minute
def test_no_storage_is_given_up_by_a_processor_after_half_a_minute() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        code, _, said = samza_azure("run", str(EXAMPLE), connect=nowhere(nobody))
    assert code == 3
    assert "does not answer" in said or "cannot be reached" in said


def nowhere(nobody: socket.socket) -> str:
    """The connection string of an emulator that is not there."""
    endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}/devstoreaccount1"
    return f"UseDevelopmentStorage=true;BlobEndpoint={endpoint};TableEndpoint={endpoint}"


def test_a_row_that_does_not_fit_is_named_and_nothing_is_written(emulator: Azurite, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\nUA,2013-01-01 05:00:00,late\n")
    code, _, said = samza_azure("produce", str(EXAMPLE), "flights", str(rows), connect=emulator.connection_string)
    assert code == 2
    assert "Line 3 of" in said and "Nothing was written" in said
    code, _, said = samza_azure(
        "export", str(EXAMPLE), "flights", "--to", str(tmp_path / "out.parquet"), connect=emulator.connection_string
    )
    assert (code, (tmp_path / "out.parquet").exists()) == (2, False)


def test_produced_rows_are_exported_in_order(emulator: Azurite, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(
        "carrier,ts,dep_delay\n" + "".join(f"007,2013-01-01 05:{minute:02}:00,{minute}\n" for minute in range(9))
    )
    connect, to = emulator.connection_string, tmp_path / "out.parquet"
    assert samza_azure("produce", str(EXAMPLE), "flights", str(rows), connect=connect)[:2] == (
        0,
        "9 rows into flights\n",
    )
    assert samza_azure("export", str(EXAMPLE), "flights", "--to", str(to), connect=connect)[0] == 0
    assert pq.read_table(to)["dep_delay"].to_pylist() == [float(minute) for minute in range(9)]
    assert set(pq.read_table(to)["carrier"].to_pylist()) == {"007"}


@pytest.mark.long  # tests/storage/test_once.py kills anywhere
def test_a_file_whose_producer_is_killed_again_and_again_is_there_once(emulator: Azurite, tmp_path: Path) -> None:
    rows, job = tmp_path / "rows.csv", tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "once"'))
    lines = [f"C{number % 7},2013-01-01 05:00:00,{number}\n" for number in range(400)]
    rows.write_text("carrier,ts,dep_delay\n" + "".join(lines))
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    given = ["produce", str(job), "flights", str(rows), "--once", "rows.csv"]
    account = Account.from_config(Config.load(job, environment=environment).storage)
    account.ensure_created()

    def count() -> int:
        return sum(table.num_rows for table in Reader(account.blobs(), "flights", until_now=True))

    for _ in range(2):
        before = count()
        command = [sys.executable, "-m", "samza_azure", *given, "--rate", "200"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            while count() == before:
                assert process.poll() is None
                time.sleep(0.2)  # the pace of asking
            process.kill()
    assert 0 < count() < 400
    code, said, _ = samza_azure(*given, connect=emulator.connection_string)
    assert (code, count()) == (0, 400), said
    code, said, progress = samza_azure(*given, connect=emulator.connection_string)
    assert (code, said) == (0, "0 rows into flights\n")
    assert "All 400 rows of 'rows.csv' are in flights already." in progress
    found = [each for table in Reader(account.blobs(), "flights", until_now=True) for each in table.to_pylist()]
    assert sorted(each["dep_delay"] for each in found) == [float(number) for number in range(400)]
    account.close()


def test_rows_are_exported_into_the_account_and_since_a_token(emulator: Azurite, tmp_path: Path) -> None:
    job, rows, connect = tmp_path / "job.toml", tmp_path / "rows.csv", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "exported"'))
    service = BlobServiceClient.from_connection_string(connect)
    service.create_container("outside")
    service.get_blob_client("outside", "log.csv").create_append_blob()

    def command(name: str, *options: str) -> tuple[int, str, str]:
        return samza_azure(name, str(job), "flights", *options, connect=connect)

    def blob(name: str) -> bytes:
        return bytes(service.get_blob_client("outside", name).download_blob().readall())

    rows.write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\n")
    assert command("produce", str(rows))[0] == 0
    code, said, progress = command("export", "--to", "az://outside/a/rows.csv.gz")
    assert (code, said) == (0, "1 rows to az://outside/a/rows.csv.gz\n")
    assert gzip.decompress(blob("a/rows.csv.gz")).startswith(b'"carrier","ts","dep_delay"\n"UA",2013-01-01 05:00')
    token = progress.rpartition("--since ")[2].strip()
    code, said, _ = command("export", "--to", "az://outside/a/rows.jsonl", "--since", token)
    assert (code, said) == (0, "No rows since the token; az://outside/a/rows.jsonl is not written\n")
    rows.write_text("carrier,ts,dep_delay\nAA,2013-01-02 05:00:00,2\n")
    assert command("produce", str(rows))[0] == 0
    assert command("export", "--to", "az://outside/days", "--by", "day", "--since", token)[0] == 0
    [name] = [each.name for each in service.get_container_client("outside").list_blobs("days/")]
    assert name.startswith("days/on_day=2013-01-02/flights-")
    assert pq.read_table(pa.BufferReader(blob(name)))["carrier"].to_pylist() == ["AA"]
    for to, reason in (
        ("az://outside/log.csv", "outside/log.csv cannot be replaced: InvalidBlobType"),
        ("az://nowhere/a.csv", "The account has no container nowhere"),
        ("az://exported-1/streams/x.csv", "is where a job keeps its own data"),
        ("az://outside/days --by day", "is not empty"),
        (f"az://outside/a/rows.csv.gz --since {token}", "is there already"),
    ):
        code, _, progress = command("export", "--to", *to.split())
        assert (code, reason in progress) == (2, True), progress
    service.close()


def test_a_stream_is_followed_from_a_token_and_peeked_at(emulator: Azurite, tmp_path: Path) -> None:
    job, rows, connect = tmp_path / "job.toml", tmp_path / "rows.csv", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "followed"'))

    def produced(*minutes: int) -> None:
        lines = [f"UA,2013-01-01 05:{minute:02}:00,{minute}\n" for minute in minutes]
        rows.write_text("carrier,ts,dep_delay\n" + "".join(lines))
        assert samza_azure("produce", str(job), "flights", str(rows), connect=connect)[0] == 0

    code, _, said = samza_azure("follow", str(job), "flights", "--until-now", connect=connect)
    assert (code, "There is nothing of 'followed' in this account" in said) == (2, True)
    produced(1, 2)
    code, out, said = samza_azure("follow", str(job), "flights", "--from", "earliest", "--until-now", connect=connect)
    assert [json.loads(line)["dep_delay"] for line in out.splitlines()] == [1.0, 2.0]
    assert json.loads(out.splitlines()[0]) == {"carrier": "UA", "ts": "2013-01-01T05:01:00+00:00", "dep_delay": 1.0}
    token = said.partition("To go on from here: --from ")[2].strip()
    produced(3)
    code, out, _ = samza_azure("follow", str(job), "flights", "--from", token, "--until-now", connect=connect)
    assert (code, [json.loads(line)["dep_delay"] for line in out.splitlines()]) == (0, [3.0])
    code, out, _ = samza_azure("peek", str(job), "flights", "-n", "2", connect=connect)
    assert (code, [json.loads(line)["dep_delay"] for line in out.splitlines()]) == (0, [1.0, 2.0])
    code, _, said = samza_azure("peek", str(job), "fligths", connect=connect)
    assert (code, "No log holds the stream 'fligths'. The nearest is 'flights'. All: flights." in said) == (2, True)


def test_follow_begins_with_the_latest_rows_and_ends_on_sigterm_with_a_token(emulator: Azurite, tmp_path: Path) -> None:
    """A signal right behind a row came before its token: the next `follow` printed that row again."""
    job, connect = tmp_path / "job.toml", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "latest"'))
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connect}
    config = Config.load(job, environment=environment)
    account = Account.from_config(config.storage)
    account.ensure_created()
    writer, at = SourceWriter.of(config, account, "flights"), datetime(2013, 1, 1, 5, tzinfo=UTC)

    def produce(delay: int) -> int:
        writer.write(
            pa.table({"carrier": ["UA"], "ts": pa.array([at], pa.timestamp("us", "UTC")), "dep_delay": [delay]})
        )
        writer.flush()
        return delay

    produce(0)
    command = [sys.executable, "-m", "samza_azure", "follow", str(job), "flights", "--from", "latest"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as following:
        deadline = threading.Timer(60, following.kill)
        deadline.start()
        assert following.stdout is not None
        last = 0
        while not select.select([following.stdout], [], [], 0.2)[0]:  # it does not say when it has begun
            last = produce(last + 1)
        following.terminate()
        out, said = following.communicate()
        deadline.cancel()
    assert following.returncode == 0
    token = said.partition("To go on from here: --from ")[2].strip()
    code, rest, _ = samza_azure("follow", str(job), "flights", "--from", token, "--until-now", connect=connect)
    delays = sorted(json.loads(line)["dep_delay"] for line in (out + rest).splitlines())
    assert (code, delays) == (0, list(range(round(delays[0]), last + 1)))
    assert out and delays[0] > 0, "the row that was there is not among the latest"
    account.close()


def test_a_program_writes_and_reads_a_stream_by_the_job_file(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", emulator.connection_string)
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "library"'))
    writer = SourceWriter.from_job(job, "flights")
    at = datetime(2013, 1, 1, 5, tzinfo=UTC)
    writer.write(pa.table({"carrier": ["UA", "AA"], "ts": [at, at], "dep_delay": [1, None]}))
    writer.close()
    rows = [row for table in Reader.from_job(job, "flights", until_now=True) for row in table.to_pylist()]
    assert sorted(row["carrier"] for row in rows) == ["AA", "UA"] and rows[0]["ts"] == at
    with pytest.raises(ConfigError, match=r"no stream 'fligths'\. Did you mean 'flights'"):
        SourceWriter.from_job(job, "fligths")

    # Each optional argument by its effect.
    for _ in range(2):
        with SourceWriter.from_job(job, "flights", once="monday") as writer:
            writer.write(pa.table({"carrier": ["DL"], "ts": [at], "dep_delay": [2]}))
    reader = Reader.from_job(job, "flights", until_now=True)
    assert sum(table.num_rows for table in reader) == 3, "under one key rows are stored once"
    assert not list(Reader.from_job(job, "flights", start="latest", until_now=True))
    assert not list(Reader.from_job(job, "flights", token=reader.token, until_now=True))
    named = Reader.from_job(job, "flights", until_now=True, name="mine")
    assert sum(table.num_rows for table in named) == 3
    named.commit()
    assert not list(Reader.from_job(job, "flights", until_now=True, name="mine"))


def test_the_documented_lines_write_a_stream(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are written there, in the folder of a job that has such a stream."""
    page = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
    (block,) = re.findall(r"```python\n([^`]*SourceWriter\.from_job[^`]*)```", page)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", emulator.connection_string)
    monkeypatch.chdir(tmp_path)
    job = JOB.replace("${NO_SUCH_VARIABLE}", "${AZURE_STORAGE_CONNECTION_STRING}").replace('"shop"', '"documented"')
    (tmp_path / "job.toml").write_text(job)
    row = {"now": datetime(2026, 1, 1, 9, tzinfo=UTC), "amount": Decimal("9.50")}
    exec(block, dict(row))
    (rows,) = Reader.from_job("job.toml", "orders", until_now=True)
    assert rows.to_pylist() == [{"id": "a", "ts": row["now"], "amount": row["amount"]}]


def test_a_command_that_only_reads_creates_nothing(emulator: Azurite, tmp_path: Path) -> None:
    job, connect = tmp_path / "job.toml", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "nothing"'))
    for command in (["status", str(job)], ["export", str(job), "x", "--to", str(tmp_path / "x.parquet")]):
        for _ in range(2):  # the first one has created nothing for the second
            code, _, said = samza_azure(*command, connect=connect)
            assert (code, "There is nothing of 'nothing' in this account" in said) == (2, True)


def test_rows_are_checked_without_creating_anything(emulator: Azurite, tmp_path: Path) -> None:
    job, rows, connect = tmp_path / "job.toml", tmp_path / "rows.csv", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "dry"'))
    rows.write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\n")
    for more in ((), ("--once", "rows.csv")):
        code, said, _ = samza_azure("produce", str(job), "flights", str(rows), "--dry-run", *more, connect=connect)
        assert (code, said) == (0, "1 rows fit flights; nothing was written\n")
    code, _, said = samza_azure("status", str(job), connect=connect)
    assert (code, "There is nothing of 'dry' in this account" in said) == (2, True)


def test_a_run_id_that_cannot_be_is_refused() -> None:
    code, _, said = samza_azure("drain", str(EXAMPLE), "--run-id", "x" * 70_000)
    assert code == 2
    assert "app.run.id" in said


def test_a_full_disk_is_reported_in_one_line(emulator: Azurite, tmp_path: Path) -> None:
    rows, job = tmp_path / "rows.csv", tmp_path / "job.toml"
    rows.write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\n")
    job.write_text(EXAMPLE.read_text().replace('name = "flights"', 'name = "full"'))
    assert samza_azure("produce", str(job), "flights", str(rows), connect=emulator.connection_string)[0] == 0
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "samza_azure", "status", str(job)]
        ended = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "samza-azure: [Errno 28] No space left on device\n")


def test_produce_stores_all_rows_although_stderr_cannot_be_written(emulator: Azurite, tmp_path: Path) -> None:
    rows, job = tmp_path / "rows.csv", tmp_path / "job.toml"
    rows.write_text("carrier,ts,dep_delay\nUA,2013-01-01 05:00:00,1\n")
    job.write_text(EXAMPLE.read_text().replace("flights", "unheard", 1))
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "samza_azure", "produce", str(job), "flights", str(rows)]
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert (ended.returncode, ended.stdout) == (0, "1 rows into flights\n")


def test_a_work_directory_that_cannot_be_made(tmp_path: Path) -> None:
    job, taken = tmp_path / "job.toml", tmp_path / "taken"
    taken.write_text("")
    job.write_text(EXAMPLE.read_text() + f'[processor]\ndir = "{taken}"\n')
    code, _, said = samza_azure("run", str(job))
    assert code == 2
    assert "processor.dir" in said and "Traceback" not in said


def test_a_container_that_cannot_be_started_ends_its_processor_in_order(emulator: Azurite, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace("flights", "unstartable", 1) + f'[processor]\ndir = "{tmp_path}"\n')
    (tmp_path / "unstartable-1" / "p0" / "container.log").mkdir(parents=True)  # where a file should be
    code, _, said = samza_azure("run", str(job), "--id", "p0", connect=emulator.connection_string)
    assert code == 1
    assert "The container cannot be started: " in said and "Traceback" not in said
    code, shown, _ = samza_azure("status", str(job), "--json", connect=emulator.connection_string)
    # It has left the group, or was not even there to create it.
    assert code == 2 or [each["state"] for each in json.loads(shown)["processors"]] in ([], ["LEFT"])


def test_sigterm_while_the_container_starts_ends_the_processor_at_once(emulator: Azurite, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(EXAMPLE.read_text().replace("flights", "early", 1))
    shutil.copy(EXAMPLE.parent / "pipeline.py", tmp_path)  # without it the container would be refused, and soon
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    account = Account.from_config(Config.load(job, environment=environment).storage)
    account.ensure_created()
    log = tmp_path / "p0.log"
    options = ["--id", "p0", "--log-file", str(log), "--log-level", "debug", "--log-format", "json"]
    command = [sys.executable, "-m", "samza_azure", "run", str(job), *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as processor:
        while (shown := document("early", *with_rows(account, lambda blob, table: read(account))))[
            "phase"
        ] == "STOPPED":
            assert processor.poll() is None
        assert (shown["phase"], how_it_begins(shown)) == ("STARTING", "starting 1 processor")
        told_at = time.monotonic()
        processor.terminate()
        assert processor.wait(30) == 0
        assert processor.stderr is not None and processor.stderr.read() == b""
    assert time.monotonic() - told_at < GOODBYE_S
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["app"], line["processor"]) for line in lines} == {("early", "p0")}
    assert {"DEBUG", "INFO"} <= {line["level"] for line in lines}


def test_a_drain_before_any_run_is_refused_unless_it_names_one(emulator: Azurite, tmp_path: Path) -> None:
    """After a typo in the name it was accepted, and ended the first run of that name."""
    job, connect = tmp_path / "job.toml", emulator.connection_string
    job.write_text(EXAMPLE.read_text().replace("flights", "flihgts", 1))
    code, _, said = samza_azure("drain", str(job), connect=connect)
    assert code == 2 and "There is nothing of 'flihgts' in this account" in said
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connect}
    Account.from_config(Config.load(job, environment=environment).storage).ensure_created()
    code, _, said = samza_azure("drain", str(job), connect=connect)
    assert code == 2 and "No run has begun yet, so there is none to drain." in said
    assert samza_azure("drain", str(job), "--cancel", connect=connect)[1] == "The next run is not draining.\n"


def test_a_drain_that_does_not_come_in_time_exits_with_4(emulator: Azurite) -> None:
    options = ("--run-id", "first", "--wait", "--timeout", "1")
    code, _, said = samza_azure("drain", str(EXAMPLE), *options, connect=emulator.connection_string)
    assert code == 4
    assert "No processor runs. The drain begins when one starts." in said
    assert "No leader has begun it yet; the request stays." in said


def test_status_without_a_run_says_so(emulator: Azurite) -> None:
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": emulator.connection_string}
    Account.from_config(Config.load(EXAMPLE, environment=environment).storage).ensure_created()
    code, said, _ = samza_azure("status", str(EXAMPLE), connect=emulator.connection_string)
    assert code == NOBODY
    assert "STOPPED: No processor runs. No run has begun yet; the next start begins one." in " ".join(said.split())


def test_the_help_of_a_command_has_its_example() -> None:
    code, said, _ = samza_azure("peek", "--help")
    assert code == 0
    assert "Example: samza-azure peek" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_of_each_command_what_its_own_help_says(name: str) -> None:
    command = importlib.import_module(f"samza_azure.commands.{name}").command
    sentence = str(command.__doc__).split("\n\n")[0]
    assert COMMANDS[name] == " ".join(sentence.split())
    assert f"Example: samza-azure {name}" in command.__doc__

"""A control blob that is lost while no processor runs: its copies say how far the sources were read, and stay right."""

import asyncio
import gzip
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.storage.blob import BlobClient

from samza_azure import Config, DrainNotifications, SourceWriter, cli
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.backlog import ends_of
from samza_azure.commands.connect import with_rows
from samza_azure.commands.delete import delete_all, delete_stream
from samza_azure.commands.recover import recover
from samza_azure.errors import ConfigError, CorruptState, StateLost, TooOld
from samza_azure.group import control as control_blob
from samza_azure.group.control import NAME, Assignment, Control, RunPhase
from samza_azure.group.rows import LEADER, REQUESTS, LeaderRow, leader_columns
from samza_azure.host.copies import KEPT, copy_name, keep_copy
from samza_azure.host.runs import RunLogs
from samza_azure.host.status import control_of
from samza_azure.logs.names import COPIES, blob_name, task_log
from samza_azure.logs.position import Position
from samza_azure.logs.record import SHUT_DOWN, Kind, Slice, Writer
from samza_azure.page.watch import Watcher
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.streams.offset import Offset, ProducerPosition
from samza_azure.tasks.checkpoint import Planned, as_file

JOB = """
app = {{ name = "{name}", main = "none:none" }}
azure.storage.connect = "{connect}"

[streams.orders]
partitions = 1
schema = "id BIGINT"
"""


class Drained:
    """A job with five rows, which a drained run has read. Its run has left no logs, as one that writes into tables."""

    def __init__(self, emulator: Azurite, folder: Path) -> None:
        self.emulator, path = emulator, folder / "job.toml"
        path.write_text(JOB.format(name=f"lost{uuid.uuid4().hex[:12]}", connect=emulator.connection_string))
        self.path, self.config = path, Config.load(path)
        self.produce(0)
        self.account = Account.from_config(self.config.storage)
        self.blobs = self.account.blobs()
        self.control = Control(
            group_id="a" * 32, revision=40, version=30, epoch=3, run_id="r1", phase=RunPhase.DRAINED,
            sources={"orders": 1}, positions=ends_of(self.blobs, ["orders/0"]), past=("r1",),
        )  # fmt: skip
        for revision in range(41 - KEPT, 41):
            keep_copy(self.blobs, replace(self.control, revision=revision))

    def produce(self, first: int) -> None:
        with SourceWriter.from_job(self.path, "orders") as writer:
            writer.write(pa.table({"id": range(first, first + 5)}))

    def put(self, name: str, data: bytes) -> None:
        BlobClient.from_connection_string(
            self.emulator.connection_string, self.config.storage.container, name
        ).upload_blob(data, overwrite=True)

    def requests(self) -> list[str]:
        found = with_rows(self.account, lambda blob, table: table.query(REQUESTS, timeout=CALL_S))
        return [row.key for row in found]

    def recovered(self) -> Control:
        recover(self.config, Account.from_config(self.config.storage), yes=True)
        return control_blob.decode(bytes(self.blobs.read(NAME, 0).data))  # type: ignore[union-attr]


@pytest.fixture
def drained(emulator: Azurite, tmp_path: Path) -> Iterator[Drained]:
    made = Drained(emulator, tmp_path)
    yield made
    made.account.close()


@pytest.fixture(scope="module")
def kept(emulator: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drained]:
    """One for what changes nothing."""
    made = Drained(emulator, tmp_path_factory.mktemp("kept"))
    yield made
    made.account.close()


def test_no_group_begins_beside_copies_of_another(drained: Drained) -> None:
    """It would read the sources once more from their beginning, and its rows would be doubled."""
    with pytest.raises(StateLost, match="samza-azure recover JOB"):
        asyncio.run(RunLogs(drained.blobs).refuse_if_any())


def test_a_copy_is_kept_beside_later_ones_of_another_group(drained: Drained) -> None:
    for revision in (2, 3):
        keep_copy(drained.blobs, replace(drained.control, group_id="b" * 32, revision=revision))
    names = [name for name, _ in drained.blobs.list(COPIES)]
    assert (names[0], len(names), names[-1]) == (copy_name(3), KEPT, copy_name(40))


def test_a_stream_that_was_deleted_and_filled_again_is_read_from_its_beginning(drained: Drained) -> None:
    drained.put(NAME, control_blob.encode(drained.control))
    delete_stream(drained.config, drained.account, "orders", yes=True)
    drained.produce(100)
    drained.blobs.delete(NAME)
    assert drained.recovered().positions == {}


#: Each way to use a command that asks where the run stands.
ASK = (
    "status", "status --json", "status --watch", "stop", "stop --wait",
    "decommission p0", "drain", "drain --wait", "drain --run-id r1", "drain --when-caught-up", "drain --cancel",
    "rewind --to earliest", "produce orders rows.csv", "produce orders rows.csv --dry-run",
    "delete --run r1 --yes", "delete --stream orders --yes", "delete --stream gone --yes",
)  # fmt: skip
#: Why the other commands do not.
OTHERS = {
    "run": "tests/fleet/test_recovery.py plays its start",
    "guard": "as `run`: its coordinator is the same",
    "peek": "it shows rows, whoever reads them",
    "follow": "it shows rows, whoever reads them",
    "export": "it may be all that can be done; it says that the order of runs is a guess",
    "ui": "the page has the sentence, and is served on",
    "table": "a table's rows say what it has",
    "compact": "a table's rows say what it has",
    "recover": "it is the way back",
    "dev": "it has an account of its own",
    "verify": "it has a container of its own",
    **dict.fromkeys(
        ("explain", "check", "azurite", "master", "worker", "executor", "positions"), "it reads no account"
    ),
}


def test_each_command_either_asks_where_the_run_stands_or_is_known_not_to() -> None:
    assert {line.split()[0] for line in ASK} | OTHERS.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize("line", ASK)
def test_each_command_that_asks_where_the_run_stands_names_the_way_back(
    kept: Drained, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` said that the next start begins the first run, and `drain` asked that run to end."""
    (kept.path.parent / "rows.csv").write_text("id\n7\n")
    monkeypatch.chdir(kept.path.parent)
    name, *options = line.split()
    asked = kept.requests()
    monkeypatch.setattr(sys, "argv", ["samza-azure", name, str(kept.path), *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == StateLost.exit_code
    assert "control.json was deleted: there are copies of it below control/." in said.err
    assert "samza-azure recover JOB brings it back" in said.err
    assert not said.out
    assert kept.requests() == asked
    assert ends_of(kept.blobs, ["orders/0"]) == kept.control.positions


def test_a_drain_that_was_requested_before_the_loss_was_seen_stays(
    drained: Drained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request is written by what the leader row says, before the control blob is read."""
    row = leader_columns(LeaderRow(3, 30, "r1:RUNNING:-", "e", 1))
    with_rows(drained.account, lambda blob, table: table.insert(LEADER, LEADER, row, timeout=CALL_S))
    monkeypatch.setattr(sys, "argv", ["samza-azure", "drain", str(drained.path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "The request stays: run r1 drains once it goes on." in capsys.readouterr().err
    assert len(drained.requests()) == 1


def test_the_page_names_the_way_back(drained: Drained) -> None:
    async def said() -> str:
        watcher = Watcher(drained.config)
        try:
            return str((await watcher.state())["verdict"]["text"])
        finally:
            await watcher.close()

    assert asyncio.run(said()).startswith("control.json was deleted: there are copies of it below control/.")


def test_a_monitor_takes_no_request_for_certain_while_nobody_knows_whether_it_was_cancelled(drained: Drained) -> None:
    drains = DrainNotifications(drained.account)
    asked = drains.write("r1")
    with pytest.raises(StateLost, match="samza-azure recover JOB"):
        drains.wanted("r1")
    with pytest.raises(StateLost, match="samza-azure recover JOB"):
        drains.write()
    assert drains.read().notifications == (asked,)


def test_rows_can_be_exported_all_the_same(
    drained: Drained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["samza-azure", "export", str(drained.path), "orders", "--to", str(tmp_path / "rows.csv")]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "in the order of their ids. control.json was deleted" in capsys.readouterr().err


def test_task_logs_without_a_copy_leave_it_to_recover_what_can_be_done(drained: Drained) -> None:
    drained.blobs.delete_many([name for name, _ in drained.blobs.list(COPIES)])
    drained.put("runs/r1/daily-0/00000000", b"")
    with pytest.raises(StateLost, match=r"task logs and no copy of it.* recover JOB says what can be done"):
        with_rows(drained.account, lambda blob, table: control_of(drained.account))
    for stream in ("orders", "gone"):
        with pytest.raises(StateLost, match="task logs and no copy of it"):  # the run of these logs may read it
            delete_stream(drained.config, drained.account, stream, yes=True)
    assert ends_of(drained.blobs, ["orders/0"]) == drained.control.positions


@pytest.mark.parametrize("damage", [b"", b"no control blob"])
def test_all_is_deleted_beside_a_control_blob_that_cannot_be_read(drained: Drained, damage: bytes) -> None:
    """It is the way out that `recover` names, and it failed with what it should have deleted."""
    drained.put(NAME, damage)
    delete_all(drained.config, Account.from_config(drained.config.storage), yes=True)
    assert [name for name, _ in drained.blobs.list("")] == []


@pytest.mark.parametrize("number", [1 << 48, (1 << 63) - 1, 10**30, -5])
def test_a_copy_with_absurd_numbers_is_left_out(drained: Drained, number: int) -> None:
    """No row could hold what follows it, so no processor could lead."""
    drained.put(f"{COPIES}{'9' * 16}", control_blob.encode(replace(drained.control, revision=number, epoch=number)))
    assert 40 < drained.recovered().revision < 1 << 48


def test_older_copies_than_one_of_a_later_release_bring_nothing_back(drained: Drained) -> None:
    fields = json.loads(gzip.decompress(control_blob.encode(replace(drained.control, run_id="r9"))))
    drained.put(copy_name(41), gzip.compress(json.dumps(fields | {"format": 99}).encode()))
    with pytest.raises(TooOld, match="control/0000000000000041"):
        drained.recovered()
    keep_copy(drained.blobs, replace(drained.control, revision=42))
    assert drained.recovered().revision > 42


def test_many_sources_with_many_partitions_are_refused() -> None:
    """2.5 KB would become 100 million names."""
    many = Control(group_id="a" * 32, sources={f"s{number}": 100_000 for number in range(1000)})
    with pytest.raises(CorruptState):
        control_blob.decode(control_blob.encode(many))


class Between:
    """A run of two stages whose control blob was lost: `daily` reads what the two tasks of `clean` write."""

    GROUP, RUN = "a" * 32, "r1"

    def __init__(self, drained: Drained, readers: int) -> None:
        self.drained, self.blobs = drained, drained.blobs
        self.tasks = [*CLEANERS, *(f"daily-{number}" for number in range(readers))]
        self.blobs.delete_many([name for name, _ in self.blobs.list(COPIES)])
        control = replace(
            drained.control, phase=RunPhase.RUNNING, past=(), positions={},
            tasks={task: Assignment(first=False) for task in self.tasks},
        )  # fmt: skip
        keep_copy(self.blobs, control)
        self.ends = {task: self.written(task, "cleaned", batches=3) for task in CLEANERS}

    def written(
        self, task: str, stream: str, batches: int, plan: bytes = b"", needs: Mapping[str, int] = {}
    ) -> Position:
        """Begin a log, and append batches; the last thing in it is a record without files."""
        writer, _ = take_over(
            self.blobs, task_log(self.RUN, task), group_id=bytes.fromhex(self.GROUP), task=task, writer=Writer(30, 0),
            first=True, may_append=lambda: True, meta={"stream": stream},
        )  # fmt: skip
        for batch in range(batches):
            files = {f"offsets/{batch}": plan} if plan else {}
            writer.append(batch, slices=[Slice(0, b"rows", 1)], files=files, needs=needs)
        return writer.append_frontier(1)

    def reads(self, number: int, *writers: str) -> None:
        """A query that has read all that these have written."""
        offset = Offset("cleaned", 0, None, tuple(ProducerPosition(self.ends[writer]) for writer in writers))
        plan = as_file(Planned(0, (offset,)))
        self.written(f"daily-{number}", "daily", 2, plan)

    def shorten(self, task: str) -> None:
        """Put a log of one blob back as it was before its last record."""
        prefix = task_log(self.RUN, task)
        span = self.blobs.read(name := blob_name(prefix, 0), 0)
        reader, end = LogReader(self.blobs, prefix), (0, 0)
        while (found := reader.scan(end, 1)).end < self.ends[task] and found.records:
            end, before = found.end, end
        self.blobs.delete(name)
        self.blobs.create(name)
        self.blobs.append(name, bytes(span.data)[: before[1]], 0)  # type: ignore[union-attr]


CLEANERS = ("clean-0", "clean-1")


@pytest.mark.parametrize("meta", [None, {SHUT_DOWN: True}])
def test_a_log_that_a_task_has_ended_by_itself_is_not_taken_for_one_that_a_drain_has_ended(
    drained: Drained, meta: Mapping[str, Any] | None
) -> None:
    """The run goes on then, and ends when its other tasks do. A drain whose control blob is lost is lost."""
    run = Between(drained, readers=1)
    run.reads(0, *CLEANERS)
    writer, _ = take_over(
        run.blobs, task_log(run.RUN, "clean-0"), group_id=bytes.fromhex(run.GROUP), task="clean-0",
        writer=Writer(31, 0), first=False, may_append=lambda: True, meta={},
    )  # fmt: skip
    writer.append(3, kind=Kind.DRAINED, meta=meta)
    if meta is not None:
        assert "run r1 goes on" in recover(drained.config, Account.from_config(drained.config.storage), yes=True)
        return
    with pytest.raises(ConfigError, match="The log of clean-0 is drained"):
        recover(drained.config, Account.from_config(drained.config.storage), yes=True)


@pytest.mark.parametrize("by_key", [True, False])
def test_rows_between_stages_that_the_storage_has_lost_are_foreseen(drained: Drained, by_key: bool) -> None:
    """The reader's start failed with "was longer before", after `recover` had promised that the run goes on."""
    run = Between(drained, readers=2)
    for number, writer in enumerate(CLEANERS):
        run.reads(number, *(CLEANERS if by_key else (writer,)))
    assert "run r1 goes on" in recover(drained.config, Account.from_config(drained.config.storage), yes=True)
    drained.blobs.delete(NAME)
    run.shorten("clean-1")
    for yes in (False, True):
        with pytest.raises(ConfigError, match="daily-1 has read the rows of clean-1 up to blob 0") as refused:
            recover(drained.config, Account.from_config(drained.config.storage), yes=yes)
        assert "the storage has lost the rows between" in str(refused.value)
        assert "This run cannot go on" in str(refused.value)
        assert ("daily-0 has read" in str(refused.value)) is by_key
        assert "clean-0" not in str(refused.value)
        assert drained.blobs.list(NAME) == []


def test_a_lost_blob_between_stages_is_foreseen_for_a_task_that_is_no_query(drained: Drained) -> None:
    run = Between(drained, readers=1)
    run.written("daily-0", "daily", 1, needs={task_log("r1", "clean-1"): 1})
    with pytest.raises(ConfigError, match=r"daily-0 has read the rows of clean-1 up to blob 1, byte 0") as refused:
        recover(drained.config, Account.from_config(drained.config.storage), yes=False)
    assert "clean-0" not in str(refused.value)

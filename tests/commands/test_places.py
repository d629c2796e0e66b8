"""A stream's rows are in its log, in a table or in files. What gives them: `export`, `peek`, `follow`, `Reader`; while
the run goes on, when it is drained and its logs between stages are deleted, and in the next run."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samza_azure import Config, ConfigError, Reader, RowsGone, cli, tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import files_of, table_of
from samza_azure.logs.record import INTERMEDIATE, Kind, Writer
from samza_azure.storage.connection import Account
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.tables.delivery import Delivery
from samza_azure.tables.sink import Sink

JOB = """
app = { name = "NAME", main = "none:none" }
azure.storage.connect = "${CONNECT}"

[streams.out]
"""
SETTINGS = {
    "log": "",
    "table": 'table = "outs"\ntable.time = "at"\n',
    "files": 'files = "outs"\n',
    "both": 'table = "outs"\ntable.time = "at"\nfiles = "outs"\n',
}
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass
class Out:
    """A stream `out`, written by a stage in one run after the other, and a user at a terminal."""

    kind: str
    job: Path
    account: Account
    config: Config
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    run: str = ""
    log: LogWriter | None = None
    takers: list[Sink | Delivery] = field(default_factory=list)

    def begin(self, run: str, kind: str = "") -> None:
        kind, self.run, blobs, log = kind or self.kind, run, self.account.blobs(), f"runs/{run}/count-0"
        meta = {"stream": "out", INTERMEDIATE: kind != "log"}
        self.log, _ = take_over(
            blobs, log, group_id=bytes(16), task="count-0", writer=Writer(1, 1), first=True,
            may_append=lambda: True, meta=meta,
        )  # fmt: skip
        self.takers, settings = [], self.config.streams["out"]
        if kind in ("table", "both") and (table := table_of("out", settings)):
            store, readers = tables.store_of(self.account, table.name), [LogReader(blobs, log, frozenset({0}))]
            sink = Sink(store, table, SCHEMA, run=run, task="out-table-0", writer=(1, 1), readers=readers)
            assert sink.claim(first=True)
            self.takers.append(sink)
        if kind in ("files", "both") and (files := files_of(settings)):
            delivery = Delivery(
                blobs, files, SCHEMA, run=run, task="out-files-0", readers=[LogReader(blobs, log, frozenset({0}))],
                record=lambda: None, may_write=lambda: True,
            )  # fmt: skip
            delivery.claim(None)
            self.takers.append(delivery)

    def put(self, *values: int, kind: Kind = Kind.BATCH) -> None:
        assert self.log is not None
        rows = pa.table([[NOON] * len(values), list(values)], schema=SCHEMA)
        self.log.append(self.log.last_batch + 1, kind=kind, slices=[one_slice(0, rows)])
        for taker in self.takers:
            taker.read(f"runs/{self.run}/count-0")
            assert taker.flush()

    def drain(self, *values: int) -> None:
        self.put(*values, kind=Kind.DRAINED)
        if self.takers:  # as the leader does with logs between stages
            for name, _ in self.account.blobs().list(f"runs/{self.run}/"):
                self.account.blobs().delete(name)

    def command(self, name: str, *options: str) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["samza-azure", name, str(self.job), "out", *options])
        self.patch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self.capture.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def export(self) -> list[int]:
        to = self.job.parent / "out.parquet"
        code, _, said = self.command("export", "--to", str(to))
        assert code == 0, said
        return sorted(pq.read_table(to)["v"].to_pylist())

    def peek(self) -> list[int]:
        return self._printed("peek", "-n", "100")

    def follow(self) -> list[int]:
        return self._printed("follow", "--from", "earliest", "--until-now")

    def _printed(self, *arguments: str) -> list[int]:
        code, out, said = self.command(*arguments)
        assert code == 0, said
        return sorted(json.loads(line)["v"] for line in out.splitlines())

    def reader(self) -> list[int]:
        return values(Reader.from_job(self.job, "out", until_now=True))


def values(reader: Reader) -> list[int]:
    return sorted(value for rows in reader for value in rows["v"].to_pylist())


@pytest.fixture
def out_of(
    emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], Out]]:
    monkeypatch.setenv("CONNECT", emulator.connection_string)
    made: list[Out] = []

    def make(kind: str) -> Out:
        job = tmp_path / "job.toml"
        job.write_text(JOB.replace("NAME", f"places-{abs(hash(tmp_path)):x}"[:40]) + SETTINGS[kind])
        config = Config.load(job)
        account = Account.from_config(config.storage)
        account.ensure_created()
        made.append(Out(kind, job, account, config, monkeypatch, capsys))
        return made[-1]

    yield make
    for each in made:
        each.account.close()


WAYS: dict[str, Callable[[Out], list[int]]] = {
    "export": Out.export,
    "peek": Out.peek,
    "follow": Out.follow,
    "Reader": Out.reader,
}
#: What reads no table, and says where the rows are.
ELSEWHERE = ("The rows of 'out' are in the table outs", "samza-azure export JOB out --to FILE")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind == "both")) for kind in SETTINGS])
def test_each_way_gives_the_rows_of_each_place_across_a_drain(out_of: Callable[[str], Out], kind: str) -> None:
    """After a drain it was only said of a table that no log holds the stream, and before it part of the rows came."""
    out = out_of(kind)
    out.begin("1-a")
    out.put(1, 2)

    def are(*expected: int) -> None:
        for way, rows in WAYS.items():
            if kind != "table" or way in ("export", "peek"):
                assert rows(out) == list(expected), way
                continue
            if way == "follow":
                code, _, said = out.command("follow", "--from", "earliest", "--until-now")
                assert code == 2
            else:
                with pytest.raises(ConfigError) as refused:
                    Reader.from_job(out.job, "out")
                said = str(refused.value)
            for part in ELSEWHERE:
                assert part in said

    are(1, 2)
    out.drain(3)
    are(1, 2, 3)
    out.begin("2-b")
    out.put(4)
    are(1, 2, 3, 4)


@pytest.mark.parametrize("kind", ["log", "files", "both"])
def test_a_token_and_a_name_go_on_over_a_drain(out_of: Callable[[str], Out], kind: str) -> None:
    out = out_of(kind)
    out.begin("1-a")
    out.put(1, 2)
    reader = Reader.from_job(out.job, "out", until_now=True)
    assert values(reader) == [1, 2]
    follow = ("follow", "--until-now", "--name", "w", "--from", "earliest")
    assert out._printed(*follow) == [1, 2]
    latest = Reader.from_job(out.job, "out", start="latest", until_now=True)
    out.drain(3)
    assert (out._printed(*follow), values(latest)) == ([3], [3])
    out.begin("2-b")
    out.put(4)
    assert out._printed(*follow) == [4]
    assert values(Reader.from_job(out.job, "out", token=reader.token, until_now=True)) == [3, 4]
    folder = out.job.parent / "rows"
    assert out.command("export", "--to", str(folder), "--by", "run", "--since", reader.token)[0] == 0
    assert sorted(each.name for each in folder.iterdir()) == ["of_run=1-a", "of_run=2-b"]


def test_what_a_run_left_in_its_log_before_there_was_a_table_is_exported_too(out_of: Callable[[str], Out]) -> None:
    out = out_of("table")
    out.begin("1-a", kind="log")
    out.put(1)
    assert out.export() == [1], "there is no such table yet"
    out.drain(2)
    out.begin("2-b")
    out.put(3)
    assert out.export() == out.peek() == [1, 2, 3]


def test_what_a_table_cannot_do_is_said(out_of: Callable[[str], Out]) -> None:
    out = out_of("table")
    out.begin("1-a")
    out.put(1)
    to = str(out.job.parent / "out")
    for options, says in (
        (("--to", to, "--by", "run"), "The stream 'out' is a table, whose rows belong to no run. Use --by day."),
        (("--to", f"{to}.csv", "--since", Reader.from_job(out.job, "out", start="latest").token), "which has no order"),
    ):
        code, _, said = out.command("export", *options)
        assert (code, says in said) == (2, True), said
    code, _, said = out.command("export", "--to", f"{to}.csv")
    assert (code, "They are those of the table outs at " in said, "--since" in said) == (0, True, False), said
    reader = Reader.from_job(out.job, "out", start="latest", until_now=True)
    out.put(2)
    assert values(reader) == [2], "while its log is there, new rows come from it"
    out.put(3)
    for name, _ in out.account.blobs().list("runs/"):
        out.account.blobs().delete(name)
    with pytest.raises(RowsGone, match=r"since they are in the table outs\. .*samza-azure export JOB out --to FILE"):
        values(reader)
    code, _, said = out.command("follow", "--until-now")
    assert (code, "No log holds the stream 'out'. All rows that are in the table: samza-azure export" in said) == (
        2,
        True,
    )


def test_files_that_were_deleted_unread_are_no_gap(out_of: Callable[[str], Out]) -> None:
    out = out_of("files")
    out.begin("1-a")
    for value in (1, 2, 3):
        out.put(value)
    blobs = out.account.blobs()
    names = [name for name, _ in blobs.list("files/outs/")]
    reader = Reader.from_job(out.job, "out", until_now=True)
    assert next(iter(reader))["v"].to_pylist() == [1]
    blobs.delete(names[0])
    assert values(Reader.from_job(out.job, "out", token=reader.token, until_now=True)) == [2, 3], "it had that one"
    assert values(Reader.from_job(out.job, "out", until_now=True)) == [2, 3], "what is left"
    blobs.delete(names[1])
    with pytest.raises(RowsGone, match="Files of 'out' were deleted before they were read"):
        values(Reader.from_job(out.job, "out", token=reader.token, until_now=True))


def test_a_stream_between_stages_says_that_rows_may_be_missing(out_of: Callable[[str], Out]) -> None:
    out = out_of("log")
    out.begin("1-a", kind="files")
    out.put(1)
    code, _, said = out.command("export", "--to", str(out.job.parent / "out.csv"))
    assert (code, 'streams.out.files = "out" keeps all of them' in said) == (0, True), said
    for name, _ in out.account.blobs().list("runs/"):
        out.account.blobs().delete(name)
    code, _, said = out.command("peek")
    assert (code, "No log holds the stream 'out'. Known streams: none." in said) == (2, True), said
    assert 'streams.out.files = "out" keeps them' in said

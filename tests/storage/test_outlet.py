"""Rows on their way outside: each with one number whoever sends it, through take-overs at every moment, and drains."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from samza_azure import RefusedRow, SystemStream, SystemWriter
from samza_azure.commands.kept_rows import kept_rows
from samza_azure.config import Config
from samza_azure.errors import AccessDenied, ConfigError, PipelineRefused, StorageUnavailable, Superseded
from samza_azure.logs.record import Kind, Writer
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Drain, DrainStep, Phase, StartTask, TaskKind, facts_told
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.outside import sent, sent_in
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.systems import patience
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.outlet_task import OutletTask
from tests.storage.containers import container_context

JOB = """
[app]
name = "out"
main = "sender:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
commit.ms = 0
[streams.clicks]
schema = "n bigint"
[streams.seen]
system = "shelf:Factory"
schema = "n bigint"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="seen")
class Pass:
    def process(self, envelope, collector): ...
"""
GROUP = bytes(16)
SCHEMA = pa.schema([pa.field("n", pa.int64())])
FLUSH = Drain(DrainStep.FLUSH)
LARGE = 1_000_000  # a row that is too large


@dataclass
class Shelf:
    """A system outside that keeps all that comes: writer, number, partition and row."""

    count: int = 3
    knows: bool = False  # whether it keeps the number with the rows, so that none comes twice
    events: list[tuple[str, int, int, int]] = field(default_factory=list)
    next: dict[str, int] = field(default_factory=dict)
    away: int = 0  # so many calls fail
    dies: bool = False  # in the middle of a flush
    closed: int = 0
    opened: int = 0

    def partitions(self) -> int | None:
        self.see()
        return self.count

    def producer(self, stream: SystemStream) -> "Producer":
        assert stream.is_output
        assert stream.schema.names == ["n"]
        return Producer(self)

    def see(self) -> None:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("The shelf does not answer.")

    def once(self) -> list[int]:
        """The rows for a reader that keeps the last number of each writer and partition."""
        last: dict[tuple[str, int], int] = {}
        found = []
        for writer, number, partition, row in self.events:
            if number > last.get((writer, partition), -1):
                last[writer, partition] = number
                found.append(row)
        return found


class Producer:
    """One that puts rows on a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.held = shelf, list[tuple[int, int]]()

    def open(self, writer: SystemWriter) -> int | None:
        self.shelf.see()
        self.writer = writer
        self.shelf.opened += 1
        return self.shelf.next.get(writer.id, 0) if self.shelf.knows else None

    def send(self, number: int, rows: pa.Table) -> Sequence[RefusedRow]:
        refused = []
        for index, row in enumerate(rows["n"].to_pylist()):
            if row == LARGE:
                refused.append(RefusedRow(index, "It is too large.", b"%d" % row))
            else:
                self.held.append((number + index, row))
        return refused

    def flush(self) -> None:
        self.shelf.see()
        while self.held:
            if self.shelf.dies:
                raise KeyboardInterrupt
            number, row = self.held.pop(0)
            assert self.writer.partitions is not None
            self.shelf.events.append((self.writer.id, number, number % self.writer.partitions, row))
            self.shelf.next[self.writer.id] = number + 1
            self.shelf.see()

    def close(self) -> None:
        self.shelf.closed += 1


class Run:
    """A stage whose task writes rows, and the owners of the task that sends them, one after the other."""

    def __init__(self, directory: Path, job: str = JOB) -> None:
        (directory / "sender.py").write_text(PIPELINE)
        (directory / "job.toml").write_text(job)
        config = Config.load(directory / "job.toml")
        self.account: Any = MemoryAccount()
        account, self.blobs = self.account, self.account.blobs()
        self.context = container_context(account, directory, config, analyse_without_spark(load(config), config))
        self.log: LogWriter
        self.log, _ = take_over(
            self.blobs, "runs/r1/Pass-0", group_id=GROUP, task="Pass-0", writer=Writer(1, 1), first=True,
            may_append=lambda: True, meta={"stream": "seen"},
        )  # fmt: skip
        self.attempt = 0
        self.written = list[int]()

    def put(self, *rows: int, kind: Kind = Kind.BATCH) -> None:
        """Let the stage write rows."""
        slices = [one_slice(0, pa.table([list(rows)], schema=SCHEMA))] if rows else []
        end = self.log.append(self.log.last_batch + 1, kind=kind, slices=slices)
        self.written += rows
        self.context.hints.appended("runs/r1/Pass-0", end, None, kind is Kind.DRAINED)

    def owner(self) -> OutletTask:
        """The next one, which has taken over."""
        self.attempt += 1
        start = StartTask("seen-out-0", 1, self.attempt, self.attempt == 1, "r1", GROUP.hex())
        task = task_of(self.context, start)
        assert isinstance(task, OutletTask)
        assert task._begin()
        return task

    def records(self) -> int:
        """How many records the log has."""
        return LogReader(self.blobs, "runs/r1/seen-out-0", group_id=GROUP).scan((0, 0)).records

    def dead(self) -> list[dict[str, Any]]:
        """What was put aside."""
        reader = LogReader(self.blobs, "runs/r1/seen-out-0", frozenset({0}), group_id=GROUP)
        return [row for batch in reader.rows(reader.scan((0, 0)).parts) for row in batch.to_pylist()]


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()

    class Factory:
        def get_admin(self, stream: SystemStream) -> Shelf:
            return made

        def get_producer(self, stream: SystemStream) -> Producer:
            return made.producer(stream)

    monkeypatch.setitem(sys.modules, "shelf", SimpleNamespace(Factory=Factory))  # type: ignore[arg-type]
    return made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shelf: Shelf) -> Run:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sender", raising=False)
    return Run(tmp_path)


def _try(task: OutletTask) -> None:
    with suppress(StorageUnavailable):
        task._turn()


def drained(task: OutletTask) -> None:
    task.follow(FLUSH)
    while not task.is_over:
        _try(task)
    task._leaves()
    assert task.report.phase is Phase.DRAINED


def test_committed_rows_go_outside_in_order_and_a_drain_sends_all(run: Run, shelf: Shelf) -> None:
    plan = run.context.pipeline.plan
    (outlet,) = (stage for stage in plan.stages if stage.kind is TaskKind.OUTLET)
    assert (outlet.name, outlet.inputs, outlet.tasks) == ("seen-out", ("seen",), 1)
    assert facts_told(plan.described["stage seen-out"]) is outlet.kind.facts
    task = run.owner()
    task._turn()
    assert run.records() == 1, "no rows, no record, and nobody outside is asked"
    run.put(1, 2, 3)
    task._turn()
    run.put(4)
    task._turn()
    assert [(number, row) for _, number, _, row in shelf.events] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert {writer for writer, *_ in shelf.events} == {f"{GROUP.hex()[:12]}:r1:seen-out-0"}
    assert run.records() == 3, "one for each range"
    run.put(5)
    run.put(kind=Kind.DRAINED)
    drained(task)
    assert [row for *_, row in shelf.events] == run.written
    assert shelf.closed == 1
    progress = task.report.progress
    assert progress is not None and progress.rows_out == 5


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_reader_of_numbers_sees_each_row_once_through_forty_owners(
    run: Run, shelf: Shelf, seed: int, knows: bool
) -> None:
    """Owners die in the middle of a range, and old ones wake up; the outside goes away, and gets more partitions."""
    dice, zombies = Random(seed), list[OutletTask]()
    shelf.knows = knows
    task = run.owner()
    for _ in range(40):
        for _ in range(dice.randrange(3)):
            run.put(*(len(run.written) + number for number in range(dice.randrange(1, 30))))
            shelf.away = dice.choice([0, 0, 1, 2])
            if not knows:
                shelf.count += dice.random() < 0.1
            _try(task)
        if dice.random() < 0.3:
            task._leaves()  # an orderly end
        else:
            zombies.append(task)
        task = run.owner()
        for zombie in [] if knows else zombies:  # of those that keep numbers only one at a time is let in
            try:
                _try(zombie)
            except Superseded:
                zombies.remove(zombie)
    run.put(kind=Kind.DRAINED)
    shelf.away = 0
    drained(task)
    assert shelf.once() == run.written
    rows = [row for *_, row in shelf.events]
    assert (rows == run.written) if knows else len(rows) > len(run.written)
    assert len({event[1:] for event in shelf.events}) == len(run.written), "a number is one row of one partition"


def test_one_that_keeps_numbers_is_opened_anew_after_an_error_by_the_owner_of_the_log_alone(
    run: Run, shelf: Shelf
) -> None:
    """Another one would shut out the successor, who would shut it out again, and so on."""
    shelf.knows = True
    task = run.owner()
    run.put(0, 1, 2)
    task._turn()
    run.put(3, 4, 5)
    shelf.away = 0
    flushed = Producer.flush

    def fails(producer: Producer) -> None:
        number, row = producer.held.pop(0)
        shelf.events.append((producer.writer.id, number, 0, row))
        shelf.next[producer.writer.id] = number + 1
        raise StorageUnavailable("The answer was lost.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "flush", fails)
        with pytest.raises(StorageUnavailable):
            task._turn()
    assert (shelf.opened, shelf.closed) == (1, 1) and Producer.flush is flushed
    before = run.records()
    task._turn()
    assert run.records() == before + 1, "the log is ours"
    assert [row for *_, row in shelf.events] == [0, 1, 2, 3, 4, 5] and shelf.opened == 2
    run.put(6, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Producer, "flush", fails)
        with pytest.raises(StorageUnavailable):
            task._turn()
    owner = run.owner()
    owner._turn()
    with pytest.raises(Superseded):
        task._turn()
    assert shelf.opened == 3 and [row for *_, row in shelf.events] == run.written


def refusing(*, may_pass: bool = True) -> Callable[[Producer], None]:
    """In the place of what a producer does."""

    def refuses(_producer: Producer) -> None:
        raise AccessDenied("There is no right.", may_pass=may_pass)

    return refuses


def test_who_was_let_in_and_is_not_any_more_waits(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right may come back, and people hear of it meanwhile."""
    task = run.owner()
    run.put(0)
    task._turn()
    run.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "flush", refusing(may_pass=False))
        with pytest.raises(StorageUnavailable, match=r"There is no right\."):
            task._turn()
    assert task.report.progress is not None and task.report.progress.warning == "There is no right."
    task._turn()
    assert shelf.once() == [0, 1] and task.report.progress is not None and not task.report.progress.warning


def test_a_new_role_is_waited_for_ten_minutes_and_a_wrong_key_not_at_all(
    run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub is made together with the fleet, and its roles count some minutes later."""
    task = run.owner()
    run.put(0)
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "flush", refusing())
        with pytest.raises(StorageUnavailable, match=r"There is no right\."):
            task._turn()
        assert task.report.progress is not None and "so it is tried for 600 s" in task.report.progress.warning
        patch.setattr(patience, "boot_time", lambda: boot_time() + 601)
        with pytest.raises(AccessDenied):
            task._turn()
        patch.undo()
        patch.setattr(Producer, "flush", refusing(may_pass=False))
        with pytest.raises(AccessDenied):
            task._turn()
    task._turn()
    assert shelf.once() == [0]


def test_a_new_owner_sends_again_only_what_may_not_have_been_sent(run: Run, shelf: Shelf) -> None:
    task = run.owner()
    run.put(0, 1)
    task._turn()
    run.put(2, 3)
    task._turn()
    after = run.owner()  # the end of the last range is in no record yet
    after._turn()
    assert [row for *_, row in shelf.events] == [0, 1, 2, 3, 2, 3]
    after._leaves()
    run.owner()._turn()
    assert len(shelf.events) == 6, "an orderly end records it"


def test_the_end_of_a_range_is_recorded_a_moment_later(run: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    task = run.owner()
    run.put(0)
    task._turn()
    before = run.records()
    monkeypatch.setattr("samza_azure.tasks.outlet_task.SETTLE_S", 0.0)
    task._turn()
    task._turn()
    assert run.records() == before + 1
    run.owner()._turn()
    assert len(shelf.events) == 1


def test_behind_a_full_range_the_next_turn_comes_at_once_and_then_it_rests(run: Run, shelf: Shelf) -> None:
    """It did not rest any more, until the next rows came."""
    task = run.owner()
    run.put(*range(20_000))
    task._turn()
    assert len(shelf.events) == 20_000 and task._pause_s() == 0.0
    task._turn()
    assert task._pause_s() > 0.0
    run.put(*range(20_000))
    assert task._sink is not None
    task._sink._may_write = lambda: False
    task._turn()
    assert task._pause_s() > 0.0, "a range that may not be sent now"


def test_a_row_that_cannot_be_sent_fails_the_task_before_the_others_are_sent(run: Run, shelf: Shelf) -> None:
    task = run.owner()
    run.put(1, LARGE, 2)
    with pytest.raises(
        ConfigError, match=r'Row 1 of seen-out-0, which begins with "1000000", cannot be sent\. It is too'
    ):
        task._turn()
    assert shelf.events == []
    with pytest.raises(ConfigError, match=r"streams\.seen\.dead_letters = 100"):
        run.owner()._turn()


def test_a_row_that_cannot_be_sent_is_put_aside_once(tmp_path: Path, run: Run, shelf: Shelf) -> None:
    """Also where the run began without dead letters, and an owner died behind the range."""
    task = run.owner()
    run.put(1, LARGE, 2)
    with pytest.raises(ConfigError):
        task._turn()
    run.context = type(run.context)(**{
        name: getattr(run.context, name) for name in run.context.__slots__
    } | _with_dead_letters(run, tmp_path))  # fmt: skip
    task = run.owner()
    assert task._sink is not None
    task._turn()
    assert [row for *_, row in shelf.events] == [1, 2]
    (aside,) = run.dead()
    assert (aside["raw"], aside["reason"], aside["place"]) == (b"1000000", "It is too large.", "row 1 of seen-out-0")
    run.put(3, LARGE)
    task._read(task._sink, ends=False)
    task._sink.flush()
    task = run.owner()  # it died before the record
    run.put(kind=Kind.DRAINED)
    drained(task)
    assert [each["place"] for each in run.dead()] == ["row 1 of seen-out-0", "row 4 of seen-out-0"]
    assert shelf.once() == [1, 2, 3]
    found = kept_rows(run.context.config, run.account, "seen-dead", table_bytes=1 << 20)
    assert [raw for _, rows in found.tables() for raw in rows["raw"].to_pylist()] == [b"1000000"] * 2, "for `peek`"


def test_a_refused_row_is_kept_where_the_outside_has_those_behind_it(tmp_path: Path, run: Run, shelf: Shelf) -> None:
    """The next owner need not send the range, so it does not hear of the row."""
    run = Run(tmp_path, JOB + "dead_letters = 1\n")
    shelf.knows = True
    task = run.owner()
    assert task._sink is not None
    run.put(1, LARGE, 2)
    task._read(task._sink, ends=False)
    task._sink.flush()
    task = run.owner()  # it died before the next record
    run.put(kind=Kind.DRAINED)
    drained(task)
    assert [row for *_, row in shelf.events] == [1, 2]
    assert [each["place"] for each in run.dead()] == ["row 1 of seen-out-0"]


def _with_dead_letters(run: Run, directory: Path) -> dict[str, Any]:
    job = directory / "job.toml"
    job.write_text(job.read_text() + "dead_letters = 1\n")
    config = Config.load(job)
    pipeline = analyse_without_spark(load(config), config)
    assert pipeline.plan.fingerprint == run.context.pipeline.plan.fingerprint, "in the middle of a run"
    return {"config": config, "pipeline": pipeline}


def test_what_a_query_sends_needs_no_schema_in_the_job_file(run: Run) -> None:
    """It was parsed all the same, and the pipeline refused."""
    pipeline, config = run.context.pipeline, run.context.config
    undeclared = replace(config.streams["seen"], schema=None)
    config = replace(config, streams={**config.streams, "seen": undeclared})
    assert sent(pipeline, "seen-out-0", config).schema.names == ["n"]
    found = sent_in(pipeline.plan, "seen", config)
    assert found is not None and found.is_output and found.schema.names == ["n"]
    assert sent_in(pipeline.plan, "clicks", config) is None


def test_a_connector_that_only_reads_is_refused(tmp_path: Path, run: Run) -> None:
    with pytest.raises(PipelineRefused, match="names a connector that only reads"):
        Run(tmp_path, JOB.replace("shelf:Factory", "tail"))


def test_the_connector_of_the_documents_sends(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/connect.md, as it is written there."""
    text = Path(__file__).parents[2].joinpath("docs", "connect.md").read_text()
    (code,) = (each.split("```")[0] for each in text.split("```python\n")[1:] if "class ShelfFactory" in each)
    (tmp_path / "shelves.py").write_text(code)
    monkeypatch.delitem(sys.modules, "sender", raising=False)
    written = Run(tmp_path, JOB.replace("shelf:Factory", "shelves:ShelfFactory") + 'options.path = "out"')
    written.put(7, 8)
    written.owner()._turn()
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert found == [[f"{GROUP.hex()[:12]}:r1:seen-out-0", number, {"n": 7 + number}] for number in range(2)]

"""A source task in the storage's memory: what its log says, through take-overs at every moment and drains."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.commands.kept_rows import kept_rows
from samza_azure.config import Config
from samza_azure.errors import (
    AccessDenied,
    ConfigError,
    PipelineRefused,
    SamzaAzureError,
    SignInFailed,
    StorageUnavailable,
    Superseded,
)
from samza_azure.eventhubs import consumer as hub_consumer
from samza_azure.eventhubs.emulator import KEY, EventHubs
from samza_azure.logs.names import blob_name
from samza_azure.logs.reading import Tail
from samza_azure.logs.record import Kind, Writer
from samza_azure.machine.clock import boot_time
from samza_azure.messages import (
    WARNING_LIMIT,
    Drain,
    DrainPhase,
    DrainStep,
    Phase,
    Progress,
    StartTask,
    TaskKind,
    facts_told,
)
from samza_azure.outcomes import Missing
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.outside import dead_letter_stage
from samza_azure.pipeline.system_names import mistakes_of_systems
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.systems import looks, patience
from samza_azure.systems.api import SystemLag, SystemRows
from samza_azure.tasks import readers
from samza_azure.tasks import source_task as source_module
from samza_azure.tasks.handler_task import HandlerTask
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.readers import Readers
from samza_azure.tasks.source_task import SourceTask
from tests.storage.containers import container_context

JOB = """
[app]
name = "tail"
main = "outside:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
[streams.clicks]
system = "tail"
options.path = "clicks-{partition}.jsonl"
partitions = 2
schema = "n bigint not null, ts timestamp"
event_time = "ts"
frontier_lag = "1 s"
[streams.seen]
schema = "n bigint"
"""
HUB_JOB = """
[app]
name = "hub"
main = "outside:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
[task]
[streams.clicks]
system = "eventhubs"
options.connect = "CONNECT"
options.name = "hub"
options.format = "raw"
schema = "body binary, enqueued_time timestamp"
event_time = "enqueued_time"
[streams.seen]
schema = "n bigint"
"""
PIPELINE = """
from samza_azure import Application
app = Application()

@app.task("clicks", output="seen", tasks=1)
class Pass:
    def process(self, envelope, collector): ...
"""
MADE = """
class Factory:
    def get_admin(self, stream):
        return self
    get_consumer = get_admin
    def partitions(self): ...
    def open(self, partition, position): ...
    def close(self): ...
"""
GROUP, PREFIX = bytes(16), "runs/r1/clicks-source-0"
DRAIN = "drain-1"


class Run:
    """A pipeline with one source task for both partitions, and its owners one after the other."""

    def __init__(self, directory: Path, job: str = JOB, account: Any = None) -> None:
        self.directory = directory
        (directory / "outside.py").write_text(PIPELINE)
        (directory / "job.toml").write_text(job.replace("[task]", "[task]\ncount = 1"))
        config = Config.load(directory / "job.toml")
        self.account: Any = account or MemoryAccount()
        self.blobs = self.account.blobs()
        self.context = container_context(self.account, directory, config, analyse_without_spark(load(config), config))
        self.attempt, self.written = 0, 0

    def grow(self, rows: int) -> None:
        for _ in range(rows):
            with (self.directory / f"clicks-{self.written % 2}.jsonl").open("a") as file:
                print(json.dumps({"n": self.written, "ts": f"2026-01-01T00:00:{self.written % 60:02d}Z"}), file=file)
            self.written += 1

    def owner(
        self, *, first: bool = False, run: str = "r1", positions: dict[str, tuple[int, int]] | None = None
    ) -> SourceTask:
        """The next one, which has taken over."""
        self.attempt += 1
        start = StartTask("clicks-source-0", 1, self.attempt, first, run, GROUP.hex(), positions or {})
        task = task_of(self.context, start)
        assert isinstance(task, SourceTask)
        assert task._begin()
        return task

    def rows(self, prefix: str = PREFIX, partitions: int = 2) -> list[int]:
        """The numbers of all rows in the log, by partition."""
        found = []
        for partition in range(partitions):
            reader = LogReader(self.blobs, prefix, frozenset({partition}), group_id=GROUP)
            for batch in reader.rows(reader.scan((0, 0)).parts):
                found += batch["n"].to_pylist()
        return found


def turn(task: SourceTask) -> None:
    """A turn in which an append is due."""
    task._appended_at = 0.0
    task._turn()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    yield Run(tmp_path)
    for name in ("outside", "made"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_in_the_log_once_through_forty_owners(run: Run, seed: int) -> None:
    """A predecessor may still be at it: the first thing that it appends under a new owner ends it."""
    dice, zombies = Random(seed), []
    task = run.owner(first=True)
    for _ in range(40):
        run.grow(dice.randrange(30))
        for _ in range(dice.randrange(3)):
            turn(task)
        if dice.random() < 0.5:
            task._read()  # in memory only, when it dies
        zombies.append(task)
        task = run.owner()
        if dice.random() < 0.3 and zombies[-1]._rows:
            with pytest.raises(Superseded):
                zombies[-1]._append(Kind.BATCH)
    turn(task)
    turn(task)
    assert sorted(run.rows()) == list(range(run.written))


def test_a_drain_ends_the_log_where_the_reading_stopped_and_the_next_run_goes_on_there(run: Run) -> None:
    run.grow(10)
    task = run.owner(first=True)
    turn(task)
    run.grow(4)
    task.follow(Drain(DrainStep.FREEZE, DRAIN))
    turn(task)
    said = task.report
    assert (said.drain, said.frozen_for) == (DrainPhase.SOURCES_STOPPED, DRAIN)
    assert said.ends is not None and said.ends.keys() == {"clicks/0", "clicks/1"}
    task = run.owner()  # another one, in mid-drain
    task.follow(Drain(DrainStep.FLUSH, DRAIN, said.ends))
    turn(task)
    assert task.report.phase is Phase.DRAINED
    assert sorted(run.rows()) == list(range(10))
    tail = LogReader(run.blobs, PREFIX, group_id=GROUP).tail()
    assert tail is not None and tail.header.kind is Kind.DRAINED

    task = run.owner(first=True, run="r2", positions=said.ends)
    turn(task)
    assert sorted(run.rows("runs/r2/clicks-source-0")) == [10, 11, 12, 13]


def test_a_cancelled_drain_reads_on_and_the_next_one_asks_again(run: Run) -> None:
    run.grow(2)
    task = run.owner(first=True)
    turn(task)
    task.follow(Drain(DrainStep.FREEZE, DRAIN))
    turn(task)
    ends = task.report.ends
    task.follow(Drain(None))
    run.grow(2)
    turn(task)
    turn(task)
    assert (task.report.ends, sorted(run.rows())) == (None, [0, 1, 2, 3])
    task.follow(Drain(DrainStep.FREEZE, "drain-2"))
    turn(task)
    assert task.report.frozen_for == "drain-2" and task.report.ends != ends


def test_event_time_is_the_least_of_the_partitions_less_the_lag(run: Run) -> None:
    run.grow(10)
    task = run.owner(first=True)
    for _ in range(2):  # on a busy machine one takes the rows of one partition alone
        turn(task)
    assert task._writer is not None
    eighth = 1767225600 + 8
    assert task._writer.frontier_us == (eighth - 1) * 1_000_000
    for each in task._partitions.values():
        each.rows_at = -1e9
    task._say_idle()
    assert LogReader(run.blobs, PREFIX, group_id=GROUP).scan((0, 0)).idle


class Faltering:
    """A consumer that returns what it was given, then fails as long as the outside is away."""

    def __init__(self, *found: SystemRows) -> None:
        self.found = list(found)
        self.is_away = True

    def open(self, partition: int, position: tuple[int, int]) -> None: ...

    def read(self) -> SystemRows | None:
        if self.found:
            return self.found.pop(0)
        if self.is_away:
            raise StorageUnavailable("the outside does not answer")
        return None

    def close(self) -> None: ...


def one(partition: int, second: int, position: int) -> SystemRows:
    time = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    return SystemRows(partition, pa.table({"n": [second], "ts": [time]}), (0, position))


def test_what_was_read_before_the_outside_went_away_is_appended_meanwhile(run: Run) -> None:
    task = run.owner(first=True)
    task._consumer = Faltering(one(0, 7, 1))
    with pytest.raises(StorageUnavailable):
        turn(task)
    assert run.rows() == [7]


def test_no_token_is_waited_for_and_said(run: Run) -> None:
    task = run.owner(first=True)
    consumer = task._consumer = Faltering()

    def read() -> None:
        raise SignInFailed("There is no token.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer, "read", read)
        with pytest.raises(StorageUnavailable):
            turn(task)
    assert task.report.progress is not None and task.report.progress.warning == "There is no token."
    consumer.is_away = False
    turn(task)
    assert task.report.progress.warning == ""


def test_a_consumer_hears_of_positions_once_they_are_in_the_log(run: Run) -> None:
    class Hearing(Faltering):
        def recorded(self, partition: int, position: tuple[int, int]) -> None:
            heard[partition] = position
            assert run.rows() == [7]

    heard: dict[int, tuple[int, int]] = {}
    task = run.owner(first=True)
    task._consumer = Hearing(one(0, 7, 1))
    task._appended_at = boot_time() + 60
    with pytest.raises(StorageUnavailable):
        task._turn()
    assert not heard
    with pytest.raises(StorageUnavailable):
        turn(task)
    assert heard == {0: (0, 1), 1: (0, 0)}


class Remembering(Faltering):
    """A consumer that needs to know how many rows there were."""

    def __init__(self, *found: SystemRows) -> None:
        super().__init__(*found)
        self.is_away = False
        self.rows: dict[int, int] = {}

    def read(self) -> SystemRows | None:
        found = super().read()
        if found is not None:
            self.rows[found.partition] = self.rows.get(found.partition, 0) + found.table.num_rows
        return found

    def state(self, partition: int) -> bytes:
        return str(self.rows.get(partition, "")).encode()


class Refused(Remembering):
    """A consumer that returns what it was given, and is then refused."""

    may_pass = True

    def read(self) -> SystemRows | None:
        if (found := super().read()) is None:
            raise AccessDenied("There is no right.", may_pass=self.may_pass)
        return found


def test_a_new_role_is_waited_for_with_a_word_and_what_was_read_before_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub is made together with the fleet, and its roles count some minutes later: the first run ended FAILED."""
    run.grow(2)
    task = run.owner(first=True)
    read = (run.directory / "clicks-0.jsonl").stat().st_size
    task._consumer = Refused(one(0, 0, read))
    turn(task)
    assert run.rows() == [0] and task._states[0] == b"1", "nothing of the consumer is lost"
    turn(task)
    progress = task.report.progress
    assert task._consumer is None and progress is not None
    assert progress.warning.startswith("There is no right. A right counts some minutes") and "600 s" in progress.warning
    for _ in range(2):
        monkeypatch.setattr(task._patience, "not_before", 0.0)
        task._consumer = Refused()
        turn(task)
    monkeypatch.setattr(task._patience, "not_before", 0.0)
    turn(task)
    assert sorted(run.rows()) == [0, 1] and task.report.progress is not None and not task.report.progress.warning


def test_a_refusal_that_lasts_or_cannot_pass_ends_the_task(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    task = run.owner(first=True)
    task._consumer = Refused()
    turn(task)
    monkeypatch.setattr(patience, "boot_time", lambda: boot_time() + 601)
    monkeypatch.setattr(task._patience, "not_before", 0.0)
    task._consumer = Refused()
    with pytest.raises(AccessDenied):
        turn(task)
    task = run.owner()
    task._consumer = Refused()
    task._consumer.may_pass = False
    with pytest.raises(AccessDenied):
        turn(task)


def test_a_key_without_the_right_to_listen_is_waited_for_and_a_wrong_one_is_not(tmp_path: Path, run: Run) -> None:
    with EventHubs({"hub": 1}) as hubs:
        hubs.rights["local"] = {"Send"}
        (tmp_path / "key").write_text(hubs.connection_string)
        run = Run(tmp_path, HUB_JOB.replace('connect = "CONNECT"', 'connect.file = "key"'))
        hubs.send("hub", 0, [b"0"])
        task = run.owner(first=True)
        while not task._patience.warning:
            turn(task)
        assert "needs the right to listen" in task._patience.warning
        hubs.rights["local"] = {"Listen"}
        task._patience.not_before = 0.0
        while task._patience.warning:
            turn(task)
        assert task._bytes == 0 and task.report.progress is not None and task.report.progress.rows == 1
        (tmp_path / "key").write_text(hubs.connection_string.replace(KEY, "b3RoZXI="))  # renewed, and not here yet
        hubs.cut("tcp")
        until = boot_time() + 60
        while "refuses its key" not in task.report.progress.warning:
            assert boot_time() < until, "nobody is told"
            with suppress(StorageUnavailable):
                turn(task)
        assert not task._patience.warning, "there is no end to that wait"
        (tmp_path / "key").write_text(hubs.connection_string)
        while task.report.progress.warning:
            assert boot_time() < until + 60, "it does not go on"
            hubs.send("hub", 0, [b"1"])
            with suppress(StorageUnavailable):
                turn(task)
        task._leaves()
        fixed = hubs.connection_string.replace(KEY, "b3RoZXI=")
        task = Run(tmp_path, HUB_JOB.replace("CONNECT", fixed)).owner(first=True)
        with pytest.raises(AccessDenied, match="refuses its key"):
            turn(task)


def test_what_a_consumer_remembers_goes_from_owner_to_owner_and_from_run_to_run(run: Run) -> None:
    task, after = run.owner(first=True), Remembering(one(0, 3, 3), one(1, 4, 1))
    task._consumer = Remembering(one(0, 1, 1), one(0, 2, 2))
    turn(task)
    task = run.owner()
    assert task._states == {0: b"2", 1: b""}
    after.rows = {0: 2}
    task._consumer = after
    turn(task)
    task._consumer.found = [one(0, 5, 4)]  # read, but not in the log, when it dies
    task._read()
    task = run.owner()
    assert task._states == {0: b"3", 1: b"1"}
    task.follow(Drain(DrainStep.FREEZE, DRAIN))
    turn(task)
    assert task.report.ends is not None
    task.follow(Drain(DrainStep.FLUSH, DRAIN, task.report.ends))
    turn(task)
    following = run.owner(first=True, run="r2", positions=dict(task.report.ends))
    assert following._states == {0: b"3", 1: b"1"}
    assert following._logged == {0: b"", 1: b""}, "its own log has them from its first record on"
    following._consumer = Remembering(one(0, 6, 9))
    following._consumer.rows = {0: 3, 1: 1}
    turn(following)
    assert run.owner(run="r2")._states == {0: b"4", 1: b"1"}


def test_a_reader_of_another_job_is_an_error_and_a_later_owner_of_the_task_is_none(run: Run) -> None:
    class Evicted(Faltering):
        def read(self) -> SystemRows | None:
            raise Superseded("The hub 'h' is read by a newer owner.")

    task = run.owner(first=True)
    task._consumer = Evicted()
    with pytest.raises(ConfigError, match=r"no later owner of this task.*give each job its own: .*consumer_group"):
        turn(task)
    run.owner()
    with pytest.raises(Superseded):
        turn(task)


def test_a_drain_ends_also_if_the_outside_has_another_number_of_partitions(run: Run) -> None:
    run = with_dead_letters(run, 3)
    (run.directory / "made.py").write_text(MADE.replace("def partitions(self): ...", "def partitions(self): return 5"))
    sys.modules.pop("made", None)
    task = run.owner(first=True)
    with pytest.raises(ConfigError, match="Drain the run, write partitions = 5"):
        turn(task)
    task = run.owner()
    task.follow(Drain(DrainStep.FREEZE, DRAIN))
    turn(task)
    assert task.report.ends is not None and task.report.frozen_for == DRAIN
    task.follow(Drain(DrainStep.FLUSH, DRAIN, task.report.ends))
    turn(task)
    assert task.report.phase is Phase.DRAINED


def test_partitions_that_are_added_are_warned_of_and_read_from_their_beginning_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Also though the others began at their ends, and though an owner dies meanwhile. Each event once."""
    monkeypatch.setattr(hub_consumer, "COUNT_S", -looks.LOOK_S)

    def sent(*numbers: int, to: int) -> None:
        hubs.send("hub", to, [b'{"n": %d, "ts": "2026-01-01T00:00:00Z"}' % number for number in numbers])

    def turns(task: SourceTask, is_done: Callable[[], object]) -> None:
        until = boot_time() + 60
        while not is_done():
            assert boot_time() < until, (run.rows(), task.report)
            with suppress(StorageUnavailable):
                turn(task)

    def warned(task: SourceTask) -> bool:
        return "the stream has 3 there by now" in (task.report.progress or Progress()).warning

    with EventHubs({"hub": 2}) as hubs:
        lines = f'"eventhubs"\noptions.connect = "{hubs.connection_string}"\noptions.name = "hub"'
        job = JOB.replace('system = "tail"', f"system = {lines}").replace(
            'options.path = "clicks-{partition}.jsonl"', 'options.start = "newest"'
        )
        sent(-1, to=0), sent(-2, to=1)
        run = Run(tmp_path, job)
        task = run.owner(first=True)
        turns(task, lambda: all(each.position[0] for each in task._partitions.values()))
        sent(0, to=0), sent(1, to=1)
        turns(task, lambda: len(run.rows()) == 2)
        hubs.add_partitions("hub", 1)
        sent(2, 3, to=2), sent(4, to=0)
        turns(task, lambda: len(run.rows()) == 3 and warned(task))
        task._leaves()
        task = run.owner()  # it was killed
        sent(5, to=1)
        turns(task, lambda: len(run.rows()) == 4 and warned(task))
        task.follow(Drain(DrainStep.FREEZE, DRAIN))
        turn(task)
        ends = task.report.ends
        task.follow(Drain(DrainStep.FLUSH, DRAIN, ends))
        turn(task)
        task._leaves()
        sent(6, to=2), sent(7, to=0)

        with pytest.raises(ConfigError, match="write partitions = 3"):
            turn(run.owner(first=True, run="r2", positions=ends))  # with the old job file
        run = Run(tmp_path, job.replace("partitions = 2", "partitions = 3"), run.account)
        task = run.owner(first=True, run="r3", positions=ends)
        turns(task, lambda: len(run.rows("runs/r3/clicks-source-0", 3)) == 4)
        task._leaves()
        both = run.rows() + run.rows("runs/r3/clicks-source-0", 3)
        assert sorted(both) == list(range(8)) and not warned(task)


def test_a_run_that_has_found_no_row_yet_goes_on_beside_partitions_that_were_added(run: Run) -> None:
    """It ended where the owner changed, since no record said that it had ever read."""
    run = with_dead_letters(run, 3)
    made = run.directory / "made.py"
    made.write_text(f"{MADE}    def read(self): ...\n    def warning(self): return 'Look.\\nThere. ' + 'x' * 600\n")
    sys.modules.pop("made", None)
    task = run.owner(first=True)
    turn(task)
    assert (task.report.batch, task.report.progress and task.report.progress.rows) == (0, 0)
    turn(task)
    assert task.report.batch == 0, "one record is enough"
    made.write_text(made.read_text().replace("def partitions(self): ...", "def partitions(self): return 5"))
    sys.modules.pop("made", None)
    task = run.owner()
    turn(task)
    assert task.report.progress is not None
    assert len(task.report.progress.warning) == WARNING_LIMIT


def test_an_outage_makes_no_partition_silent_before_a_look_at_its_end(run: Run) -> None:
    """Its rows may be there, unread: they would be late behind those of another partition that is read first."""
    task = run.owner(first=True)
    consumer = task._consumer = Faltering(one(0, 20, 1), one(1, 20, 1))
    with pytest.raises(StorageUnavailable):
        turn(task)
    for each in task._partitions.values():
        each.rows_at -= 3600.0  # the outage lasts for an hour
    consumer.found = [one(1, 50, 2)]
    with pytest.raises(StorageUnavailable):
        turn(task)
    assert task._writer is not None
    at_20 = (1767225600 + 20 - 1) * 1_000_000
    assert task._writer.frontier_us == at_20
    task._partitions[1].rows_at -= 3600.0
    consumer.is_away = False
    turn(task)
    reader = LogReader(run.blobs, PREFIX, group_id=GROUP)
    assert reader.scan((0, 0)).idle
    consumer.is_away = True  # later than that, which the look has not seen
    with pytest.raises(StorageUnavailable):
        turn(task)
    shown = reader.scan((0, 0))
    assert not shown.idle and shown.frontier_us == at_20
    consumer.is_away = False
    turn(task)
    assert reader.scan((0, 0)).idle


def with_dead_letters(run: Run, most: int) -> Run:
    """The same job, with another connector."""
    (run.directory / "made.py").write_text(MADE)
    system = f'system = "made:Factory"\ndead_letters = {most}'
    return Run(run.directory, JOB.replace('system = "tail"', system).replace("options.path =", "options.unused ="))


def aside(partition: int, *raw: bytes) -> pa.Table:
    told = {"reason": "It is none.", "place": f"in partition {partition}", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    return pa.Table.from_pylist([{"raw": each, **told} for each in raw])


def test_what_is_no_row_is_put_aside_in_the_record_that_has_the_rows_beside_it(run: Run) -> None:
    run = with_dead_letters(run, 3)
    task = run.owner(first=True)
    consumer = task._consumer = Faltering(
        replace(one(0, 7, 3), dead=aside(0, b"a", b"b")),
        SystemRows(1, pa.table({"n": pa.array([], pa.int64()), "ts": []}), (0, 1), dead=aside(1, b"c")),
    )
    consumer.is_away = False
    turn(task)
    assert run.rows() == [7]
    [read] = run.context.pipeline.inputs_of("clicks-dead-0", "r1")
    [producer] = read.producers
    assert (producer.prefix, producer.destinations) == (PREFIX, {2, 3})
    reader = LogReader(run.blobs, PREFIX, producer.destinations, group_id=GROUP)
    scan = reader.scan((0, 0))
    assert [row["raw"] for batch in reader.rows(scan.parts) for row in batch.to_pylist()] == [b"a", b"b", b"c"]
    assert len({part.position for part in scan.parts}) == 1


def test_more_that_is_no_row_than_a_record_may_put_aside_fails_the_task(run: Run) -> None:
    run = with_dead_letters(run, 3)
    task = run.owner(first=True)
    task._consumer = Faltering(replace(one(0, 7, 3), dead=aside(0, b"a", b"b", b"c", b"d")))
    with pytest.raises(
        SamzaAzureError, match=r"4 messages of .*takes 3 such.*dead_letters.*in partition 0: It is none"
    ):
        turn(task)
    assert run.rows() == []


def test_a_stage_keeps_what_is_no_row(run: Run) -> None:
    run = with_dead_letters(run, 3)
    plan = run.context.pipeline.plan
    [kept] = [each for each in plan.stages if each.name == "clicks-dead"]
    assert (kept.inputs, kept.output, kept.tasks, kept.kind) == (("clicks-source",), "clicks-dead", 1, TaskKind.HANDLER)
    task = task_of(run.context, StartTask("clicks-dead-0", 1, 1, True, "r1", GROUP.hex(), {}))
    assert isinstance(task, HandlerTask)
    assert task._calls._schema.names == ["raw", "reason", "place", "time"]


def test_a_stream_whose_added_streams_would_have_no_name_is_refused(run: Run) -> None:
    (source, *_) = run.context.pipeline.plan.stages
    with pytest.raises(ConfigError, match=r"ccc-dead' cannot be used: it should be 1 to 63 letters"):
        dead_letter_stage("c" * 59, source)


class Looking(Faltering):
    """A consumer that looks at the ends itself."""

    def __init__(self, *found: SystemRows) -> None:
        super().__init__(*found)
        self.is_away = False
        self.lags: dict[int, SystemLag | None] = {0: None, 1: None}

    def lag(self, partition: int) -> SystemLag | None:
        return self.lags[partition]


def test_a_partition_is_silent_once_a_look_of_its_connector_has_found_its_end(run: Run) -> None:
    task = run.owner(first=True)
    consumer = task._consumer = Looking(one(0, 20, 1), one(1, 20, 1))
    task._lags = consumer.lag
    turn(task)
    for each in task._partitions.values():
        each.rows_at -= 3600.0
    for lag in (None, SystemLag(1, 10, None, age_s=0.0), SystemLag(0, 0, 0.0, age_s=3600.0)):
        consumer.lags[0] = lag  # no look, one that found rows, one before the silence
        assert not task._is_silent(0)
    consumer.lags[0] = SystemLag(0, 0, 0.0, age_s=5.0)
    assert task._is_silent(0) and not task._is_silent(1)
    task._partitions[0].rows_at -= 3600.0
    for lag in (SystemLag(0, 0, 0.0, age_s=5.0, is_current=False), SystemLag(0, 0, 0.0, age_s=200.0)):
        consumer.lags[0] = lag  # the outside has not answered since, or nobody has looked again
        assert not task._is_silent(0)


def test_what_is_left_outside_is_reported(run: Run) -> None:
    task = run.owner(first=True)
    consumer = task._consumer = Looking()
    task._lags = consumer.lag
    consumer.lags[1] = SystemLag(7, 70, 2.5, age_s=0.0)
    turn(task)
    said = task.report.progress
    assert said is not None
    assert (said.behind, said.behind_sources) == ({"clicks": 70}, {"clicks/1": 70})
    assert (said.lag_rows, said.lag_s) == ({"clicks/1": 7}, {"clicks/1": 2.5})


def with_a_bound(run: Run, size: int = 4_000) -> Run:
    return Run(run.directory, JOB.replace('event_time = "ts"', f'event_time = "ts"\nbacklog.bytes = {size}'))


def fill(run: Run, task: SourceTask) -> None:
    """Let the outside grow until the task waits for its readers."""
    for _ in range(100):
        run.grow(20)
        turn(task)
        if task._waits:
            return
    raise AssertionError("it does not wait")


def start_reader(run: Run) -> HandlerTask:
    reader = task_of(run.context, StartTask("Pass-0", 1, 1, True, "r1", GROUP.hex(), {}))
    assert isinstance(reader, HandlerTask)
    (run.directory / "permit").write_text(str(boot_time() + 3_600))
    reader.start()
    return reader


def read_on(run: Run, task: SourceTask) -> None:
    """Turn by turn, until all that is outside is in the log."""
    until = boot_time() + 30
    while len(run.rows()) < run.written:
        assert boot_time() < until, (task._readers._seen, task.report)
        turn(task)


def test_a_connector_waits_for_its_readers_and_then_goes_on(run: Run) -> None:
    run = with_a_bound(run)
    task = run.owner(first=True)
    fill(run, task)
    assert task.report.progress is not None and task.report.progress.waits_for_readers
    there = run.rows()
    scan = LogReader(run.blobs, PREFIX, group_id=GROUP).scan((0, 0))
    assert 4_000 <= scan.size < 4_000 + max(part.reference.length for part in scan.parts) * 2
    for _ in range(5):
        run.grow(20)
        turn(task)
    successor = run.owner()  # it knows that from the log
    turn(successor)
    assert run.rows() == there and successor._waits

    reader = start_reader(run)
    read_on(run, successor)
    turn(successor)
    assert successor.report.progress is not None and not successor.report.progress.waits_for_readers
    assert sorted(run.rows()) == list(range(run.written))
    reader.release(10)


def test_while_a_connector_waits_no_partition_is_silent(run: Run) -> None:
    run = with_a_bound(run)
    task = run.owner(first=True)
    turn(task)  # it finds nothing
    task._partitions[1].rows_at -= 3_600.0
    assert task._is_silent(1)
    fill(run, task)
    for each in task._partitions.values():
        each.rows_at -= 3_600.0
    assert not task._is_silent(0) and not task._is_silent(1)
    task._readers = Readers(run.context, task.start_message, None)
    assert not task._is_silent(0)  # before it has looked again
    turn(task)
    turn(task)
    for each in task._partitions.values():
        each.rows_at -= 3_600.0
    assert task._is_silent(0) and task._is_silent(1)


def test_a_drain_and_a_release_do_not_wait_for_readers(run: Run) -> None:
    run = with_a_bound(run)
    task = run.owner(first=True)
    fill(run, task)
    task.follow(Drain(DrainStep.FREEZE, DRAIN))
    turn(task)
    ends = task.report.ends
    assert ends is not None
    task.follow(Drain(DrainStep.FLUSH, DRAIN, ends))
    turn(task)
    assert task.report.phase is Phase.DRAINED


def test_readers_are_asked_where_they_stand_only_above_the_bound_and_ever_more_seldom(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, tail, now = list[float](), LogReader.tail, [1_000.0]
    monkeypatch.setattr(readers, "boot_time", lambda: now[0])

    def counted(log: LogReader, index: int | None = None) -> Tail | None:
        asked.append(now[0])
        return tail(log, index)

    monkeypatch.setattr(LogReader, "tail", counted)
    run = with_a_bound(run)
    task = run.owner(first=True)
    for _ in range(4):
        run.grow(1)
        turn(task)
    assert len(asked) == 1, "at the take-over"
    fill(run, task)
    asked.clear()
    for _ in range(1_000):
        now[0] += 0.1
        turn(task)
    assert 15 <= len(asked) <= 25


def test_a_reader_that_has_asked_for_its_end_is_not_waited_for(run: Run) -> None:
    run = with_a_bound(run)
    task = run.owner(first=True)
    fill(run, task)
    reader, _ = take_over(
        run.blobs, "runs/r1/Pass-0", group_id=GROUP, task="Pass-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={},
    )  # fmt: skip
    reader.append(0, kind=Kind.DRAINED)
    run.context.hints.appended("runs/r1/Pass-0", reader.position, None, drained=True)
    read_on(run, task)


def test_rows_before_the_first_record_that_says_how_far_they_are_read_do_not_count(run: Run) -> None:
    """A reader of an earlier release has read them, and appends nothing before there are more."""
    task = run.owner(first=True)
    for _ in range(20):
        run.grow(20)
        turn(task)
    reader, _ = take_over(
        run.blobs, "runs/r1/Pass-0", group_id=GROUP, task="Pass-0", writer=Writer(1, 1), first=True,
        may_append=lambda: True, meta={},
    )  # fmt: skip
    reader.append(0)
    run = with_a_bound(run_again := run)
    run.account, run.blobs, run.written = run_again.account, run_again.blobs, run_again.written
    run.context, run.attempt = replace(run.context, blobs=run.blobs), 1
    successor = run.owner()
    fill(run, successor)
    assert len(run.rows()) > 400


def test_a_stream_in_the_account_has_no_bound(tmp_path: Path, run: Run) -> None:
    (tmp_path / "job.toml").write_text(f"{JOB}backlog.bytes = 4000\n")
    config = Config.load(tmp_path / "job.toml")
    with pytest.raises(PipelineRefused, match=r"streams\.seen\.backlog\.bytes has no effect"):
        analyse_without_spark(load(config), config)


def test_a_row_that_does_not_fit_is_named_and_fails_the_task(run: Run) -> None:
    (run.directory / "clicks-0.jsonl").write_text('{"n": "seven", "ts": "2026-01-01T00:00:00Z"}\n')
    task = run.owner(first=True)
    with pytest.raises(ConfigError, match="seven"):
        turn(task)
    (run.directory / "clicks-0.jsonl").write_text('{"n": 7, "ts": null}\n')
    with pytest.raises(ConfigError, match="'ts' is null"):
        turn(run.owner())


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ('system = "tale"', "streams.clicks.system is 'tale', and that cannot be imported"),
        ('system = "outside:Nothing"', "module 'outside' has no attribute 'Nothing'"),
        ('system = "tail"\nkey = "n"', "streams.clicks.key cannot be relied on"),
        ('system = "tail"\nretention = "1 d"', "streams.clicks.retention has no effect"),
        ('system = "tail"\ndead_letters = 1', "streams.clicks.dead_letters has no effect: tail"),
        ('system = "log"\ndead_letters = 1', "streams.clicks.dead_letters has no effect: a log"),
        ('system = "tail"\noptions.paths = "x"', "streams.clicks.options.paths is not an option of tail"),
    ],
)
def test_a_stream_from_outside_is_refused_with_what_to_write(tmp_path: Path, run: Run, instead: str, said: str) -> None:
    with pytest.raises(PipelineRefused, match=said):
        Run(tmp_path, JOB.replace('system = "tail"', instead))


@pytest.mark.parametrize(
    ("system", "more", "time", "is_refused"),
    [
        ("eventhubs", "", "ts", True),
        ("kafka", "", "ts", True),
        ("eventhubs", 'frontier_lag = "10 s"', "ts", False),
        ("kafka", 'frontier_lag = "0 s"', "ts", False),
        ("eventhubs", 'options.envelope = "offset, enqueued_time"', "enqueued_time", False),
        ("kafka", 'options.format = "raw"', "timestamp", True),
        ("kafka", 'options.format = "raw"\nfrontier_lag = "0 s"', "timestamp", False),
        ("eventhubs", "", "enqueued_time", True),
        ("kafka", 'options.envelope = "timestamp"', "ts", True),
        ("tail", "", "ts", False),
    ],
)
def test_a_time_that_others_have_written_needs_a_lag(
    tmp_path: Path, system: str, more: str, time: str, is_refused: bool
) -> None:
    """Without one each row that is older than another one of its partition would be late, and nobody would say so."""
    job = (
        JOB.replace('"tail"', f'"{system}"').replace('frontier_lag = "1 s"', more).replace("options.path", "options.p")
    )
    (tmp_path / "job.toml").write_text(re.sub(r"\bts\b", time, job))
    said = list(mistakes_of_systems(Config.load(tmp_path / "job.toml").streams, {"seen"}))
    assert len(said) == is_refused
    if said:
        assert f"streams.clicks.frontier_lag is missing: {time!r} is a time of those who write" in said[0]
        assert all(f"frontier_lag = {lag}" in said[0] for lag in ('"10 s"', '"0 s"')) and "[streams.clicks]" in said[0]


def test_the_time_of_the_service_makes_event_time_without_a_lag(tmp_path: Path, run: Run) -> None:
    """It never goes back within a partition."""
    with EventHubs({"hub": 1}) as hubs:
        job = HUB_JOB.replace("CONNECT", hubs.connection_string)
        task = Run(tmp_path, job).owner(first=True)
        hubs.send("hub", 0, [b"first", b"last"])
        until = boot_time() + 60
        while task._partitions[0].position[1] < 2 and boot_time() < until:
            with suppress(StorageUnavailable):
                turn(task)
        enqueued_ms = hubs._hubs["hub"].partitions[0].events[-1].enqueued_ms
        assert (task._partitions[0].position[1], task._frontier_us()) == (2, enqueued_ms * 1000)
        task._leaves()


def read_to(task: SourceTask, number: int) -> None:
    """Let a task read its hub up to an event, and append that."""
    until = boot_time() + 60
    while task._partitions[0].position[1] <= number or task._has_moved:
        assert boot_time() < until, "waited in vain"
        with suppress(StorageUnavailable):
            turn(task)


def test_an_older_owner_that_the_hub_lets_in_again_changes_no_record(tmp_path: Path, run: Run) -> None:
    """The service forgets the newer one with its link. The log does not."""
    with EventHubs({"hub": 1}) as hubs:
        made = Run(tmp_path, HUB_JOB.replace("CONNECT", hubs.connection_string))
        hubs.send("hub", 0, [b"0"])
        older = made.owner(first=True)
        read_to(older, 0)
        newer = made.owner()
        hubs.send("hub", 0, [b"1"])
        read_to(newer, 1)
        newer._leaves()
        older._leaves()  # it was disconnected
        before = made.blobs.read(blob_name(PREFIX, 0), 0)
        until = boot_time() + 60
        while not older._rows:
            assert boot_time() < until, "the hub lets nobody in"
            older._read()
        with pytest.raises(Superseded):
            older._append(Kind.BATCH)
        older._leaves()
        after = made.blobs.read(blob_name(PREFIX, 0), 0)
        assert not isinstance(before, Missing) and not isinstance(after, Missing)
        assert before.data == after.data


def test_two_jobs_read_one_hub_and_each_sees_all(tmp_path: Path, run: Run) -> None:
    """Each in a container and a consumer group of its own."""
    with EventHubs({"hub": 1}) as hubs:
        hubs.add_group("hub", "another")
        jobs = []
        for group in ("$Default", "another"):
            job = HUB_JOB.replace("CONNECT", hubs.connection_string).replace(
                "options.format", f'options.consumer_group = "{group}"\noptions.format'
            )
            jobs.append(Run(tmp_path, job))
        tasks = [each.owner(first=True) for each in jobs]
        for number in range(3):
            hubs.send("hub", 0, [b"%d" % number])
            for task in tasks:
                read_to(task, number)
        assert hubs.readers("hub", 0) == 2
        for task, each in zip(tasks, jobs, strict=True):
            reader = LogReader(each.blobs, PREFIX, frozenset({0}), group_id=GROUP)
            rows = [row for batch in reader.rows(reader.scan((0, 0)).parts) for row in batch["body"].to_pylist()]
            assert rows == [b"0", b"1", b"2"]
            task._leaves()


def test_a_task_that_commits_without_a_wait_reads_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """It found that its time was over before it read anything."""
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    waitless = Run(tmp_path, JOB.replace("[task]", "[task]\ncommit.ms = 0"))
    task = waitless.owner(first=True)
    waitless.grow(4)
    turn(task)
    turn(task)
    assert len(waitless.rows()) == 4


def test_the_rows_of_a_stream_from_outside_are_read_where_the_refusal_says(run: Run) -> None:
    """It said that no log holds the stream, and `follow` waited for rows."""
    task = run.owner(first=True)
    run.grow(10)
    turn(task)
    with pytest.raises(
        ConfigError, match=r"in the system 'tail'\. If they come from there, read 'clicks-source' instead"
    ):
        kept_rows(run.context.config, run.account, "clicks", table_bytes=1 << 20)
    found = kept_rows(run.context.config, run.account, "clicks-source", table_bytes=1 << 20)
    assert sorted(n for _, rows in found.tables() for n in rows["n"].to_pylist()) == list(range(10))


def test_the_plan_has_a_source_stage_in_front_of_the_readers(run: Run) -> None:
    plan = run.context.pipeline.plan
    assert [(each.name, each.inputs, each.kind, each.target) for each in plan.stages] == [
        ("clicks-source", ("clicks",), TaskKind.SOURCE, "tail"),
        ("Pass", ("clicks-source",), TaskKind.HANDLER, ""),
    ]
    assert (plan.sources, plan.readers()) == ({"clicks": 2}, {"clicks-source": ("clicks",)})
    assert facts_told(plan.described["stage clicks-source"]) is TaskKind.SOURCE.facts
    [read] = run.context.pipeline.inputs_of("Pass-0", "r1")
    assert (read.named, [each.prefix for each in read.producers]) == ("clicks", [PREFIX])


def test_the_connector_of_the_documentation_counts(run: Run) -> None:
    """docs/connect.md, as it is written there."""
    text = Path(__file__).parents[2].joinpath("docs", "connect.md").read_text()
    (code,) = (each.split("```")[0] for each in text.split("```python\n")[1:] if "class CounterFactory" in each)
    (run.directory / "counting.py").write_text(code)
    job = JOB.replace('system = "tail"', 'system = "counting:CounterFactory"').replace("options.path", "options.path_")
    job = job.replace('"n bigint not null, ts timestamp"\nevent_time = "ts"\nfrontier_lag = "1 s"', '"n bigint"')
    counted = Run(run.directory, job)
    task = counted.owner(first=True)
    for _ in range(3):
        turn(task)
    assert sorted(counted.rows()) == sorted([*range(100), *range(100)])


def test_a_task_sleeps_until_its_connector_has_something(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or until it is to drain or to close. Else it would sleep for long here."""
    monkeypatch.setattr(source_module, "TOLD_S", 600.0)
    with EventHubs({"hub": 1}) as hubs:
        task = Run(tmp_path, HUB_JOB.replace("CONNECT", hubs.connection_string)).owner(first=True)
        turn(task)
        for wakes in (
            lambda: hubs.send("hub", 0, [b"0"]),
            lambda: task.follow(Drain(DrainStep.FREEZE)),
            task._closes,
        ):
            resting = threading.Thread(target=task._rest, daemon=True)
            resting.start()
            wakes()
            resting.join(60)
            assert not resting.is_alive()
        task._leaves()

"""Each file of a stream is put once, wherever an owner is killed between record and file or wakes up late."""

import io
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samza_azure.application import Stage
from samza_azure.config import Config, Files
from samza_azure.errors import CorruptState, Superseded
from samza_azure.logs.operations import Span
from samza_azure.logs.record import NEEDS, Kind, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.messages import Drain, DrainStep, Phase, Plan, StagePlan, StartTask, TaskKind
from samza_azure.pipeline.analysed import AnalysedStage, AnalysedStream, Pipeline
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.columns import Columns
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.tasks.delivery_task import DeliveryTask
from tests.storage.conftest import AnyAccount
from tests.storage.containers import container_context
from tests.storage.test_sink import JOB, SCHEMA, START

COLUMNS = "at timestamp, number bigint"
GROUP = bytes(16)
FILES = Files("out", 0.0, 1_000, 1 << 20)
FLUSH = Drain(DrainStep.FLUSH)


class DeliveredStream:
    """A stage of two tasks that writes a stream, and the task that puts its rows into a folder."""

    def __init__(
        self, account: AnyAccount, directory: Path, *, roll_records: int = 100, columns: str = COLUMNS
    ) -> None:
        self.blobs = account.blobs()
        count = StagePlan("count", (), "out", 2, partitions=1)
        stage = Stage("count", (), "out", ("number",), "append", print)
        files = StagePlan("out-files", ("out",), "out-files", 1, kind=TaskKind.FILES, target=FILES.folder)
        pipeline = Pipeline(
            Plan((count, files), {}, ""),
            {"count": AnalysedStage(stage, count, None, 1, None, 0)},  # type: ignore[arg-type]
            {"out": AnalysedStream(1, Columns.declared(columns), None, 0.0, "count", (), frozenset())},
            {"out-files": FILES},
        )
        self.context = container_context(account, directory, Config.parse(JOB), pipeline)
        self.logs = [self._log(number, roll_records) for number in range(2)]
        self.attempt = 0

    def _log(self, number: int, roll_records: int) -> LogWriter:
        writer, _ = take_over(
            self.blobs, f"runs/r1/count-{number}", group_id=GROUP, task=f"count-{number}", writer=Writer(1, 1),
            first=True, may_append=lambda: True, meta={"stream": "out"}, limits=LogLimits(roll_records=roll_records),
        )  # fmt: skip
        return writer

    def put(self, log: int, *numbers: int, kind: Kind = Kind.BATCH) -> None:
        self.append(log, pa.table([[START] * len(numbers), list(numbers)], schema=SCHEMA), kind)

    def append(self, log: int, rows: pa.Table, kind: Kind = Kind.BATCH) -> None:
        slices = [one_slice(0, rows)] if len(rows) else []
        end = self.logs[log].append(self.logs[log].last_batch + 1, kind=kind, slices=slices)
        self.context.hints.appended(f"runs/r1/count-{log}", end, None, kind is Kind.DRAINED)

    def owner(self) -> DeliveryTask:
        """The next one, which has taken over."""
        self.attempt += 1
        task = DeliveryTask(
            self.context, StartTask("out-files-0", 1, self.attempt, self.attempt == 1, "r1", GROUP.hex())
        )
        assert task._begin()
        return task

    def dies_before_the_file(self) -> DeliveryTask:
        """An owner that is stopped between its record and the file."""
        task = self.owner()
        delivery = task._sink
        assert delivery is not None
        delivery._may_write = lambda: False
        task._turn()
        assert delivery.position.until is not None
        return task

    def files(self) -> dict[str, list[int]]:
        """The numbers of the rows in each file."""
        return {
            name: pq.read_table(io.BytesIO(self.bytes_of(name)))["number"].to_pylist()
            for name, _ in self.blobs.list("files/")
        }

    def bytes_of(self, name: str) -> bytes:
        found = self.blobs.read(name, 0)
        assert isinstance(found, Span)
        return found.data

    def last(self) -> tuple[Kind, dict[str, int]]:
        """The last record of the task, and what it needs of other logs."""
        tail = LogReader(self.blobs, "runs/r1/out-files-0", group_id=GROUP).tail()
        assert tail is not None
        return tail.header.kind, tail.header.meta.get(NEEDS, {})


def name(number: int) -> str:
    return f"files/out/r1.out-files-0.{number:08d}.parquet"


@pytest.fixture
def memory(tmp_path: Path) -> DeliveredStream:
    return DeliveredStream(MemoryAccount(), tmp_path)


def test_each_row_is_in_one_file_and_a_drain_puts_what_is_left(account: AnyAccount, tmp_path: Path) -> None:
    delivered = DeliveredStream(account, tmp_path)
    task = delivered.owner()
    task._turn()
    assert delivered.files() == {}, "no rows, no file"
    delivered.put(1, 10, 11)
    delivered.put(0, 0, 1)
    task._turn()
    delivered.put(0, 2)
    task._turn()
    assert delivered.files() == {name(0): [0, 1, 10, 11], name(1): [2]}, "log by log"
    delivered.put(0, 3, kind=Kind.DRAINED)
    delivered.put(1, kind=Kind.DRAINED)
    task.follow(FLUSH)
    while not task.is_over:
        task._turn()
    assert delivered.files() == {name(0): [0, 1, 10, 11], name(1): [2], name(2): [3]}
    assert (task.report.phase, delivered.last()[0]) == (Phase.DRAINED, Kind.DRAINED)
    done = task.report.progress
    assert done is not None
    assert (done.rows, done.batches) == (6, 3)


def test_the_next_owner_writes_the_file_that_was_recorded(account: AnyAccount, tmp_path: Path) -> None:
    """With the rows of the record, whatever has come since; and the old owner that wakes up puts no other one."""
    delivered = DeliveredStream(account, tmp_path)
    delivered.put(0, 0, 1)
    delivered.put(1, 10)
    stale = delivered.dies_before_the_file()
    assert delivered.files() == {}
    delivered.put(0, 2)
    task = delivered.owner()
    task._turn()
    assert delivered.files() == {name(0): [0, 1, 10]}
    task._turn()
    assert delivered.files() == {name(0): [0, 1, 10], name(1): [2]}
    first = delivered.bytes_of(name(0))
    delivered.blobs.delete(name(0))  # so that the old owner's own is seen
    assert stale._sink is not None
    stale._sink._may_write = lambda: True
    with pytest.raises(Superseded):
        stale._turn()
    assert delivered.bytes_of(name(0)) == first, "byte by byte"
    assert delivered.files() == {name(0): [0, 1, 10], name(1): [2]}


def test_a_stale_owner_that_has_recorded_nothing_puts_nothing(memory: DeliveredStream) -> None:
    stale, _ = memory.owner(), memory.owner()
    memory.put(0, 0, 1)
    with pytest.raises(Superseded):
        stale._turn()
    assert memory.files() == {}


def test_an_owner_that_dies_behind_the_file_leaves_it_as_it_is(
    memory: DeliveredStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.put(0, 0, 1)
    task = memory.owner()
    assert task._sink is not None
    task._read(task._sink, ends=False)
    assert task._sink.flush()  # its record is missing
    assert memory.files() == {name(0): [0, 1]}
    memory.put(0, 2)
    after = memory.owner()
    after._turn()
    after._turn()
    assert memory.files() == {name(0): [0, 1], name(1): [2]}


def test_an_empty_stream_is_drained_without_a_file(memory: DeliveredStream) -> None:
    task = memory.owner()
    for log in range(2):
        memory.put(log, kind=Kind.DRAINED)
    task.follow(FLUSH)
    task._turn()
    assert (task.report.phase, memory.files(), memory.last()[0]) == (Phase.DRAINED, {}, Kind.DRAINED)


def test_a_foreign_file_under_the_same_name_is_an_error(memory: DeliveredStream) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table([[START], [7]], schema=SCHEMA), out)
    memory.blobs.put(name(0), out.getvalue())
    memory.put(0, 0)
    with pytest.raises(CorruptState, match=r"another program has written it.*r1\.out-files-0\.00000000"):
        memory.owner()._turn()


def test_the_same_rows_in_other_bytes_are_the_same_file(memory: DeliveredStream) -> None:
    """Another release of Arrow may have put it, before its owner died."""
    memory.put(0, 0)
    memory.dies_before_the_file()
    out = io.BytesIO()
    pq.write_table(pa.table([[START], [0]], schema=SCHEMA), out, compression="none")
    memory.blobs.put(name(0), out.getvalue())
    memory.owner()._turn()
    assert memory.bytes_of(name(0)) == out.getvalue()


def test_nan_is_equal_to_nan_in_the_file_of_another_release(account: AnyAccount, tmp_path: Path) -> None:
    """At any depth. Arrow compares it as IEEE 754 does, by which no file with one equals itself."""
    columns = "f float, l array<struct<x: double>>, m map<string, array<struct<x: double>>>"
    delivered = DeliveredStream(account, tmp_path, columns=columns)
    nan, schema = math.nan, Columns.declared(columns).arrow
    values = {"f": [nan, None], "l": [[{"x": nan}, {"x": 1.0}, None], []], "m": [None, [("k", [{"x": nan}])]]}
    rows = pa.table(values, schema=schema)
    delivered.append(0, rows)
    delivered.dies_before_the_file()
    out = io.BytesIO()
    pq.write_table(rows, out, compression="none", row_group_size=1)
    assert delivered.blobs.put(name(0), out.getvalue())
    delivered.owner()._turn()
    assert delivered.last()[0] is Kind.BATCH

    delivered.append(0, rows)
    delivered.dies_before_the_file()
    out, values["m"] = io.BytesIO(), [None, [("k", [{"x": 1.0}])]]
    pq.write_table(pa.table(values, schema=schema), out)
    assert delivered.blobs.put(name(1), out.getvalue())
    with pytest.raises(CorruptState, match="already exists with other rows"):
        delivered.owner()._turn()


@pytest.mark.parametrize("size", [9, 8 << 20])
def test_no_more_is_read_of_a_foreign_file_than_another_release_would_have_written(
    memory: DeliveredStream, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    memory.put(0, 1)
    memory.dies_before_the_file()
    assert memory.blobs.put(name(0), bytes(size))
    task, found = memory.owner(), []
    read = type(memory.blobs).read
    monkeypatch.setattr(type(memory.blobs), "read", lambda self, *where: found.append(read(self, *where)) or found[-1])
    with pytest.raises(CorruptState, match="already exists with other rows"):
        task._turn()
    assert max(len(each.data) for each in found if isinstance(each, Span)) < 2 << 20


def test_the_rows_of_a_file_are_kept_until_it_is_written(tmp_path: Path) -> None:
    """Blobs of the logs that it reads are deleted by what its records need."""
    delivered = DeliveredStream(MemoryAccount(), tmp_path, roll_records=1)
    for number in range(3):
        delivered.put(0, number)
    delivered.dies_before_the_file()
    assert delivered.last()[1] == {}, "from the first blob on"
    task = delivered.owner()
    task._turn()
    ends = delivered.logs[0].position[0]
    assert ends > 0
    assert delivered.last()[1] == {"runs/r1/count-0": ends}


def test_a_delivery_without_rows_still_lets_old_blobs_be_deleted(tmp_path: Path) -> None:
    delivered = DeliveredStream(MemoryAccount(), tmp_path, roll_records=1)
    for _ in range(3):
        delivered.put(0)
    delivered.owner()._turn()
    assert (delivered.files(), delivered.last()[1]) == ({}, {"runs/r1/count-0": delivered.logs[0].position[0]})


def die_between(task: DeliveryTask) -> None:
    """Record and file are there, the record behind them is not."""
    assert task._sink is not None
    task._read(task._sink, ends=False)
    task._sink.flush()


def die_before(task: DeliveryTask) -> None:
    """The record is there, the file is not."""
    assert task._sink is not None
    task._sink._may_write = lambda: False
    task._turn()


def wakes_up(task: DeliveryTask) -> None:
    assert task._sink is not None
    task._sink._may_write = lambda: True
    task._turn()
    task._record()


@pytest.mark.parametrize("seed", range(30))
def test_drawn_owners_that_die_anywhere_deliver_each_row_once(seed: int, tmp_path: Path) -> None:
    """Owners one after the other, each killed somewhere or fenced; the rows are those of the logs, once."""
    dice = random.Random(seed)
    delivered = DeliveredStream(MemoryAccount(), tmp_path, roll_records=dice.choice([1, 3, 100]))
    put = 0
    stale: list[DeliveryTask] = []
    ends: Sequence[Callable[[DeliveryTask], None]] = (die_between, die_before, lambda _: None)
    for _ in range(dice.randint(2, 8)):
        task = delivered.owner()
        for _ in range(dice.randint(0, 4)):
            for _ in range(dice.randint(0, 3)):
                delivered.put(dice.randrange(2), *range(put, put := put + dice.randint(0, 3)))
            task._turn()
        dice.choice(ends)(task)
        stale.append(task)
    last = delivered.owner()
    for task in stale:
        with pytest.raises(Superseded):
            wakes_up(task)
    for log in range(2):
        delivered.put(log, kind=Kind.DRAINED)
    last.follow(FLUSH)
    while not last.is_over:
        last._turn()
    found = delivered.files()
    assert sorted(row for rows in found.values() for row in rows) == list(range(put))
    assert list(found) == [name(number) for number in range(len(found))], "no number is left out"

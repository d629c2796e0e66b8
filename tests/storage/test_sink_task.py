"""The task around a sink: what its log says, and when it ends."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.application import Stage
from samza_azure.config import Config
from samza_azure.logs.record import NEEDS, Kind, Writer
from samza_azure.logs.task_log import LogLimits
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Drain, DrainStep, Phase, Plan, Progress, StagePlan, StartTask, TaskKind
from samza_azure.pipeline.analysed import AnalysedStage, AnalysedStream, Pipeline
from samza_azure.storage.memory import MemoryAccount
from samza_azure.storage.transactions import MemoryTransactions
from samza_azure.stream_io.arrow import one_slice
from samza_azure.stream_io.columns import Columns
from samza_azure.stream_io.log import LogReader, take_over
from samza_azure.tables.store.segments import SegmentStore
from samza_azure.tasks import table_task
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.table_task import TableTask
from tests.storage.test_sink import JOB, SCHEMA, START, TABLE

COLUMNS = Columns.declared("at timestamp, number bigint")
PRODUCER = "runs/r1/count-0"
GROUP = bytes(16)


def yes() -> bool:
    return True


class SinkRun:
    """Storage in memory, and a pipeline whose stage writes two partitions into a table."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        account, rows = MemoryAccount(), MemoryTransactions()
        self.blobs = account.blobs()
        count = StagePlan("count", (), "out", 1, partitions=2)
        publishes = StagePlan(
            "out-table", ("out",), "out-table", 2, kind=TaskKind.TABLE, target=TABLE.name, flush_s=60.0
        )
        stage = Stage("count", (), "out", ("number",), "append", print)
        written_by = AnalysedStage(stage, count, None, 2, None, 0)  # type: ignore[arg-type]
        pipeline = Pipeline(
            Plan((count, publishes), {}, ""),
            {"count": written_by},
            {"out": AnalysedStream(2, COLUMNS, None, 0.0, "count", (), frozenset())},
            {"out-table": TABLE},
        )
        self.store = SegmentStore(rows, self.blobs, TABLE.name, wait=lambda pause: None)
        monkeypatch.setattr(table_task, "segments", lambda name: SegmentStore(rows, self.blobs, name))
        self.changed = threading.Event()
        self.permit: Callable[[], bool] = yes
        self.context = ContainerContext(
            config=Config.parse(JOB),
            pipeline=pipeline,
            blobs=self.blobs,
            positions=account.readers(),
            hints=HintBoard(account.hints(), directory / "hints"),
            directory=directory,
            may_append=self.may_append,
            clean=str,
            changed=self.changed.set,
        )

    def may_append(self) -> bool:
        return self.permit()

    def task(self) -> TableTask:
        return TableTask(self.context, StartTask("out-table-0", 1, 1, True, "r1", GROUP.hex()))


def test_a_sink_without_rows_still_lets_old_blobs_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record says from which blob on it reads, and the table says so before."""
    run = SinkRun(tmp_path, monkeypatch)
    writer, _ = take_over(
        run.blobs, PRODUCER, group_id=GROUP, task="count-0", writer=Writer(1, 1), first=True, may_append=yes,
        meta={"stream": "out"}, limits=LogLimits(roll_records=1),
    )  # fmt: skip
    rows = pa.table([[START], [0]], schema=SCHEMA)
    for batch in range(3):
        writer.append(batch, slices=[one_slice(1, rows)])  # of the other sink's partition
    task, said = run.task(), threading.Event()
    appended = task._append

    def append(kind: Any, began: float) -> None:
        appended(kind, began)
        said.set()

    monkeypatch.setattr(task, "_append", append)
    task.start()
    assert said.wait(20), task.report
    task.release(20)
    last = LogReader(run.blobs, "runs/r1/out-table-0", group_id=GROUP).tail()
    assert last is not None
    assert last.header.meta[NEEDS] == {PRODUCER: writer.position[0]}
    assert f'"{PRODUCER}":[{writer.position[0]},' in run.store.position("r1/out-table-0")


def test_a_task_that_is_released_while_it_starts_stays_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SinkRun(tmp_path, monkeypatch)
    begins, goes_on = threading.Event(), threading.Event()

    def slowly() -> bool:
        begins.set()
        return goes_on.wait(20)

    run.permit = slowly
    task = run.task()
    task.start()
    assert begins.wait(20)
    task.release(0.0)
    assert task.report.phase is Phase.RELEASED
    goes_on.set()
    assert task._ended.wait(20)
    assert task.report.phase is Phase.RELEASED


def test_a_task_that_is_released_before_it_starts_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SinkRun(tmp_path, monkeypatch)
    task = run.task()
    task.release(0.0)
    task.start()
    assert task._ended.wait(20)
    assert LogReader(run.blobs, "runs/r1/out-table-0").opening() is None
    assert task.report.phase is Phase.RELEASED


def test_rows_that_a_table_has_not_published_are_its_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before its first publish; rows that it has read and holds are not in the table yet."""
    run = SinkRun(tmp_path, monkeypatch)
    writer, _ = take_over(
        run.blobs, PRODUCER, group_id=GROUP, task="count-0", writer=Writer(1, 1), first=True, may_append=yes,
        meta={"stream": "out"},
    )  # fmt: skip

    def put(number: int) -> None:
        rows = pa.table([[START], [number]], schema=SCHEMA)
        writer.append(number, slices=[one_slice(0, rows)], frontier_us=5_000_000)
        run.context.hints.appended(PRODUCER, writer.position, None, False)

    def until(holds: Callable[[Progress], bool]) -> Progress:
        deadline = boot_time() + 20
        while (task.count(), task.report.progress)[1] is None or not holds(task.report.progress):
            assert boot_time() < deadline, task.report
            wait.wait(0.02)
        return task.report.progress

    put(0)
    task, wait = run.task(), threading.Event()
    task.start()
    held = until(lambda progress: task._sink is not None and task._sink.has_rows)
    assert held.behind == {"out": writer.position[1] // 2}, "of a log with two partitions, half"
    assert (held.batches, held.watermark_ms, held.size) == (0, None, 0)
    task._flush_s = 0.0
    done = until(lambda progress: progress.batches == 1 and progress.behind == {"out": 0})
    assert (done.rows, done.watermark_ms, done.size > 0) == (1, 5_000, True)
    task._flush_s = 3600.0
    put(1)
    assert until(lambda progress: progress.behind["out"] > 0).batches == 1
    task.release(20)
    assert task._sink is None, "it keeps no rows"


def test_rows_that_a_table_cannot_have_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SinkRun(tmp_path, monkeypatch)
    writer, _ = take_over(
        run.blobs, PRODUCER, group_id=GROUP, task="count-0", writer=Writer(1, 1), first=True, may_append=yes,
        meta={"stream": "out"},
    )  # fmt: skip
    rows = pa.table([[START, None, None], [0, 1, 2]], schema=SCHEMA)
    writer.append(0, kind=Kind.DRAINED, slices=[one_slice(0, rows)])
    task = run.task()
    assert task._begin()
    task.follow(Drain(DrainStep.FLUSH))
    while not task.is_over:
        task._turn()
    done = task.report.progress
    assert done is not None
    assert (task.report.phase, done.rows, task.report.late) == (Phase.DRAINED, 1, 2)

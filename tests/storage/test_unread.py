"""A writer that waits for the tasks that read its stream."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError, TimedOut
from samza_azure.group import control
from samza_azure.group.control import Assignment, Control, RunPhase
from samza_azure.logs.names import source_log
from samza_azure.logs.operations import Pause
from samza_azure.logs.record import Kind, Writer
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.log import LogReader, LogWriter, take_over
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.stream_io.unread import UnreadOfJob
from tests.storage.stored_rows import export

ROWS = pa.table({"number": pa.array(range(50), pa.int64())})
MOST = 3_000


class Job:
    """A run whose one task reads both partitions of `orders`."""

    def __init__(self, **fields: object) -> None:
        self.account = MemoryAccount()
        self.blobs = self.account.blobs()
        self.task: LogWriter | None = None
        known = {"phase": RunPhase.RUNNING, "sources": {"orders": 2}, "readers": {"sum": ("orders",)}, **fields}
        self.control = Control("00" * 16, run_id="r1", tasks={"sum-0": Assignment(None)}, **known)  # type: ignore[arg-type]
        self.blobs.put(control.NAME, control.encode(self.control))

    def writer(self, wait: Callable[[Pause], None] = lambda pause: None, **options: object) -> SourceWriter:
        settings = {"max_backlog_bytes": MOST, **options}
        return SourceWriter(self.blobs, self.account.hints(), "orders", 2, wait=wait, **settings)  # type: ignore[arg-type]

    def read(self, kind: Kind = Kind.BATCH) -> None:
        """Let the task read all that is there."""
        if self.task is None:
            self.task, _ = take_over(
                self.blobs, "runs/r1/sum-0", group_id=bytes(16), task="sum-0", writer=Writer(1, 1), first=True,
                may_append=lambda: True, meta={},
            )  # fmt: skip
        ends = {f"orders/{each}": LogReader(self.blobs, source_log(f"orders/{each}")).tail() for each in range(2)}
        read = {partition: last.end for partition, last in ends.items() if last is not None}
        self.task.append(self.task.last_batch + 1, kind=kind, read=read)

    def unread(self) -> int:
        return UnreadOfJob(self.blobs, "orders", 2).bytes()


def filled(job: Job, writer: SourceWriter) -> int:
    """Write until the writer refuses, and return how often it did not."""
    for number in range(100):
        try:
            writer.write(ROWS)
        except TimedOut:
            return number
        writer.flush()
    raise AssertionError("it takes all")


def test_a_writer_raises_above_the_bound_and_goes_on_when_readers_have_read() -> None:
    job = Job()
    writer = job.writer(backlog_wait_s=0.0)
    times = filled(job, writer)
    assert 1 < times < 20 and MOST <= job.unread() < 2 * MOST
    job.read()
    assert job.unread() == 0
    assert filled(job, writer) == times
    assert len(export(job.blobs, "orders")) == 2 * times * 50
    writer.close()


def test_a_writer_waits_by_default_until_readers_have_read() -> None:
    job, waited = Job(), list[Pause]()

    def wait(pause: Pause) -> None:
        waited.append(pause)
        if len(waited) % 3 == 0:
            job.read()

    with job.writer(wait) as writer:
        for _ in range(40):
            writer.write(ROWS)
            writer.flush()
            assert job.unread() < 2 * MOST
    assert waited and len(export(job.blobs, "orders")) == 2_000


def test_what_other_writers_have_written_counts_a_while_later() -> None:
    job, now = Job(), [0.0]
    writer = job.writer(backlog_wait_s=0.0, now=lambda: now[0])
    writer.write(ROWS)
    with job.writer(max_backlog_bytes=None) as other:
        for _ in range(20):
            other.write(ROWS)
            other.flush()
    writer.write(ROWS)
    now[0] += 11.0
    with pytest.raises(TimedOut):
        writer.write(ROWS)


def test_where_readers_stand_is_not_asked_for_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked, counted = Job(), list[int](), UnreadOfJob.bytes

    def looked(unread: UnreadOfJob) -> int:
        asked.append(counted(unread))
        return asked[-1]

    monkeypatch.setattr(UnreadOfJob, "bytes", looked)
    writer = job.writer(max_backlog_bytes=1 << 30, now=lambda: 0.0)
    for _ in range(20):
        writer.write(ROWS)
        writer.flush()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("fields", "is_bound"),
    [
        ({}, True),
        ({"phase": RunPhase.NONE, "sources": {}, "readers": {}}, True),  # before the first run
        ({"phase": RunPhase.DRAINED}, True),
        ({"sources": {"others": 2}, "readers": {"sum": ("others",)}}, False),
    ],
)
def test_a_stream_that_the_job_does_not_read_has_no_bound(fields: dict[str, object], is_bound: bool) -> None:
    job = Job(**fields)
    with job.writer(max_backlog_bytes=None) as writer:
        writer.write(ROWS)
    assert (job.unread() > 0) is is_bound


def test_a_reader_that_has_asked_for_its_end_does_not_count() -> None:
    job = Job()
    job.read(Kind.DRAINED)
    with job.writer(max_backlog_bytes=None) as writer:
        writer.write(ROWS)
    assert job.unread() == 0


def test_records_without_rows_do_not_count() -> None:
    """A task appends nothing for them, so they would count forever."""
    job = Job()
    for _ in range(20):
        job.writer(max_backlog_bytes=None).close()
    assert job.unread() == 0


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_backlog_bytes is 0"):
        Job().writer(max_backlog_bytes=0)

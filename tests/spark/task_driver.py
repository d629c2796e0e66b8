"""Tasks on one Spark session, driven as a container drives them, and the rows that go in and come out."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from tenacity import retry, retry_if_exception_type, stop_after_delay

from samza_azure.application import Application
from samza_azure.config import Config
from samza_azure.errors import ConfigError, StorageUnavailable
from samza_azure.logs.position import Ends
from samza_azure.machine.clock import boot_time
from samza_azure.messages import Drain, DrainStep, Phase, StartTask
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.query.query_context import QueryContext
from samza_azure.spark.query.starts import Starts
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import DELETE_MAX, Blobs
from samza_azure.stream_io.arrow import decode
from samza_azure.stream_io.listing import first_blobs, log_indexes, stream_of
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.streams.pace import HINTS_BUSY_S
from samza_azure.tasks.gate_files import PermitFile
from samza_azure.tasks.hint_board import HintBoard
from samza_azure.tasks.kinds import task_of
from samza_azure.tasks.secrets import Secrets
from samza_azure.tasks.stage_task import StageTask
from samza_azure.tasks.tasks import LOOK_DRAINING_S

PATIENCE_S = 120.0
JOB = """
[app]
name = "test"
main = "pipeline:app"
[azure.storage]
connect = "UseDevelopmentStorage=true"
"""


def config_of(directory: Path, more: str = "", head: str = JOB) -> Config:
    """A job file with these lines in it."""
    path = directory / f"{uuid.uuid4().hex}.toml"
    path.write_text(head + more)
    return Config.load(path)


@dataclass
class Fleet:
    """One run of one application. Tasks are started and released by hand, as often as a test likes."""

    spark: SparkSession
    account: Account
    config: Config
    application: Application
    directory: Path
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex[:8]}")
    group_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    starts: Starts = field(default_factory=Starts)  # shared by fleets that run at the same time

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.pipeline: Pipeline = analyse_pipeline(
            self.spark, self.application, self.config, self.directory / "analysis"
        )
        self.permit = PermitFile(self.directory / "permit")
        self.hints = HintBoard(self.account.hints(), self.directory / "hints")
        self.drain_order = Drain(None)
        self.tasks: dict[str, StageTask] = {}
        self.generation = 0
        self._hints_due = 0.0
        self._context = QueryContext(
            spark=self.spark,
            config=self.config,
            pipeline=self.pipeline,
            blobs=self.account.blobs(),
            positions=self.account.readers(),
            hints=self.hints,
            directory=self.directory,
            may_append=self.permit.holds,
            clean=Secrets(self.config).removed_from,
            changed=lambda: None,
            starts=self.starts,
        )
        self.allow(3600)

    def allow(self, seconds: float) -> None:
        """Renew the permit."""
        self.permit.set(boot_time() + seconds)

    def start(self, *names: str, first: bool = True) -> None:
        """Start tasks, as a new owner each."""
        self.generation += 1
        for name in names:
            message = StartTask(name, self.generation, 1, first, self.run_id, self.group_id)
            before = self.tasks.get(name)
            task = task_of(self._context, message, before.tried_bytes if before else None)
            assert isinstance(task, StageTask)
            self.tasks[name] = task
            task.follow(self.drain_order)
            task.start()

    def release(self, name: str) -> None:
        """Hand a task over: it is closed here when this returns."""
        task = self.tasks[name]
        task.release(30.0)
        assert task.report.phase in (Phase.RELEASED, Phase.DRAINED)
        if task.begins_to_finish():
            task.finish()

    def move(self, name: str) -> None:
        """To another writer, which knows only the log."""
        self.release(name)
        self.start(name, first=False)

    def look(self, *, but: Sequence[str] = ()) -> None:
        """Look at all tasks and read the hints, as the container does several times a second."""
        if time.monotonic() >= self._hints_due:
            with suppress(StorageUnavailable):  # a container reads them again a moment later
                self.hints.poll()
            self._hints_due = time.monotonic() + HINTS_BUSY_S
        for name, task in self.tasks.items():
            if name in but:
                continue
            task.check(self.drain_order)
            task.count()
            if task.is_over and task.begins_to_finish():
                task.finish()

    def until(self, condition: Callable[[], bool], *, but: Sequence[str] = ()) -> None:
        """Look until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self.look(but=but)
            failed = {name: task.report for name, task in self.tasks.items() if task.report.phase is Phase.FAILED}
            assert not failed, failed
            reports = {name: task.report for name, task in self.tasks.items()}
            assert time.monotonic() < deadline, f"{reports} {[t._gate for t in self.tasks.values()]}"
            time.sleep(LOOK_DRAINING_S)

    def until_all_is_read(self, stream: str) -> None:
        """Until every row of a source stream is in some record."""
        sources = [f"{stream}/{number}" for number in range(self.pipeline.plan.sources[stream])]
        last = last_rows(self._context.blobs, sources)
        self.until(lambda: has_read(self.read(), last))

    def read(self) -> Ends:
        """How far each source partition has been read."""
        return {key: end for task in self.tasks.values() for key, end in (task.report.read or {}).items()}

    def freeze(self, drain: str = "drain-1") -> Ends:
        """The first half of a drain: where each source partition ends."""
        self.order(Drain(DrainStep.FREEZE, drain))
        readers = [task for task in self.tasks.values() if task.reads_source]
        self.until(lambda: all(task.report.frozen_for == drain for task in readers))
        ends: Ends = {}
        for task in readers:
            for partition, position in (task.report.ends or {}).items():
                ends[partition] = max(position, ends.get(partition, (0, 0)))
        return ends

    def flush(self, ends: Ends, drain: str = "drain-1") -> None:
        """Begin the second half."""
        self.order(Drain(DrainStep.FLUSH, drain, ends))

    def leave_between_two_steps(self, name: str) -> None:
        """Flush one task as earlier versions did: first a batch without rows, which sets the watermark to infinity.

        Its log then ends with that batch. After a restart Spark runs no batch by itself; the second step is its reason.
        """
        task = self.tasks[name]

        def is_at_end() -> bool:
            said = task._acknowledgements()
            return len(said) >= len(task.stage.analysis.sources) and all(each.is_at_end for each in said)

        self.until(is_at_end, but=[name])
        task._set_gate(task._gate.changed(step=1))
        self.until(lambda: task._step == 1, but=[name])

    def order(self, drain: Drain) -> None:
        """Tell all tasks."""
        self.drain_order = drain
        for task in self.tasks.values():
            task.follow(drain)

    def is_drained(self) -> bool:
        """Whether all tasks are."""
        return all(task.report.phase is Phase.DRAINED for task in self.tasks.values())

    def drain(self, drain: str = "drain-1") -> None:
        """To the end."""
        self.flush(self.freeze(drain), drain)
        self.until(self.is_drained)

    def close(self) -> None:
        """Leave nothing behind."""
        for task in self.tasks.values():
            if not task.is_over:
                task.release(1.0)
            if task.begins_to_finish():
                task.finish()

    @property
    def late(self) -> int:
        """Rows dropped as late, in all tasks that run now."""
        return sum(task.report.late for task in self.tasks.values())

    def writer(self, stream: str, partitions: int, *, flush_rows: int, event_time: str | None = "ts") -> SourceWriter:
        """Puts rows into a source stream."""
        return SourceWriter(
            self._context.blobs,
            self.account.hints(),
            stream,
            partitions,
            key=self.config.streams[stream].key,
            event_time=event_time,
            flush_rows=flush_rows,
        )

    def rows(self, stream: str) -> list[dict[str, object]]:
        """All rows of an output stream; ConfigError if no task of this run writes it.

        Of this run alone: tests share an account, and a source of another one may have the stream's name.
        """
        blobs = self._context.blobs
        logs = [log for log in first_blobs(blobs, f"runs/{self.run_id}/") if stream_of(blobs, *log) == stream]
        if not logs:
            raise ConfigError(f"No task of {self.run_id} writes {stream}.")
        batches = [batch for log in logs for batch in batches_of(blobs, *log)]
        return pa.Table.from_batches(batches).to_pylist() if batches else []


def batches_of(blobs: Blobs, prefix: str, first: int) -> Iterator[pa.RecordBatch]:
    """All rows of a log, from this blob of it on."""
    reader, position = LogReader(blobs, prefix), (first, 0)
    while True:
        found = reader.scan(position, 32 << 20)
        yield from (batch for data in reader.fetch(found.parts) for batch in decode(data))
        if found.at_end:
            return
        position = found.end


@retry(retry=retry_if_exception_type(StorageUnavailable), stop=stop_after_delay(PATIENCE_S), reraise=True)
def delete_below(account: Account, *prefixes: str) -> None:
    """Delete blobs and hints whose names begin so. An emulator that is late with an answer is asked again."""
    blobs, hints = account.blobs(), account.hints()
    for name in hints.poll():
        if name.startswith(prefixes):
            hints.remove(name)
    for prefix in prefixes:
        names = [name for name, _ in blobs.list(prefix)]
        for start in range(0, len(names), DELETE_MAX):
            blobs.delete_many(names[start : start + DELETE_MAX])


def last_rows(blobs: Blobs, sources: Iterable[str]) -> Ends:
    """Where the last record with rows begins, of each source partition that has any.

    What comes behind it may never be noted as read: a frontier that says nothing new costs no batch.
    """
    found: Ends = {}
    for source in sources:
        reader = LogReader(blobs, f"streams/{source}")
        first, *_ = log_indexes(blobs, f"{reader.prefix}/").get(reader.prefix, [0])  # retention may have deleted some
        scan = reader.scan((first, 0))
        while True:
            if scan.parts:
                found[source] = scan.parts[-1].position
            if scan.at_end:
                break
            scan = reader.scan(scan.end)
    return found


def has_read(read: Ends, last: Ends) -> bool:
    """Whether these records have been read, each to its end."""
    return all(read.get(source, (0, 0)) > position for source, position in last.items())

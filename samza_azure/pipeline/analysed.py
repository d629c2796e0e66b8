"""The pipeline as analysed: what the tasks of a container need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from samza_azure.application import Stage
from samza_azure.config import Files, Outside, TableSettings
from samza_azure.logs.names import source_log, source_partition, stage_and_number, task_log, task_name
from samza_azure.messages import Plan, StagePlan, partitions_of

if TYPE_CHECKING:  # with Arrow: not for `check --quick`
    from samza_azure.stream_io.columns import Columns

#: From a stream's name, its declared schema and its event time: its columns, and those that no row may lack.
Declare: TypeAlias = "Callable[[str, str, str | None], tuple[Columns, frozenset[str]]]"


@dataclass(frozen=True, slots=True)
class Producer:
    """One log that a task reads, and the destinations in it that the task consumes."""

    prefix: str
    destinations: frozenset[int]
    source: str | None = None  # "flights/0" of a source stream; None: a task of this run writes it


@dataclass(frozen=True, slots=True)
class TaskInput:
    """One input of one task."""

    stream: str
    columns: Columns
    producers: tuple[Producer, ...]
    idle_timeout_s: float
    key: tuple[str, ...] = ()  # the columns by which the stream is partitioned
    partitions: int = 0  # of the stream
    #: The columns that the stage relies on to have no nulls.
    not_null: frozenset[str] = frozenset()
    event_time: str | None = None
    named: str = ""  # as the stage names it: a stream from outside is read through another one

    @property
    def is_outside(self) -> bool:
        """Whether its rows come from outside."""
        return self.named != self.stream


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """A time to add to the frontier of an input or, if `reads` is None, to the watermark of the batch."""

    reads: int | None
    shift_us: int = 0

    def later(self, by_us: int) -> Term:
        """This term, later by a number of microseconds."""
        return Term(self.reads, self.shift_us + by_us)


@dataclass(frozen=True, slots=True)
class Watermark:
    """One term of a stage's watermark: the frontier of an input, less the delay that late rows are granted.

    Spark drops a row whose time is the watermark itself, but a row at the frontier is not late. So the watermark of a
    stage that compares times with it stays a millisecond below. A window ends later than the times in it, but a session
    ends at the time of the last row that would extend it.
    """

    reads: int  # the input's number
    delay_ms: int
    below_ms: int = 0


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known about one stage."""

    columns: Columns  # of its output
    fingerprint: tuple[Mapping[str, Any], ...]  # what the state of its operators depends on
    facts: Mapping[str, str]  # the fingerprint for people who compare two pipelines
    #: The input that each of its sources reads, in the order of their offsets. A stage that joins a stream with itself
    #: has more sources than inputs.
    sources: tuple[int, ...] = (0,)
    watermarks: tuple[Watermark, ...] = ()
    frontier: tuple[Term, ...] = ()  # the minimum of these; empty: the stage's records carry no frontier
    stateful: tuple[str, ...] = ()
    state: tuple[str, ...] = ()  # the same operators with their keys, for people
    not_null: frozenset[str] = frozenset()  # the columns of its output that have no nulls
    #: The columns of its inputs, by number, that would make its output wrong if they had nulls.
    relies_on: Mapping[int, frozenset[str]] = field(default_factory=dict)
    puts_out_changes: bool = False  # there may be several rows for one row of a batch
    needs_rocksdb: bool = False
    fires_after_rows: bool = False  # the last rows of a drain and the watermark of infinity may come in one batch
    by_clock: bool = False  # a function with state has timeouts or timers of processing time
    reads_dead: bool = False  # of its input it reads what is no row
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnalysedStage:
    """A stage with everything that its tasks need to run."""

    stage: Stage
    plan: StagePlan
    analysis: Analysis
    partitions: int | None  # of the stream it writes; None: each task writes its own partition
    event_time: str | None  # of the stream it writes
    frontier_lag_us: int


@dataclass(frozen=True, slots=True)
class AnalysedStream:
    """A stream that a stage reads."""

    partitions: int
    columns: Columns
    event_time: str | None
    idle_timeout_s: float
    writer: str | None  # the stage; None: a source stream
    key: tuple[str, ...]  # the columns by which its rows are partitioned; empty if unknown
    not_null: frozenset[str]  # the columns that are promised to have no nulls
    outside: str = ""  # the stream that it brings in from outside
    #: The columns of what is no row of it. In its logs this has the destinations behind those of the partitions.
    dead: Columns | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the container runs."""

    plan: Plan
    stages: Mapping[str, AnalysedStage]
    streams: Mapping[str, AnalysedStream]
    #: By the stage that puts rows there.
    sinks: Mapping[str, TableSettings | Files | Outside] = field(default_factory=dict)

    def sink_of(self, task: str) -> TableSettings | Files | Outside | None:
        """The table, folder or system that a task writes rows to. None if the task runs a query or a handler."""
        return self.sinks.get(self.plan.stage_of(task).name)

    def stage_of(self, task: str) -> AnalysedStage:
        """The stage of a task."""
        return self.stages[self.plan.stage_of(task).name]

    def inputs_of(self, task: str, run_id: str) -> tuple[TaskInput, ...]:
        """What a task reads. The plan fixes the order: offsets refer to producers by their index in it."""
        stage = self.plan.stage_of(task)
        _, number = stage_and_number(task)
        analysed = self.stages.get(stage.name)  # a sink has none
        relies_on = {} if analysed is None else analysed.analysis.relies_on
        found = tuple(
            self._input(stream, number, stage.tasks, run_id, relies_on.get(place, frozenset()))
            for place, stream in enumerate(stage.inputs)
        )
        return tuple(map(self._dead, found)) if analysed is not None and analysed.analysis.reads_dead else found

    def _dead(self, rows: TaskInput) -> TaskInput:
        """What is no row, of the input of a task that would read the rows."""
        columns = self.streams[rows.stream].dead
        assert columns is not None
        producers = tuple(
            replace(each, destinations=frozenset(rows.partitions + number for number in each.destinations))
            for each in rows.producers
        )
        return replace(rows, columns=columns, producers=producers, event_time=None)

    def readers_of(self, prefix: str, run_id: str) -> list[str]:
        """The logs of the tasks that read this log, which belongs to a task or a source partition."""
        return [
            task_log(run_id, reader)
            for reader in self.plan.tasks()
            if any(producer.prefix == prefix for each in self.inputs_of(reader, run_id) for producer in each.producers)
        ]

    def _input(self, name: str, number: int, tasks: int, run_id: str, not_null: frozenset[str]) -> TaskInput:
        stream = self.streams[name]
        mine = partitions_of(number, tasks, stream.partitions)
        if stream.writer is None:
            sources = [source_partition(name, part) for part in mine]
            producers = [Producer(source_log(source), frozenset({0}), source) for source in sources]
        else:
            writer = self.stages[stream.writer]
            # Without partition_by, partition i is written by task i alone.
            writers = mine if writer.partitions is None else range(writer.plan.tasks)
            logs = [task_log(run_id, task_name(stream.writer, number)) for number in writers]
            producers = [Producer(log, frozenset(mine)) for log in logs]
        return TaskInput(
            name,
            stream.columns,
            tuple(producers),
            stream.idle_timeout_s,
            stream.key,
            stream.partitions,
            not_null,
            stream.event_time,
            stream.outside or name,
        )

"""One case on real Spark: as a fleet of tasks and as one batch, and whether both emit the same rows."""

import math
import re
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from samza_azure.application import Application
from samza_azure.errors import ConfigError, PipelineRefused
from samza_azure.logs.names import run_folder, stream_folder
from samza_azure.logs.position import Ends
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.query import launch, task
from samza_azure.spark.query.starts import Starts
from samza_azure.storage.connection import Account
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.log import LogReader
from samza_azure.stream_io.source_stream import SourceWriter
from tests.spark.task_driver import PATIENCE_S, Fleet, config_of, delete_below, has_read, last_rows

from .case import (
    Action,
    Begin,
    Case,
    Cut,
    DrawnInput,
    DrawnStage,
    Move,
    Produce,
    ReadAll,
    code_of,
    job_of,
    with_streams_of_its_own,
)

#: What a message begins its advice with.
ADVICE = re.compile(
    r"(?:^|[.:;,] )(?:or )?(?:use|add|write|set|give|keep|name|declare|split|put|take|break|make|return|say|run|read|"
    r"move|drop|turn|insert|leave|remove|replace|rename|partition|install)\b",
    re.IGNORECASE,
)

#: What a message names as the place in the stage: an operator, an input, or columns of the output.
PLACE = re.compile(
    r"\b(?:aggregation|deduplication|join|limit|limits|state per group|state machine|session windows|"
    r"withWatermark|watermark|applyInPandasWithState|transformWithState)\b|"
    r"\b(?:as event time of stream|columns called|its input)\b"
)

#: With these rules Spark's batch is wrong. With the first, sessions of which only the start is read, without doubles,
#: are not merged, and there is a start for each row (seed 7122257, its first stage on one task). The others move a
#: condition on sessions to the single rows, below their aggregation (seed 34000156, its second stage on one task).
WRONG_RULES = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{each}"
    for each in (
        "RemoveRedundantAggregates",
        "PushDownLeftSemiAntiJoin",
        "PushDownPredicates",
        "PushPredicateThroughNonJoin",
    )
)
EXCLUDED = "spark.sql.optimizer.excludedRules"

#: What Spark says on a machine with too much to do. A processor starts such a task again.
TOO_BUSY = "Python worker failed to connect back"

Rows = Counter[tuple[Any, ...]]
Mistake: TypeAlias = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    verdict: str  # "equal", "refused", "unhelpful" (refused without stage, operator or advice), "wrong"
    reason: str = ""
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """What a shrunken case must share with the one it comes from."""
        return f"{self.verdict}: {self.reason.split(':')[0]}"


@dataclass(frozen=True)
class Bench:
    """What all cases share."""

    spark: SparkSession
    account: Account
    directory: Path
    #: Analysing looks at all queries and settings of the session; so no other thread may start one meanwhile.
    starts: Starts = field(default_factory=Starts)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def run(self, case: Case, during: Mistake = nullcontext) -> Outcome:
        """Run it both ways. `during` is entered while the pipeline is analysed, and nothing else is."""
        begun = time.monotonic()
        outcome = self._caught(case, during)
        while TOO_BUSY in outcome.reason and time.monotonic() < begun + 3 * PATIENCE_S:
            outcome = self._caught(case, during)
        return Outcome(outcome.verdict, outcome.reason, time.monotonic() - begun)

    def _caught(self, case: Case, during: Mistake) -> Outcome:
        try:
            return self._run(case, during)
        except Exception as error:  # noqa: BLE001  # whatever it is, the case is a finding
            return Outcome("wrong", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}")

    def _run(self, case: Case, during: Mistake) -> Outcome:
        case = with_streams_of_its_own(case, uuid.uuid4().hex[:8])
        application = self._application(case)
        directory = self.directory / uuid.uuid4().hex
        try:
            fleet = self._fleet(case, application, directory, during)
        except PipelineRefused as refused:
            message = str(refused)
            return Outcome("refused" if is_helpful(case, message) else "unhelpful", message)
        try:
            play = _Play(fleet, case)
            try:
                play.play()
                found = self._found(fleet, case.stages[-1])
            finally:
                fleet.close()
            read = play.read() if case.cut is not None else None
        finally:
            self._remove(case, fleet.run_id)
        expected = self.batch(case, read)
        if found == expected:
            rows = sum(len(each.rows) for each in case.inputs)
            return Outcome("equal", f"drained after {sum(map(len, read.values()))} of {rows} rows" if read else "")
        if expected != self.batch(case, read, backwards=True):
            return Outcome("wrong", "the fuzzer: the batch depends on the order of rows")
        late = f", {fleet.late} late" if fleet.late else ""
        missing, more = expected - found, found - expected
        return Outcome(
            "wrong",
            f"rows differ: of {expected.total()} rows {missing.total()} missing, {more.total()} too many{late}; "
            f"missing {list(missing)[:3]}, too many {list(more)[:3]}",
        )

    def _remove(self, case: Case, run_id: str) -> None:
        """Remove what a case has stored: each poll reads the hints of all logs, and thousands take long."""
        delete_below(self.account, run_folder(run_id), *(stream_folder(each.name) for each in case.inputs))

    def _application(self, case: Case, *, batch: bool = False) -> Application:
        scope: dict[str, Any] = {"__name__": "drawn_pipeline"}
        exec(compile(code_of(case, batch=batch), f"<case {case.seed}>", "exec"), scope)
        application: Application = scope["app"]
        return application

    def _fleet(self, case: Case, application: Application, directory: Path, during: Mistake) -> Fleet:
        directory.mkdir(parents=True)
        task.SOURCE_START_S = (
            0.0  # saves work where the queries of a fleet start one after the other; here it costs time
        )
        config = config_of(directory, job_of(case))
        launch.TRIGGER_MS = 250  # dozens of queries that look for rows keep a machine busy
        with self.starts.session, during():
            fleet = Fleet(self.spark, self.account, config, application, directory / "fleet", starts=self.starts)
        fleet.generation = 1000 * next(self.numbers)  # queries of one session have different names
        return fleet

    def analysis(self, case: Case, during: Mistake = nullcontext) -> Hashable:
        """What is derived of a case before it runs; None, if it is refused."""
        directory = self.directory / uuid.uuid4().hex
        directory.mkdir(parents=True)
        config = config_of(directory, job_of(case))
        try:
            with self.starts.session, during():
                pipeline = analyse_pipeline(self.spark, self._application(case), config, directory / "analysis")
        except PipelineRefused:
            return None
        stages = sorted(pipeline.stages.items())
        return pipeline.plan.fingerprint, *(
            (name, each.analysis.watermarks, each.analysis.frontier) for name, each in stages
        )

    # The batch.

    def batch(self, case: Case, read: Mapping[str, pa.Table] | None = None, *, backwards: bool = False) -> Rows:
        """The rows that one batch emits over `read`, or else over all rows; `backwards`: in the opposite order."""
        frames = {
            each.name: self._static(each, read[each.name] if read else table_of(each, each.rows), backwards=backwards)
            for each in case.inputs
        }
        application = self._application(case, batch=True)
        with self.starts.session:  # no other thread may see the setting, or the views that SQL makes of DataFrames
            for stage in application.stages:
                frames[stage.output] = stage.function(*(frames[name] for name in stage.inputs))
            last = frames[case.stages[-1].output]
            self.spark.conf.set(EXCLUDED, WRONG_RULES)
            try:
                last._jdf.queryExecution().executedPlan()  # it is kept
            finally:
                self.spark.conf.unset(EXCLUDED)
        return _counted(last.toArrow().to_pylist())

    def _static(self, each: DrawnInput, rows: pa.Table, *, backwards: bool) -> DataFrame:
        rows = rows.take(list(range(len(rows)))[::-1]) if backwards else rows
        return self.spark.createDataFrame(rows, schema=each.ddl)

    def _found(self, fleet: Fleet, last: DrawnStage) -> Rows:
        try:
            rows = fleet.rows(last.output)
        except ConfigError:  # no log has a row
            rows = []
        if last.last_per is None:
            return _counted(rows)
        newest = {tuple(_plain(row[column]) for column in last.last_per): row for row in rows}
        return _counted(list(newest.values()))


def is_helpful(case: Case, message: str) -> bool:
    """Whether a refusal names the stage and an operator, and says what to write."""
    names_stage = any(re.search(rf"\b(?:[Ss]tage|Task) {stage.name}\b", message) for stage in case.stages)
    return bool(names_stage and PLACE.search(message) and ADVICE.search(message))


def table_of(each: DrawnInput, rows: Any) -> pa.Table:
    """Rows of an input, as they are produced."""
    schema = arrow_schema(each.ddl)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _counted(rows: list[dict[str, Any]]) -> Rows:
    return Counter(tuple(_plain(value) for _, value in sorted(row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """A value that can be counted: NaN equals NaN, and 0.0 is -0.0."""
    match value:
        case dict():
            return tuple((name, _plain(inner)) for name, inner in value.items())
        case list():
            return tuple(_plain(inner) for inner in value)
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return value + 0.0
        case bool():
            return str(value)
        case Decimal():
            return f"{value.normalize():f}"
    return value


# The run.


class _Play:
    """One run of a case, from the first row to the end of the drain."""

    def __init__(self, fleet: Fleet, case: Case) -> None:
        self._fleet = fleet
        self._case = case
        self._tasks = fleet.pipeline.plan.tasks()
        self._writers = {each.name: _Writing(fleet, each) for each in case.inputs}
        self._read_before: dict[str, Any] = {}  # by writers that had a task before: the next may find nothing to read
        self._ends: Ends = {}

    def play(self) -> None:
        fleet, cut = self._fleet, self._case.cut
        for action in self._case.actions[: cut.actions if cut else None]:
            self._act(action)
        if cut is None:
            self._produce_the_rest()
            fleet.until(self._all_is_read())
            self._ends = fleet.freeze()
        else:
            self._act(Begin(None))
            self._ends = self._freeze_in_mid_stream(cut)
        fleet.flush(self._ends)
        if self._case.moved_in_flush is not None:
            moved = fleet.tasks[self._name(self._case.moved_in_flush)]
            fleet.until(lambda: moved._gate.step >= 2 or moved.is_over)
            if not moved.is_over:
                fleet.move(moved.name)
        fleet.until(fleet.is_drained)

    def _produce_the_rest(self) -> None:
        for writer in self._writers.values():
            writer.rest()

    def _freeze_in_mid_stream(self, cut: Cut) -> Ends:
        """Where the drain cuts depends on what Spark has done by then. The last rows come when all tasks have
        stopped."""
        fleet = self._fleet
        until = self._batches() + cut.batches
        more = threading.Thread(target=lambda: [writer.half_of_the_rest() for writer in self._writers.values()])
        more.start()
        try:
            fleet.until(lambda: self._batches() >= until or not more.is_alive())
            return fleet.freeze()
        finally:
            more.join()
            self._produce_the_rest()

    def _batches(self) -> int:
        return sum(task.report.batch for task in self._fleet.tasks.values())

    def read(self) -> dict[str, pa.Table]:
        """The rows before the ends, by input."""
        return {each.name: pa.concat_tables(self._read(each)) for each in self._case.inputs}

    def _read(self, each: DrawnInput) -> Iterator[pa.Table]:
        schema = arrow_schema(each.ddl)
        yield schema.empty_table()
        for number in range(each.partitions):
            reader = LogReader(self._fleet._context.blobs, f"streams/{each.name}/{number}")
            for rows in reader.rows(reader.parts((0, 0), self._ends.get(f"{each.name}/{number}", (0, 0)))):
                yield pa.Table.from_batches([rows]).cast(schema)

    def _name(self, number: int) -> str:
        return self._tasks[number % len(self._tasks)]

    def _act(self, action: Action) -> None:
        fleet = self._fleet
        match action:
            case Begin(task=None):
                fleet.start(*(name for name in self._tasks if name not in fleet.tasks))
            case Begin(task=int(number)):
                if (name := self._name(number)) not in fleet.tasks:
                    fleet.start(name)
            case Produce(stream=stream, rows=rows):
                self._writers[stream].write(rows)
            case ReadAll():
                fleet.until(self._all_is_read())
            case Move(task=number, batches=batches):
                if (name := self._name(number)) in fleet.tasks:
                    self._move(name, batches)

    def _move(self, name: str, batches: int) -> None:
        moved, is_read = self._fleet.tasks[name], self._all_is_read()
        until = moved.report.batch + batches
        self._fleet.until(lambda: moved.report.batch >= until or (moved.report.batch >= 0 and is_read()))
        self._fleet.release(name)
        self._read_before.update(moved.report.read or {})
        self._fleet.start(name, first=False)

    def _all_is_read(self) -> Callable[[], bool]:
        """Whether the tasks that run have read all that is produced by now."""
        fleet, blobs = self._fleet, self._fleet._context.blobs
        sources = {
            producer.source
            for name in fleet.tasks
            for each in fleet.pipeline.inputs_of(name, fleet.run_id)
            for producer in each.producers
            if producer.source is not None
        }
        last = last_rows(blobs, sources)
        return lambda: has_read({**self._read_before, **fleet.read()}, last)


class _Writing:
    """The producer of one input."""

    def __init__(self, fleet: Fleet, each: DrawnInput) -> None:
        self._input = each
        self._at = 0
        self._writer: SourceWriter = SourceWriter(
            fleet._context.blobs,
            fleet.account.hints(),
            each.name,
            each.partitions,
            key=each.key,
            event_time=each.event_time,
            frontier_lag_s=0.0 if each.frontier_lag is None else float(each.frontier_lag.split()[0]),
            flush_rows=each.flush_rows,
        )

    def write(self, count: int) -> None:
        rows = self._input.rows[self._at : self._at + count]
        self._at += count
        for start in range(0, len(rows), self._input.flush_rows):
            self._writer.write(table_of(self._input, rows[start : start + self._input.flush_rows]))
            self._writer.flush()

    def half_of_the_rest(self) -> None:
        self.write((len(self._input.rows) - self._at) // 2)

    def rest(self) -> None:
        self.write(len(self._input.rows) - self._at)
        self._writer.close()

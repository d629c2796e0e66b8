"""A task of a stage: it reads logs through sources, by a gate, and appends what comes of a batch as one record.

What runs the batches is a query of Spark's (`spark.query.task`) or the loop of a handler (`handler_task`); either is
stopped after the report, when nobody waits for it: `release` ends with the report, and `finish` does the rest.
"""

import logging
import shutil
import threading
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from samza_azure.config.spark import on_cluster
from samza_azure.errors import SamzaAzureError, Superseded
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.record import INTERMEDIATE
from samza_azure.logs.task_log import BATCH_BYTES_MIN
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.messages import Drain, DrainPhase, Phase, Progress, StartTask
from samza_azure.pipeline.analysed import AnalysedStage, TaskInput
from samza_azure.pipeline.state import check_partitions, check_unchanged, kind_of_state
from samza_azure.stream_io.log import LogWriter, Restored
from samza_azure.stream_io.stored import Replica
from samza_azure.streams.gate import Gate, next_gate, next_steps
from samza_azure.streams.idleness import is_long, quiet_since
from samza_azure.streams.offset import INFINITY_MS, Offset
from samza_azure.streams.pace import raised_bytes
from samza_azure.tasks.checkpoint import NewFiles, Planned, lay_out, planned
from samza_azure.tasks.context import ContainerContext
from samza_azure.tasks.failure import drop_frames, is_waiting_for_storage
from samza_azure.tasks.figures import Counted, Figures
from samza_azure.tasks.forgetting import Forgetting
from samza_azure.tasks.gate_files import Acknowledgement, Spec, write_gate
from samza_azure.tasks.inputs import Inputs
from samza_azure.tasks.life import TaskLife
from samza_azure.tasks.out_of_memory import in_units, too_large, why_too_large
from samza_azure.tasks.records import RecordWriter

log = logging.getLogger(__name__)

#: Spark reports what a batch has read soon after its append. A released task waits at most this long for that report.
COUNT_S = 5.0
COUNT_LOOK_S = 0.02
#: While the outcome of the last append is unknown, the storage is asked again at this interval.
ASK_AGAIN_S = 0.2


class Query(Protocol):
    """What runs a task's batches: Spark's streaming query, or the loop of a handler."""

    @property
    def isActive(self) -> bool:  # noqa: N802  # as Spark calls it
        """Whether it is still running."""

    def exception(self) -> BaseException | None:
        """The error that ended it."""

    def stop(self) -> None:
        """End it."""


class StageTask(TaskLife):
    """One task of a stage under one writer."""

    def __init__(self, context: ContainerContext, start: StartTask, tried_bytes: int | None = None) -> None:
        """`tried_bytes` of input in one batch were too much for this machine before."""
        super().__init__(context, start)
        self.tried_bytes = tried_bytes
        self.stage: AnalysedStage = context.pipeline.stage_of(start.task)
        self.inputs = Inputs(context, start)
        self._state = kind_of_state(context.config.task.state, needs_rocksdb=self.stage.analysis.needs_rocksdb)
        self._most_bytes = context.config.task.batch_bytes  # of input in a batch
        self._directory = context.directory / "tasks" / start.task / f"{start.generation}-{start.attempt}"
        self._gate = Gate()
        self._batches: RecordWriter | None = None
        self._query: Query | None = None
        self._query_lock = threading.Lock()  # held while checkpoint and query are made, and when they are taken away
        self._taken_over = threading.Event()  # or given up: `start` itself appends nothing after this
        self._releasing = self._closed = False
        self._step = 0  # of a drain, as the last record has it
        self._flushing: threading.Thread | None = None
        self._quiet_since: float | None = None
        self._small_batches = 0  # appended while batches must be smaller than usual
        self._forgetting = Forgetting(context, start, self.inputs)
        self._figures = Figures()
        self._counting = threading.Lock()

    @abstractmethod
    def _records(self, checkpoint: Path, *arguments: Any) -> RecordWriter:
        """The writer of its records, with these arguments."""

    @abstractmethod
    def _start_query(self, checkpoint: Path) -> None:
        """Start the query, unless the task has ended meanwhile."""

    @abstractmethod
    def _counted(self) -> Counted:
        """The figures of the batches that are not counted yet."""

    def _fires(self) -> bool:
        """Let all further batches run at the end of time. Return False if that is not possible yet."""
        return False

    def _stopped(self, query: Query) -> None:  # optional
        """Called when the query has been stopped."""

    @property
    def reads_source(self) -> bool:
        """Whether a drain freezes it, because at least one input is a source stream."""
        return any(producer.source for each in self.inputs for producer in each.producers)

    # Starting.

    def start(self) -> None:
        """Restore it and start its query. Runs in a thread of its own; an error ends up in the report."""
        try:
            self._start()
        except Exception as error:  # noqa: BLE001  # the stage's own code runs in there
            self._end_with(error)
        finally:
            self._taken_over.set()
        if self.is_over and self.begins_to_finish():
            self.finish()
        elif self.is_finished.is_set():  # it was released meanwhile
            self._drop()

    def _start(self) -> None:
        with self._context.replicas.taken(self.name, self.prefix) as replica:
            self._start_from(replica)

    def _start_from(self, replica: Replica | None) -> None:
        with self._context.restores:
            if self._is_ending:  # it was released before its turn came
                return
            writer, restored = self._take_over(
                self._meta(),
                self._may_append,
                replica=replica,
                batch_bytes=self._most_bytes,
                tried_bytes=self.tried_bytes,
            )
        self._taken_over.set()
        if restored.drained:
            self._end_drained(read=dict(restored.read))
            return
        check_unchanged(self.name, self._state, restored.files)
        checkpoint = self._directory / "checkpoint"
        with self._query_lock:
            if self._is_ending:
                return
            self._lay_out(checkpoint, writer, restored)
        files = restored.files
        log.info(
            "%s is restored: %d records of its log (%d bytes), and %d bytes of large files were read; %d were here",
            self.name,
            restored.records,
            restored.bytes,
            files.downloaded,
            files.were_here,
        )
        self._start_query(checkpoint)

    def _may_append(self) -> bool:
        """Whether the permit holds and the task is not closed: a release does not wait for a slow take-over."""
        return not self._closed and self._context.may_append()

    def _located(self, checkpoint: Path, files: NewFiles) -> str | None:
        """The URL under which Spark finds the checkpoint, if not that of the local folder. `files` know what is in the
        log.
        """
        return None

    def _lay_out(self, checkpoint: Path, writer: LogWriter, restored: Restored) -> None:
        """Write the files that query and sources need."""
        files = NewFiles(checkpoint, restored.files)
        # With what earlier starts have left, such as a snapshot whose upload had begun before its store was closed. The
        # query of one of them may be ending still (`_start_after` waits for the last start only): nothing that it does
        # counts, since this start has taken over the log. A later start waits until this one is finished.
        shutil.rmtree(self._directory.parent, ignore_errors=True)
        last = lay_out(
            checkpoint,
            restored.files,
            restored.last_batch,
            restored.watermark_us,
            is_stateful=bool(self.stage.plan.stateful),
            places=restored.places,
            location=self._located(checkpoint, files),
            check_partitions=partial(
                check_partitions, self.name, self.stage.plan.name, self.stage.plan.batch_partitions
            ),
        )
        self._step, self.inputs.stands_at = (last.step, last.offsets) if last else (0, ())
        if last:
            self._tell(read=self.inputs.read_to(last.offsets))  # otherwise all its rows seem unread until more arrive
        with self._lock:
            if restored.batch_bytes < self._most_bytes:
                log.info("%s reads at most %s a batch at first", self.name, in_units(restored.batch_bytes))
                self._gate = self._gate.changed(batch_bytes=restored.batch_bytes)
            if self._step >= 1:
                self._gate = self._gate.changed(step=2)
            write_gate(self._directory / "gate", self._gate)
        (self._directory / "acknowledgements").mkdir()
        self._batches = self._records(
            checkpoint,
            self.stage,
            stage_and_number(self.name)[1],
            writer,
            files,
            self.inputs.needs,
            self.inputs.read_to,
            self.inputs.stands,
            self._raised_bytes,
            self._appended,
            self._last_rows,
        )

    def _meta(self) -> dict[str, Any]:
        """The description of its rows in the log's first record."""
        return {
            "stream": self.stage.plan.output,
            "schema": self.stage.plan.schema,
            "partitions": self.stage.partitions or self.stage.plan.tasks,
            "event_time": self.stage.event_time,
            INTERMEDIATE: self.stage.plan.output in self._context.pipeline.streams,  # a drain's clean-up deletes it
        }

    @property
    def _is_ending(self) -> bool:
        return self._releasing or self.is_over

    def _spec(self, number: int, each: TaskInput) -> Path:
        """Write a file with what the source of one input needs to know."""
        context, task = self._context, self._context.config.task
        is_source = any(producer.source for producer in each.producers)
        spec = Spec(
            stream=each.stream,
            producers=[
                (producer.prefix, sorted(producer.destinations), producer.source) for producer in each.producers
            ],
            starts=[self.inputs.starts(producer) for producer in each.producers],
            is_source_stream=is_source,
            group_id=None if is_source else self.start_message.group_id,
            has_watermark=bool(self.stage.analysis.watermarks),
            idle_timeout_s=each.idle_timeout_s,
            commit_s=task.commit_ms / 1000,
            batch_bytes=self._most_bytes,
            not_null=sorted(each.not_null),
            event_time=each.event_time,
            # With several sources, one may see the last step before the others, and the watermark of its batch would
            # make the rows of the others late.
            keeps_last_rows=self.stage.analysis.fires_after_rows and len(self.stage.analysis.sources) == 1,
            key=each.key if is_source else (),
            partitions=each.partitions,
            is_read_here=on_cluster(context.config.spark),
            files={
                "permit": str(context.directory / "permit"),
                "hints": str(context.directory / "hints"),
                "gate": str(self._directory / "gate"),
                "acknowledgements": str(self._directory / "acknowledgements"),
            },
        )
        path = self._directory / f"input-{number}"
        spec.write(path)
        return path

    def _last_rows(self) -> Iterable[pa.RecordBatch]:
        """The rows that a task without state adds at the end of a drain."""
        return ()

    def _appended(self, batch: int, plan: Planned, rows_out: int, watermark_us: int | None) -> None:
        """Called after each record."""
        writer = self._writer
        assert writer is not None
        size, needs = self.inputs.bytes_between(plan.offsets, self._most_bytes), self.inputs.needs()
        self._step, self.inputs.stands_at = plan.step, plan.offsets
        is_drained = plan.step >= 2
        if not is_drained or self.stage.plan.keeps_state:
            self._figures.ran_through = batch
        self._forgetting.appended(writer, needs)
        if self.stage.plan.output in self._context.pipeline.streams:
            self._context.hints.appended(self.prefix, writer.position, writer.frontier_us, is_drained)
        is_first = self.report.appended_at is None
        self._tell(
            batch=batch,
            read=self.inputs.read_to(plan.offsets),
            appended_at=self.report.appended_at or boot_time(),
        )
        watermark_ms = None if watermark_us is None else watermark_us // 1000
        with self._lock:  # `count` changes its other fields
            done = self._report.progress or Progress()
            self._report = replace(
                self._report,
                progress=replace(
                    done,
                    rows_out=done.rows_out + rows_out,
                    size=done.size + size,
                    watermark_ms=watermark_ms,
                    appended_ms=wall_ms(),
                ),
            )
        if is_first or self._gate.draining:
            self._context.changed()
        if is_drained:
            self._end_drained()

    def _raised_bytes(self) -> int:
        """How much input the next batch may have. A bound that was lowered rises again slowly."""
        most = self._most_bytes
        with self._lock:
            now = self._gate.batch_bytes or most
            self._small_batches += now < most
            raised = raised_bytes(now, most, self._small_batches)
            if raised != now:
                self._set_gate(self._gate.changed(batch_bytes=raised))
        return raised

    # Running: the container calls these several times a second.

    def check(self, drain: Drain) -> None:
        """Notice what has happened since the last call, and take the next step of a drain."""
        query, batches, writer = self._query, self._batches, self._writer  # whoever ends the task drops them
        if self.report.phase is not Phase.RUNNING or self._releasing or query is None or batches is None:
            return
        if writer is not None:
            self._forgetting.look(writer)
        said = self._acknowledgements()
        if corrupt := next((each for each in said if each.corrupt), None):
            self._end(Phase.FAILED, SamzaAzureError(corrupt.corrupt), too_old_for=corrupt.too_old_for)
            return
        if batches.error is not None or not query.isActive:
            self._query_ended(batches.error or query.exception())
            return
        self.follow(drain)
        self._advance(batches, drain, said)
        if drain.step is None:  # otherwise the readers of its log would run one batch for that, and another for its end
            self._perhaps_idle(batches, said)

    def _query_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._end(Phase.RESTART)
        else:
            self._end_with(
                error if is_waiting_for_storage(error) or isinstance(error, Superseded) else self._explained(error)
            )

    def _explained(self, error: BaseException) -> BaseException:
        """An out-of-memory error with advice; any other error unchanged."""
        cause = why_too_large(error)
        if cause is None or self._writer is None:
            return error
        try:
            batch, rows, size = self._planned_input()
        except (OSError, SamzaAzureError) as other:
            log.info("%s: what its last batch has read is not known: %s", self.name, other)
            return error
        self.tried_bytes = size or None
        least = min(BATCH_BYTES_MIN, self._most_bytes)
        explained = SamzaAzureError(too_large(self.name, batch, rows, size, cause, least, self._context.config.spark))
        explained.__cause__ = error
        return explained

    def _acknowledgements(self) -> list[Acknowledgement]:
        try:
            return Acknowledgement.read_all(self._directory / "acknowledgements")
        except FileNotFoundError:
            return []  # just being replaced; the next look sees it

    def _perhaps_idle(self, batches: RecordWriter, said: list[Acknowledgement]) -> None:
        """Declare the task idle if all its inputs are idle. Only a live owner may do so."""
        is_open = not batches.idle and self._step < 1 and self.inputs.has_appended(said)
        now, are_quiet = boot_time(), [each.is_quiet for each in said]
        sources = len(self.stage.analysis.sources)
        self._quiet_since = quiet_since(self._quiet_since, now, are_quiet, sources, is_open=is_open)
        if not is_long(self._quiet_since, now, max(each.idle_timeout_s for each in self.inputs)):
            return
        try:
            batches.declare_idle(self.inputs.positions())
        except SamzaAzureError as error:
            log.info("%s could not be declared idle: %s", self.name, error)
            self._quiet_since = None

    @property
    def is_counted(self) -> bool:
        """Whether the report includes all batches that were appended."""
        return self._figures.is_complete

    def count(self) -> None:
        """Add up Spark's figures of each finished batch, and how much is left to read.

        Spark reports a batch a moment after its append, so the last batch only after the task is drained or released.
        """
        with self._counting:  # `finish` counts, too
            self._count(boot_time())

    def _count(self, now: float) -> None:
        is_closed = self.report.phase in (Phase.DRAINED, Phase.RELEASED)
        if self._query is None or not (is_closed or self.report.phase is Phase.RUNNING):
            return
        if is_closed and self.is_counted:
            return
        if not self.is_counted:
            try:
                found = self._counted()
            except Exception as error:  # noqa: BLE001  # the query may be ending
                log.info("%s: its batches could not be counted: %s", self.name, error)
                return
            with self._lock:
                self._report = self._figures.added(self._report, found)
        try:
            behind, of_sources = self.inputs.behind(), self.inputs.behind_sources()
        except SamzaAzureError as error:
            log.info("%s: what it has to read could not be estimated: %s", self.name, error)
            return
        with self._lock:
            self._report = self._figures.paced(self._report, behind, of_sources, now)

    # Draining.

    def follow(self, drain: Drain) -> None:
        """Set the gate to what the drain asks for."""
        with self._lock:
            gate = next_gate(self._gate, drain)
            if gate is self._gate:
                return
            if not gate.draining:
                self._report = replace(self._report, drain=None, ends=None, frozen_for="")
            elif self._report.drain is None:
                self._report = replace(self._report, drain=DrainPhase.REQUESTED)
            self._set_gate(gate)

    def _set_gate(self, gate: Gate) -> None:
        """The caller holds the lock."""
        self._gate = gate
        with suppress(FileNotFoundError):  # no directory yet, then `start` writes it; or no longer
            write_gate(self._directory / "gate", gate)

    def _advance(self, batches: RecordWriter, drain: Drain, said: list[Acknowledgement]) -> None:
        """Take the next step of a drain, if all sources of the task have acknowledged the last one."""
        frozen_for = self.report.frozen_for if self.reads_source else None
        steps = next_steps(self._gate, drain, said, len(self.stage.analysis.sources), frozen_for)
        if DrainPhase.SOURCES_STOPPED in steps:
            offsets = [Offset.from_json(each.offset) for each in said if each.offset is not None]
            ends = self.inputs.read_to([*self.inputs.stands_at, *offsets])
            self._tell(ends=ends, frozen_for=drain.uuid, drain=DrainPhase.SOURCES_STOPPED)
        if DrainPhase.FLUSHING not in steps:
            return
        if not self.stage.plan.stateful:
            self._flush_without_batch(batches, said)
        elif self.inputs.has_put_out(said) and self._fires():
            with self._lock:
                self._set_gate(self._gate.changed(step=2))
                self._report = replace(self._report, drain=DrainPhase.FLUSHING)

    def _flush_without_batch(self, batches: RecordWriter, said: list[Acknowledgement]) -> None:
        """End the log with DRAINED once it has all rows that the sources returned: without state, nothing fires.

        This runs in a thread of its own, because the storage may be slow and the current thread serves all tasks.
        """
        if self._flushing is not None and self._flushing.is_alive():
            return
        ends = [replace(Offset.from_json(each.end), step=2) for each in said if each.end is not None]

        def plan() -> Planned | None:
            # `is_over`: a look that began before the last record may get here after it.
            stands = len(ends) == len(said) and self.inputs.has_put_out(said) and not self._is_ending
            return Planned(INFINITY_MS, tuple(ends)) if stands else None

        def flush() -> None:
            try:
                batches.drain(plan, self._context.config.task.shutdown_ms / 1000)
            except Exception as error:  # noqa: BLE001
                self._end_with(error)

        with self._lock:
            if self._report.drain is DrainPhase.COMMITTED:
                return  # the last record was appended since this look began
            self._report = replace(self._report, drain=DrainPhase.FLUSHING)
        self._flushing = threading.Thread(target=flush, name=f"flush-{self.name}", daemon=True)
        self._flushing.start()

    # Ending.

    def release(self, patience_s: float) -> None:
        """Shut the gate, let the running batch end, close the writer and report that. `finish` does the rest.

        All of this has one deadline, since the next owner does not wait much longer.
        """
        until = boot_time() + patience_s
        self._releasing = True
        with self._lock:
            self._set_gate(self._gate.changed(shut=True))
        self._waited(self._taken_over.wait, until, lambda: None)
        batches = self._batches if not self.is_over else None
        has_ended = batches is None or self._waited(batches.wait, until, batches.ends_at)
        repeated = None if has_ended else self._rows_under_way()
        self._close_writer(min(until, self._haste_until))
        self._released(repeated)

    def _rows_under_way(self) -> int:
        """The input rows of the running batch; -1: unknown."""
        try:
            batch, rows, _ = self._planned_input()
            return rows if self._writer is not None and batch > self._writer.last_batch else -1
        except (OSError, ValueError, SamzaAzureError) as error:
            log.info("%s: what its last batch has read is not known: %s", self.name, error)
            return -1

    def _planned_input(self) -> tuple[int, int, int]:
        """The number of the batch that was planned last, and the rows and bytes of its input."""
        offsets = self._directory / "checkpoint" / "offsets"
        batch = max((int(path.name) for path in offsets.glob("*") if path.name.isdecimal()), default=0)
        rows, size = self.inputs.rows_and_bytes(planned(self._directory / "checkpoint", batch).offsets)
        return batch, rows, size

    def finish(self) -> None:
        """Close the writer, end the query, delete the directory. Whatever the query still does has no effect."""
        try:
            if self.report.phase is Phase.RELEASED:
                self._count_last()
            else:
                self._close_writer(boot_time() + self._context.config.task.shutdown_ms / 1000)
            with self._query_lock:
                query, self._query = self._query, None
            if query is not None:
                query.stop()
                self._stopped(query)
        except Exception as error:  # noqa: BLE001  # Spark may be on its way out; the task's next start waits for us
            log.info("The query of %s did not stop: %s", self.name, error)
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            self.is_finished.set()
            self._drop()

    def _drop(self) -> None:
        """Give up what only a running task needs: the container keeps a task that has ended for its report.

        Most of it is state that waits for the next snapshot, and the input and the output of a batch that failed.
        """
        error = None if self._batches is None else self._batches.error
        self._batches = self._writer = None
        drop_frames(error)

    def _count_last(self) -> None:
        """Wait for a short time until Spark has reported the batch that ran when the task was released."""
        wait, until = threading.Event(), boot_time() + COUNT_S
        while self._query is not None and self._query.isActive and not self.is_counted and boot_time() < until:
            self.count()
            wait.wait(COUNT_LOOK_S)

    def _close_writer(self, until: float) -> None:
        """Allow no more appends, and settle the last one by asking the storage until the deadline, at least once.

        If an append was lost on its way, no read can settle it. The next owner's EPOCH does.
        """
        self._closed = True
        batches, writer = self._batches, self._writer
        if batches is not None:
            batches.closed.set()
        wait = threading.Event()
        while writer is not None and not writer.close() and boot_time() < until:
            wait.wait(ASK_AGAIN_S)

"""Run each stage on nothing while this container has no task, so that the first take-over finds a warm JVM.

Java loads and compiles the classes of a query when it runs for the first time, and Spark generates code for it: on a
take-over that is most of the time until the first append. A standby has that time to spare. A stage with state runs
once more from what its first query has left, since a take-over loads state from files.
Promised: nothing is read, nothing is appended, no file of it is left, and no figure counts it. The first task ends it,
and waits for it only while a query is being started, since queries share the settings of a session. A failure is noted
in the log, and has no other effect. A batch begins while the machine has an idle core, or after a long pause.
Not promised: that no code of the user's runs. A stage's function is called once or twice more, a worker loads its
functions, and those that get many rows at once are called with none. That happens to each task that starts and waits
for rows, too.
"""

import logging
import os
import shutil
import threading

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.logs.names import task_name
from samza_azure.machine.clock import boot_time
from samza_azure.machine.idle import IdleCores
from samza_azure.pipeline.state import kind_of_state
from samza_azure.spark.jvm.late import LateRows
from samza_azure.spark.jvm.leftovers import end_leftovers
from samza_azure.spark.jvm.output import BatchOutput
from samza_azure.spark.jvm.watermark import OwnedWatermark
from samza_azure.spark.pipeline.pipeline import AnalysedQuery
from samza_azure.spark.query.launch import launch, source
from samza_azure.spark.query.query_context import QueryContext
from samza_azure.spark.query.source import NOTHING
from samza_azure.tasks.failure import reported

log = logging.getLogger(__name__)

NAME = "warm-up"
LOOK_S = 0.1
#: A batch begins if this many cores were idle for so long, on a machine of one core half of it. On a machine that is
#: always busy one begins after a pause that leaves nearly all to those who work.
IDLE_CORES, LOOK_AT_CORES_S = 0.5, 0.2
PAUSE_MOST_S = 10.0
#: How many batches a stage has: a worker reads one of the first ones. With state, one more follows it from its files.
BATCHES, BATCHES_RESTORED = 3, 1
#: Longer than windows are.
YEAR_MS = 366 * 86_400_000
#: A stage that takes longer than this has met something that waits.
STAGE_MOST_S = 120.0


class WarmUp:
    """The stages of one container, one after the other, in a thread of its own."""

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin with the first stage. Further calls do nothing."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it, for good. It may run for a moment longer: this does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        began = boot_time()
        stages = [each for each in self._context.pipeline.stages.values() if isinstance(each, AnalysedQuery)]
        # Those with state first: they take longest, and have nearly all that the others need.
        for stage in sorted(stages, key=lambda each: not each.plan.stateful):
            if self._stopped.is_set():
                break
            try:
                is_complete = Trial(self._context, stage, self._stopped, BATCHES).run()
                if is_complete and stage.plan.stateful:
                    Trial(self._context, stage, self._stopped, BATCHES + BATCHES_RESTORED).run()
            except Exception as error:  # noqa: BLE001  # the stage's own code runs in there, and a task will show it
                said = reported(error, self._context.clean).message
                log.info("Stage %s could not be warmed up: %s", stage.plan.name, said)
        shutil.rmtree(self._context.directory / NAME, ignore_errors=True)
        how = "ended for a task" if self._stopped.is_set() else "complete"
        log.info("Warm-up %s after %.1f s", how, boot_time() - began)


class Trial:
    """One query of a stage on nothing, from where the last one has ended until there were so many batches."""

    def __init__(self, context: QueryContext, stage: AnalysedQuery, stopped: threading.Event, batches: int) -> None:
        self._context, self._stage, self._stopped, self._batches = context, stage, stopped, batches
        self._launched = threading.Event()
        self._query: StreamingQuery | None = None
        self._outlet = BatchOutput()
        self._late_rows: LateRows | None = None
        self._watermark: OwnedWatermark | None = None

    def run(self) -> bool:
        """Run its batches. Return whether all are over; an error of its query is raised."""
        await_idle_core(self._stopped)
        name, context = self._stage.plan.name, self._context
        if self._stopped.is_set():
            return False
        read = context.pipeline.inputs_of(task_name(name, 0), NAME)
        frames = [source(context, self._stage, each, NOTHING, str(self._batches)) for each in read]
        with context.starts.session:
            if self._stopped.is_set():  # the session was a task's, and is wanted by the next one
                return False
            query = self._query = launch(
                context,
                self._stage,
                frames,
                str(context.directory / NAME / name),
                self._run_batch,
                state=kind_of_state(context.config.task.state, needs_rocksdb=self._stage.analysis.needs_rocksdb),
                name=f"{NAME}-{name}",
                pool=NAME,
            )
        self._launched.set()
        is_complete, last = False, context.directory / NAME / name / "commits" / str(self._batches - 1)
        try:
            until = boot_time() + STAGE_MOST_S
            while not is_complete and query.isActive and boot_time() < until and not self._stopped.wait(LOOK_S):
                is_complete = last.exists()  # else the next query would repeat that batch
            error = query.exception()
        finally:
            query.stop()
            end_leftovers(context.spark, query)
        if is_complete:
            context.starts.succeeded()
        elif error is not None and not self._stopped.is_set():
            raise error
        return is_complete

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        """Called by Spark: what a task does in a batch, as far as it needs no log."""
        with self._outlet.run(frame) as rows:
            for _ in rows:  # functions that get many rows at once may have some for none
                pass
        if not self._launched.wait(STAGE_MOST_S) or self._query is None:
            return
        spark = self._context.spark
        if self._stage.plan.stateful and self._stage.analysis.watermarks:
            self._late_rows = self._late_rows or LateRows(spark, self._query)
            self._late_rows.uncounted()
        self._watermark = self._watermark or OwnedWatermark(spark, self._query)
        # Batch 2 looks for windows that are over, the others do not: see jvm/searches.py.
        self._watermark.raise_to(batch + 1 + (YEAR_MS if batch > 0 else 0))
        if batch + 1 < self._batches:
            await_idle_core(self._stopped)


def await_idle_core(stopped: threading.Event) -> None:
    """Wait until this machine has a core to spare, for a bounded time."""
    cores, until = IdleCores(), boot_time() + PAUSE_MOST_S
    least = min(IDLE_CORES, (os.cpu_count() or 1) / 2)
    while not stopped.wait(LOOK_AT_CORES_S) and cores.since_last_call() < least and boot_time() < until:
        pass

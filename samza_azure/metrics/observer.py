"""What shows the facts and counts the work of one processor."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from opentelemetry.metrics import MeterProvider, get_meter

from samza_azure.config import doubtful_timing
from samza_azure.group.actions import InsertOwnRow, MergeOwnRow, RenewLease, ReplaceOwnRow, StorageAction
from samza_azure.group.answers import Answer, Trouble
from samza_azure.group.control import BarrierState, Control
from samza_azure.group.drain import rows_to_drain
from samza_azure.group.notice import Left
from samza_azure.group.view import View
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.source_log import SOURCE_LIMITS
from samza_azure.messages import Progress, TaskReport, Use
from samza_azure.metrics.facts import (
    GroupFacts,
    ProcessorFigures,
    all_run,
    facts,
    group_facts,
    moved,
    outcome,
    steps_taken,
)
from samza_azure.metrics.instruments import OF_TASKS, Instruments

log = logging.getLogger(__name__)

#: The least time between two looks of the observer at an unchanged control blob.
LOOK_EVERY_S = 0.1
#: The least time between two counts of the tasks of the group, by the leader.
COUNT_EVERY_S = 1.0


class Observer:
    """Watches one processor. All processors of a process share the instruments, distinguished by an attribute."""

    def __init__(self, processor: str, provider: MeterProvider | None = None) -> None:
        self._instruments = Instruments(get_meter("samza_azure", meter_provider=provider))
        self._who = {"processor": processor}
        self._control: Control | None = None
        self._looked_at = -1e9
        self._led = self._paused = False
        self._balancing_since: float | None = None
        self._slowest_s = 0.0
        self._warned = False
        self._counted_at = -1e9
        self._counted: dict[str, TaskReport] = {}  # by task: the last report whose figures are counted
        self._shown: dict[Any, set[tuple[str, ...]]] = {}  # gauge -> the attributes that have a value
        self._begun = False

    def _begin(self) -> None:
        """Set the first values. At the first turn, not before: an SDK that is set up after us would miss them."""
        import importlib.metadata  # takes long, and commands do not need it

        instruments, self._begun = self._instruments, True
        # A counter that begins with its first event hides that event from a query for an increase.
        for each in (
            instruments.moves,
            instruments.failovers,
            instruments.self_stops,
            instruments.renewals_missed,
            instruments.restarts,
        ):
            each.add(0, self._who)
        for operation in get_args(StorageAction):
            for ended in (outcome(Trouble.UNAVAILABLE), outcome(Trouble.UNSETTLED)):
                instruments.calls.add(0, {**self._who, "operation": operation.__name__, "outcome": ended})
        instruments.build.set(1, {**self._who, "version": importlib.metadata.version("samza-azure")})

    def turned(self, view: View) -> None:
        """A turn is over."""
        if not self._begun:
            self._begin()
        now = view.turn_at or 0.0
        before, after = self._control, view.control if isinstance(view.control, Control) else None
        if after is before and now < self._looked_at + LOOK_EVERY_S:
            return
        self._control, self._looked_at = after, now
        self._show(facts(view))
        if view.leads is not self._led or now >= self._counted_at + COUNT_EVERY_S:  # a change is shown at once
            self._counted_at = now
            self._show_group(group_facts(view))
            self._show_work(view)
        self._show_heartbeat(view, now)
        if view.leads and after is not None:
            if before is not None and after is not before:
                self._published(view, before, after, now)
            if self._balancing_since is not None and all_run(view, after):
                self._instruments.rebalance.record(now - self._balancing_since, self._who)
                self._balancing_since = None
        else:
            self._balancing_since = None
        self._led = view.leads

    def reported(self, report: TaskReport) -> None:
        """The container reports on a task: count what it has done since its last report, under the same attempt.

        The last figures of a task come when it is released, or after that, when the view may have forgotten it.
        """
        before = self._counted.get(report.task)
        if before is not None and (report.generation, report.attempt) < (before.generation, before.attempt):
            return
        self._counted[report.task] = report
        if before is not None and (report.generation, report.attempt) > (before.generation, before.attempt):
            before = None
        who = {**self._who, "stage": stage_and_number(report.task)[0]}
        for each in OF_TASKS:
            more = each.value(report) - (each.value(before) if before is not None else 0)
            if more > 0 or "phase" not in each.attributes:  # only queries have phases
                self._instruments.of_tasks[each.name].add(max(more, 0), {**who, **each.attributes})
        new, old = report.progress or Progress(), (before.progress if before is not None else None) or Progress()
        batches = new.batches - old.batches
        for _ in range(batches):
            self._instruments.batches.record((new.seconds - old.seconds) / batches, who)

    def container_lost(self) -> None:
        """The container has ended unasked."""
        self._instruments.restarts.add(1, self._who)

    def container_uses(self, use: Use) -> None:
        """The container and its processes use so much of the machine."""
        self._instruments.memory.set(use.memory, self._who)
        self._instruments.cpu.set(use.cpu, self._who)
        self._instruments.heap.set(use.heap, self._who)
        self._instruments.heap_most.set(use.heap_most, self._who)

    def called(self, action: StorageAction, answer: Answer, seconds: float) -> None:
        """A call on the storage account has ended, with an answer or without."""
        instruments, result = self._instruments, outcome(answer)
        instruments.calls.add(1, {**self._who, "operation": type(action).__name__, "outcome": result})
        if isinstance(action, MergeOwnRow | InsertOwnRow | ReplaceOwnRow):
            instruments.heartbeat_latency.record(seconds, {**self._who, "outcome": result})
            self._slowest_s = max(self._slowest_s, seconds)
        if isinstance(action, RenewLease) and result != "done":
            instruments.renewals_missed.add(1, self._who)

    def _show(self, now: ProcessorFigures) -> None:
        instruments = self._instruments
        instruments.leader.set(int(now.leads), self._who)
        instruments.epoch.set(now.epoch, self._who)
        instruments.version.set(now.version, self._who)
        instruments.owned.set(now.owned, self._who)
        instruments.running.set(now.running, self._who)
        instruments.idle.set(now.owned - now.running, self._who)
        instruments.ignored.set(now.ignored, self._who)
        instruments.strangers.set(now.strangers, self._who)
        instruments.kept.set(now.kept, self._who)
        instruments.decommission.set(now.decommission, self._who)
        for why in Left:
            instruments.not_handed_over.set(now.not_handed_over.get(why, 0), {**self._who, "reason": str(why)})
        instruments.replicas.set(now.replicas, self._who)
        instruments.replicas_size.set(now.replicas_size, self._who)
        instruments.replicas_behind.set(now.replicas_behind, self._who)

    def _show_group(self, now: GroupFacts) -> None:
        instruments = self._instruments
        instruments.members.set(now.members, self._who)
        instruments.tasks.set(now.tasks, self._who)
        instruments.tasks_running.set(now.running, self._who)
        instruments.drain_step.set(now.drain_step, self._who)
        instruments.drain_age.set(now.drain_age_s, self._who)
        instruments.failed.set(int(now.failed), self._who)

    def _show_work(self, view: View) -> None:
        """Show how far behind our tasks are."""
        ages, to_drain = dict[tuple[str, ...], float](), Counter[tuple[str, ...]]()
        behind, behind_rows = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        lag_rows, lag_s = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
        waiting, warned = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for task, local in view.work.tasks.items():
            report = local.report
            if report is None or local.closed:
                continue
            (stage, _), now = stage_and_number(task), report.progress or Progress()
            if now.watermark_ms is not None:
                ages[(stage,)] = max(ages.get((stage,), 0.0), (view.wall_ms - now.watermark_ms) / 1000)
            for stream, size in now.behind.items():
                behind[stream, stage] += size
                behind_rows[stream, stage] += sum(now.lag_rows.values()) if now.lag_rows else now.rows_in(size)
            lag_rows |= {tuple(each.split("/")): float(rows) for each, rows in now.lag_rows.items()}
            lag_s |= {tuple(each.split("/")): seconds for each, seconds in now.lag_s.items()}
            if now.waits_for_readers:
                waiting[(stage,)] += 1
            if now.warning:
                warned[(stage,)] += 1
            if (rows := rows_to_drain(self._control, report, SOURCE_LIMITS.roll_bytes)) is not None:
                to_drain[(stage,)] += rows
        self._set_all(self._instruments.watermark_age, ("stage",), ages)
        self._set_all(self._instruments.backlog, ("stream", "stage"), behind)
        self._set_all(self._instruments.backlog_rows, ("stream", "stage"), behind_rows)
        self._set_all(self._instruments.lag_rows, ("stream", "partition"), lag_rows)
        self._set_all(self._instruments.lag, ("stream", "partition"), lag_s)
        self._set_all(self._instruments.waiting, ("stage",), waiting)
        self._set_all(self._instruments.warned, ("stage",), warned)
        self._set_all(self._instruments.drain_rows, ("stage",), to_drain)

    def _set_all(self, gauge: Any, names: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> None:
        """Set the values, and 0 for attributes that are gone: a gauge would keep its last value forever."""
        for gone in self._shown.get(gauge, set()) - values.keys():
            gauge.set(0, {**self._who, **dict(zip(names, gone, strict=True))})
        for each, value in values.items():
            gauge.set(value, {**self._who, **dict(zip(names, each, strict=True))})
        self._shown[gauge] = set(values)

    def _show_heartbeat(self, view: View, now: float) -> None:
        if not view.own.beat:
            return
        self._instruments.heartbeat_age.set(now - view.own.accepted_at, self._who)
        denied = min((each.since for each in view.calls.denied.values()), default=now)
        self._instruments.denied.set(now - denied, self._who)
        paused = view.own.etag is not None and now > view.permit_until
        if paused and not self._paused:
            self._instruments.self_stops.add(1, self._who)
        self._paused = paused
        doubt = None if self._warned else doubtful_timing(view.timing, self._slowest_s)
        if doubt is not None:  # said once
            self._warned = True
            log.warning(doubt)

    def _published(self, view: View, before: Control, after: Control, now: float) -> None:
        """The control blob changed under this leader: by its own write, or by the last one of its predecessor."""
        instruments = self._instruments
        if not self._led and before.leader is not None and before.leader != view.member:
            instruments.failovers.add(1, self._who)
        if before.version != after.version:
            instruments.moves.add(moved(before, after), self._who)
            self._balancing_since = now
        if after.barrier != before.barrier and after.barrier.state is not BarrierState.START:
            attributes = {**self._who, "outcome": str(after.barrier.state)}
            instruments.barrier.record(max(now - view.as_leader.barrier_since, 0.0), attributes)
        for step, seconds in steps_taken(before.drain, after.drain):
            instruments.drain.record(seconds, {**self._who, "step": step})

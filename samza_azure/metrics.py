"""The metrics of a processor, by OpenTelemetry.

Nothing is decided or requested here: one observer looks at the `View` after each turn, and is called after each call
on the storage account. Only OpenTelemetry's API is needed. Without an SDK every instrument is a no-op; any SDK and
exporter of the process, such as Azure Monitor's, gets everything. `serve` sets up its own.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_args

from opentelemetry import metrics as opentelemetry
from opentelemetry.metrics import Meter, MeterProvider

from samza_azure.config import doubtful_timing
from samza_azure.errors import ConfigError
from samza_azure.group.actions import InsertOwnRow, MergeOwnRow, RenewLease, ReplaceOwnRow, StorageAction
from samza_azure.group.answers import Absent, Answer, Denied, Kept, No, TooLarge, Trouble, Unchanged
from samza_azure.group.control import BarrierState, Control, RunPhase
from samza_azure.group.drain import rows_to_drain
from samza_azure.group.notification import DrainNotification
from samza_azure.group.reports import report_of
from samza_azure.group.requests import ignored
from samza_azure.group.rows import ProcessorRow
from samza_azure.group.tasks import assigned
from samza_azure.group.timing import SELF_STOP
from samza_azure.group.view import View
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.source_log import SOURCE_LIMITS
from samza_azure.messages import DrainStep, Phase, Progress

log = logging.getLogger(__name__)

#: The bounds of the histograms, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: The least time between two looks of the observer at an unchanged control blob.
LOOK_EVERY_S = 0.1
#: The least time between two counts of the tasks of the group, by the leader.
COUNT_EVERY_S = 1.0
#: For how long the next leader reports a failed run. The processors of a run that fails end at once, before their
#: metrics are collected; so the incarnations that an orchestrator starts next report the failure.
FAILED_FOR_MS = 15 * 60 * 1000
#: A machine may run several processors from one job file; each takes the first free port from the configured one on.
PORTS = 100


class Instruments:
    """All instruments. Do not change their names: dashboards and alerts refer to them."""

    def __init__(self, meter: Meter) -> None:
        gauge, counter = meter.create_gauge, meter.create_counter
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS)
        self.leader = gauge("samza_azure.leader", description="1 while this processor leads, else 0")
        self.epoch = gauge("samza_azure.epoch", description="The epoch of the leadership that this processor knows of")
        self.version = gauge("samza_azure.version", description="The job model that this processor has adopted")
        self.owned = gauge("samza_azure.tasks.owned", description="Tasks that the job model gives to this processor")
        self.running = gauge("samza_azure.tasks.running", description="Owned tasks that run, or are drained")
        self.idle = gauge("samza_azure.tasks.not_running", description="Owned tasks that do not run")
        self.strangers = gauge(
            "samza_azure.rows.ignored",
            description="Rows among the members' that no processor wrote, reported by the leader",
        )
        self.kept = gauge(
            "samza_azure.clean_up.kept",
            description="Blobs of drained runs that a policy or a hold protects from deletion, reported by the leader",
        )
        self.ignored = gauge("samza_azure.requests.ignored", description="Invalid request rows, reported by the leader")
        self.members = gauge("samza_azure.group.members", description="Live processors, reported by the leader")
        self.tasks = gauge("samza_azure.group.tasks", description="Tasks of the run, reported by the leader")
        self.tasks_running = gauge(
            "samza_azure.group.tasks.running",
            description="Tasks that run under their present owner, or are drained, reported by the leader",
        )
        self.drain_step = gauge(
            "samza_azure.drain.step",
            description="0 without a drain, then 1 FREEZE, 2 FLUSH, 3 drained; reported by the leader",
        )
        self.drain_age = gauge(
            "samza_azure.drain.age",
            unit="s",
            description="Time since the drain reached its step, 0 without a drain; reported by the leader",
        )
        self.drain_rows = gauge(
            "samza_azure.drain.rows",
            description="About how many rows a stage's tasks here have to read before they flush",
        )
        self.failed = gauge(
            "samza_azure.run.failed", description="1 if the run failed in the last 15 minutes, reported by the leader"
        )
        self.build = gauge("samza_azure.build.info", description="1; its attribute is the release")
        self.heartbeat_age = gauge(
            "samza_azure.heartbeat.age", unit="s", description="Time since the last accepted heartbeat was sent"
        )
        self.heartbeat_latency = histogram(
            "samza_azure.heartbeat.latency", description="From sending a heartbeat to its answer"
        )
        self.barrier = histogram(
            "samza_azure.barrier.duration", description="From publishing a version to its END or TIMEOUT"
        )
        self.rebalance = histogram(
            "samza_azure.rebalance.duration", description="From publishing a version until all its tasks run"
        )
        self.drain = histogram(
            "samza_azure.drain.duration",
            description="How long a drain took to reach a step, since it was asked for or since the step before",
        )
        self.moves = counter("samza_azure.moves", description="Tasks that were given to another owner")
        self.failovers = counter("samza_azure.failovers", description="Leaderships taken over from a silent leader")
        self.self_stops = counter(
            "samza_azure.self_stops", description="Pauses because no heartbeat was accepted in time"
        )
        self.denied = gauge(
            "samza_azure.access.denied",
            unit="s",
            description="Time since the account began to refuse calls that it allowed before",
        )
        self.renewals_missed = counter("samza_azure.lease.renewals_missed", description="Unconfirmed renewals")
        self.rows = counter(
            "samza_azure.task.rows",
            description="Rows, by stage; direction in: read, out: written, late: dropped as late",
        )
        self.bytes = counter(
            "samza_azure.task.bytes", unit="By", description="Bytes of the logs that were read, by stage"
        )
        self.batches = histogram(
            "samza_azure.task.batch.duration",
            description="Duration of a batch, by stage; the mean if several were reported at once",
        )
        self.watermark_age = gauge(
            "samza_azure.task.watermark.age", unit="s", description="Age of the oldest watermark of a stage's tasks"
        )
        self.backlog = gauge(
            "samza_azure.stream.backlog",
            unit="By",
            description="About how many bytes of a stream a stage's tasks here have not read yet, or not published",
        )
        self.backlog_rows = gauge(
            "samza_azure.stream.backlog.rows",
            description="About how many rows the backlog has, by the mean size of the rows read so far",
        )
        self.restarts = counter("samza_azure.container.restarts", description="Containers that ended unasked")
        self.memory = gauge(
            "samza_azure.container.memory", unit="By", description="Memory of the container and its processes"
        )
        self.calls = counter("samza_azure.storage.calls", description="Storage calls, by operation and outcome")


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The leader's figures of the whole group. Followers report 0, so the maximum over all is the leader's."""

    members: int = 0
    tasks: int = 0
    running: int = 0
    drain_step: int = 0
    failed: bool = False
    drain_age_s: float = 0.0


def group_facts(view: View) -> GroupFacts:
    """The present values of the group's gauges.

    Whether a task runs is read from its owner's row, unless the owner has been silent for so long that it has paused
    itself; so the tasks of a killed processor stop counting within one timeout. After a drain all tasks count as
    running: the blob still names the run's owners, which have ended, while others may wait for the upgrade.
    """
    control = view.control
    if not view.leads or not isinstance(control, Control):
        return GroupFacts()
    rows = _rows(view)
    alive = sum(row.alive for row in rows.values())
    drain = control.drain.step if control.drain is not None else None
    step = 3 if control.phase is RunPhase.DRAINED else 0 if drain is None else _STEPS[drain]
    at_work = len(control.tasks) if control.phase is RunPhase.DRAINED else running(view, control)
    age_s = _drain_age_s(control, view.wall_ms)
    return GroupFacts(alive, len(control.tasks), at_work, step, _has_failed(control, view.wall_ms), age_s)


def _drain_age_s(control: Control, now_ms: int) -> float:
    """Seconds since the drain reached its step, by the clock of the leader that took it and of the present one."""
    drain = control.drain
    if drain is None or control.phase is RunPhase.DRAINED or not drain.at_ms or not drain.at_ms[-1]:
        return 0.0
    return max(now_ms - drain.at_ms[-1], 0) / 1000


def _has_failed(control: Control, now_ms: int) -> bool:
    """Whether the run has failed lately. Processors that start again resume it, and find the event in the blob."""
    noted = any(each.kind == "failed" and now_ms < each.at_ms + FAILED_FOR_MS for each in control.events)
    return noted or control.phase is RunPhase.FAILED


_STEPS = {DrainStep.FREEZE: 1, DrainStep.FLUSH: 2}


@dataclass(frozen=True, slots=True)
class ProcessorFigures:
    """The figures of one processor."""

    leads: bool = False
    epoch: int = 0
    version: int = 0
    owned: int = 0
    running: int = 0
    ignored: int = 0
    strangers: int = 0
    kept: int = 0


def facts(view: View) -> ProcessorFigures:
    """The present values of a processor's gauges."""
    control = view.control
    if not isinstance(control, Control):
        return ProcessorFigures()
    mine = assigned(view)
    running = 0
    for task, owner in mine.items():
        local = view.work.tasks.get(task)
        running += local is not None and local.generation == owner.generation and local.phase in _AT_WORK
    strange = ignored(control, view.office.requests) if view.leads else 0
    strangers = sum(not row.is_ours for row in view.others.members.values()) if view.leads else 0
    kept = sum(control.kept.values()) if view.leads else 0
    return ProcessorFigures(view.leads, control.epoch, control.version, len(mine), running, strange, strangers, kept)


_AT_WORK = (Phase.RUNNING, Phase.DRAINED)


def outcome(answer: Answer) -> str:
    """The kind of an answer, in a word or two, as a metric's attribute."""
    match answer:
        case Trouble():
            return answer.name.lower()
        case No():
            return "refused"
        case Absent():
            return "absent"
        case Unchanged():
            return "unchanged"
        case TooLarge():
            return "too large"
        case Denied():
            return "denied"
        case Kept():
            return "kept"
    return "done"


def moved(before: Control, after: Control) -> int:
    """How many tasks moved from one owner to another."""
    return sum(
        earlier.owner is not None and later.owner is not None and earlier.owner.member != later.owner.member
        for task, later in after.tasks.items()
        if (earlier := before.tasks.get(task)) is not None
    )


def steps_taken(before: DrainNotification | None, after: DrainNotification | None) -> list[tuple[str, float]]:
    """The steps that a drain has taken since `before`, and the seconds that each took by the leaders' clocks."""
    if after is None:
        return []
    told = len(before.history) if before is not None and before.uuid == after.uuid else 0
    times = list(zip(after.history, (after.asked_ms, *after.at_ms), after.at_ms, strict=False))
    return [(step, max(at - since, 0) / 1000) for step, since, at in times[told:] if since and at]


def running(view: View, control: Control) -> int:
    """How many tasks run under their present owner, as the last scan saw it."""
    rows, count = _rows(view), 0
    # A processor that was silent for so long has paused itself by now, if it is alive at all.
    mute = {name for name, age in view.others.ages.items() if age.silent(SELF_STOP * view.timing.heartbeat_timeout_s)}
    for task, assignment in control.tasks.items():
        owner, report = assignment.owner, report_of(task, assignment.owner, rows)
        if owner is not None and report is not None and report.phase in _AT_WORK:
            count += rows[owner.processor].alive and owner.processor not in mute - {view.me}
    return count


def all_run(view: View, control: Control) -> bool:
    """Whether every task runs under its present owner, as the last scan saw it."""
    return running(view, control) == len(control.tasks)


def _rows(view: View) -> Mapping[str, ProcessorRow]:
    return view.others.members if view.life.written is None else {**view.others.members, view.me: view.life.written}


class Observer:
    """Watches one processor. All processors of a process share the instruments, distinguished by an attribute."""

    def __init__(self, processor: str, provider: MeterProvider | None = None) -> None:
        self._instruments = Instruments(opentelemetry.get_meter("samza_azure", meter_provider=provider))
        self._who = {"processor": processor}
        self._control: Control | None = None
        self._looked_at = -1e9
        self._led = self._paused = False
        self._balancing_since: float | None = None
        self._slowest_s = 0.0
        self._warned = False
        self._counted_at = -1e9
        self._done: dict[tuple[str, int, int], tuple[Progress, int]] = {}  # by task and attempt, as reported last
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

    def container_lost(self) -> None:
        """The container has ended unasked."""
        self._instruments.restarts.add(1, self._who)

    def container_uses(self, size: int) -> None:
        """The container and its processes use `size` bytes of memory."""
        self._instruments.memory.set(size, self._who)

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

    def _show_group(self, now: GroupFacts) -> None:
        instruments = self._instruments
        instruments.members.set(now.members, self._who)
        instruments.tasks.set(now.tasks, self._who)
        instruments.tasks_running.set(now.running, self._who)
        instruments.drain_step.set(now.drain_step, self._who)
        instruments.drain_age.set(now.drain_age_s, self._who)
        instruments.failed.set(int(now.failed), self._who)

    def _show_work(self, view: View) -> None:
        """Show what our tasks have done since the last look, and how far behind they are."""
        ages, to_drain = dict[tuple[str, ...], float](), Counter[tuple[str, ...]]()
        behind, behind_rows = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        done: dict[tuple[str, int, int], tuple[Progress, int]] = {}
        for task, local in view.work.tasks.items():
            report = local.report
            if report is None:
                continue
            stage, _ = stage_and_number(task)
            attempt = task, report.generation, report.attempt
            now = done[attempt] = report.progress or Progress(), report.late
            self._add_work({**self._who, "stage": stage}, self._done.get(attempt, (Progress(), 0)), now)
            if local.closed:
                continue
            if now[0].watermark_ms is not None:
                ages[(stage,)] = max(ages.get((stage,), 0.0), (view.wall_ms - now[0].watermark_ms) / 1000)
            for stream, size in now[0].behind.items():
                behind[stream, stage] += size
                behind_rows[stream, stage] += now[0].rows_in(size)
            if (rows := rows_to_drain(self._control, report, SOURCE_LIMITS.roll_bytes)) is not None:
                to_drain[(stage,)] += rows
        self._done = done
        self._set_all(self._instruments.watermark_age, ("stage",), ages)
        self._set_all(self._instruments.backlog, ("stream", "stage"), behind)
        self._set_all(self._instruments.backlog_rows, ("stream", "stage"), behind_rows)
        self._set_all(self._instruments.drain_rows, ("stage",), to_drain)

    def _add_work(self, who: Mapping[str, str], before: tuple[Progress, int], now: tuple[Progress, int]) -> None:
        instruments, (old, old_late), (new, new_late) = self._instruments, before, now
        for direction, more in (
            ("in", new.rows - old.rows),
            ("out", new.rows_out - old.rows_out),
            ("late", new_late - old_late),
        ):
            instruments.rows.add(max(more, 0), {**who, "direction": direction})
        instruments.bytes.add(max(new.size - old.size, 0), who)
        batches = new.batches - old.batches
        for _ in range(batches):
            instruments.batches.record((new.seconds - old.seconds) / batches, who)

    def _set_all(self, gauge: Any, names: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> None:
        """Set the values, and 0 for attributes that are gone: a gauge would keep its last value for ever."""
        for gone in self._shown.get(gauge, set()) - values.keys():
            gauge.set(0, {**self._who, **dict(zip(names, gone, strict=True))})
        for each, value in values.items():
            gauge.set(value, {**self._who, **dict(zip(names, each, strict=True))})
        self._shown[gauge] = set(values)

    def _show_heartbeat(self, view: View, now: float) -> None:
        if not view.life.beat:
            return
        self._instruments.heartbeat_age.set(now - view.life.accepted_at, self._who)
        denied = min((each.since for each in view.calls.denied.values()), default=now)
        self._instruments.denied.set(now - denied, self._who)
        paused = view.life.etag is not None and now > view.permit_until
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
            told = {**self._who, "outcome": str(after.barrier.state)}
            instruments.barrier.record(max(now - view.office.barrier_since, 0.0), told)
        for step, seconds in steps_taken(before.drain, after.drain):
            instruments.drain.record(seconds, {**self._who, "step": step})


@cache
def _to_prometheus() -> bool:
    """Collect for Prometheus from now on. False if another SDK already collects this process's metrics."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider as Sdk

    if isinstance(opentelemetry.get_meter_provider(), Sdk):
        return False
    opentelemetry.set_meter_provider(Sdk([PrometheusMetricReader()]))
    return True


def prometheus() -> Callable[[], tuple[bytes, str] | None]:
    """A function to call at each scrape: it returns the metrics in Prometheus's format, and their content type.

    It returns None if the packages of the extra `metrics` are not installed, or if another SDK collects the metrics.
    """
    try:
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        shown = _to_prometheus()
    except ImportError:
        shown = False
    return (lambda: (generate_latest(), CONTENT_TYPE_PLAIN_0_0_4)) if shown else (lambda: None)


def serve(port: int, host: str = "127.0.0.1") -> int:
    """Serve this process's metrics to Prometheus, on the first free port from `port` on; 0: any. Return the port.

    Raise `ConfigError` if a package is missing, another SDK collects the metrics, or no port is free.
    """
    try:
        from prometheus_client import start_http_server

        shown = _to_prometheus()
    except ImportError as error:
        raise ConfigError(
            f"metrics.prometheus.port is set, and {error.name} is not installed. "
            "Run: pip install 'samza-azure[metrics]', or remove the key."
        ) from error
    if not shown:
        raise ConfigError(
            "metrics.prometheus.port is set, but OpenTelemetry's SDK already sends this process's metrics somewhere "
            "else. Remove the key, or start without that SDK's environment variables."
        )
    for number in range(port, min(port + PORTS, 65536) if port else 1):
        try:
            server, _ = start_http_server(number, host)
            break
        except OSError as error:
            taken: Any = error
    else:
        raise ConfigError(
            f"metrics.prometheus.port is {port}, and no port from there on is free: {taken}. Set another one."
        )
    return int(server.server_port)

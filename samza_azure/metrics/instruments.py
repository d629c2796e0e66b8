"""All instruments: their names, units and descriptions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opentelemetry.metrics import Meter

from samza_azure.messages import CPU_PHASES, WALL_PHASES, Progress, TaskReport

#: The bounds of the histograms, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """A figure in the reports on a task that only grows. It is counted by stage."""

    name: str
    description: str
    value: Callable[[TaskReport], float]
    attributes: Mapping[str, str] = field(default_factory=dict)  # where one instrument has several figures
    unit: str = ""


def _of_progress(value: Callable[[Progress], float]) -> Callable[[TaskReport], float]:
    return lambda report: value(report.progress or Progress())


def _of_phase(name: str, phase: str) -> Callable[[TaskReport], float]:
    return _of_progress(lambda done: float(getattr(done, name).get(phase, 0.0)))


_ROWS = "samza_azure.task.rows", "Rows, by stage; direction in: read, out: written, late: dropped as late"
_WALL = "samza_azure.task.batch.time", "Time of the batches of queries, by stage and phase"
_CPU = "samza_azure.task.batch.cpu", "Processor time of the batches of queries, by stage and phase"
#: One more is a line here, and a row in docs/metrics.md.
OF_TASKS = (
    Counted(*_ROWS, _of_progress(lambda done: done.rows), {"direction": "in"}),
    Counted(*_ROWS, _of_progress(lambda done: done.rows_out), {"direction": "out"}),
    Counted(*_ROWS, lambda report: report.late, {"direction": "late"}),
    Counted(
        "samza_azure.task.bytes",
        "Bytes of the logs that were read, by stage",
        _of_progress(lambda done: done.size),
        unit="By",
    ),
    *(Counted(*_WALL, _of_phase("wall_s", phase), {"phase": phase}, "s") for phase in WALL_PHASES),
    *(Counted(*_CPU, _of_phase("cpu_s", phase), {"phase": phase}, "s") for phase in CPU_PHASES),
)


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
        self.decommission = gauge(
            "samza_azure.decommission.state",
            description="0 while this processor is schedulable, 1 decommissioning, 2 decommissioned",
        )
        self.not_handed_over = gauge(
            "samza_azure.decommission.tasks",
            description="Tasks that a processor which will go has not handed over yet, by reason",
        )
        self.replicas = gauge(
            "samza_azure.replicas", description="Replicas of other processors' tasks that are ready here"
        )
        self.replicas_size = gauge("samza_azure.replicas.size", unit="By", description="Bytes of these replicas")
        self.replicas_behind = gauge(
            "samza_azure.replicas.behind",
            unit="By",
            description="Bytes that the replica which is the furthest behind has not read yet, as far as hints say",
        )
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
        self.of_tasks = {
            each.name: counter(each.name, unit=each.unit, description=each.description) for each in OF_TASKS
        }
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
        self.lag_rows = gauge(
            "samza_azure.partition.lag.rows", description="Rows of a partition outside that are not read yet"
        )
        self.lag = gauge(
            "samza_azure.partition.lag",
            unit="s",
            description="How much later the last row of a partition outside came than the last one that was read",
        )
        self.waiting = gauge(
            "samza_azure.tasks.waiting_for_readers",
            description="Tasks here of a stage that read nothing from outside, since their readers are too far behind",
        )
        self.warned = gauge(
            "samza_azure.tasks.warned",
            description="Tasks here of a stage that read from outside, where something needs people",
        )
        self.restarts = counter("samza_azure.container.restarts", description="Containers that ended unasked")
        self.memory = gauge(
            "samza_azure.container.memory", unit="By", description="Memory of the container and its processes"
        )
        self.cpu = gauge("samza_azure.container.cpu", description="Cores that the container and its processes use")
        self.heap = gauge("samza_azure.container.heap", unit="By", description="Java's heap in use")
        self.heap_most = gauge("samza_azure.container.heap.limit", unit="By", description="The most of Java's heap")
        self.calls = counter("samza_azure.storage.calls", description="Storage calls, by operation and outcome")

    def __iter__(self) -> Iterator[Any]:
        """All of them."""
        for each in vars(self).values():
            yield from each.values() if isinstance(each, dict) else (each,)

"""The figures of a task's batches, added up for its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from samza_azure.messages import CPU_PHASES, LastBatch, Progress, TaskReport

#: The rows per second of a task are averaged over this time.
PACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The figures of some batches, and the number of the last one."""

    through: int
    batches: int = 0
    rows: int = 0
    late: int = 0
    seconds: float = 0.0
    last: LastBatch | None = None
    wall_s: Mapping[str, float] = field(default_factory=dict)  # by phase
    append_cpu_s: float = 0.0  # of processor time
    cpu_s: Mapping[str, float] = field(default_factory=dict)

    def with_cpu(self, plan_s: float, compute_s: float) -> "Counted":
        """With the processor time of the query's thread and of Spark's tasks, all batches together."""
        if self.last is None:
            return self
        cpu_s = dict(zip(CPU_PHASES, (plan_s, compute_s, self.append_cpu_s), strict=True))
        mean_ms = {phase: round(1000 * seconds / self.batches) for phase, seconds in cpu_s.items()}
        return replace(self, cpu_s=cpu_s, last=replace(self.last, cpu_ms=mean_ms))


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds that a batch took until its rows were there, and until its record was appended; of the latter, those of
    processor time.
    """

    compute: float
    append: float
    append_cpu: float


class Figures:
    """The figures of one task. Spark reports a batch a moment after its append."""

    def __init__(self) -> None:
        self.ran_through = -1  # the last batch of the query that was appended
        self.late: dict[int, int] = {}  # by batch: the late rows that Spark's figures leave out
        self.spent: dict[int, Spent] = {}  # by batch: of those that are not counted yet
        self.through = -1  # the last batch that is counted
        self._paces: list[tuple[float, int, int]] = []  # recent times, and the rows read and emitted by then

    @property
    def is_complete(self) -> bool:
        """Whether all batches that were appended are counted."""
        return self.through >= self.ran_through

    def added(self, report: TaskReport, found: Counted) -> TaskReport:
        """The report with these figures, too."""
        for batch in [each for each in list(self.late) if each <= found.through]:
            del self.late[batch]
        for batch in [each for each in list(self.spent) if each <= found.through]:
            del self.spent[batch]
        self.through = found.through
        before = report.progress or Progress()
        done = replace(
            before,
            batches=before.batches + found.batches,
            rows=before.rows + found.rows,
            seconds=round(before.seconds + found.seconds, 3),
            wall_s=summed(before.wall_s, found.wall_s),
            cpu_s=summed(before.cpu_s, found.cpu_s),
        )
        return replace(report, late=report.late + found.late, progress=done, last_batch=found.last or report.last_batch)

    def paced(
        self, report: TaskReport, behind: Mapping[str, int], of_sources: Mapping[str, int], now: float
    ) -> TaskReport:
        """The report with the rows per second at this time, and the bytes of streams and partitions that are left."""
        done = report.progress or Progress()
        self._paces = [*(each for each in self._paces if each[0] > now - PACE_S), (now, done.rows, done.rows_out)]
        since, rows, rows_out = self._paces[0]
        seconds = now - since
        pace, pace_out = (
            round(more / seconds, 1) if seconds > 0 else 0.0 for more in (done.rows - rows, done.rows_out - rows_out)
        )
        if report.progress is None and not any(behind.values()):
            return report  # before the first batch only what is left to read is known
        return replace(
            report,
            progress=replace(done, pace=pace, pace_out=pace_out, behind=dict(behind), behind_sources=dict(of_sources)),
        )


def summed(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The sums by name, to the microsecond."""
    return {name: round(one.get(name, 0.0) + other.get(name, 0.0), 6) for name in dict.fromkeys((*one, *other))}

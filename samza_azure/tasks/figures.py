"""The figures of a task's batches, added up for its report."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from samza_azure.messages import LastBatch, Progress, TaskReport

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


class Figures:
    """The figures of one task. Spark reports a batch a moment after its append."""

    def __init__(self) -> None:
        self.ran_through = -1  # the last batch of the query that was appended
        self.late: dict[int, int] = {}  # by batch: the late rows that Spark's figures leave out
        self.through = -1  # the last batch that is counted
        self._paces: list[tuple[float, int, int]] = []  # recent times, and the rows read and put out by then

    @property
    def is_complete(self) -> bool:
        """Whether all batches that were appended are counted."""
        return self.through >= self.ran_through

    def added(self, report: TaskReport, found: Counted) -> TaskReport:
        """The report with these figures, too."""
        for batch in [each for each in list(self.late) if each <= found.through]:
            del self.late[batch]
        self.through = found.through
        before = report.progress or Progress()
        done = replace(
            before,
            batches=before.batches + found.batches,
            rows=before.rows + found.rows,
            seconds=round(before.seconds + found.seconds, 3),
        )
        return replace(report, late=report.late + found.late, progress=done, last_batch=found.last)

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

"""What Spark reports of a task's batches, added up for the task's report."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samza_azure.messages import BATCH_PHASES, LastBatch, Progress, TaskReport

#: The rows per second of a task are averaged over this time.
PACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Spark's figures of some batches, and the number of the last one."""

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
        self._through = -1  # the last batch that is counted
        self._paces: list[tuple[float, int]] = []  # recent times, and the rows that had been read by then

    @property
    def is_complete(self) -> bool:
        """Whether all batches that were appended are counted."""
        return self._through >= self.ran_through

    def since(self, progresses: Sequence[Any]) -> Counted:
        """The figures of the batches that are not counted yet."""
        return counted_since(progresses, self._through, self.late)

    def added(self, report: TaskReport, found: Counted) -> TaskReport:
        """The report with these figures, too."""
        for batch in [each for each in list(self.late) if each <= found.through]:
            del self.late[batch]
        self._through = found.through
        before = report.progress or Progress()
        done = replace(
            before,
            batches=before.batches + found.batches,
            rows=before.rows + found.rows,
            seconds=round(before.seconds + found.seconds, 3),
        )
        return replace(report, late=report.late + found.late, progress=done, last_batch=found.last)

    def paced(self, report: TaskReport, behind: Mapping[str, int], now: float) -> TaskReport:
        """The report with the rows per second at this time, and with the bytes of each stream that are left."""
        done = report.progress or Progress()
        self._paces = [*(each for each in self._paces if each[0] > now - PACE_S), (now, done.rows)]
        since, rows = self._paces[0]
        pace = round((done.rows - rows) / (now - since), 1) if now > since else 0.0
        if report.progress is None and not any(behind.values()):
            return report  # before the first batch only what is left to read is known
        return replace(report, progress=replace(done, pace=pace, behind=dict(behind)))


def counted_since(progresses: Sequence[Any], through: int, uncounted: Mapping[int, int]) -> Counted:
    """The figures of the batches after `through`. `uncounted` has late rows, by batch, that Spark's figures leave out.

    Each element costs a call over a socket, so this goes back from the newest one only as far as necessary.
    """
    found = Counted(through)
    last = None
    for place in range(len(progresses) - 1, -1, -1):
        progress = progresses[place]
        batch = progress.batchId()
        if batch <= through:
            break
        rows, operators, ms = progress.numInputRows(), list(progress.stateOperators()), _durations(progress)
        late = uncounted.get(batch, 0) + sum(operator.numRowsDroppedByWatermark() for operator in operators)
        if last is None:
            last = LastBatch(batch, rows, ms, *_state(operators, late))
        found = Counted(
            max(found.through, batch),
            found.batches + 1,
            found.rows + rows,
            found.late + late,
            found.seconds + ms.get("triggerExecution", 0) / 1000,
            last,
        )
    return found


def _durations(progress: Any) -> dict[str, int]:
    """How long the phases took, in milliseconds. Read as one text: each value of a Java map costs a round trip."""
    ms = {phase: int(took) for phase, took in re.findall(r"(\w+)=(\d+)", progress.durationMs().toString())}
    return {phase: ms[phase] for phase in BATCH_PHASES if phase in ms}


def _state(operators: Sequence[Any], late: int) -> tuple[int, int, int] | tuple[()]:
    """Rows dropped by the watermark, rows and bytes of the state. Nothing if the query has no state."""
    if not operators:
        return ()
    rows = sum(operator.numRowsTotal() for operator in operators)
    return late, rows, sum(operator.memoryUsedBytes() for operator in operators)

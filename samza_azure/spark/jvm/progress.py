"""What Spark reports of a query's batches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.messages import BATCH_PHASES, WALL_PHASES, LastBatch
from samza_azure.tasks.figures import Counted, Spent, summed


def recent(query: StreamingQuery) -> Sequence[Any]:
    """What Spark reports of the latest batches, the newest last. Each element is fetched when it is asked for."""
    progresses: Sequence[Any] = query._jsq.recentProgress()
    return progresses


def counted_since(
    progresses: Sequence[Any],
    through: int,
    uncounted: Mapping[int, int],
    spent: Mapping[int, Spent] = MappingProxyType({}),
) -> Counted:
    """The figures of the batches after `through`. By batch, `uncounted` has late rows that Spark's figures leave out,
    and `spent` the time of our own parts. While a query has nothing to read, Spark reports its next batch each ten
    seconds, and once more when that has run. Only then it counts.

    Each element costs a call over a socket, so this goes back from the newest one only as far as necessary.
    """
    found = Counted(through)
    last = None
    for place in range(len(progresses) - 1, -1, -1):
        progress = progresses[place]
        batch = progress.batchId()
        if batch <= through:
            break
        ms = _durations(progress)
        if "addBatch" not in ms:  # it has not run, but all before it have
            found = replace(found, through=max(found.through, batch - 1))
            continue
        rows, operators = progress.numInputRows(), list(progress.stateOperators())
        late = uncounted.get(batch, 0) + sum(operator.numRowsDroppedByWatermark() for operator in operators)
        own, wall_s, append_cpu_s = spent.get(batch), found.wall_s, found.append_cpu_s
        if own is not None:
            wall_s, append_cpu_s = summed(wall_s, _wall_s(ms, own)), append_cpu_s + own.append_cpu
            ms |= {"compute": round(1000 * own.compute), "append": round(1000 * own.append)}
        if last is None:
            last = LastBatch(batch, rows, ms, *_state(operators, late))
        found = Counted(
            max(found.through, batch),
            found.batches + 1,
            found.rows + rows,
            found.late + late,
            found.seconds + ms.get("triggerExecution", 0) / 1000,
            last,
            wall_s,
            append_cpu_s,
        )
    return found


def _wall_s(ms: Mapping[str, int], own: Spent) -> dict[str, float]:
    """How long the phases of a batch took, of which the last one is what is left."""
    read_ms, plan_ms = ms.get("latestOffset", 0) + ms.get("getBatch", 0), ms.get("queryPlanning", 0)
    known = (read_ms / 1000, plan_ms / 1000, own.compute, own.append)
    return dict(zip(WALL_PHASES, (*known, max(ms.get("triggerExecution", 0) / 1000 - sum(known), 0.0)), strict=True))


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

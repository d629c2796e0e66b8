"""The figures of a whole fleet, from a status document or from what a processor knows of all rows. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.reports import report_of
from samza_azure.group.view import View
from samza_azure.logs.names import stage_and_number
from samza_azure.messages import Phase

#: Milliseconds since 1970, backlog, age in seconds, pace; None: unknown.
Point: TypeAlias = tuple[int, int | None, float | None, float | None]


def reading(view: View, now_ms: int) -> Point | None:
    """The figures as this processor has read all rows; None: it knows of no run, or of one that is drained."""
    control, rows = view.control, view.others.members
    if not isinstance(control, Control) or control.phase is RunPhase.DRAINED:
        return None
    reports = {name: report_of(name, each.owner, rows) for name, each in control.tasks.items()}
    tasks = [
        {
            "stage": stage_and_number(name)[0],
            "owner": None if each.owner is None else each.owner.processor,
            "progress": None if report is None or report.progress is None else asdict(report.progress),
        }
        for (name, each), report in zip(control.tasks.items(), reports.values(), strict=True)
    ]
    dead = {name for name, age in view.others.ages.items() if age.silent(view.timing.heartbeat_timeout_s)}
    is_all = all(
        report is not None and report.phase in (Phase.RUNNING, Phase.DRAINED) and not report.failing
        for report in reports.values()
    ) and not any(task["owner"] in dead for task in tasks)
    return now_ms, known(sum_of(backlog_of(tasks)), is_all), age_of(tasks, now_ms), pace_of(tasks, dead)


def known(backlog: int | None, is_all: bool) -> int | None:
    """A backlog of 0 is unknown unless all tasks run: what is not read of one that does not may be any size."""
    return backlog if backlog or is_all else None


def backlog_of(tasks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The backlog by stream, without streams that no task reports: theirs is unknown, not 0.

    If several stages read a stream, it is that of the stage which is furthest behind.
    """
    found: dict[str, int] = {}
    for (stream, _), size in behind_by_stage(tasks).items():
        found[stream] = max(found.get(stream, 0), size)
    return found


def behind_by_stage(tasks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """The backlog by stream and stage."""
    found: dict[tuple[str, str], int] = {}
    for task in tasks:
        for stream, size in behind_of(task).items():
            found[stream, task["stage"]] = found.get((stream, task["stage"]), 0) + size
    return found


def sum_of(of: Mapping[str, int]) -> int | None:
    """The sum of a backlog; None: nothing of it is known."""
    return sum(of.values()) if of else None


def behind_of(task: Mapping[str, Any]) -> Mapping[str, int]:
    """The backlog of a task by stream, as it reports it."""
    return (task["progress"] or {}).get("behind") or {}


def age_of(tasks: Sequence[Mapping[str, Any]], now_ms: int) -> float | None:
    """The age of the oldest watermark."""
    marks = [mark for task in tasks if (mark := (task["progress"] or {}).get("watermark_ms")) is not None]
    return max(0.0, (now_ms - min(marks)) / 1000) if marks else None


def pace_of(tasks: Sequence[Mapping[str, Any]], dead: Collection[str]) -> float:
    """The rows per second that the tasks read whose owners live."""
    paces: list[float | None] = [(task["progress"] or {}).get("pace") for task in tasks if task["owner"] not in dead]
    return round(sum(each or 0.0 for each in paces), 1)

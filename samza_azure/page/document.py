"""The document that the page shows, made from a status document, the silence of each processor, and earlier readings.
Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from samza_azure.group.control import Control
from samza_azure.group.reports import report_of
from samza_azure.group.timing import Timing
from samza_azure.group.view import View
from samza_azure.host.status import Silence, held_up
from samza_azure.logs.names import stage_and_number
from samza_azure.messages import DrainPhase
from samza_azure.page.verdict import JobState, Judgement, ended, first_line, verdict, without_word

__all__ = ["GAP_S", "LINES_S", "POINT_S", "SHOWN", "Lines", "away", "made", "noted"]

#: The length of the curves, and the distance of their points, in seconds.
LINES_S, POINT_S = 900, 5
#: A curve has a gap where points are farther apart.
GAP_S = 3 * POINT_S
#: The most processors and tasks that are sent, the worst first. `samza-azure status --json` has all of them.
SHOWN = 200
#: The batch that a task without one reports.
NO_BATCH = -1
_STEPS = (DrainPhase.SOURCES_STOPPED, DrainPhase.FLUSHING, DrainPhase.COMMITTED, DrainPhase.DRAINED)
_ORDER = [*DrainPhase]


#: Milliseconds since 1970, backlog, age in seconds, pace; None: unknown.
Point: TypeAlias = tuple[int, int | None, float | None, float | None]


@dataclass(slots=True)
class Lines:
    """The curves of the last quarter of an hour, for the times at which the figures were read. For any thread."""

    gap_s: float = GAP_S
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=LINES_S // POINT_S))

    def add(self, at_ms: int, backlog: int | None, age_s: float | None, pace: float | None) -> None:
        """Add a reading, unless the last one was just now."""
        if not self.points or at_ms - self.points[-1][0] >= POINT_S * 1000:
            self.points.append((at_ms, backlog, age_s, pace))

    def since(self, at_ms: int) -> list[Point]:
        """The points that are not older than `LINES_S`, with an empty point in each gap."""
        found: list[Point] = []
        for point in list(self.points):
            if point[0] < at_ms - LINES_S * 1000:
                continue
            if found and point[0] - found[-1][0] > self.gap_s * 1000:
                found.append((found[-1][0] + 1, None, None, None))
            found.append(point)
        return found


def noted(lines: Lines, view: View, now: float, now_ms: int) -> None:
    """Add a reading from this processor's view, without a call: the leader and its successors read all rows anyway."""
    control, rows = view.control, view.others.members
    if not isinstance(control, Control) or now > view.others.scanned_at + lines.gap_s:
        return
    reports = {name: report_of(name, each.owner, rows) for name, each in control.tasks.items()}
    tasks = [
        {
            "stage": stage_and_number(name)[0],
            "owner": None if each.owner is None else each.owner.processor,
            "progress": None if report is None or report.progress is None else asdict(report.progress),
        }
        for (name, each), report in zip(control.tasks.items(), reports.values(), strict=True)
    ]
    backlog = _backlog(tasks)
    dead = {name for name, age in view.others.ages.items() if age.silent(view.timing.heartbeat_timeout_s)}
    lines.add(now_ms, _total(backlog), _age_s(tasks, now_ms), _pace(tasks, dead))


def away(
    app: str, state: JobState, text: str, before: Mapping[str, Any] | None, since_s: float | None = None
) -> dict[str, Any]:
    """The document while the account cannot be read: the reason, the seconds since then, and the last readings."""
    last: dict[str, Any] = dict(before) if before is not None else {"app": app, "run_id": None, "has_data": False}
    return {**last, "verdict": _said(Judgement(state, text, since_s))}


def _said(verdict: Judgement) -> dict[str, Any]:
    return {"state": str(verdict.state), "text": verdict.text, "since_s": verdict.since_s}


def made(shown: Mapping[str, Any], silent: Mapping[str, Silence], timing: Timing, lines: Lines, now_ms: int) -> Any:
    """The whole document."""
    dead = frozenset(without_word(silent, timing))
    backlog, age_s = _backlog(shown["tasks"]), _age_s(shown["tasks"], now_ms)
    pace = None if shown["phase"] == "DRAINED" else _pace(shown["tasks"], dead)
    total, is_all = _total(backlog), all(task["why"] is None for task in shown["tasks"])
    if not is_all and not total:
        total = None  # what is not read of a task that does not run is unknown, and not 0
    lines.add(now_ms, total, age_s, pace)
    tasks = sorted((_task(task, dead, now_ms) for task in shown["tasks"]), key=_badness)
    processors = sorted((_processor(each, shown, silent, dead) for each in shown["processors"]), key=_unwell)
    return {
        "app": shown["app"],
        "has_data": True,
        "run_id": shown["run_id"],
        "phase": shown["phase"],
        "read_ms": now_ms,
        "verdict": _said(verdict(shown, silent, timing, now_ms)),
        "keeping_up": {
            "backlog": total,
            "backlog_is_all": is_all,  # otherwise it is at least that
            "streams": [{"name": name, "backlog": size} for name, size in sorted(backlog.items())],
            "age_s": age_s,
            "pace": pace,
            "late": sum(task["late"] for task in shown["tasks"]),
            "lines": (points := lines.since(now_ms)),
            "since_ms": points[0][0],
        },
        "drain": _drain(shown),
        "processors": processors[:SHOWN],
        "processors_more": max(0, len(processors) - SHOWN),
        "stages": _stages(shown["tasks"], dead),
        "tasks": tasks[:SHOWN],
        "tasks_more": max(0, len(tasks) - SHOWN),
        # The leader has shortened the texts, but that of an error may have several lines.
        "events": [{**each, "text": each["text"].partition("\n")[0]} for each in reversed(shown["events"])],
    }


def _backlog(tasks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The backlog by stream, without streams that no task reports: theirs is unknown, not 0.

    If several stages read a stream, it is that of the stage which is furthest behind.
    """
    by_stage: dict[tuple[str, str], int] = {}
    for task in tasks:
        for stream, size in _behind(task).items():
            by_stage[stream, task["stage"]] = by_stage.get((stream, task["stage"]), 0) + size
    found: dict[str, int] = {}
    for (stream, _), size in by_stage.items():
        found[stream] = max(found.get(stream, 0), size)
    return found


def _total(backlog: Mapping[str, int]) -> int | None:
    return sum(backlog.values()) if backlog else None


def _behind(task: Mapping[str, Any]) -> Mapping[str, int]:
    return (task["progress"] or {}).get("behind") or {}


def _age_s(tasks: Sequence[Mapping[str, Any]], now_ms: int) -> float | None:
    """The age of the oldest watermark."""
    marks = [mark for task in tasks if (mark := (task["progress"] or {}).get("watermark_ms")) is not None]
    return max(0.0, (now_ms - min(marks)) / 1000) if marks else None


def _pace(tasks: Sequence[Mapping[str, Any]], dead: Collection[str]) -> float:
    paces: list[float | None] = [(task["progress"] or {}).get("pace") for task in tasks if task["owner"] not in dead]
    return round(sum(pace or 0.0 for pace in paces), 1)


def _task(task: Mapping[str, Any], dead: Collection[str], now_ms: int) -> dict[str, Any]:
    progress = task["progress"] or {}
    gone, behind = task["owner"] in dead, _behind(task)
    error = task["error"]["message"] if task["error"] else (task["given_up"] or {}).get("message")
    return {
        "name": task["name"],
        "stage": task["stage"],
        "owner": task["owner"],
        "phase": task["phase"],
        "why": f"{task['owner']} is silent." if gone else task["why"],
        "why_s": None if gone else task.get("why_s"),
        "batch": task["batch"] if task["batch"] != NO_BATCH else None,
        "pace": None if gone else progress.get("pace"),
        "failed_tries": task["failed_tries"],
        "restarts": task["restarts"],
        "age_s": None if progress.get("watermark_ms") is None else max(0.0, (now_ms - progress["watermark_ms"]) / 1000),
        "backlog": sum(behind.values()) if behind else None,
        "late": task["late"],
        "error": first_line(error) if error else None,
    }


def _badness(task: Mapping[str, Any]) -> tuple[bool, bool, int, str, int]:
    stage, number = stage_and_number(task["name"])  # a-10 after a-9
    return task["error"] is None, task["why"] is None, -(task["backlog"] or 0), stage, number


def _processor(
    row: Mapping[str, Any], shown: Mapping[str, Any], silent: Mapping[str, Silence], dead: Collection[str]
) -> dict[str, Any]:
    name = row["id"]
    state = "silent" if name in dead else str(row["state"]).lower()
    return {
        "id": name,
        "state": state,
        "leads": name == shown["leader"],
        "silent_s": round(silent[name].seconds, 1) if name in silent else None,
        "tasks": len(row["tasks"]),
        "too_old_for": row["too_old_for"],
        "no_container": row["no_container"],
        "failure": ended(row),
    }


def _unwell(row: Mapping[str, Any]) -> tuple[int, bool, str]:
    """A silent leader first, then all that are silent, then those that have given up or stand by."""
    order = ("silent", "", "leaving", "unassigned", "active", "left", "dead")
    state = order.index(row["state"]) if row["state"] in order else 0
    given_up = order.index("") if row["failure"] or row["too_old_for"] or row["no_container"] else len(order)
    return min(state, given_up), not row["leads"], row["id"]


def _stages(tasks: Sequence[Mapping[str, Any]], dead: Collection[str]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        each = found.setdefault(
            task["stage"], {"name": task["stage"], "tasks": 0, "running": 0, "pace": 0.0, "behind": None}
        )
        each["tasks"] += 1
        each["running"] += task["why"] is None and task["owner"] not in dead and task["phase"] != DrainPhase.DRAINED
        each["pace"] = round(each["pace"] + _pace([task], dead), 1)
        if behind := _behind(task):  # even if the owner is dead: the task has read no more since
            each["behind"] = (each["behind"] or 0) + sum(behind.values())
    return list(found.values())


def _drain(shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many tasks have reached each of the four steps, and which are the last, or what holds up those."""
    if shown["drain"] is None or shown["phase"] not in ("DRAINING", "DRAINED"):
        return None
    reached = {task["name"]: _ORDER.index(task["phase"]) if task["phase"] in _ORDER else -1 for task in shown["tasks"]}
    least = min(reached.values(), default=0)
    last = sorted(name for name, step in reached.items() if step == least) if shown["phase"] == "DRAINING" else []
    if last and (reasons := held_up(shown["tasks"])):
        last = [f"{tasks[0]['name']}{_more(tasks)}: {why.rstrip('.')}" for why, tasks in reasons.items()]
    return {
        "step": shown["drain"]["step"],
        "tasks": len(reached),
        "steps": [
            {"name": str(step), "done": sum(each >= _ORDER.index(step) for each in reached.values())} for step in _STEPS
        ],
        "waits_for": last[:10],
        "waits_for_more": max(0, len(last) - 10),
    }


def _more(tasks: Sequence[Mapping[str, Any]]) -> str:
    return f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""

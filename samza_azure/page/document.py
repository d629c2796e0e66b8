"""The document that the page shows, made from a status document, the silence of each processor, and earlier readings.
Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from samza_azure.group.notice import going_again
from samza_azure.group.timing import Timing
from samza_azure.group.view import View
from samza_azure.host.keeping_up import (
    Point,
    age_of,
    backlog_of,
    behind_by_stage,
    behind_of,
    known,
    pace_of,
    reading,
    sum_of,
)
from samza_azure.host.status import Silence, held_up, waits, warning
from samza_azure.logs.names import stage_and_number, stream_and_partition
from samza_azure.messages import DrainPhase, Use
from samza_azure.page.graph import graph
from samza_azure.page.verdict import OVER, JobState, Judgement, ended, first_line, not_yet, verdict, without_word

__all__ = ["GAP_S", "LINES_S", "POINT_S", "SHOWN", "Lines", "away", "made", "noted"]

#: The length of the curves, and the distance of their points, in seconds.
LINES_S, POINT_S = 900, 5
#: A curve has a gap where points are farther apart.
GAP_S = 3 * POINT_S
#: The most processors and tasks that are sent, the worst first. `samza-azure status --json` has all of them.
SHOWN = 200
#: The batch that a task without one reports.
NO_BATCH = -1
_OF_REPLICA = ("processor", "batches_behind", "bytes_behind")
_STEPS = (DrainPhase.SOURCES_STOPPED, DrainPhase.FLUSHING, DrainPhase.COMMITTED, DrainPhase.DRAINED)
_ORDER = [*DrainPhase]


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
    if now <= view.others.scanned_at + lines.gap_s and (point := reading(view, now_ms)) is not None:
        lines.add(*point)


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
    backlog, age_s = backlog_of(shown["tasks"]), age_of(shown["tasks"], now_ms)
    pace = None if shown["phase"] == "DRAINED" else pace_of(shown["tasks"], dead)
    is_all = all(task["why"] is None for task in shown["tasks"])
    total = known(sum_of(backlog), is_all)
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
        "stages": (stages := _stages(shown["tasks"], dead)),
        "graph": graph(_read_streams(shown), stages, behind_by_stage(shown["tasks"])),
        "partitions": (partitions := _partitions(shown))[:SHOWN],
        "partitions_more": max(0, len(partitions) - SHOWN),
        "tasks": tasks[:SHOWN],
        "tasks_more": max(0, len(tasks) - SHOWN),
        # The leader has shortened the texts, but that of an error may have several lines.
        "events": [{**each, "text": each["text"].partition("\n")[0]} for each in reversed(shown["events"])],
    }


def _read_streams(shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pipeline. Of a run that does not describe it the tasks say at least what they read."""
    read: dict[str, list[str]] = {}
    for stream, stage in behind_by_stage(shown["tasks"]):
        read.setdefault(stage, []).append(stream)
    return [{**each, "inputs": each["inputs"] or read.get(each["stage"], [])} for each in shown["pipeline"]]


def _partitions(shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The backlog of each source partition, of its slowest reader; the largest first, then what is unknown. Outside
    also the rows, and the seconds between the last row and the last one that was read.
    """
    found: dict[str, int] = {}
    rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for task in shown["tasks"]:
        progress = task["progress"] or {}
        for partition, size in (progress.get("behind_sources") or {}).items():
            found[partition] = max(found.get(partition, 0), size)
        rows |= progress.get("lag_rows") or {}
        seconds |= progress.get("lag_s") or {}
    known = [
        {"name": name, "backlog": found.get(name), "rows": rows.get(name), "lag_s": seconds.get(name)}
        for name in shown["read"]
    ]
    return sorted(
        known, key=lambda each: (each["backlog"] is None, -(each["backlog"] or 0), stream_and_partition(each["name"]))
    )


def _task(task: Mapping[str, Any], dead: Collection[str], now_ms: int) -> dict[str, Any]:
    progress = task["progress"] or {}
    gone, behind = task["owner"] in dead, behind_of(task)
    error = task["error"]["message"] if task["error"] else (task["given_up"] or {}).get("message")
    return {
        "name": task["name"],
        "stage": task["stage"],
        "owner": task["owner"],
        "phase": task["phase"],
        "why": f"{task['owner']} is silent." if gone else task["why"] or waits(task) or warning(task),
        "why_s": None if gone else task.get("why_s"),
        "batch": task["batch"] if task["batch"] != NO_BATCH else None,
        "pace": None if gone else progress.get("pace"),
        "failed_tries": task["failed_tries"],
        "restarts": task["restarts"],
        "age_s": None if progress.get("watermark_ms") is None else max(0.0, (now_ms - progress["watermark_ms"]) / 1000),
        "backlog": sum(behind.values()) if behind else None,
        "late": task["late"],
        **_batch(task),
        "replicas": [{name: each[name] for name in _OF_REPLICA} for each in task.get("replicas") or ()],
        "error": first_line(error) if error else None,
    }


def _batch(task: Mapping[str, Any]) -> dict[str, Any]:
    """The phases of the last batch, by the clock and in processor time, and the state after it, as far as known."""
    last = task["last_batch"] or {}
    times = {name: last.get(name) or None for name in ("ms", "cpu_ms")}
    return {**times, **{name: last.get(name) for name in ("state_rows", "state_bytes")}}


def _took_ms(ms: Mapping[str, int]) -> int:
    return ms.get("triggerExecution", 0)


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
        "replicas": sum(each["processor"] == name for task in shown["tasks"] for each in task.get("replicas") or ()),
        # What a processor used when it was last heard of is no figure of now.
        "machine": row["machine"] | ({"use": asdict(Use())} if state in ("silent", "left", "dead") else {}),
        "too_old_for": row["too_old_for"],
        "no_container": row["no_container"],
        "going": _going(row) if state == "leaving" else None,
        "failure": ended(row),
    }


def _going(row: Mapping[str, Any]) -> str | None:
    """What a processor that will go has handed over, and what not and why; None if it does not say so."""
    going = going_again(row.get("decommission") or {})
    return f"{going.state.lower()} ({going.why}): {going.in_words()}" if going is not None else None


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
            task["stage"],
            {"name": task["stage"], "tasks": 0, "running": 0, "drained": 0, "pace": 0.0}
            | dict.fromkeys(("pace_out", "behind", "slowest", "ms", "cpu_ms", "state_rows", "state_bytes")),
        )
        each["tasks"] += 1
        is_over = task["phase"] in OVER
        each["drained"] += is_over
        each["running"] += not is_over and task["why"] is None and task["owner"] not in dead
        each["pace"] = round(each["pace"] + pace_of([task], dead), 1)
        pace_out = (task["progress"] or {}).get("pace_out")
        if pace_out is not None and task["owner"] not in dead:
            each["pace_out"] = round((each["pace_out"] or 0.0) + pace_out, 1)
        batch = _batch(task)
        if batch["ms"] and _took_ms(batch["ms"]) >= _took_ms(each["ms"] or {}):
            each["slowest"], each["ms"], each["cpu_ms"] = task["name"], batch["ms"], batch["cpu_ms"]
        for figure in ("state_rows", "state_bytes"):
            if batch[figure] is not None:
                each[figure] = (each[figure] or 0) + batch[figure]
        if behind := behind_of(task):  # even if the owner is dead: the task has read no more since
            each["behind"] = (each["behind"] or 0) + sum(behind.values())
    return list(found.values())


def _drain(shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """How many tasks have reached each of the four steps, and which ones its step waits for, or what holds up those."""
    if shown["drain"] is None or shown["phase"] not in ("DRAINING", "DRAINED"):
        return None
    reached = {task["name"]: _ORDER.index(task["phase"]) if task["phase"] in _ORDER else -1 for task in shown["tasks"]}
    last = not_yet(shown) if shown["phase"] == "DRAINING" else []
    if shown["phase"] == "DRAINING" and (reasons := held_up(shown["tasks"])):
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

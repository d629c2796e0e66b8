"""One sentence for a fleet: what is wrong, since when, what happens next. Pure: no clock, no I/O.

`silent` says for how long each live processor has sent no heartbeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from samza_azure.group.timing import Timing
from samza_azure.host.status import LATE, Silence
from samza_azure.messages import DrainPhase, DrainStep

__all__ = [
    "FIRST",
    "OVER",
    "JobState",
    "Judgement",
    "doubtful",
    "ended",
    "first_line",
    "look_again",
    "not_yet",
    "verdict",
    "without_word",
]

#: The most names in a sentence.
NAMED = 3
#: The most characters of an error that are shown.
FIRST = 160
#: The phases of a task whose log ends in DRAINED: in a drain, or because it has asked for its shutdown before.
OVER = (DrainPhase.COMMITTED, DrainPhase.DRAINED)


class JobState(StrEnum):
    """The state, which decides the colour of the sentence; the page shows the word as well."""

    RUNNING = "running"
    STARTING = "starting"
    LOOKING = "looking"  # heartbeats are late; the next look shows whether one comes
    TROUBLE = "trouble"  # it recovers by itself, or somebody has to look
    NO_LEADER = "no leader"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    STOPPED = "stopped"
    EMPTY = "empty"
    AWAY = "away"  # the account cannot be read


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state, a text, and for how many seconds it has lasted, if that is known.

    The seconds are not in the text, because a screen reader reads it out whenever it changes.
    """

    state: JobState
    text: str
    since_s: float | None = None


def first_line(message: str) -> str:
    """The first line of an error's message. The rest may quote a row of data; the status and the log have it."""
    line = message.partition("\n")[0]
    return line if len(line) <= FIRST else f"{line[: FIRST - 1]}…"


def ended(row: Mapping[str, Any]) -> str | None:
    """Why a processor ended, if it did with an error."""
    failure = row["failure"]
    return f"exit code {failure['exit_code']}: {first_line(failure['message']).rstrip('.')}." if failure else None


def without_word(silent: Mapping[str, Silence], timing: Timing) -> list[str]:
    """The processors that have been silent for so long that the leader marks them as dead, or soon will."""
    return sorted(name for name, each in silent.items() if each.gone(timing.heartbeat_timeout_s))


def doubtful(silent: Mapping[str, Silence], timing: Timing) -> list[str]:
    """The processors of which only another look shows whether they are alive."""
    return sorted(name for name, each in silent.items() if each.doubtful(timing.heartbeat_timeout_s))


def look_again(late: list[str]) -> str:
    """What is said while only another look shows whether processors are alive."""
    return f"No heartbeat of {_names(late)} has come lately. The next look shows whether one comes."


def verdict(shown: Mapping[str, Any], silent: Mapping[str, Silence], timing: Timing, now_ms: int) -> Judgement:
    """The verdict on a status document. `silent` holds the processors whose rows say they are alive."""
    dead = without_word(silent, timing)
    run = f"Run {shown['run_id']}"
    tasks = shown["tasks"]
    match shown["phase"]:
        case "FAILED":
            failure = shown["failure"] or {"task": "a task", "message": ""}
            first = first_line(failure["message"]).rstrip(".")
            text = f"{run} failed in {failure['task']}: {first}. Fix the code and start it: the run resumes."
            return Judgement(JobState.FAILED, text, _since_s(shown, "failed", now_ms))
        case "DRAINED":
            old = [row for row in shown["processors"] if row["waits_for"]]
            text = f"{run} is drained. A changed pipeline begins the next one."
            if old:
                wait = "waits" if len(old) == 1 else "wait"
                text = f"{_names([row['id'] for row in old])} {wait}. {old[0]['waits_for']}"
            return Judgement(JobState.DRAINED, text, _since_s(shown, "drain", now_ms))
        case "STOPPED" if not silent:
            why = next(
                (f"{row['id']} ended with {ending} " for row in shown["processors"] if (ending := ended(row))), ""
            )
            then = "No run has begun yet; the next start begins one."
            if shown["run_id"]:
                then = f"The next start resumes run {shown['run_id']}."
            return Judgement(JobState.STOPPED, f"No processor runs. {why}{then}")
    if late := doubtful(silent, timing):
        return Judgement(JobState.LOOKING, look_again(late), min(silent[name].seconds for name in late))
    if silent and len(dead) == len(silent):
        text = "No processor runs: none sends heartbeats. The next start resumes the run."
        return Judgement(JobState.STOPPED, text, min(each.seconds for each in silent.values()))
    if shown["phase"] == "STARTING":
        return Judgement(
            JobState.STARTING, f"{_processors(silent, dead)} joined. A run begins when one of them is ready."
        )
    leader = shown["leader"]
    if leader in dead or leader not in silent:
        since_s = silent[leader].seconds if leader in dead else None
        who = f"The leader {leader} {'is silent' if leader in dead else 'has ended'}"
        who = who if leader is not None else "No processor leads"
        return Judgement(
            JobState.NO_LEADER, f"{who}. Another processor takes over; running tasks go on meanwhile.", since_s
        )
    idle = [task for task in tasks if task["why"] or task["owner"] in dead]
    trouble = _trouble(idle, shown["deposed"], leader, silent, timing)
    if shown["phase"] == "DRAINING":
        done = sum(task["phase"] in OVER for task in tasks)
        text = f"{run} is being drained: {done} of {len(tasks)} tasks have committed."
        if trouble is not None:
            return replace(trouble, text=f"{text} {trouble.text}")
        if slow := not_yet(shown):
            text += f" It waits for {_names(slow)}."
        return Judgement(JobState.DRAINING, text)
    if trouble is not None:
        count = f"{len(idle)} of {len(tasks)} tasks do not run. " if idle else ""
        return replace(trouble, text=count + trouble.text)
    over = sum(task["phase"] in OVER for task in tasks)
    text = f"{run}: {len(tasks) - over} of {len(tasks)} tasks run on {_processors(silent, dead)}."
    if over:
        text += f" {over} {'has ended, as it' if over == 1 else 'have ended, as they'} asked."
    return Judgement(JobState.RUNNING, text)


def _trouble(
    idle: list[Mapping[str, Any]],
    deposed: str | None,
    leader: str,
    silent: Mapping[str, Silence],
    timing: Timing,
) -> Judgement | None:
    """What is wrong with a fleet that has a leader, whether it drains or not. `idle`: the tasks that do not run."""
    dead = without_word(silent, timing)
    late = {name: each.seconds for name, each in sorted(silent.items()) if each.gone(LATE * timing.heartbeat_s)}
    if deposed in late.keys() - set(dead):  # not for a moment after it is back, or was wrongly suspected
        text = f"{leader} took over from {deposed}. If no heartbeat of {deposed} comes, its tasks go to others."
        return Judgement(JobState.TROUBLE, text, late[deposed])
    if owners := sorted({task["owner"] for task in idle} & set(dead)):
        whose = "its" if len(owners) == 1 else "their"
        text = f"{_are(owners)} silent; the leader gives {whose} tasks to others."
        return Judgement(JobState.TROUBLE, text, max(silent[name].seconds for name in owners))
    if idle:
        return Judgement(JobState.TROUBLE, f"{idle[0]['name']}: {idle[0]['why']}", idle[0].get("why_s"))
    if dead:
        whom = "it" if len(dead) == 1 else "them"
        text = f"{_are(dead)} silent; no task waits for {whom}."
        return Judgement(JobState.TROUBLE, text, max(silent[name].seconds for name in dead))
    if late:
        return Judgement(JobState.TROUBLE, _late([*late], leader, timing), max(late.values()))
    return None


def not_yet(shown: Mapping[str, Any]) -> list[str]:
    """The tasks that the step of a drain waits for, and where they run: readers of sources to stop, all to commit."""
    if shown["drain"]["step"] == DrainStep.FREEZE:
        left = [each for each in shown["tasks"] if each["phase"] == DrainPhase.REQUESTED and _reads(each, shown)]
    else:
        left = [each for each in shown["tasks"] if each["phase"] not in OVER]
    return [f"{each['name']} on {each['owner']}" for each in left]


def _reads(task: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether it reads a source: also before it has reported how far."""
    return bool(task["read"]) or task["name"] in shown["unheard"]


def _late(late: list[str], leader: str | None, timing: Timing) -> str:
    if leader in late:
        return f"No heartbeat of the leader {leader} has come lately. If none comes, another processor takes over."
    whose = "its" if len(late) == 1 else "their"
    return (
        f"No heartbeat of {_names(late)} has come lately. After {timing.heartbeat_timeout_s:g} s without one {whose} "
        "tasks go to others."
    )


def _since_s(shown: Mapping[str, Any], kind: str, now_ms: int) -> float | None:
    """The time since the last event of a kind; None if no event of that kind is kept."""
    at_ms = max((each["at_ms"] for each in shown["events"] if each["kind"] == kind), default=None)
    return None if at_ms is None else max(now_ms - at_ms, 0) / 1000


def _names(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _are(names: list[str]) -> str:
    return f"{_names(names)} {'is' if len(names) == 1 else 'are'}"


def _processors(silent: Mapping[str, Silence], dead: list[str]) -> str:
    live = len(silent) - len(dead)
    return "1 processor" if live == 1 else f"{live} processors"

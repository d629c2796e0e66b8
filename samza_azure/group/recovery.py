"""How a group goes on whose control blob was lost, or is older than what its processors have done since.

After a fail-over of the account, or when somebody has put back an older `control.json`, versions would be used twice,
and each task would find a later owner in its log. So the group goes on from the newest value of the blob that is known,
above every number that has been used. Nobody owns a task then, and the next leader gives all of them out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from samza_azure.group.control import Assignment, Barrier, Control, Event, RunPhase
from samza_azure.group.drain import is_forgotten
from samza_azure.logs.position import Ends, Position

#: What is known may be older than what was: nothing says how often the blob was written after its last copy. Far fewer
#: writes and leaderships than this lie between two copies.
MARGIN = 1_000
#: No counter gets this far. A row or a blob says what its writer likes, and the numbers must have room to rise.
ABSURD = 1 << 48


@dataclass(frozen=True, slots=True)
class LastOfLog:
    """What the last record of a task's log says."""

    group_id: str
    generation: int
    drained: bool = False  # by a drain; not if the task has asked for its own end
    read: Ends = field(default_factory=dict)  # up to where the task has read each source partition
    end: Position = (0, 0)
    stands: Ends = field(default_factory=dict)  # up to where it has read the log of each task before it


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the account says about a group, beside the newest control blob that is known."""

    used: int  # the highest revision, version or generation found anywhere
    epoch: int  # the highest found
    logs: Mapping[str, LastOfLog]  # of the run's tasks
    runs: Collection[str]  # that have task logs
    ends: Mapping[str, Position]  # of the source partitions that have a log


def recovered(base: Control, known: Evidence, now_ms: int) -> Control:
    """The control blob with which the group goes on. `now_ms` is for people."""
    number = max(known.used, base.revision) + MARGIN
    tasks = {
        task: Assignment(first=task not in known.logs) if base.phase is not RunPhase.DRAINED else each
        for task, each in base.tasks.items()
    }
    text = f"samza-azure recover went on from revision {base.revision}."
    return replace(
        base,
        revision=number,
        version=number,
        epoch=max(known.epoch, base.epoch) + MARGIN,
        leader=None,
        successor=None,
        deposed=None,
        churn=0,
        members=(),
        tasks=tasks,
        given_up={},
        barrier=Barrier(number),
        stop=None,
        # A drained run has read rows that its sources may have lost. What comes there next was never read.
        positions={each: min(at, known.ends.get(each, (0, 0))) for each, at in base.positions.items()}
        if base.phase is RunPhase.DRAINED
        else base.positions,
        events=(*base.events, Event(now_ms, "recovered", text)),
    )


def needs_recovery(current: Control | None, base: Control, known: Evidence) -> bool:
    """Whether a start would fail, or follow an older value than the newest one that is known."""
    if current is None or current.revision < base.revision:
        return True
    return any(log.generation > current.revision for log in known.logs.values())


def lost(base: Control, known: Evidence) -> Sequence[str]:
    """What the account no longer has, and without which the run cannot go on; a sentence each."""
    return [*_logs_lost(base, known), *_sources_lost(base, known), *_between_lost(base, known)]


def _logs_lost(base: Control, known: Evidence) -> list[str]:
    found = []
    for run in sorted({*known.runs} - {base.run_id, *base.past}):
        if is_forgotten(base, run):
            continue
        found.append(f"Run {run} has task logs, and no control blob is known that says what it is.")
    if base.phase in (RunPhase.NONE, RunPhase.DRAINED):
        return found
    if gone := sorted(task for task, each in base.tasks.items() if not each.first and task not in known.logs):
        found.append(f"The logs of {_some(gone)} are gone, and with them the state of these tasks.")
    for task, log in known.logs.items():
        if log.group_id != base.group_id:
            found.append(f"The log of {task} belongs to another group, {log.group_id}, not {base.group_id}.")
        if log.generation >= ABSURD:
            found.append(f"The log of {task} has an owner of version {log.generation}, which no group has come to.")
        if log.drained and not base.is_final:
            found.append(f"The log of {task} is drained, and no control blob is known that ends run {base.run_id}.")
    return found


def _sources_lost(base: Control, known: Evidence) -> list[str]:
    found = []
    if base.phase not in (RunPhase.NONE, RunPhase.DRAINED):
        for task, log in known.logs.items():
            for partition, at in log.read.items():
                end = known.ends.get(partition, (0, 0))
                if at > end:
                    found.append(
                        f"{task} has read {partition} up to blob {at[0]}, byte {at[1]}, and its log ends at blob "
                        f"{end[0]}, byte {end[1]}: the rows between are gone from the stream, and the task's state and "
                        "output have them."
                    )
    return found


def _between_lost(base: Control, known: Evidence) -> list[str]:
    """What tasks have read of others whose logs have lost it: these would write other rows there."""
    found = []
    if base.phase not in (RunPhase.NONE, RunPhase.DRAINED):
        for task, log in known.logs.items():
            for writer, at in log.stands.items():
                end = known.logs[writer].end if writer in known.logs else (0, 0)
                if at > end:
                    found.append(
                        f"{task} has read the rows of {writer} up to blob {at[0]}, byte {at[1]}, and that task's log "
                        f"ends at blob {end[0]}, byte {end[1]}: the storage has lost the rows between. The state and "
                        f"output of {task} have them, and {writer} would emit them again."
                    )
    return found


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"

"""How the leader advances a drain: FREEZE, FLUSH, DRAINED, each by one control write.

FREEZE announces the drain. FLUSH is the point of no return: a cancellation after it changes nothing, and is refused by
the command (`commands/requests.py:refuse_after_flush`), or by the leader (`requests.py:TOO_LATE`). It carries one end
per source partition, the maximum that any reader reported. DRAINED is written when the log of every task ends in
DRAINED, and carries the positions at which the next run begins to read.

The control blob has recorded since the run's start which tasks read which source partitions. The leader's own pipeline
does not count: it may be the next one, in which another stage reads the source, or none of that name.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from samza_azure.group.control import Control, RunPhase
from samza_azure.group.notification import DrainNotification
from samza_azure.group.reports import report_of
from samza_azure.group.rows import ProcessorRow
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.position import Ends, bytes_between
from samza_azure.messages import DrainPhase, DrainStep, Phase, Plan, TaskReport, partitions_of

#: How many drained runs with generated ids are remembered; such an id is never generated again. Ids chosen by a person
#: are remembered forever, since they may be chosen again. The same number of pipelines is remembered.
REMEMBERED = 365
#: Who asks for the drain of a run whose tasks have all asked for their end.
ITS_TASKS = "its tasks, which have all shut down"
_MADE = re.compile(r"\d+-[0-9a-f]{8}")


def progress(control: Control, rows: Mapping[str, ProcessorRow], plan: Plan | None) -> Control:
    """Advance from FREEZE to FLUSH when all sources have stopped, from FLUSH to DRAINED when all tasks are drained."""
    drain = control.drain
    if control.phase is not RunPhase.DRAINING or drain is None:
        return control
    reports = {task: report_of(task, each.owner, rows) for task, each in control.tasks.items()}
    if drain.step is DrainStep.FREEZE:
        ends = _ends(control, reports, drain.uuid, plan)
        if ends is None:
            return control
        moved = replace(drain, step=DrainStep.FLUSH, ends=ends, history=(*drain.history, "FLUSH"))
        return replace(control, drain=moved)
    if all(report is not None and report.phase is Phase.DRAINED for report in reports.values()):
        return replace(
            control,
            phase=RunPhase.DRAINED,
            given_up={},
            positions=drain.ends,
            past=(*_remembered(control.past), control.run_id),
            finished=(*(each for each in control.finished if each != control.fingerprint), control.fingerprint)[
                -REMEMBERED:
            ],
            uncleaned=(*control.uncleaned, control.run_id),
            drain=replace(drain, history=(*drain.history, "DRAINED")),
        )
    return control


def with_end(control: Control, rows: Mapping[str, ProcessorRow], plan: Plan | None, fresh_id: str) -> Control:
    """Drain the run if all tasks that read its sources have asked for their end: nothing will ever be read again."""
    readers = source_readers(control, plan)
    if control.phase is not RunPhase.RUNNING or not readers:
        return control
    reports = (report_of(task, control.tasks[task].owner, rows) for task in readers)
    if not all(report is not None and report.phase is Phase.DRAINED for report in reports):
        return control
    uuid = "-".join((fresh_id[:8], fresh_id[8:12], fresh_id[12:16], fresh_id[16:20], fresh_id[20:]))
    drain = DrainNotification(uuid, control.run_id, step=DrainStep.FREEZE, history=("FREEZE",), by=ITS_TASKS)
    return replace(control, phase=RunPhase.DRAINING, drain=drain)


def _remembered(past: Sequence[str]) -> tuple[str, ...]:
    made = [run_id for run_id in past if _MADE.fullmatch(run_id)]
    forgotten = set(made[:-REMEMBERED])
    return tuple(run_id for run_id in past if run_id not in forgotten)


def is_forgotten(control: Control, run_id: str) -> bool:
    """Whether this is the generated id of a run older than all remembered ones. Such ids begin with the time, by the
    clock of a leader, which may have been late: so a run that is known is not forgotten, whatever its id.
    """
    made = [each for each in control.past if _MADE.fullmatch(each)]
    is_known = run_id in (control.run_id, *control.past)
    return len(made) >= REMEMBERED and _MADE.fullmatch(run_id) is not None and run_id < made[0] and not is_known


def furthest(reported: Sequence[Ends], begun: Ends) -> Ends:
    """Per source partition, the maximum position that any task has reported, but at least `begun`."""
    ends = dict(begun)
    for report in reported:
        for partition, position in report.items():
            ends[partition] = max(position, ends.get(partition, (0, 0)))
    return ends


def _ends(control: Control, reports: Mapping[str, TaskReport | None], drain: str, plan: Plan | None) -> Ends | None:
    """The end of each source partition. None until all readers have reported where they stopped.

    Also None if an end is below what a task has read: the next run would read those rows again.
    """
    readers = source_readers(control, plan)
    if readers is None:
        return None
    stopped = []
    for task, partitions in readers.items():
        at = _stopped_at(reports[task], drain)
        if at is None or not set(partitions) <= at.keys():
            return None
        stopped.append({partition: at[partition] for partition in partitions})
    ends = furthest(stopped, control.positions)
    read = [report.read for report in reports.values() if report is not None and report.read is not None]
    return ends if furthest(read, ends) == ends else None


def source_readers(control: Control, plan: Plan | None) -> dict[str, list[str]] | None:
    """The tasks that read source streams, with their partitions.

    The blob of a run that an earlier release began does not have them; then the leader needs the run's own pipeline.
    """
    streams = control.readers
    if not streams and control.sources:
        if plan is None or plan.fingerprint != control.fingerprint:
            return None
        streams = plan.readers()
    tasks = Counter(stage_and_number(task)[0] for task in control.tasks)
    readers = {}
    for task in control.tasks:
        stage, number = stage_and_number(task)
        if stage in streams:
            readers[task] = [
                f"{stream}/{partition}"
                for stream in streams[stage]
                for partition in partitions_of(number, tasks[stage], control.sources[stream])
            ]
    return readers


def _stopped_at(report: TaskReport | None, drain: str) -> Ends | None:
    """Where a task that reads sources has stopped for this drain. After an earlier, cancelled one it may have read on.

    Before FLUSH only the log of a task that has asked for its own end is drained. Such a task reads nothing more.
    """
    if report is None:
        return None
    if report.phase is Phase.DRAINED:
        return report.read
    return report.ends if report.frozen_for == drain else None


def rows_to_drain(control: Control | None, task: TaskReport, roll_bytes: int) -> int | None:
    """About how many rows a task has to read before it flushes, for people; None without a drain, or if it is unknown.

    What is known are bytes: of sources up to the ends of the drain, of other stages' logs what the task reports. The
    mean size of a row is that of the rows that the task has read in this attempt. `roll_bytes`: when a source's log
    begins its next blob.
    """
    drain, done = None if control is None else control.drain, task.progress
    if control is None or drain is None:
        return None
    if task.phase is Phase.DRAINED or task.drain in (DrainPhase.COMMITTED, DrainPhase.DRAINED):
        return 0  # its last figures may be from before its last batch
    ends = drain.ends if drain.step is DrainStep.FLUSH else {}
    sizes = [bytes_between(at, ends[name], roll_bytes) for name, at in (task.read or {}).items() if name in ends]
    sizes += [size for stream, size in (done.behind if done else {}).items() if stream not in control.sources]
    if not any(sizes):
        return 0 if sizes else None
    return done.rows_in(sum(sizes)) if done is not None and done.size else None

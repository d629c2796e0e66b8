"""The status document that `samza-azure status --json` prints, made from the control blob and the rows.

It is hearsay. A processor that was killed is shown as it reported last, until it is marked dead, or until an observer
says that it is silent (`SeenSilent`).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from samza_azure.group import control as control_blob
from samza_azure.group.control import Assignment, Control, Owner, RunPhase
from samza_azure.group.drain import rows_to_drain, source_readers
from samza_azure.group.ending import waits_for_people
from samza_azure.group.notice import Availability
from samza_azure.group.notification import DrainNotification
from samza_azure.group.reports import report_of
from samza_azure.group.rows import MEMBERS, ProcessorRow, ProcessorState, processor_row
from samza_azure.group.tasks import PATIENCE
from samza_azure.host.runs import lost_control
from samza_azure.logs.names import stage_and_number
from samza_azure.logs.source_log import SOURCE_LIMITS
from samza_azure.messages import DrainPhase, LastBatch, Phase, Progress, TaskReport, facts_told
from samza_azure.outcomes import Missing
from samza_azure.storage.interface import CALL_S, Blobs, Content, ControlBlob, Row, Rows

#: The state of a processor that seems to be dead, and the phase of its tasks.
SILENT = "SILENT"
#: The phase of a task that runs, has failed before and has appended nothing since.
FAILING = "FAILING"
IS_SILENT = "is silent; the leader gives its tasks to others."


class GroupAccount(Protocol):
    """The account of a group, as its commands need it."""

    def control_blob(self) -> ControlBlob: ...
    def rows(self) -> Rows: ...
    def blobs(self) -> Blobs: ...


async def content_of(account: GroupAccount) -> Content | None:
    """The content of the control blob; None if no group has begun. Raise `StateLost` if the blob was deleted."""
    blob = account.control_blob()
    found = await blob.read(timeout=CALL_S)
    if isinstance(found, Missing) and not found.container:
        lost = await asyncio.to_thread(lost_control, account.blobs())
        found = await blob.read(timeout=CALL_S) if lost is not None else found  # the first run may have begun meanwhile
        if lost is not None and not isinstance(found, Content):
            raise lost
    return found if isinstance(found, Content) else None


async def control_of(account: GroupAccount) -> Control | None:
    """The control blob; None if no group has begun. Raise `StateLost` if the blob was deleted."""
    content = await content_of(account)
    return control_blob.decode(content.data) if content is not None else None


async def read(account: GroupAccount) -> tuple[Control | None, list[ProcessorRow]]:
    """The control blob, as `control_of` reads it, and all processors' rows."""
    return await control_of(account), await members(account.rows())


async def members(table: Rows) -> list[ProcessorRow]:
    """All processors' rows."""
    return processors(await table.query(MEMBERS, timeout=CALL_S))


def processors(found: Sequence[Row]) -> list[ProcessorRow]:
    """The rows of the processors, as read."""
    rows = [processor_row(row.key, row.etag, row.values, row.age_s) for row in found]
    return [row for row in rows if row.is_ours]


def patience_s(shutdown_ms: int) -> float:
    """How long a task waits at most for its former owner, in a job with this `task.shutdown.ms`."""
    return PATIENCE * shutdown_ms / 1000


def document(
    app: str,
    control: Control | None,
    rows: Sequence[ProcessorRow],
    waits_s: float | None = None,
    silent: Collection[str] = (),
) -> dict[str, Any]:
    """The status as data. Fields may be added, never renamed. `silent`: the processors that seem to be dead."""
    by_processor = {row.processor: row for row in rows}
    if control is None:
        control = Control(group_id="")
    owned: dict[tuple[str, str], list[str]] = {}
    for name, each in control.tasks.items():
        if each.owner is not None:
            owned.setdefault((each.owner.processor, each.owner.incarnation), []).append(name)
    return {
        "app": app,
        "run_id": control.run_id or None,
        "phase": phase(control, rows, silent),
        "epoch": control.epoch,
        "version": control.version,
        "leader": control.leader.processor if control.leader is not None else None,
        "deposed": control.deposed.processor if control.deposed is not None else None,
        "barrier": {"version": control.barrier.version, "state": str(control.barrier.state)},
        "drain": _drain(control.drain, control.phase),
        "drains": [_drain(each, RunPhase.DRAINED) for each in control.drains],
        "stop": {"uuid": control.stop.uuid} if control.stop is not None else None,
        "processors": [_processor(row, control, owned, silent) for row in rows],
        "tasks": [_task(name, each, control, by_processor, waits_s, silent) for name, each in control.tasks.items()],
        "pipeline": _pipeline(control),
        "read": _read(control, by_processor),
        "unheard": _unheard(control, by_processor),
        "positions": {partition: list(position) for partition, position in control.positions.items()},
        "kept": dict(control.kept),
        "failure": asdict(control.failure) if control.failure is not None else None,
        "events": [{"at_ms": each.at_ms, "kind": each.kind, "text": each.text} for each in control.events],
    }


def phase(control: Control, rows: Sequence[ProcessorRow], silent: Collection[str] = ()) -> str:
    """The phase of the run. If no processor is alive, an unfinished run is STOPPED; before a run it is STARTING."""
    over = control.phase in (RunPhase.DRAINED, RunPhase.FAILED)
    if not over and not any(row.alive and row.processor not in silent for row in rows):
        return "STOPPED"
    if control.phase is RunPhase.NONE:
        return "STARTING"
    return str(control.phase)


def task_phase(report: TaskReport | None, control: Control) -> str:
    """The phase of a task as it is shown to people; during a drain, its drain phase."""
    if control.phase is RunPhase.DRAINED:
        return DrainPhase.DRAINED
    if control.phase is RunPhase.DRAINING:
        if report is None:
            return DrainPhase.REQUESTED
        if report.phase is Phase.DRAINED:
            return DrainPhase.COMMITTED
        if report.phase is Phase.RUNNING:
            return report.drain or DrainPhase.REQUESTED
    if report is None:
        return Phase.STARTING
    return FAILING if report.failing else report.phase


def _pipeline(control: Control) -> list[dict[str, Any]]:
    """What each stage reads and writes, as far as the run says it: not where there was no room, or in a library's."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(stage_and_number(task)[0] for task in control.tasks):
        facts = control.described.get(f"stage {name}", {})
        inputs = facts["inputs"].split(", ") if facts.get("inputs") else list(control.readers.get(name, ()))
        kind = facts_told(facts)
        goes_to = {fact: facts.get(fact) for fact in ("output", "table", "files", "added_for")}
        target = facts.get(kind.told_by) if kind.told_by else None
        found[name] = {"stage": name, "kind": kind.shown_as, "inputs": inputs, **goes_to, "target": target}
    return list(found.values())


def _read(control: Control, rows: dict[str, ProcessorRow]) -> dict[str, list[int]]:
    """The least position, blob and bytes, to which all readers' appended batches have read each source partition.

    Before the first batch that is where the run began to read, behind the rows of earlier runs.
    """
    begun = {f"{stream}/{number}": (0, 0) for stream, count in control.sources.items() for number in range(count)}
    read = {partition: control.positions.get(partition, start) for partition, start in begun.items()}
    seen: dict[str, list[tuple[int, int]]] = {}
    for name in control.tasks:
        report = report_of(name, control.tasks[name].owner, rows)
        for partition, position in ((report.read if report is not None else None) or {}).items():
            seen.setdefault(partition, []).append(position)
    return {partition: list(min(seen.get(partition, [start]))) for partition, start in read.items()}


def _unheard(control: Control, rows: dict[str, ProcessorRow]) -> dict[str, list[str]]:
    """The source partitions of each task that may have read more than `_read` knows: it has not reported that yet.

    A task reports it once it has restored its log, which has it, too. Before its first batch it has read nothing.
    """
    unheard = {}
    for name, partitions in (source_readers(control, None) or {}).items():
        each = control.tasks[name]
        report = report_of(name, each.owner, rows)
        is_heard = report is not None and (report.read is not None or _has_begun_nothing(report))
        if not is_heard and not each.first:
            unheard[name] = partitions
    return unheard


def _has_begun_nothing(report: TaskReport) -> bool:
    return report.phase is Phase.RUNNING and report.batch < 0


def _drain(drain: DrainNotification | None, phase: RunPhase) -> dict[str, Any] | None:
    """A drain, who asked for it, and when each step was taken, in ms by the leader's wall clock; 0: unknown."""
    if drain is None:
        return None
    return {
        "uuid": drain.uuid,
        "run_id": drain.run_id,
        "mode": drain.mode,
        "step": "DRAINED" if phase is RunPhase.DRAINED else str(drain.step),
        "history": list(drain.history),
        "asked_by": drain.by or None,
        "asked_ms": drain.asked_ms,
        "at_ms": list(drain.at_ms),
        "ends": {partition: list(end) for partition, end in drain.ends.items()},
    }


def _processor(
    row: ProcessorRow, control: Control, owned: Mapping[tuple[str, str], list[str]], silent: Collection[str]
) -> dict[str, Any]:
    return {
        "id": row.processor,
        "incarnation": row.incarnation,
        "state": SILENT if row.alive and row.processor in silent else str(row.state),
        "heartbeat_s": round(row.age_s, 1) if row.alive else None,  # since the last one, by the service's clock
        "ready": row.fingerprint != "",  # it has analysed the pipeline
        "tasks": owned.get((row.processor, row.incarnation), []),
        "ending": row.ending or None,
        "failure": {"exit_code": row.failure[0], "message": row.failure[1]} if row.failure is not None else None,
        "too_old_for": row.too_old_for or None,
        "no_container": row.no_container,
        "machine": asdict(row.machine),
        "waits_for": _waits_for(row, control),
        "decommission": _decommission(row, control),
    }


def _decommission(row: ProcessorRow, control: Control) -> dict[str, Any]:
    """Whether a processor gets tasks, and what one that will go has handed over. One of an earlier release does not say
    that, and of one that was asked to go just now only the blob says it.
    """
    going, noticed = row.going, control.noticed.get(row.incarnation)
    state = Availability.SCHEDULABLE
    if noticed is not None or (row.state is ProcessorState.LEAVING and not row.too_old_for):
        state = Availability.DECOMMISSIONING
    if going is None:
        why = noticed.why if noticed is not None else None
        return {"state": str(state), "why": why, "by_ms": (noticed.by_ms or None) if noticed is not None else None}
    return {**asdict(going), "state": str(going.state), "by_ms": going.by_ms or None}


def _waits_for(row: ProcessorRow, control: Control) -> str | None:
    """What code of an earlier run waits for, as after a rollback. Of code that waits for a changed one the phase of the
    run says enough.
    """
    if not row.alive or row.new_run or row.fingerprint == control.fingerprint:
        return None
    return waits_for_people(control, row.fingerprint) or None


def _task(
    name: str,
    each: Assignment,
    control: Control,
    rows: dict[str, ProcessorRow],
    waits_s: float | None,
    silent: Collection[str],
) -> dict[str, Any]:
    owner, report, given_up = each.owner, report_of(name, each.owner, rows), control.given_up.get(name)
    reason = why(each, control, rows, report, waits_s, silent)
    is_silent = reason is not None and reason.endswith(IS_SILENT)
    return {
        "name": name,
        "stage": stage_and_number(name)[0],
        "owner": owner.processor if owner is not None else None,
        "generation": owner.generation if owner is not None else None,
        "phase": SILENT if is_silent else str(task_phase(report, control)),
        "failed_tries": report.failures if report is not None else 0,  # in a row
        "restarts": report.restarts if report is not None else 0,  # since it got this owner
        "batch": report.batch if report is not None else None,
        "late": report.late if report is not None else 0,
        "rows_to_drain": rows_to_drain(control, report, SOURCE_LIMITS.roll_bytes) if report is not None else None,
        "progress": _progress(report, control, runs=reason is None),
        "last_batch": _fields(report.last_batch if report is not None else None),
        "why": reason,
        "read": {} if report is None else {key: list(end) for key, end in (report.read or {}).items()},
        "error": asdict(report.error) if report is not None and report.error is not None else None,
        "replicas": _replicas(name, control, rows, report),
        "given_up": {"processor": given_up.owner.processor, "message": given_up.message} if given_up else None,
    }


def _replicas(
    name: str, control: Control, rows: Mapping[str, ProcessorRow], report: TaskReport | None
) -> list[dict[str, Any]]:
    """Where a task's replicas are, and how far behind: in batches, and in bytes of the log as far as hints say. None of
    both is known while a replica is not ready.
    """
    found = []
    for processor in control.replicas.get(name, ()):
        row = rows.get(processor)
        state = (row.replicas or {}).get(name) if row is not None and row.alive else None
        batches = max(report.batch - state.batch, 0) if state is not None and report is not None else None
        found.append(
            {
                "processor": processor,
                "batches_behind": batches,
                "bytes_behind": state.behind if state is not None else None,
                "size": state.size if state is not None else None,
            }
        )
    return found


def _progress(report: TaskReport | None, control: Control, *, runs: bool) -> dict[str, Any] | None:
    """What the batches of a task have done. What does not run has no pace, what is drained no watermark, and between
    stages nothing left.
    """
    fields = _fields(report.progress if report is not None else None)
    if report is None or fields is None:
        return None
    for name in ("wall_s", "cpu_s"):  # rows leave them out
        del fields[name]
    if not runs or report.phase is Phase.DRAINED or control.phase is RunPhase.DRAINED:
        fields["pace"] = fields["pace_out"] = None
    if control.phase is RunPhase.DRAINED:
        fields["watermark_ms"] = None
        # It was estimated before the last rows were read. Between stages none is left, and of a source it is unknown.
        fields |= {name: {} for name in ("behind", "behind_sources", "lag_rows", "lag_s")}
    return fields


def held_up(tasks: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The tasks of a status document that do not run, by the reason, which names the processor."""
    reasons: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        if task["why"]:
            reasons.setdefault(task["why"], []).append(task)
    return reasons


def waits(task: Mapping[str, Any]) -> str | None:
    """Why a task that runs reads nothing, though there may be rows; None if it does not wait."""
    is_full = task["why"] is None and (task["progress"] or {}).get("waits_for_readers")
    return "It waits for readers: they have as many unread bytes as backlog.bytes allows." if is_full else None


def warning(task: Mapping[str, Any]) -> str | None:
    """What people should do about something outside, though the task reads; None if it is nothing."""
    return None if task["why"] else (task["progress"] or {}).get("warning") or None


def _fields(value: Progress | LastBatch | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {name: getattr(value, name) for name in value.__slots__}  # `asdict` takes ten times as long


def why(
    each: Assignment,
    control: Control,
    rows: dict[str, ProcessorRow],
    report: TaskReport | None,
    waits_s: float | None = None,
    silent: Collection[str] = (),
) -> str | None:
    """Why a task does not run, in a sentence; None: it runs, or is done.

    `waits_s`: how long it waits at most for its former owner. Since when it has waited is not stored: `SeenWaiting`.
    """
    phase, lacks, owner = report.phase if report is not None else None, _lacks_container(each.owner, rows), each.owner
    if control.phase is RunPhase.DRAINED or phase is Phase.DRAINED:
        return None
    if control.phase is RunPhase.FAILED:
        return "The run has failed."
    if owner is not None and owner.processor in silent and rows[owner.processor].incarnation == owner.incarnation:
        return f"{owner.processor} {IS_SILENT}"
    if owner is not None and report is not None and report.failing and not lacks:
        where = f"on {owner.processor} " if report.error is not None else ""  # else where it was given up
        return f"It failed {where}and has appended nothing since.{_sentence(report.tried)}"
    if phase is Phase.RUNNING and not lacks:
        return None
    if owner is None:
        if any(row.alive and not row.fingerprint for row in rows.values()):
            return "No processor that can take it is ready yet."
        return "No live processor with this pipeline can take it."
    row = rows.get(owner.processor)
    if row is None or row.incarnation != owner.incarnation or not row.alive:
        return f"{owner.processor} has ended; the leader gives the task to another one."
    if lacks:
        return (
            f"The container of {owner.processor} has ended or hangs. A processor that has one gets the task; if there "
            "is none, it waits for the next container."
        )
    waits = sorted({before.processor for before in each.after if _holds(before, rows)})
    if waits and report is None:
        most = f", for {waits_s:.0f} s at most" if waits_s is not None else ""
        hangs = (
            ", whose container has ended or hangs,"
            if any(_lacks_container(before, rows) for before in each.after)
            else ""
        )
        return f"{owner.processor} waits for {', '.join(waits)}{hangs} to release it{most}."
    if report is None:
        return f"{owner.processor} has not begun it yet."
    if report.phase is Phase.FAILED:
        return f"{owner.processor} has given it up; the leader decides where it goes."
    if report.error is not None:
        return f"It failed on {owner.processor} and is tried there again.{_sentence(report.tried)}"
    return f"{owner.processor} {'starts it' if each.first else 'restores it from its log'}."


def _sentence(text: str | None) -> str:
    return f" {text}." if text else ""


def _lacks_container(owner: Owner | None, rows: Mapping[str, ProcessorRow]) -> bool:
    row = rows.get(owner.processor) if owner is not None else None
    return row is not None and owner is not None and row.incarnation == owner.incarnation and row.no_container


#: A heartbeat is late after this many intervals.
LATE = 2


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a live processor has sent no heartbeat, by the clock of the service.

    After an outage all heartbeats are late at first. `is_sure`: it was late a heartbeat ago, too, and none has come.
    """

    seconds: float
    is_sure: bool = True

    def gone(self, timeout_s: float) -> bool:
        """Whether an observer takes the processor for dead, as the leader does, or soon will."""
        return self.is_sure and self.seconds >= timeout_s

    def doubtful(self, timeout_s: float) -> bool:
        """Whether another look has to show whether it is alive."""
        return not self.is_sure and self.seconds >= timeout_s


class SeenSilent:
    """The silence of each live processor, as an observer outside of the group sees it."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._late: dict[tuple[str, str, int], float] = {}  # the heartbeats that were late, and when first seen so

    def forget(self) -> None:
        """Forget all suspicion: the account did not answer, so no heartbeat was accepted either."""
        self._late.clear()

    def note(self, rows: Sequence[ProcessorRow], now: float) -> dict[str, Silence]:
        """Note what one more read has found at `now`, by any clock. Return the silence by processor."""
        late = [row for row in rows if row.alive and row.age_s >= LATE * self._heartbeat_s]
        self._late = {
            each: self._late.get(each, now) for each in ((row.processor, row.incarnation, row.beat) for row in late)
        }
        sure = {each[0] for each, since in self._late.items() if now >= since + self._heartbeat_s}
        return {row.processor: Silence(row.age_s, row.processor in sure) for row in rows if row.alive}


class SeenWaiting:
    """Since when an observer has seen each task not run for the same reason. No processor stores that."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def note(self, shown: Mapping[str, Any], now: float) -> None:
        """Add to each task of a status document for how many seconds it was seen to wait: `why_s`."""
        idle = [task for task in shown["tasks"] if task["why"]]
        self._since = {(each["name"], each["why"]): self._since.get((each["name"], each["why"]), now) for each in idle}
        for each in idle:
            each["why_s"] = now - self._since[each["name"], each["why"]]


def _holds(before: Owner, rows: dict[str, ProcessorRow]) -> bool:
    """Whether a former owner is alive, and so may still have the task."""
    row = rows.get(before.processor)
    return row is not None and row.alive and row.incarnation == before.incarnation

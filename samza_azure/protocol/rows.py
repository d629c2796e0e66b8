"""The table's rows as values: a processor's row, the leader row, a request.

What others wrote is hearsay: a row with garbage in it is read as far as it makes sense, and never stops anybody.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from samza_azure.protocol.messages import DrainPhase, Ends, Phase, TaskError, TaskReport, ends_from

MEMBERS = "members"
LEADER = "leader"
REQUESTS = "requests"
#: A table column holds 64 KiB of UTF-16.
COLUMN_LIMIT = 32_000


class State(StrEnum):
    """A processor's state, as its row says."""

    UNASSIGNED = "UNASSIGNED"  # has adopted no version yet
    ACTIVE = "ACTIVE"
    LEAVING = "LEAVING"  # keeps beating, wants no tasks
    LEFT = "LEFT"
    DEAD = "DEAD"  # written by the leader


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """What one processor tells the others. `etag` is the row's ETag when it was read."""

    processor: str
    incarnation: str
    etag: str = ""
    beat: int = 0
    adopted: int = 0
    state: State = State.UNASSIGNED
    released: Mapping[str, int] = field(default_factory=dict)  # task -> generation up to which it has let go
    tasks: Mapping[str, TaskReport] = field(default_factory=dict)
    fingerprint: str = ""
    new_run: str = ""  # the run that this processor wants to begin after a drained one, if any
    boot: str = ""
    port: int = 0
    epoch: int = 0  # of the leader that marked it dead

    @property
    def alive(self) -> bool:
        """Neither dead nor left."""
        return self.state not in (State.DEAD, State.LEFT)


def columns(row: ProcessorRow) -> dict[str, str | int | bool]:
    """The columns of a processor's row, the key left out."""
    return {
        "incarnation": row.incarnation,
        "beat": row.beat,
        "adopted": row.adopted,
        "state": str(row.state),
        "released": json.dumps(row.released, separators=(",", ":")),
        "tasks": _tasks_text(row.tasks),
        "fingerprint": row.fingerprint,
        "new_run": row.new_run,
        "boot": row.boot,
        "port": row.port,
    }


def processor_row(key: str, etag: str, values: Mapping[str, Any]) -> ProcessorRow:
    """A processor's row as read; what makes no sense is left at its default."""
    try:
        state = State(str(values.get("state", "")))
    except ValueError:
        state = State.UNASSIGNED
    return ProcessorRow(
        processor=key,
        incarnation=str(values.get("incarnation", "")),
        etag=etag,
        beat=_integer(values.get("beat")),
        adopted=_integer(values.get("adopted")),
        state=state,
        released={task: _integer(at) for task, at in _object(values.get("released")).items()},
        tasks=_tasks(values.get("tasks")),
        fingerprint=str(values.get("fingerprint", "")),
        new_run=str(values.get("new_run", "")),
        boot=str(values.get("boot", "")),
        port=_integer(values.get("port")),
        epoch=_integer(values.get("epoch")),
    )


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The leader's sign of life, and what followers compare before they read the control blob."""

    epoch: int
    version: int
    signal: str
    control_etag: str
    beat: int
    successors: tuple[str, ...] = ()
    etag: str = ""


def leader_columns(row: LeaderRow) -> dict[str, str | int | bool]:
    """The columns of the leader row."""
    return {
        "epoch": row.epoch,
        "version": row.version,
        "drain": row.signal,
        "control_etag": row.control_etag,
        "beat": row.beat,
        "successors": ",".join(row.successors),
    }


def leader_row(etag: str, values: Mapping[str, Any]) -> LeaderRow:
    """The leader row as read."""
    successors = str(values.get("successors", ""))
    return LeaderRow(
        epoch=_integer(values.get("epoch")),
        version=_integer(values.get("version")),
        signal=str(values.get("drain", "")),
        control_etag=str(values.get("control_etag", "")),
        beat=_integer(values.get("beat")),
        successors=tuple(successors.split(",")) if successors else (),
        etag=etag,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody with access to the account asks of the leader."""

    key: str
    etag: str
    kind: str
    run_id: str
    answer: str


def request(key: str, etag: str, values: Mapping[str, Any]) -> Request:
    """A request as read. An unknown kind is answered, not obeyed."""
    return Request(
        key=key,
        etag=etag,
        kind=str(values.get("kind", ""))[:64],
        run_id=str(values.get("runId", ""))[:256],
        answer=str(values.get("answer", "")),
    )


def _tasks_text(tasks: Mapping[str, TaskReport]) -> str:
    """Task reports in one column. Tracebacks are cut before the column is refused for its size."""
    for keep in (4_000, 500, 0):
        text = json.dumps({name: _short(report, keep) for name, report in tasks.items()}, separators=(",", ":"))
        if len(text) <= COLUMN_LIMIT:
            return text
    return "{}"


def _short(report: TaskReport, keep: int) -> dict[str, Any]:
    fields = {key: value for key, value in asdict(report).items() if value is not None and key != "task"}
    if report.error is not None:
        fields["error"] = {"message": report.error.message[:1000], "traceback": report.error.traceback[-keep or None :]}
        if keep == 0:
            fields["error"]["traceback"] = ""
    return fields


def _tasks(text: object) -> dict[str, TaskReport]:
    tasks = {}
    for name, fields in _object(text).items():
        try:
            tasks[name] = _report(name, fields)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return tasks


def _report(name: str, fields: dict[str, Any]) -> TaskReport:
    return TaskReport(
        task=name,
        generation=int(fields["generation"]),
        attempt=int(fields["attempt"]),
        phase=Phase(fields["phase"]),
        batch=int(fields.get("batch", -1)),
        late=int(fields.get("late", 0)),
        drain=DrainPhase(fields["drain"]) if fields.get("drain") else None,
        ends=_ends(fields.get("ends")),
        read=_ends(fields.get("read")),
        error=TaskError(**fields["error"]) if fields.get("error") else None,
        appended_at=fields.get("appended_at"),
    )


def _ends(fields: Any) -> Ends | None:
    return None if fields is None else ends_from(fields)


def _object(text: object) -> dict[str, Any]:
    try:
        value = json.loads(str(text or "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

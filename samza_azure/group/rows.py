"""The table's rows as values: a processor's row, the leader row, a request.

What others wrote is hearsay: garbage in a row is ignored as far as possible, and never stops a processor.

An unknown column is ignored, and a merge leaves it unchanged. The meaning of a column does not change, except for those
that contain JSON: `format`, by default 1, is the format that their reader must know. A reader that does not know it
ignores them.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import islice
from typing import Any

from samza_azure.foreign import parsed, unpacked
from samza_azure.group.notice import LEFT_LIMIT, WHY_LIMIT, Availability, Going
from samza_azure.group.notification import DrainMode, mode_of
from samza_azure.group.shape import made
from samza_azure.logs.position import Ends
from samza_azure.messages import (
    BATCH_PHASES,
    CPU_PHASES,
    WARNING_LIMIT,
    DrainPhase,
    LastBatch,
    Machine,
    Phase,
    Progress,
    ReplicaState,
    TaskError,
    TaskReport,
    Use,
    ends_from,
)
from samza_azure.names import ANY_RUN, PROCESSOR_ID, RUN_ID

MEMBERS = "members"
#: The format of the JSON in a processor's row, and of requests.
FORMAT = 1
LEADER = "leader"
REQUESTS = "requests"
#: The row of the record of the last day: `host/last_day.py`.
RECORD = "record"
#: A table column holds 64 KiB of UTF-16.
COLUMN_LIMIT = 32_000
#: A row holds 1 MiB. This is the number of columns for the reports of tasks, and for released tasks.
TASKS_COLUMNS, RELEASED_COLUMNS = 12, 2
#: The prefix of a packed text. JSON never begins with it.
PACKED = "z:"
#: A foreign row may unpack to any size; no more than this is read. Those of thousands of tasks have some MiB.
UNPACKED_LIMIT = 8 << 20
#: The characters of all tracebacks in a row together. A single one has at most a quarter of that.
TRACEBACKS = 16_000
#: In characters: the longest incarnation, and the longest key of a request. Azure's keys are no longer.
INCARNATION_LIMIT, KEY_LIMIT = 64, 512
#: None of our counters gets this far, and a foreign one could not be increased.
_LARGEST = 1 << 53
#: The fields of a task's report, without its name.
_SHOWN = tuple(name for name in TaskReport.__slots__ if name != "task")
#: Those that are left out if they are 0, as they mostly are.
_NONE_IS_0 = ("failures", "restarts")
#: The fields of its progress that only its own processor wants, for metrics.
_TIMES = ("wall_s", "cpu_s")
#: In characters: the longest reason why a processor ended.
ENDING_LIMIT = 500
#: In characters: the longest account of a task's tries.
TRIED_LIMIT = 200
#: In characters: the longest name of a machine, of a release and of code, and all that is said of a machine.
NAME_LIMIT, MACHINE_LIMIT = 255, 4_000
#: Where processors may call each other: this machine, and the private networks.
_INSIDE = tuple(
    ip_network(each)
    for each in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7")
)
_TOKEN = re.compile("[0-9a-f]{64}")
_FAILURE = re.compile(r"([1-9][0-9]{0,2}) (.*)", re.DOTALL)
#: In characters: no request of samza_azure has more text than this.
REQUEST_LIMIT = 64_000
#: No request of samza_azure has more columns. Azure allows 252, and the answer needs one.
REQUEST_COLUMNS = 100


class ProcessorState(StrEnum):
    """A processor's state, as its row says."""

    UNASSIGNED = "UNASSIGNED"  # has adopted no version yet
    ACTIVE = "ACTIVE"
    LEAVING = "LEAVING"  # keeps beating, wants no tasks
    LEFT = "LEFT"
    DEAD = "DEAD"  # written by the leader


@dataclass(frozen=True, slots=True)
class Bell:
    """Where a processor's port takes connections of others, and the token that this incarnation knows them by."""

    host: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """What one processor reports to the others. `etag` is the row's ETag when it was read."""

    processor: str
    incarnation: str
    etag: str = ""
    beat: int = 0
    adopted: int = 0
    state: ProcessorState = ProcessorState.UNASSIGNED
    released: Mapping[str, int] = field(default_factory=dict)  # task -> generation up to which it is released
    tasks: Mapping[str, TaskReport] = field(default_factory=dict)
    fingerprint: str = ""
    new_run: str = ""  # the run that this processor wants to begin after a drained one, if any; ANY_RUN: under any id
    boot: str = ""
    epoch: int = 0  # of the leader that marked it dead
    ending: str = ""  # the exit code and the reason, once it has left, or while it leaves because it gave up
    format: int = FORMAT  # that a reader must know
    too_old_for: int = 0  # a format that this processor's release does not know: it has released all and stands by
    cut_off: bool = False  # it sends heartbeats, but cannot reach the control blob
    no_container: bool = False  # its container has ended and the next one is not ready, or it hangs
    age_s: float = field(default=0.0, compare=False)  # unchanged for so long when first read, by the service's clock
    machine: Machine = field(default=Machine(), compare=False)  # as a row is not written for it alone
    going: Going | None = field(default=None, compare=False)  # if it will go; `state` and `released` change with it
    #: The replicas that it has ready; None: its job keeps none.
    replicas: Mapping[str, ReplicaState] | None = field(default=None, compare=False)
    was_going: bool = field(default=False, compare=False)  # it has said so before
    bell: Bell | None = field(default=None, compare=False)

    @property
    def failure(self) -> tuple[int, str] | None:
        """The exit code and the reason, if it ended with an error."""
        found = _FAILURE.fullmatch(self.ending)
        return (int(found[1]), found[2]) if found is not None else None

    @property
    def is_ours(self) -> bool:
        """Whether a processor can have written it: the key is a valid id, and there is a valid incarnation."""
        return bool(self.incarnation) and _is_id(self.processor)

    @property
    def alive(self) -> bool:
        """Whether it is ours and neither dead nor left."""
        return self.state not in (ProcessorState.DEAD, ProcessorState.LEFT) and self.is_ours


@lru_cache(4096)  # each turn of a leader asks for each row
def _is_id(text: str) -> bool:
    return PROCESSOR_ID.accepts(text)


def _named(text: str, most: int) -> str:
    """A name from a row; empty if samza_azure gives no such name. The leader stores it in the control blob, which
    cannot have a lone surrogate.
    """
    return text if len(text) <= most and text.isprintable() else ""


def _whole(text: str) -> str:
    """A text for people, without lone surrogates, for the same reason."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def is_run_id(text: str) -> bool:
    """Whether a run can have this id."""
    return RUN_ID.accepts(text)


def ending(code: int, message: str) -> str:
    """The value of that column: the exit code and the first line of the reason."""
    return f"{int(code)} {message.partition(chr(10))[0]}"[:ENDING_LIMIT]


def columns(row: ProcessorRow) -> dict[str, str | int | bool]:
    """The columns of a processor's row, without the key."""
    return {
        "incarnation": row.incarnation,
        "beat": row.beat,
        "adopted": row.adopted,
        "state": str(row.state),
        **_shortened("released", row.released, RELEASED_COLUMNS, [_text_of(row.released)]),
        **_shortened("tasks", _least(row.tasks), TASKS_COLUMNS, _texts(row.tasks)),
        "fingerprint": row.fingerprint,
        "new_run": row.new_run,
        "boot": row.boot,
        "cut_off": row.cut_off,
        **({"machine": _text_of(asdict(row.machine))} if row.machine != Machine() else {}),
        "no_container": row.no_container,
        **(_of_replicas(row.replicas) if row.replicas is not None else {}),
        **({"format": row.format} if row.format > 1 else {}),
        **({"ending": row.ending} if row.ending else {}),
        **({"too_old_for": row.too_old_for} if row.too_old_for else {}),
        # A merge leaves a column as it is that it does not name, so a notice that was withdrawn is written as well.
        **({"going": _text_of(asdict(row.going) if row.going else {})} if row.going or row.was_going else {}),
        **({"bell": _text_of(asdict(row.bell))} if row.bell is not None else {}),
    }


def processor_row(key: str, etag: str, values: Mapping[str, Any], age_s: float = 0.0) -> ProcessorRow:
    """A processor's row as read. Invalid columns get their defaults."""
    try:
        state = ProcessorState(str(values.get("state", "")))
    except ValueError:
        state = ProcessorState.UNASSIGNED
    needs = _format(values)
    return ProcessorRow(
        processor=key,
        incarnation=_named(str(values.get("incarnation", "")), INCARNATION_LIMIT),
        etag=etag,
        beat=_integer(values.get("beat")),
        adopted=_integer(values.get("adopted")),
        state=state,
        released={task: _integer(at) for task, at in _object(joined("released", values)).items()}
        if needs <= FORMAT
        else {},
        tasks=_tasks(joined("tasks", values)) if needs <= FORMAT else {},
        fingerprint=str(values.get("fingerprint", "")),
        new_run=new_run if (new_run := str(values.get("new_run", ""))) == ANY_RUN or is_run_id(new_run) else "",
        boot=str(values.get("boot", "")),
        epoch=_integer(values.get("epoch")),
        ending=_whole(str(values.get("ending", "")))[:ENDING_LIMIT],
        format=needs,
        too_old_for=_integer(values.get("too_old_for")),
        cut_off=values.get("cut_off") is True,
        no_container=values.get("no_container") is True,
        age_s=age_s,
        machine=_machine(values.get("machine")),
        replicas=_replicas(joined("replicas", values)) if "replicas" in values and needs <= FORMAT else None,
        going=_going(values.get("going")) if state not in (ProcessorState.UNASSIGNED, ProcessorState.ACTIVE) else None,
        bell=_bell(values.get("bell")),
    )


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """The leader's heartbeat, and what followers compare before they read the control blob."""

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


class RequestKind(StrEnum):
    """What can be asked of the leader."""

    DRAIN = "drain"
    CANCEL = "cancel"  # a drain, as long as nothing is flushed
    STOP = "stop"
    DECOMMISSION = "decommission"  # one processor
    RECOMMISSION = "recommission"  # the notice is withdrawn


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody with access to the account asks of the leader. Without a kind it cannot be obeyed."""

    key: str
    etag: str
    kind: RequestKind | None
    run_id: str = ""  # empty: the run in progress, or the next
    answer: str = ""
    incarnations: frozenset[str] = frozenset()  # the shortened incarnations that it is for; for a stop, empty: all
    by: str = ""  # who asks, as the command says
    asked_ms: int = 0  # when, by the clock of the requester
    age_s: float = field(default=0.0, compare=False)  # as in a processor's row
    until_ms: int = 0  # until when to hand over, by the clock of the requester; 0: it does not say


#: How many characters of an incarnation are in a stop request, so that thousands fit into one column.
SHORT_LIFE = 8


_KINDS = {str(kind) for kind in RequestKind}


def request_columns(
    kind: RequestKind,
    key: str,
    run_id: str,
    incarnations: Sequence[str] = (),
    *,
    by: str = "",
    asked_ms: int = 0,
    until_ms: int = 0,
) -> dict[str, str | int]:
    """The columns of a request's row, under Samza's names for a drain's."""
    lives = ",".join(sorted(incarnation[:SHORT_LIFE] for incarnation in incarnations))
    values: dict[str, str | int] = {"kind": str(kind), "uuid": key, "runId": run_id}
    values |= {name: value for name, value in (("by", by), ("askedMs", asked_ms), ("untilMs", until_ms)) if value}
    if kind is RequestKind.DRAIN:
        values["drainMode"] = str(DrainMode.DEFAULT)
    return values | ({"incarnations": lives} if 0 < len(lives) <= COLUMN_LIMIT else {})


def request(key: str, etag: str, values: Mapping[str, Any], age_s: float = 0.0) -> Request:
    """A request as read. It gets no kind if its kind is unknown or it is larger than any that samza_azure writes.

    The same holds for a drain without one of the columns that each release has written, for one whose UUID is not its
    key, and for one with a mode that this release does not know: it would end the wrong run, or in another way than
    requested.
    """
    asked, run_id, answer, lives = (str(values.get(name, "")) for name in ("kind", "runId", "answer", "incarnations"))
    is_ours = (
        _named(key, KEY_LIMIT) != ""  # no answer can be written to a row without a key
        and asked in _KINDS
        and len(values) <= REQUEST_COLUMNS
        and _format(values) <= FORMAT
        and sum(len(str(value)) for value in values.values()) <= REQUEST_LIMIT
    )
    if asked == RequestKind.DRAIN:
        has_all = all(isinstance(values.get(name), str) for name in ("uuid", "runId", "drainMode"))
        is_ours = is_ours and has_all and values["uuid"] == key and mode_of(values["drainMode"]) is not None
    return Request(
        key,
        etag,
        RequestKind(asked) if is_ours else None,
        run_id[:256],
        answer[:256],
        frozenset(lives.split(",")) if is_ours and lives else frozenset(),
        _whole(str(values.get("by", "")))[:256],
        _integer(values.get("askedMs")),
        age_s,
        _integer(values.get("untilMs")),
    )


def _shortened(name: str, values: Mapping[str, Any], most: int, texts: Iterable[str]) -> dict[str, str | int | bool]:
    """The columns for the first text that fits, each shorter than the previous. If none fits, drop half of the values.

    A row that is too long must not end a processor: its tasks would move to others, whose rows would then be too long.
    """
    for text in texts:
        if (split := split_up(name, text, most)) is not None:
            return split
    few = dict(islice(values.items(), len(values) // 2))
    return _shortened(name, few, most, [_text_of(few)])


def _texts(tasks: Mapping[str, TaskReport]) -> Iterator[str]:
    """Task reports as text, first in full, then shorter. If many tasks have failed, each traceback is shorter."""
    failed = sum(report.error is not None for report in tasks.values())
    keep = TRACEBACKS // max(failed, 4)
    for left_out, traceback in (
        ((), keep),
        (("last_batch",), keep),
        (("last_batch", "progress"), keep),
        (("last_batch", "progress", "read"), keep),
        (("last_batch", "progress", "read", "late"), keep),
        (("last_batch", "progress", "read", "late"), 0),
    ):
        yield _text_of({name: _short(report, traceback, left_out) for name, report in tasks.items()})
    yield _text_of(_least(tasks))


def _least(tasks: Mapping[str, TaskReport]) -> dict[str, Any]:
    """Only what the leader needs of tasks. While there is no room for the ends, a drain does not advance."""
    left_out = ("last_batch", "progress", "read", "late", "ends", "appended_at", "tried", "failures", "restarts")
    return {name: _short(report, 0, left_out) for name, report in tasks.items()}


def _text_of(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


def split_up(name: str, text: str, most: int) -> dict[str, str | int | bool] | None:
    """A text in as many columns as it needs: `name`, `name_1`, …. If it is too long for one column, it is packed first.
    None if it needs too many columns.

    A merge leaves columns unchanged that it does not name, so `name_columns` gives their number.
    """
    if len(text) > COLUMN_LIMIT:
        text = PACKED + base64.b64encode(zlib.compress(text.encode(), level=1)).decode()
    parts = [text[at : at + COLUMN_LIMIT] for at in range(0, len(text), COLUMN_LIMIT)]
    if len(parts) > most:
        return None
    split: dict[str, str | int | bool] = {f"{name}_columns": len(parts), name: parts[0]}
    return split | {f"{name}_{number}": part for number, part in enumerate(parts[1:], 1)}


def joined(name: str, values: Mapping[str, Any]) -> str:
    """The text that was split. Empty if it cannot be unpacked."""
    more = min(_integer(values.get(f"{name}_columns")), TASKS_COLUMNS)
    text = "".join(str(values.get(column, "")) for column in (name, *(f"{name}_{number}" for number in range(1, more))))
    if not text.startswith(PACKED):
        return text
    try:
        return unpacked(base64.b64decode(text.removeprefix(PACKED)), UNPACKED_LIMIT).decode()
    except ValueError:
        return ""


def _short(report: TaskReport, keep: int, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """What a row reports about a task, with the last `keep` characters of its traceback."""
    shown = [name for name in _SHOWN if name not in left_out]
    fields = {name: value for name in shown if (value := getattr(report, name)) is not None}
    fields = {name: value for name, value in fields.items() if value or name not in _NONE_IS_0}
    if report.progress is not None and "progress" in fields:
        fields["progress"] = {name: value for name, value in asdict(report.progress).items() if name not in _TIMES}
    if report.last_batch is not None and "last_batch" in fields:
        fields["last_batch"] = asdict(report.last_batch)
    if report.error is not None:
        traceback = _whole(report.error.traceback)
        fields["error"] = {
            "message": _whole(report.error.message[:1000]),
            "traceback": traceback[max(len(traceback) - keep, 0) :],
        }
    return fields


def _tasks(text: object) -> dict[str, TaskReport]:
    tasks = {}
    for name, fields in _object(text).items():
        try:
            tasks[name] = _report(name, fields)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
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
        frozen_for=str(fields.get("frozen_for", "")),
        read=_ends(fields.get("read")),
        error=_error(fields["error"]) if fields.get("error") else None,
        appended_at=at if isinstance(at := fields.get("appended_at"), float) else None,
        progress=_progress(fields.get("progress")),
        last_batch=_last_batch(fields.get("last_batch")),
        tried=str(fields["tried"])[:TRIED_LIMIT] if fields.get("tried") else None,
        failures=_integer(fields.get("failures")),
        restarts=_integer(fields.get("restarts")),
    )


def _error(fields: Mapping[str, Any]) -> TaskError:
    return made(TaskError, {name: fields[name] for name in TaskError.__slots__})


def _progress(fields: Any) -> Progress | None:
    """The progress, of which only numbers and a warning are kept. It is only shown, so their values do not matter."""
    if not isinstance(fields, dict):
        return None
    numbers: dict[str, Any] = {name: _integer(fields.get(name)) for name in ("batches", "rows", "rows_out", "size")}
    watermark, appended, pace_out = (fields.get(name) for name in ("watermark_ms", "appended_ms", "pace_out"))
    behind, of_sources, lag_rows, lag_s = (
        found if isinstance(found := fields.get(name), dict) else {}
        for name in ("behind", "behind_sources", "lag_rows", "lag_s")
    )
    return Progress(
        **numbers,
        seconds=_decimal(fields.get("seconds")),
        pace=_decimal(fields.get("pace")),
        watermark_ms=watermark if type(watermark) is int and abs(watermark) <= _LARGEST else None,
        behind=_integers(behind),
        appended_ms=_integer(appended) or None,
        pace_out=None if pace_out is None else _decimal(pace_out),
        behind_sources=_integers(of_sources),
        lag_rows=_integers(lag_rows),
        lag_s={str(key): _decimal(seconds) for key, seconds in lag_s.items()},
        waits_for_readers=fields.get("waits_for_readers") is True,
        warning=_whole(" ".join(str(fields.get("warning") or "").split()))[:WARNING_LIMIT],
    )


def _of_replicas(held: Mapping[str, ReplicaState]) -> dict[str, str | int | bool]:
    """The columns of the replicas."""
    fields = {task: asdict(state) for task, state in held.items()}
    return _shortened("replicas", fields, RELEASED_COLUMNS, [_text_of(fields)])


def _replicas(text: object) -> dict[str, ReplicaState]:
    """The replicas, of which only numbers are kept. They decide who gets a task, if nothing else does."""
    return {
        _whole(task)[:NAME_LIMIT]: ReplicaState(*(_integer(state.get(name)) for name in ReplicaState.__slots__))
        for task, state in _object(text).items()
        if isinstance(state, dict)
    }


def _integers(fields: dict[Any, Any]) -> dict[str, int]:
    return {str(key): _integer(value) for key, value in fields.items()}


def _integers_of(fields: Any, names: Sequence[str]) -> dict[str, int]:
    """The values with these names."""
    return {name: _integer(fields[name]) for name in names if name in fields} if isinstance(fields, dict) else {}


def _last_batch(fields: Any) -> LastBatch | None:
    """The last batch, of which only numbers of known phases are kept. It is only shown, like the progress."""
    if not isinstance(fields, dict):
        return None
    late, rows, size = (
        None if fields.get(name) is None else _integer(fields[name]) for name in ("late", "state_rows", "state_bytes")
    )
    return LastBatch(
        _integer(fields.get("batch")),
        _integer(fields.get("rows")),
        _integers_of(fields.get("ms"), BATCH_PHASES),
        late,
        rows,
        size,
        _integers_of(fields.get("cpu_ms"), CPU_PHASES),
    )


def _machine(text: object) -> Machine:
    """Where a processor runs, as far as it makes sense. Rows of earlier releases do not say it."""
    fields = _object(text if isinstance(text, str) and len(text) <= MACHINE_LIMIT else None)
    use = fields.get("use")
    sizes = dict.fromkeys(("memory", "memory_most", "heap", "heap_most"), 0)
    if isinstance(use, dict):
        sizes = {name: _integer(use.get(name)) for name in sizes}
    names = {
        name: _named(value, NAME_LIMIT)
        for name in ("host", "release", "code")
        if isinstance(value := fields.get(name), str)
    }
    return Machine(**names, use=Use(cpu=_decimal(use.get("cpu")) if isinstance(use, dict) else 0.0, **sizes))


def _going(text: object) -> Going | None:
    """What a processor that will go says of it, as far as it makes sense."""
    fields = _object(text if isinstance(text, str) and len(text) <= COLUMN_LIMIT else None)
    if fields.get("state") not in (Availability.DECOMMISSIONING, Availability.DECOMMISSIONED):
        return None
    left = fields.get("left")
    named = islice(left.items(), LEFT_LIMIT) if isinstance(left, dict) else ()
    return Going(
        Availability(fields["state"]),
        _whole(str(fields.get("why", "")))[:WHY_LIMIT],
        **{name: _integer(fields.get(name)) for name in ("by_ms", "tasks", "handed_over", "repeated")},
        left={_whole(task)[:NAME_LIMIT]: _whole(str(why))[:WHY_LIMIT] for task, why in named},
        stays=fields.get("stays") is True,
        asked=fields.get("asked") is True,
    )


def address_inside(host: str) -> str | None:
    """This address, in one form, if it is of this machine or of a private network: processors may call each other
    there."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return None  # any text may follow a `%`, so a URL may show another host
        found = found.ipv4_mapped or found
    is_inside = any(found.version == each.version and found in each for each in _INSIDE)
    return str(found) if is_inside else None


def _bell(text: object) -> Bell | None:
    """A bell, if processors may call it: whoever can write rows must not make them call other services outside."""
    fields = _object(text if isinstance(text, str) and len(text) <= NAME_LIMIT else None)
    host, port, token = fields.get("host"), _integer(fields.get("port")), fields.get("token")
    address = address_inside(host) if isinstance(host, str) else None
    if address is None or not isinstance(token, str) or not _TOKEN.fullmatch(token) or not 0 < port < 1 << 16:
        return None
    return Bell(address, port, token)


def _ends(fields: Any) -> Ends | None:
    return None if fields is None else ends_from(fields)


def _object(text: object) -> dict[str, Any]:
    try:
        value = parsed(str(text or "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _format(values: Mapping[str, Any]) -> int:
    return max(_integer(values.get("format")), 1)


def _decimal(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 <= value <= _LARGEST else 0.0


def _integer(value: object) -> int:
    return value if type(value) is int and 0 <= value <= _LARGEST else 0

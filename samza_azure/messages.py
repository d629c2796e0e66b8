"""The messages between the supervisor and its container: one JSON object per line, over a socket pair.

The supervisor commands, the container reports. A report repeats the whole state of a task, so a lost or repeated
line does no harm. Times are seconds of CLOCK_BOOTTIME, the one clock that both processes share.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from samza_azure.logs.names import stage_and_number, task_name
from samza_azure.logs.position import Ends

#: The exit code of a container whose JVM ran out of memory: the JVM's own.
OUT_OF_MEMORY = 3
#: That of a JVM whose application Spark has ended.
APPLICATION_ENDED = 4


class Phase(StrEnum):
    """The phase of a task in its container."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RELEASED = "RELEASED"  # closed for good under this attempt; no write is unsettled
    DRAINED = "DRAINED"  # its log ends in DRAINED
    SUPERSEDED = "SUPERSEDED"  # a higher writer was found in its log
    RESTART = "RESTART"  # the query ended because storage or permit were missing; start it again, it is not a failure
    FAILED = "FAILED"


class DrainStep(StrEnum):
    """What the control blob asks of every processor."""

    FREEZE = "FREEZE"
    FLUSH = "FLUSH"


class DrainPhase(StrEnum):
    """The progress of a draining task, as it is shown to people."""

    REQUESTED = "REQUESTED"
    SOURCES_STOPPED = "SOURCES_STOPPED"
    FLUSHING = "FLUSHING"
    COMMITTED = "COMMITTED"
    DRAINED = "DRAINED"


@dataclass(frozen=True, slots=True)
class KindFacts:
    """What is asked about a kind of task. A new question is a field here, which each kind answers in `FACTS`."""

    shown_as: str = "stage"  # in the status and its graph
    has_query: bool = False
    calls_handler: bool = False
    reads_outside: bool = False  # through a connector
    sends_outside: bool = False  # likewise
    told_by: str = ""  # the fact in `Plan.described` that says where its rows go, or where they come from
    put_into: str = ""  # of a sink, for people: what its rows go to, with the place of `StagePlan.target`
    writes_per_flush: int = 0  # of a sink: the calls that write a blob
    is_merged: bool = False  # the files of its flushes are merged later

    @property
    def is_sink(self) -> bool:
        """Whether its tasks put rows where others read them, and write no stream."""
        return bool(self.put_into)


class TaskKind(StrEnum):
    """What the tasks of a stage do. `tasks.kinds` has their classes; all else is asked of `facts`."""

    QUERY = "query"  # run a query of Spark's
    HANDLER = "handler"  # call a handler for each message
    TABLE = "table"  # publish the rows of the input as segments of a table
    FILES = "files"  # write them as Parquet files into a folder
    OUTLET = "outlet"  # send them to a system outside, through a connector
    SOURCE = "source"  # read a stream from outside, through a connector

    @property
    def facts(self) -> KindFacts:
        """What is asked about it."""
        return FACTS[self]


FACTS = {
    TaskKind.QUERY: KindFacts(has_query=True),
    TaskKind.HANDLER: KindFacts(calls_handler=True),
    TaskKind.TABLE: KindFacts("table", told_by="table", put_into="table {}", writes_per_flush=2, is_merged=True),
    TaskKind.FILES: KindFacts("folder", told_by="files", put_into="folder files/{}", writes_per_flush=3),
    TaskKind.OUTLET: KindFacts(
        "outlet", sends_outside=True, told_by="writes", put_into="system {}", writes_per_flush=1
    ),
    TaskKind.SOURCE: KindFacts("source task", reads_outside=True, told_by="reads"),
}


def facts_told(described: Mapping[str, str]) -> KindFacts:
    """Those of a stage's kind, as far as `Plan.described` has told it."""
    told = (each for each in FACTS.values() if each.told_by)  # a query and a handler are not told
    return next((each for each in told if each.told_by in described), KindFacts())


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One analysed stage. Its tasks are `name-0` to `name-<tasks - 1>`."""

    name: str
    inputs: tuple[str, ...]
    output: str
    tasks: int
    partition_by: tuple[str, ...] = ()
    schema: str = ""  # of the output, as DDL
    stateful: tuple[str, ...] = ()  # names of its stateful operators
    state: tuple[str, ...] = ()  # the same with their keys, for people
    routed_for: str = ""  # set if this stage was added: the stage for which it routes the rows of its input
    routed_by: tuple[str, ...] = ()  # and the expressions to route by
    partitions: int = 1  # of the output
    kind: TaskKind = TaskKind.QUERY
    target: str = ""  # the table, the folder or the system that the rows go to, or the system that they come from
    flush_s: float = 0.0  # how often they are written there, in seconds
    at_once: int = 0  # messages that a handler may have in flight
    batch_partitions: int = 1  # of a batch of a task in Spark, and of its state

    @property
    def keeps_state(self) -> bool:
        """Whether its tasks have state of the job's: operators of a query, or a handler."""
        return bool(self.stateful) or self.kind.facts.calls_handler


@dataclass(frozen=True, slots=True)
class Plan:
    """The analysed pipeline, as the leader needs it. Only the container can make it, since it imports the pipeline."""

    stages: tuple[StagePlan, ...]
    sources: dict[str, int]  # source stream -> number of partitions
    fingerprint: str  # of stages, streams, partitions, schemas, keys and state; not of the code
    warnings: tuple[str, ...] = ()
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)  # stream -> the columns that decide the partition
    code: str = ""  # a hash of the user's modules, for people
    #: "stage clean" or "stream flights" -> its facts, for people. `changes` compares two pipelines by them.
    described: dict[str, dict[str, str]] = field(default_factory=dict)

    def tasks(self) -> list[str]:
        """All tasks, in the order of stages and numbers."""
        return [task_name(stage.name, number) for stage in self.stages for number in range(stage.tasks)]

    def stage_of(self, task: str) -> StagePlan:
        """The stage that a task belongs to."""
        name, _ = stage_and_number(task)
        return next(stage for stage in self.stages if stage.name == name)

    def readers(self) -> dict[str, tuple[str, ...]]:
        """The source streams of each stage that reads any."""
        read = {stage.name: tuple(each for each in stage.inputs if each in self.sources) for stage in self.stages}
        return {stage: streams for stage, streams in read.items() if streams}


def changes(there: Mapping[str, Mapping[str, str]], here: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The differences between two `Plan.described`, a line for each: "stream sales gained column s"."""
    found = [f"{name} is gone" for name in there if name not in here]
    found += [f"{name} is new" for name in here if name not in there]
    for name in sorted(there.keys() & here.keys()):
        old, new = there[name], here[name]
        lines = [f"lost {fact} ({old[fact]})" for fact in old if fact not in new and fact != "state"]
        lines += [f"gained {fact} ({new[fact]})" for fact in new if fact not in old and fact != "state"]
        changed = [fact for fact in old if new.get(fact, old[fact]) != old[fact]]
        lines += [f"{fact} {old[fact]} became {new[fact]}" for fact in changed if fact != "state"]
        if not lines and "state" in changed:
            lines = ["what its state depends on differs (functions, the slide of a window, a schema)"]
        if lines:
            found.append(f"{name}: {'; '.join(lines)}")
    return found


def partitions_of(number: int, tasks: int, partitions: int) -> range:
    """The partitions of a stream that task `number` of a stage with `tasks` tasks reads."""
    return range(number, partitions, tasks)


# From the supervisor.


@dataclass(frozen=True, slots=True)
class Permit:
    """Batches may be started and appends may be sent until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class StartTask:
    """Restore a task from its log and run it as the writer (generation, attempt)."""

    task: str
    generation: int
    attempt: int
    first: bool  # the log may be created; otherwise a missing log is the fatal error "state lost"
    run_id: str
    group_id: str
    positions: Ends = field(default_factory=dict)  # where a new run begins to read its sources; absent = 0, 0


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Close the gate, let the running batch end, close the writer, report RELEASED. Sent again with an earlier time, it
    shortens a release that is under way.
    """

    task: str
    by: float | None = None  # a batch that cannot end until then is given up; None: only `task.shutdown.ms` counts


@dataclass(frozen=True, slots=True)
class Drain:
    """The present drain notification of the control blob. `step` None: there is none, or no longer."""

    step: DrainStep | None
    uuid: str = ""
    ends: Ends = field(default_factory=dict)  # with FLUSH: where each source partition ends


@dataclass(frozen=True, slots=True)
class KeepReplicas:
    """Keep replicas of these tasks, which others run, and of no others. Not of one that was started here."""

    run_id: str = ""
    group_id: str = ""
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """Release everything, then end."""


@dataclass(frozen=True, slots=True)
class Kill:
    """To the supervisor: kill the container, which hangs, so that it cannot release the tasks that others have now."""


# From the container.


@dataclass(frozen=True, slots=True)
class Ready:
    """The session is up and the pipeline is analysed."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Rejected:
    """The pipeline cannot run; the container ends. `message` is for the user."""

    message: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The container's loop runs and its JVM answers. Sent once a second after `Ready`."""

    heap: int = 0  # bytes in use
    heap_most: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """What a container and its processes use of the machine. For people and metrics: no decision depends on it."""

    cpu: float = 0.0  # cores, lately
    memory: int = 0  # bytes
    memory_most: int = 0  # that it may use, together with its supervisor
    heap: int = 0  # of Java, in use
    heap_most: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a processor runs, what it runs, and what that uses. For people."""

    host: str = ""
    release: str = ""  # of samza-azure
    code: str = ""  # as `Plan.code`
    use: Use = Use()


@dataclass(frozen=True, slots=True)
class JvmEnded:
    """The container's JVM has ended, with this code (negative: by that signal). The container ends with it."""

    code: int


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """A hint says that a drain was requested: the supervisor should hear of it soon."""


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why a task failed. Secrets are removed; at most 16 KiB."""

    message: str
    traceback: str


#: In characters: the longest warning of a task.
WARNING_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """What the batches of a task have done in this attempt. For people and metrics: no decision depends on it."""

    batches: int = 0
    rows: int = 0  # read
    rows_out: int = 0
    size: int = 0  # bytes read from the logs
    seconds: float = 0.0  # spent
    pace: float = 0.0  # rows read per second, lately
    watermark_ms: int | None = None  # milliseconds since 1970; None: the stage has none, or not yet
    behind: dict[str, int] = field(default_factory=dict)  # stream -> about how many bytes of its logs are not read
    appended_ms: int | None = None  # when the last batch was appended, by the wall clock; None: none was
    pace_out: float | None = None  # rows emitted per second, lately
    behind_sources: dict[str, int] = field(default_factory=dict)  # source partition -> the same; not of all, if many
    #: Of partitions outside also the rows, and by how many seconds the last of them came later than the last one read.
    lag_rows: dict[str, int] = field(default_factory=dict)
    lag_s: dict[str, float] = field(default_factory=dict)
    waits_for_readers: bool = False  # it reads nothing from outside, since they have too much to read
    warning: str = ""  # what people should do about something outside, while it reads; a sentence
    #: Seconds that the batches of a query took, and of processor time, by phase: see `WALL_PHASES` and `CPU_PHASES`.
    #: Not in the rows of processors.
    wall_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)

    def rows_in(self, size: int) -> int:
        """About how many rows `size` bytes hold, by the mean of those that were read; 0 if none were read."""
        return size * self.rows // self.size if self.size else 0  # of any size: a row may be forged


#: The phases of a batch that are reported, by Spark's names; `triggerExecution` is the whole. The last two are ours,
#: and make up `addBatch`: until the rows are there, and until their record is appended.
BATCH_PHASES = (
    "triggerExecution",
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
    "compute",
    "append",
)
#: The whole of a batch, as metrics divide it: asking the inputs, planning, computing, appending, Spark's own records.
WALL_PHASES = ("read", "plan", "compute", "append", "rest")
#: What is known of its processor time: the query's thread, Spark's tasks, and our own thread.
CPU_PHASES = ("plan", "compute", "append")


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What Spark says of the last batch that was counted. For people: no decision depends on it."""

    batch: int
    rows: int = 0  # read
    ms: dict[str, int] = field(default_factory=dict)  # milliseconds by phase, of BATCH_PHASES
    late: int | None = None  # rows dropped by the watermark; this and the next two are None if the query has no state
    state_rows: int | None = None
    state_bytes: int | None = None  # of memory
    cpu_ms: dict[str, int] = field(default_factory=dict)  # of CPU_PHASES; the mean of the batches reported with it


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The whole state of one task, sent whenever it changes (for batches at most every 500 ms)."""

    task: str
    generation: int
    attempt: int
    phase: Phase
    batch: int = -1  # the last one appended
    late: int = 0  # rows dropped as late, or left out of a table, in this attempt
    drain: DrainPhase | None = None
    ends: Ends | None = None  # once the task is frozen: the furthest position per source partition that it has read to
    frozen_for: str = ""  # the uuid of the drain that `ends` answers; an earlier drain may have been cancelled
    read: Ends | None = None  # how far its appended batches have read each source partition
    error: TaskError | None = None
    appended_at: float | None = None  # of the first append of this attempt
    progress: Progress | None = None
    last_batch: LastBatch | None = None
    tried: str | None = None  # after a failure: how many of how many tries have failed, and when the next one begins
    failures: int = 0  # tries that have failed in a row, here and where it was given up
    restarts: int = 0  # how often it was started again here, for whatever reason
    too_old_for: int | None = None  # it FAILED at a record of this format, which our release does not know
    #: Once it is RELEASED: the input rows of a batch that was given up for that, which its next owner repeats; -1: of
    #: an unknown number. None: no batch was.
    repeated: int | None = None

    @property
    def failing(self) -> bool:
        """Whether it runs, but has failed before and has appended nothing since."""
        return self.phase is Phase.RUNNING and (self.error is not None or self.tried is not None)

    @property
    def has_log(self) -> bool:
        """Whether the task's log certainly exists."""
        return self.phase in (Phase.RUNNING, Phase.DRAINED) or self.batch >= 0


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """How far a replica is."""

    batch: int = -1  # the last one that it has
    behind: int = 0  # bytes of the log that were not read yet, as far as hints say
    size: int = 0  # bytes in memory and on the disk


@dataclass(frozen=True, slots=True)
class HeldReplicas:
    """The replicas that have all that a restore needed a moment ago. Sent when they change, at most once a second."""

    replicas: dict[str, ReplicaState] = field(default_factory=dict)


Command: TypeAlias = Permit | StartTask | ReleaseTask | Drain | KeepReplicas | Exit | Kill
Report: TypeAlias = Ready | Rejected | DrainAsked | TaskReport | HeldReplicas
#: What a container tells its supervisor about itself. The coordinator hears of it in other words.
Sign: TypeAlias = Alive | JvmEnded

_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Permit,
        StartTask,
        ReleaseTask,
        Drain,
        KeepReplicas,
        Exit,
        Ready,
        Rejected,
        Alive,
        JvmEnded,
        DrainAsked,
        TaskReport,
        HeldReplicas,
    )
}


def encode(message: Command | Report | Sign) -> bytes:
    """Encode a message as one line."""
    return json.dumps({"is": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Command | Report | Sign:
    """Decode a line that `encode` made."""
    fields: dict[str, Any] = json.loads(line)
    kind = fields.pop("is")
    match kind:
        case "StartTask":
            fields["positions"] = ends_from(fields["positions"])
        case "Drain":
            fields["step"] = fields["step"] and DrainStep(fields["step"])
            fields["ends"] = ends_from(fields["ends"])
        case "KeepReplicas":
            fields["tasks"] = tuple(fields["tasks"])
        case "HeldReplicas":
            fields["replicas"] = {task: ReplicaState(**each) for task, each in fields["replicas"].items()}
        case "Ready":
            fields["plan"] = plan_from(fields["plan"])
        case "TaskReport":
            fields["phase"] = Phase(fields["phase"])
            fields["drain"] = fields["drain"] and DrainPhase(fields["drain"])
            fields["ends"] = None if fields["ends"] is None else ends_from(fields["ends"])
            fields["read"] = None if fields.get("read") is None else ends_from(fields["read"])
            fields["error"] = fields["error"] and TaskError(**fields["error"])
            fields["progress"] = fields.get("progress") and Progress(**fields["progress"])
            fields["last_batch"] = fields.get("last_batch") and LastBatch(**fields["last_batch"])
    message: Command | Report = _TYPES[kind](**fields)
    return message


def plan_from(fields: dict[str, Any]) -> Plan:
    """Make a plan from its JSON form."""
    texts = ("inputs", "partition_by", "stateful", "state", "routed_by")  # lists in JSON, tuples here
    stages = tuple(
        StagePlan(**stage | {key: tuple(stage[key]) for key in texts} | {"kind": TaskKind(stage["kind"])})
        for stage in fields["stages"]
    )
    keys = {stream: tuple(key) for stream, key in fields["keys"].items()}
    return Plan(
        stages,
        dict(fields["sources"]),
        fields["fingerprint"],
        tuple(fields["warnings"]),
        keys,
        fields["code"],
        fields["described"],
    )


def ends_from(fields: dict[str, Any]) -> Ends:
    """Make positions from their JSON form, which has lists for pairs. Raise ValueError for what is none."""
    ends: Ends = {}
    for partition, (blob, position) in fields.items():
        if type(blob) is not int or type(position) is not int or min(blob, position) < 0:
            raise ValueError(f"{[blob, position]!r:.80} is no position")
        ends[partition] = blob, position
    return ends

"""The sections of a job file, each with its keys and their defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator

from samza_azure.account import Secret
from samza_azure.config.account import (
    valid_account,
    valid_connect,
    valid_container,
    valid_table,
)
from samza_azure.config.systems import BUILT_IN
from samza_azure.config.values import (
    Count,
    Duration,
    Hidden,
    LargeSize,
    Limit,
    LongDuration,
    Milliseconds,
    MillisecondsOrNever,
    Port,
    PositiveDuration,
    Size,
    Switch,
    matching,
    module_names,
    one_or_several,
)
from samza_azure.group.timing import Timing
from samza_azure.names import APP, FOLDER, PROCESSOR_ID, RUN_ID, TABLE, NameRule
from samza_azure.segments.interval import Granularity

AZURE_FACTORY = "samza_azure.AzureJobCoordinatorFactory"
#: More would make a record of small files: a batch of a stage with state writes some for each.
PARTITIONS_MAX = 64
#: The system of the streams in the account.
LOG = "log"


def _named(rule: NameRule) -> AfterValidator:
    """Text that fits the rule; the message proposes one that does."""

    def check(value: str) -> str:
        if rule.accepts(value):
            return value
        plain = re.sub(r"[^A-Za-z0-9]+", "-", value).strip("-")
        fit = next((each for each in (plain, plain.lower()) if rule.accepts(each)), "")
        raise ValueError(rule.says + (f", like {fit!r}" if fit else ""))

    return AfterValidator(check)


def _system(value: str) -> str:
    """A built-in system, or the factory of another one."""
    if re.fullmatch(r"[a-z]+|[A-Za-z_][\w.]*:[A-Za-z_]\w*", value):
        return value
    raise ValueError(f"should be {LOG}, {', '.join(BUILT_IN)}, or a connector, like 'package.module:Factory'")


def _options(value: object) -> Mapping[str, str]:
    """The options of a connector, as text. They may hold secrets."""
    if not isinstance(value, Mapping) or not all(isinstance(each, bool | int | float | str) for each in value.values()):
        raise ValueError("should have one value for each key: text, a number, true or false")
    return Hidden({key: str(each).lower() if isinstance(each, bool) else str(each) for key, each in value.items()})


#: A name of labels that DNS allows, an address of version 4, or one of version 6.
HOST_PATTERN = r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*|[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*"
HOST_RULE = "should be an address of this machine, like '127.0.0.1' or '0.0.0.0'"
_HOST = matching(HOST_PATTERN, HOST_RULE)

# The sections of the file. A field's alias is its key. CoordinatorKeys, StorageKeys and Single hold the file's keys;
# `check.py` makes the values of `Config` from them.

_AS_WRITTEN = ConfigDict(extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The application's name and id, and where to import its pipeline from."""

    __pydantic_config__ = _AS_WRITTEN

    name: Annotated[str, Field(alias="app.name"), _named(APP)]
    """The application's name; the container and the table are named after it, so another name is another group."""
    id: Annotated[str, Field(alias="app.id"), _named(APP)] = "1"
    """Tells several instances of one application apart; each has a container and a table of its own."""
    run_id: Annotated[Annotated[str, _named(RUN_ID)] | None, Field(alias="app.run.id")] = None
    """Names the run by hand, so that others can know it beforehand; by default the leader makes an id."""
    main: Annotated[
        str,
        Field(alias="app.main"),
        matching(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "should be 'module:attribute', like 'pipeline:app'"),
    ]
    """Where to import the pipeline from: `module:attribute`."""
    packages: Annotated[tuple[str, ...], Field(alias="app.packages"), BeforeValidator(module_names)] = ()
    """Modules imported once, before Python's workers are forked: these share them, and the start takes longer."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """How the processors coordinate."""

    factory: str
    profile: str
    blob_length: int
    timing: Timing

    @property
    def is_ours(self) -> bool:
        """Whether the factory is one of this package, so the group is in the account."""
        return self.factory.partition(".")[0] == "samza_azure"

    @property
    def is_alone(self) -> bool:
        """Whether the factory is ours and makes groups of one."""
        return self.is_ours and self.factory.endswith(".PassthroughJobCoordinatorFactory")


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """A profile, and the settings that differ from it."""

    __pydantic_config__ = _AS_WRITTEN

    factory: Annotated[
        str,
        Field(alias="job.coordinator.factory"),
        matching(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*", f"should be the dotted path of a class, like {AZURE_FACTORY!r}"),
    ] = AZURE_FACTORY
    """The class that makes the coordinator: Azure's, a group of one, or your own."""
    profile: Annotated[Literal["eco", "default", "fast"], Field(alias="job.coordinator.profile")] = "default"
    """The durations below, as a set: a faster one notices a death sooner and pays for more operations."""
    blob_length: Annotated[Size, Field(alias="job.coordinator.azure.blob.length")] = 5_120_000
    """The maximum size of the control blob in bytes: a job model that exceeds it is not published."""
    heartbeat_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.heartbeat.interval")] = None
    """Seconds between two heartbeats: shorter costs more operations; longer needs longer timeouts."""
    heartbeat_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.heartbeat.timeout")] = None
    """Silence in seconds that counts as death: shorter fails over sooner, longer forgives slow calls."""
    leader_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.leader.timeout")] = None
    """The same for the leader: shorter elects another one sooner, longer forgives slow calls."""
    scan_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.scan.interval")] = None
    """Seconds between two reads of all members by the leader: shorter notices changes sooner and costs more."""
    debounce_s: Annotated[Duration | None, Field(alias="job.coordinator.debounce")] = None
    """The least seconds between two versions that only balance tasks: longer moves fewer tasks twice; 0: no wait."""
    barrier_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.barrier.timeout")] = None
    """Seconds until a member that has not adopted a version is marked as dead: longer forgives slow members."""


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """The storage as the job file writes it. The two names default to ones made from the application's."""

    __pydantic_config__ = _AS_WRITTEN

    connect: Annotated[Secret | None, Field(alias="azure.storage.connect"), PlainValidator(valid_connect)] = None
    """The account's connection string: simple, but a secret."""
    connect_file: Annotated[Path | None, Field(alias="azure.storage.connect.file")] = None
    """The path of a file with a connection string, which is read again when the account refuses access."""
    account: Annotated[str | None, Field(alias="azure.storage.account"), AfterValidator(valid_account)] = None
    """The account's URL, for an identity instead of a secret."""
    container: Annotated[str | None, Field(alias="azure.storage.container"), AfterValidator(valid_container)] = None
    """The blob container; by default it is named after the application."""
    table: Annotated[str | None, Field(alias="azure.storage.table"), AfterValidator(valid_table)] = None
    """The table; by default it is named after the application."""


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """One processor. Without `id`, its id is made of the host's name and the first free slot in `dir`."""

    __pydantic_config__ = _AS_WRITTEN

    id: Annotated[Annotated[str, _named(PROCESSOR_ID)] | None, Field(alias="processor.id")] = None
    """The processor's name, which no other running processor may have; by default the host's name and a free slot."""
    dir: Annotated[Path, Field(alias="processor.dir")] = Path(".samza-azure")
    """The folder for scratch files; nothing in it is needed to recover."""
    host: Annotated[str, Field(alias="processor.host"), _HOST] = "127.0.0.1"
    """The address that `port` is served at: 127.0.0.1 for this machine only, 0.0.0.0 also for probes from outside."""
    port: Annotated[Port | None, Field(alias="processor.port")] = None
    """The first port to try for health, metrics and the status page; 0: any free port; none: they are not served."""
    bells: Annotated[bool, Field(alias="processor.bells")] = False
    """Whether processors of one private network connect to each other's `port`, to notice a killed process at once."""


#: Where Azure's metadata service is, for each virtual machine the same.
METADATA = "http://169.254.169.254"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The machine that a processor runs on."""

    __pydantic_config__ = _AS_WRITTEN

    notices: Annotated[Literal["none", "azure"], Field(alias="host.notices")] = "none"
    """Who tells that this machine will go: `azure`, its Scheduled Events; `none`, only signals and requests."""
    metadata: Annotated[
        str,
        Field(alias="host.metadata"),
        matching(r"http://[A-Za-z0-9.:\[\]-]+", f"should be like {METADATA!r}"),
    ] = METADATA
    """The address of the metadata service: Azure's own, or for a trial that of another one."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How many tasks a stage has, how often they commit, and when they are given up."""

    __pydantic_config__ = _AS_WRITTEN

    count: Annotated[Count | None, Field(alias="task.count")] = None
    """The maximum of tasks per stage: fewer cost less and run less in parallel; by default a task per partition."""
    commit_ms: Annotated[Milliseconds, Field(alias="task.commit.ms")] = 1_000
    """Milliseconds between two appends of a task: longer costs less and delays rows by as much; 0: no wait."""
    batch_bytes: Annotated[Size, Field(alias="task.batch.bytes")] = 20 << 20
    """Bytes that a task reads for one batch: more rows per append, but more memory."""
    shutdown_ms: Annotated[Milliseconds, Field(alias="task.shutdown.ms")] = 30_000
    """Milliseconds that a task has for its release, and a container may be silent: longer forgives slow batches,
    shorter moves a hanging task sooner; 0: neither is waited for.
    """
    restart_limit: Annotated[Limit, Field(alias="task.restart.limit")] = 5
    """Failures of a task in a row before the run fails; 0: no second try on the same processor."""
    state: Annotated[Literal["auto", "memory", "rocksdb"], Field(alias="task.state")] = "auto"
    """Where state lives: `memory` is faster and must fit into the heap, `rocksdb` uses the disk."""
    max_concurrency: Annotated[Count, Field(alias="task.max.concurrency")] = 1
    """Messages of a low-level task in flight at once, if its stage does not say it: more let waits overlap."""
    callback_timeout_ms: Annotated[MillisecondsOrNever, Field(alias="task.callback.timeout.ms")] = -1
    """Milliseconds that `process` of a handler may take before its task fails; -1 or 0: no limit."""
    callback_drain_timeout_ms: Annotated[MillisecondsOrNever, Field(alias="task.callback.drain.timeout.ms")] = -1
    """The same for `on_drain`; -1: the limit of `process`, 0: no limit."""
    warm_up: Annotated[bool, Field(alias="task.warm.up")] = True
    """Whether a container without a task runs each stage on nothing once: first take-overs are faster, for some CPU
    seconds; false: no code of a stage runs where none of its tasks does, but for the analysis.
    """

    @property
    def callback_timeout_s(self) -> float | None:
        """Seconds that `process` of a handler may take; None: no limit."""
        return self.callback_timeout_ms / 1000 if self.callback_timeout_ms > 0 else None

    @property
    def callback_drain_timeout_s(self) -> float | None:
        """Seconds that `on_drain` of a handler may take, by default the limit of `process`; None: no limit."""
        if self.callback_drain_timeout_ms < 0:
            return self.callback_timeout_s
        return self.callback_drain_timeout_ms / 1000 or None


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: partitions, event time, retention and table. The keys follow `streams.<id>.`."""

    __pydantic_config__ = _AS_WRITTEN

    system: Annotated[str, Field(alias="system"), AfterValidator(_system)] = LOG
    """Where a source comes from, or what a stage writes is sent to: `log`, in the account; `tail`, local files;
    `eventhubs`; `kafka`; or a connector, `package.module:Factory`.
    """
    options: Annotated[Mapping[str, str], Field(alias="options"), PlainValidator(_options)] = field(
        default_factory=lambda: Hidden({})
    )
    """What the connector of a stream outside has to know; each has its own keys."""
    partitions: Annotated[Count, Field(alias="partitions")] = 1
    """How many partitions a source has, the most tasks that can share it; more cost more reads."""
    schema: Annotated[str | None, Field(alias="schema", min_length=1)] = None
    """The columns and their types, for a source stream and the output of a low-level task."""
    event_time: Annotated[str | None, Field(alias="event_time", min_length=1)] = None
    """The column of the event time; windows over the stream need one."""
    key: Annotated[tuple[str, ...], Field(alias="key"), BeforeValidator(one_or_several)] = ()
    """The columns that decide the partition of a source's row; a stage that groups by them needs no routing."""
    frontier_lag_s: Annotated[Duration | None, Field(alias="frontier_lag")] = None
    """How many seconds a row may be behind the stream's progress: longer delays windows, shorter makes rows late; 0: no
    row is older than the newest.
    """
    idle_timeout_s: Annotated[PositiveDuration, Field(alias="idle.timeout")] = 10.0
    """Seconds of silence until a source partition does not hold back windows: shorter risks late rows after a pause."""
    retention_s: Annotated[LongDuration | None, Field(alias="retention")] = None
    """The age in seconds after which rows may be deleted; by default they are kept forever."""
    retention_bytes: Annotated[Size | None, Field(alias="retention.bytes")] = None
    """The size of each log above which its oldest rows may be deleted; by default there is no limit."""
    backlog_bytes: Annotated[LargeSize | None, Field(alias="backlog.bytes")] = None
    """Unread bytes in a log of a stream from outside at which its connector waits for the readers; by default it never
    does.
    """
    max_future_s: Annotated[Duration, Field(alias="max_future")] = 86_400.0
    """How many seconds a row may be ahead of the producer's clock and still move event time; 0: none may be ahead."""
    files: Annotated[str | None, Field(alias="files"), _named(FOLDER)] = None
    """The folder that the stream's rows are delivered to as Parquet files."""
    files_flush_s: Annotated[PositiveDuration, Field(alias="files.flush")] = 60.0
    """Seconds until a task writes a file: longer makes fewer, larger files, later."""
    files_rows: Annotated[int, Field(alias="files.rows", ge=1, le=100_000_000)] = 1_000_000
    """Rows in memory with which a task writes a file sooner."""
    files_bytes: Annotated[Size, Field(alias="files.bytes")] = 64 << 20
    """Bytes in memory with which a task writes a file sooner."""
    table: Annotated[str | None, Field(alias="table"), _named(TABLE)] = None
    """The table that the stream's rows are published to; by default the stream's name, if `table.time` is set."""
    table_time: Annotated[str | None, Field(alias="table.time", min_length=1)] = None
    """The column that decides the interval of a row in the table."""
    table_granularity: Annotated[Granularity, Field(alias="table.granularity")] = Granularity.DAY
    """The length of the table's intervals: shorter ones make more and smaller files."""
    table_flush_s: Annotated[PositiveDuration, Field(alias="table.flush")] = 60.0
    """Seconds until a task publishes: longer makes fewer, larger files, later."""
    table_rows: Annotated[int, Field(alias="table.rows", ge=1, le=100_000_000)] = 1_000_000
    """Rows in memory with which a task publishes sooner."""
    table_bytes: Annotated[Size, Field(alias="table.bytes")] = 64 << 20
    """Bytes in memory with which a task publishes sooner."""
    table_compact: Annotated[Switch, Field(alias="table.compact")] = True
    """Whether the job merges small files: more writes for faster reads."""
    table_target: Annotated[Size, Field(alias="table.target")] = 128 << 20
    """The size of file in bytes that compaction aims at."""
    table_grace_s: Annotated[PositiveDuration, Field(alias="table.grace")] = 3_600.0
    """Seconds that garbage is kept for readers that began before: longer stores more."""
    table_keep_s: Annotated[LongDuration | None, Field(alias="table.keep")] = None
    """The age in seconds after which an interval is dropped; by default none is."""
    dead_letters: Annotated[int, Field(alias="dead_letters", ge=0, le=1_000_000)] = 0
    """How many messages that are no rows, or rows that cannot be sent, a record may put aside, in `<id>-dead`; one more
    fails the task.
    """


@dataclass(frozen=True, slots=True)
class StageSettings:
    """One stage. The keys follow `stages.<name>.`."""

    __pydantic_config__ = _AS_WRITTEN

    partitions: Annotated[int, Field(alias="partitions", ge=1, le=PARTITIONS_MAX)] = 1
    """How many of Spark's partitions a batch of a task has, and its state: more let one task use several cores, or
    executors of a cluster, for more state files a batch.
    """


@dataclass(frozen=True, slots=True)
class Single:
    """The keys without a section of their own."""

    __pydantic_config__ = _AS_WRITTEN

    standby_replicas: Annotated[int, Field(alias="job.standby.replicas", ge=0, le=3)] = 0
    """How many other processors keep a replica of each task with state, so that a take-over restores almost nothing:
    1 costs reads, disk and memory; 0: none.
    """
    metrics_prometheus_port: Annotated[Port | None, Field(alias="metrics.prometheus.port")] = None
    """The first port to try for metrics alone; 0: any free port; none: they are not served there."""

"""The sections of a job file, each with its keys and their defaults."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr

from samza_azure.config.account import (
    valid_account,
    valid_connect,
    valid_container,
    valid_table,
)
from samza_azure.config.values import (
    Count,
    Duration,
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
from samza_azure.errors import ConfigError
from samza_azure.group.rows import PROCESSOR_ID
from samza_azure.group.timing import Timing
from samza_azure.segments.interval import Granularity

AZURE_FACTORY = "samza_azure.AzureJobCoordinatorFactory"

_PROCESSOR_ID_RULE = "should be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first"
_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "should be 1 to 63 letters, digits, dots, underscores and hyphens, a letter or digit first",
)
_HOST = matching(r"[A-Za-z0-9.:-]+", "should be an address of this machine, like '127.0.0.1' or '0.0.0.0'")
TABLE_PATTERN = r"[a-z0-9][a-z0-9_-]{0,62}"
_TABLE = matching(TABLE_PATTERN, "should be 1 to 63 of a-z, 0-9, _ and -, a letter or digit first")
STREAM_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
_FOLDER = matching(STREAM_ID, "should be 1 to 63 letters, digits, underscores and hyphens, a letter or digit first")

# The sections of the file. A field's alias is its key. CoordinatorKeys, StorageKeys and Single hold the file's keys;
# `check.py` makes the values of `Config` from them.

_AS_WRITTEN = ConfigDict(extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The application's name and id, and where to import its pipeline from."""

    __pydantic_config__ = _AS_WRITTEN

    name: Annotated[str, Field(alias="app.name"), _NAME]
    id: Annotated[str, Field(alias="app.id"), _NAME] = "1"
    run_id: Annotated[Annotated[str, _NAME] | None, Field(alias="app.run.id")] = None
    main: Annotated[
        str,
        Field(alias="app.main"),
        matching(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "should be 'module:attribute', like 'pipeline:app'"),
    ]
    packages: Annotated[tuple[str, ...], Field(alias="app.packages"), BeforeValidator(module_names)] = ()


@dataclass(frozen=True, slots=True)
class Coordinator:
    """How the processors coordinate."""

    factory: str
    profile: str
    blob_length: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class CoordinatorKeys:
    """A profile, and the settings that differ from it."""

    __pydantic_config__ = _AS_WRITTEN

    factory: Annotated[
        str,
        Field(alias="job.coordinator.factory"),
        matching(r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*", f"should be the dotted path of a class, like {AZURE_FACTORY!r}"),
    ] = AZURE_FACTORY
    profile: Annotated[Literal["eco", "default", "fast"], Field(alias="job.coordinator.profile")] = "default"
    blob_length: Annotated[Size, Field(alias="job.coordinator.azure.blob.length")] = 5_120_000
    heartbeat_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.heartbeat.interval")] = None
    heartbeat_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.heartbeat.timeout")] = None
    leader_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.leader.timeout")] = None
    scan_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.scan.interval")] = None
    debounce_s: Annotated[Duration | None, Field(alias="job.coordinator.debounce")] = None
    barrier_timeout_s: Annotated[PositiveDuration | None, Field(alias="job.coordinator.barrier.timeout")] = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The account, by connection string or by URL and identity, and the application's container and table in it."""

    connect: SecretStr | None
    connect_file: Path | None  # the file that `connect` was read from, absolute
    account: str | None
    container: str
    table: str


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """The storage as the job file writes it. The two names default to ones made from the application's."""

    __pydantic_config__ = _AS_WRITTEN

    connect: Annotated[SecretStr | None, Field(alias="azure.storage.connect"), AfterValidator(valid_connect)] = None
    connect_file: Annotated[Path | None, Field(alias="azure.storage.connect.file")] = None
    account: Annotated[str | None, Field(alias="azure.storage.account"), AfterValidator(valid_account)] = None
    container: Annotated[str | None, Field(alias="azure.storage.container"), AfterValidator(valid_container)] = None
    table: Annotated[str | None, Field(alias="azure.storage.table"), AfterValidator(valid_table)] = None


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor. Without `id`, its id is made of the host's name and the first free slot in `dir`."""

    __pydantic_config__ = _AS_WRITTEN

    id: Annotated[Annotated[str, matching(PROCESSOR_ID, _PROCESSOR_ID_RULE)] | None, Field(alias="processor.id")] = None
    dir: Annotated[Path, Field(alias="processor.dir")] = Path(".samza-azure")
    host: Annotated[str, Field(alias="processor.host"), _HOST] = "127.0.0.1"
    port: Annotated[Port | None, Field(alias="processor.port")] = None


@dataclass(frozen=True, slots=True)
class Task:
    """How many tasks a stage has, how often they commit, and when they are given up."""

    __pydantic_config__ = _AS_WRITTEN

    count: Annotated[Count | None, Field(alias="task.count")] = None
    commit_ms: Annotated[Milliseconds, Field(alias="task.commit.ms")] = 1_000
    batch_bytes: Annotated[Size, Field(alias="task.batch.bytes")] = 32 << 20
    shutdown_ms: Annotated[Milliseconds, Field(alias="task.shutdown.ms")] = 30_000
    restart_limit: Annotated[Limit, Field(alias="task.restart.limit")] = 5
    state: Annotated[Literal["auto", "memory", "rocksdb"], Field(alias="task.state")] = "auto"
    max_concurrency: Annotated[Count, Field(alias="task.max.concurrency")] = 1
    callback_timeout_ms: Annotated[MillisecondsOrNever, Field(alias="task.callback.timeout.ms")] = -1
    callback_drain_timeout_ms: Annotated[MillisecondsOrNever, Field(alias="task.callback.drain.timeout.ms")] = -1

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
class DrainMonitor:
    """Whether requests to drain are looked for, and how often in a library's use, where no leader scans for them."""

    __pydantic_config__ = _AS_WRITTEN

    enabled: Annotated[Switch, Field(alias="job.drain-monitor.enabled")] = True
    poll_interval_ms: Annotated[Milliseconds, Field(alias="job.drain-monitor.poll.interval.ms")] = 60_000


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: partitions, event time, retention and table. The keys follow `streams.<id>.`."""

    __pydantic_config__ = _AS_WRITTEN

    system: Annotated[Literal["log"], Field(alias="system")] = "log"
    partitions: Annotated[Count, Field(alias="partitions")] = 1
    schema: Annotated[str | None, Field(alias="schema", min_length=1)] = None
    event_time: Annotated[str | None, Field(alias="event_time", min_length=1)] = None
    key: Annotated[tuple[str, ...], Field(alias="key"), BeforeValidator(one_or_several)] = ()
    frontier_lag_s: Annotated[Duration | None, Field(alias="frontier_lag")] = None
    idle_timeout_s: Annotated[PositiveDuration, Field(alias="idle.timeout")] = 10.0
    retention_s: Annotated[LongDuration | None, Field(alias="retention")] = None
    retention_bytes: Annotated[Size | None, Field(alias="retention.bytes")] = None
    max_future_s: Annotated[Duration, Field(alias="max_future")] = 86_400.0
    files: Annotated[str | None, Field(alias="files"), _FOLDER] = None
    files_flush_s: Annotated[PositiveDuration, Field(alias="files.flush")] = 60.0
    files_rows: Annotated[int, Field(alias="files.rows", ge=1, le=100_000_000)] = 1_000_000
    files_bytes: Annotated[Size, Field(alias="files.bytes")] = 64 << 20
    table: Annotated[str | None, Field(alias="table"), _TABLE] = None
    table_time: Annotated[str | None, Field(alias="table.time", min_length=1)] = None
    table_granularity: Annotated[Granularity, Field(alias="table.granularity")] = Granularity.DAY
    table_flush_s: Annotated[PositiveDuration, Field(alias="table.flush")] = 60.0
    table_rows: Annotated[int, Field(alias="table.rows", ge=1, le=100_000_000)] = 1_000_000
    table_bytes: Annotated[Size, Field(alias="table.bytes")] = 64 << 20
    table_compact: Annotated[Switch, Field(alias="table.compact")] = True
    table_target: Annotated[Size, Field(alias="table.target")] = 128 << 20
    table_grace_s: Annotated[PositiveDuration, Field(alias="table.grace")] = 3_600.0
    table_keep_s: Annotated[LongDuration | None, Field(alias="table.keep")] = None


@dataclass(frozen=True, slots=True)
class Single:
    """The keys without a section of their own."""

    __pydantic_config__ = _AS_WRITTEN

    container_warm: Annotated[Switch, Field(alias="container.warm")] = True
    metrics_prometheus_port: Annotated[Port | None, Field(alias="metrics.prometheus.port")] = None


def check_processor_id(value: str) -> str:
    """Return the id, or raise `ConfigError` with the rule: it names a row and a directory."""
    if not re.fullmatch(PROCESSOR_ID, value):
        raise ConfigError(f"The processor id {value!r} cannot be used: it {_PROCESSOR_ID_RULE}.")
    return value

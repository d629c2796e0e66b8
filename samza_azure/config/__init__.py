"""job.toml in, one frozen and checked `Config` out.

Promised: what `Config.load` returns can be started with. Every key is known, every value fits, the timings fit each
other, the names are ones that Azure takes, plain http goes to this machine only. All mistakes are told at once, each
with what to write instead. No `repr`, no message and no dump of a `Config` shows a secret.

Not promised: that the pipeline can be imported or that the account answers. Nothing here looks further than the file
and the environment, and importing it is cheap: the supervisor must beat within a second of its start.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from samza_azure.config import jobfile
from samza_azure.config.account import (
    default_container,
    default_table,
    valid_account,
    valid_connect,
    valid_container,
    valid_table,
)
from samza_azure.config.values import (
    Count,
    Duration,
    Frozen,
    Hidden,
    Limit,
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
from samza_azure.group.timing import PROFILES, Timing

__all__ = [
    "AZURE_FACTORY",
    "App",
    "Config",
    "Coordinator",
    "DrainMonitor",
    "Processor",
    "Storage",
    "Stream",
    "Task",
    "check_processor_id",
    "check_timing",
    "doubtful_timing",
]

AZURE_FACTORY = "samza_azure.AzureJobCoordinatorFactory"

Section = TypeVar("Section")

_PROCESSOR_ID_RULE = "should be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first"
_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "should be 1 to 63 letters, digits, dots, underscores and hyphens, a letter or digit first",
)
_STREAM_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"

# The sections of the file. A field's alias is its key; the classes whose names begin with "_" are the file's own view,
# where something else is made of it.

_AS_WRITTEN = ConfigDict(extra="forbid", coerce_numbers_to_str=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """Which application this is and where its pipeline stands."""

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
    """How the processors agree with each other."""

    factory: str
    profile: str
    blob_length: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class _CoordinatorKeys:
    """A profile, and what is to differ from it."""

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
    """The account, by connection string or by URL and identity, and the application's two names in it."""

    connect: SecretStr | None
    account: str | None
    container: str
    table: str


@dataclass(frozen=True, slots=True)
class _StorageKeys:
    """The names may be left to the application's own."""

    __pydantic_config__ = _AS_WRITTEN

    connect: Annotated[SecretStr | None, Field(alias="azure.storage.connect"), AfterValidator(valid_connect)] = None
    account: Annotated[str | None, Field(alias="azure.storage.account"), AfterValidator(valid_account)] = None
    container: Annotated[str | None, Field(alias="azure.storage.container"), AfterValidator(valid_container)] = None
    table: Annotated[str | None, Field(alias="azure.storage.table"), AfterValidator(valid_table)] = None


@dataclass(frozen=True, slots=True)
class Processor:
    """This machine's part. Without an id it is made of the host's name and the first free slot in `dir`."""

    __pydantic_config__ = _AS_WRITTEN

    id: Annotated[Annotated[str, matching(PROCESSOR_ID, _PROCESSOR_ID_RULE)] | None, Field(alias="processor.id")] = None
    dir: Annotated[Path, Field(alias="processor.dir")] = Path(".samza-azure")
    port: Annotated[Port, Field(alias="processor.port")] = 0


@dataclass(frozen=True, slots=True)
class Task:
    """How tasks are cut, paced and given up."""

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


@dataclass(frozen=True, slots=True)
class DrainMonitor:
    """Whether requests to drain are looked for, and how often where no leader scans for them: in a library's use."""

    __pydantic_config__ = _AS_WRITTEN

    enabled: Annotated[Switch, Field(alias="job.drain-monitor.enabled")] = True
    poll_interval_ms: Annotated[Milliseconds, Field(alias="job.drain-monitor.poll.interval.ms")] = 60_000


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream: its partitions, and what its rows say about event time. The keys follow `streams.<id>.`."""

    __pydantic_config__ = _AS_WRITTEN

    system: Annotated[Literal["log"], Field(alias="system")] = "log"
    partitions: Annotated[Count, Field(alias="partitions")] = 1
    schema: Annotated[str | None, Field(alias="schema", min_length=1)] = None
    event_time: Annotated[str | None, Field(alias="event_time", min_length=1)] = None
    key: Annotated[tuple[str, ...], Field(alias="key"), BeforeValidator(one_or_several)] = ()
    frontier_lag_s: Annotated[Duration | None, Field(alias="frontier_lag")] = None
    idle_timeout_s: Annotated[PositiveDuration, Field(alias="idle.timeout")] = 10.0
    retention_s: Annotated[PositiveDuration | None, Field(alias="retention")] = None
    max_future_s: Annotated[Duration, Field(alias="max_future")] = 86_400.0


@dataclass(frozen=True, slots=True)
class _Single:
    """The keys that stand alone."""

    __pydantic_config__ = _AS_WRITTEN

    container_warm: Annotated[Switch, Field(alias="container.warm")] = True
    metrics_prometheus_port: Annotated[Port | None, Field(alias="metrics.prometheus.port")] = None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a job file says. Made by `load` or `parse`, which check it."""

    path: Path
    app: App
    coordinator: Coordinator
    storage: Storage
    processor: Processor
    task: Task
    drain_monitor: DrainMonitor
    streams: Mapping[str, Stream]
    container_warm: bool
    metrics_prometheus_port: int | None
    spark: Mapping[str, str]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] = os.environ,
        overrides: Mapping[str, Any] | None = None,
    ) -> "Config":
        """Read and check a job file. `overrides` are dotted keys that go before the file's, as `--id` does."""
        path = Path(path).absolute()
        return cls.parse(jobfile.read(path), path=path, environment=environment, overrides=overrides)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        path: Path = Path("job.toml"),
        environment: Mapping[str, str] = os.environ,
        overrides: Mapping[str, Any] | None = None,
    ) -> "Config":
        """Check the text of a job file. `path` is where it stands; a relative `processor.dir` starts from there."""
        return _Check(jobfile.parse(text, path, environment, overrides or {})).config()


def check_processor_id(value: str) -> str:
    """The id itself, or a `ConfigError` with the rule: it names a row and a directory."""
    if not re.fullmatch(PROCESSOR_ID, value):
        raise ConfigError(f"The processor id {value!r} cannot be used: it {_PROCESSOR_ID_RULE}.")
    return value


def check_timing(timing: Timing) -> list[str]:
    """What cannot work about these durations: each a sentence with both numbers."""
    beat = ("heartbeat.interval", timing.heartbeat_s)
    scan = ("scan.interval", timing.scan_s)
    dead = ("heartbeat.timeout", timing.heartbeat_timeout_s)
    leader_dead = ("leader.timeout", timing.leader_timeout_s)
    barrier = ("barrier.timeout", timing.barrier_timeout_s)
    rules = [
        (dead, 3, beat, "so that one lost beat and one late one kill nobody"),
        (dead, 3, scan, "since a death is believed after three unchanged reads only"),
        (leader_dead, 3, scan, "since a leader is suspected after three unchanged reads only"),
        (leader_dead, 2, beat, "so that one lost beat deposes no leader"),
        (barrier, 3, beat, "since a processor learns of a new version with its next beat"),
    ]
    return [
        f"job.coordinator.{long[0]} is {long[1]:g} s and job.coordinator.{short[0]} is {short[1]:g} s. "
        f"The former should be at least {times} times the latter, {reason}."
        for long, times, short, reason in rules
        if long[1] < times * short[1]
    ]


def doubtful_timing(timing: Timing, slow_call_s: float) -> str | None:
    """What works with these durations only while the account is quick, given the slowest call that was measured."""
    needed = 3 * timing.heartbeat_s + 2 * slow_call_s
    if timing.heartbeat_timeout_s >= needed:
        return None
    return (
        f"job.coordinator.heartbeat.timeout is {timing.heartbeat_timeout_s:g} s, and three heartbeats of "
        f"{timing.heartbeat_s:g} s with two calls as slow as {slow_call_s:.2g} s need {needed:.3g} s. A processor "
        "that lives may be taken for dead; raise the timeout or choose a slower job.coordinator.profile."
    )


#: What the container sets itself, and why nobody else may.
_SPARK_OWN = {
    "spark.sql.session.timeZone": "event time is UTC everywhere; in another zone a processor would cut other windows",
    "spark.sql.streaming.stateStore.providerClass": "task.state says it: 'memory' or 'rocksdb'",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "the task log carries state files of version 1",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "the task log carries the changelog",
    "spark.sql.streaming.multipleWatermarkPolicy": "the container owns the watermark and needs the policy 'min'",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "it refuses plans whose rows would be wrong",
    "spark.sql.constraintPropagation.enabled": "without it joins of streams take null for a partner of null",
    "spark.sql.optimizer.excludedRules": "rows would be wrong without some rules: in joins null would equal null",
    "spark.sql.streaming.statefulOperator.allowMultiple": "what is derived of a plan goes by it",
    "spark.sql.streaming.noDataMicroBatches.enabled": "the container decides when a batch without rows runs",
    "spark.sql.streaming.checkpointLocation": "the checkpoint of a task is its log",
    "spark.sql.streaming.checkpointFileManagerClass": "checkpoints are local files here, and written as such",
    "spark.rdd.compress": "rows leave Spark through blocks on the disk, which are read as they are",
    "spark.scheduler.mode": "the tasks of a container share it fairly",
    "spark.python.unix.domain.socket.enabled": "rows come through such a socket; without it each batch waits 40 ms",
}
_SPARK_OWN_WHEN_LOCAL = {
    "spark.sql.shuffle.partitions": "on a local master a task is one partition; more would only cost files",
}


@dataclass(frozen=True, slots=True)
class _NotYet:
    """A key of the design that has no effect so far."""

    default: object
    instead: str = ""


_NOT_YET = {
    "container.warm": _NotYet(True, ": every processor starts its container at once"),
    "processor.port": _NotYet(0, ": processors have no endpoint"),
    "task.max.concurrency": _NotYet(1),
    "task.callback.timeout.ms": _NotYet(-1),
    "task.callback.drain.timeout.ms": _NotYet(-1),
    "job.drain-monitor.enabled": _NotYet(True, ": requests are always seen"),
    "job.drain-monitor.poll.interval.ms": _NotYet(60_000, ": requests are seen at each scan of the leader"),
    "streams.*.retention": _NotYet(None, ": logs of output and source streams are kept for ever"),
}


class _Check:
    """One job file on its way to a `Config`. Gathers all mistakes before it complains."""

    def __init__(self, file: jobfile.JobFile) -> None:
        self.file = file
        self.mistakes: list[str] = []
        self.values = dict(file.values)

    def config(self) -> Config:
        """The configuration, or one error with everything that is wrong with it."""
        self._environment()
        stream_ids = self._stream_ids()
        self._unknown_keys(stream_ids)
        self._keys_without_effect()
        app = self._section(App)
        coordinator = self._coordinator()
        storage = self._storage(app, coordinator)
        processor = self._section(Processor)
        task = self._section(Task)
        drain_monitor = self._section(DrainMonitor)
        streams = {name: self._section(Stream, f"streams.{name}.") for name in stream_ids}
        single = self._section(_Single)
        spark = self._spark()
        if self.mistakes:
            raise ConfigError(self._complaint())
        # Without a mistake each section is there; the type checker cannot know it.
        assert app and coordinator and storage and processor and task and drain_monitor and single
        return Config(
            path=self.file.path,
            app=app,
            coordinator=coordinator,
            storage=storage,
            processor=replace(processor, dir=self.file.path.parent / processor.dir.expanduser()),
            task=task,
            drain_monitor=drain_monitor,
            streams=Frozen({name: stream for name, stream in streams.items() if stream}),
            container_warm=single.container_warm,
            metrics_prometheus_port=single.metrics_prometheus_port,
            spark=spark,
        )

    def _complaint(self) -> str:
        if len(self.mistakes) == 1:
            return f"{self.file.path}: {self.mistakes[0]}"
        return "\n  ".join([f"{self.file.path} has {len(self.mistakes)} mistakes:", *self.mistakes])

    def _environment(self) -> None:
        for key, value in self.values.items():
            if isinstance(value, jobfile.MissingVariable):
                self.mistakes.append(f"{key} needs the environment variable {value.name}, which is not set.")

    def _stream_ids(self) -> list[str]:
        ids = dict.fromkeys(key.split(".")[1] for key in self.values if key.startswith("streams."))
        for name in ids:
            if not re.fullmatch(_STREAM_ID, name):
                self.mistakes.append(
                    f"streams.{name} is no name for a stream: it should be 1 to 63 letters, digits, hyphens and "
                    "underscores, a letter or digit first."
                )
        return list(ids)

    def _unknown_keys(self, stream_ids: list[str]) -> None:
        sections = (App, _CoordinatorKeys, _StorageKeys, Processor, Task, DrainMonitor, _Single)
        known = [key for section in sections for key in _keys(section)]
        known += [f"streams.{name}.{key}" for name in stream_ids for key in _keys(Stream)]
        known += ["spark.master"]
        for key, value in self.values.items():
            if value == {}:  # an empty table, which says nothing but that a stream exists
                fine = any(other.startswith(f"{key}.") for other in known)
            else:
                fine = key in known or key.startswith("spark.")
            if not fine:
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
                self.mistakes.append(f"{key} is not a key. The nearest is {nearest}.")

    def _keys_without_effect(self) -> None:
        """A key that nothing obeys yet is refused when it asks for something, so that nobody relies on it."""
        for key, value in self.values.items():
            known = _NOT_YET.get("streams.*.retention" if re.fullmatch(r"streams\.[^.]+\.retention", key) else key)
            if known is not None and value != known.default:
                self.mistakes.append(f"{key} is not supported by this version{known.instead}. Remove it.")

    def _section(self, section: type[Section], prefix: str = "") -> Section | None:
        """One section of the file, or its mistakes."""
        values = {key: self.values[prefix + key] for key in _keys(section) if prefix + key in self.values}
        # What lacks its environment variable was told already; what else is wrong with it nobody knows.
        missing = {key for key, value in values.items() if isinstance(value, jobfile.MissingVariable)}
        try:
            return TypeAdapter(section).validate_python(values)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
        for problem in problems:
            key = str(problem["loc"][0])
            if key not in missing:
                self.mistakes.append(self._mistake(prefix + key, problem["type"], _sentence(problem)))
        return None

    def _mistake(self, key: str, kind: str, what: str) -> str:
        if kind == "missing":
            return f"{key} is missing."
        if what.startswith("should"):
            return f"{key} = {self.file.shown(key)} cannot be used: it {what}."
        return f"{key} {what}."

    def _coordinator(self) -> Coordinator | None:
        keys = self._section(_CoordinatorKeys)
        if keys is None:
            return None
        names = (field.name for field in fields(Timing))
        changed = {name: value for name in names if (value := getattr(keys, name)) is not None}
        timing = replace(PROFILES[keys.profile], **changed)
        self.mistakes += check_timing(timing)
        return Coordinator(keys.factory, keys.profile, keys.blob_length, timing)

    def _storage(self, app: App | None, coordinator: Coordinator | None) -> Storage | None:
        keys = self._section(_StorageKeys)
        if keys is None or app is None:
            return None
        if keys.connect is not None and keys.account is not None:
            self.mistakes.append(
                "azure.storage.connect and azure.storage.account are both set. Keep the connection string, "
                "or the URL for an identity."
            )
        # Another factory than Azure's may do without an account.
        needed = coordinator is not None and coordinator.factory == AZURE_FACTORY
        if needed and keys.connect is None and keys.account is None:
            self.mistakes.append(
                "azure.storage.connect is missing. Set it to a connection string, best as "
                '"${AZURE_STORAGE_CONNECTION_STRING}", or to "UseDevelopmentStorage=true"; '
                "or set azure.storage.account to the account's URL."
            )
        return Storage(
            connect=keys.connect,
            account=keys.account,
            container=keys.container or default_container(app.name, app.id),
            table=keys.table or default_table(app.name, app.id),
        )

    def _spark(self) -> Mapping[str, str]:
        settings: dict[str, str] = {}
        own = dict(_SPARK_OWN)
        if str(self.values.get("spark.master", "local")).startswith("local"):
            own |= _SPARK_OWN_WHEN_LOCAL
        for key, value in self.values.items():
            if not key.startswith("spark.") or isinstance(value, jobfile.MissingVariable):
                continue
            if key in own:
                self.mistakes.append(f"{key} cannot be set: {own[key]}.")
            elif key.startswith("spark.spark."):
                self.mistakes.append(
                    f"{key} says spark twice: inside [spark] write {key.removeprefix('spark.spark.')}."
                )
            elif isinstance(value, bool | int | float | str):
                settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                self.mistakes.append(f"{key} should be one value: text, a number, true or false.")
        return Hidden(settings)


def _keys(section: type) -> Iterator[str]:
    """The keys of a section in the file."""
    for hint in get_type_hints(section, include_extras=True).values():
        for detail in getattr(hint, "__metadata__", ()):
            if isinstance(detail, FieldInfo) and detail.alias:
                yield detail.alias


def _sentence(problem: Mapping[str, Any]) -> str:
    """What pydantic found, as the end of a sentence that begins with the key."""
    context = problem.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    return str(problem["msg"]).replace("Input should", "should").replace("String should", "should")

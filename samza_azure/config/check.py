"""Turn the text of a job file into a `Config`, or into one error with all of its mistakes."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from samza_azure.account import Secret, Storage
from samza_azure.config import jobfile
from samza_azure.config.account import (
    application_of,
    default_container,
    default_table,
    valid_connect,
)
from samza_azure.config.files import mistakes_of_files
from samza_azure.config.sections import (
    App,
    Coordinator,
    CoordinatorKeys,
    HostSettings,
    ProcessorSettings,
    Single,
    StageSettings,
    StorageKeys,
    Stream,
    TaskSettings,
)
from samza_azure.config.spark import CLUSTER, KUBERNETES, LOCAL, OWN, mistakes_on_cluster, on_cluster
from samza_azure.config.tables import mistakes_of_tables
from samza_azure.config.timing import check_timing
from samza_azure.config.values import (
    Frozen,
    Hidden,
)
from samza_azure.errors import ConfigError
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.names import STREAM

Section = TypeVar("Section")


@dataclass(frozen=True, slots=True)
class Config:
    """The checked contents of a job file. Make one with `load` or `parse`.

    Example:
        config = Config.load("job.toml", overrides={"task.commit.ms": 200})
        print(config.app.name, config.task.commit_ms)
    """

    path: Path
    app: App
    coordinator: Coordinator
    storage: Storage
    processor: ProcessorSettings
    host: HostSettings
    task: TaskSettings
    streams: Mapping[str, Stream]
    stages: Mapping[str, StageSettings]
    standby_replicas: int
    metrics_prometheus_port: int | None
    spark: Mapping[str, str]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] = os.environ,
        overrides: Mapping[str, Any] | None = None,
        reaches_storage: bool = True,
    ) -> "Config":
        """Read and check a job file. `overrides` maps dotted keys to values that replace the file's, as `--id` does.

        With `reaches_storage=False` the account, and the environment variables that hold it, may be missing.

        Raises:
            ConfigError: the file cannot be read, or has mistakes. The message names all of them, each with its line.
        """
        path = Path(path).absolute()
        file = jobfile.parse(jobfile.read(path), path, environment, overrides or {})
        return _Check(file, reaches_storage=reaches_storage).config()

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        path: Path = Path("job.toml"),
        environment: Mapping[str, str] = os.environ,
        overrides: Mapping[str, Any] | None = None,
    ) -> "Config":
        """Check the text of a job file. `path` is its place; a relative `processor.dir` is relative to its folder.

        Raises:
            ConfigError: the text has mistakes. The message names all of them, each with its line.

        Example:
            config = Config.parse(Path("job.toml").read_text(), overrides={"job.standby.replicas": 1})
        """
        return _Check(jobfile.parse(text, path, environment, overrides or {})).config()


@dataclass(frozen=True, slots=True)
class _NotYet:
    """A key that has no effect here yet, so no field holds it."""

    default: object
    instead: str = ""


_NOT_YET = {
    "container.warm": _NotYet(True, ": every processor starts its container at once"),
    "job.drain-monitor.enabled": _NotYet(True, ": requests are always seen"),
    "job.drain-monitor.poll.interval.ms": _NotYet(60_000, ": requests are seen at each scan of the leader"),
}


class JobFileRefused(ConfigError):
    """The job file has mistakes. `rest` is the configuration without them, in which to look for more."""

    def __init__(self, message: str, rest: Config | None = None) -> None:
        super().__init__(message)
        self.rest = rest


#: What is said of a job file without an account.
NO_ACCOUNT = (
    'azure.storage.connect is missing. Write under [azure.storage]: connect = "${AZURE_STORAGE_CONNECTION_STRING}", '
    'or connect = "UseDevelopmentStorage=true"; or set connect.file to the path of a file with a connection string, or '
    "account to the account's URL."
)
#: What to write for a key that is missing, and what stands in for it while more mistakes are looked for.
_REQUIRED = {"app.name": 'name = "shop"', "app.main": 'main = "pipeline:app"'}
_STAND_INS = {"app.name": "shop"}


#: `samza-azure dev` and `samza-azure azurite` print this line with an account.
_EXPORT = (
    " Write: export {name}='DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…', "
    "with the connection string of the account between the quotes."
)


class _Check:
    """Turns one job file into a `Config`. Collects all mistakes before it raises."""

    def __init__(self, file: jobfile.JobFile, *, reaches_storage: bool = True) -> None:
        self.file = file
        self.mistakes: list[str] = []
        self.written: dict[str, str] = {}  # the key in the file where another one is meant
        self.doubtful: set[object] = set()  # the sections that have a mistake, so that others follow from it
        self.values = dict(file.values)
        self.reaches_storage = reaches_storage
        if not reaches_storage:
            for key, value in file.values.items():
                if key.startswith("azure.storage.") and isinstance(value, jobfile.MissingVariable):
                    del self.values[key]

    def config(self) -> Config:
        """Return the configuration, or raise one `JobFileRefused` with all mistakes."""
        self._environment()
        self._misnamed_streams()
        stream_ids = self._stream_ids()
        stage_names = self._named("stages")
        self._schemas(stream_ids)
        self._options(stream_ids)
        self._unknown_keys(stream_ids, stage_names)
        self._keys_without_effect()
        app = self._section(App)
        coordinator = self._coordinator()
        storage = self._storage(app, coordinator)
        processor = self._section(ProcessorSettings)
        task = self._section(TaskSettings)
        streams = {name: self._section(Stream, f"streams.{name}.") for name in stream_ids}
        whole = {name: stream for name, stream in streams.items() if f"streams.{name}." not in self.doubtful}
        stages = {name: self._section(StageSettings, f"stages.{name}.") for name in stage_names}
        self.mistakes += mistakes_of_tables(self.values, whole)
        self.mistakes += mistakes_of_files(self.values, whole)
        if processor and processor.bells and processor.port is None:
            self.mistakes.append(
                "processor.bells is true, but there is no processor.port, to which other processors would connect. "
                "Set processor.port, such as 8080, or 0 for any free port."
            )
        single, host = self._section(Single), self._section(HostSettings)
        spark = self._spark()
        if not (app and coordinator and storage and processor and host and task and single):
            raise JobFileRefused(self._complaint())
        config = Config(
            path=self.file.path,
            app=app,
            coordinator=coordinator,
            storage=storage,
            processor=replace(processor, dir=self.file.path.parent / processor.dir.expanduser()),
            host=host,
            task=task,
            streams=Frozen({name: stream for name, stream in streams.items() if stream}),
            stages=Frozen({name: stage for name, stage in stages.items() if stage}),
            standby_replicas=single.standby_replicas,
            metrics_prometheus_port=single.metrics_prometheus_port,
            spark=spark,
        )
        if self.mistakes:
            raise JobFileRefused(self._complaint(), config)
        return config

    def _complaint(self) -> str:
        placed = [(jobfile.place_in(self.file.text, self._as_written(each)), each) for each in self.mistakes]
        if len(placed) == 1:
            [(line, mistake)] = placed
            return f"{self.file.path}{line and f', {line}'}: {mistake}"
        lines = [f"{line}: {mistake}" if line else mistake for line, mistake in placed]
        return "\n  ".join([f"{self.file.path} has {len(placed)} mistakes:", *lines])

    def _as_written(self, mistake: str) -> str:
        return re.sub(r"[\w.-]+\w", lambda found: self.written.get(found[0], found[0]), mistake)

    def _environment(self) -> None:
        for key, value in self.values.items():
            if isinstance(value, jobfile.MissingVariable):
                line = _EXPORT.format(name=value.name) if key == "azure.storage.connect" else ""
                self.mistakes.append(
                    f"{key} needs the environment variable {value.name}, which is {value.reason}.{line}"
                )

    def _misnamed_streams(self) -> None:
        """Take `[stream.orders]` for `[streams.orders]`, which is a mistake."""
        sections: dict[str, list[str]] = {}
        for key in [*self.values]:
            first, _, rest = key.partition(".")
            name, _, last = rest.partition(".")
            is_near = first != "streams" and difflib.get_close_matches(first, ["streams"], cutoff=0.8)
            if is_near and last in _keys(Stream):
                sections.setdefault(f"{first}.{name}", []).append(last)
                self.written[f"streams.{rest}"] = key
                self.values.setdefault(f"streams.{rest}", self.values.pop(key))
        for section, keys in sections.items():
            right = f"streams.{section.partition('.')[2]}"
            self.mistakes.append(
                f"{section}.{keys[0]} is not a key. The nearest is {right}.{keys[0]}."
                if len(keys) == 1
                else f"[{section}] is not a section. The nearest is [{right}]."
            )

    def _stream_ids(self) -> list[str]:
        ids = self._named("streams")
        for name in ids:
            if not STREAM.accepts(name):
                self.mistakes.append(f"streams.{name} is not a valid name for a stream: it {STREAM.says}.")
        return ids

    def _named(self, section: str) -> list[str]:
        """The names of the streams, or of the stages, that have a section."""
        return [*dict.fromkeys(key.split(".")[1] for key in self.values if key.startswith(f"{section}."))]

    def _schemas(self, stream_ids: list[str]) -> None:
        """Join a schema that is written as a list or as a section, which is a mistake."""
        for name in stream_ids:
            key, schema = f"streams.{name}.schema", None
            if isinstance(self.values.get(key), list):
                schema = ", ".join(map(str, self.values[key]))
            elif columns := [each for each in self.values if each.startswith(f"{key}.")]:
                schema = ", ".join(f"{each.removeprefix(f'{key}.')} {self.values.pop(each)}" for each in columns)
            if schema is not None:
                self.values[key] = schema
                self.mistakes.append(f'{key} should be one text. Write under [streams.{name}]: schema = "{schema}".')

    def _options(self, stream_ids: list[str]) -> None:
        """Collect the options of each stream's connector, whose keys are its own."""
        for name in stream_ids:
            key = f"streams.{name}.options"
            given = {each: self.values.pop(each) for each in [*self.values] if each.startswith(f"{key}.")}
            options = {each.removeprefix(f"{key}."): value for each, value in given.items()}
            if options and not any(isinstance(each, jobfile.MissingVariable) for each in options.values()):
                self.values[key] = options

    def _unknown_keys(self, stream_ids: list[str], stage_names: list[str]) -> None:
        sections = (App, CoordinatorKeys, StorageKeys, ProcessorSettings, HostSettings, TaskSettings, Single)
        known = [key for section in sections for key in _keys(section)]
        known += [f"streams.{name}.{key}" for name in stream_ids for key in _keys(Stream)]
        known += [f"stages.{name}.{key}" for name in stage_names for key in _keys(StageSettings)]
        known += ["spark.master"]
        for key, value in self.values.items():
            if value == {}:  # an empty section, which only says that a stream exists
                fine = any(other.startswith(f"{key}.") for other in (*known, *_NOT_YET))
            else:
                fine = key in known or key in _NOT_YET or key.startswith("spark.")
            if not fine:
                self.mistakes.append(f"{key} is not a key. {_instead_of(key, known)}")

    def _keys_without_effect(self) -> None:
        """Refuse a key without effect if its value is not the default, so that nobody relies on it."""
        for key, value in self.values.items():
            known = _NOT_YET.get(key)
            if known is not None and value != known.default:
                self.mistakes.append(f"{key} is not supported by this version{known.instead}. Remove it.")

    def _section(self, section: type[Section], prefix: str = "") -> Section | None:
        """Return one section of the file; note its mistakes and return None if it has any."""
        kind: type = section  # mypy does not see that `type[Section]` can be the key of a cache
        values = {key: self.values[prefix + key] for key in _keys(kind) if prefix + key in self.values}
        # A missing environment variable has been reported already; the value cannot be checked.
        missing = {key for key, value in values.items() if isinstance(value, jobfile.MissingVariable)}
        try:
            checked: Section = _adapter(kind).validate_python(values)
            return checked
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
        self.doubtful.add(prefix or kind)
        for problem in problems:
            key = str(problem["loc"][0])
            if key not in missing:
                self.mistakes.append(self._mistake(prefix + key, problem["type"], _sentence(problem)))
        wrong = {problem["loc"][0] for problem in problems}
        stand_ins = {key: value for key, value in _STAND_INS.items() if key in wrong}
        try:
            rest: Section = _adapter(kind).validate_python(
                stand_ins | {key: value for key, value in values.items() if key not in wrong}
            )
        except ValidationError:
            return None
        return rest

    def _mistake(self, key: str, kind: str, what: str) -> str:
        if kind == "missing":
            return f"{key} is missing. Write under [{key.partition('.')[0]}]: {_REQUIRED[key]}."
        if what.startswith("should"):
            return f"{key} = {self.file.shown(self.written.get(key, key))} cannot be used: it {what}."
        return f"{key} {what}."

    def _coordinator(self) -> Coordinator | None:
        keys = self._section(CoordinatorKeys)
        if keys is None:
            return None
        names = (field.name for field in fields(Timing))
        changed = {name: value for name in names if (value := getattr(keys, name)) is not None}
        timing = replace(PROFILES[keys.profile], **changed)
        if CoordinatorKeys not in self.doubtful:
            self.mistakes += check_timing(timing)
        return Coordinator(keys.factory, keys.profile, keys.blob_length, timing)

    def _storage(self, app: App | None, coordinator: Coordinator | None) -> Storage | None:
        keys = self._section(StorageKeys)
        if keys is None or app is None:
            return None
        if keys.connect is not None and keys.account is not None:
            self.mistakes.append(
                "azure.storage.connect and azure.storage.account are both set. Keep the connection string, "
                "or the URL for an identity."
            )
        connect, file = keys.connect, keys.connect_file and self.file.path.parent / keys.connect_file.expanduser()
        if file is not None:
            if keys.connect is not None or keys.account is not None:
                other = "azure.storage.account" if keys.connect is None else "azure.storage.connect"
                self.mistakes.append(f"azure.storage.connect.file and {other} are both set. Keep one of them.")
            elif self.reaches_storage:
                connect = self._from_file(file)
        # Factories other than ours may need no account.
        needed = self.reaches_storage and coordinator is not None and coordinator.is_ours
        needed &= StorageKeys not in self.doubtful
        if needed and keys.connect is None and file is None and keys.account is None:
            self.mistakes.append(NO_ACCOUNT)
        return Storage(
            connect=connect,
            account=keys.account,
            container=keys.container or default_container(app.name, app.id),
            table=keys.table or default_table(app.name, app.id),
            connect_file=file,
            application=application_of(app.name, app.id),
        )

    def _from_file(self, file: Path) -> Secret | None:
        """Read the connection string. Messages do not show the path: the user may have put the secret itself there."""
        try:
            return valid_connect(file.read_text().strip())
        except (OSError, UnicodeDecodeError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not text"
            self.mistakes.append(f"azure.storage.connect.file should be the path of a readable file: {why}.")
        except ValueError as error:
            self.mistakes.append(f"The file that azure.storage.connect.file names {error}.")
        return None

    def _spark(self) -> Mapping[str, str]:
        settings: dict[str, str] = {}
        own = OWN
        if not re.fullmatch(f"{LOCAL}|{CLUSTER}|{KUBERNETES}", str(self.values.get("spark.master", "local"))):
            self.mistakes.append(
                f"spark.master = {self.values['spark.master']!r} cannot be used: a processor runs Spark in itself or "
                'on a cluster. Write "local[2]" for two cores per processor, "spark://host:7077" for a standalone '
                'cluster, "k8s://https://kubernetes.default.svc" for Kubernetes, or remove the line.'
            )
        for key, value in self.values.items():
            if not key.startswith("spark.") or isinstance(value, jobfile.MissingVariable):
                continue
            if key in own:
                self.mistakes.append(f"{key} cannot be set: {own[key]}.")
            elif key.startswith("spark.spark."):
                self.mistakes.append(
                    f"{key} repeats the prefix: inside [spark] write {key.removeprefix('spark.spark.')}."
                )
            elif key == "spark.driver.memory" and not re.fullmatch(r"[1-9]\d*[kKmMgGtT]", str(value)):
                self.mistakes.append(f'{key} = {value!r} cannot be used: it should be like "2g" or "1500m".')
            elif isinstance(value, bool | int | float | str):
                settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                self.mistakes.append(f"{key} should be one value: text, a number, true or false.")
        if on_cluster(settings):
            self.mistakes += mistakes_on_cluster(settings)
        return Hidden(settings)


def _instead_of(key: str, known: Sequence[str]) -> str:
    """The nearest key, as a sentence; without one that is near, those of the same section.

    What two keys have in common because of their section makes neither of them nearer.
    """
    section = next(part for part in _beginnings(key) if not part or any(each.startswith(part) for each in known))
    rests = {each[len(section) :].lower(): each for each in known if each.startswith(section)}
    near = difflib.get_close_matches(key[len(section) :].lower(), rests, n=1, cutoff=0.6)
    if near:
        return f"The nearest is {rests[near[0]]}."
    elsewhere = [each for each in known if each.endswith(f".{key.rpartition('.')[2]}")]
    if elsewhere:
        return f"The nearest is {difflib.get_close_matches(key, elsewhere, n=1, cutoff=0.0)[0]}."
    if not section:
        return f"The sections are {', '.join(dict.fromkeys(each.partition('.')[0] for each in known))}."
    return f"The keys of {section.removesuffix('.')} are {', '.join(each[len(section) :] for each in rests.values())}."


def _beginnings(key: str) -> Iterator[str]:
    """The sections that a key may stand in, the innermost first: `a.b.c` in `a.b.`, `a.` and the whole file."""
    parts = key.split(".")
    return (".".join([*parts[:number], ""]) if number else "" for number in reversed(range(len(parts))))


@cache
def _adapter(section: type) -> TypeAdapter[Any]:
    """Checks the values of a section. Pydantic needs ten milliseconds to make one, and each stream is a section."""
    return TypeAdapter(section)


@cache
def _keys(section: type) -> tuple[str, ...]:
    """The keys of a section, as the job file writes them."""
    hints = get_type_hints(section, include_extras=True).values()
    details = (detail for hint in hints for detail in getattr(hint, "__metadata__", ()))
    return tuple(each.alias for each in details if isinstance(each, FieldInfo) and each.alias)


#: Pydantic's findings whose own words speak of Python.
_WORDS = {
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "string_type": "should be a text in quotes",
    "string_too_short": "should not be empty",
    "greater_than": "should be more than {gt:g}",
    "greater_than_equal": "should be at least {ge:g}",
    "less_than_equal": "should be at most {le:g}",
}


def _sentence(problem: Mapping[str, Any]) -> str:
    """Pydantic's finding as the end of a sentence that begins with the key."""
    context = problem.get("ctx", {})
    if "error" in context:
        return str(context["error"])
    if (words := _WORDS.get(problem["type"])) is not None:
        return words.format(**context)
    return str(problem["msg"]).replace("Input should", "should").replace("String should", "should")

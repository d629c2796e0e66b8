"""Check a pipeline without Spark: names, streams, keys, duplicates, cycles.

It imports nothing of Azure and Arrow, which would take longer than the check. All mistakes are reported at once, each
with the file and line of its stage. A schema that only Spark can read is left to Spark.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from samza_azure.application import Application, Stage, check_methods
from samza_azure.config import Config, Stream
from samza_azure.config.jobfile import place_of_mistake, with_lines
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.pipeline.sinks import name_mistakes, sinks_of
from samza_azure.pipeline.system_names import mistakes_of_systems
from samza_azure.user_code import place_of_function, place_of_name

TIMES = frozenset({"timestamp", "timestamp_ltz", "timestamp_ntz", "date"})
#: The words of Spark's simple types, as `stream_io.ddl` and Spark know them; a test compares them.
TYPES = TIMES | {
    "bigint", "binary", "boolean", "byte", "dec", "decimal", "double", "float", "int", "integer", "long", "numeric",
    "real", "short", "smallint", "string", "tinyint",
}  # fmt: skip
#: Text of a length, which is a string.
_OF_LENGTH = ("varchar", "char", "character")
#: What other languages call them.
_ELSEWHERE = {
    "bool": "boolean", "bytes": "binary", "blob": "binary", "datetime": "timestamp", "float32": "float",
    "float64": "double", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "number": "double",
    "object": "string", "str": "string", "text": "string", "uuid": "string",
}  # fmt: skip
#: Those that a key may have.
KEY_TYPES = frozenset(
    {"bigint", "binary", "boolean", "byte", "date", "int", "integer", "long", "short", "smallint", "string", "tinyint"}
)


class NamesRefused(Mistakes):
    """All mistakes in names, each a message, its place, and the stream or the stage that it is about, if it is one.

    `stages` are those that can be analysed nevertheless, in order: those in a cycle, and those behind it, have none.
    """

    def __init__(self, found: Sequence[tuple[str, str, str]], stages: Sequence[Stage]) -> None:
        super().__init__([(message, place) for message, place, _ in found])
        self.about, self.stages = frozenset(about for _, _, about in found), stages


def check_names(application: Application, config: Config) -> tuple[Sequence[Stage], list[str]]:
    """Return the stages in order, and the warnings. Raise `NamesRefused` with all mistakes, if there are any."""
    found = list(_mistakes(application, config))
    stages, circle = _in_order(application.stages)
    if circle:
        names = ", ".join(stage.name for stage in circle)
        place = place_of_function(circle[0].function) or _place_of_application(config)
        found.append((f"The stages {names} wait for each other's output. Break the cycle.", place, ""))
    elif not stages and not application.refused:
        said = "The application has no stage. Decorate a function with @app.stage."
        found.append((said, _place_of_application(config), ""))
    if found:
        raise NamesRefused(found, stages)
    return stages, list(_warnings(stages, config))


def _place_of_application(config: Config) -> str:
    module, _, name = config.app.main.partition(":")
    return place_of_name(sys.modules.get(module), name) or place_of_mistake(config.path, "app.main")


def _in_order(stages: Sequence[Stage]) -> tuple[list[Stage], list[Stage]]:
    """The stages in topological order, each after those that write its inputs; and those that wait for each other."""
    waiting = list(stages)
    ready_first: list[Stage] = []
    while waiting:
        unwritten = {stage.output for stage in waiting}
        ready = next((stage for stage in waiting if not unwritten.intersection(stage.inputs)), None)
        if ready is None:
            break
        ready_first.append(ready)
        waiting.remove(ready)
    while behind := [stage for stage in waiting if not any(stage.output in each.inputs for each in waiting)]:
        waiting = [stage for stage in waiting if stage not in behind]  # they only wait
    return ready_first, waiting


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that suggests a similar name; empty if there is none."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {found[0]!r}?" if found else ""


def _mistakes(application: Application, config: Config) -> Iterator[tuple[str, str, str]]:
    """Each mistake with the place of the stage, or of the key in the job file."""
    stages = application.stages
    written = {stage.output for stage in stages}
    for stage, message, place in application.refused:
        output = stage.output if isinstance(stage.output, str) else ""
        yield message, place, output
        written.add(output)
    reported = set()
    for message in chain(
        name_mistakes(stages, config.streams, written),
        _retention_mistakes(stages, config),
        _partitions_mistakes([*(stage for stage, *_ in application.refused), *stages], config),
        mistakes_of_systems(config.streams, written),
    ):
        yield message, place_of_mistake(config.path, message), ""
    for stage in stages:
        place = place_of_function(stage.function)
        if stage.kind.facts.calls_handler:
            yield from ((message, place, stage.name) for message in _handler_mistakes(stage, config))
        elif (other := _other_arguments(stage)) is not None:
            yield other, place, stage.name
        for name in stage.inputs:
            if name in written or name in reported:
                continue
            reported.add(name)
            declared = config.streams.get(name)
            if declared is None or declared.schema is None:
                yield with_lines(config.path, undeclared(stage, name, [*written, *config.streams])), place, name
            else:
                for message in _source_mistakes(name, declared):
                    yield message, place_of_mistake(config.path, message), name


def queries_of(application: Application) -> list[str]:
    """The names of the stages that have a query, and so need Spark."""
    return [stage.name for stage in application.stages if stage.kind.facts.has_query]


def at_once(stage: Stage, config: Config) -> int:
    """The maximum number of messages in flight in a task of this stage."""
    return stage.max_concurrency or config.task.max_concurrency


def _partitions_mistakes(stages: Sequence[Stage], config: Config) -> Iterator[str]:
    """Yield the sections of the job file for stages that there are not, or that have no query."""
    kinds = {stage.name: stage.kind for stage in stages}
    for name in config.stages:
        if name not in kinds:
            known = ", ".join(each for each, kind in kinds.items() if kind.facts.has_query) or "none"
            yield (
                f"stages.{name}.partitions is set, but the pipeline has no stage {name!r}.{nearest(name, kinds)} The "
                f"stages with a query are: {known}."
            )
        elif not kinds[name].facts.has_query:
            yield (
                f"stages.{name}.partitions is set, but {name} is a low-level task, whose messages Spark does not "
                "see. Remove it. For more messages at once give its @app.task a max_concurrency."
            )


def _handler_mistakes(stage: Stage, config: Config) -> Iterator[str]:
    """Yield the mistakes in a handler that can be found without Spark."""
    try:
        inspect.signature(stage.function).bind()
    except TypeError:
        yield (
            f"Each task of {stage.name} creates its handler by calling {stage.name}() without arguments, but it needs "
            f"some. Give its parameters defaults; or decorate a function that returns it: {stage.decorator()}."
        )
    except ValueError:
        pass  # a callable without a signature
    if inspect.isclass(stage.function):
        try:
            check_methods(stage.function, stage.name, at_once(stage, config))
        except PipelineRefused as error:
            yield str(error)
    declared = config.streams.get(stage.output)
    if stage.output != stage.name and (declared is None or declared.schema is None):
        yield (
            f"Task {stage.name} writes stream {stage.output!r}, but the job file does not declare its columns. "
            f'Add [streams.{stage.output}] there, with its columns, for example schema = "id string, amount double".'
        )


def _retention_mistakes(stages: Sequence[Stage], config: Config) -> Iterator[str]:
    """Retention applies to sources and outputs only; an intermediate log is deleted as it is read."""
    for stage in stages:
        declared = config.streams.get(stage.output)
        if declared is None or (declared.retention_s is None and declared.retention_bytes is None):
            continue
        readers = [each.name for each in stages if stage.output in each.inputs]
        sinks = sinks_of(stage.output, config.streams)
        if readers or sinks:
            by = f"stage {(*readers, *sinks)[0]} reads it"
            if f"{stage.output}-table" in sinks and not readers:
                by = "it is published as a table, which table.keep governs"
            yield (
                f"streams.{stage.output}.retention has no effect: {by}, and the log is deleted as it is consumed. "
                "Remove the line."
            )


def undeclared(stage: Stage, name: str, known: Iterable[str]) -> str:
    """The message for a stream that is read, but neither written nor declared."""
    meant = nearest(name, (each for each in known if each != name))
    return (
        f"Stage {stage.name} reads stream {name!r}, which no stage writes and whose schema is not in the job file."
        f"{meant} {'If not, add' if meant else 'Add'} [streams.{name}] there, with its columns, for example "
        'schema = "id string, ts timestamp", and with partitions = 2, or another number.'
    )


def _other_arguments(stage: Stage) -> str | None:
    try:
        inspect.signature(stage.function).bind(*stage.inputs)
    except TypeError:
        wanted = len(inspect.signature(stage.function).parameters)
        return (
            f"Stage {stage.name} reads {', '.join(stage.inputs)}, so its function is called with {len(stage.inputs)} "
            f"DataFrame(s), but it takes {wanted}. Write def {stage.name}({_parameters(stage)}): or name one stream "
            "for each parameter in @app.stage."
        )
    except ValueError:
        pass  # a function without a signature
    return None


def _parameters(stage: Stage) -> str:
    """A parameter for each input, called like the stream."""
    names: list[str] = []
    for stream in stage.inputs:
        name = re.sub(r"\W|^(?=\d)", "_", stream)
        names.append(name if name not in names else f"{name}_{len(names) + 1}")
    return ", ".join(names)


def _source_mistakes(name: str, declared: Stream) -> Iterator[str]:
    if (wrong := _schema_mistake(declared.schema or "")) is not None:
        yield f"streams.{name}.schema cannot be read: {wrong}"
        return
    types = _columns(declared.schema or "")
    if types is None:
        return  # Spark reads more than this parser, and refuses what it cannot read
    columns = f"its schema has the columns {', '.join(types)}. Name one of them."
    times = [column for column, kind in types.items() if kind in TIMES]
    instead = f'Write event_time = "{times[0]}"' if len(times) == 1 else ""
    has_time = any(kind in TIMES or kind.removesuffix("()") not in TYPES for kind in types.values())
    if (time := declared.event_time) is not None:
        if time not in types and not has_time:
            yield no_time_among(name, time, types)
        elif time not in types:
            meant = nearest(time, types) or f" {instead}." * bool(instead)
            yield f"streams.{name}.event_time is {time!r}, but {columns}{meant}"
        elif types[time] in TYPES and types[time] not in TIMES:
            yield no_time(name, time, types[time], instead or declare_timestamp(name, time))
    for key in declared.key:
        if key not in types:
            yield f"streams.{name}.key has {key!r}, but {columns}{nearest(key, types)}"
        elif (kind := types[key].removesuffix("()")) in TYPES - KEY_TYPES:
            yield f"streams.{name}.key has {key!r}, {no_key(kind)}"


def _schema_mistake(ddl: str) -> str | None:
    """What is wrong with the columns of simple types, and what to write. None if nothing is."""
    wrong, right, hint, is_certain = dict[str, None](), [], "", True
    if ";" in ddl:
        wrong["commas separate columns"] = None
    for part in re.split(r"[,;](?![^<(]*[>)])", ddl):
        column = re.fullmatch(
            r"\s*(\w+)(?:(\s*:\s*|\s+)(\w+)(\s*\([\d\s,]*\))?(\s+not\s+null)?)?\s*", part, re.IGNORECASE
        )
        if column is None:
            right.append(part.strip())
            continue
        name, between, kind, *rest = column.groups(default="")
        meant = kind
        if not kind:
            wrong[f"column {name} has no type"] = None
        elif kind.isidentifier() and kind.lower() not in (*TYPES, *_OF_LENGTH):
            wrong[f"column {name} has the type {kind!r}"] = None
            meant = _meant_type(kind)
            hint = f" Did you mean {meant!r}?" if meant else hint
        if ":" in between:
            wrong["no colon stands between a column and its type"] = None
        is_certain = is_certain and bool(meant)
        right.append(f"{name} {meant}{''.join(rest)}")
    if not wrong:
        return None
    write = f'schema = "{", ".join(right)}"' if is_certain else 'it like "carrier string, ts timestamp, delay double"'
    return f"{'; '.join(wrong)}.{hint} Write {write}."


def _meant_type(kind: str) -> str:
    """The type that is meant by a word, perhaps of another language; empty if none is."""
    known = {**_ELSEWHERE, **{each: each for each in (*TYPES, *_OF_LENGTH)}}
    near = difflib.get_close_matches(kind.lower(), known, n=1, cutoff=0.6)
    return known[near[0]] if near else ""


def _columns(ddl: str) -> dict[str, str] | None:
    """The columns of a schema and the names of their types; None if the schema is not that simple.

    This does not use `stream_io.ddl`, because importing pyarrow would take as long as all other checks together.
    """
    found = {}
    for part in re.split(r",(?![^<(]*[>)])", ddl):
        column = re.fullmatch(r"\s*(\w+)\s+(\w+)(\s*\([\d\s,]*\))?(\s+not\s+null)?\s*", part, re.IGNORECASE)
        if column is None:
            return None
        found[column[1]] = column[2].lower() + ("()" if column[3] else "")
    return found


def no_time(stream: str, column: str, kind: str, remedy: str) -> str:
    """The message for an event time that is not of a time type."""
    return (
        f"streams.{stream}.event_time is {column!r}, a column of type {kind}. An event time is a timestamp, a date or "
        f"a window. {remedy}."
    )


def no_time_among(stream: str, column: str, known: Iterable[str]) -> str:
    """The message for an event time that is no column, where no column is a time."""
    return (
        f"streams.{stream}.event_time is {column!r}, but its schema has the columns {', '.join(known)}, none of which "
        f'is a time. Add "{column} timestamp" to streams.{stream}.schema.'
    )


def no_key(kind: str) -> str:
    """The end of the message for a key of another type."""
    return f"a column of type {kind}. Use a string, integer, boolean, date or binary column."


def declare_timestamp(source: str, column: str) -> str:
    """How the event time of a source stream becomes a timestamp."""
    return f'Write "{column} timestamp" in streams.{source}.schema; produce then parses the text'


def is_time(kind: str) -> bool:
    """Whether a column of this type, in Spark's words, can be an event time."""
    return kind in TIMES or re.fullmatch(r"struct<start:[^,]*,end:[^,]*>", kind) is not None


def check_event_time(types: Mapping[str, str], column: str, stream: str, remedy: str) -> None:
    """Refuse an event time that is not of a time type."""
    if not is_time(types[column]):
        raise PipelineRefused(no_time(stream, column, types[column], remedy))


def check_key(types: Mapping[str, str], key: str, what: str, columns: str) -> None:
    """Refuse a key that is not a column or whose type has no canonical bytes. `what` begins the message."""
    if key not in types:
        raise PipelineRefused(f"{what}, but {columns}. Name one of them.{nearest(key, types)}")
    if types[key] not in KEY_TYPES:
        raise PipelineRefused(f"{what}, {no_key(types[key])}")


def declare_event_time(streams: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """What to add to the job file so that one of these streams has an event time."""
    for stream, types in streams:
        times = [column for column, kind in types.items() if is_time(kind)]
        if times:
            others = f" (or {', '.join(times[1:])})" if times[1:] else ""
            return f'Add to the job file, under [streams.{stream}]: event_time = "{times[0]}"{others}.'
    return "None of its inputs has a column of type timestamp or date: add one where their rows are produced."


def _warnings(stages: Sequence[Stage], config: Config) -> Iterator[str]:
    """Warn of settings that have no effect, since the user may rely on them."""
    read, written = {name for stage in stages for name in stage.inputs}, {stage.output for stage in stages}
    handlers = {stage.output for stage in stages if stage.kind.facts.calls_handler}
    if not handlers:
        asked = {
            "max.concurrency": config.task.max_concurrency > 1,
            "callback.timeout.ms": config.task.callback_timeout_ms > 0,
            "callback.drain.timeout.ms": config.task.callback_drain_timeout_ms > 0,
        }
        yield from (f"task.{key} has no effect: there is no @app.task." for key, is_set in asked.items() if is_set)
    for name, declared in config.streams.items():
        if name in written - handlers and declared.schema is not None:
            yield f"streams.{name}.schema has no effect: a stage writes this stream, and its columns are the schema."
        if name not in read | written and not _is_route(name, stages):
            yield f"[streams.{name}] has no effect: no stage reads or writes it.{nearest(name, read | written)}"


def _is_route(name: str, stages: Sequence[Stage]) -> bool:
    """Whether a stream may be a routing stream, which is named after its stage and that stage's input."""
    return any(name.startswith(f"{stage.name}-{each}") for stage in stages for each in stage.inputs)


__all__ = [
    "KEY_TYPES",
    "NamesRefused",
    "at_once",
    "check_event_time",
    "check_key",
    "check_names",
    "declare_event_time",
    "declare_timestamp",
    "is_time",
    "nearest",
    "no_key",
    "no_time",
    "no_time_among",
    "queries_of",
    "undeclared",
]

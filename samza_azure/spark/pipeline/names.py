"""Check a pipeline without Spark: names, streams, keys, duplicates, cycles.

It imports nothing of Azure and Arrow, which would take longer than the check. All mistakes are reported at once, each
with the file and line of its stage. A schema that only Spark can read is left to Spark.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from samza_azure.application import Application, Stage, check_methods
from samza_azure.config import Config, Stream
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.sinks import name_mistakes, sinks_of
from samza_azure.spark.user_code import noted, place_of_function, place_of_name

TIMES = frozenset({"timestamp", "timestamp_ltz", "timestamp_ntz", "date"})
#: The words of Spark's simple types, as `storage.ddl` and Spark know them; a test compares them.
TYPES = TIMES | {
    "bigint", "binary", "boolean", "byte", "dec", "decimal", "double", "float", "int", "integer", "long", "numeric",
    "real", "short", "smallint", "string", "tinyint",
}  # fmt: skip
#: Those that a key may have; `destination.KEY_TYPES` has Spark's classes of them.
KEY_TYPES = frozenset(
    {"bigint", "binary", "boolean", "byte", "date", "int", "integer", "long", "short", "smallint", "string", "tinyint"}
)


def check_names(application: Application, config: Config) -> list[str]:
    """Return the warnings. Raise `PipelineRefused` with all mistakes, if there are any."""
    found = list(_mistakes(application.stages, config))
    if len(found) == 1:
        (message, place), *_ = found
        error = PipelineRefused(message)
        noted(error, place)
        raise error
    if found:
        lines = [f"The pipeline has {len(found)} mistakes:"]
        lines += [f"  {message}" + (f"\n    {place}" if place else "") for message, place in found]
        raise PipelineRefused("\n".join(lines))
    try:
        ordered(application.stages)
    except PipelineRefused as error:
        module, _, name = config.app.main.partition(":")
        noted(error, place_of_name(sys.modules.get(module), name) or str(config.path))
        raise
    return list(_warnings(application.stages, config))


def ordered(stages: Sequence[Stage]) -> list[Stage]:
    """The stages in topological order: each comes after those that write its inputs."""
    if not stages:
        raise PipelineRefused("The application has no stage. Decorate a function with @app.stage.")
    waiting = list(stages)
    ready_first: list[Stage] = []
    while waiting:
        unwritten = {stage.output for stage in waiting}
        ready = next((stage for stage in waiting if not unwritten.intersection(stage.inputs)), None)
        if ready is None:
            names = ", ".join(stage.name for stage in waiting)
            error = PipelineRefused(f"The stages {names} wait for each other's output. Break the cycle.")
            noted(error, place_of_function(waiting[0].function))
            raise error
        ready_first.append(ready)
        waiting.remove(ready)
    return ready_first


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that suggests a similar name; empty if there is none."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {found[0]!r}?" if found else ""


def _mistakes(stages: Sequence[Stage], config: Config) -> Iterator[tuple[str, str]]:
    """Each mistake with the place of the stage."""
    written = {stage.output for stage in stages}
    reported = set()
    yield from ((message, str(config.path)) for message in name_mistakes(stages, config.streams))
    yield from ((message, str(config.path)) for message in _retention_mistakes(stages, config))
    for stage in stages:
        place = place_of_function(stage.function)
        if stage.is_handler:
            yield from ((message, place) for message in _handler_mistakes(stage, config))
        elif (mistake := _other_arguments(stage)) is not None:
            yield mistake, place
        for name in stage.inputs:
            if name in written or name in reported:
                continue
            reported.add(name)
            declared = config.streams.get(name)
            if declared is None or declared.schema is None:
                yield undeclared(stage, name, [*written, *config.streams]), place
            else:
                for message in _source_mistakes(name, declared):
                    yield message, str(config.path)


def at_once(stage: Stage, config: Config) -> int:
    """The maximum number of messages in flight in a task of this stage."""
    return stage.max_concurrency or config.task.max_concurrency


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
    return (
        f"Stage {stage.name} reads stream {name!r}, which no stage writes and whose schema is not in the job file."
        f"{nearest(name, (each for each in known if each != name))} "
        f'Add [streams.{name}] there, with its columns, for example schema = "id string, ts timestamp", and with '
        "partitions = 2, or another number."
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
    types = _columns(declared.schema or "")
    if types is None:
        if (colon := re.match(r"\s*(\w+)\s*:\s*(\w+)", declared.schema or "")) is not None:
            yield (
                f"streams.{name}.schema cannot be read: no colon stands between a column and its type. "
                f'Write it like "{colon[1]} {_nearest_type(colon[2])}, ts timestamp".'
            )
        return  # Spark reads more than this parser, and refuses what it cannot read
    columns = f"its schema has the columns {', '.join(types)}. Name one of them."
    for column, kind in types.items():
        if kind not in TYPES and kind.isidentifier():
            yield (
                f"streams.{name}.schema cannot be read: column {column} has the type {kind!r}.{nearest(kind, TYPES)} "
                'Write it like "carrier string, ts timestamp, delay double".'
            )
    if (time := declared.event_time) is not None:
        if time not in types:
            yield f"streams.{name}.event_time is {time!r}, but {columns}{nearest(time, types)}"
        elif types[time] in TYPES and types[time] not in TIMES:
            yield no_time(name, time, types[time], declare_timestamp(name, time))
    for key in declared.key:
        if key not in types:
            yield f"streams.{name}.key has {key!r}, but {columns}{nearest(key, types)}"
        elif (kind := types[key].removesuffix("()")) in TYPES - KEY_TYPES:
            yield f"streams.{name}.key has {key!r}, {no_key(kind)}"


def _columns(ddl: str) -> dict[str, str] | None:
    """The columns of a schema and the names of their types; None if the schema is not that simple.

    This does not use `storage.ddl`, because importing pyarrow would take as long as all other checks together.
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


def no_key(kind: str) -> str:
    """The end of the message for a key of another type."""
    return f"a column of type {kind}. Use a string, integer, boolean, date or binary column."


def _nearest_type(kind: str) -> str:
    return next(iter(difflib.get_close_matches(kind.lower(), sorted(TYPES), n=1, cutoff=0.6)), "string")


def declare_timestamp(source: str, column: str) -> str:
    """How the event time of a source stream becomes a timestamp."""
    return f'Write "{column} timestamp" in streams.{source}.schema; produce then parses the text'


def _warnings(stages: Sequence[Stage], config: Config) -> Iterator[str]:
    """Warn of settings that have no effect, since the user may rely on them."""
    read, written = {name for stage in stages for name in stage.inputs}, {stage.output for stage in stages}
    handlers = {stage.output for stage in stages if stage.is_handler}
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
    "at_once",
    "check_names",
    "declare_timestamp",
    "nearest",
    "no_key",
    "no_time",
    "ordered",
    "undeclared",
]

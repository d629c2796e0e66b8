"""Put a pipeline together: its streams, its stages as they are analysed, its tables and folders, and the plan.

A stream that no stage writes is a source stream; its partitions and its schema are in the job file. A stream between
two stages has the columns of the stage that writes it. Whoever analyses the stages calls this: `spark.pipeline` if one
of them has a query, `without_spark` otherwise.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from samza_azure.application import Application, Stage
from samza_azure.config import LOG, Config, Files, Outside, StageSettings, Stream, TableSettings
from samza_azure.config.jobfile import place_of_mistake, with_lines
from samza_azure.config.values import in_words
from samza_azure.errors import ConfigError, Mistakes, PipelineRefused
from samza_azure.messages import Plan, StagePlan
from samza_azure.names import source_name
from samza_azure.pipeline.analysed import AnalysedStage, AnalysedStream, Analysis, Declare, Pipeline
from samza_azure.pipeline.handlers import analyse_handler, declared_columns
from samza_azure.pipeline.names import (
    NamesRefused,
    at_once,
    check_event_time,
    check_key,
    check_names,
    declare_timestamp,
    is_time,
    no_time_among,
    undeclared,
)
from samza_azure.pipeline.outside import dead_letter_stage, sent_as, source_stage
from samza_azure.pipeline.sinks import Sink, check_held, check_producers, check_time, sink_plan, sinks_of
from samza_azure.pipeline.state import check_chosen, kind_of_state
from samza_azure.stream_io.columns import Columns
from samza_azure.systems.registry import check_written
from samza_azure.user_code import noted, place_of_function

#: Bytes of JSON. A larger description is not stored, and a difference is then reported as two hashes.
FACTS_BYTES_MAX = 64 << 10


class Assembly:
    """A pipeline, as far as it is analysed, and all that is wrong with it."""

    def __init__(self, application: Application, config: Config, declare: Declare) -> None:
        """Check the names, and put the stages in order. `declare` parses a schema of the job file."""
        self._mistakes: list[tuple[str, str]] = []
        self._warnings: list[str] = []
        #: Streams and stages of which a mistake in a name is: what else would be said of them may follow from it.
        self.doubtful: frozenset[str] = frozenset()
        try:
            self.in_order, self._warnings = check_names(application, config)
        except NamesRefused as error:
            self._mistakes += error.found
            self.in_order, self.doubtful = error.stages, error.about
        stages = application.stages
        self.streams: dict[str, AnalysedStream] = {}
        self.stages: dict[str, AnalysedStage] = {}
        self._all, self._config, self._declare = stages, config, declare
        self._written = {stage.output for stage in stages}
        self._sinks: list[tuple[StagePlan, Sink]] = []

    def note(self, error: PipelineRefused, stage: Stage) -> None:
        """Note what a stage is refused for, with the lines of the keys that it names, and with places: that of the
        stage, unless there is a nearer one.
        """
        notes = getattr(error, "__notes__", None) or [f"{place_of_function(stage.function)} (stage {stage.name})"]
        found = error.found if isinstance(error, Mistakes) else [(str(error), "")]
        self._mistakes += [(with_lines(self._config.path, said), place or notes[0]) for said, place in found]

    @contextmanager
    def noting(self, stage: Stage) -> Iterator[None]:
        """Note a refusal, and go on with what does not depend on it."""
        try:
            yield
        except PipelineRefused as error:
            self.note(error, stage)

    def add_sources(self, stage: Stage) -> None:
        """Add the source streams that a stage reads."""
        for name in stage.inputs:
            if name not in self._written and name not in self.streams:
                self.streams[name] = self._source_stream(stage, name)
                if self.declared(name).system != LOG:
                    self._add_outside(stage, name)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Refuse the pipeline for what is wrong with a connector in the job file."""
        try:
            yield
        except ConfigError as error:
            refused = PipelineRefused(str(error))
            noted(refused, place_of_mistake(self._config.path, str(error)))
            raise refused from error

    def _add_outside(self, stage: Stage, name: str) -> None:
        with self._refused():
            source = source_stage(name, self.streams[name], self._config)
        added = [source, dead_letter_stage(name, source.plan)] if self.declared(name).dead_letters else [source]
        taken = {*self._written, *self._config.streams, *(each.name for each in self._all)}
        if wrong := next((each.plan.name for each in added if each.plan.name in taken), None):
            raise PipelineRefused(
                f"What comes from outside for stream {name!r} goes through a stream called {wrong!r}, and the pipeline "
                f"of {stage.name} has one of this name already. Rename that one."
            )
        self.add_between(source)
        between = self.streams[source.plan.output]
        dead = added[1].analysis.columns if added[1:] else None
        self.streams[source.plan.output] = replace(between, outside=name, dead=dead)
        self.stages |= {each.plan.name: each for each in added[1:]}

    def read_as(self, name: str) -> str:
        """The stream that is read for an input: the one that brings it in, if it comes from outside."""
        is_outside = name not in self._written and self.declared(name).system != LOG
        return source_name(name) if is_outside else name

    def declared(self, stream: str) -> Stream:
        """What the job file says about a stream."""
        return self._config.streams.get(stream) or Stream()

    def handler(self, stage: Stage) -> Analysis:
        """The analysis of a low-level task."""
        read = [(name, self.streams[name]) for name in stage.inputs]
        return analyse_handler(stage, read, self.declared(stage.output), self._declare)

    def note_keys(self, stage: Stage) -> None:
        """Note what is wrong with the keys of a low-level task, although of its inputs nothing is known."""
        if stage.kind.facts.has_query or stage.name in self.doubtful:
            return
        with self.noting(stage):
            *_, mistakes = declared_columns(stage, self.declared(stage.output), self._declare)
            if mistakes:
                raise Mistakes(mistakes)

    def add_between(self, stage: AnalysedStage, key: tuple[str, ...] = ()) -> None:
        """Add a stage, and its output as a stream that another one reads."""
        self.stages[stage.plan.name] = stage
        self.streams[stage.plan.output] = AnalysedStream(
            stage.plan.partitions,
            stage.analysis.columns,
            stage.event_time,
            self.declared(stage.plan.output).idle_timeout_s,
            stage.plan.name,
            key,
            stage.analysis.not_null,
        )

    def add(self, stage: AnalysedStage, key: tuple[str, ...]) -> None:
        """Add a stage whose output has this key, and the sinks that its rows go to."""
        output, analysis = stage.plan.output, stage.analysis
        goes_to = sinks_of(output, self._config.streams)
        if goes_to or any(output in other.inputs for other in self._all):
            self.add_between(stage, key)
        self.stages[stage.plan.name] = stage
        for sink, to in goes_to.items():
            with self.noting(stage.stage):
                if isinstance(to, Outside):
                    with self._refused():
                        check_written(to.system, sent_as(output, self.declared(output), self._config, stage, key))
                else:
                    check_held(output, to, analysis.columns)
            if isinstance(to, TableSettings):
                with self.noting(stage.stage):
                    check_time(output, to, analysis.columns.types)
                with self.noting(stage.stage):
                    if stage.partitions is not None:  # each sink reads all tasks of the stage then
                        check_producers(output, stage.plan)
            self._sinks.append((sink_plan(sink, output, to, stage.plan, self._config), to))

    def tasks_of(self, stage: Stage, inputs: Sequence[str]) -> int:
        """One per partition, or fewer if the user says so. Inputs may differ in partitions if no rows must meet."""
        least = min(self.streams[name].partitions for name in inputs)
        wanted = stage.tasks or self._config.task.count
        return least if wanted is None else min(least, wanted)

    def analysed(self, stage: Stage, inputs: Sequence[str], analysis: Analysis) -> AnalysedStage:
        """The stage with its plan. `inputs` are its own, or what is routed to it instead."""
        declared, tasks = self.declared(stage.output), self.tasks_of(stage, inputs)
        with self.noting(stage):
            check_chosen(stage.name, self._config.task.state, needs_rocksdb=analysis.needs_rocksdb)
        if not stage.partition_by and declared.partitions not in (1, tasks):
            refused = PipelineRefused(
                f"streams.{stage.output}.partitions is {declared.partitions}, but stage {stage.name} has no "
                f"partition_by, so each of its {tasks} tasks writes one partition. Add partition_by with a column of "
                f"the stage ({', '.join(analysis.columns.names)}), or remove the line."
            )
            self.note(refused, stage)
        spread = self._config.stages.get(stage.name, StageSettings()).partitions
        if spread > 1 and (whole := _of_all_rows(analysis)) is not None:
            refused = PipelineRefused(
                f"stages.{stage.name}.partitions is {spread}, but stage {stage.name} has {whole} of all "
                f"rows, which Spark computes in one partition. Remove the line; or group by a key in a stage before "
                f"{stage.name}."
            )
            self.note(refused, stage)
        partitions = declared.partitions if stage.partition_by else None
        plan = StagePlan(
            name=stage.name,
            inputs=tuple(self.read_as(name) for name in inputs),
            output=stage.output,
            tasks=tasks,
            partition_by=stage.partition_by,
            schema=analysis.columns.ddl,
            stateful=analysis.stateful,
            state=analysis.state,
            partitions=tasks if partitions is None else partitions,
            kind=stage.kind,
            at_once=at_once(stage, self._config) if stage.kind.facts.calls_handler else 0,
            batch_partitions=spread,
        )
        return AnalysedStage(
            stage=stage,
            plan=plan,
            analysis=analysis,
            partitions=partitions,
            event_time=declared.event_time,
            frontier_lag_us=round((declared.frontier_lag_s or 0.0) * 1_000_000),
        )

    def key_of(self, stage: AnalysedStage, key: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The key of a stage's output: its `partition_by`, or `key`, that of its inputs, if each task writes its own
        partition."""
        if stage.partitions is not None:
            return stage.stage.partition_by
        is_one_to_one = all(self.streams[name].partitions == stage.plan.tasks for name in stage.plan.inputs)
        return key if is_one_to_one else ()

    def finished(self) -> Pipeline:
        """The whole pipeline. Raise `Mistakes` if anything is wrong with it."""
        if self._mistakes:
            raise Mistakes([*dict.fromkeys(self._mistakes)])
        sources = {name: stream.partitions for name, stream in sorted(self.streams.items()) if stream.writer is None}
        plan = _plan(list(self.stages.values()), self._sinks, sources, self.streams, self._config, self._warnings)
        return Pipeline(plan, self.stages, self.streams, {sink.name: to for sink, to in self._sinks})

    def _source_stream(self, stage: Stage, name: str) -> AnalysedStream:
        declared = self._config.streams.get(name)
        if declared is None or declared.schema is None:
            raise PipelineRefused(undeclared(stage, name, self._config.streams))
        try:
            return self._declared_stream(name, declared, declared.schema)
        except PipelineRefused as error:
            noted(error, place_of_mistake(self._config.path, str(error)))
            raise

    def _declared_stream(self, name: str, declared: Stream, ddl: str) -> AnalysedStream:
        time = declared.event_time
        columns, not_null = self._declare(name, ddl, time)
        named = f"its schema has the columns {', '.join(columns.names)}"
        if time is not None and time not in columns.names:
            if not any(map(is_time, columns.types.values())):
                raise PipelineRefused(no_time_among(name, time, columns.names))
            raise PipelineRefused(f"streams.{name}.event_time is {time!r}, but {named}. Name one of them.")
        if time is not None:
            check_event_time(columns.types, time, name, declare_timestamp(name, time))
        for key in declared.key:
            check_key(columns.types, key, f"streams.{name}.key has {key!r}", named)
        return AnalysedStream(
            declared.partitions,
            columns,
            time,
            declared.idle_timeout_s,
            writer=None,
            key=declared.key,
            not_null=not_null,
        )


def _plan(
    stages: Sequence[AnalysedStage],
    sinks: Sequence[tuple[StagePlan, Sink]],
    sources: Mapping[str, int],
    streams: Mapping[str, AnalysedStream],
    config: Config,
    warnings: Sequence[str],
) -> Plan:
    warnings = [*warnings, *(warning for stage in stages for warning in stage.analysis.warnings)]
    described: dict[str, object] = {
        "stages": [
            {
                "name": stage.plan.name,
                "inputs": stage.plan.inputs,
                "output": stage.plan.output,
                "tasks": stage.plan.tasks,
                "partition_by": stage.plan.partition_by,
                "partitions": stage.plan.partitions,
                "schema": stage.plan.schema,
                "state": stage.analysis.fingerprint,
                "sources": stage.analysis.sources,
                "kept": kind_of_state(config.task.state, needs_rocksdb=stage.analysis.needs_rocksdb)
                if stage.plan.stateful
                else None,
                "event_time": stage.event_time,
                "frontier_lag_us": stage.frontier_lag_us,
                "output_mode": stage.stage.output_mode,
                **({} if _state_partitions(stage) == 1 else {"state_partitions": _state_partitions(stage)}),
            }
            for stage in sorted(stages, key=lambda stage: stage.plan.name)
        ],
        "streams": {
            name: {
                "partitions": stream.partitions,
                "schema": stream.columns.ddl,
                "event_time": stream.event_time,
                "key": stream.key,
            }
            for name, stream in streams.items()
        },
    }
    if tables := [(sink, to) for sink, to in sinks if isinstance(to, TableSettings)]:
        described["tables"] = [
            {"stream": sink.inputs[0], "tasks": sink.tasks, "table": table.name, "time": table.time}
            for sink, table in tables
        ]
    if folders := [sink for sink, to in sinks if isinstance(to, Files)]:
        described["files"] = [
            {"stream": sink.inputs[0], "tasks": sink.tasks, "folder": sink.target} for sink in folders
        ]
    if outlets := [sink for sink, to in sinks if isinstance(to, Outside)]:
        described["outlets"] = [
            {"stream": sink.inputs[0], "tasks": sink.tasks, "system": sink.target} for sink in outlets
        ]
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return Plan(
        stages=(*(stage.plan for stage in stages), *(sink for sink, _ in sinks)),
        sources=dict(sources),
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest(),
        warnings=tuple(warnings),
        keys={name: stream.key for name, stream in sorted(streams.items()) if stream.key},
        described=_described(stages, sinks, streams),
    )


def _described(
    stages: Sequence[AnalysedStage],
    sinks: Sequence[tuple[StagePlan, Sink]],
    streams: Mapping[str, AnalysedStream],
) -> dict[str, dict[str, str]]:
    """All facts of the pipeline. Empty if they are too large to be stored with the run."""
    found: dict[str, dict[str, str]] = {}
    for stage in stages:
        lag = stage.frontier_lag_us / 1_000_000
        found[f"stage {stage.plan.name}"] = _said(
            {
                "inputs": ", ".join(stage.plan.inputs),
                "output": stage.plan.output,
                "added_for": stage.plan.routed_for,
                "tasks": str(stage.plan.tasks),
                "partition_by": ", ".join(stage.plan.partition_by),
                "output_mode": stage.stage.output_mode,
                "event_time": stage.event_time or "",
                "frontier_lag": in_words(lag) if lag else "",
                "state_partitions": "" if (each := _state_partitions(stage)) == 1 else str(each),
                **stage.analysis.facts,
            }
        )
        if stage.plan.output not in streams:
            found[f"stream {stage.plan.output}"] = _facts(stage.analysis.columns)
    for sink, to in sinks:
        kind = sink.kind.facts
        found[f"stage {sink.name}"] = {
            "inputs": sink.inputs[0],
            "tasks": str(sink.tasks),
            kind.told_by: f"the system {sink.target}" if kind.sends_outside else sink.target,
            **({"time": to.time} if isinstance(to, TableSettings) else {}),
        }
    for name, stream in streams.items():
        found[f"stream {name}"] = _said(
            {
                "partitions": str(stream.partitions),
                "event_time": stream.event_time or "",
                "key": ", ".join(stream.key),
                **_facts(stream.columns),
            }
        )
    return found if len(json.dumps(found)) <= FACTS_BYTES_MAX else {}


def _of_all_rows(analysis: Analysis) -> str | None:
    """The first operator with state that has no key, in words. Spark notes the number of partitions of the stage for
    its state, and makes one, so a restart would look for those that were never there.
    """
    kind = next((str(each["kind"]) for each in analysis.fingerprint if "keys" in each and not any(each["keys"])), None)
    return kind and {"Aggregate": "an aggregation", "GlobalLimit": "a limit"}.get(kind, f"a state ({kind})")


def _state_partitions(stage: AnalysedStage) -> int:
    """How many partitions the state of each task has. Another number would look for a key in another one."""
    return stage.plan.batch_partitions if stage.plan.stateful else 1


def _facts(columns: Columns) -> dict[str, str]:
    """The columns of a stream, each a fact."""
    return {f"column {name}": kind for name, kind in columns.types.items()}


def _said(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}

"""What a pipeline is made of: functions of DataFrames, handlers of single messages, named streams between them.

Nothing here knows Spark: functions and handlers are kept, not called.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from samza_azure.errors import PipelineRefused


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message for a handler: a row, and where it comes from."""

    stream: str
    partition: int
    offset: str  # the same whenever this message is delivered again; no other message of its partition has it
    row: Mapping[str, Any]  # column -> value; a timestamp is a datetime in UTC


class Collector(Protocol):
    """Takes the rows that a handler puts out. Each call of the handler has one, which ends with the call."""

    def send(self, row: Mapping[str, Any], /) -> None:
        """Put out a row: a value for each column of the output stream. It is durable with the next commit."""


class Handler(Protocol):
    """What `Application.task` decorates makes objects like this; a task has one, and all its calls come to it in turn.

    `process` may be a coroutine function. Optional, each may be one too: `on_drain(collector)`, called once when the
    run is drained and every message is processed; `close()`, when this processor lets the task go. Optional, both or
    neither: `snapshot() -> bytes`, the handler's own state (1 MiB at most), called at each commit; and
    `restore(state)`, called before anything else where there was a commit.
    """

    def process(self, envelope: Envelope, collector: Collector, /) -> object:
        """Process one message."""


StageFunction = TypeVar("StageFunction", bound=Callable[..., Any])
HandlerFactory = TypeVar("HandlerFactory", bound=Callable[[], Handler])


@dataclass(frozen=True, slots=True)
class Stage:
    """One DataFrame -> DataFrame function or one handler, the streams it reads, the stream it writes."""

    name: str
    inputs: tuple[str, ...]
    output: str
    partition_by: tuple[str, ...]
    output_mode: Literal["append", "update"]
    function: Callable[..., Any]  # of a handler: what makes it
    tasks: int | None = None
    is_handler: bool = False
    max_concurrency: int | None = None  # of a handler; None: as the job file says


class Application:
    """A pipeline. Stages are registered by decorating their functions, low-level tasks by decorating their handlers."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def stage(
        self,
        *inputs: str,
        output: str,
        partition_by: str | Sequence[str] = (),
        output_mode: Literal["append", "update"] = "append",
        tasks: int | None = None,
    ) -> Callable[[StageFunction], StageFunction]:
        """Register a function of as many DataFrames as there are inputs, in that order.

        `partition_by` names the columns whose values decide the partition of the output stream; without it the
        stage writes one partition per task, for `export` and other readers outside the pipeline.
        `tasks` is the number of tasks that share the partitions of the inputs; without it `task.count` says so, or
        there is one per partition. What has to see all rows, as an aggregate without a key, runs on one.
        """
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

        def register(function: StageFunction) -> StageFunction:
            self._add(Stage(function.__name__, inputs, output, keys, output_mode, function, tasks))
            return function

        return register

    def task(
        self,
        *inputs: str,
        output: str | None = None,
        partition_by: str | Sequence[str] = (),
        max_concurrency: int | None = None,
        tasks: int | None = None,
    ) -> Callable[[HandlerFactory], HandlerFactory]:
        """Register a class, or another callable without arguments, that makes a `Handler` for each task.

        A low-level task runs no query: its handler gets the messages one by one, in their order within a partition,
        and what it sends to the collector are the rows of `output`, whose columns the job file says
        (`streams.<output>.schema`). Rows, positions and state of the handler become durable in one append: exactly
        once. What the handler does elsewhere can happen more than once, after a crash.
        `max_concurrency`: how many messages may be in flight in a task at once, if `process` is a coroutine function.
        Without `output` nothing can be put out. `partition_by` and `tasks` are those of `stage`.
        """
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

        def register(factory: HandlerFactory) -> HandlerFactory:
            name = getattr(factory, "__name__", None)
            if name is None:
                raise PipelineRefused(
                    f"A task is called as what it decorates, and {factory!r} has no name. Decorate a function that "
                    "returns the handler: def name(): return …"
                )
            stage = Stage(name, inputs, output or name, keys, "append", factory, tasks, True, max_concurrency)
            _check_handler(stage)
            self._add(stage)
            return factory

        return register

    def _add(self, stage: Stage) -> None:
        if not stage.inputs:
            decorator = '@app.task("input")' if stage.is_handler else '@app.stage("input", output=…)'
            raise PipelineRefused(f"Stage {stage.name} reads no stream. Name one: {decorator}.")
        if stage.output_mode not in ("append", "update"):
            raise PipelineRefused(
                f"Stage {stage.name} has output mode {stage.output_mode!r}. Use 'append' or 'update': "
                "with any other each batch would be the whole table."
            )
        if stage.tasks is not None and (type(stage.tasks) is not int or stage.tasks < 1):
            raise PipelineRefused(f"Stage {stage.name} has tasks={stage.tasks!r}. Use a whole number from 1 on.")
        for other in self.stages:
            if other.name == stage.name:
                raise PipelineRefused(f"Two stages are called {stage.name}. Rename one of the functions.")
            if other.output == stage.output:
                raise PipelineRefused(
                    f"Stages {other.name} and {stage.name} both write the stream {stage.output!r}. "
                    "Give each an output of its own."
                )
        self.stages.append(stage)


def _check_handler(stage: Stage) -> None:
    """What can be seen of a handler before it is made; the rest is seen when it is."""
    name, most = stage.name, stage.max_concurrency
    if twice := {each for each in stage.inputs if stage.inputs.count(each) > 1}:
        raise PipelineRefused(f"Task {name} reads {', '.join(sorted(twice))} twice. Name each stream once.")
    if most is not None and (type(most) is not int or most < 1):
        raise PipelineRefused(f"Task {name} has max_concurrency={most!r}. Use a whole number from 1 on.")
    if inspect.iscoroutinefunction(stage.function):
        raise PipelineRefused(
            f"{name} makes the handlers of a task, and as an async function it returns none. Write def {name}(): …; "
            "the handler's process may be async."
        )
    if inspect.isclass(stage.function):
        check_methods(stage.function, name, most or 1)


def check_methods(handler: object, name: str, max_concurrency: int) -> None:
    """`PipelineRefused` if a handler, or its class, lacks a method or has one that cannot be used so."""
    process = getattr(handler, "process", None)
    if not callable(process):
        raise PipelineRefused(f"Task {name} has no method process. Write: def process(self, envelope, collector): …")
    for method in ("process", "on_drain"):
        called = getattr(handler, method, None)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise PipelineRefused(
                f"{method} of task {name} is a generator function, and nobody would take what it yields. Write "
                "collector.send(row) instead of yield."
            )
    if max_concurrency > 1 and not inspect.iscoroutinefunction(process):
        raise PipelineRefused(
            f"Task {name} may have {max_concurrency} messages in flight, but its process is no coroutine function, so "
            "its calls cannot overlap. Write: async def process(self, envelope, collector); or max_concurrency=1."
        )
    if hasattr(handler, "snapshot") != hasattr(handler, "restore"):
        has, lacks = ("snapshot", "restore") if hasattr(handler, "snapshot") else ("restore", "snapshot")
        raise PipelineRefused(
            f"Task {name} has {has} and no {lacks}: its state would be lost. Write: def {lacks}(self"
            + (", state): …" if lacks == "restore" else ") -> bytes: …")
        )

"""What a pipeline is made of: functions of DataFrames, handlers of single messages, named streams between them.

Nothing here knows Spark: functions and handlers are kept, not called.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar

from samza_azure.errors import PipelineRefused
from samza_azure.messages import TaskKind
from samza_azure.names import STAGE, STREAM
from samza_azure.user_code import place_of_call


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message for a handler: a row, and where it comes from.

    Example:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            request(envelope.row["url"], key=f"{envelope.stream}/{envelope.partition}/{envelope.offset}")
    """

    stream: str
    partition: int
    offset: str  # the same whenever this message is delivered again; no other message of its partition has it
    row: Mapping[str, Any]  # column -> value; a timestamp is a datetime in UTC


class Collector(Protocol):
    """Takes the output rows of a handler. Each call of the handler gets its own, valid until the call ends.

    Example:
        def process(self, envelope: Envelope, collector: Collector) -> None:
            collector.send({"carrier": envelope.row["carrier"], "text": "late"})
    """

    def send(self, row: Mapping[str, Any], /) -> None:
        """Add a row to the output: a value for each column of the output stream. The next commit makes it durable.

        A value that its column does not hold exactly fails the task at that commit.
        """


class TaskCoordinator(Protocol):
    """Takes what a call of a handler asks for besides its rows. A method with a parameter `coordinator` gets one.

    Each call gets its own, valid until the call ends. What it asked for becomes durable with its rows, in one append.

    Example:
        class Orders:
            def process(self, envelope: Envelope, collector: Collector, coordinator: TaskCoordinator) -> None:
                order = envelope.row["order"]
                match envelope.row["what"]:
                    case "ordered":
                        coordinator.set_timer(order, timedelta(hours=1))  # calls on_timer(order, …) then
                    case "paid":
                        coordinator.delete_timer(order)
                        coordinator.commit()  # now, not after task.commit.ms
                    case "closed":
                        coordinator.shutdown()

            def on_timer(self, order: str, collector: Collector) -> None:
                collector.send({"order": order, "text": "not paid"})
    """

    def commit(self) -> None:
        """Commit once the calls in flight have ended, without waiting for `task.commit.ms`. It costs an append."""

    def shutdown(self) -> None:
        """End this task for the rest of the run, as a drain would: it reads nothing more, what it has read is
        processed, its timers fire, `on_drain` is called. Once no task reads a source any more, the run is drained.
        """

    def set_timer(self, key: str, at: datetime | timedelta) -> None:
        """Have `on_timer` called with this key at a time (without a zone: UTC), or after one. Another time for the same
        key replaces the first one. All timers of a task may take 1 MiB, which is written with each commit.

        Raises:
            SamzaAzureError: the key is no text, the time no time, or the handler has no `on_timer`; the task has
                failed.
        """

    def delete_timer(self, key: str) -> None:
        """Delete the timer of this key, if there is one."""


class Handler(Protocol):
    """The interface of the object that processes a task's messages. Each task makes one of its own.

    `process(envelope, collector)` processes one message. It may be a coroutine function; if `max_concurrency` is above
    1, its calls overlap, otherwise no calls do. These are optional, and may be coroutine functions, too:
    `on_timer(key, collector)`, called when a timer is due or the run is drained; `on_drain(collector)`, called once
    when the run is drained and every message is processed; `close()`, called when this processor releases the task.
    All but `close` may have one more parameter, `coordinator`, and get a `TaskCoordinator` for it.
    Two more are optional, both or neither: `snapshot() -> bytes` returns the handler's own state (at most 1 MiB) at
    each commit, and `restore(state)` is called before all others if there was a commit.

    Example:
        class Count:
            def __init__(self) -> None:
                self.seen = 0

            def process(self, envelope: Envelope, collector: Collector) -> None:
                self.seen += 1

            def on_drain(self, collector: Collector) -> None:
                collector.send({"seen": self.seen})

            def snapshot(self) -> bytes:
                return str(self.seen).encode()

            def restore(self, state: bytes) -> None:
                self.seen = int(state)
    """

    @property
    def process(self) -> Callable[..., object]:
        """Process one message."""


StageFunction = TypeVar("StageFunction", bound=Callable[..., Any])
HandlerFactory = TypeVar("HandlerFactory", bound=Callable[[], Handler])


@dataclass(frozen=True, slots=True)
class Stage:
    """One function from DataFrames to a DataFrame, or one handler, with the streams it reads and the one it writes."""

    name: str
    inputs: tuple[str, ...]
    output: str
    partition_by: tuple[str, ...]
    output_mode: Literal["append", "update"]
    function: Callable[..., Any]  # for a handler: its factory
    tasks: int | None = None
    kind: TaskKind = TaskKind.QUERY
    max_concurrency: int | None = None  # of a handler; None: the job file's value
    application: str = "app"  # the name of the application in its module

    def decorator(self, **changed: Any) -> str:
        """The line that registers the stage, as its author would write it, with some of the fields changed."""
        stage = replace(self, **changed)
        is_task = stage.kind.facts.calls_handler
        keywords = {
            "output": "" if is_task and stage.output == stage.name else stage.output,
            "partition_by": stage.partition_by[0] if len(stage.partition_by) == 1 else [*stage.partition_by],
            "output_mode": "" if stage.output_mode == "append" else stage.output_mode,
            "tasks": stage.tasks,
            "max_concurrency": stage.max_concurrency,
        }
        arguments = [json.dumps(each, ensure_ascii=False) for each in stage.inputs]
        arguments += [f"{name}={json.dumps(each, ensure_ascii=False)}" for name, each in keywords.items() if each]
        return f"@{stage.application}.{'task' if is_task else 'stage'}({', '.join(arguments)})"


_COLLECTS = ContextVar("collects", default=False)


@contextmanager
def collected() -> Iterator[None]:
    """Keep decorators from raising what is wrong with their stages: the first mistake would hide the others."""
    token = _COLLECTS.set(True)
    try:
        yield
    finally:
        _COLLECTS.reset(token)


class Application:
    """A pipeline. Stages are registered by decorating their functions, low-level tasks by decorating their handlers.

    Example:
        app = Application()

        @app.stage("orders", output="totals")
        def totals(orders: DataFrame) -> DataFrame:
            return orders.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day")).agg(F.sum("amount"))

        @app.task("orders", output="large")
        class Large:
            def process(self, envelope: Envelope, collector: Collector) -> None:
                if envelope.row["amount"] > 1000:
                    collector.send({"id": envelope.row["id"]})
    """

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        #: The others, each with its first mistake, which `collected` keeps from being raised, and its place.
        self.refused: list[tuple[Stage, str, str]] = []

    def stage(
        self,
        *inputs: str,
        output: str,
        partition_by: str | Sequence[str] = (),
        output_mode: Literal["append", "update"] = "append",
        tasks: int | None = None,
    ) -> Callable[[StageFunction], StageFunction]:
        """Register a function that takes one DataFrame per input, in the order of `inputs`.

        `partition_by` names the columns whose values decide the partition of the output stream; without it the
        stage writes one partition per task, for `export` and other readers outside the pipeline.
        `tasks` is the number of tasks that share the partitions of the inputs; it defaults to `task.count`, and that to
        one per partition. A stage that has to see all rows, such as an aggregate without a key, runs as one task.

        Raises:
            PipelineRefused: a name, an argument or the function cannot be that of a stage.
        """
        Application._is_made(self)
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

        def register(function: StageFunction) -> StageFunction:
            name = _name_of(function, "stage", "the DataFrame")
            self._add(Stage(name, inputs, output, keys, output_mode, function, tasks))
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

        A low-level task runs no query: its handler gets the messages one by one, in order within a partition, and the
        rows that it sends to the collector go to `output`, whose columns the job file declares
        (`streams.<output>.schema`). The rows, positions and state of the handler become durable in one append: exactly
        once. After a crash, other effects of the handler may happen again.
        `max_concurrency` is how many messages may be in flight in a task at once, if `process` is a coroutine function.
        Without `output` the handler cannot send rows. `partition_by` and `tasks` are as for `stage`.

        Raises:
            PipelineRefused: a name, an argument or a method of the handler cannot be that of a low-level task.
        """
        Application._is_made(self)
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

        def register(factory: HandlerFactory) -> HandlerFactory:
            name = _name_of(factory, "task", "the handler")
            stage = Stage(
                name, inputs, output or name, keys, "append", factory, tasks, TaskKind.HANDLER, max_concurrency
            )
            self._add(stage)
            return factory

        return register

    def _is_made(self) -> None:
        if not isinstance(self, Application):  # of the class itself this is the first argument
            raise PipelineRefused("A stage is registered with the class Application. Write: app = Application()")

    def _add(self, stage: Stage) -> None:
        try:
            self._check(stage)
        except PipelineRefused as error:
            if not _COLLECTS.get():
                raise
            self.refused.append((stage, str(error), place_of_call()))
        else:
            self.stages.append(stage)

    def _check(self, stage: Stage) -> None:
        _check_streams(stage)
        if stage.kind.facts.calls_handler:
            _check_handler(stage)
        elif inspect.iscoroutinefunction(stage.function):
            raise PipelineRefused(
                f"Stage {stage.name} is an async function, which returns a coroutine, not a DataFrame. Write def "
                f"{stage.name} without async."
            )
        if not stage.inputs:
            decorator = stage.decorator().partition("(")[0]
            raise PipelineRefused(f"Stage {stage.name} reads no stream. Name one as the first argument of {decorator}.")
        if stage.output_mode not in ("append", "update"):
            raise PipelineRefused(
                f"Stage {stage.name} has output mode {stage.output_mode!r}. Use 'append' or 'update': "
                "with any other mode each batch would contain the whole table."
            )
        if stage.tasks is not None and (type(stage.tasks) is not int or stage.tasks < 1):
            raise PipelineRefused(f"Stage {stage.name} has tasks={stage.tasks!r}. Use a whole number of at least 1.")
        for other in self.stages:
            if other.name == stage.name:
                raise PipelineRefused(
                    f"Two stages are called {stage.name}. Rename one of the functions; or, in a notebook whose cell "
                    f"runs again, run the cell with {stage.application} = Application() first."
                )
            if other.output == stage.output:
                raise PipelineRefused(
                    f"Stages {other.name} and {stage.name} both write the stream {stage.output!r}. "
                    "Give each stage its own output."
                )


def _name_of(decorated: Callable[..., Any], kind: str, returned: str) -> str:
    name = getattr(decorated, "__name__", None)
    if name is None:
        raise PipelineRefused(
            f"A {kind} takes the name of what is decorated, and {decorated!r} has no name. Decorate a function with "
            f"def that returns {returned}."
        )
    return str(name)


def _check_streams(stage: Stage) -> None:
    """Refuse what is no name of a stage or a stream."""
    streams = (*stage.inputs, stage.output)
    if wrong := [each for each in streams if not isinstance(each, str)]:
        flat = (name for each in stage.inputs for name in (each if isinstance(each, list | tuple) else [each]))
        inputs = [each if isinstance(each, str) else "name" for each in flat]
        [output] = stage.output if isinstance(stage.output, list | tuple) and len(stage.output) == 1 else [stage.output]
        output = output if isinstance(output, str) else "name"
        raise PipelineRefused(
            f"Stage {stage.name} names the stream {wrong[0]!r}. A name is a text, and each input is an argument of its "
            f"own. Write {replace(stage, inputs=tuple(inputs), output=output).decorator()}."
        )
    if not STAGE.accepts(stage.name):
        raise PipelineRefused(
            f"The stage {stage.name!r} cannot have the name of its function, which is a part of the names of logs: it "
            f"{STAGE.says}. Use def, or set __name__."
        )
    # A task without an output has its own name there, and nobody reads it.
    named = stage.inputs if stage.kind.facts.calls_handler and stage.output == stage.name else streams
    if unfit := [each for each in named if not STREAM.accepts(each)]:
        raise PipelineRefused(f"Stage {stage.name} names the stream {unfit[0]!r}: it {STREAM.says}.")


def _check_handler(stage: Stage) -> None:
    """Check what can be checked before the handler is made; `check_methods` checks the handler itself."""
    name, most = stage.name, stage.max_concurrency
    if twice := {each for each in stage.inputs if stage.inputs.count(each) > 1}:
        raise PipelineRefused(f"Task {name} reads {', '.join(sorted(twice))} twice. Name each stream once.")
    if most is not None and (type(most) is not int or most < 1):
        raise PipelineRefused(f"Task {name} has max_concurrency={most!r}. Use a whole number of at least 1.")
    if inspect.iscoroutinefunction(stage.function):
        raise PipelineRefused(
            f"{name} makes the handlers of a task, but an async function returns a coroutine, not a handler. Write "
            f"def {name}(): without async; the handler's process may be async."
        )
    if inspect.isclass(stage.function):
        check_methods(stage.function, name, most or 1)


#: The methods of a handler, as they are called.
_CALLS = {
    "process": "process(self, envelope, collector)",
    "on_timer": "on_timer(self, key, collector)",
    "on_drain": "on_drain(self, collector)",
    "snapshot": "snapshot(self)",
    "restore": "restore(self, state)",
}


def _check_arguments(handler: object, name: str, method: str) -> None:
    """Refuse a method of a handler, or of its class, that cannot be called with its arguments."""
    called = getattr(handler, method, None)
    if not callable(called):
        return
    wanted = _CALLS[method]
    arguments = wanted.partition("(")[2].rstrip(")").split(", ")
    has_self = inspect.isclass(handler) and inspect.isfunction(inspect.getattr_static(handler, method))
    more = {"coordinator": None} if "collector" in arguments and takes_coordinator(called) else {}
    try:
        inspect.signature(called).bind(*(arguments if has_self else arguments[1:]), **more)
    except TypeError as error:
        raise PipelineRefused(
            f"Method {method} of task {name} cannot be called: {error}. Write: def {wanted}:"
        ) from None
    except ValueError:
        return  # it is built in, and has no signature


def takes_coordinator(method: Callable[..., Any]) -> bool:
    """Whether a method of a handler has the parameter `coordinator`."""
    try:
        return "coordinator" in inspect.signature(method).parameters
    except ValueError:
        return False  # it is built in, and has no signature


def check_methods(handler: object, name: str, max_concurrency: int) -> None:
    """Raise `PipelineRefused` if a handler, or its class, lacks a method or has one of the wrong kind."""
    process = getattr(handler, "process", None)
    if not callable(process):
        raise PipelineRefused(f"Task {name} has no method process. Write: def process(self, envelope, collector):")
    for method in _CALLS:
        _check_arguments(handler, name, method)
    for method in ("process", "on_timer", "on_drain"):
        called = getattr(handler, method, None)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise PipelineRefused(
                f"{method} of task {name} is a generator function, and what it yields would be lost. Write "
                "collector.send(row) instead of yield."
            )
    if max_concurrency > 1 and not inspect.iscoroutinefunction(process):
        raise PipelineRefused(
            f"Task {name} may have {max_concurrency} messages in flight, but its process is not a coroutine function, "
            "so its calls cannot overlap. Write: async def process(self, envelope, collector); or max_concurrency=1."
        )
    if hasattr(handler, "snapshot") != hasattr(handler, "restore"):
        has, lacks = ("snapshot", "restore") if hasattr(handler, "snapshot") else ("restore", "snapshot")
        raise PipelineRefused(
            f"Task {name} has {has} and no {lacks}: its state would be lost. Write: def {lacks}(self"
            + (", state):" if lacks == "restore" else ") -> bytes:")
        )

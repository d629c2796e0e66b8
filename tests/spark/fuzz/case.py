"""A drawn case as data: inputs with their rows, stages, what happens during the run; and the PySpark code of it.

The code that is printed is the code that runs. A batch runs the same code, but for the few operators that have no
batch form; these carry one of their own (`Call.batch`).
"""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

HEAD = """
import pandas as pd
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from samza_azure import Application

spark = SparkSession.builder.getOrCreate()
app = Application()
"""


@dataclass(frozen=True, slots=True)
class Read:
    """One argument of the stage's function."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """A method call on a frame, or several that make no sense apart."""

    below: "Node"
    operator: str
    code: str  # .where("v > 2")
    batch: str | None = None  # what takes its place where Spark has no batch form
    define: str = ""  # what stands before the stage: a UDF, a function of states


@dataclass(frozen=True, slots=True)
class Join:
    """Two frames without a common column name."""

    left: "Node"
    right: "Node"
    condition: str
    how: str


@dataclass(frozen=True, slots=True)
class Union:
    """Several frames, by position or by name."""

    parts: tuple["Node", ...]
    by_name: bool


Node: TypeAlias = Read | Call | Join | Union


@dataclass(frozen=True, slots=True)
class StreamLines:
    """What the job file says of a stream that a stage writes."""

    partitions: int = 1
    event_time: str | None = None
    frontier_lag: str | None = None
    schema: str | None = None  # of the rows that a handler sends


@dataclass(frozen=True, slots=True)
class DrawnStage:
    """One stage and the stream that it writes. With a schema in `stream` it is a handler that passes rows on."""

    name: str
    inputs: tuple[str, ...]
    output: str
    node: Node
    partition_by: tuple[str, ...] = ()
    output_mode: str = "append"
    tasks: int | None = None
    stream: StreamLines = StreamLines()
    last_per: tuple[str, ...] | None = None  # in update mode: the columns of which the last row counts


@dataclass(frozen=True, slots=True)
class DrawnInput:
    """A source stream and its rows in the order in which they are produced."""

    name: str
    columns: tuple[tuple[str, str], ...]  # name, type
    rows: tuple[tuple[Any, ...], ...] = field(repr=False)
    partitions: int
    flush_rows: int
    event_time: str | None
    frontier_lag: str | None
    key: tuple[str, ...]
    not_null: frozenset[str] = frozenset()

    @property
    def ddl(self) -> str:
        """Its schema as the job file writes it."""
        return ", ".join(f"{name} {kind}{' NOT NULL' * (name in self.not_null)}" for name, kind in self.columns)


@dataclass(frozen=True, slots=True)
class Produce:
    """So many more rows of an input; close its writer when none is left."""

    stream: str
    rows: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Start all tasks that do not run yet (None), or one of them."""

    task: int | None


@dataclass(frozen=True, slots=True)
class Move:
    """A task gets another writer once it has written this many more batches, or nothing is left to read."""

    task: int
    batches: int


@dataclass(frozen=True, slots=True)
class ReadAll:
    """Wait until all that is produced is read."""


Action: TypeAlias = Produce | Begin | Move | ReadAll


@dataclass(frozen=True, slots=True)
class Cut:
    """A drain in mid-stream: after some actions, while half of the rest is produced, and after some batches more."""

    actions: int
    batches: int


@dataclass(frozen=True, slots=True)
class Case:
    """Everything about one case. Equal cases run alike, as far as Spark's batches do."""

    seed: int
    inputs: tuple[DrawnInput, ...]
    stages: tuple[DrawnStage, ...]
    actions: tuple[Action, ...]
    moved_in_flush: int | None = None
    task_count: int | None = None
    batch_bytes: str = "1 KiB"
    state: str | None = None
    batch_partitions: int = 1  # of each stage with a query
    cut: Cut | None = None  # without it the drain comes when all is read


# Code.


def nodes(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for child in children(node):
        yield from nodes(child)


def children(node: Node) -> tuple[Node, ...]:
    """The frames that a node is made of."""
    match node:
        case Read():
            return ()
        case Call(below=below):
            return (below,)
        case Join(left=left, right=right):
            return (left, right)
        case Union(parts=parts):
            return parts


def code_of(case: Case, *, batch: bool = False) -> str:
    """The pipeline's module, as a user would write it."""
    parts = [HEAD.strip()]
    defined: set[str] = set()
    for stage in case.stages:
        for node in nodes(stage.node):
            if isinstance(node, Call) and node.define and node.define not in defined:
                defined.add(node.define)
                parts.append(node.define.strip())
        parts.append(_stage(stage, batch=batch))
    return "\n\n\n".join(parts) + "\n"


def _stage(stage: DrawnStage, *, batch: bool) -> str:
    if stage.stream.schema is not None and not batch:
        return _handler(stage)
    arguments = [f"in{number}" for number in range(len(stage.inputs))]
    lines: list[str] = []
    result = _frame(stage.node, arguments, {}, lines, batch=batch)
    head = [*(repr(name) for name in stage.inputs), f"output={stage.output!r}"]
    if stage.partition_by:
        head.append(f"partition_by={list(stage.partition_by)!r}")
    if stage.output_mode != "append":
        head.append(f"output_mode={stage.output_mode!r}")
    if stage.tasks is not None:
        head.append(f"tasks={stage.tasks}")
    body = [f"@app.stage({', '.join(head)})", f"def {stage.name}({', '.join(arguments)}):"]
    return "\n".join([*body, *(f"    {line}" for line in lines), f"    return {result}"])


def _handler(stage: DrawnStage) -> str:
    """The same as a low-level task."""
    head = [*(repr(name) for name in stage.inputs), f"output={stage.output!r}"]
    if stage.partition_by:
        head.append(f"partition_by={list(stage.partition_by)!r}")
    return f"""@app.task({", ".join(head)})
class {stage.name}:
    def process(self, envelope, collector):
        collector.send(envelope.row)"""


def _frame(node: Node, arguments: list[str], known: dict[Node, str], lines: list[str], *, batch: bool) -> str:
    """The variable that holds a node. Equal nodes are one DataFrame, used twice."""
    if isinstance(node, Read):
        return arguments[node.number]
    if node in known:
        return known[node]
    names = [_frame(child, arguments, known, lines, batch=batch) for child in children(node)]
    match node:
        case Call():
            code = names[0] + (node.batch if batch and node.batch is not None else node.code)
        case Join():
            code = f"{names[0]}.join({names[1]}, F.expr({node.condition!r}), {node.how!r})"
        case Union():
            method = "unionByName" if node.by_name else "union"
            code = names[0] + "".join(f".{method}({name})" for name in names[1:])
    known[node] = name = f"f{len(known)}"
    lines.append(f"{name} = {code}")
    return name


def job_of(case: Case) -> str:
    """The lines of the job file."""
    lines = []
    for each in case.inputs:
        lines += [f"[streams.{each.name}]", f"partitions = {each.partitions}", f'schema = "{each.ddl}"']
        lines += _times(each.event_time, each.frontier_lag)
        if each.key:
            lines.append(f"key = {list(each.key)!r}".replace("'", '"'))
    for stage in case.stages:
        if stage.stream != StreamLines():
            lines += [f"[streams.{stage.output}]", f"partitions = {stage.stream.partitions}"]
            lines += _times(stage.stream.event_time, stage.stream.frontier_lag)
            if stage.stream.schema is not None:
                lines.append(f'schema = "{stage.stream.schema}"')
        if case.batch_partitions > 1 and stage.stream.schema is None:
            lines += [f"[stages.{stage.name}]", f"partitions = {case.batch_partitions}"]
    lines += ["[task]", "commit.ms = 0", f'batch.bytes = "{case.batch_bytes}"']
    if case.state is not None:
        lines.append(f'state = "{case.state}"')
    if case.task_count is not None:
        lines.append(f"count = {case.task_count}")
    return "\n".join(lines) + "\n"


def _times(event_time: str | None, frontier_lag: str | None) -> list[str]:
    lines = [] if event_time is None else [f'event_time = "{event_time}"']
    return lines if frontier_lag is None else [*lines, f'frontier_lag = "{frontier_lag}"']


def told(case: Case) -> str:
    """All of a case, to be read."""
    parts = [f"# seed {case.seed}", code_of(case), "# job.toml", job_of(case)]
    for each in case.inputs:
        how = f"key {each.key}" if each.key else "in turn"
        parts.append(f"# {each.name}: {len(each.rows)} rows ({how}), flushed by {each.flush_rows}")
        parts += [f"#   {tuple(_short(value) for value in row)}" for row in each.rows[:40]]
    parts.append("# " + "\n# ".join(str(action) for action in case.actions))
    if case.moved_in_flush is not None:
        parts.append(f"# task {case.moved_in_flush} moves in the flush")
    if case.cut is not None:
        parts.append(f"# drained after {case.cut.actions} actions and {case.cut.batches} batches more")
    return "\n".join(parts)


def _short(value: Any) -> Any:
    return value.strftime("%m-%d %H:%M:%S") if isinstance(value, dt.datetime) else value


def with_streams_of_its_own(case: Case, suffix: str) -> Case:
    """The same case with other names of source streams: those of other cases are in the account too."""
    names = {each.name: f"{each.name}-{suffix}" for each in case.inputs}
    return replace(
        case,
        inputs=tuple(replace(each, name=names[each.name]) for each in case.inputs),
        stages=tuple(
            replace(stage, inputs=tuple(names.get(name, name) for name in stage.inputs)) for stage in case.stages
        ),
        actions=tuple(
            replace(action, stream=names[action.stream]) if isinstance(action, Produce) else action
            for action in case.actions
        ),
    )

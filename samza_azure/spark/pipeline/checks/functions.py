"""Spark can call the functions and state machines that a stage gives it, with their arguments, and keep their state;
and the package is installed that it imports only when the first batch runs, and fails.

Spark finds a wrong one at the first row, or when the first timer fires. Here they are read from the plan, as a worker
reads them. One of more than a megabyte is not in the plan, and is not looked at.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.util import PythonEvalType

from samza_azure.pipeline.packages import needs
from samza_azure.spark.jvm.catalyst import Node, all_of, contains, has_pattern, items, kind_of
from samza_azure.spark.jvm.pickled import function_of, machine_of
from samza_azure.spark.pipeline.facts import Facts
from samza_azure.spark.pipeline.operators import described
from samza_azure.spark.pipeline.refusals import Refusal

#: The messages between transformWithState and its Python process.
_MESSAGES = "pyspark.sql.streaming.proto.StateMessage_pb2"
#: How Spark calls the methods of a state machine: by the place of an argument, and a timer's by its name.
_METHODS = {
    "init": ("init(self, handle)", (None,), {}),
    "handleInputRows": ("handleInputRows(self, key, rows, timerValues)", (None, None, None), {}),
    "handleExpiredTimer": (
        "handleExpiredTimer(self, key, timerValues, expiredTimerInfo)",
        (),
        dict.fromkeys(("key", "timerValues", "expiredTimerInfo")),
    ),
    "handleInitialState": ("handleInitialState(self, key, initialState, timerValues)", (None, None, None), {}),
    "close": ("close(self)", (), {}),
}  # fmt: skip
#: What the functions of an operator get, and how many arguments these are. Others get columns.
_ARGUMENTS = {
    "FlatMapGroupsInPandasWithState": ("(key, rows, state)", 3),
    **dict.fromkeys(("MapInArrow", "MapInPandas", "PythonMapInArrow"), ("(batches)", 1)),
}
#: Functions of columns that get all of them in one iterator.
_OF_ITERATORS = (PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF)


def check(facts: Facts) -> Iterator[Refusal]:
    """Refuse functions that Spark cannot call, and state that it cannot keep."""
    if any(node.kind.startswith("TransformWithState") for node in facts.operators) and (missing := _missing()):
        yield Refusal(f"Stage {facts.stage.name} uses transformWithState, which needs {missing}")
    for node in facts.root.walk():
        yield from (facts.refused(node, said, is_of_part=True) for said in _wrong(facts, node))


def _missing() -> str:
    """What transformWithState lacks. Empty: nothing."""
    try:
        importlib.import_module(_MESSAGES)
    except Exception as error:  # noqa: BLE001  # whatever an old protobuf raises
        return f"the package protobuf ({error}). {needs('google.protobuf')}"
    return ""


def _wrong(facts: Facts, node: Node) -> Iterator[str]:
    if node.kind == "TransformWithStateInPySpark":
        yield from _of_machine(node)
        return
    if node.kind == "FlatMapGroupsInPandasWithState":
        yield from _of_state(node)
    if node.kind.startswith("FlatMap") and node.kind not in _ARGUMENTS:
        return  # refused, whatever its function takes
    if not has_pattern(facts.spark, node.plan, "PYTHON_UDF"):  # a walk from here would be a call for each expression
        return
    if node.kind == "Aggregate" and node.is_streaming and any(contains(each, "PythonUDAF") for each in node.made):
        yield (
            f"the {described(node)} uses a pandas_udf or arrow_udf that makes one value of a group, which Spark cannot "
            "run on a stream. Collect the values with F.collect_list, and apply a F.udf to the list behind it."
        )
    for udf in (each for expression in items(node.plan.expressions()) for each in all_of(expression, "PythonUDF")):
        number = udf.children().size()
        wanted, arguments = _ARGUMENTS.get(node.kind, ("a column" if number == 1 else f"{number} columns", number))
        arguments = 1 if int(udf.evalType()) in _OF_ITERATORS else arguments
        function = function_of(udf)
        if any(kind_of(each) == "NamedArgumentExpression" for each in items(udf.children())) or function is None:
            continue
        if (reason := _why_not(function, (None,) * arguments, {})) is not None:
            yield f"Spark cannot call {udf.name()} with {wanted}: {reason}."


def _of_machine(node: Node) -> Iterator[str]:
    machine = machine_of(node.plan)
    if not isinstance(machine, StatefulProcessor):
        return
    for name, (line, arguments, by_name) in _METHODS.items():
        if (reason := _why_not(getattr(machine, name), arguments, by_name)) is not None:
            how = " by the names of its arguments" if by_name else ""
            yield f"Spark calls {name} of {type(machine).__name__}{how} and cannot: {reason}. Write: def {line}:"
    if expiring := _expiring(machine):
        yield (
            f"the state {expiring[0]} of the {described(node)} has ttlDurationMs, by which it would be forgotten at "
            "another row in each run, and which Spark refuses at the first batch unless timeMode is "
            '"ProcessingTime". Leave ttlDurationMs out and use timeMode "EventTime": register a timer for the time of '
            "a row plus that duration, and clear the state in handleExpiredTimer. That removes it once the watermark "
            "has passed that time."
        )


def _of_state(node: Node) -> Iterator[str]:
    """Spark 4.3 reads the schema of this state in lower case, and finds neither `elementType` nor `keyType` then."""
    for field in json.loads(node.plan.stateType().json())["fields"]:
        if any(kind in str(field["type"]) for kind in ("elementType", "keyType")):
            name = field["name"]
            yield (
                f"the state of applyInPandasWithState has the array or map {name}, with which Spark 4.3 fails at the "
                f'first row. Declare it as a text, "{name} string", and use json.dumps and json.loads.'
            )


def _why_not(function: Callable[..., Any], arguments: tuple[Any, ...], by_name: dict[str, Any]) -> str | None:
    """Why a function cannot be called so. None: it can, or does not say what it takes."""
    try:
        inspect.signature(function).bind(*arguments, **by_name)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None  # it is built in
    return None


class _Noting(StatefulProcessorHandle):
    """A handle that notes which state of a machine expires, as the machine's `init` declares it."""

    def __init__(self) -> None:
        self.expiring: list[str] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        self.expiring += [stateName] * bool(ttlDurationMs)

    getListState = getValueState  # noqa: N815

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        self.expiring += [stateName] * bool(ttlDurationMs)


def _expiring(machine: StatefulProcessor) -> list[str]:
    """The names of a machine's state that expires. It is a copy, so its `init` may be called as a worker calls it."""
    handle = _Noting()
    with suppress(Exception):  # it may use what it has got, or what only a worker has
        machine.init(handle)
    return handle.expiring

"""All that is wrong with a pipeline at once, each mistake with the line of the operator that it is about.

While a stage's function runs, each operator that it adds to a plan gets the number of the call that adds it. Spark
keeps such a position with every node of a plan, also through its optimiser: it is meant for lines of SQL.
Promised: of the operators that one call adds, one refusal for each kind of operator, the first that is found, since its
remedy replaces the operator; and beside it all refusals of a part of them, such as a function.
Not promised: the line within a stage written in SQL, whose operators have a position in that text instead. A refusal of
them has the line of the stage.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar

from pyspark.sql import GroupedData, SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.spark.jvm.catalyst import CATALYST, kind_of
from samza_azure.spark.jvm.session import java_class
from samza_azure.user_code import is_ours, place_of_function, place_of_line

#: The position in a line of SQL that marks a place of ours.
_OURS = -1


class CallSites:
    """Calls in the user's code, by their numbers in Spark's plans."""

    #: File, line, and place in the code; of all stages, since one may keep a DataFrame, and another read it.
    _known: ClassVar[list[tuple[str, int, int]]] = []

    def __init__(self, spark: SparkSession) -> None:
        self._origin = java_class(spark, f"{CATALYST}.trees.CurrentOrigin")

    def of(self, origin: Any) -> str:
        """The line in which an operator was added, if its origin in a plan says so."""
        line, position = origin.line(), origin.startPosition()
        if not position.isDefined() or position.get() != _OURS:
            return ""
        file, number, _ = self._known[line.get()]
        return place_of_line(file, number)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the lines that call methods of DataFrames meanwhile."""
        replaced: list[tuple[type, str, Any, Any]] = []
        try:
            for kind in (DataFrame, GroupedData):
                for name in dir(kind):
                    method = getattr(kind, name)
                    if not name.startswith("_") and isinstance(method, FunctionType):
                        replaced.append((kind, name, vars(kind).get(name), self._noting(method)))
                        setattr(kind, name, replaced[-1][-1])
            yield
        finally:
            for changed, name, before, ours in replaced:
                if vars(changed).get(name) is not ours:
                    continue  # the stage, or a module that it imports, has put a method of its own there
                if before is None:
                    delattr(changed, name)
                else:
                    setattr(changed, name, before)

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def noting(*arguments: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            if not is_ours(frame.f_code.co_filename):  # Spark's own code calls it, for the line that is noted
                return method(*arguments, **options)
            place, before = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti), self._origin.get()
            if place not in self._known:
                self._known.append(place)
            self._origin.setPosition(self._known.index(place), _OURS)
            try:
                return method(*arguments, **options)
            finally:
                self._origin.set(before)

        return noting


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong with a stage, and what to do about it."""

    said: str
    plan: Any = None  # the operator in Spark's plan; None: it is about the stage as a whole
    is_of_part: bool = False  # of the operator, such as its function
    is_vague: bool = False  # of a whole query: it may follow from what is refused already


class Refusals:
    """The refusals of a stage."""

    def __init__(self, stage: Stage, places: CallSites) -> None:
        self._stage, self._places = stage, places
        self._found: dict[object, tuple[str, str]] = {}

    def add(self, refusal: Refusal) -> None:
        """Add a refusal, unless the operator as a whole has one, or another one that the same call has added."""
        if refusal.is_vague and self._found:
            return
        key, place = list[object](), ""
        if refusal.plan is not None:
            origin = refusal.plan.origin()
            place = self._places.of(origin)
            key = [kind_of(refusal.plan), str(origin.line()), str(origin.startPosition())]
        said = refusal.said if refusal.is_of_part or refusal.plan is None else ""
        self._found.setdefault((*key, said), (refusal.said, f"{place} (stage {self._stage.name})" if place else ""))

    def raised(self, error: PipelineRefused) -> None:
        """Add a refusal that was raised, with its place if it has one."""
        notes = getattr(error, "__notes__", [""])
        self._found.setdefault(str(error), (str(error), notes[0]))

    def __len__(self) -> int:
        return len(self._found)

    def end(self, schema: StructType) -> None:
        """Raise them, if there are any."""
        if self._found:
            whole = f"{place_of_function(self._stage.function)} (stage {self._stage.name})"
            raise StageRefused([(said, place or whole) for said, place in self._found.values()], schema)


class StageRefused(Mistakes):
    """All mistakes of a stage, and the columns that it writes in spite of them."""

    def __init__(self, found: Sequence[tuple[str, str]], schema: StructType) -> None:
        super().__init__(found)
        self.schema = schema


def plan_of_error(error: BaseException) -> Any:
    """The operator that Spark refuses. None: it does not say."""
    try:
        plan = error._origin.plan()  # type: ignore[attr-defined]
        return plan.get() if plan.isDefined() else None
    except Exception:  # noqa: BLE001  # an error of Java that is about no plan
        return None

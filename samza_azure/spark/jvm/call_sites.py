"""The line of the user's code that has added an operator to a plan.

While a stage's function runs, each operator that it adds to a plan gets the number of the call that adds it. Spark
keeps such a position with every node of a plan, also through its optimiser: it is meant for lines of SQL.
Not promised: the line within a stage written in SQL, whose operators have a position in that text instead.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar

from pyspark.sql import GroupedData, SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from samza_azure.spark.jvm.catalyst import CATALYST, kind_of
from samza_azure.spark.jvm.session import java_class
from samza_azure.user_code import is_ours, place_of_line

#: The position in a line of SQL that marks one of our places.
_OURS = -1


class CallSites:
    """Calls in the user's code, by their numbers in Spark's plans."""

    #: File, line, and place in the code; of all stages, since one may keep a DataFrame, and another read it.
    _known: ClassVar[list[tuple[str, int, int]]] = []

    def __init__(self, spark: SparkSession) -> None:
        self._origin = java_class(spark, f"{CATALYST}.trees.CurrentOrigin")

    def of(self, plan: Any) -> str:
        """The line in which an operator was added, if its plan says so."""
        origin = plan.origin()
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


def added_with(plan: Any) -> tuple[str, str, str]:
    """What is equal for operators of one kind that one call has added."""
    origin = plan.origin()
    return kind_of(plan), str(origin.line()), str(origin.startPosition())

"""All that is wrong with a pipeline at once, each mistake with the line of the operator that it is about.

Promised: of the operators that one call adds, one refusal for each kind of operator, the first that is found, since its
remedy replaces the operator; and beside it all refusals of a part of them, such as a function.
What can only be judged behind another question waits for that, lest a refusal follow from one that is told already:
- A stage that reads a stream of its own is refused for that alone. Nothing is known of the rows of such a stream,
  neither event time nor partitions, and every check asks the facts that are made of them.
- `checks.LAST` asks whether rows may be late, and `checks.tasks` which task gets a row. What is refused decides both:
  the watermark or the operator that the remedy replaces.
Not promised: the line within a stage written in SQL (`jvm.call_sites`). A refusal of its operators has the line of the
stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from samza_azure.application import Stage
from samza_azure.errors import Mistakes, PipelineRefused
from samza_azure.spark.jvm.call_sites import CallSites, added_with
from samza_azure.user_code import place_of_function


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
            place, key = self._places.of(refusal.plan), [*added_with(refusal.plan)]
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

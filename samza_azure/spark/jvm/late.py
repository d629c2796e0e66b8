"""Count the rows that a batch's aggregations have dropped as late. Only this file uses Spark's plans of batches for it.

Spark adds rows up by group before it compares groups with the watermark, so it counts groups. Where a batch has late
ones, the rows that it added up are read again, and the late ones counted.
Promised: the count is exact if the functions below the aggregation are deterministic, and nothing is read again in a
batch without late groups. A row of a sliding window counts once for each window that it is late for.
Not promised: a count of rows for an aggregation behind another operator with state, since that cannot run twice. There
Spark's count of groups remains.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.spark.jvm.catalyst import identity, items, kind_of, substituted
from samza_azure.spark.jvm.session import java_class

PACKAGE = "org.apache.spark.sql.execution.streaming.operators.stateful"
#: What drops late groups, by Spark's names: of an aggregation, and of one by session windows.
DROPPING = ("StateStoreSave", "SessionWindowStateStoreRestore")
DROPPED = "numRowsDroppedByWatermark"


class LateRows:
    """Looks at the batch that a query runs. Where its plan has aggregations is found out once for each of its shapes: a
    batch that looks for windows that are over has another than one that does not (`searches.py`).

    Each call over py4j is paid in every batch, so operators are found by their number.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._spark = spark
        self._execution: Any = query._jsq.streamingQuery()
        self._stateful = java_class(spark, "java.lang.Class").forName(f"{PACKAGE}.StatefulOperator")
        # By shape, the one of the last batch first: of each of them its name, and its number in the plan.
        self._shapes: list[list[tuple[str, int]]] = []

    def uncounted(self) -> int:
        """How many more rows the current batch has dropped than Spark has counted. Call it when its plan has run."""
        if [] in self._shapes:
            return 0  # a join, for example: Spark counts its rows
        return sum(map(self._uncounted, self._dropping(self._execution.lastExecution().executedPlan())))

    def _dropping(self, plan: Any) -> list[Any]:
        """What drops late groups in a plan."""
        for number, shape in enumerate(self._shapes):
            found = [plan.apply(place) for _, place in shape]
            if all(node is not None and node.nodeName() == name for node, (name, _) in zip(found, shape, strict=True)):
                self._shapes.insert(0, self._shapes.pop(number))
                return found
        numbered = [(node.nodeName(), place, node) for place, node in enumerate(_nodes(plan))]
        self._shapes.insert(0, [(name, place) for name, place, _ in numbered if name in DROPPING])
        return [node for name, _, node in numbered if name in DROPPING]

    def _uncounted(self, node: Any) -> int:
        counted = int(node.longMetric(DROPPED).value())
        if not counted:
            return 0
        partial = _partial_aggregation(node)
        condition, below = node.watermarkExpressionForLateEvents(), list(_nodes(partial.child()))
        if condition.isEmpty() or any(self._stateful.isInstance(each) for each in below):
            return 0
        keys = [each for each in items(partial.groupingExpressions()) if kind_of(each) == "Alias"]
        late = substituted(self._spark, condition.get(), {identity(each): each.child() for each in keys})
        # A copy, because the metrics of the original say how many rows the batch has read.
        again = java_class(self._spark, "org.apache.spark.sql.execution.FilterExec")(late, partial.child().clone())
        return int(again.execute().count()) - counted


def _partial_aggregation(node: Any) -> Any:
    """The aggregation that rows meet first: Spark lets it run on rows of any distribution."""
    while "Aggregate" not in kind_of(node) or node.requiredChildDistributionExpressions().isDefined():
        node = node.child()
    return node


def _nodes(plan: Any) -> Iterator[Any]:
    """All operators of a plan, in the order of their numbers."""
    number = 0
    while (node := plan.apply(number)) is not None:
        yield node
        number += 1

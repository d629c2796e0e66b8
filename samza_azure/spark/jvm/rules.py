"""What Spark's own rules say of a plan: the same code that runs, or refuses, the query."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.spark.jvm.catalyst import CATALYST, Node, scala_object, scala_seq
from samza_azure.spark.jvm.session import java_class

UNSUPPORTED = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
JOIN_HELPER = "org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper"
#: In milliseconds: Spark is asked for the state watermark that belongs to this input watermark, far from zero.
PROBE_MS = 1 << 41
#: Of the optimiser's rules, those that remove casts to the same type, or give equal values equal bytes.
NORMALISING = (
    "org.apache.spark.sql.catalyst.optimizer.SimplifyCasts",
    "org.apache.spark.sql.catalyst.analysis.RewriteCollationJoin",
    "org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers",
)


def error_of_streaming(spark: SparkSession, plan: Any, *, updates: bool) -> Exception | None:
    """The error with which Spark would refuse to start a query of this plan. None: it would not."""
    modes = java_class(spark, "org.apache.spark.sql.streaming.OutputMode")
    try:
        java_class(spark, UNSUPPORTED).checkForStreaming(plan, modes.Update() if updates else modes.Append())
    except Exception as error:  # noqa: BLE001  # any error of Java is a refusal
        return error
    return None


def normalised(spark: SparkSession, plan: Any) -> Any:
    """The plan as it is after these."""
    for rule in NORMALISING:
        plan = java_class(spark, rule).apply(plan)
    return plan


def broadcast_side(spark: SparkSession, join: Node) -> Node | None:
    """The side of a join that Spark broadcasts, as its hint says."""
    rule = scala_object(spark, f"{CATALYST}.optimizer.PushDownLeftSemiAntiJoin")
    side = rule.getBroadcastBuildSide(join.plan, True, spark._jsparkSession.sessionState().conf())
    if not side.isDefined():
        return None
    return join.children[0 if str(side.get().toString()) == "BuildLeft" else 1]


def evicted_us(
    spark: SparkSession, join: Node, keys: Sequence[tuple[Any, Any]], parts: Sequence[Any]
) -> tuple[int | None, int | None]:
    """For left and right: how far behind the watermark a join of streams still keeps rows. None: it keeps all.

    `keys` are pairs of left and right expressions, `parts` those of the condition.
    """
    option = java_class(spark, "scala.Option")
    condition = reduce(java_class(spark, f"{CATALYST}.expressions.And"), parts) if parts else None
    outputs = [scala_seq(spark, child.output) for child in join.children]
    sides = [scala_seq(spark, [pair[side] for pair in keys]) for side in (0, 1)]
    found = java_class(spark, JOIN_HELPER).getStateWatermark(
        *outputs, *sides, option.apply(condition), option.apply(PROBE_MS), False
    )
    return _behind_us(found._1()), _behind_us(found._2())


def _behind_us(found: Any) -> int | None:
    return (int(found.get()) - PROBE_MS) * 1000 if found.isDefined() else None

"""The container owns the watermark, and at the end of a drain the clock. Only this file uses Spark's private
interfaces for them, those of Spark 4.3.

Spark's own watermark is the maximum event time seen, less the delay: rows of a lagging producer are late, and after a
failover some producer always lags. Ours is the minimum progress of all producers. Spark takes the minimum of its
watermarks, so an added entry that never moves keeps it from raising its own; `raise_to` then sets the value.
Promised: `probe` checks at the start whether this Spark has the interface. One test pins its behaviour.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.errors import ConfigError
from samza_azure.extras import SPARK, to_install
from samza_azure.spark.jvm.session import gateway_of, java_class, private_field

QUERY = "org.apache.spark.sql.execution.streaming.runtime.StreamExecution"
TRACKER = "org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker"
#: What the clock shows at the end of a drain: 2262-01-01, in the last year of pandas. Functions make dates of it.
END_OF_CLOCK_MS = 9_214_646_400_000


class OwnedWatermark:
    """The watermark of one running query."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        """Take over the watermark. Call this in the query's first batch, before Spark has raised it."""
        self._spark, self._query = spark, query._jsq.streamingQuery()
        self._tracker: Any = self._query.watermarkTracker()
        entries = private_field(spark, TRACKER, "operatorToWatermarkMap")
        none = getattr(java_class(spark, "scala.None$"), "MODULE$")
        entries.get(self._tracker).put(java_class(spark, "java.util.UUID").randomUUID(), none)

    def raise_to(self, watermark_ms: int) -> None:
        """Set the watermark of the next batches, if this value is higher."""
        if watermark_ms > self.current_ms():
            self._tracker.setWatermark(watermark_ms)

    def end_clock(self) -> None:
        """Let functions with state see a far time in the next batches, so that all timers by the clock fire."""
        clock = java_class(self._spark, "org.apache.spark.util.ManualClock")(END_OF_CLOCK_MS)
        _clock_of(self._spark).set(self._query, clock)

    def current_ms(self) -> int:
        """The watermark of the next batch, in milliseconds."""
        return int(self._tracker.currentWatermark())


def _clock_of(spark: SparkSession) -> Any:
    return private_field(spark, QUERY, "triggerClock")


def probe(spark: SparkSession) -> None:
    """Refuse a Spark whose watermark and clock cannot be owned."""
    try:
        gateway, classes = gateway_of(spark), java_class(spark, "java.lang.Class")
        private_field(spark, TRACKER, "operatorToWatermarkMap")
        _clock_of(spark)
        kind = classes.forName(TRACKER)
        none, one = gateway.new_array(classes, 0), gateway.new_array(classes, 1)
        one[0] = java_class(spark, "java.lang.Long").TYPE
        kind.getMethod("currentWatermark", none)
        kind.getMethod("setWatermark", one)
    except Exception as error:
        raise ConfigError(_UNKNOWN.format(version=spark.version, install=to_install(SPARK))) from error


_UNKNOWN = (
    "This version of samza-azure does not know the watermark interface of Spark {version}. "
    "Install the pyspark that samza-azure requires: {install}."
)

"""The container owns the watermark. The only file that knows how Spark keeps it: a private interface, of Spark 4.3.

Spark's own watermark is the greatest event time seen, less the delay: whoever lags is late, and after a failover
somebody always lags. Ours is the least progress of all producers. To keep Spark from raising its own, an entry that
never moves is put among its watermarks, whose least one counts; `raise_to` then sets the value.
Promised: `probe` says at start whether this Spark has the interface. One test pins that it does what is said here.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.errors import ConfigError
from samza_azure.spark.jvm.session import java_class
from samza_azure.streams.offset import INFINITY_US

TRACKER = "org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker"
INFINITY_MS = INFINITY_US // 1000


class OwnedWatermark:
    """The watermark of one running query."""

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        """Take it over. Call this in the query's first foreachBatch, before Spark has raised anything."""
        self._tracker: Any = query._jsq.streamingQuery().watermarkTracker()
        entries = self._tracker.getClass().getDeclaredField("operatorToWatermarkMap")
        entries.setAccessible(True)
        none = getattr(java_class(spark, "scala.None$"), "MODULE$")
        entries.get(self._tracker).put(java_class(spark, "java.util.UUID").randomUUID(), none)

    def raise_to(self, watermark_ms: int) -> None:
        """Set it for the batches after this one, if that is higher."""
        if watermark_ms > self.current_ms():
            self._tracker.setWatermark(watermark_ms)

    def current_ms(self) -> int:
        """What the next batch will run with."""
        return int(self._tracker.currentWatermark())


def probe(spark: SparkSession) -> None:
    """Refuse a Spark whose watermark cannot be owned."""
    try:
        kind = java_class(spark, "java.lang.Class").forName(TRACKER)
        kind.getDeclaredField("operatorToWatermarkMap").setAccessible(True)
        methods = {method.getName() for method in kind.getMethods()}
    except Exception as error:
        raise ConfigError(_UNKNOWN.format(version=spark.version)) from error
    if not {"setWatermark", "currentWatermark"} <= methods:
        raise ConfigError(_UNKNOWN.format(version=spark.version))


_UNKNOWN = (
    "Spark {version} keeps its watermark in a way that this version of samza-azure does not know. "
    "Install the pyspark that samza-azure asks for: pip install 'pyspark>=4.3,<4.4'."
)

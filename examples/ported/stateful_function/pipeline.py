"""The longest silence of each device in each hour, by a function with state and timers."""

from itertools import pairwise

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor

from samza_azure import Application

spark = SparkSession.builder.appName("longest silence").getOrCreate()
app = Application()


class LongestSilence(StatefulProcessor):
    """Collects the times of one device's readings in one hour, and judges them when the hour is over."""

    def init(self, handle):
        self.handle = handle
        self.seconds = handle.getListState("seconds", "second BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        if not self.seconds.exists():
            _, hour = key
            self.handle.registerTimer((hour + 1) * 3_600_000)
        for row in rows:
            self.seconds.appendValue((row.second,))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        device, hour = key
        seconds = sorted(second for (second,) in self.seconds.get())
        silences = [after - before for before, after in pairwise(seconds)]
        self.seconds.clear()
        yield Row(device=device, hour=hour, readings=len(seconds), silence=max(silences, default=None))

    def close(self):
        pass


@app.stage("readings", output="silences")
def longest_silences(readings: DataFrame) -> DataFrame:
    return (
        readings.withWatermark("time", "10 minutes")
        .withColumn("second", expr("unix_seconds(time)"))
        .withColumn("hour", expr("unix_seconds(time) div 3600"))
        .groupBy("device", "hour")
        .transformWithState(
            LongestSilence(), "device STRING, hour BIGINT, readings BIGINT, silence BIGINT", "append", "eventTime"
        )
    )

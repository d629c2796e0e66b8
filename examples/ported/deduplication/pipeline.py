"""Each event once, though its sender may have sent it again."""

from pyspark.sql import DataFrame, SparkSession

from samza_azure import Application

spark = SparkSession.builder.appName("deduplication").getOrCreate()
app = Application()


@app.stage("events", output="distinct-events")
def deduplicate(events: DataFrame) -> DataFrame:
    return events.withWatermark("eventTime", "10 minutes").dropDuplicatesWithinWatermark(["guid"])

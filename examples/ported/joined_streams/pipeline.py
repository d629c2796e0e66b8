"""Each impression of an advertisement with its clicks within an hour, or with none."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from samza_azure import Application

spark = SparkSession.builder.appName("joined streams").getOrCreate()
app = Application()


@app.stage("impressions", "clicks", output="joined")
def joined(impressions, clicks):
    impressionsWithWatermark = impressions.withWatermark("impressionTime", "2 hours")
    clicksWithWatermark = clicks.withWatermark("clickTime", "3 hours")

    return impressionsWithWatermark.join(
        clicksWithWatermark,
        expr("""
            clickAdId = impressionAdId AND
            clickTime >= impressionTime AND
            clickTime <= impressionTime + interval 1 hour
        """),
        "leftOuter",
    )

"""Words counted in windows of ten minutes that begin every five."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import window

from samza_azure import Application

spark = SparkSession.builder.appName("windowed counts").getOrCreate()
app = Application()


@app.stage("words", output="counts")
def counts(words):
    return (
        words.withWatermark("timestamp", "10 minutes")
        .groupBy(window("timestamp", "10 minutes", "5 minutes"), "word")
        .count()
    )

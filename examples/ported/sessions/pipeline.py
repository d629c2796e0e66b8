"""Events counted per user and session, which ends after five minutes of silence."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, session_window

from samza_azure import Application

spark = SparkSession.builder.appName("sessions").getOrCreate()
app = Application()


@app.stage("events", output="sessions")
def sessions(events):
    return (
        events.withWatermark("timestamp", "10 minutes")
        .groupBy(session_window("timestamp", "5 minutes"), "userId")
        .agg(count("*").alias("events"))
    )

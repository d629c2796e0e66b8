"""Events counted per user and session, which ends after five minutes of silence."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, session_window

folder = sys.argv[1]
spark = SparkSession.builder.appName("sessions").getOrCreate()

events = (
    spark.readStream.schema("timestamp TIMESTAMP, userId STRING")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/events")
)

sessions = (
    events.withWatermark("timestamp", "10 minutes")
    .groupBy(session_window("timestamp", "5 minutes"), "userId")
    .agg(count("*").alias("events"))
)

query = (
    sessions.writeStream.format("parquet")
    .option("path", f"{folder}/output")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

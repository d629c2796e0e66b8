"""Each event once, though its sender may have sent it again."""

import sys

from pyspark.sql import DataFrame, SparkSession

folder = sys.argv[1]
spark = SparkSession.builder.appName("deduplication").getOrCreate()


def deduplicate(events: DataFrame) -> DataFrame:
    return events.withWatermark("eventTime", "10 minutes").dropDuplicatesWithinWatermark(["guid"])


events = (
    spark.readStream.schema("guid STRING, eventTime TIMESTAMP, value INT")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/events")
)

query = (
    deduplicate(events)
    .writeStream.format("parquet")
    .option("path", f"{folder}/output")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

"""Each impression of an advertisement with its clicks within an hour, or with none."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

folder = sys.argv[1]
spark = SparkSession.builder.appName("joined streams").getOrCreate()

impressions = (
    spark.readStream.schema("impressionAdId BIGINT, impressionTime TIMESTAMP")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/impressions")
)
clicks = (
    spark.readStream.schema("clickAdId BIGINT, clickTime TIMESTAMP")
    .option("maxFilesPerTrigger", 1)
    .json(f"{folder}/clicks")
)

impressionsWithWatermark = impressions.withWatermark("impressionTime", "2 hours")
clicksWithWatermark = clicks.withWatermark("clickTime", "3 hours")

joined = impressionsWithWatermark.join(
    clicksWithWatermark,
    expr("""
        clickAdId = impressionAdId AND
        clickTime >= impressionTime AND
        clickTime <= impressionTime + interval 1 hour
    """),
    "leftOuter",
)

query = (
    joined.writeStream.format("parquet")
    .option("path", f"{folder}/output")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

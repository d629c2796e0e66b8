"""Words counted in windows of ten minutes that begin every five."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import window

folder = sys.argv[1]
spark = SparkSession.builder.appName("windowed counts").getOrCreate()

words = (
    spark.readStream.schema("timestamp TIMESTAMP, word STRING").option("maxFilesPerTrigger", 1).json(f"{folder}/words")
)

counts = (
    words.withWatermark("timestamp", "10 minutes")
    .groupBy(window("timestamp", "10 minutes", "5 minutes"), "word")
    .count()
)

query = (
    counts.writeStream.format("parquet")
    .option("path", f"{folder}/output")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .outputMode("append")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

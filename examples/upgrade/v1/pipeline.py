"""Version 1: minutes of delay per day and carrier, in two stages."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


@app.stage("flights", output="by-carrier", partition_by="carrier")
def clean(flights: DataFrame) -> DataFrame:
    """Leave out flights that never took off, and shuffle the rest by carrier."""
    return flights.where("dep_delay IS NOT NULL").select("carrier", "ts", "dep_delay")


@app.stage("by-carrier", output="daily-delays")
def daily_delays(rows: DataFrame) -> DataFrame:
    """Count and add up per day and carrier. Sums can be merged over an upgrade, averages cannot."""
    return (
        rows.withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.sum("dep_delay").alias("minutes"))
    )

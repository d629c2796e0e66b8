"""Version 2: one stage more, another schema between the stages, and early departures count as on time.

`by-carrier` had the column `dep_delay`; now it has `minutes_late` and `airport`, and a stage before it is new. The
state of `daily_delays` is another, too: it also keeps the worst delay while it counts.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


@app.stage("flights", output="departures", partition_by="dest")
def departures(flights: DataFrame) -> DataFrame:
    """Leave out flights that never took off, and shuffle the rest by destination."""
    return flights.where("dep_delay IS NOT NULL").select("carrier", "dest", "ts", "dep_delay")


@app.stage("departures", output="by-carrier", partition_by="carrier")
def rated(flights: DataFrame) -> DataFrame:
    """How late, at least 0; and shuffle by carrier."""
    late = F.greatest("dep_delay", F.lit(0.0)).alias("minutes_late")
    return flights.select("carrier", F.col("dest").alias("airport"), "ts", late)


@app.stage("by-carrier", output="daily-delays")
def daily_delays(rows: DataFrame) -> DataFrame:
    """Count and add up per day and carrier. The state holds the worst delay beside them; nobody asks for it yet."""
    return (
        rows.withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(
            F.count("*").alias("flights"), F.sum("minutes_late").alias("minutes"), F.max("minutes_late").alias("worst")
        )
        .where("worst >= 0")
        .drop("worst")
    )

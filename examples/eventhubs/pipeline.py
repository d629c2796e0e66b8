"""What each shop takes in a minute, from orders in an event hub, to another hub."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


@app.stage("orders", output="takings")
def takings(orders: DataFrame) -> DataFrame:
    """Count and add up per minute and shop."""
    return (
        orders.withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "1 minute"), "shop")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )

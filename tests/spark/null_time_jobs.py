"""Four jobs as people write them, none of which guards against a null that cannot be: the pipeline of one job file.

Each was refused, since the event time of a stream, or what an earlier stage had removed or computed, counted as
perhaps null: a left outer join by declared event times; the same behind a stage that removes the rows without a time;
a group by the time of an earlier stage's windows; a full outer join by declared times and a key with a default.
"""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

STREAMS = """
[streams.impressions]
schema = "impressionAdId string, impressionTime timestamp"
event_time = "impressionTime"
[streams.clicks]
schema = "clickAdId string, clickTime timestamp"
event_time = "clickTime"
[streams.raw]
schema = "id string NOT NULL, kind string, at timestamp, arrived timestamp"
event_time = "arrived"
[streams.orders]
event_time = "ordered"
frontier_lag = "1 hour"
[streams.payments]
event_time = "paid"
frontier_lag = "1 hour"
[streams.hourly]
event_time = "hour"
[streams.telemetry]
schema = "region string, read timestamp"
event_time = "read"
[streams.alerts]
schema = "alertRegion string, raised timestamp"
event_time = "raised"
"""
OUTPUTS = ("matched", "settled", "peaks", "alarms")
START = datetime(2024, 5, 1, tzinfo=UTC)

app = Application()


@app.stage("impressions", "clicks", output="matched")
def match(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    return impressions.withWatermark("impressionTime", "2 hours").join(
        clicks.withWatermark("clickTime", "3 hours"),
        F.expr("""
            clickAdId = impressionAdId AND
            clickTime >= impressionTime AND
            clickTime <= impressionTime + interval 1 hour
        """),
        "leftOuter",
    )


@app.stage("raw", output="orders", partition_by="orderId")
def orders(raw: DataFrame) -> DataFrame:
    placed = raw.where("kind = 'order'").where("at IS NOT NULL")
    return placed.select(F.col("id").alias("orderId"), F.col("at").alias("ordered"))


@app.stage("raw", output="payments", partition_by="paidId")
def payments(raw: DataFrame) -> DataFrame:
    made = raw.where("kind = 'payment'").dropna(subset=["at"])
    return made.select(F.col("id").alias("paidId"), F.col("at").alias("paid"))


@app.stage("orders", "payments", output="settled")
def settle(orders: DataFrame, payments: DataFrame) -> DataFrame:
    return orders.withWatermark("ordered", "1 hour").join(
        payments.withWatermark("paid", "1 hour"),
        F.expr("orderId = paidId AND paid BETWEEN ordered AND ordered + INTERVAL 1 HOUR"),
        "fullOuter",
    )


@app.stage("clicks", output="hourly")
def hourly(clicks: DataFrame) -> DataFrame:
    counts = clicks.withWatermark("clickTime", "1 hour").groupBy(F.window("clickTime", "1 hour"), "clickAdId").count()
    return counts.select(F.window_time("window").alias("hour"), "clickAdId", F.col("count").alias("n"))


@app.stage("hourly", output="peaks", tasks=1)
def peaks(hourly: DataFrame) -> DataFrame:
    return hourly.withWatermark("hour", "1 hour").groupBy("hour").agg(F.max("n").alias("most"), F.sum("n").alias("all"))


@app.stage("telemetry", "alerts", output="alarms")
def alarms(telemetry: DataFrame, alerts: DataFrame) -> DataFrame:
    return telemetry.withWatermark("read", "1 hour").join(
        alerts.withWatermark("raised", "1 hour"),
        (F.coalesce("region", F.lit("?")) == F.coalesce("alertRegion", F.lit("?")))
        & F.expr("raised BETWEEN read AND read + INTERVAL 30 MINUTES"),
        "fullOuter",
    )


def rows(count: int, seed: int = 7) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows of all sources by stream, in the order of time; some payloads have no time, some regions are unknown."""
    dice = random.Random(seed)
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("impressions", "clicks", "raw", "telemetry", "alerts")
    }
    for number in range(count):
        now, ad = START + timedelta(minutes=5 * number), dice.choice("abcd")
        found["impressions"].append({"impressionAdId": ad, "impressionTime": now})
        clicked = now + timedelta(seconds=dice.randint(0, 7_000))
        found["clicks"].append({"clickAdId": dice.choice([ad, "e", None]), "clickTime": clicked})
        at = dice.choice([None, now - timedelta(seconds=dice.randint(0, 1_800))])
        found["raw"].append(
            {"id": f"{number // 4}", "kind": dice.choice(["order", "payment"]), "at": at, "arrived": now}
        )
        found["telemetry"].append({"region": dice.choice(["n", None, "s"]), "read": now})
        found["alerts"].append({"alertRegion": dice.choice(["n", None, "w"]), "raised": now})
    for each in found["clicks"]:
        each["clickTime"] = min(each["clickTime"], START + timedelta(minutes=5 * count))
    found["clicks"].sort(key=lambda row: row["clickTime"])
    return list(found.items())

"""Jobs as public questions and guides have them, written down before their author had looked at the analysis.

Word counts, sessions with a gap of their own, pivots, JSON in a column, the last value of each window, orders without a
payment, the reading before, weeks from Monday, bands of a lookup, minutes in which something was active. Each is a
function of streams, to be one stage; `asked` names its inputs.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

STREAMS = """
[streams.lines]
partitions = 2
schema = "value string, ts timestamp"
event_time = "ts"
frontier_lag = "10 minutes"
[streams.devices]
partitions = 3
schema = "device string, kind string, temp double, humidity double, at timestamp"
event_time = "at"
key = "device"
frontier_lag = "10 minutes"
[streams.clicks]
partitions = 2
schema = "user string, page string, clicked timestamp"
event_time = "clicked"
frontier_lag = "10 minutes"
[streams.orders]
partitions = 2
schema = "order_id bigint, customer string, amount decimal(10,2), ordered timestamp"
event_time = "ordered"
frontier_lag = "10 minutes"
[streams.payments]
partitions = 2
schema = "paid_order bigint, method string, paid timestamp"
event_time = "paid"
frontier_lag = "10 minutes"
[streams.shipments]
partitions = 2
schema = "shipped_order bigint, carrier string, shipped timestamp"
event_time = "shipped"
frontier_lag = "10 minutes"
[streams.events]
partitions = 2
schema = "value string, arrived timestamp"
event_time = "arrived"
frontier_lag = "10 minutes"
[streams.trips]
partitions = 2
schema = "trip string, started timestamp, ended timestamp, km double, zone int"
event_time = "started"
frontier_lag = "10 minutes"
"""
START = datetime(2024, 2, 28, 22, tzinfo=UTC)  # a leap day and the end of a month are in it


@dataclass(frozen=True)
class Asked:
    """A job: its function, its inputs, and what the stage needs besides."""

    function: Callable[..., DataFrame]
    inputs: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


ASKED: dict[str, Asked] = {}


def asked(*inputs: str, **options: Any) -> Callable[[Callable[..., DataFrame]], Callable[..., DataFrame]]:
    def note(function: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        ASKED[function.__name__] = Asked(function, inputs, options)
        return function

    return note


@asked("lines")
def words(lines: DataFrame) -> DataFrame:
    each = lines.select(F.explode(F.split("value", " ")).alias("word"), "ts")
    return each.withWatermark("ts", "10 minutes").groupBy(F.window("ts", "10 minutes", "5 minutes"), "word").count()


@asked("devices")
def unrepeated_per_hour(devices: DataFrame) -> DataFrame:
    seen = devices.withWatermark("at", "10 minutes").dropDuplicates(["device", "at"])
    return seen.groupBy(F.window("at", "1 hour"), "device").count()


@asked("devices")
def owners(devices: DataFrame) -> DataFrame:
    known = [("d1", "acme"), ("d2", "acme"), ("d3", "globex"), ("d9", "nobody")]
    table = devices.sparkSession.createDataFrame(known, "device string, owner string")
    joined = devices.join(table, "device", "left_outer").withWatermark("at", "10 minutes")
    return joined.groupBy(F.window("at", "30 minutes"), "owner").agg(
        F.avg("temp").alias("mean"), F.count("*").alias("n")
    )


@asked("clicks")
def sessions_with_a_gap_of_each_user(clicks: DataFrame) -> DataFrame:
    gap = F.when(F.col("user") == "u1", "5 minutes").when(F.col("user") == "u2", "20 minutes").otherwise("10 minutes")
    marked = clicks.withWatermark("clicked", "10 minutes")
    return marked.groupBy(F.session_window("clicked", gap), "user").agg(F.count("*"), F.max("page"))


@asked("devices")
def pivoted(devices: DataFrame) -> DataFrame:
    grouped = devices.withWatermark("at", "10 minutes").groupBy(F.window("at", "15 minutes"), "device")
    return grouped.pivot("kind", ["in", "out"]).agg(F.avg("temp"))


@asked("devices")
def newest_of_each_window(devices: DataFrame) -> DataFrame:
    grouped = devices.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour"), "device")
    newest = grouped.agg(F.max(F.struct("at", "temp", "kind")).alias("last"))
    return newest.select("window.start", "device", "last.at", "last.temp", "last.kind")


@asked("devices")
def last_as_it_comes(devices: DataFrame) -> DataFrame:
    grouped = devices.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour"), "device")
    return grouped.agg(F.first("temp").alias("opened"), F.last("temp", ignorenulls=True).alias("closed"))


@asked("events")
def json_with_its_own_time(events: DataFrame) -> DataFrame:
    parsed = events.select(F.from_json("value", "id string, ts timestamp, amount double").alias("data")).select(
        "data.*"
    )
    grouped = parsed.withWatermark("ts", "10 minutes").groupBy(F.window("ts", "1 hour"), "id")
    return grouped.agg(F.sum("amount").alias("amount"), F.count("*").alias("n"))


@asked("events")
def json_by_arrival(events: DataFrame) -> DataFrame:
    parsed = events.withColumn("data", F.from_json("value", "id string, ts timestamp, amount double"))
    flat = parsed.select("arrived", "data.id", "data.amount").withWatermark("arrived", "10 minutes")
    return flat.groupBy(F.window("arrived", "1 hour"), "id").agg(F.sum("amount"), F.count("amount"))


@asked("events", partition_by="id")
def json_with_arrays(events: DataFrame) -> DataFrame:
    schema = "id string, tags array<string>, attributes map<string,string>"
    data = events.select("arrived", F.from_json("value", schema).alias("d"))
    each = data.select("arrived", "d.id", F.posexplode_outer("d.tags"), F.col("d.attributes")["color"].alias("color"))
    return each.withColumn("hash", F.sha2(F.concat_ws("|", "id", "col"), 256)).filter(F.length("id") > 0)


@asked("lines")
def comma_separated(lines: DataFrame) -> DataFrame:
    part = F.split("value", " ")
    fields = lines.select("ts", part[0].alias("name"), F.try_element_at(part, F.lit(2)).alias("second"), F.size(part))
    return fields.withColumn("n", F.expr("try_cast(second AS int)")).where(F.col("name").rlike("^[a-z]+$"))


@asked("clicks")
def paths(clicks: DataFrame) -> DataFrame:
    grouped = clicks.withWatermark("clicked", "10 minutes").groupBy(F.window("clicked", "1 hour"), "user")
    ordered = grouped.agg(F.array_sort(F.collect_list(F.struct("clicked", "page"))).alias("steps"))
    return ordered.select(
        "window", "user", F.transform("steps", lambda step: step["page"]).alias("pages"), F.size("steps")
    )


@asked("clicks")
def joined_texts(clicks: DataFrame) -> DataFrame:
    marked = clicks.withWatermark("clicked", "10 minutes")
    return clicks.sparkSession.sql(
        "SELECT window.end AS end, user, listagg(page, ',') WITHIN GROUP (ORDER BY page DESC) AS pages "
        "FROM {rows} GROUP BY window(clicked, '1 hour'), user",
        rows=marked,
    )


@asked("clicks", "devices")
def approximations(clicks: DataFrame, devices: DataFrame) -> DataFrame:
    users = (
        clicks.withWatermark("clicked", "10 minutes")
        .groupBy(F.window("clicked", "2 hours"))
        .agg(F.approx_count_distinct("user").alias("users"), F.mode("page", deterministic=True).alias("page"))
    )
    return users.select(F.col("window.start").alias("start"), "users", "page").unionByName(
        devices.select(F.col("at").alias("start"), F.lit(0).cast("bigint").alias("users"), F.col("kind").alias("page"))
    )


@asked("devices")
def medians(devices: DataFrame) -> DataFrame:
    grouped = devices.withWatermark("at", "10 minutes").groupBy(F.window("at", "2 hours"), "kind")
    return grouped.agg(F.percentile_approx("temp", 0.5).alias("about"), F.median("temp").alias("median"))


@asked("orders", "payments", "shipments")
def three_streams(orders: DataFrame, payments: DataFrame, shipments: DataFrame) -> DataFrame:
    paid = orders.withWatermark("ordered", "10 minutes").join(
        payments.withWatermark("paid", "10 minutes"),
        F.expr("order_id = paid_order AND paid BETWEEN ordered AND ordered + INTERVAL 1 HOUR"),
    )
    return paid.join(
        shipments.withWatermark("shipped", "10 minutes"),
        F.expr("order_id = shipped_order AND shipped BETWEEN ordered AND ordered + INTERVAL 2 HOURS"),
    )


@asked("orders", "payments")
def unpaid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    joined = orders.withWatermark("ordered", "10 minutes").join(
        payments.withWatermark("paid", "10 minutes"),
        F.expr("order_id = paid_order AND paid >= ordered AND paid <= ordered + INTERVAL 30 MINUTES"),
        "left_outer",
    )
    return joined.filter(F.col("paid_order").isNull()).select("order_id", "customer", "amount", "ordered")


@asked("clicks")
def windows_of_windows(clicks: DataFrame) -> DataFrame:
    short = clicks.withWatermark("clicked", "10 minutes").groupBy(F.window("clicked", "5 minutes"), "user").count()
    return short.groupBy(F.window(F.window_time("window"), "1 hour"), "user").agg(F.max("count"), F.sum("count"))


@asked("devices", "devices")
def reading_before(devices: DataFrame, others: DataFrame) -> DataFrame:
    now = devices.select("device", F.col("temp").alias("now"), F.col("at").alias("then")).withWatermark(
        "then", "10 minutes"
    )
    before = others.select(F.col("device").alias("same"), "temp", "at").withWatermark("at", "10 minutes")
    near = (F.col("device") == F.col("same")) & F.expr("at >= then - INTERVAL 5 MINUTES AND at < then")
    return now.join(before, near).select("device", "then", "at", (F.col("now") - F.col("temp")).alias("change"))


@asked("clicks", "orders")
def different_columns(clicks: DataFrame, orders: DataFrame) -> DataFrame:
    one = clicks.select("user", F.col("clicked").alias("t"), "page")
    other = orders.select(F.col("customer").alias("user"), F.col("ordered").alias("t"), "amount")
    both = one.unionByName(other, allowMissingColumns=True).withWatermark("t", "10 minutes")
    return both.groupBy(F.window("t", "1 hour"), "user").agg(F.count("page"), F.sum("amount"), F.count("*"))


@asked("devices")
def rolled_up_within_a_window(devices: DataFrame) -> DataFrame:
    return devices.sparkSession.sql(
        "SELECT window, kind, device, grouping_id(kind, device) AS level, max(temp) AS most FROM {rows} "
        "GROUP BY window(at, '1 hour'), ROLLUP(kind, device)",
        rows=devices.withWatermark("at", "10 minutes"),
    )


@asked("devices")
def by_the_hour(devices: DataFrame) -> DataFrame:
    hours = devices.withColumn("hour", F.date_trunc("hour", "at")).withWatermark("hour", "1 hour")
    return hours.groupBy("hour", "device").agg(F.min("temp"), F.max("humidity"), F.count_distinct(F.lit(1)))


@asked("devices")
def of_each_hour(devices: DataFrame) -> DataFrame:
    hours = devices.withColumn("hour", F.date_trunc("hour", "at")).withWatermark("hour", "1 hour")
    return hours.groupBy("hour", "device").agg(F.min("temp"), F.max("humidity"), F.min_by("kind", "at"))


@asked("clicks")
def having_in_sql(clicks: DataFrame) -> DataFrame:
    clicks.withWatermark("clicked", "10 minutes").createOrReplaceTempView("marked_clicks")
    return clicks.sparkSession.sql(
        "SELECT window.start, user, count(*) AS n, count(*) FILTER (WHERE page = '/buy') AS buys, "
        "count_if(page IS NULL) AS unknown, any_value(user) AS again FROM marked_clicks "
        "GROUP BY window(clicked, '20 minutes', '10 minutes'), user HAVING count(*) > 1"
    )


@asked("devices")
def unpivoted(devices: DataFrame) -> DataFrame:
    metrics = devices.unpivot(["device", "at"], ["temp", "humidity"], "metric", "reading")
    grouped = metrics.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour"), "metric")
    return grouped.agg(F.min("reading"), F.max("reading"), F.count("reading"), F.sum("reading"))


@asked("trips")
def weeks_from_monday(trips: DataFrame) -> DataFrame:
    marked = trips.withWatermark("started", "10 minutes")
    return marked.groupBy(F.window("started", "7 days", startTime="4 days"), "zone").agg(F.sum("km"), F.max("ended"))


@asked("trips")
def bands(trips: DataFrame) -> DataFrame:
    known = [(0.0, 2.0, "short"), (2.0, 8.0, "middle"), (8.0, 99.0, "long"), (1.0, 3.0, "walk")]
    table = trips.sparkSession.createDataFrame(known, "lo double, hi double, band string")
    found = trips.join(F.broadcast(table), (F.col("km") >= F.col("lo")) & (F.col("km") < F.col("hi")))
    return found.withWatermark("started", "10 minutes").groupBy(F.window("started", "1 hour"), "band").count()


@asked("devices")
def histogram(devices: DataFrame) -> DataFrame:
    bucket = (F.floor(F.col("temp") / 5) * 5).alias("bucket")
    marked = devices.withWatermark("at", "10 minutes")
    return marked.groupBy(F.window("at", "1 hour"), bucket).agg(F.count("*").alias("n"), F.avg("humidity"))


@asked("trips")
def active_minutes(trips: DataFrame) -> DataFrame:
    minutes = F.sequence(F.date_trunc("minute", "started"), F.col("ended"), F.expr("INTERVAL 1 MINUTE"))
    each = trips.where("ended >= started").select("zone", F.explode(minutes).alias("minute"))
    return each.withWatermark("minute", "10 minutes").groupBy(F.window("minute", "5 minutes"), "zone").count()


@asked("clicks")
def days_of_a_zone(clicks: DataFrame) -> DataFrame:
    local = clicks.withColumn("local", F.from_utc_timestamp("clicked", "America/New_York"))
    return local.withWatermark("local", "10 minutes").groupBy(F.window("local", "1 day"), "user").count()


@asked("orders")
def running_total(orders: DataFrame) -> DataFrame:
    grouped = orders.withWatermark("ordered", "10 minutes").groupBy(
        "customer", F.window("ordered", "1 day", "12 hours")
    )
    spent = grouped.agg(
        F.sum("amount").alias("spent"), F.max("order_id").alias("newest"), F.bool_or(F.col("amount") > 50)
    )
    return spent.where(F.col("spent") > 10).withColumn("share", F.round(F.col("spent") / 100, 2))


def rows(count: int, seed: int = 7) -> dict[str, list[dict[str, Any]]]:
    """Rows of all streams: about in the order of time, with nulls, repeated rows, odd texts, and sums that are exact in
    any order."""
    dice = random.Random(seed)
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("lines", "devices", "clicks", "orders", "payments", "shipments", "events", "trips")
    }

    def near(at: datetime, seconds: int = 290) -> datetime:
        return at + timedelta(seconds=dice.randint(0, seconds), microseconds=dice.choice([0, 1, 999_999]))

    def number(low: int, high: int) -> float | None:
        return dice.choice([None, *[dice.randint(low * 4, high * 4) / 4] * 6])

    for place in range(count):
        now = START + timedelta(minutes=3 * place)
        text = " ".join(dice.choices(["a", "b", "Ä", "", "12", "a,b", "名"], k=dice.randint(0, 4)))
        found["lines"].append({"value": dice.choice([text, None]), "ts": near(now)})
        device = dice.choice(["d1", "d2", "d3", "d4", None])
        reading = {
            "device": device,
            "kind": dice.choice(["in", "out", "else", None]),
            "temp": number(-20, 40),
            "humidity": number(0, 100),
            "at": near(now),
        }
        found["devices"] += [reading] * dice.choice([1, 1, 1, 2])
        found["clicks"].append(
            {
                "user": dice.choice(["u1", "u2", "u3", None]),
                "page": dice.choice(["/", "/buy", "/a?b", None]),
                "clicked": near(now),
            }
        )
        ordered = near(now)
        found["orders"].append(
            {
                "order_id": dice.choice([place, place, place, None]),
                "customer": dice.choice(["u1", "u2", "c", None]),
                "amount": dice.choice([Decimal(dice.randint(0, 9_000)) / 100, None]),
                "ordered": ordered,
            }
        )
        found["payments"].append(
            {
                "paid_order": max(place - dice.randint(0, 12), 0),
                "method": dice.choice(["card", None]),
                "paid": near(now),
            }
        )
        found["shipments"].append(
            {
                "shipped_order": dice.choice([max(place - dice.randint(0, 30), 0), None]),
                "carrier": dice.choice(["AA", "BB"]),
                "shipped": near(now),
            }
        )
        sent = {
            "id": dice.choice(["x", "y", "", None]),
            "ts": near(now - timedelta(hours=1), 3_600).isoformat(),
            "amount": number(-5, 5),
            "tags": dice.choice([[], ["t", None], None, ["u", "v", "u"]]),
            "attributes": dice.choice([{}, {"color": "red"}, None]),
        }
        value = dice.choice([json.dumps(sent)] * 5 + ["no json", None, "{}"])
        found["events"].append({"value": value, "arrived": near(now)})
        started = near(now)
        found["trips"].append(
            {
                "trip": f"t{place}",
                "started": started,
                "ended": dice.choice([near(started, 2_400), None]),
                "km": number(0, 12),
                "zone": dice.choice([1, 2, None]),
            }
        )
    return found

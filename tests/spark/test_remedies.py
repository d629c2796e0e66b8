"""Remedies as their authors paste them: what the remedied stage emits, beside what the refused one is as a batch.

Each case is a stage that is refused, or warned of, and the stage with the message's own text in it. All of them run as
one fleet, over the same rows. Where a remedy changes the answer, the message has to say so, and the case says how.
"""

import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DoubleType, IntegerType

from samza_azure.application import Application, Stage
from samza_azure.config.spark import OWN
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.spark.pipeline.schema import arrow_schema, parse_schema
from samza_azure.storage.connection import Account

from .compare import multiset, put_out
from .task_driver import Fleet, config_of

SOURCES = """
[streams.flights]
schema = "id string, carrier string, ts timestamp, landed timestamp, delay double, m int"
event_time = "ts"
[streams.views]
schema = "id string, viewer string, at timestamp, seen timestamp, n int, sec bigint"
event_time = "at"
[streams.wide]
partitions = 2
schema = "id string, carrier string, n int, ts timestamp"
event_time = "ts"
[streams.dated]
schema = "id string, carrier string, day date"
event_time = "day"
[task]
commit.ms = 0
"""
START = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def rows_of(stream: str) -> list[dict[str, Any]]:
    """Each id is in one row at most. The view of a flight comes within an hour of it; some of either have no other."""
    carriers = ["AA", "DL", None, "UA", "aa"]
    found: list[dict[str, Any]] = []
    for n in range(24):
        at, key = START + n * 2 * HOUR, None if n % 11 == 5 else f"f{n}"
        flight = {"id": key, "carrier": carriers[n % 5], "ts": at, "landed": at + n * HOUR / 24, "m": n % 6}
        flight["delay"] = None if n % 7 == 3 else float((n * 7) % 24 - 10)
        seen = at + timedelta(minutes=n + 3)
        view = {
            "id": key if n % 3 else f"v{n}",
            "viewer": carriers[(n + n % 4 // 3) % 5],
            "at": seen,
            "seen": at + HOUR,
        }
        view |= {"n": n, "sec": round(at.timestamp())}
        wide = {"id": key, "carrier": carriers[n % 5], "n": n % 4, "ts": at}
        dated = {"id": key, "carrier": carriers[n % 5], "day": at.date()}
        found.append({"flights": flight, "views": view, "wide": wide, "dated": dated}[stream])
    return found


@dataclass(frozen=True)
class Remedy:
    """A wrong stage, the part of the message that is pasted, and the stage with it.

    `wrong` and `right` are what the stage returns, or stages in full; `$1` is the first part that is pasted.
    """

    wrong: str
    advised: str  # a pattern; its groups are pasted
    right: str
    inputs: tuple[str, ...] = ("flights",)
    answer: str = "answer"  # what is expected, of what the wrong stage emits as a batch
    shown: str = "found"  # what is compared with that, of what the right stages emit
    said: str = ""  # what the message says of the difference
    options: Mapping[str, Any] = field(default_factory=dict)  # of the wrong stage
    changed: Mapping[str, Any] | None = None  # those of the right one, where they differ
    job: str = ""  # what the job file says besides, of the streams of the case
    right_job: str | None = None


def stages_of(text: str, inputs: tuple[str, ...], options: Mapping[str, Any]) -> list[Stage]:
    """The stages that a text registers, or the one whose function returns it."""
    app = Application()
    scope: dict[str, Any] = {**globals(), "app": app}
    if text.startswith("@"):
        exec(text, scope)
        return app.stages
    parameters = ["rows", "others"][: len(inputs)]
    function: Callable[..., DataFrame] = eval(f"lambda {', '.join(parameters)}: ({text})", scope)
    function.__name__ = "stage"
    app.stage(*inputs, output="out", **options)(function)
    return app.stages


def told_apart(stages: list[Stage], number: int) -> list[Stage]:
    """The stages of a case with names of their own; its sources keep theirs."""
    ours = {stage.output for stage in stages}
    return [
        replace(
            stage,
            name=f"{stage.name}{number}",
            inputs=tuple(f"{each}{number}" if each in ours else each for each in stage.inputs),
            output=f"{stage.output}{number}",
        )
        for stage in stages
    ]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as `load` does it for a pipeline's module

HOURLY = 'F.window("ts", "1 hour")'
TIMED = 'rows.withWatermark("ts", "1 hour")'
BY_NAME = 'rows.withWatermark("ts", "1 hour").join(others.withWatermark("at", "1 hour"), "id", "{}")'
CONDITION = re.escape("F.expr(") + '"[^"]*"' + re.escape(")")
ALIASES = r'\.alias\("(\w+)"\) and \.alias\("(\w+)"\) on its sides'


def joined(condition: str, how: str = "inner", *, left: str = "", right: str = "", behind: str = "") -> str:
    """A join of flights and views, both with a watermark, by this condition."""
    one, other = f'rows{left}.withWatermark("ts", "1 hour")', f'others{right}.withWatermark("at", "1 hour")'
    other += '.withColumnRenamed("id", "key")'
    return f'{one}.join({other}, F.expr("id = key{condition}"), "{how}"){behind}'


OF_CARRIER, OF_VIEWER = "nullif(carrier, 'UA')", "nullif(viewer, 'UA')"
NEAR = " AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"
VIEWS = ("flights", "views")
#: Below them, both stages in full.
BETWEEN = '[streams.between]\nevent_time = "ts"\n'


def sql(text: str, **frames: DataFrame) -> DataFrame:
    """A query over these."""
    return next(iter(frames.values())).sparkSession.sql(text, **frames)


def names(rows: DataFrame) -> DataFrame:
    """A table that is part of the program; not each row of either has a partner."""
    table = [("AA", "American"), ("DL", "Delta"), ("ZZ", "Nobody")]
    return rows.sparkSession.createDataFrame(table, "carrier string, name string")


def codes(rows: DataFrame) -> DataFrame:
    """The same under another name."""
    return names(rows).withColumnRenamed("carrier", "code")


def counting(
    rows: DataFrame, key: str, *, method: str = "transformWithState", mode: str = "None", ttl: Any = None
) -> DataFrame:
    """A running number for each row of a key, which `ttl` is for."""

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "n long", *([ttl] if isinstance(ttl, int) else []))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            number = self.count.get()[0] if self.count.exists() else 0
            for each in rows:
                number += 1
                if isinstance(ttl, timedelta):
                    self.handle.registerTimer(round((each.ts + ttl).timestamp() * 1000))
                yield Row(key=str(key[0]), n=number)
            self.count.update((number,))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
            self.count.clear()
            yield from ()

        def close(self) -> None: ...

    return getattr(rows.groupBy(key), method)(Count(), "key string, n long", "append", mode)


def totals(rows: DataFrame, key: str) -> DataFrame:
    """The number of rows of each key, by a function with state that emits each change."""

    def count(of: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        number = (state.get[0] if state.exists else 0) + sum(map(len, frames))
        state.update((number,))
        yield pd.DataFrame({"key": [str(of[0])], "n": [number]})

    return rows.groupBy(key).applyInPandasWithState(count, "key string, n long", "n long", "append", "NoTimeout")


@F.pandas_udf(DoubleType())  # type: ignore[call-overload]
def mean(delay: pd.Series) -> float:
    return float(delay.mean())


@F.udf(IntegerType())
def parity(number: int) -> int:
    return number % 2


@F.udf(DoubleType())
def mean_of(delays: list[float]) -> float | None:
    return sum(delays) / len(delays) if delays else None


REMEDIES = {
    # Aggregations.
    "windows without a watermark": Remedy(
        f'rows.groupBy({HOURLY}, "carrier").count()',
        r"Set a watermark before it, (\..*?)\. Or use",
        f'rows$1.groupBy({HOURLY}, "carrier").count()',
    ),
    "sessions without a watermark": Remedy(
        'rows.groupBy("carrier", F.session_window("ts", "5 hours")).count()',
        r"Set a watermark before it, (\..*?)\. Or use",
        'rows$1.groupBy("carrier", F.session_window("ts", "5 hours")).count()',
    ),
    "an aggregation without a window": Remedy(
        'rows.groupBy("carrier").count()',
        r"Group by a window of the event time as well, (\..*?)\. Or use",
        "rows$1.count()",
        shown='found.groupBy("carrier").agg(F.sum("count").alias("count"))',
        said="Group by a window of the event time as well",
    ),
    "the same by changes": Remedy(
        'rows.groupBy("carrier").count()',
        r"Or use output mode update.*?: (@app\.stage\(.*\))\.",
        '$1\ndef stage(rows):\n    return rows.groupBy("carrier").count()\n',
        shown='found.groupBy("carrier").agg(F.max("count").alias("count"))',
        said="which emits a row for each change of a group",
    ),
    "windows of another time": Remedy(
        'rows.groupBy(F.window("landed", "2 hours"), "carrier").count()',
        r"Group by a window of the event time instead, (\..*?)\. Or use",
        "rows$1.count()",
        answer='rows.groupBy(F.window("ts", "2 hours"), "carrier").count()',
        said="Group by a window of the event time instead",
    ),
    "windows of a computed time": Remedy(
        f'{TIMED}.groupBy(F.window(F.from_utc_timestamp("ts", "Europe/Berlin"), "1 day"), "carrier").count()',
        r"where the output is read: (\..*?)\. Or use",
        f"{TIMED}$1.count()",
        shown='found.groupBy(F.col("of").alias("window"), "carrier").agg(F.sum("count").alias("count"))',
        said="add the parts up where the output is read",
    ),
    "totals": Remedy(
        'rows.where("carrier IS NOT NULL AND delay IS NOT NULL").cube("carrier", "delay").count()',
        r"Group by a window of the event time as well, (\..*?)\. Or use",
        'rows.where("carrier IS NOT NULL AND delay IS NOT NULL")$1.count()',
        shown='found.groupBy("carrier", "delay").agg(F.sum("count").alias("count"))',
        said="Group by a window of the event time as well",
    ),
    "totals over all windows": Remedy(
        f'{TIMED}.withColumn("w", {HOURLY}).select("w", "carrier").rollup("w", "carrier").count()',
        r"Use totals of each w only, (\..*?), and add them up",
        f'{TIMED}.withColumn("w", {HOURLY}).select("w", "carrier")$1.count()',
        answer='answer.where("w IS NOT NULL")',
        said="and add them up where they are read",
    ),
    "a description": Remedy(
        'rows.select("ts", "delay").describe()',
        r"Compute them by windows, (\..*?)\.(?: Or|$|\n)",
        'rows.select("ts", "delay")$1',
        answer="""answer.where("summary = 'count'").selectExpr("CAST(delay AS long) AS n")""",
        shown='found.agg(F.sum("count(delay)").alias("n"))',
        said="Compute them by windows",
    ),
    "a number of distinct values": Remedy(
        f'{TIMED}.groupBy(F.window("ts", "1 day")).agg(F.count_distinct("carrier").alias("n"))',
        r"Use (F\.approx_count_distinct\(.*?\));",
        f'{TIMED}.groupBy(F.window("ts", "1 day")).agg($1.alias("n"))',
        said="approx",
    ),
    "distinct values, counted in the next stage": Remedy(
        f'{TIMED}.groupBy(F.window("ts", "1 day")).agg(F.count_distinct("carrier").alias("n"))',
        r"or group by (.*?) as well, and use (F\.count\(.*?\)) in the next stage",
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return {TIMED}.groupBy(F.window("ts", "1 day"), $1).count().withColumn("ts", F.window_time("window"))
@app.stage("between", output="out")
def second(rows):
    return {TIMED}.groupBy(F.window("ts", "1 day")).agg($2.alias("n"))
""",
        right_job=BETWEEN,
    ),
    "a sum of distinct values": Remedy(
        f'{TIMED}.groupBy(F.window("ts", "1 day")).agg(F.sum_distinct("delay").alias("n"))',
        r"Use (F\.collect_set\(.*?\)), and compute",
        f'{TIMED}.groupBy(F.window("ts", "1 day")).agg(F.aggregate($1, F.lit(0.0), lambda s, n: s + n).alias("n"))',
    ),
    "an aggregate of pandas": Remedy(
        f'{TIMED}.groupBy({HOURLY}, "carrier").agg(mean("delay").alias("mean"))',
        r"Collect the values with (F\.collect_list), and apply a F\.udf",
        f'{TIMED}.groupBy({HOURLY}, "carrier").agg($1("delay").alias("of"))'
        '.withColumn("mean", mean_of("of")).drop("of")',
        answer='answer.withColumn("mean", F.expr("nullif(mean, double(\'NaN\'))"))',
    ),
    "a pivot without its values": Remedy(
        f"""{TIMED}.where("carrier IN ('AA', 'DL')").groupBy({HOURLY}).pivot("carrier").count()""",
        r"Name the values, as in (\.pivot\()\"kind\", \[",
        f"""{TIMED}.where("carrier IN ('AA', 'DL')").groupBy({HOURLY})$1"carrier", ["AA", "DL"]).count()""",
    ),
    "distinct rows of SQL": Remedy(
        'sql("SELECT DISTINCT carrier FROM {rows}", rows=rows)',
        r"behind the DataFrame (\.dropDuplicates\(.*?\)), which",
        'sql("SELECT carrier FROM {rows}", rows=rows)$1',
    ),
    "a union of SQL": Remedy(
        'sql("SELECT carrier FROM {rows} UNION SELECT lower(carrier) FROM {rows}", rows=rows)',
        r"behind the DataFrame (\.dropDuplicates\(.*?\)), which",
        'sql("SELECT carrier FROM {rows} UNION ALL SELECT lower(carrier) FROM {rows}", rows=rows)$1',
    ),
    "deduplication that keeps all": Remedy(
        'rows.dropDuplicates(["id"])',
        r"writes a row of it again: (\..*?)\.(?:\n|$)",
        "rows$1",
        answer='rows.select("id").distinct()',
        shown='found.select("id").distinct()',
        said="forgets a key when the watermark has passed, and then writes a row of it again",
    ),
    "numbers of rows": Remedy(
        'rows.selectExpr("*", "row_number() OVER (PARTITION BY carrier ORDER BY ts) AS number").where("number = 1")',
        r"writes a row of it again: (\..*?)\.(?:\n|$)",
        "rows$1",
        answer='answer.select("carrier", "ts")',
        shown='found.groupBy("carrier").agg(F.min("ts").alias("ts"))',
        said="that comes first, whatever its time. This one forgets a key",
    ),
    "a sort": Remedy('rows.sort("delay")', "(Remove orderBy and sort)", "rows"),
    "the greatest rows": Remedy(
        'rows.sort("delay")',
        r"the greatest row of a window is an aggregate, (\..*?)\.(?:\n|$)",
        "rows$1",
        answer=f'answer.groupBy({HOURLY}).agg(F.max_by("id", "delay"))',
    ),
    "a changed mode of sessions": Remedy(
        f'{TIMED}.groupBy(F.session_window("ts", "5 hours"), "carrier").count()',
        r'(remove output_mode="update")',
        f'{TIMED}.groupBy(F.session_window("ts", "5 hours"), "carrier").count()',
        options={"output_mode": "update"},
        changed={},
    ),
    # Sessions.
    "sessions without another key": Remedy(
        f'{TIMED}.groupBy(F.session_window("ts", "5 hours")).count()',
        r"and drop it behind: (F\..*?)\.(?:\n|$)",
        f'{TIMED}.groupBy(F.session_window("ts", "5 hours"), $1.alias("zero")).count().drop("zero")',
    ),
    "sessions that are not merged": Remedy(
        f'{TIMED}.select(F.session_window("ts", "5 hours").alias("s"), "carrier").dropDuplicates(["s", "carrier"])',
        r"leave other columns out: (\..*?)\.(?:\n|$)",
        f'{TIMED}.select(F.session_window("ts", "5 hours").alias("s"), "carrier")$1.drop("count")',
    ),
    "a pivot of sessions": Remedy(
        f"""{TIMED}.withColumn("late", F.col("delay") > 0)
            .groupBy(F.session_window("ts", "5 hours"), "carrier").pivot("late", [True, False]).agg(F.sum("delay"))""",
        "give it an aggregate with a (FILTER) clause for each value",
        f"""{TIMED}.groupBy(F.session_window("ts", "5 hours"), "carrier").agg(
            F.expr("sum(delay) $1 (WHERE delay > 0) AS `true`"),
            F.expr("sum(delay) $1 (WHERE NOT delay > 0) AS `false`"))""",
    ),
    # Keys.
    "both zeros": Remedy(
        'totals(rows.selectExpr("delay * 0 AS zero"), "zero")',
        r"before groupBy, (\.withColumn\(.*?\)\))\.(?:\n|$)",
        'totals(rows.selectExpr("delay * 0 AS zero")$1, "zero")',
        answer="""rows.selectExpr("coalesce(CAST(delay * 0 + 0.0 AS STRING), 'None') AS key").groupBy("key")"""
        '.agg(F.count("*").alias("n"))',
        shown='found.groupBy("key").agg(F.max("n").alias("n"))',
        said="Make the key a text",
    ),
    "a list as key": Remedy(
        'counting(rows.withColumn("of", F.array("carrier", "carrier")), "of")',
        r"before groupBy, (\.withColumn\(.*\))\.(?:\n|$)",
        'counting(rows.withColumn("of", F.array("carrier", "carrier"))$1, "of")',
        answer='rows.groupBy("carrier").agg(F.count("*").alias("n")).groupBy("n").count()',
        shown='found.groupBy("key").agg(F.max("n").alias("n")).groupBy("n").count()',
        said="Make the key a text",
    ),
    "times in a list as key": Remedy(
        'counting(rows.withColumn("of", F.expr("array(timestamp_micros(int(substr(id, 2)) % 3))")), "of")',
        r"before groupBy, (\.withColumn\(.*\))\.(?:\n|$)",
        'counting(rows.withColumn("of", F.expr("array(timestamp_micros(int(substr(id, 2)) % 3))"))$1, "of")',
        answer='rows.groupBy(F.expr("int(substr(id, 2)) % 3")).agg(F.count("*").alias("n")).select("n")',
        shown='found.groupBy("key").agg(F.max("n").alias("n")).select("n")',
        said="Make the key a text",
    ),
    "maps as key of a state machine": Remedy(
        """counting(rows.withColumn("of", F.expr(
            "if(delay > 0, map('a', 1, 'b', 2), map('b', 2, 'a', 1))")), "of")""",
        r"before groupBy, (\.withColumn\(.*\))\.(?:\n|$)",
        """counting(rows.withColumn("of", F.expr(
            "if(delay > 0, map('a', 1, 'b', 2), map('b', 2, 'a', 1))"))$1, "of")""",
        answer='rows.agg(F.count("*").alias("n"))',
        shown='found.groupBy("key").agg(F.max("n").alias("n")).select("n")',
        said="Make the key a text",
    ),
    "a map as key": Remedy(
        f"""{TIMED}.withColumn("m", F.expr("map('a', delay > 0)")).groupBy({HOURLY}, "m").count()""",
        r"Group by its entries, (F\..*\))\.(?: Or|\n|$)",
        f"""{TIMED}.withColumn("m", F.expr("map('a', delay > 0)")).groupBy({HOURLY}, $1.alias("m")).count()""",
        answer='answer.withColumn("m", F.array_sort(F.map_entries("m")))',
        said="Group by its entries",
    ),
    "a text with a collation": Remedy(
        f'{TIMED}.withColumn("c", F.collate("carrier", "UTF8_LCASE")).groupBy(F.window("ts", "1 day"), "c").count()',
        r"Use a text without one: (F\..*\))\.(?: Or|\n|$)",
        f'{TIMED}.withColumn("c", F.collate("carrier", "UTF8_LCASE")).groupBy(F.window("ts", "1 day"), '
        '$1.alias("c")).count()',
        answer='answer.withColumn("c", F.lower(F.col("c").cast("string")))',
        said="Use a text without one",
    ),
    "nulls as keys in pandas": Remedy(
        'counting(rows.withColumn("of", F.expr("int(delay)")), "of", method="transformWithStateInPandas")',
        r"before groupBy, (\.where\(.*?\))\. If",
        'counting(rows.withColumn("of", F.expr("int(delay)"))$1, "of")',
        answer='rows.where("delay IS NOT NULL").groupBy(F.expr("int(delay)").alias("key")).agg(F.count("*").alias("n"))'
        '.withColumn("key", F.col("key").cast("string"))',
        shown='found.groupBy("key").agg(F.max("n").alias("n"))',
        said="Remove such rows",
    ),
    "state that expires by the clock": Remedy(
        f'counting({TIMED}, "carrier", mode="ProcessingTime", ttl=864000000)',
        r'use (timeMode "EventTime"): (register a timer for the time of a row plus that duration)',
        f'counting({TIMED}, "carrier", mode="EventTime", ttl=timedelta(days=10))',
        answer='rows.groupBy(F.coalesce("carrier", F.lit("None")).alias("key")).agg(F.count("*").alias("n"))',
        shown='found.groupBy("key").agg(F.max("n").alias("n"))',
    ),
    "state by the clock beside another operator": Remedy(
        'counting(rows.dropDuplicates(["carrier", "ts"]), "carrier", mode="ProcessingTime")',
        "(Put one of them into a stage of its own)",
        """\
@app.stage("flights", output="between")
def first(rows):
    return rows.dropDuplicates(["carrier", "ts"])
@app.stage("between", output="out")
def second(rows):
    return counting(rows, "carrier", mode="ProcessingTime")
""",
        answer='rows.groupBy(F.coalesce("carrier", F.lit("None")).alias("key")).agg(F.count("*").alias("n"))',
        shown='found.groupBy("key").agg(F.max("n").alias("n"))',
    ),
    # Times.
    "a watermark that grants too little": Remedy(
        f'rows.withColumn("ts", F.date_trunc("hour", "ts")).withWatermark("ts", "1 minute").groupBy({HOURLY}).count()',
        r"Use (withWatermark\(.*?\)) or more",
        f'rows.withColumn("ts", F.date_trunc("hour", "ts")).$1.groupBy({HOURLY}).count()',
    ),
    "an event time that is a date": Remedy(
        'rows.withWatermark("day", "1 day").groupBy(F.window("day", "1 day"), "carrier").count()',
        r"Make it one before withWatermark, (\..*\))\.(?:\n|$)",
        'rows$1.withWatermark("day", "1 day").groupBy(F.window("day", "1 day"), "carrier").count()',
        inputs=("dated",),
    ),
    "a copy of the event time": Remedy(
        f'{TIMED}.withColumn("t", F.expr("to_timestamp(ts)")).dropDuplicates(["id", "ts"]).select("id", "t")',
        r"or compute the copy, (\..*\))\.(?:\n|$)",
        f'{TIMED}$1.dropDuplicates(["id", "ts"]).select("id", "t")',
    ),
    "two event times as keys": Remedy(
        f'{TIMED}.groupBy(F.window("ts", "1 day"), F.expr("to_timestamp(ts)").alias("t")).count()',
        r"and by the other as a text, (\.cast\(.*?\))\.(?:\n|$)",
        f'{TIMED}.groupBy(F.window("ts", "1 day"), F.expr("to_timestamp(ts)")$1.alias("t")).count()',
        answer='answer.withColumn("t", F.col("t").cast("string"))',
        said="as a text",
    ),
    "windows of windows of an earlier stage": Remedy(
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return {TIMED}.groupBy({HOURLY}, "carrier").count()
@app.stage("between", output="out")
def second(rows):
    return rows.withWatermark("window", "1 hour").groupBy(F.window("window", "1 day"), "carrier").agg(F.sum("count"))
""",
        r'write a time, (\..*?), declare (event_time = "\w+") for',
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return {TIMED}.groupBy({HOURLY}, "carrier").count()$1
@app.stage("between", output="out")
def second(rows):
    return rows.withWatermark("at", "1 hour").groupBy(F.window("at", "1 day"), "carrier").agg(F.sum("count"))
""",
        job='[streams.between]\nevent_time = "window"\n',
        right_job="[streams.between]\n$2\n",
    ),
    "an event time of which nothing is known": Remedy(
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return rows.select("carrier", F.expr("coalesce(landed, ts) AS ts"))
@app.stage("between", output="out")
def second(rows):
    return {TIMED}.groupBy({HOURLY}, "carrier").count()
""",
        r'(frontier_lag = "1 hour")',
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return rows.select("carrier", F.expr("coalesce(landed, ts) AS ts"))
@app.stage("between", output="out")
def second(rows):
    return {TIMED}.groupBy({HOURLY}, "carrier").count()
""",
        job=BETWEEN,
        right_job=f"{BETWEEN}$1\n",
    ),
    "a watermark on a computed time": Remedy(
        'rows.withColumn("t", F.expr("coalesce(landed, ts)")).withWatermark("t", "1 hour")'
        '.groupBy(F.window("t", "1 hour"), "carrier").count()',
        "to go by t, (put what computes it into a stage of its own, with event_time and frontier_lag on its output "
        "stream)",
        """\
@app.stage("flights", output="between")
def first(rows):
    return rows.withColumn("t", F.expr("coalesce(landed, ts)"))
@app.stage("between", output="out")
def second(rows):
    return rows.withWatermark("t", "1 hour").groupBy(F.window("t", "1 hour"), "carrier").count()
""",
        right_job='[streams.between]\nevent_time = "t"\nfrontier_lag = "1 hour"\n',
    ),
    "a watermark behind a function": Remedy(
        f"""rows.mapInPandas(lambda parts: parts, "id string, carrier string, ts timestamp")
            .withWatermark("ts", "1 hour").groupBy({HOURLY}, "carrier").count()""",
        "(into a stage of its own, with event_time and frontier_lag on its output stream)",
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return rows.mapInPandas(lambda parts: parts, "id string, carrier string, ts timestamp")
@app.stage("between", output="out")
def second(rows):
    return {TIMED}.groupBy({HOURLY}, "carrier").count()
""",
        right_job=f'{BETWEEN}frontier_lag = "1 hour"\n',
    ),
    "a time in a struct": Remedy(
        """others.join(rows.withWatermark("ts", "1 hour").select("id", F.struct("ts", "delay").alias("s")), "id")
            .groupBy("s.ts", "id").count()""",
        "(the time \\+ INTERVAL 0 SECONDS)",
        """others.join(rows.withWatermark("ts", "1 hour").withColumn("ts", F.expr("ts + INTERVAL 0 SECONDS"))
            .select("id", F.struct("ts", "delay").alias("s")), "id")
            .groupBy("s.ts", "id").count()""",
        inputs=VIEWS,
        shown='found.groupBy("ts", "id").agg(F.max("count").alias("count"))',
        options={"output_mode": "update"},
    ),
    # Joins.
    "a left join without times": Remedy(
        joined("", "left"),
        f"between the rows: ({CONDITION})",
        'rows.withWatermark("ts", "1 hour").join(others.withWatermark("at", "1 hour")'
        '.withColumnRenamed("id", "key"), $1, "left")',
        inputs=VIEWS,
        said="let its condition bound the time between the rows",
    ),
    **{
        f"a {how} join by names": Remedy(
            BY_NAME.format(how),
            rf"rows: ({CONDITION}), with {ALIASES}; (\.drop\(.*?\"\)\)) behind",
            'rows.withWatermark("ts", "1 hour").alias("$2").join('
            f'others.withWatermark("at", "1 hour").alias("$3"), $1, "{how}")$4',
            inputs=VIEWS,
            said="let its condition bound the time between the rows",
        )
        for how in ("left", "right")
    },
    "a full join by names": Remedy(
        BY_NAME.format("full").replace("rows", 'rows.where("id IS NOT NULL")'),
        rf"rows: ({CONDITION}), with {ALIASES}; behind it (F\.coalesce\(.*?\)\)) for its key",
        'rows.where("id IS NOT NULL").withWatermark("ts", "1 hour").alias("$2")'
        '.join(others.withWatermark("at", "1 hour").alias("$3"), $1, "full")'
        '.select($4.alias("id"), "carrier", "ts", "landed", "delay", "m", "viewer", "at", "seen", "n", "sec")',
        inputs=VIEWS,
        said="let its condition bound the time between the rows",
    ),
    "an inner join by names": Remedy(
        BY_NAME.format("inner"),
        rf"for example: ({CONDITION}), with {ALIASES}; (\.drop\(.*?\"\)\)) behind",
        'rows.withWatermark("ts", "1 hour").alias("$2").join('
        'others.withWatermark("at", "1 hour").alias("$3"), $1, "inner")$4',
        inputs=VIEWS,
        said="says how much later a partner can come",
    ),
    "an inner join without an end": Remedy(
        joined(""),
        r"for example: (AND .*?)\.(?:\n|$)",
        joined(" $1"),
        inputs=VIEWS,
        said="how much later a partner can come",
    ),
    "a lookup": Remedy(
        joined("", "left"),
        "(use an inner join)",
        joined(""),
        inputs=VIEWS,
        answer='answer.where("key IS NOT NULL")',
        said="writes no row without a partner",
    ),
    "a left anti join": Remedy(
        joined(NEAR, "left_anti", right='.where("id IS NOT NULL")'),
        r"(Use a left outer join whose condition bounds the time, and behind it \.where with IS NULL)",
        joined(NEAR, "left", behind='.where("key IS NULL").select(rows.columns)'),
        inputs=VIEWS,
    ),
    "a subquery": Remedy(
        'sql("SELECT * FROM {rows} WHERE id IN (SELECT id FROM {others})", rows=rows, others=others)',
        "or as a (left semi join whose condition bounds the time)",
        joined(NEAR, "left_semi"),
        inputs=VIEWS,
    ),
    "a subquery over a table": Remedy(
        'sql("SELECT id, delay, (SELECT max(id) FROM range(9) WHERE id < delay) AS most FROM {rows}", rows=rows)',
        "(Join the table instead, on the subquery's condition, and choose among the rows of its partners where the "
        "output is read)",
        'rows.join(rows.sparkSession.range(9).toDF("below"), F.expr("below < delay"), "left")',
        shown='found.groupBy("id", "delay").agg(F.max("below").alias("most"))',
        said="and choose among the rows of its partners where the output is read",
    ),
    "a join in output mode update": Remedy(
        joined(NEAR, "left"),
        r'(remove output_mode="update")',
        joined(NEAR, "left"),
        inputs=VIEWS,
        options={"output_mode": "update"},
        changed={},
    ),
    **{
        f"null as a key of a {how} join": Remedy(
            joined(f" AND {OF_CARRIER} = {OF_VIEWER}{NEAR}", how),
            rf"{side} side before the join, (\.w.*\)), write (\w+) instead in its condition, and (\.drop\(.*?\)) ",
            joined(f" AND {equal}{NEAR}", how, **{side: "$1"}, behind="$3"),
            inputs=VIEWS,
            said="They have no partner.",
        )
        for how, side, equal in (
            ("inner", "left", f"$2 = {OF_VIEWER}"),
            ("left", "right", f"{OF_CARRIER} = $2"),
            ("right", "left", f"$2 = {OF_VIEWER}"),
        )
    },
    "null as a key of a full join": Remedy(
        joined(NEAR, "full"),
        r"Remove them on the left side before the join, (\.where\(.*?\"\))\..*(add them behind it with a union)",
        joined(NEAR, "full", left="$1", behind='.unionByName(rows.where("id IS NULL"), allowMissingColumns=True)'),
        inputs=VIEWS,
        said="The output then lacks them",
    ),
    "no time in a left join": Remedy(
        joined(NEAR, "left", left='.unionByName(rows.drop("ts"), allowMissingColumns=True)'),
        r"before it, (\.where\(.*?\))\. .*(add them behind it with a union)",
        joined(
            NEAR,
            "left",
            left='.unionByName(rows.drop("ts"), allowMissingColumns=True)$1',
            behind='.unionByName(rows.drop("ts"), allowMissingColumns=True)',
        ),
        inputs=VIEWS,
        said="The output then lacks them",
    ),
    "a number in the condition": Remedy(
        joined(f"{NEAR} AND m > 3", "left"),
        r"Compute it before the join, (\.withColumn\(.*?\)\)), write (\w+) instead, and (\.drop\(.*?\)) behind it",
        joined(f"{NEAR} AND $2", "left", left="$1", behind="$3"),
        inputs=VIEWS,
    ),
    "seconds in the condition": Remedy(
        joined(" AND cast(at AS bigint) >= cast(ts AS bigint) AND at <= ts + INTERVAL 1 HOUR"),
        r"Write in its condition instead: (AND .*?)\.(?:\n|$)",
        joined(" $1 AND at <= ts + INTERVAL 1 HOUR"),
        inputs=VIEWS,
    ),
    "a time that equals a computed one": Remedy(
        'rows.withWatermark("ts", "1 hour").join(others.withColumnRenamed("id", "key"),'
        ' F.expr("id = key AND ts = timestamp_seconds(sec)"))',
        r"none: (\.withColumn\(.*?\)\)) before the join, (.*?) in its condition, and (\.drop\(.*?\)) behind it",
        'rows.withWatermark("ts", "1 hour")$1.join(others.withColumnRenamed("id", "key"), F.expr("id = key AND $2"))$3',
        inputs=VIEWS,
    ),
    "a limit of another time": Remedy(
        joined(" AND ts >= at - INTERVAL 1 HOUR AND ts <= seen"),
        r"Or, to keep them forever, write (.*?) instead",
        joined(" AND ts >= at - INTERVAL 1 HOUR AND $1"),
        inputs=VIEWS,
    ),
    "a filter behind a join": Remedy(
        joined(" AND at >= ts", behind='.where("at <= ts + INTERVAL 20 MINUTES")'),
        r"Write in the join's condition: (AND .*?)\.(?:\n|$)",
        joined(" AND at >= ts $1", behind='.where("at <= ts + INTERVAL 20 MINUTES")'),
        inputs=VIEWS,
    ),
    "a constant that is computed": Remedy(
        joined(" AND at BETWEEN ts AND ts + make_dt_interval(0, 1)"),
        r"Write in the join's condition: (AND .*?)\.(?:\n|$)",
        joined(" AND at BETWEEN ts AND ts + make_dt_interval(0, 1) $1"),
        inputs=VIEWS,
    ),
    "a left semi join of groups": Remedy(
        f"""rows.withWatermark("ts", "0 seconds").groupBy({HOURLY}.alias("w"), "id").count().join(
            others.withWatermark("at", "0 seconds").select(F.window("at", "1 hour").alias("w"), "id"),
            ["w", "id"], "leftsemi")""",
        "(Move the aggregation into an earlier stage, with event_time on its stream, and join that here)",
        f"""\
@app.stage("flights", output="between")
def first(rows):
    return rows.withWatermark("ts", "0 seconds").groupBy({HOURLY}.alias("w"), "id").count()
@app.stage("between", "views", output="out")
def second(rows, others):
    hours = others.withWatermark("at", "0 seconds").select(F.window("at", "1 hour").alias("w"), "id")
    return rows.withWatermark("w", "0 seconds").join(hours, ["w", "id"], "leftsemi")
""",
        inputs=VIEWS,
        right_job='[streams.between]\nevent_time = "w"\n',
    ),
    # Joins with a table.
    "a full join with a table": Remedy(
        'rows.join(names(rows), "carrier", "full")',
        r"Write the rows of the stream, (\..*?) with the stream on the left",
        "(lambda table: rows$1)(names(rows))",
        answer='answer.where("ts IS NOT NULL")',
        said="which rows of the table have no partner is known only where the output is read",
    ),
    "a right join with a table": Remedy(
        'rows.join(codes(rows), F.expr("carrier = code"), "right")',
        r"Write the rows that have a partner, (\..*?) with the stream on the left",
        "(lambda table: rows$1)(codes(rows))",
        answer='answer.where("ts IS NOT NULL")',
        said="which rows of the table have no partner is known only where the output is read",
    ),
    "a left semi join of a table": Remedy(
        'codes(rows).join(rows, F.expr("code = carrier"), "left_semi")',
        r"Write (\..*?) with the stream on the left",
        "(lambda table: rows$1)(codes(rows))",
    ),
    "a left anti join of a table": Remedy(
        'names(rows).join(rows, "carrier", "left_anti")',
        r"Write those that have one, (\..*?) with the stream on the left",
        "(lambda table: rows$1)(names(rows))",
        answer="names(rows).subtract(answer)",
        said="and subtract them there",
    ),
    "a difference from a table": Remedy(
        'rows.select("carrier").where("carrier IS NOT NULL").subtract(names(rows).select("carrier"))',
        r'(dropDuplicates) and then a join of kind "(left_anti)" do the same',
        'rows.select("carrier").where("carrier IS NOT NULL").$1().join(names(rows).select("carrier"), "carrier", "$2")',
    ),
    "a lateral join": Remedy(
        'sql("SELECT id, x FROM {rows}, LATERAL (SELECT delay + 1 AS x)", rows=rows)',
        "Compute its columns with (withColumn)",
        'rows.$1("x", F.expr("delay + 1")).select("id", "x")',
    ),
    "a lateral list": Remedy(
        'sql("SELECT id, x FROM {rows}, LATERAL explode(array(1, 2)) AS t(x)", rows=rows)',
        r"use (F\.explode) or",
        'rows.select("id", $1(F.expr("array(1, 2)")).alias("x"))',
    ),
    # Tasks.
    "all rows in one task": Remedy(
        "rows.groupBy().count()",
        r"Run the stage on one task: (@app\.stage\(.*\))\. If",
        "$1\ndef stage(rows):\n    return rows.groupBy().count()\n",
        inputs=("wide",),
        shown='found.agg(F.max("count").alias("count"))',
        options={"output_mode": "update"},
    ),
    **{
        f"groupings without a common key, by {key}": Remedy(
            'sql("SELECT carrier, n, count(*) AS count, grouping_id() AS g FROM {rows} WHERE carrier IS NOT NULL '
            'GROUP BY GROUPING SETS ((carrier), (n))", rows=rows)',
            r"Write a stage for each of them, (\.groupBy\(.*?\)) and (\.groupBy\(.*?\))\. Or",
            f'rows.where("carrier IS NOT NULL")${number}.count()',
            inputs=("wide",),
            answer=f'answer.where("{key} IS NOT NULL").select("{key}", "count")',
            shown=f'found.groupBy("{key}").agg(F.max("count").alias("count"))',
            said="a stage for each of them",
            options={"output_mode": "update"},
        )
        for number, key in ((1, "carrier"), (2, "n"))
    },
    "a stream that is joined with itself by other columns": Remedy(
        'rows.alias("x").join(rows.alias("y"), F.expr("x.n = y.n + 1")).select("x.id")',
        r"Name the stream twice, (@app\.stage\(.*?\)): the function",
        """\
$1
def stage(rows, others):
    return rows.alias("x").join(others.alias("y"), F.expr("x.n = y.n + 1")).select("x.id")
""",
        inputs=("wide",),
    ),
    "a key that a function of Python makes behind a filter": Remedy(
        'rows.where("n > 0").select(parity("n").alias("odd")).distinct()',
        "Move what comes before it into a separate stage with (partition_by='odd')",
        """\
@app.stage("wide", output="between", $1)
def first(rows):
    return rows.where("n > 0").select(parity("n").alias("odd"))
@app.stage("between", output="out")
def second(rows):
    return rows.distinct()
""",
        inputs=("wide",),
    ),
    # Functions with state.
    "rows of a function with state beside a table": Remedy(
        'totals(rows, "carrier").join(names(rows).hint("merge").withColumnRenamed("carrier", "key"), "key", "left")',
        r"Join with (F\.broadcast\(table\))",
        '(lambda table: totals(rows, "carrier").join($1, "key", "left"))'
        '(names(rows).withColumnRenamed("carrier", "key"))',
        answer='rows.where("carrier IS NOT NULL").groupBy(F.col("carrier").alias("key")).agg(F.count("*").alias("n"))'
        '.join(names(rows).withColumnRenamed("carrier", "key"), "key", "left")',
        shown='found.where("key <> \'None\'").groupBy("key", "name").agg(F.max("n").alias("n"))',
    ),
    "a share of the rows": Remedy(
        "rows.sample(0.5, seed=7)",
        r"keeps three of ten values of id: (\.where\(.*?\"\))\.(?:\n|$)",
        "rows$1",
        answer="pasted",
        said="which keeps three of ten values",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """What all cases share: the session, the account, the rows of the sources as tables."""

    spark: SparkSession
    account: Account
    directory: Path
    frames: Mapping[str, DataFrame]

    def message(self, remedy: Remedy) -> str:
        """What is said of the wrong stage: why it is refused, or its warnings."""
        application = Application()
        application.stages = stages_of(remedy.wrong, remedy.inputs, remedy.options)
        config = config_of(self.directory, SOURCES + remedy.job)
        try:
            plan = analyse_pipeline(self.spark, application, config, self.directory / "analysis").plan
        except PipelineRefused as refused:
            return str(refused)
        return "\n".join(plan.warnings)

    def batch(self, stages: Sequence[Stage]) -> DataFrame:
        """What the last of the stages emits over all rows."""
        frames = dict(self.frames)
        for stage in stages:
            frames[stage.output] = stage.function(*(frames[name] for name in stage.inputs))
        return frames[stages[-1].output]

    def rows(self, code: str, remedy: Remedy, **frames: DataFrame) -> list[dict[str, Any]]:
        """What an expression of these and of the case's inputs gives."""
        inputs = dict(zip(("rows", "others"), (self.frames[name] for name in remedy.inputs), strict=False))
        found: DataFrame = eval(code, {**globals(), **inputs, **frames})
        return found.toArrow().to_pylist()


@pytest.fixture(scope="module")
def bench(spark: SparkSession, account: Account, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    config = config_of(directory := tmp_path_factory.mktemp("remedies"), SOURCES)
    frames = {}
    for name, stream in config.streams.items():
        schema = arrow_schema(parse_schema(spark, stream.schema or "", name))
        frames[name] = spark.createDataFrame(pa.Table.from_pylist(rows_of(name), schema=schema))
    return Bench(spark, account, directory, frames)


def filled(text: str, parts: Sequence[str]) -> str:
    """The text with what is pasted in it."""
    return re.sub(r"\$(\d)", lambda found: parts[int(found[1]) - 1], text)


def outcomes(bench: Bench, cases: Mapping[str, Remedy]) -> dict[str, str]:
    """What is wrong with each case: nothing, if it is empty."""
    wrong, right = dict[str, str](), dict[str, list[Stage]]()
    job, application = SOURCES, Application()
    for number, (name, remedy) in enumerate(cases.items()):
        message = bench.message(remedy)
        found = re.search(remedy.advised, message)
        if found is None or remedy.said not in message:
            wrong[name] = f"not said: {message}"
            continue
        options = remedy.options if remedy.changed is None else remedy.changed
        right[name] = stages_of(filled(remedy.right, found.groups()), remedy.inputs, options)
        application.stages += told_apart(right[name], number)
        streams = remedy.job if remedy.right_job is None else remedy.right_job
        job += filled(streams, found.groups()).replace("between]", f"between{number}]")
    directory = bench.directory / uuid.uuid4().hex
    run = Fleet(bench.spark, bench.account, config_of(bench.directory, job), application, directory)
    try:
        play(run)
        for number, (name, remedy) in enumerate(cases.items()):
            if name in right:
                wrong[name] = difference(bench, run, remedy, right[name], number)
    finally:
        run.close()
    return wrong


def play(run: Fleet) -> None:
    """Produce all rows, half of each stream after the other halves, and drain."""
    run.start(*run.pipeline.plan.tasks())
    writers = {}
    for half in (0, 1):
        for name, partitions in run.pipeline.plan.sources.items():
            declared = run.config.streams[name]
            schema = arrow_schema(parse_schema(run.spark, declared.schema or "", name))
            if name not in writers:
                writers[name] = run.writer(name, partitions, flush_rows=5, event_time=declared.event_time)
            writers[name].write(pa.Table.from_pylist(rows_of(name)[half * 12 : half * 12 + 12], schema=schema))
            writers[name].flush()
        for name in writers:
            run.until_all_is_read(name)
    for writer in writers.values():
        writer.close()
    run.drain()


def difference(bench: Bench, run: Fleet, remedy: Remedy, stages: Sequence[Stage], number: int) -> str:
    """How what a case has emitted differs from what is expected; empty, if it does not."""
    wrong = stages_of(remedy.wrong, remedy.inputs, remedy.options)
    frames = {"pasted": bench.batch(stages)} if remedy.answer == "pasted" else {"answer": bench.batch(wrong)}
    expected = bench.rows(remedy.answer, remedy, **frames)
    found = put_out(run, f"{stages[-1].output}{number}")
    if remedy.shown != "found":
        schema = run.pipeline.stages[f"{stages[-1].name}{number}"].analysis.columns.arrow
        table = bench.spark.createDataFrame(pa.Table.from_pylist(found, schema=schema))
        found = bench.rows(remedy.shown, remedy, found=table)
    more, less = multiset(found) - multiset(expected), multiset(expected) - multiset(found)
    return f"{len(found)} rows, {more} too many, {less} missing" if more or less else ""


#: Those in `make test`: each is a kind of its own.
OFTEN = (
    "windows of another time",
    "state that expires by the clock",
    "a number in the condition",
)
_SELDOM = [name for name in REMEDIES if name not in OFTEN]
GROUPS = [OFTEN, *(tuple(_SELDOM[first : first + 10]) for first in range(0, len(_SELDOM), 10))]


@pytest.mark.parametrize(
    "names",
    [pytest.param(each, marks=[pytest.mark.long] * bool(number)) for number, each in enumerate(GROUPS)],
    ids=range(len(GROUPS)),
)
def test_what_is_pasted_puts_out_what_the_message_promises(
    bench: Bench, empty_streams: None, names: tuple[str, ...]
) -> None:
    found = outcomes(bench, {name: REMEDIES[name] for name in names})
    assert {name: each for name, each in found.items() if each} == {}


def test_a_local_time_is_that_of_a_session_in_its_zone(spark: SparkSession, bench: Bench) -> None:
    """A job file cannot set the zone. What is said instead gives what a plain job in that zone has."""
    line = re.search(r"write (F\.from_utc_timestamp\(.*?\)) in a stage", OWN["spark.sql.session.timeZone"])
    assert line is not None

    def local(time: Column) -> list[Row]:
        day = F.date_trunc("day", time).cast("string")
        return bench.frames["flights"].select("id", F.hour(time), F.to_date(time), day).collect()

    found = local(eval(line[1]))
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert [tuple(row) for row in local(F.col("ts"))] == [tuple(row) for row in found]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)

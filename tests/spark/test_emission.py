"""Rows that would stay in state forever, and rows that a later one takes back: such stages are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .task_driver import config_of

STREAMS = """
[streams.clicks]
schema = "user string, n int, ts timestamp"
event_time = "ts"
[streams.views]
schema = "who string, m int, at timestamp"
event_time = "at"
"""

Stage = Callable[..., DataFrame]


@pytest.fixture
def accepted(spark: SparkSession, tmp_path: Path) -> Callable[..., Pipeline]:
    """Analyses one stage over these streams, or an application."""

    def run(function: Stage | Application, *inputs: str, **options: Any) -> Pipeline:
        application = function if isinstance(function, Application) else Application()
        if not isinstance(function, Application):

            def stage(*frames: DataFrame) -> DataFrame:
                return function(*frames)

            application.stage(*(inputs or ("clicks",)), output="out", **options)(stage)
        return analyse_pipeline(spark, application, config_of(tmp_path, STREAMS), tmp_path / "analysis")

    return run


@pytest.fixture
def refusal(accepted: Callable[..., Pipeline]) -> Callable[..., str]:
    """Why it is not accepted."""

    def run(function: Stage | Application, *inputs: str, **options: Any) -> str:
        with pytest.raises(PipelineRefused) as caught:
            accepted(function, *inputs, **options)
        return str(caught.value)

    return run


def untimed(rows: DataFrame) -> DataFrame:
    """Its rows, and each of them once more without its time: a source's event time is never null."""
    return rows.unionByName(rows.drop(rows.columns[-1]), allowMissingColumns=True)


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("user").count()


def by_hour(rows: DataFrame, **_: Any) -> DataFrame:
    return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "user").count()


# Update.


def test_changes_that_another_stage_would_take_for_rows(refusal: Callable[..., str]) -> None:
    """Three clicks in three batches would be 1 + 2 + 3."""
    application = Application()
    application.stage("clicks", output="counts", partition_by="user", output_mode="update")(counted)

    @application.stage("counts", output="totals", output_mode="update")
    def totals(rows: DataFrame) -> DataFrame:
        return rows.groupBy("user").agg(F.sum("count"))

    assert refusal(application).startswith(
        "Stage totals reads stream 'counts', to which stage counted writes a row for each change of a group (output "
        "mode update), and it would read each change as a separate row. Let counted group by a window as well"
    )


@pytest.mark.parametrize(
    ("behind", "what"),
    [
        (lambda groups: groups.where("count = 1"), "Filter"),
        (lambda groups: groups.withColumn("each", F.explode(F.sequence(F.lit(1), F.col("count")))), "Generate"),
        (lambda groups: groups.union(groups), "Union"),
    ],
)
def test_changes_that_do_not_all_come_out(refusal: Callable[..., str], behind: Stage, what: str) -> None:
    said = refusal(lambda rows: behind(counted(rows)), output_mode="update")
    assert f"the aggregation by user emits a row for each change of a group, but the operator after it ({what}" in said


@pytest.mark.parametrize("query", ["SELECT DISTINCT user FROM {rows}", "SELECT user FROM {rows} GROUP BY user"])
def test_distinct_rows_of_sql_come_again_in_each_batch(
    spark: SparkSession, refusal: Callable[..., str], accepted: Callable[..., Pipeline], query: str
) -> None:
    said = refusal(lambda rows: spark.sql(query, rows=rows), output_mode="update")
    assert "which only removes duplicates, would emit a row again in each batch that has it. Write SELECT and" in said
    assert '.dropDuplicates(["user"]), which emits each row once.' in said
    assert '.dropDuplicates(["user"]), which emits each row once.' in refusal(lambda rows: spark.sql(query, rows=rows))
    for mode in ("append", "update"):
        accepted(
            lambda rows: spark.sql("SELECT user FROM {rows}", rows=rows).dropDuplicates(["user"]), output_mode=mode
        )


def test_a_union_of_sql_is_an_aggregation(
    spark: SparkSession, refusal: Callable[..., str], accepted: Callable[..., Pipeline]
) -> None:
    def union(rows: DataFrame) -> DataFrame:
        return spark.sql("SELECT user, n FROM {rows} UNION SELECT user, n + 1 FROM {rows}", rows=rows)

    assert "which only removes duplicates" in refusal(union, output_mode="update")

    def of_times(rows: DataFrame) -> DataFrame:
        return spark.sql("SELECT DISTINCT user, ts FROM {rows}", rows=rows.withWatermark("ts", "1 hour"))

    assert 'the row would never be emitted. Remove such rows before it, .where("ts IS NOT NULL")' in refusal(
        lambda rows: of_times(untimed(rows))
    )
    accepted(lambda rows: of_times(untimed(rows).where("ts IS NOT NULL")))
    accepted(of_times)


def test_changes_without_their_key(refusal: Callable[..., str]) -> None:
    assert "Return the keys." in refusal(lambda rows: counted(rows).select("count"), output_mode="update")
    lower = F.lower("user")
    assert "Return the keys." in refusal(lambda rows: rows.groupBy(lower).count().select("count"), output_mode="update")
    assert "Return the keys." in refusal(lambda rows: by_hour(rows).select("user", "count"), output_mode="update")


@pytest.mark.parametrize(
    "function",
    [
        counted,
        by_hour,
        lambda rows: counted(rows).select(F.col("user").alias("who"), (F.col("count") * 2).alias("twice")),
        lambda rows: by_hour(rows).select("user", F.col("window.start").alias("from"), "count"),
        lambda rows: rows.where("n > 1").groupBy().count(),
        lambda rows: rows.groupBy(F.lower("user").alias("low")).count().withColumn("shout", F.upper("low")),
    ],
)
def test_changes_that_all_come_out_with_their_key(accepted: Callable[..., Pipeline], function: Stage) -> None:
    assert accepted(function, output_mode="update").stages["stage"].analysis.puts_out_changes


# Append.


def test_groups_that_are_never_complete(refusal: Callable[..., str]) -> None:
    """Spark looks at the uppermost aggregation alone, and the other fails its first batch."""
    said = refusal(counted)
    assert said == (
        "Stage stage: no group of the aggregation by user is ever complete, since its keys have no event time with a "
        "watermark, and output mode append emits only complete groups. Group by a window of the event time as well, "
        '.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "user"). Or use output mode update, which '
        'emits a row for each change of a group: @app.stage("clicks", output="out", output_mode="update").'
    )
    assert refusal(lambda rows: by_hour(rows).select("user", "count").union(counted(rows))) == said


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_event_time_that_is_null_never_passes(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline], is_all: bool
) -> None:
    """A batch puts such rows out. A window has no such rows: Spark takes them out where it makes windows."""

    def by_time(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").groupBy("ts", "user").count()

    def within(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["user"])

    remedy = 'Remove such rows before it, .where("ts IS NOT NULL"). The output then lacks them.'
    for function in (by_time, within) if is_all else (by_time,):
        accepted(function)
        assert refusal(lambda rows, function=function: function(untimed(rows))).endswith(remedy)
        for known in (
            lambda rows: rows.where("ts IS NOT NULL"),
            lambda rows: rows.where("ts > '2024-01-01' AND n > 1").alias("x"),
            lambda rows: rows.dropna(subset=["ts", "n"]),
            lambda rows: rows.where(~F.col("ts").isNull()),
            lambda rows: rows.where("date(ts) <> '2024-01-01'"),
        ):
            accepted(lambda rows, function=function, known=known: function(known(untimed(rows))))
        for unknown in (
            lambda rows: rows.where("n IS NOT NULL OR ts IS NOT NULL"),
            lambda rows: rows.where("coalesce(ts, now()) IS NOT NULL"),
            lambda rows: rows.where("ts <=> now()"),
            lambda rows: rows.dropna(thresh=2),
        ):
            said = refusal(lambda rows, function=function, unknown=unknown: function(unknown(untimed(rows))))
            assert said.endswith(remedy)
    accepted(lambda rows: by_hour(untimed(rows)))
    accepted(lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.session_window("ts", "1 hour"), "user").count())
    again = lambda rows: (  # noqa: E731
        by_hour(rows).groupBy(F.window(F.window_time("window"), "1 day"), "user").agg(F.sum("count"))
    )
    accepted(again)


def test_a_row_without_time_never_finds_out_that_it_has_no_partner(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline]
) -> None:
    def joined(kind: str, *, left: str = "true", right: str = "true") -> Stage:
        near = F.expr("user <=> who AND at BETWEEN ts AND ts + INTERVAL 1 HOUR")
        return lambda clicks, views: (
            untimed(clicks).where(left).withWatermark("ts", "1 hour")
            .join(untimed(views).where(right).withWatermark("at", "1 hour"), near, kind)
        )  # fmt: skip

    known = {"left": "ts IS NOT NULL", "right": "at IS NOT NULL"}
    for kind, needed in (("leftOuter", ["left"]), ("rightOuter", ["right"]), ("fullOuter", ["left", "right"])):
        for side in needed:
            others = {name: text for name, text in known.items() if name != side}
            said = refusal(joined(kind, **others), "clicks", "views")
            assert f"where {'ts' if side == 'left' else 'at'} is null" in said
        accepted(joined(kind, **{side: known[side] for side in needed}), "clicks", "views")
    accepted(joined("inner"), "clicks", "views")
    accepted(joined("leftSemi"), "clicks", "views")

    def by_time(known: str) -> Stage:
        return lambda clicks, views: (
            untimed(clicks).where(known).join(views.withWatermark("at", "1 hour"), F.expr("ts = at"), "left")
        )

    assert "where ts is null" in refusal(by_time("true"), "clicks", "views")  # although ts has no watermark
    accepted(by_time("ts IS NOT NULL"), "clicks", "views")


@pytest.mark.parametrize(
    "kinds", [("inner", "leftOuter"), pytest.param(("rightOuter", "leftSemi"), marks=pytest.mark.long)]
)
def test_null_is_no_partner_of_null(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline], kinds: tuple[str, ...]
) -> None:
    """Spark finds partners on a stream by the bytes of their keys, and takes nulls out on few sides of few joins."""

    def joined(kind: str, by: str = "user = who", *, left: str = "true", right: str = "true") -> Stage:
        near = F.expr(f"{by} AND at BETWEEN ts AND ts + INTERVAL 1 HOUR")
        return lambda clicks, views: (
            clicks.where(f"ts IS NOT NULL AND {left}").withWatermark("ts", "1 hour")
            .join(views.where(f"at IS NOT NULL AND {right}").withWatermark("at", "1 hour"), near, kind)
        )  # fmt: skip

    assert refusal(joined("fullOuter"), "clicks", "views") == (
        "Stage stage: the join on user = who would match rows whose user and who are both null, which a batch does "
        'not. Remove them on the left side before the join, .where("user IS NOT NULL"). '
        "The output then lacks them; add them behind it with a union if you need them."
    )
    accepted(joined("fullOuter", left="user IS NOT NULL"), "clicks", "views")
    accepted(joined("fullOuter", right="who IS NOT NULL"), "clicks", "views")
    accepted(joined("fullOuter", "user <=> who"), "clicks", "views")
    for kind in kinds:
        accepted(joined(kind), "clicks", "views")
        accepted(joined(kind, "cast(n AS bigint) = m"), "clicks", "views")
        assert "are both null" in refusal(joined(kind, "nullif(user, '') = nullif(who, '')"), "clicks", "views")


def test_a_field_that_is_null_is_no_partner_either(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline]
) -> None:
    """The advised filter is of the field itself."""

    def joined(kept: str) -> Stage:
        def stage(clicks: DataFrame, views: DataFrame) -> DataFrame:
            one, other = clicks.select(F.struct("user", "n").alias("c")), views.select(F.struct("who", "m").alias("v"))
            return one.where(kept).join(other, F.expr("c.user = v.who"))

        return stage

    said = refusal(joined("true"), "clicks", "views")
    filtered = re.search(r'\.where\("(.*?)"\)', said)
    assert filtered is not None and "are both null, which a batch does not" in said
    accepted(joined(filtered[1]), "clicks", "views")


@pytest.mark.parametrize("totals", ["rollup", "cube"])
def test_totals_over_all_times_are_never_complete(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline], totals: str
) -> None:
    def grouped(how: str) -> Stage:
        def stage(rows: DataFrame) -> DataFrame:
            timed = rows.withWatermark("ts", "1 hour").withColumn("w", F.window("ts", "1 hour")).select("w", "user")
            return eval(f"timed{how}", {"timed": timed}).count().select("w.start", "user", "count")

        return stage

    said = refusal(grouped(f'.{totals}("w", "user")'))
    assert "has totals over all values of w, which are never complete, and their rows would never be emitted" in said
    line = re.search(r"\.groupingSets\(.*\)(?=, and add)", said)
    assert line is not None and line[0] == '.groupingSets([["w", "user"], ["w"]], "w", "user")'
    assert "withColumn" not in said
    accepted(grouped(line[0]))


def test_totals_over_all_times_whose_columns_are_made_by_the_grouping(refusal: Callable[..., str]) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").cube(F.window("ts", "1 hour"), "user").count()

    assert refusal(stage).endswith('they are read. Make "window" with withColumn before it, if the grouping makes it.')


@pytest.mark.parametrize(
    ("by", "ansi", "is_right"),
    [
        ("cast(user AS int) = cast(who AS int)", "true", True),  # fails where it cannot be
        ("cast(user AS int) = cast(who AS int)", "false", False),
        ("cast(n AS bigint) = cast(m AS bigint)", "false", True),
        ("cast(n AS string) = cast(m AS string)", "false", True),
        ("cast(cast(n AS double) AS decimal(9, 2)) = cast(cast(m AS double) AS decimal(9, 2))", "true", False),  # NaN
        ("try_cast(user AS int) = try_cast(who AS int)", "true", False),
    ],
)
def test_a_cast_that_makes_nulls_is_no_column(
    spark: SparkSession,
    refusal: Callable[..., str],
    accepted: Callable[..., Pipeline],
    by: str,
    ansi: str,
    is_right: bool,
) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        if is_right:
            accepted(lambda clicks, views: clicks.join(views, F.expr(by)), "clicks", "views")
        else:
            said = refusal(lambda clicks, views: clicks.join(views, F.expr(by)), "clicks", "views")
            assert "are both null, which a batch does not" in said
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def test_a_renamed_window_of_an_outer_join_may_be_null(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline]
) -> None:
    def stage(kept: str) -> Stage:
        def grouped(clicks: DataFrame, views: DataFrame) -> DataFrame:
            left = (
                clicks.where("ts IS NOT NULL").withWatermark("ts", "1 hour").withColumn("w1", F.window("ts", "1 hour"))
            )
            right = views.withWatermark("at", "1 hour").withColumn("w2", F.window("at", "1 hour")).drop("at")
            joined = left.drop("ts").join(right, F.expr("user = who AND w1 = w2"), "left")
            return joined.select("user", F.col("w2").alias("w")).where(kept).groupBy("w", "user").count()

        return grouped

    assert "where w is null, the aggregation by w, user never completes" in refusal(stage("true"), "clicks", "views")
    accepted(stage("w IS NOT NULL"), "clicks", "views")


@pytest.mark.parametrize("key", ["try_cast(user AS int)", "cast(null AS int)"])
def test_a_cast_that_makes_nulls_of_what_is_not_null(
    refusal: Callable[..., str], accepted: Callable[..., Pipeline], key: str
) -> None:
    def stage(key: str) -> Stage:
        def joined(clicks: DataFrame, views: DataFrame) -> DataFrame:
            left = clicks.where("user IS NOT NULL AND ts IS NOT NULL AND n IS NOT NULL").withWatermark("ts", "1 hour")
            right = views.where("at IS NOT NULL").withWatermark("at", "1 hour")
            near = F.expr("x = m AND at BETWEEN ts AND ts + INTERVAL 1 HOUR")
            return left.withColumn("x", F.expr(key)).join(right, near, "full").select("n", "m")

        return joined

    assert "whose x and m are both null, which a batch does not" in refusal(stage(key), "clicks", "views")
    accepted(stage("cast(n AS int)"), "clicks", "views")


def test_a_variant_may_hold_a_null(refusal: Callable[..., str]) -> None:
    def joined(clicks: DataFrame, views: DataFrame) -> DataFrame:
        one, other = clicks.withColumn("j", F.parse_json("user")), views.withColumn("i", F.parse_json("who"))
        return one.join(other, F.expr("cast(j AS string) = cast(i AS string)")).select("n", "m")

    assert "are both null, which a batch does not" in refusal(joined, "clicks", "views")

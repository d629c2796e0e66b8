"""No row is late because a producer was slow: what moves event time, what holds it back, what is refused."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.pipeline.analysed import AnalysedStage, Term, Watermark
from samza_azure.spark.pipeline.bounds import DAY_US
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .compare import MakeFleet, Row, assert_equal
from .task_driver import config_of

START = datetime(2024, 5, 1, tzinfo=UTC)
HOUR_US = 3_600_000_000
SOURCES = """
[streams.%s]
schema = "key string, ts timestamp"
event_time = "ts"
[streams.%s]
schema = "name string, at timestamp"
event_time = "at"
"""
FAST = "[task]\ncommit.ms = 0\n"


def rows_of(count: int, *, of: str = "key", at: str = "ts", since: datetime = START) -> list[Row]:
    return [{of: "abc"[number % 3], at: since + number * timedelta(minutes=20)} for number in range(count)]


def behind(rows: list[Row], others: list[Row], left: str, right: str) -> list[tuple[str, list[Row]]]:
    """One stream is read to its end before the other one has come beyond its first rows."""
    return [(left, rows[:40]), (right, others[:2]), (left, rows[40:]), (right, others[2:])]


def daily(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").count()


@pytest.mark.long  # drawn pipelines have unions
def test_a_union_waits_for_the_slower_branch_whichever_comes_first(fleet: MakeFleet) -> None:
    """One has a watermark in its stage and one has none; Spark marks a union as its first branch is marked."""
    application = Application()

    @application.stage("fast", "slow", output="together")
    def together(some: DataFrame, others: DataFrame) -> DataFrame:
        once = some.withWatermark("ts", "1 hour").dropDuplicates(["key", "ts"])
        return once.union(others)

    @application.stage("fast", "slow", output="inside")
    def inside(some: DataFrame, others: DataFrame) -> DataFrame:
        both = some.withWatermark("ts", "1 hour").union(others)
        return both.groupBy(F.window("ts", "1 day"), "key").count()

    application.stage("together", output="counted")(daily)
    run = fleet(application, SOURCES % ("fast", "slow") + '[streams.together]\nevent_time = "ts"\n' + FAST)
    others = rows_of(90, of="name", at="at")
    assert_equal(run, behind(rows_of(100), others, "fast", "slow"))


@pytest.mark.long  # the frontier of joins is below
def test_joined_rows_are_as_old_as_the_slower_side_lets_them_be(fleet: MakeFleet) -> None:
    """A join with a time bound needs no lag: the bound says how old its rows can be."""
    application = Application()

    @application.stage("left", "right", output="pairs")
    def pairs(some: DataFrame, others: DataFrame) -> DataFrame:
        near = F.expr("key = name AND at BETWEEN ts AND ts + INTERVAL 5 HOURS")
        return some.join(others, near).select("key", "ts")

    application.stage("pairs", output="counted")(daily)
    run = fleet(application, SOURCES % ("left", "right") + '[streams.pairs]\nevent_time = "ts"\n' + FAST)
    assert run.pipeline.stages["pairs"].analysis.frontier == (Term(0), Term(1, -5 * HOUR_US))
    assert_equal(run, behind(rows_of(60), rows_of(60, of="name", at="at"), "left", "right"))


@pytest.mark.long  # test_state_machines has one beside a timer of that time
def test_a_row_at_the_frontier_is_not_late(fleet: MakeFleet) -> None:
    """Many rows in order have one time, or one date: each flush is at the frontier that the one before has set."""
    application = Application()

    @application.stage("instants", "others", output="distinct")
    def distinct(some: DataFrame, others: DataFrame) -> DataFrame:
        both = some.withWatermark("ts", "0 seconds").union(others)
        return both.dropDuplicates(["key", "ts"])

    @application.stage("days", output="grouped")
    def grouped(rows: DataFrame) -> DataFrame:
        days = rows.where("day IS NOT NULL").withColumn("ts", F.col("day").cast("timestamp"))
        return days.withWatermark("ts", "0 seconds").groupBy("ts", "key").count()

    @application.stage("instants", output="copied")
    def copied(rows: DataFrame) -> DataFrame:
        copy = F.to_timestamp("ts").alias("at")  # Spark's optimiser finds that this is ts
        return rows.withWatermark("ts", "0 seconds").select("key", copy).dropDuplicates(["key", "at"])

    days = '[streams.days]\nschema = "key string, day date"\nevent_time = "day"\n'
    run = fleet(application, SOURCES % ("instants", "others") + days + FAST)
    pieces: list[tuple[str, list[Row]]] = []
    for number in range(6):
        keys = [f"{number}-{each}" for each in range(3)]
        pieces += [
            ("instants", [{"key": key, "ts": START} for key in keys]),
            ("others", [{"name": f"other {key}", "at": START} for key in keys]),
            ("days", [{"key": "abc"[each], "day": START.date()} for each in range(3)]),
        ]
    assert_equal(run, pieces)


@pytest.mark.long  # what is late for a session is in test_state.py
def test_a_row_at_the_end_of_a_session_extends_it(fleet: MakeFleet) -> None:
    """The session is not complete while such a row, which is not late, can come."""
    application = Application()

    @application.stage("visits", output="sessions")
    def sessions(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "0 seconds").groupBy(F.session_window("ts", "5 minutes"), "key").count()

    end = START + timedelta(minutes=5)
    run = fleet(application, '[streams.visits]\nschema = "key string, ts timestamp"\nevent_time = "ts"\n' + FAST)
    pieces = [("visits", [{"key": key, "ts": at}]) for key, at in [("a", START), *[("b", end)] * 8, ("a", end)]]
    assert_equal(run, pieces)


Analysed = Callable[..., AnalysedStage]


@pytest.fixture
def analysed(spark: SparkSession, tmp_path: Path) -> Analysed:
    """The analysis of one stage over `a` and `b`; its output has an event time."""

    def run(function: Any, *inputs: str, event_time: str = "ts", out: str = "", streams: str = "") -> AnalysedStage:
        application = Application()
        function.__name__ = "stage"
        application.stage(*(inputs or ("a",)), output="out")(function)
        head = streams or SOURCES % ("a", "b")
        config = config_of(tmp_path, f'{head}[streams.out]\nevent_time = "{event_time}"\n{out}')
        return analyse_pipeline(spark, application, config, tmp_path / "analysis").stages["stage"]

    return run


def refused(analysed: Analysed, function: Any, *inputs: str, **options: Any) -> str:
    with pytest.raises(PipelineRefused) as caught:
        analysed(function, *inputs, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("column", "frontier"),
    [
        ("ts", (Term(0),)),
        ("ts + INTERVAL 90 MINUTES", (Term(0, 90 * 60_000_000),)),
        ("ts - INTERVAL 1 DAY", (Term(0, -DAY_US),)),
        ("date_trunc('hour', ts)", (Term(0, -HOUR_US),)),
        ("to_date(ts)", (Term(0, -DAY_US),)),
        ("window(ts, '1 day')", (Term(0),)),
        ("window(ts, '1 day', '6 hours')", (Term(0),)),
        ("window(ts, '1 day').end", (Term(0),)),
        ("window(ts, '1 day').start", (Term(0, -DAY_US),)),
        ("window_time(window(ts, '1 day'))", (Term(0),)),
    ],
)
def test_the_frontier_of_a_column_that_is_computed(analysed: Analysed, column: str, frontier: tuple[Term, ...]) -> None:
    name = "made"
    stage = analysed(lambda rows: rows.selectExpr(f"{column} AS {name}"), event_time=name)
    assert stage.analysis.frontier == frontier


def test_the_frontier_of_groups_that_the_watermark_has_passed(analysed: Analysed) -> None:
    """Their windows lie between the last watermark and this one, and so do the ends; the starts are a window older."""
    columns = {"window": 0, "window_time(window)": 0, "window.end": 0, "window.start": -DAY_US}
    for column, shift in columns.items():
        stage = analysed(lambda rows, each=column: daily(rows).selectExpr(f"{each} AS made"), event_time="made")
        assert stage.analysis.frontier == (Term(None, shift),), column
    sessions = lambda rows: (  # noqa: E731
        rows.withWatermark("ts", "1 hour").groupBy(F.session_window("ts", "1 hour"), "key").count()
    )
    ends = analysed(lambda rows: sessions(rows).selectExpr("session_window.end AS made"), event_time="made")
    assert ends.analysis.frontier == (Term(None),)
    starts = lambda rows: sessions(rows).selectExpr("session_window.start AS made")  # noqa: E731
    assert "it is the start of a session, whose length has no limit" in refused(analysed, starts, event_time="made")


def test_the_frontier_of_a_union_is_that_of_all_its_branches(analysed: Analysed) -> None:
    """Whichever comes first, and although Spark marks the union's column as its first branch's is."""

    def once(some: DataFrame) -> DataFrame:
        return some.withWatermark("ts", "1 hour").dropDuplicates(["key", "ts"])

    for union in (
        lambda some, others: once(some).union(others),
        lambda some, others: others.toDF("key", "ts").union(once(some)),
    ):
        assert analysed(union, "a", "b").analysis.frontier == (Term(1), Term(None))


def joined(kind: str, condition: str) -> Any:
    def stage(some: DataFrame, others: DataFrame) -> DataFrame:
        left = some.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        return left.join(others.withWatermark("at", "2 hours"), F.expr(condition), kind)

    return stage


def test_the_frontier_of_joins(analysed: Analysed) -> None:
    """What waits for a partner is as old as the condition lets it be; what finds none a little older still."""
    near = "key = name AND at >= ts AND at <= ts + INTERVAL 3 HOURS"
    assert analysed(joined("inner", near), "a", "b").analysis.frontier == (Term(None, -3 * HOUR_US), Term(None))
    assert analysed(joined("inner", near), "a", "b", event_time="at").analysis.frontier == (Term(None),)
    outer = analysed(joined("leftOuter", near), "a", "b").analysis.frontier
    assert outer == (Term(None, -3 * HOUR_US - 1000), Term(None, -3 * HOUR_US), Term(None))
    same = "key = name AND ts = at"
    assert analysed(joined("inner", same), "a", "b").analysis.frontier == (Term(None),)
    assert analysed(joined("leftOuter", same), "a", "b").analysis.frontier == (Term(None),)
    by_null = "key = name AND ts <=> at AND at <= ts + INTERVAL 3 HOURS"  # which Spark makes no key with a time of
    frontier = analysed(joined("leftOuter", by_null), "a", "b").analysis.frontier
    assert frontier == (Term(None, -3 * HOUR_US - 1000), Term(None))


def test_a_join_that_keeps_rows_for_ever_has_no_frontier(analysed: Analysed) -> None:
    """Its rows come out when a partner comes, long after the inputs have passed them."""
    plain = lambda some, others: some.join(others, F.col("key") == F.col("name"))  # noqa: E731
    assert refused(analysed, plain, "a", "b") == (
        "Stage stage writes ts as event time of stream 'out', but how old its later rows can be is unknown: the join "
        "keeps rows until a partner arrives, and its condition does not limit how much older than the partner ts can "
        "be. Add to the join's condition how much later a partner can come, for example: AND at <= ts + INTERVAL 1 "
        'HOUR. Or declare under [streams.out] how far rows can lag behind the inputs: frontier_lag = "1 hour".'
    )
    pasted = lambda some, others: some.join(others, F.expr("key = name AND at <= ts + INTERVAL 1 HOUR"))  # noqa: E731
    assert analysed(pasted, "a", "b").analysis.frontier == (Term(0), Term(1, -HOUR_US))
    twice = SOURCES.replace("at timestamp", "ts timestamp").replace('"at"', '"ts"') % ("a", "b")
    same = lambda some, others: some.join(others, F.col("key") == F.col("name")).select("key", some.ts)  # noqa: E731
    assert 'for example: AND b.ts <= a.ts + INTERVAL 1 HOUR, with .alias("a") and .alias("b") on its sides.' in refused(
        analysed, same, "a", "b", streams=twice
    )
    told_apart = lambda some, others: (  # noqa: E731
        some.alias("a").join(others.alias("b"), F.expr("key = name AND b.ts <= a.ts + INTERVAL 1 HOUR"))
        .select("key", "a.ts")
    )  # fmt: skip
    assert analysed(told_apart, "a", "b", streams=twice).analysis.frontier == (Term(0), Term(1, -HOUR_US))
    assert analysed(plain, "a", "b", out='frontier_lag = "0 s"').analysis.frontier == (Term(0), Term(1))
    one_way = joined("inner", "key = name AND at <= ts + INTERVAL 3 HOURS")
    assert analysed(one_way, "a", "b").analysis.frontier == (Term(None, -3 * HOUR_US), Term(None))
    assert "how much older than the partner at can be" in refused(analysed, one_way, "a", "b", event_time="at")


def test_a_join_that_keeps_rows_for_ever_is_a_warning(analysed: Analysed) -> None:
    """A frontier_lag makes it acceptable, and its state grows all the same."""

    def warned(function: Any, **options: Any) -> list[str]:
        stage = analysed(function, "a", "b", out='frontier_lag = "1 hour"', **options)
        return [each.partition(" keeps the rows of ")[2] for each in stage.analysis.warnings]

    limit = "forever, so its state grows without end. Add to the join's condition how much later a partner can come"
    assert warned(joined("inner", "key = name")) == [
        f"a {limit}, for example: AND at <= ts + INTERVAL 1 HOUR.",
        f"b {limit}, for example: AND ts <= at + INTERVAL 1 HOUR.",
    ]
    near = "key = name AND at <= ts + INTERVAL 1 HOUR"
    assert warned(joined("inner", near)) == [f"b {limit}, for example: AND ts <= at + INTERVAL 1 HOUR."]
    near += " AND ts <= at + INTERVAL 1 HOUR"
    assert warned(joined("inner", near)) == []
    unmarked = lambda some, others: some.join(others, F.expr(near))  # noqa: E731
    assert warned(unmarked) == [
        'a forever, so its state grows without end. Set withWatermark("at", "1 hour") on b.',
        'b forever, so its state grows without end. Set withWatermark("ts", "1 hour") on a.',
    ]
    without = SOURCES.replace('event_time = "at"\n', "") % ("a", "b")
    assert "both inputs need an event_time and withWatermark" in warned(unmarked, streams=without)[0]


def test_an_outer_join_without_a_time_limit_is_advised_one_in_its_own_columns(analysed: Analysed) -> None:
    plain = lambda some, others: some.join(others, F.expr("key = name"), "leftOuter")  # noqa: E731
    condition = "key = name AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"
    assert f'F.expr("{condition}")' in refused(analysed, plain, "a", "b")
    assert analysed(joined("leftOuter", condition), "a", "b").analysis.frontier


def test_an_operator_behind_a_join_that_would_drop_rows_in_time(analysed: Analysed) -> None:
    counted = lambda some, others: (  # noqa: E731
        joined("inner", "key = name")(some, others).groupBy(F.window("ts", "1 day")).count()
    )
    said = refused(analysed, counted, "a", "b", event_time="window")
    assert said.startswith("Stage stage: the aggregation by window would drop rows that are not late, judged by column")
    assert "for example: AND ts <= at + INTERVAL 1 HOUR" in said or "AND at <= ts + INTERVAL 1 HOUR" in said
    near = "key = name AND at BETWEEN ts AND ts + INTERVAL 3 HOURS"
    bounded = lambda some, others: (  # noqa: E731
        joined("inner", near)(some, others).drop("at").groupBy(F.window("ts", "1 day")).count()
    )
    frontier = analysed(bounded, "a", "b", event_time="window").analysis.frontier
    assert frontier == (Term(None, -3 * HOUR_US - 1000),)  # as Spark hands the watermark on behind such a join


def test_each_input_with_an_event_time_that_state_reads_holds_the_watermark_back(analysed: Analysed) -> None:
    union = lambda some, others: (  # noqa: E731
        some.withWatermark("ts", "1 hour").union(others).groupBy(F.window("ts", "1 day"), "key").count()
    )
    assert analysed(union, "a", "b", event_time="window").analysis.watermarks == (
        Watermark(0, 3_600_000),
        Watermark(1, 3_600_000),
    )
    without = SOURCES.replace('event_time = "at"\n', "") % ("a", "b")
    assert refused(analysed, union, "a", "b", event_time="window", streams=without) == (
        "Stage stage: the aggregation by window, key would drop rows that are not late, judged by column window: "
        "stream 'b' has no declared event time. Add to the job file, under [streams.b]: "
        'event_time = "at".'
    )


def test_an_input_without_event_time_does_not_stop_event_time_without_a_word(analysed: Analysed) -> None:
    without = SOURCES.replace('event_time = "at"\n', "") % ("a", "b")
    said = refused(analysed, lambda some, others: some.union(others), "a", "b", streams=without)
    assert 'Add to the job file, under [streams.b]: event_time = "at".' in said
    lookup = lambda some, others: some.join(others, F.col("key") == F.col("name"))  # noqa: E731
    lagging = analysed(lookup, "a", "b", streams=without, out='frontier_lag = "2 h"')
    assert (lagging.analysis.frontier, lagging.frontier_lag_us) == ((Term(0),), 2 * HOUR_US)


def test_a_time_that_a_function_makes_of_many_rows_needs_a_lag(analysed: Analysed) -> None:
    """Without a watermark there is no stage to move it to."""
    mapped = lambda rows: rows.mapInPandas(lambda parts: parts, "ts timestamp")  # noqa: E731
    said = refused(analysed, mapped)
    assert "the operator MapInPandas computes it. Use the event time of an input" in said
    assert 'frontier_lag = "1 hour"' in said and "set the watermark" not in said
    analysed(mapped, out='frontier_lag = "1 hour"')


def test_an_event_time_must_be_a_time(analysed: Analysed) -> None:
    said = refused(analysed, lambda rows: rows, event_time="key")
    assert said == (
        "streams.out.event_time is 'key', a column of type string. An event time is a timestamp, a date or a window. "
        "Make it one: to_timestamp(key)."
    )

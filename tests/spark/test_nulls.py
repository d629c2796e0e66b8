"""What is never null: event times, NOT NULL, and what a stage has removed or computed, also in the stages behind it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.messages import Phase
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline
from samza_azure.tasks.poller import PREFETCH_ROWS

from . import null_time_jobs
from .compare import assert_equal
from .null_time_jobs import START
from .task_driver import Fleet, config_of

STREAMS = """
[streams.clicks]
schema = "user string, n int, ts timestamp, id string NOT NULL"
event_time = "ts"
[streams.views]
schema = "who string, m int, at timestamp"
event_time = "at"
[streams.between]
event_time = "ts"
"""

Stage = Callable[..., DataFrame]
MakeFleet = Callable[[Application, str], Fleet]


@pytest.fixture
def accepted(spark: SparkSession, tmp_path: Path) -> Callable[..., Pipeline]:
    """Analyses a stage over clicks, and one over what it emits and views, where it is named."""

    def run(first: Stage, second: Stage | None = None, *, views: bool = False) -> Pipeline:
        application = Application()

        @application.stage("clicks", output="between")
        def one(rows: DataFrame) -> DataFrame:
            return first(rows)

        if second is not None:

            @application.stage("between", *["views"] * views, output="out", tasks=1)
            def two(*rows: DataFrame) -> DataFrame:
                return second(*rows)

        return analyse_pipeline(spark, application, config_of(tmp_path, STREAMS), tmp_path / "analysis")

    return run


def untimed(rows: DataFrame) -> DataFrame:
    """Its rows, and each of them once more without its time."""
    return rows.unionByName(rows.drop("ts"), allowMissingColumns=True)


def by_time(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 hour").groupBy("ts").count()


@pytest.mark.parametrize(
    "first",
    [
        lambda rows: rows,
        lambda rows: untimed(rows).where("ts IS NOT NULL"),
        lambda rows: untimed(rows).dropna(),
        lambda rows: untimed(rows).selectExpr("ts AS t").where("t > '2013-01-01'").select(F.col("t").alias("ts")),
        lambda rows: (
            untimed(rows).withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "user").count()
            .select("user", F.window_time("window").alias("ts"))
        ),
        lambda rows: (
            untimed(rows).withWatermark("ts", "1 hour").groupBy(F.session_window("ts", "1 hour"), "user").count()
            .select(F.col("session_window.end").alias("ts"))
        ),
        lambda rows: (
            untimed(rows).withWatermark("ts", "1 hour").alias("a")
            .join(rows.select(F.col("ts").alias("of")), F.expr("ts = of")).select("ts")
        ),
    ],
    ids=["declared", "where", "dropna", "renamed", "window_time", "session", "a join's key"],
)  # fmt: skip
def test_a_time_that_a_stage_has_for_each_row_is_not_null_in_the_next_one(
    accepted: Callable[..., Pipeline], first: Stage
) -> None:
    pipeline = accepted(first, by_time)
    assert "ts" in pipeline.streams["between"].not_null
    assert pipeline.stages["two"].analysis.relies_on == {0: frozenset({"ts"})}
    assert pipeline.inputs_of("two-0", "run")[0].not_null == {"ts"}


def test_a_time_that_may_be_null_is_refused_in_the_next_stage_or_removed_there(
    accepted: Callable[..., Pipeline],
) -> None:
    with pytest.raises(PipelineRefused, match=r"Stage two: where ts is null, .* \.where\(\"ts IS NOT NULL\"\)"):
        accepted(untimed, by_time)
    pipeline = accepted(untimed, lambda rows: by_time(rows.where("ts IS NOT NULL")))
    assert pipeline.stages["two"].analysis.relies_on == {}


def test_what_is_computed_is_null_as_spark_says_of_what_it_is_computed_from(accepted: Callable[..., Pipeline]) -> None:
    proven = (
        "coalesce(user, '?')",
        "coalesce(user, id)",
        "concat_ws('-', user, n)",
        "concat(id, '!')",
        "upper(id)",
        "struct(user, n)",
        "date_trunc('HOUR', ts)",
        "date(ts)",
        "ts + INTERVAL 1 HOUR",
    )
    unknown = (
        "user",
        "concat(id, user)",
        "nullif(id, '')",
        "try_cast(id AS int)",
        "date_trunc('FORTNIGHT', ts)",
        "CASE WHEN n > 1 THEN id END",
        "element_at(split(id, ','), 2)",
    )
    made = [F.expr(each).alias(each) for each in (*proven, *unknown)]
    pipeline = accepted(lambda rows: rows.select("ts", *made), lambda rows: rows)
    assert pipeline.streams["between"].not_null == {"ts", *proven}
    assert "NOT NULL" not in pipeline.plan.stages[0].schema  # which a run compares, and older ones do not have


def test_a_window_out_of_a_struct_is_null_where_the_struct_is(accepted: Callable[..., Pipeline]) -> None:
    """The field keeps the mark of a window, but not its promise."""

    def some(rows: DataFrame) -> DataFrame:
        hours = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()
        some = F.when(F.col("count") > 1, F.struct("window")).alias("some")
        return hours.select(some, F.window_time("window").alias("ts")).select("some.window", "ts")

    assert accepted(some, lambda rows: rows).streams["between"].not_null == {"ts"}


def test_a_key_that_is_never_null_has_no_null_as_its_partner(accepted: Callable[..., Pipeline]) -> None:
    def joined(left: str, right: str) -> Stage:
        return lambda clicks, views: clicks.withWatermark("ts", "1 hour").join(
            views.withWatermark("at", "1 hour"),
            F.expr(f"{left} = {right} AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"),
            "fullOuter",
        )

    for left, right in (("coalesce(user, '?')", "coalesce(who, '?')"), ("id", "who"), ("concat_ws('', user)", "who")):
        accepted(lambda rows: rows, joined(left, right), views=True)
    with pytest.raises(PipelineRefused, match="would match rows whose user and who are both null"):
        accepted(lambda rows: rows, joined("user", "who"), views=True)
    by_id = accepted(lambda rows: rows, joined("id", "who"), views=True).stages["two"].analysis
    assert by_id.relies_on == {0: frozenset({"id", "ts"}), 1: frozenset({"at"})}


JOB = """
[streams.orders]
schema = "key string, ts timestamp"
event_time = "ts"
[streams.payments]
schema = "paid string, at timestamp"
event_time = "at"
[task]
commit.ms = 0
"""


def matching(kept: str = "true") -> Application:
    application = Application()

    @application.stage("orders", "payments", output="matched")
    def match(orders: DataFrame, payments: DataFrame) -> DataFrame:
        near = F.expr("key = paid AND at BETWEEN ts AND ts + INTERVAL 1 HOUR")
        timed = orders.where(kept).withWatermark("ts", "1 minute")
        return timed.join(payments.withWatermark("at", "1 minute"), near, "left")

    return application


def produced(run: Fleet, stream: str, time: str, rows: list[dict[str, Any]], *, checked: bool = True) -> None:
    """Put rows into a source stream; unchecked, as versions before this rule did, and as other programs do."""
    kinds = {time: pa.timestamp("us", "UTC")}
    schema = pa.schema({name: kinds.get(name, pa.string()) for name in rows[0]})
    writer = run.writer(stream, 1, flush_rows=100_000, event_time=time if checked else None)
    writer.write(pa.Table.from_pylist(rows, schema=schema))
    writer.flush()


@pytest.mark.parametrize(
    "more", [0, pytest.param(2 * PREFETCH_ROWS, marks=pytest.mark.long)], ids=["handed over", "read by a worker"]
)
def test_a_null_where_a_stage_relies_on_none_fails_its_task_and_a_filter_lets_it_go_on(
    fleet: MakeFleet, more: int
) -> None:
    """Such a row would wait for its partner forever. After the change the task goes on from its log, without a
    drain: the filter is no part of the state."""
    run = fleet(matching(), JOB)
    run.start("match-0")
    produced(
        run, "orders", "ts", [{"key": f"{number}", "ts": START + timedelta(minutes=number)} for number in range(9)]
    )
    run.until_all_is_read("orders")
    untimed = [{"key": "x", "ts": None}, *({"key": "y", "ts": START + timedelta(minutes=9)} for _ in range(more))]
    produced(run, "orders", "ts", untimed, checked=False)
    while not run.tasks["match-0"].is_over:
        run.look()
    report = run.tasks["match-0"].report
    assert report.phase is Phase.FAILED and report.error is not None
    assert report.error.message == (
        "Stream 'orders' has a row in which ts is null, and this stage was accepted because none has. It is older "
        "than that rule, or another program has written it. Let the stage leave such rows out, "
        '.where("ts IS NOT NULL") before all else on this input: it then goes on where it stands.'
    )

    mended = fleet(matching("ts IS NOT NULL"), JOB)
    mended.run_id, mended.group_id, mended.generation = run.run_id, run.group_id, run.generation
    assert mended.pipeline.plan.fingerprint == run.pipeline.plan.fingerprint
    mended.start("match-0", first=False)
    produced(mended, "orders", "ts", [{"key": "z", "ts": START + timedelta(hours=1)}])
    produced(mended, "payments", "at", [{"paid": "3", "at": START + timedelta(minutes=5)}])
    mended.until_all_is_read("orders")
    mended.until_all_is_read("payments")
    mended.drain()
    found = sorted((row["key"], row["at"] is not None) for row in mended.rows("matched") if row["key"] != "y")
    assert found == [*((f"{number}", number == 3) for number in range(9)), ("z", False)]


@pytest.mark.long  # that they are accepted is shown above
def test_the_four_null_time_jobs_put_out_what_a_batch_does(fleet: MakeFleet) -> None:
    run = fleet(null_time_jobs.app, null_time_jobs.STREAMS + "[task]\ncommit.ms = 0\n")
    rows = null_time_jobs.rows(60)
    first, second = ([(stream, each[half * 30 : half * 30 + 30]) for stream, each in rows] for half in (0, 1))
    assert_equal(run, [*first, *second])

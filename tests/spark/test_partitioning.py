"""Rows of one key meet in one task, however the inputs are partitioned: what is routed, what stays, what is refused."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.messages import StagePlan
from samza_azure.pipeline.analysed import Pipeline
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .compare import MakeFleet, Row, assert_equal
from .task_driver import config_of

START = datetime(2024, 5, 1, tzinfo=UTC)
STREAMS = """
[streams.%s]
partitions = 4
schema = "key string, n int, ts timestamp"
event_time = "ts"
%s
[streams.%s]
partitions = 4
schema = "id bigint, name string, at timestamp"
event_time = "at"
%s
[task]
commit.ms = 0
"""
#: Where rows go through it: the number of tasks is what such a test takes.
FEW = STREAMS.replace("partitions = 4", "partitions = 2")


def rows_of(count: int, *, step: timedelta = timedelta(minutes=30)) -> list[Row]:
    return [{"key": "abcde"[number % 5], "n": number % 7, "ts": START + number * step} for number in range(count)]


def others_of(count: int, *, lag: timedelta = timedelta()) -> list[Row]:
    return [
        {"id": number % 7, "name": "abcde"[number % 5], "at": START - lag + number * timedelta(minutes=40)}
        for number in range(count)
    ]


def one_stage(function: Callable[..., DataFrame], *inputs: str, **options: Any) -> Application:
    application = Application()
    function.__name__ = "stage"
    application.stage(*inputs, output="out", **options)(function)
    return application


def test_one_stage_with_a_group_over_a_stream_without_key(fleet: MakeFleet) -> None:
    """The first job that everybody writes: the rows take turns over the partitions, each key is counted once."""
    application = one_stage(
        lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").count(), "unkeyed"
    )
    run = fleet(application, FEW % ("unkeyed", "", "other", ""))
    (router, stage) = run.pipeline.plan.stages
    assert (router.name, router.inputs, router.routed_by, router.partitions) == (
        "stage-unkeyed",
        ("unkeyed",),
        ("key",),
        2,
    )
    assert (stage.name, stage.inputs, stage.tasks) == ("stage", ("stage-unkeyed",), 2)
    rows = rows_of(200)
    assert_equal(run, [("unkeyed", rows[:80]), ("unkeyed", rows[80:])])


@pytest.mark.long  # the pinned pipelines have each of them
def test_deduplication_a_join_and_a_group_by_an_expression(fleet: MakeFleet) -> None:
    """Each by keys that the streams do not have; the joined streams progress at different speeds."""
    application = Application()

    @application.stage("ours", output="keys")
    def keys(rows: DataFrame) -> DataFrame:
        return rows.select("key", "n").dropDuplicates(["key", "n"])

    @application.stage("ours", "theirs", output="pairs")
    def pairs(rows: DataFrame, others: DataFrame) -> DataFrame:
        return rows.join(others, (F.col("n") == F.col("id")) & (F.col("key") == F.col("name"))).select("key", "n", "at")

    @application.stage("ours", output="shares", output_mode="update")
    def shares(rows: DataFrame) -> DataFrame:
        # The rows are routed before the filter: what it keeps from the division must not fail there.
        return rows.where("n <> 0").select(F.expr("7 div n").alias("share"), F.upper("key").alias("letter")).distinct()

    run = fleet(application, FEW % ("ours", "", "theirs", ""))
    assert [stage.name for stage in run.pipeline.plan.stages if stage.routed_for] == [
        "keys-ours",
        "pairs-ours",
        "pairs-theirs",
        "shares-ours",
    ]
    rows, others = rows_of(120), others_of(60, lag=timedelta(days=9))
    assert_equal(run, [("ours", rows[:50]), ("theirs", others[:10]), ("ours", rows[50:]), ("theirs", others[10:])])


def test_all_rows_in_one_task(fleet: MakeFleet) -> None:
    """A global count and a limit, where the user says so."""
    application = Application()

    @application.stage("everything", output="days", tasks=1)
    def days(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "2 days", "1 day")).count()

    @application.stage("everything", output="ten", tasks=1)
    def ten(rows: DataFrame) -> DataFrame:
        return rows.select(F.lit(1).alias("one")).limit(10)

    run = fleet(application, FEW % ("everything", "", "other", ""))
    assert run.pipeline.plan.tasks() == ["days-0", "ten-0"]
    assert_equal(run, [("everything", rows_of(50)), ("everything", rows_of(90, step=timedelta(hours=1))[50:])])


Plan = Callable[..., Pipeline]


class Nothing(StatefulProcessor):
    """Emits nothing."""

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        return iter(())


@pytest.fixture
def plan(spark: SparkSession, tmp_path: Path) -> Plan:
    """A pipeline of one stage over `a` and `b`, or of several, with lines for the streams."""

    def run(function: Callable[..., Any] | Application, *inputs: str, a: str = "", b: str = "", more: str = "") -> Any:
        application = function if isinstance(function, Application) else one_stage(function, *(inputs or ("a",)))
        config = config_of(tmp_path, STREAMS % ("a", a, "b", b) + more)
        return analyse_pipeline(spark, application, config, tmp_path / "analysis")

    return run


def routers(pipeline: Pipeline) -> list[tuple[str, tuple[str, ...]]]:
    return [(stage.inputs[0], stage.routed_by) for stage in pipeline.plan.stages if stage.routed_for]


def test_a_stream_that_has_the_key_stays_as_it_is(plan: Plan) -> None:
    count = lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").count()  # noqa: E731
    assert routers(plan(count, a='key = "key"')) == []
    assert routers(plan(count, a='key = ["key"]')) == []
    assert routers(plan(count, a='key = ["key", "n"]')) == [("a", ("key",))]
    assert routers(plan(count, a='key = "n"')) == [("a", ("key",))]
    assert routers(plan(lambda rows: rows.dropDuplicates(["n", "key"]), a='key = "n"')) == []


def test_only_the_side_of_a_join_that_has_another_key_is_routed(plan: Plan) -> None:
    """An int and a bigint that are equal have the same partition."""
    join = lambda rows, others: rows.join(others, F.col("n") == F.col("id"))  # noqa: E731
    assert routers(plan(join, "a", "b", a='key = "n"')) == [("b", ("id",))]
    assert routers(plan(join, "a", "b", b='key = "id"')) == [("a", ("CAST(n AS BIGINT)",))]
    assert routers(plan(join, "a", "b", a='key = "n"', b='key = "id"')) == []
    assert routers(plan(join, "a", "b", a='key = "key"', b='key = "name"')) == [
        ("a", ("CAST(n AS BIGINT)",)),
        ("b", ("id",)),
    ]


def test_inputs_with_different_numbers_of_partitions_are_brought_to_one(spark: SparkSession, tmp_path: Path) -> None:
    streams = STREAMS.replace("partitions = 4", "partitions = 3", 1) % ("a", 'key = "n"', "b", 'key = "id"')
    join = one_stage(lambda rows, others: rows.join(others, F.col("n") == F.col("id")), "a", "b")
    pipeline = analyse_pipeline(spark, join, config_of(tmp_path, streams), tmp_path / "analysis")
    assert [(stage.name, stage.partitions) for stage in pipeline.plan.stages] == [("stage-b", 3), ("stage", 3)]


def test_a_key_passes_through_stages_that_keep_their_partitions(plan: Plan) -> None:
    application = Application()

    @application.stage("a", output="shuffled", partition_by="key")
    def shuffled(rows: DataFrame) -> DataFrame:
        return rows

    @application.stage("shuffled", output="kept")
    def kept(rows: DataFrame) -> DataFrame:
        return rows.select(F.col("key").alias("letter"), "n", "ts").where("n > 2")

    @application.stage("kept", output="out", output_mode="update")
    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("letter").count()

    more = "[streams.shuffled]\npartitions = 3\n"
    assert routers(plan(application, more=more)) == []
    assert plan(application, more=more).streams["kept"].key == ("letter",)


def test_an_input_that_is_routed_has_another_key_in_all_its_branches(plan: Plan) -> None:
    application = Application()

    @application.stage("a", output="each")
    def each(rows: DataFrame) -> DataFrame:
        distinct = rows.select(F.lower("key").alias("x")).dropDuplicates(["x"])
        return distinct.union(rows.select("key"))

    @application.stage("each", output="out", output_mode="update")
    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("x").count()

    found = plan(application, a='key = "key"')
    assert found.streams["each"].key == ()
    assert ("each", ("x",)) in routers(found)


def test_several_operators_share_a_partitioning(plan: Plan) -> None:
    """A key of both, or an expression of the one's key."""
    both = lambda rows: rows.dropDuplicates(["key", "n"]).groupBy("key").count()  # noqa: E731
    application = Application()
    application.stage("a", output="out", output_mode="update")(named(both))
    assert routers(plan(application)) == [("a", ("key",))]
    chained = lambda rows: (  # noqa: E731
        rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "key").count()
        .groupBy(F.window(F.window_time("window"), "1 day"), F.upper("key")).agg(F.sum("count"))
    )  # fmt: skip
    assert routers(plan(chained)) == [("a", ("upper(key)",))]


def named(function: Any) -> Any:
    function.__name__ = "stage"
    return function


def test_a_window_alone_is_a_key_as_in_a_shuffle_of_spark(plan: Plan) -> None:
    """But only where there is no other: all rows of a time would go to one task."""
    counted = lambda window: lambda rows: rows.withWatermark("ts", "1 hour").groupBy(window).count()  # noqa: E731
    assert routers(plan(counted(F.window("ts", "1 day")))) == [("a", ("window(ts, 1 day)",))]
    assert routers(plan(counted(F.window("ts", "90 minutes", "90 minutes")))) == [("a", ("window(ts, 90 minutes)",))]
    ((_, (shifted,)),) = routers(plan(counted(F.window("ts", "1 hour", "1 hour", "10 minutes"))))
    assert shifted != "window(ts, 1 hour)"


def refused(plan: Plan, function: Any, *inputs: str, **options: Any) -> str:
    with pytest.raises(PipelineRefused) as caught:
        plan(function, *inputs, **options)
    return str(caught.value)


def test_a_stage_that_no_partitioning_satisfies_is_refused(plan: Plan) -> None:
    """With the stage, the operator, and what to write."""
    assert refused(plan, lambda rows: rows.limit(10)) == (
        "Stage stage: the limit over all rows needs all rows in one task. Run the stage on one task: "
        '@app.stage("a", output="out", tasks=1).'
    )
    disjoint = lambda rows: rows.dropDuplicates(["n"]).dropDuplicates(["key"])  # noqa: E731
    assert refused(plan, disjoint) == (
        "Stage stage: no partitioning of its inputs suits both the deduplication by n and the deduplication by key, "
        "which share no key. Write two stages, the first with the deduplication by n with partition_by='key'. "
        'Or run the stage on one task: @app.stage("a", output="out", tasks=1).'
    )
    sliding = lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "2 days", "1 day")).count()  # noqa: E731
    assert refused(plan, sliding).startswith(
        "Stage stage: the aggregation by window needs the rows of each key in one task, but no part of the key can be "
        "computed from an input row alone: an earlier operator creates it, or an earlier join uses another key. "
    )
    itself = lambda rows: rows.alias("x").join(rows.alias("y"), F.expr("x.n = y.n + 1")).select("x.n")  # noqa: E731
    said = refused(plan, itself)
    assert said.startswith("Stage stage: the join on ")
    assert "needs the rows of stream 'a' partitioned by different columns. Name the stream twice, @app.stage(" in said
    assert refused(plan, lambda rows, others: rows.join(others, F.expr("n > id")), "a", "b").startswith(
        "Stage stage: a join of two streams (Inner) has no equality between a column of the left and one of the right."
    )
    assert refused(plan, lambda rows: rows.groupBy("key").applyInPandas(lambda group: group, "key string")).startswith(
        "Stage stage uses applyInPandas or applyInArrow, which on a stream sees only the rows of one batch"
    )


def test_the_advised_two_stages_are_right(plan: Plan) -> None:
    application = Application()

    @application.stage("a", output="once", partition_by="key")
    def first(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["n"])

    @application.stage("once", output="out")
    def second(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["key"])

    assert routers(plan(application, more="[streams.once]\npartitions = 4\n")) == [("a", ("n",))]


def test_a_python_function_as_a_key(plan: Plan) -> None:
    """It is asked for all rows, so it must not be kept from some: what a filter lets pass is not known before it."""
    parity = F.udf(lambda n: n % 2, "int")
    ((_, (by,)),) = routers(plan(lambda rows: rows.select(parity("n").alias("odd")).distinct()))
    assert "<lambda>(n)" in by
    said = refused(plan, lambda rows: rows.where("n is not null").select(parity("n").alias("odd")).distinct())
    assert "no part of the key can be computed from an input row alone" in said


def test_a_filter_after_the_python_function_of_a_key(plan: Plan) -> None:
    """Spark moves it below the function, which it need not be able to take: the router called it for all rows, and the
    run failed. A filter by the function's result comes after it in any case."""
    parity = F.udf(lambda n: n % 2, "int")
    computed = lambda rows: rows.withColumn("odd", parity("n"))  # noqa: E731
    said = refused(plan, lambda rows: computed(rows).where("n is not null").select("odd").distinct())
    assert "a filter keeps rows from the Python function that computes it. Move what comes before it into a" in said
    ((_, (by,)),) = routers(plan(lambda rows: computed(rows).where("odd is not null").select("odd").distinct()))
    assert "<lambda>(n)" in by
    said = refused(plan, lambda rows: computed(rows).where("odd is not null and key <> 'a'").select("odd").distinct())
    assert "a filter keeps rows" in said


def test_many_filters_below_a_key(plan: Plan) -> None:
    """Each was followed twice from the one above it."""
    parity = F.udf(lambda n: n % 2, "int")

    def filtered(rows: DataFrame) -> DataFrame:
        for number in range(40):
            rows = rows.where(F.col("odd") > number) if "odd" in rows.columns else rows.withColumn("odd", parity("n"))
        return rows.select("odd").distinct()

    assert "<lambda>(n)" in str(routers(plan(filtered)))


def test_a_python_function_as_a_key_beside_a_window(plan: Plan) -> None:
    """They were routed by the window alone: Spark's own filter of rows without a time counted as one of the job's."""
    parity = F.udf(lambda n: n % 2, "int")

    def grouped(rows: DataFrame, condition: str = "ts is not null") -> DataFrame:
        marked = rows.withWatermark("ts", "1 hour").where(condition)
        return marked.groupBy(F.window("ts", "1 day"), parity("n").alias("odd")).count()

    assert "<lambda>(n)" in str(routers(plan(grouped)))
    said = refused(plan, lambda rows: grouped(rows.unionByName(rows.drop("ts"), allowMissingColumns=True)))
    assert "a filter keeps rows from the Python function" in said  # the job's own, if rows may have no time
    slow = plan(lambda rows: grouped(rows, "n is not null"))
    assert "window(ts, 1 day)" in str(routers(slow)) and "<lambda>(n)" not in str(routers(slow))
    assert [each for each in slow.plan.warnings if "by their time alone, so all that arrive together go to one" in each]


def test_two_functions_of_one_name_are_two_routes(plan: Plan) -> None:
    """They are printed alike. So are texts that hold what looks like an id."""
    two, three = F.udf(lambda n: n % 2, "int"), F.udf(lambda n: n % 3, "int")
    for one, other in ((two("n"), three("n")), (F.concat("key", F.lit("#1")), F.concat("key", F.lit("#2")))):

        def both(rows: DataFrame, one: Any = one, other: Any = other) -> DataFrame:
            return rows.select(one.alias("k")).distinct().union(rows.select(other.alias("k")).distinct())

        said = refused(plan, both)
        assert said.startswith("Stage stage: the deduplication by k and the deduplication by k need the rows of stream")
        assert "partitioned by different columns" in said
        assert len(routers(plan(lambda rows, one=one, both=both: both(rows, one, one)))) == 1


def test_equal_keys_may_have_different_texts(plan: Plan) -> None:
    """0.0 and -0.0 are one key of a deduplication, and two texts: they would be in two tasks."""
    by_text = lambda rows: rows.dropDuplicates(["x"]).select(F.col("x").cast("string").alias("t")).distinct()  # noqa: E731
    floating = lambda rows: by_text(rows.withColumn("x", F.col("n") * 1.5e0))  # noqa: E731
    assert "share no key" in refused(plan, floating)
    assert len(routers(plan(lambda rows: by_text(rows.withColumn("x", F.col("n") + 1))))) == 1


def test_a_python_function_is_not_asked_for_rows_that_a_table_takes_out(plan: Plan, spark: SparkSession) -> None:
    parity = F.udf(lambda n: n % 2, "int")
    table = spark.createDataFrame([("a", 1)], "name string, m int")
    kinds = {"inner": False, "left": True}
    for kind, is_accepted in kinds.items():
        odd = lambda rows, kind=kind: (  # noqa: E731
            rows.join(table, F.col("key") == F.col("name"), kind).select(parity("n").alias("odd")).distinct()
        )
        if is_accepted:
            assert len(routers(plan(odd))) == 1
        else:
            assert "no part of the key can be computed" in refused(plan, odd)


def test_an_initial_state_is_for_one_task(plan: Plan, spark: SparkSession) -> None:
    """Each task would begin with the whole of it, and its timers fire in all of them."""
    known = spark.createDataFrame([("a", 1)], "key string, m int").groupBy("key")
    machine = lambda rows: (  # noqa: E731
        rows.groupBy("key").transformWithState(Nothing(), "key string", "Append", "None", initialState=known)
    )
    assert "has an initial state, and each task would load all of it" in refused(plan, machine)
    alone = Application()
    alone.stage("a", output="out", tasks=1)(named(machine))
    assert routers(plan(alone)) == []


def test_the_message_says_why_a_key_cannot_be_followed(plan: Plan) -> None:
    """And does not advise what would be refused next."""
    said = refused(plan, lambda rows: rows.select(F.collate("key", "UTF8_LCASE").alias("k")).distinct())
    assert "a text with a collation as key" in said and "partition_by" not in said
    said = refused(plan, lambda rows: rows.select(F.rand().alias("k")).distinct())
    assert "not deterministic" in said and "partition_by" not in said


def test_rows_of_outer_joins_are_where_their_present_side_is(plan: Plan) -> None:
    """The key of a side that may be missing is null there, in several tasks; what both sides say holds for all."""

    def joined(kind: str, by: str) -> Any:
        near = F.expr("n = id AND at BETWEEN ts AND ts + INTERVAL 1 HOUR")
        return lambda rows, others: (
            rows.where("ts IS NOT NULL AND n IS NOT NULL").withWatermark("ts", "1 hour")
            .join(others.where("at IS NOT NULL").withWatermark("at", "1 hour"), near, kind)
            .select(F.expr(by).alias("k")).distinct()
        )  # fmt: skip

    assert routers(plan(joined("leftOuter", "n"), "a", "b")) == [("a", ("CAST(n AS BIGINT)",)), ("b", ("id",))]
    for kind, by in (("leftOuter", "id"), ("rightOuter", "n"), ("fullOuter", "n"), ("inner", "key")):
        said = refused(plan, joined(kind, by), "a", "b")
        assert "suits both" in said or "no part of the key can be computed" in said, kind
    assert routers(plan(joined("fullOuter", "coalesce(cast(n as bigint), id)"), "a", "b")) == [
        ("a", ("CAST(n AS BIGINT)",)),
        ("b", ("id",)),
    ]


def test_a_stream_that_is_named_twice_is_routed_twice(plan: Plan) -> None:
    twice = lambda rows, others: rows.alias("x").join(others.alias("y"), F.expr("x.n = y.n + 1")).select("x.n")  # noqa: E731
    assert routers(plan(twice, "a", "a")) == [("a", ("n",)), ("a", ("(n + 1)",))]


def test_tables_of_their_own_are_refused(plan: Plan, spark: SparkSession, tmp_path: Path) -> None:
    """Their files are listed when a query starts, and may be others at the next start."""
    spark.createDataFrame([("a", 1)], "key string, m int").write.parquet(str(tmp_path / "table"))
    table = str(tmp_path / "table")
    said = refused(plan, lambda rows: rows.join(spark.read.parquet(table), "key"))
    assert said.startswith("Stage stage reads a table or files of its own (LogicalRelation).")
    constant = spark.createDataFrame([("a", 1)], "key string, m int")
    assert routers(plan(lambda rows: rows.join(constant, "key"))) == []
    for once in (spark.read.parquet(table).localCheckpoint(), constant.localCheckpoint()):
        assert refused(plan, lambda rows, once=once: rows.join(once, "key")) == (
            "Stage stage reads a table that localCheckpoint or checkpoint has computed (LogicalRDD). Its plan no "
            "longer shows whether the rows come from files, which may be others after a hand-over. Remove the call, "
            "and put a small table into the code, with spark.createDataFrame."
        )
    constant.createOrReplaceTempView("constant")
    for found in (f"(SELECT m FROM parquet.`{table}`)", f"(SELECT 1 WHERE 1 = (SELECT max(m) FROM parquet.`{table}`))"):
        inside = spark.sql(f"SELECT * FROM constant WHERE m IN {found}")
        assert "reads a table or files of its own" in refused(
            plan, lambda rows, inside=inside: rows.join(inside, "key")
        )
        outside = lambda rows, found=found: spark.sql(f"SELECT * FROM {{rows}} WHERE n IN {found}", rows=rows)  # noqa: E731
        assert "reads a table or files of its own" in refused(plan, outside)


def test_a_name_that_is_taken(plan: Plan) -> None:
    application = Application()
    application.stage("b", output="stage-a")(lambda rows: rows)
    application.stage("a", output="out")(named(lambda rows: rows.dropDuplicates(["n"])))
    assert refused(plan, application) == (
        "The rows of stream 'a' have to be routed for stage stage, through a stream called 'stage-a'. "
        "The pipeline already has a stream of this name. Rename that one."
    )


def test_names_of_routed_streams_of_one_stage(plan: Plan) -> None:
    application = Application()
    application.stage("b", output="a-1")(lambda rows: rows.select("id"))

    def three(one: DataFrame, two: DataFrame, third: DataFrame) -> DataFrame:
        both = one.select("n").distinct().union(two.select("n").distinct())
        return both.union(third.select(F.col("id").cast("int")).distinct())

    application.stage("a", "a", "a-1", output="out")(named(three))
    assert "The pipeline already has a stream of this name" in refused(plan, application)


def test_the_number_of_partitions_of_a_routed_stream(plan: Plan) -> None:
    dedup = lambda rows: rows.dropDuplicates(["n"])  # noqa: E731
    stages: tuple[StagePlan, ...] = plan(dedup, more="[streams.stage-a]\npartitions = 2\n").plan.stages
    assert [(stage.name, stage.tasks, stage.partitions) for stage in stages] == [("stage-a", 4, 2), ("stage", 2, 2)]


def test_routed_streams_that_meet_have_as_many_partitions(plan: Plan) -> None:
    join = lambda rows, others: rows.join(others, F.col("n") == F.col("id"))  # noqa: E731
    assert refused(plan, join, "a", "b", more="[streams.stage-a]\npartitions = 2\n") == (
        "streams.stage-a.partitions is 2, and streams.stage-b.partitions is 4. Their rows meet in stage stage: write "
        "the same for both."
    )
    both = "[streams.stage-a]\npartitions = 2\n[streams.stage-b]\npartitions = 2\n"
    assert [stage.partitions for stage in plan(join, "a", "b", more=both).plan.stages] == [2, 2, 2]
    said = refused(plan, join, "a", "b", a='key = "n"', more="[streams.stage-b]\npartitions = 2\n")
    assert said == (
        "streams.stage-b.partitions is 2, but its rows meet those of a stream with 4 partitions in stage stage. "
        "Write 4, or remove the line."
    )


def test_routed_streams_that_meet_in_one_of_two_operators(plan: Plan) -> None:
    """The first operator reads one of them alone, and both operators share its route."""

    def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
        keys = rows.select("key").dropDuplicates()
        return keys.union(rows.join(others, F.col("key") == F.col("name")).select("key"))

    more = "[streams.stage-a]\npartitions = 3\n[streams.stage-b]\npartitions = 2\n"
    assert "Their rows meet in stage stage: write the same for both." in refused(plan, stage, "a", "b", more=more)


@pytest.mark.long  # test_pipeline has odd names
def test_a_key_with_a_backtick_in_its_name(fleet: MakeFleet) -> None:
    """And variants that are null: both failed at the first batch."""
    application = Application()

    @application.stage("some", output="between", partition_by=["a`b"])
    def between(rows: DataFrame) -> DataFrame:
        texts = F.when(F.col("n") > 3, F.lit('{"n": 1}'))
        return rows.select(F.col("key").alias("a`b"), F.parse_json(texts).alias("v"))

    @application.stage("between", output="out")
    def out(rows: DataFrame) -> DataFrame:
        return rows.select("`a``b`", F.variant_get("v", "$.n", "int").alias("n"))

    run = fleet(application, FEW % ("some", "", "unused", "") + "[streams.between]\npartitions = 2\n")
    assert_equal(run, [("some", rows_of(10)), ("some", rows_of(10))])

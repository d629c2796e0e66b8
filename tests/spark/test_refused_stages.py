"""What a stage may not be, and the sentence that its author reads. One test per refusal."""

import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from samza_azure.application import Application
from samza_azure.errors import Mistakes, PipelineRefused, in_full
from samza_azure.extras import PANDAS, SPARK, to_install
from samza_azure.messages import TaskKind
from samza_azure.pipeline.analysed import Pipeline, Term
from samza_azure.spark.jvm.call_sites import CallSites
from samza_azure.spark.jvm.catalyst import analysed
from samza_azure.spark.pipeline.bounds import DAY_US
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .task_driver import config_of

STREAMS = """
[streams.flights]
partitions = 2
schema = "carrier string, ts timestamp, landed timestamp, delay double"
event_time = "ts"
[streams.plain]
partitions = 2
schema = "carrier string, ts timestamp"
[streams.wide]
partitions = 3
schema = "carrier string, ts timestamp"
"""

Analyse = Callable[..., Pipeline]


def first(*cases: Any, each: int = 0) -> list[Any]:
    """The first one and each n-th are for `make test`: an analysis takes a third of a second."""
    often = {0, *(range(0, len(cases), each) if each else ())}
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.long] * (place not in often)) for place, case in enumerate(several)]


@pytest.fixture
def analyse(spark: SparkSession, tmp_path: Path) -> Analyse:
    """Analyses a pipeline of one stage, `stage`, which writes the stream `out`."""

    def run(function: Callable[..., Any], *inputs: str, streams: str = "", **options: Any) -> Pipeline:
        application = Application()
        function.__name__ = "stage"
        application.stage(*(inputs or ("flights",)), output="out", **options)(function)
        return analyse_pipeline(spark, application, config_of(tmp_path, STREAMS + streams), tmp_path / "analysis")

    return run


@pytest.fixture
def refusal(analyse: Analyse) -> Callable[..., str]:
    """The message with which a stage is refused."""

    def run(function: Callable[..., Any], *inputs: str, **options: Any) -> str:
        with pytest.raises(PipelineRefused) as caught:
            analyse(function, *inputs, **options)
        return str(caught.value)

    return run


Refusal = Callable[..., str]


def of_the_stage(pipeline: Pipeline) -> list[str]:
    """The warnings, but those of the job file: it has streams that one stage alone does not read."""
    return [warning for warning in pipeline.plan.warnings if "has no effect" not in warning]


def test_nothing_returned(refusal: Refusal) -> None:
    assert refusal(lambda rows: None) == "Stage stage returns NoneType. Return a DataFrame."


def test_a_dataframe_of_another_library(refusal: Refusal) -> None:
    said = refusal(lambda rows: pd.DataFrame({"n": [1]}))
    assert said == "Stage stage returns a DataFrame of pandas.core.frame. Return one of pyspark.sql."


def test_a_dataframe_that_does_not_stream(refusal: Refusal, spark: SparkSession) -> None:
    assert refusal(lambda rows: spark.range(3)) == (
        "Stage stage returns a DataFrame that is not streaming. "
        "Return one that is built from the DataFrames that the function gets."
    )


def test_a_source_of_its_own_instead_of_the_input(refusal: Refusal, spark: SparkSession) -> None:
    assert refusal(lambda rows: spark.readStream.format("rate").load()).startswith(
        "Stage stage reads a stream of its own. Read only the DataFrames that the function gets"
    )


def test_a_source_of_its_own_beside_the_input(refusal: Refusal, spark: SparkSession, tmp_path: Path) -> None:
    assert refusal(lambda rows: rows.union(spark.readStream.schema(rows.schema).json(str(tmp_path)))).startswith(
        "Stage stage reads a stream of its own."
    )


def test_an_input_that_is_not_used(refusal: Refusal) -> None:
    assert refusal(lambda rows, others: rows, "flights", "plain") == (
        "Stage stage does not use its input 'plain'. Use it, or remove it from @app.stage."
    )


def test_a_query_of_its_own(refusal: Refusal, spark: SparkSession, tmp_path: Path) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "own")).start()
        return rows

    assert refusal(stage) == (
        "Stage stage starts a query. Return the DataFrame instead; samza-azure starts the query. Its rows go to stream "
        "'out'. [streams.out.table] or [streams.out.files] in the job file delivers them; to another sink, a program "
        "of yours writes them with a Reader."
    )
    assert refusal(lambda rows: rows.writeStream.format("console")).startswith(
        "Stage stage returns a DataStreamWriter. Return the DataFrame, without writeStream. Its rows go to"
    )
    assert spark.streams.active == []


def test_a_changed_setting(refusal: Refusal, spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")  # that of the query that was started last

    def stage(rows: DataFrame) -> DataFrame:
        spark.conf.set("spark.sql.shuffle.partitions", f"{before}1")
        return rows

    assert refusal(stage) == (
        "Stage stage changes spark.sql.shuffle.partitions, which all stages share. Set it in the job file instead."
    )
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_an_action(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.count()).startswith(
        "Stage stage cannot be analysed: count() was called, but a stage must not run an action (count, collect, show,"
    )


@pytest.mark.parametrize("method", ["count", "collect", "show", "toPandas", "first", "isEmpty", "cache"])
def test_each_way_of_running_the_rows_is_named(refusal: Refusal, method: str) -> None:
    said = refusal(lambda rows: getattr(rows, method)())
    assert f"{method}() was called, but a stage must not run an action" in said


def test_writing_is_an_action_too(refusal: Refusal) -> None:
    assert "write() was called, but a stage must not run an action" in refusal(
        lambda rows: rows.write.parquet("/nowhere")
    )


def test_a_misspelt_column_is_reported_with_its_line_and_without_the_plan(analyse: Analyse) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.where("carier = 'UA'")

    with pytest.raises(PipelineRefused) as caught:
        analyse(stage)
    said, place = in_full(caught.value).split("\n")
    assert said.startswith(
        "Stage stage cannot be analysed: A column, variable, or function parameter with name `carier`"
    )
    assert "Did you mean one of the following? [`carrier`, " in said and said.endswith("`].")
    assert place.startswith(f"  {__file__}, line ") and place.endswith(
        ": return rows.where(\"carier = 'UA'\") (stage stage)"
    )


def test_a_misspelt_attribute_and_a_name_that_is_not_there(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.where(rows.carier == "UA")) == (
        "Stage stage cannot be analysed: one of its DataFrames has no column 'carier'. Did you mean 'carrier'? "
        "The columns are carrier, ts, landed, delay."
    )
    assert refusal(lambda rows: rows.where(nowhere > 3)) == (  # type: ignore[name-defined]  # noqa: F821
        "Stage stage cannot be analysed: NameError: name 'nowhere' is not defined"
    )


def test_a_refused_plan_names_the_stage_where_it_is_defined(analyse: Analyse) -> None:
    with pytest.raises(PipelineRefused) as caught:
        analyse(lambda rows: rows.sort("ts"))
    assert f"{__file__}, line " in in_full(caught.value) and in_full(caught.value).endswith("(stage stage)")


def test_all_mistakes_of_a_pipeline_are_told_at_once_each_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    """Also those of a stage that reads a refused one; what follows from another mistake is not told."""
    application = Application()

    @application.stage("flights", output="counted")
    def counted(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("landed", "1 hour")
        return (
            timed
            .groupBy("carrier")
            .count()
            .sort("count")
        )  # fmt: skip

    @application.stage("counted", output="out", partition_by="carier")
    def rare(rows: DataFrame) -> DataFrame:
        return rows.exceptAll(rows.where("count > 3"))

    with pytest.raises(Mistakes) as caught:
        analyse_pipeline(spark, application, config_of(tmp_path, STREAMS), tmp_path / "analysis")
    first, second = counted.__code__.co_firstlineno, rare.__code__.co_firstlineno
    found = {said.partition(",")[0].partition(". ")[0]: place.partition(", ")[2] for said, place in caught.value.found}
    assert found == {
        "Stage counted: no group of the aggregation by carrier is ever complete": (
            f"line {first + 6}: .count() (stage counted)"
        ),
        "Stage counted cannot run as a stream: Sorting is not supported on a stream": (
            f'line {first + 7}: .sort("count") (stage counted)'
        ),
        "Stage counted sets a watermark on column landed": (
            f'line {first + 2}: timed = rows.withWatermark("landed", "1 hour") (stage counted)'
        ),
        "Stage rare cannot run as a stream: Except on a streaming DataFrame/Dataset on the right is not supported": (
            f'line {second + 2}: return rows.exceptAll(rows.where("count > 3")) (stage rare)'
        ),
        "Stage rare has partition_by 'carier'": f"line {second} (stage rare)",
    }
    assert str(caught.value).startswith("The pipeline has 5 mistakes:\n  Stage counted: no group")


def test_all_mistakes_of_each_stage_are_told_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also several in one line, of one operator, of the call itself, and of the stage as a whole."""
    application = Application()

    @application.stage("flights", "plain", output="grouped")
    def grouped(rows: DataFrame, _: DataFrame) -> DataFrame:
        spark.conf.set("spark.sql.shuffle.partitions", f"{spark.conf.get('spark.sql.shuffle.partitions')}1")
        rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "own")).start()
        both = rows.groupBy("carrier").count().union(rows.groupBy(F.lower("carrier")).count())
        return both.select("*", F.rand()).selectExpr("*", "INTERVAL 1 MONTH AS month", "INTERVAL 1 YEAR AS year")

    @application.stage("flights", output="machines", partition_by=["whom", "count"])
    def machines(rows: DataFrame) -> DataFrame:
        by_delay = rows.groupBy("delay")
        return by_delay.transformWithState(Many(), "carrier string", "append", "EventTime")

    with pytest.raises(Mistakes) as caught:
        analyse_pipeline(spark, application, config_of(tmp_path, STREAMS), tmp_path / "analysis")
    first, second = grouped.__code__.co_firstlineno, machines.__code__.co_firstlineno
    expected = [
        ("Stage grouped changes spark.sql.shuffle.partitions", first),
        ("Stage grouped starts a query.", first),
        ("Stage grouped does not use its input 'plain'.", first),
        ("Stage grouped: no group of the aggregation by carrier is ever complete", first + 4),
        ("Stage grouped: no group of the aggregation by lower(carrier) is ever complete", first + 4),
        ("Stage grouped: column month is a year-month interval", first),
        ("Stage grouped: column year is a year-month interval", first),
        ("Stage grouped: Spark calls a column rand(", first),
        ("Stage machines: Spark calls handleInputRows of Many and cannot", second + 3),
        ("Stage machines: Spark calls handleExpiredTimer of Many by the names", second + 3),
        ("Stage machines: the state seen of the state machine by delay has ttlDurationMs", second + 3),
        ("Stage machines: the state machine by delay would have one group for 0.0", second + 3),
        ("Stage machines has partition_by 'whom'", second),
        ("Stage machines has partition_by 'count'", second),
        ("Stage machines: no watermark reaches the state machine by delay", second + 3),
    ]
    for (said, place), (begins, line) in zip(caught.value.found, expected, strict=True):
        assert said.startswith(begins) and re.search(rf", line {line}\b.* \(stage \w+\)$", place), (said, place)


LATE, HOUR = '.withWatermark("ts", "1 hour")', '.groupBy(F.window("ts", "1 hour"))'
FIRST = f'{LATE}.dropDuplicatesWithinWatermark(["carrier"])'
NUMBERED = "*, row_number() OVER (PARTITION BY carrier ORDER BY ts) AS number"
#: The text behind `rows`, the line that is advised, and what the user's own code puts behind it.
ADVISED = {
    "an action": (".count()", f"{LATE}{HOUR}.count()", ""),
    "a sort": ('.sort("delay")', f'{LATE}{HOUR}.agg(F.max_by("carrier", "delay"))', ""),
    "a sort by an expression": (
        '.sort(F.expr("- delay"))', f'{LATE}{HOUR}.agg(F.max_by("carrier", F.expr("(- delay)")))', ""
    ),
    "a sort of the only column": ('.select("ts").sort("ts")', f'{LATE}{HOUR}.agg(F.max("ts"))', ""),
    "a row number": (f'.selectExpr(*"{NUMBERED}".split(", ", 1))', FIRST, ""),
    "distinct values": (f'{LATE}{HOUR}.agg(F.count_distinct("carrier"))', 'F.approx_count_distinct("carrier")', ""),
    "an aggregation": (
        '.groupBy("carrier").count()', f'{LATE}.groupBy(F.window("ts", "1 day"), "carrier")', ".count()"
    ),
    "an aggregation by an expression": (
        '.groupBy(F.lower("carrier")).count()',
        f'{LATE}.groupBy(F.window("ts", "1 day"), F.expr("lower(carrier)"))',
        ".count()",
    ),
    "an aggregation by another name": (
        '.withColumnRenamed("ts", "at").groupBy("carrier").count()',
        '.withWatermark("at", "1 hour").groupBy(F.window("at", "1 day"), "carrier")',
        ".count()",
    ),
    "an aggregation by a name that is no word": (
        '.withColumnRenamed("ts", "event `time").groupBy("carrier").count()',
        '.withWatermark("`event ``time`", "1 hour").groupBy(F.window("`event ``time`", "1 day"), "carrier")',
        ".count()",
    ),
    "a row number by names that are no words": (
        ('.withColumnRenamed("ts", "event.time").withColumnRenamed("carrier", "by whom")'
        ".selectExpr('*', 'row_number() OVER (PARTITION BY `by whom` ORDER BY `event.time`) AS number')"),
        ('.withWatermark("`event.time`", "1 hour")'
        '.dropDuplicatesWithinWatermark(["by whom"])'),
        "",
    ),
    "sessions without a watermark": (
        '.groupBy("carrier", F.session_window("ts", "5 minutes")).count()',
        f"Set a watermark before it, {LATE}. Or",
        f'{LATE}.groupBy("carrier", F.session_window("ts", "5 minutes")).count()',
    ),
    "windows without a watermark": (
        '.groupBy(F.window("ts", "1 hour"), "carrier").count()',
        f"Set a watermark before it, {LATE}. Or",
        f'{LATE}.groupBy(F.window("ts", "1 hour"), "carrier").count()',
    ),
    "windows that got a name": (
        '.select(F.window("ts", "1 hour").alias("w"), "carrier").groupBy("w").count()',
        f"Set a watermark before it, {LATE}. Or",
        f'{LATE}.select(F.window("ts", "1 hour").alias("w"), "carrier").groupBy("w").count()',
    ),
    "totals of windows": (
        '.cube(F.window("ts", "1 hour"), "carrier").count()',
        f"Set a watermark before it, {LATE}. Or",
        f'{LATE}.groupBy(F.window("ts", "1 hour"), "carrier").count()',
    ),
    "totals": (
        '.cube("carrier", "delay").count()',
        (f'{LATE}.withColumn("window", F.window("ts", "1 day")).groupingSets([["window", "carrier", "delay"], '
        '["window", "carrier"], ["window", "delay"], ["window"]], "window", "carrier", "delay")'),
        ".count()",
    ),
    "a pivot by windows that got a name": (
        '.select(F.window("ts", "1 hour").alias("w"), "carrier").groupBy("w").pivot("carrier", ["AA"]).count()',
        f"Set a watermark before it, {LATE}. Or",
        f'{LATE}.select(F.window("ts", "1 hour").alias("w"), "carrier").groupBy("w").pivot("carrier", ["AA"]).count()',
    ),
    "windows of another time that got a name": (
        '.select(F.window("landed", "1 hour").alias("w"), "carrier").groupBy("w", "carrier").count()',
        f'Group by a window of the event time instead, {LATE}.groupBy(F.window("ts", "1 hour"), "carrier").',
        f'{LATE}.groupBy(F.window("ts", "1 hour"), "carrier").count()',
    ),
    "windows of another time beside a key that got a name": (
        '.select(F.window("landed", "1 hour").alias("w"), F.lower("carrier").alias("by")).groupBy("w", "by").count()',
        "Group by a window of an event time as well. Keep flights.ts up to there. Or use",
        (f'.select("ts", F.lower("carrier").alias("by")){LATE}.groupBy(F.window("ts", "1 day"), "by").count()'),
    ),
    "a truncated time": (
        '.withWatermark("ts", "1 hour").groupBy(F.date_trunc("hour", "ts"), "carrier").count()',
        ('Group by a window of the event time as well, .groupBy(F.window("ts", "1 day"), '
        """F.expr("date_trunc('hour', ts)"), "carrier")."""),
        f"""{LATE}.groupBy(F.window("ts", "1 day"), F.expr("date_trunc('hour', ts)"), "carrier").count()""",
    ),
    "a sort of groups": (
        f'{LATE}.groupBy(F.window("ts", "1 hour"), "carrier").count().orderBy("window", F.desc("count"))',
        '.groupBy(F.window("window", "1 hour")).agg(F.max_by("carrier", "count"))',
        "",
    ),
    "a description": (
        '.select("ts", "delay", "carrier").describe()',
        ("describe and summary are aggregates over all rows. Compute them by windows, "
        f'{LATE}.groupBy(F.window("ts", "1 day")).agg(F.count("delay"), F.mean("delay"), F.stddev("delay"), '
        'F.min("delay"), F.max("delay")).'),
        f'{LATE}.groupBy(F.window("ts", "1 day")).agg(F.count("delay"), F.mean("delay"), F.stddev("delay"))',
    ),
    "all rows in a pivot": (
        f'{LATE}{HOUR}.pivot("carrier", ["AA"]).agg(F.count("*"))',
        "Write F.count(F.lit(1)) instead.",
        f'{LATE}{HOUR}.pivot("carrier", ["AA"]).agg(F.count(F.lit(1)))',
    ),
    "windows of another time": (
        '.groupBy(F.window("landed", "1 hour"), "carrier").count()',
        f'Group by a window of the event time instead, {LATE}.groupBy(F.window("ts", "1 hour"), "carrier").',
        f'{LATE}.groupBy(F.window("ts", "1 hour"), "carrier").count()',
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "advised", "more"),
    first(*ADVISED.values(), each=3),
    ids=ADVISED.keys(),
)
def test_the_advised_line_has_the_columns_of_the_stage_and_can_be_pasted(
    refusal: Refusal, analyse: Analyse, wrong: str, advised: str, more: str
) -> None:
    def stage(code: str) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: eval(f"rows{code}", {"rows": rows, "F": F})

    assert advised in refusal(stage(wrong))
    renamed = "".join(re.findall(r"\.withColumnRenamed\([^)]*\)", wrong))
    pasted = f"{LATE}{HOUR}.agg({advised})" if advised.startswith("F.") else advised + more
    if not advised.startswith((".", "F.")):  # a sentence
        pasted = more
    if "orderBy" in wrong:
        pasted = wrong.partition(".orderBy")[0] + advised
    analyse(stage(renamed + pasted))


def test_windows_of_a_computed_time_are_divided_and_not_replaced(
    refusal: Refusal, analyse: Analyse, spark: SparkSession
) -> None:
    """A day of a zone became a day of UTC. The parts, added up, are the days."""

    def local_days(rows: DataFrame) -> DataFrame:
        day = F.window(F.from_utc_timestamp("ts", "Europe/Berlin"), "1 day")
        return rows.withWatermark("ts", "1 hour").groupBy(day, "carrier").count()

    said = refusal(local_days)
    assert "would have other bounds than one of from_utc_timestamp(ts, 'Europe/Berlin'). Divide the groups" in said
    line = re.search(r"where the output is read: (\..*)\. Or use output mode update", said)
    assert line is not None, said

    def parts(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("ts", "1 hour")
        return eval(f"timed{line[1]}.count()", {"timed": timed, "F": F})

    analyse(parts)
    analyse(local_days, output_mode="update")
    times = [datetime(2026, 3, 28, hour, 30) for hour in (0, 21, 22, 23)] + [datetime(2026, 3, 29, 21, 59)]  # noqa: DTZ001
    rows = spark.createDataFrame([("AA", time) for time in times], "carrier string, ts timestamp")
    days = parts(rows).groupBy("of", "carrier").agg(F.sum("count"))
    assert sorted(map(tuple, days.collect())) == sorted(map(tuple, local_days(rows).collect()))


def test_windows_of_a_window_of_an_earlier_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The advised line, in the earlier stage, and the time that it makes."""

    def pipeline(line: str, time: str) -> Pipeline:
        application = Application()

        @application.stage("flights", output="hourly", partition_by="carrier")
        def hourly(rows: DataFrame) -> DataFrame:
            counted = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "carrier").count()
            return eval(f"counted{line}", {"counted": counted, "F": F})

        @application.stage("hourly", output="daily")
        def daily(rows: DataFrame) -> DataFrame:
            return rows.withWatermark(time, "1 hour").groupBy(F.window(time, "1 day"), "carrier").agg(F.sum("count"))

        config = config_of(tmp_path, f'{STREAMS}[streams.hourly]\nevent_time = "{time}"\n')
        return analyse_pipeline(spark, application, config, tmp_path / "analysis")

    with pytest.raises(PipelineRefused, match="A window of an earlier stage is a column") as caught:
        pipeline("", "window")
    found = re.search(r'write a time, (\..*), declare event_time = "(\w+)"', str(caught.value))
    assert found is not None
    pipeline(found[1], found[2])


def test_a_lookup_is_not_only_advised_a_time(refusal: Refusal, analyse: Analyse) -> None:
    def looked_up(how: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        return lambda rows, names: rows.join(names.select("carrier"), "carrier", how)

    said = refusal(looked_up("left"), "flights", "plain")
    assert "If one side is a lookup, whose rows hold for all time to come, use an inner join" in said
    analyse(looked_up("inner"), "flights", "plain")


def test_a_join_by_names_is_advised_a_whole_condition(analyse: Analyse, refusal: Refusal) -> None:
    """Nothing can be added to names of columns."""
    other = '[streams.other]\npartitions = 2\nschema = "carrier string, at timestamp"\nevent_time = "at"\n'

    def joined(written: str, how: str = "inner") -> Callable[[DataFrame, DataFrame], DataFrame]:
        def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
            sides = rows.withWatermark("ts", "1 hour"), others.withWatermark("at", "1 hour")
            return eval(f"{written}", {"rows": sides[0], "others": sides[1], "F": F, "how": how})

        return stage

    said = "\n".join(analyse(joined('rows.join(others, "carrier")'), "flights", "other", streams=other).plan.warnings)
    said += refusal(joined('rows.join(others, "carrier", "left")'), "flights", "other", streams=other)
    found = re.findall(
        r'(F\.expr\("[^"]*"\)), with \.alias\("(\w+)"\) and \.alias\("(\w+)"\) on its sides; (\.drop\(.*?"\)\)) behind',
        said,
    )
    assert len(found) == 3, said
    for condition, one, another, drop in found:
        sides = {"flights": 'rows.alias("flights")', "other": 'others.alias("other")'}
        how = "left" if "BETWEEN" in condition else "inner"
        pasted = f"{sides[one]}.join({sides[another]}, {condition}, how){drop}"
        analyse(joined(pasted, how), "flights", "other", streams=other)


class Machine(StatefulProcessor):
    """A state machine as Spark calls it."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        yield from rows

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N802, N803
        self._seen.clear()
        yield from ()

    def close(self) -> None:
        pass


class Misnamed(Machine):
    """Spark gives a timer by its name."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, info: Any) -> Any:  # type: ignore[override]  # noqa: N802, N803
        yield from ()


class Untimed(Machine):
    """The rows come with times."""

    def handleInputRows(self, key: Any, rows: Any) -> Any:  # type: ignore[override]  # noqa: N802
        yield from rows


class Many(Untimed, Misnamed):  # type: ignore[misc]  # as it should be wrong
    """Both, and its state expires, too."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n int", 1000)


class Forgetting(Machine):
    """Its state expires by the clock."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getMapState("seen", "k int", "n int", 1000)


def by_machine(machine: type[Machine], mode: str) -> Callable[[DataFrame], DataFrame]:
    """A stage that runs a state machine for each carrier."""
    return lambda rows: (
        rows.withWatermark("ts", "1 hour")
        .groupBy("carrier")
        .transformWithState(machine(), "carrier string", "append", mode)
    )


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Misnamed, "def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):"),
        (Untimed, "def handleInputRows(self, key, rows, timerValues):"),
    ],
)
def test_a_state_machine_that_spark_cannot_call(
    refusal: Refusal, analyse: Analyse, machine: type[Machine], said: str
) -> None:
    assert refusal(by_machine(machine, "EventTime")).endswith(f"Write: {said}")
    name = said.split("(", maxsplit=1)[0].removeprefix("def ")
    assert f"{name}{inspect.signature(getattr(Machine, name))}".replace(": Any", "").startswith(said[4:-1])
    analyse(by_machine(Machine, "EventTime"))


@pytest.mark.parametrize("mode", ["EventTime", "None", "ProcessingTime"])
def test_state_that_expires_by_the_clock(refusal: Refusal, mode: str) -> None:
    """Also where the mode that was advised has been pasted, with which Spark fails at the first batch."""
    assert "the state seen of the state machine by carrier has ttlDurationMs" in refusal(by_machine(Forgetting, mode))


@pytest.mark.parametrize("kind", ["array<int>", "struct<m: map<string, int>>"])
def test_state_with_an_array_or_a_map(refusal: Refusal, analyse: Analyse, kind: str) -> None:
    def stage(state: str) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: rows.groupBy("carrier").applyInPandasWithState(
            lambda key, rows, state: rows, "n int", f"count int, {state}", "append", GroupStateTimeout.NoTimeout
        )

    said = re.search(r'as a text, "([^"]*)"', refusal(stage(f"seen {kind}")))
    assert said is not None and said[1] == "seen string"
    analyse(stage(said[1]))


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (lambda rows: rows.select(F.udf(lambda a, b: 1, "int")("carrier")), "with a column: missing a required"),
        (lambda rows: rows.mapInPandas(lambda: (), "n int"), "with (batches): too many positional"),
        (
            lambda rows: rows.groupBy("carrier").applyInPandasWithState(
                lambda key, rows: rows, "n int", "n int", "append", GroupStateTimeout.NoTimeout
            ),
            "with (key, rows, state): too many positional",
        ),
    ],
)
def test_a_function_that_spark_cannot_call(
    refusal: Refusal, stage: Callable[[DataFrame], DataFrame], said: str
) -> None:
    assert f"Spark cannot call <lambda> {said}" in refusal(stage)


def test_a_function_of_an_iterator_gets_all_columns_in_it(analyse: Analyse) -> None:
    def added(columns: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        yield from (one + other for one, other in columns)

    plus = F.pandas_udf(added, "double")  # type: ignore[call-overload]
    analyse(lambda rows: rows.select(plus("delay", "delay").alias("twice")))


def test_an_advised_line_sets_no_second_watermark(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows.withWatermark("ts", "1 hour").sort("delay"))
    assert f'is an aggregate, {HOUR}.agg(F.max_by("carrier", "delay")).' in said


def test_without_an_event_time_the_line_for_the_job_file_comes_first(refusal: Refusal, analyse: Analyse) -> None:
    lines = set()
    for function in (
        lambda rows: rows.groupBy("carrier").count(),
        lambda rows: rows.withColumn("later", F.greatest("ts", "ts")).withWatermark("later", "1 hour"),
    ):
        lines.add(re.search(r'under \[streams\.plain\]: (event_time = "\w+")\.', refusal(function, "plain"))[1])  # type: ignore[index]
    (line,) = lines
    dropped = refusal(lambda rows: rows.select("carrier").groupBy("carrier").count())
    assert "Group by a window of an event time as well. Keep flights.ts up to there. Or use output mode" in dropped
    declared = f'[streams.bare]\npartitions = 2\nschema = "carrier string, ts timestamp"\n{line}\n'
    assert '"ts", "1 day"), "carrier")' in refusal(
        lambda rows: rows.groupBy("carrier").count(), "bare", streams=declared
    )
    said = refusal(
        lambda rows: rows.select("ts"), "plain", streams='[streams.out]\nevent_time = "ts"\nfrontier_lag = "1 s"\n'
    )
    assert said.endswith(f"Add to the job file, under [streams.plain]: {line}.")
    timeless = '[streams.timeless]\npartitions = 2\nschema = "carrier string"\n'
    assert "has a column of type timestamp or date: add one" in refusal(
        lambda rows: rows.groupBy("carrier").count(), "timeless", streams=timeless
    )


def test_the_advised_condition_of_a_join_can_be_pasted(refusal: Refusal, analyse: Analyse) -> None:
    """With the names of the stage, or aliases that tell the inputs apart. Without event times, these come first."""

    def joined(condition: str, *aliases: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
            sides = [
                each.where("ts IS NOT NULL").withWatermark("ts", "1 hour").alias(alias)
                for each, alias in zip((rows.drop("landed"), others), aliases, strict=True)
            ]
            return sides[0].join(sides[1], F.expr(condition), "left").select(f"{aliases[0]}.ts")

        return stage

    other = '[streams.other]\npartitions = 2\nschema = "carrier string, ts timestamp"\nevent_time = "ts"\n'
    said = refusal(joined("x.carrier = y.carrier", "x", "y"), "flights", "other", streams=other)
    line = re.search(r'F\.expr\("([^"]*)"\)', said)
    assert line is not None and line[1].endswith("AND y.ts BETWEEN x.ts AND x.ts + INTERVAL 1 HOUR"), said
    analyse(joined(line[1], "x", "y"), "flights", "other", streams=other)

    def by_name(rows: DataFrame, others: DataFrame) -> DataFrame:
        sides = [each.where("ts IS NOT NULL").withWatermark("ts", "1 hour") for each in (rows.drop("landed"), others)]
        return sides[0].join(sides[1], "carrier", "left")

    hyphen = other.replace("streams.other", "streams.an-other")
    said = refusal(by_name, "flights", "an-other", streams=hyphen)
    names, line = re.findall(r'\.alias\("([^"]*)"\)', said), re.search(r'F\.expr\("([^"]*)"\)', said)
    assert names == ["flights", "an-other"] and line is not None, said
    analyse(joined(line[1], *names), "flights", "an-other", streams=hyphen)

    def timeless(rows: DataFrame, others: DataFrame) -> DataFrame:
        return rows.join(others.select(F.col("carrier").alias("who")), F.expr("carrier = who"), "left")

    said = refusal(timeless, "flights", "plain")
    assert 'Add to the job file, under [streams.plain]: event_time = "ts". If one side is a lookup' in said


def test_a_decorator_is_advised_as_it_would_be_written() -> None:
    def stage(*rows: DataFrame) -> DataFrame:
        return rows[0]

    application = Application()
    application.stage("a", "b-c", output="d", partition_by=["x", "y"], tasks=2)(stage)
    (written,) = application.stages
    application.stages.clear()
    eval(written.decorator().removeprefix("@"), {"app": application})(stage)
    assert application.stages == [written]
    handler = replace(written, inputs=("d",), kind=TaskKind.HANDLER, max_concurrency=3, partition_by=("x",))
    assert handler.decorator(tasks=1) == '@app.task("d", output="d", partition_by="x", tasks=1, max_concurrency=3)'
    assert replace(handler, name="d").decorator(tasks=None) == '@app.task("d", partition_by="x", max_concurrency=3)'


def test_the_advised_frontier_lag_can_be_pasted(refusal: Refusal, analyse: Analyse) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.select("carrier", F.expr("coalesce(landed, ts) AS ts"))

    said = refusal(stage, streams='[streams.out]\nevent_time = "ts"\n')
    line = re.search(r'frontier_lag = "[^"]*"', said)
    assert line is not None
    analyse(stage, streams=f'[streams.out]\nevent_time = "ts"\n{line[0]}\n')


def test_the_advised_watermark_can_be_pasted(refusal: Refusal, analyse: Analyse) -> None:
    def stage(delay: str) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: (
            rows.select(F.expr("ts - INTERVAL 90 MINUTES AS ts"))
            .withWatermark("ts", delay)
            .groupBy(F.window("ts", "1 hour"))
            .count()
        )

    advised = re.search(r'withWatermark\("ts", "([^"]*)"\)', refusal(stage("10 minutes"), tasks=1))
    assert advised is not None and advised[1] == "90 minutes"
    analyse(stage(advised[1]), tasks=1)


def test_a_section_of_an_unused_stream_is_a_warning_of_the_plan(analyse: Analyse) -> None:
    plan = analyse(lambda rows: rows, streams="[streams.fligths]\npartitions = 2\n").plan
    assert "[streams.fligths] has no effect: no stage reads or writes it. Did you mean 'flights'?" in plan.warnings


def test_an_exception(refusal: Refusal) -> None:
    assert refusal(lambda rows: 1 / 0) == "Stage stage cannot be analysed: ZeroDivisionError: division by zero"


def test_an_error_of_spark_does_not_show_how_we_number_lines(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows.withWatermark("carrier", "1 hour"))
    assert said.endswith('The event time `carrier` has the invalid type "STRING", but expected "TIMESTAMP".'), said


def test_methods_that_a_stage_adds_to_dataframes_stay(analyse: Analyse, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a module of helpers does that is imported where it is needed. A stage is called more than once."""
    is_imported = list[bool]()
    monkeypatch.setattr(ClassicDataFrame, "distinct", ClassicDataFrame.distinct)  # put back in the end

    def helped(rows: DataFrame) -> DataFrame:
        if not is_imported:
            is_imported.append(True)
            monkeypatch.setattr(ClassicDataFrame, "only_late", lambda self: self.where("delay > 0"), raising=False)
            monkeypatch.setattr(ClassicDataFrame, "distinct", lambda self: self)
        return rows.only_late().distinct()  # type: ignore[operator]

    analyse(helped)


def test_a_dataframe_that_another_stage_has_made_has_its_line(spark: SparkSession) -> None:
    with CallSites(spark).noted():
        kept = spark.range(3).where("id > 1")
    assert 'kept = spark.range(3).where("id > 1")' in CallSites(spark).of(analysed(kept))


def test_a_stage_that_spark_refuses_at_the_start_of_the_query_is_refused_earlier(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.sort("ts")).startswith(
        "Stage stage cannot run as a stream: Sorting is not supported on streaming DataFrames/Datasets"
    )


def test_complete_output_mode() -> None:
    with pytest.raises(
        PipelineRefused, match="Use 'append' or 'update': with any other mode each batch would contain the whole"
    ):
        Application().stage("flights", output="out", output_mode="complete")(lambda rows: rows)  # type: ignore[call-overload]


def test_a_timeout_of_processing_time_beside_another_operator(refusal: Refusal) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return (
            rows.dropDuplicates(["carrier"])
            .groupBy("carrier")
            .applyInPandasWithState(
                lambda key, frames, state: iter(()),
                "n long",
                "n long",
                "append",
                GroupStateTimeout.ProcessingTimeTimeout,
            )
        )

    assert refusal(stage) == (
        "Stage stage: the state per group by carrier goes by processing time, and the stage has a deduplication by "
        "carrier, too. Put one of them into a stage of its own."
    )


def test_a_timeout_behind_an_operator_that_puts_out_rows_late(refusal: Refusal) -> None:
    """In a drain no time is later than the watermark. Seed 7122215 of the fuzzer, its stage on one task."""

    def stage(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("ts", "3 hours").where("ts IS NOT NULL")
        ours, theirs = timed.select("carrier", "ts"), timed.selectExpr("carrier AS other", "ts AS at")
        pairs = ours.join(theirs, F.expr("carrier = other AND at BETWEEN ts AND ts + INTERVAL 2 HOURS"), "left")
        return (
            pairs.select("carrier", "ts")
            .groupBy("carrier")
            .applyInPandasWithState(
                lambda key, frames, state: iter(()), "n long", "n long", "append", GroupStateTimeout.EventTimeTimeout
            )
        )

    said = refusal(stage, tasks=1)
    assert said.startswith("Stage stage passes the output of the join on carrier = other to")
    assert said.endswith("Use applyInPandasWithState in a separate stage, or transformWithState.")


def test_a_function_of_columns_that_come_from_a_function_with_state(refusal: Refusal, analyse: Analyse) -> None:
    """Spark dies of it at the first row, on any stream. Seed 7122089 of the fuzzer."""

    @F.udf("string")
    def shout(text: str | None) -> str | None:
        return None if text is None else text.upper()

    def of(carrier: str) -> Callable[[DataFrame], DataFrame]:
        def stage(rows: DataFrame) -> DataFrame:
            seen = rows.withWatermark("ts", "1 hour").groupBy("carrier")
            counted = seen.applyInPandasWithState(
                lambda key, frames, state: iter(()),
                "carrier string, n long",
                "n long",
                "append",
                GroupStateTimeout.EventTimeTimeout,
            )
            return counted.selectExpr(f"{carrier} AS name", "n").withColumn("loud", shout("name"))

        return stage

    said = refusal(of("carrier"))
    assert said.startswith("Stage stage passes columns of applyInPandasWithState to shout(carrier), and Spark fails")
    assert said.endswith("Use it inside the function of applyInPandasWithState, or in a separate stage.")
    analyse(of("carrier || '!'"))


@pytest.mark.parametrize(
    ("behind", "what"),
    [
        (lambda rows: rows.dropDuplicates(["carrier"]), "the deduplication by carrier"),
        (lambda rows: rows.join(names(rows), "carrier", "left"), "the Join"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (lambda rows: rows.where("n > 1").dropDuplicates(["carrier"]), "the deduplication by carrier"),
                (lambda rows: rows.repartition(3), "the Repartition"),
                (lambda rows: rows.coalesce(3).limit(3), "the limit over all rows"),
                (lambda rows: rows.join(names(rows).hint("merge"), "carrier", "left"), "the Join"),
            )
        ),
    ],
)
def test_an_operator_that_cannot_read_the_rows_of_a_function_with_state(
    refusal: Refusal, analyse: Analyse, behind: Callable[[DataFrame], DataFrame], what: str
) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.groupBy("carrier").applyInPandasWithState(
            lambda key, frames, state: iter(()), "carrier string, n long, ts timestamp", "n long", "append", "NoTimeout"
        )

    said = refusal(lambda rows: behind(stage(rows)))
    assert said.startswith(f"Stage stage passes columns of applyInPandasWithState to {what}, and Spark fails at the")
    assert said.endswith("ove what follows it into a separate stage.")
    assert ("F.broadcast(table)" in said) == (what == "the Join")
    analyse(lambda rows: stage(rows).where("n > 1").mapInPandas(lambda frames: frames, "carrier string, n long"))
    analyse(lambda rows: behind(stage(rows).selectExpr("carrier", "n + 1 AS n", "ts")), tasks=1)
    analyse(lambda rows: stage(rows).coalesce(1))
    assert "Set it on the event time of an input" in refusal(lambda rows: stage(rows).withWatermark("ts", "1 hour"))
    for kind in ("inner", "left", "leftsemi", "leftanti"):
        analyse(lambda rows, kind=kind: stage(rows).join(F.broadcast(names(rows)), "carrier", kind))


def names(rows: DataFrame) -> DataFrame:
    """A table that is part of the program."""
    return rows.sparkSession.createDataFrame([("AA", "American")], "carrier string, name string")


def count_delays(rows: DataFrame) -> DataFrame:
    return rows.groupBy("delay").applyInPandasWithState(
        lambda key, frames, state: iter(()), "n long", "n long", "append", GroupStateTimeout.NoTimeout
    )


def test_both_zeros_as_key_of_a_function_with_state(refusal: Refusal, analyse: Analyse, spark: SparkSession) -> None:
    """Spark compares these keys as bytes."""
    for function in (count_delays, lambda rows: by_state_machine(rows, "delay")):
        said = refusal(function)
        assert "would have one group for 0.0 and another for -0.0, which are equal in a batch." in said
        line = re.search(r"\.withColumn\(.*\)(?=\.$)", said)
        assert line is not None and line[0].startswith('.withColumn("delay", F.expr("CAST(delay + 0.0 AS STRING)")')
        pasted = f"rows{line[0]}"
        analyse(lambda rows, function=function, pasted=pasted: function(eval(pasted, {"rows": rows, "F": F})))
    zeros = spark.sql("SELECT explode(array(0.0D, -0.0D)) AS delay").selectExpr("CAST(delay + 0.0 AS STRING) AS text")
    assert {row.text for row in zeros.collect()} == {"0.0"}
    said = refusal(lambda rows: count_delays(rows.withColumn("delay", F.struct("delay"))))
    assert said.endswith("Group by fields that are decimals, whole numbers or texts.")


def test_a_left_semi_join_of_groups(refusal: Refusal) -> None:
    """Spark moves it below the aggregation only if the other side has few rows: the operators of a query must stay."""

    def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
        ours, theirs = (each.withWatermark("ts", "0 seconds") for each in (rows, others))
        counted = ours.groupBy(F.window("ts", "1 hour").alias("w"), "carrier").count()
        hours = theirs.select(F.window("ts", "1 hour").alias("w"), "carrier")
        return counted.join(hours, ["w", "carrier"], "leftsemi")

    other = '[streams.other]\npartitions = 2\nschema = "carrier string, ts timestamp"\nevent_time = "ts"\n'
    said = refusal(stage, "flights", "other", streams=other)
    assert "Spark moves the left semi join below the aggregation by window, carrier in batches" in said
    assert said.endswith(
        "Move the aggregation into an earlier stage, with event_time on its stream, and join that here."
    )


def test_keys_of_a_state_machine(refusal: Refusal, analyse: Analyse) -> None:
    """Not a list, which its Python process cannot read. A window may be one: it then gets the column twice."""
    for code in ("array(carrier)", "map_entries(map(carrier, 1))"):
        listed = lambda rows, code=code: rows.withColumn("list", F.expr(code))  # noqa: E731
        said = refusal(lambda rows, listed=listed: by_state_machine(listed(rows), "list"))
        assert "with which transformWithState fails at its first row" in said
        line = re.search(r"Make the key a text before groupBy, (.*)\.$", said)
        assert line is not None and line[1] == '.withColumn("list", F.to_json("list"))'
        analyse(
            lambda rows, listed=listed: by_state_machine(listed(rows).withColumn("list", F.to_json("list")), "list")
        )
    said = refusal(lambda rows: by_state_machine(rows.withColumn("late", F.expr("landed - ts")), "late"))
    assert said.endswith('Make the key a text before groupBy, .withColumn("late", F.col("late").cast("string")).')
    timed = lambda rows: rows.withWatermark("ts", "1 hour").withColumn("w", F.window("ts", "1 hour")).drop("ts")  # noqa: E731
    analyse(lambda rows: by_state_machine(timed(rows), "w"))


def test_nulls_in_keys_of_a_state_machine_in_pandas(refusal: Refusal, analyse: Analyse) -> None:
    """pandas makes fractions of whole numbers beside a null, and Spark a null of each fraction."""

    def stage(rows: DataFrame, code: str, text: str = "") -> DataFrame:
        prepared = rows.withWatermark("ts", "1 hour").withColumn("of", F.expr(code))
        if text:
            prepared = eval(f"prepared{text}", {"prepared": prepared, "F": F})
        return by_state_machine(prepared.select("of", "ts"), "of", "EventTime", in_pandas=True)

    for code, why in (
        ("length(carrier)", "would put the groups beside it into the state of the null."),
        ("CAST(carrier AS tinyint)", "would put the groups beside it into the state of the null."),
        ("landed", "would fail."),
    ):
        said = refusal(lambda rows, code=code: stage(rows, code))
        assert f"Stage stage: where of is null, transformWithStateInPandas {why}" in said
        lines = re.findall(r"\.w(?:here|ithColumn)\(.*?\)(?=\.| \w|, or|$)", said)
        assert lines == ['.where("of IS NOT NULL")', '.withColumn("of", F.expr("CAST(of AS STRING)"))']
        for line in lines:
            analyse(lambda rows, code=code, line=line: stage(rows, code, line))
    analyse(lambda rows: stage(rows.where("ts IS NOT NULL"), "unix_seconds(date_trunc('HOUR', ts))"))
    analyse(lambda rows: stage(rows, "carrier"))
    analyse(lambda rows: by_state_machine(rows.withColumn("of", F.length("carrier")), "of"))


def test_timers_without_a_watermark(refusal: Refusal, analyse: Analyse) -> None:
    """They would not even fire in a drain: Spark gives the watermark only to what has one below it."""
    said = refusal(lambda rows: by_state_machine(rows, time_mode="EventTime"))
    assert "no watermark reaches the state machine by carrier, so its timers would never fire" in said
    line = re.search(r"Set one before it, (.*)\. Or, if", said)
    assert line is not None and line[1] == LATE
    analyse(lambda rows: by_state_machine(rows.withWatermark("ts", "1 hour"), time_mode="EventTime"))
    assert "Keep flights.ts up to there. Or, if" in refusal(
        lambda rows: by_state_machine(rows.select("carrier"), time_mode="EventTime")
    )


def test_sessions_that_are_not_merged(refusal: Refusal, analyse: Analyse) -> None:
    """A batch groups rows to remove duplicates, and merges sessions by which it groups."""

    def stage(behind: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            sessions = rows.withWatermark("ts", "1 hour").select(F.session_window("ts", "1 hour").alias("s"), "carrier")
            found: DataFrame = eval(f"sessions{behind}", {"sessions": sessions, "F": F})
            return found

        return function

    said = refusal(stage('.dropDuplicates(["s", "carrier"])'))
    assert "the deduplication by s, carrier compares sessions that are not merged yet, of one row each" in said
    line = re.search(r"Group by them instead, and leave other columns out: (.*)\.$", said)
    assert line is not None and line[1] == '.groupBy("s", "carrier").count()'
    analyse(stage(line[1]))
    analyse(stage('.dropDuplicates(["carrier"])'))
    analyse(stage(f'{line[1]}.dropDuplicates(["s", "carrier"])'))


def test_sessions_that_are_grouped_again(refusal: Refusal, analyse: Analyse) -> None:
    """A batch merges those of several keys; on a stream each is complete by itself."""

    def stage(behind: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            rows = rows.withWatermark("ts", "1 hour").withColumn("is_late", F.col("delay") > 0)
            sessions = rows.groupBy(F.session_window("ts", "1 hour"), "carrier", "delay")
            found: DataFrame = eval(behind, {"sessions": sessions, "F": F})
            return found

        return function

    renamed = 'sessions.agg(F.max("landed").alias("x")).withColumnRenamed("session_window", "s")'
    for behind in (
        f'{renamed}.groupBy("s", "carrier").agg(F.max("x"))',
        f'{renamed}.select("s", "carrier").dropDuplicates()',
        f'{renamed}.union({renamed}).groupBy("s", "carrier", "delay").agg(F.max("x"))',
        'sessions.pivot("is_late", [True, False]).agg(F.sum("delay"))',
    ):
        said = refusal(stage(behind))
        assert "groups sessions that an earlier aggregation has written. A batch would merge those" in said, behind
    for behind in (
        f'{renamed}.groupBy("s", "carrier", "delay").agg(F.max("x"))',
        f'{renamed}.groupBy(F.window(F.window_time("s"), "1 day"), "carrier").count()',
        "sessions.agg(F.expr(\"max(landed) FILTER (WHERE carrier = 'AA') AS aa\"))",
    ):
        analyse(stage(behind))


VARYING = "CASE WHEN delay > 3 THEN '5 minutes' ELSE '10 minutes' END"


@pytest.mark.parametrize("gap", first("10 minutes", VARYING))
def test_a_condition_on_sessions_that_spark_moves_below_them(refusal: Refusal, analyse: Analyse, gap: str) -> None:
    """A session of three rows has the length of one there; so no session was longer than the gap, also in a batch."""

    def sessions(rows: DataFrame) -> DataFrame:
        session = F.session_window("ts", F.expr(gap) if gap == VARYING else gap).alias("w")
        found = rows.withWatermark("ts", "1 hour").groupBy(session, "carrier").agg(F.count("*").alias("n"))
        return found.select(F.col("w.start").alias("start"), F.col("w.end").alias("end"), "carrier", "n")

    def matched(rows: DataFrame, condition: str) -> DataFrame:
        table = rows.sparkSession.sql("SELECT timestamp'2013-01-01' AS at, 'UA' AS who UNION SELECT now(), 'DL'")
        return sessions(rows).join(table, F.expr(condition), "left_semi")

    for condition in ("end - start > INTERVAL 10 MINUTES", "start < '2013-01-02' AND n > 3", "hour(start) = 3"):
        said = refusal(lambda rows, condition=condition: sessions(rows).where(condition))
        assert "a filter or join after the aggregation by carrier has a condition on the session that Spark" in said
    assert "has a condition on the session" in refusal(lambda rows: matched(rows, "carrier = who AND start = at"))
    analyse(lambda rows: matched(rows, "carrier = who"))
    for condition in ("n > 3", "carrier = 'UA'", "n > 3 OR start > '2013-01-01'", "start IS NOT NULL"):
        analyse(lambda rows, condition=condition: sessions(rows.where("ts > '2013-01-01'")).where(condition))


@pytest.mark.parametrize("keys", first(', F.lit("all").alias("all")', ""))
def test_sessions_without_another_key(refusal: Refusal, analyse: Analyse, keys: str) -> None:
    """Spark fails at the first batch, on one task, too."""

    def stage(keys: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            by = eval(f'[F.session_window("ts", "5 minutes"){keys}]', {"F": F})
            return rows.withWatermark("ts", "1 hour").groupBy(*by).count()

        return function

    for tasks in (None, 1):
        said = refusal(stage(keys), tasks=tasks)
        assert "the aggregation by session windows has no key besides, and Spark cannot run it on a stream." in said
        zero = re.search(r"0 in each row, and drop it behind: (.*)\.$", said)
        assert zero is not None, said
        analyse(stage(f", {zero[1]}"))


def test_joins_one_after_the_other_get_one_event_time(refusal: Refusal, analyse: Analyse) -> None:
    """Not the advice to remove the rows that have no partner in the first one."""

    def stage(*dropped: str) -> Callable[..., DataFrame]:
        def function(some: DataFrame, others: DataFrame, flights: DataFrame) -> DataFrame:
            flown = flights.withWatermark("ts", "1 hour").select("carrier", F.col("ts").alias("left"))
            pairs = paired(" AND bts BETWEEN ts AND ts + INTERVAL 1 HOUR", how="left", kept=["k", "ts", "bts"])
            known = pairs(some, others).drop(*dropped)
            return known.join(flown, F.expr("k = carrier AND left BETWEEN ts AND ts + INTERVAL 1 HOUR"), "left")

        return function

    said = refusal(stage(), "some", "others", "flights", streams=SIDES)
    assert said.endswith(
        "the join on k = carrier gets ts and bts, all with a watermark, so its event time is ambiguous. Drop all but "
        "one of them before it."
    )
    analyse(stage("bts"), "some", "others", "flights", streams=SIDES)


def test_what_is_computed_of_a_time_is_no_second_event_time(refusal: Refusal, analyse: Analyse) -> None:
    """Unless the optimiser finds that nothing is computed."""

    def stage(computed: str) -> Callable[[DataFrame], DataFrame]:
        by = F.expr(computed).alias("x")
        return lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), by).count()

    for computed in ("hour(ts)", "date_trunc('hour', ts)", "struct(ts)", "ts + INTERVAL 0 SECONDS"):
        analyse(stage(computed))
    sessions = lambda rows: (  # noqa: E731
        rows.withWatermark("ts", "1 hour").groupBy(F.session_window("ts", "1 hour"), "carrier", "ts").count()
    )
    assert "gets session_window and ts, all with a watermark, so its event time is ambiguous" in refusal(sessions)
    said = refusal(stage("to_timestamp(ts)"))
    assert "are event times, and the query would fail. Group by one of them, and by the other as a text" in said
    analyse(stage("cast(to_timestamp(ts) AS string)"))


@pytest.mark.parametrize(("kind", "name"), [("date", "day"), ("timestamp_ntz", "local time")])
def test_an_event_time_that_is_no_timestamp(refusal: Refusal, analyse: Analyse, kind: str, name: str) -> None:
    """It may be declared, since its frontier is known. Spark wants a timestamp for its watermark."""
    quoted = f"`{name}`"
    streams = f"[streams.dated]\nschema = 'carrier string, {quoted} {kind}'\nevent_time = '{name}'\n"

    def stage(cast: str = "") -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            timed: DataFrame = eval(f"rows{cast}", {"rows": rows, "F": F})
            return timed.withWatermark(quoted, "1 day").groupBy(F.window(quoted, "7 days"), "carrier").count()

        return function

    said = refusal(stage(), "dated", streams=streams)
    cast = re.search(r"Make it one before withWatermark, (.*)\.$", said)
    assert cast is not None, said
    analyse(stage(cast[1]), "dated", streams=streams)


def test_a_text_as_event_time_of_a_source(refusal: Refusal) -> None:
    """Also where only Spark can read the schema, since it has nested types."""
    for more in ("", ", tags array<string>"):
        streams = f'[streams.texts]\nschema = "k string, ts string{more}"\nevent_time = "ts"\n'
        assert refusal(lambda rows: rows, "texts", streams=streams) == (
            "streams.texts.event_time is 'ts', a column of type string. An event time is a timestamp, a date or a "
            'window. Write "ts timestamp" in streams.texts.schema; produce then parses the text.'
        )


def test_a_limit_of_some_inputs(refusal: Refusal, analyse: Analyse) -> None:
    """Spark leaves it out of a batch without rows for it, and the next one misses its state."""

    def limited(rows: DataFrame, others: DataFrame) -> DataFrame:
        return rows.select("carrier").limit(3).union(others.select("carrier"))

    said = refusal(limited, "flights", "plain", tasks=1)
    assert said.startswith("Stage stage limits the rows of some inputs and reads others beside them.")
    assert said.endswith("Limit them in an earlier stage, and read its stream here.")
    analyse(
        lambda rows, others: rows.select("carrier").union(others.select("carrier")).limit(3),
        "flights",
        "plain",
        tasks=1,
    )
    analyse(lambda rows: rows.limit(3).union(rows), tasks=1)


def _table(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("AA", 1)], "carrier string, delay int")


def _in_sql(text: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.sparkSession.sql(text, rows=rows)


def _by_hour(rows: DataFrame) -> GroupedData:
    return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "carrier")


def _mapped(rows: DataFrame) -> DataFrame:
    return rows.mapInPandas(lambda parts: parts, "carrier string, ts timestamp")


COUNTED = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT n FROM t"


@pytest.mark.parametrize(
    ("stage", "remedy"),
    first(
        (_in_sql("SELECT * FROM {rows}, LATERAL (SELECT delay + 1 AS x)"), "Compute its columns with withColumn; for"),
        (_in_sql("SELECT * FROM {rows}, LATERAL explode(array(1, 2)) AS t(x)"), "use F.explode or LATERAL VIEW"),
        (lambda rows: rows.select("carrier", "delay").subtract(_table(rows)), 'a join of kind "left_anti" do'),
        (lambda rows: rows.select("carrier", "delay").exceptAll(_table(rows)), 'a join of kind "left_anti" do'),
        (lambda rows: rows.select("carrier").subtract(rows.select("carrier")), "Subtract where the output is read"),
        (lambda rows: rows.select("carrier").intersect(rows.select("carrier")), "Intersect where the output is read"),
        (lambda rows: rows.dropDuplicatesWithinWatermark(["carrier"]), '.withWatermark("ts", "1 hour").'),
        (lambda rows: rows.groupBy("carrier").pivot("delay"), '.pivot("kind", ["a", "b"])'),
        (lambda rows: rows.withWatermark("ts", "1 hur"), "'1 hur' is no length of time. Write a number and a unit"),
        (_in_sql("SELECT * FROM {rows} WHERE carrier IN (SELECT carrier FROM {rows})"), "Write it as a join, or as"),
        (lambda rows: _by_hour(rows).agg(F.sum_distinct("delay")), 'Use F.collect_set("delay"), and'),
        (lambda rows: _by_hour(rows).agg(F.expr("sum(DISTINCT delay + 1)")), "F.collect_set(F.expr("),
        (
            _in_sql("SELECT row_number() OVER (PARTITION BY carrier ORDER BY ts) AS n FROM {rows}"),
            "the row of each that comes first, whatever its time. This one forgets a key",
        ),
        (
            lambda rows: (
                rows.withWatermark("ts", "1 hour")
                .where("carrier IS NOT NULL")
                .alias("l")
                .join(
                    rows.withWatermark("ts", "1 hour").where("carrier IS NOT NULL").alias("r"),
                    F.expr("l.carrier = r.carrier AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 1 HOUR"),
                    "left_anti",
                )
            ),
            "Use a left outer join whose condition bounds the time, and behind it",
        ),
        (
            lambda rows: rows.select("carrier", "delay").union(_table(rows)),
            "Produce the rows of the table into a stream",
        ),
        (lambda rows: rows.randomSplit([0.5, 0.5], 7)[0], 'carrier: .where("pmod(xxhash64(carrier), 10) < 3").'),
        (lambda rows: rows.sample(0.5).orderBy("delay"), 'carrier: .where("pmod(xxhash64(carrier), 10) < 3").'),
        (lambda rows: rows.join(rows.sparkSession.sql(COUNTED), F.col("n") == F.col("delay")), "with spark.range or"),
        (
            lambda rows: (
                rows.groupBy("carrier")
                .cogroup(rows.groupBy("carrier"))
                .applyInPandas(lambda one, _: one, "carrier string")
            ),
            "uses cogroup, which",
        ),
        (lambda rows: _mapped(rows).withWatermark("ts", "1 hour"), "set the watermark in the next stage."),
        each=3,
    ),
)
def test_the_remedy_is_for_the_operator_that_was_written(refusal: Refusal, stage: Any, remedy: str) -> None:
    assert remedy in refusal(stage)


@pytest.mark.parametrize(
    "window",
    [
        "lag(delay) OVER (PARTITION BY carrier ORDER BY ts)",
        "row_number() OVER (PARTITION BY carrier ORDER BY ts DESC)",
        "sum(delay) OVER (PARTITION BY carrier)",
    ],
)
def test_a_window_function_that_does_not_number_rows_from_the_first(refusal: Refusal, window: str) -> None:
    said = refusal(_in_sql(f"SELECT {window} AS n FROM {{rows}}"))
    assert "that comes first" not in said
    assert "#" not in said
    assert said.count("Window function is not supported") == 1  # Spark and we refuse the same operator


def test_a_number_for_each_row(refusal: Refusal, analyse: Analyse) -> None:
    said = refusal(lambda rows: rows.withColumn("n", F.monotonically_increasing_id()))
    found = re.search(r"Make an id of what the row holds, (F\..*): rows", said)
    assert found is not None, said
    analyse(lambda rows: rows.withColumn("n", eval(found[1])))


def test_the_remedy_is_for_output_mode_update(refusal: Refusal) -> None:
    for grouped, remedy in (
        (lambda rows: rows.rollup("carrier"), "Return the keys, and F.grouping_id() beside them."),
        (lambda rows: rows.groupBy(F.session_window("ts", "1 hour"), "carrier"), 'remove output_mode="update" from'),
    ):

        def stage(rows: DataFrame, grouped: Any = grouped) -> DataFrame:
            counted: DataFrame = grouped(rows.withWatermark("ts", "1 hour")).count()
            return counted

        assert remedy in refusal(stage, output_mode="update")


def test_the_remedy_of_groupings_without_a_common_key(refusal: Refusal, analyse: Analyse) -> None:
    """Their keys are null in some rows of each group, and no stream has a column spark_grouping_id."""
    sql = "SELECT carrier, delay, count(*) AS n, grouping_id() AS g FROM {rows} GROUP BY "
    sets, rollup = _in_sql(f"{sql}GROUPING SETS ((carrier), (delay))"), _in_sql(f"{sql}ROLLUP (carrier, delay)")
    decorator = '@app.stage("flights", output="out", output_mode="update", tasks=1)'
    said = refusal(sets, output_mode="update")
    assert "the aggregation by carrier, delay, spark_grouping_id needs the rows of each key in one task, but" in said
    assert said.endswith(
        " none of its keys is in all of its groupings (GROUPING SETS, rollup or cube). Write a stage for each of them, "
        f'.groupBy("carrier") and .groupBy("delay"). Or run the stage on one task: {decorator}.'
    )
    assert refusal(rollup, output_mode="update").endswith(
        f" none of its keys is in all of its groupings (GROUPING SETS, rollup or cube). Run the stage on one task: "
        f"{decorator}."
    )
    for stage in (sets, rollup):
        analyse(stage, output_mode="update", tasks=1)
    for by in ("carrier", "delay"):
        analyse(lambda rows, by=by: rows.groupBy(by).count(), output_mode="update")
    common = _in_sql(f"{sql}GROUPING SETS ((carrier, delay), (carrier))")
    analyse(common, output_mode="update")
    said = refusal(lambda rows: common(rows.dropDuplicates(["landed"])), output_mode="update")
    assert "the first with the deduplication by landed with partition_by='carrier'. Or run" in said


def _codes(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("AA", 1)], "code string, seats int")


KEPT = 'Write the rows of the stream, .join(table, {}, "left") with the stream on the left: '
MET = 'Write the rows that have a partner, .join(table, {}, "inner") with the stream on the left: '
FOUND = ".select({}).dropDuplicates().join(table, {}){} with the stream on the left"
NAMED, BY_NAME, AS_WRITTEN = '["carrier"]', 'F.expr("(carrier = code)")', 'F.expr("(code = carrier)")'
BOTH = "carrier = code AND seats < delay"


@pytest.mark.parametrize(
    ("joined", "advised"),
    first(
        (lambda rows, _: rows.join(_table(rows).drop("delay"), "carrier", "full"), KEPT.format(NAMED)),
        (lambda rows, _: rows.join(_table(rows).drop("delay"), "carrier", "right"), MET.format(NAMED)),
        (lambda rows, _: _table(rows).drop("delay").join(rows, "carrier", "left"), MET.format(NAMED)),
        (lambda rows, table: table.join(rows, F.expr("code = carrier"), "full"), KEPT.format(AS_WRITTEN)),
        (lambda rows, table: rows.join(table, F.expr("carrier = code"), "right"), MET.format(BY_NAME)),
        (lambda rows, _: _table(rows).join(rows, "carrier", "left_semi"), FOUND.format('"carrier"', NAMED, "")),
        (lambda rows, _: _table(rows).join(rows, "carrier", "left_anti"), FOUND.format('"carrier"', NAMED, "")),
        (
            lambda rows, table: table.join(rows, F.expr("carrier = code"), "left_anti"),
            FOUND.format('"carrier"', BY_NAME, '.drop("carrier")'),
        ),
        (
            lambda rows, table: table.join(rows, F.expr(BOTH), "left_semi"),
            'an inner join, .join(table, F.expr("(carrier = code) AND (CAST(seats AS DOUBLE) < delay)"))',
        ),
        each=3,
    ),
)  # fmt: skip
def test_a_join_with_a_table_on_the_wrong_side(
    refusal: Refusal, analyse: Analyse, joined: Callable[[DataFrame, DataFrame], DataFrame], advised: str
) -> None:
    """What is advised is accepted, pasted behind the stream's DataFrame."""
    said = refusal(lambda rows: joined(rows, _codes(rows)))
    assert re.match(r"Stage stage cannot run as a stream: \w+ joins? with (a )?streaming ", said) and advised in said
    line = re.search(r"(?:, |Write )(\.\w+\(.*\))(?: with the stream on the left|, and)", said)
    assert line is not None

    def pasted(rows: DataFrame) -> DataFrame:
        table = _codes(rows) if "code" in line[1] else _table(rows).withColumnRenamed("delay", "late")
        return eval(f"rows{line[1]}", {"rows": rows, "table": table, "F": F})

    analyse(pasted)


def test_a_join_with_a_table_by_columns_of_one_name(refusal: Refusal) -> None:
    """A text cannot tell them apart, so the condition is not written."""
    said = refusal(lambda rows: (table := _table(rows)).join(rows, table.delay < rows.delay, "left"))
    assert "have a partner, by a join of kind inner on the same condition with the stream on the left: " in said


def test_rows_that_are_skipped(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.offset(2)).endswith(
        ". Remove offset: the rows of a stream have no order, so any of them would be skipped. Skip rows where the "
        "output is read."
    )


def test_two_watermarks_on_one_column(refusal: Refusal) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").withColumnRenamed("ts", "at").withWatermark("at", "2 hours")

    assert refusal(stage) == "Stage stage sets two watermarks on column at. Keep one withWatermark."


def test_a_watermark_on_a_computed_column(refusal: Refusal) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.withColumn("later", F.greatest("ts", "landed")).withWatermark("later", "1 hour")

    assert refusal(stage) == (
        "Stage stage sets a watermark on column later, but it is computed: greatest(ts, landed). "
        "Set it on the event time of an input (flights.ts), before any join or aggregation. Or, to go by later, put "
        "what computes it into a stage of its own, with event_time and frontier_lag on its output stream."
    )


def test_a_watermark_that_grants_less_time_than_the_column_was_moved_by(refusal: Refusal) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        return rows.withColumn("hour", F.date_trunc("hour", "ts")).withWatermark("hour", "10 minutes")

    assert refusal(stage) == (
        "Stage stage sets a watermark of 10 minutes on column hour, but what comes before it makes rows up to 1 "
        'hour older than its inputs. Use withWatermark("hour", "1 hour") or more.'
    )


def test_a_watermark_on_another_column(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.withWatermark("landed", "1 hour")) == (
        "Stage stage sets a watermark on column landed, but it is the column landed of stream 'flights', whose event "
        "time is ts. Use that column, or change streams.flights.event_time in the job file."
    )


def test_a_watermark_on_a_stream_without_event_time(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.withWatermark("ts", "1 hour"), "plain") == (
        "Stage stage sets a watermark on column ts, but stream 'plain' has no declared event time. "
        'Add to the job file, under [streams.plain]: event_time = "ts".'
    )


def test_an_event_time_that_may_be_older_than_promised(refusal: Refusal, analyse: Analyse) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        counted = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"))
        return counted.agg(F.max("landed").alias("last"))

    streams = '[streams.out]\nevent_time = "last"\n'
    assert refusal(stage, streams=streams) == (
        "Stage stage writes last as event time of stream 'out', but how old its later rows can be is unknown: it is "
        "computed: max(landed). Use the event time of an input, or window_time(window). Or declare under [streams.out] "
        'how far rows can lag behind the inputs: frontier_lag = "1 hour".'
    )
    analysed = analyse(stage, streams=streams + 'frontier_lag = "1 d"\n').stages["stage"]
    assert (analysed.frontier_lag_us, analysed.analysis.frontier) == (86_400_000_000, (Term(None),))
    assert analyse(stage, streams=streams + 'frontier_lag = "0 s"\n').stages["stage"].frontier_lag_us == 0


@pytest.mark.parametrize("shorter_first", first(True, False))
@pytest.mark.parametrize("grouped_first", [True, False])
def test_the_start_of_windows_of_two_lengths_is_as_early_as_the_longest(
    analyse: Analyse, shorter_first: bool, grouped_first: bool
) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        rows = rows.withWatermark("ts", "0 seconds")
        lengths = ("1 hour", "1 day") if shorter_first else ("1 day", "1 hour")
        windows = [rows.select(F.window("ts", length).alias("w"), "carrier") for length in lengths]
        if grouped_first:
            counted = windows[0].groupBy("w", "carrier").count().union(windows[1].groupBy("w", "carrier").count())
        else:
            counted = windows[0].union(windows[1]).groupBy("w", "carrier").count()
        return counted.select(F.col("w.start").alias("t"), "carrier", "count")

    analysed = analyse(stage, streams='[streams.out]\nevent_time = "t"\n').stages["stage"]
    assert analysed.analysis.frontier == (Term(None, -86_400_000_000),)


def test_an_event_time_that_distinct_rows_are_not_complete_by(refusal: Refusal, spark: SparkSession) -> None:
    """The rows come with the end of their window."""

    def stage(rows: DataFrame) -> DataFrame:
        minutes = "SELECT carrier, window(ts, '2 hours') AS w, date_trunc('MINUTE', ts) AS t FROM {rows}"
        distinct = spark.sql(f"SELECT DISTINCT * FROM ({minutes})", rows=rows.withWatermark("ts", "0 seconds"))
        return distinct.drop("w")

    said = refusal(stage, streams='[streams.out]\nevent_time = "t"\n')
    assert "the aggregation keeps its groups until the watermark passes, and this is not the event time" in said


def test_an_event_time_that_the_stage_does_not_write(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.select("carrier"), streams='[streams.out]\nevent_time = "ts"\n') == (
        "streams.out.event_time is 'ts', but stage stage writes the columns carrier, none of which is a time. Write "
        "ts as well."
    )
    assert refusal(
        lambda rows: rows.select("carrier", "landed"), streams='[streams.out]\nevent_time = "at"\n'
    ).endswith('writes the columns carrier, landed, of which landed can be one. Write event_time = "landed".')


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("interval '1-2' year to month", "a year-month interval, which Arrow cannot carry; write it as a number of"),
        ("make_interval(1, 2)", "a calendar interval, which Arrow cannot carry; write it as months, days and micro"),
        ("time'10:00:00'", "a TIME; write it as a string or as an integer of seconds"),
        ("array(named_struct('a', make_interval(1)))", "a calendar interval"),
        ("struct(carrier AS a, delay AS a)", "a struct with two fields called a; rename one of them with alias."),
        ("interval '1' hour", "interval hour, of which Arrow makes interval day to second. Give it that type: .cast("),
        (
            "map()",
            "map<void,void>, which Arrow cannot carry (A null type field may not be non-nullable). Give it another",
        ),
        ("collate(carrier, 'UTF8_LCASE')", "a text with a collation, which Arrow does not carry; write it as a string"),
    ],
)
def test_a_column_that_no_log_can_carry(refusal: Refusal, column: str, reason: str) -> None:
    said = refusal(lambda rows: rows.selectExpr(f"{column} AS odd"))
    assert said.startswith("Stage stage: column odd")
    assert reason in said


def test_an_output_without_columns(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows.select())
    assert said == "Stage stage has no columns, and a log cannot store such rows. Select at least one column."


def test_an_error_of_java_is_reported_without_its_stack(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows.groupBy("carrier", F.uniform(F.lit(1), F.lit(5), F.lit(7))).count())
    assert "should not appear in grouping expression" in said and "\n" not in said


def test_two_columns_of_one_name(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows.select("*", "carrier")) == (
        "Stage stage has 2 columns called carrier. Rename or drop one with select()."
    )


def test_a_key_that_is_no_column_or_has_no_canonical_bytes(refusal: Refusal) -> None:
    assert refusal(lambda rows: rows, partition_by="airline") == (
        "Stage stage has partition_by 'airline', but writes the columns carrier, ts, landed, delay. Name one of them."
    )
    assert refusal(lambda rows: rows, partition_by="delay") == (
        "Stage stage has partition_by 'delay', a column of type double. "
        "Use a string, integer, boolean, date or binary column."
    )


def test_a_stream_without_a_writer_or_a_schema(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows, "nowhere")
    assert re.sub(r"\] \(after line \d+\) there", "] there", said) == (
        "Stage stage reads stream 'nowhere', which no stage writes and whose schema is not in the job file. "
        'Add [streams.nowhere] there, with its columns, for example schema = "id string, ts timestamp", and with '
        "partitions = 2, or another number."
    )


def test_a_schema_that_spark_cannot_read(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows, "odd", streams='[streams.odd]\nschema = "a strin"\n')
    assert said == (
        "streams.odd.schema cannot be read: column a has the type 'strin'. Did you mean 'string'? "
        'Write schema = "a string".'
    )
    said = refusal(lambda rows: rows, "odd", streams='[streams.odd]\nschema = "a array<strin>"\n')
    assert said.startswith("streams.odd.schema cannot be read:")
    assert said.endswith('Write it like "carrier string, ts timestamp, delay double".')


@pytest.mark.parametrize("kind", ["char(5)", "varchar(5)", "struct<code: char(5)>"])
def test_a_text_of_fixed_length(refusal: Refusal, kind: str) -> None:
    said = refusal(lambda rows: rows, "odd", streams=f'[streams.odd]\nschema = "a {kind}"\n')
    assert said.startswith("streams.odd.schema: column a")
    assert said.endswith("CHAR, which no DataFrame can have; write it as a string.")


def test_a_schema_is_corrected_in_the_schema(refusal: Refusal, analyse: Analyse) -> None:
    odd = "[streams.odd]\nschema = 'a {}'\n"
    said = refusal(lambda rows: rows, "odd", streams=odd.format("interval hour"))
    assert said.startswith("streams.odd.schema: column a is interval hour, of which Arrow makes interval day to second")
    line = re.search(r"Give it that type: (.*)\.$", said)
    assert line is not None
    analyse(lambda rows: rows, "odd", streams=odd.format(line[1]))
    said = refusal(lambda rows: rows, "odd", streams=odd.format("map<void,string>"))
    assert said.endswith("Give it another type, such as map<string,string>.")


def test_a_plan_that_is_not_deterministic_is_a_warning(analyse: Analyse) -> None:
    (warning,) = of_the_stage(analyse(lambda rows: rows.withColumn("dice", F.rand())))
    assert warning == (
        "Stage stage is not deterministic (rand, uuid, a non-deterministic function): "
        "a second run over the same input may give another output."
    )


def test_a_plan_that_uses_the_time_of_a_batch_is_a_warning(analyse: Analyse) -> None:
    for time in (F.current_timestamp(), F.current_date(), F.current_time(), F.localtimestamp(), F.now()):
        (warning,) = of_the_stage(analyse(lambda rows, time=time: rows.withColumn("at", time.cast("string"))))
        assert warning.startswith("Stage stage uses the time at which a batch runs: ")


def test_a_column_that_is_called_after_a_random_seed(refusal: Refusal, analyse: Analyse) -> None:
    """Its name would be another one when a task starts, and its first batch would fail."""
    said = refusal(lambda rows: rows.select("carrier", F.rand()))
    assert said.startswith("Stage stage: Spark calls a column rand(")
    assert said.endswith(
        '), after a random seed, which differs from start to start. Name the column yourself, with .alias("random").'
    )
    for column in (F.rand().alias("random"), F.rand(7), F.expr("rand()")):
        analyse(lambda rows, column=column: rows.select("carrier", column))


def test_state_that_depends_on_a_random_seed(refusal: Refusal, analyse: Analyse) -> None:
    """As with salted keys. The pipeline would be another one at each start and in each processor."""

    def salted(rows: DataFrame, *seed: int) -> DataFrame:
        rows = rows.withWatermark("ts", "1 hour").withColumn("salt", F.floor(F.rand(*seed) * 4))
        return rows.groupBy(F.window("ts", "1 hour"), "carrier", "salt").count()

    assert refusal(salted) == (
        "Stage stage: the aggregation by window, carrier, salt depends on a random seed, which differs from start to "
        "start. So no processor could go on with the state of another. Set the seed yourself, as in F.rand(7)."
    )
    analyse(lambda rows: salted(rows, 7))

    def summed(rows: DataFrame, *seed: int) -> DataFrame:
        rows = rows.withWatermark("ts", "1 hour").withColumn("share", F.rand(*seed))
        return rows.groupBy(F.window("ts", "1 hour"), "carrier").agg(F.sum("share").alias("total"))

    assert "the aggregation by window, carrier depends on a random seed" in refusal(summed)
    analyse(lambda rows: summed(rows, 7))


@pytest.mark.parametrize("method", ["mapInPandas", "mapInArrow"])
def test_a_function_of_many_rows_at_once_is_a_warning(analyse: Analyse, method: str) -> None:
    """It may see other rows together in each run, so what it says of several is not that of a batch."""
    (warning,) = of_the_stage(analyse(lambda rows: getattr(rows, method)(lambda chunks: chunks, rows.schema)))
    assert warning == (
        "Stage stage uses mapInPandas or mapInArrow: its function gets the rows in chunks that differ from run to run, "
        "so it must process each row independently."
    )


@pytest.mark.parametrize("made", [F.pandas_udf, F.arrow_udf])
def test_so_is_a_function_of_a_column(analyse: Analyse, made: Callable[..., Any]) -> None:
    """It subtracted the mean of whatever rows came together, and nothing was said."""
    function = made(lambda delay: delay, "double")
    warning = (
        "Stage stage uses pandas_udf or arrow_udf: its function gets the rows in chunks that differ from run to run, "
        "so it must process each row independently."
    )
    assert of_the_stage(analyse(lambda rows: rows.withColumn("delay", function("delay")))) == [warning]
    assert of_the_stage(analyse(lambda rows: rows.where(function("delay") > 0))) == [warning]
    assert of_the_stage(analyse(lambda rows: rows.where(F.udf(abs, "double")("delay") > 0))) == []


def test_a_limit_is_a_warning(analyse: Analyse) -> None:
    [warning] = of_the_stage(analyse(lambda rows: rows.limit(3), tasks=1))
    assert warning == (
        "Stage stage limits its rows, and takes those that come first: a second run over the same input may give "
        "another output."
    )


UPDATE: dict[str, Any] = {"output_mode": "update"}
GROWS = "forever, so its state grows without end."


@pytest.mark.parametrize(
    ("before", "line", "after", "kept", "options"),
    first(
        ("", '.dropDuplicates(["carrier"])', "", "deduplication by carrier keeps each key", {}),
        ('.withWatermark("ts", "2 hours")', '.dropDuplicates(["carrier"])', "", "keeps each key", {}),
        ("", '.groupBy("carrier")', ".count()", "aggregation by carrier keeps each group", UPDATE),
        ("", '.groupBy(F.window("ts", "1 hour"))', ".count()", "keeps each group", UPDATE),
        ("", '.groupBy(F.window("ts", "1 hour"), "carrier")', ".count()", "keeps each group", UPDATE),
        each=3,
    ),
)
def test_state_that_only_grows_is_a_warning_whose_line_ends_it(
    analyse: Analyse, before: str, line: str, after: str, kept: str, options: dict[str, Any]
) -> None:
    """Only joins were warned of."""

    def warned(written: str) -> list[str]:
        in_full = f"rows{before}{written}{after}"
        return of_the_stage(analyse(lambda rows: eval(in_full, {"F": F, "rows": rows}), **options))

    [warning] = warned(line)
    assert kept in warning and GROWS in warning
    advised = re.search(r": (\..*)\.$|, (\..*)\.$", warning.partition(GROWS)[2])
    assert advised is not None, warning
    pasted = advised[1] or advised[2]
    assert warned(pasted if "groupBy" in pasted or "drop" in pasted else pasted + line) == []


def test_state_that_ends_is_none(analyse: Analyse) -> None:
    in_hours = lambda rows: rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour")).count()  # noqa: E731
    by_time = lambda rows: rows.withWatermark("ts", "1 hour").dropDuplicates(["carrier", "ts"])  # noqa: E731
    assert of_the_stage(analyse(in_hours, **UPDATE)) == of_the_stage(analyse(in_hours)) == []
    sessions = F.session_window("ts", "10 minutes")
    in_sessions = lambda rows: rows.withWatermark("ts", "1 hour").groupBy(sessions, "carrier").count()  # noqa: E731
    assert of_the_stage(analyse(by_time)) == of_the_stage(analyse(in_sessions)) == []
    assert of_the_stage(analyse(lambda rows: rows.groupBy().count(), tasks=1, **UPDATE)) == []


def test_stages_that_are_allowed(analyse: Analyse, spark: SparkSession) -> None:
    """A stream joined with itself or with a table, a renamed event time, a union with it, deduplication, updates."""
    names = spark.createDataFrame([("AA", "American")], "carrier string, name string")

    def joined(rows: DataFrame) -> DataFrame:
        left = rows.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        right = left.select(F.col("carrier").alias("other"), F.col("ts").alias("at"))
        return left.join(right, F.expr("carrier = other AND at BETWEEN ts AND ts + interval 1 hour"), "leftOuter")

    assert analyse(joined).stages["stage"].plan.stateful == ("join of two streams",)
    assert analyse(joined).stages["stage"].analysis.sources == (0,)  # both sides are the same columns of one source
    assert analyse(lambda rows: rows.join(names, "carrier")).stages["stage"].plan.stateful == ()
    renamed = analyse(lambda rows: rows.select(F.col("ts").alias("at")), streams='[streams.out]\nevent_time = "at"\n')
    assert renamed.plan.stages[0].schema == "at TIMESTAMP"
    unioned = analyse(
        lambda rows, others: rows.select("carrier", "ts").union(others).where("ts IS NOT NULL")
        .withWatermark("ts", "2 hours").dropDuplicatesWithinWatermark(["carrier"]),
        "flights",
        "timed",
        streams='[streams.timed]\npartitions = 2\nschema = "carrier string, ts timestamp"\nevent_time = "ts"\n',
    )  # fmt: skip
    assert [(each.reads, each.delay_ms) for each in unioned.stages["stage"].analysis.watermarks] == [
        (0, 7_200_000),
        (1, 7_200_000),
    ]
    assert analyse(lambda rows: rows.groupBy("carrier").count(), output_mode="update")


def test_a_key_with_a_collation(refusal: Refusal, analyse: Analyse) -> None:
    """One partition or one task: nothing has to be routed."""

    def stage(key: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            collated = rows.select(F.collate("carrier", "UTF8_LCASE").alias("c"), "delay")
            return collated.select(eval(key, {"F": F}).alias("c"), "delay").dropDuplicates(["c"])

        return function

    said = refusal(stage('F.col("c")'), tasks=1)
    assert "the deduplication by c has a text with a collation as key, by which Spark cannot keep state." in said
    line = 'F.lower(F.expr("c").cast("string"))'
    assert f"Use a text without one: {line}." in said and "is a text with a collation, which Arrow does not" in said
    analyse(stage(line), tasks=1)


def test_a_key_with_a_collation_that_it_makes(refusal: Refusal, analyse: Analyse) -> None:
    def counted(rows: DataFrame, by: Any) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), by).count()

    said = refusal(lambda rows: counted(rows, F.expr("collate(carrier, 'UTF8_LCASE')")), tasks=1)
    line = 'F.lower(F.expr("carrier"))'
    assert f"Use a text without one: {line}." in said and "is a text with a collation, which Arrow does not" in said
    analyse(lambda rows: counted(rows, eval(line, {"F": F})), tasks=1)


def test_a_map_as_key(refusal: Refusal, analyse: Analyse) -> None:
    """Spark 4.3 makes one group of {"a": null} and {"a": 0}, also in a batch over a file."""

    def counted(by: str) -> Callable[[DataFrame], DataFrame]:
        def function(rows: DataFrame) -> DataFrame:
            rows = rows.withColumn("m", F.expr("map('a', delay)")).withWatermark("ts", "1 hour")
            return rows.groupBy(F.window("ts", "1 hour"), eval(by, {"F": F}).alias("k")).count().drop("k")

        return function

    line = 'F.array_sort(F.map_entries("m"))'
    assert f"takes a null in a map of numbers for 0. Group by its entries, {line}." in refusal(counted('F.col("m")'))
    assert "has a map in its key" in refusal(counted('F.struct("m")'))
    analyse(counted(line))


def test_a_pandas_function_of_groups(refusal: Refusal) -> None:
    @F.pandas_udf("double")  # type: ignore[call-overload]
    def mean(delay: pd.Series) -> float:
        return float(delay.mean())

    def stage(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "carrier").agg(mean("delay"))

    said = refusal(stage)
    assert "uses a pandas_udf or arrow_udf that makes one value of a group, which Spark cannot run on a stream." in said


def test_columns_that_only_files_have(refusal: Refusal) -> None:
    said = refusal(lambda rows: rows.select("carrier", "_metadata.file_name"))
    assert said.startswith("Stage stage uses _metadata, which only files have. Stream 'flights' has the columns ")


def test_a_key_from_a_subquery(refusal: Refusal, analyse: Analyse, spark: SparkSession) -> None:
    """A router has only the rows of its stream."""
    names = spark.createDataFrame([("AA", "American")], "code string, name string")

    def named(rows: DataFrame) -> DataFrame:
        query = "SELECT ts, (SELECT max(name) FROM {names} n WHERE n.code = r.carrier) AS name FROM {rows} r"
        return spark.sql(query, rows=rows.withWatermark("ts", "1 hour"), names=names)

    said = refusal(lambda rows: named(rows).groupBy("name").count(), output_mode="update")
    assert "no part of the key can be computed from an input row alone" in said
    by_window = analyse(lambda rows: named(rows).groupBy(F.window("ts", "1 hour"), "name").count())
    ((expression,),) = [stage.routed_by for stage in by_window.plan.stages if stage.routed_by]
    assert "subquery" not in expression.lower()


def test_a_view_of_spark_sql_has_another_name_in_each_processor(analyse: Analyse, spark: SparkSession) -> None:
    """Their pipelines would differ."""

    def stage(rows: DataFrame) -> DataFrame:
        query = "SELECT carrier, window(ts, '1 hour') AS w, count(*) AS n FROM {rows} GROUP BY ALL"
        return spark.sql(query, rows=rows.withWatermark("ts", "1 hour"))

    one, other = (analyse(stage).stages["stage"].analysis for _ in range(2))
    assert (one.fingerprint, one.facts) == (other.fingerprint, other.facts)
    assert "_pyspark_" not in str((one.fingerprint, one.facts))


def test_the_fingerprint_sees_the_arguments_of_a_function_in_sql(analyse: Analyse, spark: SparkSession) -> None:
    """Or else a task would go on with the state of another key."""
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION doubled(x DOUBLE) RETURNS DOUBLE RETURN x * 2")

    def fingerprint(argument: str) -> str:
        def stage(rows: DataFrame) -> DataFrame:
            rows = rows.withWatermark("ts", "1 hour")
            return rows.groupBy(F.window("ts", "1 hour"), F.expr(f"doubled({argument})").alias("d")).count()

        return analyse(stage).plan.fingerprint

    assert len({fingerprint(argument) for argument in ("delay", "hour(ts)")}) == 2


def test_a_query_that_is_written_with_pipes(refusal: Refusal, analyse: Analyse, spark: SparkSession) -> None:
    def stage(rows: DataFrame, time: str = "ts") -> DataFrame:
        query = f"FROM {{rows}} |> WHERE delay > 0 |> AGGREGATE count(*) AS n GROUP BY window({time}, '1 hour') AS w"
        return spark.sql(query, rows=rows.withWatermark("ts", "1 hour"))

    assert analyse(stage).plan.stages[-1].state == ("aggregation by window",)
    assert "no group of the aggregation by window is ever complete" in refusal(lambda rows: stage(rows, "landed"))


def test_a_common_table_expression_is_one_source(analyse: Analyse, spark: SparkSession) -> None:
    """A task waits for an acknowledgement of each source, so with one too many its drain would never end."""

    def stage(rows: DataFrame) -> DataFrame:
        query = """
            WITH t AS (SELECT carrier, ts FROM {rows})
            SELECT p.ts AS p, q.ts AS q FROM t p
            JOIN t q ON p.carrier = q.carrier AND q.ts BETWEEN p.ts AND p.ts + INTERVAL 1 HOUR
        """
        return spark.sql(query, rows=rows.withWatermark("ts", "1 hour"))

    assert analyse(stage).stages["stage"].analysis.sources == (0,)


def by_state_machine(
    rows: DataFrame, key: str = "carrier", time_mode: str = "None", *, in_pandas: bool = False
) -> DataFrame:
    class Nothing(StatefulProcessor):
        def init(self, handle: Any) -> None: ...

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            return iter(())

    groups = rows.groupBy(key)
    run = groups.transformWithStateInPandas if in_pandas else groups.transformWithState
    return run(Nothing(), "carrier string", "Append", time_mode)


def by_pandas_function(rows: DataFrame) -> DataFrame:
    return rows.select(F.pandas_udf(lambda delay: delay, "double")("delay"))


@pytest.mark.parametrize(
    ("function", "package", "operator", "packages"),
    [
        (by_state_machine, "google.protobuf", "transformWithState", SPARK),
        (by_state_machine, "pandas", "transformWithState", PANDAS),
        (by_pandas_function, "pandas", "pandas_udf", PANDAS),
    ],
)
def test_an_operator_whose_package_is_not_installed(
    refusal: Refusal,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[[DataFrame], DataFrame],
    package: str,
    operator: str,
    packages: tuple[str, ...],
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark.sql.streaming.proto.StateMessage_pb2", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # importing it is an ImportError from now on
    said = refusal(function)
    assert said.startswith("Stage stage ")
    assert f"{operator}" in said and said.endswith(f"Run on each machine: {to_install(packages)}"), said


# Joins: Spark takes the keys and the times of a join's state from the optimised plan.

SIDES = """
[streams.some]
schema = "k string, v int, j string, ts timestamp"
event_time = "ts"
[streams.others]
schema = "bk string, w int, bj string, sec bigint, t2 timestamp, local timestamp_ntz, bts timestamp"
event_time = "bts"
"""


def paired(
    condition: str = "",
    behind: str = "true",
    how: str = "inner",
    *,
    some: str = "ts",
    others: str = "bts",
    kept: Sequence[str] = ("v", "w"),
) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """A join of both streams and a filter behind it; `some` and `others` have a watermark on these columns, if any."""

    def stage(left: DataFrame, right: DataFrame) -> DataFrame:
        left = left.where("ts IS NOT NULL").withWatermark(some, "1 hour") if some else left
        right = right.withWatermark(others, "1 hour") if others else right
        return left.join(right, F.expr(f"k = bk{condition}"), how).where(behind).select(*kept)

    return stage


def advised(said: str) -> str:
    """The part of a join's condition that is to be written."""
    found = re.search(r"Write in (?:the join's|its) condition(?: instead)?:( AND .*)\.$", said)
    assert found is not None, said
    return found[1]


@pytest.mark.parametrize(
    ("condition", "behind", "how"),
    first(
        (" AND bts >= ts", "bts <= ts + INTERVAL 2 HOURS", "inner"),
        (" AND bts BETWEEN ts AND ts + INTERVAL 30 MINUTES", "bts <= ts + INTERVAL 2 HOURS", "left"),
        (" AND bts BETWEEN ts AND ts + make_dt_interval(0, 2)", "true", "inner"),
        (" AND bts BETWEEN ts AND ts + make_interval(0, 0, 0, 0, 2)", "true", "inner"),
        each=9,
    ),
)
def test_a_time_bound_that_only_the_optimiser_puts_into_a_join(
    refusal: Refusal, analyse: Analyse, condition: str, behind: str, how: str
) -> None:
    """It moves the watermark behind the join, by which later rows are late."""
    said = refusal(paired(condition, behind, how), "some", "others", streams=SIDES)
    assert said.startswith("Stage stage: Spark's optimiser gives the join on k = bk another condition, from a filter")
    kept = condition if "make" not in condition else " AND bts >= ts"
    analyse(paired(kept + advised(said), behind, how), "some", "others", streams=SIDES)


def test_a_filter_behind_a_join_that_becomes_its_key(refusal: Refusal, analyse: Analyse) -> None:
    """By an event time, Spark drops rows before their partner comes; by an expression, null equals null."""
    said = refusal(paired(behind="ts = t2", others=""), "some", "others", streams=SIDES)
    assert advised(said) == " AND (ts = t2)"
    inside = refusal(paired(advised(said), others=""), "some", "others", streams=SIDES)
    assert "judged by column t2: it is the column t2 of stream 'others', whose event time is bts." in inside

    for behind, how in (
        ("get_json_object(j, '$.id') = get_json_object(bj, '$.id')", "inner"),
        ("nullif(v, 0) = nullif(w, 0)", "inner"),
        ("try_cast(j AS int) = try_cast(bj AS int)", "left"),
    ):
        bound = " AND bts BETWEEN ts AND ts + INTERVAL 2 HOURS"
        assert "are both null" in refusal(paired(bound, behind, how), "some", "others", streams=SIDES)

    def without_nulls(some: DataFrame, others: DataFrame) -> DataFrame:
        identified = some.withColumn("one", F.expr("nullif(v, 0)")).where("one IS NOT NULL")
        return identified.join(others, F.expr("k = bk")).where("one = nullif(w, 0)").select("v", "w")

    analyse(without_nulls, "some", "others", streams=SIDES)
    plain = ("v = w", "v < w", "nullif(v, 0) < nullif(w, 0)", "w > 3", "v = w OR j = bj", "bts > '2013-01-01'")
    for behind, how in zip(plain, ("inner", "left") * 3, strict=True):
        bound = " AND bts BETWEEN ts AND ts + INTERVAL 2 HOURS"
        analyse(paired(bound, behind, how), "some", "others", streams=SIDES)


@pytest.mark.parametrize("key", ["double(v) = double(w)", "struct(float(v)) = struct(float(w))", "j = bj"])
def test_keys_that_the_optimiser_only_normalises(analyse: Analyse, key: str) -> None:
    """0.0 and -0.0, or names that a collation takes for equal."""

    def stage(some: DataFrame, others: DataFrame) -> DataFrame:
        one, other = (F.expr(each) for each in key.split(" = "))
        left, right = some.withColumn("x", one), others.withColumn("y", other)
        if key == "j = bj":
            left, right = (each.withColumn(of, F.collate(of, "UTF8_LCASE")) for each, of in ((left, "x"), (right, "y")))
        return left.join(right, F.expr("k = bk AND x = y")).select("v", "w")

    analyse(stage, "some", "others", streams=SIDES)


def test_a_semi_join_that_the_optimiser_moves_below_a_union(analyse: Analyse) -> None:
    def stage(some: DataFrame, others: DataFrame) -> DataFrame:
        rows = some.select("k", "ts").withWatermark("ts", "1 hour")
        both = rows.union(rows.select(F.upper("k"), "ts"))
        near = F.expr("k = bk AND bts BETWEEN ts AND ts + INTERVAL 1 HOUR")
        return both.join(others.withWatermark("bts", "1 hour"), near, "leftsemi")

    analyse(stage, "some", "others", streams=SIDES)


def test_an_event_time_may_equal_another_one_plus_a_constant(refusal: Refusal, analyse: Analyse) -> None:
    """A row that is not late has a key that is not late. With a negative constant its partner may be gone."""

    def stage(sign: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def shifted(some: DataFrame, others: DataFrame) -> DataFrame:
            rows, later = some.withWatermark("ts", "1 hour"), others.withWatermark("bts", "1 hour")
            return rows.join(later, F.expr(f"k = bk AND bts = ts {sign} INTERVAL 10 MINUTES")).select("v", "w")

        return shifted

    analyse(stage("+"), "some", "others", streams=SIDES)
    assert "would drop rows that are not late" in refusal(stage("-"), "some", "others", streams=SIDES)


@pytest.mark.parametrize("time", first("timestamp_seconds(sec)", "local", "t2 - INTERVAL 1 HOUR"))
def test_an_event_time_that_equals_what_is_computed(refusal: Refusal, analyse: Analyse, time: str) -> None:
    said = refusal(paired(f" AND ts = {time}", others=""), "some", "others", streams=SIDES)
    assert "would drop rows that are not late, judged by " in said and "it is computed, and ts has a watermark" in said
    copy = re.search(r'\.withColumn\("(\w+)", F\.expr\("(.*?)"\)\) before the join, (.*) in its condition', said)
    assert copy is not None, said

    def pasted(some: DataFrame, others: DataFrame) -> DataFrame:
        timed = some.withWatermark("ts", "1 hour").withColumn(copy[1], F.expr(copy[2]))
        return timed.join(others, F.expr(f"k = bk AND {copy[3]}")).select("v", "w")

    analyse(pasted, "some", "others", streams=SIDES)


def test_a_window_of_the_event_time_that_equals_what_is_computed(refusal: Refusal, analyse: Analyse) -> None:
    def stage(copy: str, condition: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def joined(some: DataFrame, others: DataFrame) -> DataFrame:
            timed = some.withWatermark("ts", "1 hour").withColumn("w1", F.window("ts", "1 hour"))
            timed = (timed.withColumn("w1_copy", F.expr(copy)) if copy else timed).drop("ts")
            return timed.join(others, F.expr(f"k = bk AND {condition}")).select("v", "w")

        return joined

    said = refusal(stage("", "w1 = struct(t2 AS start, t2 AS end)"), "some", "others", streams=SIDES)
    copy = re.search(r'F\.expr\("(.*?)"\)\) before the join, (.*) in its condition', said)
    assert copy is not None, said
    analyse(stage(copy[1], copy[2]), "some", "others", streams=SIDES)


@pytest.mark.parametrize("kind", first("bigint", "int", "double"))
def test_seconds_in_the_time_condition_of_a_join(refusal: Refusal, analyse: Analyse, kind: str) -> None:
    bound = f" AND cast(bts AS {kind}) >= cast(ts AS {kind}) AND cast(bts AS {kind}) <= cast(ts AS {kind}) + 10"
    said = refusal(paired(bound), "some", "others", streams=SIDES)
    assert "would drop rows up to a second early" in said
    lower = advised(said)
    upper = advised(refusal(paired(lower + " AND" + bound.split(" AND")[2]), "some", "others", streams=SIDES))
    analyse(paired(lower + upper), "some", "others", streams=SIDES)


def test_a_limit_of_another_time_than_the_event_time(refusal: Refusal, analyse: Analyse) -> None:
    """Spark would drop a row of `others` once the watermark has passed its bts, and not its t2."""
    said = refusal(paired(" AND ts >= bts AND ts <= t2"), "some", "others", streams=SIDES)
    assert said.startswith(
        "Stage stage: in the condition of the join on k = bk Spark takes (ts <= t2) for a limit of the event time, and "
        "would drop rows too early. "
    )
    limit = re.search(r"for example:( AND .*?)\. Or", said)
    hidden = re.search(r"write (unix_micros.*) instead\.$", said)
    assert limit is not None and hidden is not None, said
    analyse(paired(f" AND ts >= bts AND ts <= t2{limit[1]}"), "some", "others", streams=SIDES)
    analyse(paired(f" AND ts >= bts AND {hidden[1]}"), "some", "others", streams=SIDES)


def test_a_number_that_spark_takes_for_the_event_time(refusal: Refusal, analyse: Analyse) -> None:
    """Rows without a partner would stay in the state. In an inner join, Spark filters by it before the join."""
    near = " AND bts BETWEEN ts AND ts + INTERVAL 1 HOUR"
    for how, number in (("inner", "v"), ("inner", "w"), ("left", "w")):
        analyse(paired(f"{near} AND {number} > 7", how=how), "some", "others", streams=SIDES)
    analyse(paired(f"{near} AND ts > '2024-01-01'", how="left"), "some", "others", streams=SIDES)
    said = refusal(paired(f"{near} AND cast(ts AS bigint) > 7", how="left"), "some", "others", streams=SIDES)
    assert "for a limit of the event time, and would keep rows forever" in said
    said = refusal(paired(f"{near} AND v > 7", how="left"), "some", "others", streams=SIDES)
    assert "Spark takes (v > 7) for a limit of the event time, and would keep rows forever" in said
    column = re.search(r'\.withColumn\("(\w+)", F\.expr\("(.*?)"\)\), write (\w+) instead', said)
    assert column is not None, said

    def pasted(some: DataFrame, others: DataFrame) -> DataFrame:
        return paired(f"{near} AND {column[3]}", how="left")(some.withColumn(column[1], F.expr(column[2])), others)

    analyse(pasted, "some", "others", streams=SIDES)


def test_rows_without_a_partner_that_never_leave_the_state(refusal: Refusal, analyse: Analyse) -> None:
    """Spark itself is content with a limit on one side of a full outer join."""

    def both(limit: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def stage(some: DataFrame, others: DataFrame) -> DataFrame:
            left, right = some.where("k IS NOT NULL AND ts IS NOT NULL"), others.where("bts IS NOT NULL")
            return paired(f" AND bts >= ts{limit}", how="full")(left, right)

        return stage

    said = refusal(both(" AND bts - ts <= INTERVAL 1 HOUR"), "some", "others", streams=SIDES)
    assert said.startswith(
        "Stage stage: the join on k = bk would never emit a row of its left side that has no partner, since its "
        "condition does not limit how late a partner can come. "
    )
    limit = re.search(r"for example:( AND .*?)\.$", said)
    assert limit is not None, said
    analyse(both(limit[1]), "some", "others", streams=SIDES)


def test_joins_that_the_optimiser_brings_into_another_order(refusal: Refusal) -> None:
    def stage(some: DataFrame, others: DataFrame, flights: DataFrame) -> DataFrame:
        rows, flown = some.withWatermark("ts", "1 hour"), flights.withWatermark("ts", "1 hour")
        flown = flown.select("carrier", F.col("ts").alias("left"))
        pairs = rows.join(others, F.expr("k = bk")).select("k", "v", "w", "ts")
        return pairs.join(flown, F.expr("k = carrier AND left BETWEEN ts AND ts + INTERVAL 1 HOUR"), "leftsemi")

    said = refusal(stage, "some", "others", "flights", streams=SIDES)
    assert said.startswith("Stage stage has 2 joins of two streams, and Spark's optimiser makes 2 others of them.")


@pytest.mark.parametrize("copy", first("to_timestamp(ts)", "array(ts)[0]", "IF(true, ts, null)"))
def test_a_copy_of_the_event_time_that_the_optimiser_finds(refusal: Refusal, analyse: Analyse, copy: str) -> None:
    """The query would fail with two event times."""

    def stage(copy: str, *, joined: bool) -> Callable[..., DataFrame]:
        def run(some: DataFrame, *others: DataFrame) -> DataFrame:
            rows = some.withWatermark("ts", "1 hour").withColumn("t", F.expr(copy))
            if joined:
                return rows.join(others[0], F.expr("k = bk AND bts >= ts")).select("k", "t")
            return rows.dropDuplicates(["k", "ts"]).select("k", "t")

        return run

    for inputs in (["some"], ["some", "others"]):
        joined = len(inputs) > 1
        said = refusal(stage(copy, joined=joined), *inputs, streams=SIDES)
        assert said.startswith("Stage stage: Spark's optimiser finds that t is the event time ts itself, and the query")
        advised = re.search(r'\.withColumn\("t", F\.expr\("(.*)"\)\)\.$', said)
        assert advised is not None, said
        analyse(stage(advised[1], joined=joined), *inputs, streams=SIDES)


def test_a_copy_of_the_event_time_beside_other_times(refusal: Refusal, analyse: Analyse) -> None:
    """Spark would judge the rows of the second stream by their `t2`, which no watermark knows."""

    def stage(behind: str = "t") -> Callable[[DataFrame, DataFrame], DataFrame]:
        def run(some: DataFrame, others: DataFrame) -> DataFrame:
            rows = some.withWatermark("ts", "1 hour").select("k", F.to_timestamp("ts").alias("t"))
            both = rows.union(others.select("bk", "t2")).withColumn("t", F.expr(behind))
            return both.dropDuplicates(["k", "t"])

        return run

    said = refusal(stage(), "some", "others", streams=SIDES)
    assert said.startswith(
        "Stage stage: the deduplication by k, t would drop rows that are not late, judged by column t: it is the "
        "column t2 of stream 'others', whose event time is bts. Spark's optimiser finds that t is an event time"
    )
    computed = re.search(r'\.withColumn\("t", F\.expr\("(.*)"\)\)\.$', said)
    assert computed is not None, said
    analyse(stage(computed[1]), "some", "others", streams=SIDES)


def test_a_python_function_of_both_sides_of_an_outer_join(refusal: Refusal) -> None:
    def stage(some: DataFrame, others: DataFrame) -> DataFrame:
        near = F.udf(lambda v, w: v == w, "boolean")("v", "w")
        timed = some.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        bound = F.expr("k = bk AND bts BETWEEN ts AND ts + INTERVAL 1 HOUR")
        return timed.join(others.withWatermark("bts", "1 hour"), bound & near, "left").select("v", "w")

    said = refusal(stage, "some", "others", streams=SIDES)
    assert "Python UDF in the ON clause of a LEFT OUTER JOIN" in said and "Write the condition with SQL" in said


def test_the_fingerprint_sees_the_arguments_of_lambdas(analyse: Analyse) -> None:
    """All arguments have one name in SQL, so that a state went on with the keys of another code."""

    def fingerprint(merge: Callable[[Column, Column], Column]) -> str:
        def stage(rows: DataFrame) -> DataFrame:
            key = F.aggregate(F.array("delay", F.lit(1.0)), F.lit(0.0), merge).alias("key")
            return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), key).count()

        return analyse(stage).plan.fingerprint

    codes = [lambda total, one: total - one, lambda one, total: one - total, lambda total, one: one - total]
    prints = [fingerprint(merge) for merge in codes]
    assert (prints[0] == prints[1], prints[0] == prints[2]) == (True, False)


def test_a_value_that_differs_from_start_to_start_is_warned_of(analyse: Analyse) -> None:
    def at(value: Callable[[], Any]) -> Callable[[DataFrame], DataFrame]:
        def stage(rows: DataFrame) -> DataFrame:
            return rows.withWatermark("ts", "1 hour").select("carrier", F.lit(value()).alias("at"))

        return stage

    for differs in (lambda: datetime.now(UTC), random.random):
        [warning] = analyse(at(differs)).stages["stage"].analysis.warnings
        assert warning == (
            "Stage stage has a value in it that differs from start to start, as datetime.now() does: a second run over "
            "the same input may give another output."
        )
    assert not analyse(at(lambda: datetime(2024, 1, 1, tzinfo=UTC))).stages["stage"].analysis.warnings


def test_a_value_behind_many_columns_is_warned_of(analyse: Analyse) -> None:
    """Spark's text of a plan ends after 25 of them."""
    many = [F.lit(number).alias(f"c{number}") for number in range(30)]

    def warnings(value: Callable[[], Column]) -> list[str]:
        found = analyse(lambda rows: rows.select(*many, value().alias("at"))).stages["stage"].analysis.warnings
        return [re.sub(r"Stage stage (.*?)[,:].*", r"\1", each) for each in found]

    assert warnings(F.current_timestamp) == ["uses the time at which a batch runs"]
    assert warnings(lambda: F.lit(random.random())) == ["has a value in it that differs from start to start"]


def test_aggregates_that_depend_on_the_order_of_rows_are_warned_of_once_with_their_line(analyse: Analyse) -> None:
    """They were neither refused nor warned of."""

    def warnings(*functions: str) -> list[str]:
        def stage(rows: DataFrame) -> DataFrame:
            grouped = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 hour"), "carrier")
            return grouped.agg(F.count("*"), *map(F.expr, functions))

        return [*analyse(stage).stages["stage"].analysis.warnings]

    [said] = warnings("first(delay)", "last(delay, true)", "collect_list(delay)", "max(delay)")
    lines = said.splitlines()
    assert lines[0].startswith("Stage stage uses first and last and collect_list, whose result depends on the order")
    assert re.fullmatch(rf"    {re.escape(__file__)}, line \d+: return grouped\.agg\(.*", lines[1])
    for each in ("any_value(carrier)", "last_value(carrier)", "collect_set(carrier)", "listagg(carrier)"):
        assert len(warnings(each)) == 1, each
    assert not warnings(
        "array_sort(collect_list(delay))",
        "sort_array(collect_set(delay), false)",
        "size(collect_set(carrier))",
        "listagg(carrier) WITHIN GROUP (ORDER BY carrier)",
        "min_by(delay, ts)",
        "percentile_approx(delay, 0.5)",
    )


def test_what_spark_numbers_anew_is_no_warning(analyse: Analyse, spark: SparkSession) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        rows = rows.withWatermark("ts", "1 hour").withColumn("many", F.transform(F.array("delay"), lambda one: one + 1))
        query = (
            "WITH few AS (SELECT * FROM {rows}) SELECT carrier, many FROM few UNION ALL SELECT carrier, many FROM few"
        )
        return spark.sql(query, rows=rows.observe("seen", F.count("*")))

    assert not analyse(stage).stages["stage"].analysis.warnings


def test_state_by_a_value_that_differs_from_start_to_start_is_refused(analyse: Analyse) -> None:
    def stage(rows: DataFrame) -> DataFrame:
        rows = rows.withWatermark("ts", "1 hour")
        groups = rows.groupBy(F.window("ts", "1 hour"), (F.col("delay") + random.random()).alias("key"))
        return groups.agg(F.collect_set("carrier"))  # which Spark does not call deterministic

    with pytest.raises(PipelineRefused, match="depends on a value that your code works out, which differs from start"):
        analyse(stage)


HOURS = '[streams.out]\nevent_time = "hour"\n'


def by_window_and_hour(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "1 minute").groupBy(
        F.window("ts", "1 day"), F.date_trunc("hour", "ts").alias("hour"), "carrier"
    )


def test_a_time_computed_beside_a_window(refusal: Refusal, analyse: Analyse) -> None:
    """A row is emitted when its window is complete, so up to a day after the hour: 15 of 24 rows were late behind it,
    since the hour had the bound of the window's end."""

    def hours(rows: DataFrame) -> DataFrame:
        return by_window_and_hour(rows).count().select("hour", "carrier", "count")

    hour_us = 3_600_000_000
    assert analyse(hours, streams=HOURS).stages["stage"].analysis.frontier == (Term(None, -25 * hour_us),)

    def sessions(rows: DataFrame) -> DataFrame:
        marked = rows.withWatermark("ts", "1 minute").where("ts IS NOT NULL")
        return marked.groupBy(F.session_window("ts", "1 hour"), F.date_trunc("hour", "ts").alias("hour")).count()

    assert "how old its later rows can be is unknown" in refusal(sessions, streams=HOURS, tasks=1)

    def copies(rows: DataFrame, others: DataFrame) -> DataFrame:
        copied = rows.withWatermark("ts", "1 minute").withColumn("at", F.expr("ts + INTERVAL 0 SECONDS"))
        counted = (
            copied.groupBy(F.window("ts", "1 day"), "at", "carrier").count().select("at", F.col("carrier").alias("c"))
        )
        return counted.join(others.withWatermark("ts", "1 minute"), F.expr("c = carrier AND at = ts"))

    assert "judged by column at: the aggregation keeps its groups until" in refusal(copies, "flights", "flights")

    def by_hour(rows: DataFrame) -> DataFrame:
        marked = rows.withWatermark("ts", "1 minute").where("ts IS NOT NULL")
        return marked.groupBy("ts", F.date_trunc("hour", "ts").alias("hour"), "carrier").count()

    assert analyse(by_hour, streams=HOURS).stages["stage"].analysis.frontier == (Term(None, -hour_us),)


def test_a_time_in_a_struct_beside_a_window(refusal: Refusal) -> None:
    """It had the bound of the input's rows, though its group is emitted a day later: 144 of 200 groups were lost."""

    def grouped(rows: DataFrame) -> DataFrame:
        packed = rows.withWatermark("ts", "1 minute").select("ts", "carrier", F.struct("carrier", "ts").alias("s"))
        at = F.expr("s.ts + INTERVAL 0 SECONDS").alias("hour")
        return packed.groupBy(F.window("ts", "1 day"), at, "carrier").count().select("hour", "carrier")

    assert "the aggregation keeps its groups until the watermark passes" in refusal(grouped, streams=HOURS)


def test_a_window_that_the_branches_of_a_union_compute_from_other_columns(refusal: Refusal) -> None:
    """It was mistaken for a window over the column of the first branch."""

    def united(rows: DataFrame) -> DataFrame:
        marked = rows.withWatermark("ts", "1 minute")
        one = marked.select(F.window("ts", "1 day").alias("w"), "ts", "carrier")
        other = marked.select(F.window(F.expr("ts + INTERVAL 30 DAYS"), "1 day").alias("w"), "ts", "carrier")
        hours = one.union(other).groupBy("w", F.date_trunc("hour", "ts").alias("hour"), "carrier")
        return hours.count().select("hour", "carrier")

    assert "how old its later rows can be is unknown" in refusal(united, streams=HOURS)


def test_two_fields_of_a_struct_with_one_name(analyse: Analyse) -> None:
    """Both had the bound of the last one."""

    def stage(rows: DataFrame) -> DataFrame:
        early = F.expr("ts - INTERVAL 1 DAY")
        packed = rows.withWatermark("ts", "1 minute").select(
            F.struct(early.alias("t"), F.col("ts").alias("t")).alias("s")
        )
        return packed.repartition(1).select("s.*").toDF("hour", "later")

    assert analyse(stage, streams=HOURS).stages["stage"].analysis.frontier == (Term(0, -DAY_US),)


def test_an_event_time_in_a_struct_that_the_optimiser_takes_out(refusal: Refusal, analyse: Analyse) -> None:
    """Its mark comes along, and the operator above drops rows by it: 2 of 4 joined rows were late."""

    def latest(*fields: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
            last = F.max(F.struct("ts", "delay", F.expr("ts + INTERVAL 0 SECONDS").alias("copy"))).alias("last")
            days = rows.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 day"), "carrier").agg(last)
            return days.select("carrier", "last").join(others, "carrier").select("carrier", *fields)

        return stage

    assert refusal(latest("last.ts"), "flights", "plain").startswith(
        "Stage stage: the join on carrier = carrier would drop rows that are not late, judged by column ts: "
    )
    for fields in ("last.*", "last.delay", "last.copy"):
        analyse(latest(fields), "flights", "plain")

    def first(rows: DataFrame, others: DataFrame) -> DataFrame:
        packed = rows.withWatermark("ts", "1 minute").select("carrier", F.struct("ts", "delay").alias("s"))
        return packed.dropDuplicates(["carrier"]).join(others, "carrier").select("carrier", "s.ts")

    analyse(first, "flights", "plain")  # a deduplication passes rows on as they arrive

    def counted(copy: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
        def stage(rows: DataFrame, others: DataFrame) -> DataFrame:
            packed = rows.withWatermark("ts", "1 minute").withColumn("copy", F.expr("ts + INTERVAL 0 SECONDS"))
            packed = packed.select("carrier", F.struct("ts", "copy").alias("s"))
            return packed.join(others, "carrier").groupBy(copy, "carrier").count()

        return stage

    said = refusal(counted("s.ts"), "flights", "plain", output_mode="update")
    assert "would drop rows that are not late, judged by column ts: " in said
    assert "put into the struct what is computed of it, such as the time + INTERVAL 0 SECONDS." in said
    analyse(counted("s.copy"), "flights", "plain", output_mode="update")


def test_the_mark_of_a_watermark_from_a_schema(refusal: Refusal, analyse: Analyse) -> None:
    """Nothing ever came out: the mark is in the schema, and no watermark is behind it."""

    def stage(kind: str) -> Callable[[DataFrame], DataFrame]:
        def made(rows: DataFrame) -> DataFrame:
            schema = rows.withWatermark("ts", "1 minute").schema
            marked = (rows.withWatermark("ts", "1 hour") if "right" in kind else rows).to(schema)
            if "unique" in kind:
                return marked.dropDuplicatesWithinWatermark(["carrier"])
            return marked.groupBy(F.window("ts", "1 hour"), "carrier").count()

        return made

    remedy = (
        "since no withWatermark is before it. Its column {} has the mark of one from a schema that was taken from "
        'other rows. Set one before it, .withWatermark("ts", "1 hour").'
    )
    assert refusal(stage("counted")).endswith(" would never emit a group, " + remedy.format("window"))
    assert refusal(stage("unique")).endswith(" would never forget a key, " + remedy.format("ts"))
    analyse(stage("counted, right"))
    analyse(stage("counted"), output_mode="update")


def test_less_usual_sql_is_refused_by_what_its_author_wrote(refusal: Refusal, spark: SparkSession) -> None:
    """Spark's own plan has a join, a table or a name that nobody wrote."""
    near = "SELECT carrier, (SELECT max(id) FROM range(9) WHERE id < delay) AS n FROM {rows}"
    assert "Spark computes a subquery by joining a stream with itself" in refusal(
        lambda rows: spark.sql(near, rows=rows)
    )

    now = "SELECT carrier, at FROM {rows} CROSS JOIN (VALUES (current_timestamp())) AS t(at)"
    assert "has VALUES with a value that is no constant" in refusal(lambda rows: spark.sql(now, rows=rows))

    first = "SELECT * FROM {rows} QUALIFY row_number() OVER (PARTITION BY carrier ORDER BY ts) = 1"
    assert "PARTITION BY carrier ORDER BY ts" in refusal(lambda rows: spark.sql(first, rows=rows))

    def outer(rows: DataFrame, others: DataFrame) -> DataFrame:
        ours = rows.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        theirs = others.withWatermark("ts", "1 hour").select(F.col("carrier").alias("c"), F.col("ts").alias("at"))
        return ours.join(theirs, F.expr("carrier = c AND at BETWEEN ts AND ts + INTERVAL 1 HOUR"), "left")

    said = refusal(outer, "flights", "flights", output_mode="update")
    assert said.endswith('Use output mode append: remove output_mode="update" from @app.stage.')

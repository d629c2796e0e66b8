"""A pipeline as it is loaded and cut into tasks."""

import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused, in_full
from samza_azure.pipeline.analysed import Pipeline, Producer
from samza_azure.spark.pipeline.module import load
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .task_driver import config_of

SOURCE = """
[streams.numbers]
partitions = %d
schema = "n int, text string"
[streams.shuffled]
partitions = 3
"""


def application_in(directory: Path, module: str, source: str, main: str | None = None) -> Application:
    """What `load` makes of a module with this source beside the job file."""
    if source:
        (directory / f"{module}.py").write_text(textwrap.dedent(source))
    storage = '[azure.storage]\nconnect = "UseDevelopmentStorage=true"\n'
    head = f'[app]\nname = "test"\nmain = "{main or module + ":app"}"\n{storage}'
    return load(config_of(directory, head=head))


def refused(directory: Path, module: str, source: str, main: str | None = None) -> str:
    """Why a module is not loaded, or the decorator in it that is refused."""
    try:
        [(_, said, place)] = application_in(directory, module, source, main).refused
    except PipelineRefused as error:
        return in_full(error)
    return f"{said}\n  {place}"


@pytest.fixture(autouse=True)
def _same_path_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_application_beside_the_job_file_is_loaded(tmp_path: Path) -> None:
    found = application_in(tmp_path, "pipeline_here", "from samza_azure import Application\napp = Application()\n")
    assert found.stages == []


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    said = refused(tmp_path, "pipeline_nowhere", "")
    assert said.startswith("app.main is 'pipeline_nowhere:app', but there is no module pipeline_nowhere next to ")
    text, _, place = said.partition("\n  ")
    assert text.endswith("and none is installed. Write it, or name another one.")
    assert place.endswith(".toml, line 3")


def test_a_module_that_needs_one_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path, "pipeline_needs", "import nowhere_at_all\n") == (
        "app.main is 'pipeline_needs:app', and pipeline_needs needs the module nowhere_at_all, which is not "
        "installed. Is it spelt right? If so, put its file beside the job file, or install what has it on each "
        "machine.\n"
        f"  {tmp_path / 'pipeline_needs.py'}, line 1: import nowhere_at_all"
    )


def test_a_module_whose_name_is_written_wrongly(tmp_path: Path) -> None:
    (tmp_path / "pipeline_right.py").touch()
    assert "Did you mean 'pipeline_right'?" in refused(tmp_path, "pipeline_rihgt", "")


def test_two_stages_with_one_output_are_refused_with_the_line_of_the_second(tmp_path: Path) -> None:
    stages = "@app.stage('a', output='x')\ndef one(a): return a\n@app.stage('a', output='x')\ndef two(a): return a\n"
    said = refused(tmp_path, "pipeline_twice", "from samza_azure import Application\napp = Application()\n" + stages)
    assert said.startswith("Stages one and two both write the stream 'x'.")
    assert f"{tmp_path / 'pipeline_twice.py'}, line 5" in said


def test_another_name_for_the_application(tmp_path: Path) -> None:
    source = "from samza_azure import Application\njob = Application()\n"
    said = refused(tmp_path, "pipeline_other", source)
    text, _, place = said.partition("\n  ")
    assert text.endswith('Write in the job file: main = "pipeline_other:job".')
    assert place.startswith(str(tmp_path)) and place.endswith(".toml, line 3"), "the line to change"


def test_a_decorator_is_advised_with_the_name_of_the_application(tmp_path: Path) -> None:
    head = "from samza_azure import Application\nshop = Application()\n"
    source = head + '@shop.stage("a", output="b")\ndef c(a): ...\n'
    [stage] = application_in(tmp_path, "pipeline_shop", source, "pipeline_shop:shop").stages
    assert stage.decorator(tasks=1) == '@shop.stage("a", output="b", tasks=1)'


def test_a_module_that_raises(tmp_path: Path) -> None:
    assert refused(tmp_path, "pipeline_raises", "x = 1\n1 / 0\n") == (
        f"The module pipeline_raises cannot be imported: ZeroDivisionError: division by zero.\n"
        f"  {tmp_path / 'pipeline_raises.py'}, line 2: 1 / 0"
    )


def test_a_module_that_ends_the_program(tmp_path: Path) -> None:
    assert refused(tmp_path, "pipeline_exits", "raise SystemExit(5)\n") == (
        "The module pipeline_exits cannot be imported: SystemExit: 5.\n"
        f"  {tmp_path / 'pipeline_exits.py'}, line 1: raise SystemExit(5)"
    )


def test_a_module_with_a_mistake_in_its_grammar(tmp_path: Path) -> None:
    said = refused(tmp_path, "pipeline_grammar", "def f(:\n")
    assert said.startswith("The module pipeline_grammar cannot be imported: Syntax error: ")
    assert said.endswith(f"{tmp_path / 'pipeline_grammar.py'}, line 1: def f(:")


def test_a_file_with_the_name_of_a_module_of_pythons(tmp_path: Path) -> None:
    """Python has imported its own long before."""
    assert refused(tmp_path, "calendar", "from samza_azure import Application\napp = Application()\n").startswith(
        "app.main is 'calendar:app', but Python has a module calendar of its own, which is imported instead. Rename "
        f"calendar.py, and write its new name in app.main.\n  {tmp_path}"
    )


def test_a_file_with_the_name_of_an_installed_package(tmp_path: Path) -> None:
    """It was advised to write `app = Application()` into pyspark itself."""
    assert refused(tmp_path, "pyspark", "from samza_azure import Application\napp = Application()\n").startswith(
        "app.main is 'pyspark:app', but another module pyspark is at "
        f"{pyspark.__file__}, which is imported instead. Rename pyspark.py, and write its new name in app.main.\n"
        f"  {tmp_path}"
    )


HEAD = "from functools import partial\nfrom samza_azure import Application\napp = Application()\ndef f(a, by): ...\n"
#: A decorator as somebody might write it, and what is said.
DECORATED = {
    "app.stage(['a', 'c'], output='b')(f)": "Stage f names the stream ['a', 'c']. A name is a text, and each input is "
    'an argument of its own. Write @app.stage("a", "c", output="b").',
    "app.stage(f, output='b')(f)": "A name is a text, and each input is an argument of its own. "
    'Write @app.stage("name", output="b").',
    "app.stage('a', output=['b'])(f)": "Stage f names the stream ['b']. A name is a text, and each input is an "
    'argument of its own. Write @app.stage("a", output="b").',
    "app.task(['a'])(f)": "Stage f names the stream ['a']. A name is a text, and each input is an argument of its own. "
    'Write @app.task("a").',
    "app.stage('a', output='b')(partial(f, by=3))": "A stage takes the name of what is decorated, and functools.p",
    "app.task('a')(partial(f, by=3))": "by=3) has no name. Decorate a function with def that returns the handler.",
}


@pytest.mark.parametrize("number", range(len(DECORATED)))
def test_a_decorator_with_what_is_no_name(tmp_path: Path, number: int) -> None:
    line, wanted = list(DECORATED.items())[number]
    said = refused(tmp_path, f"pipeline_decorated_{number}", HEAD + line + "\n")
    assert wanted in said and "line 5: app." in said


def test_an_attribute_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path, "pipeline_empty", "x = 1\n").startswith(
        "app.main is 'pipeline_empty:app', but pipeline_empty has no attribute app. Write there: app = Application()."
        f"\n  {tmp_path}"
    )


def test_an_attribute_that_is_no_application(tmp_path: Path) -> None:
    assert refused(tmp_path, "pipeline_int", "app = 7\n").startswith(
        f"pipeline_int:app is a int, not an Application. Write: app = Application().\n  {tmp_path}"
    )


Analyse = Callable[..., Pipeline]


@pytest.fixture
def analyse(spark: SparkSession, tmp_path: Path) -> Analyse:
    """Analyses stages given as (name, inputs, output, partition_by)."""

    def run(*stages: tuple[Any, ...], streams: str = SOURCE % 2) -> Pipeline:
        application = Application()
        for name, inputs, output, *keys in stages:
            function = _identity if len(inputs) == 1 else _union
            _named(application, function, name, inputs, output, keys)
        return analyse_pipeline(spark, application, config_of(tmp_path, streams), tmp_path / "analysis")

    return run


def _identity(rows: Any) -> Any:
    return rows


def _union(rows: Any, others: Any) -> Any:
    return rows.union(others)


def _named(
    application: Application, function: Any, name: str, inputs: Any, output: str, keys: Any, **options: Any
) -> None:
    def stage(*frames: Any) -> Any:
        return function(*frames)

    stage.__name__ = name
    application.stage(*inputs, output=output, partition_by=keys, **options)(stage)


def test_tasks_read_their_partition_of_every_producer(analyse: Analyse) -> None:
    pipeline = analyse(("second", ["shuffled"], "out"), ("first", ["numbers"], "shuffled", "n"))

    assert pipeline.plan.tasks() == ["first-0", "first-1", "second-0", "second-1", "second-2"]
    assert pipeline.plan.sources == {"numbers": 2}
    assert [each.producers for each in pipeline.inputs_of("first-1", "run")] == [
        (Producer("streams/numbers/1", frozenset({0}), "numbers/1"),)
    ]
    assert [each.producers for each in pipeline.inputs_of("second-2", "run")] == [
        (Producer("runs/run/first-0", frozenset({2})), Producer("runs/run/first-1", frozenset({2})))
    ]
    assert pipeline.readers_of("runs/run/first-1", "run") == [
        "runs/run/second-0",
        "runs/run/second-1",
        "runs/run/second-2",
    ]
    assert pipeline.readers_of("runs/run/second-1", "run") == []
    assert pipeline.readers_of("streams/numbers/1", "run") == ["runs/run/first-1"]


def test_a_stream_without_keys_keeps_its_producers_partitions(analyse: Analyse) -> None:
    pipeline = analyse(("first", ["numbers"], "plain"), ("second", ["plain"], "out"))

    assert [each.producers for each in pipeline.inputs_of("second-1", "run")] == [
        (Producer("runs/run/first-1", frozenset({1})),)
    ]
    assert pipeline.readers_of("runs/run/first-1", "run") == ["runs/run/second-1"]


def test_task_count_groups_partitions(analyse: Analyse) -> None:
    pipeline = analyse(("first", ["numbers"], "out"), streams=SOURCE % 5 + "[task]\ncount = 2\n")

    assert pipeline.plan.tasks() == ["first-0", "first-1"]
    assert [producer.source for producer in pipeline.inputs_of("first-1", "run")[0].producers] == [
        "numbers/1",
        "numbers/3",
    ]


def test_stages_that_wait_for_each_other_are_refused(analyse: Analyse) -> None:
    with pytest.raises(PipelineRefused) as caught:
        analyse(("one", ["b"], "a"), ("two", ["a"], "b"))
    assert str(caught.value) == "The stages one, two wait for each other's output. Break the cycle."


def test_an_application_without_a_stage_is_refused(analyse: Analyse) -> None:
    with pytest.raises(PipelineRefused, match="has no stage"):
        analyse()


def test_the_fingerprint_is_of_what_a_run_depends_on(analyse: Analyse) -> None:
    """Of names, streams, partitions and schemas; not of the order in which stages are written down."""
    first, second = ("first", ["numbers"], "shuffled", "n"), ("second", ["shuffled"], "out")
    print_of = analyse(first, second).plan.fingerprint

    assert analyse(second, first).plan.fingerprint == print_of
    assert analyse(("other", *first[1:]), second).plan.fingerprint != print_of
    assert analyse(("first", ["numbers"], "shuffled", "text"), second).plan.fingerprint != print_of
    assert analyse(first, second, streams=SOURCE % 3).plan.fingerprint != print_of
    assert analyse(first, second, streams=(SOURCE % 2).replace("n int", "n long")).plan.fingerprint != print_of
    commented = (SOURCE % 2).replace("n int", "n int COMMENT 'of the day'")
    assert analyse(first, second, streams=commented).plan.fingerprint == print_of
    unread = [(SOURCE % 2).replace("partitions = 3", f"partitions = {count}") for count in (3, 4)]
    assert len({analyse(first, streams=streams).plan.fingerprint for streams in unread}) == 2


TIMED = """
[streams.timed]
partitions = 2
schema = "key string, n int, ts timestamp, spare int, `k#1` string, `k#2` string"
event_time = "ts"
[streams.others]
partitions = 2
schema = "name string, m int, at timestamp"
event_time = "at"
"""
ONE_TASK = "[task]\ncount = 1\n"  # without routed streams, whose keys are part of the fingerprint as well


class Silent(StatefulProcessor):
    """Emits nothing."""

    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        return iter(())


@pytest.fixture
def one_stage(spark: SparkSession, tmp_path: Path) -> Callable[..., Pipeline]:
    """Analyses a function as the only stage of a pipeline."""

    def analysed(
        function: Callable[..., DataFrame], *inputs: str, more: str = "", streams: str = TIMED, mode: str = "append"
    ) -> Pipeline:
        application = Application()
        _named(application, function, "stage", inputs or ["timed"], "out", (), output_mode=mode)
        config = config_of(tmp_path, streams + more)
        return analyse_pipeline(spark, application, config, tmp_path / "analysis")

    return analysed


@pytest.mark.parametrize("is_all", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_fingerprint_sees_the_state(one_stage: Callable[..., Pipeline], is_all: bool) -> None:
    """Codes that would read each other's state are different pipelines; a fix beside it is none."""

    def print_of(*code: Any, **options: str) -> str:
        analysed.append(one_stage(*code, **options))
        return analysed[-1].plan.fingerprint

    analysed: list[Pipeline] = []

    def counted(
        rows: DataFrame,
        window: str = "1 day",
        delay: str = "1 hour",
        by: str = "key",
        function: str = "count(n)",
        only: str = "true",
    ) -> DataFrame:
        grouped = rows.where(only).withWatermark("ts", delay).groupBy(F.window("ts", window), F.expr(by).alias("k"))
        return grouped.agg(F.expr(function).alias("total").cast("bigint"))

    def matched(
        rows: DataFrame, others: DataFrame, hours: int = 2, kind: str = "inner", more: str = "true"
    ) -> DataFrame:
        near = F.expr(f"key = name AND at BETWEEN ts AND ts + INTERVAL {hours} HOURS AND {more}")
        timed = rows.where("ts IS NOT NULL").withWatermark("ts", "1 hour")
        joined = timed.join(others.withWatermark("at", "1 hour"), near, kind)
        return joined.select("key", "n", "m")

    def remembered(rows: DataFrame, timeout: str = "NoTimeout", state: str = "n long") -> DataFrame:
        groups = rows.withWatermark("ts", "1 hour").groupBy("key")
        return groups.applyInPandasWithState(lambda *_: iter(()), "key string, n long", state, "append", timeout)

    def followed(rows: DataFrame, time: str = "None") -> DataFrame:
        groups = rows.withWatermark("ts", "1 hour").groupBy("key")
        return groups.transformWithState(Silent(), "key string", "Append", time)

    def distinct(rows: DataFrame, by: list[str]) -> DataFrame:
        return rows.dropDuplicates(by).select("key", "n")

    def some(rows: DataFrame, most: int = 3) -> DataFrame:
        return rows.limit(most)

    def both(rows: DataFrame, again: DataFrame, *, turned: bool) -> DataFrame:
        first, second = (again, rows) if turned else (rows, again)
        return first.union(second)

    def parts(rows: DataFrame, *, turned: bool) -> DataFrame:
        few, many = counted(rows, only="n < 3"), counted(rows, only="n > 3")
        return many.union(few) if turned else few.union(many)

    def pairs(rows: DataFrame, again: DataFrame, *, turned: bool, by: str = "n") -> DataFrame:
        less = again["n"] < rows["n"] if turned else rows["n"] < again["n"]
        joined = rows.join(again, (rows["key"] == again["key"]) & less)
        return joined.select(rows["key"], (rows if by == "n" else again)["n"]).dropDuplicates()

    def used(rows: DataFrame, function: str) -> DataFrame:
        groups = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key")
        return groups.agg(F.min("n").alias("least"), F.max("n").alias("most")).select(
            (F.expr(function) * 10).alias("x")
        )

    def joined(rows: DataFrame, others: DataFrame, column: str) -> DataFrame:
        found = rows.withColumn("more", F.col("n") * 2).join(others, F.col("key") == F.col("name"))
        return found.select((F.col(column) * 10).alias("x"))

    codes: list[tuple[Any, ...]] = [
        (counted,),
        (partial(counted, window="1 hour"),),
        (partial(counted, delay="0 seconds"),),
        (partial(counted, by="upper(key)"),),
        (partial(counted, function="max(n)"),),
        (matched, "timed", "others"),
        (partial(matched, hours=3), "timed", "others"),
        (partial(matched, kind="leftOuter"), "timed", "others"),
        (remembered,),
        (partial(remembered, timeout="EventTimeTimeout"),),
        (partial(remembered, state="n long, last long"),),
        (followed,),
        (partial(followed, time="EventTime"),),
    ]
    common: list[tuple[Any, ...]] = [  # with what Spark works out once for several uses
        (partial(counted, by="nullif(upper(key), 'A')"),),
        (partial(counted, function="count_if(n IS NULL)"),),
        (partial(counted, function="count_if(key IS NULL)"),),
        (partial(matched, more="n + m BETWEEN 1 AND 3"), "timed", "others"),
        (partial(matched, more="n * m BETWEEN 1 AND 3"), "timed", "others"),
    ]
    codes += common
    codes += [  # what SQL does not say: arguments that are no expressions, and which of two columns of one name
        *((partial(counted, by=f"key LIKE ANY ('a', '{more}')"),) for more in "bc"),
        *((partial(counted, by=f"from_json(key, 'x {kind}').x IS NULL"),) for kind in ("int", "string")),
        *((partial(counted, function=f"approx_count_distinct(n, {error})"),) for error in (0.01, 0.1)),
        *((partial(counted, function=f"first(n{more})"),) for more in ("", ", true")),
        *((partial(counted, function=f"max(key LIKE ANY ('a', '{more}'))"),) for more in "bc"),
        *((partial(pairs, turned=turned), "timed", "timed") for turned in (False, True)),
        (partial(pairs, turned=True, by="again"), "timed", "timed"),
    ]
    codes += [  # Spark's optimiser removes what nothing uses from the state: one sum went on as the other
        *((partial(used, function=each),) for each in ("least", "most", "least + most", "most + least")),
        *((partial(joined, column=each), "timed", "others") for each in ("n", "more")),
    ]
    codes += [  # offsets and state are numbered in the order of sources and operators
        *((partial(both, turned=turned), "timed", "timed") for turned in (False, True)),
        *((partial(parts, turned=turned),) for turned in (False, True)),
    ]
    codes = codes if is_all else [*codes[:6], *codes[-4:]]  # some of each kind
    prints, every = [print_of(*code) for code in codes], 1 if is_all else 4
    assert [print_of(*code) for code in codes[::every]] == prints[::every], "a second analysis in one process"
    assert not any("common_expr" in str(each.plan.described) for each in analysed)
    on_one_task = (some, partial(some, most=4), partial(distinct, by=["key"]), partial(distinct, by=["key", "n"]))
    prints += [print_of(code, more=ONE_TASK) for code in on_one_task]
    timed = '[streams.out]\nevent_time = "window"\n'
    prints += [print_of(counted, more=more) for more in (timed, timed + 'frontier_lag = "1 h"\n')]
    prints.append(print_of(counted, mode="update"))
    prints.append(print_of(counted, streams=TIMED.replace('event_time = "ts"', 'event_time = "ts"\nkey = "n"')))
    assert len(set(prints)) == len(prints)
    assert print_of(partial(counted, only="n > 3")) == prints[0]
    assert print_of(counted, more='[task]\nstate = "rocksdb"\n') not in prints


def summed(rows: DataFrame, of: str = "x") -> DataFrame:
    return rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key").agg(F.sum(of).alias("total"))


def near(rows: DataFrame, others: DataFrame, condition: str, **columns: str) -> DataFrame:
    """A join of rows that have more columns before it."""
    rows = rows.withWatermark("ts", "1 hour").withColumns({name: F.expr(each) for name, each in columns.items()})
    in_time = "key = name AND at BETWEEN ts AND ts + INTERVAL 1 DAY"
    return rows.join(others.withWatermark("at", "1 hour"), F.expr(f"{in_time} AND {condition}"))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_the_fingerprint_sees_what_state_is_computed_from(one_stage: Callable[..., Pipeline], every: int) -> None:
    """An operator names a column that an earlier one computes. Computed otherwise, it went on with the old state."""

    def total(rows: DataFrame, of: str) -> DataFrame:
        return summed(rows.select("key", "ts", F.expr(of).alias("x")))

    def limited(rows: DataFrame, others: DataFrame, times: int) -> DataFrame:
        return near(rows, others, "m < most", most=f"n * {times}").select("key", "n", "m")

    def until(rows: DataFrame, others: DataFrame, hours: int) -> DataFrame:
        condition = "unix_micros(at) <= unix_micros(until)"
        return near(rows, others, condition, until=f"ts + INTERVAL {hours} HOURS").select("key", "n", "m")

    def beside(rows: DataFrame, others: DataFrame, times: int) -> DataFrame:
        joined = near(rows, others, "true", most=f"n * {times}").withColumn("both", F.expr("most + m"))
        return joined.select("both").dropDuplicates()

    def words(rows: DataFrame, made: str) -> DataFrame:
        found = rows.withWatermark("ts", "1 hour").selectExpr(made, "ts")
        return found.groupBy(F.window("ts", "1 day"), "word").count()

    def merged(rows: DataFrame, again: DataFrame, of: str) -> DataFrame:
        return summed(rows.selectExpr("key", "ts", "n AS x").union(again.selectExpr("key", "ts", f"{of} AS x")))

    def odd(rows: DataFrame, name: str) -> DataFrame:
        return rows.select(F.col(f"`{name}`").alias("k")).dropDuplicates(["k"])

    called = F.udf(lambda n: n, "bigint")

    def used(rows: DataFrame, of: str) -> DataFrame:
        groups = rows.withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day"), "key")
        sums = groups.agg(*(F.sum(called(each)).alias(each) for each in ("n", "spare")))
        return sums.select("key", (F.col(of) * 10).alias("x"))

    def field(rows: DataFrame, others: DataFrame, of: str) -> DataFrame:
        structs = [F.struct(F.col(each).alias("a")).alias(each) for each in ("n", "spare")]
        return near(rows.select("key", "ts", *structs), others, "true").select(F.col(f"{of}.a").alias("x"))

    def looked_up(rows: DataFrame, by: str, kind: str = "left") -> DataFrame:
        table = rows.sparkSession.sql("SELECT 'a' AS word, 1 AS number")
        found = rows.withColumn("by", F.expr(by)).join(table, F.col("by") == F.col("word"), kind)
        return summed(found, "number")

    def made(rows: DataFrame, times: int) -> DataFrame:
        passed = rows.select((F.col("n") * times).alias("x")).mapInPandas(lambda each: each, "x int")
        return passed.dropDuplicates(["x"])

    two = ("timed", "others")
    alone = {"more": ONE_TASK}
    pairs: dict[str, list[tuple[Callable[..., DataFrame], tuple[str, ...], dict[str, str]]]] = {
        "a column": [(partial(total, of=of), (), {}) for of in ("n", "spare")],
        "a subquery": [(partial(total, of=f"n * (SELECT max(id) FROM range({most}))"), (), {}) for most in (3, 4)],
        "a limit": [(partial(limited, times=times), two, {}) for times in (2, 3)],
        "a time": [(partial(until, hours=hours), two, {}) for hours in (2, 3)],
        "both sides": [(partial(beside, times=times), two, alone) for times in (2, 3)],
        "a list": [(partial(words, made=f"explode(split(key, '{by}')) AS word"), (), alone) for by in ("-", "_")],
        "a part": [
            (partial(words, made=f"posexplode(array(n)) AS ({names})"), (), alone) for names in ("at, word", "word, at")
        ],
        "a union": [(partial(merged, of=of), ("timed", "timed"), alone) for of in ("n", "spare")],
        "a function that is left": [(partial(used, of=of), (), {}) for of in ("n", "spare")],
        "a field that is left": [(partial(field, of=of), two, {}) for of in ("n", "spare")],
        "a row of a table": [(partial(looked_up, by=by), (), {}) for by in ("key", "reverse(key)")],
        "a kind of join with a table": [
            (partial(looked_up, by="key", kind=kind), (), {}) for kind in ("left", "inner")
        ],
        "what a function gets": [(partial(made, times=times), (), alone) for times in (2, 3)],
        "a name": [(partial(odd, name=name), (), more) for name in ("k#1", "k#2") for more in (alone,)],
        "a routed name": [(partial(odd, name=name), (), {}) for name in ("k#1", "k#2")],
    }
    prints = {
        what: [one_stage(code, *inputs, **options).plan.fingerprint for code, inputs, options in [*pair, pair[0]]]
        for what, pair in [*pairs.items()][::every]
    }
    assert {what for what, (one, other, _) in prints.items() if one == other} == set(), "not seen"
    assert {what for what, (one, _, again) in prints.items() if one != again} == set(), "in a second analysis"


def test_the_fingerprint_does_not_see_what_no_state_depends_on(one_stage: Callable[..., Pipeline]) -> None:
    """A fix of it needs no drain."""

    def total(
        rows: DataFrame, *, only: str = "n > 1", beside: str = "n", called: str = "x", times: int = 2, after: str = "1"
    ) -> DataFrame:
        made = F.udf(lambda n: n * times, "bigint")("n")
        found = rows.where(only).withColumn("beside", F.expr(beside)).withColumn(called, made)
        return summed(found, called).select("window", "key", F.expr(f"total * {after}L").alias("total"))

    def carried(rows: DataFrame, others: DataFrame, *, beside: str = "n * 2") -> DataFrame:
        return near(rows, others, "n < m", beside=beside).select("key", "beside")

    def stateless(rows: DataFrame, *, times: int = 2) -> DataFrame:
        return rows.select("key", (F.col("n") * times).alias("x"))

    def prints(stage: Callable[..., DataFrame], *inputs: str, **changes: Any) -> set[str]:
        codes = [stage, *(partial(stage, **{name: value}) for name, value in changes.items())]
        return {one_stage(code, *inputs).plan.fingerprint for code in codes}

    assert len(prints(total, only="n > 2", beside="n * 2", called="y", times=3, after="2")) == 1
    assert len(prints(carried, "timed", "others", beside="n * 3")) == 1
    assert len(prints(stateless, times=3)) == 1


def test_a_column_that_is_used_twice_at_each_of_many_steps(one_stage: Callable[..., Pipeline]) -> None:
    """Spelled out, it would be named a billion times."""

    def doubled(rows: DataFrame, first: str, steps: int) -> DataFrame:
        rows = rows.withColumn("x", F.expr(first))
        for _ in range(steps):
            rows = rows.withColumn("x", F.expr("(x + x) % 1000"))
        return summed(rows)

    found = [one_stage(partial(doubled, first=first, steps=steps)) for first in ("n", "spare") for steps in (1, 30)]
    assert len({each.plan.fingerprint for each in found}) == 4
    assert len({len(str(each.stages["stage"].analysis.fingerprint)) for each in found}) == 1


def test_the_fingerprint_does_not_see_when_a_pipeline_is_analysed(one_stage: Callable[..., Pipeline]) -> None:
    """Spark's optimiser replaces the functions of the present time, and each processor analyses for itself."""

    def aged(rows: DataFrame, age: str) -> DataFrame:
        return summed(rows.withColumn("x", F.expr(age)))

    def field(rows: DataFrame, others: DataFrame, age: str) -> DataFrame:
        both = F.struct(F.expr(age).alias("age"), "n").alias("both")
        return near(rows.select("key", "ts", both), others, "true").select("both.age")

    for age in ("unix_micros(current_timestamp()) - unix_micros(ts)", "datediff(current_date(), ts)"):
        for code, *others in [(aged,), (field, "timed", "others")]:
            prints = {one_stage(partial(code, age=age), *others).plan.fingerprint for _ in range(2)}
            assert len(prints) == 1, (age, code)
